package socs

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Bounds that no real machine exceeds; they keep sums and loops finite on hostile files.
const (
	maxProcessors = 64
	maxCores      = 4096
	maxValue      = 1e9     // of any rate or time in its unit
	maxBytes      = 1 << 50 // 1 PiB
	maxTile       = 1 << 16
)

// SourceKinds are the words a source text starts with, followed by a colon.
var SourceKinds = []string{"paper", "vendor", "measured", "derived", "assumed"}

// Validate reports everything that makes no sense, as a diag.List sorted by data path.
func (s *SoC) Validate() error {
	v := &validator{}
	v.soc(s)
	v.list.Sort()
	return v.list.Err()
}

type validator struct{ list diag.List }

func (v *validator) add(path, format string, args ...any) {
	v.list = append(v.list, diag.New(diag.ClassInput, format, args...).At("%s", path).WithCode("soc.value"))
}

func (v *validator) number(path string, x float64) {
	if math.IsNaN(x) || x < 0 || x > maxValue {
		v.add(path, "%v, want a number in 0..%g", x, float64(maxValue))
	}
}

func (v *validator) bytes(path string, n int64) {
	if n < 0 || n > maxBytes {
		v.add(path, "%d bytes, want 0..%d", n, int64(maxBytes))
	}
}

func (v *validator) name(path, s string) {
	if s == "" || len(s) > 64 {
		v.add(path, "name %q, want 1..64 characters", s)
		return
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == ':' || r == '_') {
			v.add(path, "name %q, want lower case letters, digits and -:_", s)
			return
		}
	}
}

func (v *validator) soc(s *SoC) {
	if s.Schema != Schema {
		v.add("schema", "schema %q, want %q", s.Schema, Schema)
	}
	v.name("name", s.Name)
	if s.Inherit != "" {
		v.add("inherit", "%q is not resolved", s.Inherit)
	}
	if len(s.Processors) == 0 || len(s.Processors) > maxProcessors {
		v.add("processors", "%d processors, want 1..%d", len(s.Processors), maxProcessors)
		return
	}
	seen := map[string]bool{}
	for i := range s.Processors {
		p := &s.Processors[i]
		path := "processors." + p.Name
		v.name(path+".name", p.Name)
		if seen[p.Name] {
			v.add(path, "processor %q is described twice", p.Name)
		}
		seen[p.Name] = true
		v.processor(path, p)
	}
	known := func(path, name string) {
		if !seen[name] {
			v.add(path, "processor %q does not exist, want one of %s", name, strings.Join(names(s), ", "))
		}
	}
	if s.Control == "" {
		v.add("control", "no processor owns control steps, want one of %s", strings.Join(names(s), ", "))
	} else {
		known("control", s.Control)
	}
	v.cpu(s.CPU)
	domains := map[string]bool{}
	for _, d := range s.Memory {
		path := "memory." + d.Name
		v.name(path+".name", d.Name)
		if domains[d.Name] {
			v.add(path, "memory domain %q is described twice", d.Name)
		}
		domains[d.Name] = true
		v.bytes(path+".bytes", d.Bytes)
		for _, p := range d.Processors {
			known(path+".processors", p)
		}
	}
	links := map[[2]string]bool{}
	for _, l := range s.Links {
		path := linkPath(l)
		known(path+".from", l.From)
		known(path+".to", l.To)
		if l.From == l.To {
			v.add(path, "processor %q is linked to itself", l.From)
		}
		if links[[2]string{l.From, l.To}] {
			v.add(path, "link from %q to %q is described twice", l.From, l.To)
		}
		links[[2]string{l.From, l.To}] = true
		v.number(path+".handover_us", l.HandoverUS)
		v.number(path+".copy_gbps", l.CopyGBps)
		v.number(path+".copy_launch_us", l.CopyLaunchUS)
	}
	sets := map[string]bool{}
	for _, j := range s.Joint {
		path := jointPath(j)
		for _, p := range j.Processors {
			known(path+".processors", p)
		}
		if len(j.Processors) < 2 {
			v.add(path, "joint bandwidth of %d processors, want at least 2", len(j.Processors))
		}
		if sets[path] {
			v.add(path, "joint bandwidth is described twice")
		}
		sets[path] = true
		v.number(path+".bandwidth_gbps", j.BandwidthGBps)
		if j.BandwidthGBps == 0 {
			v.add(path+".bandwidth_gbps", "0, want more")
		}
		if err := concurrent(s, j.Processors); err != nil && allKnown(seen, j.Processors) {
			v.add(path, "%v", err)
		}
	}
	v.sources(s)
}

func (v *validator) cpu(c *CPU) {
	if c == nil {
		return
	}
	if c.Cores < 0 || c.Cores > maxCores {
		v.add("cpu.cores", "%d cores, want 0..%d", c.Cores, maxCores)
	}
	seen := map[string]bool{}
	for _, k := range c.Caches {
		path := "cpu.caches." + k.Name
		v.name(path+".name", k.Name)
		if seen[k.Name] {
			v.add(path, "cache %q is described twice", k.Name)
		}
		seen[k.Name] = true
		if k.Level < 1 || k.Level > 8 {
			v.add(path+".level", "%d, want 1..8", k.Level)
		}
		v.bytes(path+".bytes", k.Bytes)
		v.cores(path+".cores", k.Cores)
	}
}

func (v *validator) cores(path string, cores []int) {
	seen := map[int]bool{}
	for _, c := range cores {
		if c < 0 || c >= maxCores {
			v.add(path, "core %d, want 0..%d", c, maxCores-1)
		}
		if seen[c] {
			v.add(path, "core %d is listed twice", c)
		}
		seen[c] = true
	}
}

func (v *validator) processor(path string, p *Processor) {
	switch p.Kind {
	case KindCPU, KindGPU, KindNPU:
	default:
		v.add(path+".kind", "kind %q, want cpu, gpu or npu", p.Kind)
	}
	if p.Driver == "" {
		v.add(path+".driver", "no driver")
	}
	if p.Kind == KindCPU && p.Driver != SimDriver && len(p.Cores) == 0 {
		v.add(path+".cores", "a cpu processor occupies cores, got none")
	}
	v.cores(path+".cores", p.Cores)
	for _, t := range sortedKeys(p.PeakGops) {
		if op.Type(t).Bytes() == 0 {
			v.add(path+".peak_gops."+t, "unknown element type %q", t)
		}
		v.number(path+".peak_gops."+t, p.PeakGops[t])
	}
	v.number(path+".bandwidth_gbps", p.BandwidthGBps)
	v.number(path+".launch_us", p.LaunchUS)
	v.number(path+".compile_ms", p.CompileMS)
	v.number(path+".power_w", p.PowerW)
	v.tile(path+".tile", p.Tile)
	kinds := map[op.Kind]bool{}
	for _, k := range p.Kinds {
		if !contains(op.Kinds, k) {
			v.add(path+".kinds", "unknown operator %q", k)
		}
		if kinds[k] {
			v.add(path+".kinds", "operator %q is listed twice", k)
		}
		kinds[k] = true
	}
	if len(p.Schemes) == 0 && p.Executes(op.MatMul) {
		v.add(path+".schemes", "it executes matmuls in no scheme")
	}
	for _, s := range p.Schemes {
		if _, err := op.ParseScheme(string(s)); err != nil {
			v.add(path+".schemes", "%v", err)
			continue
		}
		if p.Layouts[s.Weight()] == "" {
			v.add(path+".layouts", "no layout for weights %q, which scheme %q needs", s.Weight(), s)
		}
	}
	for _, t := range p.KV {
		if t != op.F32 && t != op.F16 {
			v.add(path+".kv", "cache type %q, want f32 or f16", t)
		}
	}
	if len(p.KV) == 0 && p.Executes(op.Attention) {
		v.add(path+".kv", "it executes attention on no cache type")
	}
	if p.StaticShapes && p.DynamicRows {
		v.add(path+".dynamic_rows", "static_shapes and dynamic_rows exclude each other")
	}
	v.bytes(path+".graph_bytes", p.GraphBytes)
	v.bytes(path+".address_bytes", p.AddressBytes)
	if p.MaxGraphs < 0 {
		v.add(path+".max_graphs", "%d, want 0 or more", p.MaxGraphs)
	}
	switch p.WeightBytes {
	case "", WeightsShared, WeightsPerGraph:
	default:
		v.add(path+".weight_bytes", "%q, want %s or %s", p.WeightBytes, WeightsShared, WeightsPerGraph)
	}
	if p.Driver == SimDriver && p.Sim == nil {
		v.add(path+".sim", "driver %q needs a sim block", SimDriver)
	}
	if p.Driver == SimDriver && p.Select != p.Name {
		v.add(path+".select", "%q, driver %q selects processors by name, want %q", p.Select, SimDriver, p.Name)
	}
	if p.Sim != nil {
		v.sim(path+".sim", p)
	}
}

func (v *validator) tile(path string, t Tile) {
	for _, d := range []struct {
		name string
		n    int
	}{{"m", t.M}, {"k", t.K}, {"n", t.N}} {
		if d.n < 0 || d.n > maxTile {
			v.add(path+"."+d.name, "%d, want 0..%d", d.n, maxTile)
		}
	}
}

func (v *validator) sim(path string, p *Processor) {
	s := p.Sim
	for _, k := range p.Schemes {
		r, ok := s.Schemes[k]
		if !ok {
			v.add(path+".schemes", "no entry for scheme %q", k)
			continue
		}
		at := path + ".schemes." + string(k)
		v.number(at+".peak_gops", r.PeakGops)
		if r.PeakGops == 0 {
			v.add(at+".peak_gops", "0, want more")
		}
		if math.IsNaN(r.WeightBits) || r.WeightBits < 0 || r.WeightBits > 64 {
			v.add(at+".weight_bits", "%v, want 0..64", r.WeightBits)
		}
		v.number(at+".setup_us", r.SetupUS)
		v.tile(at+".step", r.Step)
		if r.LongK != 0 && !(r.LongK >= 1 && r.LongK <= 1e3) {
			v.add(at+".long_k", "%v, want a factor in 1..1000", r.LongK)
		}
		if r.LongKFrom < 0 {
			v.add(at+".long_k_from", "%d, want 0 or more", r.LongKFrom)
		}
	}
	for _, k := range sortedKeys(s.Schemes) {
		if !contains(p.Schemes, k) {
			v.add(path+".schemes."+string(k), "scheme %q is not among the processor's schemes", k)
		}
	}
	v.number(path+".other_gops", s.OtherGops)
	if s.OtherGops == 0 {
		v.add(path+".other_gops", "0, want more")
	}
	if p.BandwidthGBps == 0 {
		v.add(strings.TrimSuffix(path, ".sim")+".bandwidth_gbps", "0, a simulated processor needs a bandwidth")
	}
	if math.IsNaN(s.NoiseCV) || s.NoiseCV < 0 || s.NoiseCV > 0.5 {
		v.add(path+".noise_cv", "%v, want 0..0.5", s.NoiseCV)
	}
	if len(s.Infeasible) > 1024 {
		v.add(path+".infeasible", "%d ranges, want at most 1024", len(s.Infeasible))
	}
}

func (v *validator) sources(s *SoC) {
	values := valuePaths(s)
	for _, path := range sortedKeys(s.Sources) {
		if !covers(values, path) {
			v.add("sources."+path, "no value at path %q", path)
		}
		v.source("sources."+path, s.Sources[path])
	}
	for i, p := range s.Points {
		path := fmt.Sprintf("points.%d", i)
		if s.Processor(p.Processor) == nil {
			v.add(path+".processor", "processor %q does not exist, want one of %s", p.Processor, strings.Join(names(s), ", "))
		}
		if err := p.Op().Validate(); err != nil {
			v.add(path, "%v", err)
		}
		v.number(path+".latency_us", p.LatencyUS)
		v.source(path+".source", p.Source)
	}
	seen := map[string]bool{}
	for _, f := range s.Facts {
		path := "facts." + f.Name
		v.name(path+".name", f.Name)
		if seen[f.Name] {
			v.add(path, "fact %q is stated twice", f.Name)
		}
		seen[f.Name] = true
		if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) {
			v.add(path+".value", "%v, want a finite number", f.Value)
		}
		v.source(path+".source", f.Source)
	}
}

func (v *validator) source(path, text string) {
	if kind, place, ok := strings.Cut(text, ": "); !ok || strings.TrimSpace(place) == "" || !contains(SourceKinds, kind) {
		v.add(path, "source %q, want one of %s, a colon and the place", text, strings.Join(SourceKinds, ", "))
	}
}

func concurrent(s *SoC, list []string) error {
	for i, a := range list {
		p := s.Processor(a)
		if p == nil {
			return diag.New(diag.ClassInput, "processor %q does not exist", a).WithHint("SoC %q has %s", s.Name, strings.Join(names(s), ", "))
		}
		for _, b := range list[:i] {
			if a == b {
				return diag.New(diag.ClassInput, "processor %q is named twice", a)
			}
			for _, core := range s.Processor(b).Cores {
				if contains(p.Cores, core) {
					return diag.New(diag.ClassInput, "processors %q and %q share core %d and never run concurrently", b, a, core)
				}
			}
		}
	}
	return nil
}

func allKnown(seen map[string]bool, list []string) bool {
	for _, n := range list {
		if !seen[n] {
			return false
		}
	}
	return true
}

func names(s *SoC) []string {
	out := make([]string, len(s.Processors))
	for i := range s.Processors {
		out[i] = s.Processors[i].Name
	}
	return out
}

func linkPath(l Link) string { return fmt.Sprintf("links.%s>%s", l.From, l.To) }

func jointPath(j Joint) string {
	set := append([]string(nil), j.Processors...)
	sort.Strings(set)
	return "joint." + strings.Join(set, "+")
}

func contains[T comparable](list []T, x T) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

func sortedKeys[K ~string, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}
