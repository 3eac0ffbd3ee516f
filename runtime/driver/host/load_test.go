package host

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// Graphs share an arena that is replaced when a later graph needs more: an earlier one must then find its temporary
// values and scratch in the new arena.
func TestArenaIsReplaced(t *testing.T) {
	proc := testProcessor(t, affinity.Cores()[:1], kernel.Portable())
	if err := proc.AttachBy(func() error { return nil }); err != nil { // does not pin the test's thread
		t.Fatal(err)
	}

	small := loadCopyAndQuantise(t, proc, 2)
	runInArena(t, proc, small)

	large := loadCopyAndQuantise(t, proc, 5000)
	runInArena(t, proc, small)
	runInArena(t, proc, large)
	runInArena(t, proc, small)
}

// loadCopyAndQuantise loads a graph that copies its input to a temporary value and quantises that.
func loadCopyAndQuantise(t *testing.T, proc *processor, rows int) *executable {
	t.Helper()
	value := func(name string, typ op.Type, cols int) op.Value {
		return op.Value{Name: name, Type: typ, Rows: rows, Cols: cols}
	}
	graph := op.Graph{
		Inputs:  []op.Value{value("x", op.F32, 8)},
		Outputs: []op.Value{value("y", op.U8, 8), value("scale", op.F32, 1)},
		Temps:   []op.Value{value("t", op.F32, 8)},
		Nodes: []op.Node{
			{Op: op.Op{Kind: op.Copy, M: rows, N: 8}, In: []string{"x"}, Out: []string{"t"}},
			{Op: op.Op{Kind: op.QuantRows, M: rows, N: 8}, In: []string{"t"}, Out: []string{"y", "scale"}},
		},
	}

	loaded, err := proc.Load(t.Context(), testArtifact(t, graph), nil)
	if err != nil {
		t.Fatal(err)
	}
	return loaded.(*executable)
}

// runInArena runs what loadCopyAndQuantise loaded and checks that all it needs besides operands lies in the arena.
func runInArena(t *testing.T, proc *processor, loaded *executable) {
	t.Helper()
	view := func(value op.Value) driver.View {
		buffer, err := proc.Alloc(int64(value.Rows * value.Cols * value.Type.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buffer.Close() })
		return driver.View{Buffer: buffer, Type: value.Type, Rows: value.Rows, Cols: value.Cols, Stride: value.Cols}
	}
	graph := loaded.graph
	bindings := &driver.Bindings{
		Scalars: &driver.Scalars{Rows: graph.Rows()},
		In:      []driver.View{view(graph.Inputs[0])},
		Out:     []driver.View{view(graph.Outputs[0]), view(graph.Outputs[1])},
	}

	if _, err := proc.Run(loaded, bindings); err != nil {
		t.Fatal(err)
	}

	arena := proc.arena.Bytes()
	from := mem.Address(arena)
	end := from + uintptr(len(arena))
	pieces := map[string][]byte{
		"temporary value": loaded.operands[3].raw,
		"row scales":      mem.Bytes(loaded.have.scale),
	}
	for what, piece := range pieces {
		at := mem.Address(piece)
		if at < from || at+uintptr(len(piece)) > end {
			t.Errorf("%s of %d rows at %#x, want it in the arena %#x..%#x", what, graph.Rows(), at, from, end)
		}
		if at%align != 0 {
			t.Errorf("%s of %d rows at %#x, want it aligned to %d", what, graph.Rows(), at, align)
		}
	}
}

// A static scale that is no positive number is refused before anything is computed with it.
func TestStaticScaleRefused(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true}, "")
	code := testArtifact(t, graph)
	proc := testProcessor(t, affinity.Cores()[:1], kernel.Best())

	cases := []struct {
		scale    float32
		accepted bool
	}{
		{scale: 0},
		{scale: -1},
		{scale: float32(math.NaN())},
		{scale: float32(math.Inf(1))},
		{scale: float32(math.Inf(-1))},
		{scale: 0x1p-149, accepted: true},
		{scale: 1, accepted: true},
		{scale: math.MaxFloat32, accepted: true},
	}
	for _, c := range cases {
		raw := testMemory(t, 4)
		copy(raw, mem.Bytes([]float32{c.scale}))

		loaded, err := proc.Load(t.Context(), code, driver.Weights{{Spec: graph.Weights[0], Bytes: raw}})

		switch {
		case c.accepted && err != nil:
			t.Errorf("scale %v: %v", c.scale, err)
		case c.accepted:
			loaded.Close()
		case err == nil || !strings.Contains(err.Error(), "static scale is"):
			t.Errorf("scale %v: got %v, want an error about the static scale", c.scale, err)
		}
	}
}

// Results do not depend on the number of workers, also where there are more of them than cores, as on larger machines.
func TestManyWorkers(t *testing.T) {
	require.Slow(t)
	const m, fan, k, n = 37, 3, 64, 1000
	expertsOf := func(experts int, scheme op.Scheme, spread bool) op.Op {
		return op.Op{Kind: op.ExpertMatMul, M: m, Fan: fan, Experts: experts, K: k, N: n, Scheme: scheme, Spread: spread}
	}
	graphs := []op.Graph{
		op.Single(expertsOf(5, op.A8TQ4B32, true), pack.N32),
		op.Single(expertsOf(90, op.A32W32, false), pack.N32),
		op.Single(op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: op.A8TQ8C, Bias: true}, pack.N32),
		op.Single(op.Op{Kind: op.QKNorm, M: 300, Heads: 8, KVHeads: 2, HeadDim: 32, Joint: true}, ""),
	}
	for _, s := range capabilities(nil).Schemes {
		product := op.Op{Kind: op.MatMul, M: m, K: k + 3, N: n, Scheme: s}
		graphs = append(graphs, op.Single(product, layouts[s.Weight()]))
	}

	var want []string
	for _, workers := range []int{1, 3, 7} {
		proc := testProcessor(t, slices.Repeat(affinity.Cores()[:1], workers), kernel.Best())

		got := runOnSmallNumbers(t, proc, graphs)

		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d workers compute something else than one", workers)
		}
	}
}

// runOnSmallNumbers runs every graph once, one after the other, and returns the bytes of their first outputs. Operands
// and weights are the same small numbers in every call.
func runOnSmallNumbers(t *testing.T, proc *processor, graphs []op.Graph) []string {
	t.Helper()
	return runOn(t, proc, graphs, smallWeights, smallBindings)
}

// runOn is runOnSmallNumbers with other weights and operands, which are drawn anew for each graph from the same seed.
func runOn(
	t *testing.T, proc *processor, graphs []op.Graph,
	weightsOf func(*testing.T, *rand.Rand, op.Graph) driver.Weights,
	bindingsOf func(*testing.T, *rand.Rand, op.Graph) *driver.Bindings,
) []string {
	t.Helper()
	artifacts := make([]driver.Artifact, len(graphs))
	weights := make([]driver.Weights, len(graphs))
	bindings := make([]*driver.Bindings, len(graphs))
	for i, graph := range graphs {
		rng := rand.New(rand.NewPCG(1, 2))
		artifacts[i] = testArtifact(t, graph)
		weights[i] = weightsOf(t, rng, graph)
		bindings[i] = bindingsOf(t, rng, graph)
	}

	err := onAttachedThread(proc, func() error {
		for i := range graphs {
			loaded, err := proc.Load(t.Context(), artifacts[i], weights[i])
			if err != nil {
				return err
			}
			if _, err := proc.Run(loaded, bindings[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	results := make([]string, len(graphs))
	for i := range bindings {
		results[i] = string(bindings[i].Out[0].Bytes())
	}
	return results
}

// smallMemory is aligned memory of bytes that are small numbers in every format.
func smallMemory(t *testing.T, rng *rand.Rand, bytes int64) []byte {
	t.Helper()
	raw := testMemory(t, bytes)
	for i := range raw {
		raw[i] = byte(rng.IntN(2)) << rng.IntN(6)
	}
	return raw
}

// smallWeights gives a graph weights of small numbers. Static scales are 1.
func smallWeights(t *testing.T, rng *rand.Rand, graph op.Graph) driver.Weights {
	t.Helper()
	var weights driver.Weights
	for _, spec := range graph.Weights {
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		raw := smallMemory(t, rng, size)
		if spec.Name == "steps" {
			fillOnes(raw)
		}
		weights = append(weights, driver.Packed{Spec: spec, Bytes: raw, Stride: size / int64(max(1, spec.Experts))})
	}
	return weights
}

// smallBindings gives a graph operands of small numbers, and ids below its number of experts.
func smallBindings(t *testing.T, rng *rand.Rand, graph op.Graph) *driver.Bindings {
	t.Helper()
	view := func(value op.Value) driver.View {
		raw := smallMemory(t, rng, int64(value.Rows*value.Cols*value.Type.Bytes()))
		if value.Name == "ids" {
			ids, err := mem.View[int32](raw)
			if err != nil {
				t.Fatal(err)
			}
			for i := range ids {
				ids[i] = int32(rng.IntN(graph.Weights[0].Experts))
			}
		}
		buffer, err := driver.ImportHost("host", raw)
		if err != nil {
			t.Fatal(err)
		}
		return driver.View{Buffer: buffer, Type: value.Type, Rows: value.Rows, Cols: value.Cols, Stride: value.Cols}
	}

	bindings := &driver.Bindings{Scalars: &driver.Scalars{Rows: graph.Rows()}}
	for _, value := range graph.Inputs {
		bindings.In = append(bindings.In, view(value))
	}
	for _, value := range graph.Outputs {
		out := view(value)
		if value.Name == graph.Inputs[0].Name { // in place
			out = bindings.In[0]
		}
		bindings.Out = append(bindings.Out, out)
	}
	return bindings
}

// A plan's prediction of memory relies on a bound of what graphs need beside their operands.
func TestScratchIsPredicted(t *testing.T) {
	var graphs []op.Graph
	for _, operator := range scratchUsers() {
		graphs = append(graphs, op.Single(operator, layouts[operator.Scheme.Weight()]))
		if gates := operator.Kind == op.MatMul && operator.N%2 == 0 && !operator.Scheme.RoundsResults(); gates {
			graphs = append(graphs, gatedProduct(operator, false))
		}
	}
	for _, graph := range graphs {
		operator := graph.Nodes[0].Op
		for _, cores := range [][]int{{0}, {0, 1, 2}} {
			proc := testProcessor(t, cores, kernel.Best())

			loaded, err := proc.Load(t.Context(), testArtifact(t, graph), blankWeights(t, graph))
			if err != nil {
				t.Fatalf("%s: %v", operator.Key(), err)
			}

			need := loaded.(*executable).need.bytes
			bound := memory().Scratch.Bytes(&graph, len(cores))
			if need > bound {
				t.Errorf("%s on %d cores needs %d bytes, want at most the predicted %d", operator.Key(), len(cores), need, bound)
			}
			// The bound is the same for every CPU, and close for those that hold most: they pack activations.
			if packs := strings.HasPrefix(proc.set.Name, "avx512"); packs && bound > 2*need+256<<10 {
				t.Errorf("%s on %d cores needs %d bytes, and %d are predicted", operator.Key(), len(cores), need, bound)
			}
		}
	}
}

// scratchUsers are operators that need memory beside their operands, products in every scheme among them.
func scratchUsers() []op.Op {
	ops := []op.Op{
		{Kind: op.QuantRows, M: 512, N: 2048},
		{Kind: op.QuantRows, M: 16, N: 64, Fan: 4},
		{Kind: op.QKNorm, M: 3, Heads: 8, KVHeads: 2, HeadDim: 64, Joint: true},
		{Kind: op.Attention, M: 256, Heads: 32, KVHeads: 4, HeadDim: 64, Context: 512, KV: op.F32},
		{Kind: op.Attention, M: 1, Heads: 8, KVHeads: 8, HeadDim: 128, Context: 512, KV: op.F16},
	}
	for _, s := range capabilities(nil).Schemes {
		ops = append(ops,
			op.Op{Kind: op.MatMul, M: 1, K: 256, N: 512, Scheme: s},
			op.Op{Kind: op.MatMul, M: 512, K: 2048, N: 256, Scheme: s},
			op.Op{Kind: op.MatMul, M: 300, K: 1030, N: 1024, Scheme: s},
			op.Op{Kind: op.MatMul, M: 70, K: 1030, N: 2017, Scheme: s})
		if s.Experts() {
			ops = append(ops,
				op.Op{Kind: op.ExpertMatMul, M: 64, K: 128, N: 96, Fan: 2, Experts: 4, Scheme: s},
				op.Op{Kind: op.ExpertMatMul, M: 512, K: 64, N: 256, Fan: 4, Experts: 8, Scheme: s, Spread: true})
		}
	}
	return ops
}

// Before a product of few rows, the workers ask memory for the weight: together for all of a small one, each for the
// beginning of its part of a large one.
func TestWhatProductsBeginWith(t *testing.T) {
	const workers, few, many = 3, 2, 512
	for _, scheme := range []op.Scheme{op.A32W32, op.A32W16, op.A8TQ8C, op.A8TQ6C, op.A8TQ4B32, op.A8TQ4B128} {
		for _, columns := range []int{33, 640, 4000} {
			operator := op.Op{Kind: op.MatMul, M: many, K: 260, N: columns, Scheme: scheme}
			graph := op.Single(operator, pack.N32)
			weights := blankWeights(t, graph)
			proc := testProcessor(t, slices.Repeat(affinity.Cores()[:1], workers), kernel.Best())

			loaded, err := proc.Load(t.Context(), testArtifact(t, graph), weights)
			if err != nil {
				t.Fatal(err)
			}
			begins := loaded.(*executable).begins

			weight := weights[0].Bytes
			small := len(weight)/workers < fetchAhead/2
			at := 0
			for worker := range workers {
				part := begins(worker, few)
				switch {
				case len(part) > fetchAhead:
					t.Errorf("%s: worker %d begins with %d bytes, want at most %d", operator.Key(), worker, len(part), fetchAhead)
				case !small && len(part) == 0:
					t.Errorf("%s: worker %d begins with nothing", operator.Key(), worker)
				case small && len(part) > 0 && &part[0] != &weight[at]:
					t.Errorf("%s: worker %d begins with bytes that are not those at %d", operator.Key(), worker, at)
				}
				at += len(part)
			}
			if small && at != len(weight) {
				t.Errorf("%s: workers begin with %d of %d bytes", operator.Key(), at, len(weight))
			}

			packsRows := proc.set.PackFrom > 0 && proc.set.PackRows != nil && !scheme.FewRows()
			if packsRows && columns == 4000 {
				if part := begins(0, many); part != nil {
					t.Errorf("%s: %d packed rows begin with %d bytes, want none", operator.Key(), many, len(part))
				}
			}
		}
	}
}
