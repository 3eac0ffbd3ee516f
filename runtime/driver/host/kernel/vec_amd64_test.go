package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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
	g, err := mem.View[T](r.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func packed(t testing.TB, scheme string, w []float32, k, n int) []byte {
	t.Helper()
	spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: pack.N32}
	size, err := pack.Bytes(spec)
	if err != nil {
		t.Fatal(err)
	}
	src, err := pack.Floats(w, k, n)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if err := pack.Pack(b, spec, src); err != nil {
		t.Fatal(err)
	}
	return guarded(t, b)
}

// matmul is one product with everything a kernel may read in guarded memory.
type matmul struct {
	m, k, n       int
	ldx, ldy, lds int
	f32           []float32 // activations
	u8            []uint8
	xscale        []float32
	sums          []int32
	w32           []float32
	w16           []uint16
	q8c           []byte
	q4b32, q4b128 []byte
	q6c           []byte
}

// quantised returns the activations in 8 bits.
func (c *matmul) quantised() Quantised {
	return Quantised{Codes: Rows(c.u8, c.ldx), Scale: c.xscale, Sums: Rows(c.sums, c.lds)}
}

func newMatmul(t testing.TB, m, k, n int, seed uint64) *matmul {
	rng := rand.New(rand.NewPCG(seed, 1))
	c := &matmul{m: m, k: k, n: n, ldx: k + int(seed%3)*5, ldy: n + int(seed%4)*3}
	blocks := (k + BlockK - 1) / BlockK
	c.lds = blocks + int(seed%2)
	// The last row ends where the memory ends.
	nx := (m-1)*c.ldx + k
	x, u := make([]float32, nx), make([]uint8, nx)
	for i := range x {
		x[i], u[i] = float32(rng.NormFloat64()), uint8(rng.IntN(256))
	}
	w := make([]float32, k*n)
	for i := range w {
		w[i] = float32(rng.NormFloat64()) * 0.02
	}
	scale := make([]float32, m)
	for r := range scale {
		scale[r] = float32(rng.Float64()) * 0.1
	}
	c.f32, c.u8, c.xscale = guarded(t, x), guarded(t, u), guarded(t, scale)
	sums := make([]int32, (m-1)*c.lds+blocks)
	blockSums(Rows(sums, c.lds), Rows(u, c.ldx), m, k)
	c.sums = guarded(t, sums)
	var err error
	if c.w32, err = mem.View[float32](packed(t, "w32", w, k, n)); err != nil {
		t.Fatal(err)
	}
	if c.w16, err = mem.View[uint16](packed(t, "w16", w, k, n)); err != nil {
		t.Fatal(err)
	}
	c.q8c, c.q4b32, c.q4b128 = packed(t, "q8c", w, k, n), packed(t, "q4b32", w, k, n), packed(t, "q4b128", w, k, n)
	c.q6c = packed(t, "q6c", w, k, n)
	return c
}

// Sums of products that pass 2^31 on the way come out right, because they wrap and come back.
func TestVecLongSums(t *testing.T) {
	const k, n, most = 70000, 5, packFrom
	w, u := make([]float32, k*n), make([]uint8, most*k)
	for i := range w {
		w[i] = 127
	}
	for i := range u {
		u[i] = 255
	}
	b := packed(t, "q8c", w, k, n)
	scale := make([]float32, most)
	for i := range scale {
		scale[i] = 1
	}
	for _, s := range vectors(t) {
		for _, m := range []int{1, 13} {
			y := make([]float32, m*n)
			s.MatMulQ8C(Rows(y, n), Quantised{Codes: Rows(u, k), Scale: scale}, b, m, k, n)
			for i, v := range y {
				if v != 127*127*k {
					t.Fatalf("%s, %d rows: y[%d] = %v, want %d", s.Name, m, i, v, 127*127*k)
				}
			}
		}
		if s.PackRows == nil {
			continue
		}
		y, rows := make([]float32, most*n), make([]byte, PackedBytes(most, k, 0))
		for g := range PackGroups(most) {
			s.PackRows(rows, Rows(u, k), most, k, 0, g)
		}
		s.PackedQ8C(Rows(y, n), PackedRows{Bytes: rows, Scale: scale, M: most, K: k}, b,
			make([]byte, PackedScratch(k, 0)), n)
		for i, v := range y {
			if v != 127*127*k {
				t.Fatalf("%s, packed rows: y[%d] = %v, want %d", s.Name, i, v, 127*127*k)
			}
		}
	}
}

func TestVecAllocates(t *testing.T) {
	for _, s := range vectors(t) {
		c := newMatmul(t, 9, 167, 70, 3)
		y := make([]float32, c.m*c.ldy)
		const heads, dim, pos = 4, 64, 130
		att := make([]float32, 5*heads*dim)
		kv, kv16 := make([]float32, (pos+5)*dim), make([]uint16, (pos+5)*dim)
		kv8 := cachedQ8(kv, dim)
		scratch := make([]float32, AttentionScratch(heads, dim))
		p := newMatmul(t, packFrom, 167, 70, 4)
		yp := make([]float32, p.m*p.ldy)
		floats := make([]float32, p.m*p.k)
		var rows [3][]byte
		for i, block := range []int{0, BlockK, pack.Block128} {
			rows[i] = make([]byte, PackedBytes(p.m, p.k, block))
		}
		work := make([]byte, max(PackedScratch(p.k, 0), PackedScratch(p.k, BlockK), PackedScratch(p.k, pack.Block128)))
		if n := testing.AllocsPerRun(10, func() {
			if s.PackRowsF32 != nil {
				s.PackRowsF32(floats, Rows(p.f32, p.ldx), p.m, p.k, 1)
				s.PackedF32(Rows(yp, p.ldy), floats, p.w32, p.m, p.k, p.n)
				s.PackedBF16(Rows(yp, p.ldy), floats, p.w16, p.m, p.k, p.n)
			}
			if s.PackRows != nil {
				for i, block := range []int{0, BlockK, pack.Block128} {
					s.PackRows(rows[i], Rows(p.u8, p.ldx), p.m, p.k, block, 1)
				}
				s.PackedQ8C(Rows(yp, p.ldy), PackedRows{Bytes: rows[0], Scale: p.xscale, M: p.m, K: p.k}, p.q8c, work,
					p.n)
				s.PackedQ4B32(Rows(yp, p.ldy), PackedRows{Bytes: rows[1], Scale: p.xscale, M: p.m, K: p.k}, p.q4b32,
					work, p.n)
				s.PackedQ4B128(Rows(yp, p.ldy), PackedRows{Bytes: rows[2], Scale: p.xscale, M: p.m, K: p.k}, p.q4b128,
					work, p.n)
			}
			s.MatMulF32(Rows(y, c.ldy), Rows(c.f32, c.ldx), c.w32, c.m, c.k, c.n)
			s.MatMulQ8C(Rows(y, c.ldy), c.quantised(), c.q8c, c.m, c.k, c.n)
			s.MatMulQ6C(Rows(y, c.ldy), c.quantised(), c.q6c, c.m, c.k, c.n)
			s.MatMulQ4B32(Rows(y, c.ldy), c.quantised(), c.q4b32, c.m, c.k, c.n)
			s.MatMulQ4B128(Rows(y, c.ldy), c.quantised(), c.q4b128, c.m, c.k, c.n)
			s.MatMulBF16(Rows(y, c.ldy), Rows(c.f32, c.ldx), c.w16, c.m, c.k, c.n)
			a := Attention{M: 5, Heads: heads, Dim: dim, Pos: pos, Window: 40, Scale: 0.1, Cap: 20}
			s.AttentionF32(Rows(att, heads*dim), Rows(att, heads*dim), kv, kv, scratch, a)
			s.AttentionF16(Rows(att, heads*dim), Rows(att, heads*dim), kv16, kv16, scratch, a)
			s.AttentionBF16(Rows(att, heads*dim), Rows(att, heads*dim), kv16, kv16, scratch, a)
			s.ToBF16(kv16, kv)
			s.StoreQ8(kv8[:dim+cachedScale], kv[:dim], scratch)
			s.AttentionQ8(Rows(att, heads*dim), Rows(att, heads*dim), kv8, kv8, scratch, a)
			s.QuantRows(c.quantised(), Rows(c.f32, c.ldx), c.m, c.k)
			s.Norm(Rows(att, 64), Rows(att, 64), kv, 1e-5, 5, 64)
			s.LayerNorm(Rows(att, 64), Rows(att, 64), kv, kv, 1e-5, 5, 64)
			s.GLU(Rows(att, 64), Rows(att, 128), op.SiLU, 16, 5, 64)
			s.GLU(Rows(att, 64), Rows(att, 128), op.GELUTanh, 16, 5, 64)
			s.Activate(Rows(att, 64), Rows(att, 64), op.GELU, 5, 64)
			s.Combine(Rows(att[:64], 64), Rows(kv, 64), Rows(kv, 4), 1, 4, 64)
		}); n != 0 {
			t.Errorf("%s: %v allocations", s.Name, n)
		}
	}
}

// Attention gives a row the same bits in one call for a whole prompt, in chunks, and token by token.
func TestVecAttentionChunks(t *testing.T) {
	require.Slow(t)
	const dim, rows = 64, 150
	for _, heads := range []int{1, 3, 8, 13} {
		rng := rand.New(rand.NewPCG(3, uint64(heads)))
		fill := func(n int) []float32 {
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(rng.NormFloat64())
			}
			return v
		}
		q, k, v := fill(rows*heads*dim), fill(rows*dim), fill(rows*dim)
		k16, v16 := make([]uint16, len(k)), make([]uint16, len(v))
		toF16(k16, k)
		toF16(v16, v)
		kb, vb := make([]uint16, len(k)), make([]uint16, len(v))
		toBF16(kb, k)
		toBF16(vb, v)
		scratch := make([]float32, AttentionScratch(heads, dim))
		ld := heads * dim
		for i, s := range append(vectors(t), Portable(), Reference(), vectors(t)[0]) {
			shape := []Attention{{}, {Window: 20}, {Window: 135, Cap: 3}}[i%3]
			for _, form := range []string{"f32", "f16", "bf16"} {
				run := func(chunk int) []float32 {
					y := make([]float32, len(q))
					for r := 0; r < rows; r += chunk {
						m := min(chunk, rows-r)
						a := shape
						a.M, a.Heads, a.Dim, a.Pos, a.Scale = m, heads, dim, r, 0.125
						switch form {
						case "f16":
							s.AttentionF16(Rows(y[r*ld:], ld), Rows(q[r*ld:], ld), k16[:(r+m)*dim], v16[:(r+m)*dim],
								scratch, a)
						case "bf16":
							s.AttentionBF16(Rows(y[r*ld:], ld), Rows(q[r*ld:], ld), kb[:(r+m)*dim], vb[:(r+m)*dim],
								scratch, a)
						default:
							s.AttentionF32(Rows(y[r*ld:], ld), Rows(q[r*ld:], ld), k[:(r+m)*dim], v[:(r+m)*dim],
								scratch, a)
						}
					}
					return y
				}
				whole := run(rows)
				for _, chunk := range []int{1, 5, 64} {
					for i, got := range run(chunk) {
						if got != whole[i] {
							t.Fatalf("%s heads %d %s: element %d differs in chunks of %d: %v, %v", s.Name, heads, form, i, chunk, got, whole[i])
						}
					}
				}
			}
		}
	}
}

// The exponential inside GLU: with up = 1, y = g/(1+e^-g) over the whole range and at its ends.
func TestVecSilu(t *testing.T) {
	inf := float32(math.Inf(1))
	var gates []float32
	for g := float32(-110); g < 110; g += 0.0137 {
		gates = append(gates, g)
	}
	gates = append(gates, -inf, inf, float32(math.NaN()), 0, 87.33654, 87.33655, -88.72283, -88.72284, 1e30, -1e30, 1e-40, -1e-40)
	for len(gates)%16 != 0 {
		gates = append(gates, 1)
	}
	n := len(gates)
	x := make([]float32, 2*n)
	for i, g := range gates {
		at := i/16*32 + i%16
		x[at], x[at+16] = g, 1
	}
	for _, s := range vectors(t) {
		got, want := make([]float32, n), make([]float32, n)
		s.GLU(Rows(got, n), Rows(x, 2*n), op.SiLU, 16, 1, n)
		Portable().GLU(Rows(want, n), Rows(x, 2*n), op.SiLU, 16, 1, n)
		for i, g := range gates {
			if got[i] != got[i] && want[i] != want[i] {
				continue
			}
			if d := math.Abs(float64(got[i]) - float64(want[i])); got[i] != want[i] && !(d <= 4*math.Abs(float64(want[i]))/(1<<23)) {
				t.Fatalf("%s: silu(%v) = %v, want %v", s.Name, g, got[i], want[i])
			}
		}
	}
}

// All tiers give the same bits: registers of 512 bits take the steps of those of 256.
func TestVecGLUBits(t *testing.T) {
	special := []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0, 87.33654, 87.33655, -87.33654,
		-87.33655, 88.72283, 88.72284, -88.72283, -88.72284, 1e30, -1e30, 1e-40, -1e-40}
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
			for i, value := range got {
				if math.Float32bits(value) != math.Float32bits(want[i]) && (value == value || want[i] == want[i]) {
					t.Fatalf("%s %s: element %d is %v, %v with avx2", s.Name, act, i, value, want[i])
				}
			}
		}
	}
}

// Arguments that are too short are our own bug, but must not reach the assembly.
func TestVecShortArguments(t *testing.T) {
	for _, s := range vectors(t) {
		c := newMatmul(t, 3, 64, 64, 4)
		y := make([]float32, c.m*c.ldy)
		x := c.quantised()
		lessCodes, lessScale, lessSums := x, x, x
		lessCodes.Codes.Data, lessScale.Scale, lessSums.Sums.Data = c.u8[1:], c.xscale[1:], c.sums[1:]
		tests := []func(){
			func() { s.MatMulF32(Rows(y[:2*c.ldy], c.ldy), Rows(c.f32, c.ldx), c.w32, c.m, c.k, c.n) },
			func() { s.MatMulF32(Rows(y, c.ldy), Rows(c.f32, c.ldx), c.w32[1:], c.m, c.k, c.n) },
			func() { s.MatMulQ8C(Rows(y, c.ldy), lessCodes, c.q8c, c.m, c.k, c.n) },
			func() { s.MatMulQ8C(Rows(y, c.ldy), lessScale, c.q8c, c.m, c.k, c.n) },
			func() { s.MatMulQ6C(Rows(y, c.ldy), lessCodes, c.q6c, c.m, c.k, c.n) },
			func() { s.MatMulQ6C(Rows(y, c.ldy), lessSums, c.q6c, c.m, c.k, c.n) },
			func() { s.MatMulQ6C(Rows(y, c.ldy), x, c.q6c[1:], c.m, c.k, c.n) },
			func() { s.MatMulQ4B32(Rows(y, c.ldy), x, c.q4b32[1:], c.m, c.k, c.n) },
			func() { s.MatMulQ4B128(Rows(y, c.ldy), x, c.q4b128[1:], c.m, c.k, c.n) },
			func() { s.MatMulQ4B128(Rows(y, c.ldy), lessSums, c.q4b128, c.m, c.k, c.n) },
			func() { s.MatMulBF16(Rows(y, c.ldy), Rows(c.f32, c.ldx), c.w16[1:], c.m, c.k, c.n) },
		}
		if s.PackRowsF32 != nil {
			c := newMatmul(t, packFrom, 64, 64, 5)
			y, rows := make([]float32, (c.m-1)*c.ldy+c.n), make([]float32, c.m*c.k)
			tests = append(tests,
				func() { s.PackRowsF32(rows[1:], Rows(c.f32, c.ldx), c.m, c.k, 1) },
				func() { s.PackRowsF32(rows, Rows(c.f32[1:], c.ldx), c.m, c.k, 1) },
				func() { s.PackedF32(Rows(y[1:], c.ldy), rows, c.w32, c.m, c.k, c.n) },
				func() { s.PackedF32(Rows(y, c.ldy), rows[1:], c.w32, c.m, c.k, c.n) },
				func() { s.PackedF32(Rows(y, c.ldy), rows, c.w32[1:], c.m, c.k, c.n) },
				func() { s.PackedBF16(Rows(y, c.ldy), rows, c.w16[1:], c.m, c.k, c.n) })
		}
		if s.PackRows != nil {
			c := newMatmul(t, packFrom, 64, 64, 5)
			y := make([]float32, (c.m-1)*c.ldy+c.n)
			rows, work := make([]byte, PackedBytes(c.m, c.k, 0)), make([]byte, PackedScratch(c.k, 0))
			rows4, work4 := make([]byte, PackedBytes(c.m, c.k, BlockK)), make([]byte, PackedScratch(c.k, BlockK))
			x := PackedRows{Bytes: rows, Scale: c.xscale, M: c.m, K: c.k}
			lessRows, lessScale, fewRows := x, x, x
			lessRows.Bytes, lessScale.Scale, fewRows.M = rows[1:], c.xscale[1:], packFrom-1
			x4, less4 := x, x
			x4.Bytes, less4.Bytes = rows4, rows4[1:]
			tests = append(tests,
				func() { s.PackRows(rows[1:], Rows(c.u8, c.ldx), c.m, c.k, 0, 1) },
				func() { s.PackRows(rows, Rows(c.u8[:(c.m-1)*c.ldx+c.k-1], c.ldx), c.m, c.k, 0, 1) },
				func() { s.PackedQ8C(Rows(y[1:], c.ldy), x, c.q8c, work, c.n) },
				func() { s.PackedQ8C(Rows(y, c.ldy), lessRows, c.q8c, work, c.n) },
				func() { s.PackedQ8C(Rows(y, c.ldy), lessScale, c.q8c, work, c.n) },
				func() { s.PackedQ8C(Rows(y, c.ldy), x, c.q8c[1:], work, c.n) },
				func() { s.PackedQ8C(Rows(y, c.ldy), x, c.q8c, work[1:], c.n) },
				func() { s.PackedQ4B32(Rows(y[1:], c.ldy), x4, c.q4b32, work4, c.n) },
				func() { s.PackedQ4B32(Rows(y, c.ldy), less4, c.q4b32, work4, c.n) },
				func() { s.PackedQ4B32(Rows(y, c.ldy), x4, c.q4b32[1:], work4, c.n) },
				func() { s.PackedQ4B32(Rows(y, c.ldy), x4, c.q4b32, work4[:len(work4)-1], c.n) },
				func() { s.PackedQ8C(Rows(y, c.ldy), fewRows, c.q8c, work, c.n) })
		}
		for i, f := range tests {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: call %d accepted", s.Name, i)
					}
				}()
				f()
			}()
		}
	}
}

// The committed assembly is what the generator writes.
func TestVecGenerated(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	gen := filepath.Join(dir, "gen")
	build := exec.Command("go", "build", "-o", gen, ".")
	build.Dir = "gen"
	build.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "GOPROXY=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "GOPROXY=off") || errors.Is(err, exec.ErrNotFound) {
			t.Skipf("the generator's modules are not in this machine's module cache: %s", out)
		}
		t.Fatalf("build the generator: %v\n%s", err, out)
	}
	for _, tier := range []string{"avx2", "avxvnni", "avx512", "avx512bf16", "attention", "peak", "neon"} {
		name := "vec_" + tier + "_amd64"
		switch tier {
		case "attention":
			name = "vec_heads_amd64"
		case "neon":
			name = "vec_neon_arm64"
		}
		asm, stubs := filepath.Join(dir, name+".s"), filepath.Join(dir, name+".go")
		if out, err := exec.Command(gen, "-tier", tier, "-out", asm, "-stubs", stubs, "-pkg", "kernel").CombinedOutput(); err != nil {
			t.Fatalf("generate %s: %v\n%s", tier, err, out)
		}
		for _, made := range []string{asm, stubs} {
			want, err := os.ReadFile(made)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Base(made))
			if err != nil {
				t.Fatal(err)
			}
			// The first line names the command with its paths.
			_, want, _ = bytes.Cut(want, []byte("\n"))
			_, got, _ = bytes.Cut(got, []byte("\n"))
			if !bytes.Equal(got, want) {
				t.Errorf("%s is stale: run go generate", filepath.Base(made))
			}
		}
	}
}

func BenchmarkVec(b *testing.B) {
	const k, n = 2048, 2048
	rng := rand.New(rand.NewPCG(1, 2))
	w := make([]float32, k*n)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	for _, scheme := range []string{"q8c", "q6c", "q4b32", "q4b128", "w16", "w32"} {
		one := packed(b, scheme, w, k, n)
		for _, m := range []int{1, 2, 4, 6, 8, 12, 13, 16, 24, 32, 64, 256} {
			copies := 1
			if m <= 32 {
				copies = 512<<20/len(one) + 1 // cold: more than the last-level cache holds
			}
			region, err := mem.Alloc(copies*len(one), 1<<21)
			if err != nil {
				b.Fatal(err)
			}
			_ = region.Advise(0, len(region.Bytes()), mem.HugePages)
			for i := range copies {
				copy(region.Bytes()[i*len(one):], one)
			}
			x, u := make([]float32, m*k), make([]uint8, m*k)
			for i := range x {
				x[i], u[i] = float32(rng.NormFloat64()), uint8(1+rng.IntN(255))
			}
			xs, y := make([]float32, m), make([]float32, m*n)
			sums := make([]int32, m*k/BlockK)
			blockSums(Rows(sums, k/BlockK), Rows(u, k), m, k)
			for _, s := range append([]*Set{}, vectorSets()...) {
				b.Run(fmt.Sprintf("%s/m=%d/%s", scheme, m, s.Name), func(b *testing.B) {
					i := 0
					for b.Loop() {
						p := region.Bytes()[i%copies*len(one):][:len(one)]
						i++
						switch scheme {
						case "q8c":
							s.MatMulQ8C(Rows(y, n), Quantised{Codes: Rows(u, k), Scale: xs}, p, m, k, n)
						case "q6c":
							s.MatMulQ6C(Rows(y, n),
								Quantised{Codes: Rows(u, k), Scale: xs, Sums: Rows(sums, k/BlockK)}, p, m, k, n)
						case "q4b32":
							s.MatMulQ4B32(Rows(y, n),
								Quantised{Codes: Rows(u, k), Scale: xs, Sums: Rows(sums, k/BlockK)}, p, m, k, n)
						case "q4b128":
							s.MatMulQ4B128(Rows(y, n),
								Quantised{Codes: Rows(u, k), Scale: xs, Sums: Rows(sums, k/BlockK)}, p, m, k, n)
						case "w16":
							v, err := mem.View[uint16](p)
							if err != nil {
								b.Fatal(err)
							}
							s.MatMulBF16(Rows(y, n), Rows(x, k), v, m, k, n)
						case "w32":
							v, err := mem.View[float32](p)
							if err != nil {
								b.Fatal(err)
							}
							s.MatMulF32(Rows(y, n), Rows(x, k), v, m, k, n)
						}
					}
					sec := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(2*float64(m)*k*n/sec/1e9, "GOP/s")
					b.ReportMetric(float64(len(one))/sec/1e9, "GB/s")
					b.ReportMetric(0, "ns/op")
				})
			}
			region.Close()
		}
	}
}

func BenchmarkVecRows(b *testing.B) {
	const m, n = 64, 2048
	x, y, gain := make([]float32, m*2*n), make([]float32, m*n), make([]float32, n)
	for i := range x {
		x[i] = float32(i%1000)/500 - 1
	}
	var angles [2][]float32 // no rotation, so that repeating it stays among normal numbers
	for i := range angles {
		angles[i] = make([]float32, m*32)
		for j := range angles[i] {
			angles[i][j] = float32(1 - i)
		}
	}
	u, scale, half := make([]uint8, m*n), make([]float32, m), make([]uint16, m*n)
	sums := make([]int32, m*n/BlockK)
	for _, s := range vectorSets()[:min(1, len(vectorSets()))] {
		for _, c := range []struct {
			name string
			f    func()
		}{
			{"quant", func() { s.QuantRows(Quantised{Codes: Rows(u, n), Scale: scale}, Rows(x, n), m, n) }},
			{"norm", func() { s.Norm(Rows(y, n), Rows(x, n), gain, 1e-5, m, n) }},
			{"silu", func() { s.GLU(Rows(y, n), Rows(x, 2*n), op.SiLU, 16, m, n) }},
			{"gelu_tanh", func() { s.GLU(Rows(y, n), Rows(x, 2*n), op.GELUTanh, 16, m, n) }},
			{"gelu_tanh wide", func() { s.GLU(Rows(y, n), Rows(x, 2*n), op.GELUTanh, n, m, n) }},
			{"gelu", func() { s.Activate(Rows(y, n), Rows(x, n), op.GELU, m, n) }},
			{"softcap", func() { s.Softcap(Rows(y, n), Rows(x, n), 30, m, n) }},
			{"layer_norm", func() { s.LayerNorm(Rows(y, n), Rows(x, n), gain, gain, 1e-5, m, n) }},
			{"combine 8", func() { s.Combine(Rows(y, n), Rows(x, n), Rows(x, 8), m/8, 8, n) }},
			{"add", func() { s.Add(Rows(y, n), Rows(x, n), Rows(x, n), m, n) }},
			{"rope", func() { s.Rope(Rows(y, n), angles[0], angles[1], m, n/64, 64, 64) }},
			{"sums", func() { s.BlockSums(Rows(sums, n/BlockK), Rows(u, n), m, n) }},
			{"tof16", func() { s.ToF16(half, y) }},
			{"fromf16", func() { s.FromF16(y, half) }},
		} {
			b.Run(c.name, func(b *testing.B) {
				for b.Loop() {
					c.f()
				}
				b.ReportMetric(float64(m*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

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
			q, y := make([]float32, c.m*c.heads*dim), make([]float32, c.m*c.heads*dim)
			for _, half := range []bool{false, true} {
				a := Attention{M: c.m, Heads: c.heads, Dim: dim, Pos: context - c.m, Scale: 0.125}
				b.Run(fmt.Sprintf("m=%d/heads=%d/f16=%v/%s", c.m, c.heads, half, s.Name), func(b *testing.B) {
					for b.Loop() {
						if half {
							s.AttentionF16(Rows(y, c.heads*dim), Rows(q, c.heads*dim), kv16, kv16, scratch, a)
						} else {
							s.AttentionF32(Rows(y, c.heads*dim), Rows(q, c.heads*dim), kv, kv, scratch, a)
						}
					}
					b.ReportMetric(4*float64(c.m*c.heads*context*dim)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GF/s")
				})
			}
		}
	}
}
