package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// targetFlags say for what emit makes a bundle of a plan that was made for a simulated SoC.
type targetFlags struct {
	name     string
	emulator bool
	fallback bool
	twin     string
}

// apply sets the options of emit, for a plan of machine (nil: of this one). key is the one that signs.
func (f *targetFlags) apply(ctx context.Context, o *emit.Options, machine *socs.SoC, key *bundle.Key) error {
	if f.name == "" && !f.emulator {
		for flag, set := range map[string]bool{"allow-fallback": f.fallback, "twin": f.twin != ""} {
			if set {
				return diag.New(diag.ClassUsage, "--%s: it is for bundles made for a target", flag).WithHint("name the target: --target NAME")
			}
		}
		return nil
	}
	if f.emulator && f.twin != "" {
		return diag.New(diag.ClassUsage, "--twin %q: this bundle is a twin itself (--for-emulator)", f.twin)
	}
	if machine == nil {
		return diag.New(diag.ClassInput, "emit for target %q: the plan is for this machine, soc %q", f.name, o.Plan.SoC.Name).
			WithHint("plan for the target: hetc solve --target NAME")
	}
	name := f.name
	if name == "" {
		name = machine.Name
	}
	if x, err := socs.Open(name); err == nil { // a file is known by its name
		name = x.Name
	} else if f.name != "" && f.name != machine.Name {
		return err
	}
	if name != machine.Name {
		return diag.New(diag.ClassInput, "emit for target %q: the plan is for SoC %q", name, machine.Name).
			WithHint("solve for the target: hetc solve --target %s, or emit for the plan's: --target %s", name, machine.Name)
	}
	soc, err := machine.Restricted()
	if err != nil {
		return err
	}
	o.AllowFallback, o.Oracle = f.fallback, host.New()
	o.Target = &emit.Target{SoC: soc.Name, Emulator: f.emulator}
	var here *driver.Device // what stands for the device's CPU beside its emulator
	if f.emulator {
		devices, err := host.New().Devices(ctx)
		if err != nil {
			return err
		}
		here = &devices[0]
		o.Target.Fingerprint = host.Fingerprint()
	}
	known := compilers(machine)
	for i := range soc.Processors {
		q, err := targetProc(&soc.Processors[i], known, here)
		if err != nil {
			return err
		}
		o.Target.Procs = append(o.Target.Procs, q)
	}
	if f.twin != "" {
		if o.TwinReport, err = twinReport(ctx, f.twin, key, o.Plan); err != nil {
			return err
		}
	}
	return nil
}

// twinReport is the report of a twin. What it says goes into a signed bundle: every byte of the twin is verified, by the
// key that signs, and it has to be of the same model and inputs as the plan.
func twinReport(ctx context.Context, path string, key *bundle.Key, plan *planir.Plan) (*emit.Report, error) {
	fail := func(err error, hint string) (*emit.Report, error) {
		d := diag.New(diag.ClassOr(err, diag.ClassInput), "--twin %q: %w", path, err)
		if bundle.StepOf(err) != "" { // which names the file
			d = diag.New(diag.ClassOf(err), "--twin: %w", err)
		}
		if hint != "" {
			d = d.WithHint("%s", hint)
		}
		return nil, d
	}
	again := "make it from the same plan with hetc emit --for-emulator"
	trust, err := bundle.ParseTrust(key.PEM(), key.Name)
	if err != nil {
		return fail(err, "")
	}
	b, err := bundle.Open(path, bundle.Options{Trust: trust, Policy: bundle.Policy{AllowDev: true}})
	if err != nil {
		hint := ""
		if bundle.StepOf(err) == bundle.StepSignature {
			hint = "its report is repeated in what --key signs: emit the twin with the same key"
		}
		return fail(err, hint)
	}
	defer b.Close()
	if !slices.ContainsFunc(b.Manifest().Blobs, func(x bundle.Blob) bool { return x.Name == emit.ReportBlob }) {
		return fail(errors.New("the bundle holds no graphs that were compiled with their weights"), again)
	}
	if err := b.VerifyAll(ctx, nil); err != nil {
		return fail(err, "")
	}
	of, err := planOf(b)
	if err != nil {
		return fail(err, again)
	}
	if of.Model.Digest != plan.Model.Digest {
		return fail(fmt.Errorf("it is of model %q, digest %.12s, and the plan of %q, digest %.12s", of.Model.Name, of.Model.Digest, plan.Model.Name, plan.Model.Digest), again)
	}
	if !slices.Equal(of.Inputs, plan.Inputs) {
		return fail(errors.New("it is of a plan that was solved from other inputs"), again)
	}
	if err := b.Expect(emit.ReportBlob, bundle.RoleReport); err != nil {
		return fail(err, again)
	}
	text, err := b.Bytes(emit.ReportBlob)
	if err != nil {
		return fail(err, "")
	}
	r, err := emit.DecodeReport(text)
	if err != nil {
		return fail(err, again)
	}
	return r, nil
}

// planOf is the plan that a verified bundle begins with.
func planOf(b *bundle.Bundle) (*planir.Plan, error) {
	entry := b.Manifest().Entrypoint
	if err := b.Expect(entry, bundle.RolePlan); err != nil {
		return nil, err
	}
	text, err := b.Bytes(entry)
	if err != nil {
		return nil, err
	}
	return planir.Decode(text)
}

// targetProc is a processor of a SoC as its device executes it, or with here as it is emulated on this machine.
func targetProc(p *socs.Processor, known []driver.Compiler, here *driver.Device) (planir.Proc, error) {
	t := p.Target
	out := check.Proc(p)
	q := &out
	q.Driver, q.Select, q.Options, q.Cores = t.Driver, t.Select, nil, nil
	k := slices.IndexFunc(known, func(c driver.Compiler) bool { return c.Name() == t.Compiler })
	switch {
	case t.Compiler == "" && here != nil:
		q.Select, q.Cores = here.Select, slices.Clone(here.Cores)
	case t.Compiler == "":
		if q.Select == "" {
			q.Select = coreRange(p.Cores)
		}
		cores, err := coresOf(q.Select)
		if err != nil {
			return out, diag.New(diag.ClassInput, "soc: target of processor %q: %w", p.Name, err)
		}
		q.Cores = cores
	case k < 0:
		return out, diag.New(diag.ClassUnavailable, "soc: target of processor %q: compiler %q is not part of this program", p.Name, t.Compiler)
	default:
		if here != nil {
			q.Select = "emulator"
		}
		q.Options = t.Options() // of the compiler, and what the driver compares artifacts with
		if _, bakes := known[k].(driver.Baker); !bakes {
			return out, nil
		}
		q.Bakes, q.Shares = true, here == nil && p.WeightBytes != socs.WeightsPerGraph
		q.WeightRanges, q.DynamicRows, q.StridedInput, q.StridedOutput, q.Prepacks = false, false, false, false, false
		q.Fuses = true
		for i := range q.Layouts {
			q.Layouts[i].Layout = op.OnnxLayout
		}
		for _, s := range q.Schemes {
			if q.LayoutOf(s.Weight()) == "" {
				q.Layouts = append(q.Layouts, planir.Layout{Scheme: s.Weight(), Layout: op.OnnxLayout})
			}
		}
		slices.SortFunc(q.Layouts, func(a, b planir.Layout) int { return strings.Compare(a.Scheme, b.Scheme) })
	}
	return out, nil
}

// coreRange is a selection of the driver "host".
func coreRange(cores []int) string {
	if len(cores) == 0 {
		return "0"
	}
	lo, hi := slices.Min(cores), slices.Max(cores)
	if lo == hi {
		return strconv.Itoa(lo)
	}
	return fmt.Sprintf("%d-%d", lo, hi)
}

// coresOf reads one: "2-7".
func coresOf(sel string) ([]int, error) {
	a, b, two := strings.Cut(sel, "-")
	lo, err := strconv.Atoi(a)
	hi := lo
	if err == nil && two {
		hi, err = strconv.Atoi(b)
	}
	const most = 1 << 10
	if err != nil || lo < 0 || hi < lo || hi >= most {
		return nil, fmt.Errorf("select %q of driver %q, want a core or a range of cores such as 2-7", sel, host.Name)
	}
	var out []int
	for c := lo; c <= hi; c++ {
		out = append(out, c)
	}
	return out, nil
}

// bakes shows progress of baking on a terminal, and adds up what it took.
type bakes struct {
	s     *cli.Streams
	mu    sync.Mutex
	begun map[int]time.Time
	order []string
	sums  map[string]*bakeSum // by the graphs' name
	since time.Time           // that the stage that is under way began
	check time.Duration       // before anything is compiled
	took  time.Duration       // packing, compiling and trying
	write time.Duration       // the bundle
}

type bakeSum struct {
	groups, graphs, cached, packed int
	took                           time.Duration
}

func newBakes(s *cli.Streams) *bakes {
	return &bakes{s: s, begun: map[int]time.Time{}, sums: map[string]*bakeSum{}, since: time.Now()}
}

// stage adds what passed since the last one to d.
func (b *bakes) stage(d *time.Duration) {
	now := time.Now()
	*d += now.Sub(b.since)
	b.since = now
}

func (b *bakes) written() { b.stage(&b.write) }

func (b *bakes) watch(e emit.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case e.Groups == 0 && e.Done:
		b.stage(&b.took)
		return
	case e.Groups == 0:
		b.stage(&b.check)
		return
	case !e.Done:
		b.begun[e.Group] = time.Now()
		return
	}
	took := time.Since(b.begun[e.Group])
	name, _, _ := strings.Cut(e.Label, ", ")
	sum := b.sums[name]
	if sum == nil {
		sum = &bakeSum{}
		b.sums[name], b.order = sum, append(b.order, name)
	}
	sum.groups++
	sum.graphs += len(e.Graphs)
	sum.took += took
	if e.Packed {
		sum.packed++
	}
	from := ""
	if e.Cached {
		sum.cached++
		from = ", from the cache"
	}
	if e.Err != nil {
		from = ", refused"
	}
	if b.s.Terminal() {
		b.s.Notef("%d of %d: %s, %d graphs in %.1f s%s", e.Group+1, e.Groups, e.Label, len(e.Graphs), took.Seconds(), from)
	}
}

// show prints what compiling took. Times are of this run and stand in no file.
func (b *bakes) show() map[string]any {
	var rows [][]string
	groups, cached, packed := 0, 0, 0
	slices.Sort(b.order)
	for _, name := range b.order {
		x := b.sums[name]
		groups, cached, packed = groups+x.groups, cached+x.cached, packed+x.packed
		if parts := strings.Split(name, planir.NodeSeparator); len(parts) > 2 {
			name = parts[0] + planir.NodeSeparator + ".." + planir.NodeSeparator + parts[len(parts)-1]
		}
		rows = append(rows, []string{name, strconv.Itoa(x.groups), strconv.Itoa(x.graphs), strconv.Itoa(x.cached), strconv.Itoa(x.packed), fmt.Sprintf("%.1f", x.took.Seconds())})
	}
	if groups == 0 {
		return nil
	}
	b.s.Table([]string{"compiled with its weights", ">groups", ">graphs", ">from the cache", ">packed", ">seconds"}, rows)
	b.s.Printf("compiled %d groups in %.2f s, %d from the cache, weights packed for %d; graphs of the same weights at several numbers of rows are one group\n", groups, b.took.Seconds(), cached, packed)
	b.s.Printf("stages: plan and model checked in %.2f s, compiled in %.2f s, bundle written in %.2f s\n\n", b.check.Seconds(), b.took.Seconds(), b.write.Seconds())
	return map[string]any{
		"groups": groups, "cached": cached, "packed": packed, "seconds": b.took.Seconds(),
		"check_seconds": b.check.Seconds(), "write_seconds": b.write.Seconds(),
	}
}

// claimedReport is what a bundle file says about its compiled graphs, nil for one without such.
func claimedReport(path string) (*emit.Report, error) {
	const most = 64 << 20
	text, err := bundle.Claimed(path, emit.ReportBlob, most)
	if text == nil || err != nil {
		return nil, err
	}
	r, err := emit.DecodeReport(text)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "%s: %w", path, err).WithHint("hetc verify says whether the file is what was signed")
	}
	return r, nil
}

// showReport prints what is known of compiled graphs: those of all layers on one line.
func showReport(s *cli.Streams, r *emit.Report) {
	what := ""
	if t := r.Target; t != nil {
		what = " for " + t.SoC
		if t.Emulator {
			what += ", the twin for its emulator"
		}
	}
	var bytes int64
	for _, b := range r.Binaries {
		bytes += b.Bytes
	}
	for _, g := range r.Graphs {
		bytes += g.Bytes
	}
	s.Printf("%d graphs compiled with their weights%s, %s", len(r.Graphs), what, unit.Bytes(bytes))
	if n := len(r.Binaries); n > 0 {
		s.Printf(", in %d binaries that those of the same weights share", n)
	}
	s.Printf("\n")
	for _, c := range r.Compilers {
		s.Printf("%s: compiled by %s for %s, token %s\n", c.Proc, c.Version, optionText(c.Options), c.Token)
	}
	type line struct {
		first        *emit.ReportGraph
		layers       int
		bytes, spill int64
		twins        int
		errors       *emit.ReportErrors
	}
	var order []*line
	byName := map[string]*line{}
	tried := map[string]*emit.ReportErrors{}
	for i := range r.Graphs {
		if g := &r.Graphs[i]; g.Errors != nil {
			tried[g.Blob] = g.Errors
		}
	}
	for i := range r.Graphs {
		g := &r.Graphs[i]
		x := byName[g.Name]
		if x == nil {
			x = &line{first: g, errors: tried[g.Tried]}
			byName[g.Name], order = x, append(order, x)
		}
		x.layers++
		x.bytes += g.Bytes
		x.spill = max(x.spill, g.Facts["spill_bytes"])
		if g.Twin != "" {
			x.twins++
		}
	}
	for _, x := range order {
		s.Printf("%s\n  %s\n  ", x.first.Name, strings.Join(x.first.Ops, "; "))
		if x.first.Layer >= 0 {
			s.Printf("%d layers, ", x.layers)
		}
		s.Printf("%s, spill %s, ", unit.Bytes(x.bytes), unit.Bytes(x.spill))
		if e := x.errors; e != nil {
			s.Printf("error %.1e from float32 (at most %.1e), %.1e from the uncompiled model (at most %.1e)", e.Float32, e.Float32Bound, e.Portable, e.PortableBound)
		} else {
			s.Printf("not executed")
		}
		if t := r.Target; t != nil && !t.Emulator {
			s.Printf(", %d of %d twins known", x.twins, x.layers)
		}
		s.Printf("\n")
	}
	s.Printf("errors: %s\n", r.Bounds)
	if t := r.Target; t != nil {
		for _, f := range t.Fallbacks {
			s.Printf("fallback: %s at %d rows is on the control processor instead of %s: %s\n", f.Node, f.Rows, f.From, f.Reason)
		}
	}
	for _, u := range r.Unchecked {
		s.Printf("not checked: %s\n", u)
	}
}

func optionText(o map[string]string) string {
	var parts []string
	for k, v := range o {
		parts = append(parts, k+" "+v)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// targetSystem is what the bundle of a plan runs on.
func targetSystem(o *emit.Options, machine *socs.SoC) (goos, arch string) {
	if machine != nil && machine.OS != "" && (o.Target == nil || !o.Target.Emulator) {
		return machine.OS, machine.Arch
	}
	return runtime.GOOS, runtime.GOARCH
}
