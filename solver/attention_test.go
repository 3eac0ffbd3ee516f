package solver

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
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
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// attentive adds to a calibration what heads need, all of them the same, and what shares of positions lose.
func attentive(model *models.Model, cal *calibration.Calibration, losses map[float64]float64) *calibration.Calibration {
	out := *cal
	at := &calibration.Attention{Text: cal.Text, Heads: model.Heads, KVHeads: model.KVHeads, Block: op.SparseBlock,
		Clamp: 1e-3}
	for density, kl := range losses {
		at.Densities = append(at.Densities, density)
		at.Losses = append(at.Losses, calibration.DensityLoss{Rule: calibration.RuleHeads, Density: density, KL: kl,
			High: kl, TopAgreement: 1, PerplexityRatio: 1})
	}

	slices.Sort(at.Densities)
	for layer := range model.Layers {
		made := calibration.AttentionLayer{Layer: layer, KeyScales: slices.Repeat([]float32{0.05}, model.KVHeads)}
		for range model.Heads {
			made.Heads = append(made.Heads, calibration.AttentionHead{QueryScale: 0.05,
				Mass: slices.Repeat([]float64{1}, len(at.Densities))})
		}
		at.Layers = append(at.Layers, made)
	}

	at.Buckets = at.MeanBuckets()
	out.Attention = at
	return &out
}

// Programs of long prompts select positions and those of short ones attend to all, each where it is faster, and the
// solved programs take on the simulated machine's clock what was predicted.
func TestAttentionChosen(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 0.7)
	for i := range soc.Processors { // attention takes its time here
		soc.Processors[i].Sim.OtherGops /= 8
	}
	cal := attentive(model, invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A32W32),
		map[float64]float64{0.1: 2e-3, 0.4: 1e-4})

	want := workload.Default()
	want.Buckets, want.Context = []int{16, 512}, 1024
	want.Prompts = []workload.Prompt{{Tokens: 16, Share: 1}, {Tokens: 512, Share: 1}}
	want.Attention, want.Density = workload.AttentionSparse, 0.1
	costs := profiled(t, soc, model, want)

	with := func(mode workload.Attention) *Result {
		one := *want
		one.Attention = mode
		if mode == workload.AttentionDense {
			one.Density = 0
		}
		return solve(t, Input{Model: model, SoC: soc, Costs: costs, Workload: &one, Calibration: cal,
			Engine: exact.Engine{}})
	}

	dense, sparse, best := with(workload.AttentionDense), with(workload.AttentionSparse), with(workload.AttentionBest)
	if dense.Plan.Attention != nil || !slices.Equal(sparse.Plan.Attention.Rows, []int{16, 512}) {
		t.Fatalf("attention is %+v where it is to be dense, and %+v where sparse", dense.Plan.Attention,
			sparse.Plan.Attention)
	}

	for _, program := range []string{"prefill@16", "prefill@512", "decode"} {
		least := min(prediction(t, dense.Plan, program).PlanNS, prediction(t, sparse.Plan, program).PlanNS)
		if got := prediction(t, best.Plan, program).PlanNS; got > least {
			t.Errorf("%s takes %d ns, and %d with the attention that is best for it", program, got, least)
		}
	}
	if at := best.Plan.Attention; at == nil || slices.Contains(at.Rows, 16) || !slices.Contains(at.Rows, 512) {
		t.Errorf("attention is %+v, want dense at 16 rows and sparse at 512", at)
	}
	if found := check.Plan(best.Plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}

	// A limit of time that dense attention breaks leaves the sparse plan.
	limit := (prediction(t, dense.Plan, "prefill@512").PlanNS + prediction(t, sparse.Plan, "prefill@512").PlanNS) / 2
	want.Buckets, want.Limits.PrefillMS = []int{512}, float64(limit)/1e6
	if got := prediction(t, with(workload.AttentionBest).Plan, "prefill@512").PlanNS; got > limit {
		t.Errorf("512 tokens take %d ns, %d are permitted", got, limit)
	}

	for _, result := range []*Result{sparse, best} {
		for name, tokens := range map[string]int{"prefill@16": 16, "prefill@512": 512} {
			checkClock(t, result.Plan, model, cal, soc, name, tokens)
		}
	}
}

// checkClock compares what a prompt takes on the clock of simulated processors with what a plan predicts of its
// program.
func checkClock(t *testing.T, plan *planir.Plan, model *models.Model, cal *calibration.Calibration, soc *socs.SoC,
	program string, tokens int) (ns int64) {
	t.Helper()
	predicted := prediction(t, plan, program).PlanNS
	took := virtual(t, plan, model, cal, sim.New(soc), sim.NewCompiler(soc), tokens)
	if off := math.Abs(float64(took)/float64(predicted) - 1); off > 0.01 {
		t.Errorf("%s takes %d ns on the virtual clock, predicted %d: off by %.2g, want at most 0.01", program, took,
			predicted, off)
	}
	return took
}

// virtual is what a prompt takes on the clock of simulated processors.
func virtual(t *testing.T, plan *planir.Plan, model *models.Model, cal *calibration.Calibration, from driver.Driver,
	compiler driver.Compiler, tokens int) (ns int64) {
	t.Helper()
	content, err := emit.NewCalibrated(context.Background(), plan, model, cal, []driver.Compiler{compiler})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	machine, err := executor.Open(context.Background(), plan, content, executor.Options{Drivers: []driver.Driver{from}})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	err = machine.Do(context.Background(), func(control *executor.Control) error {
		got, err := control.Forward(make([]int32, tokens), executor.WantLast, func(int, []float32) error { return nil })
		ns = got.NS
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// A limit of quality chooses the share of positions, and what it loses is part of what prompts may lose. Without a
// calibration of heads sparse attention is refused, and the best attention is dense.
func TestAttentionWithinQuality(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	plain := invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A32W32)
	cal := attentive(model, plain, map[float64]float64{0.1: 2e-3, 0.4: 1e-4})
	want := quick()
	want.Attention = workload.AttentionSparse
	want.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A32W32}}

	costs := profiled(t, soc, model, want)
	in := func(limit float64, mode workload.Attention, cal *calibration.Calibration) Input {
		one := *want
		one.Attention, one.Quality.MaxKL = mode, workload.KLLimit{Prefill: limit, Decode: limit}
		return Input{Model: model, SoC: soc, Costs: costs, Workload: &one, Calibration: cal, Engine: exact.Engine{}}
	}

	for limit, density := range map[float64]float64{0.01: 0.1, 1e-3: 0.4} {
		plan := solve(t, in(limit, workload.AttentionSparse, cal)).Plan
		if plan.Attention == nil || plan.Attention.Density != density {
			t.Errorf("at most %v nats: attention is %+v, want density %v", limit, plan.Attention, density)
		}
		lost := cal.Attention.DensityLoss(calibration.RuleHeads, density, 0).KL
		for _, quality := range plan.Quality {
			if quality.Phase == "prefill" && math.Abs(quality.KL-lost) > 1e-9 {
				t.Errorf("prefill is said to lose %v nats, want %v", quality.KL, lost)
			}
		}
	}

	// Where the rest loses less if it counts, plans have it count in prompts, and may be the sparser.
	rest := attentive(model, plain, map[float64]float64{0.1: 2e-3, 0.4: 1e-4})
	rest.Attention.Losses = append(rest.Attention.Losses, calibration.DensityLoss{Rule: calibration.RuleRest,
		Density: 0.1, KL: 5e-4, High: 5e-4, TopAgreement: 1, PerplexityRatio: 1})
	at := solve(t, in(1e-3, workload.AttentionSparse, rest)).Plan.Attention
	if at == nil || at.Density != 0.1 || !at.Rest {
		t.Errorf("attention is %+v, want a density of 0.1 and the rest", at)
	}

	for _, test := range []struct {
		in   Input
		want string
	}{
		{in(0.01, workload.AttentionSparse, plain), "no calibration says"},
		{in(1e-5, workload.AttentionSparse, cal), "no density"},
		{in(0, workload.AttentionSparse, cal), "neither a density nor a limit"},
	} {
		if _, err := Solve(context.Background(), test.in); err == nil || !says(err, test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
	}

	result := solve(t, in(0.01, workload.AttentionBest, plain))
	isMentioned := func(text string) bool { return strings.Contains(text, "attention is dense") }
	if result.Plan.Attention != nil || !slices.ContainsFunc(messages(result), isMentioned) {
		t.Errorf("attention is %+v with warnings %q, want a dense one that is mentioned", result.Plan.Attention,
			messages(result))
	}
}

// messages are the warnings of a result.
func messages(result *Result) (out []string) {
	for _, warning := range result.Warnings {
		out = append(out, warning.Error())
	}
	return out
}

// Under a limit of quality prompts attend to as few positions as the calibration permits: a small share with a least
// number in long prompts, a larger share without one in short prompts.
func TestLeastPositionsChosen(t *testing.T) {
	model := demo(t)
	cal := attentive(model, invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A32W32),
		map[float64]float64{0.1: 2e-2, 0.4: 1e-4})
	loss := func(rule string, least int, kl float64) {
		cal.Attention.Losses = append(cal.Attention.Losses, calibration.DensityLoss{Rule: rule, Density: 0.1,
			Least: least, KL: kl, High: kl, TopAgreement: 1, PerplexityRatio: 1})
	}
	loss(calibration.RuleHeads, 256, 5e-3)
	loss(calibration.RuleRest, 256, 9e-4)
	loss(calibration.RuleHeads, 512, 8e-4)

	want := workload.Default()
	want.Attention, want.Quality.MaxKL = workload.AttentionSparse, workload.KLLimit{Prefill: 1e-3}
	for _, test := range []struct {
		tokens  int
		density float64
		want    planir.Attention
	}{
		{512, 0, planir.Attention{Density: 0.4, Block: op.SparseBlock}},
		{2048, 0, planir.Attention{Density: 0.1, Least: 256, Rest: true, Block: op.SparseBlock}},
		{2048, 0.4, planir.Attention{Density: 0.4, Block: op.SparseBlock}},
		{512, 0.1, planir.Attention{Density: 0.1, Least: 256, Rest: true, Block: op.SparseBlock}},
	} {
		one := *want
		one.Density, one.Context, one.Prompts = test.density, 2048, []workload.Prompt{{Tokens: test.tokens, Share: 1}}
		one.Buckets = []int{256}
		model.MaxContext = 2048

		got, err := (&Input{Model: model, Workload: &one, Calibration: cal}).density()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Attention, test.want) {
			t.Errorf("prompts of %d tokens, density %v: %+v, want %+v", test.tokens, test.density, got.Attention,
				test.want)
		}
		if lost := cal.Attention.DensityLoss(calibration.RuleRest, 0.1, 256).KL; got.Rest && got.kl != lost {
			t.Errorf("prompts of %d tokens are said to lose %v, want %v", test.tokens, got.kl, lost)
		}
	}
}

// Estimates are priced by the heads whose scores they compute: heads that keep all positions or none by them take no
// time, neither predicted nor on the clock of the simulated machine.
func TestEstimatesOfSomeHeadsArePriced(t *testing.T) {
	model, soc := open(t, "../testdata/models/tiny-llama-kjv"), twoCores(t, 1)
	const tokens = 256
	cal := attentive(model, invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A32W32), map[float64]float64{0.1: 1e-3})
	cal.Attention.SharesBy = calibration.ByMass

	took := map[bool]float64{}
	for _, some := range []bool{false, true} {
		for layer := range cal.Attention.Layers {
			for head := range cal.Attention.Layers[layer].Heads {
				one := &cal.Attention.Layers[layer].Heads[head]
				one.Divergence, one.Mass = 0.1, []float64{0.9}
				if some && head%2 == 1 {
					one.Divergence = 0
				}
			}
		}

		want := workload.Default()
		want.Buckets, want.Context = []int{tokens}, 2*tokens
		want.Prompts = []workload.Prompt{{Tokens: tokens, Share: 1}}
		want.Attention, want.Density = workload.AttentionSparse, 0.1
		plan := solvedWith(t, model, soc, cal, want)
		estimated := cal.Attention.Estimated(0.1)
		if plan.Attention.Estimated != estimated || (estimated == 0) == some {
			t.Fatalf("scores of a share %v of the heads are estimated, want %v", plan.Attention.Estimated, estimated)
		}

		decision := plan.DecisionFor("layers.attention_estimate", tokens)
		took[some] = float64(decision.PredictNS)
		checkClock(t, plan, model, cal, soc, fmt.Sprintf("prefill@%d", tokens), tokens)
	}
	t.Logf("estimates take %v ns, of half of the heads %v", took[false], took[true])
	if share := took[true] / took[false]; share < 0.35 || share > 0.7 {
		t.Errorf("an estimate of half of the heads is priced %.2f of one of all", share)
	}
}

// What a plan says that each phase loses is what sparse attention loses there: decoding, the rest does not count.
func TestAttentionLossByPhase(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	ses := prepared(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: quick(),
		Calibration: invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A8TQ8C)})
	for _, decode := range []bool{true, false} {
		ses.in.attention = &attention{kl: 1e-3, decodeKL: 3e-3, decode: decode}
		want := map[string]float64{"prefill": 1e-3, "decode": 0}
		if decode {
			want["decode"] = 3e-3
		}
		for _, quality := range ses.quality() {
			if quality.KL != want[quality.Phase] {
				t.Errorf("sparse decoding %v: %s loses %v, want %v", decode, quality.Phase, quality.KL,
					want[quality.Phase])
			}
		}
	}
}

// Programs are mixed by what is minimised: those have sparse attention that take less energy, or less time, with it.
func TestSparseRowsByMeasure(t *testing.T) {
	predicted := func(short, long planir.Prediction) *planir.Plan {
		short.Program, long.Program = "prefill@16", "prefill@512"
		return &planir.Plan{Attention: &planir.Attention{Rows: []int{16, 512}},
			Program: planir.Program{Programs: []planir.PhaseProgram{{Name: short.Program, Rows: 16},
				{Name: long.Program, Rows: 512}}},
			Predictions: []planir.Prediction{short, long}}
	}
	sparse := predicted(planir.Prediction{PlanNS: 3, EnergyUJ: 1}, planir.Prediction{PlanNS: 1, EnergyUJ: 3})
	dense := predicted(planir.Prediction{PlanNS: 2, EnergyUJ: 2}, planir.Prediction{PlanNS: 2, EnergyUJ: 2})
	for measure, want := range map[problem.Measure]int{"": 512, problem.Time: 512, problem.Energy: 16} {
		if got := sparseRows(sparse, dense, measure); !slices.Equal(got, []int{want}) {
			t.Errorf("minimise %q: sparse at %v rows, want %d", measure, got, want)
		}
	}
}
