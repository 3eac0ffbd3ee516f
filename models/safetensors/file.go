// Package safetensors knows the safetensors file format: a JSON header that names arrays, then
// their bytes. Files are mapped, and everything a header claims is checked before it is believed.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/op"
)

// Bounds of a safetensors file. The header limit is the one of the format.
const (
	maxHeaderBytes = 100_000_000
	maxTensors     = 1 << 18
	maxRank        = 16

	// The one member of the header that is no tensor: an object of strings.
	metadataKey = "__metadata__"
)

// elementBytes lists the element types of the format that have whole bytes, in lower case.
var elementBytes = map[string]int64{
	"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1,
	"u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1, "c64": 8,
	"f8_e4m3": 1, "f8_e5m2": 1, "f8_e8m0": 1, "f8_e4m3fnuz": 1, "f8_e5m2fnuz": 1,
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
		return diag.New(diag.ClassInput, "read tensor %q as float32: element type %q, want f32, f16 or bf16",
			t.Name, t.Type)
	}
	if from < 0 || len(dst) > len(t.Data)/size || from > len(t.Data)/size-len(dst) {
		return diag.New(diag.ClassInput, "read tensor %q: elements [%d, %d+%d), want within its %d",
			t.Name, from, from, len(dst), len(t.Data)/size)
	}
	number.Decode(dst, t.Data[from*size:], t.Type)
	return nil
}

// File is an open safetensors file, mapped into memory.
type File struct {
	region  *mem.Region
	tensors []Tensor       // in the order of their data
	index   map[string]int // into tensors, by name
}

// Open maps the safetensors file at path and checks its header: every tensor has a known type,
// exactly the bytes its shape asks for, and the tensors tile the data without holes or overlaps.
func Open(path string) (*File, error) {
	file, err := wholefile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}
	defer file.Close()
	region, err := mem.Map(file)
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}

	// Reading a mapped file that was truncated meanwhile faults; the fault becomes an error.
	var tensors []Tensor
	fault := mem.CatchFault(func() { tensors, err = parse(region.Bytes()) })
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
	at, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[at], true
}

// Close unmaps the file. Calling it again does nothing.
func (f *File) Close() error { return f.region.Close() }

// parse checks a whole file: 8 bytes of header length, a JSON header, the data.
//
// It reads the header member by member, because a JSON map would let a duplicate name hide the first one. It then
// walks the tensors in the order of their data (attachData).
func parse(raw []byte) ([]Tensor, error) {
	if len(raw) < 8 {
		return nil, fmt.Errorf("got %d bytes, want at least the 8 of the header length", len(raw))
	}

	headerSize := binary.LittleEndian.Uint64(raw)
	if headerSize > maxHeaderBytes {
		return nil, fmt.Errorf("header length %d bytes, want at most %d", headerSize, maxHeaderBytes)
	}
	if headerSize > uint64(len(raw)-8) {
		return nil, fmt.Errorf("truncated: got %d bytes, want %d for the header alone", len(raw), 8+headerSize)
	}

	header, data := raw[8:8+headerSize], raw[8+headerSize:]
	if headerSize == 0 || header[0] != '{' {
		return nil, fmt.Errorf("header does not begin with {")
	}

	found, size, err := parseHeader(header)
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}

	// The data ends where the last tensor does: what no tensor describes would escape every digest.
	switch got := int64(len(data)); {
	case got < size:
		return nil, fmt.Errorf("truncated: got %d bytes, want %d", len(raw), 8+int64(headerSize)+size)
	case got > size:
		return nil, fmt.Errorf("got %d bytes, want %d: there is data no tensor describes",
			len(raw), 8+int64(headerSize)+size)
	}
	return attachData(found, data)
}

// parseHeader reads the entries of a header, each checked against its own type and shape, and the size of the data that
// they describe.
func parseHeader(header []byte) (found []extent, size int64, err error) {
	names := map[string]bool{}
	err = eachMember(header, func(name string, value json.RawMessage) error {
		if names[name] {
			return fmt.Errorf("key %q twice", name)
		}
		names[name] = true
		if name == metadataKey {
			var metadata map[string]string
			if err := json.Unmarshal(value, &metadata); err != nil {
				return fmt.Errorf("key %q: want an object of strings", name)
			}
			return nil
		}
		if len(found) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		entry, err := parseTensor(name, value)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		found, size = append(found, entry), max(size, entry.end)
		return nil
	})
	return found, size, err
}

// attachData gives the tensors their data, in its order. They must cover it without holes or overlaps.
func attachData(found []extent, data []byte) ([]Tensor, error) {
	// In the order of their data; empty tensors before the one that begins at the same byte.
	sort.SliceStable(found, func(a, b int) bool {
		if found[a].begin != found[b].begin {
			return found[a].begin < found[b].begin
		}
		return found[a].end < found[b].end
	})

	// Each tensor must begin where the one before it ended.
	at := int64(0)
	tensors := make([]Tensor, len(found))
	for i, entry := range found {
		switch {
		case entry.begin < at:
			return nil, fmt.Errorf("header: tensor %q begins at byte %d, inside another one that ends at %d",
				entry.Name, entry.begin, at)
		case entry.begin > at:
			return nil, fmt.Errorf("header: hole of %d bytes before tensor %q", entry.begin-at, entry.Name)
		}
		at = entry.end
		entry.Data = data[entry.begin:entry.end:entry.end]
		tensors[i] = entry.Tensor
	}
	return tensors, nil
}

// extent is a tensor and where the header says its bytes are.
type extent struct {
	Tensor
	begin, end int64 // bytes, from the end of the header
}

// fields are what the header says of a tensor.
type fields struct {
	dtype   string
	shape   []int
	offsets []int64
}

// parseFields reads one header entry, which has each of the three keys once and no other one.
func parseFields(value json.RawMessage) (read fields, err error) {
	seen := 0 // bits of the three keys
	err = eachMember(value, func(key string, raw json.RawMessage) error {
		var dst any
		var bit int
		switch key {
		case "dtype":
			dst, bit = &read.dtype, 1
		case "shape":
			dst, bit = &read.shape, 2
		case "data_offsets":
			dst, bit = &read.offsets, 4
		default:
			return fmt.Errorf("unknown key %q", key)
		}
		if seen&bit != 0 {
			return fmt.Errorf("key %q twice", key)
		}
		seen |= bit
		err := json.Unmarshal(raw, dst)
		nullAsZero := bit != 1 && bytes.Contains(raw, []byte("null"))
		if err != nil || nullAsZero {
			return fmt.Errorf("key %q: got %s", key, brief(raw))
		}
		return nil
	})
	if err == nil && seen != 7 {
		err = fmt.Errorf("want the keys dtype, shape and data_offsets")
	}
	return read, err
}

// parseTensor reads one header entry and checks its length against type and shape.
func parseTensor(name string, value json.RawMessage) (entry extent, err error) {
	read, err := parseFields(value)
	if err != nil {
		return entry, err
	}
	dtype, shape, offsets := read.dtype, read.shape, read.offsets
	if elementBytes[strings.ToLower(dtype)] == 0 || strings.ToUpper(dtype) != dtype {
		return entry, fmt.Errorf("unknown dtype %q", dtype)
	}
	if len(offsets) != 2 || offsets[0] < 0 || offsets[1] < offsets[0] {
		return entry, fmt.Errorf("data_offsets %v, want [begin, end]", offsets)
	}
	entry = extent{Tensor: Tensor{Name: name, Type: op.Type(strings.ToLower(dtype)), Shape: shape},
		begin: offsets[0], end: offsets[1]}

	// The size that type and shape give must be the size that the offsets give.
	want, err := sizeOf(entry.Type, shape)
	if err != nil {
		return entry, err
	}
	if got := entry.end - entry.begin; got != want {
		return entry, fmt.Errorf("got %d bytes in data_offsets, want %d for %s %v", got, want, dtype, shape)
	}
	return entry, nil
}

// sizeOf returns the number of bytes of an array. A shape that cannot exist is an error: a negative dimension, or a
// product above mem.MaxBytes, which is tested before each multiplication so that it cannot overflow.
func sizeOf(t op.Type, shape []int) (int64, error) {
	if len(shape) > maxRank {
		return 0, fmt.Errorf("%d dimensions, want at most %d", len(shape), maxRank)
	}
	size := elementBytes[string(t)]
	for _, dim := range shape {
		if dim < 0 || dim > 0 && size > mem.MaxBytes/int64(dim) {
			return 0, fmt.Errorf("shape %v is impossible", shape)
		}
		size *= int64(dim)
	}
	return size, nil
}

// elements returns the number of elements of a shape.
func elements(shape []int) int64 {
	count := int64(1)
	for _, dim := range shape {
		count *= int64(dim)
	}
	return count
}

// eachMember calls visit for every member of the JSON object in data, in the order of the text, duplicates included.
// It refuses invalid UTF-8, which encoding/json would replace silently, and anything behind the object.
func eachMember(data []byte, visit func(key string, value json.RawMessage) error) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	token, err := dec.Token()
	if err != nil {
		return jsonError(dec, err)
	}
	if token != json.Delim('{') {
		return fmt.Errorf("got %s, want a JSON object", brief(data))
	}

	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return jsonError(dec, err)
		}
		key, ok := token.(string)
		if !ok {
			return fmt.Errorf("at byte %d: got %v, want a key", dec.InputOffset(), token)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return jsonError(dec, err)
		}
		if err := visit(key, value); err != nil {
			return err
		}
	}

	if _, err := dec.Token(); err != nil {
		return jsonError(dec, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("at byte %d: data after the object", dec.InputOffset())
	}
	return nil
}

// jsonError says where a header is no JSON.
func jsonError(dec *json.Decoder, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("ends in the middle of a JSON object")
	}
	return fmt.Errorf("at byte %d: %w", dec.InputOffset(), err)
}

// brief shows the beginning of a JSON value in an error message.
func brief(raw []byte) string {
	const most = 60
	text := strings.Join(strings.Fields(string(raw[:min(len(raw), 4*most)])), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
