package solver

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
)

// device is a phone of which the GPU is no target and the NPU executes products in 8 bit only.
func device(t testing.TB) *socs.SoC {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	soc.Processor("npu").Target.Schemes = []op.Scheme{op.A8TQ8C}
	soc.Processor("npu").Target.Kinds = []op.Kind{op.MatMul}
	return soc
}

// A plan for the device leaves out what is no target, keeps to what executes there, and says so.
func TestForTarget(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), device(t)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A8TQ8C), Engine: exact.Engine{},
		Workload: permit(op.A8TQ8C)}

	whole := solve(t, in)
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	result := solve(t, in)
	given, target := whole.Plan.SoC, result.Plan.SoC
	if given.Target || !target.Target || target.Digest != given.Digest {
		t.Errorf("plan of %+v, of the whole SoC %+v", target, given)
	}
	products := 0
	for _, decision := range result.Plan.Decisions {
		for _, share := range decision.Shares {
			if share.Proc == "gpu" || share.Proc == "npu" && decision.Scheme != op.A8TQ8C {
				t.Errorf("%s@%d in %s on %s", decision.Node, decision.Rows, decision.Scheme, decision.ShareText())
			}
			if share.Proc == "npu" {
				products++
			}
		}
	}
	if products == 0 {
		t.Error("nothing runs on the NPU")
	}
	if err := check.Plan(result.Plan, model, soc).Err(); err != nil {
		t.Error(err)
	}

	// The whole SoC's plan is none for the device.
	whole.Plan.SoC.Target = true
	err := check.Plan(whole.Plan, model, soc).Err()
	if err == nil || !says(err, `"npu"`) && !says(err, `"gpu"`) {
		t.Errorf("a plan with the GPU for the device: got %v", err)
	}

	in.Only = []string{"cpu"}
	isOther := func(share planir.Share) bool { return share.Proc != "cpu" }
	for _, decision := range solve(t, in).Plan.Decisions {
		if slices.ContainsFunc(decision.Shares, isOther) {
			t.Errorf("--only cpu: %s on %s", decision.Node, decision.ShareText())
		}
	}
}

// What nobody permitted is not silently computed elsewhere.
func TestForTargetRefuses(t *testing.T) {
	model, soc := demo(t), device(t)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A8TQ8C), Engine: exact.Engine{}}
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	_, err := Solve(t.Context(), in)
	if diag.ClassOf(err) != diag.ClassInput || !says(err, "a8t/q8c") {
		t.Fatalf("a workload that permits a32/w32 alone: got %v", err)
	}
	if !says(err, "schemes: {prefill: [a32/w32, a8t/q8c]", "--only cpu") {
		t.Errorf("hints %q, want the schemes to permit and the way without", diag.HintsOf(err))
	}

	in.Only = []string{"cpu"}
	if _, err := Solve(t.Context(), in); err != nil {
		t.Errorf("without the NPU: got %v", err)
	}

	soc.Processor("cpu").Target = nil
	in = Input{SoC: soc}
	if err := in.ForTarget(); err == nil || in.Targeted() {
		t.Errorf("a SoC whose control processor is no target: got %v", err)
	}
}
