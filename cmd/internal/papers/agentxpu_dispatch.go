package papers

import (
	"cmp"
	"slices"
)

// elastic is one token-wise operator of a prompt in Agent.xpu's Algorithm 1: whole chunks, each of which the NPU or
// the GPU takes, and a remainder for the GPU. Times are integers of one unit.
type elastic struct {
	chunks         int
	npu, gpu, rest int64 // of a chunk on either, of the remainder on the GPU
}

// difference is what the listing minimises: how far apart both processors end when the NPU takes i chunks.
func (e elastic) difference(i int) int64 {
	d := int64(i)*e.npu - int64(e.chunks-i)*e.gpu - e.rest
	return max(d, -d)
}

// end is when both have ended.
func (e elastic) end(i int) int64 { return max(int64(i)*e.npu, int64(e.chunks-i)*e.gpu+e.rest) }

// printed is n_npu of the listing's first scenario: of equal differences the fewest chunks on the NPU.
func (e elastic) printed() int { return e.least(e.difference) }

// fastest is the number of chunks on the NPU with which both have ended first, which is what the prose wants.
func (e elastic) fastest() int { return e.least(e.end) }

// least is the number of chunks on the NPU for which f is smallest, the first of several.
func (e elastic) least(f func(int) int64) int {
	best := 0
	for i := range e.chunks + 1 {
		if f(i) < f(best) {
			best = i
		}
	}
	return best
}

// deferral is t_defer of the second scenario (all chunks on the NPU), as printed: below zero where the remainder
// takes longer.
func (e elastic) deferral() int64 { return int64(e.chunks)*e.npu - e.rest }

// served is a request that decodes.
type served struct {
	name     string
	reactive bool
	length   int // S_len
}

// nextBatch is Agent.xpu's Algorithm 2: who decodes next, and who waits. The listing sorts proactive requests by
// descending length, which admits the longest; the prose evicts the longest, which is ascending. Requests of one
// length keep their order.
//
// With reactive requests the batch is filled up to most; without any, all requests decode.
func nextBatch(batch, reactive, proactive []served, most int, descending bool) (next, waiting []served) {
	var others []served
	for _, request := range batch {
		if request.reactive {
			next = append(next, request)
		} else {
			others = append(others, request)
		}
	}
	next = append(next, reactive...)
	others = append(others, proactive...)
	alone := len(next) == 0
	slices.SortStableFunc(others, func(a, b served) int {
		if descending {
			a, b = b, a
		}
		return cmp.Compare(a.length, b.length)
	})
	for _, request := range others {
		if len(next) < most || alone {
			next = append(next, request)
		} else {
			waiting = append(waiting, request)
		}
	}
	return next, waiting
}

// lengths are the sum and the maximum of the requests' lengths: what a decode step reads of caches, and what its
// slowest sequence reads.
func lengths(requests []served) (sum, longest int) {
	for _, request := range requests {
		sum += request.length
		longest = max(longest, request.length)
	}
	return sum, longest
}
