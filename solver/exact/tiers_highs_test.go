package exact_test

import (
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/problem"
)

// TestTiersHiGHS compares instances of up to two layers of eight experts and four observed chunks with the linear
// program's optimum. No solution may be better than the other engine's bound, and proved ones are equal.
func TestTiersHiGHS(t *testing.T) {
	require.Slow(t)
	require.Deps()
	general, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	random := rand.New(rand.NewPCG(8, 3))
	proved := 0
	for seed := range uint64(12) {
		tiers := problem.GenerateTiers(seed, 1+random.IntN(2), 4+random.IntN(5), 2+random.IntN(2))
		tiers.MaxTiers = 1 + random.IntN(2)

		for i := range tiers.Layers {
			for expert := range tiers.Layers[i].Rows {
				tiers.Layers[i].Rows[expert] = tiers.Layers[i].Rows[expert][:4]
			}
		}

		switch random.IntN(3) {
		case 0:
			expert := tiers.ExpertBytes * int64(len(tiers.Layers))
			tiers.Limits = []problem.TierLimit{
				{Name: "region", Bytes: expert*int64(1+random.IntN(4)) + random.Int64N(expert),
					Expert: expert, Row: expert / 64}}
		case 1:
			tiers.Drop, tiers.MaxDropPPM = true, random.Int64N(100_000)
		}

		got, err := exact.Engine{}.Tiers(t.Context(), tiers, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := problem.Relay{General: general}.Tiers(t.Context(), tiers, problem.Limits{Nodes: 2000})
		if err != nil {
			t.Fatal(err)
		}
		if want.Choices == nil {
			continue
		}
		slack := want.Objective/1e6 + 1
		if got.Objective < want.Bound-slack || want.Objective < got.Bound-slack {
			t.Errorf("seed %d: exact %d..%d, HiGHS %d..%d", seed, got.Bound, got.Objective, want.Bound, want.Objective)
		}
		if got.Status == problem.Optimal && want.Status == problem.Optimal {
			proved++
			if got.Objective > want.Objective+slack || want.Objective > got.Objective+slack {
				t.Errorf("seed %d: exact proves %d, HiGHS %d", seed, got.Objective, want.Objective)
			}
		}
	}
	if proved < 6 {
		t.Errorf("%d of 12 instances were proved by both", proved)
	}
}

// Where exact leaves a gap on a middle size, HiGHS proves its solution: the bound is what is loose.
func TestTiersGapIsTheBound(t *testing.T) {
	require.Slow(t)
	require.Deps()
	general, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	tiers := problem.GenerateTiers(3, 2, 32, 8)
	for rows := 1; rows < len(tiers.CPUNS); rows++ { // so cheap that the two queues compete
		tiers.CPUNS[rows] = 60_000 + 4_000*int64(rows)
	}
	for i := range tiers.Layers {
		for expert := range tiers.Layers[i].Rows {
			tiers.Layers[i].Rows[expert] = tiers.Layers[i].Rows[expert][:8]
		}
	}

	got, err := exact.Engine{}.Tiers(t.Context(), tiers, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := problem.Relay{General: general}.Tiers(t.Context(), tiers, problem.Limits{Nodes: 1500})
	if err != nil {
		t.Fatal(err)
	}
	isOptimum := got.Objective <= want.Objective+want.Objective/1e6+1 && got.Bound <= want.Objective+1
	if want.Status != problem.Optimal || !isOptimum {
		t.Errorf("exact %d..%d, HiGHS %s %d..%d, want its optimum", got.Bound, got.Objective, want.Status, want.Bound,
			want.Objective)
	}
}
