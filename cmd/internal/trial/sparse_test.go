package trial

import (
	"math"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// sparsePlan is the trivial plan in float32 whose prompts attend to selected positions.
func sparsePlan(t *testing.T, model *Model, window int, density float64, rest bool,
	cal *calibration.Calibration) *planir.Plan {
	t.Helper()
	plan, err := model.Plan(window, Float32, cal)
	if err != nil {
		t.Fatal(err)
	}
	plan.Attention = &planir.Attention{Density: density, Block: cal.Attention.Block, Rest: rest, Rows: []int{window}}
	graph := model.Graph()
	plan.Decisions = nil
	for _, rows := range []int{1, window} {
		decisions, err := lower.Trivial(lower.GraphOf(plan, &graph, rows), model.proc.Name, []int{rows}, window, plan.KV,
			func(string, int) op.Scheme { return op.A32W32 })
		if err != nil {
			t.Fatal(err)
		}
		for _, decision := range decisions { // the head has one row in both
			if plan.DecisionFor(decision.Node, decision.Rows) == nil || decision.Rows != 1 {
				plan.Decisions = append(plan.Decisions, decision)
			}
		}
	}
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// The operators estimate, select and sparse attention of a plan lose what the definition does, by which calibrate has
// measured the loss that solve permits.
func TestSparsePlanLosesWhatWasMeasured(t *testing.T) {
	const size, density = 256, 0.3
	model := open(t, demo)
	text := windows(t, model, 2, size)
	attending, err := openAttending(t.Context(), model, text, text.Windows)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = attending.close() }()
	attention := &calibration.Attention{
		Text:  calibration.Text{SHA256: text.SHA256, Tokens: 2 * size, Windows: 2, WindowTokens: size},
		Heads: model.Heads, KVHeads: model.KVHeads, Block: op.SparseBlock, Clamp: 1, Densities: []float64{density},
	}
	estimates := quality.Estimates{Densities: attention.Densities, Rows: 1, Block: op.SparseBlock}
	attending.change.Change = estimates.Sizes
	for _, window := range text.Windows {
		if err := quality.Execute(t.Context(), attending.machine.Machine, window); err != nil {
			t.Fatal(err)
		}
	}
	if attention.Layers, err = estimates.Layers(); err != nil {
		t.Fatal(err)
	}
	for i := range attention.Layers { // some heads get more than others
		attention.Layers[i].Importance = 1
		for head := range attention.Layers[i].Heads {
			attention.Layers[i].Heads[head].Importance = 0.4 + 0.2*float64((i+head)%4)
		}
	}
	attention.Buckets = attention.MeanBuckets()
	attention.Losses = []calibration.DensityLoss{{Rule: calibration.RuleHeads, Density: density, PerplexityRatio: 1}}
	if err := attending.reference(t.Context()); err != nil {
		t.Fatal(err)
	}
	cal := &calibration.Calibration{Schema: calibration.Schema, Text: attention.Text, Attention: attention,
		Model: calibration.Model{Name: model.Name, Digest: model.Digest}}
	least := math.Inf(1)
	for _, rule := range []string{calibration.RuleHeads, calibration.RuleRest} {
		want, err := attending.measure(t.Context(), rule, sparse(attention, rule, density).Attend)
		if err != nil {
			t.Fatal(err)
		}
		plan := sparsePlan(t, model, size, density, rule == calibration.RuleRest, cal)
		machine, err := model.Open(t.Context(), plan, cal, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer machine.Close()
		var tally quality.Tally
		for i := range attending.ref.Windows() {
			if err := attending.ref.Compare(t.Context(), machine.Machine, i, size, &tally); err != nil {
				t.Fatal(err)
			}
		}
		got, err := tally.Result()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, mean KL: operators %.6f, definition %.6f", rule, got.KL.Mean, want.KL.Mean)
		if !(want.KL.Mean > 1e-5) || math.Abs(got.KL.Mean-want.KL.Mean) > 0.005*want.KL.Mean {
			t.Errorf("%s: operators lose a mean KL of %v, the definition %v", rule, got.KL.Mean, want.KL.Mean)
		}
		if want.KL.Mean >= least {
			t.Errorf("%s loses a mean KL of %v, want less than %v as without the rest", rule, want.KL.Mean, least)
		}
		least = want.KL.Mean
	}
}
