package opencl

import (
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

// Compiling gives the same bytes each time, with the sources of all variants or of the one that an option names.
func TestCompile(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 64, N: 96, Scheme: op.A8TQ8C}, op.TilesLayout)
	compile := func(options map[string]string) *kernel.Code {
		var last []byte
		for range 2 {
			a, err := New().Compile(t.Context(), graph, nil, driver.Target{Proc: "gpu", Options: options})
			if err != nil {
				t.Fatal(err)
			}
			if last != nil && string(last) != string(a.Code) {
				t.Error("the same graph was compiled to other bytes")
			}
			last = a.Code
			size, err := pack.Bytes(graph.Weights[0])
			if err != nil || a.Driver != New().Name() || a.Facts["weight_bytes"] != size {
				t.Errorf("got driver %q, facts %v, want %d bytes of weights (%v)", a.Driver, a.Facts, size, err)
			}
		}
		code, err := kernel.Parse(last)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	all := compile(map[string]string{"library": "/opt/libOpenCL.so"})
	if len(all.Programs) <= len(kernel.Variants("matmul a8t/q8c")) {
		t.Errorf("got %d programs, want those of all variants and of few rows", len(all.Programs))
	}
	one := compile(map[string]string{kernel.Option + "matmul a8t/q8c": "columns"})
	if len(one.Programs) != 1 || one.Programs[0].Variant != "columns" ||
		!strings.Contains(one.Programs[0].Source, "#define COLUMN") {
		t.Errorf("got programs %+v, want one of the variant columns", one.Programs)
	}
}

// What has no kernels, and options that mean nothing, are refused by name.
func TestRefused(t *testing.T) {
	product := op.Op{Kind: op.MatMul, M: 4, K: 64, N: 96, Scheme: op.A32W32}
	unknown := product
	unknown.Scheme = "a8x/q8c"
	for _, c := range []struct {
		graph   op.Graph
		weights driver.Weights
		options map[string]string
		word    string
	}{
		{op.Single(unknown, op.TilesLayout), nil, nil, "a8x/q8c"},
		{op.Single(op.Op{Kind: op.OutlierMatMul, M: 2, K: 32, N: 32, Scheme: op.A32W16}, op.TilesLayout), nil, nil,
			"outlier_matmul"},
		{op.Single(product, "swirl"), nil, nil, "swirl"},
		{op.Single(product, op.TilesLayout), driver.Weights{{Bytes: make([]byte, 3)}}, nil, "3 bytes"},
		{op.Single(product, op.TilesLayout), nil, map[string]string{kernel.Option + "matmul": "tiles"}, `"matmul"`},
		{op.Single(product, op.TilesLayout), nil, map[string]string{kernel.Option + "matmul a32/w32": "fast"}, "fast"},
		{op.Graph{}, nil, nil, "no nodes"},
	} {
		_, err := New().Compile(t.Context(), c.graph, c.weights, driver.Target{Proc: "gpu", Options: c.options})
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), c.word) {
			t.Errorf("got %v, want an error of the input with %q", err, c.word)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New().Compile(cancelled, op.Single(product, op.TilesLayout), nil,
		driver.Target{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: got %v", err)
	}
}
