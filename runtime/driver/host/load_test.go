package host

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"runtime"
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

// Graphs share an arena that is replaced when a later graph needs more: an earlier one must then find
// its temporary values and scratch in the new arena.
func TestArenaIsReplaced(t *testing.T) {
	p := newProcessor(affinity.Cores()[:1], kernel.Portable())
	defer p.Close()
	if err := p.AttachBy(func() error { return nil }); err != nil { // the test's thread is not to be pinned
		t.Fatal(err)
	}
	load := func(m int) *executable {
		v := func(name string, typ op.Type, cols int) op.Value {
			return op.Value{Name: name, Type: typ, Rows: m, Cols: cols}
		}
		g := op.Graph{Inputs: []op.Value{v("x", op.F32, 8)}, Outputs: []op.Value{v("y", op.U8, 8), v("scale", op.F32, 1)}, Temps: []op.Value{v("t", op.F32, 8)},
			Nodes: []op.Node{
				{Op: op.Op{Kind: op.Copy, M: m, N: 8}, In: []string{"x"}, Out: []string{"t"}},
				{Op: op.Op{Kind: op.QuantRows, M: m, N: 8}, In: []string{"t"}, Out: []string{"y", "scale"}},
			}}
		code, err := json.Marshal(&g)
		if err != nil {
			t.Fatal(err)
		}
		e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e.(*executable)
	}
	run := func(e *executable) {
		t.Helper()
		view := func(v op.Value) driver.View {
			b, err := p.Alloc(int64(v.Rows * v.Cols * v.Type.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.Close() })
			return driver.View{Buffer: b, Type: v.Type, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
		}
		b := &driver.Bindings{Scalars: &driver.Scalars{Rows: e.graph.Rows()}, In: []driver.View{view(e.graph.Inputs[0])}, Out: []driver.View{view(e.graph.Outputs[0]), view(e.graph.Outputs[1])}}
		if _, err := p.Run(e, b); err != nil {
			t.Fatal(err)
		}
		arena := p.arena.Bytes()
		from, to := mem.Address(arena), mem.Address(arena)+uintptr(len(arena))
		for what, piece := range map[string][]byte{"temporary value": e.operands[3].raw, "row scales": mem.Bytes(e.have.scale)} {
			if at := mem.Address(piece); at < from || at+uintptr(len(piece)) > to || at%align != 0 {
				t.Errorf("%s of %d rows at %#x, outside the arena %#x..%#x or unaligned", what, e.graph.Rows(), at, from, to)
			}
		}
	}
	small := load(2)
	run(small)
	large := load(5000)
	run(small)
	run(large)
	run(small)
}

// A static scale that is no positive number is refused before anything is computed with it.
func TestStaticScaleRefused(t *testing.T) {
	g := op.Single(op.Op{Kind: op.QuantRows, M: 3, N: 40, Static: true}, "")
	code, err := json.Marshal(&g)
	if err != nil {
		t.Fatal(err)
	}
	p := newProcessor([]int{affinity.Cores()[0]}, kernel.Best())
	for _, x := range []struct {
		scale float32
		ok    bool
	}{{0, false}, {-1, false}, {float32(math.NaN()), false}, {float32(math.Inf(1)), false}, {float32(math.Inf(-1)), false}, {0x1p-149, true}, {1, true}, {math.MaxFloat32, true}} {
		r, err := mem.Alloc(64, align)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		copy(r.Bytes(), mem.Bytes([]float32{x.scale}))
		e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, driver.Weights{{Spec: g.Weights[0], Bytes: r.Bytes()[:4]}})
		if (err == nil) != x.ok || err != nil && !strings.Contains(err.Error(), "static scale is") {
			t.Errorf("scale %v: %v", x.scale, err)
		}
		if err == nil {
			e.Close()
		}
	}
}

// More workers than cores, as on larger machines: results do not depend on their number.
func TestManyWorkers(t *testing.T) {
	require.Slow(t)
	const m, fan, k, n = 37, 3, 64, 1000
	core := affinity.Cores()[0]
	graphs := []op.Graph{
		op.Single(op.Op{Kind: op.ExpertMatMul, M: m, Fan: fan, Experts: 5, K: k, N: n, Scheme: op.A8TQ4B32, Spread: true}, pack.N32),
		op.Single(op.Op{Kind: op.ExpertMatMul, M: m, Fan: fan, Experts: 90, K: k, N: n, Scheme: op.A32W32}, pack.N32),
		op.Single(op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: op.A8TQ8C, Bias: true}, pack.N32),
		op.Single(op.Op{Kind: op.QKNorm, M: 300, Heads: 8, KVHeads: 2, HeadDim: 32, Joint: true}, ""),
	}
	for _, s := range capabilities(nil).Schemes {
		graphs = append(graphs, op.Single(op.Op{Kind: op.MatMul, M: m, K: k + 3, N: n, Scheme: s}, layouts[s.Weight()]))
	}
	var first []string
	for _, workers := range []int{1, 3, 7} {
		p := newProcessor(slices.Repeat([]int{core}, workers), kernel.Best())
		var results []string
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			runtime.LockOSThread() // ends pinned
			if err := p.Attach(); err != nil {
				t.Error(err)
				return
			}
			for _, g := range graphs {
				rng := rand.New(rand.NewPCG(1, 2))
				region := func(bytes int64) []byte {
					r, err := mem.Alloc(int(bytes), align)
					if err != nil {
						panic(err)
					}
					for i := range r.Bytes() { // small numbers in every format
						r.Bytes()[i] = byte(rng.IntN(2)) << rng.IntN(6)
					}
					t.Cleanup(func() { r.Close() })
					return r.Bytes()
				}
				var w driver.Weights
				for _, spec := range g.Weights {
					size, err := pack.Bytes(spec)
					if err != nil {
						t.Error(err)
						return
					}
					w = append(w, driver.Packed{Spec: spec, Bytes: region(size), Stride: size / int64(max(1, spec.Experts))})
					if spec.Name == "steps" {
						onesF32(w[len(w)-1].Bytes)
					}
				}
				code, err := json.Marshal(&g)
				if err != nil {
					t.Error(err)
					return
				}
				e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, w)
				if err != nil {
					t.Error(err)
					return
				}
				b := &driver.Bindings{Scalars: &driver.Scalars{Rows: g.Rows()}}
				view := func(v op.Value) driver.View {
					raw := region(int64(v.Rows * v.Cols * v.Type.Bytes()))
					if v.Name == "ids" {
						ids, _ := mem.View[int32](raw)
						for i := range ids {
							ids[i] = int32(rng.IntN(g.Weights[0].Experts))
						}
					}
					buf, err := driver.ImportHost("host", raw)
					if err != nil {
						t.Error(err)
					}
					return driver.View{Buffer: buf, Type: v.Type, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
				}
				for _, v := range g.Inputs {
					b.In = append(b.In, view(v))
				}
				for i, v := range g.Outputs {
					b.Out = append(b.Out, view(v))
					if v.Name == g.Inputs[0].Name {
						b.Out[i] = b.In[0]
					}
				}
				if _, err := p.Run(e, b); err != nil {
					t.Error(err)
					return
				}
				results = append(results, string(b.Out[0].Bytes()))
			}
		}()
		<-ended
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if first == nil {
			first = results
		}
		if !slices.Equal(results, first) {
			t.Errorf("%d workers compute something else than one", workers)
		}
	}
}

// A plan's prediction of memory counts on this bound of what graphs need beside their operands.
func TestScratchIsPredicted(t *testing.T) {
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
		if !s.Experts() {
			continue
		}
		ops = append(ops,
			op.Op{Kind: op.ExpertMatMul, M: 64, K: 128, N: 96, Fan: 2, Experts: 4, Scheme: s},
			op.Op{Kind: op.ExpertMatMul, M: 512, K: 64, N: 256, Fan: 4, Experts: 8, Scheme: s, Spread: true})
	}
	for _, o := range ops {
		for _, cores := range [][]int{{0}, {0, 1, 2}} {
			p := newProcessor(cores, kernel.Best())
			g := op.Single(o, layouts[o.Scheme.Weight()])
			code, err := json.Marshal(&g)
			if err != nil {
				t.Fatal(err)
			}
			var weights driver.Weights
			for _, w := range g.Weights {
				one, err := pack.Bytes(pack.Expert(w))
				if err != nil {
					t.Fatal(err)
				}
				stride := (one + align - 1) / align * align
				r, err := mem.Alloc(int(stride*int64(max(1, w.Experts)-1)+one), align)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				packed := driver.Packed{Spec: w, Bytes: r.Bytes()}
				if w.Name == "steps" {
					onesF32(packed.Bytes)
				}
				if w.Experts > 0 {
					packed.Stride = stride
				}
				weights = append(weights, packed)
			}
			exe, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, weights)
			if err != nil {
				t.Fatalf("%s: %v", o.Key(), err)
			}
			need, bound := exe.(*executable).need.bytes, memory().Scratch.Bytes(&g, len(cores))
			// What is told does not depend on this CPU: it counts for those that hold most, which pack activations.
			if tight := strings.HasPrefix(p.set.Name, "avx512"); need > bound || tight && bound > 2*need+256<<10 {
				t.Errorf("%s on %d cores needs %d bytes, predicted %d", o.Key(), len(cores), need, bound)
			}
			p.Close()
		}
	}
}

// What workers ask memory for before a product of few rows is, one after the other, its whole weight; of large ones each
// asks for a part.
func TestWhatProductsBeginWith(t *testing.T) {
	for _, scheme := range []op.Scheme{op.A32W32, op.A32W16, op.A8TQ8C, op.A8TQ6C, op.A8TQ4B32, op.A8TQ4B128} {
		for _, columns := range []int{33, 640, 4000} {
			operator := op.Op{Kind: op.MatMul, M: 512, K: 260, N: columns, Scheme: scheme}
			graph := op.Single(operator, pack.N32)
			code, err := json.Marshal(&graph)
			if err != nil {
				t.Fatal(err)
			}
			size, err := pack.Bytes(graph.Weights[0])
			if err != nil {
				t.Fatal(err)
			}
			memory, err := mem.Alloc(int(size), align)
			if err != nil {
				t.Fatal(err)
			}
			defer memory.Close()
			processor := newProcessor(slices.Repeat(affinity.Cores()[:1], 3), kernel.Best())
			defer processor.Close()
			loaded, err := processor.Load(t.Context(), driver.Artifact{Driver: Name, Code: code},
				driver.Weights{{Spec: graph.Weights[0], Bytes: memory.Bytes()[:size]}})
			if err != nil {
				t.Fatal(err)
			}
			begins, at := loaded.(*executable).begins, int64(0)
			for worker := range 3 {
				part := begins(worker, 2)
				if small := size/3 < fetchAhead/2; len(part) > fetchAhead || !small && len(part) == 0 ||
					small && len(part) > 0 && &part[0] != &memory.Bytes()[at] {
					t.Errorf("%s: worker %d begins with %d bytes that are not those at %d", operator.Key(), worker, len(part), at)
				}
				at += int64(len(part))
			}
			if size/3 < fetchAhead/2 && at != size {
				t.Errorf("%s: workers begin with %d of %d bytes", operator.Key(), at, size)
			}
			if processor.set.PackFrom > 0 && processor.set.PackRows != nil && !scheme.FewRows() && columns == 4000 {
				if part := begins(0, 512); part != nil {
					t.Errorf("%s: 512 packed rows begin with %d bytes", operator.Key(), len(part))
				}
			}
		}
	}
}

// onesF32 fills b with the number 1.
func onesF32(b []byte) {
	for i := range b {
		b[i] = []byte{0, 0, 0x80, 0x3f}[i%4]
	}
}
