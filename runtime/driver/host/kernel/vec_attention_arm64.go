package kernel

import "math"

// Attention of all rows and heads that share keys and values is two matrix products per block of
// positions: scores = q k^T with the keys transposed into tiles, then y += e^(scores-top) v, by
// online softmax as in blockwise. Sums run in the order of positions and blocks start at multiples
// of keyBlock. So a row's bits depend neither on the rows computed with it nor on how a prompt was
// cut into chunks.

// attentionF32 pads the values of heads that are no whole tiles wide.
func (t tier) attentionF32(y, q Matrix[float32], k, v []float32, scratch []float32, a Attention) {
	dim, padded := a.Dim, paddedDim(a.Dim)
	t.attention(y, q, scratch, a, func(keys, wide []float32, from, to int) []float32 {
		transpose(keys, k[from*dim:to*dim], dim)
		if dim == padded {
			return v[from*dim : to*dim]
		}
		for pos := from; pos < to; pos++ {
			row := wide[(pos-from)*padded : (pos-from+1)*padded]
			clear(row[copy(row, v[pos*dim:(pos+1)*dim]):])
		}
		return wide
	})
}

// attentionF16 widens keys while transposing them, and values into wide.
func (t tier) attentionF16(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
	dim, padded := a.Dim, paddedDim(a.Dim)
	t.attention(y, q, scratch, a, func(keys, wide []float32, from, to int) []float32 {
		transpose16(keys, k[from*dim:to*dim], dim)
		if dim == padded {
			widen(wide[:(to-from)*dim], v[from*dim:to*dim])
			return wide
		}
		for pos := from; pos < to; pos++ {
			row := wide[(pos-from)*padded : (pos-from+1)*padded]
			widen(row[:dim], v[pos*dim:(pos+1)*dim])
			clear(row[dim:])
		}
		return wide
	})
}

// attention computes all rows of all. block provides positions from..to: it writes their keys as
// tiles [Dim][32] to keys and returns their values as rows of paddedDim, in wide if they had to be
// copied.
func (t tier) attention(y, q Matrix[float32], scratch []float32, all Attention,
	block func(keys, wide []float32, from, to int) []float32) {
	if all.M == 0 {
		return
	}
	heads, dim, padded := all.Heads, all.Dim, paddedDim(all.Dim)
	y.mustHold(all.M, heads*dim)
	q.mustHold(all.M, heads*dim)
	scratch = scratch[:AttentionScratch(heads, dim)]
	keys, scratch := scratch[:keyBlock*dim], scratch[keyBlock*dim:]
	wide, scratch := scratch[:keyBlock*padded], scratch[keyBlock*padded:]
	scores, scratch := scratch[:attentionRows*heads*keyBlock], scratch[attentionRows*heads*keyBlock:]
	state, sums := scratch[:attentionRows*heads*2], scratch[attentionRows*heads*2:]
	scale, limit := float32(all.Scale), float32(all.Cap)
	// capScores applies the scale
	if limit > 0 {
		scale = 1 // softcap scales the scores
	}
	minusInf := float32(math.Inf(-1))
	for r0 := 0; r0 < all.M; r0 += attentionRows {
		rows := all
		rows.M, rows.Pos = min(attentionRows, all.M-r0), all.Pos+r0
		out, queries := y.From(r0, 0), q.From(r0, 0)
		// A head of a row is summed up at acc[row*ld+head*padded]: in its place, unless its columns are no whole tiles.
		acc, ld := out.Data, out.Stride
		if dim != padded {
			acc, ld = sums, heads*padded
		}
		for row := range rows.M {
			clear(acc[row*ld : row*ld+heads*padded])
		}
		for i := range rows.M * heads {
			state[2*i], state[2*i+1] = minusInf, 0 // maximum and sum
			if row, head := i/heads, i%heads; all.Rest.Count > 0 {
				state[2*i], state[2*i+1] = all.restScore(queries.From(row, head*dim).row(0, dim)), 1
				copy(acc[row*ld+head*padded:], all.Rest.Value)
			}
		}
		for pos := rows.start(); pos < rows.context(); pos += keyBlock {
			count := min(keyBlock, rows.context()-pos)
			values := block(keys, wide, pos, pos+count)
			// Scores = q k^T: the scores of a row and head are line row*heads+head.
			for col := 0; col < count; col += TileN {
				t.lines(rows.M, heads, func(n, r, h, nextRow, nextHead int) {
					t.dots(n, &scores[(r*heads+h)*keyBlock+col], (nextRow*heads+nextHead)*keyBlock,
						queries.at(r, h*dim), nextRow*queries.Stride+nextHead*dim, dim, &keys[col*dim])
				})
			}
			// Softmax: mask the positions that a row does not attend to, and fade what it has
			// summed up.
			whole := (count + vecN - 1) &^ (vecN - 1)
			for row := range rows.M {
				// positions of this block that the row attends to
				from, to := max(rows.first(row)-pos, 0), min(count, rows.Pos+row+1-pos)
				for head := range heads {
					i := row*heads + head
					line := scores[i*keyBlock : i*keyBlock+whole]
					if from >= to {
						clear(line)
						continue
					}
					if limit > 0 {
						capScores(line, float32(all.Scale/all.Cap), limit)
					}
					for j := range from {
						line[j] = minusInf
					}
					for j := to; j < whole; j++ {
						line[j] = minusInf
					}
					if fade := softmaxScores(line, scale, state[2*i:2*i+2]); fade != 1 {
						scaleRow(acc[row*ld+head*padded:row*ld+(head+1)*padded], fade)
					}
				}
			}
			// y += weights v
			for dim := 0; dim < padded; dim += TileN {
				t.lines(rows.M, heads, func(n, r, h, nextRow, nextHead int) {
					sums := Rows(acc[r*ld+h*padded+dim:], nextRow*ld+nextHead*padded)
					weights := Rows(scores[(r*heads+h)*keyBlock:], (nextRow*heads+nextHead)*keyBlock)
					t.addF32(n, sums, weights, count, Rows(values[dim:], padded))
				})
			}
		}
		// divide by the sums of the weights, and drop the padding
		for row := range rows.M {
			for head := range heads {
				sum := acc[row*ld+head*padded : row*ld+(head+1)*padded]
				scaleRow(sum, 1/state[2*(row*heads+head)+1])
				if dim != padded {
					copy(out.From(row, head*dim).row(0, dim), sum)
				}
			}
		}
	}
}

// lines calls f for all rows and heads in groups of n that are evenly spaced: along the heads of a
// row, or along the rows where there are more of them. (nextRow, nextHead) is the step from one to
// the next.
func (t tier) lines(rows, heads int, f func(n, r, h, nextRow, nextHead int)) {
	most := t.mostF32()
	if heads >= rows {
		for row := range rows {
			for head := 0; head < heads; {
				count := share(heads-head, most)
				f(count, row, head, 0, 1)
				head += count
			}
		}
		return
	}
	for head := range heads {
		for row := 0; row < rows; {
			count := share(rows-row, most)
			f(count, row, head, 1, 0)
			row += count
		}
	}
}
