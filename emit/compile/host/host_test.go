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

func TestCompile(t *testing.T) {
	g := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C}, pack.N32)
	a, err := compile.New().Compile(t.Context(), g, nil, driver.Target{Proc: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	if a.Driver != host.Name || compile.New().Name() != host.Name {
		t.Errorf("artifact for driver %q, compiler %q, want %q", a.Driver, compile.New().Name(), host.Name)
	}
	want := map[string]int64{"bytes": int64(len(a.Code)), "weight_bytes": 2 * (32*40 + 256)}
	if !reflect.DeepEqual(a.Facts, want) {
		t.Errorf("facts %v, want %v", a.Facts, want)
	}
	back, err := driver.ParseGraph(a.Code)
	if err != nil || !reflect.DeepEqual(back, g) {
		t.Errorf("the artifact stands for %+v (%v), want %+v", back, err, g)
	}
}

// Weights of experts are complete, or the same columns of each at the distance of whole ones.
func TestCompileExperts(t *testing.T) {
	g := op.Single(op.Op{Kind: op.ExpertMatMul, M: 4, Fan: 2, Experts: 3, K: 40, N: 33, Scheme: op.A8TQ8C, Spread: true}, pack.N32)
	const one = 2 * (32*40 + 256)
	for _, c := range []struct {
		stride, bytes int64
		want          string
	}{
		{one, 3 * one, ""}, {5 * one, 11 * one, ""},
		{one, 2 * one, "got 6144 bytes, want 9216"}, {5 * one, 3 * one, "stride of 15360 bytes"}, {0, one, "stride of 0"},
		{-one, 3 * one, "stride of -3072"}, {math.MaxInt64, one, "stride"}, {one, 0, "stride"},
	} {
		a, err := compile.New().Compile(t.Context(), g, driver.Weights{{Bytes: make([]byte, c.bytes), Stride: c.stride}}, driver.Target{})
		if c.want == "" && (err != nil || a.Facts["weight_bytes"] != 3*one) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%d bytes with stride %d: got %v (%v), want %q", c.bytes, c.stride, err, a.Facts, c.want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	good := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 40, N: 33, Scheme: op.A8TQ8C}, pack.N32)
	for what, c := range map[string]struct {
		change func(*op.Graph)
		w      driver.Weights
		want   string
	}{
		"an invalid graph":  {func(g *op.Graph) { g.Nodes[0].In[0] = "z" }, nil, `"z"`},
		"an unknown layout": {func(g *op.Graph) { g.Weights[0].Layout = "swirl" }, nil, "swirl"},
		"a missing weight":  {func(*op.Graph) {}, driver.Weights{}, "got 0 weights, want 1"},
		"a short weight":    {func(*op.Graph) {}, driver.Weights{{Bytes: make([]byte, 7)}}, "got 7 bytes, want 3072"},
		"a NaN":             {func(g *op.Graph) { g.Nodes[0].Op = op.Op{Kind: op.Softcap, M: 1, N: 1, Cap: math.NaN()} }, nil, "NaN"},
	} {
		g := op.Single(good.Nodes[0].Op, pack.N32)
		c.change(&g)
		_, err := compile.New().Compile(t.Context(), g, c.w, driver.Target{Proc: "cpu"})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"cpu"`) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want it to mention %q", what, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := compile.New().Compile(ctx, good, nil, driver.Target{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: got %v", err)
	}
}
