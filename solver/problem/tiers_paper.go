package problem

import (
	"cmp"
	"slices"
)

// This file is NPUMoE's own rules, the baseline of Tiers.

// SmallestTier returns the index of the smallest capacity at or above the expected load in rows, the last one where
// none is (NPUMoE sec. 4.1). Capacities ascend.
func SmallestTier(load float64, capacities []int) int {
	for i, c := range capacities {
		if float64(c) >= load {
			return i
		}
	}
	return len(capacities) - 1
}

// MostExperts returns how many experts fit one graph (NPUMoE sec. 4.2): exactly full fits.
func MostExperts(graphBytes, expertBytes int64) int { return int(graphBytes / expertBytes) }

// MeanLoads returns an instance's expected rows of one layer, by expert.
func (y *TierLayer) MeanLoads() []float64 {
	out := make([]float64, len(y.Rows))
	for expert, rows := range y.Rows {
		sum := int64(0)
		for _, routed := range rows {
			sum += int64(routed)
		}
		out[expert] = float64(sum) / float64(len(rows))
	}
	return out
}

// LadderSlots are slots for the paper's choices: every expert of every layer in the smallest capacity of the ladder at
// or above its expected load. Layers differ in how many experts that gives a tier, and have the same slots: the
// capacity of a rank is the largest that any layer's expert of that rank needs. Where a limit has no room for the next
// one, those after it have no slot. The ladder is part of the capacities.
func (p *Tiers) LadderSlots(ladder []int) []int {
	ranks := make([]int, p.Experts()) // by descending load: index into ladder
	for l := range p.Layers {
		loads := p.Layers[l].MeanLoads()
		slices.Sort(loads)
		slices.Reverse(loads)
		for rank, load := range loads {
			ranks[rank] = max(ranks[rank], SmallestTier(load, ladder))
		}
	}
	out := make([]int, len(p.Capacities))
	for _, at := range ranks[:p.MostSlots()] {
		tier := slices.Index(p.Capacities, ladder[at])
		if out[tier]++; p.Overfull(out) != nil {
			out[tier]--
			break
		}
	}
	return out
}

// InOrder returns the choices that put the busiest experts of every layer into the largest slots (NPUMoE sec. 4.1,
// 4.3).
func (p *Tiers) InOrder(slots []int) (choices [][]int) {
	for l := range p.Layers {
		loads := p.Layers[l].MeanLoads()
		order := make([]int, len(loads))
		for expert := range order {
			order[expert] = expert
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(loads[b], loads[a]) })
		list, next := make([]int, len(loads)), 0
		for tier, count := range slices.Backward(slots) {
			for range count {
				list[order[next]] = tier + 1
				next++
			}
		}
		choices = append(choices, list)
	}
	return choices
}

// Shares are, over all layers and observed chunks, the part of the routed rows that is beyond their experts' slots, and
// the part of the reserved rows that no token uses.
func (p *Tiers) Shares(choices [][]int) (overflow, padding float64) {
	var routed, over, reserved, unused float64
	for l, list := range choices {
		for expert, choice := range list {
			for _, rows := range p.Layers[l].Rows[expert] {
				routed += float64(rows)
				if choice > 0 {
					capacity := float64(p.Capacities[choice-1])
					over += float64(p.Left(rows, choice))
					reserved, unused = reserved+capacity, unused+max(0, capacity-float64(rows))
				}
			}
		}
	}
	return over / max(1, routed), unused / max(1, reserved)
}
