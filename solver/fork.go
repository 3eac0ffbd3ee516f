package solver

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/problem"
)

// Branches side by side.
//
// A chain adds up what its operators take. Where a section forks into two branches that need nothing of each other (attention and
// feed-forward of a parallel block, routed and shared experts), lanes execute both at once as long as no processor has work in
// both. The fork is solved by dynamic programming over the set of processors of either branch: for disjoint sets P and Q, and the
// locations of what enters and leaves,
//
//	min over choices of max(first, second) = max(min over choices within P of first, min over choices within Q of second),
//
// since either branch is a chain of its own. Each result becomes a way through the fork's items beside the ways that the chain has:
// it takes the time of the longer branch once and nothing afterwards. Engines see an ordinary chain.
//
// Branches that run at once share the memory's bandwidth. Each way is therefore priced by going through both branches together
// (contended); the dynamic programme, in which neither slows the other, bounds that from below. Of a pair of sets it only finds the ways that
// are fastest without contention: where one branch had better leave bandwidth to the other, "optimal" is about the ways that are posed.
// A branch that uses a processor of the other one for part of the time is posed as if it did so throughout, one after the other.

// fork is a part of a section: nodes after split up to second are one branch, those from second up to join the other. join
// is the first node that needs both.
type fork struct {
	split, second, join int
	entry               waits     // of the second branch's first node for split
	exit                waits     // of join for the first branch's last node
	crossing            *crossing // what is known of it, also to other sections that have the same fork
	paths               []path
	pieces              map[[2]int][]piece // of nodes and choices
}

// waits are hand-overs between nodes that are no neighbours in the chain: from classes that the writer leaves its outputs in to
// classes that choices of the reader read them from.
type waits struct {
	class []int // of each choice of the reader
	ns    [][]int64
}

// path is a way through a fork: a choice for every node after split up to and with join.
type path struct {
	choices []int
	entry   int   // class in which split leaves its outputs
	ns      int64 // from there until join is done
}

// follows reports whether a node must come after an earlier one: it reads or changes what that writes, or changes what that reads.
func follows(later, earlier *lower.Node) bool {
	common := func(a, b []string) bool {
		return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
	}
	return common(later.In, earlier.Out) || common(later.Out, earlier.Out) || common(later.Out, earlier.In)
}

// findForks lists the forks of a section that have products in both branches, none of which touches another: those with
// most products in the smaller branch first.
func findForks(sec *lower.Section) (out []fork) {
	nodes := sec.Nodes
	products := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			if nodes[i].Op().HasScheme() {
				n++
			}
		}
		return n
	}
	between := func(node, from, to int) bool { // it follows one of these
		return slices.ContainsFunc(nodes[from:to], func(x lower.Node) bool { return follows(&nodes[node], &x) })
	}
	var found []fork
	for second := 2; second < len(nodes); second++ {
		split := second - 1
		for split >= 0 && !follows(&nodes[second], &nodes[split]) {
			split--
		}
		if split < 0 || split == second-1 {
			continue
		}
		join := second + 1
		for join < len(nodes) && !between(join, split+1, second) {
			join++
		}
		if join < len(nodes) && products(split+1, second) > 0 && products(second, join) > 0 {
			found = append(found, fork{split: split, second: second, join: join})
		}
	}
	smaller := func(f fork) int { return min(products(f.split+1, f.second), products(f.second, f.join)) }
	slices.SortStableFunc(found, func(a, b fork) int { return cmp.Compare(smaller(b), smaller(a)) })
	for _, f := range found {
		if !slices.ContainsFunc(out, func(x fork) bool { return f.split <= x.join && x.split <= f.join }) {
			out = append(out, f)
		}
	}
	return out
}

// sideBySide reports whether the branches of a fork use no processor and no thread in common: lanes then execute both at once.
func (in *instance) sideBySide(f *fork, choices []int) bool {
	var first, second uint64
	for i := f.split + 1; i < f.join; i++ {
		if i < f.second {
			first |= in.masks[i][choices[i]]
		} else {
			second |= in.masks[i][choices[i]]
		}
	}
	return in.stage.SideBySide(first, second)
}

// price is what a node's choice counts for.
type costOf func(node, choice int) int64

func (in *instance) cost(node, choice int) int64 { return in.prob.Items[node].Choices[choice].CostNS }

// through is the time from the end of split to the end of join when the fork's branches run side by side.
func (in *instance) through(f *fork, choices []int, of costOf) int64 {
	ns := in.apart(f, choices, of)
	if in.stage.Memory == nil {
		return ns
	}
	return max(ns, in.contended(f, choices, f.join+1, of))
}

// apart is through where neither branch slows the other.
func (in *instance) apart(f *fork, choices []int, of costOf) int64 {
	var done [2]int64
	for i := f.split + 1; i < f.join; i++ {
		b := 0
		if i >= f.second {
			b = 1
		}
		done[b] += in.forkEntry(f, choices, i, choices[i]) + of(i, choices[i])
	}
	from := in.prob.Items[f.second-1].Choices[choices[f.second-1]].After
	to := choices[f.join]
	return max(done[0]+f.exit.ns[from][f.exit.class[to]], done[1]+in.edge(f.join, choices[f.join-1], to)) + of(f.join, to)
}

// edge is the hand-over between neighbours of the chain.
func (in *instance) edge(node, before, choice int) int64 {
	it := &in.prob.Items[node]
	if len(it.EdgeNS) == 0 {
		return 0
	}
	prev := (node + len(in.prob.Items) - 1) % len(in.prob.Items)
	return it.EdgeNS[in.prob.Items[prev].Choices[before].After][it.Choices[choice].Before]
}

// forkEntry is the hand-over into a node of a branch whose fork runs side by side.
func (in *instance) forkEntry(f *fork, choices []int, node, choice int) int64 {
	if node == f.second {
		return f.entry.ns[in.prob.Items[f.split].Choices[choices[f.split]].After][f.entry.class[choice]]
	}
	return in.edge(node, choices[node-1], choice)
}

// once is the time of one execution of the section, with the hand-over into its first node where there is one.
func (in *instance) once(choices []int, of costOf) (total int64) {
	one := func(i int) int64 {
		return in.edge(i, choices[(i+len(choices)-1)%len(choices)], choices[i]) + of(i, choices[i])
	}
	for i := 0; i < len(choices); i++ {
		total += one(i)
		f := in.forkAfter(i)
		if f == nil {
			continue
		}
		var across int64 // one branch after the other
		for i++; i <= f.join; i++ {
			across += one(i)
		}
		i--
		if in.sideBySide(f, choices) {
			across = min(across, in.through(f, choices, of))
		}
		total += across
	}
	return total
}

// objective is what choices of nodes count for in a solution.
func (in *instance) objective(choices []int) int64 {
	first := in.edge(0, choices[len(choices)-1], choices[0])
	return int64(in.prob.Repeat)*(in.once(choices, in.cost)-first) + int64(in.prob.Wraps())*first
}

func (in *instance) forkAfter(node int) *fork {
	for k := range in.forks {
		if in.forks[k].split == node {
			return &in.forks[k]
		}
	}
	return nil
}

// forkOf is the fork that a node's price depends on, nil where it stands in the chain alone.
func (in *instance) forkOf(node int) *fork {
	for k := range in.forks {
		if f := &in.forks[k]; f.split <= node && node <= f.join {
			return f
		}
	}
	return nil
}

// How many ways through a fork are posed at most, and how many of one pair of sets are looked at that contention slows.
const (
	maxPaths  = 48
	maxSlowed = 6
)

// findPaths finds the ways through each of the section's forks that may be better than the chain, and poses them.
func (in *instance) findPaths() {
	if len(in.forks) == 0 {
		return
	}
	come, togo := in.relaxed()
	for k := range in.forks {
		f := &in.forks[k]
		f.pieces = map[[2]int][]piece{}
		if f.crossing == nil {
			f.crossing = newCrossing(newSide(nil), newSide(nil), nil)
		}
		f.paths = in.paths(f, come, togo)
	}
}

// relaxed are the cheapest ways from the section's start to each class in which a node leaves its outputs, and from there to
// its end: one execution of the chain that need not end where it began.
func (in *instance) relaxed() (come, togo [][]int64) {
	items := in.prob.Items
	come, togo = make([][]int64, len(items)), make([][]int64, len(items))
	for i := range items {
		it := &items[i]
		arrive := make([]int64, len(it.Before))
		if i > 0 {
			arrive = in.arrive(come[i-1], it.EdgeNS, len(it.Before))
		}
		come[i] = fill(len(it.After))
		for k := range it.Choices {
			c := &it.Choices[k]
			come[i][c.After] = min(come[i][c.After], arrive[c.Before]+c.CostNS)
		}
	}
	last := len(items) - 1
	togo[last] = make([]int64, len(items[last].After))
	for i := last; i > 0; i-- {
		it := &items[i]
		enter := fill(len(it.Before))
		for k := range it.Choices {
			c := &it.Choices[k]
			enter[c.Before] = min(enter[c.Before], c.CostNS+togo[i][c.After])
		}
		togo[i-1] = fill(len(items[i-1].After))
		for a, row := range it.EdgeNS {
			for b, ns := range row {
				togo[i-1][a] = min(togo[i-1][a], ns+enter[b])
			}
		}
	}
	return come, togo
}

const never = math.MaxInt64 / 4

func fill(n int) []int64 { return slices.Repeat([]int64{never}, n) }

// arrive is the cheapest way to have a node's input in each class it reads from.
func (in *instance) arrive(come []int64, edge [][]int64, classes int) []int64 {
	out := fill(classes)
	for a, row := range edge {
		for b, ns := range row {
			out[b] = min(out[b], come[a]+ns)
		}
	}
	return out
}

// widen is the chain with the ways through its forks as further choices of their items.
func (in *instance) widen() problem.Chain {
	c := in.prob
	c.Items = slices.Clone(c.Items)
	closed := in.closed()
	for k := range in.forks {
		f := &in.forks[k]
		if len(f.paths) == 0 {
			continue
		}
		for i := f.split + 1; i <= f.join; i++ {
			c.Items[i] = in.widened(f, i, closed)
		}
	}
	return c
}

// closed is more than all that an execution of the chain can take: a hand-over that leads from one way into another takes that long.
// Whoever takes it has the choices of a chain that exists, needs what those need, and pays for the detour.
func (in *instance) closed() int64 {
	total := int64(1)
	for i := range in.prob.Items {
		it := &in.prob.Items[i]
		var cost, edge int64
		for k := range it.Choices {
			cost = max(cost, it.Choices[k].CostNS)
		}
		for _, row := range it.EdgeNS {
			edge = max(edge, slices.Max(row))
		}
		total += cost + edge
	}
	return total
}

// widened is an item of a fork with a choice for every path: the first takes the time of all of them.
func (in *instance) widened(f *fork, i int, closed int64) problem.Item {
	it := in.prob.Items[i]
	first, last := i == f.split+1, i == f.join
	it.Choices, it.Before, it.After = slices.Clone(it.Choices), slices.Clone(it.Before), slices.Clone(it.After)
	for k, p := range f.paths {
		ch := it.Choices[p.choices[i-f.split-1]]
		ch.Label = fmt.Sprintf("%s, side by side %d", ch.Label, k)
		ch.CostNS = 0
		if first {
			ch.CostNS = p.ns
		}
		ch.Before = len(it.Before)
		it.Before = append(it.Before, fmt.Sprintf("side by side %d", k))
		if !last {
			ch.After = len(it.After)
			it.After = append(it.After, fmt.Sprintf("side by side %d", k))
		}
		it.Choices = append(it.Choices, ch)
	}
	old := it.EdgeNS
	it.EdgeNS = nil
	for a := range old {
		row := slices.Clone(old[a])
		for _, p := range f.paths {
			if first && p.entry == a {
				row = append(row, 0)
			} else {
				row = append(row, closed)
			}
		}
		it.EdgeNS = append(it.EdgeNS, row)
	}
	for k := range f.paths {
		if first {
			break // split has no classes of paths
		}
		row := slices.Repeat([]int64{closed}, len(it.Before))
		row[len(it.Before)-len(f.paths)+k] = 0
		it.EdgeNS = append(it.EdgeNS, row)
	}
	return it
}

// nodes are the choices of nodes that choices of the posed chain stand for.
func (in *instance) nodes(posed []int) []int {
	out := slices.Clone(posed)
	for i := range out {
		out[i] = in.node(i, posed[i])
	}
	return out
}

// node is the choice of a node that one of the posed item stands for.
func (in *instance) node(i, posed int) int {
	way := posed - len(in.prob.Items[i].Choices)
	if way < 0 {
		return posed
	}
	f := in.forkOf(i)
	return f.paths[way].choices[i-f.split-1]
}
