package kernel

import (
	"math"

	"github.com/hetc/hetc/planir/op"
)

// The functions on rows are the same for all tiers: AVX2 is enough to keep up with the caches. The
// assembly takes multiples of vecN numbers; the portable functions do the rest.

const vecN = 16

func vecQuantRows(y []uint8, ldy int, scale []float32, x []float32, ldx, m, n int) int {
	whole := n &^ (vecN - 1)
	if whole == 0 {
		return quantRows(y, ldy, scale, x, ldx, m, n)
	}
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		top := magnitude(row[whole:], maxAbs256(&row[0], whole))
		if top >= notFinite {
			return r
		}
		s := math.Float32frombits(top) / 127
		scale[r] = s
		if s == 0 {
			for c := range out {
				out[c] = 128
			}
			continue
		}
		quant256(&out[0], &row[0], whole, s)
		for c, v := range row[whole:] {
			i := int32(math.Float32bits(v/s+0x1.8p23)) - 0x4b400000
			out[whole+c] = uint8(128 + max(-127, min(127, i)))
		}
	}
	return -1
}

func vecQuantStatic(y []uint8, ldy int, scale, from []float32, x []float32, ldx, m, n int) int {
	const most = 1 << 30 // what the assembly's conversion to integers can take
	whole := n &^ (vecN - 1)
	if whole == 0 {
		return quantStatic(y, ldy, scale, from, x, ldx, m, n)
	}
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		top := magnitude(row[whole:], maxAbs256(&row[0], whole))
		if top >= notFinite {
			return r
		}
		largest := math.Float32frombits(top)
		s := op.StaticScale(from, largest)
		scale[r] = s
		done := 0
		if largest/s < most {
			quant256(&out[0], &row[0], whole, s)
			done = whole
		}
		for c, v := range row[done:] {
			out[done+c] = saturate(v / s)
		}
	}
	return -1
}

func vecNorm(y []float32, ldy int, x []float32, ldx int, gain []float32, eps float64, m, n int) {
	whole := n &^ (vecN - 1)
	if whole == 0 {
		norm(y, ldy, x, ldx, gain, eps, m, n)
		return
	}
	gain = gain[:n]
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		sum := sumSquares256(&row[0], whole, 0)
		for _, v := range row[whole:] {
			sum += float64(v) * float64(v)
		}
		inv := rootInverse(sum/float64(n) + eps)
		norm256(&out[0], &row[0], &gain[0], whole, 0, inv)
		for c := whole; c < n; c++ {
			out[c] = gain[c] * float32(float64(row[c])*inv)
		}
	}
}

func vecLayerNorm(y []float32, ldy int, x []float32, ldx int, gain, bias []float32, eps float64, m, n int) {
	whole := n &^ (vecN - 1)
	if whole == 0 {
		layerNorm(y, ldy, x, ldx, gain, bias, eps, m, n)
		return
	}
	gain, bias = gain[:n], bias[:n]
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		mean := mean(row)
		sum := sumSquares256(&row[0], whole, mean)
		for _, v := range row[whole:] {
			d := float64(v) - mean
			sum += d * d
		}
		inv := rootInverse(sum/float64(n) + eps)
		norm256(&out[0], &row[0], &gain[0], whole, mean, inv)
		add256(&out[0], &out[0], &bias[0], whole)
		for c := whole; c < n; c++ {
			out[c] = gain[c]*float32((float64(row[c])-mean)*inv) + bias[c]
		}
	}
}

func vecGLU(y []float32, ldy int, x []float32, ldx int, act string, interleave, m, n int) {
	if interleave%vecN != 0 || act == op.ReLU {
		glu(y, ldy, x, ldx, act, interleave, m, n)
		return
	}
	for r := range m {
		row, out := x[r*ldx:r*ldx+2*n], y[r*ldy:r*ldy+n]
		switch groups := n / interleave; act {
		case op.SiLU:
			siluMul256(&out[0], &row[0], interleave, groups)
		case op.GELU:
			geluMul256(&out[0], &row[0], interleave, groups)
		case op.GELUTanh:
			geluTanhMul256(&out[0], &row[0], interleave, groups)
		}
	}
}

func vecActivate(y []float32, ldy int, x []float32, ldx int, act string, m, n int) {
	whole := n &^ (vecN - 1)
	if act == op.ReLU {
		whole = 0
	}
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
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

func vecSoftcap(y []float32, ldy int, x []float32, ldx int, limit float64, m, n int) {
	whole := n &^ (vecN - 1)
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		softcap256(&out[0], &row[0], whole, float32(1/limit), float32(limit))
		softcapRow(out[whole:], row[whole:], float32(limit))
	}
}

func vecGate(y []float32, ldy int, x []float32, ldx int, gate []float32, ldgate, m, n int) {
	for r := range m {
		out := y[r*ldy : r*ldy+n]
		copy(out, x[r*ldx:r*ldx+n])
		vecScale(out, float64(1/(1+expf(-gate[r*ldgate]))))
	}
}

func vecScale(x []float32, s float64) {
	whole := len(x) &^ (vecN - 1)
	if whole > 0 {
		scale256(&x[0], whole, float32(s))
	}
	scale(x[whole:], s)
}

// combine is a product of one row of weights with the fan rows of a token.
func (t tier) combine(y []float32, ldy int, x []float32, ldx int, weight []float32, ldw, m, fan, n int) {
	whole := n &^ (TileN - 1)
	for r := range m {
		out, w, rows := y[r*ldy:r*ldy+n], weight[r*ldw:r*ldw+fan], x[r*fan*ldx:((r+1)*fan-1)*ldx+n]
		clear(out)
		for c := 0; c < whole; c += TileN {
			t.addF32(1, &out[c], ldy, &w[0], ldw, fan, &rows[c], ldx)
		}
		for j, v := range w { // rounded like the columns before, so that shares give equal bits wherever they end
			tail := out[whole:]
			for c, x := range rows[j*ldx+whole : j*ldx+n] {
				tail[c] = fma32(v, x, tail[c])
			}
		}
	}
}

// fma32 is a*b + c rounded once. The product is exact in float64; the sum is rounded to odd there, so that
// rounding it again to float32 is as if it were exact.
func fma32(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	back := s - p
	if e := (p - (s - back)) + (q - back); e != 0 && !math.IsInf(s, 0) && !math.IsNaN(s) {
		if bits := math.Float64bits(s); bits&1 == 0 {
			if (e > 0) == (s > 0) {
				bits++
			} else {
				bits--
			}
			s = math.Float64frombits(bits)
		}
	}
	return float32(s)
}

func vecAdd(y []float32, ldy int, a []float32, lda int, b []float32, ldb, m, n int) {
	whole := n &^ (vecN - 1)
	for r := range m {
		out, p, q := y[r*ldy:r*ldy+n], a[r*lda:r*lda+n], b[r*ldb:r*ldb+n]
		add256(&out[0], &p[0], &q[0], whole)
		for c := whole; c < n; c++ {
			out[c] = p[c] + q[c]
		}
	}
}

func vecRope(x []float32, ldx int, cos, sin []float32, m, heads, headDim, rotary int) {
	half := rotary / 2
	if half%vecN != 0 || half == 0 {
		rope(x, ldx, cos, sin, m, heads, headDim, rotary)
		return
	}
	for r := range m {
		c, s := cos[r*half:(r+1)*half], sin[r*half:(r+1)*half]
		for h := range heads {
			head := x[r*ldx+h*headDim : r*ldx+h*headDim+rotary]
			rope256(&head[0], &head[half], &c[0], &s[0], half)
		}
	}
}

func vecBlockSums(sums []int32, ldsums int, x []uint8, ldx, m, k int) {
	blocks := k / BlockK
	for r := range m {
		if blocks > 0 {
			row, out := x[r*ldx:r*ldx+k], sums[r*ldsums:r*ldsums+blocks]
			blockSums256(&out[0], &row[0], blocks)
		}
		if k%BlockK != 0 {
			blockSums(sums[r*ldsums+blocks:], 1, x[r*ldx+blocks*BlockK:], k%BlockK, 1, k%BlockK)
		}
	}
}

func vecFromF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	whole := len(dst) &^ 7
	if whole > 0 {
		fromF16256(&dst[0], &src[0], whole)
	}
	fromF16(dst[whole:], src[whole:])
}

func vecFromBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	whole := len(dst) &^ (vecN - 1)
	if whole > 0 {
		fromBF16256(&dst[0], &src[0], whole)
	}
	fromBF16(dst[whole:], src[whole:])
}

func vecToF16(dst []uint16, src []float32) bool {
	dst = dst[:len(src)]
	whole := len(src) &^ (vecN - 1)
	finite := true
	if whole > 0 {
		finite = toF16256(&dst[0], &src[0], whole) == 0
	}
	return toF16(dst[whole:], src[whole:]) && finite
}
