package calibration

import (
	"math/rand/v2"
	"testing"
)

// As many channels exceed the scale as are asked for, whichever they are, and the largest keep their ranges.
func TestLeaveOut(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 9))
	for _, test := range []struct{ channels, exceeding, outliers int }{{64, 1, 32}, {64, 6, 32}, {200, 40, 32},
		{8, 1, 8}} {
		observed := Activation{Rows: 10, AbsMax: make(Vector, test.channels), MeanSquare: make(Vector, test.channels)}
		for i := range observed.AbsMax {
			observed.AbsMax[i] = float32(1 + rng.ExpFloat64())
		}
		changed := observed
		changed.AbsMax = append(Vector(nil), observed.AbsMax...)
		changed.LeaveOut(test.exceeding, test.outliers)
		limit, count := 127*changed.InnerScale(nil, test.outliers), 0
		for _, most := range observed.AbsMax {
			if most > limit*(1+1e-6) {
				count++
			}
		}
		// Where all channels may be outliers the scale holds everything.
		if want := test.exceeding; count != want && test.outliers < test.channels {
			t.Errorf("%+v: %d channels exceed the scale, want %d", test, count, want)
		}
	}
}
