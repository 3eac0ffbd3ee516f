package pack

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// Source is a matrix W [K,N] that can be read piece by piece, so that a large one need never be
// held as float32. Read is safe for concurrent use.
type Source interface {
	Shape() (k, n int)
	// Read stores rows [k0,k1) of columns [n0,n1) column by column: element W[k,n] at
	// dst[(n-n0)*(k1-k0) + k-k0]. The range lies inside the shape and dst has that many elements.
	Read(dst []float32, k0, k1, n0, n1 int) error
}

// Matrix returns a Source over stored little-endian numbers of type f32, f16 or bf16: row-major [K,N],
// or with transposed row-major [N,K] (the weight of a torch Linear).
func Matrix(data []byte, element op.Type, rows, cols int, transposed bool) (Source, error) {
	if element != op.F32 && element != op.F16 && element != op.BF16 {
		return nil, diag.New(diag.ClassInput, "read matrix: unknown stored type %q, want one of f32, f16, bf16",
			element)
	}
	if rows < 1 || rows > maxDim || cols < 1 || cols > maxDim {
		return nil, diag.New(diag.ClassInput, "read matrix: got shape [%d,%d], want dimensions 1..%d", rows, cols,
			maxDim)
	}
	if want := int64(rows) * int64(cols) * int64(element.Bytes()); int64(len(data)) != want {
		return nil, diag.New(diag.ClassInput, "read matrix [%d,%d] of %s: got %d bytes, want %d", rows, cols, element,
			len(data), want)
	}
	return &matrix{bytes: data, element: element, k: rows, n: cols, transposed: transposed}, nil
}

// Floats returns a Source over row-major values [K,N].
func Floats(values []float32, rows, cols int) (Source, error) {
	if rows < 1 || rows > maxDim || cols < 1 || cols > maxDim || int64(len(values)) != int64(rows)*int64(cols) {
		return nil, diag.New(diag.ClassInput, "read matrix: got %d values for shape [%d,%d]", len(values), rows, cols)
	}
	return &matrix{values: values, k: rows, n: cols}, nil
}

// matrix is a Source over bytes or numbers in memory.
type matrix struct {
	bytes      []byte
	values     []float32 // instead of bytes
	element    op.Type   // of bytes
	k, n       int
	transposed bool
}

// Shape is [k, n].
func (m *matrix) Shape() (int, int) { return m.k, m.n }

// Read transposes in blocks that fit the cache where the matrix is stored by rows.
func (m *matrix) Read(dst []float32, k0, k1, n0, n1 int) error {
	size := m.element.Bytes()
	if m.transposed {
		for column := n0; column < n1; column++ {
			number.Decode(dst[(column-n0)*(k1-k0):(column-n0+1)*(k1-k0)], m.bytes[(column*m.k+k0)*size:], m.element)
		}
		return nil
	}
	// Small blocks, so that neither the rows read nor the columns written fall out of the cache.
	const blockK, blockN = 16, 64
	var block [blockK * blockN]float32
	for nb := n0; nb < n1; nb += blockN {
		width := min(blockN, n1-nb)
		for kb := k0; kb < k1; kb += blockK {
			height := min(blockK, k1-kb)
			for i := range height {
				row := block[i*blockN : i*blockN+width]
				at := (kb+i)*m.n + nb
				if m.values != nil {
					copy(row, m.values[at:])
				} else {
					number.Decode(row, m.bytes[at*size:], m.element)
				}
			}
			for j := range width {
				col := dst[(nb-n0+j)*(k1-k0)+kb-k0:][:height]
				for i := range col {
					col[i] = block[i*blockN+j]
				}
			}
		}
	}
	return nil
}

// Interleave returns the Source whose columns are columns[0] columns of srcs[0], then columns[1] of
// srcs[1], and so on in turn until all are used up together.
func Interleave(srcs []Source, columns []int) (Source, error) {
	if len(srcs) == 0 || len(srcs) != len(columns) {
		return nil, diag.New(diag.ClassInput, "interleave: got %d sources and %d column counts", len(srcs),
			len(columns))
	}
	made := &interleaved{srcs: srcs, columns: columns}

	groups := 0
	for i, src := range srcs {
		rows, cols := src.Shape()
		if columns[i] < 1 || cols%columns[i] != 0 {
			return nil, diag.New(diag.ClassInput, "interleave: source %d has %d columns, want a multiple of %d", i,
				cols, columns[i])
		}
		if i == 0 {
			made.k, groups = rows, cols/columns[i]
		}
		if rows != made.k || cols/columns[i] != groups {
			return nil, diag.New(diag.ClassInput, "interleave: source %d is [%d,%d], want [%d,%d]", i, rows, cols,
				made.k, groups*columns[i])
		}
		made.width += columns[i]
	}

	if int64(made.width)*int64(groups) > maxDim {
		return nil, diag.New(diag.ClassInput, "interleave: got %d columns, want at most %d",
			int64(made.width)*int64(groups), maxDim)
	}
	made.n = made.width * groups
	return made, nil
}

// interleaved is the Source that Interleave makes.
type interleaved struct {
	srcs    []Source
	columns []int // of each source in one turn
	width   int   // columns of one turn
	k, n    int
}

// Shape has the columns of all parts.
func (s *interleaved) Shape() (int, int) { return s.k, s.n }

// Read takes runs of columns from each source in turn.
func (s *interleaved) Read(dst []float32, k0, k1, n0, n1 int) error {
	for column := n0; column < n1; {
		group, in := column/s.width, column%s.width
		i := 0
		for in >= s.columns[i] {
			in -= s.columns[i]
			i++
		}

		run := min(s.columns[i]-in, n1-column)
		at := group*s.columns[i] + in
		if err := s.srcs[i].Read(dst[(column-n0)*(k1-k0):(column-n0+run)*(k1-k0)], k0, k1, at, at+run); err != nil {
			return err
		}
		column += run
	}
	return nil
}

// Slice returns the Source of rows [k0,k1) and columns [n0,n1) of src. A packed weight in
// blocks agrees with the packing of the whole only if k0 is a multiple of their length (BlockK, Block128).
func Slice(src Source, k0, k1, n0, n1 int) (Source, error) {
	rows, cols := src.Shape()
	if k0 < 0 || k0 >= k1 || k1 > rows || n0 < 0 || n0 >= n1 || n1 > cols {
		return nil, diag.New(diag.ClassInput, "slice matrix: rows [%d,%d), columns [%d,%d) outside [%d,%d]", k0, k1,
			n0, n1, rows, cols)
	}
	return &slice{src: src, k0: k0, k1: k1, n0: n0, n1: n1}, nil
}

// slice is the Source that Slice makes.
type slice struct {
	src            Source
	k0, k1, n0, n1 int
}

// Shape is that of the part.
func (s *slice) Shape() (int, int) { return s.k1 - s.k0, s.n1 - s.n0 }

// Read moves the range by where the part begins.
func (s *slice) Read(dst []float32, k0, k1, n0, n1 int) error {
	return s.src.Read(dst, s.k0+k0, s.k0+k1, s.n0+n0, s.n0+n1)
}

// Plus returns the Source with a number added to every element.
func Plus(src Source, addend float32) Source { return &plus{src, addend} }

// plus adds a number to every value of a source.
type plus struct {
	Source
	addend float32
}

// Read reads the source in place and adds to what it read.
func (s *plus) Read(dst []float32, k0, k1, n0, n1 int) error {
	if err := s.Source.Read(dst, k0, k1, n0, n1); err != nil {
		return err
	}
	for i := range dst[:(k1-k0)*(n1-n0)] {
		dst[i] += s.addend
	}
	return nil
}

// ScaleRows returns the Source with row k multiplied by factors[k]; DivideColumns the one with column n divided by
// factors[n]. Factors are finite and positive, and as many as src has rows or columns.
func ScaleRows(src Source, factors []float32) (Source, error) {
	rows, _ := src.Shape()
	return scale(src, factors, true, rows, "rows")
}

// DivideColumns is to columns what ScaleRows is to rows, with a quotient.
func DivideColumns(src Source, factors []float32) (Source, error) {
	_, cols := src.Shape()
	return scale(src, factors, false, cols, "columns")
}

// scale checks the factors, one for each row or column.
func scale(src Source, factors []float32, rows bool, want int, what string) (Source, error) {
	if len(factors) != want {
		return nil, diag.New(diag.ClassInput, "scale matrix: got %d factors, want one for each of %d %s",
			len(factors), want, what)
	}
	for i, factor := range factors {
		if !finite(factor) || factor <= 0 {
			return nil, diag.New(diag.ClassInput, "scale matrix: factor %d is %v, want a finite number above 0", i,
				factor)
		}
	}
	return &scaled{src, factors, rows}, nil
}

// scaled is the Source that ScaleRows and DivideColumns make.
type scaled struct {
	Source
	factors []float32
	rows    bool // multiply rows, else divide columns
}

// Read multiplies rows by their factors, or divides columns by theirs.
func (s *scaled) Read(dst []float32, k0, k1, n0, n1 int) error {
	if err := s.Source.Read(dst, k0, k1, n0, n1); err != nil {
		return err
	}
	for column := n0; column < n1; column++ {
		col := dst[(column-n0)*(k1-k0) : (column-n0+1)*(k1-k0)]
		if s.rows {
			for i, factor := range s.factors[k0:k1] {
				col[i] *= factor
			}
			continue
		}
		for i := range col {
			col[i] /= s.factors[column]
		}
	}
	return nil
}

// Stored is a stored tensor in whatever form: [rows,cols], or a vector as one row.
type Stored interface {
	Type() op.Type
	// Plain returns the stored bytes when they are little-endian f32, f16 or bf16 in order.
	Plain() ([]byte, bool)
	// Read writes columns [col0,col1) of rows [row0,row1) to dst, row by row.
	Read(dst []float32, row0, row1, col0, col1 int) error
}

// Tensor returns a Source over a stored tensor: row-major [K,N], or with transposed row-major [N,K].
func Tensor(stored Stored, rows, cols int, transposed bool) (Source, error) {
	if data, ok := stored.Plain(); ok {
		return Matrix(data, stored.Type(), rows, cols, transposed)
	}
	if rows < 1 || rows > maxDim || cols < 1 || cols > maxDim {
		return nil, diag.New(diag.ClassInput, "read matrix: got shape [%d,%d], want dimensions 1..%d", rows, cols,
			maxDim)
	}
	return &tensor{stored, rows, cols, transposed}, nil
}

// tensor is the Source over a stored form that must be decoded, such as GGUF's blocks.
type tensor struct {
	stored     Stored
	k, n       int
	transposed bool
}

// Shape is [k, n], whichever way the tensor is stored.
func (s *tensor) Shape() (int, int) { return s.k, s.n }

// Read gives columns one after the other: the rows of a tensor that is stored transposed, else gathered from its rows.
func (s *tensor) Read(dst []float32, k0, k1, n0, n1 int) error {
	if s.transposed {
		return s.stored.Read(dst[:(k1-k0)*(n1-n0)], n0, n1, k0, k1)
	}

	row := make([]float32, n1-n0) // stored rows become columns of dst
	for at := k0; at < k1; at++ {
		if err := s.stored.Read(row, at, at+1, n0, n1); err != nil {
			return err
		}
		for i, value := range row {
			dst[i*(k1-k0)+at-k0] = value
		}
	}
	return nil
}
