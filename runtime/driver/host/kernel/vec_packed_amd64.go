package kernel

import (
	"encoding/binary"

	"github.com/hetc/hetc/internal/mem"
)

// packPart is how many bytes of each row are packed at a time, so that a group's part stays in the first-level cache.
const packPart = 16 * cacheLine

func packRows(dst []byte, x []uint8, ldx, m, k, block, g int) {
	r, rows := groupRows(m, g)
	row, pitch := packedRow(k, block), 4*rows
	checkPacked(m)
	_, _ = dst[m*row-1], x[(m-1)*ldx+k-1]
	dst, x = dst[r*row:(r+rows)*row], x[r*ldx:(r+rows-1)*ldx+k]
	if block == 0 {
		block = (k + 3) / 4 * 4
	}
	size := (block/4 + 1) * pitch // of a block
	whole := 0                    // activations of whole lines
	if block == BlockK {
		whole = k &^ (cacheLine - 1)
	}
	for p := 0; p < whole; p += packPart {
		for q := 0; q < rows; q += 4 {
			q := min(q, rows-4)
			packBlocks512(&dst[p/block*size+4*q], pitch, &x[q*ldx+p], ldx, min(packPart, whole-p)/cacheLine)
		}
	}
	for p := whole; p < k; p += block {
		dst, end := dst[p/block*size:][:size], min(k, p+block)
		whole := p + (end-p)&^(cacheLine-1)
		var sums [mostPacked]int32
		for part := p; part < whole; part += packPart {
			for q := 0; q < rows; q += 4 {
				var head [4]int32
				from := min(q, rows-4)
				packQuad512(&dst[pitch+(part-p)*rows+4*from], pitch, &x[from*ldx+part], ldx, min(packPart, whole-part)/cacheLine, &head[0])
				for i := q; i < from+4; i++ {
					sums[i] += head[i-from]
				}
			}
		}
		rest := dst[pitch+(whole-p)*rows:]
		clear(rest)
		for i := range rows {
			sum := sums[i]
			for j, v := range x[i*ldx+whole : i*ldx+end] {
				rest[j/4*pitch+4*i+j%4] = v ^ 0x80
				sum -= 128 * (int32(v) - 128)
			}
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(sum))
		}
	}
}

// checkPacked holds for groups that there is a kernel for.
func checkPacked(m int) {
	if m < packFrom {
		panic("BUG: too few packed rows")
	}
}

// packedPasses calls pass for some groups at a time of m rows, [g0,g1), so that they stay in the second-level cache.
func packedPasses(m, row int, pass func(g0, g1 int)) {
	groups := PackGroups(m)
	count := share(groups, packedPassRows(row)/mostPacked)
	for g := 0; g < groups; g += count {
		pass(g, min(groups, g+count))
	}
}

// packedTile is where a kernel writes its part of a tile of which only cols columns exist in y.
type packedTile [mostPacked * TileN]float32

func packedQ8C(y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
	row := packedRow(k, 0)
	bytes, panelBytes := q8cTileBytes(k)
	checkPacked(m)
	_, _, _, _, _ = y[(m-1)*ldy+n-1], x[m*row-1], xscale[m-1], w[(n+TileN-1)/TileN*bytes-1], scratch[panelBytes-1]
	var out packedTile
	packedPasses(m, row, func(g0, g1 int) {
		for j := 0; j < n; j += TileN {
			cols := min(TileN, n-j)
			tile := &w[j/TileN*bytes]
			for g := g0; g < g1; g++ {
				r, rows := groupRows(m, g)
				dst, ld := &out[0], TileN
				if cols == TileN {
					dst, ld = &y[r*ldy+j], ldy
				}
				ahead, stride := fetch(bytes, ((k+3)/4+3)/4, g-g0, g1-g0, j+TileN >= n)
				if g == g0 {
					q8cFirst512(rows, dst, 4*ld, &x[r*row], (k+3)/4, &scratch[0], tile, ahead, stride, &xscale[r])
				} else {
					q8cPacked512(rows, dst, 4*ld, &x[r*row], (k+3)/4, &scratch[0], tile, ahead, stride, &xscale[r])
				}
				if cols < TileN {
					for i := range rows {
						copy(y[(r+i)*ldy+j:(r+i)*ldy+j+cols], out[i*TileN:])
					}
				}
			}
		}
	})
}

// packedQ4 is the product with 4-bit weights in blocks of block rows. Tiles are unpacked in parts for all groups of a pass.
func packedQ4(block int, y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
	row, blocks := packedRow(k, block), (k+block-1)/block
	bytes, panelBlock := q4BlockBytes(block), TileN*block+4*TileN
	checkPacked(m)
	_, _, _, _, _ = y[(m-1)*ldy+n-1], x[m*row-1], xscale[m-1], w[(n+TileN-1)/TileN*blocks*bytes-1], scratch[PackedScratch(k, block)-1]
	panel := scratch[:spreadMost]
	sums, err := mem.View[float32](scratch[spreadMost : spreadMost+4*TileN*packedPassRows(row)])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	step := spreadMost / panelBlock
	var out packedTile
	packedPasses(m, row, func(g0, g1 int) {
		first, _ := groupRows(m, g0)
		at := 0
		for j := 0; j < n; j += TileN {
			cols := min(TileN, n-j)
			last, rows := groupRows(m, g1-1)
			clear(sums[:(last+rows-first)*TileN])
			for b := 0; b < blocks; b += step {
				count := min(step, blocks-b)
				if block == BlockK {
					q4Spread512(&panel[0], &w[at], count)
				} else {
					q4x128Spread512(&panel[0], &w[at], count)
				}
				next := at + count*bytes
				for g := g0; g < g1; g++ {
					r, rows := groupRows(m, g)
					dst, ld := &out[0], TileN
					if cols == TileN {
						dst, ld = &y[r*ldy+j], ldy
					}
					var scale *float32
					if b+count == blocks {
						scale = &xscale[r]
					}
					ahead, stride := fetch(count*bytes, block/32*count, g-g0, g1-g0, next == len(w))
					from := &x[r*row+b*(4+block)*rows]
					if block == BlockK {
						q4Packed512(rows, dst, 4*ld, &sums[(r-first)*TileN], from, count, &panel[0], &w[at], ahead, stride, scale)
					} else {
						q4x128Packed512(rows, dst, 4*ld, &sums[(r-first)*TileN], from, count, &panel[0], &w[at], ahead, stride, scale)
					}
					if cols < TileN && scale != nil {
						for i := range rows {
							copy(y[(r+i)*ldy+j:(r+i)*ldy+j+cols], out[i*TileN:])
						}
					}
				}
				at = next
			}
		}
	})
}

func packRowsF32(dst []float32, x []float32, ldx, m, k, g int) {
	r, rows := groupRows(m, g)
	checkPacked(m)
	_, _ = dst[m*k-1], x[(m-1)*ldx+k-1]
	dst, x = dst[r*k:(r+rows)*k], x[r*ldx:]
	whole := k &^ 15
	for p := 0; p < whole; p += packPart / 4 {
		for q := 0; q < rows; q += 4 {
			q := min(q, rows-4)
			packFloats512(&mem.Bytes(dst[p*rows+q:])[0], 4*rows, &x[q*ldx+p], 4*ldx, min(packPart/4, whole-p)/16)
		}
	}
	for i := range rows {
		for p, v := range x[i*ldx+whole : i*ldx+k] {
			dst[(whole+p)*rows+i] = v
		}
	}
}

func packedF32(y []float32, ldy int, x, w []float32, m, k, n int) {
	packedFloats(y, ldy, x, w, nil, m, k, n)
}

func packedBF16(y []float32, ldy int, x []float32, w []uint16, m, k, n int) {
	packedFloats(y, ldy, x, nil, w, m, k, n)
}

// packedFloats is the product of packed rows with the one weight that is there. Passes take some rows and some k, like
// those of matMulF32.
func packedFloats(y []float32, ldy int, x, w []float32, half []uint16, m, k, n int) {
	size, last := 4, (n+TileN-1)/TileN*TileN*k-1
	if half != nil {
		size, _ = 2, half[last]
	} else {
		_ = w[last]
	}
	checkPacked(m)
	_, _ = y[(m-1)*ldy+n-1], x[m*k-1]
	var out packedTile
	groups := PackGroups(m)
	each := share(groups, packedPassFloats)
	for g0 := 0; g0 < groups; g0 += each {
		g1 := min(groups, g0+each)
		count := share(k, passBytes/(4*mostPacked*(g1-g0)+2*size*TileN)) // two tiles: this one and the next
		for p := 0; p < k; p += count {
			part := min(count, k-p)
			for j := 0; j < n; j += TileN {
				cols := min(TileN, n-j)
				for g := g0; g < g1; g++ {
					r, rows := groupRows(m, g)
					dst, ld := &out[0], TileN
					if cols == TileN {
						dst, ld = &y[r*ldy+j], ldy
					} else if p > 0 {
						for i := range rows {
							copy(out[i*TileN:], y[(r+i)*ldy+j:(r+i)*ldy+j+cols])
						}
					}
					ahead, stride := fetch(size*part*TileN, (part+1)/2, g-g0, g1-g0, j+TileN >= n)
					if g1-g0 > 1 {
						ahead += size * (k - part) * TileN
					}
					if half != nil {
						bf16Packed512(rows, dst, 4*ld, &x[r*k+p*rows], part, &half[j*k+p*TileN], ahead, stride, min(p, 1))
					} else {
						f32Packed512(rows, dst, 4*ld, &x[r*k+p*rows], part, &w[j*k+p*TileN], ahead, stride, min(p, 1))
					}
					if cols < TileN {
						for i := range rows {
							copy(y[(r+i)*ldy+j:(r+i)*ldy+j+cols], out[i*TileN:])
						}
					}
				}
			}
		}
	}
}
