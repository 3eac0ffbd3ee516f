package compare

import (
	"testing"

	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// With many experts of uneven loads beside a fast CPU there are more numbers of slots than cuts, and slots are near the
// best ones all the same.
func TestManyUnevenExperts(t *testing.T) {
	require.Slow(t)
	soc, err := socs.Open("apple-m2-max")
	if err != nil {
		t.Fatal(err)
	}
	model, err := models.Open("qwen3-30b-a3b")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	costs, err := simulatedCosts(t.Context(), soc, model, profiler.Want{Schemes: []op.Scheme{op.A32W32}})
	if err != nil {
		t.Fatal(err)
	}
	loads, err := workload.Synthetic(model, "hot:2:0.5", precision.LoadTokens, 128, 1)
	if err != nil {
		t.Fatal(err)
	}
	in := solver.Input{Model: model, SoC: soc, Costs: costs, Loads: loads}
	rows, err := compareTiers(t.Context(), soc, in, op.A32W32)
	if err != nil {
		t.Fatal(err)
	}
	if solved := rows[0]; solved.Gap > 0.01 {
		t.Errorf("tiers %v take %d ns, with a gap of %.2g %%, want at most 1 %%", solved.Tiers, solved.NS,
			100*solved.Gap)
	}
}
