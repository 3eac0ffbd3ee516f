// Package drivertest knows what every driver must do: a conformance suite that compares each
// operator a processor claims with the definitions in double precision, and checks that everything
// else is refused by name. It also wraps a driver so that a chosen call fails or hangs.
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

	// Tolerance is the permitted error of a float32 result relative to the sum of the magnitudes of its
	// terms; 0 means 1e-5.
	Tolerance float64
	// Activations is the further permitted error of an activation function relative to its argument, of libraries
	// whose functions have no exact tails; 0 means none.
	Activations float64
}

func (f *Factory) tolerance() float64 {
	if f.Tolerance == 0 {
		return 1e-5
	}
	return f.Tolerance
}

// Run runs the suite. An unavailable driver skips it, unless the environment variable HETC_REQUIRE (a
// comma-separated list) names the driver.
func Run(t *testing.T, f Factory) {
	open(t, &f, f.Config).close()
	for _, c := range []struct {
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
		{"RefusedAtLoad", testRefusedAtLoad},
		{"RefusedAtRun", testRefusedAtRun},
		{"RefusedValues", testRefusedValues},
		{"Memory", testMemory},
		{"Concurrent", testConcurrent},
		{"Close", testClose},
		{"Leaks", testLeaks},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, &f) })
	}
}

func testDevices(t *testing.T, f *Factory) {
	ctx := context.Background()
	devices, err := f.Driver.Devices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.Driver.Devices(ctx)
	if err != nil || fmt.Sprint(devices) != fmt.Sprint(again) {
		t.Errorf("devices differ from call to call: %v, %v (%v)", devices, again, err)
	}
	if len(devices) == 0 {
		t.Fatal("no devices, though one was opened")
	}
	seen := map[string]bool{}
	for _, d := range devices {
		if seen[d.Select] || d.Description == "" {
			t.Errorf("device %+v is listed twice or not described", d)
		}
		seen[d.Select] = true
		s := open(t, f, driver.Config{Select: d.Select, Options: f.Config.Options})
		if !slices.Equal(s.caps.Cores, d.Cores) {
			t.Errorf("device %q occupies cores %v, its processor %v", d.Select, d.Cores, s.caps.Cores)
		}
		s.close()
	}
}

func testCapabilities(t *testing.T, f *Factory) {
	c := open(t, f, f.Config).caps
	seen := map[string]bool{}
	once := func(what string) {
		if seen[what] {
			t.Errorf("%s is listed twice", what)
		}
		seen[what] = true
	}
	for _, k := range c.Kinds {
		once("kind " + string(k))
		if !slices.Contains(op.Kinds, k) {
			t.Errorf("unknown kind %q", k)
		}
	}
	for _, s := range c.Schemes {
		once("scheme " + string(s))
		if c.Layouts[s.Weight()] == "" {
			t.Errorf("scheme %q: no layout of weights %q", s, s.Weight())
		}
	}
	for scheme, forms := range c.Forms {
		for _, f := range forms {
			once("form " + string(f) + " of " + string(scheme))
			if !slices.Contains(op.FormClasses, f) || !slices.Contains(c.Schemes, scheme) {
				t.Errorf("form %q of scheme %q: want one of %q, of a supported scheme", f, scheme, op.FormClasses)
			}
			if f == op.Conv && c.DynamicRows {
				t.Errorf("form %q is compiled for a number of rows, and calls may use fewer", f)
			}
		}
	}
	for _, k := range c.KV {
		once("cache type " + string(k))
	}
	for _, s := range c.Rerounds {
		once("rounding again of " + string(s))
		if !slices.Contains(c.Schemes, s) || s.BlockK() < 2 {
			t.Errorf("scheme %q is said to round again, and is not supported or has no blocks", s)
		}
	}
	for _, s := range c.Imitates {
		once("imitation of " + string(s))
		if !slices.Contains(c.Schemes, s) {
			t.Errorf("scheme %q is said to be imitated, and is not supported", s)
		}
	}
	if len(c.Kinds) == 0 || c.Tile.N < 1 || c.Tile.K < 1 {
		t.Errorf("got kinds %v, tiles of %d columns and %d rows", c.Kinds, c.Tile.N, c.Tile.K)
	}
	if c.Memory != nil {
		if err := c.Memory.Validate(); err != nil {
			t.Errorf("memory: %v", err)
		}
	}
	if c.StaticShapes && c.DynamicRows {
		t.Error("static shapes and dynamic rows exclude each other")
	}
	if slices.Contains(c.Kinds, op.MatMul) != (len(c.Schemes) > 0) {
		t.Errorf("got kinds %v with schemes %v", c.Kinds, c.Schemes)
	}
}

// sampled is whether some variants stand for all: under the race detector, and with -short, which other ways of building
// ask for. Plain tests try every variant.
func sampled() bool { return Race || testing.Short() }

// operators is one of every kind and variant per shape; shapes are 1, primes, tails beside tiles, and
// large enough to be divided among threads.
func operators() []op.Op {
	var out []op.Op
	add := func(ops ...op.Op) { out = append(out, ops...) }
	for _, n := range []int{1, 7, 32, 97, 256} {
		for i, m := range []int{1, 3, 17} {
			add(
				op.Op{Kind: op.Norm, M: m, N: n, Eps: 1e-5},
				op.Op{Kind: op.LayerNorm, M: m, N: n, Eps: 1e-5},
				op.Op{Kind: op.QuantRows, M: m, N: n},
				op.Op{Kind: op.QuantRows, M: m, N: n, Static: true},
				op.Op{Kind: op.QuantRows, M: m, N: n, Static: true, Scales: 2 + 2*(m%2)},
				op.Op{Kind: op.Add, M: m, N: n},
				op.Op{Kind: op.Copy, M: m, N: n},
				op.Op{Kind: op.SelectRow, M: m, N: n},
				op.Op{Kind: op.GLU, M: m, N: n, Interleave: n, Act: op.SiLU},
				op.Op{Kind: op.GLU, M: m, N: n, Interleave: n, Act: op.Acts[1+i], Fan: 3 * i},
				op.Op{Kind: op.Activate, M: m, N: n, Act: op.Acts[i]},
				op.Op{Kind: op.Activate, M: m, N: n, Act: op.Acts[3-i], Fan: 1 + i},
				op.Op{Kind: op.Gate, M: m, N: n},
				op.Op{Kind: op.Softcap, M: m, N: n, Cap: []float64{30, 0.5, 1e-3}[i]},
				op.Op{Kind: op.Clip, M: m, N: n, Cap: []float64{30, 0.5, 1e-3}[i]},
				op.Op{Kind: op.QuantRows, M: m, N: n, Fan: 1 + 3*i},
				op.Op{Kind: op.QuantRows, M: m, N: n, Fan: 2 + i, Static: true},
				op.Op{Kind: op.QuantRows, M: m, N: n, Fan: 2 + i, Static: true, Scales: 2},
				op.Op{Kind: op.Copy, M: m, N: n, Fan: 8 - i},
				op.Op{Kind: op.Combine, M: m, N: n, Fan: []int{1, 2, 8}[i]},
				op.Op{Kind: op.Combine, M: m, N: n, Fan: []int{5, 4, 3}[i]},
			)
			for _, t := range []op.Type{op.F32, op.F16, op.BF16} {
				add(op.Op{Kind: op.Embed, M: m, K: 53, N: n, Table: t}, op.Op{Kind: op.Embed, M: m, K: 53, N: n, Table: t, Scale: 11.3})
			}
			add(op.Op{Kind: op.Embed, M: m, K: 53, N: n, Scheme: op.I32Q8C}, op.Op{Kind: op.Embed, M: m, K: 32, N: n, Scheme: op.I32Q8C, Scale: 11.3})
		}
	}
	add(op.Op{Kind: op.GLU, M: 5, N: 96, Interleave: 16, Act: op.SiLU}, op.Op{Kind: op.GLU, M: 2, N: 6, Interleave: 1, Act: op.SiLU},
		op.Op{Kind: op.Norm, M: 19, N: 1024}, op.Op{Kind: op.LayerNorm, M: 19, N: 1024}, op.Op{Kind: op.QuantRows, M: 19, N: 1024}, op.Op{Kind: op.QuantRows, M: 19, N: 1024, Static: true}, op.Op{Kind: op.Add, M: 19, N: 1024},
		op.Op{Kind: op.GLU, M: 19, N: 1024, Interleave: 16, Act: op.SiLU}, op.Op{Kind: op.Copy, M: 19, N: 1024}, op.Op{Kind: op.Combine, M: 19, N: 1024, Fan: 4},
		op.Op{Kind: op.Softcap, M: 19, N: 1024, Cap: 50}, op.Op{Kind: op.Gate, M: 19, N: 1024})
	for _, act := range op.Acts {
		add(op.Op{Kind: op.GLU, M: 5, N: 96, Interleave: 32, Act: act}, op.Op{Kind: op.GLU, M: 5, N: 96, Interleave: 3, Act: act, Fan: 2},
			op.Op{Kind: op.Activate, M: 19, N: 1024, Act: act}, op.Op{Kind: op.Activate, M: 7, N: 330, Act: act, Fan: 4})
	}
	for _, s := range op.Schemes {
		if s.Scales() > 1 {
			continue // products are those of a single static scale; blocks of operators have them
		}
		for i, sh := range [][3]int{{1, 1, 1}, {1, 64, 32}, {1, 97, 131}, {2, 31, 33}, {3, 5, 7}, {5, 100, 64}, {13, 128, 97}, {1, 512, 672}, {21, 96, 160}, {33, 64, 32}} {
			o := op.Op{Kind: op.MatMul, M: sh[0], K: sh[1], N: sh[2], Scheme: s}
			add(o)
			if o.Bias = true; i%2 == 1 || i == 0 {
				add(o)
			}
		}
		for i, sh := range [][3]int{{1, 97, 131}, {6, 64, 32}} {
			for _, f := range op.FormsOf(sh[0], op.FormClasses) {
				add(op.Op{Kind: op.MatMul, M: sh[0], K: sh[1], N: sh[2], Scheme: s, Form: f, Bias: i == 1})
			}
		}
		for _, sh := range []struct {
			m, fan, experts, k, n int
		}{
			{1, 1, 1, 1, 1}, {1, 2, 16, 64, 96}, {1, 8, 16, 33, 131}, {3, 1, 4, 100, 31}, {5, 8, 16, 32, 64}, {17, 2, 3, 97, 33}, {9, 3, 1, 40, 160}, {50, 8, 3, 64, 32}, {11, 6, 8, 96, 300},
		} {
			o := op.Op{Kind: op.ExpertMatMul, M: sh.m, Fan: sh.fan, Experts: sh.experts, K: sh.k, N: sh.n, Scheme: s}
			add(o)
			o.Spread = true
			add(o)
		}
	}
	for _, router := range op.Routers {
		for _, sh := range [][3]int{{1, 1, 1}, {1, 16, 2}, {3, 7, 1}, {17, 16, 8}, {5, 60, 4}, {19, 128, 8}} {
			o := op.Op{Kind: op.Route, M: sh[0], Experts: sh[1], Fan: sh[2], Router: router}
			if router == op.RouteSparseMixer {
				o.Fan, o.Jitter = min(2, o.Fan), 0.01*float64(sh[0])
			}
			add(o)
		}
	}
	for _, h := range [][3]int{{1, 1, 2}, {4, 2, 16}, {6, 2, 10}, {3, 3, 64}, {8, 1, 80}} {
		for _, m := range []int{1, 5, 19} {
			o := op.Op{M: m, Heads: h[0], KVHeads: h[1], HeadDim: h[2]}
			o.Kind = op.Rope
			turn := func() {
				add(o)
				if batch := o; m > 1 {
					batch.Batch = true
					add(batch)
				}
			}
			turn()
			o.Amplitude, o.LongFrom, o.LongAmplitude = 0.8, 40, 1.2
			turn()
			if o.HeadDim > 4 {
				o.RotaryDim = o.HeadDim / 4 * 2
				turn()
				o.LongAmplitude, o.NTK = 0, 4
				turn()
				o.RotaryDim, o.LongFrom, o.NTK = 4, 0, 0
				turn()
			}
			o = op.Op{Kind: op.QKNorm, M: m, Heads: h[0], KVHeads: h[1], HeadDim: h[2], Eps: 1e-6}
			add(o)
			o.Joint = true
			add(o)
			for _, kv := range []op.Type{op.F32, op.F16} {
				o := op.Op{Kind: op.KVAppend, M: m, Heads: h[0], KVHeads: h[1], HeadDim: h[2], KV: kv}
				add(o)
				o.Kind, o.Context = op.Attention, testContext
				add(o)
				// Windows of one position, within the context, of its size and beyond it.
				o.Window = map[int]int{1: 1, 5: testContext, 19: 23}[m]
				add(o)
				o.Window, o.Cap, o.Scale = o.Window+testContext/2, 5, 0.11
				add(o)
				if m > 1 {
					o.Batch = true
					add(o)
					o.Window, o.Cap, o.Scale = 0, 0, 0
					add(o)
					o.Kind, o.Context = op.KVAppend, 0
					add(o)
				}
			}
		}
	}
	// Contexts of several blocks of keys, longer and shorter than the window.
	for _, dim := range []int{20, 64} {
		for _, window := range []int{30, 130, 500} {
			o := op.Op{Kind: op.Attention, M: 18, Heads: 4, KVHeads: 2, HeadDim: dim, KV: op.F16, Context: 420, Window: window}
			add(o)
			o.KV, o.Cap = op.F32, 20
			add(o)
		}
	}
	return append(out, op.Op{Kind: op.KVAppend, M: 3, KVHeads: 2, HeadDim: 8, KV: op.F32})
}

const testContext = 64

// contextOf is the size of the cache that o is tried with.
func contextOf(o op.Op) int { return max(testContext, o.M, o.Context) }

// scalars of a call with rows rows at the end of its sequence, or, where they are of a sequence each, at positions
// before that.
func scalars(pos, rows int) driver.Scalars {
	s := driver.Scalars{Pos: pos, Rows: rows, KVLen: pos + rows, Seq: pos + rows, Row: rows / 2, Sequence: 1}
	for i := range rows {
		s.Batch = append(s.Batch, driver.Place{Sequence: rows - 1 - i, Pos: pos/(1+i%3) + i})
	}
	return s
}

// single is the graph of one operator; copies are also made of other types.
func single(c *driver.Capabilities, o op.Op) op.Graph {
	return op.Single(o, c.Layouts[o.Scheme.Weight()])
}

// variants runs a trial dense, with fewer rows and in wider buffers, as far as the processor does those, up to the
// end of a cache of maxContext.
func (s *session) variants(tr *trial, m, maxContext int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	type call struct {
		place
		scalars driver.Scalars
	}
	calls := []call{{place{}, scalars(0, m)}}
	end := scalars(maxContext-m, m)
	if s.caps.StridedInput && s.caps.StridedOutput {
		calls = append(calls, call{place{gap: s.caps.Tile.N, below: 2}, scalars(21, m)}, call{place{gap: 3}, end})
	} else {
		calls = append(calls, call{place{}, end})
	}
	for _, n := range tr.graph.Nodes {
		if n.Op.LongFrom > 0 { // a chunk of a longer prompt
			early := scalars(2, m)
			early.Seq = 200
			calls = append(calls, call{place{}, early})
			break
		}
	}
	if s.caps.DynamicRows && m > 1 {
		calls = append(calls, call{place{below: 1}, scalars(3, m-1)}, call{place{}, scalars(1, 1)})
	}
	for _, c := range calls {
		tr.fill(rng)
		if c.scalars.Pos+m > maxContext {
			seq := c.scalars.Seq
			c.scalars = scalars(0, c.scalars.Rows)
			c.scalars.Seq = seq
		}
		tr.check(c.place, c.scalars)
	}
}

func testOperators(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	tried, alike := map[op.Kind]int{}, map[op.Op]int{}
	for i, o := range operators() {
		g := single(s.caps, o)
		name := strings.ReplaceAll(o.Key(), "/", ":")
		if o.Kind == op.GLU {
			name += fmt.Sprintf(" by %d", o.Interleave)
		}
		if o.Kind == op.Rope && o.LongFrom > 0 {
			name += fmt.Sprintf(" long ntk=%v", o.NTK)
		}
		if s.caps.Supports(o) != nil && !s.ignores(t, o, g) {
			continue // refused: RefusedAtLoad
		}
		tried[o.Kind]++
		of := op.Op{Kind: o.Kind, Scheme: o.Scheme}
		if alike[of]++; sampled() && alike[of] > 6 {
			continue
		}
		types := []op.Type{""}
		if o.Kind == op.Copy {
			types = []op.Type{op.F32, op.U8, op.F16, op.BF16, op.I32, op.I8}
		}
		for _, typ := range types {
			t.Run(name+string(typ), func(t *testing.T) {
				sub := *s
				sub.t = t
				if typ != "" {
					g.Inputs[0].Type, g.Outputs[0].Type = typ, typ
				}
				if o.Kind == op.Rope || o.Kind == op.QKNorm { // in place
					g.Outputs[0] = g.Inputs[0]
				}
				sub.variants(sub.newTrial(g, contextOf(o), uint64(i)), o.M, contextOf(o), uint64(i))
			})
		}
	}
	for _, k := range s.caps.Kinds {
		if tried[k] == 0 {
			t.Errorf("kind %q is claimed, but none of its variants is supported", k)
		}
	}
}

// ignores reports whether a driver compiles a product whose form it does not list, which it then has to execute: arithmetic
// is the same in every form. If not its compiler names the form.
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

// graph is built node by node.
type graph struct {
	op.Graph
	layouts map[string]string
}

func (g *graph) node(o op.Op, in, w, out []string) {
	for i, role := range o.Sig().W {
		spec := o.WeightSpec(role, g.layouts[o.Scheme.Weight()])
		spec.Name = w[i]
		g.Weights = append(g.Weights, spec)
	}
	g.Nodes = append(g.Nodes, op.Node{Op: o, In: in, W: w, Out: out})
}

func value(name string, t op.Type, rows, cols int) op.Value {
	return op.Value{Name: name, Type: t, Rows: rows, Cols: cols}
}

func names(s ...string) []string { return s }

// static is the weight of a node that quantises rows of in.
func static(quant op.Op, in string) []string {
	if quant.Static {
		return names(in + "scale")
	}
	return nil
}

// blocks are pieces of a transformer as plans contain them, for m rows.
func blocks(c *driver.Capabilities, m int) map[string]op.Graph {
	const hidden, ffn, heads, kv, dim, vocabulary = 64, 96, 4, 2, 16, 41
	qkv := op.QKVColumns(heads, kv, dim)
	f32 := func(name string, cols int) op.Value { return value(name, op.F32, m, cols) }
	out := map[string]op.Graph{}

	add := func(name string, g graph) { out[name] = g.Graph }

	g := graph{layouts: c.Layouts, Graph: op.Graph{Inputs: []op.Value{value("ids", op.I32, m, 1)}, Outputs: []op.Value{f32("x", hidden), f32("n", hidden)}}}
	g.node(op.Op{Kind: op.Embed, M: m, K: vocabulary, N: hidden, Table: op.F32}, names("ids"), names("table"), names("x"))
	g.node(op.Op{Kind: op.Norm, M: m, N: hidden, Eps: 1e-5}, names("x"), names("gain"), names("n"))
	add("embed", g)

	g = graph{layouts: c.Layouts, Graph: op.Graph{Inputs: []op.Value{f32("x", hidden)}, Outputs: []op.Value{value("logits", op.F32, 1, vocabulary)},
		Temps: []op.Value{value("last", op.F32, 1, hidden), value("n", op.F32, 1, hidden)}}}
	g.node(op.Op{Kind: op.SelectRow, M: m, N: hidden}, names("x"), nil, names("last"))
	g.node(op.Op{Kind: op.Norm, M: 1, N: hidden, Eps: 1e-5}, names("last"), names("gain"), names("n"))
	g.node(op.Op{Kind: op.MatMul, M: 1, K: hidden, N: vocabulary, Scheme: op.A32W32}, names("n"), names("lm_head"), names("logits"))
	add("head", g)

	for _, kvType := range []op.Type{op.F32, op.F16} {
		// The fused row is an input that rope changes and nobody reads afterwards.
		o := op.Op{Kind: op.Rope, M: m, Heads: heads, KVHeads: kv, HeadDim: dim}
		chain := func(batch bool) {
			g = graph{layouts: c.Layouts, Graph: op.Graph{Inputs: []op.Value{f32("qkv", qkv)}, Outputs: []op.Value{f32("y", heads*dim)}}}
			o := o
			o.Batch = batch
			g.node(o, names("qkv"), names("invfreq"), names("qkv"))
			o.Kind, o.KV = op.KVAppend, kvType
			g.node(o, names("qkv"), nil, nil)
			o.Kind, o.Context = op.Attention, testContext
			g.node(o, names("qkv"), nil, names("y"))
		}
		chain(false)
		add("attention "+string(kvType), g)
		chain(true)
		add("attention of a batch "+string(kvType), g)

		// The same with everything in front of it and around it, in a sliding window.
		shape := op.Op{M: m, Heads: heads, KVHeads: kv, HeadDim: dim}
		with := func(k op.Kind) op.Op { o := shape; o.Kind = k; return o }
		g = graph{layouts: c.Layouts, Graph: op.Graph{Inputs: []op.Value{f32("qkv", qkv)}, Outputs: []op.Value{f32("y", heads*dim)}}}
		o = with(op.QKNorm)
		o.Eps = 1e-6
		g.node(o, names("qkv"), names("qgain", "kgain"), names("qkv"))
		o = with(op.Rope)
		o.RotaryDim, o.LongFrom, o.LongAmplitude = 8, 20, 1.1
		g.node(o, names("qkv"), names("invfreq"), names("qkv"))
		o = with(op.KVAppend)
		o.KV = kvType
		g.node(o, names("qkv"), nil, nil)
		o = with(op.Attention)
		o.KV, o.Context, o.Window, o.Cap, o.Scale = kvType, testContext, 15, 10, 0.3
		g.node(o, names("qkv"), nil, names("y"))
		add("window "+string(kvType), g)
	}

	for _, scheme := range op.Schemes {
		g = graph{layouts: c.Layouts, Graph: op.Graph{Inputs: []op.Value{f32("x", hidden)}, Outputs: []op.Value{f32("y", hidden)},
			Temps: []op.Value{f32("n", hidden), f32("h", 2*ffn), f32("a", ffn), f32("d", hidden)}}}
		product := func(k, n int, in, w, y string) {
			o := op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme}
			if scheme.Grid() {
				g.node(o, names(in), names(w, w+"_steps"), names(y))
				return
			}
			if !scheme.QuantisedRows() {
				g.node(o, names(in), names(w), names(y))
				return
			}
			q, s := value(in+"8", op.U8, m, k), value(in+"s", op.F32, m, 1)
			g.Temps = append(g.Temps, q, s)
			quant := scheme.QuantRows(m, k, 1)
			g.node(quant, names(in), static(quant, in), names(q.Name, s.Name))
			g.node(o, names(q.Name, s.Name), names(w), names(y))
		}
		g.node(op.Op{Kind: op.Norm, M: m, N: hidden, Eps: 1e-5}, names("x"), names("gain"), names("n"))
		product(hidden, 2*ffn, "n", "gate_up", "h")
		g.node(op.Op{Kind: op.GLU, M: m, N: ffn, Interleave: 16, Act: op.SiLU}, names("h"), nil, names("a"))
		product(ffn, hidden, "a", "down", "d")
		g.node(op.Op{Kind: op.Add, M: m, N: hidden}, names("x", "d"), nil, names("y"))
		add("mlp "+strings.ReplaceAll(string(scheme), "/", ":"), g)
	}
	const experts, fan = 6, 3
	for _, scheme := range op.Schemes {
		wide := func(name string, t op.Type, cols int) op.Value { return value(name, t, m*fan, cols) }
		g = graph{layouts: c.Layouts, Graph: op.Graph{Inputs: []op.Value{f32("x", hidden)}, Outputs: []op.Value{f32("y", hidden)},
			Temps: []op.Value{f32("n", hidden), f32("logits", experts), value("ids", op.I32, m, fan), f32("weights", fan),
				wide("h", op.F32, 2*ffn), wide("a", op.F32, ffn), wide("d", op.F32, hidden), f32("s", hidden), f32("g", 1), f32("shared", hidden)}}}
		product := func(k, n int, spread bool, in, w, y string) {
			o := op.Op{Kind: op.ExpertMatMul, M: m, K: k, N: n, Scheme: scheme, Experts: experts, Fan: fan, Spread: spread}
			if !scheme.QuantisedRows() {
				g.node(o, names(in, "ids"), names(w), names(y))
				return
			}
			quant := scheme.QuantRows(m, k, fan)
			if spread {
				quant.Fan = 0
			}
			q, s := value(in+"8", op.U8, quant.Rows(), k), value(in+"s", op.F32, quant.Rows(), 1)
			g.Temps = append(g.Temps, q, s)
			g.node(quant, names(in), static(quant, in), names(q.Name, s.Name))
			g.node(o, names(q.Name, s.Name, "ids"), names(w), names(y))
		}
		g.node(op.Op{Kind: op.LayerNorm, M: m, N: hidden, Eps: 1e-5}, names("x"), names("gain", "bias"), names("n"))
		g.node(op.Op{Kind: op.MatMul, M: m, K: hidden, N: experts, Scheme: op.A32W32}, names("n"), names("router"), names("logits"))
		g.node(op.Op{Kind: op.Route, M: m, Experts: experts, Fan: fan, Router: op.RouteSoftmaxNorm}, names("logits"), nil, names("ids", "weights"))
		product(hidden, 2*ffn, true, "n", "gate_up", "h")
		g.node(op.Op{Kind: op.GLU, M: m, N: ffn, Interleave: 32, Act: op.GELUTanh, Fan: fan}, names("h"), nil, names("a"))
		product(ffn, hidden, false, "a", "down", "d")
		g.node(op.Op{Kind: op.Combine, M: m, N: hidden, Fan: fan}, names("d", "weights"), nil, names("s"))
		g.node(op.Op{Kind: op.MatMul, M: m, K: hidden, N: 1, Scheme: op.A32W32, Bias: true}, names("n"), names("gate", "gate_bias"), names("g"))
		g.node(op.Op{Kind: op.Gate, M: m, N: hidden}, names("n", "g"), nil, names("shared"))
		g.node(op.Op{Kind: op.Add, M: m, N: hidden}, names("s", "shared"), nil, names("s"))
		g.node(op.Op{Kind: op.Add, M: m, N: hidden}, names("x", "s"), nil, names("y"))
		add("moe "+strings.ReplaceAll(string(scheme), "/", ":"), g)
	}
	return out
}

// supported reports whether the processor does every node.
func supported(c *driver.Capabilities, g *op.Graph) bool {
	for _, n := range g.Nodes {
		if c.Supports(n.Op) != nil {
			return false
		}
	}
	return true
}

func testGraphs(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	for _, m := range []int{1, 11} {
		for name, g := range blocks(s.caps, m) {
			if !supported(s.caps, &g) {
				continue
			}
			t.Run(fmt.Sprintf("%s m=%d", name, m), func(t *testing.T) {
				sub := *s
				sub.t = t
				if err := g.Validate(); err != nil {
					t.Fatal(err)
				}
				tr := sub.newTrial(g, testContext, 77)
				sub.variants(tr, m, testContext, 77)
				if g.State() { // a prompt in two chunks, then more: each call sees what the ones before it stored
					rng := rand.New(rand.NewPCG(5, 5))
					for _, pos := range []int{0, m, 2 * m} {
						tr.fill(rng)
						tr.check(place{}, scalars(pos, m))
					}
				}
			})
		}
	}
}

// A shard is a tile range of one packed weight, of all its experts, with the same columns of the bias, and a
// column range of one output.
func testWeightRanges(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	if !s.caps.WeightRanges {
		t.Skip("the processor needs its own copy of a shard's weight")
	}
	n0 := s.caps.Tile.N
	whole := 3*n0 + 5
	for _, scheme := range s.caps.Schemes {
		for _, o := range []op.Op{
			{Kind: op.MatMul, M: 3, K: 96, N: whole, Scheme: scheme},
			{Kind: op.MatMul, M: 3, K: 96, N: whole, Scheme: scheme, Bias: true},
			{Kind: op.ExpertMatMul, M: 5, Fan: 2, Experts: 4, K: 96, N: whole, Scheme: scheme, Spread: true},
			{Kind: op.ExpertMatMul, M: 1, Fan: 3, Experts: 3, K: 40, N: whole, Scheme: scheme},
		} {
			if s.caps.Supports(o) != nil {
				continue
			}
			full := s.newTrial(single(s.caps, o), 0, 3)
			for _, cols := range [][2]int{{0, n0}, {n0, 3 * n0}, {2 * n0, whole}} {
				o.N = cols[1] - cols[0]
				part := s.newTrial(single(s.caps, o), 0, 4)
				for i, spec := range full.graph.Weights {
					p := &full.packed[i]
					if spec.Name == "steps" { // the same in all columns: every share has its own
						old, w := full.weights[spec.Name], stored{spec.K, o.N, make([]float32, spec.K*o.N)}
						for j := range w.v {
							w.v[j] = old.v[j/o.N*whole]
						}
						if err := Pack(part.packed[i].Bytes, part.graph.Weights[i], w.v); err != nil {
							t.Fatal(err)
						}
						part.weights[spec.Name] = w
						continue
					}
					columns, offset, bytes, err := pack.Columns(spec, cols[0], cols[1])
					if err != nil {
						t.Fatal(err)
					}
					part.packed[i] = driver.Packed{Spec: columns, Bytes: p.Bytes[offset : offset+bytes], Stride: p.Stride}
					rows, old := max(1, spec.Experts)*spec.K, full.weights[spec.Name]
					w := stored{spec.K, o.N, make([]float32, rows*o.N)}
					for r := range rows {
						copy(w.v[r*o.N:(r+1)*o.N], old.v[r*whole+cols[0]:])
					}
					part.weights[spec.Name] = w
				}
				if err := part.load(); err != nil {
					t.Fatalf("columns %v of %s: %v", cols, o.Key(), err)
				}
				part.check(place{}, scalars(0, o.M))
			}
		}
	}
}

// Rows of zeros give zeros, not NaN, everywhere; no rows give nothing.
func testZeroRows(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	ops := []op.Op{{Kind: op.Norm, M: 2, N: 33}, {Kind: op.Norm, M: 2, N: 33, Eps: 1e-6}, {Kind: op.LayerNorm, M: 2, N: 33}, {Kind: op.QuantRows, M: 2, N: 33}, {Kind: op.QuantRows, M: 2, N: 33, Static: true}, {Kind: op.QuantRows, M: 2, N: 33, Static: true, Scales: 3},
		{Kind: op.GLU, M: 2, N: 32, Interleave: 16, Act: op.SiLU}, {Kind: op.GLU, M: 2, N: 32, Interleave: 16, Act: op.GELUTanh, Fan: 2}, {Kind: op.Softcap, M: 2, N: 33, Cap: 3},
		{Kind: op.QKNorm, M: 2, Heads: 2, KVHeads: 1, HeadDim: 16}, {Kind: op.QKNorm, M: 2, Heads: 2, KVHeads: 1, HeadDim: 16, Joint: true}}
	for _, scheme := range op.Schemes {
		ops = append(ops, op.Op{Kind: op.MatMul, M: 2, K: 33, N: 40, Scheme: scheme}, op.Op{Kind: op.ExpertMatMul, M: 2, Fan: 2, Experts: 3, K: 33, N: 40, Scheme: scheme, Spread: true})
	}
	for _, router := range op.Routers { // of equal logits the first experts
		ops = append(ops, op.Op{Kind: op.Route, M: 2, Experts: 5, Fan: 2, Router: router})
	}
	for _, act := range op.Acts {
		ops = append(ops, op.Op{Kind: op.Activate, M: 2, N: 33, Act: act})
	}
	for _, o := range ops {
		if s.caps.Supports(o) != nil {
			continue
		}
		g := single(s.caps, o)
		if o.Kind == op.QKNorm { // in place
			g.Outputs[0] = g.Inputs[0]
		}
		tr := s.newTrial(g, 0, 6)
		for _, v := range tr.graph.Inputs {
			a := tr.vals[v.Name]
			clear(a.v)
			for i := range a.v {
				if v.Type == op.U8 {
					a.v[i] = 128
				}
			}
		}
		tr.check(place{}, scalars(0, 2))
		if s.caps.DynamicRows {
			tr.check(place{}, scalars(0, 0))
		}
	}
}

func testDeterminism(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	for name, g := range blocks(s.caps, 11) {
		if !supported(s.caps, &g) {
			continue
		}
		tr := s.newTrial(g, testContext, 9)
		var first string
		for i := range 20 {
			b := tr.bind(place{}, scalars(0, 11))
			if _, err := s.run(tr.exe, &b.b); err != nil {
				t.Fatal(err)
			}
			result := ""
			for _, v := range b.b.Out {
				result += string(v.Bytes())
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

// mentions fails unless err names every word.
func mentions(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s was accepted", what)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %q does not mention %q", what, err, w)
		}
	}
}

func testRefusedAtOpen(t *testing.T, f *Factory) {
	ctx := context.Background()
	for _, sel := range []string{"", "-", "no-such-processor", "-1", "0-", "999999", "1e9", "\x00"} {
		p, err := f.Driver.Open(ctx, driver.Config{Select: sel, Options: f.Config.Options})
		if sel == "" && err == nil { // a driver may have a default
			p.Close()
			continue
		}
		mentions(t, fmt.Sprintf("selector %q", sel), err, fmt.Sprintf("%q", sel))
	}
	_, err := f.Driver.Open(ctx, driver.Config{Select: f.Config.Select, Options: map[string]string{"no_such_option": "1"}})
	mentions(t, "an unknown option", err, `"no_such_option"`)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := f.Driver.Open(cancelled, f.Config); !errors.Is(err, context.Canceled) {
		t.Errorf("open with a cancelled context: got %v", err)
	}
}

func testRefusedAtLoad(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	refuse := func(what string, a driver.Artifact, w driver.Weights, words ...string) {
		t.Helper()
		exe, err := s.load(a, w)
		if err == nil {
			exe.Close()
		}
		mentions(t, what, err, words...)
	}
	for _, o := range operators() {
		if s.caps.Supports(o) == nil || o.Form != "" { // forms: Operators
			continue
		}
		a, err := s.compile(single(s.caps, o), nil)
		if err == nil {
			_, err = s.load(a, nil)
		}
		word := string(o.Kind)
		if slices.Contains(s.caps.Kinds, o.Kind) {
			word = string(o.Scheme) + string(o.KV)
		}
		mentions(t, o.Key(), err, word)
	}

	if g, ok := blocks(s.caps, 2)["attention of a batch f32"]; ok && supported(s.caps, &g) {
		tr := s.newTrial(g, testContext, 8)
		g.Nodes = slices.Clone(g.Nodes)
		g.Nodes[1].Op.Batch = false
		if a, err := s.compile(g, tr.packed); err == nil {
			refuse("rows that are of one sequence here and of one each there", a, tr.packed, "one sequence")
		}
	}

	// A graph with a weight, for everything that may be wrong around it.
	o := op.Op{Kind: op.Norm, M: 2, N: 64}
	if len(s.caps.Schemes) > 0 {
		o = op.Op{Kind: op.MatMul, M: 2, K: 64, N: 64, Scheme: s.caps.Schemes[0]}
	}
	tr := s.newTrial(single(s.caps, o), 0, 8)
	a, err := s.compile(tr.graph, tr.packed)
	if err != nil {
		t.Fatal(err)
	}
	refuse("an artifact of another driver", driver.Artifact{Driver: "no-such-driver", Code: a.Code}, tr.packed, `"no-such-driver"`)
	for n := range len(a.Code) {
		if n < 64 || n > len(a.Code)-64 || n%37 == 0 {
			refuse(fmt.Sprintf("the first %d of %d bytes of an artifact", n, len(a.Code)), driver.Artifact{Driver: a.Driver, Code: a.Code[:n]}, tr.packed)
		}
	}
	refuse("bytes after an artifact", driver.Artifact{Driver: a.Driver, Code: append(slices.Clone(a.Code), "{}"...)}, tr.packed)
	noise := make([]byte, 4096)
	rng := rand.New(rand.NewPCG(1, 9))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	refuse("noise", driver.Artifact{Driver: a.Driver, Code: noise}, tr.packed)

	name := tr.graph.Weights[0].Name
	with := func(change func(p *driver.Packed)) driver.Weights {
		w := slices.Clone(tr.packed)
		change(&w[0])
		return w
	}
	refuse("no weights", a, nil, "weight")
	refuse("two weights for one", a, append(slices.Clone(tr.packed), tr.packed[0]), "weight")
	refuse("a short weight", a, with(func(p *driver.Packed) { p.Bytes = p.Bytes[:len(p.Bytes)-1] }), name, fmt.Sprint(len(tr.packed[0].Bytes)))
	refuse("an empty weight", a, with(func(p *driver.Packed) { p.Bytes = nil }), name)
	refuse("a long weight", a, with(func(p *driver.Packed) { p.Bytes = make([]byte, 2*len(p.Bytes)) }), name)
	refuse("a weight of another shape", a, with(func(p *driver.Packed) { p.Spec.N++ }), name)
	refuse("a weight of another scheme", a, with(func(p *driver.Packed) { p.Spec.Scheme = "q3k" }), name, "q3k")
	refuse("a weight of another layout", a, with(func(p *driver.Packed) { p.Spec.Layout = "swirl" }), name, "swirl")
	for _, scheme := range s.caps.Schemes {
		o := op.Op{Kind: op.ExpertMatMul, M: 2, Fan: 2, Experts: 3, K: 64, N: 64, Scheme: scheme}
		if s.caps.Supports(o) != nil {
			continue
		}
		tr := s.newTrial(single(s.caps, o), 0, 8)
		a, err := s.compile(tr.graph, tr.packed)
		if err != nil {
			t.Fatal(err)
		}
		name := tr.graph.Weights[0].Name
		with := func(change func(p *driver.Packed)) driver.Weights {
			w := slices.Clone(tr.packed)
			change(&w[0])
			return w
		}
		one := tr.packed[0].Stride
		refuse("experts without a stride", a, with(func(p *driver.Packed) { p.Stride = 0 }), name, fmt.Sprint(one))
		refuse("experts that overlap", a, with(func(p *driver.Packed) { p.Stride -= 64 }), name, fmt.Sprint(one))
		refuse("experts beyond the end", a, with(func(p *driver.Packed) { p.Stride += 64 }), name, fmt.Sprint(one+64))
		refuse("experts at odd places", a, with(func(p *driver.Packed) { p.Bytes, p.Stride = s.memory(3*one+2), one+1 }), name, fmt.Sprint(one+1))
		refuse("a negative stride", a, with(func(p *driver.Packed) { p.Stride = -one }), name, fmt.Sprint(-one))
		refuse("a stride that overflows", a, with(func(p *driver.Packed) { p.Stride = math.MaxInt64 &^ 63 }), name)
		refuse("an expert too few", a, with(func(p *driver.Packed) { p.Bytes = p.Bytes[:2*one] }), name)
		refuse("weights of other experts", a, with(func(p *driver.Packed) { p.Spec.Experts = 2 }), name, "2", "3")
		refuse("a weight without experts", a, with(func(p *driver.Packed) { p.Spec.Experts, p.Bytes = 0, p.Bytes[:one] }), name, "3")
	}
	if len(s.caps.Schemes) > 0 {
		other := tr.graph
		other.Weights = slices.Clone(other.Weights)
		other.Weights[0].Layout = "swirl"
		b, err := s.compile(other, nil)
		if err == nil {
			_, err = s.load(b, with(func(p *driver.Packed) { p.Spec.Layout = "swirl" }))
		}
		mentions(t, "a graph with weights in an unknown layout", err, "swirl")
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.proc.Load(cancelled, a, tr.packed); !errors.Is(err, context.Canceled) {
		t.Errorf("load with a cancelled context: got %v", err)
	}
	if err := tr.load(); err != nil {
		t.Errorf("a good artifact after bad ones: %v", err)
	}
}

func testRefusedAtRun(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	refuse := func(tr *trial, what string, change func(b *driver.Bindings), words ...string) {
		t.Helper()
		b := tr.bind(place{}, scalars(0, 2))
		change(&b.b)
		_, err := s.run(tr.exe, &b.b)
		mentions(t, what, err, words...)
	}
	o := op.Op{Kind: op.Norm, M: 2, N: 64}
	if s.caps.Supports(o) != nil {
		o = op.Op{Kind: op.MatMul, M: 2, K: 64, N: 64, Scheme: s.caps.Schemes[0]}
	}
	tr := s.newTrial(single(s.caps, o), 0, 8)
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
	if !s.caps.StridedInput {
		refuse(tr, "a strided input", func(b *driver.Bindings) { b.In[0].Rows, b.In[0].Stride = 1, 2*b.In[0].Stride }, `"x"`)
	}
	if !s.caps.DynamicRows {
		refuse(tr, "fewer rows", func(b *driver.Bindings) { b.Scalars.Rows = 1 }, "row")
	}
	tr.check(place{}, scalars(0, 2)) // and still right afterwards

	attention := op.Op{Kind: op.Attention, M: 2, Heads: 4, KVHeads: 2, HeadDim: 8, Context: 8, KV: op.F32}
	if s.caps.Supports(attention) == nil {
		tr := s.newTrial(single(s.caps, attention), 16, 8)
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
		refuse(tr, "sequences farther apart than the cache is long", func(b *driver.Bindings) { b.SequenceBytes *= 2 }, `"k"`)
		refuse(tr, "sequences so far apart that it overflows", func(b *driver.Bindings) { b.SequenceBytes = math.MaxInt64 - 7 }, `"k"`)
		refuse(tr, "sequences that overlap", func(b *driver.Bindings) { b.SequenceBytes -= 4 }, `"k"`)
		tr.check(place{}, scalars(14, 2))
	}
	attention.Batch = true
	if s.caps.Supports(attention) == nil {
		tr := s.newTrial(single(s.caps, attention), 16, 8)
		refuse(tr, "a batch without places", func(b *driver.Bindings) { b.Scalars.Batch = nil }, "places")
		refuse(tr, "a batch of fewer places than rows", func(b *driver.Bindings) { b.Scalars.Batch = b.Scalars.Batch[:1] }, "places")
		refuse(tr, "a position beyond the cache", func(b *driver.Bindings) { b.Scalars.Batch[1].Pos = 16 }, "row 1", "16")
		refuse(tr, "a negative position of a row", func(b *driver.Bindings) { b.Scalars.Batch[1].Pos = -1 }, "row 1", "-1")
		refuse(tr, "a row of no cached sequence", func(b *driver.Bindings) { b.Scalars.Batch[0].Sequence = 2 }, "row 0", "2")
		refuse(tr, "two rows of one sequence", func(b *driver.Bindings) { b.Scalars.Batch[1].Sequence = 1 }, "1")
		tr.check(place{}, scalars(14, 2))
	}

	rope := op.Op{Kind: op.Rope, M: 2, Heads: 2, KVHeads: 1, HeadDim: 8}
	if s.caps.Supports(rope) == nil {
		tr := s.newTrial(single(s.caps, rope), 0, 8)
		refuse(tr, "an in-place value in two places", func(b *driver.Bindings) {
			b.Out[0].Buffer = tr.bind(place{}, scalars(0, 2)).b.Out[0].Buffer
		}, `"qkv"`)
	}

	other := open(t, f, f.Config)
	b := tr.bind(place{}, scalars(0, 2))
	_, err := other.run(tr.exe, &b.b)
	mentions(t, "an executable of another processor", err)
	if err := s.lane.do(tr.exe.Close); err != nil {
		t.Fatal(err)
	}
	_, err = s.run(tr.exe, &b.b)
	mentions(t, "a closed executable", err)
}

// Values that have no answer are errors, not garbage.
func testRefusedValues(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	route := op.Op{Kind: op.Route, M: 3, Experts: 5, Fan: 2, Router: op.RouteSoftmax}
	mixer := op.Op{Kind: op.Route, M: 3, Experts: 5, Fan: 2, Router: op.RouteSparseMixer, Jitter: 0.01}
	expert := func(scheme op.Scheme) op.Op {
		return op.Op{Kind: op.ExpertMatMul, M: 3, Fan: 2, Experts: 4, K: 16, N: 16, Scheme: scheme}
	}
	for _, c := range []struct {
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
		{op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true, Scales: 2}, "x", math.NaN(), 3, 0, []string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true, Scales: 2}, "x", math.Inf(1), 3, 0, []string{"quant_rows", "row 1"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16SQ8C}, "x", math.NaN(), 3, 0, []string{"matmul", "row 1"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16SQ4C}, "x", math.Inf(-1), 3, 0, []string{"matmul", "row 1"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16FW16}, "x", 65520, 3, 0, []string{"matmul", "row 1", "f16"}},
		{op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: op.A16FQ4B32}, "x", math.NaN(), 3, 0, []string{"matmul", "row 1", "f16"}},
		{op.Op{Kind: op.Embed, M: 3, K: 10, N: 16, Table: op.F32}, "ids", 10, 3, 0, []string{"embed", "row 1", "10"}},
		{op.Op{Kind: op.Embed, M: 3, K: 10, N: 16, Table: op.F32}, "ids", -1, 3, 0, []string{"embed", "row 1", "-1"}},
		{op.Op{Kind: op.KVAppend, M: 3, KVHeads: 1, HeadDim: 8, KV: op.F16}, "qkv", 1e6, 3, 0, []string{"kv_append", "row 1"}},
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
		if s.caps.Supports(c.o) != nil {
			continue
		}
		tr := s.newTrial(single(s.caps, c.o), testContext, 12)
		in := tr.vals[c.input]
		in.v[in.value.Cols] = c.value // row 1
		sc := scalars(0, c.rows)
		sc.Row = c.row
		b := tr.bind(place{}, sc)
		_, err := s.run(tr.exe, &b.b)
		mentions(t, fmt.Sprintf("%s with %v", c.o.Key(), c.value), err, c.words...)
		if s.caps.DynamicRows && c.o.Kind != op.SelectRow { // a row that is not in use does not matter
			b.b.Scalars.Rows = 1
			if _, err := s.run(tr.exe, &b.b); err != nil {
				t.Errorf("%s with %v in an unused row: %v", c.o.Key(), c.value, err)
			}
		}
		tr.fill(rand.New(rand.NewPCG(3, 3))) // and still right afterwards
		tr.check(place{}, scalars(0, c.rows))
	}
}

func testMemory(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	for _, n := range []int64{1, 63, 4096, 1 << 20} {
		b, err := s.proc.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Bytes(); int64(len(got)) != n || slices.ContainsFunc(got, func(v byte) bool { return v != 0 }) {
			t.Errorf("alloc of %d bytes: got %d, or not zeroed", n, len(got))
		}
		if err := errors.Join(b.Close(), b.Close()); err != nil {
			t.Errorf("close a buffer twice: %v", err)
		}
	}
	for _, n := range []int64{-1, math.MaxInt64} {
		if _, err := s.proc.Alloc(n); err == nil {
			t.Errorf("alloc of %d bytes was accepted", n)
		}
	}
	m := s.memory(256)
	if _, err := s.proc.Import(m[1:]); err == nil {
		t.Error("import of unaligned memory was accepted")
	}
	b, err := s.proc.Import(m[64:128])
	if err != nil {
		t.Fatal(err)
	}
	b.Bytes()[0] = 42
	if m[64] != 42 || len(b.Bytes()) != 64 {
		t.Error("imported memory is a copy")
	}
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Errorf("close imported memory twice: %v", err)
	}
}

// Processors run at the same time, each on its lane.
func testConcurrent(t *testing.T, f *Factory) {
	configs := append([]driver.Config{f.Config}, f.Others...)
	if len(f.Others) == 0 {
		configs = append(configs, f.Config)
	}
	var trials []*trial
	var first *driver.Capabilities // graphs are compiled for this one
	for i, c := range configs {
		s := open(t, f, c)
		if first == nil {
			first = s.caps
		}
		all := blocks(s.caps, 11)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if g := all[name]; strings.HasPrefix(name, "mlp") && supported(s.caps, &g) && supported(first, &g) {
				trials = append(trials, s.newTrial(g, 0, uint64(i)))
				break
			}
		}
	}
	type outcome struct {
		b   *bound
		err error
	}
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
		evaluate(&tr.graph, tr.vals, tr.weights, nil, scalars(0, 11))
		for _, r := range results[i] {
			if r.err != nil {
				t.Fatal(r.err)
			}
			v := r.b.b.Out[0]
			tr.compare(tr.vals["y"], v, v.Buffer.Bytes(), 11)
		}
	}
}

func testClose(t *testing.T, f *Factory) {
	s := open(t, f, f.Config)
	o := op.Op{Kind: op.Norm, M: 2, N: 64}
	if s.caps.Supports(o) != nil {
		o = op.Op{Kind: op.MatMul, M: 2, K: 64, N: 64, Scheme: s.caps.Schemes[0]}
	}
	tr := s.newTrial(single(s.caps, o), 0, 8)
	b := tr.bind(place{}, scalars(0, 2))
	if err := errors.Join(s.proc.Close(), s.proc.Close()); err != nil {
		t.Fatalf("close twice: %v", err)
	}
	_, err := s.run(tr.exe, &b.b)
	mentions(t, "run on a closed processor", err)
	a, err := s.compile(tr.graph, tr.packed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.load(a, tr.packed)
	mentions(t, "load on a closed processor", err)
	if err := errors.Join(tr.exe.Close(), tr.exe.Close()); err != nil {
		t.Errorf("close an executable twice, after its processor: %v", err)
	}
	// A processor that was never attached closes too.
	p, err := f.Driver.Open(context.Background(), f.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func testLeaks(t *testing.T, f *Factory) {
	cycle := func() {
		s := open(t, f, f.Config)
		graphs := blocks(s.caps, 11)
		maps.DeleteFunc(graphs, func(name string, g op.Graph) bool {
			return !strings.HasPrefix(name, "mlp") || !supported(s.caps, &g)
		})
		for i, name := range slices.Sorted(maps.Keys(graphs)) {
			if i < 2 { // what is opened and closed does not depend on the scheme
				s.newTrial(graphs[name], 0, 1).check(place{}, scalars(0, 11))
			}
		}
		s.close()
	}
	cycle()
	goroutines, threads := runtime.NumGoroutine(), countThreads()
	const cycles = 10
	for range cycles {
		cycle()
	}
	// Threads end a little after their goroutines.
	for range 100 {
		if runtime.NumGoroutine() <= goroutines && countThreads() < threads+cycles/2 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("after opening and closing %d processors: %d goroutines, before %d; %d threads, before %d", cycles, runtime.NumGoroutine(), goroutines, countThreads(), threads)
}

// countThreads is the number of OS threads of this process, 0 where the system does not tell.
func countThreads() int {
	d, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(d)
}
