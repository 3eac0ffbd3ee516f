package measure

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
)

// OtherDrivers are the drivers besides host that work here. Each of those asked for has to.
func OtherDrivers(ctx context.Context, asked []string) (out []driver.Driver, err error) {
	var names []string
	for _, d := range all.Drivers() {
		names = append(names, d.Name())
		if d.Name() == host.Name {
			continue
		}
		if err := opens(ctx, d); err == nil {
			out = append(out, d)
		} else if slices.Contains(asked, d.Name()) {
			return nil, err
		}
	}
	for _, name := range asked {
		if name == host.Name || !slices.Contains(names, name) {
			return nil, diag.New(diag.ClassUsage, "--driver %q: want a driver besides host", name).WithHint("this program has %s", strings.Join(names, ", "))
		}
	}
	return out, nil
}

// opens reports why a driver's first device cannot be opened: a library that is there may not work on this machine.
func opens(ctx context.Context, d driver.Driver) error {
	devices, err := d.Devices(ctx)
	if err != nil || len(devices) == 0 {
		return err
	}
	if len(devices[0].Cores) == 0 {
		return diag.New(diag.ClassInput, "probe: driver %q offers no cores of this CPU: %s", d.Name(), devices[0].Description).
			WithHint("an NPU comes with the SoC file of its catalog entry (hetc socs list), not from probing; an emulator is none")
	}
	p, err := d.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		return err
	}
	return p.Close()
}

func PeakText(gops float64) string {
	if gops == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", gops)
}
