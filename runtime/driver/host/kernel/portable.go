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
		MatMulQ4B32: func(y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int, w []byte, m, k, n int) {
			matMulQ4(BlockK, y, ldy, x, ldx, xscale, sums, ldsums, w, m, k, n)
		},
		MatMulQ4B128: func(y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int, w []byte, m, k, n int) {
			matMulQ4(pack.Block128, y, ldy, x, ldx, xscale, sums, ldsums, w, m, k, n)
		},
		QuantRows: quantRows, QuantStatic: quantStatic, Norm: norm, LayerNorm: layerNorm,
		GLU: glu, Activate: activate, Softcap: softcap, Gate: gate, Scale: scale,
		Add: add, Combine: combine, Rope: rope,
		AttentionF32: attentionF32, AttentionF16: attentionF16,
		FromF16: fromF16, FromBF16: fromBF16, ToF16: toF16,
		PeakI8: peakI8, PeakF32: peakF32, Stream: stream,
	}
}

// panelK rows of a float32 tile are 16 KiB, so that they stay in the first-level cache while
// the column groups of one row pair pass over them.
const panelK = 128

func matMulF32(y []float32, ldy int, x []float32, ldx int, w []float32, m, k, n int) {
	for j := 0; j < n; j += TileN {
		tile, cols := w[j*k:(j+TileN)*k], min(TileN, n-j)
		r := 0
		for ; r+2 <= m; r += 2 {
			var acc [2][TileN]float32
			x0, x1 := x[r*ldx:r*ldx+k], x[(r+1)*ldx:(r+1)*ldx+k]
			for p := 0; p < k; p += panelK {
				end := min(p+panelK, k)
				panelPair(&acc, x0[p:end], x1[p:end], tile[p*TileN:end*TileN])
			}
			copy(y[r*ldy+j:r*ldy+j+cols], acc[0][:])
			copy(y[(r+1)*ldy+j:(r+1)*ldy+j+cols], acc[1][:])
		}
		if r < m {
			var acc [TileN]float32
			x0 := x[r*ldx : r*ldx+k]
			for p := 0; p < k; p += panelK {
				end := min(p+panelK, k)
				panelRow(&acc, x0[p:end], tile[p*TileN:end*TileN])
			}
			copy(y[r*ldy+j:r*ldy+j+cols], acc[:])
		}
	}
}

// panelPair adds two rows times a panel [len(x0)][32] to acc, four columns at a time in registers.
func panelPair(acc *[2][TileN]float32, x0, x1, panel []float32) {
	x1 = x1[:len(x0)]
	for j := 0; j < TileN; j += 4 {
		a0, a1, a2, a3 := acc[0][j], acc[0][j+1], acc[0][j+2], acc[0][j+3]
		b0, b1, b2, b3 := acc[1][j], acc[1][j+1], acc[1][j+2], acc[1][j+3]
		for p, u := range x0 {
			v := x1[p]
			w := (*[4]float32)(panel[p*TileN+j:])
			a0 += u * w[0]
			b0 += v * w[0]
			a1 += u * w[1]
			b1 += v * w[1]
			a2 += u * w[2]
			b2 += v * w[2]
			a3 += u * w[3]
			b3 += v * w[3]
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
		for p, u := range x {
			w := (*[8]float32)(panel[p*TileN+j:])
			a0 += u * w[0]
			a1 += u * w[1]
			a2 += u * w[2]
			a3 += u * w[3]
			a4 += u * w[4]
			a5 += u * w[5]
			a6 += u * w[6]
			a7 += u * w[7]
		}
		acc[j], acc[j+1], acc[j+2], acc[j+3] = a0, a1, a2, a3
		acc[j+4], acc[j+5], acc[j+6], acc[j+7] = a4, a5, a6, a7
	}
}

// matMulBF16 widens panels of a tile for all rows.
func matMulBF16(y []float32, ldy int, x []float32, ldx int, w []uint16, m, k, n int) {
	var panel [panelK * TileN]float32
	for j := 0; j < n; j += TileN {
		tile, cols := w[j*k:(j+TileN)*k], min(TileN, n-j)
		for p := 0; p < k; p += panelK {
			end := min(p+panelK, k)
			for i := range end - p {
				row, out := (*[TileN]uint16)(tile[(p+i)*TileN:]), (*[TileN]float32)(panel[i*TileN:])
				for c := range 16 {
					out[c] = math.Float32frombits(uint32(row[2*c]) << 16)
					out[16+c] = math.Float32frombits(uint32(row[2*c+1]) << 16)
				}
			}
			for r := range m {
				var acc [TileN]float32
				out := y[r*ldy+j : r*ldy+j+cols]
				if p > 0 {
					copy(acc[:], out)
				}
				panelRow(&acc, x[r*ldx+p:r*ldx+end], panel[:(end-p)*TileN])
				copy(out, acc[:])
			}
		}
	}
}

func matMulQ8C(y []float32, ldy int, x []uint8, ldx int, xscale []float32, w []byte, m, k, n int) {
	bytes, scales := q8cTileBytes(k)
	for j := 0; j < n; j += TileN {
		tile := w[j/TileN*bytes : (j/TileN+1)*bytes]
		for r := range m {
			var dot [TileN]int32
			dotU8I8(&dot, x[r*ldx:r*ldx+k], tile)
			out := y[r*ldy+j : r*ldy+min(n, j+TileN)]
			for c := range out {
				out[c] = float32(dot[c]) * (xscale[r] * f32at(tile[scales:], c))
			}
		}
	}
}

// dotU8I8 sets dot[c] to sum_p (x[p]-128) q[p,c]; q is [ceil(len(x)/4)][32][4]. What q holds beyond
// len(x) does not matter.
func dotU8I8(dot *[TileN]int32, x []uint8, q []byte) {
	full := len(x) / 4
	for c := 0; c < TileN; c += 4 {
		var d0, d1, d2, d3 int32
		for p := range full {
			a := (*[4]byte)(x[4*p:])
			b := (*[16]byte)(q[p*4*TileN+4*c:])
			x0, x1, x2, x3 := int32(a[0])-128, int32(a[1])-128, int32(a[2])-128, int32(a[3])-128
			d0 += x0*int32(int8(b[0])) + x1*int32(int8(b[1])) + x2*int32(int8(b[2])) + x3*int32(int8(b[3]))
			d1 += x0*int32(int8(b[4])) + x1*int32(int8(b[5])) + x2*int32(int8(b[6])) + x3*int32(int8(b[7]))
			d2 += x0*int32(int8(b[8])) + x1*int32(int8(b[9])) + x2*int32(int8(b[10])) + x3*int32(int8(b[11]))
			d3 += x0*int32(int8(b[12])) + x1*int32(int8(b[13])) + x2*int32(int8(b[14])) + x3*int32(int8(b[15]))
		}
		for p := full * 4; p < len(x); p++ {
			b, xp := q[full*4*TileN+4*c+p%4:], int32(x[p])-128
			d0 += xp * int32(int8(b[0]))
			d1 += xp * int32(int8(b[4]))
			d2 += xp * int32(int8(b[8]))
			d3 += xp * int32(int8(b[12]))
		}
		dot[c], dot[c+1], dot[c+2], dot[c+3] = d0, d1, d2, d3
	}
}

func blockSums(sums []int32, ldsums int, x []uint8, ldx, m, k int) {
	for r := range m {
		for b := 0; b*BlockK < k; b++ {
			block := x[r*ldx+b*BlockK : r*ldx+min(k, (b+1)*BlockK)]
			sum := int32(-128 * len(block))
			for _, u := range block {
				sum += int32(u)
			}
			sums[r*ldsums+b] = sum
		}
	}
}

// matMulQ4 takes blocks of size rows in pieces of BlockK.
func matMulQ4(size int, y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int, w []byte, m, k, n int) {
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
				for p := b * size; p < min(k, (b+1)*size); p += BlockK {
					from := p % size * 16
					var nibbles [BlockK * TileN]byte // [8][32][4]: the q8c order
					for i := range 8 {
						src, lo, hi := block[from+i*64:from+i*64+64], nibbles[i*128:i*128+64], nibbles[i*128+64:i*128+128]
						for c, v := range src {
							lo[c], hi[c] = v&15, v>>4
						}
					}
					for i := range count {
						r := r0 + i
						var dot [TileN]int32
						dotU8I8(&dot, x[r*ldx+p:r*ldx+min(k, p+BlockK)], nibbles[:])
						rest := 8 * sums[r*ldsums+p/BlockK]
						for c, d := range dot {
							dots[i][c] += d - rest
						}
					}
				}
				for c := range TileN {
					scale := number.HalfToFloat(binary.LittleEndian.Uint16(block[16*size+2*c:]))
					for i := range count {
						acc[i][c] += float32(dots[i][c]) * scale
					}
				}
			}
			for i := range count {
				out := y[(r0+i)*ldy+j : (r0+i)*ldy+min(n, j+TileN)]
				for c := range out {
					out[c] = xscale[r0+i] * acc[i][c]
				}
			}
		}
	}
}

func quantRows(y []uint8, ldy int, scale []float32, x []float32, ldx, m, n int) int {
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		top := magnitude(row, 0)
		if top >= notFinite {
			return r
		}
		s := math.Float32frombits(top) / 127
		scale[r] = s
		if s == 0 {
			for c := range out {
				out[c] = 128
			}
			continue
		}
		for c, v := range row {
			// 1.5*2^23 leaves the integer, rounded to even, in the low mantissa bits.
			i := int32(math.Float32bits(v/s+0x1.8p23)) - 0x4b400000
			out[c] = uint8(128 + max(-127, min(127, i)))
		}
	}
	return -1
}

func quantStatic(y []uint8, ldy int, scale, from []float32, x []float32, ldx, m, n int) int {
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		top := magnitude(row, 0)
		if top >= notFinite {
			return r
		}
		s := op.StaticScale(from, math.Float32frombits(top))
		scale[r] = s
		for c, v := range row {
			out[c] = saturate(v / s)
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
	for _, v := range x {
		top = max(top, math.Float32bits(v)&0x7fffffff)
	}
	return top
}

func norm(y []float32, ldy int, x []float32, ldx int, gain []float32, eps float64, m, n int) {
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		sum := 0.0 // float64: a float32 square may overflow
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		inv := rootInverse(sum/float64(n) + eps)
		for c, v := range row {
			out[c] = gain[c] * float32(float64(v)*inv)
		}
	}
}

// layerNorm has its sums in float64, as norm.
func layerNorm(y []float32, ldy int, x []float32, ldx int, gain, bias []float32, eps float64, m, n int) {
	for r := range m {
		row, out := x[r*ldx:r*ldx+n], y[r*ldy:r*ldy+n]
		mean := mean(row)
		sum := 0.0
		for _, v := range row {
			d := float64(v) - mean
			sum += d * d
		}
		inv := rootInverse(sum/float64(n) + eps)
		for c, v := range row {
			out[c] = gain[c]*float32((float64(v)-mean)*inv) + bias[c]
		}
	}
}

func mean(x []float32) float64 {
	var s0, s1, s2, s3 float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		v := (*[4]float32)(x[i:])
		s0 += float64(v[0])
		s1 += float64(v[1])
		s2 += float64(v[2])
		s3 += float64(v[3])
	}
	for ; i < len(x); i++ {
		s0 += float64(x[i])
	}
	return (s0 + s1 + (s2 + s3)) / float64(len(x))
}

func add(y []float32, ldy int, a []float32, lda int, b []float32, ldb, m, n int) {
	for r := range m {
		out, p, q := y[r*ldy:r*ldy+n], a[r*lda:r*lda+n], b[r*ldb:r*ldb+n]
		for c := range out {
			out[c] = p[c] + q[c]
		}
	}
}

func combine(y []float32, ldy int, x []float32, ldx int, weight []float32, ldw, m, fan, n int) {
	for r := range m {
		out := y[r*ldy : r*ldy+n]
		clear(out)
		for j := range fan {
			addScaled(out, x[(r*fan+j)*ldx:(r*fan+j)*ldx+n], weight[r*ldw+j])
		}
	}
}

func scale(x []float32, s float64) {
	f := float32(s)
	for i := range x {
		x[i] *= f
	}
}

func rope(x []float32, ldx int, cos, sin []float32, m, heads, headDim, rotary int) {
	half := rotary / 2
	for r := range m {
		c, s := cos[r*half:(r+1)*half], sin[r*half:(r+1)*half]
		for h := range heads {
			a := x[r*ldx+h*headDim : r*ldx+h*headDim+half]
			b := x[r*ldx+h*headDim+half : r*ldx+h*headDim+rotary]
			for i := range a {
				u, v := a[i], b[i]
				a[i], b[i] = u*c[i]-v*s[i], v*c[i]+u*s[i]
			}
		}
	}
}

// ColumnQ8C writes column j of a q8c weight of len(out) rows, values times the column's scale: row j of the table
// that a tied head holds.
func ColumnQ8C(out []float32, w []byte, j int) {
	body := TileN * ((len(out) + 3) &^ 3)
	size := body + 8*TileN
	tile, c := w[j/TileN*size:][:size], j%TileN
	scale := math.Float32frombits(binary.LittleEndian.Uint32(tile[body+4*c:]))
	for k := range out {
		out[k] = float32(int8(tile[k>>2*4*TileN+4*c+k&3])) * scale
	}
}
