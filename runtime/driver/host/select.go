package host

import (
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
)

// selectPositions makes the step of op.Select: for each block and head the positions whose scores reach the budget.
func (b *builder) selectPositions() (step, error) {
	exe, operator, input, output := b.exe, b.op, b.in[0], b.out[0]
	s, err := b.newSparse()
	if err != nil {
		return step{}, err
	}
	exe.need.local = max(exe.need.local, operator.Context)
	return step{
		m: operator.M,
		plan: func(count int) int {
			if !s.begin(count) {
				return 0
			}
			return len(s.blocks) * operator.KVHeads
		},
		task: func(worker, t int) {
			kvHead, block := s.headAndBlock(t)
			for i := range s.group {
				head := kvHead*s.group + i
				scores := input.f32[block.index*input.ld+head*operator.Context:][:operator.Context]
				out := output.i32[block.index*output.ld+head*(1+operator.Context):][:1+operator.Context]
				keep := block.Keep(s.heads[head].Share, operator.Least)
				out[0] = int32(keep)
				choose(out[1:], scores, block.Inner, block.Block, keep, exe.have.mine(worker))
			}
		},
		refused: func(int) error { return s.tooLong() },
	}, nil
}

// choose writes count of the positions from..to-1, ascending: the first op.SparseFirst of a context, then those with
// the largest scores, of equal ones the lower. NaN is larger than every number.
//
// It counts scores by their leading bits, which tells the interval of the smallest chosen one, and finds that by
// quickselect among the few of the interval. Then it takes all that are larger and as many of the equal ones as are
// left: linear time.
func choose(out []int32, scores []float32, from, to, count int, own []float32) {
	next := 0
	for ; from < min(to, op.SparseFirst) && count > 0; from++ {
		out[next] = int32(from)
		next++
		count--
	}
	if count <= 0 {
		return
	}
	if count >= to-from {
		for pos := from; pos < to; pos++ {
			out[next] = int32(pos)
			next++
		}
		return
	}
	keys, err := mem.View[uint32](mem.Bytes(own))
	if err != nil {
		panic("BUG: scratch is not aligned: " + err.Error())
	}
	least, equal := smallestChosen(keys[:to-from], scores[from:to], count)
	for i, score := range scores[from:to] {
		key := order(score)
		out[next] = int32(from + i) // stays if the score is chosen
		next += int((uint64(least) - uint64(key)) >> 63)
		if key == least && equal > 0 {
			next++
			equal--
		}
	}
}

// smallestChosen returns the order of the smallest of the count largest scores, and how many of those that are equal to
// it are chosen. keys is room for as many as there are scores.
func smallestChosen(keys []uint32, scores []float32, count int) (least uint32, equal int) {
	const rest = 21 // bits that are not counted by
	var counts [1 << (32 - rest)]int32
	for i, score := range scores {
		key := order(score)
		keys[i] = key
		counts[key>>rest]++
	}
	left, interval := count, uint32(len(counts)-1)
	for int(counts[interval]) < left {
		left -= int(counts[interval])
		interval--
	}
	few := keys[:0]
	for _, key := range keys {
		if key>>rest == interval {
			few = append(few, key)
		}
	}
	least = nthLargest(few, left)
	for _, key := range few {
		if key > least {
			left--
		}
	}
	return least, left
}

// order maps float32 to integers that order alike, every NaN above infinity and both zeros equal.
func order(x float32) uint32 {
	if x != x {
		return math.MaxUint32
	}
	bits := math.Float32bits(x + 0) // -0 becomes 0
	if bits>>31 != 0 {
		return ^bits
	}
	return bits | 1<<31
}

// nthLargest returns the number that n-1 of keys exceed or equal, n at least 1. It changes their order.
func nthLargest(keys []uint32, n int) uint32 {
	lo, hi := 0, len(keys) // the number is among these
	for hi-lo > 1 {
		// the median of three bounds the effect of an unlucky order
		a, b, c := keys[lo], keys[(lo+hi)/2], keys[hi-1]
		pivot := max(min(a, b), min(max(a, b), c))
		// larger ones [lo,i), equal ones [i,k), smaller ones [j,hi)
		i, k, j := lo, lo, hi
		for k < j {
			switch key := keys[k]; {
			case key > pivot:
				keys[i], keys[k] = key, keys[i]
				i++
				k++
			case key == pivot:
				k++
			default:
				j--
				keys[k], keys[j] = keys[j], key
			}
		}
		switch {
		case n <= i-lo:
			hi = i
		case n <= k-lo:
			return pivot
		default:
			n -= k - lo
			lo = k
		}
	}
	return keys[lo]
}
