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

// Products in every form give what the default gives, up to the order of additions.
func TestFormsExecute(t *testing.T) {
	p := opened(t)
	onItsThread(t, p, func() {
		rng := rand.New(rand.NewPCG(7, 1))
		for _, sh := range [][3]int{{1, 64, 96}, {8, 128, 64}, {12, 97, 131}, {64, 256, 320}} {
			for _, bias := range []bool{false, true} {
				m, k, n := sh[0], sh[1], sh[2]
				fill := func(bytes int) []byte {
					r, err := mem.Alloc(bytes, driver.Align)
					if err != nil {
						t.Error(err)
					}
					t.Cleanup(func() { r.Close() })
					v, _ := mem.View[float32](r.Bytes())
					for i := range v {
						v[i] = float32(rng.NormFloat64())
					}
					return r.Bytes()
				}
				plain := op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: op.A32W32, Bias: bias}
				g := op.Single(plain, op.OnnxLayout)
				var w driver.Weights
				for _, spec := range g.Weights {
					size, err := pack.Bytes(spec)
					if err != nil {
						t.Error(err)
						return
					}
					w = append(w, driver.Packed{Spec: spec, Bytes: fill(int(size))})
				}
				x := fill(4 * m * k)
				run := func(o op.Op) []float32 {
					g := op.Single(o, op.OnnxLayout)
					a, err := compile.New().Compile(t.Context(), g, w, driver.Target{Proc: "p"})
					if err != nil {
						t.Errorf("%s: %v", o.Key(), err)
						return nil
					}
					exe, err := p.Load(t.Context(), a, w)
					if err != nil {
						t.Errorf("%s: %v", o.Key(), err)
						return nil
					}
					defer exe.Close()
					in, err := p.Import(x)
					if err != nil {
						t.Error(err)
						return nil
					}
					defer in.Close()
					out, err := p.Alloc(int64(4 * m * n))
					if err != nil {
						t.Error(err)
						return nil
					}
					defer out.Close()
					b := &driver.Bindings{Scalars: &driver.Scalars{Rows: m, KVLen: m, Seq: m},
						In:  []driver.View{{Buffer: in, Type: op.F32, Rows: m, Cols: k, Stride: k}},
						Out: []driver.View{{Buffer: out, Type: op.F32, Rows: m, Cols: n, Stride: n}}}
					if _, err := p.Run(exe, b); err != nil {
						t.Errorf("%s: %v", o.Key(), err)
						return nil
					}
					y, err := mem.View[float32](out.Bytes())
					if err != nil {
						t.Error(err)
						return nil
					}
					return slices.Clone(y[:m*n])
				}
				want := run(plain)
				forms := op.FormsOf(m, p.caps.Forms[op.A32W32])
				if len(want) == 0 || len(forms) == 0 {
					t.Errorf("%s: nothing to compare", plain.Key())
				}
				for _, f := range forms {
					o := plain
					o.Form = f
					got := run(o)
					for i := range got {
						if math.Abs(float64(got[i]-want[i])) > 1e-4*math.Sqrt(float64(k)) {
							t.Errorf("%s: element %d is %v, in the default form %v", o.Key(), i, got[i], want[i])
							break
						}
					}
				}
			}
		}
	})
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
