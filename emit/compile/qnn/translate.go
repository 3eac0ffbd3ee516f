package qnn

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
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
	kinds   = []op.Kind{op.Norm, op.LayerNorm, op.QuantRows, op.MatMul, op.GLU, op.Activate, op.Gate, op.Softcap, op.Clip, op.Add, op.Copy}
	schemes = []op.Scheme{op.A16SQ8C, op.A16SQ4C, op.A16FW16, op.A16FQ4B32, op.A8SQ8C}
)

// refuse names what is not translated.
func refuse(o op.Op) error {
	switch {
	case o.Kind == op.Attention || o.Kind == op.KVAppend:
		return diag.New(diag.ClassInput, "operator %q is not compiled: it works on the cache, which lies outside a compiled graph", o.Kind)
	case o.Kind == op.Rope || o.Kind == op.SelectRow:
		return diag.New(diag.ClassInput, "operator %q is not compiled: it depends on where a call is in the context, which a compiled graph is not told", o.Kind)
	case !slices.Contains(kinds, o.Kind):
		return diag.New(diag.ClassInput, "operator %q is not compiled", o.Kind)
	case o.Scheme != "" && !slices.Contains(schemes, o.Scheme):
		return diag.New(diag.ClassInput, "scheme %q is not compiled, want one of %v", o.Scheme, schemes)
	case o.Form != "":
		return diag.New(diag.ClassInput, "products in the form %q are not compiled", o.Form)
	case o.Kind == op.QuantRows && !o.Static:
		return diag.New(diag.ClassInput, "operator %q with a scale for each row is not compiled: graphs are compiled with the scales in them", o.Kind)
	case o.Scales > 1:
		return diag.New(diag.ClassInput, "operator %q with %d static scales to choose from is not compiled: a graph has one constant in it", o.Kind, o.Scales).
			WithHint("permit %s for this processor, with a single static scale", op.A8SQ8C)
	case o.Rows() > maxRows:
		return diag.New(diag.ClassInput, "%d rows, want at most %d", o.Rows(), maxRows)
	}
	return nil
}

// translator writes one graph with its weights.
type translator struct {
	onnx.Builder
	g       *op.Graph
	w       driver.Weights
	now     map[string]string // value of the graph -> the tensor that it is at this point
	last    map[string]int    // value -> the last node that writes it
	outputs map[string]string // value -> its tensor among the outputs
	codes   map[string]coded  // u8 rows made in the graph
	grids   map[string]string // tensor and step -> the tensor on that grid
	turns   map[string]int    // value whose columns of gate and up do not alternate, as its weight's were sorted
	parts   [][]byte          // of the file of weights
	size    int64             // of parts

	out []string
}

// coded are u8 rows that a node of the graph makes: the rows they stand for, and their scale.
type coded struct {
	rows  string
	scale float32
}

// source is what a graph with its weights is to the compiler: a model, and the file that it reads its weights from.
type source struct {
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
func translate(g *op.Graph, w driver.Weights) (*source, error) {
	if len(w) != len(g.Weights) {
		return nil, diag.New(diag.ClassInput, "got %d weights, want %d: they are compiled into the graph", len(w), len(g.Weights))
	}
	for j, spec := range g.Weights {
		size, err := pack.Bytes(spec)
		if err != nil {
			return nil, err
		}
		if int64(len(w[j].Bytes)) != size {
			return nil, diag.New(diag.ClassInput, "weight %q: got %d bytes, want %d", spec.Name, len(w[j].Bytes), size)
		}
	}
	for i, n := range g.Nodes {
		if err := refuse(n.Op); err != nil {
			return nil, diag.New(diag.ClassInput, "node %d (%s): %w", i, n.Op.Kind, err)
		}
	}
	text, err := json.Marshal(g)
	if err != nil { // a NaN
		return nil, err
	}
	t := &translator{
		g: g, w: w, now: map[string]string{}, last: map[string]int{}, outputs: map[string]string{},
		codes: map[string]coded{}, grids: map[string]string{}, turns: map[string]int{},
		Builder: onnx.Builder{Model: &onnx.Model{IR: onnx.IR, Producer: "hetc", Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset}, {Domain: onnx.Contrib, Version: onnx.ContribOpset}},
			Props: []onnx.Prop{{Key: graphKey, Value: string(text)}}}},
	}
	t.Model.Graph.Name = "hetc"
	for i, v := range g.Inputs {
		name := fmt.Sprintf("i%d", i)
		if _, dup := t.now[v.Name]; dup {
			return nil, diag.New(diag.ClassInput, "input %q is listed twice", v.Name)
		}
		t.now[v.Name] = name
		if err := t.declare(&t.Model.Graph.Inputs, name, v); err != nil {
			return nil, err
		}
	}
	for i, n := range g.Nodes {
		for _, name := range n.Out {
			t.last[name] = i
		}
	}
	for i, v := range g.Outputs {
		name := fmt.Sprintf("o%d", i)
		if _, dup := t.outputs[v.Name]; dup {
			return nil, diag.New(diag.ClassInput, "output %q is listed twice", v.Name)
		}
		if _, written := t.last[v.Name]; !written {
			return nil, diag.New(diag.ClassInput, "output %q is an input that no node writes", v.Name)
		}
		if v.Type != op.F32 {
			return nil, diag.New(diag.ClassInput, "output %q is %s: results leave a compiled graph as f32", v.Name, v.Type)
		}
		t.outputs[v.Name] = name
		if err := t.declare(&t.Model.Graph.Outputs, name, v); err != nil {
			return nil, err
		}
	}
	for i := range g.Nodes {
		if err := t.translate(i); err != nil {
			return nil, diag.New(diag.ClassInput, "node %d (%s): %w", i, g.Nodes[i].Op.Kind, err)
		}
	}
	code := t.Model.Marshal()
	if len(code) > onnx.MaxBytes {
		return nil, diag.New(diag.ClassInput, "the model has %d bytes without its weights, want at most %d", len(code), onnx.MaxBytes)
	}
	return &source{code, t.parts, tensors(t.Model.Graph.Inputs), tensors(t.Model.Graph.Outputs)}, nil
}

func tensors(list []onnx.Value) (out []tensor) {
	for _, v := range list {
		out = append(out, tensor{v.Name, v.Type, int(v.Dims[0]), int(v.Dims[1])})
	}
	return out
}

// graphKey is the entry of the metadata that holds the graph.
const graphKey = "hetc.graph"

func (t *translator) declare(list *[]onnx.Value, name string, v op.Value) error {
	typ, ok := map[op.Type]onnx.Type{op.F32: onnx.Float32, op.U8: onnx.Uint8}[v.Type]
	if !ok {
		return diag.New(diag.ClassInput, "value %q is %s, want f32, or u8 rows", v.Name, v.Type)
	}
	*list = append(*list, onnx.Value{Name: name, Type: typ, Dims: []int64{int64(v.Rows), int64(v.Cols)}})
	return nil
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

func list(s ...string) []string { return s }

// The code of zero on the grid of 16 bits, and of 8.
func (t *translator) zero16() string {
	return t.Constant(onnx.Tensor{Type: onnx.Uint16, Raw: []byte{0, 0x80}})
}

func (t *translator) zero8() string {
	return t.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{0x80}})
}

// reshape gives a tensor another shape.
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
	w := make([]int, len(n.W))
	for k, name := range n.W {
		w[k] = slices.IndexFunc(t.g.Weights, func(s op.WeightSpec) bool { return s.Name == name })
		have, want := t.g.Weights[w[k]], o.WeightSpec(o.Sig().W[k], op.OnnxLayout)
		if have.Name = want.Name; have != want {
			return diag.New(diag.ClassInput, "weight %q is %s %s [%d,%d], want %s %s [%d,%d]", name, have.Scheme, have.Layout, have.K, have.N, want.Scheme, want.Layout, want.K, want.N)
		}
	}
	var err error
	switch o.Kind {
	case op.Norm:
		t.Add("", "", "SimplifiedLayerNormalization", list(in[0], t.vector(w[0])), t.out, onnx.Int("axis", -1), onnx.Float("epsilon", epsilon(o)), onnx.Int("stash_type", 1))
	case op.LayerNorm:
		t.Add("", "", "LayerNormalization", list(in[0], t.vector(w[0]), t.vector(w[1])), t.out, onnx.Int("axis", -1), onnx.Float("epsilon", epsilon(o)))
	case op.QuantRows:
		err = t.quantRows(n, in[0], w[0])
	case op.MatMul:
		err = t.matMul(n, in, w)
	case op.GLU:
		t.glu(o, n.In[0], in[0])
	case op.Activate:
		t.activate("", o.Act, in[0], t.out[0])
	case op.Gate:
		t.Add("", "", "Mul", list(in[0], t.Do("sigmoid", "", "Sigmoid", in[1:])), t.out)
	case op.Softcap:
		h := t.Do("tanh", "", "Tanh", list(t.Do("div", "", "Div", list(in[0], t.Float(float32(o.Cap))))))
		t.Add("", "", "Mul", list(h, t.Float(float32(o.Cap))), t.out)
	case op.Clip:
		t.Add("", "", "Clip", list(in[0], t.Float(float32(-o.Cap)), t.Float(float32(o.Cap))), t.out)
	case op.Add:
		t.Add("", "", "Add", in, t.out)
	case op.Copy:
		t.Add("", "", "Identity", in, t.out)
	default:
		panic("BUG: no translation of " + string(o.Kind))
	}
	if err != nil {
		return err
	}
	for k, name := range n.Out {
		t.now[name] = t.out[k]
	}
	return nil
}

// vector declares a weight of plain rows [1,N] as [N].
func (t *translator) vector(j int) string {
	spec := t.g.Weights[j]
	return t.weight(fmt.Sprintf("w%d", j), onnx.Float32, t.w[j].Bytes, int64(spec.N))
}

// epsilon is never 0, so that rows of zeros give zeros.
func epsilon(o op.Op) float32 { return max(float32(o.Eps), 1.1754944e-38) }

// floats are the values of a weight of plain rows.
func (t *translator) floats(j int) []float32 { return floats(t.w[j].Bytes) }

func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func bytesOf(v []float32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// step checks the step of a grid.
func step(what string, v float32) (float32, error) {
	if !(v > 0) || v > math.MaxFloat32/op.GridMax {
		return 0, diag.New(diag.ClassInput, "the step of the %s is %v, want a positive number below 2^113: calibrate the model", what, v)
	}
	return v, nil
}

// grid is x rounded to a multiple of step, as float32.
func (t *translator) grid(suffix, x string, step float32) string {
	key := fmt.Sprintf("%s %x", x, math.Float32bits(step))
	if y, ok := t.grids[key]; ok {
		return y
	}
	s, z := t.Float(step), t.zero16()
	y := t.Do(suffix+".float", "", "DequantizeLinear", list(t.Do(suffix+".codes", "", "QuantizeLinear", list(x, s, z)), s, z))
	t.grids[key] = y
	return y
}

// quantRows remembers the rows that its codes stand for, on a grid of 16 bits that holds the 8 exactly.
func (t *translator) quantRows(n *op.Node, x string, w int) error {
	for _, name := range n.Out {
		if t.outputs[name] != "" {
			return diag.New(diag.ClassInput, "%q leaves the graph: 8-bit rows are made and multiplied in one compiled graph, or made outside it", name)
		}
	}
	s, err := step("rows", t.floats(w)[0])
	if err != nil {
		return err
	}
	z := t.zero8()
	q := t.Do("codes", "", "QuantizeLinear", list(t.Do("clip", "", "Clip", list(x, t.Float(-127*s), t.Float(127*s))), t.Float(s), z))
	t.out[0] = t.Do("float", "", "DequantizeLinear", list(q, t.Float(s), z))
	t.codes[n.Out[0]] = coded{t.out[0], s}
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
	spec := t.g.Weights[j]
	values, at, scales, err := pack.OnnxParts(spec)
	if err != nil {
		return matrix{}, err
	}
	m := matrix{values: t.w[j].Bytes[:values], scales: floats(t.w[j].Bytes[at : at+4*scales]), k: spec.K, n: spec.N}
	if turn == 0 {
		return m, nil
	}
	from := sorted(m.n, turn)
	to := make([]byte, len(m.values))
	switch spec.Scheme {
	case "q8c":
		for k := range m.k {
			row, old := to[k*m.n:(k+1)*m.n], m.values[k*m.n:(k+1)*m.n]
			for c, f := range from {
				row[c] = old[f]
			}
		}
	case "w16":
		for k := range m.k {
			for c, f := range from {
				copy(to[2*(k*m.n+c):2*(k*m.n+c)+2], m.values[2*(k*m.n+f):])
			}
		}
	case "q4c":
		for k := range m.k {
			for c, f := range from {
				set4(to, k*m.n+c, get4(m.values, k*m.n+f))
			}
		}
	case "q4b32":
		column := len(to) / m.n
		for c, f := range from {
			copy(to[c*column:(c+1)*column], m.values[f*column:])
		}
	default:
		panic("BUG: columns of " + spec.Scheme)
	}
	m.values, m.scales = to, permute(m.scales, from)
	return m, nil
}

// permute are the columns' numbers in another order; of blocks all those of a column stay together.
func permute(v []float32, from []int) []float32 {
	out, each := make([]float32, 0, len(v)), len(v)/len(from)
	for _, f := range from {
		out = append(out, v[f*each:(f+1)*each]...)
	}
	return out
}

// sorted lists the columns of gate and then those of up, which alternate in turns.
func sorted(n, turn int) []int {
	out := make([]int, n)
	for c := range n {
		half, at := c/turn%2, c/(2*turn)*turn+c%turn
		out[half*(n/2)+at] = c
	}
	return out
}

func get4(b []byte, i int) byte    { return b[i/2] >> (4 * (i & 1)) & 15 }
func set4(b []byte, i int, v byte) { b[i/2] = b[i/2]&^(15<<(4*(i&1))) | v&15<<(4*(i&1)) }

// alternates is the turn of the gated unit that alone reads a product's result, which then need not alternate:
// halves are split by the NPU for nothing. 0 without one.
func (t *translator) alternates(n *op.Node) int {
	name := n.Out[0]
	if t.outputs[name] != "" {
		return 0
	}
	turn := 0
	for i := range t.g.Nodes {
		r := &t.g.Nodes[i]
		if r != n && slices.Contains(r.Out, name) {
			return 0
		}
		if slices.Contains(r.In, name) {
			if r.Op.Kind != op.GLU || r.Op.Interleave == r.Op.N || turn != 0 {
				return 0
			}
			turn = r.Op.Interleave
		}
	}
	return turn
}

func (t *translator) matMul(n *op.Node, in []string, w []int) error {
	o, j := n.Op, w[0]
	turn := t.alternates(n)
	m, err := t.matrix(j, turn)
	if err != nil {
		return err
	}
	t.turns[n.Out[0]] = turn
	var bias []float32
	if o.Bias {
		bias = t.floats(w[1])
		if turn > 0 {
			bias = permute(bias, sorted(o.N, turn))
		}
		for c, b := range bias {
			if b-b != 0 {
				return diag.New(diag.ClassInput, "bias %q: column %d is %v", n.W[1], c, b)
			}
		}
	}
	switch o.Scheme {
	case op.A16SQ8C, op.A16SQ4C:
		steps := t.floats(w[len(w)-1])
		sx, err := step("input", steps[0])
		if err != nil {
			return err
		}
		sy, err := step("output", slices.Max(steps[o.N:]))
		if err != nil {
			return err
		}
		t.integers(o, t.grid("in", in[0], sx), sx, j, m, bias, sy, t.out[0])
	case op.A8SQ8C:
		// Codes of 8 bits are every 256th of 16, and results have a grid that no such rows leave: the product of the
		// lengths of a row and a column bounds them.
		x, sx, y := "", float32(1), t.out[0]
		made, inside := t.codes[n.In[0]]
		if inside {
			x, sx = made.rows, made.scale
		} else {
			x, y = t.Do("rows", "", "DequantizeLinear", list(in[0], t.Float(1), t.zero8())), t.Name("unscaled:")
			if o.Bias {
				y, bias = t.Name("unscaled:"), nil
			}
		}
		sy := float32(127 * math.Sqrt(float64(o.K)) * m.longest() * float64(sx) / op.GridMax)
		for _, b := range bias {
			sy = max(sy, float32(math.Abs(float64(b)))/op.GridMax*2)
		}
		if sy, err = step("output", max(sy, 1e-30)); err != nil {
			return err
		}
		t.integers(o, t.grid("in", x, sx/256), sx/256, j, m, bias, sy, y)
		if !inside {
			scaled := t.out[0]
			if o.Bias {
				scaled = t.Name("scaled:")
			}
			t.Add("scale", "", "Mul", list(y, in[1]), list(scaled))
			if o.Bias {
				t.bias(scaled, w[1], turn, t.out[0])
			}
		}
	case op.A16FW16:
		x := t.Do("half", "", "Cast", list(in[0]), onnx.Int("to", int64(onnx.Float16)))
		operands, kind := list(x, t.weight(fmt.Sprintf("w%d", j), onnx.Float16, m.values, int64(m.k), int64(m.n))), "MatMul"
		if o.Bias {
			half := make([]byte, 0, 2*len(bias))
			for c, b := range bias {
				h := pack.FloatToHalf(b)
				if h&0x7fff >= 0x7c00 {
					return diag.New(diag.ClassInput, "bias %q: column %d is %v, beyond half precision", n.W[1], c, b)
				}
				half = binary.LittleEndian.AppendUint16(half, h)
			}
			operands, kind = append(operands, t.weight(fmt.Sprintf("w%d", w[1]), onnx.Float16, half, int64(m.n))), "Gemm"
		}
		t.Add("float", "", "Cast", list(t.Do("", "", kind, operands)), t.out, onnx.Int("to", int64(onnx.Float32)))
	case op.A16FQ4B32:
		// The NPU takes the operator with three dimensions only.
		blocks := int64((m.k + 31) / 32)
		x := t.reshape("batch", in[0], 1, int64(o.M), int64(o.K))
		operands := list(x, t.weight(fmt.Sprintf("w%d", j), onnx.Uint8, m.values, int64(m.n), blocks, 16), t.weight(fmt.Sprintf("w%d.scale", j), onnx.Float32, bytesOf(m.scales), int64(m.n), blocks))
		y := t.Do("", onnx.Contrib, "MatMulNBits", operands, onnx.Int("K", int64(m.k)), onnx.Int("N", int64(m.n)), onnx.Int("bits", 4), onnx.Int("block_size", 32))
		product := t.out[0]
		if o.Bias {
			product = t.Name("product:")
		}
		t.Add("rows", "", "Reshape", list(y, t.Ints(int64(o.M), int64(o.N))), list(product))
		if o.Bias {
			t.bias(product, w[1], turn, t.out[0])
		}
	default:
		panic("BUG: no translation of " + string(o.Scheme))
	}
	return nil
}

// bias adds a row.
func (t *translator) bias(x string, w, turn int, y string) {
	row := t.floats(w)
	if turn > 0 {
		row = permute(row, sorted(len(row), turn))
	}
	t.Add("bias", "", "Add", list(x, t.weight(fmt.Sprintf("w%d", w), onnx.Float32, bytesOf(row), int64(len(row)))), list(y))
}

// longest is the largest euclidean length of a column of 8-bit codes with its scale.
func (m matrix) longest() float64 {
	sums := make([]float64, m.n)
	for i, v := range m.values {
		sums[i%m.n] += float64(int8(v)) * float64(int8(v))
	}
	top := 0.0
	for c, s := range sums {
		top = max(top, math.Sqrt(s)*float64(m.scales[c]))
	}
	return top
}

// maxBias bounds a bias in steps of its product: half of what 32 bits hold, the other half is the product's.
const maxBias = 1 << 30

// integers writes a product of codes with a scale for each column: x is on the grid of step sx, y on that of sy.
func (t *translator) integers(o op.Op, x string, sx float32, j int, m matrix, bias []float32, sy float32, y string) {
	four := o.Scheme.Weight() == "q4c"
	top := slices.Max(m.scales)
	if top == 0 {
		top = 1
	}
	changed := false
	for c, s := range m.scales { // a column of zeros may have any scale but 0
		if s == 0 {
			m.scales[c] = top
		}
		// A bias that is too large beside its column takes a coarser column: what that loses is far below a step of y.
		if bias == nil {
			continue
		}
		if b := math.Abs(float64(bias[c])); b > maxBias*float64(sx)*float64(m.scales[c]) {
			if !changed {
				m.values, changed = slices.Clone(m.values), true
			}
			coarse := b / (maxBias * float64(sx))
			by := float64(m.scales[c]) / coarse
			for k := range m.k {
				i := k*m.n + c
				if four {
					set4(m.values, i, byte(int8(math.RoundToEven(float64(int8(get4(m.values, i)<<4)>>4)*by))))
				} else {
					m.values[i] = byte(int8(math.RoundToEven(float64(int8(m.values[i])) * by)))
				}
			}
			m.scales[c] = float32(coarse)
		}
	}
	n := int64(m.n)
	name := fmt.Sprintf("w%d", j)
	typ, zero := onnx.Int8, make([]byte, n)
	if four {
		typ, zero = onnx.Int4, make([]byte, (n+1)/2)
	}
	w := t.Do("weight", "", "DequantizeLinear", list(t.weight(name, typ, m.values, int64(m.k), n), t.weight(name+".scale", onnx.Float32, bytesOf(m.scales), n),
		t.Constant(onnx.Tensor{Type: typ, Dims: []int64{n}, Raw: zero})), onnx.Int("axis", 1))
	operands, kind := list(x, w), "MatMul"
	if bias != nil {
		codes, scales := make([]byte, 0, 4*n), make([]float32, n)
		for c, b := range bias {
			scales[c] = sx * m.scales[c]
			codes = binary.LittleEndian.AppendUint32(codes, uint32(int32(math.RoundToEven(float64(b)/float64(scales[c])))))
		}
		operands = append(operands, t.Do("row", "", "DequantizeLinear", list(t.weight(name+".bias", onnx.Int32, codes, n), t.weight(name+".bias.scale", onnx.Float32, bytesOf(scales), n),
			t.Constant(onnx.Tensor{Type: onnx.Int32, Dims: []int64{n}, Raw: make([]byte, 4*n)})), onnx.Int("axis", 0)))
		kind = "Gemm"
	}
	s, z := t.Float(sy), t.zero16()
	t.Add("float", "", "DequantizeLinear", list(t.Do("codes", "", "QuantizeLinear", list(t.Do("", "", kind, operands), s, z)), s, z), list(y))
}

// glu splits columns of gate and up, which alternate in turns unless their weight's were sorted.
func (t *translator) glu(o op.Op, name, x string) {
	turn, rows, turns := int64(o.Interleave), int64(o.Rows()), int64(o.N/o.Interleave)
	y := t.out[0]
	alternate := turns > 1 && t.turns[name] == 0
	if alternate {
		x = t.reshape("turns", x, rows*turns, 2*turn)
		y = t.Name("mul:")
	}
	gate, up, act := t.Name("gate:"), t.Name("up:"), t.Name("act:")
	t.Add("split", "", "Split", list(x), list(gate, up), onnx.Int("axis", 1), onnx.Int("num_outputs", 2))
	t.activate("act", o.Act, gate, act)
	t.Add("", "", "Mul", list(act, up), list(y))
	if alternate {
		t.Add("columns", "", "Reshape", list(y, t.Ints(rows, int64(o.N))), t.out)
	}
}

// activate writes y = act(x).
func (t *translator) activate(suffix, act, x, y string) {
	switch act {
	case op.ReLU:
		t.Add(suffix, "", "Relu", list(x), list(y))
	case op.SiLU:
		t.Add(suffix, "", "Mul", list(x, t.Do("sigmoid", "", "Sigmoid", list(x))), list(y))
	default:
		approximate := "none"
		if act == op.GELUTanh {
			approximate = "tanh"
		}
		t.Add(suffix, "", "Gelu", list(x), list(y), onnx.String("approximate", approximate))
	}
}
