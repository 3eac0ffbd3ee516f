package httpapi

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// beforeStop is the text before the first stop sequence by its definition: the one that ends first, of those that end
// there the longest.
func beforeStop(text string, stops []string) (string, bool) {
	for end := range len(text) + 1 {
		cut := 0
		for _, stop := range stops {
			if strings.HasSuffix(text[:end], stop) {
				cut = max(cut, len(stop))
			}
		}
		if cut > 0 {
			return text[:end-cut], true
		}
	}
	return text, false
}

// Whatever pieces a text arrives in, what is given out is the text before the first stop sequence, and at no time
// more than what surely stands before it.
func TestStopperIsIndependentOfPieces(t *testing.T) {
	letters := rapid.SampledFrom([]rune("abé語")) // few of them, so that sequences occur and overlap
	text := rapid.StringOfN(letters, 0, 24, -1)
	rapid.Check(t, func(t *rapid.T) {
		whole := text.Draw(t, "text")
		stops := rapid.SliceOfN(rapid.StringOfN(letters, 1, 4, -1), 0, 4).Draw(t, "stops")
		want, wantStopped := beforeStop(whole, stops)
		stopper, got, stopped := newStopper(stops), "", false
		rest := []rune(whole)
		for len(rest) > 0 && !stopped {
			size := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			var out string
			out, stopped = stopper.push(string(rest[:size]))
			got, rest = got+out, rest[size:]
			if !strings.HasPrefix(want, got) {
				t.Fatalf("gave out %q, want a beginning of %q", got, want)
			}
			if !utf8.ValidString(out) {
				t.Fatalf("gave out %q, which is cut within a character", out)
			}
		}
		if !stopped {
			got += stopper.flush()
		}
		if got != want || stopped != wantStopped {
			t.Fatalf("gave out %q, stopped %v, want %q, %v", got, stopped, want, wantStopped)
		}
	})
}

// Text that cannot belong to a stop sequence is not held back.
func TestStopperHoldsBackNoMoreThanItMust(t *testing.T) {
	stopper := newStopper([]string{"\n\n", "END"})
	for _, step := range []struct{ in, out string }{
		{"one", "one"}, {"\n", ""}, {"two", "\ntwo"}, {"E", ""}, {"NE", "EN"}, {"N", ""}, {".", "EN."},
	} {
		if out, stopped := stopper.push(step.in); out != step.out || stopped {
			t.Errorf("after %q: %q, %v, want %q", step.in, out, stopped, step.out)
		}
	}
	if out, stopped := stopper.push("x\n\ny"); out != "x" || !stopped {
		t.Errorf("at a stop sequence: %q, %v, want x, true", out, stopped)
	}
}

// pieces decodes token i to the i-th piece.
type pieces []string

func (p pieces) Push(id int32) string { return p[id] }
func (p pieces) Flush() string        { return "" }

// heldBack is pieces with a text at the end.
type heldBack struct {
	pieces
	end string
}

func (h heldBack) Flush() string { return h.end }

// Scores are given out with the text of their tokens, in order, each once; none shows a part of a stop sequence.
func TestComposerKeepsScoresWithTheirText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 3, -1), 1, 12).Draw(t, "tokens")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 1, 4, -1), 0, 2).Draw(t, "stops")
		c := composer{decode: pieces(texts), stops: newStopper(stops)}
		shown, scores, stopped := "", []scored{}, false
		take := func(piece string, more []scored, end bool) {
			shown, scores, stopped = shown+piece, append(scores, more...), end
			for i := range more {
				if end := more[i].from + len(more[i].text); end > len(shown) {
					t.Fatalf("the score of %q at %d is out before its text: %q", more[i].text, more[i].from, shown)
				}
			}
		}
		for id := 0; id < len(texts) && !stopped; id++ {
			take(c.push(int32(id), &scored{text: texts[id], logProb: float64(id)}))
		}
		if !stopped {
			take(c.finish())
		}
		want, wantStopped := beforeStop(strings.Join(texts, ""), stops)
		if shown != want || stopped != wantStopped {
			t.Fatalf("text %q, stopped %v, want %q, %v", shown, stopped, want, wantStopped)
		}
		for i := range scores {
			if scores[i].logProb != float64(i) {
				t.Fatalf("score %d is that of token %v", i, scores[i].logProb)
			}
		}
		if !stopped && len(scores) != len(texts) {
			t.Fatalf("%d scores of %d tokens", len(scores), len(texts))
		}
	})
}

// A token begins behind bytes of earlier tokens that the decoder has held back until it came. Parts of a character begin
// where the character does.
func TestTokensBeginBehindWhatWasHeldBack(t *testing.T) {
	const part = "\ufffd"
	for _, test := range []struct {
		tokens, pushed []string
		flushed        string
		begin          []int
	}{
		// bytes, as Llama 2 has them for line feeds
		{[]string{"a", "\n", "b", "c"}, []string{"a", "", "\nb", "c"}, "", []int{0, 1, 2, 3}},
		{[]string{"a", "\n", "\t", "\n", "b"}, []string{"a", "", "", "", "\n\t\nb"}, "", []int{0, 1, 2, 3, 4}},
		{[]string{"a", "\n", "\n"}, []string{"a", "", ""}, "\n\n", []int{0, 1, 2}},
		{[]string{"\n", part, part, "x"}, []string{"", "", "", "\néx"}, "", []int{0, 1, 1, 3}},
		{[]string{part, part, part, part}, []string{"", "", "", ""}, "😀", []int{0, 0, 0, 0}},
		// characters of several tokens
		{[]string{"a", part, part, part, part, "x"}, []string{"a", "", "", "", "😀", "x"}, "", []int{0, 1, 1, 1, 1, 5}},
		// special tokens, and a blank that does not begin the text
		{[]string{" the", "<s>", " a"}, []string{"the", "", " a"}, "", []int{0, 3, 3}},
	} {
		c := composer{decode: heldBack{test.pushed, test.flushed}, stops: newStopper(nil)}
		var begin []int
		take := func(_ string, scores []scored, _ bool) {
			for i := range scores {
				begin = append(begin, scores[i].from)
			}
		}
		for id, text := range test.tokens {
			take(c.push(int32(id), &scored{text: text}))
		}
		take(c.finish())
		if !slices.Equal(begin, test.begin) {
			t.Errorf("%q begin at %v, want %v", test.tokens, begin, test.begin)
		}
	}
}
