package solver

import (
	"context"
	"math"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// card is a SoC of one core and a device, as probe describes one: calls are submitted, and where it has memory of its
// own, operands are copied.
func card(t *testing.T, own bool, copyGBps, submitUS float64) *socs.SoC {
	t.Helper()
	soc := twoCores(t, 0.8)
	soc.Processors, soc.Memory = soc.Processors[:2], nil
	gpu := soc.Processor("c1")
	gpu.Kind, gpu.Cores, gpu.SingleQueue = socs.KindGPU, nil, true
	gpu.OwnMemory, gpu.SubmitUS, gpu.LaunchUS = own, submitUS, 1
	soc.Links = []socs.Link{
		{From: "c0", To: "c1", HandoverUS: 2, CopyGBps: copyGBps, CopyLaunchUS: 0.5},
		{From: "c1", To: "c0", HandoverUS: 1.5, CopyGBps: copyGBps, CopyLaunchUS: 0.5},
	}
	return soc
}

// What copies and submissions take is predicted as the virtual clock has it, for whole programs and for calls of fewer
// rows, whether the device is alone, takes whole operators or shares them.
func TestDeviceTakesAsLongAsPredicted(t *testing.T) {
	model := demo(t)
	for _, test := range []struct {
		name     string
		own      bool
		submitUS float64
		only     []string
		ratio    map[string]float64
	}{
		{"copies, alone", true, 0, []string{"c1"}, nil},
		{"copies, divided", true, 0, nil, map[string]float64{"c0": 0.5, "c1": 0.5}},
		{"submissions, alone", false, 1.2, []string{"c1"}, nil},
		{"submissions, divided", false, 1.2, nil, map[string]float64{"c0": 0.5, "c1": 0.5}},
		{"both, divided", true, 1.2, nil, map[string]float64{"c0": 0.5, "c1": 0.5}},
		{"both, as solved", true, 1.2, nil, nil},
	} {
		if testing.Short() && test.name != "both, divided" {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			// Without their prices nothing is to be seen: what they add is told apart from a SoC that has none.
			times := func(own bool, submitUS float64) (prefill, decode, part int64) {
				soc := card(t, own, 3, submitUS)
				work := workload.Default()
				work.Prompts, work.OutputTokens, work.Buckets = []workload.Prompt{{Tokens: 64, Share: 1}}, 32, []int{64}
				work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A32W32}}
				in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work,
					Engine: exact.Engine{}, Only: test.only, Ratio: test.ratio}
				plan := solve(t, in).Plan

				prefill, decode, part = onClock(t, in, plan)
				caller, err := NewCaller(in, plan)
				if err != nil {
					t.Fatal(err)
				}
				partly, err := caller.NS(20, 85)
				if err != nil {
					t.Fatal(err)
				}

				for name, both := range map[string][2]int64{
					"prefill": {prefill, prediction(t, plan, "prefill@64").PlanNS},
					"decode":  {decode, prediction(t, plan, "decode").PlanNS},
					"20 rows": {part, partly},
				} {
					if off := math.Abs(float64(both[0])/float64(both[1]) - 1); off > 0.01 {
						t.Errorf("%s: %d ns on the simulated machine, predicted %d", name, both[0], both[1])
					}
				}
				return prefill, decode, part
			}

			prefill, decode, part := times(test.own, test.submitUS)
			if test.only == nil && test.ratio == nil {
				return // another plan
			}
			free, freeDecode, freePart := times(false, 0)
			t.Logf("prefill %d ns and %d without, decode %d and %d, 20 rows %d and %d", prefill, free, decode,
				freeDecode, part, freePart)
			if test.only == nil && (prefill <= free || decode < freeDecode+1000 || part < freePart+1000) {
				t.Error("copies and submissions take no time")
			}
		})
	}
}

// onClock is what a prompt of 64 tokens, a token in the middle of the answer and a part of a prompt take on the virtual
// clock, in ns.
func onClock(t *testing.T, in Input, plan *planir.Plan) (prefill, decode, part int64) {
	t.Helper()
	content, err := emit.NewContent(context.Background(), plan, in.Model, []driver.Compiler{sim.NewCompiler(in.SoC)})
	if err != nil {
		t.Fatal(err)
	}
	machine := machineOf(t, in.SoC, plan, content)
	forward := func(tokens int) (ns int64) {
		err := machine.Do(context.Background(), func(control *executor.Control) error {
			got, err := control.Forward(make([]int32, tokens), executor.WantLast,
				func(int, []float32) error { return nil })
			ns = got.NS
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}

	prefill = forward(64)
	forward(15)
	decode = forward(1)
	machine.Reset()
	forward(65)
	return prefill, decode, forward(20)
}

// A device that shares what it allocates gets to allocate the buffers: nothing is copied, and nothing priced.
func TestSharedBuffersAreNotCopied(t *testing.T) {
	model := demo(t)
	work := workload.Default()
	work.Prompts, work.OutputTokens, work.Buckets = []workload.Prompt{{Tokens: 64, Share: 1}}, 32, []int{64}
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A32W32}}

	var took [2][2]int64
	for i, own := range []bool{false, true} {
		soc := card(t, own, 3, 1.2)
		soc.Processor("c1").SharesOwn = own
		in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work,
			Engine: exact.Engine{}, Ratio: map[string]float64{"c0": 0.5, "c1": 0.5}}
		plan := solve(t, in).Plan
		took[i][0], _, _ = onClock(t, in, plan)
		took[i][1] = prediction(t, plan, "prefill@64").PlanNS
	}
	if took[0] != took[1] {
		t.Errorf("executed and predicted in %v ns, and %v without memory of its own", took[1], took[0])
	}
}
