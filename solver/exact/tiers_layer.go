package exact

import (
	"math"
	"slices"
	"sort"
)

// tierLayer is one layer with columns to choose from.
type tierLayer struct {
	search *tierSearch
	cols   []int     // choices
	w      [][]int64 // by expert and column; blocked: not this one
	f      [][]int64 // by column and number of experts
	big    float64   // more than any solution costs
	nodes  int
	most   int // nodes of solve
	moves  *moves
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
	if y.moves == nil {
		y.moves = newMoves(k)
	}
	g := y.moves
	least := -max(1e-4, float64(y.big*4e-16)) // what rounding cannot pretend
	g.of(y, b.x, 0)
	for {
		from, to, gain := -1, -1, least
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
		g.again(y, b.x)
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

func (x exchange) before(y exchange) bool {
	return x.cost < y.cost || x.cost == y.cost && x.expert < y.expert
}

func (h exchanges) down(i int) {
	x := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].before(h[c]) {
			c++
		}
		if !h[c].before(x) {
			break
		}
		h[i], i = h[c], c
	}
	h[i] = x
}

func (h *exchanges) push(x exchange) {
	*h = append(*h, x)
	q := *h
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !x.before(q[up]) {
			break
		}
		q[i], i = q[up], up
	}
	q[i] = x
}

func (h *exchanges) pop() {
	q := *h
	last := len(q) - 1
	q[0] = q[last]
	if *h = q[:last]; last > 0 {
		h.down(0)
	}
}

func newMoves(k int) *moves {
	return &moves{k: k, dist: make([]int64, k*k), edge: make([]int64, k*k), who: make([]int, k*k), next: make([]int, k*k),
		queue: make([]exchanges, k*k), dirty: make([]bool, k)}
}

// of computes them for the experts from first on.
func (g *moves) of(y *tierLayer, x []int, first int) {
	k := g.k
	for i := range g.queue {
		g.queue[i] = g.queue[i][:0]
	}
	for e := first; e < len(x); e++ {
		a, w := x[e], y.w[e]
		row := g.queue[a*k : a*k+k]
		for j, v := range w {
			if v < blocked && j != a {
				row[j] = append(row[j], exchange{v - w[a], e})
			}
		}
	}
	for _, q := range g.queue {
		for i := len(q)/2 - 1; i >= 0; i-- {
			q.down(i)
		}
	}
	g.moved = g.moved[:0]
	for a := range g.dirty {
		g.dirty[a] = true
	}
	g.again(y, x)
}

// again computes them after shifts: edges change only where columns were left or entered.
func (g *moves) again(y *tierLayer, x []int) {
	k := g.k
	for _, e := range g.moved {
		a, w := x[e], y.w[e]
		for j, v := range w {
			if v < blocked && j != a {
				g.queue[a*k+j].push(exchange{v - w[a], e})
			}
		}
	}
	g.moved = g.moved[:0]
	for a := range k {
		if !g.dirty[a] {
			continue
		}
		for c := range k {
			i := a*k + c
			q := &g.queue[i]
			for len(*q) > 0 && x[(*q)[0].expert] != a {
				q.pop()
			}
			if g.edge[i] = blocked; len(*q) > 0 {
				g.edge[i], g.who[i] = (*q)[0].cost, (*q)[0].expert
			}
		}
	}
	clear(g.dirty)
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
		g.dirty[from], g.dirty[next] = true, true
		e := g.who[from*g.k+next]
		x[e] = next
		g.moved = append(g.moved, e)
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
		if y.nodes >= y.most {
			least = min(least, b.least())
			return
		}
		j := b.widest()
		if b.gap[j] < 1e-3 {
			return
		}
		parts := y.split(b, [][2]int{{b.lo[j], b.n[j]}, {b.n[j] + 1, b.hi[j]}}, j)
		sort.SliceStable(parts, func(i, k int) bool { return parts[i].bound < parts[k].bound })
		for _, c := range parts {
			visit(c)
		}
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
