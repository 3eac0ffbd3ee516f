package kernel

import "math"

func attentionF32(y []float32, ldy int, q []float32, ldq int, k, v []float32, scratch []float32, s Attention) {
	for r := 0; r < s.M; r += attentionRows {
		a := newAttention(y[r*ldy:], ldy, q[r*ldq:], ldq, scratch, s, r)
		for p := a.start(); p < a.context(); p += keyBlock {
			end := min(p+keyBlock, a.context())
			a.block(k[p*s.Dim:end*s.Dim], v[p*s.Dim:end*s.Dim], p, end)
		}
		a.finish()
	}
}

func attentionF16(y []float32, ldy int, q []float32, ldq int, k, v []uint16, scratch []float32, s Attention) {
	wide := scratch[len(scratch)-2*keyBlock*s.Dim:]
	for r := 0; r < s.M; r += attentionRows {
		a := newAttention(y[r*ldy:], ldy, q[r*ldq:], ldq, scratch, s, r)
		for p := a.start(); p < a.context(); p += keyBlock {
			end := min(p+keyBlock, a.context())
			size := (end - p) * s.Dim
			kw, vw := wide[:size], wide[size:2*size]
			fromF16(kw, k[p*s.Dim:end*s.Dim])
			fromF16(vw, v[p*s.Dim:end*s.Dim])
			a.block(kw, vw, p, end)
		}
		a.finish()
	}
}

// blockwise is attention of at most attentionRows rows, computed over blocks of positions with a
// running maximum and sum.
type blockwise struct {
	Attention
	y, q                    []float32
	ldy, ldq                int
	scale, cap              float32
	acc, top, total, scores []float32 // acc [M*Heads][Dim], top and total [M*Heads], scores [keyBlock]
}

// newAttention begins with the rows from r of s, which are the first of y and q.
func newAttention(y []float32, ldy int, q []float32, ldq int, scratch []float32, s Attention, r int) blockwise {
	s.M, s.Pos = min(attentionRows, s.M-r), s.Pos+r
	n := s.M * s.Heads
	a := blockwise{Attention: s, y: y, q: q, ldy: ldy, ldq: ldq, scale: float32(s.Scale), cap: float32(s.Cap)}
	a.acc, scratch = scratch[:n*s.Dim], scratch[n*s.Dim:]
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

// start is the beginning of the block of the first position that any row attends to. Blocks begin at multiples
// of keyBlock, so that a row's bits do not depend on the rows computed with it.
func (a *Attention) start() int { return a.first(0) / keyBlock * keyBlock }

// context is the number of positions the last row attends to, were it not for a window.
func (a *Attention) context() int { return a.Pos + a.M }

// block takes positions p..end-1 into account, whose keys and values are k and v.
func (a *blockwise) block(k, v []float32, p, end int) {
	dim := a.Dim
	for r := range a.M {
		from, to := max(a.first(r), p), min(end, a.Pos+r+1)
		if from >= to {
			continue
		}
		k, v := k[(from-p)*dim:(to-p)*dim], v[(from-p)*dim:(to-p)*dim]
		scores := a.scores[:to-from]
		for h := range a.Heads {
			i := r*a.Heads + h
			acc := a.acc[i*dim : (i+1)*dim]
			query := a.q[r*a.ldq+h*dim : r*a.ldq+(h+1)*dim]
			for j := range scores {
				scores[j] = a.scale * dot(query, k[j*dim:(j+1)*dim])
			}
			if a.cap > 0 {
				softcapRow(scores, scores, a.cap)
			}
			top := a.top[i]
			for _, s := range scores {
				top = max(top, s)
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
				addScaled(acc, v[j*dim:(j+1)*dim], e)
			}
		}
	}
}

func (a *blockwise) finish() {
	for r := range a.M {
		for h := range a.Heads {
			i := r*a.Heads + h
			out := a.y[r*a.ldy+h*a.Dim : r*a.ldy+(h+1)*a.Dim]
			for d, s := range a.acc[i*a.Dim : (i+1)*a.Dim] {
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
