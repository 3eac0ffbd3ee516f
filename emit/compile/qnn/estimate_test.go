package qnn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// An estimate of scores is compiled wholly for the NPU as products of codes, and its emulator computes them within the
// step of their 16 bits.
func TestEstimateEmulated(t *testing.T) {
	libraries(t)
	for _, dim := range []int{16, 64, 128} {
		for _, size := range []float64{3, 40, 100} {
			if testing.Short() && (dim != 64 || size != 40) {
				continue
			}
			t.Run(fmt.Sprintf("%d columns, codes of %v", dim, size), func(t *testing.T) { tryEstimate(t, dim, size) })
		}
	}
}

// tryEstimate compiles an estimate with heads of dim columns, and tries it on codes with a standard deviation.
func tryEstimate(t *testing.T, dim int, size float64) {
	t.Helper()
	operator := op.Op{
		Kind:    op.Estimate,
		M:       32,
		Heads:   4,
		KVHeads: 2,
		HeadDim: dim,
		KV:      op.F32,
		Context: 256,
		Block:   16,
	}
	graph := op.Single(operator, op.OnnxLayout)
	heads := []float32{
		0.03, 0.05, 0.2, // scales of queries and keys, share of positions
		0.03, 0.05, 0.3,
		0.02, 0.04, 0.5,
		0.02, 0.04, 1,
	}
	queries, keys := drawCodes(&operator, size)
	piece := driver.Piece{
		Name:    "estimate",
		Graph:   graph,
		Weights: driver.Weights{{Spec: graph.Weights[0], Bytes: mem.Bytes(heads)}},
		Sample:  [][]byte{queries, keys},
	}

	made, err := New(Options{}).CompileGroup(t.Context(), []driver.Piece{piece}, gen3(true))
	if err != nil {
		t.Fatal(err)
	}

	artifact := made.Artifacts[0]
	if artifact.Facts["cpu_nodes"] != 0 || artifact.Facts["nodes"] != artifact.Facts["edge_nodes"]+1 {
		t.Errorf("facts %v", artifact.Facts)
	}
	step := productStep * float64(dim)
	for name, raw := range map[string][]byte{"emulator": artifact.Emulated[0], "source": artifact.Portable[0]} {
		worst := worstProduct(&operator, queries, keys, number.Floats(raw))
		t.Logf("%s: products are off by %.3g steps of %.3g", name, worst/step, step)
		if worst > 1.5*step {
			t.Errorf("%s: products are off by %g, want at most one and a half steps of %g", name, worst, step)
		}
	}
}

// drawCodes draws the codes of queries and keys, with a zero point of 128.
func drawCodes(operator *op.Op, size float64) (queries, keys []byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	var drawn [][]byte
	operands := operator.Operands(op.F32)
	for _, value := range operands[:2] {
		codes := make([]byte, value.Rows*value.Cols)
		for i := range codes {
			codes[i] = byte(max(1, min(255, 128+size*rng.NormFloat64())))
		}
		drawn = append(drawn, codes)
	}
	return drawn[0], drawn[1]
}

// worstProduct is how far products are off at most. Products saturate at the ends of 16 bits.
func worstProduct(operator *op.Op, queries, keys []byte, products []float32) float64 {
	launch, dim := operator.Launch(), operator.HeadDim
	most := productStep * float64(dim) * math.MaxUint16 / 2
	worst := 0.0
	for i, got := range products {
		line, key := i/launch.Keys, i%launch.Keys
		head := line / launch.Rows
		query, columns := queries[line*dim:], keys[(head*launch.Keys+key)*dim:]
		sum := 0
		for j := range dim {
			sum += (int(query[j]) - 128) * (int(columns[j]) - 128)
		}
		want := max(-most, min(most, float64(sum)))
		worst = max(worst, math.Abs(float64(got)-want))
	}
	return worst
}
