package bundle

import (
	"strings"
	"testing"
)

// The target of a simulation names nothing that a device could answer to.
func TestSimulatedTarget(t *testing.T) {
	for _, test := range []struct {
		target Target
		ok     bool
	}{
		{Target{SoC: []string{"simulated:s"}}, true},
		{Target{SoC: []string{"s"}, OS: "android", Arch: "arm64"}, true},
		{Target{SoC: []string{"simulated:s"}, OS: "android"}, false},
		{Target{SoC: []string{"simulated:s"}, Arch: "arm64"}, false},
		{Target{SoC: []string{"s", "simulated:s"}}, false},
	} {
		manifest := Manifest{Product: "p", KeyringGeneration: 1, Target: test.target, Entrypoint: "plan",
			ChunkBytes: minChunk,
			Blobs:      []Blob{{Name: "plan", Role: RolePlan, Type: "text/plain", Bytes: 1, Align: minAlign}}}
		err := manifest.check()
		if (err == nil) != test.ok || err != nil && !strings.Contains(err.Error(), "is a simulation") {
			t.Errorf("%+v: %v, want ok %v", test.target, err, test.ok)
		}
	}
}
