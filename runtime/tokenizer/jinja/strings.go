package jinja

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A method is a method of strings. It takes its arguments from args; what is left there is an
// error. Texts are UTF-8 here and sequences of characters in Python, so positions and widths count
// characters.
type method func(args *callArgs, text string) Value

// methods are the methods of strings, by name. Python's other methods are errors; see
// stringMethods.
var methods = map[string]method{
	"capitalize":   func(args *callArgs, text string) Value { return args.capitalize(text) },
	"center":       pad(func(free, width int) int { return free/2 + free&width&1 }),
	"count":        countPart,
	"endswith":     affix(strings.HasSuffix),
	"find":         find(strings.Index, false),
	"format":       format,
	"index":        find(strings.Index, true),
	"isalnum":      every(func(char rune) bool { return unicode.IsLetter(char) || unicode.IsNumber(char) }),
	"isalpha":      every(unicode.IsLetter),
	"isdecimal":    every(unicode.IsDigit),
	"isdigit":      every(func(char rune) bool { return unicode.IsDigit(char) || unicode.Is(otherDigits, char) }),
	"islower":      func(args *callArgs, text string) Value { return args.isCased(text, lower, upper) },
	"isnumeric":    every(unicode.IsNumber),
	"isspace":      every(isSpace),
	"isupper":      func(args *callArgs, text string) Value { return args.isCased(text, upper, lower) },
	"join":         joinMethod,
	"ljust":        pad(func(free, _ int) int { return 0 }),
	"lower":        func(args *callArgs, text string) Value { return args.lower(text) },
	"lstrip":       func(args *callArgs, text string) Value { return strip(args, text, true, false) },
	"partition":    partition(strings.Index, false),
	"removeprefix": remove("prefix", strings.TrimPrefix),
	"removesuffix": remove("suffix", strings.TrimSuffix),
	"replace": func(args *callArgs, text string) Value {
		old, with, count := args.str("old", required), args.str("new", required), args.int("count", int64(-1))
		return args.replace(text, old, with, count)
	},
	"rfind":      find(strings.LastIndex, false),
	"rindex":     find(strings.LastIndex, true),
	"rjust":      pad(func(free, _ int) int { return free }),
	"rpartition": partition(strings.LastIndex, true),
	"rsplit":     func(args *callArgs, text string) Value { return split(args, text, true) },
	"rstrip":     func(args *callArgs, text string) Value { return strip(args, text, false, true) },
	"split":      func(args *callArgs, text string) Value { return split(args, text, false) },
	"splitlines": func(args *callArgs, text string) Value {
		return args.texts(args.lines(text, args.flag("keepends")))
	},
	"startswith": affix(strings.HasPrefix),
	"strip":      func(args *callArgs, text string) Value { return strip(args, text, true, true) },
	"title":      func(args *callArgs, text string) Value { return args.title(text) },
	"upper":      func(args *callArgs, text string) Value { return args.upper(text) },
	"zfill":      fillZeros,
}

// otherDigits are the digits that are no decimal ones: superscript, subscript, circled and the like.
var otherDigits = &unicode.RangeTable{R16: []unicode.Range16{
	{0xb2, 0xb3, 1}, {0xb9, 0xb9, 1}, {0x1369, 0x1371, 1}, {0x19da, 0x19da, 1}, {0x2070, 0x2070, 1}, {0x2074, 0x2079, 1},
	{0x2080, 0x2089, 1}, {0x2460, 0x2468, 1}, {0x2474, 0x247c, 1}, {0x2488, 0x2490, 1}, {0x24ea, 0x24ea, 1},
	{0x24f5, 0x24fd, 1}, {0x24ff, 0x24ff, 1}, {0x2776, 0x277e, 1}, {0x2780, 0x2788, 1}, {0x278a, 0x2792, 1},
}}

// every makes the method that asks whether a text has characters, all of which fit.
func every(fits func(char rune) bool) method {
	return func(_ *callArgs, text string) Value {
		return text != "" && strings.IndexFunc(text, func(char rune) bool { return !fits(char) }) < 0
	}
}

// affix makes startswith and endswith, which take one text or a tuple of texts.
func affix(has func(text, part string) bool) method {
	return func(args *callArgs, text string) Value {
		wanted := args.next("prefix", required)
		// start and end, which may follow, cut the text first.
		text = args.part(text)
		if several, ok := wanted.(tuple); ok {
			return slices.ContainsFunc(several, func(item Value) bool {
				part, ok := item.(string)
				args.scan(len(part))
				return ok && has(text, part)
			})
		}
		part, ok := wanted.(string)
		if !ok {
			args.defined(wanted)
			args.fail("%s: want str or a tuple of str, got %s", args.what, typeName(wanted))
		}
		return has(text, part)
	}
}

// find makes the methods that return the position of a part. A missing part gives -1 or, with must,
// an error.
func find(index func(text, part string) int, must bool) method {
	return func(args *callArgs, text string) Value {
		part := args.str("sub", required)
		if len(args.positional) > 0 {
			args.fail("%s: start and end are not supported", args.what)
		}
		i := index(text, part)
		switch {
		case i >= 0:
			return int64(utf8.RuneCountInString(text[:i]))
		case must:
			args.fail("substring not found")
		}
		return int64(-1)
	}
}

// pad makes the methods that fill a text up to a width; left says how much of the free space goes
// before the text.
func pad(left func(free, width int) int) method {
	return func(args *callArgs, text string) Value {
		width, fill := args.int("width", required), args.str("fillchar", " ")
		if utf8.RuneCountInString(fill) != 1 {
			args.fail("%s: the fill character must be exactly one character long", args.what)
		}
		free := int(min(width, maxMemory)) - utf8.RuneCountInString(text)
		if free <= 0 {
			return text
		}
		args.allocateValue(free * len(fill)) // besides what is returned
		before := left(free, int(width))
		return strings.Repeat(fill, before) + text + strings.Repeat(fill, free-before)
	}
}

// partition makes the methods that cut a text in three at a separator; last says on which side a
// text without one goes.
func partition(index func(text, part string) int, last bool) method {
	return func(args *callArgs, text string) Value {
		separator := args.str("sep", required)
		if separator == "" {
			args.fail("empty separator")
		}
		if i := index(text, separator); i >= 0 {
			return tuple{text[:i], separator, text[i+len(separator):]}
		}
		if last {
			return tuple{"", "", text}
		}
		return tuple{text, "", ""}
	}
}

// remove makes removeprefix and removesuffix.
func remove(argument string, trim func(text, part string) string) method {
	return func(args *callArgs, text string) Value { return trim(text, args.str(argument, required)) }
}

// countPart counts occurrences that do not overlap, in all of a text or from start to end.
func countPart(args *callArgs, text string) Value {
	part := args.str("sub", required)
	return int64(strings.Count(args.part(text), part))
}

// joinMethod joins items that must be texts, unlike the filter.
func joinMethod(args *callArgs, text string) Value {
	items := args.items(args.next("iterable", required))
	args.allocateValue(16 * len(items))
	parts := make([]string, len(items))
	for i, item := range items {
		part, ok := item.(string)
		if !ok {
			args.fail("sequence item %d: expected str instance, %s found", i, typeName(item))
		}
		parts[i] = part
	}
	return args.join(parts, text)
}

// fillZeros puts zeros in front, but after a sign.
func fillZeros(args *callArgs, text string) Value {
	free := int(min(args.int("width", required), maxMemory)) - utf8.RuneCountInString(text)
	if free <= 0 {
		return text
	}
	args.allocateValue(free)
	sign := ""
	if text != "" && (text[0] == '-' || text[0] == '+') {
		sign, text = text[:1], text[1:]
	}
	return sign + strings.Repeat("0", free) + text
}

// part is text[start:end] of the arguments start and end.
func (a *callArgs) part(text string) string {
	if len(a.positional) == 0 {
		return text
	}
	from, to := a.next("start", nil), a.next("end", nil)
	out, _ := a.subscript(text, sliceBounds{from, to, nil})
	return out.(string)
}

// texts returns a list of strings.
func (e *environment) texts(parts []string) *List {
	e.allocateValue(objectBytes * len(parts))
	out := make([]Value, len(parts))
	for i, part := range parts {
		out[i] = part
	}
	return &List{out}
}

// join concatenates parts, charged before the text is made.
func (e *environment) join(parts []string, separator string) string {
	size := 0
	for _, part := range parts {
		e.spend(1)
		if size += len(part) + len(separator); size > maxMemory {
			e.exceeded("a text is too long")
		}
	}
	e.allocateValue(size)
	return strings.Join(parts, separator)
}

// replace replaces up to most occurrences, or all if most is negative.
func (e *environment) replace(text, old, with string, most int64) string {
	e.scan(len(text))
	count := int64(strings.Count(text, old))
	if most >= 0 {
		count = min(count, most)
	}
	e.scan(len(old) + len(with))
	// The size of the result follows from the number of occurrences, so that it is charged before it is made.
	size := int64(len(text)) + count*int64(len(with)-len(old))
	if size > maxMemory {
		e.exceeded("a text is too long")
	}
	e.allocateValue(int(size))
	return strings.Replace(text, old, with, int(count))
}

// strip removes white space, or the characters of the argument, from the ends of a text.
func strip(args *callArgs, text string, left, right bool) string {
	removed := func(char rune) bool {
		args.scan(4)
		return isSpace(char)
	}
	if value := args.next("chars", nil); value != nil {
		chars, ok := value.(string)
		if !ok {
			args.defined(value)
			args.fail("%s arg must be None or str", args.what)
		}
		removed = func(char rune) bool {
			args.scan(len(chars) + 4)
			return strings.ContainsRune(chars, char)
		}
	}
	if left {
		text = strings.TrimLeftFunc(text, removed)
	}
	if right {
		text = strings.TrimRightFunc(text, removed)
	}
	return text
}

// splitting takes parts off one end of a text. From the right they come in reverse order, which
// split undoes.
type splitting struct {
	args  *callArgs
	rest  string
	right bool // the end, and the parts are in reverse
	parts []string
}

// cut takes off the part up to a separator of width bytes at position at.
func (s *splitting) cut(at, width int) {
	before, after := s.rest[:at], s.rest[at+width:]
	if s.right {
		before, after = after, before
	}
	s.parts, s.rest = append(s.parts, before), after
	s.args.allocate(objectBytes)
	s.args.spend(1)
}

// split is split or, from the right, rsplit of Python.
func split(args *callArgs, text string, right bool) Value {
	separator, most := args.next("sep", nil), args.int("maxsplit", int64(-1))
	if most < 0 {
		most = math.MaxInt64
	}
	rest := &splitting{args: args, rest: text, right: right}
	switch separator := separator.(type) {
	case nil:
		rest.atSpace(most)
	case string:
		rest.at(separator, most)
	default:
		args.defined(separator)
		args.fail("%s: sep must be str or None, not %s", args.what, typeName(separator))
	}
	if right {
		slices.Reverse(rest.parts)
	}
	return args.texts(rest.parts)
}

// atSpace splits at runs of white space, and ignores white space at the ends.
func (s *splitting) atSpace(most int64) {
	for ; ; most-- {
		if s.right {
			s.rest = strings.TrimRightFunc(s.rest, isSpace)
		} else {
			s.rest = strings.TrimLeftFunc(s.rest, isSpace)
		}
		if s.rest == "" {
			return
		}
		at := -1
		switch {
		case most <= 0:
		case s.right:
			at = strings.LastIndexFunc(s.rest, isSpace)
		default:
			at = strings.IndexFunc(s.rest, isSpace)
		}
		if at < 0 {
			s.parts = append(s.parts, s.rest)
			return
		}
		width := 0 // the white space goes when the next part is taken
		if s.right {
			_, width = utf8.DecodeRuneInString(s.rest[at:])
		}
		s.cut(at, width)
	}
}

// at splits at a separator; two in a row enclose an empty part.
func (s *splitting) at(separator string, most int64) {
	if separator == "" {
		s.args.fail("empty separator")
	}
	index := strings.Index
	if s.right {
		index = strings.LastIndex
	}
	for ; most > 0; most-- {
		at := index(s.rest, separator)
		if at < 0 {
			break
		}
		s.cut(at, len(separator))
	}
	s.parts = append(s.parts, s.rest)
}

// lines is splitlines of Python.
func (e *environment) lines(text string, keepEnds bool) []string {
	ends := func(char rune) bool {
		return char >= '\n' && char <= '\r' || char >= 0x1c && char <= 0x1e ||
			char == 0x85 || char == 0x2028 || char == 0x2029
	}
	var out []string
	for text != "" {
		e.allocate(objectBytes)
		e.spend(1)
		at := strings.IndexFunc(text, ends)
		if at < 0 {
			return append(out, text)
		}
		_, width := utf8.DecodeRuneInString(text[at:])
		if strings.HasPrefix(text[at:], "\r\n") {
			width = 2
		}
		kept := at
		if keepEnds {
			kept += width
		}
		out, text = append(out, text[:kept]), text[at+width:]
	}
	return out
}

// casePasses is the cost of a pass that changes case, relative to a plain one: each character is
// looked up in tables.
const casePasses = 4

// cased changes the case of a text and charges time and memory.
func (e *environment) cased(text string, change func(string) string) string {
	e.scan(casePasses * len(text))
	e.allocateValue(len(text))
	out := change(text)
	e.allocate(max(0, len(out)-len(text)))
	return out
}

// isCased reports whether a text is unchanged by to and changed by other, so that it has letters
// and all are of one case.
func (e *environment) isCased(text string, to, other func(string) string) bool {
	return text != e.cased(text, other) && text == e.cased(text, to)
}

// upper, lower and capitalize are the methods of that name, charged.
func (e *environment) upper(text string) string      { return e.cased(text, upper) }
func (e *environment) lower(text string) string      { return e.cased(text, lower) }
func (e *environment) capitalize(text string) string { return e.cased(text, capitalize) }

// title charges a table look-up for each character, and one for each word.
func (e *environment) title(text string) string {
	e.scan(2 * casePasses * len(text))
	return e.cased(text, title)
}

// Characters that become several, all of them large, or only the first.
var (
	severalUpper = map[rune]string{
		'ß': "SS", 'ŉ': "ʼN", 'ﬀ': "FF", 'ﬁ': "FI", 'ﬂ': "FL", 'ﬃ': "FFI", 'ﬄ': "FFL", 'ﬅ': "ST", 'ﬆ': "ST",
	}
	severalTitle = map[rune]string{
		'ß': "Ss", 'ŉ': "ʼN", 'ﬀ': "Ff", 'ﬁ': "Fi", 'ﬂ': "Fl", 'ﬃ': "Ffi", 'ﬄ': "Ffl", 'ﬅ': "St", 'ﬆ': "St",
	}
)

// upper maps to upper case without regard to language. Characters that become several are limited
// to the common ones.
func upper(text string) string {
	if !strings.ContainsAny(text, "ßŉﬀﬁﬂﬃﬄﬅﬆ") {
		return strings.ToUpper(text)
	}
	var out strings.Builder
	for _, char := range text {
		if several, ok := severalUpper[char]; ok {
			out.WriteString(several)
		} else {
			out.WriteRune(unicode.ToUpper(char))
		}
	}
	return out.String()
}

// lower maps to lower case.
func lower(text string) string {
	if !strings.ContainsAny(text, "İΣ") {
		return strings.ToLower(text)
	}
	var out strings.Builder
	for at, char := range text {
		writeLower(&out, text, at, char)
	}
	return out.String()
}

// writeLower writes a character of a text in lower case. Two characters are special: İ becomes two, and Σ has another
// form at the end of a word.
func writeLower(out *strings.Builder, text string, at int, char rune) {
	switch {
	case char == 'İ':
		out.WriteString("i\u0307")
	case char == 'Σ' && endsWord(text[:at], text[at+len("Σ"):]):
		out.WriteRune('ς')
	default:
		out.WriteRune(unicode.ToLower(char))
	}
}

// endsWord reports whether a letter between two texts ends a word: behind a letter with case, and not before one.
// Marks, and signs that occur in words, do not count.
func endsWord(before, after string) bool {
	before, after = strings.TrimRightFunc(before, ignoresCase), strings.TrimLeftFunc(after, ignoresCase)
	last, _ := utf8.DecodeLastRuneInString(before)
	first, _ := utf8.DecodeRuneInString(after)
	return hasCase(last) && !hasCase(first)
}

// hasCase reports whether a character is a letter of upper, lower or title case.
func hasCase(char rune) bool {
	return unicode.IsUpper(char) || unicode.IsLower(char) || unicode.IsTitle(char)
}

// ignoresCase reports whether a character has the property Case_Ignorable.
func ignoresCase(char rune) bool {
	return unicode.In(char, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) ||
		strings.ContainsRune("'.:·՟״‘’․‧︓﹒﹕＇．：", char)
}

// capitalize is str.capitalize: the first letter in title case, all others small.
func capitalize(text string) string {
	char, width := utf8.DecodeRuneInString(text)
	if width == 0 {
		return text
	}
	var out strings.Builder
	out.WriteString(titleCase(char))
	for at, char := range text[width:] {
		writeLower(&out, text, width+at, char)
	}
	return out.String()
}

// titleCase returns a character as it begins a word: of a digraph, only the first letter is large.
func titleCase(char rune) string {
	if several, ok := severalTitle[char]; ok {
		return several
	}
	return string(unicode.ToTitle(char))
}

// title is str.title: a letter after something else is large.
func title(text string) string {
	var out strings.Builder
	inside := false
	for at, char := range text {
		if inside {
			writeLower(&out, text, at, char)
		} else {
			out.WriteString(titleCase(char))
		}
		inside = hasCase(char)
	}
	return out.String()
}
