package jinja

import "strings"

// equal is == of Python. Numbers compare by value whatever their type, lists, tuples and mappings
// by content, everything else by identity. Values of different types are never equal, and comparing
// them is no error.
func (e *environment) equal(left, right Value) bool { return e.equalAt(left, right, 0) }

// equalAt is equal inside depth other values. Nested values may share parts, so that depth and
// steps must be counted.
func (e *environment) equalAt(left, right Value, depth int) bool {
	e.spend(1)
	e.checkDepth(depth)
	// Integers are compared as such: as floats, neighbours beyond 2^53 would be equal.
	if whole, float, isInt, ok := number(left); ok {
		otherWhole, otherFloat, otherIsInt, ok := number(right)
		if isInt && otherIsInt {
			return whole == otherWhole
		}
		return ok && float == otherFloat
	}
	switch left := left.(type) {
	case string:
		other, ok := right.(string)
		if !ok || len(left) != len(other) {
			return false
		}
		e.scan(len(left))
		return left == other
	case *List:
		other, ok := right.(*List)
		return ok && e.equalItems(left.Items, other.Items, depth+1)
	case tuple:
		other, ok := right.(tuple)
		return ok && e.equalItems(left, other, depth+1)
	case *undefined:
		_, ok := right.(*undefined)
		return ok
	case *Dict:
		other, ok := right.(*Dict)
		return ok && e.equalDicts(left, other, depth+1)
	case *rangeValue:
		other, ok := right.(*rangeValue)
		return ok && left.equal(other)
	}
	// None, namespaces, macros, functions and loops are equal only to themselves.
	return left == right
}

// equalItems compares lists item by item, and stops at the first pair that differs.
func (e *environment) equalItems(left, right []Value, depth int) bool {
	if len(left) != len(right) {
		return false
	}
	for i := range left {
		if !e.equalAt(left[i], right[i], depth) {
			return false
		}
	}
	return true
}

// equalDicts compares mappings as sets of pairs: the order in which keys were added does not count.
func (e *environment) equalDicts(left, right *Dict, depth int) bool {
	if len(left.keys) != len(right.keys) {
		return false
	}
	for i, key := range left.keys {
		j, ok := right.index[e.hash(key)]
		if !ok || !e.equalAt(left.values[i], right.values[j], depth) {
			return false
		}
	}
	return true
}

// equal reports whether both ranges stand for the same numbers. All empty ranges are equal, and the step of a range of
// one number does not matter.
func (r *rangeValue) equal(other *rangeValue) bool {
	if r.count != other.count || r.count == 0 {
		return r.count == other.count
	}
	return r.from == other.from && (r.count == 1 || r.step == other.step)
}

// compare orders two values as Python does: below 0, 0 or above. Values without an order are an error.
func (e *environment) compare(left, right Value) int { return e.compareAt(left, right, 0) }

// compareAt is compare at a depth inside of other values.
func (e *environment) compareAt(left, right Value, depth int) int {
	e.spend(1)
	e.checkDepth(depth)
	e.defined(left)
	e.defined(right)
	whole, float, isInt, ok := number(left)
	otherWhole, otherFloat, otherIsInt, otherOK := number(right)
	switch {
	case isInt && otherIsInt:
		return order(whole, otherWhole)
	case ok && otherOK:
		return order(float, otherFloat)
	}
	switch left := left.(type) {
	case string:
		if other, ok := right.(string); ok {
			e.scan(min(len(left), len(other)))
			return strings.Compare(left, other)
		}
	case *List:
		if other, ok := right.(*List); ok {
			return e.compareItems(left.Items, other.Items, depth+1)
		}
	case tuple:
		if other, ok := right.(tuple); ok {
			return e.compareItems(left, other, depth+1)
		}
	}
	// Python orders no mappings, None or functions, and no values of different types.
	e.fail("'<' not supported between instances of '%s' and '%s'", typeName(left), typeName(right))
	return 0
}

// compareItems orders lists lexicographically.
func (e *environment) compareItems(left, right []Value, depth int) int {
	for i := range min(len(left), len(right)) {
		// The first pair that differs decides. Equality is asked first: equal items need no order, as in Python.
		if !e.equalAt(left[i], right[i], depth) {
			return e.compareAt(left[i], right[i], depth)
		}
	}
	return order(len(left), len(right))
}

// order is cmp.Compare, except that NaN is equal to everything.
func order[T int | int64 | float64](left, right T) int {
	switch {
	case left < right:
		return -1
	case left > right:
		return 1
	}
	return 0
}
