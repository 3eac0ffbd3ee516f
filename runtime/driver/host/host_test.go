package host_test

import (
	"fmt"
	"strconv"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

var packing = drivertest.Packing{
	Bytes: pack.Bytes,
	Pack: func(dst []byte, spec op.WeightSpec, values []float32) error {
		src, err := pack.Floats(values, spec.K, spec.N)
		if err != nil {
			return err
		}
		return pack.Pack(dst, spec, src)
	},
	Unpack:  pack.Unpack,
	Columns: pack.Columns,
}

// selectors are one core, and all cores if there are several.
func selectors(t testing.TB) []string {
	devices, err := host.New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) == 1 {
		return []string{devices[0].Select}
	}
	return []string{devices[0].Select, devices[len(devices)-1].Select}
}

// The whole suite on one core with every kernel set, and on all cores with the best.
func TestConformance(t *testing.T) {
	for i, sel := range selectors(t) {
		for _, set := range kernel.Sets() {
			if i > 0 && set.Name != kernel.Best().Name {
				continue
			}
			t.Run(fmt.Sprintf("%s %s", sel, set.Name), func(t *testing.T) {
				options := map[string]string{"kernels": set.Name}
				f := drivertest.Factory{Driver: host.New(), Compiler: compile.New(), Packing: packing, Config: driver.Config{Select: sel, Options: options}}
				if set.Name == "reference" {
					f.Tolerance = 1.3e-7 // one rounding of the result
				}
				devices, err := f.Driver.Devices(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 && len(devices) > 1 {
					other := devices[1].Cores[0]
					f.Others = []driver.Config{{Select: strconv.Itoa(other), Options: options}}
				}
				drivertest.Run(t, f)
			})
		}
	}
}
