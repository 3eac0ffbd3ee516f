package pack

import (
	"math"

	"github.com/hetc/hetc/internal/number"
)

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
