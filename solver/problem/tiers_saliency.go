package problem

import (
	"fmt"
	"math"
	"slices"
)

// SaliencyOne is the whole of a layer's saliency: the squared L2 norms of what all routed rows of all experts add to
// its output.
const SaliencyOne = 1_000_000_000

// SaliencySteps is how many numbers a Curve has.
const SaliencySteps = 16

// lostUnit is the unit of saliency in linear models: parts per million.
const lostUnit = SaliencyOne / 1e6

// Curve is the saliency of one expert's rows: Curve[i] is what the (i+1)/SaliencySteps of them with the lowest norms
// add together, in 1/SaliencyOne of the layer's, a squared L2 norm after the router's weight. The last number is what
// all of them add. A Lorenz curve: ascending and convex up to its rounding to whole numbers.
type Curve [SaliencySteps]int64

// Curves are the saliency of a layer's experts, from the squared norms of their rows in any order.
func Curves(norms [][]float64) []Curve {
	all := 0.0
	for _, list := range norms {
		for _, norm := range list {
			all += norm
		}
	}
	out := make([]Curve, len(norms))
	for expert, list := range norms {
		list = slices.Sorted(slices.Values(list))
		below, at := 0.0, 0 // the sum of those before at
		for i := range out[expert] {
			rows := float64(i+1) / SaliencySteps * float64(len(list)) // of them, one in part
			for ; at+1 <= int(rows); at++ {
				below += list[at]
			}
			sum := below
			if part := rows - float64(at); part > 0 && at < len(list) {
				sum += float64(part * list[at])
			}
			if all > 0 {
				out[expert][i] = int64(math.Floor(sum/all*SaliencyOne + 0.5))
			}
		}
	}
	return out
}

// ValidateCurves reports what is wrong with the saliency of a layer of so many experts, nil where nothing is known.
func ValidateCurves(list []Curve, experts int) error {
	if list == nil {
		return nil
	}
	if len(list) != experts {
		return fmt.Errorf("saliency of %d experts, want %d", len(list), experts)
	}
	var all int64
	for expert := range list {
		if err := list[expert].validate(); err != nil {
			return fmt.Errorf("expert %d: %w", expert, err)
		}
		all += list[expert][SaliencySteps-1]
	}
	if rounding := int64(experts); all > 0 && (all > SaliencyOne+rounding || all < SaliencyOne-rounding) {
		return fmt.Errorf("saliency of all experts is %d, want %d", all, int64(SaliencyOne))
	}
	return nil
}

// Validate reports numbers that are no cumulative sums of ascending ones.
func (c *Curve) validate() error {
	const rounding = 2 // of three rounded numbers
	before, step := int64(0), int64(0)
	for i, sum := range c {
		if sum < before || sum > SaliencyOne {
			return fmt.Errorf("saliency is %d after %d, want ascending numbers of 0..%d",
				sum, before, int64(SaliencyOne))
		}
		if sum-before < step-rounding {
			return fmt.Errorf("saliency grows by %d and then by %d in step %d: "+
				"rows are not in the order of their norms", step, sum-before, i+1)
		}
		before, step = sum, sum-before
	}
	return nil
}

// lost is what an expert loses that keeps capacity of each chunk's rows, those with the largest norms. A chunk's n rows
// are taken to be drawn independently from the expert's curve. Of n draws, those among the k lowest that come from the
// lowest share u of the distribution number min(Binomial(n, u), k); so the expectation of their sum is
//
//	sum over the curve's steps i of  norm of a row in step i * ( E min(B(n, u[i]), k) - E min(B(n, u[i-1]), k) ).
//
// k = n gives n times the mean, and few rows of few lose more than the same part of many.
func (c *Curve) lost(rows []int32, capacity int, statistics *orderStatistics) int64 {
	var all int64
	for _, routed := range rows {
		all += int64(routed)
	}
	sum := 0.0
	for _, routed := range rows {
		if int(routed) <= capacity {
			continue
		}
		below, before := statistics.of(int(routed), int(routed)-capacity), 0.0
		last := int64(0)
		for i, v := range c {
			sum += float64(float64(v-last) * (below[i] - before))
			last, before = v, below[i]
		}
	}
	return min(c[SaliencySteps-1], int64(math.Floor(sum*SaliencySteps/float64(all)+0.5)))
}

// orderStatistics remembers E min(Binomial(draws, (i+1)/SaliencySteps), lowest) by draws and lowest.
type orderStatistics map[[2]int]*[SaliencySteps]float64

// of computes an expectation once.
func (o *orderStatistics) of(draws, lowest int) *[SaliencySteps]float64 {
	if *o == nil {
		*o = orderStatistics{}
	}
	if expected := (*o)[[2]int{draws, lowest}]; expected != nil {
		return expected
	}
	expected := new([SaliencySteps]float64)
	for i := range SaliencySteps - 1 {
		expected[i] = leastOf(draws, lowest, float64(i+1)/SaliencySteps)
	}
	expected[SaliencySteps-1] = float64(lowest)
	(*o)[[2]int{draws, lowest}] = expected
	return expected
}

// leastOf is E min(Binomial(draws, chance), lowest), 0 < chance < 1, from the ratios of neighbouring probabilities: no
// function whose last digits differ between machines.
func leastOf(draws, lowest int, chance float64) float64 {
	const negligible = 1e-25 // beside the most probable number's 1
	mode := min(draws, int(float64(draws+1)*chance))
	all, sum := 0.0, 0.0
	odds := chance / (1 - chance)
	probability := 1.0
	for j := mode; j <= draws && probability > negligible; j++ {
		all += probability
		sum += float64(probability * float64(min(j, lowest)))
		probability = probability * float64(draws-j) / float64(j+1) * odds
	}
	probability = 1.0
	for j := mode; j > 0 && probability > negligible; {
		probability = probability * float64(j) / float64(draws-j+1) / odds
		j--
		all += probability
		sum += float64(probability * float64(min(j, lowest)))
	}
	return sum / all
}
