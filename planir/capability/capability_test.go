package capability

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir/op"
)

func able() Set {
	return Set{
		Tile: Tile{M: 1, K: 32, N: 64}, Kinds: []op.Kind{op.MatMul, op.Add}, Schemes: []op.Scheme{op.A32W32, op.A8TQ8C},
		Forms:   map[op.Scheme][]op.Form{op.A32W32: {op.Swapped}},
		Layouts: map[string]string{"w32": "n32", "q8c": "n32"}, KV: []op.Type{op.F32},
		StaticShapes: true, StridedOutput: true, Prepacks: true,
		Memory: &Memory{StepBytes: 1, Scratch: &Scratch{Align: 64}},
	}
}

// A copy is equal, also field by field as they are added, and shares nothing with what it was made from.
func TestClone(t *testing.T) {
	from := able()
	for i, value := 0, reflect.ValueOf(&from).Elem(); i < value.NumField(); i++ {
		if f := value.Field(i); f.Kind() == reflect.Bool {
			f.SetBool(true)
		} else if f.IsZero() {
			t.Errorf("the test sets no %s", value.Type().Field(i).Name)
		}
	}
	to := from.Clone()
	if !reflect.DeepEqual(from, to) {
		t.Fatalf("got %+v, want %+v", to, from)
	}
	to.Kinds[0], to.Schemes[0], to.KV[0], to.Layouts["w32"], to.Forms[op.A32W32][0] = op.Norm, op.A8SQ8C, op.F16, "x",
		op.Conv
	to.Memory.StepBytes, to.Memory.Scratch.Align = 2, 1
	if again := able(); from.Kinds[0] != again.Kinds[0] || from.Schemes[0] != again.Schemes[0] ||
		from.KV[0] != again.KV[0] ||
		from.Layouts["w32"] != "n32" || from.Forms[op.A32W32][0] != op.Swapped || from.Memory.StepBytes != 1 ||
		from.Memory.Scratch.Align != 64 {
		t.Errorf("a change of the copy changes %+v", from)
	}
}

func TestBeyond(t *testing.T) {
	for _, test := range []struct {
		keys   string
		change func(claim, can *Set)
	}{
		{"", func(claim, can *Set) {}},
		{"", func(claim, can *Set) {
			*claim = Set{Tile: Tile{K: 64, N: 128}, StaticShapes: true, Prepacks: true}
		}},
		{"layouts", func(claim, can *Set) { can.Layouts["q8c"] = "n64" }},
		{"schemes", func(claim, can *Set) { can.Schemes = can.Schemes[:1] }},
		{"forms", func(claim, can *Set) { can.Forms = nil }},
		{"tile.n", func(claim, can *Set) { claim.Tile.N = 32 }},
		{"tile.n tile.k", func(claim, can *Set) { claim.Tile = Tile{} }},
		{"strided_output", func(claim, can *Set) { can.StridedOutput = false }},
		{"", func(claim, can *Set) { claim.StridedOutput = false }},
		{"static_shapes prepacks", func(claim, can *Set) { claim.StaticShapes, claim.Prepacks = false, false }},
		{"dynamic_rows strided_input weight_ranges fuses fuses_glu weights_in_artifacts", func(claim, can *Set) {
			claim.DynamicRows, claim.StridedInput, claim.WeightRanges, claim.Fuses, claim.WeightsInArtifacts = true,
				true, true, true, true
			claim.FusesGLU = true
		}},
	} {
		claim, can := able(), able()
		test.change(&claim, &can)
		var keys []string
		for _, d := range claim.Beyond(&can) {
			keys = append(keys, d.Key)
		}
		if got := strings.Join(keys, " "); got != test.keys {
			t.Errorf("got %q, want %q", got, test.keys)
		}
	}
}

// Every number of a description has bounds, and a graph's scratch is the largest use of each region.
func TestScratch(t *testing.T) {
	s := Scratch{
		Align: 64, Block: 32, PackRows: 24, PackTiles: 16, PackFloatTiles: 64, PackTilesPerCore: 4, UnpackWords: 1000,
		ExpertRows: 256, ExpertWords: 1 << 16, AttentionRows: 8, AttentionLines: 64, AttentionKeys: 128,
	}
	for value, i := reflect.ValueOf(&s).Elem(), 0; i < value.NumField(); i++ {
		was := value.Field(i).Int()
		value.Field(i).SetInt(-1)
		if (&Memory{Scratch: &s}).Validate() == nil {
			t.Errorf("%s may be -1", value.Type().Field(i).Name)
		}
		value.Field(i).SetInt(was)
	}
	if err := (&Memory{Scratch: &s}).Validate(); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		o    op.Op
		want int64 // on two cores
	}{
		{op.Op{Kind: op.QuantRows, M: 30, K: 8}, 128},
		// scales and sums
		{op.Op{Kind: op.MatMul, M: 30, K: 64, N: 64, Scheme: op.A8TQ8C}, 128 + 4*30*3 + 24},
		// too few tiles
		{op.Op{Kind: op.MatMul, M: 32, K: 64, N: 512, Scheme: op.A32W32}, 0},
		{op.Op{Kind: op.MatMul, M: 32, K: 64, N: 2048, Scheme: op.A32W32}, 4 * 32 * 64}, // packed
		// and a tile for each core
		{op.Op{Kind: op.MatMul, M: 32, K: 64, N: 512, Scheme: op.A8TQ8C}, 128 + 384 + 4*32*17 + 2*2048},
		// unpacked blocks
		{op.Op{Kind: op.MatMul, M: 32, K: 64, N: 512, Scheme: op.A8TQ4B32}, 128 + 384 + 4*32*18 + 2*4032},
		{op.Op{Kind: op.MatMul, M: 2, K: 64, N: 32, Scheme: op.A16SQ8C}, 512 + 2*4*64*32},
	} {
		g := op.Single(test.o, "")
		if got := s.Bytes(&g, 2); got != test.want {
			t.Errorf("%s: got %d, want %d", test.o.Key(), got, test.want)
		}
	}
}

// Of the results of a product that ends with a gated linear unit each core holds some columns, or all where those are
// fewer.
func TestScratchOfGLU(t *testing.T) {
	held := Scratch{Align: 64, Block: 32, PackRows: 100}
	for _, test := range []struct{ rows, cols, words, want int64 }{
		{4, 1024, 0, 4 * 4 * 1024}, // as a temporary value
		{4, 1024, 1000, 2 * (4000 + 32)},
		{40, 1024, 1000, 2 * 4 * 40 * 64}, // two tiles of columns
		{4, 96, 1000, 2 * 4 * 4 * 96},     // all
	} {
		held.GLUWords = test.words
		rows, cols := int(test.rows), int(test.cols)
		f32 := func(name string, cols int) op.Value {
			return op.Value{Name: name, Type: op.F32, Rows: rows, Cols: cols}
		}
		graph := op.Graph{
			Inputs: []op.Value{f32("x", 8)}, Outputs: []op.Value{f32("y", cols/2)}, Temps: []op.Value{f32("h", cols)},
			Nodes: []op.Node{
				{Op: op.Op{Kind: op.MatMul, M: rows, K: 8, N: cols, Scheme: op.A32W32}, In: []string{"x"}, Out: []string{"h"}},
				{Op: op.Op{Kind: op.GLU, M: rows, N: cols / 2, Interleave: 16}, In: []string{"h"}, Out: []string{"y"}},
			},
		}
		if got := held.Bytes(&graph, 2); got != test.want {
			t.Errorf("%v: got %d bytes", test, got)
		}
	}
}

// Of the processors that share what they allocate only one can allocate the buffers.
func TestCopying(t *testing.T) {
	none, own, shares := &Set{}, &Set{OwnMemory: true}, &Set{OwnMemory: true, SharesOwn: true}
	got := Copying([]*Set{none, shares, own, shares, {SharesOwn: true}})
	if want := []bool{false, false, true, true, false}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
