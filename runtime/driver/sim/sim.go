// Package sim knows how a SoC description behaves as a driver: times come from the description and a
// virtual clock, results from the host driver. Everything it reports is simulated and says so.
package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// New returns the driver of every simulated processor of s, which must have been validated. A
// processor is selected by its name. Options:
//
//	compute=false   Run computes nothing and accepts nil weights and bindings (profiling); default true
//	beside=gpu,npu  these processors stream from memory all the time; gpu=12.5 limits it to 12.5e9 byte/s
//	noise=false     every sample is the exact time; default true
//	seed=N          another sequence of noise; default 0
func New(s *socs.SoC) driver.Driver { return &sim{soc: s} }

// sim is the driver of one described SoC.
type sim struct{ soc *socs.SoC }

func (d *sim) Name() string { return socs.SimDriver }

// Devices returns the processors of the SoC file whose driver is the simulation.
func (d *sim) Devices(context.Context) ([]driver.Device, error) {
	var out []driver.Device
	for i := range d.soc.Processors {
		proc := &d.soc.Processors[i]
		if proc.Driver == socs.SimDriver {
			out = append(out, driver.Device{
				Select: proc.Name,
				Description: strings.TrimSpace(fmt.Sprintf("simulated %s of %s: %s", proc.Kind, d.soc.Name,
					proc.Description)),
				Cores: slices.Clone(proc.Cores),
			})
		}
	}
	return out, nil
}

// Open returns a processor whose clock starts at 0.
func (d *sim) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fail := func(format string, args ...any) *diag.Diagnostic {
		return diag.New(diag.ClassInput, "open processor %q of driver %q: %w", config.Select, socs.SimDriver,
			fmt.Errorf(format, args...))
	}
	desc := d.soc.Processor(config.Select)
	if desc == nil || desc.Driver != socs.SimDriver || desc.Sim == nil {
		var names []string
		devices, _ := d.Devices(ctx)
		for _, device := range devices {
			names = append(names, device.Select)
		}
		return nil, fail("SoC %q has no such simulated processor", d.soc.Name).WithHint("it has %s",
			strings.Join(names, ", "))
	}
	proc := &processor{name: config.Select, caps: capabilities(desc), desc: desc, noisy: true,
		drawn: map[string]*sequence{}}
	proc.model, proc.soc = model{desc: desc, memory: memory(d.soc)}, d.soc
	compute := true
	// Sorted, so that of two wrong options always the same one is told.
	for _, key := range slices.Sorted(maps.Keys(config.Options)) {
		value := config.Options[key]
		var err error
		switch key {
		case "compute":
			compute, err = strconv.ParseBool(value)
		case "noise":
			proc.noisy, err = strconv.ParseBool(value)
		case "seed":
			proc.seed, err = strconv.ParseUint(value, 10, 64)
		case "beside":
			proc.model.company, err = company(d.soc, desc, value)
			proc.beside = value
		default:
			return nil, fail("unknown option %q", key).WithHint("options: beside, compute, noise, seed")
		}
		if err != nil {
			return nil, fail("option %s=%q: %w", key, value, err)
		}
	}
	// Values are computed on this machine, and their time does not count; a processor that only tells times needs no
	// core.
	if compute {
		if err := proc.openHost(ctx, slices.IndexFunc(d.soc.Processors,
			func(x socs.Processor) bool { return x.Name == config.Select })); err != nil {
			return nil, err
		}
	}
	return proc, nil
}

// openHost opens one core of this machine to compute on; processors take the cores in turn.
func (p *processor) openHost(ctx context.Context, index int) error {
	hostDriver := host.New()
	devices, err := hostDriver.Devices(ctx)
	if err != nil {
		return err
	}
	var cores []string
	for _, device := range devices {
		if len(device.Cores) == 1 {
			cores = append(cores, device.Select)
		}
	}
	if len(cores) == 0 {
		return &driver.Unavailable{Driver: socs.SimDriver, Found: "no core to compute on"}
	}
	p.host, err = hostDriver.Open(ctx, driver.Config{Select: cores[index%len(cores)]})
	return err
}

// capabilities returns what the SoC says, as far as packed layouts allow. Results come from the host, so
// artifacts hold no weights.
func capabilities(p *socs.Processor) *driver.Capabilities {
	caps := &driver.Capabilities{Set: p.Set.Clone(), Virtual: true, Cores: slices.Clone(p.Cores)}
	caps.WeightsInArtifacts, caps.Memory = false, p.KernelMemory()
	caps.Tile.N, caps.Tile.K = op.RoundUp(max(p.Tile.N, 1), pack.TileN), op.RoundUp(max(p.Tile.K, 1), pack.BlockK)
	if len(caps.Kinds) == 0 {
		caps.Kinds = slices.Clone(op.Kinds)
	}
	caps.Layouts = map[string]string{string(op.F32): op.RowsLayout, string(op.F16): op.RowsLayout,
		string(op.BF16): op.RowsLayout}
	maps.Copy(caps.Layouts, p.Layouts)
	outliers := op.Op{Kind: op.OutlierMatMul, Scheme: op.A32W16}
	if caps.Supports(outliers) != nil { // rows of its weight are looked up, in a layout that the processor does not read
		caps.Kinds = slices.DeleteFunc(caps.Kinds, func(kind op.Kind) bool { return kind == op.OutlierMatMul })
	}
	return caps
}
