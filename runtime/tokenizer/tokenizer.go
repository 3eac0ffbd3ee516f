// Package tokenizer knows how text becomes token ids, ids become text, and a conversation becomes a prompt:
// it reads the bytes of a Hugging Face tokenizer.json and tokenizer_config.json and gives what the
// implementations that wrote them give (PyPI tokenizers and transformers), or refuses a file by the name of
// what it does not know.
//
// It reads byte-pair encoding in both its forms, byte-level and SentencePiece-like with byte fallback, the
// splitting patterns in use, the Unicode normalisation forms, and added tokens of every kind.
package tokenizer

import (
	"context"
	"slices"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
)

// maxText bounds what Encode accepts, in bytes; far more than any context holds.
const maxText = 8 << 20

// Tokenizer turns text into token ids and back. Implementations are safe for concurrent use.
type Tokenizer interface {
	// Encode returns the ids of text, nothing added. Added tokens written in the text ("<s>") become
	// their ids. Bytes that are not valid UTF-8 are read as U+FFFD. The error is of class ClassInput.
	Encode(text string) ([]int32, error)
	// Prompt is Encode with the tokens that begin and end a text; see New for which.
	Prompt(text string) ([]int32, error)
	// Chat returns the text of a conversation by the model's chat template. Encode, not Prompt, gives
	// its ids, because templates write the tokens that begin a text themselves. Errors are of class ClassInput, or
	// the context's.
	Chat(ctx context.Context, messages []Message, o ChatOptions) (string, error)
	// TryChat writes sample conversations by the model's chat templates. The error, of class ClassInput, says that a
	// template goes beyond the limits of time, memory or recursion: such a template must not be signed. Templates that
	// fail otherwise do no harm: unusable says why none of the samples could be written, nil when one could.
	TryChat(ctx context.Context) (unusable, err error)
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

// pipeline is what a tokenizer.json describes: text is searched for added tokens, normalised, searched
// again, split into words, and the words are encoded.
type pipeline struct {
	before, after *finder // added tokens that are looked for before and after normalisation
	normalizers   []normalizer
	splitters     []splitter
	model         *bpe
	added         map[int32][]byte // texts of added tokens by id, as they are looked for and decoded
	special       []int32          // ids of tokens that are left out of decoded text, ascending
	size          int              // one more than the largest id
	own           int              // ids from here on are tokens that only the configuration has
	decoder       []decoderStep
	// ids around every text
	front, back []int32
	chat        chat
}

func (t *pipeline) VocabSize() int   { return t.size }
func (t *pipeline) Special() []int32 { return slices.Clone(t.special) }

// The methods of Tokenizer are documented there.
func (t *pipeline) Prompt(text string) ([]int32, error) {
	ids, err := t.Encode(text)
	if err != nil {
		return nil, err
	}
	return slices.Concat(t.front, ids, t.back), nil
}

// Encode searches, normalises, splits and merges in one pass over the text.
func (t *pipeline) Encode(text string) ([]int32, error) {
	if len(text) > maxText {
		return nil, diag.New(diag.ClassInput, "encode text: %d bytes, want at most %d", len(text), maxText)
	}
	// each wrong byte sequence becomes the replacement character, as in the reference
	if !utf8.ValidString(text) {
		valid, _ := appendValid(nil, []byte(text), true)
		text = string(valid)
	}
	// Splitters are chained from the last to the first: each hands its pieces to the next, and the last one's are
	// words.
	call := encoder{pipeline: t}
	call.words = func(word string, _ bool) {
		if call.err == nil {
			call.ids, call.err = t.model.encode(call.ids, word)
		}
	}
	for _, v := range slices.Backward(t.splitters) {
		split, next := v, call.words
		call.words = func(piece string, first bool) {
			if call.err == nil {
				if err := split(piece, first, next); err != nil && call.err == nil {
					call.err = err
				}
			}
		}
	}
	// added tokens first; what is between them goes through normalisation, splitters and model
	t.before.find(text, func(piece string, from, token int) {
		if token >= 0 {
			call.ids = append(call.ids, t.before.tokens[token].ID)
		} else {
			call.plain(piece, from == 0)
		}
	})
	if call.err != nil {
		return nil, diag.New(diag.ClassInput, "encode text: %w", call.err)
	}
	return call.ids, nil
}

// encoder is one call of Encode. Its words are the chain of splitters, with the model at the end; the first error
// stops all that is still to come.
type encoder struct {
	*pipeline
	ids        []int32
	normalized int // bytes
	err        error
	words      func(piece string, first bool)
}

// plain encodes text between added tokens that are looked for before normalisation.
func (e *encoder) plain(text string, first bool) {
	if e.err == nil {
		text, e.err = e.normalize(text)
	}
	if e.normalized += len(text); e.normalized > maxNormalized && e.err == nil {
		e.err = errGrows
	}
	if e.err != nil {
		return
	}
	e.after.find(text, func(piece string, from, token int) {
		if token >= 0 {
			e.ids = append(e.ids, e.after.tokens[token].ID)
		} else {
			e.words(piece, first && from == 0)
		}
	})
}

func (t *pipeline) Decode(ids []int32) string        { return t.decode(ids, t.plainToken) }
func (t *pipeline) DecodeSpecial(ids []int32) string { return t.decode(ids, t.token) }
func (t *pipeline) Stream() *Stream                  { return newStream(t.decoder, t.plainToken) }

// decode pushes all ids into a stream at once, and returns the text.
func (t *pipeline) decode(ids []int32, token func(int32) []byte) string {
	stream := newStream(t.decoder, token)
	for _, id := range ids {
		stream.push(id)
	}
	return stream.Flush()
}

// token returns the text of a token, which the caller does not change. It is empty for an id without one.
func (t *pipeline) token(id int32) []byte {
	if text, ok := t.added[id]; ok {
		return text
	}
	return t.model.text(id)
}

// plainToken is token without the special ones.
func (t *pipeline) plainToken(id int32) []byte {
	if _, special := slices.BinarySearch(t.special, id); special {
		return nil
	}
	return t.token(id)
}
