package papers

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// Processors of a chunk graph.
const (
	onNPU = iota
	onCPU // or the GPU
)

// subgraph is a piece of a model's prefill graph (llm.npu sec. 3.2).
type subgraph struct {
	proc int
	ns   int64
	// reads what the same piece before it left for all earlier chunks (Eq. 2), not for its own alone (Eq. 3)
	attention bool
}

// chunkGraph is the subgraphs of each chunk of a prompt, in the order of their indices.
type chunkGraph [][]subgraph

// chunkOrder is when each subgraph of a chunk graph starts.
type chunkOrder struct {
	start [][]int64
	end   int64 // of the last one
}

// ready is when the inputs of subgraph j of chunk i are there; false before all of them have been started.
func (g chunkGraph) ready(order *chunkOrder, i, j int) (at int64, ok bool) {
	if j == 0 {
		return 0, true
	}
	first := i
	if g[i][j].attention {
		first = 0
	}
	for chunk := first; chunk <= i; chunk++ {
		if order.start[chunk][j-1] < 0 {
			return 0, false
		}
		at = max(at, order.start[chunk][j-1]+g[chunk][j-1].ns)
	}
	return at, true
}

// empty is an order in which nothing has started.
func (g chunkGraph) empty() chunkOrder {
	order := chunkOrder{start: make([][]int64, len(g))}
	for i := range g {
		order.start[i] = slices.Repeat([]int64{-1}, len(g[i]))
	}
	return order
}

// inOrder executes chunk after chunk: each processor takes its subgraphs in the order of chunks and indices and waits
// for their inputs.
func (g chunkGraph) inOrder() chunkOrder {
	order := g.empty()
	var free [2]int64
	for i := range g {
		for j, graph := range g[i] {
			at, _ := g.ready(&order, i, j)
			order.start[i][j] = max(at, free[graph.proc])
			free[graph.proc] = order.start[i][j] + graph.ns
			order.end = max(order.end, free[graph.proc])
		}
	}
	return order
}

// contribution is C of Eq. 5: the time of the subgraphs that can be executed once subgraph j of chunk i has been,
// and could not before, negative where it is itself on the NPU. done tells which have been executed.
func (g chunkGraph) contribution(done [][]bool, i, j int) int64 {
	var sum int64
	if j+1 < len(g[i]) {
		for at := i; at < len(g); at++ {
			graph := g[at][j+1]
			if at > i && !graph.attention || done[at][j+1] {
				continue
			}
			first := at
			if graph.attention {
				first = 0
			}
			opens := true
			for m := first; m <= at; m++ {
				opens = opens && (m == i || done[m][j])
			}
			if opens {
				sum += graph.ns
			}
		}
	}
	if g[i][j].proc == onNPU {
		return -sum
	}
	return sum
}

// eq5 is the paper's online order (sec. 3.4): whenever a processor is free, of its subgraphs whose inputs are there
// the one with the largest C starts; of several the one of the earliest chunk, which the paper leaves open.
//
// It is list scheduling by events: time moves to the next end of a subgraph, and at each moment both processors
// are offered what can start. The state is what has started, and when each processor is free again. Each event
// looks at every chunk once per processor.
func (g chunkGraph) eq5() chunkOrder {
	order := g.empty()
	// done: ended by now; left: not yet started
	done := make([][]bool, len(g))
	left := 0
	for i := range g {
		done[i] = make([]bool, len(g[i]))
		left += len(g[i])
	}
	next := make([]int, len(g)) // of each chunk, the first subgraph that has not started
	var free [2]int64
	for now := int64(0); left > 0; {
		for i := range g {
			for j := range next[i] {
				done[i][j] = order.start[i][j]+g[i][j].ns <= now
			}
		}
		for proc := range free {
			if free[proc] > now {
				continue
			}
			// the paper's rule: the largest contribution, ties to the earliest chunk
			best, bestC := -1, int64(0)
			for i := range g {
				j := next[i]
				if j == len(g[i]) || g[i][j].proc != proc {
					continue
				}
				if at, ok := g.ready(&order, i, j); !ok || at > now {
					continue
				}
				if c := g.contribution(done, i, j); best < 0 || c > bestC {
					best, bestC = i, c
				}
			}
			if best >= 0 {
				order.start[best][next[best]] = now
				free[proc] = now + g[best][next[best]].ns
				order.end = max(order.end, free[proc])
				next[best]++
				left--
			}
		}
		// The next moment at which anything ends.
		later := int64(math.MaxInt64)
		for i := range g {
			for j := range next[i] {
				if end := order.start[i][j] + g[i][j].ns; end > now {
					later = min(later, end)
				}
			}
		}
		if later == math.MaxInt64 {
			if left > 0 && !g.startable(&order, next, now) {
				panic("BUG: a chunk graph waits for itself")
			}
			continue // subgraphs of no duration
		}
		now = later
	}
	return order
}

// startable reports whether the next subgraph of any chunk can start by a time.
func (g chunkGraph) startable(o *chunkOrder, next []int, now int64) bool {
	for i := range g {
		if next[i] < len(g[i]) {
			if at, ok := g.ready(o, i, next[i]); ok && at <= now {
				return true
			}
		}
	}
	return false
}

// partial is a beginning of an order.
type partial struct {
	chunkOrder
	next  []int    // of each chunk, the first subgraph that has not started
	free  [2]int64 // when each processor has executed what was started on it
	load  [2]int64 // what is left for it
	below int64    // no order that begins like this ends before
}

// begin is the root of the search: nothing has started, and all of the load is left.
func (g chunkGraph) begin() *partial {
	start := &partial{chunkOrder: g.empty(), next: make([]int, len(g))}
	for i := range g {
		for _, graph := range g[i] {
			start.load[graph.proc] += graph.ns
		}
	}
	start.below = g.bound(start)
	return start
}

// bound is an end that no order which begins like p comes before.
//
// It relaxes the problem twice. The subgraphs of a chunk follow each other, so a chunk ends at the earliest after
// the sum of what is left of it. A processor computes one subgraph at a time, so it ends at the earliest after its
// load, from the first moment at which it can go on. The larger of both is a bound.
func (g chunkGraph) bound(state *partial) int64 {
	low := state.end
	first := [2]int64{math.MaxInt64, math.MaxInt64} // no subgraph that is left for the processor starts before
	for i := range g {
		at := int64(0)
		if state.next[i] > 0 {
			at = state.start[i][state.next[i]-1] + g[i][state.next[i]-1].ns
		}
		for _, graph := range g[i][state.next[i]:] {
			first[graph.proc] = min(first[graph.proc], at)
			at += graph.ns
		}
		low = max(low, at)
	}
	for proc := range first {
		if first[proc] < math.MaxInt64 {
			low = max(low, max(state.free[proc], first[proc])+state.load[proc])
		}
	}
	return low
}

// begun starts the next subgraph of chunk i after p, false when its inputs are not among what p has started.
func (g chunkGraph) begun(state *partial, i int) (*partial, bool) {
	j := state.next[i]
	if j == len(g[i]) {
		return nil, false
	}
	at, ok := g.ready(&state.chunkOrder, i, j)
	if !ok {
		return nil, false
	}
	graph := g[i][j]
	next := *state
	next.next, next.start = slices.Clone(state.next), slices.Clone(state.start)
	next.start[i] = slices.Clone(state.start[i])
	next.start[i][j] = max(at, state.free[graph.proc])
	next.next[i]++
	next.free[graph.proc], next.load[graph.proc] = next.start[i][j]+graph.ns, state.load[graph.proc]-graph.ns
	next.end = max(state.end, next.free[graph.proc])
	next.below = g.bound(&next)
	return &next, true
}

// beam keeps the most promising beginnings of each length, so many of them, and returns the best order they lead to.
//
// This is beam search: of all beginnings that are one subgraph longer, those with the lowest bounds survive. It
// may lose the best order. It costs width times chunks for each subgraph.
func (g chunkGraph) beam(width int) chunkOrder {
	list := []*partial{g.begin()}
	for {
		var longer []*partial
		for _, state := range list {
			for i := range g {
				if next, ok := g.begun(state, i); ok {
					longer = append(longer, next)
				}
			}
		}
		if len(longer) == 0 {
			return list[0].chunkOrder
		}
		slices.SortStableFunc(longer, func(a, b *partial) int {
			return cmp.Or(cmp.Compare(a.below, b.below), cmp.Compare(a.free[onNPU], b.free[onNPU]),
				cmp.Compare(a.free[onCPU], b.free[onCPU]), slices.Compare(a.next, b.next))
		})
		longer = slices.CompactFunc(longer, func(a, b *partial) bool {
			return a.free == b.free && a.below == b.below && slices.Equal(a.next, b.next)
		})
		list = longer[:min(width, len(longer))]
	}
}

// beamWidths are how many beginnings searches keep; the wider one is not always the better one.
var beamWidths = []int{8, 48}

// least finds an order with the least end by branch and bound over which subgraph is started next (every order
// without needless waits is tried), starting from the best of in-order, Eq. 5 and beam searches. bound is below
// every end, equal to the order's when that is proved to be the least; nodes bounds the search.
//
// It is correct because of two facts. An order with needless waits can be shifted so that it has none and ends no
// later. And a beginning whose bound reaches the end of the best order leads to no better one. The cost is
// exponential at worst, which is why nodes bounds it.
func (g chunkGraph) least(ctx context.Context, nodes int) (best chunkOrder, bound int64, err error) {
	best = g.inOrder()
	if order := g.eq5(); order.end < best.end {
		best = order
	}
	for _, width := range beamWidths {
		if order := g.beam(width); order.end < best.end {
			best = order
		}
	}
	// depth first, the child with the lowest bound first
	root := g.begin()
	spent := 0
	var walk func(state *partial) error
	walk = func(state *partial) error {
		if spent++; spent > nodes || state.below >= best.end {
			return nil
		}
		if spent%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		var longer []*partial
		for i := range g {
			if next, ok := g.begun(state, i); ok {
				longer = append(longer, next)
			}
		}
		if len(longer) == 0 {
			best = state.chunkOrder
			return nil
		}
		slices.SortStableFunc(longer, func(a, b *partial) int { return cmp.Compare(a.below, b.below) })
		for _, partial := range longer {
			if err := walk(partial); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(root); err != nil {
		return best, 0, err
	}
	if spent > nodes {
		return best, min(root.below, best.end), nil
	}
	return best, best.end, nil
}

// check reports the first thing that an order breaks of Eq. 2, 3 and 4.
func (g chunkGraph) check(order chunkOrder) error {
	var end int64
	// inputs before outputs, and no two subgraphs at a time on one processor
	type slot struct{ from, to int64 }
	var lanes [2][]slot
	for i := range g {
		for j, graph := range g[i] {
			at, ok := g.ready(&order, i, j)
			if !ok || order.start[i][j] < at {
				return fmt.Errorf("subgraph %d of chunk %d starts at %d ns, its inputs are there at %d ns", j, i,
					order.start[i][j], at)
			}
			end = max(end, order.start[i][j]+graph.ns)
			lanes[graph.proc] = append(lanes[graph.proc], slot{order.start[i][j], order.start[i][j] + graph.ns})
		}
	}
	for proc, lane := range lanes {
		slices.SortFunc(lane, func(a, b slot) int {
			return cmp.Or(cmp.Compare(a.from, b.from),
				cmp.Compare(a.to, b.to))
		})
		for k := 1; k < len(lane); k++ {
			if lane[k].from < lane[k-1].to {
				return fmt.Errorf("processor %d executes two subgraphs at %d ns", proc, lane[k].from)
			}
		}
	}
	if end != order.end {
		return fmt.Errorf("ends at %d ns, its last subgraph at %d ns", order.end, end)
	}
	return nil
}

// bubble is the part of an order's time in which the NPU waits.
func (g chunkGraph) bubble(o chunkOrder) float64 {
	var busy int64
	for i := range g {
		for _, graph := range g[i] {
			if graph.proc == onNPU {
				busy += graph.ns
			}
		}
	}
	return 1 - float64(busy)/float64(o.end)
}
