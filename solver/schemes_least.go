package solver

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// What a program costs under an assignment is a shortest path through each of its sections (Bokhari 1988, as
// exact.Engine solves it), with the ways through its forks as short cuts. Items come from a cache, as numbers that
// all assignments share, so that the least cost of one more assignment takes a pass over them, and nothing is kept of
// it but the result. Posing each assignment as a problem of its own took 160 KB for every section and number of rows,
// and five times as long.
//
// State of the pass: the location class that a node leaves its result in. A section that follows itself is gone
// through once for each class its first node may read from, likeliest first, until none can be better. Sets of
// processors without a conflict are gone through one after the other. The result is what the engine proves for the
// program, or, with more sets than sets() lists, a lower bound.

// reducedItem is the choices of an item as a shortest-path pass needs them, in parallel lists. Of choices with equal
// location classes and processors only the cheapest by the measure is kept.
type reducedItem struct {
	cost          []int64
	before, after []int32
	mask          []uint64

	// How many classes there are before and after the node.
	classesBefore, classesAfter int
	// edge has the hand-over from each class after the neighbour to each class before the node, nil where there is no
	// neighbour.
	edge [][]int64
}

// shortCut is a way through a fork, from a class in which split leaves its outputs to one in which join does.
type shortCut struct {
	split, join int // nodes
	entry, exit int // classes
	ns          int64
	mask        uint64
	left        int64 // scratch of a pass: with what is left to pay behind it
}

// pathScratch is the memory of a pass.
type pathScratch struct {
	chain        []*reducedItem
	rest, arrive []int64
	starts       []pathStart
}

// pathStart is a class from which the first node may read, with a lower bound of the cost of starting there.
type pathStart struct {
	class int32
	bound int64
}

// unknownCost is the least cost of a section that no processors can execute, or that is not known.
const unknownCost = math.MaxInt64

// leastOf returns the least cost of one execution of a program under an assignment, in ns or nJ; false if that cannot
// be told without posing the program. Sections share one set of processors, so costs add up for each set.
func (s *schemeChoice) leastOf(rows int, schemes assignment) (int64, bool) {
	return s.leastCharged(rows, schemes, nil)
}

// leastCharged is leastOf where candidates are charged for more than they cost; charged nil: for nothing.
func (s *schemeChoice) leastCharged(rows int, schemes assignment, charged *charges) (int64, bool) {
	sections, err := s.expand(rows, schemes)
	if err != nil {
		return 0, false
	}

	sets := s.sets()
	totals := make([]int64, len(sets))
	for i := range sections {
		sec := &sections[i]
		if isRepeated(sections, i) {
			continue
		}
		costs := s.leastOfSection(sec, rows, sets, charged)
		if costs == nil {
			return 0, false
		}
		for set, cost := range costs {
			switch {
			case cost == unknownCost:
				totals[set] = unknownCost // no plan on these processors
			case totals[set] != unknownCost:
				totals[set] += cost
			}
		}
	}

	least := slices.Min(totals)
	return least, least != unknownCost
}

// leastOfSection returns the least cost of a section on each set of processors; nil if that cannot be told.
func (s *pricing) leastOfSection(sec *lower.Section, rows int, sets []uint64, charged *charges) []int64 {
	key := sectionKey(sec, rows) + charged.key(sec)
	if costs, ok := s.leasts[key]; ok {
		return costs
	}
	in, err := s.assembleCached(sec, rows)
	if err != nil {
		s.leasts[key] = nil // posing the section reports why
		return nil
	}

	room := &s.items.scratch
	room.chain = room.chain[:0]
	for i, item := range in.items {
		more, err := charged.ofNode(in.section, i, in.candidates[i])
		if err != nil {
			s.leasts[key] = nil
			return nil
		}
		if more == nil {
			room.chain = append(room.chain, s.reduced(item))
		} else {
			room.chain = append(room.chain, s.reduce(item, more, charged.bytesOnly))
		}
	}

	// Branches take as much energy side by side, and hold as much.
	var cuts []shortCut
	bytesOnly := charged != nil && charged.bytesOnly
	if s.measure() != problem.Energy && !bytesOnly {
		in.findPaths()
		cuts = in.shortCuts()
	}
	costs := make([]int64, len(sets))
	for i, set := range sets {
		costs[i] = room.shortest(cuts, set, int64(in.chain.Repeat), int64(in.chain.Wraps()))
	}
	s.leasts[key] = costs
	s.reserveCached(leastBytes + 16*int64(len(costs)))
	return costs
}

// shortCuts returns the ways through forks.
func (in *instance) shortCuts() (out []shortCut) {
	for i := range in.forks {
		fork := &in.forks[i]
		for _, path := range fork.paths {
			last := path.choices[len(path.choices)-1]
			cut := shortCut{split: fork.split, join: fork.join, entry: path.entry,
				exit: in.chain.Items[fork.join].Choices[last].After, ns: path.ns}
			for i, choice := range path.choices {
				cut.mask |= in.masks[fork.split+1+i][choice]
			}
			out = append(out, cut)
		}
	}
	return out
}

// reduced returns the reduced choices of an item, by the session's measure. They are made once, and kept with the item.
func (s *pricing) reduced(posed *item) *reducedItem {
	if posed.reduced == nil {
		posed.reduced = s.reduce(posed, nil, false)
		s.reserveItems(int64(len(posed.reduced.cost)) * reducedBytes)
	}
	return posed.reduced
}

// reduce makes a reduced item. more is what each choice is charged beside its cost, or instead of it; nil: nothing.
func (s *pricing) reduce(posed *item, more []int64, instead bool) *reducedItem {
	type kind struct {
		before, after int32
		mask          uint64
	}
	merged := &reducedItem{classesBefore: len(posed.Before), classesAfter: len(posed.After), edge: posed.EdgeNS}
	energy := s.measure() == problem.Energy
	if energy || instead { // handing over takes none
		merged.edge = slices.Repeat([][]int64{make([]int64, merged.classesBefore)}, len(posed.EdgeNS))
	}

	seen := map[kind]int{}
	for i := range posed.Choices {
		choice := &posed.Choices[i]
		cost := choice.CostNS
		if energy {
			cost = choice.EnergyNJ
		}
		if instead {
			cost = 0
		}
		if more != nil {
			cost += more[i]
		}

		key := kind{int32(choice.Before), int32(choice.After), posed.masks[i]}
		if old, ok := seen[key]; ok {
			merged.cost[old] = min(merged.cost[old], cost)
			continue
		}

		seen[key] = len(merged.cost)
		merged.cost = append(merged.cost, cost)
		merged.before = append(merged.before, key.before)
		merged.after = append(merged.after, key.after)
		merged.mask = append(merged.mask, key.mask)
	}
	return merged
}

// shortest returns the least cost of a chain on a set of processors, unknownCost where they cannot execute it.
func (m *pathScratch) shortest(cuts []shortCut, set uint64, repeat, wraps int64) int64 {
	first, last := m.chain[0], m.chain[len(m.chain)-1]
	// Without the way back it is a lower bound, and exact where the section does not follow itself.
	ns := m.backward(cuts, set, -1, repeat, 0)
	if wraps == 0 || ns == unknownCost {
		return ns
	}

	// The rest of the way by first class, and the cheapest way back to it, bound what starting there costs.
	starts := m.starts[:0]
	for to, ns := range m.arrive[:first.classesBefore] {
		if ns == unknownCost {
			continue
		}
		back := int64(math.MaxInt64)
		for from := range last.classesAfter {
			back = min(back, first.edge[from][to])
		}
		starts = append(starts, pathStart{int32(to), ns + wraps*back})
	}
	slices.SortStableFunc(starts, func(a, b pathStart) int { return cmp.Compare(a.bound, b.bound) })
	m.starts = starts

	best := int64(unknownCost)
	for _, from := range starts {
		if from.bound >= best {
			break
		}
		best = min(best, m.backward(cuts, set, int(from.class), repeat, wraps))
	}
	return best
}

// backward is dynamic programming over the chain of nodes, from the last to the first. The state is the class in which
// a node leaves its result (rest) or from which it reads (arrive); a value is the least cost from there to the end.
// start is the class from which the first node reads, -1 for any; then the way back to it is left out. It costs one
// look at every choice and at every pair of neighbouring classes.
func (m *pathScratch) backward(cuts []shortCut, set uint64, start int, repeat, wraps int64) int64 {
	first, last := m.chain[0], m.chain[len(m.chain)-1]
	rest := resized(&m.rest, last.classesAfter)
	for from := range rest {
		rest[from] = 0
		if start >= 0 {
			rest[from] = wraps * first.edge[from][start]
		}
	}
	for i := len(m.chain) - 1; ; i-- {
		item := m.chain[i]
		payCuts(cuts, i, rest, set, repeat)
		arrive := resized(&m.arrive, item.classesBefore)
		item.costBefore(arrive, rest, set, repeat)
		if i == 0 {
			if start >= 0 {
				return arrive[start]
			}
			return slices.Min(arrive)
		}

		rest = resized(&m.rest, m.chain[i-1].classesAfter)
		item.costAfterNeighbour(rest, arrive, repeat)
		for j := range cuts {
			if cut := &cuts[j]; cut.split == i-1 {
				rest[cut.entry] = min(rest[cut.entry], cut.left)
			}
		}
	}
}

// payCuts notes what the ways through forks that join at a node leave to pay: that is known when the pass is at the
// join, and counts at the entry of the fork.
func payCuts(cuts []shortCut, join int, rest []int64, set uint64, repeat int64) {
	for i := range cuts {
		cut := &cuts[i]
		if cut.join != join {
			continue
		}
		cut.left = unknownCost
		if cut.mask&^set == 0 && rest[cut.exit] != unknownCost {
			cut.left = rest[cut.exit] + repeat*cut.ns
		}
	}
}

// costBefore writes the least cost to the end from each class from which the node may read. rest is the least cost to
// the end from each class in which it leaves its result.
func (l *reducedItem) costBefore(arrive, rest []int64, set uint64, repeat int64) {
	for to := range arrive {
		arrive[to] = unknownCost
	}
	for i, cost := range l.cost {
		left := rest[l.after[i]]
		// The choice needs processors that are not in the set, or leads nowhere.
		if l.mask[i]&^set != 0 || left == unknownCost {
			continue
		}
		if ns := left + repeat*cost; ns < arrive[l.before[i]] {
			arrive[l.before[i]] = ns
		}
	}
}

// costAfterNeighbour writes the least cost to the end from each class in which the node before leaves its result.
func (l *reducedItem) costAfterNeighbour(rest, arrive []int64, repeat int64) {
	for from := range rest {
		best := int64(unknownCost)
		for to, ns := range l.edge[from] {
			if left := arrive[to]; left != unknownCost {
				best = min(best, left+repeat*ns)
			}
		}
		rest[from] = best
	}
}

// resized returns a slice of a length, in memory that is reused.
func resized(room *[]int64, length int) []int64 {
	if cap(*room) < length {
		*room = make([]int64, length)
	}
	*room = (*room)[:length]
	return *room
}

// ranking lists points of a phase by their least cost, as their shortest paths tell. A point's shortest path is
// computed only when the list reaches its bound.
type ranking struct {
	s       *schemeChoice
	ph      *phase
	head    assignment // schemes of classes that the phase does not decide
	points  []int      // of the phase, least bound first
	order   []ranked   // found so far, cheapest first
	next    int        // of points, whose cost is looked at next
	pending rankedHeap
}

// ranked is a point with its least cost in the objective.
type ranked struct {
	point int
	least float64
}

// rankedHeap is a heap.Interface, cheapest first.
type rankedHeap []ranked

func (h rankedHeap) Len() int { return len(h) }

func (h rankedHeap) Less(i, j int) bool {
	if h[i].least != h[j].least {
		return h[i].least < h[j].least
	}
	return h[i].point < h[j].point
}

func (h rankedHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *rankedHeap) Push(x any) { *h = append(*h, x.(ranked)) }

func (h *rankedHeap) Pop() any {
	old := *h
	ranked := old[len(old)-1]
	*h = old[:len(old)-1]
	return ranked
}

// nth returns a point by its place in the ranking; false if there are fewer. It prices points in the order of their
// bounds until the cheapest priced one is below the bounds of all others: that is the next one of the ranking.
func (r *ranking) nth(place int) (ranked, bool) {
	for len(r.order) <= place {
		for r.next < len(r.points) && r.mayComeNext(r.points[r.next]) {
			at := r.points[r.next]
			point := &r.ph.points[at]
			least, _ := r.s.leastOfPoint(r.ph, r.s.schemesOf(r.ph, point, r.head))
			heap.Push(&r.pending, ranked{at, max(point.bound, least)})
			r.next++
		}
		if len(r.pending) == 0 {
			return ranked{}, false
		}
		r.order = append(r.order, heap.Pop(&r.pending).(ranked))
	}
	return r.order[place], true
}

// mayComeNext reports whether a point that is not priced yet may be cheaper than all that are.
func (r *ranking) mayComeNext(point int) bool {
	return len(r.pending) == 0 || r.ph.points[point].bound <= r.pending[0].least
}

// headRankings are the rankings of both phases under one choice of schemes for a shared head, which decode makes for
// the programs of prefill as well. The cost of a pair is then the sum of its points' costs.
type headRankings struct{ prefill, decode *ranking }

// rankings returns the rankings for every choice for the head. If no prompt has a program, prefill has one point that
// costs nothing.
func (s *schemeChoice) rankings() (out []headRankings) {
	index := map[string]int{}
	for i := range s.phases[1].points {
		schemes := s.schemesOf(s.phases[1], &s.phases[1].points[i], nil)
		head := s.uniform(op.A32W32)
		for class := range s.classes {
			if s.classes[class].shared {
				head[class] = schemes[class]
			}
		}

		at, ok := index[head.key()]
		if !ok {
			at = len(out)
			index[head.key()] = at
			prefill := &ranking{s: s, ph: s.phases[0], head: head, points: s.prefillPointsWith(head)}
			if len(s.phases[0].rows) == 0 {
				prefill = &ranking{order: []ranked{{}}}
			}
			out = append(out, headRankings{prefill, &ranking{s: s, ph: s.phases[1]}})
		}
		out[at].decode.points = append(out[at].decode.points, i)
	}
	return out
}

// prefillPointsWith lists the points of prefill whose loss together with the head's is permitted.
func (s *schemeChoice) prefillPointsWith(head assignment) (out []int) {
	limit, lost := s.phases[0].max, s.headKL(head)
	for i := range s.phases[0].points {
		if limit == 0 || s.phases[0].points[i].kl+lost <= limit {
			out = append(out, i)
		}
	}
	s.reserve(int64(len(out)) * rankedBytes)
	return out
}

// leastOfPoint returns the least cost of an assignment of a phase in the objective; false if that cannot be told.
func (s *schemeChoice) leastOfPoint(ph *phase, schemes assignment) (total float64, ok bool) {
	for i, rows := range ph.rows {
		if ph.weights[i] == 0 {
			continue // no prompt has that program
		}
		ns, ok := s.leastOf(rows, schemes)
		if !ok {
			return 0, false
		}
		total += float64(ph.weights[i] * float64(ns))
	}
	return total, true
}
