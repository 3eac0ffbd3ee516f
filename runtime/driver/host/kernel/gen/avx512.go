package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of the avx512 and avx512vnni tiers have 32 registers of 512 bits. The 32 columns of a
// tile are two of them, called halves. 12 rows of sums take 24 registers and leave 8 for weights,
// broadcast activations and constants.
var z = [32]reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
	reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
	reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
}

// zero512 clears vectors.
func zero512(v ...reg.VecPhysical) {
	for _, vec := range v {
		VPXORD(vec, vec, vec)
	}
}

// avx512 generates the kernels of the tier avx512.
func avx512() {
	q8cRows512()
	q6cRows512()
	q4Rows512("q4Rows512", 32)
	q4Rows512("q4x128Rows512", 128)
	q4Unpack512("q4Unpack512", 32)
	q4Unpack512("q4x128Unpack512", 128)
	q4Panel512("q4Panel512", 32)
	q4Panel512("q4x128Panel512", 128)
	f32Rows512()
	bf16Rows512()
	f32Add512()
	fewLines512()
	glu512()
	quant512()
	norm512()
}

// q8cRows512 computes up to 12 rows with VPDPBUSD, whose 32-bit sums do not saturate. Activations
// stay unsigned; 128 times the column sums, which the tile holds, is taken off at the end. With few
// rows several sets of sums take turns, because the next VPDPBUSD on a register waits for the last
// one.
func q8cRows512() {
	const most = 12
	TEXT("q8cRows512", NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, steps int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc("q8cRows512 computes rows (1..12) rows of one q8c tile into y [rows][32]. x holds 4*steps of each row's",
		"activations; tail is nil or [rows][4] more of them. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("q8c", m)
		sets := 1
		switch {
		case m <= 2:
			sets = 4
		case m <= 4:
			sets = 2
		}
		unroll := 4
		acc := func(set, r, half int) reg.VecPhysical { return z[(set*m+r)*2+half] }
		w0, w1, acts := z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		input := newRows(m)
		row, count, tail, weights := GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("steps"), count)
		Load(Param("tail"), tail)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		fetchOutput(m, 2)
		zero512(z[:2*m*sets]...)
		Label(id + "_start")
		input.set(row)
		step := func(i int) {
			VMOVDQU64(Mem{Base: weights, Disp: 128 * i}, w0)
			VMOVDQU64(Mem{Base: weights, Disp: 128*i + 64}, w1)
			if fetches(m, i) {
				fetch.step(stepLines(m))
			}
			for row := range m {
				bcast := acts[row%4]
				VPBROADCASTD(input.at(row, 4*i), bcast)
				VPDPBUSD(w0, bcast, acc(i%sets, row, 0))
				VPDPBUSD(w1, bcast, acc(i%sets, row, 1))
			}
		}
		steps(id, count, unroll, step, func(c int) {
			input.advance(4 * c)
			ADDQ(I32(128*c), weights)
		})
		// The tail is one more step over its own little matrix.
		again(id, tail, row, count, input, 4)
		// add the sets up
		for set := 1; set < sets; set++ {
			for row := range m {
				VPADDD(acc(set, row, 0), acc(0, row, 0), acc(0, row, 0))
				VPADDD(acc(set, row, 1), acc(0, row, 1), acc(0, row, 1))
			}
		}
		// y = float32(acc - 128*colsum) * (xscale*scale)
		s0, s1, c0, c1, tmp, xs := z[24], z[25], z[26], z[27], z[28], z[29]
		VMOVUPS(Mem{Base: weights}, s0)
		VMOVUPS(Mem{Base: weights, Disp: 64}, s1)
		VPSLLD(I8(7), Mem{Base: weights, Disp: 128}, c0)
		VPSLLD(I8(7), Mem{Base: weights, Disp: 192}, c1)
		eachScaledRow(m, func(row int, output reg.GPVirtual, scale Mem) {
			VBROADCASTSS(scale, xs)
			for half, pair := range []struct{ s, c reg.VecPhysical }{{s0, c0}, {s1, c1}} {
				dst := acc(0, row, half)
				VPSUBD(pair.c, dst, dst)
				VCVTDQ2PS(dst, dst)
				VMULPS(pair.s, xs, tmp)
				VMULPS(tmp, dst, dst)
				VMOVUPS(dst, Mem{Base: output, Disp: 64 * half})
			}
		})
		VZEROUPPER()
		RET()
	})
}

// q4Rows512 turns nibbles into 16*(nibble-8) as int8 with two or three instructions a register and
// leaves the activations unsigned. The offset of the activations, 128*sum(nibble-8), is computed
// like one more row of constant activations. So a block costs the same few instructions whatever
// the number of rows, and block sums of activations are not needed. The factor 16 is removed at the
// end, exactly. block is the number of rows of the weight that share a scale.
func q4Rows512(name string, block int) {
	const most = 6
	TEXT(name, NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, blocks int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc(fmt.Sprintf("%s computes rows (1..6) rows of one q4b%d tile into y [rows][32]. x holds %d*blocks of each row's", name, block, block),
		fmt.Sprintf("activations; tail is nil or [rows][%d] more of them, padded with 128. Strides are in bytes.",
			block))
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label(name, m)
		facc := func(r, half int) reg.VecPhysical { return z[2*r+half] }
		iacc := func(r, half int) reg.VecPhysical { return z[12+2*r+half] }
		n0, n1, lo, hi, bcast, c80, cF0 := z[24], z[25], z[26], z[27], z[28], z[30], z[31]
		b2 := z[29]
		input := newRows(m)
		row, count, tail, weights := GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("blocks"), count)
		Load(Param("tail"), tail)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		tmp := GP32()
		MOVL(U32(0x80808080), tmp)
		VPBROADCASTD(tmp, c80)
		MOVL(U32(0xf0f0f0f0), tmp)
		VPBROADCASTD(tmp, cF0)
		for row := range m {
			zero512(facc(row, 0), facc(row, 1))
		}
		Label(id + "_start")
		input.set(row)
		steps(id, count, 1, func(int) {
			zero512(n0, n1)
			for row := range m {
				zero512(iacc(row, 0), iacc(row, 1))
			}
			inSteps(id, block, func() {
				for k4 := range 8 {
					VMOVDQU64(Mem{Base: weights, Disp: 64 * k4}, hi)
					fetch.step(1)
					VPSLLD(I8(4), hi, lo)
					VPTERNLOGD(U8(0x6a), c80, cF0, lo) // (lo & f0) ^ 80
					VPTERNLOGD(U8(0x6a), c80, cF0, hi)
					VPDPBUSD(lo, c80, n0)
					VPDPBUSD(hi, c80, n1)
					// two registers for broadcasts, so that a row need not wait for the one before
					for row := range m {
						vec := bcast
						if row%2 == 1 {
							vec = b2
						}
						VPBROADCASTD(input.at(row, 4*k4), vec)
						VPDPBUSD(lo, vec, iacc(row, 0))
						VPDPBUSD(hi, vec, iacc(row, 1))
					}
				}
				input.advance(32)
				ADDQ(I32(512), weights)
			})
			fetch.step(1) // the line of scales
			// end of a block: take the offset off and accumulate in float32 with the block's scales
			VCVTPH2PS(Mem{Base: weights}, lo)
			VCVTPH2PS(Mem{Base: weights, Disp: 32}, hi)
			for row := range m {
				VPSUBD(n0, iacc(row, 0), iacc(row, 0))
				VPSUBD(n1, iacc(row, 1), iacc(row, 1))
				VCVTDQ2PS(iacc(row, 0), iacc(row, 0))
				VCVTDQ2PS(iacc(row, 1), iacc(row, 1))
				VFMADD231PS(lo, iacc(row, 0), facc(row, 0))
				VFMADD231PS(hi, iacc(row, 1), facc(row, 1))
			}
		}, func(int) { ADDQ(I32(64), weights) })
		again(id, tail, row, count, input, block)
		output, ldy, scales := param("y"), param("ldy"), param("xscale")
		MOVL(U32(0x3d800000), tmp) // 1/16
		VPBROADCASTD(tmp, c80)
		alongRows(m, output, ldy, func(row int, output reg.GPVirtual) {
			VBROADCASTSS(Mem{Base: scales, Disp: 4 * row}, bcast)
			for half := range 2 {
				dst := facc(row, half)
				VMULPS(c80, dst, dst)
				VMULPS(bcast, dst, dst)
				VMOVUPS(dst, Mem{Base: output, Disp: 64 * half})
			}
		})
		VZEROUPPER()
		RET()
	})
}

// inSteps emits body once for each 32 of block rows, as a loop where there are several.
func inSteps(id string, block int, body func()) {
	if block == 32 {
		body()
		return
	}
	left := GP64()
	MOVQ(I32(block/32), left)
	Label(id + "_step")
	body()
	DECQ(left)
	JNZ(LabelRef(id + "_step"))
}

// q4Unpack512 unpacks 4-bit blocks once for all rows. An unpacked
// block is [block/4][32][4] int8 of 16*(nibble-8); then for each column the int32 at which its sum
// starts, -128*16*sum(nibble-8), for the offset of the activations; then the column scales over 16.
func q4Unpack512(name string, block int) {
	TEXT(name, NOSPLIT, "func(panel *uint8, w *uint8, blocks int)")
	Doc(fmt.Sprintf("%s unpacks blocks of a q4b%d tile for the kernel of panels, %d bytes each.", name, block,
		32*block+256))
	Pragma("noescape")
	n0, n1, lo, hi, c80, cF0, sixteenth := z[0], z[1], z[2], z[3], z[4], z[5], z[6]
	panel, weights, count := GP64(), GP64(), GP64()
	Load(Param("panel"), panel)
	Load(Param("w"), weights)
	Load(Param("blocks"), count)
	tmp := GP32()
	MOVL(U32(0x80808080), tmp)
	VPBROADCASTD(tmp, c80)
	MOVL(U32(0xf0f0f0f0), tmp)
	VPBROADCASTD(tmp, cF0)
	MOVL(U32(0x3d800000), tmp)
	VPBROADCASTD(tmp, sixteenth)
	steps("unpack", count, 1, func(int) {
		zero512(n0, n1)
		inSteps("unpack", block, func() {
			for k4 := range 8 {
				VMOVDQU64(Mem{Base: weights, Disp: 64 * k4}, hi)
				VPSLLD(I8(4), hi, lo)
				VPTERNLOGD(U8(0x6a), c80, cF0, lo) // (lo & f0) ^ 80
				VPTERNLOGD(U8(0x6a), c80, cF0, hi)
				VPDPBUSD(lo, c80, n0)
				VPDPBUSD(hi, c80, n1)
				VMOVDQU64(lo, Mem{Base: panel, Disp: 128 * k4})
				VMOVDQU64(hi, Mem{Base: panel, Disp: 128*k4 + 64})
			}
			ADDQ(I32(512), weights)
			ADDQ(I32(1024), panel)
		})
		// behind the values: the negated offsets, then the scales over 16
		for i, vec := range []reg.VecPhysical{n0, n1} {
			zero512(lo)
			VPSUBD(vec, lo, vec)
			VMOVDQU64(vec, Mem{Base: panel, Disp: 64 * i})
			VCVTPH2PS(Mem{Base: weights, Disp: 32 * i}, lo)
			VMULPS(sixteenth, lo, lo)
			VMOVUPS(lo, Mem{Base: panel, Disp: 128 + 64*i})
		}
	}, func(int) {
		ADDQ(I32(64), weights)
		ADDQ(I32(256), panel)
	})
	VZEROUPPER()
	RET()
}

// q4Panel512 multiplies rows with unpacked blocks. The integer and float sums of 7 rows fill the registers, as in
// q4Packed512.
func q4Panel512(name string, block int) {
	TEXT(name, NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, blocks int, panel *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc(fmt.Sprintf("%s adds the product of rows (1..%d) rows of x, %d*blocks activations each, with unpacked blocks to y", name, mostHalf, block),
		"[rows][32], and multiplies y by xscale unless that is nil. w is the base of ahead. Strides are in bytes.")
	Pragma("noescape")
	dispatch(mostHalf, func(m int) {
		id := label(name, m)
		acc := func(r, half int) reg.VecPhysical { return z[2*r+half] }
		total := func(r, half int) reg.VecPhysical { return z[2*mostHalf+2*r+half] }
		w0, w1, acts := z[30], z[31], z[4*mostHalf:30]
		input := newRows(m)
		ptr, count, panel := GP64(), GP64(), GP64()
		eachRow(m, func(row int, output reg.GPVirtual) {
			VMOVUPS(Mem{Base: output}, total(row, 0))
			VMOVUPS(Mem{Base: output, Disp: 64}, total(row, 1))
		})
		Load(Param("x"), ptr)
		Load(Param("ldx"), input.ld)
		input.set(ptr)
		Load(Param("w"), ptr)
		fetch := newFetcher(ptr)
		Load(Param("blocks"), count)
		Load(Param("panel"), panel)
		steps(id, count, 1, func(int) {
			// integer sums start at the offsets, so that no subtraction is needed
			VMOVDQU64(Mem{Base: panel, Disp: 32 * block}, w0)
			VMOVDQU64(Mem{Base: panel, Disp: 32*block + 64}, w1)
			for row := range m {
				VMOVDQA64(w0, acc(row, 0))
				VMOVDQA64(w1, acc(row, 1))
			}
			inSteps(id, block, func() {
				for k4 := range 8 {
					VMOVDQU64(Mem{Base: panel, Disp: 128 * k4}, w0)
					VMOVDQU64(Mem{Base: panel, Disp: 128*k4 + 64}, w1)
					fetch.step(1)
					for row := range m {
						bcast := acts[row%2]
						VPBROADCASTD(input.at(row, 4*k4), bcast)
						VPDPBUSD(w0, bcast, acc(row, 0))
						VPDPBUSD(w1, bcast, acc(row, 1))
					}
				}
				input.advance(32)
				ADDQ(I32(1024), panel)
			})
			VMOVUPS(Mem{Base: panel, Disp: 128}, w0)
			VMOVUPS(Mem{Base: panel, Disp: 192}, w1)
			for row := range m {
				for half, scales := range []reg.VecPhysical{w0, w1} {
					VCVTDQ2PS(acc(row, half), acc(row, half))
					VFMADD231PS(scales, acc(row, half), total(row, half))
				}
			}
		}, func(int) { ADDQ(I32(256), panel) })
		// the last call of a tile gives scales
		Load(Param("xscale"), ptr)
		TESTQ(ptr, ptr)
		JZ(LabelRef(id + "_plain"))
		for row := range m {
			VBROADCASTSS(Mem{Base: ptr, Disp: 4 * row}, w0)
			VMULPS(w0, total(row, 0), total(row, 0))
			VMULPS(w0, total(row, 1), total(row, 1))
		}
		Label(id + "_plain")
		eachRow(m, func(row int, output reg.GPVirtual) {
			VMOVUPS(total(row, 0), Mem{Base: output})
			VMOVUPS(total(row, 1), Mem{Base: output, Disp: 64})
		})
		VZEROUPPER()
		RET()
	})
}

// pair is the registers of both halves of a row of a tile.
type pair [2]reg.VecPhysical

// multiplyRow adds to sums the products of row r's element at disp with the weights. The
// load is an operand of the multiply-adds where the row's address allows it, which saves an
// instruction; else it is broadcast to value.
func multiplyRow(x rows, r, disp int, weights, sums pair, value reg.VecPhysical) {
	if x.plain(r) {
		VFMADD231PS_BCST(x.at(r, disp), weights[0], sums[0])
		VFMADD231PS_BCST(x.at(r, disp), weights[1], sums[1])
		return
	}
	VBROADCASTSS(x.at(r, disp), value)
	VFMADD231PS(weights[0], value, sums[0])
	VFMADD231PS(weights[1], value, sums[1])
}

// f32Rows512 is f32Rows256 with up to 12 rows in 24 registers: one accumulator per result and k in
// order, so that a row's bits do not depend on the rows beside it.
func f32Rows512() {
	const most = 12
	TEXT("f32Rows512", NOSPLIT,
		"func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ahead int, stride int, more int)")
	Doc("f32Rows512 computes rows (1..12) rows of one w32 tile of k rows into y [rows][32], or adds them to y unless more is 0. Strides",
		"are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("f32", m)
		acc := func(r, half int) reg.VecPhysical { return z[r*2+half] }
		w0, w1, acts := z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		input := newOwnRows(m)
		row, count, weights := GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("k"), count)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		begin(id, m, 64, z[:2*m], zero512)
		input.set(row)
		steps(id, count, 4, func(i int) {
			VMOVUPS(Mem{Base: weights, Disp: 128 * i}, w0)
			VMOVUPS(Mem{Base: weights, Disp: 128*i + 64}, w1)
			if fetches(m, i) {
				fetch.step(stepLines(m))
			}
			for row := range m {
				multiplyRow(input, row, 4*i, pair{w0, w1}, pair{acc(row, 0), acc(row, 1)}, acts[row%4])
			}
		}, func(c int) {
			input.advance(4 * c)
			ADDQ(I32(128*c), weights)
		})
		eachRow(m, func(row int, output reg.GPVirtual) {
			VMOVUPS(acc(row, 0), Mem{Base: output})
			VMOVUPS(acc(row, 1), Mem{Base: output, Disp: 64})
		})
		VZEROUPPER()
		RET()
	})
}

// bf16Rows512 is f32Rows512 for a w16 tile; see bf16Rows256 for the order of columns.
func bf16Rows512() {
	const most = 12
	TEXT("bf16Rows512", NOSPLIT,
		"func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *uint16, ahead int, stride int)")
	Doc("bf16Rows512 computes rows (1..12) rows of one w16 tile of k rows into y [rows][32]. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("bf16", m)
		acc := func(r, half int) reg.VecPhysical { return z[r*2+half] }
		upper, w0, w1, acts := z[25], z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		input := newOwnRows(m)
		row, count, weights := GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("k"), count)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		tmp := GP32()
		MOVL(U32(0xffff0000), tmp)
		VPBROADCASTD(tmp, upper)
		zero512(z[:2*m]...)
		input.set(row)
		steps(id, count, 4, func(i int) {
			VMOVDQU64(Mem{Base: weights, Disp: 64 * i}, w1)
			VPSLLD(I8(16), w1, w0)
			VPANDD(upper, w1, w1)
			fetch.step(1)
			for row := range m {
				multiplyRow(input, row, 4*i, pair{w0, w1}, pair{acc(row, 0), acc(row, 1)}, acts[row%4])
			}
		}, func(c int) {
			input.advance(4 * c)
			ADDQ(I32(64*c), weights)
		})
		eachRow(m, func(row int, output reg.GPVirtual) {
			VMOVUPS(acc(row, 0), Mem{Base: output})
			VMOVUPS(acc(row, 1), Mem{Base: output, Disp: 64})
		})
		VZEROUPPER()
		RET()
	})
}

// f32Add512 is f32Rows512 for 32 columns of a row-major matrix, added to y; see f32Add256.
func f32Add512() {
	const most = 12
	TEXT("f32Add512", NOSPLIT, "func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ldw int)")
	Doc("f32Add512 adds the product of rows (1..12) rows of x [rows][k] with w [k][32] to y [rows][32]. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("add", m)
		acc := func(r, half int) reg.VecPhysical { return z[r*2+half] }
		w0, w1, acts := z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		eachRow(m, func(row int, out reg.GPVirtual) {
			VMOVUPS(Mem{Base: out}, acc(row, 0))
			VMOVUPS(Mem{Base: out, Disp: 64}, acc(row, 1))
		})
		input, weights := newRows(m), newRows(4)
		row, count := GP64(), GP64()
		Load(Param("w"), row)
		Load(Param("ldw"), weights.ld)
		weights.set(row)
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		input.set(row)
		Load(Param("k"), count)
		steps(id, count, 4, func(i int) {
			VMOVUPS(weights.at(i, 0), w0)
			VMOVUPS(weights.at(i, 64), w1)
			for row := range m {
				bcast := acts[row%4]
				VBROADCASTSS(input.at(row, 4*i), bcast)
				VFMADD231PS(w0, bcast, acc(row, 0))
				VFMADD231PS(w1, bcast, acc(row, 1))
			}
		}, func(c int) {
			input.advance(4 * c)
			weights.down(c)
		})
		eachRow(m, func(row int, out reg.GPVirtual) {
			VMOVUPS(acc(row, 0), Mem{Base: out})
			VMOVUPS(acc(row, 1), Mem{Base: out, Disp: 64})
		})
		VZEROUPPER()
		RET()
	})
}
