package selftest

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// random are values of a deviation of 1.
func random(count int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	out := make([]float32, count)
	for i := range out {
		out[i] = float32(rng.NormFloat64())
	}
	return out
}

var sizes = []shape{{"y", 1, 1}, {"y", 1, 64}, {"y", 17, 64}, {"y", 17, 2048}, {"y", 1, 32000}, {"y", 17, 11264}}

// The same values have no difference but that of rounding sums, and every single number that changes by its whole size is
// found, wherever it is.
func TestSketchFindsEveryNumber(t *testing.T) {
	for _, of := range sizes {
		values := random(of.rows*of.cols, 1)
		sketch := newSketch(of, values)
		if err := sketch.check(of); err != nil {
			t.Fatal(err)
		}
		if bytes := len(sketch.Sums) + len(sketch.Norms); bytes > 6<<10 {
			t.Errorf("%+v takes %d bytes", of, bytes)
		}
		same := sketch.Compare(values).Error
		if same > 1e-4 {
			t.Errorf("%+v: equal values differ by %.2g", of, same)
		}
		rng := rand.New(rand.NewPCG(2, 0))
		for range 50 {
			at := rng.IntN(len(values))
			kept := values[at]
			values[at] = kept + float32(math.Copysign(1, float64(kept)))
			found := sketch.Compare(values)
			values[at] = kept
			row, col := at/of.cols, at%of.cols
			if !(found.Error > 0.01) {
				t.Errorf("%+v: a number at [%d,%d] that is off by 1 is a difference of %.2g", of, row, col, found.Error)
			}
			if row < found.Row || row > found.LastRow || found.Row == found.LastRow && (col < found.Col || col > found.LastCol) {
				t.Errorf("%+v: [%d,%d] is found in %+v", of, row, col, found)
			}
		}
	}
}

// The difference that is found is about the relative error of what differs: with noise on every value, between it and
// four times as much.
func TestSketchMeasuresNoise(t *testing.T) {
	for _, of := range sizes[2:] {
		values := random(of.rows*of.cols, 3)
		sketch := newSketch(of, values)
		for i, noise := range random(len(values), 4) {
			values[i] += 0.01 * noise
		}
		if found := sketch.Compare(values).Error; found < 0.01 || found > 0.05 {
			t.Errorf("%+v: noise of 0.01 is a difference of %.2g", of, found)
		}
	}
}

// What is no number, and zeros where there should be none, are differences.
func TestSketchOfOddValues(t *testing.T) {
	of := shape{"y", 17, 64}
	values := random(17*64, 5)
	sketch := newSketch(of, values)
	for _, odd := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		values[700] = odd
		if _, err := Sketches([]Result{{shape: of, values: values}}); err == nil || !strings.Contains(err.Error(), "is no number") {
			t.Errorf("%v was kept as a result to compare with: %v", odd, err)
		}
		if found := sketch.Compare(values).Error; !math.IsInf(found, 1) {
			t.Errorf("%v is a difference of %v", odd, found)
		}
	}
	if found := sketch.Compare(make([]float32, 17*64)).Error; found < 0.5 {
		t.Errorf("zeros are a difference of %v", found)
	}
	zeros := newSketch(of, make([]float32, 17*64))
	if found := zeros.Compare(make([]float32, 17*64)).Error; found != 0 {
		t.Errorf("zeros differ from zeros by %v", found)
	}
	values[700] = 0
	if found := zeros.Compare(values).Error; !math.IsInf(found, 1) {
		t.Errorf("numbers differ from zeros by %v", found)
	}
}
