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

// TileBytes is the packed size of one tile of K rows in layout N32.
func TileBytes(scheme string, rows int) (int64, error) {
	if rows < 1 || rows > maxDim {
		return 0, diag.New(diag.ClassInput, "tile size of scheme %q: got %d rows, want 1..%d", scheme, rows, maxDim)
	}
	kk := int64(rows)
	switch scheme {
	case "w32":
		return 4 * TileN * kk, nil
	case "q8c":
		return TileN*((kk+3)&^3) + 8*TileN, nil
	case "q4b32", "q4b128":
		block := q4Block(scheme)
		return int64((rows+block-1)/block) * int64(q4Bytes(block)), nil
	case "q4c":
		return int64((rows+BlockK-1)/BlockK)*16*BlockK + 4*TileN, nil
	case "w16":
		return 2 * TileN * kk, nil
	}
	return 0, diag.New(diag.ClassInput, "tile size: unknown weight scheme %q, want one of w32, w16, q8c, q4c, q4b32, q4b128", scheme)
}

// Bytes is the packed size of a weight in any layout, of all its experts.
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

// Expert is the spec of one expert's matrix.
func Expert(spec op.WeightSpec) op.WeightSpec {
	spec.Experts = 0
	return spec
}

// Columns is the part of a packed weight that holds columns [n0,n1): its own spec, and where its
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
	if size, err := rowElement(spec); spec.Layout == op.RowsLayout && spec.K == 1 && err == nil {
		return part, int64(n0 * size), int64(part.N * size), nil
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
	// Rows in front matter only to error feedback, which carries their errors into the rows that are packed. Without
	// it, or without blocks, they are cut off.
	rowCount, cols := src.Shape()
	blocks := spec.Layout != op.RowsLayout && (spec.Scheme == "q4b32" || spec.Scheme == "q4b128")
	front := rowCount - spec.K // rows that are not packed
	if front > 0 && (!blocks || imp.rank == 0) {
		var err error
		if src, err = Slice(src, front, rowCount, 0, cols); err != nil {
			return err
		}
		imp, front = imp.rows(front), 0
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
		packer := tilePacker{spec: spec, src: src, front: front, rows: rows, buf: make([]float32, rows*TileN)}
		if blocks {
			packer.imp, packer.feed = imp, newFeedback(imp, q4Block(spec.Scheme), -8)
		} else if spec.Scheme == "q4c" {
			packer.imp, packer.feed = imp, newFeedback(imp, BlockK, -7)
		}
		if spec.Layout == Onnx {
			packer.onnx = newOnnxPacker(dst, scalesAt, spec, rows)
			return func(index int) error { return packer.pack(nil, index) }
		}
		return func(index int) error { return packer.pack(dst[index*tile:(index+1)*tile], index) }
	})
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

// Unpack writes the values that a packed weight stands for to dst, row-major [K,N].
func Unpack(dst []float32, spec op.WeightSpec, packed []byte) error {
	total, err := Bytes(spec)
	if err != nil {
		return err
	}
	if int64(len(packed)) != total {
		return diag.New(diag.ClassInput, "unpack weight %q: got %d bytes, want %d", spec.Name, len(packed), total)
	}
	if spec.Experts != 0 || int64(len(dst)) != int64(spec.K)*int64(spec.N) {
		return diag.New(diag.ClassInput, "unpack weight %q: destination has %d values, want %d", spec.Name, len(dst),
			int64(spec.K)*int64(spec.N))
	}
	if spec.Layout == op.RowsLayout {
		number.Decode(dst, packed, op.Type(spec.Scheme))
		return nil
	}
	if spec.Layout == Onnx {
		return unpackOnnx(dst, spec, packed)
	}
	count := tiles(spec.N)
	tile := int(total) / count
	return parallel(count, func() func(int) error {
		return func(index int) error {
			unpackTile(dst, spec, packed[index*tile:(index+1)*tile], index*TileN)
			return nil
		}
	})
}

// UnpackTile writes the values [rows,TileN] that one tile of layout N32 stands for to dst.
func UnpackTile(dst []float32, scheme string, rows int, tile []byte) {
	unpackTile(dst, op.WeightSpec{K: rows, N: TileN, Scheme: scheme}, tile, 0)
}

// tiles is how many tiles hold so many columns; the last one may be padded.
func tiles(n int) int { return (n + TileN - 1) / TileN }

// rowElement is the size in bytes of an element of a plain row-major weight.
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

// tilePacker packs tiles one after another through one buffer of column-major values.
type tilePacker struct {
	spec  op.WeightSpec
	src   Source
	front int       // rows of src in front of those that are packed
	rows  int       // that buf holds
	buf   []float32 // [TileN,rows]

	imp    *Importance // of 4-bit values, nil: all errors count alike
	feed   *feedback   // of 4-bit values, nil: rows do not make up for each other's errors
	search blockSearch
	codes  [Block128]int32  // of 4-bit values: those of one block of a column
	held   [TileN][]float32 // of q4c: the columns in buf

	onnx *onnxPacker // nil: layout N32
}

// read fills the buffer with rows [k0,k1) of a tile and returns its columns; missing ones are nil.
func (p *tilePacker) read(tile, k0, k1 int) (cols [TileN][]float32, err error) {
	n0 := tile * TileN
	n1 := min(n0+TileN, p.spec.N)
	values := p.buf[:(k1-k0)*(n1-n0)]
	if err := p.src.Read(values, k0, k1, n0, n1); err != nil {
		return cols, diag.New(diag.ClassOf(err), "pack weight %q: %w", p.spec.Name, err)
	}
	for column := range n1 - n0 {
		cols[column] = values[column*(k1-k0) : (column+1)*(k1-k0)]
	}
	return cols, nil
}

// refuse says which value of the weight cannot be packed, and why.
func (p *tilePacker) refuse(value float32, row, column int, why string) error {
	return diag.New(diag.ClassInput, "pack weight %q: value %v at row %d, column %d %s", p.spec.Name, value, row,
		column, why).
		WithHint("the stored tensor is damaged or was exported from a diverged model")
}

// absmax returns the largest magnitude, or an error for a value that is not finite. k0 and column locate the
// first one.
func (p *tilePacker) absmax(values []float32, k0, column int) (float32, error) {
	var top uint32
	for _, value := range values { // magnitudes have the order of their bits; infinity and NaN are above all others
		top = max(top, math.Float32bits(value)&^(1<<31))
	}
	if top < 0xff<<23 {
		return math.Float32frombits(top), nil
	}
	for i, value := range values {
		if !finite(value) {
			return 0, p.refuse(value, k0+i, column, "is not finite")
		}
	}
	panic("BUG: pack: magnitude and finite disagree")
}

// pack writes a tile to dst, which is not used for layout Onnx. It reads as many rows at a time as the buffer holds;
// rows in front of those that are packed only feed their errors forward.
func (p *tilePacker) pack(dst []byte, tile int) error {
	var scale [TileN]float32 // of a column; of q8c complete only after all rows were seen
	var sum [TileN]int32
	var err error
	switch {
	case p.spec.Scheme == "q8c" && p.rows < p.spec.K:
		err = p.columnScales(&scale, tile)
	case p.spec.Scheme == "q4c":
		err = p.searchColumns(&scale, tile)
	}
	if err != nil {
		return err
	}
	if p.feed != nil {
		clear(p.feed.state) // errors of another tile's columns
	}
	all := p.front + p.spec.K
	for k0 := 0; k0 < all; {
		k1 := min(k0+p.rows, all)
		if k0 < p.front {
			k1 = min(k1, p.front)
		}
		if err := p.packChunk(dst, tile, k0, k1, &scale, &sum); err != nil {
			return err
		}
		k0 = k1
	}
	p.packTail(dst, tile, &scale, &sum)
	return nil
}

// packChunk packs rows [k0,k1) of a tile.
func (p *tilePacker) packChunk(dst []byte, tile, k0, k1 int, scale *[TileN]float32, sum *[TileN]int32) error {
	cols, err := p.read(tile, k0, k1)
	if err != nil {
		return err
	}
	switch p.spec.Scheme {
	case "w32":
		return p.packW32(dst[k0*4*TileN:k1*4*TileN], &cols, tile, k0)
	case "w16":
		return p.packW16(dst[k0*2*TileN:k1*2*TileN], &cols, tile, k0)
	case "q8c":
		return p.rowsQ8C(dst, &cols, tile, k0, k1, scale, sum)
	case "q4b32", "q4b128":
		return p.rowsQ4(dst, &cols, tile, k0, k1)
	case "q4c":
		p.packQ4C(dst[k0*16:len(dst)-4*TileN], &cols, k1-k0, k0, scale)
	}
	return nil
}

// packTail writes the scales and sums that stand behind the codes of a tile.
func (p *tilePacker) packTail(dst []byte, tile int, scale *[TileN]float32, sum *[TileN]int32) {
	switch {
	case p.spec.Scheme == "q8c" && p.onnx != nil:
		p.onnx.q8cScales(p.spec.N, tile, scale)
	case p.spec.Scheme == "q8c":
		tail := dst[len(dst)-8*TileN:]
		putScales(tail, scale)
		for column := range TileN {
			binary.LittleEndian.PutUint32(tail[4*TileN+4*column:], uint32(sum[column]))
		}
	case p.spec.Scheme == "q4c":
		putScales(dst[len(dst)-4*TileN:], scale)
	}
}

// putScales writes a float32 for each column.
func putScales(dst []byte, scale *[TileN]float32) {
	for column := range TileN {
		binary.LittleEndian.PutUint32(dst[4*column:], math.Float32bits(scale[column]))
	}
}

// rowsQ8C packs rows [k0,k1) in q8c. Where they are all rows, it determines the scales first.
func (p *tilePacker) rowsQ8C(
	dst []byte, cols *[TileN][]float32, tile, k0, k1 int, scale *[TileN]float32, sum *[TileN]int32,
) error {
	if p.rows >= p.spec.K {
		for column, col := range cols {
			top, err := p.absmax(col, k0, tile*TileN+column)
			if err != nil {
				return err
			}
			scale[column] = top / 127
		}
	}
	if p.onnx == nil {
		packQ8C(dst[k0*TileN:], cols, k1-k0, scale, sum)
		return nil
	}
	packQ8C(p.onnx.chunk, cols, k1-k0, scale, sum)
	p.onnx.q8c(p.spec.N, tile, k0, k1)
	return nil
}

// rowsQ4 packs rows [k0,k1) in blocks of 4 bits.
func (p *tilePacker) rowsQ4(dst []byte, cols *[TileN][]float32, tile, k0, k1 int) error {
	block := q4Block(p.spec.Scheme)
	var out []byte
	switch {
	case k0 < p.front: // not packed
	case p.onnx != nil:
		out = p.onnx.chunk
	default:
		out = dst[(k0-p.front)/block*q4Bytes(block):]
	}
	if err := p.packQ4(out, cols, block, k1-k0, tile, k0); err != nil {
		return err
	}
	if p.onnx != nil && k0 >= p.front {
		p.onnx.q4(block, p.spec.K, p.spec.N, tile, k0-p.front, k1-p.front)
	}
	return nil
}

// columnScales is the extra pass over columns that are too long for the buffer.
func (p *tilePacker) columnScales(scale *[TileN]float32, tile int) error {
	for k0 := 0; k0 < p.spec.K; k0 += p.rows {
		cols, err := p.read(tile, k0, min(k0+p.rows, p.spec.K))
		if err != nil {
			return err
		}
		for column, col := range cols {
			top, err := p.absmax(col, k0, tile*TileN+column)
			if err != nil {
				return err
			}
			scale[column] = max(scale[column], top/127)
		}
	}
	return nil
}

// packW32 writes rows of a tile as float32, columns side by side.
func (p *tilePacker) packW32(dst []byte, cols *[TileN][]float32, tile, k0 int) error {
	for column, col := range cols {
		if _, err := p.absmax(col, k0, tile*TileN+column); err != nil {
			return err
		}
	}
	for at := range len(dst) / (4 * TileN) {
		row := dst[at*4*TileN : (at+1)*4*TileN]
		for column, col := range cols {
			var value float32
			if col != nil {
				value = col[at]
			}
			binary.LittleEndian.PutUint32(row[4*column:], math.Float32bits(value))
		}
	}
	return nil
}

// packQ8C quantises rows of a tile with known column scales and adds to the column sums.
func packQ8C(dst []byte, cols *[TileN][]float32, rows int, scale *[TileN]float32, sum *[TileN]int32) {
	const step = 256 // rows whose packed bytes stay in the first-level cache over all columns
	for k0 := 0; k0 < rows; k0 += step {
		k1 := min(k0+step, rows)
		out := dst[k0*TileN : (k0+(k1-k0+3)&^3)*TileN]
		for column, col := range cols {
			scaleOf := scale[column]
			if col == nil || scaleOf == 0 { // an all-zero column, or one whose scale underflows
				for at := 4 * column; at < len(out); at += 4 * TileN {
					binary.LittleEndian.PutUint32(out[at:], 0)
				}
				continue
			}
			part := col[k0:k1]
			acc := int32(0)
			at := 4 * column
			for len(part) >= 4 {
				q0, q1, q2, q3 := quant8(part[0], scaleOf), quant8(part[1], scaleOf), quant8(part[2], scaleOf),
					quant8(part[3], scaleOf)
				acc += q0 + q1 + q2 + q3
				binary.LittleEndian.PutUint32(out[at:],
					uint32(uint8(q0))|uint32(uint8(q1))<<8|uint32(uint8(q2))<<16|uint32(uint8(q3))<<24)
				part = part[4:]
				at += 4 * TileN
			}
			if len(part) > 0 {
				var last uint32
				for i, value := range part {
					code := quant8(value, scaleOf)
					acc += code
					last |= uint32(uint8(code)) << (8 * i)
				}
				binary.LittleEndian.PutUint32(out[at:], last)
			}
			sum[column] += acc
		}
	}
}

// roundEven rounds |x| < 2^22 to the nearest integer, halves to even: adding 1.5*2^23 leaves the
// integer in the low mantissa bits.
func roundEven(value float32) int32 {
	return int32(math.Float32bits(value+12582912)) - 0x4B400000
}

// finite reports whether a value is neither NaN nor infinite: not all bits of its exponent are set.
func finite(x float32) bool { return math.Float32bits(x)>>23&0xff != 0xff }

// abs clears the sign bit, also of NaN.
func abs(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// quant8 is the 8-bit code of a value; -128 is not used.
func quant8(x, scale float32) int32 { return max(-127, min(127, roundEven(x/scale))) }

// q4Block is the number of rows that share a scale, q4Bytes the size of their block of a tile.
func q4Block(scheme string) int {
	if scheme == "q4b128" {
		return Block128
	}
	return BlockK
}

// q4Bytes is the size of a block of a tile: codes, then a scale of each column.
func q4Bytes(block int) int { return 16*block + 2*TileN }

// packW16 rounds rows of a tile to bfloat16.
func (p *tilePacker) packW16(dst []byte, cols *[TileN][]float32, tile, k0 int) error {
	for column, col := range cols {
		if _, err := p.absmax(col, k0, tile*TileN+column); err != nil {
			return err
		}
		at := column%16*4 + column/16*2
		for row := range len(dst) / (2 * TileN) {
			var half uint16
			if col != nil {
				if half = number.FloatToBrain(col[row]); half&0x7f80 == 0x7f80 {
					return p.refuse(col[row], k0+row, tile*TileN+column, "is too large for bf16")
				}
			}
			binary.LittleEndian.PutUint16(dst[2*TileN*row+at:], half)
		}
	}
	return nil
}

// packQ4 quantises rows of a tile in blocks of block rows. With feedback dst may be empty: the errors of the rows are
// carried on all the same.
func (p *tilePacker) packQ4(dst []byte, cols *[TileN][]float32, block, rows, tile, k0 int) error {
	size := q4Bytes(block)
	for column, col := range cols {
		if _, err := p.absmax(col, k0, tile*TileN+column); err != nil {
			return err
		}
	}
	for index := 0; index*block < rows; index++ {
		var nibbles, scales []byte
		if len(dst) > 0 {
			nibbles, scales = dst[index*size:index*size+16*block], dst[index*size+16*block:(index+1)*size]
			clearNibbles(nibbles)
		}
		from, to := index*block, min((index+1)*block, rows)
		for column, col := range cols {
			var half uint16
			if col != nil {
				var err error
				if half, err = p.packQ4Column(nibbles, col[from:to], tile, column, k0+from); err != nil {
					return err
				}
			}
			if scales != nil {
				binary.LittleEndian.PutUint16(scales[2*column:], half)
			}
		}
	}
	return nil
}

// packQ4Column quantises a block of a column, whose first value is row k0 of the weight, and returns its scale. nibbles
// is nil where only the errors count.
func (p *tilePacker) packQ4Column(nibbles []byte, values []float32, tile, column, k0 int) (scale uint16, err error) {
	// Rows that matter more weigh more in the search for the scale.
	var weight []float32
	if p.imp != nil {
		weight = p.imp.weight[k0 : k0+len(values)]
	}
	// With feedback a row's target makes up for the errors of the rows before it.
	want := values
	if p.feed != nil {
		want = p.feed.targets(values, k0, column)
	}
	// The scale is stored as a half, so the search compares halves.
	scale = p.search.scale(want, weight)
	if scale&0x7c00 == 0x7c00 {
		at := largest(want)
		return 0, p.refuse(want[at], k0+at, tile*TileN+column, "is too large for a 16-bit block scale")
	}
	step := number.HalfToFloat(scale)
	codes := p.codes[:len(values)]
	switch {
	case p.feed != nil:
		p.feed.codes(codes, values, want, k0, column, step)
	case step != 0:
		for i, value := range values {
			codes[i] = quant4(value / step)
		}
	}
	if step != 0 && nibbles != nil {
		putNibbles(nibbles, codes, column)
	}
	return scale, nil
}

// clearNibbles makes all nibbles zeros: a nibble is a code plus 8.
func clearNibbles(dst []byte) {
	for i := range dst {
		dst[i] = 0x88
	}
}

// putNibbles writes the codes of a column of a tile, from the first row of a block. The columns 0 to 15 are in the low
// nibbles, 16 to 31 in the high ones.
func putNibbles(block []byte, codes []int32, column int) {
	shift := 4 * (column / 16)
	keep := byte(0xf0 >> shift)
	block = block[column%16*4:]
	for i, code := range codes {
		at := i>>2<<6 + i&3
		block[at] = block[at]&keep | byte(code+8)<<shift
	}
}

// searchColumns finds the scales of the 4-bit columns of a tile, in two more passes over what is longer than the
// buffer.
func (p *tilePacker) searchColumns(scale *[TileN]float32, tile int) error {
	var search columnSearch
	for pass := range 2 {
		for k0 := 0; k0 < p.spec.K; k0 += p.rows {
			if pass == 0 || p.rows < p.spec.K {
				cols, err := p.read(tile, k0, min(k0+p.rows, p.spec.K))
				if err != nil {
					return err
				}
				p.held = cols
			}
			for column, col := range p.held {
				if col == nil {
					continue
				}
				if pass == 0 {
					top, err := p.absmax(col, k0, tile*TileN+column)
					if err != nil {
						return err
					}
					search[column].top = max(search[column].top, top)
					continue
				}
				var weight []float32
				if p.imp != nil {
					weight = p.imp.weight[k0:]
				}
				search.add(column, col, weight)
			}
		}
	}
	for column := range scale {
		scale[column] = search.scale(column)
	}
	return nil
}

// packQ4C quantises rows of a tile, from row k0 of the weight, with known column scales.
func (p *tilePacker) packQ4C(dst []byte, cols *[TileN][]float32, rows, k0 int, scale *[TileN]float32) {
	dst = dst[:(rows+BlockK-1)/BlockK*16*BlockK]
	clearNibbles(dst)
	for column, col := range cols {
		step := scale[column]
		if col == nil {
			continue
		}
		for index := 0; index*BlockK < rows; index++ {
			values := col[index*BlockK : min((index+1)*BlockK, rows)]
			codes := p.codes[:len(values)]
			first := k0 + index*BlockK
			switch {
			case p.feed != nil:
				p.feed.codes(codes, values, p.feed.targets(values, first, column), first, column, step)
			case step != 0:
				for i, value := range values {
					codes[i] = max(-7, quant4(value/step))
				}
			}
			if step != 0 {
				putNibbles(dst[index*16*BlockK:], codes, column)
			}
		}
	}
}

// unpackTile is the inverse of packing a tile in layout N32, scheme by scheme.
func unpackTile(dst []float32, spec op.WeightSpec, tile []byte, n0 int) {
	width := min(TileN, spec.N-n0)
	// at is the part of a row of dst that the tile fills; padding columns are left out.
	at := func(row int) []float32 { return dst[row*spec.N+n0 : row*spec.N+n0+width] }
	switch spec.Scheme {
	case "w32":
		for row := range spec.K {
			number.Decode(at(row), tile[row*4*TileN:], op.F32)
		}
	case "q8c":
		var scale [TileN]float32
		number.Decode(scale[:], tile[len(tile)-8*TileN:], op.F32)
		for k := range spec.K {
			row := at(k)
			for column := range row {
				// Four rows of a column lie side by side: the operands of one dot-product instruction.
				row[column] = float32(int8(tile[k>>2<<7+column*4+k&3])) * scale[column]
			}
		}
	case "q4c":
		var scale [TileN]float32
		number.Decode(scale[:], tile[len(tile)-4*TileN:], op.F32)
		for k := range spec.K {
			row := at(k)
			for column := range row {
				// Columns 0 to 15 are in the low nibbles, 16 to 31 in the high ones.
				nibbles := tile[k>>2<<6+column%16*4+k&3] >> (4 * (column / 16)) & 15
				row[column] = float32(int32(nibbles)-8) * scale[column]
			}
		}
	case "w16":
		for k := range spec.K {
			row := at(k)
			from := tile[2*TileN*k : 2*TileN*(k+1)]
			for column := range row {
				at := column%16*4 + column/16*2
				row[column] = math.Float32frombits(uint32(from[at])<<16 | uint32(from[at+1])<<24)
			}
		}
	case "q4b32", "q4b128":
		var scale [TileN]float32
		size := q4Block(spec.Scheme)
		for k := range spec.K {
			block := tile[k/size*q4Bytes(size):]
			if k%size == 0 {
				number.Decode(scale[:], block[16*size:], op.F16)
			}
			i := k % size
			row := at(k)
			for column := range row {
				nibbles := block[i>>2<<6+column%16*4+i&3] >> (4 * (column / 16)) & 15
				row[column] = float32(int32(nibbles)-8) * scale[column]
			}
		}
	}
}

// packRows converts to the plain row-major form in an element type, a few rows at a time.
func packRows(dst []byte, spec op.WeightSpec, element op.Type, src Source) error {
	// Sources read by columns and rows are written, so blocks of both keep reads and writes near each other.
	const blockK, blockN = 16, 256
	size := element.Bytes()
	refuse := (&tilePacker{spec: spec}).refuse
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
				for at := k0; at < k1; at++ {
					row := dst[(at*spec.N+n0)*size:]
					for column := n0; column < n1; column++ {
						value := buf[(column-n0)*(k1-k0)+at-k0]
						if !finite(value) {
							return refuse(value, at, column, "is not finite")
						}
						if spec.Scheme == "w16" { // as N32 holds it
							value = math.Float32frombits(uint32(number.FloatToBrain(value)) << 16)
						}
						if why := putElement(row[(column-n0)*size:], element, value); why != "" {
							return refuse(value, at, column, why)
						}
					}
				}
			}
			return nil
		}
	})
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
