package jinja

import (
	"strings"
	"unicode/utf8"
)

// x.name is an attribute of x, or else an item of that name. x[name] looks in the other order.
func (x *attrExpr) eval(env *environment) Value {
	value := env.eval(x.operand)
	env.line = x.line
	env.defined(value)
	if found, ok := env.attribute(value, x.name); ok {
		return found
	}
	if item, ok := env.subscript(value, x.name); ok {
		return item
	}
	return env.missing(value, x.name)
}

// A slice of what has no items in order is an error. An index that is not there is undefined.
func (x *subscriptExpr) eval(env *environment) Value {
	value, index := env.eval(x.operand), env.eval(x.index)
	env.line = x.line
	if _, ok := index.(sliceBounds); !ok {
		return env.getItem(value, index)
	}
	env.defined(value)
	part, ok := env.subscript(value, index)
	if !ok {
		env.fail("'%s' object cannot be sliced", typeName(value))
	}
	return part
}

// A bound that is left out is nil, as None would be.
func (x *sliceExpr) eval(env *environment) Value {
	bound := func(expr expression) Value {
		if expr == nil {
			return nil
		}
		return env.eval(expr)
	}
	return sliceBounds{bound(x.from), bound(x.to), bound(x.step)}
}

// getItem is value[index], or else the attribute of that name.
func (e *environment) getItem(value, index Value) Value {
	e.defined(value)
	if item, ok := e.subscript(value, index); ok {
		return item
	}
	if name, ok := index.(string); ok {
		if found, ok := e.attribute(value, name); ok {
			return found
		}
	}
	return e.missing(value, index)
}

// missing returns the undefined value for a missing item or attribute.
func (e *environment) missing(value, key Value) Value {
	what := typeName(value) + " object"
	if value == nil {
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

// subscript is value[index], false if there is no such item. index is a key, a position or sliceBounds.
func (e *environment) subscript(value, index Value) (Value, bool) {
	switch value := value.(type) {
	case *Dict:
		hash, ok := e.key(index)
		if !ok {
			return nil, false
		}
		at, ok := value.index[hash]
		if !ok {
			return nil, false
		}
		return value.values[at], true
	case *namespace:
		if name, ok := index.(string); ok {
			return value.attrs.Get(name)
		}
		return nil, false
	}
	// All others are numbered: an index that is no integer finds nothing in them.
	at, _, isInt, _ := number(index)
	bounds, isSlice := index.(sliceBounds)
	if !isInt && !isSlice {
		return nil, false
	}
	var items []Value
	switch value := value.(type) {
	case *List:
		items = value.Items
	case tuple:
		items = value
	case *rangeValue:
		items = e.items(value)
	case string:
		if isSlice {
			return e.textSlice(value, bounds), true
		}
		return e.character(value, at)
	default:
		return nil, false
	}
	if !isSlice {
		at, ok := position(at, len(items))
		if !ok {
			return nil, false
		}
		return items[at], true
	}
	from, step, count := e.sliceRange(bounds, len(items))
	out := make([]Value, 0, count)
	e.allocateValue(16 * count)
	for ; count > 0; count-- {
		out = append(out, items[from])
		from += step
	}
	if _, ok := value.(tuple); ok {
		return tuple(out), true
	}
	return &List{out}, true
}

// position normalises an index into length items, where negative ones count from the end; false for
// one outside.
func position(index int64, length int) (int, bool) {
	if index < 0 {
		index += int64(length)
	}
	return int(index), index >= 0 && index < int64(length)
}

// characters returns the number of characters of a text, and the characters themselves unless all
// are ASCII.
func (e *environment) characters(text string) (chars []rune, length int) {
	// ASCII needs no copy: its characters are its bytes.
	e.scan(len(text))
	if strings.IndexFunc(text, func(char rune) bool { return char >= utf8.RuneSelf }) < 0 {
		return nil, len(text)
	}
	e.allocateValue(4 * len(text))
	chars = []rune(text)
	return chars, len(chars)
}

// character is text[index], false if there is none.
func (e *environment) character(text string, index int64) (Value, bool) {
	chars, length := e.characters(text)
	at, ok := position(index, length)
	switch {
	case !ok:
		return nil, false
	case chars == nil:
		return text[at : at+1], true
	}
	return string(chars[at]), true
}

// textSlice returns a slice of a text. Without a step, ASCII shares the text's memory.
func (e *environment) textSlice(text string, bounds sliceBounds) Value {
	chars, length := e.characters(text)
	from, step, count := e.sliceRange(bounds, length)
	switch {
	case step == 1 && chars == nil:
		return text[from : from+count]
	case step == 1:
		return e.allocateText(string(chars[from : from+count]))
	}
	out := e.builder()
	for ; count > 0; count-- {
		if chars == nil {
			out.writeString(text[from : from+1])
		} else {
			out.writeString(string(chars[from]))
		}
		from += step
	}
	return out.String()
}

// sliceRange returns the first index, the step and the number of items of a slice of length items, by the rules of
// Python. Bounds beyond the ends are moved to them; a bound left out is the end at which the step begins or stops.
func (e *environment) sliceRange(bounds sliceBounds, length int) (from, step, count int) {
	whole := func(bound Value, none int) int {
		if bound == nil {
			return none
		}
		whole, _, ok, _ := number(bound)
		if !ok {
			e.defined(bound)
			e.fail("slice indices must be integers or None")
		}
		// Far beyond any length, and far from overflow in the sums below.
		return int(min(max(whole, -1<<40), 1<<40))
	}
	clamp := func(bound Value, none, low, high int) int {
		index := whole(bound, none)
		if bound != nil && index < 0 {
			index += length
		}
		return min(max(index, low), high)
	}
	step = whole(bounds.step, 1)
	switch {
	case step == 0:
		e.fail("slice step cannot be zero")
	case step > 0:
		from = clamp(bounds.from, 0, 0, length)
		count = (clamp(bounds.to, length, 0, length) - from + step - 1) / step
	default:
		from = clamp(bounds.from, length-1, -1, length-1)
		// Going backwards, -1 stands for the place before the first item.
		count = (from - clamp(bounds.to, -1, -1, length-1) - step - 1) / -step
	}
	if count <= 0 {
		return 0, 1, 0
	}
	return from, step, count
}
