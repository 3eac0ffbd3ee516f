package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A product that takes several passes over rows and k has the bits of its rows computed alone, in one pass.
func TestVecPasses(t *testing.T) {
	for _, c := range [][3]int{{13, 3500, 33}, {150, 1800, 65}, {133, 2000, 31}, {264, 1500, 32}} {
		m, k, n := c[0], c[1], c[2]
		rng := rand.New(rand.NewPCG(uint64(m), uint64(k)))
		x, w := make([]float32, m*k), make([]float32, (n+TileN-1)/TileN*TileN*k)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		for i := range w {
			w[i] = float32(rng.NormFloat64())
		}
		for _, s := range vectors(t) {
			y, want := guarded(t, make([]float32, m*n)), make([]float32, n)
			for i := range y {
				y[i] = float32(math.NaN()) // the first pass does not read it
			}
			s.MatMulF32(Rows(y, n), Rows(x, k), w, m, k, n)
			if s.PackRowsF32 != nil && m >= s.PackFrom {
				packed, rows := guarded(t, make([]float32, m*n)), make([]float32, m*k)
				for g := range PackGroups(m) {
					s.PackRowsF32(rows, Rows(x, k), m, k, g)
				}
				s.PackedF32(Rows(packed, n), rows, w, m, k, n)
				for i, v := range packed {
					if v != y[i] {
						t.Fatalf("%s %v: [%d,%d] is %v of packed rows, %v of others", s.Name, c, i/n, i%n, v, y[i])
					}
				}
			}
			for r := range m {
				s.MatMulF32(Rows(want, n), Rows(x[r*k:], k), w, 1, k, n)
				for j, v := range want {
					if got := y[r*n+j]; got != v {
						t.Fatalf("%s %v: [%d,%d] is %v, want %v", s.Name, c, r, j, got, v)
					}
				}
			}
		}
	}
}

// Products are the same whether a CPU's own prefetcher reads their weights or they ask for them.
func TestVecWithAndWithoutRequests(t *testing.T) {
	defer func(was bool) { zen4 = was }(zen4)
	const k, n = 208, 96
	codes, blocks := make([]uint8, (fastRows+1)*k), (k+BlockK-1)/BlockK
	sums := make([]int32, (fastRows+1)*blocks)
	random := newValues(plain, 3, nil)
	for i := range codes {
		codes[i] = random.code(1)
	}
	Portable().BlockSums(Rows(sums, blocks), Rows(codes, k), fastRows+1, k)
	x := Quantised{Codes: Rows(codes, k), Scale: []float32{1, 0.5, 2}, Sums: Rows(sums, blocks)}
	for _, set := range measuredSets() {
		for _, scheme := range []string{"q8c", "q6c"} {
			w, _ := tiledWeight(newValues(plain, 4, nil), scheme, k, n)
			for rows := 1; rows <= fastRows+1; rows++ {
				product := func(alone bool) []float32 {
					zen4 = alone
					y := make([]float32, rows*n)
					if scheme == "q8c" {
						set.MatMulQ8C(Rows(y, n), x, w, rows, k, n)
					} else {
						set.MatMulQ6C(Rows(y, n), x, w, rows, k, n)
					}
					return y
				}
				if !slices.Equal(product(true), product(false)) {
					t.Errorf("%s, %s, %d rows: the results differ", set.Name, scheme, rows)
				}
			}
		}
	}
}
