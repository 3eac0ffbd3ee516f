package ort

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
)

// verify refuses a model that does not compute its graph in the graph's precision. Every ONNX node belongs to a node of
// the graph by its name ("n2", "n2.scale"). It may read only that node's operands, constants and intermediate results,
// and only certain operators may stand there. For products, and the quantisation of the rows that enter them, the ONNX
// nodes that hetc's compiler writes are built again and compared: operators, attributes, zero points, order of
// operands. So nothing can be cast, rounded or replaced on the way.
func verify(m *onnx.Model, graph *op.Graph) error {
	check := verifier{m: m, g: graph, consts: map[string]string{}, now: map[string]string{}, last: map[string]int{},
		static: map[string]string{}}
	want := []onnx.OpsetID{{Domain: "", Version: onnx.Opset}, {Domain: onnx.Contrib, Version: onnx.ContribOpset}}
	if m.IR != onnx.IR || !slices.Equal(m.Opsets, want) {
		return diag.New(diag.ClassInput, "the model is written for ir %d and operators %v, want %d and %v", m.IR,
			m.Opsets, onnx.IR, want)
	}
	if err := check.initializers(); err != nil {
		return err
	}
	for i, value := range graph.Inputs {
		check.now[value.Name] = input(i)
	}
	for i, node := range graph.Nodes {
		for _, name := range node.Out {
			check.last[name] = i
		}
	}
	nodes, err := check.nodes()
	if err != nil {
		return err
	}
	if operator := graph.Estimate(); operator != nil {
		want := expected{v: &check}
		want.estimate(operator)
		return want.compare(nodes[0])
	}
	for i := range graph.Nodes {
		if err := check.node(i, nodes[i]); err != nil {
			node := &graph.Nodes[i]
			return diag.New(diag.ClassInput, "node %d (%s): %w", i,
				strings.TrimSpace(fmt.Sprintf("%s %s", node.Op.Kind, node.Op.Scheme)), err)
		}
	}
	return nil
}

// verifier walks through the graph's nodes in order, and tracks which tensor holds each value.
type verifier struct {
	m      *onnx.Model
	g      *op.Graph
	consts map[string]string // constant -> what it holds
	now    map[string]string // value -> the tensor that it is at this point
	last   map[string]int    // value -> the last node that writes it
	checks int
	static map[string]string // tensor of row scales -> the weight that all of them are
}

// initializers checks that weights are declared in the shapes in which the operators read them, and
// collects constants.
func (v *verifier) initializers() error {
	want := map[string]onnx.Tensor{}
	if v.g.Estimate() == nil { // the scales of an estimate are the driver's
		for j, spec := range v.g.Weights {
			values, scales := v.tensors(spec)
			want[weightName(j)] = values
			if scales.Dims != nil {
				want[weightName(j)+".scale"] = scales
			}
		}
	}
	for _, given := range v.m.Graph.Initializers {
		if given.External == nil {
			v.consts[given.Name] = literal(given)
			continue
		}
		expected, ok := want[given.Name]
		if !ok || expected.Type != given.Type || !slices.Equal(expected.Dims, given.Dims) {
			return diag.New(diag.ClassInput, "initializer %q of the model is of type %d and shape %v, want %d and %v",
				given.Name, given.Type, given.Dims, expected.Type, expected.Dims)
		}
	}
	return nil
}

// tensors returns the type and shape of a weight's values, and of its scales where it has some: as plain rows, as a
// matrix, as kernels of convolutions, or in blocks of 4-bit codes.
func (v *verifier) tensors(spec op.WeightSpec) (values, scales onnx.Tensor) {
	rows, cols := int64(spec.K), int64(spec.N)
	columnScales := onnx.Tensor{Type: onnx.Float32, Dims: []int64{cols}}
	// reads reports whether a node of a sort reads the weight as its first one.
	reads := func(sort func(o *op.Op) bool) bool {
		return slices.ContainsFunc(v.g.Nodes, func(n op.Node) bool { return sort(&n.Op) && n.W[0] == spec.Name })
	}
	convolved := func() bool { return reads(func(o *op.Op) bool { return o.Form.Class() == op.Conv }) }
	switch {
	case spec.Layout == op.RowsLayout && rows == 1 && !reads(func(o *op.Op) bool { return o.Kind == op.Embed }):
		return onnx.Tensor{Type: elements[op.Type(spec.Scheme)], Dims: []int64{cols}}, scales
	case spec.Layout == op.RowsLayout:
		return onnx.Tensor{Type: elements[op.Type(spec.Scheme)], Dims: []int64{rows, cols}}, scales
	case spec.Scheme == "w32" && convolved():
		return onnx.Tensor{Type: onnx.Float32, Dims: []int64{rows, cols, 1, 1}}, scales
	case spec.Scheme == "q8c" && convolved():
		return onnx.Tensor{Type: onnx.Uint8, Dims: []int64{cols, rows, 1, 1}}, columnScales
	case spec.Scheme == "w32":
		return onnx.Tensor{Type: onnx.Float32, Dims: []int64{rows, cols}}, scales
	case spec.Scheme == "q8c":
		return onnx.Tensor{Type: onnx.Int8, Dims: []int64{rows, cols}}, columnScales
	}
	block := int64(op.Scheme("a8t/" + spec.Scheme).BlockK())
	blocks := (rows + block - 1) / block
	return onnx.Tensor{Type: onnx.Uint8, Dims: []int64{cols, blocks, block / 2}},
		onnx.Tensor{Type: onnx.Float32, Dims: []int64{cols, blocks}}
}

// weightName returns the name of the initializer of weight j.
func weightName(j int) string { return fmt.Sprintf("w%d", j) }

// literal returns a constant in a short form: type, shape and bytes, of which a repeated element is
// written once.
func literal(t onnx.Tensor) string {
	raw, size := t.Raw, int(t.Type.Bytes(1))
	if len(raw) > size && bytes.Equal(raw[size:], raw[:len(raw)-size]) {
		raw = raw[:size]
	}
	return fmt.Sprintf("=%d%v%x", t.Type, t.Dims, raw)
}

// nodes groups the model's nodes by the graph's node that they belong to.
func (v *verifier) nodes() ([][]onnx.Node, error) {
	out := make([][]onnx.Node, len(v.g.Nodes))
	seen := map[string]bool{}
	for _, node := range v.m.Graph.Nodes {
		number, _, _ := strings.Cut(strings.TrimPrefix(node.Name, "n"), ".")
		i, err := strconv.Atoi(number)
		if err != nil || i < 0 || i >= len(out) || nodeName(i, "") != "n"+number || node.Name[0] != 'n' ||
			seen[node.Name] {
			return nil, diag.New(diag.ClassInput, "node %q (%s) of the model belongs to no node of the graph",
				node.Name, node.Op)
		}
		seen[node.Name] = true
		out[i] = append(out[i], node)
	}
	return out, nil
}

// nodeName returns the name of a node that stands for node i of the graph; the main one has no suffix.
func nodeName(i int, suffix string) string {
	if suffix == "" {
		return fmt.Sprintf("n%d", i)
	}
	return fmt.Sprintf("n%d.%s", i, suffix)
}

// node checks the ONNX nodes that stand for node i of the graph.
func (v *verifier) node(i int, nodes []onnx.Node) error {
	// From names of the graph to tensors of the model: v.now has the tensor that holds a value at this point, which is
	// another one each time the value is written.
	node := &v.g.Nodes[i]
	var in, weights, out []string
	for _, name := range node.In {
		in = append(in, v.now[name])
	}
	for _, name := range node.W {
		weights = append(weights, weightName(slices.IndexFunc(v.g.Weights,
			func(s op.WeightSpec) bool { return s.Name == name })))
	}
	// the tensors of its results: outputs of the model, scales of a check, or values in between
	for number, name := range node.Out {
		tensor := fmt.Sprintf("v%d.%d", i, number)
		j := slices.IndexFunc(v.g.Outputs, func(x op.Value) bool { return x.Name == name })
		switch {
		case j >= 0 && v.last[name] == i:
			tensor = output(j)
		case node.Op.Kind == op.QuantRows && number == 1:
			tensor = fmt.Sprintf("c%d", v.checks)
			v.checks++
		}
		out = append(out, tensor)
		v.now[name] = tensor
	}
	if err := v.ownOperands(i, nodes, in, weights, out); err != nil {
		return err
	}
	want := expected{v: v, i: i}
	switch node.Op.Kind {
	case op.QuantRows:
		want.quantRows(node.Op, in[0], weights, out)
		if node.Op.Static && node.Op.Scales == 0 {
			v.static[out[1]] = weights[0]
		}
	case op.MatMul:
		want.matMul(node.Op, in, weights, out[0])
	case op.GroupMatMul:
		want.group(node.Op, in, weights, out[0])
	default:
		return v.allowed(node.Op, nodes)
	}
	return want.compare(nodes)
}

// ownOperands checks that the ONNX nodes of node i read and write its own operands and results, constants, and values
// in between, whose names begin with the node's. So no other node can reach them, and the node itself is among them.
func (v *verifier) ownOperands(i int, nodes []onnx.Node, in, weights, out []string) error {
	own := nodeName(i, "") + "."
	// An operand that is left out has no name.
	reads := append(slices.Clone(in), "")
	for _, name := range in {
		if one := v.static[name]; one != "" {
			reads = append(reads, one)
		}
	}
	for _, name := range weights {
		reads = append(reads, name, name+".scale")
	}
	main := false
	for _, node := range nodes {
		main = main || node.Name == nodeName(i, "")
		for _, name := range node.In {
			if _, constant := v.consts[name]; !constant && !strings.HasPrefix(name, own) &&
				!slices.Contains(reads, name) {
				return diag.New(diag.ClassInput, "%q (%s) reads %q, which is no operand of it", node.Name, node.Op,
					name)
			}
		}
		for _, name := range node.Out {
			if !strings.HasPrefix(name, own) && !slices.Contains(out, name) {
				return diag.New(diag.ClassInput, "%q (%s) writes %q, which is no result of it", node.Name, node.Op,
					name)
			}
		}
	}
	if !main {
		return diag.New(diag.ClassInput, "the model has no node %q", nodeName(i, ""))
	}
	return nil
}

// allowed checks kinds that compute in float32 throughout: only their operators may occur, and
// casts only to float32.
func (v *verifier) allowed(o op.Op, nodes []onnx.Node) error {
	fine := operators[o.Kind]
	if o.Act != "" {
		fine = append(slices.Clone(fine), functions[o.Act]...)
	}
	for _, node := range nodes {
		if !slices.Contains(fine, node.Domain+":"+node.Op) {
			return diag.New(diag.ClassInput, "%q is %q of %q, which does not belong to it", node.Name, node.Op,
				node.Domain)
		}
		if node.Op == "Cast" && !reflect.DeepEqual(node.Attrs, []onnx.Attr{onnx.Int("to", int64(onnx.Float32))}) {
			return diag.New(diag.ClassInput, "%q converts to another type than float32", node.Name)
		}
	}
	return nil
}

// operators are the ONNX operators that may stand for a kind, as domain:operator.
var operators = map[op.Kind][]string{
	op.Embed:     {":Gather", ":Reshape", ":Cast", ":Mul"},
	op.Norm:      {":SimplifiedLayerNormalization"},
	op.LayerNorm: {":LayerNormalization"},
	op.GLU:       {":Reshape", ":Split", ":Mul"},
	op.Gate:      {":Neg", ":Exp", ":Add", ":Div"},
	op.Softcap:   {":Div", ":Tanh", ":Mul"},
	op.Clip:      {":Clip"},
	op.Add:       {":Add"},
	op.Copy:      {":Identity"},
}

// functions are the ONNX operators that may stand for an activation function.
var functions = map[string][]string{
	op.SiLU:     {onnx.Contrib + ":QuickGelu", ":Sigmoid", ":Mul"},
	op.GELU:     {":Gelu", ":Max"},
	op.GELUTanh: {":Gelu", ":Max"},
	op.ReLU:     {":Relu"},
}
