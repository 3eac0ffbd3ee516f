package ort

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
)

// changed is a model that a test changes.
type changed struct {
	*onnx.Model

	t *testing.T
}

// node returns the node with a name.
func (m changed) node(name string) *onnx.Node {
	m.t.Helper()
	i := slices.IndexFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == name })
	if i < 0 {
		m.t.Fatalf("no node %q", name)
	}
	return &m.Graph.Nodes[i]
}

// initializer returns the initializer with a name.
func (m changed) initializer(name string) *onnx.Tensor {
	m.t.Helper()
	i := slices.IndexFunc(m.Graph.Initializers, func(x onnx.Tensor) bool { return x.Name == name })
	if i < 0 {
		m.t.Fatalf("no initializer %q", name)
	}
	return &m.Graph.Initializers[i]
}

// setInt sets an integer attribute of a node.
func (m changed) setInt(node, attribute string, value int64) {
	attrs := m.node(node).Attrs
	for i := range attrs {
		if attrs[i].Name == attribute {
			attrs[i].I = value
		}
	}
}

// insert appends a node.
func (m changed) insert(n onnx.Node) {
	m.Graph.Nodes = append(m.Graph.Nodes, n)
}

// remove takes away the node with a name.
func (m changed) remove(name string) {
	m.Graph.Nodes = slices.DeleteFunc(m.Graph.Nodes, func(n onnx.Node) bool { return n.Name == name })
}

// say declares that the model was made of a graph.
func (m changed) say(graph *op.Graph) {
	m.t.Helper()
	text, err := json.Marshal(graph)
	if err != nil {
		m.t.Fatal(err)
	}
	i := slices.IndexFunc(m.Props, func(p onnx.Prop) bool { return p.Key == "hetc.graph" })
	m.Props[i].Value = string(text)
}

// toBFloat16 returns a node that rounds a tensor to bfloat16.
func toBFloat16(name, from string) onnx.Node {
	return onnx.Node{
		Name:  name,
		Op:    "Cast",
		In:    []string{from},
		Out:   []string{name + ":"},
		Attrs: []onnx.Attr{onnx.Int("to", 10)},
	}
}

// identity returns a node that copies the first input.
func identity(name string) onnx.Node {
	return onnx.Node{Name: name, Op: "Identity", In: []string{"i0"}, Out: []string{"x"}}
}

// change is a change of a model after which it is refused.
type change struct {
	what   string
	scheme op.Scheme // of the products, where there is a choice
	change func(m changed)
	want   []string // what the error says
}

// refuseChanges changes the model of five chained rows, and expects that verify refuses each change as an error of
// input that says what is wrong.
func refuseChanges(t *testing.T, changes []change) {
	t.Helper()
	for _, c := range changes {
		graph := chained(5, c.scheme, false)
		model := modelOf(t, graph)
		c.change(changed{model, t})

		err := verify(model, graph)
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v", c.what, err)
			continue
		}
		for _, word := range c.want {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not mention %q", c.what, err, word)
			}
		}
	}
}

// refuseArtifacts changes the artifact of a graph, and expects that parse refuses each change.
func refuseArtifacts(t *testing.T, graph *op.Graph, changes []change) {
	t.Helper()
	good := modelOf(t, graph).Marshal()
	if _, err := parse(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		model, err := onnx.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		c.change(changed{model, t})

		_, err = parse(model.Marshal())
		if err == nil {
			t.Errorf("%s: accepted", c.what)
			continue
		}
		for _, word := range c.want {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: got %v, want %q", c.what, err, word)
			}
		}
	}
}

// A product in another precision, with other zero points or scales, is refused, and the error names what and where.
func TestVerifyRefusesProducts(t *testing.T) {
	changes := []change{
		{
			what:   "float32 activations of a 4-bit product",
			scheme: op.A8TQ4B32,
			change: func(m changed) { m.setInt("n2", "accuracy_level", 0) },
			want:   []string{"node 2 (matmul a8t/q4b32)", "accuracy_level=0", "accuracy_level=4"},
		},
		{
			what:   "other blocks",
			scheme: op.A8TQ4B32,
			change: func(m changed) { m.setInt("n2", "block_size", 64) },
			want:   []string{"node 2", "block_size=64"},
		},
		{
			what:   "other bits",
			scheme: op.A8TQ4B128,
			change: func(m changed) { m.setInt("n2", "bits", 8) },
			want:   []string{"node 2", "bits=8"},
		},
		{
			what:   "a left out attribute",
			scheme: op.A8TQ4B128,
			change: func(m changed) { m.node("n2").Attrs = m.node("n2").Attrs[1:] },
			want:   []string{"node 2", "want"},
		},
		{
			what:   "a zero point of rows",
			scheme: op.A8TQ8C,
			change: func(m changed) {
				c := m.initializer(m.node("n2").In[4])
				c.Raw = []byte{127}
			},
			want: []string{"node 2", "=2[]7f", "=2[]80"},
		},
		{
			what:   "a zero point of weights",
			scheme: op.A8TQ8C,
			change: func(m changed) {
				n := m.node("n2")
				n.In = append(n.In, n.In[4])
			},
			want: []string{"node 2", "want"},
		},
		{
			what:   "a scale of rows",
			scheme: op.A8TQ8C,
			change: func(m changed) {
				n := m.node("n2")
				n.In[2] = m.node("n1.div").In[1]
			},
			want: []string{"node 2", "MatMulIntegerToFloat"},
		},
		{
			what:   "a float32 product",
			scheme: op.A8TQ8C,
			change: func(m changed) {
				n := m.node("n2")
				n.Op, n.Domain, n.In = "MatMul", "", n.In[:2]
			},
			want: []string{"node 2", "is MatMul(", "want com.microsoft.MatMulIntegerToFloat("},
		},
		{
			what:   "a bfloat16 product",
			scheme: op.A32W32,
			change: func(m changed) {
				n := m.node("n1")
				n.Op, n.Domain = "FusedMatMul", onnx.Contrib
			},
			want: []string{"node 1 (matmul a32/w32)", "FusedMatMul"},
		},
	}
	refuseChanges(t, changes)
}

// A product of other operands is refused.
func TestVerifyRefusesOperands(t *testing.T) {
	changes := []change{
		{
			what:   "another weight",
			scheme: op.A32W32,
			change: func(m changed) { m.node("n1").In[1] = "w2" },
			want:   []string{"node 1", `reads "w2"`},
		},
		{
			what:   "another weight's scales",
			scheme: op.A8TQ8C,
			change: func(m changed) { m.node("n2").In[3] = "w3.scale" },
			want:   []string{"node 2", `reads "w3.scale"`},
		},
		{
			what:   "operands the other way round",
			scheme: op.A32W32,
			change: func(m changed) { slices.Reverse(m.node("n1").In) },
			want:   []string{"node 1", "want MatMul(v0.0, w1)"},
		},
		{
			what:   "a cast in front",
			scheme: op.A32W32,
			change: func(m changed) {
				product := m.node("n1")
				m.insert(toBFloat16("n1.cast", product.In[0]))
				product.In = []string{"n1.cast:", product.In[1]}
			},
			want: []string{"node 1", "want MatMul(v0.0, w1)"},
		},
	}
	refuseChanges(t, changes)
}

// Rows that are rounded otherwise than their scheme says are refused.
func TestVerifyRefusesRounding(t *testing.T) {
	changes := []change{
		{
			what:   "a missing row scale",
			scheme: op.A8TQ8C,
			change: func(m changed) { m.remove("n2.scale") },
			want:   []string{"node 2", `no node "n2.scale"`},
		},
		{
			what:   "rounding of other rows",
			scheme: op.A8TQ8C,
			change: func(m changed) { m.node("n1").In[0] = "i0" },
			want:   []string{"node 1 (quant_rows)", `reads "i0"`},
		},
		{
			what:   "a coarser scale",
			scheme: op.A8TQ8C,
			change: func(m changed) {
				n := m.node("n1.div")
				n.In[1] = m.node("n1.nan").In[1]
			},
			want: []string{"node 1 (quant_rows)", `"n1.div"`},
		},
		{
			what:   "NaN that does not show",
			scheme: op.A8TQ8C,
			change: func(m changed) {
				n := m.node("n1.scale")
				n.In[1] = n.In[0]
			},
			want: []string{"node 1 (quant_rows)", `"n1.scale"`},
		},
		{
			what:   "rounding along the other axis",
			scheme: op.A8TQ8C,
			change: func(m changed) { m.setInt("n1", "axis", 1) },
			want:   []string{"node 1 (quant_rows)", "axis=1"},
		},
		{
			what:   "a result of another node",
			scheme: op.A8TQ8C,
			change: func(m changed) { m.node("n1").Out[0] = "v2.0" },
			want:   []string{"node 1 (quant_rows)", `writes "v2.0"`},
		},
		{
			what:   "the scales that rows have",
			scheme: op.A8S2Q8C,
			change: func(m changed) {
				x := m.node("n1.holding")
				x.In[1], x.In[2] = x.In[2], x.In[1]
			},
			want: []string{"node 1 (quant_rows)"},
		},
		{
			what:   "a static scale",
			scheme: op.A8SQ8C,
			change: func(m changed) { m.node("n1").In[1] = m.node("n2").In[3] },
			want:   []string{"node 1 (quant_rows)"},
		},
	}
	refuseChanges(t, changes)
}

// Every node of the model belongs to a node of the graph by its name, and none is missing or too many.
func TestVerifyRefusesNodes(t *testing.T) {
	changes := []change{
		{
			what:   "a cast in a norm",
			scheme: op.A32W32,
			change: func(m changed) { m.insert(toBFloat16("n0.cast", "i0")) },
			want:   []string{"node 0 (norm)", `"n0.cast" is "Cast"`},
		},
		{
			what:   "a cast nobody asked for",
			scheme: op.A32W32,
			change: func(m changed) { m.insert(onnx.Node{Name: "cast", Op: "Cast"}) },
			want:   []string{`"cast" (Cast)`, "belongs to no node"},
		},
		{
			what:   "a node of a node too many",
			scheme: op.A32W32,
			change: func(m changed) { m.insert(onnx.Node{Name: "n99", Op: "Add"}) },
			want:   []string{`"n99"`},
		},
		{
			what:   "a node's name",
			scheme: op.A32W32,
			change: func(m changed) { m.node("n1").Name = "n01" },
			want:   []string{`"n01"`},
		},
		{
			what:   "no name",
			scheme: op.A32W32,
			change: func(m changed) { m.node("n1").Name = "" },
			want:   []string{`node ""`},
		},
		{
			what:   "a name twice",
			scheme: op.A32W32,
			change: func(m changed) { m.insert(*m.node("n1")) },
			want:   []string{`"n1"`},
		},
		{
			what:   "a missing product",
			scheme: op.A32W32,
			change: func(m changed) { m.node("n1").Name = "n1.a" },
			want:   []string{"node 1", `no node "n1"`},
		},
		{
			what:   "another function",
			scheme: op.A32W32,
			change: func(m changed) {
				n := m.node("n2.act")
				n.Op, n.Domain = "Relu", ""
			},
			want: []string{"node 2 (glu)", `"Relu"`},
		},
	}
	refuseChanges(t, changes)
}

// Weights have the shapes and types of the graph, and the operators the version that the compiler writes.
func TestVerifyRefusesWeights(t *testing.T) {
	changes := []change{
		{
			what:   "a weight's shape",
			scheme: op.A8TQ8C,
			change: func(m changed) { slices.Reverse(m.initializer("w1").Dims) },
			want:   []string{`initializer "w1"`, "[192 64]", "[64 192]"},
		},
		{
			what:   "a weight's type",
			scheme: op.A8TQ8C,
			change: func(m changed) { m.initializer("w1").Type = onnx.Uint8 },
			want:   []string{`initializer "w1"`, "type 2"},
		},
		{
			what:   "a weight too many",
			scheme: op.A8TQ8C,
			change: func(m changed) {
				x := *m.initializer("w1")
				x.Name = "w9"
				m.Graph.Initializers = append(m.Graph.Initializers, x)
			},
			want: []string{`"w9"`},
		},
		{
			what:   "other operators",
			scheme: op.A8TQ8C,
			change: func(m changed) { m.Opsets[0].Version = 13 },
			want:   []string{"13", "21"},
		},
	}
	refuseChanges(t, changes)
}

// A table is looked up in float32, not in bfloat16.
func TestVerifyRefusesTables(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.Embed, M: 3, K: 7, N: 8, Table: op.F16}, "")
	model := modelOf(t, &graph)
	changed{model, t}.setInt("n0.cast", "to", 16)

	err := verify(model, &graph)
	if err == nil || !strings.Contains(err.Error(), "another type than float32") {
		t.Errorf("a table in bfloat16: %v", err)
	}
}

// estimated is the operator of the artifacts of estimates.
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

// An artifact of an estimate that multiplies something else, or more than codes, is refused before the library sees it.
func TestEstimateArtifactsRefused(t *testing.T) {
	changes := []change{
		{
			what:   "another zero point",
			change: func(m changed) { m.initializer(m.node("n0").In[2]).Raw = []byte{0} },
			want:   []string{"MatMulInteger"},
		},
		{
			what:   "keys that are not transposed",
			change: func(m changed) { m.node("n0.columns").Attrs = nil },
			want:   []string{"perm"},
		},
		{
			what:   "queries of the keys",
			change: func(m changed) { m.node("n0.queries").In[0] = "i1" },
			want:   []string{"n0.queries"},
		},
		{
			what:   "no zero points",
			change: func(m changed) { m.node("n0").In = m.node("n0").In[:2] },
			want:   []string{"MatMulInteger"},
		},
		{
			what: "products in float",
			change: func(m changed) {
				n := m.node("n0")
				n.Op, n.In = "MatMul", n.In[:2]
			},
			want: []string{"want MatMulInteger"},
		},
		{
			what:   "a product of another node",
			change: func(m changed) { m.insert(identity("n1")) },
			want:   []string{`"n1"`},
		},
		{
			what:   "one node too many",
			change: func(m changed) { m.insert(identity("n0.more")) },
			want:   []string{`"n0.more"`},
		},
		{
			what:   "no products",
			change: func(m changed) { m.remove("n0") },
			want:   []string{`no node "n0"`},
		},
		{
			what:   "constant products",
			change: func(m changed) { m.node("n0.shape").In[0] = m.node("n0.shape").In[1] },
			want:   []string{"n0.shape"},
		},
		{
			what: "a weight outside",
			change: func(m changed) {
				m.Graph.Initializers = append(m.Graph.Initializers, onnx.Tensor{
					Name:     "w0",
					Type:     onnx.Float32,
					Dims:     []int64{1, 12},
					External: &onnx.External{Location: "weights", Length: 48},
				})
			},
			want: []string{`initializer "w0"`},
		},
	}
	graph := op.Single(estimated, op.OnnxLayout)
	refuseArtifacts(t, &graph, changes)
}

// An artifact of an estimate whose operands are not those of its launches is refused.
func TestEstimateOperandsRefused(t *testing.T) {
	changes := []change{
		{
			what:   "another input",
			change: func(m changed) { m.Graph.Inputs = append(m.Graph.Inputs, m.Graph.Inputs[0]) },
			want:   []string{"3 inputs"},
		},
		{
			what:   "fewer keys",
			change: func(m changed) { m.Graph.Inputs[1].Dims[0]-- },
			want:   []string{`input "i1"`},
		},
		{
			what:   "products of i64",
			change: func(m changed) { m.Graph.Outputs[0].Type = onnx.Int64 },
			want:   []string{`output "o0"`},
		},
		{
			what: "other heads",
			change: func(m changed) {
				graph := op.Single(estimated, op.OnnxLayout)
				graph.Nodes[0].Op.KVHeads = 4
				m.say(&graph)
			},
			want: []string{"parse graph"},
		},
		{
			what: "no block",
			change: func(m changed) {
				graph := op.Single(estimated, op.OnnxLayout)
				graph.Nodes[0].Op.Block = 0
				m.say(&graph)
			},
			want: []string{"block"},
		},
		{
			what: "a giant context",
			change: func(m changed) {
				graph := op.Single(estimated, op.OnnxLayout)
				graph.Nodes[0].Op.Context = 1 << 40
				m.say(&graph)
			},
			want: []string{"context"},
		},
		{
			what: "a longer context than its keys",
			change: func(m changed) {
				graph := op.Single(estimated, op.OnnxLayout)
				graph.Nodes[0].Op.Context = 97
				m.say(&graph)
			},
			want: []string{"parse graph"},
		},
		{
			what: "a smaller launch",
			change: func(m changed) {
				other := estimated
				other.Context = 32
				graph := op.Single(other, op.OnnxLayout)
				m.say(&graph)
			},
			want: []string{"i1"},
		},
		{
			what: "an estimate beside another operator",
			change: func(m changed) {
				graph := op.Single(estimated, op.OnnxLayout)
				one := op.Value{Name: "z", Type: op.F32, Rows: 1, Cols: 1}
				graph.Inputs = append(graph.Inputs, one)
				one.Name = "y"
				graph.Outputs = append(graph.Outputs, one)
				copies := op.Op{Kind: op.Copy, M: 1, N: 1}
				graph.Nodes = append(graph.Nodes, op.Node{Op: copies, In: []string{"z"}, Out: []string{"y"}})
				m.say(&graph)
			},
		},
	}
	graph := op.Single(estimated, op.OnnxLayout)
	refuseArtifacts(t, &graph, changes)
}

// grouped is the operator of the artifacts of groups: three slots of four rows each.
var grouped = op.Op{Kind: op.GroupMatMul, M: 3 * 4, K: 32, N: 48, Experts: 3, Scheme: op.A8TQ8C}

// An artifact of a group of experts in which a slot has the rows or weights of another one, or in which results are in
// another order, is refused.
func TestGroupArtifactsRefused(t *testing.T) {
	changes := []change{
		{
			what:   "rows of another slot",
			change: func(m changed) { m.node("n0.slot1").In[0] = m.node("n0.slot0").In[0] },
			want:   []string{`"n0.slot1" is`},
		},
		{
			what:   "scales of another slot",
			change: func(m changed) { m.node("n0.slot1.scale").In[1] = m.node("n0.slot0.scale").In[1] },
			want:   []string{`"n0.slot1.scale" is`},
		},
		{
			what:   "an expert in another slot",
			change: func(m changed) { m.node("n0.slot1").In[1] = "w0" },
			want:   []string{`"n0.slot1" is`},
		},
		{
			what:   "scales of another expert",
			change: func(m changed) { m.node("n0.slot1").In[3] = "w0.scale" },
			want:   []string{`"n0.slot1" is`},
		},
		{
			what:   "results in another order",
			change: func(m changed) { slices.Reverse(m.node("n0").In) },
			want:   []string{`"n0" is`},
		},
		{
			what: "a result twice",
			change: func(m changed) {
				n := m.node("n0")
				n.In[1] = n.In[0]
			},
			want: []string{`"n0" is`},
		},
		{
			what:   "results side by side",
			change: func(m changed) { m.node("n0").Attrs[0].I = 1 },
			want:   []string{"axis=1"},
		},
		{
			what: "fewer results",
			change: func(m changed) {
				n := m.node("n0")
				n.In = n.In[:2]
			},
			want: []string{`"n0" is`},
		},
		{
			what:   "columns instead of rows",
			change: func(m changed) { m.node("n0.in0").Attrs[0].I = 1 },
			want:   []string{"axis=1"},
		},
		{
			what:   "rows in another order",
			change: func(m changed) { slices.Reverse(m.node("n0.in0").Out) },
			want:   []string{`"n0.in0" is`},
		},
		{
			what:   "a slot without a product",
			change: func(m changed) { m.remove("n0.slot2") },
			want:   []string{`no node "n0.slot2"`},
		},
		{
			what: "a slot too many",
			change: func(m changed) {
				n := *m.node("n0.slot2")
				n.Name = "n0.slot3"
				m.insert(n)
			},
			want: []string{`"n0.slot3" is`},
		},
	}
	graph := op.Single(grouped, op.OnnxLayout)
	refuseArtifacts(t, &graph, changes)
}

// An artifact of a group that is said to be of other slots or rows is refused.
func TestGroupGraphsRefused(t *testing.T) {
	changes := []change{
		{
			what: "said to be of fewer slots",
			change: func(m changed) {
				other := grouped
				other.Experts = 2
				graph := op.Single(other, op.OnnxLayout)
				m.say(&graph)
			},
		},
		{
			what: "said to be of no slot",
			change: func(m changed) {
				other := grouped
				other.Experts = 0
				graph := op.Single(other, op.OnnxLayout)
				m.say(&graph)
			},
			want: []string{"parse graph"},
		},
		{
			what: "said to be of uneven slots",
			change: func(m changed) {
				other := grouped
				other.Experts = 5
				graph := op.Single(other, op.OnnxLayout)
				m.say(&graph)
			},
			want: []string{"parse graph"},
		},
		{
			what: "said to be of other rows",
			change: func(m changed) {
				other := grouped
				other.M = 2 * 3 * 4
				graph := op.Single(other, op.OnnxLayout)
				m.say(&graph)
			},
			want: []string{`want "i0" u8 [24,32]`},
		},
		{
			what: "a giant number of slots",
			change: func(m changed) {
				other := grouped
				other.Experts, other.M = 1<<20, 1<<20
				graph := op.Single(other, op.OnnxLayout)
				m.say(&graph)
			},
		},
	}
	graph := op.Single(grouped, op.OnnxLayout)
	refuseArtifacts(t, &graph, changes)
}
