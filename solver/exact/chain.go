package exact

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/solver/problem"
)

const unreachable = math.MaxInt64

// chain is a problem.Chain prepared for dynamic programming over a chain: a shortest path in a layered graph
// (Bokhari 1988).
//
// The state after an item is the location class that holds its result. The classes before and after an item separate
// what precedes from what follows, so the cheapest rest of the chain depends on the class alone. Every pair of
// neighbouring classes is looked at or ruled out by a bound, so the result is the optimum. A pass costs, per item, its
// choices plus at most (classes after the item before) * (classes before it).
//
// A loop must return to the class that it started from. It takes one pass per class that its first item may read from,
// cheapest bound first.
//
// Costs are of all executions: Repeat times for items and inner edges, Wraps times for the edge from the last item to
// the first.
type chain struct {
	items []chainItem
	loop  bool // the first item follows the last

	// Scratch. togo[i][a] is the cheapest rest of the chain once item i has left its result in class a, come[i][b]
	// the cheapest way to have the input of item i in class b.
	togo, come [][]int64
	left       []int64 // of one item: the cheapest way to have its result in class a
	arrive     []int64 // of one item: the cheapest rest of the chain with its input in class b
	starts     []start
	ranked     bool // starts are of the choices that are allowed
}

// chainItem is an item as the dynamic program sees it. Choices are numbered as in the problem.
type chainItem struct {
	cost                  []int64
	before, after         []int32 // class of each choice
	allowed               []int32 // choices that may be used, ascending
	liveBefore, liveAfter []int32 // classes to visit: those of allowed choices are among them
	nBefore, nAfter       int     // classes
	edge                  []int64 // [class after the item before][class before this one], nil where no edge is
}

// newChain prepares a chain, with all choices allowed.
func newChain(source *problem.Chain) *chain {
	out := &chain{items: make([]chainItem, len(source.Items)), loop: source.Wraps() > 0}
	for number := range source.Items {
		from, it := &source.Items[number], &out.items[number]
		it.nBefore, it.nAfter = len(from.Before), len(from.After)
		for _, choice := range from.Choices {
			it.cost = append(it.cost, choice.CostNS*int64(source.Repeat))
			it.before, it.after = append(it.before, int32(choice.Before)), append(it.after, int32(choice.After))
		}

		times := edgeTimes(source, number)
		for _, row := range from.EdgeNS {
			for _, ns := range row {
				it.edge = append(it.edge, ns*times)
			}
		}
	}
	out.scratch()
	return out
}

// edgeTimes returns how often the edge into item i is passed.
func edgeTimes(source *problem.Chain, i int) int64 {
	if i == 0 {
		return int64(source.Wraps())
	}
	return int64(source.Repeat)
}

// scratch makes what the methods below write into.
func (s *chain) scratch() {
	classes := 0
	for i := range s.items {
		classes += s.items[i].nAfter + s.items[i].nBefore
	}

	room := make([]int64, classes)
	take := func(count int) (out []int64) {
		out, room = room[:count:count], room[count:]
		return out
	}

	s.togo, s.come = make([][]int64, len(s.items)), make([][]int64, len(s.items))
	mostBefore, mostAfter := 0, 0
	for i := range s.items {
		it := &s.items[i]
		mostBefore, mostAfter = max(mostBefore, it.nBefore), max(mostAfter, it.nAfter)
		s.togo[i], s.come[i] = take(it.nAfter), take(it.nBefore)
		it.widen()
	}
	s.arrive, s.left = make([]int64, mostBefore), make([]int64, mostAfter)
}

// narrow visits only the classes of allowed choices.
func (it *chainItem) narrow(seen []bool) {
	collect := func(live, class []int32) []int32 {
		live = live[:0]
		for _, choice := range it.allowed {
			if at := class[choice]; !seen[at] {
				seen[at] = true
				live = append(live, at)
			}
		}
		for _, at := range live {
			seen[at] = false
		}
		return live
	}
	it.liveBefore, it.liveAfter = collect(it.liveBefore, it.before), collect(it.liveAfter, it.after)
}

// widen visits all classes.
func (it *chainItem) widen() {
	it.liveBefore, it.liveAfter = it.liveBefore[:0], it.liveAfter[:0]
	for class := range it.nBefore {
		it.liveBefore = append(it.liveBefore, int32(class))
	}
	for class := range it.nAfter {
		it.liveAfter = append(it.liveAfter, int32(class))
	}
}

// backward fills togo for a chain whose first item reads from class first, and returns the optimum, unreachable if
// there is none. A negative first means any class: the edge from the last item to the first is then left out.
func (s *chain) backward(first int) int64 {
	last := len(s.items) - 1
	for _, class := range s.items[last].liveAfter {
		s.togo[last][class] = 0
		if first >= 0 {
			s.togo[last][class] = s.items[0].edge[int(class)*s.items[0].nBefore+first]
		}
	}
	for i := last; ; i-- {
		arrive := s.arriveAt(i)
		if i > 0 {
			s.crossEdges(i, arrive)
			continue
		}
		if first >= 0 {
			return arrive[first]
		}
		return slices.Min(arrive)
	}
}

// arriveAt finds the cheapest rest of the chain by the class of item i's input, given togo of item i.
func (s *chain) arriveAt(i int) []int64 {
	it, rest := &s.items[i], s.togo[i]
	arrive := s.arrive[:it.nBefore]
	for class := range arrive {
		arrive[class] = unreachable
	}
	for _, choice := range it.allowed {
		if togo := rest[it.after[choice]]; togo != unreachable {
			if class := it.before[choice]; togo+it.cost[choice] < arrive[class] {
				arrive[class] = togo + it.cost[choice]
			}
		}
	}
	return arrive
}

// crossEdges fills togo of item i-1 from what arrives at item i. It sorts the classes, cheapest first: edges are
// short beside what classes differ by, so few of them are looked at.
func (s *chain) crossEdges(i int, arrive []int64) {
	it := &s.items[i]
	live := it.liveBefore
	for sorted := 1; sorted < len(live); sorted++ { // insertion sort: nearly in order since the last time
		before := live[sorted]
		at := sorted
		for ; at > 0 && arrive[live[at-1]] > arrive[before]; at-- {
			live[at] = live[at-1]
		}
		live[at] = before
	}

	togo := s.togo[i-1]
	for _, after := range s.items[i-1].liveAfter {
		best := int64(unreachable)
		row := it.edge[int(after)*it.nBefore : (int(after)+1)*it.nBefore]
		for _, before := range live {
			rest := arrive[before]
			if rest >= best {
				break
			}
			best = min(best, rest+row[before])
		}
		togo[after] = best
	}
}

// start is a class that the first item of a loop may read from, with what the chain costs at least when it does.
type start struct {
	class int
	bound int64
}

// rank lists the starts, cheapest bound first. The bound is exact but for the edge from the last item to
// the first, of which it takes the cheapest: one pass from the last item to the first gives all of them.
func (s *chain) rank() []start {
	s.starts, s.ranked = s.starts[:0], true
	if !s.loop {
		s.starts = append(s.starts, start{-1, math.MinInt64})
		return s.starts
	}

	s.backward(-1)
	first := &s.items[0]
	for b, ns := range s.arrive[:first.nBefore] {
		if ns == unreachable {
			continue
		}
		wrap := int64(unreachable)
		for a := b; a < len(first.edge); a += first.nBefore {
			wrap = min(wrap, first.edge[a])
		}
		s.starts = append(s.starts, start{b, ns + wrap})
	}

	slices.SortStableFunc(s.starts, func(x, y start) int { return cmp.Compare(x.bound, y.bound) })
	return s.starts
}

// solve returns the optimum, and its lexicographically first choices in out, which has room for one per
// item; unreachable if there is none.
func (s *chain) solve(out []int) int64 {
	best := int64(unreachable)
	for _, from := range s.rank() {
		if from.bound > best {
			break
		}
		ns := s.backward(from.class)
		if ns > best || ns == unreachable {
			continue
		}
		if first := s.first(from.class, ns); ns < best || first < out[0] {
			best = ns
			s.follow(first, out)
		}
	}
	return best
}

// first returns the first choice of the first item with which the chain costs ns, after backward.
func (s *chain) first(class int, ns int64) int {
	it := &s.items[0]
	for _, choice := range it.allowed {
		if class >= 0 && int(it.before[choice]) != class {
			continue
		}
		if rest := s.togo[0][it.after[choice]]; rest != unreachable && rest+it.cost[choice] == ns {
			return int(choice)
		}
	}
	return -1
}

// follow writes the lexicographically first optimal choices that begin with first, after backward.
func (s *chain) follow(first int, out []int) {
	out[0] = first
	class := s.items[0].after[first]
	for i := 1; i < len(s.items); i++ {
		it := &s.items[i]
		row, want := it.edge[int(class)*it.nBefore:], s.togo[i-1][class]
		for _, choice := range it.allowed {
			rest := s.togo[i][it.after[choice]]
			if rest != unreachable && rest+it.cost[choice]+row[it.before[choice]] == want {
				out[i], class = int(choice), it.after[choice]
				break
			}
		}
	}
}

// forward fills come for a chain whose first item reads from class first (any if it is negative).
func (s *chain) forward(first int) {
	for b := range s.come[0] {
		s.come[0][b] = 0
		if first >= 0 && b != first {
			s.come[0][b] = unreachable
		}
	}
	for i := range len(s.items) - 1 {
		s.advance(i, s.come[i], s.come[i+1])
	}
}

// advance finds the cheapest ways to the input of item i+1, by class, from those to the input of item i. Both may be
// one slice.
func (s *chain) advance(i int, from, to []int64) {
	prev, next := &s.items[i], &s.items[i+1]
	left := s.left[:prev.nAfter]
	for a := range left {
		left[a] = unreachable
	}

	for _, choice := range prev.allowed {
		come, a := from[prev.before[choice]], prev.after[choice]
		if come != unreachable && come+prev.cost[choice] < left[a] {
			left[a] = come + prev.cost[choice]
		}
	}

	to = to[:next.nBefore]
	for b := range to {
		to[b] = unreachable
	}

	for a, cost := range left {
		if cost == unreachable {
			continue
		}
		for b, ns := range next.edge[a*next.nBefore : (a+1)*next.nBefore] {
			to[b] = min(to[b], cost+ns)
		}
	}
}

// marginals lowers least[i][j] to what the chain costs at least with choice j of item i and otherwise allowed ones,
// where that is at most limit: for the choices of lists, or the allowed ones where lists is nil. Such min-marginals are
// a forward plus a backward pass.
//
// A loop is gone through once per class that its first item may read from. Where those within limit are more than few,
// one pass tells less instead: what a choice costs at least when the chain need not end where it began.
func (s *chain) marginals(limit int64, few int, lists [][]int32, least [][]int64) {
	starts := s.rank()
	within := sort.Search(len(starts), func(k int) bool { return starts[k].bound > limit })
	if within > few && s.loop {
		s.through(-1, slices.Min(s.items[0].edge), limit, lists, least)

		return
	}
	for _, from := range starts[:within] {
		s.through(from.class, 0, limit, lists, least)
	}
}

// through lowers least as marginals does, for chains whose first item reads from class first (any if it is
// negative), each costing more by extra.
func (s *chain) through(first int, extra, limit int64, lists [][]int32, least [][]int64) {
	if ns := s.backward(first); ns == unreachable || ns > limit-extra {
		return
	}
	s.forward(first)
	for number := range s.items {
		it := &s.items[number]
		list := it.allowed
		if lists != nil {
			list = lists[number]
		}

		for _, choice := range list {
			come, rest := s.come[number][it.before[choice]], s.togo[number][it.after[choice]]
			if come == unreachable || rest == unreachable {
				continue
			}
			if ns := come + rest + it.cost[choice]; ns <= limit-extra {
				least[number][choice] = min(least[number][choice], ns+extra)
			}
		}
	}
}
