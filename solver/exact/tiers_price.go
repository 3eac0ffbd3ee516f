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

// constrained searches under budgets. Their prices, the weights of both processors in every layer's time, and so the best bound that
// prices give, are the solution of a linear program whose columns are assignments of single layers (Dantzig and Wolfe
// 1960): layers take a mixture of columns, the mixtures keep the budgets together, and the longer time of a layer is at least either processor's in its
// mixture. Its row prices price a layer; the assignment that the exchange argument finds under them is a column that improves the program, or
// there is none, and then the program's value is the bound. Any prices bound from below:
//
//	sum over layers of min over assignments of (main + sum of price_b * budget_b)  -  sum of price_b * limit_b.
//
// Solutions are one column for each layer, exchanged one by one and in pairs while that improves and keeps what has to be kept.
func (s *tierSearch) constrained(list []candidate, relaxed int64, complete bool) error {
	s.bound = math.MaxInt64
	if x := s.p.Start; x != nil && x.Chunk == s.chunk {
		s.offer(x.Choices)
	}
	all := make([]int, len(s.t.Groups))
	for k := range all {
		all[k] = k + 1
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
	d := root.duals
	relaxed = max(relaxed, root.least)
	var sets []*openSet
	for _, c := range list {
		if !complete || len(all) <= s.p.MaxTiers {
			sets = append(sets, &openSet{set: all, bound: relaxed, x: root})
			break
		}
		sets = append(sets, &openSet{set: c.set, needed: c.set, bound: max(c.bound, relaxed)})
	}
	if len(sets) > 1 {
		// The search begins where the mixtures are.
		some := root.used(nil)[:s.p.MaxTiers]
		slices.Sort(some)
		for _, c := range sets {
			if !slices.Equal(c.set, some) {
				continue
			}
			if c.x, err = s.decompose(some, d); err != nil {
				return err
			}
			c.x.compose()
			c.x.improve()
			d, c.bound = c.x.duals, max(c.bound, c.x.least)
		}
	}
	tried := map[string]bool{}
	var ended []*openSet
	// The set with the least bound goes on: what prices of another say of it, which is often enough, then prices of its own, then every
	// layer's own search under them, then the search.
	var linear func(set []int) int64
	var by *duals
	for first := true; ; first = false {
		sort.SliceStable(sets, func(i, j int) bool { return sets[i].bound < sets[j].bound })
		if len(sets) == 0 || sets[0].bound > s.best || s.nodes >= s.limit && !first {
			break
		}
		if !s.small() && !s.regional() && s.choices != nil && float64(s.best-sets[0].bound) <= tierEnough*float64(s.best) && s.bound > sets[0].bound {
			break
		}
		c := sets[0]
		if c.x == nil && c.by != d {
			if by != d {
				linear, by = s.linear(d), d
			}
			if v := linear(c.set); v > c.bound && c.linear != d {
				c.bound, c.linear = v, d
				continue
			}
			bound, err := s.priced(c.set, d)
			if err != nil {
				return err
			}
			for i := len(s.farkas) - 1; i >= 0 && i >= len(s.farkas)-farkasTried && bound <= s.best; i-- {
				if bound, err = s.priced(c.set, s.farkas[i]); err != nil {
					return err
				}
			}
			c.by, c.bound = d, max(c.bound, bound)
			continue
		}
		switch c.steps {
		case 0:
			best := s.best
			if c.x == nil {
				x, err := s.decompose(c.set, d)
				if err != nil {
					return err
				}
				x.compose()
				c.x, c.bound = x, max(c.bound, x.least)
			}
			if s.best < best {
				d = c.x.duals
			}
			if len(c.set) <= s.p.MaxTiers {
				break
			}
			// Solutions come from as few tiers as may be.
			some := c.x.used(nil)[:s.p.MaxTiers]
			slices.Sort(some)
			if key := fmt.Sprint(some); c.bound <= s.best && !tried[key] {
				tried[key] = true
				best := s.best
				y, err := s.decompose(some, c.x.duals)
				if err != nil {
					return err
				}
				y.compose()
				if s.best < best {
					d = y.duals
				}
			}
		case 1:
			if len(c.set) > s.p.MaxTiers && c.x.tiers > s.p.MaxTiers {
				sets = append(sets[1:], c.divide(s.p.MaxTiers)...)
				continue
			}
			best := s.best
			if err := c.x.raise(); err != nil {
				return err
			}
			if c.bound = max(c.bound, c.x.least); c.bound < s.best {
				c.x.improve()
			}
			if s.best < best {
				d = c.x.duals
			}
		case 2:
			if err := c.x.finish(); err != nil {
				return err
			}
			c.bound = max(c.bound, c.x.least)
		default: // as good as best, and the first in order was looked for; or its part of the nodes is used
			if sets = sets[1:]; c.x.cut {
				ended = append(ended, c)
			} else {
				s.bound = min(s.bound, c.bound)
			}
		}
		c.steps++
	}
	// What nodes are left is for sets whose part was too small.
	sort.SliceStable(ended, func(i, j int) bool { return ended[i].bound < ended[j].bound })
	for _, c := range ended {
		if c.bound <= s.best && s.nodes < s.limit {
			if err := c.x.search(s.limit); err != nil {
				return err
			}
			c.bound = max(c.bound, c.x.least)
		}
	}
	for _, c := range slices.Concat(sets, ended) {
		s.bound = min(s.bound, c.bound)
	}
	s.bound = min(s.bound, s.best)
	return nil
}

// openSet is a set of tiers with those of them that surely are in use.
type openSet struct {
	set, needed []int
	bound       int64
	x           *decomposed
	steps       int    // done for it
	by, linear  *duals // whose bounds it has
}

// divide makes two of a set: without the tier that its prices use most, of those not needed yet, and with it.
func (c *openSet) divide(most int) []*openSet {
	k := c.x.used(c.needed)[len(c.needed)]
	without := &openSet{set: slices.DeleteFunc(slices.Clone(c.set), func(j int) bool { return j == k }), needed: c.needed, bound: c.bound}
	with := &openSet{set: c.set, needed: append(slices.Clone(c.needed), k), bound: c.bound, x: c.x, steps: 1}
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
func (s *tierSearch) priced(set []int, d *duals) (int64, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	var sum int64
	for l := range s.t.Cells {
		r, _ := s.combined(l, d)
		y := s.layer(l, &r, set)
		b := y.root()
		y.relax(b)
		if math.IsInf(b.bound, 1) {
			return math.MaxInt64, nil
		}
		sum += int64(math.Floor(b.bound))
	}
	return s.dual(sum, d), nil
}

// dual is the bound that a sum over layers gives. What float64 rounds in sums with multipliers is far below a tenth of the main term's unit.
// Without the main term a sum above what budgets allow says that they cannot be kept (Farkas).
func (s *tierSearch) dual(sum int64, d *duals) int64 {
	v, size := float64(sum), math.Abs(float64(sum))
	for i, b := range s.budgets {
		x := float64(d.mult[i]) * float64(b.limit)
		v -= x
		size += x
	}
	if d.main == 0 {
		if v > 1e-9*size+1 {
			return math.MaxInt64
		}
		return 0
	}
	return max(0, int64(math.Ceil(v/float64(s.scale)-0.1)))
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
func (d *decomposed) mix(m *master, from [][2]int) {
	d.mixed = make([][]share, len(d.pool))
	for i, j := range m.basis {
		if j >= 0 && from[j][0] >= 0 && m.x[i] >= 1e-6 {
			l := from[j][0]
			d.mixed[l] = append(d.mixed[l], share{from[j][1], m.x[i]})
		}
	}
	for l := range d.mixed {
		sort.SliceStable(d.mixed[l], func(i, j int) bool { return d.mixed[l][i].part > d.mixed[l][j].part })
	}
}

// add takes a column, unless it is there.
func (d *decomposed) add(l int, choices []int) bool {
	key := make([]byte, len(choices))
	for e, k := range choices {
		key[e] = byte(k)
	}
	if d.known[l][string(key)] || len(d.pool[l]) >= columnsKept {
		return false
	}
	d.known[l][string(key)] = true
	d.pool[l] = append(d.pool[l], column{choices, d.t.Layer(l, choices)})
	return true
}

// decompose finds prices by columns.
func (s *tierSearch) decompose(set []int, start *duals) (*decomposed, error) {
	layers := len(s.t.Cells)
	d := &decomposed{tierSearch: s, set: set, duals: start, bound: -1, pool: make([][]column, layers), known: make([]map[string]bool, layers)}
	for l := range d.known {
		d.known[l] = map[string]bool{}
		d.add(l, make([]int, len(s.t.Cells[l])))
		if s.choices != nil && !slices.ContainsFunc(s.choices[l], func(k int) bool { return k > 0 && !slices.Contains(set, k) }) {
			d.add(l, slices.Clone(s.choices[l]))
		}
	}
	longer := s.main.longer
	for i := range s.budgets {
		longer = longer || s.budgets[i].longer
	}
	// Units in which numbers are about one.
	per := func(x *term) float64 { return max(1, float64(s.largest(x))/float64(layers)) }
	time := term{prices{npu: 1, cpu: 1, sync: 1}, true}
	unitMain, unitTime := per(&s.main), per(&time)
	unit := make([]float64, len(s.budgets))
	m := &master{}
	one, npu, cpu, row := make([]int32, layers), make([]int32, layers), make([]int32, layers), make([]int32, len(s.budgets))
	for l := range layers {
		one[l] = m.row(1, true)
		if longer {
			npu[l], cpu[l] = m.row(0, false), m.row(0, false)
		}
	}
	for i := range s.budgets {
		unit[i] = per(&s.budgets[i].term)
		row[i] = m.row(float64(s.budgets[i].limit)/unit[i], false)
	}
	for l := range layers {
		if !longer {
			break
		}
		rows, coef, cost := []int32{npu[l], cpu[l]}, []float64{-1, -1}, 0.0
		if s.main.longer {
			cost = unitTime / unitMain
		}
		for i := range s.budgets {
			if s.budgets[i].longer {
				rows, coef = append(rows, row[i]), append(coef, unitTime/unit[i])
			}
		}
		m.column(cost, rows, coef)
	}
	taken := make([]int, layers) // columns that m has
	var from [][2]int            // layer and number in the pool, by column
	for len(from) < len(m.cost) {
		from = append(from, [2]int{-1, 0})
	}
	feed := func() {
		for l := range layers {
			for k, c := range d.pool[l][taken[l]:] {
				from = append(from, [2]int{l, taken[l] + k})
				rows, coef := []int32{one[l]}, []float64{1}
				put := func(r int32, v float64) {
					if v != 0 {
						rows, coef = append(rows, r), append(coef, v)
					}
				}
				amount := func(x *term) int64 {
					if x.longer {
						return c.cost.SyncNS
					}
					return x.of(c.cost)
				}
				if longer {
					put(npu[l], float64(c.cost.NPUNS)/unitTime)
					put(cpu[l], float64(c.cost.CPUNS)/unitTime)
				}
				for i := range s.budgets {
					if b := &s.budgets[i]; b.layer < 0 || b.layer == l {
						put(row[i], float64(amount(&b.term))/unit[i])
					}
				}
				m.column(float64(amount(&s.main))/unitMain, rows, coef)
			}
			taken[l] = len(d.pool[l])
		}
	}
	// priced evaluates prices, and takes the columns that they name.
	priced := func(x *duals) (grown bool, err error) {
		if err := s.ctx.Err(); err != nil {
			return false, err
		}
		var sum int64
		floor := make([]int64, layers)
		choices := make([][]int, layers)
		for l := range layers {
			r, _ := s.combined(l, x)
			y := s.layer(l, &r, set)
			y.most = priceNodes
			b := y.root()
			y.relax(b)
			_, least, at := y.solve(b)
			if at == nil {
				return false, nil
			}
			floor[l] = least
			sum += least
			choices[l] = y.choices(at)
			grown = d.add(l, choices[l]) || grown
		}
		s.offer(choices)
		if bound := s.dual(sum, x); bound == math.MaxInt64 {
			d.bound, s.farkas = bound, append(s.farkas, x)
		} else if bound > d.bound && x.main > 0 {
			d.bound, d.duals, d.floor = bound, x, floor
		}
		return grown, nil
	}
	if _, err := priced(start); err != nil {
		return nil, err
	}
	m.first = true
	for round := range priceRounds {
		if d.bound > s.best || s.nodes >= s.limit && round > 4 {
			break
		}
		feed()
		m.solve()
		if m.first && m.objective() < masterKept {
			m.first = false
			m.solve()
		}
		value := m.objective() * unitMain
		if !m.first && value-float64(d.bound) <= priceEnough*value {
			break
		}
		x := s.even()
		if m.first {
			x.main = 0
		}
		s.rowPrices(x, func(i int) float64 { return -m.y[row[i]] * unitMain / unit[i] })
		for l := range layers {
			if a, b := max(0, -m.y[npu[l]]), max(0, -m.y[cpu[l]]); longer && a+b > 0 {
				x.split[l] = a / (a + b)
			}
		}
		// Prices of few columns swing; half way from the best ones they converge sooner.
		if round > 0 && round < priceRounds/2 && !m.first {
			half := s.even()
			for i := range half.mult {
				half.mult[i] = (x.mult[i] + d.mult[i]) / 2
			}
			for l := range half.split {
				half.split[l] = (x.split[l] + d.split[l]) / 2
			}
			grown, err := priced(half)
			if err != nil {
				return nil, err
			}
			if grown {
				continue
			}
		}
		grown, err := priced(x)
		if err != nil {
			return nil, err
		}
		if !grown {
			break
		}
	}
	d.least = d.bound
	if d.floor == nil {
		d.floor = make([]int64, layers)
	}
	d.usage = make([]float64, len(s.t.Groups)+1)
	d.mix(m, from)
	for l := range d.mixed {
		for _, x := range d.mixed[l] {
			for _, k := range d.pool[l][x.column].choices {
				d.usage[k] += x.part
			}
		}
	}
	for _, v := range d.usage[1:] {
		if v > 0 {
			d.tiers++
		}
	}
	return d, nil
}

// rowPrices makes multipliers of prices in the main term's unit. Where they are too large for products to stay exact all shrink, so that their
// proportions remain; without the main term nothing but proportions counts.
func (s *tierSearch) rowPrices(x *duals, price func(i int) float64) {
	times := float64(s.scale)
	if x.main == 0 {
		times = math.Inf(1)
	}
	for i := range s.budgets {
		if v := price(i); v > 0 {
			times = min(times, float64(1<<56)/float64(max(1, s.budgets[i].most))/v)
		}
	}
	for i := range s.budgets {
		if v := price(i); v > 0 {
			x.mult[i] = int64(v * times)
		}
	}
}

// raise raises the bound by a second program, whose columns are assignments as they are: the longer time itself is in the place of its two
// sides, and the layers' own limits are kept. So no mixture of an assignment for which the NPU takes longer with one for which the CPU does
// is taken for one where they finish together. Prices of the first program divide the sides and price the layers' own limits.
func (d *decomposed) raise() error {
	s := d.tierSearch
	if s.best <= d.bound && s.choices != nil {
		return nil
	}
	var global []int
	for i := range s.budgets {
		if s.budgets[i].layer < 0 {
			global = append(global, i)
		}
	}
	layers := len(s.t.Cells)
	per := func(x *term) float64 { return max(1, float64(s.largest(x))/float64(layers)) }
	unitMain := per(&s.main)
	m := &master{}
	for range layers {
		m.row(1, true)
	}
	unit := make([]float64, len(s.budgets))
	row := make([]int32, len(s.budgets))
	for _, i := range global {
		unit[i] = per(&s.budgets[i].term)
		row[i] = m.row(float64(s.budgets[i].limit)/unit[i], false)
	}
	taken := make([]int, layers)
	var from [][2]int
	feed := func() {
		for l := range layers {
		columns:
			for k, c := range d.pool[l][taken[l]:] {
				rows, coef := []int32{int32(l)}, []float64{1}
				for i := range s.budgets {
					b := &s.budgets[i]
					if b.layer == l && b.of(c.cost) > b.limit {
						continue columns
					}
					if b.layer < 0 {
						if v := b.of(c.cost); v != 0 {
							rows, coef = append(rows, row[i]), append(coef, float64(v)/unit[i])
						}
					}
				}
				m.column(float64(s.main.of(c.cost))/unitMain, rows, coef)
				from = append(from, [2]int{l, taken[l] + k})
			}
			taken[l] = len(d.pool[l])
		}
	}
	priced := func(x *duals, nodes int) (grown, possible bool, err error) {
		var sum int64
		floor := make([]int64, layers)
		next := &duals{main: x.main, mult: x.mult, split: slices.Clone(x.split)}
		for l := range layers {
			if err := s.ctx.Err(); err != nil {
				return false, false, err
			}
			w := s.weigher(l, x, d.set, true)
			if s.best < math.MaxInt64 {
				w.enough = int64(weighEnough * float64(s.best) * float64(s.scale) / float64(layers))
			}
			most := nodes
			if s.nodes >= s.limit {
				most = 0
			}
			_, least, best := w.solve(w.root(), most)
			if best == nil && least >= blocked {
				return false, false, nil // a layer cannot keep its limits
			}
			for i := range w.sides {
				if b := w.sides[i]; b != nil {
					grown = d.add(l, w.y.choices(b.x)) || grown
					if c := w.sides[1-i]; c != nil && i == 0 && len(d.pool[l]) < columnsKept/2 {
						d.between(l, w.y.choices(b.x), w.y.choices(c.x))
					}
				}
			}
			if best != nil {
				grown = d.add(l, w.y.choices(best)) || grown
			}
			floor[l] = least + w.offset // the value has no prices of the layer's own budgets
			next.split[l] = w.split
			sum += floor[l]
		}
		if bound := s.dual(sum, x); bound > d.bound {
			d.bound, d.duals, d.floor = bound, next, floor
		}
		return grown, true, nil
	}
	if s.choices != nil {
		for l := range layers {
			if !slices.ContainsFunc(s.choices[l], func(k int) bool { return k > 0 && !slices.Contains(d.set, k) }) {
				d.add(l, slices.Clone(s.choices[l]))
			}
		}
	}
	m.first = true
	most := min(boundedNodes, boundedWork/len(s.t.Cells[0]))
	best := s.best
	for round := range raiseRounds {
		if d.bound > s.best || s.nodes >= s.limit && round > 0 {
			break
		}
		x := d.duals
		if round > 0 {
			feed()
			m.solve()
			if m.first && m.objective() < masterKept {
				m.first = false
				m.solve()
			}
			value := m.objective() * unitMain
			if !m.first && value-float64(d.bound) <= weighEnough*value {
				break
			}
			y := &duals{main: s.scale, mult: make([]int64, len(s.budgets)), split: d.split}
			s.rowPrices(y, func(i int) float64 {
				if s.budgets[i].layer >= 0 {
					return float64(d.mult[i]) / float64(s.scale)
				}
				return -m.y[row[i]] * unitMain / unit[i]
			})
			for _, i := range global {
				if !m.first {
					y.mult[i] = (y.mult[i] + d.mult[i]) / 2
				}
			}
			x = y
		}
		grown, possible, err := priced(x, most)
		if err != nil {
			return err
		}
		if !possible {
			d.least = math.MaxInt64
			return nil
		}
		d.compose()
		if s.best < best {
			best = s.best
		}
		if !grown && round > 0 {
			break
		}
	}
	d.least = max(d.least, d.bound)
	if d.bound <= s.best {
		if feed(); m.first {
			m.solve()
			m.first = false
		}
		m.solve()
		d.mix(m, from)
	}
	return nil
}

// finish looks for what is better than the best, where it can.
func (d *decomposed) finish() error {
	s := d.tierSearch
	switch {
	case s.regional():
		return d.region()
	case d.small():
		if possible, err := d.bars(); err != nil || !possible {
			d.least = math.MaxInt64
			return err
		}
		return d.search(min(s.limit, s.nodes+s.limit/searchShare)) // other sets want their part
	}
	return nil
}

// regional reports whether nothing but the region couples layers, and no processors are weighed.
func (s *tierSearch) regional() bool {
	return len(s.budgets) == 1 && s.p.RegionBytes > 0 && s.budgets[0].prices == prices{experts: 1} && !s.main.longer
}

// small reports whether the depth-first search has a chance.
func (s *tierSearch) small() bool {
	n := 0
	for l := range s.t.Cells {
		n += len(s.t.Cells[l])
	}
	return n <= searchCells
}

// between takes assignments on the way from one to another, expert by expert.
func (d *decomposed) between(l int, a, b []int) {
	x := slices.Clone(a)
	var differ []int
	for e := range a {
		if a[e] != b[e] {
			differ = append(differ, e)
		}
	}
	for i, e := range differ {
		x[e] = b[e]
		if i*sharePairs/len(differ) != (i+1)*sharePairs/len(differ) && len(d.pool[l]) < columnsKept {
			d.add(l, slices.Clone(x))
		}
	}
}

// compose chooses one column for each layer.
func (d *decomposed) compose() {
	s := d.tierSearch
	layers := len(d.pool)
	type entry struct {
		main   int64
		amount []int64 // of the budgets of all layers
		value  float64 // by the prices
		column int
	}
	var global []int
	for i := range s.budgets {
		if s.budgets[i].layer < 0 {
			global = append(global, i)
		}
	}
	lists := make([][]entry, layers)
	for l := range lists {
		for k := range d.pool[l] {
			c := &d.pool[l][k]
			ok := true
			for i := range s.budgets {
				if b := &s.budgets[i]; b.layer == l && b.of(c.cost) > b.limit {
					ok = false
				}
			}
			if !ok {
				continue
			}
			e := entry{main: s.main.of(c.cost), column: k}
			e.value = float64(s.scale) * float64(e.main)
			for _, i := range global {
				e.amount = append(e.amount, s.budgets[i].of(c.cost))
				e.value += float64(float64(d.mult[i]) * float64(e.amount[len(e.amount)-1]))
			}
			lists[l] = append(lists[l], e)
		}
		if len(lists[l]) == 0 {
			return
		}
		sort.SliceStable(lists[l], func(i, j int) bool { return lists[l][i].value < lists[l][j].value })
	}
	pick := make([]int, layers)
	total := make([]int64, len(global))
	unit := make([]float64, len(global))
	for i, b := range global {
		unit[i] = max(1, float64(s.budgets[b].limit))
		for l := range lists {
			total[i] += lists[l][0].amount[i]
		}
	}
	// over is how far budgets are exceeded after moves of layers.
	over := func(l, a, m, b int) (sum float64) {
		for i, g := range global {
			v := total[i] + lists[l][a].amount[i] - lists[l][pick[l]].amount[i]
			if m >= 0 {
				v += lists[m][b].amount[i] - lists[m][pick[m]].amount[i]
			}
			if v > s.budgets[g].limit {
				sum += float64(v-s.budgets[g].limit) / unit[i]
			}
		}
		return sum
	}
	move := func(l, a int) {
		for i := range total {
			total[i] += lists[l][a].amount[i] - lists[l][pick[l]].amount[i]
		}
		pick[l] = a
	}
	now := over(0, 0, -1, 0)
	for steps := 0; now > 0 && steps < 20*layers; steps++ {
		best, at, to := math.Inf(1), -1, 0
		for l := range lists {
			for a := range lists[l] {
				if a == pick[l] {
					continue
				}
				v := over(l, a, -1, 0)
				if v >= now {
					continue
				}
				rate := (lists[l][a].value - lists[l][pick[l]].value + 1) / (now - v)
				if v == 0 { // the last step need not be large
					rate = min(rate, float64(lists[l][a].main-lists[l][pick[l]].main+1)*float64(s.scale)/now)
				}
				if rate < best {
					best, at, to = rate, l, a
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
		for l := range lists {
			for a := range lists[l] {
				if v := lists[l][a].main - lists[l][pick[l]].main; v < gain && over(l, a, -1, 0) == 0 {
					gain, l1, a1 = v, l, a
				}
			}
		}
		if l1 < 0 {
			for l := range lists {
				for a := range min(len(lists[l]), swapColumns) {
					if a == pick[l] {
						continue
					}
					for m := range l {
						for b := range min(len(lists[m]), swapColumns) {
							v := lists[l][a].main - lists[l][pick[l]].main + lists[m][b].main - lists[m][pick[m]].main
							if v < gain && over(l, a, m, b) == 0 {
								gain, l1, a1, l2, a2 = v, l, a, m, b
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
	for l := range out {
		out[l] = d.pool[l][lists[l][pick[l]].column].choices
	}
	s.offer(out)
}

// largest is the most of a term that choices take.
func (s *tierSearch) largest(x *term) (sum int64) {
	for l := range s.t.Cells {
		var all, each int64
		experts := len(s.t.Cells[l])
		for k := range s.t.Groups {
			for n := 1; n < len(s.t.Groups[k].NS) && n <= experts; n++ {
				v := x.group(&s.t.Groups[k], n)
				all, each = max(all, v), max(each, (v+int64(n)-1)/int64(n))
			}
		}
		sum += x.sync*s.t.SyncNS + min(all*int64(len(s.t.Groups)), each*int64(experts))
		for e := range s.t.Cells[l] {
			var cell int64
			for k := range s.t.Cells[l][e] {
				cell = max(cell, x.cell(&s.t.Cells[l][e][k], k))
			}
			sum += cell
		}
	}
	return sum
}

// offer takes choices that are better, or as good and first.
func (s *tierSearch) offer(choices [][]int) bool {
	if choices == nil || s.t.Broken(choices) != "" {
		return false
	}
	sum := s.main.of(s.t.Total(choices))
	if sum < s.best || sum == s.best && s.choices != nil && less(choices, s.choices) {
		s.best = sum
		s.choices = make([][]int, len(choices))
		for l := range choices {
			s.choices[l] = slices.Clone(choices[l])
		}
		return true
	}
	return false
}

// part is what one expert's choice surely takes of a budget.
func (b *budget) part(s *tierSearch, l, e, k int) int64 {
	if b.longer {
		return 0
	}
	return b.cell(&s.t.Cells[l][e][k], k)
}

// region is the search where nothing but the region couples layers: how many experts of each layer are on the NPU is decided by dynamic
// programming over layers, from the optimum of each layer for every number that the dual bound leaves possible. The
// relaxed cost of a layer is convex in that number from one on, so those are neighbours.
func (d *decomposed) region() error {
	s, most, scale := d.tierSearch, int(d.budgets[0].limit), float64(d.scale)
	type option struct {
		n            int // on the NPU
		value, least int64
		box          *box
		x            []int
	}
	slack := math.Inf(1) // scaled: how much dearer than its relaxation a layer may be
	if s.best < math.MaxInt64 {
		slack = float64(s.best)*scale + float64(d.mult[0])*float64(most) + 1
		for _, v := range d.floor {
			slack -= float64(v)
		}
	}
	free := s.main.prices
	layers, options := make([]*tierLayer, len(d.floor)), make([][]option, len(d.floor))
	for l := range d.floor {
		r, _ := s.combined(l, d.duals)
		z := s.layer(l, &r, d.set)
		dual := z.root()
		z.relax(dual)
		y := s.layer(l, &free, d.set)
		layers[l] = y
		experts := len(y.w)
		from := max(1, min(experts-dual.n[0], most))
		visit := func(b *box, n int) (red float64) { // how much dearer than the dual's relaxation, scaled
			b.lo[0], b.hi[0] = experts-n, experts-n
			y.relax(b)
			red = float64(b.least())*scale + float64(d.mult[0])*float64(n) - dual.bound
			if math.IsInf(b.bound, 1) || red > slack+0.2*scale {
				return red
			}
			y.nodes = 0
			value, least, x := y.solve(b)
			options[l] = append(options[l], option{n, value, least, b, x})
			return red
		}
		copied := func(b *box) *box {
			return &box{lo: slices.Clone(b.lo), hi: slices.Clone(b.hi), x: slices.Clone(b.x), n: slices.Clone(b.n)}
		}
		visit(copied(dual), 0) // without the hand-over, and so apart
		for _, dir := range []int{1, -1} {
			b, before := dual, math.Inf(1)
			n := from
			if dir < 0 {
				n--
			}
			for ; n >= 1 && n <= min(experts, most); n += dir {
				if err := s.ctx.Err(); err != nil {
					return err
				}
				b = copied(b)
				red := visit(b, n)
				if math.IsInf(b.bound, 1) || red > slack+0.2*scale && red > before {
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
		for l := len(layers) - 1; l >= 0; l-- {
			out[l] = make([]int64, most+1)
			for n := range out[l] {
				out[l][n] = blocked
				for i := range options[l] {
					if o := &options[l][i]; o.n <= n && out[l+1][n-o.n] < blocked {
						out[l][n] = min(out[l][n], cost(o)+out[l+1][n-o.n])
					}
				}
			}
		}
		return out
	}
	best := table(func(o *option) int64 { return o.value })
	if d.least = table(func(o *option) int64 { return o.least })[0][most]; d.least >= blocked {
		d.least = math.MaxInt64
	}
	if best[0][most] > s.best {
		return nil
	}
	left := most
	choices := make([][]int, len(layers))
	for l, y := range layers {
		used := 0
		for i := range options[l] {
			o := &options[l][i]
			if o.n > left || o.value+best[l+1][left-o.n] != best[l][left] {
				continue
			}
			x := y.first(o.x, o.box)
			if x == nil {
				x = o.x
			}
			if x = y.choices(x); choices[l] == nil || slices.Compare(x, choices[l]) < 0 {
				choices[l], used = x, o.n
			}
		}
		left -= used
	}
	s.offer(choices)
	return nil
}

// bar is prices without the main term, for which what budgets take together is least: a part of an assignment after which that exceeds what they allow
// leads nowhere. Where the stages before one ended with their optimum, which is then a budget, little else is left.
type bar struct {
	*duals
	by    []*tierLayer
	after []int64 // least of the layers from there on

	tried, ruled int // parts of assignments, and those ruled out
}

// pays reports whether a bar rules out enough to go on with it.
func (b *bar) pays() bool { return b.tried < barTries || b.ruled > b.tried/barShare }

// bars finds one for every budget of all layers: the prices of the others when it is minimised. possible is false where the least of one is more than it
// allows.
func (d *decomposed) bars() (possible bool, err error) {
	s := d.tierSearch
	for i, b := range s.budgets {
		if b.layer >= 0 || len(s.budgets) == 1 {
			continue
		}
		other := *s
		other.main, other.budgets, other.farkas = b.term, slices.Delete(slices.Clone(s.budgets), i, i+1), nil
		other.best, other.choices, other.scale = math.MaxInt64, nil, other.scaled()
		x, err := other.decompose(d.set, other.even())
		if err != nil {
			return false, err
		}
		s.nodes = other.nodes
		if x.least > b.limit {
			return false, nil
		}
		y := bar{duals: &duals{mult: slices.Insert(slices.Clone(x.mult), i, other.scale), split: x.split}, after: make([]int64, len(s.t.Cells)+1)}
		for l := range s.t.Cells {
			r, _ := s.combined(l, y.duals)
			y.by = append(y.by, s.layer(l, &r, d.set))
		}
		for l := len(y.by) - 1; l >= 0; l-- {
			b := y.by[l].root()
			if y.by[l].relax(b); math.IsInf(b.bound, 1) {
				return false, nil
			}
			y.after[l] = y.after[l+1] + int64(math.Floor(b.bound))
		}
		d.barred = append(d.barred, y)
	}
	return true, nil
}

// search goes through layers and experts in order. Layers before are decided, layers after count as relaxed.
// It ends at a number of nodes, where cut says that something was left.
func (d *decomposed) search(most int64) error {
	s := d.tierSearch
	d.least, d.cut = math.MaxInt64, false
	after := make([]int64, len(d.floor)+1)
	for l := len(d.floor) - 1; l >= 0; l-- {
		after[l] = after[l+1] + d.floor[l]
	}
	// rest is the least of each budget that the experts from there on take.
	cols := append([]int{0}, d.set...)
	lowest := func(b *budget, l, e int) int64 {
		low := int64(math.MaxInt64)
		for _, k := range cols {
			low = min(low, b.part(s, l, e, k))
		}
		return low
	}
	rest := make([][][]int64, len(s.budgets))
	for i := range s.budgets {
		b := &s.budgets[i]
		rest[i] = make([][]int64, len(s.t.Cells))
		var sum int64
		for l := len(s.t.Cells) - 1; l >= 0; l-- {
			if b.layer >= 0 {
				sum = 0
			}
			rest[i][l] = make([]int64, len(s.t.Cells[l])+1)
			rest[i][l][len(s.t.Cells[l])] = sum
			for e := len(s.t.Cells[l]) - 1; e >= 0; e-- {
				sum += lowest(b, l, e)
				rest[i][l][e] = sum
			}
		}
	}
	by := make([]*tierLayer, len(s.t.Cells))
	for l := range by {
		r, _ := s.combined(l, d.duals)
		by[l] = s.layer(l, &r, d.set)
	}
	twins := s.twins()
	tiers, inUse := make([]int, len(s.t.Groups)+1), 0
	x := make([][]int, len(s.t.Cells))
	used := make([]int64, len(s.budgets))
	// found: one as good as best, in this order. As good as another chunk length is not good enough.
	found := s.choices == nil && s.best < math.MaxInt64
	var visit func(l, e int, before int64, passed []int64) error
	visit = func(l, e int, before int64, passed []int64) error {
		if e == len(s.t.Cells[l]) { // the layer's groups are known
			c := s.t.Layer(l, x[l])
			passed = slices.Clone(passed)
			for i := range passed {
				for k := range s.budgets {
					if b := &s.budgets[k]; b.layer < 0 || b.layer == l {
						passed[i] += d.barred[i].mult[k] * b.of(c)
					}
				}
			}
			before += s.scale * s.main.of(c)
			extra := make([]int64, len(used))
			for i := range used {
				b := &s.budgets[i]
				if b.layer >= 0 && b.layer != l {
					continue
				}
				extra[i] = b.of(c)
				before += d.mult[i] * extra[i]
				for e, k := range x[l] {
					extra[i] -= b.part(s, l, e, k)
				}
				if used[i]+extra[i]+rest[i][l][e] > b.limit {
					return nil
				}
			}
			if l+1 == len(x) {
				if v := s.best; s.offer(x) || s.choices != nil && s.best == v && slices.EqualFunc(x, s.choices, slices.Equal[[]int]) {
					found = true
				}
				return nil
			}
			saved := slices.Clone(used)
			for i := range used {
				if used[i] += extra[i]; s.budgets[i].layer == l {
					used[i] = 0
				}
			}
			err := visit(l+1, 0, before, passed)
			copy(used, saved)
			return err
		}
		if e == 0 {
			x[l] = make([]int, len(s.t.Cells[l]))
		}
		y := by[l]
		w := y.w[e]
		for j, k := range cols {
			ok := twins[l][e] < 0 || k >= x[l][twins[l][e]]
			if k > 0 && tiers[k] == 0 && inUse == s.p.MaxTiers {
				ok = false
			}
			for i := range used {
				if b := &s.budgets[i]; (b.layer < 0 || b.layer == l) && used[i]+b.part(s, l, e, k)+rest[i][l][e+1] > b.limit {
					ok = false
				}
			}
			if !ok {
				continue
			}
			y.w[e] = alone(w, j)
			b := y.root()
			y.relax(b)
			bound := int64(math.MaxInt64)
			if !math.IsInf(b.bound, 1) {
				bound = s.dual(before+int64(math.Floor(b.bound))+after[l+1], d.duals)
			}
			open := bound < s.best || bound == s.best && !found
			own := make([][]int64, len(d.barred))
			for i := range d.barred {
				z := d.barred[i].by[l]
				own[i] = z.w[e]
				z.w[e] = alone(own[i], j)
				if !open || !d.barred[i].pays() {
					continue
				}
				b := z.root()
				z.relax(b)
				open = !math.IsInf(b.bound, 1) && s.dual(passed[i]+int64(math.Floor(b.bound))+d.barred[i].after[l+1], d.barred[i].duals) < math.MaxInt64
				if d.barred[i].tried++; !open {
					d.barred[i].ruled++
				}
			}
			back := func() {
				y.w[e] = w
				for i := range own {
					d.barred[i].by[l].w[e] = own[i]
				}
			}
			if !open {
				back()
				continue
			}
			if s.nodes >= most {
				d.least, d.cut = min(d.least, bound), true
				back()
				continue
			}
			if s.nodes%256 == 0 {
				if err := s.ctx.Err(); err != nil {
					return err
				}
			}
			x[l][e] = k
			if tiers[k]++; k > 0 && tiers[k] == 1 {
				inUse++
			}
			for i := range used {
				if b := &s.budgets[i]; b.layer < 0 || b.layer == l {
					used[i] += b.part(s, l, e, k)
				}
			}
			err := visit(l, e+1, before, passed)
			if tiers[k]--; k > 0 && tiers[k] == 0 {
				inUse--
			}
			for i := range used {
				if b := &s.budgets[i]; b.layer < 0 || b.layer == l {
					used[i] -= b.part(s, l, e, k)
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
func alone(w []int64, column int) []int64 {
	out := slices.Repeat([]int64{blocked}, len(w))
	out[column] = w[column]
	return out
}

// twins are for every expert the one before it whose choices cost the same, -1: none. Of equally good solutions the first gives
// the earlier one the smaller choice.
func (s *tierSearch) twins() [][]int {
	out := make([][]int, len(s.t.Cells))
	for l, cells := range s.t.Cells {
		out[l] = make([]int, len(cells))
		for e := range cells {
			out[l][e] = -1
			for i := e - 1; i >= 0 && out[l][e] < 0; i-- {
				if slices.Equal(cells[i], cells[e]) {
					out[l][e] = i
				}
			}
		}
	}
	return out
}
