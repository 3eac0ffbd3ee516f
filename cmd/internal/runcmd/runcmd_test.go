package runcmd

import (
	"math"
	"testing"
)

// A single NaN anywhere fails --check: nothing that follows may hide it.
func TestCompareKeepsNaN(t *testing.T) {
	want := []float32{1, 2, 3, 4}
	for i := range want {
		got := []float32{1, 2, 3, 4}
		got[i] = float32(math.NaN())
		if r := compare(got, want, 2); r.MaxAbsDiff <= checkAbs || !math.IsNaN(r.MaxAbsDiff) || !math.IsNaN(r.MeanKL) {
			t.Errorf("NaN at %d: difference %v, KL %v, want NaN", i, r.MaxAbsDiff, r.MeanKL)
		}
	}
	if r := compare(want, want, 2); r.MaxAbsDiff != 0 || r.MeanKL != 0 || r.SameTop != 1 {
		t.Errorf("equal logits: %+v", r)
	}
}
