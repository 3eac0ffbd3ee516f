package solver

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// class is a weight whose scheme is a choice: every node that multiplies by it has the same, so that
// its packed copies are shared.
type class struct {
	weight string
	nodes  []string // as decisions name them
	head   bool     // one row whatever the bucket is: decode's scheme counts
	k, n   int
	copies int // matrices of that size: layers and experts
	expert bool
}

// bytes is what the class takes in a weight format, without padding.
func (c *class) bytes(format string) int64 {
	return int64(c.copies) * op.WeightBytes(format, c.k, c.n)
}

// assignment is a scheme for every class.
type assignment []op.Scheme

func (a assignment) key() string {
	var b strings.Builder
	for _, s := range a {
		b.WriteString(string(s))
		b.WriteByte(' ')
	}
	return b.String()
}

// findClasses lists the classes in the order of the graph.
func (s *session) findClasses() {
	s.classOf = map[string]int{}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, n := range sec.Nodes {
			o := n.Ops[len(n.Ops)-1]
			if !o.HasScheme() || n.Exact {
				continue
			}
			k := slices.IndexFunc(s.classes, func(c class) bool { return c.weight == n.W[0] })
			if k < 0 {
				k = len(s.classes)
				s.classes = append(s.classes, class{weight: n.W[0], k: o.K, n: o.N, head: s.isHead(sec.Name), expert: o.Kind == op.ExpertMatMul})
			}
			c, name := &s.classes[k], sec.Name+"."+n.Name
			c.copies += max(1, sec.Layers) * max(1, o.Experts)
			if !slices.Contains(c.nodes, name) {
				c.nodes = append(c.nodes, name)
			}
			s.classOf[name] = k
		}
	}
}

// packed is an embedding that looks rows up in the matrix of a tied head where that is packed in 8 bit: one copy serves
// both.
type packed struct {
	node string // "embed.embed"
	head int    // class
	not  error  // why the embedding reads rows as they are stored all the same, though a processor could
}

// works reports whether rows are looked up in the head where that has 8 bit.
func (p *packed) works() bool { return p != nil && p.not == nil }

// under reports whether rows are looked up in the head under an assignment.
func (p *packed) under(a assignment) bool { return p.works() && eightBit(a[p.head]) }

// findPacked decides whether the embedding follows the head: one processor at least has to be able to, for a
// price that is known, and if quality is bounded, for a loss that is known.
func (s *session) findPacked() {
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, n := range sec.Nodes {
			k := slices.IndexFunc(s.classes, func(c class) bool { return c.weight == n.Packed })
			if n.Packed == "" || k < 0 || !slices.ContainsFunc(s.permitted(&s.classes[k]), eightBit) {
				continue
			}
			cal := s.in.Calibration
			if cal != nil && slices.ContainsFunc(s.graph.Folds(), func(f models.FoldGroup) bool {
				return slices.Contains(f.Multiply, n.Packed) && slices.Contains(cal.Groups(), f.Name)
			}) {
				continue // the head no longer holds the table's values
			}
			ok, err := s.looksUp(&n)
			if !ok && err == nil {
				continue
			}
			s.packed = &packed{node: sec.Name + "." + n.Name, head: k, not: err}
			if ok && cal != nil && s.want.MaxKL != (workload.KLLimit{}) && s.tableLoss(s.packed.node) == nil {
				s.packed.not = errors.New("the calibration does not say what that loses")
			}
		}
	}
}

func eightBit(x op.Scheme) bool { return x.Weight() == op.I32Q8C.Weight() }

// looksUp reports whether a processor looks rows up in packed tiles; the error is why the price of one that could
// is not known.
func (s *session) looksUp(n *models.Node) (ok bool, err error) {
	for _, p := range s.Procs {
		if len(p.Kinds) > 0 && !slices.Contains(p.Kinds, op.Embed) || p.Layouts[op.I32Q8C.Weight()] != op.TilesLayout {
			continue
		}
		var unknown error
		for _, rows := range s.want.Rows() {
			o := n.Ops[0]
			o.M, o.Scheme, o.Table = rows, op.I32Q8C, ""
			if _, unknown = s.prices.Together([]price.Task{{Proc: p.Name, Op: o}}); unknown != nil {
				break
			}
		}
		if unknown == nil {
			return true, nil
		}
		err = unknown
	}
	return false, err
}

// tableLoss is what looking rows up in the 8-bit head loses by the calibration, nil when that was not measured.
func (s *session) tableLoss(node string) *calibration.Loss {
	return s.in.Calibration.Loss(node, op.I32Q8C, false)
}

// schemeOf is the scheme of a node under an assignment; exact nodes ignore it.
func (s *session) schemeOf(a assignment) func(node string) op.Scheme {
	return func(node string) op.Scheme {
		if p := s.packed; p.under(a) && node == p.node {
			return op.I32Q8C
		}
		if k, ok := s.classOf[node]; ok {
			return a[k]
		}
		return op.A32W32
	}
}

// phase is a part of the workload whose programs share one assignment.
type phase struct {
	name    string
	rows    []int
	weights []float64 // of each program in the objective
	permits []op.Scheme
	asked   bool    // the workload lists the schemes
	max     float64 // KL, 0: no limit
	options [][]op.Scheme
	points  []point
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

// loss is what a scheme costs in a class by the calibration; false when that was not measured.
func (s *session) loss(c *class, scheme op.Scheme) (float64, bool) {
	if scheme == op.A32W32 {
		return 0, true
	}
	cal := s.in.Calibration
	if cal == nil {
		return 0, false
	}
	total := 0.0
	for _, node := range c.nodes {
		l := cal.Loss(node, scheme, len(cal.Folds) > 0)
		if l == nil && len(cal.Folds) > 0 {
			l = cal.Loss(node, scheme, false) // of a class that no fold touches
		}
		if l == nil {
			return 0, false
		}
		total += max(0, l.KL)
	}
	if p := s.packed; p.works() && c == &s.classes[p.head] && eightBit(scheme) {
		l := s.tableLoss(p.node)
		if l == nil {
			return 0, false
		}
		total += max(0, l.KL)
	}
	return total, true
}

// permit fills in a phase's options: for every class the schemes that are permitted, supported, measured and
// priced. A scheme that falls out is mentioned, with the classes it falls out of.
func (s *session) permit(ctx context.Context, ph *phase) error {
	ph.options = make([][]op.Scheme, len(s.classes))
	var first error
	for i, scheme := range ph.permits {
		if !ph.asked && ph.max > 0 && !slices.ContainsFunc(s.Procs, func(p planir.Proc) bool { return slices.Contains(p.Schemes, scheme) }) {
			continue // nobody asked for it, and nobody executes it
		}
		var unmeasured, failing []string
		var why error
		for k := range s.classes {
			c := &s.classes[k]
			s.tell(Progress{Phase: "price " + ph.name, Done: i*len(s.classes) + k, All: len(ph.permits) * len(s.classes), What: c.nodes[0] + " " + string(scheme)})
			if c.head && ph.name == "prefill" || ph.name == "decode" && !slices.Contains(s.permitted(c), scheme) {
				continue
			}
			if s.outdone(ph, c, scheme) {
				continue
			}
			if _, ok := s.loss(c, scheme); !ok && ph.max > 0 { // without a calibration nothing may be lost
				unmeasured = append(unmeasured, c.nodes...)
				continue
			}
			err := s.ranged(c, scheme)
			if err == nil {
				err = s.usable(ph, k, scheme)
			}
			if full := s.ledger.check("the candidates of operators"); full != nil {
				return full
			}
			if err == nil && c.head { // runs in prefill's programs too
				err = s.usable(s.phases[0], k, scheme)
			}
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				failing = append(failing, c.nodes...)
				if why == nil {
					why = err
				}
				if first == nil {
					first = err
				}
				continue
			}
			ph.options[k] = append(ph.options[k], scheme)
		}
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
		if unmeasured != nil && s.in.Calibration != nil {
			s.note("scheme %q is left out of %s: the calibration says nothing about what it costs", scheme, of(unmeasured))
		}
		if failing != nil && len(ph.permits) > 1 {
			s.note("scheme %q is left out of %s: %v", scheme, of(failing), why)
		}
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
			WithHint("permit a32/w32 as well, or measure what the permitted ones cost: hetc calibrate --model DIR --text FILE -o cal.yaml")
	}
	return nil
}

// preferOnly leaves out the schemes with which more of a class falls to processors that Input.Only does not name than
// with others.
func (s *session) preferOnly(ph *phase) {
	if len(s.in.Only) == 0 {
		return
	}
	left := map[op.Scheme][]string{}
	var order []op.Scheme
	for k, list := range ph.options {
		fewest := math.MaxInt
		foreign := make([]int, len(list))
		for i, scheme := range list {
			foreign[i] = s.foreign(ph, k, scheme)
			fewest = min(fewest, foreign[i])
		}
		ph.options[k] = nil
		for i, scheme := range list {
			if foreign[i] == fewest {
				ph.options[k] = append(ph.options[k], scheme)
				continue
			}
			if left[scheme] == nil {
				order = append(order, scheme)
			}
			left[scheme] = append(left[scheme], s.classes[k].nodes...)
		}
	}
	for _, scheme := range order {
		s.note("scheme %q is left out of %s for %s: --only %s is kept with others", scheme, ph.name, strings.Join(left[scheme], ", "), strings.Join(s.in.Only, ","))
	}
}

// foreign counts the products of a usable class, over the programs of a phase, that no processor of Input.Only executes in a scheme.
func (s *session) foreign(ph *phase, k int, scheme op.Scheme) (n int) {
	for _, rows := range ph.rows {
		for _, name := range s.classes[k].nodes {
			p := s.pools[poolKey{rows, name, scheme}]
			if p != nil && !slices.ContainsFunc(p.list, func(c price.Candidate) bool {
				return slices.ContainsFunc(c.Shares, func(x planir.Share) bool { return slices.Contains(s.in.Only, x.Proc) })
			}) {
				n++
			}
		}
	}
	return n
}

// outdone reports whether a scheme with static scales, which nobody asked for, has nothing over its twin in a class: every
// processor that executes it executes the twin, at the same price, which loses less.
func (s *session) outdone(ph *phase, c *class, scheme op.Scheme) bool {
	twin := scheme.Twin()
	if !scheme.Static() || ph.asked || !slices.Contains(ph.permits, twin) ||
		slices.ContainsFunc(s.Procs, func(p planir.Proc) bool {
			return slices.Contains(p.Schemes, scheme) && !slices.Contains(p.Schemes, twin)
		}) {
		return false
	}
	static, measured := s.loss(c, scheme)
	rows, ok := s.loss(c, twin)
	return !measured || ok && rows <= static
}

// ranged refuses static scales of which the calibration says nothing.
func (s *session) ranged(c *class, scheme op.Scheme) error {
	if !scheme.Static() {
		return nil
	}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, n := range sec.Nodes {
			name := sec.Name + "." + n.Name
			for l := 0; l < max(1, sec.Layers) && slices.Contains(c.nodes, name); l++ {
				a := s.in.Calibration.Activation(name, sec.First+l)
				if a != nil && scheme.Grid() && len(a.OutMax) == 0 {
					return diag.New(diag.ClassInput, "%q in layer %d with %q: the calibration says nothing about what it computes, and steps of results are wanted", name, sec.First+l, scheme).
						WithHint("measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml")
				}
				if a == nil {
					return diag.New(diag.ClassInput, "%q in layer %d with %q: the calibration says nothing about what enters it", name, sec.First+l, scheme).
						WithHint("measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml")
				}
				if scales := scheme.Scales(); scales > 1 && s.in.Calibration.RowScales(name, sec.First+l, scales) == nil {
					return diag.New(diag.ClassInput, "%q in layer %d with %q: the calibration says nothing about %d static scales of what enters it", name, sec.First+l, scheme, scales).
						WithHint("measure them: hetc calibrate --model DIR --text FILE --schemes %s -o cal.yaml", scheme)
				}
			}
		}
	}
	return nil
}

// permitted are the schemes that the workload permits a class when decoding.
func (s *session) permitted(c *class) []op.Scheme {
	if c.head && len(s.want.Head) > 0 {
		return s.want.Head
	}
	return s.want.Decode
}

// heads is the number of classes with one row whatever the bucket is.
func (s *session) heads() (n int) {
	for i := range s.classes {
		if s.classes[i].head {
			n++
		}
	}
	return n
}

// uniform is one scheme for every class.
func (s *session) uniform(scheme op.Scheme) assignment {
	a := make(assignment, len(s.classes))
	for i := range a {
		a[i] = scheme
	}
	return a
}

// around is the assignment in which a class in a scheme is priced: uniform, but for experts that do not have it.
func (s *session) around(ph *phase, k int, scheme op.Scheme) (assignment, error) {
	a := s.uniform(scheme)
	if scheme.Experts() {
		return a, nil
	}
	if c := &s.classes[k]; c.expert {
		return nil, diag.New(diag.ClassInput, "%q: scheme %q is one of products by a single matrix, and experts have others", c.nodes[0], scheme).
			WithHint("permit one for them beside it, such as %s", op.A8TQ8C)
	}
	theirs := op.A32W32
	if i := slices.IndexFunc(ph.permits, op.Scheme.Experts); i >= 0 {
		theirs = ph.permits[i]
	}
	for i := range a {
		if s.classes[i].expert {
			a[i] = theirs
		}
	}
	return a, nil
}

// usable prices a class in a scheme in all programs of a phase.
func (s *session) usable(ph *phase, k int, scheme op.Scheme) error {
	a, err := s.around(ph, k, scheme)
	if err != nil {
		return err
	}
	for _, rows := range ph.rows {
		sections, err := s.expand(rows, a)
		if err != nil {
			return err
		}
		for i := range sections {
			sec := &sections[i]
			if slices.ContainsFunc(sections[:i], func(x lower.Section) bool { return x.Name == sec.Name }) {
				continue
			}
			if !slices.ContainsFunc(sec.Nodes, func(n lower.Node) bool { return slices.Contains(s.classes[k].nodes, n.Name) }) {
				continue
			}
			s.price(sec, rows)
			for j := range sec.Nodes {
				n := &sec.Nodes[j]
				if x := s.pools[poolOf(rows, n)]; x.err != nil && (slices.Contains(s.classes[k].nodes, n.Name) || !n.Op().HasScheme()) {
					return x.err
				}
			}
		}
	}
	return nil
}

// expand is the graph at a number of rows under an assignment.
func (s *session) expand(rows int, a assignment) ([]lower.Section, error) {
	out, err := lower.Expand(s.of(rows), rows, s.want.Context, cacheType, s.schemeOf(a))
	if err != nil {
		return nil, diag.New(diag.ClassInput, "solve: rows %d: %w", rows, err)
	}
	return out, nil
}

// poolKey names the candidates of a node: they depend on nothing else.
type poolKey struct {
	rows   int
	node   string
	scheme op.Scheme
}

func poolOf(rows int, n *lower.Node) poolKey { return poolKey{rows, n.Name, n.Op().Scheme} }

// pool is the ways to execute a node, or why there are none.
type pool struct {
	list []price.Candidate
	err  error
	st   *price.Section // that made them
	node int
}

// price makes the candidates of a section's nodes at a number of rows. Those of nodes without a scheme grow with
// every scheme around them, whose boundaries they may follow.
func (s *session) price(sec *lower.Section, rows int) {
	key := sectionKey(sec, rows)
	if s.priced[key] {
		return
	}
	s.priced[key] = true
	st := s.stage(sec, rows)
	lists, errs := st.Candidates()
	for i := range lists {
		lists[i] = st.Restrict(i, lists[i])
	}
	for i := range sec.Nodes {
		k := poolOf(rows, &sec.Nodes[i])
		old := s.pools[k]
		switch {
		case old == nil:
			s.pools[k] = &pool{lists[i], errs[i], st, i}
			s.take(candidatesBytes(lists[i]))
		case !sec.Nodes[i].Op().HasScheme() && !s.listed:
			seen := map[string]bool{}
			for j := range old.list {
				seen[old.list[j].Label()] = true
			}
			for _, c := range lists[i] {
				if !seen[c.Label()] {
					old.list = append(old.list, c)
					s.take(candidateSize(&c))
				}
			}
		}
	}
	failed := slices.ContainsFunc(errs, func(err error) bool { return err != nil }) // told by whoever needs the section
	for _, q := range s.Procs {
		// Said once for a processor: a plan that does without it is not to look like a choice.
		if err := st.Missing[q.Name]; err != nil && !failed && diag.ClassOf(err) != diag.ClassInfeasible && !s.said[q.Name] {
			s.said[q.Name] = true
			s.note("some choices with processor %q are left out: %v", q.Name, err)
		}
	}
}

// sectionKey names a section with the schemes of its nodes.
func sectionKey(sec *lower.Section, rows int) string {
	key := fmt.Sprintf("%d %s", rows, sec.Name)
	for i := range sec.Nodes {
		if x := sec.Nodes[i].Op().Scheme; x != "" {
			key += " " + string(x)
		}
	}
	return key
}

// instance poses the problem of a section whose schemes are fixed.
func (s *session) instance(sec *lower.Section, rows int) (*instance, error) {
	key := sectionKey(sec, rows)
	if in := s.instances[key]; in != nil {
		return in, nil
	}
	in, err := s.assembled(sec, rows)
	if err != nil {
		return nil, err
	}
	in.findPaths()
	in.posed = in.widen()
	s.instances[key] = in
	return in, nil
}

// chooseSchemes decides the scheme of every class in either phase: of the permitted assignments that stay
// within the limits of quality the one with the least expected time.
func (s *session) chooseSchemes(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	found, err := s.search(ctx, math.Inf(1), nil, func(p, d assignment) (float64, bool, error) {
		ns, err := s.value(ctx, p, d)
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

// prepare lists the assignments of both phases with what bounds them.
func (s *session) prepare(ctx context.Context) error {
	d := &phase{name: "decode", rows: s.want.DecodeRows(),
		permits: slices.Clone(s.want.Decode), asked: len(s.in.Workload.Schemes.Decode) > 0, max: s.want.MaxKL.Decode}
	for _, x := range s.want.Head {
		if !slices.Contains(d.permits, x) {
			d.permits = append(d.permits, x)
		}
	}
	for _, rows := range d.rows {
		d.weights = append(d.weights, s.want.DecodeNS(rows, s.want.Weights.Decode))
	}
	p := &phase{name: "prefill", rows: s.want.Buckets, permits: s.want.Prefill, asked: len(s.in.Workload.Schemes.Prefill) > 0, max: s.want.MaxKL.Prefill}
	for _, share := range s.want.Share {
		p.weights = append(p.weights, s.want.Weights.Prefill*share)
	}
	s.phases = [2]*phase{p, d}
	for _, ph := range []*phase{d, p} {
		if len(ph.rows) == 0 {
			continue
		}
		if err := s.permit(ctx, ph); err != nil {
			return err
		}
	}
	s.listed = true // bounds hold for the candidates there are
	for _, ph := range []*phase{d, p} {
		if len(ph.rows) == 0 {
			continue
		}
		if err := s.list(ph); err != nil {
			return err
		}
	}
	return nil
}

// list enumerates a phase's assignments, least bound first. The bound of an assignment is what its nodes
// cost at least, each executed as it is cheapest: hand-overs are left out, but in sections with forks. Prefill's leave out the head.
func (s *session) list(ph *phase) error {
	total := 1
	var vary []int
	for k, list := range ph.options {
		if len(list) == 0 {
			continue
		}
		vary = append(vary, k)
		if total *= len(list); total > maxAssignments {
			return diag.New(diag.ClassInput, "solve: more than %d combinations of schemes and weights in %s", maxAssignments, ph.name).
				WithHint("permit fewer schemes in the workload")
		}
	}
	sets, parts := s.sets(), s.partBounds(ph)
	type costs [][]float64 // by program and set of processors
	zero := func() costs {
		c := make(costs, len(ph.rows))
		for r := range c {
			c[r] = make([]float64, len(sets))
		}
		return c
	}
	base, low := zero(), make([][]costs, len(s.classes))
	for _, k := range vary {
		low[k] = make([]costs, len(ph.options[k]))
		for j := range low[k] {
			low[k][j] = zero()
		}
	}
	kl := make([][]float64, len(s.classes))
	for _, k := range vary {
		for _, scheme := range ph.options[k] {
			x, _ := s.loss(&s.classes[k], scheme)
			kl[k] = append(kl[k], x)
		}
	}
	for r, rows := range ph.rows {
		for i := range s.graph.Sections {
			sec := &s.graph.Sections[i]
			times := float64(max(1, sec.Layers))
			if parts != nil && parts.sections[sec.Name] {
				continue // bounded apart
			}
			for _, n := range sec.Nodes {
				name := sec.Name + "." + n.Name
				k, classed := s.classOf[name]
				if p := s.packed; p.works() && name == p.node {
					continue // what it takes depends on the head
				}
				if !classed {
					scheme := n.Ops[len(n.Ops)-1].Scheme
					if n.Exact {
						scheme = op.A32W32
					}
					if x := s.pools[poolKey{rows, name, scheme}]; x != nil && x.err != nil {
						return x.err
					}
					for x, set := range sets {
						base[r][x] += times * s.cheapest(poolKey{rows, name, scheme}, set)
					}
					continue
				}
				for j, scheme := range ph.options[k] {
					for x, set := range sets {
						low[k][j][r][x] += times * s.cheapest(poolKey{rows, name, scheme}, set)
					}
				}
			}
		}
	}
	ph.points = ph.points[:0]
	ph.worth = map[string]float64{}
	pick := make([]uint8, len(vary))
	sums := make([]costs, len(vary)+1)
	sums[0] = base
	for i := range vary {
		sums[i+1] = zero()
	}
	losses := make([]float64, len(vary)+1)
	var walk func(i int)
	walk = func(i int) {
		if i == len(vary) {
			if ph.max > 0 && losses[i] > ph.max {
				return
			}
			bound := 0.0
			for r := range ph.rows {
				bound += float64(ph.weights[r] * slices.Min(sums[i][r]))
			}
			p := point{slices.Clone(pick), bound, losses[i]}
			if parts != nil {
				p.bound += parts.of(s.schemesOf(ph, &p, nil))
			}
			ph.points = append(ph.points, p)
			s.take(pointBytes + rankedBytes)
			return
		}
		k := vary[i]
		for j := range ph.options[k] {
			pick[i] = uint8(j)
			losses[i+1] = losses[i] + kl[k][j]
			for r := range sums[i] {
				for x := range sums[i][r] {
					sums[i+1][r][x] = sums[i][r][x] + low[k][j][r][x]
				}
			}
			walk(i + 1)
		}
	}
	walk(0)
	if err := s.ledger.check("combinations of schemes"); err != nil {
		return err
	}
	slices.SortStableFunc(ph.points, func(a, b point) int { return cmp.Compare(a.bound, b.bound) })
	return nil
}

// cheapest is the least cost of a node's candidates that only use processors of a set; infinite when
// there are none.
func (s *session) cheapest(k poolKey, set uint64) float64 {
	x := s.pools[k]
	if x == nil {
		return 0 // not priced in that form: no bound
	}
	best := math.Inf(1)
	for i := range x.list {
		c := &x.list[i]
		if s.mask(c.Shares)&^set == 0 {
			best = min(best, float64(s.cost(c)))
		}
	}
	return best
}

// cost is what a candidate counts for in the objective.
func (s *session) cost(c *price.Candidate) int64 {
	if s.measure() == problem.Energy {
		return c.EnergyNJ
	}
	return c.CostNS
}

func (s *session) mask(shares []planir.Share) (m uint64) {
	for _, sh := range shares {
		m |= 1 << slices.IndexFunc(s.Procs, func(p planir.Proc) bool { return p.Name == sh.Proc })
	}
	return m
}

// sets are the sets of processors that may work in one program; a single set of all when there are many.
func (s *session) sets() []uint64 {
	if sets, ok := problem.IndependentSets(len(s.Procs), s.Conflicts, 64); ok {
		return sets
	}
	return []uint64{1<<len(s.Procs) - 1}
}

// assignments turns a pair of points into schemes. Prefill's has decode's for the head.
func (s *session) assignments(p, d *point) (prefill, decode assignment) {
	decode = s.schemesOf(s.phases[1], d, nil)
	if p == nil {
		return slices.Clone(decode), decode
	}
	return s.schemesOf(s.phases[0], p, decode), decode
}

// schemesOf is a point of a phase as schemes; classes that the phase does not decide have those of others (nil: a32/w32).
func (s *session) schemesOf(ph *phase, x *point, others assignment) assignment {
	a := slices.Clone(others)
	if others == nil {
		a = s.uniform(op.A32W32)
	}
	i := 0
	for k, list := range ph.options {
		if len(list) > 0 {
			a[k] = list[x.pick[i]]
			i++
		}
	}
	return a
}

// headKL is what the head costs in an assignment of decode: it counts in prefill too.
func (s *session) headKL(decode assignment) float64 {
	total := 0.0
	for k := range s.classes {
		if s.classes[k].head {
			x, _ := s.loss(&s.classes[k], decode[k])
			total += x
		}
	}
	return total
}

// value is the objective of a pair of assignments, solved.
func (s *session) value(ctx context.Context, prefill, decode assignment) (float64, error) {
	total := 0.0
	for i, a := range []assignment{prefill, decode} {
		ph := s.phases[i]
		if len(ph.rows) == 0 {
			continue // no prompt has a program: a context of one position
		}
		key := a.key()
		ns, ok := ph.worth[key]
		if !ok {
			for r, rows := range ph.rows {
				if _, ok := s.leastOf(rows, a); ok && ph.weights[r] == 0 {
					continue // no prompt has that program, and it has a plan
				}
				pr, err := s.program(rows, a)
				if err != nil {
					return 0, err
				}
				report, err := pr.solve(ctx, s)
				if err != nil {
					return 0, err
				}
				ns += float64(ph.weights[r] * float64(report.ObjectiveNS))
			}
			ph.worth[key] = ns
		}
		total += ns
	}
	return total, nil
}

// found is the outcome of a search: no decode when nothing is within the limits.
type found struct {
	prefill, decode assignment
	ns              float64
	report          *planir.Solve // nil when there was nothing to choose
}

// pair is a combination of assignments that waits to be looked at.
type pair struct {
	head  int // which choice for it
	p, d  int // in the rankings of the phases under that
	bound float64
}

type pairs []pair

func (h pairs) Len() int { return len(h) }
func (h pairs) Less(i, j int) bool {
	if h[i].bound != h[j].bound {
		return h[i].bound < h[j].bound
	}
	return cmp.Or(cmp.Compare(h[i].head, h[j].head), cmp.Compare(h[i].d, h[j].d), cmp.Compare(h[i].p, h[j].p)) < 0
}
func (h pairs) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *pairs) Push(x any)   { *h = append(*h, x.(pair)) }
func (h *pairs) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// search finds the pair of assignments with the least objective below `below`, within the limits of
// quality, that admits and try accept: it goes through the pairs in the order of what their shortest paths take (menus), has those
// solved that may still be the best, and ends where none is below the best. As a rule the first that is accepted is the
// best: that is best-first search with a bound that is exact but for what try adds. The first of equally good ones wins.
// admits (nil: all) says whether a pair is worth trying.
func (s *session) search(ctx context.Context, below float64, admits func(prefill, decode assignment) bool, try func(prefill, decode assignment) (ns float64, ok bool, err error)) (found, error) {
	groups := s.rankings()
	none := len(s.phases[0].rows) == 0
	best := found{ns: below}
	queue := &pairs{}
	push := func(g, p, d int) {
		x, ok := groups[g].prefill.at(p)
		y, also := groups[g].decode.at(d)
		if !ok || !also {
			return
		}
		if b := x.least + y.least; b < best.ns {
			heap.Push(queue, pair{g, p, d, b})
		}
	}
	for g := range groups {
		push(g, 0, 0)
	}
	most := 0 // pairs that wait, at a time
	defer func() { s.ledger.release(int64(most) * pairBytes) }()
	status, bound := problem.Optimal, 0.0
	seen, tried := 0, 0
	for queue.Len() > 0 {
		if n := queue.Len(); n > most {
			s.ledger.take(int64(n-most) * pairBytes)
			most = n
		}
		x := heap.Pop(queue).(pair)
		if x.bound >= best.ns {
			break
		}
		if seen++; seen > maxPairs || tried > maxTried || s.ledger.over(0) {
			status, bound = problem.Feasible, x.bound
			break
		}
		s.trim()
		if err := ctx.Err(); err != nil {
			return found{}, diag.New(diag.ClassInterrupted, "choose schemes: %w", err)
		}
		push(x.head, x.p+1, x.d)
		if x.p == 0 {
			push(x.head, 0, x.d+1)
		}
		var pp *point
		if !none {
			pp = &s.phases[0].points[groups[x.head].prefill.order[x.p].point]
		}
		prefill, decode := s.assignments(pp, &s.phases[1].points[groups[x.head].decode.order[x.d].point])
		if admits != nil && !admits(prefill, decode) {
			continue
		}
		tried++
		s.searching(tried, x.bound, best.ns)
		ns, ok, err := try(prefill, decode)
		if err != nil {
			return found{}, err
		}
		if ok && ns < best.ns {
			best.prefill, best.decode, best.ns = prefill, decode, ns
		}
	}
	if best.decode == nil || len(s.phases[0].points)*max(1, len(s.phases[1].points)) <= 1 && admits == nil {
		return best, nil
	}
	r := &planir.Solve{Problem: "schemes", Status: string(status), ObjectiveNS: price.Whole(best.ns), BoundNS: price.Whole(best.ns)}
	if status != problem.Optimal {
		r.BoundNS = min(r.BoundNS, price.Whole(bound))
	}
	for _, ph := range s.phases {
		for _, list := range ph.options {
			r.Choices += len(list)
		}
	}
	best.report = r
	return best, nil
}

// searching reports how far a search for schemes is.
func (s *session) searching(tried int, bound, best float64) {
	p := Progress{Phase: cmp.Or(s.phase, "choose schemes"), Done: tried, All: 0}
	if s.measure() != problem.Memory {
		p.Bound = bound / 1e6
		if !math.IsInf(best, 1) {
			p.Best = best / 1e6
		}
	}
	s.tell(p)
}

// tooLossy explains that no assignment is within the limits: what the least lossy one costs.
func (s *session) tooLossy() error {
	for i, ph := range s.phases {
		if ph.max == 0 || len(ph.rows) == 0 {
			continue
		}
		least := 0.0
		for k := range s.classes {
			list := ph.options[k]
			if i == 0 && s.classes[k].head {
				list = s.phases[1].options[k]
			}
			best := math.Inf(1)
			for _, scheme := range list {
				if x, ok := s.loss(&s.classes[k], scheme); ok {
					best = min(best, x)
				}
			}
			if len(list) > 0 {
				least += best
			}
		}
		if least > ph.max {
			return diag.New(diag.ClassInfeasible, "solve: %s is to lose at most %s, and the permitted schemes lose at least %.3g by the calibration", ph.name, workload.KLText(ph.max), least).
				WithHint("permit a32/w32 or another more exact scheme as well, or raise quality.max_kl.%s in the workload", ph.name)
		}
	}
	return diag.New(diag.ClassInfeasible, "solve: no combination of the permitted schemes stays within the limits of quality in both phases").
		WithHint("raise quality.max_kl in the workload, or permit more exact schemes")
}

// quality is what the chosen schemes cost by the calibration: nothing without one, or where it says
// nothing about one of them.
func (s *session) quality() []planir.Quality {
	if s.in.Calibration == nil {
		return nil
	}
	var out []planir.Quality
	for i, a := range []assignment{s.prefill, s.decode} {
		ph := s.phases[i]
		if len(ph.rows) == 0 {
			continue
		}
		q := planir.Quality{Phase: ph.name, MaxKL: ph.max}
		var missing []string
		for k := range s.classes {
			x, ok := s.loss(&s.classes[k], a[k])
			if p := s.packed; !ok && p.under(a) && p.head == k && s.tableLoss(p.node) == nil {
				missing = append(missing, fmt.Sprintf("%s in %s", op.I32Q8C, p.node))
			} else if !ok {
				missing = append(missing, fmt.Sprintf("%s in %s", a[k], s.classes[k].nodes[0]))
			}
			q.KL += x
		}
		if missing != nil {
			s.note("what %s loses is not known: the calibration says nothing about %s", ph.name, strings.Join(missing, ", "))
			continue
		}
		out = append([]planir.Quality{q}, out...)
	}
	return out
}
