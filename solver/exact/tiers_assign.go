package exact

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// layerSearch assigns the experts of one layer to given slots. It minimises the longer of the groups' and the control
// processor's time, summed over the observed chunks.
//
// It solves the Lagrangian dual. For every chunk a weight alpha in [0, 1] replaces the maximum of the two times by
// their weighted sum, which is never larger. What is left is a transportation problem: every expert has a cost for
// every choice, and choices have capacities. Cycle cancelling solves it: experts exchange places along cycles of
// choices until no cycle gains. The shortest paths between choices are then the prices of slots, and the value is a
// bound.
//
// A subgradient method moves the weights towards the chunks in which the control processor takes longer. Its steps are
// Polyak's: they would close the distance to the best assignment if the bound were linear. Rows that a layer may drop
// have a price that moves likewise. Every assignment on the way is a solution of the layer.
type layerSearch struct {
	s     *tierSearch
	layer int
	slots []int
	npu   int64 // time of the groups
	bins  []int // the choices with room: no slot (0), and the tiers that have slots

	cost    []int64 // by expert and choice, of bins
	choices []int   // the present assignment
	gain    []int64 // by two choices: the least cost of moving an expert from the first to the second
	mover   []int   // by two choices: that expert
	cpu     []int64 // the control processor's time by chunk

	best   []int // the assignment that takes least; nil: all that were found drop too many rows
	bestNS int64

	value     int64 // the best bound, times problem.TierOne, with the multipliers that give it
	alpha     []int64
	price     []int64 // of a slot, by choice
	dropPrice int64
}

// unmovable stands in gain where there is no expert to move.
const unmovable = 1 << 61

// layer prepares the search for a layer.
func (s *tierSearch) layer(layer int, slots []int, npu int64) *layerSearch {
	width := s.tiers + 1
	search := &layerSearch{s: s, layer: layer, slots: slots, npu: npu, bins: []int{0},
		cost: make([]int64, s.experts*width), price: make([]int64, width), cpu: make([]int64, s.chunks),
		gain: make([]int64, width*width), mover: make([]int, width*width),
		choices: make([]int, s.experts), bestNS: math.MaxInt64}
	for tier, count := range slots {
		if count > 0 {
			search.bins = append(search.bins, tier+1)
		}
	}
	return search
}

// evaluate assigns the experts of all layers to slots, and adds the cut that follows from the layers' bounds. The
// assignment is a solution if it keeps all limits.
func (s *tierSearch) evaluate(slots []int) {
	npu, total := s.timeOf(slots)
	choices := make([][]int, s.layers)
	var base, weight int64
	price := make([]int64, s.tiers)
	found := s.count(slots) > 0

	for layer := range s.layers {
		assign := s.layer(layer, slots, npu)
		assign.search()
		copy(s.alpha[layer*s.chunks:], assign.alpha)
		s.dropPrice[layer] = assign.dropPrice

		layerBase, layerWeight := assign.cut(price)
		base, weight = base+layerBase, weight+layerWeight
		if choices[layer] = assign.best; assign.best == nil {
			found = false
			continue
		}
		total += assign.bestNS + int64(s.chunks)*s.p.LayerNS
	}
	s.cutAt[slotKey(slots)] = true
	s.addCuts(base, weight, price)
	if found {
		s.offer(slots, choices, total)
	}
}

// search takes at most cutRounds subgradient steps. If every assignment dropped too many rows, it then raises the price
// of a dropped row until one does not.
func (l *layerSearch) search() {
	master := l.s
	alpha := slices.Clone(master.alpha[l.layer*master.chunks : (l.layer+1)*master.chunks])
	dropPrice := master.dropPrice[l.layer]

	step, since := 1.0, 0
	for round := range cutRounds {
		l.sumCosts(alpha, dropPrice, l.bins)
		if round == 0 {
			l.inOrder()
		}
		l.exchange()

		over := l.keepBest()
		value := l.bound(alpha, dropPrice)
		if l.alpha == nil || value > l.value {
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

		if master.drops != nil {
			dropPrice = l.moveDrop(dropPrice, over, step*missing)
		} else if master.p.Serial {
			break
		}
		if !master.p.Serial {
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
	master, width := l.s, l.s.tiers+1
	for expert := range master.experts {
		sum := l.cost[expert*width : (expert+1)*width]
		for _, choice := range of {
			sum[choice] = dropPrice * master.drop(l.layer, expert, choice)
		}

		left := master.left(l.layer, expert)
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
	master.work += int64(master.experts * len(of) * master.chunks)
}

// inOrder makes the first assignment: the largest slots go to the experts that take most time without one.
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

// exchange cancels negative cycles: experts take each other's places along a cycle of choices, as long as that lowers
// the cost of the assignment.
func (l *layerSearch) exchange() {
	width := l.s.tiers + 1
	for range 8 * l.s.experts {
		for _, from := range l.bins {
			for _, to := range l.bins {
				l.gain[from*width+to] = unmovable
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

// cheapestCycle returns the cycle of two or three bins whose moves together gain most, nil if none gains.
func cheapestCycle(bins []int, gain []int64, width int) (cycle []int) {
	least := int64(0)
	for i, first := range bins {
		for _, second := range bins[i+1:] {
			if sum := gain[first*width+second] + gain[second*width+first]; sum < least {
				least, cycle = sum, []int{first, second}
			}
			for _, third := range bins[i+1:] {
				if third == second {
					continue
				}
				if sum := gain[first*width+second] + gain[second*width+third] + gain[third*width+first]; sum < least {
					least, cycle = sum, []int{first, second, third}
				}
			}
		}
	}
	return cycle
}

// negativeCycle returns a cycle of bins whose moves together gain, nil if none does. It is the Bellman-Ford method,
// from all bins at once.
func negativeCycle(bins []int, gain []int64, width int) (cycle []int) {
	var dist [problem.MaxTierChoices]int64
	var before [problem.MaxTierChoices]int
	last := -1
	for range bins {
		last = -1
		for _, from := range bins {
			for _, to := range bins {
				step := gain[from*width+to]
				if from != to && step < unmovable && dist[from]+step < dist[to] {
					dist[to], before[to], last = dist[from]+step, from, to
				}
			}
		}
		if last < 0 {
			return nil
		}
	}

	for range bins { // last may lie behind the cycle: walk into it
		last = before[last]
	}
	for at := last; len(cycle) == 0 || at != last; at = before[at] {
		cycle = append(cycle, at)
	}
	slices.Reverse(cycle)
	return cycle
}

// keepBest finds the time of the present assignment and keeps it if that is the least so far. It returns by how many
// rows the layer drops more than it may.
func (l *layerSearch) keepBest() (over int64) {
	master, width := l.s, l.s.tiers+1
	for chunk := range l.cpu {
		l.cpu[chunk] = master.p.CallNS
	}
	if master.drops != nil {
		over = -master.drops[l.layer]
	}

	for expert, choice := range l.choices {
		left := master.left(l.layer, expert)
		for chunk := range l.cpu {
			l.cpu[chunk] += int64(left[chunk*width+choice])
		}
		over += master.drop(l.layer, expert, choice)
	}

	total := int64(0)
	for _, cpu := range l.cpu {
		total += master.layerTime(l.npu, cpu)
	}
	master.work += int64(master.experts * master.chunks)
	if over <= 0 && total < l.bestNS {
		l.best, l.bestNS = slices.Clone(l.choices), total
	}
	return over
}

// groupWeight returns the weight of the groups' time, summed over the chunks.
func (s *tierSearch) groupWeight(alpha []int64) (sum int64) {
	for _, weight := range alpha {
		if s.p.Serial {
			weight = 0 // both times count in full
		}
		sum += problem.TierOne - weight
	}
	return sum
}

// bound returns the value of the transportation problem, a lower bound for the layer.
func (l *layerSearch) bound(alpha []int64, dropPrice int64) int64 {
	master, width := l.s, l.s.tiers+1
	value := l.npu * master.groupWeight(alpha)
	for _, weight := range alpha {
		value += weight * master.p.CallNS
	}
	for expert, choice := range l.choices {
		value += l.cost[expert*width+choice]
	}
	if master.drops != nil {
		value -= dropPrice * master.drops[l.layer]
	}
	return value
}

// prices finds the prices of slots after exchange: with them every expert prefers its own choice. A tier's last slot
// saves more than one slot more would; the price is the middle of the two.
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

// paths returns the lengths of the shortest paths from every bin to the bin without a slot.
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

// moveAlpha takes a step along the subgradient of the weights: by how much the control processor takes longer than the
// groups in each chunk. Weights that are at the end of their range and would leave it do not count.
func (l *layerSearch) moveAlpha(alpha []int64, missing float64) {
	norm := 0.0
	far := make([]float64, len(alpha))
	for chunk, cpu := range l.cpu {
		longer := cpu - l.npu
		atTop, atBottom := alpha[chunk] == problem.TierOne, alpha[chunk] == 0
		if longer > 0 && atTop || longer < 0 && atBottom {
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

// moveDrop takes a subgradient step of the price of a dropped row.
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

// cut returns what the layer adds to a cut, with the multipliers of its best bound: to the base, to the weight of the
// groups' time, and, in prices, to the prices of slots by tier. A tier without slots gets the least price at which no
// expert would gain by a slot of it.
func (l *layerSearch) cut(prices []int64) (base, weight int64) {
	master, width := l.s, l.s.tiers+1
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

	for expert := range master.experts {
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
		base += part * master.p.CallNS
	}
	if master.drops != nil {
		base -= l.dropPrice * master.drops[l.layer]
	}
	return base + problem.TierOne*int64(master.chunks)*master.p.LayerNS, master.groupWeight(l.alpha)
}

// seeds returns numbers of slots to begin with: those of wanted, and if they use more tiers than may be in use, a
// second list that merges them into fewer.
func (s *tierSearch) seeds() (out [][]int) {
	wanted := s.wanted()
	for merged := wanted; ; merged = s.merge(merged) {
		fits := s.used(merged) <= s.p.MaxTiers
		if fits || s.used(merged) == s.used(wanted) {
			out = append(out, s.meanSlots(merged))
		}
		if fits {
			return out
		}
	}
}

// wanted counts how many experts of all layers take each tier, if each takes the choice that is cheapest by the present
// weights. A slot costs its share of the tier's groups with all slots.
func (s *tierSearch) wanted() []int {
	width := s.tiers + 1
	taken := make([]int, s.tiers)
	all := make([]int, width)
	for choice := range all {
		all[choice] = choice
	}
	for layer := range s.layers {
		alpha := s.alpha[layer*s.chunks : (layer+1)*s.chunks]
		assign := s.layer(layer, nil, 0)
		assign.sumCosts(alpha, s.dropPrice[layer], all)
		weight := s.groupWeight(alpha)

		for expert := range s.experts {
			least, at := assign.cost[expert*width], -1
			for tier, groups := range s.groups {
				slots := s.p.MostOf(tier)
				if slots == 0 {
					continue
				}
				with := assign.cost[expert*width+tier+1] + weight*groups.NS[slots]/int64(slots)
				if with < least {
					least, at = with, tier
				}
			}
			if at >= 0 {
				taken[at]++
			}
		}
	}
	return taken
}

// meanSlots returns the mean number of slots over the layers, and fewer of the tiers with most slots where that breaks
// a limit.
func (s *tierSearch) meanSlots(wanted []int) []int {
	slots := make([]int, s.tiers)
	for tier, count := range wanted {
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
	return slots
}

// merge gives the slots of the tier that has fewest to the next larger tier in use, or else to the next smaller one.
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

// enumeration is a depth-first branch and bound for the best assignment of one layer, expert by expert.
type enumeration struct {
	s       *tierSearch
	layer   int
	npu     int64
	room    []int     // by choice: how many experts it can still take
	least   [][]int64 // by expert and chunk: least time of this expert and all after it, if room were no limit
	at      []int     // choices of the experts so far
	over    int64     // dropped rows so far, less the most that the layer may drop
	best    int64
	choices []int
	nodes   int
}

// enumerate finds the best assignment of a layer to given slots, beginning with the one that layerSearch finds. Its
// choices are nil if every assignment drops too many rows.
func (s *tierSearch) enumerate(layer int, slots []int, npu int64) *enumeration {
	out := &enumeration{s: s, layer: layer, npu: npu, room: append([]int{s.experts - s.count(slots)}, slots...),
		best: math.MaxInt64, at: make([]int, s.experts), least: make([][]int64, s.experts+1)}
	if s.drops != nil {
		out.over = -s.drops[layer]
	}
	start := s.layer(layer, slots, npu)
	start.search()
	out.choices, out.best = start.best, start.bestNS

	out.least[s.experts] = make([]int64, s.chunks)
	for expert := s.experts - 1; expert >= 0; expert-- {
		out.least[expert] = slices.Clone(out.least[expert+1])
		for chunk := range s.chunks {
			least := int64(math.MaxInt64)
			for choice, room := range out.room {
				if room > 0 {
					least = min(least, int64(s.left(layer, expert)[chunk*(s.tiers+1)+choice]))
				}
			}
			out.least[expert][chunk] += least
		}
	}

	cpu := make([]int64, s.chunks)
	for chunk := range cpu {
		cpu[chunk] = s.p.CallNS
	}
	out.walk(0, cpu)
	s.work += int64(out.nodes * s.chunks)
	return out
}

// walk tries all choices of an expert and of those after it. cpu is the time of those before it, by chunk.
func (e *enumeration) walk(expert int, cpu []int64) {
	master := e.s
	if e.nodes++; e.nodes > enumeratedWork {
		return
	}

	bound := int64(0)
	for chunk, ns := range cpu {
		bound += master.layerTime(e.npu, ns+e.least[expert][chunk])
	}
	if bound >= e.best || e.over > 0 {
		return
	}
	if expert == master.experts {
		e.best, e.choices = bound, slices.Clone(e.at)
		return
	}

	next := make([]int64, len(cpu))
	for choice := range e.room {
		if e.room[choice] == 0 {
			continue
		}
		for chunk := range next {
			next[chunk] = cpu[chunk] + int64(master.left(e.layer, expert)[chunk*(master.tiers+1)+choice])
		}
		dropped := master.drop(e.layer, expert, choice)
		e.room[choice]--
		e.over += dropped
		e.at[expert] = choice
		e.walk(expert+1, next)
		e.over -= dropped
		e.room[choice]++
	}
}
