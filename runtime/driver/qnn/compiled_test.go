package qnn

import (
	"bytes"
	"errors"
	"slices"
	"strings"
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

// target is the device of the tests.
var target = map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8"}

// piece is a product of so many rows for hetc's compiler, with weights and a sample.
func piece(t testing.TB, scheme op.Scheme, rows int) driver.Piece {
	t.Helper()
	graph := op.Single(op.Op{Kind: op.MatMul, M: rows, K: red, N: cols, Scheme: scheme}, op.OnnxLayout)
	return driver.Piece{
		Name:    "product",
		Graph:   graph,
		Sample:  [][]byte{slices.Clone(mem.Bytes(ramp(rows * red)))},
		Weights: weightsOf(t, &graph),
	}
}

// weightsOf are weights of a graph without a pattern, and the scales of its rows and grids.
func weightsOf(t testing.TB, graph *op.Graph) (weights driver.Weights) {
	t.Helper()
	for _, spec := range graph.Weights {
		values := ramp(spec.K * spec.N)
		switch spec.K {
		case 1: // the scale of rows in 8 bit
			values = slices.Repeat([]float32{rowScale}, spec.N)
		case 2: // steps of grids
			values = slices.Repeat([]float32{step}, 2*spec.N)
		}
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		region, err := mem.Alloc(int(size), driver.Align)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { region.Close() })
		source, err := pack.Floats(values, spec.K, spec.N)
		if err != nil {
			t.Fatal(err)
		}
		if err := pack.Pack(region.Bytes(), spec, source); err != nil {
			t.Fatal(err)
		}
		weights = append(weights, driver.Packed{Spec: spec, Bytes: region.Bytes()})
	}
	return weights
}

// The driver loads what hetc's compiler makes, and computes the bits that the compiler's emulator computed.
func TestCompiledGraphs(t *testing.T) {
	if _, err := ortapi.FindQNN(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	for _, scheme := range schemes {
		if scheme == op.A8SQ8C || scheme == op.A8OQ8C {
			continue // rows of these schemes are rounded by another operator
		}
		one := piece(t, scheme, rows)
		emulated := driver.Target{Proc: "npu", Options: target, Emulator: true}
		compiled, err := compile.New(compile.Options{}).CompileGroup(t.Context(), []driver.Piece{one}, emulated)
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		made := compiled.Artifacts[0]

		p := open(t, target)
		if err := p.Attach(); err != nil {
			t.Fatal(err)
		}
		exe, err := p.Load(t.Context(), made.Artifact, nil)
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		x, y, bindings := operands(t, p)
		copy(x, ramp(rows*red))
		if _, err := p.Run(exe, bindings); err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}

		if !bytes.Equal(mem.Bytes(y), made.Emulated[0]) {
			t.Errorf("%s: the results differ from those of the compiler's emulator", scheme)
		}
		if err := errors.Join(exe.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}

// compileShared compiles two products that share their weights for a device.
func compileShared(t *testing.T) (a, b driver.Artifact) {
	t.Helper()
	if _, err := ortapi.FindQNN(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	group := []driver.Piece{piece(t, op.A16SQ8C, 8), piece(t, op.A16SQ8C, 16)}
	for i := range group {
		group[i].Sample = nil
	}
	npu := driver.Target{Proc: "npu", Options: target}
	compiled, err := compile.New(compile.Options{}).CompileGroup(t.Context(), group, npu)
	if err != nil {
		t.Fatal(err)
	}
	if len(compiled.Shared) == 0 {
		t.Fatal("no shared binary")
	}
	a, b = compiled.Artifacts[0].Artifact, compiled.Artifacts[1].Artifact
	a.Shared, b.Shared = compiled.Shared, compiled.Shared
	return a, b
}

// The emulator refuses a binary of several graphs, also where an artifact says that the binary is its own.
func TestSharedOnEmulator(t *testing.T) {
	a, _ := compileShared(t)
	p := open(t, target)
	_, err := p.Load(t.Context(), a, nil)
	if err == nil || !strings.Contains(err.Error(), "which the emulator cannot load") {
		t.Errorf("got %v, want a refusal", err)
	}

	disguised := changed(t, a.Code, func(m *onnx.Model) { embed(m, string(a.Shared)) })
	exe, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: disguised}, nil)
	if exe != nil || err == nil {
		t.Error("a binary of several graphs was loaded by the emulator")
	}
}
