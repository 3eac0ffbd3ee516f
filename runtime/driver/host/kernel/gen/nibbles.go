package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of nibbles multiply many rows with a 4-bit weight where no instruction sums products of bytes to 32 bit.
// Sums of a block of 32 fit in 16 bit, so that VPMADDUBSW and VPADDW, two instructions, make 32 products. q4Rows256 does
// the same for two rows, whose float32 sums are in registers; here these are in memory, which is read and written once
// a block, and the registers hold the 16-bit sums of six rows. So the work of unpacking a nibble is shared by six rows.
const (
	leastNibbleRows = 3 // rows of a call
	mostNibbleRows  = 6
	nibbleDepth     = 512 // activations of a signed row
)

// nibbles256 generates the kernels of nibbles.
func nibbles256() {
	signRows256()
	q4Signed256("q4Signed256", 32)
	q4Signed256("q4x128Signed256", 128)
	scaleSums256()
}

// signRows256 makes signed bytes of unsigned ones around 128.
func signRows256() {
	function("signRows256", "(dst *int8, x *uint8, ldx int, rows int, vectors int)",
		"writes x-128 of rows rows of 32*vectors activations to dst, rows of which are",
		fmt.Sprintf("%d apart. ldx is in bytes.", nibbleDepth))
	dst, input, ldx, count, vectors := param("dst"), param("x"), param("ldx"), param("rows"), param("vectors")
	to, from, left, constant := GP64(), GP64(), GP64(), GP32()
	sign, values := y[0], y[1]
	MOVL(U32(0x80808080), constant)
	VMOVD(constant, sign.AsX())
	VPBROADCASTD(sign.AsX(), sign)
	Label("row")
	MOVQ(dst, to)
	MOVQ(input, from)
	MOVQ(vectors, left)
	Label("vector")
	VPXOR(Mem{Base: from}, sign, values)
	VMOVDQU(values, Mem{Base: to})
	ADDQ(I8(32), from)
	ADDQ(I8(32), to)
	DECQ(left)
	JNZ(LabelRef("vector"))
	ADDQ(I32(nibbleDepth), dst)
	ADDQ(ldx, input)
	DECQ(count)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// q4Signed256 walks over the lines of a block twice, as q4Rows256 does: first columns 0-7 and 16-23, then 8-15 and
// 24-31.
func q4Signed256(name string, block int) {
	low := const32(name+"F0", 0x0f0f0f0f)
	one := const32(name+"One", 0x00010001)
	function(name, "(rows int, sums *float32, x *int8, eights *int32, blocks int, w *byte, ahead int, stride int)",
		fmt.Sprintf("adds the products of rows (%d..%d) rows of %d*blocks signed activations, %d apart, with a part of a q4b%d tile",
			leastNibbleRows, mostNibbleRows, block, nibbleDepth, block),
		fmt.Sprintf("to sums [rows][32]. eights are 8 times the sums of activations over each 32, in rows of %d. It prefetches", nibbleDepth/32),
		"from ahead bytes behind w on, stride bytes for each 4 activations.")
	dispatchFrom(leastNibbleRows, mostNibbleRows, func(m int) {
		id := label(name, m)
		acc := func(row, high int) reg.VecPhysical { return y[2*row+high] }
		weight, nib, act, tmp := y[12], y[13], y[14], y[15]
		sums, input, eights, count, wp := param("sums"), param("x"), param("eights"), param("blocks"), param("w")
		fetch := newFetcher(wp)
		step := func(scales Mem) {
			for half := range 2 {
				for k4 := range 8 {
					VMOVDQU(Mem{Base: wp, Disp: 64*k4 + 32*half}, weight)
					if half == 0 {
						fetch.step(1)
					}
					VPAND(low, weight, nib)
					VPSRLW(I8(4), weight, weight)
					VPAND(low, weight, weight)
					for row := range m {
						VPBROADCASTD(Mem{Base: input, Disp: nibbleDepth*row + 4*k4}, act)
						for high, vec := range []reg.VecPhysical{nib, weight} {
							if k4 == 0 {
								VPMADDUBSW(act, vec, acc(row, high))
								continue
							}
							VPMADDUBSW(act, vec, tmp)
							VPADDW(tmp, acc(row, high), acc(row, high))
						}
					}
				}
				first, second := scales, scales
				first.Disp, second.Disp = scales.Disp+16*half, scales.Disp+32+16*half
				VCVTPH2PS(first, nib)
				VCVTPH2PS(second, weight)
				for row := range m {
					VPBROADCASTD(Mem{Base: eights, Disp: nibbleDepth / 8 * row}, act)
					for high, scale := range []reg.VecPhysical{nib, weight} {
						dot, sum := acc(row, high), Mem{Base: sums, Disp: 128*row + 64*high + 32*half}
						VPMADDWD(one, dot, dot)
						VPSUBD(act, dot, dot)
						VCVTDQ2PS(dot, dot)
						VFMADD213PS(sum, scale, dot)
						VMOVUPS(dot, sum)
					}
				}
			}
		}
		blocksOfQuarters(id, block, count, wp, step, func() {
			ADDQ(I8(32), input)
			ADDQ(I8(4), eights)
		}, func() {})
		VZEROUPPER()
		RET()
	})
}

// blocksOfQuarters emits a loop over count blocks of 4-bit weights. step multiplies 32 rows of the weight at wp, given
// where the block's scales are; next moves the other pointers by 32 activations, and end by a block's scales. A block of
// 128 is four steps, which are a loop so that the code stays small.
func blocksOfQuarters(id string, block int, count, wp reg.GPVirtual, step func(scales Mem), next, end func()) {
	if block == 32 {
		steps(id, count, 1, func(int) { step(Mem{Base: wp, Disp: 512}) }, func(int) {
			next()
			end()
			ADDQ(I32(576), wp)
		})
		return
	}
	scales := GP64()
	steps(id, count, 1, func(int) {
		LEAQ(Mem{Base: wp, Disp: 16 * block}, scales)
		Label(id + "_quarter")
		step(Mem{Base: scales})
		next()
		ADDQ(I32(512), wp)
		CMPQ(wp, scales)
		JNE(LabelRef(id + "_quarter"))
	}, func(int) {
		end()
		ADDQ(I8(64), wp)
	})
}

// scaleSums256 makes results of sums.
func scaleSums256() {
	function("scaleSums256", "(rows int, y *float32, ldy int, sums *float32, xscale *float32)",
		"writes sums [rows][32], each row times its scale, to y. ldy is in bytes.")
	count, output, ldy, sums, scales := param("rows"), param("y"), param("ldy"), param("sums"), param("xscale")
	Label("row")
	VBROADCASTSS(Mem{Base: scales}, y[0])
	for part := range 4 {
		VMULPS(Mem{Base: sums, Disp: 32 * part}, y[0], y[1+part])
		VMOVUPS(y[1+part], Mem{Base: output, Disp: 32 * part})
	}
	ADDQ(I8(4), scales)
	ADDQ(I32(128), sums)
	ADDQ(ldy, output)
	DECQ(count)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}
