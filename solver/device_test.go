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
	s := twoCores(t, 0.8)
	s.Processors, s.Memory = s.Processors[:2], nil
	gpu := s.Processor("c1")
	gpu.Kind, gpu.Cores, gpu.SingleQueue = socs.KindGPU, nil, true
	gpu.OwnMemory, gpu.SubmitUS, gpu.LaunchUS = own, submitUS, 1
	s.Links = []socs.Link{
		{From: "c0", To: "c1", HandoverUS: 2, CopyGBps: copyGBps, CopyLaunchUS: 0.5},
		{From: "c1", To: "c0", HandoverUS: 1.5, CopyGBps: copyGBps, CopyLaunchUS: 0.5},
	}
	return s
}

// What copies and submissions take is predicted as the virtual clock has it, for whole programs and for calls of fewer
// rows, whether the device is alone, takes whole operators or shares them.
func TestDeviceTakesAsLongAsPredicted(t *testing.T) {
	m := demo(t)
	for _, c := range []struct {
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
		if testing.Short() && c.name != "both, divided" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			// Without their prices nothing is to be seen: what they add is told apart from a SoC that has none.
			times := func(own bool, submitUS float64) (prefill, decode, part int64) {
				s := card(t, own, 3, submitUS)
				w := workload.Default()
				w.Prompts, w.OutputTokens, w.Buckets = []workload.Prompt{{Tokens: 64, Share: 1}}, 32, []int{64}
				w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A32W32}}
				in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w, Engine: exact.Engine{},
					Only: c.only, Ratio: c.ratio}
				p := solve(t, in).Plan
				prefill, decode, part = onClock(t, in, p)
				caller, err := NewCaller(in, p)
				if err != nil {
					t.Fatal(err)
				}
				partly, err := caller.NS(20, 85)
				if err != nil {
					t.Fatal(err)
				}
				for name, both := range map[string][2]int64{"prefill": {prefill, prediction(t, p, "prefill@64").PlanNS},
					"decode": {decode, prediction(t, p, "decode").PlanNS}, "20 rows": {part, partly}} {
					if off := math.Abs(float64(both[0])/float64(both[1]) - 1); off > 0.01 {
						t.Errorf("%s: %d ns on the simulated machine, predicted %d", name, both[0], both[1])
					}
				}
				return prefill, decode, part
			}
			prefill, decode, part := times(c.own, c.submitUS)
			if c.only == nil && c.ratio == nil {
				return // another plan
			}
			free, freeDecode, freePart := times(false, 0)
			t.Logf("prefill %d ns and %d without, decode %d and %d, 20 rows %d and %d", prefill, free, decode,
				freeDecode, part, freePart)
			if c.only == nil && (prefill <= free || decode < freeDecode+1000 || part < freePart+1000) {
				t.Error("copies and submissions take no time")
			}
		})
	}
}

// onClock is what a prompt of 64 tokens, a token in the middle of the answer and a part of a prompt take on the virtual
// clock, in ns.
func onClock(t *testing.T, in Input, p *planir.Plan) (prefill, decode, part int64) {
	t.Helper()
	c, err := emit.NewContent(context.Background(), p, in.Model, []driver.Compiler{sim.NewCompiler(in.SoC)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, err := executor.Open(context.Background(), p, c, executor.Options{Drivers: []driver.Driver{sim.New(in.SoC)}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, call := range []struct {
		tokens int
		ns     *int64
	}{{64, &prefill}, {15, &part}, {1, &decode}, {20, &part}} {
		if call.tokens == 20 {
			x.Reset()
			call.ns = &part
			if err := x.Do(context.Background(), func(c *executor.Control) error {
				_, err := c.Forward(make([]int32, 65), executor.WantNone, nil)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Do(context.Background(), func(c *executor.Control) error {
			got, err := c.Forward(make([]int32, call.tokens), executor.WantLast,
				func(int, []float32) error { return nil })
			*call.ns = got.NS
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return prefill, decode, part
}

// A device that shares what it allocates gets to allocate the buffers: nothing is copied, and nothing priced.
func TestSharedBuffersAreNotCopied(t *testing.T) {
	m := demo(t)
	w := workload.Default()
	w.Prompts, w.OutputTokens, w.Buckets = []workload.Prompt{{Tokens: 64, Share: 1}}, 32, []int{64}
	w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A32W32}}
	var took [2][2]int64
	for i, own := range []bool{false, true} {
		s := card(t, own, 3, 1.2)
		s.Processor("c1").SharesOwn = own
		in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w, Engine: exact.Engine{},
			Ratio: map[string]float64{"c0": 0.5, "c1": 0.5}}
		p := solve(t, in).Plan
		took[i][0], _, _ = onClock(t, in, p)
		took[i][1] = prediction(t, p, "prefill@64").PlanNS
	}
	if took[0] != took[1] {
		t.Errorf("executed and predicted in %v ns, and %v without memory of its own", took[1], took[0])
	}
}
