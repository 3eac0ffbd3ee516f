package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// globals are the functions a template finds. Variables hide them.
var globals = map[string]Value{
	"range": &function{"range", func(a *args) Value {
		from, to, step := int64(0), a.int("start", required), int64(1)
		if len(a.positional) > 0 {
			from, to = to, a.int("stop", required)
			step = a.int("step", int64(1))
		}
		a.end()
		if step == 0 {
			a.fail("range() arg 3 must not be zero")
		}
		const large = 1 << 60
		if max(from, to, step) > large || min(from, to, step) < -large {
			a.fail("a number is too large")
		}
		n := (to - from + step - 1) / step
		if step < 0 {
			n = (from - to - step - 1) / -step
		}
		if n > maxRange {
			a.fail("a range of %d, want at most %d", n, maxRange)
		}
		return &span{from, to, step, max(n, 0)}
	}},
	"namespace": &function{"namespace", func(a *args) Value {
		a.hold(objectBytes)
		ns := &namespace{newDict(a)}
		for _, k := range ns.attrs.keys {
			if name, ok := k.(string); !ok || strings.HasPrefix(name, "_") {
				a.fail("a namespace keeps no attribute that begins with _ or is no name")
			}
		}
		return ns
	}},
	"dict": &function{"dict", func(a *args) Value { return newDict(a) }},
	"raise_exception": &function{"raise_exception", func(a *args) Value {
		message := a.text(a.next("message", required))
		a.end()
		throw(a.line, ErrRefused, "%v: %s", ErrRefused, message)
		return nil
	}},
	"strftime_now": &function{"strftime_now", func(a *args) Value {
		format := a.str("format", required)
		a.end()
		return a.strftime(format)
	}},
}

// newDict is dict(..): from a mapping or pairs, and names.
func newDict(a *args) *Dict {
	d := a.dict()
	if len(a.positional) > 0 {
		switch from := a.next("", nil).(type) {
		case *Dict:
			for i, k := range from.keys {
				a.put(d, k, from.values[i])
			}
		case *undefined:
			a.defined(from)
		default:
			for _, p := range a.items(from) {
				kv := a.items(p)
				if len(kv) != 2 {
					a.fail("dict: want pairs, got %d values", len(kv))
				}
				a.put(d, kv[0], kv[1])
			}
		}
	}
	if len(a.positional) > 0 {
		a.end()
	}
	for i, name := range a.names {
		a.put(d, name, a.values[i])
	}
	return d
}

func (e *env) strftime(format string) string {
	t := e.now
	if t.IsZero() {
		e.fail("the template asks for the date, and there is no clock")
	}
	b := e.builder()
	for i := 0; i < len(format); i++ {
		e.spend(1)
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format) // %-d: without a leading 0
		if bare {
			i++
		}
		var s string
		switch c := format[i]; c {
		case 'Y':
			s = strconv.Itoa(t.Year())
		case 'y':
			s = t.Format("06")
		case 'm':
			s = t.Format("01")
		case 'B':
			s = t.Format("January")
		case 'b', 'h':
			s = t.Format("Jan")
		case 'd':
			s = t.Format("02")
		case 'e':
			s = t.Format("_2")
		case 'j':
			s = t.Format("002")
		case 'A':
			s = t.Format("Monday")
		case 'a':
			s = t.Format("Mon")
		case 'u':
			s = strconv.Itoa((int(t.Weekday())+6)%7 + 1)
		case 'w':
			s = strconv.Itoa(int(t.Weekday()))
		case 'H':
			s = t.Format("15")
		case 'I':
			s = t.Format("03")
		case 'M':
			s = t.Format("04")
		case 'S':
			s = t.Format("05")
		case 'p':
			s = t.Format("PM")
		case 'f':
			s = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case 'F':
			s = t.Format("2006-01-02")
		case 'T', 'X':
			s = t.Format("15:04:05")
		case 'R':
			s = t.Format("15:04")
		case 'D', 'x':
			s = t.Format("01/02/06")
		case 'c':
			s = t.Format("Mon Jan _2 15:04:05 2006")
		case 'z', 'Z': // the reference's time has no zone
		case '%':
			s = "%"
		case 'n':
			s = "\n"
		case 't':
			s = "\t"
		default:
			e.fail("strftime_now: %%%c is not supported", c)
		}
		if bare && len(s) > 1 {
			s = strings.TrimLeft(s[:len(s)-1], "0 ") + s[len(s)-1:]
		}
		b.WriteString(s)
	}
	return b.String()
}

// attributes that objects of a type have in Python; those not implemented are errors, not undefined.
var (
	stringMethods = strings.Fields("capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill")
	unsafeMethods = map[string][]string{
		"dict": {"clear", "pop", "popitem", "setdefault", "update"},
		"list": {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"},
	}
	otherMethods = map[string][]string{
		"int": {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag", "numerator", "real", "to_bytes"}, "dict": {"fromkeys"},
		"float": {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"},
	}
)

// attribute is getattr(v, name), without items; false if v has none of that name.
func (e *env) attribute(v Value, name string) (Value, bool) {
	kind := typeName(v)
	if slices.Contains(unsafeMethods[kind], name) || strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
		return e.undefined("access to attribute '%s' of '%s' object is unsafe", name, kind), true
	}
	method := func(f func(a *args) Value) (Value, bool) {
		e.hold(methodBytes)
		return &function{name, func(a *args) Value {
			return e.charged(constantMethods, name, v, a, func() Value { return f(a) })
		}}, true
	}
	switch v := v.(type) {
	case *loop:
		return v.attribute(e, name)
	case *namespace:
		return v.attrs.Get(name)
	case *macroValue:
		if name == "name" {
			return v.name, true
		}
	case string:
		if f, ok := methods[name]; ok {
			return method(func(a *args) Value {
				out := f(a, v)
				a.end()
				return out
			})
		}
		if slices.Contains(stringMethods, name) {
			e.fail("the method %q of str is not supported", name)
		}
	case *Dict:
		switch name {
		case "get":
			return method(func(a *args) Value {
				key := a.next("key", required)
				none := a.next("default", nil)
				a.end()
				if i, ok := v.index[e.hash(key)]; ok {
					return v.values[i]
				}
				return none
			})
		case "items", "keys", "values":
			return method(func(a *args) Value {
				a.end()
				e.hold(2 * objectBytes)
				if name == "keys" {
					return &view{"dict_keys", v.keys}
				}
				if name == "values" {
					return &view{"dict_values", v.values}
				}
				return &view{"dict_items", e.pairs(v)}
			})
		case "copy":
			return method(func(a *args) Value {
				a.end()
				return newDict(&args{env: e, positional: []Value{v}})
			})
		}
	case *List, tuple:
		items := e.items(v)
		switch name {
		case "count":
			return method(func(a *args) Value {
				x := a.next("value", required)
				a.end()
				n := int64(0)
				for _, y := range items {
					if e.equal(x, y) {
						n++
					}
				}
				return n
			})
		case "index":
			return method(func(a *args) Value {
				x := a.next("value", required)
				a.end()
				for i, y := range items {
					if e.equal(x, y) {
						return int64(i)
					}
				}
				e.fail("the value is not in the list")
				return nil
			})
		case "copy":
			if l, ok := v.(*List); ok {
				return method(func(a *args) Value { a.end(); return l })
			}
		}
	}
	if slices.Contains(otherMethods[kind], name) {
		e.fail("the attribute %q of %s is not supported", name, kind)
	}
	return nil, false
}

func (e *env) pairs(d *Dict) []Value {
	e.grow((2*objectBytes + 16) * len(d.keys))
	out := make([]Value, len(d.keys))
	for i, k := range d.keys {
		out[i] = tuple{k, d.values[i]}
	}
	return out
}

// methods are the methods of strings.
var methods map[string]func(a *args, s string) Value

func init() {
	is := func(ok func(r rune) bool) func(a *args, s string) Value {
		return func(a *args, s string) Value {
			return s != "" && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
		}
	}
	affix := func(has func(s, x string) bool) func(a *args, s string) Value {
		return func(a *args, s string) Value {
			x := a.next("prefix", required)
			s = a.part(s)
			if t, ok := x.(tuple); ok {
				return slices.ContainsFunc(t, func(x Value) bool {
					p, ok := x.(string)
					a.scan(len(p))
					return ok && has(s, p)
				})
			}
			p, ok := x.(string)
			if !ok {
				a.defined(x)
				a.fail("%s: want str or a tuple of str, got %s", a.what, typeName(x))
			}
			return has(s, p)
		}
	}
	find := func(index func(s, x string) int, must bool) func(a *args, s string) Value {
		return func(a *args, s string) Value {
			x := a.str("sub", required)
			if len(a.positional) > 0 {
				a.fail("%s: start and end are not supported", a.what)
			}
			i := index(s, x)
			if i < 0 && must {
				a.fail("substring not found")
			}
			if i < 0 {
				return int64(-1)
			}
			return int64(utf8.RuneCountInString(s[:i]))
		}
	}
	pad := func(left func(free, width int) int) func(a *args, s string) Value {
		return func(a *args, s string) Value {
			width := a.int("width", required)
			fill := a.str("fillchar", " ")
			if utf8.RuneCountInString(fill) != 1 {
				a.fail("%s: the fill character must be exactly one character long", a.what)
			}
			free := min(width, maxMemory) - int64(utf8.RuneCountInString(s))
			if free <= 0 {
				return s
			}
			a.grow(int(free) * len(fill)) // besides what is returned
			before := left(int(free), int(width))
			return strings.Repeat(fill, before) + s + strings.Repeat(fill, int(free)-before)
		}
	}
	partition := func(index func(s, x string) int, last bool) func(a *args, s string) Value {
		return func(a *args, s string) Value {
			sep := a.str("sep", required)
			if sep == "" {
				a.fail("empty separator")
			}
			if i := index(s, sep); i >= 0 {
				return tuple{s[:i], sep, s[i+len(sep):]}
			}
			if last {
				return tuple{"", "", s}
			}
			return tuple{s, "", ""}
		}
	}
	methods = map[string]func(a *args, s string) Value{
		"strip":        func(a *args, s string) Value { return strip(a, s, true, true) },
		"lstrip":       func(a *args, s string) Value { return strip(a, s, true, false) },
		"rstrip":       func(a *args, s string) Value { return strip(a, s, false, true) },
		"split":        func(a *args, s string) Value { return split(a, s, false) },
		"rsplit":       func(a *args, s string) Value { return split(a, s, true) },
		"upper":        func(a *args, s string) Value { return a.upper(s) },
		"lower":        func(a *args, s string) Value { return a.lower(s) },
		"capitalize":   func(a *args, s string) Value { return a.capitalize(s) },
		"startswith":   affix(strings.HasPrefix),
		"endswith":     affix(strings.HasSuffix),
		"find":         find(strings.Index, false),
		"rfind":        find(strings.LastIndex, false),
		"index":        find(strings.Index, true),
		"rindex":       find(strings.LastIndex, true),
		"isdigit":      is(func(r rune) bool { return unicode.IsDigit(r) || unicode.Is(superscript, r) }),
		"isdecimal":    is(unicode.IsDigit),
		"isnumeric":    is(unicode.IsNumber),
		"isalpha":      is(unicode.IsLetter),
		"isalnum":      is(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isspace":      is(isSpace),
		"isupper":      func(a *args, s string) Value { return s != a.lower(s) && s == a.upper(s) },
		"islower":      func(a *args, s string) Value { return s != a.upper(s) && s == a.lower(s) },
		"ljust":        pad(func(free, _ int) int { return 0 }),
		"rjust":        pad(func(free, _ int) int { return free }),
		"center":       pad(func(free, width int) int { return free/2 + free&width&1 }),
		"partition":    partition(strings.Index, false),
		"rpartition":   partition(strings.LastIndex, true),
		"removeprefix": func(a *args, s string) Value { return strings.TrimPrefix(s, a.str("prefix", required)) },
		"removesuffix": func(a *args, s string) Value { return strings.TrimSuffix(s, a.str("suffix", required)) },
		"title":        func(a *args, s string) Value { return a.title(s) },
		"splitlines": func(a *args, s string) Value {
			return a.texts(a.lines(s, truth(a.next("keepends", false))))
		},
		"replace": func(a *args, s string) Value {
			old, with, n := a.str("old", required), a.str("new", required), a.int("count", int64(-1))
			return a.replace(s, old, with, n)
		},
		"count": func(a *args, s string) Value {
			x := a.str("sub", required)
			s = a.part(s)
			return int64(strings.Count(s, x))
		},
		"join": func(a *args, s string) Value {
			items := a.items(a.next("iterable", required))
			a.grow(16 * len(items))
			parts := make([]string, len(items))
			for i, x := range items {
				p, ok := x.(string)
				if !ok {
					a.fail("sequence item %d: expected str instance, %s found", i, typeName(x))
				}
				parts[i] = p
			}
			return a.join(parts, s)
		},
		"zfill": func(a *args, s string) Value {
			free := min(a.int("width", required), maxMemory) - int64(utf8.RuneCountInString(s))
			if free <= 0 {
				return s
			}
			a.grow(int(free))
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign, s = s[:1], s[1:]
			}
			return sign + strings.Repeat("0", int(free)) + s
		},
		"format": format,
	}
}

// superscript are the digits that are no decimal ones.
var superscript = &unicode.RangeTable{R16: []unicode.Range16{{0xb2, 0xb3, 1}, {0xb9, 0xb9, 1}, {0x1369, 0x1371, 1}, {0x19da, 0x19da, 1}, {0x2070, 0x2070, 1}, {0x2074, 0x2079, 1}, {0x2080, 0x2089, 1}, {0x2460, 0x2468, 1}, {0x2474, 0x247c, 1}, {0x2488, 0x2490, 1}, {0x24ea, 0x24ea, 1}, {0x24f5, 0x24fd, 1}, {0x24ff, 0x24ff, 1}, {0x2776, 0x277e, 1}, {0x2780, 0x2788, 1}, {0x278a, 0x2792, 1}}}

// part is s[start:end] of the arguments start and end.
func (a *args) part(s string) string {
	if len(a.positional) == 0 {
		return s
	}
	from, to := a.next("start", nil), a.next("end", nil)
	v, _ := a.item(s, slice{from, to, nil})
	return v.(string)
}

// texts is a list of strings.
func (e *env) texts(parts []string) *List {
	e.grow(objectBytes * len(parts))
	out := make([]Value, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return &List{out}
}

func (e *env) join(parts []string, sep string) string {
	n := 0
	for _, p := range parts {
		e.spend(1)
		if n += len(p) + len(sep); n > maxMemory {
			e.exceeded("a text is too long")
		}
	}
	e.grow(n)
	return strings.Join(parts, sep)
}

func (e *env) replace(s, old, with string, n int64) string {
	e.scan(len(s))
	count := int64(strings.Count(s, old))
	if n >= 0 {
		count = min(count, n)
	}
	e.scan(len(old) + len(with))
	if size := int64(len(s)) + count*int64(len(with)-len(old)); size > maxMemory {
		e.exceeded("a text is too long")
	} else {
		e.grow(int(size))
	}
	return strings.Replace(s, old, with, int(count))
}

func strip(a *args, s string, left, right bool) string {
	in := func(r rune) bool { a.scan(4); return isSpace(r) }
	if v := a.next("chars", nil); v != nil {
		chars, ok := v.(string)
		if !ok {
			a.defined(v)
			a.fail("%s arg must be None or str", a.what)
		}
		in = func(r rune) bool { a.scan(len(chars) + 4); return strings.ContainsRune(chars, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return s
}

// split is split or, from the right, rsplit of Python.
func split(a *args, s string, right bool) Value {
	sep, n := a.next("sep", nil), a.int("maxsplit", int64(-1))
	if n < 0 {
		n = math.MaxInt64
	}
	var parts []string
	cut := func(i, width int) { // takes a part off
		if right {
			parts, s = append(parts, s[i+width:]), s[:i]
		} else {
			parts, s = append(parts, s[:i]), s[i+width:]
		}
		a.hold(objectBytes)
		a.spend(1)
	}
	switch sep := sep.(type) {
	case nil:
		for {
			if right {
				s = strings.TrimRightFunc(s, isSpace)
			} else {
				s = strings.TrimLeftFunc(s, isSpace)
			}
			if s == "" {
				break
			}
			i, width := -1, 0
			if n > 0 && right {
				if i = strings.LastIndexFunc(s, isSpace); i >= 0 {
					_, width = utf8.DecodeRuneInString(s[i:])
				}
			} else if n > 0 {
				i = strings.IndexFunc(s, isSpace)
			}
			if n--; i < 0 {
				parts = append(parts, s)
				break
			}
			cut(i, width)
		}
	case string:
		if sep == "" {
			a.fail("empty separator")
		}
		for ; n > 0; n-- {
			i := -1
			if right {
				i = strings.LastIndex(s, sep)
			} else {
				i = strings.Index(s, sep)
			}
			if i < 0 {
				break
			}
			cut(i, len(sep))
		}
		parts = append(parts, s)
	default:
		a.defined(sep)
		a.fail("%s: sep must be str or None, not %s", a.what, typeName(sep))
	}
	if right {
		slices.Reverse(parts)
	}
	return a.texts(parts)
}

// lines is splitlines of Python.
func (e *env) lines(s string, keep bool) []string {
	ends := func(r rune) bool {
		return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
	}
	var out []string
	for s != "" {
		e.hold(objectBytes)
		e.spend(1)
		i := strings.IndexFunc(s, ends)
		if i < 0 {
			return append(out, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		if keep {
			out = append(out, s[:i+n])
		} else {
			out = append(out, s[:i])
		}
		s = s[i+n:]
	}
	return out
}

// Case is decided character by character, by tables: a pass takes as long as several others.
const casePasses = 4

// cased charges a change of case: the time, and the new text.
func (e *env) cased(s string, change func(string) string) string {
	e.scan(casePasses * len(s))
	e.grow(len(s))
	out := change(s)
	e.hold(max(0, len(out)-len(s)))
	return out
}

func (e *env) upper(s string) string      { return e.cased(s, upper) }
func (e *env) lower(s string) string      { return e.cased(s, lower) }
func (e *env) capitalize(s string) string { return e.cased(s, capitalize) }

// title takes a look at a table, and a text of its own, for each word.
func (e *env) title(s string) string {
	e.scan(2 * casePasses * len(s))
	return e.cased(s, title)
}

// upper maps as Unicode does without a language; of characters that become several, the common ones.
func upper(s string) string {
	if !strings.ContainsAny(s, "ßŉﬀﬁﬂﬃﬄﬅﬆ") {
		return strings.ToUpper(s)
	}
	var b strings.Builder
	for _, r := range s {
		if several, ok := severalUpper[r]; ok {
			b.WriteString(several)
		} else {
			b.WriteRune(unicode.ToUpper(r))
		}
	}
	return b.String()
}

// Characters that become several, all of them large, or the first.
var (
	severalUpper = map[rune]string{'ß': "SS", 'ŉ': "ʼN", 'ﬀ': "FF", 'ﬁ': "FI", 'ﬂ': "FL", 'ﬃ': "FFI", 'ﬄ': "FFL", 'ﬅ': "ST", 'ﬆ': "ST"}
	severalTitle = map[rune]string{'ß': "Ss", 'ŉ': "ʼN", 'ﬀ': "Ff", 'ﬁ': "Fi", 'ﬂ': "Fl", 'ﬃ': "Ffi", 'ﬄ': "Ffl", 'ﬅ': "St", 'ﬆ': "St"}
)

func lower(s string) string {
	if !strings.ContainsAny(s, "İΣ") {
		return strings.ToLower(s)
	}
	// A sigma at the end of a word has a form of its own.
	var b strings.Builder
	inside := false
	for i, r := range s {
		next, _ := utf8.DecodeRuneInString(s[i+utf8.RuneLen(r):])
		switch {
		case r == 'İ':
			b.WriteString("i\u0307")
		case r == 'Σ' && inside && !unicode.IsLetter(next):
			b.WriteRune('ς')
		default:
			b.WriteRune(unicode.ToLower(r))
		}
		inside = unicode.IsLetter(r)
	}
	return b.String()
}

func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return titleCase(r) + lower(s[n:])
}

func titleCase(r rune) string {
	if several, ok := severalTitle[r]; ok {
		return several
	}
	return string(unicode.ToTitle(r))
}

// title is str.title: a letter after something else is large.
func title(s string) string {
	var b strings.Builder
	inside := false
	for _, r := range s {
		if inside {
			b.WriteRune(unicode.ToLower(r))
		} else {
			b.WriteString(titleCase(r))
		}
		inside = unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
	}
	return b.String()
}

// format is str.format with names and positions.
func format(a *args, s string) Value {
	b := a.builder()
	b.most = maxMemory
	position := 0
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		brace := s[i]
		if s = s[i+1:]; s != "" && s[0] == brace {
			b.WriteByte(brace)
			s = s[1:]
			continue
		}
		field, rest, ok := strings.Cut(s, "}")
		if brace == '}' || !ok {
			a.fail("a single %q in a format string", brace)
		}
		s = rest
		a.spend(1 + len(a.names)/8)
		if strings.ContainsAny(field, ".[!:{") {
			a.fail("format: the field {%s} is not supported", field)
		}
		n, err := strconv.Atoi(field)
		if field == "" {
			n, err = position, nil
			position++
		}
		v := Value(required)
		if err == nil && n >= 0 && n < len(a.positional) {
			v = a.positional[n]
		} else if j := slices.Index(a.names, field); err != nil && j >= 0 {
			v = a.values[j]
		}
		if v == Value(required) {
			a.fail("format: no argument for {%s}", field)
		}
		b.WriteString(a.text(v))
	}
	b.WriteString(s)
	a.positional, a.names = nil, nil
	return b.String()
}

// percent is format % v of Python.
func (e *env) percent(format string, v Value) string {
	b := e.builder()
	b.most = maxMemory
	values, isTuple := v.(tuple)
	if !isTuple {
		values = tuple{v}
	}
	used := 0
	next := func() Value {
		if used == len(values) {
			e.fail("not enough arguments for format string")
		}
		used++
		return values[used-1]
	}
	for {
		before, rest, ok := strings.Cut(format, "%")
		b.WriteString(before)
		if !ok {
			break
		}
		e.spend(8)
		var arg Value
		named := false
		if strings.HasPrefix(rest, "(") {
			name, after, ok := strings.Cut(rest[1:], ")")
			d, isDict := v.(*Dict)
			if !ok || !isDict {
				e.fail("format requires a mapping")
			}
			e.scan(len(name))
			if arg, ok = d.Get(name); !ok {
				e.fail("format: no key %q", name)
			}
			rest, named = after, true
		}
		n := strings.IndexFunc(rest, func(r rune) bool { return !strings.ContainsRune("-+ #0.123456789", r) })
		if n < 0 || n > 8 {
			e.fail("incomplete format")
		}
		flags, verb := rest[:n], rest[n]
		format = rest[n+1:]
		if verb == '%' {
			b.WriteByte('%')
			continue
		}
		if !named {
			arg = next()
		}
		width, precision, _ := strings.Cut(strings.TrimLeft(flags, "-+ #0"), ".")
		if len(width) > 3 || len(precision) > 3 {
			e.fail("format: %q is too wide", flags)
		}
		var text string
		switch verb {
		case 's':
			text = e.text(arg)
			e.hold(len(text))
			text = fmt.Sprintf("%"+strings.NewReplacer("0", "0", "+", "", " ", "", "#", "").Replace(flags)+"s", text)
		case 'r':
			q := e.builder()
			e.repr(q, arg, 0)
			text = fmt.Sprintf("%"+flags+"s", q.String())
		case 'd', 'i', 'x', 'X', 'o':
			i, f, isInt, ok := number(arg)
			if !ok {
				e.defined(arg)
				e.fail("%%%c format: a number is required, not %s", verb, typeName(arg))
			}
			if !isInt {
				i = int64(f)
			}
			if verb == 'i' {
				verb = 'd'
			}
			text = fmt.Sprintf("%"+flags+string(verb), i)
		case 'f', 'F', 'e', 'E', 'g', 'G':
			_, f, _, ok := number(arg)
			if !ok {
				e.defined(arg)
				e.fail("must be real number, not %s", typeName(arg))
			}
			if (verb == 'g' || verb == 'G') && precision == "" {
				e.fail("format: %%%c without a precision is not supported", verb)
			}
			text = fmt.Sprintf("%"+flags+string(verb), f)
		default:
			e.fail("unsupported format character %q", verb)
		}
		b.WriteString(text)
	}
	switch v.(type) { // what has items may be left unused
	case *Dict, *List, *span, *undefined:
	default:
		if used < len(values) {
			e.fail("not all arguments converted during string formatting")
		}
	}
	return b.String()
}
