//go:build !hetc_static

package all

import (
	"reflect"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// What is counted for drivers that a SoC file does not describe is what drivers tell of their memory.
func TestMemoryThatDriversTell(t *testing.T) {
	require.Deps()
	for _, d := range Drivers() {
		devices, err := d.Devices(t.Context())
		if err != nil || len(devices) == 0 {
			if d.Name() == "host" || d.Name() == "ort" {
				require.Skip(t, d.Name(), err)
			}
			continue
		}
		p, err := d.Open(t.Context(), driver.Config{Select: devices[0].Select})
		if err != nil {
			require.Skip(t, d.Name(), err)
		}
		c := p.Capabilities()
		told := socs.Processor{Set: c.Offered()}
		untold := told
		untold.Memory = nil
		alike := d.Name() == "host" || d.Name() == "ort" // the defaults are theirs
		if got, want := untold.KernelMemory(), told.KernelMemory(); c.Memory == nil || alike && !reflect.DeepEqual(got, want) {
			t.Errorf("driver %q tells %+v, and the default is %+v", d.Name(), want, got)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
