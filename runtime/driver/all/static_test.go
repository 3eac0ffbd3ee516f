//go:build hetc_static

package all

import "testing"

// A static program has the driver that needs no library, and no other.
func TestStaticDrivers(t *testing.T) {
	if d := Drivers(); len(d) != 1 || d[0].Name() != "host" {
		t.Errorf("got %d drivers", len(d))
	}
}
