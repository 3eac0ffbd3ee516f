package all

import (
	"os"
	"strings"
	"testing"
)

// Names are unique, the host is always there, and every driver has a row in docs/drivers.md.
func TestDrivers(t *testing.T) {
	page, err := os.ReadFile("../../../docs/drivers.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, d := range Drivers() {
		if seen[d.Name()] {
			t.Errorf("driver %q is listed twice", d.Name())
		}
		seen[d.Name()] = true
		if !strings.Contains(string(page), "\n| `"+d.Name()+"` |") {
			t.Errorf("driver %q has no row in docs/drivers.md", d.Name())
		}
	}
	if !seen["host"] {
		t.Error("no host driver")
	}
}
