package exact

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/solver/problem"
)

const unreachable = math.MaxInt64

// section is a chain prepared for dynamic programming over location classes: a shortest path, as Bokhari 1988 uses
// for chains. Costs are of all executions: an item's and its inner edges' times Repeat, the edge from the last item
// to the first times Wraps. Every combination of neighbouring classes is visited, so what is found is the optimum.
type section struct {
	steps []step
	loop  bool // the first item follows the last

	// Scratch. togo[i][a] is the cheapest rest of the chain once step i has left its result in class a, come[i][b]
	// the cheapest way to have the input of step i in class b.
	togo, come [][]int64
	left       []int64
	arrive     []int64 // of one step: the cheapest rest of the chain with its input in class b
	starts     []start
	ranked     bool  // starts are of the choices that are allowed
	work       int64 // edges gone through
}

// step is an item. Choices are numbered as in the problem.
type step struct {
	cost          []int64
	before, after []int32
	allowed       []int32 // choices that may be used, ascending
	liveB, liveA  []int32 // classes to visit: those of allowed choices are among them
	nb, na        int     // classes
	edge          []int64 // [class after the step before][class before this one], nil where no edge is
}

// newSection prepares a chain, with all choices allowed.
func newSection(c *problem.Chain) *section {
	s := &section{steps: make([]step, len(c.Items)), loop: c.Wraps() > 0}
	for i := range c.Items {
		it := &c.Items[i]
		st := &s.steps[i]
		st.nb, st.na = len(it.Before), len(it.After)
		st.cost, st.before, st.after = make([]int64, len(it.Choices)), make([]int32, len(it.Choices)), make([]int32, len(it.Choices))
		for n := range it.Choices {
			ch := &it.Choices[n]
			st.cost[n], st.before[n], st.after[n] = ch.CostNS*int64(c.Repeat), int32(ch.Before), int32(ch.After)
		}
		times := int64(c.Repeat)
		if i == 0 {
			times = int64(c.Wraps())
		}
		for _, row := range it.EdgeNS {
			for _, ns := range row {
				st.edge = append(st.edge, ns*times)
			}
		}
	}
	s.scratch()
	return s
}

// scratch makes what the methods below write into.
func (s *section) scratch() {
	n := 0
	for i := range s.steps {
		n += s.steps[i].na + s.steps[i].nb
	}
	room := make([]int64, n)
	take := func(n int) (out []int64) {
		out, room = room[:n:n], room[n:]
		return out
	}
	s.togo, s.come = make([][]int64, len(s.steps)), make([][]int64, len(s.steps))
	widest, most := 0, 0
	for i := range s.steps {
		st := &s.steps[i]
		widest, most = max(widest, st.nb), max(most, st.na)
		s.togo[i], s.come[i] = take(st.na), take(st.nb)
		st.liveB, st.liveA = numbers(st.nb), numbers(st.na)
	}
	s.arrive, s.left = make([]int64, widest), make([]int64, most)
}

// numbers lists 0 to n-1.
func numbers(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// narrow visits only the classes of allowed choices.
func (st *step) narrow(seen []bool) {
	collect := func(live, class []int32) []int32 {
		live = live[:0]
		for _, j := range st.allowed {
			if c := class[j]; !seen[c] {
				seen[c] = true
				live = append(live, c)
			}
		}
		for _, c := range live {
			seen[c] = false
		}
		return live
	}
	st.liveB, st.liveA = collect(st.liveB, st.before), collect(st.liveA, st.after)
}

// widen visits all classes.
func (st *step) widen() {
	for len(st.liveB) < st.nb {
		st.liveB = append(st.liveB, 0)
	}
	for len(st.liveA) < st.na {
		st.liveA = append(st.liveA, 0)
	}
	for b := range st.liveB {
		st.liveB[b] = int32(b)
	}
	for a := range st.liveA {
		st.liveA[a] = int32(a)
	}
}

// backward fills togo for a chain whose first item reads from class first (any if it is negative: the edge
// from the last item is then left out), and returns the optimum, unreachable if there is none.
func (s *section) backward(first int) int64 {
	last := len(s.steps) - 1
	for _, a := range s.steps[last].liveA {
		s.togo[last][a] = 0
		if first >= 0 {
			s.togo[last][a] = s.steps[0].edge[int(a)*s.steps[0].nb+first]
		}
	}
	for i := last; ; i-- {
		st := &s.steps[i]
		arrive, rest := s.arrive[:st.nb], s.togo[i]
		for b := range arrive {
			arrive[b] = unreachable
		}
		for _, j := range st.allowed {
			if r := rest[st.after[j]]; r != unreachable {
				if b := st.before[j]; r+st.cost[j] < arrive[b] {
					arrive[b] = r + st.cost[j]
				}
			}
		}
		if i == 0 {
			if first >= 0 {
				return arrive[first]
			}
			best := int64(unreachable)
			for _, ns := range arrive {
				best = min(best, ns)
			}
			return best
		}
		// Classes cheapest first: edges are short beside what classes differ by, so few of them are looked at.
		for k := 1; k < len(st.liveB); k++ {
			b := st.liveB[k]
			at := k
			for ; at > 0 && arrive[st.liveB[at-1]] > arrive[b]; at-- {
				st.liveB[at] = st.liveB[at-1]
			}
			st.liveB[at] = b
		}
		before := s.togo[i-1]
		for _, a := range s.steps[i-1].liveA {
			best := int64(unreachable)
			row := st.edge[int(a)*st.nb : (int(a)+1)*st.nb]
			for k, b := range st.liveB {
				r := arrive[b]
				if r >= best {
					s.work += int64(k)
					break
				}
				best = min(best, r+row[b])
			}
			before[a] = best
		}
	}
}

// start is a class that the first item of a loop may read from, with what the chain costs at least when it does.
type start struct {
	class int
	bound int64
}

// rank lists the starts, cheapest bound first. The bound is exact but for the edge from the last item to
// the first, of which it takes the cheapest: one pass from the last item to the first gives all of them.
func (s *section) rank() []start {
	s.starts, s.ranked = s.starts[:0], true
	if !s.loop {
		s.starts = append(s.starts, start{-1, math.MinInt64})
		return s.starts
	}
	s.backward(-1)
	st := &s.steps[0]
	for b, ns := range s.arrive[:st.nb] {
		if ns == unreachable {
			continue
		}
		wrap := int64(unreachable)
		for a := b; a < len(st.edge); a += st.nb {
			wrap = min(wrap, st.edge[a])
		}
		s.starts = append(s.starts, start{b, ns + wrap})
	}
	slices.SortStableFunc(s.starts, func(a, b start) int { return cmp.Compare(a.bound, b.bound) })
	return s.starts
}

// solve returns the optimum, and its lexicographically first choices in out, which has room for one per
// step; unreachable if there is none.
func (s *section) solve(out []int) int64 {
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

// first is the first choice of the first item with which the chain costs ns, after backward.
func (s *section) first(class int, ns int64) int {
	st := &s.steps[0]
	for _, j := range st.allowed {
		if class >= 0 && int(st.before[j]) != class {
			continue
		}
		if r := s.togo[0][st.after[j]]; r != unreachable && r+st.cost[j] == ns {
			return int(j)
		}
	}
	return -1
}

// follow writes the lexicographically first optimal choices that begin with first, after backward.
func (s *section) follow(first int, out []int) {
	out[0] = first
	a := s.steps[0].after[first]
	for i := 1; i < len(s.steps); i++ {
		st := &s.steps[i]
		row, want := st.edge[int(a)*st.nb:], s.togo[i-1][a]
		for _, j := range st.allowed {
			if r := s.togo[i][st.after[j]]; r != unreachable && r+st.cost[j]+row[st.before[j]] == want {
				out[i], a = int(j), st.after[j]
				break
			}
		}
	}
}

// forward fills come for a chain whose first item reads from class first (any if it is negative).
func (s *section) forward(first int) {
	for b := range s.come[0] {
		s.come[0][b] = 0
		if first >= 0 && b != first {
			s.come[0][b] = unreachable
		}
	}
	for i := range len(s.steps) - 1 {
		s.step(i, s.come[i], s.come[i+1])
	}
}

// marginals lowers least[i][j] to what the chain costs at least with choice j of step i and otherwise allowed ones, where
// that is at most limit: for the choices of lists, or the allowed ones where lists is nil.
//
// A loop is gone through once per class that its first item may read from. Where those within limit are more than few,
// one pass tells less instead: what a choice costs at least when the chain need not end where it began.
func (s *section) marginals(limit int64, few int, lists [][]int32, least [][]int64) {
	starts := s.rank()
	if within := sort.Search(len(starts), func(k int) bool { return starts[k].bound > limit }); within > few && s.loop {
		wrap := int64(unreachable)
		for _, ns := range s.steps[0].edge {
			wrap = min(wrap, ns)
		}
		s.through(-1, wrap, limit, lists, least)
		return
	}
	for _, from := range starts {
		if from.bound > limit {
			break
		}
		s.through(from.class, 0, limit, lists, least)
	}
}

// through lowers least as marginals does, for chains whose first item reads from class first (any if it is
// negative), each costing more by extra.
func (s *section) through(first int, extra, limit int64, lists [][]int32, least [][]int64) {
	if ns := s.backward(first); ns == unreachable || ns > limit-extra {
		return
	}
	s.forward(first)
	for i := range s.steps {
		st := &s.steps[i]
		list := st.allowed
		if lists != nil {
			list = lists[i]
		}
		for _, j := range list {
			c, r := s.come[i][st.before[j]], s.togo[i][st.after[j]]
			if c != unreachable && r != unreachable && c+r+st.cost[j] <= limit-extra {
				least[i][j] = min(least[i][j], c+r+st.cost[j]+extra)
			}
		}
	}
}
