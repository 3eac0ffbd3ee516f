package main

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/socs"
)

// What executes on the virtual clock takes what was predicted, within 1 %: dense models, one with attention and feed-forward side by side,
// one of experts, on catalog SoCs, as solve decides and in forced ways. Solver and simulation share how processors contend and wait, and
// nothing else: what operators take, launches, joined steps, hand-overs and what the memory allows are fitted on one side and
// described on the other.
func TestExecutedIsPredicted(t *testing.T) {
	cases := []struct {
		soc, model string
		ways       []string // of alternatives; nil: all
	}{
		{"snapdragon-8gen3", "qwen2-0.5b", []string{"solve", "strategies weight-centric", "ratio gpu=0.5,npu=0.5"}},
		{"snapdragon-8gen1", "qwen2-0.5b", []string{"solve", "strategies weight-centric"}}, // the NPU has single tiles
		{"core-ultra-5-125h", "phi-2", []string{"solve", "only gpu"}},
		{"apple-m2-max", "phi-2", []string{"solve", "ratio gpu=0.5,npu=0.5", "ratio gpu=0.75,npu=0.25"}}, // the NPU sets up for longer than the GPU works
		{"snapdragon-x-elite", "olmoe-1b-7b", []string{"solve", "strategies activation-centric,pipe"}},
		{"apple-m2-max", "../../testdata/models/tiny-llama-kjv", nil},
	}
	if os.Getenv("HETC_LONG") != "" {
		cases = nil
		for _, soc := range socs.Catalog() {
			for _, m := range append([]string{"../../testdata/models/tiny-llama-kjv"}, regretModels...) {
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
			x, err := regretOf(t.Context(), c.soc, m, 128, ways)
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
