package bench

import (
	"testing"
)

// A peak that the system did not tell is no divisor, and no zero.
func TestPeakRatio(t *testing.T) {
	for _, c := range []struct {
		peak, other int64
		want        string
	}{{0, 0, "-"}, {33681408, 0, "-"}, {0, 33681408, "-"}, {3 << 20, 2 << 20, "1.50"}} {
		if got := peakRatio(c.peak, c.other); got != c.want {
			t.Errorf("%d and %d: got %s, want %s", c.peak, c.other, got, c.want)
		}
	}
}
