package tokenizer

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
)

// maxText bounds what Encode accepts; far more than any context holds.
const maxText = 8 << 20

// Words up to cacheWord bytes keep their ids, at most cacheSize of them.
const (
	cacheWord = 64
	cacheSize = 1 << 15
)

// bpe is byte-level byte-pair encoding: text is cut into words, a word's bytes are tokens, and
// the pair of neighbours that was learned first is merged (leftmost first) until none is left.
type bpe struct {
	vocab        map[string]int32 // in the byte alphabet, as in the file
	text         [][]byte         // by id; nil for ids without a token
	bytes        [256]int32       // the token of each byte
	merges       map[[2]int32]merge
	ignoreMerges bool // a word that is a token is that token
	prefixSpace  bool

	added        map[string]int32
	addedLengths [256][]int // by first byte, longest first
	special      []int32
	front        []int32

	mu    sync.Mutex
	cache map[string][]int32
}

type merge struct{ rank, id int32 }

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

// bytesOf translates a token from the alphabet; one with other characters stands for itself.
func bytesOf(token string) []byte {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := byteOf[r]
		if !ok {
			return []byte(token)
		}
		out = append(out, b)
	}
	return out
}

func newBPE(m *bpeModel) (*bpe, error) {
	t := &bpe{
		vocab: m.Vocab, merges: make(map[[2]int32]merge, len(m.Merges)), ignoreMerges: m.IgnoreMerges,
		added: map[string]int32{}, cache: map[string][]int32{},
	}
	fail := func(format string, args ...any) (*bpe, error) {
		return nil, fmt.Errorf("tokenizer.json: model: %s", fmt.Sprintf(format, args...))
	}
	size := 0
	for _, id := range m.Vocab {
		if id < 0 || id >= maxVocab {
			return fail("vocab: id %d, want 0 to %d", id, maxVocab-1)
		}
		size = max(size, int(id)+1)
	}
	t.text = make([][]byte, size)
	for token, id := range m.Vocab {
		if token == "" || len(token) > maxTokenBytes {
			return fail("vocab: token %d has %d bytes, want 1 to %d", id, len(token), maxTokenBytes)
		}
		if t.text[id] != nil {
			return fail("vocab: id %d belongs to several tokens", id)
		}
		t.text[id] = bytesOf(token)
	}
	for b, r := range alphabet {
		id, ok := m.Vocab[string(r)]
		if !ok {
			return fail("vocab: no token for byte %#02x (%q); only byte-level BPE is supported", b, string(r))
		}
		t.bytes[b] = id
	}
	for rank, p := range m.Merges {
		a, okA := m.Vocab[p[0]]
		b, okB := m.Vocab[p[1]]
		id, ok := m.Vocab[p[0]+p[1]]
		if !okA || !okB || !ok {
			return fail("merges: %q and %q do not merge to tokens of the vocabulary", p[0], p[1])
		}
		if _, dup := t.merges[[2]int32{a, b}]; !dup {
			t.merges[[2]int32{a, b}] = merge{int32(rank), id}
		}
	}
	return t, nil
}

func (t *bpe) VocabSize() int   { return len(t.text) }
func (t *bpe) Special() []int32 { return slices.Clone(t.special) }

func (t *bpe) Prompt(text string) ([]int32, error) {
	ids, err := t.Encode(text)
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(t.front), ids...), nil
}

func (t *bpe) Encode(text string) ([]int32, error) {
	if len(text) > maxText {
		return nil, diag.New(diag.ClassInput, "encode text: %d bytes, want at most %d", len(text), maxText)
	}
	if !utf8.ValidString(text) {
		valid, _ := appendValid(nil, []byte(text), true)
		text = string(valid)
	}
	var out []int32
	for len(text) > 0 {
		at, end, id := t.nextAdded(text)
		if at > 0 {
			out = t.encodePlain(out, text[:at])
		}
		if end > at {
			out = append(out, id)
		}
		text = text[end:]
	}
	return out, nil
}

// nextAdded finds the first added token in text, the longest where several begin: text[at:end].
// Without one both are len(text).
func (t *bpe) nextAdded(text string) (at, end int, id int32) {
	for i := range len(text) {
		for _, n := range t.addedLengths[text[i]] {
			if n > len(text)-i {
				continue
			}
			if id, ok := t.added[text[i:i+n]]; ok {
				return i, i + n, id
			}
		}
	}
	return len(text), len(text), 0
}

// encodePlain appends the ids of text that holds no added token.
func (t *bpe) encodePlain(out []int32, text string) []int32 {
	if t.prefixSpace && text[0] != ' ' {
		text = " " + text
	}
	for len(text) > 0 {
		n := wordLength(text)
		out = t.encodeWord(out, text[:n])
		text = text[n:]
	}
	return out
}

var contractions = []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}

// wordLength is the length in bytes of the first word of text, not empty, by the rule of GPT-2: the
// first alternative that matches of
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func wordLength(text string) int {
	for _, c := range contractions {
		if strings.HasPrefix(text, c) {
			return len(c)
		}
	}
	start := 0
	if text[0] == ' ' {
		start = 1
	}
	for _, class := range []func(rune) bool{unicode.IsLetter, isNumber, isOther} {
		if n := run(text[start:], class); n > 0 {
			return start + n
		}
	}
	// White space: all of it at the end of the text, else all but the last character, which belongs to
	// what follows; a single one stands alone.
	n := run(text, isSpace)
	if n == len(text) {
		return n
	}
	_, last := utf8.DecodeLastRuneInString(text[:n])
	if n > last {
		return n - last
	}
	return n
}

// run is the length in bytes of the longest beginning of text whose characters are all in class.
func run(text string, class func(rune) bool) int {
	for i, r := range text {
		if !class(r) {
			return i
		}
	}
	return len(text)
}

func isNumber(r rune) bool { return unicode.Is(unicode.N, r) }
func isOther(r rune) bool  { return !isSpace(r) && !unicode.IsLetter(r) && !isNumber(r) }

// isSpace is \s of Unicode regular expressions: the property White_Space.
func isSpace(r rune) bool { return unicode.Is(unicode.White_Space, r) }

func (t *bpe) encodeWord(out []int32, word string) []int32 {
	if len(word) > cacheWord {
		return t.merge(out, word)
	}
	t.mu.Lock()
	ids, ok := t.cache[word]
	t.mu.Unlock()
	if !ok {
		ids = t.merge(nil, word)
		t.mu.Lock()
		if len(t.cache) < cacheSize {
			t.cache[strings.Clone(word)] = ids
		}
		t.mu.Unlock()
	}
	return append(out, ids...)
}

// symbol is a token in a word, linked to its neighbours; one that was merged away has id -1.
type symbol struct {
	id         int32
	prev, next int32 // positions, -1 at the ends
}

// candidate is a pair that can be merged, if the symbols at pos and after it are still left and right.
type candidate struct {
	rank, pos   int32
	left, right int32
}

// queue is a heap of candidates: lowest rank first, leftmost among equals.
type queue []candidate

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q queue) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].pos < q[j].pos
}
func (q *queue) Push(x any) { *q = append(*q, x.(candidate)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}

// merge appends the ids of one word, in time n log n.
func (t *bpe) merge(out []int32, word string) []int32 {
	if t.ignoreMerges {
		var b strings.Builder
		for i := range len(word) {
			b.WriteRune(alphabet[word[i]])
		}
		if id, ok := t.vocab[b.String()]; ok {
			return append(out, id)
		}
	}
	symbols := make([]symbol, len(word))
	for i := range symbols {
		symbols[i] = symbol{t.bytes[word[i]], int32(i) - 1, int32(i) + 1}
	}
	symbols[len(symbols)-1].next = -1
	var q queue
	offer := func(pos int32) {
		if pos < 0 || symbols[pos].next < 0 {
			return
		}
		left, right := symbols[pos].id, symbols[symbols[pos].next].id
		if m, ok := t.merges[[2]int32{left, right}]; ok {
			heap.Push(&q, candidate{m.rank, pos, left, right})
		}
	}
	for i := range symbols {
		offer(int32(i))
	}
	for len(q) > 0 {
		c := heap.Pop(&q).(candidate)
		s := &symbols[c.pos]
		if s.id != c.left || s.next < 0 || symbols[s.next].id != c.right {
			continue // one of them was merged meanwhile
		}
		gone := &symbols[s.next]
		s.id, s.next, gone.id = t.merges[[2]int32{c.left, c.right}].id, gone.next, -1
		if s.next >= 0 {
			symbols[s.next].prev = c.pos
		}
		offer(s.prev)
		offer(c.pos)
	}
	for i := int32(0); i >= 0; i = symbols[i].next {
		out = append(out, symbols[i].id)
	}
	return out
}

func (t *bpe) Decode(ids []int32) string        { return t.decode(ids, t.plain) }
func (t *bpe) DecodeSpecial(ids []int32) string { return t.decode(ids, t.token) }
func (t *bpe) Stream() *Stream                  { return &Stream{token: t.plain} }

func (t *bpe) decode(ids []int32, token func(int32) []byte) string {
	var b []byte
	for _, id := range ids {
		b = append(b, token(id)...)
	}
	out, _ := appendValid(nil, b, true)
	return string(out)
}

// token is the text of an id, nil outside the vocabulary.
func (t *bpe) token(id int32) []byte {
	if id < 0 || int(id) >= len(t.text) {
		return nil
	}
	return t.text[id]
}

// plain is token without the special ones.
func (t *bpe) plain(id int32) []byte {
	if _, special := slices.BinarySearch(t.special, id); special {
		return nil
	}
	return t.token(id)
}
