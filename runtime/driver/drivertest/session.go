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
	"github.com/hetc/hetc/internal/patience"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// mostWait is how long this process runs while it waits for one call before that counts as a hang.
const mostWait = 2 * time.Minute

// lane is a goroutine with its own OS thread, which ends with it.
type lane struct {
	calls chan func()
	ended chan struct{}
}

// startLane starts the thread; stop ends it.
func startLane() *lane {
	started := &lane{calls: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(started.ended)
		runtime.LockOSThread()
		for call := range started.calls {
			call()
		}
	}()
	return started
}

// do runs f on the lane.
func (l *lane) do(f func() error) error {
	result := make(chan error, 1)
	l.calls <- func() { result <- f() }
	err, answered := patience.Await(result, mostWait)
	if !answered {
		return fmt.Errorf("no answer within %v", mostWait)
	}
	return err
}

// stop ends the lane after its last call. A call that hangs blocks it.
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

// open opens and attaches a processor. It skips the test where the driver is unavailable and not
// required.
func open(t testing.TB, f *Factory, c driver.Config) *session {
	t.Helper()
	proc, err := f.Driver.Open(context.Background(), c)
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable) {
		require.Skip(t, f.Driver.Name(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	opened := &session{t: t, f: f, proc: proc, caps: proc.Capabilities(), lane: startLane()}
	t.Cleanup(opened.close)
	if err := opened.lane.do(proc.Attach); err != nil {
		t.Fatalf("attach: %v", err)
	}
	return opened
}

// do runs f on the lane, and ends the test if it fails.
func (s *session) do(f func() error) {
	s.t.Helper()
	if err := s.lane.do(f); err != nil {
		s.t.Fatal(err)
	}
}

// close closes the processor on its lane and ends the lane. Further calls do nothing.
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

// trial is a compiled and loaded graph with data, in the oracle's form and packed.
type trial struct {
	// the processor
	s     *session
	graph op.Graph
	// Operands by the name of the value, with the oracle's results after evaluate.
	vals map[string]*array
	// What the packed weights stand for, by name.
	weights map[string]stored
	packed  driver.Weights
	cache   *cache
	exe     driver.Executable
	loose   float64 // tolerance relative to the largest result, for graphs of several nodes
	// rerounds is set where a product rounds activations again.
	rerounds bool
	slack    float64 // the part of an array's slack that is permitted
}

// place says where operands lie in their buffers: gap columns on either side, and below unused
// rows.
type place struct{ gap, below int }

// filledCache returns a cache for an operator. A call uses one of three sequences, so that writing into a neighbour
// shows. Positions before those of the first call are filled too: attention reads them.
func filledCache(rng *rand.Rand, operator *op.Op, maxContext int) *cache {
	sequences := 3
	if operator.Batch {
		sequences = operator.M
	}
	size := sequences * operator.KVHeads * maxContext * operator.HeadDim
	out := &cache{typ: operator.KV, heads: operator.KVHeads, dim: operator.HeadDim, maxContext: maxContext,
		sequences: sequences, k: make([]float64, size), v: make([]float64, size)}
	for i := range size {
		out.k[i], out.v[i] = rng.NormFloat64(), rng.NormFloat64()
	}
	for i := 0; i < size; i += operator.HeadDim {
		out.round(out.k[i : i+operator.HeadDim])
		out.round(out.v[i : i+operator.HeadDim])
	}
	return out
}

// newTrial fills inputs and weights with data that follow from the seed, then packs, compiles and
// loads.
func (s *session) newTrial(graph op.Graph, maxContext int, seed uint64) *trial {
	s.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	tr := &trial{s: s, graph: graph, vals: map[string]*array{}, weights: map[string]stored{}}
	for _, list := range [][]op.Value{graph.Inputs, graph.Outputs, graph.Temps} {
		for _, value := range list {
			if tr.vals[value.Name] == nil {
				tr.vals[value.Name] = newArray(value)
			}
		}
	}
	for _, node := range graph.Nodes {
		if node.Op.HasScheme() && slices.Contains(s.caps.Rerounds, node.Op.Scheme) {
			tr.rerounds = true
		}
		if tr.cache == nil && slices.Contains(cached, node.Op.Kind) {
			tr.cache = filledCache(rng, &node.Op, maxContext)
		}
	}
	switch {
	case tr.rerounds:
		tr.slack = 1
	case len(graph.Nodes) == 1 && graph.Nodes[0].Op.Act != "":
		tr.slack = s.f.Activations
	}
	if len(graph.Nodes) > 1 {
		tr.loose = looseness(&graph, tr.rerounds)
	}
	tr.fill(rng)
	meanings := meaningsOf(&graph)
	for i, spec := range graph.Weights {
		packed, weight := s.randomWeight(rng, spec, meanings[spec.Name])
		if requantises(&graph, spec.Name) {
			requantise(weight, packed.Bytes)
		}
		tr.weights[spec.Name] = weight
		packed.Spec.Name = fmt.Sprintf("pack.%d", i) // an artifact serves many weights, whose names differ
		tr.packed = append(tr.packed, packed)
	}
	if err := tr.load(); err != nil {
		s.t.Fatal(err)
	}
	return tr
}

// cached are the kinds that read the cache or write to it.
var cached = []op.Kind{op.KVAppend, op.Attention, op.Estimate, op.SparseAttend}

// looseness returns the tolerance of a graph of several nodes, relative to its largest result. Errors of earlier nodes
// are not tracked through later ones.
func looseness(graph *op.Graph, rerounds bool) float64 {
	loose := 1e-4
	for _, node := range graph.Nodes {
		switch {
		case node.Op.Kind == op.MatMul && node.Op.Scheme.RoundsResults():
			loose = max(loose, 3e-3)
		case node.Op.Kind == op.QuantRows && rerounds:
			loose = 5e-2
		case node.Op.Kind == op.QuantRows:
			loose = 1e-2 // a value between two codes may take either
		case node.Op.KV == op.BF16:
			loose = max(loose, 3e-2) // weights are rounded, and queries may be so to either neighbour
		}
	}
	return loose
}

// meaning returns the number that element j of a weight needs to be, of a random one that was drawn for it.
type meaning func(j int, drawn float32) float32

// meaningsOf returns those of the weights of a graph that random numbers would not do for, by name.
func meaningsOf(graph *op.Graph) map[string]meaning {
	out := map[string]meaning{}
	for _, node := range graph.Nodes {
		for i, role := range node.Op.Sig().W {
			if role == "heads" {
				out[node.W[i]] = headNumbers
			}
		}
		switch {
		case node.Op.Kind == op.MatMul && node.Op.Scheme.Grid():
			out[node.W[len(node.W)-1]] = gridSteps(node.Op)
		case node.Op.Kind == op.OutlierMatMul:
			out[node.W[1]] = rowScale
		case node.Op.Kind == op.Dispatch:
			slots := node.Op.Groups.Slots()
			out[node.W[0]] = func(j int, _ float32) float32 { return float32(slots - 1 - j) }
		case node.Op.Kind == op.QuantRows && node.Op.Static:
			out[node.W[0]] = rowScale
		case node.Op.Kind == op.Rope:
			out[node.W[0]] = frequencies(node.Op.Rotary() / 2)
		}
	}
	return out
}

// Pack packs values [K,N].
func Pack(dst []byte, spec op.WeightSpec, values []float32) error {
	src, err := pack.Floats(values, spec.K, spec.N)
	if err != nil {
		return err
	}
	return pack.Pack(dst, spec, src)
}

// rowScale returns a static scale with which some rows saturate.
func rowScale(_ int, drawn float32) float32 { return 0.002 + float32(math.Abs(float64(drawn)))/50 }

// gridSteps are steps with which a few activations and results of a product saturate.
func gridSteps(product op.Op) meaning {
	return func(j int, _ float32) float32 {
		step := float32(8e-5)
		if j >= product.N {
			step *= float32(math.Sqrt(float64(product.K)))
		}
		return step
	}
}

// frequencies returns those of rotations, with so many angles in a row of the table.
func frequencies(angles int) meaning {
	return func(j int, _ float32) float32 {
		return float32(math.Pow(10000, -float64(j%angles)/float64(angles))) / float32(1+3*(j/angles))
	}
}

// randomWeight packs random numbers into a weight, and returns what the packed bytes stand for. meaning, nil for none,
// makes of element j the number that it needs to be.
func (s *session) randomWeight(rng *rand.Rand, spec op.WeightSpec, meaning meaning) (driver.Packed, stored) {
	s.t.Helper()
	// Experts are packed one by one, and lie one stride apart.
	one := spec
	one.Experts = 0
	bytes, err := pack.Bytes(one)
	if err != nil {
		s.t.Fatal(err)
	}
	count, size := max(1, spec.Experts), spec.K*spec.N
	out := driver.Packed{Spec: spec, Bytes: s.memory(bytes * int64(count))}
	if spec.Experts > 0 {
		out.Stride = bytes
	}
	weight := stored{spec.K, spec.N, make([]float32, count*size)}
	for expert := range count {
		values, packed := make([]float32, size), out.Bytes[int64(expert)*bytes:][:bytes]
		for j := range values {
			values[j] = float32(rng.NormFloat64())
			if meaning != nil {
				values[j] = meaning(j, values[j])
			}
		}
		if err := Pack(packed, one, values); err != nil {
			s.t.Fatal(err)
		}
		// Unpacking takes the error of quantisation out of the comparison.
		if err := pack.Unpack(weight.v[expert*size:(expert+1)*size], one, packed); err != nil {
			s.t.Fatal(err)
		}
	}
	return out, weight
}

// requantises reports whether a product of the graph requantises the weight while it multiplies.
func requantises(graph *op.Graph, weight string) bool {
	return slices.ContainsFunc(graph.Nodes, func(node op.Node) bool {
		return node.Op.Scheme.Requantises() && node.W[0] == weight
	})
}

// requantise makes of the values that a q4b32 weight stands for those that they are rounded to with a scale per column:
// 8*top/127, where top is the largest magnitude of the column's block scales. The scale of a block is rounded to a whole
// number of 127ths of top, and that number times a nibble to a multiple of 8.
func requantise(weight stored, packed []byte) {
	blocks := (weight.k + pack.BlockK - 1) / pack.BlockK
	const scalesAt = pack.BlockK * pack.TileN / 2 // bytes of a block's nibbles, before its float16 scales
	const blockBytes = scalesAt + 2*pack.TileN
	scale := func(row, col int) float64 {
		block := packed[(col/pack.TileN*blocks+row/pack.BlockK)*blockBytes:]
		return decode(block[scalesAt+2*(col%pack.TileN):], op.F16)
	}
	for col := range weight.n {
		top := 0.0
		for row := 0; row < weight.k; row += pack.BlockK {
			top = max(top, math.Abs(scale(row, col)))
		}
		for row := range weight.k {
			value := &weight.v[row*weight.n+col]
			if *value == 0 {
				continue
			}
			code := math.Round(float64(*value) / scale(row, col))
			part := math.RoundToEven(float64(float32(scale(row, col)) * float32(127/top)))
			*value = float32(math.Floor(code*part/8+0.5) * 8 * top / 127)
		}
	}
}

// fill gives every input new numbers that are valid for its role.
func (tr *trial) fill(rng *rand.Rand) {
	role, indices, apart := tr.roles()
	for _, value := range tr.graph.Inputs {
		array := tr.vals[value.Name]
		// Of ids: all rows, every other one, or a single one.
		choices, step := indices[value.Name], 1
		switch rng.IntN(4) {
		case 0:
			choices, step = (choices+1)/2, 2
		case 1:
			choices, step = 1, max(1, choices-1)
		}
		offset := rng.IntN(max(1, indices[value.Name]-(choices-1)*step))
		role := role[value.Name]
		for i := range array.v {
			switch {
			case role == "places" && rng.IntN(3) == 0, role == "ids" && apart && rng.IntN(3) == 0:
				array.v[i] = -1
			case role == "ids" || role == "places":
				array.v[i] = float64(offset + step*rng.IntN(choices))
			case role == "scale":
				array.v[i] = float64(rng.Float32()) / 64
			case role == "scores": // with ties
				array.v[i] = float64(rng.IntN(41)-20) / 8
			case role == "logits" && i/value.Cols%2 == 1: // ties, and logits near to each other
				array.v[i] = 1 + float64(rng.IntN(5))/16
			case value.Type == op.F32:
				array.v[i] = float64(float32(rng.NormFloat64()))
			case value.Type == op.U8:
				array.v[i] = float64(1 + rng.IntN(255))
			default:
				array.v[i] = float64(rng.IntN(200) - 100)
			}
		}
	}
}

// roles returns what the values of the graph are to the nodes that read them, and of ids and places among how many rows
// or experts they choose. apart says that a row may be sent to no expert.
func (tr *trial) roles() (role map[string]string, indices map[string]int, apart bool) {
	role, indices = map[string]string{}, map[string]int{}
	for _, node := range tr.graph.Nodes {
		for i, value := range node.Op.Sig().In {
			name := node.In[i]
			role[name] = value.Name
			switch {
			case value.Name == "places":
				indices[name] = node.Op.Groups.Rows()
			case value.Name == "ids" && node.Op.Experts > 0:
				indices[name], apart = node.Op.Experts, node.Op.Kind == op.ExpertMatMul && node.Op.Sent > 0
			case value.Name == "ids":
				indices[name] = node.Op.K
			}
		}
	}
	return role, indices, apart
}

// memory is 64-byte aligned memory of the host, freed after the test.
func (s *session) memory(bytes int64) []byte {
	region, err := mem.Alloc(int(bytes), 64)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { region.Close() })
	return region.Bytes()
}

// compile makes an artifact of a graph, with the options of the processor under test.
func (s *session) compile(g op.Graph, w driver.Weights) (driver.Artifact, error) {
	return s.f.Compiler.Compile(context.Background(), g, w, driver.Target{Proc: "p", Options: s.f.Config.Options})
}

// load loads an artifact on the lane; the caller closes what it returns.
func (s *session) load(a driver.Artifact, w driver.Weights) (exe driver.Executable, err error) {
	err = s.lane.do(func() (err error) {
		exe, err = s.proc.Load(context.Background(), a, w)
		return err
	})
	return exe, err
}

// load compiles the graph for the trial's weights and keeps the executable until the test ends.
func (tr *trial) load() error {
	artifact, err := tr.s.compile(tr.graph, tr.packed)
	if err != nil {
		return err
	}
	tr.exe, err = tr.s.load(artifact, tr.packed)
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

// bind puts inputs into memory and reserves outputs, in turn in memory that the processor imports
// and that it allocates.
func (tr *trial) bind(at place, sc driver.Scalars) *bound {
	session := tr.s
	out := &bound{views: map[string]driver.View{}}
	out.b.Scalars = &sc
	buffer := func(bytes int64) driver.Buffer {
		var buffer driver.Buffer
		err := session.lane.do(func() (err error) {
			// Both kinds of memory must serve as operands.
			if len(out.views)%2 == 0 {
				buffer, err = session.proc.Import(session.memory(bytes))
			} else {
				buffer, err = session.proc.Alloc(bytes)
			}
			return err
		})
		if err != nil {
			session.t.Fatal(err)
		}
		session.t.Cleanup(func() { buffer.Close() })
		return buffer
	}
	view := func(v op.Value) driver.View {
		if view, ok := out.views[v.Name]; ok {
			return view
		}
		size := int64(v.Type.Bytes())
		// An in-place operand has one view; gaps make the stride larger than the columns.
		view := driver.View{Type: v.Type, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols + 2*at.gap,
			Offset: int64(at.gap) * size}
		view.Buffer = buffer(int64(v.Rows+at.below) * int64(view.Stride) * size)
		fillBytes(view.Buffer.Bytes(), untouched)
		out.views[v.Name] = view
		return view
	}
	for _, value := range tr.graph.Inputs {
		bound := view(value)
		store(bound, tr.vals[value.Name].v)
		out.b.In = append(out.b.In, bound)
	}
	for _, value := range tr.graph.Outputs {
		out.b.Out = append(out.b.Out, view(value))
	}
	if tr.cache != nil {
		tr.cache.bind(&out.b, buffer)
	}
	return out
}

// bind makes the cache an operand. It lives as long as the trial: each call sees what the ones before it stored.
func (c *cache) bind(bindings *driver.Bindings, alloc func(bytes int64) driver.Buffer) {
	if c.kbuf == nil {
		rows := c.sequences * c.heads * c.maxContext
		element, cols := c.typ.CacheRow(c.dim)
		bytes := int64(rows) * c.typ.CacheRowBytes(c.dim)
		c.kbuf, c.vbuf = alloc(bytes), alloc(bytes)
		c.kview = driver.View{Buffer: c.kbuf, Type: element, Rows: rows, Cols: cols, Stride: cols}
		c.vview = c.kview
		c.vview.Buffer = c.vbuf
		c.fill(c.kview, c.k)
		c.fill(c.vview, c.v)
	}
	bindings.K, bindings.V, bindings.MaxContext = c.kview, c.vview, c.maxContext
	bindings.K.Rows, bindings.V.Rows = c.heads*c.maxContext, c.heads*c.maxContext
	bindings.Sequences = c.sequences
	bindings.SequenceBytes = int64(c.heads*c.maxContext) * c.typ.CacheRowBytes(c.dim)
}

// fillBytes sets every byte to v.
func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// store writes dense numbers to a view.
func store(w driver.View, v []float64) {
	data, size := w.Bytes(), w.Type.Bytes()
	for row := range w.Rows {
		for col := range w.Cols {
			encode(data[(row*w.Stride+col)*size:], w.Type, v[row*w.Cols+col])
		}
	}
}

// run executes one call on the lane.
func (s *session) run(exe driver.Executable, b *driver.Bindings) (span driver.Span, err error) {
	err = s.lane.do(func() (err error) {
		span, err = s.proc.Run(exe, b)
		return err
	})
	return span, err
}

// check runs one call. It compares everything that the call wrote with the oracle, and everything
// else with what was there before.
func (tr *trial) check(p place, sc driver.Scalars) {
	t := tr.s.t
	t.Helper()
	tr.choose(sc)
	bound := tr.bind(p, sc)
	before := map[string][]byte{}
	for name, view := range bound.views {
		before[name] = bytes.Clone(view.Buffer.Bytes())
	}
	from := tr.s.proc.Now()
	span, err := tr.s.run(tr.exe, &bound.b)
	if err != nil {
		t.Fatal(err)
	}
	now := tr.s.proc.Now()
	if span.Start < from || span.End < span.Start || now < span.End {
		t.Errorf("span %v does not lie between the clock's %v and %v", span, from, now)
	}
	evaluate(&tr.graph, tr.vals, tr.weights, tr.cache, sc)
	outputs := map[string]bool{}
	for _, value := range tr.graph.Outputs {
		outputs[value.Name] = true
		tr.compare(tr.vals[value.Name], bound.views[value.Name], before[value.Name],
			rowsInUse(&tr.graph, value.Name, sc.Rows))
	}
	updated := map[string]bool{} // in place, and not an output: undefined afterwards
	for _, node := range tr.graph.Nodes {
		for _, name := range node.Out {
			updated[name] = true
		}
	}
	for _, value := range tr.graph.Inputs {
		if !outputs[value.Name] && !updated[value.Name] &&
			!bytes.Equal(before[value.Name], bound.views[value.Name].Buffer.Bytes()) {
			t.Fatalf("input %q was changed", value.Name)
		}
	}
	if cache := tr.cache; cache != nil {
		tr.compareCache("k", cache.kview, cache.k)
		tr.compareCache("v", cache.vview, cache.v)
	}
}

// compare checks an output against the oracle, within what the type and the operator permit. Around
// it nothing may have changed, and rows that were not in use are zero or as before.
func (tr *trial) compare(want *array, view driver.View, before []byte, rows int) {
	t := tr.s.t
	t.Helper()
	size, name := view.Type.Bytes(), want.value.Name
	all := view.Buffer.Bytes()
	// Graphs of several nodes are judged relative to the largest result.
	largest := 0.0
	for _, value := range want.v[:rows*view.Cols] {
		largest = math.Max(largest, math.Abs(value))
	}
	for i := 0; i < len(all); i += size {
		at := i - int(view.Offset)
		row, col := at/size/view.Stride, at/size%view.Stride
		if at < 0 || col >= view.Cols || row >= view.Rows {
			if !bytes.Equal(all[i:i+size], before[i:i+size]) {
				t.Fatalf("output %q: byte %d outside the view was changed", name, i)
			}
			continue
		}
		got := decode(all[i:], view.Type)
		if row >= rows {
			if got != 0 && !bytes.Equal(all[i:i+size], before[i:i+size]) {
				t.Fatalf("output %q: row %d is not in use, but [%d,%d] became %v", name, row, row, col, got)
			}
			continue
		}
		j := row*view.Cols + col
		if math.IsInf(want.doubt[j], 1) { // the definition says nothing of it: it holds whatever was there
			continue
		}
		allowed := tr.s.f.tolerance()*want.size[j] + 1e-37
		allowed += tr.slack*want.slack[j] + want.doubt[j]
		switch {
		case tr.loose > 0:
			allowed = tr.loose * largest
		case view.Type == op.U8:
			allowed = want.size[j]
		}
		// The negated comparison also fails for NaN.
		if !(math.Abs(got-want.v[j]) <= allowed) {
			t.Fatalf("output %q [%d,%d]: got %v, want %v within %.3g", name, row, col, got, want.v[j], allowed)
		}
	}
}

// compareCache checks a cache and takes over what the processor stored, so that errors do not add
// up over calls.
func (tr *trial) compareCache(name string, view driver.View, want []float64) {
	t := tr.s.t
	t.Helper()
	data, cache := view.Bytes(), tr.cache
	size := int(cache.typ.CacheRowBytes(cache.dim))
	tolerance := math.Max(tr.s.f.tolerance(), tr.loose)
	switch cache.typ {
	case op.F16:
		tolerance += 1e-3
	case op.BF16:
		tolerance += 1.0 / 128 // one step, where a value lies between two
	case op.Q8:
		tolerance += 1.0 / 127 // one step, where a value lies between two
	}
	for row := range len(want) / cache.dim {
		stored := cache.decode(data[row*size:])
		for col, got := range stored {
			value := want[row*cache.dim+col]
			// A single append only rounds, which is exact; behind other nodes the values have errors.
			if len(tr.graph.Nodes) == 1 && got != value {
				t.Fatalf("cache %s, row %d, column %d: got %v, want %v", name, row, col, got, value)
			}
			if !(math.Abs(got-value) <= tolerance*(math.Abs(value)+10)) {
				t.Fatalf("cache %s, row %d, column %d: got %v, want %v", name, row, col, got, value)
			}
		}
		copy(want[row*cache.dim:], stored)
	}
}
