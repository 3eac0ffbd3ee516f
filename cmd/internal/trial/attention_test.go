package trial

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// windows are some of the demonstration text.
func windows(t *testing.T, model *Model, count, size int) *Text {
	t.Helper()
	text, err := model.ReadText(filepath.Join(demo, "valid.txt"), count, size)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A calibration of attention that is interrupted goes on where it was, with the same result.
func TestCalibrateAttention(t *testing.T) {
	require.Slow(t)
	model := open(t, demo)
	options := AttentionOptions{Text: windows(t, model, 4, 96), Densities: []float64{0.2, 0.5}}
	executed := 0
	options.Progress = func(int, int, string) { executed++ }
	want, err := CalibrateAttention(t.Context(), model, options)
	if err != nil {
		t.Fatal(err)
	}
	cal := calibration.Calibration{Schema: calibration.Schema, Text: want.Text, Attention: want,
		Model: calibration.Model{Name: model.Name, Digest: model.Digest}}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	all := executed

	options.Journal = filepath.Join(t.TempDir(), "cal.part")
	ctx, cancel := context.WithCancel(t.Context())
	executed = 0
	options.Progress = func(int, int, string) {
		if executed++; executed > all/2 {
			cancel()
		}
	}
	if _, err := CalibrateAttention(ctx, model, options); err == nil {
		t.Fatal("a cancelled calibration has a result")
	}
	// a line that was being written when the power failed
	file, err := os.OpenFile(options.Journal, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"what":"without head 3`); err != nil {
		t.Fatal(err)
	}
	file.Close()
	executed = 0
	options.Progress = func(int, int, string) { executed++ }
	got, err := CalibrateAttention(t.Context(), model, options)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v as without an interruption", got, want)
	}
	if executed > all*3/4 {
		t.Errorf("%d windows were executed after an interruption in the middle of %d", executed, all)
	}

	// Trained attention is worth something, layer 0 most; and what is kept costs less.
	if !(want.Layers[0].Importance > 0.1) {
		t.Errorf("importance of layer 0 is %v", want.Layers[0].Importance)
	}
	// (A window of 96 tokens has but one whole block to leave out.)
	for _, rule := range []string{calibration.RuleHeads, calibration.RuleUniform, calibration.RuleWindow} {
		few, many := want.DensityLoss(rule, 0.2), want.DensityLoss(rule, 0.5)
		if few == nil || many == nil || !(few.KL > many.KL) {
			t.Errorf("%s: losses %+v at 20 %%, %+v at 50 %%, want less with more", rule, few, many)
		}
	}

	short := options
	short.Text = windows(t, model, 2, 96)
	if _, err := CalibrateAttention(t.Context(), model, short); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("two windows: %v", err)
	}
}

// Everything kept, the definition of sparse attention computes what the kernels of dense attention do.
func TestRulesBesideKernels(t *testing.T) {
	model := open(t, demo)
	attention := &calibration.Attention{Heads: model.Heads, KVHeads: model.KVHeads, Block: op.SparseBlock}
	for i := range model.Layers { // no static scales: those of the rows
		attention.Layers = append(attention.Layers, calibration.AttentionLayer{Layer: i,
			Heads: make([]calibration.AttentionHead, model.Heads), KeyScales: make([]float32, model.KVHeads)})
	}
	results, err := CompareRules(t.Context(), model, RuleOptions{Text: windows(t, model, 2, 256), Attention: attention,
		Rules: []string{calibration.RuleUniform}, Densities: []float64{0.3}})
	if err != nil {
		t.Fatal(err)
	}
	dense, sparse := &results[0], &results[1]
	if dense.Rule != RuleDense || !(dense.KL.Mean < 1e-9) || dense.TopAgreement.Mean != 1 {
		t.Errorf("dense attention by the definition: %+v, want that of the kernels but for rounding", dense)
	}
	if !(sparse.KL.Mean > 1e-5) || sparse.Positions != 512 {
		t.Errorf("30 %% of the positions: %+v, want a loss", sparse)
	}
}

// In the constructed model 8-bit estimates find what matters, and windows of the last positions do not.
func TestRulesInALongContext(t *testing.T) {
	require.Slow(t)
	model, path := longModel(t)
	text, err := model.ReadText(path, 4, 1024)
	if err != nil {
		t.Fatal(err)
	}
	attention, err := CalibrateAttention(t.Context(), model, AttentionOptions{Text: text, Densities: []float64{0.2}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range attention.Layers {
		for number, head := range attention.Layers[i].Heads {
			if head.Recall[0].Scales != "row" || head.Recall[0].At[0] < 0.9 {
				t.Errorf("layer %d, head %d: recall %+v, want 0.9 with scales of rows", i, number, head.Recall[0])
			}
		}
	}
	results, err := CompareRules(t.Context(), model, RuleOptions{Text: &Text{SHA256: text.SHA256, Windows: text.Windows[:2]},
		Attention: attention, Rules: []string{calibration.RuleUniform, calibration.RuleWindow}, Densities: []float64{0.2}})
	if err != nil {
		t.Fatal(err)
	}
	dense, uniform, window := results[0], results[1], results[2]
	t.Logf("recalled: dense %.2f, uniform %.2f, window %.2f; KL %.4f, %.4f", dense.Recalled, uniform.Recalled,
		window.Recalled, uniform.KL.Mean, window.KL.Mean)
	if dense.Recalled < 0.8 || uniform.Recalled < dense.Recalled-0.1 || window.Recalled > 0.2 {
		t.Error("want passages recalled by estimates, and none by windows")
	}
	if !(uniform.KL.Mean < window.KL.Mean) {
		t.Error("want less loss by estimates than by windows")
	}
}
