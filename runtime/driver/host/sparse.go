package host

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// RATIONALE: Why do blocks of queries share a selection of positions?
//
// Sparse attention in three steps (shadowAttn). Blocks of queries share a selection for each query head, so that keys
// and values are gathered once for many rows, and the kernels of dense attention then work on what was gathered.
//
//   - estimate packs the keys of 8 bits as a weight, whose columns are positions, and multiplies the queries of a block
//     by it. It keeps of each position the largest score among the block's queries, each less its query's top: the
//     logarithm of the largest weight that any of them gives to the position, but for the sum that divides it.
//   - selectPositions finds the threshold that a budget of positions reaches.
//   - sparseAttention gathers. Positions keep their order, so the block's own come last, where the causal mask of the
//     dense kernel is right for them; those at the beginning of a window come first, where its window is. What is not
//     gathered is a position of its own to the kernel, if the operator has it count.

// sparseBlock is a block of queries of a call.
type sparseBlock struct {
	op.SparseSpan
	index, r0, rows int
}

// sparse is what the three steps have in common.
type sparse struct {
	*builder
	heads []op.SparseHead
	// of heads, as the kernel that quantises wants them; with buckets those that the call has
	queryScales, keyScales []float32
	group                  int

	blocks []sparseBlock // of the call
}

// newSparse reads the weight of a part of a sparse attention, if it has one.
func (b *builder) newSparse() (*sparse, error) {
	out := &sparse{builder: b, group: b.op.Heads / b.op.KVHeads}
	if len(b.w) == 0 {
		return out, nil
	}
	values, err := mem.View[float32](b.w[0].Bytes)
	if err != nil {
		return nil, err
	}
	for head := range b.op.Heads {
		numbers, err := op.SparseHeadOf(values, head)
		if err != nil {
			return nil, err
		}
		out.heads = append(out.heads, numbers)
		out.queryScales = append(out.queryScales, numbers.QueryScale)
		out.keyScales = append(out.keyScales, numbers.KeyScale)
	}
	return out, nil
}

// begin finds the blocks of a call, and refuses one whose context is longer than the values that hold a number for each
// position.
func (s *sparse) begin(rows int) bool {
	pos := s.e.Scalars.Pos
	if pos+rows > s.op.Context {
		s.e.refuse(0)
		return false
	}
	s.blocks = s.blocks[:0]
	for r0 := 0; r0 < rows; r0 += s.op.Block {
		count := min(s.op.Block, rows-r0)
		s.blocks = append(s.blocks, sparseBlock{s.op.SpanOf(pos+r0, count), r0 / s.op.Block, r0, count})
	}
	return true
}

// tooLong returns the error of begin.
func (s *sparse) tooLong() error {
	return fmt.Errorf("the context reaches beyond %d positions, for which the operator was made", s.op.Context)
}

// of returns the key head and the block of a task: longest blocks first, as dense attention has them.
func (s *sparse) of(task int) (kvHead int, block *sparseBlock) {
	count := len(s.blocks)
	return task / count, &s.blocks[count-1-task%count]
}

// keyTiles is how many tiles of keys one task of estimate packs.
const keyTiles = 8

// estimate makes the step of op.Estimate, and one before it that packs the keys. See the top of the file.
func (b *builder) estimate() (step, error) {
	operator := b.op
	s, err := b.newSparse()
	if err != nil {
		return step{}, err
	}
	tileBytes, err := pack.TileBytes(op.A8TQ8C.Weight(), operator.HeadDim)
	if err != nil {
		return step{}, err
	}
	if operator.HeadDim > maxDotK {
		return step{}, fmt.Errorf("head_dim = %d, want at most %d", operator.HeadDim, maxDotK)
	}
	packs, local := sparseWords(operator, int(tileBytes))
	if int64(packs)*4 > maxWork || int64(local)*4 > maxWork {
		return step{}, fmt.Errorf("context %d needs more than %d bytes of scratch", operator.Context, int64(maxWork))
	}
	b.e.need.packs, b.e.need.local = max(b.e.need.packs, packs), max(b.e.need.local, local)
	made := &estimate{sparse: s, tiles: (operator.Context + pack.TileN - 1) / pack.TileN, tileBytes: int(tileBytes)}
	if operator.Buckets > 0 {
		b.before = append(b.before, s.nearest())
	}
	b.before = append(b.before, made.packing())
	return step{
		m:    operator.M,
		plan: func(int) int { return len(s.blocks) * operator.KVHeads },
		task: func(worker, t int) {
			kvHead, block := s.of(t)
			for i := range s.group {
				if block.Decided(s.heads[kvHead*s.group+i].Share, operator.Least) {
					continue
				}
				if bad := made.score(kvHead, i, block, b.e.have.mine(worker)); bad >= 0 {
					b.e.refuse(block.r0 + bad)
					return
				}
			}
		},
		refused: made.refused,
	}, nil
}

// estimate is what the steps of op.Estimate share.
type estimate struct {
	*sparse
	tiles, tileBytes int // of a key head, and the bytes of each
}

// tile returns where keys of a key head are packed.
func (s *estimate) tile(kvHead, number int) []byte {
	return mem.Bytes(s.e.have.pack)[(kvHead*s.tiles+number)*s.tileBytes:][:s.tileBytes]
}

// refused returns the error of either step.
func (s *estimate) refused(int) error {
	if s.e.Scalars.Pos+min(s.op.M, s.e.Scalars.Rows) > s.op.Context {
		return s.tooLong()
	}
	return errors.New("a query or a cached key is NaN or infinite, which 8 bits cannot represent")
}

// packing makes the step that packs keys, from the first position that any block looks at to the last one.
func (s *estimate) packing() step {
	var from, to, chunks int // tiles, and tasks of a key head
	return step{
		m: s.op.M,
		plan: func(count int) int {
			from, to, chunks = 0, 0, 0
			if !s.begin(count) {
				return 0
			}
			first, last := s.blocks[0], s.blocks[len(s.blocks)-1]
			from, to = first.Inner/pack.TileN, (last.Block+pack.TileN-1)/pack.TileN
			chunks = max(0, to-from+keyTiles-1) / keyTiles
			return chunks * s.op.KVHeads
		},
		task: func(worker, t int) {
			kvHead, number := t/chunks, from+t%chunks*keyTiles
			end := s.blocks[len(s.blocks)-1].Block
			for ; number < min(to, from+(t%chunks+1)*keyTiles); number++ {
				if !s.packKeys(s.tile(kvHead, number), kvHead, number*pack.TileN, end, s.e.have.mine(worker)) {
					s.e.refuse(0)
					return
				}
			}
		},
		refused: s.refused,
	}
}

// score writes what positions are worth to a block of queries of head i of a key head. It returns the first query that
// is not finite, else -1.
func (s *estimate) score(kvHead, i int, block *sparseBlock, own []float32) (bad int) {
	input, output, set := s.in[0], s.out[0], s.e.p.set
	dim, head, rows := s.op.HeadDim, kvHead*s.group+i, min(s.op.Block, s.op.M)
	scales, codes := own[:rows], mem.Bytes(own[rows:rows+(rows*dim+3)/4])
	scores := own[rows+(rows*dim+3)/4:]
	query := input.from(block.r0, (kvHead*(s.group+2)+i)*dim)
	queries := kernel.Quantised{Codes: kernel.Rows(codes, dim), Scale: scales}
	bad = set.QuantStatic(queries, s.queryScales[head:head+1], query, block.rows, dim)
	if bad >= 0 {
		return bad
	}
	start := block.Inner / pack.TileN
	columns, skip := block.Block-start*pack.TileN, block.Inner-start*pack.TileN
	ld := op.RoundUp(columns, pack.TileN)
	packed := mem.Bytes(s.e.have.pack)[(kvHead*s.tiles+start)*s.tileBytes:]
	set.MatMulQ8C(kernel.Rows(scores, ld), queries, packed, block.rows, dim, columns)
	out := output.f32[block.index*output.ld+head*s.op.Context+block.Inner:][:columns-skip]
	for row := range block.rows {
		line := scores[row*ld+skip : row*ld+columns]
		top := set.Peak(line)
		if row == 0 {
			set.Below(out, line, top)
		} else {
			set.PoolBelow(out, line, top)
		}
	}
	return -1
}

// nearest makes the step that takes the scales of the nearest of several buckets, for each key head and the query heads
// that share its keys.
func (s *sparse) nearest() step {
	return step{
		m: s.op.M,
		plan: func(count int) int {
			if !s.begin(count) {
				return 0
			}
			return s.op.KVHeads
		},
		task: func(worker, kvHead int) {
			first, last := s.blocks[0], s.blocks[len(s.blocks)-1]
			heads := s.heads[kvHead*s.group : (kvHead+1)*s.group]
			var queryScale, largestQuery float32
			for i, head := range heads {
				queryScale = max(queryScale, head.QueryScale)
				for row := range last.r0 + last.rows {
					query := s.in[0].f32[row*s.in[0].ld+(kvHead*(s.group+2)+i)*s.op.HeadDim:][:s.op.HeadDim]
					largestQuery = largestOf(query, largestQuery)
				}
			}
			var keyScale, largestKey float32
			if s.op.KV != op.Q8 {
				keyScale = heads[0].KeyScale
				largestKey = s.largestKey(kvHead, first.Inner, last.Block, s.e.have.mine(worker))
			}
			factors := op.NearestFactors(s.op.Buckets, queryScale, keyScale, largestQuery, largestKey)
			for i, head := range heads {
				s.queryScales[kvHead*s.group+i] = head.QueryScale * factors[0]
				s.keyScales[kvHead*s.group+i] = head.KeyScale * factors[1]
			}
		},
		refused: func(int) error { return s.tooLong() },
	}
}

// largestOf returns the largest of a magnitude and those of numbers.
func largestOf(values []float32, largest float32) float32 {
	for _, value := range values {
		largest = max(largest, value, -value)
	}
	return largest
}

// largestKey returns the largest magnitude of the keys from..to-1 of a head.
func (s *sparse) largestKey(kvHead, from, to int, own []float32) (largest float32) {
	exe, dim := s.e, s.op.HeadDim
	begin := exe.Scalars.Sequence*exe.PerSeq + kvHead*exe.MaxContext*dim
	for pos := from; pos < to; pos++ {
		at := begin + pos*dim
		largest = largestOf(s.wide(own[:dim], &exe.k, at, at+dim), largest)
	}
	return largest
}

// sparseWords returns the scratch of estimate in units of 4 bytes: of all workers, the packed keys; of each, the
// queries of a block, their scales and scores, or a key on its way to a tile.
func sparseWords(operator op.Op, tileBytes int) (packs, local int) {
	rows, dim := min(operator.Block, operator.M), operator.HeadDim
	tiles := (operator.Context + pack.TileN - 1) / pack.TileN
	packs = (operator.KVHeads*tiles*tileBytes + 3) / 4
	return packs, max(rows+(rows*dim+3)/4+rows*tiles*pack.TileN, 2*dim+1)
}

// packKeys writes keys pos..pos+TileN-1 of a head, those below end, as a tile of a weight with 8 bits. It reports
// whether all numbers are finite.
func (s *sparse) packKeys(tile []byte, kvHead, pos, end int, own []float32) bool {
	exe, dim, set := s.e, s.op.HeadDim, s.e.p.set
	scale := s.keyScales[kvHead*s.group:][:1]
	_, cols := s.op.KV.CacheRow(dim)
	words := (dim + 3) / 4 * 4
	scales := tile[words*pack.TileN:]
	sums := scales[4*pack.TileN:]
	wide, codes := own[1:1+dim], mem.Bytes(own[1+dim : 1+dim+(dim+3)/4])[:dim]
	quantised := kernel.Quantised{Codes: kernel.Rows(codes, dim), Scale: own[:1]}
	if end < pos+pack.TileN {
		clear(tile)
	}
	for column := range min(pack.TileN, end-pos) {
		from := exe.Scalars.Sequence*exe.PerSeq + (kvHead*exe.MaxContext+pos+column)*cols
		own[0] = scale[0]
		key := codes
		switch s.op.KV {
		case op.Q8:
			key = exe.k.raw[from : from+dim]
			own[0] = kernel.ScaleQ8(exe.k.raw[from:], dim)
		default:
			numbers := s.wide(wide, &exe.k, from, from+dim)
			if set.QuantStatic(quantised, scale, kernel.Rows(numbers, dim), 1, dim) >= 0 {
				return false
			}
		}
		kernel.PackColumnQ8C(tile, key, column)
		kernel.SetColumnQ8C(scales, sums, key, column, own[0])
	}
	return true
}

// selectPositions makes the step of op.Select: for each block and head the positions whose scores reach the budget.
func (b *builder) selectPositions() (step, error) {
	exe, operator, input, output := b.e, b.op, b.in[0], b.out[0]
	s, err := b.newSparse()
	if err != nil {
		return step{}, err
	}
	exe.need.local = max(exe.need.local, operator.Context)
	return step{
		m: operator.M,
		plan: func(count int) int {
			if !s.begin(count) {
				return 0
			}
			return len(s.blocks) * operator.KVHeads
		},
		task: func(worker, t int) {
			kvHead, block := s.of(t)
			for i := range s.group {
				head := kvHead*s.group + i
				scores := input.f32[block.index*input.ld+head*operator.Context:][:operator.Context]
				out := output.i32[block.index*output.ld+head*(1+operator.Context):][:1+operator.Context]
				keep := block.Keep(s.heads[head].Share, operator.Least)
				out[0] = int32(keep)
				choose(out[1:], scores, block.Inner, block.Block, keep, exe.have.mine(worker))
			}
		},
		refused: func(int) error { return s.tooLong() },
	}, nil
}

// choose writes count of the positions from..to-1, ascending: the first op.SparseFirst of a context, then those with
// the largest scores, of equal ones the lower. NaN is larger than every number.
//
// It counts scores by their leading bits, which tells the interval of the smallest chosen one, and finds that by
// quickselect among the few of the interval. Then it takes all that are larger and as many of the equal ones as are
// left: linear time.
func choose(out []int32, scores []float32, from, to, count int, own []float32) {
	next := 0
	for ; from < min(to, op.SparseFirst) && count > 0; from++ {
		out[next] = int32(from)
		next++
		count--
	}
	if count <= 0 {
		return
	}
	if count >= to-from {
		for pos := from; pos < to; pos++ {
			out[next] = int32(pos)
			next++
		}
		return
	}
	keys, err := mem.View[uint32](mem.Bytes(own))
	if err != nil {
		panic("BUG: scratch is not aligned: " + err.Error())
	}
	least, equal := smallestChosen(keys[:to-from], scores[from:to], count)
	for i, score := range scores[from:to] {
		key := order(score)
		out[next] = int32(from + i) // stays if the score is chosen
		next += int((uint64(least) - uint64(key)) >> 63)
		if key == least && equal > 0 {
			next++
			equal--
		}
	}
}

// smallestChosen returns the order of the smallest of the count largest scores, and how many of those that are equal to
// it are chosen. keys is room for as many as there are scores.
func smallestChosen(keys []uint32, scores []float32, count int) (least uint32, equal int) {
	const rest = 21 // bits that are not counted by
	var counts [1 << (32 - rest)]int32
	for i, score := range scores {
		key := order(score)
		keys[i] = key
		counts[key>>rest]++
	}
	left, interval := count, uint32(len(counts)-1)
	for int(counts[interval]) < left {
		left -= int(counts[interval])
		interval--
	}
	few := keys[:0]
	for _, key := range keys {
		if key>>rest == interval {
			few = append(few, key)
		}
	}
	least = nthLargest(few, left)
	for _, key := range few {
		if key > least {
			left--
		}
	}
	return least, left
}

// order maps float32 to integers that order alike, every NaN above infinity and both zeros equal.
func order(x float32) uint32 {
	if x != x {
		return math.MaxUint32
	}
	bits := math.Float32bits(x + 0) // -0 becomes 0
	if bits>>31 != 0 {
		return ^bits
	}
	return bits | 1<<31
}

// nthLargest returns the number that n-1 of keys exceed or equal, n at least 1. It changes their order.
func nthLargest(keys []uint32, n int) uint32 {
	lo, hi := 0, len(keys) // the number is among these
	for hi-lo > 1 {
		// the median of three bounds the effect of an unlucky order
		a, b, c := keys[lo], keys[(lo+hi)/2], keys[hi-1]
		pivot := max(min(a, b), min(max(a, b), c))
		// larger ones [lo,i), equal ones [i,k), smaller ones [j,hi)
		i, k, j := lo, lo, hi
		for k < j {
			switch key := keys[k]; {
			case key > pivot:
				keys[i], keys[k] = key, keys[i]
				i++
				k++
			case key == pivot:
				k++
			default:
				j--
				keys[k], keys[j] = keys[j], key
			}
		}
		switch {
		case n <= i-lo:
			hi = i
		case n <= k-lo:
			return pivot
		default:
			n -= k - lo
			lo = k
		}
	}
	return keys[lo]
}

// sparseAttention is op.SparseAttend. See the top of the file.
type sparseAttention struct {
	*sparse
	rowBytes   int              // of a key in the cache
	size, side int              // scratch of the kernel, and of gathered keys or values, in units of 4 bytes
	call       kernel.Attention // what all blocks have in common
}

// sparseAttention makes the step of op.SparseAttend, and one before it that computes what is not gathered.
func (b *builder) sparseAttention() (step, error) {
	operator := b.op
	s, err := b.newSparse()
	if err != nil {
		return step{}, err
	}
	size, err := attentionScratch(1, operator.HeadDim)
	if err != nil {
		return step{}, err
	}
	side := gatherWords(operator) // of keys, and as many of values
	if int64(side)*8 > maxWork {
		return step{}, fmt.Errorf("context %d needs more than %d bytes of scratch", operator.Context, int64(maxWork))
	}
	b.e.need.local = max(b.e.need.local, size+2*side)
	call := kernel.Attention{Heads: 1, Dim: operator.HeadDim, Scale: operator.Scale, Cap: operator.Cap}
	if call.Scale == 0 {
		call.Scale = 1 / math.Sqrt(float64(operator.HeadDim))
	}
	if operator.Rest {
		b.e.need.packs = max(b.e.need.packs, operator.KVHeads*operator.Blocks()*2*operator.HeadDim)
		b.before = append(b.before, s.rests())
	}
	made := &sparseAttention{sparse: s, size: size, side: side, call: call,
		rowBytes: int(operator.KV.CacheRowBytes(operator.HeadDim))}
	return step{
		m: operator.M,
		plan: func(count int) int {
			if !s.begin(count) {
				return 0
			}
			return len(s.blocks) * operator.KVHeads
		},
		task: func(worker, t int) {
			kvHead, block := s.of(t)
			for i := range s.group {
				if !made.attend(kvHead, i, block, b.e.have.mine(worker)) {
					b.e.refuse(block.r0)
					return
				}
			}
		},
		refused: func(int) error {
			if b.e.Scalars.Pos+min(operator.M, b.e.Scalars.Rows) > operator.Context {
				return s.tooLong()
			}
			return errors.New("selected positions are not ascending ones before the block")
		},
	}, nil
}

// attend computes head i of a key head for a block of queries. It returns false where positions are selected that the
// block cannot have.
func (s *sparseAttention) attend(kvHead, i int, block *sparseBlock, own []float32) bool {
	exe, dim, head, call := s.e, s.op.HeadDim, kvHead*s.group+i, s.call
	input, positions, output := s.in[0], s.in[1], s.out[0]
	list := positions.i32[block.index*positions.ld+head*(1+s.op.Context):][:1+s.op.Context]
	kept := int(list[0])
	if kept < 0 || kept > block.Block-block.Inner || !within(list[1:1+kept], block.Inner, block.Block) {
		return false
	}
	queries, out := input.from(block.r0, (kvHead*(s.group+2)+i)*dim), output.from(block.r0, head*dim)
	element, cols := s.op.KV.CacheRow(dim)
	begin := (exe.Scalars.Sequence*exe.PerSeq + kvHead*exe.MaxContext*cols) * element.Bytes()
	call.M, call.Pos, call.Window = block.rows, block.Block, s.op.Window
	keys, values := exe.k.raw[begin:], exe.v.raw[begin:]
	if kept < block.Block-block.Inner {
		call.Pos = block.Inner - block.First + kept
		if s.op.Window > 0 {
			call.Window = call.Pos - block.Block + s.op.Window + block.First
		}
		first := mem.Bytes(own[s.size : s.size+s.side])
		second := mem.Bytes(own[s.size+s.side : s.size+2*s.side])
		gather(first, keys, s.rowBytes, list[1:1+kept], block)
		gather(second, values, s.rowBytes, list[1:1+kept], block)
		keys, values = first, second
		if s.op.Rest {
			means := s.rest(kvHead, block)
			call.Rest = kernel.Rest{Key: means[:dim], Value: means[dim:], Count: block.Block - block.Inner - kept}
		}
	}
	total := (call.Pos + call.M) * s.rowBytes
	return s.dense(out, queries, keys[:total], values[:total], own[:s.size], call) == nil
}

// rest returns where the means of the keys and of the values that all queries of a block see before it lie.
func (s *sparse) rest(kvHead int, block *sparseBlock) []float32 {
	words := 2 * s.op.HeadDim
	return s.e.have.pack[(kvHead*s.op.Blocks()+block.index)*words:][:words]
}

// rests makes the step that computes these means. Blocks of a key head follow one another, so that without a window
// each adds to the sums of the one before it.
func (s *sparse) rests() step {
	dim := s.op.HeadDim
	return step{
		m: s.op.M,
		plan: func(count int) int {
			if !s.begin(count) {
				return 0
			}
			return s.op.KVHeads
		},
		task: func(worker, kvHead int) {
			own := s.e.have.mine(worker)
			sums, wide := own[:2*dim], own[2*dim:]
			from, to := 0, 0
			clear(sums)
			for i := range s.blocks {
				block := &s.blocks[i]
				if block.Inner != from {
					clear(sums)
					from, to = block.Inner, block.Inner
				}
				s.addRows(sums[:dim], wide, &s.e.k, kvHead, to, block.Block)
				s.addRows(sums[dim:], wide, &s.e.v, kvHead, to, block.Block)
				to = block.Block
				if from == to {
					continue
				}
				means := s.rest(kvHead, block)
				copy(means, sums)
				s.e.p.set.Scale(means, 1/float64(to-from))
			}
		},
		refused: func(int) error { return s.tooLong() },
	}
}

// addRows adds rows from..to-1 of a head of one side of the cache to sums, [HeadDim].
func (s *sparse) addRows(sums, wide []float32, side *operand, kvHead, from, to int) {
	exe, dim, set := s.e, s.op.HeadDim, s.e.p.set
	_, cols := s.op.KV.CacheRow(dim)
	begin := exe.Scalars.Sequence*exe.PerSeq + kvHead*exe.MaxContext*cols
	for pos := from; pos < to; pos += restRows {
		rows := min(restRows, to-pos)
		at := begin + pos*cols
		values := wide[:rows*dim]
		if s.op.KV != op.Q8 {
			values = s.wide(values, side, at, at+rows*dim)
		} else {
			for row := range rows {
				codes := side.raw[at+row*cols:][:cols]
				scale := kernel.ScaleQ8(codes, dim)
				for i, code := range codes[:dim] {
					values[row*dim+i] = scale * float32(int32(code)-128)
				}
			}
		}
		total := kernel.Rows(sums, dim)
		for row := range rows {
			set.Add(total, total, kernel.Rows(values, dim).From(row, 0), 1, dim)
		}
	}
}

// wide returns elements from..to of one side of a cache that is not of 8 bits as float32. It may write them to own.
func (s *sparse) wide(own []float32, side *operand, from, to int) []float32 {
	switch s.op.KV {
	case op.F16:
		s.e.p.set.FromF16(own, side.u16[from:to])
	case op.BF16:
		s.e.p.set.FromBF16(own, side.u16[from:to])
	default:
		return side.f32[from:to]
	}
	return own
}

// restRows is how many cached rows rests widens at a time, in less scratch than attention takes.
const restRows = 32

// gatherWords returns the room for the keys or the values of one head that a block attends to, in units of 4 bytes.
func gatherWords(operator op.Op) int {
	return (int(operator.KV.CacheRowBytes(operator.HeadDim))*operator.Context + 15) / 16 * 4
}

// dense computes attention on keys and values that lie one behind the other.
func (s *sparse) dense(
	out, queries kernel.Matrix[float32], keys, values []byte, scratch []float32, call kernel.Attention,
) error {
	set := s.e.p.set
	switch s.op.KV {
	case op.F32:
		k, err := mem.View[float32](keys)
		v, other := mem.View[float32](values)
		if err := cmp.Or(err, other); err != nil {
			return err
		}
		set.AttentionF32(out, queries, k, v, scratch, call)
	case op.Q8:
		set.AttentionQ8(out, queries, keys, values, scratch, call)
	case op.F16, op.BF16:
		k, err := mem.View[uint16](keys)
		v, other := mem.View[uint16](values)
		if err := cmp.Or(err, other); err != nil {
			return err
		}
		if s.op.KV == op.BF16 {
			set.AttentionBF16(out, queries, k, v, scratch, call)
			return nil
		}
		set.AttentionF16(out, queries, k, v, scratch, call)
	}
	return nil
}

// within reports whether positions are ascending ones of from..to-1.
func within(list []int32, from, to int) bool {
	before := int32(from) - 1
	for _, pos := range list {
		if pos <= before || int(pos) >= to {
			return false
		}
		before = pos
	}
	return true
}

// gather copies rows of a cache: those that only some queries of the block see, the selected ones, and the block's own.
// Neighbours are copied at once.
func gather(dst, rows []byte, rowBytes int, list []int32, block *sparseBlock) {
	to := 0
	run := func(from, end int) {
		to += copy(dst[to:], rows[from*rowBytes:end*rowBytes])
	}
	run(block.First, block.Inner)
	for i := 0; i < len(list); {
		end := i + 1
		for end < len(list) && list[end] == list[end-1]+1 {
			end++
		}
		run(int(list[i]), int(list[end-1])+1)
		i = end
	}
	run(block.Block, block.End)
}
