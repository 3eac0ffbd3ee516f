package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of words multiply many rows with an 8-bit weight where no instruction does so exactly. Weights and
// activations are widened to 16 bit once, and VPMADDWD multiplies and adds pairs of them: two instructions for 16
// products, while q8cRows256 takes four for 32 and prepares its operands again for every two rows.
const (
	leastWordRows = 4   // rows of a call
	mostWordRows  = 6   // with 16 columns each, they take 12 registers of sums
	wordDepth     = 256 // activations of a widened row
)

// words256 generates the kernels of words.
func words256() {
	widenRows256()
	widenTile256()
	q8cWords256()
}

// widenRows256 makes signed words of unsigned bytes.
func widenRows256() {
	function("widenRows256", "(dst *int16, x *uint8, ldx int, rows int, vectors int)",
		"writes x-128 of rows rows of 16*vectors activations to dst, rows of which are",
		fmt.Sprintf("%d apart. ldx is in bytes.", wordDepth))
	dst, input, ldx, count, vectors := param("dst"), param("x"), param("ldx"), param("rows"), param("vectors")
	to, from, left := GP64(), GP64(), GP64()
	offset, values := y[0], y[1]
	constant := GP32()
	MOVL(U32(0x00800080), constant)
	VMOVD(constant, offset.AsX())
	VPBROADCASTD(offset.AsX(), offset)
	Label("row")
	MOVQ(dst, to)
	MOVQ(input, from)
	MOVQ(vectors, left)
	Label("vector")
	VPMOVZXBW(Mem{Base: from}, values)
	VPSUBW(offset, values, values)
	VMOVDQU(values, Mem{Base: to})
	ADDQ(I8(16), from)
	ADDQ(I8(32), to)
	DECQ(left)
	JNZ(LabelRef("vector"))
	ADDQ(I32(2*wordDepth), dst)
	ADDQ(ldx, input)
	DECQ(count)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// widenTile256 turns a q8c tile [k/4][32][4] of bytes into pairs of words [k/2][32][2]. A vector of four columns with
// four words each is half pairs 0 and half pairs 1: VSHUFPS takes one kind from two such vectors, lane by lane, and
// VPERMQ puts the columns in order. It prefetches what the next call widens.
func widenTile256() {
	function("widenTile256", "(panel *int16, w *byte, quads int)",
		"writes 4*quads rows of a q8c tile to panel [2*quads][32][2].")
	panel, weights, count := param("panel"), param("w"), param("quads")
	first, second, pair := y[0], y[1], y[2]
	steps("widen", count, 1, func(int) {
		for part := range 4 {
			VPMOVSXBW(Mem{Base: weights, Disp: 32 * part}, first)
			VPMOVSXBW(Mem{Base: weights, Disp: 32*part + 16}, second)
			for half, which := range []uint8{0x88, 0xdd} {
				VSHUFPS(U8(which), second, first, pair)
				VPERMQ(U8(0xd8), pair, pair)
				VMOVDQU(pair, Mem{Base: panel, Disp: 128*half + 32*part})
			}
		}
		PREFETCHT0(Mem{Base: weights, Disp: 32 * wordDepth})
		PREFETCHT0(Mem{Base: weights, Disp: 32*wordDepth + 64})
	}, func(int) {
		ADDQ(I32(128), weights)
		ADDQ(I32(256), panel)
	})
	VZEROUPPER()
	RET()
}

// q8cWords256 has registers for the sums of half a tile, so it walks over the panel twice.
func q8cWords256() {
	const name = "q8cWords256"
	function(name, "(rows int, y *float32, ldy int, sums *int32, x *int16, pairs int, panel *int16, more int, "+
		"scales *byte, xscale *float32)",
		fmt.Sprintf("multiplies rows (%d..%d) rows of 2*pairs words, %d apart, with a widened tile. Sums start at zero,",
			leastWordRows, mostWordRows, wordDepth),
		"or at sums [rows][32] unless more is 0, and are left there; or where xscale is not nil, their products with",
		"the scales of columns and rows go to y [rows][32]. ldy is in bytes.")
	dispatchFrom(leastWordRows, mostWordRows, func(m int) {
		for half := range 2 {
			wordsHalf(label(name, 10*half+m), m, half)
		}
		VZEROUPPER()
		RET()
	})
}

// wordsHalf emits the product of m rows with 16 columns of a tile.
func wordsHalf(id string, m, half int) {
	acc := func(r, part int) reg.VecPhysical { return y[2*r+part] }
	weights, vec, tmp := []reg.VecPhysical{y[12], y[13]}, y[14], y[15]
	input, count, panel := param("x"), param("pairs"), param("panel")
	sums, more, xscale := param("sums"), param("more"), param("xscale")
	sum := func(r, part int) Mem { return Mem{Base: sums, Disp: 128*r + 64*half + 32*part} }
	TESTQ(more, more)
	JNZ(LabelRef(id + "_more"))
	zero256(y[:2*m]...)
	JMP(LabelRef(id + "_begin"))
	Label(id + "_more")
	for row := range m {
		for part := range 2 {
			VMOVDQU(sum(row, part), acc(row, part))
		}
	}
	Label(id + "_begin")
	steps(id, count, 4, func(i int) {
		for part, weight := range weights {
			VMOVDQU(Mem{Base: panel, Disp: 128*i + 64*half + 32*part}, weight)
		}
		for row := range m {
			VPBROADCASTD(Mem{Base: input, Disp: 2*wordDepth*row + 4*i}, vec)
			VPMADDWD(vec, weights[0], tmp)
			VPADDD(tmp, acc(row, 0), acc(row, 0))
			VPMADDWD(vec, weights[1], vec)
			VPADDD(vec, acc(row, 1), acc(row, 1))
		}
	}, func(c int) {
		ADDQ(I32(4*c), input)
		ADDQ(I32(128*c), panel)
	})
	TESTQ(xscale, xscale)
	JNZ(LabelRef(id + "_scale"))
	for row := range m {
		for part := range 2 {
			VMOVDQU(acc(row, part), sum(row, part))
		}
	}
	JMP(LabelRef(id + "_end"))
	// y = float32(sum) * (xscale*scale)
	Label(id + "_scale")
	scales := param("scales")
	for part, weight := range weights {
		VMOVUPS(Mem{Base: scales, Disp: 64*half + 32*part}, weight)
	}
	eachScaledRow(m, func(row int, output reg.GPVirtual, scale Mem) {
		VBROADCASTSS(scale, vec)
		for part, weight := range weights {
			dst := acc(row, part)
			VCVTDQ2PS(dst, dst)
			VMULPS(weight, vec, tmp)
			VMULPS(tmp, dst, dst)
			VMOVUPS(dst, Mem{Base: output, Disp: 64*half + 32*part})
		}
	})
	Label(id + "_end")
}
