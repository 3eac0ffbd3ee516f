// Package unit knows how sizes and times are written: it parses "4GiB" and "1.5 ms", and prints sizes the same way.
//
// Decimal prefixes (k, M, G, T, P) are powers of 1000, binary ones (Ki, Mi, Gi, Ti, Pi) powers of
// 1024. A space between number and unit is optional; a number without a unit is refused, except
// that 0 is 0 in every unit and a size may be a plain number of bytes.
package unit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Bytes is a size.
type Bytes int64

// Seconds is a time span.
type Seconds float64

var decimal = []prefix{{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}}
var binary = []prefix{{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"Pi", 1 << 50}}

// prefix is a prefix of units with what it multiplies by.
type prefix struct {
	name  string
	scale float64
}

// ParseBytes reads a size such as "4GiB", "1.5 MB", "64KiB" or "4096". What is not a
// whole number of bytes, as 1.2GiB, is rounded down; fractions of a byte without a larger unit are refused.
func ParseBytes(text string) (Bytes, error) {
	num, word, err := split(text, "size")
	if err != nil {
		return 0, err
	}
	if word == "" {
		word = "B"
	}
	scale, ok := scaleOf(word, "B", append(decimal, binary...))
	if !ok {
		return 0, fmt.Errorf("parse size %q: unknown unit %q, want B, kB, MB, GB, KiB, MiB or GiB", text, clip(word))
	}
	number := num * scale
	if scale > 1 {
		number = math.Floor(number)
	}
	if number != math.Trunc(number) || number < 0 || number >= math.MaxInt64 {
		return 0, fmt.Errorf("parse size %q: want a whole number of bytes from 0", text)
	}
	return Bytes(number), nil
}

// ParseSeconds reads a time such as "60s", "1.5 ms", "250us", "10m" or "1h30m".
func ParseSeconds(text string) (Seconds, error) {
	if len(text) > maxText {
		return 0, fmt.Errorf("parse time %q: too long", clip(text))
	}
	total, rest, last := 0.0, strings.TrimSpace(text), math.Inf(1)
	if rest == "0" {
		return 0, nil
	}
	if rest == "" {
		return 0, fmt.Errorf("parse time %q: it is empty", text)
	}
	// one number with its unit at a time, from large units to small ones
	for rest != "" {
		end := numberEnd(rest)
		for end < len(rest) && rest[end] == ' ' {
			end++
		}
		for end < len(rest) && rest[end] != ' ' && !isNumber(rest[end]) {
			end++
		}
		num, word, err := split(rest[:end], "time")
		if err != nil {
			return 0, fmt.Errorf("parse time %q: want a number and a unit, like 60s or 1.5 ms", text)
		}
		found, ok := timeUnits[word]
		if !ok {
			return 0, fmt.Errorf("parse time %q: unknown unit %q, want ns, us, ms, s, m or h", text, clip(word))
		}
		if found.seconds/found.per >= last || num < 0 {
			return 0, fmt.Errorf("parse time %q: want parts from large to small, like 1h30m", text)
		}
		last = found.seconds / found.per
		total += num * found.seconds / found.per
		rest = strings.TrimSpace(rest[end:])
	}
	return Seconds(total), nil
}

// timeUnits are kept as seconds/per, so that 250us is the float64 nearest to 0.00025.
var timeUnits = map[string]struct{ seconds, per float64 }{
	"ns": {1, 1e9}, "us": {1, 1e6}, "µs": {1, 1e6}, "μs": {1, 1e6}, "ms": {1, 1e3},
	"s": {1, 1}, "m": {60, 1}, "min": {60, 1}, "h": {3600, 1},
}

// scaleOf returns the scale of a prefixed unit, 0 and true for no unit at all, and false for another
// unit.
func scaleOf(word, unit string, prefixes []prefix) (float64, bool) {
	name, ok := strings.CutSuffix(word, unit)
	if !ok {
		return 0, word == ""
	}
	for _, prefix := range prefixes {
		if name == prefix.name {
			return prefix.scale, true
		}
	}
	return 0, false
}

// maxText bounds what is parsed; no sensible value is longer.
const maxText = 64

// isNumber reports whether a character may belong to a number.
func isNumber(char byte) bool {
	return char >= '0' && char <= '9' || char == '.' || char == '-' || char == '+'
}

// numberEnd returns where the number at the start of s ends. An exponent counts only where digits
// follow, so that a unit may start with 'e' or 'E'.
func numberEnd(text string) int {
	end := 0
	for end < len(text) {
		char := text[end]
		if (char == 'e' || char == 'E') && end+1 < len(text) && isNumber(text[end+1]) && text[end+1] != '.' {
			end += 2
			continue
		}
		if !isNumber(char) {
			break
		}
		end++
	}
	return end
}

// split separates the number from the unit. Without a unit only 0 and sizes are accepted.
func split(text, what string) (float64, string, error) {
	if len(text) > maxText {
		return 0, "", fmt.Errorf("parse %s %q: too long", what, clip(text))
	}
	rest := strings.TrimSpace(text)
	end := numberEnd(rest)
	number, err := strconv.ParseFloat(rest[:end], 64)
	if err != nil || math.IsInf(number, 0) {
		return 0, "", fmt.Errorf("parse %s %q: want a number and a unit", what, text)
	}
	word := strings.TrimSpace(rest[end:])
	if word == "" && number != 0 && what != "size" {
		return 0, "", fmt.Errorf("parse %s %q: the unit is missing", what, text)
	}
	return number, word, nil
}

// clip shortens what a user wrote for messages.
func clip(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}

// String prints whole binary units exactly ("64 KiB", "4 GiB"), others with three digits ("1.46 MiB").
func (b Bytes) String() string {
	number := float64(b)
	for _, unit := range slices.Backward(binary) {
		if math.Abs(number) >= unit.scale {
			return digits(number/unit.scale) + " " + unit.name + "B"
		}
	}
	return strconv.FormatInt(int64(b), 10) + " B"
}

// digits prints three significant digits, more only before the point.
func digits(number float64) string {
	size := math.Abs(number)
	prec := 2
	switch {
	case size >= 99.95 || size != size || math.IsInf(size, 0):
		prec = 0
	case size >= 9.995:
		prec = 1
	}
	text := strconv.FormatFloat(number, 'f', prec, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// UnmarshalText reads a size in a file.
func (b *Bytes) UnmarshalText(text []byte) (err error) { *b, err = ParseBytes(string(text)); return }

// MarshalText writes a size exactly: the largest binary unit that divides it.
func (b Bytes) MarshalText() ([]byte, error) {
	for _, unit := range slices.Backward(binary) {
		if seconds := int64(unit.scale); b != 0 && int64(b)%seconds == 0 {
			return fmt.Appendf(nil, "%d%sB", int64(b)/seconds, unit.name), nil
		}
	}
	return strconv.AppendInt(nil, int64(b), 10), nil
}
