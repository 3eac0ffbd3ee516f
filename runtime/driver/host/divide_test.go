package host

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// packing is the portable kernels, but rows are packed before they are multiplied, as some sets do. A packed row is a
// number followed by its activations: by the number, the product knows that it reads what was packed for it.
func packing() *kernel.Set {
	set := kernel.Portable()
	set.Name, set.PackFrom = "packing", 24
	set.PackRows = func(dst []byte, x kernel.Matrix[uint8], m, k, block, group int) {
		stride, groups := kernel.PackedBytes(1, k, block), kernel.PackGroups(m)
		for row := group * m / groups; row < (group+1)*m/groups; row++ {
			binary.LittleEndian.PutUint32(dst[row*stride:], uint32(row+m))
			copy(dst[row*stride+4:][:k], x.From(row, 0).Data)
		}
	}

	// quantised returns the activations of packed rows, after checking that they are those rows.
	quantised := func(x kernel.PackedRows, block int) kernel.Quantised {
		stride := kernel.PackedBytes(1, x.K, block)
		for row := range x.M {
			if got := binary.LittleEndian.Uint32(x.Bytes[row*stride:]); got != uint32(row+x.M) {
				panic(fmt.Sprintf("row %d of %d was packed as another one", row, x.M))
			}
		}
		return kernel.Quantised{Codes: kernel.Rows(x.Bytes[4:], stride), Scale: x.Scale}
	}

	set.PackedQ8C = func(y kernel.Matrix[float32], x kernel.PackedRows, w, _ []byte, n int) {
		set.MatMulQ8C(y, quantised(x, 0), w, x.M, x.K, n)
	}
	set.PackedRequant = func(y kernel.Matrix[float32], x kernel.PackedRows, w, scratch []byte, n int) {
		set.MatMulRequant(y, quantised(x, 0), w, scratch, x.M, x.K, n)
	}
	set.PackedQ4B32 = func(y kernel.Matrix[float32], x kernel.PackedRows, w, _ []byte, n int) {
		rows := quantised(x, pack.BlockK)
		blocks := (x.K + pack.BlockK - 1) / pack.BlockK
		rows.Sums = kernel.Rows(make([]int32, x.M*blocks), blocks)
		set.BlockSums(rows.Sums, rows.Codes, x.M, x.K)
		set.MatMulQ4B32(y, rows, w, x.M, x.K, n)
	}
	return set
}

// Workers that divide the rows would each requantise all of a weight, so they divide its tiles.
func TestTilesAreRequantisedOnce(t *testing.T) {
	for scheme, want := range map[op.Scheme]bool{op.A8TQ4B32: true, op.A8CQ4B32: false} {
		build := builder{op: op.Op{Kind: op.MatMul, M: 256, K: 64, N: 640, Scheme: scheme},
			in:  []*operand{{value: op.Value{Type: op.U8}}},
			exe: &executable{proc: &processor{set: packing(), cores: make([]int, 2)}}}
		size, err := pack.TileBytes(scheme.Weight(), build.op.K)
		if err != nil {
			t.Fatal(err)
		}
		if got := build.divide(build.op.M, int(size), true).blocks > 1; got != want {
			t.Errorf("%s: rows are divided: %v, want %v", scheme, got, want)
		}
	}
}

// Results have the same bits for every number of workers. This includes products whose workers divide the columns, the
// rows, or rows that are packed first, and operators on rows and heads.
func TestDivisionsAgree(t *testing.T) {
	product := func(m, k, n int, scheme op.Scheme, bias bool) op.Op {
		return op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme, Bias: bias}
	}
	rope := op.Op{Kind: op.Rope, M: 70, Heads: 6, KVHeads: 3, HeadDim: 32}
	single := rope
	single.M = 1
	attention := rope
	attention.Kind, attention.KV, attention.Context = op.Attention, op.F32, rope.M
	ops := []op.Op{
		product(160, 32, 300, op.A8TQ8C, true), // rows
		product(160, 32, 300, op.A8TQ4B32, false),
		product(160, 32, 300, op.A8CQ4B32, false),
		product(40, 70, 1030, op.A8CQ4B32, true),
		product(3, 256, 1030, op.A8CQ4B32, true),
		product(200, 64, 333, op.A32W32, true),
		product(40, 256, 1030, op.A8TQ8C, false), // columns
		product(3, 256, 1030, op.A8TQ4B32, true),
		product(1, 4096, 64, op.A8TQ8C, false), // few columns
		product(9, 4096, 33, op.A32W32, true),
		rope, single, attention,
		{Kind: op.Norm, M: 70, N: 300, Eps: 1e-5},
	}

	for _, set := range []*kernel.Set{kernel.Best(), packing()} {
		for _, operator := range ops {
			want := ""
			for _, workers := range []int{1, 2, 3, 5} {
				got := execute(t, set, workers, operator)

				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("%s with kernels %s: 1 worker and %d differ", operator.Key(), set.Name, workers)
				}
			}
		}
	}
}

// execute runs an operator once on a processor of so many workers and returns what it wrote.
func execute(t *testing.T, set *kernel.Set, workers int, operator op.Op) string {
	t.Helper()
	proc := testProcessor(t, sharedCores(workers), set)
	graph := op.Single(operator, pack.N32)
	code := testArtifact(t, graph)
	rng := rand.New(rand.NewPCG(7, 7))
	weights := randomWeights(t, rng, graph)
	bindings := randomBindings(t, rng, graph, operator)

	err := onAttachedThread(proc, func() error {
		loaded, err := proc.Load(t.Context(), code, weights)
		if err != nil {
			return err
		}
		bindings.Next = loaded // helpers ask memory for the weight again
		_, err = proc.Run(loaded, bindings)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", operator.Key(), err)
	}

	out := ""
	for i := range bindings.Out {
		out += string(bindings.Out[i].Buffer.Bytes())
	}
	return out
}

// randomWeights packs numbers between -1 and 1 for every weight of a graph.
func randomWeights(t *testing.T, rng *rand.Rand, graph op.Graph) driver.Weights {
	t.Helper()
	var weights driver.Weights
	for _, spec := range graph.Weights {
		values := make([]float32, spec.K*spec.N)
		for i := range values {
			values[i] = float32(rng.Float64()*2 - 1)
		}
		source, err := pack.Floats(values, spec.K, spec.N)
		if err != nil {
			t.Fatal(err)
		}

		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		raw := testMemory(t, size)
		if err := pack.Pack(raw, spec, source); err != nil {
			t.Fatal(err)
		}
		weights = append(weights, driver.Packed{Spec: spec, Bytes: raw})
	}
	return weights
}

// randomBindings gives the graph of an operator random inputs and caches, and outputs of zeros.
func randomBindings(t *testing.T, rng *rand.Rand, graph op.Graph, operator op.Op) *driver.Bindings {
	t.Helper()
	zeros := func(typ op.Type, rows, cols int) driver.View {
		buffer, err := driver.ImportHost("host", testMemory(t, int64(rows)*int64(cols)*int64(typ.Bytes())))
		if err != nil {
			t.Fatal(err)
		}
		return driver.View{Buffer: buffer, Type: typ, Rows: rows, Cols: cols, Stride: cols}
	}
	random := func(typ op.Type, rows, cols int) driver.View {
		view := zeros(typ, rows, cols)
		raw := view.Buffer.Bytes()
		for i := range rows * cols {
			if typ == op.F32 {
				bits := uint32(127-8+rng.IntN(8))<<23 | rng.Uint32()&0x807fffff
				binary.LittleEndian.PutUint32(raw[4*i:], bits)
			} else {
				raw[i] = byte(1 + rng.IntN(255))
			}
		}
		return view
	}

	bindings := &driver.Bindings{Scalars: &driver.Scalars{Rows: operator.M, Seq: operator.M}, MaxContext: operator.M}
	for _, value := range graph.Inputs {
		bindings.In = append(bindings.In, random(value.Type, value.Rows, value.Cols))
	}
	for i, value := range graph.Outputs {
		inPlace := len(graph.Inputs) > i && graph.Inputs[i].Name == value.Name
		if inPlace {
			bindings.Out = append(bindings.Out, bindings.In[i])
			continue
		}
		bindings.Out = append(bindings.Out, zeros(value.Type, value.Rows, value.Cols))
	}
	if operator.KV != "" {
		bindings.K = random(operator.KV, operator.KVHeads*operator.M, operator.HeadDim)
		bindings.V = random(operator.KV, operator.KVHeads*operator.M, operator.HeadDim)
	}
	return bindings
}
