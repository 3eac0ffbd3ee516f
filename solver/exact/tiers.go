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
// For given numbers n the first sum is a transportation problem, whose optimum is an M-convex function of n (Murota
// 2003, ch. 9): an assignment is optimal unless a sequence of experts, each moving to the tier that the next one
// leaves, makes it cheaper (the exchange argument; no order of the experts by load is needed). With the convex envelope
// of each F_k in its place the whole is M-convex, too, so moving one expert's worth of load along the cheapest exchange
// until none is cheaper gives its minimum: a lower bound, with whole numbers of experts. F_k is not convex because of
// groups that are not full; where the envelope lies below it at the optimum, the search branches on n_k.
//
// Time is the longer of the NPU's queue N and the CPU's work C, which is no such sum. But
//
//	max(N, C) >= u*N + (1-u)*C   for every u in [0,1],
//
// the right side is such a sum, and the best u makes both sides meet but for whole experts (Lagrangian duality). So
// every layer has a weight u, and the exchange argument holds for what it weighs. Branching on n_k, which divides the
// assignments on both sides of the kink, closes the difference (tiers_weigh.go).
//
// Layers are independent unless the region, the number of graphs, dropped rows, lost saliency or a bound on a measure
// couple them. If the best without those keeps them, it is the answer. Otherwise they are priced (tiers_price.go),
// whose dual bound prunes a depth-first search in the order of layers and experts, which ends with a proof or, at its
// limit, with a gap.
func (Engine) Tiers(ctx context.Context, p *problem.Tiers, limits problem.Limits) (problem.TierSolution, error) {
	if err := p.Validate(); err != nil {
		return problem.TierSolution{}, err
	}
	best := problem.TierSolution{Objective: math.MaxInt64}
	bound := int64(math.MaxInt64)
	var nodes int64
	for chunk := range p.Chunks {
		search := newTierSearch(ctx, p, chunk, limits)
		times := search.table.Times(p.Measure())
		search.best = best.Objective / times
		if best.Objective == math.MaxInt64 {
			search.best = math.MaxInt64
		} else if search.best*times < best.Objective {
			search.best++
		}
		err := search.solve()
		if err != nil {
			return problem.TierSolution{}, diag.New(diag.ClassInterrupted, "solve tiers %q: %w", p.Name, err)
		}
		nodes += search.nodes
		if search.bound < math.MaxInt64/times {
			bound = min(bound, search.bound*times)
		}
		if search.choices != nil && search.best*times < best.Objective {
			best = problem.TierSolution{Chunk: chunk, Choices: search.choices, Objective: search.best * times}
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
	tiers   *problem.Tiers
	table   *problem.TierTable
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

// prices are what a unit of each resource costs. The sum over a layer is a sum over cells, and over tiers by the number
// of experts.
type prices struct{ npu, cpu, sync, energy, off, launches, drop, lost, experts int64 }

// add adds other prices so many times.
func (p *prices) add(more prices, times int64) {
	p.npu, p.cpu, p.sync = p.npu+times*more.npu, p.cpu+times*more.cpu, p.sync+times*more.sync
	p.energy, p.off, p.launches = p.energy+times*more.energy, p.off+times*more.off, p.launches+times*more.launches
	p.drop, p.lost, p.experts = p.drop+times*more.drop, p.lost+times*more.lost, p.experts+times*more.experts
}

// cell is what an expert's choice costs, but for what it adds to groups.
func (p *prices) cell(cell *problem.TierCell, choice int) int64 {
	value := p.cpu*cell.CPUNS + p.energy*cell.EnergyNJ + p.off*cell.Off + p.drop*cell.Drop + p.lost*cell.Lost
	if choice > 0 {
		value += p.experts
	}
	return value
}

// group is what the groups of so many experts of a tier cost.
func (p *prices) group(groups *problem.TierGroups, experts int) int64 {
	return p.npu*groups.NS[experts] + p.energy*groups.EnergyNJ[experts] + p.launches*groups.Launches[experts]
}

// term is something that is minimised or limited: prices, or where the processors overlap time, whose prices are its
// upper bound.
type term struct {
	prices
	longer bool // the longer of NPU and CPU counts
}

// of is how much of it a layer, or all of them, takes.
func (x *term) of(cost problem.TierCost) int64 {
	if x.sync > 0 {
		return cost.NS
	}
	return x.energy*cost.EnergyNJ + x.off*cost.Off + x.launches*cost.Launches +
		x.drop*cost.Drop + x.lost*cost.Lost + x.experts*cost.Experts
}

// budget is a term and the most of it: of one layer, or of all (-1).
type budget struct {
	term
	layer int
	limit int64
	most  int64 // that all layers can take
}

// newTierSearch lists what is limited: bounds on measures, the region, graphs, dropped rows and lost saliency. A limit
// that no choices can exceed is left out.
func newTierSearch(ctx context.Context, p *problem.Tiers, chunk int, limits problem.Limits) *tierSearch {
	out := &tierSearch{ctx: ctx, tiers: p, table: p.Table(chunk), chunk: chunk, limit: limits.Nodes}
	if out.limit == 0 {
		most := 0
		for layer := range out.table.Cells {
			most = max(most, len(out.table.Cells[layer]))
		}
		out.limit = min(tierNodes, int64(tierWork/(most*(1+min(p.MaxTiers, len(p.Capacities))))))
	}
	out.main = out.measure(p.Measure())
	for _, measure := range problem.TierMeasures {
		if limit, ok := p.Bounds[measure]; ok {
			out.budgets = append(out.budgets, budget{term: out.measure(measure), layer: -1,
				limit: limit / out.table.Times(measure)})
		}
	}
	all := func(unit prices, limit int64) {
		out.budgets = append(out.budgets, budget{term: term{prices: unit}, layer: -1, limit: limit})
	}
	each := func(unit prices, limit func(int) int64) {
		for layer := range out.table.Cells {
			out.budgets = append(out.budgets, budget{term: term{prices: unit}, layer: layer, limit: limit(layer)})
		}
	}
	if experts := p.NPUExperts(); experts < math.MaxInt64 {
		all(prices{experts: 1}, experts)
	}
	if p.MaxGraphs != 0 {
		all(prices{launches: 1}, max(0, p.MaxGraphs))
	}
	if p.Prune {
		if p.MaxDropPPM < 1e6 {
			all(prices{drop: 1}, out.table.TotalDrop())
		}
		if p.MaxLayerDropPPM < 1e6 {
			each(prices{drop: 1}, out.table.LayerDrop)
		}
		if most, ok := out.table.TotalLost(); ok && p.MaxLostPPM < 1e6 {
			all(prices{lost: 1}, most)
		}
		if most, ok := out.table.LayerLost(); ok && p.MaxLayerLostPPM < 1e6 {
			each(prices{lost: 1}, func(int) int64 { return most })
		}
	}
	for i := range out.budgets {
		budget := &out.budgets[i]
		if budget.layer >= 0 && i > 0 && out.budgets[i-1].prices == budget.prices {
			budget.most = out.budgets[i-1].most
		} else {
			budget.most = out.largest(&budget.term)
		}
		budget.limit = min(budget.limit, budget.most) // products stay small
	}
	out.budgets = slices.DeleteFunc(out.budgets, func(budget budget) bool {
		return budget.layer < 0 &&
			budget.limit >= budget.most
	})
	out.scale = out.scaled()
	return out
}

// scaled is the scale of the main term.
func (s *tierSearch) scaled() int64 {
	scale := int64(1)
	for most := max(1, s.largest(&s.main)); scale < 1<<40 && scale*most < 1<<46; {
		scale *= 2
	}
	return scale
}

// measure is the term of a measure. Time is the longer of two processors where they work at the same time.
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
	return term{prices{npu: 1, cpu: 1, sync: 1}, !s.tiers.Serial}
}

// duals are multipliers: of the main term, which is the search's scale or, where nothing but keeping budgets counts, 0;
// of the budgets, in 1/scale of the main term; and the weight of the NPU's time by layer.
type duals struct {
	main  int64
	mult  []int64
	split []float64
}

// combined are the prices of a layer in units of 1/scale of the main term, and the price of the longer time that is in
// them.
func (s *tierSearch) combined(layer int, dual *duals) (sum prices, longer int64) {
	put := func(term *term, times int64) {
		if term.longer {
			longer += times
		} else {
			sum.add(term.prices, times)
		}
	}
	put(&s.main, dual.main)
	for i := range s.budgets {
		if budget := &s.budgets[i]; dual.mult[i] > 0 && (budget.layer < 0 || budget.layer == layer) {
			put(&budget.term, dual.mult[i])
		}
	}
	return s.weighed(sum, longer, dual.split[layer]), longer
}

// weighed adds a price of the longer time to others.
func (s *tierSearch) weighed(p prices, longer int64, split float64) prices {
	npu := int64(float64(longer) * split)
	p.add(prices{npu: npu, cpu: longer - npu, sync: longer}, 1)
	return p
}

// even are no multipliers.
func (s *tierSearch) even() *duals {
	out := &duals{main: s.scale, mult: make([]int64, len(s.budgets)), split: make([]float64, len(s.table.Cells))}
	for layer := range out.split {
		out.split[layer] = 0.5
	}
	return out
}

// layer poses one layer under prices: columns are choice 0 and the tiers of set.
func (s *tierSearch) layer(layer int, costs *prices, set []int) *tierLayer {
	out := &tierLayer{cols: append([]int{0}, set...), search: s, most: layerNodes}
	experts := len(s.table.Cells[layer])
	out.cost = make([][]int64, experts)
	flat := make([]int64, experts*len(out.cols))
	for expert := range out.cost {
		out.cost[expert], flat = flat[:len(out.cols):len(out.cols)], flat[len(out.cols):]
	}
	for _, choice := range out.cols {
		most := experts
		if choice > 0 {
			most = min(most, len(s.table.Groups[choice-1].NS)-1)
		}
		out.groupCost = append(out.groupCost, make([]int64, most+1))
	}
	out.price(layer, costs)
	return out
}

// price fills in what things cost.
func (y *tierLayer) price(layer int, costs *prices) {
	table := y.search.table
	y.big = 0
	for expert := range y.cost {
		var most int64
		for j, choice := range y.cols {
			y.cost[expert][j] = costs.cell(&table.Cells[layer][expert][choice], choice)
			most = max(most, y.cost[expert][j])
		}
		y.big += float64(most)
	}
	for j, choice := range y.cols {
		cost := y.groupCost[j]
		for i := range cost {
			switch {
			case choice > 0:
				cost[i] = costs.group(&table.Groups[choice-1], i)
			case i < len(y.cost):
				cost[i] = costs.sync * table.SyncNS
			default:
				cost[i] = 0
			}
		}
		y.big += float64(slices.Max(cost))
	}
	y.big = 4*y.big + 4
}

// solve fills best, choices and bound. choices stays nil where nothing is below best.
func (s *tierSearch) solve() error {
	sets, complete := subsets(len(s.table.Groups), s.tiers.MaxTiers)
	s.bound = math.MaxInt64
	all := make([]int, len(s.table.Groups))
	for tier := range all {
		all[tier] = tier + 1
	}
	free := s.even()
	if s.main.longer {
		for layer := range s.table.Cells {
			weigher := s.weigher(layer, free, all, false)
			free.split[layer] = weigher.balance(weigher.root(), 8)
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
	for _, next := range list {
		if next.bound > min(relaxed, start) {
			break
		}
		if len(s.budgets) > 0 && len(open) > 0 && s.nodes > s.limit/8 {
			choices, stopped = nil, true // what layers do by themselves is not known
			break
		}
		total, bound, better, err := s.independent(free, next.set, min(relaxed, start))
		if err != nil {
			return err
		}
		open = append(open, bound)
		if better != nil && (total < relaxed || total == relaxed && less(better, choices)) {
			relaxed, choices = total, better
		}
	}
	if s.main.longer && len(open) > 0 &&
		(choices == nil && len(s.budgets) == 0 || choices != nil && s.table.Broken(choices) == "") {
		// What is still open gets more nodes, the least bound first.
		most := slices.Repeat([]int{s.boundNodes()}, len(open))
		for i := leastOf(open); open[i] < min(relaxed, start) && s.nodes < s.limit; i = leastOf(open) {
			most[i] *= 4
			total, bound, better, err := s.weighAll(free, list[i].set, min(relaxed, start), most[i], false)
			if err != nil {
				return err
			}
			if better != nil && (total < relaxed || total == relaxed && less(better, choices)) {
				relaxed, choices = total, better
			}
			open[i] = max(open[i], bound)
		}
		for i := range open {
			if open[i] != relaxed || open[leastOf(open)] < relaxed {
				continue
			}
			if total, _, better, err := s.weighAll(free, list[i].set, relaxed, most[i], true); err != nil {
				return err
			} else if better != nil && total == relaxed && less(better, choices) {
				choices = better
			}
		}
	}
	for _, bound := range open {
		s.bound = min(s.bound, bound)
	}
	switch {
	case choices == nil && stopped:
		s.bound = 0
	case choices == nil && (s.bound >= start || len(s.budgets) == 0):
		return nil // nothing is better than what other chunk lengths have, or it was looked for
	case choices != nil && s.table.Broken(choices) == "":
		if relaxed < start {
			s.best, s.choices = relaxed, choices
		}
		return nil
	}
	s.limit += s.nodes
	return s.constrained(list, s.bound, complete)
}

// leastOf is the index of the least number, the first of several.
func leastOf(list []int64) int {
	at := 0
	for i := range list {
		if list[i] < list[at] {
			at = i
		}
	}
	return at
}

// candidate is a set of tiers to use, with a bound of what it costs.
type candidate struct {
	set   []int
	bound int64
}

// subsets lists the largest sets of tiers that may be in use; not all of them where there are too many.
func subsets(tiers, most int) (out [][]int, complete bool) {
	most = min(most, tiers)
	var set []int
	var grow func(tier int) bool
	grow = func(tier int) bool {
		if len(set) == most {
			out = append(out, slices.Clone(set))
			return len(out) <= tierSubsets
		}
		for ; tier <= tiers-(most-len(set))+1; tier++ {
			set = append(set, tier)
			ok := grow(tier + 1)
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
func (s *tierSearch) linear(dual *duals) func(set []int) int64 {
	cost := make([][]int64, 0) // by expert of all layers and choice
	for layer := range s.table.Cells {
		costs, _ := s.combined(layer, dual)
		rate := make([]float64, len(s.table.Groups)+1)
		for tier := range s.table.Groups {
			rate[tier+1] = math.Inf(1)
			for count := 1; count < len(s.table.Groups[tier].NS) && count <= len(s.table.Cells[layer]); count++ {
				rate[tier+1] = min(rate[tier+1], float64(costs.group(&s.table.Groups[tier], count))/float64(count))
			}
		}
		for expert := range s.table.Cells[layer] {
			byChoice := make([]int64, len(rate))
			for tier := range byChoice {
				byChoice[tier] = blocked
				value := float64(costs.cell(&s.table.Cells[layer][expert][tier], tier)) + rate[tier]
				if value < blocked {
					byChoice[tier] = int64(math.Floor(value))
				}
			}
			cost = append(cost, byChoice)
		}
	}
	return func(set []int) int64 {
		var total int64
		for _, byChoice := range cost {
			best := byChoice[0]
			for _, tier := range set {
				best = min(best, byChoice[tier])
			}
			total += best
		}
		return s.dual(total, dual)
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
	costs := s.main.prices
	layers := make([]*tierLayer, len(s.table.Cells))
	roots := make([]*box, len(layers))
	var floor int64 // of the layers to come
	for layer := range layers {
		layers[layer] = s.layer(layer, &costs, set)
		roots[layer] = layers[layer].root()
		layers[layer].relax(roots[layer])
		floor += roots[layer].least()
	}
	for layer, posed := range layers {
		if err := s.ctx.Err(); err != nil {
			return 0, 0, nil, err
		}
		if total+floor > cutoff {
			return total + floor, total + floor, nil, nil
		}
		floor -= roots[layer].least()
		value, least, assigned := posed.solve(roots[layer])
		total, bound = total+value, bound+least
		out = append(out, assigned)
	}
	if total > cutoff {
		return total, bound, nil, nil
	}
	for layer, posed := range layers {
		root := posed.root()
		posed.relax(root)
		if assigned := posed.first(out[layer], root); assigned != nil {
			out[layer] = assigned
		}
		for expert, j := range out[layer] {
			out[layer][expert] = posed.cols[j]
		}
	}
	return total, bound, out, nil
}

// boundNodes is for how many nodes the two processors of a layer are weighed, to begin with.
func (s *tierSearch) boundNodes() int { return max(16, boundWork/len(s.table.Cells[0])) }
