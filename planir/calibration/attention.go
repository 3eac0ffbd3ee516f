package calibration

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Attention is what was measured about the attention of a model, for plans in which queries attend to some positions
// only (shadowAttn sec. 3.2 and 3.3).
type Attention struct {
	// Text may be another one than that of the activations, in longer windows: numbers are for contexts like these.
	Text    Text `json:"text" yaml:"text" decode:"required"`
	Heads   int  `json:"heads" yaml:"heads" decode:"required"`       // of queries, in every layer
	KVHeads int  `json:"kv_heads" yaml:"kv_heads" decode:"required"` // query head h reads h/(Heads/KVHeads)
	// Block is how many queries shared a selection when losses were measured.
	Block int `json:"block" yaml:"block" decode:"required"`

	// Loss is the mean of -log p of the text's tokens, in nats, of the model as it is.
	Loss float64 `json:"loss" yaml:"loss"`
	// Clamp bounds the products of importances in Ratios; it is the one with which plans lost least.
	Clamp float64 `json:"clamp" yaml:"clamp" decode:"required"`
	// SharesBy is how Ratios divides positions among heads, one of Sharings; empty: by importance. It is the way with
	// which plans lost least.
	SharesBy string `json:"shares_by,omitempty" yaml:"shares_by,omitempty"`
	// Densities are shares of positions that queries keep, ascending. Lists by density have their order.
	Densities []float64 `json:"densities" yaml:"densities" decode:"required"`

	Layers  []AttentionLayer `json:"layers" yaml:"layers" decode:"required"`   // every layer, ascending
	Buckets []ScaleBuckets   `json:"buckets" yaml:"buckets" decode:"required"` // one for each number of buckets
	Losses  []DensityLoss    `json:"losses" yaml:"losses" decode:"required"`   // one for each rule and density
}

// AttentionLayer is one layer. KeyScales are the static int8 scales of its key heads, behind rotation: a code times the
// scale is the value, and codes saturate at +-127.
type AttentionLayer struct {
	Layer int `json:"layer" yaml:"layer"`
	// Importance is by how much the loss rises without the layer's attention (Eq. 2); it may be negative.
	Importance float64         `json:"importance" yaml:"importance"`
	KeyScales  []float32       `json:"key_scales" yaml:"key_scales" decode:"required"`
	Heads      []AttentionHead `json:"heads" yaml:"heads" decode:"required"` // of queries
}

// AttentionHead is one query head.
type AttentionHead struct {
	// Importance is by how much the loss rises without the head (Eq. 1); it may be negative.
	Importance float64 `json:"importance" yaml:"importance"`
	// Divergence is how far predictions are from the model's without the head, as a mean Kullback-Leibler divergence in
	// nats a token. Heads that do each other's work have none or negative importance and yet much divergence.
	Divergence float64 `json:"divergence,omitempty" yaml:"divergence,omitempty"`
	// QueryScale is the static int8 scale of queries, like KeyScales.
	QueryScale float32 `json:"query_scale" yaml:"query_scale" decode:"required"`
	// Mass is, by density, what queries have of their softmax on what their blocks keep by estimates: 1 less the mean
	// of the square of the share that they miss. What they compute is off in proportion to that share, and the
	// divergence of predictions grows with the square.
	Mass   []float64        `json:"mass" yaml:"mass" decode:"required"`
	Recall []EstimateRecall `json:"recall" yaml:"recall" decode:"required"`
}

// EstimateRecall is which share of the positions with the largest scores an int8 estimate of the scores finds, by
// density.
type EstimateRecall struct {
	Scales string    `json:"scales" yaml:"scales" decode:"required"` // one of ScaleKinds
	At     []float64 `json:"at" yaml:"at" decode:"required"`
}

// ScaleKinds are the scales that an estimate can have: those of each row of queries and keys, static ones of each head,
// or those of the nearest of 1, 3 or 9 buckets.
var ScaleKinds = []string{"row", "head", "1", "3", "9"}

// ScaleBuckets are Count pairs of scales of which every head has the nearest (sec. 3.3).
type ScaleBuckets struct {
	Count int         `json:"count" yaml:"count" decode:"required"`
	Pairs []ScalePair `json:"pairs" yaml:"pairs" decode:"required"`
}

// ScalePair are the int8 scales of queries and keys.
type ScalePair struct {
	Query float32 `json:"query" yaml:"query" decode:"required"`
	Key   float32 `json:"key" yaml:"key" decode:"required"`
}

// Rules say which positions a query keeps.
const (
	RuleHeads   = "heads"   // the largest estimates, each head with a density of its own (Ratios)
	RuleRest    = "rest"    // those of heads, and what they leave out counts as one position, the mean of all
	RuleUniform = "uniform" // the largest estimates, every head with the same density
	RuleWindow  = "window"  // the last positions, and the first ones
	RuleBlocks  = "blocks"  // blocks of 64 positions for blocks of 64 queries, by the products of their means
)

// Rules lists them.
var Rules = []string{RuleHeads, RuleRest, RuleUniform, RuleWindow, RuleBlocks}

// DensityLoss is what a rule costs when queries keep a share of their positions: against dense attention, in nats a
// token, with the 95 % interval of KL; the share of positions with the same most likely token; and the perplexity of
// the text over that of dense attention.
type DensityLoss struct {
	Rule    string  `json:"rule" yaml:"rule" decode:"required"`
	Density float64 `json:"density" yaml:"density" decode:"required"`
	// Least is how many positions queries keep at least (op.Op), of op.SparseLeasts.
	Least           int     `json:"least,omitempty" yaml:"least,omitempty"`
	KL              float64 `json:"mean_kl" yaml:"mean_kl"`
	Low             float64 `json:"low" yaml:"low"`
	High            float64 `json:"high" yaml:"high"`
	TopAgreement    float64 `json:"top_agreement" yaml:"top_agreement"`
	PerplexityRatio float64 `json:"perplexity_ratio" yaml:"perplexity_ratio" decode:"required"`
}

// Even returns a calibration in which all heads of sparse attention are alike, as in shadowAttn's measurements of
// kernels (5.1). What it says of scales and losses is made up: the time of attention depends on none of it.
func Even(of Model, layers, heads, kvHeads int, density float64) *Calibration {
	const scale = 0.05
	text := Text{SHA256: of.Digest, Tokens: 1, Windows: 1, WindowTokens: 1}
	at := &Attention{Text: text, Heads: heads, KVHeads: kvHeads, Block: op.SparseBlock, Clamp: 1, Densities: []float64{density},
		Losses: []DensityLoss{{Rule: RuleHeads, Density: density, TopAgreement: 1, PerplexityRatio: 1}}}
	for layer := range layers {
		at.Layers = append(at.Layers, AttentionLayer{Layer: layer, KeyScales: slices.Repeat([]float32{scale}, kvHeads)})
		for range heads {
			at.Layers[layer].Heads = append(at.Layers[layer].Heads, AttentionHead{QueryScale: scale, Mass: []float64{1}})
		}
	}
	at.Buckets = at.MeanBuckets()
	return &Calibration{Schema: Schema, Model: of, Text: text, Attention: at}
}

// Importances returns the products of Eq. 3, of a head's importance and its layer's, in the order of layers and heads.
// Negative importances count as none.
func (a *Attention) Importances() []float64 {
	out := make([]float64, 0, len(a.Layers)*a.Heads)
	for i := range a.Layers {
		for _, head := range a.Layers[i].Heads {
			out = append(out, max(0, head.Importance)*max(0, a.Layers[i].Importance))
		}
	}
	return out
}

// MeanBuckets are 1, 3 and 9 buckets around the mean scales of all heads.
func (a *Attention) MeanBuckets() []ScaleBuckets {
	var query, key, count float64
	for i := range a.Layers {
		for head := range a.Layers[i].Heads {
			pair := a.Scales(i, head)
			query, key, count = query+float64(pair.Query), key+float64(pair.Key), count+1
		}
	}
	centre := ScalePair{float32(query / count), float32(key / count)}
	var out []ScaleBuckets
	for _, count := range op.BucketCounts {
		out = append(out, ScaleBuckets{count, BucketGrid(centre, count, op.BucketStep)})
	}
	return out
}

// Ways to divide positions among heads.
const (
	ByImportance = "importance" // in proportion to importances (Eq. 3)
	ByMass       = "mass"       // so that least of the softmax is left out, weighted by divergences
)

// Sharings lists them.
var Sharings = []string{ByImportance, ByMass}

// Ratios returns the densities of all heads by layer whose mean is density, none above 1: as SharesBy says.
func (a *Attention) Ratios(density float64) [][]float64 {
	var flat []float64
	if a.SharesBy == ByMass {
		flat = a.massRatios(density)
	} else {
		flat = ShareRatios(HeadRatios(density, a.Importances(), a.Clamp))
	}
	out := make([][]float64, len(a.Layers))
	for i := range out {
		out[i] = flat[i*a.Heads : (i+1)*a.Heads]
	}
	return out
}

// Estimated returns the share of query heads whose scores are estimated where the mean share of positions is density:
// the others keep all positions or none by their scores. 0 stands for all.
func (a *Attention) Estimated(density float64) float64 {
	scored, all := 0.0, 0.0
	for _, layer := range a.Ratios(density) {
		for _, ratio := range layer {
			all++
			if ratio > 0 && ratio < 1 {
				scored++
			}
		}
	}
	const none = 1e-3 // in place of 0
	if scored == all {
		return 0
	}
	return max(none, scored/all)
}

// massRatios returns the densities with the least sum of divergence times what is missed of the softmax (Mass), whose
// mean is density.
//
// The gain of a head is the least concave curve above the measured points. For such curves it is optimal to spend each
// position where the curve is steepest (a continuous knapsack), piece by piece of the lines.
func (a *Attention) massRatios(density float64) []float64 {
	type piece struct {
		head         int
		width, slope float64
	}
	var pieces []piece
	for i := range a.Layers {
		for number := range a.Layers[i].Heads {
			head := &a.Layers[i].Heads[number]
			from, mass := 0.0, 0.0
			for at := 0; from < 1; {
				to, reached, next := 1.0, 1.0, len(a.Densities) // the end of the steepest line that begins here
				for j := at; j < len(a.Densities); j++ {
					if width := a.Densities[j] - from; width > 0 && (head.Mass[j]-mass)/width > (reached-mass)/(to-from) {
						to, reached, next = a.Densities[j], head.Mass[j], j+1
					}
				}
				width := to - from
				pieces = append(pieces, piece{i*a.Heads + number, width, head.Divergence * (reached - mass) / width})
				from, mass, at = to, reached, next
			}
		}
	}
	// Pieces of a head keep their order, even where rounding has made a later one steeper.
	slices.SortStableFunc(pieces, func(x, y piece) int { return cmp.Compare(y.slope, x.slope) })
	ratios := make([]float64, len(a.Layers)*a.Heads)
	left := density * float64(len(ratios))
	for _, piece := range pieces {
		spent := min(piece.width, left)
		ratios[piece.head] = min(1, ratios[piece.head]+spent)
		left -= spent
	}
	return ratios
}

// HeadRatios is Eq. 3: ratio_i = r N clamp(importance_i) / sum of clamp(importance), where importance is a head's times
// its layer's, not negative. The ratios' mean is r; one may be above 1. Where no head has any importance all have r.
func HeadRatios(r float64, importance []float64, clamp float64) []float64 {
	ratios, sum := make([]float64, len(importance)), 0.0
	for i, value := range importance {
		ratios[i] = min(value, clamp)
		sum += ratios[i]
	}
	for i := range ratios {
		if sum == 0 {
			ratios[i] = r
			continue
		}
		ratios[i] *= r * float64(len(ratios)) / sum
	}
	return ratios
}

// ShareRatios keeps every position of a head whose ratio is above 1 and shares what is left over among the other heads
// in proportion, until none is above 1: the mean stays what it was.
func ShareRatios(ratios []float64) []float64 {
	shared := slices.Clone(ratios)
	full := make([]bool, len(shared))
	for {
		over, rest := 0.0, 0.0
		for i, value := range shared {
			switch {
			case full[i]:
			case value > 1:
				over += value - 1
				shared[i], full[i] = 1, true
			default:
				rest += value
			}
		}
		if over == 0 || rest == 0 {
			return shared
		}
		for i := range shared {
			if !full[i] {
				shared[i] *= 1 + over/rest
			}
		}
	}
}

// Scales returns the static scales of a query head in a layer and of its keys.
func (a *Attention) Scales(layer, head int) ScalePair {
	at := &a.Layers[layer]
	return ScalePair{Query: at.Heads[head].QueryScale, Key: at.KeyScales[head/(a.Heads/a.KVHeads)]}
}

// Bucket is which of count buckets a head has, nil where that number was not measured.
func (a *Attention) Bucket(layer, head, count int) *ScalePair {
	for i := range a.Buckets {
		if buckets := &a.Buckets[i]; buckets.Count == count {
			return &buckets.Pairs[Nearest(a.Scales(layer, head), buckets.Pairs)]
		}
	}
	return nil
}

// Nearest returns the number of the bucket with the least mean squared difference from a pair of scales, of equal ones
// the first (sec. 3.3).
func Nearest(pair ScalePair, buckets []ScalePair) int {
	best, least := 0, math.Inf(1)
	for i, bucket := range buckets {
		query, key := float64(pair.Query)-float64(bucket.Query), float64(pair.Key)-float64(bucket.Key)
		if square := (query*query + key*key) / 2; square < least {
			best, least = i, square
		}
	}
	return best
}

// BucketGrid are 1, 3 or 9 buckets around a pair of scales (op.ScaleFactors).
func BucketGrid(centre ScalePair, count int, step float32) []ScalePair {
	var out []ScalePair
	for _, factors := range op.ScaleFactors(count, step) {
		out = append(out, ScalePair{centre.Query * factors[0], centre.Key * factors[1]})
	}
	return out
}

// DensityLoss returns what a rule costs at a density with at least so many positions, nil when it was not measured.
func (a *Attention) DensityLoss(rule string, density float64, least int) *DensityLoss {
	for i := range a.Losses {
		if loss := &a.Losses[i]; loss.Rule == rule && loss.Density == density && loss.Least == least {
			return loss
		}
	}
	return nil
}
