package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of attention over a bfloat16 cache, which multiply pairs of numbers with VDPBF16PS. A pair takes the
// place of a float32: a key is pairs of neighbouring numbers, so that keys are turned into tiles as float32 keys of
// half the length are, and values are pairs of the numbers of two neighbouring positions. Each result has one
// accumulator, which sums in the order of pairs.

// pairs512 generates the kernels of the tier avx512bf16.
func pairs512() {
	makePairOrder()
	pairTile512("pairTile512", 2)
	pairTile512("pairHalf512", 1)
	pairRows512("pairRows512", 2)
	pairRows512("pairRows512x16", 1)
	roundPairs512()
	form := pairForm()
	scoresWide512(form)
	turnWide512(form)
	pairValuesWide512("x64", 4, 6)
	pairValuesWide512("x32", 2, mostWideLines)
	pairValuesWide512("x16", 1, mostWideLines)
	softmaxPairs512()
}

// evex emits an instruction of map 0F38 on three registers of 512 bits, which Go's assembler does not know, behind a
// comment with its text in the syntax of the GNU assembler: the destination is last, and the source before it is the
// one in the prefix. prefix tells instructions of the same opcode apart, as in VEX.
func evex(text string, prefix, opcode byte, rm, source, dst reg.VecPhysical) {
	number := func(vec reg.VecPhysical) byte {
		for i := range z {
			if z[i].AsX() == vec.AsX() {
				return byte(i)
			}
		}
		panic("not a register of AVX-512")
	}
	low, middle, high := number(rm), number(source), number(dst)
	Comment(fmt.Sprintf(text, low, middle, high))
	// Register numbers are stored inverted in the prefix, bit 3 and bit 4 apart.
	first := ^(high>>3&1<<7|low>>4&1<<6|low>>3&1<<5|high>>4&1<<4)&0xf0 | 2
	second := ^middle&15<<3 | 4 | prefix
	third := 0x40 | ^middle>>4&1<<3
	code := uint32(0x62) | uint32(first)<<8 | uint32(second)<<16 | uint32(third)<<24
	Instruction(&ir.Instruction{Opcode: "LONG", Operands: []Op{U32(code)}})
	Instruction(&ir.Instruction{Opcode: "WORD", Operands: []Op{U16(uint16(opcode) | uint16(0xc0|high&7<<3|low&7)<<8)}})
}

// multiplyPairs adds to each float32 of sum the products of the bfloat16 in its place in a and b: first the higher
// ones, then the lower ones.
func multiplyPairs(a, b, sum reg.VecPhysical) {
	evex("vdpbf16ps %%zmm%d, %%zmm%d, %%zmm%d", vexF3, 0x52, a, b, sum)
}

// roundPairs rounds the sixteen numbers of two vectors each to bfloat16, those of low first.
func roundPairs(low, high, dst reg.VecPhysical) {
	evex("vcvtne2ps2bf16 %%zmm%d, %%zmm%d, %%zmm%d", vexF2, 0x72, low, high, dst)
}

// roundNumbers rounds the numbers of a vector to bfloat16 in half a register.
func roundNumbers(from, dst reg.VecPhysical) {
	zeroth := z[0] // no source: its number in the prefix is 0
	evex("vcvtneps2bf16 %%zmm%[1]d, %%ymm%[3]d", vexF3, 0x72, from, zeroth, dst)
}

// pairTile512 multiplies lines with a tile of 16*vecs columns. A call takes all lines, so that what a call costs is
// paid once for hundreds of them.
func pairTile512(name string, vecs int) {
	const most = 12
	function(name, "(n int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, more int)",
		fmt.Sprintf("computes y = x w for n lines x of k pairs and %d columns of a tile w [k][32] of pairs, or adds that to y", 16*vecs),
		"unless more is 0. k is at least 1. Strides are in bytes.")
	count, out, row, weights, ldy := param("n"), param("y"), param("x"), param("w"), param("ldy")
	more, _ := Param("more").Resolve() // where it lies: no register is left
	input := rows{ld: GP64(), ld3: GP64()}
	for range most / 4 {
		input.base = append(input.base, GP64())
	}
	Load(Param("ldx"), input.ld)
	lineGroups(name, 1, most, count, func(m int) {
		id := label(name, m)
		acc := func(line, part int) reg.VecPhysical { return z[vecs*line+part] }
		used := rows{base: input.base[:(m+3)/4], ld: input.ld, ld3: input.ld3}
		used.set(row)
		zero512(z[:vecs*m]...)
		CMPQ(more.Addr, I8(0))
		JEQ(LabelRef(id + "_begin"))
		sum := GP64()
		MOVQ(out, sum)
		alongRows(m, sum, ldy, func(line int, at reg.GPVirtual) {
			for part := range vecs {
				VMOVUPS(Mem{Base: at, Disp: 64 * part}, acc(line, part))
			}
		})
		Label(id + "_begin")
		at, left := GP64(), GP64()
		MOVQ(weights, at)
		Load(Param("k"), left)
		steps(id, left, 4, func(i int) {
			for part := range vecs {
				VMOVDQU64(Mem{Base: at, Disp: 128*i + 64*part}, z[30+part])
			}
			for line := range m {
				pair := z[26+line%4]
				VPBROADCASTD(used.at(line, 4*i), pair)
				for part := range vecs {
					multiplyPairs(pair, z[30+part], acc(line, part))
				}
			}
		}, func(c int) {
			used.advance(4 * c)
			ADDQ(I32(128*c), at)
		})
		for line := range m {
			for part := range vecs {
				VMOVUPS(acc(line, part), Mem{Base: out, Disp: 64 * part})
			}
			ADDQ(ldy, out)
			ADDQ(input.ld, row)
		}
	})
}

// pairOrder are, for two vectors of 16 columns one after the other, the indices of the numbers of two rows of words in
// the order of pairs.
var pairOrder Mem

func makePairOrder() {
	pairOrder = GLOBL("pairOrder512", 8|16)
	for column := range 32 {
		DATA(4*column, U32(column|(32+column)<<16))
	}
}

// pairColumns makes pairs of the numbers of two rows in memory, or of one and zeros where there is no second, in a
// vector for each 16 columns of 32, or in one. order are registers with the indices, and the rows pass through two
// others.
func pairColumns(first Mem, second func(to reg.VecPhysical), order, pairs []reg.VecPhysical, through [2]reg.VecPhysical) {
	loadColumns(len(pairs), first, through[0])
	second(through[1])
	for part, vec := range pairs {
		VMOVDQA64(order[part], vec)
		VPERMI2W(through[1], through[0], vec)
	}
}

// loadOrder loads the indices.
func loadOrder(to []reg.VecPhysical) {
	for i, vec := range to {
		VMOVDQU64(pairOrder.Offset(64*i), vec)
	}
}

// loadColumns loads words of 16 or 32 columns.
func loadColumns(vecs int, from Mem, to reg.VecPhysical) {
	if vecs == 1 {
		VMOVUPS(from, to.AsY())
	} else {
		VMOVDQU64(from, to)
	}
}

// pairRows512 makes pairs of the numbers of two rows.
func pairRows512(name string, vecs int) {
	function(name, "(dst *float32, src *uint16, ld int, rows int)",
		fmt.Sprintf("stores %d columns of rows rows (at least 1), ld bytes apart, as pairs of two rows dst [rows/2][32]; the last", 16*vecs),
		"of an odd number of rows is paired with zeros.")
	dst, at, ld, rows := param("dst"), param("src"), param("ld"), param("rows")
	order, pairs := z[0:2], z[2:2+vecs]
	loadOrder(order)
	next := func(second func(reg.VecPhysical)) {
		pairColumns(Mem{Base: at}, second, order, pairs, [2]reg.VecPhysical{z[4], z[5]})
		for part, vec := range pairs {
			VMOVDQU64(vec, Mem{Base: dst, Disp: 64 * part})
		}
	}
	SUBQ(I8(2), rows)
	JLT(LabelRef("pairs_last"))
	Label("pairs_next")
	next(func(to reg.VecPhysical) { loadColumns(vecs, Mem{Base: at, Index: ld, Scale: 1}, to) })
	LEAQ(Mem{Base: at, Index: ld, Scale: 2}, at)
	ADDQ(I32(128), dst)
	SUBQ(I8(2), rows)
	JGE(LabelRef("pairs_next"))
	Label("pairs_last")
	ADDQ(I8(2), rows)
	JZ(LabelRef("pairs_end"))
	next(func(to reg.VecPhysical) { zero512(to) })
	Label("pairs_end")
	VZEROUPPER()
	RET()
}

// roundPairs512 rounds queries.
func roundPairs512() {
	function("roundPairs512", "(dst *float32, src *float32, n int)",
		"rounds n numbers, a multiple of 8, to bfloat16, n/2 pairs.")
	dst, src, left := param("dst"), param("src"), param("n")
	SUBQ(I8(32), left)
	JLT(LabelRef("round_few"))
	Label("round_next")
	VMOVUPS(Mem{Base: src}, z[1])
	VMOVUPS(Mem{Base: src, Disp: 64}, z[2])
	roundPairs(z[1], z[2], z[1])
	VMOVDQU64(z[1], Mem{Base: dst})
	ADDQ(I32(128), src)
	ADDQ(I32(64), dst)
	SUBQ(I8(32), left)
	JGE(LabelRef("round_next"))
	Label("round_few")
	ADDQ(I8(32), left)
	JZ(LabelRef("round_end"))
	Label("round_eight")
	VMOVUPS(Mem{Base: src}, z[1].AsY())
	roundNumbers(z[1], z[1])
	VMOVDQU(z[1].AsX(), Mem{Base: dst})
	ADDQ(I32(32), src)
	ADDQ(I32(16), dst)
	SUBQ(I8(8), left)
	JNZ(LabelRef("round_eight"))
	Label("round_end")
	VZEROUPPER()
	RET()
}

// pairForm is the form of keys of bfloat16, whose numbers are pairs.
func pairForm() wideForm {
	return wideForm{
		name: "BF16", typ: "uint16", numbers: 4, bytes: 16, parts: 1,
		begin: func(int, sixteenRows, reg.GPVirtual) {},
		load:  func(group int, keys sixteenRows) { loadWords(group, keys, false) },
		widen: func(group, number int) reg.VecPhysical { return z[8*group+number] }, pairs: true,
	}
}

// pairValuesWide512 adds weighted pairs of rows of values as they are cached: 16*vecs of their columns.
func pairValuesWide512(suffix string, vecs, most int) {
	name, columns := "valuesWideBF16"+suffix, suffix[1:]
	function(name, "(rows int, y *float32, ldy int, x *float32, ldx int, k int, v *uint16, ldv int, next *byte, stride int)",
		fmt.Sprintf("adds x v to y for %s columns of 2*k rows v and rows lines (1..%d) x of k pairs of weights. It", columns, most),
		"prefetches from next on, stride bytes each step. Strides are in bytes.")
	dispatch(most, func(m int) {
		id := label(name, m)
		acc := func(line, part int) reg.VecPhysical { return z[vecs*line+part] }
		rows := func(body func(vec reg.VecPhysical, at Mem)) {
			alongRows(m, param("y"), param("ldy"), func(line int, at reg.GPVirtual) {
				for part := range vecs {
					body(acc(line, part), Mem{Base: at, Disp: 64 * part})
				}
			})
		}
		rows(func(vec reg.VecPhysical, at Mem) { VMOVUPS(at, vec) })
		next, at, ldv, left := newOncePrefetcher(), param("v"), param("ldv"), param("k")
		weights := newRows(m)
		Load(Param("ldx"), weights.ld)
		weights.set(param("x"))
		order, free := z[28:30], [2]reg.VecPhysical{z[30], z[31]}
		loadOrder(order)
		Label(id + "_step")
		next.lines(max(1, vecs))
		for part := 0; part < vecs; part += 2 {
			first, second := Mem{Base: at, Disp: 32 * part}, Mem{Base: at, Index: ldv, Scale: 1, Disp: 32 * part}
			pairs := z[24+part : 24+min(part+2, vecs)]
			pairColumns(first, func(to reg.VecPhysical) { loadColumns(len(pairs), second, to) }, order, pairs, free)
		}
		for line := range m {
			weight := free[line%2]
			VPBROADCASTD(weights.at(line, 0), weight)
			for part := range vecs {
				multiplyPairs(weight, z[24+part], acc(line, part))
			}
		}
		LEAQ(Mem{Base: at, Index: ldv, Scale: 2}, at)
		weights.advance(4)
		DECQ(left)
		JNZ(LabelRef(id + "_step"))
		rows(func(vec reg.VecPhysical, at Mem) { VMOVUPS(vec, at) })
		VZEROUPPER()
		RET()
	})
}

// softmaxPairs512 is softmaxLines512 with weights rounded to bfloat16, whose sums are those of the numbers before.
func softmaxPairs512() {
	makeSoftmaxConstants()
	signature := "(lines int, s *float32, lds int, n int, scale float32, state *float32, back int"
	function("softmaxPairs512", signature+")",
		"is softmaxLines256, but stores the weights as n/2 pairs of bfloat16, back bytes before the scores of a line.")
	softmax512Passes(weightPairs, false)
	function("softmaxPairsAsking512", signature+", next *byte, stride int)", "is softmaxPairs512. "+softmaxAsks)
	softmax512Passes(weightPairs, true)
}
