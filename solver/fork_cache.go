package solver

import (
	"cmp"
	"fmt"
	"slices"
)

// forkCache caches what is known of a fork, independent of the nodes around it: the ways through either branch, and the
// time they take when the branches slow each other. Assignments that agree in the nodes of the fork share a cache.
// Those that agree in a branch and its ends share the branch.
type forkCache struct {
	branches  [2]*branchCache
	contended map[[3]int]int64 // by the numbers of the ways and the choice of join, or without
	keep      func(bytes int64)
}

// branchCache is the ways through a branch.
type branchCache struct {
	branches map[branchKey]*branch
	numbers  map[string]int // of different choices
	keep     func(bytes int64)
}

// branchKey is the key of a solved branch: its processors, and the location class of its input.
type branchKey struct {
	set   uint64
	entry int
}

// anywhere is the entry of a branch whose input costs nothing.
const anywhere = -1

// withoutJoin stands for the choice of join where it does not count.
const withoutJoin = -1

// newBranchCache returns an empty cache of a branch. keep is called with the bytes that it takes later; nil means that
// they are not counted.
func newBranchCache(keep func(int64)) *branchCache {
	return &branchCache{map[branchKey]*branch{}, map[string]int{}, keep}
}

// newForkCache returns a cache of a fork that knows only its branches.
func newForkCache(first, second *branchCache, keep func(int64)) *forkCache {
	return &forkCache{[2]*branchCache{first, second}, map[[3]int]int64{}, keep}
}

// findForkCache gives a fork the cache that belongs to it.
func (s *pricing) findForkCache(in *instance, fork *forkJoin) {
	key := func(from, to int) string {
		name := fmt.Appendf(nil, "%d", in.section.Rows)
		for i := from; i < to; i++ {
			node := &in.section.Nodes[i]
			name = append(append(append(append(name, ' '), node.Name...), ' '), node.Op().Scheme...)
		}
		return string(name)
	}

	// A branch depends on its own nodes and on those it gets its input from and gives its output to.
	ends := key(fork.split, fork.split+1) + key(fork.join, fork.join+1)
	side := func(from, to int) *branchCache {
		name := ends + key(from, to)
		side := s.branchCaches[name]
		if side == nil {
			side = newBranchCache(s.reserveCached)
			s.branchCaches[name] = side
			s.reserveCached(int64(len(name)) + branchBytes)
		}
		return side
	}

	whole := key(fork.split, fork.join+1)
	known := s.forkCaches[whole]
	if known == nil {
		known = newForkCache(side(fork.split+1, fork.second), side(fork.second, fork.join), s.reserveCached)
		s.forkCaches[whole] = known
		s.reserveCached(int64(len(whole)) + branchBytes)
	}
	fork.cache = known
}

// branches returns both branches of a fork, each with the processors of its set.
func (in *instance) branches(fork *forkJoin, pair [2]uint64, entry int) [2]*branch {
	return [2]*branch{in.branch(fork, 0, pair[0], entry), in.branch(fork, 1, pair[1], entry)}
}

// branch returns the first or second branch of a fork with processors of a set, solved from an entry class. handed and
// at are filled in: the cheapest way to have its output in each class that join reads from.
func (in *instance) branch(fork *forkJoin, which int, set uint64, entry int) *branch {
	side := fork.cache.branches[which]
	key := branchKey{set, entry}
	if branch := side.branches[key]; branch != nil {
		return branch
	}

	enter := func(int) int64 { return 0 }
	// The first branch follows split in the chain, the second one precedes join; the other two hand-overs are the
	// fork's.
	first, end, exit := fork.split+1, fork.second, fork.exit.ns
	if which == 1 {
		first, end, exit = fork.second, fork.join, in.chain.Items[fork.join].EdgeNS
	}
	item := &in.chain.Items[first]
	switch {
	case entry == anywhere:
	case which == 0:
		enter = func(choice int) int64 { return item.EdgeNS[entry][item.Choices[choice].Before] }
	default:
		enter = func(choice int) int64 { return fork.entry.ns[entry][fork.entry.class[choice]] }
	}

	branch := in.solveBranch(first, end, set, enter)
	branch.handed, branch.at = neverCosts(len(exit[0])), make([]int32, len(exit[0]))
	branch.numbers = make([]int32, len(branch.ns))
	for from, row := range exit {
		if branch.ns[from] >= never {
			continue
		}
		for class, more := range row {
			if ns := branch.ns[from] + more; ns < branch.handed[class] {
				branch.handed[class], branch.at[class] = ns, int32(from)
			}
		}
	}

	side.branches[key] = &branch
	if side.keep != nil {
		side.keep(branch.bytes())
	}
	return &branch
}

// idOf returns a number for the choices of a branch that end in a class: equal choices have equal numbers.
func (c *branchCache) idOf(ways *branch, class int) int {
	if known := ways.numbers[class]; known != 0 {
		return int(known)
	}
	choices := make([]int, len(ways.choices))
	ways.writeChoices(class, choices)
	key := make([]byte, 0, 3*len(choices))
	for _, choice := range choices {
		key = append(key, byte(choice), byte(choice>>8), byte(choice>>16))
	}
	number, ok := c.numbers[string(key)]
	if !ok {
		number = len(c.numbers) + 1
		c.numbers[string(key)] = number
	}
	ways.numbers[class] = int32(number)
	return number
}

// endingNS returns the time of an ending when its branches share the memory's bandwidth, with join or without.
func (in *instance) endingNS(fork *forkJoin, ways [2]*branch, entry int, end *ending, join bool) int64 {
	if in.section.Memory == nil {
		return 0
	}
	key := [3]int{0, 0, withoutJoin}
	for which, class := range end.classes {
		key[which] = fork.cache.branches[which].idOf(ways[which], class)
	}

	last := fork.join
	if join {
		key[2] = end.join
		last++
	}

	ns, ok := fork.cache.contended[key]
	if !ok {
		choices := in.choicesWith(fork, in.pathOf(fork, ways, entry, end))
		ns = in.contendedNS(fork, choices, last, in.cost)
		fork.cache.contended[key] = ns
		if fork.cache.keep != nil {
			fork.cache.keep(contendedBytes)
		}
	}
	return ns
}

// branch is the cheapest way through the nodes from first up to end with processors of a set, to each class in which
// the last leaves its outputs.
type branch struct {
	ns      []int64
	choices [][]int32 // by node and class it leaves its outputs in
	from    [][]int32 // class before
	handed  []int64   // to each class that join reads them from
	at      []int32   // the class that is handed over then
	numbers []int32   // of choices, by class, once asked for
}

// solveBranch solves a branch: a shortest path through its nodes, by the class that each leaves its output in. enter is
// the cost to have the first node's input where a choice reads it. It costs one look at every choice and at every pair
// of neighbouring classes.
func (in *instance) solveBranch(first, end int, set uint64, enter func(choice int) int64) (out branch) {
	for node := first; node < end; node++ {
		item := &in.chain.Items[node]

		// Hand over to every class that the node reads from.
		arrive, via := neverCosts(len(item.Before)), make([]int32, len(item.Before))
		if node > first {
			handOver(out.ns, item.EdgeNS, arrive, via)
		}

		// Execute it, for every class that it writes to.
		next := neverCosts(len(item.After))
		choices, from := make([]int32, len(item.After)), make([]int32, len(item.After))
		for i := range item.Choices {
			choice := &item.Choices[i]
			if in.masks[node][i]&^set != 0 {
				continue
			}
			ns := arrive[choice.Before]
			if node == first {
				ns = enter(i)
			}
			if ns += choice.CostNS; ns < next[choice.After] {
				next[choice.After], choices[choice.After], from[choice.After] = ns, int32(i), via[choice.Before]
			}
		}
		out.ns = next
		out.choices, out.from = append(out.choices, choices), append(out.from, from)
	}
	return out
}

// handOver lowers the cost to arrive in each class to the least over the classes that are handed over from, and notes
// which one that is.
func handOver(ns []int64, edge [][]int64, arrive []int64, via []int32) {
	for from, row := range edge {
		if ns[from] >= never {
			continue
		}
		for to, more := range row {
			if ns[from]+more < arrive[to] {
				arrive[to], via[to] = ns[from]+more, int32(from)
			}
		}
	}
}

// writeChoices writes the choices of the way that ends in a class.
func (b *branch) writeChoices(class int, out []int) {
	for i := len(b.choices) - 1; i >= 0; i-- {
		out[i] = int(b.choices[i][class])
		class = int(b.from[i][class])
	}
}

// paths searches the ways through a fork. It finds the best one for every pair of sets of processors, every class in
// which split may leave its outputs, and every class in which join may. It returns at most maxPaths, the most promising
// first.
//
// Ways that cannot be part of the best solution are left out, except for the best of each pair, which limits of the
// whole plan may require. come and togo are those of relaxedCosts.
func (in *instance) paths(fork *forkJoin, come, togo [][]int64) []path {
	best := int64(never) // of one execution, wherever it begins
	for _, ns := range come[len(come)-1] {
		best = min(best, ns)
	}
	best += in.longestWrap()
	bound := func(way path) int64 { return in.pathBound(fork, way, come, togo) }
	byBound := func(a, b path) int { return cmp.Compare(bound(a), bound(b)) }

	var kept, spare []path
	for _, pair := range in.section.Pairs() {
		found := in.pathsOf(fork, pair, come[fork.split], togo[fork.join], &best)
		slices.SortStableFunc(found, byBound)
		if len(found) > 0 {
			spare = append(spare, found[0])
			kept = append(kept, found[1:]...)
		}
	}

	// The best way of each pair stays even where it is beaten.
	kept = slices.DeleteFunc(kept, func(way path) bool { return bound(way) > best })
	kept = append(spare, kept...)
	slices.SortStableFunc(kept, byBound)
	kept = slices.CompactFunc(kept, func(a, b path) bool {
		return a.entry == b.entry && slices.Equal(a.choices, b.choices)
	})
	return kept[:min(len(kept), maxPaths)]
}

// longestWrap returns the longest hand-over from the section's last node to its first, in ns.
func (in *instance) longestWrap() (most int64) {
	for _, row := range in.chain.Items[0].EdgeNS {
		for _, ns := range row {
			most = max(most, ns)
		}
	}
	return most
}

// pathBound returns a lower bound of an execution with a path, in ns: the cheapest way to it, the path itself, and the
// cheapest way on.
func (in *instance) pathBound(fork *forkJoin, p path, come, togo [][]int64) int64 {
	last := p.choices[len(p.choices)-1]
	return come[fork.split][p.entry] + p.ns + togo[fork.join][in.chain.Items[fork.join].Choices[last].After]
}

// pathsOf lists the ways through a fork on a pair of sets of processors that may be better than best, wherever the
// section begins. It lowers best to the best that it finds.
func (in *instance) pathsOf(fork *forkJoin, pair [2]uint64, come, togo []int64, best *int64) (out []path) {
	free := in.branches(fork, pair, anywhere)
	least := max(slices.Min(free[0].ns), slices.Min(free[1].ns))
	if least >= never {
		return nil
	}
	join := &in.chain.Items[fork.join]
	rest := int64(never)
	for i := range join.Choices {
		choice := &join.Choices[i]
		rest = min(rest, choice.CostNS+togo[choice.After])
	}
	after := func(end *ending) int64 { return togo[join.Choices[end.join].After] }

	// Entries and endings go by what they take at least without contention, so that each loop ends at the first that
	// cannot be better. Going through both branches together is the costly step: maxSlowed bounds how often it may find
	// a delay.
	slowed := 0
	entries := indices(len(come))
	slices.SortStableFunc(entries, func(a, b int) int { return cmp.Compare(come[a], come[b]) })
	for i, entry := range entries {
		if come[entry] >= never {
			break
		}
		if i > 0 && come[entry]+least+rest > *best {
			break
		}

		ways := in.branches(fork, pair, entry)
		ends := in.joinEndings(fork, ways)
		slices.SortStableFunc(ends, func(a, b ending) int { return cmp.Compare(a.ns+after(&a), b.ns+after(&b)) })
		for j := range ends {
			end := &ends[j]
			if len(out) > 0 && come[entry]+end.ns+after(end) > *best {
				break // contention only adds to it
			}

			path := in.pathOf(fork, ways, entry, end)
			path.ns = max(end.ns, in.endingNS(fork, ways, entry, end, true))
			out = append(out, path)
			if path.ns > end.ns {
				slowed++
			}
			if slowed == maxSlowed {
				return out
			}
			*best = min(*best, come[entry]+path.ns+after(end)+in.longestWrap())
		}
	}
	return out
}

// indices is 0, 1, ..., n-1.
func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// choicesWith returns choices of all nodes that contain those of a path. Nodes outside the fork have choice 0, which is
// never read.
func (in *instance) choicesWith(fork *forkJoin, p path) []int {
	out := make([]int, len(in.chain.Items))
	copy(out[fork.split+1:], p.choices)
	return out
}

// ending is how two branches meet: the choice of the join node, and the classes in which the branches leave their
// outputs.
type ending struct {
	join    int
	classes [2]int
	ns      int64 // where neither branch slows the other
}

// joinEndings returns the best ways of two branches through join, one for every class that it leaves its outputs in.
func (in *instance) joinEndings(fork *forkJoin, ways [2]*branch) (out []ending) {
	join := &in.chain.Items[fork.join]
	ends := make([]ending, len(join.After))
	for i := range ends {
		ends[i].ns = never
	}
	for i := range join.Choices {
		choice := &join.Choices[i]
		first, second := fork.exit.class[i], choice.Before
		ns := max(ways[0].handed[first], ways[1].handed[second]) + choice.CostNS
		if ns < ends[choice.After].ns {
			ends[choice.After] = ending{i, [2]int{int(ways[0].at[first]), int(ways[1].at[second])}, ns}
		}
	}
	return slices.DeleteFunc(ends, func(x ending) bool { return x.ns >= never })
}

// pathOf returns the path that an end stands for.
func (in *instance) pathOf(fork *forkJoin, ways [2]*branch, entry int, end *ending) path {
	choices := make([]int, fork.join-fork.split)
	ways[0].writeChoices(end.classes[0], choices[:fork.second-fork.split-1])
	ways[1].writeChoices(end.classes[1], choices[fork.second-fork.split-1:])
	choices[len(choices)-1] = end.join
	return path{choices, entry, end.ns}
}
