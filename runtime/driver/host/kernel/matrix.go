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

// at points to element (r, c).
func (a Matrix[T]) at(r, c int) *T { return &a.Data[r*a.Stride+c] }

// mustHold panics unless the matrix has m rows of n elements: assembly trusts its arguments.
func (a Matrix[T]) mustHold(m, n int) { _ = a.Data[(m-1)*a.Stride+n-1] }

// Quantised is rows of 8-bit codes: code c of row r stands for Scale[r] * (c-128).
type Quantised struct {
	Codes Matrix[uint8]
	Scale []float32     // of each row
	Sums  Matrix[int32] // of the blocks of each row, as BlockSums computes them; only 6-bit and 4-bit weights need them
}

// From returns the rows from r on.
func (a Quantised) From(r int) Quantised {
	return Quantised{Codes: a.Codes.From(r, 0), Scale: a.Scale[r:], Sums: a.Sums.From(r, 0)}
}

// mustHold panics unless there are m rows of k codes.
func (a Quantised) mustHold(m, k int) {
	a.Codes.mustHold(m, k)
	_ = a.Scale[m-1]
}

// PackedRows is M rows of K quantised activations, as PackRows writes them.
type PackedRows struct {
	Bytes []byte
	Scale []float32 // of each row
	M, K  int

	Next []byte // what the caller reads next, to be fetched while the last tile is multiplied; may be empty
}
