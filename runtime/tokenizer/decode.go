package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// knownDecoders lists the kinds of decoders, for messages.
const knownDecoders = "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip"

// A decoderStep is one of the steps in which a decoder turns tokens into text. Each is given tokens one by one and
// hands on what it makes of them, so a stream and a whole text are decoded by the same code.
type decoderStep struct {
	begin func(next receiver) receiver // for one text, whose tokens go on to next
	fuses bool                         // the step after it is given all text as one token
	apart string                       // its name, for messages, if it must be given tokens apart
}

// receiver takes tokens, which it does not change. more says that text continues the token before.
type receiver interface {
	take(text []byte, more bool)
	flush() // nothing more comes
}

// passing is what all steps have. A step that keeps something back flushes it first.
type passing struct{ next receiver }

// flush has nothing of its own to hand on.
func (p passing) flush() { p.next.flush() }

// newDecoder reads a decoder part as its steps.
func newDecoder(raw part) ([]decoderStep, error) {
	if raw.isNull() {
		return nil, raw.unsupported(knownDecoders)
	}
	steps, err := readDecoders(raw, 0)
	if err != nil {
		return nil, err
	}
	fused := false
	for _, step := range steps {
		if fused && step.apart != "" {
			return nil, fmt.Errorf("%s after ByteLevel or Fuse is not supported", step.apart)
		}
		fused = fused || step.fuses
	}
	return steps, nil
}

// decoderFields are those of all kinds of decoders.
type decoderFields struct {
	Type string `json:"type"`
	// of a Sequence
	Decoders []part `json:"decoders"`
	// of ByteLevel and Metaspace; the next two change nothing in a decoder
	AddPrefixSpace *bool `json:"add_prefix_space"`
	TrimOffsets    bool  `json:"trim_offsets"`
	UseRegex       bool  `json:"use_regex"`
	// of Replace, and content of Strip as well
	Pattern part   `json:"pattern"`
	Content string `json:"content"`
	// of Strip: most characters to remove from a token's beginning; stop, from its end, must be 0
	Start int `json:"start"`
	Stop  int `json:"stop"`
	// of Metaspace: the character that stands for a space
	Replacement   string  `json:"replacement"`
	PrependScheme *string `json:"prepend_scheme"`
	Split         bool    `json:"split"`
	StrRep        *string `json:"str_rep"`
}

// readDecoders reads a part and, for a Sequence, those in it. A step that would decode otherwise than the reference is
// refused. Sizes of what a part holds are checked here, once, since a step meets every token.
func readDecoders(raw part, depth int) ([]decoderStep, error) {
	var fields decoderFields
	if err := raw.strict(&fields); err != nil {
		return nil, err
	}
	var step decoderStep
	var err error
	switch fields.Type {
	case "Sequence":
		return flatten(fields.Decoders, depth, readDecoders)
	case "ByteLevel":
		step.begin = func(next receiver) receiver { return &byteLevelDecoder{passing: passing{next}} }
		step.fuses = true
		// One character that is no byte keeps the whole token as it is, so a token must come in one piece.
		step.apart = "ByteLevel"
	case "ByteFallback":
		step.begin = func(next receiver) receiver { return &byteFallbackDecoder{passing: passing{next}} }
		step.apart = "ByteFallback"
	case "Fuse":
		step.begin = func(next receiver) receiver { return &fuseDecoder{passing: passing{next}} }
		step.fuses = true
	case "Replace":
		step, err = fields.replace()
	case "Strip":
		step, err = fields.strip()
	case metaspaceKind:
		step, err = fields.metaspace()
	default:
		return nil, raw.unsupported(knownDecoders)
	}
	return []decoderStep{step}, err
}

// replace returns a Replace step.
func (f *decoderFields) replace() (step decoderStep, err error) {
	replacer, err := newReplacer(f.Pattern, f.Content)
	if err != nil {
		return step, err
	}
	step.begin = func(next receiver) receiver { return &replaceDecoder{passing{next}, replacer} }
	// After a step that fuses, a token comes in pieces, and a longer match could lie across two of them.
	if replacer.pattern != nil || utf8.RuneCountInString(replacer.text) != 1 {
		step.apart = "Replace of more than a character"
	}
	return step, nil
}

// strip returns a Strip step. Characters at the end of a token would have to be held back until the next one begins, so
// only those at its beginning can be stripped.
func (f *decoderFields) strip() (step decoderStep, err error) {
	if utf8.RuneCountInString(f.Content) != 1 {
		return step, fmt.Errorf("content of Strip is %q, want one character", clip(f.Content))
	}
	if f.Start < 0 {
		return step, fmt.Errorf("start of Strip is %d, want at least 0", f.Start)
	}
	if f.Stop != 0 {
		return step, fmt.Errorf("stop of Strip is %d; supported: 0", f.Stop)
	}
	step.begin = func(next receiver) receiver { return &stripDecoder{passing{next}, f.Content, f.Start, 0} }
	return step, nil
}

// metaspace returns a Metaspace step.
func (f *decoderFields) metaspace() (step decoderStep, err error) {
	char := f.Replacement
	if utf8.RuneCountInString(char) != 1 {
		return step, fmt.Errorf("replacement of Metaspace is %q, want one character", clip(char))
	}
	// The field that older files have says the same as prepend_scheme, and must not contradict it.
	prepended := f.PrependScheme == nil || *f.PrependScheme != "never"
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace && prepended {
		return step, errors.New("add_prefix_space of Metaspace is false, and prepend_scheme is not never")
	}
	step.begin = func(next receiver) receiver {
		return &metaspaceDecoder{passing: passing{next}, char: char, prepended: prepended}
	}
	return step, nil
}

// byteLevelDecoder reads tokens in the byte alphabet. What is not UTF-8 becomes U+FFFD.
type byteLevelDecoder struct {
	passing
	pending []byte // the beginning of a character
	more    bool
}

// take turns visible characters back into the bytes that they stand for.
func (d *byteLevelDecoder) take(text []byte, _ bool) { d.hand(text, false) }

// flush replaces bytes that are no whole character at the end of the text.
func (d *byteLevelDecoder) flush() { d.hand(nil, true); d.next.flush() }

// hand hands on all complete characters. At the end, bytes that are left are no character.
func (d *byteLevelDecoder) hand(text []byte, end bool) {
	// Complete text goes on at once, so that what waits stays short.
	d.pending = appendBytes(d.pending, string(text))
	out, rest := appendValid(nil, d.pending, end)
	d.pending = append(d.pending[:0], rest...)
	if len(out) > 0 {
		d.next.take(out, d.more)
		d.more = true
	}
}

// byteFallbackDecoder turns runs of tokens like <0x0A> into text. A run that is not UTF-8 becomes a U+FFFD for
// each byte, so nothing of it can be handed on before its end.
type byteFallbackDecoder struct {
	passing
	run []byte
}

// take collects tokens of bytes. Any other token ends the run.
func (d *byteFallbackDecoder) take(text []byte, more bool) {
	if len(text) == 6 && string(text[:3]) == "<0x" && text[5] == '>' {
		digits, _ := strings.CutPrefix(string(text[3:5]), "+") // "+A" is a number to the reference
		if value, err := strconv.ParseUint(digits, 16, 8); err == nil {
			d.run = append(d.run, byte(value))
			return
		}
	}
	d.end()
	d.next.take(text, more)
}

// end hands the run on.
func (d *byteFallbackDecoder) end() {
	if len(d.run) > 0 && utf8.Valid(d.run) {
		d.next.take(d.run, false)
	} else {
		for range d.run {
			d.next.take([]byte("\ufffd"), false)
		}
	}
	d.run = d.run[:0]
}

// flush ends a run of byte tokens with the text.
func (d *byteFallbackDecoder) flush() { d.end(); d.next.flush() }

// fuseDecoder makes one token of all.
type fuseDecoder struct {
	passing
	more bool
}

// take says of all pieces but the first that they continue a text.
func (d *fuseDecoder) take(text []byte, _ bool) { d.next.take(text, d.more); d.more = true }

// replaceDecoder replaces in each token.
type replaceDecoder struct {
	passing
	*replacer
}

// take replaces in each token apart: a match never spans two of them.
func (d *replaceDecoder) take(text []byte, more bool) {
	out, err := d.replace(string(text))
	if err != nil {
		out = string(text) // tokens are too short for that
	}
	d.next.take([]byte(out), more)
}

// stripDecoder removes up to start characters char from the beginning of each token.
type stripDecoder struct {
	passing
	char        string
	start, left int
}

// take counts characters over all pieces of a token.
func (d *stripDecoder) take(text []byte, more bool) {
	if !more {
		d.left = d.start
	}
	for ; d.left > 0 && len(text) > 0; d.left-- {
		rest, ok := bytes.CutPrefix(text, []byte(d.char))
		if !ok {
			d.left = 0
			break
		}
		text = rest
	}
	d.next.take(text, more)
}

// metaspaceDecoder turns char into spaces; in the first token into nothing, if one was prepended.
type metaspaceDecoder struct {
	passing
	char         string
	prepended    bool
	began, later bool // a token came, and another one after it
}

// take needs to know only whether a token came before, however many pieces it has.
func (d *metaspaceDecoder) take(text []byte, more bool) {
	d.later = d.later || d.began && !more
	d.began = true
	space := " "
	if d.prepended && !d.later {
		space = ""
	}
	d.next.take([]byte(strings.ReplaceAll(string(text), d.char, space)), more)
}

// collector is the end of the steps.
type collector struct{ text []byte }

// take is the end of the chain: it keeps the text.
func (c *collector) take(text []byte, _ bool) { c.text = append(c.text, text...) }

// flush has nothing to do: the text is there.
func (c *collector) flush() {}

// Stream decodes ids one by one and holds back what later ids could still change, so that what it
// returned never changes. Special tokens give no text.
type Stream struct {
	token func(id int32) []byte // empty for an id without a token
	in    receiver
	out   *collector
}

// newStream links the steps, the last one first.
func newStream(steps []decoderStep, token func(id int32) []byte) *Stream {
	stream := &Stream{token: token, out: &collector{}}
	stream.in = stream.out
	for _, step := range slices.Backward(steps) {
		stream.in = step.begin(stream.in)
	}
	return stream
}

// Push returns the text that id completes, possibly "".
func (s *Stream) Push(id int32) string {
	s.push(id)
	return s.taken()
}

// push hands an id to the first step. Ids without a token give nothing.
func (s *Stream) push(id int32) {
	if text := s.token(id); len(text) > 0 {
		s.in.take(text, false)
	}
}

// Flush returns the rest of the text when no more ids come. Bytes that are no character become U+FFFD.
func (s *Stream) Flush() string {
	s.in.flush()
	return s.taken()
}

// taken empties what the last step has given.
func (s *Stream) taken() string {
	out := string(s.out.text)
	s.out.text = s.out.text[:0]
	return out
}

// appendValid appends src to dst as UTF-8: each longest piece that cannot become a character is
// replaced by U+FFFD. The beginning of a character at the end of src is returned as rest unless end is set.
func appendValid(dst, src []byte, end bool) (out, rest []byte) {
	for len(src) > 0 {
		if char, width := utf8.DecodeRune(src); char != utf8.RuneError || width > 1 {
			dst, src = append(dst, src[:width]...), src[width:]
			continue
		}
		// These bytes may yet become a character.
		if !utf8.FullRune(src) && !end {
			return dst, src
		}
		// The longest prefix that could still have become a character is one mistake, so one U+FFFD: what the Unicode
		// standard recommends and Rust's String::from_utf8_lossy does.
		width := 1
		for width < len(src) && !utf8.FullRune(src[:width+1]) {
			width++
		}
		dst, src = utf8.AppendRune(dst, utf8.RuneError), src[width:]
	}
	return dst, nil
}
