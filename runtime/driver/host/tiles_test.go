package host_test

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// A processor whose options name the kernels of tiles has them, or is refused with what this machine lacks for them.
func TestTilesAsOption(t *testing.T) {
	processor, err := host.New().Open(t.Context(), driver.Config{Select: selectors(t)[0],
		Options: map[string]string{"kernels": "amx"}})
	if set, missing := kernel.ByName("amx"); missing != nil {
		if err == nil || !strings.Contains(err.Error(), missing.Error()) {
			t.Fatalf("got %v, want the reason %q", err, missing)
		}
		return
	} else if err != nil || processor.(driver.Bounded).Bounds().Kernels != set.Name {
		t.Fatalf("got %v, want a processor with kernels %s", err, set.Name)
	}
	if err := processor.Close(); err != nil {
		t.Fatal(err)
	}
}
