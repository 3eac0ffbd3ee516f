package problem

import (
	"math"
	"sort"

	"github.com/hetc/hetc/internal/diag"
)

// maxSamples bounds the samples of Scales.
const maxSamples = 1 << 20

// Scales is the choice of static activation scales (shadowAttn sec. 3.3): a graph is compiled for each of K scales, and
// a call goes to the one whose scale is nearest to its own by mean squared error. The scales minimise that error over
// samples. A matrix product of two activations (queries by keys) has two scales; the mean squared error of a pair is
// the mean of both errors, so the best grid of pairs is the product of each operand's best scales.
type Scales struct {
	Samples []float64 // scales seen (largest magnitude over 127), any order
	K       int       // at most that many are chosen
	// Cover: a sample takes the smallest scale that is not below it instead of the nearest one, so that nothing
	// saturates.
	Cover bool
}

// ScaleSolution is the chosen scales, ascending, with the mean squared distance of the samples to those that they take.
// It is optimal: of equal ones the one with the fewest scales.
type ScaleSolution struct {
	Scales []float64
	MSE    float64
}

// Validate reports the first thing that makes the instance meaningless; of class ClassInternal.
func (s *Scales) Validate() error {
	if len(s.Samples) == 0 || len(s.Samples) > maxSamples {
		return diag.New(diag.ClassInternal, "scales: %d samples, want 1..%d", len(s.Samples), maxSamples)
	}
	if s.K < 1 {
		return diag.New(diag.ClassInternal, "scales: %d scales, want at least 1", s.K)
	}
	for i, sample := range s.Samples {
		if math.IsNaN(sample) || math.Abs(sample) > 1e100 {
			return diag.New(diag.ClassInternal, "scales: sample %d is %v, want a number of at most 1e100", i, sample)
		}
	}
	return nil
}

// MSEOf returns the mean squared distance of the samples to the scales that they take: with Cover the largest where a
// sample is above all of them.
func (s *Scales) MSEOf(scales []float64) float64 {
	total := 0.0
	for _, sample := range s.Samples {
		var at int
		if s.Cover {
			at = coveringScale(scales, sample)
		} else {
			at = NearestScale(scales, sample)
		}
		diff := sample - scales[at]
		total += float64(diff * diff)
	}
	return total / float64(len(s.Samples))
}

// Verify recomputes a solution, to 1e-9 of the samples' largest square.
func (s *Scales) Verify(solution ScaleSolution) error {
	if len(solution.Scales) == 0 || len(solution.Scales) > s.K || !sort.Float64sAreSorted(solution.Scales) {
		return diag.New(diag.ClassInternal, "verify scales: %v, want 1..%d in ascending order", solution.Scales, s.K)
	}
	most := 0.0
	for _, sample := range s.Samples {
		most = max(most, float64(sample*sample))
	}
	if got := s.MSEOf(solution.Scales); !(math.Abs(got-solution.MSE) <= float64(1e-9*most)) {
		return diag.New(diag.ClassInternal, "verify scales: error is %v, and the scales have %v", solution.MSE, got)
	}
	return nil
}

// coveringScale returns the index of the smallest scale that is not below the sample, of the largest where all are.
func coveringScale(scales []float64, sample float64) int {
	best := 0
	for i, scale := range scales {
		switch old := scales[best]; {
		case scale >= sample && (old < sample || scale < old), scale < sample && old < sample && scale > old:
			best = i
		}
	}
	return best
}

// NearestScale returns the index of the scale with the least squared error; the first of equally near ones.
func NearestScale(scales []float64, sample float64) int {
	best := 0
	for i, scale := range scales {
		if math.Abs(scale-sample) < math.Abs(scales[best]-sample) {
			best = i
		}
	}
	return best
}
