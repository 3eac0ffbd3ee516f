package calibration

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// sample is a calibration with something of everything.
func sample() *Calibration {
	activation := Activation{Class: "layers.qkv", Layer: 1, K: 4, Rows: 512, AbsMax: Vector{1, 9, 0.5, 1.25},
		MeanSquare: Vector{0.25, 3, 0.01, 0.5},
		Directions: Coarse{0.5, 0, 1, 1.25, 0, 0, -0.5, 0.25}}
	activation.Summarise()
	activation.Outliers[0].Share = 0.25
	return &Calibration{
		Schema:      Schema,
		Model:       Model{Name: "tiny", Digest: digest},
		Text:        Text{SHA256: digest, Tokens: 512, Windows: 2, WindowTokens: 256},
		Activations: []Activation{activation},
		Caches:      []CacheLoss{{Type: op.F16, KL: 1e-6, Low: 1e-7, High: 2e-6, TopAgreement: 0.999}},
		Losses: []Loss{
			{Class: "layers.qkv", Scheme: op.A8TQ8C, KL: 0.0005, Low: 0.0004, High: 0.0006, TopAgreement: 0.99},
			{Class: "layers.qkv", Scheme: op.A8TQ8C, Folded: true, KL: 0.0002, Low: 0.0001, High: 0.0003,
				TopAgreement: 0.995},
			{Class: All, Scheme: op.A8TQ4B32, KL: 0.02, Low: 0.01, High: 0.03, TopAgreement: 0.9},
		},
		Folds:   []Fold{{Group: "layers.attn_norm", Layer: 1, Factors: Vector{1, 3, 0.5, 1}}},
		Clips:   []Clip{{Class: "layers.qkv", Share: 0.85}},
		Shadows: []Shadow{{Class: "layers.qkv", Layer: 1, KL: -0.00001, Low: -0.0002, High: 0.0001, Ratio: 1.5}},
		Drops: []DropLoss{{Salience: op.SalienceNorm, Share: 0.1, KL: 0.02, Low: 0.01, High: 0.03, TopAgreement: 0.9,
			PerplexityRatio: 1.02},
			{Salience: op.SalienceNorm, Share: 0.2, KL: 0.06, Low: 0.05, High: 0.07, TopAgreement: 0.85,
				PerplexityRatio: 1.05},
			{Salience: op.SalienceWeight, Share: 0.1, KL: 0.01, Low: 0.01, High: 0.01, TopAgreement: 0.95,
				PerplexityRatio: 1.01}},
	}
}

func TestRoundTrip(t *testing.T) {
	cal := sample()
	path := filepath.Join(t.TempDir(), "cal.yaml")
	if err := Write(path, cal); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, cal) {
		t.Fatalf("got %+v, want %+v", got, cal)
	}
	want, _ := cal.Digest()
	if d, err := got.Digest(); err != nil || d != want || len(d) != 64 {
		t.Errorf("digest %q, %v, want %q", d, err, want)
	}
	got.Losses[0].KL = 0.00051
	if d, _ := got.Digest(); d == want {
		t.Error("another loss has the same digest")
	}
	if a := cal.Activation("layers.qkv", 1); a == nil || a.Outliers[0].Channel != 1 || a.Median != 1 || a.Max != 9 {
		t.Errorf("activation %+v", a)
	}
	if cal.Activation("layers.qkv", 0) != nil || cal.Loss(All, op.A8TQ8C, false) != nil ||
		cal.Fold("layers.attn_norm", 0) != nil {
		t.Error("something was found that is not there")
	}
	if l := cal.Loss("layers.qkv", op.A8TQ8C, true); l == nil || l.KL != 0.0002 {
		t.Errorf("loss %+v", l)
	}
	if f := cal.Fold("layers.attn_norm", 1); f == nil || len(f.Factors) != 4 {
		t.Errorf("fold %+v", f)
	}
	if err := cal.CheckModel("tiny", digest); err != nil {
		t.Error(err)
	}
	if err := cal.CheckModel("other", strings.Repeat("1", 64)); diag.ClassOf(err) != diag.ClassInput ||
		len(diag.HintsOf(err)) == 0 {
		t.Errorf("another model: %v", err)
	}
}

// What dropping loses is linear between upper ends of intervals, and never less for more; a limit permits as much.
func TestDropLoss(t *testing.T) {
	cal := &Calibration{Drops: []DropLoss{
		{Salience: op.SalienceNorm, Share: 0.1, KL: 0.01, High: 0.02},
		{Salience: op.SalienceNorm, Share: 0.2, KL: 0.05, High: 0.06},
		{Salience: op.SalienceNorm, Share: 0.3, KL: 0.04, High: 0.05},
		{Salience: op.SalienceWeight, Share: 0.1, KL: 0.004, High: 0.005},
		{Salience: op.SalienceRandom, Share: 0.9, High: 1e-9},
	}}
	for _, test := range []struct {
		salience  string
		share, kl float64
		measured  bool
	}{
		{op.SalienceNorm, 0, 0, true}, {op.SalienceNorm, 0.05, 0.01, true}, {op.SalienceNorm, 0.1, 0.02, true},
		{op.SalienceNorm, 0.15, 0.04, true}, {op.SalienceNorm, 0.3, 0.06, true}, {op.SalienceNorm, 0.31, 0, false},
		{op.SalienceWeight, 0.2, 0, false}, {"luck", 0.1, 0, false}, {"luck", 0, 0, true},
	} {
		kl, measured := cal.DropLoss(test.salience, test.share)
		if math.Abs(kl-test.kl) > 1e-12 || measured != test.measured {
			t.Errorf("%s, %v: %v, %v, want %v, %v", test.salience, test.share, kl, measured, test.kl, test.measured)
		}
	}
	for _, test := range []struct {
		kl, most float64
		only     string
		salience string
		share    float64
	}{
		{0.0025, 1, "", op.SalienceWeight, 0.05}, {0.01, 1, "", op.SalienceWeight, 0.1},
		{0.04, 1, "", op.SalienceNorm, 0.15},
		{0.04, 0.12, "", op.SalienceNorm, 0.12}, {1, 1, "", op.SalienceNorm, 0.3},
		{1, 1, op.SalienceWeight, op.SalienceWeight, 0.1},
		{0, 1, "", "", 0}, {1, 0, "", "", 0},
	} {
		salience, share := cal.MostDropped(test.kl, test.most, test.only)
		if salience != test.salience || math.Abs(share-test.share) > 1e-12 {
			t.Errorf("%+v: %q, %v", test, salience, share)
		}
	}
}

func TestSummarise(t *testing.T) {
	for _, test := range []struct {
		absmax    Vector
		max, med  float32
		threshold float32
		channels  []int
	}{
		{Vector{0, 0, 0}, 0, 0, 0, nil},
		{Vector{2}, 2, 2, 12, nil},
		{Vector{1, 1, 6, 1}, 6, 1, 6, nil}, // not above it
		{Vector{1, 1, 6.5, 1, 100}, 100, 1, 6, []int{4, 2}},
		{Vector{7, 1, 7, 1, 1}, 7, 1, 6, []int{0, 2}},
		{Vector{0, 0, 1}, 1, 0, 0, []int{2}},
	} {
		activation := Activation{AbsMax: test.absmax}
		threshold := activation.Summarise()
		var channels []int
		for _, o := range activation.Outliers {
			channels = append(channels, o.Channel)
		}
		if activation.Max != test.max || activation.Median != test.med || threshold != test.threshold ||
			!reflect.DeepEqual(channels, test.channels) {
			t.Errorf("%v: max %v, median %v, threshold %v, outliers %v, want %v, %v, %v, %v", test.absmax,
				activation.Max, activation.Median, threshold, channels, test.max, test.med, test.threshold,
				test.channels)
		}
	}
}

func TestStaticScale(t *testing.T) {
	for _, test := range []struct {
		absmax, factors Vector
		want            float32
	}{
		{Vector{1, 254, 3}, nil, 2},
		{Vector{127, 254, 3}, Vector{1, 4, 1}, 1},
		{Vector{127, 254, 3}, Vector{1, 0.5, 1}, 4},
		{Vector{0, 0}, nil, 1},
		{Vector{1e-45}, nil, 1},
		{Vector{math.MaxFloat32}, Vector{MinFactor}, math.MaxFloat32},
	} {
		activation := Activation{AbsMax: test.absmax}
		if got := activation.StaticScale(test.factors, 1); got != test.want {
			t.Errorf("%v over %v: %v, want %v", test.absmax, test.factors, got, test.want)
		}
		if got := activation.StaticScale(test.factors, 0.5); got != test.want/2 && test.want != 1 &&
			test.want != math.MaxFloat32 {
			t.Errorf("half of %v over %v: %v, want %v", test.absmax, test.factors, got, test.want/2)
		}
	}
}

// What llm.npu calls importance: the largest outlier over what the scale holds, after folding.
func TestImportance(t *testing.T) {
	activation := &Activation{AbsMax: Vector{1, 9, 0.5, 1.25}}
	if got := activation.Importance(nil, 1); math.Abs(got-9/(1.25*innerShare)) > 1e-5 {
		t.Errorf("importance %v, want %v", got, 9/(1.25*innerShare))
	}
	if got := activation.Importance([]float32{1, 9, 1, 1}, 1); math.Abs(got-1.25/innerShare) > 1e-5 {
		t.Errorf("folded: importance %v, want %v", got, 1.25/innerShare)
	}
}

func TestValidate(t *testing.T) {
	nan := float32(math.NaN())
	for _, test := range []struct {
		name   string
		break_ func(*Calibration)
		want   string
	}{
		{"schema", func(c *Calibration) { c.Schema = "hetc.calibration/2" }, "schema"},
		{"model name", func(c *Calibration) { c.Model.Name = "a\nb" }, "model.name"},
		{"model digest", func(c *Calibration) { c.Model.Digest = "abc" }, "model.digest"},
		{"upper case digest", func(c *Calibration) { c.Text.SHA256 = strings.ToUpper(digest) }, "text.sha256"},
		{"windows", func(c *Calibration) { c.Text.Windows = 0 }, "text.windows"},
		{"rule of drops", func(c *Calibration) { c.Drops[0].Salience = "luck" }, "drops[0].salience"},
		{"shares of drops", func(c *Calibration) { c.Drops[1].Share = 0.1 }, "drops[1].share"},
		{"perplexity of drops", func(c *Calibration) { c.Drops[2].PerplexityRatio = 0 }, "drops[2].perplexity_ratio"},
		{"layer", func(c *Calibration) { c.Activations[0].Layer = -1 }, "activations[0].layer"},
		{"rows", func(c *Calibration) { c.Activations[0].Rows = 0 }, "activations[0].rows"},
		{"k", func(c *Calibration) { c.Activations[0].K = 5 }, "activations[0].k"},
		{"absmax NaN", func(c *Calibration) { c.Activations[0].AbsMax[2] = nan }, "activations[0].absmax"},
		{"absmax negative", func(c *Calibration) { c.Activations[0].AbsMax[2] = -1 }, "absmax[2] is -1"},
		{"mean square infinite", func(c *Calibration) { c.Activations[0].MeanSquare[1] = float32(math.Inf(1)) },
			"mean_square[1]"},
		{"mean square above", func(c *Calibration) { c.Activations[0].MeanSquare[0] = 1.5 }, "more than the square"},
		{"directions", func(c *Calibration) { c.Activations[0].Directions = c.Activations[0].Directions[:7] },
			"directions has 7 values for 4 channels"},
		{"directions above", func(c *Calibration) { c.Activations[0].Directions[2] = 2 }, "more than mean_square"},
		{"directions NaN", func(c *Calibration) { c.Activations[0].Directions[2] = nan }, "activations[0].directions"},
		{"summary", func(c *Calibration) { c.Activations[0].Median = 2 }, "do not belong"},
		{"outlier", func(c *Calibration) { c.Activations[0].Outliers[0].Channel = 0 }, "activations[0].outliers[0]"},
		{"share", func(c *Calibration) { c.Activations[0].Outliers[0].Share = 1.5 }, "outliers[0].share"},
		{"activation twice", func(c *Calibration) { c.Activations = append(c.Activations, c.Activations[0]) }, "twice"},
		{"scheme", func(c *Calibration) { c.Losses[0].Scheme = "a1/q1" }, "losses[0].scheme"},
		{"float32", func(c *Calibration) { c.Losses[0].Scheme = op.A32W32 }, "loses nothing"},
		{"kl NaN", func(c *Calibration) { c.Losses[0].KL = math.NaN() }, "losses[0].mean_kl"},
		{"interval", func(c *Calibration) { c.Losses[0].High = 0.0001 }, "losses[0].mean_kl"},
		{"high infinite", func(c *Calibration) { c.Losses[0].High = math.Inf(1) }, "losses[0].mean_kl"},
		{"top", func(c *Calibration) { c.Losses[0].TopAgreement = math.NaN() }, "top_agreement"},
		{"cache of no type", func(c *Calibration) { c.Caches[0].Type = op.I32 }, "caches[0].type"},
		{"cache in float32", func(c *Calibration) { c.Caches[0].Type = op.F32 }, "loses nothing"},
		{"cache twice", func(c *Calibration) { c.Caches = append(c.Caches, c.Caches[0]) }, "twice"},
		{"cache NaN", func(c *Calibration) { c.Caches[0].KL = math.NaN() }, "caches[0].mean_kl"},
		{"cache top", func(c *Calibration) { c.Caches[0].TopAgreement = 2 }, "caches[0].top_agreement"},
		{"loss twice", func(c *Calibration) { c.Losses[1].Folded = false }, "twice"},
		{"folded without folds", func(c *Calibration) { c.Folds = nil }, "there are no folds"},
		{"factor", func(c *Calibration) { c.Folds[0].Factors[0] = 0 }, "folds[0].factors"},
		{"factor huge", func(c *Calibration) { c.Folds[0].Factors[0] = 2000 }, "folds[0].factors"},
		{"factors empty", func(c *Calibration) { c.Folds[0].Factors = nil }, "0 values"},
		{"clip", func(c *Calibration) { c.Clips[0].Share = 0 }, "clips[0].share"},
		{"clip of everything", func(c *Calibration) { c.Clips[0].Share = 1 }, "clips[0].share"},
		{"clip NaN", func(c *Calibration) { c.Clips[0].Share = nan }, "clips[0].share"},
		{"clip twice", func(c *Calibration) { c.Clips = append(c.Clips, c.Clips[0]) }, "twice"},
		{"worth", func(c *Calibration) { c.Shadows[0].KL = math.NaN() }, "shadows[0].mean_kl"},
		{"worth outside", func(c *Calibration) { c.Shadows[0].Low = 0 }, "shadows[0].mean_kl"},
		{"ratio", func(c *Calibration) { c.Shadows[0].Ratio = -1 }, "shadows[0].ratio"},
		{"worth twice", func(c *Calibration) { c.Shadows = append(c.Shadows, c.Shadows[0]) }, "twice"},
		{"fewer distinct channels than hot ones", func(c *Calibration) {
			c.Exceeding = []Exceeding{{Class: "layers.qkv", Counts: []Count{{Rows: 1, Mean: 1, Most: 2}},
				Hot: []Hot{{Channel: 1, Share: 1}, {Channel: 2, Share: 0.5}}, Distinct: 1}}
		}, "exceeding[0].distinct"},
		{"fold twice", func(c *Calibration) { c.Folds = append(c.Folds, c.Folds[0]) }, "twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cal := sample()
			test.break_(cal)
			err := cal.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			if _, err := Encode(cal); err == nil {
				t.Error("it can be written all the same")
			}
		})
	}
}

// Mistakes in a file are reported with their line.
func TestHostile(t *testing.T) {
	good, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, by string) string {
		if !bytes.Contains(good, []byte(old)) {
			t.Fatalf("%q is not in\n%s", old, good)
		}
		return strings.Replace(string(good), old, by, 1)
	}
	for _, test := range []struct{ text, want string }{
		{"", "empty"},
		{"schema: hetc.soc/1\n", "hetc.calibration/1"},
		{"schema: hetc.calibration/1\n", `"model" is missing`},
		{replace("mean_square:", "meansquare:"), `did you mean "mean_square"`},
		{replace("absmax: ", "absmax: A"), "calibration.yaml:"},
		{replace("mean_kl: 0.0005", "mean_kl: .inf"), "calibration.yaml:"},
		{replace("layer: 1", "layer: 9999999"), "layer is 9999999"},
		{replace("scheme: a8t/q8c", "scheme: a8t/q9c"), "a8t/q9c"},
		{replace("AACAPwAAQEAAAAA/AACAPw==", `"AACAPwAAQEAAAAA/\nAACAPw=="`), "canonical"},
		{replace("AACAPwAAQEAAAAA/AACAPw==", "AACAPwAAQEAAAAA/AACAPx=="), "vector"},
		{replace("AACAPwAAQEAAAAA/AACAPw==", "AACAPwA="), "5 bytes"},
		{string(good) + string(good), "calibration.yaml:"},
		{string(good[:len(good)/2]), "calibration.yaml:"},
	} {
		_, err := Decode("calibration.yaml", []byte(test.text))
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%q: got %v", test.text, err)
			continue
		}
		text := err.Error()
		for _, d := range diag.All(err) {
			text += fmt.Sprintf("\n%s: %s %s", d.Path, d.Summary, d.Hint)
		}
		if !strings.Contains(text, test.want) {
			t.Errorf("%.200q: got %s, want %q", test.text, text, test.want)
		}
	}
}

func TestRound(t *testing.T) {
	v := Coarse{1, 1 + 1./256, 1 + 3./256, 1.0001, -1 - 1./128 - 1./1024, 0, 1e-40}
	v.Round()
	want := Coarse{1, 1, 1 + 4./256, 1, -1 - 1./128, 0, 1e-40}
	for i := range v[:6] {
		if v[i] != want[i] {
			t.Errorf("value %d is %v, want %v", i, v[i], want[i])
		}
	}
	text, _ := v.MarshalText()
	var back Coarse
	if err := back.UnmarshalText(text); err != nil || !reflect.DeepEqual(back, v) {
		t.Errorf("%v, %v, want %v", back, err, v)
	}
}

// Whatever calibrate may measure is written and read back exactly.
func TestRoundTripAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cal := sample()
		vector := rapid.SliceOfN(rapid.Float32Range(0, 1e6), 1, 80)
		activation := Activation{Class: "head.lm_head", AbsMax: vector.Draw(t, "absmax"),
			Rows: rapid.Int64Range(1, 1<<30).Draw(t, "rows")}
		activation.K = len(activation.AbsMax)
		for _, m := range activation.AbsMax {
			activation.MeanSquare = append(activation.MeanSquare,
				float32(rapid.Float64Range(0, 1).Draw(t, "share"))*m*m)
		}
		for _, m := range activation.MeanSquare {
			x := float32(math.Sqrt(float64(m) / 2))
			activation.Directions = append(activation.Directions, x, -x)
		}
		activation.Directions.Round()
		activation.Summarise()
		for i := range activation.Outliers {
			activation.Outliers[i].Share = rapid.Float64Range(1e-9, 1).Draw(t, "share")
		}
		cal.Activations = append(cal.Activations, activation)
		cal.Folds[0].Factors = rapid.SliceOfN(rapid.Float32Range(MinFactor, MaxFactor), 1, 80).Draw(t, "factors")
		low := rapid.Float64Range(0, 10).Draw(t, "kl")
		cal.Losses[0] = Loss{Class: All, Scheme: op.A8TQ8C, Low: low, KL: low * 1.5, High: low * 2,
			TopAgreement: rapid.Float64Range(0, 1).Draw(t, "top")}
		data, err := Encode(cal)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode("x.yaml", data)
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		if !reflect.DeepEqual(got, cal) {
			t.Fatalf("got %+v, want %+v", got, cal)
		}
	})
}

func FuzzDecode(f *testing.F) {
	good, err := Encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	doc, err := os.ReadFile("../../docs/calibration.md")
	if err != nil {
		f.Fatal(err)
	}
	_, doc, _ = bytes.Cut(doc, []byte("```yaml\n"))
	doc, _, ok := bytes.Cut(doc, []byte("```"))
	if _, err := Decode("docs/calibration.md", doc); err != nil || !ok {
		f.Fatalf("the example: %v", err)
	}
	f.Add(doc)
	f.Add([]byte("schema: hetc.calibration/1\nmodel: {digest: x}\ntext: {sha256: y}\nactivations: [{class: a, k: " +
		"1000000000, rows: 1, absmax: AAAA, mean_square: AAAAAA==}]\nlosses: []\nfolds: []\n"))
	f.Add([]byte(`{"schema": "hetc.calibration/1", "folds": [{"group": "g", "factors": "AADAfw=="}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cal, err := Decode("fuzz.yaml", data)
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Fatalf("class %d of %v", diag.ClassOf(err), err)
			}
			return
		}
		b, err := Encode(cal)
		if err != nil {
			t.Fatalf("accepted, then refused: %v", err)
		}
		again, err := Decode("again.yaml", b)
		if err != nil {
			t.Fatalf("written, then refused: %v\n%s", err, b)
		}
		one, _ := cal.Digest()
		two, _ := again.Digest()
		if one != two {
			t.Fatalf("digest %s before, %s after writing", one, two)
		}
	})
}

// Steps have room for twice what was seen; what is folded counts as it is after folding.
func TestSteps(t *testing.T) {
	activation := &Activation{K: 2, AbsMax: Vector{4, -0}, OutMax: Vector{1, 8, 2, 3, 5, 6}}
	for _, test := range []struct {
		factors, divide []float32
		interleave      []int
		source          int
		in, out         float64 // largest magnitudes
	}{
		{nil, nil, nil, 0, 4, 8},
		{[]float32{8, 1}, nil, nil, 0, 0.5, 8},
		{nil, []float32{1, 4, 1, 1, 1, 1}, nil, 0, 4, 6},
		// Columns 0, 2 and 4 are those of source 0.
		{nil, []float32{1, 1, 2}, []int{1, 1}, 0, 4, 8},
		{nil, []float32{8, 1, 1}, []int{1, 1}, 1, 4, 6},
		// Two of source 0, then one of source 1: columns 2 and 5.
		{nil, []float32{1, 8, 10, 1}, []int{2, 1}, 0, 4, 6},
		{nil, []float32{4, 12}, []int{2, 1}, 1, 4, 8},
	} {
		in, out, ok := activation.Steps(test.factors, test.divide, test.interleave, test.source)
		if want := 2 * test.in / 32767; !ok || math.Abs(float64(in)/want-1) > 1e-6 {
			t.Errorf("%+v: step of what enters %v, want %v", test, in, want)
		}
		if want := 2 * test.out / 32767; math.Abs(float64(out)/want-1) > 1e-6 {
			t.Errorf("%+v: step of results %v, want %v", test, out, want)
		}
	}
	if in, out, ok := (&Activation{AbsMax: Vector{0}, OutMax: Vector{0}}).Steps(nil, nil, nil, 0); !ok || in != 1 ||
		out != 1 {
		t.Errorf("of zeros: %v, %v, %v", in, out, ok)
	}
	if _, _, ok := (&Activation{AbsMax: Vector{1}}).Steps(nil, nil, nil, 0); ok {
		t.Error("steps of results that nobody measured")
	}
}

// Several static scales are read as they were written; a file without them is one of an older hetc, with its digest.
func TestRowScales(t *testing.T) {
	cal := sample()
	without, err := cal.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cal.Scales = []Scales{{"layers.qkv", 1, []float32{0.1, 1. / 3}},
		{"layers.qkv", 1, []float32{0.1, 0.1, 0.2, 1e-40 + 0.3}}, {"layers.qkv", 2, []float32{0.5, 0.5}}}
	text, err := Encode(cal)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode("cal.yaml", text)
	if err != nil || !reflect.DeepEqual(got.Scales, cal.Scales) {
		t.Fatalf("%v, %v", got.Scales, err)
	}
	if with, err := cal.Digest(); err != nil || with == without {
		t.Errorf("the digest does not cover scales: %v", err)
	}
	if x := cal.RowScales("layers.qkv", 1, 4); len(x) != 4 || cal.RowScales("layers.qkv", 1, 3) != nil ||
		cal.RowScales("layers.qkv", 3, 2) != nil {
		t.Errorf("scales %v", x)
	}
	for want, bad := range map[string]Scales{
		"1 values, want 2..4": {"a", 0, []float32{1}}, "5 values": {"a", 0, []float32{1, 1, 1, 1, 1}},
		"scale is 0": {"a", 0, []float32{0, 1}}, "scale is 1": {"a", 0, []float32{2, 1}},
		"scale is +Inf": {"a", 0, []float32{1, float32(math.Inf(1))}},
		"there twice":   {"layers.qkv", 2, []float32{1, 2}}, "layer is -1": {"a", -1, []float32{1, 2}},
	} {
		x := *cal
		x.Scales = append(slices.Clone(cal.Scales), bad)
		if err := x.Validate(); err == nil || !strings.Contains(err.Error(), want) ||
			diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%v: %v, want %q", bad, err, want)
		}
	}
}
