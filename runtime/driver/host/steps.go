package host

import (
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// step is one node, prepared: plan divides the rows in use into tasks, task computes one of them on
// one worker, refused words the error for a row the node cannot compute. None of them allocates.
type step struct {
	node    int
	m       int // most rows
	plan    func(rows int) (tasks int)
	task    func(worker, task int)
	refused func(row int) error
}

// builder turns one node into a step.
type builder struct {
	e       *executable
	op      op.Op
	in, out []*operand
	w       []driver.Packed
}

// Work is divided so that a task is worth handing over (about 10 us of portable kernels) and
// there are enough of them to even out cores of different speed.
const (
	minTask        = 8 << 10 // element operations
	tasksPerWorker = 8
)

// byRows divides a node by rows; f computes rows [r0,r1) of perRow element operations each.
func (b *builder) byRows(perRow int, f func(r0, r1 int)) step {
	workers := len(b.e.p.cores)
	var rows, block int
	return step{
		m: b.op.M,
		plan: func(n int) int {
			rows, block = n, n
			if workers > 1 {
				block = max(1, (n+workers*tasksPerWorker-1)/(workers*tasksPerWorker), (minTask+perRow-1)/perRow)
			}
			return (n + block - 1) / block
		},
		task: func(_, t int) { f(t*block, min(rows, (t+1)*block)) },
	}
}

func (b *builder) build() (step, error) {
	o := b.op
	for i, role := range o.Sig().W {
		spec, want := b.w[i], o.WeightSpec(role, layouts[o.Scheme.Weight()])
		want.Name = spec.Spec.Name
		if spec.Spec != want {
			return step{}, fmt.Errorf("weight %d is %s, want %s", i, describe(spec.Spec), describe(want))
		}
	}
	if o.Kind == op.KVAppend || o.Kind == op.Attention {
		e := b.e
		if e.kv != "" && (e.kv != o.KV || e.kvHeads != o.KVHeads || e.headDim != o.HeadDim) {
			return step{}, fmt.Errorf("cache %s of %d heads of %d columns differs from that of another node, %s of %d heads of %d",
				o.KV, o.KVHeads, o.HeadDim, e.kv, e.kvHeads, e.headDim)
		}
		e.kv, e.kvHeads, e.headDim = o.KV, o.KVHeads, o.HeadDim
	}
	switch o.Kind {
	case op.Embed:
		return b.embed()
	case op.SelectRow:
		return b.selectRow(), nil
	case op.Norm:
		return b.norm()
	case op.QuantRows:
		return b.quantRows(), nil
	case op.MatMul:
		return b.matMul()
	case op.Rope:
		return b.rope()
	case op.KVAppend:
		return b.kvAppend(), nil
	case op.Attention:
		return b.attention()
	case op.GLU:
		x, y, k := b.in[0], b.out[0], b.e.p.set.SiluMul
		return b.byRows(6*o.N, func(r0, r1 int) {
			k(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, o.Interleave, r1-r0, o.N)
		}), nil
	case op.Add:
		x, z, y, k := b.in[0], b.in[1], b.out[0], b.e.p.set.Add
		return b.byRows(o.N, func(r0, r1 int) {
			k(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, z.f32[r0*z.ld:], z.ld, r1-r0, o.N)
		}), nil
	case op.Copy:
		x, y := b.in[0], b.out[0]
		if x.value.Type != y.value.Type {
			return step{}, fmt.Errorf("copies %s to %s, want one type", x.value.Type, y.value.Type)
		}
		return b.byRows(o.N, func(r0, r1 int) { copyRows(y, x, r0, r1) }), nil
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
	if o.Table == op.F32 {
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
	s := b.byRows(o.N, func(r0, r1 int) {
		for r := r0; r < r1; r++ {
			id := int(ids.i32[r*ids.ld])
			if id < 0 || id >= o.K {
				e.refuse(r)
				return
			}
			row(y.f32[r*y.ld:r*y.ld+o.N], id)
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

func (b *builder) norm() (step, error) {
	o, x, y, k := b.op, b.in[0], b.out[0], b.e.p.set.Norm
	gain, err := mem.View[float32](b.w[0].Bytes)
	if err != nil {
		return step{}, err
	}
	if !(o.Eps >= 0 && o.Eps <= math.MaxFloat32) {
		return step{}, fmt.Errorf("eps = %v, want a number of at least 0", o.Eps)
	}
	return b.byRows(4*o.N, func(r0, r1 int) {
		k(y.f32[r0*y.ld:], y.ld, x.f32[r0*x.ld:], x.ld, gain, o.Eps, r1-r0, o.N)
	}), nil
}

var errNotFinite = errors.New("holds NaN or an infinity, which 8-bit rows cannot represent")

func (b *builder) quantRows() step {
	e, o, x, y, scale, k := b.e, b.op, b.in[0], b.out[0], b.out[1], b.e.p.set.QuantRows
	e.need.scales = max(e.need.scales, o.M)
	s := b.byRows(6*o.N, func(r0, r1 int) {
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
	return s
}

// maxDotK bounds K of 8-bit products, whose sums are exact in int32.
const maxDotK = math.MaxInt32 / (127 * 128)

func (b *builder) matMul() (step, error) {
	e, o, x, y, set := b.e, b.op, b.in[0], b.out[0], b.e.p.set
	packed := b.w[0].Bytes
	size, err := pack.TileBytes(o.Scheme.Weight(), o.K)
	if err != nil {
		return step{}, err
	}
	tileBytes, blocks := int(size), (o.K+pack.BlockK-1)/pack.BlockK

	// kernel computes rows [r0,r1) of the n columns that start with a tile.
	var kernel func(tile, n, r0, r1 int)
	switch o.Scheme {
	case op.A32W32:
		w, err := mem.View[float32](packed)
		if err != nil {
			return step{}, err
		}
		kernel = func(tile, n, r0, r1 int) {
			set.MatMulF32(y.f32[r0*y.ld+tile*pack.TileN:], y.ld, x.f32[r0*x.ld:], x.ld, w[tile*tileBytes/4:], r1-r0, o.K, n)
		}
	case op.A8TQ8C:
		if o.K > maxDotK {
			return step{}, fmt.Errorf("k = %d of scheme %q, want at most %d", o.K, o.Scheme, maxDotK)
		}
		kernel = func(tile, n, r0, r1 int) {
			set.MatMulQ8C(y.f32[r0*y.ld+tile*pack.TileN:], y.ld, x.raw[r0*x.ld:], x.ld, e.have.scale[r0:], packed[tile*tileBytes:], r1-r0, o.K, n)
		}
	case op.A8TQ4B32:
		e.need.sums = max(e.need.sums, o.M*blocks)
		kernel = func(tile, n, r0, r1 int) {
			set.MatMulQ4B32(y.f32[r0*y.ld+tile*pack.TileN:], y.ld, x.raw[r0*x.ld:], x.ld, e.have.scale[r0:], e.have.sum[r0*blocks:], blocks, packed[tile*tileBytes:], r1-r0, o.K, n)
		}
	default:
		return step{}, fmt.Errorf("scheme %q is not supported", o.Scheme)
	}
	if o.Scheme.QuantisedRows() {
		e.need.scales = max(e.need.scales, o.M)
	}

	workers, tiles := len(e.p.cores), (o.N+pack.TileN-1)/pack.TileN
	var rows, tileBlock, tileTasks, rowBlock int
	return step{
		m: o.M,
		plan: func(n int) int {
			rows, tileBlock, rowBlock = n, tiles, n
			if o.Scheme.QuantisedRows() {
				scale := b.in[1]
				for r := range n {
					e.have.scale[r] = scale.f32[r*scale.ld]
				}
			}
			if o.Scheme == op.A8TQ4B32 {
				set.BlockSums(e.have.sum, blocks, x.raw, x.ld, n, o.K)
			}
			if workers > 1 && int64(n)*int64(o.K)*int64(o.N) >= 2*minTask {
				tileBlock = max(1, tiles/(workers*tasksPerWorker), minTask/(n*o.K*pack.TileN))
				tileBlock = (tileBlock + set.TileStep - 1) / set.TileStep * set.TileStep
				if tiles < tileBlock*workers { // few columns: divide the rows too
					rowBlock = max(1, (n+2*workers-1)/(2*workers))
				}
			}
			tileTasks = (tiles + tileBlock - 1) / tileBlock
			return tileTasks * ((n + rowBlock - 1) / rowBlock)
		},
		task: func(_, t int) {
			tile, r0 := t%tileTasks*tileBlock, t/tileTasks*rowBlock
			kernel(tile, min(o.N-tile*pack.TileN, tileBlock*pack.TileN), r0, min(rows, r0+rowBlock))
		},
	}, nil
}

// maxAngles bounds the bytes of a ropeTable.
const maxAngles = 1 << 28

// ropeTable holds the cosines and sines of the rows of one call, [rows, half] each; the layers of
// a model ask for the same ones.
type ropeTable struct {
	freq      []float32
	pos, rows int
	cos, sin  []float32
}

// fill computes the table unless it is there already.
func (t *ropeTable) fill(freq []float32, pos, rows int) {
	same := len(freq) == len(t.freq) && pos == t.pos && rows <= t.rows
	for i := 0; same && i < len(freq); i++ {
		same = freq[i] == t.freq[i]
	}
	if same {
		return
	}
	t.freq = append(t.freq[:0], freq...)
	t.pos, t.rows = pos, rows
	for r := range rows {
		at := float32(pos + r)
		for i, f := range freq {
			sin, cos := math.Sincos(float64(at * f))
			t.sin[r*len(freq)+i], t.cos[r*len(freq)+i] = float32(sin), float32(cos)
		}
	}
}

// grow makes room for rows of half angles.
func (t *ropeTable) grow(rows, half int) {
	if n := rows * half; n > len(t.cos) {
		t.cos, t.sin, t.rows = make([]float32, n), make([]float32, n), 0
	}
	if half > cap(t.freq) {
		t.freq, t.rows = make([]float32, 0, half), 0
	}
}

func (b *builder) rope() (step, error) {
	e, o, x, y, k := b.e, b.op, b.in[0], b.out[0], b.e.p.set.Rope
	freq, err := mem.View[float32](b.w[0].Bytes)
	if err != nil {
		return step{}, err
	}
	table, half, group := &e.p.rope, o.HeadDim/2, o.Heads/o.KVHeads
	if int64(o.M)*int64(half)*8 > maxAngles {
		return step{}, fmt.Errorf("%d rows of %d angles need more than %d bytes", o.M, half, int64(maxAngles))
	}
	table.grow(o.M, half)
	s := b.byRows(8*(o.Heads+o.KVHeads)*o.HeadDim, func(r0, r1 int) {
		if x != y {
			copyRows(y, x, r0, r1)
		}
		for g := range o.KVHeads { // the group's queries and its key lie together
			k(y.f32[r0*y.ld+g*(group+2)*o.HeadDim:], y.ld, table.cos[r0*half:], table.sin[r0*half:], r1-r0, group+1, o.HeadDim)
		}
	})
	plan := s.plan
	s.plan = func(rows int) int {
		table.fill(freq, e.scalars.Pos, rows)
		return plan(rows)
	}
	return s, nil
}

func (b *builder) kvAppend() step {
	e, o, x := b.e, b.op, b.in[0]
	group, dim, narrow := o.Heads/o.KVHeads, o.HeadDim, b.e.p.set.ToF16
	s := b.byRows(2*o.KVHeads*dim, func(r0, r1 int) {
		for r := r0; r < r1; r++ {
			for g := range o.KVHeads {
				key := r*x.ld + (g*(group+2)+group)*dim
				to := (g*e.maxContext + e.scalars.Pos + r) * dim
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
	e.need.attention = max(e.need.attention, size)
	var rows, blocks int
	return step{
		m:    o.M,
		plan: func(n int) int { rows, blocks = n, (n+attentionRows-1)/attentionRows; return blocks * o.KVHeads },
		task: func(worker, t int) {
			g, r0 := t%o.KVHeads, (blocks-1-t/o.KVHeads)*attentionRows // the longest rows first
			m := min(attentionRows, rows-r0)
			q := x.f32[r0*x.ld+g*(group+2)*dim:]
			out := y.f32[r0*y.ld+g*group*dim:]
			scratch := e.have.att[worker*e.have.attention:][:size]
			from, to := g*e.maxContext*dim, (g*e.maxContext+e.scalars.Pos+r0+m)*dim
			if o.KV == op.F32 {
				set.AttentionF32(out, y.ld, q, x.ld, e.k.f32[from:to], e.v.f32[from:to], scratch, m, group, dim, e.scalars.Pos+r0)
			} else {
				set.AttentionF16(out, y.ld, q, x.ld, e.k.u16[from:to], e.v.u16[from:to], scratch, m, group, dim, e.scalars.Pos+r0)
			}
		},
	}, nil
}
