package exact_test

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/problem"
)

// TestBucketsHiGHS compares instances of up to 64 lengths with the linear program's optimum: objective, and, as ties
// have an order, the sizes.
func TestBucketsHiGHS(t *testing.T) {
	require.Slow(t)
	require.Deps()
	general, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	n := 30
	if os.Getenv("HETC_LONG") != "" {
		n = 300
	}
	random := rand.New(rand.NewPCG(64, 8))
	for i := range n {
		buckets := &problem.Buckets{Name: "medium", Max: 1 + random.IntN(5), OneNS: 100 + random.Int64N(400)}
		tokens := 0
		for range 16 + random.IntN(49) {
			tokens += 1 + random.IntN(6)
			buckets.Lengths = append(buckets.Lengths, problem.Length{Tokens: tokens, Weight: 1 + random.Int64N(100)})
		}
		rows := 1
		for range 6 + random.IntN(9) {
			rows += 1 + random.IntN(tokens/8+1)
			buckets.Sizes = append(buckets.Sizes, problem.Size{Rows: rows,
				CostNS: 1000 + int64(rows)*(20+random.Int64N(30)), Infeasible: random.IntN(9) == 0,
				Bytes: random.Int64N(1000), Graphs: 1 + random.IntN(3), OpenNS: random.Int64N(500)})
		}
		if i%2 == 0 {
			buckets.MaxBytes, buckets.MaxGraphs = 500+random.Int64N(1500), 4+random.IntN(6)
			buckets.MaxOpenNS = 400 + random.Int64N(800)
		}

		want, err := exact.Engine{}.Buckets(t.Context(), buckets, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := problem.Relay{General: general}.Buckets(t.Context(), buckets, problem.Limits{})
		if err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if err := buckets.Verify(got); err != nil {
			t.Fatal(err)
		}
		off := math.Abs(float64(got.Objective - want.Objective))
		isProved := want.Status == problem.Optimal && got.Bound == got.Objective
		if off > 1e-6*float64(want.Objective) || !isProved {
			t.Fatalf("instance %d: HiGHS %+v, exact %+v", i, got, want)
		}

		named, err := problem.Relay{General: general, Exact: exact.Engine{}}.Buckets(t.Context(), buckets,
			problem.Limits{})
		if err != nil || named.Status != problem.Optimal || !slices.Equal(named.Sizes, want.Sizes) {
			t.Fatalf("instance %d: %+v, %v, want the sizes of %+v", i, named, err, want)
		}
	}
}
