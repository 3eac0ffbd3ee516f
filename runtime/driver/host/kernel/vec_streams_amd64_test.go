package kernel

import (
	"fmt"
	"slices"
	"testing"
)

// One row has the same bits whether tiles are read side by side or one after the other. Weights, activations and results
// end at pages that must not be touched.
func TestVecStreams(t *testing.T) {
	defer func(was bool) { sideBySide = was }(sideBySide)
	for _, k := range []int{1, 3, 16, 31, 32, 100, 128, 261, 2048} {
		blocks := (k + BlockK - 1) / BlockK
		random := newValues(plain, uint64(k), nil)
		codes := guardedSlice[uint8](t, k)
		for i := range codes {
			codes[i] = random.code(1)
		}
		x := Quantised{Codes: Rows(codes, k), Scale: []float32{0.5}, Sums: Rows(guardedSlice[int32](t, blocks), blocks)}
		Portable().BlockSums(x.Sums, x.Codes, 1, k)
		numbers := Rows(guarded(t, random.matrix(1, k, k, 1)), k)

		for _, n := range []int{33, 64, 95, 96, 128, 129, 160, 224, 290} {
			weights := map[string][]byte{}
			for _, scheme := range []string{"q8c", "q6c", "q4b32", "q4b128", "w32", "w16"} {
				tiles, _ := tiledWeight(newValues(plain, uint64(n), nil), scheme, k, n)
				weights[scheme] = guarded(t, tiles)
			}
			for _, set := range measuredSets() {
				products := map[string]func(y Matrix[float32]){
					"q8c":    func(y Matrix[float32]) { set.MatMulQ8C(y, x, weights["q8c"], 1, k, n) },
					"q6c":    func(y Matrix[float32]) { set.MatMulQ6C(y, x, weights["q6c"], 1, k, n) },
					"q4b32":  func(y Matrix[float32]) { set.MatMulQ4B32(y, x, weights["q4b32"], 1, k, n) },
					"q4b128": func(y Matrix[float32]) { set.MatMulQ4B128(y, x, weights["q4b128"], 1, k, n) },
					"w32": func(y Matrix[float32]) {
						set.MatMulF32(y, numbers, viewAs[float32](t, weights["w32"]), 1, k, n)
					},
					"w16": func(y Matrix[float32]) {
						set.MatMulBF16(y, numbers, viewAs[uint16](t, weights["w16"]), 1, k, n)
					},
				}
				for scheme, multiply := range products {
					product := func(together bool) []float32 {
						sideBySide = together
						y := guardedSlice[float32](t, n)
						multiply(Rows(y, n))
						return y
					}
					if !slices.Equal(product(true), product(false)) {
						t.Errorf("%s, %s, 1x%dx%d: the results differ", set.Name, scheme, k, n)
					}
				}
			}
		}
	}
}

// Kernels of streams ask memory for all tiles of the next group, but for a line in a hundred, and for none of it where
// there is no next group.
func TestVecStreamsFetchAll(t *testing.T) {
	const k, columns = 2048, 3 * mostStreams * TileN
	q8cBytes, _ := q8cTileBytes(k)
	q6cBytes, _ := q6cTileBytes(k)
	functions := readAssembly("vec_avx512_amd64.s")
	for name, tile := range map[string]tileSteps{
		"q8cStreams512":    {q8cBytes, 4 * TileN, k / 4},
		"q6cStreams512":    {q6cBytes, sixGroup, k / sixRows},
		"q4Streams512":     {k / 32 * q4BlockBytes(32), q4BlockBytes(32), k / 32},
		"q4x128Streams512": {k / 128 * q4BlockBytes(128), q4BlockBytes(128), k / 128},
		"f32Streams512":    {4 * k * TileN, 4 * TileN, k},
		"bf16Streams512":   {2 * k * TileN, 2 * TileN, k},
	} {
		const weight = 1 << 30
		asked, out := map[uint64]bool{}, room{}
		row := make([]float32, columns)
		for column := 0; column < columns; {
			group := tile.next(row, &out, column)
			arguments := map[string]uint64{ // others are 0
				"tiles": uint64(group.tiles), "steps": uint64(group.steps), "last": uint64(group.last),
				"w": uint64(weight + group.offset), "pitch": uint64(tile.bytes),
				"ahead": uint64(group.ahead), "jump": uint64(group.jump),
			}
			execute(t, functions[name], &integerMachine{
				argument: func(name string, _ int) uint64 { return arguments[name] },
				fetch:    func(address uint64) { asked[address/line] = true },
			})
			column = group.finish(row, &out)
		}

		lines, missing := columns/TileN*tile.bytes/line, 0
		first := mostStreams * tile.bytes / line // the first group is not asked for as a whole
		for i := first; i < lines; i++ {
			if !asked[uint64(weight/line+i)] {
				missing++
			}
		}
		if missing > lines/100 {
			t.Errorf("%s: %d of %d lines are not asked for", name, missing, lines-first)
		}
		if end := uint64(weight/line + lines); asked[end+streamAhead/line] {
			t.Errorf("%s: asks for more than %d bytes behind the weight", name, streamAhead)
		}
	}
}

// A group of tiles has at most mostStreams of them, and no group has a single tile.
func TestTileGroups(t *testing.T) {
	for tiles := 2; tiles <= 40; tiles++ {
		row, out := make([]float32, tiles*TileN-5), room{}
		var sizes []int
		for column := 0; column < len(row); {
			group := (tileSteps{256, 64, 4}).next(row, &out, column)
			sizes = append(sizes, group.tiles)
			column = group.finish(row, &out)
		}
		if slices.Min(sizes) < 2 || slices.Max(sizes) > mostStreams {
			t.Error(fmt.Sprint(tiles, " tiles: groups of ", sizes))
		}
	}
}
