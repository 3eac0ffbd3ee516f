package solver

import (
	"container/heap"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// What a program costs under an assignment is a shortest path through each of its sections (Bokhari 1988, as exact.Engine
// solves it): a node's candidates depend on its scheme alone, and the hand-over into it on its scheme and its
// neighbour's. menus keep both once, as numbers that all assignments share, so that the least cost of one more assignment takes a pass
// over them, and nothing is kept of it but the result. Posing each assignment as a problem of its own took 160 KB for every section
// and number of rows, and five times as long.
//
// State of the pass: the location class that a node leaves its result in. A section that follows itself is gone through once for each
// class its first node may read from, likeliest first, until none can be better. Sets of processors without a conflict are gone
// through one after the other. The result is what the engine proves for the program, or, with more sets than sets() lists, a lower bound.
// Of sections with branches that may run side by side it is a lower bound, too: hand-overs at their ends and contention are left out.
type menus struct {
	items map[poolKey]*menu
	links map[linkKey]*menuLink
	room  leastScratch
}

// menu is what a node may leave its results as, in one scheme.
type menu struct {
	list   []candidate
	after  []int32   // location class by candidate
	places [][]place // of each class
	out    []string  // buffers
	mask   []uint64  // processors, by candidate
}

// linkKey names two neighbours. The first of a section that never follows itself has none before it.
type linkKey struct{ before, node poolKey }

// menuLink is the choices of a node behind a certain neighbour: of those with equal classes and processors the cheapest.
type menuLink struct {
	cost          []int64
	before, after []int32
	mask          []uint64
	nb, na        int
	edge          []int64 // [class after the neighbour][class before the node], nil where there is no neighbour
}

// leastScratch is what a pass writes into.
type leastScratch struct {
	chain        []*menuLink
	rest, arrive []int64
	starts       []leastStart
}

type leastStart struct {
	class int32
	bound int64
}

// unknownCost says that the least cost of a section could not be found out; 0 then bounds it.
const unknownCost = math.MaxInt64

// leastCost is what is known of a cost without posing a problem: nothing is below bound, and a chain of one operator after the other
// takes chain. They differ where branches may run side by side: how much that gains only a posed problem tells.
type leastCost struct{ bound, chain int64 }

func (c leastCost) plus(d leastCost) leastCost {
	if c.bound == unknownCost || d.bound == unknownCost {
		return leastCost{unknownCost, unknownCost} // no plan on these processors
	}
	chain := int64(unknownCost)
	if c.chain != unknownCost && d.chain != unknownCost {
		chain = c.chain + d.chain
	}
	return leastCost{c.bound + d.bound, chain}
}

func newMenus() *menus {
	return &menus{items: map[poolKey]*menu{}, links: map[linkKey]*menuLink{}}
}

// leastOf is what a program costs at least under an assignment, in the unit of the objective; false where that cannot be told
// without posing it.
func (s *session) leastOf(rows int, a assignment) (leastCost, bool) {
	sections, err := s.expand(rows, a)
	if err != nil {
		return leastCost{}, false
	}
	sets := s.sets()
	totals := make([]leastCost, len(sets))
	for i := range sections {
		sec := &sections[i]
		if slices.ContainsFunc(sections[:i], func(x lower.Section) bool { return x.Name == sec.Name }) {
			continue // the same decisions for other layers
		}
		costs, ok := s.leastOfSection(sec, rows, sets)
		if !ok {
			return leastCost{}, false
		}
		for k := range costs {
			totals[k] = totals[k].plus(costs[k])
		}
	}
	least := totals[0]
	for _, x := range totals[1:] {
		least = leastCost{min(least.bound, x.bound), min(least.chain, x.chain)}
	}
	return least, least.bound != unknownCost
}

// leastOfSection is what a section costs at least on each set of processors.
func (s *session) leastOfSection(sec *lower.Section, rows int, sets []uint64) ([]leastCost, bool) {
	key := sectionKey(sec, rows)
	if costs, ok := s.leasts[key]; ok {
		return costs, costs != nil
	}
	st := s.stage(sec, rows)
	in := problem.Chain{Repeat: st.repeat, Breaks: st.breaks}
	chain := s.menus.room.chain[:0]
	for i := range sec.Nodes {
		link, err := s.link(st, i, in.Wraps() > 0)
		if err != nil {
			s.leasts[key] = nil // whoever poses the section tells
			return nil, false
		}
		chain = append(chain, link)
	}
	s.menus.room.chain = chain
	forks := findForks(sec)
	costs := make([]leastCost, len(sets))
	for k, set := range sets {
		ns := s.menus.shortest(chain, set, int64(in.Repeat), int64(in.Wraps()))
		costs[k] = leastCost{ns, ns}
		if len(forks) > 0 {
			costs[k].bound = min(ns, s.menus.aside(chain, forks, st.pairs(), set, int64(in.Repeat)))
		}
	}
	s.leasts[key] = costs
	s.cache(leastBytes + 16*int64(len(costs)))
	return costs, true
}

// menu is that of a node.
func (s *session) menu(st *stage, i int) (*menu, error) {
	n := &st.sec.Nodes[i]
	key := poolOf(st.rows, n)
	if m := s.menus.items[key]; m != nil {
		return m, nil
	}
	if s.pools[key] == nil {
		s.price(st.sec, st.rows)
	}
	x := s.pools[key]
	if x.err != nil {
		return nil, x.err
	}
	m := &menu{list: x.list, out: n.Out}
	seen := map[string]int32{}
	for k := range m.list {
		c := &m.list[k]
		m.mask = append(m.mask, s.mask(c.Shares))
		name := locations(c.writes, m.out)
		class, ok := seen[name]
		if !ok {
			class = int32(len(m.places))
			seen[name] = class
			m.places = append(m.places, st.places(c.writes, m.out))
		}
		m.after = append(m.after, class)
	}
	s.menus.items[key] = m
	return m, nil
}

// link is the choices of node i behind its neighbour; the first of a section has one where the section follows itself.
func (s *session) link(st *stage, i int, loops bool) (*menuLink, error) {
	n := len(st.sec.Nodes)
	prev := (i + n - 1) % n
	key := linkKey{poolOf(st.rows, &st.sec.Nodes[prev]), poolOf(st.rows, &st.sec.Nodes[i])}
	if i == 0 && !loops {
		key.before = poolKey{}
	}
	if l := s.menus.links[key]; l != nil {
		return l, nil
	}
	m, err := s.menu(st, i)
	if err != nil {
		return nil, err
	}
	var from *menu
	if key.before != (poolKey{}) {
		if from, err = s.menu(st, prev); err != nil {
			return nil, err
		}
	}
	l, err := s.newLink(st, m, from)
	if err == nil {
		s.menus.links[key] = l
		s.take(l.bytes())
	}
	return l, err
}

func (s *session) newLink(st *stage, m, from *menu) (*menuLink, error) {
	type kind struct {
		before, after int32
		mask          uint64
	}
	l := &menuLink{na: len(m.places)}
	var reads [][]place
	classes, kinds := map[string]int32{}, map[kind]int{}
	for k := range m.list {
		c := &m.list[k]
		name, before := "", int32(0)
		if from != nil {
			name = locations(c.reads, from.out)
		}
		before, ok := classes[name]
		if !ok {
			before = int32(len(reads))
			classes[name] = before
			var at []place
			if from != nil {
				at = st.places(c.reads, from.out)
			}
			reads = append(reads, at)
		}
		cost, x := s.cost(c), kind{before, m.after[k], m.mask[k]}
		if old, ok := kinds[x]; ok {
			l.cost[old] = min(l.cost[old], cost)
			continue
		}
		kinds[x] = len(l.cost)
		l.cost, l.before, l.after, l.mask = append(l.cost, cost), append(l.before, before), append(l.after, m.after[k]), append(l.mask, m.mask[k])
	}
	l.nb = len(reads)
	if from == nil {
		return l, nil
	}
	l.edge = make([]int64, 0, len(from.places)*l.nb)
	for _, w := range from.places {
		for _, r := range reads {
			ns := int64(0)
			if s.measure() != problem.Energy { // handing over takes no energy
				var err error
				if ns, err = st.handover(w, r); err != nil {
					return nil, err
				}
			}
			l.edge = append(l.edge, ns)
		}
	}
	return l, nil
}

// shortest is the least cost of a section on a set of processors, unknownCost where they cannot execute it.
func (m *menus) shortest(chain []*menuLink, set uint64, repeat, wraps int64) int64 {
	first, last := chain[0], chain[len(chain)-1]
	if wraps == 0 {
		return m.backward(chain, set, -1, repeat, 0)
	}
	if m.backward(chain, set, -1, repeat, 0) == unknownCost {
		return unknownCost
	}
	// The rest of the way by first class, and the cheapest way back to it, bound what starting there costs.
	starts := m.room.starts[:0]
	for b, ns := range m.room.arrive[:first.nb] {
		if ns == unknownCost {
			continue
		}
		back := int64(math.MaxInt64)
		for a := range last.na {
			back = min(back, first.edge[a*first.nb+b])
		}
		starts = append(starts, leastStart{int32(b), ns + wraps*back})
	}
	slices.SortStableFunc(starts, func(a, b leastStart) int {
		switch {
		case a.bound < b.bound:
			return -1
		case a.bound > b.bound:
			return 1
		}
		return 0
	})
	m.room.starts = starts
	best := int64(unknownCost)
	for _, from := range starts {
		if from.bound >= best {
			break
		}
		best = min(best, m.backward(chain, set, int(from.class), repeat, wraps))
	}
	return best
}

// backward goes from the last node to the first: rest is what is left to pay by the class a node leaves its result in, arrive by the class
// it reads from. start is the class that the first node reads from, -1 for any (the way back to it is then left out).
func (m *menus) backward(chain []*menuLink, set uint64, start int, repeat, wraps int64) int64 {
	first, last := chain[0], chain[len(chain)-1]
	rest := grown(&m.room.rest, last.na)
	for a := range rest {
		rest[a] = 0
		if start >= 0 {
			rest[a] = wraps * first.edge[a*first.nb+start]
		}
	}
	for i := len(chain) - 1; ; i-- {
		l := chain[i]
		arrive := grown(&m.room.arrive, l.nb)
		for b := range arrive {
			arrive[b] = unknownCost
		}
		for k, cost := range l.cost {
			left := rest[l.after[k]]
			if l.mask[k]&^set != 0 || left == unknownCost {
				continue
			}
			if ns := left + repeat*cost; ns < arrive[l.before[k]] {
				arrive[l.before[k]] = ns
			}
		}
		if i == 0 {
			if start >= 0 {
				return arrive[start]
			}
			return slices.Min(arrive)
		}
		rest = grown(&m.room.rest, chain[i-1].na)
		for a := range rest {
			best := int64(unknownCost)
			for b, ns := range l.edge[a*l.nb : (a+1)*l.nb] {
				if left := arrive[b]; left != unknownCost {
					best = min(best, left+repeat*ns)
				}
			}
			rest[a] = best
		}
	}
}

// aside is what a section costs at least on a set of processors when its forks may run side by side: the parts between them and the
// branches each as cheap as they can be, without hand-overs between them. pairs are the sets that branches may have.
func (m *menus) aside(chain []*menuLink, forks []fork, pairs [][2]uint64, set uint64, repeat int64) int64 {
	sum := func(a, b int64) int64 {
		if a == unknownCost || b == unknownCost {
			return unknownCost
		}
		return a + b
	}
	part := func(from, to int, set uint64) int64 {
		if from == to {
			return 0
		}
		return m.backward(chain[from:to], set, -1, repeat, 0)
	}
	total, from := int64(0), 0
	for _, f := range slices.SortedFunc(slices.Values(forks), func(a, b fork) int { return a.split - b.split }) {
		total = sum(total, part(from, f.split+1, set))
		across := part(f.split+1, f.join, set) // one after the other
		for _, pair := range pairs {
			if (pair[0]|pair[1])&^set == 0 {
				across = min(across, max(part(f.split+1, f.second, pair[0]), part(f.second, f.join, pair[1])))
			}
		}
		total, from = sum(total, across), f.join
	}
	return sum(total, part(from, len(chain), set))
}

// grown is a slice of a length in memory that is used again.
func grown(room *[]int64, n int) []int64 {
	if cap(*room) < n {
		*room = make([]int64, n)
	}
	*room = (*room)[:n]
	return *room
}

// ranking lists points of a phase by what they cost at least, as their shortest paths tell, each looked at only when the list
// gets to its bound.
type ranking struct {
	s       *session
	ph      *phase
	head    assignment // schemes of classes that the phase does not decide
	points  []int      // of the phase, least bound first
	order   []ranked   // found so far, cheapest first
	next    int        // of points, whose cost is looked at next
	pending rankedHeap
	chains  bool // ranked by what chains take, which is no bound
}

// ranked is a point with its least cost in the objective.
type ranked struct {
	point int
	least float64 // what it is ranked by
	bound float64
}

type rankedHeap []ranked

func (h rankedHeap) Len() int { return len(h) }
func (h rankedHeap) Less(i, j int) bool {
	return h[i].least < h[j].least || h[i].least == h[j].least && h[i].point < h[j].point
}
func (h rankedHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *rankedHeap) Push(x any)   { *h = append(*h, x.(ranked)) }
func (h *rankedHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// at is the k-th of the points; false where there are fewer.
func (r *ranking) at(k int) (ranked, bool) {
	for len(r.order) <= k {
		for r.next < len(r.points) && (len(r.pending) == 0 || r.ph.points[r.points[r.next]].chain <= r.pending[0].least) {
			at := r.points[r.next]
			p := &r.ph.points[at]
			bound, chain := r.s.leastOfPoint(r.ph, r.s.schemesOf(r.ph, p, r.head))
			x := ranked{at, max(p.bound, bound), max(p.bound, bound)}
			if r.chains && !math.IsInf(chain, 1) {
				x.least = chain
			}
			heap.Push(&r.pending, x)
			r.next++
		}
		if len(r.pending) == 0 {
			return ranked{}, false
		}
		r.order = append(r.order, heap.Pop(&r.pending).(ranked))
	}
	return r.order[k], true
}

// headed are the rankings of both phases under one choice of schemes for the head, which decode makes for the programs of prefill as
// well: what a pair costs is then the sum of what its points cost.
type headed struct{ prefill, decode *ranking }

// rankings are those of every choice for the head, by what chains take or by bounds. Where no prompt has a program prefill has one
// point that costs nothing.
func (s *session) rankings(chains bool) (out []headed) {
	// within are the points of prefill whose loss, with the head's, is permitted.
	within := func(head assignment) (out []int) {
		limit, lost := s.phases[0].max, s.headKL(head)
		for i := range s.phases[0].points {
			if limit == 0 || s.phases[0].points[i].kl+lost <= limit {
				out = append(out, i)
			}
		}
		s.take(int64(len(out)) * rankedBytes)
		return out
	}
	index := map[string]int{}
	for i := range s.phases[1].points {
		a := s.schemesOf(s.phases[1], &s.phases[1].points[i], nil)
		head := s.uniform(op.A32W32)
		for k := range s.classes {
			if s.classes[k].head {
				head[k] = a[k]
			}
		}
		g, ok := index[head.key()]
		if !ok {
			g = len(out)
			index[head.key()] = g
			x := headed{&ranking{s: s, ph: s.phases[0], head: head, points: within(head), chains: chains}, &ranking{s: s, ph: s.phases[1], chains: chains}}
			if len(s.phases[0].rows) == 0 {
				x.prefill = &ranking{order: []ranked{{}}}
			}
			out = append(out, x)
		}
		out[g].decode.points = append(out[g].decode.points, i)
	}
	return out
}

// leastOfPoint is what an assignment of a phase costs at least in the objective; 0 where that cannot be told.
// chain is what chains take, infinite where that cannot be told.
func (s *session) leastOfPoint(ph *phase, a assignment) (bound, chain float64) {
	for r, rows := range ph.rows {
		ns, ok := s.leastOf(rows, a)
		if !ok {
			return 0, math.Inf(1)
		}
		bound += float64(ph.weights[r] * float64(ns.bound))
		if ns.chain == unknownCost {
			chain = math.Inf(1)
		}
		chain += float64(ph.weights[r] * float64(ns.chain))
	}
	return bound, chain
}

// branches reports whether some section of the programs has branches that may run side by side.
func (s *session) branches() bool {
	if s.measure() == problem.Energy { // which they take as much of
		return false
	}
	for _, ph := range s.phases {
		if len(ph.rows) == 0 {
			continue
		}
		sections, err := s.expand(ph.rows[0], s.uniform(op.A32W32))
		if err == nil && slices.ContainsFunc(sections, func(x lower.Section) bool { return len(findForks(&x)) > 0 }) {
			return true
		}
	}
	return false
}
