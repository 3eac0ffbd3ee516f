package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// The kernels of requant make 8-bit weights with a scale per column of 4-bit weights in blocks of 32.

// Sizes of a block of a q4b32 tile.
const (
	q4ScalesAt   = 512 // its scales, behind the nibbles
	q4BlockBytes = q4ScalesAt + 64
)

// requant512 generates the kernels of requant.
func requant512() {
	q4Tops512()
	q4Requant512()
}

// q4Tops512 takes magnitudes of float16 numbers as integers, whose order is the same.
func q4Tops512() {
	function("q4Tops512", "(tops *uint16, w *byte, blocks int)",
		"writes the largest magnitude, as float16, of the scales of each of 32 columns of blocks (at least 1) of a",
		"q4b32 tile to tops.")
	tops, weights, count := param("tops"), param("w"), param("blocks")
	most, scale, magnitude := z[0], z[1], z[2]
	broadcast32(0x7fff7fff, magnitude)
	zero512(most)
	Label("block")
	VPANDD(Mem{Base: weights, Disp: q4ScalesAt}, magnitude, scale)
	VPMAXUW(scale, most, most)
	ADDQ(I32(q4BlockBytes), weights)
	DECQ(count)
	JNZ(LabelRef("block"))
	VMOVDQU64(most, Mem{Base: tops})
	VZEROUPPER()
	RET()
}

// q4Requant512 multiplies in words, of which a quad of k has two in each column. A nibble in the highest bits of a word
// is 4096 times its value, and VPMULHRSW divides products by 32768, to the nearest.
func q4Requant512() {
	function("q4Requant512", "(tile *byte, w *byte, blocks int, inverse *float32, sums *int32)",
		"writes blocks (at least 1) of a q4b32 tile to tile, [8*blocks][32][4] int8: (nibble-8)*b/8 to the nearest,",
		"where b is the scale of the block and column times inverse [32] of the column, to the nearest. The sums of",
		"columns are added to sums [32].")
	tile, weights, count := param("tile"), param("w"), param("blocks")
	inverse, sums := param("inverse"), param("sums")
	factor, sum, inverses := z[0:2], z[2:4], z[4:6]
	nibbles, even, odd := z[6], z[7:9], z[9:11]
	c88, cF000, c00FF, c0000FFFF, ones, high := z[11], z[12], z[13], z[14], z[15], z[16]
	broadcast32(0x88888888, c88)
	broadcast32(0xf000f000, cF000)
	broadcast32(0x00ff00ff, c00FF)
	broadcast32(0x0000ffff, c0000FFFF)
	broadcast32(0x01010101, ones)
	for half := range 2 {
		VMOVUPS(Mem{Base: inverse, Disp: 64 * half}, inverses[half])
		VMOVDQU64(Mem{Base: sums, Disp: 64 * half}, sum[half])
	}

	Label("block")
	for half, vec := range factor { // each word of a column has it
		VCVTPH2PS(Mem{Base: weights, Disp: q4ScalesAt + 32*half}, vec)
		VMULPS(inverses[half], vec, vec)
		VCVTPS2DQ(vec, vec)
		VPSLLD(I8(16), vec, high)
		VPANDD(c0000FFFF, vec, vec)
		VPORD(high, vec, vec)
	}
	for quad := range 8 {
		VPXORD(Mem{Base: weights, Disp: 64 * quad}, c88, nibbles) // two's complement
		VPSLLW(I8(12), nibbles, even[0])
		VPSLLW(I8(4), nibbles, odd[0])
		VPANDD(cF000, odd[0], odd[0])
		VPSLLW(I8(8), nibbles, even[1])
		VPANDD(cF000, even[1], even[1])
		VPANDD(cF000, nibbles, odd[1])
		for half := range 2 {
			VPMULHRSW(factor[half], even[half], even[half])
			VPMULHRSW(factor[half], odd[half], odd[half])
			VPSLLW(I8(8), odd[half], odd[half])
			VPTERNLOGD(U8(0xf8), c00FF, even[half], odd[half]) // odd | even & 00ff
			VMOVDQU64(odd[half], Mem{Base: tile, Disp: 128*quad + 64*half})
			VPDPBUSD(odd[half], ones, sum[half])
		}
	}
	ADDQ(I32(q4BlockBytes), weights)
	ADDQ(I32(1024), tile)
	DECQ(count)
	JNZ(LabelRef("block"))

	for half := range 2 {
		VMOVDQU64(sum[half], Mem{Base: sums, Disp: 64 * half})
	}
	VZEROUPPER()
	RET()
}
