package models

import (
	"fmt"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models/gguf"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
)

// Tensor is a stored tensor as Hugging Face names and shapes it, whatever file it lies in. Its memory
// is a read-only view of the mapped file, dead after Model.Close.
type Tensor interface {
	// Shape is the slowest dimension first: [rows, cols], or [n] for a vector, which is one row.
	Shape() []int
	// Type is the stored element type: "bf16", "q4_k".
	Type() op.Type
	// Data is the stored bytes. Form names how they become the tensor's values, "" when they are its values
	// in order; both together determine what Read returns.
	Data() []byte
	Form() string
	// Plain returns the stored bytes when they are the values in order, as little-endian f32, f16 or bf16.
	Plain() ([]byte, bool)
	// Read writes columns [col0,col1) of rows [row0,row1) to dst as float32, row by row. It is safe for
	// concurrent use.
	Read(dst []float32, row0, row1, col0, col1 int) error
}

// plainTensor is a tensor of a safetensors file.
type plainTensor struct{ t safetensors.Tensor }

// A plain tensor is stored as it is read: its bytes are its values in order.
func (p plainTensor) Shape() []int          { return p.t.Shape }
func (p plainTensor) Type() op.Type         { return p.t.Type }
func (p plainTensor) Data() []byte          { return p.t.Data }
func (p plainTensor) Form() string          { return "" }
func (p plainTensor) Plain() ([]byte, bool) { return p.t.Data, true }

// Read implements Tensor; the matrix has all dimensions but the last as rows.
func (p plainTensor) Read(dst []float32, row0, row1, col0, col1 int) error {
	rows, cols := matrixShape(p.t.Shape)
	inside := 0 <= row0 && row0 <= row1 && row1 <= rows && 0 <= col0 && col0 <= col1 && col1 <= cols
	if !inside || len(dst) != (row1-row0)*(col1-col0) {
		return diag.New(diag.ClassInternal, "read tensor %q: rows %d:%d, columns %d:%d of [%d,%d] to %d values",
			p.t.Name, row0, row1, col0, col1, rows, cols, len(dst))
	}
	width := col1 - col0
	for row := row0; row < row1; row++ {
		if err := p.t.Floats(dst[:width], row*cols+col0); err != nil {
			return fmt.Errorf("tensor %q: %w", p.t.Name, err)
		}
		dst = dst[width:]
	}
	return nil
}

// matrixShape returns the number of rows and columns of a stored tensor.
func matrixShape(shape []int) (rows, cols int) {
	rows, cols = 1, 1
	for i, dim := range shape {
		if i == len(shape)-1 {
			cols = dim
		} else {
			rows *= dim
		}
	}
	return rows, cols
}

var _ Tensor = gguf.View{}
