package problem

import (
	"math/bits"
	"slices"
)

// network gives what edges take between classes as lengths of shortest paths: nodes are the classes that edges come
// from, the classes they lead to, and hubs between them. Edges between location classes take few different times, so that
// it needs far fewer ways than there are pairs.
type network struct {
	nodes int // the first of them classes to come from, then those to lead to, then hubs
	ways  []way
	froms int
}

// way is an arc.
type way struct {
	from, to int
	ns       int64
}

// route makes a network of what edges take (rows: where they come from, columns: where they lead to).
//
// For every row and every time that occurs in it there is a hub, which leads to all columns that take at most that long
// from it; rows with the same columns share hubs, and a hub leads to others whose columns are among its own instead of
// to each column. A path through a hub is never shorter than the edge, and one is as long. Where pairs are fewer than the ways,
// or columns need fewer, those are taken.
func route(ns [][]int64) network {
	rows, cols := len(ns), len(ns[0])
	best := hubs(ns)
	turned := make([][]int64, cols)
	for x := range cols {
		for a := range rows {
			turned[x] = append(turned[x], ns[a][x])
		}
	}
	if other := hubs(turned); len(other.ways) < len(best.ways) {
		for k, w := range other.ways {
			swap := func(n int) int { // classes of both sides change places
				switch {
				case n < cols:
					return rows + n
				case n < cols+rows:
					return n - cols
				}
				return n
			}
			other.ways[k] = way{swap(w.to), swap(w.from), w.ns}
		}
		other.froms = rows
		best = other
	}
	if rows*cols > len(best.ways) {
		return best
	}
	pairs := network{nodes: rows + cols, froms: rows}
	for a := range ns {
		for x, v := range ns[a] {
			pairs.ways = append(pairs.ways, way{a, rows + x, v})
		}
	}
	return pairs
}

// hubs makes the network with hubs for rows.
func hubs(ns [][]int64) network {
	rows, cols := len(ns), len(ns[0])
	out := network{nodes: rows + cols, froms: rows}
	var sets []set
	var hub [][]way // per set: from a row at a time; to is not yet known
	for a := range ns {
		times := slices.Clone(ns[a])
		slices.Sort(times)
		for _, t := range slices.Compact(times) {
			s := newSet(cols)
			for x, v := range ns[a] {
				if v <= t {
					s.add(x)
				}
			}
			k := slices.IndexFunc(sets, func(o set) bool { return slices.Equal(o, s) })
			if k < 0 {
				k = len(sets)
				sets, hub = append(sets, s), append(hub, nil)
			}
			hub[k] = append(hub[k], way{from: a, ns: t})
		}
	}
	for k, s := range sets {
		self := rows + cols + k
		out.nodes++
		for _, w := range hub[k] {
			out.ways = append(out.ways, way{w.from, self, w.ns})
		}
		// To hubs with some of the columns, those first with most that are missing.
		missing := slices.Clone(s)
		for {
			most, at := 1, -1
			for o := range sets {
				if n := sets[o].both(missing); o != k && n > most && sets[o].both(s) == sets[o].size() && sets[o].size() < s.size() {
					most, at = n, o
				}
			}
			if at < 0 {
				break
			}
			out.ways = append(out.ways, way{self, rows + cols + at, 0})
			missing.remove(sets[at])
		}
		for x := range cols {
			if missing.has(x) {
				out.ways = append(out.ways, way{self, rows + x, 0})
			}
		}
	}
	return out
}

// shortest are the ways of a shortest path between two classes.
func (n *network) shortest(from, to int) []int {
	const never = int64(1) << 62
	length, by := make([]int64, n.nodes), make([]int, n.nodes)
	for k := range length {
		length[k], by[k] = never, -1
	}
	length[from] = 0
	for changed := true; changed; {
		changed = false
		for k, w := range n.ways {
			if length[w.from] < never && length[w.from]+w.ns < length[w.to] {
				length[w.to], by[w.to] = length[w.from]+w.ns, k
				changed = true
			}
		}
	}
	var path []int
	for at := n.froms + to; at != from; at = n.ways[path[len(path)-1]].from {
		path = append(path, by[at])
	}
	return path
}

// set is a set of small numbers.
type set []uint64

func newSet(n int) set       { return make(set, (n+63)/64) }
func (s set) add(x int)      { s[x/64] |= 1 << (x % 64) }
func (s set) has(x int) bool { return s[x/64]&(1<<(x%64)) != 0 }
func (s set) size() int      { return s.both(s) }
func (s set) both(o set) (n int) {
	for k := range s {
		n += bits.OnesCount64(s[k] & o[k])
	}
	return n
}

func (s set) remove(o set) {
	for k := range s {
		s[k] &^= o[k]
	}
}
