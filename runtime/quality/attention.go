package quality

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// Heads is what a step of attention in float32 has computed: queries, keys and values behind rotation, and the result,
// which an observer may change. All rows begin at the first position, so that keys and values of every position are
// there.
type Heads struct {
	op.Op
	Layer int
	Rows  int

	qkv, out       []float32
	stride, result int // of their rows
}

// headsOf is the attention of a step, nil where it has none. A step that does not begin with an empty cache, or whose
// values are not float32, is an error.
func headsOf(seen *executor.Observed) (*Heads, error) {
	index := slices.IndexFunc(seen.Graph.Nodes, func(node op.Node) bool { return node.Op.Kind == op.Attention })
	if index < 0 {
		return nil, nil
	}
	node := &seen.Graph.Nodes[index]
	// Rotation happens in place, so what the attention reads is what the step has left there.
	from := slices.IndexFunc(seen.Graph.Inputs, func(value op.Value) bool { return value.Name == node.In[0] })
	to := slices.IndexFunc(seen.Graph.Outputs, func(value op.Value) bool { return value.Name == node.Out[0] })
	if from < 0 || to < 0 || seen.In[from].Type != op.F32 || seen.Out[to].Type != op.F32 || node.Op.Batch {
		return nil, diag.New(diag.ClassRun, "observe %q: attention does not read and write float32 values of its step",
			seen.Node)
	}
	heads := &Heads{Op: node.Op, Layer: seen.Layer, Rows: seen.Rows, stride: seen.In[from].Stride,
		result: seen.Out[to].Stride}
	var err error
	if heads.qkv, err = mem.View[float32](seen.In[from].Bytes()); err != nil {
		return nil, err
	}
	heads.out, err = mem.View[float32](seen.Out[to].Bytes())
	return heads, err
}

// group is how many query heads share a key head.
func (h *Heads) group() int { return h.Heads / h.KVHeads }

// Query is the query of a head in a row, [HeadDim].
func (h *Heads) Query(row, head int) []float32 {
	group := h.group()
	at := row*h.stride + ((head/group)*(group+2)+head%group)*h.HeadDim
	return h.qkv[at : at+h.HeadDim]
}

// Key is the key of a key head at a position, [HeadDim].
func (h *Heads) Key(pos, kvHead int) []float32 {
	group := h.group()
	at := pos*h.stride + (kvHead*(group+2)+group)*h.HeadDim
	return h.qkv[at : at+h.HeadDim]
}

// value is the value of a key head at a position.
func (h *Heads) value(pos, kvHead int) []float32 {
	group := h.group()
	at := pos*h.stride + (kvHead*(group+2)+group+1)*h.HeadDim
	return h.qkv[at : at+h.HeadDim]
}

// Result is what a head has computed in a row, [HeadDim]. It may be changed.
func (h *Heads) Result(row, head int) []float32 {
	at := row*h.result + head*h.HeadDim
	return h.out[at : at+h.HeadDim]
}

// scale is the factor of scores.
func (h *Heads) scale() float32 {
	if h.Op.Scale != 0 {
		return float32(h.Op.Scale)
	}
	return float32(1 / math.Sqrt(float64(h.HeadDim)))
}

// first is the first position that the query of a row sees.
func (h *Heads) first(row int) int {
	if h.Window > 0 {
		return max(0, row+1-h.Window)
	}
	return 0
}

// each calls f for every query head and block of rows, on all cores; f may change the results of these rows.
func (h *Heads) each(rows int, f func(head, from, to int)) {
	blocks := (h.Rows + rows - 1) / rows
	var next atomic.Int64
	var done sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		done.Go(func() {
			for {
				task := int(next.Add(1)) - 1
				if task >= blocks*h.Heads {
					return
				}
				// The last blocks see most positions and take longest.
				block := blocks - 1 - task/h.Heads
				f(task%h.Heads, block*rows, min(h.Rows, (block+1)*rows))
			}
		})
	}
	done.Wait()
}

// Interventions change what attention computes while a machine executes windows, each in one call from an empty cache:
// pass Observe to the executor. Nothing is changed while Change is nil. Execution is in float32 on one lane.
type Interventions struct {
	// Change is called for every step of attention.
	Change func(heads *Heads)

	err error
}

// Observe hands steps of attention over to Change. The first error is kept for Err.
func (i *Interventions) Observe(seen executor.Observed) {
	if i.Change == nil || i.err != nil {
		return
	}
	heads, err := headsOf(&seen)
	if err != nil {
		i.err = fmt.Errorf("layer %d: %w", seen.Layer, err)
	} else if heads != nil {
		i.Change(heads)
	}
}

// Err is the first error of Observe.
func (i *Interventions) Err() error { return i.err }

// WithoutHead is a change that removes one query head of a layer, all of them for head < 0: its result is zero.
func WithoutHead(layer, head int) func(*Heads) {
	return func(heads *Heads) {
		if heads.Layer != layer {
			return
		}
		for row := range heads.Rows {
			for number := range heads.Heads {
				if head < 0 || head == number {
					clear(heads.Result(row, number))
				}
			}
		}
	}
}

// dot is the product of two vectors of equal length.
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

// largestOf is the largest magnitude of a vector.
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

// Keys are the keys of a layer as an estimate of scores sees them: rounded to 8 bits, by key head.
type keyCodes struct {
	values []float32 // [kvHeads][rows][dim]
	scales []float32 // [kvHeads][rows]
}

// round rounds all keys with the scales that scaleOf gives; 0 is the scale of the key's own row.
func (h *Heads) round(scaleOf func(kvHead int) float32) *keyCodes {
	out := &keyCodes{make([]float32, h.KVHeads*h.Rows*h.HeadDim), make([]float32, h.KVHeads*h.Rows)}
	for kvHead := range h.KVHeads {
		for pos := range h.Rows {
			key := h.Key(pos, kvHead)
			scale := rowScale(scaleOf(kvHead), key)
			at := kvHead*h.Rows + pos
			out.scales[at] = scale
			codes(out.values[at*h.HeadDim:(at+1)*h.HeadDim], key, scale)
		}
	}
	return out
}

// rowScale is a static scale, or for 0 that of the row itself; 1 where there is nothing but zeros.
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
		span := spanOf(heads, from, to)
		density := s.Density(heads.Layer, head)
		count := span.keep(density, s.Least)
		var kept []int32
		switch s.Rule {
		case calibration.RuleWindow:
			kept = span.window(count)
		case calibration.RuleBlocks:
			kept = span.blocks(heads, means, head, count)
		default:
			kept = largestPositions(s.estimate(heads, keys[head/heads.group()], head, &span), span.inner, count)
		}
		var left *rest
		if unseen := span.from - span.inner - len(kept); sums != nil && unseen > 0 {
			left = sums.rest(heads, head/heads.group(), &span, unseen)
		}
		heads.attend(head, &span, kept, left)
	})
}

// rest is what a span's queries attend to beside single positions: the mean of all that all of them see before the span,
// which counts as many times as positions were left out.
type rest struct {
	key, value []float32
	count      int
}

// prefixSums are sums of keys and of values of the positions before every blockSide-th one: [kvHeads][blocks][2*dim], keys
// first.
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

// rest is the mean of what all queries of a span see before it.
func (p *prefixSums) rest(heads *Heads, kvHead int, span *span, count int) *rest {
	blocks, width := heads.Rows/blockSide+1, 2*heads.HeadDim
	before := func(pos int) []float64 {
		at := (kvHead*blocks + pos/blockSide) * width
		sums := slices.Clone(p.sums[at : at+width])
		heads.addTo(sums, kvHead, pos/blockSide*blockSide, pos)
		return sums
	}
	low, high := before(span.inner), before(span.from)
	means := make([]float32, width)
	for i := range means {
		means[i] = float32((high[i] - low[i]) / float64(span.from-span.inner))
	}
	return &rest{means[:heads.HeadDim], means[heads.HeadDim:], count}
}

// keys are the rounded keys for every key head: with the scale that its first query head has.
func (s *Sparse) keys(heads *Heads) []*keyCodes {
	rounded := heads.round(func(kvHead int) float32 {
		if s.Scales == nil {
			return 0
		}
		return s.Scales(heads.Layer, kvHead*heads.group()).Key
	})
	out := make([]*keyCodes, heads.KVHeads)
	for i := range out {
		at, end := i*heads.Rows, (i+1)*heads.Rows
		out[i] = &keyCodes{rounded.values[at*heads.HeadDim : end*heads.HeadDim], rounded.scales[at:end]}
	}
	return out
}

// estimate is what each position in [inner,from) of a span is worth to its queries: the largest score, less the query's
// largest.
func (s *Sparse) estimate(heads *Heads, keys *keyCodes, head int, span *span) []float32 {
	worth := make([]float32, span.from-span.inner)
	for i := range worth {
		worth[i] = float32(math.Inf(-1))
	}
	static := float32(0)
	if s.Scales != nil {
		static = s.Scales(heads.Layer, head).Query
	}
	query, scores := make([]float32, heads.HeadDim), make([]float32, len(worth))
	scale := heads.scale()
	for row := span.from; row < span.to; row++ {
		exact := heads.Query(row, head)
		queryScale := rowScale(static, exact)
		codes(query, exact, queryScale)
		top := float32(math.Inf(-1))
		for i := range scores {
			pos := span.inner + i
			key := keys.values[pos*heads.HeadDim : (pos+1)*heads.HeadDim]
			scores[i] = dot(query, key) * queryScale * keys.scales[pos] * scale
			top = max(top, scores[i])
		}
		for i, score := range scores {
			worth[i] = max(worth[i], score-top)
		}
	}
	return worth
}

// span is what the block of queries [from,to) sees: positions [first,inner) some of them, [inner,from) all.
type span struct{ first, inner, from, to int }

// keptFirst is how many of the first positions are always kept: attention rests on them where nothing else matters.
const keptFirst = 4

// spanOf is the span of rows [from,to).
func spanOf(heads *Heads, from, to int) span {
	return span{heads.first(from), min(from, heads.first(to-1)), from, to}
}

// keep is how many positions of [inner,from) a density leaves, and at least so many.
func (s *span) keep(density float64, atLeast int) int {
	inner, seen := s.from-s.inner, s.to-s.first
	if density >= 1 || seen <= atLeast {
		return inner
	}
	kept := int(math.Ceil(density * float64(seen)))
	if density > 0 {
		kept = max(kept, atLeast)
	}
	least := min(inner, max(0, keptFirst-s.inner))
	return max(least, min(inner, kept-(s.to-s.from)-(s.inner-s.first)))
}

// window keeps the first positions and the last ones before the block.
func (s *span) window(count int) []int32 {
	first := min(count, s.from-s.inner, max(0, keptFirst-s.inner))
	var out []int32
	for pos := s.inner; pos < s.inner+first; pos++ {
		out = append(out, int32(pos))
	}
	for pos := s.from - (count - first); pos < s.from; pos++ {
		out = append(out, int32(pos))
	}
	return out
}

// means are the mean keys of whole blocks of positions, [kvHeads][blocks][dim].
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
func (s *span) blocks(heads *Heads, means []float32, head, count int) []int32 {
	query := make([]float32, heads.HeadDim)
	for row := s.from; row < s.to; row++ {
		for i, value := range heads.Query(row, head) {
			query[i] += value
		}
	}
	all := heads.Rows / blockSide
	begin := (s.inner + blockSide - 1) / blockSide
	worth := make([]float32, max(0, s.from/blockSide-begin))
	for i := range worth {
		at := head/heads.group()*all + begin + i
		worth[i] = dot(query, means[at*heads.HeadDim:(at+1)*heads.HeadDim])
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

// largestPositions are the count positions with the largest worth, ascending, of equal ones the lower; the first
// positions of all are always among them. The first worth is that of position at.
func largestPositions(worth []float32, at, count int) []int32 {
	count = min(count, len(worth))
	if count <= 0 {
		return nil
	}
	for i := at; i < keptFirst && i-at < len(worth); i++ {
		worth[i-at] = float32(math.Inf(1))
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

// nthLargest is the n-th largest value, n from 1, by quickselect; the order of values is lost.
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
func (h *Heads) attend(head int, span *span, kept []int32, rest *rest) {
	kvHead, scale := head/h.group(), h.scale()
	positions := make([]int32, 0, len(kept)+span.to-span.from+span.inner-span.first)
	scores := make([]float32, cap(positions))
	for row := span.from; row < span.to; row++ {
		positions = positions[:0]
		for pos := max(span.first, h.first(row)); pos < span.inner; pos++ {
			positions = append(positions, int32(pos))
		}
		positions = append(positions, kept...)
		for pos := max(span.from, h.first(row)); pos <= row; pos++ {
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
