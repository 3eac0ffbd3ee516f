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
	common := func(a, b []string) bool {
		return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
	}
	return common(later.In, earlier.Out) || common(later.Out, earlier.Out) || common(later.Out, earlier.In)
}

// findForks lists the forks of a section that have products in both branches; none of them overlaps another. Forks with
// the slots of experts in one branch and dynamic products in the other come first, then those with most products in the
// smaller branch.
func findForks(sec *lower.Section) (out []forkJoin) {
	found := allForks(sec.Nodes)
	products := func(from, to int) int { return countNodes(sec.Nodes[from:to], (*op.Op).HasMatrix) }
	smaller := func(f forkJoin) int { return min(products(f.split+1, f.second), products(f.second, f.join)) }
	// The slots of experts, of whatever groups, are executed beside the dynamic products.
	isSlot := func(operator *op.Op) bool { return operator.Kind == op.GroupMatMul }
	all := countNodes(sec.Nodes, isSlot)
	apart := func(f forkJoin) int {
		if all > 0 && countNodes(sec.Nodes[f.split+1:f.second], isSlot) == all &&
			countNodes(sec.Nodes[f.second:f.join], isSlot) == 0 {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(found, func(a, b forkJoin) int {
		return cmp.Or(cmp.Compare(apart(b), apart(a)), cmp.Compare(smaller(b), smaller(a)))
	})
	for _, fork := range found {
		if !slices.ContainsFunc(out, func(x forkJoin) bool { return fork.split <= x.join && x.split <= fork.join }) {
			out = append(out, fork)
		}
	}
	return out
}

// allForks lists the forks that have products in both branches, by the first node of the second branch. That node does
// not follow the node before it. split is the last node that it follows, and join is the first node that follows the
// first branch.
func allForks(nodes []lower.Node) (found []forkJoin) {
	for second := 2; second < len(nodes); second++ {
		split := second - 1
		for split >= 0 && !follows(&nodes[second], &nodes[split]) {
			split--
		}
		if split < 0 || split == second-1 {
			continue
		}
		join := second + 1
		for join < len(nodes) && !slices.ContainsFunc(nodes[split+1:second],
			func(x lower.Node) bool { return follows(&nodes[join], &x) }) {
			join++
		}
		if join < len(nodes) && countNodes(nodes[split+1:second], (*op.Op).HasMatrix) > 0 &&
			countNodes(nodes[second:join], (*op.Op).HasMatrix) > 0 {
			found = append(found, forkJoin{split: split, second: second, join: join})
		}
	}
	return found
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
	it := &in.chain.Items[node]
	if len(it.EdgeNS) == 0 {
		return 0
	}
	prev := (node + len(in.chain.Items) - 1) % len(in.chain.Items)
	return it.EdgeNS[in.chain.Items[prev].Choices[before].After][it.Choices[choice].Before]
}

// forkEntry returns the hand-over into a node of a branch whose fork runs side by side.
func (in *instance) forkEntry(fork *forkJoin, choices []int, node, choice int) int64 {
	if node == fork.second {
		return fork.entry.ns[in.chain.Items[fork.split].Choices[choices[fork.split]].After][fork.entry.class[choice]]
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
		it := &items[i]
		arrive := make([]int64, len(it.Before))
		if i > 0 {
			arrive = in.cheapestInputs(come[i-1], it.EdgeNS, len(it.Before))
		}
		come[i] = neverCosts(len(it.After))
		for j := range it.Choices {
			choice := &it.Choices[j]
			come[i][choice.After] = min(come[i][choice.After], arrive[choice.Before]+choice.CostNS)
		}
	}
	last := len(items) - 1
	togo[last] = make([]int64, len(items[last].After))
	for i := last; i > 0; i-- {
		it := &items[i]
		enter := neverCosts(len(it.Before))
		for j := range it.Choices {
			choice := &it.Choices[j]
			enter[choice.Before] = min(enter[choice.Before], choice.CostNS+togo[i][choice.After])
		}
		togo[i-1] = neverCosts(len(items[i-1].After))
		for from, row := range it.EdgeNS {
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
		for i := fork.split + 1; i <= fork.join; i++ {
			chain.Items[i] = in.forkItem(fork, i, closed)
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
		it := &in.chain.Items[i]
		var cost, edge int64
		for i := range it.Choices {
			cost = max(cost, it.Choices[i].CostNS)
		}
		for _, row := range it.EdgeNS {
			edge = max(edge, slices.Max(row))
		}
		total += cost + edge
	}
	return total
}

// forkItem returns an item of a fork with a choice for every path: the first takes the time of all of them.
func (in *instance) forkItem(fork *forkJoin, i int, closed int64) problem.Item {
	it := in.chain.Items[i]
	first, last := i == fork.split+1, i == fork.join
	it.Choices, it.Before, it.After = slices.Clone(it.Choices), slices.Clone(it.Before), slices.Clone(it.After)
	for j, path := range fork.paths {
		ch := it.Choices[path.choices[i-fork.split-1]]
		ch.Label = fmt.Sprintf("%s, side by side %d", ch.Label, j)
		ch.CostNS = 0
		if first {
			ch.CostNS = path.ns
		}
		ch.Before = len(it.Before)
		it.Before = append(it.Before, fmt.Sprintf("side by side %d", j))
		if !last {
			ch.After = len(it.After)
			it.After = append(it.After, fmt.Sprintf("side by side %d", j))
		}
		it.Choices = append(it.Choices, ch)
	}
	old := it.EdgeNS
	it.EdgeNS = nil
	for from := range old {
		row := slices.Clone(old[from])
		for _, path := range fork.paths {
			if first && path.entry == from {
				row = append(row, 0)
			} else {
				row = append(row, closed)
			}
		}
		it.EdgeNS = append(it.EdgeNS, row)
	}
	for i := range fork.paths {
		if first {
			break // split has no classes of paths
		}
		row := slices.Repeat([]int64{closed}, len(it.Before))
		row[len(it.Before)-len(fork.paths)+i] = 0
		it.EdgeNS = append(it.EdgeNS, row)
	}
	return it
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
func (in *instance) choiceOfNode(i, posed int) int {
	way := posed - len(in.chain.Items[i].Choices)
	if way < 0 {
		return posed
	}
	fork := in.forkOf(i)
	return fork.paths[way].choices[i-fork.split-1]
}
