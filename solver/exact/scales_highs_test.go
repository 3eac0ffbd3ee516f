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

// mediumScales are n instances of up to 24 samples, like scales of rows, some of them equal.
func mediumScales(n int) []*problem.Scales {
	r := rand.New(rand.NewPCG(33, 5))
	var out []*problem.Scales
	for i := range n {
		s := &problem.Scales{K: 1 + r.IntN(5), Cover: i%2 == 1}
		for range 8 + r.IntN(17) {
			x := 0.05 * math.Exp(r.NormFloat64())
			if r.IntN(4) == 0 && len(s.Samples) > 0 {
				x = s.Samples[r.IntN(len(s.Samples))]
			}
			s.Samples = append(s.Samples, x)
		}
		out = append(out, s)
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
	n := 20
	if os.Getenv("HETC_LONG") != "" {
		n = 300
	}
	for i, s := range mediumScales(n) {
		want, err := exact.Scales(s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := problem.Relay{General: general}.Scales(t.Context(), s, problem.Limits{})
		if err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if err := s.Verify(got); err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if math.Abs(got.MSE-want.MSE) > 1e-6*want.MSE+1e-15 {
			t.Fatalf("instance %d: HiGHS %+v, exact %+v: %+v", i, got, want, s)
		}
	}
}
