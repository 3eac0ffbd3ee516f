package kernel

import (
	"encoding/binary"
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

// The tests of this file compare every set of this machine with formulas in double precision. Those of twin_test.go
// compare vector sets with the portable one, in harder cases.

// guard is the content of memory that no kernel may change.
const guard = -7.25e11

// guardedSlice has n elements, the last of which touches an inaccessible page where the system has such pages.
func guardedSlice[T mem.Scalar](t testing.TB, n int) []T {
	t.Helper()
	size := len(mem.Bytes(make([]T, 1)))
	r, err := mem.Guarded(n * size)
	if diag.ClassOf(err) == diag.ClassUnavailable {
		return make([]T, n)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return viewAs[T](t, r.Bytes())
}

// viewAs reads memory as numbers.
func viewAs[T mem.Scalar](t testing.TB, raw []byte) []T {
	t.Helper()
	numbers, err := mem.View[T](raw)
	if err != nil {
		t.Fatal(err)
	}
	return numbers
}

// strided is a [rows,cols] matrix whose last element touches an inaccessible page. Rows begin ld elements apart.
type strided struct {
	v              []float32
	rows, cols, ld int
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

// matrix is the operand of a kernel.
func (s strided) matrix() Matrix[float32] { return Rows(s.v, s.ld) }

// row is row r without its padding.
func (s strided) row(r int) []float32 { return s.v[r*s.ld:][:s.cols] }

// at is element [r,c].
func (s strided) at(r, c int) float64 { return float64(s.v[r*s.ld+c]) }

// copied is a copy in ordinary memory.
func (s strided) copied() strided {
	s.v = slices.Clone(s.v)
	return s
}

// gapsIntact fails when a value between rows was changed.
func (s strided) gapsIntact(t *testing.T) {
	t.Helper()
	for i, v := range s.v {
		if i%s.ld >= s.cols && v != guard {
			t.Fatalf("element %d lies between rows of %d columns, pitch %d, and became %v", i, s.cols, s.ld, v)
		}
	}
}

// check compares every element with the value that want returns. It may differ by 1e-5 of the magnitude, which is the
// sum of the magnitudes of the terms of that value. What lies between rows must not have changed.
func (s strided) check(t *testing.T, what string, want func(r, c int) (value, magnitude float64)) {
	t.Helper()
	s.gapsIntact(t)
	for r := range s.rows {
		for c := range s.cols {
			value, magnitude := want(r, c)
			if got := s.at(r, c); !isNear(got, value, magnitude) {
				t.Fatalf("%s: [%d,%d] is %v, want %v (magnitude %v)", what, r, c, got, value, magnitude)
			}
		}
	}
}

// checkBits compares every element with the very number that want returns.
func (s strided) checkBits(t *testing.T, what string, want func(r, c int) float32) {
	t.Helper()
	s.gapsIntact(t)
	for r := range s.rows {
		for c, got := range s.row(r) {
			if exact := want(r, c); got != exact {
				t.Fatalf("%s: [%d,%d] is %v, want %v", what, r, c, got, exact)
			}
		}
	}
}

// isNear reports whether a result is off by at most 1e-5 of the magnitude of its terms.
func isNear(got, want, magnitude float64) bool { return math.Abs(got-want) <= 1e-5*magnitude+1e-37 }

// normal fills with normally distributed numbers.
func normal(rng *rand.Rand) func() float32 {
	return func() float32 { return float32(rng.NormFloat64()) }
}

// scaled fills with normally distributed numbers times a factor.
func scaled(rng *rand.Rand, factor float64) func() float32 {
	return func() float32 { return float32(factor * rng.NormFloat64()) }
}

// unset fills an output, of which a kernel is to write every element.
func unset() float32 { return guard }

// eachSet runs a subtest per set of this machine.
func eachSet(t *testing.T, f func(t *testing.T, s *Set)) {
	for _, s := range Sets() {
		t.Run(s.Name, func(t *testing.T) { f(t, s) })
	}
}

// product is the size of a product [m,k] x [k,n], with so many elements of padding between rows.
type product struct{ m, k, n, gap int }

// eachProduct calls f for products of many sizes, with and without padding.
func eachProduct(gap int, f func(p product)) {
	for _, size := range []struct{ m, k, n int }{
		{1, 1, 1}, {1, 32, 32}, {1, 64, 96}, {2, 7, 33}, {3, 5, 31}, {4, 128, 64}, {5, 129, 65}, {6, 31, 100},
		{7, 256, 97}, {8, 33, 1}, {12, 96, 64}, {9, 300, 40}, {13, 100, 130}, {17, 67, 61}, {1, 1000, 257},
		{24, 512, 64}, {0, 8, 8},
	} {
		f(product{size.m, size.k, size.n, 0})
		f(product{size.m, size.k, size.n, gap})
	}
}

// normals are n normally distributed numbers.
func normals(rng *rand.Rand, n int) []float32 {
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(rng.NormFloat64())
	}
	return numbers
}

// packWeight packs a weight [k,n] in aligned memory.
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

// checkProduct compares y with the product of x and the weight [k,n].
func checkProduct(t *testing.T, p product, y, x strided, w []float32) {
	t.Helper()
	y.check(t, fmt.Sprintf("%+v", p), func(r, c int) (value, magnitude float64) {
		for i := range p.k {
			term := x.at(r, i) * float64(w[i*p.n+c])
			value, magnitude = value+term, magnitude+math.Abs(term)
		}
		return value, magnitude
	})
}

// Products of float32 numbers have the sums of their terms.
func TestMatMulF32(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(1, 2))
		eachProduct(3, func(p product) {
			w := normals(rng, p.k*p.n)
			tiles := viewAs[float32](t, packWeight(t, "w32", w, p.k, p.n))
			x := newStrided(t, p.m, p.k, p.gap, normal(rng))
			y := newStrided(t, p.m, p.n, p.gap, unset)

			s.MatMulF32(y.matrix(), x.matrix(), tiles, p.m, p.k, p.n)

			checkProduct(t, p, y, x, w)
		})
	})
}

// Products with bfloat16 weights have the sums of their terms.
func TestMatMulBF16(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(1, 2))
		eachProduct(3, func(p product) {
			w := normals(rng, p.k*p.n)
			for i := range w { // values that bfloat16 holds
				w[i] = math.Float32frombits(math.Float32bits(w[i]) &^ 0xffff)
			}
			tiles := viewAs[uint16](t, packWeight(t, "w16", w, p.k, p.n))
			x := newStrided(t, p.m, p.k, p.gap, normal(rng))
			y := newStrided(t, p.m, p.n, p.gap, unset)

			s.MatMulBF16(y.matrix(), x.matrix(), tiles, p.m, p.k, p.n)

			checkProduct(t, p, y, x, w)
		})
	})
}

// quantised is u8 rows with scales.
type quantised struct {
	u     []uint8
	ld    int
	scale []float32
}

// newQuantised has random codes, the lowest, middle and highest ones more often than others.
func newQuantised(t testing.TB, rng *rand.Rand, m, k, gap int) quantised {
	q := quantised{
		u:     guardedSlice[uint8](t, max(0, (m-1)*(k+gap)+k)),
		ld:    k + gap,
		scale: guardedSlice[float32](t, m),
	}
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

// at is the integer that the code [r,c] stands for.
func (q quantised) at(r, c int) int { return int(q.u[r*q.ld+c]) - 128 }

// operand is the operand of a kernel that needs no sums.
func (q quantised) operand() Quantised { return Quantised{Codes: Rows(q.u, q.ld), Scale: q.scale} }

// operandWithSums has the sums of blocks that the set computes.
func (q quantised) operandWithSums(t testing.TB, s *Set, m, k int) Quantised {
	blocks := (k + BlockK - 1) / BlockK
	rows := q.operand()
	rows.Sums = Rows(guardedSlice[int32](t, m*blocks), blocks)
	s.BlockSums(rows.Sums, rows.Codes, m, k)
	return rows
}

// checkCodes compares y with the products of codes. code returns the integer that a weight's code stands for, and scale
// the scale of its column. Sums of integers are exact, so that only the last step rounds.
func checkCodes(t *testing.T, p product, y strided, x quantised, code func(k, n int) int, scale func(n int) float32) {
	t.Helper()
	y.gapsIntact(t)
	for r := range p.m {
		for c, got := range y.row(r) {
			dot := 0
			for i := range p.k {
				dot += x.at(r, i) * code(i, c)
			}
			want := float32(dot) * (x.scale[r] * scale(c))
			if ulps(got, want) > 1 {
				t.Fatalf("%+v: [%d,%d] is %v, want %v", p, r, c, got, want)
			}
		}
	}
}

// Products with 8-bit weights are those of the codes, which lie as pack's documentation says.
func TestMatMulQ8C(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(3, 4))
		eachProduct(5, func(p product) {
			tiles := packWeight(t, "q8c", normals(rng, p.k*p.n), p.k, p.n)
			x := newQuantised(t, rng, p.m, p.k, p.gap)
			y := newStrided(t, p.m, p.n, p.gap, unset)

			s.MatMulQ8C(y.matrix(), x.operand(), tiles, p.m, p.k, p.n)

			padded := (p.k + 3) / 4 * 4
			tile := func(n int) []byte { return tiles[n/32*(32*padded+256):] }
			code := func(k, n int) int { return int(int8(tile(n)[k/4*128+n%32*4+k%4])) }
			scale := func(n int) float32 { return f32at(tile(n)[32*padded:], n%32) }
			checkCodes(t, p, y, x, code, scale)
		})
	})
}

// Products with 6-bit weights are those of the codes: four bits in one place and two in another.
func TestMatMulQ6C(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(13, 14))
		eachProduct(5, func(p product) {
			tiles := packWeight(t, "q6c", normals(rng, p.k*p.n), p.k, p.n)
			x := newQuantised(t, rng, p.m, p.k, p.gap)
			y := newStrided(t, p.m, p.n, p.gap, unset)

			s.MatMulQ6C(y.matrix(), x.operandWithSums(t, s, p.m, p.k), tiles, p.m, p.k, p.n)

			groups := (p.k + 15) / 16
			tile := func(n int) []byte { return tiles[n/32*(384*groups+128):] }
			code := func(k, n int) int {
				group, quad, at := tile(n)[k/16*384:], k%16/4, n%32*4+k%4
				low, high := group[quad/2*128+at], group[256+at]>>(2*quad)&3
				if quad%2 == 1 {
					low >>= 4
				}
				return int(16*high+low&15) - 32
			}
			scale := func(n int) float32 { return f32at(tile(n)[384*groups:], n%32) }
			checkCodes(t, p, y, x, code, scale)
		})
	})
}

// Products with 4-bit weights whose columns are requantised are those of 8-bit codes: a block's scale is a part of the
// column's largest one in steps of a 127th, and a code an eighth of a nibble times it.
func TestMatMulRequant(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(15, 16))
		eachProduct(5, func(p product) {
			tiles := packWeight(t, "q4b32", normals(rng, p.k*p.n), p.k, p.n)
			x := newQuantised(t, rng, p.m, p.k, p.gap)
			y := newStrided(t, p.m, p.n, p.gap, unset)

			s.MatMulRequant(y.matrix(), x.operand(), tiles, make([]byte, RequantBytes(p.k)), p.m, p.k, p.n)

			blocks := (p.k + 31) / 32
			block := func(k, n int) []byte { return tiles[(n/32*blocks+k/32)*576:] }
			scale := func(k, n int) float64 {
				return float64(number.HalfToFloat(binary.LittleEndian.Uint16(block(k, n)[512+n%32*2:])))
			}
			top := func(n int) (top float64) {
				for k := 0; k < p.k; k += 32 {
					top = max(top, math.Abs(scale(k, n)))
				}
				return top
			}
			code := func(k, n int) int {
				if top(n) == 0 {
					return 0
				}
				nibble := int(block(k, n)[k%32/4*64+n%16*4+k%4] >> (n % 32 / 16 * 4) & 15)
				part := math.RoundToEven(float64(float32(scale(k, n)) * float32(127/top(n))))
				return int(math.Floor(float64(nibble-8)*part/8 + 0.5))
			}
			checkCodes(t, p, y, x, code, func(n int) float32 { return float32(8 * top(n) / 127) })
		})
	})
}

// Products with 4-bit weights are the sums over blocks of 32 or 128 rows, each with a scale.
func TestMatMulQ4(t *testing.T) {
	for _, block := range []int{32, 128} {
		t.Run(fmt.Sprintf("q4b%d", block), func(t *testing.T) {
			eachSet(t, func(t *testing.T, s *Set) { testMatMulQ4(t, s, block) })
		})
	}
}

func testMatMulQ4(t *testing.T, s *Set, size int) {
	multiply := s.MatMulQ4B32
	if size == 128 {
		multiply = s.MatMulQ4B128
	}
	rng := rand.New(rand.NewPCG(5, 6))
	eachProduct(5, func(p product) {
		tiles := packWeight(t, fmt.Sprintf("q4b%d", size), normals(rng, p.k*p.n), p.k, p.n)
		x := newQuantised(t, rng, p.m, p.k, p.gap)
		y := newStrided(t, p.m, p.n, p.gap, unset)

		multiply(y.matrix(), x.operandWithSums(t, s, p.m, p.k), tiles, p.m, p.k, p.n)

		blocks := (p.k + size - 1) / size
		y.check(t, fmt.Sprintf("%+v", p), func(r, c int) (value, magnitude float64) {
			for b := range blocks {
				block, column := tiles[(c/32*blocks+b)*(16*size+64):], c%32
				dot := 0
				for i := range min(size, p.k-b*size) {
					nibble := block[i/4*64+column%16*4+i%4]
					if column >= 16 {
						nibble >>= 4
					}
					dot += x.at(r, b*size+i) * (int(nibble&15) - 8)
				}
				half := block[16*size+2*column:]
				scale := number.HalfToFloat(uint16(half[0]) | uint16(half[1])<<8)
				term := float64(x.scale[r]) * float64(dot) * float64(scale)
				value, magnitude = value+term, magnitude+math.Abs(term)
			}
			return value, magnitude
		})
	})
}

// The sums of blocks are those of the integers that the codes stand for; the last block of a row may be shorter.
func TestBlockSums(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(5, 6))
		eachProduct(5, func(p product) {
			x := newQuantised(t, rng, p.m, p.k, p.gap)

			sums := x.operandWithSums(t, s, p.m, p.k).Sums

			for r := range p.m {
				for b := range (p.k + 31) / 32 {
					want := int32(0)
					for c := b * 32; c < min(p.k, b*32+32); c++ {
						want += int32(x.at(r, c))
					}
					if got := *sums.at(r, b); got != want {
						t.Fatalf("%+v: the sum of row %d, block %d is %d, want %d", p, r, b, got, want)
					}
				}
			}
		})
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
	const m, k, n = 29, 1100, 96
	const tiles = n / 32
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(7, 8))
		w := normals(rng, k*n)
		x := newStrided(t, m, k, 0, normal(rng)).matrix()
		codes := newQuantised(t, rng, m, k, 0).operandWithSums(t, s, m, k)
		w32 := viewAs[float32](t, packWeight(t, "w32", w, k, n))
		w16 := viewAs[uint16](t, packWeight(t, "w16", w, k, n))

		// Each multiplies rows from..end by so many columns from a tile on.
		type multiply func(y Matrix[float32], tile, columns, from, end int)
		ofCodes := func(scheme string, f func(y Matrix[float32], x Quantised, w []byte, m, k, n int)) multiply {
			packed := packWeight(t, scheme, w, k, n)
			return func(y Matrix[float32], tile, columns, from, end int) {
				f(y, codes.From(from), packed[tile*len(packed)/tiles:], end-from, k, columns)
			}
		}
		products := map[string]multiply{
			"w32": func(y Matrix[float32], tile, columns, from, end int) {
				s.MatMulF32(y, x.From(from, 0), w32[tile*len(w32)/tiles:], end-from, k, columns)
			},
			"w16": func(y Matrix[float32], tile, columns, from, end int) {
				s.MatMulBF16(y, x.From(from, 0), w16[tile*len(w16)/tiles:], end-from, k, columns)
			},
			"q8c":    ofCodes("q8c", s.MatMulQ8C),
			"q6c":    ofCodes("q6c", s.MatMulQ6C),
			"q4b32":  ofCodes("q4b32", s.MatMulQ4B32),
			"q4b128": ofCodes("q4b128", s.MatMulQ4B128),
		}
		for name, multiply := range products {
			whole, parts := make([]float32, m*n), make([]float32, m*n)

			multiply(Rows(whole, n), 0, n, 0, m)
			for _, rows := range [][2]int{{0, 1}, {1, 2}, {2, 4}, {4, 11}, {11, 29}} {
				for tile := range tiles {
					multiply(Rows(parts, n).From(rows[0], tile*32), tile, 32, rows[0], rows[1])
				}
			}

			if !slices.Equal(whole, parts) {
				t.Errorf("%s: the result depends on how rows and tiles are divided", name)
			}
		}
	})
}

// hostileRows are rows to be quantised: zeros, ties, numbers whose scale is subnormal, large ones, and negative zeros.
func hostileRows(t *testing.T, rng *rand.Rand, m, n int) strided {
	count := 0
	return newStrided(t, m, n, 2, func() float32 {
		v := float32(rng.NormFloat64())
		count++
		switch count / n {
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
}

// largest is the largest magnitude of a row.
func largest(row []float32) float32 {
	top := float32(0)
	for _, v := range row {
		top = max(top, v, -v)
	}
	return top
}

// checkQuantised compares codes with the rows they are made of and their scales, of which 0 is for a row of zeros. What
// lies between rows is 0 still.
func checkQuantised(t *testing.T, what string, codes []uint8, ld int, x strided, scale []float32) {
	t.Helper()
	for i, got := range codes {
		r, c := i/ld, i%ld
		want := 0.0 // between rows
		if c < x.cols {
			want = 128
			if scale[r] != 0 {
				want += max(-127, min(127, math.RoundToEven(float64(x.row(r)[c]/scale[r]))))
			}
		}
		if float64(got) != want {
			t.Fatalf("%s: code [%d,%d] is %d, want %v (scale %v)", what, r, c, got, want, scale[min(r, len(scale)-1)])
		}
	}
}

// checkRefusal puts NaN and infinities in random places and wants quantise to answer their row.
func checkRefusal(t *testing.T, what string, rng *rand.Rand, x strided, quantise func() (row int)) {
	t.Helper()
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		r, c := rng.IntN(x.rows), rng.IntN(x.cols)
		place := &x.row(r)[c]
		old := *place
		*place = float32(bad)
		if got := quantise(); got != r {
			t.Fatalf("%s: %v at [%d,%d] was answered %d", what, bad, r, c, got)
		}
		*place = old
	}
}

// Rows are quantised by their largest magnitude, ties to even. A row with NaN or an infinity is refused.
func TestQuantRows(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(9, 10))
		for _, n := range []int{1, 2, 7, 16, 31, 64, 65, 127, 1000} {
			const m = 7
			x := hostileRows(t, rng, m, n)
			ld := n + 3
			y := guardedSlice[uint8](t, (m-1)*ld+n)
			scale := guardedSlice[float32](t, m)
			quantise := func() int {
				return s.QuantRows(Quantised{Codes: Rows(y, ld), Scale: scale}, x.matrix(), m, n)
			}

			if bad := quantise(); bad != -1 {
				t.Fatalf("n=%d: refused row %d", n, bad)
			}

			what := fmt.Sprintf("n=%d", n)
			for r, got := range scale {
				if want := largest(x.row(r)) / 127; got != want {
					t.Fatalf("%s: the scale of row %d is %v, want %v", what, r, got, want)
				}
			}
			checkQuantised(t, what, y, ld, x, scale)
			checkRefusal(t, what, rng, x, quantise)
		}
	})
}

// Quotients next to halves are rounded as those of a division, whatever the scale.
func TestQuantHalves(t *testing.T) {
	const n = 512
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(9, 12))
		x, y, scale := guardedSlice[float32](t, n), guardedSlice[uint8](t, n), guardedSlice[float32](t, 1)
		check := func(step float32) {
			for i := range x {
				half := float32(float64(step) * (float64(rng.IntN(256)-128) + 0.5))
				x[i] = math.Float32frombits(math.Float32bits(half) + uint32(rng.IntN(7)-3))
			}
			codes := Quantised{Codes: Rows(y, n), Scale: scale}
			if bad := s.QuantStatic(codes, []float32{step}, Rows(x, n), 1, n); bad != -1 {
				t.Fatalf("scale %v: refused row %d", step, bad)
			}
			for i, value := range x {
				want := 128 + min(max(math.RoundToEven(float64(value/step)), -127), 127)
				if got := y[i]; float64(got) != want {
					t.Fatalf("scale %x: %x becomes %d, want %v", step, value, got, want)
				}
			}
		}
		for _, power := range []int{-100, -61, -60, -59, -10, -1, 0, 1, 20, 59, 60, 61, 100} {
			first := math.Float32bits(float32(math.Ldexp(1, power)))
			for _, mantissa := range []uint32{0, 1, 2, 1<<22 - 1, 1 << 22, 1<<23 - 2, 1<<23 - 1} {
				check(math.Float32frombits(first + mantissa))
			}
			for range 50 {
				check(math.Float32frombits(first + rng.Uint32N(1<<23)))
			}
		}
	})
}

// Rows are quantised by the smallest of the static scales that holds them, or by the largest one.
func TestQuantStatic(t *testing.T) {
	allScales := [][]float32{
		{1}, {0.5}, {0.003}, {1e-30}, {1e-44}, {1e30},
		{0.003, 0.02}, {0.02, 0.003}, {0.01, 0.01}, {1e-44, 1e30},
		{0.002, 0.01, 0.02, 1e34},
	}
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(9, 11))
		for _, n := range []int{1, 7, 16, 31, 64, 127, 1000} {
			for _, scales := range allScales {
				const m = 6
				first := scales[0]
				factors := [m]float32{1, 0, 1e37, first, 127 * first, 0.5}
				count := 0
				x := newStrided(t, m, n, 2, func() float32 {
					v := float32(rng.NormFloat64()) * factors[count/n]
					count++
					return v
				})
				ld := n + 3
				y := guardedSlice[uint8](t, (m-1)*ld+n)
				got := guardedSlice[float32](t, m)
				quantise := func() int {
					return s.QuantStatic(Quantised{Codes: Rows(y, ld), Scale: got}, scales, x.matrix(), m, n)
				}

				if bad := quantise(); bad != -1 {
					t.Fatalf("n=%d: refused row %d", n, bad)
				}

				what := fmt.Sprintf("n=%d scales %v", n, scales)
				for r := range m {
					top := largest(x.row(r))
					if want := smallestHolding(scales, top); got[r] != want {
						t.Fatalf("%s: row %d with at most %v has %v, want %v", what, r, top, got[r], want)
					}
				}
				checkQuantised(t, what, y, ld, x, got)
				checkRefusal(t, what, rng, x, quantise)
			}
		}
	})
}

// smallestHolding is the smallest scale whose 127-fold is at least top, or the largest of all.
func smallestHolding(scales []float32, top float32) float32 {
	best := slices.Max(scales)
	for _, scale := range scales {
		if scale >= top/127 && scale < best {
			best = scale
		}
	}
	return best
}

// Norm divides rows by the root of their mean square and multiplies by gains, also in place and of a row of zeros.
func TestNorm(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(11, 12))
		for _, n := range []int{1, 3, 16, 33, 100, 257} {
			for _, scale := range []float32{1, 1e-20, 1e25} {
				const m = 3
				count := 0
				x := newStrided(t, m, n, 1, func() float32 {
					if count++; count > 2*n {
						return 0 // the last row
					}
					return scale * float32(rng.NormFloat64())
				})
				gain := newStrided(t, 1, n, 0, normal(rng))
				y := newStrided(t, m, n, 4, unset)
				for _, eps := range []float64{0, 1e-5} {
					s.Norm(y.matrix(), x.matrix(), gain.v, eps, m, n)

					y.check(t, fmt.Sprintf("n=%d eps=%v", n, eps), func(r, c int) (value, magnitude float64) {
						if x.at(r, c) == 0 {
							return 0, 0
						}
						sum := 0.0
						for i := range n {
							sum += x.at(r, i) * x.at(r, i)
						}
						value = gain.at(0, c) * x.at(r, c) / math.Sqrt(sum/float64(n)+eps)
						return value, math.Abs(value)
					})
				}

				inPlace, elsewhere := slices.Clone(x.row(0)), make([]float32, n)
				s.Norm(Rows(inPlace, n), Rows(inPlace, n), gain.v, 1e-5, 1, n)
				s.Norm(Rows(elsewhere, n), x.matrix(), gain.v, 1e-5, 1, n)
				if !slices.Equal(inPlace, elsewhere) {
					t.Fatalf("n=%d: in place differs", n)
				}
			}
		}
	})
}

// LayerNorm subtracts the mean of a row and divides by its deviation, also in place and of a constant row.
func TestLayerNorm(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(31, 32))
		for _, n := range []int{1, 3, 16, 33, 100, 257} {
			for _, offset := range []float32{0, 3, -1e3} {
				const m = 3
				count := 0
				x := newStrided(t, m, n, 1, func() float32 {
					if count++; count > 2*n {
						return offset // the last row is constant
					}
					return offset + float32(rng.NormFloat64())
				})
				gain := newStrided(t, 1, n, 0, normal(rng))
				bias := newStrided(t, 1, n, 0, normal(rng))
				y := newStrided(t, m, n, 4, unset)
				for _, eps := range []float64{0, 1e-5} {
					s.LayerNorm(y.matrix(), x.matrix(), gain.v, bias.v, eps, m, n)

					y.check(t, fmt.Sprintf("n=%d eps=%v", n, eps), func(r, c int) (value, magnitude float64) {
						normed := 0.0
						if constant := r == m-1 || n == 1; !constant {
							mean, deviation := moments(x.row(r))
							normed = gain.at(0, c) * (x.at(r, c) - mean) / math.Sqrt(deviation+eps)
						}
						return normed + bias.at(0, c), math.Abs(normed) + math.Abs(bias.at(0, c))
					})
				}

				inPlace, elsewhere := slices.Clone(x.row(0)), make([]float32, n)
				s.LayerNorm(Rows(inPlace, n), Rows(inPlace, n), gain.v, bias.v, 1e-5, 1, n)
				s.LayerNorm(Rows(elsewhere, n), x.matrix(), gain.v, bias.v, 1e-5, 1, n)
				if !slices.Equal(inPlace, elsewhere) {
					t.Fatalf("n=%d: in place differs", n)
				}
			}
		}
	})
}

// moments are the mean of a row and its mean squared deviation.
func moments(row []float32) (mean, deviation float64) {
	for _, v := range row {
		mean += float64(v) / float64(len(row))
	}
	for _, v := range row {
		deviation += (float64(v) - mean) * (float64(v) - mean) / float64(len(row))
	}
	return mean, deviation
}

// Sums of matrices are those of their elements, also in place, and when one row is added to all.
func TestAdd(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(13, 14))
		for _, n := range []int{1, 5, 16, 37, 48, 63, 160} {
			const m = 3
			a := newStrided(t, m, n, 1, normal(rng))
			b := newStrided(t, m, n, 2, normal(rng))
			old := a.copied()
			what := fmt.Sprintf("n=%d", n)
			sum := func(r, c int) float32 { return old.row(r)[c] + b.row(r)[c] }
			sumWithRow := func(r, c int) float32 { return old.row(r)[c] + b.row(0)[c] }

			y := newStrided(t, m, n, 3, unset)
			s.Add(y.matrix(), a.matrix(), b.matrix(), m, n)
			y.checkBits(t, what, sum)

			s.Add(a.matrix(), a.matrix(), b.matrix(), m, n)
			a.checkBits(t, what+" in place", sum)

			copy(a.v, old.v)
			s.Add(a.matrix(), a.matrix(), Rows(b.row(0), 0), m, n)
			a.checkBits(t, what+" with one row", sumWithRow)
		}
	})
}

// GLU multiplies by the activation of gates. Columns of both lie in turn, so many of each at a time.
func TestGLU(t *testing.T) {
	gates := []float32{0, float32(math.Copysign(0, -1)), 100, -100, 1e30, -1e30, 88, -88, 1e-30}
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(13, 14))
		for _, n := range []int{1, 5, 16, 48, 63, 160} {
			for _, width := range []int{1, 3, 8, 16, n} {
				if n%width != 0 {
					continue
				}
				const m = 3
				x := newStrided(t, m, 2*n, 1, scaled(rng, 20))
				copy(x.v[:width], gates)
				y := newStrided(t, m, n, 3, unset)
				for _, act := range op.Acts {
					s.GLU(y.matrix(), x.matrix(), act, width, m, n)

					what := fmt.Sprintf("%s n=%d width=%d", act, n, width)
					y.check(t, what, func(r, c int) (value, magnitude float64) {
						at := c/width*2*width + c%width
						gate := x.at(r, at)
						value = refAct(act, gate) * x.at(r, at+width)
						return value, math.Abs(value) + tails(act, gate)
					})
				}
			}
		}
	})
}

// Functions of single elements have their formulas' results, also in place.
func TestElementwise(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(13, 14))
		for _, n := range []int{1, 5, 16, 48, 63, 160} {
			const m = 3
			x := newStrided(t, m, n, 1, scaled(rng, 4))
			y := newStrided(t, m, n, 3, unset)
			for _, act := range op.Acts {
				what := fmt.Sprintf("%s n=%d", act, n)
				s.Activate(y.matrix(), x.matrix(), act, m, n)
				y.check(t, what, func(r, c int) (value, magnitude float64) {
					value = refAct(act, x.at(r, c))
					return value, math.Abs(value) + tails(act, x.at(r, c))
				})

				inPlace := x.copied()
				s.Activate(inPlace.matrix(), inPlace.matrix(), act, m, n)
				inPlace.checkBits(t, what+" in place", func(r, c int) float32 { return y.row(r)[c] })
			}

			for _, limit := range []float64{1, 30, 1e-3} {
				s.Softcap(y.matrix(), x.matrix(), limit, m, n)
				y.check(t, fmt.Sprintf("softcap %v n=%d", limit, n), func(r, c int) (value, magnitude float64) {
					value = limit * math.Tanh(x.at(r, c)/limit)
					return value, math.Abs(value)
				})
			}

			gate := newStrided(t, m, 1, 2, normal(rng))
			gated := func(r, c int) float64 { return x.at(r, c) * sigmoid(gate.at(r, 0)) }
			s.Gate(y.matrix(), x.matrix(), gate.matrix(), m, n)
			y.check(t, fmt.Sprintf("gate n=%d", n), func(r, c int) (value, magnitude float64) {
				return gated(r, c), math.Abs(gated(r, c))
			})

			s.Scale(y.row(0), 0.3)
			y.check(t, fmt.Sprintf("scale n=%d", n), func(r, c int) (value, magnitude float64) {
				value = gated(r, c)
				if r == 0 {
					value *= 0.3
				}
				return value, math.Abs(value)
			})
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

// Activation functions and soft caps are off by at most 1e-6 of their arguments' size, over the whole range of float32.
func TestActivationRanges(t *testing.T) {
	x := []float32{0, float32(math.Copysign(0, -1)), 1e-30, -1e-30, 1e-42, 100, -100, 1e10, -1e10, 1e30, -1e30,
		math.MaxFloat32, -math.MaxFloat32}
	for v := -20.0; v < 20; v += 0.00137 {
		x = append(x, float32(v))
	}
	eachSet(t, func(t *testing.T, s *Set) {
		y := make([]float32, len(x))
		for _, act := range op.Acts {
			s.Activate(Rows(y, len(x)), Rows(x, len(x)), act, 1, len(x))
			for i, v := range x {
				want := refAct(act, float64(v))
				if !(math.Abs(float64(y[i])-want) <= 1e-6*max(1, math.Abs(want))) {
					t.Fatalf("%s(%v): got %v, want %v", act, v, y[i], want)
				}
			}
		}

		s.Softcap(Rows(y, len(x)), Rows(x, len(x)), 2.5, 1, len(x))
		for i, v := range x {
			want := 2.5 * math.Tanh(float64(v)/2.5)
			if !(math.Abs(float64(y[i])-want) <= 1e-6*math.Abs(want)+1e-44) {
				t.Fatalf("softcap(%v): got %v, want %v", v, y[i], want)
			}
		}
	})
}

// The activation of NaN is NaN.
func TestActivationOfNaN(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		for _, act := range op.Acts {
			x := slices.Repeat([]float32{float32(math.NaN())}, 33)
			s.Activate(Rows(x, 33), Rows(x, 33), act, 1, 33)
			for i, v := range x {
				if v == v {
					t.Fatalf("%s of NaN at %d: got %v", act, i, v)
				}
			}
		}
	})
}

// Combine adds the rows of a token's experts by their weights.
func TestCombine(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(33, 34))
		for _, n := range []int{1, 31, 32, 70, 256} {
			for _, fan := range []int{1, 2, 5, 8} {
				const m = 3
				x := newStrided(t, m*fan, n, 3, normal(rng))
				weights := newStrided(t, m, fan, 1, normal(rng))
				y := newStrided(t, m, n, 2, unset)

				s.Combine(y.matrix(), x.matrix(), weights.matrix(), m, fan, n)

				y.check(t, fmt.Sprintf("n=%d fan=%d", n, fan), func(r, c int) (value, magnitude float64) {
					for j := range fan {
						term := weights.at(r, j) * x.at(r*fan+j, c)
						value, magnitude = value+term, magnitude+math.Abs(term)
					}
					return value, magnitude
				})
			}
		}
	})
}

// Rope rotates pairs of columns, half the rotary dimension apart, and leaves the other columns of each head.
func TestRope(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(15, 16))
		for _, head := range []struct{ dim, rotary int }{
			{2, 2}, {6, 6}, {16, 16}, {64, 64}, {128, 128}, {80, 32}, {6, 2}, {96, 72},
		} {
			const m, heads = 3, 5
			half := head.rotary / 2
			x := newStrided(t, m, heads*head.dim, 7, normal(rng))
			old := x.copied()
			angle := newStrided(t, m, half, 0, scaled(rng, 3))
			cos, sin := newStrided(t, m, half, 0, unset), newStrided(t, m, half, 0, unset)
			for i, a := range angle.v {
				cos.v[i], sin.v[i] = float32(math.Cos(float64(a))), float32(math.Sin(float64(a)))
			}

			s.Rope(x.matrix(), cos.v, sin.v, m, heads, head.dim, head.rotary)

			x.check(t, fmt.Sprintf("%+v", head), func(r, c int) (value, magnitude float64) {
				column := c % head.dim
				if column >= head.rotary {
					return old.at(r, c), 0
				}
				i := column % half
				cos, sin := math.Cos(angle.at(r, i)), math.Sin(angle.at(r, i))
				a, b := old.at(r, c-column+i), old.at(r, c-column+i+half)
				if column < half {
					return a*cos - b*sin, math.Abs(a) + math.Abs(b)
				}
				return b*cos + a*sin, math.Abs(a) + math.Abs(b)
			})
		}
	})
}

// attentionShapes are calls of attention; a scale of 0 stands for that of heads of Dim columns.
var attentionShapes = []Attention{
	{M: 1, Heads: 1, Dim: 1},
	{M: 1, Heads: 1, Dim: 64},
	{M: 1, Heads: 8, Dim: 64, Pos: 300},
	{M: 1, Heads: 7, Dim: 80, Pos: 141},
	{M: 1, Heads: 8, Dim: 16, Pos: 150, Window: 30, Cap: 5},
	{M: 3, Heads: 2, Dim: 5},
	{M: 9, Heads: 3, Dim: 16, Pos: 7},
	{M: 17, Heads: 1, Dim: 128, Pos: 120},
	{M: 8, Heads: 4, Dim: 64, Pos: 128},
	{M: 11, Heads: 2, Dim: 80, Pos: 127},
	{M: 12, Heads: 2, Dim: 100, Pos: 90},
	{M: 16, Heads: 1, Dim: 33, Pos: 255},
	{M: 40, Heads: 2, Dim: 48},
	{M: 1, Heads: 2, Dim: 64, Pos: 300, Window: 1},
	{M: 17, Heads: 2, Dim: 64, Pos: 250, Window: 1},
	{M: 9, Heads: 2, Dim: 64, Pos: 250, Window: 100},
	{M: 40, Heads: 1, Dim: 32, Pos: 100, Window: 130},
	{M: 40, Heads: 2, Dim: 5, Pos: 100, Window: 130},
	{M: 9, Heads: 1, Dim: 64, Pos: 20, Window: 500},
	{M: 5, Heads: 1, Dim: 96, Pos: 123, Window: 128},
	{M: 9, Heads: 3, Dim: 64, Pos: 140, Cap: 5},
	{M: 9, Heads: 3, Dim: 20, Pos: 140, Cap: 5},
	{M: 9, Heads: 3, Dim: 32, Pos: 140, Window: 70, Scale: 0.02, Cap: 50},
	{M: 9, Heads: 1, Dim: 16, Pos: 140, Window: 200, Scale: 1.5, Cap: 30},
	{M: 3, Heads: 2, Dim: 256, Pos: 5, Scale: 0.07},
	{M: 1, Heads: 4, Dim: 64, Pos: 700},
	{M: 1, Heads: 8, Dim: 48, Pos: 700, Window: 600},
}

// eachAttention calls f for every shape of attention, with queries of ordinary and of large size. With those, the
// softmax is almost a maximum.
func eachAttention(f func(a Attention, sharp float64)) {
	for _, a := range attentionShapes {
		if a.Scale == 0 {
			a.Scale = 1 / math.Sqrt(float64(a.Dim))
		}
		f(a, 1)
		f(a, 30)
	}
}

// String shows what makes a call of attention.
func (a Attention) String() string {
	return fmt.Sprintf("m=%d heads=%d dim=%d pos=%d window=%d scale=%.3g cap=%g", a.M, a.Heads, a.Dim, a.Pos, a.Window,
		a.Scale, a.Cap)
}

// attentionScratch is scratch memory of NaN: attention must not read what it has not written.
func attentionScratch(t *testing.T, a Attention) []float32 {
	scratch := guardedSlice[float32](t, AttentionScratch(a.Heads, a.Dim))
	for i := range scratch {
		scratch[i] = float32(math.NaN())
	}
	return scratch
}

// attend is what one head of one row of queries computes, and the magnitude of each element's terms. The functions
// return elements of the cache by their indices.
func attend(a Attention, row int, query []float32, key, value func(i int) float64) (result, magnitude []float64) {
	result, magnitude = make([]float64, a.Dim), make([]float64, a.Dim)
	for p, weight := range attentionWeights(a, row, query, key) {
		for d := range a.Dim {
			term := weight * value(p*a.Dim+d)
			result[d] += term
			magnitude[d] += math.Abs(term)
		}
	}
	return result, magnitude
}

// attentionWeights is the softmax of the scores of one head of one row: of all positions up to the row's.
func attentionWeights(a Attention, row int, query []float32, key func(i int) float64) []float64 {
	first, weights := a.first(row), make([]float64, a.Pos+row+1)
	top := math.Inf(-1)
	for p := range weights {
		if p < first {
			weights[p] = math.Inf(-1)
			continue
		}
		for d, q := range query {
			weights[p] += float64(q) * key(p*a.Dim+d) * a.Scale
		}
		if a.Cap > 0 {
			weights[p] = a.Cap * math.Tanh(weights[p]/a.Cap)
		}
		top = max(top, weights[p])
	}
	sum := 0.0
	for p, score := range weights {
		weights[p] = math.Exp(score - top)
		sum += weights[p]
	}
	for p := range weights {
		weights[p] /= sum
	}
	return weights
}

// cacheForm is a type of cache: how a set reads it, and what it holds.
type cacheForm struct {
	name       string
	call       func(y, q Matrix[float32])
	key, value func(i int) float64
}

// Attention over caches of float32 and float16 has the result of its formula.
func TestAttention(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(17, 18))
		eachAttention(func(a Attention, sharp float64) {
			context := a.Pos + a.M
			q := newStrided(t, a.M, a.Heads*a.Dim, 2*a.Dim, scaled(rng, sharp))
			scratch := attentionScratch(t, a)
			k := newStrided(t, context, a.Dim, 0, normal(rng)).v
			v := newStrided(t, context, a.Dim, 0, normal(rng)).v
			k16, v16 := guardedSlice[uint16](t, len(k)), guardedSlice[uint16](t, len(v))
			for i := range k16 {
				k16[i], v16[i] = number.FloatToHalf(k[i]), number.FloatToHalf(v[i])
			}

			forms := []cacheForm{
				{
					name:  "f32",
					call:  func(y, q Matrix[float32]) { s.AttentionF32(y, q, k, v, scratch, a) },
					key:   func(i int) float64 { return float64(k[i]) },
					value: func(i int) float64 { return float64(v[i]) },
				},
				{
					name:  "f16",
					call:  func(y, q Matrix[float32]) { s.AttentionF16(y, q, k16, v16, scratch, a) },
					key:   func(i int) float64 { return float64(number.HalfToFloat(k16[i])) },
					value: func(i int) float64 { return float64(number.HalfToFloat(v16[i])) },
				},
			}
			for _, form := range forms {
				y := newStrided(t, a.M, a.Heads*a.Dim, 3, unset)
				form.call(y.matrix(), q.matrix())
				checkAttention(t, form, a, sharp, y, q)
			}
		})
	})
}

// checkAttention compares the results of a form of the cache with the formula.
func checkAttention(t *testing.T, form cacheForm, a Attention, sharp float64, y, q strided) {
	t.Helper()
	y.gapsIntact(t)
	for r := range a.M {
		for h := range a.Heads {
			head := h * a.Dim
			want, magnitude := attend(a, r, q.row(r)[head:head+a.Dim], form.key, form.value)
			for d := range a.Dim {
				// An error of a score, relative to its size, is an error of its weight.
				if got := y.at(r, head+d); !isNear(got, want[d], magnitude[d]*sharp+0.1) {
					t.Fatalf("%v %s: [%d,%d] is %v, want %v", a, form.name, r, head+d, got, want[d])
				}
			}
		}
	}
}

// Over an 8-bit cache queries are rounded as keys are, and a weight times its value's scale to 1/65535 of the largest of
// both in a block of 128 positions, if at all.
func TestAttentionQ8(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(37, 38))
		eachAttention(func(a Attention, sharp float64) {
			context := a.Pos + a.M
			q := newStrided(t, a.M, a.Heads*a.Dim, 2*a.Dim, scaled(rng, sharp))
			keys, values := make([]float32, context*a.Dim), make([]float32, context*a.Dim)
			for i := range keys {
				size := math.Exp2(float64(i / a.Dim * 7 % 10)) // values of different scales
				keys[i], values[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64()*size/32)
			}
			k, v := guardedSlice[uint8](t, context*(a.Dim+cachedScale)), guardedSlice[uint8](t, context*(a.Dim+cachedScale))
			copy(k, cachedQ8(keys, a.Dim))
			copy(v, cachedQ8(values, a.Dim))
			y := newStrided(t, a.M, a.Heads*a.Dim, 3, unset)

			s.AttentionQ8(y.matrix(), q.matrix(), k, v, attentionScratch(t, a), a)

			y.gapsIntact(t)
			for r := range a.M {
				for h := range a.Heads {
					head := h * a.Dim
					query := slices.Clone(q.row(r)[head : head+a.Dim])
					rounded := cachedQ8(query, a.Dim)
					for d := range query {
						query[d] = float32(refQ8(rounded, a.Dim, d))
					}
					want, slack := attendCodes(a, r, query, k, v, 1e-5*sharp)
					for d := range a.Dim {
						if got := y.at(r, head+d); !(math.Abs(got-want[d]) <= slack[d]+1e-6) {
							t.Fatalf("%v: [%d,%d] is %v, want %v within %v", a, r, head+d, got, want[d], slack[d])
						}
					}
				}
			}
		})
	})
}

// A query that is not finite, which 8 bits cannot represent, makes the results of its head NaN and no others.
func TestAttentionQ8NaN(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(38, 39))
		for _, a := range []Attention{
			{M: 1, Heads: 4, Dim: 64, Pos: 300},
			{M: 40, Heads: 3, Dim: 16, Pos: 100},
			{M: 9, Heads: 2, Dim: 20, Pos: 30},
			{M: 2, Heads: 1, Dim: 1024, Pos: 130},
			{M: 2, Heads: 1, Dim: 8192, Pos: 9},
		} {
			a.Scale = 0.2
			width, context := a.Heads*a.Dim, a.Pos+a.M
			q := newStrided(t, a.M, width, 0, normal(rng)).v
			k := cachedQ8(newStrided(t, context, a.Dim, 0, normal(rng)).v, a.Dim)
			bad := map[int]bool{0: true, a.M * a.Heads / 2: true, a.M*a.Heads - 1: true}
			for line, is := range bad {
				if is {
					q[line*a.Dim+line%a.Dim] = float32(math.Inf(1 - line%2*2))
				}
			}
			q[1] = float32(math.NaN())
			y := make([]float32, len(q))

			s.AttentionQ8(Rows(y, width), Rows(q, width), k, k, attentionScratch(t, a), a)

			for i, value := range y {
				if isNaN := value != value; isNaN != bad[i/a.Dim] {
					t.Fatalf("%v: element %d of line %d is %v", a, i%a.Dim, i/a.Dim, value)
				}
			}
		}
	})
}

// attendCodes is attend over an 8-bit cache. slack is what the result may be off by when weights have that relative
// error, and are rounded.
func attendCodes(a Attention, row int, query []float32, k, v []uint8, relative float64) (result, slack []float64) {
	key := func(i int) float64 { return refQ8(k, a.Dim, i) }
	result, slack = attend(a, row, query, key, func(i int) float64 { return refQ8(v, a.Dim, i) })
	for d := range slack {
		slack[d] *= relative
	}
	weights := attentionWeights(a, row, query, key)
	for from := a.first(row) / keyBlock * keyBlock; from < len(weights); from += keyBlock {
		begin, end := max(from, a.first(row)), min(from+keyBlock, len(weights))
		largest := 0.0
		for pos := begin; pos < end; pos++ {
			largest = max(largest, float64(ScaleQ8(v[pos*(a.Dim+cachedScale):], a.Dim)))
		}
		half := slices.Max(weights[begin:end]) * largest / 65535 / 2
		for pos := begin; pos < end; pos++ {
			for d := range slack {
				slack[d] += half * math.Abs(float64(v[pos*(a.Dim+cachedScale)+d])-128)
			}
		}
	}
	return result, slack
}

// roundBrain rounds to bfloat16.
func roundBrain(v float64) float64 { return fromBrain(number.FloatToBrain(float32(v))) }

// fromBrain is the value of a bfloat16 number.
func fromBrain(brain uint16) float64 { return float64(math.Float32frombits(uint32(brain) << 16)) }

// Over a bfloat16 cache queries and weights are rounded, and nothing else. A weight in the middle of two bfloat16
// numbers, as far as float32 tells, may become either.
func TestAttentionBF16(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(27, 28))
		eachAttention(func(a Attention, sharp float64) {
			context := a.Pos + a.M
			q := newStrided(t, a.M, a.Heads*a.Dim, 2*a.Dim, scaled(rng, sharp))
			k, v := guardedSlice[uint16](t, context*a.Dim), guardedSlice[uint16](t, context*a.Dim)
			for i := range k {
				k[i] = number.FloatToBrain(float32(rng.NormFloat64()))
				v[i] = number.FloatToBrain(float32(rng.NormFloat64()))
			}
			y := newStrided(t, a.M, a.Heads*a.Dim, 3, unset)

			s.AttentionBF16(y.matrix(), q.matrix(), k, v, attentionScratch(t, a), a)

			y.gapsIntact(t)
			for r := range a.M {
				for h := range a.Heads {
					head := h * a.Dim
					want, slack := attendBrain(a, r, q.row(r)[head:head+a.Dim], k, v, 1e-5*sharp)
					for d := range a.Dim {
						if got := y.at(r, head+d); !(math.Abs(got-want[d]) <= slack[d]+1e-6) {
							t.Fatalf("%v: [%d,%d] is %v, want %v within %v", a, r, head+d, got, want[d], slack[d])
						}
					}
				}
			}
		})
	})
}

// attendBrain is attend over a bfloat16 cache. Weights are rounded relative to the largest score up to the end of their
// block of 128 positions. slack is what the result may be off by when weights have that relative error.
func attendBrain(a Attention, row int, query []float32, k, v []uint16, relative float64) (result, slack []float64) {
	first, end := a.first(row), a.Pos+row+1
	scores, tops := make([]float64, end), make([]float64, end)
	top := math.Inf(-1)
	for p := first; p < end; p++ {
		for d, q := range query {
			scores[p] += roundBrain(float64(q)) * fromBrain(k[p*a.Dim+d]) * a.Scale
		}
		if a.Cap > 0 {
			scores[p] = a.Cap * math.Tanh(scores[p]/a.Cap)
		}
		top = max(top, scores[p])
		tops[p] = top
	}
	for p := end - 2; p >= first; p-- {
		if lastOfBlock := (p+1)%128 == 0; !lastOfBlock {
			tops[p] = tops[p+1]
		}
	}

	result, slack = make([]float64, a.Dim), make([]float64, a.Dim)
	sum := 0.0
	for p := first; p < end; p++ {
		weight, fade := math.Exp(scores[p]-tops[p]), math.Exp(tops[p]-top)
		sum += weight * fade
		doubt := math.Abs(roundBrain(weight*(1+relative)) - roundBrain(weight*(1-relative)))
		for d := range a.Dim {
			value := fromBrain(v[p*a.Dim+d])
			result[d] += roundBrain(weight) * fade * value
			slack[d] += (doubt + relative*weight) * fade * math.Abs(value)
		}
	}
	for d := range a.Dim {
		result[d] /= sum
		slack[d] /= sum
	}
	return result, slack
}

// A position outside the cache that counts 700 times is as good as 700 equal ones in front of it.
func TestAttentionRest(t *testing.T) {
	const count = 700
	eachSet(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(18, 19))
		for _, a := range []Attention{
			{M: 11, Heads: 2, Dim: 64, Pos: 250},
			{M: 70, Heads: 1, Dim: 40, Cap: 4},
			{M: 1, Heads: 3, Dim: 5, Pos: 130},
		} {
			a.Scale = 0.2
			width, context := a.Heads*a.Dim, a.Pos+a.M
			fill := func(rows, cols int) []float32 { return newStrided(t, rows, cols, 0, normal(rng)).v }
			q, k, v := fill(a.M, width), fill(context, a.Dim), fill(context, a.Dim)
			a.Rest = Rest{Key: fill(1, a.Dim), Value: fill(1, a.Dim), Count: count}
			scratch := make([]float32, AttentionScratch(a.Heads, a.Dim))
			got, want := make([]float32, a.M*width), make([]float32, a.M*width)

			s.AttentionF32(Rows(got, width), Rows(q, width), k, v, scratch, a)

			long := a
			long.Pos, long.Rest = a.Pos+count, Rest{}
			keys := append(slices.Repeat(a.Rest.Key, count), k...)
			values := append(slices.Repeat(a.Rest.Value, count), v...)
			Reference().AttentionF32(Rows(want, width), Rows(q, width), keys, values, nil, long)
			for i := range got {
				if !isNear(float64(got[i]), float64(want[i]), 1) {
					t.Fatalf("%v: element %d is %v, want %v", a, i, got[i], want[i])
				}
			}

			// Over bfloat16 its key and value stay float32. A weight that is rounded to the other neighbour is one of
			// hundreds.
			kb, vb := make([]uint16, len(k)), make([]uint16, len(v))
			toBF16(kb, k)
			toBF16(vb, v)
			s.AttentionBF16(Rows(got, width), Rows(q, width), kb, vb, scratch, a)
			Reference().AttentionBF16(Rows(want, width), Rows(q, width), kb, vb, nil, a)
			for i := range got {
				if !(math.Abs(float64(got[i]-want[i])) <= 1e-4) {
					t.Fatalf("%v: element %d over bfloat16 is %v, want %v", a, i, got[i], want[i])
				}
			}
		}
	})
}

// Every 16-bit number is converted to the float32 number of its value.
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
			want := number.HalfToFloat(uint16(i))
			if bothNaN := v != v && want != want; v != want && !bothNaN {
				t.Fatalf("f16 %04x: got %v, want %v", i, v, want)
			}
		}
	})
}

// Numbers of every magnitude are rounded to float16, and those beyond it are reported.
func TestToF16(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		for _, n := range []int{0, 1, 7, 8, 15, 16, 17, 33} {
			in, out := guardedSlice[float32](t, n), guardedSlice[uint16](t, n)
			rng := rand.New(rand.NewPCG(19, uint64(n)))
			for range 200 {
				for i := range in {
					in[i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(44)-28)))
				}

				ok := s.ToF16(out, in)

				finite := true
				for i, half := range out {
					if want := number.FloatToHalf(in[i]); half != want {
						t.Fatalf("to f16 of %v: got %04x, want %04x", in[i], half, want)
					}
					finite = finite && half&0x7c00 != 0x7c00
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

// nearestBrain is the bfloat16 number that is nearest, found by comparing its two candidates.
func nearestBrain(v float32) uint16 {
	below := uint16(math.Float32bits(v) >> 16)
	magnitude := math.Abs(float64(v))
	if magnitude < 0x1p-126 {
		return below & 0x8000
	}
	if math.IsInf(magnitude, 0) {
		return below
	}

	wide := func(brain uint16) float64 {
		if brain&0x7fff == 0x7f80 {
			return 0x1p128 // where the next number were
		}
		return math.Abs(fromBrain(brain))
	}
	down, up := magnitude-wide(below), wide(below+1)-magnitude
	if down < up || down == up && below%2 == 0 {
		return below
	}
	return below + 1
}

// All numbers that bfloat16 has, those in the middle of two, and their neighbours in float32 are rounded to the nearest
// one. NaN stays NaN.
func TestToBF16(t *testing.T) {
	var in []float32
	for brain := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			in = append(in, math.Float32frombits(brain<<16|low))
		}
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
				continue
			}
			if want := nearestBrain(v); out[i] != want {
				t.Fatalf("to bf16 of %v: got %04x, want %04x", v, out[i], want)
			}
		}
	})
}

// A number beyond bfloat16 is reported wherever it is, and the largest one below is not.
func TestToBF16Reports(t *testing.T) {
	eachSet(t, func(t *testing.T, s *Set) {
		for _, n := range []int{1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65} {
			in, out := guardedSlice[float32](t, n), guardedSlice[uint16](t, n)
			for i := range in {
				clear(in)
				for _, bad := range []float32{3.4e38, -3.4e38, float32(math.NaN()), float32(math.Inf(-1))} {
					in[i] = bad
					if s.ToBF16(out, in) {
						t.Fatalf("to bf16: %v at %d of %d was accepted", bad, i, n)
					}
				}
				in[i] = 3.38e38
				if !s.ToBF16(out, in) {
					t.Fatalf("to bf16: %v at %d of %d was refused", in[i], i, n)
				}
			}
		}
	})
}

// The exponential function is off by at most two units of the last place, and has its limits.
func TestExpf(t *testing.T) {
	for x := float32(-87.3); x < 88.7; x += 0.00217 {
		if got, want := expf(x), float32(math.Exp(float64(x))); ulps(got, want) > 2 {
			t.Fatalf("expf(%v): got %v, want %v", x, got, want)
		}
	}

	limits := []struct{ x, want float64 }{
		{-200, 0},
		{0, 1},
		{math.Inf(1), math.Inf(1)},
		{math.Inf(-1), 0},
		{200, math.Inf(1)},
		{88.7228, 3.4e38},
	}
	for _, c := range limits {
		got := float64(expf(float32(c.x)))
		if got != c.want && math.Abs(got-c.want) > 1e-2*c.want {
			t.Errorf("expf(%v): got %v, want %v", c.x, got, c.want)
		}
	}
	if v := expf(float32(math.NaN())); v == v {
		t.Errorf("expf(NaN): got %v", v)
	}
}

// Every set is found by its name.
func TestSetsByName(t *testing.T) {
	names := map[string]bool{}
	for _, s := range Sets() {
		if names[s.Name] {
			t.Errorf("set %q is listed twice", s.Name)
		}
		names[s.Name] = true
		if s.TileStep < 1 {
			t.Errorf("set %q has no tile step", s.Name)
		}
		if got, err := ByName(s.Name); err != nil || got.Name != s.Name {
			t.Errorf("ByName(%q): %v, %v", s.Name, got, err)
		}
	}
}

// Without a name, the environment chooses the set, or else it is the best one.
func TestSelection(t *testing.T) {
	cases := []struct{ environment, name, want string }{
		{environment: "reference", name: "", want: "reference"},
		{environment: "reference", name: "portable", want: "portable"},
		{environment: "", name: "", want: Best().Name},
	}
	for _, c := range cases {
		t.Setenv(EnvVar, c.environment)
		if s, err := ByName(c.name); err != nil || s.Name != c.want {
			t.Errorf("%q with %s=%s: got %v, %v, want %s", c.name, EnvVar, c.environment, s, err, c.want)
		}
	}

	t.Setenv(EnvVar, "mmx")
	_, err := ByName("")
	if err == nil || !strings.Contains(err.Error(), `"mmx" from HETC_HOST_KERNELS`) {
		t.Errorf("unknown set: %v", err)
	}
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "reference, portable") {
		t.Errorf("unknown set: hints %q", hints)
	}
}

// BenchmarkPortable is what the portable set reaches on one core.
func BenchmarkPortable(b *testing.B) {
	const k, n = 2048, 512
	w := make([]float32, k*n)
	for i := range w {
		w[i] = float32(i%17) - 8
	}
	s := Portable()
	for _, m := range []int{1, 32} {
		x, y := make([]float32, m*k), make([]float32, m*n)
		codes := Quantised{
			Codes: Rows(make([]uint8, m*k), k),
			Scale: make([]float32, m),
			Sums:  Rows(make([]int32, m*k/32), k/32),
		}
		run := func(scheme, unit string, multiply func(tiles []byte)) {
			b.Run(fmt.Sprintf("%s/m=%d", scheme, m), func(b *testing.B) {
				tiles := packWeight(b, scheme, w, k, n)
				for b.Loop() {
					multiply(tiles)
				}
				b.ReportMetric(2*float64(m*k*n)*float64(b.N)/b.Elapsed().Seconds()/1e9, unit)
			})
		}
		run("w32", "GFLOP/s", func(tiles []byte) {
			s.MatMulF32(Rows(y, n), Rows(x, k), viewAs[float32](b, tiles), m, k, n)
		})
		run("q8c", "GOP/s", func(tiles []byte) { s.MatMulQ8C(Rows(y, n), codes, tiles, m, k, n) })
		run("q4b32", "GOP/s", func(tiles []byte) { s.MatMulQ4B32(Rows(y, n), codes, tiles, m, k, n) })
	}
}
