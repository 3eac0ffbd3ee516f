package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of a model; the largest published ones have 260,000 tokens and 600,000 merges.
const (
	maxVocab      = 1 << 20
	maxMerges     = 1 << 21
	maxTokenBytes = 1 << 12
)

// Words up to cacheWord bytes keep their ids, at most cacheSize of them.
const (
	cacheWord = 64
	cacheSize = 1 << 15
)

// bpe is byte-pair encoding: the characters of a word are tokens, and the pair of neighbours that was
// learned first is merged (leftmost first) until none is left.
type bpe struct {
	vocab   map[string]int32
	tokens  []string // by id, "" for ids without one
	special []int32
	merges  map[uint64]merge // by the ids of the pair

	unk          int32 // -1: characters without a token are left out
	unkMissing   string
	fuseUnk      bool        // neighbours that are unknown are one token
	byteFallback *[256]int32 // instead of unk, the token of each byte, -1 where there is none; else nil
	ignoreMerges bool        // a word that is a token is that token

	raw   bool // words are bytes, each a character of the byte alphabet
	bytes [256]int32
	// Where no merge joins what does not end in a metaspace and what begins with one, a text can be cut there.
	cuts bool

	mu    sync.Mutex
	cache map[string][]int32
}

type merge struct{ rank, id int32 }

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// metaspace stands for a space in vocabularies that come from SentencePiece.
const metaspace = "▁"

// alphabet maps bytes to the characters that stand for them in a vocabulary: printable Latin-1
// characters for themselves, the others in order from U+0100.
var alphabet = func() (out [256]rune) {
	next := rune(256)
	for b := range out {
		r := rune(b)
		if r > ' ' && r < 0x7f || r > 0xa0 && r != 0xad {
			out[b] = r
			continue
		}
		out[b] = next
		next++
	}
	return out
}()

var byteOf = func() map[rune]byte {
	out := map[rune]byte{}
	for b, r := range alphabet {
		out[r] = byte(b)
	}
	return out
}()

// inAlphabet writes the bytes of text in the alphabet.
func inAlphabet(text string) string {
	var out strings.Builder
	for i := range len(text) {
		out.WriteRune(alphabet[text[i]])
	}
	return out.String()
}

// appendBytes appends the bytes that a token in the alphabet stands for; one with other characters stands
// for itself.
func appendBytes(out []byte, token string) []byte {
	start := len(out)
	for _, r := range token {
		b, ok := byteOf[r]
		if !ok {
			return append(out[:start], token...)
		}
		out = append(out, b)
	}
	return out
}

// readBPE reads the model part of a tokenizer.json.
func readBPE(raw []byte) (*bpe, error) {
	var vocab, merges []byte
	var options struct {
		Dropout      *float64 `json:"dropout"`
		UnkToken     *string  `json:"unk_token"`
		Prefix       string   `json:"continuing_subword_prefix"`
		Suffix       string   `json:"end_of_word_suffix"`
		FuseUnk      bool     `json:"fuse_unk"`
		ByteFallback bool     `json:"byte_fallback"`
		IgnoreMerges bool     `json:"ignore_merges"`
	}
	kind := ""
	fields := map[string]any{
		"type": &kind, "dropout": &options.Dropout, "unk_token": &options.UnkToken, "continuing_subword_prefix": &options.Prefix,
		"end_of_word_suffix": &options.Suffix, "fuse_unk": &options.FuseUnk, "byte_fallback": &options.ByteFallback, "ignore_merges": &options.IgnoreMerges,
	}
	var unknown error // reported last, so that another kind of model is refused as such
	err := members(raw, func(key string, value []byte) error {
		switch {
		case key == "vocab":
			vocab = value
		case key == "merges":
			merges = value
		case fields[key] == nil || len(value) > maxPart:
			unknown = fmt.Errorf("unknown field %q", clip(key))
		default:
			if err := json.Unmarshal(value, fields[key]); err != nil {
				return fmt.Errorf("%s: %s", key, clip(err.Error()))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case kind != "BPE" && (kind != "" || merges == nil):
		return nil, fmt.Errorf("%s is not supported; supported: BPE", part(raw).kind())
	case unknown != nil:
		return nil, unknown
	case options.Dropout != nil && *options.Dropout != 0:
		return nil, errors.New("dropout is not supported")
	case options.Prefix != "" || options.Suffix != "":
		return nil, errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case vocab == nil:
		return nil, errors.New("no vocab")
	}
	model := &bpe{unk: -1, fuseUnk: options.FuseUnk, ignoreMerges: options.IgnoreMerges, cache: map[string][]int32{}}
	if err := model.readVocab(vocab); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if merges == nil {
		merges = []byte("[]")
	}
	if model.cuts, err = model.readMerges(merges); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	if options.UnkToken != nil {
		id, ok := model.vocab[*options.UnkToken]
		if model.unk = id; !ok {
			model.unk, model.unkMissing = -1, *options.UnkToken
		}
		model.cuts = model.cuts && ok && !strings.HasPrefix(*options.UnkToken, metaspace) && !strings.HasSuffix(*options.UnkToken, metaspace)
	}
	complete := options.ByteFallback
	if options.ByteFallback {
		model.byteFallback = new([256]int32)
		for value := range model.byteFallback {
			id, ok := model.vocab[fmt.Sprintf("<0x%02X>", value)]
			if !ok {
				id, complete = -1, false
			}
			model.byteFallback[value] = id
		}
	}
	_, ok := model.vocab[metaspace]
	model.cuts = model.cuts && ok && !model.ignoreMerges && (complete || model.unk >= 0)
	for value, char := range alphabet {
		id, ok := model.vocab[string(char)]
		if model.bytes[value] = id; !ok {
			model.bytes[value] = -1
		}
	}
	return model, nil
}

func (t *bpe) readVocab(raw []byte) error {
	t.vocab = make(map[string]int32, min(bytes.Count(raw, []byte{','})+1, maxVocab))
	err := entries(raw, func(token string, value []byte) error {
		id, err := strconv.ParseInt(string(value[:min(len(value), 20)]), 10, 32)
		if err != nil {
			return fmt.Errorf("token %q: want a whole number, got %.20q", clip(token), value)
		}
		if id < 0 || id >= maxVocab {
			return fmt.Errorf("token %q: id %d, want 0 to %d", clip(token), id, maxVocab-1)
		}
		if token == "" || len(token) > maxTokenBytes {
			return fmt.Errorf("token %d has %d bytes, want 1 to %d", id, len(token), maxTokenBytes)
		}
		if len(t.vocab) == maxVocab {
			return fmt.Errorf("more than %d tokens", maxVocab)
		}
		if _, dup := t.vocab[token]; dup {
			return fmt.Errorf("token %q twice", clip(token))
		}
		for int(id) >= len(t.tokens) {
			t.tokens = append(t.tokens, "")
		}
		if t.tokens[id] != "" {
			return fmt.Errorf("id %d belongs to several tokens", id)
		}
		t.vocab[token], t.tokens[id] = int32(id), token
		return nil
	})
	return err
}

// readMerges reads pairs written "a b" or ["a","b"]; cuts says that none joins across the beginning of a word.
func (t *bpe) readMerges(raw []byte) (cuts bool, err error) {
	const shortest = 8 // bytes of a merge in the file
	t.merges = make(map[uint64]merge, min(len(t.vocab), len(raw)/shortest))
	cuts = true
	rank, id := int32(0), int32(-1)
	var joined []byte
	parts := make([][]byte, 0, 2)
	err = elements(raw, func(value []byte) error {
		if rank == maxMerges {
			return fmt.Errorf("more than %d", maxMerges)
		}
		var left, right []byte
		var ok bool
		if value[0] == '[' {
			parts = parts[:0]
			if err := elements(value, func(part []byte) error {
				text, err := unquoted(part)
				if len(parts) == 2 {
					return fmt.Errorf("more than 2 parts in merge %d", rank)
				}
				parts = append(parts, text)
				return err
			}); err != nil {
				return err
			}
			if len(parts) == 2 {
				left, right = parts[0], parts[1]
			}
		} else {
			text, err := unquoted(value)
			if err != nil {
				return err
			}
			left, right, _ = bytes.Cut(text, []byte{' '})
		}
		if len(left) == 0 || len(right) == 0 || value[0] == '"' && bytes.IndexByte(right, ' ') >= 0 {
			return fmt.Errorf("merge %d: want two tokens: \"a b\" or [\"a\",\"b\"]", rank)
		}
		if len(left)+len(right) > 2*maxTokenBytes {
			return fmt.Errorf("merge %d: %d bytes, want at most %d", rank, len(left)+len(right), 2*maxTokenBytes)
		}
		joined = append(append(joined[:0], left...), right...)
		leftID, okA := t.vocab[string(left)]
		rightID, okB := t.vocab[string(right)]
		// Most files list tokens in the order of the merges that make them.
		if id++; int(id) >= len(t.tokens) || t.tokens[id] != string(joined) {
			if id, ok = t.vocab[string(joined)]; !ok {
				id = -1
			}
		}
		if !okA || !okB || id < 0 {
			return fmt.Errorf("%q and %q do not merge to tokens of the vocabulary", clip(string(left)), clip(string(right)))
		}
		t.merges[pairKey(leftID, rightID)] = merge{rank, id} // of two equal pairs the later counts
		cuts = cuts && (bytes.HasSuffix(left, []byte(metaspace)) || !bytes.HasPrefix(right, []byte(metaspace)))
		rank++
		return nil
	})
	return cuts, err
}

// encode appends the ids of a word.
func (t *bpe) encode(out []int32, word string) ([]int32, error) {
	if t.cuts {
		for len(word) > cacheWord {
			cut := nextMetaspace(word)
			if cut == len(word) {
				break
			}
			var err error
			if out, err = t.encodeWord(out, word[:cut]); err != nil {
				return nil, err
			}
			word = word[cut:]
		}
	}
	return t.encodeWord(out, word)
}

// nextMetaspace is where, after its beginning, a metaspace follows something else, or the end.
func nextMetaspace(word string) int {
	i := 0
	for strings.HasPrefix(word[i:], metaspace) {
		i += len(metaspace)
	}
	if offset := strings.Index(word[i:], metaspace); offset >= 0 {
		return i + offset
	}
	return len(word)
}

func (t *bpe) encodeWord(out []int32, word string) ([]int32, error) {
	if len(word) > cacheWord {
		return t.merge(out, word)
	}
	t.mu.Lock()
	ids, ok := t.cache[word]
	t.mu.Unlock()
	if !ok {
		var err error
		if ids, err = t.merge(nil, word); err != nil {
			return nil, err
		}
		t.mu.Lock()
		if len(t.cache) < cacheSize {
			t.cache[strings.Clone(word)] = ids
		}
		t.mu.Unlock()
	}
	return append(out, ids...), nil
}

// symbol is a token in a word, linked to its neighbours; one that was merged away has id -1.
type symbol struct {
	id         int32
	prev, next int32 // positions, -1 at the ends
}

// symbols are the tokens a word begins with: its characters.
func (t *bpe) symbols(word string) ([]symbol, error) {
	if word == "" {
		return nil, nil
	}
	out := make([]symbol, 0, len(word))
	add := func(id int32) { out = append(out, symbol{id, int32(len(out)) - 1, int32(len(out)) + 1}) }
	// An unknown character waits for the next one that is known, since others may join it. Bytes do not end
	// its wait, which puts them before it; that is how the reference does it.
	waits := false
	unknown := func(char string) error {
		if t.byteFallback != nil {
			before := len(out)
			for i := range len(char) {
				if t.byteFallback[char[i]] < 0 {
					break
				}
				add(t.byteFallback[char[i]])
			}
			if len(out) == before+len(char) {
				return nil
			}
			out = out[:before]
		}
		if t.unkMissing != "" {
			return fmt.Errorf("the text needs the token for what is unknown, %q, which is not in the vocabulary", t.unkMissing)
		}
		if t.unk >= 0 {
			if waits && !t.fuseUnk {
				add(t.unk)
			}
			waits = true
		}
		return nil
	}
	known := func(id int32) {
		if waits {
			add(t.unk)
			waits = false
		}
		add(id)
	}
	for i := 0; i < len(word); {
		id, width := int32(-1), 1
		if t.raw {
			id = t.bytes[word[i]]
		} else {
			_, width = utf8.DecodeRuneInString(word[i:])
			if found, ok := t.vocab[word[i:i+width]]; ok {
				id = found
			}
		}
		char := word[i : i+width]
		i += width
		if id >= 0 {
			known(id)
			continue
		}
		if t.raw {
			char = string(alphabet[char[0]])
		}
		if err := unknown(char); err != nil {
			return nil, err
		}
	}
	if waits {
		add(t.unk)
	}
	if len(out) > 0 {
		out[len(out)-1].next = -1
	}
	return out, nil
}

// merge appends the ids of one word, in time n log n.
func (t *bpe) merge(out []int32, word string) ([]int32, error) {
	if t.ignoreMerges {
		whole := word
		if t.raw {
			whole = inAlphabet(word)
		}
		if id, ok := t.vocab[whole]; ok {
			return append(out, id), nil
		}
	}
	symbols, err := t.symbols(word)
	if err != nil || len(symbols) == 0 {
		return out, err
	}
	pairs := make(queue, 0, len(symbols))
	for i := range symbols[:len(symbols)-1] {
		if found, ok := t.merges[pairKey(symbols[i].id, symbols[i+1].id)]; ok {
			pairs = append(pairs, candidate{found.rank, int32(i), found.id})
		}
	}
	pairs.build()
	offer := func(pos int32) {
		if pos < 0 || symbols[pos].next < 0 {
			return
		}
		if found, ok := t.merges[pairKey(symbols[pos].id, symbols[symbols[pos].next].id)]; ok {
			pairs.push(candidate{found.rank, pos, found.id})
		}
	}
	for len(pairs) > 0 {
		pair := pairs.pop()
		left := &symbols[pair.pos]
		if left.id < 0 || left.next < 0 {
			continue
		}
		gone := &symbols[left.next]
		if found, ok := t.merges[pairKey(left.id, gone.id)]; !ok || found.id != pair.id {
			continue // one of them was merged meanwhile
		}
		left.id, left.next, gone.id = pair.id, gone.next, -1
		if left.next >= 0 {
			symbols[left.next].prev = pair.pos
		}
		offer(left.prev)
		offer(pair.pos)
	}
	for i := int32(0); i >= 0; i = symbols[i].next {
		out = append(out, symbols[i].id)
	}
	return out, nil
}

// candidate is a pair that can be merged to id, if the symbols at pos and after it still can.
type candidate struct{ rank, pos, id int32 }

func (c candidate) before(other candidate) bool {
	return c.rank < other.rank || c.rank == other.rank && c.pos < other.pos
}

// queue is a heap of candidates: lowest rank first, leftmost among equals. (container/heap would put
// each on the heap of the program as well.)
type queue []candidate

func (q queue) build() {
	for i := len(q)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
}

func (q queue) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(q) {
			return
		}
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if !q[child].before(q[i]) {
			return
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}

func (q *queue) push(pair candidate) {
	*q = append(*q, pair)
	for i := len(*q) - 1; i > 0; {
		parent := (i - 1) / 2
		if !(*q)[i].before((*q)[parent]) {
			return
		}
		(*q)[i], (*q)[parent] = (*q)[parent], (*q)[i]
		i = parent
	}
}

func (q *queue) pop() candidate {
	top, last := (*q)[0], len(*q)-1
	(*q)[0] = (*q)[last]
	*q = (*q)[:last]
	q.down(0)
	return top
}
