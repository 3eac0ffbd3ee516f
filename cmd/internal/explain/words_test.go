package explain

import (
	"strings"
	"testing"
)

// A rate above what was probed is explained beside it.
func TestRateBesideProbe(t *testing.T) {
	for rate, want := range map[float64]string{
		5: "host:0 can read 6.9", 7: "can read",
		26: "more than the 6.9 that host:0 read from memory when probed: part of the weights stays in caches",
	} {
		if got := besideProbe(rate, 6.9, "host:0"); !strings.Contains(got, want) {
			t.Errorf("%.1f GB/s: %q, want %q", rate, got, want)
		}
	}
}
