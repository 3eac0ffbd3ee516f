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
func members(object []byte, visit func(key string, value []byte) error) error {
	seen := map[string]bool{}
	return entries(object, func(key string, value []byte) error {
		if seen[key] {
			return fmt.Errorf("key %q twice", clip(key))
		}
		if len(seen) == 1000 {
			return fmt.Errorf("more than 1000 keys")
		}
		seen[key] = true
		return visit(key, value)
	})
}

// entries is members, but does not check for keys that come twice.
func entries(object []byte, visit func(key string, value []byte) error) error {
	if len(object) == 0 || object[0] != '{' {
		return fmt.Errorf("want an object, got %.20q", object)
	}
	data := trim(object[1:])
	for data[0] != '}' {
		size := length(data)
		key, err := unquote(data[:size])
		if err != nil {
			return err
		}
		data = trim(data[size:])
		data = trim(data[1:]) // the colon
		size = length(data)
		if err := visit(key, data[:size]); err != nil {
			return err
		}
		if data = trim(data[size:]); data[0] == ',' {
			data = trim(data[1:])
		}
	}
	return nil
}

// elements calls f with each element of a list.
func elements(list []byte, visit func(value []byte) error) error {
	if len(list) == 0 || list[0] != '[' {
		return fmt.Errorf("want a list, got %.20q", list)
	}
	data := trim(list[1:])
	for data[0] != ']' {
		size := length(data)
		if err := visit(data[:size]); err != nil {
			return err
		}
		if data = trim(data[size:]); data[0] == ',' {
			data = trim(data[1:])
		}
	}
	return nil
}

// length returns the length of the value that b begins with.
func length(data []byte) int {
	depth := 0
	for i := 0; ; {
		switch data[i] {
		// a text, in which brackets do not count
		case '"':
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
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
			for i < len(data) && strings.IndexByte(",:]} \t\r\n", data[i]) < 0 {
				i++
			}
			if i == len(data) {
				return i
			}
		}
		// Only whole values end at depth 0; separators inside lists are deeper.
		if depth == 0 {
			return i
		}
	}
}

// unquote returns the text of a JSON string.
func unquote(data []byte) (string, error) {
	text, err := unquoted(data)
	return string(text), err
}

// unquoted is unquote that shares the memory of b where it can.
func unquoted(data []byte) ([]byte, error) {
	if len(data) < 2 || data[0] != '"' {
		return nil, fmt.Errorf("want a string, got %.20q", data)
	}
	if bytes.IndexByte(data, '\\') < 0 {
		return data[1 : len(data)-1], nil
	}
	var text string
	err := json.Unmarshal(data, &text)
	return []byte(text), err
}

// maxPart bounds the parts of a tokenizer.json around the model, in bytes.
const maxPart = 1 << 20

// part is one of them, still as JSON.
type part []byte

// UnmarshalJSON keeps b. It may: the document it is a piece of is not changed.
func (p *part) UnmarshalJSON(data []byte) error {
	if len(data) > maxPart {
		return fmt.Errorf("%d bytes, want at most %d", len(data), maxPart)
	}
	*p = bytes.Clone(data)
	return nil
}

// clip shortens a text for a message, and keeps it on one line.
func clip(text string) string {
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "..."
	}
	return strings.Map(func(char rune) rune {
		if unicode.IsPrint(char) {
			return char
		}
		return ' '
	}, text)
}

// isNull reports whether a part is null or not there.
func (p part) isNull() bool { return len(p) == 0 || string(p) == "null" }

// strict decodes p into v; a key that v does not have is an error.
func (p part) strict(into any) error {
	decoder := json.NewDecoder(bytes.NewReader(p))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return errors.New(clip(err.Error()))
	}
	return nil
}

// kind returns the "type" of a part, for messages.
func (p part) kind() string {
	var part struct {
		Type string `json:"type"`
	}
	if p.isNull() {
		return "nothing"
	}
	if err := json.Unmarshal(p, &part); err != nil || part.Type == "" {
		return "something without a type"
	}
	return clip(part.Type)
}

// unsupported returns the error of a part of another kind.
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
	for _, part := range parts {
		steps, err := read(part, depth+1)
		if err != nil {
			return nil, err
		}
		if out = append(out, steps...); len(out) > maxSteps {
			return nil, fmt.Errorf("more than %d steps", maxSteps)
		}
	}
	return out, nil
}
