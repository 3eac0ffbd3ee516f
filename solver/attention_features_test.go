package solver

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// besideAttention are what else a workload may ask for in a plan with sparse attention.
var besideAttention = map[string]func(w *workload.Workload){
	"nothing":          func(*workload.Workload) {},
	"the best cache":   func(w *workload.Workload) { w.Cache = workload.CacheBest },
	"a cache of f16":   func(w *workload.Workload) { w.Cache = op.F16 },
	"chunks in flight": func(w *workload.Workload) { w.ChunksInFlight = 2 },
	"batches":          func(w *workload.Workload) { w.Batches = []int{4} },
	"drafts":           func(w *workload.Workload) { w.Drafts = &workload.Drafts{Acceptance: 0.7, Max: 4} },
	"prompts beside":   func(w *workload.Workload) { w.Beside = true },
	"9 pairs of scales": func(w *workload.Workload) {
		if w.Attention.Sparse() {
			w.ScaleBuckets = 9
		}
	},
	"all of it": func(w *workload.Workload) {
		w.Cache, w.ChunksInFlight, w.Batches, w.Drafts = op.Q8, 2, []int{4}, &workload.Drafts{Acceptance: 0.7, Max: 4}
		w.Beside = true
	},
}

// Sparse attention to all positions computes what dense attention computes, beside everything else that a workload may
// ask for, for models with grouped heads, windows that take turns, soft caps and frequencies that follow the length: in
// one call, in chunks, token by token and in batches. The best attention to some of the positions is a legal plan of
// finite logits.
func TestSparseAttentionBesideEverything(t *testing.T) {
	require.Slow(t)
	for _, name := range []string{
		"llama-plain", "llama-mqa", "mistral-window", "gemma2-caps", "qwen2-layer-types", "qwen3-lean",
	} {
		for feature, ask := range besideAttention {
			if name != "llama-plain" && feature != "all of it" && os.Getenv("HETC_LONG") == "" {
				continue
			}
			t.Run(name+"/"+feature, func(t *testing.T) {
				model, soc := open(t, "../testdata/arch/"+name), estimator(t)
				for i := range soc.Processors {
					soc.Processors[i].KV = op.CacheTypes
				}

				cal := attentive(model, invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A32W32),
					map[float64]float64{0.2: 1e-3, 1: 0})
				want := workload.Default()
				want.Buckets, want.Context = []int{16, 64}, 130
				want.Prompts = []workload.Prompt{{Tokens: 120, Share: 1}}
				want.Attention, want.Density = workload.AttentionSparse, 1
				ask(want)

				all := solvedWith(t, model, soc, cal, want)

				some := *want
				some.Attention, some.Density = workload.AttentionBest, 0.2
				part := solvedWith(t, model, soc, cal, &some)
				none := *want
				none.Attention, none.Density, none.ScaleBuckets = workload.AttentionDense, 0, 0
				dense := solvedWith(t, model, soc, cal, &none)
				if all.KV != dense.KV { // both are legal, and of other bits
					t.Logf("the cache is of %s with sparse and of %s with dense attention", all.KV, dense.KV)
					none.Cache = all.KV
					dense = solvedWith(t, model, soc, cal, &none)
				}

				if all.Attention == nil || len(all.Attention.Rows) == 0 {
					t.Fatal("no program is sparse")
				}

				reference := allLogits(t, dense, model, cal, soc)
				size := 0.0
				for _, value := range reference {
					size = max(size, math.Abs(float64(value)))
				}
				for i, got := range allLogits(t, all, model, cal, soc) {
					if difference := math.Abs(float64(got - reference[i])); !(difference <= 1e-5*max(1, size)) {
						t.Fatalf("value %d of all positions is %v, and %v of dense attention, of %g at most", i, got,
							reference[i], size)
					}
				}
				for i, got := range allLogits(t, part, model, cal, soc) {
					if math.IsNaN(float64(got)) || math.IsInf(float64(got), 0) {
						t.Fatalf("value %d of some positions is %v", i, got)
					}
				}
			})
		}
	}
}

// solvedWith is the plan for a workload, which is legal.
func solvedWith(t *testing.T, model *models.Model, soc *socs.SoC, cal *calibration.Calibration,
	want *workload.Workload) *planir.Plan {
	t.Helper()
	plan := solve(t, Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, want), Workload: want,
		Calibration: cal, Engine: exact.Engine{}, AllBuckets: true}).Plan
	if found := check.Plan(plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}
	return plan
}

// allLogits are the logits of every position of prompts in one call and in chunks, with tokens decoded behind them, and
// the ids of answers of a batch.
func allLogits(t *testing.T, plan *planir.Plan, model *models.Model, cal *calibration.Calibration,
	soc *socs.SoC) (out []float32) {
	t.Helper()
	content, err := emit.NewCalibrated(context.Background(), plan, model, cal, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		t.Fatal(err)
	}
	machine := machineOf(t, soc, plan, content)
	ids := make([]int32, 130)
	for i := range ids {
		ids[i] = int32(3 + i*7%(model.Vocab-3))
	}
	keep := func(_ int, row []float32) error {
		out = append(out, slices.Clone(row)...)
		return nil
	}

	for _, pieces := range [][]int{{1}, {17}, {64}, {120, 1, 1, 1}, {64, 40, 1, 1}, {3, 1, 1, 60, 20, 1}} {
		machine.Reset()
		err := machine.Do(context.Background(), func(control *executor.Control) error {
			at := 0
			for _, tokens := range pieces {
				if _, err := control.Forward(ids[at:at+tokens], executor.WantAll, keep); err != nil {
					return err
				}
				at += tokens
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	if len(plan.Batches) == 0 {
		return out
	}

	var requests []executor.Request
	for i := range 4 {
		requests = append(requests, executor.Request{Prompt: ids[:20+25*i], MaxTokens: 3})
	}
	machine.Reset()
	answers, err := machine.GenerateBatch(context.Background(), requests, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range answers {
		for _, id := range answer.Tokens {
			out = append(out, float32(id))
		}
	}
	return out
}
