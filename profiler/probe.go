// Package profiler knows how a machine is measured: what processors it has, which operators on
// which shapes are worth timing for a model, and how to time them so that the numbers can be
// trusted.
//
// Requests makes the list, Run works through it on drivers and appends to a record. Probe
// describes this machine as a SoC.
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
	Others      []driver.Driver               // whose processors on the same cores are described as well
	Note        func(format string, a ...any) // told what is being measured; may be nil

	memory int64         // tests: bytes to stream
	window time.Duration // tests: of one bandwidth sample
}

const (
	probeWindow  = 15 * time.Millisecond
	probeSamples = 31
	peakWindow   = 5 * time.Millisecond
	peakSamples  = 3 // a round
	peakRounds   = 9
	syncSamples  = 21
	syncLoops    = 2000
)

// Probe describes this machine as the driver d offers it: cores, caches, memory, features, the peak rates of
// each processor's kernels, the bandwidth of each processor alone and of processors together, and what handing a
// flag from one to the other costs. It takes a few seconds, in which the machine should do nothing else.
func Probe(ctx context.Context, d driver.Driver, o ProbeOptions) (*socs.SoC, error) {
	devices, err := d.Devices(ctx)
	if err != nil {
		return nil, err
	}
	var cores []int
	for _, dev := range devices {
		if len(dev.Cores) == 1 {
			cores = append(cores, dev.Cores[0])
		}
	}
	slices.Sort(cores)
	if len(cores) == 0 {
		return nil, diag.New(diag.ClassUnavailable, "probe: driver %q offers no CPU core", d.Name())
	}
	m := readMachine("/", cores)
	s := &socs.SoC{
		Schema: socs.Schema, Name: o.Name, Fingerprint: o.Fingerprint, OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPU:     &socs.CPU{Model: m.model, Cores: len(cores), Features: m.features, Caches: m.caches},
		Sources: map[string]string{},
	}
	if s.Name == "" {
		s.Name = "host"
	}
	s.Description = strings.TrimSpace(fmt.Sprintf("%s, %d cores", m.model, len(cores)))
	var bounds []driver.Bounds // of the processors
	for _, sel := range selections(&m) {
		p, b, err := describe(ctx, d, sel, o.Options)
		if err != nil {
			return nil, err
		}
		s.Processors, bounds = append(s.Processors, p), append(bounds, b)
	}
	for _, other := range o.Others {
		for _, sel := range selections(&m) {
			p, b, err := describe(ctx, other, sel, nil)
			if err != nil {
				return nil, err
			}
			s.Processors, bounds = append(s.Processors, p), append(bounds, b)
		}
	}
	for i := range s.Processors {
		if p := &s.Processors[i]; p.Memory != nil {
			s.Sources["processors."+p.Name+".memory"] = "measured: told by driver " + p.Driver
		}
	}
	s.Control = s.Processors[0].Name
	if m.memoryBytes > 0 {
		s.Memory = []socs.Domain{{Name: "ram", Bytes: m.memoryBytes, Processors: processorNames(s)}}
		s.Sources["memory"] = "measured: the operating system"
	}
	if err := measurePeaks(ctx, s, bounds, o); err != nil {
		return nil, err
	}
	if err := measureBandwidth(ctx, s, bounds[0].Stream, o); err != nil {
		return nil, err
	}
	if err := measureLinks(ctx, s, o); err != nil {
		return nil, err
	}
	if s.Fingerprint != "" && len(m.caches) > 0 {
		s.Sources["cpu"] = "measured: the operating system"
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("BUG: probed SoC is not valid: %w", err)
	}
	return s, nil
}

func (o *ProbeOptions) note(format string, a ...any) {
	if o.Note != nil {
		o.Note(format, a...)
	}
}

// selections chooses the processors to describe, each as a list of cores: every single core and all
// together on small machines; on larger ones the first core, each cluster of like cores or else
// each half, and all together. All of them would be too many to plan with.
func selections(m *machine) [][]int {
	n := len(m.cores)
	var out [][]int
	add := func(cores []int) {
		if len(cores) > 0 && !slices.ContainsFunc(out, func(x []int) bool { return slices.Equal(x, cores) }) {
			out = append(out, cores)
		}
	}
	if n <= 4 {
		for _, c := range m.cores {
			add([]int{c})
		}
		add(m.cores)
		return out
	}
	add(m.cores[:1])
	clusters := [][]int{}
	for i, c := range m.cores {
		if i > 0 && m.capacity[c] == m.capacity[m.cores[i-1]] {
			last := len(clusters) - 1
			clusters[last] = append(clusters[last], c)
			continue
		}
		clusters = append(clusters, []int{c})
	}
	const tooMany = 6
	if len(clusters) == 1 || len(clusters) > tooMany {
		clusters = [][]int{m.cores[:n/2], m.cores[n/2:]}
	}
	for _, c := range clusters {
		add(c)
	}
	add(m.cores)
	return out
}

// selector is how the driver is asked for consecutive cores: "2", "0-3".
func selector(cores []int) string {
	if len(cores) == 1 {
		return fmt.Sprint(cores[0])
	}
	return fmt.Sprintf("%d-%d", cores[0], cores[len(cores)-1])
}

// describe opens a processor to ask what it can do.
func describe(ctx context.Context, d driver.Driver, cores []int, options map[string]string) (socs.Processor, driver.Bounds, error) {
	sel, bounds := selector(cores), driver.Bounds{}
	p, err := d.Open(ctx, driver.Config{Select: sel, Options: options})
	if err != nil {
		return socs.Processor{}, bounds, err
	}
	c := p.Capabilities()
	if b, ok := p.(driver.Bounded); ok {
		bounds = b.Bounds()
	}
	if err := p.Close(); err != nil {
		return socs.Processor{}, bounds, err
	}
	out := socs.Processor{
		Name: d.Name() + ":" + sel, Kind: socs.KindCPU, Driver: d.Name(), Select: sel, Options: options, Cores: slices.Clone(c.Cores),
		Set: c.Offered(), WeightBytes: socs.WeightsShared,
	}
	return out, bounds, nil
}

func processorNames(s *socs.SoC) []string {
	out := make([]string, len(s.Processors))
	for i := range s.Processors {
		out[i] = s.Processors[i].Name
	}
	return out
}

// measurePeaks measures what the processors' kernels could reach at most, one after the other in every round, so
// that all meet the same moments of a machine whose speed changes.
func measurePeaks(ctx context.Context, s *socs.SoC, bounds []driver.Bounds, o ProbeOptions) error {
	window := o.window
	if window == 0 {
		window = peakWindow
	}
	samples := map[string]map[op.Type][]float64{}
	for round := range peakRounds {
		for i := range s.Processors {
			p, b := &s.Processors[i], &bounds[i]
			for _, x := range []struct {
				t    op.Type
				peak func(int64) int64
			}{{op.I8, b.PeakI8}, {op.F32, b.PeakF32}} {
				if x.peak == nil {
					continue
				}
				if round == 0 {
					o.note("%s peak of cores %v (%s)", x.t, p.Cores, b.Kernels)
				}
				xs, err := rates(ctx, p.Cores, nil, peakSamples, window, computing(x.peak))
				if err != nil {
					return err
				}
				if samples[p.Name] == nil {
					samples[p.Name] = map[op.Type][]float64{}
				}
				samples[p.Name][x.t] = append(samples[p.Name][x.t], xs...)
			}
		}
	}
	for i := range s.Processors {
		p := &s.Processors[i]
		for t, xs := range samples[p.Name] {
			if p.PeakGops == nil {
				p.PeakGops = map[string]float64{}
			}
			p.PeakGops[string(t)] = round(stat.Median(xs), 3)
			s.Sources["processors."+p.Name+".peak_gops"] = fmt.Sprintf("measured: by hetc probe, multiply-adds of %s on registers alone", bounds[i].Kernels)
		}
	}
	return nil
}

func measureBandwidth(ctx context.Context, s *socs.SoC, read func([]byte) uint64, o ProbeOptions) error {
	if read == nil {
		read = sum
	}
	window := o.window
	if window == 0 {
		window = probeWindow
	}
	bytes := o.memory
	if bytes == 0 {
		bytes = streamBytes(s.LastCacheBytes())
	}
	memory, err := touched(bytes)
	if err != nil {
		return err
	}
	defer memory.Close()
	known := map[string]float64{} // by cores, which several processors may have
	measure := func(cores []int) (float64, error) {
		key := fmt.Sprint(cores)
		if x, ok := known[key]; ok {
			return x, nil
		}
		o.note("memory bandwidth of cores %v", cores)
		xs, err := rates(ctx, cores, nil, probeSamples, window, reading(memory.Bytes(), len(cores), read))
		if err != nil {
			return 0, err
		}
		known[key] = round(stat.Median(xs), 3)
		return known[key], nil
	}
	const source = "measured: by hetc probe, reading memory beyond the last cache"
	for i := range s.Processors {
		p := &s.Processors[i]
		if p.BandwidthGBps, err = measure(p.Cores); err != nil {
			return err
		}
		s.Sources["processors."+p.Name+".bandwidth_gbps"] = source
	}
	for _, pair := range concurrentPairs(s) {
		a, b := s.Processor(pair[0]), s.Processor(pair[1])
		together := slices.Sorted(slices.Values(slices.Concat(a.Cores, b.Cores)))
		j := socs.Joint{Processors: slices.Sorted(slices.Values(pair[:])), BandwidthGBps: 0}
		if j.BandwidthGBps, err = measure(together); err != nil {
			return err
		}
		s.Joint = append(s.Joint, j)
	}
	if len(s.Joint) > 0 {
		s.Sources["joint"] = source
	}
	return nil
}

// measureLinks times the hand-over of a flag between the first cores of processors that can run at the same time.
func measureLinks(ctx context.Context, s *socs.SoC, o ProbeOptions) error {
	known := map[[2]int]float64{} // by cores
	for _, pair := range concurrentPairs(s) {
		a, b := s.Processor(pair[0]), s.Processor(pair[1])
		between := [2]int{min(a.Cores[0], b.Cores[0]), max(a.Cores[0], b.Cores[0])}
		us, ok := known[between]
		if !ok {
			o.note("hand-over between %s and %s", a.Name, b.Name)
			_, xs, err := handover(ctx, a.Cores[0], b.Cores[0], syncSamples, syncLoops)
			if err != nil {
				return err
			}
			us = round(stat.Median(xs)/1e3, 4)
			known[between] = us
		}
		s.Links = append(s.Links, socs.Link{From: a.Name, To: b.Name, HandoverUS: us}, socs.Link{From: b.Name, To: a.Name, HandoverUS: us})
	}
	if len(s.Links) > 0 {
		s.Sources["links"] = "measured: by hetc probe, half of a flag's round trip"
	}
	return nil
}

// concurrentPairs lists the pairs of processors that share no core, in the order of the SoC.
func concurrentPairs(s *socs.SoC) (out [][2]string) {
	for i := range s.Processors {
		for j := i + 1; j < len(s.Processors); j++ {
			a, b := s.Processors[i].Name, s.Processors[j].Name
			if s.Concurrent(a, b) == nil {
				out = append(out, [2]string{a, b})
			}
		}
	}
	return out
}
