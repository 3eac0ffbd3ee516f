package host

import (
	"errors"
	"fmt"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// route chooses the experts of each row by its logits, and computes their weights.
func (b *builder) route() step {
	exe, operator, input, ids, weights := b.exe, b.op, b.in[0], b.out[0], b.out[1]
	step := b.byRows((4+operator.Fan)*operator.Experts, func(_, r0, r1 int) {
		for row := r0; row < r1; row++ {
			chosen, shares := ids.i32[row*ids.ld:][:operator.Fan], weights.f32[row*weights.ld:][:operator.Fan]
			logits := input.f32[row*input.ld:][:operator.Experts]
			if !kernel.Route(chosen, shares, logits, operator.Router, operator.Jitter) {
				exe.refuse(row)
				return
			}
		}
	})
	step.refused = func(int) error {
		return errors.New("a router logit is NaN or an infinity, which leaves no order of the experts")
	}
	return step
}

// A task of an ExpertMatMul covers at most groupRows rows of an expert. It covers so few columns
// that its results, which are then copied into their rows, stay in the second-level cache.
const (
	groupRows  = 256
	groupCells = 1 << 16
)

// group is the rows of one expert in a call: the places [from,to) of the order by expert.
type group struct {
	expert, from, to    int
	rowBlock, tileBlock int // of its tasks, in rows and tiles
	rowTasks, task      int // tasks of the same columns, and number of the first task
}

// experts is an ExpertMatMul. It sorts the rows of a call by expert, gathers the activations of
// each expert and multiplies them as one matrix. Only the weights of chosen experts are read. The
// rows of an expert keep their order, and every row's result has the same bits as alone.
//
// The order is a counting sort: rank[place] is the row at a place, and the places of expert i end
// at ends[i+1]. Behind them are the rows that are sent to no expert, whose results are 0.
type experts struct {
	b                  *builder
	exe                *executable
	op                 op.Op
	input, ids, output *operand
	multiply           product
	tileBytes, sums    int // of a tile of a weight, and sums of a row
	stride             int // bytes from one expert's weight to the next
	tiles, perToken    int // of a weight, and rows of a token that read one row of the input

	// of the current call
	ends     []int
	groups   []group
	tasks    int
	together operand // the rows that were copied
}

// expertMatMul adds a step that sorts and gathers the rows, and returns the step that multiplies
// them.
func (b *builder) expertMatMul() (step, error) {
	multiply, tileBytes, sums, err := b.product()
	if err != nil {
		return step{}, err
	}
	most := b.op.Rows()
	x := &experts{
		b: b, exe: b.exe, op: b.op, input: b.in[0], ids: b.in[len(b.in)-1], output: b.out[0],
		multiply: multiply, tileBytes: tileBytes, sums: sums, stride: int(b.weights[0].Stride),
		tiles: (b.op.N + pack.TileN - 1) / pack.TileN, perToken: 1,
		ends: make([]int, b.op.Experts+1), groups: make([]group, 0, min(b.op.Experts, most)),
		together: operand{ld: b.op.K},
	}
	if x.op.Spread {
		x.perToken = x.op.Fan
	}
	// scratch for the largest call
	need := &x.exe.need
	need.order = max(need.order, most)
	need.rows = max(need.rows, (most*x.op.K*x.size()+3)/4)
	need.sums = max(need.sums, most*sums)
	if x.op.Scheme.QuantisedRows() {
		need.scales = max(need.scales, most)
	}
	need.local = max(need.local, min(groupCells, min(most, groupRows)*x.tiles*pack.TileN))

	// the plan of gather sorts first, so that its tasks find the order
	gather := x.exe.chain([]step{b.byBlocks(x.op.Fan, x.op.K, func(_, p0, p1 int) { x.gather(p0, p1) })})
	gather.rows = nil // it reads other rows than it writes
	plan := gather.plan
	gather.plan = func(tokens int) int {
		if !x.order(tokens * x.op.Fan) {
			return 0
		}
		return plan(tokens)
	}
	gather.refused = x.refused
	b.before = append(b.before, gather)
	return step{m: x.op.M, plan: x.plan, task: x.task}, nil
}

// size returns the bytes of an activation.
func (x *experts) size() int { return x.input.value.Type.Bytes() }

// expert returns the expert that a row is sent to.
func (x *experts) expert(row int) int { return int(x.ids.i32[row/x.op.Fan*x.ids.ld+row%x.op.Fan]) }

// gather copies the activations of the places [p0,p1), with their scales and sums. A row that is
// alone with its expert is multiplied where it is.
func (x *experts) gather(p0, p1 int) {
	have, size := &x.exe.have, x.size()
	for place := p0; place < p1; place++ {
		row := int(have.rank[place])
		if place >= x.ends[x.op.Experts] { // sent to no expert
			clear(x.output.f32[row*x.output.ld:][:x.op.N])
			continue
		}
		from := row / x.perToken
		if x.op.Scheme.QuantisedRows() {
			scale := x.b.in[1]
			have.scale[place] = scale.f32[from*scale.ld]
		}
		source := x.input.raw[from*x.input.ld*size:][:x.op.K*size]
		if x.sums > 0 {
			sums := kernel.Rows(have.sum, x.sums).From(place, 0)
			x.exe.proc.set.BlockSums(sums, x.input.codes(from), 1, x.op.K)
		}
		if i := x.expert(row); x.ends[i+1]-x.ends[i] > 1 {
			copy(mem.Bytes(have.row)[place*x.op.K*size:], source)
		}
	}
}

// order sorts the rows by expert and divides them into tasks. It returns false where an id names no
// expert.
func (x *experts) order(rows int) bool {
	ends := x.ends
	clear(ends)
	for row := range rows {
		i := x.expert(row)
		if i == -1 && x.op.Sent > 0 {
			continue
		}
		if i < 0 || i >= x.op.Experts {
			x.exe.refuse(row / x.op.Fan)
			return false
		}
		ends[i+1]++
	}
	x.groups, x.tasks = x.groups[:0], 0
	for i := range x.op.Experts {
		count := ends[i+1]
		ends[i+1] += ends[i]
		if count > 0 {
			x.group(i, count, rows)
		}
	}
	alone := ends[x.op.Experts]
	for row := range rows { // ends[i] moves from the begin of expert i to its end
		i := x.expert(row)
		if i < 0 { // behind all others
			x.exe.have.rank[alone] = int32(row)
			alone++
			continue
		}
		x.exe.have.rank[ends[i]] = int32(row)
		ends[i]++
	}
	copy(ends[1:], ends)
	ends[0] = 0
	return true
}

// group adds the tasks of an expert that count of the rows of a call are sent to. Tasks are small
// enough that all workers have several, and large enough to be worth handing over.
func (x *experts) group(expert, count, rows int) {
	chosen := group{
		expert: expert, from: x.ends[expert], to: x.ends[expert+1],
		rowBlock: min(count, groupRows), tileBlock: x.tiles, task: x.tasks,
	}
	if count > 1 {
		chosen.tileBlock = min(x.tiles, max(1, groupCells/(chosen.rowBlock*pack.TileN)))
	}
	if workers := len(x.exe.proc.cores); workers > 1 {
		even := max(1, rows*x.tiles/(workers*tasksPerWorker*chosen.rowBlock),
			minTask/(chosen.rowBlock*x.op.K*pack.TileN))
		chosen.tileBlock = min(chosen.tileBlock, even)
	}
	chosen.rowTasks = (count + chosen.rowBlock - 1) / chosen.rowBlock
	x.tasks += chosen.rowTasks * ((x.tiles + chosen.tileBlock - 1) / chosen.tileBlock)
	x.groups = append(x.groups, chosen)
}

// refused returns the error about a row that names no expert.
func (x *experts) refused(row int) error {
	for _, id := range x.ids.i32[row*x.ids.ld : row*x.ids.ld+x.op.Fan] {
		if id == -1 && x.op.Sent > 0 {
			continue
		}
		if id < 0 || int(id) >= x.op.Experts {
			return fmt.Errorf("expert id %d, want 0..%d", id, x.op.Experts-1)
		}
	}
	panic("BUG: row refused without a bad expert id")
}

// plan finds the gathered rows in the current arena; order has made the tasks.
func (x *experts) plan(int) int {
	x.together.f32, x.together.raw = x.exe.have.row, mem.Bytes(x.exe.have.row)
	return x.tasks
}

// task multiplies some rows of an expert by some columns of its weight.
func (x *experts) task(worker, task int) {
	// binary search of the group whose tasks include this one
	first, end := 0, len(x.groups) // the group of the task is in [first,end)
	for end-first > 1 {
		if middle := (first + end) / 2; x.groups[middle].task <= task {
			first = middle
		} else {
			end = middle
		}
	}
	group, have, output := &x.groups[first], &x.exe.have, x.output
	task -= group.task
	tile, p0 := task/group.rowTasks*group.tileBlock, group.from+task%group.rowTasks*group.rowBlock
	column, p1 := tile*pack.TileN, min(group.to, p0+group.rowBlock)
	cols, at := min(x.op.N-column, group.tileBlock*pack.TileN), group.expert*x.stride+tile*x.tileBytes
	if group.to-group.from == 1 { // in place
		row := int(have.rank[p0])
		x.multiply(output.from(row, column), x.b.rows(x.input, row/x.perToken, p0, x.sums), at, nil, 1, cols)
		return
	}
	// multiply to scratch, then scatter the rows
	out := have.mine(worker)[:(p1-p0)*cols]
	x.multiply(kernel.Rows(out, cols), x.b.rows(&x.together, p0, p0, x.sums), at, nil, p1-p0, cols)
	for place := p0; place < p1; place++ {
		to := int(have.rank[place])*output.ld + column
		copy(output.f32[to:to+cols], out[(place-p0)*cols:])
	}
}
