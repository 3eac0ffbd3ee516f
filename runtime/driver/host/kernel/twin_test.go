package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// The tests of this file compare every function of every vector set with its twin in the portable set, with hostile
// numbers. Operands touch inaccessible pages, behind their end or before their start. Thus an assembly function that
// reads or writes a byte too many crashes the test.

// tolerance is how far a function may be from its twin, by the number of terms of a result. The unit is 2^-24 of the
// sum of the terms' magnitudes: half a unit of the last place of a number with the largest mantissa. 0 means the same
// bits. Set documents the same numbers; products of random numbers are held to 4+2*sqrt(n).
var tolerance = map[string]func(n int) float64{
	"MatMulF32":     func(k int) float64 { return 2 + 2*float64(k) },
	"MatMulBF16":    func(k int) float64 { return 2 + 2*float64(k) },
	"MatMulQ8C":     exact,
	"MatMulQ6C":     exact,
	"MatMulRequant": exact,
	"MatMulQ4B32":   func(k int) float64 { return 4 + 2*float64((k+BlockK-1)/BlockK) },
	"MatMulQ4B128":  func(k int) float64 { return 4 + 2*float64((k+BlockK-1)/BlockK) },
	"BlockSums":     exact,
	"QuantRows":     exact,
	"QuantStatic":   exact,
	"Norm":          units(3),
	"LayerNorm":     units(4),
	"GLU":           units(12),
	"Activate":      units(12),
	"Softcap":       units(12),
	"Gate":          exact,
	"Scale":         exact,
	"Add":           exact,
	"Combine":       func(fan int) float64 { return 2 + 2*float64(fan) },
	"Rope":          exact,
	"Attention":     func(n int) float64 { return 32 + 2*float64(n) },
	"FromF16":       exact,
	"FromBF16":      exact,
	"ToF16":         exact,
	"ToBF16":        exact,
}

func exact(int) float64 { return 0 }

func units(n float64) func(int) float64 { return func(int) float64 { return n } }

// memory hands out fenced copies and knows afterwards whether something has changed that must not.
type memory struct {
	t       testing.TB
	before  bool // fences are before the start of buffers, not behind their end
	regions []*mem.Region
	checks  []func() string // each says what was changed
}

const slack = 64 // bytes behind a buffer whose start is fenced

// fenced is a copy of v that touches an inaccessible page.
func fenced[T mem.Scalar](m *memory, v []T) []T {
	m.t.Helper()
	used := len(mem.Bytes(v))
	alloc, size := mem.Guarded, used
	if m.before {
		alloc, size = mem.GuardedBefore, used+slack
	}
	region, err := alloc(size)
	if diag.ClassOf(err) == diag.ClassUnavailable {
		m.t.Skip(err)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.regions = append(m.regions, region)

	raw := region.Bytes()
	copy(raw, mem.Bytes(v))
	rest := raw[used:]
	for i := range rest {
		rest[i] = canary
	}
	m.checks = append(m.checks, func() string {
		for i, c := range rest {
			if c != canary {
				return fmt.Sprintf("byte %d behind a buffer of %d was changed", i, used)
			}
		}
		return ""
	})
	return viewAs[T](m.t, raw[:used])
}

// input is fenced memory that a function must not write.
func input[T mem.Scalar](m *memory, v []T) []T {
	m.t.Helper()
	g := fenced(m, v)
	want := slices.Clone(mem.Bytes(v))
	m.checks = append(m.checks, func() string {
		if !slices.Equal(mem.Bytes(g), want) {
			return "an input was changed"
		}
		return ""
	})
	return g
}

// canary fills what must not be written: behind buffers, and between the rows of outputs.
const canary = 0xa5

// outputOf is a fenced [rows,cols] matrix whose rows begin ld elements apart; only its cols columns may be written.
func outputOf[T mem.Scalar](m *memory, rows, cols, ld int) []T {
	m.t.Helper()
	v := make([]T, max(0, (rows-1)*ld+cols))
	raw := mem.Bytes(v)
	for i := range raw {
		raw[i] = canary
	}
	g := fenced(m, v)
	m.checks = append(m.checks, func() string {
		size := len(mem.Bytes(make([]T, 1)))
		for i, c := range mem.Bytes(g) {
			if element := i / size; element%ld >= cols && c != canary {
				return fmt.Sprintf("element %d between rows of %d columns, pitch %d, was changed", element, cols, ld)
			}
		}
		return ""
	})
	return g
}

// done reports what was changed and gives the memory back.
func (m *memory) done(what string) {
	m.t.Helper()
	for _, check := range m.checks {
		if changed := check(); changed != "" {
			m.t.Fatalf("%s: %s", what, changed)
		}
	}
	for _, r := range m.regions {
		if err := r.Close(); err != nil {
			m.t.Fatal(err)
		}
	}
	m.regions, m.checks = nil, nil
}

// values makes numbers of one kind. Fuzzing may give bytes, which then are the numbers.
type values struct {
	rng  *rand.Rand
	kind uint8
	raw  []byte
	at   int
}

// Kinds of values.
const (
	plain   = iota // normally distributed; every code
	edges          // zeros of both signs, ones, subnormals, very small and very large numbers; lowest and highest codes
	lowest         // zeros; the lowest code
	highest        // one large number; the highest code
	second         // subnormal numbers; the lowest code but one
	kinds
	rawBits // the bytes given, or random bits
)

// newValues makes numbers of a kind: the same ones for the same seed.
func newValues(kind uint8, seed uint64, raw []byte) *values {
	return &values{rng: rand.New(rand.NewPCG(seed, 99)), kind: kind, raw: raw}
}

// bits are the next four of the bytes given, or random.
func (v *values) bits() uint32 {
	if len(v.raw) == 0 {
		return v.rng.Uint32()
	}
	var b [4]byte
	for i := range b {
		b[i] = v.raw[v.at%len(v.raw)]
		v.at++
	}
	return binary.LittleEndian.Uint32(b[:])
}

// float is at most top in magnitude, unless it is an infinity or NaN, which only raw bits may be.
func (v *values) float(top float32) float32 {
	switch v.kind {
	case edges:
		numbers := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0x1p-149, -0x1p-149, 0x1p-126, -0x1.fffffcp-127,
			1e-20, -1e-20, top, -top, 1.0 / 3, 127, -128}
		return numbers[v.rng.IntN(len(numbers))]
	case lowest:
		return 0
	case highest:
		return top
	case second:
		return math.Float32frombits(v.rng.Uint32() & 0x807fffff)
	case rawBits:
		f := math.Float32frombits(v.bits())
		if a := math.Abs(float64(f)); a > float64(top) && !math.IsInf(a, 0) {
			f = float32(math.Mod(float64(f), float64(top)))
		}
		return f
	}
	return float32(v.rng.NormFloat64())
}

// code is a byte lo..255.
func (v *values) code(lo uint8) uint8 {
	switch v.kind {
	case edges:
		return []uint8{lo, 255, 128, 127, lo + 1}[v.rng.IntN(5)]
	case lowest:
		return lo
	case highest:
		return 255
	case second:
		return lo + 1
	case rawBits:
		return max(lo, uint8(v.bits()))
	}
	return lo + uint8(v.rng.IntN(256-int(lo)))
}

// half is the bits of a finite float16.
func (v *values) half() uint16 {
	switch v.kind {
	case edges:
		halves := []uint16{0, 0x8000, 0x3c00, 0xbc00, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff}
		return halves[v.rng.IntN(len(halves))]
	case lowest:
		return 0
	case highest:
		return 0x7bff
	case second:
		return uint16(v.rng.UintN(0x400))
	}
	return number.FloatToHalf(float32(v.rng.NormFloat64()))
}

// matrix is [rows,cols] with NaN between its rows, which begin ld elements apart.
func (v *values) matrix(rows, cols, ld int, top float32) []float32 {
	m := make([]float32, max(0, (rows-1)*ld+cols))
	for i := range m {
		m[i] = float32(math.NaN()) // between rows
		if i%ld < cols {
			m[i] = v.float(top)
		}
	}
	return m
}

// bounded is a matrix of finite numbers of at most top in magnitude.
func (v *values) bounded(rows, cols, ld int, top float32) []float32 {
	numbers := v.matrix(rows, cols, ld, top)
	for i, f := range numbers {
		if i%ld < cols && !(math.Abs(float64(f)) <= float64(top)) {
			numbers[i] = top // raw bits may be anything
		}
	}
	return numbers
}

// differs reports whether a result is not that of its twin: the same bits for no units, any NaN for NaN, and any value
// where the terms may leave the range of float32.
func differs(got, want float32, units, magnitude float64) bool {
	inRange := magnitude <= math.MaxFloat32/2
	switch {
	case got != got && want != want:
		return false
	case got != got || want != want:
		return inRange || math.IsNaN(magnitude)
	case units == 0:
		return math.Float32bits(got) != math.Float32bits(want)
	case !inRange:
		return false
	}
	return !(math.Abs(float64(got)-float64(want)) <= units*(magnitude*0x1p-24+0x1p-149))
}

// shape is a call's size, in which the fuzzer has its own choice.
type shape struct {
	m, k, n          int
	gapX, gapY, gapS int // padding between rows
}

func (s shape) String() string {
	return fmt.Sprintf("[%d,%d]x[%d,%d] padding %d/%d/%d", s.m, s.k, s.k, s.n, s.gapX, s.gapY, s.gapS)
}

// tiledWeight is a weight as pack documents it, but with numbers that pack makes only of unusual models,
// and its values as float64 [k][n].
func tiledWeight(v *values, scheme string, k, n int) (packed []byte, wide []float64) {
	size, err := pack.TileBytes(scheme, k)
	if err != nil {
		panic(err)
	}
	tiles := (n + TileN - 1) / TileN
	packed, wide = make([]byte, int(size)*tiles), make([]float64, k*n)
	fill := map[string]func(tile []byte, k int, v *values, set func(row, col int, x float64)){
		"w32":    fillTileF32,
		"w16":    fillTileBF16,
		"q8c":    fillTileQ8C,
		"q6c":    fillTileQ6C,
		"q4b32":  fillTileQ4(32),
		"q4b128": fillTileQ4(128),
	}[scheme]
	for t := range tiles {
		tile := packed[t*int(size) : (t+1)*int(size)]
		fill(tile, k, v, func(row, col int, x float64) {
			if col += t * TileN; col < n {
				wide[row*n+col] = x
			}
		})
	}
	return packed, wide
}

// fillTileF32 fills a tile of float32 numbers and sets the value of each element.
func fillTileF32(tile []byte, k int, v *values, set func(row, col int, x float64)) {
	for i := range k * TileN {
		x := v.float(1e12)
		binary.LittleEndian.PutUint32(tile[4*i:], math.Float32bits(x))
		set(i/TileN, i%TileN, float64(x))
	}
}

// fillTileBF16 fills a tile of bfloat16 numbers, in which column 16 follows column 0.
func fillTileBF16(tile []byte, k int, v *values, set func(row, col int, x float64)) {
	for i := range k * TileN {
		brain := uint16(math.Float32bits(v.float(1e12)) >> 16)
		binary.LittleEndian.PutUint16(tile[2*i:], brain)
		set(i/TileN, i%2*16+i%TileN/2, fromBrain(brain))
	}
}

// columnScale is the scale of a column of codes.
func columnScale(v *values) float32 {
	scale := float32(math.Abs(float64(v.float(1e12))))
	if v.kind == lowest {
		return 0.25 // the codes shall count
	}
	return scale
}

// fillTileQ8C fills a tile of 8-bit codes, with the scales and sums of columns behind them.
func fillTileQ8C(tile []byte, k int, v *values, set func(row, col int, x float64)) {
	padded := (k + 3) / 4 * 4
	scales, sums := tile[padded*TileN:], tile[padded*TileN+4*TileN:]
	for col := range TileN {
		scale, sum := columnScale(v), int32(0)
		for row := range k {
			code := int8(v.code(1) ^ 0x80)
			tile[row/4*4*TileN+col*4+row%4] = byte(code)
			sum += int32(code)
			set(row, col, float64(code)*float64(scale))
		}
		binary.LittleEndian.PutUint32(scales[4*col:], math.Float32bits(scale))
		binary.LittleEndian.PutUint32(sums[4*col:], uint32(sum))
	}
}

// fillTileQ6C fills a tile of 6-bit codes, with the scales of columns behind them.
func fillTileQ6C(tile []byte, k int, v *values, set func(row, col int, x float64)) {
	codes, scales := tile[:len(tile)-4*TileN], tile[len(tile)-4*TileN:]
	for i := range codes {
		codes[i] = v.code(0)
	}
	if v.kind == lowest { // 0, which pack does not make
		clear(codes)
	}
	for col := range TileN {
		scale := columnScale(v)
		for row := range k {
			group, quad := codes[row/16*384:], row%16/4
			low := group[quad/2*128+4*col+row%4] >> (quad % 2 * 4) & 15
			high := group[256+4*col+row%4] >> (2 * quad) & 3
			set(row, col, float64(int(16*high+low)-32)*float64(scale))
		}
		binary.LittleEndian.PutUint32(scales[4*col:], math.Float32bits(scale))
	}
}

// fillTileQ4 fills a tile of 4-bit codes in blocks of so many rows, each with the float16 scales of its columns.
func fillTileQ4(block int) func(tile []byte, k int, v *values, set func(row, col int, x float64)) {
	size := 16*block + 2*TileN
	return func(tile []byte, k int, v *values, set func(row, col int, x float64)) {
		for at := 0; at < len(tile); at += size {
			nibbles, scales := tile[at:at+16*block], tile[at+16*block:at+size]
			for i := range nibbles {
				nibbles[i] = v.code(0)
			}
			if v.kind == lowest {
				clear(nibbles)
			}
			first := at / size * block
			for col := range TileN {
				half := v.half()
				if v.kind == lowest {
					half = 0x3400 // the codes shall count
				}
				binary.LittleEndian.PutUint16(scales[2*col:], half)
				scale := float64(number.HalfToFloat(half))
				for i := range min(block, k-first) {
					code := nibbles[i/4*64+col%16*4+i%4] >> (col / 16 * 4) & 15
					set(first+i, col, float64(int(code)-8)*scale)
				}
			}
		}
	}
}

// matmuls names the products with the scheme of their weight.
var matmuls = map[string]string{
	"MatMulF32":     "w32",
	"MatMulBF16":    "w16",
	"MatMulQ8C":     "q8c",
	"MatMulQ6C":     "q6c",
	"MatMulQ4B32":   "q4b32",
	"MatMulQ4B128":  "q4b128",
	"MatMulRequant": "q4b32",
}

// twinProduct is one product and its operands. Activations are either floats or codes with scales and sums.
type twinProduct struct {
	t      testing.TB
	name   string
	shape  shape
	before bool // where fences are

	floats []float32
	codes  []uint8
	scale  []float32
	sums   []int32
	packed []byte

	wide          []float64 // the weight's values [k,n]
	ldx, ldy, lds int       // elements from one row to the next of activations, results and sums
}

// newTwinProduct draws the operands of a product.
func newTwinProduct(t testing.TB, name string, s shape, x, w *values, before bool) *twinProduct {
	blocks := (s.k + BlockK - 1) / BlockK
	p := &twinProduct{
		t: t, name: name, shape: s, before: before,
		ldx: s.k + s.gapX, ldy: s.n + s.gapY, lds: blocks + s.gapS,
		scale: make([]float32, s.m),
	}
	p.packed, p.wide = tiledWeight(w, matmuls[name], s.k, s.n)
	if name == "MatMulF32" || name == "MatMulBF16" {
		p.floats = x.matrix(s.m, s.k, p.ldx, 1e12)
	} else {
		p.drawCodes(x)
	}
	p.sums = make([]int32, max(0, (s.m-1)*p.lds+blocks))
	blockSums(Rows(p.sums, p.lds), Rows(p.codes, p.ldx), min(s.m, len(p.codes)), s.k)
	return p
}

// drawCodes draws codes and scales, and makes some rows those of zeros.
func (p *twinProduct) drawCodes(x *values) {
	s := p.shape
	p.codes = make([]uint8, max(0, (s.m-1)*p.ldx+s.k))
	for i := range p.codes {
		p.codes[i] = x.code(0)
	}
	for r := range p.scale {
		p.scale[r] = float32(math.Abs(float64(x.float(1e12))))
		if x.kind == lowest || x.kind == highest {
			p.scale[r] = 0.5 // the codes shall count
		}
		if r%5 == 3 { // a zero row as QuantRows makes it
			p.scale[r] = 0
			for c := range s.k {
				p.codes[r*p.ldx+c] = 128
			}
		}
	}
}

// call returns what a set computes.
func (p *twinProduct) call(set *Set) []float32 {
	s := p.shape
	m := &memory{t: p.t, before: p.before}
	y := outputOf[float32](m, s.m, s.n, p.ldy)
	floats, packed := Rows(input(m, p.floats), p.ldx), input(m, p.packed)
	codes := Quantised{
		Codes: Rows(input(m, p.codes), p.ldx),
		Scale: input(m, p.scale),
		Sums:  Rows(input(m, p.sums), p.lds),
	}
	switch p.name {
	case "MatMulF32":
		set.MatMulF32(Rows(y, p.ldy), floats, viewAs[float32](p.t, packed), s.m, s.k, s.n)
	case "MatMulBF16":
		set.MatMulBF16(Rows(y, p.ldy), floats, viewAs[uint16](p.t, packed), s.m, s.k, s.n)
	case "MatMulQ8C":
		set.MatMulQ8C(Rows(y, p.ldy), codes, packed, s.m, s.k, s.n)
	case "MatMulQ6C":
		set.MatMulQ6C(Rows(y, p.ldy), codes, packed, s.m, s.k, s.n)
	case "MatMulQ4B32":
		set.MatMulQ4B32(Rows(y, p.ldy), codes, packed, s.m, s.k, s.n)
	case "MatMulQ4B128":
		set.MatMulQ4B128(Rows(y, p.ldy), codes, packed, s.m, s.k, s.n)
	case "MatMulRequant":
		scratch := fenced(m, bytes.Repeat([]byte{0xff}, RequantBytes(s.k)))
		set.MatMulRequant(Rows(y, p.ldy), codes, packed, scratch, s.m, s.k, s.n)
	}
	got := slices.Clone(y)
	m.done(fmt.Sprintf("%s %s %v", set.Name, p.name, s))
	return got
}

// packs reports whether a set has this product of rows that are packed first.
func (p *twinProduct) packs(set *Set) bool {
	if p.name == "MatMulQ6C" || p.shape.m < set.PackFrom {
		return false
	}
	return p.floats != nil && set.PackRowsF32 != nil || p.codes != nil && set.PackRows != nil
}

// callPacked returns what a set computes of packed rows.
func (p *twinProduct) callPacked(set *Set) []float32 {
	s := p.shape
	m := &memory{t: p.t, before: p.before}
	y := outputOf[float32](m, s.m, s.n, p.ldy)
	if p.floats != nil {
		p.multiplyFloats(set, m, y)
	} else {
		p.multiplyCodes(set, m, y)
	}
	got := slices.Clone(y)
	m.done(fmt.Sprintf("%s %s of packed rows %v", set.Name, p.name, s))
	return got
}

// multiplyFloats packs rows of float32 numbers and multiplies them.
func (p *twinProduct) multiplyFloats(set *Set, m *memory, y []float32) {
	s := p.shape
	floats, rows := input(m, p.floats), fenced(m, make([]float32, s.m*s.k))
	for group := range PackGroups(s.m) {
		set.PackRowsF32(rows, Rows(floats, p.ldx), s.m, s.k, group)
	}
	rows = input(m, rows)
	packed := input(m, p.packed)
	if p.name == "MatMulF32" {
		set.PackedF32(Rows(y, p.ldy), rows, viewAs[float32](p.t, packed), s.m, s.k, s.n)
	} else {
		set.PackedBF16(Rows(y, p.ldy), rows, viewAs[uint16](p.t, packed), s.m, s.k, s.n)
	}
}

// multiplyCodes packs rows of codes and multiplies them.
func (p *twinProduct) multiplyCodes(set *Set, m *memory, y []float32) {
	s := p.shape
	block, multiply, room := 0, set.PackedQ8C, PackedScratch(s.k, 0)
	switch p.name {
	case "MatMulRequant":
		multiply, room = set.PackedRequant, RequantScratch(s.k)
	case "MatMulQ4B32":
		block, multiply, room = BlockK, set.PackedQ4B32, PackedScratch(s.k, BlockK)
	case "MatMulQ4B128":
		block, multiply, room = pack.Block128, set.PackedQ4B128, PackedScratch(s.k, pack.Block128)
	}
	codes, rows := input(m, p.codes), fenced(m, bytes.Repeat([]byte{0x5a}, PackedBytes(s.m, s.k, block)))
	for group := range PackGroups(s.m) {
		set.PackRows(rows, Rows(codes, p.ldx), s.m, s.k, block, group)
	}
	packed := PackedRows{Bytes: input(m, rows), Scale: input(m, p.scale), M: s.m, K: s.k}
	scratch := fenced(m, bytes.Repeat([]byte{0xff}, room))
	multiply(Rows(y, p.ldy), packed, input(m, p.packed), scratch, s.n)
}

// magnitude is the sum of the magnitudes of the terms of an element.
func (p *twinProduct) magnitude(r, c int) float64 {
	sum := 0.0
	for i := range p.shape.k {
		var activation float64
		if p.floats != nil {
			activation = float64(p.floats[r*p.ldx+i])
		} else {
			activation = float64(int(p.codes[r*p.ldx+i])-128) * float64(p.scale[r])
		}
		sum += math.Abs(activation * p.wide[i*p.shape.n+c])
	}
	return sum
}

// twinMatMul compares one product of all sets with that of the portable one, and packed rows with others.
func twinMatMul(t testing.TB, sets []*Set, name string, s shape, x, w *values, before bool) {
	t.Helper()
	p := newTwinProduct(t, name, s, x, w, before)
	want := p.call(Portable())
	allowed := tolerance[name](s.k)
	if x.kind == plain && w.kind == plain {
		allowed = min(allowed, 4+2*math.Sqrt(float64(s.k)))
	}
	for _, set := range sets {
		what := fmt.Sprintf("%s %s %v, activations of kind %d, weights of kind %d", set.Name, name, s, x.kind, w.kind)
		got := p.call(set)
		var ofPacked []float32
		if p.packs(set) {
			ofPacked = p.callPacked(set)
		}
		for r := range s.m {
			for c := range s.n {
				i := r*p.ldy + c
				magnitude := 0.0
				if allowed > 0 {
					magnitude = p.magnitude(r, c)
				}
				if differs(got[i], want[i], allowed, magnitude) {
					t.Fatalf("%s: [%d,%d] is %v, want %v (magnitude %v)", what, r, c, got[i], want[i], magnitude)
				}
				if ofPacked != nil && differs(ofPacked[i], got[i], 0, 0) {
					t.Fatalf("%s: [%d,%d] is %v of packed rows, %v of others", what, r, c, ofPacked[i], got[i])
				}
			}
		}
	}
}

var names = []string{"MatMulF32", "MatMulBF16", "MatMulQ8C", "MatMulQ4B32", "MatMulQ4B128", "MatMulRequant", "MatMulQ6C"}

// Products of every size and kind of numbers are those of the portable set.
func TestTwinMatMul(t *testing.T) {
	require.Slow(t)
	sets := vectorSets()
	if len(sets) == 0 {
		t.Skip("this machine has none of the vector instruction sets")
	}

	seed := uint64(0)
	for _, name := range names {
		one := func(s shape, x, w uint8) {
			seed++
			s.gapX, s.gapY, s.gapS = int(seed%4)*5, int(seed/2%3)*7, int(seed%3)
			before := seed%2 == 0
			twinMatMul(t, sets, name, s, newValues(x, seed, nil), newValues(w, seed+1<<32, nil), before)
		}
		for m := 0; m <= 26; m++ {
			for i, k := range []int{1, 3, 4, 31, 32, 61, 127, 128, 131} {
				n := []int{1, 31, 32, 33, 67}[(m+i)%5]
				one(shape{m: m, k: k, n: n}, uint8(m+i)%kinds, uint8(i)%kinds)
			}
		}
		for x := range uint8(kinds) {
			for w := range uint8(kinds) {
				for i, m := range []int{1, 2, 3, 7, 13} {
					one(shape{m: m, k: 257 - i%2, n: 40 + i%2*24}, x, w)
				}
			}
		}
		for m := 27; m <= 43; m++ {
			for i, k := range []int{1, 63, 64, 65, 129, 192} {
				n := []int{1, 32, 67}[(m+i)%3]
				one(shape{m: m, k: k, n: n}, uint8(m+i)%kinds, uint8(m/2+i)%kinds)
			}
		}

		// More rows, activations and tiles than wordsQ8C takes at a time.
		one(shape{m: 67, k: 513, n: 165}, plain, plain)
		one(shape{m: 66, k: 256, n: 128}, lowest, highest)
		one(shape{m: 133, k: 766, n: 33}, highest, plain)

		// More than the kernels of nibbles take at a time.
		one(shape{m: 5, k: 1030, n: 300}, plain, plain)
		one(shape{m: 14, k: 1030, n: 293}, lowest, highest)
		for _, k := range []int{1021, 1152, 2048} {
			one(shape{m: 14, k: k, n: 45}, plain, plain)
			one(shape{m: 1, k: k, n: 64}, highest, highest)
			one(shape{m: 8, k: k, n: 64}, lowest, highest)
		}
	}
}

// NaN and infinities in a row of float32 activations stay in that row.
func TestTwinNonFinite(t *testing.T) {
	const m, k, n = 15, 70, 40
	const dirtyRow = 6
	sets := append(vectorSets(), Portable(), Reference())
	packed, _ := tiledWeight(newValues(plain, 2, nil), "w32", k, n)
	w := viewAs[float32](t, packed)
	clean := newValues(plain, 1, nil).matrix(m, k, k, 1)
	for _, s := range sets {
		want := make([]float32, m*n)
		s.MatMulF32(Rows(want, n), Rows(clean, k), w, m, k, n)
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for _, column := range []int{0, 33, k - 1} {
				dirty, got := slices.Clone(clean), make([]float32, m*n)
				dirty[dirtyRow*k+column] = float32(bad)

				s.MatMulF32(Rows(got, n), Rows(dirty, k), w, m, k, n)

				for i, v := range got {
					if row := i / n; row != dirtyRow {
						if v != want[i] {
							t.Fatalf("%s: %v in row %d changed row %d", s.Name, bad, dirtyRow, row)
						}
						continue
					}
					if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
						t.Fatalf("%s: %v at column %d gave %v", s.Name, bad, column, v)
					}
				}
			}
		}
	}
}

// rowTwins compares functions on rows. Its checks are numbered, and a test chooses among them by their numbers.
type rowTwins struct {
	t        testing.TB
	sets     []*Set
	shape    shape
	x        *values
	before   bool // where fences are
	which    func(number int) bool
	number   int // of the next check
	ldx, ldy int

	a          []float32 // [m,n], ldx apart
	b          []float32 // [m,n], ldy apart
	gain, bias []float32
}

// rowResult is what a call wrote: numbers that may differ, and others that may not.
type rowResult struct {
	floats []float32
	bytes  []uint8
	halves []uint16
	ints   []int32
	note   string
}

// twinRows compares the functions on rows whose numbers are in which.
func twinRows(t testing.TB, sets []*Set, s shape, x *values, before bool, which func(number int) bool) {
	t.Helper()
	w := &rowTwins{t: t, sets: sets, shape: s, x: x, before: before, which: which, ldx: s.n + s.gapX, ldy: s.n + s.gapY}
	w.a = x.matrix(s.m, s.n, w.ldx, math.MaxFloat32)
	w.b = x.matrix(s.m, s.n, w.ldy, 1e38)
	w.gain = x.matrix(1, s.n, s.n, 1e3)
	w.bias = x.matrix(1, s.n, s.n, 1e38)

	w.sums()
	w.norms()
	w.activations()
	w.factors()
	w.combine()
	w.rope()
	w.quantise()
	w.blockSums()
	w.convert()
}

// check calls a function of all sets. Numbers of terms terms may differ by the function's tolerance of their size.
func (w *rowTwins) check(name string, terms int, call func(*Set, *memory) rowResult, size func(r, c int) float64) {
	w.t.Helper()
	number := w.number
	w.number++
	if !w.which(number) {
		return
	}
	run := func(set *Set) rowResult {
		m := &memory{t: w.t, before: w.before}
		got := call(set, m)
		got.floats, got.bytes = slices.Clone(got.floats), slices.Clone(got.bytes)
		got.halves, got.ints = slices.Clone(got.halves), slices.Clone(got.ints)
		m.done(fmt.Sprintf("%s %s %v", set.Name, name, w.shape))
		return got
	}

	want := run(Portable())
	for _, set := range w.sets {
		what := fmt.Sprintf("%s %s %v of kind %d", set.Name, name, w.shape, w.x.kind)
		got := run(set)
		same := got.note == want.note && slices.Equal(got.bytes, want.bytes) && slices.Equal(got.halves, want.halves) &&
			slices.Equal(got.ints, want.ints)
		if !same {
			w.t.Fatalf("%s differs: %v, want %v", what, got, want)
		}
		for i, v := range got.floats {
			r, c := 0, i
			if len(got.floats) > w.shape.n {
				r, c = i/w.ldy, i%w.ldy
			}
			if c >= w.shape.n {
				continue
			}
			magnitude := size(r, c)
			if differs(v, want.floats[i], tolerance[name](terms), magnitude) {
				w.t.Fatalf("%s: [%d,%d] is %v, want %v (magnitude %v)", what, r, c, v, want.floats[i], magnitude)
			}
		}
	}
}

// bits is the size for functions whose results have the same bits.
func bits(int, int) float64 { return 0 }

// at is an element of the rows a.
func (w *rowTwins) at(r, c int) float64 { return float64(w.a[r*w.ldx+c]) }

// row is one of the rows a.
func (w *rowTwins) row(r int) []float32 { return w.a[r*w.ldx:][:w.shape.n] }

// allFinite reports whether a row has neither NaN nor infinities.
func allFinite(row []float32) bool {
	return !slices.ContainsFunc(row, func(f float32) bool { return math.IsInf(float64(f), 0) || f != f })
}

func (w *rowTwins) sums() {
	m, n := w.shape.m, w.shape.n
	w.check("Add", 1, func(set *Set, buffers *memory) rowResult {
		y, a, b := outputOf[float32](buffers, m, n, w.ldy), input(buffers, w.a), input(buffers, w.b)
		set.Add(Rows(y, w.ldy), Rows(a, w.ldx), Rows(b, w.ldy), m, n)
		return rowResult{floats: y}
	}, bits)
	w.check("Add", 1, func(set *Set, buffers *memory) rowResult {
		y, a, row := outputOf[float32](buffers, m, n, w.ldy), input(buffers, w.a), input(buffers, w.gain)
		set.Add(Rows(y, w.ldy), Rows(a, w.ldx), Rows(row, 0), m, n)
		return rowResult{floats: y}
	}, bits)
}

func (w *rowTwins) norms() {
	m, n := w.shape.m, w.shape.n
	// normed is the size of an element after a mean is subtracted and the row divided by its deviation.
	normed := func(r, c int, mean, eps float64) float64 {
		deviation := 0.0
		for i := range n {
			deviation += (w.at(r, i) - mean) * (w.at(r, i) - mean)
		}
		return math.Abs(float64(w.gain[c])*(w.at(r, c)-mean)) * rootInverse(deviation/float64(n)+eps)
	}
	for _, eps := range []float64{0, 1e-6} {
		w.check("Norm", n, func(set *Set, buffers *memory) rowResult {
			y, a, gain := outputOf[float32](buffers, m, n, w.ldy), input(buffers, w.a), input(buffers, w.gain)
			set.Norm(Rows(y, w.ldy), Rows(a, w.ldx), gain, eps, m, n)
			return rowResult{floats: y}
		}, func(r, c int) float64 {
			if !allFinite(w.row(r)) {
				return math.Inf(1)
			}
			return normed(r, c, 0, eps)
		})
		w.check("LayerNorm", n, func(set *Set, buffers *memory) rowResult {
			y, a := outputOf[float32](buffers, m, n, w.ldy), input(buffers, w.a)
			gain, bias := input(buffers, w.gain), input(buffers, w.bias)
			set.LayerNorm(Rows(y, w.ldy), Rows(a, w.ldx), gain, bias, eps, m, n)
			return rowResult{floats: y}
		}, func(r, c int) float64 {
			if !allFinite(w.row(r)) {
				return math.Inf(1)
			}
			return normed(r, c, mean(w.row(r)), eps) + math.Abs(float64(w.bias[c]))
		})
	}
}

func (w *rowTwins) activations() {
	m, n := w.shape.m, w.shape.n
	for _, act := range op.Acts {
		w.check("Activate", 1, func(set *Set, buffers *memory) rowResult {
			y, a := outputOf[float32](buffers, m, n, w.ldy), input(buffers, w.a)
			set.Activate(Rows(y, w.ldy), Rows(a, w.ldx), act, m, n)
			return rowResult{floats: y}
		}, func(r, c int) float64 {
			if math.IsInf(w.at(r, c), 0) {
				return math.Inf(1)
			}
			return math.Abs(refAct(act, w.at(r, c))) + tails(act, w.at(r, c))
		})
		for _, width := range []int{1, 16, 24, 32, n} {
			if n%width == 0 {
				w.glu(act, width)
			}
		}
	}
	for _, limit := range []float64{1e-3, 1, 30, 1e6} {
		w.check("Softcap", 1, func(set *Set, buffers *memory) rowResult {
			y, a := outputOf[float32](buffers, m, n, w.ldy), input(buffers, w.a)
			set.Softcap(Rows(y, w.ldy), Rows(a, w.ldx), limit, m, n)
			return rowResult{floats: y}
		}, func(r, c int) float64 { return limit*math.Abs(math.Tanh(w.at(r, c)/limit)) + 0x1p-125*limit })
	}
}

// glu compares GLU with so many columns of gates and of factors at a time.
func (w *rowTwins) glu(act string, width int) {
	m, n := w.shape.m, w.shape.n
	ld := 2*n + w.shape.gapX
	pairs := w.x.matrix(m, 2*n, ld, 1e19)
	w.check("GLU", 1, func(set *Set, buffers *memory) rowResult {
		y, pairs := outputOf[float32](buffers, m, n, w.ldy), input(buffers, pairs)
		set.GLU(Rows(y, w.ldy), Rows(pairs, ld), act, width, m, n)
		return rowResult{floats: y}
	}, func(r, c int) float64 {
		pair := pairs[r*ld+c/width*2*width+c%width:]
		gate, factor := float64(pair[0]), float64(pair[width])
		if math.IsInf(gate, 0) || math.IsInf(factor, 0) {
			return math.Inf(1)
		}
		// A subnormal value of the function is rounded before it is multiplied.
		return (math.Abs(refAct(act, gate)) + tails(act, gate) + 0x1p-125) * math.Abs(factor)
	})
}

func (w *rowTwins) factors() {
	m, n := w.shape.m, w.shape.n
	w.check("Gate", 1, func(set *Set, buffers *memory) rowResult {
		y, a, gates := outputOf[float32](buffers, m, n, w.ldy), input(buffers, w.a), input(buffers, w.b)
		set.Gate(Rows(y, w.ldy), Rows(a, w.ldx), Rows(gates, w.ldy), m, n)
		return rowResult{floats: y}
	}, bits)
	w.check("Scale", 1, func(set *Set, buffers *memory) rowResult {
		y := fenced(buffers, w.gain)
		set.Scale(y, -0.37)
		return rowResult{floats: y}
	}, bits)
}

func (w *rowTwins) combine() {
	m, n := w.shape.m, w.shape.n
	for _, fan := range []int{1, 2, 7} {
		ld := fan + w.shape.gapS
		rows, weights := w.x.matrix(m*fan, n, w.ldx, 1e15), w.x.matrix(m, fan, ld, 1e15)
		w.check("Combine", fan, func(set *Set, buffers *memory) rowResult {
			y, rows, weights := outputOf[float32](buffers, m, n, w.ldy), input(buffers, rows), input(buffers, weights)
			set.Combine(Rows(y, w.ldy), Rows(rows, w.ldx), Rows(weights, ld), m, fan, n)
			return rowResult{floats: y}
		}, func(r, c int) float64 {
			sum := 0.0
			for j := range fan {
				sum += math.Abs(float64(weights[r*ld+j]) * float64(rows[(r*fan+j)*w.ldx+c]))
			}
			return sum
		})
	}
}

func (w *rowTwins) rope() {
	m, n := w.shape.m, w.shape.n
	for _, heads := range []int{1, 2} {
		dim := n / heads
		for _, half := range []int{dim / 2, dim / 4, 16} {
			if 2*half > dim || half == 0 {
				continue
			}
			cos, sin := w.x.matrix(m, half, half, 1), w.x.matrix(m, half, half, 1)
			w.check("Rope", 2, func(set *Set, buffers *memory) rowResult {
				y, cos, sin := fenced(buffers, w.b), input(buffers, cos), input(buffers, sin)
				set.Rope(Rows(y, w.ldy), cos, sin, m, heads, dim, 2*half)
				return rowResult{floats: y}
			}, bits)
		}
	}
}

// quantisedRows are the codes and scales of the rows before the refused one, or of all.
func (w *rowTwins) quantisedRows(codes []uint8, scale []float32, refused int) rowResult {
	m, n := w.shape.m, w.shape.n
	if refused < -1 || refused >= m {
		w.t.Fatalf("refused row %d of %d", refused, m)
	}
	rows := m
	if refused >= 0 {
		rows = refused
	}
	written := make([]uint8, 0, m*n)
	for r := range rows {
		written = append(written, codes[r*w.ldy:][:n]...)
		written = append(written, mem.Bytes(scale[r:r+1])...)
	}
	return rowResult{bytes: written, note: fmt.Sprint(refused)}
}

func (w *rowTwins) quantise() {
	m, n := w.shape.m, w.shape.n
	w.check("QuantRows", 1, func(set *Set, buffers *memory) rowResult {
		y, a, scale := outputOf[uint8](buffers, m, n, w.ldy), input(buffers, w.a), fenced(buffers, make([]float32, m))
		refused := set.QuantRows(Quantised{Codes: Rows(y, w.ldy), Scale: scale}, Rows(a, w.ldx), m, n)
		return w.quantisedRows(y, scale, refused)
	}, bits)

	static := make([]float32, 1+w.x.rng.IntN(4))
	for i := range static {
		static[i] = float32(math.Exp(20*w.x.rng.Float64() - 12)) // with it everything saturates, or nothing
	}
	w.check("QuantStatic", 1, func(set *Set, buffers *memory) rowResult {
		y, a, scale := outputOf[uint8](buffers, m, n, w.ldy), input(buffers, w.a), fenced(buffers, make([]float32, m))
		refused := set.QuantStatic(Quantised{Codes: Rows(y, w.ldy), Scale: scale}, static, Rows(a, w.ldx), m, n)
		return w.quantisedRows(y, scale, refused)
	}, bits)
}

func (w *rowTwins) blockSums() {
	m, n := w.shape.m, w.shape.n
	codes := make([]uint8, max(0, (m-1)*w.ldx+n))
	for i := range codes {
		codes[i] = w.x.code(0)
	}
	w.check("BlockSums", 1, func(set *Set, buffers *memory) rowResult {
		blocks := (n + BlockK - 1) / BlockK
		ld := blocks + w.shape.gapS
		sums, codes := fenced(buffers, make([]int32, max(0, (m-1)*ld+blocks))), input(buffers, codes)
		set.BlockSums(Rows(sums, ld), Rows(codes, w.ldx), m, n)
		return rowResult{ints: sums}
	}, bits)
}

func (w *rowTwins) convert() {
	n := w.shape.n
	halves := make([]uint16, n)
	for i := range halves {
		halves[i] = uint16(w.x.bits())
	}
	w.check("FromF16", 1, func(set *Set, buffers *memory) rowResult {
		y, halves := outputOf[float32](buffers, 1, n, n), input(buffers, halves)
		set.FromF16(y, halves)
		return rowResult{floats: y}
	}, bits)
	w.check("FromBF16", 1, func(set *Set, buffers *memory) rowResult {
		y, halves := outputOf[float32](buffers, 1, n, n), input(buffers, halves)
		set.FromBF16(y, halves)
		return rowResult{floats: y}
	}, bits)

	// oneNaN makes all NaN of a format the same one.
	oneNaN := func(y []uint16, from []float32, exponent, quiet uint16) {
		for i := range y {
			if from[i] != from[i] {
				y[i] = y[i]&exponent | quiet
			}
		}
	}
	w.check("ToBF16", 1, func(set *Set, buffers *memory) rowResult {
		y, from := fenced(buffers, make([]uint16, n)), input(buffers, w.bias)
		ok := set.ToBF16(y, from)
		oneNaN(y, from, 0x7f80, 0x40)
		return rowResult{halves: y, note: fmt.Sprint(ok)}
	}, bits)
	w.check("ToF16", 1, func(set *Set, buffers *memory) rowResult {
		y, from := fenced(buffers, make([]uint16, n)), input(buffers, w.bias)
		ok := set.ToF16(y, from)
		oneNaN(y, from, 0x7c00, 0x200)
		return rowResult{halves: y, note: fmt.Sprint(ok)}
	}, bits)
}

// Functions on rows of every kind of numbers are those of the portable set.
func TestTwinRows(t *testing.T) {
	sets := vectorSets()
	if len(sets) == 0 {
		t.Skip("this machine has none of the vector instruction sets")
	}

	seed := uint64(0)
	for _, n := range []int{1, 2, 7, 15, 16, 17, 31, 32, 48, 61, 64, 97, 128, 160, 257, 1000} {
		for kind := range uint8(rawBits + 1) {
			if kind == kinds {
				continue
			}
			seed++
			m := []int{0, 1, 3}[seed%3]
			s := shape{m: m, n: n, gapX: int(seed % 5), gapY: int(seed % 4 * 3), gapS: int(seed % 2)}
			before := seed%2 == 0
			twinRows(t, sets, s, newValues(kind, seed, nil), before, func(int) bool { return true })
		}
	}
}

// cachedQ8 stores rows of dim numbers as an 8-bit cache.
func cachedQ8(x []float32, dim int) (rows []uint8) {
	set := Portable()
	for at := 0; at < len(x); at += dim {
		row := make([]uint8, dim+cachedScale)
		set.StoreQ8(row, x[at:at+dim], make([]float32, 1))
		rows = append(rows, row...)
	}
	return rows
}

// attentionTwin is a call of attention over caches of all types, which hold the same numbers as far as they can.
type attentionTwin struct {
	t        testing.TB
	a        Attention
	x        *values
	before   bool // where fences are
	ldq, ldy int
	q, k, v  []float32
	k16, v16 []uint16
	kb, vb   []uint16
	k8, v8   []uint8
}

// newAttentionTwin draws queries and caches. The numbers are small enough that no score leaves the range of float32.
func newAttentionTwin(t testing.TB, a Attention, gapX, gapY int, x *values, before bool) *attentionTwin {
	width, context := a.Heads*a.Dim, a.Pos+a.M
	w := &attentionTwin{t: t, a: a, x: x, before: before, ldq: width + gapX, ldy: width + gapY}
	w.q = x.bounded(a.M, width, w.ldq, 1e3)
	w.k, w.v = x.bounded(context, a.Dim, a.Dim, 1e3), x.bounded(context, a.Dim, a.Dim, 1e4)

	w.k16, w.v16 = make([]uint16, len(w.k)), make([]uint16, len(w.v))
	toF16(w.k16, w.k)
	toF16(w.v16, w.v)
	w.k8, w.v8 = cachedQ8(w.k, a.Dim), cachedQ8(w.v, a.Dim)
	w.kb, w.vb = make([]uint16, len(w.k)), make([]uint16, len(w.v))
	toBF16(w.kb, w.k)
	toBF16(w.vb, w.v)
	return w
}

// cached returns the numbers that a cache of the form holds.
func (w *attentionTwin) cached(form string) (k, v []float32) {
	k, v = slices.Clone(w.k), slices.Clone(w.v)
	dim := w.a.Dim
	switch form {
	case "bf16":
		fromBF16(k, w.kb)
		fromBF16(v, w.vb)
	case "f16":
		fromF16(k, w.k16)
		fromF16(v, w.v16)
	case "q8":
		for pos := range w.a.Pos + w.a.M {
			fromQ8(k[pos*dim:(pos+1)*dim], w.k8[pos*(dim+cachedScale):])
			fromQ8(v[pos*dim:(pos+1)*dim], w.v8[pos*(dim+cachedScale):])
		}
	}
	return k, v
}

// call returns what a set computes over a cache of the form.
func (w *attentionTwin) call(set *Set, form string) []float32 {
	a := w.a
	m := &memory{t: w.t, before: w.before}
	out := outputOf[float32](m, a.M, a.Heads*a.Dim, w.ldy)
	y, q := Rows(out, w.ldy), Rows(input(m, w.q), w.ldq)
	scratch := make([]float32, AttentionScratch(a.Heads, a.Dim))
	for i := range scratch {
		scratch[i] = float32(math.NaN())
	}
	scratch = fenced(m, scratch)
	if a.Rest.Count > 0 {
		a.Rest.Key, a.Rest.Value = input(m, a.Rest.Key), input(m, a.Rest.Value)
	}
	a.NextKeys, a.NextValues = input(m, a.NextKeys), input(m, a.NextValues)
	a.NextQueries.Data = input(m, a.NextQueries.Data)
	switch form {
	case "bf16":
		set.AttentionBF16(y, q, input(m, w.kb), input(m, w.vb), scratch, a)
	case "f16":
		set.AttentionF16(y, q, input(m, w.k16), input(m, w.v16), scratch, a)
	case "q8":
		set.AttentionQ8(y, q, input(m, w.k8), input(m, w.v8), scratch, a)
	default:
		set.AttentionF32(y, q, input(m, w.k), input(m, w.v), scratch, a)
	}
	got := slices.Clone(out)
	m.done(fmt.Sprintf("%s attention %v %s", set.Name, a, form))
	return got
}

// sizes returns for each column of a head the magnitude that the result of a row is accurate to.
func (w *attentionTwin) sizes(form string, k, v []float32, row, head int) []float64 {
	a := w.a
	query := w.q[row*w.ldq+head*a.Dim:][:a.Dim]
	worst, top := 0.0, make([]float64, a.Dim)
	attend := func(key, value []float32, more float64) {
		sum := more
		for d := range a.Dim {
			sum += math.Abs(float64(query[d]) * float64(key[d]) * a.Scale)
			top[d] = max(top[d], math.Abs(float64(value[d])))
		}
		worst = max(worst, sum)
	}
	for p := a.first(row); p <= a.Pos+row; p++ {
		attend(k[p*a.Dim:][:a.Dim], v[p*a.Dim:][:a.Dim], 0)
	}
	if a.Rest.Count > 0 {
		attend(a.Rest.Key, a.Rest.Value, math.Log(float64(a.Rest.Count)))
	}
	if a.Cap > 0 {
		worst += 8 * a.Cap
	}

	// An error of a score is a relative error of its weight.
	for d := range top {
		top[d] *= 1 + worst*float64(4+2*a.Dim)/16
		if form == "bf16" {
			top[d] *= 1 + 0x1p14 // weights may round to the other neighbour; TestAttentionBF16 is tight
		}
	}
	if form == "q8" { // weights may be rounded as those of the largest value are; TestAttentionQ8 is tight
		return slices.Repeat([]float64{max(0x1p7*slices.Max(top), 0x1p-60)}, a.Dim)
	}
	return top
}

// sameWithoutNext fails if a set has other bits where it does not know what the caller reads next.
func (w *attentionTwin) sameWithoutNext(set *Set, form string, got []float32) {
	w.t.Helper()
	alone := *w
	alone.a.NextKeys, alone.a.NextValues, alone.a.NextQueries = nil, nil, Matrix[float32]{}
	want := alone.call(set, form)
	for i := range got {
		if i%w.ldy < w.a.Heads*w.a.Dim && differs(got[i], want[i], 0, 0) {
			w.t.Fatalf("%s attention %v %s of kind %d: element %d is %v, %v with %d and %d bytes and %d queries next",
				set.Name, w.a, form, w.x.kind, i, want[i], got[i], len(w.a.NextKeys), len(w.a.NextValues),
				len(w.a.NextQueries.Data))
		}
	}
}

// twinAttention compares attention over all caches with that of the portable set.
func twinAttention(t testing.TB, sets []*Set, a Attention, gapX, gapY int, x *values, before bool) {
	t.Helper()
	w := newAttentionTwin(t, a, gapX, gapY, x, before)
	for _, form := range []string{"f32", "bf16", "f16", "q8"} {
		k, v := w.cached(form)
		sizes := make([][]float64, a.M*a.Heads) // the same for all sets
		for line := range sizes {
			sizes[line] = w.sizes(form, k, v, line/a.Heads, line%a.Heads)
		}
		want := w.call(Portable(), form)
		for _, set := range append(slices.Clone(sets), otherTiles()...) {
			got := w.call(set, form)
			if len(a.NextKeys)+len(a.NextValues)+len(a.NextQueries.Data) > 0 {
				w.sameWithoutNext(set, form, got)
			}
			for line, size := range sizes {
				r, h := line/a.Heads, line%a.Heads
				allowed := tolerance["Attention"](a.Pos + r + 1 - a.first(r) + min(1, a.Rest.Count))
				for d, magnitude := range size {
					column := h*a.Dim + d
					i := r*w.ldy + column
					if differs(got[i], want[i], allowed, magnitude) {
						what := fmt.Sprintf("%s attention %v %s of kind %d", set.Name, a, form, x.kind)
						t.Fatalf("%s: [%d,%d] is %v, want %v (magnitude %v)", what, r, column, got[i], want[i], magnitude)
					}
				}
			}
		}
	}
}

// Attention over every type of cache is that of the portable set.
func TestTwinAttention(t *testing.T) {
	sets := vectorSets()
	if len(sets) == 0 {
		t.Skip("this machine has none of the vector instruction sets")
	}

	seed := uint64(0)
	for _, dim := range []int{1, 5, 8, 16, 24, 31, 32, 48, 64, 72, 80, 96, 100, 112, 128, 200, 256} {
		for _, m := range []int{0, 1, 2, 9} {
			seed++
			a := Attention{
				M:     m,
				Heads: 1 + int(seed%9),
				Dim:   dim,
				Pos:   []int{0, 1, 31, 120, 255, 700}[seed%6],
				Scale: 1 / math.Sqrt(float64(dim)),
			}
			switch seed % 4 {
			case 1:
				a.Window = 1 + int(seed*7%200)
			case 2:
				a.Cap = 30
			}
			gapX, gapY, before := int(seed%3)*5, int(seed%2)*3, seed%2 == 0
			twinAttention(t, sets, a, gapX, gapY, newValues(uint8(seed%kinds), seed, nil), before)
		}
	}
}

// fuzzSets are the sets that fuzzing compares with the portable one.
func fuzzSets(f *testing.F) []*Set {
	sets := vectorSets()
	if len(sets) == 0 {
		f.Skip("this machine has none of the vector instruction sets")
	}
	return sets
}

// Products of any size and any bits are those of the portable set.
func FuzzMatMul(f *testing.F) {
	sets := fuzzSets(f)
	add := func(which, m uint8, k, n uint16, gaps, kindX, kindW uint8, seed uint64, raw []byte) {
		f.Add(which, m, k, n, gaps, kindX, kindW, seed, raw)
	}
	for i := range uint8(len(names)) {
		add(i, 1, 7, 33, 3, plain, plain, 1, nil)
		add(i, 13, 300, 64, 0, edges, highest, 2, nil)
		add(i, 31, 200, 70, 9, plain, edges, 4, nil)
		add(i, 9, 64, 5, 77, rawBits, rawBits, 3, []byte{0, 255, 128, 1, 0x80, 0x7f})
	}
	f.Fuzz(func(t *testing.T, which, m uint8, k, n uint16, gaps, kindX, kindW uint8, seed uint64, raw []byte) {
		name := names[int(which)%len(names)]
		s := shape{
			m: int(m % 40), k: 1 + int(k%700), n: 1 + int(n%140),
			gapX: int(gaps % 8), gapY: int(gaps / 8 % 8), gapS: int(gaps / 64),
		}
		x, w := newValues(kindX%(rawBits+1), seed, raw), newValues(kindW%(rawBits+1), seed+1, raw)
		twinMatMul(t, sets, name, s, x, w, seed%2 == 1)
	})
}

// Functions on rows of any size and any bits are those of the portable set.
func FuzzRows(f *testing.F) {
	sets := fuzzSets(f)
	add := func(which, m uint8, n uint16, gaps, kind uint8, seed uint64, raw []byte) {
		f.Add(which, m, n, gaps, kind, seed, raw)
	}
	infinityToNaN := []byte{0, 0, 0x80, 0x7f, 1, 0, 0, 0x80, 0xff, 0xff, 0x7f, 0x7f, 0, 0, 0xc0, 0x7f}
	add(0, 3, 33, 3, plain, 1, nil)
	add(5, 1, 64, 0, edges, 2, nil)
	add(11, 2, 96, 77, rawBits, 3, infinityToNaN)
	f.Fuzz(func(t *testing.T, which, m uint8, n uint16, gaps, kind uint8, seed uint64, raw []byte) {
		s := shape{
			m: int(m % 5), n: 1 + int(n%400),
			gapX: int(gaps % 8), gapY: int(gaps / 8 % 8), gapS: int(gaps / 64),
		}
		chosen := func(number int) bool { return number%8 == int(which%8) }
		twinRows(t, sets, s, newValues(kind%(rawBits+1), seed, raw), seed%2 == 1, chosen)
	})
}

// Attention of any size and any bits is that of the portable set, with a rest and without, and whatever comes next.
func FuzzAttention(f *testing.F) {
	sets := fuzzSets(f)
	add := func(m, heads uint8, dim, pos, window uint16, limit, gaps, kind uint8, seed uint64, raw []byte,
		rest, next uint16) {
		f.Add(m, heads, dim, pos, window, limit, gaps, kind, seed, raw, rest, next)
	}
	add(1, 3, 64, 130, 0, 0, 3, plain, 1, nil, 0, 0)
	add(9, 1, 80, 0, 7, 30, 0, edges, 2, nil, 0, 0)
	add(5, 8, 5, 300, 200, 0, 9, rawBits, 3, []byte{0, 60, 0, 188, 1}, 0, 0)
	add(1, 7, 63, 600, 0, 0, 0, plain, 4, nil, 700, 9000)     // few lines of whole blocks
	add(12, 0, 127, 500, 130, 0, 1, plain, 5, nil, 1, 60001)  // one group of tiles
	add(19, 9, 47, 150, 0, 0, 16, highest, 6, nil, 1999, 300) // many lines
	add(2, 2, 40, 131, 0, 9, 0, rawBits, 7, []byte{255, 127, 1, 128, 66}, 50, 1)
	f.Fuzz(func(t *testing.T, m, heads uint8, dim, pos, window uint16, limit, gaps, kind uint8, seed uint64,
		raw []byte, rest, next uint16) {
		a := Attention{
			M:      int(m % 20),
			Heads:  1 + int(heads%10),
			Dim:    1 + int(dim%140),
			Pos:    int(pos % 700),
			Window: int(window % 500),
			Cap:    float64(limit) / 4,
		}
		a.Scale = 1 / math.Sqrt(float64(a.Dim))
		x := newValues(kind%(rawBits+1), seed, raw)
		if count := int(rest % 2000); count > 0 {
			key, value := x.bounded(1, a.Dim, a.Dim, 1e3), x.bounded(1, a.Dim, a.Dim, 1e4)
			a.Rest = Rest{Key: key, Value: value, Count: count}
		}
		if next > 0 { // keys and values of one size, or of different ones
			a.NextKeys, a.NextValues = make([]byte, int(next)), make([]byte, int(next)>>(next%3))
			stride := a.Heads*a.Dim + int(gaps%16)
			a.NextQueries = Rows(make([]float32, int(next)%(a.M*stride+1)), stride)
		}
		twinAttention(t, sets, a, int(gaps%16), int(gaps/16), x, seed%2 == 1)
	})
}
