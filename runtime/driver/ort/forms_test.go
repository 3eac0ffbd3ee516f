package ort

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// opened is a processor of the first core, of the type that the tests of this package look into.
func opened(t *testing.T) *processor {
	t.Helper()
	p, err := New().Open(t.Context(), driver.Config{Select: affinity.Selections()[0].Select})
	if errors.Is(err, driver.ErrUnavailable) {
		require.Skip(t, Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.(*processor)
}

// Products in every form give what the default gives: of integers the same bits, in float32 up to the order of
// additions.
func TestFormsExecute(t *testing.T) {
	p := opened(t)
	onItsThread(t, p, func() {
		rng := rand.New(rand.NewPCG(7, 1))
		for _, scheme := range []op.Scheme{op.A32W32, op.A8SQ8C, op.A8OQ8C} {
			for _, shape := range [][3]int{{1, 64, 96}, {8, 128, 64}, {12, 97, 131}, {64, 256, 320}} {
				rows, k, n := shape[0], shape[1], shape[2]
				forms := op.FormsOf(rows, p.caps.Forms[scheme])
				if len(forms) == 0 && rows > 1 && (scheme == op.A32W32 || p.storage != inexact) {
					t.Errorf("%d rows in %q: nothing to compare", rows, scheme)
				}
				for _, bias := range []bool{false, true} {
					product := op.Op{Kind: op.MatMul, M: rows, K: k, N: n, Scheme: scheme, Bias: bias}
					compareForms(t, p, drawOperands(t, rng, product), product, forms)
				}
			}
		}
	})
}

// compareForms compares a product in its default form with the product in other forms.
func compareForms(t *testing.T, p *processor, x operands, product op.Op, forms []op.Form) {
	t.Helper()
	want := x.run(t, p, product)
	bound := 0.0
	if product.Scheme == op.A32W32 {
		bound = 1e-4 * math.Sqrt(float64(product.K))
	}
	for _, form := range forms {
		formed := product
		formed.Form = form
		got := x.run(t, p, formed)
		if len(got) != len(want) {
			t.Errorf("%s: got %d elements, want %d", formed.Key(), len(got), len(want))
			continue
		}
		for i := range got {
			if math.Abs(float64(got[i]-want[i])) > bound {
				t.Errorf("%s: element %d is %v, in the default form %v", formed.Key(), i, got[i], want[i])
				break
			}
		}
	}
}

// operands are what a product reads.
type operands struct {
	inputs  [][]byte
	weights driver.Weights
}

// drawOperands draws the operands of a product. One scale holds for all rows.
func drawOperands(t *testing.T, rng *rand.Rand, product op.Op) operands {
	t.Helper()
	graph := op.Single(product, op.OnnxLayout)
	var out operands
	for _, spec := range graph.Weights {
		out.weights = append(out.weights, drawWeight(t, rng, spec))
	}
	for i, input := range graph.Inputs {
		data := memoryOf(t, input.Type.Bytes()*input.Rows*input.Cols)
		out.inputs = append(out.inputs, data)
		if input.Type == op.I8 {
			for j := range data {
				data[j] = byte(rng.IntN(255) - 127)
			}
			continue
		}

		values, err := mem.View[float32](data)
		if err != nil {
			t.Error(err)
			continue
		}
		for j := range values {
			values[j] = 0.0123 // a scale
			if i == 0 {
				values[j] = float32(rng.NormFloat64())
			}
		}
	}
	return out
}

// drawWeight draws a weight and packs it.
func drawWeight(t *testing.T, rng *rand.Rand, spec op.WeightSpec) driver.Packed {
	t.Helper()
	values := make([]float32, spec.K*spec.N)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	size, err := pack.Bytes(spec)
	if err != nil {
		t.Error(err)
	}
	source, err := pack.Floats(values, spec.K, spec.N)
	if err != nil {
		t.Error(err)
	}
	data := memoryOf(t, int(size))
	if err := pack.Pack(data, spec, source); err != nil {
		t.Error(err)
	}
	return driver.Packed{Spec: spec, Bytes: data}
}

// run computes the product in its form. It returns nil after an error, which it reports.
func (x *operands) run(t *testing.T, p *processor, product op.Op) []float32 {
	t.Helper()
	graph := op.Single(product, op.OnnxLayout)
	artifact, err := compile.New().Compile(t.Context(), graph, x.weights, driver.Target{Proc: "p"})
	if err != nil {
		t.Errorf("%s: %v", product.Key(), err)
		return nil
	}
	exe, err := p.Load(t.Context(), artifact, x.weights)
	if err != nil {
		t.Errorf("%s: %v", product.Key(), err)
		return nil
	}
	defer exe.Close()
	bindings := &driver.Bindings{Scalars: &driver.Scalars{Rows: product.M, KVLen: product.M, Seq: product.M}}
	for i, input := range graph.Inputs {
		bindings.In = append(bindings.In, imported(t, p, x.inputs[i], input))
	}
	result := memoryOf(t, 4*product.M*product.N)
	out := op.Value{Type: op.F32, Rows: product.M, Cols: product.N}
	bindings.Out = []driver.View{imported(t, p, result, out)}

	if _, err := p.Run(exe, bindings); err != nil {
		t.Errorf("%s: %v", product.Key(), err)
		return nil
	}
	values, err := mem.View[float32](result)
	if err != nil {
		t.Error(err)
	}
	return values
}

// imported makes memory a value that the processor reads or writes.
func imported(t *testing.T, p *processor, data []byte, value op.Value) driver.View {
	t.Helper()
	buffer, err := p.Import(data)
	if err != nil {
		t.Error(err)
	}
	return driver.View{
		Buffer: buffer,
		Type:   value.Type,
		Rows:   value.Rows,
		Cols:   value.Cols,
		Stride: value.Cols,
	}
}

// Codes are convolved exactly on this CPU, so that products of them have that form where one scale serves all rows.
func TestConvolutionsAreExact(t *testing.T) {
	p := opened(t)
	defer p.Close()

	got, want, err := p.env.largestConvolution(35, p.options(1))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("largest codes: %v, %v, want %v", got, err, want)
	}
	for _, scheme := range []op.Scheme{op.A8SQ8C, op.A8OQ8C} {
		if !p.caps.HasForm(scheme, "conv 4x3") && p.storage != inexact {
			t.Errorf("%q has no convolutions, and they are exact", scheme)
		}
	}
}

// Matrices of codes are transposed whatever their sides are.
func TestTransposeCodes(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {1, 70}, {129, 3}, {64, 64}, {100, 131}} {
		rows, cols := shape[0], shape[1]
		from, to := make([]byte, rows*cols), make([]byte, rows*cols)
		for i := range from {
			from[i] = byte(i * 7)
		}

		transposeCodes(to, from, rows, cols)

		for row := range rows {
			for col := range cols {
				if to[col*rows+row] != from[row*cols+col] {
					t.Fatalf("[%d,%d]: element [%d,%d] is elsewhere", rows, cols, row, col)
				}
			}
		}
	}
}

// The model of a form does not pass for the model of another one.
func TestVerifyForms(t *testing.T) {
	product := op.Op{Kind: op.MatMul, M: 12, K: 64, N: 32, Bias: true}
	for _, scheme := range []op.Scheme{op.A32W32, op.A8SQ8C, op.A8OQ8C} {
		forms := append(op.FormsOf(product.M, capabilities(nil, signed, true).Forms[scheme]), "")
		if len(forms) < 7 {
			t.Errorf("scheme %q has the forms %q, want every image of 12 rows", scheme, forms)
		}
		graphs := make([]op.Graph, len(forms))
		for i, form := range forms {
			product.Scheme, product.Form = scheme, form
			graphs[i] = op.Single(product, op.OnnxLayout)
		}
		for i := range forms {
			model := modelOf(t, &graphs[i])
			for j := range forms {
				if err := verify(model, &graphs[j]); (err == nil) != (i == j) {
					t.Errorf("the model of form %q for a graph of form %q in %q: %v", forms[i], forms[j], scheme, err)
				}
			}
		}
	}
}

// A form that a scheme does not have is not compiled, and the error names it.
func TestFormsOfNoScheme(t *testing.T) {
	for _, c := range []struct {
		form   op.Form
		scheme op.Scheme
	}{
		{form: op.BatchMatMul, scheme: op.A32W32},
		{form: op.Swapped, scheme: op.A8TQ8C},
		{form: "conv 4x3", scheme: op.A8TQ8C},
	} {
		product := op.Op{Kind: op.MatMul, M: 12, K: 64, N: 32, Bias: true, Scheme: c.scheme, Form: c.form}
		graph := op.Single(product, op.OnnxLayout)
		_, err := compile.New().Compile(t.Context(), graph, nil, driver.Target{Proc: "p"})
		if err == nil || !strings.Contains(err.Error(), string(c.form)) {
			t.Errorf("form %q of scheme %q: got %v, want a refusal that names it", c.form, c.scheme, err)
		}
	}
}
