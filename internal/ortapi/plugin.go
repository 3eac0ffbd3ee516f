package ortapi

import (
	"fmt"
	"strconv"
	"unsafe"

	"github.com/hetc/hetc/internal/native"
)

// Device is a device as one execution provider offers it. It is valid as long as its environment is open.
type Device struct {
	Provider string // "QNNExecutionProvider"
	Vendor   string // who made the provider
	Version  string // of the provider, empty when it does not say

	env *Env
	p   uintptr
}

// Compatibility is what a provider says about a compiled model before anything of it is loaded.
type Compatibility int32

const (
	NotApplicable Compatibility = iota // the provider cannot tell
	Optimal
	PreferRecompilation // it runs, a new compilation would be better
	Unsupported
)

// String returns the answer in words.
func (c Compatibility) String() string {
	switch c {
	case NotApplicable:
		return "not applicable"
	case Optimal:
		return "supported"
	case PreferRecompilation:
		return "supported, a new compilation would be better"
	case Unsupported:
		return "unsupported"
	}
	return fmt.Sprintf("compatibility %d", int32(c))
}

// Placement is what one provider executes of a session: one subgraph that it compiled, or one node.
type Placement struct {
	Provider string
	Nodes    []PlacedNode
}

// PlacedNode is a node of the model as it was after the library's basic optimisations.
type PlacedNode struct{ Name, Domain, Op string }

// pluginFunctions are those that plugin execution providers need: sessions on the CPU do without them.
var pluginFunctions = []int{
	fnGetCompileAPI, fnGetKeyValue, fnRegisterExecutionProviderLibrary, fnGetEpDevices,
	fnSessionOptionsAppendExecutionProviderV2,
	fnEpDeviceEpName, fnEpDeviceEpVendor, fnEpDeviceEpMetadata, fnGetModelCompatibilityForEpDevices,
	fnSessionGetEpGraphAssignmentInfo,
	fnEpAssignedSubgraphGetEpName, fnEpAssignedSubgraphGetNodes, fnEpAssignedNodeGetName, fnEpAssignedNodeGetDomain,
	fnEpAssignedNodeGetOperatorType,
}

// plugins looks the functions of plugin execution providers up; none is called that is not there.
func (l *Library) plugins() error {
	for _, i := range pluginFunctions {
		if l.fn[i] == 0 {
			return &LoadError{Path: l.Path, Problem: NotORT,
				Detail: fmt.Sprintf("version %s: function %d of its interface, for plugin execution providers, is missing", l.Version, i)}
		}
	}
	return nil
}

const mostDevices = 1 << 10 // of a list that a provider gives

// RegisterProvider loads a plugin execution provider's library and gives it a name, by which errors call it. It stays
// until the environment ends. The library runs code of its maker in this process.
func (e *Env) RegisterProvider(name, path string) error {
	if err := e.lib.plugins(); err != nil {
		return err
	}
	n, err := cstring("execution provider", name)
	if err != nil {
		return err
	}
	p, ok := native.Path(path)
	if !ok {
		return usage("path %q has a NUL byte", path)
	}
	if err := e.hold(); err != nil {
		return err
	}
	defer e.release()
	return e.lib.check("register execution provider "+strconv.Quote(name),
		native.Call(e.lib.fn[fnRegisterExecutionProviderLibrary], e.p,
			uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&p[0]))))
}

// Devices lists the devices of all providers, in the library's order: the CPU's own among them.
func (e *Env) Devices() ([]Device, error) {
	l := e.lib
	if err := l.plugins(); err != nil {
		return nil, err
	}
	if err := e.hold(); err != nil {
		return nil, err
	}
	defer e.release()
	var list, n out
	if err := l.check("list devices",
		native.Call(l.fn[fnGetEpDevices], e.p, uintptr(unsafe.Pointer(&list.p)),
			uintptr(unsafe.Pointer(&n.p)))); err != nil {
		return nil, err
	}
	if n.p > mostDevices {
		return nil, usage("list devices: the library says there are %d", n.p)
	}
	version, _ := native.CString("version")
	var devices []Device
	for i := range int(n.p) {
		p := native.Word(list.p, i)
		d := Device{Provider: text(native.Call(l.fn[fnEpDeviceEpName], p)),
			Vendor: text(native.Call(l.fn[fnEpDeviceEpVendor], p)), env: e, p: p}
		if pairs := native.Call(l.fn[fnEpDeviceEpMetadata], p); pairs != 0 {
			d.Version = text(native.Call(l.fn[fnGetKeyValue], pairs, uintptr(unsafe.Pointer(&version[0]))))
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// Compatibility asks the device's provider about a compiled model's compatibility string, which its metadata hold
// under "ep_compatibility_info." and the provider's name.
func (d Device) Compatibility(info string) (Compatibility, error) {
	b, err := cstring("compatibility string", info)
	if err != nil {
		return 0, err
	}
	if d.env == nil {
		return 0, usage("compatibility: no device")
	}
	if err := d.env.hold(); err != nil {
		return 0, err
	}
	defer d.env.release()
	device, got := out{d.p}, out{}
	status := native.Call(d.env.lib.fn[fnGetModelCompatibilityForEpDevices], uintptr(unsafe.Pointer(&device.p)), 1,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&got.p)))
	return Compatibility(int32(got.p)), d.env.lib.check("match compatibility string "+strconv.Quote(info), status)
}

// appendDevices lets the session use devices of one provider, see SessionOptions.Devices.
func (e *Env) appendDevices(opts uintptr, o *SessionOptions) error {
	if err := e.lib.plugins(); err != nil {
		return err
	}
	if o.Provider != "" {
		return usage("a session has a provider, %q, or devices", o.Provider)
	}
	var devices []uintptr
	for _, d := range o.Devices {
		if d.env != e {
			return usage("device of %q: it is of another environment, or none", d.Provider)
		}
		devices = append(devices, d.p)
	}
	keys, values, free, err := pairs(o.ProviderOptions)
	if err != nil {
		return err
	}
	defer free()
	return e.lib.check("append devices of execution provider "+strconv.Quote(o.Devices[0].Provider),
		native.Call(e.lib.fn[fnSessionOptionsAppendExecutionProviderV2], opts, e.p,
			uintptr(unsafe.Pointer(&devices[0])), uintptr(len(devices)),
			keys, values, uintptr(len(o.ProviderOptions))))
}

// recordPlacement is the configuration entry without which a session does not tell its Placement.
const recordPlacement = "session.record_ep_graph_assignment_info"

// Placement says which provider executes which nodes: a library hands what a provider refuses to the CPU, and says
// nothing. The session was made with SessionOptions.Devices.
func (s *Session) Placement() ([]Placement, error) {
	if s.p == 0 {
		return nil, usage("placement: the session is closed")
	}
	l := s.env.lib
	if err := l.plugins(); err != nil {
		return nil, err
	}
	const what = "look up placement of nodes"
	// list reads an array that a function gives, whose length is bounded by the model's nodes, of which 1<<20 are too
	// many.
	list := func(fn int, of uintptr) (uintptr, int, error) {
		var array, n out
		err := l.check(what, native.Call(l.fn[fn], of, uintptr(unsafe.Pointer(&array.p)),
			uintptr(unsafe.Pointer(&n.p))))
		if err == nil && n.p > 1<<20 {
			err = usage("%s: the library says there are %d", what, n.p)
		}
		return array.p, int(n.p), err
	}
	name := func(fn int, of uintptr) (string, error) {
		var str out
		err := l.check(what, native.Call(l.fn[fn], of, uintptr(unsafe.Pointer(&str.p))))
		return text(str.p), err
	}
	graphs, n, err := list(fnSessionGetEpGraphAssignmentInfo, s.p)
	if err != nil {
		return nil, err
	}
	var all []Placement
	for i := range n {
		g := native.Word(graphs, i)
		var p Placement
		if p.Provider, err = name(fnEpAssignedSubgraphGetEpName, g); err != nil {
			return nil, err
		}
		nodes, count, err := list(fnEpAssignedSubgraphGetNodes, g)
		if err != nil {
			return nil, err
		}
		for j := range count {
			at := native.Word(nodes, j)
			var node PlacedNode
			for _, f := range []struct {
				fn int
				to *string
			}{{fnEpAssignedNodeGetName, &node.Name}, {fnEpAssignedNodeGetDomain, &node.Domain},
				{fnEpAssignedNodeGetOperatorType, &node.Op}} {
				if *f.to, err = name(f.fn, at); err != nil {
					return nil, err
				}
			}
			p.Nodes = append(p.Nodes, node)
		}
		all = append(all, p)
	}
	return all, nil
}

// Compilation is a model file to compile and where the result goes: paths, because what some providers make depends
// on the path that they were given.
type Compilation struct {
	Model  string // file to read
	Output string // file to write; what is there is overwritten
	Embed  bool   // the result holds what was compiled, instead of naming a second file beside it
}

// Compile lets the options' devices compile a model without making a session of it. A model of which nothing was
// compiled is an error; that some of it was not is the caller's to find out, by the nodes of the result.
func (e *Env) Compile(c Compilation, o *SessionOptions) error {
	l := e.lib
	if err := l.plugins(); err != nil {
		return err
	}
	table := native.Call(l.fn[fnGetCompileAPI])
	if table == 0 {
		return &LoadError{Path: l.Path, Problem: NotORT,
			Detail: fmt.Sprintf("version %s does not compile models", l.Version)}
	}
	// The interface for compiling is a table of its own, of which every function that is used must be there.
	var fn [compileLength]uintptr
	for _, i := range compileFunctions {
		if fn[i] = native.Word(table, i); fn[i] == 0 {
			return &LoadError{Path: l.Path, Problem: NotORT,
				Detail: fmt.Sprintf("version %s: function %d of its interface for compiling is missing", l.Version, i)}
		}
	}
	in, ok := native.Path(c.Model)
	to, ok2 := native.Path(c.Output)
	if !ok || !ok2 || c.Model == "" || c.Output == "" {
		return usage("compile %q to %q: want two paths without NUL bytes", c.Model, c.Output)
	}
	// The environment must outlive the options and the task.
	if err := e.hold(); err != nil {
		return err
	}
	defer e.release()
	opts, free, err := e.options("", o)
	if err != nil {
		return err
	}
	defer free()
	var task out
	if err := l.check("make compilation options",
		native.Call(fn[compileFromSessionOptions], e.p, opts, uintptr(unsafe.Pointer(&task.p)))); err != nil {
		return err
	}
	defer native.Call(fn[compileRelease], task.p)
	embed := uintptr(0)
	if c.Embed {
		embed = 1
	}
	what := "compile " + strconv.Quote(c.Model)
	if err := l.check(what+": set input",
		native.Call(fn[compileSetInputPath], task.p, uintptr(unsafe.Pointer(&in[0])))); err != nil {
		return err
	}
	if err := l.check(what+": set output",
		native.Call(fn[compileSetOutputPath], task.p, uintptr(unsafe.Pointer(&to[0])))); err != nil {
		return err
	}
	if err := l.check(what+": set embedding", native.Call(fn[compileSetEmbed], task.p, embed)); err != nil {
		return err
	}
	if err := l.check(what+": set flags", native.Call(fn[compileSetFlags], task.p, compileErrorIfNothing)); err != nil {
		return err
	}
	return l.check(what, native.Call(fn[compileModel], e.p, task.p))
}
