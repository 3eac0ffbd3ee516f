package kernel

import (
	"encoding/binary"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
)

//go:generate go run -C gen . -tier amx -out ../vec_amx_amd64.s -stubs ../vec_amx_amd64.go -pkg kernel
//go:generate go run -C gen . -tier tiled -out ../vec_tiled_amd64.s -stubs ../vec_tiled_amd64.go -pkg kernel

// The set amx multiplies packed rows in tiles (see gen/amx.go). Fewer rows, float32 and everything else are those of
// avx512bf16, from the same weights, and results have the same bits. Attention over bfloat16 is one of its own (see
// vec_tiles_attention_amd64.go).
const (
	tileRows = 16   // rows of a tile
	tileK    = 64   // bytes of one of its rows
	tilePass = 256  // rows that share a part of a q8c tile while it is in the first-level cache
	tilePart = 3072 // k of that part
)

// amxSet is another set, that of avx512bf16, with tiles for packed rows and attention over bfloat16.
func amxSet(other *Set) *Set {
	set := *other
	set.Name, set.PackFrom = "amx", packFrom
	set.PackRows, set.PackedQ8C = packTiles, tilesQ8C
	set.PackedQ4B32 = func(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
		tilesQ4(BlockK, y, x, w, scratch, n)
	}
	set.PackedQ4B128 = func(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
		tilesQ4(pack.Block128, y, x, w, scratch, n)
	}
	set.PeakI8 = peakTiles
	set.AttentionBF16 = attentionTiles
	return &set
}

// tileConfig is the operand of LDTILECFG: the palette, and for each of eight tiles its bytes a row and rows.
type tileConfig [64]byte

// shapeTiles is the configuration for products of tiles of rows x k activations with k x 16 weights, all of the same
// shape; k is a multiple of 4.
func shapeTiles(rows, k int) (config tileConfig) {
	config[0] = 1
	for tile := range 8 {
		bytes, lines := 4*16, rows // sums
		switch tile {
		case 4, 5:
			bytes = k
		case 6, 7:
			lines = k / 4
		}
		binary.LittleEndian.PutUint16(config[16+2*tile:], uint16(bytes))
		config[48+tile] = byte(lines)
	}
	return config
}

// tileWidth is how many k a tile of packed activations has for a weight in such blocks: a block of 32 fills a tile.
func tileWidth(block int) int {
	if block == BlockK {
		return BlockK
	}
	return tileK
}

// tiledK is the number of activations of a packed row, with padding.
func tiledK(k, block int) int {
	if block == 0 {
		block = 4
	}
	return (k + block - 1) / block * block
}

// packTiles is PackRows. Rows lie in groups of 16, the last one of what is left. In a group the tiles [rows][width] of
// successive k follow each other; without blocks the last one is as wide as what is left of k.
func packTiles(dst []byte, x Matrix[uint8], m, k, block, g int) {
	width, padded := tileWidth(block), tiledK(k, block)
	checkPacked(m)
	_ = dst[PackedBytes(m, k, block)-1]
	x.mustHold(m, k)
	first, count := groupRows(m, g)
	for row := first; row < first+count; row++ {
		from, group := x.row(row, k), row/tileRows
		rows, line := min(tileRows, m-group*tileRows), row%tileRows
		to := dst[group*tileRows*padded:][:rows*padded]
		whole := k / width
		if whole > 0 {
			if at := &to[line*width]; width == BlockK {
				tileRow32(at, rows*width, &from[0], whole)
			} else {
				tileRow64(at, rows*width, &from[0], whole)
			}
		}
		for pos := whole * width; pos < padded; pos += width {
			piece := min(width, padded-pos)
			out := to[pos*rows+line*piece:][:piece]
			clear(out)
			for i, value := range from[min(k, pos):min(k, pos+piece)] {
				out[i] = value ^ 0x80
			}
		}
	}
}

// aligned returns the part of v, which has a line more than is needed, that begins with a cache line.
func aligned[T mem.Scalar](v []T) []T {
	bytes := mem.Bytes(v)
	return v[int(-mem.Address(bytes)&(cacheLine-1))*len(v)/len(bytes):]
}

// tilesQ8C is PackedQ8C. All tiles are multiplied with a part of the activations of a pass, which stays in the
// second-level cache, before the next part: meanwhile the sums wait in y, as integers. What is left of k is a part of its
// own, of narrower tiles.
func tilesQ8C(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	m, k := x.M, x.K
	bytes, scales := q8cTileBytes(k)
	padded := tiledK(k, 0)
	mustBePacked(x, scratch, 0)
	y.mustHold(m, n)
	_ = w[(n+TileN-1)/TileN*bytes-1]
	var around [4*tileRows*TileN + cacheLine/4]int32
	var out [tilePass * TileN]float32
	product := tileProduct{x: x, padded: padded, sums: aligned(around[:])}
	whole := k / tileK * tileK
	part := share(max(1, whole/tileK), tilePart/tileK) * tileK
	for first := 0; first < m; first += tilePass {
		product.first, product.count = first, min(tilePass, m-first)
		for pos := 0; pos < padded; pos += product.k {
			if product.width, product.k = tileK, min(part, whole-pos); pos == whole {
				product.width, product.k = padded-whole, padded-whole
			}
			product.pos = pos
			for j := 0; j < n; j += TileN {
				tile := w[j/TileN*bytes:][:bytes]
				scale, err := mem.View[float32](tile[scales : scales+4*TileN])
				if err != nil {
					panic("BUG: " + err.Error())
				}
				cols := min(TileN, n-j)
				to := y.From(first, j)
				var next *float32
				if cols < TileN {
					to = Rows(out[:], TileN)
				} else if j+2*TileN <= n {
					next = y.at(first, j+TileN)
				}
				product.add(to, tile, scale, next)
				if cols < TileN && pos+product.k == padded {
					copyColumns(y, first, j, cols, product.count, out[:])
				}
			}
		}
	}
}

// tileProduct is the product of some packed rows, from first on, with a part of a q8c tile.
type tileProduct struct {
	x             PackedRows
	padded        int // bytes of a row
	first, count  int // rows
	pos, k, width int // of the part, and of its tiles
	sums          []int32
}

// add adds the products of the part of a tile to y, and after the last part makes results of them. next is what is
// written after them.
func (p *tileProduct) add(y Matrix[float32], tile []byte, scales []float32, next *float32) {
	last := 0
	if p.pos+p.k == p.padded {
		last = 1
	}
	for row := 0; row < p.count; {
		groups, rows := (p.count-row)/tileRows, tileRows
		if groups == 0 {
			groups, rows = 1, p.count-row
		}
		config := shapeTiles(rows, p.width)
		from := &p.x.Bytes[(p.first+row)*p.padded+p.pos*rows]
		q8cTilesAMX(&config[0], groups, from, tileRows*p.padded, p.width, rows*p.width, &tile[p.pos*TileN],
			p.k/p.width, &p.sums[0], y.at(row, 0), 4*y.Stride, next, p.pos, last, &scales[0],
			&p.x.Scale[p.first+row], rows)
		row += groups * rows
	}
}

// tilesQ4 is the product with 4-bit weights in blocks of block rows. As in packedQ4, parts of a tile are unpacked for
// all rows of a pass, whose float sums collect in scratch.
func tilesQ4(block int, y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	m, k := x.M, x.K
	padded, blocks, width := tiledK(k, block), (k+block-1)/block, tileWidth(block)
	bytes, panelBlock := q4BlockBytes(block), TileN*block+4*TileN
	mustBePacked(x, scratch, block)
	y.mustHold(m, n)
	_ = w[(n+TileN-1)/TileN*blocks*bytes-1]
	panel := scratch[:spreadMost]
	pass := packedPassRows(packedRow(k, block)) &^ (tileRows - 1)
	sums, err := mem.View[float32](scratch[spreadMost : spreadMost+4*TileN*pass])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var around [2*tileRows*TileN + cacheLine/4]int32
	var out [tileRows * TileN]float32
	step := spreadMost / panelBlock
	for first := 0; first < m; first += pass {
		count := min(pass, m-first)
		product := blockProduct{
			block: block, width: width, x: x.Bytes, first: first, count: count, padded: padded,
			whole: shapeTiles(tileRows, width), last: shapeTiles(max(1, count%tileRows), width),
			ints: aligned(around[:]), sums: sums,
		}
		for j := 0; j < n; j += TileN {
			tile := w[j/TileN*blocks*bytes:]
			clear(sums[:(count+tileRows-1)/tileRows*tileRows*TileN])
			for index := 0; index < blocks; index += step {
				part := min(step, blocks-index)
				if block == BlockK {
					tileUnpack32(&panel[0], &tile[index*bytes], part)
				} else {
					tileUnpack128(&panel[0], &tile[index*bytes], part)
				}
				product.add(&panel[0], index, part)
			}
			cols := min(TileN, n-j)
			for row := 0; row < count; row += tileRows {
				rows := min(tileRows, count-row)
				dst, ld := output(y, first+row, j, cols, out[:])
				q4ScaleAMX(rows, dst, 4*ld, &sums[row*TileN], &x.Scale[first+row])
				if cols < TileN {
					copyColumns(y, first+row, j, cols, rows, out[:])
				}
			}
		}
	}
}

// blockProduct is the product of some packed rows, from first on, with a tile of 4-bit weights: sums of floats.
type blockProduct struct {
	block, width int // rows of a block, and of them the k of a tile of x
	x            []byte
	first, count int
	padded       int        // bytes of a row
	whole, last  tileConfig // for all rows of a group, and for those of the last one
	ints         []int32    // room for the sums of a block
	sums         []float32
}

// add adds the products of some blocks from index on, unpacked in panel.
func (p *blockProduct) add(panel *byte, index, blocks int) {
	whole, rest := p.count/tileRows, p.count%tileRows
	if whole > 0 {
		from, sums := &p.x[p.first*p.padded+index*p.block*tileRows], &p.sums[0]
		pitch, advance := tileRows*p.padded, tileRows*p.width
		if p.block == BlockK {
			q4TilesAMX(&p.whole[0], whole, from, pitch, advance, panel, blocks, &p.ints[0], sums)
		} else {
			q4x128TilesAMX(&p.whole[0], whole, from, pitch, advance, panel, blocks, &p.ints[0], sums)
		}
	}
	if rest > 0 {
		row := whole * tileRows
		from, sums := &p.x[(p.first+row)*p.padded+index*p.block*rest], &p.sums[row*TileN]
		if p.block == BlockK {
			q4TilesAMX(&p.last[0], 1, from, 0, rest*p.width, panel, blocks, &p.ints[0], sums)
		} else {
			q4x128TilesAMX(&p.last[0], 1, from, 0, rest*p.width, panel, blocks, &p.ints[0], sums)
		}
	}
}

// peakTiles is PeakI8: four products of whole tiles a turn.
func peakTiles(ops int64) int64 {
	config := shapeTiles(tileRows, tileK)
	var ones [tileK]byte
	for i := range ones {
		ones[i] = 1
	}
	return counted(ops, 2*4*tileRows*tileRows*tileK, func(turns int) (sum int64) {
		var sums [4 * tileRows * tileRows]int32
		peakTilesAMX(&config[0], turns, &ones[0], &sums[0])
		return integers(mem.Bytes(sums[:]))
	})
}
