package serving

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/planir"
)

// A draft is what followed an earlier occurrence of the latest tokens, and no longer match has an occurrence.
func TestDraft(t *testing.T) {
	for name, test := range map[string]struct {
		tokens []int32
		next   int32
		n      int
		want   []int32
	}{
		"the latest":         {[]int32{1, 2, 7, 1, 2, 8, 1}, 2, 1, []int32{8}},
		"the longest":        {[]int32{5, 1, 2, 7, 6, 1, 2, 8, 5, 1}, 2, 1, []int32{7}},
		"as far as there is": {[]int32{1, 2, 3, 1}, 2, 9, []int32{3, 1, 2}},
		"never before":       {[]int32{1, 2, 3}, 4, 9, nil},
		"one token":          {[]int32{4, 2, 3}, 4, 9, nil},
		"nothing":            {nil, 4, 9, nil},
	} {
		if got := draft(test.tokens, test.next, test.n); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 3), 0, 30).Draw(t, "tokens")
		next, n := rapid.Int32Range(0, 3).Draw(t, "next"), rapid.IntRange(1, 8).Draw(t, "n")
		kept := slices.Clone(tokens)
		got := draft(tokens, next, n)
		all := append(slices.Clone(tokens), next)
		before := false // the last two tokens, that is all a draft needs
		for at := 0; at+2 < len(all); at++ {
			before = before || all[at] == all[len(all)-2] && all[at+1] == next
		}
		if (got != nil) != before || len(got) > n || !slices.Equal(tokens, kept) {
			t.Fatalf("%v then %d: draft %v", tokens, next, got)
		}
	})
}

// Drafts are as long as the plan's times make worth it.
func TestPays(t *testing.T) {
	plan := func(one, sixteen, head int64) *planir.Plan {
		p := &planir.Plan{Procs: []planir.Proc{{}}, Predictions: []planir.Prediction{
			{Program: "decode", PlanNS: one, Sections: []planir.SectionTime{{Section: "head", NS: head}}},
			{Program: "prefill@16", PlanNS: sixteen}}}
		p.Procs[0].DynamicRows = true
		p.Program.Programs = []planir.Phase{
			{Name: "decode", Rows: 1, Sections: []planir.Section{{Name: "head", Logits: true}}}, {Name: "prefill@16", Rows: 16}}
		p.Program.Decider = []planir.Decide{{Min: 1, Max: 1, Program: "decode"}, {Min: 2, Max: 99, Program: "prefill@16"}}
		return p
	}
	for _, test := range []struct {
		one, sixteen, head int64
		n                  int
		share              float64
		want               int
	}{
		{100, 100, 0, 7, 0.9, 7},   // rows cost nothing
		{100, 1600, 0, 7, 0.9, 0},  // each costs as much as the first
		{100, 100, 0, 7, 0, 0},     // nothing is ever right
		{100, 100, 0, 40, 1, 15},   // one call takes no more
		{100, 100, 100, 7, 0.9, 0}, // each needs logits of its own, which is all there is to do
		{100, 250, 0, 7, 0.5, 2},   // 110/1.5, 120/1.75, 130/1.875
		{0, 0, 0, 7, 0.9, 0},       // the plan predicts nothing
	} {
		times := TimesOf(plan(test.one, test.sixteen, test.head))
		if got := times.pays(test.n, test.share); got != test.want {
			t.Errorf("%+v: drafts of %d", test, got)
		}
	}
}
