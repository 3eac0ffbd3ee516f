package problem

import (
	"cmp"
	"slices"
)

// This file is NPUMoE's own rules, for its reproduction and as the baseline of Tiers.

// ImbalanceRatio is the load of a layer's busiest expert over the mean of all (NPUMoE sec. 4.1): 1 is balanced, 0 means
// that there are no loads.
func ImbalanceRatio(loads []float64) float64 {
	most, sum := 0.0, 0.0
	for _, load := range loads {
		most, sum = max(most, load), sum+load
	}
	if sum == 0 {
		return 0
	}
	return most * float64(len(loads)) / sum
}

// BaseCapacity is the mean load of an expert in rows under balanced routing (NPUMoE sec. 4.1).
func BaseCapacity(chunkTokens, expertsPerToken, experts int) float64 {
	return float64(chunkTokens) * float64(expertsPerToken) / float64(experts)
}

// MaxCapacity is the estimated load of a layer's busiest expert in rows (NPUMoE sec. 4.1).
func MaxCapacity(imbalance, base float64) float64 { return imbalance * base }

// SmallestTier is the index of the smallest capacity at or above the expected load in rows, the last one where none is
// (NPUMoE sec. 4.1). Capacities ascend.
func SmallestTier(load float64, capacities []int) int {
	for i, c := range capacities {
		if float64(c) >= load {
			return i
		}
	}
	return len(capacities) - 1
}

// MostExperts is how many experts fit one graph (NPUMoE sec. 4.2): exactly full fits.
func MostExperts(graphBytes, expertBytes int64) int { return int(graphBytes / expertBytes) }

// TierGroup is experts of one tier, by index, that one launch computes.
type TierGroup struct {
	Tier    int
	Experts []int
}

// GroupExperts makes groups of at most size experts of one tier, the busiest together (NPUMoE sec. 4.2, 4.3): large
// tiers first, and of equally busy experts the first first. Experts whose tier is negative are left out.
func GroupExperts(loads []float64, tiers []int, size int) (out []TierGroup) {
	for _, group := range byLoad(loads, tiers) {
		for list := group.Experts; len(list) > 0; list = list[min(size, len(list)):] {
			out = append(out, TierGroup{group.Tier, list[:min(size, len(list)):min(size, len(list))]})
		}
	}
	return out
}

// byLoad is one group for every tier, largest first, its experts by descending load.
func byLoad(loads []float64, tiers []int) (out []TierGroup) {
	most := -1
	for _, tier := range tiers {
		most = max(most, tier)
	}
	for tier := most; tier >= 0; tier-- {
		group := TierGroup{Tier: tier}
		for expert := range tiers {
			if tiers[expert] == tier {
				group.Experts = append(group.Experts, expert)
			}
		}
		slices.SortStableFunc(group.Experts, func(a, b int) int {
			switch {
			case loads[a] > loads[b]:
				return -1
			case loads[a] < loads[b]:
				return 1
			}
			return 0
		})
		if len(group.Experts) > 0 {
			out = append(out, group)
		}
	}
	return out
}

// MeanLoads are an instance's expected rows of one layer, by expert.
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
// capacity of a rank is the largest that any layer's expert of that rank needs. The ladder is part of the capacities.
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
		out[slices.Index(p.Capacities, ladder[at])]++
	}
	return out
}

// InOrder are the choices that put the busiest experts of every layer into the largest slots (NPUMoE sec. 4.1, 4.3).
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
