package kernel

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/internal/number"
)

// A weight in blocks of 32 can be multiplied as one whose columns have a single scale each, and whose values have 8
// bits: its sums need no scale before the end of k, which is what products in tiles are fastest with. A tile is
// requantised just before it is multiplied, so that memory holds and gives the 4-bit values only.

// requant are the scales of the columns of a requantised tile, and what those of their blocks are multiplied with.
type requant struct {
	inverse, scale [TileN]float32
}

// newRequant returns those of columns whose blocks have scales of at most the magnitudes tops, float16.
func newRequant(tops *[TileN]uint16) (r requant) {
	for col, half := range tops {
		top := number.HalfToFloat(half)
		r.scale[col] = 8 * top / 127
		if top > 0 {
			r.inverse[col] = 127 / top
		}
	}
	return r
}

// q4Tops returns the largest magnitude of the block scales of each column of a q4b32 tile.
func q4Tops(w []byte, blocks int) (tops [TileN]uint16) {
	const magnitude = 0x7fff // the order of float16 is that of integers
	bytes := q4BlockBytes(BlockK)
	for block := range blocks {
		scales := w[(block+1)*bytes-2*TileN : (block+1)*bytes]
		for col := range tops {
			tops[col] = max(tops[col], binary.LittleEndian.Uint16(scales[2*col:])&magnitude)
		}
	}
	return tops
}

// rows writes count rows of a q4b32 tile, which begin with a block at w, to dst [ceil(count/4)][32][4], and adds the
// sums of columns to sums.
func (r *requant) rows(dst, w []byte, count int, sums *[TileN]int32) {
	bytes := q4BlockBytes(BlockK)
	for from := 0; from < count; from += BlockK {
		block := w[from/BlockK*bytes:][:bytes]
		rows, out := min(BlockK, count-from), dst[from*TileN:]
		clear(out[:(rows+3)/4*4*TileN])
		for col := range TileN {
			scale := number.HalfToFloat(binary.LittleEndian.Uint16(block[bytes-2*TileN+2*col:]))
			factor := int32(math.RoundToEven(float64(scale * r.inverse[col])))
			for row := range rows {
				nibble := block[row/4*2*TileN+col%16*4+row%4] >> (col / 16 * 4) & 15
				value := ((int32(nibble)-8)*factor + 4) >> 3
				out[row/4*4*TileN+col*4+row%4] = byte(value)
				sums[col] += value
			}
		}
	}
}

// tail writes what stands behind the values of a q8c tile: scales and sums of columns.
func (r *requant) tail(dst []byte, sums *[TileN]int32) {
	for col := range TileN {
		binary.LittleEndian.PutUint32(dst[4*col:], math.Float32bits(r.scale[col]))
		binary.LittleEndian.PutUint32(dst[4*TileN+4*col:], uint32(sums[col]))
	}
}

// requantQ4B32 is RequantQ4B32.
func requantQ4B32(tile, w []byte, k int) {
	_, scales := q8cTileBytes(k)
	tops := q4Tops(w, (k+BlockK-1)/BlockK)
	columns := newRequant(&tops)
	var sums [TileN]int32
	columns.rows(tile, w, k, &sums)
	columns.tail(tile[scales:], &sums)
}

// RequantBytes is the size of a requantised tile of k rows.
func RequantBytes(k int) int {
	bytes, _ := q8cTileBytes(k)
	return bytes
}

// RequantScratch is the number of bytes of scratch for the product of packed rows of k activations with a weight that
// is requantised.
func RequantScratch(k int) int { return RequantBytes(k) + PackedScratch(k, 0) }

// MatMulRequant is MatMulQ8C with the tiles that RequantQ4B32 makes of those of a q4b32 weight. scratch has
// RequantBytes(k) bytes of any content.
func (s *Set) MatMulRequant(y Matrix[float32], x Quantised, w, scratch []byte, m, k, n int) {
	if m == 0 {
		return
	}
	tile := scratch[:RequantBytes(k)]
	bytes := (k + BlockK - 1) / BlockK * q4BlockBytes(BlockK)
	for j := 0; j < n; j += TileN {
		s.RequantQ4B32(tile, w[j/TileN*bytes:][:bytes], k)
		s.MatMulQ8C(y.From(0, j), x, tile, m, k, min(TileN, n-j))
	}
}

// requantTiles is PackedRequant of a set, by its function for q8c: a tile after the other.
func requantTiles(set *Set, y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	size := RequantBytes(x.K)
	tile, rest := scratch[:size], scratch[size:]
	bytes := (x.K + BlockK - 1) / BlockK * q4BlockBytes(BlockK)
	for j := 0; j < n; j += TileN {
		at := j / TileN * bytes
		set.RequantQ4B32(tile, w[at:at+bytes], x.K)
		x.Next = w[at+bytes : min(at+2*bytes, len(w))]
		set.PackedQ8C(y.From(0, j), x, tile, rest, min(TileN, n-j))
	}
}
