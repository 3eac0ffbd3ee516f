package kernel

import "math"

func attentionF32(y []float32, ldy int, q []float32, ldq int, k, v []float32, scratch []float32, m, heads, headDim, pos int) {
	for r := 0; r < m; r += attentionRows {
		a := newAttention(y[r*ldy:], ldy, q[r*ldq:], ldq, scratch, min(attentionRows, m-r), heads, headDim, pos+r)
		for p := 0; p < a.context(); p += keyBlock {
			end := min(p+keyBlock, a.context())
			a.block(k[p*headDim:end*headDim], v[p*headDim:end*headDim], p, end)
		}
		a.finish()
	}
}

func attentionF16(y []float32, ldy int, q []float32, ldq int, k, v []uint16, scratch []float32, m, heads, headDim, pos int) {
	wide := scratch[len(scratch)-2*keyBlock*headDim:]
	for r := 0; r < m; r += attentionRows {
		a := newAttention(y[r*ldy:], ldy, q[r*ldq:], ldq, scratch, min(attentionRows, m-r), heads, headDim, pos+r)
		for p := 0; p < a.context(); p += keyBlock {
			end := min(p+keyBlock, a.context())
			size := (end - p) * headDim
			kw, vw := wide[:size], wide[size:2*size]
			fromF16(kw, k[p*headDim:end*headDim])
			fromF16(vw, v[p*headDim:end*headDim])
			a.block(kw, vw, p, end)
		}
		a.finish()
	}
}

// attention is softmax(q k) v of at most attentionRows rows, computed over blocks of positions with a
// running maximum and sum.
type attention struct {
	y, q                    []float32
	ldy, ldq                int
	rows, heads, dim, pos   int
	scale                   float32
	acc, top, total, scores []float32 // acc [rows*heads][dim], top and total [rows*heads], scores [keyBlock]
}

func newAttention(y []float32, ldy int, q []float32, ldq int, scratch []float32, rows, heads, dim, pos int) attention {
	n := rows * heads
	a := attention{y: y, q: q, ldy: ldy, ldq: ldq, rows: rows, heads: heads, dim: dim, pos: pos, scale: float32(1 / math.Sqrt(float64(dim)))}
	a.acc, scratch = scratch[:n*dim], scratch[n*dim:]
	a.top, scratch = scratch[:n], scratch[n:]
	a.total, scratch = scratch[:n], scratch[n:]
	a.scores = scratch[:keyBlock]
	clear(a.acc)
	clear(a.total)
	for i := range a.top {
		a.top[i] = float32(math.Inf(-1))
	}
	return a
}

// context is the number of positions the last row attends to.
func (a *attention) context() int { return a.pos + a.rows }

// block takes positions p..end-1 into account, whose keys and values are k and v.
func (a *attention) block(k, v []float32, p, end int) {
	for r := range a.rows {
		count := min(end, a.pos+r+1) - p
		if count <= 0 {
			continue
		}
		for h := range a.heads {
			i := r*a.heads + h
			acc := a.acc[i*a.dim : (i+1)*a.dim]
			query := a.q[r*a.ldq+h*a.dim : r*a.ldq+(h+1)*a.dim]
			scores := a.scores[:count]
			top := a.top[i]
			for j := range scores {
				scores[j] = a.scale * dot(query, k[j*a.dim:(j+1)*a.dim])
				top = max(top, scores[j])
			}
			if top != a.top[i] {
				fade := expf(a.top[i] - top)
				for d := range acc {
					acc[d] *= fade
				}
				a.total[i] *= fade
				a.top[i] = top
			}
			for j, s := range scores {
				e := expf(s - top)
				a.total[i] += e
				addScaled(acc, v[j*a.dim:(j+1)*a.dim], e)
			}
		}
	}
}

func (a *attention) finish() {
	for r := range a.rows {
		for h := range a.heads {
			i := r*a.heads + h
			out := a.y[r*a.ldy+h*a.dim : r*a.ldy+(h+1)*a.dim]
			for d, s := range a.acc[i*a.dim : (i+1)*a.dim] {
				out[d] = s / a.total[i]
			}
		}
	}
}

func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		u, v := (*[4]float32)(a[i:]), (*[4]float32)(b[i:])
		s0 += u[0] * v[0]
		s1 += u[1] * v[1]
		s2 += u[2] * v[2]
		s3 += u[3] * v[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

// addScaled adds s*b to a.
func addScaled(a, b []float32, s float32) {
	b = b[:len(a)]
	for i := range a {
		a[i] += s * b[i]
	}
}
