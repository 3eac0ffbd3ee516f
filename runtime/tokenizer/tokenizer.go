// Package tokenizer knows how text becomes token ids and ids become text: it reads the bytes of a
// Hugging Face tokenizer.json and gives the same ids as the implementation that wrote it, or refuses
// the file by the name of what it does not know.
//
// Read so far: byte-level BPE with GPT-2 splitting, and added tokens.
package tokenizer

import (
	"unicode/utf8"
)

// Tokenizer turns text into token ids and back. Implementations are safe for concurrent use.
type Tokenizer interface {
	// Encode returns the ids of text, nothing added. Added tokens written in the text ("<s>") become
	// their ids. Bytes that are not valid UTF-8 are read as U+FFFD. The error is of class ClassInput.
	Encode(text string) ([]int32, error)
	// Prompt is Encode with the tokens in front that begin a text; see New for which.
	Prompt(text string) ([]int32, error)
	// Decode returns the text of ids without special tokens. Incomplete characters become U+FFFD, ids
	// outside the vocabulary nothing.
	Decode(ids []int32) string
	// DecodeSpecial is Decode with the special tokens written out.
	DecodeSpecial(ids []int32) string
	// Stream returns a decoder for ids that arrive one by one.
	Stream() *Stream
	// Special returns the ids of the special tokens, ascending.
	Special() []int32
	// VocabSize is one more than the largest id.
	VocabSize() int
}

// Stream decodes ids one by one and holds back the beginning of a character until it is complete,
// so that what it returned never changes. Special tokens give no text.
type Stream struct {
	token   func(id int32) []byte
	pending []byte
}

// Push returns the text that id completes, possibly "".
func (s *Stream) Push(id int32) string {
	s.pending = append(s.pending, s.token(id)...)
	var out []byte
	out, s.pending = appendValid(nil, s.pending, false)
	return string(out)
}

// Flush returns what is left when no more ids come: U+FFFD for an incomplete character.
func (s *Stream) Flush() string {
	out, _ := appendValid(nil, s.pending, true)
	s.pending = nil
	return string(out)
}

// appendValid appends src to dst as UTF-8: each longest piece that cannot become a character is
// replaced by U+FFFD. The beginning of a character at the end of src is returned as rest unless end is set.
func appendValid(dst, src []byte, end bool) (out, rest []byte) {
	for len(src) > 0 {
		if r, n := utf8.DecodeRune(src); r != utf8.RuneError || n > 1 {
			dst, src = append(dst, src[:n]...), src[n:]
			continue
		}
		if !utf8.FullRune(src) && !end {
			return dst, src
		}
		n := 1
		for n < len(src) && !utf8.FullRune(src[:n+1]) {
			n++
		}
		dst, src = utf8.AppendRune(dst, utf8.RuneError), src[n:]
	}
	return dst, nil
}
