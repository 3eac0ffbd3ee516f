package exact

import (
	"context"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// Sizes of a search for tiers.
const (
	tierWork     = 1 << 27 // of the search for one chunk length, by default: relaxations times choices of a layer
	tierNodes    = 400_000 // and relaxations at most
	layerNodes   = 20_000  // of one layer
	priceNodes   = 40      // of one layer under prices
	boundWork    = 1 << 14 // of one layer whose two processors are weighed: nodes times experts
	freeNodes    = 4       // the same where limits couple layers, without them
	firstNodes   = 2_000   // for the first of equally good answers
	weighFirst   = 500     // the same where processors are weighed
	firstExperts = 64      // of a layer, for that
	tierSubsets  = 2048    // sets of tiers in use that are tried
	blocked      = math.MaxInt64 / 8
)

// Tiers implements problem.Engine. Which tiers are in use is enumerated, cheapest bound first. That decided, what a
// layer takes of anything but time is a sum over experts plus a function of how many experts are in each tier:
//
//	sum over e of w[e][choice of e]  +  sum over tiers k of F_k(n_k)
//
// For given numbers n the first sum is a transportation problem, whose optimum is an M-convex function of n (Murota 2003, ch. 9):
// an assignment is optimal unless a sequence of experts, each moving to the tier that the next one leaves, makes it
// cheaper (the exchange argument; no order of the experts by load is needed). With the convex envelope of
// each F_k in its place the whole is M-convex, too, so moving one expert's worth of load along the cheapest exchange until none is
// cheaper gives its minimum: a lower bound, with whole numbers of experts. F_k is not convex because of groups that are not
// full; where the envelope lies below it at the optimum, the search branches on n_k.
//
// Time is the longer of the NPU's queue N and the CPU's work C, which is no such sum. But
//
//	max(N, C) >= u*N + (1-u)*C   for every u in [0,1],
//
// the right side is such a sum, and the best u makes both sides meet but for whole experts (Lagrangian duality). So every layer has a weight
// u, and the exchange argument holds for what it weighs. Branching on n_k, which divides the assignments on both sides of the
// kink, closes the difference (tiers_weigh.go).
//
// Layers are independent unless the region, the number of graphs, dropped rows, lost saliency or a bound on a measure couple them. If the best
// without those keeps them, it is the answer. Otherwise they are priced (tiers_price.go), whose dual bound prunes a
// depth-first search in the order of layers and experts, which ends with a proof or, at its limit, with a gap.
func (Engine) Tiers(ctx context.Context, p *problem.Tiers, limits problem.Limits) (problem.TierSolution, error) {
	if err := p.Validate(); err != nil {
		return problem.TierSolution{}, err
	}
	best := problem.TierSolution{Objective: math.MaxInt64}
	bound := int64(math.MaxInt64)
	var nodes int64
	for c := range p.Chunks {
		s := newTierSearch(ctx, p, c, limits)
		times := s.t.Times(p.Measure())
		s.best = best.Objective / times
		if best.Objective == math.MaxInt64 {
			s.best = math.MaxInt64
		} else if s.best*times < best.Objective {
			s.best++
		}
		err := s.solve()
		if err != nil {
			return problem.TierSolution{}, diag.New(diag.ClassInterrupted, "solve tiers %q: %w", p.Name, err)
		}
		nodes += s.nodes
		if s.bound < math.MaxInt64/times {
			bound = min(bound, s.bound*times)
		}
		if s.choices != nil && s.best*times < best.Objective {
			best = problem.TierSolution{Chunk: c, Choices: s.choices, Objective: s.best * times}
		}
	}
	if best.Choices == nil {
		if bound < math.MaxInt64 {
			return problem.TierSolution{Status: problem.LimitReached, Nodes: nodes}, nil
		}
		return problem.TierSolution{}, p.Infeasible()
	}
	best.Bound, best.Nodes, best.Status = min(bound, best.Objective), nodes, problem.Feasible
	if best.Bound == best.Objective {
		best.Status = problem.Optimal
	}
	return best, p.Verify(best)
}

// tierSearch is the search for one chunk length. Costs are of one chunk.
type tierSearch struct {
	ctx     context.Context
	p       *problem.Tiers
	t       *problem.TierTable
	chunk   int
	main    term
	budgets []budget
	scale   int64 // of main in sums with multipliers
	limit   int64 // nodes of the search that is under way, of those
	nodes   int64

	farkas  []*duals // without the main term: they rule out a set of tiers
	best    int64    // no more than this is of interest
	choices [][]int
	bound   int64 // no solution is below it, as far as it is below best
}

// prices are what a unit of each resource costs. The sum over a layer is a sum over cells, and over tiers by the number of experts.
type prices struct{ npu, cpu, sync, energy, off, launches, drop, lost, experts int64 }

func (p *prices) add(q prices, times int64) {
	p.npu, p.cpu, p.sync = p.npu+times*q.npu, p.cpu+times*q.cpu, p.sync+times*q.sync
	p.energy, p.off, p.launches = p.energy+times*q.energy, p.off+times*q.off, p.launches+times*q.launches
	p.drop, p.lost, p.experts = p.drop+times*q.drop, p.lost+times*q.lost, p.experts+times*q.experts
}

func (p *prices) cell(x *problem.TierCell, k int) int64 {
	v := p.cpu*x.CPUNS + p.energy*x.EnergyNJ + p.off*x.Off + p.drop*x.Drop + p.lost*x.Lost
	if k > 0 {
		v += p.experts
	}
	return v
}

func (p *prices) group(g *problem.TierGroups, n int) int64 {
	return p.npu*g.NS[n] + p.energy*g.EnergyNJ[n] + p.launches*g.Launches[n]
}

// term is something that is minimised or limited: prices, or where the processors overlap time, whose prices are its upper bound.
type term struct {
	prices
	longer bool // the longer of NPU and CPU counts
}

// of is how much of it a layer, or all of them, takes.
func (x *term) of(c problem.TierCost) int64 {
	if x.sync > 0 {
		return c.NS
	}
	return x.energy*c.EnergyNJ + x.off*c.Off + x.launches*c.Launches + x.drop*c.Drop + x.lost*c.Lost + x.experts*c.Experts
}

// budget is a term and the most of it: of one layer, or of all (-1).
type budget struct {
	term
	layer int
	limit int64
	most  int64 // that all layers can take
}

func newTierSearch(ctx context.Context, p *problem.Tiers, chunk int, limits problem.Limits) *tierSearch {
	s := &tierSearch{ctx: ctx, p: p, t: p.Table(chunk), chunk: chunk, limit: limits.Nodes}
	if s.limit == 0 {
		most := 0
		for l := range s.t.Cells {
			most = max(most, len(s.t.Cells[l]))
		}
		s.limit = min(tierNodes, int64(tierWork/(most*(1+min(p.MaxTiers, len(p.Capacities))))))
	}
	s.main = s.measure(p.Measure())
	for _, m := range problem.TierMeasures {
		if b, ok := p.Bounds[m]; ok {
			s.budgets = append(s.budgets, budget{term: s.measure(m), layer: -1, limit: b / s.t.Times(m)})
		}
	}
	all := func(x prices, limit int64) {
		s.budgets = append(s.budgets, budget{term: term{prices: x}, layer: -1, limit: limit})
	}
	each := func(x prices, limit func(int) int64) {
		for l := range s.t.Cells {
			s.budgets = append(s.budgets, budget{term: term{prices: x}, layer: l, limit: limit(l)})
		}
	}
	if n := p.NPUExperts(); n < math.MaxInt64 {
		all(prices{experts: 1}, n)
	}
	if p.MaxGraphs != 0 {
		all(prices{launches: 1}, max(0, p.MaxGraphs))
	}
	if p.Prune {
		if p.MaxDropPPM < 1e6 {
			all(prices{drop: 1}, s.t.TotalDrop())
		}
		if p.MaxLayerDropPPM < 1e6 {
			each(prices{drop: 1}, s.t.LayerDrop)
		}
		if most, ok := s.t.TotalLost(); ok && p.MaxLostPPM < 1e6 {
			all(prices{lost: 1}, most)
		}
		if most, ok := s.t.LayerLost(); ok && p.MaxLayerLostPPM < 1e6 {
			each(prices{lost: 1}, func(int) int64 { return most })
		}
	}
	for i := range s.budgets {
		b := &s.budgets[i]
		if b.layer >= 0 && i > 0 && s.budgets[i-1].prices == b.prices {
			b.most = s.budgets[i-1].most
		} else {
			b.most = s.largest(&b.term)
		}
		b.limit = min(b.limit, b.most) // products stay small
	}
	s.budgets = slices.DeleteFunc(s.budgets, func(b budget) bool { return b.layer < 0 && b.limit >= b.most })
	s.scale = s.scaled()
	return s
}

// scaled is the scale of the main term.
func (s *tierSearch) scaled() int64 {
	scale := int64(1)
	for most := max(1, s.largest(&s.main)); scale < 1<<40 && scale*most < 1<<46; {
		scale *= 2
	}
	return scale
}

func (s *tierSearch) measure(m problem.TierMeasure) term {
	switch m {
	case problem.TierEnergy:
		return term{prices: prices{energy: 1}}
	case problem.TierOff:
		return term{prices: prices{off: 1}}
	case problem.TierLaunches:
		return term{prices: prices{launches: 1}}
	case problem.TierLost:
		return term{prices: prices{lost: 1}}
	}
	return term{prices{npu: 1, cpu: 1, sync: 1}, !s.p.Serial}
}

// duals are multipliers: of the main term, which is the search's scale or, where nothing but keeping budgets counts, 0; of the budgets, in
// 1/scale of the main term; and the weight of the NPU's time by layer.
type duals struct {
	main  int64
	mult  []int64
	split []float64
}

// combined are the prices of a layer in units of 1/scale of the main term, and the price of the longer time that is in them.
func (s *tierSearch) combined(l int, d *duals) (p prices, longer int64) {
	put := func(x *term, times int64) {
		if x.longer {
			longer += times
		} else {
			p.add(x.prices, times)
		}
	}
	put(&s.main, d.main)
	for i := range s.budgets {
		if b := &s.budgets[i]; d.mult[i] > 0 && (b.layer < 0 || b.layer == l) {
			put(&b.term, d.mult[i])
		}
	}
	return s.weighed(p, longer, d.split[l]), longer
}

// weighed adds a price of the longer time to others.
func (s *tierSearch) weighed(p prices, longer int64, split float64) prices {
	npu := int64(float64(longer) * split)
	p.add(prices{npu: npu, cpu: longer - npu, sync: longer}, 1)
	return p
}

// even are no multipliers.
func (s *tierSearch) even() *duals {
	d := &duals{main: s.scale, mult: make([]int64, len(s.budgets)), split: make([]float64, len(s.t.Cells))}
	for l := range d.split {
		d.split[l] = 0.5
	}
	return d
}

// layer poses one layer under prices: columns are choice 0 and the tiers of set.
func (s *tierSearch) layer(l int, r *prices, set []int) *tierLayer {
	y := &tierLayer{cols: append([]int{0}, set...), search: s, most: layerNodes}
	experts := len(s.t.Cells[l])
	y.w = make([][]int64, experts)
	flat := make([]int64, experts*len(y.cols))
	for e := range y.w {
		y.w[e], flat = flat[:len(y.cols):len(y.cols)], flat[len(y.cols):]
	}
	for _, k := range y.cols {
		n := experts
		if k > 0 {
			n = min(n, len(s.t.Groups[k-1].NS)-1)
		}
		y.f = append(y.f, make([]int64, n+1))
	}
	y.price(l, r)
	return y
}

// price fills in what things cost.
func (y *tierLayer) price(l int, r *prices) {
	t := y.search.t
	y.big = 0
	for e := range y.w {
		var most int64
		for j, k := range y.cols {
			y.w[e][j] = r.cell(&t.Cells[l][e][k], k)
			most = max(most, y.w[e][j])
		}
		y.big += float64(most)
	}
	for j, k := range y.cols {
		f := y.f[j]
		for i := range f {
			switch {
			case k > 0:
				f[i] = r.group(&t.Groups[k-1], i)
			case i < len(y.w):
				f[i] = r.sync * t.SyncNS
			default:
				f[i] = 0
			}
		}
		y.big += float64(slices.Max(f))
	}
	y.big = 4*y.big + 4
}

// solve fills best, choices and bound. choices stays nil where nothing is below best.
func (s *tierSearch) solve() error {
	sets, complete := subsets(len(s.t.Groups), s.p.MaxTiers)
	s.bound = math.MaxInt64
	all := make([]int, len(s.t.Groups))
	for k := range all {
		all[k] = k + 1
	}
	free := s.even()
	if s.main.longer {
		for l := range s.t.Cells {
			w := s.weigher(l, free, all, false)
			free.split[l] = w.balance(w.root(), 8)
		}
	}
	var list []candidate
	linear := s.linear(free)
	for _, set := range sets {
		list = append(list, candidate{set, linear(set)})
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].bound < list[j].bound })
	if !complete { // a bound for all sets that are not tried
		s.bound = linear(all)
	}
	start := s.best
	relaxed := int64(math.MaxInt64) // the best without budgets, and its choices
	var choices [][]int
	open := make([]int64, 0, len(list)) // bounds
	stopped := false
	for _, c := range list {
		if c.bound > min(relaxed, start) {
			break
		}
		if len(s.budgets) > 0 && len(open) > 0 && s.nodes > s.limit/8 {
			choices, stopped = nil, true // what layers do by themselves is not known
			break
		}
		total, bound, x, err := s.independent(free, c.set, min(relaxed, start))
		if err != nil {
			return err
		}
		open = append(open, bound)
		if x != nil && (total < relaxed || total == relaxed && less(x, choices)) {
			relaxed, choices = total, x
		}
	}
	if s.main.longer && len(open) > 0 && (choices == nil && len(s.budgets) == 0 || choices != nil && s.t.Broken(choices) == "") {
		// What is still open gets more nodes, the least bound first.
		most := slices.Repeat([]int{s.boundNodes()}, len(open))
		for i := leastOf(open); open[i] < min(relaxed, start) && s.nodes < s.limit; i = leastOf(open) {
			most[i] *= 4
			total, bound, x, err := s.weighAll(free, list[i].set, min(relaxed, start), most[i], false)
			if err != nil {
				return err
			}
			if x != nil && (total < relaxed || total == relaxed && less(x, choices)) {
				relaxed, choices = total, x
			}
			open[i] = max(open[i], bound)
		}
		for i := range open {
			if open[i] != relaxed || open[leastOf(open)] < relaxed {
				continue
			}
			if total, _, x, err := s.weighAll(free, list[i].set, relaxed, most[i], true); err != nil {
				return err
			} else if x != nil && total == relaxed && less(x, choices) {
				choices = x
			}
		}
	}
	for _, b := range open {
		s.bound = min(s.bound, b)
	}
	switch {
	case choices == nil && stopped:
		s.bound = 0
	case choices == nil && (s.bound >= start || len(s.budgets) == 0):
		return nil // nothing is better than what other chunk lengths have, or it was looked for
	case choices != nil && s.t.Broken(choices) == "":
		if relaxed < start {
			s.best, s.choices = relaxed, choices
		}
		return nil
	}
	s.limit += s.nodes
	return s.constrained(list, s.bound, complete)
}

func leastOf(list []int64) int {
	at := 0
	for i := range list {
		if list[i] < list[at] {
			at = i
		}
	}
	return at
}

type candidate struct {
	set   []int
	bound int64
}

// subsets lists the largest sets of tiers that may be in use; not all of them where there are too many.
func subsets(tiers, most int) (out [][]int, complete bool) {
	most = min(most, tiers)
	var set []int
	var grow func(k int) bool
	grow = func(k int) bool {
		if len(set) == most {
			out = append(out, slices.Clone(set))
			return len(out) <= tierSubsets
		}
		for ; k <= tiers-(most-len(set))+1; k++ {
			set = append(set, k)
			ok := grow(k + 1)
			set = set[:len(set)-1]
			if !ok {
				return false
			}
		}
		return true
	}
	complete = grow(1)
	return out[:min(len(out), tierSubsets)], complete
}

// linear returns a bound by set of tiers: every expert alone, at the least that a place in a group costs.
func (s *tierSearch) linear(d *duals) func(set []int) int64 {
	cost := make([][]int64, 0) // by expert of all layers and choice
	for l := range s.t.Cells {
		r, _ := s.combined(l, d)
		rate := make([]float64, len(s.t.Groups)+1)
		for k := range s.t.Groups {
			rate[k+1] = math.Inf(1)
			for n := 1; n < len(s.t.Groups[k].NS) && n <= len(s.t.Cells[l]); n++ {
				rate[k+1] = min(rate[k+1], float64(r.group(&s.t.Groups[k], n))/float64(n))
			}
		}
		for e := range s.t.Cells[l] {
			v := make([]int64, len(rate))
			for k := range v {
				v[k] = blocked
				if x := float64(r.cell(&s.t.Cells[l][e][k], k)) + rate[k]; x < blocked {
					v[k] = int64(math.Floor(x))
				}
			}
			cost = append(cost, v)
		}
	}
	return func(set []int) int64 {
		var total int64
		for _, v := range cost {
			best := v[0]
			for _, k := range set {
				best = min(best, v[k])
			}
			total += best
		}
		return s.dual(total, d)
	}
}

// independent solves every layer for itself. It gives up, without choices, once the total is above cutoff.
func (s *tierSearch) independent(free *duals, set []int, cutoff int64) (total, bound int64, out [][]int, err error) {
	if s.main.longer {
		most := s.boundNodes()
		if len(s.budgets) > 0 { // of use only where it happens to keep them
			most = freeNodes
		}
		return s.weighAll(free, set, cutoff, most, false)
	}
	r := s.main.prices
	layers := make([]*tierLayer, len(s.t.Cells))
	roots := make([]*box, len(layers))
	var floor int64 // of the layers to come
	for l := range layers {
		layers[l] = s.layer(l, &r, set)
		roots[l] = layers[l].root()
		layers[l].relax(roots[l])
		floor += roots[l].least()
	}
	for l, y := range layers {
		if err := s.ctx.Err(); err != nil {
			return 0, 0, nil, err
		}
		if total+floor > cutoff {
			return total + floor, total + floor, nil, nil
		}
		floor -= roots[l].least()
		value, least, x := y.solve(roots[l])
		total, bound = total+value, bound+least
		out = append(out, x)
	}
	if total > cutoff {
		return total, bound, nil, nil
	}
	for l, y := range layers {
		root := y.root()
		y.relax(root)
		if x := y.first(out[l], root); x != nil {
			out[l] = x
		}
		for e, j := range out[l] {
			out[l][e] = y.cols[j]
		}
	}
	return total, bound, out, nil
}

// boundNodes is for how many nodes the two processors of a layer are weighed, to begin with.
func (s *tierSearch) boundNodes() int { return max(16, boundWork/len(s.t.Cells[0])) }
