package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// fma32 rounds once: it has the results of exact arithmetic, where sums cancel and where they fall between two numbers.
func TestFMA32(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func() float32 {
		sign, exponent, fraction := random.IntN(2), 100+random.IntN(56), random.IntN(1<<23)
		return math.Float32frombits(uint32(sign)<<31 | uint32(exponent)<<23 | uint32(fraction))
	}
	for range 200_000 {
		a, b, c := draw(), draw(), draw()
		if random.IntN(2) == 0 { // near -a*b
			c = math.Float32frombits(math.Float32bits(-a*b) + uint32(random.IntN(5)) - 2)
		}

		exact := new(big.Float).SetPrec(300).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		want, _ := exact.Add(exact, big.NewFloat(float64(c))).Float32()
		if got := fma32(a, b, c); got != want {
			t.Fatalf("fma32(%g, %g, %g) = %g, want %g", a, b, c, got, want)
		}
	}

	if got := fma32(1, float32(math.Inf(1)), 1); !math.IsInf(float64(got), 1) {
		t.Errorf("an infinity gives %g", got)
	}
	if got := fma32(float32(math.NaN()), 1, 1); got == got {
		t.Errorf("NaN gives %g", got)
	}
}
