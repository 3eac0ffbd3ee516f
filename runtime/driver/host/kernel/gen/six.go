package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Weights of 6 bits are codes u in 0..63 that stand for u-32. A group is 16 rows of a tile, four quads of k, in three
// planes of 128 bytes. The bytes of a plane are in the order of a quad of q8c. The first plane has the low four bits of
// quads 0 and 1 in its low and high nibbles, the second those of quads 2 and 3, and the third the high two bits of all
// four, those of quad 0 lowest.
//
// A code is multiplied as it is by an activation a = x-128. What that is too much, 32 times the sum of a row's a, is
// the same for all columns: the caller gives it, negative, as what the sums of the row start at. So column sums are not
// needed, and no instruction takes the offset off.
const (
	sixGroup = 384 // bytes
	sixPlane = 128
	sixRows  = 16
)

// sixQuads is the order in which the quads of a group are unpacked: that whose high bits need no shift comes last.
var sixQuads = [...]int{0, 1, 3, 2}

// q6cRows512 multiplies by VPDPBUSD. A code takes two or three instructions besides the load of its planes.
func q6cRows512() {
	const most = 8
	function("q6cRows512", "(rows int, y *float32, ldy int, x *uint8, ldx int, groups int, tail *uint8, w *uint8, "+
		"ahead int, stride int, gap int, xscale *float32, start *int32)",
		"computes rows (1..8) rows of one q6c tile into y [rows][32]. x holds 16*groups of each row's",
		"activations; tail is nil or [rows][16] more of them, padded with 128. start is what the sums of each row begin",
		"at. Strides are in bytes.")
	dispatch(most, func(m int) {
		k := newSixKernel512(m)
		k.begin()
		k.loop(1, sixRows, sixGroup, func(int) { k.step() })
		k.store()
		VZEROUPPER()
		RET()
	})
}

// sixKernel512 is q6cRows512 for m rows. Few rows have two sets of sums, so that the instruction's latency does not
// show.
type sixKernel512 struct {
	rowKernel
	fetch *sideFetcher
	start reg.GPVirtual
	sets  int

	low, six, c80 reg.VecPhysical // masks: the low bits of bytes, the bits of a code, the sign bits
	nibbles       [2][2]reg.VecPhysical
	high, code    [2]reg.VecPhysical
	shifted       reg.VecPhysical
	acts          []reg.VecPhysical
}

// newSixKernel512 chooses the registers.
func newSixKernel512(m int) sixKernel512 {
	k := sixKernel512{
		sets: 1, low: z[16], six: z[17], c80: z[18],
		nibbles: [2][2]reg.VecPhysical{{z[19], z[20]}, {z[21], z[22]}},
		high:    [2]reg.VecPhysical{z[23], z[24]}, code: [2]reg.VecPhysical{z[25], z[26]},
		shifted: z[27], acts: z[28:32],
	}
	if m <= 2 {
		k.sets = 2
	}
	k.rowKernel = newRowKernel(label("q6c", m), m, "groups", &k.start)
	k.fetch = k.rowKernel.fetch.sideBySide(k.id)
	return k
}

// sum is the register of half of the columns of a row.
func (k sixKernel512) sum(set, row, half int) reg.VecPhysical { return z[(set*k.m+row)*2+half] }

// begin sets the masks, and the first set of sums to start.
func (k sixKernel512) begin() {
	broadcast32(0x0f0f0f0f, k.low)
	broadcast32(0x3f3f3f3f, k.six)
	broadcast32(0x80808080, k.c80)
	fetchOutput(k.m, 2)
	Load(Param("start"), k.start)
	for row := range k.m {
		VPBROADCASTD(Mem{Base: k.start, Disp: 4 * row}, k.sum(0, row, 0))
		VMOVDQA64(k.sum(0, row, 0), k.sum(0, row, 1))
	}
	zero512(z[2*k.m : 2*k.m*k.sets]...)
}

// step multiplies a group of weights.
func (k sixKernel512) step() {
	for half := range 2 {
		for plane, to := range []reg.VecPhysical{k.nibbles[0][half], k.nibbles[1][half], k.high[half]} {
			VMOVDQU64(Mem{Base: k.weights, Disp: sixPlane*plane + 64*half}, to)
		}
	}
	k.fetch.step(sixGroup/64, (sixGroup/64+sidePlaces-1)/sidePlaces)
	for turn, quad := range sixQuads {
		code := k.unpack(quad)
		for row := range k.m {
			act := k.acts[(turn*k.m+row)%len(k.acts)]
			VPXORD_BCST(k.input.at(row, 4*quad), k.c80, act)
			VPDPBUSD(act, code[0], k.sum(turn%k.sets, row, 0))
			VPDPBUSD(act, code[1], k.sum(turn%k.sets, row, 1))
		}
	}
}

// unpack makes the codes of a quad, and returns the registers of both halves of the columns.
func (k sixKernel512) unpack(quad int) [2]reg.VecPhysical {
	code := k.code
	for half := range 2 {
		nibble, bits := k.nibbles[quad/2][half], k.high[half]
		if quad%2 == 1 {
			VPSRLD(I8(4), nibble, k.shifted)
			nibble = k.shifted
		}
		switch quad {
		case 0, 1:
			VPSLLD(I8(4-2*quad), bits, code[half])
		case 2:
			code[half] = bits
		case 3:
			VPSRLD(I8(2), bits, code[half])
		}
		VPTERNLOGD(U8(0xd8), k.low, nibble, code[half]) // the nibble where low is 1
		VPANDD(k.six, code[half], code[half])
	}
	return code
}

// store adds the sets and stores y = float32(sum) * (xscale*scale).
func (k sixKernel512) store() {
	for vec := range 2 * k.m * (k.sets - 1) {
		VPADDD(z[2*k.m+vec], z[vec], z[vec])
	}
	scales, factor, rowScale := [2]reg.VecPhysical{z[28], z[29]}, z[30], z[31]
	for half, vec := range scales {
		VMOVUPS(Mem{Base: k.weights, Disp: 64 * half}, vec)
	}
	eachScaledRow(k.m, func(row int, output reg.GPVirtual, scale Mem) {
		VBROADCASTSS(scale, rowScale)
		for half, vec := range scales {
			sum := k.sum(0, row, half)
			VCVTDQ2PS(sum, sum)
			VMULPS(vec, rowScale, factor)
			VMULPS(factor, sum, sum)
			VMOVUPS(sum, Mem{Base: output, Disp: 64 * half})
		}
	})
}

// q6cRows256 multiplies with 256 bits. Without VNNI two products of a code and an activation, and two of those sums,
// stay in 16 bit (4*63*128 = 32256 < 2^15), so that pairs of quads are added before they become 32 bit.
func q6cRows256(name string, vnni bool) {
	const most = 2
	low, high, c80 := const32(name+"Low", 0x0f0f0f0f), const32(name+"High", 0x30303030), const32(name+"C80", 0x80808080)
	var one Mem
	if !vnni {
		one = const32(name+"One", 0x00010001)
	}
	function(name, "(rows int, y *float32, ldy int, x *uint8, ldx int, groups int, tail *uint8, w *uint8, ahead int, "+
		"stride int, gap int, xscale *float32, start *int32)",
		"computes rows (1..2) rows of one q6c tile into y [rows][32]. x holds 16*groups of each row's",
		"activations; tail is nil or [rows][16] more of them, padded with 128. start is what the sums of each row begin",
		"at. Strides are in bytes.")
	dispatch(most, func(m int) {
		k := newSixKernel256(m)
		k.vnni, k.low, k.top, k.c80, k.one = vnni, low, high, c80, one
		k.begin()
		k.loop(1, sixRows, sixGroup, func(int) { k.step() })
		k.store()
		VZEROUPPER()
		RET()
	})
}

// sixKernel256 is q6cRows256 for m rows.
type sixKernel256 struct {
	rowKernel
	fetch              *sideFetcher
	start              reg.GPVirtual
	vnni               bool
	low, top, c80, one Mem // masks: low and high bits of codes, sign bits; and ones of 16 bits

	nibbles              [2]reg.VecPhysical
	high, code, tmp, act reg.VecPhysical
	pairs                []reg.VecPhysical // sums of 16 bits of two quads of each row
}

// newSixKernel256 chooses the registers.
func newSixKernel256(m int) sixKernel256 {
	k := sixKernel256{
		nibbles: [2]reg.VecPhysical{y[8], y[9]}, high: y[10], code: y[11], tmp: y[12], act: y[13], pairs: y[14:16],
	}
	k.rowKernel = newRowKernel(label("q6c", m), m, "groups", &k.start)
	k.fetch = k.rowKernel.fetch.sideBySide(k.id)
	return k
}

// sum is the register of eight columns of a row.
func (k sixKernel256) sum(row, part int) reg.VecPhysical { return y[4*row+part] }

// begin sets the sums to start.
func (k sixKernel256) begin() {
	Load(Param("start"), k.start)
	for row := range k.m {
		VPBROADCASTD(Mem{Base: k.start, Disp: 4 * row}, k.sum(row, 0))
		for part := 1; part < 4; part++ {
			VMOVDQA(k.sum(row, 0), k.sum(row, part))
		}
	}
}

// step multiplies a group of weights. Activations are the same for all parts of the columns: those of a single row stay
// in registers that two rows need for sums.
func (k sixKernel256) step() {
	if k.m == 1 {
		for quad := range 4 {
			VPBROADCASTD(k.input.at(0, 4*quad), y[4+quad])
			VPXOR(k.c80, y[4+quad], y[4+quad])
		}
	}
	k.fetch.step(sixGroup/64, (sixGroup/64+sidePlaces-1)/sidePlaces)
	for part := range 4 {
		for plane, to := range []reg.VecPhysical{k.nibbles[0], k.nibbles[1], k.high} {
			VMOVDQU(Mem{Base: k.weights, Disp: sixPlane*plane + 32*part}, to)
		}
		for quad := range 4 {
			k.unpack(quad)
			for row := range k.m {
				k.multiply(row, part, quad)
			}
		}
	}
}

// unpack makes the codes of a quad.
func (k sixKernel256) unpack(quad int) {
	nibble, bits := k.nibbles[quad/2], k.tmp
	if quad%2 == 1 {
		VPSRLW(I8(4), nibble, k.code)
		nibble = k.code
	}
	switch quad {
	case 0, 1:
		VPSLLW(I8(4-2*quad), k.high, bits)
	case 2:
		bits = k.high
	case 3:
		VPSRLW(I8(2), k.high, bits)
	}
	VPAND(k.low, nibble, k.code)
	VPAND(k.top, bits, k.tmp)
	VPOR(k.tmp, k.code, k.code)
}

// multiply adds the products of the codes with the activations of a row.
func (k sixKernel256) multiply(row, part, quad int) {
	act := k.activation(row, quad)
	switch {
	case k.vnni:
		dotVEX(act, k.code, k.sum(row, part))
	case quad%2 == 0:
		VPMADDUBSW(act, k.code, k.pairs[row])
	default:
		VPMADDUBSW(act, k.code, k.tmp)
		VPADDW(k.tmp, k.pairs[row], k.pairs[row])
		VPMADDWD(k.one, k.pairs[row], k.pairs[row])
		VPADDD(k.pairs[row], k.sum(row, part), k.sum(row, part))
	}
}

// activation returns the register of a row's signed activations.
func (k sixKernel256) activation(row, quad int) reg.VecPhysical {
	if k.m == 1 {
		return y[4+quad]
	}
	VPBROADCASTD(k.input.at(row, 4*quad), k.act)
	VPXOR(k.c80, k.act, k.act)
	return k.act
}

// store stores y = float32(sum) * (xscale*scale).
func (k sixKernel256) store() {
	eachScaledRow(k.m, func(row int, out reg.GPVirtual, scale Mem) {
		VBROADCASTSS(scale, k.act)
		for part := range 4 {
			sum := k.sum(row, part)
			VCVTDQ2PS(sum, sum)
			VMULPS(Mem{Base: k.weights, Disp: 32 * part}, k.act, k.tmp)
			VMULPS(k.tmp, sum, sum)
			VMOVUPS(sum, Mem{Base: out, Disp: 32 * part})
		}
	})
}
