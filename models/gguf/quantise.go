package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// encode appends the blocks of a row, whose length is a multiple of the type's block. The rounding is
// that of the format's reference.
//
// Values without an image in the type are an error: NaN and infinities, and in f16 and in the scales
// of blocks also values that overflow.
func encode(dst []byte, row []float32, elementType op.Type) ([]byte, error) {
	// Refused here, so that the encoders below see finite numbers only.
	for i, value := range row {
		if math.IsNaN(float64(value)) || math.IsInf(float64(value), 0) {
			return nil, fmt.Errorf("column %d: %v has no image in type %s", i, value, elementType)
		}
	}
	switch elementType {
	case op.F32:
		for _, value := range row {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(value))
		}
	case op.BF16:
		for _, value := range row {
			image := number.FloatToBrain(value)
			if image&0x7fff == 0x7f80 {
				return nil, fmt.Errorf("%v overflows type %s", value, elementType)
			}
			dst = binary.LittleEndian.AppendUint16(dst, image)
		}
	case op.F16:
		for i, value := range row {
			image, ok := toHalf(value)
			if !ok {
				return nil, fmt.Errorf("column %d: %v overflows type %s", i, value, elementType)
			}
			dst = binary.LittleEndian.AppendUint16(dst, image)
		}
	case q8_0, q4_0:
		block := appendQ8_0
		if elementType == q4_0 {
			block = appendQ4_0
		}
		for ; len(row) >= 32; row = row[32:] {
			var ok bool
			if dst, ok = block(dst, row[:32]); !ok {
				return nil, fmt.Errorf("the scale of a block overflows type %s", elementType)
			}
		}
	default:
		panic("BUG: no encoder for type " + elementType)
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

// appendQ8_0 appends a half scale and 32 signed bytes. The scale is the largest magnitude over 127; values are rounded
// half away from zero. false means that the scale overflows a half.
func appendQ8_0(dst []byte, block []float32) ([]byte, bool) {
	most := float32(0)
	for _, value := range block {
		most = max(most, float32(math.Abs(float64(value))))
	}
	scale := most / 127
	id := inverse(scale)
	stored, ok := toHalf(scale)
	dst = binary.LittleEndian.AppendUint16(dst, stored)
	for _, value := range block {
		size := math.Abs(float64(float32(value * id)))
		// Twice the fraction is at least 1 exactly where it rounds up.
		quant := math.Floor(size)
		quant += math.Floor(2 * (size - quant))
		if value < 0 {
			quant = -quant
		}
		dst = append(dst, byte(int8(quant)))
	}
	return dst, ok
}

// appendQ4_0 appends a half scale and 16 bytes of two nibbles. The scale maps the value of largest magnitude (the first
// of them) to -8, since codes reach from -8 to 7. false means that the scale overflows a half.
func appendQ4_0(dst []byte, block []float32) ([]byte, bool) {
	most, peak := float32(0), float32(0)
	for _, value := range block {
		if size := float32(math.Abs(float64(value))); size > most {
			most, peak = size, value
		}
	}
	scale := peak / -8
	id := inverse(scale)
	stored, ok := toHalf(scale)
	dst = binary.LittleEndian.AppendUint16(dst, stored)
	// Codes count from 0, which stands for -8; adding 8.5 and cutting rounds half up.
	nibble := func(v float32) byte { return byte(min(15, int(float32(v*id)+8.5))) }
	for i := range 16 {
		dst = append(dst, nibble(block[i])|nibble(block[i+16])<<4)
	}
	return dst, ok
}

// toHalf rounds a finite value to an IEEE 754 half, to nearest, ties to even; false when it overflows.
func toHalf(v float32) (uint16, bool) {
	half := number.FloatToHalf(v)
	return half, half&0x7c00 != 0x7c00
}
