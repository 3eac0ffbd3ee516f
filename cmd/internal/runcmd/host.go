package runcmd

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
)

// thisHost describes this machine to the bundle's target check; nil leaves that check out.
func thisHost(any bool) *bundle.Host {
	if any {
		return nil
	}
	here := &bundle.Host{
		SoC: []string{host.Fingerprint()}, SoCAdvice: whatIsMissing(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Components: map[string]bundle.HostComponent{},
	}
	for _, drv := range all.Drivers() {
		// Drivers whose artifacts depend on versions of a library compare tokens.
		if matcher, ok := drv.(driver.Matcher); ok {
			here.Components["driver/"+drv.Name()] = bundle.HostComponent{Accepts: matcher.Accepts}
		}
	}
	return here
}

// whatIsMissing says why this process may be on the machine that a bundle was made for and not have its fingerprint, ""
// where nothing is known to be missing.
func whatIsMissing() string {
	var missing []string
	for _, advice := range []string{missingCores(), refusedKernels(host.RefusedKernels())} {
		if advice != "" {
			missing = append(missing, advice)
		}
	}
	return strings.Join(missing, "; ")
}

// refusedKernels is advice where this process cannot use kernels for the reason given: with other kernels it is another
// machine to a plan.
func refusedKernels(reason string) string {
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("this process cannot use all kernels that its CPU is fit for, because %s: run the bundle where "+
		"it can, or probe, profile, solve and emit again here", reason)
}

// missingCores says that this machine has more cores than this process may use, "" where it has not: another number of
// cores is another machine to a plan.
func missingCores() string {
	usable, all := affinity.Cores(), machine.Cores()
	if len(usable) >= all {
		return ""
	}
	return fmt.Sprintf("this process may use %d of %d cores, %v: let it use those that the bundle was made for (taskset, the "+
		"container's cpuset), or emit a bundle with these", len(usable), all, usable)
}

// checkTarget makes up for the check that opening left out: a simulated plan runs anywhere, any other
// only on its own kind of machine.
func (b *opened) checkTarget(plan *planir.Plan, o *options) error {
	if err := CheckEvidence(b.Manifest(), plan); err != nil {
		return err
	}
	if !o.simulates || o.anyMachine || plan.SoC.Simulated {
		return nil
	}
	if target := b.Manifest().Target; !slices.Contains(target.SoC, host.Fingerprint()) {
		finding := diag.New(diag.ClassVerify, "the bundle was made for another machine: soc is %q, want %s",
			host.Fingerprint(), diag.OneOf(target.SoC)).
			WithCode("bundle.policy").WithHint("emit the bundle for this machine (hetc probe describes it)")
		if advice := whatIsMissing(); advice != "" {
			_ = finding.WithHint("%s", advice)
		}
		if plan.Target != nil && !plan.Target.Emulator {
			_ = finding.WithHint("it is for the device %q: hetc emit --for-emulator writes its twin, which the "+
				"vendor's emulator executes here", plan.Target.SoC)
		}
		return finding
	}
	return nil
}
