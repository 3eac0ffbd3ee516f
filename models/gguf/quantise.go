package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/hetc/hetc/planir/op"
)

// encode appends the blocks of row, whose length is a multiple of the type's block. The rounding is
// that of the format's reference. Values without an image in the type (NaN and infinities; in f16
// and in the scales of blocks also values that overflow) are an error.
func encode(dst []byte, row []float32, t op.Type) ([]byte, error) {
	for i, v := range row {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("column %d: %v has no image in type %s", i, v, t)
		}
	}
	switch t {
	case op.F32:
		for _, v := range row {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		}
	case op.BF16:
		for _, v := range row {
			b := math.Float32bits(v)
			h := uint16((b + 0x7fff + b>>16&1) >> 16)
			if h&0x7fff == 0x7f80 {
				return nil, fmt.Errorf("%v overflows type %s", v, t)
			}
			dst = binary.LittleEndian.AppendUint16(dst, h)
		}
	case op.F16:
		for i, v := range row {
			h, ok := toHalf(v)
			if !ok {
				return nil, fmt.Errorf("column %d: %v overflows type %s", i, v, t)
			}
			dst = binary.LittleEndian.AppendUint16(dst, h)
		}
	case q8_0, q4_0:
		block := appendQ8_0
		if t == q4_0 {
			block = appendQ4_0
		}
		for ; len(row) >= 32; row = row[32:] {
			var ok bool
			if dst, ok = block(dst, row[:32]); !ok {
				return nil, fmt.Errorf("the scale of a block overflows type %s", t)
			}
		}
	default:
		panic("BUG: no encoder for type " + t)
	}
	return dst, nil
}

// inverse is 1/d, 0 where that does not exist or where the half of d is 0 anyway.
func inverse(d float32) float32 {
	if id := 1 / d; d != 0 && !math.IsInf(float64(id), 0) {
		return id
	}
	return 0
}

// appendQ8_0: the scale is the largest magnitude over 127, values are rounded half away from zero.
func appendQ8_0(dst []byte, x []float32) ([]byte, bool) {
	most := float32(0)
	for _, v := range x {
		most = max(most, float32(math.Abs(float64(v))))
	}
	d := most / 127
	id := inverse(d)
	h, ok := toHalf(d)
	dst = binary.LittleEndian.AppendUint16(dst, h)
	for _, v := range x {
		a := math.Abs(float64(float32(v * id)))
		q := math.Floor(a)
		q += math.Floor(2 * (a - q))
		if v < 0 {
			q = -q
		}
		dst = append(dst, byte(int8(q)))
	}
	return dst, ok
}

// appendQ4_0: the scale maps the value of largest magnitude (the first of them) to -8.
func appendQ4_0(dst []byte, x []float32) ([]byte, bool) {
	most, peak := float32(0), float32(0)
	for _, v := range x {
		if a := float32(math.Abs(float64(v))); a > most {
			most, peak = a, v
		}
	}
	d := peak / -8
	id := inverse(d)
	h, ok := toHalf(d)
	dst = binary.LittleEndian.AppendUint16(dst, h)
	nibble := func(v float32) byte { return byte(min(15, int(float32(v*id)+8.5))) }
	for i := range 16 {
		dst = append(dst, nibble(x[i])|nibble(x[i+16])<<4)
	}
	return dst, ok
}

// toHalf rounds a finite value to an IEEE 754 half, to nearest, ties to even; false when it overflows.
func toHalf(v float32) (uint16, bool) {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b >= 0x477ff000: // from 65520 on the nearest half is infinity
		return sign | 0x7c00, false
	case b < 0x38800000: // below 2^-14: a multiple of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(b))*(1<<24))), true
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13), true
}
