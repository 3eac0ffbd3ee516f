package compare

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
)

// What executes on the virtual clock takes what was predicted, within 1 %: dense models, one with attention and feed-forward side by side,
// one of experts, on catalog SoCs, as solve decides and in forced ways. Solver and simulation share how processors contend and wait, and
// nothing else: what operators take, launches, joined steps, hand-overs and what the memory allows are fitted on one side and
// described on the other.
func TestExecutedIsPredicted(t *testing.T) {
	require.Slow(t)
	cases := []struct {
		soc, model string
		ways       []string // of alternatives; nil: all
	}{
		{"snapdragon-8gen3", "qwen2-0.5b", []string{"solve", "strategies weight-centric", "ratio gpu=0.5,npu=0.5"}},
		{"snapdragon-8gen1", "qwen2-0.5b", []string{"solve", "strategies weight-centric"}},   // the NPU has single tiles
		{"snapdragon-8gen1", "llama-3.2-1b", []string{"solve", "strategies weight-centric"}}, // no sample shows how the CPU reads
		{"core-ultra-5-125h", "phi-2", []string{"solve", "only gpu"}},
		{"apple-m2-max", "phi-2", []string{"solve", "ratio gpu=0.5,npu=0.5", "ratio gpu=0.75,npu=0.25"}}, // the NPU sets up for longer than the GPU works
		{"snapdragon-x-elite", "olmoe-1b-7b", []string{"solve", "strategies activation-centric,pipe"}},
		{"apple-m2-max", "../../../testdata/models/tiny-llama-kjv", nil},
	}
	if os.Getenv("HETC_LONG") != "" {
		cases = nil
		for _, soc := range socs.Catalog() {
			for _, m := range append([]string{"../../../testdata/models/tiny-llama-kjv"}, regretModels...) {
				cases = append(cases, struct {
					soc, model string
					ways       []string
				}{soc, m, nil})
			}
		}
	}
	for _, c := range cases {
		t.Run(c.soc+"/"+c.model, func(t *testing.T) {
			m, err := models.Open(c.model)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			var ways []alternative
			for _, a := range alternatives() {
				if c.ways == nil || slices.Contains(c.ways, a.name) {
					ways = append(ways, a)
				}
			}
			s, err := timesOnly(c.soc, false)
			if err != nil {
				t.Fatal(err)
			}
			x, err := regretOf(t.Context(), s, m, 128, ways)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.ways) > len(x.Ways) || len(x.Ways) < 2 {
				t.Errorf("%d of %d ways were executed", len(x.Ways), len(ways))
			}
			for _, w := range x.Ways {
				for phase, p := range map[string]timedPlan{"prefill": w.Prefill, "decode": w.Decode} {
					if p.PredictedNS == 0 || !(math.Abs(p.off()) <= 0.01) {
						t.Errorf("%s, %s: %d ns executed, %d predicted (%+.2f %%)", w.Name, phase, p.ExecutedNS, p.PredictedNS, 100*p.off())
					}
				}
			}
		})
	}
}

// Of executions on the virtual clock 95 % take what the prediction's interval says, with and without noise in the samples that costs are
// fitted to and in the executions. The intervals are narrow enough to mean something.
func TestExecutionsLieWithinIntervals(t *testing.T) {
	require.Slow(t)
	names, catalog := []string{"../../../testdata/models/tiny-llama-kjv"}, []string{"apple-m2-max", "core-ultra-5-125h", "snapdragon-8gen1"}
	seeds := []string{"1"}
	if os.Getenv("HETC_LONG") != "" {
		names, catalog, seeds = append(names, regretModels...), socs.Catalog(), []string{"1", "2"}
	}
	for _, c := range []struct {
		name  string
		seeds []string // of noise
		width float64  // that half of the intervals keep, relative, of the larger side
	}{{"without noise", nil, 0.02}, {"with noise", seeds, 0.05}} {
		t.Run(c.name, func(t *testing.T) {
			inside := 0
			var widths []float64
			for _, soc := range catalog {
				for _, name := range names {
					for k := range max(1, len(c.seeds)) {
						s, err := timesOnly(soc, c.seeds != nil)
						if err != nil {
							t.Fatal(err)
						}
						if c.seeds != nil {
							for i := range s.Processors {
								s.Processors[i].Options["seed"] = c.seeds[k]
							}
						}
						for _, p := range executions(t, s, name) {
							if p.LowNS <= p.ExecutedNS && p.ExecutedNS <= p.HighNS {
								inside++
							}
							widths = append(widths, float64(max(p.HighNS-p.PredictedNS, p.PredictedNS-p.LowNS))/float64(p.PredictedNS))
						}
					}
				}
			}
			width := stat.Median(widths)
			t.Logf("%d of %d executions are inside, half of the intervals are within %.1f %%", inside, len(widths), 100*width)
			if len(widths) < 50 || float64(inside) < 0.95*float64(len(widths)) {
				t.Errorf("%d of %d executions are within their intervals, want 95 %%", inside, len(widths))
			}
			if width > c.width {
				t.Errorf("the median interval reaches %.1f %% to a side, want at most %.0f", 100*width, 100*c.width)
			}
		})
	}
}

// executions are both programs of a model on a SoC in all ways.
func executions(t *testing.T, s *socs.SoC, model string) (out []timedPlan) {
	t.Helper()
	m, err := models.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	x, err := regretOf(t.Context(), s, m, 128, alternatives())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range x.Ways {
		out = append(out, w.Prefill, w.Decode)
	}
	return out
}
