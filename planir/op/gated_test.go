package op_test

import (
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// A product ends with a gated linear unit only where every 32 of its columns are 16 of the unit's, and nobody else reads
// its results.
func TestEndsWithGLU(t *testing.T) {
	gated := func() op.Graph {
		f32 := func(name string, cols int) op.Value { return op.Value{Name: name, Type: op.F32, Rows: 4, Cols: cols} }
		product := op.Op{Kind: op.MatMul, M: 4, K: 8, N: 96, Scheme: op.A32W32}
		unit := op.Op{Kind: op.GLU, M: 4, N: 48, Interleave: 16, Act: op.SiLU}
		return op.Graph{
			Inputs: []op.Value{f32("x", 8)}, Outputs: []op.Value{f32("y", 48)}, Temps: []op.Value{f32("h", 96)},
			Weights: []op.WeightSpec{product.WeightSpec("w", "")},
			Nodes: []op.Node{
				{Op: product, In: []string{"x"}, W: []string{"w"}, Out: []string{"h"}},
				{Op: unit, In: []string{"h"}, Out: []string{"y"}},
			},
		}
	}
	for name, test := range map[string]struct {
		change func(g *op.Graph)
		want   bool
	}{
		"as models have it": {func(*op.Graph) {}, true},
		"narrower turns":    {func(g *op.Graph) { g.Nodes[1].Op.Interleave = 2 }, true},
		"halves":            {func(g *op.Graph) { g.Nodes[1].Op.Interleave = 48 }, false},
		"wider turns":       {func(g *op.Graph) { g.Nodes[1].Op.Interleave = 24 }, false},
		"rows of experts":   {func(g *op.Graph) { g.Nodes[1].Op.Fan = 2 }, false},
		"another activation": {func(g *op.Graph) {
			g.Nodes[1].Op = op.Op{Kind: op.Activate, M: 4, N: 96, Act: op.SiLU}
		}, false},
		"rounded results": {func(g *op.Graph) { g.Nodes[0].Op.Scheme = op.A16SQ8C }, false},
		"results that leave the graph": {func(g *op.Graph) {
			g.Outputs, g.Temps = append(g.Outputs, g.Temps...), nil
		}, false},
		"results that are read again": {func(g *op.Graph) {
			again := g.Nodes[1]
			again.Out = []string{"z"}
			g.Nodes = append(g.Nodes, again)
		}, false},
		"a unit of another value":       {func(g *op.Graph) { g.Nodes[1].In[0] = "other" }, false},
		"a unit in the product's place": {func(g *op.Graph) { g.Nodes[1].Out[0] = "x" }, false},
		"no unit":                       {func(g *op.Graph) { g.Nodes = g.Nodes[:1] }, false},
	} {
		graph := gated()
		test.change(&graph)
		if got := graph.EndsWithGLU(0); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
	graph := gated()
	if err := graph.Validate(); err != nil {
		t.Error(err)
	}
	if graph.EndsWithGLU(1) {
		t.Error("a gated linear unit ends with another one")
	}
}
