package kernel

import (
	"encoding/binary"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
)

//go:generate go run -C gen . -tier amx -out ../vec_amx_amd64.s -stubs ../vec_amx_amd64.go -pkg kernel

// The set amx multiplies packed rows in tiles (see gen/amx.go). Fewer rows, float32 and everything else are those of
// avx512vnni, from the same weights, and results have the same bits.
const (
	tileRows = 16   // rows of a tile
	tileK    = 64   // bytes of one of its rows
	tilePass = 256  // rows that share a part of a q8c tile while it is in the first-level cache
	tilePart = 1024 // k of that part, 32 KiB
)

// amxSet is another set, that of avx512vnni, with tiles for packed rows.
func amxSet(other *Set) *Set {
	set := *other
	set.Name, set.PackFrom = "amx", packFrom
	set.PackRows, set.PackedQ8C = packTiles, tilesQ8C
	set.PackedQ4B32 = func(y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
		tilesQ4(BlockK, y, ldy, x, xscale, w, scratch, m, k, n)
	}
	set.PackedQ4B128 = func(y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
		tilesQ4(pack.Block128, y, ldy, x, xscale, w, scratch, m, k, n)
	}
	set.PeakI8 = peakTiles
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
func packTiles(dst []byte, x []uint8, ldx, m, k, block, g int) {
	width, padded := tileWidth(block), tiledK(k, block)
	_, _ = dst[m*padded-1], x[(m-1)*ldx+k-1]
	first, count := groupRows(m, g)
	for row := first; row < first+count; row++ {
		from, group := x[row*ldx:row*ldx+k], row/tileRows
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

// tilesQ8C is PackedQ8C. A part of a tile's k is multiplied with all rows of a pass, whose sums wait meanwhile. What is
// left of k is one more part, of narrower tiles.
func tilesQ8C(y []float32, ldy int, x []byte, xscale []float32, w, _ []byte, m, k, n int) {
	bytes, scales := q8cTileBytes(k)
	padded := tiledK(k, 0)
	_, _, _, _ = y[(m-1)*ldy+n-1], x[m*padded-1], xscale[m-1], w[(n+TileN-1)/TileN*bytes-1]
	var around [tilePass*TileN + cacheLine/4]int32
	var out [tileRows * TileN]float32
	sums := aligned(around[:])
	whole := k / tileK // steps
	part := share(max(1, whole), tilePart/tileK)
	for first := 0; first < m; first += tilePass {
		count := min(tilePass, m-first)
		groups := (count + tileRows - 1) / tileRows
		for j := 0; j < n; j += TileN {
			tile := w[j/TileN*bytes:][:bytes]
			product := tileProduct{x: x, first: first, count: count, padded: padded, sums: sums}
			if j+TileN < n { // the next tile is fetched by all pairs of groups, each a share
				product.ahead, product.fetch = bytes, tileK*TileN/((groups+1)/2)
			}
			for step := 0; step < whole; step += part {
				product.add(&tile[step*tileK*TileN], step*tileK, tileK, min(part, whole-step))
			}
			if rest := padded - whole*tileK; rest > 0 {
				product.add(&tile[whole*tileK*TileN], whole*tileK, rest, 1)
			}
			scale, err := mem.View[float32](tile[scales : scales+4*TileN])
			if err != nil {
				panic("BUG: " + err.Error())
			}
			cols := min(TileN, n-j)
			for row := 0; row < count; row += tileRows {
				rows := min(tileRows, count-row)
				dst, ld := tileOutput(y, ldy, first+row, j, cols, &out)
				q8cScaleAMX(rows, dst, 4*ld, &sums[row*TileN], &scale[0], &xscale[first+row])
				if cols < TileN {
					copyColumns(y, ldy, first+row, j, cols, rows, out[:])
				}
			}
		}
	}
}

// tileProduct is the product of some packed rows, from first on, with a q8c tile: sums of integers.
type tileProduct struct {
	x            []byte
	first, count int
	padded       int // bytes of a row
	sums         []int32
	more         int // 0 before the first part
	ahead, fetch int
}

// add adds the products of a part of k: steps tiles of the given width from pos on.
func (p *tileProduct) add(w *byte, pos, width, steps int) {
	whole, rest := p.count/tileRows, p.count%tileRows
	if whole > 0 {
		config := shapeTiles(tileRows, width)
		q8cTilesAMX(&config[0], whole, &p.x[p.first*p.padded+pos*tileRows], tileRows*p.padded, width, tileRows*width, w,
			steps, &p.sums[0], p.more, p.ahead, p.fetch)
	}
	if rest > 0 {
		config := shapeTiles(rest, width)
		q8cTilesAMX(&config[0], 1, &p.x[(p.first+whole*tileRows)*p.padded+pos*rest], 0, width, rest*width, w, steps,
			&p.sums[whole*tileRows*TileN], p.more, p.ahead, p.fetch)
	}
	p.more = 1
}

// tileOutput is output for the rows of a tile.
func tileOutput(y []float32, ldy, r, j, cols int, out *[tileRows * TileN]float32) (dst *float32, ld int) {
	if cols < TileN {
		return &out[0], TileN
	}
	return &y[r*ldy+j], ldy
}

// tilesQ4 is the product with 4-bit weights in blocks of block rows. As in packedQ4, parts of a tile are unpacked for
// all rows of a pass, whose float sums collect in scratch.
func tilesQ4(block int, y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
	padded, blocks, width := tiledK(k, block), (k+block-1)/block, tileWidth(block)
	bytes, panelBlock := q4BlockBytes(block), TileN*block+4*TileN
	_, _, _, _, _ = y[(m-1)*ldy+n-1], x[m*padded-1], xscale[m-1], w[(n+TileN-1)/TileN*blocks*bytes-1],
		scratch[PackedScratch(k, block)-1]
	panel := scratch[:spreadMost]
	pass := packedPassRows(packedRow(k, block)) &^ (tileRows - 1)
	sums, err := mem.View[float32](scratch[spreadMost : spreadMost+4*TileN*pass])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var around [2*tileRows*TileN + cacheLine/4]int32
	var out [tileRows * TileN]float32
	ints := aligned(around[:])
	step := spreadMost / panelBlock
	config := shapeTiles(tileRows, width)
	for first := 0; first < m; first += pass {
		count := min(pass, m-first)
		whole, rest := count/tileRows, count%tileRows
		last := shapeTiles(max(1, rest), width)
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
				if whole > 0 {
					from := &x[first*padded+index*block*tileRows]
					q4Tiles(block, &config, whole, from, tileRows*padded, tileRows*width, &panel[0], part, &ints[0], &sums[0])
				}
				if rest > 0 {
					from := &x[(first+whole*tileRows)*padded+index*block*rest]
					q4Tiles(block, &last, 1, from, 0, rest*width, &panel[0], part, &ints[0], &sums[whole*tileRows*TileN])
				}
			}
			cols := min(TileN, n-j)
			for row := 0; row < count; row += tileRows {
				rows := min(tileRows, count-row)
				dst, ld := tileOutput(y, ldy, first+row, j, cols, &out)
				q4ScaleAMX(rows, dst, 4*ld, &sums[row*TileN], &xscale[first+row])
				if cols < TileN {
					copyColumns(y, ldy, first+row, j, cols, rows, out[:])
				}
			}
		}
	}
}

// q4Tiles calls the kernel of the block size.
func q4Tiles(block int, config *tileConfig, groups int, x *byte, pitch, advance int, panel *byte, blocks int,
	ints *int32, sums *float32) {
	if block == BlockK {
		q4TilesAMX(&config[0], groups, x, pitch, advance, panel, blocks, ints, sums)
		return
	}
	q4x128TilesAMX(&config[0], groups, x, pitch, advance, panel, blocks, ints, sums)
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
