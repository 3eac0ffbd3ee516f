package prefix_test

import (
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/prefix"
)

// Of a plan whose tokens depend on their calls, tokens are reused by whole calls that the prompt would begin with. Of
// any other plan all that are the same are.
func TestReuseByCalls(t *testing.T) {
	plan := &planir.Plan{Program: planir.Program{
		Programs: []planir.PhaseProgram{{Name: "decode", Rows: 1}, {Name: "prefill@4", Rows: 4},
			{Name: "prefill@8", Rows: 8}},
		Decider: []planir.Decide{{Min: 1, Max: 1, Program: "decode"}, {Min: 2, Max: 4, Program: "prefill@4"},
			{Min: 5, Max: 99, Program: "prefill@8"}},
	}}
	free := prefix.ReuseOf(plan)
	plan.Attention = &planir.Attention{Density: 0.5, Block: 2, Rows: []int{8}}
	bound := prefix.ReuseOf(plan)
	text := make([]int32, 40)
	for i := range text {
		text[i] = int32(i)
	}
	for _, test := range []struct{ cached, prompt, free, bound int }{
		{20, 40, 20, 16}, // 8 and 8 and 4 tokens, of which the prompt begins with 8 and 8
		{20, 20, 19, 16},
		{24, 25, 24, 24},
		{10, 11, 10, 8},
		{4, 12, 4, 0}, // by another program
		{8, 9, 8, 8},
		{9, 8, 7, 0}, // the last token is processed, with its call
		{12, 11, 10, 8},
		{1, 5, 1, 0},
	} {
		of := &prefix.Prefix{Tokens: text[:test.cached]}
		if got := free.Of(of, text[:test.prompt]); got != test.free {
			t.Errorf("%d tokens cached, prompt of %d: %d are reused, want %d", test.cached, test.prompt, got, test.free)
		}
		if got := bound.Of(of, text[:test.prompt]); got != test.bound {
			t.Errorf("%d tokens cached, prompt of %d, by calls: %d are reused, want %d", test.cached, test.prompt, got,
				test.bound)
		}
	}
	// Of a computed prefix as many tokens are kept as some longer prompt reuses.
	for tokens := 1; tokens <= 30; tokens++ {
		most := 0
		for prompt := tokens + 1; prompt <= len(text); prompt++ {
			most = max(most, bound.Of(&prefix.Prefix{Tokens: text[:tokens]}, text[:prompt]))
		}
		if got := bound.Useful(text[:tokens], len(text)); got != most || most != tokens/8*8 {
			t.Errorf("of %d tokens %d are useful by calls, want %d", tokens, got, most)
		}
		if got := free.Useful(text[:tokens], len(text)); got != tokens {
			t.Errorf("of %d tokens %d are useful, want all", tokens, got)
		}
	}
	// What was decoded belongs to no call of a prompt, and neither does what follows it.
	held := prefix.Cached{}
	held.Extend("prefill@8", text[:8])
	held.Tokens = append(held.Tokens, text[8])
	held.Extend("prefill@8", text[9:17])
	if got := bound.Tokens(held, text); got != 8 || held.Prefilled != 8 {
		t.Errorf("%d tokens are reused, %d were parts of prompts, want 8", got, held.Prefilled)
	}
	held.Keep(7)
	if got := bound.Tokens(held, text); got != 0 || len(held.Tokens) != 7 {
		t.Errorf("%d tokens of half a call are reused, want none", got)
	}
}

// Where decoding has other schemes than prefill, tokens that it has processed are processed again: those of answers,
// and the last one of a prompt that was left over by itself.
func TestReuseOfOtherSchemes(t *testing.T) {
	decision := func(rows int, scheme op.Scheme) planir.Decision {
		return planir.Decision{Node: "head.lm_head", Rows: rows, Scheme: scheme}
	}
	plan := &planir.Plan{
		Decisions: []planir.Decision{decision(1, op.A8TQ4B32), decision(8, op.A8TQ8C)},
		Program: planir.Program{
			Programs: []planir.PhaseProgram{{Name: "decode", Rows: 1}, {Name: "prefill@8", Rows: 8}},
			Decider:  []planir.Decide{{Min: 1, Max: 1, Program: "decode"}, {Min: 2, Max: 99, Program: "prefill@8"}},
		},
	}
	reuse := prefix.ReuseOf(plan)
	text := make([]int32, 40)
	for i := range text {
		text[i] = int32(i)
	}
	for _, test := range []struct{ cached, prompt, want int }{
		{9, 20, 8}, // 8 tokens, and one that was decoded
		{10, 20, 10},
		{8, 20, 8},
		{8, 9, 8}, // ends in decode either way
		{17, 33, 16},
		{12, 13, 11}, // the last token is not decoded without the cache
	} {
		if got := reuse.Of(&prefix.Prefix{Tokens: text[:test.cached]}, text[:test.prompt]); got != test.want {
			t.Errorf("%d tokens computed, prompt of %d: %d are reused, want %d", test.cached, test.prompt, got,
				test.want)
		}
	}
	held := prefix.Cached{}
	held.Extend("prefill@8", text[:8])
	held.Extend("decode", text[8:9])
	if got := reuse.Tokens(held, text); got != 8 {
		t.Errorf("a prompt of 9 tokens: %d are reused, want 8", got)
	}
}
