package pack

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// onnxAlign is what every part of a weight in layout Onnx starts on a multiple of.
const onnxAlign = 64

// OnnxParts says where the parts of one matrix (no experts) in layout Onnx lie: its values are the first values bytes,
// its scales float32 numbers start at byte scalesAt. scales is 0 for w32 and w16, which have none.
func OnnxParts(spec op.WeightSpec) (values, scalesAt, scales int64, err error) {
	if spec.Experts != 0 {
		return 0, 0, 0, diag.New(diag.ClassInternal, "weight %q: parts of %d experts, want those of one", spec.Name,
			spec.Experts)
	}
	if spec.Layout != Onnx {
		return 0, 0, 0, diag.New(diag.ClassInput, "weight %q: layout %q has no parts, want %q", spec.Name,
			spec.Layout, Onnx)
	}
	if err := shape(spec); err != nil {
		return 0, 0, 0, err
	}

	form := formats[spec.Scheme]
	if form == nil || form.onnx == nil {
		return 0, 0, 0, diag.New(diag.ClassInput, "weight %q: scheme %q has no layout %q, want one of %s", spec.Name,
			spec.Scheme, Onnx, schemesWith(func(form *format) bool { return form.onnx != nil }))
	}
	values, scales = form.onnx(int64(spec.K), int64(spec.N))
	return values, onnxRound(values), scales, nil
}

// onnxRound rounds up to where the next part starts.
func onnxRound(n int64) int64 { return (n + onnxAlign - 1) &^ (onnxAlign - 1) }

// clearPadding zeroes what lies between and behind the parts.
func clearPadding(dst []byte, values, scalesAt, scales int64) {
	clear(dst[values:scalesAt])
	clear(dst[scalesAt+4*scales:])
}

// onnxPacker writes the tiles of layout N32 that a tilePacker makes, a few rows at a time, where they lie in
// layout Onnx. Different tiles are written to different bytes.
type onnxPacker struct {
	dst    []byte
	scales []byte
	chunk  []byte // rows of a tile in layout N32
}

// newOnnxPacker makes a packer of at most rows rows at a time into dst, whose scales start at byte at.
func newOnnxPacker(dst []byte, at int64, spec op.WeightSpec, rows int) *onnxPacker {
	size := (rows + 3) &^ 3 * TileN
	if spec.Scheme != "q8c" {
		block := q4Block(spec.Scheme)
		size = (rows + block - 1) / block * q4Bytes(block)
	}
	return &onnxPacker{dst: dst, scales: dst[at:], chunk: make([]byte, size)}
}

// q8c writes rows [k0,k1) of a tile. In the chunk four rows are interleaved: value (row, column) is at byte
// row/4*128 + 4*column + row%4.
func (p *onnxPacker) q8c(cols, tile, k0, k1 int) {
	n0, n1 := tile*TileN, min((tile+1)*TileN, cols)
	for at := k0; at < k1; at++ {
		row := p.dst[at*cols+n0 : at*cols+n1]
		from := p.chunk[(at-k0)>>2<<7+(at-k0)&3:]
		for column := range row {
			row[column] = from[4*column]
		}
	}
}

// q8cScales writes the scales of a tile, which are complete only after its last rows.
func (p *onnxPacker) q8cScales(cols, tile int, scale *[TileN]float32) {
	for column := tile * TileN; column < min((tile+1)*TileN, cols); column++ {
		binary.LittleEndian.PutUint32(p.scales[4*column:], math.Float32bits(scale[column-tile*TileN]))
	}
}

// q4 writes the blocks of rows [k0,k1) of a tile of a weight of that many rows; k0 is the first row of a block.
func (p *onnxPacker) q4(block, k, cols, tile, k0, k1 int) {
	count := (k + block - 1) / block // blocks of a column
	for group := k0 / block; group*block < k1; group++ {
		from := p.chunk[(group-k0/block)*q4Bytes(block):]
		for column := range min(TileN, cols-tile*TileN) {
			at := (tile*TileN+column)*count + group
			to := p.dst[at*block/2 : (at+1)*block/2]
			shift := 4 * (column / 16)
			for i := range to { // values 2i and 2i+1
				at := i>>1<<6 + column%16*4 + i&1*2
				to[i] = from[at]>>shift&15 | from[at+1]>>shift<<4
			}
			scale := number.HalfToFloat(binary.LittleEndian.Uint16(from[16*block+2*column:]))
			binary.LittleEndian.PutUint32(p.scales[4*at:], math.Float32bits(scale))
		}
	}
}

// packOnnxQ4C packs in layout N32 and moves the codes: neighbouring tiles share bytes where N is odd.
func packOnnxQ4C(dst []byte, spec op.WeightSpec, src Source, imp *Importance) error {
	tiled := spec
	tiled.Layout = N32
	size, err := Bytes(tiled)
	if err != nil {
		return err
	}

	from := make([]byte, size)
	if err := PackFor(from, tiled, src, imp); err != nil {
		return err
	}
	_, at, _, err := OnnxParts(spec)
	if err != nil {
		return err
	}
	clear(dst)

	tile := int(size) / tiles(spec.N)
	for column := range spec.N {
		codes, inTile := from[column/TileN*tile:(column/TileN+1)*tile], column%TileN
		copy(dst[at+4*int64(column):], codes[len(codes)-4*TileN+4*inTile:][:4])
		for row := range spec.K {
			// From an offset of 8 to two's complement.
			code := (codes[row>>2<<6+inTile%16*4+row&3]>>(4*(inTile/16)) - 8) & 15
			i := row*spec.N + column
			dst[i/2] |= code << (4 * (i & 1))
		}
	}
	return nil
}

// unpackOnnx writes the values that a weight in layout Onnx stands for, row-major [K,N].
func unpackOnnx(dst []float32, spec op.WeightSpec, packed []byte) error {
	_, at, scales, err := OnnxParts(spec)
	if err != nil {
		return err
	}

	scale := make([]float32, scales) // of a column, or of a block of a column
	number.Decode(scale, packed[at:], op.F32)
	switch spec.Scheme {
	case "w32":
		number.Decode(dst, packed, op.F32)
	case "w16":
		number.Decode(dst, packed, op.F16)
	case "q4c":
		for i := range dst {
			code := packed[i/2] >> (4 * (i & 1)) & 15
			dst[i] = float32(int8(code<<4)>>4) * scale[i%spec.N]
		}
	case "q8c":
		for i := range dst {
			dst[i] = float32(int8(packed[i])) * scale[i%spec.N]
		}
	case "q4b32", "q4b128":
		block := q4Block(spec.Scheme)
		count := (spec.K + block - 1) / block
		for column := range spec.N {
			for row := range spec.K {
				index := column*count + row/block
				nibbles := packed[index*block/2+row%block/2] >> (4 * (row & 1)) & 15
				dst[row*spec.N+column] = float32(int32(nibbles)-8) * scale[index]
			}
		}
	}
	return nil
}
