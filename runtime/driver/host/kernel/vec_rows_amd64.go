package kernel

import (
	"math"

	"github.com/hetc/hetc/planir/op"
)

// Most functions on rows are the same for all tiers, since AVX2 is enough to keep up with the
// caches. Those that divide or compute exponentials have kernels of 512 bits too, with the same bits. The assembly
// takes multiples of vecN numbers, and the portable functions do the rest. Those whose names begin with vec implement
// the fields of Set of the same name.
const vecN = 16

// quantRows is the function of that name in vectors; what follows the last whole vector of a row is computed one by
// one.
func (t tier) quantRows(y Quantised, x Matrix[float32], m, n int) int {
	whole := n &^ (vecN - 1)
	if whole == 0 {
		return quantRows(y, x, m, n)
	}
	for line := range m {
		row, out := x.row(line, n), y.Codes.row(line, n)
		top := magnitude(row[whole:], maxAbs256(&row[0], whole))
		if top >= notFinite {
			return line
		}
		step := math.Float32frombits(top) / 127
		y.Scale[line] = step
		if step == 0 {
			for col := range out {
				out[col] = 128
			}
			continue
		}
		t.quant(&out[0], &row[0], whole, step)
		// the same rounding as the assembly's
		for col, value := range row[whole:] {
			i := int32(math.Float32bits(value/step+0x1.8p23)) - 0x4b400000
			out[whole+col] = uint8(128 + max(-127, min(127, i)))
		}
	}
	return -1
}

// quantStatic leaves rows whose largest quotient overflows the assembly's conversion to Go.
func (t tier) quantStatic(y Quantised, from []float32, x Matrix[float32], m, n int) int {
	const most = 1 << 30 // what the assembly's conversion to integers can take
	whole := n &^ (vecN - 1)
	if whole == 0 {
		return quantStatic(y, from, x, m, n)
	}
	for line := range m {
		row, out := x.row(line, n), y.Codes.row(line, n)
		top := magnitude(row[whole:], maxAbs256(&row[0], whole))
		if top >= notFinite {
			return line
		}
		largest := math.Float32frombits(top)
		step := op.StaticScale(from, largest)
		y.Scale[line] = step
		done := 0
		if largest/step < most {
			t.quant(&out[0], &row[0], whole, step)
			done = whole
		}
		for col, value := range row[done:] {
			out[done+col] = saturate(value / step)
		}
	}
	return -1
}

// The steps between which quant512 rounds quotients as a division does.
const leastStep, mostStep = 0x1p-60, 0x1p60

// quant calls the kernel of the tier.
func (t tier) quant(y *uint8, x *float32, n int, step float32) {
	if t.wide() && step >= leastStep && step <= mostStep {
		quant512(y, x, n, step, 1/step)
		return
	}
	quant256(y, x, n, step)
}

// norm sums squares by the assembly in another order than the function, hence the tolerance in Set.
func (t tier) norm(y, x Matrix[float32], gain []float32, eps float64, m, n int) {
	whole := n &^ (vecN - 1)
	if whole == 0 {
		norm(y, x, gain, eps, m, n)
		return
	}
	gain = gain[:n]
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		var sum float64
		if t.wide() {
			sum = sumSquares512(&row[0], whole)
		} else {
			sum = sumSquares256(&row[0], whole, 0)
		}
		for _, value := range row[whole:] {
			sum += float64(value) * float64(value)
		}
		inv := rootInverse(sum/float64(n) + eps)
		if t.wide() {
			norm512(&out[0], &row[0], &gain[0], whole, inv)
		} else {
			norm256(&out[0], &row[0], &gain[0], whole, 0, inv)
		}
		for col := whole; col < n; col++ {
			out[col] = gain[col] * float32(float64(row[col])*inv)
		}
	}
}

// vecLayerNorm is layerNorm in vectors.
func vecLayerNorm(y, x Matrix[float32], gain, bias []float32, eps float64, m, n int) {
	whole := n &^ (vecN - 1)
	if whole == 0 {
		layerNorm(y, x, gain, bias, eps, m, n)
		return
	}
	gain, bias = gain[:n], bias[:n]
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		mean := mean(row)
		sum := sumSquares256(&row[0], whole, mean)
		for _, value := range row[whole:] {
			off := float64(value) - mean
			sum += off * off
		}
		inv := rootInverse(sum/float64(n) + eps)
		norm256(&out[0], &row[0], &gain[0], whole, mean, inv)
		add256(&out[0], &out[0], &bias[0], whole)
		for col := whole; col < n; col++ {
			out[col] = gain[col]*float32((float64(row[col])-mean)*inv) + bias[col]
		}
	}
}

// glu needs whole vectors of gate columns.
func (t tier) glu(y, x Matrix[float32], act string, interleave, m, n int) {
	if interleave%vecN != 0 || n == 0 || act == op.ReLU {
		glu(y, x, act, interleave, m, n)
		return
	}
	for line := range m {
		row, out := x.row(line, 2*n), y.row(line, n)
		switch groups := n / interleave; {
		case t.wide() && act == op.SiLU:
			siluMul512(&out[0], &row[0], interleave, groups)
		case t.wide() && act == op.GELUTanh:
			geluTanhMul512(&out[0], &row[0], interleave, groups)
		case act == op.SiLU:
			siluMul256(&out[0], &row[0], interleave, groups)
		case act == op.GELU:
			geluMul256(&out[0], &row[0], interleave, groups)
		case act == op.GELUTanh:
			geluTanhMul256(&out[0], &row[0], interleave, groups)
		}
	}
}

// vecActivate is activate in vectors.
func vecActivate(y, x Matrix[float32], act string, m, n int) {
	whole := n &^ (vecN - 1)
	if act == op.ReLU {
		whole = 0
	}
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		switch act {
		case op.SiLU:
			silu256(&out[0], &row[0], whole)
		case op.GELU:
			gelu256(&out[0], &row[0], whole)
		case op.GELUTanh:
			geluTanh256(&out[0], &row[0], whole)
		}
		activateRow(out[whole:], row[whole:], act)
	}
}

// vecSoftcap is softcapRow of each row, in vectors.
func vecSoftcap(y, x Matrix[float32], limit float64, m, n int) {
	whole := n &^ (vecN - 1)
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		softcap256(&out[0], &row[0], whole, float32(1/limit), float32(limit))
		softcapRow(out[whole:], row[whole:], float32(limit))
	}
}

// vecGate copies rows and scales them by the sigmoid of their gates.
func vecGate(y, x, gate Matrix[float32], m, n int) {
	for row := range m {
		out := y.row(row, n)
		copy(out, x.row(row, n))
		vecScale(out, float64(1/(1+expf(-gate.Data[row*gate.Stride]))))
	}
}

// vecScale rounds s to float32 once, as scale does.
func vecScale(x []float32, s float64) {
	whole := len(x) &^ (vecN - 1)
	if whole > 0 {
		scale256(&x[0], whole, float32(s))
	}
	scale(x[whole:], s)
}

// combine is the product of one row of weights with the fan rows of a token.
func (t tier) combine(y, x, weight Matrix[float32], m, fan, n int) {
	whole := n &^ (TileN - 1)
	for row := range m {
		out, shares, rows := y.row(row, n), weight.row(row, fan), x.From(row*fan, 0)
		_ = rows.row(fan-1, n) // the assembly trusts its arguments
		clear(out)
		for col := 0; col < whole; col += TileN {
			t.addF32(1, y.From(row, col), weight.From(row, 0), fan, rows.From(0, col))
		}
		// The other columns are rounded in the same way, so that their bits do not depend on where a call ends.
		tail := out[whole:]
		for j, share := range shares {
			for col, value := range rows.row(j, n)[whole:] {
				tail[col] = fma32(share, value, tail[col])
			}
		}
	}
}

// fma32 is a*b + c rounded once. The product is exact in float64. The sum is rounded to odd there,
// by its exact error (Knuth's two-sum), so that rounding it again to float32 is as if it were
// exact.
func fma32(a, b, c float32) float32 {
	product, addend := float64(a)*float64(b), float64(c)
	sum := product + addend
	back := sum - product
	if lost := (product - (sum - back)) + (addend - back); lost != 0 && !math.IsInf(sum, 0) && !math.IsNaN(sum) {
		if bits := math.Float64bits(sum); bits&1 == 0 {
			if (lost > 0) == (sum > 0) {
				bits++
			} else {
				bits--
			}
			sum = math.Float64frombits(bits)
		}
	}
	return float32(sum)
}

// vecAdd is a+b row by row.
func vecAdd(y, a, b Matrix[float32], m, n int) {
	whole := n &^ (vecN - 1)
	for row := range m {
		out, left, right := y.row(row, n), a.row(row, n), b.row(row, n)
		add256(&out[0], &left[0], &right[0], whole)
		for col := whole; col < n; col++ {
			out[col] = left[col] + right[col]
		}
	}
}

// vecRope needs whole vectors of pairs.
func vecRope(x Matrix[float32], cos, sin []float32, m, heads, headDim, rotary int) {
	half := rotary / 2
	if half%vecN != 0 || half == 0 {
		rope(x, cos, sin, m, heads, headDim, rotary)
		return
	}
	for row := range m {
		cosines, sines := cos[row*half:(row+1)*half], sin[row*half:(row+1)*half]
		for index := range heads {
			head := x.row(row, heads*headDim)[index*headDim:][:rotary]
			rope256(&head[0], &head[half], &cosines[0], &sines[0], half)
		}
	}
}

// vecBlockSums leaves a last, incomplete block to Go.
func vecBlockSums(sums Matrix[int32], x Matrix[uint8], m, k int) {
	blocks := k / BlockK
	for line := range m {
		if blocks > 0 {
			row, out := x.row(line, k), sums.row(line, blocks)
			blockSums256(&out[0], &row[0], blocks)
		}
		if k%BlockK != 0 {
			blockSums(sums.From(line, blocks), x.From(line, blocks*BlockK), 1, k%BlockK)
		}
	}
}

// vecFromF16 widens halves, eight at a time.
func vecFromF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	whole := len(dst) &^ 7
	if whole > 0 {
		fromF16256(&dst[0], &src[0], whole)
	}
	fromF16(dst[whole:], src[whole:])
}

// vecFromBF16 widens bfloat16 in vectors.
func vecFromBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	whole := len(dst) &^ (vecN - 1)
	if whole > 0 {
		fromBF16256(&dst[0], &src[0], whole)
	}
	fromBF16(dst[whole:], src[whole:])
}

// vecToF16 rounds to halves, and reports whether all results are finite.
func vecToF16(dst []uint16, src []float32) bool {
	dst = dst[:len(src)]
	whole := len(src) &^ (vecN - 1)
	finite := true
	if whole > 0 {
		finite = toF16256(&dst[0], &src[0], whole) == 0
	}
	return toF16(dst[whole:], src[whole:]) && finite
}

// vecToBF16 rounds to bfloat16, and reports whether all results are finite.
func vecToBF16(dst []uint16, src []float32) bool {
	dst = dst[:len(src)]
	whole := len(src) &^ (vecN - 1)
	finite := true
	if whole > 0 {
		finite = toBF16256(&dst[0], &src[0], whole) == 0
	}
	return toBF16(dst[whole:], src[whole:]) && finite
}

// vecRoundBF16 is roundBF16 in vectors.
func vecRoundBF16(x []float32) {
	whole := len(x) &^ (vecN - 1)
	if whole > 0 {
		roundBF16256(&x[0], whole)
	}
	roundBF16(x[whole:])
}

// vecPeak is peak in vectors.
func vecPeak(x []float32) float32 {
	whole := len(x) &^ (vecN - 1)
	if whole == 0 {
		return peak(x)
	}
	top := peak256(&x[0], whole)
	for _, value := range x[whole:] {
		top = max(top, value)
	}
	return top
}

// vecBelow is below in vectors.
func vecBelow(y, x []float32, top float32) {
	whole := len(x) &^ (vecN - 1)
	if whole > 0 {
		below256(&y[0], &x[0], whole, top)
	}
	below(y[whole:], x[whole:], top)
}

// vecPoolBelow is poolBelow in vectors.
func vecPoolBelow(y, x []float32, top float32) {
	whole := len(x) &^ (vecN - 1)
	if whole > 0 {
		poolBelow256(&y[0], &x[0], whole, top)
	}
	poolBelow(y[whole:], x[whole:], top)
}

// vecFetch asks for the whole lines of b, which may be empty.
func vecFetch(b []byte) {
	const line = 64
	if lines := len(b) / line; lines > 0 {
		fetchRows(&b[0], 0, 1, lines)
	}
}
