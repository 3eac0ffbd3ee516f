package trial

import (
	"math"
	"testing"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// The operators estimate, select and sparse attention of a plan lose what the definition does, by which calibrate has
// measured the loss that solve permits.
func TestSparsePlanLosesWhatWasMeasured(t *testing.T) {
	const size, density = 320, 0.3
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
	if err := attending.reference(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := 0.0 // what the rule without the rest loses
	for _, by := range []selection{
		{calibration.RuleHeads, density, 0}, {calibration.RuleRest, density, 0},
		{calibration.RuleHeads, density, 256}, {calibration.RuleRest, density, 256},
	} {
		want, err := attending.measure(t.Context(), by.String(), definition(attention, by).Attend)
		if err != nil {
			t.Fatal(err)
		}
		got, err := attending.measureRule(t.Context(), attention, by)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, mean KL: operators %.6f, definition %.6f", by, got.KL.Mean, want.KL.Mean)
		if !(want.KL.Mean > 1e-6) || math.Abs(got.KL.Mean-want.KL.Mean) > 0.005*want.KL.Mean {
			t.Errorf("%s: operators lose a mean KL of %v, the definition %v", by, got.KL.Mean, want.KL.Mean)
		}
		if by.rule == calibration.RuleRest && want.KL.Mean >= before {
			t.Errorf("%s loses a mean KL of %v, want less than %v as without the rest", by, want.KL.Mean, before)
		}
		before = want.KL.Mean
	}
}
