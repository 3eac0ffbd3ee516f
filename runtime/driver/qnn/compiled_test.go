package qnn

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

var target = map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8"}

// piece is a product of hetc's compiler, with random-looking weights, and a sample.
func piece(t testing.TB, s op.Scheme, m int) driver.Piece {
	t.Helper()
	g := op.Single(op.Op{Kind: op.MatMul, M: m, K: red, N: cols, Scheme: s}, op.OnnxLayout)
	return driver.Piece{Name: "product", Graph: g, Sample: [][]byte{slices.Clone(mem.Bytes(ramp(m * red)))},
		Weights: weightsOf(t, &g)}
}

// weightsOf are random-looking weights of a graph, and steps of its grids.
func weightsOf(t testing.TB, g *op.Graph) (weights driver.Weights) {
	t.Helper()
	for _, spec := range g.Weights {
		v := ramp(spec.K * spec.N)
		switch spec.K {
		case 1: // the scale of rows in 8 bit
			v = slices.Repeat([]float32{rowScale}, spec.N)
		case 2: // steps of grids
			v = slices.Repeat([]float32{step}, 2*spec.N)
		}
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		r, err := mem.Alloc(int(size), driver.Align)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		src, err := pack.Floats(v, spec.K, spec.N)
		if err != nil {
			t.Fatal(err)
		}
		if err := pack.Pack(r.Bytes(), spec, src); err != nil {
			t.Fatal(err)
		}
		weights = append(weights, driver.Packed{Spec: spec, Bytes: r.Bytes()})
	}
	return weights
}

// What hetc's compiler makes is what this driver loads, and the results are the bits that the compiler saw.
func TestCompiledGraphs(t *testing.T) {
	if _, err := ortapi.FindQNN(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	c := compile.New(compile.Options{})
	for _, s := range schemes {
		if s == op.A8SQ8C || s == op.A8OQ8C {
			continue // its rows arrive quantised
		}
		one := piece(t, s, rows)
		compiled, err := c.CompileGroup(t.Context(), []driver.Piece{one}, driver.Target{Proc: "npu", Options: target, Emulator: true})
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		p := open(t, target)
		if err := p.Attach(); err != nil {
			t.Fatal(err)
		}
		e, err := p.Load(t.Context(), compiled.Artifacts[0].Artifact, nil)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		x, y, b := operands(t, p)
		copy(x, ramp(rows*red))
		if _, err := p.Run(e, b); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		if !bytes.Equal(mem.Bytes(y), compiled.Artifacts[0].Emulated[0]) {
			t.Errorf("%s: the results differ from those of the compiler's emulator", s)
		}
		if err := errors.Join(e.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A device's artifacts share their binary: the emulator refuses them, and what a device would load is put together in a
// folder of its own, which goes with the last of them.
func TestShared(t *testing.T) {
	if _, err := ortapi.FindQNN(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	group := []driver.Piece{piece(t, op.A16SQ8C, 8), piece(t, op.A16SQ8C, 16)}
	for i := range group {
		group[i].Sample = nil
	}
	compiled, err := compile.New(compile.Options{}).CompileGroup(t.Context(), group, driver.Target{Proc: "npu", Options: target})
	if err != nil {
		t.Fatal(err)
	}
	if len(compiled.Shared) == 0 {
		t.Fatal("no shared binary")
	}
	a, b := compiled.Artifacts[0].Artifact, compiled.Artifacts[1].Artifact
	a.Shared, b.Shared = compiled.Shared, compiled.Shared
	loadsAsDevice(t, a, b)

	// The same binary in the disguise of a graph's own: the emulator's libraries refuse it or crash on it.
	m, err := onnx.Parse(a.Code)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Graph.Nodes {
		for j := range m.Graph.Nodes[i].Attrs {
			switch x := &m.Graph.Nodes[i].Attrs[j]; x.Name {
			case "embed_mode":
				x.I = 1
			case "ep_cache_context":
				x.S = string(compiled.Shared)
			}
		}
	}
	p := open(t, target)
	e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: m.Marshal()}, nil)
	if e != nil || err == nil {
		t.Fatal("a binary of several graphs was loaded by the emulator")
	}
	t.Log(err)
}
