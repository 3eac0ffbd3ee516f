package gguf

import (
	"encoding/binary"

	"github.com/hetc/hetc/internal/number"
)

// The block formats of ggml, named as it names them: Q4_0 are 4-bit values with a scale for each block of 32, Q4_1 have
// a minimum too. Blocks of Q4_K, Q5_K and Q6_K have 256 values in groups whose scales are quantised again.
//
// Products are rounded to float32 before they are added to anything (float32(a*b) + c), so that every machine gives the
// reference's bits.

// half reads an IEEE 754 half; exact.
func half(b []byte) float32 { return number.HalfToFloat(binary.LittleEndian.Uint16(b)) }

// decodeQ4_0: half scale, then 32 unsigned nibbles around 8; the low ones are values 0..15.
func decodeQ4_0(dst []float32, b []byte) {
	scale, qs, dst := half(b), b[2:18], dst[:32]
	for i, packed := range qs {
		dst[i] = scale * float32(int(packed&15)-8)
		dst[i+16] = scale * float32(int(packed>>4)-8)
	}
}

// decodeQ4_1: half scale, half minimum, nibbles as in Q4_0.
func decodeQ4_1(dst []float32, b []byte) {
	scale, minimum, qs, dst := half(b), half(b[2:]), b[4:20], dst[:32]
	for i, packed := range qs {
		dst[i] = float32(scale*float32(packed&15)) + minimum
		dst[i+16] = float32(scale*float32(packed>>4)) + minimum
	}
}

// decodeQ5_0: half scale, the fifth bits of 32 values around 16, their nibbles.
func decodeQ5_0(dst []float32, b []byte) {
	scale, high, qs, dst := half(b), binary.LittleEndian.Uint32(b[2:]), b[6:22], dst[:32]
	for i, packed := range qs {
		dst[i] = scale * float32(int(uint32(packed&15)|high>>i&1<<4)-16)
		dst[i+16] = scale * float32(int(uint32(packed>>4)|high>>(i+16)&1<<4)-16)
	}
}

// decodeQ5_1: half scale, half minimum, fifth bits, nibbles.
func decodeQ5_1(dst []float32, b []byte) {
	scale, minimum, high, qs, dst := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:]), b[8:24], dst[:32]
	for i, packed := range qs {
		dst[i] = float32(scale*float32(uint32(packed&15)|high>>i&1<<4)) + minimum
		dst[i+16] = float32(scale*float32(uint32(packed>>4)|high>>(i+16)&1<<4)) + minimum
	}
}

// decodeQ8_0: half scale, then 32 signed bytes.
func decodeQ8_0(dst []float32, b []byte) {
	scale, qs, dst := half(b), b[2:34], dst[:32]
	for i, packed := range qs {
		dst[i] = float32(int8(packed)) * scale
	}
}

// scaleMin unpacks the 6-bit scale and minimum of group j < 8 from the 12 bytes of a Q4_K or Q5_K
// block: four of each in the low bits of bytes 0..7, the other four in nibbles of bytes 8..11 with
// their two high bits in the tops of bytes 0..7.
func scaleMin(s []byte, j int) (scale, min float32) {
	if j < 4 {
		return float32(s[j] & 63), float32(s[j+4] & 63)
	}
	return float32(s[j+4]&15 | s[j-4]>>6<<4), float32(s[j+4]>>4 | s[j]>>6<<4)
}

// decodeQ4K: half scale of the scales, half scale of the minima, 8 groups of 32 values with packed
// scales, nibbles of two groups in 32 bytes.
func decodeQ4K(dst []float32, b []byte) {
	scale, dmin, scales, qs := half(b), half(b[2:]), b[4:16], b[16:144]
	for pair := range 4 {
		s0, m0 := scaleMin(scales, 2*pair)
		s1, m1 := scaleMin(scales, 2*pair+1)
		d0, min0, d1, min1 := scale*s0, dmin*m0, scale*s1, dmin*m1
		out := dst[64*pair : 64*pair+64]
		for i, packed := range qs[32*pair : 32*pair+32] {
			out[i] = float32(d0*float32(packed&15)) - min0
			out[i+32] = float32(d1*float32(packed>>4)) - min1
		}
	}
}

// decodeQ5K: as Q4_K, with the fifth bits of group g in bit g of 32 bytes before the nibbles.
func decodeQ5K(dst []float32, b []byte) {
	scale, dmin, scales, high, qs := half(b), half(b[2:]), b[4:16], b[16:48], b[48:176]
	for pair := range 4 {
		s0, m0 := scaleMin(scales, 2*pair)
		s1, m1 := scaleMin(scales, 2*pair+1)
		d0, min0, d1, min1 := scale*s0, dmin*m0, scale*s1, dmin*m1
		out := dst[64*pair : 64*pair+64]
		for i, packed := range qs[32*pair : 32*pair+32] {
			fifth := high[i] >> (2 * pair)
			out[i] = float32(d0*float32(packed&15|fifth&1<<4)) - min0
			out[i+32] = float32(d1*float32(packed>>4|fifth>>1&1<<4)) - min1
		}
	}
}

// decodeQ6K: low nibbles, two high bits of each value, 16 signed scales, half scale; values around
// 32. Each half of the block keeps value i of four groups of 32 in two nibble bytes and one byte of high bits.
func decodeQ6K(dst []float32, b []byte) {
	scale := half(b[208:])
	for half := range 2 {
		low, high := b[64*half:64*half+64], b[128+32*half:160+32*half]
		scales, out := b[192+8*half:200+8*half], dst[128*half:128*half+128]
		// One scale for each 16 values.
		var ds [8]float32
		for j := range ds {
			ds[j] = scale * float32(int8(scales[j]))
		}
		for i := range 32 {
			top, group := high[i], i/16
			out[i] = ds[group] * float32(int(low[i]&15|top&3<<4)-32)
			out[i+32] = ds[2+group] * float32(int(low[i+32]&15|top>>2&3<<4)-32)
			out[i+64] = ds[4+group] * float32(int(low[i]>>4|top>>4&3<<4)-32)
			out[i+96] = ds[6+group] * float32(int(low[i+32]>>4|top>>6<<4)-32)
		}
	}
}
