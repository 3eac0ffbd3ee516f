package ort

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

func modelOf(t *testing.T, g *op.Graph) *onnx.Model {
	t.Helper()
	a, err := compile.New().Compile(t.Context(), *g, nil, driver.Target{Proc: "npu"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Parse(a.Code)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// chained is norm, rows, product, function and sum, as plans contain them.
func chained(m int, scheme op.Scheme, bias bool) *op.Graph {
	const hidden, ffn = 64, 96
	v := func(name string, t op.Type, cols int) op.Value {
		return op.Value{Name: name, Type: t, Rows: m, Cols: cols}
	}
	g := &op.Graph{Inputs: []op.Value{v("x", op.F32, hidden)}, Outputs: []op.Value{v("x", op.F32, hidden)}, Temps: []op.Value{
		v("n", op.F32, hidden), v("h", op.F32, 2*ffn), v("a", op.F32, ffn), v("d", op.F32, hidden),
	}}
	node := func(o op.Op, in, out []string) {
		n := op.Node{Op: o, In: in, Out: out}
		for _, role := range o.Sig().W {
			spec := o.WeightSpec(role, op.OnnxLayout)
			spec.Name = out[0] + "." + role
			g.Weights = append(g.Weights, spec)
			n.W = append(n.W, spec.Name)
		}
		g.Nodes = append(g.Nodes, n)
	}
	product := func(k, n int, x, y string) {
		in := []string{x}
		if scheme.QuantisedRows() {
			in = []string{x + "8", x + "s"}
			g.Temps = append(g.Temps, v(in[0], op.U8, k), v(in[1], op.F32, 1))
			node(scheme.QuantRows(m, k, 1), []string{x}, in)
		}
		node(op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme, Bias: bias}, in, []string{y})
	}
	node(op.Op{Kind: op.Norm, M: m, N: hidden, Eps: 1e-5}, []string{"x"}, []string{"n"})
	product(hidden, 2*ffn, "n", "h")
	node(op.Op{Kind: op.GLU, M: m, N: ffn, Interleave: 16, Act: op.SiLU}, []string{"h"}, []string{"a"})
	product(ffn, hidden, "a", "d")
	node(op.Op{Kind: op.Add, M: m, N: hidden}, []string{"x", "d"}, []string{"x"})
	return g
}

// What the compiler writes is what is expected, for every operator and variant.
func TestVerifyAccepts(t *testing.T) {
	var ops []op.Op
	for _, m := range []int{1, 3} {
		for _, n := range []int{1, 48} {
			ops = append(ops,
				op.Op{Kind: op.Norm, M: m, N: n}, op.Op{Kind: op.LayerNorm, M: m, N: n}, op.Op{Kind: op.QuantRows, M: m, N: n}, op.Op{Kind: op.QuantRows, M: m, N: n, Fan: 2},
				op.Op{Kind: op.QuantRows, M: m, N: n, Static: true}, op.Op{Kind: op.QuantRows, M: m, N: n, Static: true, Scales: 2}, op.Op{Kind: op.Add, M: m, N: n}, op.Op{Kind: op.Copy, M: m, N: n}, op.Op{Kind: op.Gate, M: m, N: n},
				op.Op{Kind: op.Softcap, M: m, N: n, Cap: 3}, op.Op{Kind: op.Clip, M: m, N: n, Cap: 3})
			for _, typ := range []op.Type{op.F32, op.F16, op.BF16} {
				ops = append(ops, op.Op{Kind: op.Embed, M: m, K: 1, N: n, Table: typ}, op.Op{Kind: op.Embed, M: m, K: 7, N: n, Table: typ}, op.Op{Kind: op.Embed, M: m, K: 7, N: n, Table: typ, Scale: 3})
			}
			for _, act := range op.Acts {
				ops = append(ops, op.Op{Kind: op.Activate, M: m, N: n, Act: act}, op.Op{Kind: op.GLU, M: m, N: n, Interleave: n, Act: act}, op.Op{Kind: op.GLU, M: m, N: n, Interleave: 1, Act: act, Fan: 2})
			}
			for _, s := range capabilities(nil, signed, true).Schemes {
				for _, bias := range []bool{false, true} {
					ops = append(ops, op.Op{Kind: op.MatMul, M: m, K: 130, N: n, Scheme: s, Bias: bias})
				}
			}
		}
	}
	for _, o := range ops {
		g := op.Single(o, op.OnnxLayout)
		if err := verify(modelOf(t, &g), &g); err != nil {
			t.Errorf("%s: %v", o.Key(), err)
		}
		if o.Kind == op.Activate { // in place
			g.Outputs, g.Nodes[0].Out = g.Inputs, g.Nodes[0].In
			if err := verify(modelOf(t, &g), &g); err != nil {
				t.Errorf("%s in place: %v", o.Key(), err)
			}
		}
	}
	for _, s := range capabilities(nil, signed, true).Schemes {
		for _, bias := range []bool{false, true} {
			for _, m := range []int{1, 5} {
				g := chained(m, s, bias)
				if err := verify(modelOf(t, g), g); err != nil {
					t.Errorf("%s: %v", s, err)
				}
			}
		}
	}
}

// A model that computes something else, or in another precision, is refused, and the error names what and where.
func TestVerifyRefuses(t *testing.T) {
	at := func(m *onnx.Model, name string) *onnx.Node {
		i := slices.IndexFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == name })
		if i < 0 {
			t.Fatalf("no node %q", name)
		}
		return &m.Graph.Nodes[i]
	}
	initializer := func(m *onnx.Model, name string) *onnx.Tensor {
		i := slices.IndexFunc(m.Graph.Initializers, func(x onnx.Tensor) bool { return x.Name == name })
		if i < 0 {
			t.Fatalf("no initializer %q", name)
		}
		return &m.Graph.Initializers[i]
	}
	attr := func(n *onnx.Node, name string, v int64) {
		for i := range n.Attrs {
			if n.Attrs[i].Name == name {
				n.Attrs[i].I = v
			}
		}
	}
	insert := func(m *onnx.Model, n onnx.Node) { m.Graph.Nodes = append(m.Graph.Nodes, n) }
	for what, c := range map[string]struct {
		scheme op.Scheme
		change func(m *onnx.Model)
		want   []string
	}{
		"float32 activations of a 4-bit product": {op.A8TQ4B32, func(m *onnx.Model) { attr(at(m, "n2"), "accuracy_level", 0) }, []string{"node 2 (matmul a8t/q4b32)", "accuracy_level=0", "accuracy_level=4"}},
		"other blocks":                           {op.A8TQ4B32, func(m *onnx.Model) { attr(at(m, "n2"), "block_size", 64) }, []string{"node 2", "block_size=64"}},
		"other bits":                             {op.A8TQ4B128, func(m *onnx.Model) { attr(at(m, "n2"), "bits", 8) }, []string{"node 2", "bits=8"}},
		"a left out attribute":                   {op.A8TQ4B128, func(m *onnx.Model) { at(m, "n2").Attrs = at(m, "n2").Attrs[1:] }, []string{"node 2", "want"}},
		"a zero point of rows":                   {op.A8TQ8C, func(m *onnx.Model) { c := initializer(m, at(m, "n2").In[4]); c.Raw = []byte{127} }, []string{"node 2", "=2[]7f", "=2[]80"}},
		"a zero point of weights":                {op.A8TQ8C, func(m *onnx.Model) { n := at(m, "n2"); n.In = append(n.In, n.In[4]) }, []string{"node 2", "want"}},
		"a scale of rows":                        {op.A8TQ8C, func(m *onnx.Model) { n := at(m, "n2"); n.In[2] = at(m, "n1.div").In[1] }, []string{"node 2", "MatMulIntegerToFloat"}},
		"a float32 product":                      {op.A8TQ8C, func(m *onnx.Model) { n := at(m, "n2"); n.Op, n.Domain, n.In = "MatMul", "", n.In[:2] }, []string{"node 2", "is MatMul(", "want com.microsoft.MatMulIntegerToFloat("}},
		"a bfloat16 product":                     {op.A32W32, func(m *onnx.Model) { n := at(m, "n1"); n.Op, n.Domain = "FusedMatMul", onnx.Contrib }, []string{"node 1 (matmul a32/w32)", "FusedMatMul"}},
		"another weight":                         {op.A32W32, func(m *onnx.Model) { at(m, "n1").In[1] = "w2" }, []string{"node 1", `reads "w2"`}},
		"another weight's scales":                {op.A8TQ8C, func(m *onnx.Model) { at(m, "n2").In[3] = "w3.scale" }, []string{"node 2", `reads "w3.scale"`}},
		"operands the other way round":           {op.A32W32, func(m *onnx.Model) { slices.Reverse(at(m, "n1").In) }, []string{"node 1", "want MatMul(v0.0, w1)"}},
		"a cast in front": {op.A32W32, func(m *onnx.Model) {
			n := at(m, "n1")
			insert(m, onnx.Node{Name: "n1.cast", Op: "Cast", In: n.In[:1:1], Out: []string{"n1.cast:"}, Attrs: []onnx.Attr{onnx.Int("to", 10)}})
			n.In = []string{"n1.cast:", n.In[1]}
		}, []string{"node 1", "want MatMul(v0.0, w1)"}},
		"a cast in a norm": {op.A32W32, func(m *onnx.Model) {
			insert(m, onnx.Node{Name: "n0.cast", Op: "Cast", In: []string{"i0"}, Out: []string{"n0.cast:"}, Attrs: []onnx.Attr{onnx.Int("to", 10)}})
		}, []string{"node 0 (norm)", `"n0.cast" is "Cast"`}},
		"a cast nobody asked for":   {op.A32W32, func(m *onnx.Model) { insert(m, onnx.Node{Name: "cast", Op: "Cast"}) }, []string{`"cast" (Cast)`, "belongs to no node"}},
		"a node of a node too many": {op.A32W32, func(m *onnx.Model) { insert(m, onnx.Node{Name: "n99", Op: "Add"}) }, []string{`"n99"`}},
		"a node's name":             {op.A32W32, func(m *onnx.Model) { at(m, "n1").Name = "n01" }, []string{`"n01"`}},
		"no name":                   {op.A32W32, func(m *onnx.Model) { at(m, "n1").Name = "" }, []string{`node ""`}},
		"a name twice":              {op.A32W32, func(m *onnx.Model) { insert(m, *at(m, "n1")) }, []string{`"n1"`}},
		"a missing product":         {op.A32W32, func(m *onnx.Model) { at(m, "n1").Name = "n1.a" }, []string{"node 1", `no node "n1"`}},
		"a missing row scale": {op.A8TQ8C, func(m *onnx.Model) {
			m.Graph.Nodes = slices.DeleteFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == "n2.scale" })
		}, []string{"node 2", `no node "n2.scale"`}},
		"rounding of other rows":        {op.A8TQ8C, func(m *onnx.Model) { at(m, "n1").In[0] = "i0" }, []string{"node 1 (quant_rows)", `reads "i0"`}},
		"a coarser scale":               {op.A8TQ8C, func(m *onnx.Model) { n := at(m, "n1.div"); n.In[1] = at(m, "n1.nan").In[1] }, []string{"node 1 (quant_rows)", `"n1.div"`}},
		"NaN that does not show":        {op.A8TQ8C, func(m *onnx.Model) { n := at(m, "n1.scale"); n.In[1] = n.In[0] }, []string{"node 1 (quant_rows)", `"n1.scale"`}},
		"rounding along the other axis": {op.A8TQ8C, func(m *onnx.Model) { attr(at(m, "n1"), "axis", 1) }, []string{"node 1 (quant_rows)", "axis=1"}},
		"a result of another node":      {op.A8TQ8C, func(m *onnx.Model) { at(m, "n1").Out[0] = "v2.0" }, []string{"node 1 (quant_rows)", `writes "v2.0"`}},
		"the scales that rows have":     {op.A8S2Q8C, func(m *onnx.Model) { x := at(m, "n1.holding"); x.In[1], x.In[2] = x.In[2], x.In[1] }, []string{"node 1 (quant_rows)"}},
		"a static scale":                {op.A8SQ8C, func(m *onnx.Model) { at(m, "n1").In[1] = at(m, "n2").In[3] }, []string{"node 1 (quant_rows)"}},
		"another function":              {op.A32W32, func(m *onnx.Model) { n := at(m, "n2.act"); n.Op, n.Domain = "Relu", "" }, []string{"node 2 (glu)", `"Relu"`}},
		"a weight's shape":              {op.A8TQ8C, func(m *onnx.Model) { slices.Reverse(initializer(m, "w1").Dims) }, []string{`initializer "w1"`, "[192 64]", "[64 192]"}},
		"a weight's type":               {op.A8TQ8C, func(m *onnx.Model) { initializer(m, "w1").Type = onnx.Uint8 }, []string{`initializer "w1"`, "type 2"}},
		"a weight too many": {op.A8TQ8C, func(m *onnx.Model) {
			x := *initializer(m, "w1")
			x.Name = "w9"
			m.Graph.Initializers = append(m.Graph.Initializers, x)
		}, []string{`"w9"`}},
		"other operators": {op.A8TQ8C, func(m *onnx.Model) { m.Opsets[0].Version = 13 }, []string{"13", "21"}},
	} {
		g := chained(5, c.scheme, false)
		m := modelOf(t, g)
		c.change(m)
		err := verify(m, g)
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v", what, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not mention %q", what, err, w)
			}
		}
	}
	table := op.Single(op.Op{Kind: op.Embed, M: 3, K: 7, N: 8, Table: op.F16}, "")
	m := modelOf(t, &table)
	attr(at(m, "n0.cast"), "to", 16)
	if err := verify(m, &table); err == nil || !strings.Contains(err.Error(), "another type than float32") {
		t.Errorf("a table in bfloat16: %v", err)
	}
}

// An artifact of an estimate that multiplies something else, or more than codes, is refused before the library sees it, and
// so is one whose operands are not those of its launches.
func TestEstimateArtifactsRefused(t *testing.T) {
	operator := op.Op{Kind: op.Estimate, M: 40, Heads: 4, KVHeads: 2, HeadDim: 16, Context: 96, KV: op.F32, Block: op.SparseBlock}
	graph := op.Single(operator, op.OnnxLayout)
	good := modelOf(t, &graph).Marshal()
	if _, err := parse(good); err != nil {
		t.Fatal(err)
	}
	at := func(m *onnx.Model, name string) *onnx.Node {
		i := slices.IndexFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == name })
		if i < 0 {
			t.Fatalf("no node %q", name)
		}
		return &m.Graph.Nodes[i]
	}
	of := func(m *onnx.Model, change func(o *op.Op, g *op.Graph)) {
		other := operator
		g := op.Single(other, op.OnnxLayout)
		change(&g.Nodes[0].Op, &g)
		text, err := json.Marshal(&g)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(m.Props, func(p onnx.Prop) bool { return p.Key == "hetc.graph" })
		m.Props[i].Value = string(text)
	}
	for what, c := range map[string]struct {
		change func(m *onnx.Model)
		want   string
	}{
		"another zero point": {func(m *onnx.Model) {
			name := at(m, "n0").In[2]
			for i := range m.Graph.Initializers {
				if m.Graph.Initializers[i].Name == name {
					m.Graph.Initializers[i].Raw = []byte{0}
				}
			}
		}, "MatMulInteger"},
		"keys that are not transposed": {func(m *onnx.Model) { at(m, "n0.columns").Attrs = nil }, "perm"},
		"queries of the keys":          {func(m *onnx.Model) { at(m, "n0.queries").In[0] = "i1" }, "n0.queries"},
		"no zero points":               {func(m *onnx.Model) { at(m, "n0").In = at(m, "n0").In[:2] }, "MatMulInteger"},
		"products in float": {func(m *onnx.Model) {
			n := at(m, "n0")
			n.Op, n.In = "MatMul", n.In[:2]
		}, "want MatMulInteger"},
		"a product of another node": {func(m *onnx.Model) {
			m.Graph.Nodes = append(m.Graph.Nodes, onnx.Node{Name: "n1", Op: "Identity", In: []string{"i0"}, Out: []string{"x"}})
		}, `"n1"`},
		"one node too many": {func(m *onnx.Model) {
			m.Graph.Nodes = append(m.Graph.Nodes, onnx.Node{Name: "n0.more", Op: "Identity", In: []string{"i0"}, Out: []string{"x"}})
		}, `"n0.more"`},
		"no products": {func(m *onnx.Model) {
			m.Graph.Nodes = slices.DeleteFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == "n0" })
		}, `no node "n0"`},
		"constant products": {func(m *onnx.Model) { at(m, "n0.shape").In[0] = at(m, "n0.shape").In[1] }, "n0.shape"},
		"a weight outside": {func(m *onnx.Model) {
			m.Graph.Initializers = append(m.Graph.Initializers, onnx.Tensor{Name: "w0", Type: onnx.Float32, Dims: []int64{1, 12},
				External: &onnx.External{Location: "weights", Length: 48}})
		}, `initializer "w0"`},
		"another input":    {func(m *onnx.Model) { m.Graph.Inputs = append(m.Graph.Inputs, m.Graph.Inputs[0]) }, "3 inputs"},
		"fewer keys":       {func(m *onnx.Model) { m.Graph.Inputs[1].Dims[0]-- }, `input "i1"`},
		"products of i64":  {func(m *onnx.Model) { m.Graph.Outputs[0].Type = onnx.Int64 }, `output "o0"`},
		"other heads":      {func(m *onnx.Model) { of(m, func(o *op.Op, _ *op.Graph) { o.KVHeads = 4 }) }, "parse graph"},
		"no block":         {func(m *onnx.Model) { of(m, func(o *op.Op, _ *op.Graph) { o.Block = 0 }) }, "block"},
		"a giant context":  {func(m *onnx.Model) { of(m, func(o *op.Op, _ *op.Graph) { o.Context = 1 << 40 }) }, "context"},
		"a context of its": {func(m *onnx.Model) { of(m, func(o *op.Op, _ *op.Graph) { o.Context = 97 }) }, "parse graph"},
		"a smaller launch": {func(m *onnx.Model) {
			other := operator
			other.Context = 32
			g := op.Single(other, op.OnnxLayout)
			text, err := json.Marshal(&g)
			if err != nil {
				t.Fatal(err)
			}
			m.Props[slices.IndexFunc(m.Props, func(p onnx.Prop) bool { return p.Key == "hetc.graph" })].Value = string(text)
		}, "i1"},
		"an estimate beside another operator": {func(m *onnx.Model) {
			of(m, func(_ *op.Op, g *op.Graph) {
				value := op.Value{Name: "z", Type: op.F32, Rows: 1, Cols: 1}
				g.Inputs, g.Outputs = append(g.Inputs, value), append(g.Outputs, op.Value{Name: "y", Type: op.F32, Rows: 1, Cols: 1})
				g.Nodes = append(g.Nodes, op.Node{Op: op.Op{Kind: op.Copy, M: 1, N: 1}, In: []string{"z"}, Out: []string{"y"}})
			})
		}, ""},
	} {
		m, err := onnx.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		c.change(m)
		if _, err = parse(m.Marshal()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
}

// An artifact of a group of experts in which a slot has the rows or the weights of another one, or in which results are in
// another order, is refused, and so is one that is said to be of other slots.
func TestGroupArtifactsRefused(t *testing.T) {
	const slots, each, hidden, ffn = 3, 4, 32, 48
	operator := op.Op{Kind: op.GroupMatMul, M: slots * each, K: hidden, N: ffn, Experts: slots, Scheme: op.A8TQ8C}
	graph := op.Single(operator, op.OnnxLayout)
	good := modelOf(t, &graph).Marshal()
	if _, err := parse(good); err != nil {
		t.Fatal(err)
	}
	at := func(m *onnx.Model, name string) *onnx.Node {
		i := slices.IndexFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == name })
		if i < 0 {
			t.Fatalf("no node %q", name)
		}
		return &m.Graph.Nodes[i]
	}
	without := func(m *onnx.Model, name string) {
		m.Graph.Nodes = slices.DeleteFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == name })
	}
	of := func(m *onnx.Model, change func(o *op.Op)) {
		other := operator
		change(&other)
		g := op.Single(other, op.OnnxLayout)
		text, err := json.Marshal(&g)
		if err != nil {
			t.Fatal(err)
		}
		m.Props[slices.IndexFunc(m.Props, func(p onnx.Prop) bool { return p.Key == "hetc.graph" })].Value = string(text)
	}
	for what, c := range map[string]struct {
		change func(m *onnx.Model)
		want   string
	}{
		"rows of another slot":      {func(m *onnx.Model) { at(m, "n0.slot1").In[0] = at(m, "n0.slot0").In[0] }, `"n0.slot1" is`},
		"scales of another slot":    {func(m *onnx.Model) { at(m, "n0.slot1.scale").In[1] = at(m, "n0.slot0.scale").In[1] }, `"n0.slot1.scale" is`},
		"an expert in another slot": {func(m *onnx.Model) { at(m, "n0.slot1").In[1] = "w0" }, `"n0.slot1" is`},
		"scales of another expert":  {func(m *onnx.Model) { at(m, "n0.slot1").In[3] = "w0.scale" }, `"n0.slot1" is`},
		"results in another order":  {func(m *onnx.Model) { slices.Reverse(at(m, "n0").In) }, `"n0" is`},
		"a result twice":            {func(m *onnx.Model) { n := at(m, "n0"); n.In[1] = n.In[0] }, `"n0" is`},
		"results side by side":      {func(m *onnx.Model) { at(m, "n0").Attrs[0].I = 1 }, "axis=1"},
		"fewer results":             {func(m *onnx.Model) { n := at(m, "n0"); n.In = n.In[:2] }, `"n0" is`},
		"columns instead of rows":   {func(m *onnx.Model) { at(m, "n0.in0").Attrs[0].I = 1 }, "axis=1"},
		"rows in another order":     {func(m *onnx.Model) { slices.Reverse(at(m, "n0.in0").Out) }, `"n0.in0" is`},
		"a slot without a product":  {func(m *onnx.Model) { without(m, "n0.slot2") }, `no node "n0.slot2"`},
		"a slot too many": {func(m *onnx.Model) {
			n := *at(m, "n0.slot2")
			n.Name = "n0.slot3"
			m.Graph.Nodes = append(m.Graph.Nodes, n)
		}, `"n0.slot3" is`},
		"said to be of fewer slots":  {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Experts = 2 }) }, ""},
		"said to be of no slot":      {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Experts = 0 }) }, "parse graph"},
		"said to be of uneven slots": {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Experts = 5 }) }, "parse graph"},
		"said to be of other rows":   {func(m *onnx.Model) { of(m, func(o *op.Op) { o.M = 2 * slots * each }) }, `want "i0" u8 [24,32]`},
		"a giant number of slots":    {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Experts, o.M = 1<<20, 1<<20 }) }, ""},
	} {
		m, err := onnx.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		c.change(m)
		if _, err = parse(m.Marshal()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
}
