package exact

import (
	"context"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// DefaultBucketNodes is how many steps bucket selection with limits may take where nobody says.
const DefaultBucketNodes = 1 << 25

// Buckets implements problem.Engine. The largest bucket, at which prompts are cut, is enumerated; for each the others are the
// shortest path of at most Max arcs over the sizes, where the arc from size i to size j costs
//
//	w(i, j) = (P[j] - P[i]) * T[j],
//
// P being the weight of the rests of at most that many tokens. With T[j] the least cost of all sizes of at least j rows, which
// the optimum can have (see problem.Buckets), T never falls, so w is Monge and the best predecessors advance
// together: the lower envelope of lines in P answers each layer in one pass, O(Max * sizes) for each chunk. Chunks
// are tried in the order of a bound (unlimited buckets), until no bound is below the best.
//
// With limits of bytes, graphs or opening time, chunks whose path breaks one are searched by labels of
// what has been spent, bounded by the path without limits and by a Lagrangian relaxation of them. That search stops at
// the node limit, and then the answer has a gap.
func (Engine) Buckets(ctx context.Context, b *problem.Buckets, l problem.Limits) (problem.BucketSolution, error) {
	if err := b.Validate(); err != nil {
		return problem.BucketSolution{}, err
	}
	s := newBucketSearch(b, l)
	if err := s.run(ctx); err != nil {
		return problem.BucketSolution{}, diag.New(diag.ClassInterrupted, "solve buckets %q: %w", b.Name, err)
	}
	if s.best == math.MaxInt64 {
		return problem.BucketSolution{}, b.Infeasible()
	}
	out := problem.BucketSolution{Sizes: s.sizes, Bound: s.bound, Status: problem.Optimal, Nodes: s.nodes}
	out.Objective, _ = b.Objective(out.Sizes)
	out.Bound = min(out.Bound, out.Objective)
	if s.cut {
		out.Status = problem.Feasible
	} else {
		out.Bound = out.Objective
	}
	return out, nil
}

type bucketSearch struct {
	b         *problem.Buckets
	nodeLimit int64
	size      []int   // feasible candidates, as indices into b.Sizes
	rows      []int   // of each
	cost      []int64 // of each
	holds     []int32 // by number of tokens: the smallest candidate that holds it
	mass      []int64 // of the rests that each candidate is the smallest for
	upTo      []int64 // P: upTo[i+1] of the rests that candidate i holds, upTo[0] = 0
	least     []int64 // T: the least cost of this or a larger candidate up to the chunk
	layers    [][]int64
	hull      hull
	chunk     int
	fixed     int64 // what full pieces and single rows cost

	best  int64
	sizes []int // of the best, indices into b.Sizes
	bound int64 // of what was not searched to its end
	cut   bool  // something was not
	nodes int64
}

func newBucketSearch(b *problem.Buckets, l problem.Limits) *bucketSearch {
	s := &bucketSearch{b: b, nodeLimit: l.Nodes, best: math.MaxInt64, bound: math.MaxInt64}
	if s.nodeLimit == 0 {
		s.nodeLimit = DefaultBucketNodes
	}
	for i, x := range b.Sizes {
		if !x.Infeasible {
			s.size, s.rows, s.cost = append(s.size, i), append(s.rows, x.Rows), append(s.cost, x.CostNS)
		}
	}
	n := len(s.size)
	s.mass, s.upTo, s.least = make([]int64, n), make([]int64, n+1), make([]int64, n)
	if n > 0 {
		s.holds = make([]int32, s.rows[n-1]+1)
		for t, i := 0, 0; t < len(s.holds); t++ {
			for s.rows[i] < t {
				i++
			}
			s.holds[t] = int32(i)
		}
	}
	return s
}

// fold cuts the prompts at candidate c, and returns a bound of what they cost then with as many buckets as one likes.
func (s *bucketSearch) fold(c int) (bound int64) {
	s.chunk, s.fixed = c, 0
	rows := s.rows[c]
	clear(s.mass[:c+1])
	full, end := 0, rows // of the pieces before, and where the next one ends
	for _, l := range s.b.Lengths {
		if l.Tokens > end {
			full = (l.Tokens - 1) / rows
			end = (full + 1) * rows
		}
		s.fixed += l.Weight * int64(full) * s.cost[c]
		if left := l.Tokens - (end - rows); left == 1 && s.b.OneNS > 0 {
			s.fixed += l.Weight * s.b.OneNS
		} else {
			s.mass[s.holds[left]] += l.Weight
		}
	}
	bound = s.fixed
	for i, t := c, s.cost[c]; i >= 0; i-- {
		t = min(t, s.cost[i])
		s.least[i] = t
		bound += s.mass[i] * t
	}
	return bound
}

// line is what an arc to a candidate costs by the weight P of the rests that are held already: at - slope*P.
type line struct {
	slope, at int64
	from      int64 // the largest P at which it is at least as good as the line before it
}

// solve fills in layers: layers[k][i+1] is what the rests beyond candidate i cost with at most k+1 buckets, the chunk among
// them; i = -1 is all of them.
func (s *bucketSearch) solve() {
	c := s.chunk
	for i := range c + 1 {
		s.upTo[i+1] = s.upTo[i] + s.mass[i]
	}
	k := min(s.b.Max, c+1)
	for len(s.layers) < k {
		s.layers = append(s.layers, make([]int64, len(s.size)+1))
	}
	for i := range c + 1 {
		s.layers[0][i] = (s.upTo[c+1] - s.upTo[i]) * s.cost[c]
	}
	for m := 1; m < k; m++ {
		before, now := s.layers[m-1], s.layers[m]
		now[c] = before[c]
		s.hull.reset()
		for i := c - 1; i >= 0; i-- {
			// Candidate i becomes a successor of the nodes before it, where at most upTo[i] is held.
			s.hull.add(s.least[i], before[i+1]+s.upTo[i+1]*s.least[i])
			now[i] = min(before[i], s.hull.at(s.upTo[i]))
		}
	}
}

// charged is a bound of what the chunk costs with at most Max buckets: every bucket is charged, as many as are permitted are
// for free. It takes one pass, where solve takes Max.
func (s *bucketSearch) charged(charge int64) int64 {
	c := s.chunk
	for i := range c + 1 {
		s.upTo[i+1] = s.upTo[i] + s.mass[i]
	}
	s.hull.reset()
	s.hull.add(s.cost[c], s.upTo[c+1]*s.cost[c]+charge)
	rest := s.hull.at(s.upTo[c])
	for i := c - 1; i >= 0; i-- {
		s.hull.add(s.least[i], rest+s.upTo[i+1]*s.least[i]+charge)
		rest = s.hull.at(s.upTo[i])
	}
	return s.fixed + rest - int64(s.b.Max)*charge
}

// hull is the lower envelope of lines by P, for lines whose slopes never rise and questions whose P never rises.
type hull struct {
	lines []line
	head  int // those before it are never the least again
}

func (h *hull) reset() { h.lines, h.head = h.lines[:0], 0 }

func (h *hull) add(slope, at int64) {
	x := line{slope: slope, at: at, from: math.MaxInt64}
	for len(h.lines) > h.head {
		last := &h.lines[len(h.lines)-1]
		if last.slope == x.slope {
			if x.at >= last.at {
				return
			}
		} else if x.from = floorDiv(last.at-x.at, last.slope-x.slope); x.from < last.from {
			break
		}
		h.lines, x.from = h.lines[:len(h.lines)-1], math.MaxInt64
	}
	h.lines = append(h.lines, x)
}

// at is the least of the lines at P.
func (h *hull) at(p int64) int64 {
	for h.head+1 < len(h.lines) && p <= h.lines[h.head+1].from {
		h.head++
	}
	return h.lines[h.head].at - h.lines[h.head].slope*p
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 { // b is positive
		q--
	}
	return q
}

// path is the lexicographically first choice of k buckets, which are as few as the optimum needs, as candidates. Real
// costs are compared: of sizes that cost the same the smallest is taken.
func (s *bucketSearch) path(k int) []int {
	var out []int
	for at := 0; ; k-- {
		j := at
		for ; j < s.chunk; j++ {
			if k > 1 && (s.upTo[j+1]-s.upTo[at])*s.cost[j]+s.layers[k-2][j+1] == s.layers[k-1][at] {
				break
			}
		}
		out = append(out, j)
		if j == s.chunk {
			return out
		}
		at = j + 1
	}
}

// offer takes a choice that costs ns when it is the best so far, or as good and first in the order of choices.
func (s *bucketSearch) offer(ns int64, candidates []int) {
	if ns > s.best {
		return
	}
	list := make([]int, len(candidates))
	for k, c := range candidates {
		list[k] = s.size[c]
	}
	if ns < s.best || s.b.Precedes(list, s.sizes) {
		s.best, s.sizes = ns, list
	}
}

func (s *bucketSearch) within(candidates []int) bool {
	list := make([]int, len(candidates))
	for k, c := range candidates {
		list[k] = s.size[c]
	}
	return s.b.Within(list)
}

func (s *bucketSearch) run(ctx context.Context) error {
	if ns, ok := s.b.Objective(nil); ok {
		s.offer(ns, nil)
	}
	type chunk struct {
		c     int
		bound int64
	}
	var chunks []chunk
	for c := range s.size {
		if s.b.Max == 0 || !s.within([]int{c}) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		chunks = append(chunks, chunk{c, s.fold(c)})
		alone := s.fixed
		for _, m := range s.mass[:c+1] {
			alone += m * s.cost[c]
		}
		s.offer(alone, []int{c}) // every choice with this chunk spends at least as much: if it breaks a limit, so do they
	}
	sort.SliceStable(chunks, func(i, j int) bool { return chunks[i].bound < chunks[j].bound })
	var charge int64 // what the last bucket was worth for the best chunk
	for _, x := range chunks {
		if x.bound > s.best {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		s.fold(x.c)
		if charge > 0 && s.charged(charge) > s.best {
			continue
		}
		s.solve()
		k := min(s.b.Max, x.c+1)
		free := s.fixed + s.layers[k-1][0]
		if k == s.b.Max && k > 1 && free <= s.best {
			charge = s.layers[k-2][0] - s.layers[k-1][0]
		}
		if free > s.best {
			continue
		}
		for k > 1 && s.layers[k-2][0] == s.layers[k-1][0] {
			k--
		}
		if list := s.path(k); s.within(list) {
			s.offer(free, list)
			continue
		}
		if err := s.limited(ctx, free); err != nil {
			return err
		}
	}
	return nil
}

// spent is what sizes take: bytes, graphs, opening time.
type spent [3]int64

func (b *bucketSearch) takes(c int) spent {
	x := &b.b.Sizes[b.size[c]]
	return spent{x.Bytes, int64(x.Graphs), x.OpenNS}
}

func (b *bucketSearch) limits() (most spent) {
	for d, v := range []int64{b.b.MaxBytes, int64(b.b.MaxGraphs), b.b.MaxOpenNS} {
		if most[d] = v; v == 0 {
			most[d] = math.MaxInt64
		}
	}
	return most
}

func (a spent) plus(b spent) spent { return spent{a[0] + b[0], a[1] + b[1], a[2] + b[2]} }

func (a spent) within(b spent) bool { return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2] }

// relaxed are the layers with a price on every unit spent, for bounds: value[k][v] is the least of what the rests beyond
// node v cost plus what the sizes opened for them are charged.
type relaxed struct {
	price spent
	value [][]int64
	next  [][]int32
}

// relax solves the chunk with prices. It costs about Max * sizes^2 / 2 steps.
func (s *bucketSearch) relax(price spent) *relaxed {
	c, k := s.chunk, min(s.b.Max, s.chunk+1)
	charge := make([]int64, c+1)
	for j := range charge {
		for d, v := range s.takes(j) {
			charge[j] += price[d] * v
		}
	}
	r := &relaxed{price: price}
	for m := range k {
		value, next := make([]int64, c+1), make([]int32, c+1)
		for v := range c + 1 {
			value[v], next[v] = (s.upTo[c+1]-s.upTo[v])*s.cost[c]+charge[c], int32(c)
			if m == 0 {
				continue
			}
			for j := v; j < c; j++ {
				if x := (s.upTo[j+1]-s.upTo[v])*s.cost[j] + charge[j] + r.value[m-1][j+1]; x < value[v] {
					value[v], next[v] = x, int32(j)
				}
			}
		}
		r.value, r.next = append(r.value, value), append(r.next, next)
	}
	s.nodes += int64(k) * int64(c+1) * int64(c+1) / 2
	return r
}

// path is the choice that the relaxation makes, with what it spends.
func (r *relaxed) path(s *bucketSearch) (list []int, sum spent) {
	m, v := len(r.value)-1, 0
	for {
		j := int(r.next[m][v])
		list, sum = append(list, j), sum.plus(s.takes(j))
		if j == s.chunk {
			return list, sum
		}
		m, v = m-1, j+1
	}
}

// dual searches prices under which the chunk's choice keeps the limits, raising one at a time, and returns the
// relaxation with the highest bound. Choices within the limits that it comes across are offered.
func (s *bucketSearch) dual(most spent) (best *relaxed, bound int64) {
	bound = math.MinInt64
	at := func(price spent) spent {
		r := s.relax(price)
		low := r.value[len(r.value)-1][0]
		for d, v := range price {
			if v > 0 {
				low -= v * most[d]
			}
		}
		if low > bound {
			best, bound = r, low
		}
		list, sum := r.path(s)
		if sum.within(most) {
			total := s.fixed
			from := 0
			for _, j := range list {
				total += (s.upTo[j+1] - s.upTo[from]) * s.cost[j]
				from = j + 1
			}
			s.offer(total, list)
		}
		return sum
	}
	var price spent
	for range len(price) { // a price may make another limit bind
		sum := at(price)
		d := slices.IndexFunc([]int{0, 1, 2}, func(d int) bool { return sum[d] > most[d] })
		if d < 0 || s.nodes > s.nodeLimit {
			break
		}
		// The highest price is such that a unit costs as much as everything, and all of it stays in range.
		var all int64 = 1
		for j := range s.chunk + 1 {
			all += s.takes(j)[d]
		}
		low, high := price[d], max(1, (1<<60)/all)
		for high-low > max(1, low/64) && s.nodes <= s.nodeLimit {
			mid := low + max(1, (high-low)/2)
			if low == 0 || high/low > 4 { // by magnitude first
				mid = max(low+1, int64(math.Sqrt(float64(max(1, low))*float64(high))))
			}
			if mid >= high {
				break
			}
			price[d] = mid
			if sum := at(price); sum[d] > most[d] {
				low = mid
			} else {
				high = mid
			}
		}
		price[d] = high
	}
	return best, bound
}

// label is a choice of sizes so far, ending with one, and what it costs and spends, the chunk included.
type label struct {
	cost  int64
	sum   spent
	prev  int32 // -1: none
	size  int32
	count int32
}

// limited searches the chunk within the limits; free is the bound without them.
func (s *bucketSearch) limited(ctx context.Context, free int64) error {
	most := s.limits()
	stop := func(bound int64) {
		s.cut, s.bound = true, min(s.bound, bound)
	}
	if s.nodes > s.nodeLimit {
		stop(free)
		return nil
	}
	r, bound := s.dual(most)
	if s.fixed+bound > s.best {
		return nil
	}
	bound = max(free, s.fixed+bound)
	c := s.chunk
	all := []label{}
	list := func(i int32) (out []int) {
		for ; i >= 0; i = all[i].prev {
			out = append(out, int(all[i].size))
		}
		slices.Reverse(out)
		return out
	}
	nodes := make([][]int32, c+1) // by node: labels that have decided everything before it
	extend := func(from int32, l label, v int) bool {
		for j := v; j < c; j++ {
			if s.nodes++; s.nodes > s.nodeLimit {
				return false
			}
			x := label{cost: l.cost + (s.upTo[j+1]-s.upTo[v])*s.cost[j], sum: l.sum.plus(s.takes(j)), prev: from, size: int32(j), count: l.count + 1}
			if int(x.count) >= s.b.Max || !x.sum.within(most) {
				continue
			}
			m := min(s.b.Max-int(x.count), c+1) - 1
			low := x.cost + s.layers[m][j+1]
			priced := x.cost + r.value[m][j+1]
			for d, p := range r.price {
				if p > 0 { // the relaxation charges the chunk, which sum has already
					priced -= p * (most[d] - x.sum[d] + s.takes(c)[d])
				}
			}
			if s.fixed+max(low, priced) > s.best {
				continue
			}
			if s.dominated(all, nodes[j+1], x, list) {
				continue
			}
			all = append(all, x)
			nodes[j+1] = append(nodes[j+1], int32(len(all)-1))
		}
		s.offer(s.fixed+l.cost+(s.upTo[c+1]-s.upTo[v])*s.cost[c], append(list(from), c))
		return true
	}
	if !extend(-1, label{sum: s.takes(c)}, 0) {
		stop(bound)
		return nil
	}
	for v := 1; v <= c; v++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, i := range nodes[v] {
			if !extend(i, all[i], v) {
				stop(bound)
				return nil
			}
		}
	}
	return nil
}

// dominated reports whether a label at a node is no worse than x in everything, ties in the order of choices included.
func (s *bucketSearch) dominated(all []label, at []int32, x label, list func(int32) []int) bool {
	for _, i := range at {
		y := &all[i]
		if y.count > x.count || y.cost > x.cost || !y.sum.within(x.sum) {
			continue
		}
		if y.cost < x.cost || y.count < x.count || slices.Compare(list(i), append(list(x.prev), int(x.size))) <= 0 {
			return true
		}
	}
	return false
}
