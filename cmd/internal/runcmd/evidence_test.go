package runcmd

import (
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
)

// A manifest that names a device never goes with the plan of a simulation, nor the other way round.
func TestCheckEvidence(t *testing.T) {
	simulation := &planir.Plan{SoC: planir.SoCRef{Name: "s", Simulated: true}}
	device := &planir.Plan{SoC: planir.SoCRef{Name: "s"}}
	for _, x := range []struct {
		target bundle.Target
		plan   *planir.Plan
		ok     bool
	}{
		{bundle.Target{SoC: []string{"simulated:s"}}, simulation, true},
		{bundle.Target{SoC: []string{"s"}}, device, true},
		{bundle.Target{SoC: []string{"s"}, OS: "android", Arch: "arm64"}, simulation, false},
		{bundle.Target{}, simulation, false},
		{bundle.Target{SoC: []string{"simulated:s"}}, device, false},
	} {
		err := CheckEvidence(&bundle.Manifest{Target: x.target}, x.plan)
		if (err == nil) != x.ok {
			t.Errorf("target %+v, plan %s: %v, want ok %v", x.target, x.plan.Evidence(), err, x.ok)
		}
		if err != nil && (diag.ClassOf(err) != diag.ClassVerify || len(diag.HintsOf(err)) == 0) {
			t.Errorf("target %+v: class %v, hints %q", x.target, diag.ClassOf(err), diag.HintsOf(err))
		}
	}
}
