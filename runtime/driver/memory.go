package driver

import (
	"fmt"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
)

// Align is the alignment in bytes of buffers and weights: one cache line and one vector register.
const Align = 64

// AllocHost returns zeroed memory of the host as a buffer, for the processor of that name, which computes on it.
func AllocHost(name string, bytes int64) (Buffer, error) {
	if bytes < 0 || bytes > mem.MaxBytes {
		return nil, diag.New(diag.ClassInput, "allocate on %s: size %d bytes, want 0 to %d", name, bytes,
			mem.MaxBytes)
	}
	region, err := mem.Alloc(int(bytes), Align)
	if err != nil {
		return nil, fmt.Errorf("allocate on %s: %w", name, err)
	}
	return region, nil
}

// ImportHost makes aligned memory of the caller a buffer, for the processor of that name, which computes on memory of
// the host.
func ImportHost(name string, b []byte) (Buffer, error) {
	if !mem.Aligned(b, Align) {
		return nil, diag.New(diag.ClassInput, "import to %s: address of %d bytes is not a multiple of %d", name,
			len(b), Align)
	}
	return &imported{b}, nil
}

// imported is memory of the caller.
type imported struct{ b []byte }

// Bytes returns the memory as it was imported, nil after Close.
func (i *imported) Bytes() []byte { return i.b }
func (i *imported) Close() error  { i.b = nil; return nil }

// Window returns the memory from the first to the last element of the first rows of v (at least one). It
// returns an error where that does not lie inside the buffer, whatever the numbers of the view are.
func (v *View) Window(rows int) ([]byte, error) {
	if v.Buffer == nil {
		return nil, fmt.Errorf("no buffer")
	}
	data, size := v.Buffer.Bytes(), int64(v.Type.Bytes())
	// Offsets and strides are compared with the buffer before they are multiplied.
	have := int64(len(data))
	if rows < 1 || v.Stride < v.Cols || v.Offset < 0 || v.Offset > have || rows > 1 && int64(v.Stride) > have ||
		(int64(rows-1)*int64(v.Stride)+int64(v.Cols))*size > have-v.Offset {
		return nil, fmt.Errorf("view [%d,%d] of stride %d at byte %d does not fit its buffer of %d bytes", rows,
			v.Cols, v.Stride, v.Offset, have)
	}
	return data[v.Offset : v.Offset+(int64(rows-1)*int64(v.Stride)+int64(v.Cols))*size], nil
}
