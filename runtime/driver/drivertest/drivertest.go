// Package drivertest knows what every driver must do: a conformance suite that compares each
// operator a processor claims with the definitions in double precision, and checks that everything
// else is refused by name. It also wraps a driver so that a chosen call fails or hangs, or so that its processors are
// asynchronous, with memory of their own.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
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
	for _, scheme := range caps.Schemes {
		once("scheme " + string(scheme))
		if caps.Layouts[scheme.Weight()] == "" {
			t.Errorf("scheme %q: no layout of weights %q", scheme, scheme.Weight())
		}
	}
	for scheme, forms := range caps.Forms {
		for _, form := range forms {
			once("form " + string(form) + " of " + string(scheme))
			if !form.IsClass() || !slices.Contains(caps.Schemes, scheme) {
				t.Errorf("form %q of scheme %q: want one of %q or a variant of kernels, of a supported scheme", form, scheme,
					op.FormClasses)
			}
			if form == op.Conv && caps.DynamicRows {
				t.Errorf("form %q is compiled for a number of rows, and calls may use fewer", form)
			}
		}
	}
	for _, elem := range caps.KV {
		once("cache type " + string(elem))
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

// single returns the graph of one operator.
func single(c *driver.Capabilities, o op.Op) op.Graph {
	return op.Single(o, c.Layouts[o.Scheme.Weight()])
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
	tried, alike := map[op.Kind]int{}, map[op.Op]int{}
	for i, operator := range slices.Concat(operators(), kernelForms(session.caps)) {
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
		if alike[of]++; alike[of] > few && (f.Sampled || sampled() && !due(name)) {
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
		if tried[kind] == 0 {
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
				for i, spec := range full.graph.Weights {
					packed := &full.packed[i]
					if spec.Name == "steps" { // the same in all columns: every share has its own
						old, weight := full.weights[spec.Name],
							stored{spec.K, operator.N, make([]float32, spec.K*operator.N)}
						for j := range weight.v {
							weight.v[j] = old.v[j/operator.N*whole]
						}
						if err := Pack(part.packed[i].Bytes, part.graph.Weights[i], weight.v); err != nil {
							t.Fatal(err)
						}
						part.weights[spec.Name] = weight
						continue
					}
					columns, offset, bytes, err := pack.Columns(spec, cols[0], cols[1])
					if err != nil {
						t.Fatal(err)
					}
					part.packed[i] = driver.Packed{Spec: columns, Bytes: packed.Bytes[offset : offset+bytes],
						Stride: packed.Stride}
					// The oracle gets the same columns, cut out of what the packed bytes stand for.
					rows, old := max(1, spec.Experts)*spec.K, full.weights[spec.Name]
					weight := stored{spec.K, operator.N, make([]float32, rows*operator.N)}
					for row := range rows {
						copy(weight.v[row*operator.N:(row+1)*operator.N], old.v[row*whole+cols[0]:])
					}
					part.weights[spec.Name] = weight
				}
				if err := part.load(); err != nil {
					t.Fatalf("columns %v of %s: %v", cols, operator.Key(), err)
				}
				part.check(place{}, scalars(0, operator.M))
			}
		}
	}
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
	for name, graph := range blocks(session.caps, 11) {
		if !supported(session.caps, &graph) {
			continue
		}
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

// mentions fails unless err is an error that contains every word.
func mentions(t testing.TB, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s was accepted", what)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: error %q does not mention %q", what, err, word)
		}
	}
}

// Selectors, options and contexts that make no sense are errors that quote them.
func testRefusedAtOpen(t *testing.T, factory *Factory) {
	ctx := context.Background()
	for _, sel := range []string{"", "-", "no-such-processor", "-1", "0-", "999999", "1e9", "\x00"} {
		proc, err := factory.Driver.Open(ctx, driver.Config{Select: sel, Options: factory.Config.Options})
		if sel == "" && err == nil { // a driver may have a default
			proc.Close()
			continue
		}
		mentions(t, fmt.Sprintf("selector %q", sel), err, fmt.Sprintf("%q", sel))
	}
	_, err := factory.Driver.Open(ctx, driver.Config{Select: factory.Config.Select,
		Options: map[string]string{"no_such_option": "1"}})
	mentions(t, "an unknown option", err, `"no_such_option"`)
	// Opening may take long, so a context that has ended must end it.
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := factory.Driver.Open(cancelled, factory.Config); !errors.Is(err, context.Canceled) {
		t.Errorf("open with a cancelled context: got %v", err)
	}
}

// Load refuses what it cannot execute, damaged artifacts and wrong weights, and works afterwards.
func testRefusedAtLoad(t *testing.T, factory *Factory) {
	r := &refusals{open(t, factory, factory.Config)}
	r.operators()
	r.mixedBatches()
	// A graph with one weight: a product where there is one, a norm with its gain otherwise.
	operator := op.Op{Kind: op.Norm, M: 2, N: 64}
	if len(r.caps.Schemes) > 0 {
		operator = op.Op{Kind: op.MatMul, M: 2, K: 64, N: 64, Scheme: r.caps.Schemes[0]}
	}
	good := r.newTrial(single(r.caps, operator), 0, 8)
	artifact, err := r.compile(good.graph, good.packed)
	if err != nil {
		t.Fatal(err)
	}
	r.artifacts(artifact, good.packed)
	r.otherGraphs(artifact, good)
	r.weights(artifact, good.packed, good.graph.Weights[0].Name)
	for _, scheme := range r.caps.Schemes {
		r.experts(op.Op{Kind: op.ExpertMatMul, M: 2, Fan: 2, Experts: 3, K: 64, N: 64, Scheme: scheme})
	}
	if len(r.caps.Schemes) > 0 {
		r.unknownLayout(good)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.proc.Load(cancelled, artifact, good.packed); !errors.Is(err, context.Canceled) {
		t.Errorf("load with a cancelled context: got %v", err)
	}
	if err := good.load(); err != nil {
		t.Errorf("a good artifact after bad ones: %v", err)
	}
}

// refusals is a session whose loads must fail.
type refusals struct{ *session }

// refuse fails unless loading fails with an error that contains the words.
func (r *refusals) refuse(what string, a driver.Artifact, w driver.Weights, words ...string) {
	r.t.Helper()
	exe, err := r.session.load(a, w)
	if err == nil {
		exe.Close()
	}
	mentions(r.t, what, err, words...)
}

// changed returns a copy of weights with the first one changed.
func changed(weights driver.Weights, change func(p *driver.Packed)) driver.Weights {
	weights = slices.Clone(weights)
	change(&weights[0])
	return weights
}

// operators tries all operators that the processor does not claim. Forms are tested with the
// operators that it claims.
func (r *refusals) operators() {
	for _, operator := range operators() {
		if r.caps.Supports(operator) == nil || operator.Form != "" {
			continue
		}
		artifact, err := r.compile(single(r.caps, operator), nil)
		if err == nil {
			_, err = r.session.load(artifact, nil)
		}
		word := string(operator.Kind)
		if r.caps.Executes(operator.Kind) {
			word = string(operator.Scheme) + string(operator.KV)
		}
		mentions(r.t, operator.Key(), err, word)
	}
}

// mixedBatches tries a graph whose rows are of one sequence in one node and of one sequence each in
// another.
func (r *refusals) mixedBatches() {
	graph, ok := blocks(r.caps, 2)["attention of a batch f32"]
	if !ok || !supported(r.caps, &graph) {
		return
	}
	tr := r.newTrial(graph, testContext, 8)
	graph.Nodes = slices.Clone(graph.Nodes)
	graph.Nodes[1].Op.Batch = false
	if artifact, err := r.compile(graph, tr.packed); err == nil {
		r.refuse("rows that are of one sequence here and of one each there", artifact, tr.packed, "one sequence")
	}
}

// artifacts tries artifacts that are cut, too long, of another driver, or noise.
func (r *refusals) artifacts(artifact driver.Artifact, packed driver.Weights) {
	r.refuse("an artifact of another driver", driver.Artifact{Driver: "no-such-driver", Code: artifact.Code}, packed,
		`"no-such-driver"`)
	with := func(what string, code []byte) {
		r.refuse(what, driver.Artifact{Driver: artifact.Driver, Code: code}, packed)
	}
	for length := range len(artifact.Code) {
		// Every cut near the ends, where headers and sums lie, and some between.
		if length < 64 || length > len(artifact.Code)-64 || length%37 == 0 {
			with(fmt.Sprintf("the first %d of %d bytes of an artifact", length, len(artifact.Code)),
				artifact.Code[:length])
		}
	}
	with("bytes after an artifact", append(slices.Clone(artifact.Code), "{}"...))
	noise := make([]byte, 4096)
	rng := rand.New(rand.NewPCG(1, 9))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	with("noise", noise)
}

// otherGraphs tries a good artifact for graphs that it was not compiled from, twice, since a driver may keep what it
// has parsed. Then it is loaded for its own.
func (r *refusals) otherGraphs(artifact driver.Artifact, good *trial) {
	for _, c := range []struct {
		what   string
		change func(g *op.Graph)
		word   string
	}{
		{"another operator", func(g *op.Graph) { g.Nodes[0].Op.Kind = op.Add }, string(op.Add)},
		{"another shape", func(g *op.Graph) { g.Nodes[0].Op.N *= 2 }, `"n"`},
		{"another scheme", func(g *op.Graph) { g.Nodes[0].Op.Scheme = "a1w1" }, "a1w1"},
		{"another name of a weight", func(g *op.Graph) { g.Weights[0].Name += "2" }, "weight 0"},
		{"one node more", func(g *op.Graph) { g.Nodes = append(g.Nodes, g.Nodes[0]) }, "want 2"},
	} {
		other := good.graph
		other.Nodes, other.Weights = slices.Clone(other.Nodes), slices.Clone(other.Weights)
		c.change(&other)
		artifact.Graph = &other
		for range 2 {
			exe, err := r.session.load(artifact, good.packed)
			if err == nil {
				exe.Close()
			}
			mentions(r.t, "an artifact for a graph with "+c.what, err, "another graph than the plan", c.word)
			if class := diag.ClassOf(err); class != diag.ClassVerify {
				r.t.Errorf("an artifact for a graph with %s: class %q, want %q", c.what, class, diag.ClassVerify)
			}
		}
	}
	artifact.Graph = &good.graph
	exe, err := r.session.load(artifact, good.packed)
	if err != nil {
		r.t.Errorf("an artifact for its own graph: %v", err)
		return
	}
	exe.Close()
}

// weights tries weights that are not those of the graph: other numbers, sizes, shapes, schemes and
// layouts.
func (r *refusals) weights(artifact driver.Artifact, packed driver.Weights, name string) {
	r.refuse("no weights", artifact, nil, "weight")
	r.refuse("two weights for one", artifact, append(slices.Clone(packed), packed[0]), "weight")
	for _, c := range []struct {
		what   string
		change func(p *driver.Packed)
		words  []string
	}{
		{"a short weight", func(p *driver.Packed) { p.Bytes = p.Bytes[:len(p.Bytes)-1] },
			[]string{fmt.Sprint(len(packed[0].Bytes))}},
		{"an empty weight", func(p *driver.Packed) { p.Bytes = nil }, nil},
		{"a long weight", func(p *driver.Packed) { p.Bytes = make([]byte, 2*len(p.Bytes)) }, nil},
		{"a weight of another shape", func(p *driver.Packed) { p.Spec.N++ }, nil},
		{"a weight of another scheme", func(p *driver.Packed) { p.Spec.Scheme = "q3k" }, []string{"q3k"}},
		{"a weight of another layout", func(p *driver.Packed) { p.Spec.Layout = "swirl" }, []string{"swirl"}},
	} {
		r.refuse(c.what, artifact, changed(packed, c.change), append(c.words, name)...)
	}
}

// experts tries experts whose stride or number does not fit the weight.
func (r *refusals) experts(operator op.Op) {
	if r.caps.Supports(operator) != nil {
		return
	}
	tr := r.newTrial(single(r.caps, operator), 0, 8)
	artifact, err := r.compile(tr.graph, tr.packed)
	if err != nil {
		r.t.Fatal(err)
	}
	name, one := tr.graph.Weights[0].Name, tr.packed[0].Stride
	for _, c := range []struct {
		what   string
		change func(p *driver.Packed)
		words  []string
	}{
		{"experts without a stride", func(p *driver.Packed) { p.Stride = 0 }, []string{name, fmt.Sprint(one)}},
		{"experts that overlap", func(p *driver.Packed) { p.Stride -= 64 }, []string{name, fmt.Sprint(one)}},
		{"experts beyond the end", func(p *driver.Packed) { p.Stride += 64 }, []string{name, fmt.Sprint(one + 64)}},
		{"experts at odd places", func(p *driver.Packed) { p.Bytes, p.Stride = r.memory(3*one+2), one+1 },
			[]string{name, fmt.Sprint(one + 1)}},
		{"a negative stride", func(p *driver.Packed) { p.Stride = -one }, []string{name, fmt.Sprint(-one)}},
		{"a stride that overflows", func(p *driver.Packed) { p.Stride = math.MaxInt64 &^ 63 }, []string{name}},
		{"an expert too few", func(p *driver.Packed) { p.Bytes = p.Bytes[:2*one] }, []string{name}},
		{"weights of other experts", func(p *driver.Packed) { p.Spec.Experts = 2 }, []string{name, "2", "3"}},
		{"a weight without experts", func(p *driver.Packed) { p.Spec.Experts, p.Bytes = 0, p.Bytes[:one] },
			[]string{name, "3"}},
	} {
		r.refuse(c.what, artifact, changed(tr.packed, c.change), c.words...)
	}
}

// unknownLayout tries a graph with a layout that no driver has.
func (r *refusals) unknownLayout(good *trial) {
	other := good.graph
	other.Weights = slices.Clone(other.Weights)
	other.Weights[0].Layout = "swirl"
	artifact, err := r.compile(other, nil)
	if err == nil {
		_, err = r.session.load(artifact, changed(good.packed, func(p *driver.Packed) { p.Spec.Layout = "swirl" }))
	}
	mentions(r.t, "a graph with weights in an unknown layout", err, "swirl")
}

// Run refuses operands and scalars that do not fit the graph, before it touches memory, and works
// afterwards.
func testRefusedAtRun(t *testing.T, factory *Factory) {
	session := open(t, factory, factory.Config)
	// refuse binds good operands, changes one of them, and wants an error with the words
	refuse := func(tr *trial, what string, change func(b *driver.Bindings), words ...string) {
		t.Helper()
		bound := tr.bind(place{}, scalars(0, 2))
		change(&bound.b)
		_, err := session.run(tr.exe, &bound.b)
		mentions(t, what, err, words...)
	}
	operator := op.Op{Kind: op.Norm, M: 2, N: 64}
	if session.caps.Supports(operator) != nil {
		operator = op.Op{Kind: op.MatMul, M: 2, K: 64, N: 64, Scheme: session.caps.Schemes[0]}
	}
	tr := session.newTrial(single(session.caps, operator), 0, 8)
	refuse(tr, "a missing input", func(b *driver.Bindings) { b.In = b.In[:len(b.In)-1] })
	refuse(tr, "a missing output", func(b *driver.Bindings) { b.Out = nil })
	refuse(tr, "an input without a buffer", func(b *driver.Bindings) { b.In[0].Buffer = nil }, `"x"`)
	refuse(tr, "an input of another type", func(b *driver.Bindings) { b.In[0].Type = op.BF16 }, `"x"`)
	refuse(tr, "an output of other columns", func(b *driver.Bindings) { b.Out[0].Cols-- }, `"y"`)
	refuse(tr, "an output of fewer rows", func(b *driver.Bindings) { b.Out[0].Rows = 1 }, `"y"`)
	refuse(tr, "an output beyond its buffer", func(b *driver.Bindings) { b.Out[0].Offset = 64 }, `"y"`)
	refuse(tr, "an input beyond its buffer", func(b *driver.Bindings) { b.In[0].Stride *= 2 }, `"x"`)
	refuse(tr, "a negative offset", func(b *driver.Bindings) { b.In[0].Offset = -64 }, `"x"`)
	refuse(tr, "an offset that overflows", func(b *driver.Bindings) { b.In[0].Offset = math.MaxInt64 - 3 }, `"x"`)
	refuse(tr, "a stride that overflows", func(b *driver.Bindings) { b.In[0].Stride = math.MaxInt / 2 }, `"x"`)
	refuse(tr, "a stride below the columns", func(b *driver.Bindings) { b.In[0].Stride = 1 }, `"x"`)
	refuse(tr, "negative rows", func(b *driver.Bindings) { b.Scalars.Rows = -1 }, "-1")
	if !session.caps.StridedInput {
		refuse(tr, "a strided input", func(b *driver.Bindings) { b.In[0].Rows, b.In[0].Stride = 1, 2*b.In[0].Stride },
			`"x"`)
	}
	if !session.caps.DynamicRows {
		refuse(tr, "fewer rows", func(b *driver.Bindings) { b.Scalars.Rows = 1 }, "row")
	}
	tr.check(place{}, scalars(0, 2)) // and still right afterwards

	attention := op.Op{Kind: op.Attention, M: 2, Heads: 4, KVHeads: 2, HeadDim: 8, Context: 8, KV: op.F32}
	if session.caps.Supports(attention) == nil {
		tr := session.newTrial(single(session.caps, attention), 16, 8)
		refuse(tr, "positions beyond the cache", func(b *driver.Bindings) { b.Scalars.Pos = 15 }, "16")
		refuse(tr, "a negative position", func(b *driver.Bindings) { b.Scalars.Pos = -1 }, "-1")
		refuse(tr, "a position that overflows", func(b *driver.Bindings) { b.Scalars.Pos = math.MaxInt })
		refuse(tr, "no cache", func(b *driver.Bindings) { b.K, b.V, b.MaxContext = driver.View{}, driver.View{}, 0 })
		refuse(tr, "a cache of another type", func(b *driver.Bindings) { b.K.Type = op.F16 }, `"k"`)
		refuse(tr, "a cache of fewer rows", func(b *driver.Bindings) { b.V.Rows-- }, `"v"`)
		refuse(tr, "a larger context than the cache has", func(b *driver.Bindings) { b.MaxContext *= 2 }, `"k"`)
		refuse(tr, "a sequence beyond those cached", func(b *driver.Bindings) { b.Scalars.Sequence = b.Sequences }, "3")
		refuse(tr, "a negative sequence", func(b *driver.Bindings) { b.Scalars.Sequence = -1 }, "-1")
		refuse(tr, "more sequences than the cache holds", func(b *driver.Bindings) { b.Sequences++ }, `"k"`)
		refuse(tr, "sequences farther apart than the cache is long",
			func(b *driver.Bindings) { b.SequenceBytes *= 2 }, `"k"`)
		refuse(tr, "sequences so far apart that it overflows",
			func(b *driver.Bindings) { b.SequenceBytes = math.MaxInt64 - 7 }, `"k"`)
		refuse(tr, "sequences that overlap", func(b *driver.Bindings) { b.SequenceBytes -= 4 }, `"k"`)
		tr.check(place{}, scalars(14, 2))
	}
	attention.Batch = true
	if session.caps.Supports(attention) == nil {
		tr := session.newTrial(single(session.caps, attention), 16, 8)
		refuse(tr, "a batch without places", func(b *driver.Bindings) { b.Scalars.Batch = nil }, "places")
		refuse(tr, "a batch of fewer places than rows",
			func(b *driver.Bindings) { b.Scalars.Batch = b.Scalars.Batch[:1] }, "places")
		refuse(tr, "a position beyond the cache", func(b *driver.Bindings) { b.Scalars.Batch[1].Pos = 16 }, "row 1",
			"16")
		refuse(tr, "a negative position of a row", func(b *driver.Bindings) { b.Scalars.Batch[1].Pos = -1 }, "row 1",
			"-1")
		refuse(tr, "a row of no cached sequence", func(b *driver.Bindings) { b.Scalars.Batch[0].Sequence = 2 },
			"row 0", "2")
		refuse(tr, "two rows of one sequence", func(b *driver.Bindings) { b.Scalars.Batch[1].Sequence = 1 }, "1")
		tr.check(place{}, scalars(14, 2))
	}

	rope := op.Op{Kind: op.Rope, M: 2, Heads: 2, KVHeads: 1, HeadDim: 8}
	if session.caps.Supports(rope) == nil {
		tr := session.newTrial(single(session.caps, rope), 0, 8)
		refuse(tr, "an in-place value in two places", func(b *driver.Bindings) {
			b.Out[0].Buffer = tr.bind(place{}, scalars(0, 2)).b.Out[0].Buffer
		}, `"qkv"`)
	}

	// Executables belong to the processor that loaded them, even among processors of one driver.
	other := open(t, factory, factory.Config)
	bound := tr.bind(place{}, scalars(0, 2))
	_, err := other.run(tr.exe, &bound.b)
	mentions(t, "an executable of another processor", err)
	if err := session.lane.do(tr.exe.Close); err != nil {
		t.Fatal(err)
	}
	_, err = session.run(tr.exe, &bound.b)
	mentions(t, "a closed executable", err)
}

// Values without an answer are errors that name operator and row: NaN to quantise, ids out of
// range. In rows that are not in use they do not matter.
func testRefusedValues(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	route := op.Op{Kind: op.Route, M: 3, Experts: 5, Fan: 2, Router: op.RouteSoftmax}
	mixer := op.Op{Kind: op.Route, M: 3, Experts: 5, Fan: 2, Router: op.RouteSparseMixer, Jitter: 0.01}
	expert := func(scheme op.Scheme) op.Op {
		return op.Op{Kind: op.ExpertMatMul, M: 3, Fan: 2, Experts: 4, K: 16, N: 16, Scheme: scheme}
	}
	for _, test := range []struct {
		o     op.Op
		input string
		value float64
		rows  int
		row   int
		words []string
	}{
		{op.Op{Kind: op.QuantRows, M: 3, N: 40}, "x", math.NaN(), 3, 0, []string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40}, "x", math.Inf(1), 3, 0, []string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40}, "x", math.Inf(-1), 3, 0, []string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true}, "x", math.NaN(), 3, 0, []string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true}, "x", math.Inf(1), 3, 0, []string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true, Scales: 2}, "x", math.NaN(), 3, 0,
			[]string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true, Scales: 2}, "x", math.Inf(1), 3, 0,
			[]string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.OutlierMatMul, M: 3, K: 40, N: 33, Scheme: op.A32W16}, "x", math.NaN(), 3, 0,
			[]string{"outlier_matmul", "row 1"}},
		{op.Op{Kind: op.OutlierMatMul, M: 3, K: 40, N: 33, Scheme: op.A32W16}, "x", math.Inf(-1), 3, 0,
			[]string{"outlier_matmul", "row 1"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16SQ8C}, "x", math.NaN(), 3, 0,
			[]string{"matmul", "row 1"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16SQ4C}, "x", math.Inf(-1), 3, 0,
			[]string{"matmul", "row 1"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16FW16}, "x", 65520, 3, 0,
			[]string{"matmul", "row 1", "f16"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16FQ4B32}, "x", math.NaN(), 3, 0,
			[]string{"matmul", "row 1", "f16"}},
		{op.Op{Kind: op.Embed, M: 3, K: 10, N: 16, Table: op.F32}, "ids", 10, 3, 0, []string{"embed", "row 1", "10"}},
		{op.Op{Kind: op.Embed, M: 3, K: 10, N: 16, Table: op.F32}, "ids", -1, 3, 0, []string{"embed", "row 1", "-1"}},
		{op.Op{Kind: op.KVAppend, M: 3, KVHeads: 1, HeadDim: 8, KV: op.F16}, "qkv", 1e6, 3, 0,
			[]string{"kv_append", "row 1"}},
		{op.Op{Kind: op.KVAppend, M: 3, KVHeads: 1, HeadDim: 8, KV: op.BF16}, "qkv", 3.4e38, 3, 0,
			[]string{"kv_append", "row 1", "bf16"}},
		{op.Op{Kind: op.SelectRow, M: 3, N: 8}, "x", 0, 3, 3, []string{"select_row", "row 3"}},
		{op.Op{Kind: op.SelectRow, M: 3, N: 8}, "x", 0, 3, -1, []string{"select_row", "row -1"}},
		{route, "logits", math.NaN(), 3, 0, []string{"route", "row 1"}},
		{route, "logits", math.Inf(1), 3, 0, []string{"route", "row 1"}},
		{route, "logits", math.Inf(-1), 3, 0, []string{"route", "row 1"}},
		{mixer, "logits", math.NaN(), 3, 0, []string{"route", "row 1"}},
		{expert(op.A32W32), "ids", 4, 3, 0, []string{"expert_matmul", "row 1", "4"}},
		{expert(op.A32W32), "ids", -1, 3, 0, []string{"expert_matmul", "row 1", "-1"}},
		{expert(op.A8TQ8C), "ids", math.MaxInt32, 3, 0, []string{"expert_matmul", "row 1"}},
		{expert(op.A8TQ4B32), "ids", math.MinInt32, 3, 0, []string{"expert_matmul", "row 1"}},
	} {
		if session.caps.Supports(test.o) != nil {
			continue
		}
		tr := session.newTrial(single(session.caps, test.o), testContext, 12)
		in := tr.vals[test.input]
		// the first element of row 1
		in.v[in.value.Cols] = test.value // row 1
		sc := scalars(0, test.rows)
		sc.Row = test.row
		bound := tr.bind(place{}, sc)
		_, err := session.run(tr.exe, &bound.b)
		mentions(t, fmt.Sprintf("%s with %v", test.o.Key(), test.value), err, test.words...)
		if session.caps.DynamicRows && test.o.Kind != op.SelectRow { // a row that is not in use does not matter
			bound.b.Scalars.Rows = 1
			if _, err := session.run(tr.exe, &bound.b); err != nil {
				t.Errorf("%s with %v in an unused row: %v", test.o.Key(), test.value, err)
			}
		}
		tr.fill(rand.New(rand.NewPCG(3, 3))) // and still right afterwards
		tr.check(place{}, scalars(0, test.rows))
	}
}

// Memory is zeroed, of the wanted size, closed twice without harm; imported memory is not copied.
func testMemory(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	for _, bytes := range []int64{1, 63, 4096, 1 << 20} {
		buffer, err := session.proc.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := buffer.Bytes(); int64(len(got)) != bytes ||
			slices.ContainsFunc(got, func(v byte) bool { return v != 0 }) {
			t.Errorf("alloc of %d bytes: got %d, or not zeroed", bytes, len(got))
		}
		if err := errors.Join(buffer.Close(), buffer.Close()); err != nil {
			t.Errorf("close a buffer twice: %v", err)
		}
	}
	for _, bytes := range []int64{-1, math.MaxInt64} {
		if _, err := session.proc.Alloc(bytes); err == nil {
			t.Errorf("alloc of %d bytes was accepted", bytes)
		}
	}
	memory := session.memory(256)
	if _, err := session.proc.Import(memory[1:]); err == nil {
		t.Error("import of unaligned memory was accepted")
	}
	buffer, err := session.proc.Import(memory[64:128])
	if err != nil {
		t.Fatal(err)
	}
	buffer.Bytes()[0] = 42
	if memory[64] != 42 || len(buffer.Bytes()) != 64 {
		t.Error("imported memory is a copy")
	}
	if err := errors.Join(buffer.Close(), buffer.Close()); err != nil {
		t.Errorf("close imported memory twice: %v", err)
	}
}

// Processors run at the same time, each on its lane, and give the same results as alone.
func testConcurrent(t *testing.T, f *Factory) {
	configs := append([]driver.Config{f.Config}, f.Others...)
	// Two processors with one selector also run at the same time.
	if len(f.Others) == 0 {
		configs = append(configs, f.Config)
	}
	var trials []*trial
	var first *driver.Capabilities // graphs are compiled for this one
	for i, config := range configs {
		session := open(t, f, config)
		if first == nil {
			first = session.caps
		}
		all := blocks(session.caps, 11)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if graph := all[name]; strings.HasPrefix(name, "mlp") && supported(session.caps, &graph) &&
				supported(first, &graph) {
				trials = append(trials, session.newTrial(graph, 0, uint64(i)))
				break
			}
		}
	}
	type outcome struct {
		b   *bound
		err error
	}
	// Operands are bound before: allocation belongs to the lanes too, and would serialise the calls.
	results := make([][]outcome, len(trials))
	for i, tr := range trials {
		for range 50 {
			results[i] = append(results[i], outcome{b: tr.bind(place{}, scalars(0, 11))})
		}
	}
	var wg sync.WaitGroup
	for i, tr := range trials {
		wg.Go(func() {
			for j := range results[i] {
				_, results[i][j].err = tr.s.run(tr.exe, &results[i][j].b.b)
			}
		})
	}
	wg.Wait()
	for i, tr := range trials {
		// all runs of a trial have the same operands
		evaluate(&tr.graph, tr.vals, tr.weights, nil, scalars(0, 11))
		for _, outcome := range results[i] {
			if outcome.err != nil {
				t.Fatal(outcome.err)
			}
			view := outcome.b.b.Out[0]
			tr.compare(tr.vals["y"], view, view.Buffer.Bytes(), 11)
		}
	}
}

// Closing works twice and in any order, and a closed processor or executable gives errors.
func testClose(t *testing.T, factory *Factory) {
	session := open(t, factory, factory.Config)
	operator := op.Op{Kind: op.Norm, M: 2, N: 64}
	if session.caps.Supports(operator) != nil {
		operator = op.Op{Kind: op.MatMul, M: 2, K: 64, N: 64, Scheme: session.caps.Schemes[0]}
	}
	tr := session.newTrial(single(session.caps, operator), 0, 8)
	bound := tr.bind(place{}, scalars(0, 2))
	if err := errors.Join(session.proc.Close(), session.proc.Close()); err != nil {
		t.Fatalf("close twice: %v", err)
	}
	_, err := session.run(tr.exe, &bound.b)
	mentions(t, "run on a closed processor", err)
	artifact, err := session.compile(tr.graph, tr.packed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = session.load(artifact, tr.packed)
	mentions(t, "load on a closed processor", err)
	if err := errors.Join(tr.exe.Close(), tr.exe.Close()); err != nil {
		t.Errorf("close an executable twice, after its processor: %v", err)
	}
	// A processor that was never attached closes too.
	proc, err := factory.Driver.Open(context.Background(), factory.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Close(); err != nil {
		t.Error(err)
	}
}

// Opening and closing leaves no goroutines and no threads behind.
func testLeaks(t *testing.T, f *Factory) {
	cycle := func() {
		session := open(t, f, f.Config)
		graphs := blocks(session.caps, 11)
		maps.DeleteFunc(graphs, func(name string, g op.Graph) bool {
			return !strings.HasPrefix(name, "mlp") || !supported(session.caps, &g)
		})
		for i, name := range slices.Sorted(maps.Keys(graphs)) {
			if i < 2 { // what is opened and closed does not depend on the scheme
				session.newTrial(graphs[name], 0, 1).check(place{}, scalars(0, 11))
			}
		}
		session.close()
	}
	// The first cycle may start what stays for good, such as threads of a library.
	cycle()
	goroutines, threads := runtime.NumGoroutine(), countThreads()
	const cycles = 10
	for range cycles {
		cycle()
	}
	// Threads end a little after their goroutines.
	for range 100 {
		if runtime.NumGoroutine() <= goroutines && countThreads() < threads+cycles/2 {
			// Threads of the Go runtime come and go; a leak would add one for each cycle.
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("after opening and closing %d processors: %d goroutines, before %d; %d threads, before %d", cycles,
		runtime.NumGoroutine(), goroutines, countThreads(), threads)
}

// countThreads returns the number of OS threads of this process, 0 where the system does not tell.
func countThreads() int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(entries)
}
