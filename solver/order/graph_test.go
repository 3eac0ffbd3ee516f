package order

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawChunks(t *rapid.T, chunks, subgraphs int, shortest int64) Graph {
	n, m := rapid.IntRange(1, chunks).Draw(t, "chunks"), rapid.IntRange(1, subgraphs).Draw(t, "subgraphs")
	attention, procs := make([]bool, m), make([]int, m)
	for j := range m {
		attention[j], procs[j] = rapid.Bool().Draw(t, "attention"), rapid.IntRange(0, 1).Draw(t, "processor")
	}
	g := make(Graph, n)
	for i := range g {
		for j := range m {
			g[i] = append(g[i], Subgraph{procs[j], rapid.Int64Range(shortest, 9).Draw(t, "ns"), attention[j]})
		}
	}
	return g
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
		g := drawChunks(t, 4, 5, 1)
		o := g.Greedy()
		ended := func(at int64, i, j int) bool { return o.Start[i][j]+g[i][j].NS <= at }
		// newly sums what becomes ready when (i,j) ends, from the dependencies alone.
		newly := func(at int64, i, j int) (sum int64) {
			for k := range g {
				for m := 1; m < len(g[k]); m++ {
					first, waits, others := k, false, false
					if g[k][m].Attention {
						first = 0
					}
					for c := first; c <= k; c++ {
						if c == i && m-1 == j {
							waits = true
						} else {
							others = others || !ended(at, c, m-1)
						}
					}
					if waits && !others {
						sum += g[k][m].NS
					}
				}
			}
			return sum
		}
		c := func(at int64, i, j int) int64 {
			if g[i][j].Lane == NPU {
				return -newly(at, i, j)
			}
			return newly(at, i, j)
		}
		for i := range g {
			for j := range g[i] {
				at := o.Start[i][j]
				if ready, _ := g.ready(&o, i, j); ready < at {
					busy := false
					for k := range g {
						for m := range g[k] {
							busy = busy || g[k][m].Lane == g[i][j].Lane && o.Start[k][m] < at && o.Start[k][m]+
								g[k][m].NS >= at
						}
					}
					if !busy {
						t.Fatalf("%+v: subgraph %d of chunk %d could start at %d ns and starts at %d ns on a "+
							"processor that waits", g, j, i, ready, at)
					}
				}
				for k := range g {
					for m := range g[k] {
						if (k == i && m == j) || g[k][m].Lane != g[i][j].Lane || o.Start[k][m] < at {
							continue
						}
						if ready, ok := g.ready(&o, k, m); ok && ready <= at && o.Start[k][m] > at &&
							c(at, k, m) > c(at, i, j) {
							t.Fatalf("%+v: at %d ns subgraph %d of chunk %d starts with C %d, and %d of chunk %d "+
								"has %d", g, at, j, i, c(at, i, j), m, k, c(at, k, m))
						}
					}
				}
			}
		}
	})
}
