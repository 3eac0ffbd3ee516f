package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// vectors are the sets under test; where there are none the tests say so.
func vectors(t testing.TB) []*Set {
	sets := vectorSets()
	if len(sets) == 0 {
		t.Skip("this machine has none of the vector instruction sets")
	}
	return sets
}

// guarded is a copy of v that ends at a page that must not be touched.
func guarded[T mem.Scalar](t testing.TB, v []T) []T {
	t.Helper()
	r, err := mem.Guarded(len(mem.Bytes(v)))
	if err != nil {
		t.Skipf("no guard pages here: %v", err)
	}
	t.Cleanup(func() { r.Close() })
	copy(r.Bytes(), mem.Bytes(v))
	return viewAs[T](t, r.Bytes())
}

// packed is a packed weight [k,n] that ends at a page that must not be touched.
func packed(t testing.TB, scheme string, w []float32, k, n int) []byte {
	t.Helper()
	return guarded(t, packWeight(t, scheme, w, k, n))
}

// matmul is one product with everything a kernel may read in guarded memory.
type matmul struct {
	m, k, n       int
	ldx, ldy, lds int // elements from one row to the next of activations, results and sums

	f32    []float32 // activations
	u8     []uint8   // activations in codes, with scales and sums
	xscale []float32
	sums   []int32

	w32                     []float32 // one weight in every scheme
	w16                     []uint16
	q8c, q6c, q4b32, q4b128 []byte
}

// floats are the activations in float32.
func (c *matmul) floats() Matrix[float32] { return Rows(c.f32, c.ldx) }

// quantised are the activations in 8 bits.
func (c *matmul) quantised() Quantised {
	return Quantised{Codes: Rows(c.u8, c.ldx), Scale: c.xscale, Sums: Rows(c.sums, c.lds)}
}

// packedRows are activations packed for weights in blocks, or 0.
func (c *matmul) packedRows(s *Set, block int) PackedRows {
	rows := make([]byte, PackedBytes(c.m, c.k, block))
	for group := range PackGroups(c.m) {
		s.PackRows(rows, Rows(c.u8, c.ldx), c.m, c.k, block, group)
	}
	return PackedRows{Bytes: rows, Scale: c.xscale, M: c.m, K: c.k}
}

// newMatmul has random operands. The last row of each ends where its memory ends.
func newMatmul(t testing.TB, m, k, n int, seed uint64) *matmul {
	rng := rand.New(rand.NewPCG(seed, 1))
	blocks := (k + BlockK - 1) / BlockK
	c := &matmul{
		m: m, k: k, n: n,
		ldx: k + int(seed%3)*5,
		ldy: n + int(seed%4)*3,
		lds: blocks + int(seed%2),
	}

	size := (m-1)*c.ldx + k
	x, u := make([]float32, size), make([]uint8, size)
	for i := range x {
		x[i], u[i] = float32(rng.NormFloat64()), uint8(rng.IntN(256))
	}
	scale := make([]float32, m)
	for r := range scale {
		scale[r] = float32(rng.Float64()) * 0.1
	}
	sums := make([]int32, (m-1)*c.lds+blocks)
	blockSums(Rows(sums, c.lds), Rows(u, c.ldx), m, k)
	c.f32, c.u8, c.xscale, c.sums = guarded(t, x), guarded(t, u), guarded(t, scale), guarded(t, sums)

	w := make([]float32, k*n)
	for i := range w {
		w[i] = float32(rng.NormFloat64()) * 0.02
	}
	c.w32 = viewAs[float32](t, packed(t, "w32", w, k, n))
	c.w16 = viewAs[uint16](t, packed(t, "w16", w, k, n))
	c.q8c, c.q6c = packed(t, "q8c", w, k, n), packed(t, "q6c", w, k, n)
	c.q4b32, c.q4b128 = packed(t, "q4b32", w, k, n), packed(t, "q4b128", w, k, n)
	return c
}

// Sums of products that pass 2^31 on the way come out right, because they wrap and come back.
func TestVecLongSums(t *testing.T) {
	const k, n, most = 70000, 5, packFrom
	w := packed(t, "q8c", slices.Repeat([]float32{127}, k*n), k, n)
	codes := Rows(slices.Repeat([]uint8{255}, most*k), k)
	scale := slices.Repeat([]float32{1}, most)
	check := func(what string, y []float32) {
		t.Helper()
		for i, v := range y {
			if v != 127*127*k {
				t.Fatalf("%s: element %d is %v, want %d", what, i, v, 127*127*k)
			}
		}
	}
	for _, s := range vectors(t) {
		for _, m := range []int{1, 13} {
			y := make([]float32, m*n)
			s.MatMulQ8C(Rows(y, n), Quantised{Codes: codes, Scale: scale}, w, m, k, n)
			check(fmt.Sprintf("%s, %d rows", s.Name, m), y)
		}
		if s.PackRows == nil {
			continue
		}
		y, rows := make([]float32, most*n), make([]byte, PackedBytes(most, k, 0))
		for group := range PackGroups(most) {
			s.PackRows(rows, codes, most, k, 0, group)
		}
		packed := PackedRows{Bytes: rows, Scale: scale, M: most, K: k}
		s.PackedQ8C(Rows(y, n), packed, w, make([]byte, PackedScratch(k, 0)), n)
		check(s.Name+", packed rows", y)
	}
}

// No function of a set allocates memory.
func TestVecAllocates(t *testing.T) {
	for _, s := range vectors(t) {
		calls := map[string]func(){
			"products":            productCalls(t, s),
			"attention":           attentionCalls(s),
			"functions on rows":   rowCalls(t, s),
			"products after pack": packedCalls(t, s),
		}
		for what, call := range calls {
			if n := testing.AllocsPerRun(10, call); n != 0 {
				t.Errorf("%s, %s: %v allocations", s.Name, what, n)
			}
		}
	}
}

// productCalls multiplies in every scheme.
func productCalls(t *testing.T, s *Set) func() {
	c := newMatmul(t, 9, 167, 70, 3)
	y := Rows(make([]float32, c.m*c.ldy), c.ldy)
	return func() {
		s.MatMulF32(y, c.floats(), c.w32, c.m, c.k, c.n)
		s.MatMulBF16(y, c.floats(), c.w16, c.m, c.k, c.n)
		s.MatMulQ8C(y, c.quantised(), c.q8c, c.m, c.k, c.n)
		s.MatMulQ6C(y, c.quantised(), c.q6c, c.m, c.k, c.n)
		s.MatMulQ4B32(y, c.quantised(), c.q4b32, c.m, c.k, c.n)
		s.MatMulQ4B128(y, c.quantised(), c.q4b128, c.m, c.k, c.n)
	}
}

// packedCalls packs rows and multiplies them in every scheme, where the set can.
func packedCalls(t *testing.T, s *Set) func() {
	c := newMatmul(t, packFrom, 167, 70, 4)
	y := Rows(make([]float32, c.m*c.ldy), c.ldy)
	floats := make([]float32, c.m*c.k)
	blocks := [3]int{0, BlockK, pack.Block128}
	var rows [3]PackedRows
	var scratch [3][]byte
	for i, block := range blocks {
		rows[i] = PackedRows{Bytes: make([]byte, PackedBytes(c.m, c.k, block)), Scale: c.xscale, M: c.m, K: c.k}
		scratch[i] = make([]byte, PackedScratch(c.k, block))
	}
	requant := make([]byte, RequantScratch(c.k))
	return func() {
		if s.PackRowsF32 != nil {
			s.PackRowsF32(floats, c.floats(), c.m, c.k, 1)
			s.PackedF32(y, floats, c.w32, c.m, c.k, c.n)
			s.PackedBF16(y, floats, c.w16, c.m, c.k, c.n)
		}
		if s.PackRows != nil {
			for i, block := range blocks {
				s.PackRows(rows[i].Bytes, Rows(c.u8, c.ldx), c.m, c.k, block, 1)
			}
			s.PackedQ8C(y, rows[0], c.q8c, scratch[0], c.n)
			s.PackedRequant(y, rows[0], c.q4b32, requant, c.n)
			s.PackedQ4B32(y, rows[1], c.q4b32, scratch[1], c.n)
			s.PackedQ4B128(y, rows[2], c.q4b128, scratch[2], c.n)
		}
	}
}

// attentionCalls attends over every type of cache.
func attentionCalls(s *Set) func() {
	const heads, dim, pos = 4, 64, 130
	a := Attention{M: 5, Heads: heads, Dim: dim, Pos: pos, Window: 40, Scale: 0.1, Cap: 20}
	y := Rows(make([]float32, a.M*heads*dim), heads*dim)
	kv, kv16 := make([]float32, (pos+a.M)*dim), make([]uint16, (pos+a.M)*dim)
	kv8 := cachedQ8(kv, dim)
	scratch := make([]float32, AttentionScratch(heads, dim))
	return func() {
		s.AttentionF32(y, y, kv, kv, scratch, a)
		s.AttentionF16(y, y, kv16, kv16, scratch, a)
		s.AttentionBF16(y, y, kv16, kv16, scratch, a)
		s.StoreQ8(kv8[:dim+cachedScale], kv[:dim], scratch)
		s.AttentionQ8(y, y, kv8, kv8, scratch, a)
	}
}

// rowCalls calls functions on rows.
func rowCalls(t *testing.T, s *Set) func() {
	const m, n = 5, 64
	c := newMatmul(t, 9, 167, 70, 3)
	x, pairs := Rows(make([]float32, m*2*n), n), Rows(make([]float32, m*2*n), 2*n)
	gain := make([]float32, m*n)
	halves := make([]uint16, m*n)
	return func() {
		s.QuantRows(c.quantised(), c.floats(), c.m, c.k)
		s.Norm(x, x, gain, 1e-5, m, n)
		s.LayerNorm(x, x, gain, gain, 1e-5, m, n)
		s.GLU(x, pairs, op.SiLU, 16, m, n)
		s.GLU(x, pairs, op.GELUTanh, 16, m, n)
		s.Activate(x, x, op.GELU, m, n)
		s.Combine(x, Rows(gain, n), Rows(gain, 4), 1, 4, n)
		s.ToBF16(halves, gain)
	}
}

// Attention gives a row the same bits in one call for a whole prompt, in chunks, and token by token.
func TestVecAttentionChunks(t *testing.T) {
	require.Slow(t)
	const dim, rows = 64, 150
	for _, heads := range []int{1, 3, 8, 13} {
		rng := rand.New(rand.NewPCG(3, uint64(heads)))
		ld := heads * dim
		q, k, v := normals(rng, rows*ld), normals(rng, rows*dim), normals(rng, rows*dim)
		k16, v16 := make([]uint16, len(k)), make([]uint16, len(v))
		toF16(k16, k)
		toF16(v16, v)
		kb, vb := make([]uint16, len(k)), make([]uint16, len(v))
		toBF16(kb, k)
		toBF16(vb, v)
		scratch := make([]float32, AttentionScratch(heads, dim))
		for i, s := range append(vectors(t), Portable(), Reference(), vectors(t)[0]) {
			shape := []Attention{{}, {Window: 20}, {Window: 135, Cap: 3}}[i%3]
			shape.Heads, shape.Dim, shape.Scale = heads, dim, 0.125
			for _, form := range []string{"f32", "f16", "bf16"} {
				inChunks := func(chunk int) []float32 {
					y := make([]float32, len(q))
					for first := 0; first < rows; first += chunk {
						a := shape
						a.M, a.Pos = min(chunk, rows-first), first
						end := (first + a.M) * dim
						part, queries := Rows(y[first*ld:], ld), Rows(q[first*ld:], ld)
						switch form {
						case "f16":
							s.AttentionF16(part, queries, k16[:end], v16[:end], scratch, a)
						case "bf16":
							s.AttentionBF16(part, queries, kb[:end], vb[:end], scratch, a)
						default:
							s.AttentionF32(part, queries, k[:end], v[:end], scratch, a)
						}
					}
					return y
				}

				whole := inChunks(rows)
				for _, chunk := range []int{1, 5, 64} {
					for i, got := range inChunks(chunk) {
						if got != whole[i] {
							what := fmt.Sprintf("%s heads %d %s", s.Name, heads, form)
							t.Fatalf("%s: element %d is %v in chunks of %d, %v else", what, i, got, chunk, whole[i])
						}
					}
				}
			}
		}
	}
}

// GLU's gates are right over the whole range of its exponential and at its ends: for a factor of 1 it is g/(1+e^-g).
func TestVecSilu(t *testing.T) {
	inf := float32(math.Inf(1))
	gates := []float32{-inf, inf, float32(math.NaN()), 0, 87.33654, 87.33655, -88.72283, -88.72284, 1e30, -1e30, 1e-40,
		-1e-40}
	for g := float32(-110); g < 110; g += 0.0137 {
		gates = append(gates, g)
	}
	for len(gates)%16 != 0 {
		gates = append(gates, 1)
	}
	n := len(gates)
	x := make([]float32, 2*n)
	for i, g := range gates {
		at := i/16*32 + i%16
		x[at], x[at+16] = g, 1
	}
	want := make([]float32, n)
	Portable().GLU(Rows(want, n), Rows(x, 2*n), op.SiLU, 16, 1, n)
	for _, s := range vectors(t) {
		got := make([]float32, n)

		s.GLU(Rows(got, n), Rows(x, 2*n), op.SiLU, 16, 1, n)

		for i, g := range gates {
			bothNaN := got[i] != got[i] && want[i] != want[i]
			if got[i] == want[i] || bothNaN {
				continue
			}
			allowed := 4 * math.Abs(float64(want[i])) / (1 << 23)
			if !(math.Abs(float64(got[i])-float64(want[i])) <= allowed) {
				t.Fatalf("%s: silu(%v) = %v, want %v", s.Name, g, got[i], want[i])
			}
		}
	}
}

// All tiers give the same bits: registers of 512 bits take the steps of those of 256.
func TestVecGLUBits(t *testing.T) {
	special := []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0, 87.33654, 87.33655,
		-87.33654, -87.33655, 88.72283, 88.72284, -88.72283, -88.72284, 1e30, -1e30, 1e-40, -1e-40}
	rng := rand.New(rand.NewPCG(7, 11))
	const interleave, n = 48, 48 * 40
	x := make([]float32, 2*n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * []float64{0.1, 2, 30}[i%3])
		if i%5 == 0 {
			x[i] = special[rng.IntN(len(special))]
		}
	}
	for _, act := range op.Acts {
		want := make([]float32, n)
		avx2.set().GLU(Rows(want, n), Rows(x, 2*n), act, interleave, 1, n)
		for _, s := range vectors(t) {
			got := make([]float32, n)

			s.GLU(Rows(got, n), Rows(x, 2*n), act, interleave, 1, n)

			for i := range got {
				if differs(got[i], want[i], 0, 0) {
					t.Fatalf("%s %s: element %d is %v, %v with avx2", s.Name, act, i, got[i], want[i])
				}
			}
		}
	}
}

// Arguments that are too short panic: they are our own bug, but must not reach the assembly.
func TestVecShortArguments(t *testing.T) {
	for _, s := range vectors(t) {
		calls := shortProducts(t, s)
		if s.PackRowsF32 != nil {
			maps.Copy(calls, shortPackedFloats(t, s))
		}
		if s.PackRows != nil {
			maps.Copy(calls, shortPackedCodes(t, s))
		}
		for what, call := range calls {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: %s are accepted", s.Name, what)
					}
				}()
				call()
			}()
		}
	}
}

// shortProducts are products whose operands lack an element.
func shortProducts(t *testing.T, s *Set) map[string]func() {
	c := newMatmul(t, 3, 64, 64, 4)
	y := Rows(make([]float32, c.m*c.ldy), c.ldy)
	shortY := Rows(y.Data[:2*c.ldy], c.ldy)
	x := c.quantised()
	shortCodes, shortScale, shortSums := x, x, x
	shortCodes.Codes.Data = c.u8[1:]
	shortScale.Scale = c.xscale[1:]
	shortSums.Sums.Data = c.sums[1:]
	return map[string]func(){
		"f32, results":                     func() { s.MatMulF32(shortY, c.floats(), c.w32, c.m, c.k, c.n) },
		"f32, weights":                     func() { s.MatMulF32(y, c.floats(), c.w32[1:], c.m, c.k, c.n) },
		"bf16, weights":                    func() { s.MatMulBF16(y, c.floats(), c.w16[1:], c.m, c.k, c.n) },
		"8 bits, codes":                    func() { s.MatMulQ8C(y, shortCodes, c.q8c, c.m, c.k, c.n) },
		"8 bits, scales":                   func() { s.MatMulQ8C(y, shortScale, c.q8c, c.m, c.k, c.n) },
		"6 bits, codes":                    func() { s.MatMulQ6C(y, shortCodes, c.q6c, c.m, c.k, c.n) },
		"6 bits, sums":                     func() { s.MatMulQ6C(y, shortSums, c.q6c, c.m, c.k, c.n) },
		"6 bits, weights":                  func() { s.MatMulQ6C(y, x, c.q6c[1:], c.m, c.k, c.n) },
		"4 bits in blocks of 32, weights":  func() { s.MatMulQ4B32(y, x, c.q4b32[1:], c.m, c.k, c.n) },
		"4 bits in blocks of 128, weights": func() { s.MatMulQ4B128(y, x, c.q4b128[1:], c.m, c.k, c.n) },
		"4 bits in blocks of 128, sums":    func() { s.MatMulQ4B128(y, shortSums, c.q4b128, c.m, c.k, c.n) },
	}
}

// shortPackedFloats are products of packed float32 rows whose operands lack an element.
func shortPackedFloats(t *testing.T, s *Set) map[string]func() {
	c := newMatmul(t, packFrom, 64, 64, 5)
	y, rows := Rows(make([]float32, (c.m-1)*c.ldy+c.n), c.ldy), make([]float32, c.m*c.k)
	shortY, shortX := Rows(y.Data[1:], c.ldy), Rows(c.f32[1:], c.ldx)
	return map[string]func(){
		"packed f32, places for rows": func() { s.PackRowsF32(rows[1:], c.floats(), c.m, c.k, 1) },
		"packed f32, activations":     func() { s.PackRowsF32(rows, shortX, c.m, c.k, 1) },
		"packed f32, results":         func() { s.PackedF32(shortY, rows, c.w32, c.m, c.k, c.n) },
		"packed f32, rows":            func() { s.PackedF32(y, rows[1:], c.w32, c.m, c.k, c.n) },
		"packed f32, weights":         func() { s.PackedF32(y, rows, c.w32[1:], c.m, c.k, c.n) },
		"packed bf16, weights":        func() { s.PackedBF16(y, rows, c.w16[1:], c.m, c.k, c.n) },
	}
}

// shortPackedCodes are products of packed rows of codes whose operands lack an element.
func shortPackedCodes(t *testing.T, s *Set) map[string]func() {
	c := newMatmul(t, packFrom, 64, 64, 5)
	y := Rows(make([]float32, (c.m-1)*c.ldy+c.n), c.ldy)
	shortY := Rows(y.Data[1:], c.ldy)
	shortCodes := Rows(c.u8[:(c.m-1)*c.ldx+c.k-1], c.ldx)

	x, scratch := c.packedRows(s, 0), make([]byte, PackedScratch(c.k, 0))
	requant := make([]byte, RequantScratch(c.k))
	shortRows, shortScale, fewRows := x, x, x
	shortRows.Bytes = x.Bytes[1:]
	shortScale.Scale = c.xscale[1:]
	fewRows.M = packFrom - 1

	x4, scratch4 := c.packedRows(s, BlockK), make([]byte, PackedScratch(c.k, BlockK))
	shortRows4 := x4
	shortRows4.Bytes = x4.Bytes[1:]
	shortScratch4 := scratch4[:len(scratch4)-1]
	return map[string]func(){
		"packed codes, places for rows": func() { s.PackRows(x.Bytes[1:], Rows(c.u8, c.ldx), c.m, c.k, 0, 1) },
		"packed codes, activations":     func() { s.PackRows(x.Bytes, shortCodes, c.m, c.k, 0, 1) },
		"packed 8 bits, results":        func() { s.PackedQ8C(shortY, x, c.q8c, scratch, c.n) },
		"packed 8 bits, rows":           func() { s.PackedQ8C(y, shortRows, c.q8c, scratch, c.n) },
		"packed 8 bits, scales":         func() { s.PackedQ8C(y, shortScale, c.q8c, scratch, c.n) },
		"packed 8 bits, weights":        func() { s.PackedQ8C(y, x, c.q8c[1:], scratch, c.n) },
		"packed 8 bits, scratch":        func() { s.PackedQ8C(y, x, c.q8c, scratch[1:], c.n) },
		"packed 8 bits, fewer rows":     func() { s.PackedQ8C(y, fewRows, c.q8c, scratch, c.n) },
		"packed requant, results":       func() { s.PackedRequant(shortY, x, c.q4b32, requant, c.n) },
		"packed requant, rows":          func() { s.PackedRequant(y, shortRows, c.q4b32, requant, c.n) },
		"packed requant, weights":       func() { s.PackedRequant(y, x, c.q4b32[1:], requant, c.n) },
		"packed requant, scratch":       func() { s.PackedRequant(y, x, c.q4b32, requant[1:], c.n) },
		"requant, weights":              func() { s.RequantQ4B32(requant, c.q4b32[:len(c.q4b32)/2-1], c.k) },
		"requant, tile":                 func() { s.RequantQ4B32(requant[:RequantBytes(c.k)-1], c.q4b32, c.k) },
		"packed 4 bits, results":        func() { s.PackedQ4B32(shortY, x4, c.q4b32, scratch4, c.n) },
		"packed 4 bits, rows":           func() { s.PackedQ4B32(y, shortRows4, c.q4b32, scratch4, c.n) },
		"packed 4 bits, weights":        func() { s.PackedQ4B32(y, x4, c.q4b32[1:], scratch4, c.n) },
		"packed 4 bits, scratch":        func() { s.PackedQ4B32(y, x4, c.q4b32, shortScratch4, c.n) },
	}
}

// The committed assembly is what the generator writes.
func TestVecGenerated(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	gen := buildGenerator(t, dir)
	files := map[string]string{ // by the tier that the generator is asked for
		"avx2":       "vec_avx2_amd64",
		"avxvnni":    "vec_avxvnni_amd64",
		"avx512":     "vec_avx512_amd64",
		"packed":     "vec_packed512_amd64",
		"streams":    "vec_streams512_amd64",
		"avx512bf16": "vec_avx512bf16_amd64",
		"attention":  "vec_heads_amd64",
		"amx":        "vec_amx_amd64",
		"tiled":      "vec_tiled_amd64",
		"peak":       "vec_peak_amd64",
		"neon":       "vec_neon_arm64",
	}
	for tier, name := range files {
		assembly, stubs := filepath.Join(dir, name+".s"), filepath.Join(dir, name+".go")
		generate := exec.Command(gen, "-tier", tier, "-out", assembly, "-stubs", stubs, "-pkg", "kernel")
		if out, err := generate.CombinedOutput(); err != nil {
			t.Fatalf("generate %s: %v\n%s", tier, err, out)
		}
		for _, made := range []string{assembly, stubs} {
			committed := filepath.Base(made)
			if !bytes.Equal(withoutFirstLine(t, committed), withoutFirstLine(t, made)) {
				t.Errorf("%s is stale: run go generate", committed)
			}
		}
	}
}

// withoutFirstLine reads a generated file without its first line, which names the command with its paths.
func withoutFirstLine(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(text, []byte("\n"))
	return rest
}

// buildGenerator builds the generator of assembly, or skips the test where its modules are missing.
func buildGenerator(t *testing.T, dir string) string {
	t.Helper()
	gen := filepath.Join(dir, "gen")
	build := exec.Command("go", "build", "-o", gen, ".")
	build.Dir = "gen"
	build.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "GOPROXY=off", "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err == nil {
		return gen
	}
	if strings.Contains(string(out), "GOPROXY=off") || errors.Is(err, exec.ErrNotFound) {
		t.Skipf("the generator's modules are not in this machine's module cache: %s", out)
	}
	t.Fatalf("build the generator: %v\n%s", err, out)
	return ""
}

// BenchmarkVec is what products of every set reach, with weights that lie in no cache for up to 32 rows.
func BenchmarkVec(b *testing.B) {
	const k, n = 2048, 2048
	rng := rand.New(rand.NewPCG(1, 2))
	w := normals(rng, k*n)
	for _, scheme := range []string{"q8c", "q6c", "q4b32", "q4b128", "w16", "w32"} {
		one := packed(b, scheme, w, k, n)
		for _, m := range []int{1, 2, 4, 6, 8, 12, 13, 16, 24, 32, 64, 256} {
			copies := 1
			if m <= 32 {
				copies = 512<<20/len(one) + 1 // more than the last-level cache holds
			}
			region := repeated(b, one, copies)
			x, codes, y := benchmarkRows(rng, m, k), benchmarkCodes(rng, m, k), Rows(make([]float32, m*n), n)
			for _, s := range vectorSets() {
				multiply := map[string]func(w []byte){
					"q8c":    func(w []byte) { s.MatMulQ8C(y, codes, w, m, k, n) },
					"q6c":    func(w []byte) { s.MatMulQ6C(y, codes, w, m, k, n) },
					"q4b32":  func(w []byte) { s.MatMulQ4B32(y, codes, w, m, k, n) },
					"q4b128": func(w []byte) { s.MatMulQ4B128(y, codes, w, m, k, n) },
					"w16":    func(w []byte) { s.MatMulBF16(y, x, viewAs[uint16](b, w), m, k, n) },
					"w32":    func(w []byte) { s.MatMulF32(y, x, viewAs[float32](b, w), m, k, n) },
				}[scheme]
				b.Run(fmt.Sprintf("%s/m=%d/%s", scheme, m, s.Name), func(b *testing.B) {
					for i := 0; b.Loop(); i++ {
						multiply(region.Bytes()[i%copies*len(one):][:len(one)])
					}
					seconds := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(2*float64(m)*k*n/seconds/1e9, "GOP/s")
					b.ReportMetric(float64(len(one))/seconds/1e9, "GB/s")
					b.ReportMetric(0, "ns/op")
				})
			}
			region.Close()
		}
	}
}

// repeated is memory with so many copies of a weight, one behind the other.
func repeated(b *testing.B, weight []byte, copies int) *mem.Region {
	b.Helper()
	region, err := mem.Alloc(copies*len(weight), 1<<21)
	if err != nil {
		b.Fatal(err)
	}
	_ = region.Advise(0, len(region.Bytes()), mem.HugePages)
	for i := range copies {
		copy(region.Bytes()[i*len(weight):], weight)
	}
	return region
}

// benchmarkRows are activations [m,k] in float32.
func benchmarkRows(rng *rand.Rand, m, k int) Matrix[float32] { return Rows(normals(rng, m*k), k) }

// benchmarkCodes are activations [m,k] in codes.
func benchmarkCodes(rng *rand.Rand, m, k int) Quantised {
	codes := make([]uint8, m*k)
	for i := range codes {
		codes[i] = uint8(1 + rng.IntN(255))
	}
	sums := make([]int32, m*k/BlockK)
	blockSums(Rows(sums, k/BlockK), Rows(codes, k), m, k)
	return Quantised{Codes: Rows(codes, k), Scale: make([]float32, m), Sums: Rows(sums, k/BlockK)}
}

// BenchmarkVecRows is what functions on rows reach with the best set.
func BenchmarkVecRows(b *testing.B) {
	const m, n = 64, 2048
	sets := vectorSets()
	if len(sets) == 0 {
		b.Skip("this machine has none of the vector instruction sets")
	}
	s := sets[0]
	x, y, gain := make([]float32, m*2*n), make([]float32, m*n), make([]float32, n)
	for i := range x {
		x[i] = float32(i%1000)/500 - 1
	}
	// A rotation by nothing, so that repeating it stays among normal numbers.
	cos, sin := slices.Repeat([]float32{1}, m*32), make([]float32, m*32)
	codes, scale, half := make([]uint8, m*n), make([]float32, m), make([]uint16, m*n)
	sums := make([]int32, m*n/BlockK)
	rows, pairs, out := Rows(x, n), Rows(x, 2*n), Rows(y, n)
	for _, c := range []struct {
		name string
		call func()
	}{
		{"quant", func() { s.QuantRows(Quantised{Codes: Rows(codes, n), Scale: scale}, rows, m, n) }},
		{"norm", func() { s.Norm(out, rows, gain, 1e-5, m, n) }},
		{"silu", func() { s.GLU(out, pairs, op.SiLU, 16, m, n) }},
		{"gelu_tanh", func() { s.GLU(out, pairs, op.GELUTanh, 16, m, n) }},
		{"gelu_tanh wide", func() { s.GLU(out, pairs, op.GELUTanh, n, m, n) }},
		{"gelu", func() { s.Activate(out, rows, op.GELU, m, n) }},
		{"softcap", func() { s.Softcap(out, rows, 30, m, n) }},
		{"layer_norm", func() { s.LayerNorm(out, rows, gain, gain, 1e-5, m, n) }},
		{"combine 8", func() { s.Combine(out, rows, Rows(x, 8), m/8, 8, n) }},
		{"add", func() { s.Add(out, rows, rows, m, n) }},
		{"rope", func() { s.Rope(out, cos, sin, m, n/64, 64, 64) }},
		{"sums", func() { s.BlockSums(Rows(sums, n/BlockK), Rows(codes, n), m, n) }},
		{"tof16", func() { s.ToF16(half, y) }},
		{"fromf16", func() { s.FromF16(y, half) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.call()
			}
			b.ReportMetric(float64(m*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkVecAttention is what attention reaches over caches of float32 and float16.
func BenchmarkVecAttention(b *testing.B) {
	const context, dim = 1024, 64
	kv, kv16 := make([]float32, context*dim), make([]uint16, context*dim)
	for i := range kv {
		kv[i] = float32(i%13) / 13
	}
	toF16(kv16, kv)
	for _, s := range append([]*Set{Portable()}, vectorSets()...) {
		for _, c := range []struct{ m, heads int }{{1, 1}, {1, 8}, {8, 1}, {8, 4}, {8, 8}} {
			scratch := make([]float32, AttentionScratch(c.heads, dim))
			q := Rows(make([]float32, c.m*c.heads*dim), c.heads*dim)
			y := Rows(make([]float32, c.m*c.heads*dim), c.heads*dim)
			a := Attention{M: c.m, Heads: c.heads, Dim: dim, Pos: context - c.m, Scale: 0.125}
			for _, half := range []bool{false, true} {
				b.Run(fmt.Sprintf("m=%d/heads=%d/f16=%v/%s", c.m, c.heads, half, s.Name), func(b *testing.B) {
					for b.Loop() {
						if half {
							s.AttentionF16(y, q, kv16, kv16, scratch, a)
						} else {
							s.AttentionF32(y, q, kv, kv, scratch, a)
						}
					}
					work := 4 * float64(c.m*c.heads*context*dim)
					b.ReportMetric(work*float64(b.N)/b.Elapsed().Seconds()/1e9, "GF/s")
				})
			}
		}
	}
}
