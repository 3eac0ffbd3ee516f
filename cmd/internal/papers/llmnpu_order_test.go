package papers

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func drawChunks(t *rapid.T, chunks, subgraphs int, shortest int64) chunkGraph {
	n, m := rapid.IntRange(1, chunks).Draw(t, "chunks"), rapid.IntRange(1, subgraphs).Draw(t, "subgraphs")
	attention, procs := make([]bool, m), make([]int, m)
	for j := range m {
		attention[j], procs[j] = rapid.Bool().Draw(t, "attention"), rapid.IntRange(0, 1).Draw(t, "processor")
	}
	g := make(chunkGraph, n)
	for i := range g {
		for j := range m {
			g[i] = append(g[i], subgraph{procs[j], rapid.Int64Range(shortest, 9).Draw(t, "ns"), attention[j]})
		}
	}
	return g
}

// everyOrder tries all orders without needless waits.
func everyOrder(g chunkGraph) int64 {
	best := int64(math.MaxInt64)
	o := g.empty()
	next := make([]int, len(g))
	var walk func(free [2]int64, end int64, left int)
	walk = func(free [2]int64, end int64, left int) {
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
			o.start[i][j] = max(at, f[g[i][j].proc])
			f[g[i][j].proc] = o.start[i][j] + g[i][j].ns
			next[i]++
			walk(f, max(end, f[g[i][j].proc]), left-1)
			next[i]--
			o.start[i][j] = -1
		}
	}
	walk([2]int64{}, 0, len(g)*len(g[0]))
	return best
}

func TestLeastChunkOrderIsTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawChunks(t, 3, 3, 0)
		want := everyOrder(g)
		o, bound, err := g.least(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(o); err != nil {
			t.Fatal(err)
		}
		if o.end != want || bound != want {
			t.Fatalf("%+v ends at %d ns with bound %d, the least is %d ns", g, o.end, bound, want)
		}
	})
}

// Every order keeps Eq. 2 to 4, and no bound is above the least.
func TestChunkOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawChunks(t, 5, 8, 0)
		for _, o := range []chunkOrder{g.inOrder(), g.eq5()} {
			if err := g.check(o); err != nil {
				t.Fatalf("%+v: %v", g, err)
			}
		}
		o, bound, err := g.least(t.Context(), 2000)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(o); err != nil || bound > o.end || o.end > g.eq5().end || o.end > g.inOrder().end {
			t.Fatalf("%+v: %+v with bound %d, %v", g, o, bound, err)
		}
	})
}

// What starts is never of a smaller C than what could have started on the same processor instead, and nothing that
// could start waits.
func TestEq5IsTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawChunks(t, 4, 5, 1)
		o := g.eq5()
		ended := func(at int64, i, j int) bool { return o.start[i][j]+g[i][j].ns <= at }
		// newly sums what becomes ready when (i,j) ends, from the dependencies alone.
		newly := func(at int64, i, j int) (sum int64) {
			for k := range g {
				for m := 1; m < len(g[k]); m++ {
					first, waits, others := k, false, false
					if g[k][m].attention {
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
						sum += g[k][m].ns
					}
				}
			}
			return sum
		}
		c := func(at int64, i, j int) int64 {
			if g[i][j].proc == onNPU {
				return -newly(at, i, j)
			}
			return newly(at, i, j)
		}
		for i := range g {
			for j := range g[i] {
				at := o.start[i][j]
				if ready, _ := g.ready(&o, i, j); ready < at {
					busy := false
					for k := range g {
						for m := range g[k] {
							busy = busy || g[k][m].proc == g[i][j].proc && o.start[k][m] < at && o.start[k][m]+
								g[k][m].ns >= at
						}
					}
					if !busy {
						t.Fatalf("%+v: subgraph %d of chunk %d could start at %d ns and starts at %d ns on a "+
							"processor that waits", g, j, i, ready, at)
					}
				}
				for k := range g {
					for m := range g[k] {
						if (k == i && m == j) || g[k][m].proc != g[i][j].proc || o.start[k][m] < at {
							continue
						}
						if ready, ok := g.ready(&o, k, m); ok && ready <= at && o.start[k][m] > at &&
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
