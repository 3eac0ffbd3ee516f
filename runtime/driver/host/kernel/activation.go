package kernel

import (
	"math"

	"github.com/hetc/hetc/planir/op"
)

// Activation functions in float32, within a few units of the last place of their largest term.

func glu(y []float32, ldy int, x []float32, ldx int, act string, interleave, m, n int) {
	for r := range m {
		row, out := x[r*ldx:r*ldx+2*n], y[r*ldy:r*ldy+n]
		for c := 0; c < n; c += interleave {
			out := out[c : c+interleave]
			activateRow(out, row[2*c:2*c+interleave], act)
			for i, up := range row[2*c+interleave : 2*c+2*interleave] {
				out[i] *= up
			}
		}
	}
}

func activate(y []float32, ldy int, x []float32, ldx int, act string, m, n int) {
	for r := range m {
		activateRow(y[r*ldy:r*ldy+n], x[r*ldx:r*ldx+n], act)
	}
}

// activateRow computes y = act(x), of equal length; y may be x.
func activateRow(y, x []float32, act string) {
	y = y[:len(x)]
	switch act {
	case op.SiLU:
		for i, v := range x {
			y[i] = v / (1 + expf(-v))
		}
	case op.GELU:
		for i, v := range x {
			y[i] = gelu(v)
		}
	case op.GELUTanh: // 0.5 + 0.5*tanh(u) is the sigmoid of 2u
		for i, v := range x {
			y[i] = v / (1 + expf(-2*geluArgument(v)))
		}
	case op.ReLU:
		for i, v := range x {
			if v < 0 {
				v = 0
			}
			y[i] = v
		}
	default:
		panic("BUG: activation function " + act)
	}
}

// geluArgument is the argument of tanh in the approximation of GELU, sqrt(2/pi)*(x+0.044715*x^3).
func geluArgument(x float32) float32 {
	const root = 0.7978845608028654
	return x * (root + root*0.044715*x*x)
}

// gelu is x*Phi(x). Phi(-a) for a >= 0 is e^(-a^2/2) times a polynomial in 1/(1+0.3*a), of a relative
// error below 2e-7 up to where it underflows.
func gelu(x float32) float32 {
	a := x
	if x < 0 {
		a = -x
	}
	t := 1 / (1 + 0.3*a)
	p := float32(0.035675004)
	p = p*t - 0.15720393
	p = p*t + 0.20635478
	p = p*t - 0.05368467
	p = p*t + 0.12856211
	p = p*t + 0.099913366
	p = p*t + 0.12075397
	p = p*t + 0.1196293
	tail := p * t * expf(-0.5*x*x)
	if x < 0 {
		return x * tail
	}
	return x - x*tail
}

func softcap(y []float32, ldy int, x []float32, ldx int, limit float64, m, n int) {
	for r := range m {
		softcapRow(y[r*ldy:r*ldy+n], x[r*ldx:r*ldx+n], float32(limit))
	}
}

func softcapRow(y, x []float32, limit float32) {
	y = y[:len(x)]
	inverse := 1 / limit
	for i, v := range x {
		y[i] = limit * tanhf(v*inverse)
	}
}

// tanhf is a rational approximation of x*P(x^2)/Q(x^2) for |x| < 9, beyond which tanh rounds to 1.
func tanhf(x float32) float32 {
	if x > 9 {
		return 1
	}
	if x < -9 {
		return -1
	}
	s := x * x
	p := float32(1.3354058e-08)
	p = p*s + 2.0608657e-05
	p = p*s + 0.003495563
	p = p*s + 0.13381004
	p = p*s + 1
	q := float32(7.776314e-07)
	q = q*s + 0.00032855931
	q = q*s + 0.025876887
	q = q*s + 0.4671432
	q = q*s + 1
	y := x * (p / q)
	if y > 1 {
		return 1
	}
	if y < -1 {
		return -1
	}
	return y
}

func gate(y []float32, ldy int, x []float32, ldx int, gate []float32, ldgate, m, n int) {
	for r := range m {
		g := 1 / (1 + expf(-gate[r*ldgate]))
		out := y[r*ldy : r*ldy+n]
		for c, v := range x[r*ldx : r*ldx+n] {
			out[c] = v * g
		}
	}
}

// expf is e^x within 2 ULP: x = i ln2 + r with |r| <= ln2/2, a polynomial of degree 7 for e^r.
// Results below the smallest normal number are 0.
func expf(x float32) float32 {
	const (
		ln2Hi = 0x1.62e4p-1 // short, so that i*ln2Hi is exact
		ln2Lo = 0x1.7f7d1cf79abcap-20
	)
	switch {
	case x > 88.72283:
		return float32(math.Inf(1))
	case x < -87.33654:
		return 0
	case x != x:
		return x
	}
	t := x*math.Log2E + 0x1.8p23
	i := int32(math.Float32bits(t)) - 0x4b400000
	f := t - 0x1.8p23
	r := x - f*ln2Hi - f*ln2Lo
	p := float32(1.0 / 5040)
	p = p*r + 1.0/720
	p = p*r + 1.0/120
	p = p*r + 1.0/24
	p = p*r + 1.0/6
	p = p*r + 0.5
	p = p*r + 1
	p = p*r + 1
	// Two steps, because 2^128 is not a float32.
	return p * math.Float32frombits(uint32(i/2+127)<<23) * math.Float32frombits(uint32(i-i/2+127)<<23)
}
