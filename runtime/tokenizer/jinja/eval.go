// Package jinja knows how a chat template becomes text: the part of the Jinja language that chat templates
// use, with the results of PyPI jinja2 in the environment of transformers (immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, its own tojson, raise_exception, strftime_now).
//
// A template is code from a stranger. It sees nothing but the variables it is given, cannot change them,
// and its steps, the memory it fills, its output and its recursion are bounded.
package jinja

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Options are what a template is given beside its variables.
type Options struct {
	Now time.Time // what strftime_now writes; the zero time makes it an error

	steps int // tests: instead of maxSteps
}

// Execute returns the text of the template with variables. Errors are of type *Error; the message of
// raise_exception is part of theirs. They wrap ErrLimit, ErrRefused, the cause of ctx, or nothing.
func (t *Template) Execute(ctx context.Context, variables map[string]Value, o Options) (text string, err error) {
	defer catch(&err)
	e := newEnv(ctx, o)
	for name, v := range globals {
		e.scope.variables[name] = v
	}
	for name, v := range variables {
		e.scope.variables[name] = v
	}
	e.scope = &scope{parent: e.scope}
	e.run(t.body)
	return e.out.String(), nil
}

// env is one execution.
type env struct {
	meter
	scope *scope
	out   *builder
	now   time.Time
}

func newEnv(ctx context.Context, o Options) *env {
	most := maxSteps
	if o.steps > 0 {
		most = o.steps
	}
	e := &env{meter: meter{ctx: ctx, most: most}, now: o.Now, scope: &scope{variables: map[string]Value{}}}
	e.out = e.output()
	return e
}

var tooMuch = fmt.Sprintf("the text has more than %d bytes", maxOutput)

// output begins a text that the template writes.
func (e *env) output() *builder {
	b := e.builder()
	b.long = tooMuch
	return b
}

type scope struct {
	variables map[string]Value
	parent    *scope
	memory    int  // charged for its variables, not for their values
	kept      bool // a macro may still look into it when its body has ended
}

// keep says that a macro looks into s from now on.
func (s *scope) keep() *scope {
	for at := s; at != nil && !at.kept; at = at.parent {
		at.kept = true
	}
	return s
}

// signal says how a body was left.
type signal int

const (
	sigNone signal = iota
	sigBreak
	sigContinue
)

func (e *env) list(items []Value) *List {
	e.grow(16 * len(items))
	return &List{items}
}

// defined fails for what is undefined.
func (e *env) defined(v Value) {
	if u, ok := v.(*undefined); ok {
		e.fail("%s", u.message)
	}
}

func (e *env) write(s string) {
	e.out.WriteString(s)
}

// capture returns what f writes.
func (e *env) capture(f func()) string {
	out := e.out
	e.out = e.output()
	f()
	text := e.out.String()
	e.out = out
	return text
}

// inner runs f in a scope of its own inside parent.
func (e *env) inner(parent *scope, f func()) {
	before := e.scope
	own := &scope{parent: parent}
	e.spend(1)
	e.scope = own
	f()
	e.scope = before
	if !own.kept { // nothing can reach it any more
		e.memory -= own.memory
	}
}

func (e *env) set(name string, v Value) {
	bytes := variableBytes
	if e.scope.variables == nil {
		e.scope.variables = map[string]Value{}
		bytes = scopeBytes
	}
	e.hold(bytes)
	e.scope.memory += bytes
	e.scope.variables[name] = v
}

func (e *env) lookup(name string) (Value, bool) {
	for s := e.scope; s != nil; s = s.parent {
		e.scan(len(name) + 8)
		if v, ok := s.variables[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (e *env) eval(x expression) Value {
	e.spend(1)
	e.enter()
	v := x.eval(e)
	e.stack--
	return v
}

func (e *env) run(body []statement) signal {
	e.enter()
	defer func() { e.stack-- }()
	for _, s := range body {
		e.spend(1)
		if sig := s.exec(e); sig != sigNone {
			return sig
		}
	}
	return sigNone
}

func (s *stText) exec(e *env) signal {
	e.write(s.text)
	return sigNone
}

func (s *stPrint) exec(e *env) signal {
	e.line = s.line
	v := e.eval(s.x)
	e.line = s.line
	e.write(e.text(v))
	return sigNone
}

func (s *stIf) exec(e *env) signal {
	for i, test := range s.tests {
		if truth(e.eval(test)) {
			return e.run(s.bodies[i])
		}
	}
	if len(s.bodies) > len(s.tests) {
		return e.run(s.bodies[len(s.tests)])
	}
	return sigNone
}

func (s *stSet) exec(e *env) signal {
	e.line = s.line
	var v Value
	if s.x != nil {
		v = e.eval(s.x)
	} else {
		v = e.filtered(s.filter, s.body)
	}
	e.line = s.line
	e.assign(s.target, v)
	return sigNone
}

// filtered is the text of a body, with a filter applied.
func (e *env) filtered(filter expression, body []statement) Value {
	var v Value = e.capture(func() { e.inner(e.scope, func() { e.run(body) }) })
	if filter != nil {
		e.inner(e.scope, func() {
			e.scope.variables = map[string]Value{"": v} // where a filter without an operand looks
			v = e.eval(filter)
		})
	}
	return v
}

func (s *stFilter) exec(e *env) signal {
	e.line = s.line
	e.write(e.text(e.filtered(s.filter, s.body)))
	return sigNone
}

func (s *stWith) exec(e *env) signal {
	e.line = s.line
	values := make([]Value, len(s.values))
	for i, x := range s.values {
		values[i] = e.eval(x)
	}
	var sig signal
	e.inner(e.scope, func() {
		for i, v := range values {
			e.assign(s.targets[i], v)
		}
		sig = e.run(s.body)
	})
	return sig
}

func (s *stScope) exec(e *env) signal {
	text := e.capture(func() { e.inner(e.scope, func() { e.run(s.body) }) })
	e.write(text)
	return sigNone
}

func (s *stLoop) exec(*env) signal { return s.signal }

func (s *stMacro) exec(e *env) signal {
	e.set(s.name, e.macro(s.def))
	return sigNone
}

func (s *stCall) exec(e *env) signal {
	e.line = s.line
	f := e.eval(s.call.f)
	a := e.arguments(s.call.args, "")
	a.names = append(a.names, "caller")
	a.values = append(a.values, e.macro(s.def))
	e.write(e.text(e.call(f, a)))
	return sigNone
}

// assign unpacks v where there are several targets.
func (e *env) assign(t target, v Value) {
	e.line = t.line
	switch {
	case t.several != nil:
		items := e.items(v)
		if len(items) != len(t.several) {
			e.fail("%d values for %d names", len(items), len(t.several))
		}
		for i, x := range items {
			e.assign(t.several[i], x)
		}
	case t.attr != "":
		on, ok := e.lookup(t.name)
		ns, isNS := on.(*namespace)
		if !ok || !isNS {
			e.fail("cannot assign to an attribute of %q: it is no namespace", t.name)
		}
		if strings.HasPrefix(t.attr, "_") {
			e.fail("a namespace keeps no attribute that begins with _, got %q", t.attr)
		}
		e.hold(entryBytes)
		ns.attrs.Set(t.attr, v)
	default:
		e.set(t.name, v)
	}
}

// items are what a for loop goes through.
func (e *env) items(v Value) []Value {
	e.pass(v)
	switch v := v.(type) {
	case *List:
		return v.Items
	case tuple:
		return v
	case *view:
		return v.items
	case *Dict:
		return v.keys
	case *undefined:
		return nil
	case *iterator:
		items := e.fill(v)
		v.items = nil
		return items
	case string:
		e.grow(objectBytes * len(v))
		out := make([]Value, 0, len(v))
		for i, r := range v {
			out = append(out, v[i:i+utf8.RuneLen(r)])
		}
		return out
	case *span:
		e.grow(24 * int(v.n))
		out := make([]Value, v.n)
		for i := range out {
			out[i] = v.from + int64(i)*v.step
		}
		return out
	case *loop:
		rest := v.items[min(v.at+1, len(v.items)):]
		v.at = len(v.items)
		return rest
	}
	e.fail("'%s' object is not iterable", typeName(v))
	return nil
}

// fill returns what is left of an iterator. Its items may be those of another one, and so on.
func (e *env) fill(i *iterator) []Value {
	if i.fill != nil {
		fill := i.fill
		i.fill = nil
		e.enter()
		i.items = fill()
		e.stack--
	}
	return i.items
}

// loop is the variable of that name in a for loop.
type loop struct {
	s       *stFor
	scope   *scope // around the statement
	items   []Value
	at      int
	depth   int
	changed Value
}

func (s *stFor) exec(e *env) signal {
	e.line = s.line
	s.loop(e, e.eval(s.over), e.scope, 0)
	return sigNone
}

func (s *stFor) loop(e *env, over Value, around *scope, depth int) {
	items := e.items(over)
	if s.test != nil {
		var kept []Value
		for _, v := range items {
			e.inner(around, func() {
				e.assign(s.target, v)
				if truth(e.eval(s.test)) {
					e.hold(16)
					kept = append(kept, v)
				}
			})
		}
		items = kept
	}
	e.hold(4 * objectBytes)
	l := &loop{s: s, items: items, depth: depth, changed: &undefined{}}
	if s.recursive {
		l.scope = around.keep()
	}
	ran := false
	for ; l.at < len(l.items); l.at++ {
		sig := sigNone
		e.inner(around, func() {
			e.set("loop", l)
			e.assign(s.target, l.items[l.at])
			sig = e.run(s.body)
		})
		if sig == sigBreak {
			break
		}
		// The reference takes a loop whose every round was left early for an empty one.
		ran = ran || sig == sigNone
	}
	if !ran && len(s.empty) > 0 {
		e.inner(around, func() { e.run(s.empty) })
	}
}

func (l *loop) attribute(e *env, name string) (Value, bool) {
	n, i := int64(len(l.items)), int64(l.at)
	near := func(j int, what string) Value {
		if j < 0 || j >= len(l.items) {
			return &undefined{"there is no " + what + " item"}
		}
		return l.items[j]
	}
	switch name {
	case "index":
		return i + 1, true
	case "index0":
		return i, true
	case "revindex":
		return n - i, true
	case "revindex0":
		return n - i - 1, true
	case "first":
		return i == 0, true
	case "last":
		return i == n-1, true
	case "length":
		return n, true
	case "depth":
		return int64(l.depth) + 1, true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		return near(l.at-1, "previous"), true
	case "nextitem":
		return near(l.at+1, "next"), true
	case "cycle":
		e.hold(methodBytes)
		return &function{"cycle", func(a *args) Value {
			if len(a.positional) == 0 {
				e.fail("no items for cycling given")
			}
			return a.positional[l.at%len(a.positional)]
		}}, true
	case "changed":
		e.hold(methodBytes)
		return &function{"changed", func(a *args) Value {
			v := tuple(a.positional)
			same := e.equal(l.changed, v)
			l.changed = v
			return !same
		}}, true
	}
	return nil, false
}

// macroValue is a macro with the variables around it.
type macroValue struct {
	*macro
	scope *scope
}

// macro makes a value of a macro, which looks into the scope that it is defined in.
func (e *env) macro(def *macro) *macroValue {
	e.hold(objectBytes)
	return &macroValue{def, e.scope.keep()}
}

func (e *env) callMacro(m *macroValue, a *args) Value {
	e.called()
	defer func() { e.depth-- }()
	e.spend(4 + len(a.names) + len(m.args)*(1+len(a.names)/8))
	line := e.line
	var text string
	e.inner(m.scope, func() {
		rest := a.positional
		for i, name := range m.args {
			j := slices.Index(a.names, name)
			switch d := i - (len(m.args) - len(m.defaults)); {
			case len(rest) > 0 && j >= 0:
				e.fail("macro %q got argument %q twice", m.name, name)
			case len(rest) > 0:
				e.set(name, rest[0])
				rest = rest[1:]
			case j >= 0:
				e.set(name, a.values[j])
			case d >= 0:
				e.set(name, e.eval(m.defaults[d]))
			default:
				e.set(name, e.undefined("parameter '%s' was not provided", name))
			}
		}
		if len(rest) > 0 && !m.varargs {
			e.fail("macro %q takes not more than %d arguments", m.name, len(m.args))
		}
		others := e.dict()
		var caller Value = &undefined{"'caller' is undefined"}
		for j, name := range a.names {
			switch {
			case slices.Contains(m.args, name):
			case name == "caller" && m.caller:
				caller = a.values[j]
			case m.kwargs:
				e.hold(entryBytes)
				others.Set(name, a.values[j])
			default:
				e.fail("macro %q takes no argument %q", m.name, name)
			}
		}
		if m.caller && !slices.Contains(m.args, "caller") {
			e.set("caller", caller)
		}
		if m.varargs {
			e.set("varargs", tuple(rest))
		}
		if m.kwargs {
			e.set("kwargs", others)
		}
		text = e.capture(func() { e.run(m.body) })
	})
	e.line = line
	return text
}

// args are the arguments of a call to something built in.
type args struct {
	*env
	what       string
	positional []Value
	names      []string
	values     []Value
}

func (e *env) arguments(a arguments, what string) *args {
	out := &args{env: e, what: what}
	for _, x := range a.positional {
		out.positional = append(out.positional, e.eval(x))
	}
	if a.star != nil {
		items := e.items(e.eval(a.star))
		e.hold(16 * len(items))
		out.positional = append(out.positional, items...)
	}
	for i, x := range a.named {
		out.names = append(out.names, a.names[i])
		out.values = append(out.values, e.eval(x))
	}
	if a.starStar != nil {
		d, ok := e.eval(a.starStar).(*Dict)
		if !ok {
			e.fail("argument after ** must be a mapping")
		}
		for i, k := range d.keys {
			name, ok := k.(string)
			if e.spend(1 + len(out.names)/8); !ok || slices.Contains(out.names, name) {
				e.fail("keywords must be strings, each once")
			}
			out.names = append(out.names, name)
			out.values = append(out.values, d.values[i])
		}
	}
	e.hold(32 * (len(out.positional) + len(out.names)))
	return out
}

// clone is a with arguments of its own to take.
func (a *args) clone() *args {
	a.scan(objectBytes * (len(a.names) + 1))
	again := *a
	again.names, again.values = slices.Clone(a.names), slices.Clone(a.values)
	return &again
}

// required marks an argument without a default.
var required = &undefined{}

// next takes the next argument, by position or name.
func (a *args) next(name string, none Value) Value {
	if len(a.positional) > 0 {
		v := a.positional[0]
		a.positional = a.positional[1:]
		return v
	}
	a.spend(len(a.names) / 8)
	if i := slices.Index(a.names, name); i >= 0 {
		v := a.values[i]
		a.names, a.values = slices.Delete(a.names, i, i+1), slices.Delete(a.values, i, i+1)
		return v
	}
	if none == required {
		a.fail("%s: argument %q is missing", a.what, name)
	}
	return none
}

func (a *args) str(name string, none Value) string {
	v := a.next(name, none)
	s, ok := v.(string)
	if !ok {
		a.defined(v)
		a.fail("%s: %s must be str, not %s", a.what, name, typeName(v))
	}
	return s
}

func (a *args) int(name string, none Value) int64 {
	v := a.next(name, none)
	i, _, ok, _ := number(v)
	if !ok {
		a.defined(v)
		a.fail("%s: %s must be int, not %s", a.what, name, typeName(v))
	}
	return i
}

// end fails if an argument is left.
func (a *args) end() {
	if len(a.positional) > 0 {
		a.fail("%s: too many arguments", a.what)
	}
	if len(a.names) > 0 {
		a.fail("%s: no argument %q is known", a.what, a.names[0])
	}
}

func (e *env) call(f Value, a *args) Value {
	switch f := f.(type) {
	case *function:
		a.what = f.name
		e.spend(1)
		return f.call(a)
	case *macroValue:
		return e.callMacro(f, a)
	case *loop:
		if !f.s.recursive {
			e.fail("the loop must be recursive to be called")
		}
		over := a.next("iterable", required)
		a.end()
		e.called()
		text := e.capture(func() { f.s.loop(e, over, f.scope, f.depth+1) })
		e.depth--
		return text
	}
	e.defined(f)
	e.fail("'%s' object is not callable", typeName(f))
	return nil
}

func (x *exConst) eval(*env) Value { return x.v }

func (x *exName) eval(e *env) Value {
	if v, ok := e.lookup(x.name); ok {
		return v
	}
	return e.undefined("'%s' is undefined", x.name)
}

func (e *env) all(xs []expression) []Value {
	e.grow(16 * len(xs))
	out := make([]Value, len(xs))
	for i, x := range xs {
		out[i] = e.eval(x)
	}
	return out
}

func (x *exTuple) eval(e *env) Value { return tuple(e.all(x.items)) }
func (x *exList) eval(e *env) Value  { return &List{e.all(x.items)} }

func (x *exDict) eval(e *env) Value {
	d := e.dict()
	for i, k := range x.keys {
		key := e.eval(k)
		e.put(d, key, e.eval(x.values[i]))
	}
	return d
}

// dict is a mapping that put fills.
func (e *env) dict() *Dict {
	e.hold(dictBytes)
	return &Dict{}
}

// put sets a key of a mapping that the template makes.
func (e *env) put(d *Dict, key, v Value) {
	hash := e.hash(key)
	e.hold(entryBytes)
	d.set(hash, key, v)
}

// hash is v as a key of a Go map; equal values have equal hashes.
func (e *env) hash(v Value) any {
	h, ok := e.key(v)
	if !ok {
		e.fail("unhashable type: '%s'", typeName(v))
	}
	return h
}

func (x *exAttr) eval(e *env) Value {
	v := e.eval(x.x)
	e.line = x.line
	e.defined(v)
	if m, ok := e.attribute(v, x.name); ok {
		return m
	}
	if item, ok := e.item(v, x.name); ok {
		return item
	}
	return e.missing(v, x.name)
}

func (x *exItem) eval(e *env) Value {
	v, i := e.eval(x.x), e.eval(x.i)
	e.line = x.line
	e.defined(v)
	if _, ok := i.(slice); ok {
		if item, ok := e.item(v, i); ok {
			return item
		}
		e.fail("'%s' object cannot be sliced", typeName(v))
	}
	return e.getItem(v, i)
}

// getItem is v[i], or an attribute of that name.
func (e *env) getItem(v, i Value) Value {
	e.defined(v)
	if item, ok := e.item(v, i); ok {
		return item
	}
	if name, ok := i.(string); ok {
		if m, ok := e.attribute(v, name); ok {
			return m
		}
	}
	return e.missing(v, i)
}

// undefined is a value that is not there. Names of any length cost it the same.
func (e *env) undefined(format string, about ...any) *undefined {
	e.spend(1)
	e.hold(undefinedBytes)
	return &undefined{fmt.Sprintf(format, clipped(about)...)}
}

func (e *env) missing(v, key Value) Value {
	what := typeName(v) + " object"
	if v == nil {
		what = "None"
	}
	switch key := key.(type) {
	case string:
		return e.undefined("'%s' has no attribute '%s'", what, key)
	case int64:
		return e.undefined("%s has no element %d", what, key)
	}
	return e.undefined("%s has no such element", what)
}

func (x *exSlice) eval(e *env) Value {
	part := func(x expression) Value {
		if x == nil {
			return nil
		}
		return e.eval(x)
	}
	return slice{part(x.from), part(x.to), part(x.step)}
}

// item is v[i], false if there is none.
func (e *env) item(v, i Value) (Value, bool) {
	if d, ok := v.(*Dict); ok {
		h, ok := e.key(i)
		if !ok {
			return nil, false
		}
		j, ok := d.index[h]
		if !ok {
			return nil, false
		}
		return d.values[j], true
	}
	if ns, ok := v.(*namespace); ok {
		name, ok := i.(string)
		if !ok {
			return nil, false
		}
		return ns.attrs.Get(name)
	}
	at, _, isInt, ok := number(i)
	s, isSlice := i.(slice)
	if (!ok || !isInt) && !isSlice {
		return nil, false
	}
	var items []Value
	switch v := v.(type) {
	case *List:
		items = v.Items
	case tuple:
		items = v
	case string:
		return e.stringItem(v, at, s, isSlice)
	case *span:
		items = e.items(v)
	default:
		return nil, false
	}
	if isSlice {
		from, step, n := e.bounds(s, len(items))
		out := make([]Value, 0, n)
		e.grow(16 * n)
		for ; n > 0; n-- {
			out = append(out, items[from])
			from += step
		}
		if _, ok := v.(tuple); ok {
			return tuple(out), true
		}
		return &List{out}, true
	}
	if at < 0 {
		at += int64(len(items))
	}
	if at < 0 || at >= int64(len(items)) {
		return nil, false
	}
	return items[at], true
}

func (e *env) stringItem(v string, at int64, s slice, isSlice bool) (Value, bool) {
	e.scan(len(v))
	ascii := strings.IndexFunc(v, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
	var runes []rune
	n := len(v)
	if !ascii {
		e.grow(4 * len(v))
		runes = []rune(v)
		n = len(runes)
	}
	one := func(i int) string {
		if ascii {
			return v[i : i+1]
		}
		return string(runes[i])
	}
	if !isSlice {
		if at < 0 {
			at += int64(n)
		}
		if at < 0 || at >= int64(n) {
			return nil, false
		}
		return one(int(at)), true
	}
	from, step, count := e.bounds(s, n)
	switch {
	case step == 1 && ascii:
		return v[from : from+count], true
	case step == 1:
		return e.grown(string(runes[from : from+count])), true
	}
	b := e.builder()
	for ; count > 0; count-- {
		b.WriteString(one(from))
		from += step
	}
	return b.String(), true
}

// bounds are the first index, the step and the number of items of a slice of n.
func (e *env) bounds(s slice, n int) (from, step, count int) {
	part := func(v Value, none int) int {
		if v == nil {
			return none
		}
		i, _, ok, _ := number(v)
		if !ok {
			e.defined(v)
			e.fail("slice indices must be integers or None")
		}
		return int(min(max(i, -1<<40), 1<<40))
	}
	step = part(s.step, 1)
	clamp := func(v Value, none, low, high int) int {
		i := part(v, none)
		if v != nil && i < 0 {
			i += n
		}
		return min(max(i, low), high)
	}
	switch {
	case step == 0:
		e.fail("slice step cannot be zero")
	case step > 0:
		from = clamp(s.from, 0, 0, n)
		count = (clamp(s.to, n, 0, n) - from + step - 1) / step
	default:
		from = clamp(s.from, n-1, -1, n-1)
		count = (from - clamp(s.to, -1, -1, n-1) - step - 1) / -step
	}
	if count <= 0 {
		return 0, 1, 0
	}
	return from, step, count
}

func (x *exFilter) eval(e *env) Value {
	var v Value
	if x.x != nil {
		v = e.eval(x.x)
	} else {
		v, _ = e.lookup("")
	}
	a := e.arguments(x.args, x.name)
	e.line = x.line
	return e.filter(x.name, v, a)
}

func (e *env) filter(name string, v Value, a *args) Value {
	f, ok := filters[name]
	if !ok {
		e.fail("the filter %q is not supported", name)
	}
	a.what = name
	return e.charged(constantFilters, name, v, a, func() Value { return f(e, v, a) })
}

func (x *exTest) eval(e *env) Value {
	v := e.eval(x.x)
	a := e.arguments(x.args, x.name)
	e.line = x.line
	return e.test(x.name, v, a)
}

func (e *env) test(name string, v Value, a *args) bool {
	f, ok := tests[name]
	if !ok {
		e.fail("the test %q is not supported", name)
	}
	a.what = name
	return e.charged(constantTests, name, v, a, func() Value {
		out := f(e, v, a)
		a.end()
		return out
	}).(bool)
}

func (x *exCall) eval(e *env) Value {
	f := e.eval(x.f)
	a := e.arguments(x.args, "")
	e.line = x.line
	return e.call(f, a)
}

func (x *exIf) eval(e *env) Value {
	if truth(e.eval(x.test)) {
		return e.eval(x.yes)
	}
	if x.no == nil {
		return &undefined{"an if without else has no value"}
	}
	return e.eval(x.no)
}

func (x *exConcat) eval(e *env) Value {
	b := e.builder()
	b.most = maxMemory
	for _, item := range x.items {
		s := e.text(e.eval(item))
		e.line = x.line
		b.WriteString(s)
	}
	return b.String()
}

func (x *exUnary) eval(e *env) Value {
	v := e.eval(x.x)
	if x.op == "not" {
		return !truth(v)
	}
	e.line = x.line
	e.defined(v)
	i, f, isInt, ok := number(v)
	if !ok {
		e.fail("bad operand type for unary %s: '%s'", x.op, typeName(v))
	}
	if x.op == "+" {
		i, f = -i, -f
	}
	if isInt {
		return -i
	}
	return -f
}

func (x *exCompare) eval(e *env) Value {
	a := e.eval(x.x)
	for i, op := range x.ops {
		b := e.eval(x.with[i])
		e.line = x.line
		var ok bool
		switch op {
		case "==":
			ok = e.equal(a, b)
		case "!=":
			ok = !e.equal(a, b)
		case "<":
			ok = e.compare(a, b) < 0
		case "<=":
			ok = e.compare(a, b) <= 0
		case ">":
			ok = e.compare(a, b) > 0
		case ">=":
			ok = e.compare(a, b) >= 0
		case "in":
			ok = e.contains(b, a)
		case "not in":
			ok = !e.contains(b, a)
		}
		if !ok {
			return false
		}
		a = b
	}
	return true
}

// contains is v in all.
func (e *env) contains(all, v Value) bool {
	switch all := all.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			e.fail("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		e.scan(len(all) + len(s))
		return strings.Contains(all, s)
	case *Dict:
		_, ok := all.index[e.hash(v)]
		return ok
	}
	return slices.ContainsFunc(e.items(all), func(x Value) bool { return e.equal(x, v) })
}

func (x *exBinary) eval(e *env) Value {
	a := e.eval(x.a)
	switch x.op {
	case "and":
		if !truth(a) {
			return a
		}
		return e.eval(x.b)
	case "or":
		if truth(a) {
			return a
		}
		return e.eval(x.b)
	}
	b := e.eval(x.b)
	e.line = x.line
	e.defined(a)
	if _, ok := a.(string); !ok || x.op != "%" {
		e.defined(b)
	}
	return e.arithmetic(x.op, a, b)
}

func (e *env) arithmetic(op string, a, b Value) Value {
	switch a := a.(type) {
	case string:
		if op == "%" {
			return e.percent(a, b)
		}
		if b, ok := b.(string); ok && op == "+" {
			e.grow(len(a) + len(b))
			return a + b
		}
	case *List:
		if b, ok := b.(*List); ok && op == "+" {
			e.grow(16 * (len(a.Items) + len(b.Items)))
			return &List{slices.Concat(a.Items, b.Items)}
		}
	case tuple:
		if b, ok := b.(tuple); ok && op == "+" {
			e.grow(16 * (len(a) + len(b)))
			return slices.Concat(a, b)
		}
	}
	ai, af, aInt, aOK := number(a)
	bi, bf, bInt, bOK := number(b)
	switch {
	case aOK && bOK && (!aInt || !bInt || op == "/"):
		return e.floats(op, af, bf)
	case aOK && bOK:
		return e.ints(op, ai, bi)
	case op == "*" && aOK && aInt:
		return e.repeat(b, ai, a)
	case op == "*" && bOK && bInt:
		return e.repeat(a, bi, b)
	}
	return e.mismatch(op, a, b)
}

func (e *env) mismatch(op string, a, b Value) Value {
	e.fail("unsupported operand types for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

func (e *env) repeat(v Value, n int64, times Value) Value {
	n = max(n, 0)
	count := func(size int) int {
		if size > 0 && n > int64(maxMemory/size) {
			e.hold(maxMemory + 1)
		}
		if size == 0 {
			return 0
		}
		e.grow(size * int(n))
		return int(n)
	}
	switch v := v.(type) {
	case string:
		return strings.Repeat(v, count(len(v)))
	case *List:
		return &List{slices.Repeat(v.Items, count(16*len(v.Items)))}
	case tuple:
		return slices.Repeat(v, count(16*len(v)))
	}
	return e.mismatch("*", v, times)
}

func (e *env) floats(op string, a, b float64) Value {
	if b == 0 && (op == "/" || op == "//" || op == "%") {
		e.fail("division by zero")
	}
	switch op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "/":
		return a / b
	case "**":
		v := math.Pow(a, b)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			e.fail("%v ** %v has no value", a, b)
		}
		return v
	}
	rest := math.Mod(a, b)
	if rest != 0 && (rest < 0) != (b < 0) {
		rest += b
	}
	if op == "%" {
		return rest
	}
	return math.Round((a - rest) / b)
}

// ints computes with whole numbers; those of the reference have no bounds, these fail beyond 64 bits.
func (e *env) ints(op string, a, b int64) Value {
	tooLarge := func() { e.fail("a number is too large") }
	mul := func(a, b int64) int64 {
		v := a * b
		if a != 0 && (v/a != b || a == -1 && b == math.MinInt64) {
			tooLarge()
		}
		return v
	}
	switch op {
	case "+":
		v := a + b
		if (v > a) != (b > 0) && b != 0 {
			tooLarge()
		}
		return v
	case "-":
		v := a - b
		if (v < a) != (b > 0) && b != 0 {
			tooLarge()
		}
		return v
	case "*":
		return mul(a, b)
	case "**":
		if b < 0 {
			return e.floats(op, float64(a), float64(b))
		}
		v := int64(1)
		for ; b > 0; b-- {
			if e.spend(1); a == 0 || a == 1 {
				return a
			}
			v = mul(v, a)
		}
		return v
	}
	if b == 0 {
		e.fail("division by zero")
	}
	if a == math.MinInt64 && b == -1 {
		tooLarge()
	}
	quotient, rest := a/b, a%b
	if rest != 0 && (rest < 0) != (b < 0) {
		quotient--
		rest += b
	}
	if op == "%" {
		return rest
	}
	return quotient
}
