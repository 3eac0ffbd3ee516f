// Package gguf knows the GGUF file format of llama.cpp: typed metadata, a table of tensors, their
// blocks of quantised values, and how all of it corresponds to what a Hugging Face directory holds.
//
// Files are mapped, and everything a file claims is checked before it is believed or allocated.
// Read a model with Open, File.Model and File.Tokenizer; write one with Export.
package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/wholefile"
)

// Bounds of a file; the largest published ones have 1500 tensors and 260,000 tokens.
const (
	maxKeys       = 1 << 14
	maxTensors    = 1 << 16
	maxNameBytes  = 1 << 10
	maxValueBytes = 32 << 20 // of one metadata value
	maxElements   = 1 << 21  // of one metadata array
	maxRank       = 4
	maxAlignment  = 1 << 20

	defaultAlignment = 32
	magic            = "GGUF"
	version          = 3
)

// kind is the type of a metadata value, as the file encodes it.
type kind uint32

const (
	kindU8 kind = iota
	kindI8
	kindU16
	kindI16
	kindU32
	kindI32
	kindF32
	kindBool
	kindString
	kindArray
	kindU64
	kindI64
	kindF64
)

// kindBytes is the size of a scalar, 0 for strings and arrays.
var kindBytes = [...]int{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

// value is a metadata value in place: its bytes were walked and bounded, nothing is copied yet.
type value struct {
	kind kind // of the value, or of the elements when list is set
	list bool
	n    int    // elements
	raw  []byte // scalar or elements, strings with their lengths
}

// File is an open GGUF file, mapped into memory.
type File struct {
	region  *mem.Region
	keys    []string
	values  map[string]value
	tensors []Tensor
	index   map[string]int
}

// Open maps the GGUF file at path (version 2 or 3, little endian) and checks its metadata and its
// tensor table: sizes, names, types, and that every tensor lies in the file and overlaps no other.
func Open(path string) (*File, error) {
	f, err := wholefile.Open(path) // a pipe named .gguf must not hang
	if err != nil {
		return nil, fmt.Errorf("open gguf: %w", err)
	}
	defer f.Close()
	region, err := mem.Map(f)
	if err != nil {
		return nil, fmt.Errorf("open gguf: %w", err)
	}
	var out *File
	if fault := mem.CatchFault(func() { out, err = parse(region.Bytes()) }); fault != nil {
		err = fault
	}
	if err != nil {
		region.Close()
		d := diag.New(diag.ClassInput, "open gguf: %w", err).At("%s", path)
		for _, h := range diag.HintsOf(err) {
			d.Hint = h
		}
		return nil, d
	}
	out.region = region
	return out, nil
}

// Close unmaps the file. Calling it again does nothing.
func (f *File) Close() error { return f.region.Close() }

// Keys lists the metadata keys in the order of the file.
func (f *File) Keys() []string { return f.keys }

// Value returns a metadata value as the Go type of its kind: a sized number, bool, string, or a slice of
// one of these. It is a copy. A string may hold any bytes.
func (f *File) Value(key string) (any, bool) {
	v, ok := f.values[key]
	if !ok {
		return nil, false
	}
	var out any
	if err := mem.CatchFault(func() { out = v.decode() }); err != nil {
		return nil, false
	}
	return out, true
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

// reader walks the header; after the first failure it stands still.
type reader struct {
	b   []byte
	at  int
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("at byte %d: %s", r.at, fmt.Sprintf(format, args...))
	}
}

// take returns the next n bytes, nil when there are fewer.
func (r *reader) take(n int, what string) []byte {
	if r.err != nil {
		return nil
	}
	if n > len(r.b)-r.at {
		r.fail("truncated: %d bytes left, want %d for %s", len(r.b)-r.at, n, what)
		return nil
	}
	r.at += n
	return r.b[r.at-n : r.at]
}

func (r *reader) u32(what string) uint32 {
	if b := r.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// count reads a 64-bit number that must not exceed limit.
func (r *reader) count(limit int, what string) int {
	b := r.take(8, what)
	if b == nil {
		return 0
	}
	n := binary.LittleEndian.Uint64(b)
	if n > uint64(limit) {
		r.at -= 8
		r.fail("%s is %d, want at most %d", what, n, limit)
		return 0
	}
	return int(n)
}

// name reads a key or a tensor's name.
func (r *reader) name(what string) string {
	n := r.count(maxNameBytes, "length of "+what)
	b := r.take(n, what)
	if r.err == nil && (n == 0 || !utf8.Valid(b)) {
		r.fail("%s: got %d bytes that are no text", what, n)
	}
	return string(b)
}

// value reads the type and the extent of a metadata value.
func (r *reader) value() value {
	v := value{kind: kind(r.u32("type of the value")), n: 1}
	if v.kind == kindArray {
		v.list, v.kind = true, kind(r.u32("type of the elements"))
		if v.kind == kindArray && r.err == nil {
			r.fail("an array of arrays is not supported")
		}
		v.n = r.count(maxElements, "number of elements")
	}
	if r.err == nil && int(v.kind) >= len(kindBytes) {
		r.fail("unknown value type %d", v.kind)
	}
	if r.err != nil {
		return v
	}
	start := r.at
	if v.kind == kindString {
		for i := 0; i < v.n && r.err == nil; i++ {
			r.take(r.count(maxValueBytes, "length of a string"), "a string")
			if r.at-start > maxValueBytes {
				r.fail("strings of more than %d bytes", maxValueBytes)
			}
		}
	} else {
		b := r.take(v.n*kindBytes[v.kind], "the value")
		if v.kind == kindBool {
			if i := bytes.IndexFunc(b, func(c rune) bool { return c > 1 }); i >= 0 {
				r.fail("a bool is %d, want 0 or 1", b[i])
			}
		}
	}
	if r.err == nil {
		v.raw = r.b[start:r.at]
	}
	return v
}

// decode copies the value out of the file.
func (v value) decode() any {
	switch v.kind {
	case kindU8:
		return numbers(v, func(b []byte) uint8 { return b[0] })
	case kindI8:
		return numbers(v, func(b []byte) int8 { return int8(b[0]) })
	case kindU16:
		return numbers(v, binary.LittleEndian.Uint16)
	case kindI16:
		return numbers(v, func(b []byte) int16 { return int16(binary.LittleEndian.Uint16(b)) })
	case kindU32:
		return numbers(v, binary.LittleEndian.Uint32)
	case kindI32:
		return numbers(v, func(b []byte) int32 { return int32(binary.LittleEndian.Uint32(b)) })
	case kindF32:
		return numbers(v, func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) })
	case kindBool:
		return numbers(v, func(b []byte) bool { return b[0] == 1 })
	case kindU64:
		return numbers(v, binary.LittleEndian.Uint64)
	case kindI64:
		return numbers(v, func(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) })
	case kindF64:
		return numbers(v, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) })
	}
	// One copy holds all strings of an array.
	whole := string(v.raw)
	out := make([]string, v.n)
	at := 0
	for i := range out {
		n := int(binary.LittleEndian.Uint64(v.raw[at:]))
		out[i] = whole[at+8 : at+8+n]
		at += 8 + n
	}
	if !v.list {
		return out[0]
	}
	return out
}

func numbers[T any](v value, get func([]byte) T) any {
	size := kindBytes[v.kind]
	if !v.list {
		return get(v.raw)
	}
	out := make([]T, v.n)
	for i := range out {
		out[i] = get(v.raw[i*size:])
	}
	return out
}

// parse checks a whole file: magic, version, counts, metadata, tensor table, aligned data.
func parse(b []byte) (*File, error) {
	r := &reader{b: b}
	if m := r.take(len(magic), "the magic number"); m == nil || string(m) != magic {
		return nil, diag.New(diag.ClassInput, "no GGUF file: it does not begin with %q", magic)
	}
	switch v := r.u32("the version"); {
	case r.err != nil:
		return nil, r.err
	case v&0xffff == 0 && v != 0:
		return nil, diag.New(diag.ClassInput, "big endian GGUF is not supported").WithHint("convert the model again without --bigendian")
	case v != 2 && v != 3:
		return nil, diag.New(diag.ClassInput, "GGUF version %d is not supported; supported: 2, 3", v).WithHint("convert the model again with a current converter")
	}
	tensors := r.count(maxTensors, "number of tensors")
	keys := r.count(maxKeys, "number of metadata keys")
	f := &File{values: map[string]value{}, index: map[string]int{}}
	for range keys {
		key := r.name("a metadata key")
		if r.err != nil {
			return nil, r.err
		}
		if _, dup := f.values[key]; dup {
			return nil, fmt.Errorf("metadata key %q twice", key)
		}
		v := r.value()
		if r.err != nil {
			return nil, fmt.Errorf("metadata key %q: %w", key, r.err)
		}
		f.keys, f.values[key] = append(f.keys, key), v
	}
	if err := f.refuseParts(); err != nil {
		return nil, err
	}
	align, err := f.alignment()
	if err != nil {
		return nil, err
	}
	table := make([]extent, 0, min(tensors, 1024))
	for i := range tensors {
		e := r.tensor()
		if r.err != nil {
			return nil, fmt.Errorf("tensor %d: %w", i, r.err)
		}
		if err := e.check(align); err != nil {
			return nil, atTensor(e.Name, err)
		}
		table = append(table, e)
	}
	if r.err != nil {
		return nil, r.err
	}
	data := b[min(len(b), r.at+(align-r.at%align)%align):]
	// In the order of their data.
	sort.SliceStable(table, func(a, b int) bool { return table[a].begin < table[b].begin })
	end := int64(0)
	for i, e := range table {
		switch {
		case e.begin > int64(len(data)) || e.size > int64(len(data))-e.begin:
			return nil, fmt.Errorf("tensor %q: truncated: its data ends at byte %d of the data, which has %d", e.Name, e.begin+e.size, len(data))
		case e.begin < end:
			return nil, fmt.Errorf("tensor %q: begins at byte %d of the data, inside %q that ends at %d", e.Name, e.begin, table[i-1].Name, end)
		}
		end = e.begin + e.size
		if _, dup := f.index[e.Name]; dup {
			return nil, fmt.Errorf("tensor %q twice", e.Name)
		}
		e.Data = data[e.begin:end:end]
		f.index[e.Name] = len(f.tensors)
		f.tensors = append(f.tensors, e.Tensor)
	}
	return f, nil
}

func atTensor(name string, err error) error {
	d := diag.New(diag.ClassInput, "tensor %q: %w", name, err)
	for _, h := range diag.HintsOf(err) {
		d.Hint = h
	}
	return d
}

// refuseParts refuses one part of a model spread over several files, and files that are no model.
func (f *File) refuseParts() error {
	if n, ok := f.integer("split.count"); ok && n > 1 {
		return diag.New(diag.ClassInput, "metadata key %q: one of %d files of a model, want a single file", "split.count", n).
			WithHint("merge them first: llama-gguf-split --merge FIRST.gguf WHOLE.gguf")
	}
	if v, ok := f.Value("general.type"); ok && v != "model" {
		return diag.New(diag.ClassInput, "metadata key %q: got %s, want \"model\"", "general.type", brief(v)).
			WithHint("adapters and projectors are no models of their own; merge the adapter into its model first")
	}
	return nil
}

func (f *File) alignment() (int, error) {
	v, ok := f.Value("general.alignment")
	if !ok {
		return defaultAlignment, nil
	}
	n, ok := v.(uint32)
	if !ok || n == 0 || n&(n-1) != 0 || n > maxAlignment {
		return 0, fmt.Errorf("metadata key %q: got %s, want a power of two up to %d", "general.alignment", brief(v), maxAlignment)
	}
	return int(n), nil
}

// integer returns a metadata value of any integer kind that fits an int.
func (f *File) integer(key string) (int, bool) {
	v, ok := f.Value(key)
	if !ok {
		return 0, false
	}
	return toInt(v)
}

func toInt(v any) (int, bool) {
	switch v := v.(type) {
	case uint8:
		return int(v), true
	case int8:
		return int(v), true
	case uint16:
		return int(v), true
	case int16:
		return int(v), true
	case uint32:
		return int(v), uint64(v) <= math.MaxInt
	case int32:
		return int(v), true
	case uint64:
		return int(v), v <= math.MaxInt
	case int64:
		return int(v), int64(int(v)) == v
	}
	return 0, false
}

// extent is a tensor and where the table says its bytes are, counted from the start of the data.
type extent struct {
	Tensor
	begin, size int64
	typ         uint32
}

// tensor reads one entry of the tensor table.
func (r *reader) tensor() (e extent) {
	e.Name = r.name("a tensor's name")
	rank := r.u32("number of dimensions")
	if r.err == nil && (rank == 0 || rank > maxRank) {
		r.fail("tensor %q: %d dimensions, want 1 to %d", e.Name, rank, maxRank)
	}
	if r.err != nil {
		return e
	}
	e.Shape = make([]int, rank)
	for i := range e.Shape {
		e.Shape[i] = r.count(int(mem.MaxBytes), "a dimension")
	}
	slices.Reverse(e.Shape) // the file counts the fastest one first
	e.typ = r.u32("tensor type")
	if b := r.take(8, "tensor offset"); b != nil {
		e.begin = int64(binary.LittleEndian.Uint64(b))
	}
	return e
}

// check finds the type and the size of an entry.
func (e *extent) check(align int) error {
	t, ok := ggmlTypes[e.typ]
	if !ok {
		return diag.New(diag.ClassInput, "unknown type %d", e.typ).WithHint("%s", typeHint)
	}
	layout, ok := layouts[t]
	if !ok {
		return diag.New(diag.ClassInput, "type %s is not supported; supported: %s", strings.ToUpper(string(t)), supportedTypes()).WithHint("%s", typeHint)
	}
	e.Type = t
	cols := e.Shape[len(e.Shape)-1]
	if cols%layout.block != 0 {
		return fmt.Errorf("%d columns of type %s, want a multiple of %d", cols, t, layout.block)
	}
	size := int64(layout.bytes)
	for i, d := range e.Shape {
		if i == len(e.Shape)-1 {
			d /= layout.block
		}
		if d <= 0 || size > mem.MaxBytes/int64(d) {
			return fmt.Errorf("shape %v is impossible", e.Shape)
		}
		size *= int64(d)
	}
	e.size = size
	if e.begin < 0 || e.begin%int64(align) != 0 {
		return fmt.Errorf("offset %d, want a multiple of the alignment %d", uint64(e.begin), align)
	}
	return nil
}

// brief shows the beginning of a metadata value in an error message.
func brief(v any) string {
	const most = 60
	s := fmt.Sprint(v)
	if text, ok := v.(string); ok {
		s = fmt.Sprintf("%q", text[:min(len(text), 2*most)])
	} else if list, ok := v.([]string); ok {
		s = fmt.Sprintf("a list of %d strings", len(list))
	}
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
