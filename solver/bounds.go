package solver

import (
	"math"
	"slices"

	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// partBounds bounds what sections with forks add to the objective of a phase: the forks, and the nodes around them, each by the schemes
// of the classes that it depends on.
type partBounds struct {
	s        *session
	ph       *phase
	sections map[string]bool // that have forks
	parts    [2]partBound    // forks, and around them
}

// partBound is a part of sections. What it takes depends on the classes of its nodes, and on those that read what one of them reads or
// writes: it may hold the quantisation of that.
type partBound struct {
	nodes   map[string]bool
	classes []int
	known   map[string]float64 // by the schemes of classes
}

// partBounds is nil where a phase has no forks, or they do not matter: energy adds up whenever it is taken.
func (s *session) partBounds(ph *phase) *partBounds {
	if s.measure() == problem.Energy {
		return nil
	}
	b := &partBounds{s: s, ph: ph, sections: map[string]bool{}}
	for p := range b.parts {
		b.parts[p] = partBound{nodes: map[string]bool{}, known: map[string]float64{}}
	}
	for _, scheme := range slices.Concat([]op.Scheme{op.A32W32}, ph.permits) {
		sections, err := s.expand(ph.rows[0], s.uniform(scheme))
		if err != nil {
			continue // no scheme for all
		}
		for i := range sections {
			sec := &sections[i]
			forks := findForks(sec)
			for k, n := range sec.Nodes {
				if len(forks) == 0 {
					break
				}
				b.sections[sec.Name] = true
				part := 1
				if slices.ContainsFunc(forks, func(f fork) bool { return f.split < k && k <= f.join }) {
					part = 0
				}
				b.parts[part].nodes[n.Name] = true
			}
		}
	}
	if len(b.sections) == 0 {
		return nil
	}
	for p := range b.parts {
		b.parts[p].findClasses(s)
	}
	return b
}

func (b *partBound) findClasses(s *session) {
	touched := map[string]bool{}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, n := range sec.Nodes {
			for _, x := range slices.Concat(n.In, n.Out) {
				touched[x] = touched[x] || b.nodes[sec.Name+"."+n.Name]
			}
		}
	}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, n := range sec.Nodes {
			k, ok := s.classOf[sec.Name+"."+n.Name]
			if ok && slices.ContainsFunc(n.In, func(x string) bool { return touched[x] }) && !slices.Contains(b.classes, k) {
				b.classes = append(b.classes, k)
			}
		}
	}
}

// of is the bound under an assignment.
func (b *partBounds) of(a assignment) (total float64) {
	for p := range b.parts {
		part := &b.parts[p]
		key := ""
		for _, k := range part.classes {
			key += string(a[k]) + " "
		}
		x, ok := part.known[key]
		if !ok {
			for r, rows := range b.ph.rows {
				if w := b.ph.weights[r]; w > 0 {
					x += float64(w * float64(b.s.leastOfParts(rows, a, p == 0)))
				}
			}
			part.known[key] = x
		}
		total += x
	}
	return total
}

// leastOfParts is what the forks of a program take at least, or what is around them in their sections; 0 where that cannot be told.
func (s *session) leastOfParts(rows int, a assignment, forks bool) (total int64) {
	sections, err := s.expand(rows, a)
	if err != nil {
		return 0
	}
	for i := range sections {
		sec := &sections[i]
		if slices.ContainsFunc(sections[:i], func(x lower.Section) bool { return x.Name == sec.Name }) || len(findForks(sec)) == 0 {
			continue
		}
		in, err := s.assembled(sec, rows)
		if err != nil {
			return 0
		}
		of := in.leastAround
		if forks {
			of = in.leastOfForks
		}
		if ns := of(); ns < never {
			total += int64(in.stage.Repeat) * ns
		}
	}
	return total
}

// leastAround is what the nodes outside of forks take at least, without hand-overs to and from them.
func (in *instance) leastAround() (total int64) {
	part := func(from, to int) {
		if from < to {
			b := in.cheapest(from, to, math.MaxUint64, func(int) int64 { return 0 })
			total = min(never, total+slices.Min(b.ns))
		}
	}
	from := 0
	for _, f := range slices.SortedFunc(slices.Values(in.forks), func(a, b fork) int { return a.split - b.split }) {
		part(from, f.split+1)
		from = f.join + 1
	}
	part(from, len(in.prob.Items))
	return total
}

func (in *instance) leastOfForks() (total int64) {
	for k := range in.forks {
		total = min(never, total+in.leastOfFork(&in.forks[k]))
	}
	return total
}

// leastOfFork is what a fork takes at least, with join: one branch after the other, or both at once on any way that may be posed, where
// join counts nothing.
func (in *instance) leastOfFork(f *fork) int64 {
	f.pieces = map[[2]int][]piece{}
	across := in.cheapest(f.split+1, f.join+1, math.MaxUint64, func(int) int64 { return 0 })
	best := slices.Min(across.ns)
	for _, pair := range in.stage.Pairs() {
		if free := in.branches(f, pair, anywhere); max(slices.Min(free[0].ns), slices.Min(free[1].ns)) >= best {
			continue
		}
		for e := range in.prob.Items[f.split].After {
			ways := in.branches(f, pair, e)
			var seen [][2]int // few: where they end hardly depends on join
			for _, x := range in.joined(f, ways) {
				if x.ns < best && !slices.Contains(seen, x.classes) {
					seen = append(seen, x.classes)
					best = min(best, max(in.slowed(f, ways, e, &x, false), least(ways, x.classes)))
				}
			}
		}
	}
	return best
}

// least is how long branches that end in classes take where neither slows the other.
func least(ways [2]*branch, classes [2]int) int64 {
	return max(ways[0].ns[classes[0]], ways[1].ns[classes[1]])
}
