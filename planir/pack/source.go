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

// Matrix is a Source over stored little-endian numbers of type f32, f16 or bf16: row-major [K,N],
// or with transposed row-major [N,K] (the weight of a torch Linear).
func Matrix(b []byte, t op.Type, k, n int, transposed bool) (Source, error) {
	if t != op.F32 && t != op.F16 && t != op.BF16 {
		return nil, diag.New(diag.ClassInput, "read matrix: unknown stored type %q, want one of f32, f16, bf16", t)
	}
	if k < 1 || k > maxDim || n < 1 || n > maxDim {
		return nil, diag.New(diag.ClassInput, "read matrix: got shape [%d,%d], want dimensions 1..%d", k, n, maxDim)
	}
	if want := int64(k) * int64(n) * int64(t.Bytes()); int64(len(b)) != want {
		return nil, diag.New(diag.ClassInput, "read matrix [%d,%d] of %s: got %d bytes, want %d", k, n, t, len(b), want)
	}
	return &matrix{b: b, t: t, k: k, n: n, transposed: transposed}, nil
}

// Floats is a Source over row-major values [K,N].
func Floats(v []float32, k, n int) (Source, error) {
	if k < 1 || k > maxDim || n < 1 || n > maxDim || int64(len(v)) != int64(k)*int64(n) {
		return nil, diag.New(diag.ClassInput, "read matrix: got %d values for shape [%d,%d]", len(v), k, n)
	}
	return &matrix{v: v, k: k, n: n}, nil
}

type matrix struct {
	b          []byte
	v          []float32 // instead of b
	t          op.Type
	k, n       int
	transposed bool
}

func (m *matrix) Shape() (int, int) { return m.k, m.n }

func (m *matrix) Read(dst []float32, k0, k1, n0, n1 int) error {
	size := m.t.Bytes()
	if m.transposed {
		for n := n0; n < n1; n++ {
			number.Decode(dst[(n-n0)*(k1-k0):(n-n0+1)*(k1-k0)], m.b[(n*m.k+k0)*size:], m.t)
		}
		return nil
	}
	// Small blocks, so that neither the rows read nor the columns written fall out of the cache.
	const blockK, blockN = 16, 64
	var block [blockK * blockN]float32
	for nb := n0; nb < n1; nb += blockN {
		w := min(blockN, n1-nb)
		for kb := k0; kb < k1; kb += blockK {
			h := min(blockK, k1-kb)
			for i := range h {
				row := block[i*blockN : i*blockN+w]
				at := (kb+i)*m.n + nb
				if m.v != nil {
					copy(row, m.v[at:])
				} else {
					number.Decode(row, m.b[at*size:], m.t)
				}
			}
			for j := range w {
				col := dst[(nb-n0+j)*(k1-k0)+kb-k0:][:h]
				for i := range col {
					col[i] = block[i*blockN+j]
				}
			}
		}
	}
	return nil
}

// Interleave is the Source whose columns are columns[0] columns of srcs[0], then columns[1] of
// srcs[1], and so on in turn until all are used up together.
func Interleave(srcs []Source, columns []int) (Source, error) {
	if len(srcs) == 0 || len(srcs) != len(columns) {
		return nil, diag.New(diag.ClassInput, "interleave: got %d sources and %d column counts", len(srcs), len(columns))
	}
	s := &interleaved{srcs: srcs, columns: columns}
	groups := 0
	for i, src := range srcs {
		k, n := src.Shape()
		if columns[i] < 1 || n%columns[i] != 0 {
			return nil, diag.New(diag.ClassInput, "interleave: source %d has %d columns, want a multiple of %d", i, n, columns[i])
		}
		if i == 0 {
			s.k, groups = k, n/columns[i]
		}
		if k != s.k || n/columns[i] != groups {
			return nil, diag.New(diag.ClassInput, "interleave: source %d is [%d,%d], want [%d,%d]", i, k, n, s.k, groups*columns[i])
		}
		s.width += columns[i]
	}
	if int64(s.width)*int64(groups) > maxDim {
		return nil, diag.New(diag.ClassInput, "interleave: got %d columns, want at most %d", int64(s.width)*int64(groups), maxDim)
	}
	s.n = s.width * groups
	return s, nil
}

type interleaved struct {
	srcs    []Source
	columns []int
	width   int // columns of one turn
	k, n    int
}

func (s *interleaved) Shape() (int, int) { return s.k, s.n }

func (s *interleaved) Read(dst []float32, k0, k1, n0, n1 int) error {
	for n := n0; n < n1; {
		group, in := n/s.width, n%s.width
		i := 0
		for in >= s.columns[i] {
			in -= s.columns[i]
			i++
		}
		run := min(s.columns[i]-in, n1-n)
		at := group*s.columns[i] + in
		if err := s.srcs[i].Read(dst[(n-n0)*(k1-k0):(n-n0+run)*(k1-k0)], k0, k1, at, at+run); err != nil {
			return err
		}
		n += run
	}
	return nil
}

// Slice is the Source of rows [k0,k1) and columns [n0,n1) of src. A packed weight in
// blocks agrees with the packing of the whole only if k0 is a multiple of their length (BlockK, Block128).
func Slice(src Source, k0, k1, n0, n1 int) (Source, error) {
	k, n := src.Shape()
	if k0 < 0 || k0 >= k1 || k1 > k || n0 < 0 || n0 >= n1 || n1 > n {
		return nil, diag.New(diag.ClassInput, "slice matrix: rows [%d,%d), columns [%d,%d) outside [%d,%d]", k0, k1, n0, n1, k, n)
	}
	return &slice{src: src, k0: k0, k1: k1, n0: n0, n1: n1}, nil
}

type slice struct {
	src            Source
	k0, k1, n0, n1 int
}

func (s *slice) Shape() (int, int) { return s.k1 - s.k0, s.n1 - s.n0 }

func (s *slice) Read(dst []float32, k0, k1, n0, n1 int) error {
	return s.src.Read(dst, s.k0+k0, s.k0+k1, s.n0+n0, s.n0+n1)
}

// Plus is the Source with v added to every element.
func Plus(src Source, v float32) Source { return &plus{src, v} }

type plus struct {
	src Source
	v   float32
}

func (s *plus) Shape() (int, int) { return s.src.Shape() }

func (s *plus) Read(dst []float32, k0, k1, n0, n1 int) error {
	if err := s.src.Read(dst, k0, k1, n0, n1); err != nil {
		return err
	}
	for i := range dst[:(k1-k0)*(n1-n0)] {
		dst[i] += s.v
	}
	return nil
}

// ScaleRows is the Source with row k multiplied by factors[k]; DivideColumns the one with column n divided by
// factors[n]. Factors are finite and positive, and as many as src has rows or columns.
func ScaleRows(src Source, factors []float32) (Source, error) {
	k, _ := src.Shape()
	return scale(src, factors, true, k, "rows")
}

// DivideColumns: see ScaleRows.
func DivideColumns(src Source, factors []float32) (Source, error) {
	_, n := src.Shape()
	return scale(src, factors, false, n, "columns")
}

func scale(src Source, factors []float32, rows bool, want int, what string) (Source, error) {
	if len(factors) != want {
		return nil, diag.New(diag.ClassInput, "scale matrix: got %d factors, want one for each of %d %s", len(factors), want, what)
	}
	for i, f := range factors {
		if !finite(f) || f <= 0 {
			return nil, diag.New(diag.ClassInput, "scale matrix: factor %d is %v, want a finite number above 0", i, f)
		}
	}
	return &scaled{src, factors, rows}, nil
}

type scaled struct {
	Source
	factors []float32
	rows    bool
}

func (s *scaled) Read(dst []float32, k0, k1, n0, n1 int) error {
	if err := s.Source.Read(dst, k0, k1, n0, n1); err != nil {
		return err
	}
	for n := n0; n < n1; n++ {
		col := dst[(n-n0)*(k1-k0) : (n-n0+1)*(k1-k0)]
		if s.rows {
			for i, f := range s.factors[k0:k1] {
				col[i] *= f
			}
			continue
		}
		for i := range col {
			col[i] /= s.factors[n]
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

// Tensor is a Source over a stored tensor: row-major [K,N], or with transposed row-major [N,K].
func Tensor(t Stored, k, n int, transposed bool) (Source, error) {
	if b, ok := t.Plain(); ok {
		return Matrix(b, t.Type(), k, n, transposed)
	}
	if k < 1 || k > maxDim || n < 1 || n > maxDim {
		return nil, diag.New(diag.ClassInput, "read matrix: got shape [%d,%d], want dimensions 1..%d", k, n, maxDim)
	}
	return &tensor{t, k, n, transposed}, nil
}

type tensor struct {
	t          Stored
	k, n       int
	transposed bool
}

func (s *tensor) Shape() (int, int) { return s.k, s.n }

func (s *tensor) Read(dst []float32, k0, k1, n0, n1 int) error {
	if s.transposed {
		return s.t.Read(dst[:(k1-k0)*(n1-n0)], n0, n1, k0, k1)
	}
	row := make([]float32, n1-n0)
	for k := k0; k < k1; k++ {
		if err := s.t.Read(row, k, k+1, n0, n1); err != nil {
			return err
		}
		for i, v := range row {
			dst[i*(k1-k0)+k-k0] = v
		}
	}
	return nil
}
