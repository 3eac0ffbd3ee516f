package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of attention over an 8-bit cache, which multiply codes with VPDPBUSD. Four codes take the place of a
// float32: a key is words of four neighbouring codes, and values become words of the codes of four neighbouring
// positions. Codes of keys are unsigned as they are cached, and those of queries signed, so the sums of scores start at
// -128 times a query's sum. Weights have 16 bits, of which VPDPBUSD multiplies the high and the low ones apart. Integers
// are exact, so results do not depend on how positions are divided among calls for a block.

// codes512 generates the kernels of codes.
func codes512() {
	codeTile512("codeTile512", 2)
	codeTile512("codeHalf512", 1)
	quads := newQuads()
	quadRows512("quadRows512", 2, quads)
	quadRows512("quadRows512x16", 1, quads)
	weighCodes512("weighCodes512", 2)
	weighCodes512("weighHalf512", 1)
	form := codeForm()
	scoresWide512(form)
	form.begin = func(int, sixteenRows, reg.GPVirtual) {} // tiles hold no scales
	turnWide512(form)
	valuesWideCodes512(quads)
	softmaxCodes512()
}

// codeForm is the form of keys of codes, whose numbers are words of four.
func codeForm() wideForm {
	return wideForm{
		name: "Codes", typ: "uint8", numbers: 4, bytes: 16, behind: 4, parts: 1,
		begin: func(group int, keys sixteenRows, dim reg.GPVirtual) { scalesQ8x16(group, keys, dim, 4) },
		load:  func(group int, keys sixteenRows) { loadWords(group, keys, false) },
		widen: func(group, number int) reg.VecPhysical { return z[8*group+number] }, codes: true,
	}
}

// startCodes starts the sums of scores, groups vectors of each of m lines.
func startCodes(m, groups int, starts reg.GPVirtual, acc func(line, group int) reg.VecPhysical) {
	for line := range m {
		VPBROADCASTD(Mem{Base: starts, Disp: 8 * line}, acc(line, 0))
		for group := 1; group < groups; group++ {
			VMOVDQA64(acc(line, 0), acc(line, group))
		}
	}
}

// scaleCodes makes scores of sums: they are multiplied by the product of the scales of a query and of a key.
func scaleCodes(
	m int, starts reg.GPVirtual, scales []reg.VecPhysical, factor reg.VecPhysical, acc func(line, group int) reg.VecPhysical,
) {
	for line := range m {
		for group, scale := range scales {
			sum := acc(line, group)
			VCVTDQ2PS(sum, sum)
			VMULPS_BCST(Mem{Base: starts, Disp: 8*line + 4}, scale, factor)
			VMULPS(factor, sum, sum)
		}
	}
}

// codeTile512 multiplies queries with a tile of 16*vecs keys.
func codeTile512(name string, vecs int) {
	const most = 12
	function(name, "(n int, s *float32, lds int, q *float32, ldq int, k int, w *float32, starts *int32, scales *float32)",
		fmt.Sprintf("computes scores s of n lines q of k words of four signed codes and %d columns of a tile w [k][32] of", 16*vecs),
		"words of four unsigned ones, whose scales are scales. starts [n][2] is the integer that the sum of a line begins",
		"with, and its scale. k is at least 1. Strides are in bytes.")
	count, out, row, weights, lds, starts := param("n"), param("s"), param("q"), param("w"), param("lds"), param("starts")
	input := rows{ld: GP64(), ld3: GP64()}
	for range most / 4 {
		input.base = append(input.base, GP64())
	}
	Load(Param("ldq"), input.ld)
	lineGroups(name, 1, most, count, func(m int) {
		id := label(name, m)
		acc := func(line, part int) reg.VecPhysical { return z[vecs*line+part] }
		used := rows{base: input.base[:(m+3)/4], ld: input.ld, ld3: input.ld3}
		used.set(row)
		startCodes(m, vecs, starts, acc)
		at, left := GP64(), GP64()
		MOVQ(weights, at)
		Load(Param("k"), left)
		steps(id, left, 4, func(i int) {
			for part := range vecs {
				VMOVDQU64(Mem{Base: at, Disp: 128*i + 64*part}, z[30+part])
			}
			for line := range m {
				word := z[26+line%4]
				VPBROADCASTD(used.at(line, 4*i), word)
				for part := range vecs {
					VPDPBUSD(word, z[30+part], acc(line, part))
				}
			}
		}, func(c int) {
			used.advance(4 * c)
			ADDQ(I32(128*c), at)
		})
		Load(Param("scales"), at)
		for part := range vecs {
			VMOVUPS(Mem{Base: at, Disp: 64 * part}, z[30+part])
		}
		scaleCodes(m, starts, z[30:30+vecs], z[29], acc)
		for line := range m {
			for part := range vecs {
				VMOVUPS(acc(line, part), Mem{Base: out, Disp: 64 * part})
			}
			ADDQ(lds, out)
			ADDQ(input.ld, row)
		}
		ADDQ(I8(8*m), starts)
	})
}

// quads makes words of the codes of four rows.
type quads struct {
	words, bytes       Mem
	order, turn, signs reg.VecPhysical // constants
}

// newQuads writes the constants: which words of four rows of sixteen codes stand in a lane, and in what order the bytes
// of a lane become words.
func newQuads() quads {
	out := quads{words: GLOBL("quadWords512", 8|16), order: z[31], turn: z[30], signs: z[29]}
	for i := range 16 {
		DATA(4*i, U32(i%4*4+i/4))
	}
	out.bytes = GLOBL("quadBytes512", 8|16)
	for i := range 16 {
		column := i % 4
		DATA(4*i, U32(column|(4+column)<<8|(8+column)<<16|(12+column)<<24))
	}
	return out
}

func (q quads) begin() {
	VMOVDQU64(q.words, q.order)
	VMOVDQU64(q.bytes, q.turn)
	broadcast32(0x80808080, q.signs)
}

// load makes signed words of sixteen columns of four rows.
func (q quads) load(row func(i int) Mem, to reg.VecPhysical) {
	VMOVDQU64(row(0), to.AsX())
	VINSERTI32X4(U8(1), row(1), to.AsY(), to.AsY())
	VINSERTI32X4(U8(2), row(2), to, to)
	VINSERTI32X4(U8(3), row(3), to, to)
	VPERMD(to, q.order, to)
	VPSHUFB(q.turn, to, to)
	VPXORD(q.signs, to, to)
}

// quadRows512 makes words of the codes of four rows each.
func quadRows512(name string, vecs int, quads quads) {
	function(name, "(dst *float32, src *uint8, ld int, groups int)",
		fmt.Sprintf("stores %d columns of 4*groups rows (at least 4) of codes, ld bytes apart, as signed words of the codes", 16*vecs),
		"of four rows dst [groups][32].")
	dst, left, input := param("dst"), param("groups"), newRows(4)
	Load(Param("src"), input.base[0])
	Load(Param("ld"), input.ld)
	input.set(input.base[0])
	quads.begin()
	Label("quads_next")
	for part := range vecs {
		quads.load(func(i int) Mem { return input.at(i, 16*part) }, z[part])
		VMOVDQU64(z[part], Mem{Base: dst, Disp: 64 * part})
	}
	LEAQ(Mem{Base: input.base[0], Index: input.ld, Scale: 4}, input.base[0])
	ADDQ(I32(128), dst)
	DECQ(left)
	JNZ(LabelRef("quads_next"))
	VZEROUPPER()
	RET()
}

// joinCodes makes a float32 of the sums over high and low bytes of weights, in the register of the low ones.
func joinCodes(high, low reg.VecPhysical) {
	VPSLLD(U8(8), high, high)
	VPADDD(high, low, low)
	VCVTDQ2PS(low, low)
}

// weighCodes512 adds weighted values of many lines.
func weighCodes512(name string, vecs int) {
	most := 12 / vecs
	function(name, "(n int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, factors *float32)",
		fmt.Sprintf("adds x w times a factor to y for n lines x of k words of four weights and %d columns of a tile", 16*vecs),
		"w [k][32] of words of four signed codes. Weights are four high bytes and then four low ones; k is at least 1.",
		"The factor of a line is at factors [n][4]. Strides are in bytes.")
	count, out, row, weights, ldy, factors := param("n"), param("y"), param("x"), param("w"), param("ldy"), param("factors")
	input := rows{ld: GP64(), ld3: GP64()}
	for range (most + 3) / 4 {
		input.base = append(input.base, GP64())
	}
	Load(Param("ldx"), input.ld)
	lineGroups(name, 1, most, count, func(m int) {
		id := label(name, m)
		high := func(line, part int) reg.VecPhysical { return z[2*(vecs*line+part)] }
		low := func(line, part int) reg.VecPhysical { return z[2*(vecs*line+part)+1] }
		used := rows{base: input.base[:(m+3)/4], ld: input.ld, ld3: input.ld3}
		used.set(row)
		zero512(z[:2*vecs*m]...)
		at, left := GP64(), GP64()
		MOVQ(weights, at)
		Load(Param("k"), left)
		steps(id, left, 4, func(i int) {
			for part := range vecs {
				VMOVDQU64(Mem{Base: at, Disp: 128*i + 64*part}, z[30+part])
			}
			for line := range m {
				weigh(used.at(line, 8*i), z[26+line%2*2:28+line%2*2], z[30:30+vecs], func(part int) [2]reg.VecPhysical {
					return [2]reg.VecPhysical{high(line, part), low(line, part)}
				})
			}
		}, func(c int) {
			used.advance(8 * c)
			ADDQ(I32(128*c), at)
		})
		for line := range m {
			VBROADCASTSS(Mem{Base: factors, Disp: 16 * line}, z[30])
			for part := range vecs {
				y, sum := Mem{Base: out, Disp: 64 * part}, low(line, part)
				joinCodes(high(line, part), sum)
				VFMADD213PS(y, z[30], sum)
				VMOVUPS(sum, y)
			}
			ADDQ(ldy, out)
			ADDQ(input.ld, row)
		}
		ADDQ(I32(16*m), factors)
	})
}

// weigh adds the products of a line's four weights, at from, with values.
func weigh(from Mem, through, values []reg.VecPhysical, sums func(part int) [2]reg.VecPhysical) {
	for i, weight := range through {
		VPBROADCASTD(from.Offset(4*i), weight)
	}
	for part, value := range values {
		for i, weight := range through {
			VPDPBUSD(value, weight, sums(part)[i])
		}
	}
}

// valuesWideCodes512 adds weighted values of few lines as they are cached, sixteen of their columns.
func valuesWideCodes512(quads quads) {
	const most = mostWideLines
	function("valuesWideCodes",
		"(rows int, y *float32, ldy int, x *float32, ldx int, k int, v *uint8, ldv int, factors *float32, next *byte, stride int)",
		fmt.Sprintf("is weighHalf512 for rows lines (1..%d) and 4*k rows v of codes. It prefetches from next on, stride", most),
		"bytes each step.")
	dispatch(most, func(m int) {
		id := label("valuesWideCodes", m)
		high := func(line int) reg.VecPhysical { return z[2*line] }
		low := func(line int) reg.VecPhysical { return z[2*line+1] }
		next, left, weights, values := newOncePrefetcher(), param("k"), newRows(m), newRows(4)
		Load(Param("ldx"), weights.ld)
		weights.set(param("x"))
		Load(Param("v"), values.base[0])
		Load(Param("ldv"), values.ld)
		values.set(values.base[0])
		quads.begin()
		zero512(z[:2*m]...)
		Label(id + "_step")
		next.lines(1)
		quads.load(func(i int) Mem { return values.at(i, 0) }, z[16])
		for line := range m {
			weigh(weights.at(line, 0), z[17+line%4*2:19+line%4*2], z[16:17], func(int) [2]reg.VecPhysical {
				return [2]reg.VecPhysical{high(line), low(line)}
			})
		}
		LEAQ(Mem{Base: values.base[0], Index: values.ld, Scale: 4}, values.base[0])
		weights.advance(8)
		DECQ(left)
		JNZ(LabelRef(id + "_step"))
		factors := param("factors")
		alongRows(m, param("y"), param("ldy"), func(line int, at reg.GPVirtual) {
			joinCodes(high(line), low(line))
			VBROADCASTSS(Mem{Base: factors, Disp: 16 * line}, z[17])
			VFMADD213PS(Mem{Base: at}, z[17], low(line))
			VMOVUPS(low(line), Mem{Base: at})
		})
		VZEROUPPER()
		RET()
	})
}

// softmaxCodes is what a softmax keeps that makes weights of 16 bits: weights times the scales of values times a factor
// of the line.
type softmaxCodes struct {
	one, least Mem
	factors    reg.Register // mask of the numbers of state in four lines
	order      reg.VecPhysical
	scales     reg.GPVirtual
}

// leastGain is the power of two of the largest weight of a block below which its weights are not raised to 16 bits.
const leastGain = -20

// softmaxCodes512 is softmaxLines512 with weights of 16 bits.
func softmaxCodes512() {
	makeSoftmaxConstants()
	makeCodeConstants()
	signature := "(lines int, s *float32, lds int, n int, scale float32, state *float32, back int, scales *float32"
	function("softmaxCodes512", signature+")",
		"is softmaxLines256, but stores, back bytes before the scores of a line, integers of 16 bits: weights relative to the",
		"largest in the block times scales [n] times state[line][3], as n/4 times four high bytes and four low ones.",
		"state[line][3] becomes what they are to be multiplied by.")
	softmax512Passes(weightCodes, false)
	function("softmaxCodesAsking512", signature+", next *byte, stride int)", "is softmaxCodes512. "+softmaxAsks)
	softmax512Passes(weightCodes, true)
}

var softmaxOne, softmaxLeast, softmaxOrder Mem

func makeCodeConstants() {
	softmaxOne, softmaxLeast = f32("exp2One512", 1), f32("exp2Least512", leastGain)
	softmaxOrder = GLOBL("highLow512", 8|16)
	for lane := range 2 {
		for i := range 2 { // of four words
			DATA(16*lane+8*i, U32(0x07050301+i*0x08080808))
			DATA(16*lane+8*i+4, U32(0x06040200+i*0x08080808))
		}
	}
}

// begin loads what does not change.
func (c *softmaxCodes) begin() {
	*c = softmaxCodes{one: softmaxOne, least: softmaxLeast, factors: reg.K5, order: z[20], scales: GP64()}
	bits := GP32()
	MOVL(U32(0x8888), bits)
	KMOVW(bits, c.factors)
	VMOVDQU64(softmaxOrder, c.order.AsY())
}

// gain is where the largest score of a block stands, relative to the largest so far, and then two to its power.
var gain = z[7]

// below computes it, of the largest scores of both.
func (c *softmaxCodes) below(top, most reg.VecPhysical) {
	VSUBPS(top, most, gain)
	VMAXPS_BCST(c.least, gain, gain)
}

// grow divides a line's factor by what its weights in a block are less than one.
func (s *softmax512) grow(factor reg.VecPhysical) {
	s.power(gain, z[0], z[1], z[4])
	VDIVPS(gain, factor, factor)
}

// start loads the factors of lines, and returns what moves on with their scores.
func (c *softmaxCodes) start(stat reg.GPVirtual, lines int) []reg.GPVirtual {
	Load(Param("scales"), c.scales)
	for line := range lines {
		VBROADCASTSS(Mem{Base: stat, Disp: 16*line + 12}, z[16+line])
	}
	return []reg.GPVirtual{c.scales}
}

// store makes integers of the weights of a line.
func (c *softmaxCodes) store(line int, weights, free reg.VecPhysical, to Mem) {
	VMULPS(z[16+line], weights, free)
	VMULPS(Mem{Base: c.scales}, free, free)
	VCVTPS2DQ(free, free)
	VPMOVDW(free, free.AsY())
	VPSHUFB(c.order.AsY(), free.AsY(), free.AsY())
	VMOVUPS(free.AsY(), to)
}
