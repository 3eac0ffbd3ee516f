package exact

import (
	"cmp"
	"math"
	"slices"
)

// This file finds good solutions. For a given set of open assets the best choices are shortest paths, so the heuristics
// search among sets of assets. restrict solves for one set. repair closes assets until the limits are kept. improve
// opens others in exchange. discount starts both from the sets that slightly lower prices suggest. Everything that
// keeps the limits is offered; nothing here affects a bound.

// restrict solves with the assets in open alone. Assets cost nothing then; only the limits on times and energy have
// prices. It returns false when some item has no choice, else the choices are in the relaxation.
func (s *search) restrict(root *treeNode, open []bool) bool {
	prep := s.prep
	plain := &s.plain
	if plain.allowed == nil {
		plain.allowed, plain.state = make([][]int32, len(prep.items)), make([]int8, len(prep.assets))
		plain.mult, plain.lambda = make([]float64, len(prep.rows)), make([]int64, len(prep.links))
	}

	for i, it := range prep.items {
		plain.allowed[i] = plain.allowed[i][:0]
		for _, choice := range root.allowed[i] {
			missing := func(use int32) bool { return !open[it.uses[use].asset] }
			if !slices.ContainsFunc(it.use[choice], missing) {
				plain.allowed[i] = append(plain.allowed[i], choice)
			}
		}
		if len(plain.allowed[i]) == 0 {
			return false
		}
	}

	// The set of open assets decides about the limits over assets; times and energy still need their prices.
	copy(plain.mult[prep.assetRows:], root.mult[prep.assetRows:])
	s.relax.permit(plain.allowed, true)
	s.relax.charge(plain, true)
	if !s.relax.shortest() {
		return false
	}
	s.relax.usage(plain)
	return true
}

// repair is a greedy dual heuristic. It begins with the assets that the relaxation has chosen, and closes one after the
// other until the limits are kept: first the one that loses least for the amount that it frees. It offers the result,
// and reports whether that keeps all limits.
func (s *search) repair(root *treeNode) bool {
	relax := s.relax

	open := slices.Clone(relax.used)
	pinned := make([]bool, len(s.prep.assets))
	if !s.restrict(root, open) {
		return false
	}

	for !relax.fits() {
		copy(open, relax.used)
		// Close one asset at a time. An asset without which some item has no choice is pinned: it stays open.
		asset := s.cheapestToClose(open, pinned)
		if asset < 0 {
			return false
		}
		open[asset] = false
		if !s.restrict(root, open) {
			open[asset], pinned[asset] = true, true
			if !s.restrict(root, open) {
				return false
			}
		}
	}
	return s.offer(relax.choices)
}

// cheapestToClose returns the open asset that loses least for what it frees of the excess over the limits; -1: none.
func (s *search) cheapestToClose(open, pinned []bool) int {
	loss := s.closingLoss()
	least, best := math.Inf(1), -1
	for asset := range s.prep.assets {
		if !open[asset] || pinned[asset] || math.IsInf(loss[asset], 1) {
			continue
		}

		frees := 0.0
		for row, size := range s.prep.assets[asset].size {
			if over := s.relax.taken[row] - s.prep.rows[row].cap; over > 0 {
				frees += float64(min(size, over)) / float64(over)
			}
		}
		if frees > 0 && (loss[asset]+1)/frees < least {
			least, best = (loss[asset]+1)/frees, asset
		}
	}
	return best
}

// closingLoss returns, for each used asset, the sum of what its items would lose without it, each item by itself. It is
// infinite where an item has no choice without the asset.
func (s *search) closingLoss() []float64 {
	loss := make([]float64, len(s.prep.assets))
	for p := range s.prep.parts {
		// Min-marginals of every choice, without a limit: each says what its part costs with that choice.
		s.marginals(p, math.MaxInt64/4, 0, nil)
		part := &s.prep.parts[p]
		for i := part.first; i < part.first+part.items; i++ {
			it, least := s.prep.items[i], s.relax.least[i]

			// For each asset of the present choice: the best choice that names it, against the best that does not.
			for _, use := range it.use[s.relax.choices[i]] {
				with, without := int64(unreachable), int64(unreachable)
				for _, choice := range s.plain.allowed[i] {
					with = min(with, least[choice])
					if !it.has[use][choice] {
						without = min(without, least[choice])
					}
				}
				if without == unreachable {
					loss[it.uses[use].asset] = math.Inf(1)
				} else {
					loss[it.uses[use].asset] += float64(without - with)
				}
			}
		}
	}
	return loss
}

// improve is a local search. It opens assets beside those that the best solution uses, in place of others where they do
// not fit, as long as it gains.
func (s *search) improve(root *treeNode) {
	if s.best == nil {
		return
	}
	// A set that was opened once and repaired gives the same result again.
	tried := map[string]bool{}
	for range improveRounds {
		open := s.opened(s.best)
		if !s.restrict(root, open) {
			return
		}
		s.offer(s.relax.choices)

		groups := s.openingGains(root, open)

		// The best few sets, each opened beside the others; repair closes what no longer fits.
		before := s.value

		for _, group := range groups[:min(len(groups), 8)] {
			with := slices.Clone(open)
			for _, asset := range group.assets {
				with[asset] = true
			}

			key := setKey(with)
			if tried[key] {
				continue
			}
			tried[key] = true
			if s.restrict(root, with) {
				s.repair(root)
			}
			if s.value < before {
				break
			}
		}

		if s.value == before || s.ctx.Err() != nil {
			return
		}
	}
}

// assetGroup is a set of assets that are not open, and what opening it would gain.
type assetGroup struct {
	assets []int32
	gain   int64
	score  float64 // gain by what the assets take of the limits
}

// assetGroups collects groups: one per set of assets that a choice misses, and one per shared asset with what its items
// would open beside it.
type assetGroups struct {
	search  *search
	open    []bool
	list    []assetGroup
	index   map[string]int // by set of assets
	anchors map[int32]int  // by shared asset
}

// openingGains lists the gain of opening each set of closed assets, as far as its items see it one by one. The best
// score comes first.
func (s *search) openingGains(root *treeNode, open []bool) []assetGroup {
	groups := assetGroups{search: s, open: open, index: map[string]int{}, anchors: map[int32]int{}}
	for number := range s.prep.parts {
		s.marginals(number, s.relax.partMin[number], fewStarts, root.allowed)
		part := &s.prep.parts[number]
		for i := part.first; i < part.first+part.items; i++ {
			groups.addItem(i, root.allowed[i])
		}
	}

	// Rank by gain for the part of the limits that opening takes; 1e-3 keeps free assets from dividing by 0.
	for index := range groups.list {
		group := &groups.list[index]
		size := 1e-3
		for _, asset := range group.assets {
			for row, n := range s.prep.assets[asset].size {
				size += float64(n) / float64(max(s.prep.rows[row].cap, 1))
			}
		}
		group.score = float64(group.gain) / size
	}
	slices.SortStableFunc(groups.list, func(x, y assetGroup) int { return cmp.Compare(y.score, x.score) })
	return groups.list
}

// addItem adds the gains of item i: those of each choice that needs closed assets.
func (g *assetGroups) addItem(i int, allowed []int32) {
	relax, it := g.search.relax, g.search.prep.items[i]
	gains := map[int]int64{} // the most by group
	var order []int
	for _, choice := range allowed {
		least := relax.least[i][choice]
		gain := relax.partMin[it.part] - least
		if least == unreachable || gain <= 0 {
			continue
		}

		var missing []int32
		for _, use := range it.use[choice] {
			if asset := it.uses[use].asset; !g.open[asset] {
				missing = append(missing, asset)
			}
		}
		if missing == nil {
			continue
		}

		group := g.groupOf(missing)
		if _, ok := gains[group]; !ok {
			order = append(order, group)
		}
		gains[group] = max(gains[group], gain)
	}

	for _, group := range order {
		g.list[group].gain += gains[group]
	}
	g.addAnchors(order, gains)
}

// groupOf returns the index of the group with exactly these assets.
func (g *assetGroups) groupOf(assets []int32) int {
	key := make([]byte, 0, 16)
	for _, asset := range assets {
		key = append(key, byte(asset), byte(asset>>8), byte(asset>>16))
	}
	at, ok := g.index[string(key)]
	if !ok {
		at = len(g.list)
		g.index[string(key)] = at
		g.list = append(g.list, assetGroup{assets: assets})
	}
	return at
}

// addAnchors adds, for each shared asset in an item's groups, the best group that contains it. So a shared asset has a
// group of its own, which collects what each of its items would open beside it.
func (g *assetGroups) addAnchors(order []int, gains map[int]int64) {
	best := map[int32]int{} // group by asset
	var shared []int32
	for _, group := range order {
		for _, asset := range g.list[group].assets {
			if g.search.prep.assets[asset].links == nil {
				continue
			}
			if known, ok := best[asset]; !ok {
				shared = append(shared, asset)
				best[asset] = group
			} else if gains[group] > gains[known] {
				best[asset] = group
			}
		}
	}

	for _, asset := range shared {
		at, ok := g.anchors[asset]
		if !ok {
			at = len(g.list)
			g.anchors[asset] = at
			g.list = append(g.list, assetGroup{})
		}

		anchor := &g.list[at]
		anchor.gain += gains[best[asset]]
		for _, other := range g.list[best[asset]].assets {
			if !slices.Contains(anchor.assets, other) {
				anchor.assets = append(anchor.assets, other)
			}
		}
	}
}

// setKey returns a set of assets as a key of a map.
func setKey(set []bool) string {
	bits := make([]byte, (len(set)+7)/8)
	for i, in := range set {
		if in {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return string(bits)
}

// opened lists the assets that choices use.
func (s *search) opened(choices []int) []bool {
	open := make([]bool, len(s.prep.assets))
	for i, it := range s.prep.items {
		for _, use := range it.use[choices[i]] {
			open[it.uses[use].asset] = true
		}
	}
	return open
}

// cheapest offers solutions that take little of the limits. Each limit is priced so that all of it costs as much as the
// worst solution, times a factor: one for limits over assets, one for limits over paths.
func (s *search) cheapest(root *treeNode, assets, paths float64) {
	node := root.child()
	for row := range s.prep.rows {
		node.mult[row] = float64(s.prep.worst) / float64(max(s.prep.rows[row].cap, 1))
		if row < s.prep.assetRows {
			node.mult[row] *= assets
		} else {
			node.mult[row] *= paths
		}
	}

	for number := range s.prep.assets {
		asset := &s.prep.assets[number]
		asset.price = s.prep.priceOf(node, asset)
		s.prep.portion(node, asset)
	}

	s.relax.permit(node.allowed, false)
	if s.relax.evaluate(node) != unreachable {
		s.relax.usage(node)
		s.tryRelaxed()
		s.repair(node)
	}
}

// discount lowers the prices of the limits a little, and repairs and improves the relaxation's choices at these prices.
// They open assets that do not fit together but are all worth their bytes.
func (s *search) discount(root *treeNode) {
	for _, factor := range []float64{1, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5} {
		node := root.child()
		for row := range s.prep.rows {
			s.relax.price(node, row, node.mult[row]*factor)
		}

		s.relax.permit(node.allowed, false)
		if s.ctx.Err() != nil || s.relax.evaluate(node) == unreachable {
			return
		}

		s.relax.usage(node)
		s.tryRelaxed()
		before := s.value
		s.repair(root)
		if s.value < before || factor == 1 {
			s.improve(root)
		}
	}
}
