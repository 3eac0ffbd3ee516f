package host

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// step is one node, a part of one, or a chain of nodes. plan divides the work for a number of
// tokens into tasks, task computes one of them on one worker, and refused words the error for a row
// that cannot be computed. None of them allocates. plan may refuse rows itself.
type step struct {
	node int
	m    int // most tokens

	// In the order of a call. prepare and fetch may be nil.
	prepare func(tokens int)
	fetch   func() error // gets rows of a weight that are read one by one
	plan    func(tokens int) (tasks int)
	task    func(worker, task int)
	span    func(worker, from, to int) // instead of task: consecutive tasks, which are best computed at once
	work    func(worker, from, to int) // span, or task of each: made by finish
	refused func(row int) error

	rows *rowwise // instead of plan and task, which chain then makes
	// begins returns the weight that a worker reads first in a call of so many rows, so that it can be fetched ahead of
	// the call; nil: unknown.
	begins func(worker, rows int) []byte
}

// finish makes work, once the step is whole.
func (s *step) finish() {
	if s.work = s.span; s.span != nil {
		return
	}
	task := s.task
	s.work = func(worker, from, to int) {
		for ; from < to; from++ {
			task(worker, from)
		}
	}
}

// rowwise is work on rows that needs nothing but the same rows of its inputs: fan rows for each
// token, perRow element operations for each row. Where it works on heads it needs nothing but the
// columns of the same group of query heads with their key and value, and is done by groups: a worker
// then has those whose columns it has computed, and whose attention it computes afterwards.
type rowwise struct {
	fan, perRow int
	groups      int // 0: rows are computed as a whole
	compute     func(worker, group, r0, r1 int)
}

// builder turns one node into a step.
type builder struct {
	exe     *executable
	op      op.Op
	in, out []*operand
	weights []driver.Packed
	before  []step   // to run before the one that is built
	unit    *builder // of the gated linear unit that a product ends with, nil: none
}

// Work is divided into tasks that are worth handing over, about 10 us of portable kernels, and
// enough of them to even out cores of different speed.
const (
	minTask        = 8 << 10  // element operations
	minProduct     = 32 << 10 // multiply-adds of a matrix product, half a microsecond of vector kernels
	tasksPerWorker = 8
)

// byRows divides a node by tokens; f computes rows [r0,r1) of perRow element operations each.
func (b *builder) byRows(perRow int, f func(worker, r0, r1 int)) step {
	return b.byBlocks(1, perRow, f)
}

// byBlocks is byRows for a node with fan rows for each token.
func (b *builder) byBlocks(fan, perRow int, f func(worker, r0, r1 int)) step {
	return step{m: b.op.M, rows: &rowwise{fan: fan, perRow: perRow,
		compute: func(worker, _, r0, r1 int) { f(worker, r0, r1) }}}
}

// byGroups divides a node by groups of heads and by tokens; f computes rows [r0,r1) of a group. perRow
// counts all groups.
func (b *builder) byGroups(perRow int, f func(worker, group, r0, r1 int)) step {
	return step{m: b.op.M, rows: &rowwise{fan: 1, perRow: perRow, groups: b.op.KVHeads, compute: f}}
}

// chain makes one step of several that work on the same rows, or on the same groups of heads. A
// worker takes a block of rows through all of them while it is in its cache, and work is handed out
// once instead of several times.
func (e *executable) chain(steps []step) step {
	first := steps[0]
	chain := chained{exe: e, steps: steps, fan: first.rows.fan, groups: max(1, first.rows.groups)}
	for _, step := range steps {
		chain.perRow += step.rows.perRow
	}
	first.plan, first.prepare, first.task = chain.plan, chain.prepare, chain.task
	if len(steps) > 1 {
		first.refused = chain.refused
	}
	return first
}

// chained is several steps as one. Task t is block t%blocks of group t/blocks, or everything where
// that is little.
type chained struct {
	exe         *executable
	steps       []step
	fan, groups int
	perRow      int // operations of a row in all steps and groups

	// of the current call
	rows, block, blocks int
	whole               bool // there is one task
}

// plan divides the rows of a call, and returns the number of tasks.
func (c *chained) plan(tokens int) int {
	workers := len(c.exe.proc.cores)
	c.rows = tokens * c.fan
	if c.whole = workers == 1 || c.groups > 1 && c.rows*c.perRow < 2*minTask; c.whole {
		return 1
	}
	c.block = max(1, (c.rows*c.groups+workers*tasksPerWorker-1)/(workers*tasksPerWorker),
		(minTask*c.groups+c.perRow-1)/c.perRow)
	c.blocks = (c.rows + c.block - 1) / c.block
	return c.blocks * c.groups
}

// prepare prepares all steps.
func (c *chained) prepare(tokens int) {
	c.exe.blame.Store(math.MaxInt64)
	for i := range c.steps {
		if c.steps[i].prepare != nil {
			c.steps[i].prepare(tokens)
		}
	}
}

// task executes a task.
func (c *chained) task(worker, t int) {
	if !c.whole {
		from := t % c.blocks * c.block
		c.part(worker, t/c.blocks, from, min(c.rows, from+c.block))
		return
	}
	for group := range c.groups {
		c.part(worker, group, 0, c.rows)
	}
}

// part takes the rows [r0,r1) of a group through all steps, as far as none refuses one of them.
func (c *chained) part(worker, group, r0, r1 int) {
	exe := c.exe
	for i := range c.steps {
		c.steps[i].rows.compute(worker, group, r0, r1)
		// Only this step refuses these rows, and of groups the same step for another one: one of a chain does.
		if bad := exe.bad.Load(); c.steps[i].refused != nil && int64(r0) <= bad && bad < int64(r1) {
			lower(&exe.blame, bad*int64(len(c.steps))+int64(i))
			return
		}
	}
}

// refused returns the error of the step that refused a row.
func (c *chained) refused(row int) error {
	step := &c.steps[c.exe.blame.Load()%int64(len(c.steps))]
	return fmt.Errorf("in its %s: %w", c.exe.graph.Nodes[step.node].Op.Kind, step.refused(row))
}

// build makes the step of a node, after comparing its weights with what the operator wants.
func (b *builder) build() (step, error) {
	operator := b.op
	for i, role := range operator.Sig().W {
		spec, want := b.weights[i], operator.WeightSpec(role, layouts[operator.Scheme.Weight()])
		want.Name = spec.Spec.Name
		if spec.Spec != want {
			return step{}, fmt.Errorf("weight %d is %v, want %v", i, spec.Spec, want)
		}
	}
	if err := b.exe.Join(&operator); err != nil {
		return step{}, err
	}
	of := builders[operator.Kind]
	if of == nil {
		return step{}, fmt.Errorf("operator %q is not supported", operator.Kind)
	}
	return of(b)
}

// builders make the step of each kind of operator.
var builders = map[op.Kind]func(*builder) (step, error){
	op.Embed:     (*builder).embed,
	op.SelectRow: func(b *builder) (step, error) { return b.selectRow(), nil },
	op.Norm:      (*builder).norm,
	op.LayerNorm: (*builder).layerNorm,
	op.QKNorm:    (*builder).qkNorm,
	op.QuantRows: (*builder).quantRows,
	op.MatMul: func(b *builder) (step, error) {
		if b.op.Scheme.RoundsResults() {
			return b.narrowMatMul()
		}
		return b.matMul()
	},
	op.ExpertMatMul:  (*builder).expertMatMul,
	op.OutlierMatMul: (*builder).outliers,
	op.GroupMatMul:   (*builder).groupMatMul,
	op.Dispatch:      (*builder).dispatch,
	op.Collect:       func(b *builder) (step, error) { return b.collect(), nil },
	op.Route:         func(b *builder) (step, error) { return b.route(), nil },
	op.Rope:          (*builder).rope,
	op.KVAppend:      func(b *builder) (step, error) { return b.kvAppend(), nil },
	op.Attention:     (*builder).attention,
	op.Estimate:      (*builder).estimate,
	op.Select:        (*builder).selectPositions,
	op.SparseAttend:  (*builder).sparseAttention,
	op.Combine: func(b *builder) (step, error) {
		x, weights, y, fan, cols, set := b.in[0], b.in[1], b.out[0], max(1, b.op.Fan), b.op.N, b.exe.proc.set
		return b.byRows(2*fan*cols, func(_, r0, r1 int) {
			set.Combine(y.from(r0, 0), x.from(r0*fan, 0), weights.from(r0, 0), r1-r0, fan, cols)
		}), nil
	},
	op.GLU: func(b *builder) (step, error) {
		x, y, operator, set := b.in[0], b.out[0], b.op, b.exe.proc.set
		return b.byBlocks(max(1, operator.Fan), 6*operator.N, func(_, r0, r1 int) {
			set.GLU(y.from(r0, 0), x.from(r0, 0), operator.Act, operator.Interleave, r1-r0, operator.N)
		}), nil
	},
	op.Activate: func(b *builder) (step, error) {
		x, y, operator, set := b.in[0], b.out[0], b.op, b.exe.proc.set
		return b.byBlocks(max(1, operator.Fan), 5*operator.N, func(_, r0, r1 int) {
			set.Activate(y.from(r0, 0), x.from(r0, 0), operator.Act, r1-r0, operator.N)
		}), nil
	},
	op.Clip: func(b *builder) (step, error) {
		x, y, cols, limit := b.in[0], b.out[0], b.op.N, float32(b.op.Cap)
		return b.byRows(cols, func(_, r0, r1 int) {
			for row := r0; row < r1; row++ {
				to := y.f32[row*y.ld:][:cols]
				for i, value := range x.f32[row*x.ld:][:cols] {
					to[i] = min(max(value, -limit), limit) // NaN stays NaN
				}
			}
		}), nil
	},
	op.Softcap: func(b *builder) (step, error) {
		x, y, operator, set := b.in[0], b.out[0], b.op, b.exe.proc.set
		return b.byRows(5*operator.N, func(_, r0, r1 int) {
			set.Softcap(y.from(r0, 0), x.from(r0, 0), operator.Cap, r1-r0, operator.N)
		}), nil
	},
	op.Gate: func(b *builder) (step, error) {
		x, gate, y, cols, set := b.in[0], b.in[1], b.out[0], b.op.N, b.exe.proc.set
		return b.byRows(cols, func(_, r0, r1 int) {
			set.Gate(y.from(r0, 0), x.from(r0, 0), gate.from(r0, 0), r1-r0, cols)
		}), nil
	},
	op.Add: func(b *builder) (step, error) {
		left, right, y, cols, set := b.in[0], b.in[1], b.out[0], b.op.N, b.exe.proc.set
		return b.byRows(cols, func(_, r0, r1 int) {
			set.Add(y.from(r0, 0), left.from(r0, 0), right.from(r0, 0), r1-r0, cols)
		}), nil
	},
	op.Copy: func(b *builder) (step, error) {
		from, to := b.in[0], b.out[0]
		if from.value.Type != to.value.Type {
			return step{}, fmt.Errorf("copies %s to %s, want one type", from.value.Type, to.value.Type)
		}
		return b.byBlocks(max(1, b.op.Fan), b.op.N, func(_, r0, r1 int) { copyRows(to, from, r0, r1) }), nil
	},
}

// copyRows copies rows [r0,r1) of x to y.
func copyRows(y, x *operand, r0, r1 int) {
	size := y.value.Type.Bytes()
	bytes := y.value.Cols * size
	for row := r0; row < r1; row++ {
		to, from := row*y.ld*size, row*x.ld*size
		copy(y.raw[to:to+bytes], x.raw[from:from+bytes])
	}
}

// copyColumns copies columns [c0,c0+count) of rows [r0,r1) of x to y, both float32.
func copyColumns(y, x *operand, c0, count, r0, r1 int) {
	for row := r0; row < r1; row++ {
		copy(y.f32[row*y.ld+c0:][:count], x.f32[row*x.ld+c0:])
	}
}
