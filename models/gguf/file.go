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
	"reflect"
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

// kindTypes are values of the Go types of scalars, in the order of their kinds; nil for strings and arrays.
var kindTypes = [...]any{
	uint8(0), int8(0), uint16(0), int16(0), uint32(0), int32(0), float32(0), false, nil, nil,
	uint64(0), int64(0), float64(0),
}

// value is a metadata value in place: its bytes were walked and bounded, nothing is copied yet. Vocabularies are large,
// and not every reader of a file needs them.
type value struct {
	kind kind // of the value, or of the elements when list is set
	list bool
	n    int    // elements
	raw  []byte // scalar or elements, strings with their lengths
}

// File is an open GGUF file, mapped into memory.
type File struct {
	region  *mem.Region      // the whole file
	keys    []string         // in the order of the file
	values  map[string]value // by key
	tensors []Tensor         // in the order of their data
	index   map[string]int   // into tensors, by name
}

// Open maps the GGUF file at path (version 2 or 3, little endian) and checks its metadata and its
// tensor table: sizes, names, types, and that every tensor lies in the file and overlaps no other.
func Open(path string) (*File, error) {
	file, err := wholefile.Open(path) // a pipe named .gguf must not hang
	if err != nil {
		return nil, fmt.Errorf("open gguf: %w", err)
	}
	defer file.Close()
	region, err := mem.Map(file)
	if err != nil {
		return nil, fmt.Errorf("open gguf: %w", err)
	}
	var out *File
	if fault := mem.CatchFault(func() { out, err = parse(region.Bytes()) }); fault != nil {
		err = fault
	}
	if err != nil {
		region.Close()
		return nil, withHint("open gguf", err).At("%s", path)
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
	entry, ok := f.values[key]
	if !ok {
		return nil, false
	}
	var out any
	if err := mem.CatchFault(func() { out = entry.decode() }); err != nil {
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

// fail keeps the first problem.
func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("at byte %d: %s", r.at, fmt.Sprintf(format, args...))
	}
}

// take returns the next n bytes, nil when there are fewer.
func (r *reader) take(size int, what string) []byte {
	if r.err != nil {
		return nil
	}
	if size > len(r.b)-r.at {
		r.fail("truncated: %d bytes left, want %d for %s", len(r.b)-r.at, size, what)
		return nil
	}
	r.at += size
	return r.b[r.at-size : r.at]
}

// u32 reads a number, 0 after a failure.
func (r *reader) u32(what string) uint32 {
	if word := r.take(4, what); word != nil {
		return binary.LittleEndian.Uint32(word)
	}
	return 0
}

// count reads a 64-bit number that must not exceed limit.
func (r *reader) count(limit int, what string) int {
	word := r.take(8, what)
	if word == nil {
		return 0
	}
	number := binary.LittleEndian.Uint64(word)
	if number > uint64(limit) {
		r.at -= 8
		r.fail("%s is %d, want at most %d", what, number, limit)
		return 0
	}
	return int(number)
}

// name reads a key or a tensor's name.
func (r *reader) name(what string) string {
	size := r.count(maxNameBytes, "length of "+what)
	text := r.take(size, what)
	if r.err == nil && (size == 0 || !utf8.Valid(text)) {
		r.fail("%s: got %d bytes that are no text", what, size)
	}
	return string(text)
}

// value reads the type and the extent of a metadata value.
func (r *reader) value() value {
	entry := value{kind: kind(r.u32("type of the value")), n: 1}
	if entry.kind == kindArray {
		entry.list, entry.kind = true, kind(r.u32("type of the elements"))
		if entry.kind == kindArray && r.err == nil {
			r.fail("an array of arrays is not supported")
		}
		entry.n = r.count(maxElements, "number of elements")
	}
	if r.err == nil && int(entry.kind) >= len(kindTypes) {
		r.fail("unknown value type %d", entry.kind)
	}
	if r.err != nil {
		return entry
	}
	start := r.at
	if entry.kind == kindString {
		// Only lengths are walked; the sum of all strings is bounded, not just each.
		for i := 0; i < entry.n && r.err == nil; i++ {
			r.take(r.count(maxValueBytes, "length of a string"), "a string")
			if r.at-start > maxValueBytes {
				r.fail("strings of more than %d bytes", maxValueBytes)
			}
		}
	} else {
		raw := r.take(entry.n*binary.Size(kindTypes[entry.kind]), "the value")
		if entry.kind == kindBool {
			if i := bytes.IndexFunc(raw, func(c rune) bool { return c > 1 }); i >= 0 {
				r.fail("a bool is %d, want 0 or 1", raw[i])
			}
		}
	}
	if r.err == nil {
		entry.raw = r.b[start:r.at]
	}
	return entry
}

// decode copies the value out of the file.
func (v value) decode() any {
	if v.kind == kindString {
		return v.strings()
	}
	// Scalars are decoded as lists of one element, so that one call serves both.
	list := reflect.MakeSlice(reflect.SliceOf(reflect.TypeOf(kindTypes[v.kind])), v.n, v.n)
	if _, err := binary.Decode(v.raw, binary.LittleEndian, list.Interface()); err != nil {
		panic("BUG: decode a metadata value that was bounded: " + err.Error())
	}
	if !v.list {
		return list.Index(0).Interface()
	}
	return list.Interface()
}

// strings returns a string or a list of them; one copy holds all strings of the list.
func (v value) strings() any {
	// The copy includes the lengths between the strings: 8 bytes each, and one allocation.
	whole := string(v.raw)
	out := make([]string, v.n)
	at := 0
	for i := range out {
		size := int(binary.LittleEndian.Uint64(v.raw[at:]))
		out[i] = whole[at+8 : at+8+size]
		at += 8 + size
	}
	if !v.list {
		return out[0]
	}
	return out
}

// parse checks a whole file: magic, version, counts, metadata, tensor table, aligned data. Each count is bounded before
// it is believed, and each extent before it is read, so that no file can make it allocate much more than its size.
func parse(raw []byte) (*File, error) {
	header := &reader{b: raw}
	if err := header.begin(); err != nil {
		return nil, err
	}
	tensors := header.count(maxTensors, "number of tensors")
	f := &File{values: map[string]value{}, index: map[string]int{}}
	if err := f.metadata(header); err != nil {
		return nil, err
	}
	if err := f.refuseParts(); err != nil {
		return nil, err
	}
	align, err := f.alignment()
	if err != nil {
		return nil, err
	}
	// The number of tensors is only a claim, so it allocates no more than this at first.
	table := make([]extent, 0, min(tensors, 1024))
	for i := range tensors {
		entry := header.tensor()
		if header.err != nil {
			return nil, fmt.Errorf("tensor %d: %w", i, header.err)
		}
		if err := entry.check(align); err != nil {
			return nil, withHint(fmt.Sprintf("tensor %q", entry.Name), err)
		}
		table = append(table, entry)
	}
	if header.err != nil {
		return nil, header.err
	}
	// The data section begins at the next multiple of the alignment.
	data := raw[min(len(raw), header.at+(align-header.at%align)%align):]
	return f, f.place(table, data)
}

// begin reads the magic number and the version.
func (r *reader) begin() error {
	if start := r.take(len(magic), "the magic number"); start == nil || string(start) != magic {
		return diag.New(diag.ClassInput, "no GGUF file: it does not begin with %q", magic)
	}
	switch version := r.u32("the version"); {
	case r.err != nil:
		return r.err
	case version&0xffff == 0 && version != 0:
		return diag.New(diag.ClassInput, "big endian GGUF is not supported").
			WithHint("convert the model again without --bigendian")
	case version != 2 && version != 3:
		return diag.New(diag.ClassInput, "GGUF version %d is not supported; supported: 2, 3", version).
			WithHint("convert the model again with a current converter")
	}
	return nil
}

// metadata reads the keys, of which none may be there twice, and the extents of their values.
func (f *File) metadata(header *reader) error {
	for range header.count(maxKeys, "number of metadata keys") {
		key := header.name("a metadata key")
		if header.err != nil {
			return header.err
		}
		if _, dup := f.values[key]; dup {
			return fmt.Errorf("metadata key %q twice", key)
		}
		entry := header.value()
		if header.err != nil {
			return fmt.Errorf("metadata key %q: %w", key, header.err)
		}
		f.keys, f.values[key] = append(f.keys, key), entry
	}
	return nil
}

// place gives the tensors their data, in its order, and refuses those that overlap or end beyond it.
func (f *File) place(table []extent, data []byte) error {
	// In the order of their data, overlap shows between neighbours.
	sort.SliceStable(table, func(a, b int) bool { return table[a].begin < table[b].begin })
	end := int64(0)
	for i, entry := range table {
		switch {
		case entry.begin > int64(len(data)) || entry.size > int64(len(data))-entry.begin:
			return fmt.Errorf("tensor %q: truncated: its data ends at byte %d of the data, which has %d",
				entry.Name, entry.begin+entry.size, len(data))
		case entry.begin < end:
			return fmt.Errorf("tensor %q: begins at byte %d of the data, inside %q that ends at %d",
				entry.Name, entry.begin, table[i-1].Name, end)
		}
		end = entry.begin + entry.size
		if _, dup := f.index[entry.Name]; dup {
			return fmt.Errorf("tensor %q twice", entry.Name)
		}
		// The capacity ends with the tensor, so that an append cannot write into the next one.
		entry.Data = data[entry.begin:end:end]
		f.index[entry.Name] = len(f.tensors)
		f.tensors = append(f.tensors, entry.Tensor)
	}
	return nil
}

// withHint puts what was done in front of an error and keeps its hint.
func withHint(what string, err error) *diag.Diagnostic {
	problem := diag.New(diag.ClassInput, "%s: %w", what, err)
	for _, hint := range diag.HintsOf(err) {
		problem.Hint = hint
	}
	return problem
}

// refuseParts refuses one part of a model spread over several files, and files that are no model.
func (f *File) refuseParts() error {
	if files, ok := f.integer("split.count"); ok && files > 1 {
		return diag.New(diag.ClassInput, "metadata key %q: one of %d files of a model, want a single file",
			"split.count", files).
			WithHint("merge them first: llama-gguf-split --merge FIRST.gguf WHOLE.gguf")
	}
	if kind, ok := f.Value("general.type"); ok && kind != "model" {
		return diag.New(diag.ClassInput, "metadata key %q: got %s, want \"model\"", "general.type", brief(kind)).
			WithHint("adapters and projectors are no models of their own; merge the adapter into its model first")
	}
	return nil
}

// alignment returns what every tensor's data starts on a multiple of, in bytes.
func (f *File) alignment() (int, error) {
	stored, ok := f.Value("general.alignment")
	if !ok {
		return defaultAlignment, nil
	}
	align, ok := stored.(uint32)
	if !ok || align == 0 || align&(align-1) != 0 || align > maxAlignment {
		return 0, fmt.Errorf("metadata key %q: got %s, want a power of two up to %d", "general.alignment",
			brief(stored), maxAlignment)
	}
	return int(align), nil
}

// integer returns a metadata value of any integer kind that fits an int.
func (f *File) integer(key string) (int, bool) {
	stored, ok := f.Value(key)
	if !ok {
		return 0, false
	}
	return toInt(stored)
}

// toInt converts a number of any integer kind that fits an int.
func toInt(v any) (int, bool) {
	switch n := reflect.ValueOf(v); {
	case n.CanInt():
		return int(n.Int()), int64(int(n.Int())) == n.Int()
	case n.CanUint():
		return int(n.Uint()), n.Uint() <= math.MaxInt
	}
	return 0, false
}

// extent is a tensor and where the table says its bytes are, counted from the start of the data.
type extent struct {
	Tensor
	// begin is relative to the data section, which follows the table.
	begin, size int64  // bytes
	typ         uint32 // as the table has it, see ggmlTypes
}

// tensor reads one entry of the tensor table.
func (r *reader) tensor() (entry extent) {
	entry.Name = r.name("a tensor's name")
	rank := r.u32("number of dimensions")
	if r.err == nil && (rank == 0 || rank > maxRank) {
		r.fail("tensor %q: %d dimensions, want 1 to %d", entry.Name, rank, maxRank)
	}
	if r.err != nil {
		return entry
	}
	entry.Shape = make([]int, rank)
	for i := range entry.Shape {
		entry.Shape[i] = r.count(int(mem.MaxBytes), "a dimension")
	}
	slices.Reverse(entry.Shape) // the file counts the fastest one first
	entry.typ = r.u32("tensor type")
	if offset := r.take(8, "tensor offset"); offset != nil {
		entry.begin = int64(binary.LittleEndian.Uint64(offset))
	}
	return entry
}

// check finds the type and the size of an entry.
func (e *extent) check(align int) error {
	elementType, ok := ggmlTypes[e.typ]
	if !ok {
		return diag.New(diag.ClassInput, "unknown type %d", e.typ).WithHint("%s", typeHint)
	}
	layout, ok := layouts[elementType]
	if !ok {
		return diag.New(diag.ClassInput, "type %s is not supported; supported: %s",
			strings.ToUpper(string(elementType)), supportedTypes()).WithHint("%s", typeHint)
	}
	e.Type = elementType
	cols := e.Shape[len(e.Shape)-1]
	if cols%layout.block != 0 {
		return fmt.Errorf("%d columns of type %s, want a multiple of %d", cols, elementType, layout.block)
	}
	size := int64(layout.bytes)
	for i, dim := range e.Shape {
		if i == len(e.Shape)-1 {
			dim /= layout.block
		}
		// Divided, not multiplied: the product could overflow.
		if dim <= 0 || size > mem.MaxBytes/int64(dim) {
			return fmt.Errorf("shape %v is impossible", e.Shape)
		}
		size *= int64(dim)
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
	shown := fmt.Sprint(v)
	if text, ok := v.(string); ok {
		shown = fmt.Sprintf("%q", text[:min(len(text), 2*most)])
	} else if list, ok := v.([]string); ok {
		shown = fmt.Sprintf("a list of %d strings", len(list))
	}
	if len(shown) > most {
		shown = strings.ToValidUTF8(shown[:most], "") + "..."
	}
	return shown
}
