package host

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/number"
)

// halve rounds numbers of common magnitude by their bits, others by conversion. Both have the results of conversion.
func TestHalve(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1 << 20 {
		value := math.Float32frombits(rng.Uint32())
		if rng.IntN(2) == 0 { // near the borders of what is normal
			value = float32(math.Ldexp(rng.Float64()*2-1, rng.IntN(36)-18))
		}
		half := number.FloatToHalf(value)
		want := number.HalfToFloat(half)
		wantFinite := half&0x7c00 != 0x7c00

		var got [1]float32
		finite := halve(got[:], []float32{value})

		same := math.Float32bits(got[0]) == math.Float32bits(want)
		if finite != wantFinite || wantFinite && !same {
			t.Fatalf("%v (%#x): got %v, %v, want %v, %v", value, math.Float32bits(value), got[0], finite, want, wantFinite)
		}
	}
}

// Numbers are rounded to 16-bit multiples of a step, ties to even, and saturate. NaN and infinities are refused.
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
	if !onGrid(tiny)(got, []float32{1e38, -1}) {
		t.Errorf("finite numbers are refused with a step of %v", tiny)
	}
	if largest := 32767 * tiny; got[0] != largest || got[1] != -largest {
		t.Errorf("a step of %v: got %v, want %v and %v", tiny, got[:2], largest, -largest)
	}
}
