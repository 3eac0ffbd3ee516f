package qnn

import (
	"encoding/binary"
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

// maxRows bounds a graph's rows.
const maxRows = 1 << 16

// kinds are the operators that are translated, schemes those of products. What reads the cache or depends on the
// position of a call has no place in a compiled graph, whose inputs are its activations alone.
var (
	kinds = []op.Kind{op.Norm, op.LayerNorm, op.QuantRows, op.MatMul, op.GLU, op.Activate, op.Gate, op.Softcap,
		op.Clip, op.Add, op.Copy}
	schemes = op.SchemesOf("qnn")
)

// refuse names what is not translated.
func refuse(operator op.Op) error {
	switch {
	case operator.Kind == op.Attention || operator.Kind == op.KVAppend:
		return diag.New(diag.ClassInput,
			"operator %q is not compiled: it works on the cache, which lies outside a compiled graph", operator.Kind)
	case operator.Kind == op.Rope || operator.Kind == op.SelectRow:
		return diag.New(diag.ClassInput, "operator %q is not compiled: it depends on where a call is in the context, which a compiled graph is not told", operator.Kind)
	case !slices.Contains(kinds, operator.Kind):
		return diag.New(diag.ClassInput, "operator %q is not compiled", operator.Kind)
	case operator.Scheme != "" && !slices.Contains(schemes, operator.Scheme):
		return diag.New(diag.ClassInput, "scheme %q is not compiled, want one of %v", operator.Scheme, schemes)
	case operator.Form != "":
		return diag.New(diag.ClassInput, "products in the form %q are not compiled", operator.Form)
	case operator.Kind == op.QuantRows && !operator.Static:
		return diag.New(diag.ClassInput, "operator %q with a scale for each row is not compiled: graphs are compiled with the scales in them", operator.Kind)
	case operator.Scales > 1:
		return diag.New(diag.ClassInput, "operator %q with %d static scales to choose from is not compiled: a graph has one constant in it", operator.Kind, operator.Scales).
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
	codes   map[string]coded  // u8 rows made in the graph
	grids   map[string]string // tensor and step -> the tensor on that grid
	turns   map[string]int    // value whose columns of gate and up do not alternate, as its weight's were sorted
	parts   [][]byte          // of the file of weights
	size    int64             // of parts
}

// coded are u8 rows that a node of the graph makes: the rows they stand for, and their scale.
type coded struct {
	rows  string
	scale float32
}

// source is what a graph with its weights is to the compiler: a model, and the file that it reads its weights from.
type compilerInput struct {
	model   []byte
	weights [][]byte
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
	writer, err := onnxgraph.New(graph, typeOf)
	if err != nil {
		return nil, err
	}
	t := &translator{
		Writer: writer, weights: weights,
		codes: map[string]coded{}, grids: map[string]string{}, turns: map[string]int{},
	}
	if err := t.Nodes(t.translate); err != nil {
		return nil, err
	}
	code := t.Model.Marshal()
	if len(code) > onnx.MaxBytes {
		return nil, diag.New(diag.ClassInput, "the model has %d bytes without its weights, want at most %d",
			len(code), onnx.MaxBytes)
	}
	return &compilerInput{code, t.parts, tensors(t.Model.Graph.Inputs), tensors(t.Model.Graph.Outputs)}, nil
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

// typeOf is the type of an input or an output of the model.
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

func tensors(list []onnx.Value) (out []tensor) {
	for _, value := range list {
		out = append(out, tensor{value.Name, value.Type, int(value.Dims[0]), int(value.Dims[1])})
	}
	return out
}

// weight declares an initializer whose bytes go to the file of weights.
func (t *translator) weight(name string, typ onnx.Type, data []byte, dims ...int64) string {
	if slices.ContainsFunc(t.Model.Graph.Initializers, func(x onnx.Tensor) bool { return x.Name == name }) { // of another node, in whose order of columns
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

// The code of zero on the grid of 16 bits, and of 8.
func (t *translator) zero16() string {
	return t.Constant(onnx.Tensor{Type: onnx.Uint16, Raw: []byte{0, 0x80}})
}

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
	case op.GLU:
		t.GLU(operator, in[0], t.turns[node.In[0]] != 0, t.activate)
	case op.Activate:
		t.activate("", operator.Act, in[0], t.Out[0])
	case op.Gate:
		t.Add("", "", "Mul", onnxgraph.List(in[0], t.Do("sigmoid", "", "Sigmoid", in[1:])), t.Out)
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

// floats are the values of a weight of plain rows.
func (t *translator) floats(j int) []float32 { return floats(t.weights[j].Bytes) }

func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func bytesOf(v []float32) []byte {
	raw := make([]byte, 0, 4*len(v))
	for _, number := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(number))
	}
	return raw
}

// step checks the step of a grid.
func step(what string, v float32) (float32, error) {
	if !(v > 0) || v > math.MaxFloat32/op.GridMax {
		return 0, diag.New(diag.ClassInput,
			"the step of the %s is %v, want a positive number below 2^113: calibrate the model", what, v)
	}
	return v, nil
}

// grid is x rounded to a multiple of step, as float32.
func (t *translator) grid(suffix, x string, step float32) string {
	key := fmt.Sprintf("%s %x", x, math.Float32bits(step))
	if onGrid, ok := t.grids[key]; ok {
		return onGrid
	}
	scale, zero := t.Float(step), t.zero16()
	onGrid := t.Do(suffix+".float", "", "DequantizeLinear",
		onnxgraph.List(t.Do(suffix+".codes", "", "QuantizeLinear", onnxgraph.List(x, scale, zero)), scale, zero))
	t.grids[key] = onGrid
	return onGrid
}

// quantRows remembers the rows that its codes stand for, on a grid of 16 bits that holds the 8 exactly.
func (t *translator) quantRows(node *op.Node, in string, w int) error {
	for _, name := range node.Out {
		if t.Outputs[name] != "" {
			return diag.New(diag.ClassInput, "%q leaves the graph: 8-bit rows are made and multiplied in one compiled graph, or made outside it", name)
		}
	}
	scale, err := step("rows", t.floats(w)[0])
	if err != nil {
		return err
	}
	zero := t.zero8()
	codes := t.Do("codes", "", "QuantizeLinear",
		onnxgraph.List(t.Do("clip", "", "Clip", onnxgraph.List(in, t.Float(-127*scale), t.Float(127*scale))), t.Float(scale), zero))
	t.Out[0] = t.Do("float", "", "DequantizeLinear", onnxgraph.List(codes, t.Float(scale), zero))
	t.codes[node.Out[0]] = coded{t.Out[0], scale}
	return nil
}

// matrix is a weight as the compiler takes it. Columns may be in another order than the stored ones.
type matrix struct {
	values []byte
	scales []float32
	k, n   int
}

// matrix reads weight j; turn > 0 sorts columns that alternate in turns into halves.
func (t *translator) matrix(j, turn int) (matrix, error) {
	spec := t.Graph.Weights[j]
	values, at, scales, err := pack.OnnxParts(spec)
	if err != nil {
		return matrix{}, err
	}
	stored := matrix{values: t.weights[j].Bytes[:values], scales: floats(t.weights[j].Bytes[at : at+4*scales]),
		k: spec.K, n: spec.N}
	if turn == 0 {
		return stored, nil
	}
	from := sorted(stored.n, turn)
	to := make([]byte, len(stored.values))
	switch spec.Scheme {
	case "q8c":
		for number := range stored.k {
			row, old := to[number*stored.n:(number+1)*stored.n], stored.values[number*stored.n:(number+1)*stored.n]
			for col, source := range from {
				row[col] = old[source]
			}
		}
	case "w16":
		for row := range stored.k {
			for col, source := range from {
				copy(to[2*(row*stored.n+col):2*(row*stored.n+col)+2], stored.values[2*(row*stored.n+source):])
			}
		}
	case "q4c":
		for row := range stored.k {
			for col, source := range from {
				set4(to, row*stored.n+col, get4(stored.values, row*stored.n+source))
			}
		}
	case "q4b32":
		column := len(to) / stored.n
		for col, source := range from {
			copy(to[col*column:(col+1)*column], stored.values[source*column:])
		}
	default:
		panic("BUG: columns of " + spec.Scheme)
	}
	stored.values, stored.scales = to, permute(stored.scales, from)
	return stored, nil
}

// permute are the columns' numbers in another order; of blocks all those of a column stay together.
func permute(v []float32, from []int) []float32 {
	out, each := make([]float32, 0, len(v)), len(v)/len(from)
	for _, source := range from {
		out = append(out, v[source*each:(source+1)*each]...)
	}
	return out
}

// sorted lists the columns of gate and then those of up, which alternate in turns.
func sorted(n, turn int) []int {
	out := make([]int, n)
	for col := range n {
		half, at := col/turn%2, col/(2*turn)*turn+col%turn
		out[half*(n/2)+at] = col
	}
	return out
}

func get4(b []byte, i int) byte    { return b[i/2] >> (4 * (i & 1)) & 15 }
func set4(b []byte, i int, v byte) { b[i/2] = b[i/2]&^(15<<(4*(i&1))) | v&15<<(4*(i&1)) }

// alternates is the turn of the gated unit that alone reads a product's result, which then need not alternate:
// halves are split by the NPU for nothing. 0 without one.
func (t *translator) alternates(node *op.Node) int {
	name := node.Out[0]
	if t.Outputs[name] != "" {
		return 0
	}
	turn := 0
	for i := range t.Graph.Nodes {
		reader := &t.Graph.Nodes[i]
		if reader != node && slices.Contains(reader.Out, name) {
			return 0
		}
		if slices.Contains(reader.In, name) {
			if reader.Op.Kind != op.GLU || reader.Op.Interleave == reader.Op.N || turn != 0 {
				return 0
			}
			turn = reader.Op.Interleave
		}
	}
	return turn
}

func (t *translator) matMul(node *op.Node, in []string, weights []int) error {
	operator, j := node.Op, weights[0]
	turn := t.alternates(node)
	stored, err := t.matrix(j, turn)
	if err != nil {
		return err
	}
	t.turns[node.Out[0]] = turn
	var bias []float32
	if operator.Bias {
		bias = t.floats(weights[1])
		if turn > 0 {
			bias = permute(bias, sorted(operator.N, turn))
		}
		for col, number := range bias {
			if number-number != 0 {
				return diag.New(diag.ClassInput, "bias %q: column %d is %v", node.W[1], col, number)
			}
		}
	}
	switch operator.Scheme {
	case op.A16SQ8C, op.A16SQ4C:
		steps := t.floats(weights[len(weights)-1])
		sx, err := step("input", steps[0])
		if err != nil {
			return err
		}
		sy, err := step("output", slices.Max(steps[operator.N:]))
		if err != nil {
			return err
		}
		t.integers(operator, t.grid("in", in[0], sx), sx, j, stored, bias, sy, t.Out[0])
	case op.A8SQ8C:
		// Codes of 8 bits are every 256th of 16, and results have a grid that no such rows leave: the product of the
		// lengths of a row and a column bounds them.
		rows, sx, result := "", float32(1), t.Out[0]
		made, inside := t.codes[node.In[0]]
		if inside {
			rows, sx = made.rows, made.scale
		} else {
			rows, result = t.Do("rows", "", "DequantizeLinear", onnxgraph.List(in[0], t.Float(1), t.zero8())), t.Name("unscaled:")
			if operator.Bias {
				result, bias = t.Name("unscaled:"), nil
			}
		}
		sy := float32(127 * math.Sqrt(float64(operator.K)) * stored.longest() * float64(sx) / op.GridMax)
		for _, number := range bias {
			sy = max(sy, float32(math.Abs(float64(number)))/op.GridMax*2)
		}
		if sy, err = step("output", max(sy, 1e-30)); err != nil {
			return err
		}
		t.integers(operator, t.grid("in", rows, sx/256), sx/256, j, stored, bias, sy, result)
		if !inside {
			scaled := t.Out[0]
			if operator.Bias {
				scaled = t.Name("scaled:")
			}
			t.Add("scale", "", "Mul", onnxgraph.List(result, in[1]), onnxgraph.List(scaled))
			if operator.Bias {
				t.bias(scaled, weights[1], turn, t.Out[0])
			}
		}
	case op.A16FW16:
		rows := t.Do("half", "", "Cast", onnxgraph.List(in[0]), onnx.Int("to", int64(onnx.Float16)))
		operands, kind := onnxgraph.List(rows, t.weight(fmt.Sprintf("w%d",
			j), onnx.Float16, stored.values, int64(stored.k), int64(stored.n))), "MatMul"
		if operator.Bias {
			half := make([]byte, 0, 2*len(bias))
			for col, shift := range bias {
				image := number.FloatToHalf(shift)
				if image&0x7fff >= 0x7c00 {
					return diag.New(diag.ClassInput, "bias %q: column %d is %v, beyond half precision",
						node.W[1], col, shift)
				}
				half = binary.LittleEndian.AppendUint16(half, image)
			}
			operands, kind = append(operands, t.weight(fmt.Sprintf("w%d",
				weights[1]), onnx.Float16, half, int64(stored.n))), "Gemm"
		}
		t.Add("float", "", "Cast", onnxgraph.List(t.Do("", "", kind, operands)), t.Out, onnx.Int("to", int64(onnx.Float32)))
	case op.A16FQ4B32:
		// The NPU takes the operator with three dimensions only.
		blocks := int64((stored.k + 31) / 32)
		rows := t.Reshape("batch", in[0], 1, int64(operator.M), int64(operator.K))
		operands := onnxgraph.List(rows, t.weight(fmt.Sprintf("w%d", j), onnx.Uint8, stored.values, int64(stored.n), blocks, 16),
			t.weight(fmt.Sprintf("w%d.scale", j), onnx.Float32, bytesOf(stored.scales), int64(stored.n), blocks))
		result := t.Do("", onnx.Contrib, "MatMulNBits", operands, onnx.Int("K", int64(stored.k)),
			onnx.Int("N", int64(stored.n)), onnx.Int("bits", 4), onnx.Int("block_size", 32))
		product := t.Out[0]
		if operator.Bias {
			product = t.Name("product:")
		}
		t.Add("rows", "", "Reshape", onnxgraph.List(result, t.Ints(int64(operator.M), int64(operator.N))), onnxgraph.List(product))
		if operator.Bias {
			t.bias(product, weights[1], turn, t.Out[0])
		}
	default:
		panic("BUG: no translation of " + string(operator.Scheme))
	}
	return nil
}

// bias adds a row.
func (t *translator) bias(x string, w, turn int, y string) {
	row := t.floats(w)
	if turn > 0 {
		row = permute(row, sorted(len(row), turn))
	}
	t.Add("bias", "", "Add", onnxgraph.List(x, t.weight(fmt.Sprintf("w%d",
		w), onnx.Float32, bytesOf(row), int64(len(row)))), onnxgraph.List(y))
}

// longest is the largest euclidean length of a column of 8-bit codes with its scale.
func (m matrix) longest() float64 {
	sums := make([]float64, m.n)
	for i, code := range m.values {
		sums[i%m.n] += float64(int8(code)) * float64(int8(code))
	}
	top := 0.0
	for col, sum := range sums {
		top = max(top, math.Sqrt(sum)*float64(m.scales[col]))
	}
	return top
}

// maxBias bounds a bias in steps of its product: half of what 32 bits hold, the other half is the product's.
const maxBias = 1 << 30

// integers writes a product of codes with a scale for each column: x is on the grid of step sx, y on that of sy.
func (t *translator) integers(o op.Op, in string, sx float32, j int, stored matrix, bias []float32, sy float32, out string) {
	four := o.Scheme.Weight() == "q4c"
	top := slices.Max(stored.scales)
	if top == 0 {
		top = 1
	}
	changed := false
	for col, scale := range stored.scales { // a column of zeros may have any scale but 0
		if scale == 0 {
			stored.scales[col] = top
		}
		// A bias that is too large beside its column takes a coarser column: what that loses is far below a step of y.
		if bias == nil {
			continue
		}
		if size := math.Abs(float64(bias[col])); size > maxBias*float64(sx)*float64(stored.scales[col]) {
			if !changed {
				stored.values, changed = slices.Clone(stored.values), true
			}
			coarse := size / (maxBias * float64(sx))
			by := float64(stored.scales[col]) / coarse
			for row := range stored.k {
				i := row*stored.n + col
				if four {
					set4(stored.values, i, byte(int8(math.RoundToEven(float64(int8(get4(stored.values, i)<<4)>>4)*by))))
				} else {
					stored.values[i] = byte(int8(math.RoundToEven(float64(int8(stored.values[i])) * by)))
				}
			}
			stored.scales[col] = float32(coarse)
		}
	}
	cols := int64(stored.n)
	name := fmt.Sprintf("w%d", j)
	typ, zero := onnx.Int8, make([]byte, cols)
	if four {
		typ, zero = onnx.Int4, make([]byte, (cols+1)/2)
	}
	matrix := t.Do("weight", "", "DequantizeLinear", onnxgraph.List(t.weight(name, typ, stored.values, int64(stored.k), cols), t.weight(name+".scale", onnx.Float32, bytesOf(stored.scales), cols),
		t.Constant(onnx.Tensor{Type: typ, Dims: []int64{cols}, Raw: zero})), onnx.Int("axis", 1))
	operands, kind := onnxgraph.List(in, matrix), "MatMul"
	if bias != nil {
		codes, scales := make([]byte, 0, 4*cols), make([]float32, cols)
		for col, number := range bias {
			scales[col] = sx * stored.scales[col]
			codes = binary.LittleEndian.AppendUint32(codes,
				uint32(int32(math.RoundToEven(float64(number)/float64(scales[col])))))
		}
		operands = append(operands, t.Do("row", "", "DequantizeLinear", onnxgraph.List(t.weight(name+".bias", onnx.Int32, codes, cols), t.weight(name+".bias.scale", onnx.Float32, bytesOf(scales), cols),
			t.Constant(onnx.Tensor{Type: onnx.Int32, Dims: []int64{cols}, Raw: make([]byte, 4*cols)})), onnx.Int("axis", 0)))
		kind = "Gemm"
	}
	step, middle := t.Float(sy), t.zero16()
	t.Add("float", "", "DequantizeLinear", onnxgraph.List(t.Do("codes", "", "QuantizeLinear",
		onnxgraph.List(t.Do("", "", kind, operands), step, middle)), step, middle), onnxgraph.List(out))
}

// activate writes y = act(x).
func (t *translator) activate(suffix, act, in, out string) {
	switch act {
	case op.ReLU:
		t.Add(suffix, "", "Relu", onnxgraph.List(in), onnxgraph.List(out))
	case op.SiLU:
		t.Add(suffix, "", "Mul", onnxgraph.List(in, t.Do("sigmoid", "", "Sigmoid", onnxgraph.List(in))), onnxgraph.List(out))
	default:
		approximate := "none"
		if act == op.GELUTanh {
			approximate = "tanh"
		}
		t.Add(suffix, "", "Gelu", onnxgraph.List(in), onnxgraph.List(out), onnx.String("approximate", approximate))
	}
}
