package roofline

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/profiler/stat"
)

// workload is a point with the arithmetic and the traffic of its operator, rounded up to the family's step.
type workload struct {
	point
	ops, bytes float64
}

// sized computes the points' arithmetic and traffic at the family's present step.
func (f *Family) sized(points []point) []workload {
	out := make([]workload, len(points))
	for i, sample := range points {
		ops, bytes := f.work(sample.rows, sample.along, sample.across, f.Step)
		out[i] = workload{sample, ops, bytes}
	}
	return out
}

// cut splits a family's samples, in order, into those of the curve and the rest behind them.
func (c *Curve) cut(all []workload) (own, rest []workload) {
	count := 0
	for count < len(all) && all[count].along == c.A && all[count].across == c.B {
		count++
	}
	return all[:count], all[count:]
}

const (
	// mostSetup is the share of the shortest time that set-up may take: the roofline needs the rest.
	mostSetup = 0.999
	// mostShift bounds how far a curve's rates lie from the family's, as |log|: 4.5 times.
	mostShift = 1.5
	// shiftPenalty weighs the square of that: it keeps a rate that the samples do not show at the family's value.
	shiftPenalty = 1e-3
)

// setupShares are the shares of set-up in the shortest time at which the search starts. The loss has several minima,
// because the time of a small operator is explained by set-up or by slow rates.
var setupShares = []float64{0, 0.3, 0.7, 0.95}

// solve fits the set-up and both rates of the family to all points, then each curve's own rates. The loss is the robust
// mean of log residuals, minimised over the share of the shortest time that is set-up and the logs of the rates.
func (f *Family) solve(points []point, halvings int) {
	all := f.sized(points)
	shortest := math.Inf(1)
	for i := range all {
		shortest = min(shortest, all[i].ns)
	}
	best := math.Inf(1)
	descendFrom := func(start, step [3]float64) {
		found, loss := descend(start, step, halvings, func(at [3]float64, limit float64) float64 {
			if at[0] < 0 || at[0] > mostSetup {
				return math.Inf(1)
			}
			return residualUpTo(all, at[0]*shortest, math.Exp(at[1]), math.Exp(at[2]), f.Sharpness, 0, limit)
		})
		if loss < best {
			best = loss
			f.SetupNS = found[0] * shortest
			f.OpsPerNS, f.BytesPerNS = clampRate(math.Exp(found[1])), clampRate(math.Exp(found[2]))
		}
	}
	if f.OpsPerNS > 0 { // another form of a fitted family: its numbers are near
		near := [3]float64{f.SetupNS / shortest, math.Log(f.OpsPerNS), math.Log(f.BytesPerNS)}
		descendFrom(near, [3]float64{0.1, 0.1, 0.1})
	} else {
		for _, start := range starts(all, shortest) {
			descendFrom(start, [3]float64{0.1, 0.3, 0.3})
		}
	}
	rest := all
	for i := range f.Curves {
		curve := &f.Curves[i]
		var samples []workload
		samples, rest = curve.cut(rest)
		f.rates(curve, samples, halvings)
	}
}

// starts returns where solve starts: each share of set-up, with two rates. The rate of arithmetic is that of the third
// of the samples with the most arithmetic a byte, the rate of memory that of the third with the least.
func starts(all []workload, shortest float64) (out [][3]float64) {
	byIntensity := slices.Clone(all)
	slices.SortStableFunc(byIntensity, func(a, b workload) int { return cmp.Compare(a.ops*b.bytes, b.ops*a.bytes) })
	third := max(len(all)/3, 1)
	for _, share := range setupShares {
		logRate := func(part []workload, amount func(workload) float64) float64 {
			var rates []float64
			for _, sample := range part {
				if rate := amount(sample) / (sample.ns - share*shortest); rate > 0 {
					rates = append(rates, rate)
				}
			}
			if len(rates) == 0 {
				return 0
			}
			return math.Log(stat.Median(rates))
		}
		out = append(out, [3]float64{share,
			logRate(byIntensity[len(byIntensity)-third:], func(sample workload) float64 { return sample.ops }),
			logRate(byIntensity[:third], func(sample workload) float64 { return sample.bytes })})
	}
	return out
}

// rates fits a curve's own rates around the family's: the two anchors of Agent.xpu appendix A, determined from all
// samples. A rate that they do not show stays the family's.
func (f *Family) rates(curve *Curve, all []workload, halvings int) {
	loss := func(shift [3]float64, limit float64) float64 {
		if math.Abs(shift[1]) > mostShift || math.Abs(shift[2]) > mostShift {
			return math.Inf(1)
		}
		penalty := shiftPenalty * (float64(shift[1]*shift[1]) + float64(shift[2]*shift[2]))
		ops, bytes := f.OpsPerNS*math.Exp(shift[1]), f.BytesPerNS*math.Exp(shift[2])
		return residualUpTo(all, f.SetupNS, ops, bytes, f.Sharpness, penalty, limit)
	}
	shift, _ := descend([3]float64{0, 0, 0}, [3]float64{0, 0.2, 0.2}, halvings, loss)
	curve.OpsPerNS = clampRate(f.OpsPerNS * math.Exp(shift[1]))
	curve.BytesPerNS = clampRate(f.BytesPerNS * math.Exp(shift[2]))
}

// clampRate keeps a rate within what a costs file may say.
func clampRate(rate float64) float64 { return min(max(rate, 1e-9), maxRate) }

// huber returns the loss of a log residual: quadratic near 0, linear beyond 10 %.
func huber(residual float64) float64 {
	const knee = 0.1
	residual = math.Abs(residual)
	if residual <= knee {
		return residual * residual / (2 * knee)
	}
	return residual - knee/2
}

// residual returns the mean loss of the roofline at the given numbers.
func residual(all []workload, setup, opsRate, bytesRate, sharpness float64) float64 {
	return residualUpTo(all, setup, opsRate, bytesRate, sharpness, 0, math.Inf(1))
}

// residualUpTo returns more plus the residual. If that reaches limit, it may return any number from there on: losses
// only add up, so it can stop before the last term.
func residualUpTo(all []workload, setup, opsRate, bytesRate, sharpness, more, limit float64) float64 {
	sum, weight := 0.0, 0.0
	for i := range all {
		weight += all[i].weight
	}
	for i := range all {
		sample := &all[i]
		ns := setup + powerMean(sample.ops/opsRate, sample.bytes/bytesRate, sharpness)
		sum += sample.weight * huber(math.Log(sample.ns/max(ns, 1e-9)))
		if more+sum/weight >= limit {
			break
		}
	}
	return more + sum/weight
}

// How often descend halves its steps: for a first look at a form, and for numbers that are kept.
const coarse, precise = 4, 12

const (
	// leastGain is what a move of descend gains at least: differences below are of rounding.
	leastGain = 1e-12
	// mostMoves bounds the rounds over all coordinates before the steps are halved.
	mostMoves = 12
)

// descend is a pattern search (Hooke and Jeeves): it moves along one coordinate while that helps, and halves the steps.
// It needs no derivative, which the roofline lacks at its knee, and stops after at most halvings*mostMoves rounds of
// six losses each. A loss that reaches the limit it is given may return any number from there on.
func descend(at, step [3]float64, halvings int, loss func(at [3]float64, limit float64) float64) ([3]float64, float64) {
	best := loss(at, math.Inf(1))
	left := [3][3]float64{at, at, at} // where the latest step along a coordinate began: no better than where it led
	for range halvings {
		for moved, rounds := true, 0; moved && rounds < mostMoves; rounds++ {
			moved = false
			for i := range at {
				if step[i] == 0 {
					continue
				}
				for _, sign := range []float64{1, -1} {
					next := at
					next[i] += sign * step[i]
					if slices.Contains(left[:], next) {
						continue
					}
					if tried := loss(next, best-leastGain); tried < best-leastGain {
						left[i] = at
						at, best, moved = next, tried, true
						break
					}
				}
			}
		}
		for i := range step {
			step[i] /= 2
		}
	}
	return at, best
}
