package bundling

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// TargetFlags are the flags that say for which device emit makes a bundle, from a plan for a
// simulated SoC.
type TargetFlags struct {
	Name string
	// Emulator asks for the twin that the device's emulator runs; Fallback permits graphs that the
	// compiler refuses to run on the control processor; Twin is a bundle made by Emulator, whose
	// report is repeated.
	Emulator bool
	Fallback bool
	Twin     string
}

// Apply sets the options of emit. machine is the plan's SoC, nil for this machine, and key is the
// key that signs.
func (f *TargetFlags) Apply(ctx context.Context, options *emit.Options, machine *socs.SoC, key *bundle.Key) error {
	// A bundle for the plan's own processors: flags of targets would do nothing.
	if f.Name == "" && !f.Emulator {
		for _, flag := range []struct {
			name string
			set  bool
		}{{"allow-fallback", f.Fallback}, {"twin", f.Twin != ""}} {
			if flag.set {
				return diag.New(diag.ClassUsage, "--%s needs --target or --for-emulator", flag.name).
					WithHint("name the target: --target NAME")
			}
		}
		return nil
	}
	if err := f.check(options.Plan, machine); err != nil {
		return err
	}
	soc, err := machine.Restricted()
	if err != nil {
		return err
	}
	options.AllowFallback, options.Oracle = f.Fallback, host.New()
	options.Target = &emit.Target{SoC: soc.Name, Emulator: f.Emulator}
	// Beside the emulator, this machine's CPU executes what the device's CPU would.
	var here *driver.Device
	if f.Emulator {
		devices, err := host.New().Devices(ctx)
		if err != nil {
			return err
		}
		here = &devices[0]
		options.Target.Fingerprint = host.Fingerprint()
	}
	known := bindings.Compilers(machine)
	for i := range soc.Processors {
		proc, err := targetProc(&soc.Processors[i], known, here)
		if err != nil {
			return err
		}
		options.Target.Procs = append(options.Target.Procs, proc)
	}
	if f.Twin != "" {
		if options.TwinReport, err = twinReport(ctx, f.Twin, key, options.Plan); err != nil {
			return err
		}
	}
	return nil
}

// check refuses a target for which the plan was not made.
func (f *TargetFlags) check(plan *planir.Plan, machine *socs.SoC) error {
	if f.Emulator && f.Twin != "" {
		return diag.New(diag.ClassUsage,
			"--twin %q cannot be combined with --for-emulator: the bundle is the twin", f.Twin).
			WithHint("leave one of them out")
	}
	if machine == nil {
		asked := "an emulator"
		if f.Name != "" {
			asked = fmt.Sprintf("target %q", f.Name)
		}
		return diag.New(diag.ClassInput, "emit for %s: the plan is for this machine, soc %q", asked, plan.SoC.Name).
			WithHint("plan for the target: hetc solve --target NAME")
	}
	// --for-emulator alone means the SoC of the plan.
	name := f.Name
	if name == "" {
		name = machine.Name
	}
	if soc, err := socs.Open(name); err == nil { // a file is known by its name
		name = soc.Name
	} else if f.Name != "" && f.Name != machine.Name {
		return err
	}
	if name != machine.Name {
		return diag.New(diag.ClassInput, "emit for target %q: the plan is for SoC %q", name, machine.Name).
			WithHint("solve for the target: hetc solve --target %s, or emit for the plan's: --target %s", name,
				machine.Name)
	}
	return nil
}

// twinReport returns the report of a twin. The report is repeated in a signed bundle. Therefore every byte of the twin
// is verified against the signing key, and the twin must be of the same model and inputs as the plan.
func twinReport(ctx context.Context, path string, key *bundle.Key, plan *planir.Plan) (*emit.Report, error) {
	fail := func(err error, hint string) (*emit.Report, error) {
		finding := diag.New(diag.ClassOr(err, diag.ClassInput), "--twin %q: %w", path, err)
		if bundle.StepOf(err) != "" { // the error of a step names the file
			finding = diag.New(diag.ClassOf(err), "--twin: %w", err)
		}
		if hint != "" {
			finding = finding.WithHint("%s", hint)
		}
		return nil, finding
	}
	again := "make it from the same plan with hetc emit --for-emulator"
	// Only the key that will sign the report again may have signed it before.
	trust, err := bundle.ParseTrust(key.PEM(), key.Name)
	if err != nil {
		return fail(err, "")
	}
	twin, err := bundle.Open(path, bundle.Options{Trust: trust, Policy: bundle.Policy{AllowDev: true}})
	if err != nil {
		hint := ""
		if bundle.StepOf(err) == bundle.StepSignature {
			hint = "its report is repeated in what --key signs: emit the twin with the same key"
		}
		return fail(err, hint)
	}
	defer twin.Close()
	if !slices.ContainsFunc(twin.Manifest().Blobs, func(x bundle.Blob) bool { return x.Name == emit.ReportBlob }) {
		return fail(errors.New("the bundle holds no graphs that were compiled with their weights"),
			again+"; of a plan that gives nothing to an NPU there is no twin to name: leave it out")
	}
	if err := twin.VerifyAll(ctx, nil); err != nil {
		return fail(err, "")
	}
	of, err := planOf(twin)
	if err != nil {
		return fail(err, again)
	}
	if of.Model.Digest != plan.Model.Digest {
		return fail(fmt.Errorf("it is of model %q, digest %.12s, and the plan of %q, digest %.12s", of.Model.Name,
			of.Model.Digest, plan.Model.Name, plan.Model.Digest), again)
	}
	if !slices.Equal(of.Inputs, plan.Inputs) {
		return fail(errors.New("it is of a plan that was solved from other inputs"), again)
	}
	if err := twin.Expect(emit.ReportBlob, bundle.RoleReport); err != nil {
		return fail(err, again)
	}
	text, err := twin.Bytes(emit.ReportBlob)
	if err != nil {
		return fail(err, "")
	}
	report, err := emit.DecodeReport(text)
	if err != nil {
		return fail(err, again)
	}
	return report, nil
}

// planOf decodes the plan that is the entry point of a verified bundle.
func planOf(b *bundle.Bundle) (*planir.Plan, error) {
	entry := b.Manifest().Entrypoint
	if err := b.Expect(entry, bundle.RolePlan); err != nil {
		return nil, err
	}
	text, err := b.Bytes(entry)
	if err != nil {
		return nil, err
	}
	return planir.Decode(text)
}

// targetProc returns a processor of a SoC as its device executes it. With here it is as emulated on this
// machine, where here stands for the device's CPU.
func targetProc(described *socs.Processor, known []driver.Compiler, here *driver.Device) (planir.Proc, error) {
	target := described.Target
	out := check.Proc(described)
	proc := &out
	proc.Driver, proc.Select, proc.Options, proc.Cores = target.Driver, target.Select, nil, nil
	at := slices.IndexFunc(known, func(c driver.Compiler) bool { return c.Name() == target.Compiler })
	switch {
	// a device whose driver builds the kernels that an artifact carries; the first one here stands for the target's
	case target.Compiler == "" && target.Driver != host.Name:
		if here != nil {
			proc.Select = ""
		}
	// no compiler: the CPU, whose kernels hetc has
	case target.Compiler == "" && here != nil:
		proc.Select, proc.Cores = here.Select, slices.Clone(here.Cores)
	case target.Compiler == "":
		if proc.Select == "" {
			proc.Select = coreRange(described.Cores)
		}
		cores, err := coresOf(proc.Select)
		if err != nil {
			return out, diag.New(diag.ClassInput, "soc: target of processor %q: %w", described.Name, err)
		}
		proc.Cores = cores
	case at < 0:
		return out, diag.New(diag.ClassUnavailable,
			"soc: target of processor %q: compiler %q is not part of this program", described.Name, target.Compiler)
	// compiled ahead of time: graphs hold their weights, and shapes are static
	default:
		if here != nil {
			proc.Select = "emulator"
		}
		proc.Options = target.Options() // of the compiler, and what the driver compares artifacts with
		if _, embeds := known[at].(driver.GroupCompiler); !embeds {
			return out, nil
		}
		proc.WeightsInArtifacts, proc.Shares = true, here == nil && described.WeightBytes != socs.WeightsPerGraph
		// What a graph with static shapes and its own weights cannot do, whatever the description claims.
		proc.WeightRanges, proc.DynamicRows, proc.StridedInput, proc.StridedOutput, proc.Prepacks = false, false, false,
			false, false
		proc.Fuses, proc.Memory = true, socs.DefaultMemory(true)
		for scheme := range proc.Layouts {
			proc.Layouts[scheme] = op.OnnxLayout
		}
		for _, scheme := range proc.Schemes {
			proc.Layouts[scheme.Weight()] = op.OnnxLayout
		}
	}
	return out, nil
}

// coreRange returns the selector of the driver host for these cores.
func coreRange(cores []int) string {
	if len(cores) == 0 {
		return "0"
	}
	lo, hi := slices.Min(cores), slices.Max(cores)
	if lo == hi {
		return strconv.Itoa(lo)
	}
	return fmt.Sprintf("%d-%d", lo, hi)
}

// coresOf parses a selector of the driver host, such as 2-7.
func coresOf(sel string) ([]int, error) {
	first, last, two := strings.Cut(sel, "-")
	lo, err := strconv.Atoi(first)
	hi := lo
	if err == nil && two {
		hi, err = strconv.Atoi(last)
	}
	const most = 1 << 10
	if err != nil || lo < 0 || hi < lo || hi >= most {
		return nil, fmt.Errorf("select %q of driver %q, want a core or a range of cores such as 2-7", sel, host.Name)
	}
	var out []int
	for c := lo; c <= hi; c++ {
		out = append(out, c)
	}
	return out, nil
}

// targetSystem returns the system on which the bundle of a plan runs, as GOOS and GOARCH.
func targetSystem(o *emit.Options, machine *socs.SoC) (goos, arch string) {
	if machine != nil && machine.OS != "" && (o.Target == nil || !o.Target.Emulator) {
		return machine.OS, machine.Arch
	}
	return runtime.GOOS, runtime.GOARCH
}
