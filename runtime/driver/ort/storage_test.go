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
	codes   []byte // activations [M,K], with a zero point of 128
	weights []byte // [K,N], of group_matmul [slots,K,N]
}

// right computes the product in integers.
func (x *integerProduct) right() []float32 {
	var out []float32
	rowsOfSlot := x.M / max(1, x.Experts)
	for row := range x.M {
		weight := x.weights[row/rowsOfSlot*x.K*x.N:]
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

// computed computes the product on the processor. It returns nil after an error, which it reports.
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

// load makes the product ready to run, with the memory of its result. It returns nil after an error, which it reports.
func (x *integerProduct) load(t *testing.T, p *processor) (driver.Executable, *driver.Bindings, []byte) {
	t.Helper()
	graph := op.Single(x.Op, op.OnnxLayout)
	var packed driver.Weights
	matrix := x.weights
	for _, spec := range graph.Weights {
		packed = append(packed, driver.Packed{Spec: spec, Bytes: packedCodes(t, spec, matrix[:x.K*x.N])})
		matrix = matrix[x.K*x.N:]
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

	codes, scales, result := memoryOf(t, x.M*x.K), memoryOf(t, 4*x.M), memoryOf(t, 4*x.M*x.N)
	copy(codes, x.codes)
	for row := range x.M {
		copy(scales[4*row:], one)
	}
	bindings := &driver.Bindings{
		In: []driver.View{
			imported(t, p, codes, op.Value{Type: op.U8, Rows: x.M, Cols: x.K}),
			imported(t, p, scales, op.Value{Type: op.F32, Rows: x.M, Cols: 1}),
		},
		Out:     []driver.View{imported(t, p, result, op.Value{Type: op.F32, Rows: x.M, Cols: x.N})},
		Scalars: &driver.Scalars{Rows: x.M, KVLen: x.M, Seq: x.M},
	}
	return exe, bindings, result
}

// one holds the bytes of a float32 of 1.
var one = []byte{0, 0, 128, 63}

// packedCodes packs a matrix of codes whose scales are all 1.
func packedCodes(t *testing.T, spec op.WeightSpec, codes []byte) []byte {
	t.Helper()
	size, err := pack.Bytes(spec)
	if err != nil {
		t.Fatal(err)
	}
	_, at, scales, err := pack.OnnxParts(spec)
	if err != nil {
		t.Fatal(err)
	}
	packed := memoryOf(t, int(size))
	copy(packed, codes)
	for column := range scales {
		copy(packed[at+4*column:], one)
	}
	return packed
}

// Products of the largest codes are exact to the last bit, in every scheme of 8-bit weights, for single rows, several
// and those of groups: where all codes are extremes, where few are, and where sums nearly leave 16 bits.
func TestLargestCodesAreExact(t *testing.T) {
	p := opened(t)
	if p.storage == inexact {
		t.Log("the library multiplies no type of 8-bit weights exactly here")
	}
	shapes := []op.Op{
		{Kind: op.MatMul, M: 1, K: 64, N: 32},
		{Kind: op.MatMul, M: 1, K: 131, N: 37},
		{Kind: op.MatMul, M: 3, K: 4, N: 1},
		{Kind: op.MatMul, M: 9, K: 257, N: 130},
		{Kind: op.GroupMatMul, M: 6, K: 66, N: 33, Experts: 3},
	}
	onItsThread(t, p, func() {
		for _, scheme := range p.caps.Schemes {
			if !isInteger(scheme) || scheme.Grid() {
				continue
			}
			for _, shape := range shapes {
				shape.Scheme = scheme
				if shape.Kind == op.MatMul || scheme.Experts() {
					multiplyExtremes(t, p, shape)
				}
			}
		}
	})
}

// multiplyExtremes compares products of activations and weights of all kinds with the products in integers.
func multiplyExtremes(t *testing.T, p *processor, product op.Op) {
	t.Helper()
	rng := rand.New(rand.NewPCG(23, 1))
	draws := map[string]func() int8{
		"all +127":       func() int8 { return 127 },
		"all -127":       func() int8 { return -127 },
		"signs":          func() int8 { return []int8{127, -127}[rng.IntN(2)] },
		"few extremes":   func() int8 { return []int8{127, -127, 1, 0, -1, 2, -2, 3}[rng.IntN(8)] },
		"nearly 16 bits": func() int8 { return int8(62 + rng.IntN(6)) },
		"any":            func() int8 { return int8(rng.IntN(255) - 127) },
	}
	for activations, drawCode := range draws {
		for weights, drawWeight := range draws {
			x := integerProduct{Op: product}
			for range x.M * x.K {
				x.codes = append(x.codes, byte(int(drawCode())+128))
			}
			for range max(1, x.Experts) * x.K * x.N {
				x.weights = append(x.weights, byte(drawWeight()))
			}

			got, want := x.computed(t, p), x.right()
			if len(got) != len(want) {
				t.Errorf("%s: got %d elements, want %d", x.Key(), len(got), len(want))
				continue
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("%s: activations %s, weights %s: element %d is %v, want %v", x.Key(), activations, weights,
						i, got[i], want[i])
					break
				}
			}
		}
	}
}

// The processor takes a storage of weights in which products are exact, and the first such.
func TestStoragesAreProbed(t *testing.T) {
	p := opened(t)
	defer p.Close()
	for _, weights := range []storage{signed, shifted} {
		exact, err := p.env.multiplies(weights, p.options(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("storage %d is exact: %v", weights, exact)
		if weights == p.storage && !exact {
			t.Errorf("storage %d is taken and not exact", weights)
		}
		if exact && p.storage > weights {
			t.Errorf("storage %d is exact, and %d is taken", weights, p.storage)
		}
	}
}

// Where no type of 8-bit weights is multiplied exactly, their schemes alone are missing, and a bundle with them is
// refused with the reason.
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
		switch {
		case !isInteger(scheme):
			if err != nil {
				t.Errorf("scheme %q: %v", scheme, err)
			}
		case !errors.Is(err, driver.ErrIncapable):
			t.Errorf("scheme %q: got %v, want a refusal", scheme, err)
		case !strings.Contains(err.Error(), string(scheme)), !strings.Contains(err.Error(), "inexactly on this CPU"):
			t.Errorf("scheme %q: got %v, want its name and the reason", scheme, err)
		}
	}
}

// Every product of a model gets the zero point where the operator expects it, whether it has a bias or not, and nothing
// else of the model changes.
func TestShiftModel(t *testing.T) {
	const products, zeroPoint = 2, 5 // zeroPoint is the operand's index
	for _, bias := range []bool{false, true} {
		graph := chained(4, op.A8SQ8C, bias)
		plain, model := modelOf(t, graph), modelOf(t, graph)

		shiftModel(model)

		count := 0
		for i, node := range model.Graph.Nodes {
			want := slices.Clone(plain.Graph.Nodes[i].In)
			if node.Op != "MatMulIntegerToFloat" {
				if !slices.Equal(node.In, want) {
					t.Errorf("%s (%s) reads %q, before %q", node.Name, node.Op, node.In, want)
				}
				continue
			}

			count++
			name := node.In[zeroPoint]
			zero := changed{model, t}.initializer(name)
			if zero.Type != onnx.Uint8 || !slices.Equal(zero.Raw, []byte{128}) {
				t.Errorf("%s: operand 5 is %q, want a zero point of 128", node.Name, name)
			}
			if len(want) == zeroPoint {
				want = append(want, "")
			}
			want[zeroPoint] = name
			if !slices.Equal(node.In, want) {
				t.Errorf("%s reads %q, want %q", node.Name, node.In, want)
			}
		}
		if count != products {
			t.Errorf("bias %v: got %d products, want %d", bias, count, products)
		}
	}
}
