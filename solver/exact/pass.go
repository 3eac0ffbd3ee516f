package exact

import (
	"slices"
)

const (
	passStarts = 2 // classes that a loop begins with, of those the likeliest
	firstReach = 1.0 / 16
	leastReach = 1.0 / 65536
)

// pass is one round of block-coordinate ascent over who pays for shared assets, at the node's prices of the limits: part
// after part and item after item, an asset is charged half of what its item would pay for it at most (the least that
// the part costs without it, less the least with it) and of what is left of its price. That is max-sum diffusion (Werner 2007) of
// the part and the choice to open the asset, on shortest paths whose rest is known from both ends (Kolmogorov 2006).
// Where it ends the bound is near that of the linear program, which subgradients, that see one path of each part, take thousands
// of steps to. The node is charged by it; what assets are paid beyond their price is given back.
func (r *relaxation) pass(n *node) {
	c := r.c
	r.charge(n, false)
	if c.links == nil {
		return
	}
	left := r.left // of each price, to be paid
	for a := range c.assets {
		as := &c.assets[a]
		left[a] = as.price
		for _, l := range as.links {
			left[a] -= n.lambda[l]
		}
	}
	for p := range c.parts {
		part := &c.parts[p]
		for k, sec := range part.variants[r.variant[p]] {
			if !slices.ContainsFunc(sec.steps, func(st step) bool { return len(st.allowed) == 0 }) {
				r.sweep(n, sec, c.items[part.chains[k]:part.chains[k]+len(sec.steps)])
			}
		}
	}
	for a := range c.assets {
		if as := &c.assets[a]; as.links != nil && n.state[a] == free && left[a] < 0 {
			c.share(n, as, float64(as.price)/float64(as.price-left[a]))
		}
	}
}

// share multiplies what the items pay for an asset; together it is at most the price.
func (c *joint) share(n *node, as *jointAsset, f float64) {
	left := as.price
	for _, l := range as.links {
		n.lambda[l] = min(int64(float64(n.lambda[l])*f), left)
		left -= n.lambda[l]
	}
}

// sweep is a pass over one chain.
func (r *relaxation) sweep(n *node, sec *section, items []*jointItem) {
	if !sec.ranked { // else those of the last evaluation are likely enough
		sec.rank()
	}
	starts := sec.starts[:min(len(sec.starts), passStarts)]
	wide := 0
	for i := range sec.steps {
		wide += sec.steps[i].na
	}
	for len(r.togo) < len(starts)*wide {
		r.togo = append(r.togo, 0)
	}
	most := len(r.seen)
	for s, from := range starts {
		sec.backward(from.class)
		at := s * wide
		for i := range sec.steps {
			at += copy(r.togo[at:], sec.togo[i])
		}
		come := r.come[s*most : s*most+sec.steps[0].nb]
		for b := range come {
			come[b] = unreachable
			if from.class < 0 || b == from.class {
				come[b] = 0
			}
		}
	}
	at := 0 // of step i in togo
	for i := range sec.steps {
		st, it := &sec.steps[i], items[i]
		theta := r.theta[:len(it.base)] // the least with each choice
		for j := range theta {
			theta[j] = unreachable
		}
		top := st.allowed[0] // the choice with the least
		for _, j := range st.allowed {
			v := int64(unreachable)
			for s := range starts {
				a, b := r.come[s*most+int(st.before[j])], r.togo[s*wide+at+int(st.after[j])]
				if a != unreachable && b != unreachable {
					v = min(v, a+b+it.cost[j])
				}
			}
			if theta[j] = v; v < theta[top] {
				top = j
			}
		}
		at += st.na
		for u := range it.uses {
			use := &it.uses[u]
			if use.link < 0 || n.state[use.asset] != free {
				continue
			}
			with := int64(unreachable)
			for _, j := range it.by[u] {
				with = min(with, theta[j])
			}
			pays, left := &n.lambda[use.link], &r.left[use.asset]
			if with == unreachable {
				*left += *pays
				*pays = 0
				continue
			}
			without := theta[top]
			if has := it.has[u]; has[top] {
				without = unreachable
				for _, j := range st.allowed {
					if !has[j] {
						without = min(without, theta[j])
					}
				}
			}
			worth := r.c.clamp
			if without != unreachable {
				worth = without - with
			}
			more := max((worth+*left-min(0, *left+*pays))/2, -*pays)
			if more == 0 {
				continue
			}
			*pays += more
			*left -= more
			for _, j := range it.by[u] {
				it.cost[j] += more
				if theta[j] != unreachable {
					theta[j] += more
					if theta[j] < theta[top] {
						top = j
					}
				}
			}
			if more > 0 && it.has[u][top] {
				for _, j := range st.allowed {
					if theta[j] < theta[top] {
						top = j
					}
				}
			}
		}
		if i+1 < len(sec.steps) {
			for s := range starts {
				come := r.come[s*most : (s+1)*most]
				sec.step(i, come, come)
			}
		}
	}
}

// price sets the price of a limit; those who share assets pay the same parts of the new price.
func (r *relaxation) price(n *node, k int, mult float64) {
	c := r.c
	r.old = r.old[:0]
	for a := range c.assets {
		r.old = append(r.old, c.priceOf(n, &c.assets[a]))
	}
	n.mult[k] = mult
	if k >= c.nRows {
		return
	}
	for a := range c.assets {
		as := &c.assets[a]
		if as.links == nil || n.state[a] != free {
			continue
		}
		as.price = c.priceOf(n, as)
		if r.old[a] > 0 {
			c.share(n, as, float64(as.price)/float64(r.old[a]))
			continue
		}
		c.portion(n, as)
	}
}

// portion has the items pay for an asset by what they take at least: who takes little cannot gain much by it either.
func (c *joint) portion(n *node, as *jointAsset) {
	sum := 0.0
	for _, l := range as.links {
		sum += c.items[c.links[l].item].least
	}
	left := as.price
	for _, l := range as.links {
		n.lambda[l] = min(int64(float64(as.price)*(c.items[c.links[l].item].least/sum)), left)
		left -= n.lambda[l]
	}
}

// priceOf is what opening an asset costs.
func (c *joint) priceOf(n *node, as *jointAsset) int64 {
	price := as.fixed
	for k, size := range as.size {
		if n.mult[k] > 0 && size > 0 {
			price += int64(min(float64(float64(size)*n.mult[k]), float64(c.clamp)))
		}
	}
	return min(price, c.clamp)
}

// climb improves the multipliers of a node in at most evals evaluations, each after passes: the price of one limit after
// the other is raised or lowered, as its use in the solution of the relaxation says, by a part of itself that grows as
// long as it helps. It stops when the bound is above enough, and leaves the best multipliers in the node (attain: and x
// as they give it); false when an item has no choices. found is called with x as it goes.
func (r *relaxation) climb(n *node, evals, passes int, enough func(int64) bool, found func()) bool {
	c := r.c
	for i := range r.often {
		clear(r.often[i])
	}
	best := n.child()       // whose multipliers give its bound, or nearly so
	ok, last := true, false // whether what was tried last is the best
	try := func(m *node, passes int) (better bool) {
		for range passes {
			r.pass(m)
		}
		evals--
		v := r.evaluate(m)
		if ok = v != unreachable; !ok {
			return false
		}
		r.usage(m)
		for i, j := range r.x {
			r.often[i][j]++
		}
		found()
		if last = v > best.bound; !last {
			return false
		}
		best.bound = v
		copy(best.mult, m.mult)
		copy(best.lambda, m.lambda)
		return true
	}
	up := make([]bool, len(c.rows))
	look := func() {
		for k := range c.rows {
			up[k] = r.rowUse[k] >= float64(c.rows[k].cap)
		}
	}
	m := n.child()
	if try(m, passes); ok && evals > 0 {
		look()
	}
	reach := n.reach
	for ok && evals > 0 && reach > leastReach && !enough(best.bound) {
		any := false
		for k := range c.rows {
			for ok && evals > 0 && (up[k] || best.mult[k] > 0) && !enough(best.bound) {
				copy(m.mult, best.mult)
				copy(m.lambda, best.lambda)
				to := best.mult[k]
				switch {
				case to == 0:
					to = float64(c.worst) / float64(max(c.rows[k].cap, 1)) / (1 << 24)
				case up[k]:
					to *= 1 + reach
				default:
					to /= 1 + reach
				}
				r.price(m, k, to)
				if !try(m, passes) {
					break
				}
				any = true
				was := up[k]
				look()
				if up[k] != was {
					break
				}
				reach = min(reach*1.5, 3)
			}
		}
		if !any {
			reach /= 4
			for k := range up {
				up[k] = !up[k]
			}
		}
	}
	if !ok {
		return false
	}
	n.reach = min(max(4*reach, leastReach), firstReach)
	copy(n.mult, best.mult)
	copy(n.lambda, best.lambda)
	n.bound, r.attained = best.bound, last
	return true
}

// attain has x as the multipliers of a node give it that has just been climbed.
func (r *relaxation) attain(n *node) {
	if !r.attained {
		r.evaluate(n)
		r.usage(n)
	}
}

// step finds the cheapest ways to the input of step i+1, by class, from those to the input of step i. Both may be one slice.
func (s *section) step(i int, from, to []int64) {
	prev, st := &s.steps[i], &s.steps[i+1]
	left := s.left[:prev.na] // the cheapest way to have executed the step and be in class a
	for a := range left {
		left[a] = unreachable
	}
	for _, j := range prev.allowed {
		if c := from[prev.before[j]]; c != unreachable && c+prev.cost[j] < left[prev.after[j]] {
			left[prev.after[j]] = c + prev.cost[j]
		}
	}
	to = to[:st.nb]
	for b := range to {
		to[b] = unreachable
	}
	for a, c := range left {
		if c == unreachable {
			continue
		}
		for b, ns := range st.edge[a*st.nb : (a+1)*st.nb] {
			to[b] = min(to[b], c+ns)
		}
		s.work += int64(st.nb)
	}
}
