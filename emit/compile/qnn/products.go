package qnn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// How products are written: a weight becomes a matrix, whose columns may be sorted on the way; matMul chooses the form
// of the scheme, and integers, halfPrecision or blocks write it.

// matrix is a weight as the compiler takes it. Columns may be in another order than the stored ones.
type matrix struct {
	values []byte    // codes or numbers [k,n], or blocks of columns
	scales []float32 // of a column, or of the blocks of a column
	k, n   int
}

// matrix reads weight j; turn > 0 sorts columns that alternate in turns into halves.
func (t *translator) matrix(j, turn int) (matrix, error) {
	spec := t.Graph.Weights[j]
	values, at, scales, err := pack.OnnxParts(spec)
	if err != nil {
		return matrix{}, err
	}
	stored := matrix{values: t.weights[j].Bytes[:values], scales: number.Floats(t.weights[j].Bytes[at : at+4*scales]),
		k: spec.K, n: spec.N}
	if turn == 0 {
		return stored, nil
	}
	from := halves(stored.n, turn)
	stored.values = permuteColumns(stored, spec.Scheme, from)
	stored.scales = permute(stored.scales, from)
	return stored, nil
}

// permuteColumns returns the codes or numbers of a matrix in another order: column col of the result is column
// from[col] of what is stored.
func permuteColumns(stored matrix, scheme string, from []int) []byte {
	to := make([]byte, len(stored.values))
	switch scheme {
	case "q8c", "w16":
		size := map[string]int{"q8c": 1, "w16": 2}[scheme] // bytes of an element
		for row := range stored.k {
			for col, source := range from {
				at, old := size*(row*stored.n+col), size*(row*stored.n+source)
				copy(to[at:at+size], stored.values[old:])
			}
		}
	case "q4c":
		for row := range stored.k {
			for col, source := range from {
				set4(to, row*stored.n+col, get4(stored.values, row*stored.n+source))
			}
		}
	case "q4b32":
		// Blocks of a column follow each other, so whole columns move.
		column := len(to) / stored.n
		for col, source := range from {
			copy(to[col*column:(col+1)*column], stored.values[source*column:])
		}
	default:
		panic("BUG: columns of " + scheme)
	}
	return to
}

// permute returns the columns' numbers in another order; of blocks all those of a column stay together.
func permute(v []float32, from []int) []float32 {
	out, each := make([]float32, 0, len(v)), len(v)/len(from)
	for _, source := range from {
		out = append(out, v[source*each:(source+1)*each]...)
	}
	return out
}

// halves lists the columns of gate and then those of up, which alternate in turns.
func halves(n, turn int) []int {
	out := make([]int, n)
	for col := range n {
		half, at := col/turn%2, col/(2*turn)*turn+col%turn
		out[half*(n/2)+at] = col
	}
	return out
}

// get4 and set4 are the 4-bit code at an index; two share a byte, the first in its low half.
func get4(b []byte, i int) byte    { return b[i/2] >> (4 * (i & 1)) & 15 }
func set4(b []byte, i int, v byte) { b[i/2] = b[i/2]&^(15<<(4*(i&1))) | v&15<<(4*(i&1)) }

// alternates returns the turn of the gated unit that alone reads a product's result, 0 without one. Such a
// result need not alternate: its columns are sorted into halves when it is compiled, which the NPU
// splits for nothing.
func (t *translator) alternates(node *op.Node) int {
	name := node.Out[0]
	if t.Outputs[name] != "" {
		return 0
	}
	turn := 0
	for i := range t.Graph.Nodes {
		reader := &t.Graph.Nodes[i]
		if i != t.Node && slices.Contains(reader.Out, name) {
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

// product is a product that is written: its matrix, and the bias in the matrix's order of columns.
type product struct {
	op.Op
	node   *op.Node
	name   string // of the matrix
	matrix matrix
	bias   []float32 // nil without
	shift  int       // the number of the bias's weight
	turn   int       // > 0: columns of gate and up were sorted into halves
}

// matMul writes a product in the way of its scheme.
func (t *translator) matMul(node *op.Node, in []string, weights []int) error {
	made := &product{Op: node.Op, node: node, name: fmt.Sprintf("w%d", weights[0]), turn: t.alternates(node)}
	var err error
	if made.matrix, err = t.matrix(weights[0], made.turn); err != nil {
		return err
	}
	t.turns[node.Out[0]] = made.turn
	if made.Bias {
		made.shift = weights[1]
		made.bias = t.biasRow(made)
		for col, shift := range made.bias {
			if shift-shift != 0 {
				return diag.New(diag.ClassInput, "bias %q: column %d is %v", node.W[1], col, shift)
			}
		}
	}
	switch made.Scheme {
	case op.A16SQ8C, op.A16SQ4C:
		return t.onGrid(made, in[0], t.floats(weights[len(weights)-1]))
	case op.A8SQ8C, op.A8OQ8C:
		return t.eightBit(made, in)
	case op.A16FW16:
		return t.halfPrecision(made, in[0])
	case op.A16FQ8C:
		made.matrix = made.matrix.inBlocks()
		t.blocks(made, in[0], 8)
		return nil
	case op.A16FQ4B32:
		t.blocks(made, in[0], 4)
		return nil
	}
	panic("BUG: no translation of " + string(made.Scheme))
}

// group writes a product of several matrices. Rows that were quantised in the graph are split before they are rounded.
func (t *translator) group(node *op.Node, in []string, weights []int) error {
	made, inside := t.codes[node.In[0]]
	if inside {
		in = list(made.exact)
	}
	return t.Group(node.Op, in, func(slot int, one op.Op, in []string) error {
		part := *node
		part.Op, part.W = one, node.W[slot:slot+1]
		if inside {
			part.In = []string{fmt.Sprintf("%s of slot %d", node.In[0], slot), node.In[1]}
			t.codes[part.In[0]] = &coded{exact: in[0], scale: made.scale}
		}
		return t.matMul(&part, in, weights[slot:slot+1])
	})
}

// onGrid writes a product of 16-bit codes. steps are the weight [2,N]: of what enters, and of the results.
func (t *translator) onGrid(p *product, in string, steps []float32) error {
	inStep, err := step("input", steps[0])
	if err != nil {
		return err
	}
	outStep, err := step("output", slices.Max(steps[p.N:]))
	if err != nil {
		return err
	}
	t.integers(p, t.grid("in", in, inStep), inStep, outStep, t.Out[0])
	return nil
}

// eightBit writes a product of 8-bit codes. They are every 256th code of 16 bits, and results have a grid that no such
// rows leave: the product of the lengths of a row and a column bounds them. Rows made outside the graph have a scale
// each, which multiplies the results, and then the bias is added.
func (t *translator) eightBit(p *product, in []string) error {
	made, inside := t.codes[p.node.In[0]]
	var rows string
	inStep, out := float32(1), t.Out[0]
	if inside {
		rows, inStep = t.rounded(made), made.scale
	} else {
		rows = t.Do("rows", "", "DequantizeLinear", list(in[0], t.Float(1), t.zero8()))
		out, p.bias = t.Name("unscaled:"), nil
	}
	// By Cauchy and Schwarz: a row of codes up to 127 is no longer than 127 times the root of its length.
	outStep := float32(127 * math.Sqrt(float64(p.K)) * p.matrix.longest() * float64(inStep) / op.GridMax)
	for _, shift := range p.bias {
		outStep = max(outStep, float32(math.Abs(float64(shift)))/op.GridMax*2)
	}
	outStep, err := step("output", max(outStep, 1e-30))
	if err != nil {
		return err
	}
	t.integers(p, t.grid("in", rows, inStep/256), inStep/256, outStep, out)
	if inside {
		return nil
	}
	scaled := t.Out[0]
	if p.Bias {
		scaled = t.Name("scaled:")
	}
	t.Add("scale", "", "Mul", list(out, in[1]), list(scaled))
	if p.Bias {
		t.addBias(p, scaled)
	}
	return nil
}

// halfPrecision writes a product of half-precision numbers.
func (t *translator) halfPrecision(p *product, in string) error {
	cols := int64(p.matrix.n)
	rows := t.Do("half", "", "Cast", list(in), onnx.Int("to", int64(onnx.Float16)))
	operands, kind := list(rows, t.weight(p.name, onnx.Float16, p.matrix.values, int64(p.matrix.k), cols)), "MatMul"
	if p.Bias {
		half := make([]byte, 0, 2*len(p.bias))
		for col, shift := range p.bias {
			image := number.FloatToHalf(shift)
			if image&0x7fff >= 0x7c00 {
				return diag.New(diag.ClassInput, "bias %q: column %d is %v, beyond half precision",
					p.node.W[1], col, shift)
			}
			half = binary.LittleEndian.AppendUint16(half, image)
		}
		operands, kind = append(operands, t.weight(fmt.Sprintf("w%d", p.shift), onnx.Float16, half, cols)), "Gemm"
	}
	t.Add("float", "", "Cast", list(t.Do("", "", kind, operands)), t.Out, onnx.Int("to", int64(onnx.Float32)))
	return nil
}

// blockRows is how many values of a column share a scale in the NPU's product of blocks.
const blockRows = 32

// blocks writes a product in half precision with weights whose columns fall into blocks of codes with a scale each.
// The NPU keeps the codes as they are, and takes the operator with three dimensions only.
func (t *translator) blocks(p *product, in string, bits int64) {
	cols, blocks := int64(p.matrix.n), int64((p.matrix.k+blockRows-1)/blockRows)
	rows := t.Reshape("batch", in, 1, int64(p.M), int64(p.K))
	values := t.weight(p.name, onnx.Uint8, p.matrix.values, cols, blocks, blockRows*bits/8)
	scales := t.weight(p.name+".scale", onnx.Float32, number.Bytes(p.matrix.scales), cols, blocks)
	result := t.Do("", onnx.Contrib, "MatMulNBits", list(rows, values, scales), onnx.Int("K", int64(p.matrix.k)),
		onnx.Int("N", cols), onnx.Int("bits", bits), onnx.Int("block_size", blockRows))
	product := t.Out[0]
	if p.Bias {
		product = t.Name("product:")
	}
	t.Add("rows", "", "Reshape", list(result, t.Ints(int64(p.M), int64(p.N))), list(product))
	if p.Bias {
		t.addBias(p, product)
	}
}

// inBlocks returns a matrix of 8-bit codes [K,N] with a scale for each column, as blocks [N,blocks,32] of codes around
// 128 that repeat the scale of their column.
func (m matrix) inBlocks() matrix {
	count := (m.k + blockRows - 1) / blockRows
	out := matrix{k: m.k, n: m.n, values: bytes.Repeat([]byte{128}, m.n*count*blockRows)}
	for col, scale := range m.scales {
		for range count {
			out.scales = append(out.scales, scale)
		}
		for row := range m.k {
			out.values[col*count*blockRows+row] = m.values[row*m.n+col] + 128
		}
	}
	return out
}

// biasRow returns the bias of a product in the order of its columns.
func (t *translator) biasRow(p *product) []float32 {
	row := t.floats(p.shift)
	if p.turn > 0 {
		row = permute(row, halves(len(row), p.turn))
	}
	return row
}

// addBias writes the sum of a product and its bias, as the result.
func (t *translator) addBias(p *product, in string) {
	row := t.biasRow(p)
	shift := t.weight(fmt.Sprintf("w%d", p.shift), onnx.Float32, number.Bytes(row), int64(len(row)))
	t.Add("bias", "", "Add", list(in, shift), t.Out[:1])
}

// longest returns the largest euclidean length of a column of 8-bit codes with its scale.
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

// fitBias makes columns coarser whose bias is too large beside them, and gives columns of zeros a scale that is not 0.
// What a coarser column loses is far below a step of the result.
func (p *product) fitBias(inStep float32) {
	matrix := &p.matrix
	top := slices.Max(matrix.scales)
	if top == 0 {
		top = 1
	}
	changed := false
	for col := range matrix.scales {
		if matrix.scales[col] == 0 {
			matrix.scales[col] = top
		}
		if p.bias == nil {
			continue
		}
		size := math.Abs(float64(p.bias[col]))
		if size <= maxBias*float64(inStep)*float64(matrix.scales[col]) {
			continue
		}
		if !changed {
			matrix.values, changed = slices.Clone(matrix.values), true
		}
		coarse := size / (maxBias * float64(inStep))
		matrix.coarsen(col, float64(matrix.scales[col])/coarse, p.isFourBit())
		matrix.scales[col] = float32(coarse)
	}
}

// isFourBit reports whether two codes share a byte.
func (p *product) isFourBit() bool { return p.Scheme.Weight() == "q4c" }

// coarsen multiplies the codes of a column.
func (m *matrix) coarsen(col int, by float64, fourBit bool) {
	for row := range m.k {
		i := row*m.n + col
		if fourBit {
			set4(m.values, i, byte(int8(math.RoundToEven(float64(int8(get4(m.values, i)<<4)>>4)*by))))
		} else {
			m.values[i] = byte(int8(math.RoundToEven(float64(int8(m.values[i])) * by)))
		}
	}
}

// integers writes a product of codes with a scale for each column. in is on the grid of inStep, out on that of outStep;
// the bias is a row of integers in steps of the product itself.
func (t *translator) integers(p *product, in string, inStep, outStep float32, out string) {
	// Codes and scales of the weight, the bias if there is one, and the grid of the result.
	p.fitBias(inStep)
	if p.Form.Class() == op.Conv {
		t.convolution(p, in, inStep, outStep, out)
		return
	}
	cols := int64(p.matrix.n)
	typ, zero := onnx.Int8, make([]byte, cols)
	if p.isFourBit() {
		typ, zero = onnx.Int4, make([]byte, (cols+1)/2)
	}
	values := t.weight(p.name, typ, p.matrix.values, int64(p.matrix.k), cols)
	scales := t.weight(p.name+".scale", onnx.Float32, number.Bytes(p.matrix.scales), cols)
	zeros := t.Constant(onnx.Tensor{Type: typ, Dims: []int64{cols}, Raw: zero})
	matrix := t.Do("weight", "", "DequantizeLinear", list(values, scales, zeros), onnx.Int("axis", 1))
	operands, kind := list(in, matrix), "MatMul"
	if p.bias != nil {
		operands, kind = append(operands, t.integerBias(p, inStep)), "Gemm"
	}
	step, middle := t.Float(outStep), t.zero16()
	codes := t.Do("codes", "", "QuantizeLinear", list(t.Do("", "", kind, operands), step, middle))
	t.Add("float", "", "DequantizeLinear", list(codes, step, middle), list(out))
}

// convolution writes a product of codes, as integers does, as a convolution with kernels of 1x1: rows are the pixels of
// an image. The compiler wants each operator between conversions of its own; on one grid they change no code.
func (t *translator) convolution(p *product, in string, inStep, outStep float32, out string) {
	width, height, _ := p.Form.Image()
	rows, depth, cols := int64(p.M), int64(p.matrix.k), int64(p.matrix.n)
	kernels := make([]byte, len(p.matrix.values)) // [N,K]
	for i, code := range p.matrix.values {
		kernels[i%p.matrix.n*p.matrix.k+i/p.matrix.n] = code
	}
	values := t.weight(p.name, onnx.Int8, kernels, cols, depth, 1, 1)
	scales := t.weight(p.name+".scale", onnx.Float32, number.Bytes(p.matrix.scales), cols)
	zeros := t.Constant(onnx.Tensor{Type: onnx.Int8, Dims: []int64{cols}, Raw: make([]byte, cols)})
	weight := t.Do("weight", "", "DequantizeLinear", list(values, scales, zeros), onnx.Int("axis", 0))
	onGrid := func(suffix, x string, step float32) string {
		scale, middle := t.Float(step), t.zero16()
		return t.Do(suffix+".float", "", "DequantizeLinear",
			list(t.Do(suffix+".codes", "", "QuantizeLinear", list(x, scale, middle)), scale, middle))
	}
	image := onGrid("image", t.Reshape("image", in, 1, int64(height), int64(width), depth), inStep)
	image = onGrid("channels", t.Do("channels", "", "Transpose", list(image), onnx.Ints("perm", 0, 3, 1, 2)), inStep)
	operands := list(image, weight)
	if p.bias != nil {
		operands = append(operands, t.integerBias(p, inStep))
	}
	pixels := onGrid("pixels", t.Do("", "", "Conv", operands, onnx.Ints("kernel_shape", 1, 1)), outStep)
	pixels = onGrid("last", t.Do("last", "", "Transpose", list(pixels), onnx.Ints("perm", 0, 2, 3, 1)), outStep)
	step, middle := t.Float(outStep), t.zero16()
	codes := t.Do("codes", "", "QuantizeLinear", list(t.Reshape("shape", pixels, rows, cols), step, middle))
	t.Add("float", "", "DequantizeLinear", list(codes, step, middle), list(out))
}

// integerBias declares the bias in 32-bit steps of the product, so that nothing is rounded in between.
func (t *translator) integerBias(p *product, inStep float32) string {
	cols := int64(p.matrix.n)
	codes, steps := make([]byte, 0, 4*cols), make([]float32, cols)
	for col, shift := range p.bias {
		steps[col] = inStep * p.matrix.scales[col]
		code := int32(math.RoundToEven(float64(shift) / float64(steps[col])))
		codes = binary.LittleEndian.AppendUint32(codes, uint32(code))
	}
	row := t.weight(p.name+".bias", onnx.Int32, codes, cols)
	scales := t.weight(p.name+".bias.scale", onnx.Float32, number.Bytes(steps), cols)
	zeros := t.Constant(onnx.Tensor{Type: onnx.Int32, Dims: []int64{cols}, Raw: make([]byte, 4*cols)})
	return t.Do("row", "", "DequantizeLinear", list(row, scales, zeros), onnx.Int("axis", 0))
}
