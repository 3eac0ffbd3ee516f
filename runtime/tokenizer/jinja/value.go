package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Value is a value of the template language: nil, bool, int64, float64, string, *List, *Dict, or one that only
// templates make.
type Value any

// List is a list; templates cannot change it.
type List struct{ Items []Value }

// Dict keeps the order in which keys were added; templates cannot change it.
type Dict struct {
	keys, values []Value
	index        map[any]int
}

type (
	tuple     []Value
	undefined struct{ message string } // an error once it is used for more than printing or asking
	namespace struct{ attrs *Dict }
	iterator  struct { // gives each item once
		items []Value
		fill  func() []Value // makes the items when the first is asked for (env.fill), nil if they are there
	}
	view struct {
		name  string
		items []Value
	}
	span     struct{ from, to, step, n int64 } // a range of numbers
	slice    struct{ from, to, step Value }
	function struct {
		name string
		call func(a *args) Value
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
		for i, k := range d.keys {
			if name, ok := k.(string); ok && !yield(name, d.values[i]) {
				return
			}
		}
	}
}

// Set adds a key or replaces its value.
func (d *Dict) Set(key string, v Value) { d.set(key, key, v) }

func (d *Dict) set(hash any, key, v Value) {
	if i, ok := d.index[hash]; ok {
		d.values[i] = v
		return
	}
	if d.index == nil {
		d.index = map[any]int{}
	}
	d.index[hash] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, v)
}

// tupleKey is a tuple as a key of a Go map: its values, each with its kind, and with its length where that differs.
type tupleKey string

// key is v as a key of a Go map, false if a mapping of Python cannot have it as a key. Equal values have equal keys.
func (e *env) key(v Value) (any, bool) {
	e.spend(1)
	if t, ok := v.(tuple); ok {
		b := e.builder()
		ok := e.writeKey(b, t, 0)
		return tupleKey(b.String()), ok
	}
	if s, ok := v.(string); ok {
		e.scan(len(s))
	}
	return scalarKey(v)
}

// scalarKey is the key of a value that holds no others.
func scalarKey(v Value) (any, bool) {
	switch v := v.(type) {
	case nil:
		return struct{}{}, true
	case *undefined:
		return [0]int{}, true
	case string:
		return v, true
	case bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case int64:
		return v, true
	case float64:
		if i := int64(v); float64(i) == v && math.Abs(v) < 1<<62 {
			return i, true
		}
		return v, !math.IsNaN(v)
	}
	return nil, false
}

// writeKey writes what tells v from all values that are not equal to it. A tuple that holds another one twice is
// written, and paid for, as what it stands for.
func (e *env) writeKey(b *builder, v Value, depth int) bool {
	e.spend(1)
	e.deep(depth)
	if t, ok := v.(tuple); ok {
		b.WriteByte('(')
		for _, x := range t {
			if !e.writeKey(b, x, depth+1) {
				return false
			}
		}
		b.WriteByte(')')
		return true
	}
	scalar, ok := scalarKey(v)
	switch k := scalar.(type) {
	case string:
		b.WriteString("s" + strconv.Itoa(len(k)) + ":")
		b.WriteString(k)
	case int64:
		b.WriteString("i" + strconv.FormatInt(k, 10) + ";")
	case float64:
		b.WriteString("f" + strconv.FormatUint(math.Float64bits(k), 16) + ";")
	case struct{}:
		b.WriteByte('n')
	default:
		b.WriteByte('u')
	}
	return ok
}

// FromJSON reads a JSON document; objects keep their order.
func FromJSON(data []byte) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := fromJSON(d, 0)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return v, nil
		}
		err = errors.New("data after the document")
	}
	return nil, err
}

func fromJSON(d *json.Decoder, depth int) (Value, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxNesting {
		return nil, fmt.Errorf("more than %d lists and objects in each other", maxNesting)
	}
	switch t := t.(type) {
	case json.Number:
		if i, err := strconv.ParseInt(string(t), 10, 64); err == nil {
			return i, nil
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			l := &List{}
			for d.More() {
				v, err := fromJSON(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		o := &Dict{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := fromJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			o.Set(key.(string), v)
		}
		_, err := d.Token()
		return o, err
	}
	return t, nil
}

// typeName is the name of v's type in Python.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		return "list"
	case *Dict:
		return "dict"
	case tuple:
		return "tuple"
	case *undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *iterator:
		return "generator"
	case *view:
		return v.name
	case *span:
		return "range"
	case *loop:
		return "LoopContext"
	case *macroValue:
		return "Macro"
	case slice:
		return "slice"
	}
	return "function"
}

func truth(v Value) bool {
	switch v := v.(type) {
	case nil, *undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	case tuple:
		return len(v) > 0
	case *view:
		return len(v.items) > 0
	case *span:
		return v.n > 0
	case *loop:
		return len(v.items) > 0
	}
	return true
}

// number returns v as a number; both results count, isInt says which is exact.
func number(v Value) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// equal is == of Python.
func (e *env) equal(a, b Value) bool { return e.equalAt(a, b, 0) }

func (e *env) equalAt(a, b Value, depth int) bool {
	e.spend(1)
	e.deep(depth)
	if ai, af, aInt, ok := number(a); ok {
		bi, bf, bInt, ok := number(b)
		if !ok {
			return false
		}
		if aInt && bInt {
			return ai == bi
		}
		return af == bf
	}
	items := func(x, y []Value) bool {
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if !e.equalAt(x[i], y[i], depth+1) {
				return false
			}
		}
		return true
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case string:
		b, ok := b.(string)
		if !ok || len(a) != len(b) {
			return false
		}
		e.scan(len(a))
		return a == b
	case *List:
		b, ok := b.(*List)
		return ok && items(a.Items, b.Items)
	case tuple:
		b, ok := b.(tuple)
		return ok && items(a, b)
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for i, k := range a.keys {
			j, ok := b.index[e.hash(k)]
			if !ok || !e.equalAt(a.values[i], b.values[j], depth+1) {
				return false
			}
		}
		return true
	case *span:
		b, ok := b.(*span)
		return ok && a.n == b.n && (a.n == 0 || a.from == b.from && (a.n == 1 || a.step == b.step))
	}
	return a == b
}

// compare orders a and b as Python does.
func (e *env) compare(a, b Value) int { return e.compareAt(a, b, 0) }

func (e *env) compareAt(a, b Value, depth int) int {
	e.spend(1)
	e.deep(depth)
	e.defined(a)
	e.defined(b)
	order := func(less, more bool) int {
		if less {
			return -1
		}
		if more {
			return 1
		}
		return 0
	}
	if ai, af, aInt, ok := number(a); ok {
		if bi, bf, bInt, ok := number(b); ok {
			if aInt && bInt {
				return order(ai < bi, ai > bi)
			}
			return order(af < bf, af > bf)
		}
	}
	items := func(x, y []Value) int {
		for i := range min(len(x), len(y)) {
			if !e.equalAt(x[i], y[i], depth+1) {
				return e.compareAt(x[i], y[i], depth+1)
			}
		}
		return order(len(x) < len(y), len(x) > len(y))
	}
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			e.scan(min(len(a), len(b)))
			return strings.Compare(a, b)
		}
	case *List:
		if b, ok := b.(*List); ok {
			return items(a.Items, b.Items)
		}
	case tuple:
		if b, ok := b.(tuple); ok {
			return items(a, b)
		}
	}
	e.fail("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
	return 0
}

// text is str(v).
func (e *env) text(v Value) string {
	switch v := v.(type) {
	case string:
		return v
	case *undefined:
		return ""
	}
	b := e.builder()
	e.repr(b, v, 0)
	return b.String()
}

// repr writes repr(v).
func (e *env) repr(b *builder, v Value, depth int) {
	e.spend(1)
	e.deep(depth)
	list := func(open, end string, items []Value) {
		b.WriteString(open)
		for i, x := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			e.repr(b, x, depth+1)
		}
		b.WriteString(end)
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(formatFloat(v))
	case string:
		quote(b, v)
	case *List:
		list("[", "]", v.Items)
	case tuple:
		if len(v) == 1 {
			list("(", ",)", v)
		} else {
			list("(", ")", v)
		}
	case *Dict:
		b.WriteString("{")
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			e.repr(b, k, depth+1)
			b.WriteString(": ")
			e.repr(b, v.values[i], depth+1)
		}
		b.WriteString("}")
	case *undefined:
		b.WriteString("Undefined")
	case *view:
		list(v.name+"([", "])", v.items)
	case *span:
		if v.step == 1 {
			fmt.Fprintf(b, "range(%d, %d)", v.from, v.to)
		} else {
			fmt.Fprintf(b, "range(%d, %d, %d)", v.from, v.to, v.step)
		}
	default:
		e.fail("a %s cannot be written", typeName(v))
	}
}

// escape writes a character as \, kind and hexadecimal digits.
func escape(b *builder, kind byte, r rune, digits int) {
	b.WriteByte('\\')
	b.WriteByte(kind)
	for digits--; digits >= 0; digits-- {
		b.WriteByte("0123456789abcdef"[r>>(4*digits)&15])
	}
}

// quote writes the repr of a string.
func quote(b *builder, s string) {
	b.m.scan(2 * len(s))
	mark := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		mark = '"'
	}
	b.WriteRune(mark)
	for _, r := range s {
		switch {
		case r == mark || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			escape(b, 'x', r, 2)
		case r < 0x10000:
			escape(b, 'u', r, 4)
		default:
			escape(b, 'U', r, 8)
		}
	}
	b.WriteRune(mark)
}

// formatFloat is repr of a float.
func formatFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(s, "e")
	n, _ := strconv.Atoi(exponent)
	if n < -4 || n >= 16 {
		return fmt.Sprintf("%se%+03d", mantissa, n)
	}
	if s = strconv.FormatFloat(f, 'f', -1, 64); !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// jsonStyle is how tojson writes.
type jsonStyle struct {
	ascii, sort bool
	indent      string
	lines       bool // a line for each item
	item, key   string
}

func (e *env) json(b *builder, v Value, s *jsonStyle, depth int) {
	e.spend(1)
	e.deep(depth)
	line := func(depth int) {
		if s.lines {
			b.WriteByte('\n')
			b.repeat(s.indent, depth)
		}
	}
	list := func(items []Value) {
		if len(items) == 0 {
			b.WriteString("[]")
			return
		}
		b.WriteString("[")
		for i, x := range items {
			if i > 0 {
				b.WriteString(s.item)
			}
			line(depth + 1)
			e.json(b, x, s, depth+1)
		}
		line(depth)
		b.WriteString("]")
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(jsonFloat(v))
	case string:
		jsonString(b, v, s.ascii)
	case *List:
		list(v.Items)
	case tuple:
		list(v)
	case *Dict:
		if len(v.keys) == 0 {
			b.WriteString("{}")
			return
		}
		e.hold(8 * len(v.keys))
		order := make([]int, len(v.keys))
		for i := range order {
			order[i] = i
		}
		if s.sort {
			slices.SortStableFunc(order, func(i, j int) int { return e.compare(v.keys[i], v.keys[j]) })
		}
		b.WriteString("{")
		for n, i := range order {
			if n > 0 {
				b.WriteString(s.item)
			}
			line(depth + 1)
			switch k := v.keys[i].(type) {
			case string:
				jsonString(b, k, s.ascii)
			case nil:
				b.WriteString(`"null"`)
			case bool:
				b.WriteString(strconv.Quote(strconv.FormatBool(k)))
			case int64:
				b.WriteString(strconv.Quote(strconv.FormatInt(k, 10)))
			case float64:
				b.WriteString(strconv.Quote(jsonFloat(k)))
			default:
				e.fail("keys must be str, int, float, bool or None, not %s", typeName(k))
			}
			b.WriteString(s.key)
			e.json(b, v.values[i], s, depth+1)
		}
		line(depth)
		b.WriteString("}")
	default:
		e.fail("object of type %s is not JSON serializable", typeName(v))
	}
}

func jsonFloat(f float64) string {
	switch s := formatFloat(f); s {
	case "inf":
		return "Infinity"
	case "-inf":
		return "-Infinity"
	case "nan":
		return "NaN"
	default:
		return s
	}
}

func jsonString(b *builder, s string, ascii bool) {
	b.m.scan(len(s))
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20:
			if i := strings.IndexRune("\b\f\n\r\t", r); i >= 0 {
				b.WriteByte('\\')
				b.WriteByte("bfnrt"[i])
			} else {
				escape(b, 'u', r, 4)
			}
		case r < utf8.RuneSelf && !(ascii && r == 0x7f) || !ascii:
			b.WriteRune(r)
		case r >= 0x10000:
			r -= 0x10000
			escape(b, 'u', 0xd800+r>>10, 4)
			escape(b, 'u', 0xdc00+r&0x3ff, 4)
		default:
			escape(b, 'u', r, 4)
		}
	}
	b.WriteByte('"')
}
