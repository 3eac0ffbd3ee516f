package opencl_test

import (
	"fmt"
	"maps"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/opencl"
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

// devices are those of this machine; without any the test is skipped.
func devices(t *testing.T) []driver.Device {
	list, err := opencl.New().Devices(t.Context())
	if err != nil {
		require.Skip(t, opencl.Name, err)
	}
	return list
}

// suite is the conformance suite for a device with options.
func suite(t *testing.T, device driver.Device, options map[string]string, sampled bool) {
	drivertest.Run(t, drivertest.Factory{Driver: opencl.New(), Compiler: compile.New(), Activations: 1e-6,
		Config: driver.Config{Select: device.Select, Options: options}, Sampled: sampled})
}

// The whole suite on each device, with what it gets without options.
func TestConformance(t *testing.T) {
	for _, device := range devices(t) {
		t.Run(device.Description, func(t *testing.T) { suite(t, device, nil, false) })
	}
}

// Every variant of every family that a device can execute: the suite with the first of each, with the second, and so
// on. What the device lacks is refused by name.
func TestVariants(t *testing.T) {
	for _, device := range devices(t) {
		for i := range 4 {
			options := map[string]string{}
			for _, family := range kernel.Names() {
				variants := kernel.Variants(family)
				if i >= len(variants) {
					continue
				}
				option := map[string]string{opencl.VariantOption + family: variants[i].Name}
				p, err := opencl.New().Open(t.Context(), driver.Config{Select: device.Select, Options: option})
				if err != nil {
					t.Logf("%s: %v", device.Description, err)
					continue
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				maps.Copy(options, option)
			}
			if len(options) > 0 {
				t.Run(fmt.Sprintf("%s/%d", device.Description, i), func(t *testing.T) { suite(t, device, options, true) })
			}
		}
	}
}

// A device with memory of its own copies operands, and one that shares memory may tell by a flag what is done.
func TestOptions(t *testing.T) {
	for _, device := range devices(t) {
		for _, option := range [][2]string{{"memory", "own"}, {"completion", "flag"}} {
			t.Run(device.Description+"/"+option[0], func(t *testing.T) {
				suite(t, device, map[string]string{option[0]: option[1]}, true)
			})
		}
	}
}
