package exact

import (
	"math"
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
	arrive     []int64 // of one step: the cheapest rest of the chain with its input in class b
	starts     []start
}

// step is an item. Choices are numbered as in the problem.
type step struct {
	cost          []int64
	before, after []int32
	allowed       []int32 // choices that may be used, ascending
	nb, na        int     // classes
	edge          []int64 // [class after the step before][class before this one], nil where no edge is
}

// newSection prepares a chain, with all choices allowed.
func newSection(c *problem.Chain) *section {
	s := &section{steps: make([]step, len(c.Items)), loop: c.Wraps() > 0}
	s.togo, s.come = make([][]int64, len(c.Items)), make([][]int64, len(c.Items))
	widest := 0
	for i := range c.Items {
		it := &c.Items[i]
		st := &s.steps[i]
		st.nb, st.na = len(it.Before), len(it.After)
		widest = max(widest, st.nb)
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
		s.togo[i], s.come[i] = make([]int64, st.na), make([]int64, st.nb)
	}
	s.arrive = make([]int64, widest)
	return s
}

// backward fills togo for a chain whose first item reads from class first (any if it is negative: the edge
// from the last item is then left out), and returns the optimum, unreachable if there is none.
func (s *section) backward(first int) int64 {
	last := len(s.steps) - 1
	for a := range s.togo[last] {
		s.togo[last][a] = 0
		if first >= 0 {
			s.togo[last][a] = s.steps[0].edge[a*s.steps[0].nb+first]
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
		before := s.togo[i-1]
		for a := range before {
			best := int64(unreachable)
			for b, ns := range st.edge[a*st.nb : (a+1)*st.nb] {
				if r := arrive[b]; r != unreachable && r+ns < best {
					best = r + ns
				}
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
	s.starts = s.starts[:0]
	if !s.loop {
		return append(s.starts, start{-1, math.MinInt64})
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
	sort.SliceStable(s.starts, func(i, j int) bool { return s.starts[i].bound < s.starts[j].bound })
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
