package exact

import (
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/solver/problem"
)

// Sizes of a walk.
const (
	walkExperts = 3  // of a tier that are tried in another, the cheapest under the prices
	walkPool    = 40 // columns of a layer that are tried in the place of its own
	walkPairs   = 30 // moves of a layer that are tried with one of another
	walkSteps   = 12 // times the layers

)

// walk looks for solutions near one: a move gives a layer other choices, in which one expert, or as many as make a group full or empty, change their tier, or
// two theirs with each other; or a column of the pool. While budgets are exceeded, the move counts that reduces it at the least price; then the
// moves, one or two in different layers, that make the main term smaller, or where it stays the same what budgets take at their prices.
type walk struct {
	d      *decomposed
	global []int // budgets
	group  []int // experts of a full group, by choice
	x      [][]int
	cost   []problem.TierCost
	lists  [][]tierMove
	total  []int64 // of the global budgets
	over   float64 // how far budgets are exceeded
	main   int64
}

// tierMove is a move of a layer.
type tierMove struct {
	choices []int
	cost    problem.TierCost
	main    int64
	value   float64 // of what budgets take
	amount  []int64 // of the global budgets
	broken  float64 // of the layer's own
}

func (d *decomposed) walk(x [][]int) *walk {
	w := &walk{d: d, x: make([][]int, len(x)), lists: make([][]tierMove, len(x)), group: make([]int, len(d.t.Groups)+1)}
	for i := range d.budgets {
		if d.budgets[i].layer < 0 {
			w.global = append(w.global, i)
		}
	}
	for k := range d.t.Groups {
		w.group[k+1] = max(1, len(d.p.Chunks[d.chunk].GroupNS[k]))
	}
	for l := range x {
		w.x[l] = slices.Clone(x[l])
		w.cost = append(w.cost, d.t.Layer(l, x[l]))
	}
	w.count()
	return w
}

// step evaluates choices of a layer.
func (w *walk) step(l int, choices []int) tierMove {
	s := w.d.tierSearch
	a := tierMove{choices: choices, cost: s.t.Layer(l, choices)}
	a.main = s.main.of(a.cost)
	for _, i := range w.global {
		v := s.budgets[i].of(a.cost)
		a.amount = append(a.amount, v)
		a.value += float64(float64(w.d.mult[i]) * float64(v))
	}
	for i := range s.budgets {
		if b := &s.budgets[i]; b.layer == l {
			if v := b.of(a.cost); v > b.limit {
				a.broken += float64(v-b.limit) / float64(max(1, b.limit))
			}
		}
	}
	return a
}

// count sums up.
func (w *walk) count() {
	w.total, w.main, w.over = make([]int64, len(w.global)), 0, 0
	for l := range w.x {
		a := w.step(l, w.x[l])
		w.main += a.main
		w.over += a.broken
		for i, v := range a.amount {
			w.total[i] += v
		}
	}
	w.over += w.excess(nil, nil, nil, nil)
}

// excess is how far the global budgets are exceeded after steps a and b in the place of what the layers have.
func (w *walk) excess(a, was, b, wasb *tierMove) (sum float64) {
	for i, g := range w.global {
		v := w.total[i]
		if a != nil {
			v += a.amount[i] - was.amount[i]
		}
		if b != nil {
			v += b.amount[i] - wasb.amount[i]
		}
		if limit := w.d.budgets[g].limit; v > limit {
			sum += float64(v-limit) / float64(max(1, limit))
		}
	}
	return sum
}

// moves lists the steps of a layer; the first one is to stay.
func (w *walk) moves(l int) []tierMove {
	s, x := w.d.tierSearch, w.x[l]
	r, _ := s.combined(l, w.d.duals)
	cols := append([]int{0}, w.d.set...)
	list := []tierMove{w.step(l, slices.Clone(x))}
	fits := func(y []int) bool {
		n := make([]int, len(s.t.Groups)+1)
		for _, k := range y {
			n[k]++
		}
		for k := range s.t.Groups {
			if n[k+1] >= len(s.t.Groups[k].NS) {
				return false
			}
		}
		return true
	}
	put := func(experts [][2]int) {
		y := slices.Clone(x)
		for _, e := range experts {
			y[e[0]] = e[1]
		}
		if fits(y) {
			list = append(list, w.step(l, y))
		}
	}
	of := make([][]int, len(s.t.Groups)+1)
	for e, k := range x {
		of[k] = append(of[k], e)
	}
	// The cheapest experts of a to move to b, in order.
	cheapest := make(map[[2]int][]int)
	for _, a := range cols {
		for _, b := range cols {
			if a == b || len(of[a]) == 0 {
				continue
			}
			list := slices.Clone(of[a])
			price := func(e int) int64 { return r.cell(&s.t.Cells[l][e][b], b) - r.cell(&s.t.Cells[l][e][a], a) }
			sort.SliceStable(list, func(i, j int) bool { return price(list[i]) < price(list[j]) })
			cheapest[[2]int{a, b}] = list
		}
	}
	for _, a := range cols {
		for _, b := range cols {
			list := cheapest[[2]int{a, b}]
			sizes := []int{}
			if a > 0 {
				sizes = append(sizes, (len(of[a])-1)%w.group[a]+1)
			}
			if b > 0 {
				sizes = append(sizes, w.group[b]-len(of[b])%w.group[b])
			}
			for i, n := range sizes {
				if n < 2 || n > len(list) || i > 0 && n == sizes[0] {
					continue
				}
				var some [][2]int
				for _, e := range list[:n] {
					some = append(some, [2]int{e, b})
				}
				put(some)
			}
			for i, e := range list[:min(len(list), walkExperts)] {
				put([][2]int{{e, b}})
				if a > b || i >= walkExperts {
					continue
				}
				back := cheapest[[2]int{b, a}]
				for _, f := range back[:min(len(back), walkExperts)] {
					put([][2]int{{e, b}, {f, a}})
				}
			}
		}
	}
	pool := make([]tierMove, 0, walkPool)
	for _, c := range w.d.pool[l] {
		if len(pool) == cap(pool) {
			break
		}
		if !slices.ContainsFunc(c.choices, func(k int) bool { return k > 0 && !slices.Contains(w.d.set, k) }) {
			pool = append(pool, w.step(l, c.choices))
		}
	}
	list = append(list, pool...)
	scale := float64(s.scale)
	rest := list[1:]
	sort.SliceStable(rest, func(i, j int) bool {
		return float64(rest[i].main)*scale+rest[i].value < float64(rest[j].main)*scale+rest[j].value
	})
	return list
}

func (w *walk) take(l int, a *tierMove) {
	was := &w.lists[l][0]
	for i := range w.total {
		w.total[i] += a.amount[i] - was.amount[i]
	}
	w.main += a.main - was.main
	w.x[l] = slices.Clone(a.choices)
	w.lists[l] = w.moves(l)
}

// go on until nothing helps, and offer what keeps every limit.
func (w *walk) run() bool {
	s := w.d.tierSearch
	for l := range w.x {
		w.lists[l] = w.moves(l)
	}
	scale := float64(s.scale)
	offered := false
	for range walkSteps * len(w.x) {
		if s.ctx.Err() != nil {
			return offered
		}
		own := 0.0
		for l := range w.lists {
			own += w.lists[l][0].broken
		}
		now := w.excess(nil, nil, nil, nil) + own
		at, rate := -1, math.Inf(1)
		var best *tierMove
		if now > 0 {
			for l := range w.lists {
				was := &w.lists[l][0]
				for i := range w.lists[l][1:] {
					a := &w.lists[l][i+1]
					left := w.excess(a, was, nil, nil) + own + a.broken - was.broken
					if left >= now-1e-12 {
						continue
					}
					v := (float64(a.main-was.main)*scale + max(0, a.value-was.value) + 1) / (now - left)
					if left <= 0 {
						v = min(v, (float64(a.main-was.main)*scale+1)/now)
					}
					if v < rate {
						at, rate, best = l, v, a
					}
				}
			}
			to := -1
			var other *tierMove
			if at < 0 { // two layers together
				w.pairs(func(l int, a, was *tierMove, m int, b, wasb *tierMove) {
					left := w.excess(a, was, b, wasb) + own + a.broken - was.broken + b.broken - wasb.broken
					if left >= now-1e-12 {
						return
					}
					main, value := a.main-was.main+b.main-wasb.main, a.value-was.value+b.value-wasb.value
					v := (float64(main)*scale + max(0, value) + 1) / (now - left)
					if left <= 0 {
						v = min(v, (float64(main)*scale+1)/now)
					}
					if v < rate {
						at, best, to, other, rate = l, a, m, b, v
					}
				})
			}
			main := w.main
			if at >= 0 {
				main += best.main - w.lists[at][0].main
			}
			if at < 0 || main >= s.best {
				return offered
			}
			if to >= 0 {
				w.take(to, other)
			}
			w.take(at, best)
			continue
		}
		if s.offer(w.x) {
			offered = true
		}
		better := func(main int64, value, than float64, least int64) bool {
			return main < least || main == least && value < than-1
		}
		least, value := int64(0), 0.0
		for l := range w.lists {
			was := &w.lists[l][0]
			for i := range w.lists[l][1:] {
				a := &w.lists[l][i+1]
				if better(a.main-was.main, a.value-was.value, value, least) && a.broken == 0 && w.excess(a, was, nil, nil) == 0 {
					at, best, least, value = l, a, a.main-was.main, a.value-was.value
				}
			}
		}
		if at >= 0 {
			w.take(at, best)
			continue
		}
		to := -1
		var other *tierMove
		w.pairs(func(l int, a, was *tierMove, m int, b, wasb *tierMove) {
			main, v := a.main-was.main+b.main-wasb.main, a.value-was.value+b.value-wasb.value
			if main < least && a.broken == 0 && b.broken == 0 && w.excess(a, was, b, wasb) == 0 {
				at, best, to, other, least, value = l, a, m, b, main, v
			}
		})
		if at < 0 {
			return offered
		}
		w.take(to, other)
		w.take(at, best)
	}
	return offered
}

// pairs visits the cheapest moves of two layers.
func (w *walk) pairs(visit func(l int, a, was *tierMove, m int, b, wasb *tierMove)) {
	for l := range w.lists {
		for i := 1; i < min(len(w.lists[l]), walkPairs); i++ {
			for m := range l {
				for j := 1; j < min(len(w.lists[m]), walkPairs); j++ {
					visit(l, &w.lists[l][i], &w.lists[l][0], m, &w.lists[m][j], &w.lists[m][0])
				}
			}
		}
	}
}

// improve walks from the columns of the program's mixtures and from the best solution.
func (d *decomposed) improve() {
	s := d.tierSearch
	if len(d.set) > s.p.MaxTiers {
		return
	}
	x := make([][]int, len(d.pool))
	for l := range x {
		if len(d.mixed) == 0 || len(d.mixed[l]) == 0 {
			x = nil
			break
		}
		x[l] = d.pool[l][d.mixed[l][0].column].choices
	}
	if x != nil {
		d.walk(x).run()
	}
	if s.choices == nil {
		return
	}
	for l := range s.choices {
		if slices.ContainsFunc(s.choices[l], func(k int) bool { return k > 0 && !slices.Contains(d.set, k) }) {
			return
		}
	}
	d.walk(s.choices).run()
}
