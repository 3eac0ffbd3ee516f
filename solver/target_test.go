package solver

import (
	"slices"
	"strings"
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
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	s.Processor("npu").Target.Schemes = []op.Scheme{op.A8TQ8C}
	s.Processor("npu").Target.Kinds = []op.Kind{op.MatMul}
	return s
}

// A plan for the device leaves out what is no target, keeps to what executes there, and says so.
func TestForTarget(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), device(t)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32, op.A8TQ8C), Engine: exact.Engine{}, Workload: permit(op.A8TQ8C)}
	whole := solve(t, in)
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	r := solve(t, in)
	if r.Plan.SoC.Target == whole.Plan.SoC.Target || !r.Plan.SoC.Target || r.Plan.SoC.Digest != whole.Plan.SoC.Digest {
		t.Errorf("plan of %+v, of the whole SoC %+v", r.Plan.SoC, whole.Plan.SoC)
	}
	products := 0
	for _, d := range r.Plan.Decisions {
		for _, sh := range d.Shares {
			if sh.Proc == "gpu" || sh.Proc == "npu" && d.Scheme != op.A8TQ8C {
				t.Errorf("%s@%d in %s on %s", d.Node, d.Rows, d.Scheme, d.ShareText())
			}
			if sh.Proc == "npu" {
				products++
			}
		}
	}
	if products == 0 {
		t.Error("nothing runs on the NPU")
	}
	if err := check.Plan(r.Plan, m, s).Err(); err != nil {
		t.Error(err)
	}
	// The whole SoC's plan is none for the device.
	whole.Plan.SoC.Target = true
	if err := check.Plan(whole.Plan, m, s).Err(); err == nil || !strings.Contains(err.Error(), `"npu"`) && !strings.Contains(err.Error(), `"gpu"`) {
		t.Errorf("a plan with the GPU for the device: got %v", err)
	}
	in.Only = []string{"cpu"}
	for _, d := range solve(t, in).Plan.Decisions {
		if slices.ContainsFunc(d.Shares, func(x planir.Share) bool { return x.Proc != "cpu" }) {
			t.Errorf("--only cpu: %s on %s", d.Node, d.ShareText())
		}
	}
}

// What nobody permitted is not silently computed elsewhere.
func TestForTargetRefuses(t *testing.T) {
	m, s := demo(t), device(t)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32, op.A8TQ8C), Engine: exact.Engine{}}
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	_, err := Solve(t.Context(), in)
	if err == nil || diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "a8t/q8c") {
		t.Fatalf("a workload that permits a32/w32 alone: got %v", err)
	}
	if h := strings.Join(diag.HintsOf(err), " "); !strings.Contains(h, "schemes: {prefill: [a32/w32, a8t/q8c]") || !strings.Contains(h, "--only cpu") {
		t.Errorf("hint %q, want the schemes to permit and the way without", h)
	}
	in.Only = []string{"cpu"}
	if _, err := Solve(t.Context(), in); err != nil {
		t.Errorf("without the NPU: got %v", err)
	}
	s.Processor("cpu").Target = nil
	in = Input{SoC: s}
	if err := in.ForTarget(); err == nil || in.Targeted() {
		t.Errorf("a SoC whose control processor is no target: got %v", err)
	}
}
