package kernel

import "math"

// f16to32 widens one float16; every value is exact.
func f16to32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, man := uint32(h>>10)&31, uint32(h)&0x3ff
	switch exp {
	case 0: // zero or subnormal: man * 2^-24
		f := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// f32to16 rounds to the nearest float16, ties to even; too large values become infinities.
func f32to16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN stays a quiet NaN
		return sign | 0x7e00
	case b >= 0x477ff000: // 65520 and above round to infinity
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: multiples of 2^-24
		// Adding 0.5 leaves the value in units of 2^-24 in the low mantissa bits, rounded to even.
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
	}
	b += 0xfff + b>>13&1 // round to even at bit 13
	return sign | uint16(b>>13-112<<10)
}

func fromF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = f16to32(src[i])
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
	for i, f := range src {
		h := f32to16(f)
		finite = finite && h&0x7c00 != 0x7c00
		dst[i] = h
	}
	return finite
}
