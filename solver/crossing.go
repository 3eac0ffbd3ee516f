package solver

import (
	"cmp"
	"fmt"
	"slices"
)

// crossing is what is known of a fork, whatever comes before and after it: the ways through either branch, and how long they take when
// the branches slow each other.
type crossing struct {
	sides  [2]*side
	slowed map[[3]int]int64 // by the numbers of the ways and the choice of join, or without
	keep   func(bytes int64)
}

// side is the ways through a branch.
type side struct {
	ways    map[way]*branch
	numbers map[string]int // of different choices
	keep    func(bytes int64)
}

// way is the processors of a branch, and the class that its input is in.
type way struct {
	set   uint64
	entry int
}

// anywhere is the entry of a branch whose input costs nothing.
const anywhere = -1

// withoutJoin stands for the choice of join where it does not count.
const withoutJoin = -1

func newSide(keep func(int64)) *side { return &side{map[way]*branch{}, map[string]int{}, keep} }

func newCrossing(first, second *side, keep func(int64)) *crossing {
	return &crossing{[2]*side{first, second}, map[[3]int]int64{}, keep}
}

// crossing gives a fork what is known of it.
func (s *session) crossing(in *instance, f *fork) {
	key := func(from, to int) string {
		b := fmt.Appendf(nil, "%d", in.stage.Rows)
		for i := from; i < to; i++ {
			n := &in.stage.Nodes[i]
			b = append(append(append(append(b, ' '), n.Name...), ' '), n.Op().Scheme...)
		}
		return string(b)
	}
	ends := key(f.split, f.split+1) + key(f.join, f.join+1)
	side := func(from, to int) *side {
		name := ends + key(from, to)
		x := s.sides[name]
		if x == nil {
			x = newSide(s.cache)
			s.sides[name] = x
			s.cache(int64(len(name)) + sideBytes)
		}
		return x
	}
	whole := key(f.split, f.join+1)
	c := s.crossings[whole]
	if c == nil {
		c = newCrossing(side(f.split+1, f.second), side(f.second, f.join), s.cache)
		s.crossings[whole] = c
		s.cache(int64(len(whole)) + sideBytes)
	}
	f.crossing = c
}

// branches are both branches of a fork, each with processors of its set.
func (in *instance) branches(f *fork, pair [2]uint64, entry int) [2]*branch {
	return [2]*branch{in.branch(f, 0, pair[0], entry), in.branch(f, 1, pair[1], entry)}
}

// branch is the first or second branch of a fork with processors of a set, solved.
func (in *instance) branch(f *fork, which int, set uint64, entry int) *branch {
	side := f.crossing.sides[which]
	key := way{set, entry}
	if b := side.ways[key]; b != nil {
		return b
	}
	enter := func(int) int64 { return 0 }
	first, end, exit := f.split+1, f.second, f.exit.ns
	if which == 1 {
		first, end, exit = f.second, f.join, in.prob.Items[f.join].EdgeNS
	}
	switch it := &in.prob.Items[first]; {
	case entry == anywhere:
	case which == 0:
		enter = func(k int) int64 { return it.EdgeNS[entry][it.Choices[k].Before] }
	default:
		enter = func(k int) int64 { return f.entry.ns[entry][f.entry.class[k]] }
	}
	b := in.cheapest(first, end, set, enter)
	b.handed, b.at, b.numbers = fill(len(exit[0])), make([]int32, len(exit[0])), make([]int32, len(b.ns))
	for x, row := range exit {
		if b.ns[x] >= never {
			continue
		}
		for class, more := range row {
			if ns := b.ns[x] + more; ns < b.handed[class] {
				b.handed[class], b.at[class] = ns, int32(x)
			}
		}
	}
	side.ways[key] = &b
	if side.keep != nil {
		side.keep(b.bytes())
	}
	return &b
}

// number is that of a branch's choices that end in a class, the same for the same choices.
func (x *side) number(b *branch, class int) int {
	if b.numbers[class] == 0 {
		choices := make([]int, len(b.choices))
		b.follow(class, choices)
		key := make([]byte, 0, 3*len(choices))
		for _, k := range choices {
			key = append(key, byte(k), byte(k>>8), byte(k>>16))
		}
		n, ok := x.numbers[string(key)]
		if !ok {
			n = len(x.numbers) + 1
			x.numbers[string(key)] = n
		}
		b.numbers[class] = int32(n)
	}
	return int(b.numbers[class])
}

// slowed is how long an end takes when its branches share the memory's bandwidth, join included or not.
func (in *instance) slowed(f *fork, ways [2]*branch, entry int, x *end, join bool) int64 {
	if in.stage.Memory == nil {
		return 0
	}
	key := [3]int{0, 0, withoutJoin}
	for which, class := range x.classes {
		key[which] = f.crossing.sides[which].number(ways[which], class)
	}
	end := f.join
	if join {
		key[2] = x.join
		end++
	}
	ns, ok := f.crossing.slowed[key]
	if !ok {
		ns = in.contended(f, in.whole(f, in.ended(f, ways, entry, x)), end, in.cost)
		f.crossing.slowed[key] = ns
		if f.crossing.keep != nil {
			f.crossing.keep(slowedBytes)
		}
	}
	return ns
}

// branch is the cheapest way through the nodes from first up to end with processors of a set, to each class in which the last
// leaves its outputs.
type branch struct {
	ns      []int64
	choices [][]int32 // by node and class it leaves its outputs in
	from    [][]int32 // class before
	handed  []int64   // to each class that join reads them from
	at      []int32   // the class that is handed over then
	numbers []int32   // of choices, by class, once asked for
}

// cheapest solves a branch. enter is the cost to have the first node's input where a choice reads it.
func (in *instance) cheapest(first, end int, set uint64, enter func(choice int) int64) (out branch) {
	var now []int64
	for i := first; i < end; i++ {
		it := &in.prob.Items[i]
		next, choice, from := fill(len(it.After)), make([]int32, len(it.After)), make([]int32, len(it.After))
		arrive, via := fill(len(it.Before)), make([]int32, len(it.Before))
		if i > first {
			for a, row := range it.EdgeNS {
				if now[a] >= never {
					continue
				}
				for b, ns := range row {
					if now[a]+ns < arrive[b] {
						arrive[b], via[b] = now[a]+ns, int32(a)
					}
				}
			}
		}
		for k := range it.Choices {
			c := &it.Choices[k]
			if in.masks[i][k]&^set != 0 {
				continue
			}
			ns := arrive[c.Before]
			if i == first {
				ns = enter(k)
			}
			if ns += c.CostNS; ns < next[c.After] {
				next[c.After], choice[c.After], from[c.After] = ns, int32(k), via[c.Before]
			}
		}
		now = next
		out.choices, out.from = append(out.choices, choice), append(out.from, from)
	}
	out.ns = now
	return out
}

// follow writes the choices of the way that ends in a class.
func (b *branch) follow(class int, out []int) {
	for i := len(b.choices) - 1; i >= 0; i-- {
		out[i] = int(b.choices[i][class])
		class = int(b.from[i][class])
	}
}

// paths searches the ways through a fork: for every pair of sets of processors, every class that split may leave its outputs in and
// every class that join may, the best. Those that cannot be part of the best solution are left out, but for the best of each pair, which
// limits of the whole plan may call for.
func (in *instance) paths(f *fork, come, togo [][]int64) []path {
	best := int64(never) // of one execution, wherever it begins
	for _, ns := range come[len(come)-1] {
		best = min(best, ns)
	}
	best += in.wrapMost()
	var kept, spare []path
	for _, pair := range in.stage.Pairs() {
		found := in.pathsOf(f, pair, come[f.split], togo[f.join], &best)
		sort := func(a, b path) int { return cmp.Compare(in.bound(f, a, come, togo), in.bound(f, b, come, togo)) }
		slices.SortStableFunc(found, sort)
		if len(found) > 0 {
			spare = append(spare, found[0])
			kept = append(kept, found[1:]...)
		}
	}
	kept = slices.DeleteFunc(kept, func(p path) bool { return in.bound(f, p, come, togo) > best })
	kept = append(spare, kept...)
	slices.SortStableFunc(kept, func(a, b path) int { return cmp.Compare(in.bound(f, a, come, togo), in.bound(f, b, come, togo)) })
	kept = slices.CompactFunc(kept, func(a, b path) bool { return a.entry == b.entry && slices.Equal(a.choices, b.choices) })
	return kept[:min(len(kept), maxPaths)]
}

// wrapMost is the dearest hand-over from the section's last node to its first.
func (in *instance) wrapMost() (most int64) {
	for _, row := range in.prob.Items[0].EdgeNS {
		for _, ns := range row {
			most = max(most, ns)
		}
	}
	return most
}

// bound is what an execution with a path takes at least.
func (in *instance) bound(f *fork, p path, come, togo [][]int64) int64 {
	last := p.choices[len(p.choices)-1]
	return come[f.split][p.entry] + p.ns + togo[f.join][in.prob.Items[f.join].Choices[last].After]
}

// pathsOf are the ways of a pair of sets that may be better than best, which it lowers to the best it finds, wherever the section begins.
func (in *instance) pathsOf(f *fork, pair [2]uint64, come, togo []int64, best *int64) (out []path) {
	free := in.branches(f, pair, anywhere)
	least := max(slices.Min(free[0].ns), slices.Min(free[1].ns))
	if least >= never {
		return nil
	}
	rest := int64(never)
	for k := range in.prob.Items[f.join].Choices {
		c := &in.prob.Items[f.join].Choices[k]
		rest = min(rest, c.CostNS+togo[c.After])
	}
	slowed := 0
	entries := numbers(len(come))
	slices.SortStableFunc(entries, func(a, b int) int { return cmp.Compare(come[a], come[b]) })
	for n, e := range entries {
		if come[e] >= never || n > 0 && come[e]+least+rest > *best {
			break
		}
		ways := in.branches(f, pair, e)
		ends := in.joined(f, ways)
		after := func(x *end) int64 { return togo[in.prob.Items[f.join].Choices[x.join].After] }
		slices.SortStableFunc(ends, func(a, b end) int { return cmp.Compare(a.ns+after(&a), b.ns+after(&b)) })
		for i := range ends {
			x := &ends[i]
			if len(out) > 0 && come[e]+x.ns+after(x) > *best {
				break // contention only adds to it
			}
			p := in.ended(f, ways, e, x)
			p.ns = max(x.ns, in.slowed(f, ways, e, x, true))
			if out = append(out, p); p.ns > x.ns {
				slowed++
			}
			if slowed == maxSlowed {
				return out
			}
			*best = min(*best, come[e]+p.ns+after(x)+in.wrapMost())
		}
	}
	return out
}

func numbers(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// whole are choices of all nodes that have a path's; nothing asks for those outside the fork.
func (in *instance) whole(f *fork, p path) []int {
	out := make([]int, len(in.prob.Items))
	copy(out[f.split+1:], p.choices)
	return out
}

// end is how two branches come to join: as which choice of it, and in which classes they leave their outputs.
type end struct {
	join    int
	classes [2]int
	ns      int64 // where neither branch slows the other
}

// joined are the best ways of two branches through join, one for every class that it leaves its outputs in.
func (in *instance) joined(f *fork, ways [2]*branch) (out []end) {
	join := &in.prob.Items[f.join]
	ends := make([]end, len(join.After))
	for k := range ends {
		ends[k].ns = never
	}
	for k := range join.Choices {
		c := &join.Choices[k]
		to := f.exit.class[k]
		if ns := max(ways[0].handed[to], ways[1].handed[c.Before]) + c.CostNS; ns < ends[c.After].ns {
			ends[c.After] = end{k, [2]int{int(ways[0].at[to]), int(ways[1].at[c.Before])}, ns}
		}
	}
	return slices.DeleteFunc(ends, func(x end) bool { return x.ns >= never })
}

// ended is the path that an end stands for.
func (in *instance) ended(f *fork, ways [2]*branch, entry int, x *end) path {
	choices := make([]int, f.join-f.split)
	ways[0].follow(x.classes[0], choices[:f.second-f.split-1])
	ways[1].follow(x.classes[1], choices[f.second-f.split-1:])
	choices[len(choices)-1] = x.join
	return path{choices, entry, x.ns}
}
