package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// maxPart bounds the parts of a tokenizer.json around the model, in bytes.
const maxPart = 1 << 20

// A part is one of the pieces that a tokenizer.json is made of, such as a normalizer, still as JSON.
type part []byte

// UnmarshalJSON keeps a copy, for a reader that knows the type.
func (p *part) UnmarshalJSON(data []byte) error {
	if len(data) > maxPart {
		return fmt.Errorf("%d bytes, want at most %d", len(data), maxPart)
	}
	*p = bytes.Clone(data)
	return nil
}

// isNull reports whether a part is null or not there.
func (p part) isNull() bool { return len(p) == 0 || string(p) == "null" }

// strict decodes a part into a struct. A key that the struct does not have is an error.
func (p part) strict(into any) error {
	decoder := json.NewDecoder(bytes.NewReader(p))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return errors.New(clip(err.Error()))
	}
	return nil
}

// kind returns the type that a part names, for messages.
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
