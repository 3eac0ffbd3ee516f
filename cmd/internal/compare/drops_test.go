package compare

import (
	"testing"

	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// smallNPU is a SoC on which tiers pay for small experts: an NPU that starts at once, beside a core that takes any
// number of rows but is eight times as slow.
const smallNPU = `
schema: hetc.soc/1
name: small-npu
control: cpu
processors:
  - {name: cpu, kind: cpu, driver: sim, select: cpu, cores: [0], bandwidth_gbps: 10, launch_us: 0.2,
     tile: {k: 32, n: 32}, schemes: [a32/w32], layouts: {w32: n32}, kv: [f32], dynamic_rows: true,
     strided_output: true, strided_input: true, weight_ranges: true,
     sim: {schemes: {a32/w32: {peak_gops: 100}}, other_gops: 25}}
  - {name: npu, kind: npu, driver: sim, select: npu, bandwidth_gbps: 80, launch_us: 0.01, fuses: true,
     kinds: [matmul, glu, add, copy], tile: {m: 4, k: 32, n: 32}, schemes: [a32/w32], layouts: {w32: n32},
     static_shapes: true, sim: {schemes: {a32/w32: {peak_gops: 800}}, other_gops: 200}}
links:
  - {from: cpu, to: npu, handover_us: 0.01}
  - {from: npu, to: cpu, handover_us: 0.01}
joint:
  - {processors: [cpu, npu], bandwidth_gbps: 85}
`

// TestDropsKeepTheLimit measures what a plan loses that drops rows under a limit of quality, executed on the simulated
// NPU, on windows that neither its calibration nor its loads have seen: no more than the limit.
func TestDropsKeepTheLimit(t *testing.T) {
	soc, err := socs.Parse("small-npu.yaml", []byte(smallNPU))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("made up", func(t *testing.T) {
		weights, model := openModel(t, "../../../testdata/arch/olmoe-plain")
		const size = 64
		text := &trial.Text{}
		for window := range 24 {
			ids := make([]int32, size)
			for i := range ids {
				ids[i] = int32((7*i + i*i/3 + 5*window) % model.Vocab)
			}
			text.Windows = append(text.Windows, quality.Window{Tokens: ids, Next: -1})
		}
		keepsLimit(t, soc, weights, model, text, 0.06)
	})
	t.Run("trained", func(t *testing.T) {
		require.Slow(t)
		dir := "../../../testdata/models/tiny-moe-kjv"
		weights, model := openModel(t, dir)
		text, err := model.ReadText("../../../testdata/models/tiny-llama-kjv/valid.txt", 40, quality.WindowTokens)
		if err != nil {
			t.Fatal(err)
		}
		keepsLimit(t, soc, weights, model, text, 0.02)
	})
}

// openModel opens a model to solve for and to execute.
func openModel(t *testing.T, dir string) (*models.Model, *trial.Model) {
	t.Helper()
	weights, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	model, err := trial.Open(t.Context(), weights)
	if err != nil {
		t.Fatal(err)
	}
	return weights, model
}

// keepsLimit calibrates with the first half of a text, solves under the limit, and measures with the other half.
func keepsLimit(
	t *testing.T, soc *socs.SoC, weights *models.Model, model *trial.Model, text *trial.Text, limit float64,
) {
	size, half := len(text.Windows[0].Tokens), len(text.Windows)/2
	cal := calibratedDrops(t, model, text.Windows[:half])
	float32Plan, err := model.Plan(size, trial.Float32, nil)
	if err != nil {
		t.Fatal(err)
	}
	routes := quality.Routes{Tokens: size}
	exactly, err := model.Open(t.Context(), float32Plan, nil, routes.Observe)
	if err != nil {
		t.Fatal(err)
	}
	defer exactly.Close()
	for _, window := range text.Windows[:half] {
		if err := quality.Execute(t.Context(), exactly.Machine, window); err != nil {
			t.Fatal(err)
		}
	}
	costs, err := simulatedCosts(t.Context(), soc, weights, profiler.Want{Schemes: []op.Scheme{op.A32W32},
		Buckets: []int{size}, MaxContext: size})
	if err != nil {
		t.Fatal(err)
	}
	work := &workload.Workload{Schema: workload.Schema, Context: size, Buckets: []int{size},
		Schemes: workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A32W32}},
		Experts: workload.Experts{Overflow: planir.OverflowDrop, MaxDrop: 0.2}}
	plan := droppingPlan(t, solver.Input{Model: weights, SoC: soc, Costs: costs, Workload: work, Engine: exact.Engine{},
		Loads: routedLoads(t, model, &routes, half)}, cal, limit)

	expected := 0.0
	for _, quality := range plan.Quality {
		if quality.Phase == "prefill" {
			expected = quality.KL
		}
	}
	if !(expected > 0 && expected <= limit) {
		t.Errorf("the plan says of its quality %+v, want a loss of at most %v", plan.Quality, limit)
	}
	content, err := emit.NewCalibrated(t.Context(), plan, weights, cal, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	machine, err := executor.Open(t.Context(), plan, content, executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	lost := divergence(t, exactly.Machine, machine, text.Windows[half:])
	tiers := plan.TiersOf(size)
	t.Logf("%s by %s: mean KL %.6f, at most %.6f expected, limit %v", tiers.Shape(), tiers.Salience, lost, expected,
		limit)
	// Exact tiers lose nothing but the rounding of sums.
	if !(lost > 1e-4 && lost <= limit) {
		t.Errorf("the plan loses a mean KL of %v, want what dropped rows cost, and at most %v", lost, limit)
	}
}

// calibratedDrops measures what dropped rows cost on some windows.
func calibratedDrops(t *testing.T, model *trial.Model, windows []quality.Window) *calibration.Calibration {
	t.Helper()
	measured, err := trial.MeasureDrops(t.Context(), model, trial.DropOptions{Text: &trial.Text{Windows: windows},
		Shares: trial.DropShares, Rules: []string{op.SalienceNorm, op.SalienceWeight}})
	if err != nil {
		t.Fatal(err)
	}
	size := len(windows[0].Tokens)
	cal := &calibration.Calibration{Schema: calibration.Schema,
		Model: calibration.Model{Name: model.Name, Digest: model.Digest}, Drops: trial.CalibrateDrops(measured),
		Text: calibration.Text{SHA256: model.Digest, Tokens: len(windows) * size, Windows: len(windows),
			WindowTokens: size}}
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// routedLoads returns the loads of the windows whose routes were observed.
func routedLoads(t *testing.T, model *trial.Model, routes *quality.Routes, windows int) *workload.Loads {
	t.Helper()
	loads := &workload.Loads{Schema: workload.LoadsSchema, Source: "traced", Experts: model.Experts,
		ExpertsPerToken: model.ExpertsPerToken, ChunkTokens: routes.Tokens, Chunks: windows, Model: model.Name,
		ModelDigest: model.Digest, Text: model.Digest}
	for _, layer := range routes.Layers() {
		rows, err := routes.Rows(layer)
		if err != nil {
			t.Fatal(err)
		}
		counted := workload.LoadLayer{Layer: layer}
		for _, list := range rows {
			counted.Rows = append(counted.Rows, append([]int32(nil), list...))
		}
		loads.Layers = append(loads.Layers, counted)
	}
	return loads
}

// droppingPlan solves under a limit of quality for a plan that drops rows. Without the calibration there is none, and
// where nothing may be lost none that drops.
func droppingPlan(t *testing.T, in solver.Input, cal *calibration.Calibration, limit float64) *planir.Plan {
	t.Helper()
	size, allowed := in.Workload.Buckets[0], &in.Workload.Quality.MaxKL
	allowed.Prefill = limit
	if _, err := solver.Solve(t.Context(), in); err == nil {
		t.Error("rows are dropped under a limit of quality without a calibration of what that costs")
	}
	allowed.Prefill = workload.Lossless
	if result, err := solver.Solve(t.Context(), in); err != nil {
		t.Error(err)
	} else if tiers := result.Plan.TiersOf(size); tiers != nil && tiers.Overflow != planir.OverflowExact {
		t.Errorf("nothing may be lost, and overflow is %q", tiers.Overflow)
	}
	allowed.Prefill = limit
	in.Calibration = cal
	result, err := solver.Solve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if tiers := result.Plan.TiersOf(size); tiers == nil || tiers.Overflow != planir.OverflowDrop {
		t.Fatalf("tiers are %+v (%v), want some that drop rows", tiers, result.TiersLeft)
	}
	return result.Plan
}

// divergence returns the mean divergence of a machine from one in float32 on some windows, in nats a token.
func divergence(t *testing.T, exactly, machine *executor.Machine, windows []quality.Window) float64 {
	t.Helper()
	reference, err := quality.NewReference()
	if err != nil {
		t.Fatal(err)
	}
	defer reference.Close()
	var tally quality.Tally
	for i, window := range windows {
		if err := reference.Add(t.Context(), exactly, window); err != nil {
			t.Fatal(err)
		}
		if err := reference.Compare(t.Context(), machine, i, len(window.Tokens), &tally); err != nil {
			t.Fatal(err)
		}
	}
	result, err := tally.Result()
	if err != nil {
		t.Fatal(err)
	}
	return result.KL.Mean
}
