package exact

import (
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// Capacity tiers, by best-first branch and bound over the numbers of slots, with bounds by Lagrangian decomposition.
//
// A box says how many slots each tier has at least and at most. Three things couple the layers of a box: the slots,
// which all of them share, the time of the groups, which is the same in all, and the longer of two times in every
// observed chunk. Multipliers take them apart: a layer buys slots at prices, what it pays is taken off the groups'
// time, and the longer of two times is at least any mean of both, weighted by alpha. What is left is separable. Every
// expert takes its cheapest slot (of a layer, at most as many as there may be), and every tier its cheapest number of
// slots. The sum is a bound for all boxes, whatever the multipliers are; a subgradient method improves them. They are
// integers, so bounds are exact and the same on every machine.
//
// Solutions come from the numbers of slots that bounds suggest, and from moves around the best one. For given numbers
// the experts of a layer are assigned by the weighted sum of their times, a transportation problem, and again with the
// observed chunks weighted in which the control processor takes longer. A box of one point is closed by enumeration
// where a layer has few experts; what stays open bounds the answer from below.
//
// A bound costs layers * experts * tiers steps, a solution layers * experts * (tiers + observed chunks).

// Limits of the search. Work is counted in steps, not in time, so that it ends at the same place everywhere.
const (
	tierWork       = 1 << 31 // of a search
	tierRootRounds = 200     // of the subgradient method, before the search
	tierNodeRounds = 12      // in a box
	enumerated     = 14      // experts of a layer whose assignments are enumerated
	enumeratedWork = 1 << 17 // assignments that are looked at in a layer
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

	leftNS  []int32         // by layer, expert, chunk and choice
	dropped []int64         // by layer, expert and choice; nil: nothing is
	drops   []int64         // by layer: at most
	tried   map[string]bool // numbers of slots
	best    problem.TierSolution
	work    int64
}

// newTierSearch prepares the times of all choices, and the dynamic plan as the first solution.
func newTierSearch(ctx context.Context, p *problem.Tiers) *tierSearch {
	s := &tierSearch{ctx: ctx, p: p, groups: p.Groups(), layers: len(p.Layers), experts: p.Experts(),
		tiers: len(p.Capacities), chunks: p.Chunks(), most: p.MostSlots(), tried: map[string]bool{}}
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

// box is how many slots each tier has at least and at most, with the multipliers of its bound.
type box struct {
	low, high []int
	*multipliers
	bound int64
}

// run searches, at most so many boxes (0: any).
func (s *tierSearch) run(nodes int64) problem.TierSolution {
	if s.most > 0 {
		root := &box{low: make([]int, s.tiers), high: make([]int, s.tiers), multipliers: s.start()}
		for tier := range root.high {
			root.high[tier] = s.most
		}
		s.improve(root, tierRootRounds)
		s.descend(root)
		s.improve(root, tierRootRounds)
		s.descend(root)
		s.best.Bound = s.branch([]*box{root}, nodes)
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

// branch looks at boxes, the one with the least bound first, until no box can hold a better solution or the work is
// done. It is the least bound of what was not closed.
func (s *tierSearch) branch(open []*box, nodes int64) int64 {
	closed := int64(math.MaxInt64) // least bound of single points that enumeration did not settle
	for len(open) > 0 && s.ctx.Err() == nil {
		least := 0
		for i, other := range open {
			if other.bound < open[least].bound {
				least = i
			}
		}
		if open[least].bound >= s.best.Objective || s.work > tierWork || nodes > 0 && s.best.Nodes >= nodes {
			break
		}
		node := open[least]
		open[least] = open[len(open)-1]
		open = open[:len(open)-1]
		s.best.Nodes++
		if slices.Equal(node.low, node.high) {
			closed = min(closed, s.point(node))
			continue
		}
		for _, child := range s.split(node) {
			if s.count(child.low) > s.most || s.used(child.low) > s.p.MaxTiers {
				continue
			}
			s.improve(child, tierNodeRounds)
			if child.bound < s.best.Objective {
				open = append(open, child)
			}
		}
	}
	for _, node := range open {
		closed = min(closed, node.bound)
	}
	return closed
}

// split divides a box where layers and groups disagree most about how many slots there should be.
func (s *tierSearch) split(node *box) []*box {
	relaxed := s.relax(node)
	at, most, cut := -1, -1.0, 0
	for tier := range s.tiers {
		if node.low[tier] == node.high[tier] {
			continue
		}
		wanted := 0
		for layer := range s.layers {
			wanted += relaxed.taken[layer*s.tiers+tier]
		}
		mean := float64(wanted) / float64(s.layers)
		if far := math.Abs(mean - float64(relaxed.slots[tier])); far > most {
			at, most, cut = tier, far, int(mean)
		}
	}
	cut = max(node.low[at], min(node.high[at]-1, cut))
	first := &box{slices.Clone(node.low), slices.Clone(node.high), node.copy(), node.bound}
	second := &box{slices.Clone(node.low), slices.Clone(node.high), node.copy(), node.bound}
	first.high[at], second.low[at] = cut, cut+1
	if s.used(second.low) == s.p.MaxTiers {
		for tier, count := range second.low {
			if count == 0 {
				second.high[tier] = 0
			}
		}
	}
	return []*box{first, second}
}

// point closes a box of one point, by enumeration where a layer has few experts; it is the bound of what is open.
func (s *tierSearch) point(node *box) int64 {
	s.try(node.low)
	if s.experts > enumerated || s.count(node.low) == 0 || s.count(node.low) > s.most {
		if s.count(node.low) == 0 { // the dynamic plan, which was the first solution
			return math.MaxInt64
		}
		return node.bound
	}
	npu, total := s.timeOf(node.low)
	choices := make([][]int, s.layers)
	for layer := range s.layers {
		walk := s.enumerate(layer, node.low, npu)
		if walk.nodes > enumeratedWork {
			return node.bound
		}
		if walk.choices == nil {
			return math.MaxInt64
		}
		choices[layer] = walk.choices
		total += walk.best + int64(s.chunks)*s.p.LayerNS
	}
	s.offer(node.low, choices, total)
	return math.MaxInt64
}

// offer keeps a solution that is better than the best one.
func (s *tierSearch) offer(slots []int, choices [][]int, objective int64) {
	if objective < s.best.Objective && s.p.Broken(slots, choices) == "" {
		s.best.Slots, s.best.Choices, s.best.Objective = slices.Clone(slots), choices, objective
	}
}

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
