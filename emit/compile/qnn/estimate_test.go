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

// tryEstimate compiles an estimate with heads of dim columns and tries it on codes of a standard deviation.
func tryEstimate(t *testing.T, dim int, size float64) {
	graph := op.Single(op.Op{Kind: op.Estimate, M: 32, Heads: 4, KVHeads: 2, HeadDim: dim, KV: op.F32, Context: 256, Block: 16},
		op.OnnxLayout)
	heads := []float32{0.03, 0.05, 0.2, 0.03, 0.05, 0.3, 0.02, 0.04, 0.5, 0.02, 0.04, 1}
	operator := graph.Estimate()
	operands := operator.Operands(op.F32)
	rng := rand.New(rand.NewPCG(1, 2))
	var sample [][]byte
	for _, value := range operands[:2] {
		codes := make([]byte, value.Rows*value.Cols)
		for i := range codes {
			codes[i] = byte(max(1, min(255, 128+size*rng.NormFloat64())))
		}
		sample = append(sample, codes)
	}
	made, err := New(Options{}).CompileGroup(t.Context(), []driver.Piece{{Name: "estimate", Graph: graph,
		Weights: driver.Weights{{Spec: graph.Weights[0], Bytes: mem.Bytes(heads)}}, Sample: sample}}, gen3(true))
	if err != nil {
		t.Fatal(err)
	}
	artifact := made.Artifacts[0]
	if artifact.Facts["cpu_nodes"] != 0 || artifact.Facts["nodes"] != artifact.Facts["edge_nodes"]+1 {
		t.Errorf("facts %v", artifact.Facts)
	}
	launch := operator.Launch()
	step := productStep * float64(dim)
	for name, raw := range map[string][]byte{"emulator": artifact.Emulated[0], "source": artifact.Portable[0]} {
		worst := 0.0
		for i, got := range number.Floats(raw) {
			line, key := i/launch.Keys, i%launch.Keys
			head, want := line/launch.Rows, 0
			for j := range dim {
				want += (int(sample[0][line*dim+j]) - 128) * (int(sample[1][(head*launch.Keys+key)*dim+j]) - 128)
			}
			most := step * math.MaxUint16 / 2
			worst = max(worst, math.Abs(float64(got)-max(-most, min(most, float64(want)))))
		}
		t.Logf("%s: products are off by %.3g steps of %.3g", name, worst/step, step)
		if worst > 1.5*step {
			t.Errorf("%s: products are off by %g, want at most one and a half steps of %g", name, worst, step)
		}
	}
}
