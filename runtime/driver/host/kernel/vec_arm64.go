package kernel

import (
	"golang.org/x/sys/cpu"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/pack"
)

// namedSets returns the set "i8mm" where the CPU has matrix products of bytes too, as those of ARMv8.6 do.
func namedSets() []*Set {
	if sets := measuredSets(); len(sets) > 0 && cpu.ARM64.HasI8MM {
		return []*Set{i8mm(sets[0])}
	}
	return nil
}

// lacking says what this machine lacks for a set, "" where that is not known.
func lacking(name string) string {
	if name == "i8mm" && !cpu.ARM64.HasI8MM {
		return "the CPU has no matrix products of bytes (FEAT_I8MM)"
	}
	return ""
}

// refused is "": where the CPU has instructions, every process may use them.
func refused() string { return "" }

// measuredSets returns the set "neon" where the CPU has the dot product instructions, as those of
// ARMv8.4 and most ARMv8.2 cores do.
func measuredSets() []*Set {
	if !cpu.ARM64.HasASIMD || !cpu.ARM64.HasASIMDDP {
		return nil
	}
	set := Portable()
	set.Name = "neon"
	set.MatMulF32 = func(y, x Matrix[float32], w []float32, m, k, n int) {
		floatProduct(y, x, w, nil, m, k, n)
	}
	set.MatMulBF16 = func(y, x Matrix[float32], w []uint16, m, k, n int) {
		floatProduct(y, x, nil, w, m, k, n)
	}
	set.MatMulQ8C = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		byteProduct(4, y, x, w, m, k, n)
	}
	set.MatMulQ4B32 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		byteProduct(BlockK, y, x, w, m, k, n)
	}
	set.MatMulQ4B128 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		byteProduct(pack.Block128, y, x, w, m, k, n)
	}
	set.MatMulQ6C = sixProduct
	set.PeakI8 = func(ops int64) int64 {
		return counted(ops, 2*24*16, func(turns int) int64 {
			var sum [16]byte
			peakI8NEON(turns, &sum[0])
			return integers(sum[:])
		})
	}
	set.PeakF32 = func(ops int64) int64 {
		return counted(ops, 2*24*4, func(turns int) int64 {
			var sum [16]byte
			peakF32NEON(turns, &sum[0])
			return floats(sum[:])
		})
	}
	var t tier
	set.AttentionF32, set.AttentionF16 = t.attentionF32, t.attentionF16
	return []*Set{set}
}

// mostRows is the number of rows of one call of a matrix kernel, limited by registers.
const mostRows = 3

// floatProduct is MatMulF32 of w32, or MatMulBF16 of w16 where w32 is nil.
func floatProduct(y, x Matrix[float32], w32 []float32, w16 []uint16, m, k, n int) {
	if m == 0 {
		return
	}
	y.mustHold(m, n)
	x.mustHold(m, k)
	if size := (n + TileN - 1) / TileN * TileN * k; w32 != nil {
		_ = w32[size-1]
	} else {
		_ = w16[size-1]
	}
	var out [mostRows * TileN]float32
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		for row := 0; row < m; {
			rows := share(m-row, mostRows)
			dst, ld := output(y, row, j, cols, out[:])
			if w32 != nil {
				f32RowsNEON(rows, dst, 4*ld, x.at(row, 0), 4*x.Stride, k, &w32[j*k])
			} else {
				bf16RowsNEON(rows, dst, 4*ld, x.at(row, 0), 4*x.Stride, k, &w16[j*k])
			}
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// byteProduct multiplies 8-bit rows with weights that come in steps of rows: 4 in a q8c tile, a
// block in a tile of 4-bit weights. The last, incomplete step takes its activations from a padded
// copy.
func byteProduct(step int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	codes, tileBytes := x.Codes, stepTileBytes(step, k)
	y.mustHold(m, n)
	x.mustHold(m, k)
	_ = w[(n+TileN-1)/TileN*tileBytes-1]
	var out [mostRows * TileN]float32
	var last [mostRows * pack.Block128]uint8 // the k%step last activations of each row
	var tail *uint8
	if k%step != 0 {
		tail = &last[0]
		for i := range last {
			last[i] = 128
		}
	}
	for j := 0; j < n; j += TileN {
		cols, tile := min(TileN, n-j), &w[j/TileN*tileBytes]
		for row := 0; row < m; {
			rows := share(m-row, mostRows)
			if tail != nil {
				for i := range rows {
					copy(last[step*i:step*(i+1)], codes.row(row+i, k)[k/step*step:])
				}
			}
			dst, ld := output(y, row, j, cols, out[:])
			from, scale := codes.at(row, 0), &x.Scale[row]
			if step == 4 {
				q8cRowsNEON(rows, dst, 4*ld, from, codes.Stride, k/step, tail, tile, scale)
			} else {
				q4RowsNEON(rows, dst, 4*ld, from, codes.Stride, k/step, tail, tile, scale, step/BlockK)
			}
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// mostQ6C is the number of rows of one call of the kernel of 6-bit weights.
const mostQ6C = 2

// sixProduct is MatMulQ6C.
func sixProduct(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	tileBytes, _ := q6cTileBytes(k)
	codes, whole, blocks := x.Codes, k/sixRows, (k+BlockK-1)/BlockK
	y.mustHold(m, n)
	x.mustHold(m, k)
	x.Sums.mustHold(m, blocks)
	_ = w[(n+TileN-1)/TileN*tileBytes-1]
	var out [mostQ6C * TileN]float32
	var input sixInput
	for row := 0; row < m; {
		rows := share(m-row, mostQ6C)
		tail, start := input.set(x, row, rows, k), &input.start[0]
		from, scale := codes.at(row, 0), &x.Scale[row]
		for j := 0; j < n; j += TileN {
			cols := min(TileN, n-j)
			dst, ld := output(y, row, j, cols, out[:])
			q6cRowsNEON(rows, dst, 4*ld, from, codes.Stride, whole, tail, &w[j/TileN*tileBytes], scale, start)
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
		}
		row += rows
	}
}

// stepTileBytes is the size of a tile of k rows that come in steps: of less than a block in a q8c tile.
func stepTileBytes(step, k int) int {
	if step < BlockK {
		bytes, _ := q8cTileBytes(k)
		return bytes
	}
	return (k + step - 1) / step * q4BlockBytes(step)
}

// tier is what attention is built on: products of float32 from the assembly, the rest in Go.
type tier struct{}

// mostF32 is how many rows a float32 product takes at once.
func (tier) mostF32() int { return mostRows }

// dots computes n lines of y [n][32] = x w for a tile w [k][32]; strides are in elements.
func (tier) dots(n int, y *float32, ldy int, x *float32, ldx, k int, w *float32) {
	f32RowsNEON(n, y, 4*ldy, x, 4*ldx, k, w)
}

// addF32 adds to 32 columns of n lines of y the product of x [n,k] and w [k,32].
func (tier) addF32(n int, y, x Matrix[float32], k int, w Matrix[float32]) {
	f32AddNEON(n, &y.Data[0], 4*y.Stride, &x.Data[0], 4*x.Stride, k, &w.Data[0], 4*w.Stride)
}

const vecN = 16 // scores are taken in multiples of it

// capScores computes limit*tanh(s*scale) in place.
func capScores(s []float32, scale, limit float32) {
	for i, value := range s {
		s[i] = limit * tanhf(value*scale)
	}
}

// softmaxScores replaces scores s by e^(s*scale-top) where top, state[0], becomes at least their maximum,
// scales the sum state[1] to the new top and adds them to it, and returns that factor.
func softmaxScores(s []float32, scale float32, state []float32) float32 {
	top := state[0]
	for i, value := range s {
		s[i] = value * scale
		top = max(top, s[i])
	}
	fade := expf(state[0] - top)
	sum := state[1] * fade
	for i, value := range s {
		weight := expf(value - top)
		s[i] = weight
		sum += weight
	}
	state[0], state[1] = top, sum
	return fade
}

// scaleRow multiplies a row by f in place.
func scaleRow(x []float32, f float32) {
	for i := range x {
		x[i] *= f
	}
}

// widen converts cached keys and values to float32.
func widen(dst []float32, src []uint16) { fromF16(dst, src) }

// transpose stores keys [count][dim] as tiles [dim][32] of 32 positions each; columns beyond count
// keep what they had.
func transpose(tiles []float32, k []float32, dim int) {
	for pos := range len(k) / dim {
		tile := tiles[pos/TileN*dim*TileN+pos%TileN:]
		for place, value := range k[pos*dim : (pos+1)*dim] {
			tile[place*TileN] = value
		}
	}
}

// transpose16 is transpose of float16 keys.
func transpose16(tiles []float32, k []uint16, dim int) {
	for pos := range len(k) / dim {
		tile := tiles[pos/TileN*dim*TileN+pos%TileN:]
		for place, value := range k[pos*dim : (pos+1)*dim] {
			tile[place*TileN] = number.HalfToFloat(value)
		}
	}
}
