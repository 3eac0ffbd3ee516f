package runcmd

import (
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
)

// CheckEvidence refuses a bundle whose manifest and plan disagree about being a simulation. Older bundles of
// simulations named a device as their target; they must not be taken for bundles of that device.
func CheckEvidence(m *bundle.Manifest, plan *planir.Plan) error {
	simulated := plan.Evidence() == planir.Simulated
	if simulated == m.Target.Simulated() {
		return nil
	}

	target := strings.Join(m.Target.SoC, ", ")
	if simulated {
		return diag.New(diag.ClassVerify,
			"the bundle's target is %q, and its plan is a simulation, which runs on no device", target).
			WithCode("bundle.policy").
			WithHint("emit it again: for the simulator hetc emit --plan FILE, for the device hetc solve --target " +
				"and hetc emit --target")
	}
	return diag.New(diag.ClassVerify, "the bundle's target is %q, a simulation, and its plan is %s", target,
		plan.Evidence()).
		WithCode("bundle.policy").WithHint("emit it again: hetc emit --plan FILE")
}
