package exact

import (
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// multipliers take the problem apart; problem.TierOne is one ns of a time, or the whole of a weight.
type multipliers struct {
	alpha []int64 // by layer and chunk: weight of the control processor's time, the rest is the groups'
	price []int64 // by layer and tier: of a slot
	drop  []int64 // by layer: of a dropped row
	cost  []int64 // by layer, expert and choice: time by alpha; shared by boxes with the same alpha

	groups int64   // weight of the groups' time in all layers
	base   []int64 // by tier: the part of a price that is the same in all layers
}

// copy is a copy with prices of its own; alpha and cost are replaced, never changed.
func (m *multipliers) copy() *multipliers {
	out := *m
	out.price, out.drop = slices.Clone(m.price), slices.Clone(m.drop)
	return &out
}

// start are multipliers to begin with: both processors count alike, and all layers pay the same.
func (s *tierSearch) start() *multipliers {
	out := &multipliers{alpha: make([]int64, s.layers*s.chunks), price: make([]int64, s.layers*s.tiers),
		drop: make([]int64, s.layers), base: make([]int64, s.tiers)}
	for i := range out.alpha {
		out.alpha[i] = problem.TierOne / 2
	}
	s.weigh(out)
	return out
}

// weigh computes what follows from alpha.
func (s *tierSearch) weigh(m *multipliers) {
	m.cost = make([]int64, s.layers*s.experts*(s.tiers+1))
	m.groups = 0
	for layer := range s.layers {
		alpha := m.alpha[layer*s.chunks : (layer+1)*s.chunks]
		if s.p.Serial {
			for chunk := range alpha {
				alpha[chunk] = problem.TierOne
			}
		}
		for _, weight := range alpha {
			if s.p.Serial {
				weight = 0
			}
			m.groups += problem.TierOne - weight
		}
		for expert := range s.experts {
			at := (layer*s.experts + expert) * (s.tiers + 1)
			s.weighted(layer, expert, alpha, m.cost[at:at+s.tiers+1])
		}
	}
	s.work += int64(len(s.leftNS))
	s.rebase(m)
}

// rebase has all layers together pay for slots what they cost in the cheapest number, so that groups neither gain nor
// lose by offering more: prices above that, or below, make a poor bound.
func (s *tierSearch) rebase(m *multipliers) {
	base := make([]int64, s.tiers)
	for tier := range base {
		least := int64(math.MaxInt64)
		for count := 1; count <= s.most; count++ {
			least = min(least, s.slotValue(m, tier, count, 0)/int64(count))
		}
		base[tier] = least / int64(s.layers)
		for layer := range s.layers {
			at := layer*s.tiers + tier
			m.price[at] = max(0, m.price[at]+base[tier]-m.base[tier])
		}
	}
	m.base = base
}

// weighted sums an expert's times over observed chunks, by choice.
func (s *tierSearch) weighted(layer, expert int, alpha []int64, sum []int64) {
	clear(sum)
	left := s.left(layer, expert)
	for chunk, weight := range alpha {
		if weight == 0 {
			continue
		}
		for choice, ns := range left[chunk*len(sum) : (chunk+1)*len(sum)] {
			sum[choice] += weight * int64(ns)
		}
	}
}

// tierRelaxation is what the parts choose under given multipliers.
type tierRelaxation struct {
	bound  int64 // in ns
	fixed  int64 // the part of it that does not depend on slots, times problem.TierOne
	slots  []int // by tier: what the groups choose
	taken  []int // by layer and tier: what the layers choose
	choice []int // by layer and expert
}

// relax bounds a box.
func (s *tierSearch) relax(node *box) *tierRelaxation {
	out := &tierRelaxation{slots: make([]int, s.tiers), taken: make([]int, s.layers*s.tiers),
		choice: make([]int, s.layers*s.experts)}
	out.fixed = problem.TierOne * int64(s.layers*s.chunks) * s.p.LayerNS
	for layer := range s.layers {
		for _, weight := range node.alpha[layer*s.chunks : (layer+1)*s.chunks] {
			out.fixed += weight * s.p.CallNS
		}
		if s.drops != nil {
			out.fixed -= node.drop[layer] * s.drops[layer]
		}
		out.fixed += s.buy(node, layer, out)
	}
	s.work += int64(len(node.cost))
	total := out.fixed + s.build(node, out.slots)
	out.bound = ceilDiv(total, problem.TierOne)
	return out
}

// ceilDiv divides, rounding up.
func ceilDiv(a, b int64) int64 {
	if a > 0 {
		return (a + b - 1) / b
	}
	return a / b
}

// buy has every expert of a layer take its cheapest choice, at most s.most of them a slot; it is what they cost.
func (s *tierSearch) buy(node *box, layer int, out *tierRelaxation) (total int64) {
	price := node.price[layer*s.tiers : (layer+1)*s.tiers]
	choices := out.choice[layer*s.experts : (layer+1)*s.experts]
	var savings []int64
	for expert := range choices {
		at := (layer*s.experts + expert) * (s.tiers + 1)
		cost := node.cost[at : at+s.tiers+1]
		least := cost[0]
		for tier, each := range price {
			if node.high[tier] == 0 {
				continue
			}
			with := cost[tier+1] + each
			if s.dropped != nil {
				with += node.drop[layer] * s.dropped[at+tier+1]
			}
			if with < least {
				least, choices[expert] = with, tier+1
			}
		}
		total += least
		if choices[expert] > 0 && s.most < s.experts {
			savings = append(savings, cost[0]-least)
		}
	}
	if len(savings) > s.most {
		total += s.keepBest(savings, choices)
	}
	for _, choice := range choices {
		if choice > 0 {
			out.taken[layer*s.tiers+choice-1]++
		}
	}
	return total
}

// keepBest takes the slots away from all but the s.most experts that save most; it is what that costs.
func (s *tierSearch) keepBest(savings []int64, choices []int) (lost int64) {
	sorted := slices.Clone(savings)
	slices.Sort(sorted)
	least := sorted[len(sorted)-s.most]
	equal := s.most // slots for those that save exactly the least
	for _, saved := range savings {
		if saved > least {
			equal--
		}
	}
	at := 0
	for expert, choice := range choices {
		if choice == 0 {
			continue
		}
		saved := savings[at]
		at++
		if saved == least && equal > 0 {
			equal--
		} else if saved <= least {
			lost += saved
			choices[expert] = 0
		}
	}
	return lost
}

// build has every tier take the number of slots that costs least by what layers pay for them, in at most so many
// tiers as may be in use; it is what they cost.
func (s *tierSearch) build(node *box, slots []int) (total int64) {
	free := s.p.MaxTiers
	var values []int64
	var at []int
	for tier := range s.tiers {
		paid := int64(0)
		for layer := range s.layers {
			paid += node.price[layer*s.tiers+tier]
		}
		least := int64(math.MaxInt64)
		for count := node.low[tier]; count <= node.high[tier]; count++ {
			if value := s.slotValue(node.multipliers, tier, count, paid); value < least {
				least, slots[tier] = value, count
			}
		}
		if node.low[tier] > 0 {
			total += least
			free--
		} else if slots[tier] > 0 {
			values, at = append(values, least), append(at, tier)
		}
	}
	// Of tiers that may stay unused those with the most gain are used.
	for len(values) > 0 {
		best := 0
		for i := range values {
			if values[i] < values[best] {
				best = i
			}
		}
		if free > 0 {
			total += values[best]
			free--
		} else {
			slots[at[best]] = 0
		}
		values, at = slices.Delete(values, best, best+1), slices.Delete(at, best, best+1)
	}
	return total
}

// slotValue is what a number of slots of a tier costs beyond what is paid for each.
func (s *tierSearch) slotValue(m *multipliers, tier, count int, paid int64) int64 {
	groups := &s.groups[tier]
	return m.groups*groups.NS[count] + problem.TierOne*int64(s.chunks)*s.p.ShapeNS*groups.Shapes[count] -
		int64(count)*paid
}

// improve raises a box's bound by rounds of the subgradient method with Polyak's steps, each of the kinds of
// multipliers with its own, and keeps the best multipliers. Only the root moves alpha, since its costs are summed over
// all observed chunks.
func (s *tierSearch) improve(node *box, rounds int) {
	best, since, step := node.multipliers.copy(), 0, 1.0
	moveAlpha := !s.p.Serial && (rounds == tierRootRounds || len(s.leftNS) < 1<<14)
	for round := range rounds {
		if s.ctx.Err() != nil {
			break
		}
		relaxed := s.relax(node)
		if relaxed.bound > node.bound {
			node.bound, since, best = relaxed.bound, 0, node.multipliers.copy()
		} else if since++; since%5 == 0 { // the steps were too long: begin again at the best multipliers
			step /= 2
			node.multipliers = best.copy()
			relaxed = s.relax(node)
		}
		if node.bound >= s.best.Objective {
			break
		}
		if round%16 == 0 && rounds == tierRootRounds {
			s.suggest(relaxed)
		}
		s.move(node, relaxed, step, moveAlpha && round%2 == 0)
	}
	node.multipliers = best
}

// move takes a step along the subgradient.
func (s *tierSearch) move(node *box, relaxed *tierRelaxation, step float64, alpha bool) {
	missing := step * float64(s.best.Objective-relaxed.bound)
	if missing <= 0 {
		missing = step * float64(s.best.Objective) / 1024
	}
	// Layers should take equally many slots, and so many as the box permits. Steps towards what the groups choose, all
	// or none, would swing.
	wanted := make([]float64, s.tiers)
	for tier := range wanted {
		for layer := range s.layers {
			wanted[tier] += float64(relaxed.taken[layer*s.tiers+tier])
		}
		mean := wanted[tier] / float64(s.layers)
		wanted[tier] = max(float64(node.low[tier]), min(float64(node.high[tier]), mean))
	}
	norm := 0.0
	for i, taken := range relaxed.taken {
		far := float64(taken) - wanted[i%s.tiers]
		norm += float64(far * far)
	}
	if norm > 0 {
		each := missing * problem.TierOne / norm
		for i, taken := range relaxed.taken {
			change := int64(math.Round(float64(each * (float64(taken) - wanted[i%s.tiers]))))
			node.price[i] = max(0, node.price[i]+change)
		}
	}
	if s.drops != nil {
		s.moveDrops(node, relaxed, missing)
	}
	if alpha {
		s.moveAlpha(node, relaxed, wanted, missing)
	}
}

// moveDrops is move of the prices of dropped rows.
func (s *tierSearch) moveDrops(node *box, relaxed *tierRelaxation, missing float64) {
	for layer := range s.layers {
		over := -s.drops[layer]
		for expert, choice := range relaxed.choice[layer*s.experts : (layer+1)*s.experts] {
			over += s.drop(layer, expert, choice)
		}
		if over == 0 {
			continue
		}
		step := missing * problem.TierOne / float64(s.layers) / float64(over)
		node.drop[layer] = max(0, node.drop[layer]+int64(math.Round(step)))
	}
}

// moveAlpha is move of the weights of the two processors' times.
func (s *tierSearch) moveAlpha(node *box, relaxed *tierRelaxation, wanted []float64, missing float64) {
	npu := int64(0)
	for tier, slots := range wanted {
		groups := s.groups[tier].NS
		low := min(int(slots), len(groups)-2)
		part := float64((slots - float64(low)) * float64(groups[low+1]-groups[low]))
		npu += groups[low] + int64(part)
	}
	longer := make([]float64, s.layers*s.chunks) // the control processor takes than the groups
	norm := 0.0
	for layer := range s.layers {
		for chunk := range s.chunks {
			cpu := s.p.CallNS
			for expert, choice := range relaxed.choice[layer*s.experts : (layer+1)*s.experts] {
				cpu += int64(s.left(layer, expert)[chunk*(s.tiers+1)+choice])
			}
			far := float64(cpu - npu)
			longer[layer*s.chunks+chunk] = far
			norm += float64(far * far)
		}
	}
	s.work += int64(s.layers * s.chunks * s.experts)
	if norm == 0 {
		return
	}
	node.alpha = slices.Clone(node.alpha)
	for i, far := range longer {
		step := int64(math.Round(float64(missing * problem.TierOne / norm * far)))
		node.alpha[i] = max(0, min(problem.TierOne, node.alpha[i]+step))
	}
	s.weigh(node.multipliers)
}
