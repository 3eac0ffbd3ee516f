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

// Products in every form give what the default gives: of integers the same bits, in float32 up to the order of additions.
func TestFormsExecute(t *testing.T) {
	p := opened(t)
	onItsThread(t, p, func() {
		rng := rand.New(rand.NewPCG(7, 1))
		for _, scheme := range []op.Scheme{op.A32W32, op.A8SQ8C, op.A8OQ8C} {
			for i, shape := range [][3]int{{1, 64, 96}, {8, 128, 64}, {12, 97, 131}, {64, 256, 320}} {
				for _, bias := range []bool{false, true} {
					plain := op.Op{Kind: op.MatMul, M: shape[0], K: shape[1], N: shape[2], Scheme: scheme, Bias: bias}
					forms := op.FormsOf(plain.M, p.caps.Forms[scheme])
					if len(forms) == 0 && i > 0 && (scheme == op.A32W32 || p.storage != inexact) {
						t.Errorf("%s: nothing to compare", plain.Key())
					}
					operands, err := drawOperands(t, rng, plain)
					var want []float32
					if err == nil {
						want, err = operands.run(t, p, plain)
					}
					if err != nil {
						t.Errorf("%s: %v", plain.Key(), err)
						return
					}
					bound := 0.0
					if scheme == op.A32W32 {
						bound = 1e-4 * math.Sqrt(float64(plain.K))
					}
					for _, form := range forms {
						formed := plain
						formed.Form = form
						got, err := operands.run(t, p, formed)
						if err != nil {
							t.Errorf("%s: %v", formed.Key(), err)
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
			}
		}
	})
}

// operands are what a product reads.
type operands struct {
	inputs  [][]byte
	weights driver.Weights
}

// drawOperands draws the operands of a product. One scale holds for all rows.
func drawOperands(t *testing.T, rng *rand.Rand, product op.Op) (out operands, err error) {
	graph := op.Single(product, op.OnnxLayout)
	for _, spec := range graph.Weights {
		values := make([]float32, spec.K*spec.N)
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		size, err := pack.Bytes(spec)
		if err != nil {
			return out, err
		}
		source, err := pack.Floats(values, spec.K, spec.N)
		if err != nil {
			return out, err
		}
		data := memoryOf(t, int(size))
		if err := pack.Pack(data, spec, source); err != nil {
			return out, err
		}
		out.weights = append(out.weights, driver.Packed{Spec: spec, Bytes: data})
	}
	for i, input := range graph.Inputs {
		data := memoryOf(t, input.Type.Bytes()*input.Rows*input.Cols)
		out.inputs = append(out.inputs, data)
		if input.Type == op.I8 {
			for i := range data {
				data[i] = byte(rng.IntN(255) - 127)
			}
			continue
		}
		values, err := mem.View[float32](data)
		if err != nil {
			return out, err
		}
		for j := range values {
			if values[j] = 0.0123; i == 0 {
				values[j] = float32(rng.NormFloat64())
			}
		}
	}
	return out, nil
}

// run is what the product is in a form.
func (x *operands) run(t *testing.T, p *processor, product op.Op) ([]float32, error) {
	graph := op.Single(product, op.OnnxLayout)
	artifact, err := compile.New().Compile(t.Context(), graph, x.weights, driver.Target{Proc: "p"})
	if err != nil {
		return nil, err
	}
	exe, err := p.Load(t.Context(), artifact, x.weights)
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	bindings := &driver.Bindings{Scalars: &driver.Scalars{Rows: product.M, KVLen: product.M, Seq: product.M}}
	for i, input := range graph.Inputs {
		buffer, err := p.Import(x.inputs[i])
		if err != nil {
			return nil, err
		}
		defer buffer.Close()
		bindings.In = append(bindings.In, driver.View{Buffer: buffer, Type: input.Type, Rows: input.Rows, Cols: input.Cols,
			Stride: input.Cols})
	}
	result, err := p.Alloc(int64(4 * product.M * product.N))
	if err != nil {
		return nil, err
	}
	defer result.Close()
	bindings.Out = []driver.View{{Buffer: result, Type: op.F32, Rows: product.M, Cols: product.N, Stride: product.N}}
	if _, err := p.Run(exe, bindings); err != nil {
		return nil, err
	}
	values, err := mem.View[float32](result.Bytes())
	if err != nil {
		return nil, err
	}
	return slices.Clone(values[:product.M*product.N]), nil
}

// Codes are convolved exactly on this CPU, so that products of them have that form where one scale serves all rows; and
// matrices are transposed whatever their sides are.
func TestConvolutionsAreExact(t *testing.T) {
	p := opened(t)
	got, want, err := p.env.largestConvolution(35, p.options(1))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("largest codes: %v, %v, want %v", got, err, want)
	}
	for _, scheme := range []op.Scheme{op.A8SQ8C, op.A8OQ8C} {
		if !p.caps.HasForm(scheme, "conv 4x3") && p.storage != inexact {
			t.Errorf("%q has no convolutions, and they are exact", scheme)
		}
	}
	for _, shape := range [][2]int{{1, 1}, {1, 70}, {129, 3}, {64, 64}, {100, 131}} {
		rows, cols := shape[0], shape[1]
		from, to := make([]byte, rows*cols), make([]byte, rows*cols)
		for i := range from {
			from[i] = byte(i * 7)
		}
		transposeCodes(to, from, rows, cols)
		for i := range from {
			if to[i%cols*rows+i/cols] != from[i] {
				t.Fatalf("[%d,%d]: element %d is elsewhere", rows, cols, i)
			}
		}
	}
}

// Every form is verified to the letter: the model of one does not pass for another.
func TestVerifyForms(t *testing.T) {
	o := op.Op{Kind: op.MatMul, M: 12, K: 64, N: 32, Bias: true}
	for _, scheme := range []op.Scheme{op.A32W32, op.A8SQ8C, op.A8OQ8C} {
		o.Scheme = scheme
		forms := append(op.FormsOf(o.M, capabilities(nil, signed, true).Forms[scheme]), "")
		if len(forms) < 7 {
			t.Errorf("scheme %q has the forms %q, want every image of 12 rows", scheme, forms)
		}
		for _, f := range forms {
			o.Form = f
			g := op.Single(o, op.OnnxLayout)
			m := modelOf(t, &g)
			for _, other := range forms {
				o.Form = other
				h := op.Single(o, op.OnnxLayout)
				if err := verify(m, &h); (err == nil) != (f == other) {
					t.Errorf("the model of form %q for a graph of form %q in %q: %v", f, other, scheme, err)
				}
			}
		}
	}
	o.Scheme = op.A32W32
	for _, f := range []op.Form{op.BatchMatMul, op.Swapped, "conv 4x3"} {
		o.Form = f
		if f != op.BatchMatMul {
			o.Scheme = op.A8TQ8C
		}
		_, err := compile.New().Compile(t.Context(), op.Single(o, op.OnnxLayout), nil, driver.Target{Proc: "p"})
		if err == nil || !strings.Contains(err.Error(), string(f)) {
			t.Errorf("form %q of scheme %q: got %v, want a refusal that names it", f, o.Scheme, err)
		}
	}
}
