package exact

import (
	"context"
	"math"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// defaultBucketNodes is how many steps bucket selection with limits may take by default.
const defaultBucketNodes = 1 << 25

// Buckets implements problem.Engine. The largest bucket, at which prompts are cut, is enumerated; for each the others
// are the shortest path of at most Max arcs over the sizes, where the arc from size i to size j costs
//
//	w(i, j) = (P[j] - P[i]) * T[j],
//
// P being the weight of the rests of at most that many tokens. With T[j] the least cost of all sizes of at least j
// rows, which the optimum can have (see problem.Buckets), T never falls. So w is Monge and the best predecessors
// advance together: the lower envelope of lines in P (convex hull trick) answers each layer in one pass, O(Max * sizes)
// for each chunk. Chunks are tried in the order of a bound (unlimited buckets), until no bound is below the best.
//
// Limits of bytes, graphs or opening time make it a shortest path with resource constraints. Chunks whose path breaks
// one are searched by label setting (limited), bounded by the path without limits and by a Lagrangian relaxation of
// them. That search stops at the node limit, and then the answer has a gap.
//
// RATIONALE: How are buckets chosen exactly although costs are not monotone?
func (Engine) Buckets(
	ctx context.Context, posed *problem.Buckets, limits problem.Limits,
) (problem.BucketSolution, error) {
	if err := posed.Validate(); err != nil {
		return problem.BucketSolution{}, err
	}
	search := newBucketSearch(posed, limits)
	if err := search.run(ctx); err != nil {
		return problem.BucketSolution{}, diag.New(diag.ClassInterrupted, "solve buckets %q: %w", posed.Name, err)
	}
	if search.best == math.MaxInt64 {
		return problem.BucketSolution{}, posed.Infeasible()
	}

	out := problem.BucketSolution{Sizes: search.sizes, Status: problem.Optimal, Nodes: search.nodes}
	out.Objective, _ = posed.Objective(out.Sizes)
	out.Bound = out.Objective
	if search.stopped {
		out.Status, out.Bound = problem.Feasible, min(search.bound, out.Objective)
	}
	return out, nil
}

// bucketSearch is the search for one instance. The fields mass, upTo (P), least (T), layers, hull and fixed belong to
// one chunk: the one at which fold cut the prompts last.
type bucketSearch struct {
	buckets   *problem.Buckets
	nodeLimit int64
	most      spent   // the limits
	size      []int   // feasible candidates, as indices into buckets.Sizes
	rows      []int   // of each
	cost      []int64 // of each
	holds     []int32 // by number of tokens: the smallest candidate that holds it

	chunk  int
	fixed  int64   // cost of full pieces and of single rows
	mass   []int64 // of the rests that each candidate is the smallest for
	upTo   []int64 // P: upTo[i+1] of the rests that candidate i holds, upTo[0] = 0
	least  []int64 // T: the least cost of this or a larger candidate up to the chunk
	layers [][]int64
	hull   hull

	best    int64
	sizes   []int // of the best, indices into buckets.Sizes
	bound   int64 // of the chunks that were not searched to their end
	stopped bool  // there is such a chunk
	nodes   int64
}

// newBucketSearch makes a search without a solution.
func newBucketSearch(posed *problem.Buckets, limits problem.Limits) *bucketSearch {
	out := &bucketSearch{
		buckets: posed, nodeLimit: limits.Nodes, best: math.MaxInt64, bound: math.MaxInt64,
		most: spent{posed.MaxBytes, int64(posed.MaxGraphs), posed.MaxOpenNS},
	}
	for limit := range out.most {
		if out.most[limit] == 0 {
			out.most[limit] = math.MaxInt64
		}
	}

	if out.nodeLimit == 0 {
		out.nodeLimit = defaultBucketNodes
	}

	for i, size := range posed.Sizes {
		if !size.Infeasible {
			out.size, out.rows = append(out.size, i), append(out.rows, size.Rows)
			out.cost = append(out.cost, size.CostNS)
		}
	}

	candidates := len(out.size)
	out.mass, out.upTo, out.least = make([]int64, candidates), make([]int64, candidates+1), make([]int64, candidates)
	if candidates > 0 {
		out.holds = make([]int32, out.rows[candidates-1]+1)
		for tokens, i := 0, 0; tokens < len(out.holds); tokens++ {
			for out.rows[i] < tokens {
				i++
			}
			out.holds[tokens] = int32(i)
		}
	}
	return out
}

// fold cuts the prompts at a candidate. It returns a bound of their cost: that with any number of buckets.
func (s *bucketSearch) fold(chunk int) (bound int64) {
	s.chunk, s.fixed = chunk, 0
	rows := s.rows[chunk]
	clear(s.mass[:chunk+1])

	full, end := 0, rows // of the pieces before, and where the next one ends
	for _, length := range s.buckets.Lengths {
		if length.Tokens > end {
			full = (length.Tokens - 1) / rows
			end = (full + 1) * rows
		}
		s.fixed += length.Weight * int64(full) * s.cost[chunk]
		if left := length.Tokens - (end - rows); left == 1 && s.buckets.OneNS > 0 {
			s.fixed += length.Weight * s.buckets.OneNS
		} else {
			s.mass[s.holds[left]] += length.Weight
		}
	}

	bound = s.fixed
	least := s.cost[chunk]
	for i := chunk; i >= 0; i-- {
		least = min(least, s.cost[i])
		s.least[i] = least
		bound += s.mass[i] * least
	}

	for i := range chunk + 1 {
		s.upTo[i+1] = s.upTo[i] + s.mass[i]
	}
	return bound
}

// held returns the weight of the rests that candidate last holds but those before first do not.
func (s *bucketSearch) held(first, last int) int64 { return s.upTo[last+1] - s.upTo[first] }

// line is the cost of an arc to a candidate as a function of the weight P of the rests that are held already:
// at - slope*P.
type line struct {
	slope, at int64
	from      int64 // the largest P at which it is at least as good as the line before it
}

// solve fills layers by dynamic programming. layers[k][i+1] is the least cost of the rests beyond candidate i with at
// most k+1 buckets, the chunk among them; i = -1 means all rests.
func (s *bucketSearch) solve() {
	most := min(s.buckets.Max, s.chunk+1)
	for len(s.layers) < most {
		s.layers = append(s.layers, make([]int64, len(s.size)+1))
	}

	for i := range s.chunk + 1 {
		s.layers[0][i] = s.held(i, s.chunk) * s.cost[s.chunk]
	}
	for k := 1; k < most; k++ {
		before, now := s.layers[k-1], s.layers[k]
		now[s.chunk] = before[s.chunk]
		s.hull.reset()
		for i := s.chunk - 1; i >= 0; i-- {
			// Candidate i becomes a successor of the nodes before it, where at most upTo[i] is held.
			s.hull.add(s.least[i], before[i+1]+s.upTo[i+1]*s.least[i])
			now[i] = min(before[i], s.hull.at(s.upTo[i]))
		}
	}
}

// charged returns a Lagrangian bound of the chunk's cost with at most Max buckets: every bucket costs charge, and the
// charges of Max buckets are given back. It takes one pass, where solve takes Max.
func (s *bucketSearch) charged(charge int64) int64 {
	s.hull.reset()
	s.hull.add(s.cost[s.chunk], s.upTo[s.chunk+1]*s.cost[s.chunk]+charge)
	rest := s.hull.at(s.upTo[s.chunk])
	for i := s.chunk - 1; i >= 0; i-- {
		s.hull.add(s.least[i], rest+s.upTo[i+1]*s.least[i]+charge)
		rest = s.hull.at(s.upTo[i])
	}
	return s.fixed + rest - int64(s.buckets.Max)*charge
}

// hull is the lower envelope of lines over P (convex hull trick). It needs lines added in an order in which slopes
// never rise, and queries in an order in which P never rises.
type hull struct {
	lines []line
	head  int // those before it are never the least again
}

// reset removes all lines.
func (h *hull) reset() { h.lines, h.head = h.lines[:0], 0 }

// add adds a line whose slope is at most those before it, and removes the lines that are nowhere the least any more.
func (h *hull) add(slope, at int64) {
	added := line{slope: slope, at: at, from: math.MaxInt64}
	for len(h.lines) > h.head {
		last := &h.lines[len(h.lines)-1]
		isParallel := last.slope == slope
		if isParallel && at >= last.at {
			return
		}
		if !isParallel {
			added.from = floorDiv(last.at-at, last.slope-slope)
			if added.from < last.from {
				break
			}
		}
		h.lines, added.from = h.lines[:len(h.lines)-1], math.MaxInt64
	}
	h.lines = append(h.lines, added)
}

// at returns the least value of the lines at weight.
func (h *hull) at(weight int64) int64 {
	for h.head+1 < len(h.lines) && weight <= h.lines[h.head+1].from {
		h.head++
	}
	return h.lines[h.head].at - h.lines[h.head].slope*weight
}

// floorDiv rounds down; the divisor is positive.
func floorDiv(dividend, divisor int64) int64 {
	quotient := dividend / divisor
	if dividend%divisor < 0 {
		quotient--
	}
	return quotient
}

// path returns the lexicographically first optimal choice of so many buckets, as candidates; that is the least number
// that the optimum needs. It compares real costs instead of T, so of sizes that cost the same it takes the smallest.
func (s *bucketSearch) path(buckets int) []int {
	var out []int
	for from := 0; ; buckets-- {
		next := from
		for next < s.chunk && !s.isBestArc(from, next, buckets) {
			next++
		}
		out = append(out, next)
		if next == s.chunk {
			return out
		}
		from = next + 1
	}
}

// isBestArc reports whether a choice of so many buckets for the rests from a candidate on costs least with the arc to
// the next one.
func (s *bucketSearch) isBestArc(from, next, buckets int) bool {
	return buckets > 1 && s.held(from, next)*s.cost[next]+s.layers[buckets-2][next+1] == s.layers[buckets-1][from]
}

// sizesOf returns candidates as indices into buckets.Sizes.
func (s *bucketSearch) sizesOf(candidates []int) []int {
	list := make([]int, len(candidates))
	for k, candidate := range candidates {
		list[k] = s.size[candidate]
	}
	return list
}

// offer keeps a choice that costs ns if it is the best so far, or as good and earlier in the order of choices.
func (s *bucketSearch) offer(ns int64, candidates []int) {
	if ns > s.best {
		return
	}
	list := s.sizesOf(candidates)
	if ns < s.best || s.buckets.Precedes(list, s.sizes) {
		s.best, s.sizes = ns, list
	}
}

// within reports whether candidates keep the limits.
func (s *bucketSearch) within(candidates []int) bool { return s.buckets.Within(s.sizesOf(candidates)) }

// chunkBound is a candidate for the largest bucket, with a bound of its cost.
type chunkBound struct {
	chunk int
	bound int64
}

// chunks lists the candidates for the largest bucket, least bound first, and offers each alone. A candidate that breaks
// a limit alone is left out: every choice with this chunk spends at least as much.
func (s *bucketSearch) chunks(ctx context.Context) (list []chunkBound, err error) {
	for chunk := range s.size {
		if s.buckets.Max == 0 || !s.within([]int{chunk}) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		list = append(list, chunkBound{chunk, s.fold(chunk)})
		s.offer(s.fixed+s.held(0, chunk)*s.cost[chunk], []int{chunk})
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].bound < list[j].bound })
	return list, nil
}

// run tries the chunks in the order of their bounds. The gain of the last bucket for the best chunk so far becomes the
// multiplier of a cheap Lagrangian bound of the other chunks (charged). Any multiplier gives a valid bound; this one is
// a good guess.
func (s *bucketSearch) run(ctx context.Context) error {
	if ns, ok := s.buckets.Objective(nil); ok {
		s.offer(ns, nil)
	}
	chunks, err := s.chunks(ctx)
	if err != nil {
		return err
	}

	var charge int64 // gain of the last bucket for the best chunk
	for _, next := range chunks {
		if next.bound > s.best {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}

		s.fold(next.chunk)
		if charge > 0 && s.charged(charge) > s.best {
			continue
		}

		s.solve()
		count := min(s.buckets.Max, next.chunk+1) // of buckets
		free := s.fixed + s.layers[count-1][0]
		if free > s.best {
			continue
		}
		if count == s.buckets.Max && count > 1 {
			charge = s.layers[count-2][0] - s.layers[count-1][0]
		}
		for count > 1 && s.layers[count-2][0] == s.layers[count-1][0] {
			count--
		}
		if list := s.path(count); s.within(list) {
			s.offer(free, list)
			continue
		}
		if err := s.limited(ctx, free); err != nil {
			return err
		}
	}
	return nil
}
