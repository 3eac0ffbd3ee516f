package exact

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// mediumTiers are instances beyond brute force: up to 4 layers of 16 experts.
func mediumTiers(seed uint64) *problem.Tiers {
	r := rand.New(rand.NewPCG(seed, 23))
	p := problem.GenerateTiers(seed, 1+r.IntN(4), 4+r.IntN(13), 2+r.IntN(4))
	p.MaxTiers = 1 + r.IntN(3)
	p.GraphBytes = p.ExpertBytes * int64(1+r.IntN(5))
	for c := range p.Chunks {
		for k := range p.Chunks[c].GroupNS {
			p.Chunks[c].GroupNS[k] = p.Chunks[c].GroupNS[k][:p.GraphBytes/p.ExpertBytes]
		}
	}
	switch r.IntN(4) {
	case 0:
		p.RegionBytes = p.ExpertBytes * int64(1+r.IntN(20))
	case 1:
		p.Prune, p.MaxDropPPM, p.MaxLayerDropPPM = true, r.Int64N(100_000), r.Int64N(200_000)
	}
	return p
}

func TestTiersEqualHiGHS(t *testing.T) {
	require.Slow(t)
	require.Deps()
	h, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	defer h.Close()
	n := 30
	if os.Getenv("HETC_LONG") != "" {
		n = 300
	}
	relay := problem.Relay{General: h, Exact: Engine{}}
	open := 0
	for seed := range n {
		p := mediumTiers(uint64(seed))
		got, err := Engine{}.Tiers(context.Background(), p, problem.Limits{})
		want, err2 := relay.Tiers(context.Background(), p, problem.Limits{})
		var d *diag.Diagnostic
		if (err == nil) != (err2 == nil) || err != nil && (!errors.As(err, &d) || d.Class != diag.ClassInfeasible) {
			t.Fatalf("seed %d: %v, and HiGHS %v", seed, err, err2)
		}
		if err != nil {
			continue
		}
		if got.Status != problem.Optimal {
			open++
			if float64(got.Bound) > float64(want.Objective)*(1+milp.Tolerance) || got.Objective < want.Bound {
				t.Errorf("seed %d: %d with bound %d, and HiGHS found %d", seed, got.Objective, got.Bound, want.Objective)
			}
			continue
		}
		if math.Abs(float64(got.Objective-want.Objective)) > 1e-6*float64(want.Objective) {
			t.Errorf("seed %d: %d, and HiGHS %s %d", seed, got.Objective, want.Status, want.Objective)
		}
		if want.Status == problem.Optimal && (want.Chunk != got.Chunk || !slices.EqualFunc(want.Choices, got.Choices, slices.Equal[[]int])) {
			t.Errorf("seed %d: other choices", seed)
		}
	}
	t.Logf("%d of %d were left with a gap", open, n)
	if open > n/10 {
		t.Errorf("%d of %d were left with a gap", open, n)
	}
}
