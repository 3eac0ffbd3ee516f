package measure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// ProbeOptions are the flags of hetc probe.
type ProbeOptions struct {
	Output, Name string
	Force        bool     // replace a file that is there
	Drivers      []string // besides host
	Kernels      string   // set that the host's processors use; "": the best of those that hetc chooses by itself
}

// Probe describes this machine as a SoC file. Without Force a file that describes this kind of machine is kept, and any
// other file is an error.
func Probe(ctx context.Context, ui *cli.Streams, flags *ProbeOptions) error {
	if err := socs.CheckName(flags.Name); err != nil {
		return diag.New(diag.ClassUsage, "--name: %w", err)
	}
	if err := wholefile.Writable(flags.Output); err != nil {
		return err
	}
	there, err := flags.described()
	if err != nil {
		return err
	}
	if there {
		return cli.Kept(ui, flags.Output, "it describes this machine; --force probes again")
	}

	options, unused, err := flags.options(ctx, ui)
	if err != nil {
		return err
	}
	soc, err := profiler.Probe(ctx, host.New(), options)
	if err != nil {
		return err
	}
	// Probing takes seconds, in which another probe may have written the file.
	if there, err = flags.described(); err != nil {
		return err
	}
	if there {
		return cli.Kept(ui, flags.Output, "another probe wrote it meanwhile; --force probes again")
	}
	if err := socs.Write(flags.Output, soc); err != nil {
		return err
	}

	ui.Printf("%s: %s; measured:\n", flags.Output, soc.Description)
	showProcessors(ui, soc)
	for _, name := range unused {
		ui.Printf("driver %s is usable here too: --driver %s describes its processors\n", name, name)
	}
	if flags.Kernels == "" {
		for _, name := range host.UntimedKernels() {
			ui.Printf("kernels %s are usable here too, and were never timed: hetc bench kernels --kernels %s times "+
				"them, --kernels %s describes the processors with them\n", name, name, name)
		}
	}
	return ui.Result(soc)
}

// described reports whether the file that is there describes this kind of machine, so that probing leaves it alone.
// What else is there must not be replaced, and is an error. With Force nothing is looked at.
func (o *ProbeOptions) described() (bool, error) {
	if _, err := os.Stat(o.Output); o.Force || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	old, err := socs.Open(o.Output)
	if err != nil {
		return false, diag.New(diag.ClassInput, "probe: %q is there, and no SoC file: %w", o.Output, err).
			WithHint("write elsewhere, or replace it with --force")
	}
	if old.Fingerprint != host.Fingerprint() {
		return false, diag.New(diag.ClassInput, "probe: %q describes another machine", o.Output).
			WithHint("write elsewhere, or replace it with --force")
	}
	return true, nil
}

// options says what to probe, and with which drivers. unused are the names of drivers that work here and were not
// asked for.
func (o *ProbeOptions) options(
	ctx context.Context, ui *cli.Streams,
) (out profiler.ProbeOptions, unused []string, err error) {
	usable, err := otherDrivers(ctx, o.Drivers)
	if err != nil {
		return out, nil, err
	}
	out = profiler.ProbeOptions{Name: o.Name, Fingerprint: host.Fingerprint(), Compilers: map[string]driver.Compiler{}}
	for _, drv := range usable {
		if !slices.Contains(o.Drivers, drv.Name()) {
			unused = append(unused, drv.Name())
			continue
		}
		out.Others = append(out.Others, drv)
		warnSkipped(ctx, ui, drv)
	}
	if o.Kernels != "" {
		if err := host.CheckKernels(o.Kernels); err != nil {
			return out, nil, err
		}
		out.Options = map[string]string{"kernels": o.Kernels}
	}
	for _, compiler := range bindings.Compilers(nil) {
		out.Compilers[compiler.Name()] = compiler
	}
	if ui.Terminal() {
		out.Note = ui.Notef
	}
	return out, unused, nil
}

// warnSkipped warns of the parts of a driver's library that fail, whose devices the SoC file therefore lacks.
func warnSkipped(ctx context.Context, ui *cli.Streams, drv driver.Driver) {
	described, ok := drv.(driver.Described)
	if !ok {
		return
	}
	library, err := described.Library(ctx)
	if err != nil {
		return // it was opened a moment ago: probing says what is wrong
	}
	for _, skipped := range library.Skipped {
		ui.Warnf("driver %s: skipped %s", drv.Name(), skipped)
	}
}

// showProcessors prints what was probed of each processor and of those that work together.
func showProcessors(ui *cli.Streams, soc *socs.SoC) {
	peak := func(gops float64) string {
		if gops == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", gops)
	}
	var rows [][]string
	for _, proc := range soc.Processors {
		rows = append(rows, []string{
			proc.Name, proc.Kind, fmt.Sprint(proc.Cores), peak(proc.PeakGops["i8"]), peak(proc.PeakGops["f32"]),
			fmt.Sprintf("%.1f", proc.BandwidthGBps),
		})
	}
	ui.Table([]string{"processor", "kind", "cores", ">int8 Gop/s", ">f32 Gop/s", ">read GB/s"}, rows)
	for _, joint := range soc.Joint {
		ui.Printf("%s together: %.1f GB/s\n", strings.Join(joint.Processors, " + "), joint.BandwidthGBps)
	}
}

// otherDrivers returns the drivers besides host that work here. A driver that was asked for must be
// among them.
func otherDrivers(ctx context.Context, asked []string) (out []driver.Driver, err error) {
	var names []string
	for _, drv := range all.Drivers() {
		names = append(names, drv.Name())
		if drv.Name() == host.Name {
			continue
		}
		if err := opens(ctx, drv); err == nil {
			out = append(out, drv)
		} else if slices.Contains(asked, drv.Name()) {
			return nil, err
		}
	}
	for _, name := range asked {
		if name == host.Name || !slices.Contains(names, name) {
			return nil, diag.New(diag.ClassUsage, "--driver %q: want a driver besides host", name).
				WithHint("this program has %s", strings.Join(names, ", "))
		}
	}
	return out, nil
}

// opens returns why a driver's first device cannot be opened; a library that is installed may still
// not work on this machine.
func opens(ctx context.Context, d driver.Driver) error {
	devices, err := d.Devices(ctx)
	if err != nil || len(devices) == 0 {
		return err
	}
	if _, ok := d.(driver.Surveyor); !ok && len(devices[0].Cores) == 0 {
		return diag.New(diag.ClassInput, "probe: driver %q offers no cores of this CPU: %s", d.Name(),
			devices[0].Description).
			WithHint("probing describes cores and GPUs. An NPU comes with the SoC file of its catalog entry (hetc socs " +
				"list); another processor is added to a SoC file by hand (docs/soc.md); an emulator is neither")
	}
	proc, err := d.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		return err
	}
	return proc.Close()
}
