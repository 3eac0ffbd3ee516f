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

// token writes s, or demands it.
func (c *codec) token(s string) {
	if c.err != nil {
		return
	}
	if c.encoding {
		c.buf = append(c.buf, s...)
		return
	}
	if !c.has(s) {
		c.fail("want %s, got %q", s, c.peek())
		return
	}
	c.pos += len(s)
}

func (c *codec) has(s string) bool {
	return len(c.buf)-c.pos >= len(s) && string(c.buf[c.pos:c.pos+len(s)]) == s
}

func (c *codec) peek() []byte { return c.buf[c.pos:min(c.pos+16, len(c.buf))] }

func (c *codec) open(bracket string) { c.token(bracket); c.fresh = true }

func (c *codec) close(bracket string) { c.token(bracket); c.fresh = false }

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
func list[T any](c *codec, s *[]T, limit int, item func(*T)) {
	c.open("[")
	if c.encoding {
		if len(*s) > limit {
			c.fail("%d elements, want at most %d", len(*s), limit)
		}
		for i := range *s {
			c.separate()
			item(&(*s)[i])
		}
	} else {
		*s = nil
		for c.err == nil && !c.has("]") {
			if len(*s) == limit {
				c.fail("more than %d elements", limit)
				return
			}
			c.separate()
			var v T
			item(&v)
			*s = append(*s, v)
		}
	}
	c.close("]")
}

// str describes a string of at most limit bytes.
func (c *codec) str(v *string, limit int) {
	c.token(`"`)
	if c.err != nil {
		return
	}
	if c.encoding {
		if len(*v) > limit {
			c.fail("string of %d bytes, want at most %d", len(*v), limit)
		}
		for i := range len(*v) {
			if !plain((*v)[i]) {
				c.fail("string %q holds byte %#02x; only printable ASCII without quote and backslash is allowed", *v, (*v)[i])
			}
		}
		c.token(*v)
	} else {
		end := c.pos
		for end < len(c.buf) && plain(c.buf[end]) {
			end++
		}
		if end-c.pos > limit {
			c.fail("string of more than %d bytes", limit)
			return
		}
		*v = string(c.buf[c.pos:end])
		c.pos = end
	}
	c.token(`"`)
}

func plain(b byte) bool { return b >= 0x20 && b <= 0x7e && b != '"' && b != '\\' }

// constant describes a string that has one value.
func (c *codec) constant(v string) { c.token(`"` + v + `"`) }

// integer describes a number between low >= 0 and high <= 2^53-1.
func (c *codec) integer(v *int64, low, high int64) {
	if c.err != nil {
		return
	}
	if c.encoding {
		if *v < low || *v > high {
			c.fail("number %d, want %d to %d", *v, low, high)
		}
		c.buf = strconv.AppendInt(c.buf, *v, 10)
		return
	}
	end := c.pos
	for end < len(c.buf) && end-c.pos < 17 && c.buf[end] >= '0' && c.buf[end] <= '9' {
		end++
	}
	digits := string(c.buf[c.pos:end])
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil:
		c.fail("want a number, got %q", c.peek())
	case digits[0] == '0' && digits != "0":
		c.fail("number %q has a leading zero", digits)
	case n < low || n > high:
		c.fail("number %s, want %d to %d", digits, low, high)
	default:
		*v, c.pos = n, end
	}
}

// flag describes a member that is true when present.
func (c *codec) flag(name string, v *bool) {
	if c.optional(name, !*v) {
		c.token("true")
		*v = true
	}
}

// digest describes 32 bytes as 64 lower-case hex digits.
func (c *codec) digest(v *Digest) {
	var s string
	if c.encoding {
		s = v.String()
	}
	c.str(&s, 64)
	if c.err != nil || c.encoding {
		return
	}
	upper := strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' && r < 'a' })
	if n, err := hex.Decode(v[:], []byte(s[:min(len(s), 2*len(v))])); err != nil || upper || n != len(v) {
		c.fail("digest %q is not 64 lower-case hex digits", s)
	}
}
