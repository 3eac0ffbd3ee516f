// Package ort knows how to use ONNX Runtime as a processor: cores of this CPU with the library's kernels, or what one
// of the library's execution providers drives. Shapes are static; the library makes its own copy of weights.
//
// A processor is one core ("0"), whose thread alone computes, or several ("0-1"), on which the library divides every
// operator among its own threads. Nothing falls back: a provider that the library does not offer, or that does not
// take all of a graph, is refused by name, and so is an artifact that computes in another precision than its graph
// says.
package ort

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Name is the driver's name in SoC files and plans.
const Name = "ort"

// Options of a processor. Keys with a prefix are passed on: provider.KEY to the execution provider, config.KEY to the
// library's session configuration.
const (
	optLibrary  = "library"  // path of the shared library
	optProvider = "provider" // execution provider; default the library's own CPU kernels
)

const cpuProvider = "CPUExecutionProvider"

// New returns the driver. The library is looked for when a processor is opened or devices are listed.
func New() driver.Driver { return ort{} }

// ort has no state: libraries are shared by all processors of this process.
type ort struct{}

func (ort) Name() string { return Name }

// Devices fails where the library is missing, so that it is not offered in vain.
func (ort) Devices(context.Context) ([]driver.Device, error) {
	if _, err := find(""); err != nil {
		return nil, err
	}
	var out []driver.Device
	for _, selection := range affinity.Selections() {
		what := fmt.Sprintf("ONNX Runtime on CPU core %d", selection.Cores[0])
		if len(selection.Cores) > 1 {
			what = fmt.Sprintf("ONNX Runtime on %d CPU cores", len(selection.Cores))
		}
		out = append(out, driver.Device{Select: selection.Select, Description: what, Cores: selection.Cores})
	}
	return out, nil
}

// Library returns the one that is loaded where no option names another.
func (ort) Library(context.Context) (driver.Library, error) {
	lib, err := find("")
	if err != nil {
		return driver.Library{}, err
	}
	providers, err := lib.Providers()
	return driver.Library{Name: "ONNX Runtime", Version: lib.Version, Path: lib.Path, Build: lib.BuildInfo,
		Providers: providers}, err
}

// find loads the library.
func find(path string) (*ortapi.Library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if path == "" {
		path = os.Getenv(ortapi.EnvLibrary)
	}
	if lib := libraries.of[path]; lib != nil {
		return lib, nil
	}
	lib, err := ortapi.Find(path)
	if err != nil {
		return nil, unavailable(err)
	}
	if libraries.of == nil {
		libraries.of = map[string]*ortapi.Library{}
	}
	libraries.of[path] = lib
	return lib, nil
}

// libraries are the loaded libraries, by the path that was asked for.
var libraries struct {
	sync.Mutex
	of map[string]*ortapi.Library
}

// unavailable says where the library was looked for.
func unavailable(err error) error {
	missing := &driver.Unavailable{Driver: Name, Found: err.Error(), Override: ortapi.EnvLibrary,
		Get: "make deps fetches the library"}
	if l, ok := errors.AsType[*ortapi.LoadError](err); ok {
		missing.Tried = l.Tried
		if l.Problem == ortapi.Nowhere {
			missing.Found = ""
		}
	}
	return missing
}

// Open accepts the selectors of Devices and any other range of usable cores.
func (ort) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fail := func(err error, hint string) error {
		return diag.New(diag.ClassOr(err, diag.ClassInput), "open processor %q of driver %q: %w", config.Select, Name,
			err).WithHint("%s", hint)
	}
	cores, err := affinity.Select(config.Select)
	if err != nil {
		return nil, fmt.Errorf("open processor %q of driver %q: %w", config.Select, Name, err)
	}
	proc := &processor{cores: cores, models: map[string]*model{}, loaded: map[*executable]bool{}}
	path, hint, err := proc.readOptions(config.Options)
	if err != nil {
		return nil, fail(err, hint)
	}
	lib, err := find(path)
	if err != nil {
		return nil, err
	}
	// nothing falls back: a provider must be offered
	if proc.provider != "" {
		offered, err := lib.Providers()
		if err != nil {
			return nil, fail(err, "")
		}
		if !slices.Contains(offered, proc.provider) {
			return nil, diag.New(diag.ClassUnavailable,
				"open processor %q of driver %q: library %q (version %s) has no execution provider %q", config.Select,
				Name, lib.Path, lib.Version, proc.provider).
				WithHint("it offers %s", strings.Join(offered, ", "))
		}
	}
	proc.env, err = environment(lib)
	if err != nil {
		return nil, fail(err, "")
	}
	proc.storage, err = proc.env.exactStorage(proc.options(1))
	if err != nil {
		return nil, fail(errors.Join(err, proc.env.release()), "")
	}
	convolves, err := proc.env.exactConvolution(proc.options(1))
	if err != nil {
		return nil, fail(errors.Join(err, proc.env.release()), "")
	}
	proc.caps, proc.Name = capabilities(cores, proc.storage, convolves), name(cores, proc.provider)
	return proc, nil
}

// readOptions takes the options over, those of the provider and of the session by their prefixes, and returns the path
// of the library. An error comes with a hint.
func (p *processor) readOptions(options map[string]string) (path, hint string, err error) {
	for _, option := range slices.Sorted(maps.Keys(options)) {
		text := options[option]
		if key, ok := strings.CutPrefix(option, optProvider+"."); ok && key != "" {
			p.providerOptions = append(p.providerOptions, [2]string{key, text})
			continue
		}
		if key, ok := strings.CutPrefix(option, "config."); ok && key != "" {
			if key == noFallback || key == asWritten {
				return "", "nothing may fall back to another processor, or compute in another precision",
					fmt.Errorf("option %q is hetc's own", option)
			}
			p.config = append(p.config, [2]string{key, text})
			continue
		}
		switch option {
		case optLibrary:
			path = text
		case optProvider:
			p.provider = text
		default:
			return "", "options: library, provider, provider.KEY, config.KEY", fmt.Errorf("unknown option %q", option)
		}
	}
	if p.provider == cpuProvider {
		p.provider = ""
	}
	if p.provider == "" && len(p.providerOptions) > 0 {
		return "", "name it: provider: NAME", fmt.Errorf("option \"provider.%s\" without a provider that takes options",
			p.providerOptions[0][0])
	}
	return path, "", nil
}

// noFallback makes the library refuse nodes that the provider does not take, instead of computing
// them on the CPU.
const noFallback = "session.disable_cpu_ep_fallback"

// layouts is the packed layout of every weight scheme.
var layouts = map[string]string{
	"w32": op.OnnxLayout, "q8c": op.OnnxLayout, "q4b32": op.OnnxLayout, "q4b128": op.OnnxLayout,
	"f32": op.RowsLayout, "f16": op.RowsLayout, "bf16": op.RowsLayout,
}

// layout returns the layout in which a scheme's weights are packed for the library.
func layout(scheme string) string { return layouts[scheme] }

// tileN is the unit of column shards: two tiles of the widest matrix instructions.
const tileN = 32

// What the library holds, in bytes: measured, and half as much again. What its operators need for
// their rows is not known.
const (
	stepBytes    = 83 << 10 // of a graph with its weights
	libraryBytes = 40 << 20 // with nothing loaded
)

// capabilities returns what the library computes in the graph's precision; shapes are static, and it makes its own copy
// of weights. Where it multiplies no type of 8-bit weights exactly, schemes with them are left out, and convolutions of
// 8-bit codes where it does not compute these exactly.
func capabilities(cores []int, weights storage, convolves bool) *driver.Capabilities {
	schemes := op.SchemesOf(Name)
	if weights == inexact {
		schemes = slices.DeleteFunc(slices.Clone(schemes), isInteger)
	}
	forms := map[op.Scheme][]op.Form{op.A32W32: {op.Swapped, op.Conv}}
	if convolves && weights != inexact {
		forms[op.A8SQ8C], forms[op.A8OQ8C] = []op.Form{op.Conv}, []op.Form{op.Conv}
	}
	return &driver.Capabilities{
		Set: capability.Set{
			Tile: capability.Tile{K: 128, N: tileN},
			Kinds: []op.Kind{
				op.Embed, op.Norm, op.LayerNorm, op.QuantRows, op.MatMul, op.GroupMatMul, op.GLU, op.Activate, op.Gate,
				op.Softcap, op.Clip, op.Add, op.Copy, op.Estimate,
			},
			Schemes: schemes,
			KV:      op.CacheTypes,
			Forms:   forms,
			Layouts: maps.Clone(layouts),

			StaticShapes: true, Prepacks: true, Fuses: true,
			Memory: &capability.Memory{StepBytes: stepBytes, LibraryBytes: libraryBytes},
		},
		Rerounds: []op.Scheme{op.A8TQ4B32, op.A8TQ4B128},
		Cores:    slices.Clone(cores),
	}
}
