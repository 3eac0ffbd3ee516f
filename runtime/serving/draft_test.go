package serving

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/planir"
)

// A draft is what followed the latest earlier occurrence of the longest match of the last tokens.
func TestDraft(t *testing.T) {
	for _, c := range []struct {
		name   string
		tokens []int32
		next   int32
		n      int // the most tokens of a draft
		want   []int32
	}{
		{name: "the latest", tokens: []int32{1, 2, 7, 1, 2, 8, 1}, next: 2, n: 1, want: []int32{8}},
		{name: "the longest", tokens: []int32{5, 1, 2, 7, 6, 1, 2, 8, 5, 1}, next: 2, n: 1, want: []int32{7}},
		{name: "as far as there is", tokens: []int32{1, 2, 3, 1}, next: 2, n: 9, want: []int32{3, 1, 2}},
		{name: "never before", tokens: []int32{1, 2, 3}, next: 4, n: 9},
		{name: "one token", tokens: []int32{4, 2, 3}, next: 4, n: 9},
		{name: "nothing", next: 4, n: 9},
	} {
		if got := draft(c.tokens, c.next, c.n); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// There is a draft exactly where the last two tokens have followed each other before. It is no longer than asked for,
// and the tokens stay as they are.
func TestDraftNeedsTwoTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 3), 0, 30).Draw(t, "tokens")
		next, n := rapid.Int32Range(0, 3).Draw(t, "next"), rapid.IntRange(1, 8).Draw(t, "n")
		kept := slices.Clone(tokens)
		all := append(slices.Clone(tokens), next)
		before := false
		for at := 0; at+2 < len(all); at++ {
			before = before || all[at] == all[len(all)-2] && all[at+1] == next
		}

		got := draft(tokens, next, n)

		if (got != nil) != before || len(got) > n {
			t.Fatalf("%v then %d: draft %v, want one of at most %d tokens: %v", tokens, next, got, n, before)
		}
		if !slices.Equal(tokens, kept) {
			t.Fatalf("tokens were %v, and are %v", kept, tokens)
		}
	})
}

// testDrafts are what a plan says of a machine on which a further row costs this share of the first.
func testDrafts(row, acceptance float64) *planir.Drafts {
	out := &planir.Drafts{Acceptance: acceptance, PlainNS: 1e6}
	for k := 1; k <= 8; k++ {
		out.VerifyNS = append(out.VerifyNS, int64(1e6*(1+row*float64(k))))
	}
	out.Tokens, _ = out.Best(acceptance, 8)
	return out
}

// onClock generates a text on a virtual clock, on which calls take factor times what the plan says, and returns how
// long that took and how long plain decoding takes, in ns. The text behind its first tokens is what the model says.
func onClock(drafts *planir.Drafts, text []int32, prompt int, factor float64) (took, plain int64) {
	var trust guesses
	ns := func(planned int64) int64 { return int64(factor * float64(planned)) }
	for at := prompt; at < len(text); {
		plain += ns(drafts.PlainNS)
		guess := draft(text[:at-1], text[at-1], min(len(text)-at-1, planir.MaxDraft))
		length := trust.length(drafts, len(guess))
		if length == 0 {
			took += ns(drafts.PlainNS)
			trust.decoded(ns(drafts.PlainNS))
			if len(guess) > 0 && guess[0] == text[at] {
				trust.count(1, false)
			} else if len(guess) > 0 {
				trust.count(0, true)
			}
			at++
			continue
		}
		right := 0
		for right < length && guess[right] == text[at+right] {
			right++
		}
		took += ns(drafts.VerifyNS[length-1])
		trust.verified(ns(drafts.VerifyNS[length-1]), right+1)
		trust.count(right, right < length)
		plain += ns(drafts.PlainNS) * int64(right)
		at += right + 1
	}
	return took, plain
}

// Drafts lose less than 3 % of plain decoding's time on random text, at every length of an answer. On a text that
// copies itself they win, where rows are cheap. This holds whatever a row costs, whatever acceptance the plan hopes
// for, and however wrong its times are as a whole.
func TestDraftsOnAClock(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 22))
	uniform := func(n int, vocabulary int32) (out []int32) {
		for range n {
			out = append(out, random.Int32N(vocabulary))
		}
		return out
	}
	for _, row := range []float64{0.02, 0.1, 0.3, 0.9} {
		for _, acceptance := range []float64{0.3, 0.7, 0.99} {
			drafts := testDrafts(row, acceptance)
			for _, factor := range []float64{0.5, 1, 2} {
				for _, vocabulary := range []int32{3, 20, 32000} {
					for _, n := range []int{10, 50, 400} {
						took, plain := onClock(drafts, uniform(100+n, vocabulary), 100, factor)
						if float64(took) > 1.03*float64(plain) {
							what := fmt.Sprintf("rows of %v, acceptance %v", row, acceptance)
							t.Errorf("%s: %d of %d tokens take %d ns, plainly %d", what, n, vocabulary, took, plain)
						}
					}
				}

				passage := uniform(80, 32000)
				text := slices.Concat(passage, uniform(20, 32000), passage, passage, passage)
				took, plain := onClock(drafts, text, 100, factor)
				least := 0.97
				switch {
				case row <= 0.1 && acceptance >= 0.7:
					least = 2
				case row <= 0.3:
					least = 1.2
				}
				if speed := float64(plain) / float64(took); speed < least {
					t.Errorf("rows of %v, acceptance %v: a text that copies itself is %.2f times as fast, want %v", row,
						acceptance, speed, least)
				}
			}
		}
	}
}

// A server does what the plan says, unless it is asked for a number of tokens. Times that a plan does not state lie
// between those of its programs.
func TestDraftsOfAPlan(t *testing.T) {
	plan := &planir.Plan{
		Procs: []planir.Proc{{}},
		Predictions: []planir.Prediction{
			{Program: "decode", PlanNS: 100, Sections: []planir.SectionTime{{Section: "head", NS: 10}}},
			{Program: "prefill@16", PlanNS: 250},
		},
	}
	plan.Procs[0].DynamicRows = true
	plan.Program.Programs = []planir.PhaseProgram{
		{Name: "decode", Rows: 1, Sections: []planir.Section{{Name: "head", Logits: true}}},
		{Name: "prefill@16", Rows: 16},
	}
	plan.Program.Decider = []planir.Decide{
		{Min: 1, Max: 1, Program: "decode"},
		{Min: 2, Max: 99, Program: "prefill@16"},
	}
	times := TimesOf(plan)

	if times.draftsOf(-1) != nil || times.draftsOf(0) != nil {
		t.Error("a plan that says nothing of drafts has them unasked")
	}
	got := times.draftsOf(2)
	if got == nil || got.PlainNS != 100 || !slices.Equal(got.VerifyNS, []int64{120, 140}) {
		t.Errorf("asked for 2 tokens: %+v, want 100 + 10 + 10 ns and 100 + 20 + 20", got)
	}
	if got := times.draftsOf(40); len(got.VerifyNS) != 15 {
		t.Errorf("%d lengths, want 15, which one call holds", len(got.VerifyNS))
	}

	plan.Drafts = testDrafts(0.1, 0.7)
	if got := times.draftsOf(-1); got != plan.Drafts || got.Tokens == 0 {
		t.Errorf("got %+v, want the plan's", got)
	}
	if got := times.draftsOf(3); len(got.VerifyNS) != 3 || len(plan.Drafts.VerifyNS) != 8 {
		t.Errorf("asked for 3 tokens: %+v", got)
	}

	plan.Drafts = testDrafts(0.9, 0.3)
	if plan.Drafts.Tokens != 0 || times.draftsOf(-1) != nil {
		t.Errorf("the plan says that drafts do not pay (%+v), and they are tried", plan.Drafts)
	}
}
