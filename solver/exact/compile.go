package exact

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// joint is a joint problem prepared for the search: classes of equal edges merged, choices that are never needed
// left out, assets merged that always appear together and left out where no limit can bind them.
//
// The search calculates in whole numbers: what is minimised is shifted so that the largest value any solution can have
// is near 2^50. Bounds are exact, and equal on every machine.
type joint struct {
	j     *problem.Joint
	shift int   // scaled = value * 2^shift
	worst int64 // scaled: no solution takes more of the measure
	clamp int64 // scaled: most that multipliers add to one choice

	parts  []jointPart
	items  []*jointItem // of all parts, in order
	assets []jointAsset
	rows   []row
	links  []link
	nRows  int // rows over assets; those after them are over paths
	slack  int64

	bestFree int64 // scaled: the optimum without limits
}

type jointPart struct {
	variants [][]*section // per set of processors without conflicts, per chain
	sets     []uint64
	first    int // item
	items    int
	chains   []int // first item of each chain
	rowTime  int   // row of its own time limit, -1: none
}

// jointItem is an item: arrays over its choices, numbered as in the problem.
type jointItem struct {
	part, chain, index int
	base               []int64 // scaled measure, of all executions
	cost               []int64 // with multipliers; shared by the sections
	ns                 []int64 // of all executions in one execution of the part
	nj                 []int64 // of all executions, times the weight of the part
	procs              []uint64
	before, after      []int32
	use                [][]int32 // assets by index into uses
	keep               []int32   // choices that may be needed, ascending
	least              float64   // scaled measure, and 1
	uses               []itemUse
	has                [][]bool  // per use and choice
	by                 [][]int32 // per use, the choices that name it
	edgeBase, edgeNS   []int64
	edge               []int64 // with multipliers; shared by the sections
}

// itemUse is an asset that some choices of an item name, and what they are charged for it.
type itemUse struct {
	asset  int32
	link   int32 // -1: the only item
	charge int64
}

// local is the index of an asset that some choices name in uses.
func (it *jointItem) local(a int) int {
	return slices.IndexFunc(it.uses, func(u itemUse) bool { return u.asset == int32(a) })
}

// jointAsset is one asset or several that always appear together.
type jointAsset struct {
	name  int     // lowest number in the problem
	fixed int64   // scaled measure of opening it
	size  []int64 // per row over assets
	users []int32 // items
	links []int32 // parallel to users; nil when there is one user
	price int64
}

// link is an item that uses an asset that other items use too: the item pays a part of the asset's price.
type link struct {
	asset, item int32
}

// row is a limit: over assets, or over paths.
type row struct {
	kind  problem.LimitKind
	index int
	cap   int64
	part  int // of a limit on one part's time, else -1
}

func compile(j *problem.Joint) (*joint, error) {
	c := &joint{j: j, parts: make([]jointPart, len(j.Parts))}
	for i := range j.Parts {
		var err error
		if c.parts[i].sets, err = variants(j.Parts[i].Partition); err != nil {
			return nil, err
		}
	}
	energy, memory := j.Minimise == problem.Energy, j.Minimise == problem.Memory
	var worst float64
	n := 0
	for i := range j.Parts {
		p := &j.Parts[i]
		for k := range p.Partition.Chains {
			n += len(p.Partition.Chains[k].Items)
		}
		worst += partWorst(p, energy)
	}
	if memory {
		worst = 0
		for a := range j.Assets {
			worst += float64(j.Assets[a].Bytes)
		}
	}
	c.shift = 50 - bits.Len64(uint64(worst))
	c.worst = c.scale(int64(worst)) + 1
	c.clamp = min(int64(1)<<50, int64(1)<<60/int64(n+1))

	c.addRows()
	used := c.addParts(energy, memory)
	c.addAssets(used, memory)
	for _, it := range c.items {
		c.reduce(it)
		it.least = 1
		if len(it.keep) > 0 {
			it.least += float64(it.base[slices.MinFunc(it.keep, func(a, b int32) int { return cmp.Compare(it.base[a], it.base[b]) })])
		}
	}
	c.slack = int64(len(c.items)+len(c.assets)) + 4
	return c, nil
}

// variants lists the sets of processors that a part is solved for: the largest without conflicts, of the
// processors that its choices use, with which every item can be executed.
func variants(p *problem.Partition) ([]uint64, error) {
	if len(p.Conflicts) == 0 {
		return []uint64{math.MaxUint64}, nil
	}
	sets, err := processorSets(p)
	if err != nil {
		return nil, err
	}
	var out []uint64
	blocked := ""
	for _, set := range sets {
		if stuck := stuck(p, set); stuck != "" {
			blocked = stuck
			continue
		}
		out = append(out, set)
	}
	if out == nil {
		return nil, noSet(p, blocked)
	}
	return out, nil
}

// stuck is the first item that no choice executes with processors of set.
func stuck(p *problem.Partition, set uint64) string {
	for k := range p.Chains {
		for i := range p.Chains[k].Items {
			if !slices.ContainsFunc(p.Chains[k].Items[i].Choices, func(c problem.Choice) bool { return mask(c.Procs)&^set == 0 }) {
				return p.Chains[k].Items[i].Name
			}
		}
	}
	return ""
}

// partWorst is the most that a part can take of the measure.
func partWorst(p *problem.Part, energy bool) float64 {
	var sum float64
	for k := range p.Partition.Chains {
		ch := &p.Partition.Chains[k]
		for i := range ch.Items {
			it := &ch.Items[i]
			var most, edge int64
			for n := range it.Choices {
				if energy {
					most = max(most, it.Choices[n].EnergyNJ)
				} else {
					most = max(most, it.Choices[n].CostNS)
				}
			}
			for _, r := range it.EdgeNS {
				for _, ns := range r {
					edge = max(edge, ns)
				}
			}
			if energy {
				edge = 0
			}
			sum += float64(p.Weight*int64(ch.Repeat)) * float64(most+edge)
		}
	}
	return sum
}

// scale rounds down where the values are too large to be shifted up: what is below the scaled sum is below the sum.
func (c *joint) scale(v int64) int64 {
	if c.shift >= 0 {
		return v << c.shift
	}
	return v >> -c.shift
}

// bound is the least whole value of the measure whose scaled value is at least v.
func (c *joint) bound(v int64) int64 {
	if c.shift >= 0 {
		return (v + 1<<c.shift - 1) >> c.shift
	}
	return v << -c.shift
}

func (c *joint) addRows() {
	j := c.j
	add := func(kind problem.LimitKind, index int, limit, all int64, part int) int {
		if limit == 0 || all <= limit {
			return -1
		}
		c.rows = append(c.rows, row{kind, index, limit, part})
		return len(c.rows) - 1
	}
	var bytes, open int64
	region, graphs := make([]int64, len(j.Regions)), make([]int64, len(j.Regions))
	for a := range j.Assets {
		as := &j.Assets[a]
		bytes, open = bytes+as.Bytes, open+as.OpenNS
		region[as.Region] += as.Bytes
		graphs[as.Region] += int64(as.Graphs)
	}
	if j.MaxBytes > 0 {
		// Resident bytes above the limit were refused before.
		if left := j.MaxBytes - j.Resident; bytes > left {
			c.rows = append(c.rows, row{problem.LimitBytes, 0, left, -1})
		}
	}
	add(problem.LimitOpenNS, 0, j.MaxOpenNS, open, -1)
	for r := range j.Regions {
		add(problem.LimitRegionBytes, r, j.Regions[r].MaxBytes, region[r], -1)
		add(problem.LimitRegionGraphs, r, int64(j.Regions[r].MaxGraphs), graphs[r], -1)
	}
	c.nRows = len(c.rows)
	for i := range j.Parts {
		c.parts[i].rowTime = add(problem.LimitPartNS, i, j.Parts[i].MaxNS, math.MaxInt64, i)
	}
	add(problem.LimitTimeNS, 0, j.MaxTimeNS, math.MaxInt64, -1)
	add(problem.LimitEnergyNJ, 0, j.MaxEnergyNJ, math.MaxInt64, -1)
}

// addParts lists the items, and returns for every asset the items that name it.
func (c *joint) addParts(energy, memory bool) (used [][]int32) {
	used = make([][]int32, len(c.j.Assets))
	for i := range c.j.Parts {
		p := &c.j.Parts[i]
		part := &c.parts[i]
		part.first = len(c.items)
		var widths [][2][]classes // per chain, before and after
		for k := range p.Partition.Chains {
			ch := &p.Partition.Chains[k]
			part.chains = append(part.chains, len(c.items))
			before, after := mergeClasses(ch)
			for n := range ch.Items {
				it := &ch.Items[n]
				x := &jointItem{part: i, chain: k, index: n}
				for q := range it.Choices {
					o := &it.Choices[q]
					x.ns = append(x.ns, int64(ch.Repeat)*o.CostNS)
					x.nj = append(x.nj, p.Weight*int64(ch.Repeat)*o.EnergyNJ)
					switch {
					case memory:
						x.base = append(x.base, 0)
					case energy:
						x.base = append(x.base, c.scale(x.nj[q]))
					default:
						x.base = append(x.base, c.scale(p.Weight*x.ns[q]))
					}
					x.procs = append(x.procs, mask(o.Procs))
					x.before, x.after = append(x.before, before[n].to[o.Before]), append(x.after, after[n].to[o.After])
					for _, a := range o.Assets {
						if u := used[a]; len(u) == 0 || u[len(u)-1] != int32(len(c.items)) {
							used[a] = append(u, int32(len(c.items)))
						}
					}
				}
				x.cost = slices.Clone(x.base)
				prev := (n + len(ch.Items) - 1) % len(ch.Items)
				times := int64(ch.Repeat)
				if n == 0 {
					times = int64(ch.Wraps())
				}
				if len(it.EdgeNS) > 0 {
					for _, a := range after[prev].class {
						for _, b := range before[n].class {
							ns := times * it.EdgeNS[a][b]
							x.edgeNS = append(x.edgeNS, ns)
							if energy || memory {
								ns = 0
							}
							x.edgeBase = append(x.edgeBase, c.scale(p.Weight*ns))
						}
					}
				}
				x.edge = slices.Clone(x.edgeBase)
				c.items = append(c.items, x)
			}
			widths = append(widths, [2][]classes{before, after})
		}
		part.items = len(c.items) - part.first
		for range part.sets {
			var variant []*section
			for k := range p.Partition.Chains {
				s := &section{loop: p.Partition.Chains[k].Wraps() > 0, steps: make([]step, len(p.Partition.Chains[k].Items))}
				for n := range s.steps {
					x := c.items[part.chains[k]+n]
					s.steps[n] = step{cost: x.cost, before: x.before, after: x.after, edge: x.edge, nb: len(widths[k][0][n].class), na: len(widths[k][1][n].class)}
				}
				s.scratch()
				variant = append(variant, s)
			}
			part.variants = append(part.variants, variant)
		}
	}
	return used
}

// classes maps location classes to merged ones; class[m] is one class of merged class m.
type classes struct {
	to    []int32
	class []int
}

// mergeClasses merges classes with equal edges.
func mergeClasses(ch *problem.Chain) (before, after []classes) {
	merge := func(n int, same func(a, b int) bool) classes {
		var c classes
		for a := range n {
			m := slices.IndexFunc(c.class, func(b int) bool { return same(a, b) })
			if m < 0 {
				m = len(c.class)
				c.class = append(c.class, a)
			}
			c.to = append(c.to, int32(m))
		}
		return c
	}
	for i := range ch.Items {
		it := &ch.Items[i]
		before = append(before, merge(len(it.Before), func(a, b int) bool {
			for _, r := range it.EdgeNS {
				if r[a] != r[b] {
					return false
				}
			}
			return true
		}))
		next := &ch.Items[(i+1)%len(ch.Items)]
		after = append(after, merge(len(it.After), func(a, b int) bool {
			return len(next.EdgeNS) == 0 || slices.Equal(next.EdgeNS[a], next.EdgeNS[b])
		}))
	}
	return before, after
}

// addAssets merges assets that the same choices name, leaves out those that no limit binds, and lists the links.
func (c *joint) addAssets(used [][]int32, memory bool) {
	j := c.j
	size := func(a int) []int64 {
		as := &j.Assets[a]
		out := make([]int64, c.nRows)
		for r, l := range c.rows[:c.nRows] {
			switch l.kind {
			case problem.LimitBytes:
				out[r] = as.Bytes
			case problem.LimitOpenNS:
				out[r] = as.OpenNS
			case problem.LimitRegionBytes:
				if as.Region == l.index {
					out[r] = as.Bytes
				}
			case problem.LimitRegionGraphs:
				if as.Region == l.index {
					out[r] = int64(as.Graphs)
				}
			}
		}
		return out
	}
	// Which choices name an asset, as text.
	names := make([][]byte, len(j.Assets))
	for n, x := range c.items {
		choices := j.Parts[x.part].Partition.Chains[x.chain].Items[x.index].Choices
		for q := range choices {
			for _, a := range choices[q].Assets {
				names[a] = binary.AppendUvarint(binary.AppendUvarint(names[a], uint64(n)), uint64(q))
			}
		}
	}
	number := make([]int32, len(j.Assets)) // of the merged asset, -1: none
	seen := map[string]int32{}
	for a := range j.Assets {
		number[a] = -1
		s := size(a)
		free := !memory || j.Assets[a].Bytes == 0
		if len(used[a]) == 0 || free && !slices.ContainsFunc(s, func(n int64) bool { return n != 0 }) {
			continue
		}
		m, ok := seen[string(names[a])]
		if !ok {
			m = int32(len(c.assets))
			seen[string(names[a])] = m
			c.assets = append(c.assets, jointAsset{name: a, size: make([]int64, c.nRows), users: used[a]})
		}
		number[a] = m
		as := &c.assets[m]
		for r := range s {
			as.size[r] += s[r]
		}
		if memory {
			as.fixed += c.scale(j.Assets[a].Bytes)
		}
	}
	for n, x := range c.items {
		choices := j.Parts[x.part].Partition.Chains[x.chain].Items[x.index].Choices
		local := map[int32]int32{}
		x.use = make([][]int32, len(choices))
		for q := range choices {
			for _, a := range choices[q].Assets {
				m := number[a]
				if m < 0 {
					continue
				}
				u, ok := local[m]
				if !ok {
					u = int32(len(x.uses))
					local[m] = u
					l := int32(-1)
					if as := &c.assets[m]; len(as.users) > 1 {
						l = int32(len(c.links))
						as.links = append(as.links, l)
						c.links = append(c.links, link{m, int32(n)})
					}
					x.uses = append(x.uses, itemUse{asset: m, link: l})
				}
				if !slices.Contains(x.use[q], u) {
					x.use[q] = append(x.use[q], u)
				}
			}
			slices.Sort(x.use[q])
		}
		x.has, x.by = make([][]bool, len(x.uses)), make([][]int32, len(x.uses))
		for u := range x.has {
			x.has[u] = make([]bool, len(choices))
		}
		for q, list := range x.use {
			for _, u := range list {
				x.has[u][q] = true
				x.by[u] = append(x.by[u], int32(q))
			}
		}
	}
}

// reduce keeps the choices of an item that may be in the first of the optimal solutions. A choice is not when
// another that hands over alike takes no more of anything, and either less of the measure or comes first.
func (c *joint) reduce(x *jointItem) {
	p := &c.j.Parts[x.part]
	conflicts := len(p.Partition.Conflicts) > 0
	timed := c.j.MaxTimeNS > 0 || p.MaxNS > 0
	powered := c.j.MaxEnergyNJ > 0
	value := x.base
	if c.shift < 0 { // rounded
		if value = x.ns; c.j.Minimise == problem.Energy {
			value = x.nj
		}
	}
	better := func(a, b int32) bool { // a instead of b
		switch {
		case x.before[a] != x.before[b], x.after[a] != x.after[b], value[a] > value[b]:
			return false
		case timed && x.ns[a] > x.ns[b], powered && x.nj[a] > x.nj[b], conflicts && x.procs[a]&^x.procs[b] != 0:
			return false
		case !(a < b || value[a] < value[b] && p.Weight > 0):
			return false
		}
		return subset(x.use[a], x.use[b])
	}
	for b := range x.base {
		drop := false
		for _, u := range x.use[b] { // larger than a limit permits
			for r, n := range c.assets[x.uses[u].asset].size {
				drop = drop || n > c.rows[r].cap
			}
		}
		if !drop {
			x.keep = append(x.keep, int32(b))
		}
	}
	all := slices.Clone(x.keep)
	x.keep = slices.DeleteFunc(x.keep, func(b int32) bool {
		return slices.ContainsFunc(all, func(a int32) bool { return a != b && better(a, b) })
	})
}

// subset reports whether all of a, ascending, is in b, ascending.
func subset(a, b []int32) bool {
	k := 0
	for _, v := range a {
		for k < len(b) && b[k] < v {
			k++
		}
		if k == len(b) || b[k] != v {
			return false
		}
	}
	return true
}
