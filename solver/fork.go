package solver

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// Branches side by side.
//
// A chain adds up the times of its operators. A section may fork into two branches that need nothing of each other:
// attention and feed-forward of a parallel block, or routed and shared experts. Lanes execute both at once as long as
// no processor has work in both. The fork is solved by dynamic programming over the set of processors of either
// branch: for disjoint sets P and Q, and the locations of what enters and leaves,
//
//	min over choices of max(first, second) =
//		max(min over choices within P of first, min over choices within Q of second),
//
// since either branch is a chain of its own. Each result becomes a way through the fork's items beside the ways that
// the chain has: it takes the time of the longer branch once and nothing afterwards. Engines see an ordinary chain.
//
// Branches that run at once share the memory's bandwidth. Each way is therefore priced by going through both branches
// together (contendedNS); the dynamic programme, in which neither slows the other, bounds that from below. Of a pair of
// sets it only finds the ways that are fastest without contention: where one branch had better leave bandwidth to the
// other, "optimal" is about the ways that are posed. A branch that uses a processor of the other one for part of the
// time is posed as if it did so throughout, one after the other.

// forkJoin is a part of a section: nodes after split up to second are one branch, those from second up to join the
// other. join is the first node that needs both.
type forkJoin struct {
	split, second, join int
	entry               forkHandover // of the second branch's first node for split
	exit                forkHandover // of join for the first branch's last node
	cache               *forkCache   // what is known of it, also to other sections that have the same fork
	paths               []path
	pieces              map[[2]int][]piece // of nodes and choices
}

// forkHandover is the matrix of hand-over times between two nodes that are not neighbours in the chain: from the class
// in which the writer leaves its outputs to the class from which the reader reads them.
type forkHandover struct {
	class []int // of each choice of the reader
	ns    [][]int64
}

// path is a way through a fork: a choice for every node after split up to and with join.
type path struct {
	choices []int
	entry   int   // class in which split leaves its outputs
	ns      int64 // from there until join is done
}

// follows reports whether a node must come after an earlier one: it reads or changes what that writes, or changes
// what that reads.
func follows(later, earlier *lower.Node) bool {
	common := func(names, others []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(others, name) })
	}
	return common(later.In, earlier.Out) || common(later.Out, earlier.Out) || common(later.Out, earlier.In)
}

// findForks lists the forks of a section that have products in both branches; none of them overlaps another. Forks with
// the slots of experts in one branch and dynamic products in the other come first, then those with most products in the
// smaller branch.
func findForks(sec *lower.Section) (out []forkJoin) {
	products := func(from, to int) int { return countNodes(sec.Nodes[from:to], (*op.Op).HasMatrix) }
	smaller := func(fork forkJoin) int {
		return min(products(fork.split+1, fork.second), products(fork.second, fork.join))
	}
	// The slots of experts, of whatever groups, are executed beside the dynamic products.
	isSlot := func(operator *op.Op) bool { return operator.Kind == op.GroupMatMul }
	allSlots := countNodes(sec.Nodes, isSlot)
	slotsApart := func(fork forkJoin) int {
		first := countNodes(sec.Nodes[fork.split+1:fork.second], isSlot)
		second := countNodes(sec.Nodes[fork.second:fork.join], isSlot)
		if allSlots > 0 && first == allSlots && second == 0 {
			return 1
		}
		return 0
	}

	found := allForks(sec.Nodes)
	slices.SortStableFunc(found, func(a, b forkJoin) int {
		return cmp.Or(cmp.Compare(slotsApart(b), slotsApart(a)), cmp.Compare(smaller(b), smaller(a)))
	})
	for _, fork := range found {
		overlaps := func(other forkJoin) bool { return fork.split <= other.join && other.split <= fork.join }
		if !slices.ContainsFunc(out, overlaps) {
			out = append(out, fork)
		}
	}
	return out
}

// allForks lists the forks that have products in both branches, by the first node of the second branch. That node does
// not follow the node before it. split is the last node that it follows, and join is the first node that follows the
// first branch.
func allForks(nodes []lower.Node) (found []forkJoin) {
	products := func(from, to int) int { return countNodes(nodes[from:to], (*op.Op).HasMatrix) }
	for second := 2; second < len(nodes); second++ {
		split := second - 1
		for split >= 0 && !follows(&nodes[second], &nodes[split]) {
			split--
		}
		if split < 0 || split == second-1 {
			continue
		}
		first := nodes[split+1 : second]
		join := second + 1
		for join < len(nodes) && !followsAny(&nodes[join], first) {
			join++
		}
		if join < len(nodes) && products(split+1, second) > 0 && products(second, join) > 0 {
			found = append(found, forkJoin{split: split, second: second, join: join})
		}
	}
	return found
}

// followsAny reports whether a node must come after at least one of those before it.
func followsAny(later *lower.Node, earlier []lower.Node) bool {
	return slices.ContainsFunc(earlier, func(node lower.Node) bool { return follows(later, &node) })
}

// countNodes returns how many nodes have a main operator of some kind.
func countNodes(nodes []lower.Node, is func(*op.Op) bool) (count int) {
	for i := range nodes {
		if operator := nodes[i].Op(); is(&operator) {
			count++
		}
	}
	return count
}

// sideBySide reports whether the branches of a fork use no processor and no thread in common: lanes then execute both
// at once.
func (in *instance) sideBySide(fork *forkJoin, choices []int) bool {
	var first, second uint64
	for i := fork.split + 1; i < fork.join; i++ {
		if i < fork.second {
			first |= in.masks[i][choices[i]]
		} else {
			second |= in.masks[i][choices[i]]
		}
	}
	return in.section.SideBySide(first, second)
}

// costOf returns the cost that counts for a node's choice, in ns.
type costOf func(node, choice int) int64

// cost returns what a choice of a node takes by itself, in the objective's unit.
func (in *instance) cost(node, choice int) int64 { return in.chain.Items[node].Choices[choice].CostNS }

// sideBySideNS returns the time from the end of split to the end of join when the fork's branches run side by side.
func (in *instance) sideBySideNS(fork *forkJoin, choices []int, of costOf) int64 {
	ns := in.uncontendedNS(fork, choices, of)
	if in.section.Memory == nil {
		return ns
	}
	return max(ns, in.contendedNS(fork, choices, fork.join+1, of))
}

// uncontendedNS returns the time of sideBySideNS if neither branch slowed the other.
func (in *instance) uncontendedNS(fork *forkJoin, choices []int, of costOf) int64 {
	var done [2]int64
	for i := fork.split + 1; i < fork.join; i++ {
		branch := 0
		if i >= fork.second {
			branch = 1
		}
		done[branch] += in.forkEntry(fork, choices, i, choices[i]) + of(i, choices[i])
	}
	from := in.chain.Items[fork.second-1].Choices[choices[fork.second-1]].After
	to := choices[fork.join]
	return max(done[0]+fork.exit.ns[from][fork.exit.class[to]],
		done[1]+in.neighbourHandover(fork.join, choices[fork.join-1], to)) + of(fork.join, to)
}

// neighbourHandover returns the hand-over between neighbours of the chain.
func (in *instance) neighbourHandover(node, before, choice int) int64 {
	item := &in.chain.Items[node]
	if len(item.EdgeNS) == 0 {
		return 0
	}
	previous := (node + len(in.chain.Items) - 1) % len(in.chain.Items)
	from, to := in.chain.Items[previous].Choices[before].After, item.Choices[choice].Before
	return item.EdgeNS[from][to]
}

// forkEntry returns the hand-over into a node of a branch whose fork runs side by side.
func (in *instance) forkEntry(fork *forkJoin, choices []int, node, choice int) int64 {
	if node == fork.second {
		from := in.chain.Items[fork.split].Choices[choices[fork.split]].After
		return fork.entry.ns[from][fork.entry.class[choice]]
	}
	return in.neighbourHandover(node, choices[node-1], choice)
}

// sectionNS returns the time of one execution of the section, with the hand-over into its first node where there is
// one.
func (in *instance) sectionNS(choices []int, of costOf) (total int64) {
	one := func(i int) int64 {
		return in.neighbourHandover(i, choices[(i+len(choices)-1)%len(choices)], choices[i]) + of(i, choices[i])
	}
	for i := 0; i < len(choices); i++ {
		total += one(i)
		fork := in.forkAfter(i)
		if fork == nil {
			continue
		}

		var across int64 // one branch after the other
		for i++; i <= fork.join; i++ {
			across += one(i)
		}
		i--
		if in.sideBySide(fork, choices) {
			across = min(across, in.sideBySideNS(fork, choices, of))
		}
		total += across
	}
	return total
}

// forkAfter returns the fork that begins behind a node, nil for none.
func (in *instance) forkAfter(node int) *forkJoin {
	for i := range in.forks {
		if in.forks[i].split == node {
			return &in.forks[i]
		}
	}
	return nil
}

// forkOf returns the fork that a node's price depends on, nil where it stands in the chain alone.
func (in *instance) forkOf(node int) *forkJoin {
	for i := range in.forks {
		if fork := &in.forks[i]; fork.split <= node && node <= fork.join {
			return fork
		}
	}
	return nil
}

// How many ways through a fork are posed at most, and how many of one pair of sets are looked at that contention
// slows.
const (
	maxPaths  = 48
	maxSlowed = 6
)

// findPaths finds the ways through each of the section's forks that may be better than the chain, and poses them.
func (in *instance) findPaths() {
	if len(in.forks) == 0 {
		return
	}
	come, togo := in.relaxedCosts()
	for i := range in.forks {
		fork := &in.forks[i]
		fork.pieces = map[[2]int][]piece{}
		if fork.cache == nil {
			fork.cache = newForkCache(newBranchCache(nil), newBranchCache(nil), nil)
		}
		fork.paths = in.paths(fork, come, togo)
	}
}

// relaxedCosts returns the cheapest ways from the section's start to each class in which a node leaves its outputs, and
// from there to its end: one execution of the chain that need not end where it began.
func (in *instance) relaxedCosts() (come, togo [][]int64) {
	items := in.chain.Items
	come, togo = make([][]int64, len(items)), make([][]int64, len(items))
	for i := range items {
		arrive := make([]int64, len(items[i].Before))
		if i > 0 {
			arrive = in.cheapestInputs(come[i-1], items[i].EdgeNS, len(items[i].Before))
		}
		come[i] = neverCosts(len(items[i].After))
		for j := range items[i].Choices {
			choice := &items[i].Choices[j]
			come[i][choice.After] = min(come[i][choice.After], arrive[choice.Before]+choice.CostNS)
		}
	}

	last := len(items) - 1
	togo[last] = make([]int64, len(items[last].After))
	for i := last; i > 0; i-- {
		enter := neverCosts(len(items[i].Before))
		for j := range items[i].Choices {
			choice := &items[i].Choices[j]
			enter[choice.Before] = min(enter[choice.Before], choice.CostNS+togo[i][choice.After])
		}
		togo[i-1] = neverCosts(len(items[i-1].After))
		for from, row := range items[i].EdgeNS {
			for to, ns := range row {
				togo[i-1][from] = min(togo[i-1][from], ns+enter[to])
			}
		}
	}
	return come, togo
}

// never is a cost above all others; two of them add up without overflow.
const never = math.MaxInt64 / 4

// neverCosts returns n costs of choices that cannot be executed.
func neverCosts(n int) []int64 { return slices.Repeat([]int64{never}, n) }

// cheapestInputs returns the cheapest way to have a node's input in each class it reads from.
func (in *instance) cheapestInputs(come []int64, edge [][]int64, classes int) []int64 {
	out := neverCosts(classes)
	for from, row := range edge {
		for to, ns := range row {
			out[to] = min(out[to], come[from]+ns)
		}
	}
	return out
}

// withForkChoices returns the chain with the ways through its forks as further choices of their items.
func (in *instance) withForkChoices() problem.Chain {
	chain := in.chain
	chain.Items = slices.Clone(chain.Items)
	closed := in.prohibitiveCost()
	for i := range in.forks {
		fork := &in.forks[i]
		if len(fork.paths) == 0 {
			continue
		}
		for node := fork.split + 1; node <= fork.join; node++ {
			chain.Items[node] = in.forkItem(fork, node, closed)
		}
	}
	return chain
}

// prohibitiveCost returns a hand-over time larger than any execution of the chain. Hand-overs that lead from one way
// into another have it. A solution that takes such a hand-over still stands for choices of the chain and needs their
// assets, but pays for the detour.
func (in *instance) prohibitiveCost() int64 {
	total := int64(1)
	for i := range in.chain.Items {
		item := &in.chain.Items[i]
		var cost, edge int64
		for _, choice := range item.Choices {
			cost = max(cost, choice.CostNS)
		}
		for _, row := range item.EdgeNS {
			edge = max(edge, slices.Max(row))
		}
		total += cost + edge
	}
	return total
}

// forkItem returns the item of a fork's node with a choice for every path. The choice of the first node takes the time
// of the whole path. A location class for each path connects its choices; hand-overs from one path into another, or
// into the chain, are closed.
func (in *instance) forkItem(fork *forkJoin, node int, closed int64) problem.Item {
	item := in.chain.Items[node]
	isFirst, isLast := node == fork.split+1, node == fork.join
	item.Choices, item.Before = slices.Clone(item.Choices), slices.Clone(item.Before)
	item.After = slices.Clone(item.After)
	for i, path := range fork.paths {
		choice := item.Choices[path.choices[node-fork.split-1]]
		choice.Label = fmt.Sprintf("%s, side by side %d", choice.Label, i)
		choice.CostNS = 0
		if isFirst {
			choice.CostNS = path.ns
		}
		choice.Before = len(item.Before)
		item.Before = append(item.Before, fmt.Sprintf("side by side %d", i))
		if !isLast {
			choice.After = len(item.After)
			item.After = append(item.After, fmt.Sprintf("side by side %d", i))
		}
		item.Choices = append(item.Choices, choice)
	}

	chainEdges := item.EdgeNS
	item.EdgeNS = nil
	for from, edges := range chainEdges {
		row := slices.Clone(edges)
		for _, path := range fork.paths {
			if isFirst && path.entry == from {
				row = append(row, 0)
			} else {
				row = append(row, closed)
			}
		}
		item.EdgeNS = append(item.EdgeNS, row)
	}

	if isFirst {
		return item // split has no classes of paths
	}
	for i := range fork.paths {
		row := slices.Repeat([]int64{closed}, len(item.Before))
		row[len(item.Before)-len(fork.paths)+i] = 0
		item.EdgeNS = append(item.EdgeNS, row)
	}
	return item
}

// choicesOfNodes returns the choices of nodes that choices of the posed chain stand for.
func (in *instance) choicesOfNodes(posed []int) []int {
	out := slices.Clone(posed)
	for i := range out {
		out[i] = in.choiceOfNode(i, posed[i])
	}
	return out
}

// choiceOfNode returns the choice of a node that a choice of the posed item stands for.
func (in *instance) choiceOfNode(node, posed int) int {
	way := posed - len(in.chain.Items[node].Choices)
	if way < 0 {
		return posed
	}
	fork := in.forkOf(node)
	return fork.paths[way].choices[node-fork.split-1]
}
