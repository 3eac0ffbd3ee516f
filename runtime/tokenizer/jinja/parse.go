package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxNesting bounds statements and expressions in each other.
const maxNesting = 200

// maxSource bounds a template in bytes; the largest published ones have 40 kB. Parsing takes at
// most some hundred times that in memory.
const maxSource = 256 << 10

// maxNamed bounds the arguments of a macro, and the named arguments of a call, because each is
// searched among the others.
const maxNamed = 255

// Template is a parsed template. It can be executed any number of times, at the same time too.
type Template struct{ body []statement }

// Parse reads a template. Errors are of type *Error.
func Parse(source string) (template *Template, err error) {
	if len(source) > maxSource {
		return nil, &Error{0, fmt.Sprintf("the template has %d bytes, want at most %d", len(source), maxSource), ErrLimit}
	}
	defer catch(&err)
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	return &Template{p.statements()}, nil
}

// parser is a recursive descent parser: each level of precedence is a method that calls the next
// tighter one.
//
// It bounds hostile templates in two ways. Nesting deeper than maxNesting is refused, so that
// neither the parser nor an execution exhausts the stack. What is read in a loop but makes a tree
// as deep as it is long (operators, attributes, filters) is bounded by its number of parts.
type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // for statements around this one, within a macro
}

// peek returns the next token, which stays.
func (p *parser) peek() token { return p.tokens[p.at] }

// look returns a later token; the last one stands for all after it.
func (p *parser) look(ahead int) token { return p.tokens[min(p.at+ahead, len(p.tokens)-1)] }

// next takes a token. The end of the template can be taken any number of times.
func (p *parser) next() token {
	tok := p.tokens[p.at]
	if tok.kind != tokEOF {
		p.at++
	}
	return tok
}

// fail ends parsing with an error at the line of the next token.
func (p *parser) fail(format string, args ...any) { throw(p.peek().line, nil, format, args...) }

// skip moves past a token if it comes next.
func (p *parser) skip(kind kind, text string) bool {
	if !p.peek().is(kind, text) {
		return false
	}
	p.at++
	return true
}

// expect takes a token of a kind, with the text unless that is "".
func (p *parser) expect(kind kind, text string) token {
	if tok := p.peek(); tok.kind != kind || text != "" && tok.text != text {
		want := strconv.Quote(text)
		if text == "" {
			want = kind.String()
		}
		p.fail("unexpected %s, want %s", tok.describe(), want)
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

// statements reads up to a tag that is named in ends, which it leaves, or up to the end of the
// template. Any other tag begins a statement of its own.
func (p *parser) statements(ends ...string) []statement {
	defer p.enter()()
	var out []statement
	for {
		switch tok := p.peek(); tok.kind {
		case tokEOF:
			if len(ends) > 0 {
				p.fail("unexpected end of template, want %q", ends[len(ends)-1])
			}
			return out
		case tokData:
			out = append(out, &textStmt{p.next().text})
		case tokPrint:
			p.next()
			value := p.tuple(true)
			p.expect(tokPrintEnd, "")
			out = append(out, &printStmt{tok.line, []expression{value}})
		default:
			p.next()
			name := p.expect(tokName, "")
			// The caller takes the name: it may ask which of several ends it was.
			if slices.Contains(ends, name.text) {
				p.at--
				return out
			}
			out = append(out, p.statement(name))
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

// statement reads what follows the name of a tag.
func (p *parser) statement(name token) statement {
	switch name.text {
	case "for":
		return p.forStatement(name.line)
	case "if":
		return p.ifStatement()
	case "set":
		return p.setStatement(name.line)
	case "with":
		return p.withStatement(name.line)
	case "macro":
		def := &macro{name: p.expect(tokName, "").text}
		p.signature(def)
		p.macroBody(def, "endmacro")
		return &macroStmt{name.line, def.name, def}
	case "call":
		return p.callStatement(name.line)
	case "filter":
		filter := p.filters(nil, true)
		return &filterStmt{name.line, filter, p.detachedBody("endfilter")}
	case "generation": // marks what the model wrote
		return &scopeStmt{p.detachedBody("endgeneration")}
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside a loop", name.text)
		}
		return &loopControl{map[string]signal{"break": sigBreak, "continue": sigContinue}[name.text]}
	case "print":
		stmt := &printStmt{line: name.line}
		for p.peek().kind != tokTagEnd {
			if len(stmt.values) > 0 {
				p.expect(tokOp, ",")
			}
			stmt.values = append(stmt.values, p.expression())
		}
		return stmt
	case "include", "import", "from", "extends", "block", "autoescape":
		throw(name.line, nil, "%q is not supported: a chat template stands alone", name.text)
	}
	throw(name.line, nil, "unknown tag %q", name.text)
	return nil
}

// forStatement reads {% for target in items if test recursive %} with its else body.
func (p *parser) forStatement(line int) statement {
	stmt := &forStmt{line: line, target: p.target(false)}
	p.expect(tokName, "in")
	// Without conditional expressions: an if that follows selects items.
	stmt.over = p.tuple(false)
	if p.skip(tokName, "if") {
		stmt.test = p.expression()
	}
	stmt.recursive = p.skip(tokName, "recursive")
	// break and continue are permitted from here to the end of the body, but not in the body for no items.
	p.loops++
	body, end := p.block("endfor", "else")
	p.loops--
	stmt.body = body
	if end == "else" {
		stmt.empty, _ = p.block("endfor")
	}
	return stmt
}

// ifStatement reads all branches: each elif is one more test.
func (p *parser) ifStatement() statement {
	stmt := &ifStmt{}
	for end := "elif"; end == "elif"; {
		stmt.tests = append(stmt.tests, p.tuple(false))
		var body []statement
		body, end = p.block("elif", "else", "endif")
		stmt.bodies = append(stmt.bodies, body)
		if end == "else" {
			body, _ = p.block("endif")
			stmt.bodies = append(stmt.bodies, body)
		}
	}
	return stmt
}

// setStatement reads {% set x = value %} or {% set x | filter %} with a body.
func (p *parser) setStatement(line int) statement {
	stmt := &setStmt{line: line, target: p.target(true)}
	if p.skip(tokOp, "=") {
		stmt.value = p.tuple(true)
		return stmt
	}
	stmt.filter = p.filters(nil, false)
	stmt.body = p.detachedBody("endset")
	return stmt
}

// withStatement reads {% with a = 1, b = 2 %}, whose variables end with its body.
func (p *parser) withStatement(line int) statement {
	stmt := &withStmt{line: line}
	for p.peek().kind != tokTagEnd {
		if len(stmt.targets) > 0 {
			p.expect(tokOp, ",")
		}
		stmt.targets = append(stmt.targets, p.target(false))
		p.expect(tokOp, "=")
		stmt.values = append(stmt.values, p.expression())
	}
	stmt.body, _ = p.block("endwith")
	return stmt
}

// callStatement reads {% call f(..) %}, whose body f finds as the macro caller.
func (p *parser) callStatement(line int) statement {
	// The signature before the call declares what the macro passes to caller.
	def := &macro{name: "caller"}
	if p.peek().is(tokOp, "(") {
		p.signature(def)
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		p.fail("want a call")
	}
	p.macroBody(def, "endcall")
	return &callStmt{line, call, def}
}

// signature reads the names of a macro's arguments and their defaults.
func (p *parser) signature(def *macro) {
	p.expect(tokOp, "(")
	for !p.skip(tokOp, ")") {
		if len(def.args) > 0 {
			p.expect(tokOp, ",")
		}
		if len(def.args) == maxNamed {
			p.fail("more than %d arguments", maxNamed)
		}
		def.args = append(def.args, p.expect(tokName, "").text)
		if p.skip(tokOp, "=") {
			def.defaults = append(def.defaults, p.expression())
		} else if len(def.defaults) > 0 {
			p.fail("an argument without a default after one that has one")
		}
	}
}

// detachedBody reads a body that cannot end a loop around it.
func (p *parser) detachedBody(end string) []statement {
	// A body whose text is captured has no loop around it that a break could end.
	loops := p.loops
	p.loops = 0
	body, _ := p.block(end)
	p.loops = loops
	return body
}

// macroBody reads the body of a macro, and finds out whether caller, varargs or kwargs occur
// anywhere in it.
func (p *parser) macroBody(def *macro, end string) {
	from := p.at
	def.body = p.detachedBody(end)
	// An attribute of that name is no mention.
	mentions := func(name string) bool {
		for at := from; at < p.at; at++ {
			if p.tokens[at].is(tokName, name) && (at == 0 || !p.tokens[at-1].isOp(".")) {
				return true
			}
		}
		return false
	}
	def.caller, def.varargs, def.kwargs = mentions("caller"), mentions("varargs"), mentions("kwargs")
}

// target reads names to assign to; attributes permits one of a namespace.
func (p *parser) target(attributes bool) target {
	defer p.enter()()
	out := target{line: p.peek().line}
	for {
		one := p.oneTarget(attributes)
		// A single target without a comma is itself, not a tuple of one.
		comma := p.skip(tokOp, ",")
		if !comma && len(out.several) == 0 {
			return one
		}
		out.several = append(out.several, one)
		tok := p.peek()
		if !comma || tok.is(tokName, "in") || tok.isOp("=", ")") || tok.kind == tokTagEnd {
			return out // the last comma may have nothing after it
		}
	}
}

// oneTarget reads a name, or targets in parentheses.
func (p *parser) oneTarget(attributes bool) target {
	if p.skip(tokOp, "(") {
		out := p.target(attributes)
		p.expect(tokOp, ")")
		return out
	}
	name := p.expect(tokName, "")
	if _, constant := constants[name.text]; constant {
		throw(name.line, nil, "cannot assign to %q", name.text)
	}
	out := target{line: name.line, name: name.text}
	if attributes && p.skip(tokOp, ".") {
		out.attr = p.expect(tokName, "").text
	}
	return out
}

// tuple reads an expression, or several with commas; conditional permits x if y.
func (p *parser) tuple(conditional bool) expression {
	read := p.expression
	if !conditional {
		read = p.or
	}
	var items []expression
	for {
		// The end of the tag or a bracket after a comma ends the tuple: a trailing comma is permitted.
		tok := p.peek()
		if tok.kind == tokTagEnd || tok.kind == tokPrintEnd || tok.isOp(")") {
			if len(items) == 0 {
				p.fail("unexpected %s, want an expression", tok.describe())
			}
			return &tupleExpr{items}
		}
		items = append(items, read())
		if p.skip(tokOp, ",") {
			continue
		}
		if len(items) == 1 {
			return items[0]
		}
		return &tupleExpr{items}
	}
}

// expression reads x if y else z and whatever binds tighter.
func (p *parser) expression() expression {
	defer p.enter()()
	operand := p.or()
	for count := 0; p.skip(tokName, "if"); count++ {
		p.checkLength(count)
		choice := &conditionalExpr{test: p.or(), yes: operand}
		if p.skip(tokName, "else") {
			choice.no = p.expression()
		}
		operand = choice
	}
	return operand
}

// binary reads operands of one level, joined from the left.
func (p *parser) binary(operand func() expression, kind kind, ops ...string) expression {
	left := operand()
	for count := 0; p.peek().kind == kind && slices.Contains(ops, p.peek().text); count++ {
		if count == maxNesting {
			p.fail("more than %d operators in a row", maxNesting)
		}
		tok := p.next()
		left = &binaryExpr{tok.line, tok.text, left, operand()}
	}
	return left
}

// The levels of precedence, the loosest first, are or, and, not, comparisons, sums, ~, products, powers and signs.
func (p *parser) or() expression { return p.binary(p.and, tokName, "or") }

// and binds tighter than or, and looser than not.
func (p *parser) and() expression { return p.binary(p.not, tokName, "and") }

// not binds looser than comparisons: not a == b is not (a == b).
func (p *parser) not() expression {
	if p.peek().is(tokName, "not") {
		defer p.enter()()
		return &unaryExpr{p.next().line, "not", p.not()}
	}
	return p.compare()
}

// compare reads a chain of comparisons, which is one expression.
func (p *parser) compare() expression {
	out := &compareExpr{line: p.peek().line, first: p.sum()}
	for {
		tok := p.next()
		switch {
		case tok.isOp("==", "!=", "<", "<=", ">", ">="), tok.is(tokName, "in"):
			out.ops = append(out.ops, tok.text)
		case tok.is(tokName, "not") && p.skip(tokName, "in"):
			out.ops = append(out.ops, "not in")
		default:
			// Not a comparison: the token is put back, unless it is the end, which next does not take.
			if tok.kind != tokEOF {
				p.at--
			}
			if len(out.ops) == 0 {
				return out.first
			}
			return out
		}
		out.rest = append(out.rest, p.sum())
	}
}

// sum reads additions and subtractions, whose operands are chains of ~.
func (p *parser) sum() expression { return p.binary(p.concat, tokOp, "+", "-") }

// concat joins a whole chain of ~ in one node, which makes its text once.
func (p *parser) concat() expression {
	first := p.product()
	if !p.peek().is(tokOp, "~") {
		return first
	}
	out := &concatExpr{p.peek().line, []expression{first}}
	for p.skip(tokOp, "~") {
		out.items = append(out.items, p.product())
	}
	return out
}

// product reads multiplications and divisions, whose operands are powers.
func (p *parser) product() expression { return p.binary(p.power, tokOp, "*", "/", "//", "%") }

// power is joined from the left, as in Jinja and unlike in Python.
func (p *parser) power() expression {
	return p.binary(func() expression { return p.unary(true) }, tokOp, "**")
}

// unary reads signs and what they stand before. After a sign, filters and tests are left to what is around it.
func (p *parser) unary(filters bool) expression {
	defer p.enter()()
	var operand expression
	if tok := p.peek(); tok.isOp("-", "+") {
		p.next()
		operand = &unaryExpr{tok.line, tok.text, p.unary(false)}
	} else {
		operand = p.primary()
	}
	// Subscripts belong to the operand: x[0]|f is (x[0])|f, and nothing can be subscripted after a filter.
	operand = p.postfix(operand)
	for count := 0; filters; count++ {
		p.checkLength(count)
		switch tok := p.peek(); {
		case tok.isOp("|"):
			operand = p.filters(operand, false)
		case tok.is(tokName, "is"):
			operand = p.test(operand)
		case tok.isOp("("):
			operand = p.call(operand)
		default:
			return operand
		}
	}
	return operand
}

// checkLength bounds chains after an expression, whose tree is as deep as they are long.
func (p *parser) checkLength(count int) {
	if count > 4*maxNesting {
		p.fail("an expression has more than %d parts", 4*maxNesting)
	}
}

// constants are the names that stand for values, and cannot be assigned to.
var constants = map[string]Value{
	"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil,
}

// primary reads a name, a constant, or something in brackets. A tuple needs no brackets where one is permitted.
func (p *parser) primary() expression {
	tok := p.next()
	switch tok.kind {
	case tokName:
		if value, ok := constants[tok.text]; ok {
			return &constExpr{value}
		}
		return &nameExpr{tok.text}
	case tokString: // neighbours are one
		parts := []string{tok.text}
		for p.peek().kind == tokString {
			parts = append(parts, p.next().text)
		}
		return &constExpr{strings.Join(parts, "")}
	case tokInt:
		return &constExpr{tok.whole(0)}
	case tokFloat:
		number, err := strconv.ParseFloat(tok.text, 64)
		if err != nil {
			throw(tok.line, nil, "the number %s is too large", tok.text)
		}
		return &constExpr{number}
	}
	switch {
	case tok.isOp("("):
		if p.skip(tokOp, ")") {
			return &tupleExpr{}
		}
		inner := p.tuple(true)
		p.expect(tokOp, ")")
		return inner
	case tok.isOp("["):
		out := &listExpr{}
		p.list("]", func() { out.items = append(out.items, p.expression()) })
		return out
	case tok.isOp("{"):
		out := &dictExpr{}
		p.list("}", func() {
			out.keys = append(out.keys, p.expression())
			p.expect(tokOp, ":")
			out.values = append(out.values, p.expression())
		})
		return out
	}
	throw(tok.line, nil, "unexpected %s, want an expression", tok.describe())
	return nil
}

// list reads items up to end. A comma may follow the last one.
func (p *parser) list(end string, item func()) {
	for count := 0; !p.skip(tokOp, end); count++ {
		if count > 0 {
			p.expect(tokOp, ",")
			if p.skip(tokOp, end) {
				return
			}
		}
		item()
	}
}

// postfix reads the attributes, subscripts and calls that follow an operand.
func (p *parser) postfix(operand expression) expression {
	for count := 0; ; count++ {
		p.checkLength(count)
		tok := p.peek()
		switch {
		case tok.isOp("."):
			p.next()
			operand = p.attribute(operand, tok.line)
		case tok.isOp("["):
			p.next()
			var items []expression
			for !p.skip(tokOp, "]") {
				if len(items) > 0 {
					p.expect(tokOp, ",")
				}
				items = append(items, p.subscript())
			}
			// Several subscripts with commas are one tuple, as in Python.
			var index expression = &tupleExpr{items}
			if len(items) == 1 {
				index = items[0]
			}
			operand = &subscriptExpr{tok.line, operand, index}
		case tok.isOp("("):
			operand = p.call(operand)
		default:
			return operand
		}
	}
}

// attribute reads what follows a dot: a name, or the number of an item.
func (p *parser) attribute(operand expression, line int) expression {
	name := p.next()
	switch name.kind {
	case tokName:
		return &attrExpr{line, operand, name.text}
	case tokInt:
		return &subscriptExpr{line, operand, &constExpr{name.whole(10)}}
	}
	throw(line, nil, "unexpected %s, want a name or number", name.describe())
	return nil
}

// subscript reads an index or a slice from:to:step, any part of which may be left out.
func (p *parser) subscript() expression {
	slice := &sliceExpr{}
	if !p.peek().isOp(":") {
		index := p.expression()
		if !p.peek().isOp(":") {
			return index
		}
		slice.from = index
	}
	// Each part after the first begins with its colon, and may be empty.
	part := func() expression {
		if !p.skip(tokOp, ":") || p.peek().isOp(":", "]", ",") {
			return nil
		}
		return p.expression()
	}
	slice.to = part()
	slice.step = part()
	return slice
}

// arguments reads those of a call: by position, by name, *list, **mapping, in this order but for names after *list.
func (p *parser) arguments() arguments {
	p.expect(tokOp, "(")
	var out arguments
	p.list(")", func() {
		tok := p.peek()
		switch {
		case out.starStar != nil:
			throw(tok.line, nil, "arguments are in the wrong order")
		case out.star == nil && p.skip(tokOp, "*"):
			out.star = p.expression()
		case p.skip(tokOp, "**"):
			out.starStar = p.expression()
		case tok.kind == tokName && p.look(1).isOp("="):
			p.at += 2
			if len(out.names) == maxNamed {
				p.fail("more than %d arguments with names", maxNamed)
			}
			if slices.Contains(out.names, tok.text) {
				throw(tok.line, nil, "argument %q twice", tok.text)
			}
			out.names = append(out.names, tok.text)
			out.named = append(out.named, p.expression())
		case out.star == nil && len(out.names) == 0:
			out.positional = append(out.positional, p.expression())
		default:
			throw(tok.line, nil, "arguments are in the wrong order")
		}
	})
	return out
}

// call reads the arguments of a call and makes it of the callee.
func (p *parser) call(callee expression) expression {
	line := p.peek().line
	return &callExpr{line, callee, p.arguments()}
}

// filters reads | and names of filters; inline means that the first | is left out.
func (p *parser) filters(operand expression, inline bool) expression {
	for count := 0; inline || p.skip(tokOp, "|"); count++ {
		p.checkLength(count)
		// {% filter f|g %} writes no | before the first filter.
		inline = false
		name := p.dotted()
		filter := &filterExpr{line: name.line, operand: operand, name: name.text}
		if p.peek().isOp("(") {
			filter.args = p.arguments()
		}
		operand = filter
	}
	return operand
}

// dotted reads the name of a filter or test.
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

// test reads is name, with arguments in parentheses or a single one without.
func (p *parser) test(operand expression) expression {
	line := p.next().line
	negated := p.skip(tokName, "not")
	test := &testExpr{line: line, operand: operand, name: p.dotted().text}
	next := p.peek()
	if next.isOp("(") {
		test.args = p.arguments()
	} else if next.beginsArgument() {
		if next.is(tokName, "is") {
			p.fail("tests cannot be chained")
		}
		// An argument without parentheses has no operators: x is divisibleby 3 + 1 adds 1 to the result.
		test.args.positional = []expression{p.postfix(p.primary())}
	}
	if negated {
		return &unaryExpr{line, "not", test}
	}
	return test
}
