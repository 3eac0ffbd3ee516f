package models

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
)

// Bounds of a safetensors file. The header limit is the one of the format.
const (
	maxHeaderBytes = 100_000_000
	maxTensors     = 1 << 18
	maxRank        = 16
)

// elementBytes lists the element types of the format, in lower case.
var elementBytes = map[string]int64{
	"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1,
	"u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1, "f8_e4m3": 1, "f8_e5m2": 1,
}

// Tensor is a stored array: its element type, shape, and little-endian bytes in row-major order.
// Type is the format's own name in lower case where hetc has no operator on it ("i64").
type Tensor struct {
	Name  string
	Type  op.Type
	Shape []int
	Data  []byte
}

// Floats writes elements [from, from+len(dst)) as float32. It is exact for f32, f16 and bf16, the
// only types it accepts.
func (t *Tensor) Floats(dst []float32, from int) error {
	size := t.Type.Bytes()
	if t.Type != op.F32 && t.Type != op.F16 && t.Type != op.BF16 {
		return diag.New(diag.ClassInput, "read tensor %q as float32: element type %q, want f32, f16 or bf16", t.Name, t.Type)
	}
	if from < 0 || len(dst) > len(t.Data)/size || from > len(t.Data)/size-len(dst) {
		return diag.New(diag.ClassInput, "read tensor %q: elements [%d, %d+%d), want within its %d", t.Name, from, from, len(dst), len(t.Data)/size)
	}
	src := t.Data[from*size : (from+len(dst))*size]
	switch t.Type {
	case op.F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case op.BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case op.F16:
		for i := range dst {
			dst[i] = halfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
	return nil
}

// halfToFloat converts an IEEE 754 half; exact.
func halfToFloat(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 0: // zero and subnormals: frac * 2^-24
		f := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// File is an open safetensors file, mapped into memory.
type File struct {
	region  *mem.Region
	tensors []Tensor // in the order of their data
	index   map[string]int
}

// OpenFile maps the safetensors file at path and checks its header: every tensor has a known type,
// exactly the bytes its shape asks for, and the tensors tile the data without holes or overlaps.
func OpenFile(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "open safetensors: %w", err)
	}
	defer f.Close()
	region, err := mem.Map(f)
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}
	var tensors []Tensor
	fault := mem.CatchFault(func() { tensors, err = parseSafetensors(region.Bytes()) })
	if fault != nil {
		err = fault
	}
	if err != nil {
		region.Close()
		return nil, diag.New(diag.ClassInput, "open safetensors: %w", err).At("%s", path)
	}
	out := &File{region: region, tensors: tensors, index: make(map[string]int, len(tensors))}
	for i := range tensors {
		out.index[tensors[i].Name] = i
	}
	return out, nil
}

// Names lists the tensors in the order of their data.
func (f *File) Names() []string {
	out := make([]string, len(f.tensors))
	for i := range f.tensors {
		out[i] = f.tensors[i].Name
	}
	return out
}

// Tensor returns the tensor of that name; its Data is read-only and dead after Close.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Close unmaps the file. Calling it again does nothing.
func (f *File) Close() error { return f.region.Close() }

// parseSafetensors checks a whole file: 8 bytes of header length, a JSON header, the data.
func parseSafetensors(b []byte) ([]Tensor, error) {
	if len(b) < 8 {
		return nil, fmt.Errorf("got %d bytes, want at least the 8 of the header length", len(b))
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxHeaderBytes {
		return nil, fmt.Errorf("header length %d bytes, want at most %d", n, maxHeaderBytes)
	}
	if n > uint64(len(b)-8) {
		return nil, fmt.Errorf("truncated: got %d bytes, want %d for the header alone", len(b), 8+n)
	}
	header, data := b[8:8+n], b[8+n:]
	if n == 0 || header[0] != '{' {
		return nil, fmt.Errorf("header does not begin with {")
	}
	var tensors []Tensor
	var ends []int64
	metadata := false
	err := eachMember(header, func(name string, value json.RawMessage) error {
		if name == "__metadata__" {
			var m map[string]string
			if metadata {
				return fmt.Errorf("key %q twice", name)
			}
			metadata = true
			if err := json.Unmarshal(value, &m); err != nil {
				return fmt.Errorf("key %q: want an object of strings", name)
			}
			return nil
		}
		if len(tensors) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		t, begin, end, err := parseTensor(name, value)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if end > int64(len(data)) {
			return fmt.Errorf("tensor %q: truncated: got %d bytes of data, want at least %d", name, len(data), end)
		}
		t.Data = data[begin:end:end]
		tensors, ends = append(tensors, t), append(ends, end)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	begin := func(i int) int64 { return ends[i] - int64(len(tensors[i].Data)) }
	sort.SliceStable(order, func(a, b int) bool {
		i, j := order[a], order[b]
		if begin(i) != begin(j) {
			return begin(i) < begin(j)
		}
		return ends[i] < ends[j]
	})
	names := make(map[string]bool, len(tensors))
	sorted := make([]Tensor, len(tensors))
	at := int64(0)
	for k, i := range order {
		t := tensors[i]
		if names[t.Name] {
			return nil, fmt.Errorf("header: tensor %q twice", t.Name)
		}
		names[t.Name] = true
		switch {
		case begin(i) < at:
			return nil, fmt.Errorf("header: tensor %q begins at byte %d inside another one that ends at %d", t.Name, begin(i), at)
		case begin(i) > at:
			return nil, fmt.Errorf("header: hole of %d bytes before tensor %q", begin(i)-at, t.Name)
		}
		at = ends[i]
		sorted[k] = t
	}
	if at != int64(len(data)) {
		return nil, fmt.Errorf("got %d bytes of data, want the %d the header describes", len(data), at)
	}
	return sorted, nil
}

// parseTensor reads one header entry and checks its length against type and shape.
func parseTensor(name string, value json.RawMessage) (t Tensor, begin, end int64, err error) {
	var dtype string
	var shape, offsets []int64
	seen := 0
	err = eachMember(value, func(key string, v json.RawMessage) error {
		var dst any
		bit := 0
		switch key {
		case "dtype":
			dst, bit = &dtype, 1
		case "shape":
			dst, bit = &shape, 2
		case "data_offsets":
			dst, bit = &offsets, 4
		default:
			return fmt.Errorf("unknown key %q", key)
		}
		if seen&bit != 0 {
			return fmt.Errorf("key %q twice", key)
		}
		seen |= bit
		if err := json.Unmarshal(v, dst); err != nil || string(v) == "null" {
			return fmt.Errorf("key %q: got %s", key, brief(v))
		}
		return nil
	})
	if err != nil {
		return t, 0, 0, err
	}
	if seen != 7 {
		return t, 0, 0, fmt.Errorf("want the keys dtype, shape and data_offsets")
	}
	size, ok := elementBytes[strings.ToLower(dtype)]
	if !ok || strings.ToUpper(dtype) != dtype {
		return t, 0, 0, fmt.Errorf("unknown dtype %q", dtype)
	}
	if len(shape) > maxRank {
		return t, 0, 0, fmt.Errorf("%d dimensions, want at most %d", len(shape), maxRank)
	}
	if len(offsets) != 2 || offsets[0] < 0 || offsets[1] < offsets[0] {
		return t, 0, 0, fmt.Errorf("data_offsets %v, want [begin, end]", offsets)
	}
	t = Tensor{Name: name, Type: op.Type(strings.ToLower(dtype)), Shape: make([]int, len(shape))}
	bytes := size
	for i, d := range shape {
		if d < 0 || d > 0 && bytes > mem.MaxBytes/d {
			return t, 0, 0, fmt.Errorf("shape %v is impossible", shape)
		}
		bytes *= d
		t.Shape[i] = int(d)
	}
	if got := offsets[1] - offsets[0]; got != bytes {
		return t, 0, 0, fmt.Errorf("got %d bytes in data_offsets, want %d for %s %v", got, bytes, dtype, shape)
	}
	return t, offsets[0], offsets[1], nil
}

// WriteFile writes tensors and metadata (may be nil) as a safetensors file, in the given order
// within element sizes, larger elements first, so that every tensor is aligned. Equal arguments
// give equal bytes. The file appears at path complete or not at all.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	header, order, err := safetensorsHeader(tensors, metadata)
	if err != nil {
		return diag.New(diag.ClassInput, "write safetensors %q: %w", path, err)
	}
	return writeAtomic(path, func(w io.Writer) error {
		if _, err := w.Write(header); err != nil {
			return err
		}
		for _, i := range order {
			if _, err := w.Write(tensors[i].Data); err != nil {
				return err
			}
		}
		return nil
	})
}

// safetensorsHeader returns the length prefix and padded JSON header, and the order of the data.
// Of the tensors' Data only the length is read, and only where it is not nil.
func safetensorsHeader(tensors []Tensor, metadata map[string]string) ([]byte, []int, error) {
	order := make([]int, len(tensors))
	seen := map[string]bool{}
	for i := range tensors {
		t := &tensors[i]
		order[i] = i
		size, ok := elementBytes[string(t.Type)]
		if !ok {
			return nil, nil, fmt.Errorf("tensor %q: unknown element type %q", t.Name, t.Type)
		}
		if seen[t.Name] || t.Name == "__metadata__" {
			return nil, nil, fmt.Errorf("tensor %q twice or reserved", t.Name)
		}
		seen[t.Name] = true
		if want := elements(t.Shape) * size; t.Data != nil && int64(len(t.Data)) != want {
			return nil, nil, fmt.Errorf("tensor %q: got %d bytes, want %d for %s %v", t.Name, len(t.Data), want, t.Type, t.Shape)
		}
	}
	sort.SliceStable(order, func(a, b int) bool {
		return elementBytes[string(tensors[order[a]].Type)] > elementBytes[string(tensors[order[b]].Type)]
	})
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	quote := func(s string) {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			panic("BUG: encode a string: " + err.Error())
		}
		b.Truncate(b.Len() - 1) // Encode ends with a line feed
	}
	if len(metadata) > 0 {
		b.WriteString(`"__metadata__":{`)
		for i, k := range sortedKeys(metadata) {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(k)
			b.WriteByte(':')
			quote(metadata[k])
		}
		b.WriteByte('}')
	}
	at := int64(0)
	for _, i := range order {
		t := &tensors[i]
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		end := at + elements(t.Shape)*elementBytes[string(t.Type)]
		shape := strings.Join(strings.Fields(fmt.Sprint(t.Shape)), ",")
		quote(t.Name)
		fmt.Fprintf(&b, `:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, strings.ToUpper(string(t.Type)), shape, at, end)
		at = end
	}
	b.WriteByte('}')
	for b.Len()%64 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeaderBytes {
		return nil, nil, fmt.Errorf("header of %d bytes, want at most %d", b.Len()-8, maxHeaderBytes)
	}
	header := b.Bytes()
	binary.LittleEndian.PutUint64(header, uint64(len(header)-8))
	return header, order, nil
}

// writeAtomic writes a file beside path and renames it there when it is complete and on disk.
func writeAtomic(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return diag.New(diag.ClassIO, "write %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = diag.New(diag.ClassIO, "write %q: %w", path, err)
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
