package qnn

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
)

// estimated is the operator of the tests of artifacts.
var estimated = op.Op{
	Kind:    op.Estimate,
	M:       40,
	Heads:   4,
	KVHeads: 2,
	HeadDim: 16,
	Context: 96,
	KV:      op.F32,
	Block:   op.SparseBlock,
}

// estimateArtifact is an artifact of the estimate in all but its binary. All heads have one scale.
func estimateArtifact(t testing.TB) []byte {
	t.Helper()
	value := func(name string, v op.Value) onnx.Value {
		return onnx.Value{Name: name, Type: elements[v.Type], Dims: []int64{int64(v.Rows), int64(v.Cols)}}
	}
	launch := estimated.Operands(op.F32)
	m := &onnx.Model{
		IR:       onnx.IR,
		Producer: "test",
		Opsets: []onnx.OpsetID{
			{Domain: "", Version: onnx.Opset},
			{Domain: onnx.Contrib, Version: onnx.ContribOpset},
		},
		Graph: onnx.Graph{
			Name:    "estimate",
			Inputs:  []onnx.Value{value("i0", launch[0]), value("i1", launch[1])},
			Outputs: []onnx.Value{value("o0", launch[2])},
			Nodes:   []onnx.Node{fakeContext([]string{"i0", "i1"}, []string{"o0"})},
		},
	}
	one := op.SparseHead{QueryScale: 0.1, KeyScale: 0.2, Share: 0.3}
	heads, err := json.Marshal(op.SparseHeads(slices.Repeat([]op.SparseHead{one}, estimated.Heads)))
	if err != nil {
		t.Fatal(err)
	}
	m.Props = []onnx.Prop{{Key: keyToken, Value: fakeToken}, {Key: keyHeads, Value: string(heads)}}
	a, err := artifact(op.Single(estimated, op.OnnxLayout), m.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	return a.Marshal()
}

// say declares that the artifact was compiled from the graph of an operator.
func say(t *testing.T, m *onnx.Model, operator op.Op) {
	t.Helper()
	graph := op.Single(operator, op.OnnxLayout)
	text, err := json.Marshal(&graph)
	if err != nil {
		t.Fatal(err)
	}
	setProp(m, keyGraph, string(text))
}

// An estimate has three numbers for each head: the scales of its queries and keys, and the share of positions.
func TestEstimateHeads(t *testing.T) {
	m, err := parse(estimateArtifact(t))
	if err != nil || len(m.heads) != 3*estimated.Heads {
		t.Fatalf("got %+v, %v", m, err)
	}
}

// An artifact of an estimate whose scales are missing or senseless is refused before the library sees it.
func TestEstimateHeadsRefused(t *testing.T) {
	refuseChanges(t, estimateArtifact(t), []change{
		{
			what:   "no scales",
			change: func(m *onnx.Model) { setProp(m, keyHeads, "") },
			want:   "cannot be read",
		},
		{
			what:   "scales of text",
			change: func(m *onnx.Model) { setProp(m, keyHeads, `"heads"`) },
			want:   "cannot be read",
		},
		{
			what:   "an endless scale",
			change: func(m *onnx.Model) { setProp(m, keyHeads, "[1e99]") },
			want:   "cannot be read",
		},
		{
			what:   "null",
			change: func(m *onnx.Model) { setProp(m, keyHeads, "null") },
			want:   "0 numbers, want 12",
		},
		{
			what:   "too few scales",
			change: func(m *onnx.Model) { setProp(m, keyHeads, "[1,1,1]") },
			want:   "3 numbers, want 12",
		},
		{
			what:   "a scale of zero",
			change: func(m *onnx.Model) { setProp(m, keyHeads, "[0,1,1,1,1,1,1,1,1,1,1,1]") },
			want:   "scale of queries is 0",
		},
		{
			what:   "a negative scale",
			change: func(m *onnx.Model) { setProp(m, keyHeads, "[1,-1,1,1,1,1,1,1,1,1,1,1]") },
			want:   "scale of keys is -1",
		},
		{
			what:   "a negative share",
			change: func(m *onnx.Model) { setProp(m, keyHeads, "[1,1,-1,1,1,1,1,1,1,1,1,1]") },
			want:   "share of positions is -1",
		},
	})
}

// An artifact of an estimate whose operands are not those of its launches is refused.
func TestEstimateOperandsRefused(t *testing.T) {
	refuseChanges(t, estimateArtifact(t), []change{
		{
			what:   "queries in float",
			change: func(m *onnx.Model) { m.Graph.Inputs[0].Type = onnx.Float32 },
			want:   "input",
		},
		{
			what:   "fewer keys",
			change: func(m *onnx.Model) { m.Graph.Inputs[1].Dims[0]-- },
			want:   "input",
		},
		{
			what:   "products of codes",
			change: func(m *onnx.Model) { m.Graph.Outputs[0].Type = onnx.Int32 },
			want:   "output",
		},
		{
			what:   "keys not read",
			change: func(m *onnx.Model) { m.Graph.Nodes[0].In = []string{"i0", "nothing"} },
			want:   "comes from no input",
		},
		{
			what: "queries as products",
			change: func(m *onnx.Model) {
				m.Graph.Nodes[0].Out[0] = "x"
				m.Graph.Outputs[0].Name = "i0"
			},
			want: "does not come",
		},
		{
			what:   "products on the CPU",
			change: func(m *onnx.Model) { m.Graph.Nodes[0].Op, m.Graph.Nodes[0].Domain = "MatMulInteger", "" },
			want:   "which the CPU would compute",
		},
	})
}

// An artifact that says it is of another estimate is refused.
func TestEstimateGraphsRefused(t *testing.T) {
	refuseChanges(t, estimateArtifact(t), []change{
		{
			what: "another estimate",
			change: func(m *onnx.Model) {
				other := estimated
				other.Context = 32
				say(t, m, other)
			},
			want: "input",
		},
		{
			what: "more heads",
			change: func(m *onnx.Model) {
				other := estimated
				other.Heads, other.KVHeads = 8, 4
				say(t, m, other)
			},
			want: "12 numbers, want 24",
		},
		{
			what: "no block",
			change: func(m *onnx.Model) {
				other := estimated
				other.Block = 0
				say(t, m, other)
			},
			want: "block",
		},
		{
			what: "attention, compiled",
			change: func(m *onnx.Model) {
				other := estimated
				other.Kind, other.Block = op.Attention, 0
				say(t, m, other)
			},
			want: "uses the cache",
		},
		{
			what: "a giant context",
			change: func(m *onnx.Model) {
				other := estimated
				other.Context = 1 << 40
				say(t, m, other)
			},
			want: "bad type or shape",
		},
		{
			what: "another cache's type",
			change: func(m *onnx.Model) {
				other := estimated
				other.KV = "f64"
				say(t, m, other)
			},
			want: "kv",
		},
	})
}
