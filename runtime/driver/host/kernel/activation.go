package kernel

import (
	"math"

	"github.com/hetc/hetc/planir/op"
)

// Activation functions in float32, within a few units of the last place of their largest term. The
// functions on matrices below implement the fields of Set of the same name.
func glu(y, x Matrix[float32], act string, interleave, m, n int) {
	for line := range m {
		row, out := x.row(line, 2*n), y.row(line, n)
		for col := 0; col < n; col += interleave {
			out := out[col : col+interleave]
			activateRow(out, row[2*col:2*col+interleave], act)
			for i, up := range row[2*col+interleave : 2*col+2*interleave] {
				out[i] *= up
			}
		}
	}
}

// activate applies an activation function to rows [m,n] of x.
func activate(y, x Matrix[float32], act string, m, n int) {
	for row := range m {
		activateRow(y.row(row, n), x.row(row, n), act)
	}
}

// activateRow computes y = act(x), of equal length; y may be x.
func activateRow(y, x []float32, act string) {
	y = y[:len(x)]
	switch act {
	case op.SiLU:
		for i, value := range x {
			y[i] = value / (1 + expf(-value))
		}
	case op.GELU:
		for i, value := range x {
			y[i] = gelu(value)
		}
	case op.GELUTanh: // 0.5 + 0.5*tanh(u) is the sigmoid of 2u
		for i, value := range x {
			y[i] = value / (1 + expf(-2*geluArgument(value)))
		}
	case op.ReLU:
		for i, value := range x {
			if value < 0 {
				value = 0
			}
			y[i] = value
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
	size := x
	if x < 0 {
		size = -x
	}
	inverse := 1 / (1 + 0.3*size)
	poly := float32(0.035675004)
	poly = poly*inverse - 0.15720393
	poly = poly*inverse + 0.20635478
	poly = poly*inverse - 0.05368467
	poly = poly*inverse + 0.12856211
	poly = poly*inverse + 0.099913366
	poly = poly*inverse + 0.12075397
	poly = poly*inverse + 0.1196293
	tail := poly * inverse * expf(-0.5*x*x)
	if x < 0 {
		return x * tail
	}
	return x - x*tail
}

// softcap bounds x smoothly, by limit*tanh(x/limit), a row at a time.
func softcap(y, x Matrix[float32], limit float64, m, n int) {
	for row := range m {
		softcapRow(y.row(row, n), x.row(row, n), float32(limit))
	}
}

// softcapRow is limit*tanh(x/limit), whose magnitude stays below limit.
func softcapRow(y, x []float32, limit float32) {
	y = y[:len(x)]
	inverse := 1 / limit
	for i, value := range x {
		y[i] = limit * tanhf(value*inverse)
	}
}

// tanhf is x*P(x^2)/Q(x^2), a rational approximation for |x| < 9, beyond which tanh rounds to 1.
func tanhf(x float32) float32 {
	if x > 9 {
		return 1
	}
	if x < -9 {
		return -1
	}
	square := x * x
	poly := float32(1.3354058e-08)
	poly = poly*square + 2.0608657e-05
	poly = poly*square + 0.003495563
	poly = poly*square + 0.13381004
	poly = poly*square + 1
	divisor := float32(7.776314e-07)
	divisor = divisor*square + 0.00032855931
	divisor = divisor*square + 0.025876887
	divisor = divisor*square + 0.4671432
	divisor = divisor*square + 1
	result := x * (poly / divisor)
	if result > 1 {
		return 1
	}
	if result < -1 {
		return -1
	}
	return result
}

// gate scales each row by the sigmoid of one number, its gate.
func gate(y, x, gate Matrix[float32], m, n int) {
	for row := range m {
		share := 1 / (1 + expf(-gate.Data[row*gate.Stride]))
		out := y.row(row, n)
		for col, value := range x.row(row, n) {
			out[col] = value * share
		}
	}
}

// expf is e^x within 2 ULP: x = i*ln2 + rest with |rest| <= ln2/2, and a polynomial of degree 7 for
// e^rest. Results below the smallest normal number are 0.
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
	// adding 1.5*2^23 rounds to an integer, which the low mantissa bits then hold
	shifted := x*math.Log2E + 0x1.8p23
	i := int32(math.Float32bits(shifted)) - 0x4b400000
	whole := shifted - 0x1.8p23
	rest := x - whole*ln2Hi - whole*ln2Lo
	poly := float32(1.0 / 5040)
	poly = poly*rest + 1.0/720
	poly = poly*rest + 1.0/120
	poly = poly*rest + 1.0/24
	poly = poly*rest + 1.0/6
	poly = poly*rest + 0.5
	poly = poly*rest + 1
	poly = poly*rest + 1
	// Two steps, because 2^128 is not a float32.
	return poly * math.Float32frombits(uint32(i/2+127)<<23) * math.Float32frombits(uint32(i-i/2+127)<<23)
}
