package kernel

// capScores computes limit*tanh(s*scale) in place for a multiple of vecN scores.
func capScores(s []float32, scale, limit float32) { softcap256(&s[0], &s[0], len(s), scale, limit) }

// addF32 adds to 32 columns of n lines of y the product of x [n,k] and w [k,32].
func (t tier) addF32(n int, y, x Matrix[float32], k int, w Matrix[float32]) {
	if t.wide() {
		f32Add512(n, &y.Data[0], 4*y.Stride, &x.Data[0], 4*x.Stride, k, &w.Data[0], 4*w.Stride)
	} else {
		f32Add256(n, &y.Data[0], 4*y.Stride, &x.Data[0], 4*x.Stride, k, &w.Data[0], 4*w.Stride)
	}
}
