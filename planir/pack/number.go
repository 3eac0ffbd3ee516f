package pack

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/planir/op"
)

func finite(x float32) bool { return math.Float32bits(x)>>23&0xff != 0xff }

func abs(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// HalfToFloat converts an IEEE binary16 number exactly.
func HalfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	if h&0x7c00 == 0x7c00 {
		return math.Float32frombits(sign | 0xff<<23 | uint32(h&0x3ff)<<13)
	}
	// The exponent bias differs by 112; the product is exact and also right for subnormal h.
	v := math.Float32frombits(uint32(h&0x7fff)<<13) * (1 << 112)
	return math.Float32frombits(math.Float32bits(v) | sign)
}

// FloatToHalf rounds to the nearest IEEE binary16 number, halves to even; what is too large
// becomes infinite.
func FloatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &^= 1 << 31
	switch {
	case b > 0xff<<23:
		return sign | 0x7e00 // NaN
	case b >= 143<<23: // 65536, beyond every half; 65520..65535 round up to it below
		return sign | 0x7c00
	case b < 113<<23: // below the smallest normal half: an integer number of 2^-24
		v := math.Float32frombits(b) * (1 << 24)
		return sign | uint16(roundEven(v))
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-112<<23)>>13)
}

func floatToBrain(f float32) uint16 {
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// decode converts len(dst) stored little-endian numbers of type t (f32, f16, bf16).
func decode(dst []float32, b []byte, t op.Type) {
	switch t {
	case op.F32:
		b = b[:4*len(dst)]
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case op.BF16:
		b = b[:2*len(dst)]
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
		}
	case op.F16:
		b = b[:2*len(dst)]
		for i := range dst {
			dst[i] = HalfToFloat(binary.LittleEndian.Uint16(b[2*i:]))
		}
	default:
		panic("BUG: pack: decode of type " + string(t))
	}
}
