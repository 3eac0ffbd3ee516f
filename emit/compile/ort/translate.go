package ort

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// maxRows bounds constants with a number for each row.
const maxRows = 1 << 16

// elements are ONNX's names of element types.
var elements = map[op.Type]onnx.Type{
	op.F32: onnx.Float32, op.F16: onnx.Float16, op.BF16: onnx.BFloat16, op.I32: onnx.Int32, op.I8: onnx.Int8, op.U8: onnx.Uint8,
}

// kinds are the operators that are translated, schemes those of products.
var (
	kinds = []op.Kind{
		op.Embed, op.Norm, op.LayerNorm, op.QuantRows, op.MatMul, op.GLU, op.Activate, op.Gate, op.Softcap, op.Clip, op.Add, op.Copy,
	}
	// forms are those of products besides the default. The library multiplies activations of 8 bits by weights, and 4-bit weights,
	// in one order and by one operator, and takes no weight as the second of a batch matmul's activations.
	forms   = map[op.Scheme][]op.Form{op.A32W32: {op.Swapped, op.Conv}}
	schemes = []op.Scheme{op.A32W32, op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C, op.A8S4Q8C, op.A8TQ4B32, op.A8TQ4B128}
)

// refuse names what is not translated.
func refuse(o op.Op) error {
	if !slices.Contains(kinds, o.Kind) {
		return diag.New(diag.ClassInput, "operator %q is not executed", o.Kind)
	}
	if o.Scheme != "" && !slices.Contains(schemes, o.Scheme) {
		return diag.New(diag.ClassInput, "scheme %q is not executed", o.Scheme)
	}
	if f := o.Form.Class(); f != "" && !slices.Contains(forms[o.Scheme], f) {
		return diag.New(diag.ClassInput, "form %q of scheme %q is not executed", o.Form, o.Scheme)
	}
	if r := o.Rows(); r > maxRows {
		return diag.New(diag.ClassInput, "%d rows, want at most %d", r, maxRows)
	}
	return nil
}

// translator writes one graph.
type translator struct {
	onnx.Builder
	g       *op.Graph
	now     map[string]string // value of the graph -> the tensor that it is at this point
	last    map[string]int    // value -> the last node that writes it
	outputs map[string]string // value -> its tensor among the outputs
	checks  []check
	static  map[string]string // tensor of row scales that are all one constant -> that one's initializer

	out []string
}

// check says which output holds the scales of a node.
type check struct {
	Node   int    `json:"node"`
	Output string `json:"output"`
}

func translate(g *op.Graph) (*onnx.Model, error) {
	t := &translator{
		g: g, now: map[string]string{}, last: map[string]int{}, outputs: map[string]string{}, static: map[string]string{},
		Builder: onnx.Builder{Model: &onnx.Model{IR: onnx.IR, Producer: "hetc", Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset}, {Domain: onnx.Contrib, Version: onnx.ContribOpset}}}},
	}
	t.Model.Graph.Name = "hetc"
	for i, v := range g.Inputs {
		name := fmt.Sprintf("i%d", i)
		if _, dup := t.now[v.Name]; dup {
			return nil, diag.New(diag.ClassInput, "input %q is listed twice", v.Name)
		}
		t.now[v.Name] = name
		t.Model.Graph.Inputs = append(t.Model.Graph.Inputs, value(name, v))
	}
	for i, v := range g.Outputs {
		name := fmt.Sprintf("o%d", i)
		if _, dup := t.outputs[v.Name]; dup {
			return nil, diag.New(diag.ClassInput, "output %q is listed twice", v.Name)
		}
		t.outputs[v.Name] = name
		t.Model.Graph.Outputs = append(t.Model.Graph.Outputs, value(name, v))
	}
	for j, spec := range g.Weights {
		if err := t.weight(j, spec); err != nil {
			return nil, err
		}
	}
	for i, n := range g.Nodes {
		for _, name := range n.Out {
			t.last[name] = i
		}
	}
	for i := range g.Nodes {
		if err := t.translate(i); err != nil {
			return nil, diag.New(diag.ClassInput, "node %d (%s): %w", i, g.Nodes[i].Op.Kind, err)
		}
	}
	for _, v := range g.Outputs {
		if _, written := t.last[v.Name]; !written { // an input that is passed on
			return nil, diag.New(diag.ClassInput, "output %q is an input that no node writes", v.Name)
		}
	}
	if err := t.inPlace(); err != nil {
		return nil, err
	}
	if len(t.checks) > 0 {
		text, err := json.Marshal(t.checks)
		if err != nil {
			return nil, err
		}
		t.Model.Props = append(t.Model.Props, onnx.Prop{Key: "hetc.checks", Value: string(text)})
	}
	return t.Model, nil
}

func value(name string, v op.Value) onnx.Value {
	return onnx.Value{Name: name, Type: elements[v.Type], Dims: []int64{int64(v.Rows), int64(v.Cols)}}
}

// weight declares the initializers of weight j: vectors [N], tables and matrices [K,N], blocks [N,K/block,block/2].
func (t *translator) weight(j int, spec op.WeightSpec) error {
	declare := func(suffix string, typ onnx.Type, dims ...int64) {
		n := int64(1)
		for _, d := range dims {
			n *= d
		}
		name := fmt.Sprintf("w%d%s", j, suffix)
		t.Model.Graph.Initializers = append(t.Model.Graph.Initializers, onnx.Tensor{Name: name, Type: typ, Dims: dims, External: &onnx.External{Location: "weights", Length: typ.Bytes(n)}})
	}
	k, n := int64(spec.K), int64(spec.N)
	if spec.Layout == op.RowsLayout {
		if spec.K == 1 && !slices.ContainsFunc(t.g.Nodes, func(n op.Node) bool { return n.Op.Kind == op.Embed && n.W[0] == spec.Name }) {
			declare("", elements[op.Type(spec.Scheme)], n)
		} else {
			declare("", elements[op.Type(spec.Scheme)], k, n)
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
	switch spec.Scheme {
	case "w32":
		if slices.ContainsFunc(t.g.Nodes, func(x op.Node) bool { return x.Op.Form.Class() == op.Conv && x.W[0] == spec.Name }) {
			declare("", onnx.Float32, k, n, 1, 1) // the same bytes as kernels
			break
		}
		declare("", onnx.Float32, k, n)
	case "q8c":
		declare("", onnx.Int8, k, n)
		declare(".scale", onnx.Float32, n)
	case "q4b32", "q4b128":
		blocks := scales / n
		declare("", onnx.Uint8, n, blocks, blockRows(spec.Scheme)/2)
		declare(".scale", onnx.Float32, n, blocks)
	default:
		return diag.New(diag.ClassInput, "weight %q: weights %q are not executed", spec.Name, spec.Scheme)
	}
	return nil
}

func blockRows(weight string) int64 { return int64(op.Scheme("a8t/" + weight).BlockK()) }

func list(s ...string) []string { return s }

// zeroPoint is a constant of n codes of zero, or one of no dimension.
func (t *translator) zeroPoint(n int) string {
	c := onnx.Tensor{Type: onnx.Uint8, Dims: []int64{int64(n)}, Raw: slices.Repeat([]byte{128}, max(1, n))}
	if n == 0 {
		c.Dims = nil
	}
	return t.Constant(c)
}

// reshape gives a tensor another shape, which costs nothing.
func (t *translator) reshape(suffix, x string, dims ...int64) string {
	return t.Do(suffix, "", "Reshape", list(x, t.Ints(dims...)))
}

// translate writes node i.
func (t *translator) translate(i int) error {
	n := &t.g.Nodes[i]
	o := n.Op
	t.Node, t.out = i, nil
	for k, name := range n.Out {
		tensor := fmt.Sprintf("v%d.%d", i, k)
		if out, ok := t.outputs[name]; ok && t.last[name] == i {
			tensor = out
		}
		t.out = append(t.out, tensor)
	}
	in := make([]string, len(n.In))
	for k, name := range n.In {
		in[k] = t.now[name]
	}
	w := make([]string, len(n.W))
	for k, name := range n.W {
		j := slices.IndexFunc(t.g.Weights, func(s op.WeightSpec) bool { return s.Name == name })
		have, want := t.g.Weights[j], o.WeightSpec(o.Sig().W[k], op.OnnxLayout)
		if have.Name = want.Name; have != want {
			return diag.New(diag.ClassInput, "weight %q is %s %s [%d,%d], want %s %s [%d,%d]", name, have.Scheme, have.Layout, have.K, have.N, want.Scheme, want.Layout, want.K, want.N)
		}
		w[k] = fmt.Sprintf("w%d", j)
	}
	switch o.Kind {
	case op.Embed:
		t.embed(o, in[0], w[0])
	case op.Norm:
		t.Add("", "", "SimplifiedLayerNormalization", list(in[0], w[0]), t.out, onnx.Int("axis", -1), onnx.Float("epsilon", epsilon(o)), onnx.Int("stash_type", 1))
	case op.LayerNorm:
		t.Add("", "", "LayerNormalization", list(in[0], w[0], w[1]), t.out, onnx.Int("axis", -1), onnx.Float("epsilon", epsilon(o)))
	case op.QuantRows:
		t.quantRows(o, in[0], w)
	case op.MatMul:
		t.matMul(o, in, w)
	case op.GLU:
		t.glu(o, in[0])
	case op.Activate:
		t.activate("", o.Act, in[0], t.out[0], slices.Contains(n.Out, n.In[0]))
	case op.Gate:
		// x/(1+exp(-gate)): the library's own sigmoid is not exact in its tails.
		e := t.Do("exp", "", "Exp", list(t.Do("neg", "", "Neg", list(in[1]))))
		t.Add("", "", "Div", list(in[0], t.Do("one", "", "Add", list(e, t.Float(1)))), t.out)
	case op.Softcap:
		h := t.Do("tanh", "", "Tanh", list(t.Do("div", "", "Div", list(in[0], t.Float(float32(o.Cap))))))
		t.Add("", "", "Mul", list(h, t.Float(float32(o.Cap))), t.out)
	case op.Clip:
		t.Add("", "", "Clip", list(in[0], t.Float(float32(-o.Cap)), t.Float(float32(o.Cap))), t.out)
	case op.Add:
		t.Add("", "", "Add", in, t.out)
	case op.Copy:
		if a, b := t.typeOf(n.In[0]), t.typeOf(n.Out[0]); a != b {
			return diag.New(diag.ClassInput, "%q is %s and %q %s: types are not converted", n.In[0], a, n.Out[0], b)
		}
		t.Add("", "", "Identity", in, t.out)
	default:
		panic("BUG: no translation of " + string(o.Kind))
	}
	for k, name := range n.Out {
		t.now[name] = t.out[k]
	}
	return nil
}

func (t *translator) typeOf(name string) op.Type {
	for _, values := range [][]op.Value{t.g.Inputs, t.g.Outputs, t.g.Temps} {
		if i := slices.IndexFunc(values, func(v op.Value) bool { return v.Name == name }); i >= 0 {
			return values[i].Type
		}
	}
	panic("BUG: no value " + name)
}

// epsilon is never 0, so that rows of zeros give zeros.
func epsilon(o op.Op) float32 { return max(float32(o.Eps), 1.1754944e-38) }

func (t *translator) embed(o op.Op, ids, table string) {
	y := t.out[0]
	steps := []func(in, out string){
		func(_, out string) { t.Add("", "", "Gather", list(table, ids), list(out), onnx.Int("axis", 0)) }, // [M,1,N]
		func(in, out string) {
			t.Add("shape", "", "Reshape", list(in, t.Ints(int64(o.M), int64(o.N))), list(out))
		},
	}
	if o.Table != op.F32 {
		steps = append(steps, func(in, out string) {
			t.Add("cast", "", "Cast", list(in), list(out), onnx.Int("to", int64(onnx.Float32)))
		})
	}
	if o.Scale != 0 {
		steps = append(steps, func(in, out string) { t.Add("scale", "", "Mul", list(in, t.Float(float32(o.Scale))), list(out)) })
	}
	x := ""
	for i, step := range steps {
		out := y
		if i < len(steps)-1 {
			out = t.Name(fmt.Sprintf("%d:", i))
		}
		step(x, out)
		x = out
	}
}

// quantRows writes codes and scales of rows. The reductions ignore NaN, so a sum is added that shows it, zero times.
func (t *translator) quantRows(o op.Op, x string, w []string) {
	rows, axis := o.Rows(), t.Ints(1)
	keep := onnx.Int("keepdims", 1)
	nan := t.Do("nan", "", "Mul", list(t.Do("sum", "", "ReduceSum", list(x, axis), keep), t.Float(0)))
	scale := t.out[1]
	if name := t.g.Nodes[t.Node].Out[1]; t.outputs[name] == "" || t.last[name] != t.Node {
		scale = fmt.Sprintf("c%d", len(t.checks))
		t.checks = append(t.checks, check{t.Node, scale})
		t.Model.Graph.Outputs = append(t.Model.Graph.Outputs, onnx.Value{Name: scale, Type: onnx.Float32, Dims: []int64{int64(rows), 1}})
		t.out[1] = scale
	}
	if o.Static && o.Scales == 0 {
		t.Add("scale", "", "Sum", list(nan, w[0]), list(scale)) // see bias
		t.static[scale] = w[0]
		q := t.Do("", "", "QuantizeLinear", list(x, w[0], t.zeroPoint(1)))
		// Codes are symmetric: -127..127.
		t.Add("clip", "", "Clip", list(q, t.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{1}})), t.out[:1])
		return
	}
	top := ""
	if rows == 1 { // few nodes count
		top = t.Do("top", "", "ReduceMax", list(t.Do("abs", "", "Abs", list(x)), axis), keep)
	} else { // few passes count
		low := t.Do("neg", "", "Neg", list(t.Do("min", "", "ReduceMin", list(x, axis), keep)))
		top = t.Do("top", "", "Max", list(t.Do("max", "", "ReduceMax", list(x, axis), keep), low))
	}
	s := t.Do("div", "", "Div", list(top, t.Float(127)))
	if o.Static { // the smallest of several scales that is not below it, else the largest
		// What follows from weights alone the library computes before it has their values: each row has its copy.
		each := t.Do("each", "", "Sum", list(nan, w[0]))
		largest := t.Do("largest", "", "ReduceMax", list(each, axis), keep)
		holding := t.Do("holding", "", "Where", list(t.Do("holds", "", "GreaterOrEqual", list(each, s)), each, largest))
		s = t.Do("smallest", "", "ReduceMin", list(holding, axis), keep)
		t.Add("scale", "", "Add", list(s, nan), list(scale))
		q := t.Do("", "", "QuantizeLinear", list(x, t.reshape("rows", s, int64(rows)), t.zeroPoint(rows)), onnx.Int("axis", 0))
		t.Add("clip", "", "Clip", list(q, t.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{1}})), t.out[:1])
		return
	}
	t.Add("scale", "", "Add", list(s, nan), list(scale))
	// A row of zeros has scale 0 and is divided by the smallest number there is.
	by := t.reshape("rows", t.Do("tiny", "", "Max", list(s, t.Float(0x1p-149))), int64(rows))
	t.Add("", "", "QuantizeLinear", list(x, by, t.zeroPoint(rows)), t.out[:1], onnx.Int("axis", 0))
}

func (t *translator) matMul(o op.Op, in, w []string) {
	product, y := t.Name("product:"), t.out[0]
	switch o.Scheme {
	case op.A32W32:
		if !o.Bias {
			product = y
		}
		t.product(o, in[0], w[0], product)
	case op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C, op.A8S4Q8C:
		operands := list(in[0], w[0], t.Float(1), w[0]+".scale", t.zeroPoint(0))
		if one := t.static[in[1]]; one != "" || o.M == 1 { // one scale for all rows is the operator's own
			if one == "" {
				one = t.reshape("rows", in[1], 1)
			}
			operands[2] = one
			if o.Bias {
				operands = append(operands, "", w[1])
			}
			t.Add("", onnx.Contrib, "MatMulIntegerToFloat", operands, t.out)
			return
		}
		t.Add("", onnx.Contrib, "MatMulIntegerToFloat", operands, list(product))
		scaled := y
		if o.Bias {
			scaled = t.Name("scaled:")
		}
		t.Add("scale", "", "Mul", list(product, in[1]), list(scaled))
		product = scaled
	case op.A8TQ4B32, op.A8TQ4B128:
		x := t.Do("float", "", "DequantizeLinear", list(in[0], t.reshape("rows", in[1], int64(o.M)), t.zeroPoint(o.M)), onnx.Int("axis", 0))
		operands := list(x, w[0], w[0]+".scale")
		if o.Bias {
			operands = append(operands, "", "", w[1])
		}
		t.Add("", onnx.Contrib, "MatMulNBits", operands, t.out, onnx.Int("K", int64(o.K)), onnx.Int("N", int64(o.N)), onnx.Int("accuracy_level", 4), onnx.Int("bits", 4), onnx.Int("block_size", blockRows(o.Scheme.Weight())))
		return
	default:
		panic("BUG: no translation of " + string(o.Scheme))
	}
	if o.Bias {
		t.bias(o, product, w[1], y)
	}
}

// product is y = x times w in float32, in the operator's form.
func (t *translator) product(o op.Op, x, w, y string) {
	m, k, n := int64(o.M), int64(o.K), int64(o.N)
	columns := "" // the result, [N,M]
	switch width, height, conv := o.Form.Image(); {
	case o.Form == op.Swapped:
		columns = t.Name("pixels:")
		t.Add("", "", "Gemm", list(w, x), list(columns), onnx.Int("transA", 1), onnx.Int("transB", 1))
		// Behind another shape the library does not see that it could swap the operands back.
		columns = t.reshape("image", columns, n, m, 1)
		columns = t.Do("rows", "", "Transpose", list(columns), onnx.Ints("perm", 1, 0, 2))
		t.Add("shape", "", "Reshape", list(columns, t.Ints(m, n)), list(y))
	case conv:
		image := t.reshape("image", t.Do("columns", "", "Transpose", list(x), onnx.Ints("perm", 1, 0)), 1, k, int64(height), int64(width))
		columns = t.Name("pixels:")
		// With kernels of 1x1 the transposed convolution is the convolution, and its weights are [K,N] as they are packed.
		t.Add("", "", "ConvTranspose", list(image, w), list(columns), onnx.Ints("kernel_shape", 1, 1))
		t.Add("rows", "", "Transpose", list(t.reshape("shape", columns, n, m)), list(y), onnx.Ints("perm", 1, 0))
	default:
		t.Add("", "", "MatMul", list(x, w), list(y))
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

// glu divides columns of gate and up, which alternate in turns of Interleave.
func (t *translator) glu(o op.Op, x string) {
	turn, turns := int64(o.Interleave), int64(o.Rows())*int64(o.N/o.Interleave)
	y := t.out[0]
	if o.N != o.Interleave {
		x = t.reshape("turns", x, turns, 2*turn)
		y = t.Name("mul:")
	}
	gate, up, act := t.Name("gate:"), t.Name("up:"), t.Name("act:")
	t.Add("split", "", "Split", list(x), list(gate, up), onnx.Int("axis", 1), onnx.Int("num_outputs", 2))
	t.activate("act", o.Act, gate, act, false)
	t.Add("", "", "Mul", list(act, up), list(y))
	if y != t.out[0] {
		t.Add("columns", "", "Reshape", list(y, t.Ints(int64(o.Rows()), int64(o.N))), t.out)
	}
}

// activate writes y = act(x). y may be the memory of x when alias is set: the library's fused operators read x again
// after they have written y.
func (t *translator) activate(suffix, act, x, y string, alias bool) {
	switch {
	case act == op.ReLU:
		t.Add(suffix, "", "Relu", list(x), list(y))
	case act == op.SiLU && alias:
		t.Add(suffix, "", "Mul", list(x, t.Do("sigmoid", "", "Sigmoid", list(x))), list(y))
	case act == op.SiLU:
		t.Add(suffix, onnx.Contrib, "QuickGelu", list(x), list(y), onnx.Float("alpha", 1))
	default:
		approximate := "none"
		if act == op.GELUTanh {
			approximate = "tanh"
		}
		out := y
		if alias {
			out = t.Name("gelu:")
		}
		t.Add(suffix, "", "Gelu", list(x), list(out), onnx.String("approximate", approximate))
		if alias {
			t.Add("copy", "", "Max", list(out), list(y))
		}
	}
}

// elementwise are the operators that compute an element from the one in its place, and so may write their result over
// an operand.
var elementwise = []string{"Add", "Mul", "Div", "Relu", "Clip", "Max"}

// inPlace refuses a graph in which a value that is input and output is written while nodes that read it as an input
// may still be waiting: the library keeps the order of nodes only where one needs another's result.
func (t *translator) inPlace() error {
	nodes := t.Model.Graph.Nodes
	writer := map[string]int{}
	for i, n := range nodes {
		for _, out := range n.Out {
			writer[out] = i
		}
	}
	for k, v := range t.g.Inputs {
		out, ok := t.outputs[v.Name]
		if !ok {
			continue
		}
		in, last := fmt.Sprintf("i%d", k), writer[out]
		needed := map[int]bool{} // by the node that writes the output
		var need func(int)
		need = func(i int) {
			for _, x := range nodes[i].In {
				if j, ok := writer[x]; ok && !needed[j] {
					needed[j] = true
					need(j)
				}
			}
		}
		need(last)
		for i, n := range nodes {
			if !slices.Contains(n.In, in) || needed[i] || i == last && slices.Contains(elementwise, n.Op) {
				continue
			}
			return diag.New(diag.ClassInput, "value %q is overwritten, and %q (%s) may read it afterwards", v.Name, n.Name, n.Op)
		}
	}
	return nil
}
