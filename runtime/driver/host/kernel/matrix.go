package kernel

// Matrix is rows of numbers in memory: element (r, c) is Data[r*Stride+c]. The call says how many rows and columns it
// takes.
type Matrix[T any] struct {
	Data   []T
	Stride int // elements from one row to the next; with 0 all rows are the same one
}

// Rows returns the matrix whose rows begin stride elements apart in data.
func Rows[T any](data []T, stride int) Matrix[T] { return Matrix[T]{Data: data, Stride: stride} }

// From returns the matrix that begins with element (r, c).
func (a Matrix[T]) From(r, c int) Matrix[T] { return Matrix[T]{a.Data[r*a.Stride+c:], a.Stride} }

// row returns the first n elements of row r.
func (a Matrix[T]) row(r, n int) []T { return a.Data[r*a.Stride : r*a.Stride+n] }
