package trial

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// moeText is windows of made-up tokens, for a model without a tokenizer.
func moeText(model *Model, windows, size int) *Text {
	ids := make([]int32, windows*size)
	for i := range ids {
		ids[i] = int32((7*i + i*i/3 + i/size) % model.Vocab)
	}
	out := &Text{}
	for i := range windows {
		out.Windows = append(out.Windows, quality.Window{Tokens: ids[i*size:][:size], Next: -1})
	}
	return out
}

// drops measures, and returns what each rule loses by share.
func drops(t *testing.T, model *Model, text *Text, shares []float64) map[string][]DropResult {
	t.Helper()
	results, err := MeasureDrops(t.Context(), model, DropOptions{Text: text, Shares: shares, Rules: op.Saliences})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]DropResult{}
	for _, result := range results {
		t.Logf("%s %.3f: %.4f dropped in %s, mean KL %.6f, ratio %.4f", result.Salience, result.Share, result.Dropped,
			result.Groups, result.KL.Mean, result.PerplexityRatio.Mean)
		out[result.Salience] = append(out[result.Salience], result)
	}
	for rule, list := range out {
		for i, result := range list {
			switch {
			case result.Share == 0 && (result.Dropped != 0 || result.KL.Mean > 1e-12):
				t.Errorf("%s: without dropped rows %.4f are dropped, and the mean KL is %v", rule, result.Dropped,
					result.KL.Mean)
			case result.Share > 0 && math.Abs(result.Dropped-result.Share) > 0.02+0.25*result.Share:
				t.Errorf("%s: %.4f of the rows are dropped, want about %.4f", rule, result.Dropped, result.Share)
			case i > 0 && !(result.KL.Mean > list[i-1].KL.Mean):
				t.Errorf("%s: dropping %.4f loses %v, and dropping %.4f %v", rule, result.Dropped, result.KL.Mean,
					list[i-1].Dropped, list[i-1].KL.Mean)
			}
		}
	}
	return out
}

// Executed plans drop the share that is asked for, and lose more the more they drop: by the router's weight less than
// at random.
func TestDroppedRows(t *testing.T) {
	for _, name := range []string{"olmoe-plain", "qwen2-moe-shared"} {
		model := open(t, filepath.Join(arch, name))
		found := drops(t, model, moeText(model, 8, 96), []float64{0, 0.05, 0.1, 0.2})
		for i, result := range found[op.SalienceWeight] {
			if random := found[op.SalienceRandom][i]; result.Share > 0 && !(result.KL.Mean < random.KL.Mean) {
				t.Errorf("%s at %.2f: by weight a mean KL of %v, at random %v", name, result.Share, result.KL.Mean,
					random.KL.Mean)
			}
		}
	}
}

// In a trained model the router's weight is the best rule, and the norm of attention (NPUMoE 3.2) better than none.
func TestDroppedRowsOfATrainedModel(t *testing.T) {
	require.Slow(t)
	dir := "../../../testdata/models/tiny-moe-kjv"
	model := open(t, dir)
	text, err := model.ReadText("../../../testdata/models/tiny-llama-kjv/valid.txt", 32, quality.WindowTokens)
	if err != nil {
		t.Fatal(err)
	}
	found := drops(t, model, text, []float64{0, 0.05, 0.1, 0.2})
	for i, random := range found[op.SalienceRandom] {
		norm, weight := found[op.SalienceNorm][i], found[op.SalienceWeight][i]
		if random.Share > 0 && !(weight.KL.High < norm.KL.Low && norm.KL.Mean < random.KL.Mean) {
			t.Errorf("at %.2f: mean KL by weight %v, by norm %v, at random %v, want ascending", random.Share, weight.KL,
				norm.KL, random.KL)
		}
	}
}

// However shares came out, a calibration accepts them.
func TestCalibrateDrops(t *testing.T) {
	var results []DropResult
	for _, rule := range []string{op.SalienceWeight, op.SalienceNorm} {
		for _, dropped := range []float64{0, 0.02, 0.02, 0.01, 0.3} {
			result := DropResult{Salience: rule, Dropped: dropped}
			result.PerplexityRatio.Mean = 1
			results = append(results, result)
		}
	}
	cal := &calibration.Calibration{Schema: calibration.Schema, Drops: CalibrateDrops(results)}
	if err := cal.Validate(); err != nil && strings.Contains(err.Error(), "drops") || len(cal.Drops) != 6 {
		t.Errorf("%+v: %v", cal.Drops, err)
	}
}

// A model without experts has no rows to drop, and three windows are too few to observe and to compare.
func TestDropsAreRefused(t *testing.T) {
	dense, model := open(t, demo), open(t, filepath.Join(arch, "olmoe-plain"))
	_, err := MeasureDrops(t.Context(), dense, DropOptions{Text: text(t, dense, 4)})
	if diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a model without experts: got %v, want an input error", err)
	}
	_, err = MeasureDrops(t.Context(), model, DropOptions{Text: moeText(model, 3, 32)})
	if diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("three windows: got %v, want an input error", err)
	}
}
