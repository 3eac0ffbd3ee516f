package kernel

import (
	"math"
	"math/rand/v2"
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
