package opencl

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// wayOut is the hint where there is no device. It names the loader too, because packages of OpenCL drivers do not
// depend on it.
const wayOut = "install an OpenCL driver and its loader; for CPUs: " +
	"apt-get install ocl-icd-libopencl1 pocl-opencl-icd, or make deps-opencl"

// listing holds the devices of a library. A platform that fails is skipped, and the others are used.
type listing struct {
	path    string // of the library
	devices []found
	skipped []skipped
}

// found is a device with its selector.
type found struct {
	*clapi.Device
	selector string
}

// skipped is a platform that fails. It keeps its number, so that the devices behind it keep their selectors.
type skipped struct {
	*clapi.Platform
	number int
}

// String names the platform and its failure.
func (s skipped) String() string {
	name := "without a name"
	if s.Name != "" {
		name = fmt.Sprintf("%q", s.Name)
	}
	return fmt.Sprintf("platform %d, %s: %v", s.number, name, s.Err)
}

// names lists the selectable devices and the skipped platforms, for the hint of an error.
func (l *listing) names() string {
	var valid []string
	for _, found := range l.devices {
		valid = append(valid, fmt.Sprintf("%s %q", found.selector, found.Name))
	}
	text := "devices: " + strings.Join(valid, ", ")
	for _, skipped := range l.skipped {
		text += "; skipped " + skipped.String()
	}
	return text
}

// devices lists the devices of a library, "" for the one that is there. Without any the driver is unavailable. The
// library works on a thread with a name that its own threads inherit.
func devices(path string) (list *listing, err error) {
	err = inherit(func() error {
		list, err = listDevices(path)
		return err
	})
	return list, err
}

// listDevices is devices on the caller's thread.
func listDevices(path string) (*listing, error) {
	lib, err := clapi.Find(path)
	if err != nil {
		missing := &driver.Unavailable{Driver: Name, Found: err.Error(), Override: clapi.EnvLibrary,
			Get: wayOut}
		if failure, ok := errors.AsType[*clapi.LoadError](err); ok {
			missing.Tried = failure.Tried
			if failure.Absent {
				missing.Found = ""
			}
		}
		return nil, missing
	}
	platforms, err := lib.Platforms()
	if err != nil {
		return nil, err
	}
	list := arrange(platforms)
	list.path = lib.Path
	if len(list.devices) > 0 {
		return list, nil
	}
	missing := &driver.Unavailable{Driver: Name, Tried: []string{lib.Path}, Override: clapi.EnvLibrary,
		Found: "a library that knows no device", Get: wayOut}
	if len(list.skipped) > 0 {
		missing.Found = "a library of which no platform lists its devices: " + joined(list.skipped)
	}
	return nil, missing
}

// joined lists platforms that were skipped.
func joined(list []skipped) string {
	var out []string
	for _, one := range list {
		out = append(out, one.String())
	}
	return strings.Join(out, "; ")
}

// arrange gives the devices their selectors. Loaders list platforms in the order of files in a folder, so platforms are
// numbered in the order of their names; one that does not tell its name comes last. One without devices has no number.
func arrange(platforms []*clapi.Platform) *listing {
	slices.SortStableFunc(platforms, func(a, b *clapi.Platform) int {
		if (a.Name == "") != (b.Name == "") {
			return cmp.Compare(b.Name, a.Name)
		}
		return cmp.Compare(a.Name, b.Name)
	})
	list, next := &listing{}, 0
	for _, platform := range platforms {
		switch {
		case platform.Err != nil:
			list.skipped = append(list.skipped, skipped{platform, next})
		case len(platform.Devices) == 0:
			continue
		}
		for i, device := range platform.Devices {
			list.devices = append(list.devices, found{device, fmt.Sprintf("%d.%d", next, i)})
		}
		next++
	}
	return list
}

// find returns the device that a selector names, "" for the first one that is listed.
func (l *listing) find(selector string) (*found, error) {
	for i := range l.devices {
		device := &l.devices[i]
		if selector == "" || device.selector == selector || device.Name == selector {
			return device, nil
		}
	}
	platform, _, _ := strings.Cut(selector, ".")
	for _, skipped := range l.skipped {
		if platform == strconv.Itoa(skipped.number) {
			return nil, diag.New(diag.ClassUnavailable, "%s", skipped)
		}
	}
	return nil, errors.New("there is no such device")
}

// parts are the devices that were divided off, by the device and their number of compute units.
var parts struct {
	sync.Mutex
	of map[string]*clapi.Device
}

// part returns a device of so many compute units of another one, the same one each time; all of them are the device
// itself.
func part(of *clapi.Device, units int) (*clapi.Device, error) {
	total, err := of.Number(clapi.DeviceComputeUnits)
	if err != nil {
		return nil, err
	}
	if uint64(units) == total {
		return of, nil
	}
	if uint64(units) > total {
		return nil, fmt.Errorf("option %q is %d, want 1..%d: the device has no more", optUnits, units, total)
	}
	parts.Lock()
	defer parts.Unlock()
	name := fmt.Sprintf("%s/%d", of.ID(), units)
	if known := parts.of[name]; known != nil {
		return known, nil
	}
	made, err := of.Part(units)
	if err != nil {
		return nil, fmt.Errorf("use %d of %d compute units: %w", units, total, err)
	}
	if parts.of == nil {
		parts.of = map[string]*clapi.Device{}
	}
	parts.of[name] = made
	return made, nil
}
