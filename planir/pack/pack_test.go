package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// mustPack packs a weight.
func mustPack(t testing.TB, spec op.WeightSpec, src Source) []byte {
	t.Helper()
	size, err := Bytes(spec)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	for i := range data {
		data[i] = 0x5a // Pack must write every byte
	}
	if err := Pack(data, spec, src); err != nil {
		t.Fatal(err)
	}
	return data
}

// mustUnpack returns the values of a packed weight.
func mustUnpack(t testing.TB, spec op.WeightSpec, data []byte) []float32 {
	t.Helper()
	values := make([]float32, spec.K*spec.N)
	if err := Unpack(values, spec, data); err != nil {
		t.Fatal(err)
	}
	return values
}

// floats makes a source of values [k,n].
func floats(t testing.TB, values []float32, k, n int) Source {
	t.Helper()
	source, err := Floats(values, k, n)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// expect checks that data is fill everywhere but at the offsets that want has.
func expect(t *testing.T, data []byte, fill func(i int) byte, want map[int]byte) {
	t.Helper()
	for i, got := range data {
		expected, ok := want[i]
		if !ok {
			expected = fill(i)
		}
		if got != expected {
			t.Errorf("byte %d: got %#02x, want %#02x", i, got, expected)
		}
	}
}

// put32 expects the four bytes of a value, lowest first.
func put32(want map[int]byte, at int, value uint32) {
	for i := range 4 {
		want[at+i] = byte(value >> (8 * i))
	}
}

// The layouts are read by kernels written from the package comment alone: these bytes are the contract.
func TestLayoutQ8C(t *testing.T) {
	// W [5,2]: column 0 is 127, -63.5, 0.5, 1.5, 2; column 1 is 0,0,0,0,-254.
	values := []float32{127, 0, -63.5, 0, 0.5, 0, 1.5, 0, 2, -254}
	spec := op.WeightSpec{Name: "w", K: 5, N: 2, Scheme: "q8c", Layout: N32}
	data := mustPack(t, spec, floats(t, values, 5, 2))
	if len(data) != 32*8+256 {
		t.Fatalf("got %d bytes", len(data))
	}
	want := map[int]byte{
		0: 127, 1: 0xc0 /* -64: half to even */, 2: 0, 3: 2, // k 0..3 of column 0
		128:     2,    // k 4 of column 0
		128 + 4: 0x81, // k 4 of column 1: -127
	}
	put32(want, 256, math.Float32bits(1))
	put32(want, 260, math.Float32bits(2))
	put32(want, 256+128, uint32(127-64+0+2+2))
	minus := int32(-127)
	put32(want, 256+132, uint32(minus))
	expect(t, data, func(int) byte { return 0 }, want)
}

// q6c has codes of 6 bits: four low bits and, in a plane of its own, two high ones; and a scale per column.
func TestLayoutQ6C(t *testing.T) {
	// W [22,18]: column 0 and column 17 are set, the others zero.
	const k, n = 22, 18
	values := make([]float32, k*n)
	values[0*n+0] = 31     // scale 1, code 63
	values[5*n+0] = -31    // code 1
	values[10*n+0] = 2     // code 34
	values[15*n+0] = -1    // code 31
	values[21*n+0] = 16    // code 48
	values[3*n+17] = -15.5 // scale 0.5, code 1
	data := mustPack(t, op.WeightSpec{Name: "w", K: k, N: n, Scheme: "q6c", Layout: N32}, floats(t, values, k, n))
	if len(data) != 2*384+128 {
		t.Fatalf("got %d bytes", len(data))
	}
	fill := func(i int) byte { // code 32
		if i < 2*384 && i%384 >= 256 {
			return 0xaa
		}
		return 0
	}
	want := map[int]byte{
		0: 0x0f, 256 + 0: 0xab, // k 0: quad 0, byte 0
		1: 0x10, 256 + 1: 0xa2, // k 5: quad 1, byte 1
		128 + 2: 0x02,                // k 10: quad 2, byte 2
		128 + 3: 0xf0, 256 + 3: 0x6a, // k 15: quad 3, byte 3
		384 + 256 + 1: 0xae,                       // k 21: quad 1 of the second group
		4*17 + 3:      0x01, 256 + 4*17 + 3: 0xa8, // k 3 of column 17
	}
	put32(want, 768, math.Float32bits(1))
	put32(want, 768+4*17, math.Float32bits(0.5))
	expect(t, data, fill, want)
}

// q4b32 has codes of 4 bits, two columns in a byte, and a float16 scale per column and block of 32 rows.
func TestLayoutQ4B32(t *testing.T) {
	// W [34,17]: column 0 and column 16 are set, the others zero.
	const k, n = 34, 17
	values := make([]float32, k*n)
	values[0*n+0] = -8   // largest of block 0, column 0: scale 1, nibble 0
	values[5*n+0] = 7    // nibble 15
	values[33*n+0] = 4   // largest of block 1: scale -0.5, nibble 0
	values[32*n+0] = -2  // nibble 8+4
	values[31*n+16] = 16 // scale -2, nibble 0
	spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: "q4b32", Layout: N32}
	data := mustPack(t, spec, floats(t, values, k, n))
	if len(data) != 2*576 {
		t.Fatalf("got %d bytes", len(data))
	}
	fill := func(i int) byte {
		if i%576 < 512 {
			return 0x88
		}
		return 0
	}
	want := map[int]byte{
		0:        0x80,                // k 0: k4 0, byte 0; low nibble is column 0, high column 16
		64*1 + 1: 0x8f,                // k 5: k4 1, byte 1
		64*7 + 3: 0x08,                // k 31 of column 16: k4 7, byte 3, high nibble
		576 + 1:  0x80,                // k 33
		576 + 0:  0x8c,                // k 32
		512 + 0:  0x00, 512 + 1: 0x3c, // 1
		512 + 32: 0x00, 512 + 33: 0xc0, // -2
		1088: 0x00, 1088 + 1: 0xb8, // -0.5
	}
	expect(t, data, fill, want)
}

// q4b128 is q4b32 with longer blocks.
func TestLayoutQ4B128(t *testing.T) {
	const k, n = 130, 17
	values := make([]float32, k*n)
	values[0*n+0] = -8    // largest of block 0, column 0: scale 1, nibble 0
	values[101*n+0] = 7   // nibble 15
	values[129*n+0] = 4   // largest of block 1: scale -0.5, nibble 0
	values[127*n+16] = 16 // scale -2, nibble 0
	data := mustPack(t, op.WeightSpec{Name: "w", K: k, N: n, Scheme: "q4b128", Layout: N32}, floats(t, values, k, n))
	if len(data) != 2*2112 {
		t.Fatalf("got %d bytes", len(data))
	}
	fill := func(i int) byte {
		if i%2112 < 2048 {
			return 0x88
		}
		return 0
	}
	expect(t, data, fill, map[int]byte{
		0:         0x80,                 // k 0
		64*25 + 1: 0x8f,                 // k 101: k4 25, byte 1
		64*31 + 3: 0x08,                 // k 127 of column 16: k4 31, byte 3, high nibble
		2112 + 1:  0x80,                 // k 129
		2048 + 0:  0x00, 2048 + 1: 0x3c, // 1
		2048 + 32: 0x00, 2048 + 33: 0xc0, // -2
		4160: 0x00, 4160 + 1: 0xb8, // -0.5
	})
}

// q4c has the nibbles of q4b32 and a scale per column.
func TestLayoutQ4C(t *testing.T) {
	const k, n = 34, 17
	values := make([]float32, k*n)
	for i := range k { // all codes are +-7 or 0: nothing to search
		values[i*n+0], values[i*n+16] = 3.5, -14
	}
	values[5*n+0] = 0
	data := mustPack(t, op.WeightSpec{Name: "w", K: k, N: n, Scheme: "q4c", Layout: N32}, floats(t, values, k, n))
	if len(data) != 2*512+128 {
		t.Fatalf("got %d bytes", len(data))
	}
	want := map[int]byte{}
	for i := range k {
		want[i/32*512+i%32/4*64+i%4] = 0x1f
	}
	want[64+1] = 0x18
	put32(want, 1024, math.Float32bits(0.5))
	put32(want, 1024+4*16, math.Float32bits(2))
	expect(t, data, func(i int) byte {
		if i < 1024 {
			return 0x88
		}
		return 0
	}, want)
}

// A scale per column is never worse than that of the largest magnitude, and of no other code than 1..15.
func TestColumnSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values, k, n := drawMatrix(t)
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: "q4c", Layout: N32}
		data, got := packAndUnpack(t, spec, values)
		for column := range n {
			searched, plain := columnErrors(values, got, k, n, column)
			if searched > plain*(1+1e-5)+1e-20 {
				t.Fatalf("column %d: squares of errors are %v, those of the largest magnitude %v", column, searched,
					plain)
			}
		}

		tile := int(must(TileBytes("q4c", k)))
		for i, codes := range data {
			isScale := i%tile >= tile-4*TileN
			if !isScale && (codes&15 == 0 || codes>>4 == 0) {
				t.Fatalf("byte %d is %#02x: code -8", i, codes)
			}
		}
	})
}

// columnErrors returns the sum of the squares of a column's errors: of the values got, and of those that a scale by the
// largest magnitude gives.
func columnErrors(values, got []float32, k, n, column int) (searched, plain float64) {
	var top float32
	for row := range k {
		top = max(top, abs(values[row*n+column]))
	}
	scale := top / 7
	for row := range k {
		value := values[row*n+column]
		off := float64(got[row*n+column]) - float64(value)
		searched += off * off
		if scale > 0 {
			off = float64(float32(quant4(value/scale))*scale) - float64(value)
			plain += off * off
		}
	}
	return searched, plain
}

// packAndUnpack returns a packed matrix and the values that it holds.
func packAndUnpack(t *rapid.T, spec op.WeightSpec, values []float32) (data []byte, got []float32) {
	data = make([]byte, must(Bytes(spec)))
	if err := Pack(data, spec, must(Floats(values, spec.K, spec.N))); err != nil {
		t.Fatal(err)
	}
	got = make([]float32, len(values))
	if err := Unpack(got, spec, data); err != nil {
		t.Fatal(err)
	}
	return data, got
}

// w16 has bfloat16 values.
func TestLayoutW16(t *testing.T) {
	const k, n = 2, 18
	values := make([]float32, k*n)
	values[0*n+0], values[0*n+17], values[1*n+1] = 1, -2, 0x1.01002p0 // rounds up
	data := mustPack(t, op.WeightSpec{Name: "w", K: k, N: n, Scheme: "w16", Layout: N32}, floats(t, values, k, n))
	if len(data) != 128 {
		t.Fatalf("got %d bytes", len(data))
	}
	expect(t, data, func(int) byte { return 0 }, map[int]byte{
		0: 0x80, 1: 0x3f, // column 0
		4*1 + 2: 0x00, 4*1 + 3: 0xc0, // column 17
		64 + 4: 0x81, 64 + 5: 0x3f, // column 1 of row 1
	})
}

// w32 has float32 values by tile, and rows have any type as they are.
func TestLayoutW32AndRows(t *testing.T) {
	values := []float32{1, 2, 3, 4, 5, 6}
	data := mustPack(t, op.WeightSpec{Name: "w", K: 2, N: 3, Scheme: "w32", Layout: N32}, floats(t, values, 2, 3))
	want := map[int]byte{}
	for k := range 2 {
		for n := range 3 {
			put32(want, 128*k+4*n, math.Float32bits(values[k*3+n]))
		}
	}
	expect(t, data, func(int) byte { return 0 }, want)

	data = mustPack(t, op.WeightSpec{Name: "w", K: 2, N: 3, Scheme: "bf16", Layout: op.RowsLayout},
		floats(t, values, 2, 3))
	if got := fmt.Sprintf("%x", data); got != "803f004040408040a040c040" {
		t.Errorf("bf16 rows: got %s", got)
	}
	data = mustPack(t, op.WeightSpec{Name: "w", K: 2, N: 3, Scheme: "f16", Layout: op.RowsLayout},
		floats(t, values, 2, 3))
	if got := fmt.Sprintf("%x", data); got != "003c00400042004400450046" {
		t.Errorf("f16 rows: got %s", got)
	}
}

// A tile takes the bytes of its whole blocks; what no weight can be is an error that names it.
func TestSizes(t *testing.T) {
	for _, test := range []struct {
		scheme string
		k      int
		want   int64
	}{{"w32", 3, 384}, {"q8c", 1, 384}, {"q8c", 4, 384}, {"q8c", 5, 512}, {"q6c", 1, 512}, {"q6c", 16, 512},
		{"q6c", 17, 896}, {"q4b32", 1, 576}, {"q4b32", 32, 576}, {"q4b32", 33, 1152}, {"q4b128", 1, 2112},
		{"q4b128", 129, 4224}, {"w16", 3, 192}, {"q4c", 1, 640}, {"q4c", 32, 640}, {"q4c", 33, 1152}} {
		if got, err := TileBytes(test.scheme, test.k); err != nil || got != test.want {
			t.Errorf("TileBytes(%q, %d) = %d, %v, want %d", test.scheme, test.k, got, err, test.want)
		}
	}
	for _, spec := range []op.WeightSpec{
		{Name: "w", K: 0, N: 1, Scheme: "q8c", Layout: N32},
		{Name: "w", K: 1, N: -1, Scheme: "q8c", Layout: N32},
		{Name: "w", K: 1, N: math.MaxInt, Scheme: "q8c", Layout: N32},
		{Name: "w", K: 1, N: 1, Scheme: "q3", Layout: N32},
		{Name: "w", K: 1, N: 1, Scheme: "f32", Layout: N32},
		{Name: "w", K: 1, N: 1, Scheme: "q8c", Layout: op.RowsLayout},
		{Name: "w", K: 1, N: 1, Scheme: "q8c", Layout: "n64"},
	} {
		if size, err := Bytes(spec); err == nil || !strings.Contains(err.Error(), `"w"`) {
			t.Errorf("Bytes(%+v) = %d, %v, want an error that names the weight", spec, size, err)
		}
	}

	// The largest shape does not overflow.
	largest := op.WeightSpec{K: maxDim, N: maxDim, Scheme: "w32", Layout: N32}
	if size, err := Bytes(largest); err != nil || size != 1<<50 {
		t.Errorf("largest: %d, %v", size, err)
	}
}

// schemes are all with layout N32.
var schemes = []string{"w32", "w16", "q8c", "q6c", "q4c", "q4b32", "q4b128"}

// drawMatrix makes a matrix with outliers, zero columns and repeated magnitudes.
func drawMatrix(t *rapid.T) (values []float32, k, n int) {
	k = rapid.IntRange(1, 300).Draw(t, "k")
	n = rapid.IntRange(1, 70).Draw(t, "n")
	seed := rapid.Uint64().Draw(t, "seed")
	zeroColumn := rapid.IntRange(-1, n-1).Draw(t, "zero column")
	scale := float32(math.Ldexp(1, rapid.IntRange(-12, 12).Draw(t, "exponent")))
	values = make([]float32, k*n)
	for i := range values {
		seed = seed*6364136223846793005 + 1442695040888963407
		values[i] = float32(int32(seed>>33)-1<<30) / (1 << 30) * scale
		if seed>>40&63 == 0 {
			values[i] *= 20
		}
		if i%n == zeroColumn {
			values[i] = 0
		}
	}
	return values, k, n
}

// What is unpacked differs from what was packed by no more than the scheme permits, relative to the largest magnitude
// that shares its scale.
func TestQuantisationError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values, k, n := drawMatrix(t)
		for _, scheme := range schemes {
			spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
			data, got := packAndUnpack(t, spec, values)
			for column := range n {
				checkColumnErrors(t, spec, column, values, got)
			}
			// Quantised values are a fixed point: packing what was unpacked changes no value.
			if scheme == "q8c" {
				_, twice := packAndUnpack(t, spec, got)
				for i := range got {
					off := math.Abs(float64(got[i] - twice[i]))
					if off > 2e-7*math.Abs(float64(got[i])) {
						t.Fatalf("value %d: %v, then %v", i, got[i], twice[i])
					}
				}
			}
			checkColumnSums(t, spec, data)
		}
	})
}

// checkColumnErrors checks the values got for a column.
func checkColumnErrors(t *rapid.T, spec op.WeightSpec, column int, values, got []float32) {
	// bound permits rows [from,to) an error of so many times their largest magnitude.
	bound := func(from, to int, part float64) {
		top := 0.0
		for row := from; row < to; row++ {
			top = max(top, math.Abs(float64(values[row*spec.N+column])))
		}
		limit := top * part
		if strings.HasPrefix(spec.Scheme, "q4") {
			limit += 8 * 0x1p-25 // the scale may be the smallest float16, or none
		}
		for row := from; row < to; row++ {
			want, value := values[row*spec.N+column], got[row*spec.N+column]
			if math.Abs(float64(value-want)) > limit {
				t.Fatalf("%s: W[%d,%d] = %v became %v, absmax %v", spec.Scheme, row, column, want, value, top)
			}
		}
	}

	switch spec.Scheme {
	case "w32":
		bound(0, spec.K, 0)
	case "q8c":
		bound(0, spec.K, 0.5/127+1e-6)
	case "w16":
		for row := range spec.K {
			bound(row, row+1, 1.0/256)
		}
	case "q4c", "q6c":
		bound(0, spec.K, 1)
	case "q4b32", "q4b128":
		// A searched scale may clip the largest values; see TestSearchIsNeverWorse.
		block := q4Block(spec.Scheme)
		for from := 0; from < spec.K; from += block {
			bound(from, min(spec.K, from+block), 0.5)
		}
	}
}

// checkColumnSums checks that each column of q8c has the sum of its codes, none of which is -128.
func checkColumnSums(t *rapid.T, spec op.WeightSpec, data []byte) {
	if spec.Scheme != "q8c" {
		return
	}
	tile := int(must(TileBytes(spec.Scheme, spec.K)))
	for ; len(data) > 0; data = data[tile:] {
		for column := range TileN {
			sum := int32(0)
			for row := range spec.K {
				code := int8(data[row/4*128+column*4+row%4])
				if code == -128 {
					t.Fatalf("code -128 in column %d", column)
				}
				sum += int32(code)
			}
			if got := int32(binary.LittleEndian.Uint32(data[tile-128+4*column:])); got != sum {
				t.Fatalf("column sum %d: got %d, want %d", column, got, sum)
			}
		}
	}
}

// must returns the value of a call that cannot fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Packing a column range or a row range gives the same bytes as packing the whole matrix that it describes, however the
// values are stored.
func TestSourcesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values, k, n := drawMatrix(t)
		scheme := rapid.SampledFrom(schemes).Draw(t, "scheme")
		stored := rapid.SampledFrom([]op.Type{op.F32, op.F16, op.BF16}).Draw(t, "type")
		pack := func(spec op.WeightSpec, src Source) []byte {
			data := make([]byte, must(Bytes(spec)))
			if err := Pack(data, spec, src); err != nil {
				t.Fatal(err)
			}
			return data
		}

		plain, transposed := storeBothWays(values, k, n, stored)
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
		whole := pack(spec, must(Floats(values, k, n)))
		if !bytes.Equal(whole, pack(spec, must(Matrix(plain, stored, k, n, false)))) {
			t.Fatal("stored [K,N] differs")
		}
		src := must(Matrix(transposed, stored, k, n, true))
		if !bytes.Equal(whole, pack(spec, src)) {
			t.Fatal("stored [N,K] differs")
		}

		// A column range of tiles.
		firstTile := rapid.IntRange(0, tiles(n)-1).Draw(t, "tile0")
		lastTile := rapid.IntRange(firstTile+1, tiles(n)).Draw(t, "tile1")
		from, to := firstTile*TileN, min(n, lastTile*TileN)
		part, offset, size, err := Columns(spec, from, to)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(whole[offset:offset+size], pack(part, must(Slice(src, 0, k, from, to)))) {
			t.Fatalf("columns [%d,%d) differ from the tile range", from, to)
		}

		// A row range at a block boundary, for schemes whose scales do not span it.
		block := q4Block(scheme)
		isScalePerColumn := slices.Contains([]string{"q8c", "q6c", "q4c"}, scheme)
		if k <= block || isScalePerColumn {
			return
		}
		rows := op.WeightSpec{Name: "w", K: k - block, N: n, Scheme: scheme, Layout: N32}
		data := pack(rows, must(Slice(src, block, k, 0, n)))
		tile, rest := int(must(TileBytes(scheme, k))), int(must(TileBytes(scheme, k-block)))
		for i := range tiles(n) {
			if !bytes.Equal(data[i*rest:(i+1)*rest], whole[(i+1)*tile-rest:(i+1)*tile]) {
				t.Fatalf("rows from %d differ in tile %d", block, i)
			}
		}
	})
}

// storeBothWays returns values [k,n] as a type stores them, by row and by column. The values become those that are
// stored.
func storeBothWays(values []float32, k, n int, stored op.Type) (plain, transposed []byte) {
	size := stored.Bytes()
	plain, transposed = make([]byte, size*k*n), make([]byte, size*k*n)
	for row := range k {
		for column := range n {
			at := row*n + column
			var element [4]byte
			switch stored {
			case op.F32:
				binary.LittleEndian.PutUint32(element[:], math.Float32bits(values[at]))
			case op.F16:
				half := number.FloatToHalf(values[at])
				if isInfinite := half&0x7c00 == 0x7c00; isInfinite {
					half = 0x3c00
				}
				binary.LittleEndian.PutUint16(element[:], half)
			case op.BF16:
				binary.LittleEndian.PutUint16(element[:], number.FloatToBrain(values[at]))
			}
			copy(plain[at*size:], element[:size])
			copy(transposed[(column*k+row)*size:], element[:size])
			number.Decode(values[at:at+1], element[:], stored)
		}
	}
	return plain, transposed
}

func TestInterleave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 20).Draw(t, "k")
		groups := rapid.IntRange(1, 9).Draw(t, "groups")
		columns := rapid.SliceOfN(rapid.IntRange(1, 17), 1, 4).Draw(t, "columns")
		var srcs []Source
		width := 0
		for _, c := range columns {
			width += c
		}
		// Column values say where they belong: source s, column j of it lands at a known place.
		want := make([]float32, k*width*groups)
		at := 0
		for s, c := range columns {
			v := make([]float32, k*c*groups)
			for i := range k {
				for j := range c * groups {
					x := float32(s*1000000 + i*1000 + j)
					v[i*c*groups+j] = x
					want[i*width*groups+j/c*width+at+j%c] = x
				}
			}
			at += c
			srcs = append(srcs, must(Floats(v, k, c*groups)))
		}
		spec := op.WeightSpec{Name: "w", K: k, N: width * groups, Scheme: "f32", Layout: op.RowsLayout}
		data := make([]byte, must(Bytes(spec)))
		if err := Pack(data, spec, must(Interleave(srcs, columns))); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(want))
		number.Decode(got, data, op.F32)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("value %d: got %v, want %v", i, got[i], want[i])
			}
		}
	})
	source := must(Floats(make([]float32, 8), 2, 4))
	other := must(Floats(make([]float32, 12), 3, 4))
	c := must(Floats(make([]float32, 4), 2, 2))
	for _, bad := range []struct {
		srcs    []Source
		columns []int
	}{{nil, nil}, {[]Source{source}, []int{1, 2}}, {[]Source{source}, []int{3}}, {[]Source{source}, []int{0}},
		{[]Source{source, other}, []int{2, 2}}, {[]Source{source, c}, []int{1, 1}}} {
		if _, err := Interleave(bad.srcs, bad.columns); err == nil {
			t.Errorf("interleave %v accepted", bad.columns)
		}
	}
}

// Columns longer than the buffer take the two-pass road; it must not show.
func TestLongColumns(t *testing.T) {
	const k, n = maxRowsK + 37, 3
	values := make([]float32, k*n)
	for i := range values {
		values[i] = float32(i%257) - 128
	}
	values[(k-1)*n+1] = 1000 // the largest of column 1 comes last
	for _, scheme := range schemes {
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
		got := mustUnpack(t, spec, mustPack(t, spec, floats(t, values, k, n)))
		limit := map[string]float64{"w32": 0, "w16": 1000.0 / 256, "q8c": 0.51 * 1000 / 127, "q6c": 1000, "q4c": 1000,
			"q4b32": 1000.0 / 4, "q4b128": 1000.0 / 4}[scheme]
		for i := range values {
			if d := math.Abs(float64(got[i] - values[i])); d > limit {
				t.Fatalf("%s: value %d: got %v, want %v", scheme, i, got[i], values[i])
			}
		}
		if scheme == "q8c" && got[(k-1)*n+1] != float32(float32(1000)/127)*127 {
			t.Errorf("largest value became %v", got[(k-1)*n+1])
		}
	}
	values[(k-1)*n+2] = float32(math.Inf(-1))
	for _, scheme := range schemes {
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
		err := Pack(make([]byte, must(Bytes(spec))), spec, floats(t, values, k, n))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("row %d, column 2", k-1)) {
			t.Errorf("%s: got error %v", scheme, err)
		}
	}
}

func TestRefusesNonFinite(t *testing.T) {
	const k, n = 70, 200
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		for _, spec := range []op.WeightSpec{
			{Name: "layers.0.up", K: k, N: n, Scheme: "w32", Layout: N32},
			{Name: "layers.0.up", K: k, N: n, Scheme: "q8c", Layout: N32},
			{Name: "layers.0.up", K: k, N: n, Scheme: "q6c", Layout: N32},
			{Name: "layers.0.up", K: k, N: n, Scheme: "q4b32", Layout: N32},
			{Name: "layers.0.up", K: k, N: n, Scheme: "q4c", Layout: N32},
			{Name: "layers.0.up", K: k, N: n, Scheme: "q4c", Layout: Onnx},
			{Name: "layers.0.up", K: k, N: n, Scheme: "w16", Layout: Onnx},
			{Name: "layers.0.up", K: k, N: n, Scheme: "q4b128", Layout: N32},
			{Name: "layers.0.up", K: k, N: n, Scheme: "w16", Layout: N32},
			{Name: "layers.0.up", K: k, N: n, Scheme: "bf16", Layout: op.RowsLayout},
		} {
			values := make([]float32, k*n)
			values[41*n+103] = bad
			values[69*n+199] = bad // a later one must not be reported instead
			err := Pack(make([]byte, must(Bytes(spec))), spec, floats(t, values, k, n))
			if err == nil || diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), `"layers.0.up"`) ||
				!strings.Contains(err.Error(), "row 41, column 103") {
				t.Errorf("%s, %v: got error %v", spec.Scheme, bad, err)
			}
		}
	}
	for _, test := range []struct {
		spec op.WeightSpec
		v    float32
	}{
		{op.WeightSpec{Name: "w", K: 1, N: 1, Scheme: "q4b32", Layout: N32}, 8 * 65520},
		{op.WeightSpec{Name: "w", K: 1, N: 1, Scheme: "q4b128", Layout: N32}, 8 * 65520},
		{op.WeightSpec{Name: "w", K: 1, N: 1, Scheme: "w16", Layout: N32}, math.MaxFloat32},
		{op.WeightSpec{Name: "w", K: 1, N: 1, Scheme: "w16", Layout: Onnx}, -65536},
		{op.WeightSpec{Name: "w", K: 1, N: 1, Scheme: "f16", Layout: op.RowsLayout}, -65520},
		{op.WeightSpec{Name: "w", K: 1, N: 1, Scheme: "bf16", Layout: op.RowsLayout}, math.MaxFloat32},
	} {
		err := Pack(make([]byte, must(Bytes(test.spec))), test.spec, floats(t, []float32{test.v}, 1, 1))
		if err == nil || !strings.Contains(err.Error(), "too large") {
			t.Errorf("%s %v: got error %v", test.spec.Scheme, test.v, err)
		}
	}
}

// Tiny values must give zeros or correct values, never NaN or a division by zero.
func TestSubnormals(t *testing.T) {
	for _, v := range []float32{1e-45, -1e-45, 1e-43, 1e-40, 3e-38, -1e-7} {
		for _, scheme := range schemes {
			spec := op.WeightSpec{Name: "w", K: 2, N: 1, Scheme: scheme, Layout: N32}
			got := mustUnpack(t, spec, mustPack(t, spec, floats(t, []float32{v, -v / 3}, 2, 1)))
			for i, g := range got {
				if !finite(g) || abs(g) > 2*abs(v) {
					t.Errorf("%s: %v, value %d became %v", scheme, v, i, g)
				}
			}
		}
	}
}

func TestScaledSources(t *testing.T) {
	src := floats(t, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	read := func(source Source) []float32 {
		out := make([]float32, 4)
		if err := source.Read(out, 0, 2, 1, 3); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := read(must(ScaleRows(src, []float32{2, 0.5}))); !slices.Equal(got, []float32{4, 2.5, 6, 3}) {
		t.Errorf("rows scaled: %v", got)
	}
	if got := read(must(DivideColumns(src, []float32{9, 2, 4}))); !slices.Equal(got, []float32{1, 2.5, 0.75, 1.5}) {
		t.Errorf("columns divided: %v", got)
	}
	for _, f := range [][]float32{nil, {1}, {1, 0}, {1, -2}, {float32(math.NaN()), 1}, {1, float32(math.Inf(1))}} {
		if _, err := ScaleRows(src, f); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("row factors %v: %v", f, err)
		}
		if _, err := DivideColumns(src, append(f, 1)); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("column factors %v: %v", append(f, 1), err)
		}
	}
	// A factor that takes a value out of range is told by the packer.
	huge := must(ScaleRows(must(Floats([]float32{1e38}, 1, 1)), []float32{1000}))
	spec := op.WeightSpec{Name: "w", K: 1, N: 1, Scheme: "w32", Layout: N32}
	if err := Pack(make([]byte, must(Bytes(spec))), spec, huge); err == nil ||
		!strings.Contains(err.Error(), "not finite") {
		t.Errorf("overflow: %v", err)
	}
}

// The number of cores must not show in the bytes, nor in which error is reported.
func TestDeterministicOverCores(t *testing.T) {
	const k, n = 96, 500
	values := make([]float32, k*n)
	for i := range values {
		values[i] = float32(math.Sin(float64(i) * 1.7))
	}
	for _, scheme := range schemes {
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
		var first []byte
		for _, procs := range []int{1, 2, 7} {
			old := runtime.GOMAXPROCS(procs)
			data := mustPack(t, spec, floats(t, values, k, n))
			runtime.GOMAXPROCS(old)
			if first == nil {
				first = data
			}
			if !bytes.Equal(data, first) {
				t.Errorf("%s: bytes differ with %d cores", scheme, procs)
			}
		}
	}
}

type failing struct{ Source }

var errDisk = errors.New("disk on fire")

func (failing) Read([]float32, int, int, int, int) error {
	return diag.New(diag.ClassIO, "read tensor: %w", errDisk)
}

func TestErrors(t *testing.T) {
	src := floats(t, make([]float32, 6), 2, 3)
	spec := op.WeightSpec{Name: "w", K: 2, N: 3, Scheme: "q8c", Layout: N32}
	if err := Pack(make([]byte, 100), spec, src); err == nil {
		t.Error("short destination accepted")
	}
	size := must(Bytes(spec))
	wrong := spec
	wrong.K, wrong.N = 3, 2
	if err := Pack(make([]byte, size), wrong, src); err == nil {
		t.Error("wrong shape accepted")
	}
	for _, layout := range []string{N32, op.RowsLayout} {
		s := spec
		s.Layout = layout
		if layout == op.RowsLayout {
			s.Scheme = "f32"
		}
		err := Pack(make([]byte, must(Bytes(s))), s, failing{src})
		if !errors.Is(err, errDisk) || diag.ClassOf(err) != diag.ClassIO {
			t.Errorf("layout %s: got error %v", layout, err)
		}
	}
	if err := Unpack(make([]float32, 6), spec, make([]byte, size-1)); err == nil {
		t.Error("truncated weight accepted")
	}
	if err := Unpack(make([]float32, 5), spec, make([]byte, size)); err == nil {
		t.Error("short destination of Unpack accepted")
	}
	big := op.WeightSpec{Name: "w", K: 8, N: 100, Scheme: "q8c", Layout: N32}
	for _, c := range [][2]int{{-32, 32}, {0, 0}, {64, 32}, {0, 101}, {16, 64}, {0, 33}, {32, 99}} {
		if _, _, _, err := Columns(big, c[0], c[1]); err == nil {
			t.Errorf("columns [%d,%d) accepted", c[0], c[1])
		}
	}
	if part, off, n, err := Columns(big, 96, 100); err != nil || part.N != 4 || off != 3*n ||
		n != must(TileBytes("q8c", 8)) {
		t.Errorf("last tile: %+v %d %d %v", part, off, n, err)
	}
	rows := op.WeightSpec{Name: "w", K: 8, N: 64, Scheme: "bf16", Layout: op.RowsLayout}
	if _, _, _, err := Columns(rows, 0, 32); err == nil {
		t.Error("column range of plain rows accepted")
	}
	if _, off, n, err := Columns(rows, 0, 64); err != nil || off != 0 || n != 1024 {
		t.Errorf("whole of plain rows: %d %d %v", off, n, err)
	}
	for _, f := range []func() error{
		func() error { _, err := Matrix(make([]byte, 5), op.F16, 1, 3, false); return err },
		func() error { _, err := Matrix(make([]byte, 6), op.U8, 1, 6, false); return err },
		func() error { _, err := Matrix(nil, op.F32, 0, 0, false); return err },
		func() error { _, err := Floats(make([]float32, 5), 2, 3); return err },
		func() error { _, err := Slice(src, 0, 3, 0, 3); return err },
		func() error { _, err := Slice(src, 0, 2, -1, 3); return err },
		func() error { _, err := Slice(src, 1, 1, 0, 3); return err },
	} {
		if f() == nil {
			t.Error("bad source accepted")
		}
	}
}

// Every half goes to float32 and back unchanged; between two halves the nearer one is taken.
func TestHalf(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := number.HalfToFloat(h)
		if h&0x7c00 == 0x7c00 && h&0x3ff != 0 {
			if f == f || number.FloatToHalf(f)&0x7c00 != 0x7c00 {
				t.Fatalf("NaN %#x became %v", h, f)
			}
			continue
		}
		want := math.Ldexp(float64(h&0x3ff), -24)
		if e := h >> 10 & 31; e == 31 {
			want = math.Inf(1)
		} else if e != 0 {
			want = math.Ldexp(float64(h&0x3ff|0x400), int(e)-25)
		}
		if h>>15 == 1 {
			want = -want
		}
		if float64(f) != want || math.Signbit(float64(f)) != (h>>15 == 1) {
			t.Fatalf("half %#x: got %v, want %v", h, f, want)
		}
		if back := number.FloatToHalf(f); back != h {
			t.Fatalf("half %#x became %#x", h, back)
		}
		if h&0x7fff < 0x7c00 { // the next half up in magnitude, or where it would be
			next := 65536.0
			if h&0x7fff < 0x7bff {
				next = math.Abs(float64(number.HalfToFloat(h + 1)))
			}
			mid := (math.Abs(want) + next) / 2
			even := h + h&1
			sign := math.Copysign(1, want)
			below := math.Float32frombits(math.Float32bits(float32(mid)) - 1)
			above := math.Float32frombits(math.Float32bits(float32(mid)) + 1)
			for _, test := range []struct {
				v    float32
				want uint16
			}{{below, h}, {float32(mid), even}, {above, h + 1}} {
				if got := number.FloatToHalf(test.v * float32(sign)); got != test.want {
					t.Fatalf("%v: got half %#x, want %#x", test.v, got, test.want)
				}
			}
		}
	}
	if number.FloatToHalf(math.MaxFloat32) != 0x7c00 || number.FloatToHalf(float32(math.Inf(-1))) != 0xfc00 {
		t.Error("overflow is not infinite")
	}
}

// Unpack is given bytes and shapes from files.
func FuzzUnpack(f *testing.F) {
	f.Add("q8c", N32, 5, 2, 512)
	f.Add("q6c", N32, 17, 2, 896)
	f.Add("q4b32", N32, 34, 17, 1152)
	f.Add("q4b128", N32, 130, 17, 4224)
	f.Add("w16", N32, 3, 33, 384)
	f.Add("q4c", N32, 33, 33, 2304)
	f.Add("q4c", Onnx, 3, 5, 128)
	f.Add("w16", Onnx, 3, 5, 64)
	f.Add("w32", N32, 1, 33, 256)
	f.Add("bf16", op.RowsLayout, 3, 3, 18)
	f.Add("q8c", N32, math.MaxInt64, 2, 512)
	f.Add("f16", "n64", 1, 1, 2)
	f.Add("w32", Onnx, 3, 5, 64)
	f.Add("q8c", Onnx, 3, 5, 128)
	f.Add("q4b32", Onnx, 33, 3, 192)
	f.Add("q4b128", Onnx, 1, 1, 128)
	f.Fuzz(func(t *testing.T, scheme, layout string, k, n, size int) {
		if size < 0 || size > 1<<20 {
			return
		}
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: layout}
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 7)
		}
		want, err := Bytes(spec)
		var dst []float32
		if err == nil && want == int64(size) {
			dst = make([]float32, k*n) // bounded: every element has at least half a byte
		}
		got := Unpack(dst, spec, data)
		if (err == nil && want == int64(size)) != (got == nil) {
			t.Fatalf("%+v with %d bytes: %v", spec, size, got)
		}
	})
}

func BenchmarkPack(b *testing.B) {
	const k, n = 2048, 2048
	raw := make([]byte, 2*k*n)
	for i := range k * n {
		binary.LittleEndian.PutUint16(raw[2*i:], number.FloatToBrain(float32(math.Sin(float64(i)))))
	}
	src := must(Matrix(raw, op.BF16, k, n, true))
	for _, scheme := range schemes {
		b.Run(scheme, func(b *testing.B) {
			spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: N32}
			dst := make([]byte, must(Bytes(spec)))
			for b.Loop() {
				if err := Pack(dst, spec, src); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(k*n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mparam/s")
		})
	}
}
