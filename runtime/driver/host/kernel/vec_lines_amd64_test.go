package kernel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/mem"
)

// Attention gives the same bits with tiles of either width, and for few lines without tiles.
func TestVecAttentionTiles(t *testing.T) {
	shapes := []Attention{
		{M: 11, Heads: 3, Dim: 64, Pos: 250},
		{M: 70, Heads: 1, Dim: 40, Window: 50},
		{M: 1, Heads: 1, Dim: 96, Pos: 400, Cap: 4},
		{M: 1, Heads: 2, Dim: 96, Pos: 300},
		{M: 9, Heads: 8, Dim: 56, Pos: 100, Window: 130},
		{M: 20, Heads: 3, Dim: 100, Pos: 110},
		{M: 1, Heads: 8, Dim: 20, Pos: 140},
		// Rows that attend to half a tile, groups of the most rows, windows that end within a tile.
		{M: 8, Heads: 8, Dim: 64, Pos: 120},
		{M: 64, Heads: 1, Dim: 80, Pos: 137},
		{M: 64, Heads: 1, Dim: 48, Pos: 150, Window: 37},
	}
	for lines := 1; lines <= mostFewLines; lines++ {
		// Contexts around a group of keys and around a block, windows that end within one.
		for i, pos := range []int{0, 6, 7, 15, 127, 130, 390} {
			shapes = append(shapes,
				Attention{M: 1, Heads: lines, Dim: 8 + 8*((lines+5*i)%16), Pos: pos},
				Attention{M: lines, Heads: 1, Dim: 24, Pos: pos, Window: 1 + 29*i})
		}
		// Several whole blocks at a time, behind the beginning of a window, too.
		dim := 16 * lines
		rest := Rest{Key: make([]float32, dim), Value: slices.Repeat([]float32{2}, dim), Count: 50}
		shapes = append(shapes,
			Attention{M: 1, Heads: lines, Dim: dim, Pos: 699 + 40*lines},
			Attention{M: 1, Heads: lines, Dim: 144 - dim, Pos: 1023, Window: 900 - 90*lines},
			Attention{M: lines, Heads: 1, Dim: dim, Pos: 900, Rest: rest})
	}
	for number, shape := range shapes {
		sameAttention(t, shape, uint64(number))
	}
}

// sameAttention compares attention of each set over all caches with that of the set with other tiles.
func sameAttention(t *testing.T, a Attention, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, seed))
	a.Scale = 0.125
	ld, context := a.Heads*a.Dim, a.Pos+a.M
	q, k, v := normals(rng, a.M*ld), normals(rng, context*a.Dim), normals(rng, context*a.Dim)
	k16, v16 := make([]uint16, len(k)), make([]uint16, len(v))
	toF16(k16, k)
	toF16(v16, v)
	k8, v8 := cachedQ8(k, a.Dim), cachedQ8(v, a.Dim)
	kb, vb := make([]uint16, len(k)), make([]uint16, len(v))
	toBF16(kb, k)
	toBF16(vb, v)
	if seed%2 == 1 { // more than is asked for, or less
		a.NextKeys, a.NextValues = mem.Bytes(k), mem.Bytes(v)[:rng.IntN(4*len(v)+1)]
		a.NextQueries = Rows(q[:rng.IntN(len(q)+1)], ld)
	}

	others := otherTiles()
	for i, own := range vectorSets() {
		for _, form := range []string{"f32", "f16", "bf16", "q8"} {
			call := func(set *Set) []float32 {
				y, scratch := make([]float32, a.M*ld), make([]float32, AttentionScratch(a.Heads, a.Dim))
				switch form {
				case "f32":
					set.AttentionF32(Rows(y, ld), Rows(q, ld), k, v, scratch, a)
				case "bf16":
					set.AttentionBF16(Rows(y, ld), Rows(q, ld), kb, vb, scratch, a)
				case "f16":
					set.AttentionF16(Rows(y, ld), Rows(q, ld), k16, v16, scratch, a)
				default:
					set.AttentionQ8(Rows(y, ld), Rows(q, ld), k8, v8, scratch, a)
				}
				return y
			}
			got, want := call(others[i]), call(own)
			for j := range got {
				if got[j] != want[j] {
					what := fmt.Sprintf("%s attention %v over %s", others[i].Name, a, form)
					t.Fatalf("%s: element %d is %v, want %v", what, j, got[j], want[j])
				}
			}
		}
	}
}

// otherTiles are sets whose attention has tiles of the other width than their own. They test the callers of kernels of
// 512 bits on CPUs without them, too.
func otherTiles() (sets []*Set) {
	for _, set := range vectorSets() {
		tier := avx2
		if set.PackRowsF32 != nil {
			tier = avx512
		}
		width := func(a Attention) int { return tileKeys + TileN - tier.keysWidth(a) }
		sets = append(sets, &Set{
			Name: set.Name + " with other tiles",
			AttentionF32: func(y, q Matrix[float32], k, v, scratch []float32, a Attention) {
				tier.attention(width(a), y, q, scratch, a, source{k32: k, v32: v})
			},
			AttentionQ8: func(y, q Matrix[float32], k, v []uint8, scratch []float32, a Attention) {
				if set.PackRows != nil && a.Dim%vecN == 0 { // few lines have tiles, too
					avx512vnni.attention(TileN, y, q, scratch, a, source{k8: k, v8: v, codes: true})
					return
				}
				tier.attention(width(a), y, q, scratch, a, source{k8: k, v8: v})
			},
			AttentionBF16: func(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
				if set.Name == "amx" { // rows by themselves, whose tiles and calls are others
					eachRowAlone(set, y, q, k, v, scratch, a)
					return
				}
				if set.Name == pairSetName { // few lines have tiles, too
					tier.attention(TileN, y, q, scratch, a, source{k16: k, v16: v, brain: true, pairs: true})
					return
				}
				tier.attention(width(a), y, q, scratch, a, source{k16: k, v16: v, brain: true})
			},
			AttentionF16: func(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
				tier.attention(width(a), y, q, scratch, a, source{k16: k, v16: v})
			},
		})
	}
	return sets
}

// eachRowAlone attends with one row a call.
func eachRowAlone(set *Set, y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
	for row := range a.M {
		one := a
		one.M, one.Pos = 1, a.Pos+row
		end := one.context() * a.Dim
		set.AttentionBF16(y.From(row, 0), q.From(row, 0), k[:end], v[:end], scratch, one)
	}
}

// Few lines ask for all keys of a head but its first ones, and for those of the next head, whichever part of a block
// they are.
func TestVecAttentionAsksForAll(t *testing.T) {
	for _, dim := range []int{64, 80, 96, 128} {
		for _, context := range []int{200, 1000, 1024} {
			numbers := dim * context
			for _, from := range []source{
				{k32: make([]float32, numbers), v32: make([]float32, numbers)},
				{k16: make([]uint16, numbers), v16: make([]uint16, numbers)},
				{k16: make([]uint16, numbers), v16: make([]uint16, numbers), brain: true, pairs: true},
				{k8: make([]uint8, numbers+cachedScale*context), v8: make([]uint8, numbers+cachedScale*context)},
			} {
				checkKeysAskedFor(t, from, dim, context)
			}
		}
	}
}

// checkKeysAskedFor follows one head over its context.
func checkKeysAskedFor(t *testing.T, from source, dim, context int) {
	t.Helper()
	next := make([]byte, 4*dim*context)
	a := Attention{M: 1, Heads: 4, Dim: dim, Pos: context - 1, NextKeys: next, NextValues: next}
	task := avx512vnni.newLineTask(tileKeys, make([]float32, AttentionScratch(4, dim)), a, 0, 1, from)

	asked := map[uintptr]bool{}
	for pos := 0; pos < context; pos += keyBlock {
		block := min(pos+keyBlock, context)
		for at := pos; at < block; {
			end := task.oneAhead(at, block)
			keys, _ := task.far(at, end)
			for i := 0; i < len(keys); i += task.row {
				asked[mem.Address(keys[i:])] = true
			}
			at = end
		}
	}

	own, _ := from.bytes(task.rows, context-wideKeys, dim)
	for name, want := range map[string][]byte{"own": own, "next": next[:task.rows*task.row]} {
		for i := 0; i < len(want); i += task.row {
			if !asked[mem.Address(want[i:])] {
				t.Fatalf("dim %d, %d positions, rows of %d bytes: row %d of the %s keys is not asked for", dim, context,
					task.row, i/task.row, name)
			}
		}
	}
}
