package all

import "testing"

// Names are unique, and the host is always there.
func TestDrivers(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range Drivers() {
		if seen[d.Name()] {
			t.Errorf("driver %q is listed twice", d.Name())
		}
		seen[d.Name()] = true
	}
	if !seen["host"] {
		t.Error("no host driver")
	}
}
