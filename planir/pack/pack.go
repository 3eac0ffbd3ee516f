// Package pack knows how a weight matrix becomes bytes that kernels read: tile layouts,
// quantisation of stored values, and tile ranges of packed weights.
//
// A weight W is [K,N], y[m,n] = sum over k of x[m,k] W[k,n]. Everything is little endian. In the
// layout N32 the N columns lie in tiles of TileN, the last one padded with zero weights of zero
// scale; a packed weight is the sequence of its tiles, so that any tile range is a valid packed
// weight of those columns. One tile is, by scheme:
//
//	w32    [K][32] float32
//	q8c    [Kp/4][32][4] int8 (Kp: K rounded up to 4), 32 float32 column scales, 32 int32 column
//	       sums. W = q*scale with scale = absmax/127 and q in -127..127.
//	q6c    [Kp/16] groups (Kp: K rounded up to 16) of [3][32][4] bytes, 32 float32 column scales. A group is four
//	       quads of k, each in the order of q8c: bytes 0 hold the low four bits of the codes of quad 0 and, as
//	       high nibbles, quad 1, bytes 1 those of quads 2 and 3, bytes 2 the high two bits of all four, those of
//	       quad 0 lowest. W = (code-32)*scale with codes 1..63 and a searched scale, never negative.
//	q4b32  [Kp/32] blocks (Kp: K rounded up to 32) of 512 nibble bytes and 32 float16 column
//	       scales. Nibble bytes are [8][64]: byte j of row k4 belongs to k = 4*k4 + j%4 of the
//	       block, its low nibble to column j/4, its high nibble to column 16 + j/4.
//	       W = (nibble-8)*scale, with the scale of either sign that is found best (search.go).
//	q4b128 the same with blocks of 128: [Kp/128] blocks (Kp: K rounded up to 128) of nibble bytes
//	       [32][64] and 32 float16 column scales.
//	q4c    [Kp/32] blocks (Kp: K rounded up to 32) of 512 nibble bytes as those of q4b32, 32 float32 column scales.
//	       W = (nibble-8)*scale with nibbles 1..15 and a searched scale, never negative.
//	w16    [K][32] bfloat16, columns c and 16+c side by side: element 2*c + h of a row is column
//	       16*h + c, so that a 32-bit word is two columns. Values are rounded to nearest, ties to even.
//
// In the layout Onnx a weight is what operators of ONNX take: parts that start on multiples of 64 bytes, with zeros
// between and behind them. The stored values are those of N32, those of w16 rounded to float16. The parts are, by
// scheme:
//
//	w32    [K][N] float32
//	q8c    [K][N] int8; N float32 column scales
//	q4b32  [N][ceil(K/32)][16] nibble bytes, the low nibble of byte j that of row 2*j of the block, the high
//	       one that of row 2*j+1, rows beyond K being 8; [N][ceil(K/32)] float32 scales
//	q4b128 the same with blocks of 128
//	q4c    [K][N] 4-bit two's complement, the first of two values in the low nibble; N float32 column scales
//	w16    [K][N] float16; values beyond it are refused
//
// The layout op.RowsLayout is the plain row-major matrix in f32, bf16 or f16.
//
// Packing is a pure function of the stored values: it does not depend on the number of cores nor
// on the architecture (no fused multiply-add, no assembly).
package pack

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

const (
	// N32 is the name of the tiled layout.
	N32 = op.TilesLayout
	// Onnx is the name of the layout of ONNX operators.
	Onnx = op.OnnxLayout
	// TileN is the number of columns of one tile.
	TileN = 32
	// BlockK is the number of rows that share one scale in scheme q4b32, and the granularity of splits along K
	// in all schemes but q4b128, where it is Block128.
	BlockK = 32
	// Block128 is the number of rows that share one scale in scheme q4b128.
	Block128 = 128

	maxDim     = 1 << 24
	maxExperts = 4096
	maxRowsK   = 1 << 14 // rows of a tile held as float32 at once: 2 MiB
)

// TileBytes returns the packed size of one tile of K rows in layout N32.
func TileBytes(scheme string, rows int) (int64, error) {
	if rows < 1 || rows > maxDim {
		return 0, diag.New(diag.ClassInput, "tile size of scheme %q: got %d rows, want 1..%d", scheme, rows, maxDim)
	}
	form, known := formats[scheme]
	if !known {
		return 0, diag.New(diag.ClassInput, "tile size: unknown weight scheme %q, want one of %s", scheme,
			schemesWith(func(*format) bool { return true }))
	}
	return form.tile(int64(rows)), nil
}

// Bytes returns the packed size of a weight in any layout, of all its experts.
func Bytes(spec op.WeightSpec) (int64, error) {
	if spec.Experts != 0 {
		if spec.Experts < 0 || spec.Experts > maxExperts {
			return 0, diag.New(diag.ClassInput, "weight %q: got %d experts, want 0..%d", spec.Name, spec.Experts,
				maxExperts)
		}
		one, err := Bytes(Expert(spec))
		return int64(spec.Experts) * one, err
	}
	if err := shape(spec); err != nil {
		return 0, err
	}
	switch spec.Layout {
	case N32:
		tile, err := TileBytes(spec.Scheme, spec.K)
		if err != nil {
			return 0, diag.New(diag.ClassOf(err), "weight %q: %w", spec.Name, err)
		}
		return tile * int64(tiles(spec.N)), nil
	case op.RowsLayout:
		size, err := rowElement(spec)
		if err != nil {
			return 0, err
		}
		return int64(spec.K) * int64(spec.N) * int64(size), nil
	case Onnx:
		_, at, scales, err := OnnxParts(spec)
		return at + onnxRound(4*scales), err
	}
	return 0, diag.New(diag.ClassInput, "weight %q: unknown layout %q, want one of %q, %q, %q", spec.Name,
		spec.Layout, N32, Onnx, op.RowsLayout)
}

// shape bounds the dimensions, so that no size overflows an int64.
func shape(spec op.WeightSpec) error {
	if spec.K < 1 || spec.K > maxDim || spec.N < 1 || spec.N > maxDim {
		return diag.New(diag.ClassInput, "weight %q: got shape [%d,%d], want dimensions 1..%d", spec.Name, spec.K,
			spec.N, maxDim)
	}
	return nil
}

// Expert returns the spec of one expert's matrix.
func Expert(spec op.WeightSpec) op.WeightSpec {
	spec.Experts = 0
	return spec
}

// Columns returns the part of a packed weight that holds columns [n0,n1): its own spec, and where its
// bytes lie in the whole, from the first expert's first to the last expert's last. n0 is a multiple of
// TileN, n1 too or N. Layout Onnx and plain rows have no column parts but the whole and, rows, those of a single row.
func Columns(spec op.WeightSpec, n0, n1 int) (part op.WeightSpec, offset, bytes int64, err error) {
	total, err := Bytes(spec)
	if err != nil {
		return op.WeightSpec{}, 0, 0, err
	}
	if n0 < 0 || n1 > spec.N || n0 >= n1 {
		return op.WeightSpec{}, 0, 0, diag.New(diag.ClassInput, "weight %q: columns [%d,%d) outside 0..%d", spec.Name,
			n0, n1, spec.N)
	}

	part = spec
	part.N = n1 - n0
	if part.N == spec.N {
		return part, 0, total, nil
	}

	if spec.Experts > 0 {
		stride := total / int64(spec.Experts)
		_, offset, bytes, err = Columns(Expert(spec), n0, n1)
		return part, offset, int64(spec.Experts-1)*stride + bytes, err
	}

	if spec.Layout == op.RowsLayout && spec.K == 1 {
		size := int64(op.Type(spec.Scheme).Bytes())
		return part, int64(n0) * size, int64(part.N) * size, nil
	}
	if spec.Layout != N32 {
		return op.WeightSpec{}, 0, 0, diag.New(diag.ClassInput, "weight %q: layout %q has no column ranges",
			spec.Name, spec.Layout)
	}
	if n0%TileN != 0 || (n1%TileN != 0 && n1 != spec.N) {
		return op.WeightSpec{}, 0, 0, diag.New(diag.ClassInput,
			"weight %q: columns [%d,%d) of %d do not fall on tiles of %d", spec.Name, n0, n1, spec.N, TileN)
	}

	tile := total / int64(tiles(spec.N))
	return part, int64(n0/TileN) * tile, int64(tiles(part.N)) * tile, nil
}

// Pack writes the packed form of src, a matrix (one expert's), to dst, whose length is Bytes(spec). It refuses NaN and
// infinite values, and values too large for a 16-bit format, naming weight, row and column.
func Pack(dst []byte, spec op.WeightSpec, src Source) error { return PackFor(dst, spec, src, nil) }

// PackFor is Pack where imp says which errors matter (nil: all alike); its first rows are those of src. Where src has
// more rows than spec, the last spec.K rows are packed, and get the values that packing all rows would give them. The
// rows in front of them are a whole number of blocks.
func PackFor(dst []byte, spec op.WeightSpec, src Source, imp *Importance) error {
	if err := fitsSpec(int64(len(dst)), spec, src, imp); err != nil {
		return err
	}
	if spec.Layout == Onnx && spec.Scheme == "q4c" { // neighbouring tiles share bytes there
		return packOnnxQ4C(dst, spec, src, imp)
	}

	inBlocks := spec.Scheme == "q4b32" || spec.Scheme == "q4b128"
	hasBlocks := inBlocks && spec.Layout != op.RowsLayout
	rowCount, _ := src.Shape()
	front := rowCount - spec.K // rows that are not packed
	// They matter only to error feedback, which carries their errors into the rows that are packed.
	if front > 0 && (!hasBlocks || imp.rank == 0) {
		var err error
		if src, imp, err = withoutFront(src, imp, front); err != nil {
			return err
		}
		front = 0
	}

	var scalesAt int64 // in layout Onnx
	switch spec.Layout {
	case op.RowsLayout:
		return packRows(dst, spec, op.Type(spec.Scheme), src)
	case Onnx:
		values, at, scales, err := OnnxParts(spec)
		if err != nil {
			return err
		}
		scalesAt = at
		clearPadding(dst, values, at, scales)
		switch spec.Scheme {
		case "w32":
			return packRows(dst, spec, op.F32, src)
		case "w16":
			return packRows(dst, spec, op.F16, src)
		}
	}

	// Tiles are independent of each other: each goroutine packs some of them with a buffer of its own.
	count := tiles(spec.N)
	tile := len(dst) / count
	rows := min(rowCount, maxRowsK)
	return parallel(count, func() func(int) error {
		packer := tilePacker{spec: spec, most: mostCode(spec.Scheme), src: src, front: front, rows: rows,
			buf: make([]float32, rows*TileN)}
		packer.weighErrors(imp, hasBlocks)
		if spec.Layout == Onnx {
			packer.onnx = newOnnxPacker(dst, scalesAt, spec, rows)
			return func(index int) error { return packer.pack(nil, index) }
		}
		return func(index int) error { return packer.pack(dst[index*tile:(index+1)*tile], index) }
	})
}

// withoutFront cuts off the rows in front of those that are packed, in a source and its importance.
func withoutFront(src Source, imp *Importance, front int) (Source, *Importance, error) {
	rows, cols := src.Shape()
	rest, err := Slice(src, front, rows, 0, cols)
	if err != nil {
		return nil, nil, err
	}
	return rest, imp.rows(front), nil
}

// weighErrors tells a packer which errors matter, if its scheme has codes.
func (p *tilePacker) weighErrors(imp *Importance, hasBlocks bool) {
	switch {
	case hasBlocks:
		p.imp, p.feed = imp, newFeedback(imp, q4Block(p.spec.Scheme), -8, 7)
	case p.most > 0:
		p.imp, p.feed = imp, newFeedback(imp, BlockK, -p.most, p.most)
	}
}

// fitsSpec compares the destination's bytes, the source and the importance with what is to be packed.
func fitsSpec(bytes int64, spec op.WeightSpec, src Source, imp *Importance) error {
	total, err := Bytes(spec)
	if err != nil {
		return err
	}
	if spec.Experts != 0 {
		return diag.New(diag.ClassInternal, "pack weight %q: %d experts, want one at a time", spec.Name, spec.Experts)
	}
	if bytes != total {
		return diag.New(diag.ClassInput, "pack weight %q: destination has %d bytes, want %d", spec.Name, bytes, total)
	}
	rows, cols := src.Shape()
	inFront := imp != nil && rows >= spec.K && (rows-spec.K)%q4Block(spec.Scheme) == 0
	if rows != spec.K && !inFront || cols != spec.N {
		return diag.New(diag.ClassInput, "pack weight %q: source is [%d,%d], want [%d,%d]",
			spec.Name, rows, cols, spec.K, spec.N)
	}
	if imp != nil && imp.k < rows {
		return diag.New(diag.ClassInput, "pack weight %q: importance is that of %d rows, want %d", spec.Name, imp.k,
			rows)
	}
	return nil
}

// tiles returns how many tiles hold so many columns; the last one may be padded.
func tiles(n int) int { return (n + TileN - 1) / TileN }

// rowElement returns the size in bytes of an element of a plain row-major weight.
func rowElement(spec op.WeightSpec) (int, error) {
	switch element := op.Type(spec.Scheme); element {
	case op.F32, op.F16, op.BF16:
		return element.Bytes(), nil
	}
	return 0, diag.New(diag.ClassInput, "weight %q: scheme %q has no layout %q, want one of f32, bf16, f16",
		spec.Name, spec.Scheme, op.RowsLayout)
}

// parallel calls work for 0..count-1 on several goroutines, each with its own worker, and returns
// the error of the lowest index, so that the outcome does not depend on their number.
func parallel(count int, worker func() func(int) error) error {
	var (
		mu     sync.Mutex
		next   int
		failed = count
		first  error
		wg     sync.WaitGroup
	)
	for range min(count, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			work := worker()
			for {
				mu.Lock()
				i := next
				next++
				stop := i >= failed
				mu.Unlock()
				if stop {
					return
				}
				if err := work(i); err != nil {
					mu.Lock()
					if i < failed {
						failed, first = i, err
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}

// packRows converts to the plain row-major form in an element type, a few rows at a time. Sources are read by columns
// and rows are written, so blocks of both keep reads and writes near each other.
func packRows(dst []byte, spec op.WeightSpec, element op.Type, src Source) error {
	const blockK, blockN = 16, 256
	return parallel((spec.K+blockK-1)/blockK, func() func(int) error {
		buf := make([]float32, blockK*blockN)
		return func(i int) error {
			k0 := i * blockK
			k1 := min(k0+blockK, spec.K)
			for n0 := 0; n0 < spec.N; n0 += blockN {
				n1 := min(n0+blockN, spec.N)
				if err := src.Read(buf[:(k1-k0)*(n1-n0)], k0, k1, n0, n1); err != nil {
					return diag.New(diag.ClassOf(err), "pack weight %q: %w", spec.Name, err)
				}
				for row := k0; row < k1; row++ {
					if err := putRow(dst, &spec, element, buf[row-k0:(k1-k0)*(n1-n0)], k1-k0, row, n0); err != nil {
						return err
					}
				}
			}
			return nil
		}
	})
}

// putRow writes elements of a row, from column n0 on: every stride-th of values.
func putRow(dst []byte, spec *op.WeightSpec, element op.Type, values []float32, stride, row, n0 int) error {
	size := element.Bytes()
	out := dst[(row*spec.N+n0)*size:]
	for i := 0; i*stride < len(values); i++ {
		value := values[i*stride]
		if !finite(value) {
			return refuse(spec.Name, value, row, n0+i, "is not finite")
		}
		if spec.Scheme == "w16" { // as N32 holds it
			value = math.Float32frombits(uint32(number.FloatToBrain(value)) << 16)
		}
		if why := putElement(out[i*size:], element, value); why != "" {
			return refuse(spec.Name, value, row, n0+i, why)
		}
	}
	return nil
}

// putElement writes a value as an element. It returns why the type cannot hold the value, "" where it can.
func putElement(dst []byte, element op.Type, value float32) (why string) {
	switch element {
	case op.F32:
		binary.LittleEndian.PutUint32(dst, math.Float32bits(value))
	case op.BF16:
		half := number.FloatToBrain(value)
		if half&0x7f80 == 0x7f80 {
			return "is too large for bf16"
		}
		binary.LittleEndian.PutUint16(dst, half)
	case op.F16:
		half := number.FloatToHalf(value)
		if half&0x7c00 == 0x7c00 {
			return "is too large for f16"
		}
		binary.LittleEndian.PutUint16(dst, half)
	}
	return ""
}
