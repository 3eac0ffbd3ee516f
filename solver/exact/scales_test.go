package exact

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// bruteScales tries every division of the sorted samples into at most k intervals.
func bruteScales(posed *problem.Scales) float64 {
	sorted := slices.Clone(posed.Samples)
	slices.Sort(sorted)
	best := math.Inf(1)
	var walk func(from, left int, scales []float64)
	walk = func(from, left int, scales []float64) {
		if from == len(sorted) {
			best = min(best, posed.MSEOf(scales))
			return
		}
		if left == 0 {
			return
		}
		total := 0.0
		for to := from + 1; to <= len(sorted); to++ {
			total += sorted[to-1]
			scale := total / float64(to-from)
			if posed.Cover {
				scale = sorted[to-1]
			}
			walk(to, left-1, append(slices.Clone(scales), scale))
		}
	}
	walk(0, posed.K, nil)
	return best
}

// Scales are as good as the best of all divisions.
func TestScalesBrute(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 10000 {
		scales := &problem.Scales{K: 1 + random.IntN(3), Cover: i%2 == 1}
		for range 1 + random.IntN(7) {
			sample := math.Exp(random.NormFloat64())
			if random.IntN(3) == 0 {
				sample = float64(random.IntN(4)) // equal samples
			}
			scales.Samples = append(scales.Samples, sample)
		}
		got, err := Scales(scales)
		if err != nil {
			t.Fatal(err)
		}
		if err := scales.Verify(got); err != nil {
			t.Fatal(err)
		}
		if want := bruteScales(scales); math.Abs(got.MSE-want) > 1e-9*(1+want) {
			t.Fatalf("instance %d: %+v has %v, want %v: %+v", i, got.Scales, got.MSE, want, scales)
		}
	}
}

// More scales are better, each is the mean of its samples, equal samples have one, and wrong instances are refused.
func TestScalesProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	scales := &problem.Scales{K: 2}
	for range 3000 {
		scales.Samples = append(scales.Samples, math.Exp(random.NormFloat64()))
	}
	two, err := Scales(scales)
	if err != nil {
		t.Fatal(err)
	}
	scales.K = 9
	nine, err := Scales(scales)
	if err != nil || nine.MSE > two.MSE || len(nine.Scales) != 9 {
		t.Errorf("nine scales: %+v, %v; two: %+v", nine, err, two)
	}

	// No scale moves to a better place by itself: each is the mean of its samples.
	sums, counts := make([]float64, 9), make([]float64, 9)
	for _, sample := range scales.Samples {
		at := problem.NearestScale(nine.Scales, sample)
		sums[at], counts[at] = sums[at]+sample, counts[at]+1
	}
	for i, scale := range nine.Scales {
		if mean := sums[i] / counts[i]; math.Abs(scale-mean) > 1e-9*scale {
			t.Errorf("scale %d is %v, and the mean of its samples %v", i, scale, mean)
		}
	}

	alike := &problem.Scales{Samples: []float64{3, 3, 3}, K: 4}
	if got, err := Scales(alike); err != nil || len(got.Scales) != 1 || got.Scales[0] != 3 || got.MSE != 0 {
		t.Errorf("equal samples: %+v, %v", got, err)
	}
	for _, bad := range []problem.Scales{
		{K: 1}, {Samples: []float64{1}}, {Samples: []float64{math.NaN()}, K: 1},
		{Samples: []float64{math.Inf(1)}, K: 1},
	} {
		if _, err := Scales(&bad); diag.ClassOf(err) != diag.ClassInternal {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// More scales never have a larger error, and with Cover every sample is held.
func TestScalesMore(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 200 {
		scales := &problem.Scales{Cover: i%2 == 0}
		for range 1 + random.IntN(300) {
			scales.Samples = append(scales.Samples, 0.02*math.Exp(random.NormFloat64()))
		}
		last := math.Inf(1)
		for scales.K = 1; scales.K <= 6; scales.K++ {
			got, err := Scales(scales)
			if err != nil {
				t.Fatal(err)
			}
			if err := scales.Verify(got); err != nil {
				t.Fatal(err)
			}
			if got.MSE > last*(1+1e-12) {
				t.Fatalf("instance %d: %d scales have %v, one fewer %v", i, scales.K, got.MSE, last)
			}
			last = got.MSE
			if largest := slices.Max(scales.Samples); scales.Cover && slices.Max(got.Scales) != largest {
				t.Fatalf("instance %d: scales %v do not hold %v", i, got.Scales, largest)
			}
		}
	}
}
