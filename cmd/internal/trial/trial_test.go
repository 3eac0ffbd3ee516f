package trial

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

const (
	demo = "../../../testdata/models/tiny-llama-kjv"
	arch = "../../../testdata/arch"
)

// open opens a model until the test ends.
func open(t *testing.T, dir string) *Model {
	t.Helper()
	stored, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stored.Close() })
	model, err := Open(t.Context(), stored)
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// text is windows of the demonstration text.
func text(t *testing.T, model *Model, windows int) *Text {
	t.Helper()
	read, err := model.ReadText(filepath.Join(demo, "valid.txt"), windows, quality.WindowTokens)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// all returns a scheme for every node.
func all(scheme op.Scheme) func(node string) op.Scheme {
	return func(string) op.Scheme { return scheme }
}

// q4Body returns a scheme for every node but the head, which has 8 bits.
func q4Body(scheme op.Scheme) func(node string) op.Scheme {
	return func(node string) op.Scheme {
		if node == "head.lm_head" {
			return op.A8TQ8C
		}
		return scheme
	}
}

// calibrate measures schemes. Progress counts every window once.
func calibrate(t *testing.T, model *Model, options CalibrateOptions) *calibration.Calibration {
	t.Helper()
	cal, _ := calibrateCounting(t, model, options)
	return cal
}

// calibrateCounting is calibrate, which also returns how many windows were announced with the last one and never
// executed.
func calibrateCounting(t *testing.T, model *Model, options CalibrateOptions) (cal *calibration.Calibration, left int) {
	t.Helper()
	counted := 0
	options.Progress = func(done, all int, _ string) {
		if counted++; done != counted || done > all {
			t.Errorf("%d of %d done, want %d", done, all, counted)
		}
		left = all - done
	}
	cal, err := Calibrate(t.Context(), model, options)
	if err != nil {
		t.Fatal(err)
	}
	return cal, left
}

// demoLosses is what calibrateDemo has measured.
var demoLosses *calibration.Calibration

// calibrateDemo measures a8t/q8c on the demo model, once for all tests.
func calibrateDemo(t *testing.T) *calibration.Calibration {
	t.Helper()
	if demoLosses == nil {
		model := open(t, demo)
		demoLosses = calibrate(t, model, CalibrateOptions{Text: text(t, model, 4), Schemes: []op.Scheme{op.A8TQ8C}})
	}
	return demoLosses
}

// measure compares plans with the reference, step tokens a call.
func measure(
	t *testing.T, model *Model, read *Text, step int, schemes ...func(node string) op.Scheme,
) []quality.Result {
	t.Helper()
	machine := func(schemeOf func(string) op.Scheme) *Machine {
		plan, err := model.Plan(quality.WindowTokens, schemeOf, nil)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := model.Open(t.Context(), plan, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return opened
	}
	exact := machine(Float32)
	defer exact.Close()
	reference, err := quality.NewReference()
	if err != nil {
		t.Fatal(err)
	}
	defer reference.Close()
	for _, window := range read.Windows {
		if err := reference.Add(t.Context(), exact.Machine, window); err != nil {
			t.Fatal(err)
		}
	}
	var out []quality.Result
	for _, schemeOf := range schemes {
		tried := machine(schemeOf)
		var tally quality.Tally
		for i := range read.Windows {
			if err := reference.Compare(t.Context(), tried.Machine, i, step, &tally); err != nil {
				t.Fatal(err)
			}
		}
		result, err := tally.Result()
		if err := errors.Join(err, tried.Close()); err != nil {
			t.Fatal(err)
		}
		out = append(out, result)
	}
	return out
}

// A file that was cut within a character is a text; a compressed one, or one in another encoding, is none.
func TestNotText(t *testing.T) {
	for text, want := range map[string]int{
		"":                            -1,
		"plain\n\x00":                 -1,
		"gr\u00fcn \ufffd \U0001f600": -1,
		"\U0001f600"[:3]:              -1,
		"gr\u00fc"[:3]:                -1,
		"\x1f\x8b\x08":                1,
		"\xff\xfea\x00":               0,
		"gr\xfcn":                     2,
		"abc\xff":                     3,
		"ab\xc0\x80":                  2,
		"\xed\xa0\x80":                0,
	} {
		if got := notText([]byte(text)); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

// What another implementation measured on 60 windows of the same text, with plain rounding: mean KL and top-token
// agreement of a8t/q8c, and of a8t/q4b32 with an 8-bit head, for which scales are searched here. Twelve windows here:
// their values lie within the spread of such samples.
func TestAgreesWithAnotherImplementation(t *testing.T) {
	require.Slow(t)
	model := open(t, demo)
	results := measure(t, model, text(t, model, 12), quality.WindowTokens, Float32, all(op.A8TQ8C), q4Body(op.A8TQ4B32))
	exact, eightBit, fourBit := results[0], results[1], results[2]
	if exact.KL.Mean != 0 || exact.TopAgreement.Mean != 1 || exact.PerplexityRatio.Mean != 1 {
		t.Errorf("the reference differs from itself: %+v", exact)
	}
	for _, test := range []struct {
		got            quality.Result
		low, high, top float64 // of the mean KL, and the same top token
	}{
		{eightBit, 0.00077, 0.00095, 0.982},
		{fourBit, 0.0135, 0.0186, 0.923},
	} {
		kl, top := test.got.KL, test.got.TopAgreement
		if !(kl.Mean > test.low && kl.Mean < test.high) || math.Abs(top.Mean-test.top) > 0.012 {
			t.Errorf("mean KL %v, same top token %v, want %v..%v and about %v", kl, top, test.low, test.high, test.top)
		}
		if !(kl.Low < kl.Mean && kl.Mean < kl.High) {
			t.Errorf("interval %+v", kl)
		}
	}
}

// Decode and prefill of one plan compute the same.
func TestDecodeEqualsPrefill(t *testing.T) {
	model := open(t, demo)
	read := text(t, model, 2)
	prefill := measure(t, model, read, quality.WindowTokens, all(op.A8TQ8C))[0]
	decode := measure(t, model, read, 1, all(op.A8TQ8C))[0]
	if math.Abs(prefill.KL.Mean-decode.KL.Mean) > 0.1*prefill.KL.Mean {
		t.Errorf("prefill has a mean KL of %v, decode of %v", prefill.KL.Mean, decode.KL.Mean)
	}
	if prefill.Positions != 512 || decode.Positions != 512 {
		t.Errorf("%d and %d positions, want 512", prefill.Positions, decode.Positions)
	}
}

// Every class, the embedding and every type of cache lose something, and small losses of classes add up to that of all
// of them. The same text gives the same calibration again.
func TestCalibrate(t *testing.T) {
	require.Slow(t)
	model, cal := open(t, demo), calibrateDemo(t)
	activations := 4*model.Layers + 1
	if len(cal.Activations) != activations || len(cal.Losses) != 7 && len(cal.Losses) != 14 {
		t.Fatalf("%d activations and %d losses, want %d and 7, or 14 with folds", len(cal.Activations),
			len(cal.Losses), activations)
	}
	for _, activation := range cal.Activations {
		if activation.Rows != 2*quality.WindowTokens || len(activation.AbsMax) != activation.K ||
			len(activation.Directions) != activation.K*quality.MaxRank {
			t.Errorf("class %q in layer %d: %d rows, %d channels", activation.Class, activation.Layer, activation.Rows,
				activation.K)
		}
	}

	sum := 0.0
	for _, class := range model.Classes() {
		loss := cal.Loss(class, op.A8TQ8C, false)
		if loss == nil || !(loss.KL > 0) || loss.TopAgreement < 0.95 {
			t.Fatalf("loss of %q is %+v", class, loss)
		}
		sum += loss.KL
	}
	together := cal.Loss(calibration.All, op.A8TQ8C, false).KL
	if math.Abs(sum/together-1) > 0.15 {
		t.Errorf("losses of classes add up to %v, all together cost %v", sum, together)
	}
	head := cal.Loss("head.lm_head", op.A8TQ8C, false).KL
	if table := cal.Loss("embed.embed", op.I32Q8C, false); table == nil || !(table.KL > 0) || table.KL > head {
		t.Errorf("loss of the embedding is %+v, want some below the head's %v", table, head)
	}
	// Types of cache that are named later lose more, and 8 bits less than 8-bit products.
	half, _ := cal.CacheLoss(op.F16)
	brain, _ := cal.CacheLoss(op.BF16)
	bits8, _ := cal.CacheLoss(op.Q8)
	if len(cal.Caches) != 3 || !(half > 0 && brain > half && bits8 > brain) || bits8 > together {
		t.Errorf("losses of caches are %+v", cal.Caches)
	}

	want, err := cal.Digest()
	if err != nil {
		t.Fatal(err)
	}
	again := calibrate(t, model, CalibrateOptions{Text: text(t, model, 4), Schemes: []op.Scheme{op.A8TQ8C}})
	if got, err := again.Digest(); err != nil || got != want {
		t.Errorf("digests %s and %s (%v) of two runs", want, got, err)
	}
}

// Static scales cost ten times as much as scales of rows do, most of it in what enters the down projection. Another
// implementation measured 0.0123, with ranges of 64 windows and on 60. Folding and clipping take most of that away, and
// so do two scales, without clipping; with them one is measured too.
func TestStaticScales(t *testing.T) {
	require.Slow(t)
	model := open(t, demo)
	cal, left := calibrateCounting(t, model,
		CalibrateOptions{Text: text(t, model, 10), Schemes: []op.Scheme{op.A8S2Q8C}})
	if left != 0 {
		t.Errorf("%d windows were announced and not executed", left)
	}
	if len(cal.Clips) == 0 || len(cal.Folds) == 0 {
		t.Errorf("clips %v, folds of %v", cal.Clips, cal.Groups())
	}
	for _, test := range []struct {
		class     string
		scheme    op.Scheme
		folded    bool
		low, high float64 // mean KL
	}{
		{calibration.All, op.A8SQ8C, false, 0.007, 0.015},
		{"layers.ffn_down", op.A8SQ8C, false, 0.006, 0.015},
		{"layers.qkv", op.A8SQ8C, false, 0, 0.0006},
		{calibration.All, op.A8SQ8C, true, 0, 0.005},
		{calibration.All, op.A8S2Q8C, false, 0, 0.003},
		{calibration.All, op.A8S2Q8C, true, 0, 0.0025},
	} {
		loss := cal.Loss(test.class, test.scheme, test.folded)
		if loss == nil {
			t.Fatalf("loss of %q, folded %v, is missing: groups %v", test.class, test.folded, cal.Groups())
		}
		t.Logf("%s (static scales) in %s, folded %v: mean KL %.5f (%.5f..%.5f), same top token %.4f", test.scheme,
			test.class, test.folded, loss.KL, loss.Low, loss.High, loss.TopAgreement)
		if !(loss.KL > test.low && loss.KL <= test.high) {
			t.Errorf("%s, %s, folded %v: mean KL %v, want %v..%v", test.scheme, test.class, test.folded, loss.KL,
				test.low, test.high)
		}
	}
}

// noise is a text of four windows of 16 random tokens, for a model without a tokenizer.
func noise(rng *rand.Rand, model *Model) *Text {
	out := &Text{SHA256: strings.Repeat("0", 64)}
	for range 4 {
		window := quality.Window{Next: -1}
		for range 16 {
			window.Tokens = append(window.Tokens, int32(rng.Intn(model.Vocab)))
		}
		out.Windows = append(out.Windows, window)
	}
	return out
}

// Losses with folds are not announced where none are looked for, or none are found. Shadow outliers are measured after
// them, so that the last window tells what is left.
func TestProgressWithoutFolds(t *testing.T) {
	model := open(t, filepath.Join(arch, "llama-plain"))
	read := noise(rand.New(rand.NewSource(1)), model)
	for _, noFolds := range []bool{true, false} {
		cal, left := calibrateCounting(t, model,
			CalibrateOptions{Text: read, Schemes: []op.Scheme{op.A8OQ8C}, NoFolds: noFolds})
		if len(cal.Folds) > 0 {
			t.Errorf("folds of %v are found, so that this tests nothing", cal.Groups())
		}
		if left != 0 {
			t.Errorf("no folds are looked for: %v: %d windows were announced and not executed", noFolds, left)
		}
	}
}

// Every kind of layer: experts, shared ones, layers of several classes, caps.
func TestCalibrateArchitectures(t *testing.T) {
	require.Slow(t)
	rng := rand.New(rand.NewSource(1))
	for _, name := range []string{
		"gemma2-caps",
		"qwen2-moe-dense-layers-fused",
		"qwen2-moe-shared",
		"phi-partial",
		"olmoe-clip-fused",
	} {
		t.Run(name, func(t *testing.T) {
			model := open(t, filepath.Join(arch, name))
			read := noise(rng, model)
			cal := calibrate(t, model,
				CalibrateOptions{Text: read, Schemes: []op.Scheme{op.A8TQ8C, op.A16SQ8C, op.A16FW16}})
			for _, class := range model.Classes() {
				if loss := cal.Loss(class, op.A8TQ8C, false); loss == nil || !(loss.KL > 0) {
					t.Errorf("loss of %q is %+v", class, loss)
				}
				checkNotOfExperts(t, cal, class, op.A16SQ8C, op.A16FW16)
				checkActivations(t, model, cal, class, 2*16)
			}
			// Neither losses nor folds of shadow outliers are measured for experts.
			shadows := calibrate(t, model, CalibrateOptions{Text: read, Schemes: []op.Scheme{op.A8TQ8C, op.A8OQ8C}})
			for _, class := range model.Classes() {
				checkNotOfExperts(t, shadows, class, op.A8OQ8C)
			}

			_, channels, _ := model.channels()
			most := model.CalibrationBytes() + channels*quality.MaxRank*8/3 + 12000
			if encoded, err := calibration.Encode(cal); err != nil || int64(len(encoded)) > most {
				t.Errorf("%d bytes, %v, want at most %d", len(encoded), err, most)
			}
		})
	}
}

// checkNotOfExperts expects losses of schemes in a class, unless it is one of experts.
func checkNotOfExperts(t *testing.T, cal *calibration.Calibration, class string, schemes ...op.Scheme) {
	t.Helper()
	for _, scheme := range schemes {
		loss := cal.Loss(class, scheme, false)
		if (loss == nil) != strings.Contains(class, "expert_") {
			t.Errorf("loss of %q with %s is %+v", class, scheme, loss)
		}
	}
}

// checkActivations expects so many observed rows of a class in each of its layers, and in the second product of experts
// one for each expert that a row is sent to.
func checkActivations(t *testing.T, model *Model, cal *calibration.Calibration, class string, rows int) {
	t.Helper()
	if strings.Contains(class, "expert_down") {
		rows *= model.ExpertsPerToken
	}
	name, _, _ := strings.Cut(class, ".")
	graph := model.Graph()
	for i := range graph.Sections {
		section := &graph.Sections[i]
		if section.Name != name {
			continue
		}
		for layer := section.First; layer < section.First+max(1, section.Layers); layer++ {
			activation := cal.Activation(class, layer)
			if activation == nil || activation.Rows != int64(rows) || activation.Max <= 0 {
				t.Errorf("class %q in layer %d: %+v, want %d rows", class, layer, activation, rows)
			}
		}
	}
}

// plantedChannels are those that withOutliers makes larger.
var plantedChannels = []int{3, 17, 60, 61, 130, 255}

// withOutliers writes the demo model with some channels of what enters qkv and gate-up 32 times as large, and the
// weights that read them as much smaller: in exact arithmetic the same model.
func withOutliers(t *testing.T) string {
	t.Helper()
	file, err := safetensors.Open(filepath.Join(demo, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []safetensors.Tensor
	for _, name := range file.Names() {
		tensor, _ := file.Tensor(name)
		tensor.Data = slices.Clone(tensor.Data)
		switch part := strings.TrimSuffix(name, ".weight"); {
		case endsIn(part, "input_layernorm", "post_attention_layernorm"):
			for _, channel := range plantedChannels {
				shiftExponent(tensor.Data, channel, 5)
			}
		case endsIn(part, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
			rows, cols := tensor.Shape[0], tensor.Shape[1]
			for _, channel := range plantedChannels {
				for row := range rows {
					shiftExponent(tensor.Data, row*cols+channel, -5)
				}
			}
		}
		out = append(out, tensor)
	}
	dir := t.TempDir()
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), out, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(demo, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// endsIn reports whether a name has one of the endings.
func endsIn(name string, endings ...string) bool {
	return slices.ContainsFunc(endings, func(ending string) bool { return strings.HasSuffix(name, ending) })
}

// shiftExponent multiplies bfloat16 number i by a power of two. Where the exponent has no room it becomes 0.
func shiftExponent(data []byte, i, by int) {
	const fractionBits, margin = 7, 5
	bits := binary.LittleEndian.Uint16(data[2*i:])
	if exponent := bits >> fractionBits & 0xff; exponent <= margin || exponent >= 0xff-margin {
		bits = 0
	} else {
		bits += uint16(by << fractionBits)
	}
	binary.LittleEndian.PutUint16(data[2*i:], bits)
}

// Outlier channels are found, cost what they are known to cost, and cost nothing once they are folded.
func TestOutliers(t *testing.T) {
	require.Slow(t)
	plain := calibrateDemo(t)
	model := open(t, withOutliers(t))
	cal := calibrate(t, model, CalibrateOptions{Text: text(t, model, 4), Schemes: []op.Scheme{op.A8TQ8C}})
	for _, class := range []string{"layers.qkv", "layers.ffn_gate_up"} {
		for layer := range model.Layers {
			var found []int
			for _, outlier := range cal.Activation(class, layer).Outliers {
				found = append(found, outlier.Channel)
				if outlier.Share < 0.3 {
					t.Errorf("%s in layer %d: channel %d exceeds in %.2f of all rows", class, layer, outlier.Channel,
						outlier.Share)
				}
			}
			slices.Sort(found)
			if !slices.Equal(found, plantedChannels) {
				t.Errorf("%s in layer %d: outliers in channels %v, want %v", class, layer, found, plantedChannels)
			}
		}
		got, before := cal.Loss(class, op.A8TQ8C, false).KL, plain.Loss(class, op.A8TQ8C, false).KL
		t.Logf("%s: mean KL %.6f, without outliers %.6f", class, got, before)
		if !(got > 8*before) {
			t.Errorf("%s: mean KL %v, without outliers %v: they cost nothing", class, got, before)
		}
		if folded := cal.Loss(class, op.A8TQ8C, true); folded == nil || !(folded.KL < 1.3*before) {
			t.Errorf("%s: mean KL %+v when folded, without outliers %v", class, folded, before)
		}
	}
	for _, group := range []string{"layers.attn_norm", "layers.ffn_norm"} {
		if !slices.Contains(cal.Groups(), group) {
			t.Errorf("folded groups %v, want %s among them", cal.Groups(), group)
		}
	}
	before := plain.Loss(calibration.All, op.A8TQ8C, false).KL
	unfolded, folded := cal.Loss(calibration.All, op.A8TQ8C, false).KL, cal.Loss(calibration.All, op.A8TQ8C, true).KL
	t.Logf("all: mean KL %.6f, folded %.6f, without outliers %.6f", unfolded, folded, before)
	if !(folded < 1.2*before) {
		t.Errorf("all: mean KL %v when folded, without outliers %v", folded, before)
	}
}

// Nothing is left behind, also when a run is interrupted.
func TestInterrupted(t *testing.T) {
	require.Slow(t)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	model := open(t, demo)
	ctx, cancel := context.WithCancel(t.Context())
	options := CalibrateOptions{Text: text(t, model, 4), Schemes: []op.Scheme{op.A8TQ8C}}
	options.Progress = func(done, _ int, _ string) {
		if done == 5 {
			cancel()
		}
	}
	if _, err := Calibrate(ctx, model, options); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the cancellation", err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

// Products whose outliers are multiplied beside lose a fraction of what clipping loses, also where outliers are planted
// and nothing is folded; without outliers to speak of, hardly more than products with a scale for each row.
func TestShadowOutliers(t *testing.T) {
	require.Slow(t)
	const most = 0.0012 // nats
	losses := func(what, dir string) (shadow, clipped, rows float64) {
		model := open(t, dir)
		cal := calibrate(t, model, CalibrateOptions{Text: text(t, model, 8),
			Schemes: []op.Scheme{op.A8OQ8C, op.A8SQ8C, op.A8TQ8C}})
		kl := func(scheme op.Scheme) float64 { return cal.Loss(calibration.All, scheme, false).KL }
		shadow, clipped, rows = kl(op.A8OQ8C), kl(op.A8SQ8C), kl(op.A8TQ8C)
		t.Logf("%s: mean KL: shadow %.5f, clipped %.5f, a scale for each row %.5f", what, shadow, clipped, rows)
		if shadow > most || shadow > clipped/4 {
			t.Errorf("%s: mean KL %v with shadow outliers, %v clipped, want at most %v and a quarter", what, shadow,
				clipped, most)
		}
		return shadow, clipped, rows
	}
	losses("plain", demo)
	if shadow, _, rows := losses("outliers planted", withOutliers(t)); shadow > rows/4 {
		t.Errorf("outliers planted: mean KL %v with shadow outliers, %v with a scale for each row", shadow, rows)
	}
}

// pruned returns the mean KL of each share of PruneShares by the order in which shadow outliers are pruned, and of the
// random order the mean of some seeds.
func pruned(t *testing.T, model *Model, cal *calibration.Calibration, unseen *Text, seeds int) map[string][]float64 {
	t.Helper()
	kl := map[string][]float64{}
	for _, order := range PruneOrders {
		kl[order] = make([]float64, len(PruneShares))
	}
	for seed := range seeds {
		points, err := PruneCurve(t.Context(), model, cal, unseen, uint64(seed))
		if err != nil {
			t.Fatal(err)
		}
		for i, point := range points {
			of := 1
			if point.Order == ByChance {
				of = seeds
			} else if seed > 0 {
				continue // the same as with the first one
			}
			t.Logf("%-10s %3.0f %% (%2d): mean KL %.5f (%.5f..%.5f), %.5f by calibration, perplexity %.4f (ratio %.4f)",
				point.Order, 100*point.Share, point.Pruned, point.KL.Mean, point.KL.Low, point.KL.High,
				points[0].KL.Mean+point.Sum, point.Perplexity.Mean, point.PerplexityRatio.Mean)
			kl[point.Order][i%len(PruneShares)] += point.KL.Mean / float64(of)
		}
	}
	return kl
}

// Pruning shadow outliers on text that calibration has not seen, plain and with planted outliers. Without pruning the
// mean KL is within 0.0012 nats of float32, and with all pruned it is what clipping loses. In between the order of
// measured worth is no worse than that of the paper's importance, nor than chance. The optimum within the work of what
// importance keeps is no worse than importance.
func TestPruneCurve(t *testing.T) {
	require.Slow(t)
	const spread = 1.05 // of samples of this size
	for name, dir := range map[string]string{"plain": demo, "planted": withOutliers(t)} {
		t.Run(name, func(t *testing.T) {
			model := open(t, dir)
			windows, seeds := 8, 2 // docs/calibration.md has more of both
			if os.Getenv("HETC_LONG") != "" {
				windows, seeds = 12, 3
			}
			whole := text(t, model, windows+8)
			seen, unseen := *whole, *whole
			seen.Windows, unseen.Windows = whole.Windows[:windows], whole.Windows[windows:]
			cal := calibrate(t, model,
				CalibrateOptions{Text: &seen, Schemes: []op.Scheme{op.A8OQ8C}, NoFolds: name == "planted"})
			kl := pruned(t, model, cal, &unseen, seeds)
			worth, importance, random, budget := kl[ByWorth], kl[ByImportance], kl[ByChance], kl[ByBudget]

			if worth[0] > 0.0012 {
				t.Errorf("with all shadows the mean KL is %v, want at most 0.0012", worth[0])
			}
			last := len(PruneShares) - 1
			if worth[last] < 3*worth[0] {
				t.Errorf("without shadows the mean KL is %v, with all %v", worth[last], worth[0])
			}
			if worth[last] != importance[last] || math.Abs(random[last]/worth[last]-1) > 1e-9 {
				t.Errorf("without shadows the mean KL is %v, %v and %v", worth[last], importance[last], random[last])
			}
			if budget[last] != worth[last] || budget[0] > spread*worth[0] {
				t.Errorf("within all and none of the work the mean KL is %v and %v, want %v and %v", budget[0],
					budget[last], worth[0], worth[last])
			}
			for i := 1; i < last; i++ {
				if worth[i] > spread*importance[i] || worth[i] > spread*random[i] || budget[i] > spread*importance[i] {
					t.Errorf("%v pruned: mean KL %v by worth, %v by importance, %v by chance, %v within the work",
						PruneShares[i], worth[i], importance[i], random[i], budget[i])
				}
			}
			// Half of them cost a small part of what all do when chosen by worth.
			if half := 2; worth[half]-worth[0] > (worth[last]-worth[0])/4 {
				t.Errorf("half pruned: mean KL %v, none %v, all %v", worth[half], worth[0], worth[last])
			}
		})
	}
}
