package kernel

import (
	"encoding/binary"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
)

//go:generate go run -C gen . -tier amx -out ../vec_amx_amd64.s -stubs ../vec_amx_amd64.go -pkg kernel
//go:generate go run -C gen . -tier tiled -out ../vec_tiled_amd64.s -stubs ../vec_tiled_amd64.go -pkg kernel

// The set amx multiplies packed rows in tiles (see gen/amx.go): products of 8-bit weights are here, those of 4-bit weights
// in vec_tiles_nibbles_amd64.go, attention over bfloat16 in vec_tiles_attention_amd64.go. Few rows, float32 and
// everything else are functions of avx512bf16, from the same weights, and products have the same bits as there.
const (
	tileRows = 16 // rows of a tile
	tileK    = 64 // bytes of one of its rows
)

// Rows are multiplied in passes, and k in parts, so that the activations of both stay in the second-level cache while
// all columns are multiplied with them. Parts are multiplied in pieces, so that a piece's weights for the columns of a
// tile stay in the first-level cache while all rows of the pass are multiplied with them.
const (
	tilePass  = 256  // rows
	tilePart  = 3072 // k
	tilePiece = 1024 // k
)

// tileLag is how many steps of k the second of two groups of rows is behind the first: as many as storing sums takes.
const tileLag = 4

// amxSet is base, the set avx512bf16, with tiles for packed rows and for attention over bfloat16.
func amxSet(base *Set) *Set {
	set := *base
	set.Name, set.PackFrom = "amx", packFrom
	set.PackRows, set.PackedQ8C, set.PackedRequant = packTiles, tilesQ8C, tilesRequant
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

// set gives a tile its rows and their bytes.
func (c *tileConfig) set(tile, rows, bytes int) {
	const palette, rowBytes, rowCounts = 0, 16, 48 // where these are; the palette is always 1
	c[palette] = 1
	binary.LittleEndian.PutUint16(c[rowBytes+2*tile:], uint16(bytes))
	c[rowCounts+tile] = byte(rows)
}

// shapeTiles is the configuration for products of tiles of rows x k activations with k x 16 weights, all of the same
// shape; k is a multiple of 4.
func shapeTiles(rows, k int) (config tileConfig) {
	for tile := range 8 {
		bytes, lines := 4*16, rows // sums
		switch tile {
		case 4, 5:
			bytes = k
		case 6, 7:
			lines = k / 4
		}
		config.set(tile, lines, bytes)
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

// packTiles is PackRows. Without blocks, the rows of a pass lie together: their tiles [rows][64] of successive k follow
// each other; the last one is as wide as what is left of k.
func packTiles(dst []byte, x Matrix[uint8], m, k, block, g int) {
	if block != 0 {
		packNibbles(dst, x, m, k, block, g)
		return
	}
	padded := tiledK(k, block)
	checkPacked(m)
	_ = dst[PackedBytes(m, k, block)-1]
	x.mustHold(m, k)
	first, count := groupRows(m, g)
	for row := first; row < first+count; row++ {
		pass := row / tilePass * tilePass
		rows := min(tilePass, m-pass)
		packTileRow(dst[pass*padded:][:rows*padded], x.row(row, k), rows, row-pass)
	}
}

// packTileRow packs a row of a pass of rows: whole tiles of it, and what is left of k, padded with zeros.
func packTileRow(pass []byte, from []uint8, rows, row int) {
	k, padded := len(from), len(pass)/rows
	whole := k / tileK
	if whole > 0 {
		tileRow64(&pass[row*tileK], rows*tileK, &from[0], whole)
	}
	if pos := whole * tileK; pos < padded {
		width := padded - pos
		packSigned(pass[pos*rows+row*width:][:width], from[pos:])
	}
}

// packSigned writes activations as signed bytes to dst, and zeros to what is left of it.
func packSigned(dst []byte, from []uint8) {
	clear(dst)
	for i, value := range from {
		dst[i] = value ^ 0x80
	}
}

// aligned returns the part of v, which has a line more than is needed, that begins with a cache line.
func aligned[T mem.Scalar](v []T) []T {
	bytes := mem.Bytes(v)
	return v[int(-mem.Address(bytes)&(cacheLine-1))*len(v)/len(bytes):]
}

// tilesQ8C is PackedQ8C. On a core whose other hardware thread is busy, weights stay in tiles for many rows, and are
// prefetched for few. Few rows do not ask: prefetching costs them little.
func tilesQ8C(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	mustBePacked(x, scratch, 0)
	multiplyTiles(y, x, q8cSource(w, x.K), n, x.M < stayRows || coreShared())
}

// tilesRequant is PackedRequant: tilesQ8C, but for where the tiles of the weight come from.
func tilesRequant(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
	mustBePacked(x, scratch, 0)
	_ = scratch[RequantScratch(x.K)-1]
	multiplyTiles(y, x, requantSource(w, x.K, scratch), n, x.M < stayRows || coreShared())
}

// tileSource gives the tiles of a weight: those of a q8c one as they are, those of a q4b32 one requantised, a piece at a
// time for all rows of a pass, so that it is still in the first-level cache when it is multiplied.
type tileSource struct {
	bytes     []byte
	tileBytes int
	scalesAt  int // in a tile
	blocks    int // of a tile that is requantised, 0: values are q8c

	panel   []byte  // the latest piece that was requantised
	at      int     // k of its first row
	j       int     // the first column of its tile
	columns requant // scales of the columns of that tile
}

// q8cSource is a weight of k rows with the values of q8c.
func q8cSource(w []byte, k int) tileSource {
	bytes, scales := q8cTileBytes(k)
	return tileSource{bytes: w, tileBytes: bytes, scalesAt: scales}
}

// requantSource is a q4b32 weight of k rows that is requantised, in scratch.
func requantSource(w []byte, k int, scratch []byte) tileSource {
	blocks := (k + BlockK - 1) / BlockK
	return tileSource{bytes: w, tileBytes: blocks * q4BlockBytes(BlockK), blocks: blocks, panel: aligned(scratch)}
}

// tile is the weight from the tile on that begins at column j.
func (w *tileSource) tile(j int) []byte { return w.bytes[j/TileN*w.tileBytes:] }

// use prepares a piece of the tile of k rows that begins at column j.
func (w *tileSource) use(j int, piece tileSpan, k int) {
	if w.blocks == 0 {
		return
	}
	tile := w.tile(j)
	if piece.pos == 0 || w.j != j {
		w.j, w.columns = j, vecRequant(tile, w.blocks)
	}
	var sums [TileN]int32 // which signed activations do not need
	w.at = piece.pos
	w.columns.vecRows(w.panel, tile[w.at/BlockK*q4BlockBytes(BlockK):], min(piece.k, k-w.at), &sums)
}

// from is the tile that begins at column j, or what is prepared of it, from row pos on.
func (w *tileSource) from(j, pos int) *byte {
	if w.blocks == 0 {
		return &w.tile(j)[pos*TileN]
	}
	return &w.panel[(pos-w.at)*TileN]
}

// next is where row pos of the tile after the one at column j is stored, or that of this one if it is the last.
func (w *tileSource) next(j, pos int) *byte {
	tile := w.tile(j)
	if len(tile) >= 2*w.tileBytes {
		tile = tile[w.tileBytes:]
	}
	if w.blocks == 0 {
		return &tile[pos*TileN]
	}
	return &tile[pos/BlockK*q4BlockBytes(BlockK)]
}

// scales are those of the columns of the tile that begins at column j, which was prepared.
func (w *tileSource) scales(j int) []float32 {
	if w.blocks > 0 {
		return w.columns.scale[:]
	}
	scales, err := mem.View[float32](w.tile(j)[w.scalesAt : w.scalesAt+4*TileN])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return scales
}

// multiplyTiles multiplies each pass of rows with all tiles of the weight, on a core whose other hardware thread is
// busy, shared, or on another.
func multiplyTiles(y Matrix[float32], x PackedRows, weight tileSource, n int, shared bool) {
	y.mustHold(x.M, n)
	_ = weight.bytes[(n+TileN-1)/TileN*weight.tileBytes-1]
	var room [4*tileRows*TileN + cacheLine/4]int32
	var sums [tilePass*TileN + cacheLine/4]int32
	product := tileProduct{
		x: x, y: y, n: n, weight: weight,
		padded: tiledK(x.K, 0), room: aligned(room[:]), sums: aligned(sums[:]),
	}

	if shared {
		product.fetch = 1
	}
	for first := 0; first < x.M; first += tilePass {
		product.first, product.count = first, min(tilePass, x.M-first)
		columns := 0
		if shared && x.K%stayK == 0 && product.count >= stayRows {
			columns = n / TileN * TileN
			product.stay(columns)
		}
		product.multiply(columns)
	}
}

// tileProduct is the product of a pass of packed rows with a weight.
type tileProduct struct {
	x      PackedRows
	y      Matrix[float32]
	n      int // columns
	weight tileSource

	padded       int // bytes of a packed row
	first, count int // rows of the pass
	fetch        int // 1: each step prefetches the weights of the next one

	room []int32 // for a kernel
	sums []int32 // room for those of the pass and a tile's columns
}

// tileSpan is a part of k, or a piece of one: k activations of each row from pos on, in tiles of so many bytes a row.
type tileSpan struct {
	pos, k, width int
}

// multiply multiplies with the columns from first on: with all of them for each part of k. Between parts the sums wait
// in y, as integers. Columns that do not fill a tile come last, with all parts.
func (p *tileProduct) multiply(first int) {
	whole := p.n / TileN * TileN
	for part := p.part(0); part.k > 0; part = p.part(part.pos + part.k) {
		for j := first; j < whole; j += TileN {
			var next *float32
			if j+TileN < whole {
				next = p.y.at(p.first, j+TileN)
			}
			p.columns(j, part, p.y.From(p.first, j), next)
		}
	}
	if whole == p.n {
		return
	}

	out := p.waiting()
	for part := p.part(0); part.k > 0; part = p.part(part.pos + part.k) {
		p.columns(whole, part, out, nil)
	}
	copyColumns(p.y, p.first, whole, p.n-whole, p.count, out.Data)
}

// waiting returns the room of sums as rows of TileN numbers. Kernels take integer sums and float32 results in the same
// place, so both have the type of results.
func (p *tileProduct) waiting() Matrix[float32] {
	rows, err := mem.View[float32](mem.Bytes(p.sums))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return Rows(rows, TileN)
}

// part is the part of k that begins at pos, none (k = 0) at the end. What is left of k is a part of its own, of
// narrower tiles.
func (p *tileProduct) part(pos int) tileSpan {
	whole := p.x.K / tileK * tileK
	if pos < whole {
		return tileSpan{pos, min(share(whole/tileK, tilePart/tileK)*tileK, whole-pos), tileK}
	}
	return tileSpan{pos, p.padded - pos, p.padded - whole}
}

// columns adds the products of a part of the tile of the weight that begins at column j to y, and after the last part
// makes results of them. Between pieces of the part the sums wait close to each other. next is what is written after y.
func (p *tileProduct) columns(j int, part tileSpan, y Matrix[float32], next *float32) {
	between := p.waiting()
	var before Matrix[float32] // none
	if part.pos > 0 {
		before = y
	}

	end, steps := part.pos+part.k, part.k/part.width
	piece := tileSpan{part.pos, share(steps, tilePiece/tileK) * part.width, part.width}
	for ; piece.pos+piece.k < end; piece.pos += piece.k {
		p.add(j, piece, before, between, y.at(0, 0))
		before = between
	}
	piece.k = end - piece.pos
	p.add(j, piece, before, y, next)
}

// add writes the sums before, if there are some, and the products of a piece of k to y: as integers, or as results where
// the piece is the last. next is what is written after y.
func (p *tileProduct) add(j int, piece tileSpan, before, y Matrix[float32], next *float32) {
	p.weight.use(j, piece, p.x.K)
	w, last := p.weight.from(j, piece.pos), 0
	if piece.pos+piece.k == p.padded {
		last = 1
	}
	scales, ahead := p.weight.scales(j), p.weight.next(j, piece.pos)
	for row := 0; row < p.count; {
		groups, rows := (p.count-row)/tileRows, tileRows
		if groups == 0 {
			groups, rows = 1, p.count-row
		}
		config := shapeTiles(rows, piece.width)
		from := &p.x.Bytes[p.first*p.padded+piece.pos*p.count+row*piece.width]
		var sums *float32
		if before.Data != nil {
			sums = before.at(row, 0)
		}
		steps := piece.k / piece.width
		q8cTilesAMX(&config[0], groups, from, tileRows*piece.width, piece.width, p.count*piece.width, w, steps,
			min(tileLag, steps-1), &p.room[0], sums, 4*before.Stride, y.at(row, 0), 4*y.Stride, next, last, &scales[0],
			&p.x.Scale[p.first+row], rows, p.fetch, ahead)
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

// coreShared reports whether the other hardware thread of this core works: then products of tiles take twice as long as
// their 16 cycles. It takes a microsecond.
func coreShared() bool {
	config := shapeTiles(tileRows, tileK)
	var ones [tileK]byte
	var times [2]uint64
	tileTimesAMX(&config[0], &ones[0], &times[0])
	products, alone := times[0], times[1]
	return 2*products > 3*alone
}
