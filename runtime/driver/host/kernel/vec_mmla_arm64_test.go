package kernel

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"
)

// A set exists where its instructions do, and the one that was never timed is used only where it is named.
func TestARMSets(t *testing.T) {
	dots, matrices := cpu.ARM64.HasASIMDDP, cpu.ARM64.HasASIMDDP && cpu.ARM64.HasI8MM
	for name, want := range map[string]bool{"neon": dots, "i8mm": matrices} {
		set, err := ByName(name)
		if want && (err != nil || set.Name != name) {
			t.Errorf("%s: got %v, %v", name, set, err)
		}
		if !want && (err == nil || !strings.Contains(err.Error(), "not available on this machine")) {
			t.Errorf("%s on a CPU without its instructions: got error %v", name, err)
		}
	}

	best := "portable"
	if dots {
		best = "neon"
	}
	if got := Best().Name; got != best {
		t.Errorf("best set: got %q, want %q", got, best)
	}
}

// Products of pairs of rows are those of the portable set: for every number of rows of a call and of two calls, for
// columns that fill no tile, and for every remainder of k that a kernel has code for.
func TestMatrixProducts(t *testing.T) {
	sets := slices.DeleteFunc(vectorSets(), func(set *Set) bool { return set.Name != "i8mm" })
	if len(sets) == 0 {
		t.Skip("this CPU has no matrix products of bytes")
	}

	seed := uint64(0)
	for _, name := range []string{"MatMulQ8C", "MatMulQ4B32", "MatMulQ4B128"} {
		for m := 0; m <= 2*mmlaRows+1; m++ {
			for i, k := range []int{1, 4, 5, 8, 12, 31, 33, 64, 127, 160, 261} {
				seed++
				s := shape{
					m: m, k: k, n: []int{1, 32, 33, 64}[(m+i)%4],
					gapX: int(seed%4) * 5, gapY: int(seed%3) * 7, gapS: int(seed % 3),
				}
				x, w := newValues(uint8(m+i)%kinds, seed, nil), newValues(uint8(i)%kinds, seed+1<<32, nil)
				twinMatMul(t, sets, name, s, x, w, seed%2 == 0)
			}
		}
	}
}

// A row has the same bits alone, where SDOT multiplies it, and among others, where SMMLA does.
func TestMatrixProductsOfOneRow(t *testing.T) {
	set, err := ByName("i8mm")
	if err != nil {
		t.Skip(err)
	}
	const m, k, n = 9, 300, 70
	codes := make([]uint8, m*k)
	random := newValues(plain, 7, nil)
	for i := range codes {
		codes[i] = random.code(1)
	}
	blocks := (k + BlockK - 1) / BlockK
	x := Quantised{
		Codes: Rows(codes, k),
		Scale: []float32{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9},
		Sums:  Rows(make([]int32, m*blocks), blocks),
	}
	set.BlockSums(x.Sums, x.Codes, m, k)
	w8, _ := tiledWeight(newValues(plain, 8, nil), "q8c", k, n)
	w4, _ := tiledWeight(newValues(plain, 9, nil), "q4b32", k, n)
	products := map[string]func(y []float32, first, rows int){
		"q8c":   func(y []float32, first, rows int) { set.MatMulQ8C(Rows(y, n), x.From(first), w8, rows, k, n) },
		"q4b32": func(y []float32, first, rows int) { set.MatMulQ4B32(Rows(y, n), x.From(first), w4, rows, k, n) },
	}
	for name, multiply := range products {
		together, alone := make([]float32, m*n), make([]float32, m*n)

		multiply(together, 0, m)
		for row := range m {
			multiply(alone[row*n:], row, 1)
		}

		if !slices.Equal(together, alone) {
			t.Errorf("%s: rows together and alone differ", name)
		}
	}
}
