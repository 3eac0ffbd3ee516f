package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// avxvnni writes the kernels of 8-bit, 6-bit and 4-bit products for CPUs with VPDPBUSD on 256-bit
// registers. Its other functions are those of the avx2 tier.
func avxvnni() {
	q8cRowsVNNI()
	q6cRows256("q6cRowsVNNI", true)
	q4Rows256("q4RowsVNNI", 32, true)
	q4Rows256("q4x128RowsVNNI", 128, true)
}

// dotVEX emits VPDPBUSD with 256-bit registers in the encoding of AVX-VNNI, which Go's assembler
// lacks. It adds to acc the products of unsigned bytes u8 and signed bytes s8, in fours.
func dotVEX(s8, u8, acc reg.VecPhysical) {
	number := func(v reg.VecPhysical) uint32 {
		for i, weight := range y {
			if v == weight {
				return uint32(i)
			}
		}
		panic("not a register of AVX")
	}
	signed, unsigned, dst := number(s8), number(u8), number(acc)
	Comment("VPDPBUSD " + s8.Asm() + ", " + u8.Asm() + ", " + acc.Asm())
	emit := func(opcode string, v Op) {
		Instruction(&ir.Instruction{Opcode: opcode, Operands: []Op{v}})
	}
	// the three-byte VEX prefix, opcode 0x50, and ModRM; register numbers are stored inverted in
	// the prefix
	emit("BYTE", U8(0xc4))
	emit("LONG", U32(
		^dst>>3<<7&0x80|0x40|^signed>>3<<5&0x20|2| // no extension of the fields, map 0F38
			(^unsigned<<3&0x78|4|1)<<8| // 256 bits, prefix 66
			0x50<<16|
			(0xc0|dst&7<<3|signed&7)<<24))
}

// q8cRowsVNNI is q8cRows512 in half the register width: activations stay unsigned, and 128 times
// the column sums is taken off at the end.
func q8cRowsVNNI() {
	const most = 3
	function("q8cRowsVNNI", "(rows int, y *float32, ldy int, x *uint8, ldx int, steps int, tail *uint8, w *uint8, "+
		"ahead int, stride int, gap int, xscale *float32)",
		"computes rows (1..3) rows of one q8c tile into y [rows][32]. x holds 4*steps of each row's",
		"activations; tail is nil or [rows][4] more of them. Strides are in bytes.")
	dispatch(most, func(m int) {
		id := label("q8c", m)
		sets := 1
		if m == 1 {
			sets = 3 // so that the instruction's latency does not show
		}
		acc := func(set, row, part int) reg.VecPhysical { return y[(set*m+row)*4+part] }
		acts, weight := y[12:15], y[15]
		k := newRowKernel(id, m, "steps")
		fetch := k.fetch.sideBySide(id)
		zero256(y[:4*m*sets]...)
		k.loop(max(sets, 2), 4, 128, func(i int) {
			for row := range m {
				VPBROADCASTD(k.input.at(row, 4*i), acts[row])
			}
			fetch.step(2, oneOf(2, i))
			for part := range 4 {
				VMOVDQU(Mem{Base: k.weights, Disp: 128*i + 32*part}, weight)
				for row := range m {
					dotVEX(weight, acts[row], acc(i%sets, row, part))
				}
			}
		})
		for set := 1; set < sets; set++ {
			for part := range 4 {
				VPADDD(acc(set, 0, part), acc(0, 0, part), acc(0, 0, part))
			}
		}
		// y = float32(acc - 128*colsum) * (xscale*scale)
		eachScaledRow(m, func(row int, out reg.GPVirtual, scale Mem) {
			VBROADCASTSS(scale, acts[0])
			for part := range 4 {
				dst := acc(0, row, part)
				VMOVDQU(Mem{Base: k.weights, Disp: 128 + 32*part}, weight)
				VPSLLD(I8(7), weight, weight)
				VPSUBD(weight, dst, dst)
				VCVTDQ2PS(dst, dst)
				VMULPS(Mem{Base: k.weights, Disp: 32 * part}, acts[0], weight)
				VMULPS(weight, dst, dst)
				VMOVUPS(dst, Mem{Base: out, Disp: 32 * part})
			}
		})
		VZEROUPPER()
		RET()
	})
}
