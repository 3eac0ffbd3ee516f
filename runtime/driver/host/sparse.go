package host

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// Sparse attention has three steps (shadowAttn). Blocks of queries share a selection for each query head. So keys and
// values are gathered once for many rows, and the kernels of dense attention work on what was gathered.
//
//   - estimate (estimate.go) packs the keys in 8 bits as a weight whose columns are positions, and multiplies the
//     queries of a block by it. From the scores of each query it subtracts the query's largest one. What it keeps of a
//     position is the largest difference among the block's queries: the logarithm of the largest weight that any of
//     them gives to the position, before the softmax divides by its sum.
//   - selectPositions (select.go) keeps the positions with the largest scores, as many as a budget allows.
//   - sparseAttention gathers. Positions keep their order, so the block's own come last, where the causal mask of the
//     dense kernel is right for them. Those at the beginning of a window come first, where the kernel's window is. If
//     the operator has Rest, the mean of what is not gathered counts as one more position.
//
// RATIONALE: Why do blocks of queries share a selection of positions?

// sparseBlock is a block of queries of a call.
type sparseBlock struct {
	op.SparseSpan
	index, r0, rows int
}

// sparse is what the three steps have in common.
type sparse struct {
	*builder
	heads []op.SparseHead
	group int // query heads that share a key

	// of the current call
	queryScales, keyScales []float32 // by query head: those of heads, or of the nearest bucket
	blocks                 []sparseBlock
}

// newSparse reads the weight of a part of a sparse attention, if it has one.
func (b *builder) newSparse() (*sparse, error) {
	out := &sparse{builder: b, group: b.op.Heads / b.op.KVHeads}
	if len(b.weights) == 0 {
		return out, nil
	}
	values, err := mem.View[float32](b.weights[0].Bytes)
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
	pos := s.exe.Scalars.Pos
	if pos+rows > s.op.Context {
		s.exe.refuse(0)
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

// headAndBlock returns the key head and the block of a task: longest blocks first, as dense attention has them.
func (s *sparse) headAndBlock(task int) (kvHead int, block *sparseBlock) {
	count := len(s.blocks)
	return task / count, &s.blocks[count-1-task%count]
}

// sparseAttention is what the step of op.SparseAttend keeps.
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
	b.exe.need.local = max(b.exe.need.local, size+2*side)
	call := kernel.Attention{Heads: 1, Dim: operator.HeadDim, Scale: operator.Scale, Cap: operator.Cap}
	if call.Scale == 0 {
		call.Scale = 1 / math.Sqrt(float64(operator.HeadDim))
	}
	if operator.Rest {
		b.exe.need.packs = max(b.exe.need.packs, operator.KVHeads*operator.Blocks()*2*operator.HeadDim)
		b.before = append(b.before, s.computeMeans())
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
			kvHead, block := s.headAndBlock(t)
			for i := range s.group {
				if !made.attend(kvHead, i, block, b.exe.have.mine(worker)) {
					b.exe.refuse(block.r0)
					return
				}
			}
		},
		refused: func(int) error {
			if b.exe.Scalars.Pos+min(operator.M, b.exe.Scalars.Rows) > operator.Context {
				return s.tooLong()
			}
			return errors.New("selected positions are not ascending ones before the block")
		},
	}, nil
}

// attend computes head i of a key head for a block of queries. It returns false where positions are selected that the
// block cannot have.
func (s *sparseAttention) attend(kvHead, i int, block *sparseBlock, own []float32) bool {
	exe, dim, head, call := s.exe, s.op.HeadDim, kvHead*s.group+i, s.call
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
			means := s.meansOf(kvHead, block)
			call.Rest = kernel.Rest{Key: means[:dim], Value: means[dim:], Count: block.Block - block.Inner - kept}
		}
	}
	total := (call.Pos + call.M) * s.rowBytes
	return s.dense(out, queries, keys[:total], values[:total], own[:s.size], call) == nil
}

// meansOf returns where the means of the keys and of the values that all queries of a block see before it lie.
func (s *sparse) meansOf(kvHead int, block *sparseBlock) []float32 {
	words := 2 * s.op.HeadDim
	return s.exe.have.pack[(kvHead*s.op.Blocks()+block.index)*words:][:words]
}

// computeMeans makes the step that computes these means. Blocks of a key head follow one another, so that without a
// window each adds to the sums of the one before it.
func (s *sparse) computeMeans() step {
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
			own := s.exe.have.mine(worker)
			sums, wide := own[:2*dim], own[2*dim:]
			from, to := 0, 0
			clear(sums)
			for i := range s.blocks {
				block := &s.blocks[i]
				if block.Inner != from {
					clear(sums)
					from, to = block.Inner, block.Inner
				}
				s.addRows(sums[:dim], wide, &s.exe.k, kvHead, to, block.Block)
				s.addRows(sums[dim:], wide, &s.exe.v, kvHead, to, block.Block)
				to = block.Block
				if from == to {
					continue
				}
				means := s.meansOf(kvHead, block)
				copy(means, sums)
				s.exe.proc.set.Scale(means, 1/float64(to-from))
			}
		},
		refused: func(int) error { return s.tooLong() },
	}
}

// addRows adds rows from..to-1 of a head of one side of the cache to sums, [HeadDim].
func (s *sparse) addRows(sums, wide []float32, side *operand, kvHead, from, to int) {
	exe, dim, set := s.exe, s.op.HeadDim, s.exe.proc.set
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
		s.exe.proc.set.FromF16(own, side.u16[from:to])
	case op.BF16:
		s.exe.proc.set.FromBF16(own, side.u16[from:to])
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
	set := s.exe.proc.set
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
