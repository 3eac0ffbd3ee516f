package kernel

import (
	"slices"
	"testing"
)

// Few rows have the same bits whether tiles are read side by side or one after the other. Weights, activations and
// results end at pages that must not be touched.
func TestVecStreams(t *testing.T) {
	defer func(was bool) { sideBySide = was }(sideBySide)
	for _, k := range []int{1, 3, 16, 31, 32, 100, 128, 261, 2048} {
		blocks := (k + BlockK - 1) / BlockK
		random := newValues(plain, uint64(k), nil)
		const most = 5 // more than kernels of streams take
		codes := guardedSlice[uint8](t, most*k)
		for i := range codes {
			codes[i] = random.code(1)
		}
		x := Quantised{
			Codes: Rows(codes, k),
			Scale: guarded(t, []float32{0.5, 1, 2, 0.25, 3}),
			Sums:  Rows(guardedSlice[int32](t, most*blocks), blocks),
		}
		Portable().BlockSums(x.Sums, x.Codes, most, k)
		numbers := Rows(guarded(t, random.matrix(most, k, k, 1)), k)

		for _, n := range []int{33, 64, 95, 96, 128, 129, 160, 224, 290} {
			weights := map[string][]byte{}
			for _, scheme := range []string{"q8c", "q6c", "q4b32", "q4b128", "w32", "w16"} {
				tiles, _ := tiledWeight(newValues(plain, uint64(n), nil), scheme, k, n)
				weights[scheme] = guarded(t, tiles)
			}
			for _, set := range measuredSets() {
				products := map[string]func(y Matrix[float32], m int){
					"q8c":    func(y Matrix[float32], m int) { set.MatMulQ8C(y, x, weights["q8c"], m, k, n) },
					"q6c":    func(y Matrix[float32], m int) { set.MatMulQ6C(y, x, weights["q6c"], m, k, n) },
					"q4b32":  func(y Matrix[float32], m int) { set.MatMulQ4B32(y, x, weights["q4b32"], m, k, n) },
					"q4b128": func(y Matrix[float32], m int) { set.MatMulQ4B128(y, x, weights["q4b128"], m, k, n) },
					"w32": func(y Matrix[float32], m int) {
						set.MatMulF32(y, numbers, viewAs[float32](t, weights["w32"]), m, k, n)
					},
					"w16": func(y Matrix[float32], m int) {
						set.MatMulBF16(y, numbers, viewAs[uint16](t, weights["w16"]), m, k, n)
					},
				}
				for scheme, multiply := range products {
					for rows := 1; rows <= most; rows++ {
						product := func(together bool) []float32 {
							sideBySide = together
							y := guardedSlice[float32](t, rows*n)
							multiply(Rows(y, n), rows)
							return y
						}
						if !slices.Equal(product(true), product(false)) {
							t.Errorf("%s, %s, %dx%dx%d: the results differ", set.Name, scheme, rows, k, n)
						}
					}
				}
			}
		}
	}
}

// Kernels of streams ask memory for all tiles of the next group, but for a line in a hundred, and for little behind the
// last one.
func TestVecStreamsFetchAll(t *testing.T) {
	const k = 2048
	q8cBytes, _ := q8cTileBytes(k)
	q6cBytes, _ := q6cTileBytes(k)
	q4 := func(block int) tileReader {
		step := q4BlockBytes(block)
		return tileReader{bytes: k / block * step, step: step, stepCount: k / block}
	}
	functions := readAssembly("vec_streams512_amd64.s")
	for name, of := range map[string]struct {
		shapes streamShapes
		tiles  tileReader
	}{
		"q8cStreams512":    {streamsInOrder, tileReader{bytes: q8cBytes, step: 4 * TileN, stepCount: k / 4}},
		"q6cStreams512":    {streamsOfSix, tileReader{bytes: q6cBytes, step: sixGroup, stepCount: k / sixRows}},
		"q4Streams512":     {streamsOfFour, q4(32)},
		"q4x128Streams512": {streamsOfFour, q4(128)},
		"f32Streams512":    {streamsInOrder, tileReader{bytes: 4 * k * TileN, step: 4 * TileN, stepCount: k}},
		"bf16Streams512":   {streamsInOrder, tileReader{bytes: 2 * k * TileN, step: 2 * TileN, stepCount: k}},
	} {
		for at, most := range of.shapes {
			const weight = 1 << 30
			asked := map[uint64]bool{}
			tiles := of.tiles
			tiles.m, tiles.most, tiles.n = at+1, most, 3*most*TileN
			tiles.y = Rows(make([]float32, tiles.m*tiles.n), tiles.n)
			for group, ok := tiles.next(); ok; group, ok = tiles.next() {
				arguments := map[string]uint64{ // others are 0
					"shape": uint64(group.shape), "steps": uint64(group.steps), "last": uint64(group.last),
					"w": uint64(weight + group.offset), "pitch": uint64(tiles.bytes),
					"ahead": uint64(group.ahead), "jump": uint64(group.jump),
				}
				execute(t, functions[name], &integerMachine{
					argument: func(name string, _ int) uint64 { return arguments[name] },
					fetch:    func(address uint64) { asked[address/line] = true },
				})
			}

			lines, missing := tiles.n/TileN*tiles.bytes/line, 0
			first := most * tiles.bytes / line // the first group is not asked for as a whole
			for i := first; i < lines; i++ {
				if !asked[uint64(weight/line+i)] {
					missing++
				}
			}
			if missing > lines/100 {
				t.Errorf("%s of %d rows: %d of %d lines are not asked for", name, tiles.m, missing, lines-first)
			}
			if end := uint64(weight/line + lines); asked[end+streamAhead/line] {
				t.Errorf("%s of %d rows: asks for more than %d bytes behind the weight", name, tiles.m, streamAhead)
			}
		}
	}
}

// A group of tiles has at most as many as its kernel takes, and at least two, or one where it takes two.
func TestTileGroups(t *testing.T) {
	for _, most := range []int{2, 3, 4} {
		for count := 2; count <= 40; count++ {
			n := count*TileN - 5
			y := Rows(make([]float32, n), n)
			tiles := tileReader{y: y, m: 1, n: n, most: most, bytes: 256, step: 64, stepCount: 4}
			total := 0
			for group, ok := tiles.next(); ok; group, ok = tiles.next() {
				size := group.shape % 10
				if size < min(2, most-1) || size > most {
					t.Errorf("%d tiles, at most %d: a group has %d", count, most, size)
				}
				total += size
			}
			if total != count {
				t.Errorf("%d tiles, at most %d: groups have %d", count, most, total)
			}
		}
	}
}
