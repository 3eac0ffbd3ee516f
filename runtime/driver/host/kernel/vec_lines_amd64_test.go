package kernel

import (
	"math/rand/v2"
	"testing"
)

// Attention gives the same bits with tiles of either width.
func TestVecAttentionTiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	fill := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	own := vectorSets()
	for i, other := range otherTiles() {
		for _, a := range []Attention{
			{M: 11, Heads: 3, Dim: 64, Pos: 250}, {M: 70, Heads: 1, Dim: 40, Window: 50}, {M: 1, Heads: 1, Dim: 96, Pos: 400, Cap: 4},
			{M: 1, Heads: 2, Dim: 96, Pos: 300}, {M: 9, Heads: 8, Dim: 56, Pos: 100, Window: 130},
		} {
			a.Scale = 0.125
			ld, context := a.Heads*a.Dim, a.Pos+a.M
			q, k, v := fill(a.M*ld), fill(context*a.Dim), fill(context*a.Dim)
			got, want := make([]float32, a.M*ld), make([]float32, a.M*ld)
			scratch := make([]float32, AttentionScratch(a.Heads, a.Dim))
			own[i].AttentionF32(want, ld, q, ld, k, v, scratch, a)
			other.AttentionF32(got, ld, q, ld, k, v, scratch, a)
			for j := range got {
				if got[j] != want[j] {
					t.Fatalf("%s attention %+v: element %d is %v, want %v", other.Name, a, j, got[j], want[j])
				}
			}
		}
	}
}

// otherTiles are sets whose attention has tiles of the other width than their own, so that what the kernels of 512 bits
// are called by is tested on CPUs without them, too.
func otherTiles() (sets []*Set) {
	for _, set := range vectorSets() {
		tier := avx2
		width := TileN
		if set.PackRowsF32 != nil {
			tier, width = avx512, tileKeys
		}
		sets = append(sets, &Set{
			Name: set.Name + " with other tiles",
			AttentionF32: func(y []float32, ldy int, q []float32, ldq int, k, v, scratch []float32, a Attention) {
				tier.attention(width, y, ldy, q, ldq, scratch, a, source{k32: k, v32: v})
			},
			AttentionQ8: func(y []float32, ldy int, q []float32, ldq int, k, v []uint8, scratch []float32, a Attention) {
				tier.attention(width, y, ldy, q, ldq, scratch, a, source{k8: k, v8: v})
			},
			AttentionF16: func(y []float32, ldy int, q []float32, ldq int, k, v []uint16, scratch []float32, a Attention) {
				tier.attention(width, y, ldy, q, ldq, scratch, a, source{k16: k, v16: v})
			},
		})
	}
	return sets
}
