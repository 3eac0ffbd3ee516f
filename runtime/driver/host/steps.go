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

// step is one node, a part of it, or a chain of nodes, prepared: plan divides the work for that many tokens into tasks,
// task computes one of them on one worker, refused words the error for a row the node cannot compute. None of them
// allocates. plan may refuse rows itself.
type step struct {
	node    int
	m       int // most tokens
	prepare func(tokens int)
	rows    *rowwise // instead of plan and task, which load then makes
	plan    func(tokens int) (tasks int)
	task    func(worker, task int)
	refused func(row int) error
}

// rowwise is work on rows that needs nothing but the same rows of what comes before: fan rows for each token, of
// perRow element operations each.
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

// Work is divided so that a task is worth handing over (about 10 us of portable kernels) and
// there are enough of them to even out cores of different speed.
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

// chain makes one step of those that work on the same rows one after another: a worker takes a block of rows through
// all of them while it is in its cache, and there is one hand-out of work instead of several.
func (e *executable) chain(steps []step) step {
	workers, first := len(e.p.cores), steps[0]
	perRow, fan := 0, first.rows.fan
	for _, s := range steps {
		perRow += s.rows.perRow
	}
	var rows, block int
	plan := func(tokens int) int {
		n := tokens * fan
		rows, block = n, n
		if workers > 1 {
			block = max(1, (n+workers*tasksPerWorker-1)/(workers*tasksPerWorker), (minTask+perRow-1)/perRow)
		}
		return (n + block - 1) / block
	}
	if len(steps) == 1 {
		first.plan, first.task = plan, func(worker, t int) { first.rows.compute(worker, t*block, min(rows, (t+1)*block)) }
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
			// Rows of this block are refused by nobody else; if it is the lowest one so far, it was this step.
			if bad := e.bad.Load(); int64(r0) <= bad && bad < int64(r1) {
				lower(&e.blame, bad*int64(len(steps))+int64(i))
				return
			}
		}
	}
	first.refused = func(row int) error {
		s := &steps[e.blame.Load()%int64(len(steps))]
		return fmt.Errorf("in its %s: %w", e.graph.Nodes[s.node].Op.Kind, s.refused(row))
	}
	return first
}

func (b *builder) build() (step, error) {
	o := b.op
	for i, role := range o.Sig().W {
		spec, want := b.w[i], o.WeightSpec(role, layouts[o.Scheme.Weight()])
		want.Name = spec.Spec.Name
		if spec.Spec != want {
			return step{}, fmt.Errorf("weight %d is %v, want %v", i, spec.Spec, want)
		}
	}
	if e := b.e; o.Kind == op.Rope || o.Kind == op.KVAppend || o.Kind == op.Attention {
		if e.placed && e.batch != o.Batch {
			return step{}, errors.New("rows are of one sequence for some nodes, and of one each for others")
		}
		e.placed, e.batch = true, o.Batch
	}
	if o.Kind == op.KVAppend || o.Kind == op.Attention {
		e := b.e
		if e.kv != "" && (e.kv != o.KV || e.kvHeads != o.KVHeads || e.headDim != o.HeadDim) {
			return step{}, fmt.Errorf("cache %s of %d heads of %d columns differs from that of another node, %s of %d heads of %d",
				o.KV, o.KVHeads, o.HeadDim, e.kv, e.kvHeads, e.headDim)
		}
		e.kv, e.kvHeads, e.headDim = o.KV, o.KVHeads, o.HeadDim
	}
	set, fan := b.e.p.set, max(1, o.Fan)
	switch o.Kind {
	case op.Embed:
		return b.embed()
	case op.SelectRow:
		return b.selectRow(), nil
	case op.Norm:
		return b.norm()
	case op.LayerNorm:
		return b.layerNorm()
	case op.QKNorm:
		return b.qkNorm()
	case op.QuantRows:
		return b.quantRows()
	case op.MatMul:
		if o.Scheme.Grid() || o.Scheme.Half() {
			return b.narrowMatMul()
		}
		return b.matMul()
	case op.ExpertMatMul:
		return b.expertMatMul()
	case op.Route:
		return b.route(), nil
	case op.Combine:
		x, w, y := b.in[0], b.in[1], b.out[0]
		return b.byRows(2*fan*o.N, func(_, r0, r1 int) {
			set.Combine(y.f32[r0*y.ld:], y.ld, x.f32[r0*fan*x.ld:], x.ld, w.f32[r0*w.ld:], w.ld, r1-r0, fan, o.N)
		}), nil
	case op.Rope:
		return b.rope()
	case op.KVAppend:
		return b.kvAppend(), nil
	case op.Attention:
		return b.attention()
	case op.GLU:
		x, y := b.in[0], b.out[0]
		return b.byBlocks(fan, 6*o.N, func(_, r0, r1 int) {
			set.GLU(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, o.Act, o.Interleave, r1-r0, o.N)
		}), nil
	case op.Activate:
		x, y := b.in[0], b.out[0]
		return b.byBlocks(fan, 5*o.N, func(_, r0, r1 int) {
			set.Activate(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, o.Act, r1-r0, o.N)
		}), nil
	case op.Clip:
		x, y, limit := b.in[0], b.out[0], float32(o.Cap)
		return b.byRows(o.N, func(_, r0, r1 int) {
			for r := r0; r < r1; r++ {
				to := y.f32[r*y.ld:][:o.N]
				for i, v := range x.f32[r*x.ld:][:o.N] {
					to[i] = min(max(v, -limit), limit) // NaN stays NaN
				}
			}
		}), nil
	case op.Softcap:
		x, y := b.in[0], b.out[0]
		return b.byRows(5*o.N, func(_, r0, r1 int) {
			set.Softcap(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, o.Cap, r1-r0, o.N)
		}), nil
	case op.Gate:
		x, gate, y := b.in[0], b.in[1], b.out[0]
		return b.byRows(o.N, func(_, r0, r1 int) {
			set.Gate(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, gate.f32[r0*gate.ld:], gate.ld, r1-r0, o.N)
		}), nil
	case op.Add:
		x, z, y := b.in[0], b.in[1], b.out[0]
		return b.byRows(o.N, func(_, r0, r1 int) {
			set.Add(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, z.f32[r0*z.ld:], z.ld, r1-r0, o.N)
		}), nil
	case op.Copy:
		x, y := b.in[0], b.out[0]
		if x.value.Type != y.value.Type {
			return step{}, fmt.Errorf("copies %s to %s, want one type", x.value.Type, y.value.Type)
		}
		return b.byBlocks(fan, o.N, func(_, r0, r1 int) { copyRows(y, x, r0, r1) }), nil
	}
	return step{}, fmt.Errorf("operator %q is not supported", o.Kind)
}

func copyRows(y, x *operand, r0, r1 int) {
	size := y.value.Type.Bytes()
	n := y.value.Cols * size
	for r := r0; r < r1; r++ {
		to, from := r*y.ld*size, r*x.ld*size
		copy(y.raw[to:to+n], x.raw[from:from+n])
	}
}

func (b *builder) embed() (step, error) {
	e, o, ids, y := b.e, b.op, b.in[0], b.out[0]
	var row func(out []float32, id int)
	if o.Scheme != "" {
		table := b.w[0].Bytes
		row = func(out []float32, id int) { kernel.ColumnQ8C(out, table, id) }
	} else if o.Table == op.F32 {
		table, err := mem.View[float32](b.w[0].Bytes)
		if err != nil {
			return step{}, err
		}
		row = func(out []float32, id int) { copy(out, table[id*o.N:]) }
	} else {
		table, err := mem.View[uint16](b.w[0].Bytes)
		if err != nil {
			return step{}, err
		}
		widen := e.p.set.FromBF16
		if o.Table == op.F16 {
			widen = e.p.set.FromF16
		}
		row = func(out []float32, id int) { widen(out, table[id*o.N:(id+1)*o.N]) }
	}
	s := b.byRows(o.N, func(_, r0, r1 int) {
		for r := r0; r < r1; r++ {
			id := int(ids.i32[r*ids.ld])
			if id < 0 || id >= o.K {
				e.refuse(r)
				return
			}
			out := y.f32[r*y.ld : r*y.ld+o.N]
			row(out, id)
			if o.Scale != 0 {
				e.p.set.Scale(out, o.Scale)
			}
		}
	})
	s.refused = func(r int) error {
		return fmt.Errorf("token id %d is outside the table, want 0..%d", ids.i32[r*ids.ld], o.K-1)
	}
	return s, nil
}

func (b *builder) selectRow() step {
	e, n, x, y := b.e, b.op.N, b.in[0], b.out[0]
	var rows int
	return step{
		m:    b.op.M,
		plan: func(r int) int { rows = r; return 1 },
		task: func(_, _ int) {
			r := e.scalars.Row
			if r < 0 || r >= rows {
				e.refuse(r)
				return
			}
			copy(y.f32[:n], x.f32[r*x.ld:r*x.ld+n])
		},
		refused: func(int) error { return fmt.Errorf("want a row in 0..%d", rows-1) },
	}
}

// eps refuses what no norm can add.
func (b *builder) eps() error {
	if !(b.op.Eps >= 0 && b.op.Eps <= math.MaxFloat32) {
		return fmt.Errorf("eps = %v, want a number of at least 0", b.op.Eps)
	}
	return nil
}

// vectors are the weights as plain numbers.
func (b *builder) vectors() (v [][]float32, err error) {
	for _, w := range b.w {
		f, err := mem.View[float32](w.Bytes)
		if err != nil {
			return nil, err
		}
		v = append(v, f)
	}
	return v, nil
}

func (b *builder) norm() (step, error) {
	o, x, y, k := b.op, b.in[0], b.out[0], b.e.p.set.Norm
	w, err := b.vectors()
	if err == nil {
		err = b.eps()
	}
	if err != nil {
		return step{}, err
	}
	return b.byRows(4*o.N, func(_, r0, r1 int) {
		k(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, w[0], o.Eps, r1-r0, o.N)
	}), nil
}

func (b *builder) layerNorm() (step, error) {
	o, x, y, k := b.op, b.in[0], b.out[0], b.e.p.set.LayerNorm
	w, err := b.vectors()
	if err == nil {
		err = b.eps()
	}
	if err != nil {
		return step{}, err
	}
	return b.byRows(6*o.N, func(_, r0, r1 int) {
		k(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, w[0], w[1], o.Eps, r1-r0, o.N)
	}), nil
}

// qkNorm normalises head by head, or jointly heads that it copies together and back: in a fused row those of
// a group lie together, its queries, its key and its value.
func (b *builder) qkNorm() (step, error) {
	e, o, x, y, k := b.e, b.op, b.in[0], b.out[0], b.e.p.set.Norm
	w, err := b.vectors()
	if err == nil {
		err = b.eps()
	}
	if err != nil {
		return step{}, err
	}
	qgain, kgain, dim, group := w[0], w[1], o.HeadDim, o.Heads/o.KVHeads
	width := (group + 2) * dim // of a group in a row
	if !o.Joint {
		return b.byRows(4*(o.Heads+o.KVHeads)*dim, func(_, r0, r1 int) {
			if x != y {
				copyRows(y, x, r0, r1)
			}
			for h := range o.Heads + o.KVHeads {
				g, i := h/(group+1), h%(group+1)
				gain := qgain
				if i == group {
					gain = kgain
				}
				head := y.f32[r0*y.ld+g*width+i*dim:]
				k(head, y.ld, head, y.ld, gain, o.Eps, r1-r0, dim)
			}
		}), nil
	}
	e.need.local = max(e.need.local, o.Heads*dim)
	joint := func(together, row []float32, gain []float32, columns int) {
		for g := range o.KVHeads {
			copy(together[g*columns:(g+1)*columns], row[g*width:])
		}
		n := o.KVHeads * columns
		k(together, n, together, n, gain, o.Eps, 1, n)
		for g := range o.KVHeads {
			copy(row[g*width:], together[g*columns:(g+1)*columns])
		}
	}
	return b.byRows(4*(o.Heads+o.KVHeads)*dim, func(worker, r0, r1 int) {
		if x != y {
			copyRows(y, x, r0, r1)
		}
		for r := r0; r < r1; r++ {
			row := y.f32[r*y.ld : r*y.ld+o.KVHeads*width]
			joint(e.have.mine(worker), row, qgain, group*dim)
			joint(e.have.mine(worker), row[group*dim:], kgain, dim)
		}
	}), nil
}

var errNotFinite = errors.New("holds NaN or an infinity, which 8-bit rows cannot represent")

func (b *builder) quantRows() (step, error) {
	e, o, x, y, scale, k := b.e, b.op, b.in[0], b.out[0], b.out[1], b.e.p.set.QuantRows
	if o.Static {
		return b.quantStatic()
	}
	e.need.scales = max(e.need.scales, o.Rows())
	s := b.byBlocks(max(1, o.Fan), 6*o.N, func(_, r0, r1 int) {
		dense := e.have.scale[r0:r1]
		if bad := k(y.raw[r0*y.ld:], y.ld, dense, x.f32[r0*x.ld:], x.ld, r1-r0, o.N); bad >= 0 {
			e.refuse(r0 + bad)
			return
		}
		for i, v := range dense {
			scale.f32[(r0+i)*scale.ld] = v
		}
	})
	s.refused = func(int) error { return errNotFinite }
	return s, nil
}

func (b *builder) quantStatic() (step, error) {
	e, o, x, y, scale, k := b.e, b.op, b.in[0], b.out[0], b.out[1], b.e.p.set.QuantStatic
	w, err := mem.View[float32](b.w[0].Bytes)
	if err != nil {
		return step{}, err
	}
	w = w[:max(1, o.Scales)]
	for _, v := range w {
		if !(v > 0 && v <= math.MaxFloat32) {
			return step{}, fmt.Errorf("the static scale is %v, want a positive number", v)
		}
	}
	e.need.scales = max(e.need.scales, o.Rows())
	s := b.byBlocks(max(1, o.Fan), 6*o.N, func(_, r0, r1 int) {
		dense := e.have.scale[r0:r1]
		if bad := k(y.raw[r0*y.ld:], y.ld, dense, w, x.f32[r0*x.ld:], x.ld, r1-r0, o.N); bad >= 0 {
			e.refuse(r0 + bad)
			return
		}
		for i, v := range dense {
			scale.f32[(r0+i)*scale.ld] = v
		}
	})
	s.refused = func(int) error { return errNotFinite }
	return s, nil
}

// maxDotK bounds K of 8-bit products, whose sums are exact in int32.
const maxDotK = math.MaxInt32 / (127 * 128)

// activations are rows that a weight is multiplied with, f32 or u8 with scales and (4-bit weights) block sums.
type activations struct {
	f32   []float32
	u8    []byte
	ld    int
	scale []float32
	sum   []int32
}

// product multiplies m rows by the n columns that start with the tile at byte at of the weight.
type product func(y []float32, ldy int, x activations, at, m, n int)

// product also returns the bytes of a tile and the number of block sums of a row, 0 for other schemes.
func (b *builder) product() (f product, tileBytes, sums int, err error) {
	o, set, packed := b.op, b.e.p.set, b.w[0].Bytes
	size, err := pack.TileBytes(o.Scheme.Weight(), o.K)
	if err != nil {
		return nil, 0, 0, err
	}
	blocks := (o.K + pack.BlockK - 1) / pack.BlockK
	switch o.Scheme {
	case op.A32W32:
		w, err := mem.View[float32](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			set.MatMulF32(y, ldy, x.f32, x.ld, w[at/4:], m, o.K, n)
		}, int(size), 0, nil
	case op.A32W16:
		w, err := mem.View[uint16](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			set.MatMulBF16(y, ldy, x.f32, x.ld, w[at/2:], m, o.K, n)
		}, int(size), 0, nil
	case op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C, op.A8S4Q8C:
		if o.K > maxDotK {
			return nil, 0, 0, fmt.Errorf("k = %d of scheme %q, want at most %d", o.K, o.Scheme, maxDotK)
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			set.MatMulQ8C(y, ldy, x.u8, x.ld, x.scale, packed[at:], m, o.K, n)
		}, int(size), 0, nil
	case op.A8TQ4B32, op.A8TQ4B128:
		multiply := set.MatMulQ4B32
		if o.Scheme == op.A8TQ4B128 {
			multiply = set.MatMulQ4B128
		}
		return func(y []float32, ldy int, x activations, at, m, n int) {
			multiply(y, ldy, x.u8, x.ld, x.scale, x.sum, blocks, packed[at:], m, o.K, n)
		}, int(size), blocks, nil
	}
	return nil, 0, 0, fmt.Errorf("scheme %q is not supported", o.Scheme)
}

// packed is how a product takes its rows packed: at least kernel.Set's PackFrom, for enough tiles.
type packed struct {
	bytes, local int // of all rows, and of a worker's scratch
	pack         func(x *operand, rows, group int)
	// multiply is for all rows and the n columns that start with the tile at byte at of the weight.
	multiply func(y []float32, ldy int, at int, scratch []byte, m, n int)
}

// packedTiles is the least number of tiles that rows are packed for, packedFloats that for float32 rows, whose packing takes
// longer, and packedEach that for each worker: the driver tells them (memory).
const (
	packedTiles  = 16
	packedFloats = 64
	packedEach   = 4
)

// packed is nil where rows are better taken as they are.
func (b *builder) packed() (*packed, error) {
	e, o, set, weight := b.e, b.op, b.e.p.set, b.w[0].Bytes
	least := packedTiles
	if !o.Scheme.QuantisedRows() {
		least = packedFloats
	}
	if tiles := (o.N + pack.TileN - 1) / pack.TileN; o.M < set.PackFrom || tiles < max(least, packedEach*len(e.p.cores)) {
		return nil, nil
	}
	if !o.Scheme.QuantisedRows() {
		if set.PackRowsF32 == nil {
			return nil, nil
		}
		p := &packed{bytes: 4 * o.M * o.K, pack: func(x *operand, rows, group int) {
			set.PackRowsF32(e.have.pack, x.f32, x.ld, rows, o.K, group)
		}}
		if o.Scheme == op.A32W16 {
			w, err := mem.View[uint16](weight)
			p.multiply = func(y []float32, ldy int, at int, _ []byte, m, n int) {
				set.PackedBF16(y, ldy, e.have.pack, w[at/2:], m, o.K, n)
			}
			return p, err
		}
		w, err := mem.View[float32](weight)
		p.multiply = func(y []float32, ldy int, at int, _ []byte, m, n int) {
			set.PackedF32(y, ldy, e.have.pack, w[at/4:], m, o.K, n)
		}
		return p, err
	}
	if set.PackRows == nil {
		return nil, nil
	}
	block, multiply := 0, set.PackedQ8C
	switch o.Scheme {
	case op.A8TQ4B32:
		block, multiply = pack.BlockK, set.PackedQ4B32
	case op.A8TQ4B128:
		block, multiply = pack.Block128, set.PackedQ4B128
	}
	return &packed{
		bytes: kernel.PackedBytes(o.M, o.K, block),
		local: kernel.PackedScratch(o.K, block),
		pack: func(x *operand, rows, group int) {
			set.PackRows(mem.Bytes(e.have.pack), x.raw, x.ld, rows, o.K, block, group)
		},
		multiply: func(y []float32, ldy int, at int, scratch []byte, m, n int) {
			multiply(y, ldy, mem.Bytes(e.have.pack), e.have.scale, weight[at:], scratch, m, o.K, n)
		},
	}, nil
}

// rows are the rows of x from r, with their scales and sums from place p of the scratch.
func (b *builder) rows(x *operand, r, p, sums int) activations {
	a, have := activations{ld: x.ld}, &b.e.have
	if !b.op.Scheme.QuantisedRows() {
		a.f32 = x.f32[r*x.ld:]
		return a
	}
	a.u8, a.scale, a.sum = x.raw[r*x.ld:], have.scale[p:], have.sum[p*sums:]
	return a
}

// tileTasks divides the tiles of a weight into tasks: large ones of block tiles, so that a worker finds the next tile in
// its cache, and at the end small ones of last tiles, so that workers of different speed end together.
type tileTasks struct{ tiles, large, block, last int }

// divideTiles makes tasks of multiples of step tiles, at least least; even ones where weights are read once, because every
// task begins with weights that nobody asked for ahead.
func divideTiles(tiles, workers, step, least int, even bool) tileTasks {
	whole := func(n int) int { return (max(1, n, least) + step - 1) / step * step }
	t := tileTasks{tiles: tiles, block: whole(tiles / (workers * tasksPerWorker))}
	t.last = t.block
	if !even {
		t.last = whole(t.block / 4)
		t.large = tiles * 3 / 4 / t.block
	}
	return t
}

func (t *tileTasks) count() int { return t.large + (t.tiles-t.large*t.block+t.last-1)/t.last }

// of is the tiles [from,to) of task i; to may be more than there are.
func (t *tileTasks) of(i int) (from, to int) {
	if i < t.large {
		return i * t.block, (i + 1) * t.block
	}
	from = t.large*t.block + (i-t.large)*t.last
	return from, from + t.last
}

func (b *builder) matMul() (step, error) {
	e, o, x, y, set := b.e, b.op, b.in[0], b.out[0], b.e.p.set
	multiply, tileBytes, sums, err := b.product()
	if err != nil {
		return step{}, err
	}
	var bias []float32
	if o.Bias {
		if bias, err = mem.View[float32](b.w[1].Bytes); err != nil {
			return step{}, err
		}
	}
	e.need.sums = max(e.need.sums, o.M*sums)
	if o.Scheme.QuantisedRows() {
		e.need.scales = max(e.need.scales, o.M)
	}

	workers, tiles := len(e.p.cores), (o.N+pack.TileN-1)/pack.TileN
	packed, err := b.packed()
	if err != nil {
		return step{}, err
	}
	packs := func(rows int) bool { return packed != nil && rows >= set.PackFrom }
	if packed != nil {
		e.need.packs = max(e.need.packs, (packed.bytes+3)/4)
		e.need.local = max(e.need.local, (packed.local+3)/4)
		var rows int
		b.before = append(b.before, step{
			m: o.M,
			plan: func(n int) int {
				if rows = n; !packs(n) {
					return 0
				}
				return kernel.PackGroups(n)
			},
			task: func(_, g int) { packed.pack(x, rows, g) },
		})
	}
	var rows, rowBlock int
	var tasks tileTasks
	return step{
		m: o.M,
		plan: func(n int) int {
			rows, rowBlock, tasks = n, n, tileTasks{tiles: tiles, block: tiles, last: tiles}
			if o.Scheme.QuantisedRows() {
				scale := b.in[1]
				for r := range n {
					e.have.scale[r] = scale.f32[r*scale.ld]
				}
			}
			if sums > 0 && !packs(n) {
				set.BlockSums(e.have.sum, sums, x.raw, x.ld, n, o.K)
			}
			if workers > 1 && int64(n)*int64(o.K)*int64(o.N) >= 2*minTask {
				tasks = divideTiles(tiles, workers, set.TileStep, minTask/(n*o.K*pack.TileN), !packs(n))
				if tiles < tasks.block*workers && !packs(n) { // few columns: divide the rows too
					rowBlock = max(1, (n+2*workers-1)/(2*workers))
				}
			}
			return tasks.count() * ((n + rowBlock - 1) / rowBlock)
		},
		task: func(worker, t int) {
			tile, end := tasks.of(t % tasks.count())
			column, r0 := tile*pack.TileN, t/tasks.count()*rowBlock
			m, n := min(rows, r0+rowBlock)-r0, min(o.N, end*pack.TileN)-column
			out := y.f32[r0*y.ld+column:]
			if packs(m) {
				packed.multiply(out, y.ld, tile*tileBytes, mem.Bytes(e.have.mine(worker)), m, n)
			} else {
				multiply(out, y.ld, b.rows(x, r0, r0, sums), tile*tileBytes, m, n)
			}
			if bias != nil {
				set.Add(out, y.ld, out, y.ld, bias[column:], 0, m, n)
			}
		},
	}, nil
}

func (b *builder) kvAppend() step {
	e, o, x := b.e, b.op, b.in[0]
	group, dim, narrow := o.Heads/o.KVHeads, o.HeadDim, b.e.p.set.ToF16
	s := b.byRows(2*o.KVHeads*dim, func(_, r0, r1 int) {
		for r := r0; r < r1; r++ {
			at := e.at(r)
			for g := range o.KVHeads {
				key := r*x.ld + (g*(group+2)+group)*dim
				to := at.Sequence*e.perSeq + (g*e.maxContext+at.Pos)*dim
				if o.KV == op.F32 {
					copy(e.k.f32[to:to+dim], x.f32[key:])
					copy(e.v.f32[to:to+dim], x.f32[key+dim:])
				} else if !narrow(e.k.u16[to:to+dim], x.f32[key:key+dim]) || !narrow(e.v.u16[to:to+dim], x.f32[key+dim:key+2*dim]) {
					e.refuse(r)
					return
				}
			}
		}
	})
	s.refused = func(int) error {
		return errors.New("key or value is NaN or too large for the f16 cache")
	}
	return s
}

// attentionRows is the number of rows of one task; a kernel reuses keys and values among them.
const attentionRows = 8

func (b *builder) attention() (step, error) {
	e, o, x, y, set := b.e, b.op, b.in[0], b.out[0], b.e.p.set
	group, dim := o.Heads/o.KVHeads, o.HeadDim
	size, err := attentionScratch(group, dim)
	if err != nil {
		return step{}, err
	}
	e.need.local = max(e.need.local, size)
	call := kernel.Attention{Heads: group, Dim: dim, Window: o.Window, Scale: o.Scale, Cap: o.Cap}
	if call.Scale == 0 {
		call.Scale = 1 / math.Sqrt(float64(dim))
	}
	block := attentionRows
	if o.Batch {
		block = 1 // rows have no keys in common
	}
	var rows, blocks int
	return step{
		m:    o.M,
		plan: func(n int) int { rows, blocks = n, (n+block-1)/block; return blocks * o.KVHeads },
		task: func(worker, t int) {
			g, r0 := t%o.KVHeads, (blocks-1-t/o.KVHeads)*block // the longest rows first
			at, call := e.at(r0), call
			call.M, call.Pos = min(block, rows-r0), at.Pos
			q := x.f32[r0*x.ld+g*(group+2)*dim:]
			out := y.f32[r0*y.ld+g*group*dim:]
			scratch := e.have.mine(worker)[:size]
			from := at.Sequence*e.perSeq + g*e.maxContext*dim
			to := from + (call.Pos+call.M)*dim
			if o.KV == op.F32 {
				set.AttentionF32(out, y.ld, q, x.ld, e.k.f32[from:to], e.v.f32[from:to], scratch, call)
			} else {
				set.AttentionF16(out, y.ld, q, x.ld, e.k.u16[from:to], e.v.u16[from:to], scratch, call)
			}
		},
	}, nil
}
