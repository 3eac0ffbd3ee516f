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
	tierNodes   = 20_000 // relaxations where limits couple layers, by default
	layerNodes  = 20_000 // relaxations of one layer
	firstNodes  = 2_000  // for the first of equally good answers
	tierSubsets = 2048   // sets of tiers in use that are tried
	tierSteps   = 30     // of the search for multipliers
	tierScale   = 1024   // multipliers are in parts of it
	blocked     = math.MaxInt64 / 8
)

// Tiers implements problem.Engine. Which tiers are in use is enumerated, cheapest bound first. That decided, a
// layer's cost is a sum over experts plus a function of how many experts are in each tier:
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
// Layers are independent unless the region, dropped rows or a bound on a measure couple them. If the best
// without those keeps them, it is the answer. Otherwise they are priced by multipliers, whose dual bound prunes a
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
		s.best = best.Objective / s.t.Weight
		if best.Objective == math.MaxInt64 {
			s.best = math.MaxInt64
		} else if s.best*s.t.Weight < best.Objective {
			s.best++
		}
		err := s.solve()
		if err != nil {
			return problem.TierSolution{}, diag.New(diag.ClassInterrupted, "solve tiers %q: %w", p.Name, err)
		}
		nodes += s.nodes
		if s.bound < math.MaxInt64/s.t.Weight {
			bound = min(bound, s.bound*s.t.Weight)
		}
		if s.choices != nil && s.best*s.t.Weight < best.Objective {
			best = problem.TierSolution{Chunk: c, Choices: s.choices, Objective: s.best * s.t.Weight}
		}
	}
	if best.Choices == nil {
		d := diag.New(diag.ClassInfeasible, "tiers %q: no choice of tiers keeps the bounds %v", p.Name, p.Bounds)
		if bound < math.MaxInt64 {
			d = diag.New(diag.ClassInfeasible, "tiers %q: no choice of tiers was found that keeps the bounds %v, in %d nodes", p.Name, p.Bounds, nodes)
		}
		return problem.TierSolution{}, d.WithHint("raise the latency target, or leave it out")
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
	main    resource
	budgets []budget
	limit   int64
	nodes   int64

	best    int64 // no more than this is of interest
	choices [][]int
	bound   int64 // no solution is below it, as far as it is below best
}

// resource is a measure of solutions: a sum over cells, and over tiers and layers by the number of experts.
type resource struct {
	cell  func(l, e, k int) int64
	group func(k, n int) int64 // k from 0, a tier
	sync  int64
}

// budget is a resource and the most of it: of one layer, or of all (-1).
type budget struct {
	resource
	layer int
	limit int64
}

func newTierSearch(ctx context.Context, p *problem.Tiers, chunk int, limits problem.Limits) *tierSearch {
	s := &tierSearch{ctx: ctx, p: p, t: p.Table(chunk), limit: limits.Nodes}
	if s.limit == 0 {
		s.limit = tierNodes
	}
	s.main = s.measure(p.Measure())
	none := func(int, int) int64 { return 0 }
	for _, m := range problem.TierMeasures {
		if b, ok := p.Bounds[m]; ok {
			s.budgets = append(s.budgets, budget{s.measure(m), -1, b / s.t.Weight})
		}
	}
	if n := p.NPUExperts(); n < math.MaxInt64 {
		s.budgets = append(s.budgets, budget{resource{func(_, _, k int) int64 { return int64(min(k, 1)) }, none, 0}, -1, n})
	}
	if p.Prune {
		r := resource{func(l, e, k int) int64 { return s.t.Cells[l][e][k].Drop }, none, 0}
		s.budgets = append(s.budgets, budget{r, -1, s.t.TotalDrop()})
		for l := range s.t.Cells {
			s.budgets = append(s.budgets, budget{r, l, s.t.LayerDrop(l)})
		}
	}
	return s
}

func (s *tierSearch) measure(m problem.TierMeasure) resource {
	c, g := s.t.Cells, s.t.Groups
	zero := func(int, int) int64 { return 0 }
	switch m {
	case problem.TierEnergy:
		return resource{func(l, e, k int) int64 { return c[l][e][k].EnergyNJ }, func(k, n int) int64 { return g[k].EnergyNJ[n] }, 0}
	case problem.TierOff:
		return resource{func(l, e, k int) int64 { return c[l][e][k].Off }, zero, 0}
	case problem.TierLaunches:
		return resource{func(int, int, int) int64 { return 0 }, func(k, n int) int64 { return g[k].Launches[n] }, 0}
	}
	return resource{func(l, e, k int) int64 { return c[l][e][k].CPUNS }, func(k, n int) int64 { return g[k].NS[n] }, s.t.SyncNS}
}

// scaled is the main resource times scale plus the budgets times their multipliers.
func (s *tierSearch) scaled(scale int64, mult []int64, layer int) resource {
	var active []int
	for i, b := range s.budgets {
		if mult != nil && mult[i] > 0 && (b.layer < 0 || b.layer == layer) {
			active = append(active, i)
		}
	}
	r := resource{sync: scale * s.main.sync}
	for _, i := range active {
		r.sync += mult[i] * s.budgets[i].sync
	}
	r.cell = func(l, e, k int) int64 {
		v := scale * s.main.cell(l, e, k)
		for _, i := range active {
			v += mult[i] * s.budgets[i].cell(l, e, k)
		}
		return v
	}
	r.group = func(k, n int) int64 {
		v := scale * s.main.group(k, n)
		for _, i := range active {
			v += mult[i] * s.budgets[i].group(k, n)
		}
		return v
	}
	return r
}

// layer poses one layer under a resource: columns are choice 0 and the tiers of set.
func (s *tierSearch) layer(l int, r *resource, set []int) *tierLayer {
	experts := len(s.t.Cells[l])
	y := &tierLayer{cols: append([]int{0}, set...), search: s}
	y.w = make([][]int64, experts)
	flat := make([]int64, experts*len(y.cols))
	for e := range y.w {
		y.w[e], flat = flat[:len(y.cols):len(y.cols)], flat[len(y.cols):]
		var most int64
		for j, k := range y.cols {
			y.w[e][j] = r.cell(l, e, k)
			most = max(most, y.w[e][j])
		}
		y.big += float64(most)
	}
	for _, k := range y.cols {
		n := experts
		if k > 0 {
			n = min(n, len(s.t.Groups[k-1].NS)-1)
		}
		f := make([]int64, n+1)
		for i := range f {
			switch {
			case k > 0:
				f[i] = r.group(k-1, i)
			case i < experts:
				f[i] = r.sync
			}
		}
		y.f = append(y.f, f)
		y.big += float64(slices.Max(f))
	}
	y.big = 4*y.big + 4
	return y
}

// solve fills best, choices and bound. choices stays nil where nothing is below best.
func (s *tierSearch) solve() error {
	sets, complete := subsets(len(s.t.Groups), s.p.MaxTiers)
	free := s.scaled(1, nil, -1)
	s.bound = math.MaxInt64
	var list []candidate
	linear := s.linear(&free)
	for _, set := range sets {
		list = append(list, candidate{set, linear(set)})
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].bound < list[j].bound })
	if !complete { // a bound for all sets that are not tried
		all := make([]int, len(s.t.Groups))
		for k := range all {
			all[k] = k + 1
		}
		s.bound = linear(all)
	}
	start := s.best
	relaxed := int64(math.MaxInt64) // the best without budgets, and its choices
	var choices [][]int
	for _, c := range list {
		if c.bound > min(relaxed, start) {
			break
		}
		total, bound, x, err := s.independent(&free, c.set, min(relaxed, start))
		if err != nil {
			return err
		}
		s.bound = min(s.bound, bound)
		if x != nil && (total < relaxed || total == relaxed && less(x, choices)) {
			relaxed, choices = total, x
		}
	}
	if choices == nil {
		return nil // nothing is better than what other chunk lengths have
	}
	if s.t.Broken(choices) == "" {
		if relaxed < start {
			s.best, s.choices = relaxed, choices
		}
		return nil
	}
	return s.constrained(list, complete)
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
func (s *tierSearch) linear(r *resource) func(set []int) int64 {
	cost := make([][]int64, 0) // by expert of all layers and choice
	for l := range s.t.Cells {
		rate := make([]float64, len(s.t.Groups)+1)
		for k := range s.t.Groups {
			rate[k+1] = math.Inf(1)
			for n := 1; n < len(s.t.Groups[k].NS) && n <= len(s.t.Cells[l]); n++ {
				rate[k+1] = min(rate[k+1], float64(r.group(k, n))/float64(n))
			}
		}
		for e := range s.t.Cells[l] {
			v := make([]int64, len(rate))
			for k := range v {
				v[k] = blocked
				if x := float64(r.cell(l, e, k)) + rate[k]; x < blocked {
					v[k] = int64(math.Floor(x))
				}
			}
			cost = append(cost, v)
		}
	}
	return func(set []int) (total int64) {
		for _, v := range cost {
			best := v[0]
			for _, k := range set {
				best = min(best, v[k])
			}
			total += best
		}
		return total
	}
}

// independent solves every layer for itself. It gives up, without choices, once the total is above cutoff.
func (s *tierSearch) independent(r *resource, set []int, cutoff int64) (total, bound int64, out [][]int, err error) {
	layers := make([]*tierLayer, len(s.t.Cells))
	roots := make([]*box, len(layers))
	var floor int64 // of the layers to come
	for l := range layers {
		layers[l] = s.layer(l, r, set)
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

func less(a, b [][]int) bool {
	for l := range a {
		if c := slices.Compare(a[l], b[l]); c != 0 {
			return c < 0
		}
	}
	return false
}

// tierLayer is one layer with columns to choose from.
type tierLayer struct {
	search *tierSearch
	cols   []int     // choices
	w      [][]int64 // by expert and column; blocked: not this one
	f      [][]int64 // by column and number of experts
	big    float64   // more than any solution costs
	nodes  int
}

// box restricts how many experts are in each column. x is an assignment that no exchange improves under the envelopes.
type box struct {
	lo, hi []int
	x, n   []int
	bound  float64 // of every assignment in the box, +Inf: there is none
	gap    []float64
	value  int64 // of x
}

// least is the bound as a whole number. Rounding of the relaxation stays far below a tenth.
func (b *box) least() int64 {
	if math.IsInf(b.bound, 1) {
		return blocked
	}
	return int64(math.Ceil(b.bound - 0.1))
}

// root is the whole layer, with every expert where it is cheapest if places in full groups are.
func (y *tierLayer) root() *box {
	k := len(y.cols)
	b := &box{lo: make([]int, k), hi: make([]int, k), x: make([]int, len(y.w)), n: make([]int, k)}
	rate := make([]float64, k)
	for j, f := range y.f {
		b.hi[j] = len(f) - 1
		for n := 1; j > 0 && n < len(f); n++ {
			if v := float64(f[n]-f[0]) / float64(n); n == 1 || v < rate[j] {
				rate[j] = v
			}
		}
	}
	for e, w := range y.w {
		best := -1
		var cost float64
		for j, v := range w {
			if v >= blocked || len(y.f[j]) == 1 && j > 0 {
				continue
			}
			if c := float64(v) + rate[j]; best < 0 || c < cost {
				best, cost = j, c
			}
		}
		if best < 0 {
			b.bound = math.Inf(1)
			return b
		}
		b.x[e] = best
		b.n[best]++
	}
	return b
}

// envelope is the largest convex function below f on [lo,hi]: its slopes, from lo on, and its value at n.
func envelope(f []int64, lo, hi int, slope []float64) {
	hull := make([]int, 0, hi-lo+1)
	for n := lo; n <= hi; n++ {
		for len(hull) >= 2 {
			a, b := hull[len(hull)-2], hull[len(hull)-1]
			if float64(f[b]-f[a])*float64(n-a) < float64(f[n]-f[a])*float64(b-a) {
				break
			}
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, n)
	}
	for i := 1; i < len(hull); i++ {
		a, b := hull[i-1], hull[i]
		v := float64(f[b]-f[a]) / float64(b-a)
		for n := a; n < b; n++ {
			slope[n-lo] = v
		}
	}
}

// relax moves experts until no exchange is cheaper, with the convex envelope of each f within the box.
func (y *tierLayer) relax(b *box) {
	y.nodes++
	y.search.nodes++
	if math.IsInf(b.bound, 1) {
		return
	}
	k := len(y.cols)
	slopes := make([][]float64, k)
	for j := range slopes {
		if b.lo[j] > b.hi[j] {
			b.bound = math.Inf(1)
			return
		}
		slopes[j] = make([]float64, b.hi[j]-b.lo[j])
		envelope(y.f[j], b.lo[j], b.hi[j], slopes[j])
	}
	step := func(j, n int) float64 { // of expert n+1 in column j
		switch {
		case n < b.lo[j]:
			return -y.big
		case n >= b.hi[j]:
			return y.big
		}
		return slopes[j][n-b.lo[j]]
	}
	g := newMoves(k)
	for {
		g.of(y, b.x, 0)
		from, to, gain := -1, -1, -1e-4
		for a := range k {
			if b.n[a] == 0 {
				continue
			}
			down := step(a, b.n[a]-1)
			for c := range k {
				if a == c || g.dist[a*k+c] >= blocked {
					continue
				}
				if v := float64(g.dist[a*k+c]) + step(c, b.n[c]) - down; v < gain {
					from, to, gain = a, c, v
				}
			}
		}
		if from < 0 {
			break
		}
		g.shift(b.x, from, to)
		b.n[from]--
		b.n[to]++
	}
	var sum int64
	for e, j := range b.x {
		sum += y.w[e][j]
	}
	b.value, b.bound, b.gap = sum, float64(sum), make([]float64, k)
	for j, n := range b.n {
		if n < b.lo[j] || n > b.hi[j] {
			b.bound = math.Inf(1)
			return
		}
		v := float64(y.f[j][b.lo[j]])
		for i := range n - b.lo[j] {
			v += slopes[j][i]
		}
		b.gap[j] = float64(y.f[j][n]) - v
		b.bound += v
		b.value += y.f[j][n]
	}
}

// moves are the cheapest ways for one expert's worth to get from one column to another.
type moves struct {
	k    int
	dist []int64
	edge []int64
	who  []int // expert of an edge
	next []int // column after the first step
}

func newMoves(k int) *moves {
	return &moves{k, make([]int64, k*k), make([]int64, k*k), make([]int, k*k), make([]int, k*k)}
}

// of computes them for the experts from first on.
func (g *moves) of(y *tierLayer, x []int, first int) {
	k := g.k
	for i := range g.edge {
		g.edge[i] = blocked
	}
	for e := first; e < len(x); e++ {
		a, w := x[e], y.w[e]
		row := g.edge[a*k : a*k+k]
		for j, v := range w {
			if v < blocked && v-w[a] < row[j] && j != a {
				row[j] = v - w[a]
				g.who[a*k+j] = e
			}
		}
	}
	copy(g.dist, g.edge)
	for a := range k {
		for c := range k {
			g.next[a*k+c] = c
		}
		g.dist[a*k+a] = 0
	}
	for m := range k {
		for a := range k {
			d := g.dist[a*k+m]
			if d >= blocked || a == m {
				continue
			}
			for c := range k {
				if v := g.dist[m*k+c]; v < blocked && d+v < g.dist[a*k+c] {
					g.dist[a*k+c], g.next[a*k+c] = d+v, g.next[a*k+m]
				}
			}
		}
	}
}

func (g *moves) shift(x []int, from, to int) {
	for from != to {
		next := g.next[from*g.k+to]
		x[g.who[from*g.k+next]] = next
		from = next
	}
}

// solve finds the layer's optimum by branching on numbers of experts; least is below value only where nodes ran out.
func (y *tierLayer) solve(root *box) (value, least int64, x []int) {
	if math.IsInf(root.bound, 1) {
		return blocked, blocked, nil
	}
	value, least = math.MaxInt64, math.MaxInt64
	var visit func(b *box)
	visit = func(b *box) {
		if b.value < value && !math.IsInf(b.bound, 1) {
			value, x = b.value, slices.Clone(b.x)
		}
		if b.least() >= value {
			return
		}
		if y.nodes >= layerNodes {
			least = min(least, b.least())
			return
		}
		j := b.widest()
		if b.gap[j] < 1e-3 {
			return
		}
		parts := y.split(b, [][2]int{{b.lo[j], b.n[j]}, {b.n[j] + 1, b.hi[j]}}, j)
		if parts[1].bound < parts[0].bound {
			parts[0], parts[1] = parts[1], parts[0]
		}
		visit(parts[0])
		visit(parts[1])
	}
	visit(root)
	return value, min(value, least), x
}

func (b *box) widest() int {
	j := 0
	for i := range b.gap {
		if b.gap[i] > b.gap[j] {
			j = i
		}
	}
	return j
}

// split relaxes b with column j in each of the ranges.
func (y *tierLayer) split(b *box, ranges [][2]int, j int) (out []*box) {
	for _, r := range ranges {
		if r[0] > r[1] {
			continue
		}
		c := &box{lo: slices.Clone(b.lo), hi: slices.Clone(b.hi), x: slices.Clone(b.x), n: slices.Clone(b.n)}
		c.lo[j], c.hi[j] = r[0], r[1]
		y.relax(c)
		out = append(out, c)
	}
	return out
}

// first is the lexicographically smallest assignment in a box as cheap as x, which is optimal: for every vector of numbers of
// experts that has one, exchanges that cost nothing are tried from the first expert on. nil when it takes too long.
func (y *tierLayer) first(x []int, root *box) (best []int) {
	if y.flat() && root.lo[0] < root.hi[0] {
		out := make([]int, len(x))
		for e, w := range y.w {
			for j := range w {
				if w[j] < w[out[e]] {
					out[e] = j
				}
			}
		}
		return out
	}
	value := y.cost(x)
	y.nodes = 0
	ok := true
	var visit func(b *box)
	visit = func(b *box) {
		if !ok || b.least() > value {
			return
		}
		if y.nodes >= firstNodes {
			ok = false
			return
		}
		if j := b.widest(); b.gap[j] >= 1e-3 {
			for _, c := range y.split(b, [][2]int{{b.lo[j], b.n[j]}, {b.n[j] + 1, b.hi[j]}}, j) {
				visit(c)
			}
			return
		}
		if b.value != value {
			return
		}
		for j := range b.lo {
			if b.lo[j] == b.hi[j] {
				continue
			}
			for _, c := range y.split(b, [][2]int{{b.lo[j], b.n[j] - 1}, {b.n[j], b.n[j]}, {b.n[j] + 1, b.hi[j]}}, j) {
				visit(c)
			}
			return
		}
		if c := y.smallest(slices.Clone(b.x)); best == nil || slices.Compare(y.choices(c), y.choices(best)) < 0 {
			best = c
		}
	}
	visit(root)
	if !ok {
		return nil
	}
	return best
}

// flat reports whether places cost nothing, and every column has one for every expert.
func (y *tierLayer) flat() bool {
	for _, f := range y.f {
		if len(f) <= len(y.w) || slices.ContainsFunc(f, func(v int64) bool { return v != 0 }) {
			return false
		}
	}
	return true
}

func (y *tierLayer) choices(x []int) []int {
	out := make([]int, len(x))
	for e, j := range x {
		out[e] = y.cols[j]
	}
	return out
}

func (y *tierLayer) cost(x []int) (sum int64) {
	n := make([]int, len(y.cols))
	for e, j := range x {
		sum += y.w[e][j]
		n[j]++
	}
	for j, f := range y.f {
		sum += f[n[j]]
	}
	return sum
}

// smallest is the lexicographically smallest assignment with the numbers of experts and the cost of x. Columns ascend with their choices.
func (y *tierLayer) smallest(x []int) []int {
	k := len(y.cols)
	all, rest := newMoves(k), newMoves(k)
	all.of(y, x, 0)
	for e := range x {
		for j := 0; j < x[e]; j++ {
			delta := y.w[e][j] - y.w[e][x[e]]
			if y.w[e][j] >= blocked || all.dist[j*k+x[e]] >= blocked || delta+all.dist[j*k+x[e]] > 0 {
				continue
			}
			rest.of(y, x, e+1)
			if d := rest.dist[j*k+x[e]]; d < blocked && d+delta == 0 {
				from := x[e]
				x[e] = j
				rest.shift(x, j, from)
				all.of(y, x, 0)
				break
			}
		}
	}
	return x
}

// constrained searches under budgets.
func (s *tierSearch) constrained(list []candidate, complete bool) error {
	s.bound = math.MaxInt64
	if !complete {
		s.bound = list[0].bound
	}
	mult := make([]int64, len(s.budgets))
	for i, c := range list {
		if c.bound > s.best {
			break
		}
		if i > 0 && s.dual(s.weak(c.set, mult), mult) > s.best {
			continue
		}
		d, err := s.multipliers(c.set, mult)
		if err != nil {
			return err
		}
		if d.bound > s.best {
			continue
		}
		search := d.search
		if len(s.budgets) == 1 && s.p.RegionBytes > 0 && len(s.p.Bounds) == 0 {
			search = d.region
		}
		if err := search(); err != nil {
			return err
		}
		mult = d.mult
		s.bound = min(s.bound, d.least)
	}
	s.bound = min(s.bound, s.best)
	return nil
}

// weak is the linear bound with multipliers, scaled. Budgets of a layer are priced in it.
func (s *tierSearch) weak(set []int, mult []int64) (total int64) {
	for l := range s.t.Cells {
		r := s.scaled(tierScale, mult, l)
		rate := make([]float64, len(s.t.Groups)+1)
		for _, k := range set {
			rate[k] = math.Inf(1)
			for n := 1; n < len(s.t.Groups[k-1].NS) && n <= len(s.t.Cells[l]); n++ {
				rate[k] = min(rate[k], float64(r.group(k-1, n))/float64(n))
			}
		}
		for e := range s.t.Cells[l] {
			best := r.cell(l, e, 0)
			for _, k := range set {
				if v := float64(r.cell(l, e, k)) + rate[k]; v < float64(best) {
					best = int64(math.Floor(v))
				}
			}
			total += best
		}
	}
	return total
}

// dual is the bound that a scaled sum over layers gives.
func (s *tierSearch) dual(sum int64, mult []int64) int64 {
	v := float64(sum)
	for i, b := range s.budgets {
		v -= float64(mult[i]) * float64(b.limit)
	}
	return max(0, int64(math.Ceil(v/tierScale-0.1)))
}

// dualSearch is a set of tiers with the multipliers of its budgets.
type dualSearch struct {
	*tierSearch
	set   []int
	mult  []int64
	bound int64 // dual
	roots []*box
	by    []*tierLayer
	least int64 // no solution of the set is below it
}

func (s *tierSearch) relaxAll(set []int, mult []int64) (*dualSearch, [][]int) {
	d := &dualSearch{tierSearch: s, set: set, mult: mult}
	var sum int64
	choices := make([][]int, len(s.t.Cells))
	for l := range s.t.Cells {
		r := s.scaled(tierScale, mult, l)
		y := s.layer(l, &r, set)
		b := y.root()
		y.relax(b)
		d.by, d.roots = append(d.by, y), append(d.roots, b)
		sum += int64(math.Floor(b.bound))
		choices[l] = y.choices(b.x)
	}
	d.bound = s.dual(sum, mult)
	return d, choices
}

// multipliers ascends the dual by projected subgradients, and takes every solution that it meets.
func (s *tierSearch) multipliers(set []int, start []int64) (*dualSearch, error) {
	at := make([]float64, len(s.budgets))
	most := make([]float64, len(s.budgets)) // products stay exact
	for i := range at {
		at[i] = float64(start[i]) / tierScale
		most[i] = float64(1<<52) / float64(max(1, s.largest(&s.budgets[i].resource)))
	}
	if err := s.ascend(set, at, most); err != nil {
		return nil, err
	}
	var best *dualSearch
	theta, since := 1.0, 0
	for range tierSteps {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		mult := make([]int64, len(at))
		for i, v := range at {
			mult[i] = int64(min(v*tierScale, most[i]))
		}
		d, choices := s.relaxAll(set, mult)
		if best == nil || d.bound > best.bound {
			best, since = d, 0
		} else if since++; since > 4 {
			theta, since = theta/2, 0
		}
		s.offer(choices)
		s.offer(s.repaired(choices))
		if best.bound >= s.best {
			break
		}
		use := s.use(choices)
		norm := 0.0
		g := make([]float64, len(at))
		for i, b := range s.budgets {
			scale := float64(max(1, b.limit))
			g[i] = (float64(use[i]) - float64(b.limit)) / scale
			if g[i] < 0 && at[i] == 0 {
				g[i] = 0
			}
			norm += float64(g[i] * g[i])
		}
		if norm == 0 {
			break
		}
		target := float64(d.bound)*0.05 + 1
		if s.choices != nil && s.best < math.MaxInt64 {
			target = float64(s.best-d.bound) + 1
		}
		for i, b := range s.budgets {
			scale := float64(max(1, b.limit))
			at[i] = max(0, at[i]+float64(theta*target*g[i]/norm)/scale)
		}
	}
	return best, nil
}

// ascend improves multipliers one after the other: what a budget takes falls as its multiplier grows, so halving finds the least
// that keeps it. Budgets of one layer need no other layer.
func (s *tierSearch) ascend(set []int, at, most []float64) error {
	mult := make([]int64, len(at))
	scaled := func() {
		for i, v := range at {
			mult[i] = int64(min(v*tierScale, most[i]))
		}
	}
	for range 2 {
		for i, b := range s.budgets {
			within := func(v float64) bool {
				at[i] = v
				scaled()
				var use int64
				for l := range s.t.Cells {
					if b.layer >= 0 && b.layer != l {
						continue
					}
					r := s.scaled(tierScale, mult, l)
					y := s.layer(l, &r, set)
					x := y.root()
					y.relax(x)
					if math.IsInf(x.bound, 1) {
						return true
					}
					use += s.amount(&b.resource, l, y.choices(x.x))
				}
				return use <= b.limit
			}
			if err := s.ctx.Err(); err != nil {
				return err
			}
			if within(0) {
				continue
			}
			low, high := 0.0, 1.0
			for high*tierScale < most[i] && !within(high) {
				low, high = high, high*8
			}
			for range 8 {
				if mid := (low + high) / 2; within(mid) {
					high = mid
				} else {
					low = mid
				}
			}
			at[i] = high
		}
	}
	return nil
}

// largest is the most of a resource that choices take.
func (s *tierSearch) largest(r *resource) (sum int64) {
	for l := range s.t.Cells {
		var group int64
		for k := range s.t.Groups {
			for n := 0; n < len(s.t.Groups[k].NS) && n <= len(s.t.Cells[l]); n++ {
				group = max(group, r.group(k, n))
			}
		}
		sum += r.sync + group*int64(len(s.t.Groups))
		for e := range s.t.Cells[l] {
			var cell int64
			for k := range s.t.Cells[l][e] {
				cell = max(cell, r.cell(l, e, k))
			}
			sum += cell
		}
	}
	return sum
}

// use is how much of every budget choices take.
func (s *tierSearch) use(choices [][]int) []int64 {
	out := make([]int64, len(s.budgets))
	for i, b := range s.budgets {
		for l := range choices {
			if b.layer < 0 || b.layer == l {
				out[i] += s.amount(&b.resource, l, choices[l])
			}
		}
	}
	return out
}

func (s *tierSearch) amount(r *resource, l int, choices []int) (sum int64) {
	n := make([]int, len(s.t.Groups))
	any := false
	for e, k := range choices {
		sum += r.cell(l, e, k)
		if k > 0 {
			n[k-1]++
			any = true
		}
	}
	for k, c := range n {
		sum += r.group(k, c)
	}
	if any {
		sum += r.sync
	}
	return sum
}

// offer takes choices that are better, or as good and first.
func (s *tierSearch) offer(choices [][]int) bool {
	if choices == nil || s.t.Broken(choices) != "" {
		return false
	}
	var sum int64
	for l := range choices {
		sum += s.amount(&s.main, l, choices[l])
	}
	if sum < s.best || sum == s.best && s.choices != nil && less(choices, s.choices) {
		s.best = sum
		s.choices = make([][]int, len(choices))
		for l := range choices {
			s.choices[l] = slices.Clone(choices[l])
		}
		return true
	}
	return false
}

// repaired moves experts to the CPU until the region holds the rest and no more rows are dropped than may be: those
// first that make least worse by it.
func (s *tierSearch) repaired(choices [][]int) [][]int {
	out := make([][]int, len(choices))
	for l := range choices {
		out[l] = slices.Clone(choices[l])
	}
	type move struct {
		l, e int
		rate float64
	}
	sweep := func(layer int, relief func(l, e int) int64, over int64) {
		var list []move
		for l := range out {
			if layer >= 0 && layer != l {
				continue
			}
			for e, k := range out[l] {
				if r := relief(l, e); k > 0 && r > 0 {
					list = append(list, move{l, e, float64(s.main.cell(l, e, 0)-s.main.cell(l, e, k)) / float64(r)})
				}
			}
		}
		sort.SliceStable(list, func(i, j int) bool { return list[i].rate < list[j].rate })
		for _, m := range list {
			if over <= 0 {
				return
			}
			over -= relief(m.l, m.e)
			out[m.l][m.e] = 0
		}
	}
	for i := len(s.budgets) - 1; i >= 0; i-- { // those of layers first
		b := s.budgets[i]
		if b.sync != 0 {
			continue
		}
		sweep(b.layer, func(l, e int) int64 { return b.cell(l, e, out[l][e]) - b.cell(l, e, 0) }, s.use(out)[i]-b.limit)
	}
	return out
}

// region is the search where nothing but the region couples layers: how many experts of each layer are on the NPU is decided by dynamic
// programming over layers, from the optimum of each layer for every number that the dual bound leaves possible. The
// relaxed cost of a layer is convex in that number from one on, so those are neighbours.
func (d *dualSearch) region() error {
	s, most := d.tierSearch, int(d.budgets[0].limit)
	type option struct {
		n            int // on the NPU
		value, least int64
		box          *box
		x            []int
	}
	slack := math.Inf(1) // scaled: how much dearer than its relaxation a layer may be
	if s.best < math.MaxInt64 {
		slack = float64(s.best)*tierScale + float64(d.mult[0])*float64(most) + 1
		for _, b := range d.roots {
			slack -= b.bound
		}
	}
	free := s.scaled(1, nil, -1)
	layers, options := make([]*tierLayer, len(d.roots)), make([][]option, len(d.roots))
	for l, dual := range d.roots {
		y := s.layer(l, &free, d.set)
		layers[l] = y
		experts := len(y.w)
		from := max(1, min(experts-dual.n[0], most))
		visit := func(b *box, n int) (red float64) { // how much dearer than the dual's relaxation, scaled
			b.lo[0], b.hi[0] = experts-n, experts-n
			y.relax(b)
			red = float64(b.least())*tierScale + float64(d.mult[0])*float64(n) - dual.bound
			if math.IsInf(b.bound, 1) || red > slack+0.2*tierScale {
				return red
			}
			y.nodes = 0
			value, least, x := y.solve(b)
			options[l] = append(options[l], option{n, value, least, b, x})
			return red
		}
		copied := func(b *box) *box {
			return &box{lo: slices.Clone(b.lo), hi: slices.Clone(b.hi), x: slices.Clone(b.x), n: slices.Clone(b.n)}
		}
		visit(copied(dual), 0) // without the hand-over, and so apart
		for _, dir := range []int{1, -1} {
			b, before := dual, math.Inf(1)
			n := from
			if dir < 0 {
				n--
			}
			for ; n >= 1 && n <= min(experts, most); n += dir {
				if err := s.ctx.Err(); err != nil {
					return err
				}
				b = copied(b)
				red := visit(b, n)
				if math.IsInf(b.bound, 1) || red > slack+0.2*tierScale && red > before {
					break
				}
				before = red
			}
		}
	}
	// best[l][n] is the least of the layers from l on with at most n experts on the NPU.
	table := func(cost func(*option) int64) [][]int64 {
		out := make([][]int64, len(layers)+1)
		out[len(layers)] = make([]int64, most+1)
		for l := len(layers) - 1; l >= 0; l-- {
			out[l] = make([]int64, most+1)
			for n := range out[l] {
				out[l][n] = blocked
				for i := range options[l] {
					if o := &options[l][i]; o.n <= n && out[l+1][n-o.n] < blocked {
						out[l][n] = min(out[l][n], cost(o)+out[l+1][n-o.n])
					}
				}
			}
		}
		return out
	}
	best := table(func(o *option) int64 { return o.value })
	if d.least = table(func(o *option) int64 { return o.least })[0][most]; d.least >= blocked {
		d.least = math.MaxInt64
	}
	if best[0][most] > s.best {
		return nil
	}
	left := most
	choices := make([][]int, len(layers))
	for l, y := range layers {
		used := 0
		for i := range options[l] {
			o := &options[l][i]
			if o.n > left || o.value+best[l+1][left-o.n] != best[l][left] {
				continue
			}
			x := y.first(o.x, o.box)
			if x == nil {
				x = o.x
			}
			if x = y.choices(x); choices[l] == nil || slices.Compare(x, choices[l]) < 0 {
				choices[l], used = x, o.n
			}
		}
		left -= used
	}
	s.offer(choices)
	return nil
}

// search goes through layers and experts in order. Layers before are decided, layers after count as relaxed.
func (d *dualSearch) search() error {
	s := d.tierSearch
	d.least = math.MaxInt64
	after := make([]int64, len(d.roots)+1)
	for l := len(d.roots) - 1; l >= 0; l-- {
		after[l] = after[l+1] + int64(math.Floor(d.roots[l].bound))
	}
	// rest is the least of each budget that the experts from there on take.
	cols := append([]int{0}, d.set...)
	lowest := func(b *budget, l, e int) int64 {
		low := int64(math.MaxInt64)
		for _, k := range cols {
			low = min(low, b.cell(l, e, k))
		}
		return low
	}
	rest := make([][][]int64, len(s.budgets))
	for i := range s.budgets {
		b := &s.budgets[i]
		rest[i] = make([][]int64, len(s.t.Cells))
		var sum int64
		for l := len(s.t.Cells) - 1; l >= 0; l-- {
			if b.layer >= 0 {
				sum = 0
			}
			rest[i][l] = make([]int64, len(s.t.Cells[l])+1)
			rest[i][l][len(s.t.Cells[l])] = sum
			for e := len(s.t.Cells[l]) - 1; e >= 0; e-- {
				sum += lowest(b, l, e)
				rest[i][l][e] = sum
			}
		}
	}
	x := make([][]int, len(s.t.Cells))
	used := make([]int64, len(s.budgets))
	// found: one as good as best, in this order. As good as another chunk length is not good enough.
	found := s.choices == nil && s.best < math.MaxInt64
	began := s.nodes // what one set of tiers uses up the others lack
	defer func() { s.limit -= min(s.limit, s.nodes-began) }()
	stop := s.nodes + s.limit
	var visit func(l, e int, before int64) error
	visit = func(l, e int, before int64) error {
		if e == len(s.t.Cells[l]) { // the layer's groups are known
			r := s.scaled(tierScale, d.mult, l)
			before += s.amount(&r, l, x[l])
			extra := make([]int64, len(used))
			for i := range used {
				if b := &s.budgets[i]; b.layer < 0 || b.layer == l {
					extra[i] = s.amount(&b.resource, l, x[l])
					for e, k := range x[l] {
						extra[i] -= b.cell(l, e, k)
					}
				}
			}
			if l+1 == len(x) {
				if v := s.best; s.offer(x) || s.choices != nil && s.best == v && slices.EqualFunc(x, s.choices, slices.Equal[[]int]) {
					found = true
				}
				return nil
			}
			saved := slices.Clone(used)
			for i := range used {
				if used[i] += extra[i]; s.budgets[i].layer == l {
					used[i] = 0
				}
			}
			err := visit(l+1, 0, before)
			copy(used, saved)
			return err
		}
		if e == 0 {
			x[l] = make([]int, len(s.t.Cells[l]))
		}
		y := d.by[l]
		w := y.w[e]
		for j, k := range cols {
			ok := true
			for i := range used {
				if b := &s.budgets[i]; (b.layer < 0 || b.layer == l) && used[i]+b.cell(l, e, k)+rest[i][l][e+1] > b.limit {
					ok = false
				}
			}
			if !ok {
				continue
			}
			y.w[e] = slices.Clone(w)
			for c := range y.w[e] {
				if c != j {
					y.w[e][c] = blocked
				}
			}
			b := y.root()
			y.relax(b)
			bound := int64(math.MaxInt64)
			if !math.IsInf(b.bound, 1) {
				bound = s.dual(before+int64(math.Floor(b.bound))+after[l+1], d.mult)
			}
			if bound > s.best || bound == s.best && found {
				y.w[e] = w
				continue
			}
			if s.nodes >= stop {
				d.least = min(d.least, bound)
				y.w[e] = w
				continue
			}
			if s.nodes%256 == 0 {
				if err := s.ctx.Err(); err != nil {
					return err
				}
			}
			x[l][e] = k
			for i := range used {
				if b := &s.budgets[i]; b.layer < 0 || b.layer == l {
					used[i] += b.cell(l, e, k)
				}
			}
			err := visit(l, e+1, before)
			for i := range used {
				if b := &s.budgets[i]; b.layer < 0 || b.layer == l {
					used[i] -= b.cell(l, e, k)
				}
			}
			y.w[e] = w
			if err != nil {
				return err
			}
		}
		return nil
	}
	return visit(0, 0, 0)
}
