package sim

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

// processor is one simulated processor with its own virtual clock. Run does not know what others do at the same virtual
// time, because lanes reach it in no fixed order: it takes as long as alone. Settle finds out how long calls took side by side.
type processor struct {
	name   string
	soc    *socs.SoC
	desc   *socs.Processor
	caps   *driver.Capabilities
	model  model
	host   driver.Processor // nil: nothing is computed
	noisy  bool
	seed   uint64
	beside string

	now    atomic.Int64      // other lanes' goroutines may look
	counts map[string]uint64 // runs so far of each graph
	last   []timeline.Phase  // of the latest call
	closed bool
}

type executable struct {
	p     *processor
	graph op.Graph
	key   string
	host  driver.Executable

	closed bool
}

func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

func (p *processor) String() string { return "sim:" + p.name }

func (p *processor) Attach() error {
	if p.host == nil {
		return nil
	}
	return p.host.Attach()
}

func (p *processor) Alloc(bytes int64) (driver.Buffer, error) {
	return driver.AllocHost(p.String(), bytes)
}

func (p *processor) Import(b []byte) (driver.Buffer, error) { return driver.ImportHost(p.String(), b) }

func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fail := func(err error) (driver.Executable, error) {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "load artifact on %s: %w", p, err)
	}
	if p.closed {
		return fail(diag.New(diag.ClassRun, "the processor is closed"))
	}
	if a.Driver != socs.SimDriver {
		return fail(fmt.Errorf("it was compiled for driver %q, want %q", a.Driver, socs.SimDriver))
	}
	g, err := driver.ParseGraph(a.Code)
	if err != nil {
		return fail(err)
	}
	if err := executes(p.desc, p.caps, &g); err != nil {
		return fail(err)
	}
	e := &executable{p: p, graph: g, key: p.name + "|" + p.beside + "|" + graphKey(&g)}
	if p.host != nil {
		a.Driver = host.Name
		if e.host, err = p.host.Load(ctx, a, w); err != nil {
			return fail(err)
		}
	}
	return e, nil
}

// executes checks a graph against the processor's description.
func executes(desc *socs.Processor, caps *driver.Capabilities, g *op.Graph) error {
	m := model{desc: desc}
	var bytes int64
	for i, n := range g.Nodes {
		if err := caps.Supports(n.Op); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		if err := m.feasible(n.Op); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		if n.Op.HasScheme() {
			bytes += int64(max(1, n.Op.Experts)) * op.WeightBytes(n.Op.Scheme.Weight(), n.Op.K, n.Op.N)
		}
	}
	for _, w := range g.Weights {
		if want := caps.Layouts[w.Scheme]; w.Layout != want {
			return fmt.Errorf("weight %q: layout %q of scheme %q is not supported, want %q", w.Name, w.Layout, w.Scheme, want)
		}
	}
	if limit := desc.GraphBytes; limit > 0 && bytes > limit {
		return diag.New(diag.ClassInfeasible, "its weights have %d bytes, processor %q takes graphs of at most %d", bytes, desc.Name, limit).WithCode("sim.infeasible")
	}
	return nil
}

// graphKey names the operators of a graph, for the noise.
func graphKey(g *op.Graph) string {
	keys := make([]string, len(g.Nodes))
	for i, n := range g.Nodes {
		keys[i] = n.Op.Key()
	}
	return strings.Join(keys, ";")
}

func (p *processor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	start := p.Now()
	fail := func(err error) (driver.Span, error) {
		return driver.Span{Start: start, End: start}, diag.New(diag.ClassRun, "run on %s: %w", p, err)
	}
	e, ok := exe.(*executable)
	switch {
	case p.closed:
		return fail(fmt.Errorf("the processor is closed"))
	case !ok || e.p != p:
		return fail(fmt.Errorf("the executable was not loaded on this processor"))
	case e.closed:
		return fail(fmt.Errorf("the executable is closed"))
	}
	if err := p.fits(e, b); err != nil {
		return fail(err)
	}
	if p.host != nil {
		if _, err := p.host.Run(e.host, b); err != nil {
			return driver.Span{Start: start, End: start}, fmt.Errorf("run on %s: %w", p, err)
		}
	}
	var s *driver.Scalars
	if b != nil {
		s = b.Scalars
	}
	p.last = p.model.graph(&e.graph, s)
	t := total(p.last)
	cv := 0.0
	if p.noisy {
		cv = p.desc.Sim.NoiseCV
	}
	i := p.counts[e.key]
	p.counts[e.key]++
	took := max(noisy(t, cv, p.seed, e.key, i), 0)
	for k := range p.last {
		p.last[k] = p.last[k].Times(float64(took) / max(t, 1e-9))
	}
	end := start + driver.Tick(took)
	p.now.Store(int64(end))
	return driver.Span{Start: start, End: end}, nil
}

// fits refuses calls that the host could serve and the described processor could not.
func (p *processor) fits(e *executable, b *driver.Bindings) error {
	if b == nil {
		if p.host != nil {
			return fmt.Errorf("no bindings")
		}
		return nil
	}
	if !p.caps.DynamicRows && b.Scalars != nil && b.Scalars.Rows != e.graph.Rows() {
		return fmt.Errorf("got rows %d, the graph is compiled for exactly %d rows", b.Scalars.Rows, e.graph.Rows())
	}
	dense := func(what string, values []op.Value, views []driver.View) error {
		for i, v := range views {
			if i < len(values) && v.Rows > 1 && v.Stride > v.Cols {
				return fmt.Errorf("%s %q has stride %d, want %d: the processor takes no column ranges of wider buffers", what, values[i].Name, v.Stride, v.Cols)
			}
		}
		return nil
	}
	if !p.caps.StridedInput {
		if err := dense("input", e.graph.Inputs, b.In); err != nil {
			return err
		}
	}
	if !p.caps.StridedOutput {
		return dense("output", e.graph.Outputs, b.Out)
	}
	return nil
}

func (p *processor) Now() driver.Tick { return driver.Tick(p.now.Load()) }

func (p *processor) WaitUntil(t driver.Tick) {
	if int64(t) > p.now.Load() {
		p.now.Store(int64(t))
	}
}

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

func (e *executable) Close() error {
	e.closed = true
	if e.host != nil {
		return e.host.Close()
	}
	return nil
}
