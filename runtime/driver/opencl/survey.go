package opencl

import (
	"context"
	"strconv"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/runtime/driver"
)

// Survey asks the device, and opens it to find out what memory it shares.
func (opencl) Survey(ctx context.Context, config driver.Config) (*driver.Survey, error) {
	from, settings, err := find(ctx, config)
	if err != nil {
		return nil, err
	}
	kind, err := from.Number(clapi.DeviceType)
	if err != nil {
		return nil, err
	}
	out := &driver.Survey{Kind: "gpu", Name: from.Name, Told: map[string]float64{}}
	switch {
	case kind&clapi.TypeCPU != 0:
		out.Kind = "cpu"
		if err := describeCores(from, settings.units, out); err != nil {
			return nil, err
		}
	case kind&clapi.TypeAccelerator != 0:
		out.Kind = "npu"
	}
	for _, asked := range []struct {
		name  string
		param clapi.Param
		to    *int64
	}{
		{"", clapi.DeviceMaxAlloc, &out.MaxBytes},
		{"", clapi.DeviceGlobalMemory, &out.MemoryBytes},
		{"compute_units", clapi.DeviceComputeUnits, nil},
		{"group_items", clapi.DeviceMaxWorkGroup, nil},
		{"clock_mhz", clapi.DeviceMaxClock, nil},
		{"local_memory_bytes", clapi.DeviceLocalMemory, nil},
	} {
		value, err := from.Number(asked.param)
		switch {
		case err != nil:
			return nil, err
		case asked.to != nil:
			*asked.to = int64(min(value, 1<<53))
		case value > 0:
			out.Told[asked.name] = float64(value)
		}
	}
	// Devices before OpenCL 2.1 do not know the number.
	if groups, err := from.Number(clapi.DeviceMaxSubGroups); err == nil && groups > 0 {
		out.Told["sub_groups"] = float64(groups)
	}
	device, err := share(from.Device)
	if err != nil {
		return nil, err
	}
	if device.imports { // the host sees what a kernel writes
		out.Completions = map[string]map[string]string{"flag": {optCompletion: "flag"}}
	}
	for name, is := range map[string]bool{"zero_copy_import": device.imports, "zero_copy_own": device.allocates} {
		out.Told[name] = 0
		if is {
			out.Told[name] = 1
		}
	}
	return out, nil
}

// describeCores says which cores a device made of them occupies. One that can be divided leaves a core to the host.
func describeCores(from *found, units int, out *driver.Survey) error {
	var err error
	if out.Cores, err = coresOf(from, units); err != nil || units > 0 {
		return err
	}
	total, err := from.Number(clapi.DeviceComputeUnits)
	if err != nil {
		return err
	}
	// Devices before OpenCL 1.2 do not know the number.
	most, err := from.Number(clapi.DeviceMaxSubDevices)
	if err == nil && most > 1 && total > 1 && int(total) <= len(out.Cores) {
		left := strconv.FormatUint(total-1, 10)
		out.Parts = []driver.Part{{Name: optUnits + "-" + left, Options: map[string]string{optUnits: left}}}
	}
	return nil
}
