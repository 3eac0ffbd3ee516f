package papers

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestHeadRatios(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		importance := rapid.SliceOfN(rapid.Float64Range(1e-8, 1e-1), 1, 60).Draw(rt, "importance")
		r := rapid.Float64Range(0.05, 0.9).Draw(rt, "ratio")
		ratios := headRatios(r, importance, 1e-3)
		if m := mean(ratios); math.Abs(m-r) > 1e-9 {
			rt.Fatalf("ratios average %v, want %v", m, r)
		}
		for i := range ratios {
			for j := range ratios {
				if min(importance[i], 1e-3) <= min(importance[j], 1e-3) && ratios[i] > ratios[j] {
					rt.Fatalf("head %d of importance %v gets %v, head %d of %v only %v", i, importance[i], ratios[i], j,
						importance[j], ratios[j])
				}
			}
		}
		cut := cutRatios(ratios)
		if m := mean(cut); math.Abs(m-r) > 1e-9 {
			rt.Fatalf("cut ratios average %v, want %v", m, r)
		}
		for i, v := range cut {
			if v > 1+1e-12 || v < min(ratios[i], 1)-1e-12 {
				rt.Fatalf("ratio %v is cut to %v", ratios[i], v)
			}
		}
	})
}

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

func TestScaleGrid(t *testing.T) {
	grid := scaleGrid(0.2, 0.4, 0.5)
	want := [][2]float64{{0.2, 0.4}, {0.2, 0.2}, {0.2, 0.8}, {0.1, 0.4}, {0.1, 0.2}, {0.1, 0.8}, {0.4, 0.4}, {0.4, 0.2},
		{0.4, 0.8}}
	for i := range want {
		if math.Hypot(grid[i][0]-want[i][0], grid[i][1]-want[i][1]) > 1e-12 {
			t.Errorf("bucket %d is %v, want %v", i, grid[i], want[i])
		}
	}
}
