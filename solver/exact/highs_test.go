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
	random := rand.New(rand.NewPCG(seed, 300))
	joint := &problem.Joint{Name: fmt.Sprintf("medium %d", seed), Regions: []problem.Region{{Name: "a"}, {Name: "b"}}}
	for i := range 24 {
		joint.Assets = append(joint.Assets, problem.Asset{Name: fmt.Sprintf("asset%d", i), Region: i % 2,
			Bytes: 1 + random.Int64N(1<<20), Graphs: random.IntN(2), OpenNS: random.Int64N(1e6)})
	}
	for i := range 2 + random.IntN(2) {
		partition := &problem.Partition{Name: fmt.Sprintf("part%d", i), Procs: []string{"p", "q", "r"}}
		if random.IntN(3) == 0 {
			partition.Conflicts = [][2]int{{1, 2}}
		}
		partition.Chains = []problem.Chain{mediumChain(random)}
		joint.Parts = append(joint.Parts, problem.Part{Partition: partition, Weight: 1 + random.Int64N(5)})
	}
	limitMedium(joint, random)
	return joint
}

// mediumChain makes a chain of some eight items for three processors. Their first choice needs no asset, and costs
// most.
func mediumChain(random *rand.Rand) problem.Chain {
	chain := problem.Chain{Name: "layers", Repeat: 1 + random.IntN(4)}
	classes := []string{"u", "v", "w"}
	for i := range 5 + random.IntN(4) {
		it := problem.Item{Name: fmt.Sprintf("item%d", i), Before: classes, After: classes}
		for j := range 4 + random.IntN(6) {
			choice := problem.Choice{Label: fmt.Sprintf("choice%d", j), Procs: []int{random.IntN(3)},
				CostNS: 1000 + random.Int64N(1e6), EnergyNJ: random.Int64N(1e6), Before: random.IntN(3),
				After: random.IntN(3)}
			if j == 0 {
				choice.Procs, choice.CostNS = []int{0}, choice.CostNS+1e6
			} else if random.IntN(4) > 0 {
				choice.CostNS /= 2
				choice.Assets = []int{3*(i%8) + random.IntN(3)}
			}
			it.Choices = append(it.Choices, choice)
		}
		if i > 0 || chain.Wraps() > 0 {
			for range 3 {
				it.EdgeNS = append(it.EdgeNS, []int64{random.Int64N(1e5), random.Int64N(1e5), random.Int64N(1e5)})
			}
		}
		chain.Items = append(chain.Items, it)
	}
	return chain
}

// limitMedium limits one or two amounts of an instance so that they bind.
func limitMedium(joint *problem.Joint, random *rand.Rand) {
	var bytes int64
	for i := range joint.Assets {
		bytes += joint.Assets[i].Bytes
	}
	switch random.IntN(5) {
	case 0:
		joint.Regions[0].MaxBytes, joint.Regions[1].MaxGraphs = bytes/8, 3
	case 1:
		joint.MaxBytes = bytes / 4
	case 2:
		joint.MaxOpenNS = 3e6
	case 3:
		joint.Regions[0].MaxBytes = bytes / 6
		joint.Minimise = problem.Energy
		joint.MaxTimeNS = 2e8
	default:
		joint.Minimise = problem.Memory
		for i := range joint.Parts {
			solution, err := exact.Engine{}.Partition(context.Background(), joint.Parts[i].Partition)
			if err == nil {
				joint.Parts[i].MaxNS = solution.ObjectiveNS * 5 / 4
			}
		}
	}
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
		joint := medium(seed)
		got, err := problem.Relay{General: engine}.Joint(context.Background(), joint, problem.Limits{})
		want, infeasible := solveJoint(t, joint, 2000)
		if infeasible || diag.ClassOf(err) == diag.ClassInfeasible {
			if !infeasible || err == nil {
				t.Errorf("instance %d: exact infeasible %v, HiGHS %v", seed, infeasible, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("instance %d: %v", seed, err)
		}
		if err := joint.Verify(got); err != nil {
			t.Fatalf("instance %d: %v", seed, err)
		}
		if want.Status == problem.Optimal {
			proved++
		}
		if want.Status == problem.LimitReached {
			t.Errorf("instance %d: exact found nothing, HiGHS %d", seed, got.Objective)
			continue
		}
		isWorse := got.Bound == got.Objective && float64(want.Objective) < float64(got.Objective)*(1-1e-6)
		if want.Status == problem.Feasible && (want.Bound > got.Objective || isWorse) {
			t.Errorf("instance %d: exact %d..%d, HiGHS %d", seed, want.Bound, want.Objective, got.Objective)
			continue
		}
		off := math.Abs(float64(got.Objective-want.Objective)) / float64(max(1, want.Objective))
		if want.Status == problem.Optimal && off > 1e-6 {
			t.Errorf("instance %d: exact %s %d (bound %d), HiGHS %d (bound %d)", seed, want.Status, want.Objective,
				want.Bound, got.Objective, got.Bound)
		}
	}
	t.Logf("%d of %d proved by both", proved, long(300))
	if proved == 0 {
		t.Error("the exact engine proved none")
	}
}
