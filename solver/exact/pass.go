package exact

import "slices"

const (
	passStarts = 2           // classes that a loop begins with, of those the likeliest
	firstReach = 1.0 / 16    // part of itself by which a price is changed first
	leastReach = 1.0 / 65536 // and at least
)

// pass is one round of block-coordinate ascent over what items pay for shared assets, at the node's prices of the
// limits.
//
// It goes part after part and item after item. Two amounts determine what an item is charged for an asset: what it
// would pay at most (the least that the part costs without the asset, less the least with it), and what is left of
// the asset's price. The item is charged half of their sum. That is max-sum diffusion (Werner 2007) between the part
// and the choice to open the asset, on shortest paths whose rest is known from both ends (Kolmogorov 2006).
//
// At its fixed points the bound is near that of the linear program. Subgradients see one path of each part and take
// thousands of steps to get there. The pass changes the node's charges; what assets are paid beyond their price is
// given back. A pass costs about two dynamic programs per chain and start.
func (r *relaxation) pass(node *treeNode) {
	prep := r.prep
	r.charge(node, false)
	if prep.links == nil {
		return
	}

	for number := range prep.assets {
		r.left[number] = prep.assets[number].price
		for _, link := range prep.assets[number].links {
			r.left[number] -= node.lambda[link]
		}
	}

	blocked := func(it chainItem) bool { return len(it.allowed) == 0 }
	for partAt := range prep.parts {
		part := &prep.parts[partAt]
		for index, chain := range part.variants[r.variant[partAt]] {
			if !slices.ContainsFunc(chain.items, blocked) {
				r.sweep(node, chain, prep.items[part.chains[index]:part.chains[index]+len(chain.items)])
			}
		}
	}

	for number := range prep.assets {
		if asset := &prep.assets[number]; asset.links != nil && node.state[number] == free && r.left[number] < 0 {
			prep.share(node, asset, float64(asset.price)/float64(asset.price-r.left[number]))
		}
	}
}

// share multiplies what the items pay for an asset by factor; together it is at most the price.
func (c *prepared) share(node *treeNode, asset *jointAsset, factor float64) {
	left := asset.price
	for _, link := range asset.links {
		node.lambda[link] = min(int64(float64(node.lambda[link])*factor), left)
		left -= node.lambda[link]
	}
}

// sweep is a pass over one chain. r.togo and r.come hold the cheapest rest and the cheapest way, one row per start.
func (r *relaxation) sweep(node *treeNode, chain *chain, items []*jointItem) {
	if !chain.ranked { // else those of the last evaluation are likely enough
		chain.rank()
	}

	starts := chain.starts[:min(len(chain.starts), passStarts)]
	width := 0 // of a row of togo
	for i := range chain.items {
		width += chain.items[i].nAfter
	}
	for len(r.togo) < len(starts)*width {
		r.togo = append(r.togo, 0)
	}

	classes := len(r.seen) // width of a row of come
	for row, from := range starts {
		chain.backward(from.class)
		at := row * width
		for i := range chain.items {
			at += copy(r.togo[at:], chain.togo[i])
		}
		come := r.come[row*classes : row*classes+chain.items[0].nBefore]
		for class := range come {
			come[class] = unreachable
			if from.class < 0 || class == from.class {
				come[class] = 0
			}
		}
	}

	at := 0 // of item i in a row of togo
	for i := range chain.items {
		top := r.itemMarginals(&chain.items[i], items[i], len(starts), r.togo[at:], width)
		r.diffuse(node, &chain.items[i], items[i], top)
		at += chain.items[i].nAfter
		if i+1 == len(chain.items) {
			break
		}
		for row := range starts {
			come := r.come[row*classes : (row+1)*classes]
			chain.advance(i, come, come)
		}
	}
}

// itemMarginals fills theta with the least that the chain costs with each choice of an item, and returns the choice
// with the least of all. togo begins with the item's classes; its rows are width apart.
func (r *relaxation) itemMarginals(it *chainItem, source *jointItem, starts int, togo []int64, width int) (top int32) {
	theta := r.theta[:len(source.base)]
	for choice := range theta {
		theta[choice] = unreachable
	}
	top = it.allowed[0]

	for _, choice := range it.allowed {
		best := int64(unreachable)
		for row := range starts {
			come, rest := r.come[row*len(r.seen)+int(it.before[choice])], togo[row*width+int(it.after[choice])]
			if come != unreachable && rest != unreachable {
				best = min(best, come+rest+source.cost[choice])
			}
		}
		if theta[choice] = best; best < theta[top] {
			top = choice
		}
	}
	return top
}

// diffuse moves charges between an item and the assets that it shares, given theta, whose least is that of choice top.
func (r *relaxation) diffuse(node *treeNode, it *chainItem, source *jointItem, top int32) {
	theta := r.theta
	for index := range source.uses {
		use := &source.uses[index]
		if use.link < 0 || node.state[use.asset] != free {
			continue
		}

		// The least with the asset, and the least without it: that of top, unless top names the asset.
		with := int64(unreachable)
		for _, choice := range source.namedBy[index] {
			with = min(with, theta[choice])
		}

		pays, left := &node.lambda[use.link], &r.left[use.asset]
		if with == unreachable {
			*left += *pays
			*pays = 0
			continue
		}

		without := theta[top]
		if has := source.has[index]; has[top] {
			without = unreachable
			for _, choice := range it.allowed {
				if !has[choice] {
					without = min(without, theta[choice])
				}
			}
		}

		// Half of what it is worth to the item and what is left of the price; never so little that the charge falls
		// below 0.
		worth := r.prep.clamp
		if without != unreachable {
			worth = without - with
		}
		more := max((worth+*left-min(0, *left+*pays))/2, -*pays)
		if more == 0 {
			continue
		}
		*pays += more
		*left -= more
		top = r.chargeMore(it, source, index, more, top)
	}
}

// chargeMore charges the choices of an item that name an asset more for it, and returns the choice with the least
// theta.
func (r *relaxation) chargeMore(it *chainItem, source *jointItem, use int, more int64, top int32) int32 {
	theta := r.theta
	for _, choice := range source.namedBy[use] {
		source.cost[choice] += more
		if theta[choice] != unreachable {
			theta[choice] += more
			if theta[choice] < theta[top] {
				top = choice
			}
		}
	}

	if more > 0 && source.has[use][top] {
		for _, choice := range it.allowed {
			if theta[choice] < theta[top] {
				top = choice
			}
		}
	}
	return top
}

// price sets the price of the limit of a row. Items that share an asset pay the same shares of its new price.
func (r *relaxation) price(node *treeNode, row int, mult float64) {
	prep := r.prep
	r.old = r.old[:0]
	for number := range prep.assets {
		r.old = append(r.old, prep.priceOf(node, &prep.assets[number]))
	}
	node.mult[row] = mult
	if row >= prep.assetRows {
		return
	}

	for number := range prep.assets {
		asset := &prep.assets[number]
		if asset.links == nil || node.state[number] != free {
			continue
		}
		asset.price = prep.priceOf(node, asset)
		if r.old[number] > 0 {
			prep.share(node, asset, float64(asset.price)/float64(r.old[number]))
			continue
		}
		prep.portion(node, asset)
	}
}

// portion divides an asset's price among its items in proportion to the least that each takes of the measure: an item
// that takes little cannot gain much by the asset either.
func (c *prepared) portion(node *treeNode, asset *jointAsset) {
	sum := 0.0
	for _, link := range asset.links {
		sum += c.items[c.links[link].item].least
	}
	left := asset.price
	for _, link := range asset.links {
		node.lambda[link] = min(int64(float64(asset.price)*(c.items[c.links[link].item].least/sum)), left)
		left -= node.lambda[link]
	}
}

// priceOf returns what opening an asset costs.
func (c *prepared) priceOf(node *treeNode, asset *jointAsset) int64 {
	price := asset.fixed
	for row, size := range asset.size {
		if node.mult[row] > 0 && size > 0 {
			price += c.priced(size, node.mult[row])
		}
	}
	return min(price, c.clamp)
}

// ascent is the state of one climb.
type ascent struct {
	r      *relaxation
	evals  int // evaluations that are left
	passes int // before each
	enough func(bound int64) bool
	found  func()

	best  *treeNode // whose multipliers give its bound, or nearly so
	trial *treeNode // what is tried
	ok    bool      // every item has a choice
	last  bool      // what was tried last is the best
	up    []bool    // per row: the direction that its price is changed in
}

// climb improves the multipliers of a node in at most evals evaluations, each after passes.
//
// It is coordinate ascent on the Lagrangian dual: the price of one limit after the other is raised or lowered, as its
// use in the solution of the relaxation says (the subgradient's sign). The change is a part of the price, reach, that
// grows as long as it helps and shrinks when no price helps. It stops when the bound is above enough, and leaves the
// best multipliers in the node (attain: and the choices as they give them); false when an item has no choices. found is
// called with the choices as it goes.
func (r *relaxation) climb(node *treeNode, evals, passes int, enough func(int64) bool, found func()) bool {
	for i := range r.often {
		clear(r.often[i])
	}

	state := &ascent{
		r: r, evals: evals, passes: passes, enough: enough, found: found,
		best: node.child(), trial: node.child(), ok: true, up: make([]bool, len(r.prep.rows)),
	}
	if state.try(); state.ok && state.evals > 0 {
		state.look()
	}

	// Rounds with shrinking steps. A round without gain also tries the other direction next.
	reach := node.reach
	for reach > leastReach && state.goesOn() {
		if !state.round(&reach) {
			reach /= 4
			for row := range state.up {
				state.up[row] = !state.up[row]
			}
		}
	}
	if !state.ok {
		return false
	}
	node.reach = min(max(4*reach, leastReach), firstReach)
	node.setPrices(state.best)
	node.bound, r.attained = state.best.bound, state.last
	return true
}

// goesOn reports whether there is something left to gain, and evaluations to gain it with.
func (a *ascent) goesOn() bool { return a.ok && a.evals > 0 && !a.enough(a.best.bound) }

// try evaluates the trial after passes, and keeps it where it is better.
func (a *ascent) try() (better bool) {
	r := a.r
	for range a.passes {
		r.pass(a.trial)
	}
	a.evals--
	value := r.evaluate(a.trial)
	if a.ok = value != unreachable; !a.ok {
		return false
	}

	r.usage(a.trial)
	for i, choice := range r.choices {
		r.often[i][choice]++
	}
	a.found()

	if a.last = value > a.best.bound; !a.last {
		return false
	}
	a.best.bound = value
	a.best.setPrices(a.trial)
	return true
}

// look has the price of each limit that is used up rise.
func (a *ascent) look() {
	for row := range a.up {
		a.up[row] = a.r.rowUse[row] >= float64(a.r.prep.rows[row].cap)
	}
}

// round changes the price of one limit after the other, each as long as that helps, and reports whether any did.
func (a *ascent) round(reach *float64) (any bool) {
	for k, row := range a.r.prep.rows {
		for (a.up[k] || a.best.mult[k] > 0) && a.goesOn() {
			a.trial.setPrices(a.best)
			price := a.best.mult[k]
			switch {
			case price == 0:
				price = float64(a.r.prep.worst) / float64(max(row.cap, 1)) / (1 << 24)
			case a.up[k]:
				price *= 1 + *reach
			default:
				price /= 1 + *reach
			}

			// Keep going in one direction, with growing steps, until the bound falls or the limit's use crosses its
			// cap.
			a.r.price(a.trial, k, price)
			if !a.try() {
				break
			}
			any = true

			was := a.up[k]
			a.look()
			if a.up[k] != was {
				break
			}
			*reach = min(*reach*1.5, 3)
		}
	}
	return any
}

// attain has the choices as the multipliers of a node give them that has just been climbed.
func (r *relaxation) attain(node *treeNode) {
	if !r.attained {
		r.evaluate(node)
		r.usage(node)
	}
}
