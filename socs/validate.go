package socs

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"unicode"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Bounds that no real machine exceeds; they keep sums, loops and messages finite on hostile files.
const (
	maxProcessors = 64
	maxCores      = 4096
	maxDomains    = 64
	maxJoint      = 1024
	maxRanges     = 1024
	maxName       = 64      // bytes
	maxText       = 4096    // bytes
	maxValue      = 1e9     // of any rate or time in its unit
	minSimRate    = 1e-3    // of what a simulated time is divided by, so that it fits 63 bits of nanoseconds
	maxBytes      = 1 << 50 // 1 PiB
	maxTile       = 1 << 16
	maxCount      = 1 << 20
	maxReported   = 20 // mistakes
)

// SourceKinds are the words a source text starts with, followed by a colon.
var SourceKinds = []string{"paper", "vendor", "measured", "derived", "assumed"}

// Validate reports what makes no sense, the first 20 mistakes as a diag.List sorted by data path.
func (s *SoC) Validate() error {
	v := &validator{}
	if v.names(s); len(v.list) == 0 { // paths and messages below hold names
		v.soc(s)
	}
	v.list.Sort()
	return v.list.Err()
}

type validator struct{ list diag.List }

func (v *validator) full() bool { return len(v.list) >= maxReported }

func (v *validator) add(path, format string, args ...any) {
	if !v.full() {
		v.list = append(v.list, diag.New(diag.ClassInput, format, args...).At("%s", path).WithCode("soc.value"))
	}
}

func (v *validator) number(path string, x float64) {
	if math.IsNaN(x) || x < 0 || x > maxValue {
		v.add(path, "%v, want a number in 0..%g", x, float64(maxValue))
	}
}

// rate checks what a simulated time is divided by.
func (v *validator) rate(path string, x float64) {
	if !(x >= minSimRate && x <= maxValue) {
		v.add(path, "%v, want a number in %g..%g", x, minSimRate, float64(maxValue))
	}
}

func (v *validator) whole(path string, n, most int) {
	if n < 0 || n > most {
		v.add(path, "%d, want 0..%d", n, most)
	}
}

func (v *validator) bytes(path string, n int64) {
	if n < 0 || n > maxBytes {
		v.add(path, "%d bytes, want 0..%d", n, int64(maxBytes))
	}
}

func (v *validator) few(path, what string, n, most int) bool {
	if n > most {
		v.add(path, "%d %s, want at most %d", n, what, most)
	}
	return n <= most
}

func (v *validator) name(path, s string) {
	ok := s != "" && len(s) <= maxName
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == ':' || c == '_'
	}
	if !ok {
		v.add(path, "name %q, want 1..%d lower case letters, digits and -:_", clip(s), maxName)
	}
}

// text checks what is shown as it is: a terminal obeys control characters.
func (v *validator) text(path, s string) {
	if len(s) > maxText {
		v.add(path, "%d bytes, want at most %d", len(s), maxText)
		return
	}
	for _, r := range s {
		if r != '\n' && !unicode.IsPrint(r) {
			v.add(path, "character %U, want a text that can be printed", r)
			return
		}
	}
}

// names checks every name of the SoC.
func (v *validator) names(s *SoC) {
	v.name("name", s.Name)
	for i := range s.Processors {
		v.name(fmt.Sprintf("processors.%d.name", i), s.Processors[i].Name)
	}
	for i := range s.Memory {
		v.name(fmt.Sprintf("memory.%d.name", i), s.Memory[i].Name)
	}
	for i := range s.Facts {
		v.name(fmt.Sprintf("facts.%d.name", i), s.Facts[i].Name)
	}
	if s.CPU != nil {
		for i := range s.CPU.Caches {
			v.name(fmt.Sprintf("cpu.caches.%d.name", i), s.CPU.Caches[i].Name)
		}
	}
}

func (v *validator) soc(s *SoC) {
	if s.Schema != Schema {
		v.add("schema", "schema %q, want %q", clip(s.Schema), Schema)
	}
	if s.Inherit != "" {
		v.add("inherit", "%q is not resolved", clip(s.Inherit))
	}
	v.text("description", s.Description)
	v.text("fingerprint", s.Fingerprint)
	v.text("os", s.OS)
	v.text("arch", s.Arch)
	if len(s.Processors) == 0 || len(s.Processors) > maxProcessors {
		v.add("processors", "%d processors, want 1..%d", len(s.Processors), maxProcessors)
		return
	}
	seen := map[string]bool{}
	for i := range s.Processors {
		p := &s.Processors[i]
		path := "processors." + p.Name
		if seen[p.Name] {
			v.add(path, "processor %q is described twice", p.Name)
		}
		seen[p.Name] = true
		v.processor(path, p)
	}
	all := strings.Join(names(s), ", ")
	known := func(path, name string) bool {
		if !seen[name] {
			v.add(path, "processor %q does not exist, want one of %s", clip(name), all)
		}
		return seen[name]
	}
	if s.Control == "" {
		v.add("control", "no processor owns control steps, want one of %s", all)
	} else {
		known("control", s.Control)
	}
	v.cpu(s.CPU)
	if !v.few("memory", "memory domains", len(s.Memory), maxDomains) || !v.few("joint", "joint bandwidths", len(s.Joint), maxJoint) {
		return
	}
	domains := map[string]bool{}
	for _, d := range s.Memory {
		path := "memory." + d.Name
		if domains[d.Name] {
			v.add(path, "memory domain %q is described twice", d.Name)
		}
		domains[d.Name] = true
		v.bytes(path+".bytes", d.Bytes)
		in := map[string]bool{}
		for _, p := range d.Processors {
			if known(path+".processors", p) && in[p] {
				v.add(path+".processors", "processor %q is named twice", p)
			}
			in[p] = true
		}
	}
	links := map[[2]string]bool{}
	for _, l := range s.Links {
		path := linkPath(Link{From: clip(l.From), To: clip(l.To)})
		if f, t := known(path+".from", l.From), known(path+".to", l.To); !f || !t {
			continue
		}
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
	v.joint(s, known)
	if !v.full() {
		v.sources(s)
	}
}

func (v *validator) joint(s *SoC, known func(path, name string) bool) {
	sets := map[string]bool{}
	for i, j := range s.Joint {
		at := fmt.Sprintf("joint.%d", i)
		if n := len(j.Processors); n < 2 || n > len(s.Processors) {
			v.add(at, "joint bandwidth of %d processors, want 2..%d of them", n, len(s.Processors))
			continue
		}
		ok := true
		for _, p := range j.Processors {
			ok = known(at+".processors", p) && ok
		}
		if !ok {
			continue
		}
		path := jointPath(j)
		if sets[path] {
			v.add(path, "joint bandwidth is described twice")
		}
		sets[path] = true
		v.number(path+".bandwidth_gbps", j.BandwidthGBps)
		if j.BandwidthGBps == 0 {
			v.add(path+".bandwidth_gbps", "0, want more")
		}
		if err := concurrent(s, j.Processors); err != nil {
			v.add(path, "%v", err)
		}
	}
}

func (v *validator) cpu(c *CPU) {
	if c == nil {
		return
	}
	v.text("cpu.model", c.Model)
	for _, f := range c.Features {
		v.text("cpu.features", f)
	}
	v.whole("cpu.cores", c.Cores, maxCores)
	seen := map[string]bool{}
	for _, k := range c.Caches {
		path := "cpu.caches." + k.Name
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
		v.add(path+".kind", "kind %q, want cpu, gpu or npu", clip(p.Kind))
	}
	if p.Driver == "" {
		v.add(path+".driver", "no driver")
	}
	v.text(path+".description", p.Description)
	v.text(path+".driver", p.Driver)
	v.text(path+".select", p.Select)
	for _, m := range []struct {
		key    string
		values map[string]string
	}{{"options", p.Options}, {"layouts", p.Layouts}} {
		for _, k := range sortedKeys(m.values) {
			v.text(path+"."+m.key, k)
			v.text(path+"."+m.key, m.values[k])
		}
	}
	if p.Kind == KindCPU && p.Driver != SimDriver && p.Driver != ImportedDriver && len(p.Cores) == 0 {
		v.add(path+".cores", "a cpu processor occupies cores, got none")
	}
	v.cores(path+".cores", p.Cores)
	for _, t := range sortedKeys(p.PeakGops) {
		if op.Type(t).Bytes() == 0 {
			v.add(path+".peak_gops", "unknown element type %q", clip(t))
			continue
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
			v.add(path+".kinds", "unknown operator %q", clip(string(k)))
			continue
		}
		if kinds[k] {
			v.add(path+".kinds", "operator %q is listed twice", k)
		}
		kinds[k] = true
	}
	if len(p.Schemes) == 0 && p.Executes(op.MatMul) {
		v.add(path+".schemes", "it executes matmuls in no scheme")
	}
	schemes := map[op.Scheme]bool{}
	for _, s := range p.Schemes {
		if _, err := op.ParseScheme(clip(string(s))); err != nil {
			v.add(path+".schemes", "%v", err)
			continue
		}
		if schemes[s] {
			v.add(path+".schemes", "scheme %q is listed twice", s)
		}
		schemes[s] = true
		if p.Layouts[s.Weight()] == "" {
			v.add(path+".layouts", "no layout for weights %q, which scheme %q needs", s.Weight(), s)
		}
	}
	for _, k := range sortedKeys(p.Forms) {
		at := path + ".forms"
		if !schemes[k] {
			v.add(at, "forms of scheme %q, which is not among the processor's schemes", clip(string(k)))
			continue
		}
		seen := map[op.Form]bool{}
		for _, f := range p.Forms[k] {
			switch {
			case !contains(op.FormClasses, f):
				v.add(at+"."+string(k), "form %q, want %q", clip(string(f)), op.FormClasses)
			case seen[f]:
				v.add(at+"."+string(k), "form %q is listed twice", f)
			case f == op.Conv && p.DynamicRows:
				v.add(at+"."+string(k), "form %q is compiled for a number of rows, and dynamic_rows says that calls may have fewer", f)
			}
			seen[f] = true
		}
	}
	types := map[op.Type]bool{}
	for _, t := range p.KV {
		if t != op.F32 && t != op.F16 {
			v.add(path+".kv", "cache type %q, want f32 or f16", clip(string(t)))
			continue
		}
		if types[t] {
			v.add(path+".kv", "cache type %q is listed twice", t)
		}
		types[t] = true
	}
	if len(p.KV) == 0 && p.Executes(op.Attention) {
		v.add(path+".kv", "it executes attention on no cache type")
	}
	if p.StaticShapes && p.DynamicRows {
		v.add(path+".dynamic_rows", "static_shapes and dynamic_rows exclude each other")
	}
	if p.Memory != nil {
		if err := p.Memory.Validate(); err != nil {
			v.add(path+".memory", "%v", err)
		}
	}
	v.bytes(path+".graph_bytes", p.GraphBytes)
	v.bytes(path+".address_bytes", p.AddressBytes)
	v.whole(path+".max_graphs", p.MaxGraphs, maxCount)
	switch p.WeightBytes {
	case "", WeightsShared, WeightsPerGraph:
	default:
		v.add(path+".weight_bytes", "%q, want %s or %s", clip(p.WeightBytes), WeightsShared, WeightsPerGraph)
	}
	if p.Driver == SimDriver && p.Sim == nil {
		v.add(path+".sim", "driver %q needs a sim block", SimDriver)
	}
	if p.Driver == SimDriver && p.Select != p.Name {
		v.add(path+".select", "%q, driver %q selects processors by name, want %q", clip(p.Select), SimDriver, p.Name)
	}
	if p.Sim != nil {
		v.sim(path+".sim", p)
	}
	if p.Target != nil {
		v.target(path+".target", p)
	}
}

// Bounds of target data.
const (
	maxSoCModel = 1 << 16
	maxHTPArch  = 1000
	maxVTCM     = 1 << 10 // MiB
	maxOpt      = 3
	qnnDriver   = "qnn"
)

func (v *validator) target(path string, p *Processor) {
	t := p.Target
	switch t.Driver {
	case "":
		v.add(path+".driver", "no driver")
	case SimDriver, ImportedDriver:
		v.add(path+".driver", "driver %q is no device's", t.Driver)
	}
	v.text(path+".driver", t.Driver)
	v.text(path+".compiler", t.Compiler)
	v.text(path+".select", t.Select)
	v.whole(path+".soc_model", t.SoCModel, maxSoCModel)
	v.whole(path+".htp_arch", t.HTPArch, maxHTPArch)
	v.whole(path+".vtcm_mb", t.VTCMMB, maxVTCM)
	v.whole(path+".opt", t.Opt, maxOpt)
	if t.Compiler == qnnDriver { // for an unknown SoC it compiles for its oldest, without a word
		if t.SoCModel == 0 {
			v.add(path+".soc_model", "compiler %q needs the vendor's number of the SoC", qnnDriver)
		}
		if t.VTCMMB == 0 {
			v.add(path+".vtcm_mb", "compiler %q needs the size of the NPU's own memory", qnnDriver)
		}
	}
	kinds := map[op.Kind]bool{}
	for _, k := range t.Kinds {
		switch {
		case !contains(op.Kinds, k):
			v.add(path+".kinds", "unknown operator %q", clip(string(k)))
		case !p.Executes(k):
			v.add(path+".kinds", "operator %q is not among the processor's kinds", k)
		case kinds[k]:
			v.add(path+".kinds", "operator %q is listed twice", k)
		}
		kinds[k] = true
	}
	schemes := map[op.Scheme]bool{}
	for _, s := range t.Schemes {
		switch {
		case !contains(p.Schemes, s):
			v.add(path+".schemes", "scheme %q is not among the processor's schemes", clip(string(s)))
		case schemes[s]:
			v.add(path+".schemes", "scheme %q is listed twice", s)
		}
		schemes[s] = true
	}
	for _, k := range sortedKeys(t.Forms) {
		if !contains(t.Schemes, k) && len(t.Schemes) > 0 {
			v.add(path+".forms", "scheme %q is not among the target's schemes", clip(string(k)))
		}
		for _, f := range t.Forms[k] {
			if f == "" || !p.HasForm(k, f) || f.Class() != f {
				v.add(path+".forms", "form %q of scheme %q is not among the processor's forms", clip(string(f)), clip(string(k)))
			}
		}
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
			v.add(path+".schemes", "no entry for scheme %q", clip(string(k)))
			continue
		}
		at := path + ".schemes." + string(k)
		v.rate(at+".peak_gops", r.PeakGops)
		if math.IsNaN(r.WeightBits) || r.WeightBits < 0 || r.WeightBits > 64 {
			v.add(at+".weight_bits", "%v, want 0..64", r.WeightBits)
		}
		v.number(at+".setup_us", r.SetupUS)
		v.tile(at+".step", r.Step)
		if r.LongK != 0 && !(r.LongK >= 1 && r.LongK <= 1e3) {
			v.add(at+".long_k", "%v, want a factor in 1..1000", r.LongK)
		}
		v.whole(at+".long_k_from", r.LongKFrom, math.MaxInt32)
		v.simForms(at+".forms", p.Forms[k], r.Forms)
	}
	for _, k := range sortedKeys(s.Schemes) {
		if !contains(p.Schemes, k) {
			v.add(path+".schemes", "scheme %q is not among the processor's schemes", clip(string(k)))
		}
	}
	v.rate(path+".other_gops", s.OtherGops)
	v.rate(strings.TrimSuffix(path, ".sim")+".bandwidth_gbps", p.BandwidthGBps)
	if math.IsNaN(s.NoiseCV) || s.NoiseCV < 0 || s.NoiseCV > 0.5 {
		v.add(path+".noise_cv", "%v, want 0..0.5", s.NoiseCV)
	}
	if v.few(path+".infeasible", "ranges", len(s.Infeasible), maxRanges) {
		for i, r := range s.Infeasible {
			for _, n := range []int{r.MinM, r.MaxM, r.MinK, r.MaxK, r.MinN, r.MaxN} {
				v.whole(fmt.Sprintf("%s.infeasible.%d", path, i), n, math.MaxInt32)
			}
		}
	}
}

// simForms wants a price for each form of a scheme that the processor lists. A file may list fewer than what it inherits has prices of.
func (v *validator) simForms(path string, listed []op.Form, prices map[op.Form]SimForm) {
	for _, f := range listed {
		if _, ok := prices[f]; !ok {
			v.add(path, "no price of form %q, which the processor lists", clip(string(f)))
		}
	}
	for _, f := range sortedKeys(prices) {
		x, at := prices[f], path+"."+clip(string(f))
		if !contains(op.FormClasses, f) {
			v.add(path, "form %q, want %q", clip(string(f)), op.FormClasses)
			continue
		}
		v.whole(at+".fill_rows", x.FillRows, maxCount)
		switch fill := f == op.Swapped && x.FillRows > 0; {
		case x.FillRows != 0 && f != op.Swapped:
			v.add(at+".fill_rows", "%d, which only form %q has", x.FillRows, op.Swapped)
		case fill && x.Gain != 0:
			v.add(at+".gain", "%v beside fill_rows, want one of them", x.Gain)
		case !fill && !(x.Gain >= 1e-3 && x.Gain <= 1e3):
			v.add(at+".gain", "%v, want a factor in 0.001..1000", x.Gain)
		}
		if f == op.Conv && (x.Side < 2 || x.Side > maxTile) {
			v.add(at+".side", "%d, want 2..%d: the shorter side of the image that has the gain", x.Side, maxTile)
		} else if f != op.Conv && x.Side != 0 {
			v.add(at+".side", "%d, which only form %q has", x.Side, op.Conv)
		}
	}
}

func (v *validator) sources(s *SoC) {
	values := sortedKeys(valuePaths(s))
	for _, path := range sortedKeys(s.Sources) {
		if v.full() {
			return
		}
		at := "sources." + clip(path)
		if !covers(values, path) {
			v.add(at, "no value at path %q", clip(path))
		}
		v.source(at, s.Sources[path])
	}
	for i, p := range s.Points {
		path := fmt.Sprintf("points.%d", i)
		if s.Processor(p.Processor) == nil {
			v.add(path+".processor", "processor %q does not exist, want one of %s", clip(p.Processor), strings.Join(names(s), ", "))
		}
		p.Scheme = op.Scheme(clip(string(p.Scheme)))
		if err := p.Op().Validate(); err != nil {
			v.add(path, "%v", err)
		}
		v.number(path+".latency_us", p.LatencyUS)
		if p.LatencyUS == 0 {
			v.add(path+".latency_us", "0, want more")
		}
		v.source(path+".source", p.Source)
		if v.full() {
			return
		}
	}
	seen := map[string]bool{}
	for _, f := range s.Facts {
		path := "facts." + f.Name
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
		v.add(path, "source %q, want one of %s, a colon and the place", clip(text), strings.Join(SourceKinds, ", "))
		return
	}
	v.text(path, text)
}

// concurrent is Concurrent; it looks at every core once.
func concurrent(s *SoC, list []string) error {
	owner, seen := map[int]string{}, map[string]bool{}
	for _, a := range list {
		p := s.Processor(a)
		if p == nil {
			return diag.New(diag.ClassInput, "processor %q does not exist", a).WithHint("SoC %q has %s", s.Name, strings.Join(names(s), ", "))
		}
		if seen[a] {
			return diag.New(diag.ClassInput, "processor %q is named twice", a)
		}
		seen[a] = true
		for _, core := range p.Cores {
			if b, ok := owner[core]; ok && b != a {
				return diag.New(diag.ClassInput, "processors %q and %q share core %d and never run concurrently", b, a, core)
			}
			owner[core] = a
		}
	}
	return nil
}

// clip shortens a word of a hostile file for a message.
func clip(s string) string {
	if len(s) <= maxName {
		return s
	}
	return strings.ToValidUTF8(s[:maxName], "") + "..."
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
