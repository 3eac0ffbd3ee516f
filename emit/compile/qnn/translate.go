package qnn

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/emit/onnxgraph"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// weightsFile is where the models of a group say that their weights lie, and weightsAlign what each starts on a
// multiple of.
const (
	weightsFile  = "weights"
	weightsAlign = 64
)

// list is the tensors of a node.
var list = onnxgraph.List

// maxRows bounds a graph's rows.
const maxRows = 1 << 16

// kinds are the operators that are translated, schemes those of products. What reads the cache or depends on the
// position of a call has no place in a compiled graph, whose inputs are its activations alone.
var (
	kinds = []op.Kind{op.Norm, op.LayerNorm, op.QuantRows, op.MatMul, op.GroupMatMul, op.GLU, op.Activate, op.Gate,
		op.Softcap, op.Clip, op.Add, op.Copy, op.Estimate}
	schemes = op.SchemesOf("qnn")
	// forms are those of products besides the default: convolutions of integers
	forms = map[op.Scheme][]op.Form{op.A8SQ8C: {op.Conv}, op.A8OQ8C: {op.Conv}}
)

// refuse names what is not translated.
func refuse(operator op.Op) error {
	switch {
	case operator.Kind == op.Attention || operator.Kind == op.KVAppend:
		return diag.New(diag.ClassInput,
			"operator %q is not compiled: it works on the cache, which lies outside a compiled graph", operator.Kind)
	case operator.Kind == op.Rope || operator.Kind == op.SelectRow:
		return diag.New(diag.ClassInput, "operator %q is not compiled: "+
			"it depends on where a call is in the context, which a compiled graph is not told", operator.Kind)
	case !slices.Contains(kinds, operator.Kind):
		return diag.New(diag.ClassInput, "operator %q is not compiled", operator.Kind)
	case operator.Scheme != "" && !slices.Contains(schemes, operator.Scheme):
		return diag.New(diag.ClassInput, "scheme %q is not compiled, want one of %v", operator.Scheme, schemes)
	case operator.Form != "" && !slices.Contains(forms[operator.Scheme], operator.Form.Class()):
		return diag.New(diag.ClassInput, "products in the form %q are not compiled", operator.Form)
	case operator.Kind == op.QuantRows && !operator.Static:
		return diag.New(diag.ClassInput, "operator %q with a scale for each row is not compiled: "+
			"graphs are compiled with the scales in them", operator.Kind)
	case operator.Scales > 1:
		return diag.New(diag.ClassInput, "operator %q with %d static scales to choose from is not compiled: "+
			"a graph has one constant in it", operator.Kind, operator.Scales).
			WithHint("permit %s for this processor, with a single static scale", op.A8SQ8C)
	case operator.Rows() > maxRows:
		return diag.New(diag.ClassInput, "%d rows, want at most %d", operator.Rows(), maxRows)
	}
	return nil
}

// translator writes one graph with its weights.
type translator struct {
	*onnxgraph.Writer
	weights driver.Weights
	codes   map[string]*coded // u8 rows made in the graph
	grids   map[string]string // tensor and step -> the tensor on that grid
	turns   map[string]int    // value whose columns of gate and up do not alternate, as its weight's were sorted
	parts   [][]byte          // of the file of weights
	size    int64             // of parts
}

// coded are u8 rows that a node of the graph makes: the rows before they are rounded, their scale, and the rows that
// the codes stand for, once a product has read them.
type coded struct {
	exact string
	scale float32
	rows  string
}

// compilerInput is what a graph with its weights is to the compiler: a model, and the file that it reads its weights
// from.
type compilerInput struct {
	model   []byte   // ONNX, without the weights' values
	weights [][]byte // parts of the file, one behind the other
	inputs  []tensor
	outputs []tensor
}

// translate writes g, which is valid, with its weights.
//
// Activations are float32 between operators, which the NPU computes in half precision: residuals have outliers that no
// 16-bit grid holds. Products on a grid have a QuantizeLinear before and after them; where these are at the edge of the
// graph, they run on the CPU. A product without bias is a MatMul, one with bias a Gemm whose bias is an integer of the
// product's own step, so that nothing is rounded in between.
func translate(graph *op.Graph, weights driver.Weights) (*compilerInput, error) {
	if err := checkWeights(graph, weights); err != nil {
		return nil, err
	}
	for i, node := range graph.Nodes {
		if err := refuse(node.Op); err != nil {
			return nil, diag.New(diag.ClassInput, "node %d (%s): %w", i, node.Op.Kind, err)
		}
	}
	if slices.ContainsFunc(graph.Nodes, func(node op.Node) bool { return node.Op.Kind == op.Estimate }) {
		return estimate(graph, weights)
	}
	writer, err := onnxgraph.New(graph, typeOf)
	if err != nil {
		return nil, err
	}
	made := &translator{
		Writer: writer, weights: weights,
		codes: map[string]*coded{}, grids: map[string]string{}, turns: map[string]int{},
	}
	if err := made.Nodes(made.translate); err != nil {
		return nil, err
	}
	code := made.Model.Marshal()
	if len(code) > onnx.MaxBytes {
		return nil, diag.New(diag.ClassInput, "the model has %d bytes without its weights, want at most %d",
			len(code), onnx.MaxBytes)
	}
	return &compilerInput{code, made.parts, tensors(made.Model.Graph.Inputs), tensors(made.Model.Graph.Outputs)}, nil
}

// checkWeights refuses weights that are not there or have another size than the graph's.
func checkWeights(graph *op.Graph, weights driver.Weights) error {
	if len(weights) != len(graph.Weights) {
		return diag.New(diag.ClassInput, "got %d weights, want %d: they are compiled into the graph",
			len(weights), len(graph.Weights))
	}
	for j, spec := range graph.Weights {
		size, err := pack.Bytes(spec)
		if err != nil {
			return err
		}
		if int64(len(weights[j].Bytes)) != size {
			return diag.New(diag.ClassInput, "weight %q: got %d bytes, want %d", spec.Name, len(weights[j].Bytes), size)
		}
	}
	return nil
}

// typeOf returns the type of an input or an output of the model.
func typeOf(v op.Value, output bool) (onnx.Type, error) {
	switch {
	case output && v.Type != op.F32:
		return 0, diag.New(diag.ClassInput, "output %q is %s: results leave a compiled graph as f32", v.Name, v.Type)
	case v.Type == op.F32:
		return onnx.Float32, nil
	case v.Type == op.U8:
		return onnx.Uint8, nil
	}
	return 0, diag.New(diag.ClassInput, "value %q is %s, want f32, or u8 rows", v.Name, v.Type)
}

// tensors returns the inputs or outputs of a model as the compiler's process is told.
func tensors(list []onnx.Value) (out []tensor) {
	for _, value := range list {
		out = append(out, tensor{value.Name, value.Type, int(value.Dims[0]), int(value.Dims[1])})
	}
	return out
}

// weight declares an initializer whose bytes go to the file of weights.
func (t *translator) weight(name string, typ onnx.Type, data []byte, dims ...int64) string {
	// One of another node may be in that node's order of columns.
	if slices.ContainsFunc(t.Model.Graph.Initializers, func(x onnx.Tensor) bool { return x.Name == name }) {
		name = fmt.Sprintf("n%d.%s", t.Node, name)
	}
	if pad := -t.size & (weightsAlign - 1); pad > 0 {
		t.parts = append(t.parts, make([]byte, pad))
		t.size += pad
	}
	t.Model.Graph.Initializers = append(t.Model.Graph.Initializers, onnx.Tensor{Name: name, Type: typ, Dims: dims,
		External: &onnx.External{Location: weightsFile, Offset: t.size, Length: int64(len(data))}})
	t.parts = append(t.parts, data)
	t.size += int64(len(data))
	return name
}

// zero16 returns the code of zero on the grid of 16 bits.
func (t *translator) zero16() string {
	return t.Constant(onnx.Tensor{Type: onnx.Uint16, Raw: []byte{0, 0x80}})
}

// zero8 returns the code of zero on the grid of 8 bits.
func (t *translator) zero8() string {
	return t.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{0x80}})
}

// translate writes a node.
func (t *translator) translate(node *op.Node, in []string, weights []int) error {
	operator := node.Op
	if t.Common(operator, in, func(k int) string { return t.vector(weights[k]) }) {
		return nil
	}
	switch operator.Kind {
	case op.QuantRows:
		return t.quantRows(node, in[0], weights[0])
	case op.MatMul:
		return t.matMul(node, in, weights)
	case op.GroupMatMul:
		return t.group(node, in, weights)
	case op.GLU:
		t.GLU(operator, in[0], t.turns[node.In[0]] != 0, t.activate)
	case op.Activate:
		t.activate("", operator.Act, in[0], t.Out[0])
	case op.Gate:
		t.Add("", "", "Mul", list(in[0], t.Do("sigmoid", "", "Sigmoid", in[1:])), t.Out)
	default:
		panic("BUG: no translation of " + string(operator.Kind))
	}
	return nil
}

// vector declares a weight of plain rows [1,N] as [N].
func (t *translator) vector(j int) string {
	spec := t.Graph.Weights[j]
	return t.weight(fmt.Sprintf("w%d", j), onnx.Float32, t.weights[j].Bytes, int64(spec.N))
}

// floats returns the values of a weight of plain rows.
func (t *translator) floats(j int) []float32 { return number.Floats(t.weights[j].Bytes) }

// step checks the step of a grid, which must be positive and leave room for the largest code in
// float32.
func step(what string, v float32) (float32, error) {
	if !(v > 0) || v > math.MaxFloat32/op.GridMax {
		return 0, diag.New(diag.ClassInput,
			"the step of the %s is %v, want a positive number below 2^113: calibrate the model", what, v)
	}
	return v, nil
}

// grid is x rounded to a multiple of step, as float32. Products that read the same value on the same
// grid share it.
func (t *translator) grid(suffix, x string, step float32) string {
	key := fmt.Sprintf("%s %x", x, math.Float32bits(step))
	if onGrid, ok := t.grids[key]; ok {
		return onGrid
	}
	scale, zero := t.Float(step), t.zero16()
	onGrid := t.Do(suffix+".float", "", "DequantizeLinear",
		list(t.Do(suffix+".codes", "", "QuantizeLinear", list(x, scale, zero)), scale, zero))
	t.grids[key] = onGrid
	return onGrid
}

// quantRows remembers what is rounded. The product that reads the codes rounds: where rows of several slots are split
// behind the rounding, the compiler leaves it out.
func (t *translator) quantRows(node *op.Node, in string, w int) error {
	for _, name := range node.Out {
		if t.Outputs[name] != "" {
			return diag.New(diag.ClassInput, "%q leaves the graph: "+
				"8-bit rows are made and multiplied in one compiled graph, or made outside it", name)
		}
	}
	scale, err := step("rows", t.floats(w)[0])
	if err != nil {
		return err
	}
	t.codes[node.Out[0]] = &coded{exact: in, scale: scale}
	return nil
}

// rounded returns the rows that codes stand for.
func (t *translator) rounded(codes *coded) string {
	if codes.rows == "" {
		step, zero := t.Float(codes.scale), t.zero8()
		within := t.Do("rows.clip", "", "Clip", list(codes.exact, t.Float(-127*codes.scale), t.Float(127*codes.scale)))
		codes.rows = t.Do("rows.float", "", "DequantizeLinear",
			list(t.Do("rows.codes", "", "QuantizeLinear", list(within, step, zero)), step, zero))
	}
	return codes.rows
}

// activate writes y = act(x).
func (t *translator) activate(suffix, act, in, out string) {
	switch act {
	case op.ReLU:
		t.Add(suffix, "", "Relu", list(in), list(out))
	case op.SiLU:
		t.Add(suffix, "", "Mul", list(in, t.Do("sigmoid", "", "Sigmoid", list(in))), list(out))
	default:
		approximate := "none"
		if act == op.GELUTanh {
			approximate = "tanh"
		}
		t.Add(suffix, "", "Gelu", list(in), list(out), onnx.String("approximate", approximate))
	}
}
