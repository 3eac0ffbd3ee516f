package exact

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// suggest tries the numbers of slots that the parts of a relaxation choose: the groups, and the layers on average.
func (s *tierSearch) suggest(relaxed *tierRelaxation) {
	s.try(relaxed.slots)
	mean := make([]int, s.tiers)
	for i, taken := range relaxed.taken {
		mean[i%s.tiers] += taken
	}
	for s.used(mean) > s.p.MaxTiers { // the least wanted tier's slots go to the next larger one, or smaller
		least := -1
		for tier, count := range mean {
			if count > 0 && (least < 0 || count < mean[least]) {
				least = tier
			}
		}
		other := -1
		for tier, count := range mean {
			if count > 0 && tier != least && (other < 0 || other < least) {
				other = tier
			}
		}
		if other >= 0 {
			mean[other] += mean[least]
		}
		mean[least] = 0
	}
	for tier := range mean {
		mean[tier] = (mean[tier] + s.layers/2) / s.layers
	}
	for s.count(mean) > s.most {
		largest := 0
		for tier := range mean {
			if mean[tier] > mean[largest] {
				largest = tier
			}
		}
		mean[largest]--
	}
	s.try(mean)
}

// strides are how many slots a move adds, takes away, or gives to another tier; long ones come first, for a start that
// is far off.
var strides = []int{32, 16, 8, 4, 2, 1}

// descend moves slots, as long as that improves the best solution. Moves whose bound by the box's multipliers is too
// high are left out.
func (s *tierSearch) descend(root *box) {
	relaxed := s.relax(root)
	paid := make([]int64, s.tiers)
	for i, price := range root.price {
		paid[i%s.tiers] += price
	}
	promising := func(slots []int) bool {
		total := relaxed.fixed
		for tier, count := range slots {
			total += s.slotValue(root.multipliers, tier, count, paid[tier])
		}
		return ceilDiv(total, problem.TierOne) < s.best.Objective
	}
	for moved := true; moved && s.ctx.Err() == nil && s.work < tierWork/2; {
		moved = false
		from := slices.Clone(s.best.Slots)
		for _, slots := range s.neighbours(from) {
			if !promising(slots) {
				continue
			}
			before := s.best.Objective
			s.try(slots)
			if s.best.Objective < before {
				moved = true
				break
			}
		}
	}
}

// neighbours are numbers of slots around others.
func (s *tierSearch) neighbours(from []int) (out [][]int) {
	add := func(change func(slots []int)) {
		slots := slices.Clone(from)
		change(slots)
		if slices.Min(slots) >= 0 && s.count(slots) <= s.most && s.used(slots) <= s.p.MaxTiers {
			out = append(out, slots)
		}
	}
	for tier := range from {
		for _, stride := range strides {
			add(func(slots []int) { slots[tier] += stride })
			add(func(slots []int) { slots[tier] -= stride })
		}
		if from[tier] == 0 {
			continue
		}
		for other := range from {
			if other == tier {
				continue
			}
			add(func(slots []int) { slots[other], slots[tier] = slots[other]+slots[tier], 0 })
			for _, stride := range strides {
				add(func(slots []int) { slots[tier], slots[other] = slots[tier]-stride, slots[other]+stride })
			}
		}
	}
	return out
}

// try assigns the experts of all layers to slots, once for every numbers of slots.
func (s *tierSearch) try(slots []int) {
	key := fmt.Sprint(slots)
	if s.tried[key] || s.count(slots) > s.most || s.used(slots) > s.p.MaxTiers || s.count(slots) == 0 {
		return
	}
	s.tried[key] = true
	npu, total := s.timeOf(slots)
	choices := make([][]int, s.layers)
	for layer := range s.layers {
		var ns int64
		if choices[layer], ns = s.assign(layer, slots, npu); choices[layer] == nil {
			return
		}
		total += ns + int64(s.chunks)*s.p.LayerNS
	}
	s.offer(slots, choices, total)
}

// assign gives the experts of a layer slots, nil where every assignment that was found drops too many rows. Observed
// chunks count alike at first, and then those in which the control processor took longer than the groups.
func (s *tierSearch) assign(layer int, slots []int, npu int64) (best []int, least int64) {
	alpha := make([]int64, s.chunks)
	for chunk := range alpha {
		alpha[chunk] = problem.TierOne
	}
	least = math.MaxInt64
	for range 3 {
		choices := s.transport(layer, slots, alpha)
		if choices == nil {
			return best, least
		}
		total, changed := int64(0), false
		for chunk := range s.chunks {
			cpu := s.p.CallNS
			for expert, choice := range choices {
				cpu += int64(s.left(layer, expert)[chunk*(s.tiers+1)+choice])
			}
			total += s.layerTime(npu, cpu)
			weight := int64(0)
			if cpu > npu || s.p.Serial {
				weight = problem.TierOne
			}
			changed = changed || alpha[chunk] != weight
			alpha[chunk] = weight
		}
		s.work += int64(s.chunks * s.experts)
		if total < least {
			best, least = choices, total
		}
		if !changed || !slices.Contains(alpha, problem.TierOne) {
			break
		}
	}
	return best, least
}

// transport assigns the experts of a layer to slots so that the weighted sum of their times is least, nil where that
// drops too many rows whatever they cost.
func (s *tierSearch) transport(layer int, slots []int, alpha []int64) []int {
	width := s.tiers + 1
	cost := make([]int64, s.experts*width)
	for expert := range s.experts {
		s.weighted(layer, expert, alpha, cost[expert*width:(expert+1)*width])
	}
	s.work += int64(s.experts * width * s.chunks)
	choices := s.inOrder(slots, cost)
	s.exchange(choices, cost)
	if s.drops == nil || s.overDropped(layer, choices) <= 0 {
		return choices
	}
	for price := int64(problem.TierOne); price < 1<<40; price *= 4 {
		with := slices.Clone(cost)
		for expert := range s.experts {
			for choice := range width {
				with[expert*width+choice] += price * s.drop(layer, expert, choice)
			}
		}
		s.exchange(choices, with)
		if s.overDropped(layer, choices) <= 0 {
			return choices
		}
	}
	return nil
}

// overDropped is how many rows more than it may a layer drops.
func (s *tierSearch) overDropped(layer int, choices []int) int64 {
	over := -s.drops[layer]
	for expert, choice := range choices {
		over += s.drop(layer, expert, choice)
	}
	return over
}

// inOrder gives the largest slots to the experts that take most time without one.
func (s *tierSearch) inOrder(slots []int, cost []int64) []int {
	width := s.tiers + 1
	order := make([]int, s.experts)
	for expert := range order {
		order[expert] = expert
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch first, second := cost[a*width], cost[b*width]; {
		case first > second:
			return -1
		case first < second:
			return 1
		}
		return 0
	})
	choices := make([]int, s.experts)
	next := 0
	for tier := s.tiers - 1; tier >= 0; tier-- {
		for range slots[tier] {
			choices[order[next]] = tier + 1
			next++
		}
	}
	return choices
}

// exchange cancels negative cycles of two and three choices: experts that take each other's places for less time in
// all.
func (s *tierSearch) exchange(choices []int, cost []int64) {
	width := s.tiers + 1
	bins := slices.Compact(slices.Sorted(slices.Values(choices)))
	// the cheapest move from one bin to another, and the expert that makes it
	gain := make([]int64, width*width)
	mover := make([]int, width*width)
	for range 4 * s.experts {
		for _, a := range bins {
			for _, b := range bins {
				gain[a*width+b] = math.MaxInt64
			}
		}
		for expert, from := range choices {
			for _, to := range bins {
				moved := cost[expert*width+to] - cost[expert*width+from]
				if at := from*width + to; to != from && moved < gain[at] {
					gain[at], mover[at] = moved, expert
				}
			}
		}
		s.work += int64(s.experts * len(bins))
		cycle := cheapestCycle(bins, gain, width)
		if cycle == nil {
			return
		}
		for i, from := range cycle {
			to := cycle[(i+1)%len(cycle)]
			choices[mover[from*width+to]] = to
		}
	}
}

// cheapestCycle is the cycle of two or three bins whose moves together gain most, nil where none gains.
func cheapestCycle(bins []int, gain []int64, width int) (cycle []int) {
	least := int64(0)
	for i, a := range bins {
		for _, b := range bins[i+1:] {
			if sum := gain[a*width+b] + gain[b*width+a]; sum < least {
				least, cycle = sum, []int{a, b}
			}
			for _, c := range bins[i+1:] {
				if c == b {
					continue
				}
				if sum := gain[a*width+b] + gain[b*width+c] + gain[c*width+a]; sum < least {
					least, cycle = sum, []int{a, b, c}
				}
			}
		}
	}
	return cycle
}

// enumeration is the search for the best assignment of one layer, depth first.
type enumeration struct {
	s       *tierSearch
	layer   int
	npu     int64
	room    []int     // by choice
	least   [][]int64 // by expert and chunk: of this expert and all after it, whatever their choices
	at      []int
	over    int64
	best    int64
	choices []int
	nodes   int
}

// enumerate finds the best assignment of a layer to given slots.
func (s *tierSearch) enumerate(layer int, slots []int, npu int64) *enumeration {
	e := &enumeration{s: s, layer: layer, npu: npu, room: append([]int{s.experts - s.count(slots)}, slots...),
		best: math.MaxInt64, at: make([]int, s.experts), least: make([][]int64, s.experts+1)}
	if s.drops != nil {
		e.over = -s.drops[layer]
	}
	e.choices, e.best = s.assign(layer, slots, npu)
	e.least[s.experts] = make([]int64, s.chunks)
	for expert := s.experts - 1; expert >= 0; expert-- {
		e.least[expert] = slices.Clone(e.least[expert+1])
		for chunk := range s.chunks {
			least := int64(math.MaxInt64)
			for choice, room := range e.room {
				if room > 0 {
					least = min(least, int64(s.left(layer, expert)[chunk*(s.tiers+1)+choice]))
				}
			}
			e.least[expert][chunk] += least
		}
	}
	cpu := make([]int64, s.chunks)
	for chunk := range cpu {
		cpu[chunk] = s.p.CallNS
	}
	e.walk(0, cpu)
	s.work += int64(e.nodes * s.chunks)
	return e
}

// walk gives an expert and all after it choices; cpu is what those before it take.
func (e *enumeration) walk(expert int, cpu []int64) {
	s := e.s
	if e.nodes++; e.nodes > enumeratedWork {
		return
	}
	bound := int64(0)
	for chunk, ns := range cpu {
		bound += s.layerTime(e.npu, ns+e.least[expert][chunk])
	}
	if bound >= e.best || e.over > 0 {
		return
	}
	if expert == s.experts {
		e.best, e.choices = bound, slices.Clone(e.at)
		return
	}
	next := make([]int64, len(cpu))
	for choice := range e.room {
		if e.room[choice] == 0 {
			continue
		}
		for chunk := range next {
			next[chunk] = cpu[chunk] + int64(s.left(e.layer, expert)[chunk*(s.tiers+1)+choice])
		}
		dropped := s.drop(e.layer, expert, choice)
		e.room[choice]--
		e.over += dropped
		e.at[expert] = choice
		e.walk(expert+1, next)
		e.over -= dropped
		e.room[choice]++
	}
}
