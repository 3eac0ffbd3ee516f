package kernel

import (
	"math"

	"github.com/hetc/hetc/internal/number"
)

func fromF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = number.HalfToFloat(src[i])
	}
}

func fromBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(src[i]) << 16)
	}
}

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
