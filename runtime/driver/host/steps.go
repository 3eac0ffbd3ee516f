package host

import (
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// step is one node, a part of one, or a chain of nodes. plan divides the work for a number of
// tokens into tasks, task computes one of them on one worker, and refused words the error for a row
// that cannot be computed. None of them allocates. plan may refuse rows itself.
type step struct {
	node int
	m    int // most tokens
	// called before plan, may be nil
	prepare func(tokens int)
	// called after it, may be nil: gets what the step reads and may not be there
	fetch   func() error
	rows    *rowwise // instead of plan and task, which load then makes
	plan    func(tokens int) (tasks int)
	task    func(worker, task int)
	span    func(worker, from, to int) // instead of task: consecutive tasks, which are best computed at once
	refused func(row int) error
	// may be nil: the weight that a worker begins with in a call of so many rows, if memory can be asked for it before
	begins func(worker, rows int) []byte

	work func(worker, from, to int) // span, or task of each
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
	e       *executable
	op      op.Op
	in, out []*operand
	w       []driver.Packed
	before  []step // to run before the one that is built
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
	workers := len(c.exe.p.cores)
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
		spec, want := b.w[i], operator.WeightSpec(role, layouts[operator.Scheme.Weight()])
		want.Name = spec.Spec.Name
		if spec.Spec != want {
			return step{}, fmt.Errorf("weight %d is %v, want %v", i, spec.Spec, want)
		}
	}
	if err := b.e.Join(&operator); err != nil {
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
		x, weights, y, fan, cols, set := b.in[0], b.in[1], b.out[0], max(1, b.op.Fan), b.op.N, b.e.p.set
		return b.byRows(2*fan*cols, func(_, r0, r1 int) {
			set.Combine(y.from(r0, 0), x.from(r0*fan, 0), weights.from(r0, 0), r1-r0, fan, cols)
		}), nil
	},
	op.GLU: func(b *builder) (step, error) {
		x, y, operator, set := b.in[0], b.out[0], b.op, b.e.p.set
		return b.byBlocks(max(1, operator.Fan), 6*operator.N, func(_, r0, r1 int) {
			set.GLU(y.from(r0, 0), x.from(r0, 0), operator.Act, operator.Interleave, r1-r0, operator.N)
		}), nil
	},
	op.Activate: func(b *builder) (step, error) {
		x, y, operator, set := b.in[0], b.out[0], b.op, b.e.p.set
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
		x, y, operator, set := b.in[0], b.out[0], b.op, b.e.p.set
		return b.byRows(5*operator.N, func(_, r0, r1 int) {
			set.Softcap(y.from(r0, 0), x.from(r0, 0), operator.Cap, r1-r0, operator.N)
		}), nil
	},
	op.Gate: func(b *builder) (step, error) {
		x, gate, y, cols, set := b.in[0], b.in[1], b.out[0], b.op.N, b.e.p.set
		return b.byRows(cols, func(_, r0, r1 int) {
			set.Gate(y.from(r0, 0), x.from(r0, 0), gate.from(r0, 0), r1-r0, cols)
		}), nil
	},
	op.Add: func(b *builder) (step, error) {
		left, right, y, cols, set := b.in[0], b.in[1], b.out[0], b.op.N, b.e.p.set
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

// embed looks up the rows of a table. A packed 8-bit or 6-bit weight is a table too, whose rows are the
// weight's columns.
func (b *builder) embed() (step, error) {
	exe, operator := b.e, b.op
	if b.w[0].Rows != nil {
		return b.embedRows()
	}
	var row func(out []float32, id int)
	if operator.Scheme != "" {
		table := b.w[0].Bytes
		column := kernel.ColumnQ8C
		if operator.Scheme == op.I32Q6C {
			column = kernel.ColumnQ6C
		}
		row = func(out []float32, id int) { column(out, table, id) }
	} else if operator.Table == op.F32 {
		table, err := mem.View[float32](b.w[0].Bytes)
		if err != nil {
			return step{}, err
		}
		row = func(out []float32, id int) { copy(out, table[id*operator.N:]) }
	} else {
		table, err := mem.View[uint16](b.w[0].Bytes)
		if err != nil {
			return step{}, err
		}
		widen := exe.p.set.FromBF16
		if operator.Table == op.F16 {
			widen = exe.p.set.FromF16
		}
		row = func(out []float32, id int) { widen(out, table[id*operator.N:(id+1)*operator.N]) }
	}
	return b.embedBy(func(out []float32, id int) error {
		row(out, id)
		return nil
	}), nil
}

// embedRows is embed where the rows of the table come one by one.
func (b *builder) embedRows() (step, error) {
	rows, operator := b.w[0].Rows, b.op
	widen := b.e.p.set.FromBF16
	if operator.Table == op.F16 {
		widen = b.e.p.set.FromF16
	}
	return b.embedBy(func(out []float32, id int) error {
		data, _, err := rows.Row(id)
		if err != nil {
			return err
		}
		if want := operator.N * operator.Table.Bytes(); len(data) != want {
			return fmt.Errorf("got a row of %d bytes, want %d", len(data), want)
		}
		if operator.Table == op.F32 {
			values, err := mem.View[float32](data)
			copy(out, values)
			return err
		}
		values, err := mem.View[uint16](data)
		if err == nil {
			widen(out, values)
		}
		return err
	}), nil
}

// embedBy writes row [N] of the table for each token id.
func (b *builder) embedBy(row func(out []float32, id int) error) step {
	exe, operator, ids, output := b.e, b.op, b.in[0], b.out[0]
	step := b.byRows(operator.N, func(_, r0, r1 int) {
		for token := r0; token < r1; token++ {
			id := int(ids.i32[token*ids.ld])
			out := output.f32[token*output.ld : token*output.ld+operator.N]
			if id < 0 || id >= operator.K || row(out, id) != nil {
				exe.refuse(token)
				return
			}
			if operator.Scale != 0 {
				exe.p.set.Scale(out, operator.Scale)
			}
		}
	})
	step.refused = func(r int) error {
		id := int(ids.i32[r*ids.ld])
		if id < 0 || id >= operator.K {
			return fmt.Errorf("token id %d is outside the table, want 0..%d", id, operator.K-1)
		}
		err := row(make([]float32, operator.N), id) // says why once more
		if err == nil {
			err = errors.New("it could not be read before, and can be now")
		}
		return fmt.Errorf("row of token id %d: %w", id, err)
	}
	return step
}

// selectRow copies the row that the call's scalars name.
func (b *builder) selectRow() step {
	exe, cols, input, output := b.e, b.op.N, b.in[0], b.out[0]
	var rows int
	return step{
		m:    b.op.M,
		plan: func(r int) int { rows = r; return 1 },
		task: func(_, _ int) {
			row := exe.Scalars.Row
			if row < 0 || row >= rows {
				exe.refuse(row)
				return
			}
			copy(output.f32[:cols], input.f32[row*input.ld:row*input.ld+cols])
		},
		refused: func(int) error { return fmt.Errorf("want a row in 0..%d", rows-1) },
	}
}

// eps refuses an epsilon that is negative, infinite or NaN.
func (b *builder) eps() error {
	if !(b.op.Eps >= 0 && b.op.Eps <= math.MaxFloat32) {
		return fmt.Errorf("eps = %v, want a number of at least 0", b.op.Eps)
	}
	return nil
}

// vectors returns the weights as float32.
func (b *builder) vectors() (v [][]float32, err error) {
	for _, weight := range b.w {
		values, err := mem.View[float32](weight.Bytes)
		if err != nil {
			return nil, err
		}
		v = append(v, values)
	}
	return v, nil
}

// norm divides rows by their root mean square.
func (b *builder) norm() (step, error) {
	operator, input, output, kernel := b.op, b.in[0], b.out[0], b.e.p.set.Norm
	vectors, err := b.vectors()
	if err == nil {
		err = b.eps()
	}
	if err != nil {
		return step{}, err
	}
	return b.byRows(4*operator.N, func(_, r0, r1 int) {
		kernel(output.from(r0, 0), input.from(r0, 0), vectors[0], operator.Eps, r1-r0, operator.N)
	}), nil
}

// layerNorm has two vectors: gain and bias.
func (b *builder) layerNorm() (step, error) {
	operator, input, output, kernel := b.op, b.in[0], b.out[0], b.e.p.set.LayerNorm
	vectors, err := b.vectors()
	if err == nil {
		err = b.eps()
	}
	if err != nil {
		return step{}, err
	}
	return b.byRows(6*operator.N, func(_, r0, r1 int) {
		kernel(output.from(r0, 0), input.from(r0, 0), vectors[0], vectors[1], operator.Eps, r1-r0, operator.N)
	}), nil
}

// qkNorm normalises head by head, or jointly all query heads and all key heads. In a fused row the
// queries, the key and the value of a group lie together, so the joint form copies heads together,
// normalises and copies them back.
func (b *builder) qkNorm() (step, error) {
	exe, operator, input, output, normalise := b.e, b.op, b.in[0], b.out[0], b.e.p.set.Norm
	vectors, err := b.vectors()
	if err == nil {
		err = b.eps()
	}
	if err != nil {
		return step{}, err
	}
	qgain, kgain, dim, group := vectors[0], vectors[1], operator.HeadDim, operator.Heads/operator.KVHeads
	width := (group + 2) * dim // of a group in a row
	if !operator.Joint {
		return b.byGroups(4*(operator.Heads+operator.KVHeads)*dim, func(_, kvHead, r0, r1 int) {
			if input != output {
				copyColumns(output, input, kvHead*width, width, r0, r1)
			}
			for i := range group + 1 {
				gain := qgain
				if i == group {
					gain = kgain
				}
				head := output.from(r0, kvHead*width+i*dim)
				normalise(head, head, gain, operator.Eps, r1-r0, dim)
			}
		}), nil
	}
	exe.need.local = max(exe.need.local, operator.Heads*dim)
	joint := func(together, row []float32, gain []float32, columns int) {
		for kvHead := range operator.KVHeads {
			copy(together[kvHead*columns:(kvHead+1)*columns], row[kvHead*width:])
		}
		kvCols := operator.KVHeads * columns
		heads := kernel.Rows(together, kvCols)
		normalise(heads, heads, gain, operator.Eps, 1, kvCols)
		for kvHead := range operator.KVHeads {
			copy(row[kvHead*width:], together[kvHead*columns:(kvHead+1)*columns])
		}
	}
	return b.byRows(4*(operator.Heads+operator.KVHeads)*dim, func(worker, r0, r1 int) {
		if input != output {
			copyRows(output, input, r0, r1)
		}
		for at := r0; at < r1; at++ {
			row := output.f32[at*output.ld : at*output.ld+operator.KVHeads*width]
			joint(exe.have.mine(worker), row, qgain, group*dim)
			joint(exe.have.mine(worker), row[group*dim:], kgain, dim)
		}
	}), nil
}

var errNotFinite = errors.New("holds NaN or an infinity, which 8-bit rows cannot represent")

// quantRows rounds each row to 8 bits with a scale of its own, and refuses rows that hold NaN or an
// infinity.
func (b *builder) quantRows() (step, error) {
	exe, operator, input, output, scale, quantise := b.e, b.op, b.in[0], b.out[0], b.out[1], b.e.p.set.QuantRows
	if operator.Static {
		return b.quantStatic()
	}
	exe.need.scales = max(exe.need.scales, operator.Rows())
	step := b.byBlocks(max(1, operator.Fan), 6*operator.N, func(_, r0, r1 int) {
		dense := exe.have.scale[r0:r1]
		rows := kernel.Quantised{Codes: output.codes(r0), Scale: dense}
		if bad := quantise(rows, input.from(r0, 0), r1-r0, operator.N); bad >= 0 {
			exe.refuse(r0 + bad)
			return
		}
		for i, value := range dense {
			scale.f32[(r0+i)*scale.ld] = value
		}
	})
	step.refused = func(int) error { return errNotFinite }
	return step, nil
}

// quantStatic is quantRows with scales that are weights of the graph: a row gets the smallest scale
// that covers its largest value.
func (b *builder) quantStatic() (step, error) {
	exe, operator, input, output, scale, quantise := b.e, b.op, b.in[0], b.out[0], b.out[1], b.e.p.set.QuantStatic
	weight, err := mem.View[float32](b.w[0].Bytes)
	if err != nil {
		return step{}, err
	}
	weight = weight[:max(1, operator.Scales)]
	for _, scale := range weight {
		if !(scale > 0 && scale <= math.MaxFloat32) {
			return step{}, fmt.Errorf("the static scale is %v, want a positive number", scale)
		}
	}
	exe.need.scales = max(exe.need.scales, operator.Rows())
	step := b.byBlocks(max(1, operator.Fan), 6*operator.N, func(_, r0, r1 int) {
		dense := exe.have.scale[r0:r1]
		rows := kernel.Quantised{Codes: output.codes(r0), Scale: dense}
		if bad := quantise(rows, weight, input.from(r0, 0), r1-r0, operator.N); bad >= 0 {
			exe.refuse(r0 + bad)
			return
		}
		for i, value := range dense {
			scale.f32[(r0+i)*scale.ld] = value
		}
	})
	step.refused = func(int) error { return errNotFinite }
	return step, nil
}

// maxDotK bounds K of 8-bit products, so that their sums are exact in int32.
const maxDotK = math.MaxInt32 / (127 * 128)

// activations are the rows that a weight is multiplied with, in the form that its scheme says.
type activations struct {
	floats    kernel.Matrix[float32]
	quantised kernel.Quantised // with sums for 6-bit and 4-bit weights
}

// product multiplies m rows by the n columns that begin with the tile at byte at of the weight.
type product func(y kernel.Matrix[float32], x activations, at, m, n int)

// product returns the multiplication of the node's scheme, the bytes of a tile, and the number of
// block sums of a row, 0 for schemes without them.
func (b *builder) product() (f product, tileBytes, sums int, err error) {
	operator, set, packed := b.op, b.e.p.set, b.w[0].Bytes
	size, err := pack.TileBytes(operator.Scheme.Weight(), operator.K)
	if err != nil {
		return nil, 0, 0, err
	}
	blocks := (operator.K + pack.BlockK - 1) / pack.BlockK
	// Where the scales of quantised rows come from makes no difference here.
	stored := string(operator.Scheme)
	if operator.Scheme.QuantisedRows() {
		stored = operator.Scheme.Weight()
	}
	switch stored {
	case string(op.A32W32):
		weight, err := mem.View[float32](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y kernel.Matrix[float32], x activations, at, m, n int) {
			set.MatMulF32(y, x.floats, weight[at/4:], m, operator.K, n)
		}, int(size), 0, nil
	case string(op.A32W16):
		weight, err := mem.View[uint16](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y kernel.Matrix[float32], x activations, at, m, n int) {
			set.MatMulBF16(y, x.floats, weight[at/2:], m, operator.K, n)
		}, int(size), 0, nil
	case "q8c":
		if operator.K > maxDotK {
			return nil, 0, 0, fmt.Errorf("k = %d of scheme %q, want at most %d", operator.K, operator.Scheme, maxDotK)
		}
		return func(y kernel.Matrix[float32], x activations, at, m, n int) {
			set.MatMulQ8C(y, x.quantised, packed[at:], m, operator.K, n)
		}, int(size), 0, nil
	case "q6c", "q4b32", "q4b128":
		multiply := set.MatMulQ4B32
		switch stored {
		case "q6c":
			multiply = set.MatMulQ6C
		case "q4b128":
			multiply = set.MatMulQ4B128
		}
		return func(y kernel.Matrix[float32], x activations, at, m, n int) {
			multiply(y, x.quantised, packed[at:], m, operator.K, n)
		}, int(size), blocks, nil
	}
	return nil, 0, 0, fmt.Errorf("scheme %q is not supported", operator.Scheme)
}

// packed is a product whose rows are packed first, in the order in which the kernel reads them. It
// takes at least kernel.Set's PackFrom rows, and enough tiles to make up for the packing.
type packed struct {
	bytes, local int // of all rows, and of a worker's scratch
	// pack packs a group of the rows [r0,r0+rows), which are multiplied together.
	pack func(x *operand, r0, rows, group int)
	// multiply is for m rows from r0 on, packed together, and the n columns that start with the tile at byte at of the
	// weight.
	multiply func(y kernel.Matrix[float32], r0, at int, scratch []byte, m, n int)
}

// The least numbers of tiles that rows are packed for: of quantised rows, of float32 rows, whose
// packing takes longer, and for each worker. The driver states them (memory).
const (
	packedTiles  = 16
	packedFloats = 64
	packedEach   = 4
)

// packed is nil where packing does not pay or the kernel set cannot.
func (b *builder) packed() (*packed, error) {
	exe, operator, set, weight := b.e, b.op, b.e.p.set, b.w[0].Bytes
	least := packedTiles
	if !operator.Scheme.QuantisedRows() {
		least = packedFloats
	}
	// Packing reads every row once, which only pays if many tiles use the packed form.
	if tiles := (operator.N + pack.TileN - 1) / pack.TileN; operator.M < set.PackFrom ||
		tiles < max(least, packedEach*len(exe.p.cores)) {
		return nil, nil
	}
	if !operator.Scheme.QuantisedRows() {
		return b.packedFloats()
	}
	if set.PackRows == nil || operator.Scheme.FewRows() {
		return nil, nil
	}
	// block 0 means one scale for each column.
	block, multiply := 0, set.PackedQ8C
	switch operator.Scheme.Weight() {
	case "q4b32":
		block, multiply = pack.BlockK, set.PackedQ4B32
	case "q4b128":
		block, multiply = pack.Block128, set.PackedQ4B128
	}
	// packedFrom is the memory of the packed rows from r0 on.
	packedFrom := func(r0 int) []byte {
		return mem.Bytes(exe.have.pack)[kernel.PackedBytes(r0, operator.K, block):]
	}
	return &packed{
		bytes: kernel.PackedBytes(operator.M, operator.K, block),
		local: kernel.PackedScratch(operator.K, block),
		pack: func(x *operand, r0, rows, group int) {
			set.PackRows(packedFrom(r0), x.codes(r0), rows, operator.K, block, group)
		},
		multiply: func(y kernel.Matrix[float32], r0, at int, scratch []byte, m, n int) {
			rows := kernel.PackedRows{Bytes: packedFrom(r0), Scale: exe.have.scale[r0:], M: m, K: operator.K}
			multiply(y, rows, weight[at:], scratch, n)
		},
	}, nil
}

// packedFloats is packed for float32 rows.
func (b *builder) packedFloats() (*packed, error) {
	exe, operator, set, weight := b.e, b.op, b.e.p.set, b.w[0].Bytes
	if set.PackRowsF32 == nil {
		return nil, nil
	}
	product := &packed{bytes: 4 * operator.M * operator.K, pack: func(x *operand, r0, rows, group int) {
		set.PackRowsF32(exe.have.pack[r0*operator.K:], x.from(r0, 0), rows, operator.K, group)
	}}
	if operator.Scheme == op.A32W16 {
		// Weights are views, not copies: at counts bytes, so it is halved or quartered.
		values, err := mem.View[uint16](weight)
		product.multiply = func(y kernel.Matrix[float32], r0, at int, _ []byte, m, n int) {
			set.PackedBF16(y, exe.have.pack[r0*operator.K:], values[at/2:], m, operator.K, n)
		}
		return product, err
	}
	values, err := mem.View[float32](weight)
	product.multiply = func(y kernel.Matrix[float32], r0, at int, _ []byte, m, n int) {
		set.PackedF32(y, exe.have.pack[r0*operator.K:], values[at/4:], m, operator.K, n)
	}
	return product, err
}

// rows returns the rows of x from r on, with their scales and sums from place p of the scratch.
func (b *builder) rows(x *operand, r, p, sums int) activations {
	if !b.op.Scheme.QuantisedRows() {
		return activations{floats: x.from(r, 0)}
	}
	have := &b.e.have
	return activations{quantised: kernel.Quantised{
		Codes: x.codes(r), Scale: have.scale[p:], Sums: kernel.Rows(have.sum, sums).From(p, 0),
	}}
}

// tileTasks divides the tiles of a weight into tasks of block tiles. Workers claim several at once,
// large pieces before small ones (see team).
type tileTasks struct{ tiles, block int }

// tilesPerWorker is how many tasks each worker has of a matrix, if it is large enough. The last one
// of them may be waited for.
const tilesPerWorker = 32

// divideTiles makes tasks of a multiple of step tiles, at least least.
func divideTiles(tiles, workers, step, least int) tileTasks {
	block := max(1, tiles/(workers*tilesPerWorker), least)
	return tileTasks{tiles: tiles, block: (block + step - 1) / step * step}
}

// count returns the number of tasks.
func (t *tileTasks) count() int { return (t.tiles + t.block - 1) / t.block }

// of returns the tiles of tasks [from,to).
func (t *tileTasks) of(from, to int) (first, end int) {
	return from * t.block, min(t.tiles, to*t.block)
}

// grid is how a product is divided in a call: into blocks of rows, and each into tasks of tiles. Tasks of the first
// block come first, then those of the second.
type grid struct {
	rows, blocks int
	tileTasks
}

// block returns the rows [r0,r1) of a block. All have nearly as many.
func (g *grid) block(i int) (r0, r1 int) { return i * g.rows / g.blocks, (i + 1) * g.rows / g.blocks }

// Blocks of rows of a product that is divided by rows: for each worker, and rows of one at least, as many as are
// packed.
const (
	blocksPerWorker = 4
	blockRows       = 32
)

// divide plans a product of some rows. Workers that share the tiles read all rows, and write columns of rows that
// others read next; workers that share the rows read all weights, and keep the rows that they have computed, which the
// operators between products divide in the same way. What moves fewer bytes between the cores is done: rows of models
// whose weights are small, tiles of all others. Of few tiles and rows that are not packed, both are divided.
func (b *builder) divide(rows, tileBytes int, packs bool) grid {
	operator, set, workers := &b.op, b.e.p.set, len(b.e.p.cores)
	tiles := (operator.N + pack.TileN - 1) / pack.TileN
	out := grid{rows: rows, blocks: 1, tileTasks: tileTasks{tiles: tiles, block: tiles}}
	if workers == 1 || int64(rows)*int64(operator.K)*int64(operator.N) < 2*minProduct {
		return out
	}
	moved := int64(rows) * int64(operator.K*b.in[0].value.Type.Bytes()+4*operator.N/workers)
	if rows >= workers*blockRows && int64(tiles)*int64(tileBytes) < moved {
		out.blocks = min(rows/blockRows, workers*blocksPerWorker) / workers * workers
		return out
	}
	out.tileTasks = divideTiles(tiles, workers, set.TileStep, minProduct/(rows*operator.K*pack.TileN))
	if tiles < out.tileTasks.block*workers && !packs {
		out.blocks = min(rows, 2*workers)
	}
	return out
}

// fetchAhead is how many bytes of a weight a worker asks for before it multiplies: what the lane leaves it time for,
// and a part of a second-level cache.
const fetchAhead = 256 << 10

// matMul is a product, y = x w, blocked over the tiles of the weight. Where enough rows meet enough
// tiles, a step before it packs the rows (see packed). The plan of a call divides tiles or rows (see
// divide) into tasks that workers take when they are free. Kernels sum each result in one order, so
// that its bits do not depend on the division. A call costs M*K*N multiply-adds and reads the weight
// once for each block of rows.
type matMul struct {
	b               *builder
	exe             *executable
	op              *op.Op
	input, output   *operand
	multiply        product
	tileBytes, sums int       // of a tile of the weight, and block sums of a row
	bias            []float32 // nil without
	packed          *packed   // nil: rows are never packed

	// of the current call
	work   grid
	groups int // of packed rows in the largest block
}

// matMul returns the step that multiplies, and adds the one that packs.
func (b *builder) matMul() (step, error) {
	x := &matMul{b: b, exe: b.e, op: &b.op, input: b.in[0], output: b.out[0]}
	var err error
	if x.multiply, x.tileBytes, x.sums, err = b.product(); err != nil {
		return step{}, err
	}
	if x.op.Bias {
		if x.bias, err = mem.View[float32](b.w[1].Bytes); err != nil {
			return step{}, err
		}
	}
	need := &x.exe.need
	need.sums = max(need.sums, x.op.M*x.sums)
	if x.op.Scheme.QuantisedRows() {
		need.scales = max(need.scales, x.op.M)
	}
	if x.packed, err = b.packed(); err != nil {
		return step{}, err
	}
	if x.packed != nil {
		need.packs = max(need.packs, (x.packed.bytes+3)/4)
		need.local = max(need.local, (x.packed.local+3)/4)
		b.before = append(b.before, step{m: x.op.M, plan: x.planPacking, task: x.pack})
	}
	return step{m: x.op.M, begins: x.begins, plan: x.plan, span: x.span}, nil
}

// packs reports whether so many rows are packed.
func (x *matMul) packs(rows int) bool { return x.packed != nil && rows >= x.exe.p.set.PackFrom }

// planPacking divides the packing into a task for each group of rows of each block.
func (x *matMul) planPacking(rows int) int {
	if !x.packs(rows) {
		return 0
	}
	x.work = x.b.divide(rows, x.tileBytes, true)
	x.groups = kernel.PackGroups((rows + x.work.blocks - 1) / x.work.blocks)
	return x.work.blocks * x.groups
}

// pack packs a group of rows. The last groups of small blocks are empty.
func (x *matMul) pack(_, task int) {
	r0, r1 := x.work.block(task / x.groups)
	if group := task % x.groups; group < kernel.PackGroups(r1-r0) {
		x.packed.pack(x.input, r0, r1-r0, group)
	}
}

// begins returns the first tiles of a worker's tasks, where it has tiles of its own.
func (x *matMul) begins(worker, rows int) []byte {
	next := x.b.divide(rows, x.tileBytes, x.packs(rows))
	if next.blocks > 1 || x.packs(rows) {
		return nil // all workers read all of it
	}
	tasks, workers := next.count(), len(x.exe.p.cores)
	tile, end := next.of(worker*tasks/workers, (worker+1)*tasks/workers)
	return x.b.w[0].Bytes[tile*x.tileBytes : min(end*x.tileBytes, tile*x.tileBytes+fetchAhead)]
}

// plan divides the product, and prepares the scales and the sums of its rows.
func (x *matMul) plan(rows int) int {
	x.work = x.b.divide(rows, x.tileBytes, x.packs(rows))
	x.b.gatherScales(rows)
	if x.sums > 0 && !x.packs(rows) {
		x.exe.p.set.BlockSums(kernel.Rows(x.exe.have.sum, x.sums), x.input.codes(0), rows, x.op.K)
	}
	return x.work.count() * x.work.blocks
}

// span computes the tasks [from,to), those of one block of rows at once.
func (x *matMul) span(worker, from, to int) {
	for each := x.work.count(); from < to; {
		block, next := from/each, min(to, (from/each+1)*each)
		tile, end := x.work.of(from-block*each, next-block*each)
		r0, r1 := x.work.block(block)
		if each == 1 && !x.packs(x.work.rows) { // blocks of rows are one matrix
			_, r1 = x.work.block(to - 1)
			next = to
		}
		x.part(worker, tile, end, r0, r1)
		from = next
	}
}

// part multiplies rows [r0,r1) by the tiles [tile,end) of the weight.
func (x *matMul) part(worker, tile, end, r0, r1 int) {
	column := tile * pack.TileN
	rows, cols := r1-r0, min(x.op.N, end*pack.TileN)-column
	products := x.output.from(r0, column)
	if x.packs(x.work.rows) {
		x.packed.multiply(products, r0, tile*x.tileBytes, mem.Bytes(x.exe.have.mine(worker)), rows, cols)
	} else {
		x.multiply(products, x.b.rows(x.input, r0, r0, x.sums), tile*x.tileBytes, rows, cols)
	}
	if x.bias != nil {
		x.exe.p.set.Add(products, products, kernel.Rows(x.bias[column:], 0), rows, cols)
	}
}

// gatherScales copies the scales of quantised rows to scratch, because kernels want them without gaps.
func (b *builder) gatherScales(rows int) {
	if !b.op.Scheme.QuantisedRows() {
		return
	}
	scale := b.in[1]
	for row := range rows {
		b.e.have.scale[row] = scale.f32[row*scale.ld]
	}
}

// kvAppend stores the key and the value of each row and head at the row's position in the cache of
// its sequence.
func (b *builder) kvAppend() step {
	exe, operator, input := b.e, b.op, b.in[0]
	group, dim, set := operator.Heads/operator.KVHeads, operator.HeadDim, b.e.p.set
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
	b.e.need.local = max(b.e.need.local, size)
	call := kernel.Attention{Heads: group, Dim: dim, Window: operator.Window, Scale: operator.Scale, Cap: operator.Cap}
	if call.Scale == 0 {
		call.Scale = 1 / math.Sqrt(float64(dim))
	}
	most, least := kernel.AttentionRows(group), min(8, kernel.AttentionRows(group))
	if operator.Batch {
		most, least = 1, 1 // rows have no keys in common
	}
	x := &attention{exe: b.e, op: operator, input: b.in[0], output: b.out[0], group: group, cols: cols,
		bytes: element.Bytes(), scratch: size, call: call, most: most, least: least}
	return step{m: operator.M, plan: x.plan, task: x.task}, nil
}

// plan divides the rows into blocks. A kernel reuses keys and values among the rows of a task, but every worker needs
// some tasks.
func (x *attention) plan(rows int) int {
	x.rows, x.block = rows, x.most
	enough := tasksPerWorker * len(x.exe.p.cores)
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
	switch set := exe.p.set; x.op.KV {
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
