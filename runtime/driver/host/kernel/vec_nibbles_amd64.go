package kernel

import "github.com/hetc/hetc/planir/pack"

// Blocking of the kernels of nibbles. A call takes nibbleRows rows; a signed row holds nibbleDepth activations, so that
// the part of a tile that they meet, 9 KiB, stays in the first-level cache beside the rows of a call. A pass takes some
// rows and nibbleTiles tiles, which share the signed rows; their sums stay in the second-level cache.
const (
	nibbleRows  = 6
	nibbleDepth = 512
	nibblePass  = 11 * nibbleRows // rows of a pass
	nibbleFew   = 2 * nibbleRows  // rows up to which a pass has less memory, because clearing it takes time too
	nibbleTiles = 8
	nibblesFrom = 3 // rows from which signing activations pays
)

// nibbles is the memory of a product of 4-bit weights with many rows, in whole cache lines.
type nibbles struct {
	block  int
	pass   int       // rows for which there is room
	rows   []int8    // [pass][nibbleDepth], activations less 128
	eights []int32   // [pass][nibbleDepth/BlockK], 8 times the sums of activations
	sums   []float32 // [nibbleTiles][pass][TileN]
	out    []float32 // [nibbleRows][TileN] of a tile of which not all columns exist in y
}

// nibblesQ4 is matMulQ4 for several rows on tiers without VNNI. A pass goes over k in parts, for each part over some
// tiles, and for each tile over all rows of the pass.
func nibblesQ4(block int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	if m <= nibbleFew {
		nibblesFew(block, y, x, w, m, k, n)
		return
	}
	var signed [nibblePass*nibbleDepth + cacheLine]int8
	var eights [nibblePass * nibbleDepth / BlockK]int32
	var space [nibbleTiles*nibblePass*TileN + cacheLine/4]float32
	var out [nibbleRows * TileN]float32
	many := nibbles{block, nibblePass, aligned(signed[:]), eights[:], aligned(space[:]), out[:]}
	many.multiply(y, x, w, m, k, n)
}

// nibblesFew is nibblesQ4 for at most nibbleFew rows.
func nibblesFew(block int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	var signed [nibbleFew*nibbleDepth + cacheLine]int8
	var eights [nibbleFew * nibbleDepth / BlockK]int32
	var space [nibbleTiles*nibbleFew*TileN + cacheLine/4]float32
	var out [nibbleRows * TileN]float32
	few := nibbles{block, nibbleFew, aligned(signed[:]), eights[:], aligned(space[:]), out[:]}
	few.multiply(y, x, w, m, k, n)
}

// multiply divides the product into passes.
func (s *nibbles) multiply(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	bytes := (k + s.block - 1) / s.block * q4BlockBytes(s.block)
	for row := 0; row < m; {
		rows := share(m-row, s.pass)
		for j := 0; j < n; j += nibbleTiles * TileN {
			cols := min(nibbleTiles*TileN, n-j)
			s.tiles(y.From(row, j), x.From(row), w[j/TileN*bytes:], rows, k, cols)
		}
		row += rows
	}
}

// tiles multiplies the rows of a pass with some tiles.
func (s *nibbles) tiles(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	blocks, blockBytes := (k+s.block-1)/s.block, q4BlockBytes(s.block)
	tileBytes, tiles, calls := blocks*blockBytes, (n+TileN-1)/TileN, (m+nibbleRows-1)/nibbleRows
	clear(s.sums[:tiles*s.pass*TileN])
	for first := 0; first < blocks; first += nibbleDepth / s.block {
		count := min(nibbleDepth/s.block, blocks-first)
		s.sign(x, m, k, first*s.block, count*s.block)
		part := count * blockBytes
		for tile := range tiles {
			at := tile*tileBytes + first*blockBytes
			// what is multiplied next is prefetched meanwhile
			next := at + tileBytes
			if tile == tiles-1 && first+count < blocks {
				next = (first + count) * blockBytes
			}
			for row, call := 0, 0; row < m; call++ {
				rows := share(m-row, nibbleRows)
				each := (part + calls - 1) / calls
				ahead, stride := next-at+call*each, (each+count*s.block/4-1)/(count*s.block/4)
				if next >= len(w) {
					ahead, stride = 0, 0
				}
				sum := &s.sums[(tile*s.pass+row)*TileN]
				codes, eights := &s.rows[row*nibbleDepth], &s.eights[row*nibbleDepth/BlockK]
				if s.block == pack.Block128 {
					q4x128Signed256(rows, sum, codes, eights, count, &w[at], ahead, stride)
				} else {
					q4Signed256(rows, sum, codes, eights, count, &w[at], ahead, stride)
				}
				row += rows
			}
		}
	}
	for tile := range tiles {
		s.scale(y.From(0, tile*TileN), tile, x.Scale, m, min(TileN, n-tile*TileN))
	}
}

// scale writes the sums of a tile, of which cols columns exist, times the scales of their rows.
func (s *nibbles) scale(y Matrix[float32], tile int, scales []float32, m, cols int) {
	sums := s.sums[tile*s.pass*TileN:]
	if cols == TileN {
		scaleSums256(m, y.at(0, 0), 4*y.Stride, &sums[0], &scales[0])
		return
	}
	for row := 0; row < m; row += nibbleRows {
		rows := min(nibbleRows, m-row)
		scaleSums256(rows, &s.out[0], 4*TileN, &sums[row*TileN], &scales[row])
		copyColumns(y, row, 0, cols, rows, s.out)
	}
}

// sign fills the signed rows with the activations pos..pos+depth-1 of m rows and zeros beyond k, and the sums of every
// 32 of them.
func (s *nibbles) sign(x Quantised, m, k, pos, depth int) {
	have := min(depth, k-pos)
	vectors := have / 32
	if vectors > 0 {
		signRows256(&s.rows[0], x.Codes.at(0, pos), x.Codes.Stride, m, vectors)
	}
	quarters, parts := (have+BlockK-1)/BlockK, depth/BlockK
	for row := range m {
		if rest := s.rows[row*nibbleDepth:][32*vectors : depth]; len(rest) > 0 {
			clear(rest)
			for i, value := range x.Codes.row(row, k)[pos+32*vectors : pos+have] {
				rest[i] = int8(value ^ 0x80)
			}
		}
		eights := s.eights[row*nibbleDepth/BlockK:][:parts]
		for i, sum := range x.Sums.From(row, pos/BlockK).row(0, quarters) {
			eights[i] = 8 * sum
		}
		clear(eights[quarters:])
	}
}
