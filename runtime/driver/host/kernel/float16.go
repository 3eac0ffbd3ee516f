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
