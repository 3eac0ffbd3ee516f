package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// guard is the content of memory that no kernel may change.
const guard = -7.25e11

// strided is a [rows,cols] matrix whose last element touches an inaccessible page.
type strided struct {
	v              []float32
	rows, cols, ld int
}

func guardedSlice[T mem.Scalar](t testing.TB, n int) []T {
	t.Helper()
	var zero T
	size := 4
	switch any(zero).(type) {
	case uint8:
		size = 1
	case uint16:
		size = 2
	}
	r, err := mem.Guarded(n * size)
	if diag.ClassOf(err) == diag.ClassUnavailable {
		return make([]T, n)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	v, err := mem.View[T](r.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// newStrided fills a matrix with gap columns of guard values between its rows.
func newStrided(t testing.TB, rows, cols, gap int, fill func() float32) strided {
	s := strided{rows: rows, cols: cols, ld: cols + gap}
	s.v = guardedSlice[float32](t, max(0, (rows-1)*s.ld+cols))
	for i := range s.v {
		s.v[i] = guard
	}
	for r := range rows {
		for c := range cols {
			s.v[r*s.ld+c] = fill()
		}
	}
	return s
}

// gapsIntact fails when a value between rows was changed.
func (s strided) gapsIntact(t *testing.T) {
	t.Helper()
	for i, v := range s.v {
		if i%s.ld >= s.cols && v != guard {
			t.Fatalf("element %d of the padding between rows (columns %d, pitch %d) was changed to %v", i, s.cols, s.ld, v)
		}
	}
}

func (s strided) at(r, c int) float64 { return float64(s.v[r*s.ld+c]) }

func normal(rng *rand.Rand) func() float32 {
	return func() float32 { return float32(rng.NormFloat64()) }
}

func zero() float32 { return guard }

// eachSet runs a subtest per set of this machine.
func eachSet(t *testing.T, f func(t *testing.T, s *Set)) {
	for _, s := range Sets() {
		t.Run(s.Name, func(t *testing.T) { f(t, s) })
	}
}

// near compares with an error bound relative to the sum of the magnitudes that went into want.
func near(t *testing.T, what string, got, want, magnitude float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 1e-5*magnitude+1e-37) {
		t.Fatalf("%s: got %v, want %v (magnitude %v)", what, got, want, magnitude)
	}
}

var shapes = []struct{ m, k, n int }{
	{1, 1, 1}, {1, 32, 32}, {1, 64, 96}, {2, 7, 33}, {3, 5, 31}, {4, 128, 64}, {5, 129, 65}, {6, 31, 100}, {7, 256, 97}, {8, 33, 1},
	{12, 96, 64}, {9, 300, 40}, {13, 100, 130}, {17, 67, 61}, {1, 1000, 257}, {24, 512, 64}, {0, 8, 8},
}

func (s strided) String() string { return fmt.Sprintf("[%d,%d]/%d", s.rows, s.cols, s.ld) }

func packWeight(t testing.TB, scheme string, w []float32, k, n int) []byte {
	t.Helper()
	spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: pack.N32}
	size, err := pack.Bytes(spec)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mem.Alloc(int(size), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	src, err := pack.Floats(w, k, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := pack.Pack(r.Bytes(), spec, src); err != nil {
		t.Fatal(err)
	}
	return r.Bytes()
}

func TestMatMulF32(t *testing.T) {
	for _, scheme := range []string{"w32", "w16"} {
		t.Run(scheme, func(t *testing.T) { testMatMulF32(t, scheme) })
	}
}

func testMatMulF32(t *testing.T, scheme string) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, sh := range shapes {
			for _, gap := range []int{0, 3} {
				w := make([]float32, sh.k*sh.n)
				for i := range w {
					w[i] = float32(rng.NormFloat64())
					if scheme == "w16" { // values that bfloat16 holds
						w[i] = math.Float32frombits(math.Float32bits(w[i]) &^ 0xffff)
					}
				}
				tiles := packWeight(t, scheme, w, sh.k, sh.n)
				x := newStrided(t, sh.m, sh.k, gap, normal(rng))
				y := newStrided(t, sh.m, sh.n, gap, zero)
				if scheme == "w16" {
					w16, err := mem.View[uint16](tiles)
					if err != nil {
						t.Fatal(err)
					}
					s.MatMulBF16(Rows(y.v, y.ld), Rows(x.v, x.ld), w16, sh.m, sh.k, sh.n)
				} else {
					w32, err := mem.View[float32](tiles)
					if err != nil {
						t.Fatal(err)
					}
					s.MatMulF32(Rows(y.v, y.ld), Rows(x.v, x.ld), w32, sh.m, sh.k, sh.n)
				}
				y.gapsIntact(t)
				for r := range sh.m {
					for j := range sh.n {
						want, mag := 0.0, 0.0
						for p := range sh.k {
							v := x.at(r, p) * float64(w[p*sh.n+j])
							want, mag = want+v, mag+math.Abs(v)
						}
						near(t, fmt.Sprintf("%v y[%d,%d]", sh, r, j), y.at(r, j), want, mag)
					}
				}
			}
		}
	})
}

// quantised is u8 rows with scales.
type quantised struct {
	u     []uint8
	ld    int
	scale []float32
}

func (q quantised) at(r, c int) int { return int(q.u[r*q.ld+c]) - 128 }

func newQuantised(t testing.TB, rng *rand.Rand, m, k, gap int) quantised {
	q := quantised{ld: k + gap, u: guardedSlice[uint8](t, max(0, (m-1)*(k+gap)+k)), scale: guardedSlice[float32](t, m)}
	for i := range q.u {
		q.u[i] = uint8(rng.IntN(256))
		if rng.IntN(8) == 0 {
			q.u[i] = []uint8{0, 1, 128, 255}[rng.IntN(4)]
		}
	}
	for i := range q.scale {
		q.scale[i] = rng.Float32() / 16
	}
	return q
}

// The quantised products are checked against the stored numbers as pack's documentation describes them.
func TestMatMulQ8C(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, sh := range shapes {
			for _, gap := range []int{0, 5} {
				w := make([]float32, sh.k*sh.n)
				for i := range w {
					w[i] = float32(rng.NormFloat64())
				}
				tiles := packWeight(t, "q8c", w, sh.k, sh.n)
				x := newQuantised(t, rng, sh.m, sh.k, gap)
				y := newStrided(t, sh.m, sh.n, gap, zero)
				s.MatMulQ8C(Rows(y.v, y.ld), Quantised{Codes: Rows(x.u, x.ld), Scale: x.scale}, tiles, sh.m, sh.k, sh.n)
				y.gapsIntact(t)
				kp := (sh.k + 3) / 4 * 4
				for r := range sh.m {
					for j := range sh.n {
						tile, c := tiles[j/32*(32*kp+256):], j%32
						dot := 0
						for p := range sh.k {
							dot += x.at(r, p) * int(int8(tile[p/4*128+c*4+p%4]))
						}
						want := float32(dot) * (x.scale[r] * f32at(tile[32*kp:], c))
						if got := y.v[r*y.ld+j]; ulps(got, want) > 1 {
							t.Fatalf("%v y[%d,%d]: got %v, want %v", sh, r, j, got, want)
						}
					}
				}
			}
		}
	})
}

func TestMatMulQ6C(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(13, 14))
		for _, sh := range shapes {
			for _, gap := range []int{0, 5} {
				w := make([]float32, sh.k*sh.n)
				for i := range w {
					w[i] = float32(rng.NormFloat64())
				}
				tiles := packWeight(t, "q6c", w, sh.k, sh.n)
				x := newQuantised(t, rng, sh.m, sh.k, gap)
				y := newStrided(t, sh.m, sh.n, gap, zero)
				blocks := (sh.k + 31) / 32
				sums := guardedSlice[int32](t, sh.m*blocks)
				s.BlockSums(Rows(sums, blocks), Rows(x.u, x.ld), sh.m, sh.k)
				s.MatMulQ6C(Rows(y.v, y.ld),
					Quantised{Codes: Rows(x.u, x.ld), Scale: x.scale, Sums: Rows(sums, blocks)}, tiles, sh.m, sh.k,
					sh.n)
				y.gapsIntact(t)
				groups := (sh.k + 15) / 16
				for r := range sh.m {
					for j := range sh.n {
						tile, c := tiles[j/32*(384*groups+128):], j%32
						dot := 0
						for p := range sh.k {
							group, quad, at := tile[p/16*384:], p%16/4, c*4+p%4
							low, high := group[quad/2*128+at], group[256+at]>>(2*quad)&3
							if quad%2 == 1 {
								low >>= 4
							}
							dot += x.at(r, p) * (int(16*high+low&15) - 32)
						}
						want := float32(dot) * (x.scale[r] * f32at(tile[384*groups:], c))
						if got := y.v[r*y.ld+j]; ulps(got, want) > 1 {
							t.Fatalf("%v y[%d,%d]: got %v, want %v", sh, r, j, got, want)
						}
					}
				}
			}
		}
	})
}

func TestMatMulQ4(t *testing.T) {
	for _, block := range []int{32, 128} {
		t.Run(fmt.Sprintf("q4b%d", block), func(t *testing.T) { testMatMulQ4(t, block) })
	}
}

func testMatMulQ4(t *testing.T, size int) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(5, 6))
		for _, sh := range shapes {
			for _, gap := range []int{0, 5} {
				w := make([]float32, sh.k*sh.n)
				for i := range w {
					w[i] = float32(rng.NormFloat64())
				}
				tiles := packWeight(t, fmt.Sprintf("q4b%d", size), w, sh.k, sh.n)
				x := newQuantised(t, rng, sh.m, sh.k, gap)
				y := newStrided(t, sh.m, sh.n, gap, zero)
				blocks := (sh.k + 31) / 32
				sums := guardedSlice[int32](t, sh.m*blocks)
				s.BlockSums(Rows(sums, blocks), Rows(x.u, x.ld), sh.m, sh.k)
				multiply := s.MatMulQ4B32
				if size == 128 {
					multiply = s.MatMulQ4B128
				}
				rows := Quantised{Codes: Rows(x.u, x.ld), Scale: x.scale, Sums: Rows(sums, blocks)}
				multiply(Rows(y.v, y.ld), rows, tiles, sh.m, sh.k, sh.n)
				y.gapsIntact(t)
				for r := range sh.m {
					for b := range blocks {
						want := int32(0)
						for p := b * 32; p < min(sh.k, b*32+32); p++ {
							want += int32(x.at(r, p))
						}
						if got := sums[r*blocks+b]; got != want {
							t.Fatalf("%v sum of row %d, block %d: got %d, want %d", sh, r, b, got, want)
						}
					}
					for j := range sh.n {
						want, mag := 0.0, 0.0
						long := (sh.k + size - 1) / size
						for b := range long {
							block, c := tiles[(j/32*long+b)*(16*size+64):], j%32
							dot := 0
							for p := b * size; p < min(sh.k, b*size+size); p++ {
								i := p % size
								nibble := block[i/4*64+c%16*4+i%4]
								if c >= 16 {
									nibble >>= 4
								}
								dot += x.at(r, p) * (int(nibble&15) - 8)
							}
							d := number.HalfToFloat(uint16(block[16*size+2*c]) | uint16(block[16*size+2*c+1])<<8)
							v := float64(x.scale[r]) * float64(dot) * float64(d)
							want, mag = want+v, mag+math.Abs(v)
						}
						near(t, fmt.Sprintf("%v y[%d,%d]", sh, r, j), y.at(r, j), want, mag)
					}
				}
			}
		}
	})
}

// ulps is the distance of two finite numbers in units of the last place.
func ulps(a, b float32) int {
	order := func(f float32) int {
		i := int(int32(math.Float32bits(f)))
		if i < 0 {
			return math.MinInt32 - i
		}
		return i
	}
	d := order(a) - order(b)
	return max(d, -d)
}

// A row's result must not depend on the rows computed with it, nor a column's on its neighbours: processors divide
// both among threads.
func TestMatMulDivision(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		const m, k, n, blocks = 29, 1100, 96, (1100 + 31) / 32
		rng := rand.New(rand.NewPCG(7, 8))
		w := make([]float32, k*n)
		for i := range w {
			w[i] = float32(rng.NormFloat64())
		}
		xf, xq := newStrided(t, m, k, 0, normal(rng)), newQuantised(t, rng, m, k, 0)
		w32, err := mem.View[float32](packWeight(t, "w32", w, k, n))
		if err != nil {
			t.Fatal(err)
		}
		w16, err := mem.View[uint16](packWeight(t, "w16", w, k, n))
		if err != nil {
			t.Fatal(err)
		}
		q8, q4, q128 := packWeight(t, "q8c", w, k, n), packWeight(t, "q4b32", w, k, n), packWeight(t, "q4b128", w, k, n)
		q6 := packWeight(t, "q6c", w, k, n)
		sums := make([]int32, m*blocks)
		s.BlockSums(Rows(sums, blocks), Rows(xq.u, k), m, k)
		for name, f := range map[string]func(y []float32, tile, n, r0, r1 int){
			"w32": func(y []float32, tile, n, r0, r1 int) {
				s.MatMulF32(Rows(y, 96), Rows(xf.v[r0*k:], k), w32[tile*32*k:], r1-r0, k, n)
			},
			"w16": func(y []float32, tile, n, r0, r1 int) {
				s.MatMulBF16(Rows(y, 96), Rows(xf.v[r0*k:], k), w16[tile*32*k:], r1-r0, k, n)
			},
			"q8c": func(y []float32, tile, n, r0, r1 int) {
				s.MatMulQ8C(Rows(y, 96), Quantised{Codes: Rows(xq.u[r0*k:], k), Scale: xq.scale[r0:]},
					q8[tile*(32*k+256):], r1-r0, k, n)
			},
			"q6c": func(y []float32, tile, n, r0, r1 int) {
				s.MatMulQ6C(Rows(y, 96),
					Quantised{Codes: Rows(xq.u[r0*k:], k), Scale: xq.scale[r0:], Sums: Rows(sums[r0*blocks:], blocks)},
					q6[tile*len(q6)/3:], r1-r0, k, n)
			},
			"q4b32": func(y []float32, tile, n, r0, r1 int) {
				s.MatMulQ4B32(Rows(y, 96),
					Quantised{Codes: Rows(xq.u[r0*k:], k), Scale: xq.scale[r0:], Sums: Rows(sums[r0*blocks:], blocks)},
					q4[tile*len(q4)/3:], r1-r0, k, n)
			},
			"q4b128": func(y []float32, tile, n, r0, r1 int) {
				s.MatMulQ4B128(Rows(y, 96),
					Quantised{Codes: Rows(xq.u[r0*k:], k), Scale: xq.scale[r0:], Sums: Rows(sums[r0*blocks:], blocks)},
					q128[tile*len(q128)/3:], r1-r0, k, n)
			},
		} {
			whole, parts := make([]float32, m*n), make([]float32, m*n)
			f(whole, 0, n, 0, m)
			for _, rows := range [][2]int{{0, 1}, {1, 2}, {2, 4}, {4, 11}, {11, 29}} {
				for tile := range 3 {
					f(parts[rows[0]*n+tile*32:], tile, 32, rows[0], rows[1])
				}
			}
			if !slices.Equal(whole, parts) {
				t.Errorf("%s: the result depends on how rows and tiles are divided", name)
			}
		}
	})
}

func TestQuantRows(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(9, 10))
		for _, n := range []int{1, 2, 7, 16, 31, 64, 65, 127, 1000} {
			const m = 7
			row := 0
			count := 0
			x := newStrided(t, m, n, 2, func() float32 {
				v := float32(rng.NormFloat64())
				if count++; count%n == 0 {
					row++
				}
				switch row {
				case 1:
					return 0
				case 2: // ties
					return float32(rng.IntN(5)-2) * 0.5
				case 3: // subnormal scale
					return v * 1e-43
				case 4:
					return v * 1e37
				case 5:
					return float32(math.Copysign(0, -1))
				}
				return v
			})
			y := guardedSlice[uint8](t, (m-1)*(n+3)+n)
			scale := guardedSlice[float32](t, m)
			if bad := s.QuantRows(Quantised{Codes: Rows(y, n+3), Scale: scale}, Rows(x.v, x.ld), m, n); bad != -1 {
				t.Fatalf("n=%d: refused row %d", n, bad)
			}
			for r := range m {
				absmax := float32(0)
				for c := range n {
					absmax = max(absmax, float32(math.Abs(x.at(r, c))))
				}
				if scale[r] != absmax/127 {
					t.Fatalf("n=%d row %d: scale %v, want %v", n, r, scale[r], absmax/127)
				}
				for c := range n {
					want := 128.0
					if scale[r] != 0 {
						want += max(-127, min(127, math.RoundToEven(float64(x.v[r*x.ld+c]/scale[r]))))
					}
					if got := y[r*(n+3)+c]; float64(got) != want {
						t.Fatalf("n=%d: y[%d,%d] = %d, want %v (x %v, scale %v)", n, r, c, got, want, x.at(r, c), scale[r])
					}
				}
			}
			for i, v := range y {
				if i%(n+3) >= n && v != 0 {
					t.Fatalf("n=%d: padding between rows was changed", n)
				}
			}
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				r, c := rng.IntN(m), rng.IntN(n)
				old := x.v[r*x.ld+c]
				x.v[r*x.ld+c] = float32(bad)
				if got := s.QuantRows(Quantised{Codes: Rows(y, n+3), Scale: scale}, Rows(x.v, x.ld), m, n); got != r {
					t.Fatalf("n=%d: %v at [%d,%d] was answered %d", n, bad, r, c, got)
				}
				x.v[r*x.ld+c] = old
			}
		}
	})
}

func TestQuantStatic(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(9, 11))
		for _, n := range []int{1, 7, 16, 31, 64, 127, 1000} {
			for _, from := range [][]float32{{1}, {0.5}, {0.003}, {1e-30}, {1e-44}, {1e30}, {0.003, 0.02}, {0.02, 0.003}, {0.01, 0.01}, {1e-44, 1e30}, {0.002, 0.01, 0.02, 1e34}} {
				scale := from[0]
				const m = 6
				count := 0
				x := newStrided(t, m, n, 2, func() float32 {
					v := float32(rng.NormFloat64())
					count++
					return v * []float32{1, 0, 1e37, scale, 127 * scale, 0.5}[(count-1)/n%m]
				})
				y := guardedSlice[uint8](t, (m-1)*(n+3)+n)
				got := guardedSlice[float32](t, m)
				if bad := s.QuantStatic(Quantised{Codes: Rows(y, n+3), Scale: got}, from, Rows(x.v, x.ld), m,
					n); bad != -1 {
					t.Fatalf("n=%d: refused row %d", n, bad)
				}
				var holds [m]float32 // the smallest that does, else the largest
				for r := range m {
					top := float32(0)
					for _, v := range x.v[r*x.ld : r*x.ld+n] {
						top = max(top, v, -v)
					}
					holds[r] = slices.Max(from)
					for _, v := range from {
						if v >= top/127 && v < holds[r] {
							holds[r] = v
						}
					}
					if got[r] != holds[r] {
						t.Fatalf("n=%d scales %v: row %d with at most %v has %v, want %v", n, from, r, top, got[r], holds[r])
					}
				}
				for i, v := range y {
					r, c := i/(n+3), i%(n+3)
					want := 0.0 // between rows
					if c < n {
						want = 128 + max(-127, min(127, math.RoundToEven(float64(x.v[r*x.ld+c]/holds[r]))))
					}
					if float64(v) != want {
						t.Fatalf("n=%d scales %v: y[%d,%d] = %d, want %v", n, from, r, c, v, want)
					}
				}
				for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
					r, c := rng.IntN(m), rng.IntN(n)
					old := x.v[r*x.ld+c]
					x.v[r*x.ld+c] = float32(bad)
					if got := s.QuantStatic(Quantised{Codes: Rows(y, n+3), Scale: got}, from, Rows(x.v, x.ld), m,
						n); got != r {
						t.Fatalf("n=%d: %v at [%d,%d] was answered %d", n, bad, r, c, got)
					}
					x.v[r*x.ld+c] = old
				}
			}
		}
	})
}

func TestNorm(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(11, 12))
		for _, n := range []int{1, 3, 16, 33, 100, 257} {
			for _, scale := range []float32{1, 1e-20, 1e25} {
				const m = 3
				count := 0
				x := newStrided(t, m, n, 1, func() float32 {
					if count++; count > 2*n {
						return 0
					}
					return scale * float32(rng.NormFloat64())
				})
				gain := newStrided(t, 1, n, 0, normal(rng))
				y := newStrided(t, m, n, 4, zero)
				for _, eps := range []float64{0, 1e-5} {
					s.Norm(Rows(y.v, y.ld), Rows(x.v, x.ld), gain.v, eps, m, n)
					y.gapsIntact(t)
					for r := range m {
						sum := 0.0
						for c := range n {
							sum += x.at(r, c) * x.at(r, c)
						}
						for c := range n {
							want := 0.0
							if x.at(r, c) != 0 {
								want = gain.at(0, c) * x.at(r, c) / math.Sqrt(sum/float64(n)+eps)
							}
							near(t, fmt.Sprintf("n=%d eps=%v y[%d,%d]", n, eps, r, c), y.at(r, c), want, math.Abs(want))
						}
					}
				}
				copy(y.v, x.v[:n])
				s.Norm(Rows(y.v, n), Rows(y.v, n), gain.v, 1e-5, 1, n) // in place
				z := newStrided(t, 1, n, 0, zero)
				s.Norm(Rows(z.v, n), Rows(x.v, n), gain.v, 1e-5, 1, n)
				if !slices.Equal(y.v[:n], z.v) {
					t.Fatalf("n=%d: in place differs", n)
				}
			}
		}
	})
}

func TestElementwise(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(13, 14))
		for _, n := range []int{1, 5, 16, 48, 63, 160} {
			const m = 3
			a, b := newStrided(t, m, n, 1, normal(rng)), newStrided(t, m, n, 2, normal(rng))
			y := newStrided(t, m, n, 3, zero)
			s.Add(Rows(y.v, y.ld), Rows(a.v, a.ld), Rows(b.v, b.ld), m, n)
			y.gapsIntact(t)
			for r := range m {
				for c := range n {
					if want := a.v[r*a.ld+c] + b.v[r*b.ld+c]; y.v[r*y.ld+c] != want {
						t.Fatalf("add n=%d [%d,%d]: got %v, want %v", n, r, c, y.at(r, c), want)
					}
				}
			}
			s.Add(Rows(a.v, a.ld), Rows(a.v, a.ld), Rows(b.v, b.ld), m, n) // in place
			for r := range m {
				if !slices.Equal(a.v[r*a.ld:r*a.ld+n], y.v[r*y.ld:r*y.ld+n]) {
					t.Fatalf("add in place n=%d differs", n)
				}
			}
			for _, width := range []int{1, 3, 8, 16, n} {
				if n%width != 0 {
					continue
				}
				x := newStrided(t, m, 2*n, 1, func() float32 { return float32(rng.NormFloat64() * 20) })
				special := []float32{0, -0, 100, -100, 1e30, -1e30, 88, -88, 1e-30}
				for i := range min(width, len(special)) {
					x.v[i] = special[i] // gates of the first group
				}
				for _, act := range op.Acts {
					s.GLU(Rows(y.v, y.ld), Rows(x.v, x.ld), act, width, m, n)
					y.gapsIntact(t)
					for r := range m {
						for c := range n {
							at := c/width*2*width + c%width
							g := x.at(r, at)
							want := refAct(act, g) * x.at(r, at+width)
							near(t, fmt.Sprintf("glu %s n=%d width=%d [%d,%d] of gate %v", act, n, width, r, c, g), y.at(r, c), want, math.Abs(want)+tails(act, g))
						}
					}
				}
			}
			x := newStrided(t, m, n, 1, func() float32 { return float32(rng.NormFloat64() * 4) })
			for _, act := range op.Acts {
				s.Activate(Rows(y.v, y.ld), Rows(x.v, x.ld), act, m, n)
				y.gapsIntact(t)
				for r := range m {
					for c := range n {
						want := refAct(act, x.at(r, c))
						near(t, fmt.Sprintf("%s n=%d of %v", act, n, x.at(r, c)), y.at(r, c), want, math.Abs(want)+tails(act, x.at(r, c)))
					}
				}
				z := strided{v: slices.Clone(x.v), rows: m, cols: n, ld: x.ld}
				s.Activate(Rows(z.v, z.ld), Rows(z.v, z.ld), act, m, n) // in place
				for r := range m {
					if !slices.Equal(z.v[r*z.ld:r*z.ld+n], y.v[r*y.ld:r*y.ld+n]) {
						t.Fatalf("%s n=%d in place differs", act, n)
					}
				}
			}
			for _, limit := range []float64{1, 30, 1e-3} {
				s.Softcap(Rows(y.v, y.ld), Rows(x.v, x.ld), limit, m, n)
				y.gapsIntact(t)
				for r := range m {
					for c := range n {
						want := limit * math.Tanh(x.at(r, c)/limit)
						near(t, fmt.Sprintf("softcap %v n=%d of %v", limit, n, x.at(r, c)), y.at(r, c), want, math.Abs(want))
					}
				}
			}
			g := newStrided(t, m, 1, 2, normal(rng))
			s.Gate(Rows(y.v, y.ld), Rows(x.v, x.ld), Rows(g.v, g.ld), m, n)
			y.gapsIntact(t)
			for r := range m {
				for c := range n {
					want := x.at(r, c) * sigmoid(g.at(r, 0))
					near(t, fmt.Sprintf("gate n=%d [%d,%d]", n, r, c), y.at(r, c), want, math.Abs(want))
				}
			}
			s.Scale(y.v[:n], 0.3)
			for c := range n {
				want := x.at(0, c) * sigmoid(g.at(0, 0)) * 0.3
				near(t, fmt.Sprintf("scale n=%d [%d]", n, c), y.at(0, c), want, math.Abs(want))
			}
		}
	})
}

// tails is the magnitude beside its result that an activation function is accurate to: those of the normal distribution
// are rounded in their argument, which grows with the square.
func tails(act string, x float64) float64 {
	switch act {
	case op.GELU:
		return math.Min(x*x, 200)*math.Abs(refAct(act, x)) + 1e-30 // an exponential may underflow
	case op.GELUTanh:
		return math.Min(math.Abs(x*x*x), 200)*math.Abs(refAct(act, x)) + 1e-30
	}
	return 0
}

// Whole ranges of the functions against double precision, absolutely: within 1e-6 of the identity's size.
func TestActivationRanges(t *testing.T) {
	var x []float32
	for v := -20.0; v < 20; v += 0.00137 {
		x = append(x, float32(v))
	}
	special := []float32{0, float32(math.Copysign(0, -1)), 1e-30, -1e-30, 1e-42, 100, -100, 1e10, -1e10, 1e30, -1e30, math.MaxFloat32, -math.MaxFloat32}
	x = append(x, special...)
	eachSet(t, func(t *testing.T, s *Set) {
		y := make([]float32, len(x))
		for _, act := range op.Acts {
			s.Activate(Rows(y, len(x)), Rows(x, len(x)), act, 1, len(x))
			for i, v := range x {
				if want := refAct(act, float64(v)); !(math.Abs(float64(y[i])-want) <= 1e-6*max(1, math.Abs(want))) {
					t.Fatalf("%s(%v): got %v, want %v", act, v, y[i], want)
				}
			}
		}
		s.Softcap(Rows(y, len(x)), Rows(x, len(x)), 2.5, 1, len(x))
		for i, v := range x {
			if want := 2.5 * math.Tanh(float64(v)/2.5); !(math.Abs(float64(y[i])-want) <= 1e-6*math.Abs(want)+1e-44) {
				t.Fatalf("softcap(%v): got %v, want %v", v, y[i], want)
			}
		}
		for _, act := range op.Acts {
			nan := slices.Repeat([]float32{float32(math.NaN())}, 33)
			s.Activate(Rows(nan, 33), Rows(nan, 33), act, 1, 33)
			for i, v := range nan {
				if v == v {
					t.Fatalf("%s of NaN at %d: got %v", act, i, v)
				}
			}
		}
	})
}

func TestLayerNorm(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(31, 32))
		for _, n := range []int{1, 3, 16, 33, 100, 257} {
			for _, offset := range []float32{0, 3, -1e3} {
				const m = 3
				count := 0
				x := newStrided(t, m, n, 1, func() float32 {
					if count++; count > 2*n {
						return offset // a constant row
					}
					return offset + float32(rng.NormFloat64())
				})
				gain, bias := newStrided(t, 1, n, 0, normal(rng)), newStrided(t, 1, n, 0, normal(rng))
				y := newStrided(t, m, n, 4, zero)
				for _, eps := range []float64{0, 1e-5} {
					s.LayerNorm(Rows(y.v, y.ld), Rows(x.v, x.ld), gain.v, bias.v, eps, m, n)
					y.gapsIntact(t)
					for r := range m {
						mean, sum := 0.0, 0.0
						for c := range n {
							mean += x.at(r, c) / float64(n)
						}
						for c := range n {
							sum += (x.at(r, c) - mean) * (x.at(r, c) - mean)
						}
						for c := range n {
							v := 0.0
							if r < 2 && n > 1 {
								v = gain.at(0, c) * (x.at(r, c) - mean) / math.Sqrt(sum/float64(n)+eps)
							}
							near(t, fmt.Sprintf("n=%d eps=%v y[%d,%d]", n, eps, r, c), y.at(r, c), v+bias.at(0, c), math.Abs(v)+math.Abs(bias.at(0, c)))
						}
					}
				}
				copy(y.v, x.v[:n])
				s.LayerNorm(Rows(y.v, n), Rows(y.v, n), gain.v, bias.v, 1e-5, 1, n) // in place
				z := newStrided(t, 1, n, 0, zero)
				s.LayerNorm(Rows(z.v, n), Rows(x.v, n), gain.v, bias.v, 1e-5, 1, n)
				if !slices.Equal(y.v[:n], z.v) {
					t.Fatalf("n=%d: in place differs", n)
				}
			}
		}
	})
}

func TestCombine(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(33, 34))
		for _, n := range []int{1, 31, 32, 70, 256} {
			for _, fan := range []int{1, 2, 5, 8} {
				const m = 3
				x, w := newStrided(t, m*fan, n, 3, normal(rng)), newStrided(t, m, fan, 1, normal(rng))
				y := newStrided(t, m, n, 2, zero)
				s.Combine(Rows(y.v, y.ld), Rows(x.v, x.ld), Rows(w.v, w.ld), m, fan, n)
				y.gapsIntact(t)
				for r := range m {
					for c := range n {
						want, mag := 0.0, 0.0
						for j := range fan {
							v := w.at(r, j) * x.at(r*fan+j, c)
							want, mag = want+v, mag+math.Abs(v)
						}
						near(t, fmt.Sprintf("n=%d fan=%d y[%d,%d]", n, fan, r, c), y.at(r, c), want, mag)
					}
				}
			}
		}
	})
}

func TestAddRow(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(35, 36))
		for _, n := range []int{1, 16, 37} {
			x, row := newStrided(t, 3, n, 2, normal(rng)), newStrided(t, 1, n, 0, normal(rng))
			old := slices.Clone(x.v)
			s.Add(Rows(x.v, x.ld), Rows(x.v, x.ld), Rows(row.v, 0), 3, n)
			x.gapsIntact(t)
			for r := range 3 {
				for c := range n {
					if got, want := x.v[r*x.ld+c], old[r*x.ld+c]+row.v[c]; got != want {
						t.Fatalf("n=%d [%d,%d]: got %v, want %v", n, r, c, got, want)
					}
				}
			}
		}
	})
}

func TestRope(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(15, 16))
		for _, c := range [][2]int{{2, 2}, {6, 6}, {16, 16}, {64, 64}, {128, 128}, {80, 32}, {6, 2}, {96, 72}} {
			const m, heads = 3, 5
			dim, half := c[0], c[1]/2
			x := newStrided(t, m, heads*dim, 7, normal(rng))
			old := slices.Clone(x.v)
			angle := newStrided(t, m, half, 0, func() float32 { return float32(rng.NormFloat64() * 3) })
			cos, sin := newStrided(t, m, half, 0, zero), newStrided(t, m, half, 0, zero)
			for i, a := range angle.v {
				cos.v[i], sin.v[i] = float32(math.Cos(float64(a))), float32(math.Sin(float64(a)))
			}
			s.Rope(Rows(x.v, x.ld), cos.v, sin.v, m, heads, dim, 2*half)
			x.gapsIntact(t)
			for r := range m {
				for h := range heads {
					for i := range half {
						at := r*x.ld + h*dim + i
						a, b := float64(old[at]), float64(old[at+half])
						c, z := math.Cos(float64(angle.v[r*half+i])), math.Sin(float64(angle.v[r*half+i]))
						near(t, fmt.Sprintf("dim=%d [%d,%d] first", dim, r, h*dim+i), float64(x.v[at]), a*c-b*z, math.Abs(a)+math.Abs(b))
						near(t, fmt.Sprintf("dim=%d [%d,%d] second", dim, r, h*dim+i), float64(x.v[at+half]), b*c+a*z, math.Abs(a)+math.Abs(b))
					}
					for i := r*x.ld + h*dim + 2*half; i < r*x.ld+(h+1)*dim; i++ {
						if x.v[i] != old[i] {
							t.Fatalf("dim=%d rotary=%d: element %d was rotated", dim, 2*half, i)
						}
					}
				}
			}
		}
	})
}

// attentionShapes are calls of attention; a scale of 0 is that of heads of dim columns.
var attentionShapes = []struct {
	m, heads, dim, pos, window int
	scale, limit               float64
}{
	{1, 1, 1, 0, 0, 0, 0}, {1, 1, 64, 0, 0, 0, 0}, {1, 8, 64, 300, 0, 0, 0}, {1, 7, 80, 141, 0, 0, 0}, {1, 8, 16, 150, 30, 0, 5}, {3, 2, 5, 0, 0, 0, 0}, {9, 3, 16, 7, 0, 0, 0}, {17, 1, 128, 120, 0, 0, 0},
	{8, 4, 64, 128, 0, 0, 0}, {11, 2, 80, 127, 0, 0, 0}, {12, 2, 100, 90, 0, 0, 0}, {16, 1, 33, 255, 0, 0, 0}, {40, 2, 48, 0, 0, 0, 0},
	{1, 2, 64, 300, 1, 0, 0}, {17, 2, 64, 250, 1, 0, 0}, {9, 2, 64, 250, 100, 0, 0}, {40, 1, 32, 100, 130, 0, 0}, {40, 2, 5, 100, 130, 0, 0}, {9, 1, 64, 20, 500, 0, 0}, {5, 1, 96, 123, 128, 0, 0},
	{9, 3, 64, 140, 0, 0, 5}, {9, 3, 20, 140, 0, 0, 5}, {9, 3, 32, 140, 70, 0.02, 50}, {9, 1, 16, 140, 200, 1.5, 30}, {3, 2, 256, 5, 0, 0.07, 0},
	{1, 4, 64, 700, 0, 0, 0}, {1, 8, 48, 700, 600, 0, 0},
}

func TestAttention(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(17, 18))
		for _, c := range attentionShapes {
			a := Attention{M: c.m, Heads: c.heads, Dim: c.dim, Pos: c.pos, Window: c.window, Scale: c.scale, Cap: c.limit}
			if c.scale == 0 {
				a.Scale = 1 / math.Sqrt(float64(c.dim))
			}
			for _, sharp := range []float32{1, 30} { // 30: the softmax is almost a maximum
				context := c.pos + c.m
				q := newStrided(t, c.m, c.heads*c.dim, 2*c.dim, func() float32 { return sharp * float32(rng.NormFloat64()) })
				k, v := newStrided(t, context, c.dim, 0, normal(rng)), newStrided(t, context, c.dim, 0, normal(rng))
				k16, v16 := guardedSlice[uint16](t, context*c.dim), guardedSlice[uint16](t, context*c.dim)
				for i := range k16 {
					k16[i], v16[i] = number.FloatToHalf(k.v[i]), number.FloatToHalf(v.v[i])
				}
				scratch := guardedSlice[float32](t, AttentionScratch(c.heads, c.dim))
				for i := range scratch {
					scratch[i] = float32(math.NaN())
				}
				k8, v8 := cachedQ8(k.v, c.dim), cachedQ8(v.v, c.dim)
				for _, form := range []string{"f32", "f16", "q8"} {
					y := newStrided(t, c.m, c.heads*c.dim, 3, zero)
					get := func(wide []float32, half []uint16, codes []uint8, i int) float64 {
						switch form {
						case "f16":
							return float64(number.HalfToFloat(half[i]))
						case "q8":
							return refQ8(codes, c.dim, i)
						}
						return float64(wide[i])
					}
					switch form {
					case "f16":
						s.AttentionF16(Rows(y.v, y.ld), Rows(q.v, q.ld), k16, v16, scratch, a)
					case "q8":
						s.AttentionQ8(Rows(y.v, y.ld), Rows(q.v, q.ld), k8, v8, scratch, a)
					default:
						s.AttentionF32(Rows(y.v, y.ld), Rows(q.v, q.ld), k.v, v.v, scratch, a)
					}
					y.gapsIntact(t)
					for r := range c.m {
						for h := range c.heads {
							scores, top := make([]float64, c.pos+r+1), math.Inf(-1)
							for p := range scores {
								for d := range c.dim {
									scores[p] += q.at(r, h*c.dim+d) * get(k.v, k16, k8, p*c.dim+d) * a.Scale
								}
								if c.limit > 0 {
									scores[p] = c.limit * math.Tanh(scores[p]/c.limit)
								}
								if c.window > 0 && p <= c.pos+r-c.window {
									scores[p] = math.Inf(-1)
								}
								top = max(top, scores[p])
							}
							sum := 0.0
							for p := range scores {
								scores[p] = math.Exp(scores[p] - top)
								sum += scores[p]
							}
							for d := range c.dim {
								want, mag := 0.0, 0.0
								for p, e := range scores {
									term := e / sum * get(v.v, v16, v8, p*c.dim+d)
									want, mag = want+term, mag+math.Abs(term)
								}
								// An error of a score, relative to its size, is an error of its weight.
								near(t, fmt.Sprintf("%v %s y[%d,%d]", c, form, r, h*c.dim+d), y.at(r, h*c.dim+d), want, mag*float64(sharp)+0.1)
							}
						}
					}
				}
			}
		}
	})
}

// Over a bfloat16 cache queries and weights are rounded, and nothing else. A weight in the middle of two bfloat16 numbers,
// as far as float32 tells, may become either.
func TestAttentionBF16(t *testing.T) {
	brain := func(v float64) float64 {
		return float64(math.Float32frombits(uint32(number.FloatToBrain(float32(v))) << 16))
	}
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(27, 28))
		for _, c := range attentionShapes {
			a := Attention{M: c.m, Heads: c.heads, Dim: c.dim, Pos: c.pos, Window: c.window, Scale: c.scale, Cap: c.limit}
			if c.scale == 0 {
				a.Scale = 1 / math.Sqrt(float64(c.dim))
			}
			for _, sharp := range []float64{1, 30} {
				context := c.pos + c.m
				q := newStrided(t, c.m, c.heads*c.dim, 2*c.dim, func() float32 { return float32(sharp * rng.NormFloat64()) })
				k, v := guardedSlice[uint16](t, context*c.dim), guardedSlice[uint16](t, context*c.dim)
				for i := range k {
					k[i] = number.FloatToBrain(float32(rng.NormFloat64()))
					v[i] = number.FloatToBrain(float32(rng.NormFloat64()))
				}
				wide := func(x []uint16, i int) float64 { return float64(math.Float32frombits(uint32(x[i]) << 16)) }
				scratch := guardedSlice[float32](t, AttentionScratch(c.heads, c.dim))
				for i := range scratch {
					scratch[i] = float32(math.NaN())
				}
				y := newStrided(t, c.m, c.heads*c.dim, 3, zero)
				s.AttentionBF16(Rows(y.v, y.ld), Rows(q.v, q.ld), k, v, scratch, a)
				y.gapsIntact(t)
				for r := range c.m {
					first, end := a.first(r), c.pos+r+1
					for h := range c.heads {
						scores, tops := make([]float64, end), make([]float64, end)
						top := math.Inf(-1)
						for p := first; p < end; p++ {
							for d := range c.dim {
								scores[p] += brain(q.at(r, h*c.dim+d)) * wide(k, p*c.dim+d) * a.Scale
							}
							if c.limit > 0 {
								scores[p] = c.limit * math.Tanh(scores[p]/c.limit)
							}
							top = max(top, scores[p])
							tops[p] = top
						}
						for p := end - 2; p >= first; p-- { // the largest one up to the end of the block
							if (p+1)%128 != 0 {
								tops[p] = tops[p+1]
							}
						}
						sum, want := 0.0, make([]float64, c.dim)
						slack := make([]float64, c.dim)
						for p := first; p < end; p++ {
							weight, fade := math.Exp(scores[p]-tops[p]), math.Exp(tops[p]-top)
							sum += weight * fade
							doubt := math.Abs(brain(weight*(1+1e-5*sharp)) - brain(weight*(1-1e-5*sharp)))
							for d := range c.dim {
								value := wide(v, p*c.dim+d)
								want[d] += brain(weight) * fade * value
								slack[d] += (doubt + 1e-5*sharp*weight) * fade * math.Abs(value)
							}
						}
						for d := range c.dim {
							if got := y.at(r, h*c.dim+d); !(math.Abs(got-want[d]/sum) <= slack[d]/sum+1e-6) {
								t.Fatalf("%v y[%d,%d]: got %v, want %v within %v", c, r, h*c.dim+d, got, want[d]/sum, slack[d]/sum)
							}
						}
					}
				}
			}
		}
	})
}

// A position outside the cache that counts 700 times is as good as 700 equal ones in front of it.
func TestAttentionRest(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(18, 19))
		for _, a := range []Attention{
			{M: 11, Heads: 2, Dim: 64, Pos: 250}, {M: 70, Heads: 1, Dim: 40, Cap: 4}, {M: 1, Heads: 3, Dim: 5, Pos: 130},
		} {
			const count = 700
			a.Scale = 0.2
			width, context := a.Heads*a.Dim, a.Pos+a.M
			fill := func(rows, cols int) []float32 { return newStrided(t, rows, cols, 0, normal(rng)).v }
			q, k, v, got := fill(a.M, width), fill(context, a.Dim), fill(context, a.Dim), make([]float32, a.M*width)
			a.Rest = Rest{Key: fill(1, a.Dim), Value: fill(1, a.Dim), Count: count}
			s.AttentionF32(Rows(got, width), Rows(q, width), k, v, make([]float32, AttentionScratch(a.Heads, a.Dim)), a)
			long := a
			long.Pos, long.Rest = a.Pos+count, Rest{}
			keys, values := slices.Repeat(a.Rest.Key, count), slices.Repeat(a.Rest.Value, count)
			want := make([]float32, a.M*width)
			Reference().AttentionF32(Rows(want, width), Rows(q, width), append(keys, k...), append(values, v...), nil,
				long)
			for i := range got {
				near(t, fmt.Sprintf("%+v element %d", [4]int{a.M, a.Heads, a.Dim, a.Pos}, i), float64(got[i]), float64(want[i]), 1)
			}
			// Over bfloat16 its key and value stay float32. A weight that is rounded to the other neighbour is one of
			// hundreds.
			kb, vb := make([]uint16, len(k)), make([]uint16, len(v))
			toBF16(kb, k)
			toBF16(vb, v)
			s.AttentionBF16(Rows(got, width), Rows(q, width), kb, vb, make([]float32, AttentionScratch(a.Heads, a.Dim)), a)
			Reference().AttentionBF16(Rows(want, width), Rows(q, width), kb, vb, nil, a)
			for i := range got {
				if !(math.Abs(float64(got[i]-want[i])) <= 1e-4) {
					t.Fatalf("%+v bf16 element %d: got %v, want %v", [4]int{a.M, a.Heads, a.Dim, a.Pos}, i, got[i], want[i])
				}
			}
		}
	})
}

func TestConversions(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		src, dst := guardedSlice[uint16](t, 1<<16), guardedSlice[float32](t, 1<<16)
		for i := range src {
			src[i] = uint16(i)
		}
		s.FromBF16(dst, src)
		for i, v := range dst {
			if want := uint32(i) << 16; math.Float32bits(v) != want && v == v {
				t.Fatalf("bf16 %04x: got %v", i, v)
			}
		}
		s.FromF16(dst, src)
		for i, v := range dst {
			if want := number.HalfToFloat(uint16(i)); v != want && (v == v || want == want) {
				t.Fatalf("f16 %04x: got %v, want %v", i, v, want)
			}
		}
		for _, n := range []int{0, 1, 7, 8, 15, 16, 17, 33} {
			in, out := guardedSlice[float32](t, n), guardedSlice[uint16](t, n)
			rng := rand.New(rand.NewPCG(19, uint64(n)))
			for range 200 {
				for i := range in {
					in[i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(44)-28)))
				}
				finite := true
				ok := s.ToF16(out, in)
				for i, h := range out {
					if want := number.FloatToHalf(in[i]); h != want {
						t.Fatalf("to f16 of %v: got %04x, want %04x", in[i], h, want)
					}
					finite = finite && h&0x7c00 != 0x7c00
				}
				if ok != finite {
					t.Fatalf("to f16 of %v: reports %v, want %v", in, ok, finite)
				}
			}
			for i := range in {
				for _, bad := range []float64{65520, -1e30, math.NaN(), math.Inf(1)} {
					clear(in)
					in[i] = float32(bad)
					if s.ToF16(out, in) {
						t.Fatalf("to f16: %v at %d of %d was accepted", bad, i, n)
					}
				}
			}
		}
	})
}

// All numbers that bfloat16 has, those in the middle of two, and their neighbours in float32.
func TestToBF16(t *testing.T) {
	var in []float32
	for brain := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			in = append(in, math.Float32frombits(brain<<16|low))
		}
	}
	// nearest is the bfloat16 number that is nearest, by comparing with its two candidates.
	nearest := func(v float32) uint16 {
		below := uint16(math.Float32bits(v) >> 16)
		magnitude := math.Abs(float64(v))
		if magnitude < 0x1p-126 {
			return below & 0x8000
		}
		wide := func(brain uint16) float64 {
			if brain&0x7fff == 0x7f80 {
				return 0x1p128 // where the next number were
			}
			return math.Abs(float64(math.Float32frombits(uint32(brain) << 16)))
		}
		switch down, up := magnitude-wide(below), wide(below+1)-magnitude; {
		case math.IsInf(magnitude, 0) || down < up || down == up && below%2 == 0:
			return below
		}
		return below + 1
	}
	eachSet(t, func(t *testing.T, s *Set) {
		out := make([]uint16, len(in))
		if s.ToBF16(out, in) {
			t.Fatal("infinities and NaN were accepted")
		}
		for i, v := range in {
			if v != v {
				if out[i]&0x7f80 != 0x7f80 || out[i]&0x7f == 0 {
					t.Fatalf("to bf16 of NaN %08x: got %04x", math.Float32bits(v), out[i])
				}
			} else if want := nearest(v); out[i] != want {
				t.Fatalf("to bf16 of %v: got %04x, want %04x", v, out[i], want)
			}
		}
		for _, n := range []int{1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65} {
			few, to := guardedSlice[float32](t, n), guardedSlice[uint16](t, n)
			for i := range few {
				for _, bad := range []float32{3.4e38, -3.4e38, float32(math.NaN()), float32(math.Inf(-1))} {
					clear(few)
					if few[i] = bad; s.ToBF16(to, few) {
						t.Fatalf("to bf16: %v at %d of %d was accepted", bad, i, n)
					}
				}
				if few[i] = 3.38e38; !s.ToBF16(to, few) {
					t.Fatalf("to bf16: %v at %d of %d was refused", few[i], i, n)
				}
			}
		}
	})
}

func TestExpf(t *testing.T) {
	for x := float32(-87.3); x < 88.7; x += 0.00217 {
		if got, want := expf(x), float32(math.Exp(float64(x))); ulps(got, want) > 2 {
			t.Fatalf("expf(%v): got %v, want %v", x, got, want)
		}
	}
	for _, c := range [][2]float64{{-200, 0}, {0, 1}, {math.Inf(1), math.Inf(1)}, {math.Inf(-1), 0}, {200, math.Inf(1)}, {88.7228, 3.4e38}} {
		if got := float64(expf(float32(c[0]))); got != c[1] && math.Abs(got-c[1]) > 1e-2*c[1] {
			t.Errorf("expf(%v): got %v, want %v", c[0], got, c[1])
		}
	}
	if v := expf(float32(math.NaN())); v == v {
		t.Errorf("expf(NaN): got %v", v)
	}
}

func TestSelection(t *testing.T) {
	names := map[string]bool{}
	for _, s := range Sets() {
		if names[s.Name] || s.TileStep < 1 {
			t.Errorf("set %q is listed twice or has no tile step", s.Name)
		}
		names[s.Name] = true
		if got, err := ByName(s.Name); err != nil || got.Name != s.Name {
			t.Errorf("ByName(%q): %v, %v", s.Name, got, err)
		}
	}
	t.Setenv(EnvVar, "reference")
	if s, err := ByName(""); err != nil || s.Name != "reference" {
		t.Errorf("%s=reference: got %v, %v", EnvVar, s, err)
	}
	if s, err := ByName("portable"); err != nil || s.Name != "portable" {
		t.Errorf("an explicit name must win: got %v, %v", s, err)
	}
	t.Setenv(EnvVar, "mmx")
	_, err := ByName("")
	if err == nil || !strings.Contains(err.Error(), `"mmx" from HETC_HOST_KERNELS`) {
		t.Errorf("unknown set: %v", err)
	}
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "reference, portable") {
		t.Errorf("unknown set: hints %q", hints)
	}
	t.Setenv(EnvVar, "")
	if s, err := ByName(""); err != nil || s.Name != Best().Name {
		t.Errorf("default: got %v, %v, want %s", s, err, Best().Name)
	}
}

func BenchmarkPortable(b *testing.B) {
	const k, n = 2048, 512
	w := make([]float32, k*n)
	for i := range w {
		w[i] = float32(i%17) - 8
	}
	for _, m := range []int{1, 32} {
		x, y := make([]float32, m*k), make([]float32, m*n)
		s := Portable()
		b.Run(fmt.Sprintf("w32/m=%d", m), func(b *testing.B) {
			tiles, _ := mem.View[float32](packWeight(b, "w32", w, k, n))
			for b.Loop() {
				s.MatMulF32(Rows(y, n), Rows(x, k), tiles, m, k, n)
			}
			b.ReportMetric(2*float64(m*k*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		q, scale, sums := make([]uint8, m*k), make([]float32, m), make([]int32, m*k/32)
		b.Run(fmt.Sprintf("q8c/m=%d", m), func(b *testing.B) {
			tiles := packWeight(b, "q8c", w, k, n)
			for b.Loop() {
				s.MatMulQ8C(Rows(y, n), Quantised{Codes: Rows(q, k), Scale: scale}, tiles, m, k, n)
			}
			b.ReportMetric(2*float64(m*k*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
		})
		b.Run(fmt.Sprintf("q4b32/m=%d", m), func(b *testing.B) {
			tiles := packWeight(b, "q4b32", w, k, n)
			for b.Loop() {
				s.MatMulQ4B32(Rows(y, n), Quantised{Codes: Rows(q, k), Scale: scale, Sums: Rows(sums, k/32)}, tiles, m,
					k, n)
			}
			b.ReportMetric(2*float64(m*k*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
		})
	}
}
