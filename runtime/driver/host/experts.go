package host

import (
	"errors"
	"fmt"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

func (b *builder) route() step {
	exe, operator, input, ids, weights := b.e, b.op, b.in[0], b.out[0], b.out[1]
	step := b.byRows((4+operator.Fan)*operator.Experts, func(_, r0, r1 int) {
		for row := r0; row < r1; row++ {
			if !kernel.Route(ids.i32[row*ids.ld:row*ids.ld+operator.Fan], weights.f32[row*weights.ld:row*weights.ld+operator.Fan], input.f32[row*input.ld:row*input.ld+operator.Experts], operator.Router, operator.Jitter) {
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

// A task of an ExpertMatMul covers at most groupRows rows of an expert and so many columns that its
// results, which are then put into their rows, stay in the second-level cache.
const (
	groupRows  = 256
	groupCells = 1 << 16
)

// group is the rows of one expert in a call: places [from,to) of the order by expert.
type group struct {
	expert, from, to    int
	rowBlock, tileBlock int // of its tasks, in rows and tiles
	rowTasks, task      int // tasks of the same columns, and number of the first task
}

// expertMatMul sorts the rows of a call by expert, copies the activations of each expert together and
// multiplies them as one matrix. Only the weights of experts that were chosen are read. The rows of an expert
// keep their order, and every row's result is the same bits as alone.
func (b *builder) expertMatMul() (step, error) {
	exe, operator, input, ids, output, set := b.e, b.op, b.in[0], b.in[len(b.in)-1], b.out[0], b.e.p.set
	multiply, tileBytes, sums, err := b.product()
	if err != nil {
		return step{}, err
	}
	most, tiles, workers := operator.Rows(), (operator.N+pack.TileN-1)/pack.TileN, len(exe.p.cores)
	stride, size, perToken := int(b.w[0].Stride), input.value.Type.Bytes(), 1
	if operator.Spread {
		perToken = operator.Fan
	}
	exe.need.order = max(exe.need.order, most)
	exe.need.rows = max(exe.need.rows, (most*operator.K*size+3)/4)
	exe.need.sums = max(exe.need.sums, most*sums)
	if operator.Scheme.QuantisedRows() {
		exe.need.scales = max(exe.need.scales, most)
	}
	exe.need.local = max(exe.need.local, min(groupCells, min(most, groupRows)*tiles*pack.TileN))

	expert := func(row int) int { return int(ids.i32[row/operator.Fan*ids.ld+row%operator.Fan]) }
	ends := make([]int, operator.Experts+1) // ends[i+1] is where the places of expert i end
	groups := make([]group, 0, min(operator.Experts, most))
	var tasks int

	gather := exe.chain([]step{b.byBlocks(operator.Fan, operator.K, func(_, p0, p1 int) {
		for place := p0; place < p1; place++ {
			row := int(exe.have.rank[place])
			from := row / perToken
			if operator.Scheme.QuantisedRows() {
				scale := b.in[1]
				exe.have.scale[place] = scale.f32[from*scale.ld]
			}
			source := input.raw[from*input.ld*size:][:operator.K*size]
			if sums > 0 {
				set.BlockSums(exe.have.sum[place*sums:], sums, source, operator.K, 1, operator.K)
			}
			if i := expert(row); ends[i+1]-ends[i] > 1 {
				copy(mem.Bytes(exe.have.row)[place*operator.K*size:], source)
			}
		}
	})})
	gather.rows = nil // it reads other rows than it writes
	plan := gather.plan
	gather.plan = func(tokens int) int {
		rows := tokens * operator.Fan
		clear(ends)
		for row := range rows {
			i := expert(row)
			if i < 0 || i >= operator.Experts {
				exe.refuse(row / operator.Fan)
				return 0
			}
			ends[i+1]++
		}
		groups, tasks = groups[:0], 0
		for i := range operator.Experts {
			count := ends[i+1]
			ends[i+1] += ends[i]
			if count == 0 {
				continue
			}
			chosen := group{expert: i, from: ends[i], to: ends[i+1], rowBlock: min(count, groupRows), tileBlock: tiles, task: tasks}
			if count > 1 {
				chosen.tileBlock = min(tiles, max(1, groupCells/(chosen.rowBlock*pack.TileN)))
			}
			if workers > 1 {
				even := max(1, rows*tiles/(workers*tasksPerWorker*chosen.rowBlock), minTask/(chosen.rowBlock*operator.K*pack.TileN))
				chosen.tileBlock = min(chosen.tileBlock, even)
			}
			chosen.rowTasks = (count + chosen.rowBlock - 1) / chosen.rowBlock
			tasks += chosen.rowTasks * ((tiles + chosen.tileBlock - 1) / chosen.tileBlock)
			groups = append(groups, chosen)
		}
		for row := range rows { // ends[i] moves from the begin of expert i to its end
			i := expert(row)
			exe.have.rank[ends[i]] = int32(row)
			ends[i]++
		}
		copy(ends[1:], ends)
		ends[0] = 0
		return plan(tokens)
	}
	gather.refused = func(r int) error {
		for _, id := range ids.i32[r*ids.ld : r*ids.ld+operator.Fan] {
			if id < 0 || int(id) >= operator.Experts {
				return fmt.Errorf("expert id %d, want 0..%d", id, operator.Experts-1)
			}
		}
		panic("BUG: row refused without a bad expert id")
	}
	b.before = append(b.before, gather)

	together := operand{ld: operator.K} // the copied rows
	return step{
		m: operator.M,
		plan: func(int) int {
			together.f32, together.raw = exe.have.row, mem.Bytes(exe.have.row)
			return tasks
		},
		task: func(worker, task int) {
			first, end := 0, len(groups) // the group of the task is in [first,end)
			for end-first > 1 {
				if middle := (first + end) / 2; groups[middle].task <= task {
					first = middle
				} else {
					end = middle
				}
			}
			group := &groups[first]
			task -= group.task
			tile, p0 := task/group.rowTasks*group.tileBlock, group.from+task%group.rowTasks*group.rowBlock
			column, p1 := tile*pack.TileN, min(group.to, p0+group.rowBlock)
			cols, at := min(operator.N-column, group.tileBlock*pack.TileN), group.expert*stride+tile*tileBytes
			if group.to-group.from == 1 { // in place
				row := int(exe.have.rank[p0])
				multiply(output.f32[row*output.ld+column:], output.ld, b.rows(input, row/perToken, p0, sums), at, 1, cols)
				return
			}
			out := exe.have.mine(worker)[:(p1-p0)*cols]
			multiply(out, cols, b.rows(&together, p0, p0, sums), at, p1-p0, cols)
			for place := p0; place < p1; place++ {
				to := int(exe.have.rank[place])*output.ld + column
				copy(output.f32[to:to+cols], out[(place-p0)*cols:])
			}
		},
	}, nil
}
