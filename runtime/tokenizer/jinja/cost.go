package jinja

import "strings"

// Every filter, test and method is charged by its caller, whatever it does: one look at its operand and at each
// argument before it runs, and the memory of the text that it returns. What takes more than that (sorting, case, parts
// of parts) charges the rest itself. The tables name the exceptions, so that something new is charged by default.

// nameSet names filters, tests or methods.
type nameSet map[string]bool

// nameSetOf returns the set of the words of a text.
func nameSetOf(names string) nameSet {
	out := nameSet{}
	for name := range strings.FieldsSeq(names) {
		out[name] = true
	}
	return out
}

var (
	// constantFilters do not look at their operand, or charge all that they look at themselves.
	constantFilters = nameSetOf("d default map select reject selectattr rejectattr unique batch items abs round")
	// constantTests do not look at their operand, or compare it step by step.
	constantTests = nameSetOf(`defined undefined none boolean true false integer float number string mapping sequence
		iterable callable sameas even odd divisibleby in eq equalto == ne != gt greaterthan > ge >= lt lessthan < le <=`)
	// constantMethods look at one end of the text, and charge how far.
	constantMethods = nameSetOf("startswith endswith removeprefix removesuffix strip lstrip rstrip get keys values")

	// sharing filters and methods return what was there before, a part of it, or a text that they charge themselves.
	sharing = nameSetOf(`d default first last min max sum string safe trim strip lstrip rstrip removeprefix removesuffix
		get join replace indent format tojson lower upper capitalize title`)
)

// charged runs a filter, test or method. It charges the least that this takes: a look at the
// operand, a step for the call and for each eight arguments, and the text that is returned.
// Arguments that are left over are an error.
func (e *environment) charged(constant nameSet, name string, operand Value, args *callArgs, run func() Value) Value {
	if !constant[name] {
		e.visit(operand)
	}
	e.spend(1 + (len(args.positional)+len(args.names))/8)
	for _, arg := range args.positional {
		e.visit(arg)
	}
	for _, arg := range args.values {
		e.visit(arg)
	}
	out := run()
	// What the function has not taken from args is an argument that it does not know.
	args.end()
	if text, ok := out.(string); ok && !sharing[name] {
		e.allocateValue(len(text))
	}
	return out
}
