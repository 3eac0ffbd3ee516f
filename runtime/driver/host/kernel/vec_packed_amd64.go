package kernel

import (
	"encoding/binary"

	"github.com/hetc/hetc/internal/mem"
)

// packPart is how many bytes of each row are packed at a time, so that a group's part stays in the first-level cache.
const packPart = 16 * cacheLine

// packRows packs group g of m rows of k activations (see PackGroups): whole cache lines by a
// kernel, four rows at a time, the rest in Go. block is the number of rows of a weight block, 0 for
// one block of all.
func packRows(dst []byte, x Matrix[uint8], m, k, block, g int) {
	line, rows := groupRows(m, g)
	row, pitch := packedRow(k, block), 4*rows
	checkPacked(m)
	_ = dst[m*row-1]
	x.mustHold(m, k)
	dst, x = dst[line*row:(line+rows)*row], x.From(line, 0)
	if block == 0 {
		block = (k + 3) / 4 * 4
	}
	size := (block/4 + 1) * pitch // of a block
	whole := 0                    // activations of whole lines
	if block == BlockK {
		whole = k &^ (cacheLine - 1)
	}
	for pos := 0; pos < whole; pos += packPart {
		for quad := 0; quad < rows; quad += 4 {
			// the last four rows, some of them again, where rows is no multiple of 4
			from := min(quad, rows-4)
			packBlocks512(&dst[pos/block*size+4*from], pitch, x.at(from, pos), x.Stride,
				min(packPart, whole-pos)/cacheLine)
		}
	}
	// the blocks that packBlocks512 cannot write: one of all k, of 128, or the rest
	for pos := whole; pos < k; pos += block {
		packBlock(dst[pos/block*size:][:size], x, rows, pos, min(k, pos+block))
	}
}

// packBlock packs the activations pos..end-1 of some rows as one block.
func packBlock(dst []byte, x Matrix[uint8], rows, pos, end int) {
	pitch, whole := 4*rows, pos+(end-pos)&^(cacheLine-1)
	var sums [mostPacked]int32
	for part := pos; part < whole; part += packPart {
		for quad := 0; quad < rows; quad += 4 {
			var head [4]int32
			from := min(quad, rows-4)
			packQuad512(&dst[pitch+(part-pos)*rows+4*from], pitch, x.at(from, part), x.Stride,
				min(packPart, whole-part)/cacheLine, &head[0])
			// rows packed twice count once
			for i := quad; i < from+4; i++ {
				sums[i] += head[i-from]
			}
		}
	}
	rest := dst[pitch+(whole-pos)*rows:]
	clear(rest)
	for i := range rows {
		sum := sums[i]
		for j, value := range x.row(i, end)[whole:] {
			rest[j/4*pitch+4*i+j%4] = value ^ 0x80
			sum -= 128 * (int32(value) - 128)
		}
		binary.LittleEndian.PutUint32(dst[4*i:], uint32(sum))
	}
}

// checkPacked panics where a group could have fewer rows than the smallest kernel takes.
func checkPacked(m int) {
	if m < packFrom {
		panic("BUG: too few packed rows")
	}
}

// mustBePacked panics where there are too few packed rows for a weight in blocks of block rows, or too little room for
// their product.
func mustBePacked(x PackedRows, scratch []byte, block int) {
	checkPacked(x.M)
	_, _, _ = x.Bytes[PackedBytes(x.M, x.K, block)-1], x.Scale[x.M-1], scratch[PackedScratch(x.K, block)-1]
}

// packedPasses calls pass for some groups [g0,g1) at a time, as many as stay in the second-level
// cache.
func packedPasses(m, row int, pass func(g0, g1 int)) {
	groups := PackGroups(m)
	count := share(groups, packedPassRows(row)/mostPacked)
	for group := 0; group < groups; group += count {
		pass(group, min(groups, group+count))
	}
}

// packedTile is where a kernel writes its rows of a tile of which not all columns exist in y.
type packedTile [mostPacked * TileN]float32

// packedQ8C multiplies packed rows with a q8c weight. The first group of a pass leaves the unsigned
// weights of a tile in scratch for the others.
func packedQ8C(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	m, k, row := x.M, x.K, packedRow(x.K, 0)
	bytes, _ := q8cTileBytes(k)
	mustBePacked(x, scratch, 0)
	y.mustHold(m, n)
	_ = w[(n+TileN-1)/TileN*bytes-1]
	var out packedTile
	quarter := turns{((k+3)/4 + 3) / 4, ((k+3)/4 + 3) / 4} // of the steps
	packedPasses(m, row, func(g0, g1 int) {
		for j := 0; j < n; j += TileN {
			cols := min(TileN, n-j)
			tile := &w[j/TileN*bytes]
			for group := g0; group < g1; group++ {
				line, rows := groupRows(m, group)
				dst, ld := output(y, line, j, cols, out[:])
				from, scale := &x.Bytes[line*row], &x.Scale[line]
				last := (j/TileN+1)*bytes >= len(w)
				ask := fetch(bytes, 0, quarter, group-g0, g1-g0, last)
				if last && len(x.Next) > 0 {
					between := int(mem.Address(x.Next)-mem.Address(w[j/TileN*bytes:])) - len(x.Next)
					ask = fetch(len(x.Next), between, quarter, group-g0, g1-g0, false)
				}
				if group == g0 {
					q8cFirst512(rows, dst, 4*ld, from, (k+3)/4, &scratch[0], tile, ask.ahead, ask.stride, ask.gap, scale)
				} else {
					q8cPacked512(rows, dst, 4*ld, from, (k+3)/4, &scratch[0], tile, ask.ahead, ask.stride, ask.gap, scale)
				}
				if cols < TileN {
					copyColumns(y, line, j, cols, rows, out[:])
				}
			}
		}
	})
}

// packedQ4 is the product with 4-bit weights in blocks of block rows. Parts of a tile are unpacked
// for all groups of a pass; float sums collect in scratch, and the last part scales them into y.
func packedQ4(block int, y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	m, k := x.M, x.K
	blocks, bytes := (k+block-1)/block, q4BlockBytes(block)
	mustBePacked(x, scratch, block)
	y.mustHold(m, n)
	_ = w[(n+TileN-1)/TileN*blocks*bytes-1]
	var out packedTile
	product := packedProduct{
		y: y, x: x, w: w, n: n, block: block, row: packedRow(k, block), panel: scratch[:spreadMost], out: &out,
	}
	sums, err := mem.View[float32](scratch[spreadMost : spreadMost+4*TileN*packedPassRows(product.row)])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	product.sums = sums

	step := spreadMost / (TileN*block + 4*TileN) // blocks of a part
	packedPasses(m, product.row, func(g0, g1 int) {
		product.pass(g0, g1)
		at := 0
		for j := 0; j < n; j += TileN {
			clear(sums[:product.rows*TileN])
			for index := 0; index < blocks; index += step {
				count := min(step, blocks-index)
				product.add(j, at, index, count, index+count == blocks)
				at += count * bytes
			}
		}
	})
}

// packedProduct is the product of groups of packed rows with 4-bit weights.
type packedProduct struct {
	y     Matrix[float32]
	x     PackedRows
	w     []byte
	n     int
	block int // weights that share a scale
	row   int // bytes of a packed row

	panel []byte      // unpacked blocks of a part
	sums  []float32   // of the rows of the pass
	out   *packedTile // room for the results of a tile that has columns beyond those of y

	// the pass: groups g0..g1-1, their first row and the number of their rows
	g0, g1, first, rows int
}

// pass sets the groups of a pass.
func (p *packedProduct) pass(g0, g1 int) {
	p.g0, p.g1 = g0, g1
	p.first, _ = groupRows(p.x.M, g0)
	last, rows := groupRows(p.x.M, g1-1)
	p.rows = last + rows - p.first
}

// add unpacks count blocks at byte at of w, which begin at the block index, and adds their products to the sums of the
// columns from j on. With the last blocks of a tile it makes results of the sums.
func (p *packedProduct) add(j, at, index, count int, last bool) {
	if p.block == BlockK {
		q4Spread512(&p.panel[0], &p.w[at], count)
	} else {
		q4x128Spread512(&p.panel[0], &p.w[at], count)
	}
	bytes, cols := count*q4BlockBytes(p.block), min(TileN, p.n-j)
	for group := p.g0; group < p.g1; group++ {
		line, rows := groupRows(p.x.M, group)
		dst, ld := output(p.y, line, j, cols, p.out[:])
		var scale *float32
		if last {
			scale = &p.x.Scale[line]
		}
		steps := p.block / 32 * count
		ask := fetch(bytes, 0, turns{steps, 2 * steps}, group-p.g0, p.g1-p.g0, at+bytes == len(p.w))
		from, sums := &p.x.Bytes[line*p.row+index*(4+p.block)*rows], &p.sums[(line-p.first)*TileN]
		if p.block == BlockK {
			q4Packed512(rows, dst, 4*ld, sums, from, count, &p.panel[0], &p.w[at], ask.ahead, ask.stride, ask.gap,
				scale)
		} else {
			q4x128Packed512(rows, dst, 4*ld, sums, from, count, &p.panel[0], &p.w[at], ask.ahead, ask.stride, ask.gap,
				scale)
		}
		if cols < TileN && last {
			copyColumns(p.y, line, j, cols, rows, p.out[:])
		}
	}
}

// packRowsF32 interleaves the rows of group g: one element of each row, then the next ones.
func packRowsF32(dst []float32, x Matrix[float32], m, k, g int) {
	row, rows := groupRows(m, g)
	checkPacked(m)
	_ = dst[m*k-1]
	x.mustHold(m, k)
	dst, x = dst[row*k:(row+rows)*k], x.From(row, 0)
	whole := k &^ 15
	for pos := 0; pos < whole; pos += packPart / 4 {
		for quad := 0; quad < rows; quad += 4 {
			from := min(quad, rows-4)
			to, vectors := &mem.Bytes(dst[pos*rows+from:])[0], min(packPart/4, whole-pos)/16
			packFloats512(to, 4*rows, x.at(from, pos), 4*x.Stride, vectors)
		}
	}
	for i := range rows {
		for pos, value := range x.row(i, k)[whole:] {
			dst[(whole+pos)*rows+i] = value
		}
	}
}

// packedF32 and packedBF16 are y = x w of packed rows, with weights of either type.
func packedF32(y Matrix[float32], x, w []float32, m, k, n int) {
	packedFloats(y, x, w, nil, m, k, n)
}

func packedBF16(y Matrix[float32], x []float32, w []uint16, m, k, n int) {
	packedFloats(y, x, nil, w, m, k, n)
}

// packedFloats multiplies packed rows with the weight that is given, w or half. Passes take some
// rows and some k, like those of matMulF32.
func packedFloats(y Matrix[float32], x, w []float32, half []uint16, m, k, n int) {
	size, last := 4, (n+TileN-1)/TileN*TileN*k-1
	if half != nil {
		size, _ = 2, half[last]
	} else {
		_ = w[last]
	}
	checkPacked(m)
	y.mustHold(m, n)
	_ = x[m*k-1]
	var out packedTile
	groups := PackGroups(m)
	each := share(groups, packedPassFloats)
	for g0 := 0; g0 < groups; g0 += each {
		g1 := min(groups, g0+each)
		count := share(k, passBytes/(4*mostPacked*(g1-g0)+2*size*TileN)) // two tiles: this one and the next
		for pos := 0; pos < k; pos += count {
			part := min(count, k-pos)
			every := turns{inOrder: (part + 1) / 2}
			if half == nil { // bf16Packed512 asks in order
				every.sideBySide = (part + 3) / 4
			}
			for j := 0; j < n; j += TileN {
				cols := min(TileN, n-j)
				for group := g0; group < g1; group++ {
					row, rows := groupRows(m, group)
					dst, ld := output(y, row, j, cols, out[:])
					// the sum continues in out
					if cols < TileN && pos > 0 {
						for i := range rows {
							copy(out[i*TileN:], y.row(row+i, n)[j:])
						}
					}
					ask := fetch(size*part*TileN, size*(k-part)*TileN, every, group-g0, g1-g0,
						(j+TileN)*k >= len(w)+len(half))
					if half != nil {
						bf16Packed512(rows, dst, 4*ld, &x[row*k+pos*rows], part, &half[j*k+pos*TileN], ask.ahead,
							ask.stride, min(pos, 1))
					} else {
						f32Packed512(rows, dst, 4*ld, &x[row*k+pos*rows], part, &w[j*k+pos*TileN], ask.ahead,
							ask.stride, ask.gap, min(pos, 1))
					}
					if cols < TileN {
						copyColumns(y, row, j, cols, rows, out[:])
					}
				}
			}
		}
	}
}
