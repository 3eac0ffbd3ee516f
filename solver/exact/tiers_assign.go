package exact

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// layerSearch assigns the experts of one layer to given slots, so that the longer of the groups' and the control
// processor's time, summed over the observed chunks, is least.
//
// With a weight of the control processor's time for every chunk, and the rest for the groups', that is a transportation
// problem: every expert has a cost for every choice. Exchanges along cycles of choices solve it, until there is no cycle
// that gains; shortest paths between choices are then the prices of slots. Its value is a bound. A subgradient method
// moves the weights towards chunks in which the control processor takes longer, with Polyak's steps: as long as would
// close the distance to the best assignment if the bound were linear. Rows that a layer may drop have a price likewise.
type layerSearch struct {
	s     *tierSearch
	layer int
	slots []int
	npu   int64 // time of the groups
	bins  []int // choices that are there: none, and the tiers with slots

	cost    []int64 // by expert and choice, of bins
	choices []int
	gain    []int64 // by two choices: the least that moving an expert costs
	mover   []int   // likewise: the expert
	cpu     []int64 // by chunk

	best   []int // choices that take least; nil: all that were seen drop too many rows
	bestNS int64

	value     int64 // the best bound, times problem.TierOne, with the multipliers that give it
	alpha     []int64
	price     []int64 // of a slot, by choice
	dropPrice int64
}

// unmovable is a gain where there is no expert to move.
const unmovable = 1 << 61

// layer begins the search for a layer.
func (s *tierSearch) layer(layer int, slots []int, npu int64) *layerSearch {
	width := s.tiers + 1
	l := &layerSearch{s: s, layer: layer, slots: slots, npu: npu, bins: []int{0}, cost: make([]int64, s.experts*width),
		choices: make([]int, s.experts), gain: make([]int64, width*width), mover: make([]int, width*width),
		cpu: make([]int64, s.chunks), bestNS: math.MaxInt64, price: make([]int64, width)}
	for tier, count := range slots {
		if count > 0 {
			l.bins = append(l.bins, tier+1)
		}
	}
	return l
}

// evaluate assigns the experts of all layers to slots, which is a solution where they keep all limits, and adds what the
// layers' bounds say of all numbers of slots.
func (s *tierSearch) evaluate(slots []int) {
	npu, total := s.timeOf(slots)
	choices := make([][]int, s.layers)
	var base, weight int64
	price := make([]int64, s.tiers)
	found := s.count(slots) > 0
	for layer := range s.layers {
		l := s.layer(layer, slots, npu)
		l.search()
		copy(s.alpha[layer*s.chunks:], l.alpha)
		s.dropPrice[layer] = l.dropPrice
		layerBase, layerWeight := l.cut(price)
		base, weight = base+layerBase, weight+layerWeight
		if choices[layer] = l.best; l.best == nil {
			found = false
			continue
		}
		total += l.bestNS + int64(s.chunks)*s.p.LayerNS
	}
	s.cutAt[slotKey(slots)] = true
	s.addCuts(base, weight, price)
	if found {
		s.offer(slots, choices, total)
	}
}

// search goes through rounds of weights.
func (l *layerSearch) search() {
	s := l.s
	alpha, dropPrice := slices.Clone(s.alpha[l.layer*s.chunks:(l.layer+1)*s.chunks]), s.dropPrice[l.layer]
	step, since := 1.0, 0
	for round := range cutRounds {
		l.sumCosts(alpha, dropPrice, l.bins)
		if round == 0 {
			l.inOrder()
		}
		l.exchange()
		over := l.keepBest()
		if value := l.bound(alpha, dropPrice); l.alpha == nil || value > l.value {
			l.value, l.alpha, l.dropPrice, since = value, slices.Clone(alpha), dropPrice, 0
			l.prices()
		} else if since++; since%4 == 0 {
			step /= 2
		}
		missing := float64(l.value) / 64
		if l.best != nil {
			missing = float64(l.bestNS*problem.TierOne - l.value)
		}
		if l.best != nil && missing <= float64(l.bestNS)*(problem.TierOne/4096.0) {
			break
		}
		if s.drops != nil {
			dropPrice = l.moveDrop(dropPrice, over, step*missing)
		} else if s.p.Serial {
			break
		}
		if !s.p.Serial {
			l.moveAlpha(alpha, step*missing)
		}
	}
	for price := max(dropPrice, problem.TierOne); l.best == nil && price < 1<<40; price *= 4 {
		l.sumCosts(alpha, price, l.bins)
		l.exchange()
		l.keepBest()
	}
}

// sumCosts sums the weighted times of the layer's experts over the observed chunks, for some choices.
func (l *layerSearch) sumCosts(alpha []int64, dropPrice int64, of []int) {
	s, width := l.s, l.s.tiers+1
	for expert := range s.experts {
		sum := l.cost[expert*width : (expert+1)*width]
		for _, choice := range of {
			sum[choice] = dropPrice * s.drop(l.layer, expert, choice)
		}
		left := s.left(l.layer, expert)
		for chunk, weight := range alpha {
			if weight == 0 {
				continue
			}
			list := left[chunk*width : (chunk+1)*width]
			for _, choice := range of {
				sum[choice] += weight * int64(list[choice])
			}
		}
	}
	s.work += int64(s.experts * len(of) * s.chunks)
}

// inOrder gives the largest slots to the experts that take most time without one.
func (l *layerSearch) inOrder() {
	width := l.s.tiers + 1
	order := make([]int, l.s.experts)
	for expert := range order {
		order[expert] = expert
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(l.cost[b*width], l.cost[a*width]) })
	next := 0
	for tier, count := range slices.Backward(l.slots) {
		for range min(count, len(order)-next) {
			l.choices[order[next]] = tier + 1
			next++
		}
	}
}

// exchange has experts take each other's places along cycles of choices, as long as that costs less in all.
func (l *layerSearch) exchange() {
	width := l.s.tiers + 1
	for range 8 * l.s.experts {
		for _, a := range l.bins {
			for _, b := range l.bins {
				l.gain[a*width+b] = unmovable
			}
		}
		for expert, from := range l.choices {
			cost := l.cost[expert*width : (expert+1)*width]
			for _, to := range l.bins {
				moved := cost[to] - cost[from]
				if at := from*width + to; to != from && moved < l.gain[at] {
					l.gain[at], l.mover[at] = moved, expert
				}
			}
		}
		l.s.work += int64(l.s.experts * len(l.bins))
		cycle := cheapestCycle(l.bins, l.gain, width)
		if cycle == nil && len(l.bins) > 3 {
			cycle = negativeCycle(l.bins, l.gain, width)
		}
		if cycle == nil {
			return
		}
		for i, from := range cycle {
			to := cycle[(i+1)%len(cycle)]
			l.choices[l.mover[from*width+to]] = to
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

// negativeCycle is any cycle of bins whose moves together gain, nil where none does: Bellman and Ford's method, from all
// bins at once.
func negativeCycle(bins []int, gain []int64, width int) (cycle []int) {
	var dist [problem.MaxTierChoices]int64
	var from [problem.MaxTierChoices]int
	last := -1
	for range bins {
		last = -1
		for _, a := range bins {
			for _, b := range bins {
				if with := dist[a] + gain[a*width+b]; a != b && gain[a*width+b] < unmovable && with < dist[b] {
					dist[b], from[b], last = with, a, b
				}
			}
		}
		if last < 0 {
			return nil
		}
	}
	for range bins { // from behind the cycle into it
		last = from[last]
	}
	for at := last; len(cycle) == 0 || at != last; at = from[at] {
		cycle = append(cycle, at)
	}
	slices.Reverse(cycle)
	return cycle
}

// keepBest times the choices and keeps them if they take least. It returns how many rows more than it may the layer
// drops.
func (l *layerSearch) keepBest() (over int64) {
	s, width := l.s, l.s.tiers+1
	for chunk := range l.cpu {
		l.cpu[chunk] = s.p.CallNS
	}
	if s.drops != nil {
		over = -s.drops[l.layer]
	}
	for expert, choice := range l.choices {
		left := s.left(l.layer, expert)
		for chunk := range l.cpu {
			l.cpu[chunk] += int64(left[chunk*width+choice])
		}
		over += s.drop(l.layer, expert, choice)
	}
	total := int64(0)
	for _, cpu := range l.cpu {
		total += s.layerTime(l.npu, cpu)
	}
	s.work += int64(s.experts * s.chunks)
	if over <= 0 && total < l.bestNS {
		l.best, l.bestNS = slices.Clone(l.choices), total
	}
	return over
}

// groupWeight is the weight of the groups' time in all chunks.
func (s *tierSearch) groupWeight(alpha []int64) (sum int64) {
	for _, weight := range alpha {
		if s.p.Serial {
			weight = 0 // both times count in full
		}
		sum += problem.TierOne - weight
	}
	return sum
}

// bound is the value of the transportation problem.
func (l *layerSearch) bound(alpha []int64, dropPrice int64) int64 {
	s, width := l.s, l.s.tiers+1
	value := l.npu * s.groupWeight(alpha)
	for _, weight := range alpha {
		value += weight * s.p.CallNS
	}
	for expert, choice := range l.choices {
		value += l.cost[expert*width+choice]
	}
	if s.drops != nil {
		value -= dropPrice * s.drops[l.layer]
	}
	return value
}

// prices are those of slots after exchange: experts prefer their choice to all others, times and prices taken together.
// What the last slot of a tier saves and what another one would save differ; the price is between.
func (l *layerSearch) prices() {
	width := l.s.tiers + 1
	high, low := l.paths(func(from, to int) int64 { return l.gain[from*width+to] }),
		l.paths(func(from, to int) int64 { return l.gain[to*width+from] })
	for _, bin := range l.bins {
		l.price[bin] = high[bin]
		if low[bin] < unmovable { // some expert has no slot
			l.price[bin] = high[bin] + (-low[bin]-high[bin])/2
		}
	}
}

// paths are the shortest ones from every bin to the one without a slot.
func (l *layerSearch) paths(length func(from, to int) int64) (dist [problem.MaxTierChoices]int64) {
	for _, bin := range l.bins {
		dist[bin] = unmovable
	}
	dist[0] = 0
	for range l.bins {
		for _, from := range l.bins {
			for _, to := range l.bins {
				step := length(from, to)
				if from != to && step < unmovable && dist[to] < unmovable {
					dist[from] = min(dist[from], step+dist[to])
				}
			}
		}
	}
	return dist
}

// moveAlpha takes a step along the subgradient of the weights, which is how much longer the control processor takes.
// Weights at the end of their range count only where they would leave it.
func (l *layerSearch) moveAlpha(alpha []int64, missing float64) {
	norm := 0.0
	far := make([]float64, len(alpha))
	for chunk, cpu := range l.cpu {
		longer := cpu - l.npu
		if longer > 0 && alpha[chunk] == problem.TierOne || longer < 0 && alpha[chunk] == 0 {
			continue
		}
		far[chunk] = float64(longer)
		norm += float64(far[chunk] * far[chunk])
	}
	if norm == 0 {
		return
	}
	each := missing / norm
	for chunk := range alpha {
		step := int64(math.Round(float64(each * far[chunk])))
		alpha[chunk] = max(0, min(problem.TierOne, alpha[chunk]+step))
	}
}

// moveDrop takes a step of the price of a dropped row.
func (l *layerSearch) moveDrop(price, over int64, missing float64) int64 {
	switch {
	case over == 0:
		return price
	case over > 0 && l.best == nil:
		return min(1<<40, 2*price+problem.TierOne)
	}
	step := missing / 2 / math.Abs(float64(over))
	if over > 0 {
		return min(1<<40, price+max(1, int64(step)))
	}
	return max(0, price-int64(step))
}

// cut is what the layer adds to a cut, with the multipliers of its best bound: to the base, to the weight of the groups'
// time, and to the prices of slots by tier. A slot of a tier that has none costs as much as no expert saves by it.
func (l *layerSearch) cut(prices []int64) (base, weight int64) {
	s, width := l.s, l.s.tiers+1
	all := make([]int, width)
	for choice := range all {
		all[choice] = choice
	}
	l.sumCosts(l.alpha, l.dropPrice, all)
	dearest := int64(0)
	for _, cost := range l.cost {
		dearest = max(dearest, cost)
	}
	for choice := 1; choice < width; choice++ {
		if l.slots[choice-1] > 0 {
			l.price[choice] = max(-dearest, min(dearest, l.price[choice]))
		} else {
			l.price[choice] = -dearest
		}
	}
	for expert := range s.experts {
		cost := l.cost[expert*width : (expert+1)*width]
		least := cost[0]
		for _, bin := range l.bins[1:] {
			least = min(least, cost[bin]+l.price[bin])
		}
		base += least
		for choice := 1; choice < width; choice++ {
			if l.slots[choice-1] == 0 {
				l.price[choice] = max(l.price[choice], least-cost[choice])
			}
		}
	}
	for tier := range prices {
		prices[tier] += l.price[tier+1]
	}
	for _, part := range l.alpha {
		base += part * s.p.CallNS
	}
	if s.drops != nil {
		base -= l.dropPrice * s.drops[l.layer]
	}
	return base + problem.TierOne*int64(s.chunks)*s.p.LayerNS, s.groupWeight(l.alpha)
}

// seeds are numbers of slots to begin with: what experts take by the weights so far, in the mean of the layers, where a
// slot costs its part of the cheapest group; and these in as many tiers as may be in use.
func (s *tierSearch) seeds() (out [][]int) {
	width := s.tiers + 1
	taken := make([]int, s.tiers)
	all := make([]int, width)
	for choice := range all {
		all[choice] = choice
	}
	for layer := range s.layers {
		alpha := s.alpha[layer*s.chunks : (layer+1)*s.chunks]
		l := s.layer(layer, nil, 0)
		l.sumCosts(alpha, s.dropPrice[layer], all)
		weight := s.groupWeight(alpha)
		for expert := range s.experts {
			least, at := l.cost[expert*width], -1
			for tier, groups := range s.groups {
				slots := s.p.MostOf(tier)
				if slots == 0 {
					continue
				}
				if with := l.cost[expert*width+tier+1] + weight*groups.NS[slots]/int64(slots); with < least {
					least, at = with, tier
				}
			}
			if at >= 0 {
				taken[at]++
			}
		}
	}
	for merged := taken; ; merged = s.merge(merged) {
		slots := make([]int, s.tiers)
		for tier, count := range merged {
			slots[tier] = min(s.p.MostOf(tier), (count+s.layers/2)/s.layers)
		}
		for s.count(slots) > s.most || s.p.Overfull(slots) != nil {
			largest := 0
			for tier, count := range slots {
				if count > slots[largest] {
					largest = tier
				}
			}
			slots[largest]--
		}
		if s.used(merged) == s.used(taken) || s.used(merged) <= s.p.MaxTiers {
			out = append(out, slots)
		}
		if s.used(merged) <= s.p.MaxTiers {
			return out
		}
	}
}

// merge gives the slots of the least wanted tier to the next larger one, or else the next smaller one.
func (s *tierSearch) merge(slots []int) []int {
	out, least, other := slices.Clone(slots), -1, -1
	for tier, count := range slots {
		if count > 0 && (least < 0 || count < slots[least]) {
			least = tier
		}
	}
	for tier, count := range slots {
		if count > 0 && tier != least && (other < 0 || other < least) {
			other = tier
		}
	}
	out[least], out[other] = 0, out[other]+out[least]
	return out
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
	start := s.layer(layer, slots, npu)
	start.search()
	e.choices, e.best = start.best, start.bestNS
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
