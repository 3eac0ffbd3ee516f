package kernel

// sixRows is the number of rows of a group of 6-bit codes, and sixGroup its bytes (see planir/pack).
const (
	sixRows  = 16
	sixGroup = sixRows * TileN * 6 / 8
	sixPlane = sixGroup / 3
)

// q6cTileBytes returns the size of one q6c tile of k rows and the offset of its scales, in bytes.
func q6cTileBytes(k int) (bytes, scales int) {
	scales = (k + sixRows - 1) / sixRows * sixGroup
	return scales + 4*TileN, scales
}

// sixCode is what the code of row p, of a column of a tile, stands for.
func sixCode(tile []byte, p, column int) int {
	group, quad := tile[p/sixRows*sixGroup:][:sixGroup], p%sixRows/4
	at := 4*column + p%4
	low := group[quad/2*sixPlane+at] >> (quad % 2 * 4) & 15
	high := group[2*sixPlane+at] >> (2 * quad) & 3
	return int(high<<4|low) - 32
}

// sixStart is what sums of products of 6-bit codes begin at, so that a code stands for what it is above 32. sums are
// those of a row's blocks.
func sixStart(sums []int32) (start int32) {
	for _, sum := range sums {
		start -= sum
	}
	return 32 * start
}

// mostSix is the most rows that a kernel of 6-bit weights takes.
const mostSix = 8

// sixInput is what kernels of 6-bit weights take of some rows besides their whole groups of activations.
type sixInput struct {
	start [mostSix]int32           // what the sums of each row begin at
	tail  [mostSix * sixRows]uint8 // the last k%sixRows activations of each row
}

// set fills it for rows of x, of k activations each, from row first on. It returns the tail, nil if there is none.
func (s *sixInput) set(x Quantised, first, rows, k int) (tail *uint8) {
	whole := k / sixRows * sixRows
	if whole < k {
		tail = &s.tail[0]
		for i := range s.tail {
			s.tail[i] = 128 // stands for 0, so that padding adds nothing
		}
	}
	for i := range rows {
		s.start[i] = sixStart(x.Sums.row(first+i, (k+BlockK-1)/BlockK))
		copy(s.tail[sixRows*i:sixRows*(i+1)], x.Codes.row(first+i, k)[whole:])
	}
	return tail
}

// unpackSix writes the codes of a group in the order of a q8c tile, as they are.
func unpackSix(to *[sixRows * TileN]byte, group []byte) {
	for pair := range 2 {
		low, high := group[pair*sixPlane:][:sixPlane], group[2*sixPlane:][:sixPlane]
		even, odd := to[2*pair*sixPlane:][:sixPlane], to[(2*pair+1)*sixPlane:][:sixPlane]
		for i, nibbles := range low {
			bits := high[i] >> (4 * pair)
			even[i], odd[i] = nibbles&15|bits&3<<4, nibbles>>4|bits&12<<2
		}
	}
}

// matMulQ6C unpacks one group at a time for up to four rows of activations, and multiplies by dotU8I8.
func matMulQ6C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	const rows = 4 // rows that share one unpacked group
	bytes, scales := q6cTileBytes(k)
	blocks := (k + BlockK - 1) / BlockK
	for j := 0; j < n; j += TileN {
		tile := w[j/TileN*bytes : (j/TileN+1)*bytes]
		for r0 := 0; r0 < m; r0 += rows {
			count := min(rows, m-r0)
			var acc [rows][TileN]int32
			for pos := 0; pos < k; pos += sixRows {
				var codes [sixRows * TileN]byte
				unpackSix(&codes, tile[pos/sixRows*sixGroup:][:sixGroup])
				for i := range count {
					var dot [TileN]int32
					dotU8I8(&dot, x.Codes.row(r0+i, k)[pos:min(k, pos+sixRows)], codes[:])
					for col, sum := range dot {
						acc[i][col] += sum
					}
				}
			}
			for i := range count {
				row := r0 + i
				start := sixStart(x.Sums.row(row, blocks))
				out := y.row(row, n)[j:min(n, j+TileN)]
				for col := range out {
					out[col] = float32(acc[i][col]+start) * (x.Scale[row] * f32at(tile[scales:], col))
				}
			}
		}
	}
}

// refMatMulQ6C is a product of codes, as refMatMulQ8C.
func refMatMulQ6C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	bytes, scales := q6cTileBytes(k)
	for row := range m {
		for j := range n {
			tile, col := w[j/TileN*bytes:], j%TileN
			dot := int64(0)
			for pos, code := range x.Codes.row(row, k) {
				dot += (int64(code) - 128) * int64(sixCode(tile, pos, col))
			}
			*y.at(row, j) = float32(float64(dot) * (float64(x.Scale[row]) * float64(f32at(tile[scales:], col))))
		}
	}
}

// ColumnQ6C is ColumnQ8C of a q6c weight.
func ColumnQ6C(out []float32, w []byte, j int) {
	bytes, scales := q6cTileBytes(len(out))
	tile, col := w[j/TileN*bytes:][:bytes], j%TileN
	scale := f32at(tile[scales:], col)
	for depth := range out {
		out[depth] = float32(sixCode(tile, depth, col)) * scale
	}
}
