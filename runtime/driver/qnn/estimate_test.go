package qnn

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
)

// estimateOp is the operator of the tests of artifacts.
var estimateOp = op.Op{Kind: op.Estimate, M: 40, Heads: 4, KVHeads: 2, HeadDim: 16, Context: 96, KV: op.F32,
	Block: op.SparseBlock}

// estimateArtifact is an artifact of an estimate in all but its binary.
func estimateArtifact(t testing.TB, operator op.Op, heads any) *onnx.Model {
	t.Helper()
	g := op.Single(operator, op.OnnxLayout)
	value := func(name string, v op.Value) onnx.Value {
		return onnx.Value{Name: name, Type: elements[v.Type], Dims: []int64{int64(v.Rows), int64(v.Cols)}}
	}
	launch := operator.Operands(op.F32)
	m := &onnx.Model{IR: onnx.IR, Producer: "test", Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset},
		{Domain: onnx.Contrib, Version: onnx.ContribOpset}}, Graph: onnx.Graph{Name: "estimate",
		Inputs:  []onnx.Value{value("i0", launch[0]), value("i1", launch[1])},
		Outputs: []onnx.Value{value("o0", launch[2])},
		Nodes: []onnx.Node{{Name: "c", Op: "EPContext", Domain: onnx.Contrib, In: []string{"i0", "i1"}, Out: []string{"o0"},
			Attrs: []onnx.Attr{onnx.String("ep_cache_context", "binary"), onnx.Int("embed_mode", 1), onnx.Int("main_context", 1),
				onnx.String("partition_name", "c"), onnx.String("source", ortapi.QNNProvider)}}},
	}}
	text, err := json.Marshal(heads)
	if err != nil {
		t.Fatal(err)
	}
	m.Props = []onnx.Prop{{Key: keyToken, Value: "v2:6:2.51.0:5.51.0:75:57:8:0"}, {Key: keyHeads, Value: string(text)}}
	a, err := artifact(g, m.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// An artifact of an estimate whose operands, scales or binary are not its own is refused before the library sees it.
func TestEstimateArtifactsRefused(t *testing.T) {
	heads := op.SparseHeads(slices.Repeat([]op.SparseHead{{QueryScale: 0.1, KeyScale: 0.2, Share: 0.3}}, estimateOp.Heads))
	good := estimateArtifact(t, estimateOp, heads).Marshal()
	parsed, err := parse(good)
	if err != nil || len(parsed.heads) != len(heads) {
		t.Fatalf("got %v", err)
	}
	prop := func(m *onnx.Model, key, value string) {
		m.Props[slices.IndexFunc(m.Props, func(p onnx.Prop) bool { return p.Key == key })].Value = value
	}
	of := func(m *onnx.Model, change func(o *op.Op)) {
		other := estimateOp
		change(&other)
		g := op.Single(other, op.OnnxLayout)
		text, err := json.Marshal(&g)
		if err != nil {
			t.Fatal(err)
		}
		prop(m, keyGraph, string(text))
	}
	for what, c := range map[string]struct {
		change func(m *onnx.Model)
		want   string
	}{
		"no scales":            {func(m *onnx.Model) { prop(m, keyHeads, "") }, "cannot be read"},
		"scales of text":       {func(m *onnx.Model) { prop(m, keyHeads, `"heads"`) }, "cannot be read"},
		"an endless scale":     {func(m *onnx.Model) { prop(m, keyHeads, "[1e99]") }, "cannot be read"},
		"null":                 {func(m *onnx.Model) { prop(m, keyHeads, "null") }, "0 numbers, want 12"},
		"too few scales":       {func(m *onnx.Model) { prop(m, keyHeads, "[1,1,1]") }, "3 numbers, want 12"},
		"a scale of zero":      {func(m *onnx.Model) { prop(m, keyHeads, "[0,1,1,1,1,1,1,1,1,1,1,1]") }, "scale of queries is 0"},
		"a negative scale":     {func(m *onnx.Model) { prop(m, keyHeads, "[1,-1,1,1,1,1,1,1,1,1,1,1]") }, "scale of keys is -1"},
		"a negative share":     {func(m *onnx.Model) { prop(m, keyHeads, "[1,1,-1,1,1,1,1,1,1,1,1,1]") }, "share of positions is -1"},
		"queries in float":     {func(m *onnx.Model) { m.Graph.Inputs[0].Type = onnx.Float32 }, "input"},
		"fewer keys":           {func(m *onnx.Model) { m.Graph.Inputs[1].Dims[0]-- }, "input"},
		"products of codes":    {func(m *onnx.Model) { m.Graph.Outputs[0].Type = onnx.Int32 }, "output"},
		"keys not read":        {func(m *onnx.Model) { m.Graph.Nodes[0].In = []string{"i0", "nothing"} }, "comes from no input"},
		"queries as products":  {func(m *onnx.Model) { m.Graph.Nodes[0].Out[0] = "x"; m.Graph.Outputs[0].Name = "i0" }, "does not come"},
		"products on the CPU":  {func(m *onnx.Model) { m.Graph.Nodes[0].Op, m.Graph.Nodes[0].Domain = "MatMulInteger", "" }, "which the CPU would compute"},
		"another estimate":     {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Context = 32 }) }, "input"},
		"more heads":           {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Heads, o.KVHeads = 8, 4 }) }, "12 numbers, want 24"},
		"no block":             {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Block = 0 }) }, "block"},
		"attention, compiled":  {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Kind, o.Block = op.Attention, 0 }) }, "uses the cache"},
		"a giant context":      {func(m *onnx.Model) { of(m, func(o *op.Op) { o.Context = 1 << 40 }) }, "bad type or shape"},
		"another cache's type": {func(m *onnx.Model) { of(m, func(o *op.Op) { o.KV = "f64" }) }, "kv"},
	} {
		m, err := onnx.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		c.change(m)
		if _, err := parse(m.Marshal()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
}
