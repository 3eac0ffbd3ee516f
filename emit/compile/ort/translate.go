package ort

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hetc/hetc/emit/onnxgraph"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// maxRows bounds constants with a number for each row.
const maxRows = 1 << 16

// elements are ONNX's names of element types.
var elements = map[op.Type]onnx.Type{
	op.F32: onnx.Float32, op.F16: onnx.Float16, op.BF16: onnx.BFloat16,
	op.I32: onnx.Int32, op.I8: onnx.Int8, op.U8: onnx.Uint8,
}

// kinds are the operators that are translated, schemes those of products.
var (
	kinds = []op.Kind{
		op.Embed, op.Norm, op.LayerNorm, op.QuantRows, op.MatMul, op.GroupMatMul, op.GLU, op.Activate, op.Gate,
		op.Softcap, op.Clip, op.Add, op.Copy, op.Estimate,
	}
	// forms are those of products besides the default. The library multiplies activations of 8 bits by weights in one
	// order, by a product or by a convolution of integers; 4-bit weights by one operator. It takes no weight as the
	// second of a batch matmul's activations.
	forms   = map[op.Scheme][]op.Form{op.A32W32: {op.Swapped, op.Conv}, op.A8SQ8C: {op.Conv}, op.A8OQ8C: {op.Conv}}
	schemes = op.SchemesOf("ort")
)

// list is the tensors of a node.
var list = onnxgraph.List

// refuse names what is not translated.
func refuse(operator op.Op) error {
	if !slices.Contains(kinds, operator.Kind) {
		return diag.New(diag.ClassInput, "operator %q is not executed", operator.Kind)
	}
	if operator.Scheme != "" && !slices.Contains(schemes, operator.Scheme) {
		return diag.New(diag.ClassInput, "scheme %q is not executed", operator.Scheme)
	}
	if form := operator.Form.Class(); form != "" && !slices.Contains(forms[operator.Scheme], form) {
		return diag.New(diag.ClassInput, "form %q of scheme %q is not executed", operator.Form, operator.Scheme)
	}
	if rows := operator.Rows(); rows > maxRows {
		return diag.New(diag.ClassInput, "%d rows, want at most %d", rows, maxRows)
	}
	return nil
}

// translator writes one graph.
type translator struct {
	*onnxgraph.Writer
	checks []check
	static map[string]string // tensor of row scales that are all one constant -> that one's initializer
}

// check says which output holds the scales of a node.
type check struct {
	Node   int    `json:"node"`
	Output string `json:"output"`
}

// translate writes a valid graph. Its weights are declared, not held.
func translate(graph *op.Graph) (*onnx.Model, error) {
	if slices.ContainsFunc(graph.Nodes, func(node op.Node) bool { return node.Op.Kind == op.Estimate }) {
		return estimate(graph)
	}
	writer, err := onnxgraph.New(graph, func(v op.Value, _ bool) (onnx.Type, error) { return elements[v.Type], nil })
	if err != nil {
		return nil, err
	}
	made := &translator{Writer: writer, static: map[string]string{}}
	for j, spec := range graph.Weights {
		if err := made.weight(j, spec); err != nil {
			return nil, err
		}
	}
	if err := made.Nodes(made.translate); err != nil {
		return nil, err
	}
	if err := made.inPlace(); err != nil {
		return nil, err
	}
	if len(made.checks) > 0 {
		text, err := json.Marshal(made.checks)
		if err != nil {
			return nil, err
		}
		made.Model.Props = append(made.Model.Props, onnx.Prop{Key: "hetc.checks", Value: string(text)})
	}
	return made.Model, nil
}

// estimate writes the products of an estimate of scores, of codes around 128 on both sides: the library multiplies
// those of one type exactly on every CPU.
func estimate(graph *op.Graph) (*onnx.Model, error) {
	writer, err := onnxgraph.Products(graph, op.I32, onnx.Int32)
	if err != nil {
		return nil, err
	}
	operator := graph.Estimate()
	launch, heads, dim := operator.Launch(), int64(operator.KVHeads), int64(operator.HeadDim)
	queries := writer.Reshape("queries", "i0", heads, int64(launch.Rows), dim)
	keys := writer.Reshape("keys", "i1", heads, int64(launch.Keys), dim)
	columns := writer.Do("columns", "", "Transpose", list(keys), onnx.Ints("perm", 0, 2, 1))
	zero := writer.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{128}})
	products := writer.Do("", "", "MatMulInteger", list(queries, columns, zero, zero))
	shape := writer.Ints(heads*int64(launch.Rows), int64(launch.Keys))
	writer.Add("shape", "", "Reshape", list(products, shape), list("o0"))
	return writer.Model, nil
}

// weight declares the initializers of weight j: vectors [N], tables and matrices [K,N], blocks [N,K/block,block/2].
func (t *translator) weight(j int, spec op.WeightSpec) error {
	declare := func(suffix string, typ onnx.Type, dims ...int64) {
		count := int64(1)
		for _, dim := range dims {
			count *= dim
		}
		name := fmt.Sprintf("w%d%s", j, suffix)
		t.Model.Graph.Initializers = append(t.Model.Graph.Initializers, onnx.Tensor{Name: name, Type: typ, Dims: dims,
			External: &onnx.External{Location: "weights", Length: typ.Bytes(count)}})
	}
	rows, cols := int64(spec.K), int64(spec.N)
	if spec.Layout == op.RowsLayout {
		isTable := slices.ContainsFunc(t.Graph.Nodes, func(n op.Node) bool {
			return n.Op.Kind == op.Embed && n.W[0] == spec.Name
		})
		if spec.K == 1 && !isTable {
			declare("", elements[op.Type(spec.Scheme)], cols)
		} else {
			declare("", elements[op.Type(spec.Scheme)], rows, cols)
		}
		return nil
	}
	if spec.Layout != op.OnnxLayout {
		return nil // its node refuses it
	}
	_, _, scales, err := pack.OnnxParts(spec)
	if err != nil {
		return err
	}
	isKernel := slices.ContainsFunc(t.Graph.Nodes, func(n op.Node) bool {
		return n.Op.Form.Class() == op.Conv && n.W[0] == spec.Name
	})
	switch spec.Scheme {
	case "w32":
		if isKernel {
			declare("", onnx.Float32, rows, cols, 1, 1) // the same bytes as kernels
			break
		}
		declare("", onnx.Float32, rows, cols)
	case "q8c":
		if isKernel { // the driver transposes the codes, and adds 128
			declare("", onnx.Uint8, cols, rows, 1, 1)
		} else {
			declare("", onnx.Int8, rows, cols)
		}
		declare(".scale", onnx.Float32, cols)
	case "q4b32", "q4b128":
		blocks := scales / cols
		declare("", onnx.Uint8, cols, blocks, blockRows(spec.Scheme)/2)
		declare(".scale", onnx.Float32, cols, blocks)
	default:
		return diag.New(diag.ClassInput, "weight %q: weights %q are not executed", spec.Name, spec.Scheme)
	}
	return nil
}

// blockRows returns the number of rows that share a scale in a scheme of 4-bit blocks.
func blockRows(weight string) int64 { return int64(op.Scheme("a8t/" + weight).BlockK()) }

// zeroPoint returns a constant of n codes of zero, or one of no dimension.
func (t *translator) zeroPoint(n int) string {
	zeros := onnx.Tensor{Type: onnx.Uint8, Dims: []int64{int64(n)}, Raw: slices.Repeat([]byte{128}, max(1, n))}
	if n == 0 {
		zeros.Dims = nil
	}
	return t.Constant(zeros)
}

// translate writes a node.
func (t *translator) translate(node *op.Node, in []string, numbers []int) error {
	operator := node.Op
	weights := make([]string, len(numbers))
	for i, number := range numbers {
		weights[i] = fmt.Sprintf("w%d", number)
	}
	if operator.Kind == op.Copy {
		if have, want := t.typeOf(node.In[0]), t.typeOf(node.Out[0]); have != want {
			return diag.New(diag.ClassInput, "%q is %s and %q %s: types are not converted",
				node.In[0], have, node.Out[0], want)
		}
	}
	if t.Common(operator, in, func(k int) string { return weights[k] }) {
		return nil
	}
	switch operator.Kind {
	case op.Embed:
		t.embed(operator, in[0], weights[0])
	case op.QuantRows:
		t.quantRows(operator, in[0], weights)
	case op.MatMul:
		t.matMul(operator, in, weights)
	case op.GroupMatMul:
		one := ""
		if len(in) > 1 {
			one = t.static[in[1]]
		}
		return t.Group(operator, in, func(slot int, product op.Op, in []string) error {
			if one != "" { // the scale of all rows is that of each part
				t.static[in[1]] = one
			}
			t.matMul(product, in, weights[slot:slot+1])
			return nil
		})
	case op.GLU:
		t.GLU(operator, in[0], false, func(suffix, act, in, out string) { t.activate(suffix, act, in, out, false) })
	case op.Activate:
		t.activate("", operator.Act, in[0], t.Out[0], slices.Contains(node.Out, node.In[0]))
	case op.Gate:
		// x/(1+exp(-gate)): the library's own sigmoid is not exact in its tails.
		inverse := t.Do("exp", "", "Exp", list(t.Do("neg", "", "Neg", list(in[1]))))
		t.Add("", "", "Div", list(in[0], t.Do("one", "", "Add", list(inverse, t.Float(1)))), t.Out)
	default:
		panic("BUG: no translation of " + string(operator.Kind))
	}
	return nil
}

// typeOf returns the type of a value of the graph.
func (t *translator) typeOf(name string) op.Type {
	for _, values := range [][]op.Value{t.Graph.Inputs, t.Graph.Outputs, t.Graph.Temps} {
		if i := slices.IndexFunc(values, func(v op.Value) bool { return v.Name == name }); i >= 0 {
			return values[i].Type
		}
	}
	panic("BUG: no value " + name)
}

// embed looks up rows of the table: a gather, then as far as they are needed a conversion to float32
// and a factor. Only the last of these steps writes the result.
func (t *translator) embed(operator op.Op, ids, table string) {
	result := t.Out[0]
	steps := []func(in, out string){
		func(_, out string) { // [M,1,N]
			t.Add("", "", "Gather", list(table, ids), list(out), onnx.Int("axis", 0))
		},
		func(in, out string) {
			t.Add("shape", "", "Reshape", list(in, t.Ints(int64(operator.M), int64(operator.N))), list(out))
		},
	}
	if operator.Table != op.F32 {
		steps = append(steps, func(in, out string) {
			t.Add("cast", "", "Cast", list(in), list(out), onnx.Int("to", int64(onnx.Float32)))
		})
	}
	if operator.Scale != 0 {
		steps = append(steps, func(in, out string) {
			t.Add("scale", "", "Mul", list(in, t.Float(float32(operator.Scale))), list(out))
		})
	}
	in := ""
	for i, step := range steps {
		out := result
		if i < len(steps)-1 {
			out = t.Name(fmt.Sprintf("%d:", i))
		}
		step(in, out)
		in = out
	}
}

// quantRows writes codes and scales of rows. The reductions ignore NaN, so a sum is added that shows it, zero times.
func (t *translator) quantRows(operator op.Op, in string, weights []string) {
	// Scales that stay within the graph become an extra output, in which the driver looks for NaN.
	rows, axis := operator.Rows(), t.Ints(1)
	keep := onnx.Int("keepdims", 1)
	nan := t.Do("nan", "", "Mul", list(t.Do("sum", "", "ReduceSum", list(in, axis), keep), t.Float(0)))
	scale := t.Out[1]
	if name := t.Graph.Nodes[t.Node].Out[1]; t.Outputs[name] == "" || t.Last[name] != t.Node {
		scale = fmt.Sprintf("c%d", len(t.checks))
		t.checks = append(t.checks, check{t.Node, scale})
		t.Model.Graph.Outputs = append(t.Model.Graph.Outputs,
			onnx.Value{Name: scale, Type: onnx.Float32, Dims: []int64{int64(rows), 1}})
		t.Out[1] = scale
	}
	if operator.Static && operator.Scales == 0 {
		t.Add("scale", "", "Sum", list(nan, weights[0]), list(scale)) // see bias
		t.static[scale] = weights[0]
		codes := t.Do("", "", "QuantizeLinear", list(in, weights[0], t.zeroPoint(1)))
		// Codes are symmetric: -127..127.
		t.Add("clip", "", "Clip", list(codes, t.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{1}})), t.Out[:1])
		return
	}
	var top string
	if rows == 1 { // few nodes count
		top = t.Do("top", "", "ReduceMax", list(t.Do("abs", "", "Abs", list(in)), axis), keep)
	} else { // few passes count
		low := t.Do("neg", "", "Neg", list(t.Do("min", "", "ReduceMin", list(in, axis), keep)))
		top = t.Do("top", "", "Max", list(t.Do("max", "", "ReduceMax", list(in, axis), keep), low))
	}
	step := t.Do("div", "", "Div", list(top, t.Float(127)))
	if operator.Static { // the smallest of several scales that is not below it, else the largest
		// What follows from weights alone the library computes before it has their values: each row has its copy.
		each := t.Do("each", "", "Sum", list(nan, weights[0]))
		largest := t.Do("largest", "", "ReduceMax", list(each, axis), keep)
		holding := t.Do("holding", "", "Where",
			list(t.Do("holds", "", "GreaterOrEqual", list(each, step)), each, largest))
		step = t.Do("smallest", "", "ReduceMin", list(holding, axis), keep)
		t.Add("scale", "", "Add", list(step, nan), list(scale))
		codes := t.Do("", "", "QuantizeLinear", list(in, t.Reshape("rows", step, int64(rows)), t.zeroPoint(rows)),
			onnx.Int("axis", 0))
		t.Add("clip", "", "Clip", list(codes, t.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{1}})), t.Out[:1])
		return
	}
	t.Add("scale", "", "Add", list(step, nan), list(scale))
	// A row of zeros has scale 0 and is divided by the smallest number there is.
	by := t.Reshape("rows", t.Do("tiny", "", "Max", list(step, t.Float(0x1p-149))), int64(rows))
	t.Add("", "", "QuantizeLinear", list(in, by, t.zeroPoint(rows)), t.Out[:1], onnx.Int("axis", 0))
}

// matMul writes a product. 8-bit codes with one scale for all rows need a single operator. With a
// scale for each row the results are multiplied by it afterwards, and 4-bit blocks multiply what the
// codes stand for.
func (t *translator) matMul(operator op.Op, in, weights []string) {
	product, result := t.Name("product:"), t.Out[0]
	switch operator.Scheme {
	case op.A32W32:
		if !operator.Bias {
			product = result
		}
		t.product(operator, in[0], weights[0], product)
	case op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C, op.A8S4Q8C, op.A8OQ8C:
		if operator.Form.Class() == op.Conv {
			product = t.convolution(operator, in, weights[0])
			break
		}
		operands := list(in[0], weights[0], t.Float(1), weights[0]+".scale", t.zeroPoint(0))
		if one := t.static[in[1]]; one != "" || operator.M == 1 { // one scale for all rows is the operator's own
			if one == "" {
				one = t.Reshape("rows", in[1], 1)
			}
			operands[2] = one
			if operator.Bias {
				operands = append(operands, "", weights[1])
			}
			t.Add("", onnx.Contrib, "MatMulIntegerToFloat", operands, t.Out)
			return
		}
		t.Add("", onnx.Contrib, "MatMulIntegerToFloat", operands, list(product))
		scaled := result
		if operator.Bias {
			scaled = t.Name("scaled:")
		}
		t.Add("scale", "", "Mul", list(product, in[1]), list(scaled))
		product = scaled
	case op.A8TQ4B32, op.A8TQ4B128:
		rows := t.Do("float", "", "DequantizeLinear",
			list(in[0], t.Reshape("rows", in[1], int64(operator.M)), t.zeroPoint(operator.M)), onnx.Int("axis", 0))
		operands := list(rows, weights[0], weights[0]+".scale")
		if operator.Bias {
			operands = append(operands, "", "", weights[1])
		}
		t.Add("", onnx.Contrib, "MatMulNBits", operands, t.Out, onnx.Int("K", int64(operator.K)),
			onnx.Int("N", int64(operator.N)), onnx.Int("accuracy_level", 4), onnx.Int("bits", 4),
			onnx.Int("block_size", blockRows(operator.Scheme.Weight())))
		return
	default:
		panic("BUG: no translation of " + string(operator.Scheme))
	}
	if operator.Bias {
		t.bias(operator, product, weights[1], result)
	}
}

// convolution returns a product of 8-bit codes as a convolution of integers: rows are the pixels of an image, whose
// channels are what the product adds up, and columns of the weight are kernels of 1x1. Scales are multiplied on behind
// it. It returns the tensor before the bias, which is the result where there is none.
func (t *translator) convolution(o op.Op, in []string, weight string) string {
	width, height, _ := o.Form.Image()
	rows, depth, cols := int64(o.M), int64(o.K), int64(o.N)
	image := t.Reshape("image", t.Do("columns", "", "Transpose", list(in[0]), onnx.Ints("perm", 1, 0)), 1, depth,
		int64(height), int64(width))
	sums := t.Do("", "", "ConvInteger", list(image, weight, t.zeroPoint(0), t.zeroPoint(0)),
		onnx.Ints("kernel_shape", 1, 1))
	exact := t.Do("rows", "", "Transpose", list(t.Reshape("shape", sums, cols, rows)), onnx.Ints("perm", 1, 0))
	floats := t.Do("float", "", "Cast", list(exact), onnx.Int("to", int64(onnx.Float32)))
	unscaled := t.Do("product", "", "Mul", list(floats, weight+".scale"))
	scaled := t.Out[0]
	if o.Bias {
		scaled = t.Name("scaled:")
	}
	t.Add("scale", "", "Mul", list(unscaled, in[1]), list(scaled))
	return scaled
}

// product is y = x times w in float32, in the operator's form.
func (t *translator) product(o op.Op, in, weight, out string) {
	rows, depth, cols := int64(o.M), int64(o.K), int64(o.N)
	var columns string // the result, [N,M]
	switch width, height, conv := o.Form.Image(); {
	case o.Form == op.Swapped:
		columns = t.Name("pixels:")
		t.Add("", "", "Gemm", list(weight, in), list(columns), onnx.Int("transA", 1), onnx.Int("transB", 1))
		// Behind another shape the library does not see that it could swap the operands back.
		columns = t.Reshape("image", columns, cols, rows, 1)
		columns = t.Do("rows", "", "Transpose", list(columns), onnx.Ints("perm", 1, 0, 2))
		t.Add("shape", "", "Reshape", list(columns, t.Ints(rows, cols)), list(out))
	case conv:
		image := t.Reshape("image", t.Do("columns", "", "Transpose", list(in), onnx.Ints("perm", 1, 0)), 1, depth,
			int64(height), int64(width))
		columns = t.Name("pixels:")
		// With kernels of 1x1 the transposed convolution is the convolution, and its weights are [K,N] as they are
		// packed.
		t.Add("", "", "ConvTranspose", list(image, weight), list(columns), onnx.Ints("kernel_shape", 1, 1))
		t.Add("rows", "", "Transpose", list(t.Reshape("shape", columns, cols, rows)), list(out),
			onnx.Ints("perm", 1, 0))
	default:
		t.Add("", "", "MatMul", list(in, weight), list(out))
	}
}

// bias adds a row. A row of one element is added by Sum: the library looks whether what Add adds is 0 before it has the
// weights' values.
func (t *translator) bias(o op.Op, x, bias, y string) {
	kind := "Add"
	if o.N == 1 {
		kind = "Sum"
	}
	t.Add("bias", "", kind, list(x, bias), list(y))
}

// activate writes y = act(x). y may be the memory of x when alias is set: the library's fused operators read x again
// after they have written y.
func (t *translator) activate(suffix, act, in, result string, alias bool) {
	switch {
	case act == op.ReLU:
		t.Add(suffix, "", "Relu", list(in), list(result))
	case act == op.SiLU && alias:
		t.Add(suffix, "", "Mul", list(in, t.Do("sigmoid", "", "Sigmoid", list(in))), list(result))
	case act == op.SiLU:
		t.Add(suffix, onnx.Contrib, "QuickGelu", list(in), list(result), onnx.Float("alpha", 1))
	default:
		approximate := "none"
		if act == op.GELUTanh {
			approximate = "tanh"
		}
		out := result
		if alias {
			out = t.Name("gelu:")
		}
		t.Add(suffix, "", "Gelu", list(in), list(out), onnx.String("approximate", approximate))
		if alias {
			t.Add("copy", "", "Max", list(out), list(result))
		}
	}
}

// elementwise are the operators that compute an element from the one in its place, and so may write their result over
// an operand.
var elementwise = []string{"Add", "Mul", "Div", "Relu", "Clip", "Max"}

// inPlace refuses a graph in which a value that is input and output is written while nodes that read
// it as an input may still be waiting: the library keeps the order of nodes only where one needs
// another's result.
//
// For each such value it marks the nodes that the last writer depends on, by a search backwards over
// the results they read. A reader that is not marked, and is not the writer itself, may run too late.
func (t *translator) inPlace() error {
	nodes := t.Model.Graph.Nodes
	writer := map[string]int{}
	for i, node := range nodes {
		for _, out := range node.Out {
			writer[out] = i
		}
	}
	for at, value := range t.Graph.Inputs {
		out, ok := t.Outputs[value.Name]
		if !ok {
			continue
		}
		in, last := fmt.Sprintf("i%d", at), writer[out]
		needed := map[int]bool{} // by the node that writes the output
		var need func(int)
		need = func(i int) {
			for _, in := range nodes[i].In {
				if j, ok := writer[in]; ok && !needed[j] {
					needed[j] = true
					need(j)
				}
			}
		}
		need(last)
		for i, node := range nodes {
			if !slices.Contains(node.In, in) || needed[i] || i == last && slices.Contains(elementwise, node.Op) {
				continue
			}
			return diag.New(diag.ClassInput, "value %q is overwritten, and %q (%s) may read it afterwards",
				value.Name, node.Name, node.Op)
		}
	}
	return nil
}
