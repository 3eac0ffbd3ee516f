package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// text is str(value) of Python, "" for an undefined value.
func (e *environment) text(value Value) string {
	switch value := value.(type) {
	case string:
		return value
	case *undefined:
		return ""
	}
	out := e.builder()
	e.repr(out, value, 0)
	return out.String()
}

// repr writes repr(value) of Python.
func (e *environment) repr(out *builder, value Value, depth int) {
	e.spend(1)
	e.checkDepth(depth)
	list := func(open, end string, items []Value) {
		out.writeString(open)
		for i, item := range items {
			if i > 0 {
				out.writeString(", ")
			}
			e.repr(out, item, depth+1)
		}
		out.writeString(end)
	}
	switch value := value.(type) {
	case nil:
		out.writeString("None")
	case bool:
		out.writeString(map[bool]string{true: "True", false: "False"}[value])
	case int64:
		out.writeString(strconv.FormatInt(value, 10))
	case float64:
		out.writeString(formatFloat(value))
	case string:
		quote(out, value)
	case *List:
		list("[", "]", value.Items)
	case tuple:
		if len(value) == 1 {
			list("(", ",)", value)
		} else {
			list("(", ")", value)
		}
	case *Dict:
		e.reprDict(out, value, depth)
	case *undefined:
		out.writeString("Undefined")
	case *dictView:
		list(value.name+"([", "])", value.items)
	case *rangeValue:
		step := ""
		if value.step != 1 {
			step = fmt.Sprintf(", %d", value.step)
		}
		out.writeString(fmt.Sprintf("range(%d, %d%s)", value.from, value.to, step))
	default:
		e.fail("a %s cannot be written", typeName(value))
	}
}

// reprDict writes the repr of a mapping.
func (e *environment) reprDict(out *builder, dict *Dict, depth int) {
	out.writeString("{")
	for i, key := range dict.keys {
		if i > 0 {
			out.writeString(", ")
		}
		e.repr(out, key, depth+1)
		out.writeString(": ")
		e.repr(out, dict.values[i], depth+1)
	}
	out.writeString("}")
}

// quote writes the repr of a string.
func quote(out *builder, text string) {
	out.meter.scan(2 * len(text))
	// Python prefers single quotes, unless double ones save an escape.
	mark := '\''
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		mark = '"'
	}
	out.writeRune(mark)
	for _, char := range text {
		switch {
		case char == mark || char == '\\':
			out.writeRune('\\')
			out.writeRune(char)
		case char == '\n':
			out.writeString(`\n`)
		case char == '\r':
			out.writeString(`\r`)
		case char == '\t':
			out.writeString(`\t`)
		case unicode.IsPrint(char):
			out.writeRune(char)
		case char < 0x100:
			escape(out, 'x', char, 2)
		case char < 0x10000:
			escape(out, 'u', char, 4)
		default:
			escape(out, 'U', char, 8)
		}
	}
	out.writeRune(mark)
}

// escape writes a character as \, kind and hexadecimal digits.
func escape(out *builder, kind byte, char rune, digits int) {
	out.writeByte('\\')
	out.writeByte(kind)
	for digits--; digits >= 0; digits-- {
		out.writeByte("0123456789abcdef"[char>>(4*digits)&15])
	}
}

// formatFloat is repr of a float: the shortest decimal that reads back, with an exponent below 1e-4 and from 1e16.
func formatFloat(float float64) string {
	switch {
	case math.IsInf(float, 1):
		return "inf"
	case math.IsInf(float, -1):
		return "-inf"
	case math.IsNaN(float):
		return "nan"
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(float, 'e', -1, 64), "e")
	if power, _ := strconv.Atoi(exponent); power < -4 || power >= 16 {
		return fmt.Sprintf("%se%+03d", mantissa, power)
	}
	text := strconv.FormatFloat(float, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
