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
// base is what does not depend on slots; value has the groups' times by their weights, what their graphs cost, and the
// prices of all slots taken off. Limits that all tiers share have a price, too (see sacks).
type tierCut struct {
	base  int64
	value []leastTable // by tier
}

// leastTable is a list of values, from number 0, and of every range of a length of a power of two the least one.
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

// least is the least value of low to high, both included.
func (t leastTable) least(low, high int) int64 {
	level := bits.Len(uint(high-low+1)) - 1
	return min(t[level][low], t[level][high+1-1<<level])
}

// lowest is the first number of low to high that has the least value.
func (t leastTable) lowest(low, high int) int {
	return low + slices.Index(t[0][low:high+1], t.least(low, high))
}

// at is what the cut says of a point.
func (c *tierCut) at(slots []int) int64 {
	total := c.base
	for tier, count := range slots {
		total += c.value[tier][0][count]
	}
	return total
}

// least is the least that the cut says of a box: of tiers that may stay unused those count that lower it most, as many
// as may be in use.
func (c *tierCut) least(node *box, maxTiers int) int64 { return c.lowest(node, maxTiers, nil) }

// lowest is least, with the point in slots where that is not nil.
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

// tierSack is a limit that the slots of all tiers share, in parts of the limit.
type tierSack struct {
	weight []int64 // of a slot, by tier, rounded down
	most   int64
}

// sackParts is the whole of a limit of bytes.
const sackParts = 1 << 20

// sacksOf are the number of slots and the limits of bytes.
func sacksOf(p *problem.Tiers) []tierSack {
	count := tierSack{most: int64(p.MostSlots())}
	for range p.Capacities {
		count.weight = append(count.weight, 1)
	}
	out := []tierSack{count}
	for i := range p.Limits {
		limit := &p.Limits[i]
		sack := tierSack{most: sackParts}
		for tier := range p.Capacities {
			slot := uint64(min(limit.Slot(p.Capacities[tier]), limit.Bytes))
			high, low := bits.Mul64(slot, sackParts)
			part, _ := bits.Div64(high, low, uint64(limit.Bytes))
			sack.weight = append(sack.weight, int64(part))
		}
		out = append(out, sack)
	}
	return out
}

// addCuts adds up what the layers say: base and prices in all of them, and the weight of the groups' time. Where the
// least of that over all slots exceeds a limit a second cut has them pay for it: it says more of slots that need all there
// is, and less of others.
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
	for i := range s.sacks {
		back := s.payFor(&s.sacks[i], values)
		base += back
		paid = paid || back != 0
	}
	if paid {
		s.addCut(base, values)
	}
}

// addCut adds one cut.
func (s *tierSearch) addCut(base int64, values [][]int64) {
	cut := &tierCut{base: base}
	for tier := range values {
		cut.value = append(cut.value, newLeastTable(slices.Clone(values[tier])))
	}
	s.cuts = append(s.cuts, cut)
	s.work += int64(s.tiers * s.most * 8)
}

// payFor has slots pay for what they take of a limit, at the price with which the least of a cut over all slots is
// greatest; all that the limit has is paid back in the base. The least is concave in the price, so its slope is
// bisected: what is taken at the least, beyond the limit.
func (s *tierSearch) payFor(sack *tierSack, values [][]int64) (base int64) {
	over := func(price int64) bool {
		taken, free := int64(0), s.p.MaxTiers
		var gains, weights []int64
		for tier, list := range values {
			least, at := int64(0), 0
			for count, value := range list {
				if value += int64(count) * sack.weight[tier] * price; value < least {
					least, at = value, count
				}
			}
			gains, weights = append(gains, least), append(weights, int64(at)*sack.weight[tier])
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
		return taken > sack.most
	}
	if !over(0) {
		return 0
	}
	low, high := int64(0), int64(1)
	for over(high) {
		if high > math.MaxInt64/8/sack.most {
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
			list[count] += int64(count) * sack.weight[tier] * high
		}
	}
	return -high * sack.most
}
