package kernel

// vecRequantQ4B32 is RequantQ4B32 with AVX-512 VNNI: whole blocks by a kernel, what is left of k in Go.
func vecRequantQ4B32(tile, w []byte, k int) {
	_, scales := q8cTileBytes(k)
	blocks := (k + BlockK - 1) / BlockK
	_, _ = tile[scales+8*TileN-1], w[blocks*q4BlockBytes(BlockK)-1]
	columns := vecRequant(w, blocks)
	var sums [TileN]int32
	columns.vecRows(tile, w, k, &sums)
	columns.tail(tile[scales:], &sums)
}

// vecRequant are the scales of a q4b32 tile of so many blocks.
func vecRequant(w []byte, blocks int) requant {
	var tops [TileN]uint16
	_ = w[blocks*q4BlockBytes(BlockK)-1]
	q4Tops512(&tops[0], &w[0], blocks)
	return newRequant(&tops)
}

// vecRows is rows, with whole blocks by a kernel.
func (r *requant) vecRows(dst, w []byte, count int, sums *[TileN]int32) {
	whole := count / BlockK
	_ = dst[(count+3)/4*4*TileN-1]
	if whole > 0 {
		_ = w[whole*q4BlockBytes(BlockK)-1]
		q4Requant512(&dst[0], &w[0], whole, &r.inverse[0], &sums[0])
	}
	if rest := count - whole*BlockK; rest > 0 {
		r.rows(dst[whole*BlockK*TileN:], w[whole*q4BlockBytes(BlockK):], rest, sums)
	}
}
