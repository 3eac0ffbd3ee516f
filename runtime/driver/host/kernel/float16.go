package kernel

import (
	"math"

	"github.com/hetc/hetc/internal/number"
)

// Conversions of 16-bit numbers, exact on the way to float32.
func fromF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = number.HalfToFloat(src[i])
	}
}

// fromBF16 widens bfloat16, which is exact: the bits are the upper half of a float32's.
func fromBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(src[i]) << 16)
	}
}

// toBF16 reports whether all results are finite, as toF16 does.
func toBF16(dst []uint16, src []float32) bool {
	dst = dst[:len(src)]
	finite := true
	for i, value := range src {
		brain := brainOf(value)
		finite = finite && brain&0x7f80 != 0x7f80
		dst[i] = brain
	}
	return finite
}

// roundBF16 rounds numbers to those of bfloat16 in place.
func roundBF16(x []float32) {
	for i, value := range x {
		x[i] = math.Float32frombits(uint32(brainOf(value)) << 16)
	}
}

// brainOf rounds to bfloat16 as the instructions of AVX512_BF16 do: of what is below the normal numbers the sign stays.
func brainOf(value float32) uint16 {
	bits := math.Float32bits(value)
	switch {
	case value != value:
		return uint16(bits>>16) | 0x40 // which keeps a NaN one
	case bits&0x7f800000 == 0:
		return uint16(bits>>16) & 0x8000
	}
	return number.FloatToBrain(value)
}

// toF16 reports whether all results are finite: their exponent bits are not all ones.
func toF16(dst []uint16, src []float32) bool {
	dst = dst[:len(src)]
	finite := true
	for i, factor := range src {
		half := number.FloatToHalf(factor)
		finite = finite && half&0x7c00 != 0x7c00
		dst[i] = half
	}
	return finite
}
