package host

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/mem"
)

// maxAngles bounds the bytes of a ropeTable.
const maxAngles = 1 << 27

// ropeTables are the angles of the two rotations that were asked for last: the layers of a model ask for the
// same one, or in turn for two.
type ropeTables struct {
	table  [2]ropeTable
	recent int
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
}

func (t *ropeTable) holds(r rotation, rows int) bool {
	return rows <= t.rows && r.pos == t.pos && r.growth == t.growth && r.amplitude == t.amplitude && slices.Equal(r.freq, t.freq)
}

// get computes the angles unless they are there already.
func (s *ropeTables) get(r rotation, rows int) *ropeTable {
	for i := range s.table {
		if s.table[i].holds(r, rows) {
			s.recent = i
			return &s.table[i]
		}
	}
	s.recent = 1 - s.recent
	t := &s.table[s.recent]
	t.fill(r, rows)
	return t
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

// grow makes room for rows of half angles.
func (s *ropeTables) grow(rows, half int) {
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
	angles, rotary, group := &e.p.rope, o.Rotary(), o.Heads/o.KVHeads
	half := rotary / 2
	if int64(o.M)*int64(half)*8 > maxAngles {
		return step{}, fmt.Errorf("%d rows of %d angles need more than %d bytes", o.M, half, int64(maxAngles))
	}
	angles.grow(o.M, half)
	e.needsSeq = e.needsSeq || o.LongFrom > 0
	var t *ropeTable
	s := b.byRows(8*(o.Heads+o.KVHeads)*rotary, func(_, r0, r1 int) {
		if x != y {
			copyRows(y, x, r0, r1)
		}
		for g := range o.KVHeads { // the group's queries and its key lie together
			k(y.f32[r0*y.ld+g*(group+2)*o.HeadDim:], y.ld, t.cos[r0*half:], t.sin[r0*half:], r1-r0, group+1, o.HeadDim, rotary)
		}
	})
	s.prepare = func(rows int) {
		r := rotation{freq: table[:half], growth: 1, amplitude: o.Amplitude, pos: e.scalars.Pos}
		if seq := e.scalars.Seq; o.LongFrom > 0 && seq > o.LongFrom {
			if o.NTK != 0 {
				r.growth = o.NTK*float64(seq)/float64(o.LongFrom) - (o.NTK - 1)
			} else {
				r.freq, r.amplitude = table[half:], o.LongAmplitude
			}
		}
		if r.amplitude == 0 {
			r.amplitude = 1
		}
		t = angles.get(r, rows)
	}
	return s, nil
}
