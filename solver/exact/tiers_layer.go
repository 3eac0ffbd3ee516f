package exact

import (
	"math"
	"slices"
	"sort"
)

// tierLayer is one layer with columns to choose from.
type tierLayer struct {
	search    *tierSearch
	cols      []int     // choices
	cost      [][]int64 // by expert and column; blocked: not this one
	groupCost [][]int64 // by column and number of experts
	big       float64   // more than any solution costs
	nodes     int
	most      int // nodes of solve
	moves     *moves
}

// box restricts how many experts are in each column. assigned is an assignment that no exchange improves under the
// envelopes.
type box struct {
	lo, hi          []int
	assigned, count []int
	bound           float64 // of every assignment in the box, +Inf: there is none
	gap             []float64
	value           int64 // of x
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
	columns := len(y.cols)
	out := &box{
		lo: make([]int, columns), hi: make([]int, columns), count: make([]int, columns),
		assigned: make([]int, len(y.cost)),
	}
	rate := make([]float64, columns)
	for j, cost := range y.groupCost {
		out.hi[j] = len(cost) - 1
		for count := 1; j > 0 && count < len(cost); count++ {
			if each := float64(cost[count]-cost[0]) / float64(count); count == 1 || each < rate[j] {
				rate[j] = each
			}
		}
	}
	for expert, costs := range y.cost {
		best := -1
		var cost float64
		for j, each := range costs {
			if each >= blocked || len(y.groupCost[j]) == 1 && j > 0 {
				continue
			}
			if whole := float64(each) + rate[j]; best < 0 || whole < cost {
				best, cost = j, whole
			}
		}
		if best < 0 {
			out.bound = math.Inf(1)
			return out
		}
		out.assigned[expert] = best
		out.count[best]++
	}
	return out
}

// envelope is the largest convex function below cost on [lo,hi], as its slopes from lo on: the lower hull of its
// points.
func envelope(cost []int64, lo, hi int, slope []float64) {
	hull := make([]int, 0, hi-lo+1)
	for count := lo; count <= hi; count++ {
		for len(hull) >= 2 {
			left, right := hull[len(hull)-2], hull[len(hull)-1]
			rise, next := float64(cost[right]-cost[left]), float64(cost[count]-cost[left])
			if rise*float64(count-left) < next*float64(right-left) {
				break
			}
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, count)
	}
	for i := 1; i < len(hull); i++ {
		left, right := hull[i-1], hull[i]
		v := float64(cost[right]-cost[left]) / float64(right-left)
		for count := left; count < right; count++ {
			slope[count-lo] = v
		}
	}
}

// relax moves experts until no exchange is cheaper, with the convex envelope of each group cost within the box.
//
// The minimum of an M-convex function by cheapest exchanges (Murota 2003): start anywhere, move one expert's worth of
// load from one column to another along the cheapest chain of exchanges, until none is cheaper. The state is the
// assignment with its numbers by column. It is correct because a local minimum of such a function is a global one. A
// step costs the shortest paths between columns (Floyd and Warshall): columns^3, whatever the number of experts.
func (y *tierLayer) relax(box *box) {
	y.nodes++
	y.search.nodes++
	if math.IsInf(box.bound, 1) {
		return
	}
	columns := len(y.cols)
	slopes := make([][]float64, columns)
	for j := range slopes {
		if box.lo[j] > box.hi[j] {
			box.bound = math.Inf(1)
			return
		}
		slopes[j] = make([]float64, box.hi[j]-box.lo[j])
		envelope(y.groupCost[j], box.lo[j], box.hi[j], slopes[j])
	}
	step := func(j, count int) float64 { // of expert n+1 in column j
		switch {
		case count < box.lo[j]:
			return -y.big
		case count >= box.hi[j]:
			return y.big
		}
		return slopes[j][count-box.lo[j]]
	}
	if y.moves == nil {
		y.moves = newMoves(columns)
	}
	ways := y.moves
	least := -max(1e-4, float64(y.big*4e-16)) // what rounding cannot pretend
	ways.of(y, box.assigned, 0)
	for {
		from, to, gain := -1, -1, least
		for own := range columns {
			if box.count[own] == 0 {
				continue
			}
			down := step(own, box.count[own]-1)
			for other := range columns {
				if own == other || ways.dist[own*columns+other] >= blocked {
					continue
				}
				if value := float64(ways.dist[own*columns+other]) + step(other, box.count[other]) - down; value < gain {
					from, to, gain = own, other, value
				}
			}
		}
		if from < 0 {
			break
		}
		ways.shift(box.assigned, from, to)
		box.count[from]--
		box.count[to]++
		ways.again(y, box.assigned)
	}
	var sum int64
	for expert, j := range box.assigned {
		sum += y.cost[expert][j]
	}
	box.value, box.bound, box.gap = sum, float64(sum), make([]float64, columns)
	for j, count := range box.count {
		if count < box.lo[j] || count > box.hi[j] {
			box.bound = math.Inf(1)
			return
		}
		value := float64(y.groupCost[j][box.lo[j]])
		for i := range count - box.lo[j] {
			value += slopes[j][i]
		}
		box.gap[j] = float64(y.groupCost[j][count]) - value
		box.bound += value
		box.value += y.groupCost[j][count]
	}
}

// moves are the cheapest ways for one expert's worth to get from one column to another.
type moves struct {
	columns int
	dist    []int64
	edge    []int64
	who     []int // expert of an edge
	next    []int // column after the first step

	queue []exchanges // by edge: the experts of its first column; of those that left it some are still there
	moved []int       // experts, since the edges were computed
	dirty []bool      // columns whose experts changed
}

// exchange is what an expert's move from one column to another costs.
type exchange struct {
	cost   int64
	expert int
}

// exchanges are a heap, the cheapest and of those the first expert on top.
type exchanges []exchange

// before orders by cost, and of equal ones by expert, so that answers are the same each time.
func (x exchange) before(other exchange) bool {
	return x.cost < other.cost || x.cost == other.cost && x.expert < other.expert
}

// down moves an exchange down to where the heap wants it.
func (h exchanges) down(i int) {
	item := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(item) {
			break
		}
		h[i], i = h[child], child
	}
	h[i] = item
}

// push adds an exchange.
func (h *exchanges) push(item exchange) {
	*h = append(*h, item)
	items := *h
	i := len(items) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !item.before(items[up]) {
			break
		}
		items[i], i = items[up], up
	}
	items[i] = item
}

// pop removes the first exchange.
func (h *exchanges) pop() {
	items := *h
	last := len(items) - 1
	items[0] = items[last]
	if *h = items[:last]; last > 0 {
		h.down(0)
	}
}

func newMoves(columns int) *moves {
	return &moves{columns: columns, dist: make([]int64, columns*columns), edge: make([]int64, columns*columns),
		who: make([]int, columns*columns), next: make([]int, columns*columns),
		queue: make([]exchanges, columns*columns), dirty: make([]bool, columns)}
}

// of computes them for the experts from first on.
func (g *moves) of(layer *tierLayer, assigned []int, first int) {
	columns := g.columns
	for i := range g.queue {
		g.queue[i] = g.queue[i][:0]
	}
	for expert := first; expert < len(assigned); expert++ {
		own, costs := assigned[expert], layer.cost[expert]
		row := g.queue[own*columns : own*columns+columns]
		for j, value := range costs {
			if value < blocked && j != own {
				row[j] = append(row[j], exchange{value - costs[own], expert})
			}
		}
	}
	for _, queue := range g.queue {
		for i := len(queue)/2 - 1; i >= 0; i-- {
			queue.down(i)
		}
	}
	g.moved = g.moved[:0]
	for own := range g.dirty {
		g.dirty[own] = true
	}
	g.again(layer, assigned)
}

// again computes them after shifts: edges change only where columns were left or entered.
func (g *moves) again(layer *tierLayer, assigned []int) {
	columns := g.columns
	for _, expert := range g.moved {
		own, costs := assigned[expert], layer.cost[expert]
		for j, value := range costs {
			if value < blocked && j != own {
				g.queue[own*columns+j].push(exchange{value - costs[own], expert})
			}
		}
	}
	g.moved = g.moved[:0]
	for from := range columns {
		if !g.dirty[from] {
			continue
		}
		for to := range columns {
			i := from*columns + to
			queue := &g.queue[i]
			for len(*queue) > 0 && assigned[(*queue)[0].expert] != from {
				queue.pop()
			}
			if g.edge[i] = blocked; len(*queue) > 0 {
				g.edge[i], g.who[i] = (*queue)[0].cost, (*queue)[0].expert
			}
		}
	}
	clear(g.dirty)
	copy(g.dist, g.edge)
	for from := range columns {
		for to := range columns {
			g.next[from*columns+to] = to
		}
		g.dist[from*columns+from] = 0
	}
	for via := range columns {
		for from := range columns {
			head := g.dist[from*columns+via]
			if head >= blocked || from == via {
				continue
			}
			for to := range columns {
				if tail := g.dist[via*columns+to]; tail < blocked && head+tail < g.dist[from*columns+to] {
					g.dist[from*columns+to], g.next[from*columns+to] = head+tail, g.next[from*columns+via]
				}
			}
		}
	}
}

// shift moves one expert over each edge of the cheapest way between two columns.
func (g *moves) shift(assigned []int, from, to int) {
	for from != to {
		next := g.next[from*g.columns+to]
		g.dirty[from], g.dirty[next] = true, true
		expert := g.who[from*g.columns+next]
		assigned[expert] = next
		g.moved = append(g.moved, expert)
		from = next
	}
}

// solve finds the layer's optimum by branching on numbers of experts; least is below value only where nodes ran out.
//
// It is branch and bound over boxes of numbers of experts. A box is bounded by relax, whose envelopes lie below the
// cost of groups that are not full. It is divided where the difference is largest (widest), which makes the envelopes
// of both halves tighter.
func (y *tierLayer) solve(root *box) (value, least int64, found []int) {
	if math.IsInf(root.bound, 1) {
		return blocked, blocked, nil
	}
	value, least = math.MaxInt64, math.MaxInt64
	var visit func(next *box)
	visit = func(next *box) {
		if next.value < value && !math.IsInf(next.bound, 1) {
			value, found = next.value, slices.Clone(next.assigned)
		}
		if next.least() >= value {
			return
		}
		if y.nodes >= y.most {
			least = min(least, next.least())
			return
		}
		j := next.widest()
		if next.gap[j] < 1e-3 {
			return
		}
		parts := y.split(next, [][2]int{{next.lo[j], next.count[j]}, {next.count[j] + 1, next.hi[j]}}, j)
		sort.SliceStable(parts, func(i, k int) bool { return parts[i].bound < parts[k].bound })
		for _, child := range parts {
			visit(child)
		}
	}
	visit(root)
	return value, min(value, least), found
}

// widest is the column whose cost lies furthest above its envelope.
func (b *box) widest() int {
	j := 0
	for i := range b.gap {
		if b.gap[i] > b.gap[j] {
			j = i
		}
	}
	return j
}

// split relaxes a box with column j in each of the ranges.
func (y *tierLayer) split(parent *box, ranges [][2]int, j int) (out []*box) {
	for _, half := range ranges {
		if half[0] > half[1] {
			continue
		}
		child := &box{lo: slices.Clone(parent.lo), hi: slices.Clone(parent.hi), assigned: slices.Clone(parent.assigned),
			count: slices.Clone(parent.count)}
		child.lo[j], child.hi[j] = half[0], half[1]
		y.relax(child)
		out = append(out, child)
	}
	return out
}

// first is the lexicographically smallest assignment in a box as cheap as another one, which is optimal: for every
// vector of numbers of experts that has one, exchanges that cost nothing are tried from the first expert on. nil when
// it takes too long.
func (y *tierLayer) first(assigned []int, root *box) (best []int) {
	if y.flat() && root.lo[0] < root.hi[0] {
		out := make([]int, len(assigned))
		for expert, costs := range y.cost {
			for j := range costs {
				if costs[j] < costs[out[expert]] {
					out[expert] = j
				}
			}
		}
		return out
	}
	value := y.total(assigned)
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
			for _, child := range y.split(b, [][2]int{{b.lo[j], b.count[j]}, {b.count[j] + 1, b.hi[j]}}, j) {
				visit(child)
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
			at := b.count[j]
			for _, child := range y.split(b, [][2]int{{b.lo[j], at - 1}, {at, at}, {at + 1, b.hi[j]}}, j) {
				visit(child)
			}
			return
		}
		if child := y.smallest(slices.Clone(b.assigned)); best == nil ||
			slices.Compare(y.choices(child), y.choices(best)) < 0 {
			best = child
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
	for _, cost := range y.groupCost {
		if len(cost) <= len(y.cost) || slices.ContainsFunc(cost, func(value int64) bool { return value != 0 }) {
			return false
		}
	}
	return true
}

// choices are columns as the choices that they stand for.
func (y *tierLayer) choices(assigned []int) []int {
	out := make([]int, len(assigned))
	for expert, j := range assigned {
		out[expert] = y.cols[j]
	}
	return out
}

// total is what an assignment costs, groups included.
func (y *tierLayer) total(assigned []int) (sum int64) {
	counts := make([]int, len(y.cols))
	for expert, j := range assigned {
		sum += y.cost[expert][j]
		counts[j]++
	}
	for j, f := range y.groupCost {
		sum += f[counts[j]]
	}
	return sum
}

// smallest is the lexicographically smallest assignment with the numbers of experts and the cost of another one.
// Columns ascend with their choices.
func (y *tierLayer) smallest(assigned []int) []int {
	columns := len(y.cols)
	all, rest := newMoves(columns), newMoves(columns)
	all.of(y, assigned, 0)
	for expert := range assigned {
		for j := 0; j < assigned[expert]; j++ {
			delta := y.cost[expert][j] - y.cost[expert][assigned[expert]]
			if y.cost[expert][j] >= blocked || all.dist[j*columns+assigned[expert]] >= blocked ||
				delta+all.dist[j*columns+assigned[expert]] > 0 {
				continue
			}
			rest.of(y, assigned, expert+1)
			if d := rest.dist[j*columns+assigned[expert]]; d < blocked && d+delta == 0 {
				from := assigned[expert]
				assigned[expert] = j
				rest.shift(assigned, j, from)
				all.of(y, assigned, 0)
				break
			}
		}
	}
	return assigned
}
