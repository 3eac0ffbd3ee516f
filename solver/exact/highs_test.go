package exact_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/problem"
)

// medium makes a joint instance too large to enumerate: two or three parts of some eight items, items of all parts
// sharing assets by name as operators share weights, and one or two limits that bind.
func medium(seed uint64) *problem.Joint {
	r := rand.New(rand.NewPCG(seed, 300))
	j := &problem.Joint{Name: fmt.Sprintf("medium %d", seed), Regions: []problem.Region{{Name: "a"}, {Name: "b"}}}
	for a := range 24 {
		j.Assets = append(j.Assets, problem.Asset{Name: fmt.Sprintf("asset%d", a), Region: a % 2, Bytes: 1 + r.Int64N(1<<20), Graphs: r.IntN(2), OpenNS: r.Int64N(1e6)})
	}
	var bytes int64
	for p := range 2 + r.IntN(2) {
		x := &problem.Partition{Name: fmt.Sprintf("part%d", p), Procs: []string{"p", "q", "r"}}
		if r.IntN(3) == 0 {
			x.Conflicts = [][2]int{{1, 2}}
		}
		c := problem.Chain{Name: "layers", Repeat: 1 + r.IntN(4)}
		classes := []string{"u", "v", "w"}
		for i := range 5 + r.IntN(4) {
			it := problem.Item{Name: fmt.Sprintf("item%d", i), Before: classes, After: classes}
			for n := range 4 + r.IntN(6) {
				ch := problem.Choice{Label: fmt.Sprintf("choice%d", n), Procs: []int{r.IntN(3)}, CostNS: 1000 + r.Int64N(1e6), EnergyNJ: r.Int64N(1e6), Before: r.IntN(3), After: r.IntN(3)}
				if n == 0 {
					ch.Procs, ch.CostNS = []int{0}, ch.CostNS+1e6
				} else if a := i % 8; r.IntN(4) > 0 {
					ch.CostNS /= 2
					ch.Assets = []int{3*a + r.IntN(3)}
				}
				it.Choices = append(it.Choices, ch)
			}
			if i > 0 || c.Wraps() > 0 {
				for range 3 {
					it.EdgeNS = append(it.EdgeNS, []int64{r.Int64N(1e5), r.Int64N(1e5), r.Int64N(1e5)})
				}
			}
			c.Items = append(c.Items, it)
		}
		x.Chains = []problem.Chain{c}
		j.Parts = append(j.Parts, problem.Part{Partition: x, Weight: 1 + r.Int64N(5)})
	}
	for a := range j.Assets {
		bytes += j.Assets[a].Bytes
	}
	switch r.IntN(5) {
	case 0:
		j.Regions[0].MaxBytes, j.Regions[1].MaxGraphs = bytes/8, 3
	case 1:
		j.MaxBytes = bytes / 4
	case 2:
		j.MaxOpenNS = 3e6
	case 3:
		j.Regions[0].MaxBytes = bytes / 6
		j.Minimise = problem.Energy
		j.MaxTimeNS = 2e8
	default:
		j.Minimise = problem.Memory
		for p := range j.Parts {
			s, err := exact.Engine{}.Partition(context.Background(), j.Parts[p].Partition)
			if err == nil {
				j.Parts[p].MaxNS = s.ObjectiveNS * 5 / 4
			}
		}
	}
	return j
}

// The exact engine and HiGHS agree on 30 medium instances (HETC_LONG=1: 300), to the tolerance of the latter.
func TestJointEqualsHiGHS(t *testing.T) {
	require.Slow(t)
	require.Deps()
	engine, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	proved := 0
	for seed := range uint64(long(300)) {
		j := medium(seed)
		got, err := problem.Relay{General: engine}.Joint(context.Background(), j, problem.Limits{})
		want, infeasible := solveJoint(t, j, 2000)
		if infeasible || diag.ClassOf(err) == diag.ClassInfeasible {
			if !infeasible || err == nil {
				t.Errorf("instance %d: exact infeasible %v, HiGHS %v", seed, infeasible, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("instance %d: %v", seed, err)
		}
		if err := j.Verify(got); err != nil {
			t.Fatalf("instance %d: %v", seed, err)
		}
		if want.Status == problem.Optimal {
			proved++
		}
		if want.Status == problem.LimitReached {
			t.Errorf("instance %d: exact found nothing, HiGHS %d", seed, got.Objective)
			continue
		}
		if want.Status == problem.Feasible && (want.Bound > got.Objective || got.Bound == got.Objective && float64(want.Objective) < float64(got.Objective)*(1-1e-6)) {
			t.Errorf("instance %d: exact %d..%d, HiGHS %d", seed, want.Bound, want.Objective, got.Objective)
			continue
		}
		if off := math.Abs(float64(got.Objective-want.Objective)) / float64(max(1, want.Objective)); want.Status == problem.Optimal && off > 1e-6 {
			t.Errorf("instance %d: exact %s %d (bound %d), HiGHS %d (bound %d)", seed, want.Status, want.Objective, want.Bound, got.Objective, got.Bound)
		}
	}
	t.Logf("%d of %d proved by both", proved, long(300))
	if proved == 0 {
		t.Error("the exact engine proved none")
	}
}
