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

func compiled(t *testing.T, g op.Graph) *onnx.Model {
	t.Helper()
	a, err := compile.New().Compile(t.Context(), g, nil, driver.Target{Proc: "npu"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := compile.New().Compile(t.Context(), g, nil, driver.Target{Proc: "npu"})
	if err != nil || !bytes.Equal(a.Code, again.Code) {
		t.Fatalf("compiled again it differs (%v)", err)
	}
	m, err := onnx.Parse(a.Code)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := m.Prop("hetc.graph")
	var back op.Graph
	if err := json.Unmarshal([]byte(text), &back); err != nil || !reflect.DeepEqual(back, g) {
		t.Fatalf("the artifact stands for %+v (%v), want %+v", back, err, g)
	}
	return m
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
	for _, n := range m.Graph.Nodes {
		fmt.Fprintf(&b, "%-12s %s %s(%s)", n.Name, strings.Join(n.Out, ","), strings.TrimPrefix(n.Domain+".", "."), strings.Join(n.In, ","))
		fmt.Fprintf(&b, " %s", n.Op)
		for _, a := range n.Attrs {
			switch a.Kind {
			case onnx.KindInt:
				fmt.Fprintf(&b, " %s=%d", a.Name, a.I)
			case onnx.KindFloat:
				fmt.Fprintf(&b, " %s=%v", a.Name, a.F)
			case onnx.KindString:
				fmt.Fprintf(&b, " %s=%q", a.Name, a.S)
			case onnx.KindInts:
				fmt.Fprintf(&b, " %s=%v", a.Name, a.Ints)
			}
		}
		b.WriteByte('\n')
	}
	values("out", m.Graph.Outputs)
	for _, p := range m.Props {
		if p.Key != "hetc.graph" {
			fmt.Fprintf(&b, "%s %s\n", p.Key, p.Value)
		}
	}
	return b.Bytes()
}

// single is the graph of one operator with its matrix in the layout of the driver.
func single(o op.Op) op.Graph { return op.Single(o, op.OnnxLayout) }

// block is a piece of a layer: the norm, a gated product and the way back, with the sum in place.
func block(m int, scheme op.Scheme) op.Graph {
	const hidden, ffn = 64, 96
	v := func(name string, t op.Type, cols int) op.Value {
		return op.Value{Name: name, Type: t, Rows: m, Cols: cols}
	}
	x := v("x", op.F32, hidden)
	g := op.Graph{Inputs: []op.Value{x}, Outputs: []op.Value{x}, Temps: []op.Value{
		v("n", op.F32, hidden), v("n8", op.U8, hidden), v("ns", op.F32, 1), v("h", op.F32, 2*ffn), v("a", op.F32, ffn), v("a8", op.U8, ffn), v("as", op.F32, 1), v("d", op.F32, hidden),
	}}
	node := func(o op.Op, in, w, out []string) {
		for i, role := range o.Sig().W {
			spec := o.WeightSpec(role, op.OnnxLayout)
			spec.Name = w[i]
			g.Weights = append(g.Weights, spec)
		}
		g.Nodes = append(g.Nodes, op.Node{Op: o, In: in, W: w, Out: out})
	}
	quant := func(n int) op.Op { return scheme.QuantRows(m, n, 1) }
	scale := func(s string) []string {
		if scheme.Static() {
			return []string{s}
		}
		return nil
	}
	node(op.Op{Kind: op.Norm, M: m, N: hidden, Eps: 1e-5}, []string{"x"}, []string{"gain"}, []string{"n"})
	node(quant(hidden), []string{"n"}, scale("n_scale"), []string{"n8", "ns"})
	node(op.Op{Kind: op.MatMul, M: m, K: hidden, N: 2 * ffn, Scheme: scheme, Bias: true}, []string{"n8", "ns"}, []string{"up", "bias"}, []string{"h"})
	node(op.Op{Kind: op.GLU, M: m, N: ffn, Interleave: 16, Act: op.SiLU}, []string{"h"}, nil, []string{"a"})
	node(quant(ffn), []string{"a"}, scale("a_scale"), []string{"a8", "as"})
	node(op.Op{Kind: op.MatMul, M: m, K: ffn, N: hidden, Scheme: scheme}, []string{"a8", "as"}, []string{"down"}, []string{"d"})
	node(op.Op{Kind: op.Add, M: m, N: hidden}, []string{"x", "d"}, nil, []string{"x"})
	return g
}

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
		g := single(op.Op{Kind: op.Activate, M: 3, N: 8, Act: act})
		g.Outputs, g.Nodes[0].Out = g.Inputs, g.Nodes[0].In
		graphs["in place "+act] = g
	}
	graphs["block of rows"], graphs["block of static rows"] = block(5, op.A8TQ8C), block(5, op.A8SQ8C)
	graphs["block of several static scales"] = block(5, op.A8S2Q8C)
	for name, g := range graphs {
		t.Run(name, func(t *testing.T) {
			golden.Equal(t, "txt", dump(compiled(t, g)))
		})
	}
}

func TestFacts(t *testing.T) {
	g := single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C, Bias: true})
	a, err := compile.New().Compile(t.Context(), g, driver.Weights{{Bytes: make([]byte, 1344+192)}, {Bytes: make([]byte, 132)}}, driver.Target{Proc: "npu"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"bytes": int64(len(a.Code)), "weight_bytes": 1344 + 192 + 132}
	if a.Driver != "ort" || compile.New().Name() != "ort" || !reflect.DeepEqual(a.Facts, want) {
		t.Errorf("artifact for %q, facts %v, want %v", a.Driver, a.Facts, want)
	}
}

func TestCompileRefuses(t *testing.T) {
	good := op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C}
	graph := func(o op.Op, change func(*op.Graph)) op.Graph {
		g := single(o)
		change(&g)
		return g
	}
	rows := op.Op{Kind: op.Activate, M: 3, N: 8, Act: op.SiLU}
	norm := op.Op{Kind: op.Norm, M: 3, N: 8}
	late := op.Graph{ // the first norm may run after the second one has written
		Inputs: single(norm).Inputs, Outputs: []op.Value{single(norm).Inputs[0], {Name: "z", Type: op.F32, Rows: 3, Cols: 8}},
		Weights: single(norm).Weights,
		Nodes: []op.Node{
			{Op: op.Op{Kind: op.Softcap, M: 3, N: 8, Cap: 1}, In: []string{"x"}, Out: []string{"z"}},
			{Op: op.Op{Kind: op.Add, M: 3, N: 8}, In: []string{"x", "x"}, Out: []string{"x"}},
			{Op: norm, In: []string{"z"}, W: []string{"gain"}, Out: []string{"z"}},
		},
	}
	for what, c := range map[string]struct {
		g    op.Graph
		w    driver.Weights
		want string
	}{
		"an invalid graph":  {graph(good, func(g *op.Graph) { g.Nodes[0].In[0] = "z" }), nil, `"z"`},
		"experts":           {single(op.Op{Kind: op.ExpertMatMul, M: 4, Fan: 2, Experts: 3, K: 40, N: 33, Scheme: op.A8TQ8C}), nil, `operator "expert_matmul" is not executed`},
		"the cache alone":   {single(op.Op{Kind: op.KVAppend, M: 1, Heads: 1, KVHeads: 1, HeadDim: 8, KV: op.F32}), nil, `operator "kv_append"`},
		"bfloat16 weights":  {single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A32W16}), nil, `scheme "a32/w16" is not executed`},
		"a tied embedding":  {single(op.Op{Kind: op.Embed, M: 4, K: 40, N: 33, Scheme: op.I32Q8C}), nil, `scheme "i32/q8c" is not executed`},
		"another layout":    {op.Single(good, pack.N32), nil, `weight "weight" is q8c n32 [40,33], want q8c onnx [40,33]`},
		"an unknown layout": {graph(good, func(g *op.Graph) { g.Weights[0].Layout = "swirl" }), nil, "swirl"},
		"a weight's shape":  {graph(good, func(g *op.Graph) { g.Weights[0].N = 34 }), nil, "[40,34], want q8c onnx [40,33]"},
		"a missing weight":  {single(good), driver.Weights{}, "got 0 weights, want 1"},
		"a short weight":    {single(good), driver.Weights{{Bytes: make([]byte, 7)}}, "got 7 bytes, want 1536"},
		"a NaN":             {graph(norm, func(g *op.Graph) { g.Nodes[0].Op.Eps = math.NaN() }), nil, "NaN"},
		"many rows":         {single(op.Op{Kind: op.QuantRows, M: 1 << 17, N: 8}), nil, "131072 rows, want at most 65536"},
		"a conversion":      {graph(op.Op{Kind: op.Copy, M: 3, N: 8}, func(g *op.Graph) { g.Outputs[0].Type = op.F16 }), nil, "types are not converted"},
		"an input twice":    {graph(rows, func(g *op.Graph) { g.Inputs = append(g.Inputs, g.Inputs[0]) }), nil, `value "x" declared twice`},
		"an output twice":   {graph(rows, func(g *op.Graph) { g.Outputs = append(g.Outputs, g.Outputs[0]) }), nil, `value "y" declared twice`},
		"a passed input":    {graph(rows, func(g *op.Graph) { g.Outputs = append(g.Outputs, g.Inputs[0]) }), nil, `output "x" is an input that no node writes`},
		"a norm in place":   {graph(norm, func(g *op.Graph) { g.Outputs, g.Nodes[0].Out = g.Inputs, g.Nodes[0].In }), nil, `value "x" is overwritten, and "n0"`},
		"a reader too late": {late, nil, `value "x" is overwritten, and "n0.div"`},
	} {
		_, err := compile.New().Compile(t.Context(), c.g, c.w, driver.Target{Proc: "npu"})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"npu"`) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want it to mention %q", what, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := compile.New().Compile(ctx, single(good), nil, driver.Target{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: got %v", err)
	}
}
