package gguf

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// Element types that only GGUF has, in lower case; f32, f16 and bf16 are those of package op.
const (
	q4_0 op.Type = "q4_0"
	q4_1 op.Type = "q4_1"
	q5_0 op.Type = "q5_0"
	q5_1 op.Type = "q5_1"
	q8_0 op.Type = "q8_0"
	q4K  op.Type = "q4_k"
	q5K  op.Type = "q5_k"
	q6K  op.Type = "q6_k"
)

// maxBlock is the largest number of values of a block.
const maxBlock = 256

// layout is how a type stores values: blocks of bytes, and how one block becomes float32. Types with blocks of one
// value need no decode: they are those of package number.
type layout struct {
	id     uint32 // in the tensor table
	block  int    // values
	bytes  int    // of a block
	decode func(dst []float32, b []byte)
}

// layouts has a row for each type that can be read.
var layouts = map[op.Type]layout{
	op.F32:  {0, 1, 4, nil},
	op.F16:  {1, 1, 2, nil},
	op.BF16: {30, 1, 2, nil},
	q4_0:    {2, 32, 18, decodeQ4_0},
	q4_1:    {3, 32, 20, decodeQ4_1},
	q5_0:    {6, 32, 22, decodeQ5_0},
	q5_1:    {7, 32, 24, decodeQ5_1},
	q8_0:    {8, 32, 34, decodeQ8_0},
	q4K:     {12, 256, 144, decodeQ4K},
	q5K:     {13, 256, 176, decodeQ5K},
	q6K:     {14, 256, 210, decodeQ6K},
}

// ggmlTypes names every type number, so that an unsupported one is refused by its name.
var ggmlTypes = map[uint32]op.Type{
	0: op.F32, 1: op.F16, 2: q4_0, 3: q4_1, 6: q5_0, 7: q5_1, 8: q8_0, 12: q4K, 13: q5K, 14: q6K, 30: op.BF16,
	9: "q8_1", 10: "q2_k", 11: "q3_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
	20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
	29: "iq1_m",
	34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4", 41: "q1_0",
}

// typeHint is the way out where a tensor's type cannot be read.
const typeHint = "download or make the file in a supported type, " +
	"for example: llama-quantize --allow-requantize IN.gguf OUT.gguf Q4_K_M"

// supportedTypes lists the types that can be read, in the order of their numbers.
func supportedTypes() string {
	types := slices.SortedFunc(maps.Keys(layouts),
		func(a, b op.Type) int { return cmp.Compare(layouts[a].id, layouts[b].id) })
	names := make([]string, len(types))
	for i, elementType := range types {
		names[i] = strings.ToUpper(string(elementType))
	}
	return strings.Join(names, ", ")
}

// Tensor is a stored tensor: its element type in lower case ("f16", "q4_k"), its shape with the
// slowest dimension first (the file's dimensions backwards), and its bytes: rows of the last
// dimension, each a whole number of blocks.
type Tensor struct {
	Name  string
	Type  op.Type
	Shape []int
	Data  []byte
}

// Rows returns the number of rows of the tensor as a matrix [Rows, Cols]: all dimensions but the last.
func (t *Tensor) Rows() int {
	rows := 1
	for _, dim := range t.Shape[:len(t.Shape)-1] {
		rows *= dim
	}
	return rows
}

// Cols returns the last dimension.
func (t *Tensor) Cols() int { return t.Shape[len(t.Shape)-1] }

// slice returns part i of the first of at least two dimensions, without copying.
func (t *Tensor) slice(i int) (Tensor, error) {
	if len(t.Shape) < 2 || i < 0 || i >= t.Shape[0] {
		return Tensor{}, diag.New(diag.ClassInput, "slice tensor %q: part %d of shape %v", t.Name, i, t.Shape)
	}
	size := len(t.Data) / t.Shape[0]
	return Tensor{Name: t.Name, Type: t.Type, Shape: t.Shape[1:], Data: t.Data[i*size : (i+1)*size : (i+1)*size]}, nil
}

// Read writes columns [col0, col1) of rows [row0, row1) of the matrix [Rows, Cols] to dst as float32,
// row by row; len(dst) is exactly their number. Quantised values are those of the format's reference,
// bit by bit.
func (t *Tensor) Read(dst []float32, row0, row1, col0, col1 int) error {
	return rowReader{t.Name, t.Rows(), t.Cols(), t.row}.read(dst, row0, row1, col0, col1)
}

// rowReader reads a matrix [rows, cols] row by row.
type rowReader struct {
	name       string
	rows, cols int
	decode     func(dst []float32, row, col int) // len(dst) values of a row from column col on
}

// read checks the range and decodes it to dst.
func (r rowReader) read(dst []float32, row0, row1, col0, col1 int) error {
	if row0 < 0 || row1 < row0 || row1 > r.rows || col0 < 0 || col1 < col0 || col1 > r.cols {
		return diag.New(diag.ClassInput, "read tensor %q: rows [%d, %d) and columns [%d, %d), want within [%d, %d]",
			r.name, row0, row1, col0, col1, r.rows, r.cols)
	}
	width := col1 - col0
	if want := (row1 - row0) * width; len(dst) != want {
		return diag.New(diag.ClassInput, "read tensor %q: room for %d values, want %d", r.name, len(dst), want)
	}
	return mem.CatchFault(func() {
		for row := row0; row < row1; row++ {
			r.decode(dst[:width], row, col0)
			dst = dst[width:]
		}
	})
}

// row decodes len(dst) values of row r from column col on; the range was checked.
func (t *Tensor) row(dst []float32, r, col int) {
	layout := layouts[t.Type]
	stride := t.Cols() / layout.block * layout.bytes
	src := t.Data[r*stride : (r+1)*stride]
	if layout.block == 1 {
		number.Decode(dst, src[col*layout.bytes:], t.Type)
		return
	}
	// The first and the last block may be needed in part.
	src = src[col/layout.block*layout.bytes:]
	for skip := col % layout.block; len(dst) > 0; skip = 0 {
		block := src[:layout.bytes]
		if skip == 0 && len(dst) >= layout.block {
			layout.decode(dst[:layout.block], block)
			dst = dst[layout.block:]
		} else {
			var whole [maxBlock]float32
			layout.decode(whole[:layout.block], block)
			dst = dst[copy(dst, whole[skip:layout.block]):]
		}
		src = src[layout.bytes:]
	}
}
