package jinja

// A test is the function behind value is name(..). An argument that it does not take is an error.
type test func(args *callArgs, value Value) bool

// tests is filled by init, because some tests look up others by name.
var tests map[string]test

func init() {
	greater := ordered(func(order int) bool { return order > 0 })
	greaterOrEqual := ordered(func(order int) bool { return order >= 0 })
	less := ordered(func(order int) bool { return order < 0 })
	lessOrEqual := ordered(func(order int) bool { return order <= 0 })
	tests = map[string]test{
		"!=":          differs,
		"<":           less,
		"<=":          lessOrEqual,
		"==":          same,
		">":           greater,
		">=":          greaterOrEqual,
		"boolean":     ofType[bool],
		"callable":    isCallable,
		"defined":     func(args *callArgs, value Value) bool { return !ofType[*undefined](args, value) },
		"divisibleby": func(args *callArgs, value Value) bool { return args.remainder(value, args.next("num", required), 0) },
		"eq":          same,
		"equalto":     same,
		"even":        func(args *callArgs, value Value) bool { return args.remainder(value, int64(2), 0) },
		"false":       func(_ *callArgs, value Value) bool { return value == false },
		"filter":      func(_ *callArgs, value Value) bool { return isKey(filters, value) },
		"float":       ofType[float64],
		"ge":          greaterOrEqual,
		"greaterthan": greater,
		"gt":          greater,
		"in":          func(args *callArgs, value Value) bool { return args.contains(args.next("seq", required), value) },
		"integer":     ofType[int64],
		"iterable":    isIterable,
		"le":          lessOrEqual,
		"lessthan":    less,
		"lower":       func(args *callArgs, value Value) bool { return methods["islower"](args, args.text(value)).(bool) },
		"lt":          less,
		"mapping":     ofType[*Dict],
		"ne":          differs,
		"none":        func(_ *callArgs, value Value) bool { return value == nil },
		"number":      func(_ *callArgs, value Value) bool { _, _, _, ok := number(value); return ok },
		"odd":         func(args *callArgs, value Value) bool { return args.remainder(value, int64(2), 1) },
		"sameas":      isSameAs,
		"sequence":    isSequence,
		"string":      ofType[string],
		"test":        func(_ *callArgs, value Value) bool { return isKey(tests, value) },
		"true":        func(_ *callArgs, value Value) bool { return value == true },
		"undefined":   ofType[*undefined],
		"upper":       func(args *callArgs, value Value) bool { return methods["isupper"](args, args.text(value)).(bool) },
	}
}

func ofType[T Value](_ *callArgs, value Value) bool {
	_, ok := value.(T)
	return ok
}

func isKey[V any](table map[string]V, value Value) bool {
	name, ok := value.(string)
	_, known := table[name]
	return ok && known
}

// ordered makes a test of the order of a value and the argument: below 0, 0 or above.
func ordered(fits func(order int) bool) test {
	return func(args *callArgs, value Value) bool { return fits(args.compare(value, args.next("other", required))) }
}

func same(args *callArgs, value Value) bool    { return args.equal(value, args.next("other", required)) }
func differs(args *callArgs, value Value) bool { return !same(args, value) }

// remainder reports whether value % by is rest.
func (e *environment) remainder(value, by Value, rest int64) bool {
	e.defined(value)
	return e.equal(e.arithmetic("%", value, by), rest)
}

func isSequence(_ *callArgs, value Value) bool {
	switch value.(type) {
	case string, *List, tuple, *Dict, *rangeValue, *undefined:
		return true
	}
	return false
}

func isIterable(args *callArgs, value Value) bool {
	switch value.(type) {
	case *dictView, *iterator, *loop:
		return true
	}
	return isSequence(args, value)
}

func isCallable(_ *callArgs, value Value) bool {
	switch value.(type) {
	case *function, *macroValue, *loop, *undefined:
		return true
	}
	return false
}

// isSameAs compares objects, not what they hold. Tuples and slices are no Go values that can be compared.
func isSameAs(args *callArgs, value Value) bool {
	other := args.next("other", required)
	if typeName(value) != typeName(other) {
		return false
	}
	switch value.(type) {
	case tuple, sliceBounds:
		return false
	}
	return value == other
}
