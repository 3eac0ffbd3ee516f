// Package number knows how floating-point numbers are stored: float32 (f32), and the 16-bit formats IEEE binary16 (f16)
// and bfloat16 (bf16), of which Go has neither.
package number

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/planir/op"
)

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

// FloatToHalf rounds to the nearest IEEE binary16 number, halves to even. Values from 65520 on become infinite.
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
		return sign | uint16(math.RoundToEven(float64(v)))
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-112<<23)>>13)
}

// brainToFloat converts a bfloat16 number exactly.
func brainToFloat(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// FloatToBrain rounds a finite value to the nearest bfloat16 number, halves to even. It may become infinite.
func FloatToBrain(f float32) uint16 {
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// Decode converts len(dst) stored little-endian numbers of type t (f32, f16, bf16) exactly.
func Decode(dst []float32, src []byte, t op.Type) {
	switch t {
	case op.F32:
		src = src[:4*len(dst)]
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case op.BF16:
		src = src[:2*len(dst)]
		for i := range dst {
			dst[i] = brainToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case op.F16:
		src = src[:2*len(dst)]
		for i := range dst {
			dst[i] = HalfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		panic("BUG: decode numbers of type " + string(t))
	}
}

// Floats returns what little-endian float32 numbers stand for.
func Floats(raw []byte) []float32 {
	out := make([]float32, len(raw)/4)
	Decode(out, raw, op.F32)
	return out
}

// Bytes returns values as little-endian float32 numbers.
func Bytes(values []float32) []byte {
	raw := make([]byte, 0, 4*len(values))
	for _, value := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(value))
	}
	return raw
}
