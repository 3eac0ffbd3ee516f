package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// patience is how long one call may take before it counts as a hang.
const patience = 2 * time.Minute

// lane is a goroutine with its own OS thread, which ends with it.
type lane struct {
	calls chan func()
	ended chan struct{}
}

func startLane() *lane {
	l := &lane{calls: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		runtime.LockOSThread()
		for f := range l.calls {
			f()
		}
	}()
	return l
}

// do runs f on the lane.
func (l *lane) do(f func() error) error {
	result := make(chan error, 1)
	l.calls <- func() { result <- f() }
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		return fmt.Errorf("no answer within %v", patience)
	}
}

func (l *lane) stop() {
	close(l.calls)
	<-l.ended
}

// session is one open processor on its lane.
type session struct {
	t    testing.TB
	f    *Factory
	proc driver.Processor
	caps *driver.Capabilities
	lane *lane
}

// open skips the test when the driver is unavailable here and not required.
func open(t testing.TB, f *Factory, c driver.Config) *session {
	t.Helper()
	p, err := f.Driver.Open(context.Background(), c)
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable) {
		require.Skip(t, f.Driver.Name(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, f: f, proc: p, caps: p.Capabilities(), lane: startLane()}
	t.Cleanup(s.close)
	if err := s.lane.do(p.Attach); err != nil {
		t.Fatalf("attach: %v", err)
	}
	return s
}

func (s *session) close() {
	if s.lane == nil {
		return
	}
	if err := s.lane.do(s.proc.Close); err != nil {
		s.t.Errorf("close: %v", err)
	}
	s.lane.stop()
	s.lane = nil
}

// trial is a graph with data and a place for it.
type trial struct {
	s       *session
	graph   op.Graph
	vals    map[string]*array
	weights map[string]stored
	packed  driver.Weights
	cache   *cache
	exe     driver.Executable
	loose   float64 // tolerance relative to the largest result, for graphs of several nodes
	// rerounds: a product rounds activations again.
	rerounds bool
	slack    float64 // the part of an array's slack that is permitted
}

// place says where operands lie in their buffers: gap columns on either side, more rows below.
type place struct{ gap, below int }

// newTrial fills inputs and weights with data that follow from the seed, packs, compiles and loads.
func (s *session) newTrial(g op.Graph, maxContext int, seed uint64) *trial {
	s.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	tr := &trial{s: s, graph: g, vals: map[string]*array{}, weights: map[string]stored{}}
	for _, list := range [][]op.Value{g.Inputs, g.Outputs, g.Temps} {
		for _, v := range list {
			if tr.vals[v.Name] == nil {
				tr.vals[v.Name] = newArray(v)
			}
		}
	}
	if len(g.Nodes) > 1 {
		tr.loose = 1e-4
	}
	invfreq := map[string]int{} // of a rotation: angles in a row of the table
	static := map[string]bool{} // scales of rows
	steps := map[string]int{}   // of a grid: how many products a result sums
	for _, n := range g.Nodes {
		if n.Op.HasScheme() && slices.Contains(s.caps.Rerounds, n.Op.Scheme) {
			tr.rerounds = true
		}
	}
	for _, n := range g.Nodes {
		switch n.Op.Kind {
		case op.MatMul:
			if n.Op.Scheme.Grid() {
				steps[n.W[len(n.W)-1]] = n.Op.K
			}
			if len(g.Nodes) > 1 && (n.Op.Scheme.Grid() || n.Op.Scheme.Half()) {
				tr.loose = max(tr.loose, 3e-3)
			}
		case op.QuantRows:
			if n.Op.Static {
				static[n.W[0]] = true
			}
			if len(g.Nodes) > 1 {
				tr.loose = 1e-2 // a value between two codes may take either
				if tr.rerounds {
					tr.loose = 5e-2
				}
			}
		case op.Rope:
			invfreq[n.W[0]] = n.Op.Rotary() / 2
		case op.KVAppend, op.Attention:
			sequences := 3
			if n.Op.Batch {
				sequences = n.Op.M
			}
			size := sequences * n.Op.KVHeads * maxContext * n.Op.HeadDim
			if tr.cache == nil {
				tr.cache = &cache{typ: n.Op.KV, heads: n.Op.KVHeads, dim: n.Op.HeadDim, maxContext: maxContext, sequences: sequences, k: make([]float64, size), v: make([]float64, size)}
				for i := range size {
					tr.cache.k[i], tr.cache.v[i] = round(n.Op.KV, rng.NormFloat64()), round(n.Op.KV, rng.NormFloat64())
				}
			}
		}
	}
	switch {
	case tr.rerounds:
		tr.slack = 1
	case len(g.Nodes) == 1 && g.Nodes[0].Op.Act != "":
		tr.slack = s.f.Activations
	}
	tr.fill(rng)
	for i, spec := range g.Weights {
		p, w := s.weigh(rng, spec, invfreq[spec.Name], static[spec.Name], steps[spec.Name])
		tr.weights[spec.Name] = w
		p.Spec.Name = fmt.Sprintf("pack.%d", i) // an artifact serves many weights, whose names differ
		tr.packed = append(tr.packed, p)
	}
	if err := tr.load(); err != nil {
		s.t.Fatal(err)
	}
	return tr
}

// Pack packs values [K,N].
func Pack(dst []byte, spec op.WeightSpec, values []float32) error {
	src, err := pack.Floats(values, spec.K, spec.N)
	if err != nil {
		return err
	}
	return pack.Pack(dst, spec, src)
}

// weigh packs random numbers, a table of frequencies with that many in a row, a static scale with which some rows saturate,
// or steps of a grid, with which a few activations and results of sums of that many products do.
func (s *session) weigh(rng *rand.Rand, spec op.WeightSpec, angles int, static bool, sums int) (driver.Packed, stored) {
	s.t.Helper()
	one := spec
	one.Experts = 0
	bytes, err := pack.Bytes(one)
	if err != nil {
		s.t.Fatal(err)
	}
	count, size := max(1, spec.Experts), spec.K*spec.N
	p := driver.Packed{Spec: spec, Bytes: s.memory(bytes * int64(count))}
	if spec.Experts > 0 {
		p.Stride = bytes
	}
	w := stored{spec.K, spec.N, make([]float32, count*size)}
	for e := range count {
		values, packed := make([]float32, size), p.Bytes[int64(e)*bytes:][:bytes]
		for j := range values {
			values[j] = float32(rng.NormFloat64())
			if static {
				values[j] = 0.002 + float32(math.Abs(float64(values[j])))/50
			}
			if sums > 0 {
				values[j] = 8e-5
				if j >= spec.N {
					values[j] *= float32(math.Sqrt(float64(sums)))
				}
			}
			if angles > 0 {
				values[j] = float32(math.Pow(10000, -float64(j%angles)/float64(angles))) / float32(1+3*(j/angles))
			}
		}
		if err := Pack(packed, one, values); err != nil {
			s.t.Fatal(err)
		}
		if err := pack.Unpack(w.v[e*size:(e+1)*size], one, packed); err != nil {
			s.t.Fatal(err)
		}
	}
	return p, w
}

// fill gives every input new numbers.
func (tr *trial) fill(rng *rand.Rand) {
	role := map[string]string{}
	indices := map[string]int{} // number of rows or experts that ids choose from
	for _, n := range tr.graph.Nodes {
		for i, v := range n.Op.Sig().In {
			role[n.In[i]] = v.Name
			if v.Name == "ids" {
				indices[n.In[i]] = n.Op.K
				if n.Op.Kind == op.ExpertMatMul {
					indices[n.In[i]] = n.Op.Experts
				}
			}
		}
	}
	for _, v := range tr.graph.Inputs {
		a := tr.vals[v.Name]
		// Of ids: all rows, every other one, or a single one.
		choices, step := indices[v.Name], 1
		switch rng.IntN(4) {
		case 0:
			choices, step = (choices+1)/2, 2
		case 1:
			choices, step = 1, max(1, choices-1)
		}
		offset := rng.IntN(max(1, indices[v.Name]-(choices-1)*step))
		role := role[v.Name]
		for i := range a.v {
			switch {
			case role == "ids":
				a.v[i] = float64(offset + step*rng.IntN(choices))
			case role == "scale":
				a.v[i] = float64(rng.Float32()) / 64
			case role == "logits" && i/v.Cols%2 == 1: // ties, and logits near to each other
				a.v[i] = 1 + float64(rng.IntN(5))/16
			case v.Type == op.F32:
				a.v[i] = float64(float32(rng.NormFloat64()))
			case v.Type == op.U8:
				a.v[i] = float64(1 + rng.IntN(255))
			default:
				a.v[i] = float64(rng.IntN(200) - 100)
			}
		}
	}
}

// memory is 64-byte aligned memory of the host, freed after the test.
func (s *session) memory(bytes int64) []byte {
	r, err := mem.Alloc(int(bytes), 64)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { r.Close() })
	return r.Bytes()
}

func (s *session) compile(g op.Graph, w driver.Weights) (driver.Artifact, error) {
	return s.f.Compiler.Compile(context.Background(), g, w, driver.Target{Proc: "p", Options: s.f.Config.Options})
}

func (s *session) load(a driver.Artifact, w driver.Weights) (exe driver.Executable, err error) {
	err = s.lane.do(func() (err error) {
		exe, err = s.proc.Load(context.Background(), a, w)
		return err
	})
	return exe, err
}

func (tr *trial) load() error {
	a, err := tr.s.compile(tr.graph, tr.packed)
	if err != nil {
		return err
	}
	tr.exe, err = tr.s.load(a, tr.packed)
	if err == nil {
		tr.s.t.Cleanup(func() { tr.exe.Close() })
	}
	return err
}

// untouched fills memory before a call.
const untouched = 0xa5

// bound is the operands of one call in memory.
type bound struct {
	b     driver.Bindings
	views map[string]driver.View
}

// bind puts inputs into memory and reserves outputs. Every other operand is imported, the rest is
// allocated by the processor.
func (tr *trial) bind(p place, sc driver.Scalars) *bound {
	s := tr.s
	out := &bound{views: map[string]driver.View{}}
	out.b.Scalars = &sc
	buffer := func(bytes int64) driver.Buffer {
		var b driver.Buffer
		err := s.lane.do(func() (err error) {
			if len(out.views)%2 == 0 {
				b, err = s.proc.Import(s.memory(bytes))
			} else {
				b, err = s.proc.Alloc(bytes)
			}
			return err
		})
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { b.Close() })
		return b
	}
	view := func(v op.Value) driver.View {
		if w, ok := out.views[v.Name]; ok {
			return w
		}
		size := int64(v.Type.Bytes())
		w := driver.View{Type: v.Type, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols + 2*p.gap, Offset: int64(p.gap) * size}
		w.Buffer = buffer(int64(v.Rows+p.below) * int64(w.Stride) * size)
		fillBytes(w.Buffer.Bytes(), untouched)
		out.views[v.Name] = w
		return w
	}
	for _, v := range tr.graph.Inputs {
		w := view(v)
		store(w, tr.vals[v.Name].v)
		out.b.In = append(out.b.In, w)
	}
	for _, v := range tr.graph.Outputs {
		out.b.Out = append(out.b.Out, view(v))
	}
	if c := tr.cache; c != nil {
		if c.kbuf == nil {
			rows := c.sequences * c.heads * c.maxContext
			bytes := int64(rows*c.dim) * int64(c.typ.Bytes())
			c.kbuf, c.vbuf = buffer(bytes), buffer(bytes)
			c.kview = driver.View{Buffer: c.kbuf, Type: c.typ, Rows: rows, Cols: c.dim, Stride: c.dim}
			c.vview = c.kview
			c.vview.Buffer = c.vbuf
			store(c.kview, c.k)
			store(c.vview, c.v)
		}
		out.b.K, out.b.V, out.b.MaxContext = c.kview, c.vview, c.maxContext
		out.b.K.Rows, out.b.V.Rows = c.heads*c.maxContext, c.heads*c.maxContext
		out.b.Sequences, out.b.SequenceBytes = c.sequences, int64(c.heads*c.maxContext*c.dim*c.typ.Bytes())
	}
	return out
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// store writes dense numbers to a view.
func store(w driver.View, v []float64) {
	b, size := w.Bytes(), w.Type.Bytes()
	for r := range w.Rows {
		for c := range w.Cols {
			encode(b[(r*w.Stride+c)*size:], w.Type, v[r*w.Cols+c])
		}
	}
}

func (s *session) run(exe driver.Executable, b *driver.Bindings) (span driver.Span, err error) {
	err = s.lane.do(func() (err error) {
		span, err = s.proc.Run(exe, b)
		return err
	})
	return span, err
}

// check runs one call and compares everything it wrote with the oracle, and everything else with what
// was there before.
func (tr *trial) check(p place, sc driver.Scalars) {
	t := tr.s.t
	t.Helper()
	b := tr.bind(p, sc)
	before := map[string][]byte{}
	for name, v := range b.views {
		before[name] = bytes.Clone(v.Buffer.Bytes())
	}
	from := tr.s.proc.Now()
	span, err := tr.s.run(tr.exe, &b.b)
	if err != nil {
		t.Fatal(err)
	}
	if now := tr.s.proc.Now(); span.Start < from || span.End < span.Start || now < span.End {
		t.Errorf("span %v does not lie between the clock's %v and %v", span, from, now)
	}
	evaluate(&tr.graph, tr.vals, tr.weights, tr.cache, sc)
	outputs := map[string]bool{}
	for _, v := range tr.graph.Outputs {
		outputs[v.Name] = true
		tr.compare(tr.vals[v.Name], b.views[v.Name], before[v.Name], rowsInUse(&tr.graph, v.Name, sc.Rows))
	}
	updated := map[string]bool{} // in place, and not an output: undefined afterwards
	for _, n := range tr.graph.Nodes {
		for _, name := range n.Out {
			updated[name] = true
		}
	}
	for _, v := range tr.graph.Inputs {
		if !outputs[v.Name] && !updated[v.Name] && !bytes.Equal(before[v.Name], b.views[v.Name].Buffer.Bytes()) {
			t.Fatalf("input %q was changed", v.Name)
		}
	}
	if c := tr.cache; c != nil {
		tr.compareCache("k", c.kview, c.k)
		tr.compareCache("v", c.vview, c.v)
	}
}

func (tr *trial) compare(want *array, w driver.View, before []byte, rows int) {
	t := tr.s.t
	t.Helper()
	size, name := w.Type.Bytes(), want.value.Name
	all := w.Buffer.Bytes()
	largest := 0.0
	for _, v := range want.v[:rows*w.Cols] {
		largest = math.Max(largest, math.Abs(v))
	}
	for i := 0; i < len(all); i += size {
		at := i - int(w.Offset)
		r, c := at/size/w.Stride, at/size%w.Stride
		if at < 0 || c >= w.Cols || r >= w.Rows {
			if !bytes.Equal(all[i:i+size], before[i:i+size]) {
				t.Fatalf("output %q: byte %d outside the view was changed", name, i)
			}
			continue
		}
		got := decode(all[i:], w.Type)
		if r >= rows {
			if got != 0 && !bytes.Equal(all[i:i+size], before[i:i+size]) {
				t.Fatalf("output %q: row %d is not in use, but [%d,%d] became %v", name, r, r, c, got)
			}
			continue
		}
		j := r*w.Cols + c
		allowed := tr.s.f.tolerance()*want.size[j] + 1e-37
		allowed += tr.slack*want.slack[j] + want.doubt[j]
		switch {
		case tr.loose > 0:
			allowed = tr.loose * largest
		case w.Type == op.U8:
			allowed = want.size[j]
		}
		if !(math.Abs(got-want.v[j]) <= allowed) {
			t.Fatalf("output %q [%d,%d]: got %v, want %v within %.3g", name, r, c, got, want.v[j], allowed)
		}
	}
}

// compareCache also takes over what the processor stored, so that errors do not add up over calls.
func (tr *trial) compareCache(name string, w driver.View, want []float64) {
	t := tr.s.t
	t.Helper()
	b, size := w.Bytes(), w.Type.Bytes()
	tolerance := math.Max(tr.s.f.tolerance(), tr.loose)
	if w.Type == op.F16 {
		tolerance += 1e-3
	}
	for i, v := range want {
		got := decode(b[i*size:], w.Type)
		if len(tr.graph.Nodes) == 1 && got != v {
			t.Fatalf("cache %s, row %d, column %d: got %v, want %v", name, i/w.Cols, i%w.Cols, got, v)
		}
		if !(math.Abs(got-v) <= tolerance*(math.Abs(v)+10)) {
			t.Fatalf("cache %s, row %d, column %d: got %v, want %v", name, i/w.Cols, i%w.Cols, got, v)
		}
		want[i] = got
	}
}
