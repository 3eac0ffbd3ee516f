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
	set, missing := kernel.ByName("amx")
	options := map[string]string{"kernels": "amx"}

	processor, err := host.New().Open(t.Context(), driver.Config{Select: selectors(t)[0], Options: options})

	if missing != nil {
		if err == nil || !strings.Contains(err.Error(), missing.Error()) {
			t.Fatalf("got %v, want the reason %q", err, missing)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := processor.(driver.Bounded).Bounds().Kernels; got != set.Name {
		t.Errorf("got a processor with kernels %s, want %s", got, set.Name)
	}
	if err := processor.Close(); err != nil {
		t.Fatal(err)
	}
}
