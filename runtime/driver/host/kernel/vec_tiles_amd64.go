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
	tilePass = 256  // rows of a pass, whose activations of a part of k stay in the second-level cache
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

// tiledK is the number of activations of a packed row, with padding.
func tiledK(k, block int) int {
	if block == 0 {
		block = 4
	}
	return (k + block - 1) / block * block
}

// packTiles is PackRows. Without blocks, rows lie in groups of 16, the last one of what is left. In a group the
// tiles [rows][64] of successive k follow each other; without blocks the last one is as wide as what is left of k.
func packTiles(dst []byte, x Matrix[uint8], m, k, block, g int) {
	if block != 0 {
		packNibbles(dst, x, m, k, block, g)
		return
	}
	const width = tileK
	padded := tiledK(k, block)
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
			tileRow64(&to[line*width], rows*width, &from[0], whole)
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
