package opencl

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// An artifact holds the sources of all variants, or of the variant that an option names.
func TestCompile(t *testing.T) {
	all := compileTwice(t, map[string]string{"library": "/opt/libOpenCL.so"})
	if len(all.Programs) <= len(kernel.Variants("matmul a8t/q8c")) {
		t.Errorf("got %d programs, want those of all variants and of few rows", len(all.Programs))
	}

	one := compileTwice(t, map[string]string{kernel.Option + "matmul a8t/q8c": "columns"})
	if len(one.Programs) != 1 {
		t.Fatalf("got programs %+v, want one", one.Programs)
	}
	program := one.Programs[0]
	if program.Variant != "columns" || !strings.Contains(program.Source, "#define COLUMN") {
		t.Errorf("got program %+v, want the variant columns", program)
	}
}

// compileTwice compiles a product, and expects the same bytes each time and the bytes of its weights as a fact.
func compileTwice(t *testing.T, options map[string]string) *kernel.Code {
	t.Helper()
	graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 64, N: 96, Scheme: op.A8TQ8C}, op.TilesLayout)
	size, err := pack.Bytes(graph.Weights[0])
	if err != nil {
		t.Fatal(err)
	}
	once := func() driver.Artifact {
		artifact, err := New().Compile(t.Context(), graph, nil, driver.Target{Proc: "gpu", Options: options})
		if err != nil {
			t.Fatal(err)
		}
		return artifact
	}

	artifact, again := once(), once()

	if !bytes.Equal(artifact.Code, again.Code) {
		t.Error("the same graph was compiled to other bytes")
	}
	if artifact.Driver != New().Name() || artifact.Facts["weight_bytes"] != size {
		t.Errorf("got driver %q, facts %v, want %d bytes of weights", artifact.Driver, artifact.Facts, size)
	}
	code, err := kernel.Parse(artifact.Code)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// An operator, layout or option for which there are no kernels is refused by name.
func TestRefused(t *testing.T) {
	product := op.Op{Kind: op.MatMul, M: 4, K: 64, N: 96, Scheme: op.A32W32}
	unknown := product
	unknown.Scheme = "a8x/q8c"
	outliers := op.Op{Kind: op.OutlierMatMul, M: 2, K: 32, N: 32, Scheme: op.A32W16}
	good := op.Single(product, op.TilesLayout)
	for _, c := range []struct {
		graph   op.Graph
		weights driver.Weights
		options map[string]string
		word    string
	}{
		{graph: op.Single(unknown, op.TilesLayout), word: "a8x/q8c"},
		{graph: op.Single(outliers, op.TilesLayout), word: "outlier_matmul"},
		{graph: op.Single(product, "swirl"), word: "swirl"},
		{graph: op.Graph{}, word: "no nodes"},
		{graph: good, weights: driver.Weights{{Bytes: make([]byte, 3)}}, word: "3 bytes"},
		{graph: good, options: map[string]string{kernel.Option + "matmul": "tiles"}, word: `"matmul"`},
		{graph: good, options: map[string]string{kernel.Option + "matmul a32/w32": "fast"}, word: "fast"},
	} {
		_, err := New().Compile(t.Context(), c.graph, c.weights, driver.Target{Proc: "gpu", Options: c.options})
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), c.word) {
			t.Errorf("got %v, want an error of the input with %q", err, c.word)
		}
	}
}

// A cancelled compilation is an error.
func TestCancelled(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 64, N: 96, Scheme: op.A32W32}, op.TilesLayout)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := New().Compile(cancelled, graph, nil, driver.Target{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
