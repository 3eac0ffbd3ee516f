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
	TEXT("q6cRows512", NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, groups int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32, start *int32)")
	Doc("q6cRows512 computes rows (1..8) rows of one q6c tile into y [rows][32]. x holds 16*groups of each row's",
		"activations; tail is nil or [rows][16] more of them, padded with 128. start is what the sums of each row begin",
		"at. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("q6c", m)
		sets := 1
		if m <= 2 { // so that the instruction's latency does not show
			sets = 2
		}
		acc := func(set, r, half int) reg.VecPhysical { return z[(set*m+r)*2+half] }
		low, six, c80 := z[16], z[17], z[18]
		nibbles, high := [2][2]reg.VecPhysical{{z[19], z[20]}, {z[21], z[22]}}, [2]reg.VecPhysical{z[23], z[24]}
		shifted, acts := z[27], z[28:32]
		input := newRows(m)
		row, count, tail, weights, start := GP64(), GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("groups"), count)
		Load(Param("tail"), tail)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		broadcast32(0x0f0f0f0f, low)
		broadcast32(0x3f3f3f3f, six)
		broadcast32(0x80808080, c80)
		fetchOutput(m, 2)
		Load(Param("start"), start)
		for row := range m {
			VPBROADCASTD(Mem{Base: start, Disp: 4 * row}, acc(0, row, 0))
			VMOVDQA64(acc(0, row, 0), acc(0, row, 1))
		}
		zero512(z[2*m : 2*m*sets]...)
		Label(id + "_start")
		input.set(row)
		steps(id, count, 1, func(int) {
			for half := range 2 {
				for plane, to := range []reg.VecPhysical{nibbles[0][half], nibbles[1][half], high[half]} {
					VMOVDQU64(Mem{Base: weights, Disp: sixPlane*plane + 64*half}, to)
				}
			}
			fetch.step(sixGroup / 64)
			for turn, quad := range sixQuads {
				code := [2]reg.VecPhysical{z[25], z[26]}
				for half := range 2 {
					nibble, bits := nibbles[quad/2][half], high[half]
					if quad%2 == 1 {
						VPSRLD(I8(4), nibble, shifted)
						nibble = shifted
					}
					switch quad {
					case 0, 1:
						VPSLLD(I8(4-2*quad), bits, code[half])
					case 2:
						code[half] = bits
					case 3:
						VPSRLD(I8(2), bits, code[half])
					}
					VPTERNLOGD(U8(0xd8), low, nibble, code[half]) // the nibble where low is 1
					VPANDD(six, code[half], code[half])
				}
				for row := range m {
					act := acts[(turn*m+row)%len(acts)]
					VPXORD_BCST(input.at(row, 4*quad), c80, act)
					VPDPBUSD(act, code[0], acc(turn%sets, row, 0))
					VPDPBUSD(act, code[1], acc(turn%sets, row, 1))
				}
			}
		}, func(c int) {
			input.advance(sixRows * c)
			ADDQ(I32(sixGroup*c), weights)
		})
		again(id, tail, row, count, input, sixRows)
		for vec := range 2 * m * (sets - 1) {
			VPADDD(z[2*m+vec], z[vec], z[vec])
		}
		// y = float32(acc) * (xscale*scale)
		s0, s1, tmp, xs := z[28], z[29], z[30], z[31]
		VMOVUPS(Mem{Base: weights}, s0)
		VMOVUPS(Mem{Base: weights, Disp: 64}, s1)
		eachScaledRow(m, func(row int, output reg.GPVirtual, scale Mem) {
			VBROADCASTSS(scale, xs)
			for half, scales := range []reg.VecPhysical{s0, s1} {
				dst := acc(0, row, half)
				VCVTDQ2PS(dst, dst)
				VMULPS(scales, xs, tmp)
				VMULPS(tmp, dst, dst)
				VMOVUPS(dst, Mem{Base: output, Disp: 64 * half})
			}
		})
		VZEROUPPER()
		RET()
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
	TEXT(name, NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, groups int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32, start *int32)")
	Doc(name+" computes rows (1..2) rows of one q6c tile into y [rows][32]. x holds 16*groups of each row's",
		"activations; tail is nil or [rows][16] more of them, padded with 128. start is what the sums of each row begin",
		"at. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("q6c", m)
		acc := func(r, part int) reg.VecPhysical { return y[4*r+part] }
		nibbles, top, code, tmp := [2]reg.VecPhysical{y[8], y[9]}, y[10], y[11], y[12]
		act, pairs := y[13], y[14:16]
		input := newRows(m)
		row, count, tail, weights, start := GP64(), GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), row)
		Load(Param("ldx"), input.ld)
		Load(Param("groups"), count)
		Load(Param("tail"), tail)
		Load(Param("w"), weights)
		fetch := newFetcher(weights)
		Load(Param("start"), start)
		for row := range m {
			VPBROADCASTD(Mem{Base: start, Disp: 4 * row}, acc(row, 0))
			for part := 1; part < 4; part++ {
				VMOVDQA(acc(row, 0), acc(row, part))
			}
		}
		Label(id + "_start")
		input.set(row)
		// activations are the same for all parts: those of a single row stay in registers that two rows need for sums
		activation := func(row, quad int) reg.VecPhysical {
			if m == 1 {
				return y[4+quad]
			}
			VPBROADCASTD(input.at(row, 4*quad), act)
			VPXOR(c80, act, act)
			return act
		}
		steps(id, count, 1, func(int) {
			if m == 1 {
				for quad := range 4 {
					VPBROADCASTD(input.at(0, 4*quad), y[4+quad])
					VPXOR(c80, y[4+quad], y[4+quad])
				}
			}
			fetch.step(sixGroup / 64)
			for part := range 4 {
				for plane, to := range []reg.VecPhysical{nibbles[0], nibbles[1], top} {
					VMOVDQU(Mem{Base: weights, Disp: sixPlane*plane + 32*part}, to)
				}
				for quad := range 4 {
					nibble, bits := nibbles[quad/2], tmp
					if quad%2 == 1 {
						VPSRLW(I8(4), nibble, code)
						nibble = code
					}
					switch quad {
					case 0, 1:
						VPSLLW(I8(4-2*quad), top, bits)
					case 2:
						bits = top
					case 3:
						VPSRLW(I8(2), top, bits)
					}
					VPAND(low, nibble, code)
					VPAND(high, bits, tmp)
					VPOR(tmp, code, code)
					for row := range m {
						signed := activation(row, quad)
						switch {
						case vnni:
							dotVEX(signed, code, acc(row, part))
						case quad%2 == 0:
							VPMADDUBSW(signed, code, pairs[row])
						default:
							VPMADDUBSW(signed, code, tmp)
							VPADDW(tmp, pairs[row], pairs[row])
							VPMADDWD(one, pairs[row], pairs[row])
							VPADDD(pairs[row], acc(row, part), acc(row, part))
						}
					}
				}
			}
		}, func(c int) {
			input.advance(sixRows * c)
			ADDQ(I32(sixGroup*c), weights)
		})
		again(id, tail, row, count, input, sixRows)
		// y = float32(acc) * (xscale*scale)
		eachScaledRow(m, func(row int, out reg.GPVirtual, scale Mem) {
			VBROADCASTSS(scale, act)
			for part := range 4 {
				dst := acc(row, part)
				VCVTDQ2PS(dst, dst)
				VMULPS(Mem{Base: weights, Disp: 32 * part}, act, tmp)
				VMULPS(tmp, dst, dst)
				VMOVUPS(dst, Mem{Base: out, Disp: 32 * part})
			}
		})
		VZEROUPPER()
		RET()
	})
}
