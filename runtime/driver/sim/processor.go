package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

// processor is one simulated processor with a virtual clock of its own. Lanes reach it in no fixed
// order, so Run cannot know what others do at the same virtual time: a call takes as long as alone.
// Settle computes how long calls took side by side.
type processor struct {
	name string
	soc  *socs.SoC
	// the description, and what follows from it
	desc   *socs.Processor
	caps   *driver.Capabilities
	model  model
	host   driver.Processor // nil: nothing is computed
	noisy  bool
	seed   uint64
	beside string

	now    atomic.Int64         // other lanes' goroutines may look
	drawn  map[string]*sequence // of noise, by graph
	last   []timeline.Phase     // of the latest call
	closed bool
}

// executable is a graph, with the host's executable where results are computed.
type executable struct {
	p     *processor
	graph op.Graph
	noise *sequence
	// nil where nothing is computed
	host driver.Executable

	closed bool
}

// sequence is a sequence of noise.
type sequence struct {
	key  string // processor, company and graph, and a name where it has one
	runs uint64 // so far
}

// Draw gives the executable a sequence of its own.
func (p *processor) Draw(exe driver.Executable, name string) {
	if loaded, ok := exe.(*executable); ok {
		loaded.noise = &sequence{key: p.noiseKey(&loaded.graph)}
		if name != "" {
			loaded.noise.key += "|" + name
		}
	}
}

// noiseKey returns the key of the sequence that executables of a graph share.
func (p *processor) noiseKey(g *op.Graph) string { return p.name + "|" + p.beside + "|" + graphKey(g) }

// Capabilities returns those that the SoC file describes.
func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// String names the processor in errors.
func (p *processor) String() string { return "sim:" + p.name }

// Attach is for the host's kernels, which compute the values; the clock needs no thread.
func (p *processor) Attach() error {
	if p.host == nil {
		return nil
	}
	return p.host.Attach()
}

// Alloc is memory of this machine. Of a processor with memory of its own that does not share what it allocates, both
// memories are the same bytes: copies take time, and change nothing.
func (p *processor) Alloc(bytes int64) (driver.Buffer, error) {
	made, err := driver.AllocHost(p.String(), bytes)
	if err != nil || !p.desc.OwnMemory || p.desc.SharesOwn {
		return made, err
	}
	return mirror{made}, nil
}

// Import takes over memory of this machine without a copy.
func (p *processor) Import(b []byte) (driver.Buffer, error) {
	made, err := driver.ImportHost(p.String(), b)
	if err != nil || !p.desc.OwnMemory {
		return made, err
	}
	return mirror{made}, nil
}

// mirror is a buffer of a processor with memory of its own.
type mirror struct{ driver.Buffer }

// Push copies nothing: both memories are the same bytes.
func (m mirror) Push(offset, count int64) error { return m.within("copy to", offset, count) }

// Pull copies nothing: both memories are the same bytes.
func (m mirror) Pull(offset, count int64) error { return m.within("copy from", offset, count) }

// within refuses bytes that the buffer does not have.
func (m mirror) within(what string, offset, count int64) error {
	if size := int64(len(m.Bytes())); offset < 0 || count < 0 || offset > size || count > size-offset {
		return diag.New(diag.ClassInput, "%s simulated memory: bytes %d..%d of a buffer of %d", what, offset,
			offset+count, size)
	}
	return nil
}

// ReadsTables implements driver.TableReader: what the host reads that computes the results.
func (p *processor) ReadsTables() bool {
	reader, ok := p.host.(driver.TableReader)
	return ok && reader.ReadsTables()
}

// Load checks the graph against the description. Where results are computed, the host loads it too.
func (p *processor) Load(ctx context.Context, artifact driver.Artifact, weights driver.Weights) (driver.Executable,
	error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fail := func(err error) (driver.Executable, error) {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "load artifact on %s: %w", p, err)
	}
	if p.closed {
		return fail(diag.New(diag.ClassRun, "the processor is closed"))
	}
	if artifact.Driver != socs.SimDriver {
		return fail(fmt.Errorf("it was compiled for driver %q, want %q", artifact.Driver, socs.SimDriver))
	}
	graph, err := artifact.ParseGraph()
	if err != nil {
		return fail(err)
	}
	if err := executes(p.desc, p.caps, &graph); err != nil {
		return fail(err)
	}
	key := p.noiseKey(&graph)
	if p.drawn[key] == nil {
		p.drawn[key] = &sequence{key: key}
	}
	exe := &executable{p: p, graph: graph, noise: p.drawn[key]}
	if p.host != nil {
		artifact.Driver = host.Name
		if exe.host, err = p.host.Load(ctx, artifact, weights); err != nil {
			return fail(err)
		}
	}
	return exe, nil
}

// executes checks a graph against the processor's description: operators, shapes, layouts and bytes
// of weights.
func executes(desc *socs.Processor, caps *driver.Capabilities, graph *op.Graph) error {
	timed := model{desc: desc}
	var bytes int64
	for i, node := range graph.Nodes {
		if err := caps.Supports(node.Op); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		if err := timed.feasible(node.Op); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		if node.Op.HasScheme() {
			bytes += int64(max(1, node.Op.Experts)) * op.WeightBytes(node.Op.Scheme.Weight(), node.Op.K, node.Op.N)
		}
	}
	for _, spec := range graph.Weights {
		if want := caps.Layouts[spec.Scheme]; spec.Layout != want {
			return fmt.Errorf("weight %q: layout %q of scheme %q is not supported, want %q", spec.Name, spec.Layout,
				spec.Scheme, want)
		}
	}
	if limit := desc.GraphBytes; limit > 0 && bytes > limit {
		return diag.New(diag.ClassInfeasible, "its weights have %d bytes, processor %q takes graphs of at most %d",
			bytes, desc.Name, limit).WithCode("sim.infeasible")
	}
	return nil
}

// graphKey names the operators of a graph; noise is drawn by it.
func graphKey(g *op.Graph) string {
	keys := make([]string, len(g.Nodes))
	for i, node := range g.Nodes {
		keys[i] = node.Op.Key()
	}
	return strings.Join(keys, ";")
}

// Run computes through the host, if anything is computed, and moves the clock by the graph's time
// in the description, with noise. The phases of the call are kept for Settle, stretched to the same
// time.
func (p *processor) Run(exe driver.Executable, bindings *driver.Bindings) (driver.Span, error) {
	start := p.Now()
	fail := func(err error) (driver.Span, error) {
		return driver.Span{Start: start, End: start}, diag.New(diag.ClassRun, "run on %s: %w", p, err)
	}
	loaded, ok := exe.(*executable)
	switch {
	case p.closed:
		return fail(fmt.Errorf("the processor is closed"))
	case !ok || loaded.p != p:
		return fail(fmt.Errorf("the executable was not loaded on this processor"))
	case loaded.closed:
		return fail(fmt.Errorf("the executable is closed"))
	}
	if err := p.fits(loaded, bindings); err != nil {
		return fail(err)
	}
	if p.host != nil {
		if _, err := p.host.Run(loaded.host, bindings); err != nil {
			return driver.Span{Start: start, End: start}, fmt.Errorf("run on %s: %w", p, err)
		}
	}
	var s *driver.Scalars
	if bindings != nil {
		s = bindings.Scalars
	}
	p.last = p.model.graph(&loaded.graph, s)
	time := total(p.last)
	cv := 0.0
	if p.noisy {
		cv = p.desc.Sim.NoiseCV
	}
	took := max(noisy(time, cv, p.seed, loaded.noise.key, loaded.noise.runs), 0)
	loaded.noise.runs++
	for last := range p.last {
		p.last[last] = p.last[last].Times(float64(took) / max(time, 1e-9))
	}
	if p.desc.OwnMemory && bindings != nil {
		fetch, hand := p.travels(bindings)
		p.last = slices.Concat([]timeline.Phase{{SetupNS: fetch}}, p.last, []timeline.Phase{{SetupNS: hand}})
		took += int64(math.Round(fetch + hand))
	}
	end := start + driver.Tick(took)
	p.now.Store(int64(end))
	return driver.Span{Start: start, End: end}, nil
}

// travels returns what copying the operands of a call takes in ns, before it and behind it, by the links of the control
// processor, whose memory is the host's.
func (p *processor) travels(bindings *driver.Bindings) (fetch, hand float64) {
	all := func(views []driver.View, parts [][]driver.Rect, from, to string) (ns float64) {
		link, ok := p.soc.Link(from, to)
		if !ok || link.CopyGBps == 0 {
			return 0
		}
		for i, view := range views {
			if _, mirrors := view.Buffer.(driver.Mirror); !mirrors {
				continue
			}
			rows := view.Rows
			if p.caps.DynamicRows && bindings.Scalars != nil {
				rows = min(rows, bindings.Scalars.Rows)
			}
			travel := driver.Everything
			if parts != nil {
				travel = parts[i]
			}
			for _, part := range travel {
				if part = part.Within(rows, view.Cols); part.Empty() {
					continue
				}
				bytes := int64(part.R1-part.R0) * int64(part.C1-part.C0) * int64(view.Type.Bytes())
				ns += float64(1e3*link.CopyLaunchUS) + float64(bytes)/link.CopyGBps
			}
		}
		return ns
	}
	var moves driver.Moves
	if bindings.Moves != nil {
		moves = *bindings.Moves
	}
	fetch = all(bindings.In, moves.Fetch, p.soc.Control, p.name)
	hand = all(bindings.Out, moves.Hand, p.name, p.soc.Control)
	return fetch, hand
}

// fits refuses calls that the host could serve but the described processor could not.
func (p *processor) fits(exe *executable, bindings *driver.Bindings) error {
	if bindings == nil {
		if p.host != nil {
			return fmt.Errorf("no bindings")
		}
		return nil
	}
	static := !p.caps.DynamicRows && !exe.graph.CountsRows()
	if static && bindings.Scalars != nil && bindings.Scalars.Rows != exe.graph.Rows() {
		return fmt.Errorf("got rows %d, the graph is compiled for exactly %d rows", bindings.Scalars.Rows,
			exe.graph.Rows())
	}
	if bindings.Moves != nil {
		if err := bindings.Moves.Fits(bindings); err != nil {
			return err
		}
	}
	dense := func(what string, values []op.Value, views []driver.View) error {
		for i, view := range views {
			if i < len(values) && view.Rows > 1 && view.Stride > view.Cols {
				return fmt.Errorf("%s %q has stride %d, want %d: the processor takes no column ranges of wider buffers", what, values[i].Name, view.Stride, view.Cols)
			}
		}
		return nil
	}
	anyStride := !slices.ContainsFunc(exe.graph.Nodes, func(node op.Node) bool { return !node.Op.Kind.AnyStride() })
	if !p.caps.StridedInput && !anyStride {
		if err := dense("input", exe.graph.Inputs, bindings.In); err != nil {
			return err
		}
	}
	if !p.caps.StridedOutput && !anyStride {
		return dense("output", exe.graph.Outputs, bindings.Out)
	}
	return nil
}

// Now returns the virtual clock of this processor, in ns.
func (p *processor) Now() driver.Tick { return driver.Tick(p.now.Load()) }

// WaitUntil moves the clock forward to t, as waiting would. It never goes back.
func (p *processor) WaitUntil(t driver.Tick) {
	if int64(t) > p.now.Load() {
		p.now.Store(int64(t))
	}
}

// Close closes the host processor that computes values, if there is one.
func (p *processor) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	if p.host != nil {
		return p.host.Close()
	}
	return nil
}

// Close closes what the host has loaded for it.
func (e *executable) Close() error {
	e.closed = true
	if e.host != nil {
		return e.host.Close()
	}
	return nil
}
