package tokenizer

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// Words up to cacheWord bytes keep their ids, at most cacheSize of them.
const (
	cacheWord = 64
	cacheSize = 1 << 15
)

// bpe is byte-pair encoding. A word begins as the tokens of its characters. Then the pair of neighbours that was
// learned first is merged, the leftmost of equal ones, until no pair of neighbours has a merge.
type bpe struct {
	vocabulary
	merges mergeTable

	unk          int32       // the token of what is unknown, -1: characters without a token are left out
	unkMissing   string      // the text of that token if the vocabulary lacks it
	fuseUnk      bool        // neighbours that are unknown are one token
	byteFallback *[256]int32 // instead of unk, the token of each byte, -1 where there is none; else nil
	ignoreMerges bool        // a word that is a token is that token

	raw   bool       // words are bytes, each a character of the byte alphabet
	bytes [256]int32 // the token of each byte in the byte alphabet, -1: none
	// cuts says that a text can be cut before a metaspace that follows another character: no merge joins across such a
	// place, and no character is left out, after which its neighbours would meet.
	cuts bool

	mu    sync.Mutex
	cache map[string][]int32 // ids of words
}

// metaspace stands for a space in vocabularies that come from SentencePiece.
const metaspace = "▁"

// encode appends the ids of a word. Where cuts permits, a long word is encoded in pieces.
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

// nextMetaspace returns where a metaspace follows another character, or the end of the word.
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

// A spelling makes the symbols that a word begins with. A character without a token becomes the tokens of its bytes or,
// where these are missing, the token of what is unknown.
type spelling struct {
	*bpe
	out []symbol
	// waits says that an unknown character waits for the next known one, since others may join it. Bytes do not end its
	// wait, so they come before it, as in the reference.
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
			id = t.id([]byte(word[i : i+width]))
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
// The symbols are a linked list, and the pairs that can be merged wait in a heap by rank and position. A merge makes at
// most two new pairs with the symbols around it, which join the heap. Pairs of symbols that were merged meanwhile stay
// in the heap and are skipped when they come up. With n symbols there are fewer than n merges, so this takes n log n
// steps.
func (t *bpe) merge(out []int32, word string) ([]int32, error) {
	if t.ignoreMerges {
		whole := word
		if t.raw {
			whole = inAlphabet(word)
		}
		if id := t.id([]byte(whole)); id >= 0 {
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
		if rank, id, ok := t.merges.find(symbols[i].id, symbols[i+1].id); ok {
			pairs = append(pairs, candidate{rank, int32(i), id})
		}
	}
	pairs.build()
	offer := func(at int32) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		if rank, id, ok := t.merges.find(symbols[at].id, symbols[symbols[at].next].id); ok {
			pairs.push(candidate{rank, at, id})
		}
	}
	for len(pairs) > 0 {
		pair := pairs.pop()
		left := &symbols[pair.at]
		if left.id < 0 || left.next < 0 {
			continue
		}
		gone := &symbols[left.next]
		if _, id, ok := t.merges.find(left.id, gone.id); !ok || id != pair.id {
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
