package kernel

import (
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
)

// Products of packed rows with 4-bit weights in tiles (see gen/amx_nibbles.go). A part of a tile of the weight is
// unpacked for all rows of a pass. The rows of a call are so few that their float sums stay in the first-level cache.
const (
	nibblePassBytes = 3 << 19 // of the packed rows of a pass, which stay in the second-level cache
	nibblePassMost  = 256     // rows of a pass
	nibbleCall      = 128     // rows of a call
	nibbleLines     = 2       // lines that a kernel asks for in each group of each step
)

// A step of a kernel takes two blocks of q4b32, or one of q4b128.
const (
	nibbleDepth32, nibbleDepth128 = 16, 8 // blocks that are unpacked at a time
	nibbleBlock32, nibbleBlock128 = (BlockK + 4) * TileN, (pack.Block128 + 4) * TileN
	nibblePanel                   = nibbleDepth128 * nibbleBlock128
)

// nibbleWidth is the k of a tile of activations: a block of 32 fills half of a tile, which takes as long as all of it.
func nibbleWidth(block int) int { return min(block, tileK) }

// tileGroups divides a piece of rows into as few groups as there can be, of equal size but for the last one. A kernel
// multiplies that as if it were as large as the others, and reads what lies behind it: packed rows of activations are
// smaller than PackedBytes by more than that.
func tileGroups(piece int) (groups, rows int) {
	groups = (piece + tileRows - 1) / tileRows
	return groups, (piece + groups - 1) / groups
}

// packNibbles is PackRows for blocks. Rows lie in pieces of nibbleCall, which are multiplied together. In a piece the
// steps of a kernel follow each other, and in a step both tiles of all rows. A last step of one block has one tile.
func packNibbles(dst []byte, x Matrix[uint8], m, k, block, g int) {
	padded, width := tiledK(k, block), nibbleWidth(block)
	checkPacked(m)
	_ = dst[PackedBytes(m, k, block)-1]
	x.mustHold(m, k)
	whole := k / (2 * width) // steps
	first, count := groupRows(m, g)
	for row := first; row < first+count; row++ {
		from, piece := x.row(row, k), row/nibbleCall*nibbleCall
		tile := width * min(nibbleCall, m-piece) // of all rows
		to := dst[piece*padded+(row-piece)*width:]
		if whole > 0 {
			if width == BlockK {
				tileSteps32(&to[0], tile, 2*tile, &from[0], whole)
			} else {
				tileSteps64(&to[0], tile, 2*tile, &from[0], whole)
			}
		}
		for pos := 2 * width * whole; pos < padded; pos += width {
			packSigned(to[pos/width*tile:][:width], from[min(k, pos):min(k, pos+width)])
		}
	}
}

// nibbleProduct is the product of a pass of packed rows with 4-bit weights.
type nibbleProduct struct {
	block  int // weights that share a scale
	blocks int // of a tile of the weight
	depth  int // blocks that are unpacked at a time

	x           []byte
	row         int // bytes of a packed row
	first, rows int // rows of the pass

	panel []byte    // unpacked blocks
	dots  []int32   // room for the integer sums of a kernel
	sums  []float32 // the float sums of the rows and one tile
	spare []float32 // room for the sums of a group of rows
}

// tilesQ4 is the product with 4-bit weights in blocks of block rows: for each pass of rows it multiplies all tiles of the
// weight, a panel of unpacked blocks after the other.
func tilesQ4(block int, y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	m, k := x.M, x.K
	product := nibbleProduct{block: block, blocks: (k + block - 1) / block, depth: nibbleDepth128, x: x.Bytes,
		row: tiledK(k, block)}
	if block == BlockK {
		product.depth = nibbleDepth32
	}
	tileBytes := product.blocks * q4BlockBytes(block)
	mustBePacked(x, scratch, block)
	y.mustHold(m, n)
	_ = w[(n+TileN-1)/TileN*tileBytes-1]
	var dots [4*tileRows*tileRows + cacheLine/4]int32
	var spare [tileRows*TileN + cacheLine/4]float32
	product.dots, product.spare = aligned(dots[:]), aligned(spare[:])
	product.divide(scratch)

	pass := share(m, min(nibblePassMost, max(nibbleCall, nibblePassBytes/product.row)))
	pass = (pass + nibbleCall - 1) / nibbleCall * nibbleCall
	for first := 0; first < m; first += pass {
		product.first, product.rows = first, min(pass, m-first)
		for j := 0; j < n; j += TileN {
			var results Matrix[float32]
			if j+TileN <= n {
				results = y.From(first, j)
			}
			product.multiply(w[j/TileN*tileBytes:], results)
			product.scale(y, x.Scale, j, min(TileN, n-j))
		}
	}
}

// divide takes the panel and the float sums from scratch.
func (p *nibbleProduct) divide(scratch []byte) {
	scratch = aligned(scratch)
	p.panel = scratch[:nibblePanel]
	sums, err := mem.View[float32](scratch[nibblePanel : nibblePanel+4*TileN*nibblePassMost])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	p.sums = sums
}

// multiply makes the float sums of the pass and the tile that w begins with. The room for results is asked for with the
// last blocks.
func (p *nibbleProduct) multiply(w []byte, results Matrix[float32]) {
	clear(p.sums[:(p.rows+tileRows-1)/tileRows*tileRows*TileN])
	for index := 0; index < p.blocks; index += p.depth {
		count := min(p.depth, p.blocks-index)
		var asked Matrix[float32]
		if index+count == p.blocks {
			asked = results
		}
		p.add(w[index*q4BlockBytes(p.block):], index, count, asked)
	}
}

// scale writes results of the rows of the pass to cols columns of y from j on.
func (p *nibbleProduct) scale(y Matrix[float32], scale []float32, j, cols int) {
	var out [tileRows * TileN]float32
	for piece := 0; piece < p.rows; piece += nibbleCall {
		left := min(nibbleCall, p.rows-piece)
		_, most := tileGroups(left)
		sums := p.sums[piece*TileN:]
		for row := 0; row < left; row += most {
			rows, first := min(most, left-row), p.first+piece+row
			dst, ld := output(y, first, j, cols, out[:])
			q4ScaleAMX(rows, dst, 4*ld, &sums[row/most*tileRows*TileN], &scale[first])
			if cols < TileN {
				copyColumns(y, first, j, cols, rows, out[:])
			}
		}
	}
}

// shapeStaying is the configuration of kernels whose weights stay in tiles: sums, activations, weights.
func shapeStaying(rows, width int) (config tileConfig) {
	for tile := range 8 {
		bytes, lines := tileK, rows
		switch {
		case tile >= 4:
			lines = width / 4
		case tile >= 2:
			bytes = width
		}
		config.set(tile, lines, bytes)
	}
	return config
}

// add unpacks count blocks from w, which begin at the block index, and adds their products with the rows of the pass.
//
// The room for results, where there is any, is asked for meanwhile: their stores would wait for memory.
func (p *nibbleProduct) add(w []byte, index, count int, results Matrix[float32]) {
	panel, steps, bytes := p.panel, count, count*q4BlockBytes(p.block)
	if p.block == BlockK {
		tileUnpack32(&panel[0], &w[0], count)
		if count%2 != 0 { // half a step: products with zeros
			clear(panel[count*nibbleBlock32:][:nibbleBlock32])
		}
		steps = (count + 1) / 2
	} else {
		tileUnpack128(&panel[0], &w[0], count)
	}

	part := nibblePart{index: index, count: count, next: w}
	if next := w[bytes:]; len(next) > 0 {
		turns := (p.rows + tileRows - 1) / tileRows * steps
		part.next, part.fetch = next, min(cacheLine*nibbleLines, (bytes+turns-1)/turns)
	}

	for row := 0; row < p.rows; row += nibbleCall {
		if results.Data != nil {
			part.results = results.From(row, 0)
		}
		groups := p.call(row, part)
		part.next = part.next[min(len(part.next)-1, groups*steps*part.fetch):]
	}
}

// nibblePart is some unpacked blocks of a tile of the weight, and what is prefetched while they are multiplied.
type nibblePart struct {
	index, count int
	next         []byte          // packed weights behind these blocks
	fetch        int             // bytes of next that are prefetched in each turn
	results      Matrix[float32] // room for results, if any
}

// call adds the products of a piece of rows that begins at row of the pass, and returns its number of groups.
func (p *nibbleProduct) call(row int, part nibblePart) (groups int) {
	left, width := min(nibbleCall, p.rows-row), nibbleWidth(p.block)
	groups, rows := tileGroups(left)
	config := shapeStaying(rows, width)
	x := p.x[(p.first+row)*p.row:]
	tile := width * left // bytes of a tile of all rows
	sums := &p.sums[row*TileN]
	results, ldy := sums, 0
	if part.results.Data != nil {
		results, ldy = &part.results.Data[0], 4*part.results.Stride
	}
	if p.block != BlockK {
		from := &x[part.index*2*tile]
		q4x128TilesAMX(&config[0], groups, from, width*rows, tile, 2*tile, &p.panel[0], part.count, &p.dots[0], sums,
			&p.spare[0], &part.next[0], part.fetch, results, ldy)
		return groups
	}

	whole := part.count / 2
	if whole > 0 {
		from := &x[part.index*tile]
		q4TilesAMX(&config[0], groups, from, width*rows, tile, 2*tile, &p.panel[0], whole, &p.dots[0], sums,
			&p.spare[0], &part.next[0], part.fetch, results, ldy)
	}
	if part.count%2 != 0 { // half a step, the last one
		from := &x[(part.index+2*whole)*tile]
		q4TilesAMX(&config[0], groups, from, width*rows, 0, 0, &p.panel[2*whole*nibbleBlock32], 1, &p.dots[0], sums,
			&p.spare[0], &part.next[0], 0, sums, 0)
	}
	return groups
}
