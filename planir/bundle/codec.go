package bundle

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// codec writes or reads canonical JSON by one description of a document: keys in a fixed
// order, no white space, integers without sign, strings of printable ASCII without quote and
// backslash. Because the same walk encodes and decodes, a reader cannot accept what the writer
// would not produce, except an optional member that is present and empty; decode re-encodes
// and compares to close that gap too. The first failure sticks.
type codec struct {
	encoding bool
	buf      []byte // what was written, or the input
	pos      int    // of the next byte to read
	fresh    bool   // right behind an opening bracket
	name     string // of the member being read or written, for messages
	err      error
}

// encode returns the canonical bytes of what walk describes.
func encode(walk func(*codec)) ([]byte, error) { return encodeTo(nil, walk) }

// encodeTo appends to buf.
func encodeTo(buf []byte, walk func(*codec)) ([]byte, error) {
	c := &codec{encoding: true, buf: buf}
	walk(c)
	return c.buf, c.err
}

// decode reads exactly one document from data.
func decode(data []byte, walk func(*codec)) error {
	c := &codec{buf: data}
	walk(c)
	if c.err == nil && c.pos != len(data) {
		c.fail("%d bytes after the end of the document", len(data)-c.pos)
	}
	if c.err != nil {
		return c.err
	}
	again, err := encodeTo(make([]byte, 0, len(data)), walk)
	if err != nil {
		return err
	}
	if !bytes.Equal(again, data) {
		n := 0
		for n < len(data) && n < len(again) && data[n] == again[n] {
			n++
		}
		return fmt.Errorf("at byte %d: not canonical (an empty optional member, or members out of order)", n)
	}
	return nil
}

// fail keeps the first mistake, with the member and, when reading, the byte where it is.
func (c *codec) fail(format string, args ...any) {
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf(format, args...)
	if c.name != "" {
		c.err = fmt.Errorf("%s: %w", c.name, c.err)
	}
	if !c.encoding {
		c.err = fmt.Errorf("at byte %d: %w", c.pos, c.err)
	}
}

// token writes a text, or demands it.
func (c *codec) token(text string) {
	if c.err != nil {
		return
	}
	if c.encoding {
		c.buf = append(c.buf, text...)
		return
	}
	if !c.has(text) {
		c.fail("got %q, want %s", c.peek(), text)
		return
	}
	c.pos += len(text)
}

// has reports whether a text comes next, without reading it.
func (c *codec) has(text string) bool {
	return len(c.buf)-c.pos >= len(text) && string(c.buf[c.pos:c.pos+len(text)]) == text
}

// peek returns what comes next, for messages.
func (c *codec) peek() []byte { return c.buf[c.pos:min(c.pos+16, len(c.buf))] }

// open writes or demands an opening bracket; no comma stands before what follows it.
func (c *codec) open(bracket string) { c.token(bracket); c.fresh = true }

// close writes or demands a closing bracket.
func (c *codec) close(bracket string) { c.token(bracket); c.fresh = false }

// separate writes or demands the comma before an element, unless it is the first behind its bracket.
func (c *codec) separate() {
	if !c.fresh {
		c.token(",")
	}
	c.fresh = false
}

// member starts a required member.
func (c *codec) member(name string) {
	c.separate()
	c.name = name
	c.token(`"`)
	c.token(name)
	c.token(`":`)
}

// optional starts a member that is left out when empty, and reports whether it is there.
func (c *codec) optional(name string, empty bool) bool {
	if c.err != nil {
		return false
	}
	key := `"` + name + `":`
	if !c.fresh {
		key = "," + key
	}
	if c.encoding && empty || !c.encoding && !c.has(key) {
		return false
	}
	c.name = name
	c.token(key)
	c.fresh = false
	return true
}

// object brackets the members that body describes.
func (c *codec) object(body func()) {
	c.open("{")
	body()
	c.close("}")
}

// list describes an array of at most limit elements.
func list[T any](c *codec, to *[]T, limit int, item func(*T)) {
	c.open("[")
	if c.encoding {
		if len(*to) > limit {
			c.fail("%d elements, want at most %d", len(*to), limit)
		}
		for i := range *to {
			c.separate()
			item(&(*to)[i])
		}
	} else {
		*to = nil
		for c.err == nil && !c.has("]") {
			if len(*to) == limit {
				c.fail("more than %d elements", limit)
				return
			}
			c.separate()
			var v T
			item(&v)
			*to = append(*to, v)
		}
	}
	c.close("]")
}

// str describes a string of at most limit bytes.
func (c *codec) str(to *string, limit int) {
	c.token(`"`)
	if c.err != nil {
		return
	}
	if c.encoding {
		if len(*to) > limit {
			c.fail("string of %d bytes, want at most %d", len(*to), limit)
		}
		for i := range len(*to) {
			if !plain((*to)[i]) {
				c.fail("string %q holds byte %#02x; only printable ASCII without quote and backslash is allowed", *to,
					(*to)[i])
			}
		}
		c.token(*to)
	} else {
		end := c.pos
		for end < len(c.buf) && plain(c.buf[end]) {
			end++
		}
		if end-c.pos > limit {
			c.fail("string of more than %d bytes", limit)
			return
		}
		*to = string(c.buf[c.pos:end])
		c.pos = end
	}
	c.token(`"`)
}

// optionalStr describes a member that is left out when it is "".
func (c *codec) optionalStr(name string, to *string, limit int) {
	if c.optional(name, *to == "") {
		c.str(to, limit)
	}
}

// plain reports whether a character stands for itself in a string.
func plain(b byte) bool { return b >= 0x20 && b <= 0x7e && b != '"' && b != '\\' }

// constant describes a string that has one value.
func (c *codec) constant(v string) { c.token(`"` + v + `"`) }

// integer describes a number between low >= 0 and high <= 2^53-1.
func (c *codec) integer(to *int64, low, high int64) {
	if c.err != nil {
		return
	}
	if c.encoding {
		if *to < low || *to > high {
			c.fail("number %d, want %d to %d", *to, low, high)
		}
		c.buf = strconv.AppendInt(c.buf, *to, 10)
		return
	}
	end := c.pos
	// 17 digits hold every number up to 2^53-1 and overflow no int64.
	for end < len(c.buf) && end-c.pos < 17 && c.buf[end] >= '0' && c.buf[end] <= '9' {
		end++
	}
	digits := string(c.buf[c.pos:end])
	number, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil:
		c.fail("got %q, want a number", c.peek())
	case digits[0] == '0' && digits != "0":
		c.fail("number %q has a leading zero", digits)
	case number < low || number > high:
		c.fail("number %s, want %d to %d", digits, low, high)
	default:
		*to, c.pos = number, end
	}
}

// flag describes a member that is true when present.
func (c *codec) flag(name string, to *bool) {
	if c.optional(name, !*to) {
		c.token("true")
		*to = true
	}
}

// digest describes 32 bytes as 64 lower-case hex digits.
func (c *codec) digest(to *Digest) {
	var text string
	if c.encoding {
		text = to.String()
	}
	c.str(&text, 64)
	if c.err != nil || c.encoding {
		return
	}
	upper := strings.ContainsFunc(text, func(r rune) bool { return r < '0' || r > '9' && r < 'a' })
	count, err := hex.Decode(to[:], []byte(text[:min(len(text), 2*len(to))]))
	if err != nil || upper || count != len(to) {
		c.fail("digest %q is not 64 lower-case hex digits", text)
	}
}
