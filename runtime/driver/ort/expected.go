package ort

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
)

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
	sums := e.do("", "", "ConvInteger", list(image, weight, codes(0, 128), codes(0, 128)),
		onnx.Ints("kernel_shape", 1, 1))
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
