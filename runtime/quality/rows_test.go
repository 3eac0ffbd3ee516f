package quality

import (
	"slices"
	"testing"
)

// However many rows there are, what is kept is bounded and spread evenly over all of them, from the first.
func TestRowSamples(t *testing.T) {
	for _, n := range []int{0, 1, maxRowSamples - 1, maxRowSamples, maxRowSamples + 1, 3 * maxRowSamples, 9*maxRowSamples + 5} {
		s, every := &rowSamples{every: 1}, 1
		for i := range n {
			s.add(float64(i))
		}
		for (n+every-1)/every > maxRowSamples {
			every *= 2
		}
		var want []float64
		for i := 0; i < n; i += every {
			want = append(want, float64(i))
		}
		if !slices.Equal(s.kept, want) {
			t.Errorf("of %d rows %d are kept, want every %d", n, len(s.kept), every)
		}
	}
}
