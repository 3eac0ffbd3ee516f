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

	raw   bool       // words are bytes, each a character of the byte alphabet
	bytes [256]int32 // the token of each byte in the byte alphabet, -1: none
	// cuts says that a text can be cut before a metaspace that follows something else: no merge joins across such a
	// place, and no character is left out, so that what is beside it does not meet.
	cuts bool

	mu    sync.Mutex
	cache map[string][]int32
}

// merge is what a pair becomes; the lowest rank is merged first.
type merge struct{ rank, id int32 }

// pairKey returns a pair of ids as a key of merges.
func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// metaspace stands for a space in vocabularies that come from SentencePiece.
const metaspace = "▁"

// alphabet maps bytes to the characters that stand for them in a vocabulary: printable Latin-1
// characters for themselves, the others in order from U+0100.
var alphabet = func() (out [256]rune) {
	next := rune(256)
	for value := range out {
		char := rune(value)
		if char > ' ' && char < 0x7f || char > 0xa0 && char != 0xad {
			out[value] = char
			continue
		}
		out[value] = next
		next++
	}
	return out
}()

// byteOf is the inverse of alphabet.
var byteOf = func() map[rune]byte {
	out := map[rune]byte{}
	for value, char := range alphabet {
		out[char] = byte(value)
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
	for _, char := range token {
		value, ok := byteOf[char]
		if !ok {
			return append(out[:start], token...)
		}
		out = append(out, value)
	}
	return out
}

// bpeFields are those of the model part of a tokenizer.json. vocab and merges are still JSON.
type bpeFields struct {
	// BPE; older files name none
	kind string
	// still JSON
	vocab, merges []byte
	// of merges in training: only 0 is deterministic
	dropout *float64
	// token of what the vocabulary cannot spell, nil for none
	unk            *string
	prefix, suffix string
	// one unknown token for a run of them
	fuseUnk bool
	// spell unknown characters as tokens <0x00> to <0xFF>
	byteFallback bool
	// a word that is a token is that token, whatever its merges
	ignoreMerges bool
}

// readBPEFields reads the fields and refuses what would give other ids than those of the reference.
func readBPEFields(raw []byte) (read bpeFields, err error) {
	fields := map[string]any{
		"type": &read.kind, "dropout": &read.dropout, "unk_token": &read.unk, "continuing_subword_prefix": &read.prefix,
		"end_of_word_suffix": &read.suffix, "fuse_unk": &read.fuseUnk, "byte_fallback": &read.byteFallback,
		"ignore_merges": &read.ignoreMerges,
	}
	var unknown error // reported last, so that another kind of model is refused as such
	err = members(raw, func(key string, value []byte) error {
		switch {
		case key == "vocab":
			read.vocab = value
		case key == "merges":
			read.merges = value
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
		return read, err
	case read.kind != "BPE" && (read.kind != "" || read.merges == nil):
		return read, fmt.Errorf("%s is not supported; supported: BPE", part(raw).kind())
	case unknown != nil:
		return read, unknown
	case read.dropout != nil && *read.dropout != 0:
		return read, errors.New("dropout is not supported")
	case read.prefix != "" || read.suffix != "":
		return read, errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case read.vocab == nil:
		return read, errors.New("no vocab")
	}
	return read, nil
}

// readBPE reads the model part of a tokenizer.json.
func readBPE(raw []byte) (*bpe, error) {
	fields, err := readBPEFields(raw)
	if err != nil {
		return nil, err
	}
	model := &bpe{fuseUnk: fields.fuseUnk, ignoreMerges: fields.ignoreMerges, cache: map[string][]int32{}}
	if err := model.readVocab(fields.vocab); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if err := model.readMerges(fields.merges); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	// texts may be cut at a metaspace where no token and no vanished character spans the cut
	model.unk = -1
	if fields.unk != nil {
		unk := *fields.unk
		if model.unk = model.id(unk); model.unk < 0 {
			model.unkMissing = unk
		}
		apart := !strings.HasPrefix(unk, metaspace) && !strings.HasSuffix(unk, metaspace)
		model.cuts = model.cuts && model.unk >= 0 && apart
	}
	// A text may be cut at a metaspace only if none of its characters can vanish; see cuts.
	complete := fields.byteFallback
	if fields.byteFallback {
		model.byteFallback = new([256]int32)
		for value := range model.byteFallback {
			model.byteFallback[value] = model.id(fmt.Sprintf("<0x%02X>", value))
			complete = complete && model.byteFallback[value] >= 0
		}
	}
	model.cuts = model.cuts && model.id(metaspace) >= 0 && !model.ignoreMerges && (complete || model.unk >= 0)
	for value, char := range alphabet {
		model.bytes[value] = model.id(string(char))
	}
	return model, nil
}

// id returns the id of a token, -1 if there is none.
func (t *bpe) id(token string) int32 {
	if id, ok := t.vocab[token]; ok {
		return id
	}
	return -1
}

// readVocab reads the tokens and their ids, which need be neither in order nor without gaps.
func (t *bpe) readVocab(raw []byte) error {
	t.vocab = make(map[string]int32, min(bytes.Count(raw, []byte{','})+1, maxVocab))
	return entries(raw, func(token string, value []byte) error {
		id, err := strconv.ParseInt(string(value[:min(len(value), 20)]), 10, 32)
		if err != nil {
			return fmt.Errorf("token %q: want a whole number, got %.20q", clip(token), value)
		}
		// each number has one token, each token one number
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
}

// readMerges reads pairs, those that were learned first first. Of two equal pairs the later counts.
func (t *bpe) readMerges(raw []byte) error {
	t.cuts, t.merges = true, map[uint64]merge{}
	if raw == nil {
		return nil
	}
	const shortest = 8 // bytes of a merge in the file
	t.merges = make(map[uint64]merge, min(len(t.vocab), len(raw)/shortest))
	rank, id := int32(0), int32(-1)
	var joined []byte
	return elements(raw, func(value []byte) error {
		if rank == maxMerges {
			return fmt.Errorf("more than %d", maxMerges)
		}
		left, right, err := mergeParts(value, rank)
		if err != nil {
			return err
		}
		joined = append(append(joined[:0], left...), right...)
		leftID, leftOK := t.vocab[string(left)]
		rightID, rightOK := t.vocab[string(right)]
		// Most files list tokens in the order of the merges that make them.
		id++
		known := int(id) < len(t.tokens) && t.tokens[id] == string(joined)
		if !known {
			id, known = t.vocab[string(joined)]
		}
		if !leftOK || !rightOK || !known {
			return fmt.Errorf(
				"%q and %q do not merge to tokens of the vocabulary", clip(string(left)), clip(string(right)))
		}
		t.merges[pairKey(leftID, rightID)] = merge{rank, id}
		// A merge across a metaspace: a word may depend on what is before its space.
		if bytes.HasPrefix(right, []byte(metaspace)) && !bytes.HasSuffix(left, []byte(metaspace)) {
			t.cuts = false
		}
		rank++
		return nil
	})
}

// mergeParts reads a pair that is written "a b" or ["a","b"].
func mergeParts(value []byte, rank int32) (left, right []byte, err error) {
	if value[0] == '[' {
		var parts [2][]byte
		count := 0
		err = elements(value, func(part []byte) error {
			if count == len(parts) {
				return fmt.Errorf("more than 2 parts in merge %d", rank)
			}
			parts[count], err = unquoted(part)
			count++
			return err
		})
		left, right = parts[0], parts[1]
	} else {
		var text []byte
		text, err = unquoted(value)
		left, right, _ = bytes.Cut(text, []byte{' '})
		if bytes.IndexByte(right, ' ') >= 0 {
			right = nil
		}
	}
	switch {
	case err != nil:
		return nil, nil, err
	case len(left) == 0 || len(right) == 0:
		return nil, nil, fmt.Errorf("merge %d: want two tokens: \"a b\" or [\"a\",\"b\"]", rank)
	case len(left)+len(right) > 2*maxTokenBytes:
		return nil, nil, fmt.Errorf("merge %d: %d bytes, want at most %d", rank, len(left)+len(right), 2*maxTokenBytes)
	}
	return left, right, nil
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

// encodeWord appends the ids of a word. Words repeat, so those of short ones are kept.
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

// spelling makes the symbols that a word begins with: its characters, or the bytes of those without a token, or the
// token for what is unknown.
type spelling struct {
	*bpe
	out []symbol
	// waits says that an unknown character waits for the next one that is known, since others may join it. Bytes do not
	// end its wait, which puts them before it; that is how the reference does it.
	waits bool
}

// add appends a symbol and links it to its neighbours.
func (s *spelling) add(id int32) {
	at := int32(len(s.out))
	s.out = append(s.out, symbol{id, at - 1, at + 1})
}

// flush adds the unknown character that waits.
func (s *spelling) flush() {
	if s.waits {
		s.add(s.unk)
		s.waits = false
	}
}

// unknown adds a character without a token.
func (s *spelling) unknown(char string) error {
	if s.addBytes(char) {
		return nil
	}
	if s.unkMissing != "" {
		return fmt.Errorf(
			"the text needs the token for what is unknown, %q, which is not in the vocabulary", s.unkMissing)
	}
	if s.unk < 0 {
		return nil
	}
	if !s.fuseUnk {
		s.flush()
	}
	s.waits = true
	return nil
}

// addBytes adds the tokens of a character's bytes, if there is one for each.
func (s *spelling) addBytes(char string) bool {
	if s.byteFallback == nil {
		return false
	}
	before := len(s.out)
	for i := range len(char) {
		id := s.byteFallback[char[i]]
		if id < 0 {
			s.out = s.out[:before]
			return false
		}
		s.add(id)
	}
	return true
}

// symbols returns the tokens that a word begins with, before any merge.
func (t *bpe) symbols(word string) ([]symbol, error) {
	if word == "" {
		return nil, nil
	}
	// one symbol per byte or character; what has none goes to the unknown token
	spelled := spelling{bpe: t, out: make([]symbol, 0, len(word))}
	for i := 0; i < len(word); {
		var id int32
		width := 1
		if t.raw {
			id = t.bytes[word[i]]
		} else {
			_, width = utf8.DecodeRuneInString(word[i:])
			id = t.id(word[i : i+width])
		}
		char := word[i : i+width]
		i += width
		if id >= 0 {
			spelled.flush()
			spelled.add(id)
			continue
		}
		if t.raw {
			char = string(alphabet[char[0]])
		}
		if err := spelled.unknown(char); err != nil {
			return nil, err
		}
	}
	spelled.flush()
	if len(spelled.out) > 0 {
		spelled.out[len(spelled.out)-1].next = -1
	}
	return spelled.out, nil
}

// merge appends the ids of one word.
//
// The symbols are a linked list, and the pairs that can be merged wait in a heap by rank and position. A merge changes
// at most the two pairs around it, which join the heap anew; what was there of the symbols merged away is recognised
// when it comes up and skipped. With n symbols there are less than n merges, so all takes n log n.
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
	// every adjacent pair that has a merge
	pairs := make(queue, 0, len(symbols))
	for i := range symbols[:len(symbols)-1] {
		if found, ok := t.merges[pairKey(symbols[i].id, symbols[i+1].id)]; ok {
			pairs = append(pairs, candidate{found.rank, int32(i), found.id})
		}
	}
	pairs.build()
	offer := func(at int32) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		if found, ok := t.merges[pairKey(symbols[at].id, symbols[symbols[at].next].id)]; ok {
			pairs.push(candidate{found.rank, at, found.id})
		}
	}
	for len(pairs) > 0 {
		pair := pairs.pop()
		left := &symbols[pair.at]
		if left.id < 0 || left.next < 0 {
			continue
		}
		gone := &symbols[left.next]
		if found, ok := t.merges[pairKey(left.id, gone.id)]; !ok || found.id != pair.id {
			continue // one of them was merged meanwhile
		}
		// the left symbol becomes the merged one and the right one leaves the list
		left.id, left.next, gone.id = pair.id, gone.next, -1
		if left.next >= 0 {
			symbols[left.next].prev = pair.at
		}
		offer(left.prev)
		offer(pair.at)
	}
	for i := int32(0); i >= 0; i = symbols[i].next {
		out = append(out, symbols[i].id)
	}
	return out, nil
}

// candidate is a pair that can be merged to id, if the symbols at a position and after it still can.
type candidate struct{ rank, at, id int32 }

// before orders by rank and, among equals, from left to right.
func (c candidate) before(other candidate) bool {
	return c.rank < other.rank || c.rank == other.rank && c.at < other.at
}

// queue is a heap of candidates: lowest rank first, leftmost among equals. (container/heap would put each on the heap
// of the program as well.) A candidate whose symbols were merged meanwhile stays until it comes up.
type queue []candidate

// build makes a heap of unordered candidates in linear time.
func (q queue) build() {
	for i := len(q)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
}

// down moves an element below all that come before it.
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

// push adds a candidate.
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

// pop takes the first candidate.
func (q *queue) pop() candidate {
	top, last := (*q)[0], len(*q)-1
	(*q)[0] = (*q)[last]
	*q = (*q)[:last]
	q.down(0)
	return top
}
