package httpapi

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/runtime/tokenizer"
)

// decoder is what composing needs of tokenizer.Stream.
type decoder interface {
	Push(id int32) string
	Flush() string
}

// scored is a token with its log probability.
type scored struct {
	text    string
	logProb float64
	likely  []scored // the likeliest tokens in its place
	from    int      // where its text begins in the answer, in bytes
}

// composer turns tokens into text that may be shown: whole characters, and nothing of a stop sequence. With each piece
// of text go the scores of the tokens that it is made of.
type composer struct {
	decode  decoder
	stops   *stopper
	ends    []int32  // special tokens that are a stop sequence
	pending []scored // tokens whose text is not out yet
	decoded int      // bytes of text that the tokens have given
	shown   int      // bytes of it that are out
}

// push adds a token; with is nil when no scores are asked for. stopped says that a stop sequence is complete.
func (c *composer) push(id int32, with *scored) (piece string, scores []scored, stopped bool) {
	if slices.Contains(c.ends, id) {
		piece, scores, _ = c.finish()
		return piece, scores, true
	}
	text := c.decode.Push(id)
	if with != nil {
		before, whole := strings.CutSuffix(text, with.text)
		with.from = c.decoded
		if whole {
			with.from += len(before)
		}
		c.locate(before)
		c.pending = append(c.pending, *with)
	}
	return c.add(text)
}

// locate says where tokens begin whose text the decoder has held back until now. Parts of a character begin where the
// character does.
func (c *composer) locate(text string) {
	at := c.decoded
	for i := range c.pending {
		token := &c.pending[i]
		if token.from < c.decoded { // it was not held back
			continue
		}
		token.from = at
		if rest, whole := strings.CutPrefix(text, token.text); whole {
			at, text = at+len(token.text), rest
		}
	}
}

// add passes decoded text on.
func (c *composer) add(text string) (piece string, scores []scored, stopped bool) {
	c.decoded += len(text)
	piece, stopped = c.stops.push(text)
	c.shown += len(piece)
	return piece, c.release(), stopped
}

// finish returns what is left when no more tokens come.
func (c *composer) finish() (piece string, scores []scored, stopped bool) {
	text := c.decode.Flush()
	c.locate(text)
	piece, scores, stopped = c.add(text)
	if stopped {
		return piece, scores, true
	}
	piece += c.stops.flush()
	scores = append(scores, c.pending...)
	c.pending = nil
	return piece, scores, false
}

// release takes the pending tokens whose text is out as a whole. Each ends where the next begins; a token that has
// given no text yet waits for the one that completes its character.
func (c *composer) release() []scored {
	count := 0
	for i := range c.pending {
		end := c.decoded
		if i+1 < len(c.pending) {
			end = c.pending[i+1].from
		}
		if end > c.shown {
			break
		}
		if c.pending[i].from < c.shown {
			count = i + 1
		}
	}
	out := slices.Clone(c.pending[:count])
	c.pending = append(c.pending[:0], c.pending[count:]...)
	return out
}

// specialTexts returns the special tokens by their texts.
func specialTexts(tok tokenizer.Tokenizer) map[string]int32 {
	out := map[string]int32{}
	for _, id := range tok.Special() {
		out[tok.DecodeSpecial([]int32{id})] = id
	}
	return out
}

// spelledBy returns the special tokens that are one of some texts as a whole. They leave no text behind in which a stop
// sequence could be found.
func spelledBy(texts []string, special map[string]int32) (ids []int32) {
	for _, text := range texts {
		if id, there := special[text]; there {
			ids = append(ids, id)
		}
	}
	return ids
}

// leastLogProb stands for a probability of zero, which JSON has no logarithm for.
const leastLogProb = -9999

// tokenText returns the text of a token in the middle of an answer. Tokenizers drop the blank that begins a text, so
// the token is decoded behind itself.
func tokenText(tok tokenizer.Tokenizer, id int32) string {
	one := tok.DecodeSpecial([]int32{id})
	if text, ok := strings.CutPrefix(tok.DecodeSpecial([]int32{id, id}), one); ok {
		return text
	}
	return one
}

// finite makes a log probability a number that JSON has.
func finite(logProb float64) float64 {
	switch {
	case math.IsNaN(logProb) || logProb < leastLogProb:
		return leastLogProb
	case logProb == 0: // not -0, which JSON would show
		return 0
	}
	return logProb
}

// bytesOf returns the bytes of a token's text as JSON numbers, nil for a part of a character.
func bytesOf(text string) []int {
	if strings.ContainsRune(text, utf8.RuneError) {
		return nil
	}
	out := make([]int, len(text))
	for i := range len(text) {
		out[i] = int(text[i])
	}
	return out
}
