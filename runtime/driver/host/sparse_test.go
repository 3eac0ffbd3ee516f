package host

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// choose returns the positions that a stable sort by descending scores puts first, whatever the scores: few different
// values, infinities and NaN.
func TestChoose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 500 {
		scores := hostileScores(rng, round)
		from := rng.IntN(len(scores))
		to := from + rng.IntN(len(scores)-from+1)
		count := rng.IntN(to - from + 1)
		want := chooseBySorting(scores, from, to, count)

		got := make([]int32, count+1) // one more, which choose may write
		choose(got, scores, from, to, count, make([]float32, len(scores)))

		if !slices.Equal(got[:count], want) {
			t.Fatalf("scores %v, %d of %d..%d: got %v, want %v", scores, count, from, to, got[:count], want)
		}
	}
}

// hostileScores are up to 300 scores: by the round all equal, of four values, special numbers, or normal ones.
func hostileScores(rng *rand.Rand, round int) []float32 {
	special := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1e-40}
	scores := make([]float32, 1+rng.IntN(300))
	for i := range scores {
		switch round % 5 {
		case 0: // all equal
		case 1:
			scores[i] = float32(rng.IntN(4))
		case 2:
			scores[i] = float32(special[rng.IntN(len(special))])
		default:
			scores[i] = float32(rng.NormFloat64())
		}
	}
	return scores
}

// chooseBySorting is what choose computes: of the positions from..to-1 those of the count highest scores, in ascending
// order. The first positions of a sequence come before all others, then those whose scores are NaN.
func chooseBySorting(scores []float32, from, to, count int) []int32 {
	rank := func(pos int32) float64 {
		score := float64(scores[pos])
		switch {
		case pos < op.SparseFirst:
			return 1e300 - float64(pos)
		case math.IsNaN(score):
			return 1e299
		default:
			return max(-1e298, min(1e298, score))
		}
	}

	var positions []int32
	for pos := from; pos < to; pos++ {
		positions = append(positions, int32(pos))
	}
	slices.SortStableFunc(positions, func(a, b int32) int { return cmp.Compare(rank(b), rank(a)) })
	positions = positions[:count]
	slices.Sort(positions)
	return positions
}

// The sizes of the layer that sparseLayer computes.
const (
	sparseHeads   = 2
	sparseDim     = 16
	sparseContext = 64
)

// sparseLayer is one layer's attention, dense and sparse, on the same queries and the same float32 cache.
type sparseLayer struct {
	proc    *processor
	scalars driver.Scalars
	heads   driver.Buffer          // the weight of the estimate: scales and share of each head
	k, v    driver.View            // the cache
	values  map[string]driver.View // by the names of the graphs' inputs and outputs
}

// newSparseLayer has queries and a cache of normal random numbers. Its calls begin at pos and have so many rows; share is
// how much of the estimated weight each head keeps.
func newSparseLayer(t *testing.T, pos, rows int, share float32) *sparseLayer {
	t.Helper()
	proc := testProcessor(t, affinity.Cores()[:1], kernel.Best())
	layer := &sparseLayer{
		proc:    proc,
		scalars: driver.Scalars{Pos: pos, Rows: rows, KVLen: pos + rows, Seq: pos + rows},
		heads:   sparseMemory(t, proc, 4*3*sparseHeads),
		values:  map[string]driver.View{},
	}
	head := op.SparseHead{QueryScale: 0.02, KeyScale: 0.02, Share: share}
	copy(floats(t, layer.heads), op.SparseHeads([]op.SparseHead{head, head}))

	cache := op.Value{Type: op.F32, Rows: sparseContext, Cols: sparseDim}
	layer.k, layer.v = sparseView(t, proc, cache), sparseView(t, proc, cache)
	qkv := layer.value(t, op.Value{Name: "qkv", Type: op.F32, Rows: rows, Cols: (sparseHeads + 2) * sparseDim})
	rng := rand.New(rand.NewPCG(3, 4))
	for _, view := range []driver.View{layer.k, layer.v, qkv} {
		numbers := floats(t, view.Buffer)
		for i := range numbers {
			numbers[i] = float32(rng.NormFloat64())
		}
	}
	return layer
}

// value returns the layer's memory of a graph's input or output, making it at the first call.
func (l *sparseLayer) value(t *testing.T, value op.Value) driver.View {
	t.Helper()
	view, there := l.values[value.Name]
	if !there {
		view = sparseView(t, l.proc, value)
		l.values[value.Name] = view
	}
	return view
}

// sparseView is new memory for a value of four bytes an element.
func sparseView(t *testing.T, proc *processor, value op.Value) driver.View {
	t.Helper()
	buffer := sparseMemory(t, proc, value.Rows*value.Cols*4)
	return driver.View{Buffer: buffer, Type: value.Type, Rows: value.Rows, Cols: value.Cols, Stride: value.Cols}
}

// sparseMemory is a buffer of a processor, closed with the test.
func sparseMemory(t *testing.T, proc *processor, bytes int) driver.Buffer {
	t.Helper()
	buffer, err := proc.Alloc(int64(bytes))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { buffer.Close() })
	return buffer
}

// floats are the numbers of a buffer.
func floats(t *testing.T, buffer driver.Buffer) []float32 {
	t.Helper()
	values, err := mem.View[float32](buffer.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// graph is one operator of the layer.
func (l *sparseLayer) graph(kind op.Kind) op.Graph {
	operator := op.Op{Kind: kind, M: l.scalars.Rows, Heads: sparseHeads, KVHeads: 1, Context: sparseContext}
	if kind != op.Select {
		operator.HeadDim, operator.KV = sparseDim, op.F32
	}
	if kind != op.Attention {
		operator.Block = 4
	}
	if kind == op.SparseAttend {
		operator.Density = 0.5
	}
	return op.Single(operator, "")
}

// load returns an operator of the layer, ready to run.
func (l *sparseLayer) load(t *testing.T, kind op.Kind) (driver.Executable, *driver.Bindings) {
	t.Helper()
	graph := l.graph(kind)
	var weights driver.Weights
	for _, spec := range graph.Weights {
		weights = append(weights, driver.Packed{Spec: spec, Bytes: l.heads.Bytes()[:4*3*sparseHeads]})
	}
	loaded, err := l.proc.Load(t.Context(), testArtifact(t, graph), weights)
	if err != nil {
		t.Fatal(err)
	}

	bindings := &driver.Bindings{Scalars: &l.scalars, MaxContext: sparseContext}
	if graph.State() {
		bindings.K, bindings.V = l.k, l.v
	}
	for _, value := range graph.Inputs {
		bindings.In = append(bindings.In, l.value(t, value))
	}
	for _, value := range graph.Outputs {
		bindings.Out = append(bindings.Out, l.value(t, value))
	}
	return loaded, bindings
}

// run computes dense attention, and then the three operators of sparse attention. It returns the positions that head 0
// of block 0 reads, and both results.
func (l *sparseLayer) run(t *testing.T) (positions []int32, sparse, dense []float32, err error) {
	t.Helper()
	kinds := []op.Kind{op.Attention, op.Estimate, op.Select, op.SparseAttend}
	loaded := make([]driver.Executable, len(kinds))
	bindings := make([]*driver.Bindings, len(kinds))
	for i, kind := range kinds {
		loaded[i], bindings[i] = l.load(t, kind)
	}
	y := floats(t, l.values["y"].Buffer)

	err = onAttachedThread(l.proc, func() error {
		for i, kind := range kinds {
			if _, err := l.proc.Run(loaded[i], bindings[i]); err != nil {
				return err
			}
			if kind == op.Attention {
				dense = slices.Clone(y)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, nil, err
	}

	list, err := mem.View[int32](l.values["positions"].Buffer.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(list[1 : 1+list[0]]), slices.Clone(y), dense, nil
}

// Caches made to mislead the estimate are computed with. Those that hold NaN or infinities are refused, and so is a call
// beyond the context.
func TestSparseAttentionOfHostileCaches(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	equalKeys := func(_, keys []float32) {
		for i := range keys {
			keys[i] = keys[i%sparseDim]
		}
	}
	const hugeKey = 21
	hugeTowardsFirstBlock := func(qkv, keys []float32) {
		for i := range sparseDim {
			keys[hugeKey*sparseDim+i] = 1e6
			for row := range 4 {
				qkv[row*4*sparseDim+i] = 1
			}
		}
	}
	const notFinite = "NaN or infinite"

	cases := []struct {
		name      string
		pos, rows int
		share     float32
		change    func(qkv, keys []float32)
		positions []int32 // that the first block reads; nil: any
		among     []int32 // some of those that the first block reads
		equal     bool    // to dense attention
		refused   bool
		why       string // what the refusal mentions
	}{
		{name: "all of it", pos: 40, rows: 8, share: 1, equal: true},
		{name: "a share above 1", pos: 40, rows: 8, share: 7, equal: true},
		{name: "one token alone", pos: 0, rows: 1, share: 0.1, equal: true, positions: []int32{}},
		{name: "a prompt of one block", pos: 0, rows: 4, share: 0.1, equal: true, positions: []int32{}},
		{name: "nothing", pos: 40, rows: 8, share: 0, positions: []int32{0, 1, 2, 3}},
		{name: "equal keys", pos: 40, rows: 8, share: 0.3, change: equalKeys,
			positions: []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{name: "a huge key", pos: 40, rows: 8, share: 0.28, change: hugeTowardsFirstBlock, among: []int32{hugeKey}},
		{name: "a key that is NaN", pos: 40, rows: 8, share: 0.3, refused: true, why: notFinite,
			change: func(_, keys []float32) { keys[9*sparseDim] = nan }},
		{name: "an infinite key", pos: 40, rows: 8, share: 0.3, refused: true, why: notFinite,
			change: func(_, keys []float32) { keys[9*sparseDim] = inf }},
		{name: "a query that is NaN", pos: 40, rows: 8, share: 0.3, refused: true, why: notFinite,
			change: func(qkv, _ []float32) { qkv[5*4*sparseDim] = nan }},
		{name: "a call beyond the context", pos: 60, rows: 8, share: 0.3, refused: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			layer := newSparseLayer(t, c.pos, c.rows, c.share)
			if c.change != nil {
				c.change(floats(t, layer.values["qkv"].Buffer), floats(t, layer.k.Buffer))
			}

			positions, sparse, dense, err := layer.run(t)

			if c.refused {
				if err == nil || !strings.Contains(err.Error(), c.why) {
					t.Errorf("got %v, want an error with %q", err, c.why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.positions != nil && !slices.Equal(positions, c.positions) {
				t.Errorf("positions are %v, want %v", positions, c.positions)
			}
			for _, pos := range c.among {
				if !slices.Contains(positions, pos) {
					t.Errorf("positions are %v, want %d among them", positions, pos)
				}
			}
			checkAttention(t, sparse, dense, c.equal)
		})
	}
}

// checkAttention says where sparse attention is not finite, or where it is to equal dense attention and does not.
func checkAttention(t *testing.T, sparse, dense []float32, equal bool) {
	t.Helper()
	for i := range sparse {
		got, want := float64(sparse[i]), float64(dense[i])
		if math.IsNaN(got) || math.IsInf(got, 0) {
			t.Errorf("element %d is %v", i, got)
			return
		}
		if equal && math.Abs(got-want) > 1e-5 {
			t.Errorf("element %d is %v, of dense attention %v", i, got, want)
			return
		}
	}
}
