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

type sim struct{ soc *socs.SoC }

func (d *sim) Name() string { return socs.SimDriver }

func (d *sim) Devices(context.Context) ([]driver.Device, error) {
	var out []driver.Device
	for i := range d.soc.Processors {
		p := &d.soc.Processors[i]
		if p.Driver == socs.SimDriver {
			out = append(out, driver.Device{
				Select:      p.Name,
				Description: strings.TrimSpace(fmt.Sprintf("simulated %s of %s: %s", p.Kind, d.soc.Name, p.Description)),
				Cores:       slices.Clone(p.Cores),
			})
		}
	}
	return out, nil
}

// Open returns a processor whose clock starts at 0.
func (d *sim) Open(ctx context.Context, c driver.Config) (driver.Processor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fail := func(format string, args ...any) *diag.Diagnostic {
		return diag.New(diag.ClassInput, "open processor %q of driver %q: %w", c.Select, socs.SimDriver, fmt.Errorf(format, args...))
	}
	desc := d.soc.Processor(c.Select)
	if desc == nil || desc.Driver != socs.SimDriver || desc.Sim == nil {
		var names []string
		devices, _ := d.Devices(ctx)
		for _, x := range devices {
			names = append(names, x.Select)
		}
		return nil, fail("SoC %q has no such simulated processor", d.soc.Name).WithHint("it has %s", strings.Join(names, ", "))
	}
	p := &processor{name: c.Select, caps: capabilities(desc), desc: desc, noisy: true, counts: map[string]uint64{}}
	p.model, p.soc = model{desc: desc, memory: memory(d.soc)}, d.soc
	compute := true
	for _, key := range sortedKeys(c.Options) {
		value := c.Options[key]
		var err error
		switch key {
		case "compute":
			compute, err = strconv.ParseBool(value)
		case "noise":
			p.noisy, err = strconv.ParseBool(value)
		case "seed":
			p.seed, err = strconv.ParseUint(value, 10, 64)
		case "beside":
			p.model.company, err = company(d.soc, desc, value)
			p.beside = value
		default:
			return nil, fail("unknown option %q", key).WithHint("options: beside, compute, noise, seed")
		}
		if err != nil {
			return nil, fail("option %s=%q: %w", key, value, err)
		}
	}
	if compute {
		if err := p.openHost(ctx, slices.IndexFunc(d.soc.Processors, func(x socs.Processor) bool { return x.Name == c.Select })); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// openHost gives the processor one core of this machine to compute on.
func (p *processor) openHost(ctx context.Context, index int) error {
	h := host.New()
	devices, err := h.Devices(ctx)
	if err != nil {
		return err
	}
	var cores []string
	for _, d := range devices {
		if len(d.Cores) == 1 {
			cores = append(cores, d.Select)
		}
	}
	if len(cores) == 0 {
		return &driver.Unavailable{Driver: socs.SimDriver, Found: "no core to compute on"}
	}
	p.host, err = h.Open(ctx, driver.Config{Select: cores[index%len(cores)]})
	return err
}

// capabilities is what the SoC says, as far as packed layouts allow. Results come through the host, so that no artifact
// holds weights.
func capabilities(p *socs.Processor) *driver.Capabilities {
	c := &driver.Capabilities{Set: p.Set.Clone(), Virtual: true, Cores: slices.Clone(p.Cores)}
	c.Bakes, c.Memory = false, p.KernelMemory()
	c.Tile.N, c.Tile.K = socs.Round(max(p.Tile.N, 1), pack.TileN), socs.Round(max(p.Tile.K, 1), pack.BlockK)
	if len(c.Kinds) == 0 {
		c.Kinds = slices.Clone(op.Kinds)
	}
	c.Layouts = map[string]string{string(op.F32): op.RowsLayout, string(op.F16): op.RowsLayout, string(op.BF16): op.RowsLayout}
	maps.Copy(c.Layouts, p.Layouts)
	return c
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
