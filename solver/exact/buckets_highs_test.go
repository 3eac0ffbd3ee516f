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
	r := rand.New(rand.NewPCG(64, 8))
	for i := range n {
		b := &problem.Buckets{Name: "medium", Max: 1 + r.IntN(5), OneNS: 100 + r.Int64N(400)}
		tokens := 0
		for range 16 + r.IntN(49) {
			tokens += 1 + r.IntN(6)
			b.Lengths = append(b.Lengths, problem.Length{Tokens: tokens, Weight: 1 + r.Int64N(100)})
		}
		rows := 1
		for range 6 + r.IntN(9) {
			rows += 1 + r.IntN(tokens/8+1)
			b.Sizes = append(b.Sizes, problem.Size{Rows: rows, CostNS: 1000 + int64(rows)*(20+r.Int64N(30)), Infeasible: r.IntN(9) == 0, Bytes: r.Int64N(1000), Graphs: 1 + r.IntN(3), OpenNS: r.Int64N(500)})
		}
		if i%2 == 0 {
			b.MaxBytes, b.MaxGraphs, b.MaxOpenNS = 500+r.Int64N(1500), 4+r.IntN(6), 400+r.Int64N(800)
		}
		want, err := exact.Engine{}.Buckets(t.Context(), b, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := problem.Relay{General: general}.Buckets(t.Context(), b, problem.Limits{})
		if err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if err := b.Verify(got); err != nil {
			t.Fatal(err)
		}
		if math.Abs(float64(got.Objective-want.Objective)) > 1e-6*float64(want.Objective) || want.Status != problem.Optimal || got.Bound != got.Objective {
			t.Fatalf("instance %d: HiGHS %+v, exact %+v", i, got, want)
		}
		named, err := problem.Relay{General: general, Exact: exact.Engine{}}.Buckets(t.Context(), b, problem.Limits{})
		if err != nil || named.Status != problem.Optimal || !slices.Equal(named.Sizes, want.Sizes) {
			t.Fatalf("instance %d: %+v, %v, want the sizes of %+v", i, named, err, want)
		}
	}
}
