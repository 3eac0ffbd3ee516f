package gguf

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
)

// chunkValues is how many values are read and encoded at a time; what is written does not depend on it.
const chunkValues = 1 << 18

// keyValue is one metadata entry to be written. Value is a sized number, a bool, a string, or a slice of
// numbers or strings.
type keyValue struct {
	Key   string
	Value any
}

// tensorSource is a tensor to be written. Row writes row r of the matrix [rows, cols] of Shape to dst; it is
// called by several goroutines at once.
type tensorSource struct {
	Name  string
	Type  op.Type // f32, f16, bf16, q8_0 or q4_0
	Shape []int   // slowest dimension first
	Row   func(dst []float32, r int) error
}

// writeFile writes metadata and tensors, in this order, as a GGUF file. Equal arguments give equal bytes.
// Values are rounded to a tensor's type as by the format's reference; values without an image in it are
// an error.
func writeFile(ctx context.Context, out io.Writer, metadata []keyValue, tensors []tensorSource) error {
	header, err := head(metadata, tensors)
	if err != nil {
		return diag.New(diag.ClassInput, "write gguf: %w", err)
	}
	if _, err := out.Write(header); err != nil {
		return err
	}
	for i := range tensors {
		if err := tensors[i].stream(ctx, out); err != nil {
			return err
		}
	}
	return nil
}

// head is everything before the data, padded to the alignment.
func head(metadata []keyValue, tensors []tensorSource) ([]byte, error) {
	le := binary.LittleEndian
	buf := le.AppendUint32([]byte(magic), version)
	buf = le.AppendUint64(buf, uint64(len(tensors)))
	buf = le.AppendUint64(buf, uint64(len(metadata)))
	seen := map[string]bool{}
	for _, kv := range metadata {
		if !usable(kv.Key, seen) || kv.Key == "general.alignment" {
			return nil, fmt.Errorf("metadata key %q: used twice, reserved or no text", kv.Key)
		}
		buf = appendText(buf, kv.Key)
		var ok bool
		if buf, ok = appendValue(buf, kv.Value); !ok {
			return nil, fmt.Errorf("metadata key %q: a %T has no form in GGUF", kv.Key, kv.Value)
		}
	}
	clear(seen)
	at := int64(0)
	for i := range tensors {
		source := &tensors[i]
		size, err := source.size()
		if err == nil && !usable(source.Name, seen) {
			err = fmt.Errorf("name is used twice or no text")
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", source.Name, err)
		}
		buf = appendText(buf, source.Name)
		buf = le.AppendUint32(buf, uint32(len(source.Shape)))
		for _, extent := range slices.Backward(source.Shape) {
			buf = le.AppendUint64(buf, uint64(extent))
		}
		buf = le.AppendUint32(buf, layouts[source.Type].id)
		buf = le.AppendUint64(buf, uint64(at))
		// Offsets count from the data section, whose parts are padded each.
		at += (size + defaultAlignment - 1) / defaultAlignment * defaultAlignment
	}
	return pad(buf), nil
}

// usable reports whether a name is text of the permitted length that was not seen before.
func usable(name string, seen map[string]bool) bool {
	if seen[name] || name == "" || len(name) > maxNameBytes || !utf8.ValidString(name) {
		return false
	}
	seen[name] = true
	return true
}

// pad fills up to the alignment.
func pad(b []byte) []byte {
	for len(b)%defaultAlignment != 0 {
		b = append(b, 0)
	}
	return b
}

// appendText appends a string behind its length.
func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// appendValue appends the type and the value; false when it has none.
func appendValue(buf []byte, v any) ([]byte, bool) {
	le := binary.LittleEndian
	element := reflect.TypeOf(v)
	count, list := 1, element != nil && element.Kind() == reflect.Slice
	if list {
		element, count = element.Elem(), reflect.ValueOf(v).Len()
	}
	of := kindString
	if element != reflect.TypeFor[string]() {
		// The index of the Go type in kindTypes is the kind's number in the file.
		at := slices.IndexFunc(kindTypes[:], func(x any) bool { return x != nil && reflect.TypeOf(x) == element })
		if at < 0 {
			return buf, false
		}
		of = kind(at)
	}
	if list {
		buf = le.AppendUint32(buf, uint32(kindArray))
	}
	buf = le.AppendUint32(buf, uint32(of))
	if list {
		buf = le.AppendUint64(buf, uint64(count))
	}
	switch v := v.(type) {
	case string:
		return appendText(buf, v), true
	case []string:
		for _, text := range v {
			buf = appendText(buf, text)
		}
		return buf, true
	}
	buf, err := binary.Append(buf, le, v)
	return buf, err == nil
}

// size returns the number of bytes of the tensor's data.
func (t *tensorSource) size() (int64, error) {
	if t.Type != op.F32 && t.Type != op.F16 && t.Type != op.BF16 && t.Type != q8_0 && t.Type != q4_0 {
		return 0, fmt.Errorf("type %q cannot be written; those that can: f32, f16, bf16, q8_0, q4_0", t.Type)
	}
	layout := layouts[t.Type]
	if len(t.Shape) == 0 || len(t.Shape) > maxRank || t.Shape[len(t.Shape)-1]%layout.block != 0 {
		return 0, fmt.Errorf("shape %v, want 1 to %d dimensions, the last one a multiple of %d",
			t.Shape, maxRank, layout.block)
	}
	size := int64(layout.bytes)
	for i, dim := range t.Shape {
		if i == len(t.Shape)-1 {
			dim /= layout.block
		}
		if dim <= 0 || size > mem.MaxBytes/int64(dim) {
			return 0, fmt.Errorf("shape %v is impossible", t.Shape)
		}
		size *= int64(dim)
	}
	return size, nil
}

// stream writes the tensor's data and its padding. It works on so many chunks at a time as there are
// cores: each goroutine reads and encodes the rows of its chunk, then the chunks are written in order.
// Memory is bounded by the chunks, and the bytes do not depend on the number of cores.
func (t *tensorSource) stream(ctx context.Context, dst io.Writer) error {
	cols := t.Shape[len(t.Shape)-1]
	rows, written := 1, 0
	for _, dim := range t.Shape[:len(t.Shape)-1] {
		rows *= dim
	}
	// Rows of a chunk: at least one, however long it is.
	each := max(1, chunkValues/cols)
	workers := runtime.GOMAXPROCS(0)
	out, errs := make([][]byte, workers), make([]error, workers)
	buf := make([]float32, workers*cols)
	for r0 := 0; r0 < rows; r0 += workers * each {
		if err := ctx.Err(); err != nil {
			return diag.New(diag.ClassInterrupted, "tensor %q: %w", t.Name, err)
		}
		var wg sync.WaitGroup
		for i := range workers {
			out[i], errs[i] = out[i][:0], nil
			wg.Go(func() {
				row := buf[i*cols : (i+1)*cols]
				for at := r0 + i*each; at < min(rows, r0+(i+1)*each) && errs[i] == nil; at++ {
					if errs[i] = t.Row(row, at); errs[i] == nil {
						var err error
						if out[i], err = encode(out[i], row, t.Type); err != nil {
							errs[i] = diag.New(diag.ClassInput, "tensor %q: row %d: %w", t.Name, at, err)
						}
					}
				}
			})
		}
		wg.Wait()
		for i := range workers {
			if errs[i] != nil {
				return errs[i]
			}
			if _, err := dst.Write(out[i]); err != nil {
				return err
			}
			written += len(out[i])
		}
	}
	// The next tensor begins on the alignment.
	var zeros [defaultAlignment]byte
	_, err := dst.Write(zeros[:(defaultAlignment-written%defaultAlignment)%defaultAlignment])
	return err
}
