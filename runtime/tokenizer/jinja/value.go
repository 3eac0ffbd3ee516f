package jinja

import (
	"iter"
	"math"
	"reflect"
	"strconv"
)

// Value is a value of the template language: nil, bool, int64, float64, string, *List, *Dict, or one that only
// templates make.
type Value any

// List is a list; templates cannot change it.
type List struct{ Items []Value }

// Dict keeps the order in which keys were added; templates cannot change it.
type Dict struct {
	keys, values []Value
	index        map[any]int // position by environment.key
}

// Values that only templates make.
type (
	tuple     []Value
	undefined struct{ message string } // an error once it is used for more than printing or asking
	namespace struct{ attrs *Dict }
	iterator  struct { // gives each item once
		items []Value
		fill  func() []Value // makes the items when the first is asked for (environment.fill), nil if they are there
	}
	dictView struct { // what keys(), values() or items() of a mapping returns
		name  string
		items []Value
	}
	rangeValue  struct{ from, to, step, count int64 } // numbers that are made when they are asked for
	sliceBounds struct{ from, to, step Value }
	function    struct {
		name string
		call func(args *callArgs) Value
	}
)

// Get returns the value of a key that is a string.
func (d *Dict) Get(key string) (Value, bool) {
	i, ok := d.index[key]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// All goes through the keys that are strings and their values, in order.
func (d *Dict) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i, key := range d.keys {
			if name, ok := key.(string); ok && !yield(name, d.values[i]) {
				return
			}
		}
	}
}

// Set adds a key or replaces its value.
func (d *Dict) Set(key string, value Value) { d.set(key, key, value) }

// set keeps the place of a key that is there already, and the key itself, as Python does: 1 stays 1 when True is set.
func (d *Dict) set(hash any, key, value Value) {
	if i, ok := d.index[hash]; ok {
		d.values[i] = value
		return
	}
	if d.index == nil {
		d.index = map[any]int{}
	}
	d.index[hash] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, value)
}

// tupleKey is a tuple as a key of a Go map, which cannot have slices in it: its values, each with its kind, and with
// its length where that differs. So no two tuples that are not equal have one key.
type tupleKey string

// key returns a value as a key of a Go map, false if a mapping of Python cannot have it as a key. Equal values have
// equal keys.
func (e *environment) key(value Value) (any, bool) {
	e.spend(1)
	if items, ok := value.(tuple); ok {
		out := e.builder()
		ok := e.writeKey(out, items, 0)
		return tupleKey(out.String()), ok
	}
	if text, ok := value.(string); ok {
		e.scan(len(text))
	}
	return scalarKey(value)
}

// scalarKey returns the key of a value that holds no others. Numbers that are equal have one key, whatever their type.
func scalarKey(value Value) (any, bool) {
	switch value := value.(type) {
	case nil:
		return struct{}{}, true
	case *undefined:
		return [0]int{}, true
	case string:
		return value, true
	case bool, int64:
		whole, _, _, _ := number(value)
		return whole, true
	case float64:
		if whole := int64(value); float64(whole) == value && math.Abs(value) < 1<<62 {
			return whole, true
		}
		return value, !math.IsNaN(value)
	}
	return nil, false
}

// writeKey writes what tells a value from all that are not equal to it. A tuple that holds another one twice is
// written, and paid for, as what it stands for.
func (e *environment) writeKey(out *builder, value Value, depth int) bool {
	e.spend(1)
	e.checkDepth(depth)
	if items, ok := value.(tuple); ok {
		out.writeByte('(')
		for _, item := range items {
			if !e.writeKey(out, item, depth+1) {
				return false
			}
		}
		out.writeByte(')')
		return true
	}
	scalar, ok := scalarKey(value)
	switch key := scalar.(type) {
	case string:
		out.writeString("s" + strconv.Itoa(len(key)) + ":")
		out.writeString(key)
	case int64:
		out.writeString("i" + strconv.FormatInt(key, 10) + ";")
	case float64:
		out.writeString("f" + strconv.FormatUint(math.Float64bits(key), 16) + ";")
	case struct{}:
		out.writeByte('n')
	default:
		out.writeByte('u')
	}
	return ok
}

// typeNames are the names that types have in Python.
var typeNames = map[reflect.Type]string{
	reflect.TypeFor[bool](): "bool", reflect.TypeFor[int64](): "int", reflect.TypeFor[float64](): "float",
	reflect.TypeFor[string](): "str", reflect.TypeFor[*List](): "list", reflect.TypeFor[*Dict](): "dict",
	reflect.TypeFor[tuple](): "tuple", reflect.TypeFor[*undefined](): "Undefined",
	reflect.TypeFor[*namespace](): "Namespace", reflect.TypeFor[*iterator](): "generator",
	reflect.TypeFor[*rangeValue](): "range", reflect.TypeFor[*loop](): "LoopContext",
	reflect.TypeFor[*macroValue](): "Macro", reflect.TypeFor[sliceBounds](): "slice",
	reflect.TypeFor[*function](): "function", nil: "NoneType",
}

// typeName returns the name of a value's type in Python.
func typeName(value Value) string {
	if view, ok := value.(*dictView); ok {
		return view.name
	}
	return typeNames[reflect.TypeOf(value)]
}

// count returns the number of items that a value holds, false if it holds none. An iterator does not know it.
func count(value Value) (int, bool) {
	switch value := value.(type) {
	case *List:
		return len(value.Items), true
	case tuple:
		return len(value), true
	case *Dict:
		return len(value.keys), true
	case *dictView:
		return len(value.items), true
	case *loop:
		return len(value.items), true
	case *rangeValue:
		return int(value.count), true
	case *undefined:
		return 0, true
	}
	return 0, false
}

// truth is bool(value).
func truth(value Value) bool {
	switch value := value.(type) {
	case nil:
		return false
	case string:
		return value != ""
	}
	if _, float, _, ok := number(value); ok {
		return float != 0
	}
	items, ok := count(value)
	return !ok || items > 0
}

// number returns a value as a number; both results count, isInt says whether whole is exact.
func number(value Value) (whole int64, float float64, isInt, ok bool) {
	switch value := value.(type) {
	case bool:
		if value {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return value, float64(value), true, true
	case float64:
		return 0, value, false, true
	}
	return 0, 0, false, false
}
