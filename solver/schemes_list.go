package solver

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
)

// list enumerates a phase's assignments, least bound first. The bound of an assignment is the sum of its nodes' least
// costs, on the best set of processors that may work together. Hand-overs are left out, but in sections with forks
// (partBounds). Prefill's bounds leave out a shared head.
func (s *schemeChoice) list(ph *phase) error {
	total := 1
	var vary []int
	for class, options := range ph.options {
		if len(options) == 0 {
			continue
		}
		vary = append(vary, class)
		if total *= len(options); total > maxAssignments {
			return diag.New(diag.ClassInput, "solve: more than %d combinations of schemes and weights in %s",
				maxAssignments, ph.name).
				WithHint("permit fewer schemes in the workload")
		}
	}
	e := &enumeration{schemeChoice: s, ph: ph, vary: vary, sets: s.sets(), parts: s.partBounds(ph)}
	if err := e.prepare(); err != nil {
		return err
	}

	ph.points = ph.points[:0]
	ph.objectives = map[string]float64{}
	e.walk(0)
	if err := s.budget.check("combinations of schemes"); err != nil {
		return err
	}
	slices.SortStableFunc(ph.points, func(a, b point) int { return cmp.Compare(a.bound, b.bound) })
	return nil
}

// leastCosts are sums of least costs, by program of a phase and set of processors, in the unit of the objective.
type leastCosts [][]float64

// enumeration enumerates the assignments of a phase depth first, class by class. Its state is the options picked so
// far, with lower bounds of their cost and loss.
type enumeration struct {
	*schemeChoice
	ph    *phase
	vary  []int // classes that have options
	sets  []uint64
	parts *partBounds // sections with forks, which are bounded apart; nil: none

	fixed leastCosts     // of nodes whose scheme is no choice
	low   [][]leastCosts // by class and option
	kl    [][]float64    // likewise

	pick   []uint8      // options, by position in vary
	sums   []leastCosts // of the fixed nodes and the first classes of vary
	losses []float64    // likewise
}

// zero returns sums of nothing.
func (e *enumeration) zero() leastCosts {
	costs := make(leastCosts, len(e.ph.rows))
	for i := range costs {
		costs[i] = make([]float64, len(e.sets))
	}
	return costs
}

// prepare looks up the cost and loss of every option, so that walk only adds numbers.
func (e *enumeration) prepare() error {
	e.fixed, e.low, e.kl = e.zero(), make([][]leastCosts, len(e.classes)), make([][]float64, len(e.classes))
	for _, class := range e.vary {
		for _, scheme := range e.ph.options[class] {
			e.low[class] = append(e.low[class], e.zero())
			kl, _ := e.loss(&e.classes[class], scheme)
			e.kl[class] = append(e.kl[class], kl)
		}
	}

	for i := range e.graph.Sections {
		sec := &e.graph.Sections[i]
		if e.parts != nil && e.parts.sections[sec.Name] {
			continue
		}
		for k := range sec.Nodes {
			if err := e.addNode(sec, &sec.Nodes[k]); err != nil {
				return err
			}
		}
	}

	e.pick, e.sums, e.losses = make([]uint8, len(e.vary)), []leastCosts{e.fixed}, make([]float64, len(e.vary)+1)
	for range e.vary {
		e.sums = append(e.sums, e.zero())
	}
	return nil
}

// addNode adds the least cost of a node, in all layers, to the options of its class, or to the fixed nodes.
func (e *enumeration) addNode(sec *models.Section, node *models.Node) error {
	name := sec.Name + "." + node.Name
	if e.tied.exists() && name == e.tied.node {
		return nil // what it takes depends on the head
	}
	layers := float64(max(1, sec.Layers))

	add := func(to leastCosts, at, rows int, scheme op.Scheme) {
		for i, set := range e.sets {
			to[at][i] += layers * e.cheapest(nodeKey{rows, name, scheme}, set)
		}
	}

	class, hasClass := e.classOf[name]
	for at, rows := range e.ph.rows {
		if hasClass {
			for option, scheme := range e.ph.options[class] {
				add(e.low[class][option], at, rows, scheme)
			}
			continue
		}

		scheme := node.Ops[len(node.Ops)-1].Scheme
		if node.Exact {
			scheme = op.A32W32
		}
		if set := e.candidateSets[nodeKey{rows, name, scheme}]; set != nil && set.err != nil {
			return set.err
		}
		add(e.fixed, at, rows, scheme)
	}
	return nil
}

// walk tries every option of the class at that position of vary, and of those after it.
func (e *enumeration) walk(position int) {
	if position == len(e.vary) {
		e.complete()
		return
	}
	class := e.vary[position]
	before, after := e.sums[position], e.sums[position+1]
	for option := range e.ph.options[class] {
		e.pick[position] = uint8(option)
		e.losses[position+1] = e.losses[position] + e.kl[class][option]
		for at, low := range e.low[class][option] {
			for set := range low {
				after[at][set] = before[at][set] + low[set]
			}
		}
		e.walk(position + 1)
	}
}

// complete notes the assignment that is picked, unless it loses more than the phase permits.
func (e *enumeration) complete() {
	last := len(e.vary)
	if e.ph.max > 0 && e.losses[last] > e.ph.max {
		return
	}

	bound := 0.0
	for at := range e.ph.rows {
		bound += float64(e.ph.weights[at] * slices.Min(e.sums[last][at]))
	}

	found := point{slices.Clone(e.pick), bound, e.losses[last]}
	if e.parts != nil {
		found.bound += e.parts.totalFor(e.schemesOf(e.ph, &found, nil))
	}
	e.ph.points = append(e.ph.points, found)
	e.reserve(pointBytes + rankedBytes)
}

// cheapest returns the least cost of a node's candidates that only use processors of a set; infinite when
// there are none.
func (s *pricing) cheapest(key nodeKey, set uint64) float64 {
	known := s.candidateSets[key]
	if known == nil {
		return 0 // not priced in that form: no bound
	}
	best := math.Inf(1)
	for i := range known.list {
		candidate := &known.list[i]
		if s.processorMask(candidate.Shares)&^set == 0 {
			best = min(best, float64(s.cost(candidate)))
		}
	}
	return best
}
