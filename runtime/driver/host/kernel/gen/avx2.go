package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of the avx2 tier have 16 registers of 256 bits. The 32 columns of a tile are four of
// them, numbered by part, each with 8 float32 or int32. Two rows of sums take 8 registers and three
// rows take 12; the rest hold weights, broadcast activations and constants.
var y = [16]reg.VecPhysical{
	reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7,
	reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
}

// zero256 clears vectors.
func zero256(v ...reg.VecPhysical) {
	for _, vec := range v {
		VPXOR(vec, vec, vec)
	}
}

// avx2 generates the kernels of the tier avx2, in the order of their file.
func avx2() {
	q8cRows256()
	q6cRows256("q6cRows256", false)
	q4Rows256("q4Rows256", 32, false)
	q4Rows256("q4x128Rows256", 128, false)
	f32Rows256()
	bf16Rows256()
	f32Add256()
	words256()
	nibbles256()
	vectors256()
	attention256()
}

// const32 declares read-only data of 32 bytes that repeat a 4-byte pattern.
func const32(name string, v uint32) Mem {
	mem := GLOBL(name, 8|16) // RODATA|NOPTR
	for i := range 8 {
		DATA(4*i, U32(v))
	}
	return mem
}

// q8cRows256 has no instruction for products of unsigned activations and signed weights that cannot
// saturate. It multiplies |a| (u8) by sign(a)*w (s8), adds pairs to 16 bit, and pairs of those to
// 32 bit. a = u-128 may be -128, whose magnitude is 128 as u8. w is at most 127 in magnitude, so
// its negative fits, and so does a sum of two products (2*128*127 < 2^15). Column sums are not
// needed.
func q8cRows256() {
	const most = 2
	TEXT("q8cRows256", NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, steps int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc("q8cRows256 computes rows (1..2) rows of one q8c tile into y [rows][32]. x holds 4*steps of each row's",
		"activations; tail is nil or [rows][4] more of them, padded with 128. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("q8c", m)
		acc := func(r, q int) reg.VecPhysical { return y[4*r+q] }
		acts, abs := []reg.VecPhysical{y[8], y[9]}, []reg.VecPhysical{y[10], y[15]}
		weight, tmp, ones, c80 := y[11], y[12], y[13], y[14]
		input := newRows(m)
		row, count, tail, wp := GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("steps"), count)
		Load(Param("tail"), tail)
		Load(Param("w"), wp)
		fetch := newFetcher(wp)
		// ones adds pairs of 16-bit sums by VPMADDWD; c80 turns u into u-128 by flipping the sign
		// bit
		constant := GP32()
		MOVL(U32(0x00010001), constant)
		VMOVD(constant, ones.AsX())
		VPBROADCASTD(ones.AsX(), ones)
		MOVL(U32(0x80808080), constant)
		VMOVD(constant, c80.AsX())
		VPBROADCASTD(c80.AsX(), c80)
		zero256(y[:4*m]...)
		Label(id + "_start")
		input.set(row)
		steps(id, count, 2, func(i int) {
			for row := range m {
				VPBROADCASTD(input.at(row, 4*i), acts[row])
				VPXOR(c80, acts[row], acts[row])
				VPABSB(acts[row], abs[row])
			}
			fetch.step(2)
			for part := range 4 {
				VMOVDQU(Mem{Base: wp, Disp: 128*i + 32*part}, weight)
				for row := range m {
					VPSIGNB(acts[row], weight, tmp)
					VPMADDUBSW(tmp, abs[row], tmp)
					VPMADDWD(ones, tmp, tmp)
					VPADDD(tmp, acc(row, part), acc(row, part))
				}
			}
		}, func(c int) {
			input.advance(4 * c)
			ADDQ(I32(128*c), wp)
		})
		again(id, tail, row, count, input, 4)
		// Epilogue: y = float32(sum) * (xscale*scale), with the column scales behind the tile's
		// weights.
		eachScaledRow(m, func(row int, out reg.GPVirtual, scale Mem) {
			VBROADCASTSS(scale, acts[0])
			for part := range 4 {
				dst := acc(row, part)
				VCVTDQ2PS(dst, dst)
				VMULPS(Mem{Base: wp, Disp: 32 * part}, acts[0], tmp)
				VMULPS(tmp, dst, dst)
				VMOVUPS(dst, Mem{Base: out, Disp: 32 * part})
			}
		})
		VZEROUPPER()
		RET()
	})
}

// again runs a kernel's loop, which began at the label id_start, once more over the tail: one step
// of activations padded to a whole step, in rows of pitch bytes. It jumps back with a count of 1
// and clears tail, so that the second arrival falls through. A nil tail skips it. more emits what
// else must point at the tail.
func again(id string, tail, p, n reg.GPVirtual, x rows, pitch int, more ...func()) {
	TESTQ(tail, tail)
	JZ(LabelRef(id + "_sum"))
	MOVQ(tail, p)
	XORQ(tail, tail)
	MOVQ(I32(1), n)
	MOVQ(I32(pitch), x.ld)
	for _, emit := range more {
		emit()
	}
	JMP(LabelRef(id + "_start"))
	Label(id + "_sum")
}

// q4Rows256 multiplies nibbles (u8) by activations a = u-128 (s8), in steps of 32 rows of the
// weight. Pairs of products are added to 16 bit, where the 8 quarters of a step stay in range
// (8*2*15*128 = 30720 < 2^15); with VNNI they go straight to 32 bit. A step runs over the 64-byte
// rows twice, 32 bytes each time: first columns 0-7 and 16-23, then 8-15 and 24-31, since the sums
// of all columns do not fit in registers. The weight is nibble-8, so the block sums of the
// activations, times 8, are taken off at the end of a step. block is the number of rows that share
// a scale.
func q4Rows256(name string, block int, vnni bool) {
	const most = 2
	f0 := const32(name+"F0", 0x0f0f0f0f)
	c80 := const32(name+"C80", 0x80808080)
	var one Mem
	if !vnni {
		one = const32(name+"One", 0x00010001)
	}
	TEXT(name, NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, blocks int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32, sums *int32, ldsums int)")
	doc, pitch := q4Doc(name, block)
	Doc(doc...)
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label(name, m)
		if m == 1 && !vnni {
			q4Single256(id, block, pitch, f0, c80, one)
			return
		}
		// float32 sums of the whole product, and integer sums of one step and half
		facc := func(r, q int) reg.VecPhysical { return y[4*r+q] } // 8 columns each
		iacc := func(r, h int) reg.VecPhysical { return y[8+2*r+h] }
		weight, nib, act, tmp := y[12], y[13], y[14], y[15]
		input := newRows(m)
		row, count, tail, wp, sums, ldsums := GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("blocks"), count)
		Load(Param("tail"), tail)
		Load(Param("w"), wp)
		fetch := newFetcher(wp)
		Load(Param("sums"), sums)
		Load(Param("ldsums"), ldsums)
		zero256(y[:4*m]...)
		Label(id + "_start")
		input.set(row)
		scale := func(half int, scales Mem) {
			q4Accumulators{iacc, facc}.scale(m, half, vnni, scales, one, q4Sums{sums, ldsums})
		}
		step := func(scales Mem) {
			for half := range 2 {
				for row := range m {
					zero256(iacc(row, 0), iacc(row, 1))
				}
				for k4 := range 8 {
					VMOVDQU(Mem{Base: wp, Disp: 64*k4 + 32*half}, weight)
					if half == 0 {
						fetch.step(1)
					}
					// low nibbles are columns 0-15, high nibbles columns 16-31
					VPAND(f0, weight, nib)
					VPSRLW(I8(4), weight, weight)
					VPAND(f0, weight, weight)
					for row := range m {
						VPBROADCASTD(input.at(row, 4*k4), act)
						VPXOR(c80, act, act)
						for half, vec := range []reg.VecPhysical{nib, weight} {
							if vnni {
								dotVEX(act, vec, iacc(row, half))
								continue
							}
							VPMADDUBSW(act, vec, tmp)
							VPADDW(tmp, iacc(row, half), iacc(row, half))
						}
					}
				}
				scale(half, scales)
			}
		}
		// A block of 32 is one step, followed by its 64 bytes of scales; a block of 128 is four
		// steps, which are a loop so that the code stays small.
		if block == 32 {
			steps(id, count, 1, func(int) { step(Mem{Base: wp, Disp: 512}) }, func(c int) {
				input.advance(32 * c)
				ADDQ(I32(576*c), wp)
				ADDQ(I32(4*c), sums)
				fetch.step(1) // the line of scales
			})
			again(id, tail, row, count, input, pitch)
		} else {
			scales := GP64()
			steps(id, count, 1, func(int) {
				LEAQ(Mem{Base: wp, Disp: 2048}, scales)
				Label(id + "_quarter")
				step(Mem{Base: scales})
				input.advance(32)
				ADDQ(I32(512), wp)
				ADDQ(I32(4), sums)
				CMPQ(wp, scales)
				JNE(LabelRef(id + "_quarter"))
			}, func(int) {
				ADDQ(I32(64), wp)
				fetch.step(1) // the line of scales
			})
			again(id, tail, row, count, input, pitch, func() {
				LEAQ(Mem{Base: row, Disp: 128}, sums)
				MOVQ(input.ld, ldsums)
			})
		}
		scaledRows256(m, act, facc)
		VZEROUPPER()
		RET()
	})
}

// q4Sums are where the sums of a block of activations lie: of the first row, and how far on that of the next one is.
type q4Sums struct{ first, pitch reg.GPVirtual }

// q4Accumulators are the registers of q4Rows256 for the integer sums of half a step and the float32 sums of a row.
type q4Accumulators struct {
	ints, floats func(row, number int) reg.VecPhysical
}

// scale adds half of a step's integer sums to the float32 sums, with the scales of columns 8*half to 8*half+7 and
// 16+8*half on: product = sum - 8 * sum of the activations.
func (a q4Accumulators) scale(m, half int, vnni bool, scales, one Mem, sums q4Sums) {
	weight, nib, act, tmp := y[12], y[13], y[14], y[15]
	low, high := scales, scales
	low.Disp, high.Disp = scales.Disp+16*half, scales.Disp+32+16*half
	VCVTPH2PS(low, weight)
	VCVTPH2PS(high, nib)
	for row := range m {
		if row == 0 {
			VPBROADCASTD(Mem{Base: sums.first}, act)
		} else {
			VPBROADCASTD(Mem{Base: sums.first, Index: sums.pitch, Scale: 1}, act)
		}
		VPSLLD(I8(3), act, act)
		for number, src := range []reg.VecPhysical{weight, nib} {
			if vnni {
				VPSUBD(act, a.ints(row, number), tmp)
			} else {
				VPMADDWD(one, a.ints(row, number), tmp)
				VPSUBD(act, tmp, tmp)
			}
			VCVTDQ2PS(tmp, tmp)
			VFMADD231PS(src, tmp, a.floats(row, 2*number+half))
		}
	}
}

// q4Single256 is the body of q4Rows256 for one row, whose integer sums of all columns fit in registers: it goes over the
// weight once, with the constants in registers, and prefetches line by line what it reads. A single row reads memory, so
// that each instruction counts which its core spends on a line.
func q4Single256(id string, block, pitch int, f0, c80, one Mem) {
	facc := func(high, half int) reg.VecPhysical { return y[2*high+half] }
	iacc := func(high, half int) reg.VecPhysical { return y[4+2*high+half] }
	low, sign, ones, weight, nib, act, tmp := y[8], y[9], y[10], y[11], y[12], y[13], y[14]
	input := newRows(1)
	row, count, tail, wp, sums, ahead := param("x"), param("blocks"), param("tail"), param("w"), param("sums"), param("ahead")
	ADDQ(wp, ahead)
	VMOVDQU(f0, low)
	VMOVDQU(c80, sign)
	VMOVDQU(one, ones)
	zero256(y[:4]...)
	Label(id + "_start")
	MOVQ(row, input.base[0])
	step := func(scales Mem) {
		for k4 := range 8 {
			VPBROADCASTD(input.at(0, 4*k4), act)
			VPXOR(sign, act, act)
			PREFETCHT0(Mem{Base: ahead, Disp: 64 * k4})
			for half := range 2 {
				VMOVDQU(Mem{Base: wp, Disp: 64*k4 + 32*half}, weight)
				VPAND(low, weight, nib)
				VPSRLW(I8(4), weight, weight)
				VPAND(low, weight, weight)
				for high, vec := range []reg.VecPhysical{nib, weight} {
					if k4 == 0 {
						VPMADDUBSW(act, vec, iacc(high, half))
						continue
					}
					VPMADDUBSW(act, vec, tmp)
					VPADDW(tmp, iacc(high, half), iacc(high, half))
				}
			}
		}
		VPBROADCASTD(Mem{Base: sums}, act)
		VPSLLD(I8(3), act, act)
		for high := range 2 {
			for half := range 2 {
				dot, scale := iacc(high, half), scales
				scale.Disp += 32*high + 16*half
				VCVTPH2PS(scale, tmp)
				VPMADDWD(ones, dot, dot)
				VPSUBD(act, dot, dot)
				VCVTDQ2PS(dot, dot)
				VFMADD231PS(tmp, dot, facc(high, half))
			}
		}
	}
	line := func() { // of scales
		PREFETCHT0(Mem{Base: ahead})
		ADDQ(I8(64), ahead)
	}
	blocksOfQuarters(id, block, count, wp, step, func() {
		input.advance(32)
		ADDQ(I8(4), sums)
		ADDQ(I32(512), ahead)
	}, line)
	if block == 32 {
		again(id, tail, row, count, input, pitch)
	} else {
		again(id, tail, row, count, input, pitch, func() { LEAQ(Mem{Base: row, Disp: 128}, sums) })
	}
	scaledRows256(1, act, func(_, part int) reg.VecPhysical { return y[part] })
	VZEROUPPER()
	RET()
}

// q4Doc returns the doc comment of a 4-bit kernel, and the bytes of a row of its tail. With blocks
// of 128 a tail row carries its four block sums behind the activations (128 + 16 bytes).
func q4Doc(name string, block int) (doc []string, pitch int) {
	doc = []string{
		fmt.Sprintf("%s computes rows (1..2) rows of one q4b%d tile into y [rows][32]. x holds %d*blocks of each row's", name, block, block),
		fmt.Sprintf("activations, sums their sums over each 32; tail is nil or [rows][%d] more activations, padded with 128.", block),
		"Strides are in bytes.",
	}
	if block != 128 {
		return doc, block
	}
	doc[1] = "activations, sums their sums over each 32; tail is nil or the rows of one more block, each 128 activations"
	doc[2] = "padded with 128 and four int32 sums. Strides are in bytes."
	return doc, 144
}

// scaledRows256 stores m rows of float32 sums times the rows' scales. acc names the register of
// columns 8*part.. of a row.
func scaledRows256(m int, act reg.VecPhysical, acc func(row, part int) reg.VecPhysical) {
	eachScaledRow(m, func(row int, out reg.GPVirtual, scale Mem) {
		VBROADCASTSS(scale, act)
		for part := range 4 {
			dst := acc(row, part)
			VMULPS(act, dst, dst)
			VMOVUPS(dst, Mem{Base: out, Disp: 32 * part})
		}
	})
}

// f32Rows256 holds three rows of sums in 12 registers: each load of 8 weights serves three
// multiply-adds. One accumulator per result and k in order make a row's bits independent of the
// rows beside it.
func f32Rows256() {
	const most = 3
	TEXT("f32Rows256", NOSPLIT,
		"func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ahead int, stride int, more int)")
	Doc("f32Rows256 computes rows (1..3) rows of one w32 tile of k rows into y [rows][32], or adds them to y unless more is 0. Strides",
		"are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("f32", m)
		acc := func(r, q int) reg.VecPhysical { return y[4*r+q] }
		acts, vec := y[12:15], y[15]
		input := newRows(m)
		row, count, weights := GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("k"), count)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		begin(id, m, 32, y[:4*m], zero256)
		input.set(row)
		steps(id, count, 2, func(i int) {
			for row := range m {
				VBROADCASTSS(input.at(row, 4*i), acts[row])
			}
			fetch.step(2)
			for part := range 4 {
				VMOVUPS(Mem{Base: weights, Disp: 128*i + 32*part}, vec)
				for row := range m {
					VFMADD231PS(vec, acts[row], acc(row, part))
				}
			}
		}, func(c int) {
			input.advance(4 * c)
			ADDQ(I32(128*c), weights)
		})
		eachRow(m, func(row int, out reg.GPVirtual) {
			for part := range 4 {
				VMOVUPS(acc(row, part), Mem{Base: out, Disp: 32 * part})
			}
		})
		VZEROUPPER()
		RET()
	})
}

// bf16Rows256 is f32Rows256 for a w16 tile. A 32-bit word holds column c in its lower half and
// column 16+c in its upper half: a shift by 16 or a mask widens either to float32.
func bf16Rows256() {
	const most = 3
	upper := const32("brainUpper256", 0xffff0000)
	TEXT("bf16Rows256", NOSPLIT,
		"func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *uint16, ahead int, stride int)")
	Doc("bf16Rows256 computes rows (1..3) rows of one w16 tile of k rows into y [rows][32]. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("bf16", m)
		acc := func(r, q int) reg.VecPhysical { return y[4*r+q] }
		acts, vec := y[12:15], y[15]
		input := newRows(m)
		row, count, weights := GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("k"), count)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		zero256(y[:4*m]...)
		input.set(row)
		steps(id, count, 2, func(i int) {
			for row := range m {
				VBROADCASTSS(input.at(row, 4*i), acts[row])
			}
			fetch.step(1)
			for part := range 4 { // columns from 8*q
				VMOVDQU(Mem{Base: weights, Disp: 64*i + part%2*32}, vec)
				if part < 2 {
					VPSLLD(I8(16), vec, vec)
				} else {
					VPAND(upper, vec, vec)
				}
				for row := range m {
					VFMADD231PS(vec, acts[row], acc(row, part))
				}
			}
		}, func(c int) {
			input.advance(4 * c)
			ADDQ(I32(64*c), weights)
		})
		eachRow(m, func(row int, out reg.GPVirtual) {
			for part := range 4 {
				VMOVUPS(acc(row, part), Mem{Base: out, Disp: 32 * part})
			}
		})
		VZEROUPPER()
		RET()
	})
}

// f32Add256 is f32Rows256 for 32 columns of a row-major matrix, added to y: the product of
// attention weights with values. Four rows of w are addressed at a time, since their stride is not
// a constant.
func f32Add256() {
	const most = 3
	TEXT("f32Add256", NOSPLIT, "func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ldw int)")
	Doc("f32Add256 adds the product of rows (1..3) rows of x [rows][k] with w [k][32] to y [rows][32]. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("add", m)
		acc := func(r, q int) reg.VecPhysical { return y[4*r+q] }
		acts, vec := y[12:15], y[15]
		copyOut := func(move func(reg.VecPhysical, Mem)) {
			eachRow(m, func(row int, out reg.GPVirtual) {
				for part := range 4 {
					move(acc(row, part), Mem{Base: out, Disp: 32 * part})
				}
			})
		}
		copyOut(func(v reg.VecPhysical, at Mem) { VMOVUPS(at, v) })
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
			for row := range m {
				VBROADCASTSS(input.at(row, 4*i), acts[row])
			}
			for part := range 4 {
				VMOVUPS(weights.at(i, 32*part), vec)
				for row := range m {
					VFMADD231PS(vec, acts[row], acc(row, part))
				}
			}
		}, func(c int) {
			input.advance(4 * c)
			weights.down(c)
		})
		copyOut(func(v reg.VecPhysical, at Mem) { VMOVUPS(v, at) })
		VZEROUPPER()
		RET()
	})
}
