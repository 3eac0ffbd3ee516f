package host_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
)

// An artifact is the graph itself, with the facts of its size and of its weights.
func TestCompile(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C}, pack.N32)
	compiler := compile.New()

	artifact, err := compiler.Compile(t.Context(), graph, nil, driver.Target{Proc: "cpu"})
	if err != nil {
		t.Fatal(err)
	}

	if artifact.Driver != host.Name || compiler.Name() != host.Name {
		t.Errorf("artifact for driver %q, compiler %q, want %q", artifact.Driver, compiler.Name(), host.Name)
	}
	facts := map[string]int64{"bytes": int64(len(artifact.Code)), "weight_bytes": 2 * (32*40 + 256)}
	if !reflect.DeepEqual(artifact.Facts, facts) {
		t.Errorf("facts %v, want %v", artifact.Facts, facts)
	}
	back, err := driver.ParseGraph(artifact.Code)
	if err != nil || !reflect.DeepEqual(back, graph) {
		t.Errorf("the artifact stands for %+v (%v), want %+v", back, err, graph)
	}
}

// Weights of experts are complete, or they are the same columns of each expert, as far apart as whole experts are.
func TestCompileExperts(t *testing.T) {
	const one = 2 * (32*40 + 256) // bytes of an expert
	product := op.Op{Kind: op.ExpertMatMul, M: 4, Fan: 2, Experts: 3, K: 40, N: 33, Scheme: op.A8TQ8C, Spread: true}
	graph := op.Single(product, pack.N32)
	for _, c := range []struct {
		stride, bytes int64
		want          string // what the error says; "" without one
	}{
		{stride: one, bytes: 3 * one},
		{stride: 5 * one, bytes: 11 * one},
		{stride: one, bytes: 2 * one, want: "got 6144 bytes, want 9216"},
		{stride: 5 * one, bytes: 3 * one, want: "stride of 15360 bytes"},
		{stride: 0, bytes: one, want: "stride of 0"},
		{stride: -one, bytes: 3 * one, want: "stride of -3072"},
		{stride: math.MaxInt64, bytes: one, want: "stride"},
		{stride: one, bytes: 0, want: "stride"},
	} {
		weights := driver.Weights{{Bytes: make([]byte, c.bytes), Stride: c.stride}}
		artifact, err := compile.New().Compile(t.Context(), graph, weights, driver.Target{})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%d bytes with stride %d: got %v, want %q", c.bytes, c.stride, err, c.want)
			}
			continue
		}
		if err != nil || artifact.Facts["weight_bytes"] != 3*one {
			t.Errorf("%d bytes with stride %d: got %v (%v)", c.bytes, c.stride, err, artifact.Facts)
		}
	}
}

// A graph or weights that are not valid are an error of input, which names the processor.
func TestCompileRefuses(t *testing.T) {
	for _, c := range []struct {
		what    string
		change  func(graph *op.Graph)
		weights driver.Weights
		want    string
	}{
		{
			what:   "an invalid graph",
			change: func(graph *op.Graph) { graph.Nodes[0].In[0] = "z" },
			want:   `"z"`,
		},
		{
			what:   "an unknown layout",
			change: func(graph *op.Graph) { graph.Weights[0].Layout = "swirl" },
			want:   "swirl",
		},
		{
			what:   "a NaN",
			change: func(graph *op.Graph) { graph.Nodes[0].Op = op.Op{Kind: op.Softcap, M: 1, N: 1, Cap: math.NaN()} },
			want:   "NaN",
		},
		{
			what:    "a missing weight",
			change:  func(*op.Graph) {},
			weights: driver.Weights{},
			want:    "got 0 weights, want 1",
		},
		{
			what:    "a short weight",
			change:  func(*op.Graph) {},
			weights: driver.Weights{{Bytes: make([]byte, 7)}},
			want:    "got 7 bytes, want 3072",
		},
	} {
		graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C}, pack.N32)
		c.change(&graph)
		_, err := compile.New().Compile(t.Context(), graph, c.weights, driver.Target{Proc: "cpu"})
		if diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want an error of input", c.what, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, c.want) || !strings.Contains(text, `"cpu"`) {
			t.Errorf("%s: got %v, want it to mention %q", c.what, err, c.want)
		}
	}
}

// A cancelled compilation is an error.
func TestCompileCancelled(t *testing.T) {
	graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C}, pack.N32)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := compile.New().Compile(cancelled, graph, nil, driver.Target{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
