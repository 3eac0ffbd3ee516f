package exact

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// Capacity tiers are chosen by Benders decomposition. The master problem decides how many slots each tier has, the same
// in all layers. The subproblem of a layer assigns its experts to these slots. It minimises the longer of two times,
// the groups' and the control processor's, summed over the observed chunks.
//
// The Lagrangian dual of a subproblem (see layerSearch) gives an assignment, a bound, and the value of one slot more or
// less of each tier. Summed over the layers these make a cut (see tierCut): a lower bound on the objective for any
// numbers of slots, exact in the groups' times and linear in the rest.
//
// The master is solved by best-first branch and bound over boxes. A box bounds the number of slots of each tier from
// below and above; its own bound is the largest that any cut gives. The search takes the box with the least bound, and
// in it the point where the strongest cut is lowest. If that point has no cut of its own yet, it gets one. Otherwise
// the box is divided: first by which tiers are in use, then by numbers. A box of one point is closed by enumeration
// where a layer has few experts. The least bound of the boxes that stay open bounds the answer from below.
//
// Cuts are tight near the numbers that they were made for, and there are too many numbers for cuts everywhere. Where
// the search ends at a limit, boxes around the best solution are searched (see around), and then all numbers again.
//
// Multipliers are integers, so bounds are exact and the same on every machine. A cut costs rounds * layers * experts *
// tiers in use * observed chunks steps, the bound of a box cuts * tiers.

// Limits of the search. Work is counted in steps, not in time, so that it ends at the same place everywhere.
const (
	tierWork       = 1 << 31 // of a search
	cutRounds      = 32      // subgradient steps of a layer for one cut
	seedRounds     = 3       // rounds of first numbers of slots, see seeds
	widestAround   = 16      // largest distance, in slots of a tier, of a box around the best solution
	nodesAround    = 1 << 12 // boxes visited in the search of such a box
	enumerated     = 14      // most experts of a layer whose assignments are enumerated
	enumeratedWork = 1 << 17 // assignments visited in one layer
	maxBoxes       = 1 << 17 // boxes that are open at once
	slackPart      = 1 << 12 // without enumeration, gains below this part of the objective are not searched for
)

// Tiers implements problem.Engine.
func (Engine) Tiers(ctx context.Context, posed *problem.Tiers, limits problem.Limits) (problem.TierSolution, error) {
	if err := posed.Validate(); err != nil {
		return problem.TierSolution{}, err
	}
	search := newTierSearch(ctx, posed)
	out := search.run(limits.Nodes)
	if err := ctx.Err(); err != nil {
		return problem.TierSolution{}, diag.New(diag.ClassInterrupted, "solve tiers %q: %w", posed.Name, err)
	}
	return out, posed.Verify(out)
}

// tierSearch is the state of one branch and bound.
type tierSearch struct {
	ctx    context.Context
	p      *problem.Tiers
	groups []problem.TierGroups

	layers, experts, tiers, chunks, most int

	leftNS  []int32 // control processor's time by layer, expert, chunk and choice
	dropped []int64 // rows by layer, expert and choice; nil: no rows are dropped
	drops   []int64 // by layer: the most rows that it may drop

	// The multipliers with which the next search of a layer begins: those of its last search. alpha is by layer and
	// chunk, dropPrice by layer.
	alpha     []int64
	dropPrice []int64

	shared []sharedLimit
	cuts   []*tierCut
	cutAt  map[string]bool // numbers of slots that have a cut
	best   problem.TierSolution
	// closed is the least bound of boxes that were given up although they might hold a slightly better solution.
	closed int64
	work   int64
}

// newTierSearch prepares the times of all choices, and the dynamic plan as the first solution.
func newTierSearch(ctx context.Context, posed *problem.Tiers) *tierSearch {
	out := &tierSearch{ctx: ctx, p: posed, groups: posed.Groups(), layers: len(posed.Layers), experts: posed.Experts(),
		tiers: len(posed.Capacities), chunks: posed.Chunks(), most: posed.MostSlots(), cutAt: map[string]bool{},
		closed: math.MaxInt64}

	choices := out.tiers + 1
	out.leftNS = make([]int32, out.layers*out.experts*out.chunks*choices)
	at := 0
	for layer := range posed.Layers {
		for _, rows := range posed.Layers[layer].Rows {
			for _, routed := range rows {
				for choice := range choices {
					out.leftNS[at] = int32(min(posed.LeftNS(routed, choice), math.MaxInt32))
					at++
				}
			}
		}
	}

	if posed.Drop {
		for layer := range posed.Layers {
			out.drops = append(out.drops, posed.MostDropped(layer))
			for expert := range out.experts {
				for choice := range choices {
					out.dropped = append(out.dropped, posed.Dropped(layer, expert, choice))
				}
			}
		}
	}

	out.alpha, out.dropPrice = make([]int64, out.layers*out.chunks), make([]int64, out.layers)
	for i := range out.alpha {
		out.alpha[i] = problem.TierOne / 2
		if posed.Serial {
			out.alpha[i] = problem.TierOne
		}
	}

	out.shared = sharedLimits(posed)
	out.best.Slots = make([]int, out.tiers)
	for range out.layers {
		out.best.Choices = append(out.best.Choices, make([]int, out.experts))
	}
	out.best.Objective = posed.Time(out.best.Slots, out.best.Choices)
	return out
}

// left returns the control processor's times for an expert, by observed chunk and choice.
func (s *tierSearch) left(layer, expert int) []int32 {
	size := s.chunks * (s.tiers + 1)
	at := (layer*s.experts + expert) * size
	return s.leftNS[at : at+size]
}

// drop returns how many rows an expert drops with a choice.
func (s *tierSearch) drop(layer, expert, choice int) int64 {
	if s.dropped == nil {
		return 0
	}
	return s.dropped[(layer*s.experts+expert)*(s.tiers+1)+choice]
}

// timeOf returns the time of a layer's groups, and the price of their graphs in all observed chunks.
func (s *tierSearch) timeOf(slots []int) (ns, graphs int64) {
	for tier, count := range slots {
		ns += s.groups[tier].NS[count]
		graphs += s.groups[tier].Shapes[count] * s.p.ShapeNS * int64(s.chunks)
	}
	return ns, graphs
}

// layerTime returns the time of a layer for a chunk, from the times of its two processors.
func (s *tierSearch) layerTime(npu, cpu int64) int64 {
	if s.p.Serial {
		return npu + cpu
	}
	return max(npu, cpu)
}

// run searches at most nodes boxes (0: any number).
func (s *tierSearch) run(nodes int64) problem.TierSolution {
	bound := s.best.Objective
	if s.most > 0 {
		bound = s.searchBoxes(nodes)
	}
	s.best.Bound = min(bound, s.best.Objective)
	s.best.Status = problem.Feasible
	if s.best.Bound == s.best.Objective {
		s.best.Status = problem.Optimal
	}
	return s.best
}

// searchBoxes makes first cuts and searches all numbers of slots, and returns a bound of the objective. If the search
// ends at a limit, it searches around the best solution and then all numbers again.
func (s *tierSearch) searchBoxes(nodes int64) (bound int64) {
	root := &box{low: make([]int, s.tiers), high: make([]int, s.tiers)}
	for tier := range root.high {
		root.high[tier] = s.p.MostOf(tier)
	}

	for range seedRounds {
		for _, slots := range s.seeds() {
			if !s.cutAt[slotKey(slots)] {
				s.evaluate(slots)
			}
		}
	}

	bound = s.branch(root, nodes)
	if bound >= s.best.Objective-s.best.Objective/slackPart {
		return bound
	}

	s.around(root, nodes)
	s.closed = math.MaxInt64
	return max(bound, s.branch(root, nodes))
}

// box is a set of numbers of slots: each tier has at least low and at most high.
type box struct {
	low, high []int
	bound     int64
	by        int // the cut that gives the bound
	cuts      int // how many of the cuts the bound takes into account
}

// boxes is a heap of boxes, the one of the least bound first.
type boxes []*box

func (b boxes) Len() int { return len(b) }

func (b boxes) Less(i, j int) bool { return b[i].bound < b[j].bound }

func (b boxes) Swap(i, j int) { b[i], b[j] = b[j], b[i] }

// Push implements heap.Interface.
func (b *boxes) Push(x any) { *b = append(*b, x.(*box)) }

// Pop implements heap.Interface.
func (b *boxes) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}

// around makes cuts tight where good solutions are. It searches a box around the best solution, and a wider one as long
// as it finds nothing better.
func (s *tierSearch) around(root *box, nodes int64) {
	for radius := 1; radius <= widestAround && s.work < tierWork/4*3 && s.ctx.Err() == nil; {
		before, closed := s.best.Objective, s.closed
		near := &box{}
		for tier, count := range s.best.Slots {
			near.low = append(near.low, max(0, count-radius))
			near.high = append(near.high, min(root.high[tier], count+radius))
		}

		most := s.best.Nodes + nodesAround
		if nodes > 0 {
			most = min(most, nodes)
		}

		s.branch(near, most)
		s.closed = closed // the search of all numbers visits these boxes, too
		if s.best.Objective == before {
			radius *= 2
		}
	}
}

// branch visits boxes, the one with the least bound first, until no box can hold a better solution or a limit of work
// is reached. It returns the least bound of the boxes that it leaves.
func (s *tierSearch) branch(root *box, nodes int64) int64 {
	open := &boxes{}
	push := func(node *box) {
		if s.possible(node) && s.raiseBound(node) {
			heap.Push(open, node)
		}
	}

	push(root)
	for open.Len() > 0 && s.ctx.Err() == nil {
		node := heap.Pop(open).(*box)
		if node.cuts < len(s.cuts) || !s.promises(node) { // there are newer cuts, or a better solution
			push(node)
			continue
		}
		atLimit := s.work > tierWork || nodes > 0 && s.best.Nodes >= nodes
		if atLimit || open.Len() > maxBoxes {
			return min(s.closed, node.bound) // which is the least of those that are open
		}

		s.best.Nodes++
		if slices.Equal(node.low, node.high) {
			s.point(node)
			continue
		}

		lowest := s.lowest(node)
		if s.worthCut(lowest) {
			s.evaluate(lowest)
			push(node)
			continue
		}
		for _, child := range s.split(node, lowest) {
			push(child)
		}
	}
	return s.closed
}

// promises reports whether a box may hold a better solution. Where layers have too many experts for an enumeration,
// cuts cannot close the last part of the gap, so the solution must be better by slackPart of the objective.
func (s *tierSearch) promises(node *box) bool {
	if node.bound >= s.best.Objective {
		return false
	}
	if s.experts > enumerated && node.bound >= s.best.Objective-s.best.Objective/slackPart {
		s.closed = min(s.closed, node.bound)
		return false
	}
	return true
}

// possible reports whether some numbers of slots in a box may keep all limits. It lowers the box's upper ends to what
// the limits permit.
func (s *tierSearch) possible(node *box) bool {
	if s.count(node.low) > s.most || s.used(node.low) > s.p.MaxTiers || s.p.Overfull(node.low) != nil {
		return false
	}
	if s.used(node.low) == s.p.MaxTiers {
		for tier, count := range node.low {
			if count == 0 {
				node.high[tier] = 0
			}
		}
	}

	for i := range s.shared {
		limit := &s.shared[i]
		free := limit.most
		for tier, count := range node.low {
			free -= int64(count) * limit.weight[tier]
		}
		if free < 0 {
			return false
		}
		for tier, each := range limit.weight {
			if each > 0 {
				node.high[tier] = min(node.high[tier], node.low[tier]+int(min(free/each, int64(s.most))))
			}
		}
	}

	if s.p.MaxGraphs > 0 {
		graphs := int64(0)
		for tier := range node.low {
			graphs += slices.Min(s.groups[tier].Shapes[node.low[tier] : node.high[tier]+1])
		}
		return graphs <= s.p.MaxGraphs
	}
	return true
}

// raiseBound raises a box's bound by the cuts that it does not take into account yet. It reports whether the box still
// promises a better solution.
func (s *tierSearch) raiseBound(node *box) bool {
	for ; node.cuts < len(s.cuts) && node.bound < s.best.Objective; node.cuts++ {
		total := s.cuts[node.cuts].least(node, s.p.MaxTiers)
		if bound := ceilDiv(total, problem.TierOne); bound > node.bound {
			node.bound, node.by = bound, node.cuts
		}
		s.work += int64(s.tiers)
	}
	return s.promises(node)
}

// lowest returns the numbers of slots in a box at which its strongest cut is lowest.
func (s *tierSearch) lowest(node *box) []int {
	slots := make([]int, s.tiers)
	s.cuts[node.by].lowest(node, s.p.MaxTiers, slots)
	// The cut does not know all limits. Tiers with the most slots give some up until these hold.
	for s.count(slots) > s.most || s.p.Overfull(slots) != nil {
		largest := -1
		for tier, count := range slots {
			if count > node.low[tier] && (largest < 0 || count > slots[largest]) {
				largest = tier
			}
		}
		if largest < 0 {
			break
		}
		slots[largest]--
	}
	return slots
}

// worthCut reports whether a new cut at a point may gain something: the point has none, and the other cuts do not
// exclude it.
func (s *tierSearch) worthCut(slots []int) bool {
	return !s.cutAt[slotKey(slots)] && s.count(slots) > 0 && s.boundAt(slots) < s.best.Objective
}

// boundAt returns the largest bound that any cut gives for a point.
func (s *tierSearch) boundAt(slots []int) int64 {
	most := int64(math.MinInt64)
	for _, cut := range s.cuts {
		most = max(most, cut.at(slots))
	}
	s.work += int64(len(s.cuts) * s.tiers)
	return ceilDiv(most, problem.TierOne)
}

// split divides a box at a point. Where more tiers are possible than may be in use, it divides by whether one is in
// use, else by numbers of slots.
func (s *tierSearch) split(node *box, lowest []int) []*box {
	optional := 0
	for tier, count := range node.high {
		if count > 0 && node.low[tier] == 0 {
			optional++
		}
	}
	var at, cut int
	if s.used(node.low)+optional > s.p.MaxTiers {
		at, cut = splitByUse(node, lowest), 0
	} else {
		at, cut = splitByNumber(node, lowest)
	}
	first := &box{low: slices.Clone(node.low), high: slices.Clone(node.high)}
	second := &box{low: slices.Clone(node.low), high: slices.Clone(node.high)}
	first.high[at], second.low[at] = cut, cut+1
	return []*box{first, second}
}

// splitByUse returns the tier that may be in use or not and has most slots at a point.
func splitByUse(node *box, lowest []int) int {
	at := -1
	for tier, count := range node.high {
		if count == 0 || node.low[tier] > 0 {
			continue
		}
		if at < 0 || lowest[tier] > lowest[at] {
			at = tier
		}
	}
	return at
}

// splitByNumber returns the tier whose number of slots has the widest range, and the number at which to divide it: near
// the point's, where neither part is less than a quarter.
func splitByNumber(node *box, lowest []int) (at, cut int) {
	at = -1
	for tier := range node.low {
		size := node.high[tier] - node.low[tier]
		if size > 0 && (at < 0 || size > node.high[at]-node.low[at]) {
			at = tier
		}
	}
	cut = max(node.low[at], min(node.high[at]-1, lowest[at]))
	if size := node.high[at] - node.low[at]; size > 3 {
		cut = max(node.low[at]+size/4, min(node.high[at]-1-size/4, cut))
	}
	return at, cut
}

// point closes a box of one point, by enumeration where a layer has few experts.
func (s *tierSearch) point(node *box) {
	if s.count(node.low) == 0 { // the dynamic plan, which was the first solution
		return
	}
	if !s.cutAt[slotKey(node.low)] {
		s.evaluate(node.low)
		if !s.raiseBound(node) {
			return
		}
	}

	npu, total := s.timeOf(node.low)
	choices := make([][]int, s.layers)
	for layer := range s.layers {
		var walk *enumeration
		if s.experts <= enumerated {
			walk = s.enumerate(layer, node.low, npu)
		}
		if walk == nil || walk.nodes > enumeratedWork {
			s.closed = min(s.closed, node.bound)
			return
		}
		if walk.choices == nil {
			return
		}

		choices[layer] = walk.choices
		total += walk.best + int64(s.chunks)*s.p.LayerNS
	}
	s.offer(node.low, choices, total)
}

// offer keeps a solution that is better than the best one.
func (s *tierSearch) offer(slots []int, choices [][]int, objective int64) {
	if objective < s.best.Objective && s.p.Broken(slots, choices) == "" {
		s.best.Slots, s.best.Choices, s.best.Objective = slices.Clone(slots), choices, objective
	}
}

// slotKey returns numbers of slots as a key of a map.
func slotKey(slots []int) string { return fmt.Sprint(slots) }

// count returns the number of slots of all tiers.
func (s *tierSearch) count(slots []int) (all int) {
	for _, count := range slots {
		all += count
	}
	return all
}

// used returns the number of tiers in use.
func (s *tierSearch) used(slots []int) (used int) {
	for _, count := range slots {
		if count > 0 {
			used++
		}
	}
	return used
}

// ceilDiv divides, rounding up.
func ceilDiv(dividend, divisor int64) int64 {
	if dividend > 0 {
		return (dividend + divisor - 1) / divisor
	}
	return dividend / divisor
}
