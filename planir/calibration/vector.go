package calibration

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
)

// Vector is written as the base64 of its little-endian float32 values: files hold them by the thousand.
type Vector []float32

// MarshalText implements encoding.TextMarshaler.
func (v Vector) MarshalText() ([]byte, error) {
	out := make([]byte, 0, 4*len(v))
	for _, value := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(value))
	}
	return base64.StdEncoding.AppendEncode(nil, out), nil
}

// UnmarshalText accepts the written form only.
func (v *Vector) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("vector: %w", err)
	}
	if len(raw) == 0 || len(raw)%4 != 0 {
		return fmt.Errorf("vector of %d bytes, want a multiple of 4 above 0", len(raw))
	}
	out := make(Vector, len(raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	*v = out
	// Line breaks are ignored by the decoder; one value has one spelling.
	if again, _ := out.MarshalText(); string(again) != string(text) {
		return fmt.Errorf("vector is not in canonical base64")
	}
	return nil
}

// Coarse is written as the base64 of its values as little-endian bfloat16, which is what it holds after Round.
type Coarse []float32

// Round rounds every value to the nearest bfloat16, ties to even.
func (v Coarse) Round() {
	for i, value := range v {
		bits := math.Float32bits(value)
		bits += 0x7fff + bits>>16&1 // half a unit of the last kept bit, less where that bit is even
		v[i] = math.Float32frombits(bits &^ 0xffff)
	}
}

// MarshalText implements encoding.TextMarshaler.
func (v Coarse) MarshalText() ([]byte, error) {
	out := make([]byte, 0, 2*len(v))
	for _, value := range v {
		out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(value)>>16))
	}
	return base64.StdEncoding.AppendEncode(nil, out), nil
}

// UnmarshalText accepts the written form only.
func (v *Coarse) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("vector: %w", err)
	}
	if len(raw) == 0 || len(raw)%2 != 0 {
		return fmt.Errorf("vector of %d bytes, want a multiple of 2 above 0", len(raw))
	}
	out := make(Coarse, len(raw)/2)
	for i := range out {
		out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
	}
	*v = out
	if again, _ := out.MarshalText(); string(again) != string(text) {
		return fmt.Errorf("vector is not in canonical base64")
	}
	return nil
}
