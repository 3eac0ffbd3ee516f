package exact

import (
	"math"
	"slices"
)

// treeNode is a node of the search tree: what is decided, and the multipliers that gave its bound.
type treeNode struct {
	state   []int8    // per asset: free, or decided
	allowed [][]int32 // per item
	mult    []float64 // per row: scaled measure per unit of what it limits
	lambda  []int64   // per link: what the item pays of the asset's price
	bound   int64     // scaled
	number  int64     // in the order of creation
	reach   float64   // part of itself by which a price is changed first
}

// States of an asset at a node.
const (
	free   int8 = 0
	opened int8 = 1
	closed int8 = -1
)

// bytes returns what a node keeps. Lists of choices are shared with the nodes it came from.
func (n *treeNode) bytes() int64 {
	return 160 + int64(len(n.state)) + 24*int64(len(n.allowed)) + 8*int64(len(n.mult)+len(n.lambda))
}

// child returns a copy of a node to decide more in. The lists of choices are shared: they are replaced, never written.
func (n *treeNode) child() *treeNode {
	return &treeNode{
		state: slices.Clone(n.state), allowed: slices.Clone(n.allowed),
		mult: slices.Clone(n.mult), lambda: slices.Clone(n.lambda), bound: n.bound, reach: n.reach,
	}
}

// setPrices copies the multipliers of another node.
func (n *treeNode) setPrices(from *treeNode) {
	copy(n.mult, from.mult)
	copy(n.lambda, from.lambda)
}

// relaxation is the Lagrangian relaxation of a joint problem, with the results of its last evaluation.
//
// Limits are moved into the measure, at a price per unit (mult). An asset that several items use is paid by them
// together, each a share (lambda: Lagrangian decomposition). Every part of the problem can then be solved on its own,
// as a shortest path. For any multipliers the sum of the parts, less the prices of the limits, is a lower bound
// (Geoffrion 1974); climb looks for good ones. An evaluation costs one dynamic program per chain and variant.
type relaxation struct {
	prep *prepared

	choices           []int   // of all items, that attain the bound
	partMin           []int64 // per part
	variant           []int   // per part: the one that attains it
	scratch           []int
	coef              []float64 // per part: scaled measure per ns that its edges were priced with
	value             int64     // that was evaluated last
	attained          bool      // choices are as the multipliers of the node climbed last give them
	used              []bool    // per asset
	rowUse            []float64 // per row, with shared assets counted as they are paid
	taken             []int64   // per row over assets, of all that choices use
	least             [][]int64 // per item and choice: a min-marginal, see search.marginals
	old               []int64   // per asset: the price before the last change
	left              []int64   // per asset: of its price, to be paid
	togo, come, theta []int64   // of a pass
	seen              []bool    // per class
	often             [][]int32 // per item and choice: how often it was chosen in the last ascent
}

// newRelaxation makes room for what evaluations, passes and ascents write.
func newRelaxation(prep *prepared) *relaxation {
	items, parts, assets := len(prep.items), len(prep.parts), len(prep.assets)
	relax := &relaxation{
		prep: prep, choices: make([]int, items), scratch: make([]int, items),
		least: make([][]int64, items), often: make([][]int32, items),
		partMin: make([]int64, parts), variant: make([]int, parts), coef: make([]float64, parts),
		used: make([]bool, assets), old: make([]int64, assets), left: make([]int64, assets),
		rowUse: make([]float64, len(prep.rows)), taken: make([]int64, prep.assetRows),
	}

	classes, choices := 0, 0
	for part := range prep.parts {
		for _, chain := range prep.parts[part].variants[0] {
			for i := range chain.items {
				classes = max(classes, chain.items[i].nAfter, chain.items[i].nBefore)
			}
		}
	}
	relax.seen, relax.come = make([]bool, classes), make([]int64, passStarts*classes)

	for i, it := range prep.items {
		choices = max(choices, len(it.base))
		relax.least[i] = make([]int64, len(it.base))
		relax.often[i] = make([]int32, len(it.base))
	}
	relax.theta = make([]int64, choices)
	return relax
}

// permit allows the chains the choices of the lists. Where wide is set classes of other choices are visited too.
func (r *relaxation) permit(allowed [][]int32, wide bool) {
	for number := range r.prep.parts {
		part := &r.prep.parts[number]
		for variantAt, variant := range part.variants {
			for index, chain := range variant {
				chain.ranked = false
				for i := range chain.items {
					r.permitItem(&chain.items[i], part.chains[index]+i, part.sets[variantAt], allowed)
					if wide {
						chain.items[i].widen()
					} else {
						chain.items[i].narrow(r.seen)
					}
				}
			}
		}
	}
}

// permitItem allows an item its choices of the lists that use processors of set only.
func (r *relaxation) permitItem(it *chainItem, number int, set uint64, allowed [][]int32) {
	if set == math.MaxUint64 {
		it.allowed = allowed[number]
		return
	}
	it.allowed = it.allowed[:0]
	for _, choice := range allowed[number] {
		if r.prep.items[number].procs[choice]&^set == 0 {
			it.allowed = append(it.allowed, choice)
		}
	}
}

// priceOfRow returns a node's multiplier of a row that there may be.
func (n *treeNode) priceOfRow(row int) float64 {
	if row < 0 {
		return 0
	}
	return n.mult[row]
}

// priced is amount * price, at most clamp.
func (c *prepared) priced(amount int64, price float64) int64 {
	return int64(min(float64(float64(amount)*price), float64(c.clamp)))
}

// charge prices assets, choices and edges by the multipliers. Where plain is set assets cost nothing.
func (r *relaxation) charge(node *treeNode, plain bool) {
	prep := r.prep
	for asset := range prep.assets {
		prep.assets[asset].price = prep.priceOf(node, &prep.assets[asset])
	}
	timePrice, energyPrice := node.priceOfRow(prep.timeRow), node.priceOfRow(prep.energyRow)
	for i, it := range prep.items {
		part := &prep.parts[it.part]

		// A nanosecond of the part costs its share of the limits on all times, and of the part's own.
		coef := float64(float64(prep.joint.Parts[it.part].Weight) * timePrice)
		if part.rowTime >= 0 {
			coef += node.mult[part.rowTime]
		}
		r.chargeUses(node, it, plain)

		for _, choice := range node.allowed[i] {
			more := int64(0)
			for _, use := range it.use[choice] {
				more += it.uses[use].charge
			}
			if coef > 0 {
				more += prep.priced(it.timeNS[choice], coef)
			}
			if energyPrice > 0 {
				more += prep.priced(it.energyNJ[choice], energyPrice)
			}
			it.cost[choice] = it.base[choice] + min(more, prep.clamp)
		}

		// Edges keep their prices until the price of time changes.
		if coef != r.coef[it.part] {
			for edge, ns := range it.edgeNS {
				it.edge[edge] = it.edgeBase[edge] + prep.priced(ns, coef)
			}
		}
		if i+1 == len(prep.items) || prep.items[i+1].part != it.part {
			r.coef[it.part] = coef
		}
	}
}

// chargeUses sets what an item's choices are charged for each asset.
func (r *relaxation) chargeUses(node *treeNode, it *jointItem, plain bool) {
	for index := range it.uses {
		use := &it.uses[index]
		switch {
		case plain || node.state[use.asset] != free:
			use.charge = 0
		case use.link >= 0:
			use.charge = node.lambda[use.link]
		default:
			use.charge = r.prep.assets[use.asset].price
		}
	}
}

// shortest solves every part on its own as it is charged: the cheapest of its variants, and of equally cheap ones the
// first in lexicographic order. It returns false when one has no choices left.
func (r *relaxation) shortest() bool {
	for number := range r.prep.parts {
		part := &r.prep.parts[number]
		r.partMin[number] = unreachable
		out := r.scratch[part.first : part.first+part.items]
		best := r.choices[part.first : part.first+part.items]
		for variantAt, variant := range part.variants {
			sum, at := int64(0), 0
			for _, chain := range variant {
				ns := chain.solve(out[at : at+len(chain.items)])
				if ns == unreachable {
					sum = unreachable
					break
				}
				sum, at = sum+ns, at+len(chain.items)
			}

			isTie := sum == r.partMin[number] && sum != unreachable
			if sum < r.partMin[number] || isTie && slices.Compare(out, best) < 0 {
				r.partMin[number], r.variant[number] = sum, variantAt
				copy(best, out)
			}
		}

		if r.partMin[number] == unreachable {
			return false
		}
	}
	return true
}

// evaluate returns the bound (scaled) that the multipliers of the node give, unreachable when an item has no choices
// left.
func (r *relaxation) evaluate(node *treeNode) int64 {
	r.charge(node, false)
	if !r.shortest() {
		return unreachable
	}

	prep := r.prep
	// The parts, and what assets cost that are open in any case: their items are charged nothing for them.
	sum, priced := int64(0), false
	for _, least := range r.partMin {
		sum += least
	}

	for asset := range prep.assets {
		if node.state[asset] == opened {
			sum += prep.assets[asset].price
		}
	}

	// What the limits permit is given back at their prices, rounded so that the bound stays one.
	for row, price := range node.mult {
		if price > 0 {
			refund := float64(price * float64(prep.rows[row].cap))
			sum -= int64(refund) + 1 + int64(refund)>>50
			priced = true
		}
	}

	if priced {
		sum -= prep.slack // products may have been rounded up
	}
	r.value = sum
	return sum
}

// usage finds what the choices use: of the rows, with shared assets counted as they are paid (rowUse, for the ascent),
// and truly (taken, used).
func (r *relaxation) usage(node *treeNode) {
	prep := r.prep
	clear(r.used)
	clear(r.rowUse)
	clear(r.taken)
	timed := prep.timeRow >= 0
	for part := range prep.parts {
		timed = timed || prep.parts[part].rowTime >= 0
	}

	for i, it := range prep.items {
		r.assetUse(node, it, r.choices[i])
		if prep.energyRow >= 0 {
			r.rowUse[prep.energyRow] += float64(it.energyNJ[r.choices[i]])
		}
		if timed {
			ns := r.timeOf(i)
			if row := prep.parts[it.part].rowTime; row >= 0 {
				r.rowUse[row] += float64(ns)
			}
			if prep.timeRow >= 0 {
				r.rowUse[prep.timeRow] += float64(float64(prep.joint.Parts[it.part].Weight) * float64(ns))
			}
		}
	}

	for asset := range prep.assets {
		for row, size := range prep.assets[asset].size {
			if node.state[asset] == opened {
				r.rowUse[row] += float64(size)
			}
			if r.used[asset] {
				r.taken[row] += size
			}
		}
	}
}

// assetUse adds to rowUse what one choice of an item pays for of free assets.
func (r *relaxation) assetUse(node *treeNode, it *jointItem, choice int) {
	for _, index := range it.use[choice] {
		use := &it.uses[index]
		asset := &r.prep.assets[use.asset]
		r.used[use.asset] = true
		if node.state[use.asset] != free {
			continue
		}

		part := 1.0
		if use.link >= 0 {
			if part = 0; asset.price > 0 {
				part = float64(node.lambda[use.link]) / float64(asset.price)
			}
		}

		for row, size := range asset.size {
			r.rowUse[row] += float64(float64(size) * part)
		}
	}
}

// timeOf returns the time of all executions of item i as it is chosen, with the edge into it.
func (r *relaxation) timeOf(i int) int64 {
	it, choice := r.prep.items[i], r.choices[i]
	ns := it.timeNS[choice]
	if it.edgeNS == nil {
		return ns
	}
	part := &r.prep.parts[it.part]
	chain := part.variants[0][it.chain]
	prev := part.chains[it.chain] + (it.index+len(chain.items)-1)%len(chain.items)
	from := int(r.prep.items[prev].after[r.choices[prev]])
	return ns + it.edgeNS[from*chain.items[it.index].nBefore+int(it.before[choice])]
}

// fits reports whether what the choices open keeps the limits over assets.
func (r *relaxation) fits() bool {
	for row, size := range r.taken {
		if size > r.prep.rows[row].cap {
			return false
		}
	}
	return true
}

// prime gives a node without multipliers the first ones: one price for all limits that its free optimum breaks,
// relative to what each permits. It tries powers of four until the bound falls. Items that share an asset pay by
// portion.
func (r *relaxation) prime(node *treeNode) {
	prep := r.prep
	best := node.child()
	most := r.evaluate(node)
	if most == unreachable {
		return
	}
	r.usage(node)

	var over []int
	for row, use := range r.rowUse {
		if use > float64(prep.rows[row].cap) || row < prep.assetRows && r.taken[row] > prep.rows[row].cap {
			over = append(over, row)
		}
	}

	// The dual is concave in the prices, so the first fall ends the search; passes make that only nearly exact.
	for price := 1.0 / (1 << 30); price <= 64; price *= 4 {
		for _, row := range over {
			node.mult[row] = float64(price*float64(prep.worst)) / float64(max(prep.rows[row].cap, 1))
		}
		for number := range prep.assets {
			if asset := &prep.assets[number]; asset.links != nil && node.state[number] == free {
				asset.price = prep.priceOf(node, asset)
				prep.portion(node, asset)
			}
		}

		r.pass(node)
		value := r.evaluate(node)
		if value == unreachable || value < most {
			break
		}
		most = value
		best.setPrices(node)
	}
	node.setPrices(best)
	node.bound = max(node.bound, most)
}
