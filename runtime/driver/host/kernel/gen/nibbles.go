package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of nibbles multiply many rows with a 4-bit weight where no instruction sums products of bytes to 32 bit.
// Sums of a block of 32 fit in 16 bit, so that VPMADDUBSW and VPADDW, two instructions, make 32 products. q4Rows256
// does the same for two rows, whose float32 sums are in registers; here these are in memory, which is read and written
// once a block, and the registers hold the 16-bit sums of six rows. So the work of unpacking a nibble is shared by six
// rows.
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
		fmt.Sprintf("adds the products of rows (%d..%d) rows of %d*blocks signed activations, %d apart, with a part of a "+
			"q4b%d tile",
			leastNibbleRows, mostNibbleRows, block, nibbleDepth, block),
		fmt.Sprintf("to sums [rows][32]. eights are 8 times the sums of activations over each 32, in rows of %d. It prefetches",
			nibbleDepth/32),
		"from ahead bytes behind w on, stride bytes for each 4 activations.")
	dispatchFrom(leastNibbleRows, mostNibbleRows, func(m int) {
		k := signedKernel256{m: m, low: low, one: one, sums: param("sums"), input: param("x"), eights: param("eights")}
		count, weights := param("blocks"), param("w")
		k.weights, k.fetch = weights, newFetcher(weights)
		blocksOfQuarters(label(name, m), block, count, weights, k.step, func() {
			ADDQ(I8(32), k.input)
			ADDQ(I8(4), k.eights)
		}, func() {})
		VZEROUPPER()
		RET()
	})
}

// signedKernel256 is q4Signed256 for m rows.
type signedKernel256 struct {
	m                            int
	low, one                     Mem // masks of low halves of bytes, and ones of 16 bits
	sums, input, eights, weights reg.GPVirtual
	fetch                        fetcher
}

// dot is the register of the 16-bit sums of a row: of eight columns in low or in high nibbles.
func (k signedKernel256) dot(row, high int) reg.VecPhysical { return y[2*row+high] }

// step multiplies 32 rows of the weight, half of the columns after the other.
func (k signedKernel256) step(scales Mem) {
	weight, nibble, act, tmp := y[12], y[13], y[14], y[15]
	for half := range 2 {
		for quad := range 8 {
			VMOVDQU(Mem{Base: k.weights, Disp: 64*quad + 32*half}, weight)
			if half == 0 {
				k.fetch.step(1)
			}
			VPAND(k.low, weight, nibble)
			VPSRLW(I8(4), weight, weight)
			VPAND(k.low, weight, weight)
			for row := range k.m {
				VPBROADCASTD(Mem{Base: k.input, Disp: nibbleDepth*row + 4*quad}, act)
				for high, vec := range []reg.VecPhysical{nibble, weight} {
					if quad == 0 {
						VPMADDUBSW(act, vec, k.dot(row, high))
						continue
					}
					VPMADDUBSW(act, vec, tmp)
					VPADDW(tmp, k.dot(row, high), k.dot(row, high))
				}
			}
		}
		k.accumulate(half, scales)
	}
}

// accumulate adds the sums of half of the columns, times their scales, to the float32 sums.
func (k signedKernel256) accumulate(half int, scales Mem) {
	lowScale, highScale, eights := y[13], y[12], y[14]
	first, second := scales, scales
	first.Disp, second.Disp = scales.Disp+16*half, scales.Disp+32+16*half
	VCVTPH2PS(first, lowScale)
	VCVTPH2PS(second, highScale)
	for row := range k.m {
		VPBROADCASTD(Mem{Base: k.eights, Disp: nibbleDepth / 8 * row}, eights)
		for high, scale := range []reg.VecPhysical{lowScale, highScale} {
			dot, sum := k.dot(row, high), Mem{Base: k.sums, Disp: 128*row + 64*high + 32*half}
			VPMADDWD(k.one, dot, dot)
			VPSUBD(eights, dot, dot)
			VCVTDQ2PS(dot, dot)
			VFMADD213PS(sum, scale, dot)
			VMOVUPS(dot, sum)
		}
	}
}

// blocksOfQuarters emits a loop over count blocks of 4-bit weights. step multiplies 32 rows of the weight at weights,
// given where the block's scales are; next moves the other pointers by 32 activations, and end by a block's scales. A
// block of 128 is four steps, which are a loop so that the code stays small.
func blocksOfQuarters(id string, block int, count, weights reg.GPVirtual, step func(scales Mem), next, end func()) {
	if block == 32 {
		steps(id, count, 1, func(int) { step(Mem{Base: weights, Disp: 512}) }, func(int) {
			next()
			end()
			ADDQ(I32(576), weights)
		})
		return
	}
	scales := GP64()
	steps(id, count, 1, func(int) {
		LEAQ(Mem{Base: weights, Disp: 16 * block}, scales)
		Label(id + "_quarter")
		step(Mem{Base: scales})
		next()
		ADDQ(I32(512), weights)
		CMPQ(weights, scales)
		JNE(LabelRef(id + "_quarter"))
	}, func(int) {
		end()
		ADDQ(I8(64), weights)
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
