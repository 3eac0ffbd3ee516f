package kernel

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/internal/mem"
)

// A row of an 8-bit cache (op.Q8) is the codes of QuantRows for its dim numbers and then their scale, a float32 in
// little-endian order at any address.
const cachedScale = 4 // bytes of the scale

// StoreQ8 rounds a key or a value to a row of an 8-bit cache with a set's QuantRows, for which own has room for one
// number. It reports whether the row holds neither NaN nor an infinity, which 8 bits cannot represent.
func (s *Set) StoreQ8(row []uint8, x, own []float32) bool {
	dim := len(x)
	if s.QuantRows(Quantised{Codes: Rows(row[:dim], dim), Scale: own[:1]}, Rows(x, dim), 1, dim) >= 0 {
		return false
	}
	binary.LittleEndian.PutUint32(row[dim:dim+cachedScale], math.Float32bits(own[0]))
	return true
}

// fromQ8 widens a row of an 8-bit cache.
func fromQ8(dst []float32, row []uint8) {
	codes := row[:len(dst)]
	scale := ScaleQ8(row, len(dst))
	for i, code := range codes {
		dst[i] = scale * float32(int32(code)-128)
	}
}

// ScaleQ8 is the scale of a row of dim numbers.
func ScaleQ8(row []uint8, dim int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(row[dim : dim+cachedScale]))
}

// roundQ8 rounds rows of dim numbers as an 8-bit cache does, with room for the codes of one. A row that has no such form,
// because a number is not finite, becomes NaN.
func roundQ8(x []float32, dim int, codes []uint8) {
	var scale [1]float32
	for ; len(x) > 0; x = x[dim:] {
		if quantRows(Quantised{Codes: Rows(codes, dim), Scale: scale[:]}, Rows(x, dim), 1, dim) >= 0 {
			scale[0] = float32(math.NaN())
		}
		for i, code := range codes[:dim] {
			x[i] = scale[0] * float32(int32(code)-128)
		}
	}
}

// attentionQ8 is attentionF16 with queries rounded to 8 bits. The rounded queries lie before the block.
func attentionQ8(y, q Matrix[float32], k, v []uint8, scratch []float32, s Attention) {
	dim, pitch, columns := s.Dim, s.Dim+cachedScale, s.Heads*s.Dim
	wide := scratch[len(scratch)-2*keyBlock*dim:]
	queries := Rows(scratch[len(scratch)-len(wide)-attentionRows*columns:len(scratch)-len(wide)], columns)
	for row := 0; row < s.M; row += attentionRows {
		for i := range min(attentionRows, s.M-row) {
			copy(queries.row(i, columns), q.row(row+i, columns))
			roundQ8(queries.row(i, columns), dim, mem.Bytes(wide))
		}
		state := newAttention(y.From(row, 0), queries, scratch, s, row)
		for pos := state.start(); pos < state.context(); pos += keyBlock {
			end := min(pos+keyBlock, state.context())
			size := (end - pos) * dim
			keys, values := wide[:size], wide[size:2*size]
			for at := pos; at < end; at++ {
				fromQ8(keys[(at-pos)*dim:(at-pos+1)*dim], k[at*pitch:])
				fromQ8(values[(at-pos)*dim:(at-pos+1)*dim], v[at*pitch:])
			}
			state.block(keys, values, pos, end)
		}
		state.finish()
	}
}

// PackColumnQ8C writes the codes of QuantRows, one for each k, as a column of a tile of MatMulQ8C.
func PackColumnQ8C(tile []byte, codes []uint8, column int) {
	k := 0
	for ; k+4 <= len(codes); k += 4 {
		four := binary.LittleEndian.Uint32(codes[k:]) ^ 0x80808080 // less 128
		binary.LittleEndian.PutUint32(tile[(k/4*TileN+column)*4:], four)
	}
	if k < len(codes) {
		at := (k/4*TileN + column) * 4
		clear(tile[at : at+4])
		for i, code := range codes[k:] {
			tile[at+i] = code ^ 0x80
		}
	}
}

// SetColumnQ8C writes the scale of such a column and the sum of its numbers, each behind those of all columns before it.
func SetColumnQ8C(scales, sums []byte, codes []uint8, column int, scale float32) {
	sum := int32(0)
	for _, code := range codes {
		sum += int32(code) - 128
	}
	binary.LittleEndian.PutUint32(scales[4*column:], math.Float32bits(scale))
	binary.LittleEndian.PutUint32(sums[4*column:], uint32(sum))
}

// peak is Set.Peak.
func peak(x []float32) float32 {
	top := x[0]
	for _, value := range x[1:] {
		top = max(top, value)
	}
	return top
}

// below is Set.Below.
func below(y, x []float32, top float32) {
	for i, value := range x {
		y[i] = value - top
	}
}

// poolBelow is Set.PoolBelow.
func poolBelow(y, x []float32, top float32) {
	for i, value := range x {
		y[i] = max(y[i], value-top)
	}
}
