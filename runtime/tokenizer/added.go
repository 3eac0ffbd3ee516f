package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of the tokens that are recognised before text is split.
const (
	maxAdded      = 1 << 16
	maxAddedBytes = 256
	maxAddedTotal = 1 << 20 // bytes of all together
)

// addedToken is a token that is found in text before any word is made. SingleWord tokens are none inside a word; LStrip
// and RStrip take the white space beside them along; Normalized ones are looked for in normalised text.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// readAdded reads the list of added tokens.
func readAdded(raw []byte) ([]addedToken, error) {
	if part(raw).isNull() {
		return nil, nil
	}
	var out []addedToken
	seen := map[string]bool{}
	total := 0
	return out, elements(raw, func(value []byte) error {
		if len(out) == maxAdded {
			return fmt.Errorf("more than %d added tokens", maxAdded)
		}
		var token addedToken
		if err := part(value).strict(&token); err != nil {
			return fmt.Errorf("added token: %w", err)
		}
		// files are not trusted: each text is bounded, and all together
		if token.Content == "" || len(token.Content) > maxAddedBytes {
			return fmt.Errorf(
				"added token %q: %d bytes, want 1 to %d", token.Content, len(token.Content), maxAddedBytes)
		}
		if seen[token.Content] {
			return fmt.Errorf("added token %q twice", token.Content)
		}
		if total += len(token.Content); total > maxAddedTotal {
			return fmt.Errorf("added tokens: more than %d bytes", maxAddedTotal)
		}
		seen[token.Content] = true
		out = append(out, token)
		return nil
	})
}

// finder finds added tokens: of those that begin first, the longest (the automaton of Aho and Corasick). Its nodes are
// the beginnings of tokens; node 0 is the empty one. One pass over a text finds all tokens, since where a node has no
// edge for the next byte, the search goes on from the longest end of what was read that is a node too.
type finder struct {
	tokens []addedToken
	edges  map[uint64]int32 // by edgeKey
	root   [256]int32       // by byte: where the empty node leads
	nodes  []finderNode
}

// edgeKey returns a node and the byte of an edge from it.
func edgeKey(from int32, char byte) uint64 { return uint64(from)<<8 | uint64(char) }

// finderNode is the beginning of one or more tokens.
type finderNode struct {
	depth int32
	fail  int32 // the longest proper suffix that is a node
	token int32 // the longest token that ends here, -1: none
	size  int32 // its length
}

// newFinder looks for tokens by the texts beside them. Of two with one text, the first counts.
func newFinder(tokens []addedToken, texts []string) *finder {
	// a trie of the texts, as of Aho and Corasick
	out := &finder{tokens: tokens, edges: map[uint64]int32{}, nodes: []finderNode{{token: -1}}}
	type edge struct {
		from, to int32
		char     byte
	}
	var inOrder []edge
	for i, text := range texts {
		at := int32(0)
		for _, char := range []byte(text) {
			to, ok := out.edges[edgeKey(at, char)]
			if !ok {
				to = int32(len(out.nodes))
				out.nodes = append(out.nodes, finderNode{depth: out.nodes[at].depth + 1, token: -1})
				out.edges[edgeKey(at, char)] = to
				inOrder = append(inOrder, edge{at, to, char})
			}
			at = to
		}
		if node := &out.nodes[at]; at > 0 && node.token < 0 {
			node.token, node.size = int32(i), int32(len(text))
		}
	}
	// A node's fail is shorter than the node, so the shorter nodes come first.
	slices.SortStableFunc(inOrder, func(left, right edge) int {
		return int(out.nodes[left.to].depth - out.nodes[right.to].depth)
	})
	for _, link := range inOrder {
		node := &out.nodes[link.to]
		if link.from == 0 {
			out.root[link.char] = link.to
		} else {
			node.fail = out.step(out.nodes[link.from].fail, link.char)
		}
		// The longest text that ends here is this node's own, or that of the node it fails to.
		if short := out.nodes[node.fail]; node.token < 0 {
			node.token, node.size = short.token, short.size
		}
	}
	return out
}

// step returns the node after another byte.
func (f *finder) step(at int32, char byte) int32 {
	for at != 0 {
		if to, ok := f.edges[edgeKey(at, char)]; ok {
			return to
		}
		at = f.nodes[at].fail
	}
	return f.root[char]
}

// next finds the first token in text[from:]: text[at:end] is token number i, or i is -1.
func (f *finder) next(text string, from int) (at, end, i int) {
	node, best := int32(0), -1
	for pos := from; pos < len(text); pos++ {
		// Most of a text begins no token: skip ahead to a byte that begins one.
		if node == 0 {
			for pos < len(text) && f.root[text[pos]] == 0 {
				pos++
			}
			if pos == len(text) {
				break
			}
		}
		node = f.step(node, text[pos])
		found := &f.nodes[node]
		if best >= 0 && pos+1-int(found.depth) > at {
			break // nothing that begins earlier, or there and is longer, can come
		}
		start := pos + 1 - int(found.size)
		if found.token >= 0 && (best < 0 || start <= at) {
			best, at, end = int(found.token), start, pos+1
		}
	}
	return at, end, best
}

// find divides text into added tokens, yielded with their number, and what is between them, yielded
// with -1. A token may take white space around it along, and not be one inside a word.
func (f *finder) find(text string, yield func(piece string, from int, token int)) {
	start := 0
	for from := 0; from < len(text); {
		at, end, i := f.next(text, from)
		if i < 0 {
			break
		}
		from = end
		token := &f.tokens[i]
		if token.SingleWord && insideWord(text[:at], text[end:]) {
			continue
		}
		// white space taken along belongs to no piece
		if token.LStrip {
			at = start + len(strings.TrimRightFunc(text[start:max(start, at)], isSpace))
		}
		if token.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], isSpace))
		}
		// A token of white space may lie in what the token before took along.
		if at >= end {
			continue
		}
		if start < at {
			yield(text[start:at], start, -1)
		}
		yield("", at, i)
		start = end // a token that begins in white space taken along is found all the same
	}
	if start != len(text) {
		yield(text[start:], start, -1)
	}
}

// insideWord reports whether a word reaches up to what is between two texts.
func insideWord(before, after string) bool {
	boundary := unicodeSets()["boundary"]
	last, sizeBefore := utf8.DecodeLastRuneInString(before)
	first, sizeAfter := utf8.DecodeRuneInString(after)
	return sizeBefore > 0 && boundary.has(last) || sizeAfter > 0 && boundary.has(first)
}

// addTokens gives added tokens their ids: that of the vocabulary, or the next free one, which is also what
// the file must say.
func (t *bpe) addTokens(tokens []addedToken) error {
	next := int32(len(t.vocab))
	for _, token := range tokens {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("added token %q: %s", token.Content, fmt.Sprintf(format, args...))
		}
		want, known := t.vocab[token.Content]
		switch {
		case known && token.ID != want:
			return fail("id %d, but %d in the vocabulary", token.ID, want)
		case !known && token.ID != next:
			return fail("id %d, but %d is the first that is free", token.ID, next)
		case !known && int(token.ID) < len(t.tokens) && t.tokens[token.ID] != "":
			return fail("id %d belongs to another token", token.ID)
		}
		if !known {
			next++
		}
		for int(token.ID) >= len(t.tokens) {
			t.tokens = append(t.tokens, "")
		}
		t.tokens[token.ID] = token.Content
	}
	return nil
}

// extend makes room for tokens that only a configuration has. One of the vocabulary keeps its place.
func (t *bpe) extend(tokens []addedToken) error {
	for _, token := range tokens {
		for int(token.ID) >= len(t.tokens) {
			t.tokens = append(t.tokens, "")
		}
		if held := t.tokens[token.ID]; held != "" && held != token.Content {
			return fmt.Errorf("token %q of tokenizer_config.json: its id %d belongs to another token", token.Content, token.ID)
		}
		t.tokens[token.ID] = token.Content
	}
	return nil
}
