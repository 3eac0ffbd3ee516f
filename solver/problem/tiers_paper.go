package problem

import (
	"math"
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

// PruneOverflow is which rows an expert drops that got more than its capacity: those of the lowest saliency, the L2
// norms of the attention's output, and of equal ones the later (NPUMoE sec. 3.2). Both lists ascend.
func PruneOverflow(saliency []float64, capacity int) (kept, dropped []int) {
	order := make([]int, len(saliency))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case saliency[a] > saliency[b]:
			return -1
		case saliency[a] < saliency[b]:
			return 1
		}
		return 0
	})
	fits := min(max(0, capacity), len(order))
	kept, dropped = slices.Clone(order[:fits]), slices.Clone(order[fits:])
	slices.Sort(kept)
	slices.Sort(dropped)
	return kept, dropped
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

// LadderChoices are the paper's choices: every expert on the NPU, in the smallest tier of the ladder at or above its
// expected load. The ladder ascends and is part of the instance's capacities.
func (p *Tiers) LadderChoices(chunk int, ladder []int) [][]int {
	return p.choices(chunk, func(load float64) int { return ladder[SmallestTier(load, ladder)] })
}

// UniformChoices put every expert on the NPU in the same tier.
func (p *Tiers) UniformChoices(chunk, capacity int) [][]int {
	return p.choices(chunk, func(float64) int { return capacity })
}

// choices gives every expert the capacity that rows says for its load; 0: the CPU.
func (p *Tiers) choices(chunk int, rows func(load float64) int) (out [][]int) {
	for l := range p.Chunks[chunk].Layers {
		var list []int
		for _, load := range p.Chunks[chunk].Layers[l].MeanLoads() {
			list = append(list, slices.Index(p.Capacities, rows(load))+1)
		}
		out = append(out, list)
	}
	return out
}

// GroupsOf are the groups of one layer's choices: those of TierGroups, the busiest experts first.
func (t *TierTable) GroupsOf(loads []float64, choices []int) (out []TierGroup) {
	tiers := make([]int, len(choices))
	for expert, choice := range choices {
		tiers[expert] = choice - 1
	}
	for _, group := range byLoad(loads, tiers) {
		at := 0
		for _, size := range t.Groups[group.Tier].sizes(len(group.Experts)) {
			out = append(out, TierGroup{group.Tier, group.Experts[at : at+size : at+size]})
			at += size
		}
	}
	return out
}

// Padding counts the rows that one layer reserves on the NPU over all observed chunks, and those of them that nobody
// uses.
func (p *Tiers) Padding(chunk, layer int, choices []int) (unused, reserved float64) {
	for expert, choice := range choices {
		if choice == 0 {
			continue
		}
		for _, routed := range p.Chunks[chunk].Layers[layer].Rows[expert] {
			unused += math.Max(0, float64(p.Capacities[choice-1])-float64(routed))
			reserved += float64(p.Capacities[choice-1])
		}
	}
	return unused, reserved
}
