package kernel

// capScores computes limit*tanh(s*scale) in place for a multiple of vecN scores.
func capScores(s []float32, scale, limit float32) { softcap256(&s[0], &s[0], len(s), scale, limit) }

// widen converts cached keys and values to float32.
func widen(dst []float32, src []uint16) { vecFromF16(dst, src) }

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
