package pack

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// tilePacker packs tiles one after another through one buffer of column-major values.
type tilePacker struct {
	spec  op.WeightSpec
	most  int32 // mostCode of its scheme
	src   Source
	front int       // rows of src in front of those that are packed
	rows  int       // that buf holds
	buf   []float32 // [TileN,rows]

	imp    *Importance // of 6-bit and 4-bit values, nil: all errors count alike
	feed   *feedback   // of the same, nil: rows do not make up for each other's errors
	search blockSearch
	codes  [Block128]int32  // of the same: those of one block of a column
	held   [TileN][]float32 // of q6c and q4c: the columns in buf

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
	return refuse(p.spec.Name, value, row, column, why)
}

// refuse says which value of a weight cannot be packed, and why.
func refuse(name string, value float32, row, column int, why string) error {
	return diag.New(diag.ClassInput, "pack weight %q: value %v at row %d, column %d %s", name, value, row, column, why).
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
	case p.most > 0:
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
	case "q6c":
		p.packQ6C(dst[k0/sixRows*sixGroup:], &cols, k1-k0, k0, scale)
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
	case p.spec.Scheme == "q4c", p.spec.Scheme == "q6c":
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

// Codes of q6c lie in groups of sixRows rows, sixGroup bytes each: three planes. They are 1 to 63 and stand for as much
// above or below sixZero.
const (
	sixRows  = 16
	sixPlane = 4 * TileN
	sixGroup = 3 * sixPlane
	sixZero  = 32
)

// packQ6C quantises rows of a tile, from row k0 of the weight, with known column scales.
func (p *tilePacker) packQ6C(dst []byte, cols *[TileN][]float32, rows, k0 int, scale *[TileN]float32) {
	groups := (rows + sixRows - 1) / sixRows
	clear(dst[:groups*sixGroup])
	for column, col := range cols {
		for first := 0; first < groups*sixRows; first += BlockK {
			var codes []int32
			if first < len(col) {
				codes = p.columnCodes(col[first:min(first+BlockK, len(col))], k0+first, column, scale[column])
			}
			for i := first; i < min(first+BlockK, groups*sixRows); i++ {
				code := int32(sixZero)
				if i-first < len(codes) {
					code += codes[i-first]
				}
				putSix(dst[i/sixRows*sixGroup:], code, i%sixRows, column)
			}
		}
	}
}

// putSix writes the code of a row of a group, which was cleared.
func putSix(group []byte, code int32, row, column int) {
	quad, at := row/4, 4*column+row%4
	group[quad/2*sixPlane+at] |= byte(code&15) << (quad % 2 * 4)
	group[2*sixPlane+at] |= byte(code>>4) << (2 * quad)
}

// sixAt returns the code of a row of a tile.
func sixAt(tile []byte, row, column int) int32 {
	group, quad, at := tile[row/sixRows*sixGroup:], row%sixRows/4, 4*column+row%4
	return int32(group[quad/2*sixPlane+at]>>(quad%2*4)&15 | group[2*sixPlane+at]>>(2*quad)&3<<4)
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

// quant8 returns the 8-bit code of a value; -128 is not used.
func quant8(x, scale float32) int32 { return max(-127, min(127, roundEven(x/scale))) }

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

// searchColumns finds the scales of the columns of a tile in two passes, the first for their largest magnitudes. What
// is longer than the buffer is read in both.
func (p *tilePacker) searchColumns(scale *[TileN]float32, tile int) error {
	search := newColumnSearch(p.most)
	for k0 := 0; k0 < p.spec.K; k0 += p.rows {
		cols, err := p.read(tile, k0, min(k0+p.rows, p.spec.K))
		if err != nil {
			return err
		}
		p.held = cols
		for column, col := range cols {
			top, err := p.absmax(col, k0, tile*TileN+column)
			if err != nil {
				return err
			}
			search.columns[column].top = max(search.columns[column].top, top)
		}
	}

	for k0 := 0; k0 < p.spec.K; k0 += p.rows {
		if p.rows < p.spec.K {
			var err error
			if p.held, err = p.read(tile, k0, min(k0+p.rows, p.spec.K)); err != nil {
				return err
			}
		}
		var weight []float32
		if p.imp != nil {
			weight = p.imp.weight[k0:]
		}
		for column, col := range p.held {
			search.add(column, col, weight)
		}
	}

	for column := range scale {
		scale[column] = search.scale(column)
	}
	return nil
}

// columnCodes returns the codes of a block of a column, whose first value is row first of the weight, with a known
// scale.
func (p *tilePacker) columnCodes(values []float32, first, column int, step float32) []int32 {
	codes, most := p.codes[:len(values)], p.most
	switch {
	case p.feed != nil:
		p.feed.codes(codes, values, p.feed.targets(values, first, column), first, column, step)
	case step == 0:
		clear(codes)
	default:
		for i, value := range values {
			codes[i] = max(-most, min(most, roundEven(value/step)))
		}
	}
	return codes
}

// packQ4C quantises rows of a tile, from row k0 of the weight, with known column scales.
func (p *tilePacker) packQ4C(dst []byte, cols *[TileN][]float32, rows, k0 int, scale *[TileN]float32) {
	dst = dst[:(rows+BlockK-1)/BlockK*16*BlockK]
	clearNibbles(dst)
	for column, col := range cols {
		if col == nil {
			continue
		}
		for index := 0; index*BlockK < rows; index++ {
			values := col[index*BlockK : min((index+1)*BlockK, rows)]
			codes := p.columnCodes(values, k0+index*BlockK, column, scale[column])
			putNibbles(dst[index*16*BlockK:], codes, column)
		}
	}
}
