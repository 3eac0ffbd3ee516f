package calibration

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

// attended is what a run of hetc calibrate --attention notes, of a layer with two query heads.
func attended() *Attention {
	recall := []EstimateRecall{{Scales: "row", At: []float64{0.98, 0.99}}, {Scales: "9", At: []float64{0.9, 0.95}}}
	return &Attention{
		Text: Text{SHA256: digest, Tokens: 8192, Windows: 4, WindowTokens: 2048}, Heads: 2, KVHeads: 1, Block: 16,
		Loss: 3.5, Clamp: 0.1, Densities: []float64{0.1, 0.2},
		Layers: []AttentionLayer{{Importance: 0.5, KeyScales: []float32{0.02}, Heads: []AttentionHead{
			{Importance: 0.15, QueryScale: 0.01, Mass: []float64{0.7, 0.9}, Recall: recall},
			{Importance: -0.01, QueryScale: 0.03, Mass: []float64{0.5, 0.6}, Recall: recall},
		}}},
		Buckets: []ScaleBuckets{{1, []ScalePair{{0.02, 0.02}}}},
		Losses:  []DensityLoss{{RuleHeads, 0.2, 0, 0.004, 0.003, 0.005, 0.99, 1.001}},
	}
}

func TestAttentionRoundTrip(t *testing.T) {
	want := sample()
	without, _ := want.Digest()
	want.Attention = attended()
	data, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode("cal.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got.Attention, want.Attention)
	}
	if with, _ := got.Digest(); with == without {
		t.Error("attention does not change the digest")
	}
	if loss := got.Attention.DensityLoss(RuleHeads, 0.2, 0); loss == nil || loss.KL != 0.004 {
		t.Errorf("loss %+v", loss)
	}
	if got.Attention.DensityLoss(RuleUniform, 0.2, 0) != nil ||
		got.Attention.DensityLoss(RuleHeads, 0.2, 256) != nil || got.Attention.Bucket(0, 1, 9) != nil {
		t.Error("something was found that is not there")
	}
}

// A file with nothing but attention is whole.
func TestAttentionAlone(t *testing.T) {
	attention := attended()
	cal := &Calibration{Schema: Schema, Model: Model{"tiny", digest}, Text: attention.Text, Attention: attention}
	data, err := Encode(cal)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode("cal.yaml", data); err != nil {
		t.Error(err)
	}
}

func TestAttentionIsChecked(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		want   string
		change func(*Attention)
	}{
		{"heads is 0", func(a *Attention) { a.Heads = 0 }},
		{"kv_heads is 3, want a divisor of heads 2", func(a *Attention) { a.KVHeads = 3 }},
		{"window_tokens is -1", func(a *Attention) { a.Text.WindowTokens = -1 }},
		{"block is 0", func(a *Attention) { a.Block = 0 }},
		{"layers is 0", func(a *Attention) { a.Layers = nil }},
		{"loss is NaN nats", func(a *Attention) { a.Loss = nan }},
		{"clamp is 0", func(a *Attention) { a.Clamp = 0 }},
		{"density is 0.1, want", func(a *Attention) { a.Densities[1] = 0.1 }},
		{"density is 1.5, want", func(a *Attention) { a.Densities[1] = 1.5 }},
		{"density is NaN, want", func(a *Attention) { a.Densities[0] = nan }},
		{"layer is 1, want 0", func(a *Attention) { a.Layers[0].Layer = 1 }},
		{"importance is NaN", func(a *Attention) { a.Layers[0].Importance = nan }},
		{"importance is +Inf", func(a *Attention) { a.Layers[0].Heads[1].Importance = math.Inf(1) }},
		{"divergence is -1 nats", func(a *Attention) { a.Layers[0].Heads[0].Divergence = -1 }},
		{`shares_by is "luck", want "importance" or "mass"`, func(a *Attention) { a.SharesBy = "luck" }},
		{"2 scales, want 1", func(a *Attention) { a.Layers[0].KeyScales = []float32{1, 1} }},
		{"scale is 0, want", func(a *Attention) { a.Layers[0].KeyScales[0] = 0 }},
		{"scale is NaN, want", func(a *Attention) { a.Layers[0].Heads[0].QueryScale = float32(nan) }},
		{"1 heads, want 2", func(a *Attention) { a.Layers[0].Heads = a.Layers[0].Heads[:1] }},
		{"1 values, want 2, one for each density", func(a *Attention) { a.Layers[0].Heads[0].Mass = []float64{1} }},
		{"share is 1.1, want 0..1", func(a *Attention) { a.Layers[0].Heads[0].Mass = []float64{1, 1.1} }},
		{`scales is "2", want "row", "head", "1"`, func(a *Attention) { a.Layers[0].Heads[0].Recall[0].Scales = "2" }},
		{`recall with scales "9" is there twice`, func(a *Attention) { a.Layers[0].Heads[0].Recall[0].Scales = "9" }},
		{"count is 3, and there are 1 pairs", func(a *Attention) { a.Buckets[0].Count = 3 }},
		{"1 buckets are there twice", func(a *Attention) { a.Buckets = append(a.Buckets, a.Buckets[0]) }},
		{`rule is "best", want "heads"`, func(a *Attention) { a.Losses[0].Rule = "best" }},
		{"least is 100, want one of", func(a *Attention) { a.Losses[0].Least = 100 }},
		{"density is 0.3, want one of", func(a *Attention) { a.Losses[0].Density = 0.3 }},
		{"mean_kl is NaN", func(a *Attention) { a.Losses[0].KL = nan }},
		{"top_agreement is 2", func(a *Attention) { a.Losses[0].TopAgreement = 2 }},
		{"perplexity_ratio is 0", func(a *Attention) { a.Losses[0].PerplexityRatio = 0 }},
		{`rule "heads" with density 0.2 and at least 0 positions is there twice`,
			func(a *Attention) { a.Losses = append(a.Losses, a.Losses[0]) }},
	} {
		cal := sample()
		cal.Attention = attended()
		test.change(cal.Attention)
		err := cal.Validate()
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

func TestRatiosOfHeads(t *testing.T) {
	attention := attended()
	// A head whose removal helps keeps nothing but what every head keeps; what is above 1 has nobody to go to.
	if got := attention.Ratios(0.2); !reflect.DeepEqual(got, [][]float64{{0.4, 0}}) {
		t.Errorf("ratios %v, want 0.4 and 0", got)
	}
	attention.Layers[0].Importance = -1
	if got := attention.Ratios(0.2); !reflect.DeepEqual(got, [][]float64{{0.2, 0.2}}) {
		t.Errorf("ratios %v, want 0.2 for heads of which none is important", got)
	}
}

// Shares by mass against every division of ten steps among three heads.
func TestMassRatios(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const heads, steps = 3, 10
		attention := &Attention{Heads: heads, KVHeads: 1, SharesBy: ByMass, Layers: []AttentionLayer{{}}}
		for step := 1; step < steps; step++ {
			attention.Densities = append(attention.Densities, float64(step)/steps)
		}
		masses := make([][]float64, heads) // by steps kept
		var divergences []float64
		for head := range masses {
			gains := rapid.SliceOfN(rapid.Float64Range(0.01, 1), steps, steps).Draw(rt, "gains")
			slices.SortFunc(gains, func(x, y float64) int { return cmp.Compare(y, x) })
			sum := 0.0
			for _, gain := range gains {
				sum += gain
			}
			masses[head] = []float64{0}
			for i, gain := range gains {
				masses[head] = append(masses[head], masses[head][i]+gain/sum)
			}
			divergences = append(divergences, rapid.Float64Range(0, 2).Draw(rt, "divergence"))
			attention.Layers[0].Heads = append(attention.Layers[0].Heads,
				AttentionHead{Divergence: divergences[head], Mass: masses[head][1:steps]})
		}
		kept := rapid.IntRange(1, heads*steps).Draw(rt, "kept")
		value := func(steps ...int) (sum float64) {
			for head, step := range steps {
				sum += divergences[head] * masses[head][step]
			}
			return sum
		}
		best := 0.0
		for a := range steps + 1 {
			for b := range steps + 1 {
				if c := kept - a - b; c >= 0 && c <= steps {
					best = max(best, value(a, b, c))
				}
			}
		}
		ratios := attention.Ratios(float64(kept) / (heads * steps))[0]
		var got []int
		sum := 0.0
		for _, ratio := range ratios {
			got, sum = append(got, int(math.Round(steps*ratio))), sum+steps*ratio
		}
		if math.Abs(sum-float64(kept)) > 1e-9 || value(got...) < best-1e-9 {
			rt.Fatalf("ratios %v keep %v of %d steps and are worth %v, want %v", ratios, sum, kept, value(got...), best)
		}
	})
}

// Eq. 3: the mean is the ratio that was asked for, and more important heads have no less.
func TestHeadRatios(t *testing.T) {
	mean := func(values []float64) float64 {
		sum := 0.0
		for _, value := range values {
			sum += value
		}
		return sum / float64(len(values))
	}
	rapid.Check(t, func(rt *rapid.T) {
		importance := rapid.SliceOfN(rapid.Float64Range(1e-8, 1e-1), 1, 60).Draw(rt, "importance")
		r := rapid.Float64Range(0.05, 0.9).Draw(rt, "ratio")
		ratios := HeadRatios(r, importance, 1e-3)
		if m := mean(ratios); math.Abs(m-r) > 1e-9 {
			rt.Fatalf("ratios average %v, want %v", m, r)
		}
		for i := range ratios {
			for j := range ratios {
				if min(importance[i], 1e-3) <= min(importance[j], 1e-3) && ratios[i] > ratios[j] {
					rt.Fatalf("head %d of importance %v gets %v, head %d of %v only %v", i, importance[i], ratios[i], j,
						importance[j], ratios[j])
				}
			}
		}
		shared := ShareRatios(ratios)
		if m := mean(shared); math.Abs(m-r) > 1e-9 {
			rt.Fatalf("shared ratios average %v, want %v", m, r)
		}
		for i, value := range shared {
			if value > 1+1e-12 || value < min(ratios[i], 1)-1e-12 {
				rt.Fatalf("ratio %v becomes %v", ratios[i], value)
			}
		}
	})
}

func TestBucketGrid(t *testing.T) {
	centre := ScalePair{0.25, 0.5}
	for count, want := range map[int][]ScalePair{
		1: {centre},
		3: {{0.125, 0.25}, centre, {0.5, 1}},
		9: {{0.125, 0.25}, {0.125, 0.5}, {0.125, 1}, {0.25, 0.25}, centre, {0.25, 1}, {0.5, 0.25}, {0.5, 0.5},
			{0.5, 1}},
	} {
		if got := BucketGrid(centre, count, 0.5); !reflect.DeepEqual(got, want) {
			t.Errorf("%d buckets are %v, want %v", count, got, want)
		}
	}
	if got := Nearest(ScalePair{1.5, 1.5}, []ScalePair{{1, 1}, {1, 2}, {2, 1}}); got != 0 {
		t.Errorf("nearest of equally near buckets is %d, want the first", got)
	}
	if got := Nearest(ScalePair{0.4, 0.5}, BucketGrid(centre, 9, 0.5)); got != 7 {
		t.Errorf("nearest bucket is %d, want 7", got)
	}
}
