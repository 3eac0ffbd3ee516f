package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dateLayouts are the layouts of package time for the letters of strftime. The reference's time has no zone.
var dateLayouts = map[byte]string{
	'A': "Monday", 'B': "January", 'D': "01/02/06", 'F': "2006-01-02", 'H': "15", 'I': "03", 'M': "04", 'R': "15:04",
	'S': "05", 'T': "15:04:05", 'X': "15:04:05", 'Z': "", 'a': "Mon", 'b': "Jan", 'c': "Mon Jan _2 15:04:05 2006",
	'd': "02", 'e': "_2", 'h': "Jan", 'j': "002", 'm': "01", 'p': "PM", 'x': "01/02/06", 'y': "06", 'z': "",
	'%': "%", 'n': "\n", 't': "\t",
}

// strftime writes the time of the execution as strftime of Python does.
func (e *environment) strftime(format string) string {
	if e.now.IsZero() {
		e.fail("the template asks for the date, and there is no clock")
	}
	out := e.builder()
	for i := 0; i < len(format); i++ {
		e.spend(1)
		if format[i] != '%' || i+1 == len(format) {
			out.writeByte(format[i])
			continue
		}
		i++
		// %-d and the like write a number without what fills it up in front.
		bare := format[i] == '-' && i+1 < len(format) // %-d: without a leading 0
		if bare {
			i++
		}
		text := e.datePart(e.now, format[i])
		if bare && len(text) > 1 {
			text = strings.TrimLeft(text[:len(text)-1], "0 ") + text[len(text)-1:]
		}
		out.writeString(text)
	}
	return out.String()
}

// datePart returns what a letter after % stands for.
func (e *environment) datePart(now time.Time, letter byte) string {
	switch letter {
	case 'Y':
		return strconv.Itoa(now.Year())
	case 'u':
		return strconv.Itoa((int(now.Weekday())+6)%7 + 1)
	case 'w':
		return strconv.Itoa(int(now.Weekday()))
	case 'f':
		return fmt.Sprintf("%06d", now.Nanosecond()/1000)
	}
	layout, ok := dateLayouts[letter]
	if !ok {
		e.fail("strftime_now: %%%c is not supported", letter)
	}
	return now.Format(layout)
}

// format is str.format with names and positions.
func format(args *callArgs, text string) Value {
	out := args.builder()
	out.most = maxMemory
	position := 0 // of the next field without a name
	for text != "" {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			break
		}
		out.writeString(text[:i])
		brace := text[i]
		// A brace that is doubled stands for itself.
		if text = text[i+1:]; text != "" && text[0] == brace {
			out.writeByte(brace)
			text = text[1:]
			continue
		}
		field, rest, ok := strings.Cut(text, "}")
		if brace == '}' || !ok {
			args.fail("a single %q in a format string", brace)
		}
		text = rest
		name := field
		if name == "" {
			name = strconv.Itoa(position)
			position++
		}
		out.writeString(args.text(args.field(field, name)))
	}
	out.writeString(text)
	// Python permits arguments that no field names.
	args.positional, args.names = nil, nil
	return out.String()
}

// field returns the argument of a position or name, for a field that is written {field}.
func (a *callArgs) field(field, name string) Value {
	a.spend(1 + len(a.names)/8)
	if strings.ContainsAny(field, ".[!:{") {
		a.fail("format: the field {%s} is not supported", field)
	}
	position, err := strconv.Atoi(name)
	if err == nil && position >= 0 && position < len(a.positional) {
		return a.positional[position]
	}
	if i := slices.Index(a.names, name); err != nil && i >= 0 {
		return a.values[i]
	}
	a.fail("format: no argument for {%s}", field)
	return nil
}

// conversion is one place in a format string, such as %(name)-5.2f.
type conversion struct {
	name      string
	named     bool
	flags     string // everything between the name and the verb
	precision string // digits of flags
	verb      byte
}

// readConversion reads what follows a % and returns what comes after it.
func (e *environment) readConversion(format string) (read conversion, rest string) {
	if strings.HasPrefix(format, "(") {
		name, after, ok := strings.Cut(format[1:], ")")
		if !ok {
			e.fail("format requires a mapping")
		}
		read.name, read.named, format = name, true, after
	}
	// The verb is the first character that is no flag, digit or dot.
	isVerb := func(char rune) bool { return !strings.ContainsRune("-+ #0.123456789", char) }
	size := strings.IndexFunc(format, isVerb)
	if size < 0 || size > 8 {
		e.fail("incomplete format")
	}
	read.flags, read.verb = format[:size], format[size]
	if read.verb == '%' {
		return read, format[size+1:]
	}
	// Three digits bound what one conversion writes, before package fmt makes it.
	width, precision, _ := strings.Cut(strings.TrimLeft(read.flags, "-+ #0"), ".")
	if len(width) > 3 || len(precision) > 3 {
		e.fail("format: %q is too wide", read.flags)
	}
	read.precision = precision
	return read, format[size+1:]
}

// percent is format % operand of Python.
func (e *environment) percent(format string, operand Value) string {
	out := e.builder()
	out.most = maxMemory
	// Only a tuple gives one value for each conversion; anything else is the value of a single one.
	values, isTuple := operand.(tuple)
	if !isTuple {
		values = tuple{operand}
	}
	used := 0
	for {
		before, rest, ok := strings.Cut(format, "%")
		out.writeString(before)
		if !ok {
			break
		}
		e.spend(8)
		var place conversion
		place, format = e.readConversion(rest)
		var value Value
		switch {
		case place.named:
			value = e.namedOperand(operand, place.name)
		case place.verb == '%':
		case used == len(values):
			e.fail("not enough arguments for format string")
		default:
			value = values[used]
			used++
		}
		if place.verb == '%' {
			out.writeByte('%')
		} else {
			out.writeString(e.convert(place, value))
		}
	}
	// A mapping serves names; lists and the like are taken whole by a single %s, and may be left unused too.
	switch operand.(type) { // what has items may be left unused
	case *Dict, *List, *rangeValue, *undefined:
	default:
		if used < len(values) {
			e.fail("not all arguments converted during string formatting")
		}
	}
	return out.String()
}

// namedOperand returns the value of %(name) in a mapping.
func (e *environment) namedOperand(operand Value, name string) Value {
	dict, ok := operand.(*Dict)
	if !ok {
		e.fail("format requires a mapping")
	}
	e.scan(len(name))
	value, ok := dict.Get(name)
	if !ok {
		e.fail("format: no key %q", name)
	}
	return value
}

// convert writes a value as a conversion asks for. Its flags mean the same to package fmt, but for texts.
func (e *environment) convert(place conversion, value Value) string {
	switch verb := place.verb; verb {
	case 's':
		text := e.text(value)
		e.allocate(len(text))
		flags := strings.NewReplacer("+", "", " ", "", "#", "").Replace(place.flags)
		return fmt.Sprintf("%"+flags+"s", text)
	case 'r':
		out := e.builder()
		e.repr(out, value, 0)
		return fmt.Sprintf("%"+place.flags+"s", out.String())
	case 'd', 'i', 'x', 'X', 'o':
		whole, float, isInt, ok := number(value)
		if !ok {
			e.defined(value)
			e.fail("%%%c format: a number is required, not %s", verb, typeName(value))
		}
		if !isInt {
			whole = int64(float)
		}
		if verb == 'i' {
			verb = 'd'
		}
		return fmt.Sprintf("%"+place.flags+string(verb), whole)
	case 'f', 'F', 'e', 'E', 'g', 'G':
		_, float, _, ok := number(value)
		if !ok {
			e.defined(value)
			e.fail("must be real number, not %s", typeName(value))
		}
		if (verb == 'g' || verb == 'G') && place.precision == "" {
			e.fail("format: %%%c without a precision is not supported", verb)
		}
		return fmt.Sprintf("%"+place.flags+string(verb), float)
	}
	e.fail("unsupported format character %q", place.verb)
	return ""
}
