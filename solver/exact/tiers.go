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

// Capacity tiers, by Benders decomposition over the numbers of slots.
//
// All layers have the same slots. Given how many each tier has, every layer is a problem of its own: which experts sit
// in them, so that the longer of two times, summed over the observed chunks, is least. Its Lagrangian dual (see
// layerSearch) gives an assignment, a bound, and what a slot more or less of each tier is worth. Summed over the layers
// that is a cut (see tierCut): a bound on the objective of any numbers of slots, exact in the groups' times and linear
// in the rest.
//
// A best-first branch and bound goes through boxes, which say how many slots each tier has at least and at most. The
// bound of a box is the most that a cut says of it. Of the box with the least bound the point of which that cut says
// least gets a cut of its own; if it has one, the box is divided: first by which tiers are in use, then by numbers. A box
// of one point is closed by enumeration where a layer has few experts; what stays open bounds the answer from below.
//
// Cuts are tight near the numbers that they were made for, and there may be too many numbers for cuts everywhere. Where the
// search ends at a limit, boxes around the best solution are searched (see around), and then all numbers again.
//
// Multipliers are integers, so bounds are exact and the same on every machine. A cut costs rounds * layers * experts *
// tiers in use * observed chunks steps, the bound of a box cuts * tiers.

// Limits of the search. Work is counted in steps, not in time, so that it ends at the same place everywhere.
const (
	tierWork       = 1 << 31 // of a search
	cutRounds      = 32      // of improving the weights of a layer, for a cut
	seedRounds     = 3       // of numbers of slots to begin with
	widestAround   = 16      // slots of a tier more or less than the best solution's, in a box around it
	nodesAround    = 1 << 12 // boxes that are looked at in such a box
	enumerated     = 14      // experts of a layer whose assignments are enumerated
	enumeratedWork = 1 << 17 // assignments that are looked at in a layer
	maxBoxes       = 1 << 17 // that are open at once
	slackPart      = 1 << 12 // of the objective: so much less is not looked for where layers are not enumerated
)

// Tiers implements problem.Engine.
func (Engine) Tiers(ctx context.Context, p *problem.Tiers, limits problem.Limits) (problem.TierSolution, error) {
	if err := p.Validate(); err != nil {
		return problem.TierSolution{}, err
	}
	search := newTierSearch(ctx, p)
	out := search.run(limits.Nodes)
	if err := ctx.Err(); err != nil {
		return problem.TierSolution{}, diag.New(diag.ClassInterrupted, "solve tiers %q: %w", p.Name, err)
	}
	return out, p.Verify(out)
}

// tierSearch is one search.
type tierSearch struct {
	ctx    context.Context
	p      *problem.Tiers
	groups []problem.TierGroups

	layers, experts, tiers, chunks, most int

	leftNS  []int32 // by layer, expert, chunk and choice
	dropped []int64 // by layer, expert and choice; nil: nothing is
	drops   []int64 // by layer: at most

	// Where the search for a layer's multipliers begins: at those of the last one. alpha is by layer and chunk, dropPrice
	// by layer.
	alpha     []int64
	dropPrice []int64

	sacks []tierSack
	cuts  []*tierCut
	cutAt map[string]bool // numbers of slots of which there is a cut
	best  problem.TierSolution
	// closed is the least bound of boxes that were left although they might hold a slightly better solution.
	closed int64
	work   int64
}

// newTierSearch prepares the times of all choices, and the dynamic plan as the first solution.
func newTierSearch(ctx context.Context, p *problem.Tiers) *tierSearch {
	s := &tierSearch{ctx: ctx, p: p, groups: p.Groups(), layers: len(p.Layers), experts: p.Experts(),
		tiers: len(p.Capacities), chunks: p.Chunks(), most: p.MostSlots(), cutAt: map[string]bool{},
		closed: math.MaxInt64}
	choices := s.tiers + 1
	s.leftNS = make([]int32, s.layers*s.experts*s.chunks*choices)
	at := 0
	for layer := range p.Layers {
		for _, rows := range p.Layers[layer].Rows {
			for _, routed := range rows {
				for choice := range choices {
					s.leftNS[at] = int32(min(p.LeftNS(routed, choice), math.MaxInt32))
					at++
				}
			}
		}
	}
	if p.Drop {
		for layer := range p.Layers {
			s.drops = append(s.drops, p.MostDropped(layer))
			for expert := range s.experts {
				for choice := range choices {
					s.dropped = append(s.dropped, p.Dropped(layer, expert, choice))
				}
			}
		}
	}
	s.alpha, s.dropPrice = make([]int64, s.layers*s.chunks), make([]int64, s.layers)
	for i := range s.alpha {
		s.alpha[i] = problem.TierOne / 2
		if p.Serial {
			s.alpha[i] = problem.TierOne
		}
	}
	s.sacks = sacksOf(p)
	s.best.Slots = make([]int, s.tiers)
	for range s.layers {
		s.best.Choices = append(s.best.Choices, make([]int, s.experts))
	}
	s.best.Objective = p.Time(s.best.Slots, s.best.Choices)
	return s
}

// left are an expert's times by observed chunk and choice.
func (s *tierSearch) left(layer, expert int) []int32 {
	size := s.chunks * (s.tiers + 1)
	at := (layer*s.experts + expert) * size
	return s.leftNS[at : at+size]
}

// drop is how many rows an expert drops with a choice.
func (s *tierSearch) drop(layer, expert, choice int) int64 {
	if s.dropped == nil {
		return 0
	}
	return s.dropped[(layer*s.experts+expert)*(s.tiers+1)+choice]
}

// timeOf is the time of the groups of a layer, and what their graphs cost in all observed chunks.
func (s *tierSearch) timeOf(slots []int) (ns, graphs int64) {
	for tier, count := range slots {
		ns += s.groups[tier].NS[count]
		graphs += s.groups[tier].Shapes[count] * s.p.ShapeNS * int64(s.chunks)
	}
	return ns, graphs
}

// layerTime is what a layer takes for a chunk.
func (s *tierSearch) layerTime(npu, cpu int64) int64 {
	if s.p.Serial {
		return npu + cpu
	}
	return max(npu, cpu)
}

// run searches, in at most so many boxes (0: any).
func (s *tierSearch) run(nodes int64) problem.TierSolution {
	if s.most > 0 {
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
		s.best.Bound = s.branch(root, nodes)
		if s.best.Bound < s.best.Objective-s.best.Objective/slackPart { // it ended at a limit
			s.around(root, nodes)
			s.closed = math.MaxInt64
			s.best.Bound = max(s.best.Bound, s.branch(root, nodes))
		}
	} else {
		s.best.Bound = s.best.Objective
	}
	s.best.Bound = min(s.best.Bound, s.best.Objective)
	s.best.Status = problem.Feasible
	if s.best.Bound == s.best.Objective {
		s.best.Status = problem.Optimal
	}
	return s.best
}

// box is how many slots each tier has at least and at most.
type box struct {
	low, high []int
	bound     int64
	by        int // the cut that says so
	cuts      int // so many of the cuts were asked
}

// boxes is a heap of boxes, the one of the least bound first.
type boxes []*box

func (b boxes) Len() int           { return len(b) }
func (b boxes) Less(i, j int) bool { return b[i].bound < b[j].bound }
func (b boxes) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }

// Push implements heap.Interface.
func (b *boxes) Push(x any) { *b = append(*b, x.(*box)) }

// Pop implements heap.Interface.
func (b *boxes) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}

// around searches boxes around the best solution, wider ones where narrow ones hold no better one, so that cuts are tight
// where good solutions are.
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
		s.closed = closed // the search of all numbers looks at these, too
		if s.best.Objective == before {
			radius *= 2
		}
	}
}

// branch looks at boxes, the one with the least bound first, until no box can hold a better solution or the work is
// done. It is the least bound of what was left.
func (s *tierSearch) branch(root *box, nodes int64) int64 {
	open := &boxes{}
	push := func(node *box) {
		if s.possible(node) && s.ask(node) {
			heap.Push(open, node)
		}
	}
	push(root)
	for open.Len() > 0 && s.ctx.Err() == nil {
		node := heap.Pop(open).(*box)
		if node.cuts < len(s.cuts) || !s.promises(node) { // of the cuts or the best solution since it was made
			push(node)
			continue
		}
		if s.work > tierWork || nodes > 0 && s.best.Nodes >= nodes || open.Len() > maxBoxes {
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

// promises reports whether a box may hold a solution that is better by what is worth looking for. Where no enumeration
// proves a layer's assignment that is more than the cuts leave open.
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

// possible reports whether a box may have numbers of slots that keep all limits; it lowers what it has at most to that.
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
	for i := range s.sacks {
		sack := &s.sacks[i]
		free := sack.most
		for tier, count := range node.low {
			free -= int64(count) * sack.weight[tier]
		}
		if free < 0 {
			return false
		}
		for tier, each := range sack.weight {
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

// ask raises a box's bound to the most that the cuts say which it did not ask yet. It reports whether the box promises
// a better solution.
func (s *tierSearch) ask(node *box) bool {
	for ; node.cuts < len(s.cuts) && node.bound < s.best.Objective; node.cuts++ {
		total := s.cuts[node.cuts].least(node, s.p.MaxTiers)
		if bound := ceilDiv(total, problem.TierOne); bound > node.bound {
			node.bound, node.by = bound, node.cuts
		}
		s.work += int64(s.tiers)
	}
	return s.promises(node)
}

// lowest are the numbers of slots in a box of which its strongest cut says least.
func (s *tierSearch) lowest(node *box) []int {
	slots := make([]int, s.tiers)
	s.cuts[node.by].lowest(node, s.p.MaxTiers, slots)
	// What is taken of no other limit is taken back from the tiers with the most slots.
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

// worthCut reports whether a new cut at a point may change what is known of it: the point has none, and the cuts of
// others leave it a chance.
func (s *tierSearch) worthCut(slots []int) bool {
	return !s.cutAt[slotKey(slots)] && s.count(slots) > 0 && s.saidOf(slots) < s.best.Objective
}

// saidOf is the most that cuts say of a point.
func (s *tierSearch) saidOf(slots []int) int64 {
	most := int64(math.MinInt64)
	for _, cut := range s.cuts {
		most = max(most, cut.at(slots))
	}
	s.work += int64(len(s.cuts) * s.tiers)
	return ceilDiv(most, problem.TierOne)
}

// split divides a box at a point: by whether a tier is in use where that is open, else by numbers.
func (s *tierSearch) split(node *box, lowest []int) []*box {
	at, cut := -1, 0
	optional := 0
	for tier, count := range node.high {
		if count > 0 && node.low[tier] == 0 {
			optional++
		}
	}
	if s.used(node.low)+optional > s.p.MaxTiers {
		for tier, count := range node.high {
			if count == 0 || node.low[tier] > 0 {
				continue
			}
			if at < 0 || lowest[tier] > lowest[at] {
				at = tier
			}
		}
	} else {
		for tier := range node.low {
			if size := node.high[tier] - node.low[tier]; size > 0 && (at < 0 || size > node.high[at]-node.low[at]) {
				at = tier
			}
		}
		cut = max(node.low[at], min(node.high[at]-1, lowest[at]))
		if size := node.high[at] - node.low[at]; size > 3 { // no slices off the edge
			cut = max(node.low[at]+size/4, min(node.high[at]-1-size/4, cut))
		}
	}
	first := &box{low: slices.Clone(node.low), high: slices.Clone(node.high)}
	second := &box{low: slices.Clone(node.low), high: slices.Clone(node.high)}
	first.high[at], second.low[at] = cut, cut+1
	return []*box{first, second}
}

// point closes a box of one point, by enumeration where a layer has few experts.
func (s *tierSearch) point(node *box) {
	if s.count(node.low) == 0 { // the dynamic plan, which was the first solution
		return
	}
	if !s.cutAt[slotKey(node.low)] {
		s.evaluate(node.low)
		if !s.ask(node) {
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

// slotKey names numbers of slots.
func slotKey(slots []int) string { return fmt.Sprint(slots) }

// count is the number of slots.
func (s *tierSearch) count(slots []int) (all int) {
	for _, count := range slots {
		all += count
	}
	return all
}

// used is the number of tiers in use.
func (s *tierSearch) used(slots []int) (used int) {
	for _, count := range slots {
		if count > 0 {
			used++
		}
	}
	return used
}

// ceilDiv divides, rounding up.
func ceilDiv(a, b int64) int64 {
	if a > 0 {
		return (a + b - 1) / b
	}
	return a / b
}
