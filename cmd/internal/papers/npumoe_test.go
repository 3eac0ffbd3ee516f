package papers

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/solver/problem"
)

// The paper's rules against every tier and every choice of rows.
func TestPaperRulesAgainstAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		capacities := rapid.SliceOfNDistinct(rapid.IntRange(1, 200), 1, 6, rapid.ID).Draw(rt, "capacities")
		slices.Sort(capacities)
		load := rapid.Float64Range(0, 250).Draw(rt, "load")
		got := covering(capacities, load)
		for _, c := range capacities {
			if float64(c) >= load && c < got || float64(got) < load && c > got {
				rt.Fatalf("load %v got tier %d of %v", load, got, capacities)
			}
		}
	})
}

func TestCapacityIsAligned(t *testing.T) {
	for x, want := range map[float64]int{0: 16, 0.1: 16, 16: 16, 16.5: 32, 32: 32, 127: 128} {
		if got := alignedUp(x); got != want {
			t.Errorf("%v is aligned to %d, want %d", x, got, want)
		}
	}
	if got := ladder(16); !slices.Equal(got, []int{16, 32, 64}) {
		t.Errorf("ladder of 16 is %v", got)
	}
}

func TestGroupsAreHomogeneous(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, most := rapid.IntRange(1, 40).Draw(rt, "experts"), rapid.IntRange(1, 8).Draw(rt, "most")
		tiers, hot, loads := make([]int, n), make([]bool, n), make([]float64, n)
		for e := range n {
			tiers[e], hot[e] = rapid.IntRange(0, 2).Draw(rt, "tier"), rapid.Bool().Draw(rt, "hot")
			loads[e] = float64(rapid.IntRange(0, 99).Draw(rt, "load"))
		}
		kinds := map[[2]int]int{}
		for e := range n {
			k := [2]int{tiers[e], 0}
			if hot[e] {
				k[1] = 1
			}
			kinds[k]++
		}
		seen := make([]int, n)
		groups := groupExperts(loads, tiers, hot, most)
		for _, g := range groups {
			if len(g.Experts) == 0 || len(g.Experts) > most {
				rt.Fatalf("group of %d experts, at most %d", len(g.Experts), most)
			}
			for _, e := range g.Experts {
				seen[e]++
				if tiers[e] != g.Tier || hot[e] != hot[g.Experts[0]] {
					rt.Fatalf("expert %d is in a group of others", e)
				}
			}
		}
		for e, k := range seen {
			if k != 1 {
				rt.Fatalf("expert %d is in %d groups", e, k)
			}
		}
		least := 0
		for _, k := range kinds {
			least += (k + most - 1) / most
		}
		if len(groups) != least {
			rt.Fatalf("%d groups, %d are enough", len(groups), least)
		}
	})
}

func TestRoutingAndReserves(t *testing.T) {
	r := newRouting(rand.New(rand.NewPCG(1, 1)), 8, 3, 1, 2)
	routed := r.chunk(500)
	for i, list := range routed {
		if len(list) != 3 || list[0] == list[1] || list[0] == list[2] || list[1] == list[2] {
			t.Fatalf("token %d goes to %v", i, list)
		}
	}
	loads := loadsOf(8, routed)
	if got := mean(loads); got != problem.BaseCapacity(500, 3, 8) {
		t.Errorf("mean load %v", got)
	}
	var s reserve
	s.add([]int{10, 10}, []float64{4, 14})
	if got := s.padding(); math.Abs(got-0.3) > 1e-12 {
		t.Errorf("padding %v, 6 of 20 rows are", got)
	}
	if got := s.overflow(); math.Abs(got-4.0/18) > 1e-12 {
		t.Errorf("overflow %v, 4 of 18 rows are", got)
	}
}

func TestLeastSquares(t *testing.T) {
	w, ok := leastSquares([][]float64{{1, 1}, {2, 1}, {3, 1}, {4, 1}}, []float64{3, 5, 7, 9})
	if !ok || math.Abs(w[0]-2) > 1e-9 || math.Abs(w[1]-1) > 1e-9 {
		t.Errorf("line is %v, want 2 x + 1", w)
	}
	if _, ok := leastSquares([][]float64{{1, 1}, {2, 2}}, []float64{1, 2}); ok {
		t.Error("a line through like columns has a solution")
	}
}

// The chunks of the traced model hold all rows.
func TestTracedLoads(t *testing.T) {
	layers := tracedLoads(256)
	for l, chunks := range layers {
		if len(chunks) != 64 {
			t.Fatalf("layer %d has %d chunks", l, len(chunks))
		}
		for _, loads := range chunks {
			if got := 16 * mean(loads); got != 512 {
				t.Fatalf("layer %d: %v rows in a chunk, want 2 of each of 256 tokens", l, got)
			}
		}
	}
}
