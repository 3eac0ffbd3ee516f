package problem

import (
	"fmt"
	"math"
	"sort"

	"github.com/hetc/hetc/internal/diag"
)

// MaxSamples bounds the samples of Scales.
const MaxSamples = 1 << 20

// Scales is the choice of static activation scales (shadowAttn sec. 3.3): a graph is compiled for each of K scales, and a
// call goes to the one whose scale is nearest to its own by mean squared error. The scales minimise that error
// over samples. A matrix product of two activations (queries by keys) has two scales; the mean squared error of a
// pair is the mean of both errors, so the best grid of pairs is the product of each operand's best scales.
type Scales struct {
	Samples []float64 // scales seen (largest magnitude over 127), any order
	K       int       // at most that many are chosen
	// Cover: a sample takes the smallest scale that is not below it instead of the nearest one, so that nothing saturates.
	Cover bool
}

// ScaleSolution is the chosen scales, ascending, with the mean squared distance of the samples to those that they take. It is
// optimal: of equal ones the one with the fewest scales.
type ScaleSolution struct {
	Scales []float64
	MSE    float64
}

// Validate reports the first thing that makes the instance meaningless; of class ClassInternal.
func (s *Scales) Validate() error {
	if len(s.Samples) == 0 || len(s.Samples) > MaxSamples {
		return diag.New(diag.ClassInternal, "scales: %d samples, want 1..%d", len(s.Samples), MaxSamples)
	}
	if s.K < 1 {
		return diag.New(diag.ClassInternal, "scales: %d scales, want at least 1", s.K)
	}
	for i, x := range s.Samples {
		if math.IsNaN(x) || math.Abs(x) > 1e100 {
			return diag.New(diag.ClassInternal, "scales: sample %d is %v, want a number of at most 1e100", i, x)
		}
	}
	return nil
}

// MSEOf is the mean squared distance of the samples to the scales that they take: with Cover the largest where a sample is
// above all of them.
func (s *Scales) MSEOf(scales []float64) float64 {
	total := 0.0
	for _, x := range s.Samples {
		at := 0
		if s.Cover {
			at = coveringScale(scales, x)
		} else {
			at = NearestScale(scales, x)
		}
		d := x - scales[at]
		total += float64(d * d)
	}
	return total / float64(len(s.Samples))
}

// Verify recomputes a solution, to 1e-9 of the samples' largest square.
func (s *Scales) Verify(x ScaleSolution) error {
	if len(x.Scales) == 0 || len(x.Scales) > s.K || !sort.Float64sAreSorted(x.Scales) {
		return diag.New(diag.ClassInternal, "verify scales: %v, want 1..%d in ascending order", x.Scales, s.K)
	}
	most := 0.0
	for _, v := range s.Samples {
		most = max(most, float64(v*v))
	}
	if got := s.MSEOf(x.Scales); !(math.Abs(got-x.MSE) <= float64(1e-9*most)) {
		return diag.New(diag.ClassInternal, "verify scales: %s", fmt.Sprintf("error is %v, and the scales have %v", x.MSE, got))
	}
	return nil
}

// coveringScale is the index of the smallest scale that is not below x, of the largest where all are.
func coveringScale(scales []float64, x float64) int {
	best := 0
	for i, v := range scales {
		switch old := scales[best]; {
		case v >= x && (old < x || v < old), v < x && old < x && v > old:
			best = i
		}
	}
	return best
}

// NearestScale is the index of the scale with the least squared error; the first of equally near ones.
func NearestScale(scales []float64, x float64) int {
	best := 0
	for i, v := range scales {
		if math.Abs(v-x) < math.Abs(scales[best]-x) {
			best = i
		}
	}
	return best
}

// NearestPair is the index of the bucket of two operands' scales with the least mean squared error (shadowAttn sec. 3.3:
// argmin over b of MSE((Lq, Lk), (Lq_b, Lk_b))); the first of equally near ones.
func NearestPair(buckets [][2]float64, q, k float64) int {
	best, least := 0, math.Inf(1)
	for i, b := range buckets {
		dq, dk := b[0]-q, b[1]-k
		if mse := (float64(dq*dq) + float64(dk*dk)) / 2; mse < least {
			best, least = i, mse
		}
	}
	return best
}
