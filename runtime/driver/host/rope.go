package host

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/mem"
)

// maxAngles bounds the bytes of a ropeTable.
const maxAngles = 1 << 27

// ropeTables are the angles of the rotations that were asked for last: the layers of a model ask for the
// same ones.
type ropeTables struct {
	table []ropeTable
	clock uint64
}

// rotation is everything that angles depend on besides the rows.
type rotation struct {
	freq      []float32
	growth    float64 // of the base by NTK, 1 for none
	amplitude float64
	pos       int
}

// ropeTable holds the cosines and sines of the rows of one call, [rows, half] each.
type ropeTable struct {
	rotation
	rows     int
	cos, sin []float32
	used     uint64 // when
}

func (t *ropeTable) holds(r rotation, rows int) bool {
	return rows <= t.rows && r.pos == t.pos && r.growth == t.growth && r.amplitude == t.amplitude && slices.Equal(r.freq, t.freq)
}

// get computes the angles unless they are there already.
func (s *ropeTables) get(r rotation, rows int) *ropeTable {
	s.clock++
	oldest := &s.table[0]
	for i := range s.table {
		t := &s.table[i]
		if t.holds(r, rows) {
			t.used = s.clock
			return t
		}
		if t.used < oldest.used {
			oldest = t
		}
	}
	oldest.fill(r, rows)
	oldest.used = s.clock
	return oldest
}

func (t *ropeTable) fill(r rotation, rows int) {
	freq := append(t.freq[:0], r.freq...)
	t.rotation, t.rows = r, rows
	t.freq = freq
	half := len(freq)
	for i, f := range freq {
		if r.growth != 1 {
			f = float32(float64(f) * math.Pow(r.growth, -float64(i)/float64(half-1)))
		}
		for row := range rows {
			angle := float32(r.pos+row) * f
			sin, cos := math.Sincos(float64(angle))
			t.sin[row*half+i], t.cos[row*half+i] = float32(sin*r.amplitude), float32(cos*r.amplitude)
		}
	}
}

// grow makes room for that many tables of rows of half angles.
func (s *ropeTables) grow(tables, rows, half int) {
	for len(s.table) < tables {
		s.table = append(s.table, ropeTable{})
	}
	for i := range s.table {
		t := &s.table[i]
		if n := rows * half; n > len(t.cos) {
			t.cos, t.sin, t.rows = make([]float32, n), make([]float32, n), 0
		}
		if half > cap(t.freq) {
			t.freq, t.rows = make([]float32, 0, half), 0
		}
	}
}

func (b *builder) rope() (step, error) {
	e, o, x, y, k := b.e, b.op, b.in[0], b.out[0], b.e.p.set.Rope
	table, err := mem.View[float32](b.w[0].Bytes)
	if err != nil {
		return step{}, err
	}
	rotary, group := o.Rotary(), o.Heads/o.KVHeads
	half := rotary / 2
	if int64(o.M)*int64(half)*8 > maxAngles {
		return step{}, fmt.Errorf("%d rows of %d angles need more than %d bytes", o.M, half, int64(maxAngles))
	}
	// Layers turn rows by one table, or in turn by two; those of a batch by tables of one row, each its own.
	angles, most := &e.p.rope, 1
	if o.Batch {
		angles, most = &e.p.ropeBatch, o.M
		angles.grow(2*o.M, 1, half)
	} else {
		angles.grow(2, o.M, half)
	}
	e.needsSeq = e.needsSeq || o.LongFrom > 0
	tables := make([]*ropeTable, most)
	turn := func(t *ropeTable, from, r0, r1 int) { // from: its first row
		for g := range o.KVHeads { // the group's queries and its key lie together
			k(y.f32[r0*y.ld+g*(group+2)*o.HeadDim:], y.ld, t.cos[(r0-from)*half:], t.sin[(r0-from)*half:], r1-r0, group+1, o.HeadDim, rotary)
		}
	}
	s := b.byRows(8*(o.Heads+o.KVHeads)*rotary, func(_, r0, r1 int) {
		if x != y {
			copyRows(y, x, r0, r1)
		}
		if !o.Batch {
			turn(tables[0], 0, r0, r1)
			return
		}
		for r := r0; r < r1; r++ {
			turn(tables[r], r, r, r+1)
		}
	})
	rotate := func(pos, seq int) rotation {
		r := rotation{freq: table[:half], growth: 1, amplitude: o.Amplitude, pos: pos}
		if o.LongFrom > 0 && seq > o.LongFrom {
			if o.NTK != 0 {
				r.growth = o.NTK*float64(seq)/float64(o.LongFrom) - (o.NTK - 1)
			} else {
				r.freq, r.amplitude = table[half:], o.LongAmplitude
			}
		}
		if r.amplitude == 0 {
			r.amplitude = 1
		}
		return r
	}
	s.prepare = func(rows int) {
		if !o.Batch {
			tables[0] = angles.get(rotate(e.scalars.Pos, e.scalars.Seq), rows)
			return
		}
		for i, p := range e.scalars.Batch[:rows] {
			tables[i] = angles.get(rotate(p.Pos, p.Pos+1), 1)
		}
	}
	return s, nil
}
