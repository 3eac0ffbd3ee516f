// Package socs knows what a SoC is: its processors, memory domains, links and limits, and
// where each of those values comes from. The catalog of SoCs from published measurements is
// embedded.
//
// A SoC is data. Nothing here opens a device; whether a plan is legal on a SoC and what a
// driver can do are checked elsewhere against the same values.
package socs

import (
	"maps"
	"slices"
	"strconv"

	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
)

// Schema identifies the SoC format. A change that an older reader would misunderstand gets a new number.
const Schema = "hetc.soc/1"

// SimDriver is the driver of every catalog SoC: times come from a virtual clock.
const SimDriver = "sim"

// ImportedDriver is the driver of processors whose times were measured elsewhere and imported: nothing executes on
// them.
const ImportedDriver = "imported"

// SoC is one machine: processors that share memory, and how work is handed between them.
type SoC struct {
	Schema      string `json:"schema" yaml:"schema"`
	Name        string `json:"name" yaml:"name"` // lower case letters, digits, '-', ':', '_'
	Description string `json:"description,omitempty" yaml:"description,omitempty"`
	// Inherit names a catalog SoC or a file (relative to this one) whose values apply where this
	// file has none. Processors, domains and caches merge by name, links by (from, to), joint
	// bandwidths by their processors; other lists are replaced. Empty after loading.
	Inherit     string `json:"inherit,omitempty" yaml:"inherit,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty" yaml:"fingerprint,omitempty"` // of the probed machine
	OS          string `json:"os,omitempty" yaml:"os,omitempty"`                   // as GOOS
	Arch        string `json:"arch,omitempty" yaml:"arch,omitempty"`               // as GOARCH

	Control string `json:"control" yaml:"control"` // processor that owns control steps
	CPU     *CPU   `json:"cpu,omitempty" yaml:"cpu,omitempty"`

	Processors []Processor `json:"processors" yaml:"processors"`
	Memory     []Domain    `json:"memory,omitempty" yaml:"memory,omitempty"`
	Links      []Link      `json:"links,omitempty" yaml:"links,omitempty"`
	Joint      []Joint     `json:"joint,omitempty" yaml:"joint,omitempty"`

	// Points are published latencies of matmuls, which the simulation is compared with.
	Points []point `json:"points,omitempty" yaml:"points,omitempty"`
	// Facts are published numbers about this SoC that no other field holds.
	Facts []fact `json:"facts,omitempty" yaml:"facts,omitempty"`

	// Sources says where values come from: a data path ("processors.npu.launch_us") and a text that
	// starts with its kind ("paper: HeteroInfer sec. 3.2"; see SourceKinds). A path covers everything
	// below it that has no entry of its own.
	Sources map[string]string `json:"sources,omitempty" yaml:"sources,omitempty"`
}

// CPU describes the host processor cores of a probed machine.
type CPU struct {
	Model    string   `json:"model,omitempty" yaml:"model,omitempty"`
	Cores    int      `json:"cores,omitempty" yaml:"cores,omitempty"`
	Features []string `json:"features,omitempty" yaml:"features,omitempty,flow"` // instruction sets, ascending
	Caches   []Cache  `json:"caches,omitempty" yaml:"caches,omitempty"`
}

// Cache is one cache of the host cores.
type Cache struct {
	Name  string `json:"name" yaml:"name"` // "l1d", "l2", "l3"
	Level int    `json:"level" yaml:"level"`
	Bytes int64  `json:"bytes" yaml:"bytes"` // of one instance
	// cores that share one instance, of the first instance
	Cores []int `json:"cores,omitempty" yaml:"cores,omitempty,flow"`
}

// Processor kinds.
const (
	KindCPU = "cpu"
	KindGPU = "gpu"
	KindNPU = "npu"
)

// How the packed weights of several graphs over one weight count (see Processor.WeightBytes).
const (
	WeightsShared   = "shared"    // graphs of different M read one copy
	WeightsPerGraph = "per_graph" // every graph owns its copy
)

// Processor is one CPU, GPU or NPU as one driver exposes it, in one configuration.
type Processor struct {
	Name        string            `json:"name" yaml:"name"` // "npu", "host:0-1"
	Kind        string            `json:"kind" yaml:"kind"` // cpu, gpu, npu
	Description string            `json:"description,omitempty" yaml:"description,omitempty"`
	Driver      string            `json:"driver" yaml:"driver"`
	Select      string            `json:"select,omitempty" yaml:"select,omitempty"`
	Options     map[string]string `json:"options,omitempty" yaml:"options,omitempty"`
	// CPU cores it occupies while running
	Cores []int `json:"cores,omitempty" yaml:"cores,omitempty,flow"`
	// its cores are equal, by what the operating system says of them; see GroupOf
	LikeCores bool `json:"like_cores,omitempty" yaml:"like_cores,omitempty"`
	// how the end of its calls is noticed, of one that executes them by itself
	Wait capability.Waiting `json:"wait,omitempty" yaml:"wait,omitempty"`

	// 1e9 op/s (2 per multiply-add) by element type: "f32", "f16", "i8"
	PeakGops map[string]float64 `json:"peak_gops,omitempty" yaml:"peak_gops,omitempty"`
	// 1e9 byte/s it reads alone
	BandwidthGBps float64 `json:"bandwidth_gbps,omitempty" yaml:"bandwidth_gbps,omitempty"`
	// of one graph, before any work
	LaunchUS float64 `json:"launch_us,omitempty" yaml:"launch_us,omitempty"`
	// SubmitUS is how long the thread that gives it its calls takes for each, of one that executes them by itself
	SubmitUS float64 `json:"submit_us,omitempty" yaml:"submit_us,omitempty"`
	// to build or open one graph on the device
	CompileMS float64 `json:"compile_ms,omitempty" yaml:"compile_ms,omitempty"`
	PowerW    float64 `json:"power_w,omitempty" yaml:"power_w,omitempty"` // while busy

	capability.Set `yaml:",inline"`

	// parallel submissions do not run concurrently
	SingleQueue bool `json:"single_queue,omitempty" yaml:"single_queue,omitempty"`

	GraphBytes int64 `json:"graph_bytes,omitempty" yaml:"graph_bytes,omitempty"` // limit of one graph, 0: none
	// limit of all its graphs and buffers, 0: none
	AddressBytes int64 `json:"address_bytes,omitempty" yaml:"address_bytes,omitempty"`
	// graphs loaded at once, 0: no limit
	MaxGraphs   int    `json:"max_graphs,omitempty" yaml:"max_graphs,omitempty"`
	WeightBytes string `json:"weight_bytes,omitempty" yaml:"weight_bytes,omitempty"` // shared (default) or per_graph

	Sim *simulation `json:"sim,omitempty" yaml:"sim,omitempty"` // required by driver "sim"

	// Target is how the device itself executes what a plan gives to this processor. Without it the entry describes,
	// or simulates, a processor that nothing can be emitted for.
	Target *Target `json:"target,omitempty" yaml:"target,omitempty"`
}

// Target is a processor as a device of this SoC has it: the driver there, and the compiler that makes its graphs
// without it.
type Target struct {
	Driver string `json:"driver" yaml:"driver"` // on the device: "qnn", "host"
	// of its graphs, ahead of time; "": the driver needs none
	Compiler string `json:"compiler,omitempty" yaml:"compiler,omitempty"`
	Select   string `json:"select,omitempty" yaml:"select,omitempty"` // what the driver opens there

	// the vendor's number of the SoC; it decides the instruction set
	SoCModel int `json:"soc_model,omitempty" yaml:"soc_model,omitempty"`
	HTPArch  int `json:"htp_arch,omitempty" yaml:"htp_arch,omitempty"` // instruction set of the NPU: 75 for V75
	VTCMMB   int `json:"vtcm_mb,omitempty" yaml:"vtcm_mb,omitempty"`   // MiB of its tightly coupled memory
	Opt      int `json:"opt,omitempty" yaml:"opt,omitempty"`           // effort of the compiler, 1..3; 0: its default

	// operators it executes there, among the processor's; empty: all of those
	Kinds   []op.Kind   `json:"kinds,omitempty" yaml:"kinds,omitempty,flow"`
	Schemes []op.Scheme `json:"schemes,omitempty" yaml:"schemes,omitempty,flow"` // likewise of its matmuls
	// Forms are those of the processor's that its compiler makes; without them it makes the default only.
	Forms map[op.Scheme][]op.Form `json:"forms,omitempty" yaml:"forms,omitempty"`
}

// Options returns what its compiler is given, as text by name: soc_model, htp_arch, vtcm_mb and opt, those that are
// there.
func (t *Target) Options() map[string]string {
	out := map[string]string{}
	for name, value := range map[string]int{"soc_model": t.SoCModel, "htp_arch": t.HTPArch, "vtcm_mb": t.VTCMMB,
		"opt": t.Opt} {
		if value != 0 {
			out[name] = strconv.Itoa(value)
		}
	}
	return out
}

// Domain is a memory that some processors address.
type Domain struct {
	Name       string   `json:"name" yaml:"name"`
	Bytes      int64    `json:"bytes" yaml:"bytes"`
	Processors []string `json:"processors" yaml:"processors,flow"`
}

// Link is what it costs to continue on processor To what processor From has finished.
type Link struct {
	From string `json:"from" yaml:"from"`
	To   string `json:"to" yaml:"to"`
	// flag or event, no data moved
	HandoverUS float64 `json:"handover_us" yaml:"handover_us"`
	// 1e9 byte/s when data must move; 0: memory is shared, no copy needed
	CopyGBps float64 `json:"copy_gbps,omitempty" yaml:"copy_gbps,omitempty"`
	// of one copy, before any byte
	CopyLaunchUS float64 `json:"copy_launch_us,omitempty" yaml:"copy_launch_us,omitempty"`
}

// Joint is the memory bandwidth a set of processors reaches together.
type Joint struct {
	Processors    []string `json:"processors" yaml:"processors,flow"` // ascending
	BandwidthGBps float64  `json:"bandwidth_gbps" yaml:"bandwidth_gbps"`
}

// point is the published latency of one matmul [M,K]x[K,N] on a processor.
type point struct {
	Processor string    `json:"processor" yaml:"processor"`
	Scheme    op.Scheme `json:"scheme" yaml:"scheme"`
	M         int       `json:"m" yaml:"m"`
	K         int       `json:"k" yaml:"k"`
	N         int       `json:"n" yaml:"n"`
	Form      op.Form   `json:"form,omitempty" yaml:"form,omitempty"`
	LatencyUS float64   `json:"latency_us" yaml:"latency_us"`
	Source    string    `json:"source" yaml:"source"` // as the texts of SoC.Sources
}

// Op returns the matmul the point was measured for.
func (p *point) Op() op.Op {
	return op.Op{Kind: op.MatMul, M: p.M, K: p.K, N: p.N, Scheme: p.Scheme, Form: p.Form}
}

// fact is one published number.
type fact struct {
	Name   string  `json:"name" yaml:"name"` // ends in its unit: "clfinish_us"
	Value  float64 `json:"value" yaml:"value"`
	Source string  `json:"source" yaml:"source"`
}

// AddFact adds a number that describes the SoC and that nothing is computed from.
func (s *SoC) AddFact(name string, value float64, source string) {
	s.Facts = append(s.Facts, fact{Name: name, Value: value, Source: source})
}

// Processor returns the processor of that name, nil when there is none.
func (s *SoC) Processor(name string) *Processor {
	for i := range s.Processors {
		if s.Processors[i].Name == name {
			return &s.Processors[i]
		}
	}
	return nil
}

// Link returns the hand-over from one processor to another; false when the SoC does not state it.
// Staying on one processor costs nothing.
func (s *SoC) Link(from, to string) (Link, bool) {
	if from == to {
		return Link{From: from, To: to}, true
	}
	for _, link := range s.Links {
		if link.From == from && link.To == to {
			return link, true
		}
	}
	return Link{}, false
}

// JointGBps returns the bandwidth a set of processors reaches together (1e9 byte/s); false when the SoC
// does not state it. One processor's is its bandwidth alone. Order does not matter.
func (s *SoC) JointGBps(names ...string) (float64, bool) {
	want := slices.Sorted(slices.Values(names))
	if len(want) == 1 {
		proc := s.Processor(want[0])
		if proc == nil || proc.BandwidthGBps == 0 {
			return 0, false
		}
		return proc.BandwidthGBps, true
	}
	for _, joint := range s.Joint {
		if slices.Equal(slices.Sorted(slices.Values(joint.Processors)), want) {
			return joint.BandwidthGBps, true
		}
	}
	return 0, false
}

// Concurrent reports whether the processors may run at the same time: they exist, are distinct and
// share no core. The error names what stands against it.
func (s *SoC) Concurrent(names ...string) error { return concurrent(s, names) }

// alikeRates is how far apart the peak rates of like cores may be measured, where nothing else says that they are alike.
const alikeRates = 1.25

// GroupOf names the processor of like cores that two processors are parts of, the smallest one; "" where there is none.
// It has the same driver and configuration, and all of their cores. They are like if it says so. Else all three
// processors have nearly the same peak rate per core, where rates are stated (simulated processors must state them). On a
// virtual machine rates that are measured one after the other may differ by the work of neighbours alone.
func (s *SoC) GroupOf(first, second string) string {
	var found *Processor
	one, other := s.Processor(first), s.Processor(second)
	if one == nil || other == nil || one == other {
		return ""
	}
	for i := range s.Processors {
		group := &s.Processors[i]
		if partOf(one, group) && partOf(other, group) && (found == nil || len(group.Cores) < len(found.Cores)) {
			found = group
		}
	}
	if found == nil {
		return ""
	}
	return found.Name
}

// partOf reports whether a processor is some of the cores of a group.
func partOf(part, group *Processor) bool {
	if part.Kind != group.Kind || part.Driver != group.Driver || !maps.Equal(part.Options, group.Options) {
		return false
	}
	if len(part.Cores) == 0 || len(part.Cores) >= len(group.Cores) {
		return false
	}
	for _, core := range part.Cores {
		if !slices.Contains(group.Cores, core) {
			return false
		}
	}
	if group.LikeCores {
		return true
	}
	if part.Driver == SimDriver && (len(part.PeakGops) == 0 || len(group.PeakGops) == 0) {
		return false
	}
	for kind, peak := range part.PeakGops {
		all := group.PeakGops[kind]
		ratio := peak * float64(len(group.Cores)) / (all * float64(len(part.Cores)))
		if all > 0 && (ratio > alikeRates || ratio < 1/alikeRates) {
			return false
		}
	}
	return true
}

// Simulated reports whether any processor's times come from a virtual clock.
func (s *SoC) Simulated() bool {
	for i := range s.Processors {
		if s.Processors[i].Driver == SimDriver {
			return true
		}
	}
	return false
}

// Imported reports whether any processor is known from imported times only.
func (s *SoC) Imported() bool {
	for i := range s.Processors {
		if s.Processors[i].Driver == ImportedDriver {
			return true
		}
	}
	return false
}

// LastCacheBytes returns the size of the largest cache of the host cores, 0 when unknown.
func (s *SoC) LastCacheBytes() int64 {
	var largest int64
	if s.CPU != nil {
		for _, cache := range s.CPU.Caches {
			largest = max(largest, cache.Bytes)
		}
	}
	return largest
}
