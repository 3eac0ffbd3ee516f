package quality

import (
	"math"
	"slices"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// dot returns the product of two vectors of equal length.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

// largestOf returns the largest magnitude of a vector.
func largestOf(values []float32) float32 {
	top := float32(0)
	for _, value := range values {
		top = max(top, value, -value)
	}
	return top
}

// codes rounds values to multiples of scale, as whole numbers of at most 127: products of them are exact in float32.
func codes(dst, values []float32, scale float32) {
	inverse := 1 / scale
	for i, value := range values {
		dst[i] = min(127, max(-127, float32(math.RoundToEven(float64(value*inverse)))))
	}
}

// keyCodes are the keys of a key head as an estimate of scores sees them: rounded to 8 bits.
type keyCodes struct {
	values []float32 // [rows][dim]
	scales []float32 // [rows]
}

// roundHead rounds the keys of a key head with a static scale; 0 is the scale of each key's own row.
func (h *Heads) roundHead(kvHead int, scale float32) *keyCodes {
	out := &keyCodes{make([]float32, h.Rows*h.HeadDim), make([]float32, h.Rows)}
	for pos := range h.Rows {
		key := h.Key(pos, kvHead)
		out.scales[pos] = rowScale(scale, key)
		codes(out.values[pos*h.HeadDim:(pos+1)*h.HeadDim], key, out.scales[pos])
	}
	return out
}

// rowScale returns a static scale, or for 0 that of the row itself; 1 where there is nothing but zeros.
func rowScale(static float32, row []float32) float32 {
	if static > 0 {
		return static
	}
	if top := largestOf(row) / 127; top > 0 {
		return top
	}
	return 1
}

// Sparse says which positions queries attend to. What it computes is the definition of the operators estimate, select
// and sparse_attention, with other rules to compare them with.
type Sparse struct {
	Rule string // of calibration.Rules
	// Density is the share of the positions it sees that a query of a head keeps.
	Density func(layer, head int) float64
	// Least is how many positions queries attend to at least (op.Op).
	Least int
	// Scales are the static scales of the estimate; nil, or scales of 0: those of the rows.
	Scales func(layer, head int) calibration.ScalePair
	// Block is how many queries share a selection. All of a block's own positions are kept.
	Block int
}

// blockSide is the number of queries and of positions of a block of the rule that selects blocks.
const blockSide = 64

// Attend computes the result of every head anew, attending to the selected positions alone.
//
// A block of queries keeps of the positions that all of its queries see and that lie before it those with the largest
// scores of any of its queries, each less the query's largest; its own positions and the first ones count, and are
// always kept. The scores are estimated from queries and keys of 8 bits; what is attended to has exact scores.
func (s *Sparse) Attend(heads *Heads) {
	block := max(1, s.Block)
	var keys []*keyCodes
	if s.Rule == calibration.RuleHeads || s.Rule == calibration.RuleRest || s.Rule == calibration.RuleUniform {
		keys = s.keys(heads)
	}
	var sums *prefixSums
	if s.Rule == calibration.RuleRest {
		sums = heads.prefixSums()
	}
	var means []float32
	if s.Rule == calibration.RuleBlocks {
		block, means = blockSide, heads.means()
	}
	heads.each(block, func(head, from, to int) {
		span := heads.SpanOf(from, to-from)
		density := s.Density(heads.Layer, head)
		count := span.Keep(float32(density), s.Least)
		var kept []int32
		switch s.Rule {
		case calibration.RuleWindow:
			kept = latest(span, count)
		case calibration.RuleBlocks:
			kept = heads.blocks(span, means, head, count)
		default:
			kept = largestPositions(s.estimate(heads, keys[head/heads.group()], head, span), span.Inner, count)
		}
		var left *rest
		if unseen := span.Block - span.Inner - len(kept); sums != nil && unseen > 0 {
			left = sums.rest(heads, head/heads.group(), span, unseen)
		}
		heads.attend(head, span, kept, left)
	})
}

// rest is what a span's queries attend to beside single positions: the mean of all that all of them see before the
// span, which counts as many times as positions were left out.
type rest struct {
	key, value []float32
	count      int
}

// prefixSums are sums of keys and of values of the positions before every blockSide-th one: [kvHeads][blocks][2*dim],
// keys first.
type prefixSums struct{ sums []float64 }

// prefixSums adds up all keys and values.
func (h *Heads) prefixSums() *prefixSums {
	blocks, width := h.Rows/blockSide+1, 2*h.HeadDim
	out := &prefixSums{make([]float64, h.KVHeads*blocks*width)}
	for kvHead := range h.KVHeads {
		for block := 1; block < blocks; block++ {
			at := (kvHead*blocks + block) * width
			copy(out.sums[at:at+width], out.sums[at-width:at])
			h.addTo(out.sums[at:at+width], kvHead, (block-1)*blockSide, block*blockSide)
		}
	}
	return out
}

// addTo adds keys and values of positions from..to-1.
func (h *Heads) addTo(sums []float64, kvHead, from, to int) {
	for pos := from; pos < to; pos++ {
		for i, value := range h.Key(pos, kvHead) {
			sums[i] += float64(value)
		}
		for i, value := range h.value(pos, kvHead) {
			sums[h.HeadDim+i] += float64(value)
		}
	}
}

// rest returns the mean of what all queries of a span see before it.
func (p *prefixSums) rest(heads *Heads, kvHead int, span op.SparseSpan, count int) *rest {
	blocks, width := heads.Rows/blockSide+1, 2*heads.HeadDim
	before := func(pos int) []float64 {
		at := (kvHead*blocks + pos/blockSide) * width
		sums := slices.Clone(p.sums[at : at+width])
		heads.addTo(sums, kvHead, pos/blockSide*blockSide, pos)
		return sums
	}
	low, high := before(span.Inner), before(span.Block)
	means := make([]float32, width)
	for i := range means {
		means[i] = float32((high[i] - low[i]) / float64(span.Block-span.Inner))
	}
	return &rest{means[:heads.HeadDim], means[heads.HeadDim:], count}
}

// keys returns the rounded keys for every key head: with the scale that its first query head has.
func (s *Sparse) keys(heads *Heads) (out []*keyCodes) {
	for kvHead := range heads.KVHeads {
		scale := float32(0)
		if s.Scales != nil {
			scale = s.Scales(heads.Layer, kvHead*heads.group()).Key
		}
		out = append(out, heads.roundHead(kvHead, scale))
	}
	return out
}

// estimate returns what each position in [Inner,Block) of a span is worth to its queries: the largest score, less the
// query's largest.
func (s *Sparse) estimate(heads *Heads, keys *keyCodes, head int, span op.SparseSpan) []float32 {
	worth := make([]float32, span.Block-span.Inner)
	for i := range worth {
		worth[i] = float32(math.Inf(-1))
	}
	static := float32(0)
	if s.Scales != nil {
		static = s.Scales(heads.Layer, head).Query
	}
	query, scores := make([]float32, heads.HeadDim), make([]float32, len(worth))
	scale := heads.scale()
	for row := span.Block; row < span.End; row++ {
		exact := heads.Query(row, head)
		queryScale := rowScale(static, exact)
		codes(query, exact, queryScale)
		top := float32(math.Inf(-1))
		for i := range scores {
			pos := span.Inner + i
			key := keys.values[pos*heads.HeadDim : (pos+1)*heads.HeadDim]
			scores[i] = dot(query, key) * queryScale * keys.scales[pos] * scale
			top = max(top, scores[i])
		}
		for i, score := range scores {
			worth[i] = max(worth[i], score-top)
		}
	}
	for pos := span.Inner; pos < min(op.SparseFirst, span.Block); pos++ {
		worth[pos-span.Inner] = float32(math.Inf(1)) // always kept
	}
	return worth
}

// latest keeps the first positions and the last ones before the block.
func latest(span op.SparseSpan, count int) []int32 {
	first := min(count, span.Block-span.Inner, max(0, op.SparseFirst-span.Inner))
	var out []int32
	for pos := span.Inner; pos < span.Inner+first; pos++ {
		out = append(out, int32(pos))
	}
	for pos := span.Block - (count - first); pos < span.Block; pos++ {
		out = append(out, int32(pos))
	}
	return out
}

// means returns the mean keys of whole blocks of positions, [kvHeads][blocks][dim].
func (h *Heads) means() []float32 {
	blocks := h.Rows / blockSide
	out := make([]float32, h.KVHeads*blocks*h.HeadDim)
	for kvHead := range h.KVHeads {
		for pos := range blocks * blockSide {
			mean := out[(kvHead*blocks+pos/blockSide)*h.HeadDim:][:h.HeadDim]
			for i, value := range h.Key(pos, kvHead) {
				mean[i] += value / blockSide
			}
		}
	}
	return out
}

// blocks keeps whole blocks of positions: the first one, and those whose mean key has the largest products with the
// mean query, until there are count positions.
func (h *Heads) blocks(span op.SparseSpan, means []float32, head, count int) []int32 {
	query := make([]float32, h.HeadDim)
	for row := span.Block; row < span.End; row++ {
		for i, value := range h.Query(row, head) {
			query[i] += value
		}
	}
	all := h.Rows / blockSide
	begin := (span.Inner + blockSide - 1) / blockSide
	worth := make([]float32, max(0, span.Block/blockSide-begin))
	for i := range worth {
		at := head/h.group()*all + begin + i
		worth[i] = dot(query, means[at*h.HeadDim:(at+1)*h.HeadDim])
	}
	if begin == 0 && len(worth) > 0 {
		worth[0] = float32(math.Inf(1))
	}
	var out []int32
	for _, block := range largestPositions(worth, begin, (count+blockSide-1)/blockSide) {
		for pos := block * blockSide; pos < (block+1)*blockSide; pos++ {
			out = append(out, pos)
		}
	}
	return out
}

// largestPositions returns the count positions with the largest worth, ascending, of equal ones the lower. The first
// worth is that of position at.
func largestPositions(worth []float32, at, count int) []int32 {
	count = min(count, len(worth))
	if count <= 0 {
		return nil
	}
	threshold := nthLargest(slices.Clone(worth), count)
	above := 0
	for _, value := range worth {
		if value > threshold {
			above++
		}
	}
	out := make([]int32, 0, count)
	for i, value := range worth {
		if value > threshold || value == threshold && above < count {
			if value == threshold {
				above++
			}
			out = append(out, int32(at+i))
		}
	}
	return out
}

// nthLargest returns the n-th largest value, n from 1, by quickselect; the order of values is lost.
func nthLargest(values []float32, n int) float32 {
	low, high := 0, len(values)-1
	for low < high {
		pivot := values[low+(high-low)/2]
		i, j := low, high
		for i <= j {
			for values[i] > pivot {
				i++
			}
			for values[j] < pivot {
				j--
			}
			if i <= j {
				values[i], values[j] = values[j], values[i]
				i++
				j--
			}
		}
		switch {
		case n-1 <= j:
			high = j
		case n-1 >= i:
			low = i
		default:
			return values[n-1]
		}
	}
	return values[n-1]
}

// score is that of a query and a key.
func (h *Heads) score(query, key []float32, scale float32) float32 {
	score := dot(query, key) * scale
	if h.Cap > 0 {
		score = float32(h.Cap * math.Tanh(float64(score)/h.Cap))
	}
	return score
}

// attend computes a head's results of a span from the kept positions, those that are always kept, and the rest, if it
// counts.
func (h *Heads) attend(head int, span op.SparseSpan, kept []int32, rest *rest) {
	kvHead, scale := head/h.group(), h.scale()
	positions := make([]int32, 0, len(kept)+span.End-span.Block+span.Inner-span.First)
	scores := make([]float32, cap(positions))
	for row := span.Block; row < span.End; row++ {
		positions = positions[:0]
		for pos := max(span.First, h.first(row)); pos < span.Inner; pos++ {
			positions = append(positions, int32(pos))
		}
		positions = append(positions, kept...)
		for pos := max(span.Block, h.first(row)); pos <= row; pos++ {
			positions = append(positions, int32(pos))
		}
		query, top := h.Query(row, head), float32(math.Inf(-1))
		for i, pos := range positions {
			scores[i] = h.score(query, h.Key(int(pos), kvHead), scale)
			top = max(top, scores[i])
		}
		result, total := h.Result(row, head), float32(0)
		clear(result)
		if rest != nil {
			score := h.score(query, rest.key, scale) + float32(math.Log(float64(rest.count)))
			top = max(top, score)
			total = float32(math.Exp(float64(score - top)))
			for j, value := range rest.value {
				result[j] = total * value
			}
		}
		for i, pos := range positions {
			weight := float32(math.Exp(float64(scores[i] - top)))
			total += weight
			if weight < 1e-12 {
				continue // beyond what float32 adds to anything
			}
			for j, value := range h.value(int(pos), kvHead) {
				result[j] += weight * value
			}
		}
		for j := range result {
			result[j] /= total
		}
	}
}
