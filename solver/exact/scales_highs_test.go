package exact_test

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/problem"
)

// mediumScales are so many instances of up to 24 samples, like scales of rows, some of them equal.
func mediumScales(count int) []*problem.Scales {
	random := rand.New(rand.NewPCG(33, 5))
	var out []*problem.Scales
	for i := range count {
		scales := &problem.Scales{K: 1 + random.IntN(5), Cover: i%2 == 1}
		for range 8 + random.IntN(17) {
			sample := 0.05 * math.Exp(random.NormFloat64())
			if random.IntN(4) == 0 && len(scales.Samples) > 0 {
				sample = scales.Samples[random.IntN(len(scales.Samples))]
			}
			scales.Samples = append(scales.Samples, sample)
		}
		out = append(out, scales)
	}
	return out
}

// HiGHS finds scales as good as exact's, for both rules.
func TestScalesHiGHS(t *testing.T) {
	require.Slow(t)
	require.Deps()
	general, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	count := 20
	if os.Getenv("HETC_LONG") != "" {
		count = 300
	}
	for i, scales := range mediumScales(count) {
		want, err := exact.Scales(scales)
		if err != nil {
			t.Fatal(err)
		}
		got, err := problem.Relay{General: general}.Scales(t.Context(), scales, problem.Limits{})
		if err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if err := scales.Verify(got); err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if math.Abs(got.MSE-want.MSE) > 1e-6*want.MSE+1e-15 {
			t.Fatalf("instance %d: HiGHS %+v, exact %+v: %+v", i, got, want, scales)
		}
	}
}
