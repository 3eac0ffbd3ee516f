package problem

import (
	"math/bits"
	"slices"
)

// network represents the edge times between classes as lengths of shortest paths. Its nodes are the classes from which
// edges come, the classes to which they lead, and hubs between them. Edges between location classes have few different
// times, so a network needs far fewer arcs than there are pairs.
type network struct {
	nodes int // the first of them classes to come from, then those to lead to, then hubs
	ways  []way
	froms int // classes to come from
}

// way is an arc.
type way struct {
	from, to int
	ns       int64
}

// route makes a network of edge times (rows: where edges come from, columns: where they lead to).
//
// For every row and every time that occurs in it there is a hub, which leads to all columns that take at most that long
// from it. Rows with the same columns share hubs, and a hub leads to other hubs whose columns are among its own instead
// of to each column. A path through a hub is never shorter than the edge, and one of them is as long. Hubs for columns
// take the place of hubs for rows if they need fewer arcs. If there are fewer pairs than arcs, the network has an arc
// for each pair instead.
func route(ns [][]int64) network {
	rows, cols := len(ns), len(ns[0])

	// Hubs for the rows, or, on the transposed edges, for the columns: whichever needs fewer ways.
	best := hubs(ns)
	turned := make([][]int64, cols)
	for col := range cols {
		for row := range rows {
			turned[col] = append(turned[col], ns[row][col])
		}
	}
	if other := hubs(turned); len(other.ways) < len(best.ways) {
		for i, arc := range other.ways {
			swap := func(node int) int { // classes of both sides change places
				switch {
				case node < cols:
					return rows + node
				case node < cols+rows:
					return node - cols
				}
				return node
			}
			other.ways[i] = way{swap(arc.to), swap(arc.from), arc.ns}
		}
		other.froms = rows
		best = other
	}
	if rows*cols > len(best.ways) {
		return best
	}

	pairs := network{nodes: rows + cols, froms: rows}
	for row := range ns {
		for col, time := range ns[row] {
			pairs.ways = append(pairs.ways, way{row, rows + col, time})
		}
	}
	return pairs
}

// hubs makes the network with hubs for rows.
func hubs(ns [][]int64) network {
	rows, cols := len(ns), len(ns[0])
	out := network{nodes: rows + cols, froms: rows}
	// One hub for each set of columns that some row reaches within some time.
	var sets []set
	var into [][]way // per set: from a row at a time; to is not yet known
	for row := range ns {
		times := slices.Clone(ns[row])
		slices.Sort(times)
		for _, time := range slices.Compact(times) {
			reached := newSet(cols)
			for col, edge := range ns[row] {
				if edge <= time {
					reached.add(col)
				}
			}
			number := slices.IndexFunc(sets, func(other set) bool { return slices.Equal(other, reached) })
			if number < 0 {
				number = len(sets)
				sets, into = append(sets, reached), append(into, nil)
			}
			into[number] = append(into[number], way{from: row, ns: time})
		}
	}
	// A hub leads to the largest hubs within it, and to the columns that these leave out (greedy set cover).
	for number, reached := range sets {
		self := rows + cols + number
		out.nodes++
		for _, w := range into[number] {
			out.ways = append(out.ways, way{w.from, self, w.ns})
		}
		missing := slices.Clone(reached)
		for at := largestSubset(sets, number, missing); at >= 0; at = largestSubset(sets, number, missing) {
			out.ways = append(out.ways, way{self, rows + cols + at, 0})
			missing.remove(sets[at])
		}
		for col := range cols {
			if missing.has(col) {
				out.ways = append(out.ways, way{self, rows + col, 0})
			}
		}
	}
	return out
}

// largestSubset returns the proper subset of a set that has most, at least two, of what is missing; -1: none.
func largestSubset(sets []set, number int, missing set) int {
	whole := sets[number]
	most, at := 1, -1
	for other, part := range sets {
		if both := part.both(missing); both > most && part.both(whole) == part.size() && part.size() < whole.size() {
			most, at = both, other
		}
	}
	return at
}

// shortest returns the arcs of a shortest path between two classes (Bellman-Ford relaxation).
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

// set is a set of small numbers: a bit for each.
type set []uint64

// newSet returns an empty set of numbers below size; both is the size of an intersection.
func newSet(size int) set         { return make(set, (size+63)/64) }
func (s set) add(number int)      { s[number/64] |= 1 << (number % 64) }
func (s set) has(number int) bool { return s[number/64]&(1<<(number%64)) != 0 }
func (s set) size() int           { return s.both(s) }

// both returns how many numbers two sets have in common.
func (s set) both(other set) (count int) {
	for k := range s {
		count += bits.OnesCount64(s[k] & other[k])
	}
	return count
}

// remove takes another set's numbers away.
func (s set) remove(other set) {
	for k := range s {
		s[k] &^= other[k]
	}
}
