package tokenizer

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of a document: how deep values may lie in each other, as in encoding/json, and how many keys members accepts.
const (
	maxJSONDepth = 10000
	maxKeys      = 1000
)

// A scanner walks over a JSON document once, from beginning to end. It checks everything that it passes against RFC
// 8259 and UTF-8, and it hands out texts and values without copying them. Most of a tokenizer.json is one large object
// and one large list, whose readers take each element where it lies.
//
// A method that reads a value skips white space before it and stops behind it. A value of the wrong type is an ordinary
// error. Bytes that are no JSON are a syntaxError.
type scanner struct {
	data  []byte
	at    int // the next byte
	depth int // objects and lists that have begun and not ended
}

// A syntaxError says where a document stops being JSON.
type syntaxError struct{ at int }

func (e *syntaxError) Error() string {
	return fmt.Sprintf("not valid JSON in UTF-8 (at byte %d)", e.at)
}

// wrong returns the error of a document that stops being JSON here.
func (s *scanner) wrong() error { return &syntaxError{s.at} }

// next skips white space and returns the byte behind it, which it does not skip. At the end it returns 0, which is no
// byte of JSON.
func (s *scanner) next() byte {
	data, at := s.data, s.at
	for at < len(data) {
		switch char := data[at]; char {
		case ' ':
			at += spaces(data[at:])
		case '\n', '\r', '\t':
			at++
		default:
			s.at = at
			return char
		}
	}
	s.at = at
	return 0
}

// The next two functions look at eight bytes at once, as one number whose lowest byte is the first. eachByte times a
// byte is the number of eight such bytes.
const eachByte = 0x0101010101010101

// spaces returns how many spaces a text begins with. It stops counting at eight.
func spaces(text []byte) int {
	if len(text) < 8 {
		return 1
	}
	return bits.TrailingZeros64(binary.LittleEndian.Uint64(text)^' '*eachByte) / 8
}

// ordinary returns how many characters at the beginning of a text stand for themselves in a string. These are all of
// ASCII but quotes, backslashes and control characters. It stops counting at eight.
//
// Subtracting a bound from each byte sets the highest bit of the first byte that is below the bound. Its borrow may set
// bits of bytes behind it, which do not matter. A byte that equals another is below 1 after an exclusive or with it.
func ordinary(text []byte) int {
	if len(text) < 8 {
		var last [8]byte // zeros behind the text are control characters
		copy(last[:], text)
		text = last[:]
	}
	word := binary.LittleEndian.Uint64(text)
	quote, backslash := word^'"'*eachByte, word^'\\'*eachByte
	marks := word | (word - ' '*eachByte) | (quote-eachByte)&^quote | (backslash-eachByte)&^backslash
	return bits.TrailingZeros64(marks&(0x80*eachByte)) / 8
}

// end checks that nothing but white space follows.
func (s *scanner) end() error {
	if s.next(); s.at < len(s.data) {
		return s.wrong()
	}
	return nil
}

// want returns the error of a value that is of another type.
func (s *scanner) want(what string) error {
	value, err := s.raw()
	if err != nil {
		return err
	}
	return fmt.Errorf("want %s, got %.20q", what, value)
}

// members calls visit with each key of an object. visit then reads the value. A key that comes twice is an error.
func (s *scanner) members(visit func(key []byte) error) error {
	seen := make([][]byte, 0, 8)
	return s.object(func(key []byte) error {
		if slices.ContainsFunc(seen, func(other []byte) bool { return bytes.Equal(other, key) }) {
			return fmt.Errorf("key %q twice", clip(string(key)))
		}
		if len(seen) == maxKeys {
			return fmt.Errorf("more than %d keys", maxKeys)
		}
		seen = append(seen, key)
		return visit(key)
	})
}

// object is members for objects of any size. It does not look for keys that come twice.
func (s *scanner) object(visit func(key []byte) error) error {
	if s.next() != '{' {
		return s.want("an object")
	}
	return s.items('}', func() error {
		if s.next() != '"' {
			return s.wrong()
		}
		key, err := s.text()
		if err != nil {
			return err
		}
		if s.next() != ':' {
			return s.wrong()
		}
		s.at++
		return visit(key)
	})
}

// list calls visit before each element of a list. visit then reads the element.
func (s *scanner) list(visit func() error) error {
	if s.next() != '[' {
		return s.want("a list")
	}
	return s.items(']', visit)
}

// items calls visit before each item of an object or a list, up to the bracket that ends it.
func (s *scanner) items(end byte, visit func() error) error {
	s.at++
	if s.depth++; s.depth > maxJSONDepth {
		return s.wrong()
	}
	more := s.next() != end
	for more {
		if err := visit(); err != nil {
			return err
		}
		if more = s.next() == ','; more {
			s.at++
		}
	}
	if s.next() != end {
		return s.wrong()
	}
	s.at++
	s.depth--
	return nil
}

// raw passes over a value and returns it as it is written.
func (s *scanner) raw() (part, error) {
	s.next()
	start := s.at
	err := s.skip()
	return part(s.data[start:s.at]), err
}

// skip passes over a value.
func (s *scanner) skip() error {
	switch s.next() {
	case '{':
		return s.object(func([]byte) error { return s.skip() })
	case '[':
		return s.list(s.skip)
	case '"':
		_, _, err := s.quoted()
		return err
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

// word passes over a word of JSON.
func (s *scanner) word(word string) error {
	if len(s.data)-s.at < len(word) || string(s.data[s.at:s.at+len(word)]) != word {
		return s.wrong()
	}
	s.at += len(word)
	return nil
}

// number passes over a number. Its parts are digits without a leading zero, a fraction and an exponent.
func (s *scanner) number() error {
	s.sign("-")
	leading := s.at
	digits := s.digits()
	if digits == 0 || digits > 1 && s.data[leading] == '0' {
		return s.wrong()
	}
	if s.sign(".") && s.digits() == 0 {
		return s.wrong()
	}
	if s.sign("eE") {
		s.sign("+-")
		if s.digits() == 0 {
			return s.wrong()
		}
	}
	return nil
}

// sign passes over one of some characters, if one is next.
func (s *scanner) sign(chars string) bool {
	for i := range len(chars) {
		if s.at < len(s.data) && s.data[s.at] == chars[i] {
			s.at++
			return true
		}
	}
	return false
}

// digits passes over digits and returns how many there are.
func (s *scanner) digits() int {
	data, at := s.data, s.at
	for at < len(data) && '0' <= data[at] && data[at] <= '9' {
		at++
	}
	count := at - s.at
	s.at = at
	return count
}

// whole reads a whole number of 32 bits.
func (s *scanner) whole() (int32, error) {
	value, err := s.raw()
	if err != nil {
		return 0, err
	}
	if number, ok := small(value); ok {
		return number, nil
	}
	number, err := strconv.ParseInt(string(value[:min(len(value), 20)]), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("want a whole number, got %.20q", value)
	}
	return int32(number), nil
}

// small returns the number that up to nine digits write.
func small(digits []byte) (number int32, ok bool) {
	if len(digits) > 9 {
		return 0, false
	}
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		number = 10*number + int32(digit-'0')
	}
	return number, true
}

// truth reads true or false.
func (s *scanner) truth() (bool, error) {
	switch s.next() {
	case 't':
		return true, s.word("true")
	case 'f':
		return false, s.word("false")
	}
	return false, s.want("true or false")
}

// text reads a string. Without escape sequences it shares the memory of the document.
func (s *scanner) text() ([]byte, error) {
	if s.next() != '"' {
		return nil, s.want("a string")
	}
	inner, escaped, err := s.quoted()
	if escaped && err == nil {
		inner = unescape(inner)
	}
	return inner, err
}

// quoted passes over a string and returns what is between its quotes, and whether escape sequences are in it.
func (s *scanner) quoted() (inner []byte, escaped bool, err error) {
	data, start := s.data, s.at+1
	for at := start; at < len(data); {
		run := ordinary(data[at:])
		if at += run; run == 8 || at == len(data) {
			continue
		}
		size := 0
		switch char := data[at]; {
		case char == '"':
			s.at = at + 1
			return data[start:at], escaped, nil
		case char == '\\':
			size, escaped = escapeSize(data[at:]), true
		case char >= utf8.RuneSelf:
			size = characterSize(data[at:])
		}
		if size == 0 { // of a control character too
			s.at = at
			return nil, false, s.wrong()
		}
		at += size
	}
	s.at = len(data)
	return nil, false, s.wrong()
}

// characterSize returns the bytes of the character beyond ASCII that a text begins with, 0 if it is not valid UTF-8.
func characterSize(text []byte) int {
	// Most characters of vocabularies have two bytes.
	if len(text) > 1 && 0xc2 <= text[0] && text[0] <= 0xdf && text[1]&0xc0 == 0x80 {
		return 2
	}
	if _, size := utf8.DecodeRune(text); size > 1 {
		return size
	}
	return 0
}

// escapes are the characters that letters behind a backslash stand for.
var escapes = map[byte]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// escapeSize returns the bytes of the escape sequence that a text begins with, 0 if there is no such sequence.
func escapeSize(text []byte) int {
	if len(text) < 2 {
		return 0
	}
	if _, known := escapes[text[1]]; known {
		return 2
	}
	if _, ok := codeUnit(text); ok {
		return 6
	}
	return 0
}

// codeUnit returns the unit of UTF-16 that an escape sequence like \u0120 stands for.
func codeUnit(text []byte) (unit rune, ok bool) {
	var value [2]byte
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	_, err := hex.Decode(value[:], text[2:6])
	return rune(binary.BigEndian.Uint16(value[:])), err == nil
}

// unescape replaces the escape sequences of a string. Halves of surrogate pairs become U+FFFD.
func unescape(inner []byte) []byte {
	out := make([]byte, 0, len(inner))
	for at := 0; at < len(inner); {
		if inner[at] != '\\' {
			out = append(out, inner[at])
			at++
			continue
		}
		char, ok := codeUnit(inner[at:])
		if !ok {
			out = append(out, escapes[inner[at+1]])
			at += 2
			continue
		}
		at += 6
		if utf16.IsSurrogate(char) {
			low, _ := codeUnit(inner[at:])
			if char = utf16.DecodeRune(char, low); char != utf8.RuneError {
				at += 6
			}
		}
		out = utf8.AppendRune(out, char)
	}
	return out
}

// document reads a whole document with read, and checks that nothing follows it.
func document(data []byte, read func(s *scanner) error) error {
	s := &scanner{data: data}
	err := read(s)
	if err == nil {
		err = s.end()
	}
	// The place of a syntax error says more than the part of the document that it is in.
	if syntax, ok := errors.AsType[*syntaxError](err); ok {
		return syntax
	}
	return err
}
