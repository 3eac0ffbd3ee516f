package affinity

import (
	"fmt"
	"slices"
	"testing"
)

// Every selection is what its text selects, and nothing else selects anything.
func TestSelect(t *testing.T) {
	for _, s := range Selections() {
		cores, err := Select(s.Select)
		if err != nil || !slices.Equal(cores, s.Cores) {
			t.Errorf("%q selects %v (%v), want %v", s.Select, cores, err, s.Cores)
		}
	}
	cores := Cores()
	last := cores[len(cores)-1]
	for _, bad := range []string{"", "-", "x", "+0", "00", "-1", " 0", fmt.Sprint(last + 1), fmt.Sprintf("%d-%d", last, last), fmt.Sprintf("%d-%d", last, cores[0]), "0-", "-0", "0-1-2"} {
		if got, err := Select(bad); err == nil {
			t.Errorf("%q selects %v", bad, got)
		}
	}
}
