package ort

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// onItsThread calls f on a thread that is attached to the processor, and closes it.
func onItsThread(t *testing.T, p *processor, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // the thread stays pinned
		defer close(done)
		runtime.LockOSThread()
		defer p.Close()
		if err := p.Attach(); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// memoryOf allocates aligned memory that is freed after the test.
func memoryOf(t *testing.T, bytes int) []byte {
	t.Helper()
	region, err := mem.Alloc(bytes, driver.Align)
	if err != nil {
		t.Error(err)
		return make([]byte, bytes)
	}
	t.Cleanup(func() { region.Close() })
	return region.Bytes()
}

// integerProduct is one product of 8-bit codes whose scales are all 1, so that its results are integers.
type integerProduct struct {
	op.Op
	codes, weights []byte // activations [M,K] with a zero point of 128, weights [K,N], of group_matmul for each slot
}

// right is what the product is, in integers.
func (x *integerProduct) right() []float32 {
	var out []float32
	slots := max(1, x.Experts)
	for row := range x.M {
		weight := x.weights[row/(x.M/slots)*x.K*x.N:]
		for col := range x.N {
			sum := 0
			for at := range x.K {
				sum += (int(x.codes[row*x.K+at]) - 128) * int(int8(weight[at*x.N+col]))
			}
			out = append(out, float32(sum))
		}
	}
	return out
}

// computed is what the processor computes.
func (x *integerProduct) computed(t *testing.T, p *processor) []float32 {
	t.Helper()
	exe, bindings, result := x.load(t, p)
	if exe == nil {
		return nil
	}
	defer exe.Close()
	if _, err := p.Run(exe, bindings); err != nil {
		t.Errorf("%s: %v", x.Key(), err)
		return nil
	}
	out, err := mem.View[float32](result)
	if err != nil {
		t.Error(err)
	}
	return slices.Clone(out)
}

// load makes the product ready to run, with the memory of its result; nil after an error.
func (x *integerProduct) load(t *testing.T, p *processor) (driver.Executable, *driver.Bindings, []byte) {
	t.Helper()
	graph := op.Single(x.Op, op.OnnxLayout)
	var packed driver.Weights
	matrix := x.weights
	for _, spec := range graph.Weights {
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		bytes := memoryOf(t, int(size))
		_, at, scales, err := pack.OnnxParts(spec)
		if err != nil {
			t.Fatal(err)
		}
		matrix = matrix[copy(bytes[:x.K*x.N], matrix):]
		for column := range scales {
			copy(bytes[at+4*column:], []byte{0, 0, 128, 63}) // 1
		}
		packed = append(packed, driver.Packed{Spec: spec, Bytes: bytes})
	}
	artifact, err := compile.New().Compile(t.Context(), graph, packed, driver.Target{Proc: "p"})
	if err != nil {
		t.Errorf("%s: %v", x.Key(), err)
		return nil, nil, nil
	}
	exe, err := p.Load(t.Context(), artifact, packed)
	if err != nil {
		t.Errorf("%s: %v", x.Key(), err)
		return nil, nil, nil
	}
	bindings := &driver.Bindings{Scalars: &driver.Scalars{Rows: x.M, KVLen: x.M, Seq: x.M}}
	view := func(bytes []byte, typ op.Type, cols int) driver.View {
		buffer, err := p.Import(bytes)
		if err != nil {
			t.Error(err)
		}
		return driver.View{Buffer: buffer, Type: typ, Rows: x.M, Cols: cols, Stride: cols}
	}
	codes, ones, result := memoryOf(t, x.M*x.K), memoryOf(t, 4*x.M), memoryOf(t, 4*x.M*x.N)
	copy(codes, x.codes)
	for row := range x.M {
		copy(ones[4*row:], []byte{0, 0, 128, 63})
	}
	bindings.In = []driver.View{view(codes, op.U8, x.K), view(ones, op.F32, 1)}
	bindings.Out = []driver.View{view(result, op.F32, x.N)}
	return exe, bindings, result
}

// Products of the largest codes are exact to the last bit, in every scheme of 8-bit weights, for single rows, several
// and those of groups: where all codes are extremes, where few are, and where sums nearly leave 16 bits.
func TestLargestCodesAreExact(t *testing.T) {
	p := opened(t)
	if p.storage == inexact {
		t.Log("the library multiplies no type of 8-bit weights exactly here")
	}
	onItsThread(t, p, func() {
		rng := rand.New(rand.NewPCG(23, 1))
		draws := map[string]func() int8{
			"all +127":       func() int8 { return 127 },
			"all -127":       func() int8 { return -127 },
			"signs":          func() int8 { return []int8{127, -127}[rng.IntN(2)] },
			"few extremes":   func() int8 { return []int8{127, -127, 1, 0, -1, 2, -2, 3}[rng.IntN(8)] },
			"nearly 16 bits": func() int8 { return int8(62 + rng.IntN(6)) },
			"any":            func() int8 { return int8(rng.IntN(255) - 127) },
		}
		for _, scheme := range slices.DeleteFunc(slices.Clone(p.caps.Schemes),
			func(s op.Scheme) bool { return !isInteger(s) || s.Grid() }) {
			for _, shape := range []op.Op{
				{Kind: op.MatMul, M: 1, K: 64, N: 32}, {Kind: op.MatMul, M: 1, K: 131, N: 37}, {Kind: op.MatMul, M: 3, K: 4, N: 1},
				{Kind: op.MatMul, M: 9, K: 257, N: 130}, {Kind: op.GroupMatMul, M: 6, K: 66, N: 33, Experts: 3},
			} {
				shape.Scheme = scheme
				if shape.Kind == op.GroupMatMul && !scheme.Experts() {
					continue
				}
				for what, drawCode := range draws {
					for other, drawWeight := range draws {
						x := integerProduct{Op: shape}
						for range x.M * x.K {
							x.codes = append(x.codes, byte(int(drawCode())+128))
						}
						for range max(1, x.Experts) * x.K * x.N {
							x.weights = append(x.weights, byte(drawWeight()))
						}
						if got, want := x.computed(t, p), x.right(); !slices.Equal(got, want) {
							at := 0
							for ; at < len(got)-1 && got[at] == want[at]; at++ {
							}
							t.Errorf("%s: activations %s, weights %s: element %d of %d differs, want %v", x.Key(), what, other, at,
								len(got), want[at])
						}
					}
				}
			}
		}
	})
}

// The storage that is probed is the only difference: in the other ones products are exact too, or are not offered.
func TestStoragesAreProbed(t *testing.T) {
	p := opened(t)
	defer p.Close()
	for _, weights := range []storage{signed, shifted} {
		exact, err := p.env.multiplies(weights, p.options(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("storage %d is exact: %v", weights, exact)
		if wanted := weights == p.storage; wanted && !exact {
			t.Errorf("storage %d is taken and not exact", weights)
		}
		if exact && p.storage > weights {
			t.Errorf("storage %d is exact, and %d is taken", weights, p.storage)
		}
	}
}

// Where no type of 8-bit weights is multiplied exactly, their schemes alone are missing, and a bundle with them is
// refused with the reason and a way out.
func TestInexactLibrariesComputeFloats(t *testing.T) {
	p := opened(t)
	defer p.Close()
	p.storage = inexact
	p.caps = capabilities(p.cores, p.storage, true)
	for _, scheme := range op.SchemesOf(Name) {
		if has := slices.Contains(p.caps.Schemes, scheme); has == isInteger(scheme) {
			t.Errorf("scheme %q: offered %v", scheme, has)
		}
		graph := chained(3, scheme, false)
		artifact, err := compile.New().Compile(t.Context(), *graph, nil, driver.Target{Proc: "p"})
		if err != nil {
			t.Fatal(err)
		}
		var packed driver.Weights
		for _, spec := range graph.Weights {
			size, err := pack.Bytes(spec)
			if err != nil {
				t.Fatal(err)
			}
			packed = append(packed, driver.Packed{Spec: spec, Bytes: memoryOf(t, int(size))})
		}
		_, err = p.Load(t.Context(), artifact, packed)
		if !isInteger(scheme) {
			if err != nil {
				t.Errorf("scheme %q: %v", scheme, err)
			}
			continue
		}
		if err == nil || !errors.Is(err, driver.ErrIncapable) || !strings.Contains(err.Error(), string(scheme)) ||
			!strings.Contains(err.Error(), "inexactly on this CPU") {
			t.Errorf("scheme %q: got %v, want a refusal with its reason", scheme, err)
		}
	}
}

// Every product of a model gets the zero point where the operator expects it, whether it has a bias or not, and nothing
// else of the model changes.
func TestShiftModel(t *testing.T) {
	for _, bias := range []bool{false, true} {
		graph := chained(4, op.A8SQ8C, bias)
		plain, model := modelOf(t, graph), modelOf(t, graph)
		shiftModel(model)
		count := 0
		for i, node := range model.Graph.Nodes {
			before := plain.Graph.Nodes[i]
			if node.Op != "MatMulIntegerToFloat" {
				if !slices.Equal(node.In, before.In) {
					t.Errorf("%s (%s) reads %q, before %q", node.Name, node.Op, node.In, before.In)
				}
				continue
			}
			count++
			zero := node.In[5]
			at := slices.IndexFunc(model.Graph.Initializers, func(x onnx.Tensor) bool { return x.Name == zero })
			if at < 0 || model.Graph.Initializers[at].Type != onnx.Uint8 ||
				!slices.Equal(model.Graph.Initializers[at].Raw, []byte{128}) {
				t.Errorf("%s: operand 5 is %q, want a zero point of 128", node.Name, zero)
			}
			rest := slices.Clone(node.In)
			rest[5] = ""
			if want := append(slices.Clone(before.In), "")[:max(len(before.In), 6)]; !slices.Equal(rest, want) {
				t.Errorf("%s reads %q, want %q and the zero point", node.Name, node.In, want)
			}
		}
		if count != 2 {
			t.Errorf("bias %v: got %d products, want 2", bias, count)
		}
	}
}
