package explain

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// twoCores is a machine of two cores, the second slower by ratio, which together read 1.6 times what
// one does; and both as one processor that shares its work without loss but 10 % of everything.
func twoCores(t testing.TB, ratio float64) *socs.SoC {
	t.Helper()
	core := func(name, cores string, peak, bandwidth float64) string {
		return fmt.Sprintf(`
  - name: %s
    kind: cpu
    driver: sim
    select: %s
    cores: [%s]
    bandwidth_gbps: %g
    launch_us: 0.2
    tile: {k: 32, n: 32}
    schemes: [a32/w32, a8t/q8c]
    layouts: {w32: n32, q8c: n32}
    kv: [f32]
    dynamic_rows: true
    strided_output: true
    strided_input: true
    weight_ranges: true
    sim:
      schemes: {a32/w32: {peak_gops: %g}, a8t/q8c: {peak_gops: %g}}
      other_gops: %g`, name, name, cores, bandwidth, peak, 4*peak, peak/4)
	}
	text := "schema: hetc.soc/1\nname: two-cores\ncontrol: c0\nprocessors:" +
		core("c0", "0", 100, 10) + core("c1", "1", 100*ratio, 10*ratio) + core("c01", "0, 1", 90*(1+ratio), 14) + `
links:
  - {from: c0, to: c1, handover_us: 0.3}
  - {from: c1, to: c0, handover_us: 0.3}
joint:
  - {processors: [c0, c1], bandwidth_gbps: 16}
`
	soc, err := socs.Parse("two-cores.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return soc
}

func demo(t testing.TB) *models.Model {
	t.Helper()
	model, err := models.Open("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
}

// costs fits what a simulated SoC takes for a model's operators, at some numbers of rows.
func costs(t testing.TB, soc *socs.SoC, model *models.Model, schemes ...op.Scheme) *roofline.Costs {
	t.Helper()
	digest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}
	requests, err := profiler.Requests(soc, model,
		profiler.Want{Buckets: []int{16, 64, 96, 128, 160}, Schemes: schemes, MaxContext: 256})
	if err != nil {
		t.Fatal(err)
	}
	set := record.NewSet(record.Header{Schema: record.Schema, SoC: soc.Name, SoCDigest: digest, Simulated: true,
		Hetc: "test"})
	for _, r := range requests {
		measured := r.What
		if measured.Kind != record.Op || len(measured.Concurrent) > 0 {
			continue
		}
		ns, err := sim.NS(soc, measured.Proc, *measured.Op)
		if err != nil {
			continue // infeasible
		}
		measured.Loops, measured.Samples, measured.Simulated = 1, []float64{float64(ns)}, true
		if err := set.Add(&measured); err != nil {
			t.Fatal(err)
		}
	}
	fitted, err := roofline.Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	return fitted
}

// withNPU is the two cores with the second one turned into a processor with static shapes and little memory.
func withNPU(t testing.TB, change func(npu *socs.Processor)) *socs.SoC {
	t.Helper()
	soc := twoCores(t, 1)
	soc.Processors = soc.Processors[:2]
	soc.Processors[0].PowerW, soc.Processors[1].PowerW = 4, 1
	npu := soc.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 32
	npu.Kinds, npu.KV = []op.Kind{op.Norm, op.QuantRows, op.MatMul, op.GLU, op.Add, op.Copy}, nil
	npu.CompileMS = 10
	if change != nil {
		change(npu)
	}
	return soc
}

func permit(schemes ...op.Scheme) *workload.Workload {
	work := workload.Default()
	work.Schemes = workload.Schemes{Prefill: schemes, Decode: schemes}
	return work
}

// limitedCase is an input whose fastest, most frugal and smallest plans differ in schemes, buckets and placement.
func limitedCase(t *testing.T, seed uint64) solver.Input {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 3))
	model := demo(t)
	soc := withNPU(t, func(npu *socs.Processor) { npu.WeightRanges = random.IntN(2) == 0 })
	soc.Processors[0].PowerW, soc.Processors[1].PowerW = 1+4*random.Float64(), 0.2+2*random.Float64()
	work := permit(op.A8TQ8C, op.A32W32)
	work.Buckets, work.Context, work.OutputTokens = workload.Rows{16, 64 + 32*random.IntN(4)}, 256, 8+random.IntN(32)
	work.Prompts = workload.Prompts{{Tokens: 10 + random.IntN(60), Share: 1},
		{Tokens: 100 + random.IntN(90), Share: random.Float64()}}
	if seed%2 == 1 {
		work.Limits.AddressBytes = map[string]unit.Bytes{"c1": unit.Bytes(200<<10 + random.IntN(4<<20))}
	}
	return solver.Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C, op.A32W32), Workload: work,
		Engine: exact.Engine{}}
}

func solve(t testing.TB, in solver.Input) *solver.Result {
	t.Helper()
	result, err := solver.Solve(t.Context(), in)
	if err != nil {
		t.Fatalf("%v (hints %q)", err, diag.HintsOf(err))
	}
	return result
}
