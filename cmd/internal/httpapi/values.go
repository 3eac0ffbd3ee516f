package httpapi

import (
	"encoding/json"
	"fmt"
)

// element is the value of number i of a list.
func (v value) element(i int, raw json.RawMessage) value {
	return value{fmt.Sprintf("%s[%d]", v.name, i), raw}
}

// read decodes the value; null is none of any type.
func (v value) read(to any) bool { return string(v.raw) != "null" && json.Unmarshal(v.raw, to) == nil }

// text is a string.
func (v value) text() (out string, wrong *problem) {
	if !v.read(&out) {
		return "", v.refuse("want a text, got %s", v.got())
	}
	return out, nil
}

// flag is a truth value.
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

// whole is a number from low to high without a fraction.
func (v value) whole(low, high int64) (out int64, wrong *problem) {
	if !v.read(&out) || out < low || out > high {
		return 0, v.refuse("want a whole number from %d to %d, got %s", low, high, v.got())
	}
	return out, nil
}
