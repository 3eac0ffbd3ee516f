package pack

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

var onnxSchemes = []string{"w32", "w16", "q8c", "q4c", "q4b32", "q4b128"}

// The layout is what ONNX operators read: these bytes are the contract.
func TestLayoutOnnx(t *testing.T) {
	zero := func(int) byte { return 0 }
	spec := op.WeightSpec{Name: "w", K: 3, N: 2, Scheme: "w32", Layout: Onnx}
	data := mustPack(t, spec, floats(t, []float32{1, 2, 3, 4, 5, 6}, 3, 2))
	want := map[int]byte{}
	for i := range 6 {
		put32(want, 4*i, math.Float32bits(float32(i+1)))
	}
	if len(data) != 64 {
		t.Fatalf("w32: %d bytes", len(data))
	}
	expect(t, data, zero, want)

	spec.Scheme = "q8c"
	data = mustPack(t, spec, floats(t, []float32{127, 0, -63.5, 0, 0.5, -254}, 3, 2))
	want = map[int]byte{0: 127, 2: 0xc0 /* -64: half to even */, 5: 0x81 /* -127 */}
	put32(want, 64, math.Float32bits(1))
	put32(want, 68, math.Float32bits(2))
	if len(data) != 128 {
		t.Fatalf("q8c: %d bytes", len(data))
	}
	expect(t, data, zero, want)

	// Two blocks a column: 33 rows.
	spec.Scheme, spec.K = "q4b32", 33
	weights := make([]float32, 33*2)
	weights[0*2+1] = -8 // largest of block 0 of column 1: scale 1, nibble 0
	weights[5*2+1] = 7  // nibble 15
	weights[32*2+0] = 4 // largest of block 1 of column 0: scale -0.5, nibble 0
	data = mustPack(t, spec, floats(t, weights, 33, 2))
	if len(data) != 128 {
		t.Fatalf("q4b32: %d bytes", len(data))
	}
	want = map[int]byte{
		16:         0x80, // row 32 of column 0, and a row beyond
		2*16 + 0:   0x80, // row 0 of column 1
		2*16 + 2:   0xf8, // row 5
		64 + 4:     0,
		64 + 7:     0xbf, // -0.5, block 1 of column 0
		64 + 8:     0,
		64 + 8 + 2: 0x80, 64 + 8 + 3: 0x3f, // 1, block 0 of column 1
	}
	expect(t, data, func(i int) byte {
		if i < 64 {
			return 0x88
		}
		return 0
	}, want)

	spec.Scheme, spec.K = "w16", 3
	// the third rounds as bf16, the last becomes 0
	data = mustPack(t, spec, floats(t, []float32{1, -2, 0x1.01002p0, 0, 0, 0x1p-30}, 3, 2))
	if len(data) != 64 {
		t.Fatalf("w16: %d bytes", len(data))
	}
	expect(t, data, zero, map[int]byte{1: 0x3c, 3: 0xc0, 4: 0x08, 5: 0x3c})

	spec.Scheme, spec.K, spec.N = "q4c", 3, 3
	data = mustPack(t, spec, floats(t, []float32{7, -7, 0, 7, 7, 0, -7, 7, 0.5}, 3, 3))
	if len(data) != 128 {
		t.Fatalf("q4c: %d bytes", len(data))
	}
	want = map[int]byte{0: 0x97, 1: 0x70, 2: 0x07, 3: 0x79, 4: 0x07}
	put32(want, 64, math.Float32bits(1))
	put32(want, 68, math.Float32bits(1))
	put32(want, 72, math.Float32bits(0.5/7))
	expect(t, data, zero, want)
	spec.N = 2

	spec.Scheme, spec.K = "q4b128", 129
	if n := must(Bytes(spec)); n != 2*2*64+64 {
		t.Errorf("q4b128: %d bytes", n)
	}
	values, at, scales, err := OnnxParts(op.WeightSpec{Name: "w", K: 5, N: 13, Scheme: "q8c", Layout: Onnx})
	if values != 65 || at != 128 || scales != 13 || err != nil {
		t.Errorf("parts: %d values, %d scales at %d (%v)", values, scales, at, err)
	}
}

// The stored values are those of hetc's own tiles, bit for bit, with and without importance, for whole weights and
// for rows that have others in front.
func TestOnnxStoresTheSameValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights, k, n := drawMatrix(t)
		scheme := rapid.SampledFrom(onnxSchemes).Draw(t, "scheme")
		var imp *Importance
		if rapid.Bool().Draw(t, "importance") {
			imp = drawImportance(t, k, rapid.IntRange(0, 3).Draw(t, "rank"))
		}
		front := 0
		if block := q4Block(scheme); imp != nil {
			front = block * rapid.IntRange(0, (k-1)/block).Draw(t, "blocks in front")
		}
		var got [2][]float32
		for i, layout := range []string{N32, Onnx} {
			spec := op.WeightSpec{Name: "w", K: k - front, N: n, Scheme: scheme, Layout: layout}
			data := bytes.Repeat([]byte{0x5a}, int(must(Bytes(spec)))) // every byte is written
			err := PackFor(data, spec, must(Floats(weights, k, n)), imp)
			if scheme == "w16" && layout == Onnx && slices.ContainsFunc(got[0],
				func(v float32) bool { return math.IsInf(float64(number.HalfToFloat(number.FloatToHalf(v))), 0) }) {
				if err == nil {
					t.Fatal("values beyond f16 are packed")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got[i] = make([]float32, spec.K*n)
			if err := Unpack(got[i], spec, data); err != nil {
				t.Fatal(err)
			}
			if layout == Onnx {
				values, at, scales, err := OnnxParts(spec)
				if err != nil || len(data)%64 != 0 || at%64 != 0 {
					t.Fatalf("%d bytes, scales at %d (%v)", len(data), at, err)
				}
				if rest := slices.Concat(data[values:at], data[at+4*scales:]); bytes.Count(rest,
					[]byte{0}) != len(rest) {
					t.Fatal("the padding is not zero")
				}
			}
		}
		if scheme == "w16" {
			for i, v := range got[0] {
				got[0][i] = number.HalfToFloat(number.FloatToHalf(v))
			}
		}
		for i := range got[0] {
			if math.Float32bits(got[0][i]) != math.Float32bits(got[1][i]) {
				t.Fatalf("%s: value %d is %v in %q, %v in %q", scheme, i, got[0][i], N32, got[1][i], Onnx)
			}
		}
	})
}

// Columns longer than the buffer, and any number of cores.
func TestOnnxLongColumns(t *testing.T) {
	const k, n = maxRowsK + 37, 70
	values := make([]float32, k*n)
	for i := range values {
		values[i] = float32(i%257) - 128
	}
	values[(k-1)*n+1] = 1000
	for _, scheme := range onnxSchemes {
		spec := op.WeightSpec{Name: "w", K: k, N: n, Scheme: scheme, Layout: Onnx}
		tiles := spec
		tiles.Layout = N32
		data := mustPack(t, spec, floats(t, values, k, n))
		old := runtime.GOMAXPROCS(5)
		again := mustPack(t, spec, floats(t, values, k, n))
		runtime.GOMAXPROCS(old)
		if !bytes.Equal(data, again) {
			t.Errorf("%s: bytes differ with 5 cores", scheme)
		}
		got, want := mustUnpack(t, spec, data), mustUnpack(t, tiles, mustPack(t, tiles, floats(t, values, k, n)))
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%s: value %d is %v, want %v", scheme, i, got[i], want[i])
			}
		}
	}
}

func TestOnnxRefuses(t *testing.T) {
	good := op.WeightSpec{Name: "w", K: 40, N: 64, Scheme: "q8c", Layout: Onnx}
	for _, test := range []struct {
		change func(*op.WeightSpec)
		want   string
	}{
		{func(s *op.WeightSpec) { s.Scheme = "f32" }, `scheme "f32" has no layout "onnx"`},
		{func(s *op.WeightSpec) { s.K = 0 }, "got shape [0,64]"},
		{func(s *op.WeightSpec) { s.N = math.MaxInt }, "want dimensions"},
	} {
		s := good
		test.change(&s)
		if n, err := Bytes(s); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %d, %v, want %q", s, n, err, test.want)
		}
	}
	if n, err := Bytes(op.WeightSpec{K: maxDim, N: maxDim, Scheme: "q4b32", Layout: Onnx}); err != nil ||
		n != 1<<47+1<<45 {
		t.Errorf("the largest: %d, %v", n, err)
	}
	if _, _, _, err := Columns(good, 0, 32); err == nil || !strings.Contains(err.Error(), "no column ranges") {
		t.Errorf("a range of columns: %v", err)
	}
	if _, off, n, err := Columns(good, 0, 64); err != nil || off != 0 || n != must(Bytes(good)) {
		t.Errorf("all columns: %d %d %v", off, n, err)
	}
	experts := good
	experts.Experts = 3
	if n, err := Bytes(experts); err != nil || n != 3*(40*64+256) {
		t.Errorf("experts: %d, %v", n, err)
	}
	if _, _, _, err := OnnxParts(experts); err == nil {
		t.Error("parts of several experts")
	}
	if _, _, _, err := OnnxParts(op.WeightSpec{K: 1, N: 1, Scheme: "q8c", Layout: N32}); err == nil {
		t.Error("parts of tiles")
	}
	bad := make([]float32, 40*64)
	bad[41] = float32(math.NaN())
	for _, scheme := range onnxSchemes {
		s := good
		s.Scheme = scheme
		err := Pack(make([]byte, must(Bytes(s))), s, floats(t, bad, 40, 64))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("row %d, column %d", 0, 41)) {
			t.Errorf("%s: NaN: %v", scheme, err)
		}
	}
}
