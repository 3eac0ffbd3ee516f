package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/strictjson"
)

// element returns the value of number i of a list.
func (v value) element(i int, raw json.RawMessage) value {
	return value{fmt.Sprintf("%s[%d]", v.name, i), raw}
}

// read decodes the value; null is none of any type.
func (v value) read(to any) bool { return string(v.raw) != "null" && json.Unmarshal(v.raw, to) == nil }

// object returns a JSON object by its keys, each of which it has once; nil: the value is none.
func (v value) object() (out map[string]json.RawMessage, wrong *problem) {
	if !v.read(&out) {
		return nil, nil
	}
	if err := strictjson.OnceEach(v.raw); err != nil {
		return nil, v.refuse("it has %s", brief(err.Error()))
	}
	return out, nil
}

// halfCharacter returns the first escape in a JSON text that is half of a character beyond U+FFFF, without the other
// half; "": there is none. encoding/json would put U+FFFD in its place, and the model would be asked something else.
func halfCharacter(body []byte) string {
	for {
		at := bytes.IndexByte(body, '\\')
		if at < 0 {
			return ""
		}
		body = body[at:]
		unit, ok := escaped(body)
		switch {
		case !ok: // another escape, which no JSON parser takes for a half
			body = body[min(2, len(body)):]
		case !utf16.IsSurrogate(unit):
			body = body[escapeSize:]
		default:
			second, _ := escaped(body[escapeSize:])
			if utf16.DecodeRune(unit, second) == utf8.RuneError {
				return string(body[:escapeSize])
			}
			body = body[2*escapeSize:]
		}
	}
}

const escapeSize = len(`\u0000`)

// escaped returns the UTF-16 unit of the escape that a text begins with.
func escaped(text []byte) (unit rune, ok bool) {
	if len(text) < escapeSize || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	number, err := strconv.ParseUint(string(text[2:escapeSize]), 16, 16)
	return rune(number), err == nil
}

// text returns a string.
func (v value) text() (out string, wrong *problem) {
	if !v.read(&out) {
		return "", v.refuse("want a text, got %s", v.got())
	}
	return out, nil
}

// flag returns a truth value.
func (v value) flag() (out bool, wrong *problem) {
	if !v.read(&out) {
		return false, v.refuse("want true or false, got %s", v.got())
	}
	return out, nil
}

// number is from low to high.
func (v value) number(low, high float64) (out float64, wrong *problem) {
	if !v.read(&out) || out < low || out > high {
		return 0, v.refuse("want a number from %v to %v, got %s", low, high, v.got())
	}
	return out, nil
}

// whole returns a number from low to high without a fraction.
func (v value) whole(low, high int64) (out int64, wrong *problem) {
	if !v.read(&out) || out < low || out > high {
		return 0, v.refuse("want a whole number from %d to %d, got %s", low, high, v.got())
	}
	return out, nil
}
