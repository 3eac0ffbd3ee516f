package quality

import (
	"cmp"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// drawn is attention over random rows, whose results are zero.
func drawn(seed uint64, rows, heads, kvHeads, dim int) *Heads {
	random := rand.New(rand.NewPCG(seed, 3))
	out := &Heads{Op: op.Op{Kind: op.Attention, Heads: heads, KVHeads: kvHeads, HeadDim: dim}, Rows: rows,
		stride: (heads + 2*kvHeads) * dim, result: heads * dim}
	out.qkv, out.out = make([]float32, rows*out.stride), make([]float32, rows*out.result)
	for i := range out.qkv {
		out.qkv[i] = float32(2 * random.NormFloat64())
	}
	return out
}

// definition is attention of a row to a set of positions, in double precision.
func definition(heads *Heads, row, head int, attended func(pos int) bool) []float64 {
	kvHead := head / (heads.Heads / heads.KVHeads)
	out, total := make([]float64, heads.HeadDim), 0.0
	for pos := range row + 1 {
		if !attended(pos) {
			continue
		}
		score := 0.0
		for i, value := range heads.Query(row, head) {
			score += float64(value) * float64(heads.Key(pos, kvHead)[i])
		}
		weight := math.Exp(score / math.Sqrt(float64(heads.HeadDim)))
		total += weight
		for i, value := range heads.value(pos, kvHead) {
			out[i] += weight * float64(value)
		}
	}
	for i := range out {
		out[i] /= total
	}
	return out
}

// differs is the largest difference of a result from its definition.
func differs(heads *Heads, attended func(row, head, pos int) bool) float64 {
	worst := 0.0
	for row := range heads.Rows {
		for head := range heads.Heads {
			want := definition(heads, row, head, func(pos int) bool { return attended(row, head, pos) })
			for i, got := range heads.Result(row, head) {
				worst = max(worst, math.Abs(float64(got)-want[i]))
			}
		}
	}
	return worst
}

// At a density of 1 every rule is dense attention.
func TestEverythingKeptIsDense(t *testing.T) {
	for _, rule := range calibration.Rules {
		heads := drawn(1, 150, 4, 2, 16)
		(&Sparse{Rule: rule, Block: 16, Density: func(int, int) float64 { return 1 }}).Attend(heads)
		if worst := differs(heads, func(row, _, pos int) bool { return pos <= row }); worst > 1e-4 {
			t.Errorf("%s: results differ by %v from dense attention", rule, worst)
		}
	}
}

// With a sliding window of the model, everything kept is that window.
func TestWindowOfTheModel(t *testing.T) {
	heads := drawn(2, 100, 2, 1, 8)
	heads.Window = 20
	(&Sparse{Rule: calibration.RuleUniform, Block: 16, Density: func(int, int) float64 { return 1 }}).Attend(heads)
	if worst := differs(heads, func(row, _, pos int) bool { return pos <= row && pos > row-20 }); worst > 1e-4 {
		t.Errorf("results differ by %v", worst)
	}
}

// The rule of windows keeps the first positions and the last ones, as many as the density says.
func TestRuleWindow(t *testing.T) {
	heads := drawn(3, 96, 2, 2, 8)
	const block, density = 8, 0.25
	(&Sparse{Rule: calibration.RuleWindow, Block: block, Density: func(int, int) float64 { return density }}).Attend(heads)
	worst := differs(heads, func(row, _, pos int) bool {
		begin := row / block * block
		seen := begin + block
		kept := max(min(begin, op.SparseFirst), int(math.Ceil(float64(float32(density))*float64(seen)))-block)
		return pos < min(op.SparseFirst, kept) || pos >= begin-(kept-min(op.SparseFirst, kept)) && pos <= row
	})
	if worst > 1e-4 {
		t.Errorf("results differ by %v", worst)
	}
}

// The rule of blocks keeps the first one, and of the others those whose mean keys have the largest products with the mean
// query.
func TestRuleBlocks(t *testing.T) {
	heads := drawn(8, 8*blockSide, 2, 1, 16)
	const density = 0.5
	(&Sparse{Rule: calibration.RuleBlocks, Density: func(int, int) float64 { return density }}).Attend(heads)
	product := func(head, block, other int) (sum float64) {
		for i := range heads.HeadDim {
			query, key := 0.0, 0.0
			for at := range blockSide {
				query += float64(heads.Query(block*blockSide+at, head)[i])
				key += float64(heads.Key(other*blockSide+at, 0)[i])
			}
			sum += query * key
		}
		return sum
	}
	kept := map[[3]int]bool{} // head, block of queries, block of positions
	for head := range heads.Heads {
		for block := range heads.Rows / blockSide {
			var others []int
			for other := 1; other < block; other++ {
				others = append(others, other)
			}
			slices.SortFunc(others, func(a, b int) int { return cmp.Compare(product(head, block, b), product(head, block, a)) })
			count := max(min(block, 1), int(math.Ceil(density*float64(block+1)))-1) // its own block counts
			for _, other := range append([]int{0}, others...)[:count] {
				kept[[3]int{head, block, other}] = true
			}
		}
	}
	worst := differs(heads, func(row, head, pos int) bool {
		block, other := row/blockSide, pos/blockSide
		return pos <= row && (other == block || kept[[3]int{head, block, other}])
	})
	if worst > 1e-4 {
		t.Errorf("results differ by %v", worst)
	}
}

// A single query keeps the positions with the largest estimates, of which there are as many as its density says.
func TestRuleUniformOfSingleQueries(t *testing.T) {
	heads := drawn(4, 120, 2, 1, 32)
	const density = 0.3
	sparse := Sparse{Rule: calibration.RuleUniform, Block: 1, Density: func(int, int) float64 { return density }}
	sparse.Attend(heads)
	worst := differs(heads, func(row, head, pos int) bool {
		if pos == row || pos < op.SparseFirst {
			return pos <= row
		}
		// what the position's estimate is, and how many others are larger
		count := int(math.Ceil(float64(float32(density)) * float64(row+1)))
		larger := 0
		for other := range row {
			if other < op.SparseFirst || rounded(heads, row, head, other) > rounded(heads, row, head, pos) {
				larger++
			}
		}
		return larger < count-1 // the row's own position counts
	})
	if worst > 1e-4 {
		t.Errorf("results differ by %v", worst)
	}
}

// rounded is a score of queries and keys rounded to 8 bits with a scale for each row, by the definition.
func rounded(heads *Heads, row, head, pos int) float64 {
	code := func(values []float32) (codes []float64, scale float64) {
		for _, value := range values {
			scale = max(scale, math.Abs(float64(value))/127)
		}
		for _, value := range values {
			codes = append(codes, math.RoundToEven(float64(value*(1/float32(scale)))))
		}
		return codes, scale
	}
	query, queryScale := code(heads.Query(row, head))
	key, keyScale := code(heads.Key(pos, head/(heads.Heads/heads.KVHeads)))
	sum := 0.0
	for i := range query {
		sum += query[i] * key[i]
	}
	return sum * queryScale * keyScale
}

// A block keeps what any of its queries needs most: one far position that one query attends to nearly alone.
func TestBlockKeepsWhatOneQueryNeeds(t *testing.T) {
	heads := drawn(5, 128, 1, 1, 16)
	const row, far = 120, 40
	for i := range heads.Query(row, 0) {
		heads.Query(row, 0)[i] = 8 * heads.Key(far, 0)[i]
	}
	dense := definition(heads, row, 0, func(int) bool { return true })
	(&Sparse{Rule: calibration.RuleUniform, Block: 16, Density: func(int, int) float64 { return 0.3 }}).Attend(heads)
	for i, got := range heads.Result(row, 0) {
		if math.Abs(float64(got)-dense[i]) > 1e-3 {
			t.Fatalf("result %d is %v, want %v as of dense attention", i, got, dense[i])
		}
	}
}

// The first row, and a density of next to nothing: the own position is always there.
func TestNothingSelected(t *testing.T) {
	for _, rule := range calibration.Rules {
		heads := drawn(6, 33, 2, 1, 8)
		(&Sparse{Rule: rule, Block: 16, Density: func(int, int) float64 { return 1e-9 }}).Attend(heads)
		for i, value := range heads.out {
			if value-value != 0 {
				t.Fatalf("%s: result %d is %v", rule, i, value)
			}
		}
		for i, value := range heads.Result(0, 0) {
			if value != heads.value(0, 0)[i] {
				t.Fatalf("%s: the first row is %v, want its own value %v", rule, heads.Result(0, 0), heads.value(0, 0))
			}
		}
	}
}

func TestWithoutHead(t *testing.T) {
	heads := drawn(7, 5, 4, 2, 8)
	for i := range heads.out {
		heads.out[i] = 1
	}
	WithoutHead(1, 2)(heads) // another layer
	if slices.Contains(heads.out, 0) {
		t.Fatal("a head of layer 0 is gone")
	}
	WithoutHead(0, 2)(heads)
	for row := range heads.Rows {
		for head := range heads.Heads {
			want := float32(1)
			if head == 2 {
				want = 0
			}
			if slices.ContainsFunc(heads.Result(row, head), func(v float32) bool { return v != want }) {
				t.Fatalf("row %d of head %d: %v, want %v", row, head, heads.Result(row, head), want)
			}
		}
	}
	WithoutHead(0, -1)(heads)
	if slices.Contains(heads.out, 1) {
		t.Fatal("a head is left in a layer without attention")
	}
}

// nthLargest against sorting, with equal values and NaN.
func TestNthLargest(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 1))
	for range 300 {
		values := make([]float32, 1+random.IntN(40))
		for i := range values {
			values[i] = float32(random.IntN(12))
		}
		sorted := slices.Clone(values)
		slices.Sort(sorted)
		n := 1 + random.IntN(len(values))
		if got, want := nthLargest(slices.Clone(values), n), sorted[len(sorted)-n]; got != want {
			t.Fatalf("%v: number %d is %v, want %v", values, n, got, want)
		}
	}
	nan := float32(math.NaN())
	nthLargest([]float32{nan, 1, nan, 2, nan}, 3) // ends
}

// Recall is 1 where estimates are exact, and mass that of the largest scores.
func TestEstimates(t *testing.T) {
	heads := drawn(9, 256, 2, 1, 16)
	for i, value := range heads.qkv { // whole numbers up to 3, which 8 bits hold exactly
		heads.qkv[i] = min(3, max(-3, float32(math.Round(float64(value)))))
	}
	estimates := Estimates{Densities: []float64{0.1, 0.5, 1}, Rows: 8, Block: 4}
	estimates.Sizes(heads)
	layers, err := estimates.Layers()
	if err != nil {
		t.Fatal(err)
	}
	attention := &calibration.Attention{Heads: 2, KVHeads: 1, Layers: layers, Densities: estimates.Densities}
	attention.Buckets = attention.MeanBuckets()
	if got, want := attention.Scales(0, 1), (calibration.ScalePair{Query: 3. / 127, Key: 3. / 127}); got != want {
		t.Errorf("scales %v, want %v", got, want)
	}
	estimates.Recall(attention)(heads)
	if layers, err = estimates.Layers(); err != nil {
		t.Fatal(err)
	}
	for _, head := range layers[0].Heads {
		if head.Mass[2] < 1-1e-12 || head.Mass[0] >= head.Mass[1] || head.Mass[1] >= 1 {
			t.Errorf("mass %v, want it to grow up to 1", head.Mass)
		}
		if len(head.Recall) != len(calibration.ScaleKinds) {
			t.Fatalf("%d kinds of scales, want %d", len(head.Recall), len(calibration.ScaleKinds))
		}
		for _, recall := range head.Recall {
			if recall.At[2] != 1 {
				t.Errorf("scales %q: recall of everything is %v, want 1", recall.Scales, recall.At[2])
			}
			// 3/127 is no multiple of what numbers are, so that rounding may exchange equal ones.
			if recall.Scales != "row" && recall.At[0] < 0.97 {
				t.Errorf("scales %q: recall %v of values that 8 bits hold", recall.Scales, recall.At[0])
			}
		}
	}
	heads.qkv[3] = float32(math.NaN())
	estimates.Sizes(heads)
	if _, err := estimates.Layers(); err == nil {
		t.Error("a query that is NaN is not refused")
	}
}

func TestTallyIsStored(t *testing.T) {
	want := &Tally{7, []float64{0.1, 0.25}, []float64{1, 0.5}, []float64{2, 3}, []float64{1.5, 3}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Tally
	if err := json.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(&got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if err := json.Unmarshal([]byte(`{"kl":[1],"top":[]}`), &got); err == nil {
		t.Error("means of different numbers of windows are accepted")
	}
}

func TestPassage(t *testing.T) {
	window := make([]int32, 256)
	for i := range window {
		window[i] = int32(i % 50)
	}
	prompt, from, err := Passage(window, 32, 1)
	if err != nil || len(prompt) != 256 || from != 256-32+2 {
		t.Fatalf("%d tokens, from %d, %v", len(prompt), from, err)
	}
	if !slices.Equal(prompt[256-32:], prompt[128-32:128]) {
		t.Error("the passage is not repeated half a window later")
	}
	if !slices.Equal(prompt[:96], window[:96]) || !slices.Equal(prompt[128:224], window[128:224]) {
		t.Error("other tokens have changed")
	}
	if _, _, err := Passage(window, 100, 1); err == nil {
		t.Error("a passage of two fifths of the window is not refused")
	}
}
