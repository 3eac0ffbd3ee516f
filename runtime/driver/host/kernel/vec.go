//go:build amd64 || arm64

package kernel

// share is how many of left rows the next call takes: as few calls as possible, of nearly equal
// size, so that time grows evenly with the number of rows.
func share(left, most int) int {
	calls := (left + most - 1) / most
	return (left + calls - 1) / calls
}

// copyColumns copies the first cols columns of out [rows][TileN] to columns j.. of rows r.. of y: a
// kernel writes whole tiles, of which the last one may have columns that do not exist in y.
func copyColumns(y []float32, ldy, r, j, cols, rows int, out []float32) {
	for i := range rows {
		copy(y[(r+i)*ldy+j:(r+i)*ldy+j+cols], out[i*TileN:])
	}
}
