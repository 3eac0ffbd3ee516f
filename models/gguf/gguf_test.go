package gguf

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
)

func open(t testing.TB, path string) *File {
	t.Helper()
	file, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// written opens a file with what write writes.
func written(t testing.TB, write func(io.Writer) error) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.gguf")
	if err := wholefile.Stream(path, write); err != nil {
		t.Fatal(err)
	}
	return open(t, path)
}

// all reads a whole matrix.
func all(t testing.TB, matrix Matrix) []float32 {
	t.Helper()
	rows, cols := 1, 1
	for i, d := range matrix.Shape() {
		if i < len(matrix.Shape())-1 {
			rows *= d
		} else {
			cols = d
		}
	}
	out := make([]float32, rows*cols)
	if err := matrix.Read(out, 0, rows, 0, cols); err != nil {
		t.Fatal(err)
	}
	return out
}

// sameBits compares values; all NaNs are alike.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

// Every type, read whole, gives the values of the reference implementation, bit by bit.
func TestBlocksAreTheReference(t *testing.T) {
	file := open(t, "testdata/quants.gguf")
	ref, err := safetensors.Open("testdata/quants.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	seen := map[op.Type]bool{}
	for _, name := range ref.Names() {
		tensor, ok := file.Tensor(name)
		r, _ := ref.Tensor(name)
		if !ok || fmt.Sprint(tensor.Shape) != fmt.Sprint(r.Shape) {
			t.Errorf("%s: got shape %v, want %v", name, tensor.Shape, r.Shape)
			continue
		}
		seen[tensor.Type] = true
		want := make([]float32, tensor.Rows()*tensor.Cols())
		if err := r.Floats(want, 0); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(want))
		if err := tensor.Read(got, 0, tensor.Rows(), 0, tensor.Cols()); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if !sameBits(got[i:i+1], want[i:i+1]) {
				t.Errorf("%s: value %d is %v, want %v", name, i, got[i], want[i])
				break
			}
		}
	}
	if len(seen) != len(layouts) {
		t.Errorf("%d types have a reference, want all %d", len(seen), len(layouts))
	}
}

// Parts of a matrix are parts of the whole one; ranges outside are refused.
func TestReadRanges(t *testing.T) {
	file := open(t, "testdata/quants.gguf")
	whole := map[string][]float32{}
	for _, name := range file.Names() {
		tensor, _ := file.Tensor(name)
		whole[name] = make([]float32, tensor.Rows()*tensor.Cols())
		if err := tensor.Read(whole[name], 0, tensor.Rows(), 0, tensor.Cols()); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(file.Names()).Draw(t, "tensor")
		tensor, _ := file.Tensor(name)
		rows, cols := tensor.Rows(), tensor.Cols()
		r0 := rapid.IntRange(0, rows).Draw(t, "row0")
		r1 := rapid.IntRange(r0, rows).Draw(t, "row1")
		c0 := rapid.IntRange(0, cols).Draw(t, "col0")
		c1 := rapid.IntRange(c0, cols).Draw(t, "col1")
		var want []float32
		for r := r0; r < r1; r++ {
			want = append(want, whole[name][r*cols+c0:r*cols+c1]...)
		}
		got := make([]float32, len(want))
		if err := tensor.Read(got, r0, r1, c0, c1); err != nil || !sameBits(got, want) {
			t.Fatalf("%s rows %d:%d columns %d:%d: %v", name, r0, r1, c0, c1, err)
		}
	})
	x, _ := file.Tensor("q4_k")
	for _, r := range [][5]int{
		{1, 0, 3, 0, 1}, {3, 0, 3, 0, 1}, {1, -1, 0, 0, 1}, {0, 1, 0, 0, 1}, {513, 0, 1, 0, 513}, {1, 0, 1, -1, 0},
		{0, 0, 1, 2, 1}, {2, 0, 1, 0, 1}, {0, math.MinInt, math.MaxInt, 0, 0},
	} {
		if err := x.Read(make([]float32, r[0]), r[1], r[2], r[3], r[4]); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%v: got %v", r, err)
		}
	}
	stack, _ := file.Tensor("stack")
	one, err := stack.slice(2)
	if err != nil || fmt.Sprint(one.Shape) != "[2 256]" {
		t.Fatal(one.Shape, err)
	}
	got := make([]float32, 512)
	if err := one.Read(got, 0, 2, 0, 256); err != nil || !sameBits(got, whole["stack"][1024:]) {
		t.Errorf("slice 2: %v", err)
	}
	for _, i := range []int{-1, 3} {
		if _, err := stack.slice(i); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("slice %d: got %v", i, err)
		}
	}
}

// What the writer encodes is what the reference implementation encodes.
func TestEncodesAsTheReference(t *testing.T) {
	file := open(t, "testdata/quants.gguf")
	source, _ := file.Tensor("source")
	values := make([]float32, source.Rows()*source.Cols())
	if err := source.Read(values, 0, source.Rows(), 0, source.Cols()); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []op.Type{op.F16, op.BF16, q8_0, q4_0} {
		want, ok := file.Tensor("source." + string(typ))
		if !ok {
			t.Fatalf("no reference for %s", typ)
		}
		got, err := encode(nil, values, typ)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want.Data) {
			t.Fatalf("%s: %d bytes, want %d", typ, len(got), len(want.Data))
		}
		for i := range got {
			if got[i] != want.Data[i] {
				t.Errorf("%s: byte %d of block %d is %d, want %d", typ, i%layouts[typ].bytes, i/layouts[typ].bytes,
					got[i], want.Data[i])
				break
			}
		}
	}
	row := make([]float32, 32)
	for _, test := range []struct {
		value float32
		typ   op.Type
		ok    bool
	}{
		{float32(math.NaN()), op.F32, false}, {float32(math.Inf(1)), op.BF16, false},
		{float32(math.NaN()), q8_0, false},
		{65519, op.F16, true}, {65520, op.F16, false}, {-70000, op.F16, false}, {70000, op.BF16, true},
		{3.4e38, op.BF16, false},
		{8e6, q8_0, true}, {8.4e6, q8_0, false}, {5e5, q4_0, true}, {-5.3e5, q4_0, false},
	} {
		row[7] = test.value
		if _, err := encode(nil, row, test.typ); (err == nil) != test.ok {
			t.Errorf("%v as %s: got %v", test.value, test.typ, err)
		}
	}
}

// Every half is decoded to the value that encodes to it.
func TestHalvesRoundTrip(t *testing.T) {
	var b [2]byte
	for h := range 1 << 16 {
		binary.LittleEndian.PutUint16(b[:], uint16(h))
		v := half(b[:])
		if h>>10&31 == 31 {
			continue
		}
		if got, ok := toHalf(v); !ok || got != uint16(h) {
			t.Fatalf("half %#x is %v, which encodes to %#x", h, v, got)
		}
	}
}

// image builds a file by hand.
type image struct{ b []byte }

func start(version uint32, tensors, keys uint64) *image {
	i := &image{[]byte(magic)}
	return i.u32(version).u64(tensors).u64(keys)
}
func (i *image) u32(v uint32) *image  { i.b = binary.LittleEndian.AppendUint32(i.b, v); return i }
func (i *image) u64(v uint64) *image  { i.b = binary.LittleEndian.AppendUint64(i.b, v); return i }
func (i *image) raw(b ...byte) *image { i.b = append(i.b, b...); return i }
func (i *image) str(s string) *image  { i.b = appendText(i.b, s); return i }
func (i *image) kv(key string, value any) *image {
	var ok bool
	if i.b, ok = appendValue(appendText(i.b, key), value); !ok {
		panic(fmt.Sprintf("no form for %T", value))
	}
	return i
}
func (i *image) tensor(name string, typ uint32, offset uint64, ne ...uint64) *image {
	i.str(name).u32(uint32(len(ne)))
	for _, n := range ne {
		i.u64(n)
	}
	return i.u32(typ).u64(offset)
}
func (i *image) data(n int) []byte { return append(pad(i.b), make([]byte, n)...) }

func TestReadsWhatTheFormatAllows(t *testing.T) {
	i := start(2, 2, 12).kv("general.alignment", uint32(64)).kv("list", []string{"a", "", "bc"}).kv("f",
		[]float32{1, -2}).
		kv("bools", []bool{true, false}).kv("text", "\xff").kv("empty", []int32{})
	i.str("u8").u32(0).raw(200).str("i8").u32(1).raw(200).str("u16").u32(2).raw(1, 2).str("i16").u32(3).raw(0xff, 0xff).
		str("i64").u32(11).u64(1 << 63).str("f64").u32(12).u64(math.Float64bits(0.5))
	i.tensor("b", 1, 64, 3, 2).tensor("a", 0, 0, 5)
	for len(i.b)%64 != 0 {
		i.raw(0)
	}
	file, err := parse(append(i.b, make([]byte, 64+12+9)...)) // with something behind the last tensor
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(file.Names(), file.Keys()[:3]); got != "[a b] [general.alignment list f]" {
		t.Error(got)
	}
	for key, want := range map[string]any{
		"general.alignment": uint32(64), "list": []string{"a", "", "bc"}, "f": []float32{1, -2},
		"bools": []bool{true, false}, "text": "\xff", "empty": []int32{},
		"u8": uint8(200), "i8": int8(-56), "u16": uint16(513), "i16": int16(-1), "i64": int64(math.MinInt64),
		"f64": 0.5,
	} {
		if got, ok := file.Value(key); !ok || fmt.Sprintf("%T %v", got, got) != fmt.Sprintf("%T %v", want, want) {
			t.Errorf("%s: got %T %v, want %T %v", key, got, got, want, want)
		}
	}
	if _, ok := file.Value("none"); ok {
		t.Error("found a key that is not there")
	}
	tensor, _ := file.Tensor("b")
	if tensor.Type != op.F16 || fmt.Sprint(tensor.Shape) != "[2 3]" || len(tensor.Data) != 12 ||
		cap(tensor.Data) != 12 {
		t.Errorf("got %v %v, %d bytes", tensor.Type, tensor.Shape, len(tensor.Data))
	}
}

func TestBrokenFilesAreRefused(t *testing.T) {
	one := func(typ uint32, offset uint64, ne ...uint64) []byte {
		return start(3, 1, 0).tensor("a", typ, offset, ne...).data(64)
	}
	head := func() *image { return start(3, 0, 1).str("k") }
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"empty":        {nil, `does not begin with "GGUF"`},
		"three bytes":  {[]byte("GGU"), `does not begin with "GGUF"`},
		"other magic":  {[]byte("GGML\x03\x00\x00\x00"), `does not begin with "GGUF"`},
		"only magic":   {[]byte("GGUF"), "truncated: 0 bytes left, want 4 for the version"},
		"version 1":    {start(1, 0, 0).b, "version 1 is not supported; supported: 2, 3"},
		"version 4":    {start(4, 0, 0).b, "version 4 is not supported"},
		"big endian":   {start(3<<24, 0, 0).b, "big endian"},
		"no counts":    {start(3, 0, 0).b[:12], "want 8 for number of tensors"},
		"many tensors": {start(3, 1<<40, 0).b, "number of tensors is 1099511627776, want at most 65536"},
		"many keys": {start(3, 0, math.MaxUint64).b,
			"number of metadata keys is 18446744073709551615, want at most 16384"},
		"missing key": {start(3, 0, 1).b, "want 8 for length of a metadata key"},
		"key of 1 EB": {start(3, 0, 1).u64(1 << 60).b,
			"length of a metadata key is 1152921504606846976, want at most 1024"},
		"key cut":       {start(3, 0, 1).u64(5).raw('a').b, "truncated: 1 bytes left, want 5 for a metadata key"},
		"empty key":     {start(3, 0, 1).str("").b, "no text"},
		"key not UTF-8": {start(3, 0, 1).str("\xff").b, "no text"},
		"key twice":     {start(3, 0, 2).kv("a", true).kv("a", true).b, `key "a" twice`},
		"no value type": {head().b, `key "k": at byte 33: truncated`},
		"unknown value": {head().u32(13).b, "unknown value type 13"},
		"value cut":     {head().u32(4).raw(1, 2).b, "want 4 for the value"},
		"bool of 2":     {head().u32(7).raw(2).b, "a bool is 2"},
		"string of 2 EB": {head().u32(8).u64(1 << 61).b,
			"length of a string is 2305843009213693952, want at most 33554432"},
		"string cut":       {head().u32(8).u64(100).raw('a').b, "want 100 for a string"},
		"array of arrays":  {head().u32(9).u32(9).u64(1).u32(4).u64(0).b, "an array of arrays is not supported"},
		"array of nothing": {head().u32(9).u32(99).u64(1).b, "unknown value type 99"},
		"array too long": {head().u32(9).u32(0).u64(1 << 50).b,
			"number of elements is 1125899906842624, want at most 2097152"},
		"array cut": {head().u32(9).u32(12).u64(1 << 20).u64(0).b, "want 8388608 for the value"},
		"many strings": {head().u32(9).u32(8).u64(2).u64(20 << 20).raw(make([]byte, 20<<20)...).u64(20 << 20).raw(
			make([]byte, 20<<20)...).b, "strings of more than 33554432 bytes"},
		"strings cut":        {head().u32(9).u32(8).u64(1 << 21).u64(0).b, "truncated"},
		"string in an array": {head().u32(9).u32(8).u64(1).u64(math.MaxUint64).b, "length of a string"},
		"alignment 0":        {start(3, 0, 1).kv("general.alignment", uint32(0)).b, "want a power of two"},
		"alignment 48":       {start(3, 0, 1).kv("general.alignment", uint32(48)).b, "want a power of two"},
		"alignment huge":     {start(3, 0, 1).kv("general.alignment", uint32(1<<31)).b, "want a power of two"},
		"alignment text":     {start(3, 0, 1).kv("general.alignment", "32").b, "want a power of two"},
		"split":              {start(3, 0, 1).kv("split.count", int32(3)).b, `"split.count": one of 3 files`},
		"adapter": {start(3, 0, 1).kv("general.type", "adapter").b,
			`"general.type": got "adapter", want "model"`},
		"missing tensor":     {start(3, 1, 0).b, "want 8 for length of a tensor's name"},
		"no dimensions":      {one(0, 0), "0 dimensions, want 1 to 4"},
		"five dimensions":    {one(0, 0, 1, 1, 1, 1, 1), "5 dimensions, want 1 to 4"},
		"many dimensions":    {start(3, 1, 0).str("a").u32(math.MaxUint32).b, "4294967295 dimensions"},
		"dimension of 0":     {one(0, 0, 4, 0), "shape [0 4] is impossible"},
		"dimension negative": {one(0, 0, 1<<63), "a dimension is 9223372036854775808"},
		"overflow":           {one(0, 0, 1<<40, 1<<40), "shape [1099511627776 1099511627776] is impossible"},
		"overflow to zero":   {one(0, 0, 1<<32, 1<<32, 1<<32, 1<<32), "is impossible"},
		"part of a block":    {one(2, 0, 33), "33 columns of type q4_0, want a multiple of 32"},
		"part of a k block":  {one(12, 0, 128), "128 columns of type q4_k, want a multiple of 256"},
		"unknown type":       {one(77, 0, 32), "unknown type 77"},
		"removed type":       {one(4, 0, 32), "unknown type 4"},
		"unsupported type": {one(22, 0, 256),
			"type IQ2_S is not supported; supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16"},
		"integers":       {one(26, 0, 32), "type I32 is not supported"},
		"crooked offset": {one(0, 4, 1), "offset 4, want a multiple of the alignment 32"},
		"offset outside": {one(0, 1<<40, 1),
			"truncated: its data ends at byte 1099511627780 of the data, which has 64"},
		"offset negative":  {one(0, 1<<63, 1), "offset 9223372036854775808"},
		"offset overflows": {one(0, math.MaxInt64-31, 1), "truncated"},
		"data outside":     {one(0, 32, 9), "truncated: its data ends at byte 68 of the data, which has 64"},
		"no data":          {start(3, 1, 0).tensor("a", 0, 0, 1).b, "truncated"},
		"tensor twice":     {start(3, 2, 0).tensor("a", 0, 0, 1).tensor("a", 0, 32, 1).data(64), `tensor "a" twice`},
		"same bytes": {start(3, 2, 0).tensor("a", 0, 0, 1).tensor("b", 0, 0, 1).data(64),
			`tensor "b": begins at byte 0 of the data, inside "a" that ends at 4`},
		"overlap": {start(3, 2, 0).tensor("a", 0, 0, 9).tensor("b", 0, 32, 1).data(64),
			`begins at byte 32 of the data, inside "a" that ends at 36`},
		"nameless tensor": {start(3, 1, 0).tensor("", 0, 0, 1).data(64), "no text"},
	} {
		path := filepath.Join(t.TempDir(), "x.gguf")
		if err := os.WriteFile(path, test.file, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, test.want)
		}
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		if _, err := Open(path); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	whole := start(3, 2, 3).kv("a", "text").kv("b", []string{"x", "y"}).kv("c", []int32{1, 2}).tensor("t", 0, 0, 2,
		2).tensor("u", 8, 32, 32).data(32 + 34)
	for n := range whole {
		if _, err := parse(whole[:n]); err == nil {
			t.Errorf("first %d of %d bytes are accepted", n, len(whole))
		}
	}
	if _, err := parse(whole); err != nil {
		t.Fatal(err)
	}
}

// A vocabulary is one copy and one slice, however many tokens it has, and a file full of the smallest
// possible things stays far below what a machine has.
func TestMemoryIsBounded(t *testing.T) {
	tokens := make([]string, 260_000)
	for i := range tokens {
		tokens[i] = fmt.Sprint("token", i)
	}
	f, err := parse(start(3, 0, 1).kv("k", tokens).b)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1, func() { f.Value("k") }); n > 8 {
		t.Errorf("%v allocations for %d strings", n, len(tokens))
	}
	if v, _ := f.Value("k"); !slices.Equal(v.([]string), tokens) {
		t.Error("other tokens")
	}
	i := start(3, maxTensors, maxKeys)
	for n := range maxKeys {
		i.str(fmt.Sprint(n)).u32(9).u32(8).u64(0)
	}
	for n := range maxTensors {
		i.tensor(fmt.Sprint(n), 0, uint64(n)*32, 1, 1, 1, 1)
	}
	file := i.data(maxTensors * 32)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	g, err := parse(file)
	runtime.ReadMemStats(&after)
	if err != nil || len(g.Names()) != maxTensors {
		t.Fatal(err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 128<<20 {
		t.Errorf("%d bytes were allocated", used)
	}
}

// rows is a matrix in memory.
type rows struct {
	shape []int
	data  []float32
}

func (m rows) Shape() []int { return m.shape }
func (m rows) Read(dst []float32, r0, r1, c0, c1 int) error {
	cols := m.shape[len(m.shape)-1]
	for r := r0; r < r1; r++ {
		dst = dst[copy(dst, m.data[r*cols+c0:r*cols+c1]):]
	}
	return nil
}

func TestWriteThenOpen(t *testing.T) {
	dir := t.TempDir()
	types := []op.Type{op.F32, op.F16, op.BF16, q8_0, q4_0}
	rapid.Check(t, func(t *rapid.T) {
		var in []tensorSource
		values := map[string][]float32{}
		for n := range rapid.IntRange(0, 5).Draw(t, "tensors") {
			source := tensorSource{Name: fmt.Sprint("t", n), Type: rapid.SampledFrom(types).Draw(t, "type"),
				Shape: rapid.SliceOfN(rapid.IntRange(1, 5), 0, 3).Draw(t, "shape")}
			source.Shape = append(source.Shape, 32*rapid.IntRange(1, 3).Draw(t, "columns"))
			cols, count := source.Shape[len(source.Shape)-1], 1
			for _, d := range source.Shape {
				count *= d
			}
			x := rapid.SliceOfN(rapid.Float32Range(-1000, 1000), count, count).Draw(t, "values")
			source.Row = func(dst []float32, r int) error { copy(dst, x[r*cols:]); return nil }
			values[source.Name] = x
			in = append(in, source)
		}
		meta := []keyValue{{"general.architecture", "x"}}
		for i, v := range rapid.SliceOf(rapid.String()).Draw(t, "metadata") {
			meta = append(meta, keyValue{fmt.Sprint("k", i), v})
		}
		var images [2][]byte
		for i := range images {
			var b bytes.Buffer
			if err := writeFile(context.Background(), &b, meta, in); err != nil {
				t.Fatal(err)
			}
			images[i] = b.Bytes()
		}
		if !bytes.Equal(images[0], images[1]) {
			t.Fatal("two runs write different bytes")
		}
		path := filepath.Join(dir, "x")
		if err := os.WriteFile(path, images[0], 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if len(file.Names()) != len(in) || len(file.Keys()) != len(meta) {
			t.Fatalf("got %q and %q", file.Names(), file.Keys())
		}
		for _, kv := range meta {
			if got, _ := file.Value(kv.Key); got != kv.Value {
				t.Fatalf("%s: got %v, want %v", kv.Key, got, kv.Value)
			}
		}
		for _, want := range in {
			got, ok := file.Tensor(want.Name)
			if !ok || got.Type != want.Type || !slices.Equal(got.Shape, want.Shape) {
				t.Fatalf("%s: got %v %v", want.Name, got.Type, got.Shape)
			}
			blocks, err := encode(nil, values[want.Name], want.Type)
			if err != nil || !bytes.Equal(got.Data, blocks) {
				t.Fatalf("%s: other bytes (%v)", want.Name, err)
			}
		}
	})
}

func TestWriteRefusesNonsense(t *testing.T) {
	zero := func(dst []float32, _ int) error { clear(dst); return nil }
	ok := tensorSource{Name: "a", Type: op.F32, Shape: []int{32}, Row: zero}
	with := func(change func(*tensorSource)) []tensorSource {
		source := ok
		change(&source)
		return []tensorSource{source}
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, test := range map[string]struct {
		ctx     context.Context
		meta    []keyValue
		tensors []tensorSource
		class   diag.Class
	}{
		"tensor twice":  {tensors: []tensorSource{ok, ok}},
		"no name":       {tensors: with(func(s *tensorSource) { s.Name = "" })},
		"type":          {tensors: with(func(s *tensorSource) { s.Type = q4K })},
		"no type":       {tensors: with(func(s *tensorSource) { s.Type = "" })},
		"no shape":      {tensors: with(func(s *tensorSource) { s.Shape = nil })},
		"part block":    {tensors: with(func(s *tensorSource) { s.Shape, s.Type = []int{33}, q8_0 })},
		"empty":         {tensors: with(func(s *tensorSource) { s.Shape = []int{0, 4} })},
		"huge":          {tensors: with(func(s *tensorSource) { s.Shape = []int{math.MaxInt / 2, 1 << 30} })},
		"five":          {tensors: with(func(s *tensorSource) { s.Shape = []int{1, 1, 1, 1, 32} })},
		"key twice":     {meta: []keyValue{{"a", true}, {"a", true}}},
		"alignment":     {meta: []keyValue{{"general.alignment", uint32(64)}}},
		"value":         {meta: []keyValue{{"a", struct{}{}}}},
		"plain integer": {meta: []keyValue{{"a", 1}}},
		"NaN": {tensors: with(func(s *tensorSource) {
			s.Row = func(dst []float32, _ int) error { dst[3] = float32(math.NaN()); return nil }
		})},
		"a row fails": {tensors: with(
			func(s *tensorSource) { s.Row = func([]float32, int) error { return diag.New(diag.ClassInput, "no") } })},
		"interrupted": {ctx: canceled, tensors: []tensorSource{ok}, class: diag.ClassInterrupted},
	} {
		if test.ctx == nil {
			test.ctx = context.Background()
		}
		if test.class == 0 {
			test.class = diag.ClassInput
		}
		if err := writeFile(test.ctx, io.Discard, test.meta, test.tensors); diag.ClassOf(err) != test.class {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Whatever a file holds, reading it ends in values or in an error.
func FuzzOpen(f *testing.F) {
	names, err := filepath.Glob("testdata/*.gguf")
	if err != nil || len(names) < 5 {
		f.Fatalf("seeds: %q, %v", names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, a := range architectures {
		if a.name != "internlm2" {
			f.Add(exported(f, &a, q4_0))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parse(b)
		if err != nil {
			return
		}
		for _, k := range file.Keys() {
			if _, ok := file.Value(k); !ok {
				t.Errorf("key %q has no value", k)
			}
		}
		buf := make([]float32, 4096)
		for _, name := range file.Names() {
			tensor, _ := file.Tensor(name)
			n := min(tensor.Cols(), len(buf))
			if err := tensor.Read(buf[:n], tensor.Rows()-1, tensor.Rows(), tensor.Cols()-n, tensor.Cols()); err != nil {
				t.Errorf("tensor %q: %v", name, err)
			}
		}
		if m, err := file.Model(); err == nil {
			for name, view := range m.Tensors {
				n := min(view.cols(), len(buf))
				if err := view.Read(buf[:n], view.rows()-1, view.rows(), view.cols()-n, view.cols()); err != nil {
					t.Errorf("view %q: %v", name, err)
				}
				view.Data()
				view.Plain()
			}
		}
		if tokenizer, config, err := file.Tokenizer(); err == nil && tokenizer != nil {
			tokens, _ := file.Value("tokenizer.ggml.tokens")
			if _, err := exportVocab(tokenizer, config, len(tokens.([]string))); err != nil &&
				len(diag.HintsOf(err)) == 0 {
				t.Errorf("the tokenizer it gives is not one: %v", err)
			}
		}
	})
}

// Any range of any type is refused or equals that part of the whole.
func FuzzRead(f *testing.F) {
	file, err := Open("testdata/quants.gguf")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { file.Close() })
	for i := range file.Names() {
		f.Add(uint8(i), 0, 1, 0, 32)
		f.Add(uint8(i), 1, 2, 5, 300)
	}
	f.Fuzz(func(t *testing.T, which uint8, r0, r1, c0, c1 int) {
		tensor, _ := file.Tensor(file.Names()[int(which)%len(file.Names())])
		n := 0
		if r1 >= r0 && c1 >= c0 && r1-r0 <= 100 && c1-c0 <= 1000 {
			n = (r1 - r0) * (c1 - c0)
		}
		got := make([]float32, max(n, 0))
		if err := tensor.Read(got, r0, r1, c0, c1); err != nil {
			return
		}
		whole := make([]float32, tensor.Rows()*tensor.Cols())
		if err := tensor.Read(whole, 0, tensor.Rows(), 0, tensor.Cols()); err != nil {
			t.Fatal(err)
		}
		for r := r0; r < r1; r++ {
			if !sameBits(got[(r-r0)*(c1-c0):(r-r0+1)*(c1-c0)], whole[r*tensor.Cols()+c0:r*tensor.Cols()+c1]) {
				t.Errorf("row %d differs", r)
			}
		}
	})
}
