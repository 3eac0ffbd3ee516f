package opencl

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

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
