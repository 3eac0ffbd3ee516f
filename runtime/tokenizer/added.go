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

// An addedToken is found in a text before the text is split into words. A SingleWord token is not found inside a word.
// LStrip and RStrip take along the white space before and behind the token. A Normalized token is looked for in
// normalised text.
type addedToken struct {
	ID         int32
	Content    string
	SingleWord bool
	LStrip     bool
	RStrip     bool
	Normalized bool
	Special    bool
}

// readAdded reads the list of added tokens.
func readAdded(s *scanner) (tokens []addedToken, err error) {
	seen := map[string]bool{}
	total := 0
	err = s.list(func() error {
		if len(tokens) == maxAdded {
			return fmt.Errorf("more than %d added tokens", maxAdded)
		}
		token, err := readAddedToken(s)
		if err != nil {
			return fmt.Errorf("added token: %w", err)
		}
		// files are not trusted: each text is bounded, and all together
		if token.Content == "" || len(token.Content) > maxAddedBytes {
			return fmt.Errorf(
				"added token %q: %d bytes, want 1 to %d", clip(token.Content), len(token.Content), maxAddedBytes)
		}
		if seen[token.Content] {
			return fmt.Errorf("added token %q twice", token.Content)
		}
		if total += len(token.Content); total > maxAddedTotal {
			return fmt.Errorf("added tokens: more than %d bytes", maxAddedTotal)
		}
		seen[token.Content] = true
		tokens = append(tokens, token)
		return nil
	})
	return tokens, err
}

// readAddedToken reads one of them.
func readAddedToken(s *scanner) (token addedToken, err error) {
	err = s.members(func(key []byte) (err error) {
		switch string(key) {
		case "id":
			token.ID, err = s.whole()
		case "content":
			var text []byte
			text, err = s.text()
			token.Content = string(text)
		case "single_word":
			token.SingleWord, err = s.truth()
		case "lstrip":
			token.LStrip, err = s.truth()
		case "rstrip":
			token.RStrip, err = s.truth()
		case "normalized":
			token.Normalized, err = s.truth()
		case "special":
			token.Special, err = s.truth()
		default:
			return fmt.Errorf("unknown field %q", clip(string(key)))
		}
		return err
	})
	return token, err
}

// A finder finds added tokens: of those that begin first, the longest. It is the automaton of Aho and Corasick. Its
// nodes are the beginnings of tokens, and node 0 is the empty one. One pass over a text finds all tokens: where a node
// has no edge for the next byte, the search goes on from the longest end of the bytes read that is a node too.
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

// newFinder makes a finder of tokens, which are looked for as texts. Of two tokens with one text, the first counts.
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

// find divides a text into added tokens, yielded with their numbers, and the pieces between them, yielded with -1.
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

// insideWord reports whether a word reaches up to the place between two texts.
func insideWord(before, after string) bool {
	boundary := unicodeSets()["boundary"]
	last, sizeBefore := utf8.DecodeLastRuneInString(before)
	first, sizeAfter := utf8.DecodeRuneInString(after)
	return sizeBefore > 0 && boundary.has(last) || sizeAfter > 0 && boundary.has(first)
}

// addTokens adds tokens of a tokenizer.json. The id of one must be that in the vocabulary or else the next free one,
// since the reference gives it that id whatever the file says.
func (t *pipeline) addTokens(tokens []addedToken) error {
	next := int32(t.model.count)
	for _, token := range tokens {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("added token %q: %s", token.Content, fmt.Sprintf(format, args...))
		}
		want := t.model.id([]byte(token.Content))
		switch {
		case want >= 0 && token.ID != want:
			return fail("id %d, but %d in the vocabulary", token.ID, want)
		case want < 0 && token.ID != next:
			return fail("id %d, but %d is the first that is free", token.ID, next)
		case want < 0 && len(t.token(token.ID)) > 0:
			return fail("id %d belongs to another token", token.ID)
		}
		if want < 0 {
			next++
		}
		t.addText(token.ID, token.Content)
	}
	return nil
}

// addText sets what an added token is looked for and decoded as.
func (t *pipeline) addText(id int32, text string) {
	t.added[id] = []byte(text)
	t.size = max(t.size, int(id)+1)
}

// extend adds tokens that only a configuration has. A token of the vocabulary keeps its id.
func (t *pipeline) extend(tokens []addedToken) error {
	for _, token := range tokens {
		if held := t.token(token.ID); len(held) > 0 && string(held) != token.Content {
			return fmt.Errorf(
				"token %q of tokenizer_config.json: its id %d belongs to another token", token.Content, token.ID)
		}
		t.addText(token.ID, token.Content)
	}
	return nil
}
