package exact

import (
	"context"
	"math"
	"slices"
)

// Bucket selection under limits is a shortest path with resource constraints: nodes are positions among the sizes, an
// arc opens the next size, and each takes bytes, graphs and opening time. Prices on these (Lagrangian relaxation) give
// bounds for every node; label setting with dominance then finds the optimum among what the bounds leave.

// spent is how much of each limit some sizes take: bytes, graphs, opening time.
type spent [3]int64

// takes returns how much opening a candidate takes of each limit.
func (s *bucketSearch) takes(candidate int) spent {
	size := &s.buckets.Sizes[s.size[candidate]]
	return spent{size.Bytes, int64(size.Graphs), size.OpenNS}
}

// plus adds amounts, each kind by itself.
func (a spent) plus(b spent) spent { return spent{a[0] + b[0], a[1] + b[1], a[2] + b[2]} }

// within reports whether no amount exceeds that of b.
func (a spent) within(b spent) bool { return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2] }

// times returns the cost of the amounts at these prices.
func (a spent) times(price spent) (sum int64) {
	for kind, amount := range a {
		if price[kind] > 0 { // an amount without a limit may be MaxInt64
			sum += price[kind] * amount
		}
	}
	return sum
}

// relaxed is the Lagrangian relaxation of the limits: the dynamic program with a price on every unit spent. value[k][v]
// is the least sum of the cost of the rests beyond node v and the charges of the sizes opened for them.
type relaxed struct {
	price spent     // of a unit of each kind
	value [][]int64 // by number of sizes that may still be opened, less 1, and node
	next  [][]int32 // the size that attains it
}

// relax solves the chunk with prices. It costs about Max * sizes^2 / 2 steps.
func (s *bucketSearch) relax(price spent) *relaxed {
	chunk, most := s.chunk, min(s.buckets.Max, s.chunk+1)
	charge := make([]int64, chunk+1)
	for size := range charge {
		charge[size] = s.takes(size).times(price)
	}
	out := &relaxed{price: price}

	for sizes := range most {
		value, next := make([]int64, chunk+1), make([]int32, chunk+1)
		for node := range chunk + 1 {
			value[node], next[node] = s.held(node, chunk)*s.cost[chunk]+charge[chunk], int32(chunk)
			if sizes == 0 {
				continue
			}
			for size := node; size < chunk; size++ {
				cost := s.held(node, size)*s.cost[size] + charge[size] + out.value[sizes-1][size+1]
				if cost < value[node] {
					value[node], next[node] = cost, int32(size)
				}
			}
		}

		out.value, out.next = append(out.value, value), append(out.next, next)
	}
	s.nodes += int64(most) * int64(chunk+1) * int64(chunk+1) / 2
	return out
}

// path returns the relaxation's choice, with its cost without prices and the amounts that it spends.
func (r *relaxed) path(s *bucketSearch) (list []int, cost int64, sum spent) {
	node := 0
	for k := len(r.value) - 1; ; k-- {
		size := int(r.next[k][node])
		list, cost, sum = append(list, size), cost+s.held(node, size)*s.cost[size], sum.plus(s.takes(size))
		if size == s.chunk {
			return list, cost, sum
		}
		node = size + 1
	}
}

// dualSearch is a search for the prices with the highest Lagrangian bound of a chunk.
type dualSearch struct {
	*bucketSearch
	best  *relaxed
	value int64 // its bound
}

// at bounds the chunk at some prices. It offers their choice if that is within the limits, and returns what it spends.
func (d *dualSearch) at(price spent) spent {
	relaxation := d.relax(price)
	if bound := relaxation.value[len(relaxation.value)-1][0] - d.most.times(price); bound > d.value {
		d.best, d.value = relaxation, bound
	}

	list, cost, sum := relaxation.path(d.bucketSearch)
	if sum.within(d.most) {
		d.offer(d.fixed+cost, list)
	}
	return sum
}

// dual searches prices at which the chunk's choice keeps the limits, raising one at a time by bisection. It returns the
// relaxation with the highest bound, and offers the choices within the limits that it finds on the way.
func (s *bucketSearch) dual() (best *relaxed, bound int64) {
	search := &dualSearch{bucketSearch: s, value: math.MinInt64}
	var price spent
	for range len(price) { // a price may make another limit bind
		sum := search.at(price)
		over := slices.IndexFunc([]int{0, 1, 2}, func(i int) bool { return sum[i] > s.most[i] })
		if over < 0 || s.nodes > s.nodeLimit {
			break
		}
		search.raise(&price, over)
	}
	return search.best, search.value
}

// raise finds approximately the lowest price of one limit at which the choice keeps it.
func (d *dualSearch) raise(price *spent, limit int) {
	// The highest price is such that a unit costs as much as everything, and all of it stays in range.
	var all int64 = 1
	for candidate := range d.chunk + 1 {
		all += d.takes(candidate)[limit]
	}

	low, high := price[limit], max(1, (1<<60)/all)
	for high-low > max(1, low/64) && d.nodes <= d.nodeLimit {
		mid := low + max(1, (high-low)/2)
		if low == 0 || high/low > 4 { // by magnitude first
			mid = max(low+1, int64(math.Sqrt(float64(max(1, low))*float64(high))))
		}
		if mid >= high {
			break
		}
		price[limit] = mid
		if sum := d.at(*price); sum[limit] > d.most[limit] {
			low = mid
		} else {
			high = mid
		}
	}
	price[limit] = high
}

// label is a partial choice of sizes that ends with size.
type label struct {
	cost  int64
	sum   spent // the chunk included
	prev  int32 // -1: none
	size  int32
	count int32
}

// labelSearch is label setting for a shortest path with resource constraints. A label at node v has decided everything
// before candidate v. It is dropped when its bound exceeds the best known cost, or when another label at its node is at
// least as good in everything. Every arc leads to a later node, so one pass over the nodes visits all labels.
type labelSearch struct {
	*bucketSearch
	bounds *relaxed
	all    []label
	nodeAt [][]int32 // labels by node
}

// limited searches the chunk within the limits; free is the bound without them.
func (s *bucketSearch) limited(ctx context.Context, free int64) error {
	if s.nodes > s.nodeLimit {
		s.stop(free)
		return nil
	}
	bounds, bound := s.dual()
	if s.fixed+bound > s.best {
		return nil
	}
	bound = max(free, s.fixed+bound)
	labels := &labelSearch{bucketSearch: s, bounds: bounds, nodeAt: make([][]int32, s.chunk+1)}
	if !labels.extend(-1, label{sum: s.takes(s.chunk)}, 0) {
		s.stop(bound)
		return nil
	}

	for node := 1; node <= s.chunk; node++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, number := range labels.nodeAt[node] {
			if !labels.extend(number, labels.all[number], node) {
				s.stop(bound)
				return nil
			}
		}
	}
	return nil
}

// stop notes that choices which cost at least bound were not searched to their end.
func (s *bucketSearch) stop(bound int64) { s.stopped, s.bound = true, min(s.bound, bound) }

// extend appends each candidate to label number from, which ends at node. It returns false at the limit of nodes.
func (l *labelSearch) extend(from int32, last label, node int) bool {
	chunk := l.chunk
	for candidate := node; candidate < chunk; candidate++ {
		if l.nodes++; l.nodes > l.nodeLimit {
			return false
		}
		next := label{
			cost: last.cost + l.held(node, candidate)*l.cost[candidate], sum: last.sum.plus(l.takes(candidate)),
			prev: from, size: int32(candidate), count: last.count + 1,
		}
		if int(next.count) >= l.buckets.Max || !next.sum.within(l.most) {
			continue
		}

		if l.fixed+l.boundOf(&next) > l.best || l.dominated(&next) {
			continue
		}
		l.all = append(l.all, next)
		l.nodeAt[candidate+1] = append(l.nodeAt[candidate+1], int32(len(l.all)-1))
	}
	l.offer(l.fixed+last.cost+l.held(node, chunk)*l.cost[chunk], append(l.list(from), chunk))
	return true
}

// boundOf returns a lower bound of the cost of all choices that begin with a label: the larger of the optimum without
// limits and the Lagrangian bound.
func (l *labelSearch) boundOf(last *label) int64 {
	sizes, node := min(l.buckets.Max-int(last.count), l.chunk+1)-1, last.size+1
	priced := last.cost + l.bounds.value[sizes][node]
	for kind, price := range l.bounds.price {
		if price > 0 { // the relaxation charges the chunk, which sum has already
			priced -= price * (l.most[kind] - last.sum[kind] + l.takes(l.chunk)[kind])
		}
	}
	return max(last.cost+l.layers[sizes][node], priced)
}

// list returns the candidates of a label.
func (l *labelSearch) list(at int32) (out []int) {
	for ; at >= 0; at = l.all[at].prev {
		out = append(out, int(l.all[at].size))
	}
	slices.Reverse(out)
	return out
}

// dominated reports whether a label at the same node is at least as good as x in everything, ties in the order of
// choices included.
func (l *labelSearch) dominated(last *label) bool {
	for _, number := range l.nodeAt[last.size+1] {
		other := &l.all[number]
		if other.count > last.count || other.cost > last.cost || !other.sum.within(last.sum) {
			continue
		}
		isBetter := other.cost < last.cost || other.count < last.count
		if isBetter || slices.Compare(l.list(number), append(l.list(last.prev), int(last.size))) <= 0 {
			return true
		}
	}
	return false
}
