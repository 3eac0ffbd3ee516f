package exact

import (
	"container/heap"
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// weigher minimises for one layer what prices say plus a price times the longer of NPU and CPU, with the limits that
// are the layer's own:
//
//	V(x) = prices(x) + longer * ( max(N(x), C(x)) + sync ),   budget_i(x) <= limit_i
//
// Nodes of its search are boxes of numbers of experts by column, in which some experts may have a fixed column. A
// node's bound is the largest found over weights u of N, each the minimum of prices + longer*(u*N + (1-u)*C) + sum of
// mult_i*(budget_i - limit_i), which the exchange argument gives. Its two best assignments, one for which the NPU takes
// longer and one for which the CPU does, meet at the best u. What they differ in is divided: a number of experts, or
// else one expert's column.
type weigher struct {
	search *tierSearch
	layer  int
	posed  *tierLayer
	global prices // of V
	own    prices // and of the layer's budgets
	longer int64
	alone  bool    // nothing but time counts
	offset int64   // mult_i * limit_i
	budget []int   // the layer's
	split  float64 // to begin with
	enough int64   // the best may be so much above the least

	value int64   // best V
	best  []int   // its columns
	sides [2]*box // of the root
}

// weighed is a node.
type weighed struct {
	*box  // of the weight with the largest bound
	fixed []int8
	bound int64
	split float64
	side  [2]*box // where the NPU takes longer, and the CPU
	seq   int
}

// weigher poses a layer under prices, with its own limits or without.
func (s *tierSearch) weigher(layer int, dual *duals, set []int, limited bool) *weigher {
	out := &weigher{search: s, layer: layer, split: dual.split[layer], value: math.MaxInt64}
	put := func(costs *prices, term *term, times int64) {
		if term.longer {
			out.longer += times
		} else {
			costs.add(term.prices, times)
		}
	}
	put(&out.global, &s.main, s.scale)
	for i := range s.budgets {
		if budget := &s.budgets[i]; budget.layer < 0 && dual.mult[i] > 0 {
			put(&out.global, &budget.term, dual.mult[i])
		}
	}
	out.own = out.global
	for i := range s.budgets {
		if budget := &s.budgets[i]; limited && budget.layer == layer {
			out.budget = append(out.budget, i)
			out.own.add(budget.prices, dual.mult[i])
			out.offset += dual.mult[i] * budget.limit
		}
	}
	out.alone = out.own == prices{} && len(out.budget) == 0
	costs := s.weighed(out.own, out.longer, out.split)
	out.posed = s.layer(layer, &costs, set)
	return out
}

// root is the node without restrictions.
func (w *weigher) root() *weighed {
	return &weighed{box: w.posed.root(), bound: math.MinInt64, split: w.split}
}

// of is V of columns, and whether the layer's limits are kept.
func (w *weigher) of(assigned []int) (value int64, cost problem.TierCost, ok bool) {
	cost = w.search.table.Layer(w.layer, w.posed.choices(assigned))
	unit := &w.global
	value = unit.npu*cost.NPUNS + unit.cpu*cost.CPUNS + unit.sync*cost.SyncNS + unit.energy*cost.EnergyNJ +
		unit.off*cost.Off + unit.launches*cost.Launches + unit.drop*cost.Drop + unit.lost*cost.Lost +
		unit.experts*cost.Experts
	value += w.longer * cost.NS
	ok = true
	for _, i := range w.budget {
		ok = ok && w.search.budgets[i].of(cost) <= w.search.budgets[i].limit
	}
	return value, cost, ok
}

// weigh finds the assignment of a node that is cheapest for one weight.
func (w *weigher) weigh(node *weighed, split float64) *box {
	costs := w.search.weighed(w.own, w.longer, split)
	w.posed.price(w.layer, &costs)
	for expert, j := range node.fixed {
		if j >= 0 {
			for c := range w.posed.cost[expert] {
				if c != int(j) {
					w.posed.cost[expert][c] = blocked
				}
			}
		}
	}
	root := w.posed.root() // other prices than before: exchanges start from what is best for some numbers
	root.lo, root.hi = node.lo, node.hi
	w.posed.relax(root)
	return root
}

// explore looks for a node's best weight.
//
// The bound is concave in the weight. The cheapest assignment under a weight tells on which side the best one lies: its
// slope is what the NPU takes less what the CPU takes. Both sides' lines meet where to look next (a cutting plane
// method in one dimension).
func (w *weigher) explore(node *weighed, steps int) {
	weight := node.split
	if slices.Equal(node.lo, node.hi) {
		weight = min(weight, 0.5)
	}
	low, high := 0.0, 1.0
	var value, slope [2]float64 // of the sides, at u = 0, and by u
	move := 1.0 / 64
	for range steps {
		found := w.weigh(node, weight)
		if math.IsInf(found.bound, 1) {
			node.bound = blocked
			return
		}
		if bound := found.least() - w.offset; bound > node.bound {
			node.box, node.bound, node.split = found, bound, weight
		}
		exact, cost, ok := w.of(found.assigned)
		if ok && exact < w.value {
			w.value, w.best = exact, slices.Clone(found.assigned)
		}
		if w.longer == 0 || node.bound >= w.value {
			return
		}
		if w.alone && ok && slices.Equal(node.lo, node.hi) {
			// all numbers are given, and with them N; and C is the least for them at any weight but 1
			node.bound = exact
			return
		}
		side := 0
		if cost.NPUNS >= cost.CPUNS {
			low = max(low, weight)
		} else {
			side, high = 1, min(high, weight)
		}
		node.side[side] = found
		slope[side] = float64(w.longer) * float64(cost.NPUNS-cost.CPUNS)
		value[side] = found.bound - float64(slope[side]*weight)
		switch {
		case node.side[0] == nil:
			weight, move = max(0, weight-move), 4*move
		case node.side[1] == nil:
			weight, move = min(1, weight+move), 4*move
		default:
			weight = (value[1] - value[0]) / (slope[0] - slope[1])
		}
		if node.side[0] != nil && node.side[1] != nil && !(weight > low && weight < high) || low >= 1 || high <= 0 {
			return
		}
	}
}

// balance returns the best weight of a node.
func (w *weigher) balance(node *weighed, steps int) float64 {
	w.explore(node, steps)
	return node.split
}

// weighHeap orders nodes by bound, the newer first of equal ones.
type weighHeap []*weighed

func (h weighHeap) Len() int { return len(h) }
func (h weighHeap) Less(i, j int) bool {
	return h[i].bound < h[j].bound || h[i].bound == h[j].bound && h[i].seq > h[j].seq
}
func (h weighHeap) Swap(i, j int)  { h[i], h[j] = h[j], h[i] }
func (h *weighHeap) Push(node any) { *h = append(*h, node.(*weighed)) }
func (h *weighHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// solve returns the best V with its columns, nil where there is none, and what no assignment is below. It ends after
// most nodes.
//
// It is best-first branch and bound over the nodes that weigher's comment describes.
func (w *weigher) solve(root *weighed, most int) (value, least int64, columns []int) {
	w.explore(root, 12)
	w.split, w.sides = root.split, root.side
	queue := weighHeap{root}
	seq := 0
	for nodes := 0; len(queue) > 0; nodes++ {
		node := heap.Pop(&queue).(*weighed)
		if node.bound >= w.value || node.bound >= blocked {
			break
		}
		near := w.best != nil && w.value-node.bound <= w.enough
		if near || nodes >= most || nodes > 0 && w.search.nodes >= w.search.limit {
			return w.value, node.bound, w.best
		}
		for _, child := range w.branch(node) {
			w.explore(child, 4)
			child.bound = max(child.bound, node.bound)
			if seq++; child.bound < w.value && child.bound < blocked {
				child.seq = seq
				heap.Push(&queue, child)
			}
		}
	}
	if w.best == nil {
		return blocked, blocked, nil
	}
	return w.value, w.value, w.best
}

// branch divides a node.
func (w *weigher) branch(node *weighed) (out []*weighed) {
	child := func() *weighed {
		return &weighed{box: &box{lo: slices.Clone(node.lo), hi: slices.Clone(node.hi)}, bound: math.MinInt64,
			split: node.split, fixed: node.fixed}
	}
	parts := func(j, at int) []*weighed {
		npuSide, cpuSide := child(), child()
		npuSide.hi[j], cpuSide.lo[j] = at, at+1
		return []*weighed{npuSide, cpuSide}
	}
	npuSide, cpuSide := node.side[0], node.side[1]
	envelope := node.box.widest()
	if npuSide != nil && cpuSide != nil && node.gap[envelope] < float64(w.value-node.bound)/4 {
		far, at := 0, -1
		for j := range npuSide.count {
			if difference := npuSide.count[j] - cpuSide.count[j]; max(difference, -difference) > far {
				far, at = max(difference, -difference), j
			}
		}
		if at >= 0 {
			return parts(at, (npuSide.count[at]+cpuSide.count[at])>>1)
		}
	}
	if node.gap[envelope] >= 1e-3 {
		return parts(envelope, node.count[envelope])
	}
	// Numbers do not tell the sides apart: experts do.
	expert := -1
	for i := range node.assigned {
		if node.fixed != nil && node.fixed[i] >= 0 {
			continue
		}
		if expert < 0 || npuSide != nil && cpuSide != nil && npuSide.assigned[i] != cpuSide.assigned[i] &&
			npuSide.assigned[expert] == cpuSide.assigned[expert] {
			expert = i
		}
	}
	if expert < 0 {
		return nil
	}
	for j := range w.posed.cols {
		divided := child()
		if divided.fixed = slices.Clone(node.fixed); divided.fixed == nil {
			divided.fixed = slices.Repeat([]int8{-1}, len(node.assigned))
		}
		divided.fixed[expert] = int8(j)
		out = append(out, divided)
	}
	return out
}

// first is the lexicographically smallest assignment as good as the best, nil where looking for it takes too long.
func (w *weigher) first() []int {
	if len(w.posed.cost) > firstExperts {
		return nil
	}
	value := w.value
	root := w.root()
	root.fixed = slices.Repeat([]int8{-1}, len(w.posed.cost))
	w.posed.nodes = 0
	var visit func(node *weighed, expert int) []int
	visit = func(node *weighed, expert int) []int {
		if expert == len(node.assigned) {
			if reached, _, ok := w.of(node.assigned); ok && reached == value {
				return node.assigned
			}
			return nil
		}
		for j := range w.posed.cols {
			if w.posed.nodes >= weighFirst {
				return nil
			}
			child := &weighed{box: &box{lo: node.lo, hi: node.hi}, bound: math.MinInt64, split: node.split,
				fixed: slices.Clone(node.fixed)}
			child.fixed[expert] = int8(j)
			w.value = value + 1 // what is as good is not to be left out
			w.explore(child, 4)
			if child.bound > value {
				continue
			}
			if found := visit(child, expert+1); found != nil {
				return found
			}
		}
		return nil
	}
	found := visit(root, 0)
	w.value = value
	return found
}

// weighAll solves every layer for itself, in up to most nodes each, and where that is wanted for the first of equally
// good assignments. It gives up, without choices, once the total is above cutoff.
func (s *tierSearch) weighAll(
	free *duals, set []int, cutoff int64, most int, first bool,
) (total, bound int64, out [][]int, err error) {
	// least is the main term of something that is at least so much.
	least := func(scaled int64) int64 { return (scaled + s.scale - 1) / s.scale }
	layers := make([]*weigher, len(s.table.Cells))
	roots := make([]*weighed, len(layers))
	var floor int64 // of the layers to come
	for layer := range layers {
		if err := s.ctx.Err(); err != nil {
			return 0, 0, nil, err
		}
		layers[layer] = s.weigher(layer, free, set, false)
		roots[layer] = layers[layer].root()
		layers[layer].explore(roots[layer], 1)
		floor += least(roots[layer].bound)
	}
	for layer, weigher := range layers {
		if err := s.ctx.Err(); err != nil {
			return 0, 0, nil, err
		}
		if total+floor > cutoff {
			return total + floor, bound + floor, nil, nil
		}
		floor -= least(roots[layer].bound)
		value, low, assigned := weigher.solve(roots[layer], most)
		free.split[layer] = weigher.split
		total, bound = total+value/s.scale, bound+least(low)
		if first && low == value {
			if smallest := weigher.first(); smallest != nil {
				assigned = smallest
			}
		}
		out = append(out, weigher.posed.choices(assigned))
	}
	if total > cutoff {
		return total, bound, nil, nil
	}
	return total, bound, out, nil
}
