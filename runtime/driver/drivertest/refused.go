package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

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
	refused := &refusals{open(t, factory, factory.Config)}
	refused.operators()
	refused.mixedBatches()
	operator, weighted := refused.product()
	if !weighted {
		operator = refused.plain()
	}
	good := refused.newTrial(single(refused.caps, operator), 0, 8)
	artifact, err := refused.compile(good.graph, good.packed)
	if err != nil {
		t.Fatal(err)
	}
	refused.artifacts(artifact, good.packed)
	refused.otherGraphs(artifact, good)
	if len(good.packed) == 0 {
		refused.refuse("a weight for none", artifact, make(driver.Weights, 1), "weight")
	} else {
		refused.weights(artifact, good.packed, good.graph.Weights[0].Name)
	}
	for _, scheme := range refused.caps.Schemes {
		refused.experts(op.Op{Kind: op.ExpertMatMul, M: 2, Fan: 2, Experts: 3, K: 64, N: 64, Scheme: scheme})
	}
	if len(refused.caps.Schemes) > 0 {
		refused.unknownLayout(good)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := refused.proc.Load(cancelled, artifact, good.packed); !errors.Is(err, context.Canceled) {
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
	another := op.Add
	if good.graph.Nodes[0].Op.Kind == another {
		another = op.Copy
	}
	for _, test := range []struct {
		what   string
		change func(g *op.Graph)
		word   string
	}{
		{"another operator", func(g *op.Graph) { g.Nodes[0].Op.Kind = another }, string(another)},
		{"another shape", func(g *op.Graph) { g.Nodes[0].Op.N *= 2 }, `"n"`},
		{"another scheme", func(g *op.Graph) { g.Nodes[0].Op.Scheme = "a1w1" }, "a1w1"},
		{"another weight", func(g *op.Graph) { // of another name, or one where there is none
			if len(g.Weights) == 0 {
				g.Weights = make([]op.WeightSpec, 1)
			}
			g.Weights[0].Name += "2"
		}, "weight"},
		{"one node more", func(g *op.Graph) { g.Nodes = append(g.Nodes, g.Nodes[0]) }, "want 2"},
	} {
		other := good.graph
		other.Nodes, other.Weights = slices.Clone(other.Nodes), slices.Clone(other.Weights)
		test.change(&other)
		artifact.Graph = &other
		for range 2 {
			exe, err := r.session.load(artifact, good.packed)
			if err == nil {
				exe.Close()
			}
			mentions(r.t, "an artifact for a graph with "+test.what, err, "another graph than the plan", test.word)
			if class := diag.ClassOf(err); class != diag.ClassVerify {
				r.t.Errorf("an artifact for a graph with %s: class %q, want %q", test.what, class, diag.ClassVerify)
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
	for _, test := range []struct {
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
		r.refuse(test.what, artifact, changed(packed, test.change), append(test.words, name)...)
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
	for _, test := range []struct {
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
		r.refuse(test.what, artifact, changed(tr.packed, test.change), test.words...)
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
	tr := session.newTrial(single(session.caps, session.plain()), 0, 8)
	tr.refuseOperands()
	attention := op.Op{Kind: op.Attention, M: 2, Heads: 4, KVHeads: 2, HeadDim: 8, Context: 8, KV: op.F32}
	if session.caps.Supports(attention) == nil {
		session.newTrial(single(session.caps, attention), 16, 8).refuseCaches()
	}
	attention.Batch = true
	if session.caps.Supports(attention) == nil {
		session.newTrial(single(session.caps, attention), 16, 8).refusePlaces()
	}
	rope := op.Op{Kind: op.Rope, M: 2, Heads: 2, KVHeads: 1, HeadDim: 8}
	if session.caps.Supports(rope) == nil {
		tr := session.newTrial(single(session.caps, rope), 0, 8)
		tr.refuse("an in-place value in two places", func(b *driver.Bindings) {
			b.Out[0].Buffer = tr.bind(place{}, scalars(0, 2)).b.Out[0].Buffer
		}, `"qkv"`)
	}

	// Executables belong to the processor that loaded them, even among processors of one driver.
	other := open(t, factory, factory.Config)
	bound := tr.bind(place{}, scalars(0, 2))
	_, err := other.run(tr.exe, &bound.b)
	mentions(t, "an executable of another processor", err)
	session.do(tr.exe.Close)
	_, err = session.run(tr.exe, &bound.b)
	mentions(t, "a closed executable", err)
}

// refuse binds good operands of two rows, changes one of them, and wants an error with the words.
func (tr *trial) refuse(what string, change func(b *driver.Bindings), words ...string) {
	tr.s.t.Helper()
	bound := tr.bind(place{}, scalars(0, 2))
	change(&bound.b)
	_, err := tr.s.run(tr.exe, &bound.b)
	mentions(tr.s.t, what, err, words...)
}

// refuseOperands tries operands and rows that are not the graph's.
func (tr *trial) refuseOperands() {
	tr.s.t.Helper()
	x, y := strconv.Quote(tr.graph.Inputs[0].Name), strconv.Quote(tr.graph.Outputs[0].Name)
	tr.refuse("a missing input", func(b *driver.Bindings) { b.In = b.In[:len(b.In)-1] })
	tr.refuse("an input too many", func(b *driver.Bindings) { b.In = append(slices.Clip(b.In), b.In[0]) })
	tr.refuse("an output too many", func(b *driver.Bindings) { b.Out = append(slices.Clip(b.Out), b.Out[0]) })
	tr.refuse("a missing output", func(b *driver.Bindings) { b.Out = nil })
	tr.refuse("an input without a buffer", func(b *driver.Bindings) { b.In[0].Buffer = nil }, x)
	tr.refuse("an input of another type", func(b *driver.Bindings) { b.In[0].Type = op.BF16 }, x)
	tr.refuse("an output of other columns", func(b *driver.Bindings) { b.Out[0].Cols-- }, y)
	tr.refuse("an output of fewer rows", func(b *driver.Bindings) { b.Out[0].Rows = 1 }, y)
	tr.refuse("an output beyond its buffer", func(b *driver.Bindings) { b.Out[0].Offset = 64 }, y)
	tr.refuse("an input beyond its buffer", func(b *driver.Bindings) { b.In[0].Stride *= 2 }, x)
	tr.refuse("a negative offset", func(b *driver.Bindings) { b.In[0].Offset = -64 }, x)
	tr.refuse("an offset that overflows", func(b *driver.Bindings) { b.In[0].Offset = math.MaxInt64 - 3 }, x)
	tr.refuse("a stride that overflows", func(b *driver.Bindings) { b.In[0].Stride = math.MaxInt / 2 }, x)
	tr.refuse("a stride below the columns", func(b *driver.Bindings) { b.In[0].Stride = 1 }, x)
	tr.refuse("negative rows", func(b *driver.Bindings) { b.Scalars.Rows = -1 }, "-1")
	if !tr.s.caps.StridedInput {
		tr.refuse("a strided input", func(b *driver.Bindings) { b.In[0].Rows, b.In[0].Stride = 1, 2*b.In[0].Stride },
			x)
	}
	if !tr.s.caps.DynamicRows {
		tr.refuse("fewer rows", func(b *driver.Bindings) { b.Scalars.Rows = 1 }, "row")
	}
	tr.check(place{}, scalars(0, 2)) // and still right afterwards
}

// refuseCaches tries caches, sequences and positions of an attention that do not fit each other.
func (tr *trial) refuseCaches() {
	tr.s.t.Helper()
	tr.refuse("positions beyond the cache", func(b *driver.Bindings) { b.Scalars.Pos = 15 }, "16")
	tr.refuse("a negative position", func(b *driver.Bindings) { b.Scalars.Pos = -1 }, "-1")
	tr.refuse("a position that overflows", func(b *driver.Bindings) { b.Scalars.Pos = math.MaxInt })
	tr.refuse("no cache", func(b *driver.Bindings) { b.K, b.V, b.MaxContext = driver.View{}, driver.View{}, 0 })
	tr.refuse("a cache of another type", func(b *driver.Bindings) { b.K.Type = op.F16 }, `"k"`)
	tr.refuse("a cache of fewer rows", func(b *driver.Bindings) { b.V.Rows-- }, `"v"`)
	tr.refuse("a larger context than the cache has", func(b *driver.Bindings) { b.MaxContext *= 2 }, `"k"`)
	tr.refuse("a sequence beyond those cached", func(b *driver.Bindings) { b.Scalars.Sequence = b.Sequences }, "3")
	tr.refuse("a negative sequence", func(b *driver.Bindings) { b.Scalars.Sequence = -1 }, "-1")
	tr.refuse("more sequences than the cache holds", func(b *driver.Bindings) { b.Sequences++ }, `"k"`)
	tr.refuse("sequences farther apart than the cache is long",
		func(b *driver.Bindings) { b.SequenceBytes *= 2 }, `"k"`)
	tr.refuse("sequences so far apart that it overflows",
		func(b *driver.Bindings) { b.SequenceBytes = math.MaxInt64 - 7 }, `"k"`)
	tr.refuse("sequences that overlap", func(b *driver.Bindings) { b.SequenceBytes -= 4 }, `"k"`)
	tr.check(place{}, scalars(14, 2))
}

// refusePlaces tries places of the rows of a batch that are too few, outside the cache, or twice the same.
func (tr *trial) refusePlaces() {
	tr.s.t.Helper()
	tr.refuse("a batch without places", func(b *driver.Bindings) { b.Scalars.Batch = nil }, "places")
	tr.refuse("a batch of fewer places than rows",
		func(b *driver.Bindings) { b.Scalars.Batch = b.Scalars.Batch[:1] }, "places")
	tr.refuse("a position beyond the cache", func(b *driver.Bindings) { b.Scalars.Batch[1].Pos = 16 }, "row 1", "16")
	tr.refuse("a negative position of a row", func(b *driver.Bindings) { b.Scalars.Batch[1].Pos = -1 }, "row 1", "-1")
	tr.refuse("a row of no cached sequence", func(b *driver.Bindings) { b.Scalars.Batch[0].Sequence = 2 }, "row 0", "2")
	tr.refuse("two rows of one sequence", func(b *driver.Bindings) { b.Scalars.Batch[1].Sequence = 1 }, "1")
	tr.check(place{}, scalars(14, 2))
}

// unanswerable is an operator with an input that has no answer.
type unanswerable struct {
	operator op.Op
	input    string
	value    float64  // of the first element of row 1
	row      int      // that is selected
	words    []string // of the error
}

// unanswerables are values without an answer: NaN to quantise, numbers beyond a type, ids out of range.
func unanswerables() (list []unanswerable) {
	add := func(operator op.Op, input string, values []float64, words ...string) {
		for _, value := range values {
			list = append(list, unanswerable{operator: operator, input: input, value: value, words: words})
		}
	}
	nan, high, low := math.NaN(), math.Inf(1), math.Inf(-1)

	quant := op.Op{Kind: op.QuantRows, M: 3, N: 40}
	add(quant, "x", []float64{nan, high, low}, "quant_rows", "row 1")
	quant.Static = true
	add(quant, "x", []float64{nan, high}, "quant_rows", "row 1")
	quant.Scales = 2
	add(quant, "x", []float64{nan, high}, "quant_rows", "row 1")

	outliers := op.Op{Kind: op.OutlierMatMul, M: 3, K: 40, N: 33, Scheme: op.A32W16}
	add(outliers, "x", []float64{nan, low}, "outlier_matmul", "row 1")
	product := func(scheme op.Scheme) op.Op { return op.Op{Kind: op.MatMul, M: 3, K: 40, N: 33, Scheme: scheme} }
	add(product(op.A16SQ8C), "x", []float64{nan}, "matmul", "row 1")
	add(product(op.A16SQ4C), "x", []float64{low}, "matmul", "row 1")
	add(product(op.A16FW16), "x", []float64{65520}, "matmul", "row 1", "f16")
	add(product(op.A16FQ4B32), "x", []float64{nan}, "matmul", "row 1", "f16")

	table := op.Op{Kind: op.Embed, M: 3, K: 10, N: 16, Table: op.F32}
	add(table, "ids", []float64{10}, "embed", "row 1", "10")
	add(table, "ids", []float64{-1}, "embed", "row 1", "-1")

	store := op.Op{Kind: op.KVAppend, M: 3, KVHeads: 1, HeadDim: 8, KV: op.F16}
	add(store, "qkv", []float64{1e6}, "kv_append", "row 1")
	store.KV = op.BF16
	add(store, "qkv", []float64{3.4e38}, "kv_append", "row 1", "bf16")

	route := op.Op{Kind: op.Route, M: 3, Experts: 5, Fan: 2, Router: op.RouteSoftmax}
	add(route, "logits", []float64{nan, high, low}, "route", "row 1")
	route.Router, route.Jitter = op.RouteSparseMixer, 0.01
	add(route, "logits", []float64{nan}, "route", "row 1")

	expert := func(scheme op.Scheme) op.Op {
		return op.Op{Kind: op.ExpertMatMul, M: 3, Fan: 2, Experts: 4, K: 16, N: 16, Scheme: scheme}
	}
	add(expert(op.A32W32), "ids", []float64{4}, "expert_matmul", "row 1", "4")
	add(expert(op.A32W32), "ids", []float64{-1}, "expert_matmul", "row 1", "-1")
	add(expert(op.A8TQ8C), "ids", []float64{math.MaxInt32}, "expert_matmul", "row 1")
	add(expert(op.A8TQ4B32), "ids", []float64{math.MinInt32}, "expert_matmul", "row 1")

	for _, row := range []int{3, -1} {
		list = append(list, unanswerable{operator: op.Op{Kind: op.SelectRow, M: 3, N: 8}, input: "x", row: row,
			words: []string{"select_row", fmt.Sprint("row ", row)}})
	}
	return list
}

// Values without an answer are errors that name operator and row. In rows that are not in use they do not matter.
func testRefusedValues(t *testing.T, f *Factory) {
	session := open(t, f, f.Config)
	for _, test := range unanswerables() {
		if session.caps.Supports(test.operator) != nil {
			continue
		}
		tr := session.newTrial(single(session.caps, test.operator), testContext, 12)
		in := tr.vals[test.input]
		in.v[in.value.Cols] = test.value
		at := scalars(0, 3)
		at.Row = test.row
		bound := tr.bind(place{}, at)
		_, err := session.run(tr.exe, &bound.b)
		mentions(t, fmt.Sprintf("%s with %v", test.operator.Key(), test.value), err, test.words...)
		if session.caps.DynamicRows && test.operator.Kind != op.SelectRow { // a row that is not in use does not matter
			bound.b.Scalars.Rows = 1
			if _, err := session.run(tr.exe, &bound.b); err != nil {
				t.Errorf("%s with %v in an unused row: %v", test.operator.Key(), test.value, err)
			}
		}
		tr.fill(rand.New(rand.NewPCG(3, 3))) // and still right afterwards
		tr.check(place{}, scalars(0, 3))
	}
}
