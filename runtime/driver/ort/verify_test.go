package ort

import (
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// modelOf compiles a graph.
func modelOf(t *testing.T, g *op.Graph) *onnx.Model {
	t.Helper()
	artifact, err := compile.New().Compile(t.Context(), *g, nil, driver.Target{Proc: "npu"})
	if err != nil {
		t.Fatal(err)
	}
	model, err := onnx.Parse(artifact.Code)
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// chained is the graph of a norm, a product with the rounding of its rows, a function, a second product and a sum, in
// the order in which plans contain them.
func chained(rows int, scheme op.Scheme, bias bool) *op.Graph {
	const hidden, ffn = 64, 96
	value := func(name string, typ op.Type, cols int) op.Value {
		return op.Value{Name: name, Type: typ, Rows: rows, Cols: cols}
	}
	graph := &op.Graph{
		Inputs:  []op.Value{value("x", op.F32, hidden)},
		Outputs: []op.Value{value("x", op.F32, hidden)},
		Temps: []op.Value{
			value("n", op.F32, hidden),
			value("h", op.F32, 2*ffn),
			value("a", op.F32, ffn),
			value("d", op.F32, hidden),
		},
	}
	add := func(o op.Op, in, out []string) {
		node := op.Node{Op: o, In: in, Out: out}
		for _, role := range o.Sig().W {
			spec := o.WeightSpec(role, op.OnnxLayout)
			spec.Name = out[0] + "." + role
			graph.Weights = append(graph.Weights, spec)
			node.W = append(node.W, spec.Name)
		}
		graph.Nodes = append(graph.Nodes, node)
	}
	product := func(k, n int, from, to string) {
		in := []string{from}
		if scheme.QuantisedRows() {
			in = []string{from + "8", from + "s"}
			graph.Temps = append(graph.Temps, value(in[0], op.U8, k), value(in[1], op.F32, 1))
			add(scheme.QuantRows(rows, k, 1), []string{from}, in)
		}
		add(op.Op{Kind: op.MatMul, M: rows, K: k, N: n, Scheme: scheme, Bias: bias}, in, []string{to})
	}

	add(op.Op{Kind: op.Norm, M: rows, N: hidden, Eps: 1e-5}, []string{"x"}, []string{"n"})
	product(hidden, 2*ffn, "n", "h")
	add(op.Op{Kind: op.GLU, M: rows, N: ffn, Interleave: 16, Act: op.SiLU}, []string{"h"}, []string{"a"})
	product(ffn, hidden, "a", "d")
	add(op.Op{Kind: op.Add, M: rows, N: hidden}, []string{"x", "d"}, []string{"x"})
	return graph
}

// The compiler writes what is expected, for every operator and variant.
func TestVerifyAccepts(t *testing.T) {
	var operators []op.Op
	for _, rows := range []int{1, 3} {
		for _, columns := range []int{1, 48} {
			operators = append(operators, variants(rows, columns)...)
		}
	}
	for _, o := range operators {
		graph := op.Single(o, op.OnnxLayout)
		if err := verify(modelOf(t, &graph), &graph); err != nil {
			t.Errorf("%s: %v", o.Key(), err)
		}
		if o.Kind != op.Activate {
			continue
		}
		inPlace := graph
		inPlace.Outputs, inPlace.Nodes[0].Out = inPlace.Inputs, inPlace.Nodes[0].In
		if err := verify(modelOf(t, &inPlace), &inPlace); err != nil {
			t.Errorf("%s in place: %v", o.Key(), err)
		}
	}

	for _, scheme := range capabilities(nil, signed, true).Schemes {
		for _, bias := range []bool{false, true} {
			for _, rows := range []int{1, 5} {
				graph := chained(rows, scheme, bias)
				if err := verify(modelOf(t, graph), graph); err != nil {
					t.Errorf("%s: %v", scheme, err)
				}
			}
		}
	}
}

// variants returns every operator of the processor with so many rows and columns.
func variants(rows, columns int) []op.Op {
	operators := []op.Op{
		{Kind: op.Norm},
		{Kind: op.LayerNorm},
		{Kind: op.QuantRows},
		{Kind: op.QuantRows, Fan: 2},
		{Kind: op.QuantRows, Static: true},
		{Kind: op.QuantRows, Static: true, Scales: 2},
		{Kind: op.Add},
		{Kind: op.Copy},
		{Kind: op.Gate},
		{Kind: op.Softcap, Cap: 3},
		{Kind: op.Clip, Cap: 3},
	}
	for _, table := range []op.Type{op.F32, op.F16, op.BF16} {
		operators = append(operators,
			op.Op{Kind: op.Embed, K: 1, Table: table},
			op.Op{Kind: op.Embed, K: 7, Table: table},
			op.Op{Kind: op.Embed, K: 7, Table: table, Scale: 3})
	}
	for _, act := range op.Acts {
		operators = append(operators,
			op.Op{Kind: op.Activate, Act: act},
			op.Op{Kind: op.GLU, Interleave: columns, Act: act},
			op.Op{Kind: op.GLU, Interleave: 1, Act: act, Fan: 2})
	}
	for _, scheme := range capabilities(nil, signed, true).Schemes {
		for _, bias := range []bool{false, true} {
			operators = append(operators, op.Op{Kind: op.MatMul, K: 130, Scheme: scheme, Bias: bias})
		}
	}
	for i := range operators {
		operators[i].M, operators[i].N = rows, columns
	}
	return operators
}
