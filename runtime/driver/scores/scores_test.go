package scores

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// memory is a buffer of the test's.
type memory []byte

func (m memory) Bytes() []byte { return m }
func (memory) Close() error    { return nil }

// random is a view of numbers.
func random(rng *rand.Rand, rows, cols int) ([]float32, driver.View) {
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	return values, driver.View{Buffer: memory(mem.Bytes(values)), Type: op.F32, Rows: rows, Cols: cols, Stride: cols}
}

// Prompts whose queries need several launches, with and without a window, are pooled as the operator defines; rows beyond
// the call and positions about which nothing is said stay as they are.
func TestSeveralLaunches(t *testing.T) {
	for _, window := range []int{0, 700} {
		operator := op.Op{Kind: op.Estimate, M: 600, Heads: 8, KVHeads: 4, HeadDim: 4, KV: op.F32, Context: 2048, Block: 16,
			Window: window}
		graph := op.Single(operator, "")
		launch, group := operator.Launch(), 2
		if launch.Rows >= group*operator.M {
			t.Fatalf("one launch takes all %d queries of a key head", launch.Rows)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		var heads []float32
		for range operator.Heads {
			heads = append(heads, 0.01+rng.Float32()/50, 0.01+rng.Float32()/50, 0.2)
		}
		operands := operator.Operands(op.I32)
		queries := make([]byte, operands[0].Rows*operands[0].Cols)
		keys := make([]byte, operands[1].Rows*operands[1].Cols)
		products := make([]int32, operands[2].Rows*operands[2].Cols)
		estimate, err := New(operator, heads, queries, keys, products)
		if err != nil {
			t.Fatal(err)
		}
		dim := operator.HeadDim
		multiply := func() error {
			for i := range products {
				line, key := i/launch.Keys, i%launch.Keys
				at := (line/launch.Rows*launch.Keys + key) * dim
				products[i] = 0
				for j := range dim {
					products[i] += (int32(queries[line*dim+j]) - zero) * (int32(keys[at+j]) - zero)
				}
			}
			return nil
		}
		const pos, rows, untouched = 1400, 590, 1e9
		qkv, in := random(rng, operator.M, op.QKVColumns(operator.Heads, operator.KVHeads, dim))
		cached, k := random(rng, operator.KVHeads*operator.Context, dim)
		got, out := random(rng, operator.Blocks(), operator.Heads*operator.Context)
		for i := range got {
			got[i] = untouched
		}
		bindings := &driver.Bindings{In: []driver.View{in}, Out: []driver.View{out}, K: k, V: k, MaxContext: operator.Context,
			Scalars: &driver.Scalars{Pos: pos, Rows: rows}}
		if err := estimate.Run(&graph, bindings, multiply); err != nil {
			t.Fatal(err)
		}
		code := func(value, scale float32) float64 {
			return math.Max(-127, math.Min(127, math.RoundToEven(float64(value/scale))))
		}
		for block := 0; block*operator.Block < rows; block += 7 {
			r0 := block * operator.Block
			count := min(operator.Block, rows-r0)
			span := operator.SpanOf(pos+r0, count)
			for head := range operator.Heads {
				kvHead := head / group
				worth := make([]float64, operator.Context)
				for row := r0; row < r0+count; row++ {
					query := qkv[row*in.Cols+(kvHead*(group+2)+head%group)*dim:]
					scores, top := make([]float64, operator.Context), math.Inf(-1)
					for at := span.Inner; at < span.Block; at++ {
						for i, key := range cached[(kvHead*operator.Context+at)*dim:][:dim] {
							scores[at] += code(query[i], heads[3*head]) * code(key, heads[3*kvHead*group+1])
						}
						scores[at] *= float64(heads[3*head] * heads[3*kvHead*group+1])
						top = max(top, scores[at])
					}
					for at := range worth {
						if below := scores[at] - top; row == r0 || below > worth[at] {
							worth[at] = below
						}
					}
				}
				for at, value := range got[block*out.Cols+head*operator.Context:][:operator.Context] {
					switch inside := at >= span.Inner && at < span.Block; {
					case !inside && value != untouched:
						t.Fatalf("window %d, block %d, head %d: position %d was written", window, block, head, at)
					case inside && math.Abs(float64(value)-worth[at]) > 1e-4:
						t.Fatalf("window %d, block %d, head %d: position %d is worth %v, want %v", window, block, head, at, value, worth[at])
					}
				}
			}
		}
	}
}
