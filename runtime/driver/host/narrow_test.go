package host

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/number"
)

// Both roads to f16 are one function.
func TestHalve(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1 << 20 {
		v := math.Float32frombits(rng.Uint32())
		if rng.IntN(2) == 0 { // near the borders of what is normal
			v = float32(math.Ldexp(rng.Float64()*2-1, rng.IntN(36)-18))
		}
		h := number.FloatToHalf(v)
		want, ok := number.HalfToFloat(h), h&0x7c00 != 0x7c00
		var got [1]float32
		if finite := halve(got[:], []float32{v}); finite != ok || ok && math.Float32bits(got[0]) != math.Float32bits(want) {
			t.Fatalf("%v (%#x): got %v, %v, want %v, %v", v, math.Float32bits(v), got[0], finite, want, ok)
		}
	}
}

func TestOnGrid(t *testing.T) {
	in := []float32{0, 0.24, 0.25, 0.26, 0.75, -0.25, -0.26, 1e6, -1e6, 16383.5, -16383.5, 1e-45}
	want := []float32{0, 0, 0, 0.5, 1, 0, -0.5, 16383.5, -16383.5, 16383.5, -16383.5, 0}
	got := make([]float32, len(in))
	if !onGrid(0.5)(got, in) {
		t.Error("finite numbers are refused")
	}
	for i, v := range got {
		if v != want[i] {
			t.Errorf("%v became %v, want %v", in[i], v, want[i])
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if onGrid(0.5)(got, []float32{float32(bad), 1}) {
			t.Errorf("%v is accepted", bad)
		}
	}
	tiny := float32(1e-45) // quotients overflow
	if !onGrid(tiny)(got, []float32{1e38, -1}) || got[0] != op16(tiny) || got[1] != -op16(tiny) {
		t.Errorf("a step of %v: %v", tiny, got[:2])
	}
}

func op16(step float32) float32 { return 32767 * step }
