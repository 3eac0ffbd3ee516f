package kernel

import "github.com/hetc/hetc/internal/number"

// capScores computes limit*tanh(s*scale) in place for a multiple of vecN scores.
func capScores(s []float32, scale, limit float32) { softcap256(&s[0], &s[0], len(s), scale, limit) }

// softmaxScores is softmax256 for a multiple of vecN scores.
func softmaxScores(s []float32, scale float32, state []float32) float32 {
	return softmax256(&s[0], len(s), scale, &state[0])
}

// scaleRow multiplies a multiple of vecN numbers by f.
func scaleRow(x []float32, f float32) { scale256(&x[0], len(x), f) }

// widen converts cached keys and values to float32.
func widen(dst []float32, src []uint16) { vecFromF16(dst, src) }

// dots computes n lines of y [n][32] = x w for a tile w [k][32]; strides are in elements.
func (t tier) dots(n int, y *float32, ldy int, x *float32, ldx, k int, w *float32) {
	t.rowsF32(n, y, ldy, x, ldx, k, w, 0, 0, 0)
}

// rowsF32 computes n lines of y [n][32] = x w for a tile w [k][32], or adds to y unless more is 0.
// Strides are in elements, but ahead and stride in bytes.
func (t tier) rowsF32(n int, y *float32, ldy int, x *float32, ldx, k int, w *float32, ahead, stride, more int) {
	if t.wide() {
		f32Rows512(n, y, 4*ldy, x, 4*ldx, k, w, ahead, stride, more)
	} else {
		f32Rows256(n, y, 4*ldy, x, 4*ldx, k, w, ahead, stride, more)
	}
}

// addF32 adds to n lines of y 32 columns of x w, w [k] rows ldw apart; strides are in elements.
func (t tier) addF32(n int, y *float32, ldy int, x *float32, ldx, k int, w *float32, ldw int) {
	if t.wide() {
		f32Add512(n, y, 4*ldy, x, 4*ldx, k, w, 4*ldw)
	} else {
		f32Add256(n, y, 4*ldy, x, 4*ldx, k, w, 4*ldw)
	}
}

// transpose stores keys [count][dim] as tiles [dim][32] of 32 positions each; columns beyond count
// keep what they had. Eight positions at a time go through the kernel.
func transpose(tiles []float32, k []float32, dim int) {
	count := len(k) / dim
	for pos := 0; pos < count; pos++ {
		tile := tiles[pos/TileN*dim*TileN : (pos/TileN+1)*dim*TileN]
		if pos%8 == 0 && pos+8 <= count && dim%8 == 0 {
			transposeF32(&tile[pos%TileN], &k[pos*dim], 4*dim, dim)
			pos += 7
			continue
		}
		for place, value := range k[pos*dim : (pos+1)*dim] {
			tile[place*TileN+pos%TileN] = value
		}
	}
}

// transpose16 is transpose of float16 keys.
func transpose16(tiles []float32, k []uint16, dim int) {
	count := len(k) / dim
	for pos := 0; pos < count; pos++ {
		tile := tiles[pos/TileN*dim*TileN : (pos/TileN+1)*dim*TileN]
		if pos%8 == 0 && pos+8 <= count && dim%8 == 0 {
			transposeF16(&tile[pos%TileN], &k[pos*dim], 2*dim, dim)
			pos += 7
			continue
		}
		for place, value := range k[pos*dim : (pos+1)*dim] {
			tile[place*TileN+pos%TileN] = number.HalfToFloat(value)
		}
	}
}
