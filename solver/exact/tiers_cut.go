package exact

import (
	"math"
	"math/bits"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// tierCut is a lower bound on the objective of any numbers of slots, times problem.TierOne:
//
//	base + sum over the tiers of value[tier][slots of it]
//
// With weights alpha of the control processor's time in every layer and observed chunk, and prices of a slot for every
// layer and tier, it follows from
//
//	max(groups, cpu) >= (1 - alpha) * groups + alpha * cpu
//	alpha * cpu of a layer >= sum over the experts of the least of alpha * time + price, less the prices of all slots
//
// base is the part that does not depend on slots. value is the groups' times with their weights, plus the price of
// their graphs, less the prices of the slots. Limits that all tiers share have a price, too (see payFor).
type tierCut struct {
	base  int64
	value []leastTable // by tier
}

// leastTable answers range-minimum queries over a list in constant time (sparse table): row k has the least value of
// every range of length 2^k, row 0 is the list itself.
type leastTable [][]int64

// newLeastTable makes the table of a list.
func newLeastTable(values []int64) leastTable {
	out := leastTable{values}
	for size := 2; size <= len(values); size *= 2 {
		last := out[len(out)-1]
		next := make([]int64, len(values)-size+1)
		for i := range next {
			next[i] = min(last[i], last[i+size/2])
		}
		out = append(out, next)
	}
	return out
}

// least returns the least value of low to high, both included.
func (t leastTable) least(low, high int) int64 {
	level := bits.Len(uint(high-low+1)) - 1
	return min(t[level][low], t[level][high+1-1<<level])
}

// lowest returns the first position from low to high that has the least value.
func (t leastTable) lowest(low, high int) int {
	return low + slices.Index(t[0][low:high+1], t.least(low, high))
}

// at returns the bound that the cut gives for a point.
func (c *tierCut) at(slots []int) int64 {
	total := c.base
	for tier, count := range slots {
		total += c.value[tier][0][count]
	}
	return total
}

// least returns the least bound that the cut gives within a box. Tiers that may stay unused are used if they lower the
// bound, those that lower it most first, up to the number that may be in use.
func (c *tierCut) least(node *box, maxTiers int) int64 { return c.lowest(node, maxTiers, nil) }

// lowest returns the same as least, and writes the point that attains it to slots unless that is nil.
func (c *tierCut) lowest(node *box, maxTiers int, slots []int) int64 {
	total, free := c.base, maxTiers
	var room [problem.MaxTierChoices]int
	optional := room[:0]
	var gain [problem.MaxTierChoices]int64
	for tier := range c.value {
		gain[tier] = c.value[tier].least(node.low[tier], node.high[tier])
		switch {
		case node.low[tier] > 0:
			total += gain[tier]
			free--
		case gain[tier] < 0:
			optional = append(optional, tier)
		}
		if slots != nil {
			slots[tier] = 0
			if node.low[tier] > 0 {
				slots[tier] = c.value[tier].lowest(node.low[tier], node.high[tier])
			}
		}
	}

	for ; free > 0 && len(optional) > 0; free-- {
		best := 0
		for i, tier := range optional {
			if gain[tier] < gain[optional[best]] {
				best = i
			}
		}
		tier := optional[best]
		total += gain[tier]
		if slots != nil {
			slots[tier] = c.value[tier].lowest(node.low[tier], node.high[tier])
		}
		optional = slices.Delete(optional, best, best+1)
	}
	return total
}

// sharedLimit is a limit that the slots of all tiers share: a knapsack constraint.
type sharedLimit struct {
	weight []int64 // of a slot, by tier, rounded down
	most   int64
}

// limitParts is the unit of a limit of bytes: weights are parts of the limit.
const limitParts = 1 << 20

// sharedLimits lists the limit on the number of slots and those on bytes.
func sharedLimits(posed *problem.Tiers) []sharedLimit {
	count := sharedLimit{most: int64(posed.MostSlots())}
	for range posed.Capacities {
		count.weight = append(count.weight, 1)
	}
	out := []sharedLimit{count}

	for i := range posed.Limits {
		limit := &posed.Limits[i]
		shared := sharedLimit{most: limitParts}
		for tier := range posed.Capacities {
			slot := uint64(min(limit.Slot(posed.Capacities[tier]), limit.Bytes))
			high, low := bits.Mul64(slot, limitParts)
			part, _ := bits.Div64(high, low, uint64(limit.Bytes))
			shared.weight = append(shared.weight, int64(part))
		}
		out = append(out, shared)
	}
	return out
}

// addCuts adds the cut that follows from the layers' duals: base and prices are summed over the layers, weight is that
// of the groups' time. The minimum of this cut over all slots may exceed a shared limit. Then it adds a second cut in
// which slots pay for the limit. That one is higher where slots need the whole limit, and lower elsewhere.
func (s *tierSearch) addCuts(base, weight int64, price []int64) {
	values := make([][]int64, s.tiers)
	for tier := range values {
		groups := &s.groups[tier]
		for count := range s.p.MostOf(tier) + 1 {
			values[tier] = append(values[tier], weight*groups.NS[count]+
				problem.TierOne*int64(s.chunks)*s.p.ShapeNS*groups.Shapes[count]-int64(count)*price[tier])
		}
	}
	s.addCut(base, values)

	paid := false
	for i := range s.shared {
		back := s.payFor(&s.shared[i], values)
		base += back
		paid = paid || back != 0
	}
	if paid {
		s.addCut(base, values)
	}
}

// addCut adds one cut with copies of the values.
func (s *tierSearch) addCut(base int64, values [][]int64) {
	cut := &tierCut{base: base}
	for tier := range values {
		cut.value = append(cut.value, newLeastTable(slices.Clone(values[tier])))
	}
	s.cuts = append(s.cuts, cut)
	s.work += int64(s.tiers * s.most * 8)
}

// payFor moves a shared limit into a cut (Lagrangian relaxation). Slots pay a price for what they take of the limit,
// and base, which it returns, gives the price of the whole limit back. The price is the one at which the cut's minimum
// over all slots is greatest. That minimum is concave in the price; its slope is what the minimising slots take beyond
// the limit. So the price is found by bisection on the sign of the slope.
func (s *tierSearch) payFor(limit *sharedLimit, values [][]int64) (base int64) {
	over := func(price int64) bool {
		taken, free := int64(0), s.p.MaxTiers
		var gains, weights []int64
		for tier, list := range values {
			least, at := int64(0), 0
			for count, value := range list {
				if value += int64(count) * limit.weight[tier] * price; value < least {
					least, at = value, count
				}
			}
			gains, weights = append(gains, least), append(weights, int64(at)*limit.weight[tier])
		}

		for ; free > 0; free-- {
			best := 0
			for i := range gains {
				if gains[i] < gains[best] {
					best = i
				}
			}
			taken += weights[best]
			gains[best], weights[best] = 0, 0
		}

		s.work += int64(s.tiers * s.most)
		return taken > limit.most
	}

	if !over(0) {
		return 0
	}

	low, high := int64(0), int64(1)
	for over(high) {
		if high > math.MaxInt64/8/limit.most {
			return 0
		}
		low, high = high, 2*high
	}

	for high-low > max(1, high>>12) {
		if middle := low + (high-low)/2; over(middle) {
			low = middle
		} else {
			high = middle
		}
	}

	for tier, list := range values {
		for count := range list {
			list[count] += int64(count) * limit.weight[tier] * high
		}
	}
	return -high * limit.most
}
