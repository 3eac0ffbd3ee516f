package op

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// examples holds one valid operator of every kind.
var examples = map[Kind]Op{
	OutlierMatMul: {Kind: OutlierMatMul, M: 3, K: 64, N: 16, Scheme: A32W16},
	Embed:         {Kind: Embed, M: 3, K: 100, N: 8, Table: BF16},
	SelectRow:     {Kind: SelectRow, M: 3, N: 8},
	Norm:          {Kind: Norm, M: 3, N: 8, Eps: 1e-5},
	QuantRows:     {Kind: QuantRows, M: 3, N: 8},
	MatMul:        {Kind: MatMul, M: 3, K: 8, N: 16, Scheme: A8TQ8C},
	Rope:          {Kind: Rope, M: 3, Heads: 4, KVHeads: 2, HeadDim: 8},
	KVAppend:      {Kind: KVAppend, M: 3, Heads: 4, KVHeads: 2, HeadDim: 8, KV: F32},
	Attention:     {Kind: Attention, M: 3, Heads: 4, KVHeads: 2, HeadDim: 8, KV: F16, Context: 5},
	Estimate:      {Kind: Estimate, M: 3, Heads: 4, KVHeads: 2, HeadDim: 8, KV: F16, Context: 5, Block: 2},
	Select:        {Kind: Select, M: 3, Heads: 4, KVHeads: 2, Context: 5, Block: 2},
	SparseAttend: {Kind: SparseAttend, M: 3, Heads: 4, KVHeads: 2, HeadDim: 8, KV: F16, Context: 5, Block: 2,
		Density: 0.2},
	GLU: {Kind: GLU, M: 3, N: 32, Interleave: 16, Act: SiLU},

	LayerNorm:    {Kind: LayerNorm, M: 3, N: 8, Eps: 1e-5},
	ExpertMatMul: {Kind: ExpertMatMul, M: 3, K: 8, N: 16, Experts: 4, Fan: 2, Scheme: A8TQ8C},
	GroupMatMul:  {Kind: GroupMatMul, M: 3, K: 8, N: 16, Experts: 3, Scheme: A8TQ8C},
	Dispatch:     {Kind: Dispatch, M: 3, N: 8, Experts: 4, Fan: 2, Groups: "2x3", Sent: 1},
	Collect:      {Kind: Collect, M: 3, N: 8, Fan: 2, Groups: "2x3", Sent: 1},
	Route:        {Kind: Route, M: 3, Experts: 4, Fan: 2, Router: RouteSoftmax},
	Combine:      {Kind: Combine, M: 3, N: 8, Fan: 2},
	QKNorm:       {Kind: QKNorm, M: 3, Heads: 4, KVHeads: 2, HeadDim: 8, Eps: 1e-5},
	Activate:     {Kind: Activate, M: 3, N: 8, Act: GELU},
	Gate:         {Kind: Gate, M: 3, N: 8},
	Softcap:      {Kind: Softcap, M: 3, N: 8, Cap: 30},
	Clip:         {Kind: Clip, M: 3, N: 8, Cap: 8},
	Add:          {Kind: Add, M: 3, N: 8},
	Copy:         {Kind: Copy, M: 3, N: 8},
}

func TestEveryKindIsComplete(t *testing.T) {
	keys := map[string]Kind{}
	for _, kind := range Kinds {
		operator, ok := examples[kind]
		if !ok {
			t.Errorf("kind %q has no example", kind)
			continue
		}
		if err := operator.Validate(); err != nil {
			t.Errorf("%q: %v", kind, err)
		}
		if operator.Bytes() <= 0 {
			t.Errorf("%q moves %d bytes", kind, operator.Bytes())
		}
		if old, dup := keys[operator.Key()]; dup {
			t.Errorf("%q and %q share the key %q", kind, old, operator.Key())
		}
		keys[operator.Key()] = kind
		graph := Single(operator, "n32")
		if err := graph.Validate(); err != nil {
			t.Errorf("graph of %q: %v", kind, err)
		}
		state := kind == KVAppend || kind == Attention || kind == Estimate || kind == SparseAttend
		if graph.State() != state || graph.Rows() != 3 {
			t.Errorf("graph of %q: state %v, rows %d", kind, graph.State(), graph.Rows())
		}
	}
	static := Op{Kind: QuantRows, M: 3, N: 8, Static: true}
	g := Single(static, "n32")
	if err := g.Validate(); err != nil || len(g.Weights) != 1 ||
		g.Weights[0] != (WeightSpec{Name: "scale", K: 1, N: 1, Scheme: "f32", Layout: RowsLayout}) {
		t.Errorf("graph of %q: %v, weights %v", static.Key(), err, g.Weights)
	}
	if old := keys[static.Key()]; old != "" {
		t.Errorf("%q has the key of another", static.Key())
	}
	if len(examples) != len(Kinds) {
		t.Errorf("%d examples for %d kinds", len(examples), len(Kinds))
	}
}

// Everything that can influence cost is part of the key; what cannot is not.
func TestKey(t *testing.T) {
	for kind, operator := range examples {
		bigger := operator
		bigger.M++
		if bigger.Key() == operator.Key() {
			t.Errorf("%q: the key does not depend on m", kind)
		}
		e := operator
		e.Eps = 0.5
		if e.Key() != operator.Key() {
			t.Errorf("%q: the key depends on eps", kind)
		}
	}
	if got, want := examples[MatMul].Key(), "matmul[3,8]x[8,16] a8t/q8c"; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
}

// A scheme with static scales differs from its twin in where scales come from, and in nothing that a product sees.
func TestTwins(t *testing.T) {
	for _, scheme := range Schemes {
		twin := scheme.Twin()
		if twin == "" {
			if scheme.Static() && scheme.QuantisedRows() {
				t.Errorf("%q has no twin", scheme)
			}
			continue
		}
		operator, b := examples[MatMul], examples[MatMul]
		operator.Scheme, b.Scheme = scheme, twin
		graph, y := Single(operator, "n32"), Single(b, "n32")
		if twin.Twin() != scheme && scheme.Scales() <= 1 && !scheme.Shadow() || twin.Static() == scheme.Static() ||
			operator.Flops() != b.Flops() || operator.Bytes() != b.Bytes() ||
			!slices.Equal(graph.Inputs, y.Inputs) || !slices.Equal(graph.Weights, y.Weights) ||
			!slices.Equal(graph.Outputs, y.Outputs) {
			t.Errorf("%q and %q are no twins", scheme, twin)
		}
	}
}

// Schemes that take the same time are those of one twin, in the order of the table behind the scheme itself.
func TestAlike(t *testing.T) {
	for _, test := range []struct{ of, want []Scheme }{
		{[]Scheme{A8OQ8C}, []Scheme{A8OQ8C, A8TQ8C, A8SQ8C, A8S2Q8C, A8S4Q8C}},
		{[]Scheme{A8TQ8C}, []Scheme{A8TQ8C, A8SQ8C, A8S2Q8C, A8S4Q8C, A8OQ8C}},
		{[]Scheme{A32W32, A16SQ8C, ""}, nil},
	} {
		for _, scheme := range test.of {
			want := test.want
			if want == nil {
				want = []Scheme{scheme}
			}
			if got := scheme.Alike(); !slices.Equal(got, want) {
				t.Errorf("%q: %q, want %q", scheme, got, want)
			}
		}
	}
}

// Products on a grid take their steps as a weight, behind a bias; those of half precision take nothing more.
func TestGridAndHalf(t *testing.T) {
	for _, scheme := range Schemes {
		operator := Op{Kind: MatMul, M: 3, K: 8, N: 16, Scheme: scheme, Bias: true}
		graph := Single(operator, "n32")
		if err := graph.Validate(); err != nil {
			t.Errorf("%q: %v", scheme, err)
		}
		want := []string{"weight", "bias"}
		if scheme.Grid() {
			want = append(want, "steps")
			if graph.Weights[2] != (WeightSpec{Name: "steps", K: 2, N: 16, Scheme: "f32", Layout: RowsLayout}) {
				t.Errorf("%q: steps are %v", scheme, graph.Weights[2])
			}
		}
		if got := operator.Sig().W; !slices.Equal(got, want) {
			t.Errorf("%q: weights %q, want %q", scheme, got, want)
		}
		if got := len(graph.Inputs); (got == 2) != scheme.QuantisedRows() {
			t.Errorf("%q: %d inputs", scheme, got)
		}
		if scheme.Grid() && (scheme.Half() || !scheme.Static() || scheme.QuantisedRows()) ||
			scheme.Half() && (scheme.Static() || scheme.QuantisedRows()) {
			t.Errorf("%q: grid %v, half %v, static %v, quantised rows %v", scheme, scheme.Grid(), scheme.Half(),
				scheme.Static(), scheme.QuantisedRows())
		}
		operator = Op{Kind: ExpertMatMul, M: 3, K: 8, N: 16, Experts: 4, Fan: 2, Scheme: scheme}
		single := scheme.Grid() || scheme.Half() || scheme.Shadow() || scheme.Requantises()
		if err := operator.Validate(); (err != nil) != single || err != nil && !strings.Contains(err.Error(), "experts take one of a32/w32, a32/w16, a8t/q8c") {
			t.Errorf("experts with %q: %v", scheme, err)
		}
		if b := WeightBytes(scheme.Weight(), 64, 32); b <= 0 {
			t.Errorf("%q: %d bytes", scheme, b)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, test := range []struct {
		o    Op
		want string
	}{
		{Op{Kind: MatMul, M: 0, K: 1, N: 1, Scheme: A32W32}, "m = 0"},
		{Op{Kind: MatMul, M: 1, K: 1 << 25, N: 1, Scheme: A32W32}, "k = 33554432"},
		{Op{Kind: MatMul, M: 1, K: 1, N: 1, Scheme: "a4/w4"}, `scheme "a4/w4"`},
		{Op{Kind: GLU, M: 1, N: 20, Interleave: 16, Act: SiLU}, "multiple of interleave 16"},
		{Op{Kind: GLU, M: 1, N: 16, Interleave: 16}, "act = , want one of silu, gelu"},
		{Op{Kind: MatMul, M: 1, K: 1, N: 1, Scheme: A32W32, Act: SiLU}, "act is set, and means nothing"},
		{Op{Kind: Add, M: 1, N: 1, Fan: 2}, "fan is set"},
		{Op{Kind: Norm, M: 1, N: 1, Static: true}, "static is set"},
		{Op{Kind: Route, M: 1, Experts: 4, Fan: 5, Router: RouteSoftmax}, "want fan 5..4096"},
		{Op{Kind: Route, M: 1, Experts: 4, Fan: 3, Router: RouteSparseMixer}, "fan = 3, want 1 or 2"},
		{Op{Kind: Route, M: 1, Experts: 4, Fan: 1, Router: "best"}, "router = best"},
		{Op{Kind: ExpertMatMul, M: 1, K: 1, N: 1, Experts: 1 << 20, Fan: 1, Scheme: A32W32}, "experts = 1048576"},
		{Op{Kind: ExpertMatMul, M: 1 << 23, K: 1, N: 1, Experts: 4, Fan: 4, Scheme: A32W32}, "at most 16777216 rows"},
		{Op{Kind: Softcap, M: 1, N: 1}, "cap = 0"},
		{Op{Kind: Norm, M: 1, N: 1, Eps: math.NaN()}, "eps = NaN"},
		{Op{Kind: Rope, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, RotaryDim: 10}, "rotary_dim = 10"},
		{Op{Kind: Rope, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, NTK: 2}, "ntk = 2, want 0 without long_from"},
		{Op{Kind: Rope, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, LongAmplitude: 2}, "long_amplitude is set"},
		{Op{Kind: Attention, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, KV: F32, Context: 1, Window: -1}, "window = -1"},
		{Op{Kind: Rope, M: 1, Heads: 3, KVHeads: 2, HeadDim: 8}, "multiple of kv_heads 2"},
		{Op{Kind: Rope, M: 1, Heads: 2, KVHeads: 2, HeadDim: 7}, "rotary_dim = 7, want an even number"},
		{Op{Kind: Attention, M: 1, Heads: 2, KVHeads: 2, HeadDim: 8, KV: U8, Context: 1}, `kv = u8`},
		{Op{Kind: Embed, M: 1, K: 1, N: 1, Table: "q8"}, `table type "q8"`},
		{Op{Kind: "conv", M: 1}, `unknown operator "conv"`},
	} {
		if err := test.o.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want %q", test.o, err, test.want)
		}
	}
}

// A causal attention of all rows at once does as much as the same rows one by one, and the work of a
// matmul is that of its shards, along any axis.
func TestWorkAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.IntRange(1, 40).Draw(t, "m")
		before := rapid.IntRange(0, 100).Draw(t, "cached")
		window := rapid.IntRange(0, 60).Draw(t, "window")
		at := examples[Attention]
		at.M, at.Context, at.Window = m, before+m, window
		var sum int64
		for i := 1; i <= m; i++ {
			one := at
			one.M, one.Context = 1, before+i
			sum += one.Flops()
		}
		if at.Flops() != sum {
			t.Fatalf("attention of %d rows after %d: %d flops, one by one %d", m, before, at.Flops(), sum)
		}
		mm := Op{Kind: MatMul, M: m, K: 64, N: 64, Scheme: rapid.SampledFrom(Schemes).Draw(t, "scheme")}
		cut := 32
		for _, half := range []func(*Op, int){func(o *Op, n int) { o.N = n }, func(o *Op, n int) { o.K = n }} {
			operator, b := mm, mm
			half(&operator, cut)
			half(&b, 64-cut)
			if operator.Flops()+b.Flops() != mm.Flops() {
				t.Fatalf("%s: halves do %d flops, the whole %d", mm.Key(), operator.Flops()+b.Flops(), mm.Flops())
			}
		}
	})
}

func TestGraphValidateRefuses(t *testing.T) {
	base := func() Graph { return Single(examples[MatMul], "n32") }
	for name, test := range map[string]struct {
		change func(*Graph)
		want   string
	}{
		"no nodes":        {func(g *Graph) { g.Nodes = nil }, "no nodes"},
		"unknown value":   {func(g *Graph) { g.Nodes[0].In[0] = "z" }, `unknown value "z"`},
		"wrong shape":     {func(g *Graph) { g.Inputs[0].Cols = 9 }, "operand x"},
		"wrong type":      {func(g *Graph) { g.Inputs[0].Type = F32 }, "operand x"},
		"missing operand": {func(g *Graph) { g.Nodes[0].In = g.Nodes[0].In[:1] }, "got 1 inputs"},
		"unused input": {
			func(g *Graph) { g.Inputs = append(g.Inputs, Value{Name: "w", Type: F32, Rows: 1, Cols: 1}) },
			"never read"},
		"unused weight":  {func(g *Graph) { g.Weights = append(g.Weights, WeightSpec{Name: "v"}) }, "never used"},
		"weight twice":   {func(g *Graph) { g.Weights = append(g.Weights, g.Weights[0]) }, "declared twice"},
		"input twice":    {func(g *Graph) { g.Inputs = append(g.Inputs, g.Inputs[0]) }, "declared twice"},
		"output twice":   {func(g *Graph) { g.Outputs = append(g.Outputs, g.Outputs[0]) }, "declared twice"},
		"input as temp":  {func(g *Graph) { g.Temps = g.Inputs[:1] }, "declared twice"},
		"output as temp": {func(g *Graph) { g.Temps = g.Outputs[:1] }, "declared twice"},
		"two shapes": {func(graph *Graph) {
			out := graph.Inputs[0]
			out.Rows++
			graph.Outputs = append(graph.Outputs, out)
		}, "declared twice"},
		"huge value": {func(g *Graph) { g.Outputs[0].Rows = 1 << 30 }, "bad type or shape"},
		"read first": {func(graph *Graph) {
			graph.Temps = append(graph.Temps, Value{Name: "t", Type: U8, Rows: 3, Cols: 8})
			graph.Nodes[0].In[0] = "t"
		}, "read before it is written"},
	} {
		graph := base()
		test.change(&graph)
		if err := graph.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// A value that is changed in place lies in one slot, which is an input and an output.
func TestSlots(t *testing.T) {
	x, y := Value{Name: "x", Type: F32, Rows: 2, Cols: 4}, Value{Name: "y", Type: F32, Rows: 2, Cols: 4}
	temp := Value{Name: "t", Type: U8, Rows: 1, Cols: 1}
	graph := Graph{Inputs: []Value{x, y}, Outputs: []Value{{Name: "z", Type: F32, Rows: 1, Cols: 1}, x},
		Temps: []Value{temp}}
	want := []Slot{{x, 0, 1}, {y, 1, -1}, {graph.Outputs[0], -1, 0}, {temp, -1, -1}}
	got := graph.Slots()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range got {
		if bound := i < 3; got[i].Bound() != bound {
			t.Errorf("%s: bound is %t, want %t", got[i].Name, got[i].Bound(), bound)
		}
	}
}

// What a scheme is said to store is what packing stores, without the padding of blocks and tiles.
func TestWeightBytes(t *testing.T) {
	for _, test := range []struct {
		weight string
		k, n   int
		want   int64
	}{
		{"w32", 3, 5, 60}, {"w16", 3, 5, 30}, {"q8c", 3, 5, 55}, {"q6c", 16, 5, 80}, {"q6c", 3, 5, 35},
		{"q4b32", 32, 5, 90}, {"q4b32", 33, 5, 180}, {"q4b128", 128, 5, 330}, {"q4b128", 129, 5, 660},
		{"q3", 1, 1, 0},
	} {
		if got := WeightBytes(test.weight, test.k, test.n); got != test.want {
			t.Errorf("%s [%d,%d]: %d bytes, want %d", test.weight, test.k, test.n, got, test.want)
		}
	}
	for scheme, want := range map[Scheme]int{A32W32: 1, A32W16: 1, A8TQ8C: 1, A8TQ6C: 1, A8TQ4B32: 32, A8TQ4B128: 128} {
		if got := scheme.BlockK(); got != want {
			t.Errorf("%s: parts along K are multiples of %d, want %d", scheme, got, want)
		}
	}
}

// A row takes the smallest of several scales that holds it, in whatever order they are; of equal ones and of one there
// is no choice.
func TestStaticScale(t *testing.T) {
	for _, test := range []struct {
		scales    []float32
		top, want float32
	}{
		{[]float32{1}, 0, 1}, {[]float32{1}, 1e30, 1}, {[]float32{1, 2}, 127, 1}, {[]float32{1, 2}, 127.1, 2},
		{[]float32{2, 1}, 127.1, 2}, {[]float32{2, 1}, 0, 1},
		{[]float32{1, 2, 3, 4}, 300, 3}, {[]float32{1, 2, 3, 4}, 1e38, 4}, {[]float32{3, 3}, 1e38, 3},
		{[]float32{3, 3}, 1, 3}, {[]float32{1e-45, 3e38}, 1, 3e38},
	} {
		if got := StaticScale(test.scales, test.top); got != test.want {
			t.Errorf("%v for a row of at most %v: %v, want %v", test.scales, test.top, got, test.want)
		}
	}
	for _, scheme := range Schemes {
		operator := scheme.QuantRows(3, 8, 2)
		if !scheme.QuantisedRows() {
			continue
		}
		if err := operator.Validate(); err != nil || operator.Static != scheme.Static() || operator.Rows() != 6 ||
			max(1, operator.Scales) != max(1, scheme.Scales()) {
			t.Errorf("%q quantises by %+v: %v", scheme, operator, err)
		}
		if w := operator.Sig().W; len(w) > 0 && operator.WeightSpec(w[0], "").N != scheme.Scales() {
			t.Errorf("%q: scales are %v", scheme, operator.WeightSpec(w[0], ""))
		}
	}
	if got := A8S2Q8C.QuantRows(3, 8, 1).Key(); got != "quant_rows[3,8] static2" {
		t.Errorf("key %q", got)
	}
	for _, operator := range []Op{
		{Kind: QuantRows, M: 1, N: 1, Scales: 2}, {Kind: QuantRows, M: 1, N: 1, Static: true, Scales: 1},
		{Kind: QuantRows, M: 1, N: 1, Static: true, Scales: 5},
		{Kind: QuantRows, M: 1, N: 1, Static: true, Scales: -2},
	} {
		if err := operator.Validate(); err == nil || !strings.Contains(err.Error(), "scales") {
			t.Errorf("%+v: %v", operator, err)
		}
	}
}

// A share that a kind needs is more than 0, a dimension at least 1.
func TestNeededFields(t *testing.T) {
	sparse := Op{Kind: SparseAttend, M: 16, Heads: 4, KVHeads: 2, HeadDim: 64, Context: 64, KV: F16, Block: 16}
	if err := sparse.Validate(); err == nil || !strings.Contains(err.Error(), "density = 0, want more than 0") {
		t.Errorf("without a density: %v", err)
	}
	sparse.Density, sparse.Heads = 0.5, 0
	if err := sparse.Validate(); err == nil || !strings.Contains(err.Error(), "heads = 0, want at least 1") {
		t.Errorf("without heads: %v", err)
	}
}
