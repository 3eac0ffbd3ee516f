package pack

import "math"

// feedback is the state of error feedback for the columns of one tile.
type feedback struct {
	imp   *Importance
	cross []float32 // see Importance.cross
	block int       // rows
	low   int32     // smallest code
	high  int32     // largest code
	state []float32 // [TileN,rank]: what the errors so far are along each direction
	// want is [TileN,block]: what the rows of a block are to be, from the errors before it.
	want []float32
}

// newFeedback returns nil if no correlations are known: then errors cannot make up for each other.
func newFeedback(imp *Importance, block int, low, high int32) *feedback {
	if imp == nil || imp.rank == 0 {
		return nil
	}
	return &feedback{imp: imp, cross: imp.blockGains(block), block: block, low: low, high: high,
		state: make([]float32, TileN*imp.rank), want: make([]float32, TileN*block)}
}

// targets returns what rows row, row+1, ... of a column are to be: their values, less what the errors of earlier blocks
// move them by. The sums run in two halves, for speed; the order of additions decides
// packed bytes, and must stay.
func (f *feedback) targets(values []float32, row, column int) []float32 {
	rank := f.imp.rank
	state := f.state[column*rank : (column+1)*rank]
	out := f.want[column*f.block : column*f.block+len(values)]

	i := 0
	for ; i+2 <= len(values); i += 2 { // two rows share the loads of the state
		g0 := f.imp.gain[(row+i)*rank : (row+i+1)*rank][:len(state)]
		g1 := f.imp.gain[(row+i+1)*rank : (row+i+2)*rank][:len(state)]
		var a0, a1, b0, b1 float32
		j := 0
		for ; j+2 <= len(state); j += 2 {
			a0 += float32(g0[j] * state[j])
			b0 += float32(g1[j] * state[j])
			a1 += float32(g0[j+1] * state[j+1])
			b1 += float32(g1[j+1] * state[j+1])
		}
		if j < len(state) {
			a0 += float32(g0[j] * state[j])
			b0 += float32(g1[j] * state[j])
		}
		out[i], out[i+1] = values[i]-(a0+a1), values[i+1]-(b0+b1)
	}

	for ; i < len(values); i++ {
		var sum float32
		for j, gain := range f.imp.gain[(row+i)*rank : (row+i+1)*rank] {
			sum += float32(gain * state[j])
		}
		out[i] = values[i] - sum
	}
	return out
}

// codes quantises rows first, first+1, ... of a column, whose values are known and whose targets are want, with a scale
// of step. Errors within the block move the targets of its later rows at once; those of the whole block go into the
// state for the blocks behind it.
func (f *feedback) codes(q []int32, values, want []float32, first, column int, step float32) {
	var misses [Block128]float32
	inv := float32(0)
	if step != 0 {
		inv = 1 / step
	}

	for i, target := range want {
		row := f.cross[(first+i)*f.block : (first+i)*f.block+i]
		var s0, s1 float32
		j := 0
		for ; j+2 <= len(row); j += 2 {
			s0 += float32(row[j] * misses[j])
			s1 += float32(row[j+1] * misses[j+1])
		}
		if j < len(row) {
			s0 += float32(row[j] * misses[j])
		}
		// Far beyond the codes rounding by mantissa bits would fail.
		level := (target - (s0 + s1)) * inv
		if !(abs(level) < 1024) {
			level = float32(math.Copysign(1024, float64(level)))
		}
		q[i] = max(f.low, min(f.high, roundEven(level)))
		misses[i] = float32(float32(q[i])*step) - values[i]
	}

	rank := f.imp.rank
	state := f.state[column*rank : (column+1)*rank]
	i := 0
	for ; i+4 <= len(values); i += 4 {
		v0 := f.imp.dir[(first+i)*rank : (first+i+1)*rank][:len(state)]
		v1 := f.imp.dir[(first+i+1)*rank : (first+i+2)*rank][:len(state)]
		v2 := f.imp.dir[(first+i+2)*rank : (first+i+3)*rank][:len(state)]
		v3 := f.imp.dir[(first+i+3)*rank : (first+i+4)*rank][:len(state)]
		e0, e1, e2, e3 := misses[i], misses[i+1], misses[i+2], misses[i+3]
		for j := range state {
			state[j] += float32(float32(e0*v0[j])+float32(e1*v1[j])) + float32(float32(e2*v2[j])+float32(e3*v3[j]))
		}
	}
	for ; i < len(values); i++ {
		for j, level := range f.imp.dir[(first+i)*rank : (first+i+1)*rank] {
			state[j] += float32(misses[i] * level)
		}
	}
}
