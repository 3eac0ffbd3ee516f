package qnn

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit/onnxgraph"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// The test binary plays the compiler's process.
func TestMain(m *testing.M) {
	if what := os.Getenv(play); what != "" && Worker(os.Args[1:]) {
		os.Exit(played(what))
	}
	if Worker(os.Args[1:]) {
		if err := Work(".", os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(golden.Main(m))
}

// libraries skips a test without them.
func libraries(t *testing.T) {
	t.Helper()
	require.Deps()
	_, err := ortapi.FindQNN("")
	if err == nil {
		_, err = ortapi.Find("")
	}
	if err != nil {
		require.Skip(t, "qnn", err)
	}
}

// piece is a graph with random weights and a sample, and the values of the graph in float64 as it is defined, with the
// weights as they are stored.
type piece struct {
	driver.Piece
	want map[string][]float64 // by the name of the value
}

// pieceBuilder draws the inputs and weights of a piece, and computes its values node by node.
type pieceBuilder struct {
	piece
	t   testing.TB
	rng *rand.Rand
}

// build makes a piece of a graph: gains near 1, products that keep the size of what enters them, and steps twice as
// large as needed.
func build(t testing.TB, graph op.Graph, seed uint64) piece {
	t.Helper()
	if err := graph.Validate(); err != nil {
		t.Fatal(err)
	}
	b := &pieceBuilder{t: t, rng: rand.New(rand.NewPCG(seed, 0))}
	b.Name, b.Graph, b.want = "graph", graph, map[string][]float64{}
	b.Weights = make(driver.Weights, len(graph.Weights))

	for _, input := range graph.Inputs {
		b.drawInput(input)
	}
	for i := range graph.Nodes {
		node := &graph.Nodes[i]
		define := definitions[node.Op.Kind]
		if define == nil {
			t.Fatalf("no definition of %q", node.Op.Kind)
		}
		b.want[node.Out[0]] = define(b, node, b.want[node.In[0]])
	}
	return b.piece
}

// drawInput draws codes around 128, or numbers with outliers as a residual has them.
func (b *pieceBuilder) drawInput(input op.Value) {
	const outlierColumn = 33
	values := make([]float64, input.Rows*input.Cols)
	var raw []byte
	for i := range values {
		if input.Type == op.U8 {
			code := byte(128 + max(-127, min(127, math.Round(40*b.rng.NormFloat64()))))
			values[i], raw = float64(code)-128, append(raw, code)
			continue
		}
		number := float32(b.rng.NormFloat64())
		if input.Cols > 50 && i%input.Cols == outlierColumn {
			number *= 50
		}
		if input.Cols == 1 { // the scale of a row
			number = 0.03
		}
		values[i], raw = float64(number), binary.LittleEndian.AppendUint32(raw, math.Float32bits(number))
	}
	b.want[input.Name], b.Sample = values, append(b.Sample, raw)
}

// normal draws numbers with a mean and a standard deviation.
func (b *pieceBuilder) normal(count int, mean, deviation float64) []float32 {
	numbers := make([]float32, count)
	for i := range numbers {
		numbers[i] = float32(mean + deviation*b.rng.NormFloat64())
	}
	return numbers
}

// matrix draws and stores a weight [K,N] that keeps the size of what it multiplies, and returns it as it is stored.
func (b *pieceBuilder) matrix(name string, o *op.Op, zeroColumn bool) []float32 {
	numbers := b.normal(o.K*o.N, 0, 1/math.Sqrt(float64(o.K)))
	for k := range o.K {
		if zeroColumn {
			numbers[k*o.N+o.N-1] = 0
		}
	}
	b.put(name, numbers)
	return b.unpacked(b.t, name)
}

// put packs the numbers of a weight.
func (b *pieceBuilder) put(name string, numbers []float32) {
	at := b.weightIndex(b.t, name)
	spec := b.Graph.Weights[at]
	size, err := pack.Bytes(spec)
	if err != nil {
		b.t.Fatal(err)
	}
	source, err := pack.Floats(numbers, spec.K, spec.N)
	if err != nil {
		b.t.Fatal(err)
	}
	packed := make([]byte, size)
	if err := pack.Pack(packed, spec, source); err != nil {
		b.t.Fatal(err)
	}
	b.Weights[at] = driver.Packed{Spec: spec, Bytes: packed}
}

// weightIndex returns the index of a weight.
func (p *piece) weightIndex(t testing.TB, name string) int {
	at := slices.IndexFunc(p.Graph.Weights, func(spec op.WeightSpec) bool { return spec.Name == name })
	if at < 0 {
		t.Fatalf("no weight %q", name)
	}
	return at
}

// unpacked returns what the packed bytes of a weight stand for.
func (p *piece) unpacked(t testing.TB, name string) []float32 {
	at := p.weightIndex(t, name)
	spec := p.Graph.Weights[at]
	numbers := make([]float32, spec.K*spec.N)
	if err := pack.Unpack(numbers, spec, p.Weights[at].Bytes); err != nil {
		t.Fatal(err)
	}
	return numbers
}

// definitions draw the weights of a node and return what it computes of its first input.
var definitions = map[op.Kind]func(b *pieceBuilder, node *op.Node, in []float64) []float64{
	op.Norm:        (*pieceBuilder).norm,
	op.LayerNorm:   (*pieceBuilder).norm,
	op.QuantRows:   (*pieceBuilder).quantRows,
	op.MatMul:      (*pieceBuilder).matMul,
	op.GroupMatMul: (*pieceBuilder).groupMatMul,
	op.GLU: func(_ *pieceBuilder, node *op.Node, in []float64) []float64 {
		o := &node.Op
		out := make([]float64, o.Rows()*o.N)
		for i := range out {
			gate := gateOf(o, i)
			out[i] = act(o.Act, in[gate]) * in[gate+o.Interleave]
		}
		return out
	},
	op.Activate: elementwise(func(o *op.Op, value float64) float64 { return act(o.Act, value) }),
	op.Softcap:  elementwise(func(o *op.Op, value float64) float64 { return o.Cap * math.Tanh(value/o.Cap) }),
	op.Clip:     elementwise(func(o *op.Op, value float64) float64 { return max(-o.Cap, min(o.Cap, value)) }),
	op.Copy:     elementwise(func(_ *op.Op, value float64) float64 { return value }),
	op.Gate: func(b *pieceBuilder, node *op.Node, in []float64) []float64 {
		gates, out := b.want[node.In[1]], make([]float64, len(in))
		for i, value := range in {
			out[i] = value / (1 + math.Exp(-gates[i/node.Op.N]))
		}
		return out
	},
	op.Add: func(b *pieceBuilder, node *op.Node, in []float64) []float64 {
		other, out := b.want[node.In[1]], make([]float64, len(in))
		for i, value := range in {
			out[i] = value + other[i]
		}
		return out
	},
}

// elementwise defines an operator that computes each element from the one in its place.
func elementwise(compute func(o *op.Op, value float64) float64) func(*pieceBuilder, *op.Node, []float64) []float64 {
	return func(_ *pieceBuilder, node *op.Node, in []float64) []float64 {
		out := make([]float64, len(in))
		for i, value := range in {
			out[i] = compute(&node.Op, value)
		}
		return out
	}
}

// gateOf returns the index of the gate of element i of a gated unit; the other factor is Interleave behind it.
func gateOf(o *op.Op, i int) int {
	row, col := i/o.N, i%o.N
	return row*2*o.N + col/o.Interleave*2*o.Interleave + col%o.Interleave
}

// norm defines both norms: the one of layers subtracts the mean and has a bias.
func (b *pieceBuilder) norm(node *op.Node, in []float64) []float64 {
	o := &node.Op
	gain, bias := b.normal(o.N, 1, 0.2), make([]float32, o.N)
	b.put(node.W[0], gain)
	if o.Kind == op.LayerNorm {
		bias = b.normal(o.N, 0, 0.2)
		b.put(node.W[1], bias)
	}
	out := make([]float64, 0, len(in))
	for row := range slices.Chunk(in, o.N) {
		mean, square := 0.0, 0.0
		if o.Kind == op.LayerNorm {
			for _, value := range row {
				mean += value / float64(o.N)
			}
		}
		for _, value := range row {
			square += (value - mean) * (value - mean) / float64(o.N)
		}
		root := math.Sqrt(square + float64(onnxgraph.Epsilon(*o)))
		for col, value := range row {
			out = append(out, (value-mean)/root*float64(gain[col])+float64(bias[col]))
		}
	}
	return out
}

// quantRows defines rounding with the static scale of all rows. Codes are less 128.
func (b *pieceBuilder) quantRows(node *op.Node, in []float64) []float64 {
	scale := coarse(largest(in) / 127)
	b.put(node.W[0], []float32{scale})
	out := make([]float64, len(in))
	for i, value := range in {
		out[i] = math.RoundToEven(value / float64(scale))
	}
	b.want[node.Out[1]] = slices.Repeat([]float64{float64(scale)}, node.Op.M)
	return out
}

// matMul defines a product, one of whose columns is zero.
func (b *pieceBuilder) matMul(node *op.Node, in []float64) []float64 {
	o := &node.Op
	out := make([]float64, o.M*o.N)
	multiply(out, in, b.matrix(node.W[0], o, true), o)
	if o.Scheme.QuantisedRows() {
		scales := b.want[node.In[1]]
		for i := range out {
			out[i] *= scales[i/o.N]
		}
	}
	if o.Bias {
		bias := b.normal(o.N, 0, 0.3)
		b.put(node.W[1], bias)
		for i := range out {
			out[i] += float64(bias[i%o.N])
		}
	}
	if o.Scheme.Grid() {
		steps := slices.Concat(
			slices.Repeat([]float32{coarse(2 * largest(in) / op.GridMax)}, o.N),
			slices.Repeat([]float32{coarse(2 * largest(out) / op.GridMax)}, o.N))
		b.put(node.W[len(node.W)-1], steps)
	}
	return out
}

// groupMatMul defines the products of slots, each with a matrix of its own.
func (b *pieceBuilder) groupMatMul(node *op.Node, in []float64) []float64 {
	o := &node.Op
	out, scales, each := make([]float64, o.M*o.N), b.want[node.In[1]], o.M/o.Experts
	for slot, name := range node.W {
		from, to := slot*each, (slot+1)*each
		multiply(out[from*o.N:to*o.N], in[from*o.K:to*o.K], b.matrix(name, o, false), o)
	}
	for i := range out {
		out[i] *= scales[i/o.N]
	}
	return out
}

// multiply adds the product of rows [rows,K] and a weight [K,N] to out. The conversions keep the compiler from fusing
// a product and a sum, whose last bits would depend on the processor.
func multiply(out, in []float64, weight []float32, o *op.Op) {
	for row := range len(in) / o.K {
		for k := range o.K {
			for col := range o.N {
				out[row*o.N+col] += float64(in[row*o.K+k] * float64(weight[k*o.N+col]))
			}
		}
	}
}

// largest returns the largest magnitude.
func largest(values []float64) (top float64) {
	for _, value := range values {
		top = max(top, math.Abs(value))
	}
	return top
}

// coarse is the next larger number of 6 bits, so that the last bits of a machine's arithmetic do not matter.
func coarse(value float64) float32 {
	fraction, exponent := math.Frexp(value)
	return float32(math.Ldexp(math.Ceil(fraction*64)/64, exponent))
}

func act(name string, x float64) float64 {
	switch name {
	case op.SiLU:
		return x / (1 + math.Exp(-x))
	case op.GELU:
		return x / 2 * (1 + math.Erf(x/math.Sqrt2))
	case op.GELUTanh:
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return max(x, 0)
}

// differ is the relative euclidean distance of results.
func differ(got []byte, want []float64) float64 {
	values := make([]float64, len(want))
	for i := range values {
		values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:])))
	}
	return distance(values, want)
}

// distance is differ of numbers.
func distance(got, want []float64) float64 {
	difference, size := 0.0, 0.0
	for i, value := range want {
		difference, size = difference+(got[i]-value)*(got[i]-value), size+value*value
	}
	return math.Sqrt(difference / size)
}

func single(o op.Op) op.Graph { return op.Single(o, op.OnnxLayout) }

// gen3 is the Snapdragon 8 Gen 3.
func gen3(emulator bool) driver.Target {
	options := map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8"}
	return driver.Target{Proc: "npu", Options: options, Emulator: emulator}
}

// graphBuilder makes a graph whose values all have the same number of rows.
type graphBuilder struct {
	op.Graph
	rows int
}

// value returns a value of the graph, which the caller lists.
func (g *graphBuilder) value(name string, typ op.Type, cols int) op.Value {
	return op.Value{Name: name, Type: typ, Rows: g.rows, Cols: cols}
}

// node appends a node with weights of these names.
func (g *graphBuilder) node(o op.Op, in, weights, out []string) {
	roles := o.Sig().W
	for i, role := range roles {
		spec := o.WeightSpec(role, op.OnnxLayout)
		spec.Name = weights[i]
		g.Weights = append(g.Weights, spec)
	}
	g.Nodes = append(g.Nodes, op.Node{Op: o, In: in, W: weights[:len(roles)], Out: out})
}

// quantised appends a node that quantises the rows of a value, and returns its codes and scales.
func (g *graphBuilder) quantised(in string, cols int) []string {
	codes, scales := g.value(in+"8", op.U8, cols), g.value(in+"s", op.F32, 1)
	g.Temps = append(g.Temps, codes, scales)
	out := []string{codes.Name, scales.Name}
	g.node(op.Op{Kind: op.QuantRows, M: g.rows, N: cols, Static: true}, []string{in}, []string{in + "_scale"}, out)
	return out
}

// Columns of the residual and of the inner layer in the pieces of layers below.
const hidden, ffn = 64, 96

// block is a piece of a layer: the norm, a gated product and the way back, with the sum in place.
func block(rows int, scheme op.Scheme, bias bool) op.Graph {
	g := &graphBuilder{rows: rows}
	residual := g.value("x", op.F32, hidden)
	g.Inputs, g.Outputs = []op.Value{residual}, []op.Value{residual}
	g.Temps = []op.Value{
		g.value("n", op.F32, hidden),
		g.value("h", op.F32, 2*ffn),
		g.value("a", op.F32, ffn),
		g.value("d", op.F32, hidden),
	}
	up, down := []string{"up", "bias", "up_steps"}, []string{"down", "down_steps"}
	if !bias {
		up = []string{"up", "up_steps"}
	}
	// operands are what a product reads of a value
	operands := func(value string, cols int) []string {
		if !scheme.QuantisedRows() {
			return []string{value}
		}
		return g.quantised(value, cols)
	}
	gateUp := op.Op{Kind: op.MatMul, M: rows, K: hidden, N: 2 * ffn, Scheme: scheme, Bias: bias}
	back := op.Op{Kind: op.MatMul, M: rows, K: ffn, N: hidden, Scheme: scheme}
	unit := op.Op{Kind: op.GLU, M: rows, N: ffn, Interleave: 16, Act: op.SiLU}

	g.node(op.Op{Kind: op.Norm, M: rows, N: hidden, Eps: 1e-5}, []string{"x"}, []string{"gain"}, []string{"n"})
	g.node(gateUp, operands("n", hidden), up, []string{"h"})
	g.node(unit, []string{"h"}, nil, []string{"a"})
	g.node(back, operands("a", ffn), down, []string{"d"})
	g.node(op.Op{Kind: op.Add, M: rows, N: hidden}, []string{"x", "d"}, nil, []string{"x"})
	return g.Graph
}

// expertGroup is a group of experts: two products of a matrix for each slot, with the gated unit between them.
func expertGroup(slots, each int) op.Graph {
	g := &graphBuilder{rows: slots * each}
	g.Inputs, g.Outputs = []op.Value{g.value("x", op.F32, hidden)}, []op.Value{g.value("y", op.F32, hidden)}
	g.Temps = []op.Value{g.value("h", op.F32, 2*ffn), g.value("a", op.F32, ffn)}
	product := func(in string, k, n int, out string) {
		o := op.Op{Kind: op.GroupMatMul, M: g.rows, K: k, N: n, Experts: slots, Scheme: op.A8SQ8C}
		var weights []string
		for slot := range slots {
			weights = append(weights, fmt.Sprint(out, slot))
		}
		g.node(o, g.quantised(in, k), weights, []string{out})
	}

	product("x", hidden, 2*ffn, "h")
	g.node(op.Op{Kind: op.GLU, M: g.rows, N: ffn, Interleave: 16, Act: op.SiLU}, []string{"h"}, nil, []string{"a"})
	product("a", ffn, hidden, "y")
	return g.Graph
}

// chain is a graph of operators on rows, one after the other.
func chain() op.Graph {
	const rows, cols = 5, 96
	g := &graphBuilder{rows: rows}
	g.Inputs = []op.Value{g.value("x", op.F32, cols), g.value("gate", op.F32, 1)}
	last := "x"
	for i, o := range []op.Op{
		{Kind: op.LayerNorm, Eps: 1e-5},
		{Kind: op.Activate, Act: op.GELU},
		{Kind: op.Gate},
		{Kind: op.Softcap, Cap: 2},
		{Kind: op.Activate, Act: op.ReLU},
		{Kind: op.Add},
		{Kind: op.Clip, Cap: 20},
		{Kind: op.Copy},
	} {
		o.M, o.N = rows, cols
		in := []string{last}
		switch o.Kind {
		case op.Gate:
			in = append(in, "gate")
		case op.Add:
			in = append(in, "x")
		}
		result := g.value(fmt.Sprintf("y%d", i), op.F32, cols)
		g.node(o, in, o.Sig().W, []string{result.Name})
		g.Temps, last = append(g.Temps, result), result.Name
	}
	end := len(g.Temps) - 1
	g.Temps, g.Outputs = g.Temps[:end], g.Temps[end:]
	return g.Graph
}

// graphs are what is compiled, by the name of the subtest and of its golden file.
func graphs() map[string]op.Graph {
	out := map[string]op.Graph{
		"chain":               chain(),
		"group of experts":    expertGroup(3, 4),
		"group of one expert": expertGroup(1, 8),
	}
	fileName := func(text string) string { return strings.ReplaceAll(text, "/", "-") }
	alone := func(o op.Op) { out[fileName(o.Key())] = single(o) }
	for _, o := range []op.Op{
		{Kind: op.Norm, M: 5, N: 96, Eps: 1e-5},
		{Kind: op.LayerNorm, M: 5, N: 96, Eps: 1e-5},
		{Kind: op.GLU, M: 5, N: 64, Interleave: 16, Act: op.SiLU},
		{Kind: op.GLU, M: 5, N: 64, Interleave: 64, Act: op.GELUTanh, Fan: 2},
		{Kind: op.Activate, M: 5, N: 96, Act: op.GELU},
		{Kind: op.Activate, M: 5, N: 96, Act: op.ReLU},
		{Kind: op.Gate, M: 5, N: 96},
		{Kind: op.Softcap, M: 5, N: 96, Cap: 30},
		{Kind: op.Clip, M: 5, N: 96, Cap: 2},
		{Kind: op.Add, M: 5, N: 96},
		{Kind: op.Copy, M: 5, N: 96},
		{Kind: op.GroupMatMul, M: 6, K: 64, N: 96, Experts: 2, Scheme: op.A8SQ8C},
	} {
		alone(o)
	}
	for _, scheme := range schemes {
		alone(op.Op{Kind: op.MatMul, M: 1, K: 64, N: 96, Scheme: scheme, Bias: true})
		alone(op.Op{Kind: op.MatMul, M: 9, K: 64, N: 96, Scheme: scheme})
		out["block "+fileName(string(scheme))] = block(9, scheme, true)
		if len(forms[scheme]) == 0 {
			continue
		}
		alone(op.Op{Kind: op.MatMul, M: 12, K: 64, N: 96, Scheme: scheme, Form: op.ConvForm(4, 3), Bias: true})
		images := block(9, scheme, true)
		for i := range images.Nodes {
			if operator := &images.Nodes[i].Op; operator.Kind == op.MatMul {
				operator.Form = op.ConvForm(3, 3)
			}
		}
		out["block of convolutions "+fileName(string(scheme))] = images
	}
	return out
}

// bound is the relative error that the emulator may have: some units of half precision; the NPU's kernel of 4-bit
// columns drops the low byte of its sums. A group of experts rounds to 8 bits between its products, where the last bits
// of what comes before move single codes: twice what half precision moves, in the emulator and in the source on the
// CPU, whose results between the products are on the same grid of 16 bits.
func bound(t *testing.T, p *piece) (emulated, portable float64) {
	for _, node := range p.Graph.Nodes {
		switch {
		case node.Op.Scheme == op.A16SQ4C:
			return 1.5e-2, 2e-3
		case node.Op.Kind == op.GroupMatMul && len(p.Graph.Nodes) > 1:
			most := 2e-3 + 2*distance(inHalf(t, p), p.want[p.Graph.Outputs[0].Name])
			return most, most
		}
	}
	return 2e-3, 2e-3
}

// half rounds to half precision.
func half(value float64) float64 {
	return float64(number.HalfToFloat(number.FloatToHalf(float32(value))))
}

// inHalf computes a group of experts with rows in half precision, and the results of its products on grids of 16 bits.
func inHalf(t *testing.T, p *piece) []float64 {
	values := map[string][]float64{}
	for _, input := range p.Graph.Inputs {
		for _, value := range p.want[input.Name] {
			values[input.Name] = append(values[input.Name], half(value))
		}
	}
	for i := range p.Graph.Nodes {
		node := &p.Graph.Nodes[i]
		o, in := &node.Op, values[node.In[0]]
		out := make([]float64, o.Rows()*o.N)
		switch o.Kind {
		case op.QuantRows:
			scale := p.want[node.Out[1]][0]
			for i, value := range in {
				out[i] = max(-127, min(127, math.RoundToEven(value/scale)))
			}
		case op.GroupMatMul:
			each := o.M / o.Experts
			for slot, name := range node.W {
				from, to := slot*each, (slot+1)*each
				onGridInHalf(out[from*o.N:to*o.N], in[from*o.K:to*o.K], p.unpacked(t, name), o, p.want[node.In[1]][0])
			}
		case op.GLU:
			for i := range out {
				gate := gateOf(o, i)
				switched := half(in[gate] * half(1/(1+math.Exp(-in[gate]))))
				out[i] = half(switched * in[gate+o.Interleave])
			}
		default:
			t.Fatalf("no definition of %q in half precision", o.Kind)
		}
		values[node.Out[0]] = out
	}
	return values[p.Graph.Outputs[0].Name]
}

// onGridInHalf is multiply by codes with a scale, whose results are rounded to the grid that eightBit chooses, and
// then to half precision.
func onGridInHalf(out, in []float64, weight []float32, o *op.Op, scale float64) {
	longest := 0.0 // column
	for col := range o.N {
		sum := 0.0
		for k := range o.K {
			sum += float64(weight[k*o.N+col]) * float64(weight[k*o.N+col])
		}
		longest = max(longest, math.Sqrt(sum))
	}
	step := 127 * math.Sqrt(float64(o.K)) * longest * scale / op.GridMax
	multiply(out, in, weight, o)
	for i, sum := range out {
		out[i] = half(math.RoundToEven(sum*scale/step) * step)
	}
}

// Every operator and scheme is compiled wholly for the NPU, and its emulator computes what the graph says.
func TestEmulated(t *testing.T) {
	libraries(t)
	for name, graph := range graphs() {
		if o := &graph.Nodes[0].Op; len(graph.Nodes) == 1 && !o.Bias && o.Interleave != 16 {
			continue // in a block or the chain
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tried := build(t, graph, 1)
			group, err := New(Options{}).CompileGroup(t.Context(), []driver.Piece{tried.Piece}, gen3(true))
			if err != nil {
				t.Fatal(err)
			}

			artifact, want := group.Artifacts[0], tried.want[graph.Outputs[0].Name]
			emulated, portable := differ(artifact.Emulated[0], want), differ(artifact.Portable[0], want)
			mostEmulated, mostPortable := bound(t, &tried)
			if emulated > mostEmulated || portable > mostPortable || emulated == 0 {
				t.Errorf("relative error %.2g on the emulator (want %.2g), %.2g of the source on the CPU (want %.2g)",
					emulated, mostEmulated, portable, mostPortable)
			}
			if group.Shared != nil {
				t.Errorf("the emulator shares a binary of %d bytes", len(group.Shared))
			}
			if group.Token != "v2:6:2.51.0:5.51.0:75:57:8:0" || group.Compiler == "" || group.Cached {
				t.Errorf("compiler %q, token %q, cached %v", group.Compiler, group.Token, group.Cached)
			}
			checkFacts(t, &artifact.Artifact)
			checkCarried(t, artifact.Code, &graph)
		})
	}
}

// checkFacts compares the facts of an artifact for the emulator with its code and its target.
func checkFacts(t *testing.T, artifact *driver.Artifact) {
	t.Helper()
	facts := artifact.Facts
	for name, want := range map[string]int64{
		"arch":       75,
		"soc_model":  57,
		"vtcm_bytes": 8 << 20,
		"cpu_nodes":  0,
		"nodes":      facts["edge_nodes"] + 1,
		"bytes":      int64(len(artifact.Code)),
	} {
		if facts[name] != want {
			t.Errorf("fact %s is %d, want %d", name, facts[name], want)
		}
	}
	if facts["context_bytes"] >= facts["bytes"] {
		t.Errorf("a binary of %d bytes in a model of %d", facts["context_bytes"], facts["bytes"])
	}
}

// checkCarried compares the graph that a compiled model carries with the one that it was made of.
func checkCarried(t *testing.T, code []byte, want *op.Graph) {
	t.Helper()
	model, err := onnx.Parse(code)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := model.Prop(onnxgraph.GraphKey)
	var carried op.Graph
	if err := json.Unmarshal([]byte(text), &carried); err != nil || !reflect.DeepEqual(&carried, want) {
		t.Errorf("the artifact stands for %+v (%v), want %+v", carried, err, want)
	}
}

// compileGroup compiles a group with temporary files in a folder that is empty again afterwards.
func compileGroup(t *testing.T, group []driver.Piece, emulator bool) *driver.CompiledGroup {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	compiled, err := New(Options{}).CompileGroup(t.Context(), group, gen3(emulator))
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return compiled
}

// A group for a device shares its weights, and a binary is the same bytes in every folder, run, and order.
func TestShared(t *testing.T) {
	libraries(t)
	var group []driver.Piece
	for _, rows := range []int{1, 8, 64} {
		made := build(t, single(op.Op{Kind: op.MatMul, M: rows, K: 256, N: 512, Scheme: op.A16SQ8C}), 7)
		if len(group) > 0 { // the steps are of the weight, not of the sample
			made.Weights = group[0].Weights
		}
		made.Name = fmt.Sprint("rows ", rows)
		if rows != 8 { // one is tried
			made.Sample = nil
		}
		group = append(group, made.Piece)
	}

	compiled := compileGroup(t, group, false)
	reversed := slices.Clone(group)
	slices.Reverse(reversed)
	again := compileGroup(t, reversed, false)
	slices.Reverse(again.Artifacts)
	if !reflect.DeepEqual(compiled, again) {
		t.Error("in another folder and order they have other bytes")
	}

	unshared := compileGroup(t, group, true)
	alone := int64(0) // bytes of all binaries
	for i := range unshared.Artifacts {
		alone += unshared.Artifacts[i].Facts["context_bytes"]
	}
	if compiled.Shared == nil || int64(len(compiled.Shared)) > alone*6/10 {
		t.Errorf("the binary has %d bytes, those of each graph alone %d", len(compiled.Shared), alone)
	}
	for i := range compiled.Artifacts {
		made := &compiled.Artifacts[i]
		if !bytes.Equal(made.Shared, compiled.Shared) {
			t.Errorf("%s: refers to %d bytes, want the group's %d", group[i].Name, len(made.Shared),
				len(compiled.Shared))
		}
		if len(made.Code) > 1<<14 || made.Facts["context_bytes"] != int64(len(compiled.Shared)) {
			t.Errorf("%s: a model of %d bytes, facts %v", group[i].Name, len(made.Code), made.Facts)
		}
		checkTwin(t, &group[i], made, &unshared.Artifacts[i])
	}
}

// checkTwin compares an artifact of a group with the one that the emulator has for the same graph, alone.
func checkTwin(t *testing.T, tried *driver.Piece, made, alone *driver.CompiledArtifact) {
	t.Helper()
	if got, want := made.Facts["spill_bytes"], alone.Facts["spill_bytes"]; got != want {
		t.Errorf("%s: spill %d with others, %d alone", tried.Name, got, want)
	}
	twin := ""
	if tried.Sample != nil {
		twin = fmt.Sprintf("%x", sha256.Sum256(alone.Code))
	}
	if made.Twin != twin || (made.Emulated != nil) != (tried.Sample != nil) {
		t.Errorf("%s: twin %q with %d results, want %q", tried.Name, made.Twin, len(made.Emulated), twin)
	}
	if !reflect.DeepEqual(made.Emulated, alone.Emulated) {
		t.Errorf("%s: the twin's results differ", tried.Name)
	}
}

// The compiler's memory outside the NPU does not grow with rows: 250 rows spill, 256 do not.
func TestSpill(t *testing.T) {
	libraries(t)
	const size = 2048 // rows and columns of the weight
	graph := func(rows int) op.Graph {
		return single(op.Op{Kind: op.MatMul, M: rows, K: size, N: size, Scheme: op.A16SQ8C})
	}
	specs := graph(1).Weights
	weights := make(driver.Weights, len(specs))
	for i, spec := range specs {
		bytes, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		weights[i] = driver.Packed{Spec: spec, Bytes: make([]byte, bytes)}
	}
	matrix, steps := weights[0].Bytes, weights[1].Bytes
	for i := range size * size {
		matrix[i] = byte(i % 251)
	}
	_, scales, _, err := pack.OnnxParts(specs[0])
	if err != nil {
		t.Fatal(err)
	}
	copy(matrix[scales:], number.Bytes(slices.Repeat([]float32{0.001}, size)))
	copy(steps, number.Bytes(slices.Repeat([]float32{0.001}, 2*size)))

	spills := map[int]bool{1: false, 250: true, 256: false, 257: true}
	rows := slices.Sorted(maps.Keys(spills))
	var group []driver.Piece
	for _, count := range rows {
		group = append(group, driver.Piece{Name: fmt.Sprint(count), Graph: graph(count), Weights: weights})
	}
	compiled, err := New(Options{}).CompileGroup(t.Context(), group, gen3(false))
	if err != nil {
		t.Fatal(err)
	}

	for i, count := range rows {
		if spill := compiled.Artifacts[i].Facts["spill_bytes"]; (spill > 1<<20) != spills[count] {
			t.Errorf("%d rows spill %d bytes", count, spill)
		}
	}
	if bytes := len(compiled.Shared); bytes > size*size*115/100 {
		t.Errorf("%d graphs share a binary of %d bytes", len(rows), bytes)
	}
}
