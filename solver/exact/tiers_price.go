package exact

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/solver/problem"
)

// Sizes of the search for prices.
const (
	priceRounds  = 60   // of one set of tiers
	priceEnough  = 2e-5 // a bound so near what the columns give is the best
	columnsKept  = 400  // of a layer, in one set of tiers
	swapColumns  = 24   // of a layer that are tried in pairs
	swapRounds   = 40
	searchShare  = 4    // of the nodes are for the search of one set of tiers
	searchCells  = 128  // experts of all layers that the depth-first search takes on
	sharePairs   = 16   // columns between two
	tierEnough   = 1e-3 // a gap that is not closed further where the depth-first search has no chance
	boundedNodes = 200  // of one layer under the best prices
	boundedWork  = 8192 // and times its experts
	raiseRounds  = 12
	weighEnough  = 1e-4
	farkasTried  = 3
	barTries     = 256 // after which a bar has to rule out
	barShare     = 4   // one of so many
)

// constrained searches under budgets. Their prices, the weights of both processors in every layer's time, and so the
// best bound that prices give, are the solution of a linear program whose columns are assignments of single layers
// (Dantzig and Wolfe 1960): layers take a mixture of columns, the mixtures keep the budgets together, and the longer
// time of a layer is at least either processor's in its mixture. Its row prices price a layer; the assignment that the
// exchange argument finds under them is a column that improves the program, or there is none, and then the program's
// value is the bound. Any prices bound from below:
//
//	sum over layers of min over assignments of (main + sum of price_b * budget_b)  -  sum of price_b * limit_b.
//
// Solutions are one column for each layer, exchanged one by one and in pairs while that improves and keeps what has to
// be kept.
func (s *tierSearch) constrained(list []candidate, relaxed int64, complete bool) error {
	s.bound = math.MaxInt64
	if start := s.tiers.Start; start != nil && start.Chunk == s.chunk {
		s.offer(start.Choices)
	}
	all := make([]int, len(s.table.Groups))
	for tier := range all {
		all[tier] = tier + 1
	}
	// Any tiers: a bound for every set, and prices that compare them.
	root, err := s.decompose(all, s.even())
	if err != nil {
		return err
	}
	root.compose()
	if err := root.raise(); err != nil {
		return err
	}
	dual := root.duals
	relaxed = max(relaxed, root.least)
	var sets []*openSet
	for _, next := range list {
		if !complete || len(all) <= s.tiers.MaxTiers {
			sets = append(sets, &openSet{set: all, bound: relaxed, program: root})
			break
		}
		sets = append(sets, &openSet{set: next.set, needed: next.set, bound: max(next.bound, relaxed)})
	}
	if len(sets) > 1 {
		// The search begins where the mixtures are.
		some := root.used(nil)[:s.tiers.MaxTiers]
		slices.Sort(some)
		for _, own := range sets {
			if !slices.Equal(own.set, some) {
				continue
			}
			if own.program, err = s.decompose(some, dual); err != nil {
				return err
			}
			own.program.compose()
			own.program.improve()
			dual, own.bound = own.program.duals, max(own.bound, own.program.least)
		}
	}
	tried := map[string]bool{}
	var ended []*openSet
	// The set with the least bound goes on: what prices of another say of it, which is often enough, then prices of its
	// own, then every layer's own search under them, then the search.
	var linear func(set []int) int64
	var by *duals
	for first := true; ; first = false {
		sort.SliceStable(sets, func(i, j int) bool { return sets[i].bound < sets[j].bound })
		if len(sets) == 0 || sets[0].bound > s.best || s.nodes >= s.limit && !first {
			break
		}
		if !s.small() && !s.regional() && s.choices != nil &&
			float64(s.best-sets[0].bound) <= tierEnough*float64(s.best) && s.bound > sets[0].bound {
			break
		}
		open := sets[0]
		if open.program == nil && open.by != dual {
			if by != dual {
				linear, by = s.linear(dual), dual
			}
			if value := linear(open.set); value > open.bound && open.linear != dual {
				open.bound, open.linear = value, dual
				continue
			}
			bound, err := s.priced(open.set, dual)
			if err != nil {
				return err
			}
			for i := len(s.farkas) - 1; i >= 0 && i >= len(s.farkas)-farkasTried && bound <= s.best; i-- {
				if bound, err = s.priced(open.set, s.farkas[i]); err != nil {
					return err
				}
			}
			open.by, open.bound = dual, max(open.bound, bound)
			continue
		}
		switch open.steps {
		case 0:
			best := s.best
			if open.program == nil {
				own, err := s.decompose(open.set, dual)
				if err != nil {
					return err
				}
				own.compose()
				open.program, open.bound = own, max(open.bound, own.least)
			}
			if s.best < best {
				dual = open.program.duals
			}
			if len(open.set) <= s.tiers.MaxTiers {
				break
			}
			// Solutions come from as few tiers as may be.
			some := open.program.used(nil)[:s.tiers.MaxTiers]
			slices.Sort(some)
			if key := fmt.Sprint(some); open.bound <= s.best && !tried[key] {
				tried[key] = true
				best := s.best
				few, err := s.decompose(some, open.program.duals)
				if err != nil {
					return err
				}
				few.compose()
				if s.best < best {
					dual = few.duals
				}
			}
		case 1:
			if len(open.set) > s.tiers.MaxTiers && open.program.tiers > s.tiers.MaxTiers {
				sets = append(sets[1:], open.divide(s.tiers.MaxTiers)...)
				continue
			}
			best := s.best
			if err := open.program.raise(); err != nil {
				return err
			}
			if open.bound = max(open.bound, open.program.least); open.bound < s.best {
				open.program.improve()
			}
			if s.best < best {
				dual = open.program.duals
			}
		case 2:
			if err := open.program.finish(); err != nil {
				return err
			}
			open.bound = max(open.bound, open.program.least)
		default: // as good as best, and the first in order was looked for; or its part of the nodes is used
			if sets = sets[1:]; open.program.cut {
				ended = append(ended, open)
			} else {
				s.bound = min(s.bound, open.bound)
			}
		}
		open.steps++
	}
	// What nodes are left is for sets whose part was too small.
	sort.SliceStable(ended, func(i, j int) bool { return ended[i].bound < ended[j].bound })
	for _, open := range ended {
		if open.bound <= s.best && s.nodes < s.limit {
			if err := open.program.search(s.limit); err != nil {
				return err
			}
			open.bound = max(open.bound, open.program.least)
		}
	}
	for _, open := range slices.Concat(sets, ended) {
		s.bound = min(s.bound, open.bound)
	}
	s.bound = min(s.bound, s.best)
	return nil
}

// openSet is a set of tiers with those of them that surely are in use.
type openSet struct {
	set, needed []int
	bound       int64
	program     *decomposed
	steps       int    // done for it
	by, linear  *duals // whose bounds it has
}

// divide makes two of a set: without the tier that its prices use most, of those not needed yet, and with it.
func (c *openSet) divide(most int) []*openSet {
	tier := c.program.used(c.needed)[len(c.needed)]
	without := &openSet{set: slices.DeleteFunc(slices.Clone(c.set), func(j int) bool { return j == tier }),
		needed: c.needed, bound: c.bound}
	with := &openSet{
		set: c.set, needed: append(slices.Clone(c.needed), tier), bound: c.bound, program: c.program, steps: 1,
	}
	if len(with.needed) == most {
		with = &openSet{set: slices.Sorted(slices.Values(with.needed)), needed: with.needed, bound: c.bound}
	}
	return []*openSet{without, with}
}

// used are the tiers of the set: those needed, then the others, those most used in the program's mixtures first.
func (d *decomposed) used(needed []int) []int {
	out := slices.Clone(needed)
	rest := slices.DeleteFunc(slices.Clone(d.set), func(k int) bool { return slices.Contains(needed, k) })
	sort.SliceStable(rest, func(i, j int) bool { return d.usage[rest[i]] > d.usage[rest[j]] })
	return append(out, rest...)
}

// priced is the bound of prices for a set of tiers.
func (s *tierSearch) priced(set []int, dual *duals) (int64, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	var sum int64
	for layer := range s.table.Cells {
		costs, _ := s.combined(layer, dual)
		posed := s.layer(layer, &costs, set)
		root := posed.root()
		posed.relax(root)
		if math.IsInf(root.bound, 1) {
			return math.MaxInt64, nil
		}
		sum += int64(math.Floor(root.bound))
	}
	return s.dual(sum, dual), nil
}

// dual is the bound that a sum over layers gives. What float64 rounds in sums with multipliers is far below a tenth of
// the main term's unit. Without the main term a sum above what budgets allow says that they cannot be kept (Farkas).
func (s *tierSearch) dual(sum int64, dual *duals) int64 {
	value, size := float64(sum), math.Abs(float64(sum))
	for i, budget := range s.budgets {
		product := float64(dual.mult[i]) * float64(budget.limit)
		value -= product
		size += product
	}
	if dual.main == 0 {
		if value > 1e-9*size+1 {
			return math.MaxInt64
		}
		return 0
	}
	return max(0, int64(math.Ceil(value/float64(s.scale)-0.1)))
}

// column is one layer's part of a solution.
type column struct {
	choices []int
	cost    problem.TierCost
}

// decomposed is a set of tiers with the best prices found for it.
type decomposed struct {
	*tierSearch
	*duals
	set   []int
	bound int64 // by the prices
	least int64 // no solution of the set is below it
	cut   bool  // the search ended before it was done

	barred []bar
	floor  []int64
	pool   [][]column
	known  []map[string]bool
	usage  []float64 // of tiers, in the program's mixtures: experts
	tiers  int       // that are in use there
	mixed  [][]share // by layer: the columns of its mixture, largest part first
}

// share is a column's part in a mixture.
type share struct {
	column int
	part   float64
}

// mix notes mixtures, of columns from[j] = {layer, number in the pool}.
func (d *decomposed) mix(program *master, from [][2]int) {
	d.mixed = make([][]share, len(d.pool))
	for i, j := range program.basis {
		if j >= 0 && from[j][0] >= 0 && program.values[i] >= 1e-6 {
			layer := from[j][0]
			d.mixed[layer] = append(d.mixed[layer], share{from[j][1], program.values[i]})
		}
	}
	for layer := range d.mixed {
		sort.SliceStable(d.mixed[layer], func(i, j int) bool { return d.mixed[layer][i].part > d.mixed[layer][j].part })
	}
}

// add takes a column, unless it is there.
func (d *decomposed) add(layer int, choices []int) bool {
	key := make([]byte, len(choices))
	for expert, choice := range choices {
		key[expert] = byte(choice)
	}
	if d.known[layer][string(key)] || len(d.pool[layer]) >= columnsKept {
		return false
	}
	d.known[layer][string(key)] = true
	d.pool[layer] = append(d.pool[layer], column{choices, d.table.Layer(layer, choices)})
	return true
}

// decompose finds prices by columns.
//
// It is column generation (Dantzig and Wolfe 1960). The master program mixes the columns that are known; its row prices
// are multipliers, under which every layer is solved for itself; the assignments found are new columns. Every
// evaluation of prices is a Lagrangian bound, and the best of them is kept. Half of the rounds smooth prices towards
// the best ones, as those of few columns swing. While forced rows are broken the main term counts for nothing (phase
// one): a bound above the budgets then proves that they cannot be kept. A round costs one linear program and one search
// a layer.
func (s *tierSearch) decompose(set []int, start *duals) (*decomposed, error) {
	layers := len(s.table.Cells)
	out := &decomposed{tierSearch: s, set: set, duals: start, bound: -1, pool: make([][]column, layers),
		known: make([]map[string]bool, layers)}
	for layer := range out.known {
		out.known[layer] = map[string]bool{}
		out.add(layer, make([]int, len(s.table.Cells[layer])))
		if s.choices != nil && !slices.ContainsFunc(s.choices[layer],
			func(choice int) bool { return choice > 0 && !slices.Contains(set, choice) }) {
			out.add(layer, slices.Clone(s.choices[layer]))
		}
	}
	longer := s.main.longer
	for i := range s.budgets {
		longer = longer || s.budgets[i].longer
	}
	// Units in which numbers are about one.
	per := func(of *term) float64 { return max(1, float64(s.largest(of))/float64(layers)) }
	time := term{prices{npu: 1, cpu: 1, sync: 1}, true}
	unitMain, unitTime := per(&s.main), per(&time)
	unit := make([]float64, len(s.budgets))
	program := &master{}
	one, npu, cpu, row := make([]int32, layers), make([]int32, layers), make([]int32, layers), make([]int32,
		len(s.budgets))
	for layer := range layers {
		one[layer] = program.row(1, true)
		if longer {
			npu[layer], cpu[layer] = program.row(0, false), program.row(0, false)
		}
	}
	for i := range s.budgets {
		unit[i] = per(&s.budgets[i].term)
		row[i] = program.row(float64(s.budgets[i].limit)/unit[i], false)
	}
	for layer := range layers {
		if !longer {
			break
		}
		rows, coef, cost := []int32{npu[layer], cpu[layer]}, []float64{-1, -1}, 0.0
		if s.main.longer {
			cost = unitTime / unitMain
		}
		for i := range s.budgets {
			if s.budgets[i].longer {
				rows, coef = append(rows, row[i]), append(coef, unitTime/unit[i])
			}
		}
		program.column(cost, rows, coef)
	}
	taken := make([]int, layers) // columns that m has
	var from [][2]int            // layer and number in the pool, by column
	for len(from) < len(program.cost) {
		from = append(from, [2]int{-1, 0})
	}
	feed := func() {
		for layer := range layers {
			for number, column := range out.pool[layer][taken[layer]:] {
				from = append(from, [2]int{layer, taken[layer] + number})
				rows, coef := []int32{one[layer]}, []float64{1}
				put := func(at int32, amount float64) {
					if amount != 0 {
						rows, coef = append(rows, at), append(coef, amount)
					}
				}
				amount := func(term *term) int64 {
					if term.longer {
						return column.cost.SyncNS
					}
					return term.of(column.cost)
				}
				if longer {
					put(npu[layer], float64(column.cost.NPUNS)/unitTime)
					put(cpu[layer], float64(column.cost.CPUNS)/unitTime)
				}
				for i := range s.budgets {
					if cpuPrice := &s.budgets[i]; cpuPrice.layer < 0 || cpuPrice.layer == layer {
						put(row[i], float64(amount(&cpuPrice.term))/unit[i])
					}
				}
				program.column(float64(amount(&s.main))/unitMain, rows, coef)
			}
			taken[layer] = len(out.pool[layer])
		}
	}
	// priced evaluates prices, and takes the columns that they name.
	priced := func(share *duals) (grown bool, err error) {
		if err := s.ctx.Err(); err != nil {
			return false, err
		}
		var sum int64
		floor := make([]int64, layers)
		choices := make([][]int, layers)
		for layer := range layers {
			costs, _ := s.combined(layer, share)
			posed := s.layer(layer, &costs, set)
			posed.most = priceNodes
			cpuPrice := posed.root()
			posed.relax(cpuPrice)
			_, least, at := posed.solve(cpuPrice)
			if at == nil {
				return false, nil
			}
			floor[layer] = least
			sum += least
			choices[layer] = posed.choices(at)
			grown = out.add(layer, choices[layer]) || grown
		}
		s.offer(choices)
		if bound := s.dual(sum, share); bound == math.MaxInt64 {
			out.bound, s.farkas = bound, append(s.farkas, share)
		} else if bound > out.bound && share.main > 0 {
			out.bound, out.duals, out.floor = bound, share, floor
		}
		return grown, nil
	}
	if _, err := priced(start); err != nil {
		return nil, err
	}
	program.first = true
	for round := range priceRounds {
		if out.bound > s.best || s.nodes >= s.limit && round > 4 {
			break
		}
		feed()
		program.solve()
		if program.first && program.objective() < masterKept {
			program.first = false
			program.solve()
		}
		value := program.objective() * unitMain
		if !program.first && value-float64(out.bound) <= priceEnough*value {
			break
		}
		share := s.even()
		if program.first {
			share.main = 0
		}
		s.rowPrices(share, func(i int) float64 { return -program.prices[row[i]] * unitMain / unit[i] })
		for layer := range layers {
			if npuPrice, cpuPrice := max(0, -program.prices[npu[layer]]), max(0, -program.prices[cpu[layer]]); longer &&
				npuPrice+cpuPrice > 0 {
				share.split[layer] = npuPrice / (npuPrice + cpuPrice)
			}
		}
		// Prices of few columns swing; half way from the best ones they converge sooner.
		if round > 0 && round < priceRounds/2 && !program.first {
			half := s.even()
			for i := range half.mult {
				half.mult[i] = (share.mult[i] + out.mult[i]) / 2
			}
			for layer := range half.split {
				half.split[layer] = (share.split[layer] + out.split[layer]) / 2
			}
			grown, err := priced(half)
			if err != nil {
				return nil, err
			}
			if grown {
				continue
			}
		}
		grown, err := priced(share)
		if err != nil {
			return nil, err
		}
		if !grown {
			break
		}
	}
	out.least = out.bound
	if out.floor == nil {
		out.floor = make([]int64, layers)
	}
	out.usage = make([]float64, len(s.table.Groups)+1)
	out.mix(program, from)
	for layer := range out.mixed {
		for _, share := range out.mixed[layer] {
			for _, choice := range out.pool[layer][share.column].choices {
				out.usage[choice] += share.part
			}
		}
	}
	for _, experts := range out.usage[1:] {
		if experts > 0 {
			out.tiers++
		}
	}
	return out, nil
}

// rowPrices makes multipliers of prices in the main term's unit. Where they are too large for products to stay exact
// all shrink, so that their proportions remain; without the main term nothing but proportions counts.
func (s *tierSearch) rowPrices(to *duals, price func(i int) float64) {
	times := float64(s.scale)
	if to.main == 0 {
		times = math.Inf(1)
	}
	for i := range s.budgets {
		if value := price(i); value > 0 {
			times = min(times, float64(1<<56)/float64(max(1, s.budgets[i].most))/value)
		}
	}
	for i := range s.budgets {
		if value := price(i); value > 0 {
			to.mult[i] = int64(value * times)
		}
	}
}

// raise raises the bound by a second program, whose columns are assignments as they are: the longer time itself is in
// the place of its two sides, and the layers' own limits are kept. So no mixture of an assignment for which the NPU
// takes longer with one for which the CPU does is taken for one where they finish together. Prices of the first program
// divide the sides and price the layers' own limits.
func (d *decomposed) raise() error {
	search := d.tierSearch
	if search.best <= d.bound && search.choices != nil {
		return nil
	}
	var global []int
	for i := range search.budgets {
		if search.budgets[i].layer < 0 {
			global = append(global, i)
		}
	}
	layers := len(search.table.Cells)
	per := func(of *term) float64 { return max(1, float64(search.largest(of))/float64(layers)) }
	unitMain := per(&search.main)
	program := &master{}
	for range layers {
		program.row(1, true)
	}
	unit := make([]float64, len(search.budgets))
	row := make([]int32, len(search.budgets))
	for _, i := range global {
		unit[i] = per(&search.budgets[i].term)
		row[i] = program.row(float64(search.budgets[i].limit)/unit[i], false)
	}
	taken := make([]int, layers)
	var from [][2]int
	feed := func() {
		for layer := range layers {
		columns:
			for number, column := range d.pool[layer][taken[layer]:] {
				rows, coef := []int32{int32(layer)}, []float64{1}
				for i := range search.budgets {
					limit := &search.budgets[i]
					if limit.layer == layer && limit.of(column.cost) > limit.limit {
						continue columns
					}
					if limit.layer < 0 {
						if amount := limit.of(column.cost); amount != 0 {
							rows, coef = append(rows, row[i]), append(coef, float64(amount)/unit[i])
						}
					}
				}
				program.column(float64(search.main.of(column.cost))/unitMain, rows, coef)
				from = append(from, [2]int{layer, taken[layer] + number})
			}
			taken[layer] = len(d.pool[layer])
		}
	}
	priced := func(dual *duals, nodes int) (grown, possible bool, err error) {
		var sum int64
		floor := make([]int64, layers)
		next := &duals{main: dual.main, mult: dual.mult, split: slices.Clone(dual.split)}
		for layer := range layers {
			if err := search.ctx.Err(); err != nil {
				return false, false, err
			}
			weigher := search.weigher(layer, dual, d.set, true)
			if search.best < math.MaxInt64 {
				weigher.enough = int64(weighEnough * float64(search.best) * float64(search.scale) / float64(layers))
			}
			most := nodes
			if search.nodes >= search.limit {
				most = 0
			}
			_, least, best := weigher.solve(weigher.root(), most)
			if best == nil && least >= blocked {
				return false, false, nil // a layer cannot keep its limits
			}
			for i := range weigher.sides {
				if side := weigher.sides[i]; side != nil {
					grown = d.add(layer, weigher.posed.choices(side.assigned)) || grown
					if opposite := weigher.sides[1-i]; opposite != nil && i == 0 && len(d.pool[layer]) < columnsKept/2 {
						d.between(layer, weigher.posed.choices(side.assigned), weigher.posed.choices(opposite.assigned))
					}
				}
			}
			if best != nil {
				grown = d.add(layer, weigher.posed.choices(best)) || grown
			}
			floor[layer] = least + weigher.offset // the value has no prices of the layer's own budgets
			next.split[layer] = weigher.split
			sum += floor[layer]
		}
		if bound := search.dual(sum, dual); bound > d.bound {
			d.bound, d.duals, d.floor = bound, next, floor
		}
		return grown, true, nil
	}
	if search.choices != nil {
		for layer := range layers {
			if !slices.ContainsFunc(search.choices[layer], func(choice int) bool {
				return choice > 0 &&
					!slices.Contains(d.set, choice)
			}) {
				d.add(layer, slices.Clone(search.choices[layer]))
			}
		}
	}
	program.first = true
	most := min(boundedNodes, boundedWork/len(search.table.Cells[0]))
	best := search.best
	for round := range raiseRounds {
		if d.bound > search.best || search.nodes >= search.limit && round > 0 {
			break
		}
		dual := d.duals
		if round > 0 {
			feed()
			program.solve()
			if program.first && program.objective() < masterKept {
				program.first = false
				program.solve()
			}
			value := program.objective() * unitMain
			if !program.first && value-float64(d.bound) <= weighEnough*value {
				break
			}
			shifted := &duals{main: search.scale, mult: make([]int64, len(search.budgets)), split: d.split}
			search.rowPrices(shifted, func(i int) float64 {
				if search.budgets[i].layer >= 0 {
					return float64(d.mult[i]) / float64(search.scale)
				}
				return -program.prices[row[i]] * unitMain / unit[i]
			})
			for _, i := range global {
				if !program.first {
					shifted.mult[i] = (shifted.mult[i] + d.mult[i]) / 2
				}
			}
			dual = shifted
		}
		grown, possible, err := priced(dual, most)
		if err != nil {
			return err
		}
		if !possible {
			d.least = math.MaxInt64
			return nil
		}
		d.compose()
		if search.best < best {
			best = search.best
		}
		if !grown && round > 0 {
			break
		}
	}
	d.least = max(d.least, d.bound)
	if d.bound <= search.best {
		if feed(); program.first {
			program.solve()
			program.first = false
		}
		program.solve()
		d.mix(program, from)
	}
	return nil
}

// finish looks for what is better than the best, where it can.
func (d *decomposed) finish() error {
	search := d.tierSearch
	switch {
	case search.regional():
		return d.region()
	case d.small():
		if possible, err := d.bars(); err != nil || !possible {
			d.least = math.MaxInt64
			return err
		}
		return d.search(min(search.limit, search.nodes+search.limit/searchShare)) // other sets want their part
	}
	return nil
}

// regional reports whether nothing but the region couples layers, and no processors are weighed.
func (s *tierSearch) regional() bool {
	return len(s.budgets) == 1 && s.tiers.RegionBytes > 0 && s.budgets[0].prices == prices{experts: 1} && !s.main.longer
}

// small reports whether the depth-first search has a chance.
func (s *tierSearch) small() bool {
	experts := 0
	for layer := range s.table.Cells {
		experts += len(s.table.Cells[layer])
	}
	return experts <= searchCells
}

// between takes assignments on the way from one to another, expert by expert.
func (d *decomposed) between(layer int, from, to []int) {
	way := slices.Clone(from)
	var differ []int
	for expert := range from {
		if from[expert] != to[expert] {
			differ = append(differ, expert)
		}
	}
	for i, expert := range differ {
		way[expert] = to[expert]
		if i*sharePairs/len(differ) != (i+1)*sharePairs/len(differ) && len(d.pool[layer]) < columnsKept {
			d.add(layer, slices.Clone(way))
		}
	}
}

// compose chooses one column for each layer.
//
// A greedy heuristic and a local search. From the cheapest columns under the prices it first exchanges the column that
// lowers what is over the budgets at the least price. Then it exchanges single columns, and pairs where no single one
// gains, as long as the main term falls and the budgets are kept.
func (d *decomposed) compose() {
	search := d.tierSearch
	layers := len(d.pool)
	type entry struct {
		main   int64
		amount []int64 // of the budgets of all layers
		value  float64 // by the prices
		column int
	}
	var global []int
	for i := range search.budgets {
		if search.budgets[i].layer < 0 {
			global = append(global, i)
		}
	}
	lists := make([][]entry, layers)
	for layer := range lists {
		for number := range d.pool[layer] {
			column := &d.pool[layer][number]
			ok := true
			for i := range search.budgets {
				if otherOption := &search.budgets[i]; otherOption.layer == layer &&
					otherOption.of(column.cost) > otherOption.limit {
					ok = false
				}
			}
			if !ok {
				continue
			}
			entry := entry{main: search.main.of(column.cost), column: number}
			entry.value = float64(search.scale) * float64(entry.main)
			for _, i := range global {
				entry.amount = append(entry.amount, search.budgets[i].of(column.cost))
				entry.value += float64(float64(d.mult[i]) * float64(entry.amount[len(entry.amount)-1]))
			}
			lists[layer] = append(lists[layer], entry)
		}
		if len(lists[layer]) == 0 {
			return
		}
		sort.SliceStable(lists[layer], func(i, j int) bool { return lists[layer][i].value < lists[layer][j].value })
	}
	pick := make([]int, layers)
	total := make([]int64, len(global))
	unit := make([]float64, len(global))
	for i, index := range global {
		unit[i] = max(1, float64(search.budgets[index].limit))
		for layer := range lists {
			total[i] += lists[layer][0].amount[i]
		}
	}
	// over is how far budgets are exceeded after moves of layers.
	over := func(layer, option, other, otherOption int) (sum float64) {
		for i, limited := range global {
			value := total[i] + lists[layer][option].amount[i] - lists[layer][pick[layer]].amount[i]
			if other >= 0 {
				value += lists[other][otherOption].amount[i] - lists[other][pick[other]].amount[i]
			}
			if value > search.budgets[limited].limit {
				sum += float64(value-search.budgets[limited].limit) / unit[i]
			}
		}
		return sum
	}
	move := func(layer, option int) {
		for i := range total {
			total[i] += lists[layer][option].amount[i] - lists[layer][pick[layer]].amount[i]
		}
		pick[layer] = option
	}
	now := over(0, 0, -1, 0)
	for steps := 0; now > 0 && steps < 20*layers; steps++ {
		best, at, to := math.Inf(1), -1, 0
		for layer := range lists {
			for option := range lists[layer] {
				if option == pick[layer] {
					continue
				}
				value := over(layer, option, -1, 0)
				if value >= now {
					continue
				}
				rate := (lists[layer][option].value - lists[layer][pick[layer]].value + 1) / (now - value)
				if value == 0 { // the last step need not be large
					more := lists[layer][option].main - lists[layer][pick[layer]].main
					rate = min(rate, float64(more+1)*float64(search.scale)/now)
				}
				if rate < best {
					best, at, to = rate, layer, option
				}
			}
		}
		if at < 0 {
			break
		}
		move(at, to)
		now = over(at, to, -1, 0)
	}
	if now > 0 {
		return
	}
	for range swapRounds * layers {
		var gain int64
		l1, a1, l2, a2 := -1, 0, -1, 0
		for layer := range lists {
			for option := range lists[layer] {
				if value := lists[layer][option].main - lists[layer][pick[layer]].main; value < gain &&
					over(layer, option, -1, 0) == 0 {
					gain, l1, a1 = value, layer, option
				}
			}
		}
		if l1 < 0 {
			for layer := range lists {
				for option := range min(len(lists[layer]), swapColumns) {
					if option == pick[layer] {
						continue
					}
					for other := range layer {
						for index := range min(len(lists[other]), swapColumns) {
							value := lists[layer][option].main - lists[layer][pick[layer]].main +
								lists[other][index].main - lists[other][pick[other]].main
							if value < gain && over(layer, option, other, index) == 0 {
								gain, l1, a1, l2, a2 = value, layer, option, other, index
							}
						}
					}
				}
			}
		}
		if l1 < 0 {
			break
		}
		move(l1, a1)
		if l2 >= 0 {
			move(l2, a2)
		}
	}
	out := make([][]int, layers)
	for layer := range out {
		out[layer] = d.pool[layer][lists[layer][pick[layer]].column].choices
	}
	search.offer(out)
}

// largest is the most of a term that choices take.
func (s *tierSearch) largest(of *term) (sum int64) {
	for layer := range s.table.Cells {
		var all, each int64
		experts := len(s.table.Cells[layer])
		for tier := range s.table.Groups {
			for count := 1; count < len(s.table.Groups[tier].NS) && count <= experts; count++ {
				value := of.group(&s.table.Groups[tier], count)
				all, each = max(all, value), max(each, (value+int64(count)-1)/int64(count))
			}
		}
		sum += of.sync*s.table.SyncNS + min(all*int64(len(s.table.Groups)), each*int64(experts))
		for expert := range s.table.Cells[layer] {
			var cell int64
			for tier := range s.table.Cells[layer][expert] {
				cell = max(cell, of.cell(&s.table.Cells[layer][expert][tier], tier))
			}
			sum += cell
		}
	}
	return sum
}

// offer takes choices that are better, or as good and first.
func (s *tierSearch) offer(choices [][]int) bool {
	if choices == nil || s.table.Broken(choices) != "" {
		return false
	}
	sum := s.main.of(s.table.Total(choices))
	if sum < s.best || sum == s.best && s.choices != nil && less(choices, s.choices) {
		s.best = sum
		s.choices = make([][]int, len(choices))
		for layer := range choices {
			s.choices[layer] = slices.Clone(choices[layer])
		}
		return true
	}
	return false
}

// part is what one expert's choice surely takes of a budget.
func (b *budget) part(search *tierSearch, layer, expert, choice int) int64 {
	if b.longer {
		return 0
	}
	return b.cell(&search.table.Cells[layer][expert][choice], choice)
}

// region is the search where nothing but the region couples layers: how many experts of each layer are on the NPU is
// decided by dynamic programming over layers, from the optimum of each layer for every number that the dual bound
// leaves possible. The relaxed cost of a layer is convex in that number from one on, so those are neighbours.
func (d *decomposed) region() error {
	search, most, scale := d.tierSearch, int(d.budgets[0].limit), float64(d.scale)
	type option struct {
		n            int // on the NPU
		value, least int64
		box          *box
		x            []int
	}
	slack := math.Inf(1) // scaled: how much dearer than its relaxation a layer may be
	if search.best < math.MaxInt64 {
		slack = float64(search.best)*scale + float64(d.mult[0])*float64(most) + 1
		for _, value := range d.floor {
			slack -= float64(value)
		}
	}
	free := search.main.prices
	layers, options := make([]*tierLayer, len(d.floor)), make([][]option, len(d.floor))
	for layer := range d.floor {
		costs, _ := search.combined(layer, d.duals)
		priced := search.layer(layer, &costs, d.set)
		dual := priced.root()
		priced.relax(dual)
		posed := search.layer(layer, &free, d.set)
		layers[layer] = posed
		experts := len(posed.cost)
		from := max(1, min(experts-dual.count[0], most))
		visit := func(box *box, count int) (red float64) { // how much dearer than the dual's relaxation, scaled
			box.lo[0], box.hi[0] = experts-count, experts-count
			posed.relax(box)
			red = float64(box.least())*scale + float64(d.mult[0])*float64(count) - dual.bound
			if math.IsInf(box.bound, 1) || red > slack+0.2*scale {
				return red
			}
			posed.nodes = 0
			value, least, assigned := posed.solve(box)
			options[layer] = append(options[layer], option{count, value, least, box, assigned})
			return red
		}
		copied := func(b *box) *box {
			return &box{
				lo: slices.Clone(b.lo), hi: slices.Clone(b.hi),
				assigned: slices.Clone(b.assigned), count: slices.Clone(b.count),
			}
		}
		visit(copied(dual), 0) // without the hand-over, and so apart
		for _, dir := range []int{1, -1} {
			box, before := dual, math.Inf(1)
			count := from
			if dir < 0 {
				count--
			}
			for ; count >= 1 && count <= min(experts, most); count += dir {
				if err := search.ctx.Err(); err != nil {
					return err
				}
				box = copied(box)
				red := visit(box, count)
				if math.IsInf(box.bound, 1) || red > slack+0.2*scale && red > before {
					break
				}
				before = red
			}
		}
	}
	// best[l][n] is the least of the layers from l on with at most n experts on the NPU.
	table := func(cost func(*option) int64) [][]int64 {
		out := make([][]int64, len(layers)+1)
		out[len(layers)] = make([]int64, most+1)
		for layer := len(layers) - 1; layer >= 0; layer-- {
			out[layer] = make([]int64, most+1)
			for experts := range out[layer] {
				out[layer][experts] = blocked
				for i := range options[layer] {
					if option := &options[layer][i]; option.n <= experts && out[layer+1][experts-option.n] < blocked {
						out[layer][experts] = min(out[layer][experts], cost(option)+out[layer+1][experts-option.n])
					}
				}
			}
		}
		return out
	}
	best := table(func(option *option) int64 { return option.value })
	if d.least = table(func(option *option) int64 { return option.least })[0][most]; d.least >= blocked {
		d.least = math.MaxInt64
	}
	if best[0][most] > search.best {
		return nil
	}
	left := most
	choices := make([][]int, len(layers))
	for layer, posed := range layers {
		used := 0
		for i := range options[layer] {
			option := &options[layer][i]
			if option.n > left || option.value+best[layer+1][left-option.n] != best[layer][left] {
				continue
			}
			assigned := posed.first(option.x, option.box)
			if assigned == nil {
				assigned = option.x
			}
			if assigned = posed.choices(assigned); choices[layer] == nil ||
				slices.Compare(assigned, choices[layer]) < 0 {
				choices[layer], used = assigned, option.n
			}
		}
		left -= used
	}
	search.offer(choices)
	return nil
}

// bar is prices without the main term, for which what budgets take together is least: a part of an assignment after
// which that exceeds what they allow leads nowhere. Where the stages before one ended with their optimum, which is then
// a budget, little else is left.
type bar struct {
	*duals
	by    []*tierLayer
	after []int64 // least of the layers from there on

	tried, ruled int // parts of assignments, and those ruled out
}

// pays reports whether a bar rules out enough to go on with it.
func (b *bar) pays() bool { return b.tried < barTries || b.ruled > b.tried/barShare }

// bars finds one for every budget of all layers: the prices of the others when it is minimised. possible is false where
// the least of one is more than it allows.
func (d *decomposed) bars() (possible bool, err error) {
	search := d.tierSearch
	for i, budget := range search.budgets {
		if budget.layer >= 0 || len(search.budgets) == 1 {
			continue
		}
		other := *search
		other.main, other.budgets, other.farkas = budget.term, slices.Delete(slices.Clone(search.budgets), i, i+1), nil
		other.best, other.choices, other.scale = math.MaxInt64, nil, other.scaled()
		program, err := other.decompose(d.set, other.even())
		if err != nil {
			return false, err
		}
		search.nodes = other.nodes
		if program.least > budget.limit {
			return false, nil
		}
		bar := bar{duals: &duals{mult: slices.Insert(slices.Clone(program.mult), i, other.scale), split: program.split},
			after: make([]int64, len(search.table.Cells)+1)}
		for layer := range search.table.Cells {
			costs, _ := search.combined(layer, bar.duals)
			bar.by = append(bar.by, search.layer(layer, &costs, d.set))
		}
		for layer := len(bar.by) - 1; layer >= 0; layer-- {
			root := bar.by[layer].root()
			if bar.by[layer].relax(root); math.IsInf(root.bound, 1) {
				return false, nil
			}
			bar.after[layer] = bar.after[layer+1] + int64(math.Floor(root.bound))
		}
		d.barred = append(d.barred, bar)
	}
	return true, nil
}

// search goes through layers and experts in order. Layers before are decided, layers after count as relaxed.
// It ends at a number of nodes, where cut says that something was left.
//
// It is depth-first branch and bound, in lexicographic order, so that the first of equally good solutions is found. The
// state is what the decided experts take of every budget, the tiers in use, and the layer's costs with decided experts
// fixed to their columns. A part is bounded by prices: the layers before as they are, its own layer relaxed, the layers
// after at their floors; bars rule out what can keep no budget. All that a step changes is taken back after it.
func (d *decomposed) search(most int64) error {
	search := d.tierSearch
	d.least, d.cut = math.MaxInt64, false
	after := make([]int64, len(d.floor)+1)
	for layer := len(d.floor) - 1; layer >= 0; layer-- {
		after[layer] = after[layer+1] + d.floor[layer]
	}
	// rest is the least of each budget that the experts from there on take.
	cols := append([]int{0}, d.set...)
	lowest := func(limit *budget, layer, expert int) int64 {
		low := int64(math.MaxInt64)
		for _, choice := range cols {
			low = min(low, limit.part(search, layer, expert, choice))
		}
		return low
	}
	rest := make([][][]int64, len(search.budgets))
	for i := range search.budgets {
		limit := &search.budgets[i]
		rest[i] = make([][]int64, len(search.table.Cells))
		var sum int64
		for layer := len(search.table.Cells) - 1; layer >= 0; layer-- {
			if limit.layer >= 0 {
				sum = 0
			}
			rest[i][layer] = make([]int64, len(search.table.Cells[layer])+1)
			rest[i][layer][len(search.table.Cells[layer])] = sum
			for expert := len(search.table.Cells[layer]) - 1; expert >= 0; expert-- {
				sum += lowest(limit, layer, expert)
				rest[i][layer][expert] = sum
			}
		}
	}
	by := make([]*tierLayer, len(search.table.Cells))
	for layer := range by {
		costs, _ := search.combined(layer, d.duals)
		by[layer] = search.layer(layer, &costs, d.set)
	}
	twins := search.twins()
	tiers, inUse := make([]int, len(search.table.Groups)+1), 0
	chosen := make([][]int, len(search.table.Cells))
	used := make([]int64, len(search.budgets))
	// found: one as good as best, in this order. As good as another chunk length is not good enough.
	found := search.choices == nil && search.best < math.MaxInt64
	var visit func(layer, expert int, before int64, passed []int64) error
	visit = func(layer, expert int, before int64, passed []int64) error {
		if expert == len(search.table.Cells[layer]) { // the layer's groups are known
			cost := search.table.Layer(layer, chosen[layer])
			passed = slices.Clone(passed)
			for i := range passed {
				for choice := range search.budgets {
					if limit := &search.budgets[choice]; limit.layer < 0 || limit.layer == layer {
						passed[i] += d.barred[i].mult[choice] * limit.of(cost)
					}
				}
			}
			before += search.scale * search.main.of(cost)
			extra := make([]int64, len(used))
			for i := range used {
				limit := &search.budgets[i]
				if limit.layer >= 0 && limit.layer != layer {
					continue
				}
				extra[i] = limit.of(cost)
				before += d.mult[i] * extra[i]
				for expert, choice := range chosen[layer] {
					extra[i] -= limit.part(search, layer, expert, choice)
				}
				if used[i]+extra[i]+rest[i][layer][expert] > limit.limit {
					return nil
				}
			}
			if layer+1 == len(chosen) {
				if previous := search.best; search.offer(chosen) || search.choices != nil && search.best == previous &&
					slices.EqualFunc(chosen, search.choices, slices.Equal[[]int]) {
					found = true
				}
				return nil
			}
			saved := slices.Clone(used)
			for i := range used {
				if used[i] += extra[i]; search.budgets[i].layer == layer {
					used[i] = 0
				}
			}
			err := visit(layer+1, 0, before, passed)
			copy(used, saved)
			return err
		}
		if expert == 0 {
			chosen[layer] = make([]int, len(search.table.Cells[layer]))
		}
		posed := by[layer]
		costs := posed.cost[expert]
		for j, choice := range cols {
			ok := twins[layer][expert] < 0 || choice >= chosen[layer][twins[layer][expert]]
			if choice > 0 && tiers[choice] == 0 && inUse == search.tiers.MaxTiers {
				ok = false
			}
			for i := range used {
				if b := &search.budgets[i]; (b.layer < 0 || b.layer == layer) &&
					used[i]+b.part(search, layer, expert, choice)+rest[i][layer][expert+1] > b.limit {
					ok = false
				}
			}
			if !ok {
				continue
			}
			posed.cost[expert] = alone(costs, j)
			root := posed.root()
			posed.relax(root)
			bound := int64(math.MaxInt64)
			if !math.IsInf(root.bound, 1) {
				bound = search.dual(before+int64(math.Floor(root.bound))+after[layer+1], d.duals)
			}
			open := bound < search.best || bound == search.best && !found
			own := make([][]int64, len(d.barred))
			for i := range d.barred {
				barred := d.barred[i].by[layer]
				own[i] = barred.cost[expert]
				barred.cost[expert] = alone(own[i], j)
				if !open || !d.barred[i].pays() {
					continue
				}
				root := barred.root()
				barred.relax(root)
				open = !math.IsInf(root.bound, 1)
				if open {
					sum := passed[i] + int64(math.Floor(root.bound)) + d.barred[i].after[layer+1]
					open = search.dual(sum, d.barred[i].duals) < math.MaxInt64
				}
				if d.barred[i].tried++; !open {
					d.barred[i].ruled++
				}
			}
			back := func() {
				posed.cost[expert] = costs
				for i := range own {
					d.barred[i].by[layer].cost[expert] = own[i]
				}
			}
			if !open {
				back()
				continue
			}
			if search.nodes >= most {
				d.least, d.cut = min(d.least, bound), true
				back()
				continue
			}
			if search.nodes%256 == 0 {
				if err := search.ctx.Err(); err != nil {
					return err
				}
			}
			chosen[layer][expert] = choice
			if tiers[choice]++; choice > 0 && tiers[choice] == 1 {
				inUse++
			}
			for i := range used {
				if limit := &search.budgets[i]; limit.layer < 0 || limit.layer == layer {
					used[i] += limit.part(search, layer, expert, choice)
				}
			}
			err := visit(layer, expert+1, before, passed)
			if tiers[choice]--; choice > 0 && tiers[choice] == 0 {
				inUse--
			}
			for i := range used {
				if limit := &search.budgets[i]; limit.layer < 0 || limit.layer == layer {
					used[i] -= limit.part(search, layer, expert, choice)
				}
			}
			back()
			if err != nil {
				return err
			}
		}
		return nil
	}
	return visit(0, 0, 0, make([]int64, len(d.barred)))
}

// alone is what an expert's columns cost where one is given.
func alone(costs []int64, column int) []int64 {
	out := slices.Repeat([]int64{blocked}, len(costs))
	out[column] = costs[column]
	return out
}

// twins are for every expert the one before it whose choices cost the same, -1: none. Of equally good solutions the
// first gives the earlier one the smaller choice.
func (s *tierSearch) twins() [][]int {
	out := make([][]int, len(s.table.Cells))
	for layer, cells := range s.table.Cells {
		out[layer] = make([]int, len(cells))
		for expert := range cells {
			out[layer][expert] = -1
			for i := expert - 1; i >= 0 && out[layer][expert] < 0; i-- {
				if slices.Equal(cells[i], cells[expert]) {
					out[layer][expert] = i
				}
			}
		}
	}
	return out
}
