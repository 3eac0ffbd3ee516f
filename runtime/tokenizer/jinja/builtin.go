package jinja

import (
	"slices"
	"strings"
)

// globals are the functions that every template can call, unless a variable of the same name hides
// them.
var globals = map[string]Value{
	"dict":            &function{"dict", func(args *callArgs) Value { return dictFromArgs(args) }},
	"namespace":       &function{"namespace", newNamespace},
	"raise_exception": &function{"raise_exception", refuse},
	"range":           &function{"range", newRange},
	"strftime_now": &function{"strftime_now", func(args *callArgs) Value {
		format := args.str("format", required)
		args.end()
		return args.strftime(format)
	}},
}

// newRange is range(stop) or range(start, stop, step). Only the bounds are kept; the numbers are
// made when something asks for them.
func newRange(args *callArgs) Value {
	from, to, step := int64(0), args.int("start", required), int64(1)
	if len(args.positional) > 0 {
		from, to = to, args.int("stop", required)
		step = args.int("step", int64(1))
	}
	args.end()
	if step == 0 {
		args.fail("range() arg 3 must not be zero")
	}
	const large = 1 << 60 // far enough from the largest number that the sums below do not overflow
	if max(from, to, step) > large || min(from, to, step) < -large {
		args.fail("a number is too large")
	}
	// The number of steps from one bound to the other, rounded up: the last may be shorter.
	count := (to - from + step - 1) / step
	if step < 0 {
		count = (from - to - step - 1) / -step
	}
	if count > maxRange {
		args.fail("a range of %d, want at most %d", count, maxRange)
	}
	return &rangeValue{from, to, step, max(count, 0)}
}

// newNamespace is namespace(..), the only object whose attributes a template can set. Loops use it
// to keep a value beyond a round.
func newNamespace(args *callArgs) Value {
	args.allocate(objectBytes)
	attrs := dictFromArgs(args)
	for _, key := range attrs.keys {
		if name, ok := key.(string); !ok || strings.HasPrefix(name, "_") {
			args.fail("a namespace keeps no attribute that begins with _ or is no name")
		}
	}
	return &namespace{attrs}
}

// refuse ends the execution with the template's own message.
func refuse(args *callArgs) Value {
	message := args.text(args.next("message", required))
	args.end()
	throw(args.line, errRefused, "%v: %s", errRefused, message)
	return nil
}

// dictFromArgs is dict(..): from a mapping or from pairs, and from named arguments.
func dictFromArgs(args *callArgs) *Dict {
	dict := args.newDict()
	if len(args.positional) > 0 {
		switch from := args.next("", nil).(type) {
		case *Dict:
			for i, key := range from.keys {
				args.put(dict, key, from.values[i])
			}
		case *undefined:
			args.defined(from)
		default:
			for _, item := range args.items(from) {
				pair := args.items(item)
				if len(pair) != 2 {
					args.fail("dict: want pairs, got %d values", len(pair))
				}
				args.put(dict, pair[0], pair[1])
			}
		}
	}
	if len(args.positional) > 0 {
		args.end()
	}
	for i, name := range args.names {
		args.put(dict, name, args.values[i])
	}
	return dict
}

// Attributes that Python's types have. Those that are not implemented here are errors: as undefined
// values they would silently change the text.
var (
	stringMethods = strings.Fields(`capitalize casefold center count encode endswith expandtabs find format format_map
		index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle
		isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust
		rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill`)
	unsafeMethods = map[string][]string{
		"dict": {"clear", "pop", "popitem", "setdefault", "update"},
		"list": {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"},
	}
	otherMethods = map[string][]string{
		"dict":  {"fromkeys"},
		"float": strings.Fields("as_integer_ratio conjugate fromhex hex imag is_integer real"),
		"int": strings.Fields(`as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator
			real to_bytes`),
	}
)

// attribute is getattr(value, name), without looking at items; false if the value has no such
// attribute.
func (e *environment) attribute(value Value, name string) (Value, bool) {
	kind := typeName(value)
	// What the sandbox of the reference forbids is undefined there too: it prints nothing and fails when it is used.
	special := strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
	if special || slices.Contains(unsafeMethods[kind], name) {
		return e.undefined("access to attribute '%s' of '%s' object is unsafe", name, kind), true
	}
	var run func(args *callArgs) Value
	switch value := value.(type) {
	case *loop:
		return value.attribute(e, name)
	case *namespace:
		return value.attrs.Get(name)
	case *macroValue:
		if name == "name" {
			return value.name, true
		}
	case string:
		if method, ok := methods[name]; ok {
			run = func(args *callArgs) Value { return method(args, value) }
		} else if slices.Contains(stringMethods, name) {
			e.fail("the method %q of str is not supported", name)
		}
	case *Dict:
		run = dictMethod(value, name)
	case *List:
		run = listMethod(e.items(value), name)
		if name == "copy" {
			run = func(*callArgs) Value { return value } // nothing can change it
		}
	case tuple:
		run = listMethod(e.items(value), name)
	}
	if run != nil {
		e.allocate(methodBytes)
		return &function{name, func(args *callArgs) Value {
			return e.charged(constantMethods, name, value, args, func() Value { return run(args) })
		}}, true
	}
	if slices.Contains(otherMethods[kind], name) {
		e.fail("the attribute %q of %s is not supported", name, kind)
	}
	return nil, false
}

// dictMethod returns a method of a mapping, nil if there is none of that name.
func dictMethod(dict *Dict, name string) func(args *callArgs) Value {
	switch name {
	case "copy":
		return func(args *callArgs) Value {
			return dictFromArgs(&callArgs{environment: args.environment, positional: []Value{dict}})
		}
	case "get":
		return func(args *callArgs) Value {
			key, none := args.next("key", required), args.next("default", nil)
			if i, ok := dict.index[args.hash(key)]; ok {
				return dict.values[i]
			}
			return none
		}
	case "items", "keys", "values":
		return func(args *callArgs) Value {
			args.allocate(2 * objectBytes)
			switch name {
			case "keys":
				return &dictView{"dict_keys", dict.keys}
			case "values":
				return &dictView{"dict_values", dict.values}
			}
			return &dictView{"dict_items", args.pairs(dict)}
		}
	}
	return nil
}

// listMethod returns a method of lists and tuples, nil if there is none of that name.
func listMethod(items []Value, name string) func(args *callArgs) Value {
	switch name {
	case "count":
		return func(args *callArgs) Value {
			wanted := args.next("value", required)
			count := int64(0)
			for _, item := range items {
				if args.equal(wanted, item) {
					count++
				}
			}
			return count
		}
	case "index":
		return func(args *callArgs) Value {
			wanted := args.next("value", required)
			i := slices.IndexFunc(items, func(item Value) bool { return args.equal(wanted, item) })
			if i < 0 {
				args.fail("the value is not in the list")
			}
			return int64(i)
		}
	}
	return nil
}

// pairs returns the (key, value) tuples of a mapping.
func (e *environment) pairs(dict *Dict) []Value {
	e.allocateValue((2*objectBytes + 16) * len(dict.keys))
	out := make([]Value, len(dict.keys))
	for i, key := range dict.keys {
		out[i] = tuple{key, dict.values[i]}
	}
	return out
}
