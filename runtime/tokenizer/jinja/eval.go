// Package jinja knows how a chat template becomes text: the part of the Jinja language that chat templates
// use, with the results of PyPI jinja2 in the environment of transformers (immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, its own tojson, raise_exception, strftime_now).
//
// A template is untrusted code. It sees nothing but the variables it is given, cannot change them,
// and its steps, the memory it fills, its output and its recursion are bounded.
package jinja

import (
	"context"
	"fmt"
	"maps"
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

// Execute returns the text of the template with the given variables. Errors are of type *Error and
// include the message of raise_exception. They wrap ErrLimit, errRefused, the cause of ctx, or
// nothing.
func (t *Template) Execute(ctx context.Context, variables map[string]Value, options Options) (text string, err error) {
	defer catch(&err)
	env := newEnv(ctx, options)
	// Variables of the conversation hide functions of the same name.
	maps.Copy(env.scope.variables, globals)
	maps.Copy(env.scope.variables, variables)
	// The template sets its variables in a scope of its own, inside that of what it was given.
	env.scope = &scope{parent: env.scope}
	env.run(t.body)
	return env.out.String(), nil
}

// environment is the state of one execution. The nodes of the tree evaluate themselves with it, by
// recursion in Go.
//
// Errors are panics with an *Error, which Execute turns into results: nearly every operation can
// fail, and a template cannot catch errors. line is set to the line of a tag before an operation
// that may fail.
type environment struct {
	meter
	scope *scope
	out   *builder
	now   time.Time
}

// newEnv begins an execution. The outermost scope always has variables: the globals.
func newEnv(ctx context.Context, options Options) *environment {
	most := maxSteps
	if options.steps > 0 {
		most = options.steps
	}
	env := &environment{
		meter: meter{ctx: ctx, maxSteps: most}, now: options.Now, scope: &scope{variables: map[string]Value{}},
	}
	env.out = env.output()
	return env
}

// outputTooLong is made once: every captured body has an output of its own.
var outputTooLong = fmt.Sprintf("the text has more than %d bytes", maxOutput)

// output begins a text that the template writes.
func (e *environment) output() *builder {
	out := e.builder()
	out.long = outputTooLong
	return out
}

// scope holds the variables of a body. The variables of its parents can be read through it but
// never set: what a loop sets ends with the round.
//
// The memory of a scope is credited when its body ends, unless a macro may still look into it.
// Otherwise a long loop would soon exceed the limit.
type scope struct {
	variables map[string]Value
	parent    *scope
	memory    int  // charged for its variables, not for their values
	kept      bool // a macro may still look into it when its body has ended
}

// keep marks a scope and its parents as reachable by a macro.
func (s *scope) keep() *scope {
	for at := s; at != nil && !at.kept; at = at.parent {
		at.kept = true
	}
	return s
}

// inScope runs body in a scope of its own inside parent.
func (e *environment) inScope(parent *scope, body func()) {
	before := e.scope
	own := &scope{parent: parent}
	// No defer restores the scope: an error ends the execution, so nothing looks at it afterwards.
	e.spend(1)
	e.scope = own
	body()
	e.scope = before
	if !own.kept { // nothing can reach it any more
		e.memory -= own.memory
	}
}

// set sets a variable of the innermost scope, whose map is made with the first variable.
func (e *environment) set(name string, value Value) {
	bytes := variableBytes
	if e.scope.variables == nil {
		e.scope.variables = map[string]Value{}
		bytes = scopeBytes
	}
	e.allocate(bytes)
	e.scope.memory += bytes
	e.scope.variables[name] = value
}

// lookup finds a variable, from the innermost scope outwards. Each scope costs a look at the name.
func (e *environment) lookup(name string) (Value, bool) {
	for scope := e.scope; scope != nil; scope = scope.parent {
		e.scan(len(name) + 8)
		if value, ok := scope.variables[name]; ok {
			return value, true
		}
	}
	return nil, false
}

// defined fails for what is undefined.
func (e *environment) defined(value Value) {
	if undef, ok := value.(*undefined); ok {
		e.fail("%s", undef.message)
	}
}

// undefined makes a value that prints nothing and fails when it is used. Its message is clipped, so
// that names of any length cost the same.
func (e *environment) undefined(format string, about ...any) *undefined {
	e.spend(1)
	e.allocate(undefinedBytes)
	return &undefined{fmt.Sprintf(format, clipped(about)...)}
}

// newList returns a list of items that are charged here.
func (e *environment) newList(items []Value) *List {
	e.allocateValue(16 * len(items))
	return &List{items}
}

// newDict returns a mapping that put fills.
func (e *environment) newDict() *Dict {
	e.allocate(dictBytes)
	return &Dict{}
}

// put sets a key of a mapping that the template makes.
func (e *environment) put(dict *Dict, key, value Value) {
	hash := e.hash(key)
	e.allocate(entryBytes)
	dict.set(hash, key, value)
}

// hash returns a value as a key of a Go map; equal values have equal hashes.
func (e *environment) hash(value Value) any {
	hash, ok := e.key(value)
	if !ok {
		e.fail("unhashable type: '%s'", typeName(value))
	}
	return hash
}

// items returns what a for loop iterates over, each charged once. They exhaust an iterator or a loop.
func (e *environment) items(value Value) []Value {
	// A caller looks at each item once, which is charged here.
	e.visit(value)
	switch value := value.(type) {
	case *List:
		return value.Items
	case tuple:
		return value
	case *dictView:
		return value.items
	case *Dict:
		return value.keys
	case *undefined:
		return nil
	case *iterator:
		items := e.fill(value)
		value.items = nil
		return items
	case string:
		// Each character is a text of its own, which shares the bytes of the whole.
		e.allocateValue(objectBytes * len(value))
		out := make([]Value, 0, len(value))
		for i, char := range value {
			out = append(out, value[i:i+utf8.RuneLen(char)])
		}
		return out
	case *rangeValue:
		e.allocateValue(24 * int(value.count))
		out := make([]Value, value.count)
		for i := range out {
			out[i] = value.from + int64(i)*value.step
		}
		return out
	case *loop:
		// Iterating over the variable loop inside its loop takes the items that are left, so that the loop ends.
		rest := value.items[min(value.index+1, len(value.items)):]
		value.index = len(value.items)
		return rest
	}
	e.fail("'%s' object is not iterable", typeName(value))
	return nil
}

// fill returns what is left of an iterator. Making its items may fill another iterator, and so on,
// hence the stack is counted.
func (e *environment) fill(from *iterator) []Value {
	if from.fill != nil {
		fill := from.fill
		from.fill = nil
		e.enterNode()
		from.items = fill()
		e.stack--
	}
	return from.items
}

// eval evaluates an expression. Each node of the tree is a step and, while it lasts, a level of the stack.
func (e *environment) eval(expr expression) Value {
	e.spend(1)
	e.enterNode()
	value := expr.eval(e)
	e.stack--
	return value
}

// evalAll evaluates expressions from left to right.
func (e *environment) evalAll(expressions []expression) []Value {
	e.allocateValue(16 * len(expressions))
	out := make([]Value, len(expressions))
	for i, expr := range expressions {
		out[i] = e.eval(expr)
	}
	return out
}

// Literals are shared by all executions: no value of a template can be changed.
func (x *constExpr) eval(*environment) Value { return x.value }

// A name without a variable is no error before its value is used.
func (x *nameExpr) eval(env *environment) Value {
	if value, ok := env.lookup(x.name); ok {
		return value
	}
	return env.undefined("'%s' is undefined", x.name)
}

// Tuples and lists evaluate their items from left to right; a list is a new object each time.
func (x *tupleExpr) eval(env *environment) Value { return tuple(env.evalAll(x.items)) }
func (x *listExpr) eval(env *environment) Value  { return &List{env.evalAll(x.items)} }

// Keys and values are evaluated in turn, in the order in which they are written.
func (x *dictExpr) eval(env *environment) Value {
	dict := env.newDict()
	for i, expr := range x.keys {
		key := env.eval(expr)
		env.put(dict, key, env.eval(x.values[i]))
	}
	return dict
}

// In {% filter %} and {% set %} a filter has no operand: the text of the body is found under the
// name "", which no template can spell.
func (x *filterExpr) eval(env *environment) Value {
	var value Value
	if x.operand != nil {
		value = env.eval(x.operand)
	} else {
		value, _ = env.lookup("")
	}
	args := env.arguments(x.args, x.name)
	env.line = x.line
	return env.filter(x.name, value, args)
}

// filter applies a filter by its name.
func (e *environment) filter(name string, value Value, args *callArgs) Value {
	run, ok := filters[name]
	if !ok {
		e.fail("the filter %q is not supported", name)
	}
	args.what = name
	return e.charged(constantFilters, name, value, args, func() Value { return run(args, value) })
}

// A test sees what is undefined, unlike most filters and operators.
func (x *testExpr) eval(env *environment) Value {
	value := env.eval(x.operand)
	args := env.arguments(x.args, x.name)
	env.line = x.line
	return env.test(x.name, value, args)
}

// test applies a test by its name.
func (e *environment) test(name string, value Value, args *callArgs) bool {
	run, ok := tests[name]
	if !ok {
		e.fail("the test %q is not supported", name)
	}
	args.what = name
	return e.charged(constantTests, name, value, args, func() Value { return run(args, value) }).(bool)
}

// The callee is evaluated before the arguments; whether it can be called shows only then.
func (x *callExpr) eval(env *environment) Value {
	callee := env.eval(x.callee)
	args := env.arguments(x.args, "")
	env.line = x.line
	return env.call(callee, args)
}

// Only the side that counts is evaluated.
func (x *conditionalExpr) eval(env *environment) Value {
	if truth(env.eval(x.test)) {
		return env.eval(x.yes)
	}
	if x.no == nil {
		return &undefined{"an if without else has no value"}
	}
	return env.eval(x.no)
}

// ~ joins its operands as texts.
func (x *concatExpr) eval(env *environment) Value {
	out := env.builder()
	out.most = maxMemory
	for _, item := range x.items {
		text := env.text(env.eval(item))
		env.line = x.line
		out.writeString(text)
	}
	return out.String()
}

// not takes any value; signs take numbers.
func (x *unaryExpr) eval(env *environment) Value {
	value := env.eval(x.operand)
	if x.op == "not" {
		return !truth(value)
	}
	env.line = x.line
	env.defined(value)
	whole, float, isInt, ok := number(value)
	switch {
	case !ok:
		env.fail("bad operand type for unary %s: '%s'", x.op, typeName(value))
	case isInt && x.op == "-":
		return -whole
	case isInt:
		return whole
	case x.op == "-":
		return -float
	}
	return float
}

// a < b < c is a < b and b < c, where b is evaluated once.
func (x *compareExpr) eval(env *environment) Value {
	left := env.eval(x.first)
	for i, op := range x.ops {
		right := env.eval(x.rest[i])
		env.line = x.line
		if !env.holds(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

// holds reports whether left op right is true.
func (e *environment) holds(op string, left, right Value) bool {
	switch op {
	case "==":
		return e.equal(left, right)
	case "!=":
		return !e.equal(left, right)
	case "<":
		return e.compare(left, right) < 0
	case "<=":
		return e.compare(left, right) <= 0
	case ">":
		return e.compare(left, right) > 0
	case ">=":
		return e.compare(left, right) >= 0
	}
	return e.contains(right, left) == (op == "in")
}

// contains reports whether a value is an item of all, a key of a mapping, or a part of a text.
func (e *environment) contains(all, value Value) bool {
	switch all := all.(type) {
	case string:
		part, ok := value.(string)
		if !ok {
			e.fail("'in <string>' requires string as left operand, not %s", typeName(value))
		}
		e.scan(len(all) + len(part))
		return strings.Contains(all, part)
	case *Dict:
		_, ok := all.index[e.hash(value)]
		return ok
	}
	return slices.ContainsFunc(e.items(all), func(item Value) bool { return e.equal(item, value) })
}

// and and or give one of their operands, and evaluate the right one only if it counts. The right side of a format may
// be undefined.
func (x *binaryExpr) eval(env *environment) Value {
	left := env.eval(x.left)
	switch x.op {
	case "and", "or":
		if truth(left) == (x.op == "or") {
			return left
		}
		return env.eval(x.right)
	}
	right := env.eval(x.right)
	env.line = x.line
	env.defined(left)
	if _, ok := left.(string); !ok || x.op != "%" {
		env.defined(right)
	}
	return env.arithmetic(x.op, left, right)
}
