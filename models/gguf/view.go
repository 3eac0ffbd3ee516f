package gguf

import (
	"fmt"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Matrix is a tensor that can be read: what Export takes and what View is.
type Matrix interface {
	// Shape is the slowest dimension first: [rows, cols], or [n] for a vector, which is one row.
	Shape() []int
	// Read writes columns [col0, col1) of rows [row0, row1) to dst as float32, row by row.
	Read(dst []float32, row0, row1, col0, col1 int) error
}

// View is a stored tensor as Hugging Face names, shapes and orders it: a whole tensor, one expert of
// a stack or some rows of a fused one; rows and values may be stored in another form, which Read undoes.
type View struct {
	t     Tensor  // its rows from first on are the view's
	shape []int   // of the view
	first int     // row of t, or element of a vector
	heads int     // > 0: the rows of each of so many heads are stored as rotary pairs
	add   float32 // to every stored value
}

// Shape returns the shape the tensor has in a Hugging Face directory: [rows, cols] or [n].
func (v View) Shape() []int { return v.shape }

// Type returns the stored element type in lower case: "f32", "q4_k".
func (v View) Type() op.Type { return v.t.Type }

// Form names how stored bytes become the view's values, "" when they are its values in order. Data
// and Form together determine what Read returns.
func (v View) Form() string {
	switch {
	case v.heads > 0:
		return fmt.Sprintf("rotary-pairs/%d", v.heads)
	case v.add != 0:
		return fmt.Sprintf("add/%v", v.add)
	}
	return ""
}

// rows returns the number of rows as Read counts them: a vector is one.
func (v View) rows() int {
	if len(v.shape) == 1 {
		return 1
	}
	return v.shape[0]
}

// cols returns the number of columns, of a vector that of its elements.
func (v View) cols() int { return v.shape[len(v.shape)-1] }

// Data returns the stored bytes of the view, read-only and dead after File.Close.
func (v View) Data() []byte {
	if len(v.shape) == 1 && len(v.t.Shape) == 1 && v.t.Shape[0] != v.shape[0] { // a part of a vector
		size := layouts[v.t.Type].bytes
		return v.t.Data[v.first*size : (v.first+v.shape[0])*size]
	}
	// Bytes of a row of the stored tensor, whatever its type.
	stride := len(v.t.Data) / v.t.Rows()
	return v.t.Data[v.first*stride : (v.first+v.rows())*stride]
}

// Plain returns the stored bytes when they are the view's values in order, as little-endian f32, f16
// or bf16; false for all others.
func (v View) Plain() ([]byte, bool) {
	if v.Form() != "" || layouts[v.t.Type].block != 1 {
		return nil, false
	}
	return v.Data(), true
}

// Read writes columns [col0, col1) of rows [row0, row1) to dst as float32, row by row; a vector is
// one row. len(dst) is exactly their number.
func (v View) Read(dst []float32, row0, row1, col0, col1 int) error {
	return rowReader{v.t.Name, v.rows(), v.cols(), v.row}.read(dst, row0, row1, col0, col1)
}

// row decodes len(dst) values of row r from column col on; the range was checked.
func (v View) row(dst []float32, r, col int) {
	switch {
	case len(v.shape) == 2:
		if v.heads > 0 {
			r = rotaryPair(r, v.shape[0]/v.heads)
		}
		v.t.row(dst, v.first+r, col)
	case v.heads > 0: // of a bias the rows are its elements
		dim := v.shape[0] / v.heads
		for i := range dst {
			v.t.row(dst[i:i+1], 0, v.first+rotaryPair(col+i, dim))
		}
	default:
		v.t.row(dst, 0, v.first+col)
	}
	if v.add != 0 {
		for i := range dst {
			dst[i] += v.add
		}
	}
}

// rotaryPair returns where row r of heads of dim rows is stored by converters that put the two halves of
// a rotation beside each other: row i of the first half at 2i, of the second at 2i+1.
func rotaryPair(r, dim int) int {
	head, i := r/dim*dim, r%dim
	if i < dim/2 {
		return head + 2*i
	}
	return head + 2*(i-dim/2) + 1
}

// newView makes the view of a tensor, or of a part of it; vector and matrix shapes of one row differ between the two
// worlds, so the shape wanted decides. A part is one of as many rows as the tensor has: where the tensor has others,
// the part would be rows of another projection.
func newView(tensor Tensor, vector bool, part *span) (View, error) {
	// A vector's elements count as rows here, because they are rows of the matrix beside it.
	all := tensor.Rows()
	if vector {
		all = tensor.Cols()
	}
	whole := part == nil
	if whole {
		part = &span{0, all, all}
	}
	view := View{t: tensor, first: part.first}
	switch {
	case vector && tensor.Rows() == 1:
		inBlock := !whole && layouts[tensor.Type].block != 1
		if len(tensor.Shape) != 1 || part.of != all || inBlock {
			return view, diag.New(diag.ClassInput, "tensor %q: shape %v of type %s, want a vector of %d",
				tensor.Name, tensor.Shape, tensor.Type, part.of)
		}
		view.shape = []int{part.rows}
	case !vector && len(tensor.Shape) <= 2:
		if part.of != all {
			return view, diag.New(diag.ClassInput, "tensor %q: shape %v, want %d rows",
				tensor.Name, tensor.Shape, part.of)
		}
		view.shape = []int{part.rows, tensor.Cols()}
	default:
		return view, diag.New(diag.ClassInput, "tensor %q: shape %v, want %s",
			tensor.Name, tensor.Shape, map[bool]string{true: "a vector", false: "a matrix"}[vector])
	}
	return view, nil
}

// Rows returns rows [from, to) of a matrix, without copying; not of one with rows in another form.
func (v View) Rows(from, to int) (View, error) {
	if len(v.shape) != 2 || v.heads > 0 || from < 0 || to <= from || to > v.shape[0] {
		return v, diag.New(diag.ClassInput, "tensor %q: rows [%d, %d) of shape %v", v.t.Name, from, to, v.shape)
	}
	v.first, v.shape = v.first+from, []int{to - from, v.shape[1]}
	return v, nil
}

// rotary returns v with its rows stored as rotary pairs of heads.
func (v View) rotary(heads int) (View, error) {
	if heads < 1 || v.shape[0]%(2*heads) != 0 {
		return v, diag.New(diag.ClassInput, "tensor %q: %d rows, want an even number for each of %d heads",
			v.t.Name, v.shape[0], heads)
	}
	v.heads = heads
	return v, nil
}
