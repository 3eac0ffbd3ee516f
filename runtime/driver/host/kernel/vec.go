//go:build amd64 || arm64

package kernel

// share is how many of left rows the next call takes: as few calls as possible, of nearly equal
// size, so that time grows evenly with the number of rows.
func share(left, most int) int {
	calls := (left + most - 1) / most
	return (left + calls - 1) / calls
}

// output is where a kernel writes columns j.. of rows r..: y itself, or out where fewer than TileN columns exist in y.
// ld is in elements.
func output(y Matrix[float32], r, j, cols int, out []float32) (dst *float32, ld int) {
	if cols < TileN {
		return &out[0], TileN
	}
	return y.at(r, j), y.Stride
}

// copyColumns copies the first cols columns of out [rows][TileN] to columns j.. of rows r.. of y: a
// kernel writes whole tiles, of which the last one may have columns that do not exist in y.
func copyColumns(y Matrix[float32], r, j, cols, rows int, out []float32) {
	y = y.From(r, j)
	for i := range rows {
		copy(y.row(i, cols), out[i*TileN:])
	}
}
