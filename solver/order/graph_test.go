package order

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawChunks is a graph of a few chunks, each of the same subgraphs.
func drawChunks(t *rapid.T, chunks, subgraphs int, shortest int64) Graph {
	count, length := rapid.IntRange(1, chunks).Draw(t, "chunks"), rapid.IntRange(1, subgraphs).Draw(t, "subgraphs")
	attention, procs := make([]bool, length), make([]int, length)
	for i := range length {
		attention[i], procs[i] = rapid.Bool().Draw(t, "attention"), rapid.IntRange(0, 1).Draw(t, "processor")
	}
	graph := make(Graph, count)
	for chunk := range graph {
		for i := range length {
			graph[chunk] = append(graph[chunk],
				Subgraph{procs[i], rapid.Int64Range(shortest, 9).Draw(t, "ns"), attention[i]})
		}
	}
	return graph
}

// check reports the first thing that an order breaks of Eq. 2, 3 and 4.
func (g Graph) check(order Schedule) error {
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
			return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
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

// The rule keeps Eq. 2 to 4.
func TestGreedyIsAnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		graph := drawChunks(t, 5, 8, 0)
		if err := graph.check(graph.Greedy()); err != nil {
			t.Fatalf("%+v: %v", graph, err)
		}
	})
}

// What starts is never of a smaller C than what could have started on the same processor instead, and nothing that
// could start waits.
func TestEq5IsTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		graph := drawChunks(t, 4, 5, 1)
		order := graph.Greedy()
		for chunk := range graph {
			for index := range graph[chunk] {
				graph.checkStart(t, &order, chunk, index)
			}
		}
	})
}

// checkStart checks that a subgraph starts as soon as it can, and before others with a smaller C.
func (g Graph) checkStart(t *rapid.T, order *Schedule, chunk, index int) {
	lane, at := g[chunk][index].Lane, order.Start[chunk][index]
	ready, _ := g.ready(order, chunk, index)
	busy := false
	for other := range g {
		for i, graph := range g[other] {
			start := order.Start[other][i]
			if graph.Lane != lane || other == chunk && i == index {
				continue
			}
			if start < at {
				busy = busy || start+graph.NS >= at
				continue
			}
			otherReady, ok := g.ready(order, other, i)
			if !ok || otherReady > at || start <= at {
				continue
			}
			own, others := g.gain(order, at, chunk, index), g.gain(order, at, other, i)
			if others > own {
				t.Fatalf("%+v: at %d ns subgraph %d of chunk %d starts with C %d, and %d of chunk %d has %d", g, at,
					index, chunk, own, i, other, others)
			}
		}
	}
	if ready < at && !busy {
		t.Fatalf("%+v: subgraph %d of chunk %d could start at %d ns and starts at %d ns on a processor that waits", g,
			index, chunk, ready, at)
	}
}

// gain is C of Eq. 5 at a time, from the dependencies alone: what becomes ready when a subgraph ends.
func (g Graph) gain(order *Schedule, at int64, chunk, index int) (sum int64) {
	ended := func(chunk, index int) bool { return order.Start[chunk][index]+g[chunk][index].NS <= at }
	for later := range g {
		for i := 1; i < len(g[later]); i++ {
			first := later
			if g[later][i].Attention {
				first = 0
			}
			waits, others := false, false
			for from := first; from <= later; from++ {
				if from == chunk && i-1 == index {
					waits = true
				} else {
					others = others || !ended(from, i-1)
				}
			}
			if waits && !others {
				sum += g[later][i].NS
			}
		}
	}
	if g[chunk][index].Lane == NPU {
		return -sum
	}
	return sum
}
