package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var filters map[string]func(e *env, v Value, a *args) Value

var tests map[string]func(e *env, v Value, a *args) bool

// Both maps are used by functions in them.
func init() {
	text := func(f func(e *env, s string) string) func(e *env, v Value, a *args) Value {
		return func(e *env, v Value, a *args) Value {
			a.end()
			return f(e, e.text(v))
		}
	}
	pick := func(keep, byAttribute bool) func(e *env, v Value, a *args) Value {
		return lazy(func(e *env, v Value, a *args) []Value {
			var key Value
			if byAttribute {
				key = a.next("attribute", required)
			}
			var test string
			if len(a.positional) > 0 {
				test = a.str("test", required)
			}
			var out []Value
			for _, x := range e.items(v) {
				got := x
				if byAttribute {
					got = e.path(x, key, nil)
				}
				ok := false
				if test == "" {
					ok = truth(got)
				} else {
					ok = e.test(test, got, a.clone())
				}
				if ok == keep {
					e.hold(16)
					out = append(out, x)
				}
			}
			return out
		})
	}
	extreme := func(sign int) func(e *env, v Value, a *args) Value {
		return func(e *env, v Value, a *args) Value {
			sensitive, attr := truth(a.next("case_sensitive", false)), a.next("attribute", nil)
			a.end()
			items := e.items(v)
			if len(items) == 0 {
				return &undefined{"No aggregated item, sequence was empty."}
			}
			best := items[0]
			bestKey := e.sortKey(best, attr, sensitive)
			for _, x := range items[1:] {
				if k := e.sortKey(x, attr, sensitive); sign*e.compare(k, bestKey) > 0 {
					best, bestKey = x, k
				}
			}
			return best
		}
	}
	filters = map[string]func(e *env, v Value, a *args) Value{
		"upper":      text((*env).upper),
		"lower":      text((*env).lower),
		"capitalize": text((*env).capitalize),
		"string":     text(func(_ *env, s string) string { return s }),
		"safe":       text(func(_ *env, s string) string { return s }),
		"title": text(func(e *env, s string) string {
			b := e.builder()
			start := true
			from := 0
			flush := func(to int) {
				if part := s[from:to]; part != "" {
					_, n := utf8.DecodeRuneInString(part)
					b.WriteString(e.upper(part[:n]))
					b.WriteString(e.lower(part[n:]))
				}
				from = to
			}
			for i, r := range s {
				if sep := strings.ContainsRune("-({[<", r) || isSpace(r); sep != start {
					flush(i)
					start = sep
				}
			}
			flush(len(s))
			return b.String()
		}),
		"trim": func(e *env, v Value, a *args) Value {
			s := strip(a, e.text(v), true, true)
			a.end()
			return s
		},
		"center": func(e *env, v Value, a *args) Value {
			a.positional = append(a.positional, a.next("width", int64(80)))
			out := methods["center"](a, e.text(v))
			a.end()
			return out
		},
		"replace": func(e *env, v Value, a *args) Value {
			old, with, n := e.text(a.next("old", required)), e.text(a.next("new", required)), a.next("count", nil)
			a.end()
			if n == nil {
				n = int64(-1)
			}
			count, _, ok, _ := number(n)
			if !ok {
				e.fail("replace: count must be int, not %s", typeName(n))
			}
			return e.replace(e.text(v), old, with, count)
		},
		"format": func(e *env, v Value, a *args) Value {
			if len(a.names) > 0 {
				if len(a.positional) > 0 {
					e.fail("format: positions and names at the same time")
				}
				return e.percent(e.text(v), newDict(a))
			}
			return e.percent(e.text(v), tuple(a.positional))
		},
		"indent":     indent,
		"truncate":   truncate,
		"wordcount":  func(e *env, v Value, a *args) Value { a.end(); return e.words(e.text(v)) },
		"tojson":     toJSON,
		"default":    orDefault,
		"d":          orDefault,
		"length":     length,
		"count":      length,
		"first":      func(e *env, v Value, a *args) Value { a.end(); return e.first(v) },
		"last":       func(e *env, v Value, a *args) Value { a.end(); return e.last(v) },
		"list":       func(e *env, v Value, a *args) Value { a.end(); return e.list(slices.Clone(e.items(v))) },
		"select":     pick(true, false),
		"reject":     pick(false, false),
		"selectattr": pick(true, true),
		"rejectattr": pick(false, true),
		"max":        extreme(1),
		"min":        extreme(-1),
		"map":        lazy(mapFilter),
		"join": func(e *env, v Value, a *args) Value {
			sep, attr := e.text(a.next("d", "")), a.next("attribute", nil)
			a.end()
			var parts []string
			for _, x := range e.items(v) {
				if attr != nil {
					x = e.path(x, attr, nil)
				}
				e.hold(16)
				parts = append(parts, e.text(x))
			}
			return e.join(parts, sep)
		},
		"items": func(e *env, v Value, a *args) Value {
			a.end()
			e.hold(lazyBytes)
			return &iterator{fill: func() []Value {
				switch v := v.(type) {
				case *undefined:
					return nil
				case *Dict:
					return e.pairs(v)
				}
				e.fail("items: want a mapping, got %s", typeName(v))
				return nil
			}}
		},
		"reverse": func(e *env, v Value, a *args) Value {
			a.end()
			if s, ok := v.(string); ok {
				e.grow(4 * len(s))
				runes := []rune(s)
				slices.Reverse(runes)
				return string(runes)
			}
			out := slices.Clone(e.items(v))
			e.grow(16 * len(out))
			slices.Reverse(out)
			return &iterator{items: out}
		},
		"sort": func(e *env, v Value, a *args) Value {
			reverse, sensitive, attr := truth(a.next("reverse", false)), truth(a.next("case_sensitive", false)), a.next("attribute", nil)
			a.end()
			return &List{e.sorted(e.items(v), reverse, func(x Value) Value { return e.sortKeys(x, attr, sensitive) })}
		},
		"dictsort": func(e *env, v Value, a *args) Value {
			sensitive, by, reverse := truth(a.next("case_sensitive", false)), a.str("by", "key"), truth(a.next("reverse", false))
			a.end()
			d, ok := v.(*Dict)
			i := slices.Index([]string{"key", "value"}, by)
			if !ok || i < 0 {
				e.fail("dictsort: want a mapping and key or value, got %s and %q", typeName(v), by)
			}
			return &List{e.sorted(e.pairs(d), reverse, func(x Value) Value { return e.fold(x.(tuple)[i], sensitive) })}
		},
		"unique": lazy(func(e *env, v Value, a *args) []Value {
			sensitive, attr := truth(a.next("case_sensitive", false)), a.next("attribute", nil)
			a.end()
			e.hold(dictBytes)
			seen := map[any]bool{}
			var out []Value
			for _, x := range e.items(v) {
				h := e.hash(e.sortKey(x, attr, sensitive))
				if !seen[h] {
					e.hold(entryBytes)
					seen[h] = true
					out = append(out, x)
				}
			}
			return out
		}),
		"sum": func(e *env, v Value, a *args) Value {
			attr, sum := a.next("attribute", nil), a.next("start", int64(0))
			a.end()
			for _, x := range e.items(v) {
				if attr != nil {
					x = e.path(x, attr, nil)
				}
				e.defined(x)
				sum = e.arithmetic("+", sum, x)
			}
			return sum
		},
		"batch": lazy(func(e *env, v Value, a *args) []Value {
			n, fill := a.int("linecount", required), a.next("fill_with", nil)
			a.end()
			items := e.items(v)
			if n < 1 || n > maxRange {
				e.fail("batch: %d, want 1 to %d", n, maxRange)
			}
			var out []Value
			for len(items) > 0 {
				most := len(items)
				if fill != nil {
					most = int(n)
				}
				e.grow(16 * min(int(n), most))
				row := slices.Clone(items[:min(int(n), len(items))])
				items = items[len(row):]
				for fill != nil && len(row) < int(n) {
					row = append(row, fill)
				}
				e.hold(16)
				out = append(out, &List{row})
			}
			return out
		}),
		"abs": func(e *env, v Value, a *args) Value {
			a.end()
			i, f, isInt, ok := number(v)
			switch {
			case !ok:
				e.defined(v)
				e.fail("bad operand type for abs(): '%s'", typeName(v))
			case isInt && i < 0:
				return e.ints("-", 0, i)
			case isInt:
				return i
			}
			return math.Abs(f)
		},
		"int":   toInt,
		"float": toFloat,
		"round": round,
	}

	is := func(f func(v Value) bool) func(e *env, v Value, a *args) bool {
		return func(_ *env, v Value, _ *args) bool { return f(v) }
	}
	order := func(f func(c int) bool) func(e *env, v Value, a *args) bool {
		return func(e *env, v Value, a *args) bool { return f(e.compare(v, a.next("other", required))) }
	}
	same := func(e *env, v Value, a *args) bool { return e.equal(v, a.next("other", required)) }
	differs := func(e *env, v Value, a *args) bool { return !e.equal(v, a.next("other", required)) }
	gt, ge := order(func(c int) bool { return c > 0 }), order(func(c int) bool { return c >= 0 })
	lt, le := order(func(c int) bool { return c < 0 }), order(func(c int) bool { return c <= 0 })
	divides := func(e *env, v, by Value) bool {
		e.defined(v)
		return e.equal(e.arithmetic("%", v, by), int64(0))
	}
	tests = map[string]func(e *env, v Value, a *args) bool{
		"defined":   is(func(v Value) bool { _, u := v.(*undefined); return !u }),
		"undefined": is(func(v Value) bool { _, u := v.(*undefined); return u }),
		"none":      is(func(v Value) bool { return v == nil }),
		"boolean":   is(func(v Value) bool { _, ok := v.(bool); return ok }),
		"true":      is(func(v Value) bool { b, ok := v.(bool); return ok && b }),
		"false":     is(func(v Value) bool { b, ok := v.(bool); return ok && !b }),
		"integer":   is(func(v Value) bool { _, ok := v.(int64); return ok }),
		"float":     is(func(v Value) bool { _, ok := v.(float64); return ok }),
		"number":    is(func(v Value) bool { _, _, _, ok := number(v); return ok }),
		"string":    is(func(v Value) bool { _, ok := v.(string); return ok }),
		"mapping":   is(func(v Value) bool { _, ok := v.(*Dict); return ok }),
		"sequence": is(func(v Value) bool {
			switch v.(type) {
			case string, *List, tuple, *Dict, *span, *undefined:
				return true
			}
			return false
		}),
		"iterable": is(func(v Value) bool {
			switch v.(type) {
			case string, *List, tuple, *Dict, *span, *view, *iterator, *loop, *undefined:
				return true
			}
			return false
		}),
		"callable": is(func(v Value) bool {
			switch v.(type) {
			case *function, *macroValue, *loop, *undefined:
				return true
			}
			return false
		}),
		"sameas": func(e *env, v Value, a *args) bool {
			o := a.next("other", required)
			if typeName(v) != typeName(o) {
				return false
			}
			switch v := v.(type) {
			case tuple, slice:
				return false
			default:
				return v == o
			}
		},
		"even": func(e *env, v Value, _ *args) bool { return divides(e, v, int64(2)) },
		"odd": func(e *env, v Value, _ *args) bool {
			e.defined(v)
			return e.equal(e.arithmetic("%", v, int64(2)), int64(1))
		},
		"divisibleby": func(e *env, v Value, a *args) bool { return divides(e, v, a.next("num", required)) },
		"lower":       func(e *env, v Value, a *args) bool { s := e.text(v); return methods["islower"](a, s).(bool) },
		"upper":       func(e *env, v Value, a *args) bool { s := e.text(v); return methods["isupper"](a, s).(bool) },
		"in":          func(e *env, v Value, a *args) bool { return e.contains(a.next("seq", required), v) },
		"filter":      func(e *env, v Value, _ *args) bool { s, ok := v.(string); _, known := filters[s]; return ok && known },
		"test":        func(e *env, v Value, _ *args) bool { s, ok := v.(string); _, known := tests[s]; return ok && known },
		"eq":          same, "equalto": same, "==": same,
		"ne": differs, "!=": differs,
		"gt": gt, "greaterthan": gt, ">": gt,
		"ge": ge, ">=": ge,
		"lt": lt, "lessthan": lt, "<": lt,
		"le": le, "<=": le,
	}
}

// lazy makes a filter that does nothing, not even look at its arguments, before its items are asked for.
func lazy(f func(e *env, v Value, a *args) []Value) func(e *env, v Value, a *args) Value {
	return func(e *env, v Value, a *args) Value {
		e.hold(lazyBytes)
		return &iterator{fill: func() []Value {
			if !truth(v) {
				return nil
			}
			return f(e, v, a.clone())
		}}
	}
}

// path is the attribute of v that a filter names: "a.b.0".
func (e *env) path(v, attribute, none Value) Value {
	parts := []Value{attribute}
	if s, ok := attribute.(string); ok {
		parts = nil
		e.scan(len(s))
		for p := range strings.SplitSeq(s, ".") {
			var key Value = p
			if i, err := strconv.ParseInt(p, 10, 64); err == nil && p[0] != '-' && p[0] != '+' {
				key = i
			}
			e.hold(objectBytes)
			parts = append(parts, key)
		}
	}
	for _, p := range parts {
		e.spend(1)
		v = e.getItem(v, p)
		if _, u := v.(*undefined); u && none != nil {
			v = none
		}
	}
	return v
}

// fold makes strings equal that differ in case.
func (e *env) fold(v Value, sensitive bool) Value {
	if s, ok := v.(string); ok && !sensitive {
		return e.lower(s)
	}
	return v
}

func (e *env) sortKey(v, attribute Value, sensitive bool) Value {
	if attribute != nil {
		v = e.path(v, attribute, nil)
	}
	return e.fold(v, sensitive)
}

// sortKeys are the keys for several attributes with commas. Even a single one is compared as a list of
// one, in which equal items are not ordered.
func (e *env) sortKeys(v, attribute Value, sensitive bool) Value {
	s, ok := attribute.(string)
	e.grow(16)
	if !ok {
		return tuple{e.sortKey(v, attribute, sensitive)}
	}
	var out tuple
	for p := range strings.SplitSeq(s, ",") {
		e.hold(16)
		out = append(out, e.sortKey(v, p, sensitive))
	}
	return out
}

func (e *env) sorted(items []Value, reverse bool, key func(Value) Value) []Value {
	type keyed struct{ key, v Value }
	e.grow(48 * len(items))
	all := make([]keyed, len(items))
	for i, x := range items {
		all[i] = keyed{key(x), x}
	}
	slices.SortStableFunc(all, func(a, b keyed) int {
		c := e.compare(a.key, b.key)
		if reverse {
			return -c
		}
		return c
	})
	out := make([]Value, len(all))
	for i := range all {
		out[i] = all[i].v
	}
	return out
}

func (e *env) first(v Value) Value {
	switch v := v.(type) {
	case *iterator:
		if items := e.fill(v); len(items) > 0 {
			v.items = items[1:]
			return items[0]
		}
	case string:
		if r, n := utf8.DecodeRuneInString(v); n > 0 {
			return string(r)
		}
	default:
		if items := e.items(v); len(items) > 0 {
			return items[0]
		}
	}
	return &undefined{"No first item, sequence was empty."}
}

func (e *env) last(v Value) Value {
	switch v := v.(type) {
	case *iterator:
		e.fail("'generator' object is not reversible")
	case string:
		if r, n := utf8.DecodeLastRuneInString(v); n > 0 {
			return string(r)
		}
	default:
		if items := e.items(v); len(items) > 0 {
			return items[len(items)-1]
		}
	}
	return &undefined{"No last item, sequence was empty."}
}

func length(e *env, v Value, a *args) Value {
	a.end()
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v))
	case *List:
		return int64(len(v.Items))
	case tuple:
		return int64(len(v))
	case *Dict:
		return int64(len(v.keys))
	case *view:
		return int64(len(v.items))
	case *span:
		return v.n
	case *loop:
		return int64(len(v.items))
	case *undefined:
		return int64(0)
	}
	e.fail("object of type '%s' has no len()", typeName(v))
	return nil
}

func orDefault(e *env, v Value, a *args) Value {
	none, boolean := a.next("default_value", ""), a.next("boolean", false)
	a.end()
	if _, u := v.(*undefined); u || truth(boolean) && !truth(v) {
		return none
	}
	return v
}

func mapFilter(e *env, v Value, a *args) []Value {
	var each func(x Value) Value
	if i := slices.Index(a.names, "attribute"); len(a.positional) == 0 && i >= 0 {
		attr := a.next("attribute", required)
		none := a.next("default", nil)
		a.end()
		each = func(x Value) Value { return e.path(x, attr, none) }
	} else {
		name := a.str("filter", required)
		each = func(x Value) Value { return e.filter(name, x, a.clone()) }
	}
	items := e.items(v)
	e.grow(16 * len(items))
	out := make([]Value, len(items))
	for i, x := range items {
		out[i] = each(x)
	}
	return out
}

func indent(e *env, v Value, a *args) Value {
	width, first, blank := a.next("width", int64(4)), truth(a.next("first", false)), truth(a.next("blank", false))
	a.end()
	s, ok := v.(string)
	if !ok {
		e.defined(v)
		e.fail("indent: want str, got %s", typeName(v))
	}
	by, ok := width.(string)
	if !ok {
		n, _, isInt, _ := number(width)
		if !isInt || n > maxRange {
			e.fail("indent: bad width")
		}
		by = strings.Repeat(" ", int(max(n, 0)))
	}
	e.grow(len(s) + len(by))
	lines := e.lines(s+"\n", false)
	e.grow(2 * (len(s) + len(lines)*(len(by)+16))) // the lines, and the text
	for i := range lines {
		if i > 0 && (blank || lines[i] != "") {
			lines[i] = by + lines[i]
		}
	}
	if first {
		lines[0] = by + lines[0]
	}
	return strings.Join(lines, "\n")
}

func truncate(e *env, v Value, a *args) Value {
	n, kill, end, leeway := a.int("length", int64(255)), truth(a.next("killwords", false)), a.str("end", "..."), a.int("leeway", int64(5))
	a.end()
	s, ok := v.(string)
	if _, u := v.(*undefined); !ok && !u {
		e.fail("truncate: want str, got %s", typeName(v))
	}
	e.grow(4 * len(s))
	runes := []rune(s)
	keep := n - int64(utf8.RuneCountInString(end))
	if keep < 0 || leeway < 0 || n > maxMemory || leeway > maxMemory {
		e.fail("truncate: length %d, leeway %d", n, leeway)
	}
	if int64(len(runes)) <= n+leeway {
		return v
	}
	out := string(runes[:keep])
	if i := strings.LastIndexByte(out, ' '); !kill && i >= 0 {
		out = out[:i]
	}
	return out + end
}

// words counts words; which characters are of one takes a look at tables, twice.
func (e *env) words(s string) int64 {
	e.scan(casePasses * len(s))
	n, inside := int64(0), false
	for _, r := range s {
		if isWord(r) && !inside {
			n++
		}
		inside = isWord(r)
	}
	return n
}

func toJSON(e *env, v Value, a *args) Value {
	s := &jsonStyle{ascii: truth(a.next("ensure_ascii", false)), item: ", ", key: ": "}
	indent := a.next("indent", nil)
	separators := a.next("separators", nil)
	s.sort = truth(a.next("sort_keys", false))
	a.end()
	switch by := indent.(type) {
	case nil:
	case string:
		s.lines, s.indent, s.item = true, by, ","
	default:
		n, _, isInt, _ := number(by)
		if !isInt || n > maxRange {
			e.fail("tojson: bad indent")
		}
		e.grow(int(max(n, 0)))
		s.lines, s.indent, s.item = true, strings.Repeat(" ", int(max(n, 0))), ","
	}
	if separators != nil {
		two := e.items(separators)
		if len(two) != 2 {
			e.fail("tojson: want two separators, got %d", len(two))
		}
		s.item, s.key = e.text(two[0]), e.text(two[1])
	}
	b := e.builder()
	e.json(b, v, s, 0)
	return b.String()
}

func toInt(e *env, v Value, a *args) Value {
	none, base := a.next("default", int64(0)), a.int("base", int64(10))
	a.end()
	e.defined(v)
	if s, ok := v.(string); ok {
		e.grow(2 * len(s)) // errors, which are made in vain, hold it
		s = strings.TrimFunc(s, isSpace)
		if i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", "x"), int(base), 64); err == nil && base >= 2 && base <= 36 {
			return i
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return none
		}
		v = f
	}
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return none
	case isInt:
		return i
	case math.IsNaN(f) || math.IsInf(f, 0):
		return none
	case math.Abs(f) >= 1<<62:
		e.fail("a number is too large")
	}
	return int64(f)
}

func toFloat(e *env, v Value, a *args) Value {
	none := a.next("default", 0.0)
	a.end()
	e.defined(v)
	if s, ok := v.(string); ok {
		e.grow(2 * len(s)) // as in toInt
		f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64)
		if err != nil {
			return none
		}
		return f
	}
	_, f, _, ok := number(v)
	if !ok {
		return none
	}
	return f
}

func round(e *env, v Value, a *args) Value {
	precision, method := a.int("precision", int64(0)), a.str("method", "common")
	a.end()
	e.defined(v)
	i, f, isInt, ok := number(v)
	if !ok || precision < 0 || precision > 15 {
		e.fail("round: %s with precision %d is not supported", typeName(v), precision)
	}
	p := math.Pow(10, float64(precision))
	switch {
	case method == "common" && isInt:
		return i
	case method == "common": // the nearest decimal, as it is written
		r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
		return r
	case method == "ceil":
		return math.Ceil(f*p) / p
	case method == "floor":
		return math.Floor(f*p) / p
	}
	e.fail("round: method must be common, ceil or floor")
	return nil
}
