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
	if want := []onnx.OpsetID{{Domain: "", Version: onnx.Opset},
		{Domain: onnx.Contrib, Version: onnx.ContribOpset}}; m.IR != onnx.IR || !slices.Equal(m.Opsets, want) {
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
	k, cols := int64(spec.K), int64(spec.N)
	columnScales := onnx.Tensor{Type: onnx.Float32, Dims: []int64{cols}}
	// reads reports whether a node of a sort reads the weight as its first one.
	reads := func(sort func(o *op.Op) bool) bool {
		return slices.ContainsFunc(v.g.Nodes, func(n op.Node) bool { return sort(&n.Op) && n.W[0] == spec.Name })
	}
	convolved := func() bool { return reads(func(o *op.Op) bool { return o.Form.Class() == op.Conv }) }
	switch {
	case spec.Layout == op.RowsLayout && k == 1 && !reads(func(o *op.Op) bool { return o.Kind == op.Embed }):
		return onnx.Tensor{Type: elements[op.Type(spec.Scheme)], Dims: []int64{cols}}, scales
	case spec.Layout == op.RowsLayout:
		return onnx.Tensor{Type: elements[op.Type(spec.Scheme)], Dims: []int64{k, cols}}, scales
	case spec.Scheme == "w32" && convolved():
		return onnx.Tensor{Type: onnx.Float32, Dims: []int64{k, cols, 1, 1}}, scales
	case spec.Scheme == "q8c" && convolved():
		return onnx.Tensor{Type: onnx.Uint8, Dims: []int64{cols, k, 1, 1}}, columnScales
	case spec.Scheme == "w32":
		return onnx.Tensor{Type: onnx.Float32, Dims: []int64{k, cols}}, scales
	case spec.Scheme == "q8c":
		return onnx.Tensor{Type: onnx.Int8, Dims: []int64{k, cols}}, columnScales
	}
	block := int64(op.Scheme("a8t/" + spec.Scheme).BlockK())
	blocks := (k + block - 1) / block
	return onnx.Tensor{Type: onnx.Uint8, Dims: []int64{cols, blocks, block / 2}},
		onnx.Tensor{Type: onnx.Float32, Dims: []int64{cols, blocks}}
}

// weightName and nodeName are the names that the compiler gives initializers and nodes.
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

// expected builds the ONNX nodes that must stand for node i of the graph. Constants are written as
// what they hold.
type expected struct {
	v    *verifier
	i    int
	part string // of the node, where it consists of several that are alike; "": the whole
	want []onnx.Node
}

// name is that of something of the node, or of its part.
func (e *expected) name(suffix string) string {
	if e.part != "" && suffix != "" {
		suffix = "." + suffix
	}
	return nodeName(e.i, e.part+suffix)
}

// add expects a node with these operands, results and attributes.
func (e *expected) add(suffix, domain, kind string, in, out []string, attrs ...onnx.Attr) {
	e.want = append(e.want, onnx.Node{Name: e.name(suffix), Op: kind, Domain: domain, In: in, Out: out,
		Attrs: attrs})
}

// do is add for an intermediate result, whose name it returns.
func (e *expected) do(suffix, domain, kind string, in []string, attrs ...onnx.Attr) string {
	out := e.name(suffix + ":")
	e.add(suffix, domain, kind, in, list(out), attrs...)
	return out
}

// list returns a list of operands, short to write.
func list(s ...string) []string { return s }

// float and ints are constants as literal writes them: a scalar, and a vector.
func float(x float32) string { return literal(onnx.Float32s("", nil, x)) }

func ints(x ...int64) string { return literal(onnx.Int64s("", x...)) }

// codes returns a constant of n 8-bit numbers x, a scalar for n = 0.
func codes(n int, x byte) string {
	tensor := onnx.Tensor{Type: onnx.Uint8, Dims: []int64{int64(n)}, Raw: bytes.Repeat([]byte{x}, max(1, n))}
	if n == 0 {
		tensor.Dims = nil
	}
	return literal(tensor)
}

// quantRows expects the quantiser: the scale of a row is its largest magnitude over 127, and codes
// are the nearest multiples, ties to even. Adding 0 times the sum of the row makes the scale NaN
// where an element is NaN or infinite. With static scales, a row takes the one scale, or the
// smallest of several that covers it.
func (e *expected) quantRows(operator op.Op, input string, weights, out []string) {
	rows, axis, keep := operator.Rows(), ints(1), onnx.Int("keepdims", 1)
	nan := e.do("nan", "", "Mul", list(e.do("sum", "", "ReduceSum", list(input, axis), keep), float(0)))
	if operator.Static && operator.Scales == 0 {
		e.add("scale", "", "Sum", list(nan, weights[0]), out[1:])
		levels := e.do("", "", "QuantizeLinear", list(input, weights[0], codes(1, 128)))
		e.add("clip", "", "Clip", list(levels, codes(0, 1)), out[:1])
		return
	}
	var top string
	if rows == 1 {
		top = e.do("top", "", "ReduceMax", list(e.do("abs", "", "Abs", list(input)), axis), keep)
	} else {
		low := e.do("neg", "", "Neg", list(e.do("min", "", "ReduceMin", list(input, axis), keep)))
		top = e.do("top", "", "Max", list(e.do("max", "", "ReduceMax", list(input, axis), keep), low))
	}
	scale := e.do("div", "", "Div", list(top, float(127)))
	// the smallest scale that covers the row, or else the largest
	if operator.Static {
		each := e.do("each", "", "Sum", list(nan, weights[0]))
		largest := e.do("largest", "", "ReduceMax", list(each, axis), keep)
		holding := e.do("holding", "", "Where", list(e.do("holds", "", "GreaterOrEqual", list(each, scale)), each,
			largest))
		scale = e.do("smallest", "", "ReduceMin", list(holding, axis), keep)
		e.add("scale", "", "Add", list(scale, nan), out[1:])
		levels := e.do("", "", "QuantizeLinear", list(input,
			e.do("rows", "", "Reshape", list(scale, ints(int64(rows)))), codes(rows, 128)), onnx.Int("axis", 0))
		e.add("clip", "", "Clip", list(levels, codes(0, 1)), out[:1])
		return
	}
	e.add("scale", "", "Add", list(scale, nan), out[1:])
	// a row of zeros has scale 0, by which nothing can be divided
	by := e.do("rows", "", "Reshape", list(e.do("tiny", "", "Max", list(scale, float(0x1p-149))), ints(int64(rows))))
	e.add("", "", "QuantizeLinear", list(input, by, codes(rows, 128)), out[:1], onnx.Int("axis", 0))
}

// estimate expects the products of codes of queries and keys, and nothing else: what they are worth the driver
// computes.
func (e *expected) estimate(operator *op.Op) {
	launch, heads, dim := operator.Launch(), int64(operator.KVHeads), int64(operator.HeadDim)
	queries := e.do("queries", "", "Reshape", list(input(0), ints(heads, int64(launch.Rows), dim)))
	keys := e.do("keys", "", "Reshape", list(input(1), ints(heads, int64(launch.Keys), dim)))
	columns := e.do("columns", "", "Transpose", list(keys), onnx.Ints("perm", 0, 2, 1))
	products := e.do("", "", "MatMulInteger", list(queries, columns, codes(0, 128), codes(0, 128)))
	e.add("shape", "", "Reshape", list(products, ints(heads*int64(launch.Rows), int64(launch.Keys))), list(output(0)))
}

// group expects a product for each matrix, of the rows that belong to it.
func (e *expected) group(operator op.Op, in, weights []string, output string) {
	one, count := operator.Products()
	if count == 1 {
		e.matMul(one, in, weights, output)
		return
	}
	parts := make([][]string, count)
	for i, tensor := range in {
		var pieces []string
		for slot := range count {
			pieces = append(pieces, e.name(fmt.Sprintf("in%d.%d:", i, slot)))
			parts[slot] = append(parts[slot], pieces[slot])
			if scale := e.v.static[tensor]; scale != "" {
				e.v.static[pieces[slot]] = scale
			}
		}
		e.add(fmt.Sprintf("in%d", i), "", "Split", list(tensor), pieces, onnx.Int("axis", 0),
			onnx.Int("num_outputs", int64(count)))
	}
	var results []string
	for slot := range count {
		e.part = fmt.Sprintf("slot%d", slot)
		results = append(results, e.name("result:"))
		e.matMul(one, parts[slot], weights[slot:slot+1], results[slot])
	}
	e.part = ""
	e.add("", "", "Concat", results, list(output), onnx.Int("axis", 0))
}

// matMul expects the one operator that multiplies in a scheme, with scaling and bias around it.
func (e *expected) matMul(operator op.Op, in, weights []string, output string) {
	product := e.name("product:")
	bias := func() {
		if !operator.Bias {
			return
		}
		kind := "Add"
		if operator.N == 1 {
			kind = "Sum"
		}
		e.add("bias", "", kind, list(product, weights[1]), list(output))
	}
	switch operator.Scheme {
	case op.A32W32:
		if !operator.Bias {
			product = output
		}
		e.product(operator, in[0], weights[0], product)
		bias()
	case op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C, op.A8S4Q8C, op.A8OQ8C:
		if operator.Form.Class() == op.Conv {
			product = e.convolution(operator, in, weights[0], output)
			bias()
			return
		}
		// One scale for all rows goes into the operator, which takes a scalar; a scale for each row has to be
		// multiplied on behind it, before the bias is added.
		operands := list(in[0], weights[0], float(1), weights[0]+".scale", codes(0, 128))
		if one := e.v.static[in[1]]; one != "" || operator.M == 1 {
			if one == "" {
				one = e.do("rows", "", "Reshape", list(in[1], ints(1)))
			}
			operands[2] = one
			if operator.Bias {
				operands = append(operands, "", weights[1])
			}
			e.add("", onnx.Contrib, "MatMulIntegerToFloat", operands, list(output))
			return
		}
		e.add("", onnx.Contrib, "MatMulIntegerToFloat", operands, list(product))
		scaled := output
		if operator.Bias {
			scaled = e.name("scaled:")
		}
		e.add("scale", "", "Mul", list(product, in[1]), list(scaled))
		product = scaled
		bias()
	default:
		// Weights of 4 bits: the operator takes float32 and rounds its input again to 8 bits (accuracy_level 4).
		floats := e.do("float", "", "DequantizeLinear",
			list(in[0], e.do("rows", "", "Reshape", list(in[1], ints(int64(operator.M)))), codes(operator.M, 128)),
			onnx.Int("axis", 0))
		operands := list(floats, weights[0], weights[0]+".scale")
		if operator.Bias {
			operands = append(operands, "", "", weights[1])
		}
		e.add("", onnx.Contrib, "MatMulNBits", operands, list(output), onnx.Int("K", int64(operator.K)),
			onnx.Int("N", int64(operator.N)), onnx.Int("accuracy_level", 4), onnx.Int("bits", 4),
			onnx.Int("block_size", int64(operator.Scheme.BlockK())))
	}
}

// convolution expects a product of 8-bit codes as a convolution of integers with kernels of 1x1, and scales behind it.
// It returns what a bias is added to.
func (e *expected) convolution(o op.Op, in []string, weight, output string) string {
	width, height, _ := o.Form.Image()
	wide, k, cols := int64(o.M), int64(o.K), int64(o.N)
	columns := e.do("columns", "", "Transpose", list(in[0]), onnx.Ints("perm", 1, 0))
	image := e.do("image", "", "Reshape", list(columns, ints(1, k, int64(height), int64(width))))
	sums := e.do("", "", "ConvInteger", list(image, weight, codes(0, 128), codes(0, 128)), onnx.Ints("kernel_shape", 1, 1))
	flat := e.do("shape", "", "Reshape", list(sums, ints(cols, wide)))
	exact := e.do("rows", "", "Transpose", list(flat), onnx.Ints("perm", 1, 0))
	floats := e.do("float", "", "Cast", list(exact), onnx.Int("to", int64(onnx.Float32)))
	unscaled := e.do("product", "", "Mul", list(floats, weight+".scale"))
	scaled := output
	if o.Bias {
		scaled = e.name("scaled:")
	}
	e.add("scale", "", "Mul", list(unscaled, in[1]), list(scaled))
	return scaled
}

// product expects a product in float32 in the operator's form. A convolution is a transposed one,
// whose kernels of 1x1 make it a product.
func (e *expected) product(o op.Op, input, weight, output string) {
	wide, k, cols := int64(o.M), int64(o.K), int64(o.N)
	switch width, height, conv := o.Form.Image(); {
	case o.Form == op.Swapped:
		columns := e.name("pixels:")
		e.add("", "", "Gemm", list(weight, input), list(columns), onnx.Int("transA", 1), onnx.Int("transB", 1))
		image := e.do("image", "", "Reshape", list(columns, ints(cols, wide, 1)))
		rows := e.do("rows", "", "Transpose", list(image), onnx.Ints("perm", 1, 0, 2))
		e.add("shape", "", "Reshape", list(rows, ints(wide, cols)), list(output))
	case conv:
		columns := e.do("columns", "", "Transpose", list(input), onnx.Ints("perm", 1, 0))
		image := e.do("image", "", "Reshape", list(columns, ints(1, k, int64(height), int64(width))))
		pixels := e.name("pixels:")
		e.add("", "", "ConvTranspose", list(image, weight), list(pixels), onnx.Ints("kernel_shape", 1, 1))
		flat := e.do("shape", "", "Reshape", list(pixels, ints(cols, wide)))
		e.add("rows", "", "Transpose", list(flat), list(output), onnx.Ints("perm", 1, 0))
	default:
		e.add("", "", "MatMul", list(input, weight), list(output))
	}
}

// compare reports nodes that differ from those expected, that are too many or missing.
func (e *expected) compare(nodes []onnx.Node) error {
	want := map[string]string{}
	for _, node := range e.want {
		want[node.Name] = e.v.text(node)
	}
	for _, node := range nodes {
		wanted, ok := want[node.Name]
		if got := e.v.text(node); !ok {
			return diag.New(diag.ClassInput, "%q is %s, which does not belong to it", node.Name, got)
		} else if got != wanted {
			return diag.New(diag.ClassInput, "%q is %s, want %s", node.Name, got, wanted)
		}
		delete(want, node.Name)
	}
	for _, node := range e.want {
		if wanted, missing := want[node.Name]; missing {
			return diag.New(diag.ClassInput, "the model has no node %q, want %s", node.Name, wanted)
		}
	}
	return nil
}

// text is everything about a node but its name, with constants written as what they hold.
func (v *verifier) text(node onnx.Node) string {
	in := slices.Clone(node.In)
	for i, name := range in {
		if constant, ok := v.consts[name]; ok {
			in[i] = constant
		}
	}
	kind := node.Op
	if node.Domain != "" {
		kind = node.Domain + "." + node.Op
	}
	text := fmt.Sprintf("%s(%s) to %s", kind, strings.Join(in, ", "), strings.Join(node.Out, ", "))
	for _, attr := range node.Attrs {
		text += fmt.Sprintf(" %s=%v", attr.Name, map[onnx.Kind]any{onnx.KindInt: attr.I, onnx.KindFloat: attr.F,
			onnx.KindString: strconv.Quote(attr.S), onnx.KindInts: attr.Ints}[attr.Kind])
	}
	return text
}
