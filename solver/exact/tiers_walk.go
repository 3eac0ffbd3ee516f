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

// walk looks for solutions near one: a move gives a layer other choices, in which one expert, or as many as make a
// group full or empty, change their tier, or two theirs with each other; or a column of the pool. While budgets are
// exceeded, the move counts that reduces it at the least price; then the moves, one or two in different layers, that
// make the main term smaller, or where it stays the same what budgets take at their prices.
type walk struct {
	program *decomposed
	global  []int // budgets
	group   []int // experts of a full group, by choice
	choices [][]int
	cost    []problem.TierCost
	lists   [][]tierMove
	total   []int64 // of the global budgets
	over    float64 // how far budgets are exceeded
	main    int64
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

// walk begins at choices of all layers.
func (d *decomposed) walk(start [][]int) *walk {
	out := &walk{program: d, choices: make([][]int, len(start)), lists: make([][]tierMove, len(start)),
		group: make([]int, len(d.table.Groups)+1)}
	for i := range d.budgets {
		if d.budgets[i].layer < 0 {
			out.global = append(out.global, i)
		}
	}
	for tier := range d.table.Groups {
		out.group[tier+1] = max(1, len(d.tierSearch.tiers.Chunks[d.chunk].GroupNS[tier]))
	}
	for layer := range start {
		out.choices[layer] = slices.Clone(start[layer])
		out.cost = append(out.cost, d.table.Layer(layer, start[layer]))
	}
	out.count()
	return out
}

// step evaluates choices of a layer.
func (w *walk) step(layer int, choices []int) tierMove {
	search := w.program.tierSearch
	move := tierMove{choices: choices, cost: search.table.Layer(layer, choices)}
	move.main = search.main.of(move.cost)
	for _, i := range w.global {
		amount := search.budgets[i].of(move.cost)
		move.amount = append(move.amount, amount)
		move.value += float64(float64(w.program.mult[i]) * float64(amount))
	}
	for i := range search.budgets {
		if budget := &search.budgets[i]; budget.layer == layer {
			if amount := budget.of(move.cost); amount > budget.limit {
				move.broken += float64(amount-budget.limit) / float64(max(1, budget.limit))
			}
		}
	}
	return move
}

// count sums up.
func (w *walk) count() {
	w.total, w.main, w.over = make([]int64, len(w.global)), 0, 0
	for layer := range w.choices {
		move := w.step(layer, w.choices[layer])
		w.main += move.main
		w.over += move.broken
		for i, amount := range move.amount {
			w.total[i] += amount
		}
	}
	w.over += w.excess(nil, nil, nil, nil)
}

// excess is how far the global budgets are exceeded after two steps in the place of what the layers have.
func (w *walk) excess(first, was, second, wasb *tierMove) (sum float64) {
	for i, budget := range w.global {
		amount := w.total[i]
		if first != nil {
			amount += first.amount[i] - was.amount[i]
		}
		if second != nil {
			amount += second.amount[i] - wasb.amount[i]
		}
		if limit := w.program.budgets[budget].limit; amount > limit {
			sum += float64(amount-limit) / float64(max(1, limit))
		}
	}
	return sum
}

// moves lists the steps of a layer; the first one is to stay.
func (w *walk) moves(layer int) []tierMove {
	search, own := w.program.tierSearch, w.choices[layer]
	costs, _ := search.combined(layer, w.program.duals)
	cols := append([]int{0}, w.program.set...)
	list := []tierMove{w.step(layer, slices.Clone(own))}
	fits := func(changed []int) bool {
		counts := make([]int, len(search.table.Groups)+1)
		for _, choice := range changed {
			counts[choice]++
		}
		for choice := range search.table.Groups {
			if counts[choice+1] >= len(search.table.Groups[choice].NS) {
				return false
			}
		}
		return true
	}
	put := func(experts [][2]int) {
		changed := slices.Clone(own)
		for _, cheap := range experts {
			changed[cheap[0]] = cheap[1]
		}
		if fits(changed) {
			list = append(list, w.step(layer, changed))
		}
	}
	of := make([][]int, len(search.table.Groups)+1)
	for expert, choice := range own {
		of[choice] = append(of[choice], expert)
	}
	// The cheapest experts of one choice to move to another, in order.
	cheapest := make(map[[2]int][]int)
	for _, from := range cols {
		for _, to := range cols {
			if from == to || len(of[from]) == 0 {
				continue
			}
			list := slices.Clone(of[from])
			price := func(expert int) int64 {
				return costs.cell(&search.table.Cells[layer][expert][to],
					to) - costs.cell(&search.table.Cells[layer][expert][from], from)
			}
			sort.SliceStable(list, func(i, j int) bool { return price(list[i]) < price(list[j]) })
			cheapest[[2]int{from, to}] = list
		}
	}
	for _, from := range cols {
		for _, to := range cols {
			list := cheapest[[2]int{from, to}]
			sizes := []int{}
			if from > 0 {
				sizes = append(sizes, (len(of[from])-1)%w.group[from]+1)
			}
			if to > 0 {
				sizes = append(sizes, w.group[to]-len(of[to])%w.group[to])
			}
			for i, counts := range sizes {
				if counts < 2 || counts > len(list) || i > 0 && counts == sizes[0] {
					continue
				}
				var some [][2]int
				for _, expert := range list[:counts] {
					some = append(some, [2]int{expert, to})
				}
				put(some)
			}
			for i, expert := range list[:min(len(list), walkExperts)] {
				put([][2]int{{expert, to}})
				if from > to || i >= walkExperts {
					continue
				}
				back := cheapest[[2]int{to, from}]
				for _, other := range back[:min(len(back), walkExperts)] {
					put([][2]int{{expert, to}, {other, from}})
				}
			}
		}
	}
	pool := make([]tierMove, 0, walkPool)
	for _, column := range w.program.pool[layer] {
		if len(pool) == cap(pool) {
			break
		}
		if !slices.ContainsFunc(column.choices, func(choice int) bool {
			return choice > 0 &&
				!slices.Contains(w.program.set, choice)
		}) {
			pool = append(pool, w.step(layer, column.choices))
		}
	}
	list = append(list, pool...)
	scale := float64(search.scale)
	rest := list[1:]
	sort.SliceStable(rest, func(i, j int) bool {
		return float64(rest[i].main)*scale+rest[i].value < float64(rest[j].main)*scale+rest[j].value
	})
	return list
}

// take makes a move and lists those that are possible after it.
func (w *walk) take(layer int, move *tierMove) {
	was := &w.lists[layer][0]
	for i := range w.total {
		w.total[i] += move.amount[i] - was.amount[i]
	}
	w.main += move.main - was.main
	w.choices[layer] = slices.Clone(move.choices)
	w.lists[layer] = w.moves(layer)
}

// go on until nothing helps, and offer what keeps every limit.
//
// Local search: each step takes the best move of a layer or of a pair of layers, first out of what breaks budgets, then
// downhill. It ends where no move helps, or after a number of steps.
func (w *walk) run() bool {
	search := w.program.tierSearch
	for layer := range w.choices {
		w.lists[layer] = w.moves(layer)
	}
	scale := float64(search.scale)
	offered := false
	for range walkSteps * len(w.choices) {
		if search.ctx.Err() != nil {
			return offered
		}
		own := 0.0
		for layer := range w.lists {
			own += w.lists[layer][0].broken
		}
		now := w.excess(nil, nil, nil, nil) + own
		at, rate := -1, math.Inf(1)
		var best *tierMove
		if now > 0 {
			for layer := range w.lists {
				was := &w.lists[layer][0]
				for i := range w.lists[layer][1:] {
					move := &w.lists[layer][i+1]
					left := w.excess(move, was, nil, nil) + own + move.broken - was.broken
					if left >= now-1e-12 {
						continue
					}
					value := (float64(move.main-was.main)*scale + max(0, move.value-was.value) + 1) / (now - left)
					if left <= 0 {
						value = min(value, (float64(move.main-was.main)*scale+1)/now)
					}
					if value < rate {
						at, rate, best = layer, value, move
					}
				}
			}
			to := -1
			var other *tierMove
			if at < 0 { // two layers together
				w.pairs(func(layer int, move, was *tierMove, second int, otherMove, wasb *tierMove) {
					left := w.excess(move, was, otherMove, wasb) + own +
						move.broken - was.broken + otherMove.broken - wasb.broken
					if left >= now-1e-12 {
						return
					}
					main := move.main - was.main + otherMove.main - wasb.main
					value := move.value - was.value + otherMove.value - wasb.value
					change := (float64(main)*scale + max(0, value) + 1) / (now - left)
					if left <= 0 {
						change = min(change, (float64(main)*scale+1)/now)
					}
					if change < rate {
						at, best, to, other, rate = layer, move, second, otherMove, change
					}
				})
			}
			main := w.main
			if at >= 0 {
				main += best.main - w.lists[at][0].main
			}
			if at < 0 || main >= search.best {
				return offered
			}
			if to >= 0 {
				w.take(to, other)
			}
			w.take(at, best)
			continue
		}
		if search.offer(w.choices) {
			offered = true
		}
		better := func(main int64, value, than float64, least int64) bool {
			return main < least || main == least && value < than-1
		}
		least, value := int64(0), 0.0
		for layer := range w.lists {
			was := &w.lists[layer][0]
			for i := range w.lists[layer][1:] {
				move := &w.lists[layer][i+1]
				if better(move.main-was.main, move.value-was.value, value, least) && move.broken == 0 &&
					w.excess(move, was, nil, nil) == 0 {
					at, best, least, value = layer, move, move.main-was.main, move.value-was.value
				}
			}
		}
		if at >= 0 {
			w.take(at, best)
			continue
		}
		to := -1
		var other *tierMove
		w.pairs(func(layer int, move, was *tierMove, second int, otherMove, wasb *tierMove) {
			main, change := move.main-was.main+otherMove.main-wasb.main, move.value-was.value+otherMove.value-wasb.value
			if main < least && move.broken == 0 && otherMove.broken == 0 && w.excess(move, was, otherMove, wasb) == 0 {
				at, best, to, other, least, value = layer, move, second, otherMove, main, change
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
func (w *walk) pairs(visit func(layer int, move, was *tierMove, other int, otherMove, wasb *tierMove)) {
	for layer := range w.lists {
		for i := 1; i < min(len(w.lists[layer]), walkPairs); i++ {
			for other := range layer {
				for j := 1; j < min(len(w.lists[other]), walkPairs); j++ {
					visit(layer, &w.lists[layer][i], &w.lists[layer][0], other, &w.lists[other][j], &w.lists[other][0])
				}
			}
		}
	}
}

// improve walks from the columns of the program's mixtures and from the best solution.
func (d *decomposed) improve() {
	search := d.tierSearch
	if len(d.set) > search.tiers.MaxTiers {
		return
	}
	start := make([][]int, len(d.pool))
	for layer := range start {
		if len(d.mixed) == 0 || len(d.mixed[layer]) == 0 {
			start = nil
			break
		}
		start[layer] = d.pool[layer][d.mixed[layer][0].column].choices
	}
	if start != nil {
		d.walk(start).run()
	}
	if search.choices == nil {
		return
	}
	for layer := range search.choices {
		if slices.ContainsFunc(search.choices[layer], func(k int) bool { return k > 0 && !slices.Contains(d.set, k) }) {
			return
		}
	}
	d.walk(search.choices).run()
}
