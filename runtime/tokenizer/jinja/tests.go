package jinja

// A test is the function behind value is name(..). An argument that it does not take is an error.
type test func(args *callArgs, value Value) bool

// tests is filled by init, because some tests look up others by name.
var tests map[string]test

// A name that is missing here is an error when the test is executed, not when the template is parsed.
func init() {
	greater := ordered(func(order int) bool { return order > 0 })
	greaterOrEqual := ordered(func(order int) bool { return order >= 0 })
	less := ordered(func(order int) bool { return order < 0 })
	lessOrEqual := ordered(func(order int) bool { return order <= 0 })
	tests = map[string]test{
		"==": same, "eq": same, "equalto": same,
		"!=": differs, "ne": differs,
		">": greater, "gt": greater, "greaterthan": greater,
		">=": greaterOrEqual, "ge": greaterOrEqual,
		"<": less, "lt": less, "lessthan": less,
		"<=": lessOrEqual, "le": lessOrEqual,

		"defined":   func(args *callArgs, value Value) bool { return !ofType[*undefined](args, value) },
		"undefined": ofType[*undefined],
		"none":      func(_ *callArgs, value Value) bool { return value == nil },
		"boolean":   ofType[bool],
		"true":      func(_ *callArgs, value Value) bool { return value == true },
		"false":     func(_ *callArgs, value Value) bool { return value == false },
		"integer":   ofType[int64],
		"float":     ofType[float64],
		"number":    func(_ *callArgs, value Value) bool { _, _, _, ok := number(value); return ok },
		"string":    ofType[string],
		"mapping":   ofType[*Dict],
		"sequence":  isSequence, "iterable": isIterable, "callable": isCallable,
		"sameas": isSameAs,

		"even": func(args *callArgs, value Value) bool { return args.remainder(value, int64(2), 0) },
		"odd":  func(args *callArgs, value Value) bool { return args.remainder(value, int64(2), 1) },
		"divisibleby": func(args *callArgs, value Value) bool {
			return args.remainder(value, args.next("num", required), 0)
		},
		"lower": func(args *callArgs, value Value) bool { return args.isCased(args.text(value), lower, upper) },
		"upper": func(args *callArgs, value Value) bool { return args.isCased(args.text(value), upper, lower) },
		"in":    func(args *callArgs, value Value) bool { return args.contains(args.next("seq", required), value) },

		"filter": func(args *callArgs, value Value) bool { return isKey(args, filters, value) },
		"test":   func(args *callArgs, value Value) bool { return isKey(args, tests, value) },
	}
}

// ofType tests whether a value is of a type.
func ofType[T Value](_ *callArgs, value Value) bool {
	_, ok := value.(T)
	return ok
}

// isKey tests whether a value is the name of something in a table.
func isKey[V any](args *callArgs, table map[string]V, value Value) bool {
	args.hash(value) // a list is no key of a table
	name, ok := value.(string)
	_, known := table[name]
	return ok && known
}

// ordered makes a test of the order of a value and the argument: below 0, 0 or above.
func ordered(fits func(order int) bool) test {
	return func(args *callArgs, value Value) bool { return fits(args.compare(value, args.next("other", required))) }
}

// same and differs compare a value with the argument, and never fail for types that differ.
func same(args *callArgs, value Value) bool    { return args.equal(value, args.next("other", required)) }
func differs(args *callArgs, value Value) bool { return !same(args, value) }

// remainder reports whether value % by is rest.
func (e *environment) remainder(value, by Value, rest int64) bool {
	e.defined(value)
	return e.equal(e.arithmetic("%", value, by), rest)
}

// isSequence tests for a length and items in order. Python counts a mapping and what is undefined among them.
func isSequence(_ *callArgs, value Value) bool {
	switch value.(type) {
	case string, *List, tuple, *Dict, *rangeValue, *undefined:
		return true
	}
	return false
}

// isIterable tests for what a for loop takes.
func isIterable(args *callArgs, value Value) bool {
	switch value.(type) {
	case *dictView, *iterator, *loop:
		return true
	}
	return isSequence(args, value)
}

// isCallable tests whether a call can be tried. Calling what is undefined fails with its own message.
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
