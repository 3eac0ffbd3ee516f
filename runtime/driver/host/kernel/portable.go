package kernel

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// Portable returns plain Go loops in float32, blocked for registers and the first-level cache. Sums run
// sequentially in k with one accumulator per result.
func Portable() *Set {
	return &Set{
		Name: "portable", TileStep: 1,
		MatMulF32: matMulF32, MatMulBF16: matMulBF16, MatMulQ8C: matMulQ8C, BlockSums: blockSums,
		MatMulQ4B32: func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
			matMulQ4(BlockK, y, x, w, m, k, n)
		},
		MatMulQ4B128: func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
			matMulQ4(pack.Block128, y, x, w, m, k, n)
		},
		MatMulQ6C: matMulQ6C, RequantQ4B32: requantQ4B32,
		QuantRows: quantRows, QuantStatic: quantStatic, Norm: norm, LayerNorm: layerNorm,
		GLU: glu, Activate: activate, Softcap: softcap, Gate: gate, Scale: scale,
		Add: add, Combine: combine, Rope: rope,
		AttentionF32: attentionF32, AttentionF16: attentionF16, AttentionBF16: attentionBF16,
		AttentionQ8: attentionQ8,
		FromF16:     fromF16, FromBF16: fromBF16, ToF16: toF16, ToBF16: toBF16,
		Peak: peak, Below: below, PoolBelow: poolBelow,
		PeakI8: peakI8, PeakF32: peakF32, Stream: stream,
	}
}

// panelK rows of a float32 tile are 16 KiB. They stay in the first-level cache while the column
// groups of a pair of rows pass over them.
const panelK = 128

// matMulF32 multiplies two rows at a time with panels of a tile, and the last row of an odd number
// alone.
func matMulF32(y, x Matrix[float32], w []float32, m, k, n int) {
	for j := 0; j < n; j += TileN {
		tile := w[j*k : (j+TileN)*k]
		row := 0
		for ; row+2 <= m; row += 2 {
			var acc [2][TileN]float32
			x0, x1 := x.row(row, k), x.row(row+1, k)
			for pos := 0; pos < k; pos += panelK {
				end := min(pos+panelK, k)
				panelPair(&acc, x0[pos:end], x1[pos:end], tile[pos*TileN:end*TileN])
			}
			copy(y.row(row, n)[j:], acc[0][:])
			copy(y.row(row+1, n)[j:], acc[1][:])
		}
		if row < m {
			var acc [TileN]float32
			x0 := x.row(row, k)
			for pos := 0; pos < k; pos += panelK {
				end := min(pos+panelK, k)
				panelRow(&acc, x0[pos:end], tile[pos*TileN:end*TileN])
			}
			copy(y.row(row, n)[j:], acc[:])
		}
	}
}

// panelPair adds two rows times a panel [len(x0)][32] to acc, four columns at a time in registers.
func panelPair(acc *[2][TileN]float32, x0, x1, panel []float32) {
	x1 = x1[:len(x0)]
	for j := 0; j < TileN; j += 4 {
		a0, a1, a2, a3 := acc[0][j], acc[0][j+1], acc[0][j+2], acc[0][j+3]
		b0, b1, b2, b3 := acc[1][j], acc[1][j+1], acc[1][j+2], acc[1][j+3]
		for pos, first := range x0 {
			second := x1[pos]
			weights := (*[4]float32)(panel[pos*TileN+j:])
			a0 += first * weights[0]
			b0 += second * weights[0]
			a1 += first * weights[1]
			b1 += second * weights[1]
			a2 += first * weights[2]
			b2 += second * weights[2]
			a3 += first * weights[3]
			b3 += second * weights[3]
		}
		acc[0][j], acc[0][j+1], acc[0][j+2], acc[0][j+3] = a0, a1, a2, a3
		acc[1][j], acc[1][j+1], acc[1][j+2], acc[1][j+3] = b0, b1, b2, b3
	}
}

// panelRow is panelPair for one row, eight columns at a time.
func panelRow(acc *[TileN]float32, x, panel []float32) {
	for j := 0; j < TileN; j += 8 {
		a0, a1, a2, a3 := acc[j], acc[j+1], acc[j+2], acc[j+3]
		a4, a5, a6, a7 := acc[j+4], acc[j+5], acc[j+6], acc[j+7]
		for pos, value := range x {
			weights := (*[8]float32)(panel[pos*TileN+j:])
			a0 += value * weights[0]
			a1 += value * weights[1]
			a2 += value * weights[2]
			a3 += value * weights[3]
			a4 += value * weights[4]
			a5 += value * weights[5]
			a6 += value * weights[6]
			a7 += value * weights[7]
		}
		acc[j], acc[j+1], acc[j+2], acc[j+3] = a0, a1, a2, a3
		acc[j+4], acc[j+5], acc[j+6], acc[j+7] = a4, a5, a6, a7
	}
}

// matMulBF16 widens a panel of a tile once for all rows, into the order of a w32 tile. Sums
// continue in y from panel to panel.
func matMulBF16(y, x Matrix[float32], w []uint16, m, k, n int) {
	var panel [panelK * TileN]float32
	for j := 0; j < n; j += TileN {
		tile, cols := w[j*k:(j+TileN)*k], min(TileN, n-j)
		for pos := 0; pos < k; pos += panelK {
			end := min(pos+panelK, k)
			for i := range end - pos {
				row, out := (*[TileN]uint16)(tile[(pos+i)*TileN:]), (*[TileN]float32)(panel[i*TileN:])
				for col := range 16 {
					out[col] = math.Float32frombits(uint32(row[2*col]) << 16)
					out[16+col] = math.Float32frombits(uint32(row[2*col+1]) << 16)
				}
			}
			for row := range m {
				var acc [TileN]float32
				out := y.row(row, n)[j : j+cols]
				if pos > 0 {
					copy(acc[:], out)
				}
				panelRow(&acc, x.row(row, k)[pos:end], panel[:(end-pos)*TileN])
				copy(out, acc[:])
			}
		}
	}
}

// matMulQ8C scales exact integer products; the column sums of the tile are not needed here.
func matMulQ8C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	bytes, scales := q8cTileBytes(k)
	for j := 0; j < n; j += TileN {
		tile := w[j/TileN*bytes : (j/TileN+1)*bytes]
		for row := range m {
			var dot [TileN]int32
			dotU8I8(&dot, x.Codes.row(row, k), tile)
			out := y.row(row, n)[j:min(n, j+TileN)]
			for col := range out {
				out[col] = float32(dot[col]) * (x.Scale[row] * f32at(tile[scales:], col))
			}
		}
	}
}

// dotU8I8 sets dot[c] to sum_p (x[p]-128) q[p,c]; q is [ceil(len(x)/4)][32][4]. What q holds beyond
// len(x) does not matter.
func dotU8I8(dot *[TileN]int32, x []uint8, q []byte) {
	full := len(x) / 4
	for col := 0; col < TileN; col += 4 {
		var d0, d1, d2, d3 int32
		for pos := range full {
			rowBytes := (*[4]byte)(x[4*pos:])
			tileBytes := (*[16]byte)(q[pos*4*TileN+4*col:])
			x0, x1, x2, x3 := int32(rowBytes[0])-128, int32(rowBytes[1])-128, int32(rowBytes[2])-128,
				int32(rowBytes[3])-128
			d0 += x0*int32(int8(tileBytes[0])) + x1*int32(int8(tileBytes[1])) + x2*int32(int8(tileBytes[2])) + x3*int32(int8(tileBytes[3]))
			d1 += x0*int32(int8(tileBytes[4])) + x1*int32(int8(tileBytes[5])) + x2*int32(int8(tileBytes[6])) + x3*int32(int8(tileBytes[7]))
			d2 += x0*int32(int8(tileBytes[8])) + x1*int32(int8(tileBytes[9])) + x2*int32(int8(tileBytes[10])) + x3*int32(int8(tileBytes[11]))
			d3 += x0*int32(int8(tileBytes[12])) + x1*int32(int8(tileBytes[13])) + x2*int32(int8(tileBytes[14])) + x3*int32(int8(tileBytes[15]))
		}
		for pos := full * 4; pos < len(x); pos++ {
			last, xp := q[full*4*TileN+4*col+pos%4:], int32(x[pos])-128
			d0 += xp * int32(int8(last[0]))
			d1 += xp * int32(int8(last[4]))
			d2 += xp * int32(int8(last[8]))
			d3 += xp * int32(int8(last[12]))
		}
		dot[col], dot[col+1], dot[col+2], dot[col+3] = d0, d1, d2, d3
	}
}

// blockSums also handles a last block of less than BlockK activations.
func blockSums(sums Matrix[int32], x Matrix[uint8], m, k int) {
	for row := range m {
		codes, out := x.row(row, k), sums.row(row, (k+BlockK-1)/BlockK)
		for index := range out {
			block := codes[index*BlockK : min(k, (index+1)*BlockK)]
			sum := int32(-128 * len(block))
			for _, value := range block {
				sum += int32(value)
			}
			out[index] = sum
		}
	}
}

// matMulQ4 unpacks BlockK rows of a tile at a time into the order of a q8c tile, for up to four
// rows of activations, and multiplies by dotU8I8. size is the number of rows of a block.
func matMulQ4(size int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	const rows = 4 // rows that share one unpacked piece
	blocks, bytes := (k+size-1)/size, q4BlockBytes(size)
	for j := 0; j < n; j += TileN {
		tile := w[j/TileN*blocks*bytes : (j/TileN+1)*blocks*bytes]
		for r0 := 0; r0 < m; r0 += rows {
			count := min(rows, m-r0)
			var acc [rows][TileN]float32
			for b := range blocks {
				block := tile[b*bytes : (b+1)*bytes]
				var dots [rows][TileN]int32
				for pos := b * size; pos < min(k, (b+1)*size); pos += BlockK {
					from := pos % size * 16
					var nibbles [BlockK * TileN]byte // [8][32][4]: the q8c order
					for i := range 8 {
						src, lo, hi := block[from+i*64:from+i*64+64], nibbles[i*128:i*128+64],
							nibbles[i*128+64:i*128+128]
						for col, packed := range src {
							lo[col], hi[col] = packed&15, packed>>4
						}
					}
					for i := range count {
						row := r0 + i
						var dot [TileN]int32
						dotU8I8(&dot, x.Codes.row(row, k)[pos:min(k, pos+BlockK)], nibbles[:])
						// a nibble stands for nibble-8
						zero := 8 * *x.Sums.at(row, pos/BlockK)
						for col, sum := range dot {
							dots[i][col] += sum - zero
						}
					}
				}
				for col := range TileN {
					scale := number.HalfToFloat(binary.LittleEndian.Uint16(block[16*size+2*col:]))
					for i := range count {
						acc[i][col] += float32(dots[i][col]) * scale
					}
				}
			}
			for i := range count {
				out := y.row(r0+i, n)[j:min(n, j+TileN)]
				for col := range out {
					out[col] = x.Scale[r0+i] * acc[i][col]
				}
			}
		}
	}
}

// quantRows scales each row by its largest magnitude, which becomes 127.
func quantRows(y Quantised, x Matrix[float32], m, n int) int {
	for line := range m {
		row, out := x.row(line, n), y.Codes.row(line, n)
		top := magnitude(row, 0)
		// NaN and infinities have no quantised form
		if top >= notFinite {
			return line
		}
		step := math.Float32frombits(top) / 127
		y.Scale[line] = step
		if step == 0 {
			for col := range out {
				out[col] = 128
			}
			continue
		}
		for col, value := range row {
			// 1.5*2^23 leaves the integer, rounded to even, in the low mantissa bits.
			i := int32(math.Float32bits(value/step+0x1.8p23)) - 0x4b400000
			out[col] = uint8(128 + max(-127, min(127, i)))
		}
	}
	return -1
}

// quantStatic chooses each row's scale from the given ones; larger values saturate.
func quantStatic(y Quantised, from []float32, x Matrix[float32], m, n int) int {
	for line := range m {
		row, out := x.row(line, n), y.Codes.row(line, n)
		top := magnitude(row, 0)
		if top >= notFinite {
			return line
		}
		step := op.StaticScale(from, math.Float32frombits(top))
		y.Scale[line] = step
		for col, value := range row {
			out[col] = saturate(value / step)
		}
	}
	return -1
}

// saturate is the code of q, in units of the scale: what 1.5*2^23 leaves in the low mantissa bits is rounded to even.
func saturate(q float32) uint8 {
	return uint8(128 + int32(math.Float32bits(max(-127, min(127, q))+0x1.8p23)) - 0x4b400000)
}

// notFinite and above are magnitudes of infinities and NaN.
const notFinite = 0x7f800000

// magnitude is the largest magnitude of x, or top: magnitudes order like their bits, NaN and infinities last.
func magnitude(x []float32, top uint32) uint32 {
	for _, value := range x {
		top = max(top, math.Float32bits(value)&0x7fffffff)
	}
	return top
}

// norm is RMS normalisation, sums and the factor in float64.
func norm(y, x Matrix[float32], gain []float32, eps float64, m, n int) {
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		sum := 0.0 // float64: a float32 square may overflow
		for _, value := range row {
			sum += float64(value) * float64(value)
		}
		inv := rootInverse(sum/float64(n) + eps)
		for col, value := range row {
			out[col] = gain[col] * float32(float64(value)*inv)
		}
	}
}

// layerNorm sums in float64, as norm does.
func layerNorm(y, x Matrix[float32], gain, bias []float32, eps float64, m, n int) {
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		mean := mean(row)
		sum := 0.0
		for _, value := range row {
			off := float64(value) - mean
			sum += off * off
		}
		inv := rootInverse(sum/float64(n) + eps)
		for col, value := range row {
			out[col] = gain[col]*float32((float64(value)-mean)*inv) + bias[col]
		}
	}
}

// mean sums in four chains of float64.
func mean(x []float32) float64 {
	var s0, s1, s2, s3 float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		four := (*[4]float32)(x[i:])
		s0 += float64(four[0])
		s1 += float64(four[1])
		s2 += float64(four[2])
		s3 += float64(four[3])
	}
	for ; i < len(x); i++ {
		s0 += float64(x[i])
	}
	return (s0 + s1 + (s2 + s3)) / float64(len(x))
}

// add reads the same row of b for all rows where its stride is 0.
func add(y, a, b Matrix[float32], m, n int) {
	for row := range m {
		out, left, right := y.row(row, n), a.row(row, n), b.row(row, n)
		for col := range out {
			out[col] = left[col] + right[col]
		}
	}
}

// combine adds the fan rows of each token up, times their weights.
func combine(y, x, weight Matrix[float32], m, fan, n int) {
	for row := range m {
		out := y.row(row, n)
		clear(out)
		for j, share := range weight.row(row, fan) {
			addScaled(out, x.row(row*fan+j, n), share)
		}
	}
}

// scale multiplies x by s in place.
func scale(x []float32, s float64) {
	factor := float32(s)
	for i := range x {
		x[i] *= factor
	}
}

// rope rotates pairs of columns that lie half of rotary apart, the NeoX order.
func rope(x Matrix[float32], cos, sin []float32, m, heads, headDim, rotary int) {
	half := rotary / 2
	for row := range m {
		cosines, sines := cos[row*half:(row+1)*half], sin[row*half:(row+1)*half]
		for head := range heads {
			columns := x.row(row, heads*headDim)[head*headDim:]
			low, high := columns[:half], columns[half:rotary]
			for i := range low {
				left, value := low[i], high[i]
				low[i], high[i] = left*cosines[i]-value*sines[i], value*cosines[i]+left*sines[i]
			}
		}
	}
}

// ColumnQ8C dequantises column j of a q8c weight of len(out) rows. In a head tied to the embedding
// this column is row j of the embedding table.
func ColumnQ8C(out []float32, w []byte, j int) {
	body := TileN * ((len(out) + 3) &^ 3)
	size := body + 8*TileN
	tile, col := w[j/TileN*size:][:size], j%TileN
	scale := math.Float32frombits(binary.LittleEndian.Uint32(tile[body+4*col:]))
	for depth := range out {
		out[depth] = float32(int8(tile[depth>>2*4*TileN+4*col+depth&3])) * scale
	}
}
