package exact

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// prepared is a joint problem prepared for the search. Classes with equal edges are merged, and dominated choices are
// left out. Assets that always appear together are merged, and those that no limit can bind are left out.
//
// The search calculates in whole numbers. The measure that is minimised is shifted so that the largest value of any
// solution is near 2^50. Bounds are exact, and equal on every machine.
type prepared struct {
	joint *problem.Joint
	shift int   // scaled = value * 2^shift
	worst int64 // scaled: an upper bound of the measure of any solution
	clamp int64 // scaled: the most that multipliers add to one choice

	// The instance in dense form. Items, assets, links and rows are numbered across all parts.
	parts  []jointPart
	items  []*jointItem // of all parts, in order
	assets []jointAsset
	links  []link
	rows   []row
	// The first assetRows rows are over assets, those after them over paths.
	assetRows          int
	timeRow, energyRow int   // rows of the limits on weighted time and energy, -1: none
	slack              int64 // scaled: most that roundings can raise a bound
}

// jointPart is a part of the problem, which is a program: its items, and its chains once for each set of processors.
type jointPart struct {
	variants [][]*chain // per set of processors without conflicts, per chain
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
	cost               []int64 // with multipliers; shared by the variants' chains
	timeNS             []int64 // of all executions in one execution of the part
	energyNJ           []int64 // of all executions, times the weight of the part
	procs              []uint64
	before, after      []int32
	use                [][]int32 // assets by index into uses
	keep               []int32   // choices that may be needed, ascending
	least              float64   // scaled measure, and 1
	uses               []itemUse
	has                [][]bool  // per use and choice
	namedBy            [][]int32 // per use, the choices that name it
	edgeBase, edgeNS   []int64
	edge               []int64 // with multipliers; shared by the variants' chains
}

// itemUse is an asset that some choices of an item name, and the charge of such a choice for it.
type itemUse struct {
	asset  int32
	link   int32 // -1: the only item
	charge int64 // scaled, of one choice that names it
}

// local returns the index in uses of an asset that some choices name.
func (it *jointItem) local(asset int) int {
	return slices.IndexFunc(it.uses, func(use itemUse) bool { return use.asset == int32(asset) })
}

// jointAsset is one asset or several that always appear together.
type jointAsset struct {
	fixed int64   // scaled measure of opening it
	size  []int64 // per row over assets
	users []int32 // items
	links []int32 // parallel to users; nil when there is one user
	price int64   // scaled: fixed, and what it takes of limits at their prices
}

// link is an item that uses an asset that other items use too: the item pays a part of the asset's price.
type link struct {
	asset, item int32
}

// row is a limit: over assets, or over paths.
type row struct {
	kind  problem.LimitKind
	index int   // of the part or region
	cap   int64 // in the limit's own unit
}

// compile prepares a valid joint problem.
func compile(joint *problem.Joint) (*prepared, error) {
	prep := &prepared{joint: joint, parts: make([]jointPart, len(joint.Parts))}
	items := 0
	for part := range joint.Parts {
		var err error
		if prep.parts[part].sets, err = processorSets(joint.Parts[part].Partition); err != nil {
			return nil, err
		}

		for _, source := range joint.Parts[part].Partition.Chains {
			items += len(source.Items)
		}
	}
	// Values stay near 2^50, and what multipliers add to all items together below 2^60: no sum overflows.
	worst := worstMeasure(joint)
	prep.shift = 50 - bits.Len64(uint64(worst))
	prep.worst = prep.scale(int64(worst)) + 1
	prep.clamp = min(int64(1)<<50, int64(1)<<60/int64(items+1))

	// Rows first, then items, then assets (which need both), and at last what can be left out.
	prep.addRows()
	prep.addAssets(prep.addParts())
	for _, it := range prep.items {
		prep.reduce(it)

		it.least = 1
		if len(it.keep) > 0 {
			least := it.base[it.keep[0]]
			for _, choice := range it.keep {
				least = min(least, it.base[choice])
			}
			it.least += float64(least)
		}
	}
	prep.slack = int64(len(prep.items)+len(prep.assets)) + 4
	return prep, nil
}

// worstMeasure returns an upper bound of the measure of any solution.
func worstMeasure(joint *problem.Joint) (worst float64) {
	if joint.Minimise == problem.Memory {
		for asset := range joint.Assets {
			worst += float64(joint.Assets[asset].Bytes)
		}
		return worst
	}
	for part := range joint.Parts {
		worst += partWorst(&joint.Parts[part], joint.Minimise == problem.Energy)
	}
	return worst
}

// partWorst returns an upper bound of the time or energy of a part.
func partWorst(part *problem.Part, energy bool) float64 {
	var sum float64
	for k := range part.Partition.Chains {
		source := &part.Partition.Chains[k]
		for i := range source.Items {
			item := &source.Items[i]
			var most, edge int64
			for j := range item.Choices {
				choice := &item.Choices[j]
				if energy {
					most = max(most, choice.EnergyNJ)
				} else {
					most = max(most, choice.CostNS)
				}
			}
			if !energy {
				for _, row := range item.EdgeNS {
					edge = max(edge, slices.Max(row))
				}
			}
			sum += float64(part.Weight*int64(source.Repeat)) * float64(most+edge)
		}
	}
	return sum
}

// scale shifts a value. Where values are so large that they are shifted down it rounds down, so that a lower bound of
// the scaled sum stays a lower bound of the sum.
func (c *prepared) scale(value int64) int64 {
	if c.shift >= 0 {
		return value << c.shift
	}
	return value >> -c.shift
}

// bound returns the least whole value of the measure whose scaled value is at least scaled.
func (c *prepared) bound(scaled int64) int64 {
	if c.shift >= 0 {
		return (scaled + 1<<c.shift - 1) >> c.shift
	}
	return scaled << -c.shift
}

// addRows lists the limits that some choices can break.
func (c *prepared) addRows() {
	joint := c.joint
	add := func(kind problem.LimitKind, index int, limit, all int64) int {
		if limit == 0 || all <= limit {
			return -1
		}
		c.rows = append(c.rows, row{kind, index, limit})
		return len(c.rows) - 1
	}

	var bytes, open int64
	region, graphs := make([]int64, len(joint.Regions)), make([]int64, len(joint.Regions))
	for number := range joint.Assets {
		asset := &joint.Assets[number]
		bytes, open = bytes+asset.Bytes, open+asset.OpenNS
		region[asset.Region] += asset.Bytes
		graphs[asset.Region] += int64(asset.Graphs)
	}

	if joint.MaxBytes > 0 {
		// Resident bytes above the limit were refused before.
		if left := joint.MaxBytes - joint.Resident; bytes > left {
			c.rows = append(c.rows, row{problem.LimitBytes, 0, left})
		}
	}
	add(problem.LimitOpenNS, 0, joint.MaxOpenNS, open)

	// A region limits the bytes and the number of graphs of what opens in it.
	for at := range joint.Regions {
		add(problem.LimitRegionBytes, at, joint.Regions[at].MaxBytes, region[at])
		add(problem.LimitRegionGraphs, at, int64(joint.Regions[at].MaxGraphs), graphs[at])
	}

	c.assetRows = len(c.rows)
	for part := range joint.Parts {
		c.parts[part].rowTime = add(problem.LimitPartNS, part, joint.Parts[part].MaxNS, math.MaxInt64)
	}

	c.timeRow = add(problem.LimitTimeNS, 0, joint.MaxTimeNS, math.MaxInt64)
	c.energyRow = add(problem.LimitEnergyNJ, 0, joint.MaxEnergyNJ, math.MaxInt64)
}

// pathRows reports whether there are limits on times or energy.
func (c *prepared) pathRows() bool { return len(c.rows) > c.assetRows }

// addParts lists the items, and returns for every asset the items that name it.
func (c *prepared) addParts() (users [][]int32) {
	users = make([][]int32, len(c.joint.Assets))
	for partAt := range c.joint.Parts {
		source, part := c.joint.Parts[partAt].Partition, &c.parts[partAt]
		part.first = len(c.items)
		var merged []chainClasses
		for k := range source.Chains {
			from := &source.Chains[k]
			part.chains = append(part.chains, len(c.items))

			classes := mergeClasses(from)
			for i := range from.Items {
				number := int32(len(c.items))
				for _, choice := range from.Items[i].Choices {
					for _, asset := range choice.Assets {
						if list := users[asset]; len(list) == 0 || list[len(list)-1] != number {
							users[asset] = append(list, number)
						}
					}
				}
				c.items = append(c.items, c.newItem(partAt, k, i, &classes))
			}
			merged = append(merged, classes)
		}
		part.items = len(c.items) - part.first
		for range part.sets {
			part.variants = append(part.variants, c.newVariant(part, source, merged))
		}
	}
	return users
}

// newItem prepares an item, by the numbers of its part, of its chain there and of the item in that.
func (c *prepared) newItem(partAt, chainAt, itemAt int, classes *chainClasses) *jointItem {
	part := &c.joint.Parts[partAt]
	source := &part.Partition.Chains[chainAt]
	from := &source.Items[itemAt]
	it := &jointItem{part: partAt, chain: chainAt, index: itemAt}

	repeat := int64(source.Repeat)

	for at := range from.Choices {
		choice := &from.Choices[at]
		it.timeNS = append(it.timeNS, repeat*choice.CostNS)
		it.energyNJ = append(it.energyNJ, part.Weight*repeat*choice.EnergyNJ)
		switch c.joint.Minimise {
		case problem.Memory:
			it.base = append(it.base, 0)
		case problem.Energy:
			it.base = append(it.base, c.scale(it.energyNJ[at]))
		default:
			it.base = append(it.base, c.scale(part.Weight*it.timeNS[at]))
		}

		it.procs = append(it.procs, mask(choice.Procs))
		it.before = append(it.before, classes.before[itemAt].to[choice.Before])
		it.after = append(it.after, classes.after[itemAt].to[choice.After])
	}

	// The edge into the item, between merged classes. The last item of a chain that repeats leads into the first.
	it.cost = slices.Clone(it.base)
	if len(from.EdgeNS) > 0 {
		prev := (itemAt + len(source.Items) - 1) % len(source.Items)
		times := edgeTimes(source, itemAt)
		for _, left := range classes.after[prev].class {
			for _, read := range classes.before[itemAt].class {
				ns := times * from.EdgeNS[left][read]
				it.edgeNS = append(it.edgeNS, ns)
				if c.joint.Minimise == problem.Energy || c.joint.Minimise == problem.Memory {
					ns = 0
				}
				it.edgeBase = append(it.edgeBase, c.scale(part.Weight*ns))
			}
		}
	}

	it.edge = slices.Clone(it.edgeBase)
	return it
}

// newVariant makes the chains of a part for one set of processors. All variants share the items' costs and edges.
func (c *prepared) newVariant(part *jointPart, source *problem.Partition, merged []chainClasses) (variant []*chain) {
	for index := range source.Chains {
		out := &chain{loop: source.Chains[index].Wraps() > 0}
		for i := range source.Chains[index].Items {
			it := c.items[part.chains[index]+i]
			out.items = append(out.items, chainItem{
				cost: it.cost, before: it.before, after: it.after, edge: it.edge,
				nBefore: len(merged[index].before[i].class), nAfter: len(merged[index].after[i].class),
			})
		}
		out.scratch()
		variant = append(variant, out)
	}
	return variant
}

// chainClasses are the merged classes of a chain's items.
type chainClasses struct{ before, after []classes }

// classes maps location classes to merged ones; class[m] is one class of merged class m.
type classes struct {
	to    []int32
	class []int
}

// mergeClasses merges classes with equal edges.
func mergeClasses(source *problem.Chain) (out chainClasses) {
	merge := func(count int, same func(a, b int) bool) (merged classes) {
		for class := range count {
			at := slices.IndexFunc(merged.class, func(other int) bool { return same(class, other) })
			if at < 0 {
				at = len(merged.class)
				merged.class = append(merged.class, class)
			}
			merged.to = append(merged.to, int32(at))
		}
		return merged
	}

	for i := range source.Items {
		it := &source.Items[i]
		out.before = append(out.before, merge(len(it.Before), func(a, b int) bool {
			return !slices.ContainsFunc(it.EdgeNS, func(row []int64) bool { return row[a] != row[b] })
		}))

		next := &source.Items[(i+1)%len(source.Items)]
		out.after = append(out.after, merge(len(it.After), func(a, b int) bool {
			return len(next.EdgeNS) == 0 || slices.Equal(next.EdgeNS[a], next.EdgeNS[b])
		}))
	}
	return out
}

// addAssets lists the assets that some limit or the measure counts, and the links. users are the items of each asset.
func (c *prepared) addAssets(users [][]int32) {
	merged := c.mergeAssets(users)
	for user, it := range c.items {
		c.linkItem(int32(user), it, merged)
	}
}

// sourceChoices returns the choices of an item in the problem.
func (c *prepared) sourceChoices(it *jointItem) []problem.Choice {
	return c.joint.Parts[it.part].Partition.Chains[it.chain].Items[it.index].Choices
}

// mergeAssets merges assets that the same choices name, and leaves out those that no limit binds. It returns the number
// of each asset's merged one, -1 where there is none.
func (c *prepared) mergeAssets(users [][]int32) (merged []int32) {
	joint := c.joint

	// Assets named by the same choices open together, so that one number can stand for them.
	signatures := make([][]byte, len(joint.Assets)) // the choices that name an asset
	for item, it := range c.items {
		for choiceAt, choice := range c.sourceChoices(it) {
			for _, asset := range choice.Assets {
				signature := binary.AppendUvarint(signatures[asset], uint64(item))
				signatures[asset] = binary.AppendUvarint(signature, uint64(choiceAt))
			}
		}
	}

	merged = make([]int32, len(joint.Assets))
	seen := map[string]int32{}
	for at := range joint.Assets {
		merged[at] = -1
		size := make([]int64, c.assetRows)
		for rowAt, row := range c.rows[:c.assetRows] {
			size[rowAt] = takenOf(&joint.Assets[at], problem.Limit{Kind: row.kind, Index: row.index})
		}
		// An asset matters where the measure counts its bytes, or where some row limits it.
		counts := joint.Minimise == problem.Memory && joint.Assets[at].Bytes != 0
		limited := slices.ContainsFunc(size, func(amount int64) bool { return amount != 0 })
		if len(users[at]) == 0 || !counts && !limited {
			continue
		}

		number, ok := seen[string(signatures[at])]
		if !ok {
			number = int32(len(c.assets))
			seen[string(signatures[at])] = number
			c.assets = append(c.assets, jointAsset{size: make([]int64, c.assetRows), users: users[at]})
		}

		merged[at] = number
		for rowAt := range size {
			c.assets[number].size[rowAt] += size[rowAt]
		}
		if joint.Minimise == problem.Memory {
			c.assets[number].fixed += c.scale(joint.Assets[at].Bytes)
		}
	}
	return merged
}

// linkItem lists the merged assets that the choices of an item name, with a link to each that other items use too. user
// is the item's number.
func (c *prepared) linkItem(user int32, it *jointItem, merged []int32) {
	choices := c.sourceChoices(it)
	local := map[int32]int32{} // index into uses
	it.use = make([][]int32, len(choices))
	for choice := range choices {
		for _, asset := range choices[choice].Assets {
			number := merged[asset]
			if number < 0 {
				continue
			}
			use, ok := local[number]
			if !ok {
				use = int32(len(it.uses))
				local[number] = use
				it.uses = append(it.uses, itemUse{asset: number, link: c.newLink(number, user)})
			}
			if !slices.Contains(it.use[choice], use) {
				it.use[choice] = append(it.use[choice], use)
			}
		}
		slices.Sort(it.use[choice])
	}

	it.has, it.namedBy = make([][]bool, len(it.uses)), make([][]int32, len(it.uses))
	for use := range it.has {
		it.has[use] = make([]bool, len(choices))
	}

	for choice, list := range it.use {
		for _, use := range list {
			it.has[use][choice] = true
			it.namedBy[use] = append(it.namedBy[use], int32(choice))
		}
	}
}

// newLink links an item to an asset, and returns the link's number; -1 where no other item uses the asset.
func (c *prepared) newLink(number, item int32) int32 {
	asset := &c.assets[number]
	if len(asset.users) < 2 {
		return -1
	}
	at := int32(len(c.links))
	asset.links = append(asset.links, at)
	c.links = append(c.links, link{number, item})
	return at
}

// reduce keeps the choices of an item that may be in the first of the optimal solutions: those that no limit forbids
// alone and that no other choice makes superfluous.
func (c *prepared) reduce(it *jointItem) {
	for choice := range it.base {
		// A choice with an asset that alone exceeds a limit is in no solution.
		tooLarge := slices.ContainsFunc(it.use[choice], func(use int32) bool {
			for row, size := range c.assets[it.uses[use].asset].size {
				if size > c.rows[row].cap {
					return true
				}
			}
			return false
		})
		if !tooLarge {
			it.keep = append(it.keep, int32(choice))
		}
	}

	// Dominance: among equal choices the first stays, so that the first of the optimal solutions is not lost.
	all := slices.Clone(it.keep)
	it.keep = slices.DeleteFunc(it.keep, func(choice int32) bool {
		better := func(other int32) bool { return other != choice && c.replaces(it, other, choice) }
		return slices.ContainsFunc(all, better)
	})
}

// replaces reports whether a choice of an item is never needed because of another one. That one hands over alike, takes
// no more of anything, and either takes less of the measure or comes first.
func (c *prepared) replaces(it *jointItem, other, choice int32) bool {
	part := &c.joint.Parts[it.part]
	value := it.base
	if c.shift < 0 { // rounded
		if value = it.timeNS; c.joint.Minimise == problem.Energy {
			value = it.energyNJ
		}
	}

	timed := c.joint.MaxTimeNS > 0 || part.MaxNS > 0
	cheaper := value[other] < value[choice] && part.Weight > 0
	switch {
	case it.before[other] != it.before[choice], it.after[other] != it.after[choice], value[other] > value[choice]:
		return false
	case timed && it.timeNS[other] > it.timeNS[choice]:
		return false
	case c.joint.MaxEnergyNJ > 0 && it.energyNJ[other] > it.energyNJ[choice]:
		return false
	case len(part.Partition.Conflicts) > 0 && it.procs[other]&^it.procs[choice] != 0:
		return false
	}
	return (other < choice || cheaper) && subset(it.use[other], it.use[choice])
}

// subset reports whether all of part, ascending, is in whole, ascending.
func subset(part, whole []int32) bool {
	at := 0
	for _, wanted := range part {
		for at < len(whole) && whole[at] < wanted {
			at++
		}
		if at == len(whole) || whole[at] != wanted {
			return false
		}
	}
	return true
}
