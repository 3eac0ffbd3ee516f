package host

import (
	"cmp"
	"encoding/json"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// Positions are those of a stable sort by descending scores, whatever the scores: few values, infinities and NaN.
func TestChoose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	special := []float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e-40}
	for round := range 500 {
		length := 1 + rng.IntN(300)
		scores := make([]float32, length)
		for i := range scores {
			switch {
			case round%5 == 0: // all equal
			case round%5 == 1:
				scores[i] = float32(rng.IntN(4))
			case round%5 == 2:
				scores[i] = special[rng.IntN(len(special))]
			default:
				scores[i] = float32(rng.NormFloat64())
			}
		}
		from := rng.IntN(length)
		to := from + rng.IntN(length-from+1)
		count := rng.IntN(to - from + 1)
		var want []int32
		for pos := from; pos < to; pos++ {
			want = append(want, int32(pos))
		}
		key := func(pos int32) float64 {
			switch score := scores[pos]; {
			case pos < op.SparseFirst:
				return 1e300 - float64(pos)
			case score != score:
				return 1e299
			default:
				return math.Max(-1e298, math.Min(1e298, float64(score)))
			}
		}
		slices.SortStableFunc(want, func(a, b int32) int { return cmp.Compare(key(b), key(a)) })
		want = want[:count]
		slices.Sort(want)
		got := make([]int32, count+1) // a place more, which may be written
		choose(got, scores, from, to, count, make([]float32, length))
		if !slices.Equal(got[:count], want) {
			t.Fatalf("scores %v, %d of %d..%d: got %v, want %v", scores, count, from, to, got[:count], want)
		}
	}
}

// sparseCall runs estimate, selection and products of one layer with a float32 cache, and dense attention on the same.
// It returns the positions of head 0 in block 0, and both results.
func sparseCall(t *testing.T, pos, rows int, share float32, fill func(qkv, keys []float32, dim int)) (positions []int32, sparse,
	dense []float32, err error) {
	t.Helper()
	const heads, dim, context = 2, 16, 64
	proc := newProcessor(affinity.Cores()[:1], kernel.Best())
	defer proc.Close()
	memory := func(bytes int) driver.Buffer {
		buffer, err := proc.Alloc(int64(bytes))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buffer.Close() })
		return buffer
	}
	floats := func(buffer driver.Buffer) []float32 {
		values, err := mem.View[float32](buffer.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	views := map[string]driver.View{}
	view := func(v op.Value) driver.View {
		if _, there := views[v.Name]; !there {
			views[v.Name] = driver.View{Buffer: memory(v.Rows * v.Cols * 4), Type: v.Type, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
		}
		return views[v.Name]
	}
	cache := func() driver.View {
		return driver.View{Buffer: memory(context * dim * 4), Type: op.F32, Rows: context, Cols: dim, Stride: dim}
	}
	keys, values := cache(), cache()
	rng := rand.New(rand.NewPCG(3, 4))
	weight := memory(4 * 3 * heads)
	copy(floats(weight), op.SparseHeads([]op.SparseHead{{QueryScale: 0.02, KeyScale: 0.02, Share: share},
		{QueryScale: 0.02, KeyScale: 0.02, Share: share}}))
	for _, view := range []driver.View{keys, values, view(op.Value{Name: "qkv", Type: op.F32, Rows: rows, Cols: (heads + 2) * dim})} {
		for i := range floats(view.Buffer) {
			floats(view.Buffer)[i] = float32(rng.NormFloat64())
		}
	}
	fill(floats(views["qkv"].Buffer), floats(keys.Buffer), dim)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: Attach pins the thread
		failed := proc.Attach()
		for _, kind := range []op.Kind{op.Attention, op.Estimate, op.Select, op.SparseAttend} {
			operator := op.Op{Kind: kind, M: rows, Heads: heads, KVHeads: 1, Context: context}
			if kind != op.Select {
				operator.HeadDim, operator.KV = dim, op.F32
			}
			if kind != op.Attention {
				operator.Block = 4
			}
			if kind == op.SparseAttend {
				operator.Density = 0.5
			}
			graph := op.Single(operator, "")
			code, err := json.Marshal(&graph)
			bound := &driver.Bindings{Scalars: &driver.Scalars{Pos: pos, Rows: rows, KVLen: pos + rows, Seq: pos + rows}, MaxContext: context}
			if graph.State() {
				bound.K, bound.V = keys, values
			}
			for _, value := range graph.Inputs {
				bound.In = append(bound.In, view(value))
			}
			for _, value := range graph.Outputs {
				bound.Out = append(bound.Out, view(value))
			}
			var weights driver.Weights
			for _, spec := range graph.Weights {
				weights = append(weights, driver.Packed{Spec: spec, Bytes: weight.Bytes()[:4*3*heads]})
			}
			var loaded driver.Executable
			if failed = cmp.Or(failed, err); failed == nil {
				loaded, failed = proc.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, weights)
			}
			if failed == nil {
				_, failed = proc.Run(loaded, bound)
			}
			if kind == op.Attention && failed == nil {
				dense = slices.Clone(floats(views["y"].Buffer))
			}
		}
		done <- failed
	}()
	if err := <-done; err != nil {
		return nil, nil, nil, err
	}
	list, err := mem.View[int32](views["positions"].Buffer.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(list[1 : 1+list[0]]), slices.Clone(floats(views["y"].Buffer)), dense, nil
}

// Caches that are made to mislead the estimate are computed right or refused.
func TestSparseAttentionOfHostileCaches(t *testing.T) {
	plain := func([]float32, []float32, int) {}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		name      string
		pos, rows int
		share     float32
		fill      func(qkv, keys []float32, dim int)
		positions []int32 // of the first block, nil: not told
		equal     bool    // to dense attention
		refused   string
	}{
		{name: "all of it", pos: 40, rows: 8, share: 1, fill: plain, equal: true},
		{name: "a share above 1", pos: 40, rows: 8, share: 7, fill: plain, equal: true},
		{name: "one token alone", pos: 0, rows: 1, share: 0.1, fill: plain, equal: true, positions: []int32{}},
		{name: "a prompt of one block", pos: 0, rows: 4, share: 0.1, fill: plain, equal: true, positions: []int32{}},
		{name: "nothing", pos: 40, rows: 8, share: 0, fill: plain, positions: []int32{0, 1, 2, 3}},
		{name: "equal keys", pos: 40, rows: 8, share: 0.3, positions: []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, fill: func(_, keys []float32, dim int) {
			for i := range keys {
				keys[i] = keys[i%dim]
			}
		}},
		{name: "a huge key", pos: 40, rows: 8, share: 0.28, fill: func(qkv, keys []float32, dim int) {
			for i := range dim { // towards all queries of the first block
				keys[21*dim+i] = 1e6
				for row := range 4 {
					qkv[row*4*dim+i] = 1
				}
			}
		}, positions: nil},
		{name: "a key that is no number", pos: 40, rows: 8, share: 0.3, fill: func(_, keys []float32, dim int) { keys[9*dim] = nan }, refused: "NaN or infinite"},
		{name: "an infinite key", pos: 40, rows: 8, share: 0.3, fill: func(_, keys []float32, dim int) { keys[9*dim] = inf }, refused: "NaN or infinite"},
		{name: "a query that is no number", pos: 40, rows: 8, share: 0.3, fill: func(qkv, _ []float32, dim int) { qkv[5*4*dim] = nan }, refused: "NaN or infinite"},
		{name: "a context beyond the values", pos: 60, rows: 8, share: 0.3, fill: plain, refused: ""},
	} {
		positions, sparse, dense, err := sparseCall(t, c.pos, c.rows, c.share, c.fill)
		if c.refused != "" || c.pos+c.rows > 64 {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: got %v, want an error with %q", c.name, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if c.positions != nil && !slices.Equal(positions, c.positions) {
			t.Errorf("%s: positions are %v, want %v", c.name, positions, c.positions)
		}
		if c.name == "a huge key" && !slices.Contains(positions, 21) {
			t.Errorf("%s: positions are %v, want 21 among them", c.name, positions)
		}
		for i, value := range sparse {
			if value != value || math.IsInf(float64(value), 0) || c.equal && math.Abs(float64(value-dense[i])) > 1e-5 {
				t.Errorf("%s: element %d is %v, of dense attention %v", c.name, i, value, dense[i])
				break
			}
		}
	}
}
