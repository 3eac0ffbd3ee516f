package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// A tokenizer.json can be large, and most of it is one object and one list. These functions walk a
// document that json.Valid accepted, without copying it, so that the caller can count before it stores.

// members calls f with each key of an object and its value. A key that comes twice is an error.
func members(object []byte, f func(key string, value []byte) error) error {
	seen := map[string]bool{}
	return entries(object, func(key string, value []byte) error {
		if seen[key] {
			return fmt.Errorf("key %q twice", clip(key))
		}
		if len(seen) == 1000 {
			return fmt.Errorf("more than 1000 keys")
		}
		seen[key] = true
		return f(key, value)
	})
}

// entries is members without a look at keys that come twice.
func entries(object []byte, f func(key string, value []byte) error) error {
	if len(object) == 0 || object[0] != '{' {
		return fmt.Errorf("want an object, got %.20q", object)
	}
	b := trim(object[1:])
	for b[0] != '}' {
		n := length(b)
		key, err := unquote(b[:n])
		if err != nil {
			return err
		}
		b = trim(b[n:])
		b = trim(b[1:]) // the colon
		n = length(b)
		if err := f(key, b[:n]); err != nil {
			return err
		}
		if b = trim(b[n:]); b[0] == ',' {
			b = trim(b[1:])
		}
	}
	return nil
}

// elements calls f with each element of a list.
func elements(list []byte, f func(value []byte) error) error {
	if len(list) == 0 || list[0] != '[' {
		return fmt.Errorf("want a list, got %.20q", list)
	}
	b := trim(list[1:])
	for b[0] != ']' {
		n := length(b)
		if err := f(b[:n]); err != nil {
			return err
		}
		if b = trim(b[n:]); b[0] == ',' {
			b = trim(b[1:])
		}
	}
	return nil
}

// length is the length of the value that b begins with.
func length(b []byte) int {
	depth := 0
	for i := 0; ; {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			i++
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			i++
		default: // a number, or a word
			for i < len(b) && strings.IndexByte(",:]} \t\r\n", b[i]) < 0 {
				i++
			}
			if i == len(b) {
				return i
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// unquote is the text of a JSON string.
func unquote(b []byte) (string, error) {
	s, err := unquoted(b)
	return string(s), err
}

// unquoted is unquote that shares the memory of b where it can.
func unquoted(b []byte) ([]byte, error) {
	if len(b) < 2 || b[0] != '"' {
		return nil, fmt.Errorf("want a string, got %.20q", b)
	}
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1], nil
	}
	var s string
	err := json.Unmarshal(b, &s)
	return []byte(s), err
}

// maxPart bounds the parts of a tokenizer.json around the model, in bytes.
const maxPart = 1 << 20

// part is one of them, still as JSON.
type part []byte

// UnmarshalJSON keeps b. It may: the document it is a piece of is not changed.
func (p *part) UnmarshalJSON(b []byte) error {
	if len(b) > maxPart {
		return fmt.Errorf("%d bytes, want at most %d", len(b), maxPart)
	}
	*p = bytes.Clone(b)
	return nil
}

// clip shortens a text for a message, and keeps it on one line.
func clip(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

func (p part) isNull() bool { return len(p) == 0 || string(p) == "null" }

// strict decodes p into v; a key that v does not have is an error.
func (p part) strict(v any) error {
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.New(clip(err.Error()))
	}
	return nil
}

// kind is the "type" of a part, for messages.
func (p part) kind() string {
	var t struct {
		Type string `json:"type"`
	}
	if p.isNull() {
		return "nothing"
	}
	if err := json.Unmarshal(p, &t); err != nil || t.Type == "" {
		return "something without a type"
	}
	return clip(t.Type)
}

func (p part) unsupported(supported string) error {
	return fmt.Errorf("%s is not supported; supported: %s", p.kind(), supported)
}

// Bounds of a Sequence of parts.
const (
	maxSteps = 32
	maxDepth = 8
)

// flatten reads the steps of a Sequence with read.
func flatten[T any](parts []part, depth int, read func(part, int) ([]T, error)) ([]T, error) {
	if depth == maxDepth {
		return nil, fmt.Errorf("more than %d sequences in each other", maxDepth)
	}
	var out []T
	for _, p := range parts {
		steps, err := read(p, depth+1)
		if err != nil {
			return nil, err
		}
		if out = append(out, steps...); len(out) > maxSteps {
			return nil, fmt.Errorf("more than %d steps", maxSteps)
		}
	}
	return out, nil
}
