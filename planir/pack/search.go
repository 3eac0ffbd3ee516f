package pack

import (
	"math"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
)

// Importance says which errors of a weight [K,N] matter, from what enters it: activations x whose second
// moments are E[x_i x_j], so that errors e of a column cost e' E[x x'] e.
type Importance struct {
	k, rank int
	weight  []float32 // [K], what an error of a row alone costs, 1 on the average
	dir     []float32 // [K,rank]
	gain    []float32 // [K,rank]: see NewImportance

	mu    sync.Mutex
	cross map[int][]float32 // by block length: [K,block], gain of a row times dir of each row of its block
}

// NewImportance makes the importance of K rows from the mean squares [K] of the activations that enter them and,
// where correlations are known, directions [K,R] with E[x_i x_j] close to their products for i != j (nil:
// none). Quantisation then lets later rows make up for the errors of earlier ones: with H = D + V V', V
// the directions, the rows from k on that are still free move by -D^-1 V G V' e for the errors e so far, G the inverse
// of I + sum over j >= k of v_j v_j'/d_j. It is the error feedback of GPTQ (sec. 3) for an H that is
// diagonal plus low rank. Negative, infinite and NaN values are refused.
// RATIONALE: Why do rows make up for each other's errors?
func NewImportance(meanSquare, directions []float32) (*Importance, error) {
	rows := len(meanSquare)
	if rows < 1 || rows > maxDim || len(directions)%rows != 0 {
		return nil, diag.New(diag.ClassInput,
			"importance: got %d mean squares and %d values of directions, want a whole number of directions for 1..%d rows",
			rows, len(directions), maxDim)
	}
	importance := &Importance{k: rows, rank: len(directions) / rows, weight: make([]float32, rows), dir: directions,
		cross: map[int][]float32{}}
	if importance.rank > maxRank {
		return nil, diag.New(diag.ClassInput, "importance: got %d directions, want at most %d", importance.rank,
			maxRank)
	}
	mean := 0.0
	for i, value := range meanSquare {
		if !finite(value) || value < 0 {
			return nil, diag.New(diag.ClassInput, "importance: mean square %d is %v, want finite and not negative", i,
				value)
		}
		mean += float64(value) / float64(rows)
	}
	for i, value := range directions {
		if !finite(value) {
			return nil, diag.New(diag.ClassInput, "importance: direction %d of row %d is %v, want a finite number",
				i%importance.rank, i/importance.rank, value)
		}
	}
	if mean == 0 { // nothing is known
		mean = 1
	}
	for i, value := range meanSquare {
		importance.weight[i] = float32((float64(value)/mean + damp) / (1 + damp))
	}
	if importance.rank > 0 {
		importance.gain = feedbackGains(meanSquare, directions, mean)
	}
	return importance, nil
}

// damp is the weight of a channel that was silent during calibration, as a share of the mean: it may be active later.
const damp = 0.01

// feedbackGains returns the gains [K,R] of each row's error feedback, from the last row to the first. Here gain is G:
// each row adds v v'/d to the matrix that it is the inverse of, a change of rank one (Sherman-Morrison).
func feedbackGains(meanSquare, directions []float32, mean float64) []float32 {
	rows := len(meanSquare)
	rank := len(directions) / rows
	out := make([]float32, len(directions))
	gain := make([]float64, rank*rank)
	gv := make([]float64, rank)
	for i := range rank {
		gain[i*rank+i] = 1
	}
	for row := rows - 1; row >= 0; row-- {
		own := directions[row*rank : (row+1)*rank]
		along := 0.0 // of the mean square: what directions explain
		for _, value := range own {
			along += float64(float64(value) * float64(value))
		}
		diagonal := max(float64(meanSquare[row])-along, 0.01*float64(meanSquare[row])) + float64(damp*mean)
		den := diagonal
		for i := range rank {
			sum := 0.0
			for j, value := range own {
				sum += float64(gain[i*rank+j] * float64(value))
			}
			gv[i] = sum
			den += float64(sum * float64(own[i]))
		}
		for i := range rank {
			factor := gv[i] / den
			out[row*rank+i] = float32(factor)
			for j := range rank {
				gain[i*rank+j] -= float64(factor * gv[j])
			}
		}
	}
	return out
}

// maxRank is the largest number of directions.
const maxRank = 256

// rows returns the importance of rows from on, without directions.
func (p *Importance) rows(from int) *Importance {
	return &Importance{k: p.k - from, weight: p.weight[from:]}
}

// blockGains returns the products of gains and directions within blocks.
func (p *Importance) blockGains(block int) []float32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.cross[block]; ok {
		return known
	}
	rank := p.rank
	gains := make([]float32, p.k*block)
	for row := range p.k {
		own := p.gain[row*rank : (row+1)*rank]
		for j := row / block * block; j < row; j++ {
			var sum float32
			for i, value := range p.dir[j*rank : (j+1)*rank] {
				sum += float32(own[i] * value)
			}
			gains[row*block+j%block] = sum
		}
	}
	p.cross[block] = gains
	return gains
}

// Searched reports whether packing searches the scales of a weight scheme: then an Importance changes how it rounds.
func Searched(scheme string) bool {
	return scheme == "q4b32" || scheme == "q4b128" || mostCode(scheme) > 0
}

// Scales are searched between the largest magnitude over searchTo and over searchFrom: candidates that
// clip it, and those that spend fewer codes on it.
const (
	searchFrom = 6.25
	searchBins = 64
	searchStep = 16 // bins per unit
	searchTo   = searchFrom + searchBins/searchStep
)

// blockSearch finds the scale of 4-bit blocks.
type blockSearch struct {
	u [Block128]float32 // values over the largest magnitude

	// What passing a bin adds to sum w|u|q and sum w q^2: for all, and where the code of magnitude 8 is that
	// of positive or of negative values.
	a, b [3][searchBins]float32
}

// largest returns the index of the largest magnitude, the first of equals.
func largest(values []float32) int {
	at := 0
	for i, value := range values {
		if abs(value) > abs(values[at]) {
			at = i
		}
	}
	return at
}

// scale returns the float16 scale d of a block x that makes sum w (x - d q)^2 small for codes q = round(x/d) in
// -8..7, never larger than the scale that maps the largest magnitude to -8 does; w nil is all ones. An infinite
// scale means that this one is too large for a float16, 0 that all values are too small for one.
func (s *blockSearch) scale(values, weight []float32) uint16 {
	at := largest(values)
	found := number.FloatToHalf(values[at] / -8)
	if found&0x7c00 == 0x7c00 {
		return found
	}
	if found&0x7fff == 0 {
		return 0 // never -0
	}
	top := abs(values[at])
	scaled := s.u[:len(values)]
	inv := 1 / top
	for i, value := range values {
		scaled[i] = value * inv
	}
	// From the best candidate on, codes and scale improve each other in turn, while the loss falls.
	best, _, _ := s.loss(scaled, weight, number.HalfToFloat(found)*inv)
	step := s.candidate(scaled, weight)
	for range 3 {
		candidate := number.FloatToHalf(step * top)
		if candidate&0x7fff == 0 || candidate&0x7c00 == 0x7c00 || candidate == found {
			break
		}
		loss, a, b := s.loss(scaled, weight, number.HalfToFloat(candidate)*inv)
		if !(loss < best) {
			break
		}
		best, found = loss, candidate
		step = a / b // the least-squares scale of these codes; b is not 0, or the loss were no smaller
	}
	return found
}

// loss returns the sum of w (u - d q)^2, with the sums of w u q and w q^2 of its codes.
func (s *blockSearch) loss(scaled, weight []float32, step float32) (loss, a, b float32) {
	inv := 1 / step
	if weight == nil {
		for _, value := range scaled {
			code := float32(quant4(value * inv))
			miss := value - float32(step*code)
			loss += float32(miss * miss)
			a += float32(value * code)
			b += float32(code * code)
		}
		return loss, a, b
	}
	weight = weight[:len(scaled)]
	for i, value := range scaled {
		code := float32(quant4(value * inv))
		miss := value - float32(step*code)
		wq := weight[i] * code
		loss += float32(weight[i] * float32(miss*miss))
		a += float32(wq * value)
		b += float32(wq * code)
	}
	return loss, a, b
}

// candidate returns the best scale of those searched, as least squares give it for the codes that each one makes: all
// codes change at known scales, so that sums over codes need only what every bin adds.
func (s *blockSearch) candidate(scaled, weight []float32) float32 {
	for i := range s.a {
		clear(s.a[i][:])
		clear(s.b[i][:])
	}
	// Codes at the first candidate, and the bins in which they go up by one as the scale shrinks.
	var a, b float32 // sum w|u|q and sum w q^2 at searchFrom
	for i, value := range scaled {
		magnitude := abs(value)
		if magnitude*searchTo < 0.5 {
			continue
		}
		wi := float32(1)
		if weight != nil {
			wi = weight[i]
		}
		wm := wi * magnitude
		code := float32(int32(float32(magnitude*searchFrom) + 0.5))
		a += float32(wm * code)
		b += float32(wi * float32(code*code))
		step := searchStep / magnitude
		next := float32((code+0.5)*step) - searchFrom*searchStep // in bins
		for code < 8 && next < searchBins {
			side := 0
			if code == 7 {
				side = 1
				if value < 0 {
					side = 2
				}
			}
			bin := int(next) & (searchBins - 1) // next is not negative but for rounding
			s.a[side][bin] += wm
			s.b[side][bin] += float32(wi * (2*code + 1))
			code++
			next += step
		}
	}
	// For codes with sums a and b, least squares give the scale a/b, which lowers the loss by a^2/b.
	var best, step float32
	a1, b1, a2, b2 := a, b, a, b // 8 is the code of positive values: of a negative scale; of negative ones
	for i := range searchBins {
		a1 += s.a[0][i] + s.a[1][i]
		b1 += s.b[0][i] + s.b[1][i]
		a2 += s.a[0][i] + s.a[2][i]
		b2 += s.b[0][i] + s.b[2][i]
		if gain := a1 * a1; gain > float32(best*b1) {
			best, step = gain/b1, -a1/b1
		}
		if gain := a2 * a2; gain > float32(best*b2) {
			best, step = gain/b2, a2/b2
		}
	}
	return step
}

// quant4 returns the code of a value in units of its scale, which is not large.
func quant4(x float32) int32 { return max(-8, min(7, roundEven(x))) }

// columnBins is how many scales of a column are searched, besides the one that clips nothing.
const columnBins = 64

// columnSearch finds the scales of the columns of a tile: between the largest magnitude over most, the largest code,
// which clips nothing, and over to.
type columnSearch struct {
	most, to float64
	columns  [TileN]struct {
		top  float32             // largest magnitude
		a, b float64             // sums w|u|q and w q^2 of the codes that clip nothing, u the values over top
		da   [columnBins]float64 // what passing a bin adds to them
		db   [columnBins]float64
	}
}

// newColumnSearch searches scales for codes up to most: 7 in 4 bits, 31 in 6, of which fewer need be clipped.
func newColumnSearch(most int32) *columnSearch {
	step := 4.0 // bins per unit
	if most > 7 {
		step = 2
	}
	return &columnSearch{most: float64(most), to: float64(most) + columnBins/step}
}

// add counts values x of a column whose largest magnitude is known; errors of theirs cost w, nil is all ones.
func (s *columnSearch) add(column int, values, weight []float32) {
	sums := &s.columns[column]
	if sums.top == 0 {
		return
	}
	perUnit := columnBins / (s.to - s.most) // bins
	for i, value := range values {
		magnitude := float64(abs(value)) / float64(sums.top)
		if magnitude*s.to < 0.5 {
			continue
		}
		wi := 1.0
		if weight != nil {
			wi = float64(weight[i])
		}
		wm := wi * magnitude
		code := min(s.most, math.Floor(float64(magnitude*s.most)+0.5))
		sums.a += float64(wm * code)
		sums.b += float64(wi * float64(code*code))
		step := perUnit / magnitude
		for next := float64((code+0.5)*step) - s.most*perUnit; code < s.most && next < columnBins; next += step {
			bin := max(0, int(next))
			sums.da[bin] += wm
			sums.db[bin] += float64(wi * float64(2*code+1))
			code++
		}
	}
}

// scale returns the scale d of column c that makes sum w (x - d q)^2 small for codes q = round(x/d) in -most..most: of
// those searched the best, as least squares give it for the codes it makes. 0 where all values are.
func (s *columnSearch) scale(at int) float32 {
	column := &s.columns[at]
	if column.top == 0 {
		return 0
	}
	a, b := column.a, column.b
	best, step := -1.0, 0.0
	for i := -1; i < columnBins; i++ {
		if i >= 0 {
			a += column.da[i]
			b += column.db[i]
		}
		if gain := float64(a*a) / b; b > 0 && gain > best {
			best, step = gain, a/b
		}
	}
	return float32(step * float64(column.top))
}

// feedback is the state of error feedback for the columns of one tile.
type feedback struct {
	imp   *Importance
	cross []float32 // see Importance.cross
	block int       // rows
	low   int32     // smallest code
	high  int32     // largest code
	state []float32 // [TileN,rank]: what the errors so far are along each direction
	x     []float32 // [TileN,block]: what the rows of a block are to be, from the errors before it
}

// newFeedback returns nil if no correlations are known: then errors cannot make up for each other.
func newFeedback(imp *Importance, block int, low, high int32) *feedback {
	if imp == nil || imp.rank == 0 {
		return nil
	}
	return &feedback{imp: imp, cross: imp.blockGains(block), block: block, low: low, high: high,
		state: make([]float32, TileN*imp.rank), x: make([]float32, TileN*block)}
}

// targets returns what rows row, row+1, ... of a column are to be: their values, less what the errors of earlier blocks
// move them by. The sums run in two halves, for speed; the order of additions decides
// packed bytes, and must stay.
func (f *feedback) targets(values []float32, row, column int) []float32 {
	rank := f.imp.rank
	state := f.state[column*rank : (column+1)*rank]
	out := f.x[column*f.block : column*f.block+len(values)]
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
