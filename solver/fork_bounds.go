package solver

import (
	"math"
	"slices"

	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// partBounds bounds what sections with forks add to the objective of a phase. Branches may run at once, so the sum of
// the nodes' least costs would be no bound there.
//
// It bounds two parts separately: the forks, and the nodes around them. Each part depends on the schemes of few
// classes, so most assignments find their bound in known.
type partBounds struct {
	s        *schemeChoice
	ph       *phase
	sections map[string]bool // that have forks
	parts    [2]partBound    // insideForks and aroundForks
}

// Indices of partBounds.parts.
const (
	insideForks = iota
	aroundForks
)

// partBound is one part of the sections. Its time depends on the classes of its nodes, and on those that read values
// which one of them reads or writes, because a node may include the quantisation of such a value.
type partBound struct {
	nodes   map[string]bool
	classes []int
	known   map[string]float64 // by the schemes of classes
}

// partBounds returns nil if a phase has no forks, or if they do not matter: energies add up whether or not branches run
// at once.
func (s *schemeChoice) partBounds(ph *phase) *partBounds {
	if s.measure() == problem.Energy {
		return nil
	}

	bounds := &partBounds{s: s, ph: ph, sections: map[string]bool{}}
	for which := range bounds.parts {
		bounds.parts[which] = partBound{nodes: map[string]bool{}, known: map[string]float64{}}
	}
	// Which nodes there are depends on the schemes, so nodes are collected over all uniform assignments.
	for _, scheme := range slices.Concat([]op.Scheme{op.A32W32}, ph.permits) {
		sections, err := s.expand(ph.rows[0], s.uniform(scheme))
		if err != nil {
			continue // no scheme for all
		}
		for i := range sections {
			bounds.collect(&sections[i])
		}
	}

	if len(bounds.sections) == 0 {
		return nil
	}
	for which := range bounds.parts {
		bounds.parts[which].findClasses(s)
	}
	return bounds
}

// collect notes the nodes of a section that has forks, by part.
func (b *partBounds) collect(sec *lower.Section) {
	forks := findForks(sec)
	if len(forks) == 0 {
		return
	}
	b.sections[sec.Name] = true
	for i, node := range sec.Nodes {
		part := aroundForks
		if slices.ContainsFunc(forks, func(fork forkJoin) bool { return fork.split < i && i <= fork.join }) {
			part = insideForks
		}
		b.parts[part].nodes[node.Name] = true
	}
}

// findClasses lists the classes whose schemes the part depends on: those with a node that reads a value that the part
// touches.
func (b *partBound) findClasses(choice *schemeChoice) {
	touched := map[string]bool{}
	for i := range choice.graph.Sections {
		sec := &choice.graph.Sections[i]
		for _, node := range sec.Nodes {
			for _, value := range slices.Concat(node.In, node.Out) {
				touched[value] = touched[value] || b.nodes[sec.Name+"."+node.Name]
			}
		}
	}

	for i := range choice.graph.Sections {
		sec := &choice.graph.Sections[i]
		for _, node := range sec.Nodes {
			class, ok := choice.classOf[sec.Name+"."+node.Name]
			reads := slices.ContainsFunc(node.In, func(value string) bool { return touched[value] })
			if ok && reads && !slices.Contains(b.classes, class) {
				b.classes = append(b.classes, class)
			}
		}
	}
}

// totalFor returns the bound under an assignment, in the unit of the objective. It is computed once for each
// combination of the schemes that a part depends on.
func (b *partBounds) totalFor(schemes assignment) (total float64) {
	for which := range b.parts {
		part := &b.parts[which]
		key := ""
		for _, class := range part.classes {
			key += string(schemes[class]) + " "
		}
		least, ok := part.known[key]
		if !ok {
			for i, rows := range b.ph.rows {
				if weight := b.ph.weights[i]; weight > 0 {
					least += float64(weight * float64(b.s.leastOfParts(rows, schemes, which == insideForks)))
				}
			}
			part.known[key] = least
		}
		total += least
	}
	return total
}

// leastOfParts returns a lower bound of the time of a program's forks, or of the nodes around them in the same
// sections; 0 if none is known.
func (s *schemeChoice) leastOfParts(rows int, schemes assignment, forks bool) (total int64) {
	sections, err := s.expand(rows, schemes)
	if err != nil {
		return 0
	}

	for i := range sections {
		sec := &sections[i]
		if isRepeated(sections, i) || len(findForks(sec)) == 0 {
			continue
		}
		in, err := s.assembleCached(sec, rows)
		if err != nil {
			return 0
		}

		of := in.leastOutsideForks
		if forks {
			of = in.leastOfForks
		}
		if ns := of(); ns < never {
			total += int64(in.section.Repeat) * ns
		}
	}
	return total
}

// leastOutsideForks returns a lower bound of the time of the nodes outside of forks, in ns. Hand-overs to and from
// forks count as 0.
func (in *instance) leastOutsideForks() (total int64) {
	part := func(from, to int) {
		if from < to {
			branch := in.solveBranch(from, to, math.MaxUint64, func(int) int64 { return 0 })
			total = min(never, total+slices.Min(branch.ns))
		}
	}
	from := 0
	bySplit := func(a, b forkJoin) int { return a.split - b.split }
	for _, fork := range slices.SortedFunc(slices.Values(in.forks), bySplit) {
		part(from, fork.split+1)
		from = fork.join + 1
	}
	part(from, len(in.chain.Items))
	return total
}

// leastOfForks returns a lower bound of the time of all forks, in ns; never if one of them cannot be executed.
func (in *instance) leastOfForks() (total int64) {
	for i := range in.forks {
		total = min(never, total+in.leastOfFork(&in.forks[i]))
	}
	return total
}

// leastOfFork returns a lower bound of the time of a fork, with join. It is the smaller of two: one branch after the
// other, or both at once in any way that may be posed, where join counts nothing.
func (in *instance) leastOfFork(fork *forkJoin) int64 {
	fork.pieces = map[[2]int][]piece{}
	across := in.solveBranch(fork.split+1, fork.join+1, math.MaxUint64, func(int) int64 { return 0 })
	best := slices.Min(across.ns)

	for _, pair := range in.section.Pairs() {
		free := in.branches(fork, pair, anywhere)
		if max(slices.Min(free[0].ns), slices.Min(free[1].ns)) >= best {
			continue // not even with inputs that cost nothing
		}
		for entry := range in.chain.Items[fork.split].After {
			ways := in.branches(fork, pair, entry)
			var seen [][2]int // few: where they end hardly depends on join
			for _, end := range in.joinEndings(fork, ways) {
				if end.ns >= best || slices.Contains(seen, end.classes) {
					continue
				}
				seen = append(seen, end.classes)
				contended := in.endingNS(fork, ways, entry, &end, false)
				best = min(best, max(contended, uncontendedLeast(ways, end.classes)))
			}
		}
	}
	return best
}

// uncontendedLeast returns how long branches that end in classes take where neither slows the other.
func uncontendedLeast(ways [2]*branch, classes [2]int) int64 {
	return max(ways[0].ns[classes[0]], ways[1].ns[classes[1]])
}
