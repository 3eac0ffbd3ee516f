package op

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// SparseFirst is how many of the first positions of a context a selection always has: attention rests on them where
// nothing else matters.
const SparseFirst = 4

// Sparsity says how the parts of a sparse attention select positions: for blocks of Block queries, by estimates with
// the nearest of Buckets pairs of scales (0: one), of which a share is kept whose mean is Density, and at least Least
// of them.
type Sparsity struct {
	Density        float64
	Block, Buckets int
	Least          int     // see Op
	Rest           bool    // what is not selected counts as one position, the mean of all
	Estimated      float64 // share of the query heads whose scores are estimated; 0: all
}

// SparseLeasts are the numbers of positions of which calibration chooses the least that a sparse attention keeps.
var SparseLeasts = []int{0, 256, 512, 1024}

// SparseBlock is the default number of queries that share a selection. With more queries a selection serves each of
// them worse; with fewer, gathering and selecting take longer.
const SparseBlock = 32

// sparseParts is how many numbers the weight "heads" of Estimate and Select has for each query head.
const sparseParts = 3

// SparseHead is what the weight "heads" of Estimate and Select says about one query head.
type SparseHead struct {
	QueryScale, KeyScale float32 // positive: an 8-bit code times it is the number
	Share                float32 // of the positions that are attended to; above 1: all
}

// SparseHeadOf reads the numbers of a query head in the weight "heads" of Estimate and Select. An error says which of
// them makes no sense.
func SparseHeadOf(values []float32, head int) (SparseHead, error) {
	part := values[sparseParts*head:][:sparseParts]
	out := SparseHead{part[0], part[1], part[2]}
	const most = 1 << 60 // far above any activation, and finite
	for i, name := range []string{"scale of queries", "scale of keys"} {
		if !(part[i] > 0 && part[i] < most) {
			return out, fmt.Errorf("head %d: %s is %v, want a positive number", head, name, part[i])
		}
	}
	if !(out.Share >= 0 && out.Share < most) {
		return out, fmt.Errorf("head %d: share of positions is %v, want a number of at least 0", head, out.Share)
	}
	return out, nil
}

// SparseHeads makes the weight "heads" of Estimate and Select, [1, 3*len(heads)].
func SparseHeads(heads []SparseHead) []float32 {
	out := make([]float32, 0, sparseParts*len(heads))
	for _, head := range heads {
		out = append(out, head.QueryScale, head.KeyScale, head.Share)
	}
	return out
}

// BucketCounts are how many pairs of static scales an Estimate may choose from.
var BucketCounts = []int{1, 3, 9}

// BucketStep is shadowAttn's step from a static scale to the next.
const BucketStep = 0.5

// ScaleFactors returns what the scales of queries and of keys are multiplied by in each of 1, 3 or 9 buckets: both by
// the step, by 1 and by one over the step, and with 9 every combination (shadowAttn 3.3; of three it says nothing).
// Other counts have the pair 1, 1 alone.
func ScaleFactors(buckets int, step float32) (pairs [][2]float32) {
	factors := []float32{step, 1, 1 / step}
	switch buckets {
	case 3:
		for _, factor := range factors {
			pairs = append(pairs, [2]float32{factor, factor})
		}
	case 9:
		for _, query := range factors {
			for _, key := range factors {
				pairs = append(pairs, [2]float32{query, key})
			}
		}
	default:
		pairs = [][2]float32{{1, 1}}
	}
	return pairs
}

// NearestFactors returns the pair of ScaleFactors with which a pair of scales has the least squared distance from the
// scales that hold the largest query and key: these magnitudes over 127. Of equal ones it is the first. Where keys are
// stored in 8 bits, largestKey and keyScale are 0, and queries decide.
func NearestFactors(buckets int, queryScale, keyScale, largestQuery, largestKey float32) [2]float32 {
	pairs := ScaleFactors(buckets, BucketStep)
	best, least := pairs[len(pairs)/2], math.Inf(1)
	for _, pair := range pairs {
		query := float64(largestQuery)/127 - float64(queryScale*pair[0])
		key := float64(largestKey)/127 - float64(keyScale*pair[1])
		if square := query*query + key*key; square < least {
			best, least = pair, square
		}
	}
	return best
}

// Launch is how an Estimate is put to a processor of static shapes: of each key head the products of so many queries,
// all that share it, with so many keys.
type Launch struct{ Rows, Keys int }

// Bounds of a launch: the keys, and the products with all keys of a context that are held until they are pooled.
const (
	launchKeys     = 256
	launchProducts = 4 << 20
)

// Launch divides the queries of an Estimate into equally many whole blocks, so that what is held stays small, and its
// keys into as many as the operator takes at most times a fixed number: what a call takes grows with what it sees.
func (o Op) Launch() Launch {
	keys := min(launchKeys, RoundUp(o.Context, 32))
	row := o.Heads * RoundUp(o.Context, keys) // products
	most := max(1, launchProducts/row/o.Block)
	launches := (o.Blocks() + most - 1) / most
	rows := o.M
	if launches > 1 {
		rows = (o.Blocks() + launches - 1) / launches * o.Block
	}
	return Launch{Rows: o.group() * rows, Keys: keys}
}

// EstimateWork returns the arithmetic of an Estimate on a processor of static shapes: all its queries with all keys
// that any of them sees, the ones that a query does not see included.
func (o Op) EstimateWork() int64 {
	keys := int64(max(o.Context, o.M))
	if o.Window > 0 {
		keys = min(keys, int64(o.Window)+int64(o.M))
	}
	return 2 * elements(o.M, o.Heads) * int64(o.HeadDim) * keys
}

// CountsRows reports whether operators of the kind stop at a call's last row on processors of static shapes too: what
// depends on rows and positions their drivers compute, and rows beyond enter neither the result nor the cache.
func (k Kind) CountsRows() bool { return k == Estimate }

// CountsRows reports whether all operators of the graph do.
func (g *Graph) CountsRows() bool {
	return !slices.ContainsFunc(g.Nodes, func(node Node) bool { return !node.Op.Kind.CountsRows() })
}

// ByCall reports whether operators of the kind need to know where a call ends, though they use no cache: Select refuses
// rows beyond the context, and rows that Dispatch moves compete for the room of slots. A processor that computes all
// rows whatever a call has would count what an earlier call left in the others.
func (k Kind) ByCall() bool { return k == Select || k == Dispatch }

// StopsAtCall reports whether the graph needs a processor that stops at a call's last row (DynamicRows): an operator
// uses the cache, or works on the rows of a call together, and its drivers do not count the rows themselves.
func (g *Graph) StopsAtCall() bool {
	return slices.ContainsFunc(g.Nodes, func(node Node) bool {
		return node.Op.Batch || node.Op.Kind.ByCall() || node.Op.Sig().State && !g.CountsRows()
	})
}

// Estimate returns the operator of a graph that is an Estimate and nothing else, nil for any other graph.
func (g *Graph) Estimate() *Op {
	if len(g.Nodes) != 1 || g.Nodes[0].Op.Kind != Estimate {
		return nil
	}
	return &g.Nodes[0].Op
}

// Operands returns those of a launch of an Estimate: codes around 128 of queries and keys, and products of the given
// type.
func (o Op) Operands(products Type) [3]Value {
	launch := o.Launch()
	return [3]Value{
		{"queries", U8, o.KVHeads * launch.Rows, o.HeadDim}, {"keys", U8, o.KVHeads * launch.Keys, o.HeadDim},
		{"products", products, o.KVHeads * launch.Rows, launch.Keys},
	}
}

// Launches returns what a processor of static shapes executes for a graph: of an Estimate, launches with these
// operands; of any other, the graph.
func (g *Graph) Launches(products Type) *Graph {
	estimate := g.Estimate()
	if estimate == nil {
		return g
	}
	operands := estimate.Operands(products)
	return &Graph{Inputs: operands[:2], Outputs: operands[2:], Nodes: []Node{{Op: *estimate,
		In: []string{operands[0].Name, operands[1].Name}, Out: []string{operands[2].Name}}}}
}

// SparseSpan is what a block of queries sees of a context. Positions [First,Inner) are seen by some of its queries,
// [Inner,Block) by all, and [Block,End) are the block's own. Without a window First and Inner are 0.
type SparseSpan struct{ First, Inner, Block, End int }

// SpanOf returns the span of a block of rows queries, the first of which is at position pos.
func (o Op) SpanOf(pos, rows int) SparseSpan {
	span := SparseSpan{Block: pos, End: pos + rows}
	if o.Window > 0 {
		span.First = max(0, pos+1-o.Window)
		span.Inner = min(pos, max(0, pos+rows-o.Window)) // a short window may end within the block
	}
	return span
}

// Keep returns how many of the positions [Inner,Block) a share of all that is seen leaves to be selected, the block's
// own and those that only some queries see being kept in any case. Where no more than least positions are seen all are
// kept, and where more are a share above 0 leaves at least so many.
func (s SparseSpan) Keep(share float32, least int) int {
	inner, seen := s.Block-s.Inner, s.End-s.First
	if share >= 1 || seen <= least {
		return inner
	}
	kept := int(float64(share) * float64(seen))
	if float64(kept) < float64(share)*float64(seen) {
		kept++
	}
	if share > 0 {
		kept = max(kept, least)
	}
	first := min(inner, max(0, SparseFirst-s.Inner))
	return max(first, min(inner, kept-(s.End-s.Block)-(s.Inner-s.First)))
}

// Decided reports whether the selection does not depend on scores: a share keeps all positions, or none but the first
// ones.
func (s SparseSpan) Decided(share float32, least int) bool {
	inner := s.Block - s.Inner
	keep := s.Keep(share, least)
	return keep == inner || keep == min(inner, max(0, SparseFirst-s.Inner))
}

// Blocks returns the number of blocks of queries that share a selection.
func (o Op) Blocks() int {
	if o.Block < 1 {
		return o.M
	}
	return (o.M + o.Block - 1) / o.Block
}

// group returns the number of query heads that share a key.
func (o Op) group() int { return o.Heads / max(1, o.KVHeads) }

// groupColumns returns the number of columns of a fused QKV row for one key head: its queries, the key and the value.
func (o Op) groupColumns() int { return (o.group() + 2) * o.HeadDim }

// selectedPairs returns the number of (query row, selected position) pairs of a sparse attention with the mean share
// Density, and at least Least positions a row.
func (o Op) selectedPairs() int64 {
	own := int64(o.M) * int64(min(o.Block, o.M))
	some := int64(float64(o.longPairs()) * o.Density)
	if o.Least > 0 { // rows that see few positions keep all, and others at least as many
		whole, long := o.shortRows()
		some = whole + max(some, long*int64(o.Least))
	}
	return min(o.attendedPairs(), max(own, some))
}

// shortRows returns the number of (query row, position) pairs of rows that see at most Least positions, and the number
// of the other rows.
func (o Op) shortRows() (pairs, others int64) {
	rows := int64(o.M)
	before := int64(max(o.Context, o.M)) - rows // positions that every row sees, without a window
	if o.Least == 0 {
		return 0, rows
	}
	if o.Window > 0 && o.Window <= o.Least {
		return o.attendedPairs(), 0
	}
	few := max(0, min(rows, int64(o.Least)-before))
	return few*before + few*(few+1)/2, rows - few
}

// longPairs returns the number of (query row, position) pairs of rows that see more than Least positions.
func (o Op) longPairs() int64 {
	pairs, _ := o.shortRows()
	return o.attendedPairs() - pairs
}

// estimatedPairs returns the number of (query row, position) pairs, on the mean over query heads, whose scores an
// Estimate computes.
func (o Op) estimatedPairs() float64 { return float64(o.longPairs()) * cmp.Or(o.Density, 1) }

// HeadShare returns a share of query heads as the field Density of an Estimate has it: 0 is all.
func HeadShare(share float64) float64 {
	if share >= 1 {
		return 0
	}
	return share
}

// OfDensity returns the part of a sparse attention whose measurements stand for this one: Least is part of its Density.
func (o Op) OfDensity() Op {
	const none = 1e-6 // in place of 0, which means all
	all := float64(max(1, o.attendedPairs()))
	switch {
	case o.Least == 0:
		return o
	case o.Kind == SparseAttend:
		o.Density = min(1, max(none, float64(o.selectedPairs())/all))
	case o.Kind == Estimate:
		o.Density = HeadShare(max(none, o.estimatedPairs()/all))
	}
	o.Least = 0
	return o
}

// sparseHeads returns the shape of the weight "heads".
func sparseHeads(operator Op, _ string) (k, n int) { return 1, sparseParts * operator.Heads }

// sparseKey returns the key of the parts of a sparse attention.
func sparseKey(o Op) string {
	return fmt.Sprintf("%s[%d] heads=%d/%d", o.Kind, o.M, o.Heads, o.KVHeads) +
		textIf(o.HeadDim > 0, fmt.Sprintf(" dim=%d", o.HeadDim)) + fmt.Sprintf(" context=%d", o.Context) +
		textIf(o.KV != "", fmt.Sprintf(" kv=%s", o.KV)) + fmt.Sprintf(" block=%d", o.Block) +
		textIf(o.Buckets > 0, fmt.Sprintf(" buckets=%d", o.Buckets)) +
		textIf(o.Density > 0, fmt.Sprintf(" density=%v", o.Density)) + textIf(o.Least > 0, fmt.Sprintf(" least=%d", o.Least)) +
		textIf(o.Window > 0, fmt.Sprintf(" window=%d", o.Window)) + textIf(o.Cap > 0, " cap") + textIf(o.Rest, " rest")
}

// checkSparse: key heads serve equally many query heads, and the values that hold a number for each head and position
// are no wider than others.
func checkSparse(operator Op) error {
	if err := checkHeads(operator); err != nil {
		return err
	}
	if wide := elements(operator.Heads, operator.Context+1); wide > maxDim {
		return operator.fieldError("context", operator.Context,
			fmt.Sprintf("at most %d for %d heads", maxDim/operator.Heads-1, operator.Heads))
	}
	return nil
}
