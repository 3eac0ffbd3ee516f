package host

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
)

// maxAngles bounds the bytes of a table of angles.
const maxAngles = 1 << 27

// ropeTables caches the angles of the rotations used last, since all layers of a model ask for the
// same ones.
type ropeTables struct {
	table []ropeTable
	clock uint64
}

// rotation is everything besides the rows that angles depend on.
type rotation struct {
	// angle per position of each pair, in radians
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

// holds reports whether the table has the angles of that many rows.
func (t *ropeTable) holds(r rotation, rows int) bool {
	return rows <= t.rows && r.pos == t.pos && r.growth == t.growth && r.amplitude == t.amplitude &&
		slices.Equal(r.freq, t.freq)
}

// get returns the table of a rotation. It computes the angles into the least recently used table
// where none has them.
func (s *ropeTables) get(angles rotation, rows int) *ropeTable {
	s.clock++
	oldest := &s.table[0]
	for i := range s.table {
		table := &s.table[i]
		if table.holds(angles, rows) {
			table.used = s.clock
			return table
		}
		if table.used < oldest.used {
			oldest = table
		}
	}
	oldest.fill(angles, rows)
	oldest.used = s.clock
	return oldest
}

// fill computes the sines and cosines of rows positions from params.pos on, times the amplitude.
func (t *ropeTable) fill(params rotation, rows int) {
	own := t.freq[:len(params.freq)] // for which grow has made room; those of params belong to its caller
	copy(own, params.freq)
	t.rotation, t.rows = params, rows
	t.freq = own
	half := len(own)
	for i, frequency := range own {
		if params.growth != 1 {
			frequency = float32(float64(frequency) * math.Pow(params.growth, -float64(i)/float64(half-1)))
		}
		for row := range rows {
			angle := float32(params.pos+row) * frequency
			sin, cos := math.Sincos(float64(angle))
			t.sin[row*half+i], t.cos[row*half+i] = float32(sin*params.amplitude), float32(cos*params.amplitude)
		}
	}
}

// grow makes room for tables of rows times half angles. It runs at load time, so that calls
// allocate nothing.
func (s *ropeTables) grow(tables, rows, half int) {
	for len(s.table) < tables {
		s.table = append(s.table, ropeTable{})
	}
	for i := range s.table {
		table := &s.table[i]
		if angles := rows * half; angles > len(table.cos) {
			table.cos, table.sin, table.rows = make([]float32, angles), make([]float32, angles), 0
		}
		if half > cap(table.freq) {
			table.freq, table.rows = make([]float32, 0, half), 0
		}
	}
}

// rope rotates query and key heads by their position. Sines and cosines of a call are computed
// once, into tables that the layers share: prepare finds or fills the table of the call's position
// and length, and the tasks only rotate.
func (b *builder) rope() (step, error) {
	exe, operator, input, output, kernel := b.exe, b.op, b.in[0], b.out[0], b.exe.proc.set.Rope
	table, err := mem.View[float32](b.weights[0].Bytes)
	if err != nil {
		return step{}, err
	}
	rotary, group := operator.Rotary(), operator.Heads/operator.KVHeads
	half := rotary / 2
	if int64(operator.M)*int64(half)*8 > maxAngles {
		return step{}, fmt.Errorf("%d rows of %d angles need more than %d bytes", operator.M, half, int64(maxAngles))
	}
	// Layers turn rows by one table, or in turn by two; those of a batch by tables of one row, each its own.
	angles, most := &exe.proc.rope, 1
	if operator.Batch {
		angles, most = &exe.proc.ropeBatch, operator.M
		angles.grow(2*operator.M, 1, half)
	} else {
		angles.grow(2, operator.M, half)
	}
	tables := make([]*ropeTable, most)
	// turn rotates rows [r0,r1) of a group by a table whose first row is that of row from
	width := (group + 2) * operator.HeadDim
	turn := func(t *ropeTable, kvHead, from, r0, r1 int) { // the group's queries and its key lie together
		kernel(output.from(r0, kvHead*width), t.cos[(r0-from)*half:], t.sin[(r0-from)*half:], r1-r0, group+1,
			operator.HeadDim, rotary)
	}
	step := b.byGroups(8*(operator.Heads+operator.KVHeads)*rotary, func(_, kvHead, r0, r1 int) {
		if input != output {
			copyColumns(output, input, kvHead*width, width, r0, r1)
		}
		if !operator.Batch {
			turn(tables[0], kvHead, 0, r0, r1)
			return
		}
		for row := r0; row < r1; row++ {
			turn(tables[row], kvHead, row, row, row+1)
		}
	})
	step.prepare = func(rows int) {
		if !operator.Batch {
			tables[0] = angles.get(rotationOf(&b.op, table, exe.Scalars.Pos, exe.Scalars.Seq), rows)
			return
		}
		for row := range rows {
			tables[row] = angles.get(rotationOf(&b.op, table, exe.At(row).Pos, exe.Seq(row)), 1)
		}
	}
	return step, nil
}

// rotationOf chooses frequencies and amplitude by the length of the sequence (see op.Op). table has the frequencies of
// short sequences, and behind them those of long ones where there are some.
func rotationOf(operator *op.Op, table []float32, pos, length int) rotation {
	half := operator.Rotary() / 2
	params := rotation{freq: table[:half], growth: 1, amplitude: operator.Amplitude, pos: pos}
	if operator.LongFrom > 0 && length > operator.LongFrom {
		if operator.NTK != 0 {
			params.growth = operator.NTK*float64(length)/float64(operator.LongFrom) - (operator.NTK - 1)
		} else {
			params.freq, params.amplitude = table[half:], operator.LongAmplitude
		}
	}
	if params.amplitude == 0 {
		params.amplitude = 1
	}
	return params
}
