package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A filter is the function behind value|name(..). It takes its arguments from args; what is left
// there is an error. Strings are compared case-insensitively unless case_sensitive is given, as in
// the reference.
type filter func(args *callArgs, value Value) Value

// filters is filled by init, because some filters look up others by name.
var filters map[string]filter

// Synonyms stand beside each other in the reference too.
func init() {
	filters = map[string]filter{
		"abs":        absolute,
		"batch":      lazy(batch),
		"capitalize": onText(methods["capitalize"]),
		"center":     center,
		"count":      length,
		"d":          orDefault,
		"default":    orDefault,
		"dictsort":   sortDict,
		"first":      first,
		"float":      toFloat,
		"format":     formatFilter,
		"indent":     indent,
		"int":        toInt,
		"items":      dictItems,
		"join":       joinFilter,
		"last":       last,
		"length":     length,
		"list":       func(args *callArgs, value Value) Value { return args.newList(slices.Clone(args.items(value))) },
		"lower":      onText(methods["lower"]),
		"map":        lazy(mapItems),
		"max":        extreme(1),
		"min":        extreme(-1),
		"reject":     choose(false, false),
		"rejectattr": choose(false, true),
		"replace":    replaceFilter,
		"reverse":    reverse,
		"round":      round,
		"safe":       onText(func(_ *callArgs, text string) Value { return text }),
		"select":     choose(true, false),
		"selectattr": choose(true, true),
		"sort":       sortFilter,
		"string":     onText(func(_ *callArgs, text string) Value { return text }),
		"sum":        sum,
		"title":      onText(titleFilter),
		"tojson":     toJSON,
		"trim":       onText(methods["strip"]),
		"truncate":   truncate,
		"unique":     lazy(unique),
		"upper":      onText(methods["upper"]),
		"wordcount":  onText(func(args *callArgs, text string) Value { return args.countWords(text) }),
	}
}

// onText makes a filter of a method of strings; other values are converted to text first.
func onText(run method) filter {
	return func(args *callArgs, value Value) Value { return run(args, args.text(value)) }
}

// lazy makes a filter that does nothing until something iterates over its result, not even check
// its arguments. The reference uses generators here: errors come when they are used, or never.
func lazy(run func(args *callArgs, value Value) []Value) filter {
	return func(args *callArgs, value Value) Value {
		args.allocate(lazyBytes)
		// The arguments move into the iterator: the caller finds none left over, and checks nothing.
		later := *args
		args.positional, args.names = nil, nil
		return &iterator{fill: func() []Value { return run(later.clone(), value) }}
	}
}

// choose makes the filters that keep or drop the items that pass a test. byAttribute tests an
// attribute of each item, named by the first argument. Without a test the truth of the value
// decides.
func choose(keep, byAttribute bool) filter {
	return lazy(func(args *callArgs, value Value) []Value {
		if !truth(value) {
			return nil
		}
		var attribute Value
		if byAttribute {
			attribute = args.next("attribute", required)
		}
		name := ""
		if len(args.positional) > 0 {
			name = args.str("test", required)
		}
		var out []Value
		for _, item := range args.items(value) {
			tested := item
			if byAttribute {
				tested = args.attributePath(item, attribute, nil)
			}
			// Arguments after the name belong to the test, which takes them again for each item.
			fits := name == "" && truth(tested)
			if name != "" {
				fits = args.test(name, tested, args.clone())
			}
			if fits == keep {
				args.allocate(16)
				out = append(out, item)
			}
		}
		return out
	})
}

// extreme makes the filters max (sign 1) and min (-1). Of equal items the first is taken.
func extreme(sign int) filter {
	return func(args *callArgs, value Value) Value {
		sensitive, attribute := args.flag("case_sensitive"), args.next("attribute", nil)
		items := args.items(value)
		if len(items) == 0 {
			return &undefined{"No aggregated item, sequence was empty."}
		}
		best := items[0]
		bestKey := args.sortKey(best, attribute, sensitive)
		for _, item := range items[1:] {
			key := args.sortKey(item, attribute, sensitive)
			// Only a strictly better item replaces the best one, so that the first of equal items stays.
			if sign*args.compare(key, bestKey) > 0 {
				best, bestKey = item, key
			}
		}
		return best
	}
}

// titleFilter capitalises each word. Unlike the method title, it splits words at white space and at
// -({[< only.
func titleFilter(args *callArgs, text string) Value {
	out := args.builder()
	separated := true
	from := 0
	// A run of one kind, word or separators, ends where the other kind begins; flush writes it with its first character
	// changed.
	flush := func(to int) {
		if part := text[from:to]; part != "" {
			_, width := utf8.DecodeRuneInString(part)
			out.writeString(args.upper(part[:width]))
			out.writeString(args.lower(part[width:]))
		}
		from = to
	}
	for i, char := range text {
		if separator := strings.ContainsRune("-({[<", char) || isSpace(char); separator != separated {
			flush(i)
			separated = separator
		}
	}
	flush(len(text))
	return out.String()
}

// center is the method center with a width of 80 by default.
func center(args *callArgs, value Value) Value {
	args.positional = append(args.positional, args.next("width", int64(80)))
	return methods["center"](args, args.text(value))
}

// replaceFilter is the method replace for values of any type, which are written as text first.
func replaceFilter(args *callArgs, value Value) Value {
	old, with := args.text(args.next("old", required)), args.text(args.next("new", required))
	limit := args.next("count", nil)
	if limit == nil {
		limit = int64(-1)
	}
	count, _, ok, _ := number(limit)
	if !ok {
		args.fail("replace: count must be int, not %s", typeName(limit))
	}
	return args.replace(args.text(value), old, with, count)
}

// formatFilter is value % args of Python, where args are all positions or all names.
func formatFilter(args *callArgs, value Value) Value {
	if len(args.names) > 0 && len(args.positional) > 0 {
		args.fail("format: positions and names at the same time")
	}
	var operand Value = tuple(args.positional)
	if len(args.names) > 0 {
		operand = dictFromArgs(args)
	}
	args.positional, args.names = nil, nil
	return args.percent(args.text(value), operand)
}

// joinFilter joins items of any type, or an attribute of each. The first argument is called d in the reference.
func joinFilter(args *callArgs, value Value) Value {
	separator, attribute := args.text(args.next("d", "")), args.next("attribute", nil)
	var parts []string
	for _, item := range args.items(value) {
		if attribute != nil {
			item = args.attributePath(item, attribute, nil)
		}
		args.allocate(16)
		parts = append(parts, args.text(item))
	}
	return args.join(parts, separator)
}

// dictItems gives the pairs of a mapping. What is no mapping is an error only once a pair is asked for.
func dictItems(args *callArgs, value Value) Value {
	args.allocate(lazyBytes)
	return &iterator{fill: func() []Value {
		switch value := value.(type) {
		case *undefined:
			return nil
		case *Dict:
			return args.pairs(value)
		}
		args.fail("items: want a mapping, got %s", typeName(value))
		return nil
	}}
}

// reverse turns a text around character by character, and any other items one by one.
func reverse(args *callArgs, value Value) Value {
	if text, ok := value.(string); ok {
		args.allocateValue(4 * len(text))
		chars := []rune(text)
		slices.Reverse(chars)
		return string(chars)
	}
	out := slices.Clone(args.items(value))
	args.allocateValue(16 * len(out))
	slices.Reverse(out)
	return &iterator{items: out}
}

// sortFilter sorts items, by one or several of their attributes if they are named.
func sortFilter(args *callArgs, value Value) Value {
	reverse, sensitive, attribute := args.flag("reverse"), args.flag("case_sensitive"), args.next("attribute", nil)
	key := func(item Value) Value { return args.sortKeys(item, attribute, sensitive) }
	return &List{args.sorted(args.items(value), reverse, key)}
}

// sortDict gives the pairs of a mapping in the order of their keys or values.
func sortDict(args *callArgs, value Value) Value {
	sensitive, by, reverse := args.flag("case_sensitive"), args.str("by", "key"), args.flag("reverse")
	dict, ok := value.(*Dict)
	part := slices.Index([]string{"key", "value"}, by)
	if !ok || part < 0 {
		args.fail("dictsort: want a mapping and key or value, got %s and %q", typeName(value), by)
	}
	key := func(item Value) Value { return args.foldCase(item.(tuple)[part], sensitive) }
	return &List{args.sorted(args.pairs(dict), reverse, key)}
}

// unique drops items that were there before. Items that are equal have one hash.
func unique(args *callArgs, value Value) []Value {
	if !truth(value) {
		return args.items(value) // none, or an error
	}
	sensitive, attribute := args.flag("case_sensitive"), args.next("attribute", nil)
	args.end()
	args.allocate(dictBytes)
	seen := map[any]bool{}
	var out []Value
	for _, item := range args.items(value) {
		hash := args.hash(args.sortKey(item, attribute, sensitive))
		if !seen[hash] {
			args.allocate(entryBytes)
			seen[hash] = true
			out = append(out, item)
		}
	}
	return out
}

// sum adds items to start. Lists can be added too.
func sum(args *callArgs, value Value) Value {
	attribute, total := args.next("attribute", nil), args.next("start", int64(0))
	for _, item := range args.items(value) {
		if attribute != nil {
			item = args.attributePath(item, attribute, nil)
		}
		args.defined(item)
		total = args.arithmetic("+", total, item)
	}
	return total
}

// batch cuts the items into rows of linecount. fill_with, unless none, fills up the last one.
func batch(args *callArgs, value Value) []Value {
	if !truth(value) {
		return args.items(value) // none, or an error
	}
	count, fill := args.int("linecount", required), args.next("fill_with", nil)
	args.end()
	items := args.items(value)
	if count < 1 || count > maxRange {
		args.fail("batch: %d, want 1 to %d", count, maxRange)
	}
	size := int(count)
	var out []Value
	for len(items) > 0 {
		// A row that will be filled up takes as much memory as a full one.
		capacity := size
		if fill == nil {
			capacity = min(size, len(items))
		}
		args.allocateValue(16 * capacity)
		row := slices.Clone(items[:min(size, len(items))])
		items = items[len(row):]
		for fill != nil && len(row) < size {
			row = append(row, fill)
		}
		args.allocate(16)
		out = append(out, &List{row})
	}
	return out
}

// mapItems takes an attribute of each item, or applies a filter, named by the first argument, to
// each item.
func mapItems(args *callArgs, value Value) []Value {
	if !truth(value) {
		return nil
	}
	var change func(item Value) Value
	if len(args.positional) == 0 && slices.Contains(args.names, "attribute") {
		attribute, none := args.next("attribute", required), args.next("default", nil)
		args.end()
		change = func(item Value) Value { return args.attributePath(item, attribute, none) }
	} else {
		name := args.str("filter", required)
		change = func(item Value) Value { return args.filter(name, item, args.clone()) }
	}
	items := args.items(value)
	args.allocateValue(16 * len(items))
	out := make([]Value, len(items))
	for i, item := range items {
		out[i] = change(item)
	}
	return out
}

// attributePath returns the attribute that a path such as "a.b.0" names. none, unless nil, replaces
// an undefined result.
func (e *environment) attributePath(value, attribute, none Value) Value {
	parts := []Value{attribute}
	if text, ok := attribute.(string); ok {
		parts = nil
		e.scan(len(text))
		for part := range strings.SplitSeq(text, ".") {
			var key Value = part
			// A part of digits only is the number of an item.
			if i, err := strconv.ParseInt(part, 10, 64); err == nil && part[0] != '-' && part[0] != '+' {
				key = i
			}
			e.allocate(objectBytes)
			parts = append(parts, key)
		}
	}
	for _, part := range parts {
		e.spend(1)
		value = e.getItem(value, part)
		if _, isUndefined := value.(*undefined); isUndefined && none != nil {
			value = none
		}
	}
	return value
}

// foldCase makes strings equal that differ in case.
func (e *environment) foldCase(value Value, sensitive bool) Value {
	if text, ok := value.(string); ok && !sensitive {
		return e.lower(text)
	}
	return value
}

// sortKey returns what an item is ordered by: itself or an attribute, case-folded unless sensitive.
func (e *environment) sortKey(value, attribute Value, sensitive bool) Value {
	if attribute != nil {
		value = e.attributePath(value, attribute, nil)
	}
	return e.foldCase(value, sensitive)
}

// sortKeys returns the keys for several attributes, separated by commas. Even a single key is compared
// as a tuple of one, in which equal items are not ordered.
func (e *environment) sortKeys(value, attribute Value, sensitive bool) Value {
	names, ok := attribute.(string)
	e.allocateValue(16)
	if !ok {
		return tuple{e.sortKey(value, attribute, sensitive)}
	}
	var out tuple
	for name := range strings.SplitSeq(names, ",") {
		e.allocate(16)
		out = append(out, e.sortKey(value, name, sensitive))
	}
	return out
}

// sorted returns the items in the order of their keys. Items with equal keys keep their order, also in reverse.
func (e *environment) sorted(items []Value, reverse bool, key func(Value) Value) []Value {
	// Keys are made once for each item: a comparison of attributes would look each of them up again.
	type keyed struct{ key, item Value }
	e.allocateValue(48 * len(items))
	all := make([]keyed, len(items))
	for i, item := range items {
		all[i] = keyed{key(item), item}
	}
	slices.SortStableFunc(all, func(left, right keyed) int {
		// A negated comparison keeps equal items in their order, which reversing the result would not.
		if reverse {
			return -e.compare(left.key, right.key)
		}
		return e.compare(left.key, right.key)
	})
	out := make([]Value, len(all))
	for i := range all {
		out[i] = all[i].item
	}
	return out
}

// first takes one item of an iterator, and leaves the rest. The first item of a mapping is its
// first key.
func first(args *callArgs, value Value) Value {
	switch value := value.(type) {
	case *iterator: // only its first item is used up
		if items := args.fill(value); len(items) > 0 {
			value.items = items[1:]
			return items[0]
		}
	case string:
		if char, width := utf8.DecodeRuneInString(value); width > 0 {
			return string(char)
		}
	default:
		if items := args.items(value); len(items) > 0 {
			return items[0]
		}
	}
	return &undefined{"No first item, sequence was empty."}
}

// last refuses iterators, as the reference does.
func last(args *callArgs, value Value) Value {
	switch value := value.(type) {
	case *iterator:
		args.fail("'generator' object is not reversible")
	case string:
		if char, width := utf8.DecodeLastRuneInString(value); width > 0 {
			return string(char)
		}
	default:
		if items := args.items(value); len(items) > 0 {
			return items[len(items)-1]
		}
	}
	return &undefined{"No last item, sequence was empty."}
}

// length counts characters of a text and items of whatever knows their number.
func length(args *callArgs, value Value) Value {
	if text, ok := value.(string); ok {
		return int64(utf8.RuneCountInString(text))
	}
	items, ok := count(value)
	if !ok {
		args.fail("object of type '%s' has no len()", typeName(value))
	}
	return int64(items)
}

// orDefault replaces what is undefined and, if boolean is true, whatever counts as false.
func orDefault(args *callArgs, value Value) Value {
	none, orFalse := args.next("default_value", ""), args.flag("boolean")
	if _, isUndefined := value.(*undefined); isUndefined || orFalse && !truth(value) {
		return none
	}
	return value
}

// indent puts width spaces, or the text width, before each line: the first and blank ones only if asked for.
func indent(args *callArgs, value Value) Value {
	width, first, blank := args.next("width", int64(4)), args.flag("first"), args.flag("blank")
	text, ok := value.(string)
	if !ok {
		args.defined(value)
		args.fail("indent: want str, got %s", typeName(value))
	}
	by := args.indentation(width, "indent: bad width")
	args.allocateValue(len(text) + len(by))
	lines := args.lines(text+"\n", false)
	args.allocateValue(2 * (len(text) + len(lines)*(len(by)+16))) // the lines, and the text
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

// indentation returns a text, or so many spaces.
func (e *environment) indentation(width Value, message string) string {
	if text, ok := width.(string); ok {
		return text
	}
	count, _, isInt, _ := number(width)
	if !isInt || count > maxRange {
		e.fail("%s", message)
	}
	count = max(count, 0)
	e.allocateValue(int(count))
	return strings.Repeat(" ", int(count))
}

// truncate shortens a text of more than length+leeway characters to length characters, including
// end. It cuts between words unless killwords is true.
func truncate(args *callArgs, value Value) Value {
	most, kill := args.int("length", int64(255)), args.flag("killwords")
	end, leeway := args.str("end", "..."), args.int("leeway", int64(5))
	text, ok := value.(string)
	if _, isUndefined := value.(*undefined); !ok && !isUndefined {
		args.fail("truncate: want str, got %s", typeName(value))
	}
	args.allocateValue(4 * len(text))
	chars := []rune(text)
	keep := most - int64(utf8.RuneCountInString(end))
	if keep < 0 || leeway < 0 || most > maxMemory || leeway > maxMemory {
		args.fail("truncate: length %d, leeway %d", most, leeway)
	}
	if int64(len(chars)) <= most+leeway {
		return value
	}
	out := string(chars[:keep])
	if i := strings.LastIndexByte(out, ' '); !kill && i >= 0 {
		out = out[:i]
	}
	return out + end
}

// countWords counts runs of word characters. The charge covers two table look-ups for each
// character.
func (e *environment) countWords(text string) int64 {
	e.scan(casePasses * len(text))
	count, inside := int64(0), false
	for _, char := range text {
		if isWord(char) && !inside {
			count++
		}
		inside = isWord(char)
	}
	return count
}

// toJSON is tojson of transformers, not of Jinja: it escapes nothing for HTML, and non-ASCII characters only if asked
// to.
func toJSON(args *callArgs, value Value) Value {
	style := &jsonStyle{ascii: args.flag("ensure_ascii"), item: ", ", key: ": "}
	width, separators := args.next("indent", nil), args.next("separators", nil)
	style.sort = args.flag("sort_keys")
	if width != nil {
		style.lines, style.indent, style.item = true, args.indentation(width, "tojson: bad indent"), ","
	}
	if separators != nil {
		pair := args.items(separators)
		if len(pair) != 2 {
			args.fail("tojson: want two separators, got %d", len(pair))
		}
		style.item, style.key = args.text(pair[0]), args.text(pair[1])
	}
	writer := jsonWriter{args.environment, args.builder(), style}
	writer.value(value, 0)
	return writer.out.String()
}

// absolute is abs of Python.
func absolute(args *callArgs, value Value) Value {
	whole, float, isInt, ok := number(value)
	switch {
	case !ok:
		args.defined(value)
		args.fail("bad operand type for abs(): '%s'", typeName(value))
	case isInt && whole < 0:
		return args.ints("-", 0, whole)
	case isInt:
		return whole
	}
	return math.Abs(float)
}

// toInt is int of Python, with a default instead of an error.
func toInt(args *callArgs, value Value) Value {
	none, base := args.next("default", int64(0)), args.int("base", int64(10))
	args.defined(value)
	if text, ok := value.(string); ok {
		args.allocateValue(3 * len(text)) // its digits, and a failed parse makes an error that holds the text
		if whole, ok := wholeOf(text, int(base)); ok {
			return whole
		}
		float, ok := floatOf(text)
		if !ok {
			return none
		}
		value = float
	}
	whole, float, isInt, ok := number(value)
	switch {
	case isInt:
		return whole
	case !ok || math.IsNaN(float) || math.IsInf(float, 0):
		return none
	case math.Abs(float) >= 1<<62:
		args.fail("a number is too large")
	}
	return int64(float)
}

// toFloat is float of Python, with a default instead of an error.
func toFloat(args *callArgs, value Value) Value {
	none := args.next("default", 0.0)
	args.defined(value)
	if text, ok := value.(string); ok {
		args.allocateValue(3 * len(text)) // as in toInt
		if float, ok := floatOf(text); ok {
			return float
		}
		return none
	}
	_, float, _, ok := number(value)
	if !ok {
		return none
	}
	return float
}

// wholeOf reads a whole number as int of Python does. A prefix like 0x may stand where the base is that of the prefix.
func wholeOf(text string, base int) (int64, bool) {
	digits, ok := numeral(text)
	if !ok || base < 2 || base > 36 {
		return 0, false
	}
	sign, unsigned := "", digits
	if digits != "" && strings.ContainsRune("+-", rune(digits[0])) {
		sign, unsigned = digits[:1], digits[1:]
	}
	prefix := map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]
	if prefix != "" && len(unsigned) > 2 && strings.EqualFold(unsigned[:2], prefix) {
		unsigned = unsigned[2:]
	}
	// Behind a prefix no other sign may stand, which ParseInt would take.
	if unsigned == "" || strings.ContainsRune("+-", rune(unsigned[0])) {
		return 0, false
	}
	whole, err := strconv.ParseInt(sign+unsigned, base, 64)
	return whole, err == nil
}

// floatOf reads a number as float of Python does, which has no hexadecimal ones.
func floatOf(text string) (float64, bool) {
	digits, ok := numeral(text)
	if !ok || strings.ContainsAny(digits, "xXpP") {
		return 0, false
	}
	float, err := strconv.ParseFloat(digits, 64)
	return float, err == nil
}

// numeral returns a numeral as package strconv reads it: without white space around it and single underscores between
// digits, and with digits of ASCII instead of those of other scripts. ok is false where underscores stand elsewhere.
func numeral(text string) (digits string, ok bool) {
	var out strings.Builder
	before := ' '
	for _, char := range strings.TrimFunc(text, isSpace) {
		joins := unicode.IsLetter(before) || unicode.IsDigit(before)
		switch {
		case char == '_' && !joins:
			return "", false
		case before == '_' && !unicode.IsLetter(char) && !unicode.IsDigit(char):
			return "", false
		case char == '_':
		case char >= utf8.RuneSelf && unicode.IsDigit(char):
			out.WriteByte('0' + digitValue(char))
		default:
			out.WriteRune(char)
		}
		before = char
	}
	return out.String(), before != '_'
}

// digitValue returns what a decimal digit of any script stands for. The ten digits of a script lie behind each other.
func digitValue(char rune) byte {
	for _, run := range unicode.Nd.R16 {
		if rune(run.Lo) <= char && char <= rune(run.Hi) {
			return byte((char - rune(run.Lo)) % 10)
		}
	}
	for _, run := range unicode.Nd.R32 {
		if rune(run.Lo) <= char && char <= rune(run.Hi) {
			return byte((char - rune(run.Lo)) % 10)
		}
	}
	panic("BUG: no digit")
}

// round rounds to decimals. A method other than common makes a float of a whole number, as in the reference.
func round(args *callArgs, value Value) Value {
	precision, method := args.int("precision", int64(0)), args.str("method", "common")
	args.defined(value)
	whole, float, isInt, ok := number(value)
	if !ok || precision < 0 || precision > 15 {
		args.fail("round: %s with precision %d is not supported", typeName(value), precision)
	}
	scale := math.Pow(10, float64(precision))
	switch {
	case method == "common" && isInt:
		return whole
	case method == "common": // the nearest decimal, as it is written
		rounded, _ := strconv.ParseFloat(strconv.FormatFloat(float, 'f', int(precision), 64), 64)
		return rounded
	case method == "ceil":
		return math.Ceil(float*scale) / scale
	case method == "floor":
		return math.Floor(float*scale) / scale
	}
	args.fail("round: method must be common, ceil or floor")
	return nil
}
