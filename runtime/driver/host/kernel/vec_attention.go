//go:build amd64 || arm64

package kernel

import "math"

// Attention of all rows and heads that share keys and values is two matrix products per block of
// positions: scores = q k^T with the keys transposed into tiles, then y += e^(scores-top) v. Sums run in
// the order of positions and blocks start at multiples of keyBlock, so that a row's bits depend neither
// on the rows computed with it nor on how a prompt was cut into chunks.

func (t tier) attentionF32(y []float32, ldy int, q []float32, ldq int, k, v []float32, scratch []float32, a Attention) {
	dim, padded := a.Dim, paddedDim(a.Dim)
	t.attention(y, ldy, q, ldq, scratch, a, func(keys, wide []float32, from, to int) []float32 {
		transpose(keys, k[from*dim:to*dim], dim)
		if dim == padded {
			return v[from*dim : to*dim]
		}
		for p := from; p < to; p++ {
			row := wide[(p-from)*padded : (p-from+1)*padded]
			clear(row[copy(row, v[p*dim:(p+1)*dim]):])
		}
		return wide
	})
}

func (t tier) attentionF16(y []float32, ldy int, q []float32, ldq int, k, v []uint16, scratch []float32, a Attention) {
	dim, padded := a.Dim, paddedDim(a.Dim)
	t.attention(y, ldy, q, ldq, scratch, a, func(keys, wide []float32, from, to int) []float32 {
		transpose16(keys, k[from*dim:to*dim], dim)
		if dim == padded {
			widen(wide[:(to-from)*dim], v[from*dim:to*dim])
			return wide
		}
		for p := from; p < to; p++ {
			row := wide[(p-from)*padded : (p-from+1)*padded]
			widen(row[:dim], v[p*dim:(p+1)*dim])
			clear(row[dim:])
		}
		return wide
	})
}

// attention gets the keys of positions from..to as tiles [Dim][32] and their values as rows of paddedDim from block.
func (t tier) attention(y []float32, ldy int, q []float32, ldq int, scratch []float32, all Attention, block func(keys, wide []float32, from, to int) []float32) {
	if all.M == 0 {
		return
	}
	heads, dim, padded := all.Heads, all.Dim, paddedDim(all.Dim)
	_, _ = y[(all.M-1)*ldy+heads*dim-1], q[(all.M-1)*ldq+heads*dim-1]
	scratch = scratch[:AttentionScratch(heads, dim)]
	keys, scratch := scratch[:keyBlock*dim], scratch[keyBlock*dim:]
	wide, scratch := scratch[:keyBlock*padded], scratch[keyBlock*padded:]
	scores, scratch := scratch[:attentionRows*heads*keyBlock], scratch[attentionRows*heads*keyBlock:]
	state, sums := scratch[:attentionRows*heads*2], scratch[attentionRows*heads*2:]
	scale, limit := float32(all.Scale), float32(all.Cap)
	if limit > 0 {
		scale = 1 // softcap scales the scores
	}
	minusInf := float32(math.Inf(-1))
	for r0 := 0; r0 < all.M; r0 += attentionRows {
		a := all
		a.M, a.Pos = min(attentionRows, all.M-r0), all.Pos+r0
		y, q := y[r0*ldy:], q[r0*ldq:]
		// Head h of row r is summed up at acc[r*ld+h*padded]: in its place, unless its columns are no whole tiles.
		acc, ld := y, ldy
		if dim != padded {
			acc, ld = sums, heads*padded
		}
		for r := range a.M {
			clear(acc[r*ld : r*ld+heads*padded])
		}
		for i := range a.M * heads {
			state[2*i], state[2*i+1] = minusInf, 0 // maximum and sum
		}
		for p := a.start(); p < a.context(); p += keyBlock {
			count := min(keyBlock, a.context()-p)
			values := block(keys, wide, p, p+count)
			// The scores of row r, head h are line r*heads+h.
			for c := 0; c < count; c += TileN {
				t.lines(a.M, heads, func(n, r, h, nextRow, nextHead int) {
					t.dots(n, &scores[(r*heads+h)*keyBlock+c], (nextRow*heads+nextHead)*keyBlock,
						&q[r*ldq+h*dim], nextRow*ldq+nextHead*dim, dim, &keys[c*dim])
				})
			}
			whole := (count + vecN - 1) &^ (vecN - 1)
			for r := range a.M {
				from, to := max(a.first(r)-p, 0), min(count, a.Pos+r+1-p) // positions of this block that the row attends to
				for h := range heads {
					i := r*heads + h
					s := scores[i*keyBlock : i*keyBlock+whole]
					if from >= to {
						clear(s)
						continue
					}
					if limit > 0 {
						capScores(s, float32(all.Scale/all.Cap), limit)
					}
					for j := range from {
						s[j] = minusInf
					}
					for j := to; j < whole; j++ {
						s[j] = minusInf
					}
					if fade := softmaxScores(s, scale, state[2*i:2*i+2]); fade != 1 {
						scaleRow(acc[r*ld+h*padded:r*ld+(h+1)*padded], fade)
					}
				}
			}
			for d := 0; d < padded; d += TileN {
				t.lines(a.M, heads, func(n, r, h, nextRow, nextHead int) {
					t.addF32(n, &acc[r*ld+h*padded+d], nextRow*ld+nextHead*padded,
						&scores[(r*heads+h)*keyBlock], (nextRow*heads+nextHead)*keyBlock, count, &values[d], padded)
				})
			}
		}
		for r := range a.M {
			for h := range heads {
				sum := acc[r*ld+h*padded : r*ld+(h+1)*padded]
				scaleRow(sum, 1/state[2*(r*heads+h)+1])
				if dim != padded {
					copy(y[r*ldy+h*dim:r*ldy+(h+1)*dim], sum)
				}
			}
		}
	}
}

// lines calls f for all rows and heads in groups of n that are evenly spaced: along the heads of a row,
// or along the rows where there are more of them. (nextRow, nextHead) is the way from one to the next.
func (t tier) lines(rows, heads int, f func(n, r, h, nextRow, nextHead int)) {
	most := t.mostF32()
	if heads >= rows {
		for r := range rows {
			for h := 0; h < heads; {
				n := share(heads-h, most)
				f(n, r, h, 0, 1)
				h += n
			}
		}
		return
	}
	for h := range heads {
		for r := 0; r < rows; {
			n := share(rows-r, most)
			f(n, r, h, 1, 0)
			r += n
		}
	}
}
