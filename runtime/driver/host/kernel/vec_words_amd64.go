package kernel

// Blocking of wordsQ8C. A call of the kernel takes wordRows rows; a widened row holds wordDepth activations, so that
// the widened part of a tile, 16 KiB, stays in the first-level cache beside the rows of a call. A pass takes wordPass
// rows and wordTiles tiles, which share the widened rows; their sums stay in the second-level cache.
const (
	wordRows  = 6
	wordDepth = 256
	wordPass  = 11 * wordRows
	wordTiles = 4
	wordsFrom = 12 // rows from which widening a weight pays, in calls of 4 rows or more
)

// words is the memory of a wordsQ8C, in whole cache lines.
type words struct {
	rows  []int16   // [wordPass][wordDepth], widened
	panel []int16   // [wordDepth/2][TileN][2], the widened part of a tile
	sums  []int32   // [wordTiles][wordPass][TileN]
	out   []float32 // [wordRows][TileN] of a tile of which not all columns exist in y
}

// wordsQ8C is matMulQ8C for many rows on tiers that have no exact product of bytes: it multiplies words. A pass goes
// over k in parts, for each part over some tiles, and for each tile over all rows of the pass.
func wordsQ8C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	var rowWords [wordPass*wordDepth + cacheLine/2]int16
	var panelWords [wordDepth*TileN + cacheLine/2]int16
	var sums [wordTiles*wordPass*TileN + cacheLine/4]int32
	var out [wordRows * TileN]float32
	space := words{aligned(rowWords[:]), aligned(panelWords[:]), aligned(sums[:]), out[:]}
	bytes, _ := q8cTileBytes(k)
	for row := 0; row < m; {
		rows := share(m-row, wordPass)
		for j := 0; j < n; j += wordTiles * TileN {
			cols := min(wordTiles*TileN, n-j)
			space.tiles(y.From(row, j), x.From(row), w[j/TileN*bytes:], rows, k, cols)
		}
		row += rows
	}
}

// tiles multiplies the rows of a pass with some tiles.
func (s *words) tiles(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	bytes, _ := q8cTileBytes(k)
	for pos := 0; pos < k; pos += wordDepth {
		depth := min(wordDepth, k-pos)
		quads := (depth + 3) / 4
		s.widen(x.Codes.From(0, pos), m, depth)
		for j := 0; j < n; j += TileN {
			tile := w[j/TileN*bytes:][:bytes]
			widenTile256(&s.panel[0], &tile[pos*TileN], quads)
			cols := min(TileN, n-j)
			for row := 0; row < m; {
				rows := share(m-row, wordRows)
				dst, ld := output(y, row, j, cols, s.out)
				var scale *float32
				if pos+depth == k {
					scale = &x.Scale[row]
				}
				q8cWords256(rows, dst, 4*ld, &s.sums[(j/TileN*wordPass+row)*TileN], &s.rows[row*wordDepth], 2*quads,
					&s.panel[0], pos, &tile[(k+3)/4*4*TileN], scale)
				if cols < TileN && scale != nil {
					copyColumns(y, row, j, cols, rows, s.out)
				}
				row += rows
			}
		}
	}
}

// widen fills the widened rows with depth activations of each of m rows, and zeros up to a multiple of 4.
func (s *words) widen(x Matrix[uint8], m, depth int) {
	vectors := depth / 16
	if vectors > 0 {
		widenRows256(&s.rows[0], x.at(0, 0), x.Stride, m, vectors)
	}
	for row := range m {
		rest := s.rows[row*wordDepth:][16*vectors : (depth+3)/4*4]
		clear(rest)
		for i, value := range x.row(row, depth)[16*vectors:] {
			rest[i] = int16(value) - 128
		}
	}
}
