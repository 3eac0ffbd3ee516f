package host

import (
	"encoding/json"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// Graphs share an arena that is replaced when a later graph needs more: an earlier one must then find
// its temporary values and scratch in the new arena.
func TestArenaIsReplaced(t *testing.T) {
	p := newProcessor(allowedCores()[:1], kernel.Portable())
	defer p.Close()
	p.attached = true // the test's thread is not to be pinned
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
