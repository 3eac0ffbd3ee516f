package kernel

import "github.com/hetc/hetc/planir/pack"

//go:generate go run -C gen . -tier i8mm -out ../vec_i8mm_arm64.s -stubs ../vec_i8mm_arm64.go -pkg kernel

// mmlaRows is the largest number of rows of one call of a kernel of SMMLA, and the constant of the same name in gen.
// The least is two: it multiplies pairs.
const mmlaRows = 6

// i8mm is the set neon with SMMLA in quantised products of at least two rows. They give the bits of neon's: sums of
// integers are exact, and what follows is the same.
func i8mm(neon *Set) *Set {
	set := *neon
	set.Name = "i8mm"
	set.MatMulQ8C = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		if m == 1 {
			neon.MatMulQ8C(y, x, w, m, k, n)
			return
		}
		pairProduct(mmlaK, y, x, w, m, k, n)
	}
	set.MatMulQ4B32 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		if m == 1 {
			neon.MatMulQ4B32(y, x, w, m, k, n)
			return
		}
		pairProduct(BlockK, y, x, w, m, k, n)
	}
	set.MatMulQ4B128 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		if m == 1 {
			neon.MatMulQ4B128(y, x, w, m, k, n)
			return
		}
		pairProduct(pack.Block128, y, x, w, m, k, n)
	}
	set.PeakI8 = func(ops int64) int64 {
		return counted(ops, 2*24*32, func(turns int) int64 {
			var sum [16]byte
			peakI8MM(turns, &sum[0])
			return integers(sum[:])
		})
	}
	return &set
}

// mmlaK is how many k SMMLA multiplies at once.
const mmlaK = 8

// pairProduct is byteProduct with SMMLA, for at least two rows. step is mmlaK for q8c.
func pairProduct(step int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	codes, tileBytes := x.Codes, stepTileBytes(step, k)
	y.mustHold(m, n)
	x.mustHold(m, k)
	_ = w[(n+TileN-1)/TileN*tileBytes-1]
	var out [mmlaRows * TileN]float32
	var last [mmlaRows * pack.Block128]uint8 // the k%step last activations of each row
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
			rows := share(m-row, mmlaRows)
			if tail != nil {
				for i := range rows {
					copy(last[step*i:step*(i+1)], codes.row(row+i, k)[k/step*step:])
				}
			}
			dst, ld := output(y, row, j, cols, out[:])
			from, scale := codes.at(row, 0), &x.Scale[row]
			if step == mmlaK {
				q8cPairsI8MM(rows, dst, 4*ld, from, codes.Stride, k/step, tail, (k%step+3)/4, tile, scale)
			} else {
				q4PairsI8MM(rows, dst, 4*ld, from, codes.Stride, k/step, tail, tile, scale, step/BlockK)
			}
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}
