package planir_test

import (
	"math"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// draftsOf are drafts of up to so many tokens on a machine that reads weights: rows cost little.
func draftsOf(most int) *planir.Drafts {
	out := &planir.Drafts{Acceptance: 0.5, PlainNS: 100}
	for k := range most {
		out.VerifyNS = append(out.VerifyNS, int64(110+10*k))
	}
	out.Tokens, _ = out.Best(out.Acceptance, most)
	return out
}

// draftFaults break P019, each by one change of a plan with draftsOf(15) and a program of 16 rows.
var draftFaults = map[string]func(p *planir.Plan){
	"acceptance of all":         func(p *planir.Plan) { p.Drafts.Acceptance = 1 },
	"acceptance below none":     func(p *planir.Plan) { p.Drafts.Acceptance = -0.1 },
	"acceptance of nothing":     func(p *planir.Plan) { p.Drafts.Acceptance = math.NaN() },
	"no lengths":                func(p *planir.Plan) { p.Drafts.VerifyNS = nil },
	"too many lengths":          func(p *planir.Plan) { p.Drafts.VerifyNS = make([]int64, planir.MaxDraft+1) },
	"plain decoding in no time": func(p *planir.Plan) { p.Drafts.PlainNS = 0 },
	"a draft in no time":        func(p *planir.Plan) { p.Drafts.VerifyNS[3] = 0 },
	"more than one call":        func(p *planir.Plan) { p.Drafts.VerifyNS = append(p.Drafts.VerifyNS, 300) },
	"a worse length":            func(p *planir.Plan) { p.Drafts.Tokens++ },
	"a length that pays, and 0": func(p *planir.Plan) { p.Drafts.Tokens = 0 },
	"verified by a call that drops rows": func(p *planir.Plan) {
		p.Experts = []planir.ExpertTiers{{Rows: 16, Loads: "by hand", Experts: 4, Overflow: planir.OverflowDrop,
			Salience: op.SalienceWeight, Sent: 1, Groups: []planir.ExpertGroup{{Slots: 1, Rows: 2}},
			Layers: []planir.ExpertLayer{{Slots: []int{1}}}, Status: "feasible"}}
	},
	"verified by a selection": func(p *planir.Plan) {
		p.Attention = &planir.Attention{Density: 0.2, Block: 16,
			Rows: []int{16}}
	},
}

// A plan in floating point would not verify drafts to the bit.
func TestDraftsOfFloatingPoint(t *testing.T) {
	plan := build(t, shapes["trivial"].scheme, shapes["trivial"].rows, nil)
	plan.Drafts = draftsOf(15)
	if found := planir.Check(plan); len(found) != 1 || found[0].Code != "P019" || found[0].Path != "drafts" {
		t.Errorf("found %v, want P019", found)
	}
}

// The best length is the one that enumeration finds, and none where none takes less time.
func TestBestDraft(t *testing.T) {
	for _, test := range []struct {
		plain      int64
		verify     []int64
		acceptance float64
		most, want int
	}{
		{100, []int64{100, 100, 100}, 0.9, 8, 3},  // rows cost nothing
		{100, []int64{200, 300, 400}, 0.99, 8, 0}, // each costs as much as the first
		{100, []int64{100, 100}, 0, 8, 0},         // nothing is ever right
		{100, []int64{110, 120, 130, 140}, 0.5, 8, 2},
		{100, []int64{110, 120, 130, 140}, 0.5, 1, 1},
		{0, []int64{1}, 0.9, 8, 0}, // nothing is predicted
		{100, nil, 0.9, 8, 0},
	} {
		drafts := planir.Drafts{PlainNS: test.plain, VerifyNS: test.verify}
		got, ns := drafts.Best(test.acceptance, test.most)
		want, least := 0, float64(test.plain)
		for k := 1; k <= min(test.most, len(test.verify)); k++ {
			tokens := (1 - math.Pow(test.acceptance, float64(k+1))) / (1 - test.acceptance)
			if each := float64(test.verify[k-1]) / tokens; each < least-1e-9 {
				want, least = k, each
			}
		}
		if got != want || got != test.want || math.Abs(ns-least) > 1e-9 {
			t.Errorf("%+v: drafts of %d tokens, %v ns a token, enumerated %d and %v", test, got, ns, want, least)
		}
	}
}
