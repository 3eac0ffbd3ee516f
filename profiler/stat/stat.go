// Package stat knows what samples of a measurement say: location and spread, an interval that
// assumes no distribution, when to stop sampling, and whether two sets of samples differ.
//
// Times are skewed and have outliers, so everything here rests on order: medians, their
// order-statistic intervals, and rank tests.
package stat

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// confidence is the coverage every interval here aims for.
const confidence = 0.95

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
	Coverage float64 // of the interval; below confidence for fewer than 6 samples
}

// Summarise describes samples. It refuses none, NaN and infinity.
func Summarise(samples []float64) (Summary, error) {
	if len(samples) == 0 {
		return Summary{}, fmt.Errorf("summarise samples: got none")
	}
	for i, sample := range samples {
		if math.IsNaN(sample) || math.IsInf(sample, 0) {
			return Summary{}, fmt.Errorf("summarise samples: sample %d is %g, want a finite number", i, sample)
		}
	}
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	out := Summary{
		N: len(sorted), Min: sorted[0], Median: middle(sorted), Mean: Mean(sorted),
		P90: quantile(sorted, 0.9),
	}
	out.MAD = mad(sorted, out.Median)
	out.Midmean = midmean(sorted)
	var i int
	i, out.Coverage = interval(len(sorted))
	out.Low, out.High = sorted[i], sorted[len(sorted)-1-i]
	return out, nil
}

// midmean returns the mean of the middle half of sorted values. Those at its ends count in part where the number of
// values is no multiple of four, so that one far from others hardly counts among three.
func midmean(sorted []float64) float64 {
	if len(sorted) == 1 {
		return sorted[0]
	}
	quarter := float64(len(sorted)) / 4
	first, last := int(quarter), len(sorted)-1-int(quarter)
	sum := (1 + math.Floor(quarter) - quarter) * (sorted[first] + sorted[last])
	for _, value := range sorted[first+1 : last] {
		sum += value
	}
	return sum / (2 * quarter)
}

// Relative returns the interval's larger side over the median: 0.02 means "within 2 %".
// It is +Inf when the interval does not reach confidence or the median is not positive.
func (s Summary) Relative() float64 {
	if s.Coverage < confidence || s.Median <= 0 {
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

// middle returns the median of sorted values, NaN of none.
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

// Mean returns the arithmetic mean of at least one value.
func Mean(xs []float64) float64 {
	sum := 0.0
	for _, value := range xs {
		sum += value
	}
	return sum / float64(len(xs))
}

// quantile returns the least of sorted values that a share of them, above 0 and at most 1, does not exceed.
func quantile(sorted []float64, share float64) float64 {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// mad returns the median of absolute deviations from the median.
func mad(xs []float64, median float64) float64 {
	dev := make([]float64, len(xs))
	for i, value := range xs {
		dev[i] = math.Abs(value - median)
	}
	slices.Sort(dev)
	return middle(dev)
}

// interval returns the largest i such that [x_i, x_(n-1-i)] of n sorted samples covers the median
// with at least confidence, and that coverage: 1 - 2 P(B < i+1) for B ~ Binomial(n, 1/2). With
// fewer than six samples no interval does; i is then 0.
func interval(samples int) (i int, coverage float64) {
	count := float64(samples)
	logTerm := -count * math.Ln2 // of P(B = i)
	below := math.Exp(logTerm)
	coverage = max(0, 1-2*below)
	for next := 1; next < (samples+1)/2; next++ {
		logTerm += math.Log((count - float64(next) + 1) / float64(next))
		below += math.Exp(logTerm)
		reached := 1 - 2*below
		if reached < confidence {
			break
		}
		i, coverage = next, reached
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
	count := len(samples)
	if count < r.Min || count == 0 {
		return More
	}
	summary, err := Summarise(samples)
	if err == nil && summary.Relative() <= r.Within {
		return Precise
	}
	if count >= 2*stableWindow && count%stableEvery == 0 && stabilised(samples) {
		return Stabilised
	}
	if count >= r.Max {
		return Exhausted
	}
	return More
}

// stabilised reports whether the estimate of the noise stayed the same over the last window of samples.
func stabilised(samples []float64) bool {
	low, high := math.Inf(1), 0.0
	sorted := slices.Clone(samples[:len(samples)-stableWindow])
	slices.Sort(sorted)
	for _, sample := range samples[len(samples)-stableWindow:] {
		at, _ := slices.BinarySearch(sorted, sample)
		sorted = slices.Insert(sorted, at, sample)
		median := middle(sorted)
		if median <= 0 {
			return false
		}
		noise := mad(sorted, median) / median
		low, high = min(low, noise), max(high, noise)
	}
	return high-low <= stableSpread*high
}

// mannWhitney returns the two-sided p value of the hypothesis that both come from one
// distribution: exact without ties up to 50 samples together, else by the normal approximation
// with corrections for ties and continuity. Either side empty is an error.
func mannWhitney(first, second []float64) (p float64, err error) {
	if len(first) == 0 || len(second) == 0 {
		return 0, fmt.Errorf("compare samples: got %d and %d, want at least one each", len(first), len(second))
	}
	if slices.ContainsFunc(slices.Concat(first, second), math.IsNaN) {
		return 0, fmt.Errorf("compare samples: a sample is NaN")
	}
	rankSum, ties := ranks(first, second)
	own, others := float64(len(first)), float64(len(second))
	rank := rankSum - own*(own+1)/2
	if ties == 0 && len(first)+len(second) <= 50 {
		return exactU(len(first), len(second), int(math.Round(min(rank, own*others-rank)))), nil
	}
	total := own + others
	sd := math.Sqrt(own * others / 12 * (total + 1 - ties/(total*(total-1))))
	if sd == 0 || math.IsNaN(sd) {
		return 1, nil
	}
	deviation := max(0, math.Abs(rank-own*others/2)-0.5) / sd
	return min(1, math.Erfc(deviation/math.Sqrt2)), nil
}

// ranks returns the sum of the ranks of the first samples among all, and the sum of t^3-t over groups of t equal ones.
func ranks(first, second []float64) (sum, ties float64) {
	type ranked struct {
		sample float64
		first  bool
	}
	all := make([]ranked, 0, len(first)+len(second))
	for _, sample := range first {
		all = append(all, ranked{sample, true})
	}
	for _, sample := range second {
		all = append(all, ranked{sample, false})
	}
	slices.SortFunc(all, func(left, right ranked) int { return cmp.Compare(left.sample, right.sample) })
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].sample == all[i].sample {
			j++
		}
		tied := float64(j - i)
		ties += tied*tied*tied - tied
		for at := i; at < j; at++ {
			if all[at].first {
				sum += float64(i+j+1) / 2 // mean of ranks i+1..j
			}
		}
		i = j
	}
	return sum, ties
}

// exactU is 2 P(U <= rank) for so many samples, at most 1. The number of orders of n and m samples with U = u obeys
// f(n,m,u) = f(n-1,m,u-m) + f(n,m-1,u).
func exactU(first, second, rank int) float64 {
	orders := make([][]float64, second+1) // f[j][v] for the current i
	for j := range orders {
		orders[j] = make([]float64, rank+1)
		orders[j][0] = 1
	}
	for i := 1; i <= first; i++ {
		more := make([][]float64, second+1)
		for j := range more {
			more[j] = make([]float64, rank+1)
			for sum := 0; sum <= rank; sum++ {
				if j == 0 {
					if sum == 0 {
						more[j][sum] = 1
					}
					continue
				}
				more[j][sum] = more[j-1][sum]
				if sum >= j {
					more[j][sum] += orders[j][sum-j]
				}
			}
		}
		orders = more
	}
	below := 0.0
	for _, count := range orders[second] {
		below += count
	}
	all := 1.0 // orders of both, a whole number after each step
	for i := 1; i <= first; i++ {
		all = all * float64(second+i) / float64(i)
	}
	return min(1, 2*below/all)
}

// Ratio returns median(above)/median(below) with a percentile bootstrap interval of coverage confidence from
// the given number of resamples. The same seed gives the same interval. Samples must be positive.
func Ratio(above, below []float64, resamples int, seed uint64) (ratio, low, high float64, err error) {
	if len(above) == 0 || len(below) == 0 || resamples < 1 {
		return 0, 0, 0, fmt.Errorf("ratio of medians: got %d and %d samples and %d resamples, want at least one each",
			len(above), len(below), resamples)
	}
	for _, xs := range [][]float64{above, below} {
		for i, sample := range xs {
			if !(sample > 0) || math.IsInf(sample, 0) {
				return 0, 0, 0, fmt.Errorf("ratio of medians: sample %d is %g, want a positive finite number", i,
					sample)
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
	bufA, bufB := make([]float64, len(above)), make([]float64, len(below))
	ratios := make([]float64, resamples)
	for i := range ratios {
		ratios[i] = draw(above, bufA) / draw(below, bufB)
	}
	slices.Sort(ratios)
	low, high = quantile(ratios, (1-confidence)/2), quantile(ratios, (1+confidence)/2)
	return Median(above) / Median(below), low, high, nil
}

// Drift reports whether the second half of the samples, in the order they were taken, lies apart from the
// first by more than limit (0.03 for 3 %) and not by chance (p < 0.01).
func Drift(samples []float64, limit float64) bool {
	half := len(samples) / 2
	if half < 5 {
		return false
	}
	first, second := samples[:half], samples[len(samples)-half:]
	median := Median(first)
	if median <= 0 || math.Abs(Median(second)-median) <= limit*median {
		return false
	}
	chance, err := mannWhitney(first, second)
	return err == nil && chance < 0.01
}
