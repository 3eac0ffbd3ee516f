// Package qnn knows how to use Qualcomm's HTP as a processor: graphs that were compiled for it ahead of time, on the
// device, or on the emulator of it that is part of Qualcomm's libraries for x86.
//
// An artifact is an ONNX model in hetc's own form (onnx.Parse) around one compiled graph, a node EPContext. Between its
// inputs and outputs and the compiled graph there are conversions (QuantizeLinear, DequantizeLinear, Cast), and nothing
// else: there is nothing that ONNX Runtime could compute on the CPU instead. Weights are compiled in. The metadata
// "hetc.graph" is the graph itself, with which operands are compared; "ep_compatibility_info.QNNExecutionProvider" is
// what the library calls the device and the versions it compiled for, matched before anything is loaded; "hetc.context"
// is "embedded" where the binary lies in the model, or "shared" where it lies in Artifact.Shared, for several graphs.
//
// The emulator computes what the device would, thousands of times slower: its times are those of an emulator
// (Capabilities.Emulated). It runs in a process of its own, because its libraries print to standard output and crash on
// binaries that are not for them. Binaries with shared weights are among these, and refused before it sees them.
package qnn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Name is the driver's name in SoC files and plans.
const Name = "qnn"

// Selectors of processors.
const (
	emulator = "emulator" // Qualcomm's functional emulator, on x86
	htp      = "htp"      // the NPU of this machine
)

// Options of a processor. The last two are the compiler's alone, and stand in the same place of a SoC file.
const (
	optLibrary = "library"     // path of libonnxruntime_providers_qnn.so
	optORT     = "onnxruntime" // path of ONNX Runtime's library
	optSoC     = "soc_model"   // the vendor's number of the SoC
	optArch    = "htp_arch"    // its architecture, 75 for v75
	optVTCM    = "vtcm_mb"
	optLevel   = "opt"
)

// New returns the driver. Libraries are looked for when devices are listed or a processor is opened.
func New() driver.Driver { return qnn{} }

// qnn has no state: libraries belong to processors.
type qnn struct{}

func (qnn) Name() string { return Name }

// platform returns the selector of the device that a system can have, empty where Qualcomm has no
// libraries that hetc drives.
func platform(goos, arch string) string {
	switch {
	case goos == "linux" && arch == "amd64":
		return emulator
	case (goos == "linux" || goos == "android") && arch == "arm64":
		return htp
	}
	return ""
}

// find locates the libraries of a device.
func find(device, file string) (*ortapi.QNN, error) {
	libs, err := ortapi.FindQNN(file)
	if err != nil {
		return nil, unavailable(err)
	}
	if device == htp {
		// The part that talks to the NPU; a wheel for the desktop lacks it.
		stubs, err := filepath.Glob(filepath.Join(filepath.Dir(libs.Backend), "libQnnHtpV*Stub.so"))
		if err != nil || len(stubs) == 0 {
			return nil, &driver.Unavailable{Driver: Name, Tried: []string{filepath.Dir(libs.Backend)},
				Override: ortapi.EnvQNN,
				Found:    fmt.Sprintf("%q, and no device library libQnnHtpV*Stub.so beside it", libs.Provider),
				Get:      "Qualcomm's AI Runtime SDK for this device has them"}
		}
	}
	return libs, nil
}

// unavailable says where libraries were looked for: those of QNN, or ONNX Runtime's where that is
// what is missing.
func unavailable(err error) error {
	missing := &driver.Unavailable{Driver: Name, Found: err.Error(), Override: ortapi.EnvQNN, Get: ortapi.GetQNN}
	if q, ok := errors.AsType[*ortapi.QNNError](err); ok {
		missing.Tried = q.Tried
		if q.Cause == nil {
			missing.Found = ""
		}
	}
	failure := failed(err)
	errors.As(err, &failure) // from the emulator's process
	if failure.ORT {
		missing.Tried, missing.Override, missing.Get = failure.Tried, ortapi.EnvLibrary,
			"make deps-qnn fetches the library"
	}
	return missing
}

// nowhere returns the error for systems without a device of Qualcomm's.
func nowhere() error {
	return &driver.Unavailable{Driver: Name, Found: fmt.Sprintf("no libraries for %s/%s: the emulator is for linux/amd64, the NPU for linux/arm64 and android/arm64", runtime.GOOS, runtime.GOARCH)}
}

// Devices lists the emulator on linux/amd64, and the NPU where the device's libraries are.
func (qnn) Devices(context.Context) ([]driver.Device, error) {
	device := platform(runtime.GOOS, runtime.GOARCH)
	if device == "" {
		return nil, nowhere()
	}
	if _, err := find(device, ""); err != nil {
		return nil, err
	}
	what := "Hexagon NPU (HTP), with graphs compiled ahead of time"
	if device == emulator {
		what = "Qualcomm's functional emulator of the Hexagon NPU (HTP): the device's results, not its times"
	}
	return []driver.Device{{Select: device, Description: what}}, nil
}

// Library loads the libraries, in a process of their own where they emulate, and returns their
// versions.
func (d qnn) Library(ctx context.Context) (driver.Library, error) {
	device := platform(runtime.GOOS, runtime.GOARCH)
	if device == "" {
		return driver.Library{}, nowhere()
	}
	proc, err := d.Open(ctx, driver.Config{Select: device})
	if err != nil {
		return driver.Library{}, err
	}
	versions := proc.(*processor).engine.about()
	return driver.Library{Name: "Qualcomm HTP", Version: versions.Backend.API.String(), Path: versions.QNN.Provider,
		Build: versions.String(), Providers: []string{ortapi.QNNProvider}}, proc.Close()
}

// Open accepts the selectors of Devices.
func (qnn) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fail := func(err error, hint string, args ...any) error {
		diagnostic := diag.New(diag.ClassOr(err, diag.ClassInput), "open processor %q of driver %q: %w",
			config.Select, Name, err)
		if hint != "" {
			diagnostic = diagnostic.WithHint(hint, args...)
		}
		return diagnostic
	}
	proc := &processor{Local: driver.Local{Name: Name + ":" + config.Select}, loaded: map[*executable]bool{},
		files: map[[32]byte]*staged{}}
	library, ort, hint, err := proc.readOptions(config.Options)
	if err != nil {
		return nil, fail(err, "%s", hint)
	}
	// One of both selectors exists on a platform; the other one's error says what to do instead.
	device := platform(runtime.GOOS, runtime.GOARCH)
	switch {
	case config.Select != emulator && config.Select != htp:
		return nil, fail(errors.New("no such processor"), "processors: %s on linux/amd64, %s on arm64 devices",
			emulator, htp)
	case device == "":
		return nil, nowhere()
	case config.Select != device:
		what := "the emulator is for linux/amd64 alone; on a device the NPU is " + strconv.Quote(htp)
		if config.Select == htp {
			what = "there is no Hexagon NPU here; graphs compiled for the emulator run on " + strconv.Quote(emulator) + " (hetc emit --for-emulator)"
		}
		return nil, fail(diag.New(diag.ClassUnavailable, "this is %s/%s", runtime.GOOS, runtime.GOARCH), "%s", what)
	}
	libs, err := find(device, library)
	if err != nil {
		return nil, err
	}
	// the emulator runs in a process of its own
	proc.caps = capabilities(device == emulator)
	if device == emulator {
		proc.engine, err = openRemote(ctx, ort, *libs)
	} else {
		proc.engine, err = openLocal(ort, *libs)
	}
	if err != nil {
		if diag.ClassOf(err) == diag.ClassUnavailable {
			return nil, unavailable(err)
		}
		return nil, fail(err, "")
	}
	return proc, nil
}

// readOptions takes the options over, of which those of the compiler are only checked, and returns the libraries that
// they name. An error may come with a hint.
func (p *processor) readOptions(options map[string]string) (library, ort, hint string, err error) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		text := options[key]
		switch key {
		case optLibrary:
			library = text
		case optORT:
			ort = text
		case optSoC, optArch, optVTCM, optLevel:
			number, err := strconv.Atoi(text)
			if err != nil || number < 0 {
				return "", "", "", fmt.Errorf("option %q is %q, want a number", key, text)
			}
			switch key {
			case optSoC:
				p.soc = number
			case optArch:
				p.arch = number
			}
		default:
			known := []string{optLibrary, optORT, optSoC, optArch, optVTCM, optLevel}
			return "", "", "options: " + strings.Join(known, ", "), fmt.Errorf("unknown option %q", key)
		}
	}
	return library, ort, "", nil
}

// Shards are multiples of tileN columns, or of tileK along the reduction: a tile of the HTP's
// matrix unit has 32 of each.
const (
	tileN = 32
	tileK = 32
)

// kinds are the operators that a compiled graph may have. Operators that work on the cache, or
// depend on the position of a call, cannot be compiled ahead; of an estimate of scores the products of codes are.
var kinds = []op.Kind{op.Norm, op.LayerNorm, op.QuantRows, op.MatMul, op.GroupMatMul, op.GLU, op.Activate,
	op.Gate, op.Softcap, op.Clip, op.Add, op.Copy, op.Estimate}

// schemes are those whose row in package op names this driver.
var schemes = op.SchemesOf("qnn")

// What the libraries hold, in bytes, is counted as what ONNX Runtime holds, which loads them.
const (
	stepBytes    = 83 << 10 // of a graph with its weights
	libraryBytes = 40 << 20 // with nothing loaded
)

// capabilities returns the same on the device and in its emulator, but for whose times they are.
func capabilities(emulated bool) *driver.Capabilities {
	caps := &driver.Capabilities{
		Set: capability.Set{
			Tile:  capability.Tile{K: tileK, N: tileN},
			Kinds: slices.Clone(kinds), Schemes: slices.Clone(schemes), Layouts: map[string]string{},
			KV:           op.CacheTypes,
			Forms:        map[op.Scheme][]op.Form{op.A8SQ8C: {op.Conv}, op.A8OQ8C: {op.Conv}},
			StaticShapes: true, Fuses: true, WeightsInArtifacts: true,
			Memory: &capability.Memory{StepBytes: stepBytes, LibraryBytes: libraryBytes},
		},
		Emulated: emulated,
	}
	for _, scheme := range schemes {
		caps.Layouts[scheme.Weight()] = op.OnnxLayout
	}
	for _, elem := range []op.Type{op.F32, op.F16, op.BF16} {
		caps.Layouts[string(elem)] = op.RowsLayout
	}
	return caps
}

// supports adds to Capabilities.Supports the restrictions that schemes and kinds do not express.
func supports(c *driver.Capabilities, o op.Op) error {
	if err := c.Supports(o); err != nil {
		return err
	}
	if o.Kind == op.QuantRows && (!o.Static || o.Scales > 1) {
		return errors.New("scales of each row are not supported: a compiled graph has its scales in it")
	}
	return nil
}

// Accepts returns an error for compatibility strings that this hetc does not understand. SoC and
// versions are compared before each artifact is loaded; missing libraries are reported when a
// processor is opened.
func (qnn) Accepts(token string) error {
	_, err := parseToken(token)
	return err
}
