package calibration

import (
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// maxHeads bounds the heads of a layer.
const maxHeads = 1 << 12

// finite reports whether a number is neither NaN nor infinite.
func finite(value float64) bool { return value-value == 0 }

// attention checks what was measured of attention: sizes first, then every number.
func (v *validator) attention(a *Attention) {
	path := func(keys ...any) []any { return append([]any{"attention"}, keys...) }
	before := len(v.list)
	for _, number := range []struct {
		key         string
		value, most int
	}{
		{"tokens", a.Text.Tokens, maxTokens}, {"windows", a.Text.Windows, maxTokens},
		{"window_tokens", a.Text.WindowTokens, maxTokens}, {"block", a.Block, maxTokens},
		{"heads", a.Heads, maxHeads}, {"kv_heads", a.KVHeads, maxHeads},
		{"layers", len(a.Layers), maxLayers}, {"densities", len(a.Densities), 64}, {"buckets", len(a.Buckets), 64},
		{"losses", len(a.Losses), maxEntries},
	} {
		if number.value < 1 || number.value > number.most {
			v.fail(path(number.key), "%s is %d, want 1..%d", number.key, number.value, number.most)
		}
	}
	v.digest(path("text", "sha256"), a.Text.SHA256)
	if len(v.list) > before {
		return
	}
	if a.Heads%a.KVHeads != 0 {
		v.fail(path("kv_heads"), "kv_heads is %d, want a divisor of heads %d", a.KVHeads, a.Heads)
	}
	if !(a.Loss >= 0 && a.Loss <= math.MaxFloat32) {
		v.fail(path("loss"), "loss is %v nats, want a finite number, 0 or more", a.Loss)
	}
	if !(a.Clamp > 0 && a.Clamp <= math.MaxFloat32) {
		v.fail(path("clamp"), "clamp is %v, want a finite number above 0", a.Clamp)
	}
	if a.SharesBy != "" && !slices.Contains(Sharings, a.SharesBy) {
		v.fail(path("shares_by"), "shares_by is %.40q, want %s", a.SharesBy, diag.OneOf(Sharings))
	}
	for i, density := range a.Densities {
		if !(density > 0 && density <= 1) || i > 0 && density <= a.Densities[i-1] {
			v.fail(path("densities", i), "density is %v, want numbers above 0, up to 1, ascending", density)
		}
	}
	for i := range a.Layers {
		v.attentionLayer(a, i)
	}
	seen := map[int]bool{}
	for i := range a.Buckets {
		v.buckets(i, &a.Buckets[i])
		if again(seen, a.Buckets[i].Count) {
			v.fail(path("buckets", i), "%d buckets are there twice", a.Buckets[i].Count)
		}
	}
	v.densityLosses(a)
}

// attentionLayer checks one layer and its heads.
func (v *validator) attentionLayer(a *Attention, i int) {
	layer := &a.Layers[i]
	path := func(keys ...any) []any { return append([]any{"attention", "layers", i}, keys...) }
	if layer.Layer != i {
		v.fail(path("layer"), "layer is %d, want %d: every layer once, ascending", layer.Layer, i)
	}
	if !finite(layer.Importance) {
		v.fail(path("importance"), "importance is %v, want a finite number", layer.Importance)
	}
	if len(layer.KeyScales) != a.KVHeads {
		v.fail(path("key_scales"), "%d scales, want %d", len(layer.KeyScales), a.KVHeads)
	}
	for j, scale := range layer.KeyScales {
		v.scale(path("key_scales", j), scale)
	}
	if len(layer.Heads) != a.Heads {
		v.fail(path("heads"), "%d heads, want %d", len(layer.Heads), a.Heads)
	}
	for j := range layer.Heads {
		head := &layer.Heads[j]
		if !finite(head.Importance) {
			v.fail(path("heads", j, "importance"), "importance is %v, want a finite number", head.Importance)
		}
		if !(head.Divergence >= 0 && head.Divergence <= math.MaxFloat32) {
			v.fail(path("heads", j, "divergence"), "divergence is %v nats, want a finite number, 0 or more", head.Divergence)
		}
		v.scale(path("heads", j, "query_scale"), head.QueryScale)
		v.shares(path("heads", j, "mass"), head.Mass, len(a.Densities))
		seen := map[string]bool{}
		for k := range head.Recall {
			recall := &head.Recall[k]
			if !slices.Contains(ScaleKinds, recall.Scales) {
				v.fail(path("heads", j, "recall", k, "scales"), "scales is %.40q, want %s", recall.Scales,
					diag.OneOf(ScaleKinds))
			}
			v.shares(path("heads", j, "recall", k, "at"), recall.At, len(a.Densities))
			if again(seen, recall.Scales) {
				v.fail(path("heads", j, "recall", k), "recall with scales %q is there twice", recall.Scales)
			}
		}
	}
}

// scale checks a static scale.
func (v *validator) scale(path []any, scale float32) {
	if !(scale > 0 && scale <= math.MaxFloat32) {
		v.fail(path, "scale is %v, want a finite number above 0", scale)
	}
}

// shares checks a share for each density.
func (v *validator) shares(path []any, values []float64, count int) {
	if len(values) != count {
		v.fail(path, "%d values, want %d, one for each density", len(values), count)
		return
	}
	for i, value := range values {
		if !(value >= 0 && value <= 1) {
			v.fail(append(path, i), "share is %v, want 0..1", value)
		}
	}
}

// buckets checks that there are as many pairs as are said.
func (v *validator) buckets(i int, buckets *ScaleBuckets) {
	path := func(keys ...any) []any { return append([]any{"attention", "buckets", i}, keys...) }
	if len(buckets.Pairs) != buckets.Count || buckets.Count < 1 {
		v.fail(path("count"), "count is %d, and there are %d pairs, want the same, at least 1", buckets.Count,
			len(buckets.Pairs))
	}
	for j, pair := range buckets.Pairs {
		v.scale(path("pairs", j, "query"), pair.Query)
		v.scale(path("pairs", j, "key"), pair.Key)
	}
}

// densityLosses checks each loss; a rule, a density and a least number of positions have one.
func (v *validator) densityLosses(a *Attention) {
	type choice struct {
		rule    string
		density float64
		least   int
	}
	seen := map[choice]bool{}
	for i := range a.Losses {
		loss := &a.Losses[i]
		path := func(key string) []any { return []any{"attention", "losses", i, key} }
		if !slices.Contains(Rules, loss.Rule) {
			v.fail(path("rule"), "rule is %.40q, want %s", loss.Rule, diag.OneOf(Rules))
		}
		if !slices.Contains(a.Densities, loss.Density) {
			v.fail(path("density"), "density is %v, want one of %v", loss.Density, a.Densities)
		}
		if !slices.Contains(op.SparseLeasts, loss.Least) {
			v.fail(path("least"), "least is %d, want one of %v", loss.Least, op.SparseLeasts)
		}
		if !(loss.Low >= 0 && loss.KL >= loss.Low && loss.High >= loss.KL && loss.High <= math.MaxFloat32) {
			v.fail(path("mean_kl"), "mean_kl is %v in %v..%v, want 0 <= low <= mean_kl <= high", loss.KL, loss.Low,
				loss.High)
		}
		if !(loss.TopAgreement >= 0 && loss.TopAgreement <= 1) {
			v.fail(path("top_agreement"), "top_agreement is %v, want 0..1", loss.TopAgreement)
		}
		if !(loss.PerplexityRatio > 0 && loss.PerplexityRatio <= math.MaxFloat32) {
			v.fail(path("perplexity_ratio"), "perplexity_ratio is %v, want a finite number above 0", loss.PerplexityRatio)
		}
		if again(seen, choice{loss.Rule, loss.Density, loss.Least}) {
			v.fail([]any{"attention", "losses", i}, "rule %q with density %v and at least %d positions is there twice",
				loss.Rule, loss.Density, loss.Least)
		}
	}
}
