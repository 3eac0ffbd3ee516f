package kernel

import (
	"math"

	"github.com/hetc/hetc/planir/op"
)

// Route chooses len(ids) experts for one token by its router logits, and computes their weights.
// They come in descending order of logits, of equal ones the lower index first. All sets share it,
// so that the choice does not depend on the set. Experts are compared by logits, which order like
// their probabilities, and the softmax is in float64. Route returns false where a logit is not
// finite.
func Route(ids []int32, weights, logits []float32, router string, jitter float64) bool {
	for _, value := range logits {
		if math.Float32bits(value)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	last := -1
	for j := range ids {
		last = next(logits, last)
		ids[j] = int32(last)
		if router == op.RouteSparseMixer {
			weights[j] = nearShare(logits, ids[:j], last, jitter)
		}
	}
	if router == op.RouteSparseMixer {
		return true
	}
	// softmax over the chosen experts, or over all of them
	top, sum := float64(logits[ids[0]]), 0.0
	if router == op.RouteSoftmaxNorm {
		for _, id := range ids {
			sum += math.Exp(float64(logits[id]) - top)
		}
	} else {
		for _, value := range logits {
			sum += math.Exp(float64(value) - top)
		}
	}
	for j, id := range ids {
		weights[j] = float32(math.Exp(float64(logits[id])-top) / sum)
	}
	return true
}

// next is the expert that follows last in descending order of logits; after -1 comes the first.
func next(logits []float32, last int) int {
	best := -1
	for i, value := range logits {
		after := last < 0 || value < logits[last] || value == logits[last] && i > last
		if after && (best < 0 || value > logits[best]) {
			best = i
		}
	}
	return best
}

// nearShare is SparseMixer's weight of an expert: its probability among the experts not yet chosen
// whose logits are within 2*jitter of its own, relative to the larger magnitude. The comparison is
// in float32.
func nearShare(logits []float32, chosen []int32, expert int, jitter float64) float32 {
	top, sum := logits[expert], 0.0
	for i, value := range logits {
		far := (top-value)/max(float32(math.Abs(float64(value))), top) > float32(2*jitter)
		for _, id := range chosen {
			far = far || int(id) == i
		}
		if !far {
			sum += math.Exp(float64(value) - float64(top))
		}
	}
	return float32(1 / sum)
}
