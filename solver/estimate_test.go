package solver

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// A processor of static shapes that lists the estimate of scores, and the type of the cache, is given it where its
// profile says that it is faster there; one with memory of its own, or of another type of cache, is not.
func TestEstimateOnStaticProcessor(t *testing.T) {
	m := demo(t)
	cal := attentive(m, invented(t, m, rand.New(rand.NewPCG(7, 7)), op.A32W32), map[float64]float64{0.1: 2e-3})
	want := workload.Default()
	want.Buckets, want.Context = []int{512}, 1024
	want.Prompts = []workload.Prompt{{Tokens: 512, Share: 1}}
	want.Attention, want.Density = workload.AttentionSparse, 0.1
	for name, c := range map[string]struct {
		cache  op.Type
		own    bool
		listed bool
	}{
		"of the cache's type": {cache: op.F32, listed: true}, "of another type": {cache: op.F16},
		"of its own memory": {cache: op.F32, own: true},
	} {
		t.Run(name, func(t *testing.T) {
			soc := twoCores(t, 0.7)
			for i := range soc.Processors {
				soc.Processors[i].Sim.OtherGops /= 8
			}
			npu := soc.Processor("c1")
			npu.Kinds, npu.KV = []op.Kind{op.Add, op.Estimate, op.MatMul, op.Norm}, []op.Type{c.cache}
			npu.StaticShapes, npu.DynamicRows, npu.OwnMemory = true, false, c.own
			npu.Sim.OtherGops *= 40
			result := solve(t, Input{Model: m, SoC: soc, Costs: profiled(t, soc, m, want), Workload: want, Calibration: cal,
				Engine: exact.Engine{}})
			if found := check.Plan(result.Plan, m, soc); len(found) > 0 {
				t.Fatal(found)
			}
			decision := result.Plan.DecisionFor("layers.attention_estimate", 512)
			if decision == nil {
				t.Fatal("no decision about the estimate of 512 rows")
			}
			on := slices.ContainsFunc(result.Plan.Program.Graphs, func(graph planir.Graph) bool {
				return graph.Proc == "c1" && graph.Graph.Estimate() != nil
			})
			if on && virtual(t, result.Plan, m, cal, sim.New(soc), sim.NewCompiler(soc), 500) <= 0 { // not all of its rows
				t.Error("a prompt of 500 tokens takes no time")
			}
			if on != c.listed {
				t.Errorf("the static processor estimates: %v, want %v (shares %+v)", on, c.listed, decision.Shares)
			}
		})
	}
}

// A processor that computes all rows of a graph whatever a call has selects no positions: rows beyond a call may lie
// beyond the context.
func TestSelectionStopsAtTheCall(t *testing.T) {
	m := demo(t)
	cal := attentive(m, invented(t, m, rand.New(rand.NewPCG(7, 7)), op.A32W32), map[float64]float64{0.1: 2e-3})
	want := workload.Default()
	want.Buckets, want.Context = []int{200}, 300
	want.Prompts = []workload.Prompt{{Tokens: 290, Share: 1}}
	want.Attention, want.Density = workload.AttentionSparse, 0.1
	soc := twoCores(t, 0.7)
	soc.Processors = soc.Processors[:2]
	padding := soc.Processor("c1")
	padding.DynamicRows = false
	padding.Sim.OtherGops *= 100
	result := solve(t, Input{Model: m, SoC: soc, Costs: profiled(t, soc, m, want), Workload: want, Calibration: cal,
		Engine: exact.Engine{}})
	if found := check.Plan(result.Plan, m, soc); len(found) > 0 {
		t.Fatal(found)
	}
	if virtual(t, result.Plan, m, cal, sim.New(soc), sim.NewCompiler(soc), 290) <= 0 { // a call at 200 ends at 290 of 300
		t.Error("a prompt of 290 tokens takes no time")
	}
}
