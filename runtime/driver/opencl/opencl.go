// Package opencl knows how to use devices of OpenCL as processors: GPUs of any vendor, and CPUs through an
// implementation for them.
//
// A device is selected by the numbers of its platform and of itself, "0.1", in the order of the platforms' names, or by
// its name. Calls are enqueued and execute in order (see driver.Asynchronous). Whether the device computes on the
// host's memory is found out by trying, once for each device: where it does not, operands are copied.
//
// Read opencl.go, listing.go and device.go for how a device is found and opened, load.go, build.go and operators.go for
// how a graph becomes launches of kernels, bind.go and run.go for a call, and processor.go for how its end is noticed.
package opencl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// Name is the driver's name in SoC files and plans.
const Name = "opencl"

// Options of a processor. VariantOption is followed by a family of kernels: the compiler puts only the variant of that
// name into its artifacts.
const (
	optLibrary    = "library"    // path of the OpenCL library
	optCompletion = "completion" // how the host notices that a call is done: "event", or "flag" in shared memory
	optMemory     = "memory"     // "own": copy operands although the device may share memory; default: what is probed
	optUnits      = "units"      // how many of the device's compute units, the last ones; default: all
	VariantOption = kernel.Option
)

// New returns the driver. The library is looked for when a processor is opened or devices are listed.
func New() driver.Driver { return opencl{} }

// opencl has no state but where binaries of programs come from: libraries and devices are shared by all processors of
// this process.
type opencl struct{ programs driver.Programs }

func (opencl) Name() string { return Name }

// Devices lists the devices of all platforms, sorted by the platforms' names. A library without devices is unavailable.
func (opencl) Devices(ctx context.Context) ([]driver.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	list, err := devices("")
	if err != nil {
		return nil, err
	}
	var out []driver.Device
	for _, found := range list.devices {
		out = append(out, driver.Device{Select: found.selector,
			Description: fmt.Sprintf("%s (%s)", found.Name, found.Platform.Name)})
	}
	return out, nil
}

// Library returns the one that is loaded where no option names another; its platforms take the place of providers.
func (opencl) Library(context.Context) (driver.Library, error) {
	list, err := devices("")
	if err != nil {
		return driver.Library{}, err
	}
	out := driver.Library{Name: "OpenCL", Path: list.path, Version: list.devices[0].Platform.Version}
	for _, found := range list.devices {
		name := found.Platform.Name + ", " + found.Platform.Version
		if !slices.Contains(out.Providers, name) {
			out.Providers = append(out.Providers, name)
		}
	}

	for _, skipped := range list.skipped {
		out.Skipped = append(out.Skipped, skipped.String())
	}
	return out, nil
}

// Open accepts the selectors of Devices, the name of a device, and "" for the first one.
func (o opencl) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	from, settings, err := find(ctx, config)
	if err != nil {
		return nil, err
	}
	settings.programs = o.programs
	fail := func(err error) (driver.Processor, error) {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "open processor %q of driver %q: %w", config.Select,
			Name, err)
	}
	var proc *processor
	shared, err := share(from.Device)
	if err != nil {
		return fail(err)
	}
	if err := settings.fit(&shared.features); err != nil {
		return fail(err)
	}
	err = inherit(func() error {
		proc, err = newProcessor(from.selector, shared, settings)
		return err
	})
	if err != nil {
		return fail(err)
	}
	if proc.cores, err = coresOf(from, settings.units); err != nil {
		return fail(errors.Join(err, proc.Close()))
	}
	return proc, nil
}

// find reads the options of a processor and finds its device.
func find(ctx context.Context, config driver.Config) (*found, settings, error) {
	if err := ctx.Err(); err != nil {
		return nil, settings{}, err
	}
	fail := func(err error, hint string, args ...any) error {
		return diag.New(diag.ClassOr(err, diag.ClassInput), "open processor %q of driver %q: %w", config.Select, Name,
			err).WithHint(hint, args...)
	}
	options, err := parseOptions(config.Options)
	if err != nil {
		return nil, options, fail(err, "options: %s, %s, %s, %s, %sFAMILY", optLibrary, optCompletion, optMemory,
			optUnits, VariantOption)
	}
	list, err := devices(options.library)
	if err != nil {
		return nil, options, err
	}
	from, err := list.find(config.Select)
	if err != nil {
		return nil, options, fail(err, "%s", list.names())
	}
	if options.units > 0 {
		if err := inherit(func() error {
			from.Device, err = part(from.Device, options.units)
			return err
		}); err != nil {
			return nil, options, fail(err, "leave out option %q to use all compute units", optUnits)
		}
	}
	return from, options, nil
}
