// Package order knows in which order the steps of several chunks of a prompt are executed that are in flight together:
// chunk after chunk, by the rule of llm.npu (sec. 3.4), or in the best order that a search finds. Graph is a whole prompt,
// in the terms of the paper; Problem is one layer, which repeats. Heads is the same question about the heads of a sparse
// attention (shadowAttn sec. 3.4).
package order

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// Lanes of a graph. All others are CPUs or GPUs too.
const (
	NPU = iota // the processor on the critical path
	CPU
)

// MaxLanes is how many lanes a graph has at most.
const MaxLanes = 8

// perLane is a time for each lane.
type perLane [MaxLanes]int64

// Subgraph is a piece of a model's prefill graph (llm.npu sec. 3.2).
type Subgraph struct {
	Lane int
	NS   int64
	// Attention reads what the same piece before it left for all earlier chunks (Eq. 2), not for its own alone (Eq. 3).
	Attention bool
}

// Graph is the subgraphs of each chunk of a prompt, in the order of their indices.
type Graph [][]Subgraph

// Schedule is when each subgraph of a graph starts, in ns.
type Schedule struct {
	Start [][]int64 // by chunk and index
	End   int64     // of the last one
}

// ready is when the inputs of subgraph j of chunk i are there; false before all of them have been started.
func (g Graph) ready(order *Schedule, i, j int) (at int64, ok bool) {
	if j == 0 {
		return 0, true
	}
	first := i
	if g[i][j].Attention {
		first = 0
	}
	for chunk := first; chunk <= i; chunk++ {
		if order.Start[chunk][j-1] < 0 {
			return 0, false
		}
		at = max(at, order.Start[chunk][j-1]+g[chunk][j-1].NS)
	}
	return at, true
}

// empty is an order in which nothing has started.
func (g Graph) empty() Schedule {
	order := Schedule{Start: make([][]int64, len(g))}
	for i := range g {
		order.Start[i] = slices.Repeat([]int64{-1}, len(g[i]))
	}
	return order
}

// InOrder executes chunk after chunk: each processor takes its subgraphs in the order of chunks and indices and waits
// for their inputs.
func (g Graph) InOrder() Schedule {
	order := g.empty()
	var free perLane
	for i := range g {
		for j, graph := range g[i] {
			at, _ := g.ready(&order, i, j)
			order.Start[i][j] = max(at, free[graph.Lane])
			free[graph.Lane] = order.Start[i][j] + graph.NS
			order.End = max(order.End, free[graph.Lane])
		}
	}
	return order
}

// contribution is C of Eq. 5: the time of the subgraphs that can be executed once subgraph j of chunk i has been,
// and could not before, negative where it is itself on the NPU. done tells which have been executed.
func (g Graph) contribution(done [][]bool, i, j int) int64 {
	var sum int64
	if j+1 < len(g[i]) {
		for at := i; at < len(g); at++ {
			graph := g[at][j+1]
			if at > i && !graph.Attention || done[at][j+1] {
				continue
			}
			first := at
			if graph.Attention {
				first = 0
			}
			opens := true
			for m := first; m <= at; m++ {
				opens = opens && (m == i || done[m][j])
			}
			if opens {
				sum += graph.NS
			}
		}
	}
	if g[i][j].Lane == NPU {
		return -sum
	}
	return sum
}

// Greedy is the paper's online order (sec. 3.4): whenever a processor is free, of its subgraphs whose inputs are there
// the one with the largest C starts; of several the one of the earliest chunk, which the paper leaves open.
//
// It is list scheduling by events: time moves to the next end of a subgraph, and at each moment both processors
// are offered what can start. The state is what has started, and when each processor is free again. Each event
// looks at every chunk once per processor.
func (g Graph) Greedy() Schedule {
	order := g.empty()
	// done: ended by now; left: not yet started
	done := make([][]bool, len(g))
	left := 0
	for i := range g {
		done[i] = make([]bool, len(g[i]))
		left += len(g[i])
	}
	next := make([]int, len(g)) // of each chunk, the first subgraph that has not started
	var free perLane
	for now := int64(0); left > 0; {
		for i := range g {
			for j := range next[i] {
				done[i][j] = order.Start[i][j]+g[i][j].NS <= now
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
				if j == len(g[i]) || g[i][j].Lane != proc {
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
				order.Start[best][next[best]] = now
				free[proc] = now + g[best][next[best]].NS
				order.End = max(order.End, free[proc])
				next[best]++
				left--
			}
		}
		// The next moment at which anything ends.
		later := int64(math.MaxInt64)
		for i := range g {
			for j := range next[i] {
				if end := order.Start[i][j] + g[i][j].NS; end > now {
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
func (g Graph) startable(o *Schedule, next []int, now int64) bool {
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
	Schedule
	next  []int   // of each chunk, the first subgraph that has not started
	free  perLane // when each processor has executed what was started on it
	load  perLane // what is left for it
	below int64   // no order that begins like this ends before
}

// begin is the root of the search: nothing has started, and all of the load is left.
func (g Graph) begin() *partial {
	start := &partial{Schedule: g.empty(), next: make([]int, len(g))}
	for i := range g {
		for _, graph := range g[i] {
			start.load[graph.Lane] += graph.NS
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
func (g Graph) bound(state *partial) int64 {
	low := state.End
	var first perLane // no subgraph that is left for the processor starts before
	for lane := range first {
		first[lane] = math.MaxInt64
	}
	for i := range g {
		at := int64(0)
		if state.next[i] > 0 {
			at = state.Start[i][state.next[i]-1] + g[i][state.next[i]-1].NS
		}
		for _, graph := range g[i][state.next[i]:] {
			first[graph.Lane] = min(first[graph.Lane], at)
			at += graph.NS
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
func (g Graph) begun(state *partial, i int) (*partial, bool) {
	j := state.next[i]
	if j == len(g[i]) {
		return nil, false
	}
	at, ok := g.ready(&state.Schedule, i, j)
	if !ok {
		return nil, false
	}
	graph := g[i][j]
	next := *state
	next.next, next.Start = slices.Clone(state.next), slices.Clone(state.Start)
	next.Start[i] = slices.Clone(state.Start[i])
	next.Start[i][j] = max(at, state.free[graph.Lane])
	next.next[i]++
	next.free[graph.Lane], next.load[graph.Lane] = next.Start[i][j]+graph.NS, state.load[graph.Lane]-graph.NS
	next.End = max(state.End, next.free[graph.Lane])
	next.below = g.bound(&next)
	return &next, true
}

// beam keeps the most promising beginnings of each length, so many of them, and returns the best order they lead to.
//
// This is beam search: of all beginnings that are one subgraph longer, those with the lowest bounds survive. It
// may lose the best order. It costs width times chunks for each subgraph.
func (g Graph) beam(width int) Schedule {
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
			return list[0].Schedule
		}
		slices.SortStableFunc(longer, func(a, b *partial) int {
			return cmp.Or(cmp.Compare(a.below, b.below), cmp.Compare(a.free[NPU], b.free[NPU]),
				cmp.Compare(a.free[CPU], b.free[CPU]), slices.Compare(a.next, b.next))
		})
		longer = slices.CompactFunc(longer, func(a, b *partial) bool {
			return a.free == b.free && a.below == b.below && slices.Equal(a.next, b.next)
		})
		list = longer[:min(width, len(longer))]
	}
}

// beamWidths are how many beginnings searches keep; the wider one is not always the better one.
var beamWidths = []int{8, 48}

// Least finds an order with the least end by branch and bound over which subgraph is started next (every order
// without needless waits is tried), starting from the best of in-order, Eq. 5 and beam searches. bound is below
// every end, equal to the order's when that is proved to be the least; nodes bounds the search.
//
// It is correct because of two facts. An order with needless waits can be shifted so that it has none and ends no
// later. And a beginning whose bound reaches the end of the best order leads to no better one. The cost is
// exponential at worst, which is why nodes bounds it.
func (g Graph) Least(ctx context.Context, nodes int) (best Schedule, bound int64, err error) {
	best = g.InOrder()
	if order := g.Greedy(); order.End < best.End {
		best = order
	}
	for _, width := range beamWidths {
		if order := g.beam(width); order.End < best.End {
			best = order
		}
	}
	// depth first, the child with the lowest bound first
	root := g.begin()
	spent := 0
	var walk func(state *partial) error
	walk = func(state *partial) error {
		if spent++; spent > nodes || state.below >= best.End {
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
			best = state.Schedule
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
		return best, min(root.below, best.End), nil
	}
	return best, best.End, nil
}

// Check reports the first thing that an order breaks of Eq. 2, 3 and 4.
func (g Graph) Check(order Schedule) error {
	var end int64
	// inputs before outputs, and no two subgraphs at a time on one processor
	type slot struct{ from, to int64 }
	var lanes [MaxLanes][]slot
	for i := range g {
		for j, graph := range g[i] {
			at, ok := g.ready(&order, i, j)
			if !ok || order.Start[i][j] < at {
				return fmt.Errorf("subgraph %d of chunk %d starts at %d ns, its inputs are there at %d ns", j, i,
					order.Start[i][j], at)
			}
			end = max(end, order.Start[i][j]+graph.NS)
			lanes[graph.Lane] = append(lanes[graph.Lane], slot{order.Start[i][j], order.Start[i][j] + graph.NS})
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
	if end != order.End {
		return fmt.Errorf("ends at %d ns, its last subgraph at %d ns", order.End, end)
	}
	return nil
}

// Idle is the part of an order's time in which the NPU waits.
func (g Graph) Idle(o Schedule) float64 {
	var busy int64
	for i := range g {
		for _, graph := range g[i] {
			if graph.Lane == NPU {
				busy += graph.NS
			}
		}
	}
	return 1 - float64(busy)/float64(o.End)
}
