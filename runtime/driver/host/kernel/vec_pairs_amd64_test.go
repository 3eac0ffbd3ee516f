package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
)

// The GNU assembler makes the same bytes of the instructions on bfloat16.
func TestPairEncodings(t *testing.T) {
	var source []byte
	for _, file := range []string{"vec_avx512bf16_amd64.s", "vec_tiled_amd64.s", "vec_amx_amd64.s"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}

	instruction := regexp.MustCompile(`// (v.*)\n\s*LONG +\$0x(..)(..)(..)(..)\n\s*WORD +\$0x(..)(..)\n`)
	var texts []string
	var code [][]byte
	seen := map[string]bool{}
	for _, match := range instruction.FindAllStringSubmatch(string(source), -1) {
		if seen[match[0]] {
			continue
		}
		seen[match[0]] = true
		var bytes [6]byte
		for i, digits := range []string{match[5], match[4], match[3], match[2], match[7], match[6]} {
			if _, err := fmt.Sscanf(digits, "%x", &bytes[i]); err != nil {
				t.Fatal(err)
			}
		}
		texts, code = append(texts, match[1]), append(code, bytes[:])
	}
	if len(texts) < 100 {
		t.Fatalf("found %d different instructions", len(texts))
	}

	sameEncodings(t, texts, code)
}

// What lies in a cache where no row attends counts nothing, NaN neither: before the first position of a window, at
// either place of a pair, among the words of four positions, and behind the last position.
func TestAttentionLeavesOutTheRest(t *testing.T) {
	tested := false
	for _, set := range vectorSets() {
		if set.Name == pairSetName || set.Name == "amx" {
			leavesOutTheRest(t, set, "bf16")
		}
		if set.PackRows != nil {
			leavesOutTheRest(t, set, "q8")
			tested = true
		}
	}
	if !tested {
		t.Skip("this CPU lacks AVX512_VNNI")
	}
}

// leavesOutTheRest puts NaN where no row attends.
func leavesOutTheRest(t *testing.T, set *Set, form string) {
	t.Helper()
	for number, shape := range []Attention{
		{M: 1, Heads: 4, Dim: 64, Pos: 200, Window: 70},
		{M: 1, Heads: 8, Dim: 96, Pos: 201, Window: 70},
		{M: 1, Heads: 1, Dim: 80, Pos: 290, Window: 1},
		{M: 1, Heads: 7, Dim: 16, Pos: 291, Window: 2},
		{M: 2, Heads: 3, Dim: 64, Pos: 255, Window: 3},
		{M: 3, Heads: 2, Dim: 32, Pos: 256, Window: 128},
		{M: 9, Heads: 8, Dim: 64, Pos: 255, Window: 30},
		{M: 70, Heads: 1, Dim: 100, Pos: 256, Window: 31},
		{M: 70, Heads: 1, Dim: 33, Pos: 257, Window: 129},
		{M: 1, Heads: 4, Dim: 64, Pos: 700, Window: 600},
		{M: 5, Heads: 3, Dim: 64, Pos: 0},
		{M: 16, Heads: 2, Dim: 24, Pos: 128},
	} {
		rng := rand.New(rand.NewPCG(7, uint64(number)))
		shape.Scale = 0.125
		columns, rows := shape.Heads*shape.Dim, shape.context()+2
		q := normals(rng, shape.M*columns)
		k, v := make([]uint16, rows*shape.Dim), make([]uint16, rows*shape.Dim)
		for i := range k {
			k[i], v[i] = brainOf(float32(rng.NormFloat64())), brainOf(float32(rng.NormFloat64()))
		}
		k8, v8 := cachedQ8(normals(rng, len(k)), shape.Dim), cachedQ8(normals(rng, len(v)), shape.Dim)
		call := func() []float32 {
			y, scratch := make([]float32, shape.M*columns), make([]float32, AttentionScratch(shape.Heads, shape.Dim))
			for i := range scratch {
				scratch[i] = float32(math.NaN())
			}
			if form == "q8" {
				set.AttentionQ8(Rows(y, columns), Rows(q, columns), k8, v8, scratch, shape)
			} else {
				set.AttentionBF16(Rows(y, columns), Rows(q, columns), k, v, scratch, shape)
			}
			return y
		}

		want := call()
		for pos := range rows {
			if attended := pos >= shape.first(0) && pos < shape.context(); attended {
				continue
			}
			for i := range shape.Dim {
				const nan = 0x7fc0
				k[pos*shape.Dim+i], v[pos*shape.Dim+i] = nan, nan
			}
			pitch := shape.Dim + cachedScale
			for _, row := range [][]uint8{k8[pos*pitch : (pos+1)*pitch], v8[pos*pitch : (pos+1)*pitch]} {
				for i := range row { // as a scale, NaN
					row[i] = 0xff
				}
			}
		}
		got := call()

		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s over %s, %v: element %d is %v with NaN where no row attends, %v without", set.Name, form, shape,
					i, got[i], want[i])
			}
		}
	}
}
