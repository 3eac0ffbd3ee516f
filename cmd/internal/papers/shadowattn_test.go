package papers

import (
	"math"
	"testing"
)

// The error model against quantising values.
func TestQuantisedError(t *testing.T) {
	const n = 200_000
	values := make([]float64, n)
	for i := range values { // at the quantiles, since the far values decide
		values[i] = 127.0 / 4 * math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/n-1)
	}
	for _, scale := range []float64{0.3, 0.5, 0.75, 1, 2, 4} {
		sum := 0.0
		for _, x := range values {
			d := x - scale*math.Round(min(max(x/scale, -127), 127))
			sum += d * d
		}
		if got, want := quantised(scale), sum/n; math.Abs(got-want) > 0.02*want {
			t.Errorf("scale %v: error %v, the values have %v", scale, got, want)
		}
	}
}
