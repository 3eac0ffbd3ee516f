package problem

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever edges take, the shortest path between two classes is as long as the edge, and is the one that is returned;
// where times are few and nested there are fewer ways than pairs.
func TestRoute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := rapid.IntRange(1, 9).Draw(t, "rows"), rapid.IntRange(1, 70).Draw(t, "cols")
		times := rapid.IntRange(1, 5).Draw(t, "times")
		nested := rapid.Bool().Draw(t, "nested")
		ns := make([][]int64, rows)
		for a := range ns {
			for x := range cols {
				v := int64(rapid.IntRange(0, times-1).Draw(t, "time")) * 5000
				if nested { // a staircase
					if v = 0; x > a {
						v = 10000
					}
				}
				ns[a] = append(ns[a], v)
			}
		}
		n := route(ns)
		if len(n.ways) > rows*cols {
			t.Fatalf("%d ways for %d pairs", len(n.ways), rows*cols)
		}
		if nested && rows == 9 && cols > 20 && len(n.ways) > 5*(rows+cols) {
			t.Fatalf("%d ways for a staircase of %d x %d", len(n.ways), rows, cols)
		}
		for a := range rows {
			for x := range cols {
				sum, at := int64(0), rows+x
				for _, w := range n.shortest(a, x) { // from its end
					if n.ways[w].to != at {
						t.Fatalf("way %v does not lead to %d", n.ways[w], at)
					}
					sum, at = sum+n.ways[w].ns, n.ways[w].from
				}
				if at != a || sum != ns[a][x] {
					t.Fatalf("the path from %d to %d begins at %d and takes %d, want %d", a, x, at, sum, ns[a][x])
				}
			}
		}
	})
}
