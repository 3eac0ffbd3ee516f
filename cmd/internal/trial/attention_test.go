package trial

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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

// interruptAttention ends a calibration after some windows, while it writes a line of its journal.
func interruptAttention(t *testing.T, model *Model, options AttentionOptions, after int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	executed := 0
	options.Progress = func(int, int, string) {
		if executed++; executed > after {
			cancel()
		}
	}
	if _, err := CalibrateAttention(ctx, model, options); err == nil {
		t.Fatal("a cancelled calibration has a result")
	}
	file, err := os.OpenFile(options.Journal, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(`{"what":"without head 3`)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
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
	interruptAttention(t, model, options, all/2)
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
		few, many := want.DensityLoss(rule, 0.2, 0), want.DensityLoss(rule, 0.5, 0)
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

// alikeHeads is a calibration of attention in which all heads have the same numbers.
func alikeHeads(model *Model) *calibration.Attention {
	out := &calibration.Attention{
		Heads:     model.Heads,
		KVHeads:   model.KVHeads,
		Block:     op.SparseBlock,
		Densities: []float64{0.3},
	}
	head := calibration.AttentionHead{QueryScale: 0.05, Mass: []float64{0.5}}
	for layer := range model.Layers {
		out.Layers = append(out.Layers, calibration.AttentionLayer{
			Layer:     layer,
			Heads:     slices.Repeat([]calibration.AttentionHead{head}, model.Heads),
			KeyScales: slices.Repeat([]float32{0.05}, model.KVHeads),
		})
	}
	return out
}

// Everything kept, the definition of sparse attention computes what the kernels of dense attention do, and less loses
// something. What was measured is kept for another run.
func TestRulesBesideKernels(t *testing.T) {
	model := open(t, demo)
	attention := alikeHeads(model)
	text := windows(t, model, 2, 256)
	attending, err := openAttending(t.Context(), model, text, text.Windows)
	if err != nil {
		t.Fatal(err)
	}
	if err := attending.reference(t.Context()); err != nil {
		t.Fatal(err)
	}
	everything := definition(attention, selection{calibration.RuleUniform, 1, 0})
	defined, err := attending.measure(t.Context(), "everything", everything.Attend)
	if err := errors.Join(err, attending.close()); err != nil {
		t.Fatal(err)
	}
	if !(defined.KL.Mean < 1e-9) || defined.TopAgreement.Mean != 1 {
		t.Errorf("dense attention by the definition: %+v, want that of the kernels but for rounding", defined)
	}

	options := RuleOptions{
		Text:      text,
		Attention: attention,
		Rules:     []string{calibration.RuleUniform, calibration.RuleWindow},
		Densities: []float64{0.3},
		Journal:   filepath.Join(t.TempDir(), "rules.part"),
	}
	results, err := CompareRules(t.Context(), model, options)
	if err != nil {
		t.Fatal(err)
	}
	dense, sparse := &results[0], &results[1]
	if dense.Rule != RuleDense || dense.KL.Mean != 0 || dense.TopAgreement.Mean != 1 {
		t.Errorf("dense attention: %+v, want no loss", dense)
	}
	if !(sparse.KL.Mean > 1e-5) || sparse.Positions != 512 {
		t.Errorf("30 %% of the positions: %+v, want a loss", sparse)
	}
	executed := 0
	options.Progress = func(int, int, string) { executed++ }
	again, err := CompareRules(t.Context(), model, options)
	if err != nil || !reflect.DeepEqual(again, results) {
		t.Errorf("got %+v, %v, want %+v as before", again, err, results)
	}
	if executed != len(text.Windows) {
		t.Errorf("%d windows were executed with everything measured, want the reference's %d", executed,
			len(text.Windows))
	}
	options.Least = 256
	whole, err := CompareRules(t.Context(), model, options)
	if err != nil || whole[1].KL.Mean > 1e-9 || whole[2].KL.Mean > 1e-9 {
		t.Errorf("all of a window kept: %+v, %v, want no loss", whole, err)
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
	results, err := CompareRules(t.Context(), model, RuleOptions{
		Text:      &Text{SHA256: text.SHA256, Windows: text.Windows[:2]},
		Attention: attention,
		Rules:     []string{calibration.RuleUniform, calibration.RuleWindow},
		Densities: []float64{0.2},
	})
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

// A journal is a file of its own: what has no end is neither read nor written.
func TestJournalIsAFile(t *testing.T) {
	if _, err := openJournal(os.DevNull, "key"); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a device as a journal: got %v, want it refused", err)
	}
	// What is not a journal of this key is replaced as a whole, and nothing is left beside it.
	path := filepath.Join(t.TempDir(), "cal.part")
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openJournal(path, "key"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != "{\"for\":\"key\"}\n" {
		t.Errorf("the journal begins with %q, %v", data, err)
	}
	if beside, err := os.ReadDir(filepath.Dir(path)); err != nil || len(beside) != 1 {
		t.Errorf("beside the journal: %v, %v", beside, err)
	}
}
