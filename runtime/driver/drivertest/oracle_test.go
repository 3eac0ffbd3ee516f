package drivertest

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
)

// The oracle's own 16-bit numbers are those of planir/pack.
func TestHalf(t *testing.T) {
	var b [2]byte
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(b[:], uint16(i))
		if i>>10&31 == 31 {
			continue // the oracle never sees NaN or infinities
		}
		v := decode(b[:], op.F16)
		if want := float64(number.HalfToFloat(uint16(i))); v != want {
			t.Fatalf("f16 %04x: got %v, want %v", i, v, want)
		}
		if encode(b[:], op.F16, v); binary.LittleEndian.Uint16(b[:]) != uint16(i) {
			t.Fatalf("f16 %04x does not survive", i)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100000 {
		v := float32(rng.NormFloat64()) * float32(rng.ExpFloat64()) / float32(int(1)<<rng.IntN(24))
		if encode(b[:], op.F16, float64(v)); binary.LittleEndian.Uint16(b[:]) != number.FloatToHalf(v) {
			t.Fatalf("f16 of %v: got %x, want %04x", v, b, number.FloatToHalf(v))
		}
	}
}
