package ort_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }

// compiled compiles a graph, and expects that it is compiled to the same bytes again and that the model carries it.
func compiled(t *testing.T, graph op.Graph) *onnx.Model {
	t.Helper()
	artifact, err := compile.New().Compile(t.Context(), graph, nil, driver.Target{Proc: "npu"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := compile.New().Compile(t.Context(), graph, nil, driver.Target{Proc: "npu"})
	if err != nil || !bytes.Equal(artifact.Code, again.Code) {
		t.Fatalf("compiled again it differs (%v)", err)
	}
	model, err := onnx.Parse(artifact.Code)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := model.Prop("hetc.graph")
	var back op.Graph
	if err := json.Unmarshal([]byte(text), &back); err != nil || !reflect.DeepEqual(back, graph) {
		t.Fatalf("the artifact stands for %+v (%v), want %+v", back, err, graph)
	}
	return model
}

// dump writes a model without the graph it carries, one line for each part.
func dump(m *onnx.Model) []byte {
	var b bytes.Buffer
	values := func(what string, list []onnx.Value) {
		for _, v := range list {
			fmt.Fprintf(&b, "%s %s %d%v\n", what, v.Name, v.Type, v.Dims)
		}
	}
	fmt.Fprintf(&b, "ir %d %s %v\n", m.IR, m.Producer, m.Opsets)
	values("in", m.Graph.Inputs)
	for _, x := range m.Graph.Initializers {
		fmt.Fprintf(&b, "init %s %d%v", x.Name, x.Type, x.Dims)
		if x.External != nil {
			fmt.Fprintf(&b, " %s+%d:%d\n", x.External.Location, x.External.Offset, x.External.Length)
		} else {
			fmt.Fprintf(&b, " %x\n", x.Raw)
		}
	}
	for i := range m.Graph.Nodes {
		dumpNode(&b, &m.Graph.Nodes[i])
	}
	values("out", m.Graph.Outputs)
	for _, p := range m.Props {
		if p.Key != "hetc.graph" {
			fmt.Fprintf(&b, "%s %s\n", p.Key, p.Value)
		}
	}
	return b.Bytes()
}

// dumpNode writes a node as one line.
func dumpNode(b *bytes.Buffer, n *onnx.Node) {
	domain := strings.TrimPrefix(n.Domain+".", ".")
	fmt.Fprintf(b, "%-12s %s %s(%s) %s", n.Name, strings.Join(n.Out, ","), domain, strings.Join(n.In, ","), n.Op)
	for _, a := range n.Attrs {
		switch a.Kind {
		case onnx.KindInt:
			fmt.Fprintf(b, " %s=%d", a.Name, a.I)
		case onnx.KindFloat:
			fmt.Fprintf(b, " %s=%v", a.Name, a.F)
		case onnx.KindString:
			fmt.Fprintf(b, " %s=%q", a.Name, a.S)
		case onnx.KindInts:
			fmt.Fprintf(b, " %s=%v", a.Name, a.Ints)
		}
	}
	b.WriteByte('\n')
}

// single is the graph of one operator with its matrix in the layout of the driver.
func single(o op.Op) op.Graph { return op.Single(o, op.OnnxLayout) }

// block is a piece of a layer: the norm, a gated product and the way back, with the sum in place.
func block(rows int, scheme op.Scheme) op.Graph {
	const hidden, ffn = 64, 96
	value := func(name string, typ op.Type, cols int) op.Value {
		return op.Value{Name: name, Type: typ, Rows: rows, Cols: cols}
	}
	graph := op.Graph{
		Inputs:  []op.Value{value("x", op.F32, hidden)},
		Outputs: []op.Value{value("x", op.F32, hidden)},
		Temps: []op.Value{
			value("n", op.F32, hidden),
			value("n8", op.U8, hidden),
			value("ns", op.F32, 1),
			value("h", op.F32, 2*ffn),
			value("a", op.F32, ffn),
			value("a8", op.U8, ffn),
			value("as", op.F32, 1),
			value("d", op.F32, hidden),
		},
	}
	var nRow, aRow []string // the static scales of rows
	if scheme.Static() {
		nRow, aRow = []string{"n_scale"}, []string{"a_scale"}
	}
	up := op.Op{Kind: op.MatMul, M: rows, K: hidden, N: 2 * ffn, Scheme: scheme, Bias: true}
	down := op.Op{Kind: op.MatMul, M: rows, K: ffn, N: hidden, Scheme: scheme}
	for _, node := range []op.Node{
		{
			Op:  op.Op{Kind: op.Norm, M: rows, N: hidden, Eps: 1e-5},
			In:  []string{"x"},
			W:   []string{"gain"},
			Out: []string{"n"},
		},
		{Op: scheme.QuantRows(rows, hidden, 1), In: []string{"n"}, W: nRow, Out: []string{"n8", "ns"}},
		{Op: up, In: []string{"n8", "ns"}, W: []string{"up", "bias"}, Out: []string{"h"}},
		{
			Op:  op.Op{Kind: op.GLU, M: rows, N: ffn, Interleave: 16, Act: op.SiLU},
			In:  []string{"h"},
			Out: []string{"a"},
		},
		{Op: scheme.QuantRows(rows, ffn, 1), In: []string{"a"}, W: aRow, Out: []string{"a8", "as"}},
		{Op: down, In: []string{"a8", "as"}, W: []string{"down"}, Out: []string{"d"}},
		{Op: op.Op{Kind: op.Add, M: rows, N: hidden}, In: []string{"x", "d"}, Out: []string{"x"}},
	} {
		for i, role := range node.Op.Sig().W {
			spec := node.Op.WeightSpec(role, op.OnnxLayout)
			spec.Name = node.W[i]
			graph.Weights = append(graph.Weights, spec)
		}
		graph.Nodes = append(graph.Nodes, node)
	}
	return graph
}

// The models of operators, and of a piece of a layer, are those that were looked through.
func TestModels(t *testing.T) {
	graphs := map[string]op.Graph{}
	for _, o := range []op.Op{
		{Kind: op.Embed, M: 3, K: 53, N: 8, Table: op.F32},
		{Kind: op.Embed, M: 3, K: 53, N: 8, Table: op.BF16, Scale: 11.3},
		{Kind: op.Norm, M: 3, N: 8, Eps: 1e-5},
		{Kind: op.LayerNorm, M: 3, N: 8},
		{Kind: op.QuantRows, M: 3, N: 8, Fan: 2},
		{Kind: op.QuantRows, M: 1, N: 8},
		{Kind: op.QuantRows, M: 3, N: 8, Static: true},
		{Kind: op.MatMul, M: 3, K: 8, N: 16, Scheme: op.A32W32, Bias: true},
		{Kind: op.MatMul, M: 3, K: 8, N: 16, Scheme: op.A32W32, Form: op.Swapped},
		{Kind: op.MatMul, M: 6, K: 8, N: 16, Scheme: op.A32W32, Bias: true, Form: "conv 3x2"},
		{Kind: op.MatMul, M: 3, K: 8, N: 16, Scheme: op.A8TQ8C, Bias: true},
		{Kind: op.MatMul, M: 1, K: 8, N: 16, Scheme: op.A8TQ8C, Bias: true},
		{Kind: op.MatMul, M: 3, K: 40, N: 16, Scheme: op.A8TQ4B32, Bias: true},
		{Kind: op.MatMul, M: 3, K: 40, N: 16, Scheme: op.A8TQ4B128},
		{Kind: op.GLU, M: 3, N: 32, Interleave: 16, Act: op.GELUTanh},
		{Kind: op.GLU, M: 3, N: 32, Interleave: 32, Act: op.ReLU, Fan: 2},
		{Kind: op.Activate, M: 3, N: 8, Act: op.SiLU},
		{Kind: op.Gate, M: 3, N: 8},
		{Kind: op.Softcap, M: 3, N: 8, Cap: 30},
		{Kind: op.Clip, M: 3, N: 8, Cap: 8},
		{Kind: op.Add, M: 3, N: 8},
		{Kind: op.Copy, M: 3, N: 8},
	} {
		name := strings.ReplaceAll(o.Key(), "/", "-")
		if o.Scale != 0 {
			name += " scaled"
		}
		graphs[name] = single(o)
	}
	for _, act := range []string{op.SiLU, op.GELU} {
		graph := single(op.Op{Kind: op.Activate, M: 3, N: 8, Act: act})
		graph.Outputs, graph.Nodes[0].Out = graph.Inputs, graph.Nodes[0].In
		graphs["in place "+act] = graph
	}
	graphs["block of rows"] = block(5, op.A8TQ8C)
	graphs["block of static rows"] = block(5, op.A8SQ8C)
	graphs["block of several static scales"] = block(5, op.A8S2Q8C)

	for name, graph := range graphs {
		t.Run(name, func(t *testing.T) {
			golden.Equal(t, "txt", dump(compiled(t, graph)))
		})
	}
}

// An artifact has its size and that of its weights as facts.
func TestFacts(t *testing.T) {
	graph := single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C, Bias: true})
	const matrix, bias = 1344 + 192, 132 // bytes
	weights := driver.Weights{{Bytes: make([]byte, matrix)}, {Bytes: make([]byte, bias)}}

	artifact, err := compile.New().Compile(t.Context(), graph, weights, driver.Target{Proc: "npu"})
	if err != nil {
		t.Fatal(err)
	}

	want := map[string]int64{"bytes": int64(len(artifact.Code)), "weight_bytes": matrix + bias}
	if !reflect.DeepEqual(artifact.Facts, want) {
		t.Errorf("facts %v, want %v", artifact.Facts, want)
	}
	if artifact.Driver != "ort" || compile.New().Name() != "ort" {
		t.Errorf("artifact for driver %q, compiler %q", artifact.Driver, compile.New().Name())
	}
}

// refused is a graph or weights that cannot be compiled.
type refused struct {
	what    string
	graph   op.Graph
	weights driver.Weights
	want    string // what the error says
}

// refuse expects errors of input that name the processor.
func refuse(t *testing.T, list []refused) {
	t.Helper()
	for _, c := range list {
		_, err := compile.New().Compile(t.Context(), c.graph, c.weights, driver.Target{Proc: "npu"})
		if diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want an error of input", c.what, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, c.want) || !strings.Contains(text, `"npu"`) {
			t.Errorf("%s: got %v, want it to mention %q", c.what, err, c.want)
		}
	}
}

// changed is the graph of one operator after a change.
func changed(o op.Op, change func(graph *op.Graph)) op.Graph {
	graph := single(o)
	change(&graph)
	return graph
}

// product is an operator that is compiled.
var product = op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C}

// Operators and schemes without a model are refused by name.
func TestOperatorsRefused(t *testing.T) {
	refuse(t, []refused{
		{
			what:  "experts",
			graph: single(op.Op{Kind: op.ExpertMatMul, M: 4, Fan: 2, Experts: 3, K: 40, N: 33, Scheme: op.A8TQ8C}),
			want:  `operator "expert_matmul" is not executed`,
		},
		{
			what:  "the cache alone",
			graph: single(op.Op{Kind: op.KVAppend, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, KV: op.F32}),
			want:  `operator "kv_append"`,
		},
		{
			what:  "bfloat16 weights",
			graph: single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A32W16}),
			want:  `scheme "a32/w16" is not executed`,
		},
		{
			what:  "a tied embedding",
			graph: single(op.Op{Kind: op.Embed, M: 4, K: 40, N: 33, Scheme: op.I32Q8C}),
			want:  `scheme "i32/q8c" is not executed`,
		},
		{
			what:  "many rows",
			graph: single(op.Op{Kind: op.QuantRows, M: 1 << 17, N: 8}),
			want:  "131072 rows, want at most 65536",
		},
		{
			what: "a conversion",
			graph: changed(op.Op{Kind: op.Copy, M: 3, N: 8}, func(graph *op.Graph) {
				graph.Outputs[0].Type = op.F16
			}),
			want: "types are not converted",
		},
		{
			what: "a NaN",
			graph: changed(op.Op{Kind: op.Norm, M: 3, N: 8}, func(graph *op.Graph) {
				graph.Nodes[0].Op.Eps = math.NaN()
			}),
			want: "NaN",
		},
	})
}

// Weights in another layout or shape, and such that are missing or short, are refused.
func TestWeightsRefused(t *testing.T) {
	refuse(t, []refused{
		{
			what:  "another layout",
			graph: op.Single(product, pack.N32),
			want:  `weight "weight" is q8c n32 [40,33], want q8c onnx [40,33]`,
		},
		{
			what:  "an unknown layout",
			graph: changed(product, func(graph *op.Graph) { graph.Weights[0].Layout = "swirl" }),
			want:  "swirl",
		},
		{
			what:  "a weight's shape",
			graph: changed(product, func(graph *op.Graph) { graph.Weights[0].N = 34 }),
			want:  "[40,34], want q8c onnx [40,33]",
		},
		{
			what:    "a missing weight",
			graph:   single(product),
			weights: driver.Weights{},
			want:    "got 0 weights, want 1",
		},
		{
			what:    "a short weight",
			graph:   single(product),
			weights: driver.Weights{{Bytes: make([]byte, 7)}},
			want:    "got 7 bytes, want 1536",
		},
	})
}

// A graph whose values are declared twice, or are overwritten before they are read, is refused.
func TestValuesRefused(t *testing.T) {
	rows := op.Op{Kind: op.Activate, M: 3, N: 8, Act: op.SiLU}
	norm := op.Op{Kind: op.Norm, M: 3, N: 8}
	x := single(norm).Inputs[0]
	late := op.Graph{ // the first operator may run after the second one has written
		Inputs:  []op.Value{x},
		Outputs: []op.Value{x, {Name: "z", Type: op.F32, Rows: 3, Cols: 8}},
		Weights: single(norm).Weights,
		Nodes: []op.Node{
			{Op: op.Op{Kind: op.Softcap, M: 3, N: 8, Cap: 1}, In: []string{"x"}, Out: []string{"z"}},
			{Op: op.Op{Kind: op.Add, M: 3, N: 8}, In: []string{"x", "x"}, Out: []string{"x"}},
			{Op: norm, In: []string{"z"}, W: []string{"gain"}, Out: []string{"z"}},
		},
	}
	refuse(t, []refused{
		{
			what:  "an input that is not declared",
			graph: changed(product, func(graph *op.Graph) { graph.Nodes[0].In[0] = "z" }),
			want:  `"z"`,
		},
		{
			what:  "an input twice",
			graph: changed(rows, func(graph *op.Graph) { graph.Inputs = append(graph.Inputs, graph.Inputs[0]) }),
			want:  `value "x" declared twice`,
		},
		{
			what:  "an output twice",
			graph: changed(rows, func(graph *op.Graph) { graph.Outputs = append(graph.Outputs, graph.Outputs[0]) }),
			want:  `value "y" declared twice`,
		},
		{
			what:  "a passed input",
			graph: changed(rows, func(graph *op.Graph) { graph.Outputs = append(graph.Outputs, graph.Inputs[0]) }),
			want:  `output "x" is an input that no node writes`,
		},
		{
			what: "a norm in place",
			graph: changed(norm, func(graph *op.Graph) {
				graph.Outputs, graph.Nodes[0].Out = graph.Inputs, graph.Nodes[0].In
			}),
			want: `value "x" is overwritten, and "n0"`,
		},
		{
			what:  "a reader too late",
			graph: late,
			want:  `value "x" is overwritten, and "n0.div"`,
		},
	})
}

// A cancelled compilation is an error.
func TestCancelled(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := compile.New().Compile(cancelled, single(product), nil, driver.Target{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
