package profiler

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// deviceSamples is how many samples of an operator on a device are taken.
const deviceSamples = 15

// addDevices adds the devices of a driver that can be surveyed, by their own description.
func (p *prober) addDevices(ctx context.Context, from driver.Surveyor) error {
	devices, err := from.Devices(ctx)
	if err != nil {
		return err
	}
	for _, device := range devices {
		p.options.note("%s: %s", from.Name(), device.Description)
		parts, err := p.add(ctx, from, device, driver.Part{})
		if err != nil {
			return err
		}
		for _, part := range parts {
			if _, err := p.add(ctx, from, device, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// add adds a device, or a part of one, and returns the parts into which it can be divided.
func (p *prober) add(ctx context.Context, from driver.Surveyor, device driver.Device, part driver.Part) ([]driver.Part,
	error) {
	proc, parts, err := p.device(ctx, from, device, part)
	if err != nil {
		return nil, err
	}
	p.soc.Processors = append(p.soc.Processors, proc)
	return parts, nil
}

// prober adds devices to a SoC whose cores are described.
type prober struct {
	soc     *socs.SoC
	options *ProbeOptions
	read    func([]byte) uint64 // how cores read memory
	// of each device, ways in which its driver tells that a call has ended
	completions map[string]map[string]map[string]string
}

// device describes a device by what it and its driver report, and returns the parts into which it can be divided.
func (p *prober) device(ctx context.Context, from driver.Surveyor, device driver.Device, part driver.Part) (
	proc socs.Processor, parts []driver.Part, err error) {
	config := driver.Config{Select: device.Select, Options: part.Options}
	told, err := from.Survey(ctx, config)
	if err != nil {
		return proc, nil, err
	}
	opened, err := from.Open(ctx, config)
	if err != nil {
		return proc, nil, err
	}
	can := opened.Capabilities().Offered()
	if err := opened.Close(); err != nil {
		return proc, nil, err
	}
	name := from.Name() + ":" + strings.ReplaceAll(device.Select, ".", "_") // a name has no dots
	if part.Name != "" {
		name += "-" + part.Name
	}
	proc = socs.Processor{
		Name: name, Kind: told.Kind, Description: strings.TrimSpace(told.Name), Driver: from.Name(), Select: device.Select,
		Options: part.Options,
		Cores:   slices.Clone(told.Cores), Set: can, WeightBytes: socs.WeightsShared, GraphBytes: told.MaxBytes,
		AddressBytes: told.MemoryBytes, SingleQueue: true,
	}
	source := "measured: told by driver " + from.Name()
	at := "processors." + name
	for _, limit := range []struct {
		name  string
		value int64
	}{{"graph_bytes", proc.GraphBytes}, {"address_bytes", proc.AddressBytes}} {
		if limit.value > 0 {
			p.soc.Sources[at+"."+limit.name] = source
		}
	}
	for _, fact := range slices.Sorted(maps.Keys(told.Told)) {
		p.soc.AddFact(factPrefix(name)+fact, told.Told[fact], source)
	}
	p.completions[name] = told.Completions
	return proc, told.Parts, nil
}

// factPrefix begins the names of facts about a processor.
func factPrefix(proc string) string {
	return strings.NewReplacer(":", "_", ".", "_", "-", "_").Replace(proc) + "_"
}

// measureDevices measures the processors from first on.
func (p *prober) measureDevices(ctx context.Context, first int, drivers []driver.Driver) (err error) {
	if first == len(p.soc.Processors) {
		return nil
	}
	run := &runner{
		soc:     p.soc,
		options: Options{Drivers: map[string]driver.Driver{}, Compilers: p.options.Compilers, memory: p.options.memory},
		lanes:   map[string]*lane{}, rng: rand.New(rand.NewPCG(1, 4)), coldBytes: 1 << 20,
		stores: newStores(1)}
	for _, drv := range drivers {
		run.options.Drivers[drv.Name()] = drv
	}
	defer func() {
		if failed := run.close(ctx); err == nil {
			err = failed
		}
	}()
	for i := first; i < len(p.soc.Processors); i++ {
		if err := p.measureDevice(ctx, run, &p.soc.Processors[i]); err != nil {
			return err
		}
	}
	return nil
}

// deviceTimes are what a small and a large addition take in ns.
type deviceTimes struct{ small, large float64 }

// measureDevice measures launch, bandwidth alone and beside cores, copies and meetings of one device, and links it with
// every other processor. On a device with memory of its own it measures the same additions twice: with operands that
// stay there, and with operands that travel. The difference is what copying takes.
func (p *prober) measureDevice(ctx context.Context, run *runner, proc *socs.Processor) error {
	small, large := op.Op{Kind: op.Add, M: 1, N: 1}, streamOp(false)
	if p.options.memory > 0 {
		large.M = 16
	}
	p.options.note("launch and bandwidth of %s", proc.Name)
	staying, err := run.additions(ctx, proc.Name, small, large)
	if err != nil {
		return err
	}
	at := "processors." + proc.Name
	proc.LaunchUS = round(staying.small/1e3, 4)
	p.soc.Sources[at+".launch_us"] = "measured: by hetc probe, one more addition of two numbers while others are in flight"
	proc.BandwidthGBps = gbps(large.Bytes(), staying.large-staying.small)
	p.soc.Sources[at+".bandwidth_gbps"] = "measured: by hetc probe, adding large matrices"

	link, copied := socs.Link{}, ""
	met, err := p.measureMeetings(ctx, run, proc, staying.small)
	if err != nil {
		return err
	}
	if proc.OwnMemory {
		p.options.note("copies of %s", proc.Name)
		run.copyOperands = true
		travelling, err := run.additions(ctx, proc.Name, small, large)
		run.copyOperands = false
		if err != nil {
			return err
		}
		first := max(0, travelling.small-staying.small) // of two operands there and one back
		link.CopyLaunchUS = round(first/3e3, 4)
		link.CopyGBps = gbps(large.Bytes(), travelling.large-staying.large-first)
		copied = "; additions with and without copying their operands"
	}
	if err := p.linkDevice(ctx, run, proc, met, link, copied); err != nil {
		return err
	}
	return p.measureJoint(ctx, run, proc, large)
}

// linkDevice links a device with every processor that can work beside it. copies is a link with the prices of copies,
// and copied says how these were measured. Hand-overs are those of a relay with the other processor's first core;
// between two devices, and where a processor adds no vectors, they are those of a single call.
func (p *prober) linkDevice(ctx context.Context, run *runner, proc *socs.Processor, met *meeting, copies socs.Link,
	copied string) error {
	measured := map[int]handovers{} // by core
	for i := range p.soc.Processors {
		other := &p.soc.Processors[i]
		if other.Name == proc.Name || p.soc.Concurrent(proc.Name, other.Name) != nil {
			continue
		}
		took := handovers{there: met.submitNS, back: met.endNS}
		there, back := "submitting a call", "from the end of a call until its lane knows, "+met.way()
		if p.addsOnLane(run, other) {
			core := other.Cores[0]
			if _, known := measured[core]; !known {
				var err error
				p.options.note("hand-over between %s and %s", other.Name, proc.Name)
				if measured[core], err = p.relay(ctx, run, other, proc, met); err != nil {
					return err
				}
			}
			took = measured[core]
			there, back = "submitting a call after work on the other's core", "in turns with work on the other's core, "+
				met.way()
			if p.besideControl(other) {
				proc.SubmitUS = round(took.there/1e3, 4)
				p.soc.Sources["processors."+proc.Name+".submit_us"] = "measured: by hetc probe, " + there
			}
		}
		link := copies
		link.From, link.To, link.HandoverUS = other.Name, proc.Name, round(took.there/1e3, 4)
		p.link(link, "measured: by hetc probe, "+there+copied)
		link.From, link.To, link.HandoverUS = proc.Name, other.Name, round(took.back/1e3, 4)
		p.link(link, "measured: by hetc probe, "+back+copied)
	}
	return nil
}

// addsOnLane reports whether a processor can take turns with a device: it adds vectors on the thread of its lane.
func (p *prober) addsOnLane(run *runner, other *socs.Processor) bool {
	return len(other.Cores) > 0 && !other.SingleQueue && other.Executes(op.Add) &&
		run.options.Compilers[other.Driver] != nil &&
		run.options.Drivers[other.Driver] != nil
}

// link adds a link with its source.
func (p *prober) link(link socs.Link, source string) {
	p.soc.Links = append(p.soc.Links, link)
	p.soc.Sources[fmt.Sprintf("links.%s>%s", link.From, link.To)] = source
}

// gbps returns bytes in ns as GB/s.
func gbps(bytes int64, ns float64) float64 { return round(float64(bytes)/max(1, ns), 4) }

// additions measures a small and a large addition on a processor.
func (r *runner) additions(ctx context.Context, name string, small, large op.Op) (out deviceTimes, err error) {
	if out.small, err = r.median(ctx, &record.Measurement{Kind: record.Op, Proc: name, Op: &small}); err == nil {
		out.large, err = r.median(ctx, &record.Measurement{Kind: record.Op, Proc: name, Op: &large})
	}
	return out, err
}

// median returns the typical time of an operator in ns.
func (r *runner) median(ctx context.Context, what *record.Measurement) (float64, error) {
	from, err := r.openOp(ctx, what)
	if err != nil {
		return 0, err
	}
	defer from.close(ctx)
	var samples []float64
	for i := range deviceSamples + 2 {
		ns, err := from.sample(ctx, 1)
		if err != nil {
			return 0, err
		}
		if i >= 2 { // the first ones build programs
			samples = append(samples, ns)
		}
	}
	return stat.Median(samples), nil
}
