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

// ready returns when the inputs of subgraph j of chunk i are available; false before all of them have been started.
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

// empty returns a schedule in which nothing has started.
func (g Graph) empty() Schedule {
	order := Schedule{Start: make([][]int64, len(g))}
	for i := range g {
		order.Start[i] = slices.Repeat([]int64{-1}, len(g[i]))
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

// Greedy returns the paper's online order (sec. 3.4). Whenever a processor is free, it starts, of its subgraphs whose
// inputs are available, the one with the largest C; among equal ones that of the earliest chunk, which the paper leaves
// open.
//
// It is list scheduling by events: time moves to the next end of a subgraph, and at each moment both processors are
// offered what can start. The state is what has started, and when each processor is free again. Each event looks at
// every chunk once per processor.
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
			if chunk := g.largest(&order, done, next, proc, now); chunk >= 0 {
				order.Start[chunk][next[chunk]] = now
				free[proc] = now + g[chunk][next[chunk]].NS
				order.End = max(order.End, free[proc])
				next[chunk]++
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

// largest returns the chunk that the paper's rule chooses: of those whose next subgraph can start on a processor now,
// the one with the largest contribution, and among equal ones the earliest; -1 if there is none.
func (g Graph) largest(order *Schedule, done [][]bool, next []int, proc int, now int64) int {
	best, most := -1, int64(0)
	for i := range g {
		j := next[i]
		if j == len(g[i]) || g[i][j].Lane != proc {
			continue
		}
		if at, ok := g.ready(order, i, j); !ok || at > now {
			continue
		}
		if contribution := g.contribution(done, i, j); best < 0 || contribution > most {
			best, most = i, contribution
		}
	}
	return best
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
