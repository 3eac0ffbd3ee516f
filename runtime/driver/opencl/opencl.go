// Package opencl knows how to use devices of OpenCL as processors: GPUs of any vendor, and CPUs through an
// implementation for them.
//
// A device is selected by the numbers of its platform and of itself, "0.1", in the order of the platforms' names, or by
// its name. Calls are enqueued and execute in order (see driver.Asynchronous). Whether the device computes on the
// host's memory is found out by trying, once for each device: where it does not, operands are copied.
//
// Read opencl.go and device.go for how a device is found and opened, load.go, build.go and operators.go for how a graph
// becomes launches of kernels, bind.go and run.go for a call, and processor.go for how its end is noticed.
package opencl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// Name is the driver's name in SoC files and plans.
const Name = "opencl"

// Options of a processor. VariantOption is followed by a family of kernels: the compiler puts only the variant of that
// name into its artifacts.
const (
	optLibrary    = "library"    // path of the OpenCL library
	optCompletion = "completion" // how the host notices that a call is done: "event", or "flag" in shared memory
	optMemory     = "memory"     // "own": copy operands although the device may share memory; default: what is probed
	optUnits      = "units"      // how many of the device's compute units, the last ones; default: all
	VariantOption = kernel.Option
)

// New returns the driver. The library is looked for when a processor is opened or devices are listed.
func New() driver.Driver { return opencl{} }

// opencl has no state but where binaries of programs come from: libraries and devices are shared by all processors of
// this process.
type opencl struct{ programs driver.Programs }

func (opencl) Name() string { return Name }

// Devices lists the devices of all platforms, sorted by the platforms' names. A library without devices is unavailable.
func (opencl) Devices(ctx context.Context) ([]driver.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	list, err := devices("")
	if err != nil {
		return nil, err
	}

	var out []driver.Device
	for _, found := range list.devices {
		out = append(out, driver.Device{Select: found.selector,
			Description: fmt.Sprintf("%s (%s)", found.Name, found.Platform.Name)})
	}
	return out, nil
}

// Library returns the one that is loaded where no option names another; its platforms take the place of providers.
func (opencl) Library(context.Context) (driver.Library, error) {
	list, err := devices("")
	if err != nil {
		return driver.Library{}, err
	}

	out := driver.Library{Name: "OpenCL", Path: list.path, Version: list.devices[0].Platform.Version}
	for _, found := range list.devices {
		name := found.Platform.Name + ", " + found.Platform.Version
		if !slices.Contains(out.Providers, name) {
			out.Providers = append(out.Providers, name)
		}
	}

	for _, skipped := range list.skipped {
		out.Skipped = append(out.Skipped, skipped.String())
	}
	return out, nil
}

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

// devices lists the devices of a library, "" for the one that is there. Without any the driver is unavailable.
func devices(path string) (list *listing, err error) {
	err = inherit(func() error {
		list, err = listDevices(path)
		return err
	})
	return list, err
}

// listDevices calls devices on a thread with a name that the library's own threads inherit.
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

// Open accepts the selectors of Devices, the name of a device, and "" for the first one.
func (o opencl) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	from, settings, err := find(ctx, config)
	if err != nil {
		return nil, err
	}

	settings.programs = o.programs
	fail := func(err error) (driver.Processor, error) {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "open processor %q of driver %q: %w", config.Select, Name,
			err)
	}
	var proc *processor
	shared, err := share(from.Device)
	if err != nil {
		return fail(err)
	}
	if err := settings.fit(&shared.features); err != nil {
		return fail(err)
	}

	err = inherit(func() error {
		proc, err = newProcessor(from.selector, shared, settings)
		return err
	})
	if err != nil {
		return fail(err)
	}
	if proc.cores, err = coresOf(from, settings.units); err != nil {
		return fail(errors.Join(err, proc.Close()))
	}
	return proc, nil
}

// find reads the options of a processor and finds its device.
func find(ctx context.Context, config driver.Config) (*found, settings, error) {
	if err := ctx.Err(); err != nil {
		return nil, settings{}, err
	}
	fail := func(err error, hint string, args ...any) error {
		return diag.New(diag.ClassOr(err, diag.ClassInput), "open processor %q of driver %q: %w", config.Select, Name,
			err).WithHint(hint, args...)
	}
	options, err := parseOptions(config.Options)
	if err != nil {
		return nil, options, fail(err, "options: %s, %s, %s, %s, %sFAMILY", optLibrary, optCompletion, optMemory, optUnits,
			VariantOption)
	}
	list, err := devices(options.library)
	if err != nil {
		return nil, options, err
	}
	from, err := list.find(config.Select)
	if err != nil {
		return nil, options, fail(err, "%s", list.names())
	}
	if options.units > 0 {
		if err := inherit(func() error {
			from.Device, err = part(from.Device, options.units)
			return err
		}); err != nil {
			return nil, options, fail(err, "leave out option %q to use all compute units", optUnits)
		}
	}

	return from, options, nil
}

// find returns the device that a selector names, "" for the first one that is listed.
func (l *listing) find(selector string) (*found, error) {
	for i := range l.devices {
		if device := &l.devices[i]; selector == "" || device.selector == selector || device.Name == selector {
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

// settings are a processor's options.
type settings struct {
	library  string
	flag     bool // completion by flag
	own      bool // copy operands
	units    int  // compute units, 0: all
	variants map[string]string
	programs driver.Programs // nil: programs are built from source
}

// parseOptions reads options; the first bad one in alphabetical order is the error.
func parseOptions(options map[string]string) (settings, error) {
	out := settings{variants: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		value := options[key]
		if family, ok := strings.CutPrefix(key, VariantOption); ok {
			if _, ok := kernel.Find(family, value); !ok {
				return out, fmt.Errorf("option %q: kernels %q have no variant %q, want one of %s", key, family, value,
					kernel.VariantNames(family))
			}
			out.variants[family] = value
			continue
		}

		choices := map[string][]string{optCompletion: {"event", "flag"}, optMemory: {"probe", "own"}}[key]
		switch {
		case key == optLibrary:
			out.library = value
		case key == optUnits:
			units, err := strconv.Atoi(value)
			if err != nil || units < 1 || strconv.Itoa(units) != value {
				return out, fmt.Errorf("option %q is %q, want a number of compute units, at least 1", key, value)
			}
			out.units = units
		case choices == nil:
			return out, fmt.Errorf("unknown option %q", key)
		case !slices.Contains(choices, value):
			return out, fmt.Errorf("option %q is %q, want one of %s", key, value, strings.Join(choices, ", "))
		case key == optCompletion:
			out.flag = value == "flag"
		case key == optMemory:
			out.own = value == "own"
		}
	}
	return out, nil
}

// fit refuses variants that the device cannot execute.
func (s *settings) fit(features *kernel.Features) error {
	for _, family := range slices.Sorted(maps.Keys(s.variants)) {
		variant, _ := kernel.Find(family, s.variants[family])
		if lacks := variant.Lacks(features); lacks != "" {
			return diag.New(diag.ClassUnavailable, "variant %q of kernels %q needs %s, which the device lacks",
				variant.Name, family, lacks)
		}
	}
	return nil
}

// layouts is the packed layout of every weight scheme, and of tables of plain values.
var layouts = map[string]string{
	"w32": pack.N32, "w16": pack.N32, "q8c": pack.N32, "q4c": pack.N32, "q4b32": pack.N32, "q4b128": pack.N32,
	"f32": op.RowsLayout, "f16": op.RowsLayout, "bf16": op.RowsLayout,
}

// capabilities returns the operators that the kernels compute, on a device with or without memory of its own. The forms
// of a product are the variants of its kernels that the device can execute.
func capabilities(own bool, settings settings, features *kernel.Features) *driver.Capabilities {
	forms, usual := map[op.Scheme][]op.Form{}, map[op.Scheme]op.Form{}
	for _, scheme := range op.SchemesOf(Name) {
		family := kernel.Product(scheme)
		first, can := kernel.First(family, features)
		if named := settings.variants[family]; named != "" {
			first = named
		}
		usual[scheme] = op.KernelForm(first)
		for _, variant := range can {
			forms[scheme] = append(forms[scheme], op.KernelForm(variant))
		}
	}
	return &driver.Capabilities{Usual: usual, Set: capability.Set{
		Tile:    capability.Tile{K: pack.BlockK, N: pack.TileN},
		Kinds:   kernel.Kinds(),
		Schemes: op.SchemesOf(Name),
		Forms:   forms,
		Layouts: maps.Clone(layouts),
		KV:      []op.Type{op.F32, op.F16, op.Q8},

		DynamicRows: true, StridedOutput: true, StridedInput: true, WeightRanges: true,
		OwnMemory: own, Prepacks: own,
		Memory: &capability.Memory{StepBytes: stepBytes, LibraryBytes: libraryBytes},
	}}
}

// What the library holds, in bytes.
const (
	stepBytes    = 32 << 10 // of a loaded step
	libraryBytes = 128 << 20
)
