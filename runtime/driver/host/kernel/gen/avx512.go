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
	requant512()
}

// q8cRows512 computes up to 12 rows with VPDPBUSD, whose 32-bit sums do not saturate. Activations
// stay unsigned; 128 times the column sums, which the tile holds, is taken off at the end. With few
// rows several sets of sums take turns, because the next VPDPBUSD on a register waits for the last
// one.
func q8cRows512() {
	const most = 12
	function("q8cRows512", "(rows int, y *float32, ldy int, x *uint8, ldx int, steps int, tail *uint8, w *uint8, "+
		"ahead int, stride int, gap int, xscale *float32)",
		"computes rows (1..12) rows of one q8c tile into y [rows][32]. x holds 4*steps of each row's",
		"activations; tail is nil or [rows][4] more of them. Strides are in bytes.")
	dispatch(most, func(m int) {
		sets := 1
		switch {
		case m <= 2:
			sets = 4
		case m <= 4:
			sets = 2
		}
		acc := func(set, row, half int) reg.VecPhysical { return z[(set*m+row)*2+half] }
		w, acts := pair{z[30], z[31]}, z[26:30]
		k := newRowKernel(label("q8c", m), m, "steps")
		fetch := k.fetch.sideBySide(k.id)
		fetchOutput(m, 2)
		zero512(z[:2*m*sets]...)
		k.loop(4, 4, 128, func(i int) {
			w.load(Mem{Base: k.weights, Disp: 128 * i})
			fetch.step(stepLines(m, i), oneOf(2, i))
			for row := range m {
				act := acts[row%4]
				VPBROADCASTD(k.input.at(row, 4*i), act)
				VPDPBUSD(w[0], act, acc(i%sets, row, 0))
				VPDPBUSD(w[1], act, acc(i%sets, row, 1))
			}
		})
		for set := 1; set < sets; set++ {
			for row := range m {
				VPADDD(acc(set, row, 0), acc(0, row, 0), acc(0, row, 0))
				VPADDD(acc(set, row, 1), acc(0, row, 1), acc(0, row, 1))
			}
		}
		q8cStore512(k, func(row, half int) reg.VecPhysical { return acc(0, row, half) })
		VZEROUPPER()
		RET()
	})
}

// q8cStore512 stores y = float32(sum - 128*colsum) * (xscale*scale), with the scales and the column sums behind the
// tile's weights.
func q8cStore512(k rowKernel, acc func(row, half int) reg.VecPhysical) {
	scales, offsets, factor, rowScale := pair{z[24], z[25]}, pair{z[26], z[27]}, z[28], z[29]
	for half, vec := range scales {
		VMOVUPS(Mem{Base: k.weights, Disp: 64 * half}, vec)
	}
	for half, vec := range offsets {
		VPSLLD(I8(7), Mem{Base: k.weights, Disp: 128 + 64*half}, vec)
	}
	eachScaledRow(k.m, func(row int, output reg.GPVirtual, scale Mem) {
		VBROADCASTSS(scale, rowScale)
		for half := range 2 {
			sum := acc(row, half)
			VPSUBD(offsets[half], sum, sum)
			VCVTDQ2PS(sum, sum)
			VMULPS(scales[half], rowScale, factor)
			VMULPS(factor, sum, sum)
			VMOVUPS(sum, Mem{Base: output, Disp: 64 * half})
		}
	})
}

// q4Rows512 turns nibbles into 16*(nibble-8) as int8 with two or three instructions a register and
// leaves the activations unsigned. The offset of the activations, 128*sum(nibble-8), is computed
// like one more row of constant activations. So a block costs the same few instructions whatever
// the number of rows, and block sums of activations are not needed. The factor 16 is removed at the
// end, exactly. block is the number of rows of the weight that share a scale.
func q4Rows512(name string, block int) {
	const most = 6
	function(name, "(rows int, y *float32, ldy int, x *uint8, ldx int, blocks int, tail *uint8, w *uint8, ahead int, "+
		"stride int, gap int, xscale *float32)",
		fmt.Sprintf("computes rows (1..6) rows of one q4b%d tile into y [rows][32]. x holds %d*blocks of each row's",
			block, block),
		fmt.Sprintf("activations; tail is nil or [rows][%d] more of them, padded with 128. Strides are in bytes.",
			block))
	dispatch(most, func(m int) {
		k := q4Kernel512{
			rowKernel: newRowKernel(label(name, m), m, "blocks"), block: block,
			low: z[26], high: z[27], acts: pair{z[28], z[29]}, offsets: pair{z[24], z[25]}, c80: z[30], cF0: z[31],
		}
		k.fetch = k.rowKernel.fetch.sideBySide(k.id)
		pattern := GP32()
		k.begin(pattern)
		Label(k.id + "_start")
		k.input.set(k.row)
		steps(k.id, k.left, 1, func(int) { k.multiply() }, func(int) { ADDQ(I32(64), k.weights) })
		k.again(block)
		k.store(pattern)
		VZEROUPPER()
		RET()
	})
}

// q4Kernel512 is q4Rows512 for m rows.
type q4Kernel512 struct {
	rowKernel
	fetch *sideFetcher
	block int // weights that share a scale

	low, high reg.VecPhysical // 16*(nibble-8) of columns 0..15 and 16..31; at the end of a block, their scales
	acts      pair            // in turn, so that a row need not wait for the one before
	offsets   pair            // the products of the row of constant activations
	c80, cF0  reg.VecPhysical
}

// total and dot are the registers of the float32 sums of a row, and of the integer sums of a block.
func (k q4Kernel512) total(row, half int) reg.VecPhysical { return z[2*row+half] }
func (k q4Kernel512) dot(row, half int) reg.VecPhysical   { return z[12+2*row+half] }

// begin sets the constants and clears the sums.
func (k q4Kernel512) begin(pattern reg.GPVirtual) {
	MOVL(U32(0x80808080), pattern)
	VPBROADCASTD(pattern, k.c80)
	MOVL(U32(0xf0f0f0f0), pattern)
	VPBROADCASTD(pattern, k.cF0)
	for row := range k.m {
		zero512(k.total(row, 0), k.total(row, 1))
	}
}

// multiply takes a block.
func (k q4Kernel512) multiply() {
	zero512(k.offsets[:]...)
	for row := range k.m {
		zero512(k.dot(row, 0), k.dot(row, 1))
	}
	inSteps(k.id, k.block, func() {
		for quad := range 8 {
			VMOVDQU64(Mem{Base: k.weights, Disp: 64 * quad}, k.high)
			k.fetch.step(1, oneOf(4, quad))
			unpackSigned512(k.low, k.high, k.c80, k.cF0)
			VPDPBUSD(k.low, k.c80, k.offsets[0])
			VPDPBUSD(k.high, k.c80, k.offsets[1])
			for row := range k.m {
				act := k.acts[row%2]
				VPBROADCASTD(k.input.at(row, 4*quad), act)
				VPDPBUSD(k.low, act, k.dot(row, 0))
				VPDPBUSD(k.high, act, k.dot(row, 1))
			}
		}
		k.input.advance(32)
		ADDQ(I32(512), k.weights)
	})
	k.fetch.step(1, 1) // the line of scales
	k.accumulate()
}

// accumulate is the end of a block: it takes the offset off and accumulates in float32 with the block's scales.
func (k q4Kernel512) accumulate() {
	VCVTPH2PS(Mem{Base: k.weights}, k.low)
	VCVTPH2PS(Mem{Base: k.weights, Disp: 32}, k.high)
	for row := range k.m {
		VPSUBD(k.offsets[0], k.dot(row, 0), k.dot(row, 0))
		VPSUBD(k.offsets[1], k.dot(row, 1), k.dot(row, 1))
		VCVTDQ2PS(k.dot(row, 0), k.dot(row, 0))
		VCVTDQ2PS(k.dot(row, 1), k.dot(row, 1))
		VFMADD231PS(k.low, k.dot(row, 0), k.total(row, 0))
		VFMADD231PS(k.high, k.dot(row, 1), k.total(row, 1))
	}
}

// store stores the sums over 16, times the scales of the rows.
func (k q4Kernel512) store(pattern reg.GPVirtual) {
	output, ldy, scales := param("y"), param("ldy"), param("xscale")
	sixteenth, scale := k.c80, k.acts[0]
	MOVL(U32(0x3d800000), pattern) // 1/16
	VPBROADCASTD(pattern, sixteenth)
	alongRows(k.m, output, ldy, func(row int, output reg.GPVirtual) {
		VBROADCASTSS(Mem{Base: scales, Disp: 4 * row}, scale)
		for half := range 2 {
			sum := k.total(row, half)
			VMULPS(sixteenth, sum, sum)
			VMULPS(scale, sum, sum)
			VMOVUPS(sum, Mem{Base: output, Disp: 64 * half})
		}
	})
}

// unpackSigned512 makes 16*(nibble-8) as int8 of a line of nibbles in high: of the low ones in low, and of the high
// ones in their place.
func unpackSigned512(low, high, c80, cF0 reg.VecPhysical) {
	VPSLLD(I8(4), high, low)
	VPTERNLOGD(U8(0x6a), c80, cF0, low) // (low & f0) ^ 80
	VPTERNLOGD(U8(0x6a), c80, cF0, high)
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
	function(name, "(panel *uint8, w *uint8, blocks int)",
		fmt.Sprintf("unpacks blocks of a q4b%d tile for the kernel of panels, %d bytes each.", block,
			32*block+256))
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
				unpackSigned512(lo, hi, c80, cF0)
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
	function(name, "(rows int, y *float32, ldy int, x *uint8, ldx int, blocks int, panel *uint8, w *uint8, ahead int, "+
		"stride int, xscale *float32)",
		fmt.Sprintf("adds the product of rows (1..%d) rows of x, %d*blocks activations each, with unpacked blocks to y",
			mostHalf, block),
		"[rows][32], and multiplies y by xscale unless that is nil. w is the base of ahead. Strides are in bytes.")
	dispatch(mostHalf, func(m int) {
		k := panelKernel512{
			id: label(name, m), m: m, block: block, w: pair{z[30], z[31]}, acts: z[4*mostHalf : 30], input: newRows(m),
		}
		pointer, count, panel := GP64(), GP64(), GP64()
		k.panel = panel
		k.eachSum(func(sum reg.VecPhysical, at Mem) { VMOVUPS(at, sum) })
		Load(Param("x"), pointer)
		Load(Param("ldx"), k.input.ld)
		k.input.set(pointer)
		Load(Param("w"), pointer)
		k.fetch = newFetcher(pointer)
		Load(Param("blocks"), count)
		Load(Param("panel"), panel)
		steps(k.id, count, 1, func(int) { k.multiply() }, func(int) { ADDQ(I32(256), panel) })

		// the last call of a tile gives scales
		Load(Param("xscale"), pointer)
		TESTQ(pointer, pointer)
		JZ(LabelRef(k.id + "_plain"))
		for row := range m {
			VBROADCASTSS(Mem{Base: pointer, Disp: 4 * row}, k.w[0])
			VMULPS(k.w[0], k.total(row, 0), k.total(row, 0))
			VMULPS(k.w[0], k.total(row, 1), k.total(row, 1))
		}
		Label(k.id + "_plain")
		k.eachSum(func(sum reg.VecPhysical, at Mem) { VMOVUPS(sum, at) })
		VZEROUPPER()
		RET()
	})
}

// panelKernel512 is q4Panel512 for m rows.
type panelKernel512 struct {
	id       string
	m, block int
	w        pair // weights, and at the ends of a block their offsets and scales
	acts     []reg.VecPhysical
	input    rows
	panel    reg.GPVirtual
	fetch    fetcher
}

// dot and total are the registers of the integer sums of a block and of the float32 sums of a row.
func (k panelKernel512) dot(row, half int) reg.VecPhysical   { return z[2*row+half] }
func (k panelKernel512) total(row, half int) reg.VecPhysical { return z[2*mostHalf+2*row+half] }

// eachSum emits move for each float32 sum and its place in y.
func (k panelKernel512) eachSum(move func(sum reg.VecPhysical, at Mem)) {
	eachRow(k.m, func(row int, output reg.GPVirtual) {
		move(k.total(row, 0), Mem{Base: output})
		move(k.total(row, 1), Mem{Base: output, Disp: 64})
	})
}

// multiply takes a block. Its integer sums start at the offsets, so that no subtraction is needed.
func (k panelKernel512) multiply() {
	k.w.load(Mem{Base: k.panel, Disp: 32 * k.block})
	for row := range k.m {
		VMOVDQA64(k.w[0], k.dot(row, 0))
		VMOVDQA64(k.w[1], k.dot(row, 1))
	}
	inSteps(k.id, k.block, func() {
		for quad := range 8 {
			k.w.load(Mem{Base: k.panel, Disp: 128 * quad})
			k.fetch.step(1)
			for row := range k.m {
				act := k.acts[row%2]
				VPBROADCASTD(k.input.at(row, 4*quad), act)
				VPDPBUSD(k.w[0], act, k.dot(row, 0))
				VPDPBUSD(k.w[1], act, k.dot(row, 1))
			}
		}
		k.input.advance(32)
		ADDQ(I32(1024), k.panel)
	})
	for half, scales := range k.w {
		VMOVUPS(Mem{Base: k.panel, Disp: 128 + 64*half}, scales)
	}
	for row := range k.m {
		for half, scales := range k.w {
			VCVTDQ2PS(k.dot(row, half), k.dot(row, half))
			VFMADD231PS(scales, k.dot(row, half), k.total(row, half))
		}
	}
}

// pair is the registers of both halves of a row of a tile.
type pair [2]reg.VecPhysical

// load loads both halves.
func (p pair) load(from Mem) {
	VMOVDQU64(from, p[0])
	VMOVDQU64(from.Offset(64), p[1])
}

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
	function("f32Rows512", "(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ahead int, "+
		"stride int, gap int, more int)",
		"computes rows (1..12) rows of one w32 tile of k rows into y [rows][32], or adds them to y unless more is 0.",
		"Strides are in bytes.")
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
		fetch := newFetcher(weights).sideBySide(id)
		begin(id, m, 64, z[:2*m], zero512)
		input.set(row)
		steps(id, count, 4, func(i int) {
			VMOVUPS(Mem{Base: weights, Disp: 128 * i}, w0)
			VMOVUPS(Mem{Base: weights, Disp: 128*i + 64}, w1)
			fetch.step(stepLines(m, i), oneOf(2, i))
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
	function("bf16Rows512", "(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *uint16, ahead int, "+
		"stride int)",
		"computes rows (1..12) rows of one w16 tile of k rows into y [rows][32]. Strides are in bytes.")
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
	function("f32Add512", "(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ldw int)",
		"adds the product of rows (1..12) rows of x [rows][k] with w [k][32] to y [rows][32]. Strides are in bytes.")
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
