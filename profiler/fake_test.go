package profiler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"

	"path/filepath"
)

// fake is a driver whose processors keep time by a cost function instead of computing. Its clock is
// shared by all processors, so that it can also serve as the clock of the budget.
type fake struct {
	clock atomic.Int64 // ns
	runs  atomic.Int64
	// cost is the time of execution i (counted per graph) of an operator on a processor.
	cost func(proc string, o op.Op, i int) float64
	// fail may refuse or break a call: "load" or "run".
	fail func(what, proc string, o op.Op) error
	// busy is how long a run takes in real time; needed only where two run at the same time.
	busy    time.Duration
	running atomic.Int32
	used    map[string]map[string]bool // by operator: the experts it has used

	unopened error           // of processors that cannot be opened
	emulated bool            // results are a device's, times are not
	prepacks bool            // loading copies weights
	loaded   map[string]int  // by operator: executables
	weights  map[string]bool // first bytes of weights, by operator

	readers map[*byte]string // processors by the weights that they read, where that is recorded
	streams atomic.Int64     // bytes read by the kernels' own loop
}

func (f *fake) Name() string { return "fake" }

func (f *fake) Devices(context.Context) ([]driver.Device, error) {
	return []driver.Device{{Select: "a", Cores: []int{0}}, {Select: "b", Cores: []int{1}}}, nil
}

func (f *fake) Open(_ context.Context, c driver.Config) (driver.Processor, error) {
	if f.unopened != nil {
		return nil, f.unopened
	}
	return &fakeProcessor{f: f, name: c.Select, counts: map[string]*int{}}, nil
}

type fakeProcessor struct {
	f        *fake
	counts   map[string]*int // executions of each graph
	name     string
	attached bool
	closed   bool
}

type fakeExecutable struct {
	o    op.Op
	runs *int
	w    driver.Weights
	used map[string]bool // experts, by copy of the weights and number
}

func (fakeExecutable) Close() error { return nil }

func (p *fakeProcessor) Capabilities() *driver.Capabilities {
	return &driver.Capabilities{Emulated: p.f.emulated, Set: capability.Set{
		Tile: capability.Tile{K: 32, N: 32}, Kinds: op.Kinds, Schemes: op.Schemes, KV: []op.Type{op.F32},
		StaticShapes: true, Prepacks: p.f.prepacks,
		Layouts: map[string]string{"w32": pack.N32, "q8c": pack.N32, "q4b32": pack.N32},
	}}
}

func (p *fakeProcessor) Attach() error {
	if p.attached {
		return errors.New("attached twice")
	}
	p.attached = true
	return nil
}

// Bounds has a loop that counts what it reads.
func (p *fakeProcessor) Bounds() driver.Bounds {
	return driver.Bounds{Kernels: "fake", Stream: func(data []byte) uint64 {
		p.f.streams.Add(int64(len(data)))
		return readMemory(data)
	}}
}

type fakeBuffer []byte

func (b fakeBuffer) Bytes() []byte { return b }
func (b fakeBuffer) Close() error  { return nil }

func (p *fakeProcessor) Alloc(n int64) (driver.Buffer, error) {
	return fakeBuffer(make([]byte, n)), nil
}
func (p *fakeProcessor) Import(b []byte) (driver.Buffer, error) { return fakeBuffer(b), nil }

// Load checks the weights as a real driver would, and counts executions per graph, not per copy.
func (p *fakeProcessor) Load(_ context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	var graph op.Graph
	if err := json.Unmarshal(a.Code, &graph); err != nil {
		return nil, err
	}
	if err := graph.Validate(); err != nil {
		return nil, err
	}
	if len(w) != len(graph.Weights) {
		return nil, fmt.Errorf("got %d weights, want %d", len(w), len(graph.Weights))
	}
	for i, spec := range graph.Weights {
		if n, err := pack.Bytes(spec); err != nil || int64(len(w[i].Bytes)) != n {
			return nil, fmt.Errorf("weight %q: %d bytes, want %d, %v", spec.Name, len(w[i].Bytes), n, err)
		} else if want := n / int64(max(1, spec.Experts)); spec.Experts > 0 && w[i].Stride != want {
			return nil, fmt.Errorf("weight %q: experts are %d bytes apart, want %d", spec.Name, w[i].Stride, want)
		}
	}
	operator := graph.Nodes[0].Op
	if p.f.fail != nil {
		if err := p.f.fail("load", p.name, operator); err != nil {
			return nil, err
		}
	}
	if p.f.loaded != nil {
		p.f.loaded[operator.Key()]++
		p.f.weights[fmt.Sprintf("%s %x", operator.Key(), w[0].Bytes[:2])] = true
	}
	if p.f.readers != nil {
		at := &w[0].Bytes[0]
		if other, ok := p.f.readers[at]; ok && other != p.name {
			return nil, fmt.Errorf("processors %q and %q read the same weights", other, p.name)
		}
		p.f.readers[at] = p.name
	}
	if p.counts[operator.Key()] == nil {
		p.counts[operator.Key()] = new(int)
	}
	e := &fakeExecutable{o: operator, runs: p.counts[operator.Key()], w: w}
	if operator.Kind == op.ExpertMatMul {
		if p.f.used == nil {
			p.f.used = map[string]map[string]bool{}
		}
		if p.f.used[operator.Key()] == nil {
			p.f.used[operator.Key()] = map[string]bool{}
		}
		e.used = p.f.used[operator.Key()]
	}
	return e, nil
}

// choose checks ids of experts: of each token different ones, all used alike. It notes who was used.
func (e *fakeExecutable) choose(v driver.View) error {
	counts := make([]int, e.o.Experts)
	ids, err := mem.View[int32](v.Bytes())
	if err != nil {
		return err
	}
	for i, id := range ids {
		if id < 0 || int(id) >= e.o.Experts || slices.Contains(ids[i/e.o.Fan*e.o.Fan:i], id) {
			return fmt.Errorf("ids %v of %d experts", ids[i/e.o.Fan*e.o.Fan:i+1], e.o.Experts)
		}
		counts[id]++
		e.used[fmt.Sprintf("%p %d", &e.w[0].Bytes[0], id)] = true
	}
	if slices.Max(counts)-slices.Min(counts) > 1 {
		return fmt.Errorf("experts are used %v times", counts)
	}
	return nil
}

func (p *fakeProcessor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	e := exe.(*fakeExecutable)
	if !p.attached || p.closed {
		return driver.Span{}, errors.New("not attached, or closed")
	}
	sig := e.o.Sig()
	for i, v := range append(append([]driver.View(nil), b.In...), b.Out...) {
		want := append(append([]op.Value(nil), sig.In...), sig.Out...)[i]
		if v.Rows != want.Rows || v.Cols != want.Cols || v.Type != want.Type || len(v.Bytes()) == 0 {
			return driver.Span{}, fmt.Errorf("operand %d is %v, want %v", i, v, want)
		}
	}
	if sig.State && (len(b.K.Bytes()) == 0 || b.K.Rows != e.o.KVHeads*b.MaxContext || b.Scalars.KVLen > b.MaxContext ||
		b.V.Offset == b.K.Offset) {
		return driver.Span{}, fmt.Errorf("caches %v %v do not fit %+v", b.K, b.V, b.Scalars)
	}
	if e.o.Kind == op.ExpertMatMul {
		if err := e.choose(b.In[len(b.In)-1]); err != nil {
			return driver.Span{}, err
		}
	}
	if p.f.fail != nil {
		if err := p.f.fail("run", p.name, e.o); err != nil {
			return driver.Span{}, err
		}
	}
	p.f.running.Add(1)
	if p.f.busy > 0 {
		time.Sleep(p.f.busy)
	}
	ns := p.f.cost(p.name, e.o, *e.runs)
	p.f.running.Add(-1)
	*e.runs++
	p.f.runs.Add(1)
	end := p.f.clock.Add(int64(ns))
	return driver.Span{Start: driver.Tick(end - int64(ns)), End: driver.Tick(end)}, nil
}

func (p *fakeProcessor) Now() driver.Tick      { return driver.Tick(p.f.clock.Load()) }
func (p *fakeProcessor) WaitUntil(driver.Tick) {}
func (p *fakeProcessor) Close() error          { p.closed = true; return nil }

// fakeCompiler writes graphs as JSON.
type fakeCompiler struct{}

func (fakeCompiler) Name() string { return "fake" }
func (fakeCompiler) Compile(_ context.Context, g op.Graph, _ driver.Weights, t driver.Target) (driver.Artifact, error) {
	code, err := json.Marshal(&g)
	return driver.Artifact{Driver: "fake", Code: code}, err
}

// fakeSoC has processors a and b on cores 0 and 1, and c on both.
func fakeSoC() *socs.SoC {
	soc := &socs.SoC{Schema: socs.Schema, Name: "fake", Control: "a", Fingerprint: "f",
		CPU: &socs.CPU{Cores: 2, Caches: []socs.Cache{{Name: "l2", Level: 2, Bytes: 1 << 20}}}}
	for i, cores := range [][]int{{0}, {1}, {0, 1}} {
		name := string(rune('a' + i))
		soc.Processors = append(soc.Processors, socs.Processor{Name: name, Kind: socs.KindCPU, Driver: "fake",
			Select: name, Cores: cores,
			Set: capability.Set{Tile: capability.Tile{M: 1, K: 32, N: 32}, Schemes: op.Schemes, KV: []op.Type{op.F32},
				Layouts: map[string]string{"w32": pack.N32, "w16": pack.N32, "q8c": pack.N32, "q4b32": pack.N32}}})
	}
	return soc
}

func (f *fake) options() Options {
	return Options{
		Drivers: map[string]driver.Driver{"fake": f}, Compilers: map[string]driver.Compiler{"fake": fakeCompiler{}},
		Seed: 1, window: 2 * time.Millisecond, memory: 8 << 20,
		now: func() time.Time { return time.Unix(0, f.clock.Load()) },
	}
}

// newRecord makes an empty record for s and returns its path, too.
func newRecord(t testing.TB, soc *socs.SoC) (*record.Writer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.jsonl")
	writer, err := record.Create(path, fakeHeader(t, soc))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { writer.Close() })
	return writer, path
}

func fakeHeader(t testing.TB, soc *socs.SoC) record.Header {
	t.Helper()
	digest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return record.Header{Schema: record.Schema, SoC: soc.Name, SoCDigest: digest, Fingerprint: soc.Fingerprint,
		Simulated: soc.Simulated(), Hetc: "test"}
}

func matmul(m int) *op.Op { return &op.Op{Kind: op.MatMul, M: m, K: 64, N: 96, Scheme: op.A8TQ8C} }

// ask is a request for an operator on a processor.
func ask(proc string, operator *op.Op, priority int) Request {
	measured := record.Measurement{Kind: record.Op, Proc: proc, Op: operator, Unit: "ns"}
	if operator.HasScheme() {
		measured.Layout, measured.Cold, measured.Footprint = pack.N32, true, 1<<16 // few copies, which load fast
	}
	return Request{What: measured, Priority: priority}
}
