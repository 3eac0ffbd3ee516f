// Package order knows in which order the steps of several chunks of a prompt are executed that are in flight together:
// chunk after chunk, by the rule of llm.npu (sec. 3.4), or in the best order that a search finds. Graph is a whole
// prompt, in the terms of the paper; Problem is one layer, which repeats. Heads is the same question about the heads of
// a sparse attention (shadowAttn sec. 3.4).
package order

import (
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

// perLane has a time for each lane.
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

// ready returns when the inputs of a subgraph of a chunk are available; false before all of them have been started.
func (g Graph) ready(order *Schedule, chunk, index int) (at int64, ok bool) {
	if index == 0 {
		return 0, true
	}
	first := chunk
	if g[chunk][index].Attention {
		first = 0
	}
	for from := first; from <= chunk; from++ {
		start := order.Start[from][index-1]
		if start < 0 {
			return 0, false
		}
		at = max(at, start+g[from][index-1].NS)
	}
	return at, true
}

// empty returns a schedule in which nothing has started.
func (g Graph) empty() Schedule {
	order := Schedule{Start: make([][]int64, len(g))}
	for i := range g {
		order.Start[i] = slices.Repeat([]int64{-1}, len(g[i]))
	}
	return order
}

// contribution is C of Eq. 5: the time of the subgraphs that can be executed once a subgraph of a chunk has been, and
// could not before, negative where it is itself on the NPU. done tells which have been executed.
func (g Graph) contribution(done [][]bool, chunk, index int) int64 {
	var sum int64
	if index+1 < len(g[chunk]) {
		for later := chunk; later < len(g); later++ {
			if g.opens(done, chunk, index, later) {
				sum += g[later][index+1].NS
			}
		}
	}
	if g[chunk][index].Lane == NPU {
		return -sum
	}
	return sum
}

// opens reports whether executing a subgraph of a chunk completes the inputs of the next subgraph of a later chunk, or
// of the same one.
func (g Graph) opens(done [][]bool, chunk, index, later int) bool {
	next := &g[later][index+1]
	readsChunk := later == chunk || next.Attention
	if !readsChunk || done[later][index+1] {
		return false
	}
	first := later
	if next.Attention {
		first = 0
	}
	for from := first; from <= later; from++ {
		if from != chunk && !done[from][index] {
			return false
		}
	}
	return true
}

// Greedy returns the paper's online order (sec. 3.4). Whenever a processor is free, it starts, of its subgraphs whose
// inputs are available, the one with the largest C; among equal ones that of the earliest chunk, which the paper leaves
// open.
//
// It is list scheduling by events: time moves to the next end of a subgraph, and at each moment both processors are
// offered what can start. The state is what has started, and when each processor is free again. Each event looks at
// every chunk once per processor.
func (g Graph) Greedy() Schedule {
	order := g.empty()

	done := make([][]bool, len(g)) // ended by now
	left := 0                      // not yet started
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
			if chunk := g.largest(&order, done, next, proc, now); chunk >= 0 {
				order.Start[chunk][next[chunk]] = now
				free[proc] = now + g[chunk][next[chunk]].NS
				order.End = max(order.End, free[proc])
				next[chunk]++
				left--
			}
		}

		later := g.nextEnd(&order, next, now)
		if later < math.MaxInt64 {
			now = later
			continue
		}
		// All that is left can start now: subgraphs of no duration.
		if left > 0 && !g.startable(&order, next, now) {
			panic("BUG: a chunk graph waits for itself")
		}
	}
	return order
}

// nextEnd returns the next moment after now at which a subgraph that has started ends; math.MaxInt64 if there is none.
func (g Graph) nextEnd(order *Schedule, next []int, now int64) int64 {
	later := int64(math.MaxInt64)
	for i := range g {
		for j := range next[i] {
			if end := order.Start[i][j] + g[i][j].NS; end > now {
				later = min(later, end)
			}
		}
	}
	return later
}

// largest returns the chunk that the paper's rule chooses: of those whose next subgraph can start on a processor now,
// the one with the largest contribution, and among equal ones the earliest; -1 if there is none.
func (g Graph) largest(order *Schedule, done [][]bool, next []int, proc int, now int64) int {
	best, most := -1, int64(0)
	for chunk := range g {
		index := next[chunk]
		if index == len(g[chunk]) || g[chunk][index].Lane != proc {
			continue
		}
		if at, ok := g.ready(order, chunk, index); !ok || at > now {
			continue
		}
		contribution := g.contribution(done, chunk, index)
		if best < 0 || contribution > most {
			best, most = chunk, contribution
		}
	}
	return best
}

// startable reports whether the next subgraph of any chunk can start by a time.
func (g Graph) startable(order *Schedule, next []int, now int64) bool {
	for chunk, index := range next {
		if index == len(g[chunk]) {
			continue
		}
		if at, ok := g.ready(order, chunk, index); ok && at <= now {
			return true
		}
	}
	return false
}
