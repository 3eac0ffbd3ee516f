package host

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// The host multiplies quantised rows by every weight that it multiplies any of them by: a new scheme of known halves is
// a row of the table of schemes, and nothing here.
func TestProductsOfKnownHalves(t *testing.T) {
	for _, rows := range []string{"a8t", "a8s", "a8s2", "a8s4"} {
		for _, weight := range []string{"q8c", "q6c", "q4b32", "q4b128"} {
			operator := op.Op{Kind: op.MatMul, M: 1, K: 128, N: pack.TileN, Scheme: op.Scheme(rows + "/" + weight)}
			size, err := pack.TileBytes(weight, operator.K)
			if err != nil {
				t.Fatal(err)
			}
			build := builder{op: operator, exe: &executable{proc: &processor{set: kernel.Best()}},
				weights: []driver.Packed{{Bytes: make([]byte, size)}}}
			_, bytes, sums, err := build.product()
			if err != nil || bytes != int(size) || sums > 0 != (weight != "q8c") {
				t.Errorf("%s: %v, tiles of %d bytes, %d sums; want %d bytes", operator.Scheme, err, bytes, sums, size)
			}
		}
	}
}

// A product that ends with a gated linear unit has the bits of both, one after the other: with few and many columns,
// rows that are packed or not, and columns that do not fill a tile.
func TestGLUEndsProduct(t *testing.T) {
	var graphs []op.Graph // in pairs: apart, together
	for _, scheme := range op.Schemes {
		if scheme.RoundsResults() || scheme.Scales() > 1 {
			continue
		}
		for _, shape := range []struct{ rows, cols int }{{1, 4000}, {7, 1104}, {40, 1100}, {300, 608}, {40, 12}, {2100, 96}} {
			product := op.Op{Kind: op.MatMul, M: shape.rows, K: 70, N: 2 * shape.cols, Scheme: scheme,
				Bias: shape.rows == 40}
			apart, together := gatedProduct(product, true), gatedProduct(product, false)
			if apart.EndsWithGLU(0) || !together.EndsWithGLU(0) {
				t.Fatal("graphs are not what they shall be")
			}
			graphs = append(graphs, apart, together)
		}
	}
	for _, workers := range []int{1, 3} {
		proc := testProcessor(t, sharedCores(workers), kernel.Best())

		got := runOn(t, proc, graphs, packedWeights, normalBindings)

		for i := 0; i < len(got); i += 2 {
			if strings.Count(got[i], "\x00") > len(got[i])/2 {
				t.Fatalf("%s: results are zeros, which say nothing", graphs[i].Nodes[0].Op.Key())
			}
			if got[i] != got[i+1] {
				t.Errorf("%s on %d cores: other bits together than apart", graphs[i].Nodes[0].Op.Key(), workers)
			}
		}
	}
}

// gatedProduct is the graph of a product and the gated linear unit that takes its results, which are an output too if
// they are held.
func gatedProduct(product op.Op, held bool) op.Graph {
	graph := op.Single(product, layouts[product.Scheme.Weight()])
	wide := graph.Outputs[0]
	wide.Name, graph.Nodes[0].Out[0] = "h", "h"
	unit := op.Op{Kind: op.GLU, M: product.M, N: product.N / 2, Interleave: 4, Act: op.SiLU}
	graph.Nodes = append(graph.Nodes, op.Node{Op: unit, In: []string{"h"}, Out: []string{"y"}})
	graph.Outputs = []op.Value{{Name: "y", Type: op.F32, Rows: product.M, Cols: unit.N}}
	if held {
		graph.Outputs = append(graph.Outputs, wide)
	} else {
		graph.Temps = []op.Value{wide}
	}
	return graph
}

// packedWeights packs normally distributed numbers. Results of the small ones would be too small for a gated linear
// unit, which multiplies two of them: zeros.
func packedWeights(t *testing.T, rng *rand.Rand, graph op.Graph) driver.Weights {
	t.Helper()
	weights := smallWeights(t, rng, graph)
	for _, weight := range weights {
		values := make([]float32, weight.Spec.K*weight.Spec.N)
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		if err := drivertest.Pack(weight.Bytes, weight.Spec, values); err != nil {
			t.Fatal(err)
		}
	}
	return weights
}

// normalBindings is smallBindings with normally distributed numbers where they are float32.
func normalBindings(t *testing.T, rng *rand.Rand, graph op.Graph) *driver.Bindings {
	t.Helper()
	numbers := rand.New(rand.NewPCG(rng.Uint64(), 3)) // whatever the outputs are
	bindings := smallBindings(t, rng, graph)
	for _, view := range bindings.In {
		if view.Type != op.F32 {
			continue
		}
		values, err := mem.View[float32](view.Buffer.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for i := range values {
			values[i] = float32(numbers.NormFloat64())
		}
	}
	return bindings
}
