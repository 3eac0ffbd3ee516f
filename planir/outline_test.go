package planir_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/source"
)

// outlined is a plan with something under every heading of an outline.
func outlined(t *testing.T) *planir.Plan {
	t.Helper()
	shape := shapes["paired"]
	plan := build(t, shape.scheme, shape.rows, shape.change)
	plan.Predictions = []planir.Prediction{
		{Program: "decode", PlanNS: 20577058, LowNS: 19896513, HighNS: 22120979, EnergyUJ: 131492,
			Singles: []planir.SingleTime{{Proc: "a", NS: 24939382}}},
		{Program: "prefill@16", PlanNS: 40024097, LowNS: 39329406, HighNS: 42895917},
	}
	plan.Solver = []planir.Solve{{Problem: "partition decode", Status: "optimal", ObjectiveNS: 20705887,
		BoundNS: 20705887, Choices: 1518}}
	plan.Decisions[0].Source, plan.Decisions[1].Source, plan.Decisions[2].Source = source.Measured, source.Extrapolated,
		source.Measured
	plan.Quality = []planir.Quality{{Phase: "decode", KL: 0.0012, MaxKL: 0.02}}
	plan.Memory = &planir.Memory{Weights: 5 << 20, Cache: 1 << 20, Fixed: 3 << 20, Total: 9 << 20}
	return plan
}

func outline(t *testing.T, plan *planir.Plan) string {
	t.Helper()
	text, err := planir.Outline(plan)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestOutline(t *testing.T) {
	golden.Equal(t, "txt", []byte(outline(t, outlined(t))))
}

// A plan that differs in one fact differs in the line of that fact, and is told in the words of that fact.
func TestOutlineChanges(t *testing.T) {
	before := outline(t, outlined(t))
	if changes := planir.OutlineChanges(before, before); changes != nil {
		t.Errorf("equal outlines: %q", changes)
	}
	for name, test := range map[string]struct {
		change func(p *planir.Plan)
		lines  int // of the outline that differ, besides the digests
		want   []string
	}{
		"a faster program": {func(p *planir.Plan) { p.Predictions[0].PlanNS = 20320000 }, 1,
			[]string{"decode: 20.577 -> 20.320 ms (-1.25 %)"}},
		"a new program": {func(p *planir.Plan) {
			p.Predictions = append(p.Predictions, planir.Prediction{Program: "prefill@32", PlanNS: 5e6})
		}, 1, []string{"prefill@32: new, 5.000 ms"}},
		"a program less": {func(p *planir.Plan) { p.Predictions = p.Predictions[:1] }, 1,
			[]string{"prefill@16: no more"}},
		"more memory": {func(p *planir.Plan) { p.Memory.Total += 9 << 19 }, 1,
			[]string{"total: 9437184 -> 14155776 bytes (+50.00 %)"}},
		"a decision": {func(p *planir.Plan) { p.Decisions[0].Shares[0].Proc = "b" }, 1,
			[]string{"1 of 26 decisions differ"}},
		"a predicted operator": {func(p *planir.Plan) { p.Decisions[0].PredictNS++ }, 1,
			[]string{"the same times, memory and decisions; proofs, sources, alternatives or steps differ"}},
		"a source": {func(p *planir.Plan) { p.Decisions[0].Source = source.Described }, 1,
			[]string{"the same times, memory and decisions; proofs, sources, alternatives or steps differ"}},
		"a step": {func(p *planir.Plan) { p.Program.Programs[0].Sections[0].Lanes[0].Steps[0].ExpectNS++ }, 0,
			[]string{"the same times, memory and decisions; proofs, sources, alternatives or steps differ"}},
	} {
		plan := outlined(t)
		test.change(plan)
		after := outline(t, plan)
		if got := planir.OutlineChanges(before, after); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		var differ int
		old, _, _ := strings.Cut(before, "\n\ndigests")
		now, _, _ := strings.Cut(after, "\n\ndigests")
		has := strings.Split(old, "\n")
		for line := range strings.SplitSeq(now, "\n") {
			if !slices.Contains(has, line) {
				differ++
			}
		}
		if less := len(has) - strings.Count(now, "\n") - 1; less > 0 {
			differ += less
		}
		if differ != test.lines {
			t.Errorf("%s: %d lines differ, want %d", name, differ, test.lines)
		}
		if before == after {
			t.Errorf("%s: the outlines are equal", name)
		}
	}
}

// The outline says where attention is sparse.
func TestOutlineOfAttention(t *testing.T) {
	text := (&planir.Attention{Density: 0.2, Block: 16, Rows: []int{256, 512}}).Text()
	want := "sparse attention at [256 512] rows: 20 % of the positions on average, selected for 16 queries at a time"
	if text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	text = (&planir.Attention{Density: 0.2, Block: 16, Rows: []int{256}, Least: 512}).Text()
	if want := "sparse attention at [256] rows: 20 % of the positions on average, selected for 16 queries at a time, " +
		"and at " +
		"least 512 of them"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	text = (&planir.Attention{Density: 0.2, Block: 16, Rows: []int{256, 512}, Buckets: 9}).Text()
	if want += " by estimates with the nearest of 9 pairs of scales"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}
