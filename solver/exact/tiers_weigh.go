package exact

import (
	"container/heap"
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// weigher minimises for one layer what prices say plus a price times the longer of NPU and CPU, with the limits that are the layer's own:
//
//	V(x) = prices(x) + longer * ( max(N(x), C(x)) + sync ),   budget_i(x) <= limit_i
//
// Nodes of its search are boxes of numbers of experts by column, in which some experts may have a fixed column. A node's bound is the largest
// found over weights u of N, each the minimum of prices + longer*(u*N + (1-u)*C) + sum of mult_i*(budget_i - limit_i), which the exchange
// argument gives. Its two best assignments, one for which the NPU takes longer and one for which the CPU does, meet at the best u. What they
// differ in is divided: a number of experts, or else one expert's column.
type weigher struct {
	s      *tierSearch
	l      int
	y      *tierLayer
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
func (s *tierSearch) weigher(l int, d *duals, set []int, limited bool) *weigher {
	w := &weigher{s: s, l: l, split: d.split[l], value: math.MaxInt64}
	put := func(p *prices, x *term, times int64) {
		if x.longer {
			w.longer += times
		} else {
			p.add(x.prices, times)
		}
	}
	put(&w.global, &s.main, s.scale)
	for i := range s.budgets {
		if b := &s.budgets[i]; b.layer < 0 && d.mult[i] > 0 {
			put(&w.global, &b.term, d.mult[i])
		}
	}
	w.own = w.global
	for i := range s.budgets {
		if b := &s.budgets[i]; limited && b.layer == l {
			w.budget = append(w.budget, i)
			w.own.add(b.prices, d.mult[i])
			w.offset += d.mult[i] * b.limit
		}
	}
	w.alone = w.own == prices{} && len(w.budget) == 0
	p := s.weighed(w.own, w.longer, w.split)
	w.y = s.layer(l, &p, set)
	return w
}

func (w *weigher) root() *weighed {
	return &weighed{box: w.y.root(), bound: math.MinInt64, split: w.split}
}

// of is V of columns, and whether the layer's limits are kept.
func (w *weigher) of(x []int) (v int64, c problem.TierCost, ok bool) {
	c = w.s.t.Layer(w.l, w.y.choices(x))
	p := &w.global
	v = p.npu*c.NPUNS + p.cpu*c.CPUNS + p.sync*c.SyncNS + p.energy*c.EnergyNJ + p.off*c.Off + p.launches*c.Launches + p.drop*c.Drop + p.lost*c.Lost + p.experts*c.Experts
	v += w.longer * c.NS
	ok = true
	for _, i := range w.budget {
		ok = ok && w.s.budgets[i].of(c) <= w.s.budgets[i].limit
	}
	return v, c, ok
}

// weigh finds the assignment of a node that is cheapest for one weight.
func (w *weigher) weigh(n *weighed, split float64) *box {
	p := w.s.weighed(w.own, w.longer, split)
	w.y.price(w.l, &p)
	for e, j := range n.fixed {
		if j >= 0 {
			for c := range w.y.w[e] {
				if c != int(j) {
					w.y.w[e][c] = blocked
				}
			}
		}
	}
	b := w.y.root() // other prices than before: exchanges start from what is best for some numbers
	b.lo, b.hi = n.lo, n.hi
	w.y.relax(b)
	return b
}

// explore looks for a node's best weight.
func (w *weigher) explore(n *weighed, steps int) {
	u := n.split
	if slices.Equal(n.lo, n.hi) {
		u = min(u, 0.5)
	}
	low, high := 0.0, 1.0
	var value, slope [2]float64 // of the sides, at u = 0, and by u
	move := 1.0 / 64
	for range steps {
		b := w.weigh(n, u)
		if math.IsInf(b.bound, 1) {
			n.bound = blocked
			return
		}
		if bound := b.least() - w.offset; bound > n.bound {
			n.box, n.bound, n.split = b, bound, u
		}
		v, c, ok := w.of(b.x)
		if ok && v < w.value {
			w.value, w.best = v, slices.Clone(b.x)
		}
		if w.longer == 0 || n.bound >= w.value {
			return
		}
		if w.alone && ok && slices.Equal(n.lo, n.hi) {
			n.bound = v // all numbers are given, and with them N; and C is the least for them at any weight but 1
			return
		}
		side := 0
		if c.NPUNS >= c.CPUNS {
			low = max(low, u)
		} else {
			side, high = 1, min(high, u)
		}
		n.side[side] = b
		slope[side] = float64(w.longer) * float64(c.NPUNS-c.CPUNS)
		value[side] = b.bound - float64(slope[side]*u)
		switch {
		case n.side[0] == nil:
			u, move = max(0, u-move), 4*move
		case n.side[1] == nil:
			u, move = min(1, u+move), 4*move
		default:
			u = (value[1] - value[0]) / (slope[0] - slope[1])
		}
		if n.side[0] != nil && n.side[1] != nil && !(u > low && u < high) || low >= 1 || high <= 0 {
			return
		}
	}
}

// balance returns the best weight of a node.
func (w *weigher) balance(n *weighed, steps int) float64 {
	w.explore(n, steps)
	return n.split
}

type weighHeap []*weighed

func (h weighHeap) Len() int { return len(h) }
func (h weighHeap) Less(i, j int) bool {
	return h[i].bound < h[j].bound || h[i].bound == h[j].bound && h[i].seq > h[j].seq
}
func (h weighHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *weighHeap) Push(x any)   { *h = append(*h, x.(*weighed)) }
func (h *weighHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// solve returns the best V with its columns, nil where there is none, and what no assignment is below. It ends after most nodes.
func (w *weigher) solve(root *weighed, most int) (value, least int64, x []int) {
	w.explore(root, 12)
	w.split, w.sides = root.split, root.side
	h := weighHeap{root}
	seq := 0
	for nodes := 0; len(h) > 0; nodes++ {
		n := heap.Pop(&h).(*weighed)
		if n.bound >= w.value || n.bound >= blocked {
			break
		}
		if w.best != nil && w.value-n.bound <= w.enough || nodes >= most || nodes > 0 && w.s.nodes >= w.s.limit {
			return w.value, n.bound, w.best
		}
		for _, c := range w.branch(n) {
			w.explore(c, 4)
			c.bound = max(c.bound, n.bound)
			if seq++; c.bound < w.value && c.bound < blocked {
				c.seq = seq
				heap.Push(&h, c)
			}
		}
	}
	if w.best == nil {
		return blocked, blocked, nil
	}
	return w.value, w.value, w.best
}

// branch divides a node.
func (w *weigher) branch(n *weighed) (out []*weighed) {
	child := func() *weighed {
		return &weighed{box: &box{lo: slices.Clone(n.lo), hi: slices.Clone(n.hi)}, bound: math.MinInt64, split: n.split, fixed: n.fixed}
	}
	parts := func(j, at int) []*weighed {
		a, b := child(), child()
		a.hi[j], b.lo[j] = at, at+1
		return []*weighed{a, b}
	}
	a, b := n.side[0], n.side[1]
	envelope := n.box.widest()
	if a != nil && b != nil && n.gap[envelope] < float64(w.value-n.bound)/4 {
		far, at := 0, -1
		for j := range a.n {
			if d := a.n[j] - b.n[j]; max(d, -d) > far {
				far, at = max(d, -d), j
			}
		}
		if at >= 0 {
			return parts(at, (a.n[at]+b.n[at])>>1)
		}
	}
	if n.gap[envelope] >= 1e-3 {
		return parts(envelope, n.n[envelope])
	}
	// Numbers do not tell the sides apart: experts do.
	e := -1
	for i := range n.x {
		if n.fixed != nil && n.fixed[i] >= 0 {
			continue
		}
		if e < 0 || a != nil && b != nil && a.x[i] != b.x[i] && a.x[e] == b.x[e] {
			e = i
		}
	}
	if e < 0 {
		return nil
	}
	for j := range w.y.cols {
		c := child()
		if c.fixed = slices.Clone(n.fixed); c.fixed == nil {
			c.fixed = slices.Repeat([]int8{-1}, len(n.x))
		}
		c.fixed[e] = int8(j)
		out = append(out, c)
	}
	return out
}

// first is the lexicographically smallest assignment as good as the best, nil where looking for it takes too long.
func (w *weigher) first() []int {
	if len(w.y.w) > firstExperts {
		return nil
	}
	value := w.value
	root := w.root()
	root.fixed = slices.Repeat([]int8{-1}, len(w.y.w))
	w.y.nodes = 0
	var visit func(n *weighed, e int) []int
	visit = func(n *weighed, e int) []int {
		if e == len(n.x) {
			if v, _, ok := w.of(n.x); ok && v == value {
				return n.x
			}
			return nil
		}
		for j := range w.y.cols {
			if w.y.nodes >= weighFirst {
				return nil
			}
			c := &weighed{box: &box{lo: n.lo, hi: n.hi}, bound: math.MinInt64, split: n.split, fixed: slices.Clone(n.fixed)}
			c.fixed[e] = int8(j)
			w.value = value + 1 // what is as good is not to be left out
			w.explore(c, 4)
			if c.bound > value {
				continue
			}
			if x := visit(c, e+1); x != nil {
				return x
			}
		}
		return nil
	}
	x := visit(root, 0)
	w.value = value
	return x
}

// weighAll solves every layer for itself, in up to most nodes each, and where that is wanted for the first of equally good assignments. It gives
// up, without choices, once the total is above cutoff.
func (s *tierSearch) weighAll(free *duals, set []int, cutoff int64, most int, first bool) (total, bound int64, out [][]int, err error) {
	// least is the main term of something that is at least so much.
	least := func(v int64) int64 { return (v + s.scale - 1) / s.scale }
	layers := make([]*weigher, len(s.t.Cells))
	roots := make([]*weighed, len(layers))
	var floor int64 // of the layers to come
	for l := range layers {
		if err := s.ctx.Err(); err != nil {
			return 0, 0, nil, err
		}
		layers[l] = s.weigher(l, free, set, false)
		roots[l] = layers[l].root()
		layers[l].explore(roots[l], 1)
		floor += least(roots[l].bound)
	}
	for l, w := range layers {
		if err := s.ctx.Err(); err != nil {
			return 0, 0, nil, err
		}
		if total+floor > cutoff {
			return total + floor, bound + floor, nil, nil
		}
		floor -= least(roots[l].bound)
		value, low, x := w.solve(roots[l], most)
		free.split[l] = w.split
		total, bound = total+value/s.scale, bound+least(low)
		if first && low == value {
			if y := w.first(); y != nil {
				x = y
			}
		}
		out = append(out, w.y.choices(x))
	}
	if total > cutoff {
		return total, bound, nil, nil
	}
	return total, bound, out, nil
}
