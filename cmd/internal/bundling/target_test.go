package bundling

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
)

// A plan for this machine has no target. The error names what was asked for: a target, or an emulator.
func TestNoTarget(t *testing.T) {
	plan := &planir.Plan{SoC: planir.SoCRef{Name: "host"}}
	for want, flags := range map[string]TargetFlags{
		`emit for target "phone": the plan is for this machine, soc "host"`: {Name: "phone"},
		`emit for an emulator: the plan is for this machine, soc "host"`:    {Emulator: true},
	} {
		if err := flags.check(plan, nil); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
