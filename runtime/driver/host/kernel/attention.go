package kernel

import "math"

// attentionF32 takes rows in groups of attentionRows, each over all blocks of keyBlock positions.
func attentionF32(y, q Matrix[float32], k, v []float32, scratch []float32, s Attention) {
	for row := 0; row < s.M; row += attentionRows {
		state := newAttention(y.From(row, 0), q.From(row, 0), scratch, s, row)
		for pos := state.start(); pos < state.context(); pos += keyBlock {
			end := min(pos+keyBlock, state.context())
			state.block(k[pos*s.Dim:end*s.Dim], v[pos*s.Dim:end*s.Dim], pos, end)
		}
		state.finish()
	}
}

// attentionF16 widens each block of keys and values to the end of scratch, which newAttention
// leaves free.
func attentionF16(y, q Matrix[float32], k, v []uint16, scratch []float32, s Attention) {
	wide := scratch[len(scratch)-2*keyBlock*s.Dim:]
	for row := 0; row < s.M; row += attentionRows {
		state := newAttention(y.From(row, 0), q.From(row, 0), scratch, s, row)
		for pos := state.start(); pos < state.context(); pos += keyBlock {
			end := min(pos+keyBlock, state.context())
			size := (end - pos) * s.Dim
			kw, vw := wide[:size], wide[size:2*size]
			fromF16(kw, k[pos*s.Dim:end*s.Dim])
			fromF16(vw, v[pos*s.Dim:end*s.Dim])
			state.block(kw, vw, pos, end)
		}
		state.finish()
	}
}

// attentionBF16 is attentionF16 with queries and weights rounded to bfloat16. The rounded queries lie before the block.
func attentionBF16(y, q Matrix[float32], k, v []uint16, scratch []float32, s Attention) {
	columns := s.Heads * s.Dim
	wide := scratch[len(scratch)-2*keyBlock*s.Dim:]
	queries := Rows(scratch[len(scratch)-len(wide)-attentionRows*columns:len(scratch)-len(wide)], columns)
	for row := 0; row < s.M; row += attentionRows {
		for i := range min(attentionRows, s.M-row) {
			copy(queries.row(i, columns), q.row(row+i, columns))
			roundBF16(queries.row(i, columns))
		}
		state := newAttention(y.From(row, 0), queries, scratch, s, row)
		state.brain = true
		for pos := state.start(); pos < state.context(); pos += keyBlock {
			end := min(pos+keyBlock, state.context())
			size := (end - pos) * s.Dim
			kw, vw := wide[:size], wide[size:2*size]
			fromBF16(kw, k[pos*s.Dim:end*s.Dim])
			fromBF16(vw, v[pos*s.Dim:end*s.Dim])
			state.block(kw, vw, pos, end)
		}
		state.finish()
	}
}

// blockwise is attention of at most attentionRows rows over blocks of positions, by online softmax:
// it keeps the running maximum and sum of each row and head. When the maximum grows, what was
// summed up before is scaled by e^(old-new), so that scores are never stored for more than one
// block.
type blockwise struct {
	Attention
	y, q                    Matrix[float32]
	scale, cap              float32
	brain                   bool      // weights are rounded to bfloat16
	acc, top, total, scores []float32 // acc [M*Heads][Dim], top and total [M*Heads], scores [keyBlock]
}

// newAttention begins with the rows from r of s, which are the first of y and q.
func newAttention(y, q Matrix[float32], scratch []float32, s Attention, r int) blockwise {
	s.M, s.Pos = min(attentionRows, s.M-r), s.Pos+r
	count := s.M * s.Heads
	state := blockwise{Attention: s, y: y, q: q, scale: float32(s.Scale), cap: float32(s.Cap)}
	state.acc, scratch = scratch[:count*s.Dim], scratch[count*s.Dim:]
	state.top, scratch = scratch[:count], scratch[count:]
	state.total, scratch = scratch[:count], scratch[count:]
	state.scores = scratch[:keyBlock]
	clear(state.acc)
	clear(state.total)
	for i := range state.top {
		state.top[i] = float32(math.Inf(-1))
	}
	if s.Rest.Count == 0 {
		return state
	}
	for i := range count {
		row, head := i/s.Heads, i%s.Heads
		state.top[i] = s.restScore(q.From(row, head*s.Dim).row(0, s.Dim))
		state.total[i] = 1
		copy(state.acc[i*s.Dim:], s.Rest.Value)
	}
	return state
}

// start is the beginning of the block of the first position that any row attends to. Blocks begin at multiples
// of keyBlock, so that a row's bits do not depend on the rows computed with it.
func (a *Attention) start() int { return a.first(0) / keyBlock * keyBlock }

// context is the number of positions the last row attends to, were it not for a window.
func (a *Attention) context() int { return a.Pos + a.M }

// block takes positions p..end-1 into account, whose keys and values are k and v.
func (a *blockwise) block(k, v []float32, p, end int) {
	dim := a.Dim
	for row := range a.M {
		from, to := max(a.first(row), p), min(end, a.Pos+row+1)
		if from >= to {
			continue
		}
		keys, values := k[(from-p)*dim:(to-p)*dim], v[(from-p)*dim:(to-p)*dim]
		scores := a.scores[:to-from]
		for head := range a.Heads {
			i := row*a.Heads + head
			acc := a.acc[i*dim : (i+1)*dim]
			query := a.q.From(row, head*dim).row(0, dim)
			for j := range scores {
				scores[j] = a.scale * dot(query, keys[j*dim:(j+1)*dim])
			}
			if a.cap > 0 {
				softcapRow(scores, scores, a.cap)
			}
			// a larger maximum fades what was summed up with the old one
			top := a.top[i]
			for _, score := range scores {
				top = max(top, score)
			}
			if top != a.top[i] {
				fade := expf(a.top[i] - top)
				for dim := range acc {
					acc[dim] *= fade
				}
				a.total[i] *= fade
				a.top[i] = top
			}
			for j, score := range scores {
				weight := expf(score - top)
				a.total[i] += weight
				if a.brain {
					weight = math.Float32frombits(uint32(brainOf(weight)) << 16)
				}
				addScaled(acc, values[j*dim:(j+1)*dim], weight)
			}
		}
	}
}

// finish divides the weighted sums of values by the sums of the weights.
func (a *blockwise) finish() {
	for row := range a.M {
		for head := range a.Heads {
			i := row*a.Heads + head
			out := a.y.From(row, head*a.Dim).row(0, a.Dim)
			for dim, value := range a.acc[i*a.Dim : (i+1)*a.Dim] {
				out[dim] = value / a.total[i]
			}
		}
	}
}

// dot sums in four chains, which hide the latency of additions.
func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		left, four := (*[4]float32)(a[i:]), (*[4]float32)(b[i:])
		s0 += left[0] * four[0]
		s1 += left[1] * four[1]
		s2 += left[2] * four[2]
		s3 += left[3] * four[3]
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
