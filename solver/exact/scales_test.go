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
func bruteScales(s *problem.Scales) float64 {
	x := slices.Clone(s.Samples)
	slices.Sort(x)
	best := math.Inf(1)
	var walk func(from, left int, scales []float64)
	walk = func(from, left int, scales []float64) {
		if from == len(x) {
			best = min(best, s.MSEOf(scales))
			return
		}
		if left == 0 {
			return
		}
		total := 0.0
		for to := from + 1; to <= len(x); to++ {
			total += x[to-1]
			scale := total / float64(to-from)
			if s.Cover {
				scale = x[to-1]
			}
			walk(to, left-1, append(slices.Clone(scales), scale))
		}
	}
	walk(0, s.K, nil)
	return best
}

func TestScalesBrute(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 10000 {
		s := &problem.Scales{K: 1 + r.IntN(3), Cover: i%2 == 1}
		for range 1 + r.IntN(7) {
			x := math.Exp(r.NormFloat64())
			if r.IntN(3) == 0 {
				x = float64(r.IntN(4)) // equal samples
			}
			s.Samples = append(s.Samples, x)
		}
		got, err := Scales(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(got); err != nil {
			t.Fatal(err)
		}
		if want := bruteScales(s); math.Abs(got.MSE-want) > 1e-9*(1+want) {
			t.Fatalf("instance %d: %+v has %v, want %v: %+v", i, got.Scales, got.MSE, want, s)
		}
	}
}

func TestScalesProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	s := &problem.Scales{K: 2}
	for range 3000 {
		s.Samples = append(s.Samples, math.Exp(r.NormFloat64()))
	}
	two, err := Scales(s)
	if err != nil {
		t.Fatal(err)
	}
	s.K = 9
	nine, err := Scales(s)
	if err != nil || nine.MSE > two.MSE || len(nine.Scales) != 9 {
		t.Errorf("nine scales: %+v, %v; two: %+v", nine, err, two)
	}
	// No scale moves to a better place by itself: each is the mean of its samples.
	sums, counts := make([]float64, 9), make([]float64, 9)
	for _, x := range s.Samples {
		i := problem.NearestScale(nine.Scales, x)
		sums[i], counts[i] = sums[i]+x, counts[i]+1
	}
	for i, v := range nine.Scales {
		if math.Abs(v-sums[i]/counts[i]) > 1e-9*v {
			t.Errorf("scale %d is %v, and the mean of its samples %v", i, v, sums[i]/counts[i])
		}
	}
	alike := &problem.Scales{Samples: []float64{3, 3, 3}, K: 4}
	if got, err := Scales(alike); err != nil || len(got.Scales) != 1 || got.Scales[0] != 3 || got.MSE != 0 {
		t.Errorf("equal samples: %+v, %v", got, err)
	}
	for _, bad := range []problem.Scales{{K: 1}, {Samples: []float64{1}}, {Samples: []float64{math.NaN()}, K: 1}, {Samples: []float64{math.Inf(1)}, K: 1}} {
		if _, err := Scales(&bad); diag.ClassOf(err) != diag.ClassInternal {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// More scales never have a larger error, and with Cover every sample is held.
func TestScalesMore(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 200 {
		s := &problem.Scales{Cover: i%2 == 0}
		for range 1 + r.IntN(300) {
			s.Samples = append(s.Samples, 0.02*math.Exp(r.NormFloat64()))
		}
		last := math.Inf(1)
		for s.K = 1; s.K <= 6; s.K++ {
			got, err := Scales(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Verify(got); err != nil {
				t.Fatal(err)
			}
			if got.MSE > last*(1+1e-12) {
				t.Fatalf("instance %d: %d scales have %v, one fewer %v", i, s.K, got.MSE, last)
			}
			if last = got.MSE; s.Cover && slices.Max(got.Scales) != slices.Max(s.Samples) {
				t.Fatalf("instance %d: scales %v do not hold %v", i, got.Scales, slices.Max(s.Samples))
			}
		}
	}
}
