package kernel

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// Reference returns the numeric reference: every sum in float64, every result rounded once, loops in
// the order of the formulas.
func Reference() *Set {
	return &Set{
		Name: "reference", TileStep: 1,
		MatMulF32: refMatMulF32, MatMulBF16: refMatMulBF16, MatMulQ8C: refMatMulQ8C, BlockSums: blockSums,
		MatMulQ4B32: func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
			refMatMulQ4(BlockK, y, x, w, m, k, n)
		},
		MatMulQ4B128: func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
			refMatMulQ4(pack.Block128, y, x, w, m, k, n)
		},
		MatMulQ6C: refMatMulQ6C, RequantQ4B32: requantQ4B32,
		QuantRows: refQuantRows, QuantStatic: refQuantStatic, Norm: refNorm, LayerNorm: refLayerNorm,
		GLU: refGLU, Activate: refActivate, Softcap: refSoftcap, Gate: refGate, Scale: refScale,
		Add: add, Combine: refCombine, Rope: refRope,
		AttentionF32: func(y, q Matrix[float32], k, v []float32, _ []float32, a Attention) {
			refAttention(y, q, func(i int) float64 { return float64(k[i]) },
				func(i int) float64 { return float64(v[i]) }, a)
		},
		AttentionF16: func(y, q Matrix[float32], k, v []uint16, _ []float32, a Attention) {
			refAttention(y, q, func(i int) float64 { return float64(number.HalfToFloat(k[i])) },
				func(i int) float64 { return float64(number.HalfToFloat(v[i])) }, a)
		},
		AttentionBF16: func(y, q Matrix[float32], k, v []uint16, _ []float32, a Attention) {
			refAttentionBF16(y, q, k, v, a)
		},
		AttentionQ8: refAttentionQ8,
		FromF16:     fromF16, FromBF16: fromBF16, ToF16: toF16, ToBF16: toBF16,
		Peak: peak, Below: below, PoolBelow: poolBelow,
		PeakI8: peakI8, PeakF32: peakF32, Stream: stream,
	}
}

// refQ8 is number i of rows of an 8-bit cache of dim numbers each.
func refQ8(rows []uint8, dim, i int) float64 {
	row := rows[i/dim*(dim+cachedScale):]
	return float64(ScaleQ8(row, dim)) * float64(int(row[i%dim])-128)
}

// The reference functions implement the fields of Set of the same name by their formulas.
func refMatMulF32(y, x Matrix[float32], w []float32, m, k, n int) {
	for row := range m {
		for j := range n {
			tile := w[j/TileN*k*TileN+j%TileN:]
			sum := 0.0
			for pos, value := range x.row(row, k) {
				sum += float64(value) * float64(tile[pos*TileN])
			}
			*y.at(row, j) = float32(sum)
		}
	}
}

// brainAt is the index of element p of column j in a w16 weight of k rows: columns c and 16+c are
// neighbours.
func brainAt(p, j, k int) int { return (j/TileN*k+p)*TileN + j%16*2 + j%TileN/16 }

// refMatMulBF16 is y = x w with weights in bfloat16, laid out by brainAt.
func refMatMulBF16(y, x Matrix[float32], w []uint16, m, k, n int) {
	for row := range m {
		for j := range n {
			sum := 0.0
			for pos, value := range x.row(row, k) {
				sum += float64(value) * float64(math.Float32frombits(uint32(w[brainAt(pos, j, k)])<<16))
			}
			*y.at(row, j) = float32(sum)
		}
	}
}

// q8cTileBytes returns the size of one q8c tile of k rows and the offset of its scales, in bytes.
func q8cTileBytes(k int) (bytes, scales int) {
	scales = (k + 3) / 4 * 4 * TileN
	return scales + 8*TileN, scales
}

// q4BlockBytes is the size of one block of a tile of 4-bit weights: nibbles and float16 scales.
func q4BlockBytes(block int) int { return 16*block + 2*TileN }

// f32at is element i of b as little-endian float32.
func f32at(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

// refMatMulQ8C is a product of codes: x around 128 with a scale for each row, w with one for each column. The integer
// sum is exact, so only the final scaling rounds.
func refMatMulQ8C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	bytes, scales := q8cTileBytes(k)
	for row := range m {
		for j := range n {
			tile, col := w[j/TileN*bytes:], j%TileN
			dot := int64(0)
			for pos, code := range x.Codes.row(row, k) {
				dot += (int64(code) - 128) * int64(int8(tile[pos/4*4*TileN+col*4+pos%4]))
			}
			*y.at(row, j) = float32(float64(dot) * (float64(x.Scale[row]) * float64(f32at(tile[scales:], col))))
		}
	}
}

// refMatMulQ4 addresses every nibble by itself: byte k/4, column%16, k%4 of the block, the upper
// half for columns 16..31.
func refMatMulQ4(size int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	blocks, bytes := (k+size-1)/size, q4BlockBytes(size)
	for row := range m {
		codes := x.Codes.row(row, k)
		for j := range n {
			tile, col := w[j/TileN*blocks*bytes:], j%TileN
			sum := 0.0
			for b := range blocks {
				block := tile[b*bytes : (b+1)*bytes]
				dot := 0
				for pos := b * size; pos < min(k, (b+1)*size); pos++ {
					i := pos % size
					nibble := block[i/4*64+col%16*4+i%4] >> (col / 16 * 4) & 15
					dot += (int(codes[pos]) - 128) * (int(nibble) - 8)
				}
				sum += float64(dot) * float64(number.HalfToFloat(binary.LittleEndian.Uint16(block[16*size+2*col:])))
			}
			*y.at(row, j) = float32(float64(x.Scale[row]) * sum)
		}
	}
}

// refQuantRows differs from the portable form by nothing: rounding is exact in both.
func refQuantRows(y Quantised, x Matrix[float32], m, n int) int {
	for line := range m {
		row, out := x.row(line, n), y.Codes.row(line, n)
		absmax := 0.0
		for _, value := range row {
			size := math.Abs(float64(value))
			if math.IsNaN(size) || math.IsInf(size, 0) {
				return line
			}
			absmax = max(absmax, size)
		}
		step := float32(absmax) / 127
		y.Scale[line] = step
		for col, value := range row {
			out[col] = 128
			if step != 0 { // the clamp matters only where step is subnormal
				out[col] = uint8(128 + max(-127, min(127, math.RoundToEven(float64(value/step)))))
			}
		}
	}
	return -1
}

// refQuantStatic quantises rows [m,n], each by the smallest scale of from that holds it, else the largest. It returns
// the first row with a value that is not finite, else -1.
func refQuantStatic(y Quantised, from []float32, x Matrix[float32], m, n int) int {
	for line := range m {
		row, out, top := x.row(line, n), y.Codes.row(line, n), float32(0)
		for _, value := range row {
			if math.IsNaN(float64(value)) || math.IsInf(float64(value), 0) {
				return line
			}
			top = max(top, value, -value)
		}
		sorted := slices.Sorted(slices.Values(from))
		i, _ := slices.BinarySearch(sorted, top/127)
		step := sorted[min(i, len(sorted)-1)]
		y.Scale[line] = step
		for col, value := range row {
			out[col] = uint8(128 + max(-127, min(127, math.RoundToEven(float64(value/step)))))
		}
	}
	return -1
}

// refNorm is the root mean square norm of each row, times gain [n].
func refNorm(y, x Matrix[float32], gain []float32, eps float64, m, n int) {
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		sum := 0.0
		for _, value := range row {
			sum += float64(value) * float64(value)
		}
		inv := rootInverse(sum/float64(n) + eps)
		for col, value := range row {
			out[col] = float32(float64(gain[col]) * (float64(value) * inv))
		}
	}
}

// rootInverse is 1/sqrt(v), 0 for 0 so that a zero row stays zero.
func rootInverse(v float64) float64 {
	if v == 0 {
		return 0
	}
	return 1 / math.Sqrt(v)
}

// refLayerNorm subtracts the mean of each row and divides by its deviation; gain and bias have [n] elements.
func refLayerNorm(y, x Matrix[float32], gain, bias []float32, eps float64, m, n int) {
	for line := range m {
		row, out := x.row(line, n), y.row(line, n)
		mean := mean(row)
		sum := 0.0
		for _, value := range row {
			sum += (float64(value) - mean) * (float64(value) - mean)
		}
		inv := rootInverse(sum/float64(n) + eps)
		for col, value := range row {
			out[col] = float32(float64(gain[col])*((float64(value)-mean)*inv) + float64(bias[col]))
		}
	}
}

// refAct is an activation function in double precision, in forms that lose no digits where its value is near 0.
func refAct(act string, x float64) float64 {
	switch act {
	case op.SiLU:
		return x * sigmoid(x)
	case op.GELU:
		return x * math.Erfc(-x/math.Sqrt2) / 2
	case op.GELUTanh: // 0.5 + 0.5*tanh(u) is the sigmoid of 2u
		return x * sigmoid(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))
	case op.ReLU:
		return math.Max(x, 0)
	}
	panic("BUG: activation function " + act)
}

// sigmoid is the logistic function.
func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// refGLU is act(gate)*up, where a row of x has columns of both in turn, interleave of each at a time.
func refGLU(y, x Matrix[float32], act string, interleave, m, n int) {
	for line := range m {
		row, out := x.row(line, 2*n), y.row(line, n)
		for col := range out {
			pair := row[col/interleave*2*interleave+col%interleave:]
			out[col] = float32(refAct(act, float64(pair[0])) * float64(pair[interleave]))
		}
	}
}

// refActivate applies an activation function to rows [m,n].
func refActivate(y, x Matrix[float32], act string, m, n int) {
	for row := range m {
		out := y.row(row, n)
		for col, value := range x.row(row, n) {
			out[col] = float32(refAct(act, float64(value)))
		}
	}
}

// refSoftcap is limit*tanh(x/limit).
func refSoftcap(y, x Matrix[float32], limit float64, m, n int) {
	for row := range m {
		out := y.row(row, n)
		for col, value := range x.row(row, n) {
			out[col] = float32(limit * math.Tanh(float64(value)/limit))
		}
	}
}

// refGate multiplies each row by the sigmoid of its gate, the first element of a row of gate.
func refGate(y, x, gate Matrix[float32], m, n int) {
	for row := range m {
		share := sigmoid(float64(gate.Data[row*gate.Stride]))
		out := y.row(row, n)
		for col, value := range x.row(row, n) {
			out[col] = float32(float64(value) * share)
		}
	}
}

// refScale multiplies x by s in place.
func refScale(x []float32, s float64) {
	for i, value := range x {
		x[i] = float32(float64(value) * s)
	}
}

// refCombine adds up the fan rows that belong to each of m tokens, weighted by weight [m,fan].
func refCombine(y, x, weight Matrix[float32], m, fan, n int) {
	for row := range m {
		out, shares := y.row(row, n), weight.row(row, fan)
		for col := range out {
			sum := 0.0
			for j, share := range shares {
				sum += float64(share) * float64(x.row(row*fan+j, n)[col])
			}
			out[col] = float32(sum)
		}
	}
}

// refRope rotates the first rotary elements of each head in place; cos and sin are [m,rotary/2], and element i is
// paired with element i+rotary/2.
func refRope(x Matrix[float32], cos, sin []float32, m, heads, headDim, rotary int) {
	half := rotary / 2
	for row := range m {
		for index := range heads {
			head := x.row(row, heads*headDim)[index*headDim:]
			for i := range half {
				low, high := float64(head[i]), float64(head[i+half])
				cosine, sine := float64(cos[row*half+i]), float64(sin[row*half+i])
				head[i] = float32(low*cosine - high*sine)
				head[i+half] = float32(high*cosine + low*sine)
			}
		}
	}
}

// refAttention recomputes scores instead of storing them, so that it needs no scratch: once for the
// maximum, then once for every 64 columns of the result.
func refAttention(y, q Matrix[float32], k, v func(i int) float64, a Attention) {
	headDim := a.Dim
	for row := range a.M {
		from, to := a.first(row), a.Pos+row+1
		for head := range a.Heads {
			query, out := q.From(row, head*headDim).row(0, headDim), y.From(row, head*headDim).row(0, headDim)
			score := func(p int) float64 {
				dot := 0.0
				for dim, value := range query {
					dot += float64(value) * k(p*headDim+dim)
				}
				dot *= a.Scale
				if a.Cap > 0 {
					dot = a.Cap * math.Tanh(dot/a.Cap)
				}
				return dot
			}
			top, rest := math.Inf(-1), math.Inf(-1)
			if a.Rest.Count > 0 {
				dot := 0.0
				for dim, value := range query {
					dot += float64(value) * float64(a.Rest.Key[dim])
				}
				rest = dot * a.Scale
				if a.Cap > 0 {
					rest = a.Cap * math.Tanh(rest/a.Cap)
				}
				rest += math.Log(float64(a.Rest.Count))
				top = rest
			}
			for pos := from; pos < to; pos++ {
				top = math.Max(top, score(pos))
			}
			for d0 := 0; d0 < headDim; d0 += 64 {
				var acc [64]float64
				width, sum := min(64, headDim-d0), 0.0
				if a.Rest.Count > 0 {
					sum = math.Exp(rest - top)
					for dim := range width {
						acc[dim] = sum * float64(a.Rest.Value[d0+dim])
					}
				}
				for pos := from; pos < to; pos++ {
					weight := math.Exp(score(pos) - top)
					sum += weight
					for dim := range width {
						acc[dim] += weight * v(pos*headDim+d0+dim)
					}
				}
				for dim := range width {
					out[d0+dim] = float32(acc[dim] / sum)
				}
			}
		}
	}
}

// refAttentionBF16 is refAttention with what AttentionBF16 rounds, and nothing else, rounded to bfloat16. A weight is
// rounded relative to the largest score up to the end of its block.
func refAttentionBF16(y, q Matrix[float32], k, v []uint16, a Attention) {
	for row := range a.M {
		for head := range a.Heads {
			query, out := q.From(row, head*a.Dim).row(0, a.Dim), y.From(row, head*a.Dim).row(0, a.Dim)
			line := refLineBF16{Attention: &a, keys: k, values: v, query: query, row: row}
			for first := 0; first < a.Dim; first += refColumns {
				line.columns(out[first:min(first+refColumns, a.Dim)], first)
			}
		}
	}
}

// refAttentionQ8 rounds the queries of one row after the other.
func refAttentionQ8(y, q Matrix[float32], k, v []uint8, scratch []float32, a Attention) {
	queries, codes := scratch[:a.Heads*a.Dim], mem.Bytes(scratch[a.Heads*a.Dim:])
	for row := range a.M {
		copy(queries, q.row(row, len(queries)))
		roundQ8(queries, a.Dim, codes)
		one := a
		one.M, one.Pos = 1, a.Pos+row
		refAttention(y.From(row, 0), Rows(queries, len(queries)), func(i int) float64 { return refQ8(k, a.Dim, i) },
			func(i int) float64 { return refQ8(v, a.Dim, i) }, one)
	}
}

// refColumns is the number of columns whose sums are kept in float64 at a time. Everything else is computed again for
// the next ones.
const refColumns = 64

// wideBF16 is the value of a bfloat16 number, and nearestBF16 that of the nearest one to a number.
func wideBF16(brain uint16) float64 { return float64(math.Float32frombits(uint32(brain) << 16)) }
func nearestBF16(x float64) float64 { return wideBF16(brainOf(float32(x))) }

// refLineBF16 is the attention of a query head of a row.
type refLineBF16 struct {
	*Attention
	keys, values []uint16
	query        []float32
	row          int

	top, total float64 // the largest score so far, and the sum of the weights relative to it
	scores     [keyBlock]float64
	sums       [refColumns]float64 // of weighted values
}

// columns computes the results of some columns, from first on, a block of positions after the other.
func (l *refLineBF16) columns(out []float32, first int) {
	l.begin(first, len(out))
	for from, to := l.first(l.row), l.Pos+l.row+1; from < to; {
		end := min(to, (from/keyBlock+1)*keyBlock)
		l.block(from, end, first, len(out))
		from = end
	}
	for i := range out {
		out[i] = float32(l.sums[i] / l.total)
	}
}

// begin starts with the rest, or with nothing.
func (l *refLineBF16) begin(first, width int) {
	l.top, l.total, l.sums = math.Inf(-1), 0, [refColumns]float64{}
	if l.Rest.Count == 0 {
		return
	}
	score := 0.0
	for i, value := range l.query {
		score += nearestBF16(float64(value)) * float64(l.Rest.Key[i])
	}
	l.top, l.total = l.capped(score*l.Scale)+math.Log(float64(l.Rest.Count)), 1
	for i := range width {
		l.sums[i] = float64(l.Rest.Value[first+i])
	}
}

// block takes the positions from..end-1 into account.
func (l *refLineBF16) block(from, end, first, width int) {
	before := l.top
	for pos := from; pos < end; pos++ {
		score := 0.0
		for i, value := range l.query {
			score += nearestBF16(float64(value)) * wideBF16(l.keys[pos*l.Dim+i])
		}
		l.scores[pos-from] = l.capped(score * l.Scale)
		l.top = math.Max(l.top, l.scores[pos-from])
	}
	fade := math.Exp(before - l.top)
	l.total *= fade
	for i := range width {
		l.sums[i] *= fade
	}
	for pos := from; pos < end; pos++ {
		weight := math.Exp(l.scores[pos-from] - l.top)
		l.total += weight
		for i := range width {
			l.sums[i] += nearestBF16(weight) * wideBF16(l.values[pos*l.Dim+first+i])
		}
	}
}

// capped is a score with the soft limit, if any.
func (l *refLineBF16) capped(score float64) float64 {
	if l.Cap > 0 {
		return l.Cap * math.Tanh(score/l.Cap)
	}
	return score
}
