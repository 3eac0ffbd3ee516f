package socs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
)

// Bounds that no real machine exceeds. They keep sums, loops and messages finite on hostile files.
const (
	maxProcessors = 64
	maxCores      = 4096
	maxDomains    = 64
	maxJoint      = 1024
	maxRanges     = 1024
	maxName       = 64      // bytes
	maxText       = 4096    // bytes
	maxValue      = 1e9     // of any rate or time in its unit
	minSimRate    = 1e-3    // of a rate that divides a simulated time, which then fits 63 bits of nanoseconds
	maxBytes      = 1 << 50 // 1 PiB
	maxTile       = 1 << 16
	maxCount      = 1 << 20
	maxReported   = 20 // mistakes
)

// sourceKinds are the words a source text starts with, followed by a colon.
var sourceKinds = []string{"paper", "vendor", "measured", "derived", "assumed"}

// Validate returns the first 20 mistakes of a description as a diag.List of class ClassInput, sorted by data path.
func (s *SoC) Validate() error {
	v := &validator{}
	v.names(s)
	// All other checks put names into paths and messages.
	if len(v.list) == 0 {
		v.soc(s)
	}
	v.list.Sort()
	return v.list.Err()
}

// validator collects mistakes, up to maxReported.
type validator struct{ list diag.List }

// full reports whether further mistakes are not added.
func (v *validator) full() bool { return len(v.list) >= maxReported }

// add records a mistake at a path, unless there are enough of them.
func (v *validator) add(path, format string, args ...any) {
	if !v.full() {
		v.list = append(v.list, diag.New(diag.ClassInput, format, args...).At("%s", path).WithCode("soc.value"))
	}
}

// number checks a finite value of at least 0.
func (v *validator) number(path string, value float64) {
	if math.IsNaN(value) || value < 0 || value > maxValue {
		v.add(path, "%v, want a number in 0..%g", value, float64(maxValue))
	}
}

// rate checks a rate that divides a simulated time.
func (v *validator) rate(path string, value float64) {
	if !(value >= minSimRate && value <= maxValue) {
		v.add(path, "%v, want a number in %g..%g", value, minSimRate, float64(maxValue))
	}
}

// whole checks an integer in 0..most.
func (v *validator) whole(path string, n, most int) {
	if n < 0 || n > most {
		v.add(path, "%d, want 0..%d", n, most)
	}
}

// bytes checks a size.
func (v *validator) bytes(path string, n int64) {
	if n < 0 || n > maxBytes {
		v.add(path, "%d bytes, want 0..%d", n, int64(maxBytes))
	}
}

// few checks the length of a list, and reports whether it is short enough to check its items.
func (v *validator) few(path, what string, n, most int) bool {
	if n > most {
		v.add(path, "%d %s, want at most %d", n, what, most)
	}
	return n <= most
}

// CheckName returns an error if a word is no name of a SoC or of a processor. Names occur in paths and plans.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxName
	for i := 0; ok && i < len(name); i++ {
		char := name[i]
		letter := char >= 'a' && char <= 'z'
		digit := char >= '0' && char <= '9'
		ok = letter || digit || char == '-' || char == ':' || char == '_'
	}
	if !ok {
		return fmt.Errorf("name %q, want 1..%d lower case letters, digits and -:_", clip(name), maxName)
	}
	return nil
}

// name checks a name.
func (v *validator) name(path, s string) {
	if err := CheckName(s); err != nil {
		v.add(path, "%v", err)
	}
}

// text checks a text that is shown as it is. A terminal would obey control characters.
func (v *validator) text(path, s string) {
	if len(s) > maxText {
		v.add(path, "%d bytes, want at most %d", len(s), maxText)
		return
	}
	for _, char := range s {
		if char != '\n' && !unicode.IsPrint(char) {
			v.add(path, "character %U, want a text that can be printed", char)
			return
		}
	}
}

// names checks every name of the SoC.
func (v *validator) names(soc *SoC) {
	v.name("name", soc.Name)
	for i := range soc.Processors {
		v.name(fmt.Sprintf("processors.%d.name", i), soc.Processors[i].Name)
	}
	for i := range soc.Memory {
		v.name(fmt.Sprintf("memory.%d.name", i), soc.Memory[i].Name)
	}
	for i := range soc.Facts {
		v.name(fmt.Sprintf("facts.%d.name", i), soc.Facts[i].Name)
	}
	if soc.CPU != nil {
		for i := range soc.CPU.Caches {
			v.name(fmt.Sprintf("cpu.caches.%d.name", i), soc.CPU.Caches[i].Name)
		}
	}
}

// soc checks everything but names. A processor that is named elsewhere must be described.
func (v *validator) soc(soc *SoC) {
	if soc.Schema != Schema {
		v.add("schema", "schema %q, want %q", clip(soc.Schema), Schema)
	}
	if soc.Inherit != "" {
		v.add("inherit", "%q is not resolved", clip(soc.Inherit))
	}
	v.text("description", soc.Description)
	v.text("fingerprint", soc.Fingerprint)
	v.text("os", soc.OS)
	v.text("arch", soc.Arch)

	// All other parts name processors.
	if len(soc.Processors) == 0 || len(soc.Processors) > maxProcessors {
		v.add("processors", "%d processors, want 1..%d", len(soc.Processors), maxProcessors)
		return
	}
	seen := map[string]bool{}
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		path := "processors." + proc.Name
		if seen[proc.Name] {
			v.add(path, "processor %q is described twice", proc.Name)
		}
		seen[proc.Name] = true
		v.processor(path, proc)
	}
	all := strings.Join(names(soc), ", ")

	// known checks the name of a processor, wherever one occurs.
	known := func(path, name string) bool {
		if !seen[name] {
			v.add(path, "processor %q does not exist, want one of %s", clip(name), all)
		}
		return seen[name]
	}
	if soc.Control == "" {
		v.add("control", "no processor owns control steps, want one of %s", all)
	} else {
		known("control", soc.Control)
	}
	v.cpu(soc.CPU)

	// Check the lengths of lists before their items, since some items are compared pair by pair.
	if !v.few("memory", "memory domains", len(soc.Memory), maxDomains) ||
		!v.few("joint", "joint bandwidths", len(soc.Joint), maxJoint) {
		return
	}
	v.domains(soc.Memory, known)
	v.links(soc.Links, known)
	v.joint(soc, known)
	// Sources are paths to the values above, so they come last.
	if !v.full() {
		v.sources(soc)
	}
}

// domains checks memory domains, each described once, and the processors in them.
func (v *validator) domains(domains []Domain, known func(path, name string) bool) {
	seen := map[string]bool{}
	for _, domain := range domains {
		path := "memory." + domain.Name
		if seen[domain.Name] {
			v.add(path, "memory domain %q is described twice", domain.Name)
		}
		seen[domain.Name] = true
		v.bytes(path+".bytes", domain.Bytes)
		in := map[string]bool{}
		for _, name := range domain.Processors {
			if known(path+".processors", name) && in[name] {
				v.add(path+".processors", "processor %q is named twice", name)
			}
			in[name] = true
		}
	}
}

// links checks links in one direction, each described once, between processors that exist.
func (v *validator) links(links []Link, known func(path, name string) bool) {
	seen := map[[2]string]bool{}
	for _, link := range links {
		path := linkPath(Link{From: clip(link.From), To: clip(link.To)})
		fromKnown, toKnown := known(path+".from", link.From), known(path+".to", link.To)
		if !fromKnown || !toKnown {
			continue
		}
		if link.From == link.To {
			v.add(path, "processor %q is linked to itself", link.From)
		}
		if seen[[2]string{link.From, link.To}] {
			v.add(path, "link from %q to %q is described twice", link.From, link.To)
		}
		seen[[2]string{link.From, link.To}] = true
		v.number(path+".handover_us", link.HandoverUS)
		v.number(path+".copy_gbps", link.CopyGBps)
		v.number(path+".copy_launch_us", link.CopyLaunchUS)
	}
}

// joint checks sets of at least two processors that can run at the same time, none twice.
func (v *validator) joint(soc *SoC, known func(path, name string) bool) {
	sets := map[string]bool{}
	for i, set := range soc.Joint {
		at := fmt.Sprintf("joint.%d", i)
		count := len(set.Processors)
		if count < 2 || count > len(soc.Processors) {
			v.add(at, "joint bandwidth of %d of the processors, want at least 2 of them, each once", count)
			continue
		}
		allKnown := true
		for _, name := range set.Processors {
			allKnown = known(at+".processors", name) && allKnown
		}
		if !allKnown {
			continue
		}
		path := set.Path()
		if sets[path] {
			v.add(path, "joint bandwidth is described twice")
		}
		sets[path] = true
		v.number(path+".bandwidth_gbps", set.BandwidthGBps)
		if set.BandwidthGBps == 0 {
			v.add(path+".bandwidth_gbps", "0, want more")
		}
		if err := concurrent(soc, set.Processors); err != nil {
			v.add(path, "%v", err)
		}
	}
}

// cpu checks the host's cores and caches.
func (v *validator) cpu(cpu *CPU) {
	if cpu == nil {
		return
	}
	v.text("cpu.model", cpu.Model)
	for _, feature := range cpu.Features {
		v.text("cpu.features", feature)
	}
	v.whole("cpu.cores", cpu.Cores, maxCores)
	seen := map[string]bool{}
	for _, cache := range cpu.Caches {
		path := "cpu.caches." + cache.Name
		if seen[cache.Name] {
			v.add(path, "cache %q is described twice", cache.Name)
		}
		seen[cache.Name] = true
		if cache.Level < 1 || cache.Level > 8 {
			v.add(path+".level", "%d, want 1..8", cache.Level)
		}
		v.bytes(path+".bytes", cache.Bytes)
		v.cores(path+".cores", cache.Cores)
	}
}

// cores checks core numbers, each listed once.
func (v *validator) cores(path string, cores []int) {
	seen := map[int]bool{}
	for _, core := range cores {
		if core < 0 || core >= maxCores {
			v.add(path, "core %d, want 0..%d", core, maxCores-1)
		}
		if seen[core] {
			v.add(path, "core %d is listed twice", core)
		}
		seen[core] = true
	}
}

// processor checks one processor: identity, rates, capabilities, limits, simulation and target.
func (v *validator) processor(path string, proc *Processor) {
	v.identity(path, proc)
	for _, elem := range slices.Sorted(maps.Keys(proc.PeakGops)) {
		if op.Type(elem).Bytes() == 0 {
			v.add(path+".peak_gops", "unknown element type %q, want %s", clip(elem), diag.OneOf(
				[]op.Type{op.F32, op.F16, op.BF16, op.I8, op.U8}))
			continue
		}
		v.number(path+".peak_gops."+elem, proc.PeakGops[elem])
	}
	v.number(path+".bandwidth_gbps", proc.BandwidthGBps)
	v.number(path+".launch_us", proc.LaunchUS)
	v.number(path+".submit_us", proc.SubmitUS)
	v.number(path+".compile_ms", proc.CompileMS)
	v.number(path+".power_w", proc.PowerW)
	v.capabilities(path, &proc.Set)
	v.bytes(path+".graph_bytes", proc.GraphBytes)
	v.bytes(path+".address_bytes", proc.AddressBytes)
	v.whole(path+".max_graphs", proc.MaxGraphs, maxCount)
	if !slices.Contains([]string{"", WeightsShared, WeightsPerGraph}, proc.WeightBytes) {
		v.add(path+".weight_bytes", "%q, want %s or %s", clip(proc.WeightBytes), WeightsShared, WeightsPerGraph)
	}
	if proc.Sim != nil {
		v.sim(path+".sim", proc)
	}
	if proc.Target != nil {
		v.target(path+".target", proc)
	}
}

// identity checks the kind, driver and cores of a processor.
func (v *validator) identity(path string, proc *Processor) {
	if !slices.Contains([]string{KindCPU, KindGPU, KindNPU}, proc.Kind) {
		v.add(path+".kind", "kind %q, want cpu, gpu or npu", clip(proc.Kind))
	}
	if proc.Driver == "" {
		v.add(path+".driver", "no driver")
	}
	v.text(path+".description", proc.Description)
	v.text(path+".driver", proc.Driver)
	v.text(path+".select", proc.Select)
	v.texts(path+".options", proc.Options)
	v.texts(path+".layouts", proc.Layouts)
	measured := proc.Driver != SimDriver && proc.Driver != ImportedDriver
	if proc.Kind == KindCPU && measured && len(proc.Cores) == 0 {
		v.add(path+".cores", "a cpu processor occupies cores, got none")
	}
	v.cores(path+".cores", proc.Cores)
	if proc.LikeCores && len(proc.Cores) < 2 {
		v.add(path+".like_cores", "of %d cores, want at least 2", len(proc.Cores))
	}
	if !slices.Contains(capability.Waitings, proc.Wait) {
		v.add(path+".wait", "%q, want %s, or nothing", clip(string(proc.Wait)), diag.OneOf(capability.Waitings))
	}
	if proc.Driver != SimDriver {
		return
	}
	if proc.Sim == nil {
		v.add(path+".sim", "driver %q needs a sim block", SimDriver)
	}
	if proc.Select != proc.Name {
		v.add(path+".select", "%q, driver %q selects processors by name, want %q", clip(proc.Select), SimDriver,
			proc.Name)
	}
}

// texts checks keys and values that are shown as they are.
func (v *validator) texts(path string, values map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v.text(path, key)
		v.text(path, values[key])
	}
}

// capabilities checks that the claims of a processor fit together: a layout for every scheme, a
// cache type for attention.
func (v *validator) capabilities(path string, set *capability.Set) {
	v.tile(path+".tile", set.Tile)
	distinct(v, path+".kinds", "operator", set.Kinds, func(kind op.Kind) error {
		if !slices.Contains(op.Kinds, kind) {
			return fmt.Errorf("unknown operator %q", clip(string(kind)))
		}
		return nil
	})
	if len(set.Schemes) == 0 && set.Executes(op.MatMul) {
		v.add(path+".schemes", "it executes matmuls in no scheme")
	}
	schemes := distinct(v, path+".schemes", "scheme", set.Schemes, func(scheme op.Scheme) error {
		_, err := op.ParseScheme(clip(string(scheme)))
		return err
	})
	for _, scheme := range set.Schemes {
		if schemes[scheme] && set.Layouts[scheme.Weight()] == "" {
			v.add(path+".layouts", "no layout for weights %q, which scheme %q needs", scheme.Weight(), scheme)
		}
	}
	v.forms(path+".forms", set, schemes)
	distinct(v, path+".kv", "cache type", set.KV, func(elem op.Type) error {
		if !slices.Contains(op.CacheTypes, elem) {
			return fmt.Errorf("cache type %q, want %s", clip(string(elem)), diag.OneOf(op.CacheTypes))
		}
		return nil
	})
	if len(set.KV) == 0 && set.Executes(op.Attention) {
		v.add(path+".kv", "it executes attention on no cache type")
	}
	if set.StaticShapes && set.DynamicRows {
		v.add(path+".dynamic_rows", "static_shapes and dynamic_rows exclude each other")
	}
	if set.Memory != nil {
		if err := set.Memory.Validate(); err != nil {
			v.add(path+".memory", "%v", err)
		}
	}
}

// forms checks the forms of every scheme. schemes holds the correct ones.
func (v *validator) forms(path string, set *capability.Set, schemes map[op.Scheme]bool) {
	for _, scheme := range slices.Sorted(maps.Keys(set.Forms)) {
		if !schemes[scheme] {
			v.add(path, "forms of scheme %q, which is not among the processor's schemes", clip(string(scheme)))
			continue
		}
		distinct(v, path+"."+string(scheme), "form", set.Forms[scheme], func(form op.Form) error {
			if !form.IsClass() {
				return fmt.Errorf("form %q, want %s, or a variant of kernels as %q", clip(string(form)),
					diag.OneOf(op.FormClasses), op.KernelForm("tiles"))
			}
			if form == op.Conv && set.DynamicRows {
				return fmt.Errorf("form %q is compiled for a number of rows, and dynamic_rows says that calls may "+
					"have fewer", form)
			}
			return nil
		})
	}
}

// distinct checks each item and that none is listed twice. It returns the items without a mistake.
func distinct[T ~string](v *validator, path, what string, items []T, check func(T) error) map[T]bool {
	good := map[T]bool{}
	for _, item := range items {
		if err := check(item); err != nil {
			v.add(path, "%v", err)
			continue
		}
		if good[item] {
			v.add(path, "%s %q is listed twice", what, item)
		}
		good[item] = true
	}
	return good
}

// Bounds of target data.
const (
	maxSoCModel = 1 << 16
	maxHTPArch  = 1000
	maxVTCM     = 1 << 10 // MiB
	maxOpt      = 3
	qnnDriver   = "qnn"
)

// target checks the description of the device's processor, which has no operator, scheme or form that the SoC's
// processor lacks.
func (v *validator) target(path string, proc *Processor) {
	target := proc.Target
	switch target.Driver {
	case "":
		v.add(path+".driver", "no driver")
	case SimDriver, ImportedDriver:
		v.add(path+".driver", "driver %q is no device's", target.Driver)
	}
	v.text(path+".driver", target.Driver)
	v.text(path+".compiler", target.Compiler)
	v.text(path+".select", target.Select)
	v.whole(path+".soc_model", target.SoCModel, maxSoCModel)
	v.whole(path+".htp_arch", target.HTPArch, maxHTPArch)
	v.whole(path+".vtcm_mb", target.VTCMMB, maxVTCM)
	v.whole(path+".opt", target.Opt, maxOpt)
	if target.Compiler == qnnDriver {
		// The compiler silently takes an unknown SoC for its oldest one.
		if target.SoCModel == 0 {
			v.add(path+".soc_model", "compiler %q needs the vendor's number of the SoC", qnnDriver)
		}
		if target.VTCMMB == 0 {
			v.add(path+".vtcm_mb", "compiler %q needs the size of the NPU's own memory", qnnDriver)
		}
	}
	distinct(v, path+".kinds", "operator", target.Kinds, func(kind op.Kind) error {
		if !slices.Contains(op.Kinds, kind) {
			return fmt.Errorf("unknown operator %q", clip(string(kind)))
		}
		if !proc.Executes(kind) {
			return fmt.Errorf("operator %q is not among the processor's kinds", kind)
		}
		return nil
	})
	distinct(v, path+".schemes", "scheme", target.Schemes, func(scheme op.Scheme) error {
		if !slices.Contains(proc.Schemes, scheme) {
			return fmt.Errorf("scheme %q is not among the processor's schemes", clip(string(scheme)))
		}
		return nil
	})
	for _, scheme := range slices.Sorted(maps.Keys(target.Forms)) {
		if !slices.Contains(target.Schemes, scheme) && len(target.Schemes) > 0 {
			v.add(path+".forms", "scheme %q is not among the target's schemes", clip(string(scheme)))
		}
		for _, form := range target.Forms[scheme] {
			if form == "" || !proc.HasForm(scheme, form) || form.Class() != form {
				v.add(path+".forms", "form %q of scheme %q is not among the processor's forms", clip(string(form)),
					clip(string(scheme)))
			}
		}
	}
}

// tile checks a granularity, 0 for unknown.
func (v *validator) tile(path string, t capability.Tile) {
	for _, dim := range []struct {
		name string
		n    int
	}{{"m", t.M}, {"k", t.K}, {"n", t.N}} {
		if dim.n < 0 || dim.n > maxTile {
			v.add(path+"."+dim.name, "%d, want 0..%d", dim.n, maxTile)
		}
	}
}

// sim checks that every scheme of the processor has rates, and no other.
func (v *validator) sim(path string, proc *Processor) {
	sim := proc.Sim
	for _, scheme := range proc.Schemes {
		rates, ok := sim.Schemes[scheme]
		if !ok {
			v.add(path+".schemes", "no entry for scheme %q", clip(string(scheme)))
			continue
		}
		v.simScheme(path+".schemes."+string(scheme), proc.Forms[scheme], &rates)
	}

	for _, scheme := range slices.Sorted(maps.Keys(sim.Schemes)) {
		if !slices.Contains(proc.Schemes, scheme) {
			v.add(path+".schemes", "scheme %q is not among the processor's schemes", clip(string(scheme)))
		}
	}
	v.rate(path+".other_gops", sim.OtherGops)
	if sim.Estimate != nil {
		v.rate(path+".estimate.peak_gops", sim.Estimate.PeakGops)
		v.number(path+".estimate.setup_us", sim.Estimate.SetupUS)
	}
	v.rate(strings.TrimSuffix(path, ".sim")+".bandwidth_gbps", proc.BandwidthGBps)
	if !(sim.NoiseCV >= 0 && sim.NoiseCV <= 0.5) {
		v.add(path+".noise_cv", "%v, want 0..0.5", sim.NoiseCV)
	}
	if v.few(path+".infeasible", "ranges", len(sim.Infeasible), maxRanges) {
		for i, shape := range sim.Infeasible {
			for _, bound := range []int{shape.MinM, shape.MaxM, shape.MinK, shape.MaxK, shape.MinN, shape.MaxN} {
				v.whole(fmt.Sprintf("%s.infeasible.%d", path, i), bound, math.MaxInt32)
			}
		}
	}
}

// simScheme checks the simulated rates of a scheme.
func (v *validator) simScheme(path string, forms []op.Form, rates *SimScheme) {
	v.rate(path+".peak_gops", rates.PeakGops)
	if !(rates.WeightBits >= 0 && rates.WeightBits <= 64) {
		v.add(path+".weight_bits", "%v, want 0..64", rates.WeightBits)
	}
	v.number(path+".setup_us", rates.SetupUS)
	v.tile(path+".step", rates.Step)
	if rates.LongK != 0 && !(rates.LongK >= 1 && rates.LongK <= 1e3) {
		v.add(path+".long_k", "%v, want a factor in 1..1000", rates.LongK)
	}
	v.whole(path+".long_k_from", rates.LongKFrom, math.MaxInt32)
	v.whole(path+".wide_from", rates.WideFrom, math.MaxInt32)
	if !(rates.WidePower >= 0 && rates.WidePower <= 8) {
		v.add(path+".wide_power", "%v, want 0..8", rates.WidePower)
	}
	v.simForms(path+".forms", forms, rates.Forms)
}

// simForms checks that each listed form of a scheme has a price. There may be more prices, since a file may list fewer
// forms than the one that it inherits prices from.
func (v *validator) simForms(path string, listed []op.Form, prices map[op.Form]SimForm) {
	for _, form := range listed {
		if _, ok := prices[form]; !ok {
			v.add(path, "no price of form %q, which the processor lists", clip(string(form)))
		}
	}

	for _, form := range slices.Sorted(maps.Keys(prices)) {
		price, at := prices[form], path+"."+clip(string(form))
		if !form.IsClass() {
			v.add(path, "form %q, want %s, or a variant of kernels as %q", clip(string(form)),
				diag.OneOf(op.FormClasses), op.KernelForm("tiles"))
			continue
		}
		v.simForm(at, form, price)
	}
}

// simForm checks the factors of a form: a swapped product has rows to fill or a gain, an image has
// a side.
func (v *validator) simForm(at string, form op.Form, price SimForm) {
	v.whole(at+".fill_rows", price.FillRows, maxCount)
	fill := form == op.Swapped && price.FillRows > 0
	switch {
	case price.FillRows != 0 && form != op.Swapped:
		v.add(at+".fill_rows", "%d, which only form %q has", price.FillRows, op.Swapped)
	case fill && price.Gain != 0:
		v.add(at+".gain", "%v beside fill_rows, want one of them", price.Gain)
	case !fill && !(price.Gain >= 1e-3 && price.Gain <= 1e3):
		v.add(at+".gain", "%v, want a factor in 0.001..1000", price.Gain)
	}

	switch {
	case form != op.Conv && price.Side != 0:
		v.add(at+".side", "%d, which only form %q has", price.Side, op.Conv)
	case form == op.Conv && (price.Side < 2 || price.Side > maxTile):
		v.add(at+".side", "%d, want 2..%d: the shorter side of the image that has the gain", price.Side, maxTile)
	}
}

// sources checks that every source belongs to a value, and checks points and facts, which state their own sources.
func (v *validator) sources(soc *SoC) {
	values := slices.Sorted(maps.Keys(valuePaths(soc)))
	for _, path := range slices.Sorted(maps.Keys(soc.Sources)) {
		if v.full() {
			return
		}
		at := "sources." + clip(path)
		if !covers(values, path) {
			v.add(at, "no value at path %q", clip(path))
		}
		v.source(at, soc.Sources[path])
	}

	// A point is a published time of an operator on a processor, with its source.
	for i, point := range soc.Points {
		path := fmt.Sprintf("points.%d", i)
		if soc.Processor(point.Processor) == nil {
			v.add(path+".processor", "processor %q does not exist, want one of %s", clip(point.Processor),
				strings.Join(names(soc), ", "))
		}
		point.Scheme = op.Scheme(clip(string(point.Scheme)))
		if err := point.Op().Validate(); err != nil {
			v.add(path, "%v", err)
		}
		v.number(path+".latency_us", point.LatencyUS)
		if point.LatencyUS == 0 {
			v.add(path+".latency_us", "0, want more")
		}
		v.source(path+".source", point.Source)
		if v.full() {
			return
		}
	}
	seen := map[string]bool{}
	for _, fact := range soc.Facts {
		path := "facts." + fact.Name
		if seen[fact.Name] {
			v.add(path, "fact %q is stated twice", fact.Name)
		}
		seen[fact.Name] = true
		if math.IsNaN(fact.Value) || math.IsInf(fact.Value, 0) {
			v.add(path+".value", "%v, want a finite number", fact.Value)
		}
		v.source(path+".source", fact.Source)
	}
}

// source checks a text of the form "kind: place".
func (v *validator) source(path, text string) {
	kind, place, ok := strings.Cut(text, ": ")
	if !ok || strings.TrimSpace(place) == "" || !slices.Contains(sourceKinds, kind) {
		v.add(path, "source %q, want one of %s, a colon and the place", clip(text), strings.Join(sourceKinds, ", "))
		return
	}
	v.text(path, text)
}

// concurrent does the work of Concurrent, in time linear in the number of cores.
func concurrent(s *SoC, list []string) error {
	owner, seen := map[int]string{}, map[string]bool{}
	for _, name := range list {
		proc := s.Processor(name)
		if proc == nil {
			return diag.New(diag.ClassInput, "processor %q does not exist", name).WithHint("SoC %q has %s", s.Name,
				strings.Join(names(s), ", "))
		}
		if seen[name] {
			return diag.New(diag.ClassInput, "processor %q is named twice", name)
		}
		seen[name] = true
		for _, core := range proc.Cores {
			if other, ok := owner[core]; ok && other != name {
				return diag.New(diag.ClassInput, "processors %q and %q share core %d and never run concurrently",
					other, name, core)
			}
			owner[core] = name
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

// names returns the processors' names in the file's order.
func names(s *SoC) []string {
	out := make([]string, len(s.Processors))
	for i := range s.Processors {
		out[i] = s.Processors[i].Name
	}
	return out
}

// linkPath returns the data path of a link in messages.
func linkPath(l Link) string { return fmt.Sprintf("links.%s>%s", l.From, l.To) }

// Path names the set in sources, whatever the order of its processors: "joint.cpu+gpu".
func (j Joint) Path() string {
	set := append([]string(nil), j.Processors...)
	slices.Sort(set)
	return "joint." + strings.Join(set, "+")
}
