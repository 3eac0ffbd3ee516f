package kernel

import (
	"encoding/binary"
	"math"
)

// A row of an 8-bit cache (op.Q8) is the codes of QuantRows for its dim numbers and then their scale, a float32 in
// little-endian order at any address.
const cachedScale = 4 // bytes of the scale

// StoreQ8 rounds a key or a value to a row of an 8-bit cache with a set's QuantRows, for which own has room for one
// number. It reports whether the row holds neither NaN nor an infinity, which 8 bits cannot represent.
func (s *Set) StoreQ8(row []uint8, x, own []float32) bool {
	dim := len(x)
	if s.QuantRows(row[:dim], dim, own[:1], x, dim, 1, dim) >= 0 {
		return false
	}
	binary.LittleEndian.PutUint32(row[dim:dim+cachedScale], math.Float32bits(own[0]))
	return true
}

// fromQ8 widens a row of an 8-bit cache.
func fromQ8(dst []float32, row []uint8) {
	codes := row[:len(dst)]
	scale := scaleQ8(row, len(dst))
	for i, code := range codes {
		dst[i] = scale * float32(int32(code)-128)
	}
}

// scaleQ8 is the scale of a row of dim numbers.
func scaleQ8(row []uint8, dim int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(row[dim : dim+cachedScale]))
}

// attentionQ8 widens each block of keys and values to the end of scratch, as attentionF16 does.
func attentionQ8(y []float32, ldy int, q []float32, ldq int, k, v []uint8, scratch []float32, s Attention) {
	dim, pitch := s.Dim, s.Dim+cachedScale
	wide := scratch[len(scratch)-2*keyBlock*dim:]
	for row := 0; row < s.M; row += attentionRows {
		state := newAttention(y[row*ldy:], ldy, q[row*ldq:], ldq, scratch, s, row)
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
