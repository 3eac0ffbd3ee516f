// Package stat knows what samples of a measurement say: location and spread, an interval that
// assumes no distribution, when to stop sampling, and whether two sets of samples differ.
//
// Times are skewed and have outliers, so everything here rests on order: medians, their
// order-statistic intervals, and rank tests.
package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	gonum "gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/combin"
	"gonum.org/v1/gonum/stat/distuv"
)

// Confidence is the coverage every interval here aims for.
const Confidence = 0.95

// Summary describes samples; all fields but N and Coverage have the samples' unit.
type Summary struct {
	N        int
	Min      float64
	Median   float64
	MAD      float64 // median of absolute deviations from the median, not scaled
	P90      float64
	Mean     float64
	Midmean  float64 // mean of the middle half: robust as the median, and fair where samples have two levels
	Low      float64 // interval of the median: an order statistic
	High     float64
	Coverage float64 // of the interval; below Confidence for fewer than 6 samples
}

// Summarise describes samples. It refuses none, NaN and infinity.
func Summarise(samples []float64) (Summary, error) {
	if len(samples) == 0 {
		return Summary{}, fmt.Errorf("summarise samples: got none")
	}
	for i, x := range samples {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return Summary{}, fmt.Errorf("summarise samples: sample %d is %g, want a finite number", i, x)
		}
	}
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	s := Summary{
		N: len(sorted), Min: sorted[0], Median: middle(sorted), Mean: gonum.Mean(sorted, nil),
		P90: gonum.Quantile(0.9, gonum.Empirical, sorted, nil),
	}
	s.MAD = mad(sorted, s.Median)
	quarter := len(sorted) / 4
	s.Midmean = gonum.Mean(sorted[quarter:len(sorted)-quarter], nil)
	var i int
	i, s.Coverage = interval(len(sorted))
	s.Low, s.High = sorted[i], sorted[len(sorted)-1-i]
	return s, nil
}

// Relative is the interval's larger side over the median: 0.02 means "within 2 %".
// It is +Inf when the interval does not reach Confidence or the median is not positive.
func (s Summary) Relative() float64 {
	if s.Coverage < Confidence || s.Median <= 0 {
		return math.Inf(1)
	}
	return max(s.High-s.Median, s.Median-s.Low) / s.Median
}

// Median returns the middle of xs, NaN for none.
func Median(xs []float64) float64 {
	sorted := slices.Clone(xs)
	slices.Sort(sorted)
	return middle(sorted)
}

func middle(sorted []float64) float64 {
	n := len(sorted)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return sorted[n/2]
	}
	a, b := sorted[n/2-1], sorted[n/2]
	return a + (b-a)/2
}

func mad(xs []float64, median float64) float64 {
	dev := make([]float64, len(xs))
	for i, x := range xs {
		dev[i] = math.Abs(x - median)
	}
	slices.Sort(dev)
	return middle(dev)
}

// interval returns the largest i such that [x_i, x_(n-1-i)] of n sorted samples covers the median
// with at least Confidence, and that coverage: 1 - 2 P(B < i+1) for B ~ Binomial(n, 1/2). With
// fewer than six samples no interval does; i is then 0.
func interval(n int) (i int, coverage float64) {
	b := distuv.Binomial{N: float64(n), P: 0.5}
	cover := func(i int) float64 { return max(0, 1-2*b.CDF(float64(i))) }
	coverage = cover(0)
	for next := 1; next < (n+1)/2; next++ {
		c := cover(next)
		if c < Confidence {
			break
		}
		i, coverage = next, c
	}
	return i, coverage
}

// Verdict is what a Rule says about the samples so far.
type Verdict int

const (
	More       Verdict = iota // go on sampling
	Precise                   // the interval is narrow enough
	Stabilised                // the noise does not change any more: more samples tell little
	Exhausted                 // Max samples, still not precise
)

// Rule decides when to stop sampling.
type Rule struct {
	Min, Max int
	Within   float64 // stop when Summary.Relative is at most this
}

// DefaultRule stops at 2 % from 10 samples on, at the latest after 200.
var DefaultRule = Rule{Min: 10, Max: 200, Within: 0.02}

// The noise has stabilised when over the last stableWindow samples the estimate MAD/median moved by
// less than stableSpread of itself. The window exceeds what the median's own estimate needs to
// settle, the check is made every stableEvery samples.
const (
	stableWindow = 48
	stableSpread = 0.05
	stableEvery  = 8
)

// Judge applies the rule to samples in the order they were taken.
func (r Rule) Judge(samples []float64) Verdict {
	n := len(samples)
	if n < r.Min || n == 0 {
		return More
	}
	s, err := Summarise(samples)
	if err == nil && s.Relative() <= r.Within {
		return Precise
	}
	if n >= 2*stableWindow && n%stableEvery == 0 && stabilised(samples) {
		return Stabilised
	}
	if n >= r.Max {
		return Exhausted
	}
	return More
}

func stabilised(samples []float64) bool {
	low, high := math.Inf(1), 0.0
	sorted := slices.Clone(samples[:len(samples)-stableWindow])
	slices.Sort(sorted)
	for _, x := range samples[len(samples)-stableWindow:] {
		at, _ := slices.BinarySearch(sorted, x)
		sorted = slices.Insert(sorted, at, x)
		m := middle(sorted)
		if m <= 0 {
			return false
		}
		noise := mad(sorted, m) / m
		low, high = min(low, noise), max(high, noise)
	}
	return high-low <= stableSpread*high
}

// MannWhitney returns the two-sided p value of the hypothesis that a and b come from one
// distribution: exact without ties up to 50 samples together, else by the normal approximation
// with corrections for ties and continuity. Either side empty is an error.
func MannWhitney(a, b []float64) (p float64, err error) {
	if len(a) == 0 || len(b) == 0 {
		return 0, fmt.Errorf("compare samples: got %d and %d, want at least one each", len(a), len(b))
	}
	type ranked struct {
		x     float64
		first bool
	}
	all := make([]ranked, 0, len(a)+len(b))
	for _, x := range a {
		all = append(all, ranked{x, true})
	}
	for _, x := range b {
		all = append(all, ranked{x, false})
	}
	for _, r := range all {
		if math.IsNaN(r.x) {
			return 0, fmt.Errorf("compare samples: a sample is NaN")
		}
	}
	slices.SortFunc(all, func(p, q ranked) int {
		switch {
		case p.x < q.x:
			return -1
		case p.x > q.x:
			return 1
		}
		return 0
	})
	rankSum, ties := 0.0, 0.0
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].x == all[i].x {
			j++
		}
		t := float64(j - i)
		ties += t*t*t - t
		for k := i; k < j; k++ {
			if all[k].first {
				rankSum += float64(i+j+1) / 2 // mean of ranks i+1..j
			}
		}
		i = j
	}
	n, m := float64(len(a)), float64(len(b))
	u := rankSum - n*(n+1)/2
	if ties == 0 && len(all) <= 50 {
		return exactU(len(a), len(b), int(math.Round(min(u, n*m-u)))), nil
	}
	total := n + m
	sd := math.Sqrt(n * m / 12 * (total + 1 - ties/(total*(total-1))))
	if sd == 0 || math.IsNaN(sd) {
		return 1, nil
	}
	z := max(0, math.Abs(u-n*m/2)-0.5) / sd
	return min(1, 2*distuv.UnitNormal.Survival(z)), nil
}

// exactU is 2 P(U <= u) for n and m samples, at most 1. The number of orders with U = u obeys
// f(n,m,u) = f(n-1,m,u-m) + f(n,m-1,u).
func exactU(n, m, u int) float64 {
	f := make([][]float64, m+1) // f[j][v] for the current i
	for j := range f {
		f[j] = make([]float64, u+1)
		f[j][0] = 1
	}
	for i := 1; i <= n; i++ {
		g := make([][]float64, m+1)
		for j := range g {
			g[j] = make([]float64, u+1)
			for v := 0; v <= u; v++ {
				if j == 0 {
					if v == 0 {
						g[j][v] = 1
					}
					continue
				}
				g[j][v] = g[j-1][v]
				if v >= j {
					g[j][v] += f[j][v-j]
				}
			}
		}
		f = g
	}
	below := 0.0
	for _, c := range f[m] {
		below += c
	}
	return min(1, 2*below/float64(combin.Binomial(n+m, n)))
}

// Ratio returns median(a)/median(b) with a percentile bootstrap interval of coverage Confidence from
// the given number of resamples. The same seed gives the same interval. Samples must be positive.
func Ratio(a, b []float64, resamples int, seed uint64) (ratio, low, high float64, err error) {
	if len(a) == 0 || len(b) == 0 || resamples < 1 {
		return 0, 0, 0, fmt.Errorf("ratio of medians: got %d and %d samples and %d resamples, want at least one each", len(a), len(b), resamples)
	}
	for _, xs := range [][]float64{a, b} {
		for i, x := range xs {
			if !(x > 0) || math.IsInf(x, 0) {
				return 0, 0, 0, fmt.Errorf("ratio of medians: sample %d is %g, want a positive finite number", i, x)
			}
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	draw := func(xs, buf []float64) float64 {
		for i := range buf {
			buf[i] = xs[rng.IntN(len(xs))]
		}
		slices.Sort(buf)
		return middle(buf)
	}
	bufA, bufB := make([]float64, len(a)), make([]float64, len(b))
	ratios := make([]float64, resamples)
	for i := range ratios {
		ratios[i] = draw(a, bufA) / draw(b, bufB)
	}
	slices.Sort(ratios)
	low = gonum.Quantile((1-Confidence)/2, gonum.Empirical, ratios, nil)
	high = gonum.Quantile((1+Confidence)/2, gonum.Empirical, ratios, nil)
	return Median(a) / Median(b), low, high, nil
}

// Drift reports whether the second half of the samples, in the order they were taken, lies apart from the
// first by more than limit (0.03 for 3 %) and not by chance (p < 0.01).
func Drift(samples []float64, limit float64) bool {
	half := len(samples) / 2
	if half < 5 {
		return false
	}
	first, second := samples[:half], samples[len(samples)-half:]
	m := Median(first)
	if m <= 0 || math.Abs(Median(second)-m) <= limit*m {
		return false
	}
	p, err := MannWhitney(first, second)
	return err == nil && p < 0.01
}

// Sorted reports whether ten or more samples, not all equal, come in order: then the order in
// which they were taken is lost, and with it any sign of drift.
func Sorted(samples []float64) bool {
	n := len(samples)
	return n >= 10 && slices.IsSorted(samples) && samples[0] != samples[n-1]
}
