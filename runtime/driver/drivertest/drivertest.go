// Package drivertest knows what every driver must do: a conformance suite that compares each
// operator a processor claims with the definitions in double precision, and checks that everything
// else is refused by name. It also wraps a driver so that a chosen call fails or hangs, or so that its processors are
// asynchronous, with memory of their own.
package drivertest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// Factory is a driver under test.
type Factory struct {
	Driver   driver.Driver
	Compiler driver.Compiler
	Config   driver.Config   // the processor under test
	Others   []driver.Config // processors that may run at the same time

	// Tolerance is the permitted error of a float32 result relative to the sum of the magnitudes of
	// its terms; 0 means 1e-5.
	Tolerance float64
	// Activations is the further permitted error of an activation function relative to its
	// argument, for libraries whose functions have inexact tails; 0 means none.
	Activations float64

	// Sampled lets a few shapes of each operator and scheme stand for all: of a driver whose kernels another driver's
	// suite tries whole.
	Sampled bool
}

// tolerance is Tolerance or its default.
func (f *Factory) tolerance() float64 {
	if f.Tolerance == 0 {
		return 1e-5
	}
	return f.Tolerance
}

// Run runs the suite. An unavailable driver skips it, unless the environment variable HETC_REQUIRE (a
// comma-separated list) names the driver.
func Run(t *testing.T, factory Factory) {
	// The first opening skips the whole suite where there is no such processor.
	open(t, &factory, factory.Config).close()
	for _, test := range []struct {
		name string
		test func(*testing.T, *Factory)
	}{
		{"Devices", testDevices},
		{"Capabilities", testCapabilities},
		{"Operators", testOperators},
		{"Graphs", testGraphs},
		{"WeightRanges", testWeightRanges},
		{"ZeroRows", testZeroRows},
		{"Determinism", testDeterminism},
		{"RefusedAtOpen", testRefusedAtOpen},
		{"Tables", testTables},
		{"RefusedAtLoad", testRefusedAtLoad},
		{"RefusedAtRun", testRefusedAtRun},
		{"RefusedValues", testRefusedValues},
		{"Memory", testMemory},
		{"Concurrent", testConcurrent},
		{"Asynchronous", testAsynchronous},
		{"Close", testClose},
		{"Leaks", testLeaks},
	} {
		t.Run(test.name, func(t *testing.T) { test.test(t, &factory) })
	}
}

// The list of devices is stable, and each of them opens and occupies the cores that are listed.
func testDevices(t *testing.T, factory *Factory) {
	ctx := context.Background()
	devices, err := factory.Driver.Devices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	again, err := factory.Driver.Devices(ctx)
	if err != nil || fmt.Sprint(devices) != fmt.Sprint(again) {
		t.Errorf("devices differ from call to call: %v, %v (%v)", devices, again, err)
	}
	if len(devices) == 0 {
		t.Fatal("no devices, though one was opened")
	}
	seen := map[string]bool{}
	for _, device := range devices {
		if seen[device.Select] || device.Description == "" {
			t.Errorf("device %+v is listed twice or not described", device)
		}
		seen[device.Select] = true
		session := open(t, factory, driver.Config{Select: device.Select, Options: factory.Config.Options})
		if !slices.Equal(session.caps.Cores, device.Cores) {
			t.Errorf("device %q occupies cores %v, its processor %v", device.Select, device.Cores, session.caps.Cores)
		}
		session.close()
	}
}

// Capabilities are known words, listed once, and do not contradict each other.
func testCapabilities(t *testing.T, f *Factory) {
	caps := open(t, f, f.Config).caps
	seen := map[string]bool{}
	// All words share one set: no two lists contain the same word with the same prefix.
	once := func(what string) {
		if seen[what] {
			t.Errorf("%s is listed twice", what)
		}
		seen[what] = true
	}
	for _, kind := range caps.Kinds {
		once("kind " + string(kind))
		if !slices.Contains(op.Kinds, kind) {
			t.Errorf("unknown kind %q", kind)
		}
	}
	checkSchemes(t, f, caps, once)
	for scheme, forms := range caps.Forms {
		for _, form := range forms {
			once("form " + string(form) + " of " + string(scheme))
			if !form.IsClass() || !slices.Contains(caps.Schemes, scheme) {
				t.Errorf("form %q of scheme %q: want one of %q or a variant of kernels, of a supported scheme", form,
					scheme, op.FormClasses)
			}
			if form == op.Conv && caps.DynamicRows {
				t.Errorf("form %q is compiled for a number of rows, and calls may use fewer", form)
			}
		}
	}
	for _, elem := range caps.KV {
		once("cache type " + string(elem))
	}
	testContradictions(t, caps)
}

// testContradictions looks for capabilities that exclude each other, or lack what others need.
func testContradictions(t *testing.T, caps *driver.Capabilities) {
	t.Helper()
	if len(caps.Kinds) == 0 || caps.Tile.N < 1 || caps.Tile.K < 1 {
		t.Errorf("got kinds %v, tiles of %d columns and %d rows", caps.Kinds, caps.Tile.N, caps.Tile.K)
	}
	if caps.Memory != nil {
		if err := caps.Memory.Validate(); err != nil {
			t.Errorf("memory: %v", err)
		}
	}
	if caps.StaticShapes && caps.DynamicRows {
		t.Error("static shapes and dynamic rows exclude each other")
	}
	if slices.Contains(caps.Kinds, op.MatMul) != (len(caps.Schemes) > 0) {
		t.Errorf("got kinds %v with schemes %v", caps.Kinds, caps.Schemes)
	}
}

// checkSchemes checks the lists of schemes among the capabilities.
func checkSchemes(t *testing.T, f *Factory, caps *driver.Capabilities, once func(what string)) {
	for _, scheme := range caps.Schemes {
		once("scheme " + string(scheme))
		if caps.Layouts[scheme.Weight()] == "" {
			t.Errorf("scheme %q: no layout of weights %q", scheme, scheme.Weight())
		}
		// A simulation executes what its SoC lists.
		if name := f.Driver.Name(); name != "sim" && !slices.Contains(op.SchemesOf(name), scheme) {
			t.Errorf("scheme %q: its row in planir/op/scheme.go does not name driver %q", scheme, name)
		}
	}
	for _, scheme := range caps.Rerounds {
		once("rounding again of " + string(scheme))
		if !slices.Contains(caps.Schemes, scheme) || scheme.BlockK() < 2 {
			t.Errorf("scheme %q is said to round again, and is not supported or has no blocks", scheme)
		}
	}
	for _, scheme := range caps.Imitates {
		once("imitation of " + string(scheme))
		if !slices.Contains(caps.Schemes, scheme) {
			t.Errorf("scheme %q is said to be imitated, and is not supported", scheme)
		}
	}
}

// sampled reports whether some variants stand for all: under the race detector, and with -short.
// Plain tests try every variant.
func sampled() bool { return Race || testing.Short() }

// due reports whether a short test tries a variant that others could stand for: each part of the slow tests
// (require.Part) has some of the variants, and all parts together have all.
func due(variant string) bool { return !Race && require.InPart(variant) }

// testContext is the number of positions of the caches that graphs are tried with.
const testContext = 64

// contextOf returns the number of positions of the cache that an operator is tried with.
func contextOf(o op.Op) int { return max(testContext, o.M, o.Context) }

// scalars returns those of a call with rows rows from position pos, at the end of a sequence. For
// batches, each row has a sequence of its own and a position that differs.
func scalars(pos, rows int) driver.Scalars {
	scalars := driver.Scalars{Pos: pos, Rows: rows, KVLen: pos + rows, Seq: pos + rows, Row: rows / 2, Sequence: 1}
	for i := range rows {
		scalars.Batch = append(scalars.Batch, driver.Place{Sequence: rows - 1 - i, Pos: pos/(1+i%3) + i})
	}
	return scalars
}

// single returns the graph of one operator. Weights that the processor does not read have hetc's own layout. So the
// graph is valid, and what a compiler or driver refuses is the scheme.
func single(c *driver.Capabilities, o op.Op) op.Graph {
	layout := c.Layouts[o.Scheme.Weight()]
	if layout == "" && o.Scheme != "" {
		layout = op.TilesLayout
	}
	return op.Single(o, layout)
}

// plain returns an operator of two rows that the processor claims, for tests that need no more than one.
func (s *session) plain() op.Op {
	s.t.Helper()
	list := []op.Op{{Kind: op.Norm, M: 2, N: 64}, {Kind: op.Add, M: 2, N: 64}, {Kind: op.Copy, M: 2, N: 64},
		{Kind: op.Activate, M: 2, N: 64, Act: op.SiLU}, {Kind: op.Clip, M: 2, N: 64, Cap: 1}}
	if product, ok := s.product(); ok {
		list = slices.Insert(list, 1, product)
	}
	for _, operator := range list {
		if s.caps.Supports(operator) == nil {
			return operator
		}
	}
	s.t.Fatalf("the processor claims %v, and the suite needs norm, matmul, add, copy, activate or clip", s.caps.Kinds)
	return op.Op{}
}

// product returns a product of two rows in the processor's first scheme. ok reports whether it has one.
func (s *session) product() (operator op.Op, ok bool) {
	if len(s.caps.Schemes) == 0 {
		return operator, false
	}
	return op.Op{Kind: op.MatMul, M: 2, K: 64, N: 64, Scheme: s.caps.Schemes[0]}, true
}

// pieces returns those pieces of a transformer (blocks) that the processor supports and whose names begin with a
// prefix. A processor of few operators has none: then it is one operator.
func (s *session) pieces(rows int, prefix string) map[string]op.Graph {
	s.t.Helper()
	graphs := blocks(s.caps, rows)
	maps.DeleteFunc(graphs, func(name string, graph op.Graph) bool {
		return !strings.HasPrefix(name, prefix) || !supported(s.caps, &graph)
	})
	if len(graphs) == 0 {
		operator := s.plain()
		operator.M = rows
		graphs[operator.Key()] = single(s.caps, operator)
	}
	return graphs
}

// variants runs a trial several times: dense, in wider buffers, with fewer rows, and at the end of
// a cache of maxContext positions, as far as the processor claims to do so.
func (s *session) variants(tr *trial, rows, maxContext int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	// the calls: where operands lie, and at which positions
	type call struct {
		place
		scalars driver.Scalars
	}
	calls := []call{{place{}, scalars(0, rows)}}
	end := scalars(maxContext-rows, rows)
	anyStride := !slices.ContainsFunc(tr.graph.Nodes, func(node op.Node) bool { return !node.Op.Kind.AnyStride() })
	if anyStride || s.caps.StridedInput && s.caps.StridedOutput {
		calls = append(calls, call{place{gap: s.caps.Tile.N, below: 2}, scalars(21, rows)}, call{place{gap: 3}, end})
	} else {
		calls = append(calls, call{place{}, end})
	}
	// Of a rope with two tables, the length of the whole prompt decides, not that of the call.
	for _, node := range tr.graph.Nodes {
		if node.Op.LongFrom > 0 { // a chunk of a longer prompt
			early := scalars(2, rows)
			early.Seq = 200
			calls = append(calls, call{place{}, early})
			break
		}
	}
	if (s.caps.DynamicRows || tr.graph.CountsRows()) && rows > 1 {
		calls = append(calls, call{place{below: 1}, scalars(3, rows-1)}, call{place{}, scalars(1, 1)})
	}
	for _, call := range calls {
		tr.fill(rng)
		// Where the cache is short, the call begins at position 0.
		if call.scalars.Pos+rows > maxContext {
			seq := call.scalars.Seq
			call.scalars = scalars(0, call.scalars.Rows)
			call.scalars.Seq = seq
		}
		tr.check(call.place, call.scalars)
	}
}

// Every operator of the list that the processor claims gives the results of its definition. Those
// it does not claim must be refused.
func testOperators(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	known, tried, alike := map[op.Kind]bool{}, map[op.Kind]int{}, map[op.Op]int{}
	for i, operator := range slices.Concat(operators(), kernelForms(session.caps)) {
		known[operator.Kind] = true
		graph := single(session.caps, operator)
		name := strings.ReplaceAll(operator.Key(), "/", ":")
		if operator.Kind == op.GLU {
			name += fmt.Sprintf(" by %d", operator.Interleave)
		}
		if operator.Kind == op.Rope && operator.LongFrom > 0 {
			name += fmt.Sprintf(" long ntk=%v", operator.NTK)
		}
		if session.caps.Supports(operator) != nil && !session.ignores(t, operator, graph) {
			continue // refused: RefusedAtLoad
		}
		tried[operator.Kind]++
		// Short runs try six variants of each kind and scheme, and of variants of kernels, which take long to build,
		// some; beside those they try what is due.
		of, few := op.Op{Kind: operator.Kind, Scheme: operator.Scheme}, 6
		if operator.Form.Kernel() != "" {
			of.Form, few = operator.Form, 1-i%3
		}
		alike[of]++
		if alike[of] > few && (f.Sampled || sampled() && !due(name)) {
			continue
		}
		// A copy moves values of any type; its type is that of its operands.
		types := []op.Type{""}
		if operator.Kind == op.Copy {
			types = []op.Type{op.F32, op.U8, op.F16, op.BF16, op.I32, op.I8}
		}
		for _, typ := range types {
			t.Run(name+string(typ), func(t *testing.T) {
				sub := *session
				sub.t = t
				if typ != "" {
					graph.Inputs[0].Type, graph.Outputs[0].Type = typ, typ
				}
				if operator.Kind == op.Rope || operator.Kind == op.QKNorm { // in place
					graph.Outputs[0] = graph.Inputs[0]
				}
				sub.variants(sub.newTrial(graph, contextOf(operator), uint64(i)), operator.M, contextOf(operator),
					uint64(i))
			})
		}
	}
	for _, kind := range session.caps.Kinds {
		switch {
		case !known[kind]:
			t.Errorf("kind %q: drivertest/operators.go has no cases of it", kind)
		case tried[kind] == 0:
			t.Errorf("kind %q is claimed, but none of its variants is supported", kind)
		}
	}
}

// ignores reports whether a compiler accepts a product whose form the driver does not list. It must
// then execute it, because arithmetic is the same in every form. If the compiler refuses, its error
// must name the form.
func (s *session) ignores(t *testing.T, o op.Op, g op.Graph) bool {
	plain := o
	if plain.Form = ""; o.Form == "" || s.caps.Supports(plain) != nil {
		return false
	}
	_, err := s.compile(g, nil)
	if err != nil {
		mentions(t, o.Key(), err, string(o.Form.Class()))
	}
	return err == nil
}

// graph is a graph under construction, node by node.
type graph struct {
	op.Graph
	layouts map[string]string
}

// node appends a node and its weights. in, w and out are the names of its operands.
func (g *graph) node(o op.Op, in, w, out []string) {
	for i, role := range o.Sig().W {
		spec := o.WeightSpec(role, g.layouts[o.Scheme.Weight()])
		spec.Name = w[i]
		g.Weights = append(g.Weights, spec)
	}
	g.Nodes = append(g.Nodes, op.Node{Op: o, In: in, W: w, Out: out})
}

// value returns a value of a graph [rows, cols].
func value(name string, t op.Type, rows, cols int) op.Value {
	return op.Value{Name: name, Type: t, Rows: rows, Cols: cols}
}

// names returns a list of operands, short to write.
func names(s ...string) []string { return s }

// static returns the name of the scales of a node that quantises rows of in with static scales, nil
// for other nodes.
func static(quant op.Op, in string) []string {
	if quant.Static {
		return names(in + "scale")
	}
	return nil
}

// supported reports whether the processor claims every node.
func supported(c *driver.Capabilities, g *op.Graph) bool {
	for _, node := range g.Nodes {
		if c.Supports(node.Op) != nil {
			return false
		}
	}
	return true
}

// Pieces of a transformer give the results of their definitions, with state also over several
// calls.
func testGraphs(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	for _, rows := range []int{1, 11} {
		for name, graph := range blocks(session.caps, rows) {
			if !supported(session.caps, &graph) {
				continue
			}
			t.Run(fmt.Sprintf("%s m=%d", name, rows), func(t *testing.T) {
				sub := *session
				sub.t = t
				if err := graph.Validate(); err != nil {
					t.Fatal(err)
				}
				tr := sub.newTrial(graph, testContext, 77)
				sub.variants(tr, rows, testContext, 77)
				if graph.State() { // a prompt in two chunks, then more: each call sees what the ones before it stored
					rng := rand.New(rand.NewPCG(5, 5))
					for _, pos := range []int{0, rows, 2 * rows} {
						tr.fill(rng)
						tr.check(place{}, scalars(pos, rows))
					}
				}
			})
		}
	}
}

// A shard gives the results of its columns. It is a tile range of one packed weight, of all its
// experts, with the same columns of the bias.
func testWeightRanges(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	if !session.caps.WeightRanges {
		t.Skip("the processor needs its own copy of a shard's weight")
	}
	n0 := session.caps.Tile.N
	// Three tiles and a part of a fourth, so that shares end inside and at the end of the weight.
	whole := 3*n0 + 5
	for _, scheme := range session.caps.Schemes {
		for _, operator := range []op.Op{
			{Kind: op.MatMul, M: 3, K: 96, N: whole, Scheme: scheme},
			{Kind: op.MatMul, M: 3, K: 96, N: whole, Scheme: scheme, Bias: true},
			{Kind: op.ExpertMatMul, M: 5, Fan: 2, Experts: 4, K: 96, N: whole, Scheme: scheme, Spread: true},
			{Kind: op.ExpertMatMul, M: 1, Fan: 3, Experts: 3, K: 40, N: whole, Scheme: scheme},
		} {
			if session.caps.Supports(operator) != nil {
				continue
			}
			// full holds the packed weight; each part is a trial whose weights are replaced by a range of it.
			full := session.newTrial(single(session.caps, operator), 0, 3)
			for _, cols := range [][2]int{{0, n0}, {n0, 3 * n0}, {2 * n0, whole}} {
				operator.N = cols[1] - cols[0]
				part := session.newTrial(single(session.caps, operator), 0, 4)
				for i := range full.graph.Weights {
					part.takeColumns(full, i, cols)
				}
				if err := part.load(); err != nil {
					t.Fatalf("columns %v of %s: %v", cols, operator.Key(), err)
				}
				part.check(place{}, scalars(0, operator.M))
			}
		}
	}
}

// takeColumns replaces weight i of a trial by columns of the one of another trial: the packed bytes, and what they
// stand for. Steps are the same in all columns, so every share has its own.
func (tr *trial) takeColumns(full *trial, i int, cols [2]int) {
	tr.s.t.Helper()
	spec, width := full.graph.Weights[i], cols[1]-cols[0]
	old, weight := full.weights[spec.Name], stored{k: spec.K, n: width}
	if spec.Name == "steps" {
		weight.v = make([]float32, spec.K*width)
		for j := range weight.v {
			weight.v[j] = old.v[j/width*spec.N]
		}
		if err := Pack(tr.packed[i].Bytes, tr.graph.Weights[i], weight.v); err != nil {
			tr.s.t.Fatal(err)
		}
		tr.weights[spec.Name] = weight
		return
	}
	columns, offset, bytes, err := pack.Columns(spec, cols[0], cols[1])
	if err != nil {
		tr.s.t.Fatal(err)
	}
	packed := &full.packed[i]
	tr.packed[i] = driver.Packed{Spec: columns, Bytes: packed.Bytes[offset : offset+bytes], Stride: packed.Stride}
	rows := max(1, spec.Experts) * spec.K
	weight.v = make([]float32, rows*width)
	for row := range rows {
		copy(weight.v[row*width:(row+1)*width], old.v[row*spec.N+cols[0]:])
	}
	tr.weights[spec.Name] = weight
}

// Rows of zeros give zeros, not NaN, everywhere; no rows give nothing.
func testZeroRows(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	ops := []op.Op{{Kind: op.Norm, M: 2, N: 33}, {Kind: op.Norm, M: 2, N: 33, Eps: 1e-6},
		{Kind: op.LayerNorm, M: 2, N: 33}, {Kind: op.QuantRows, M: 2, N: 33},
		{Kind: op.QuantRows, M: 2, N: 33, Static: true}, {Kind: op.QuantRows, M: 2, N: 33, Static: true, Scales: 3},
		{Kind: op.GLU, M: 2, N: 32, Interleave: 16, Act: op.SiLU},
		{Kind: op.GLU, M: 2, N: 32, Interleave: 16, Act: op.GELUTanh, Fan: 2},
		{Kind: op.Softcap, M: 2, N: 33, Cap: 3},
		{Kind: op.QKNorm, M: 2, Heads: 2, KVHeads: 1, HeadDim: 16},
		{Kind: op.QKNorm, M: 2, Heads: 2, KVHeads: 1, HeadDim: 16, Joint: true}}
	for _, scheme := range op.Schemes {
		ops = append(ops, op.Op{Kind: op.MatMul, M: 2, K: 33, N: 40, Scheme: scheme},
			op.Op{Kind: op.ExpertMatMul, M: 2, Fan: 2, Experts: 3, K: 33, N: 40, Scheme: scheme, Spread: true})
	}
	for _, router := range op.Routers { // of equal logits the first experts
		ops = append(ops, op.Op{Kind: op.Route, M: 2, Experts: 5, Fan: 2, Router: router})
	}
	for _, act := range op.Acts {
		ops = append(ops, op.Op{Kind: op.Activate, M: 2, N: 33, Act: act})
	}
	for _, operator := range ops {
		if session.caps.Supports(operator) != nil {
			continue
		}
		graph := single(session.caps, operator)
		if operator.Kind == op.QKNorm { // in place
			graph.Outputs[0] = graph.Inputs[0]
		}
		tr := session.newTrial(graph, 0, 6)
		for _, value := range tr.graph.Inputs {
			array := tr.vals[value.Name]
			clear(array.v)
			for i := range array.v {
				// Codes are stored around 128, which stands for zero.
				if value.Type == op.U8 {
					array.v[i] = 128
				}
			}
		}
		tr.check(place{}, scalars(0, 2))
		if session.caps.DynamicRows {
			tr.check(place{}, scalars(0, 0))
		}
	}
}

// Twenty runs of one graph on the same operands give the same bytes.
func testDeterminism(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	for name, graph := range session.pieces(11, "") {
		tr := session.newTrial(graph, testContext, 9)
		var first string
		for i := range 20 {
			bound := tr.bind(place{}, scalars(0, 11))
			if _, err := session.run(tr.exe, &bound.b); err != nil {
				t.Fatal(err)
			}
			result := ""
			for _, view := range bound.b.Out {
				result += string(view.Bytes())
			}
			if i == 0 {
				first = result
			}
			if result != first {
				t.Fatalf("%s: run %d differs from the first", name, i)
			}
		}
	}
}
