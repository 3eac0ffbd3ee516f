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
	function("q8cRows256", "(rows int, y *float32, ldy int, x *uint8, ldx int, steps int, tail *uint8, w *uint8, "+
		"ahead int, stride int, gap int, xscale *float32)",
		"computes rows (1..2) rows of one q8c tile into y [rows][32]. x holds 4*steps of each row's",
		"activations; tail is nil or [rows][4] more of them, padded with 128. Strides are in bytes.")
	dispatch(most, func(m int) {
		acc := func(row, part int) reg.VecPhysical { return y[4*row+part] }
		acts, abs := []reg.VecPhysical{y[8], y[9]}, []reg.VecPhysical{y[10], y[15]}
		weight, tmp, ones, c80 := y[11], y[12], y[13], y[14]
		k := newRowKernel(label("q8c", m), m, "steps")
		fetch := k.fetch.sideBySide(k.id)
		// ones adds pairs of 16-bit sums by VPMADDWD; c80 turns u into u-128 by flipping the sign
		// bit
		constant := GP32()
		for _, pattern := range []struct {
			bits uint32
			to   reg.VecPhysical
		}{{0x00010001, ones}, {0x80808080, c80}} {
			MOVL(U32(pattern.bits), constant)
			VMOVD(constant, pattern.to.AsX())
			VPBROADCASTD(pattern.to.AsX(), pattern.to)
		}
		zero256(y[:4*m]...)
		k.loop(2, 4, 128, func(i int) {
			for row := range m {
				VPBROADCASTD(k.input.at(row, 4*i), acts[row])
				VPXOR(c80, acts[row], acts[row])
				VPABSB(acts[row], abs[row])
			}
			fetch.step(2, oneOf(2, i))
			for part := range 4 {
				VMOVDQU(Mem{Base: k.weights, Disp: 128*i + 32*part}, weight)
				for row := range m {
					VPSIGNB(acts[row], weight, tmp)
					VPMADDUBSW(tmp, abs[row], tmp)
					VPMADDWD(ones, tmp, tmp)
					VPADDD(tmp, acc(row, part), acc(row, part))
				}
			}
		})
		// y = float32(sum) * (xscale*scale), with the column scales behind the tile's weights
		eachScaledRow(m, func(row int, out reg.GPVirtual, scale Mem) {
			VBROADCASTSS(scale, acts[0])
			for part := range 4 {
				sum := acc(row, part)
				VCVTDQ2PS(sum, sum)
				VMULPS(Mem{Base: k.weights, Disp: 32 * part}, acts[0], tmp)
				VMULPS(tmp, sum, sum)
				VMOVUPS(sum, Mem{Base: out, Disp: 32 * part})
			}
		})
		VZEROUPPER()
		RET()
	})
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
	doc, pitch := q4Doc(block)
	function(name, "(rows int, y *float32, ldy int, x *uint8, ldx int, blocks int, tail *uint8, w *uint8, ahead int, "+
		"stride int, gap int, xscale *float32, sums *int32, ldsums int)", doc...)
	dispatch(most, func(m int) {
		id := label(name, m)
		if m == 1 && !vnni {
			q4Single256(id, block, pitch, f0, c80, one)
			return
		}
		k := q4Kernel256{vnni: vnni, block: block, pitch: pitch, low: f0, c80: c80, one: one}
		k.rowKernel = newRowKernel(id, m, "blocks", &k.sums, &k.ldsums)
		k.fetch = k.rowKernel.fetch.sideBySide(id)
		Load(Param("sums"), k.sums)
		Load(Param("ldsums"), k.ldsums)
		zero256(y[:4*m]...)
		Label(id + "_start")
		k.input.set(k.row)
		k.loop()
		scaledRows256(m, k.act(), k.total)
		VZEROUPPER()
		RET()
	})
}

// q4Kernel256 is q4Rows256 for m rows.
type q4Kernel256 struct {
	rowKernel
	fetch        *sideFetcher
	vnni         bool
	block, pitch int           // weights that share a scale, and the bytes of a row of the tail
	low, c80     Mem           // masks: the low halves of bytes, their sign bits
	one          Mem           // ones of 16 bits, where there is no VNNI
	sums, ldsums reg.GPVirtual // the sums of a block of activations, and how far on those of the next row are
}

// total is the register of the float32 sums of eight columns of a row.
func (k q4Kernel256) total(row, part int) reg.VecPhysical { return y[4*row+part] }

// dot is the register of the integer sums of eight columns of a row, over one step: of the low or the high nibbles.
func (k q4Kernel256) dot(row, high int) reg.VecPhysical { return y[8+2*row+high] }

// act is the register of broadcast activations.
func (k q4Kernel256) act() reg.VecPhysical { return y[14] }

// loop goes over all blocks. A block of 32 is one step, followed by its 64 bytes of scales; a block of 128 is four
// steps, which are a loop so that the code stays small.
func (k q4Kernel256) loop() {
	if k.block == 32 {
		steps(k.id, k.left, 1, func(int) { k.step(Mem{Base: k.weights, Disp: 512}) }, func(count int) {
			k.input.advance(32 * count)
			ADDQ(I32(576*count), k.weights)
			ADDQ(I32(4*count), k.sums)
			k.fetch.step(1, 1) // the line of scales
		})
		k.again(k.pitch)
		return
	}

	scales := GP64()
	steps(k.id, k.left, 1, func(int) {
		LEAQ(Mem{Base: k.weights, Disp: 2048}, scales)
		Label(k.id + "_quarter")
		k.step(Mem{Base: scales})
		k.input.advance(32)
		ADDQ(I32(512), k.weights)
		ADDQ(I32(4), k.sums)
		CMPQ(k.weights, scales)
		JNE(LabelRef(k.id + "_quarter"))
	}, func(int) {
		ADDQ(I32(64), k.weights)
		k.fetch.step(1, 1) // the line of scales
	})
	k.again(k.pitch, func() {
		LEAQ(Mem{Base: k.row, Disp: 128}, k.sums)
		MOVQ(k.input.ld, k.ldsums)
	})
}

// step multiplies 32 rows of the weight, half of each line at a time.
func (k q4Kernel256) step(scales Mem) {
	weight, nibble := y[12], y[13]
	for half := range 2 {
		for row := range k.m {
			zero256(k.dot(row, 0), k.dot(row, 1))
		}
		for quad := range 8 {
			VMOVDQU(Mem{Base: k.weights, Disp: 64*quad + 32*half}, weight)
			if half == 0 {
				k.fetch.step(1, oneOf(4, quad))
			}
			// low nibbles are columns 0-15, high nibbles columns 16-31
			VPAND(k.low, weight, nibble)
			VPSRLW(I8(4), weight, weight)
			VPAND(k.low, weight, weight)
			for row := range k.m {
				k.multiply(row, quad, nibble, weight)
			}
		}
		k.scale(half, scales)
	}
}

// multiply adds the products of a quad of activations of a row with low and high nibbles.
func (k q4Kernel256) multiply(row, quad int, nibbles ...reg.VecPhysical) {
	act, tmp := k.act(), y[15]
	VPBROADCASTD(k.input.at(row, 4*quad), act)
	VPXOR(k.c80, act, act)
	for high, vec := range nibbles {
		if k.vnni {
			dotVEX(act, vec, k.dot(row, high))
			continue
		}
		VPMADDUBSW(act, vec, tmp)
		VPADDW(tmp, k.dot(row, high), k.dot(row, high))
	}
}

// scale adds half of a step's integer sums to the float32 sums, with the scales of columns 8*half to 8*half+7 and
// 16+8*half on: product = sum - 8 * sum of the activations.
func (k q4Kernel256) scale(half int, scales Mem) {
	lowScale, highScale, eights, tmp := y[12], y[13], k.act(), y[15]
	low, high := scales, scales
	low.Disp, high.Disp = scales.Disp+16*half, scales.Disp+32+16*half
	VCVTPH2PS(low, lowScale)
	VCVTPH2PS(high, highScale)
	for row := range k.m {
		if row == 0 {
			VPBROADCASTD(Mem{Base: k.sums}, eights)
		} else {
			VPBROADCASTD(Mem{Base: k.sums, Index: k.ldsums, Scale: 1}, eights)
		}
		VPSLLD(I8(3), eights, eights)
		for high, scale := range []reg.VecPhysical{lowScale, highScale} {
			if k.vnni {
				VPSUBD(eights, k.dot(row, high), tmp)
			} else {
				VPMADDWD(k.one, k.dot(row, high), tmp)
				VPSUBD(eights, tmp, tmp)
			}
			VCVTDQ2PS(tmp, tmp)
			VFMADD231PS(scale, tmp, k.total(row, 2*high+half))
		}
	}
}

// q4Single256 is the body of q4Rows256 for one row, whose integer sums of all columns fit in registers: it goes over
// the weight once, with the constants in registers, and prefetches line by line what it reads. A single row reads
// memory, so that each instruction counts which its core spends on a line.
func q4Single256(id string, block, pitch int, f0, c80, one Mem) {
	k := q4OneRow256{
		rowKernel: rowKernel{
			id: id, m: 1, input: newRows(1),
			row: param("x"), left: param("blocks"), tail: param("tail"), weights: param("w"),
		},
		sums: param("sums"), ahead: param("ahead"),
		low: y[8], sign: y[9], ones: y[10], weight: y[11], nibble: y[12], act: y[13], tmp: y[14],
	}
	ADDQ(k.weights, k.ahead)
	VMOVDQU(f0, k.low)
	VMOVDQU(c80, k.sign)
	VMOVDQU(one, k.ones)
	zero256(y[:4]...)
	Label(id + "_start")
	MOVQ(k.row, k.input.base[0])
	blocksOfQuarters(id, block, k.left, k.weights, k.step, func() {
		k.input.advance(32)
		ADDQ(I8(4), k.sums)
		ADDQ(I32(512), k.ahead)
	}, func() { // the line of scales
		PREFETCHT0(Mem{Base: k.ahead})
		ADDQ(I8(64), k.ahead)
	})
	if block == 32 {
		k.again(pitch)
	} else {
		k.again(pitch, func() { LEAQ(Mem{Base: k.row, Disp: 128}, k.sums) })
	}
	scaledRows256(1, k.act, func(_, part int) reg.VecPhysical { return y[part] })
	VZEROUPPER()
	RET()
}

// q4OneRow256 are the registers of q4Single256. The fetcher of the kernel is not used: ahead is what is prefetched.
type q4OneRow256 struct {
	rowKernel
	sums, ahead                               reg.GPVirtual
	low, sign, ones, weight, nibble, act, tmp reg.VecPhysical
}

// total and dot are the registers of float32 and of integer sums: of low or high nibbles, and of half of their columns.
func (k q4OneRow256) total(high, half int) reg.VecPhysical { return y[2*high+half] }
func (k q4OneRow256) dot(high, half int) reg.VecPhysical   { return y[4+2*high+half] }

// step multiplies 32 rows of the weight.
func (k q4OneRow256) step(scales Mem) {
	for quad := range 8 {
		VPBROADCASTD(k.input.at(0, 4*quad), k.act)
		VPXOR(k.sign, k.act, k.act)
		PREFETCHT0(Mem{Base: k.ahead, Disp: 64 * quad})
		for half := range 2 {
			VMOVDQU(Mem{Base: k.weights, Disp: 64*quad + 32*half}, k.weight)
			VPAND(k.low, k.weight, k.nibble)
			VPSRLW(I8(4), k.weight, k.weight)
			VPAND(k.low, k.weight, k.weight)
			for high, vec := range []reg.VecPhysical{k.nibble, k.weight} {
				if quad == 0 {
					VPMADDUBSW(k.act, vec, k.dot(high, half))
					continue
				}
				VPMADDUBSW(k.act, vec, k.tmp)
				VPADDW(k.tmp, k.dot(high, half), k.dot(high, half))
			}
		}
	}
	VPBROADCASTD(Mem{Base: k.sums}, k.act)
	VPSLLD(I8(3), k.act, k.act)
	for high := range 2 {
		for half := range 2 {
			dot, scale := k.dot(high, half), scales
			scale.Disp += 32*high + 16*half
			VCVTPH2PS(scale, k.tmp)
			VPMADDWD(k.ones, dot, dot)
			VPSUBD(k.act, dot, dot)
			VCVTDQ2PS(dot, dot)
			VFMADD231PS(k.tmp, dot, k.total(high, half))
		}
	}
}

// q4Doc returns the doc comment of a 4-bit kernel, and the bytes of a row of its tail. With blocks
// of 128 a tail row carries its four block sums behind the activations (128 + 16 bytes).
func q4Doc(block int) (doc []string, pitch int) {
	doc = []string{
		fmt.Sprintf("computes rows (1..2) rows of one q4b%d tile into y [rows][32]. x holds %d*blocks of each row's",
			block, block),
		fmt.Sprintf("activations, sums their sums over each 32; tail is nil or [rows][%d] more activations, padded with 128.",
			block),
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
	function("f32Rows256", "(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ahead int, "+
		"stride int, more int)",
		"computes rows (1..3) rows of one w32 tile of k rows into y [rows][32], or adds them to y unless more is 0.",
		"Strides are in bytes.")
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
	function("bf16Rows256", "(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *uint16, ahead int, "+
		"stride int)",
		"computes rows (1..3) rows of one w16 tile of k rows into y [rows][32]. Strides are in bytes.")
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
	function("f32Add256", "(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ldw int)",
		"adds the product of rows (1..3) rows of x [rows][k] with w [k][32] to y [rows][32]. Strides are in bytes.")
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
