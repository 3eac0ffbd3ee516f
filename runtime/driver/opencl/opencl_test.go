package opencl_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/opencl"
	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

func TestMain(m *testing.M) {
	require.Deps()
	m.Run()
}

// device is a device to test, with the option that names its library.
type device struct {
	driver.Device
	options map[string]string
}

// with returns the device's options and others.
func (d *device) with(more map[string]string) map[string]string {
	out := maps.Clone(d.options)
	maps.Copy(out, more)
	return out
}

// devices are those of this machine, and Intel's for CPUs where make deps-opencl fetched it; without any the test is
// skipped.
func devices(t *testing.T) (list []device) {
	found, err := opencl.New().Devices(t.Context())
	for _, one := range found {
		list = append(list, device{one, map[string]string{}})
	}
	file := filepath.Join(os.Getenv(native.EnvDir), clapi.IntelFolder, clapi.IntelLibrary)
	if _, missing := os.Stat(file); missing == nil && runtime.GOOS == "linux" {
		intel := driver.Device{Select: "0.0", Description: "Intel's for CPUs"}
		list = append(list, device{intel, map[string]string{"library": file}})
	} else if require.Listed("opencl-intel") {
		t.Errorf("%s lists opencl-intel, and %q is not there: make deps-opencl fetches it", require.Env, file)
	}
	if len(list) == 0 {
		require.Skip(t, opencl.Name, err)
	}
	return list
}

// suite is the conformance suite for a device with more options.
func suite(t *testing.T, device device, options map[string]string, sampled bool) {
	t.Helper()
	drivertest.Run(t, drivertest.Factory{
		Driver:      opencl.New(),
		Compiler:    compile.New(),
		Config:      driver.Config{Select: device.Select, Options: device.with(options)},
		Activations: 1e-6,
		Sampled:     sampled,
	})
}

// Every device passes the suite of all drivers without options.
func TestConformance(t *testing.T) {
	for _, device := range devices(t) {
		t.Run(device.Description, func(t *testing.T) {
			// Intel's keeps no compiled kernels. Of a part of the slow tests it tries that part's shapes, like the
			// others: in one part alone the shapes of the other parts would never be tried.
			if len(device.options) > 0 && os.Getenv(require.Part) == "" {
				require.Slow(t)
			}
			suite(t, device, nil, false)
		})
	}
}

// Every variant of every family that a device can execute passes the suite: once with the first variant of each family,
// once with the second, and so on. A variant that the device lacks is left out.
func TestVariants(t *testing.T) {
	require.Slow(t)
	for _, device := range devices(t) {
		for i := range 4 {
			options := variantOptions(t, &device, i)
			if len(options) == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", device.Description, i), func(t *testing.T) {
				suite(t, device, options, true)
			})
		}
	}
}

// variantOptions choose the i-th variant of every family that the device can execute.
func variantOptions(t *testing.T, device *device, i int) map[string]string {
	t.Helper()
	options := map[string]string{}
	for _, family := range kernel.Names() {
		variants := kernel.Variants(family)
		if i >= len(variants) {
			continue
		}
		option := map[string]string{opencl.VariantOption + family: variants[i].Name}
		config := driver.Config{Select: device.Select, Options: device.with(option)}
		p, err := opencl.New().Open(t.Context(), config)
		if err != nil {
			t.Logf("%s: %v", device.Description, err)
			continue
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		maps.Copy(options, option)
	}
	return options
}

// A device passes the suite where it copies operands to memory of its own, tells by a flag what is done, or uses some
// of its compute units.
func TestOptions(t *testing.T) {
	require.Slow(t)
	for _, device := range devices(t) {
		for _, option := range [][2]string{{"memory", "own"}, {"completion", "flag"}, {"units", "1"}} {
			t.Run(device.Description+"/"+option[0], func(t *testing.T) {
				suite(t, device, map[string]string{option[0]: option[1]}, true)
			})
		}
	}
}

// A part of a device has as many compute units and cores as it asks for. The whole device says which part leaves a core
// to the host.
func TestUnits(t *testing.T) {
	for _, device := range devices(t) {
		t.Run(device.Description, func(t *testing.T) {
			survey := func(options map[string]string) (*driver.Survey, error) {
				config := driver.Config{Select: device.Select, Options: device.with(options)}
				return opencl.New().(driver.Surveyor).Survey(t.Context(), config)
			}
			whole, err := survey(nil)
			if err != nil {
				t.Fatal(err)
			}
			units := int(whole.Told["compute_units"])

			for _, wrong := range []string{"0", "-1", "01", "two", fmt.Sprint(units + 1)} {
				_, err := survey(map[string]string{"units": wrong})
				if err == nil || !strings.Contains(err.Error(), `"units"`) {
					t.Errorf("units %q: got %v", wrong, err)
				}
			}

			if len(whole.Parts) == 0 {
				t.Skipf("%d compute units for the cores %v, or it cannot be divided", units, whole.Cores)
			}
			part, err := survey(whole.Parts[0].Options)
			if err != nil {
				t.Fatal(err)
			}
			if got := int(part.Told["compute_units"]); got != units-1 || len(part.Cores) != units-1 {
				t.Errorf("%d units on the cores %v, want %d", got, part.Cores, units-1)
			}
			if slices.Contains(part.Cores, whole.Cores[0]) {
				t.Errorf("the part has the cores %v, and %d is to be the host's", part.Cores, whole.Cores[0])
			}
			if len(part.Parts) > 0 {
				t.Errorf("the part has the parts %v, want none", part.Parts)
			}
		})
	}
}
