package solver

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// The choice of schemes. A class is a weight, whose products all have one scheme; an assignment gives every class one.
// Prefill and decode are phases with an assignment each, but for the head, whose scheme is decode's.
//
// permit finds out which schemes each class of a phase may have. list enumerates the assignments within the limit of
// quality, each with a lower bound of its cost. search.go then goes through pairs of them, least bound first.

// assignment is a scheme for every class.
type assignment []op.Scheme

// key is equal for equal assignments.
func (a assignment) key() string {
	var b strings.Builder
	for _, scheme := range a {
		b.WriteString(string(scheme))
		b.WriteByte(' ')
	}
	return b.String()
}

// phase is a part of the workload whose programs share one assignment.
type phase struct {
	name    string             // "prefill" or "decode"
	rows    []int              // of its programs
	weights []float64          // of each program in the objective
	permits []op.Scheme        // that the workload permits
	asked   bool               // the workload lists the schemes
	max     float64            // KL that may be lost, 0: no limit
	options [][]op.Scheme      // by class; empty where the phase does not decide it
	points  []point            // within the limit, least bound first
	worth   map[string]float64 // objective by assignment, solved
}

// point is an assignment as indices into a phase's options, with what is known without solving.
type point struct {
	pick  []uint8
	bound float64 // the objective is at least that, in ns
	kl    float64
}

// Limits of the choice of schemes.
const (
	maxAssignments = 1 << 19 // of a phase
	maxPairs       = 1 << 22 // of assignments that are looked at
	maxTried       = 4096    // pairs that are solved
)

// permit fills in a phase's options: for every class the schemes that are permitted, supported, measured and priced.
// A scheme that falls out is mentioned, with the classes it falls out of.
func (s *schemeChoice) permit(ctx context.Context, ph *phase) error {
	ph.options = make([][]op.Scheme, len(s.classes))
	var first error
	for i, scheme := range ph.permits {
		executes := func(p planir.Proc) bool { return slices.Contains(p.Schemes, scheme) }
		if !ph.asked && ph.max > 0 && !slices.ContainsFunc(s.Procs, executes) {
			continue // only the limit of quality permits it, and no processor executes it
		}
		var out leftOut
		for k := range s.classes {
			s.tell(Progress{Phase: "price " + ph.name, Done: i*len(s.classes) + k,
				All:  len(ph.permits) * len(s.classes),
				What: s.classes[k].nodes[0] + " " + string(scheme)})
			if err := s.permitClass(ctx, ph, k, scheme, &out); err != nil {
				return err
			}
		}
		if first == nil {
			first = out.why
		}
		s.mention(ph, scheme, &out)
	}
	s.preferOnly(ph)
	for k, list := range ph.options {
		if len(list) > 0 || s.classes[k].head && ph.name == "prefill" {
			continue
		}
		if first != nil {
			return first
		}
		return diag.New(diag.ClassInfeasible, "solve: no scheme is left for %s of %s", s.classes[k].nodes[0], ph.name).
			WithHint("permit a32/w32 as well, or measure what the permitted ones cost: " +
				"hetc calibrate --model DIR --text FILE -o cal.yaml")
	}
	return nil
}

// leftOut is what a scheme falls out of: nodes of which it is not known what it loses, and those where it cannot be,
// for the reason of the first.
type leftOut struct {
	unmeasured, failing []string
	why                 error
}

// permitClass adds a scheme to the options of a class, or notes in out why not. An error ends the solve. Cheap
// reasons are looked at first: not permitted here, pointless, of unknown loss. Pricing comes last.
func (s *schemeChoice) permitClass(ctx context.Context, ph *phase, k int, scheme op.Scheme, out *leftOut) error {
	class := &s.classes[k]
	if class.head && ph.name == "prefill" || ph.name == "decode" && !slices.Contains(s.permitted(class), scheme) {
		return nil
	}
	if s.dominatedByDynamic(ph, class, scheme) {
		return nil
	}
	if _, ok := s.loss(class, scheme); !ok && ph.max > 0 { // without a calibration nothing may be lost
		out.unmeasured = append(out.unmeasured, class.nodes...)
		return nil
	}
	err := s.ranged(class, scheme)
	if err == nil {
		err = s.usable(ph, k, scheme)
	}
	if full := s.ledger.check("the candidates of operators"); full != nil {
		return full
	}
	if err == nil && class.head { // runs in prefill's programs too
		err = s.usable(s.phases[0], k, scheme)
	}
	if err == nil {
		ph.options[k] = append(ph.options[k], scheme)
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	out.failing = append(out.failing, class.nodes...)
	if out.why == nil {
		out.why = err
	}
	return nil
}

// mention notes what a scheme is left out of.
func (s *schemeChoice) mention(ph *phase, scheme op.Scheme, out *leftOut) {
	all := len(s.classes)
	if ph.name == "prefill" {
		all -= s.heads()
	}
	of := func(nodes []string) string {
		if len(nodes) >= all {
			return ph.name
		}
		return ph.name + " for " + strings.Join(nodes, ", ")
	}
	if out.unmeasured != nil && s.in.Calibration != nil {
		s.note("scheme %q is left out of %s: the calibration says nothing about what it costs",
			scheme, of(out.unmeasured))
	}
	if out.failing != nil && len(ph.permits) > 1 {
		s.note("scheme %q is left out of %s: %v", scheme, of(out.failing), out.why)
	}
}

// preferOnly leaves out the schemes with which more of a class falls to processors that Input.Only does not name than
// with others.
func (s *schemeChoice) preferOnly(ph *phase) {
	if len(s.in.Only) == 0 {
		return
	}
	left := map[op.Scheme][]string{}
	var order []op.Scheme
	for j, list := range ph.options {
		fewest := math.MaxInt
		foreign := make([]int, len(list))
		for i, scheme := range list {
			foreign[i] = s.foreign(ph, j, scheme)
			fewest = min(fewest, foreign[i])
		}
		ph.options[j] = nil
		for i, scheme := range list {
			if foreign[i] == fewest {
				ph.options[j] = append(ph.options[j], scheme)
				continue
			}
			if left[scheme] == nil {
				order = append(order, scheme)
			}
			left[scheme] = append(left[scheme], s.classes[j].nodes...)
		}
	}
	for _, scheme := range order {
		s.note("scheme %q is left out of %s for %s: --only %s is kept with others",
			scheme, ph.name, strings.Join(left[scheme], ", "), strings.Join(s.in.Only, ","))
	}
}

// foreign counts the products of a usable class, over the programs of a phase, that no processor of Input.Only
// executes in a scheme.
func (s *schemeChoice) foreign(ph *phase, k int, scheme op.Scheme) (count int) {
	for _, rows := range ph.rows {
		for _, name := range s.classes[k].nodes {
			p := s.pools[poolKey{rows, name, scheme}]
			if p != nil && !slices.ContainsFunc(p.list, func(candidate price.Candidate) bool {
				return slices.ContainsFunc(candidate.Shares,
					func(x planir.Share) bool { return slices.Contains(s.in.Only, x.Proc) })
			}) {
				count++
			}
		}
	}
	return count
}

// dominatedByDynamic reports whether the static scheme need not be considered in a class: its dynamic-scale variant is
// at least as accurate, costs the same, and runs on every processor that runs the static one. A scheme that the
// workload lists is considered all the same.
func (s *schemeChoice) dominatedByDynamic(ph *phase, class *productClass, scheme op.Scheme) bool {
	twin := scheme.Twin()
	if !scheme.Static() || ph.asked || !slices.Contains(ph.permits, twin) ||
		slices.ContainsFunc(s.Procs, func(proc planir.Proc) bool {
			return slices.Contains(proc.Schemes, scheme) && !slices.Contains(proc.Schemes, twin)
		}) {
		return false
	}
	static, measured := s.loss(class, scheme)
	rows, ok := s.loss(class, twin)
	return !measured || ok && rows <= static
}

// ranged refuses static scales of which the calibration says nothing, in any layer of any node of the class.
func (s *request) ranged(class *productClass, scheme op.Scheme) error {
	if !scheme.Static() {
		return nil
	}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, node := range sec.Nodes {
			name := sec.Name + "." + node.Name
			for layer := 0; layer < max(1, sec.Layers) && slices.Contains(class.nodes, name); layer++ {
				if err := s.rangedIn(name, sec.First+layer, scheme); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// rangedIn is ranged for one layer of one node.
func (s *request) rangedIn(name string, layer int, scheme op.Scheme) error {
	const again = "measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml"
	activation := s.in.Calibration.Activation(name, layer)
	switch {
	case activation == nil:
		return diag.New(diag.ClassInput,
			"%q in layer %d with %q: the calibration says nothing about what enters it", name, layer, scheme).
			WithHint(again)
	case scheme.Grid() && len(activation.OutMax) == 0:
		return diag.New(diag.ClassInput, "%q in layer %d with %q: the calibration says nothing about what it "+
			"computes, and steps of results are wanted", name, layer, scheme).WithHint(again)
	}
	if scales := scheme.Scales(); scales > 1 && s.in.Calibration.RowScales(name, layer, scales) == nil {
		return diag.New(diag.ClassInput, "%q in layer %d with %q: the calibration says nothing about "+
			"%d static scales of what enters it", name, layer, scheme, scales).
			WithHint("measure them: hetc calibrate --model DIR --text FILE --schemes %s -o cal.yaml", scheme)
	}
	return nil
}

// uniform is one scheme for every class.
func (s *schemeChoice) uniform(scheme op.Scheme) assignment {
	schemes := make(assignment, len(s.classes))
	for i := range schemes {
		schemes[i] = scheme
	}
	return schemes
}

// around is the assignment in which a class in a scheme is priced: uniform, but for experts that do not have it.
func (s *schemeChoice) around(ph *phase, k int, scheme op.Scheme) (assignment, error) {
	schemes := s.uniform(scheme)
	if scheme.Experts() {
		return schemes, nil
	}
	if class := &s.classes[k]; class.expert {
		return nil, diag.New(diag.ClassInput,
			"%q: scheme %q is one of products by a single matrix, and experts have others", class.nodes[0], scheme).
			WithHint("permit one for them beside it, such as %s", op.A8TQ8C)
	}
	theirs := op.A32W32
	if i := slices.IndexFunc(ph.permits, op.Scheme.Experts); i >= 0 {
		theirs = ph.permits[i]
	}
	for i := range schemes {
		if s.classes[i].expert {
			schemes[i] = theirs
		}
	}
	return schemes, nil
}

// usable prices a class in a scheme in all programs of a phase. The error is that of a node of the class, or of a
// node without a scheme beside it; other products have other classes.
func (s *schemeChoice) usable(ph *phase, k int, scheme op.Scheme) error {
	schemes, err := s.around(ph, k, scheme)
	if err != nil {
		return err
	}
	for _, rows := range ph.rows {
		sections, err := s.expand(rows, schemes)
		if err != nil {
			return err
		}
		for i := range sections {
			sec := &sections[i]
			ofClass := func(n lower.Node) bool { return slices.Contains(s.classes[k].nodes, n.Name) }
			if repeats(sections, i) || !slices.ContainsFunc(sec.Nodes, ofClass) {
				continue
			}
			s.price(sec, rows)
			for j := range sec.Nodes {
				node := &sec.Nodes[j]
				pool := s.pools[poolOf(rows, node)]
				if pool.err != nil && (ofClass(*node) || !node.Op().HasScheme()) {
					return pool.err
				}
			}
		}
	}
	return nil
}

// expand is the graph at a number of rows under an assignment.
func (s *schemeChoice) expand(rows int, schemes assignment) ([]lower.Section, error) {
	out, err := lower.Expand(s.of(rows), rows, s.want.Context, s.want.Cache, s.schemeOf(schemes),
		s.in.tiersOf(rows), s.channels)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "solve: rows %d: %w", rows, err)
	}
	return out, nil
}

// chooseSchemes decides the scheme of every class in either phase: of the permitted assignments that stay
// within the limits of quality the one with the least expected time.
func (s *planner) chooseSchemes(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	found, err := s.search(ctx, math.Inf(1), nil, func(prefill, decode assignment) (float64, bool, error) {
		ns, err := s.value(ctx, prefill, decode)
		return ns, err == nil, err
	})
	if err != nil {
		return err
	}
	if found.decode == nil {
		return s.tooLossy()
	}
	s.prefill, s.decode, s.chosen = found.prefill, found.decode, found.report
	return nil
}

// prepare lists the assignments of both phases with what bounds them. Decode comes first: prefill's programs execute
// the head, whose options are decode's.
func (s *schemeChoice) prepare(ctx context.Context) error {
	decode := &phase{name: "decode", rows: s.want.DecodeRows(),
		permits: slices.Clone(s.want.Decode), asked: len(s.in.Workload.Schemes.Decode) > 0, max: s.want.MaxKL.Decode}
	for _, scheme := range s.want.Head {
		if !slices.Contains(decode.permits, scheme) {
			decode.permits = append(decode.permits, scheme)
		}
	}
	for _, rows := range decode.rows {
		decode.weights = append(decode.weights, s.want.DecodeNS(rows, s.want.Weights.Decode))
	}
	p := &phase{name: "prefill", rows: s.want.Buckets, permits: s.want.Prefill,
		asked: len(s.in.Workload.Schemes.Prefill) > 0, max: s.want.MaxKL.Prefill}
	for _, share := range s.want.Share {
		p.weights = append(p.weights, s.want.Weights.Prefill*share)
	}
	s.phases = [2]*phase{p, decode}
	for _, ph := range []*phase{decode, p} {
		if len(ph.rows) == 0 {
			continue
		}
		if err := s.permit(ctx, ph); err != nil {
			return err
		}
	}
	s.listed = true // bounds hold for the candidates there are
	for _, ph := range []*phase{decode, p} {
		if len(ph.rows) == 0 {
			continue
		}
		if err := s.list(ph); err != nil {
			return err
		}
	}
	return nil
}

// list enumerates a phase's assignments, least bound first. The bound of an assignment is the sum of its nodes' least
// costs, on the best set of processors that may work together. Hand-overs are left out, but in sections with forks
// (partBounds). Prefill's bounds leave out the head.
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
	ph.worth = map[string]float64{}
	e.walk(0)
	if err := s.ledger.check("combinations of schemes"); err != nil {
		return err
	}
	slices.SortStableFunc(ph.points, func(a, b point) int { return cmp.Compare(a.bound, b.bound) })
	return nil
}

// leastCosts are sums of least costs, by program of a phase and set of processors, in the unit of the objective.
type leastCosts [][]float64

// enumeration goes through the assignments of a phase depth first, class by class. State: the options picked so far,
// and what they cost and lose at least.
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

// zero are sums of nothing.
func (e *enumeration) zero() leastCosts {
	c := make(leastCosts, len(e.ph.rows))
	for i := range c {
		c[i] = make([]float64, len(e.sets))
	}
	return c
}

// prepare looks up what every option costs and loses, so that walk only adds numbers.
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
	if packed := e.packed; packed.works() && name == packed.node {
		return nil // what it takes depends on the head
	}
	layers := float64(max(1, sec.Layers))
	add := func(to leastCosts, at, rows int, scheme op.Scheme) {
		for i, set := range e.sets {
			to[at][i] += layers * e.cheapest(poolKey{rows, name, scheme}, set)
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
		if pool := e.pools[poolKey{rows, name, scheme}]; pool != nil && pool.err != nil {
			return pool.err
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
		found.bound += e.parts.of(e.schemesOf(e.ph, &found, nil))
	}
	e.ph.points = append(e.ph.points, found)
	e.take(pointBytes + rankedBytes)
}

// cheapest is the least cost of a node's candidates that only use processors of a set; infinite when
// there are none.
func (s *pricing) cheapest(key poolKey, set uint64) float64 {
	pool := s.pools[key]
	if pool == nil {
		return 0 // not priced in that form: no bound
	}
	best := math.Inf(1)
	for i := range pool.list {
		candidate := &pool.list[i]
		if s.mask(candidate.Shares)&^set == 0 {
			best = min(best, float64(s.cost(candidate)))
		}
	}
	return best
}

// cost is what a candidate counts for in the objective.
func (s *request) cost(candidate *price.Candidate) int64 {
	if s.measure() == problem.Energy {
		return candidate.EnergyNJ
	}
	return candidate.CostNS
}

// mask is the set of processors of shares, one bit for each.
func (s *request) mask(shares []planir.Share) (set uint64) {
	for _, sh := range shares {
		set |= 1 << slices.IndexFunc(s.Procs, func(p planir.Proc) bool { return p.Name == sh.Proc })
	}
	return set
}

// sets are the sets of processors that may work in one program; a single set of all when there are many.
func (s *request) sets() []uint64 {
	if sets, ok := problem.IndependentSets(len(s.Procs), s.Conflicts, 64); ok {
		return sets
	}
	return []uint64{1<<len(s.Procs) - 1}
}

// assignments turns a pair of points into schemes. Prefill's has decode's for the head.
func (s *schemeChoice) assignments(p, d *point) (prefill, decode assignment) {
	decode = s.schemesOf(s.phases[1], d, nil)
	if p == nil {
		return slices.Clone(decode), decode
	}
	return s.schemesOf(s.phases[0], p, decode), decode
}

// schemesOf is a point of a phase as schemes; classes that the phase does not decide have those of others (nil:
// a32/w32).
func (s *schemeChoice) schemesOf(ph *phase, at *point, others assignment) assignment {
	schemes := slices.Clone(others)
	if others == nil {
		schemes = s.uniform(op.A32W32)
	}
	i := 0
	for j, list := range ph.options {
		if len(list) > 0 {
			schemes[j] = list[at.pick[i]]
			i++
		}
	}
	return schemes
}

// headKL is what the head costs in an assignment of decode: it counts in prefill too.
func (s *schemeChoice) headKL(decode assignment) float64 {
	total := 0.0
	for i := range s.classes {
		if s.classes[i].head {
			kl, _ := s.loss(&s.classes[i], decode[i])
			total += kl
		}
	}
	return total
}

// quality is what the chosen schemes lose by the calibration, for each phase: nothing without a calibration, or for a
// phase with a scheme of unknown loss, which is mentioned.
func (s *schemeChoice) quality() []planir.Quality {
	if s.in.Calibration == nil {
		return nil
	}
	var out []planir.Quality
	limits := s.in.Workload.Quality.MaxKL
	cacheKL, measured := s.in.Calibration.CacheLoss(s.want.Cache)
	for i, schemes := range []assignment{s.prefill, s.decode} {
		ph, limit := s.phases[i], []float64{limits.Prefill, limits.Decode}[i]
		if len(ph.rows) == 0 {
			continue
		}
		quality := planir.Quality{Phase: ph.name, MaxKL: limit, KL: cacheKL}
		if at := s.in.attention; at != nil && (ph.name == "prefill" || at.decode) {
			quality.KL += at.kl
		}
		var missing []string
		if ph.name == "prefill" {
			lost, known := s.in.dropLoss()
			if quality.KL += lost; !known {
				missing = append(missing, "so many dropped rows of experts")
			}
		}
		if !measured {
			missing = append(missing, fmt.Sprintf("a cache in %s", s.want.Cache))
		}
		for i := range s.classes {
			kl, ok := s.loss(&s.classes[i], schemes[i])
			if packed := s.packed; !ok && packed.under(schemes) && packed.head == i && s.tableLoss(packed.node) == nil {
				missing = append(missing, fmt.Sprintf("%s in %s", op.I32Q8C, packed.node))
			} else if !ok {
				missing = append(missing, fmt.Sprintf("%s in %s", schemes[i], s.classes[i].nodes[0]))
			}
			quality.KL += kl
		}
		if missing != nil {
			s.note("what %s loses is not known: the calibration says nothing about %s",
				ph.name, strings.Join(missing, ", "))
			continue
		}
		out = append([]planir.Quality{quality}, out...)
	}
	return out
}
