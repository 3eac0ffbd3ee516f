package exact

import (
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// node is a node of the search tree: what is decided, and the multipliers that gave its bound.
type node struct {
	state   []int8    // per asset: free, or decided
	allowed [][]int32 // per item
	mult    []float64 // per row: scaled measure per unit of what it limits
	lambda  []int64   // per link: what the item pays of the asset's price
	bound   int64     // scaled
	number  int64     // in the order of creation
	reach   float64   // part of itself by which a price is changed first
}

const (
	free   int8 = 0
	opened int8 = 1
	closed int8 = -1
)

// bytes is what a node keeps. Lists of choices are shared with the nodes it came from.
func (n *node) bytes() int64 {
	return 160 + int64(len(n.state)) + 24*int64(len(n.allowed)) + 8*int64(len(n.mult)+len(n.lambda))
}

func (n *node) child() *node {
	return &node{state: slices.Clone(n.state), allowed: slices.Clone(n.allowed), mult: slices.Clone(n.mult), lambda: slices.Clone(n.lambda), bound: n.bound, reach: n.reach}
}

// relaxation is the Lagrangian relaxation of a joint problem, and what it was evaluated to last. Limits are
// moved into the measure, at a price per unit (mult); an asset that several items use is paid by them together, each a part
// (lambda), so that every part of the problem can be solved on its own, as a shortest path. Whatever the
// multipliers, the sum of the parts less the prices of the limits is a lower bound (Geoffrion 1974); climb looks for good ones.
type relaxation struct {
	c *joint

	x                 []int   // choices of all items that attain the bound
	partMin           []int64 // per part
	variant           []int   // per part: the one that attains it
	scratch           []int
	coef              []float64 // per part: scaled measure per ns that its edges were priced with
	usedLink          []bool
	value             int64  // that was evaluated last
	attained          bool   // x is as the multipliers of the node climbed last give it
	used              []bool // per asset
	rowUse            []float64
	taken             []int64 // per row over assets, of all that x uses
	least             [][]int64
	old               []int64
	left              []int64   // per asset
	togo, come, theta []int64   // of a pass
	seen              []bool    // per class
	often             [][]int32 // per item and choice: how often x had it in the last ascent
}

func newRelaxation(c *joint) *relaxation {
	n := len(c.items)
	r := &relaxation{
		c: c, x: make([]int, n), scratch: make([]int, n), partMin: make([]int64, len(c.parts)), variant: make([]int, len(c.parts)),
		coef: make([]float64, len(c.parts)), usedLink: make([]bool, len(c.links)), used: make([]bool, len(c.assets)),
		rowUse: make([]float64, len(c.rows)), taken: make([]int64, c.nRows), least: make([][]int64, n), often: make([][]int32, n),
	}
	most, choices := 0, 0
	for p := range c.parts {
		for _, s := range c.parts[p].variants[0] {
			for i := range s.steps {
				most = max(most, s.steps[i].na, s.steps[i].nb)
			}
		}
	}
	r.seen, r.old, r.left = make([]bool, most), make([]int64, len(c.assets)), make([]int64, len(c.assets))
	r.come = make([]int64, passStarts*most)
	for i, it := range c.items {
		choices = max(choices, len(it.base))
		r.least[i] = make([]int64, len(it.base))
		r.often[i] = make([]int32, len(it.base))
	}
	r.theta = make([]int64, choices)
	return r
}

// permit allows the sections the choices of the lists. Where wide is set classes of other choices are visited too.
func (r *relaxation) permit(allowed [][]int32, wide bool) {
	for p := range r.c.parts {
		part := &r.c.parts[p]
		for v, variant := range part.variants {
			for k, s := range variant {
				s.ranked = false
				for i := range s.steps {
					n := part.chains[k] + i
					st := &s.steps[i]
					if part.sets[v] == math.MaxUint64 {
						st.allowed = allowed[n]
					} else {
						st.allowed = st.allowed[:0]
						for _, j := range allowed[n] {
							if r.c.items[n].procs[j]&^part.sets[v] == 0 {
								st.allowed = append(st.allowed, j)
							}
						}
					}
					if wide {
						st.widen()
					} else {
						st.narrow(r.seen)
					}
				}
			}
		}
	}
}

// charge prices assets, choices and edges by the multipliers. Where plain is set assets cost nothing.
func (r *relaxation) charge(n *node, plain bool) {
	c := r.c
	for a := range c.assets {
		as := &c.assets[a]
		as.price = c.priceOf(n, as)
	}
	timeMult, energyMult := 0.0, 0.0
	for k := c.nRows; k < len(c.rows); k++ {
		switch c.rows[k].kind {
		case problem.LimitTimeNS:
			timeMult = n.mult[k]
		case problem.LimitEnergyNJ:
			energyMult = n.mult[k]
		}
	}
	for i, it := range c.items {
		p := &c.parts[it.part]
		coef := float64(float64(c.j.Parts[it.part].Weight) * timeMult)
		if p.rowTime >= 0 {
			coef += n.mult[p.rowTime]
		}
		for u := range it.uses {
			use := &it.uses[u]
			use.charge = 0
			if !plain && n.state[use.asset] == free {
				if use.link >= 0 {
					use.charge = n.lambda[use.link]
				} else {
					use.charge = c.assets[use.asset].price
				}
			}
		}
		for _, j := range n.allowed[i] {
			more := int64(0)
			for _, u := range it.use[j] {
				more += it.uses[u].charge
			}
			if coef > 0 {
				more += int64(min(float64(float64(it.ns[j])*coef), float64(c.clamp)))
			}
			if energyMult > 0 {
				more += int64(min(float64(float64(it.nj[j])*energyMult), float64(c.clamp)))
			}
			it.cost[j] = it.base[j] + min(more, c.clamp)
		}
		if coef != r.coef[it.part] {
			for k, ns := range it.edgeNS {
				it.edge[k] = it.edgeBase[k] + int64(min(float64(float64(ns)*coef), float64(c.clamp)))
			}
		}
		if i+1 == len(c.items) || c.items[i+1].part != it.part {
			r.coef[it.part] = coef
		}
	}
}

// shortest solves every part on its own as it is charged; false when one has no choices left.
func (r *relaxation) shortest() bool {
	for p := range r.c.parts {
		part := &r.c.parts[p]
		r.partMin[p] = unreachable
		out := r.scratch[part.first : part.first+part.items]
		for v, variant := range part.variants {
			sum := int64(0)
			at := 0
			for _, s := range variant {
				ns := s.solve(out[at : at+len(s.steps)])
				if ns == unreachable {
					sum = unreachable
					break
				}
				sum, at = sum+ns, at+len(s.steps)
			}
			x := r.x[part.first : part.first+part.items]
			if sum < r.partMin[p] || sum == r.partMin[p] && sum != unreachable && slices.Compare(out, x) < 0 {
				r.partMin[p], r.variant[p] = sum, v
				copy(x, out)
			}
		}
		if r.partMin[p] == unreachable {
			return false
		}
	}
	return true
}

// evaluate returns the bound (scaled) that the multipliers of the node give, unreachable when an item has no choices left.
func (r *relaxation) evaluate(n *node) int64 {
	r.charge(n, false)
	if !r.shortest() {
		return unreachable
	}
	c := r.c
	sum, priced := int64(0), false
	for _, v := range r.partMin {
		sum += v
	}
	for a := range c.assets {
		if n.state[a] == opened {
			sum += c.assets[a].price
		}
	}
	for k, m := range n.mult {
		if m > 0 {
			v := float64(m * float64(c.rows[k].cap))
			sum -= int64(v) + 1 + int64(v)>>50
			priced = true
		}
	}
	if priced {
		sum -= c.slack // products may have been rounded up
	}
	r.value = sum
	return sum
}

// usage finds what x uses: of the rows, with shared assets counted as they are paid (rowUse, for the ascent), and truly
// (taken, used).
func (r *relaxation) usage(n *node) {
	c := r.c
	clear(r.usedLink)
	clear(r.used)
	clear(r.rowUse)
	clear(r.taken)
	timeRow, energyRow := -1, -1
	for k := c.nRows; k < len(c.rows); k++ {
		switch c.rows[k].kind {
		case problem.LimitTimeNS:
			timeRow = k
		case problem.LimitEnergyNJ:
			energyRow = k
		}
	}
	timed := timeRow >= 0
	for p := range c.parts {
		timed = timed || c.parts[p].rowTime >= 0
	}
	for i, it := range c.items {
		j := r.x[i]
		for _, u := range it.use[j] {
			use := &it.uses[u]
			as := &c.assets[use.asset]
			r.used[use.asset] = true
			share := 1.0
			if use.link >= 0 {
				r.usedLink[use.link] = true
				if share = 0; as.price > 0 {
					share = float64(n.lambda[use.link]) / float64(as.price)
				}
			}
			if n.state[use.asset] == free {
				for k, size := range as.size {
					r.rowUse[k] += float64(float64(size) * share)
				}
			}
		}
		if energyRow >= 0 {
			r.rowUse[energyRow] += float64(it.nj[j])
		}
		if timed {
			ns := it.ns[j]
			if it.edgeNS != nil {
				s := r.c.parts[it.part].variants[0][it.chain]
				prev := c.parts[it.part].chains[it.chain] + (it.index+len(s.steps)-1)%len(s.steps)
				ns += it.edgeNS[int(c.items[prev].after[r.x[prev]])*s.steps[it.index].nb+int(it.before[j])]
			}
			if k := c.parts[it.part].rowTime; k >= 0 {
				r.rowUse[k] += float64(ns)
			}
			if timeRow >= 0 {
				r.rowUse[timeRow] += float64(float64(c.j.Parts[it.part].Weight) * float64(ns))
			}
		}
	}
	for a := range c.assets {
		if n.state[a] == opened {
			for k, size := range c.assets[a].size {
				r.rowUse[k] += float64(size)
			}
		}
		if r.used[a] {
			for k, size := range c.assets[a].size {
				r.taken[k] += size
			}
		}
	}
}

// fits reports whether what x opens keeps the limits over assets.
func (r *relaxation) fits() bool {
	for k, n := range r.taken {
		if n > r.c.rows[k].cap {
			return false
		}
	}
	return true
}

// prime gives a node without multipliers the first ones: one price for all limits that its free optimum breaks, relative
// to what each permits, searched for by powers of two; those who share an asset pay equal parts.
func (r *relaxation) prime(n *node) {
	c := r.c
	best := n.child()
	most := r.evaluate(n)
	if most == unreachable {
		return
	}
	r.usage(n)
	var over []int
	for k, use := range r.rowUse {
		if use > float64(c.rows[k].cap) || k < c.nRows && r.taken[k] > c.rows[k].cap {
			over = append(over, k)
		}
	}
	for g := 1.0 / (1 << 30); g <= 64; g *= 4 {
		for _, k := range over {
			n.mult[k] = float64(g*float64(c.worst)) / float64(max(c.rows[k].cap, 1))
		}
		for a := range c.assets {
			if as := &c.assets[a]; as.links != nil && n.state[a] == free {
				as.price = c.priceOf(n, as)
				c.portion(n, as)
			}
		}
		r.pass(n)
		v := r.evaluate(n)
		if v == unreachable || v < most {
			break
		}
		most = v
		copy(best.mult, n.mult)
		copy(best.lambda, n.lambda)
	}
	copy(n.mult, best.mult)
	copy(n.lambda, best.lambda)
	n.bound = max(n.bound, most)
}
