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
	rows    *rowwise // instead of plan and task, which load then makes
	plan    func(tokens int) (tasks int)
	task    func(worker, task int)
	refused func(row int) error
}

// rowwise is work on rows that needs nothing but the same rows of its inputs: fan rows for each
// token, perRow element operations for each row.
type rowwise struct {
	fan, perRow int
	compute     func(worker, r0, r1 int)
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
	minTask        = 8 << 10 // element operations
	tasksPerWorker = 8
)

// byRows divides a node by tokens; f computes rows [r0,r1) of perRow element operations each.
func (b *builder) byRows(perRow int, f func(worker, r0, r1 int)) step {
	return b.byBlocks(1, perRow, f)
}

// byBlocks is byRows for a node with fan rows for each token.
func (b *builder) byBlocks(fan, perRow int, f func(worker, r0, r1 int)) step {
	return step{m: b.op.M, rows: &rowwise{fan, perRow, f}}
}

// chain makes one step of several that work on the same rows. A worker takes a block of rows
// through all of them while it is in its cache, and work is handed out once instead of several
// times.
func (e *executable) chain(steps []step) step {
	workers, first := len(e.p.cores), steps[0]
	perRow, fan := 0, first.rows.fan
	for _, step := range steps {
		perRow += step.rows.perRow
	}
	var rows, block int
	plan := func(tokens int) int {
		all := tokens * fan
		rows, block = all, all
		if workers > 1 {
			block = max(1, (all+workers*tasksPerWorker-1)/(workers*tasksPerWorker), (minTask+perRow-1)/perRow)
		}
		return (all + block - 1) / block
	}
	if len(steps) == 1 {
		first.plan, first.task = plan, func(worker, t int) {
			first.rows.compute(worker, t*block,
				min(rows, (t+1)*block))
		}
		return first
	}
	first.prepare = func(tokens int) {
		e.blame.Store(math.MaxInt64)
		for i := range steps {
			if steps[i].prepare != nil {
				steps[i].prepare(tokens)
			}
		}
	}
	first.plan = plan
	first.task = func(worker, t int) {
		r0, r1 := t*block, min(rows, (t+1)*block)
		for i := range steps {
			steps[i].rows.compute(worker, r0, r1)
			// Only this task refuses rows of the block: if the lowest bad row is among them, this step refused it.
			if bad := e.bad.Load(); int64(r0) <= bad && bad < int64(r1) {
				lower(&e.blame, bad*int64(len(steps))+int64(i))
				return
			}
		}
	}
	first.refused = func(row int) error {
		step := &steps[e.blame.Load()%int64(len(steps))]
		return fmt.Errorf("in its %s: %w", e.graph.Nodes[step.node].Op.Kind, step.refused(row))
	}
	return first
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
	if err := b.state(); err != nil {
		return step{}, err
	}
	of := builders[operator.Kind]
	if of == nil {
		return step{}, fmt.Errorf("operator %q is not supported", operator.Kind)
	}
	return of(b)
}

// state compares what a node says about positions and the cache with the nodes before it. All must
// agree, because a call has one cache and one kind of rows.
func (b *builder) state() error {
	exe, operator := b.e, b.op
	if operator.Kind == op.Rope || operator.Kind == op.KVAppend || operator.Kind == op.Attention {
		if exe.placed && exe.batch != operator.Batch {
			return errors.New("rows are of one sequence for some nodes, and of one each for others")
		}
		exe.placed, exe.batch = true, operator.Batch
	}
	if !operator.Kind.Has("kv") {
		return nil
	}
	if exe.kv != "" && (exe.kv != operator.KV || exe.kvHeads != operator.KVHeads || exe.headDim != operator.HeadDim) {
		return fmt.Errorf("cache %s of %d heads of %d columns differs from that of another node, %s of %d heads of %d",
			operator.KV, operator.KVHeads, operator.HeadDim, exe.kv, exe.kvHeads, exe.headDim)
	}
	exe.kv, exe.kvHeads, exe.headDim = operator.KV, operator.KVHeads, operator.HeadDim
	return nil
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
	op.ExpertMatMul: (*builder).expertMatMul,
	op.Route:        func(b *builder) (step, error) { return b.route(), nil },
	op.Rope:         (*builder).rope,
	op.KVAppend:     func(b *builder) (step, error) { return b.kvAppend(), nil },
	op.Attention:    (*builder).attention,
	op.Combine: func(b *builder) (step, error) {
		x, weights, y, fan, cols, set := b.in[0], b.in[1], b.out[0], max(1, b.op.Fan), b.op.N, b.e.p.set
		return b.byRows(2*fan*cols, func(_, r0, r1 int) {
			set.Combine(y.f32[r0*y.ld:], y.ld, x.f32[r0*fan*x.ld:], x.ld, weights.f32[r0*weights.ld:], weights.ld,
				r1-r0, fan, cols)
		}), nil
	},
	op.GLU: func(b *builder) (step, error) {
		x, y, operator, set := b.in[0], b.out[0], b.op, b.e.p.set
		return b.byBlocks(max(1, operator.Fan), 6*operator.N, func(_, r0, r1 int) {
			set.GLU(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, operator.Act, operator.Interleave, r1-r0, operator.N)
		}), nil
	},
	op.Activate: func(b *builder) (step, error) {
		x, y, operator, set := b.in[0], b.out[0], b.op, b.e.p.set
		return b.byBlocks(max(1, operator.Fan), 5*operator.N, func(_, r0, r1 int) {
			set.Activate(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, operator.Act, r1-r0, operator.N)
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
			set.Softcap(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, operator.Cap, r1-r0, operator.N)
		}), nil
	},
	op.Gate: func(b *builder) (step, error) {
		x, gate, y, cols, set := b.in[0], b.in[1], b.out[0], b.op.N, b.e.p.set
		return b.byRows(cols, func(_, r0, r1 int) {
			set.Gate(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, gate.f32[r0*gate.ld:], gate.ld, r1-r0, cols)
		}), nil
	},
	op.Add: func(b *builder) (step, error) {
		left, right, y, cols, set := b.in[0], b.in[1], b.out[0], b.op.N, b.e.p.set
		return b.byRows(cols, func(_, r0, r1 int) {
			set.Add(y.f32[r0*y.ld:], y.ld, left.f32[r0*left.ld:], left.ld, right.f32[r0*right.ld:], right.ld, r1-r0,
				cols)
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

// embed looks up the rows of a table. A packed 8-bit weight is a table too, whose rows are the
// weight's columns.
func (b *builder) embed() (step, error) {
	exe, operator, ids, output := b.e, b.op, b.in[0], b.out[0]
	var row func(out []float32, id int)
	if operator.Scheme != "" {
		table := b.w[0].Bytes
		row = func(out []float32, id int) { kernel.ColumnQ8C(out, table, id) }
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
	step := b.byRows(operator.N, func(_, r0, r1 int) {
		for token := r0; token < r1; token++ {
			id := int(ids.i32[token*ids.ld])
			if id < 0 || id >= operator.K {
				exe.refuse(token)
				return
			}
			out := output.f32[token*output.ld : token*output.ld+operator.N]
			row(out, id)
			if operator.Scale != 0 {
				exe.p.set.Scale(out, operator.Scale)
			}
		}
	})
	step.refused = func(r int) error {
		return fmt.Errorf("token id %d is outside the table, want 0..%d", ids.i32[r*ids.ld], operator.K-1)
	}
	return step, nil
}

// selectRow copies the row that the call's scalars name.
func (b *builder) selectRow() step {
	exe, cols, input, output := b.e, b.op.N, b.in[0], b.out[0]
	var rows int
	return step{
		m:    b.op.M,
		plan: func(r int) int { rows = r; return 1 },
		task: func(_, _ int) {
			row := exe.scalars.Row
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
		kernel(output.f32[r0*output.ld:], output.ld, input.f32[r0*input.ld:], input.ld, vectors[0], operator.Eps,
			r1-r0, operator.N)
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
		kernel(output.f32[r0*output.ld:], output.ld, input.f32[r0*input.ld:], input.ld, vectors[0], vectors[1],
			operator.Eps, r1-r0, operator.N)
	}), nil
}

// qkNorm normalises head by head, or jointly all query heads and all key heads. In a fused row the
// queries, the key and the value of a group lie together, so the joint form copies heads together,
// normalises and copies them back.
func (b *builder) qkNorm() (step, error) {
	exe, operator, input, output, kernel := b.e, b.op, b.in[0], b.out[0], b.e.p.set.Norm
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
		return b.byRows(4*(operator.Heads+operator.KVHeads)*dim, func(_, r0, r1 int) {
			if input != output {
				copyRows(output, input, r0, r1)
			}
			for head := range operator.Heads + operator.KVHeads {
				kvHead, i := head/(group+1), head%(group+1)
				gain := qgain
				if i == group {
					gain = kgain
				}
				head := output.f32[r0*output.ld+kvHead*width+i*dim:]
				kernel(head, output.ld, head, output.ld, gain, operator.Eps, r1-r0, dim)
			}
		}), nil
	}
	exe.need.local = max(exe.need.local, operator.Heads*dim)
	joint := func(together, row []float32, gain []float32, columns int) {
		for kvHead := range operator.KVHeads {
			copy(together[kvHead*columns:(kvHead+1)*columns], row[kvHead*width:])
		}
		kvCols := operator.KVHeads * columns
		kernel(together, kvCols, together, kvCols, gain, operator.Eps, 1, kvCols)
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
	exe, operator, input, output, scale, kernel := b.e, b.op, b.in[0], b.out[0], b.out[1], b.e.p.set.QuantRows
	if operator.Static {
		return b.quantStatic()
	}
	exe.need.scales = max(exe.need.scales, operator.Rows())
	step := b.byBlocks(max(1, operator.Fan), 6*operator.N, func(_, r0, r1 int) {
		dense := exe.have.scale[r0:r1]
		if bad := kernel(output.raw[r0*output.ld:], output.ld, dense, input.f32[r0*input.ld:], input.ld, r1-r0,
			operator.N); bad >= 0 {
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
	exe, operator, input, output, scale, kernel := b.e, b.op, b.in[0], b.out[0], b.out[1], b.e.p.set.QuantStatic
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
		if bad := kernel(output.raw[r0*output.ld:], output.ld, dense, weight, input.f32[r0*input.ld:], input.ld,
			r1-r0, operator.N); bad >= 0 {
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

// activations are the rows that a weight is multiplied with: f32, or u8 with row scales and, for
// 4-bit weights, block sums.
type activations struct {
	f32 []float32
	u8  []byte
	// elements from one row to the next
	ld int
	// of each row
	scale []float32
	// of the codes of each block of a row
	sum []int32
}

// product multiplies m rows by the n columns that begin with the tile at byte at of the weight.
type product func(y []float32, ldy int, x activations, at, m, n int)

// product returns the multiplication of the node's scheme, the bytes of a tile, and the number of
// block sums of a row, 0 for schemes without them.
func (b *builder) product() (f product, tileBytes, sums int, err error) {
	operator, set, packed := b.op, b.e.p.set, b.w[0].Bytes
	size, err := pack.TileBytes(operator.Scheme.Weight(), operator.K)
	if err != nil {
		return nil, 0, 0, err
	}
	blocks := (operator.K + pack.BlockK - 1) / pack.BlockK
	switch operator.Scheme {
	case op.A32W32:
		weight, err := mem.View[float32](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			set.MatMulF32(y, ldy, x.f32, x.ld, weight[at/4:], m, operator.K, n)
		}, int(size), 0, nil
	case op.A32W16:
		weight, err := mem.View[uint16](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			set.MatMulBF16(y, ldy, x.f32, x.ld, weight[at/2:], m, operator.K, n)
		}, int(size), 0, nil
	case op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C, op.A8S4Q8C:
		if operator.K > maxDotK {
			return nil, 0, 0, fmt.Errorf("k = %d of scheme %q, want at most %d", operator.K, operator.Scheme, maxDotK)
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			set.MatMulQ8C(y, ldy, x.u8, x.ld, x.scale, packed[at:], m, operator.K, n)
		}, int(size), 0, nil
	case op.A8TQ4B32, op.A8TQ4B128:
		multiply := set.MatMulQ4B32
		if operator.Scheme == op.A8TQ4B128 {
			multiply = set.MatMulQ4B128
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			multiply(y, ldy, x.u8, x.ld, x.scale, x.sum, blocks, packed[at:], m, operator.K, n)
		}, int(size), blocks, nil
	}
	return nil, 0, 0, fmt.Errorf("scheme %q is not supported", operator.Scheme)
}

// packed is a product whose rows are packed first, in the order in which the kernel reads them. It
// takes at least kernel.Set's PackFrom rows, and enough tiles to make up for the packing.
type packed struct {
	bytes, local int // of all rows, and of a worker's scratch
	pack         func(x *operand, rows, group int)
	// multiply is for all rows and the n columns that start with the tile at byte at of the weight.
	multiply func(y []float32, ldy int, at int, scratch []byte, m, n int)
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
		if set.PackRowsF32 == nil {
			return nil, nil
		}
		product := &packed{bytes: 4 * operator.M * operator.K, pack: func(x *operand, rows, group int) {
			set.PackRowsF32(exe.have.pack, x.f32, x.ld, rows, operator.K, group)
		}}
		if operator.Scheme == op.A32W16 {
			// Weights are views, not copies: at counts bytes, so it is halved or quartered.
			values, err := mem.View[uint16](weight)
			product.multiply = func(y []float32, ldy int, at int, _ []byte, m, n int) {
				set.PackedBF16(y, ldy, exe.have.pack, values[at/2:], m, operator.K, n)
			}
			return product, err
		}
		values, err := mem.View[float32](weight)
		product.multiply = func(y []float32, ldy int, at int, _ []byte, m, n int) {
			set.PackedF32(y, ldy, exe.have.pack, values[at/4:], m, operator.K, n)
		}
		return product, err
	}
	if set.PackRows == nil {
		return nil, nil
	}
	// block 0 means one scale for each column.
	block, multiply := 0, set.PackedQ8C
	switch operator.Scheme {
	case op.A8TQ4B32:
		block, multiply = pack.BlockK, set.PackedQ4B32
	case op.A8TQ4B128:
		block, multiply = pack.Block128, set.PackedQ4B128
	}
	return &packed{
		bytes: kernel.PackedBytes(operator.M, operator.K, block),
		local: kernel.PackedScratch(operator.K, block),
		pack: func(x *operand, rows, group int) {
			set.PackRows(mem.Bytes(exe.have.pack), x.raw, x.ld, rows, operator.K, block, group)
		},
		multiply: func(y []float32, ldy int, at int, scratch []byte, m, n int) {
			multiply(y, ldy, mem.Bytes(exe.have.pack), exe.have.scale, weight[at:], scratch, m, operator.K, n)
		},
	}, nil
}

// rows are the rows of x from r on, with their scales and sums from place p of the scratch.
func (b *builder) rows(x *operand, r, p, sums int) activations {
	rows, have := activations{ld: x.ld}, &b.e.have
	if !b.op.Scheme.QuantisedRows() {
		rows.f32 = x.f32[r*x.ld:]
		return rows
	}
	rows.u8, rows.scale, rows.sum = x.raw[r*x.ld:], have.scale[p:], have.sum[p*sums:]
	return rows
}

// tileTasks divides the tiles of a weight into tasks. Large ones of block tiles come first, so that
// a worker finds the next tile in its cache; small ones of last tiles come at the end, so that
// workers of different speed end together.
type tileTasks struct{ tiles, large, block, last int }

// divideTiles makes tasks of multiples of step tiles, at least least. Tasks are equal (even) where
// weights are read once: the first weights of a task are not prefetched, which makes every further
// task slower.
func divideTiles(tiles, workers, step, least int, even bool) tileTasks {
	whole := func(n int) int { return (max(1, n, least) + step - 1) / step * step }
	tasks := tileTasks{tiles: tiles, block: whole(tiles / (workers * tasksPerWorker))}
	tasks.last = tasks.block
	if !even {
		tasks.last = whole(tasks.block / 4)
		tasks.large = tiles * 3 / 4 / tasks.block
	}
	return tasks
}

// count is the number of tasks.
func (t *tileTasks) count() int { return t.large + (t.tiles-t.large*t.block+t.last-1)/t.last }

// of returns the tiles [from,to) of task i; to may lie beyond the last tile.
func (t *tileTasks) of(i int) (from, to int) {
	if i < t.large {
		return i * t.block, (i + 1) * t.block
	}
	from = t.large*t.block + (i-t.large)*t.last
	return from, from + t.last
}

// matMul is a product, y = x w, blocked over the tiles of the weight. Where enough rows meet enough
// tiles, a step before it packs the rows (see packed). The plan of a call divides tiles, and where
// these are few also rows, into tasks that workers take when they are free. Kernels sum each result
// in one order, so that its bits do not depend on the division. A call costs M*K*N multiply-adds
// and reads the weight once for each block of rows.
func (b *builder) matMul() (step, error) {
	exe, operator, input, output, set := b.e, b.op, b.in[0], b.out[0], b.e.p.set
	multiply, tileBytes, sums, err := b.product()
	if err != nil {
		return step{}, err
	}
	var bias []float32
	if operator.Bias {
		if bias, err = mem.View[float32](b.w[1].Bytes); err != nil {
			return step{}, err
		}
	}
	exe.need.sums = max(exe.need.sums, operator.M*sums)
	if operator.Scheme.QuantisedRows() {
		exe.need.scales = max(exe.need.scales, operator.M)
	}

	workers, tiles := len(exe.p.cores), (operator.N+pack.TileN-1)/pack.TileN
	packed, err := b.packed()
	if err != nil {
		return step{}, err
	}
	packs := func(rows int) bool { return packed != nil && rows >= set.PackFrom }
	if packed != nil {
		exe.need.packs = max(exe.need.packs, (packed.bytes+3)/4)
		exe.need.local = max(exe.need.local, (packed.local+3)/4)
		var rows int
		b.before = append(b.before, step{
			m: operator.M,
			plan: func(n int) int {
				if rows = n; !packs(n) {
					return 0
				}
				return kernel.PackGroups(n)
			},
			task: func(_, g int) { packed.pack(input, rows, g) },
		})
	}
	var rows, rowBlock int
	var tasks tileTasks
	return step{
		m: operator.M,
		plan: func(count int) int {
			rows, rowBlock, tasks = count, count, tileTasks{tiles: tiles, block: tiles, last: tiles}
			// kernels want scales without gaps
			if operator.Scheme.QuantisedRows() {
				scale := b.in[1]
				for row := range count {
					exe.have.scale[row] = scale.f32[row*scale.ld]
				}
			}
			if sums > 0 && !packs(count) {
				set.BlockSums(exe.have.sum, sums, input.raw, input.ld, count, operator.K)
			}
			if workers > 1 && int64(count)*int64(operator.K)*int64(operator.N) >= 2*minTask {
				tasks = divideTiles(tiles, workers, set.TileStep, minTask/(count*operator.K*pack.TileN), !packs(count))
				if tiles < tasks.block*workers && !packs(count) { // few columns: divide the rows too
					rowBlock = max(1, (count+2*workers-1)/(2*workers))
				}
			}
			return tasks.count() * ((count + rowBlock - 1) / rowBlock)
		},
		task: func(worker, t int) {
			tile, end := tasks.of(t % tasks.count())
			column, r0 := tile*pack.TileN, t/tasks.count()*rowBlock
			blockRows, cols := min(rows, r0+rowBlock)-r0, min(operator.N, end*pack.TileN)-column
			out := output.f32[r0*output.ld+column:]
			if packs(blockRows) {
				packed.multiply(out, output.ld, tile*tileBytes, mem.Bytes(exe.have.mine(worker)), blockRows, cols)
			} else {
				multiply(out, output.ld, b.rows(input, r0, r0, sums), tile*tileBytes, blockRows, cols)
			}
			if bias != nil {
				set.Add(out, output.ld, out, output.ld, bias[column:], 0, blockRows, cols)
			}
		},
	}, nil
}

// kvAppend stores the key and the value of each row and head at the row's position in the cache of
// its sequence.
func (b *builder) kvAppend() step {
	exe, operator, input := b.e, b.op, b.in[0]
	group, dim, narrow := operator.Heads/operator.KVHeads, operator.HeadDim, b.e.p.set.ToF16
	step := b.byRows(2*operator.KVHeads*dim, func(_, r0, r1 int) {
		for row := r0; row < r1; row++ {
			at := exe.at(row)
			for kvHead := range operator.KVHeads {
				key := row*input.ld + (kvHead*(group+2)+group)*dim
				to := at.Sequence*exe.perSeq + (kvHead*exe.maxContext+at.Pos)*dim
				if operator.KV == op.F32 {
					copy(exe.k.f32[to:to+dim], input.f32[key:])
					copy(exe.v.f32[to:to+dim], input.f32[key+dim:])
				} else if !narrow(exe.k.u16[to:to+dim], input.f32[key:key+dim]) ||
					!narrow(exe.v.u16[to:to+dim], input.f32[key+dim:key+2*dim]) {
					exe.refuse(row)
					return
				}
			}
		}
	})
	step.refused = func(int) error {
		return errors.New("key or value is NaN or too large for the f16 cache")
	}
	return step
}

// attention is causal attention of rows on the cache. A task is some rows with all query heads that
// share a key; the kernel uses an online softmax over blocks of positions. Each worker has scratch
// for one task.
func (b *builder) attention() (step, error) {
	exe, operator, input, output, set := b.e, b.op, b.in[0], b.out[0], b.e.p.set
	group, dim := operator.Heads/operator.KVHeads, operator.HeadDim
	size, err := attentionScratch(group, dim)
	if err != nil {
		return step{}, err
	}
	exe.need.local = max(exe.need.local, size)
	call := kernel.Attention{Heads: group, Dim: dim, Window: operator.Window, Scale: operator.Scale, Cap: operator.Cap}
	if call.Scale == 0 {
		call.Scale = 1 / math.Sqrt(float64(dim))
	}
	most, least := kernel.AttentionRows(group), min(8, kernel.AttentionRows(group))
	if operator.Batch {
		most, least = 1, 1 // rows have no keys in common
	}
	var rows, block, blocks int
	return step{
		m: operator.M,
		plan: func(n int) int {
			// A kernel reuses keys and values among the rows of a task, but every worker needs some tasks.
			rows, block = n, most
			for block > least && (n+block-1)/block*operator.KVHeads < tasksPerWorker*len(exe.p.cores) {
				block = max(least, block/2)
			}
			blocks = (n + block - 1) / block
			return blocks * operator.KVHeads
		},
		task: func(worker, t int) {
			kvHead, r0 := t%operator.KVHeads, (blocks-1-t/operator.KVHeads)*block // the longest rows first
			at, call := exe.at(r0), call
			call.M, call.Pos = min(block, rows-r0), at.Pos
			queries := input.f32[r0*input.ld+kvHead*(group+2)*dim:]
			out := output.f32[r0*output.ld+kvHead*group*dim:]
			scratch := exe.have.mine(worker)[:size]
			from := at.Sequence*exe.perSeq + kvHead*exe.maxContext*dim
			to := from + (call.Pos+call.M)*dim
			if operator.KV == op.F32 {
				set.AttentionF32(out, output.ld, queries, input.ld, exe.k.f32[from:to], exe.v.f32[from:to], scratch,
					call)
			} else {
				set.AttentionF16(out, output.ld, queries, input.ld, exe.k.u16[from:to], exe.v.u16[from:to], scratch,
					call)
			}
		},
	}, nil
}
