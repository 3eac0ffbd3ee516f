package exact

import (
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// Scales chooses activation scales to optimality: weighted k-means in one dimension, whose clusters are intervals of
// the sorted samples, by dynamic programming: an interval's scale is its mean, with Cover its largest sample. The cost of an interval is Monge, so the best left ends advance with the
// right ends and divide and conquer takes O(K n log n) (Groenlund et al., arXiv 1701.07204).
func Scales(s *problem.Scales) (problem.ScaleSolution, error) {
	if err := s.Validate(); err != nil {
		return problem.ScaleSolution{}, err
	}
	x := slices.Clone(s.Samples)
	slices.Sort(x)
	n := len(x)
	// Sums of differences from the middle one: less is lost where all samples are alike.
	middle := x[n/2]
	sum, squares := make([]float64, n+1), make([]float64, n+1)
	for i, v := range x {
		d := v - middle
		sum[i+1], squares[i+1] = sum[i]+d, squares[i]+float64(d*d)
	}
	cost := func(i, j int) float64 { // of samples i..j-1 as one cluster
		t := sum[j] - sum[i]
		if s.Cover {
			top := x[j-1] - middle
			return max(0, squares[j]-squares[i]-float64(2*top*t)+float64(float64(j-i)*float64(top*top)))
		}
		return max(0, squares[j]-squares[i]-float64(t*t)/float64(j-i))
	}
	k := 1
	for i := 1; i < n && k < s.K; i++ { // no more clusters than different samples
		if x[i] != x[i-1] {
			k++
		}
	}
	best := make([]float64, n+1) // of the first j samples
	from := make([][]int32, k)
	for j := 1; j <= n; j++ {
		best[j] = cost(0, j)
	}
	for c := 1; c < k; c++ {
		next := slices.Clone(best)
		at := make([]int32, n+1)
		var fill func(low, high, first, last int)
		fill = func(low, high, first, last int) {
			if low > high {
				return
			}
			j := (low + high) / 2
			value, i := math.Inf(1), first
			for m := first; m <= min(last, j-1); m++ {
				if v := best[m] + cost(m, j); v < value {
					value, i = v, m
				}
			}
			next[j], at[j] = value, int32(i)
			fill(low, j-1, first, i)
			fill(j+1, high, i, last)
		}
		fill(c+1, n, c, n-1)
		from[c], best = at, next
	}
	var out problem.ScaleSolution
	for c, j := k-1, n; j > 0; c-- {
		i := 0
		if c > 0 {
			i = int(from[c][j])
		}
		if s.Cover {
			out.Scales = append(out.Scales, x[j-1])
			j = i
			continue
		}
		total := 0.0
		for _, v := range x[i:j] {
			total += v - middle
		}
		out.Scales = append(out.Scales, middle+total/float64(j-i))
		j = i
	}
	slices.Reverse(out.Scales)
	out.MSE = s.MSEOf(out.Scales)
	return out, nil
}
