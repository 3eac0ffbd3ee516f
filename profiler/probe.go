// Package profiler knows how a machine is measured: what processors it has, which operators on
// which shapes are worth timing for a model, and how to time them so that the numbers can be
// trusted.
//
// There are three entry points: Probe (probe.go) describes this machine as a SoC, Requests (request.go) lists the
// measurements for a model, and Run (runner.go) measures the list and appends to a record.
//
// Run keeps several tasks in progress, each a Request. For a task, load.go compiles and loads the operator, operands.go
// holds the memory of its operands, and a source (sources.go) takes samples until the stopping rule is met
// (runner_judge.go, profiler/stat). All calls of a processor come from the thread of its lane (lane.go). A sentinel
// (sentinel.go) notices when the machine changes.
//
// Two further entry points measure no model: Kernels (kernels.go), for hetc bench kernels, compares products with the
// limits of the hardware, and a Stream (stream.go) tells how fast memory is at the moment.
package profiler

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// ProbeOptions controls Probe. The zero value suits a machine at rest.
type ProbeOptions struct {
	Name        string                        // of the SoC; default "host"
	Fingerprint string                        // of the kind of machine
	Options     map[string]string             // driver options of every processor
	Others      []driver.Driver               // whose processors are described as well
	Compilers   map[string]driver.Compiler    // by name of their driver: for devices, which are measured with operators
	Note        func(format string, a ...any) // told what is being measured; may be nil

	memory int64         // tests: bytes to stream
	window time.Duration // tests: of one bandwidth sample
}

// Windows and numbers of samples of the measurements of Probe.
const (
	probeWindow  = 15 * time.Millisecond
	probeSamples = 31
	peakWindow   = 5 * time.Millisecond
	peakSamples  = 3 // a round
	peakRounds   = 9
	syncSamples  = 21
	syncLoops    = 2000
)

// Probe describes this machine as a driver offers it: cores, caches, memory, features, the peak
// rates of each processor's kernels, the bandwidth of processors alone and in pairs, and the cost
// of handing a flag from one to the other. It takes a few seconds, in which the machine should do
// nothing else.
//
// It first describes processors made of cores, one for each driver and selection of cores, and then the devices of
// other drivers. After that it measures, the cores first.
func Probe(ctx context.Context, from driver.Driver, options ProbeOptions) (*socs.SoC, error) {
	cores, err := coresOf(ctx, from)
	if err != nil {
		return nil, err
	}
	defer raiseThreads(len(cores))()
	machine := readMachine("/", cores)
	soc := newSoC(&machine, &options)
	drivers := append([]driver.Driver{from}, options.Others...)
	bounds, surveyors, err := describeCores(ctx, soc, &machine, drivers, &options)
	if err != nil {
		return nil, err
	}
	onCores := len(soc.Processors)
	prober := &prober{soc: soc, options: &options, completions: map[string]map[string]map[string]string{}}
	for _, surveyor := range surveyors {
		if err := prober.addDevices(ctx, surveyor); err != nil {
			return nil, err
		}
	}
	for i := range soc.Processors {
		if proc := &soc.Processors[i]; proc.Memory != nil {
			soc.Sources["processors."+proc.Name+".memory"] = "measured: told by driver " + proc.Driver
		}
	}
	soc.Control = soc.Processors[0].Name
	if machine.memoryBytes > 0 {
		soc.Memory = memoryDomains(soc, machine.memoryBytes)
		soc.Sources["memory"] = "measured: the operating system"
	}
	if err := measureCores(ctx, soc, onCores, bounds, options); err != nil {
		return nil, err
	}
	if prober.read = bounds[0].Stream; prober.read == nil {
		prober.read = readMemory
	}
	if err := prober.measureDevices(ctx, onCores, drivers); err != nil {
		return nil, err
	}
	if soc.Fingerprint != "" && len(machine.caches) > 0 {
		soc.Sources["cpu"] = "measured: the operating system"
	}
	if err := soc.Validate(); err != nil {
		return nil, fmt.Errorf("BUG: probed SoC is not valid: %w", err)
	}
	return soc, nil
}

// coresOf returns the CPU cores that a driver offers one by one, ascending.
func coresOf(ctx context.Context, from driver.Driver) (cores []int, err error) {
	devices, err := from.Devices(ctx)
	if err != nil {
		return nil, err
	}
	for _, device := range devices {
		if len(device.Cores) == 1 {
			cores = append(cores, device.Cores[0])
		}
	}
	slices.Sort(cores)
	if len(cores) == 0 {
		return nil, diag.New(diag.ClassUnavailable, "probe: driver %q offers no CPU core", from.Name())
	}
	return cores, nil
}

// newSoC returns a SoC without processors, with what the operating system says of the machine.
func newSoC(machine *machine, options *ProbeOptions) *socs.SoC {
	soc := &socs.SoC{
		Schema: socs.Schema, Name: options.Name, Fingerprint: options.Fingerprint, OS: runtime.GOOS,
		Arch: runtime.GOARCH, Sources: map[string]string{},
		CPU: &socs.CPU{Model: machine.model, Cores: len(machine.cores), Features: machine.features,
			Caches: machine.caches},
	}
	if soc.Name == "" {
		soc.Name = "host"
	}
	soc.Description = strings.TrimSpace(fmt.Sprintf("%s, %d cores", machine.model, len(machine.cores)))
	return soc
}

// describeCores adds a processor for each selection of cores and each driver, with the bounds of its kernels. It
// returns the drivers that survey devices instead, whose processors come behind these. Options are for the first driver
// only.
func describeCores(ctx context.Context, soc *socs.SoC, machine *machine, drivers []driver.Driver,
	options *ProbeOptions) (bounds []driver.Bounds, surveyors []driver.Surveyor, err error) {
	for i, from := range drivers {
		if surveyor, ok := from.(driver.Surveyor); ok {
			surveyors = append(surveyors, surveyor)
			continue
		}
		configured := options.Options
		if i > 0 {
			configured = nil
		}
		for _, selected := range selections(machine) {
			proc, bound, err := describe(ctx, from, selected, configured)
			if err != nil {
				return nil, nil, err
			}
			proc.LikeCores = machine.alike(proc.Cores)
			soc.Processors, bounds = append(soc.Processors, proc), append(bounds, bound)
		}
	}
	return bounds, surveyors, nil
}

// measureCores measures the first processors of a SoC, which are made of cores, as if there were no others.
func measureCores(ctx context.Context, soc *socs.SoC, onCores int, bounds []driver.Bounds, options ProbeOptions) error {
	all := soc.Processors
	soc.Processors = all[:onCores:onCores]
	defer func() { soc.Processors = all }()
	if err := measurePeaks(ctx, soc, bounds, options); err != nil {
		return err
	}
	if err := measureBandwidth(ctx, soc, bounds[0].Stream, options); err != nil {
		return err
	}
	return measureLinks(ctx, soc, options)
}

// note reports progress, if the caller wants it.
func (o *ProbeOptions) note(format string, a ...any) {
	if o.Note != nil {
		o.Note(format, a...)
	}
}

// selections chooses the processors to describe, each a list of cores. On up to four cores these are every single core,
// and all together. On more cores they are the first one, each cluster of like cores (or each half, without clusters),
// and all together. Every subset would be too many to plan with.
func selections(m *machine) [][]int {
	cores := len(m.cores)
	var out [][]int
	add := func(cores []int) {
		if len(cores) > 0 && !slices.ContainsFunc(out, func(list []int) bool { return slices.Equal(list, cores) }) {
			out = append(out, cores)
		}
	}
	if cores <= 4 {
		for _, core := range m.cores {
			add([]int{core})
		}
		add(m.cores)
		return out
	}
	add(m.cores[:1])
	// clusters are runs of cores with equal capacity
	clusters := [][]int{}
	for i, core := range m.cores {
		if i > 0 && m.capacity[core] == m.capacity[m.cores[i-1]] {
			last := len(clusters) - 1
			clusters[last] = append(clusters[last], core)
			continue
		}
		clusters = append(clusters, []int{core})
	}
	const tooMany = 6
	if len(clusters) == 1 || len(clusters) > tooMany {
		clusters = [][]int{m.cores[:cores/2], m.cores[cores/2:]}
	}
	for _, core := range clusters {
		add(core)
	}
	add(m.cores)
	return out
}

// selector returns how the driver is asked for consecutive cores: "2", "0-3".
func selector(cores []int) string {
	if len(cores) == 1 {
		return fmt.Sprint(cores[0])
	}
	return fmt.Sprintf("%d-%d", cores[0], cores[len(cores)-1])
}

// describe opens a processor to ask what it can do and what bounds it.
func describe(
	ctx context.Context, from driver.Driver, cores []int, options map[string]string,
) (socs.Processor, driver.Bounds, error) {
	sel, bounds := selector(cores), driver.Bounds{}
	opened, err := from.Open(ctx, driver.Config{Select: sel, Options: options})
	if err != nil {
		return socs.Processor{}, bounds, err
	}
	can := opened.Capabilities()
	if bounded, ok := opened.(driver.Bounded); ok {
		bounds = bounded.Bounds()
	}
	if err := opened.Close(); err != nil {
		return socs.Processor{}, bounds, err
	}
	out := socs.Processor{
		Name: from.Name() + ":" + sel, Kind: socs.KindCPU, Driver: from.Name(), Select: sel, Options: options,
		Cores: slices.Clone(can.Cores),
		Set:   can.Offered(), WeightBytes: socs.WeightsShared,
	}
	return out, bounds, nil
}

// memoryDomains returns the machine's memory, which processors share unless they have their own.
func memoryDomains(soc *socs.SoC, bytes int64) []socs.Domain {
	shared := socs.Domain{Name: "ram", Bytes: bytes}
	var out []socs.Domain
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		if !proc.OwnMemory || proc.AddressBytes == 0 {
			shared.Processors = append(shared.Processors, proc.Name)
			continue
		}
		out = append(out, socs.Domain{Name: proc.Name + "-memory", Bytes: proc.AddressBytes,
			Processors: []string{proc.Name}})
	}
	return append([]socs.Domain{shared}, out...)
}

// processorNames returns the names that messages list.
func processorNames(soc *socs.SoC) []string {
	out := make([]string, len(soc.Processors))
	for i := range soc.Processors {
		out[i] = soc.Processors[i].Name
	}
	return out
}

// measurePeaks measures the largest rates of the processors' kernels. Every round visits all
// processors in turn, so that all meet the same moments of a machine whose speed changes.
func measurePeaks(ctx context.Context, soc *socs.SoC, bounds []driver.Bounds, options ProbeOptions) error {
	window := options.window
	if window == 0 {
		window = peakWindow
	}
	samples := map[string]map[op.Type][]float64{}
	for round := range peakRounds {
		for i := range soc.Processors {
			proc, bound := &soc.Processors[i], &bounds[i]
			for _, kind := range []struct {
				t    op.Type
				peak func(int64) int64
			}{{op.I8, bound.PeakI8}, {op.F32, bound.PeakF32}} {
				if kind.peak == nil {
					continue
				}
				if round == 0 {
					options.note("%s peak of cores %v (%s)", kind.t, proc.Cores, bound.Kernels)
				}
				readings, err := sampleRates(ctx, proc.Cores, nil, peakSamples, window, computing(kind.peak))
				if err != nil {
					return err
				}
				if samples[proc.Name] == nil {
					samples[proc.Name] = map[op.Type][]float64{}
				}
				samples[proc.Name][kind.t] = append(samples[proc.Name][kind.t], readings...)
			}
		}
	}
	// the median over all rounds
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		for numbers, readings := range samples[proc.Name] {
			if proc.PeakGops == nil {
				proc.PeakGops = map[string]float64{}
			}
			proc.PeakGops[string(numbers)] = round(stat.Median(readings), 3)
			soc.Sources["processors."+proc.Name+".peak_gops"] = fmt.Sprintf("measured: by hetc probe, multiply-adds "+
				"of %s on registers alone", bounds[i].Kernels)
		}
	}
	return nil
}

// measureBandwidth measures how fast each processor reads memory, and pairs of processors together.
func measureBandwidth(ctx context.Context, soc *socs.SoC, read func([]byte) uint64, options ProbeOptions) error {
	if read == nil {
		read = readMemory
	}
	window := options.window
	if window == 0 {
		window = probeWindow
	}
	// Beyond the last cache, so that every read goes to memory.
	bytes := options.memory
	if bytes == 0 {
		bytes = streamBytes(soc.LastCacheBytes())
	}
	memory, err := allocTouched(bytes)
	if err != nil {
		return err
	}
	defer memory.Close()
	known := map[string]float64{} // by cores, which several processors may have
	measure := func(cores []int) (float64, error) {
		key := fmt.Sprint(cores)
		if rate, ok := known[key]; ok {
			return rate, nil
		}
		options.note("memory bandwidth of cores %v", cores)
		xs, err := sampleRates(ctx, cores, nil, probeSamples, window, reading(memory.Bytes(), len(cores), read))
		if err != nil {
			return 0, err
		}
		known[key] = round(stat.Median(xs), 3)
		return known[key], nil
	}
	const source = "measured: by hetc probe, reading memory beyond the last cache"
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		if proc.BandwidthGBps, err = measure(proc.Cores); err != nil {
			return err
		}
		soc.Sources["processors."+proc.Name+".bandwidth_gbps"] = source
	}
	for _, pair := range concurrentPairs(soc) {
		a, b := soc.Processor(pair[0]), soc.Processor(pair[1])
		// Pairs are measured as one group of cores: what they reach together is their joint bandwidth.
		together := slices.Sorted(slices.Values(slices.Concat(a.Cores, b.Cores)))
		j := socs.Joint{Processors: slices.Sorted(slices.Values(pair[:])), BandwidthGBps: 0}
		if j.BandwidthGBps, err = measure(together); err != nil {
			return err
		}
		soc.Joint = append(soc.Joint, j)
	}
	if len(soc.Joint) > 0 {
		soc.Sources["joint"] = source
	}
	return nil
}

// measureLinks times the hand-over of a flag between the first cores of processors that can run at the same time.
func measureLinks(ctx context.Context, soc *socs.SoC, options ProbeOptions) error {
	known := map[[2]int]float64{} // by cores
	for _, pair := range concurrentPairs(soc) {
		from, to := soc.Processor(pair[0]), soc.Processor(pair[1])
		between := [2]int{min(from.Cores[0], to.Cores[0]), max(from.Cores[0], to.Cores[0])}
		us, ok := known[between]
		if !ok {
			options.note("hand-over between %s and %s", from.Name, to.Name)
			ns, err := Handover(ctx, from.Cores[0], to.Cores[0])
			if err != nil {
				return err
			}
			us = round(ns/1e3, 4)
			known[between] = us
		}
		soc.Links = append(soc.Links, socs.Link{From: from.Name, To: to.Name, HandoverUS: us},
			socs.Link{From: to.Name, To: from.Name, HandoverUS: us})
	}
	if len(soc.Links) > 0 {
		soc.Sources["links"] = "measured: by hetc probe, half of a flag's round trip"
	}
	return nil
}

// concurrentPairs lists the pairs of processors that share no core, in the order of the SoC.
func concurrentPairs(soc *socs.SoC) (out [][2]string) {
	for i := range soc.Processors {
		for j := i + 1; j < len(soc.Processors); j++ {
			first, second := soc.Processors[i].Name, soc.Processors[j].Name
			if soc.Concurrent(first, second) == nil {
				out = append(out, [2]string{first, second})
			}
		}
	}
	return out
}
