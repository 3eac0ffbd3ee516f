package order

import (
	"math"
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

// everyOrder tries all orders without needless waits.
func everyOrder(g Graph) int64 {
	best := int64(math.MaxInt64)
	o := g.empty()
	next := make([]int, len(g))
	var walk func(free perLane, end int64, left int)
	walk = func(free perLane, end int64, left int) {
		if left == 0 {
			best = min(best, end)
			return
		}
		for i := range g {
			j := next[i]
			if j == len(g[i]) {
				continue
			}
			at, ok := g.ready(&o, i, j)
			if !ok {
				continue
			}
			f := free
			o.Start[i][j] = max(at, f[g[i][j].Lane])
			f[g[i][j].Lane] = o.Start[i][j] + g[i][j].NS
			next[i]++
			walk(f, max(end, f[g[i][j].Lane]), left-1)
			next[i]--
			o.Start[i][j] = -1
		}
	}
	walk(perLane{}, 0, len(g)*len(g[0]))
	return best
}

func TestLeastChunkOrderIsTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawChunks(t, 3, 3, 0)
		want := everyOrder(g)
		o, bound, err := g.Least(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Check(o); err != nil {
			t.Fatal(err)
		}
		if o.End != want || bound != want {
			t.Fatalf("%+v ends at %d ns with bound %d, the least is %d ns", g, o.End, bound, want)
		}
	})
}

// Every order keeps Eq. 2 to 4, and no bound is above the least.
func TestChunkOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawChunks(t, 5, 8, 0)
		for _, o := range []Schedule{g.InOrder(), g.Greedy()} {
			if err := g.Check(o); err != nil {
				t.Fatalf("%+v: %v", g, err)
			}
		}
		o, bound, err := g.Least(t.Context(), 2000)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Check(o); err != nil || bound > o.End || o.End > g.Greedy().End || o.End > g.InOrder().End {
			t.Fatalf("%+v: %+v with bound %d, %v", g, o, bound, err)
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
