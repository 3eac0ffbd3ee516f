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
	k := len(meanSquare)
	if k < 1 || k > maxDim || len(directions)%k != 0 {
		return nil, diag.New(diag.ClassInput, "importance: got %d mean squares and %d values of directions, want a whole number of directions for 1..%d rows", k, len(directions), maxDim)
	}
	p := &Importance{k: k, rank: len(directions) / k, weight: make([]float32, k), dir: directions, cross: map[int][]float32{}}
	if p.rank > maxRank {
		return nil, diag.New(diag.ClassInput, "importance: got %d directions, want at most %d", p.rank, maxRank)
	}
	mean := 0.0
	for i, x := range meanSquare {
		if !finite(x) || x < 0 {
			return nil, diag.New(diag.ClassInput, "importance: mean square %d is %v, want finite and not negative", i, x)
		}
		mean += float64(x) / float64(k)
	}
	for i, x := range directions {
		if !finite(x) {
			return nil, diag.New(diag.ClassInput, "importance: direction %d of row %d is %v, want a finite number", i%p.rank, i/p.rank, x)
		}
	}
	if mean == 0 { // nothing is known
		mean = 1
	}
	// A channel that was silent while calibrating may speak later: it counts a little all the same.
	const damp = 0.01
	for i, x := range meanSquare {
		p.weight[i] = float32((float64(x)/mean + damp) / (1 + damp))
	}
	if p.rank == 0 {
		return p, nil
	}
	p.gain = make([]float32, len(directions))
	r := p.rank
	g := make([]float64, r*r)
	gv := make([]float64, r)
	for i := range r {
		g[i*r+i] = 1
	}
	for row := k - 1; row >= 0; row-- {
		v := directions[row*r : (row+1)*r]
		along := 0.0 // of the mean square
		for _, x := range v {
			along += float64(float64(x) * float64(x))
		}
		d := max(float64(meanSquare[row])-along, 0.01*float64(meanSquare[row])) + float64(damp*mean)
		den := d
		for i := range r {
			sum := 0.0
			for j, x := range v {
				sum += float64(g[i*r+j] * float64(x))
			}
			gv[i] = sum
			den += float64(sum * float64(v[i]))
		}
		for i := range r {
			q := gv[i] / den
			p.gain[row*r+i] = float32(q)
			for j := range r {
				g[i*r+j] -= float64(q * gv[j])
			}
		}
	}
	return p, nil
}

// maxRank is the largest number of directions.
const maxRank = 256

// rows is the importance of rows from on, without directions.
func (p *Importance) rows(from int) *Importance {
	return &Importance{k: p.k - from, weight: p.weight[from:]}
}

// blockGains are the products of gains and directions within blocks.
func (p *Importance) blockGains(block int) []float32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.cross[block]; ok {
		return c
	}
	r := p.rank
	c := make([]float32, p.k*block)
	for k := range p.k {
		g := p.gain[k*r : (k+1)*r]
		for j := k / block * block; j < k; j++ {
			var sum float32
			for i, x := range p.dir[j*r : (j+1)*r] {
				sum += float32(g[i] * x)
			}
			c[k*block+j%block] = sum
		}
	}
	p.cross[block] = c
	return c
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

// largest is the index of the largest magnitude, the first of equals.
func largest(x []float32) int {
	at := 0
	for i, v := range x {
		if abs(v) > abs(x[at]) {
			at = i
		}
	}
	return at
}

// scale returns the float16 scale d of a block x that makes sum w (x - d q)^2 small for codes q = round(x/d) in
// -8..7, never larger than the scale that maps the largest magnitude to -8 does; w nil is all ones. An infinite
// scale means that this one is too large for a float16, 0 that all values are too small for one.
func (s *blockSearch) scale(x, w []float32) uint16 {
	at := largest(x)
	h := number.FloatToHalf(x[at] / -8)
	if h&0x7c00 == 0x7c00 {
		return h
	}
	if h&0x7fff == 0 {
		return 0 // never -0
	}
	top := abs(x[at])
	u := s.u[:len(x)]
	inv := 1 / top
	for i, v := range x {
		u[i] = v * inv
	}
	best, _, _ := s.loss(u, w, number.HalfToFloat(h)*inv)
	d := s.candidate(u, w)
	for range 3 {
		c := number.FloatToHalf(d * top)
		if c&0x7fff == 0 || c&0x7c00 == 0x7c00 || c == h {
			break
		}
		loss, a, b := s.loss(u, w, number.HalfToFloat(c)*inv)
		if !(loss < best) {
			break
		}
		best, h = loss, c
		d = a / b // the least-squares scale of these codes; b is not 0, or the loss were no smaller
	}
	return h
}

// loss is sum w (u - d q)^2, with sum w u q and sum w q^2 of its codes.
func (s *blockSearch) loss(u, w []float32, d float32) (loss, a, b float32) {
	inv := 1 / d
	if w == nil {
		for _, v := range u {
			q := float32(quant4(v * inv))
			e := v - float32(d*q)
			loss += float32(e * e)
			a += float32(v * q)
			b += float32(q * q)
		}
		return loss, a, b
	}
	w = w[:len(u)]
	for i, v := range u {
		q := float32(quant4(v * inv))
		e := v - float32(d*q)
		wq := w[i] * q
		loss += float32(w[i] * float32(e*e))
		a += float32(wq * v)
		b += float32(wq * q)
	}
	return loss, a, b
}

// candidate is the best scale of those searched, as least squares give it for the codes that each one makes: all
// codes change at known scales, so that sums over codes need only what every bin adds.
func (s *blockSearch) candidate(u, w []float32) float32 {
	for i := range s.a {
		clear(s.a[i][:])
		clear(s.b[i][:])
	}
	var a, b float32 // at searchFrom
	for i, v := range u {
		m := abs(v)
		if m*searchTo < 0.5 {
			continue
		}
		wi := float32(1)
		if w != nil {
			wi = w[i]
		}
		wm := wi * m
		q := float32(int32(float32(m*searchFrom) + 0.5))
		a += float32(wm * q)
		b += float32(wi * float32(q*q))
		step := searchStep / m
		next := float32((q+0.5)*step) - searchFrom*searchStep // in bins
		for q < 8 && next < searchBins {
			side := 0
			if q == 7 {
				side = 1
				if v < 0 {
					side = 2
				}
			}
			bin := int(next) & (searchBins - 1) // next is not negative but for rounding
			s.a[side][bin] += wm
			s.b[side][bin] += float32(wi * (2*q + 1))
			q++
			next += step
		}
	}
	var best, d float32
	a1, b1, a2, b2 := a, b, a, b // 8 is the code of positive values: of a negative scale; of negative ones
	for i := range searchBins {
		a1 += s.a[0][i] + s.a[1][i]
		b1 += s.b[0][i] + s.b[1][i]
		a2 += s.a[0][i] + s.a[2][i]
		b2 += s.b[0][i] + s.b[2][i]
		if g := a1 * a1; g > float32(best*b1) {
			best, d = g/b1, -a1/b1
		}
		if g := a2 * a2; g > float32(best*b2) {
			best, d = g/b2, a2/b2
		}
	}
	return d
}

// quant4 is the code of a value in units of its scale, which is not large.
func quant4(x float32) int32 { return max(-8, min(7, roundEven(x))) }

// Scales of 4-bit columns are searched between the largest magnitude over columnFrom, which clips nothing, and over
// columnTo.
const (
	columnFrom = 7
	columnBins = 64
	columnStep = 4 // bins per unit
	columnTo   = columnFrom + columnBins/columnStep
)

// columnSearch finds the scales of the 4-bit columns of a tile.
type columnSearch [TileN]struct {
	top  float32             // largest magnitude
	a, b float64             // sums w|u|q and w q^2 of the codes at columnFrom, u the values over top
	da   [columnBins]float64 // what passing a bin adds to them
	db   [columnBins]float64
}

// add counts values x of a column whose largest magnitude is known; errors of theirs cost w, nil is all ones.
func (s *columnSearch) add(c int, x, w []float32) {
	p := &s[c]
	if p.top == 0 {
		return
	}
	for i, v := range x {
		m := float64(abs(v)) / float64(p.top)
		if m*columnTo < 0.5 {
			continue
		}
		wi := 1.0
		if w != nil {
			wi = float64(w[i])
		}
		wm := wi * m
		q := min(7, math.Floor(float64(m*columnFrom)+0.5))
		p.a += float64(wm * q)
		p.b += float64(wi * float64(q*q))
		step := columnStep / m
		for next := float64((q+0.5)*step) - columnFrom*columnStep; q < 7 && next < columnBins; next += step {
			bin := max(0, int(next))
			p.da[bin] += wm
			p.db[bin] += float64(wi * float64(2*q+1))
			q++
		}
	}
}

// scale is the scale d of column c that makes sum w (x - d q)^2 small for codes q = round(x/d) in -7..7: of those
// searched the best, as least squares give it for the codes it makes. 0 where all values are.
func (s *columnSearch) scale(c int) float32 {
	p := &s[c]
	if p.top == 0 {
		return 0
	}
	a, b := p.a, p.b
	best, d := -1.0, 0.0
	for i := -1; i < columnBins; i++ {
		if i >= 0 {
			a += p.da[i]
			b += p.db[i]
		}
		if gain := float64(a*a) / b; b > 0 && gain > best {
			best, d = gain, a/b
		}
	}
	return float32(d * float64(p.top))
}

// feedback is the state of error feedback for the columns of one tile.
type feedback struct {
	imp   *Importance
	cross []float32
	block int
	low   int32     // smallest code
	state []float32 // [TileN,rank]: what the errors so far are along each direction
	x     []float32 // [TileN,block]: what the rows of a block are to be, from the errors before it
}

func newFeedback(imp *Importance, block int, low int32) *feedback {
	if imp == nil || imp.rank == 0 {
		return nil
	}
	return &feedback{imp: imp, cross: imp.blockGains(block), block: block, low: low, state: make([]float32, TileN*imp.rank), x: make([]float32, TileN*block)}
}

// targets writes what rows k, k+1, ... of column c are to be, for their values x.
func (f *feedback) targets(x []float32, k, c int) []float32 {
	r := f.imp.rank
	s := f.state[c*r : (c+1)*r]
	out := f.x[c*f.block : c*f.block+len(x)]
	i := 0
	for ; i+2 <= len(x); i += 2 { // two rows share the loads of the state
		g0 := f.imp.gain[(k+i)*r : (k+i+1)*r][:len(s)]
		g1 := f.imp.gain[(k+i+1)*r : (k+i+2)*r][:len(s)]
		var a0, a1, b0, b1 float32
		j := 0
		for ; j+2 <= len(s); j += 2 {
			a0 += float32(g0[j] * s[j])
			b0 += float32(g1[j] * s[j])
			a1 += float32(g0[j+1] * s[j+1])
			b1 += float32(g1[j+1] * s[j+1])
		}
		if j < len(s) {
			a0 += float32(g0[j] * s[j])
			b0 += float32(g1[j] * s[j])
		}
		out[i], out[i+1] = x[i]-(a0+a1), x[i+1]-(b0+b1)
	}
	for ; i < len(x); i++ {
		var sum float32
		for j, g := range f.imp.gain[(k+i)*r : (k+i+1)*r] {
			sum += float32(g * s[j])
		}
		out[i] = x[i] - sum
	}
	return out
}

// codes quantises rows k, k+1, ... of column c, whose values are x and whose targets are want, with scale d.
func (f *feedback) codes(q []int32, x, want []float32, k, c int, d float32) {
	var e [Block128]float32
	inv := float32(0)
	if d != 0 {
		inv = 1 / d
	}
	for i, t := range want {
		row := f.cross[(k+i)*f.block : (k+i)*f.block+i]
		var s0, s1 float32
		j := 0
		for ; j+2 <= len(row); j += 2 {
			s0 += float32(row[j] * e[j])
			s1 += float32(row[j+1] * e[j+1])
		}
		if j < len(row) {
			s0 += float32(row[j] * e[j])
		}
		// Far beyond the codes rounding by mantissa bits would fail.
		v := (t - (s0 + s1)) * inv
		if !(abs(v) < 1024) {
			v = float32(math.Copysign(1024, float64(v)))
		}
		q[i] = max(f.low, quant4(v))
		e[i] = float32(float32(q[i])*d) - x[i]
	}
	r := f.imp.rank
	s := f.state[c*r : (c+1)*r]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		v0 := f.imp.dir[(k+i)*r : (k+i+1)*r][:len(s)]
		v1 := f.imp.dir[(k+i+1)*r : (k+i+2)*r][:len(s)]
		v2 := f.imp.dir[(k+i+2)*r : (k+i+3)*r][:len(s)]
		v3 := f.imp.dir[(k+i+3)*r : (k+i+4)*r][:len(s)]
		e0, e1, e2, e3 := e[i], e[i+1], e[i+2], e[i+3]
		for j := range s {
			s[j] += float32(float32(e0*v0[j])+float32(e1*v1[j])) + float32(float32(e2*v2[j])+float32(e3*v3[j]))
		}
	}
	for ; i < len(x); i++ {
		for j, v := range f.imp.dir[(k+i)*r : (k+i+1)*r] {
			s[j] += float32(e[i] * v)
		}
	}
}
