package kernel

import (
	"math"

	"github.com/hetc/hetc/planir/pack"
)

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
			vecFromF16(wide[:(to-from)*dim], v[from*dim:to*dim])
			return wide
		}
		for p := from; p < to; p++ {
			row := wide[(p-from)*padded : (p-from+1)*padded]
			vecFromF16(row[:dim], v[p*dim:(p+1)*dim])
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
					t.rowsF32(n, &scores[(r*heads+h)*keyBlock+c], (nextRow*heads+nextHead)*keyBlock,
						&q[r*ldq+h*dim], nextRow*ldq+nextHead*dim, dim, &keys[c*dim], 0, 0, 0)
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
						softcap256(&s[0], &s[0], whole, float32(all.Scale/all.Cap), limit)
					}
					for j := range from {
						s[j] = minusInf
					}
					for j := to; j < whole; j++ {
						s[j] = minusInf
					}
					if fade := softmax256(&s[0], whole, scale, &state[2*i]); fade != 1 {
						scale256(&acc[r*ld+h*padded], padded, fade)
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
				scale256(&sum[0], padded, 1/state[2*(r*heads+h)+1])
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

// rowsF32 computes n lines of y [n][32] = x w for a tile w [k][32], or adds them unless more is 0; strides are in
// elements, but ahead and stride in bytes.
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
// keep what they had.
func transpose(tiles []float32, k []float32, dim int) {
	count := len(k) / dim
	for p := 0; p < count; p++ {
		tile := tiles[p/TileN*dim*TileN : (p/TileN+1)*dim*TileN]
		if p%8 == 0 && p+8 <= count && dim%8 == 0 {
			transposeF32(&tile[p%TileN], &k[p*dim], 4*dim, dim)
			p += 7
			continue
		}
		for d, v := range k[p*dim : (p+1)*dim] {
			tile[d*TileN+p%TileN] = v
		}
	}
}

// transpose16 is transpose of float16 keys.
func transpose16(tiles []float32, k []uint16, dim int) {
	count := len(k) / dim
	for p := 0; p < count; p++ {
		tile := tiles[p/TileN*dim*TileN : (p/TileN+1)*dim*TileN]
		if p%8 == 0 && p+8 <= count && dim%8 == 0 {
			transposeF16(&tile[p%TileN], &k[p*dim], 2*dim, dim)
			p += 7
			continue
		}
		for d, v := range k[p*dim : (p+1)*dim] {
			tile[d*TileN+p%TileN] = pack.HalfToFloat(v)
		}
	}
}
