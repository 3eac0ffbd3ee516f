package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// maxNesting bounds statements and expressions in each other.
const maxNesting = 200

// maxSource bounds a template in bytes; the largest published ones have 40 kB. What is read of one takes at most some
// hundred times its size in memory.
const maxSource = 256 << 10

// maxNamed bounds the arguments of a macro, and those with names of a call: each is looked for among the others.
const maxNamed = 255

// Template is a parsed template. It can be executed any number of times, at the same time too.
type Template struct{ body []statement }

// Parse reads a template. Errors are of type *Error.
func Parse(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, &Error{0, "the template has " + strconv.Itoa(len(source)) + " bytes, want at most " + strconv.Itoa(maxSource), ErrLimit}
	}
	defer catch(&err)
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body := p.statements()
	return &Template{body}, nil
}

type statement interface{ exec(e *env) signal }

type expression interface{ eval(e *env) Value }

// Statements.
type (
	stText  struct{ text string }
	stPrint struct {
		line int
		x    expression
	}
	stFor struct {
		line        int
		target      target
		over        expression
		test        expression // nil: none
		recursive   bool
		body, empty []statement
	}
	stIf struct {
		tests  []expression
		bodies [][]statement // one more than tests when there is an else
	}
	stSet struct {
		line   int
		target target
		x      expression // nil: body
		filter expression // applied to the body, nil: none
		body   []statement
	}
	stWith struct {
		line    int
		targets []target
		values  []expression
		body    []statement
	}
	stScope struct{ body []statement } // a body with variables of its own
	stMacro struct {
		line int
		name string
		def  *macro
	}
	stCall struct { // {% call %}
		line int
		call *exCall
		def  *macro
	}
	stFilter struct {
		line   int
		filter expression
		body   []statement
	}
	stLoop struct{ signal signal } // break, continue
)

type macro struct {
	name     string
	args     []string
	defaults []expression // of the last args
	body     []statement
	caller   bool // the body asks for caller, varargs or kwargs
	varargs  bool
	kwargs   bool
}

// Expressions.
type (
	exConst struct{ v Value }
	exName  struct {
		line int
		name string
	}
	exTuple struct{ items []expression }
	exList  struct{ items []expression }
	exDict  struct{ keys, values []expression }
	exAttr  struct {
		line int
		x    expression
		name string
	}
	exItem struct {
		line int
		x, i expression
	}
	exSlice  struct{ from, to, step expression } // nil: left out
	exFilter struct {
		line int
		x    expression // nil: the body the filter is applied to
		name string
		args arguments
	}
	exTest struct {
		line int
		x    expression
		name string
		args arguments
	}
	exCall struct {
		line int
		f    expression
		args arguments
	}
	exUnary struct {
		line int
		op   string
		x    expression
	}
	exBinary struct {
		line int
		op   string
		a, b expression
	}
	exCompare struct {
		line int
		x    expression
		ops  []string
		with []expression
	}
	exConcat struct {
		line  int
		items []expression
	}
	exIf struct{ test, yes, no expression } // no may be nil
)

// arguments of a call; dynamic ones are * and **, nil if left out.
type arguments struct {
	positional     []expression
	names          []string
	named          []expression
	star, starStar expression
}

// target is what is assigned to: a name, an attribute of a namespace, or several.
type target struct {
	line       int
	name, attr string
	several    []target
}

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // for statements around this one, within a macro
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) look(n int) token { return p.tokens[min(p.at+n, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEOF {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) { throw(p.peek().line, nil, format, args...) }

func (p *parser) is(k kind, text string) bool { t := p.peek(); return t.kind == k && t.text == text }

func (p *parser) skip(k kind, text string) bool {
	if p.is(k, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(k kind, text string) token {
	if t := p.peek(); t.kind != k || text != "" && t.text != text {
		want := strconv.Quote(text)
		if text == "" {
			want = k.String()
		}
		p.fail("unexpected %s, want %s", t.describe(), want)
	}
	return p.next()
}

// enter counts nesting; call what it returns at the end.
func (p *parser) enter() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("more than %d expressions or blocks in each other", maxNesting)
	}
	return func() { p.depth-- }
}

// statements reads up to a tag named one of ends, which it leaves, or the end of the template.
func (p *parser) statements(ends ...string) []statement {
	defer p.enter()()
	var out []statement
	for {
		switch t := p.peek(); t.kind {
		case tokEOF:
			if len(ends) > 0 {
				p.fail("unexpected end of template, want %q", ends[len(ends)-1])
			}
			return out
		case tokData:
			out = append(out, &stText{p.next().text})
		case tokPrint:
			p.next()
			x := p.tuple(true)
			p.expect(tokPrintEnd, "")
			out = append(out, &stPrint{t.line, x})
		default:
			p.next()
			name := p.expect(tokName, "")
			if slices.Contains(ends, name.text) {
				p.at--
				return out
			}
			out = append(out, p.statement(name)...)
			p.expect(tokTagEnd, "")
		}
	}
}

// block reads a body up to its end tag, whose name it takes.
func (p *parser) block(ends ...string) ([]statement, string) {
	p.skip(tokOp, ":")
	p.expect(tokTagEnd, "")
	body := p.statements(ends...)
	return body, p.next().text
}

func (p *parser) statement(name token) []statement {
	one := func(s statement) []statement { return []statement{s} }
	switch name.text {
	case "for":
		return one(p.parseFor(name.line))
	case "if":
		s := &stIf{}
		for end := "elif"; end == "elif"; {
			s.tests = append(s.tests, p.tuple(false))
			var body []statement
			body, end = p.block("elif", "else", "endif")
			s.bodies = append(s.bodies, body)
			if end == "else" {
				body, _ = p.block("endif")
				s.bodies = append(s.bodies, body)
			}
		}
		return one(s)
	case "set":
		s := &stSet{line: name.line, target: p.target(true)}
		if p.skip(tokOp, "=") {
			s.x = p.tuple(true)
			return one(s)
		}
		s.filter = p.filters(nil, false)
		s.body = p.apart("endset")
		return one(s)
	case "with":
		s := &stWith{line: name.line}
		for p.peek().kind != tokTagEnd {
			if len(s.targets) > 0 {
				p.expect(tokOp, ",")
			}
			s.targets = append(s.targets, p.target(false))
			p.expect(tokOp, "=")
			s.values = append(s.values, p.expression())
		}
		s.body, _ = p.block("endwith")
		return one(s)
	case "macro":
		m := &macro{name: p.expect(tokName, "").text}
		p.signature(m)
		p.macroBody(m, "endmacro")
		return one(&stMacro{name.line, m.name, m})
	case "call":
		m := &macro{name: "caller"}
		if p.is(tokOp, "(") {
			p.signature(m)
		}
		call, ok := p.expression().(*exCall)
		if !ok {
			p.fail("want a call")
		}
		p.macroBody(m, "endcall")
		return one(&stCall{name.line, call, m})
	case "filter":
		s := &stFilter{line: name.line, filter: p.filters(nil, true)}
		s.body = p.apart("endfilter")
		return one(s)
	case "generation": // marks what the model wrote
		return one(&stScope{p.apart("endgeneration")})
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside a loop", name.text)
		}
		return one(&stLoop{map[string]signal{"break": sigBreak, "continue": sigContinue}[name.text]})
	case "print":
		var out []statement
		for p.peek().kind != tokTagEnd {
			if len(out) > 0 {
				p.expect(tokOp, ",")
			}
			out = append(out, &stPrint{name.line, p.expression()})
		}
		return out
	case "include", "import", "from", "extends", "block", "autoescape":
		throw(name.line, nil, "%q is not supported: a chat template stands alone", name.text)
	}
	throw(name.line, nil, "unknown tag %q", name.text)
	return nil
}

func (p *parser) parseFor(line int) statement {
	s := &stFor{line: line, target: p.target(false)}
	p.expect(tokName, "in")
	s.over = p.tuple(false)
	if p.skip(tokName, "if") {
		s.test = p.expression()
	}
	s.recursive = p.skip(tokName, "recursive")
	p.loops++
	body, end := p.block("endfor", "else")
	p.loops--
	s.body = body
	if end == "else" {
		s.empty, _ = p.block("endfor")
	}
	return s
}

func (p *parser) signature(m *macro) {
	p.expect(tokOp, "(")
	for !p.is(tokOp, ")") {
		if len(m.args) > 0 {
			p.expect(tokOp, ",")
		}
		if len(m.args) == maxNamed {
			p.fail("more than %d arguments", maxNamed)
		}
		m.args = append(m.args, p.expect(tokName, "").text)
		if p.skip(tokOp, "=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.fail("an argument without a default after one that has one")
		}
	}
	p.expect(tokOp, ")")
}

// apart reads a body that cannot end a loop around it.
func (p *parser) apart(end string) []statement {
	loops := p.loops
	p.loops = 0
	body, _ := p.block(end)
	p.loops = loops
	return body
}

func (p *parser) macroBody(m *macro, end string) {
	from := p.at
	m.body = p.apart(end)
	for _, t := range p.tokens[from:p.at] {
		if t.kind == tokName {
			m.caller = m.caller || t.text == "caller"
			m.varargs = m.varargs || t.text == "varargs"
			m.kwargs = m.kwargs || t.text == "kwargs"
		}
	}
}

// target reads names to assign to; attributes permits one of a namespace.
func (p *parser) target(attributes bool) target {
	defer p.enter()()
	var out target
	out.line = p.peek().line
	for {
		if len(out.several) > 0 && (p.is(tokName, "in") || p.is(tokOp, "=") || p.is(tokOp, ")") || p.peek().kind == tokTagEnd) {
			return out // a comma at the end
		}
		var t target
		if p.skip(tokOp, "(") {
			t = p.target(attributes)
			p.expect(tokOp, ")")
		} else {
			name := p.expect(tokName, "")
			if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, name.text) {
				throw(name.line, nil, "cannot assign to %q", name.text)
			}
			t = target{line: name.line, name: name.text}
			if attributes && p.skip(tokOp, ".") {
				t.attr = p.expect(tokName, "").text
			}
		}
		if !p.skip(tokOp, ",") {
			if len(out.several) == 0 {
				return t
			}
			out.several = append(out.several, t)
			return out
		}
		out.several = append(out.several, t)
	}
}

// tuple reads an expression, or several with commas; conditional permits x if y.
func (p *parser) tuple(conditional bool) expression {
	read := p.expression
	if !conditional {
		read = p.or
	}
	var items []expression
	for {
		t := p.peek()
		if t.kind == tokTagEnd || t.kind == tokPrintEnd || t.kind == tokOp && t.text == ")" {
			if len(items) == 0 {
				p.fail("unexpected %s, want an expression", t.describe())
			}
			return &exTuple{items}
		}
		items = append(items, read())
		if !p.skip(tokOp, ",") {
			if len(items) == 1 {
				return items[0]
			}
			return &exTuple{items}
		}
	}
}

func (p *parser) expression() expression {
	defer p.enter()()
	x := p.or()
	for n := 0; p.skip(tokName, "if"); n++ {
		p.chain(n)
		c := &exIf{test: p.or(), yes: x}
		if p.skip(tokName, "else") {
			c.no = p.expression()
		}
		x = c
	}
	return x
}

// binary reads operands of one level, joined from the left.
func (p *parser) binary(operand func() expression, k kind, ops ...string) expression {
	x := operand()
	for n := 0; p.peek().kind == k && slices.Contains(ops, p.peek().text); n++ {
		if n == maxNesting {
			p.fail("more than %d operators in a row", maxNesting)
		}
		t := p.next()
		x = &exBinary{t.line, t.text, x, operand()}
	}
	return x
}

func (p *parser) or() expression  { return p.binary(p.and, tokName, "or") }
func (p *parser) and() expression { return p.binary(p.not, tokName, "and") }

func (p *parser) not() expression {
	if p.is(tokName, "not") {
		defer p.enter()()
		return &exUnary{p.next().line, "not", p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expression {
	c := &exCompare{line: p.peek().line, x: p.sum()}
	for {
		switch t := p.peek(); {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text), t.kind == tokName && t.text == "in":
			p.next()
			c.ops = append(c.ops, t.text)
		case t.kind == tokName && t.text == "not" && p.look(1).kind == tokName && p.look(1).text == "in":
			p.at += 2
			c.ops = append(c.ops, "not in")
		default:
			if len(c.ops) == 0 {
				return c.x
			}
			return c
		}
		c.with = append(c.with, p.sum())
	}
}

func (p *parser) sum() expression { return p.binary(p.concat, tokOp, "+", "-") }

func (p *parser) concat() expression {
	x := p.product()
	if !p.is(tokOp, "~") {
		return x
	}
	c := &exConcat{p.peek().line, []expression{x}}
	for p.skip(tokOp, "~") {
		c.items = append(c.items, p.product())
	}
	return c
}

func (p *parser) product() expression { return p.binary(p.power, tokOp, "*", "/", "//", "%") }
func (p *parser) power() expression {
	return p.binary(func() expression { return p.unary(true) }, tokOp, "**")
}

func (p *parser) unary(filters bool) expression {
	defer p.enter()()
	var x expression
	if t := p.peek(); t.kind == tokOp && (t.text == "-" || t.text == "+") {
		p.next()
		x = &exUnary{t.line, t.text, p.unary(false)}
	} else {
		x = p.primary()
	}
	x = p.postfix(x)
	for n := 0; filters; n++ {
		p.chain(n)
		switch {
		case p.is(tokOp, "|"):
			x = p.filters(x, false)
		case p.is(tokName, "is"):
			x = p.test(x)
		case p.is(tokOp, "("):
			x = p.call(x)
		default:
			return x
		}
	}
	return x
}

// chain bounds what follows an expression: a tree as deep as it is long.
func (p *parser) chain(n int) {
	if n > 4*maxNesting {
		p.fail("an expression has more than %d parts", 4*maxNesting)
	}
}

func (p *parser) primary() expression {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &exConst{true}
		case "false", "False":
			return &exConst{false}
		case "none", "None":
			return &exConst{nil}
		}
		return &exName{t.line, t.text}
	case tokString:
		parts := []string{t.text}
		for p.peek().kind == tokString {
			parts = append(parts, p.next().text)
		}
		return &exConst{strings.Join(parts, "")}
	case tokInt:
		v, err := strconv.ParseInt(t.text, 0, 64)
		if err != nil {
			throw(t.line, nil, "the number %s is too large", t.text)
		}
		return &exConst{v}
	case tokFloat:
		v, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			throw(t.line, nil, "the number %s is too large", t.text)
		}
		return &exConst{v}
	case tokOp:
		switch t.text {
		case "(":
			if p.skip(tokOp, ")") {
				return &exTuple{}
			}
			x := p.tuple(true)
			p.expect(tokOp, ")")
			return x
		case "[":
			return &exList{p.items("]")}
		case "{":
			d := &exDict{}
			for !p.skip(tokOp, "}") {
				if len(d.keys) > 0 {
					p.expect(tokOp, ",")
					if p.skip(tokOp, "}") {
						break
					}
				}
				d.keys = append(d.keys, p.expression())
				p.expect(tokOp, ":")
				d.values = append(d.values, p.expression())
			}
			return d
		}
	}
	throw(t.line, nil, "unexpected %s, want an expression", t.describe())
	return nil
}

func (p *parser) items(end string) []expression {
	var out []expression
	for !p.skip(tokOp, end) {
		if len(out) > 0 {
			p.expect(tokOp, ",")
			if p.skip(tokOp, end) {
				break
			}
		}
		out = append(out, p.expression())
	}
	return out
}

func (p *parser) postfix(x expression) expression {
	for n := 0; ; n++ {
		p.chain(n)
		t := p.peek()
		switch {
		case t.kind != tokOp:
			return x
		case t.text == ".":
			p.next()
			switch name := p.next(); name.kind {
			case tokName:
				x = &exAttr{t.line, x, name.text}
			case tokInt:
				i, err := strconv.ParseInt(name.text, 10, 64)
				if err != nil {
					throw(t.line, nil, "the number %s is too large", name.text)
				}
				x = &exItem{t.line, x, &exConst{i}}
			default:
				throw(t.line, nil, "unexpected %s, want a name or number", name.describe())
			}
		case t.text == "[":
			p.next()
			var items []expression
			for !p.is(tokOp, "]") {
				if len(items) > 0 {
					p.expect(tokOp, ",")
				}
				items = append(items, p.subscript())
			}
			p.next()
			if len(items) == 1 {
				x = &exItem{t.line, x, items[0]}
			} else {
				x = &exItem{t.line, x, &exTuple{items}}
			}
		case t.text == "(":
			x = p.call(x)
		default:
			return x
		}
	}
}

func (p *parser) subscript() expression {
	s := &exSlice{}
	if !p.is(tokOp, ":") {
		x := p.expression()
		if !p.is(tokOp, ":") {
			return x
		}
		s.from = x
	}
	part := func() expression {
		if !p.skip(tokOp, ":") || p.is(tokOp, ":") || p.is(tokOp, "]") || p.is(tokOp, ",") {
			return nil
		}
		return p.expression()
	}
	s.to = part()
	s.step = part()
	return s
}

func (p *parser) arguments() arguments {
	p.expect(tokOp, "(")
	var a arguments
	for n := 0; !p.skip(tokOp, ")"); n++ {
		if n > 0 {
			p.expect(tokOp, ",")
			if p.skip(tokOp, ")") {
				break
			}
		}
		switch t := p.peek(); {
		case p.skip(tokOp, "*") && a.star == nil && a.starStar == nil:
			a.star = p.expression()
		case p.skip(tokOp, "**") && a.starStar == nil:
			a.starStar = p.expression()
		case t.kind == tokName && p.look(1).kind == tokOp && p.look(1).text == "=" && a.starStar == nil:
			p.at += 2
			if len(a.names) == maxNamed {
				p.fail("more than %d arguments with names", maxNamed)
			}
			if slices.Contains(a.names, t.text) {
				throw(t.line, nil, "argument %q twice", t.text)
			}
			a.names = append(a.names, t.text)
			a.named = append(a.named, p.expression())
		case a.star == nil && a.starStar == nil && len(a.names) == 0:
			a.positional = append(a.positional, p.expression())
		default:
			throw(t.line, nil, "arguments are in the wrong order")
		}
	}
	return a
}

func (p *parser) call(f expression) expression {
	line := p.peek().line
	return &exCall{line, f, p.arguments()}
}

// filters reads | and the names of filters; inline says that the first | is left out.
func (p *parser) filters(x expression, inline bool) expression {
	for n := 0; inline || p.skip(tokOp, "|"); n++ {
		p.chain(n)
		inline = false
		name := p.dotted()
		f := &exFilter{line: name.line, x: x, name: name.text}
		if p.is(tokOp, "(") {
			f.args = p.arguments()
		}
		x = f
	}
	return x
}

func (p *parser) dotted() token {
	name := p.expect(tokName, "")
	for p.skip(tokOp, ".") {
		if len(name.text) > maxName {
			p.fail("a name of more than %d bytes", maxName)
		}
		name.text += "." + p.expect(tokName, "").text
	}
	return name
}

func (p *parser) test(x expression) expression {
	line := p.next().line
	negated := p.skip(tokName, "not")
	t := &exTest{line: line, x: x, name: p.dotted().text}
	next := p.peek()
	switch {
	case next.kind == tokOp && next.text == "(":
		t.args = p.arguments()
	case next.kind == tokName && !slices.Contains([]string{"else", "or", "and"}, next.text), next.kind == tokString, next.kind == tokInt, next.kind == tokFloat, next.kind == tokOp && (next.text == "[" || next.text == "{"):
		if next.kind == tokName && next.text == "is" {
			p.fail("tests cannot be chained")
		}
		t.args.positional = []expression{p.postfix(p.primary())}
	}
	if negated {
		return &exUnary{line, "not", t}
	}
	return t
}
