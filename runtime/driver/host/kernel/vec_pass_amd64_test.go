package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A product that takes several passes over rows and k has the bits of its rows computed alone, in one pass. Packed rows
// have the same.
func TestVecPasses(t *testing.T) {
	for _, c := range []struct{ m, k, n int }{
		{m: 13, k: 3500, n: 33},
		{m: 150, k: 1800, n: 65},
		{m: 133, k: 2000, n: 31},
		{m: 264, k: 1500, n: 32},
	} {
		rng := rand.New(rand.NewPCG(uint64(c.m), uint64(c.k)))
		x := Rows(normals(rng, c.m*c.k), c.k)
		w := normals(rng, (c.n+TileN-1)/TileN*TileN*c.k)
		for _, s := range vectors(t) {
			together := guarded(t, make([]float32, c.m*c.n))
			for i := range together {
				together[i] = float32(math.NaN()) // the first pass does not read it
			}
			s.MatMulF32(Rows(together, c.n), x, w, c.m, c.k, c.n)

			alone := make([]float32, c.m*c.n)
			for row := range c.m {
				s.MatMulF32(Rows(alone, c.n).From(row, 0), x.From(row, 0), w, 1, c.k, c.n)
			}
			if !slices.Equal(together, alone) {
				t.Errorf("%s %+v: rows together and alone differ", s.Name, c)
			}

			if s.PackRowsF32 == nil || c.m < s.PackFrom {
				continue
			}
			packed, rows := guarded(t, make([]float32, c.m*c.n)), make([]float32, c.m*c.k)
			for group := range PackGroups(c.m) {
				s.PackRowsF32(rows, x, c.m, c.k, group)
			}
			s.PackedF32(Rows(packed, c.n), rows, w, c.m, c.k, c.n)
			if !slices.Equal(packed, alone) {
				t.Errorf("%s %+v: packed rows and others differ", s.Name, c)
			}
		}
	}
}

// Products are the same whether a CPU's own prefetcher reads their weights or they ask for them.
func TestVecWithAndWithoutRequests(t *testing.T) {
	defer func(was bool) { zen4 = was }(zen4)
	const most, k, n = fastRows + 1, 208, 96
	const blocks = (k + BlockK - 1) / BlockK
	codes := make([]uint8, most*k)
	random := newValues(plain, 3, nil)
	for i := range codes {
		codes[i] = random.code(1)
	}
	x := Quantised{
		Codes: Rows(codes, k),
		Scale: []float32{1, 0.5, 2},
		Sums:  Rows(make([]int32, most*blocks), blocks),
	}
	Portable().BlockSums(x.Sums, x.Codes, most, k)
	for _, set := range measuredSets() {
		products := map[string]func(y Matrix[float32], x Quantised, w []byte, m, k, n int){
			"q8c": set.MatMulQ8C,
			"q6c": set.MatMulQ6C,
		}
		for scheme, multiply := range products {
			w, _ := tiledWeight(newValues(plain, 4, nil), scheme, k, n)
			for rows := 1; rows <= most; rows++ {
				product := func(withoutRequests bool) []float32 {
					zen4 = withoutRequests
					y := make([]float32, rows*n)
					multiply(Rows(y, n), x, w, rows, k, n)
					return y
				}
				if !slices.Equal(product(true), product(false)) {
					t.Errorf("%s, %s, %d rows: the results differ", set.Name, scheme, rows)
				}
			}
		}
	}
}
