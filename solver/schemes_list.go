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
	for k, list := range ph.options {
		if len(list) == 0 {
			continue
		}
		vary = append(vary, k)
		if total *= len(list); total > maxAssignments {
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

	fixed  leastCosts     // of nodes whose scheme is no choice
	low    [][]leastCosts // by class and option
	kl     [][]float64    // likewise
	pick   []uint8        // options, by position in vary
	sums   []leastCosts   // of the fixed nodes and the first classes of vary
	losses []float64      // likewise
}

// zero returns sums of nothing.
func (e *enumeration) zero() leastCosts {
	c := make(leastCosts, len(e.ph.rows))
	for i := range c {
		c[i] = make([]float64, len(e.sets))
	}
	return c
}

// prepare looks up the cost and loss of every option, so that walk only adds numbers.
func (e *enumeration) prepare() error {
	e.fixed, e.low, e.kl = e.zero(), make([][]leastCosts, len(e.classes)), make([][]float64, len(e.classes))
	for _, k := range e.vary {
		for _, scheme := range e.ph.options[k] {
			e.low[k] = append(e.low[k], e.zero())
			kl, _ := e.loss(&e.classes[k], scheme)
			e.kl[k] = append(e.kl[k], kl)
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
	if packed := e.tied; packed.exists() && name == packed.node {
		return nil // what it takes depends on the head
	}
	layers := float64(max(1, sec.Layers))
	add := func(to leastCosts, at, rows int, scheme op.Scheme) {
		for i, set := range e.sets {
			to[at][i] += layers * e.cheapest(nodeKey{rows, name, scheme}, set)
		}
	}
	k, classed := e.classOf[name]
	for at, rows := range e.ph.rows {
		if classed {
			for j, scheme := range e.ph.options[k] {
				add(e.low[k][j], at, rows, scheme)
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

// walk tries every option of the i-th class that has some, and of those after it.
func (e *enumeration) walk(i int) {
	if i == len(e.vary) {
		e.complete()
		return
	}
	k := e.vary[i]
	for j := range e.ph.options[k] {
		e.pick[i] = uint8(j)
		e.losses[i+1] = e.losses[i] + e.kl[k][j]
		for at := range e.sums[i] {
			for x := range e.sums[i][at] {
				e.sums[i+1][at][x] = e.sums[i][at][x] + e.low[k][j][at][x]
			}
		}
		e.walk(i + 1)
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
