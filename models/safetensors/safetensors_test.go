package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// image builds a file by hand: length, header as given, data bytes.
func image(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, data)...)
}

func open(t testing.TB, data []byte) (*File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := Open(path)
	if err == nil {
		t.Cleanup(func() { file.Close() })
	}
	return file, err
}

func TestReadsWhatTheFormatAllows(t *testing.T) {
	file, err := open(t,
		image(`{"__metadata__":{"format":"pt"},"b":{"shape":[2,3],"dtype":"BF16","data_offsets":[4,16]},`+
			`"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"I64","shape":[0,5],"data_offsets":[4,4]}}   `, 16))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(file.Names()); got != "[a none b]" {
		t.Errorf("got %s", got)
	}
	tensor, ok := file.Tensor("b")
	if !ok || tensor.Type != op.BF16 || fmt.Sprint(tensor.Shape) != "[2 3]" || len(tensor.Data) != 12 ||
		cap(tensor.Data) != 12 {
		t.Errorf("got %v %v %d bytes", tensor.Type, tensor.Shape, len(tensor.Data))
	}
	if _, ok := file.Tensor("c"); ok {
		t.Error("found a tensor that is not there")
	}
	for dtype, size := range map[string]int{
		"F64": 8, "C64": 8, "U16": 2, "BOOL": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E5M2FNUZ": 1,
	} {
		if _, err := open(t, image(fmt.Sprintf(`{"a":{"dtype":%q,"shape":[3],"data_offsets":[0,%d]}}`, dtype, 3*size),
			3*size)); err != nil {
			t.Errorf("%s: %v", dtype, err)
		}
	}
	if _, err := open(t, image(`{}`, 0)); err != nil {
		t.Errorf("no tensors: %v", err)
	}
}

func TestBrokenFilesAreRefused(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	two := func(a, b string) string {
		return fmt.Sprintf(`{"a":{"dtype":"U8","shape":[4],"data_offsets":%s},"b":{"dtype":"U8","shape":[4],"data_offsets":%s}}`, a, b)
	}
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"empty":             {nil, "got 0 bytes, want at least the 8"},
		"seven bytes":       {make([]byte, 7), "got 7 bytes"},
		"zero header":       {make([]byte, 8), "does not begin with {"},
		"huge header":       {append(huge, '{'), "header length 9223372036854775808 bytes, want at most 100000000"},
		"header cut":        {image(`{"a":`, 0)[:10], "truncated: got 10 bytes, want 13"},
		"not an object":     {image(`[]`, 0), "does not begin with {"},
		"leading space":     {image(` {}`, 0), "does not begin with {"},
		"broken JSON":       {image(`{"a":`, 0), "ends in the middle"},
		"two objects":       {image(`{}{}`, 0), "data after the object"},
		"not UTF-8":         {image("{\"\xff\":{}}", 0), "not valid UTF-8"},
		"deep":              {image(`{"a":`+strings.Repeat("[", 100000), 0), "max depth"},
		"entry is a number": {image(`{"a":1}`, 0), `tensor "a": got 1, want a JSON object`},
		"missing key":       {image(`{"a":{"dtype":"U8","shape":[1]}}`, 1), "want the keys"},
		"unknown key": {image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}`, 1),
			`unknown key "x"`},
		"other case": {image(`{"a":{"DType":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
			`unknown key "DType"`},
		"key twice": {image(`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
			`key "dtype" twice`},
		"tensor twice": {
			image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), `key "a" twice`},
		"metadata twice":     {image(`{"__metadata__":{},"__metadata__":{}}`, 0), "twice"},
		"metadata number":    {image(`{"__metadata__":{"a":1}}`, 0), "want an object of strings"},
		"unknown dtype":      {image(one(`"F12"`, `[1]`, `[0,1]`), 1), `unknown dtype "F12"`},
		"dtype case":         {image(one(`"u8"`, `[1]`, `[0,1]`), 1), `unknown dtype "u8"`},
		"negative dimension": {image(one(`"U8"`, `[-1]`, `[0,1]`), 1), "impossible"},
		"fraction":           {image(one(`"U8"`, `[1.5]`, `[0,1]`), 1), `key "shape": got [1.5]`},
		"null dimension":     {image(one(`"U8"`, `[null]`, `[0,0]`), 0), `key "shape"`},
		"overflow":           {image(one(`"F32"`, `[4294967296,4294967296,4294967296]`, `[0,0]`), 0), "impossible"},
		"overflow to zero":   {image(one(`"F32"`, `[4611686018427387904,4]`, `[0,0]`), 0), "impossible"},
		"many dimensions":    {image(one(`"U8"`, `[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]`, `[0,1]`), 1), "17 dimensions"},
		"wrong length": {image(one(`"F32"`, `[2]`, `[0,4]`), 4),
			"got 4 bytes in data_offsets, want 8 for F32 [2]"},
		"backwards":         {image(one(`"U8"`, `[1]`, `[1,0]`), 1), "want [begin, end]"},
		"negative offset":   {image(one(`"U8"`, `[1]`, `[-1,0]`), 1), "want [begin, end]"},
		"three offsets":     {image(one(`"U8"`, `[1]`, `[0,1,2]`), 1), "want [begin, end]"},
		"data cut":          {image(one(`"F32"`, `[2]`, `[0,8]`), 7), "truncated: got 69 bytes, want 70"},
		"data left over":    {image(one(`"F32"`, `[2]`, `[0,8]`), 9), "there is data no tensor describes"},
		"out of range":      {image(one(`"U8"`, `[1]`, `[4294967296,4294967297]`), 9), "truncated"},
		"hole":              {image(two(`[0,4]`, `[5,9]`), 9), `hole of 1 bytes before tensor "b"`},
		"hole at the start": {image(two(`[1,5]`, `[5,9]`), 9), `hole of 1 bytes before tensor "a"`},
		"overlap": {image(two(`[0,4]`, `[2,6]`), 6),
			`tensor "b" begins at byte 2, inside another one that ends at 4`},
		"same bytes": {image(two(`[0,4]`, `[0,4]`), 4), `begins at byte 0, inside another one`},
	} {
		_, err := open(t, test.file)
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, test.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("no file: got %v", err)
	}
	if _, err := Open(t.TempDir()); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a directory: got %v", err)
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	whole := image(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8)
	for n := range whole {
		if _, err := parse(whole[:n]); err == nil {
			t.Errorf("first %d of %d bytes are accepted", n, len(whole))
		}
	}
	if _, err := parse(whole); err != nil {
		t.Fatal(err)
	}
}

// What Write writes, Open reads back; twice the same bytes.
func TestWriteThenOpen(t *testing.T) {
	dir := t.TempDir()
	types := []op.Type{op.F32, op.F16, op.BF16, op.I32, "i64", op.U8, "bool"}
	rapid.Check(t, func(t *rapid.T) {
		var in []Tensor
		seen := map[string]bool{metadataKey: true}
		for range rapid.IntRange(0, 6).Draw(t, "tensors") {
			name := rapid.String().Draw(t, "name")
			if seen[name] {
				continue
			}
			seen[name] = true
			tensor := Tensor{Name: name, Type: rapid.SampledFrom(types).Draw(t, "type"),
				Shape: rapid.SliceOfN(rapid.IntRange(0, 4), 0, 3).Draw(t, "shape")}
			size := int(elements(tensor.Shape) * elementBytes[string(tensor.Type)])
			tensor.Data = rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "data")
			in = append(in, tensor)
		}
		meta := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		var images [2][]byte
		for i := range images {
			path := filepath.Join(dir, fmt.Sprint(i))
			if err := Write(path, in, meta); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			images[i] = data
		}
		if !bytes.Equal(images[0], images[1]) {
			t.Fatal("two runs write different bytes")
		}
		file, err := Open(filepath.Join(dir, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if len(file.Names()) != len(in) {
			t.Fatalf("got %q", file.Names())
		}
		_, offsets, err := Layout(in, meta)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range in {
			got, ok := file.Tensor(want.Name)
			if !ok || got.Type != want.Type || fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) ||
				!bytes.Equal(got.Data, want.Data) {
				t.Fatalf("tensor %q: got %+v, want %+v", want.Name, got, want)
			}
			if offsets[i]%elementBytes[string(want.Type)] != 0 ||
				!bytes.Equal(images[0][offsets[i]:offsets[i]+int64(len(want.Data))], want.Data) {
				t.Fatalf("tensor %q: offset %d", want.Name, offsets[i])
			}
		}
	})
}

func TestWriteRefusesNonsenseAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	for name, in := range map[string][]Tensor{
		"twice":     {{Name: "a", Type: op.U8, Shape: []int{0}}, {Name: "a", Type: op.U8, Shape: []int{0}}},
		"reserved":  {{Name: "__metadata__", Type: op.U8, Shape: []int{0}}},
		"not UTF-8": {{Name: "\xff", Type: op.U8, Shape: []int{0}}},
		"type":      {{Name: "a", Type: "q4", Shape: []int{0}}},
		"shape":     {{Name: "a", Type: op.U8, Shape: []int{-1}}},
		"too few":   {{Name: "a", Type: op.F32, Shape: []int{2}, Data: make([]byte, 7)}},
	} {
		if err := Write(filepath.Join(dir, "x"), in, nil); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := Write(filepath.Join(dir, "no", "x"), nil, nil); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("no directory: got %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestFloatsAreExact(t *testing.T) {
	data := []byte{0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0xff, 0x7b, 0x00, 0x7c, 0x00, 0x80, 0x00, 0x04, 0xff, 0x03}
	tensor := Tensor{Name: "h", Type: op.F16, Shape: []int{8}, Data: data}
	got := make([]float32, 8)
	if err := tensor.Floats(got, 0); err != nil {
		t.Fatal(err)
	}
	want := []float32{1, -2, 1.0 / (1 << 24), 65504, float32(math.Inf(1)), float32(math.Copysign(0, -1)),
		1.0 / (1 << 14), 1023.0 / (1 << 24)}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Errorf("half %d: got %v, want %v", i, got[i], want[i])
		}
	}
	if v := number.HalfToFloat(0x7e00); !math.IsNaN(float64(v)) {
		t.Errorf("half NaN: got %v", v)
	}
	tensor.Type = op.BF16
	if err := tensor.Floats(got[:1], 1); err != nil || got[0] != -2 {
		t.Errorf("bf16: got %v, %v", got[0], err)
	}
	for _, from := range []int{-1, 1, 8, math.MaxInt} {
		if err := tensor.Floats(got, from); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("elements from %d: got %v", from, err)
		}
	}
	tensor.Type = op.I32
	if err := tensor.Floats(got[:1], 0); err == nil {
		t.Error("integers are read as floats")
	}
}

func FuzzParse(f *testing.F) {
	reference, err := os.ReadFile("../../testdata/models/tiny-llama-kjv/model.safetensors")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(reference[:8192]) // cut in the data
	f.Add(image(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(image(`{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}}`, 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		tensors, err := parse(data)
		if err != nil {
			return
		}
		total := 0
		for _, tensor := range tensors {
			if int64(len(tensor.Data)) != elements(tensor.Shape)*elementBytes[string(tensor.Type)] {
				t.Errorf("tensor %q: %d bytes for %v", tensor.Name, len(tensor.Data), tensor.Shape)
			}
			total += len(tensor.Data)
		}
		if n := binary.LittleEndian.Uint64(data); uint64(total) != uint64(len(data))-8-n {
			t.Errorf("tensors hold %d of %d bytes", total, len(data))
		}
	})
}
