package quality

import (
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// Estimates measures how large queries and keys are, how much of the softmax the positions have that blocks of queries
// keep, and which of the largest scores an estimate from 8-bit queries and keys finds. Windows are executed twice: with
// Sizes as the change of Interventions, then with Recall.
type Estimates struct {
	Densities []float64
	// Rows is how many rows of a window Recall looks at, evenly spread, once one by one and once in blocks of Block
	// queries that share a selection.
	Rows, Block int

	layers []layerSizes
	err    error
}

// layerSizes is what was seen of a layer.
type layerSizes struct {
	windows       float64
	queries, keys []float64     // sum of the largest magnitudes of windows over 127, by head
	rows          []float64     // that Recall has looked at, by query head
	queriesSeen   []float64     // in blocks
	mass          [][]float64   // sums, by query head and density
	recall        [][][]float64 // sums, by query head, kind of scales and density
}

// leastPositions is how many positions a row sees at least that Recall looks at: of fewer, a share says little.
const leastPositions = 64

// at returns what was seen of a layer.
func (e *Estimates) at(heads *Heads) *layerSizes {
	for len(e.layers) <= heads.Layer {
		e.layers = append(e.layers, layerSizes{})
	}
	layer := &e.layers[heads.Layer]
	if layer.queries == nil {
		layer.queries, layer.keys = make([]float64, heads.Heads), make([]float64, heads.KVHeads)
		layer.rows, layer.queriesSeen = make([]float64, heads.Heads), make([]float64, heads.Heads)
		for range heads.Heads {
			layer.mass = append(layer.mass, make([]float64, len(e.Densities)))
			kinds := make([][]float64, len(calibration.ScaleKinds))
			for i := range kinds {
				kinds[i] = make([]float64, len(e.Densities))
			}
			layer.recall = append(layer.recall, kinds)
		}
	}
	return layer
}

// Sizes notes the largest magnitudes of a window's queries and keys, by head.
func (e *Estimates) Sizes(heads *Heads) {
	layer := e.at(heads)
	layer.windows++
	for head := range heads.Heads {
		top := float32(0)
		for row := range heads.Rows {
			top = max(top, largestOf(heads.Query(row, head)))
		}
		layer.queries[head] += float64(top) / 127
	}
	for kvHead := range heads.KVHeads {
		top := float32(0)
		for row := range heads.Rows {
			top = max(top, largestOf(heads.Key(row, kvHead)))
		}
		layer.keys[kvHead] += float64(top) / 127
	}
	for _, sum := range slices.Concat(layer.queries, layer.keys) {
		if sum-sum != 0 && e.err == nil {
			e.err = diag.New(diag.ClassRun, "observe the attention of layer %d: a query or key is NaN or infinite",
				heads.Layer)
		}
	}
}

// mean returns the mean scale, as a positive float32.
func (l *layerSizes) mean(sum float64) float32 {
	if scale := float32(sum / l.windows); scale > 0 {
		return scale
	}
	return 1
}

// Layers returns the static scales of all heads: the mean over windows of what holds the largest magnitude (sec. 3.3).
// They have no importances, and before Recall neither mass nor recall.
func (e *Estimates) Layers() ([]calibration.AttentionLayer, error) {
	if e.err != nil {
		return nil, e.err
	}
	out := make([]calibration.AttentionLayer, len(e.layers))
	for i := range e.layers {
		layer := &e.layers[i]
		if layer.windows == 0 {
			return nil, diag.New(diag.ClassRun, "layer %d has no attention that could be observed", i)
		}
		out[i].Layer = i
		for _, sum := range layer.keys {
			out[i].KeyScales = append(out[i].KeyScales, layer.mean(sum))
		}
		for number, sum := range layer.queries {
			head := calibration.AttentionHead{QueryScale: layer.mean(sum), Mass: make([]float64, len(e.Densities))}
			if count := layer.rows[number]; count > 0 {
				head.Mass = means(layer.mass[number], max(1, layer.queriesSeen[number]))
				for kind, name := range calibration.ScaleKinds {
					at := means(layer.recall[number][kind], count)
					head.Recall = append(head.Recall, calibration.EstimateRecall{Scales: name, At: at})
				}
			}
			out[i].Heads = append(out[i].Heads, head)
		}
	}
	return out, nil
}

// means divides sums of shares by their number.
func means(sums []float64, count float64) []float64 {
	out := make([]float64, len(sums))
	for i, sum := range sums {
		out[i] = min(1, sum/count)
	}
	return out
}

// Recall compares estimates of scores with exact ones, with the scales and buckets that the first pass has found.
func (e *Estimates) Recall(attention *calibration.Attention) func(*Heads) {
	return func(heads *Heads) {
		layer := e.at(heads)
		heads.each(heads.Rows, func(head, _, _ int) {
			scales := []calibration.ScalePair{{}, attention.Scales(heads.Layer, head)}
			for _, count := range op.BucketCounts {
				scales = append(scales, *attention.Bucket(heads.Layer, head, count))
			}
			e.recall(heads, layer, head, scales)
			e.blockMass(heads, layer, head, attention)
		})
	}
}

// recall compares the estimates of one head with scales of each kind.
func (e *Estimates) recall(heads *Heads, layer *layerSizes, head int, scales []calibration.ScalePair) {
	kvHead, scale := head/heads.group(), heads.scale()
	rounded := make([]*keyCodes, len(scales))
	for kind, pair := range scales {
		rounded[kind] = heads.roundHead(kvHead, pair.Key)
	}
	exact, estimate := make([]float32, heads.Rows), make([]float32, heads.Rows)
	query := make([]float32, heads.HeadDim)
	for number := range e.Rows {
		row := (number + 1) * heads.Rows / e.Rows
		row--
		first := heads.first(row)
		visible := row + 1 - first
		if visible < leastPositions {
			continue
		}
		values := exact[:visible]
		for i := range values {
			values[i] = dot(heads.Query(row, head), heads.Key(first+i, kvHead)) * scale
		}
		layer.rows[head]++
		bounds := e.bounds(values)
		for kind, pair := range scales {
			queryScale := rowScale(pair.Query, heads.Query(row, head))
			codes(query, heads.Query(row, head), queryScale)
			for i := range estimate[:visible] {
				pos := first + i
				key := rounded[kind].values[pos*heads.HeadDim : (pos+1)*heads.HeadDim]
				estimate[i] = dot(query, key) * queryScale * rounded[kind].scales[pos]
			}
			e.found(layer.recall[head][kind], values, estimate[:visible], bounds)
		}
	}
}

// bounds are, for each density, the smallest of the scores that are among the largest.
func (e *Estimates) bounds(scores []float32) (out []float32) {
	values := slices.Clone(scores)
	for _, density := range e.Densities {
		out = append(out, nthLargest(values, kept(density, len(values))))
	}
	return out
}

// blockMass adds, for each density, what the queries of blocks have of their softmax on what their blocks keep
// (calibration.AttentionHead).
func (e *Estimates) blockMass(heads *Heads, layer *layerSizes, head int, attention *calibration.Attention) {
	kvHead, scale := head/heads.group(), heads.scale()
	sparse := Sparse{Rule: calibration.RuleUniform, Scales: attention.Scales}
	keys := heads.roundHead(kvHead, attention.Scales(heads.Layer, head).Key)
	blocks := max(1, e.Rows/e.Block)
	weights := make([]float64, heads.Rows)
	for number := range blocks {
		to := (number + 1) * heads.Rows / blocks
		from := to - e.Block
		if from < leastPositions {
			continue
		}
		span := heads.SpanOf(from, to-from)
		worth := sparse.estimate(heads, keys, head, span)
		var kept [][]int32
		for _, density := range e.Densities {
			kept = append(kept, largestPositions(worth, span.Inner, span.Keep(float32(density), 0)))
		}
		for row := from; row < to; row++ {
			first, top := heads.first(row), float32(math.Inf(-1))
			scores := make([]float32, row+1-first)
			for i := range scores {
				scores[i] = dot(heads.Query(row, head), heads.Key(first+i, kvHead)) * scale
				top = max(top, scores[i])
			}
			total, own := 0.0, 0.0
			for i, score := range scores {
				weights[first+i] = math.Exp(float64(score - top))
				total += weights[first+i]
				if pos := first + i; pos >= span.Block || pos < span.Inner {
					own += weights[pos]
				}
			}
			layer.queriesSeen[head]++
			for i := range e.Densities {
				mass := own
				for _, pos := range kept[i] {
					mass += weights[pos]
				}
				missed := 1 - min(1, mass/total)
				layer.mass[head][i] += 1 - missed*missed
			}
		}
	}
}

// kept returns how many of so many positions a density keeps.
func kept(density float64, positions int) int {
	return min(positions, max(1, int(math.Ceil(density*float64(positions)))))
}

// found adds, for each density, the share of the positions with the largest estimates whose exact scores are among the
// largest: at least the bound.
func (e *Estimates) found(sums []float64, exact, estimate []float32, bounds []float32) {
	for i, density := range e.Densities {
		count := kept(density, len(exact))
		threshold := nthLargest(slices.Clone(estimate), count)
		above, hits := 0, 0
		for pos, value := range estimate {
			if value > threshold {
				above++
				if exact[pos] >= bounds[i] {
					hits++
				}
			}
		}
		for pos, value := range estimate {
			if value == threshold && above < count {
				above++
				if exact[pos] >= bounds[i] {
					hits++
				}
			}
		}
		sums[i] += float64(hits) / float64(count)
	}
}
