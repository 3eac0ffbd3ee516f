package pack

import (
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

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

// unpackTile is the inverse of packing a tile in layout N32: its columns are those of dst from n0 on. Padding columns
// are left out.
func unpackTile(dst []float32, spec op.WeightSpec, tile []byte, n0 int) {
	width := min(TileN, spec.N-n0)
	at := func(row int) []float32 { return dst[row*spec.N+n0 : row*spec.N+n0+width] }
	formats[spec.Scheme].unpack(at, spec.K, tile)
}

// unpackW32 reads rows of float32.
func unpackW32(at func(row int) []float32, rows int, tile []byte) {
	for k := range rows {
		number.Decode(at(k), tile[k*4*TileN:], op.F32)
	}
}

// unpackW16 reads rows of bfloat16, whose columns c and 16+c lie side by side.
func unpackW16(at func(row int) []float32, rows int, tile []byte) {
	for k := range rows {
		row := at(k)
		from := tile[2*TileN*k : 2*TileN*(k+1)]
		for column := range row {
			at := column%16*4 + column/16*2
			row[column] = math.Float32frombits(uint32(from[at])<<16 | uint32(from[at+1])<<24)
		}
	}
}

// unpackQ8C reads 8-bit codes. Four rows of a column lie side by side: the operands of one dot-product instruction.
func unpackQ8C(at func(row int) []float32, rows int, tile []byte) {
	var scale [TileN]float32
	number.Decode(scale[:], tile[len(tile)-8*TileN:], op.F32)
	for k := range rows {
		row := at(k)
		for column := range row {
			row[column] = float32(int8(tile[k>>2<<7+column*4+k&3])) * scale[column]
		}
	}
}

// unpackQ6C reads 6-bit codes.
func unpackQ6C(at func(row int) []float32, rows int, tile []byte) {
	var scale [TileN]float32
	number.Decode(scale[:], tile[len(tile)-4*TileN:], op.F32)
	for k := range rows {
		row := at(k)
		for column := range row {
			row[column] = float32(sixAt(tile, k, column)-sixZero) * scale[column]
		}
	}
}

// unpackQ4C reads 4-bit codes with a scale for each column.
func unpackQ4C(at func(row int) []float32, rows int, tile []byte) {
	var scale [TileN]float32
	number.Decode(scale[:], tile[len(tile)-4*TileN:], op.F32)
	for k := range rows {
		unpackNibbles(at(k), tile, k, &scale)
	}
}

// unpackBlocks reads 4-bit codes in blocks of so many rows, behind which the scales of the block stand.
func unpackBlocks(at func(row int) []float32, rows int, tile []byte, size int) {
	var scale [TileN]float32
	for k := range rows {
		block := tile[k/size*q4Bytes(size):]
		if k%size == 0 {
			number.Decode(scale[:], block[16*size:], op.F16)
		}
		unpackNibbles(at(k), block, k%size, &scale)
	}
}

// unpackNibbles reads a row of 4-bit codes. Columns 0 to 15 are in the low nibbles, 16 to 31 in the high ones.
func unpackNibbles(out []float32, codes []byte, row int, scale *[TileN]float32) {
	for column := range out {
		nibble := codes[row>>2<<6+column%16*4+row&3] >> (4 * (column / 16)) & 15
		out[column] = float32(int32(nibble)-8) * scale[column]
	}
}
