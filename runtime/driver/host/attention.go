package host

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// kvAppend stores the key and the value of each row and head at the row's position in the cache of
// its sequence.
func (b *builder) kvAppend() step {
	exe, operator, input := b.exe, b.op, b.in[0]
	group, dim, set := operator.Heads/operator.KVHeads, operator.HeadDim, b.exe.proc.set
	_, cols := operator.KV.CacheRow(dim)
	// store writes the key or value x to the elements of a cache from to on, or reports that it cannot
	store := map[op.Type]func(worker int, cache *operand, to int, x []float32) bool{
		op.F32: func(_ int, cache *operand, to int, x []float32) bool {
			copy(cache.f32[to:to+dim], x)
			return true
		},
		op.F16:  func(_ int, cache *operand, to int, x []float32) bool { return set.ToF16(cache.u16[to:to+dim], x) },
		op.BF16: func(_ int, cache *operand, to int, x []float32) bool { return set.ToBF16(cache.u16[to:to+dim], x) },
		op.Q8: func(worker int, cache *operand, to int, x []float32) bool {
			return set.StoreQ8(cache.raw[to:to+cols], x, exe.have.mine(worker))
		},
	}[operator.KV]
	if operator.KV == op.Q8 {
		exe.need.local = max(exe.need.local, 1)
	}
	step := b.byGroups(2*operator.KVHeads*dim, func(worker, kvHead, r0, r1 int) {
		for row := r0; row < r1; row++ {
			at := exe.At(row)
			key := row*input.ld + (kvHead*(group+2)+group)*dim
			to := at.Sequence*exe.PerSeq + (kvHead*exe.MaxContext+at.Pos)*cols
			if !store(worker, &exe.k, to, input.f32[key:key+dim]) ||
				!store(worker, &exe.v, to, input.f32[key+dim:key+2*dim]) {
				exe.refuse(row)
				return
			}
		}
	})
	step.refused = func(int) error {
		return fmt.Errorf("key or value is NaN or too large for the %s cache", operator.KV)
	}
	return step
}

// attention is causal attention of rows on the cache. A task is some rows with all query heads that
// share a key; the kernel uses an online softmax over blocks of positions. Each worker has scratch
// for one task.
type attention struct {
	exe           *executable
	op            *op.Op
	input, output *operand
	group         int              // query heads that share a key
	cols          int              // elements of a key in the cache
	bytes         int              // of such an element
	scratch       int              // of a task, in units of 4 bytes
	call          kernel.Attention // what all tasks have in common
	most, least   int              // rows of a task

	// of the current call
	rows, block, blocks int
}

// attention returns the step of an Attention.
func (b *builder) attention() (step, error) {
	operator := &b.op
	group, dim := operator.Heads/operator.KVHeads, operator.HeadDim
	element, cols := operator.KV.CacheRow(dim)
	size, err := attentionScratch(group, dim)
	if err != nil {
		return step{}, err
	}
	b.exe.need.local = max(b.exe.need.local, size)
	call := kernel.Attention{Heads: group, Dim: dim, Window: operator.Window, Scale: operator.Scale, Cap: operator.Cap}
	if call.Scale == 0 {
		call.Scale = 1 / math.Sqrt(float64(dim))
	}
	most, least := kernel.AttentionRows(group), min(8, kernel.AttentionRows(group))
	if operator.Batch {
		most, least = 1, 1 // rows have no keys in common
	}
	x := &attention{exe: b.exe, op: operator, input: b.in[0], output: b.out[0], group: group, cols: cols,
		bytes: element.Bytes(), scratch: size, call: call, most: most, least: least}
	return step{m: operator.M, plan: x.plan, task: x.task}, nil
}

// plan divides the rows into blocks. A kernel reuses keys and values among the rows of a task, but every worker needs
// some tasks.
func (x *attention) plan(rows int) int {
	x.rows, x.block = rows, x.most
	enough := tasksPerWorker * len(x.exe.proc.cores)
	for x.block > x.least && (rows+x.block-1)/x.block*x.op.KVHeads < enough {
		x.block = max(x.least, x.block/2)
	}
	x.blocks = (rows + x.block - 1) / x.block
	return x.blocks * x.op.KVHeads
}

// at returns the key head of a task, its first row, and where that row's sequence has the head's keys in the caches. A
// worker has some heads, and so their keys in its cache; the longest rows come first.
func (x *attention) at(task int) (kvHead, row, from int) {
	kvHead, row = task/x.blocks, (x.blocks-1-task%x.blocks)*x.block
	return kvHead, row, x.exe.At(row).Sequence*x.exe.PerSeq + kvHead*x.exe.MaxContext*x.cols
}

// queries returns those of a key head from a row on.
func (x *attention) queries(row, kvHead int) kernel.Matrix[float32] {
	return x.input.from(row, kvHead*(x.group+2)*x.op.HeadDim)
}

// task computes some rows of a key head, and tells the kernel what the next task will read.
func (x *attention) task(worker, task int) {
	exe, call := x.exe, x.call
	kvHead, r0, from := x.at(task)
	call.M, call.Pos = min(x.block, x.rows-r0), exe.At(r0).Pos
	queries, out := x.queries(r0, kvHead), x.output.from(r0, kvHead*x.group*x.op.HeadDim)
	scratch := exe.have.mine(worker)[:x.scratch]
	to := from + (call.Pos+call.M)*x.cols
	if task+1 < x.blocks*x.op.KVHeads {
		nextHead, row, next := x.at(task + 1)
		call.NextQueries = x.queries(row, nextHead)
		if next != from {
			first, last := next*x.bytes, (next+(exe.At(row).Pos+1)*x.cols)*x.bytes
			call.NextKeys, call.NextValues = exe.k.raw[first:last], exe.v.raw[first:last]
		}
	}
	switch set := exe.proc.set; x.op.KV {
	case op.F32:
		set.AttentionF32(out, queries, exe.k.f32[from:to], exe.v.f32[from:to], scratch, call)
	case op.Q8:
		set.AttentionQ8(out, queries, exe.k.raw[from:to], exe.v.raw[from:to], scratch, call)
	case op.BF16:
		set.AttentionBF16(out, queries, exe.k.u16[from:to], exe.v.u16[from:to], scratch, call)
	case op.F16:
		set.AttentionF16(out, queries, exe.k.u16[from:to], exe.v.u16[from:to], scratch, call)
	}
}

// attentionScratch is kernel.AttentionScratch, bounded before it is computed.
func attentionScratch(heads, headDim int) (int, error) {
	// heads*headDim is at most the columns of a valid value, 2^24.
	if words := 2*int64(heads)*int64(headDim) + 256*int64(headDim) + 256*int64(heads); 64*words > maxWork {
		return 0, fmt.Errorf("%d heads of %d columns need more than %d bytes of scratch", heads, headDim,
			int64(maxWork))
	}
	return kernel.AttentionScratch(heads, headDim), nil
}
