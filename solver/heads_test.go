package solver

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
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

// estimator is a machine of two cores of which the second one, like an NPU, multiplies and estimates, does not attend,
// and takes whole buffers only but for estimates. Attention takes its time on the first one.
func estimator(t testing.TB) *socs.SoC {
	t.Helper()
	soc := twoCores(t, 1)
	soc.Processors = soc.Processors[:2]
	soc.Processors[0].Sim.OtherGops /= 8
	soc.Processors[1].Kinds = []op.Kind{op.MatMul, op.Estimate, op.GLU, op.Add}
	soc.Processors[1].StridedInput, soc.Processors[1].StridedOutput = false, false
	return soc
}

// uneven is a calibration in which heads are of unlike importance, so that they keep unlike shares of the positions.
func uneven(model *models.Model, cal *calibration.Calibration) *calibration.Calibration {
	for layer := range cal.Attention.Layers {
		heads := cal.Attention.Layers[layer].Heads
		cal.Attention.Layers[layer].Importance = 1
		for head := range heads {
			heads[head].Importance = 1e-4 * float64(1+head)
		}
	}
	return cal
}

// pipelineInput is a long prompt with sparse attention on an estimator.
func pipelineInput(t *testing.T, model *models.Model, soc *socs.SoC, tokens int) Input {
	t.Helper()
	cal := uneven(model, attentive(model, invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A32W32),
		map[float64]float64{0.1: 2e-3, 0.4: 1e-4}))

	want := workload.Default()
	want.Buckets, want.Context, want.Prompts = []int{tokens}, 2*tokens, []workload.Prompt{{Tokens: tokens, Share: 1}}
	want.Attention, want.Density = workload.AttentionSparse, 0.1
	return Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, want), Workload: want, Calibration: cal,
		Engine: exact.Engine{}}
}

// Heads pass through a pipeline where that is faster. The program takes on the simulated machine's clock what was
// predicted, whichever rule has ordered the heads, and the exact order is no slower than Algorithm 1 or than none.
func TestHeadPipelinesTakeAsLongAsPredicted(t *testing.T) {
	require.Slow(t)
	for _, name := range []string{"models/tiny-llama-kjv", "arch/llama-mha"} {
		t.Run(name, func(t *testing.T) {
			model, tokens := open(t, "../testdata/"+name), 512
			if name == "arch/llama-mha" {
				tokens = 128
			}
			in := pipelineInput(t, model, estimator(t), tokens)
			took := map[string]int64{}
			for _, by := range []string{"", NoPipeline, planir.ByGreedy, planir.ByExact} {
				in.HeadOrder = by
				plan := solve(t, in).Plan
				if found := check.Plan(plan, model, in.SoC); len(found) > 0 {
					t.Fatal(found)
				}
				if piped := len(plan.Attention.Pipelines) > 0; piped != (by != NoPipeline) {
					t.Fatalf("by %q: pipelines %+v", by, plan.Attention.Pipelines)
				}
				program := fmt.Sprintf("prefill@%d", tokens)
				took[by] = checkClock(t, plan, model, in.Calibration, in.SoC, program, tokens)
				checkExplained(t, plan, &in, tokens)
			}
			if took[planir.ByExact] > took[planir.ByGreedy] || took[""] >= took[NoPipeline] {
				t.Errorf("times are %v", took)
			}
		})
	}
}

// checkExplained checks that explain has something to say of operators around a pipeline, stored and recomputed.
func checkExplained(t *testing.T, plan *planir.Plan, in *Input, tokens int) {
	t.Helper()
	for _, node := range []string{"layers.attention", "layers.attention_estimate", "layers.qkv"} {
		if rows, err := Explain(plan, node, tokens, in); err != nil || len(rows) < 2 {
			t.Errorf("by %q: %s is explained by %d rows: %v", in.HeadOrder, node, len(rows), err)
		}
		if _, err := Explain(plan, node, tokens, nil); err != nil {
			t.Errorf("by %q: %s is not explained by the plan: %v", in.HeadOrder, node, err)
		}
	}
}

// A pipeline of a plan for some processors alone has no stage on another one, however fast that is.
func TestHeadPipelinesOfSomeProcessors(t *testing.T) {
	model, soc := open(t, "../testdata/arch/llama-mha"), estimator(t)
	fast := soc.Processors[0]
	sim := *fast.Sim
	sim.OtherGops *= 1e3
	fast.Name, fast.Select, fast.Cores, fast.Sim = "c9", "c9", []int{9}, &sim
	soc.Processors = append(soc.Processors, fast)
	for _, name := range []string{soc.Processors[0].Name, soc.Processors[1].Name} {
		soc.Links = append(soc.Links, socs.Link{From: name, To: "c9"}, socs.Link{From: "c9", To: name})
	}

	in := pipelineInput(t, model, soc, 128)
	for _, by := range []string{"", planir.ByExact} {
		in.HeadOrder, in.Only = by, nil
		if plan := solve(t, in).Plan; by == "" && plan.Proc("c9") == nil {
			t.Fatal("the fastest processor has no part in the plan of all")
		}
		in.Only = []string{soc.Processors[0].Name, soc.Processors[1].Name}
		if plan := solve(t, in).Plan; plan.Proc("c9") != nil {
			t.Errorf("by %q: processor %q has a part in a plan for %q: %+v", by, "c9", in.Only,
				plan.Attention.Pipelines)
		}
	}
}

// Chunks in flight keep the pipelines of their program where they are the fastest, and take what was predicted.
func TestHeadPipelinesInFlight(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), estimator(t)
	in := pipelineInput(t, model, soc, 256)
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
		w.Prompts, w.ChunksInFlight = []workload.Prompt{{Tokens: 512, Share: 1}}, 2
	})

	alone := in
	alone.HeadOrder = NoPipeline
	alone.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.ChunksInFlight = 1 })
	want := lastLogits(t, solve(t, alone).Plan, model, in.Calibration, soc, 512)

	for _, by := range []string{"", planir.ByExact} {
		in.ChunkOrder = by
		plan := solve(t, in).Plan
		if by != "" && plan.InFlight == nil {
			t.Fatal("no chunks are in flight")
		}
		if plan.InFlight == nil {
			continue
		}

		for i, got := range lastLogits(t, plan, model, in.Calibration, soc, 512) {
			if math.Abs(float64(got-want[i])) > 1e-4*float64(max(1, want[i], -want[i])) {
				t.Fatalf("by %q: logit %d is %v, and %v without", by, i, got, want[i])
			}
		}
		predicted := plan.Predictions[len(plan.Predictions)-1]
		took := checkClock(t, plan, model, in.Calibration, soc, predicted.Program, 512)
		t.Logf("by %q: %d pipelines, %d ns", by, len(plan.Attention.Pipelines), took)
	}
}

// Decoding over a long cache selects positions where that is faster, and over a short one attends to all of them; with
// batches it does neither alone. A call takes on the virtual clock what was predicted.
func TestSparseDecodeChosen(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), estimator(t)
	soc.Processors[0].LaunchUS, soc.Processors[1].LaunchUS = 3, 15 // what a short cache does not repay
	cal := uneven(model, attentive(model, invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A32W32),
		map[float64]float64{0.05: 2e-3}))

	want := workload.Default()
	want.Buckets, want.Context, want.OutputTokens = []int{64}, 1024, 16
	want.Attention, want.Density = workload.AttentionBest, 0.05
	costs := profiled(t, soc, model, want)
	for _, test := range []struct {
		tokens  int
		sparse  bool
		batches []int
	}{{24, false, nil}, {960, true, nil}, {960, false, []int{4}}} {
		one := *want
		one.Prompts, one.Batches = []workload.Prompt{{Tokens: test.tokens, Share: 1}}, test.batches
		in := Input{Model: model, SoC: soc, Costs: costs, Workload: &one, Calibration: cal, Engine: exact.Engine{}}
		if test.batches != nil {
			in.Costs = batchCosts(t, soc, model, test.batches, op.A32W32)
		}
		plan := solve(t, in).Plan
		if plan.Sparse(1) != test.sparse {
			t.Errorf("%d tokens, batches %v: decode is sparse: %v, want %v (%+v)", test.tokens, test.batches,
				plan.Sparse(1), test.sparse, plan.Attention)
		}
		if test.batches != nil {
			continue
		}

		in.Workload = workload.Edited(&one,
			func(w *workload.Workload) { w.Attention, w.Density = workload.AttentionDense, 0 })
		predicted, dense := prediction(t, plan, "decode").PlanNS, prediction(t, solve(t, in).Plan, "decode").PlanNS
		if predicted > dense || test.sparse && predicted > dense*9/10 {
			t.Errorf("%d tokens: decode is predicted to take %d ns, dense %d", test.tokens, predicted, dense)
		}

		took := decoded(t, plan, model, cal, soc, test.tokens+one.OutputTokens/2-1)
		if off := math.Abs(float64(took)/float64(predicted) - 1); off > 0.01 {
			t.Errorf("%d tokens: decode takes %d ns on the virtual clock, predicted %d: off by %.2g, want at most 0.01",
				test.tokens, took, predicted, off)
		}
	}
}

// decoded is what decoding a token behind so many cached positions takes on the clock of simulated processors.
func decoded(t *testing.T, plan *planir.Plan, model *models.Model, cal *calibration.Calibration, soc *socs.SoC,
	cached int) (ns int64) {
	t.Helper()
	simulate(t, plan, model, cal, soc, func(control *executor.Control) error {
		if _, err := control.Forward(make([]int32, cached), executor.WantNone, nil); err != nil {
			return err
		}
		got, err := control.Forward(make([]int32, 1), executor.WantLast, func(int, []float32) error { return nil })
		ns = got.NS
		return err
	})
	return ns
}

// lastLogits are those of a prompt's last token.
func lastLogits(t *testing.T, plan *planir.Plan, model *models.Model, cal *calibration.Calibration, soc *socs.SoC,
	tokens int) (logits []float32) {
	t.Helper()
	ids := manyTokens(tokens)
	simulate(t, plan, model, cal, soc, func(control *executor.Control) error {
		_, err := control.Forward(ids, executor.WantLast, func(_ int, row []float32) error {
			logits = slices.Clone(row)
			return nil
		})
		return err
	})
	return logits
}

// simulate executes something on a plan's simulated processors.
func simulate(t *testing.T, plan *planir.Plan, model *models.Model, cal *calibration.Calibration, soc *socs.SoC,
	do func(*executor.Control) error) {
	t.Helper()
	content, err := emit.NewCalibrated(context.Background(), plan, model, cal, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	machine, err := executor.Open(context.Background(), plan, content,
		executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	if err := machine.Do(context.Background(), do); err != nil {
		t.Fatal(err)
	}
}

// Divisions are whole: launches and turns cover all heads, and none is empty.
func TestDivisions(t *testing.T) {
	for _, heads := range []int{1, 2, 5, 6, 7, 32} {
		list := divisions(heads)
		for _, division := range list {
			total := 0
			for _, turns := range division {
				for _, size := range turns {
					total += size
					if size < 1 {
						t.Errorf("%d heads: %v has an empty turn", heads, division)
					}
				}
			}
			if total != heads {
				t.Errorf("%d heads: %v covers %d", heads, division, total)
			}
		}
		if !slices.ContainsFunc(list, func(d [][]int) bool { return len(d) == 1 }) {
			t.Errorf("%d heads: no division has one launch", heads)
		}
	}
}
