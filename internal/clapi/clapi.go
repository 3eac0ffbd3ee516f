// Package clapi knows the OpenCL C API: loading an ICD loader or a vendor's library, devices, buffers, programs and
// queues, and launching kernels without allocation.
//
// Objects are closed by their maker; closing twice does nothing. A Queue and the kernels launched on it are used from
// one goroutine at a time.
package clapi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

// EnvLibrary names the OpenCL library, before all other places: an ICD loader or one vendor's library.
const EnvLibrary = "HETC_OPENCL_LIBRARY"

// IntelFolder is where `make deps-opencl` puts Intel's implementation for CPUs, and IntelLibrary its library there.
const (
	IntelFolder  = "opencl-intel"
	IntelLibrary = "libintelocl.so"
)

// longestText bounds what is read of a name or a list of extensions, in bytes.
const longestText = 1 << 16

// LoadError says why a library cannot be used. It is of class diag.ClassUnavailable.
type LoadError struct {
	Path   string
	Tried  []string // what was looked at, in order
	Absent bool     // no library in any of the places that were tried
	Cause  error
}

// Error says which library was tried and what is wrong with it.
func (e *LoadError) Error() string {
	if e.Absent {
		return "opencl: no library in any place that was tried: " + strings.Join(e.Tried, ", ")
	}
	return fmt.Sprintf("opencl: %v", e.Cause)
}

// Unwrap returns the cause.
func (e *LoadError) Unwrap() error { return e.Cause }

// As makes the error one of class diag.ClassUnavailable wherever it is wrapped.
func (e *LoadError) As(target any) bool {
	d, ok := target.(**diag.Diagnostic)
	if ok {
		*d = diag.New(diag.ClassUnavailable, "%s", e.Error()).
			WithHint("install an OpenCL driver, or set %s to a library's path", EnvLibrary)
	}
	return ok
}

// Library is a loaded OpenCL library. It stays loaded until the process ends.
type Library struct {
	Path string
	fn   [functions]uintptr
}

// Find loads the file, or without one what $HETC_OPENCL_LIBRARY names, the system's ICD loader, or Intel's library for
// CPUs where `make deps-opencl` put it. The error is a *LoadError.
func Find(file string) (*Library, error) {
	if file == "" {
		file = os.Getenv(EnvLibrary)
	}
	loaded.Lock()
	defer loaded.Unlock()
	if lib := loaded.of[file]; lib != nil {
		return lib, nil
	}
	found, tried, err := native.Find(native.Search{File: file, Folder: IntelFolder, System: systemNames()})
	if missing, ok := errors.AsType[*native.Error](err); ok && file == "" && missing.Problem == native.Absent {
		// What make deps-opencl fetched serves where the system has nothing.
		var more []string
		found, more, err = native.Find(native.Search{Folder: IntelFolder, Names: []string{IntelLibrary}})
		tried = append(tried, more...)
	}
	if err != nil {
		missing, _ := errors.AsType[*native.Error](err)
		return nil, &LoadError{Path: file, Tried: tried, Cause: err,
			Absent: file == "" && missing != nil && missing.Problem == native.Absent}
	}
	lib, err := bind(found)
	if err != nil {
		return nil, &LoadError{Path: found.Path, Tried: tried, Cause: err}
	}
	if loaded.of == nil {
		loaded.of = map[string]*Library{}
	}
	loaded.of[file] = lib
	return lib, nil
}

// loaded are the libraries by what was asked for.
var loaded struct {
	sync.Mutex
	of map[string]*Library
}

// systemNames returns the names that the system's loader knows the ICD loader by.
func systemNames() []string {
	switch runtime.GOOS {
	case "windows":
		return []string{"OpenCL.dll"}
	case "darwin":
		return []string{"/System/Library/Frameworks/OpenCL.framework/OpenCL"}
	}
	return []string{"libOpenCL.so.1", "libOpenCL.so"}
}

// bind looks up every function, so that no call meets an absent one. The error is a *native.Error.
func bind(found *native.Library) (*Library, error) {
	lib := &Library{Path: found.Path}
	for i, name := range symbols {
		address, err := found.Symbol(name)
		if err != nil {
			return nil, err
		}
		lib.fn[i] = address
	}
	return lib, nil
}

// Error is a failure that the library reported. It is of class diag.ClassRun.
type Error struct {
	What string // what was done: "create context"
	Code int32
}

// Error tells what was asked of the library, and the code's name in its header.
func (e *Error) Error() string {
	name := codes[e.Code]
	if name == "" {
		name = "error"
	}
	return fmt.Sprintf("opencl: %s: %s (%d)%s", e.What, name, e.Code, e.hint())
}

// hint returns what to do about common failures. A library that cannot even say what there is has no use for it.
func (e *Error) hint() string {
	for _, question := range []string{"count ", "list ", "describe "} {
		if strings.HasPrefix(e.What, question) {
			return ""
		}
	}
	switch e.Code {
	case -4, -5, -6, -61:
		return ": the device has too little memory: load less, or use another processor"
	case -2, -33, -34, -36:
		return ": the device is lost: open it again"
	}
	return ""
}

// Lost reports whether the device, or what was made on it, is gone, so that nothing more will work.
func (e *Error) Lost() bool {
	switch e.Code {
	case -2, -33, -34, -36: // the device, the context, the queue
		return true
	}
	return false
}

// As makes the error one of class diag.ClassRun wherever it is wrapped.
func (e *Error) As(target any) bool {
	d, ok := target.(**diag.Diagnostic)
	if ok {
		*d = diag.New(diag.ClassRun, "%s", e.Error())
	}
	return ok
}

// BuildError is a program that the device's compiler refused. It is of class diag.ClassRun.
type BuildError struct {
	Code int32
	Log  string // the first lines of the compiler's log
}

// Error shows the beginning of the log.
func (e *BuildError) Error() string {
	return fmt.Sprintf("opencl: build program: %s (%d): %s", codes[e.Code], e.Code, e.Log)
}

// As makes the error one of class diag.ClassRun wherever it is wrapped.
func (e *BuildError) As(target any) bool {
	d, ok := target.(**diag.Diagnostic)
	if ok {
		*d = diag.New(diag.ClassRun, "%s", e.Error())
	}
	return ok
}

// check turns a code into an error.
func check(what string, code uintptr) error {
	if int32(code) == 0 {
		return nil
	}
	return &Error{What: what, Code: int32(code)}
}

// Platform is one vendor's implementation, with its devices.
type Platform struct {
	Name, Version string
	Devices       []*Device // in the order in which the platform lists them
	// Err is why the platform cannot be used: it does not describe itself, or does not list its devices, of which
	// there are none here then. It says nothing about other platforms. nil: it can be.
	Err error
	id  uintptr
}

// Device is one device of a platform.
type Device struct {
	Platform *Platform
	Name     string
	lib      *Library
	id       uintptr
}

// Platforms lists the platforms with their devices, in the order in which the library lists them. A loader that knows
// no platform gives an empty list. One platform that fails is listed with its error: a vendor's driver that is broken,
// or whose device was taken away, must not cost the devices of other vendors.
func (l *Library) Platforms() (list []*Platform, err error) {
	native.KeepSignals(func() { list, err = l.platforms() }) // a loader opens the vendors' libraries now
	return list, err
}

// platforms is Platforms.
func (l *Library) platforms() ([]*Platform, error) {
	var count uint32
	code := native.Call(l.fn[fnGetPlatformIDs], 0, 0, uintptr(unsafe.Pointer(&count)))
	if int32(code) == platformNotFound || int32(code) == 0 && count == 0 {
		return nil, nil
	}
	if err := check("count platforms", code); err != nil {
		return nil, err
	}
	ids := make([]uintptr, count)
	code = native.Call(l.fn[fnGetPlatformIDs], uintptr(count), uintptr(unsafe.Pointer(&ids[0])), 0)
	if err := check("list platforms", code); err != nil {
		return nil, err
	}
	var list []*Platform
	for _, id := range ids {
		platform := &Platform{id: id}
		if platform.Err = platform.describe(l); platform.Err == nil {
			platform.Devices, platform.Err = platform.devices(l)
		}
		list = append(list, platform)
	}
	return list, nil
}

// describe reads what the platform calls itself.
func (p *Platform) describe(lib *Library) (err error) {
	if p.Name, err = lib.text(fnGetPlatformInfo, "describe platform", p.id, platformName); err != nil {
		return err
	}
	p.Version, err = lib.text(fnGetPlatformInfo, "describe platform", p.id, platformVersion)
	return err
}

// devices lists the platform's devices; there may be none.
func (p *Platform) devices(lib *Library) ([]*Device, error) {
	var count uint32
	code := native.Call(lib.fn[fnGetDeviceIDs], p.id, deviceAll, 0, 0, uintptr(unsafe.Pointer(&count)))
	if int32(code) == deviceNotFound || int32(code) == 0 && count == 0 {
		return nil, nil
	}
	if err := check("count devices", code); err != nil {
		return nil, err
	}
	ids := make([]uintptr, count)
	code = native.Call(lib.fn[fnGetDeviceIDs], p.id, deviceAll, uintptr(count), uintptr(unsafe.Pointer(&ids[0])), 0)
	if err := check("list devices", code); err != nil {
		return nil, err
	}
	var list []*Device
	for _, id := range ids {
		device := &Device{Platform: p, lib: lib, id: id}
		var err error
		if device.Name, err = device.Text(DeviceName); err != nil {
			return nil, err
		}
		list = append(list, device)
	}
	return list, nil
}

// text reads a property that is a string, on one line.
func (l *Library) text(get function, what string, object uintptr, param Param) (string, error) {
	var size uintptr
	code := native.Call(l.fn[get], object, uintptr(param), 0, 0, uintptr(unsafe.Pointer(&size)))
	if err := check(what, code); err != nil || size == 0 {
		return "", err
	}
	if size > longestText {
		return "", diag.New(diag.ClassRun, "opencl: %s: a text of %d bytes, want at most %d", what, size, longestText)
	}
	data := make([]byte, size)
	code = native.Call(l.fn[get], object, uintptr(param), size, uintptr(unsafe.Pointer(&data[0])), 0)
	if err := check(what, code); err != nil {
		return "", err
	}
	text, _, _ := strings.Cut(string(data), "\x00")
	return strings.Join(strings.Fields(text), " "), nil
}

// Text reads a property of the device that is a string.
func (d *Device) Text(param Param) (string, error) {
	return d.lib.text(fnGetDeviceInfo, "describe device", d.id, param)
}

// Number reads a property of the device that is a number of up to eight bytes. Devices do not know the properties of
// later versions than their own: that is an *Error.
func (d *Device) Number(param Param) (uint64, error) {
	var value uint64 // C writes as many bytes as the property has, the lowest first
	code := native.Call(d.lib.fn[fnGetDeviceInfo], d.id, uintptr(param), unsafe.Sizeof(value),
		uintptr(unsafe.Pointer(&value)), 0)
	return value, check("describe device", code)
}

// Part returns a device of the last compute units of this one, which the other ones of it do not use. It stays until
// the process ends. Devices that cannot be divided are an *Error.
func (d *Device) Part(units int) (*Device, error) {
	total, err := d.Number(DeviceComputeUnits)
	if err != nil {
		return nil, err
	}
	if units < 1 || uint64(units) >= total {
		return nil, diag.New(diag.ClassInput, "opencl: %d of a device's %d compute units, want 1..%d", units, total, total-1)
	}
	properties := [...]uintptr{partitionByCounts, uintptr(total) - uintptr(units), uintptr(units), 0, 0}
	var ids [2]uintptr
	var count uint32
	code := native.Call(d.lib.fn[fnCreateSubDevices], d.id, uintptr(unsafe.Pointer(&properties[0])), uintptr(len(ids)),
		uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&count)))
	if err := check("divide device", code); err != nil {
		return nil, err
	}
	if count != uint32(len(ids)) {
		return nil, diag.New(diag.ClassRun, "opencl: divide device: got %d parts, want %d", count, len(ids))
	}
	if err := release(d.lib, fnReleaseDevice, "release device", &ids[0]); err != nil {
		return nil, err
	}
	return &Device{Platform: d.Platform, Name: d.Name, lib: d.lib, id: ids[1]}, nil
}

// ID names the device among all devices of the process.
func (d *Device) ID() string { return fmt.Sprintf("%s#%x", d.lib.Path, d.id) }
