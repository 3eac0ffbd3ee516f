package compare

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
)

// What executes on the virtual clock takes what was predicted, within 1 %: dense models, one with attention and
// feed-forward side by side, one of experts, on catalog SoCs, as solve decides and in forced ways. Solver and
// simulation share how processors contend and wait, and nothing else: what operators take, launches, joined steps,
// hand-overs and what the memory allows are fitted on one side and described on the other.
func TestExecutedIsPredicted(t *testing.T) {
	require.Slow(t)
	type pair struct {
		soc, model string
		ways       []string // of alternatives; nil: all
	}
	pairs := []pair{
		{"snapdragon-8gen3", "qwen2-0.5b", []string{"solve", "strategies weight-centric", "ratio gpu=0.5,npu=0.5"}},
		// the NPU has single tiles
		{"snapdragon-8gen1", "qwen2-0.5b", []string{"solve", "strategies weight-centric"}},
		// no sample shows how the CPU reads
		{"snapdragon-8gen1", "llama-3.2-1b", []string{"solve", "strategies weight-centric"}},
		{"core-ultra-5-125h", "phi-2", []string{"solve", "only gpu"}},
		// the NPU sets up for longer than the GPU works
		{"apple-m2-max", "phi-2", []string{"solve", "ratio gpu=0.5,npu=0.5", "ratio gpu=0.75,npu=0.25"}},
		{"snapdragon-x-elite", "olmoe-1b-7b", []string{"solve", "strategies activation-centric,pipe"}},
		{"apple-m2-max", smallModel, nil},
	}
	if os.Getenv("HETC_LONG") != "" {
		pairs = nil
		for _, soc := range socs.Catalog() {
			for _, model := range append([]string{smallModel}, regretModels...) {
				pairs = append(pairs, pair{soc, model, nil})
			}
		}
	}
	for _, test := range pairs {
		t.Run(test.soc+"/"+test.model, func(t *testing.T) {
			var ways []alternative
			for _, way := range alternatives() {
				if test.ways == nil || slices.Contains(test.ways, way.name) {
					ways = append(ways, way)
				}
			}
			soc, err := timesOnly(test.soc, false)
			if err != nil {
				t.Fatal(err)
			}
			found := regretIn(t, soc, test.model, ways)
			if len(test.ways) > len(found.Ways) || len(found.Ways) < 2 {
				t.Errorf("%d of %d ways were executed", len(found.Ways), len(ways))
			}
			for _, way := range found.Ways {
				for phase, plan := range map[string]timedPlan{"prefill": way.Prefill, "decode": way.Decode} {
					if plan.PredictedNS == 0 || !(math.Abs(plan.off()) <= 0.01) {
						t.Errorf("%s, %s: %d ns executed, %d predicted (%+.2f %%)", way.Name, phase, plan.ExecutedNS,
							plan.PredictedNS, 100*plan.off())
					}
				}
			}
		})
	}
}

// Of executions on the virtual clock 95 % take what the prediction's interval says, with and without noise in the
// samples that costs are fitted to and in the executions. The intervals are narrow enough to mean something.
func TestExecutionsLieWithinIntervals(t *testing.T) {
	require.Slow(t)
	names, catalog := []string{smallModel}, []string{"apple-m2-max", "core-ultra-5-125h", "snapdragon-8gen1"}
	seeds := []string{"1"}
	if os.Getenv("HETC_LONG") != "" {
		names, catalog, seeds = append(names, regretModels...), socs.Catalog(), []string{"1", "2"}
	}
	for _, test := range []struct {
		name  string
		seeds []string // of noise; "": there is none
		width float64  // that half of the intervals keep, relative, of the larger side
	}{{"without noise", []string{""}, 0.02}, {"with noise", seeds, 0.05}} {
		t.Run(test.name, func(t *testing.T) {
			inside := 0
			var widths []float64
			for _, name := range catalog {
				for _, model := range names {
					for _, seed := range test.seeds {
						for _, plan := range executions(t, name, model, seed) {
							if plan.LowNS <= plan.ExecutedNS && plan.ExecutedNS <= plan.HighNS {
								inside++
							}
							side := max(plan.HighNS-plan.PredictedNS, plan.PredictedNS-plan.LowNS)
							widths = append(widths, float64(side)/float64(plan.PredictedNS))
						}
					}
				}
			}
			width := stat.Median(widths)
			t.Logf("%d of %d executions are inside, half of the intervals are within %.1f %%", inside, len(widths),
				100*width)
			if len(widths) < 50 || float64(inside) < 0.95*float64(len(widths)) {
				t.Errorf("%d of %d executions are within their intervals, want 95 %%", inside, len(widths))
			}
			if width > test.width {
				t.Errorf("the median interval reaches %.1f %% to a side, want at most %.0f", 100*width, 100*test.width)
			}
		})
	}
}

// smallModel is a trained model in the tree.
const smallModel = "../../../testdata/models/tiny-llama-kjv"

// executions are both programs of a model on a SoC in all ways, with noise of a seed; "": without noise.
func executions(t *testing.T, name, model, seed string) (out []timedPlan) {
	t.Helper()
	soc, err := timesOnly(name, seed != "")
	if err != nil {
		t.Fatal(err)
	}
	if seed != "" {
		for i := range soc.Processors {
			soc.Processors[i].Options["seed"] = seed
		}
	}
	for _, way := range regretIn(t, soc, model, alternatives()).Ways {
		out = append(out, way.Prefill, way.Decode)
	}
	return out
}

// regretIn solves and executes a model on a SoC in several ways.
func regretIn(t *testing.T, soc *socs.SoC, name string, ways []alternative) *regretCase {
	t.Helper()
	model, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	found, err := regretOf(t.Context(), soc, model, 128, ways)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// What solve cannot plan has no regret: no forced way takes the place of solve's own plan.
func TestNoRegretWithoutAPlan(t *testing.T) {
	soc, err := socs.Parse("small-npu.yaml", []byte(smallNPU))
	if err != nil {
		t.Fatal(err)
	}
	for i := range soc.Processors {
		soc.Processors[i].AddressBytes = 1 << 10
	}
	model, err := models.Open("../../../testdata/arch/olmoe-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	found, err := regretOf(t.Context(), soc, model, 32, alternatives())
	if err == nil || diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("got %+v and %v, want an error of class %v", found, err, diag.ClassInfeasible)
	}
}
