package jinja

import (
	"math"
	"slices"
	"strings"
)

// arithmetic is left op right, of numbers, texts and lists, by the rules of Python. true counts as
// 1. Two integers give an integer, except for / and for a power with a negative exponent. With a
// float operand the result is a float.
func (e *environment) arithmetic(op string, left, right Value) Value {
	// Texts and lists come first: for them % formats and + joins, which numbers never do.
	if text, ok := left.(string); ok && op == "%" {
		return e.percent(text, right)
	}
	if op == "+" {
		if joined := e.concat(left, right); joined != nil {
			return joined
		}
	}
	whole, float, isInt, ok := number(left)
	otherWhole, otherFloat, otherIsInt, otherOK := number(right)
	switch {
	case isInt && otherIsInt && op != "/":
		return e.ints(op, whole, otherWhole)
	case ok && otherOK:
		return e.floats(op, float, otherFloat)
	case op == "*" && isInt:
		return e.repeat(right, whole, left)
	case op == "*" && otherIsInt:
		return e.repeat(left, otherWhole, right)
	}
	return e.mismatch(op, left, right)
}

// concat is left + right of two texts, lists or tuples, nil for others.
func (e *environment) concat(left, right Value) Value {
	switch left := left.(type) {
	case string:
		if right, ok := right.(string); ok {
			e.allocateValue(len(left) + len(right))
			return left + right
		}
	case *List:
		if right, ok := right.(*List); ok {
			// An item is an interface of two words: 16 bytes.
			e.allocateValue(16 * (len(left.Items) + len(right.Items)))
			return &List{slices.Concat(left.Items, right.Items)}
		}
	case tuple:
		if right, ok := right.(tuple); ok {
			e.allocateValue(16 * (len(left) + len(right)))
			return slices.Concat(left, right)
		}
	}
	return nil
}

// mismatch fails because the operator is not defined for the types of its operands.
func (e *environment) mismatch(op string, left, right Value) Value {
	e.fail("unsupported operand types for %s: '%s' and '%s'", op, typeName(left), typeName(right))
	return nil
}

// repeat is sequence * count; times is the operand that count was read from, for messages. The size
// is charged before anything is made.
func (e *environment) repeat(sequence Value, count int64, times Value) Value {
	count = max(count, 0)
	charge := func(size int) int {
		if size == 0 {
			return 0
		}
		if count > int64(maxMemory/size) {
			e.allocate(maxMemory + 1) // fails
		}
		e.allocateValue(size * int(count))
		return int(count)
	}
	switch sequence := sequence.(type) {
	case string:
		return strings.Repeat(sequence, charge(len(sequence)))
	case *List:
		return &List{slices.Repeat(sequence.Items, charge(16*len(sequence.Items)))}
	case tuple:
		return slices.Repeat(sequence, charge(16*len(sequence)))
	}
	return e.mismatch("*", sequence, times)
}

// floats computes with at least one float, or divides integers. // rounds down, so that a remainder
// has the sign of the divisor.
func (e *environment) floats(op string, left, right float64) Value {
	if right == 0 && (op == "/" || op == "//" || op == "%") {
		e.fail("division by zero")
	}
	switch op {
	case "+":
		return left + right
	case "-":
		return left - right
	case "*":
		return left * right
	case "/":
		return left / right
	case "**":
		power := math.Pow(left, right)
		if math.IsNaN(power) || math.IsInf(power, 0) {
			e.fail("%v ** %v has no value", left, right)
		}
		return power
	}
	// math.Mod gives a remainder with the sign of the dividend.
	rest := math.Mod(left, right)
	if rest != 0 && (rest < 0) != (right < 0) { // the rest of Python has the sign of the divisor
		rest += right
	}
	if op == "%" {
		return rest
	}
	// left - rest is a multiple of right, so rounding only removes what the division lost.
	return math.Round((left - rest) / right)
}

// ints computes with integers. Those of Python have no bounds; here results beyond 64 bits are
// errors.
func (e *environment) ints(op string, left, right int64) Value {
	switch op {
	case "+":
		// A sum moves in the direction of right's sign unless it wrapped around.
		sum := left + right
		e.fits((sum > left) == (right > 0) || right == 0)
		return sum
	case "-":
		difference := left - right
		e.fits((difference < left) == (right > 0) || right == 0)
		return difference
	case "*":
		return e.product(left, right)
	case "**":
		return e.power(left, right)
	}
	if right == 0 {
		e.fail("division by zero")
	}
	// Go's quotient of these two wraps around: the true one is 2^63.
	e.fits(left != math.MinInt64 || right != -1)
	quotient, rest := left/right, left%right
	if rest != 0 && (rest < 0) != (right < 0) { // as in floats
		quotient--
		rest += right
	}
	if op == "%" {
		return rest
	}
	return quotient
}

// fits fails where a result does not fit into 64 bits.
func (e *environment) fits(ok bool) {
	if !ok {
		e.fail("a number is too large")
	}
}

// product checks for overflow by dividing again. The smallest integer times -1 is the one overflow
// that division does not show.
func (e *environment) product(left, right int64) int64 {
	product := left * right
	e.fits(left == 0 || product/left == right && !(left == -1 && right == math.MinInt64))
	return product
}

// power multiplies one factor at a time, each of which costs a step. Beyond 63 factors only the
// bases 0, 1 and -1 can fit.
func (e *environment) power(base, exponent int64) Value {
	if exponent < 0 {
		return e.floats("**", float64(base), float64(exponent))
	}
	out := int64(1)
	for ; exponent > 0; exponent-- {
		e.spend(1)
		if base == 0 || base == 1 {
			return base
		}
		out = e.product(out, base)
	}
	return out
}
