package host

import (
	"errors"
	"fmt"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

func (b *builder) route() step {
	e, o, x, ids, w := b.e, b.op, b.in[0], b.out[0], b.out[1]
	s := b.byRows((4+o.Fan)*o.Experts, func(_, r0, r1 int) {
		for r := r0; r < r1; r++ {
			if !kernel.Route(ids.i32[r*ids.ld:r*ids.ld+o.Fan], w.f32[r*w.ld:r*w.ld+o.Fan], x.f32[r*x.ld:r*x.ld+o.Experts], o.Router, o.Jitter) {
				e.refuse(r)
				return
			}
		}
	})
	s.refused = func(int) error {
		return errors.New("a router logit is NaN or an infinity, which leaves no order of the experts")
	}
	return s
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
	e, o, x, ids, y, set := b.e, b.op, b.in[0], b.in[len(b.in)-1], b.out[0], b.e.p.set
	multiply, tileBytes, sums, err := b.product()
	if err != nil {
		return step{}, err
	}
	most, tiles, workers := o.Rows(), (o.N+pack.TileN-1)/pack.TileN, len(e.p.cores)
	stride, size, perToken := int(b.w[0].Stride), x.value.Type.Bytes(), 1
	if o.Spread {
		perToken = o.Fan
	}
	e.need.order = max(e.need.order, most)
	e.need.rows = max(e.need.rows, (most*o.K*size+3)/4)
	e.need.sums = max(e.need.sums, most*sums)
	if o.Scheme.QuantisedRows() {
		e.need.scales = max(e.need.scales, most)
	}
	e.need.local = max(e.need.local, min(groupCells, min(most, groupRows)*tiles*pack.TileN))

	expert := func(row int) int { return int(ids.i32[row/o.Fan*ids.ld+row%o.Fan]) }
	ends := make([]int, o.Experts+1) // ends[i+1] is where the places of expert i end
	groups := make([]group, 0, min(o.Experts, most))
	var tasks int

	gather := e.chain([]step{b.byBlocks(o.Fan, o.K, func(_, p0, p1 int) {
		for p := p0; p < p1; p++ {
			row := int(e.have.rank[p])
			from := row / perToken
			if o.Scheme.QuantisedRows() {
				scale := b.in[1]
				e.have.scale[p] = scale.f32[from*scale.ld]
			}
			source := x.raw[from*x.ld*size:][:o.K*size]
			if sums > 0 {
				set.BlockSums(e.have.sum[p*sums:], sums, source, o.K, 1, o.K)
			}
			if i := expert(row); ends[i+1]-ends[i] > 1 {
				copy(mem.Bytes(e.have.row)[p*o.K*size:], source)
			}
		}
	})})
	gather.rows = nil // it reads other rows than it writes
	plan := gather.plan
	gather.plan = func(tokens int) int {
		rows := tokens * o.Fan
		clear(ends)
		for row := range rows {
			i := expert(row)
			if i < 0 || i >= o.Experts {
				e.refuse(row / o.Fan)
				return 0
			}
			ends[i+1]++
		}
		groups, tasks = groups[:0], 0
		for i := range o.Experts {
			count := ends[i+1]
			ends[i+1] += ends[i]
			if count == 0 {
				continue
			}
			g := group{expert: i, from: ends[i], to: ends[i+1], rowBlock: min(count, groupRows), tileBlock: tiles, task: tasks}
			if count > 1 {
				g.tileBlock = min(tiles, max(1, groupCells/(g.rowBlock*pack.TileN)))
			}
			if workers > 1 {
				even := max(1, rows*tiles/(workers*tasksPerWorker*g.rowBlock), minTask/(g.rowBlock*o.K*pack.TileN))
				g.tileBlock = min(g.tileBlock, even)
			}
			g.rowTasks = (count + g.rowBlock - 1) / g.rowBlock
			tasks += g.rowTasks * ((tiles + g.tileBlock - 1) / g.tileBlock)
			groups = append(groups, g)
		}
		for row := range rows { // ends[i] moves from the begin of expert i to its end
			i := expert(row)
			e.have.rank[ends[i]] = int32(row)
			ends[i]++
		}
		copy(ends[1:], ends)
		ends[0] = 0
		return plan(tokens)
	}
	gather.refused = func(r int) error {
		for _, id := range ids.i32[r*ids.ld : r*ids.ld+o.Fan] {
			if id < 0 || int(id) >= o.Experts {
				return fmt.Errorf("expert id %d, want 0..%d", id, o.Experts-1)
			}
		}
		panic("BUG: row refused without a bad expert id")
	}
	b.before = append(b.before, gather)

	together := operand{ld: o.K} // the copied rows
	return step{
		m: o.M,
		plan: func(int) int {
			together.f32, together.raw = e.have.row, mem.Bytes(e.have.row)
			return tasks
		},
		task: func(worker, t int) {
			first, end := 0, len(groups) // the group of the task is in [first,end)
			for end-first > 1 {
				if middle := (first + end) / 2; groups[middle].task <= t {
					first = middle
				} else {
					end = middle
				}
			}
			g := &groups[first]
			t -= g.task
			tile, p0 := t/g.rowTasks*g.tileBlock, g.from+t%g.rowTasks*g.rowBlock
			column, p1 := tile*pack.TileN, min(g.to, p0+g.rowBlock)
			n, at := min(o.N-column, g.tileBlock*pack.TileN), g.expert*stride+tile*tileBytes
			if g.to-g.from == 1 { // in place
				row := int(e.have.rank[p0])
				multiply(y.f32[row*y.ld+column:], y.ld, b.rows(x, row/perToken, p0, sums), at, 1, n)
				return
			}
			out := e.have.mine(worker)[:(p1-p0)*n]
			multiply(out, n, b.rows(&together, p0, p0, sums), at, p1-p0, n)
			for p := p0; p < p1; p++ {
				to := int(e.have.rank[p])*y.ld + column
				copy(y.f32[to:to+n], out[(p-p0)*n:])
			}
		},
	}, nil
}
