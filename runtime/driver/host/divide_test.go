package host

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// packing is the portable kernels with rows that are packed first, on every machine: a packed row is its activations,
// and the sum of row and group, by which the product knows that it reads what was packed for it.
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
	rows := func(x kernel.PackedRows, block int) kernel.Quantised {
		stride := kernel.PackedBytes(1, x.K, block)
		for row := range x.M {
			if got := binary.LittleEndian.Uint32(x.Bytes[row*stride:]); got != uint32(row+x.M) {
				panic(fmt.Sprintf("row %d of %d was packed as another one", row, x.M))
			}
		}
		return kernel.Quantised{Codes: kernel.Rows(x.Bytes[4:], stride), Scale: x.Scale}
	}
	set.PackedQ8C = func(y kernel.Matrix[float32], x kernel.PackedRows, w, _ []byte, n int) {
		set.MatMulQ8C(y, rows(x, 0), w, x.M, x.K, n)
	}
	set.PackedQ4B32 = func(y kernel.Matrix[float32], x kernel.PackedRows, w, _ []byte, n int) {
		quantised, blocks := rows(x, pack.BlockK), (x.K+pack.BlockK-1)/pack.BlockK
		quantised.Sums = kernel.Rows(make([]int32, x.M*blocks), blocks)
		set.BlockSums(quantised.Sums, quantised.Codes, x.M, x.K)
		set.MatMulQ4B32(y, quantised, w, x.M, x.K, n)
	}
	return set
}

// However many workers a processor has, and whether they divide the columns of a product or its rows, packed or not, a
// product of codes has the same bits, and so has everything on rows and heads.
func TestDivisionsAgree(t *testing.T) {
	product := func(m, k, n int, scheme op.Scheme, bias bool) op.Op {
		return op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme, Bias: bias}
	}
	heads := op.Op{M: 70, Heads: 6, KVHeads: 3, HeadDim: 32, KV: op.F32}
	rope, attention := heads, heads
	rope.Kind, rope.KV, attention.Kind = op.Rope, "", op.Attention
	attention.Context = heads.M
	single := rope
	single.M = 1
	ops := []op.Op{
		product(160, 32, 300, op.A8TQ8C, true), // rows
		product(160, 32, 300, op.A8TQ4B32, false),
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

// execute runs an operator once on a processor of so many workers and returns what it wrote. The workers share the
// cores that there are.
func execute(t *testing.T, set *kernel.Set, workers int, operator op.Op) string {
	t.Helper()
	free := affinity.Cores()
	var cores []int
	for i := range workers {
		cores = append(cores, free[i%len(free)])
	}
	proc := newProcessor(cores, set)
	defer proc.Close()
	graph := op.Single(operator, pack.N32)
	code, err := json.Marshal(&graph)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 7))
	var weights driver.Weights
	for _, spec := range graph.Weights {
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		values := make([]float32, spec.K*spec.N)
		for i := range values {
			values[i] = float32(rng.Float64()*2 - 1)
		}
		source, err := pack.Floats(values, spec.K, spec.N)
		if err != nil {
			t.Fatal(err)
		}
		buffer, err := proc.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		defer buffer.Close()
		if err := pack.Pack(buffer.Bytes()[:size], spec, source); err != nil {
			t.Fatal(err)
		}
		weights = append(weights, driver.Packed{Spec: spec, Bytes: buffer.Bytes()[:size]})
	}
	view := func(kind op.Type, rows, cols int, random bool) driver.View {
		buffer, err := proc.Alloc(int64(rows) * int64(cols) * int64(kind.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buffer.Close() })
		out := driver.View{Buffer: buffer, Type: kind, Rows: rows, Cols: cols, Stride: cols}
		for i := range rows * cols {
			switch raw := buffer.Bytes(); {
			case random && kind == op.F32:
				bits := uint32(127-8+rng.IntN(8))<<23 | rng.Uint32()&0x807fffff
				binary.LittleEndian.PutUint32(raw[4*i:], bits)
			case random:
				raw[i] = byte(1 + rng.IntN(255))
			}
		}
		return out
	}
	bindings := &driver.Bindings{Scalars: &driver.Scalars{Rows: operator.M, Seq: operator.M}, MaxContext: operator.M}
	for _, value := range graph.Inputs {
		bindings.In = append(bindings.In, view(value.Type, value.Rows, value.Cols, true))
	}
	for i, value := range graph.Outputs {
		if len(graph.Inputs) > i && graph.Inputs[i].Name == value.Name { // in place
			bindings.Out = append(bindings.Out, bindings.In[i])
			continue
		}
		bindings.Out = append(bindings.Out, view(value.Type, value.Rows, value.Cols, false))
	}
	if operator.KV != "" {
		bindings.K = view(operator.KV, operator.KVHeads*operator.M, operator.HeadDim, true)
		bindings.V = view(operator.KV, operator.KVHeads*operator.M, operator.HeadDim, true)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: Attach pins the thread
		err := proc.Attach()
		var loaded driver.Executable
		if err == nil {
			loaded, err = proc.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, weights)
		}
		if err == nil {
			bindings.Next = loaded // helpers ask memory for the weight again
			_, err = proc.Run(loaded, bindings)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("%s: %v", operator.Key(), err)
	}
	out := ""
	for i := range bindings.Out {
		out += string(bindings.Out[i].Buffer.Bytes())
	}
	return out
}
