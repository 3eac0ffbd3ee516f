// Package host knows how to use cores of this CPU as a processor, in pure Go: it is always there, it is
// the numeric reference (option kernels=reference), and with vector kernels a real processor.
//
// A processor is one core ("0") or a range of cores ("0-1") that share the tiles of every operator
// dynamically, so that a momentarily slower core does less. Cores are the operating system's numbers.
// On Linux the threads are pinned to their cores; elsewhere they are not, the operating system
// places them, and cores are numbered 0..n-1 only to count them.
//
// A processor (processor.go) loads a graph as an executable (load.go): one step for each node, made by the builder from
// the node's operator (steps.go, and a file for each family of operators, such as product.go and attention.go). A step
// has tasks, such as tiles of columns or blocks of rows, which the threads of the team (team.go) take until none is
// left. A task calls kernels of the processor's set (package kernel). A call binds operands to memory and runs the
// steps one after another; it allocates nothing.
package host

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// Name is the driver's name in SoC files and plans.
const Name = "host"

// New returns the driver. Which cores the process may use is noted by the first call (see affinity.Cores).
func New() driver.Driver {
	affinity.Cores()
	return host{}
}

// host is the driver of this CPU; it has no state of its own.
type host struct{}

func (host) Name() string { return Name }

// Library describes the kernel set that processors get without an option.
func (host) Library(context.Context) (driver.Library, error) {
	set, err := kernel.ByName("")
	if err != nil {
		return driver.Library{}, err
	}
	return driver.Library{Name: "kernels of this program:", Version: set.Name}, nil
}

// Identity tells a processor's kernel set, which its options may name (see driver.Identified).
func (host) Identity(_ context.Context, config driver.Config) (driver.Identity, error) {
	set, err := kernelSet(config.Options["kernels"])
	if err != nil {
		return driver.Identity{}, err
	}
	return driver.Identity{Device: Fingerprint(), Driver: "kernels " + set.Name}, nil
}

// Devices lists each usable core, and all of them together as one processor.
func (host) Devices(context.Context) ([]driver.Device, error) {
	var out []driver.Device
	for _, selection := range affinity.Selections() {
		what := fmt.Sprintf("CPU core %d", selection.Cores[0])
		if cores := len(selection.Cores); cores > 1 {
			what = fmt.Sprintf("%d CPU cores as one processor", cores)
		}
		out = append(out, driver.Device{Select: selection.Select, Description: what, Cores: selection.Cores})
	}
	return out, nil
}

// Open accepts the selectors of Devices and any other range of usable cores. Option kernels names a
// kernel set ("reference", "portable", ...); without it the environment variable
// HETC_HOST_KERNELS decides, then the CPU.
func (host) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, &driver.Unavailable{Driver: Name, Found: "a big-endian CPU, packed weights are little-endian"}
	}
	cores, err := affinity.Select(config.Select)
	if err != nil {
		return nil, fmt.Errorf("open processor of driver %q: %w", Name, err)
	}
	set, err := kernel.ByName("")
	for _, key := range slices.Sorted(maps.Keys(config.Options)) {
		if key != "kernels" {
			return nil, diag.New(diag.ClassInput, "open processor %q of driver %q: unknown option %q", config.Select,
				Name, key).WithHint("options: kernels")
		}
		set, err = kernelSet(config.Options[key])
	}
	if err != nil {
		return nil, fmt.Errorf("open processor %q of driver %q: %w", config.Select, Name, err)
	}
	return newProcessor(cores, set), nil
}

// kernelSet returns the set that an option names; "" stands for what no option names. A name that is unknown is an
// error of the file that has it, of a SoC or a plan, rather than of the command line.
func kernelSet(name string) (*kernel.Set, error) {
	set, err := kernel.ByName(name)
	if name != "" && diag.ClassOf(err) == diag.ClassUsage {
		err = diag.New(diag.ClassInput, "%w", err)
	}
	return set, err
}

// layouts is the packed layout of every weight scheme, and of tables of plain values.
var layouts = map[string]string{
	"w32": pack.N32, "w16": pack.N32, "q8c": pack.N32, "q6c": pack.N32, "q4c": pack.N32,
	"q4b32": pack.N32, "q4b128": pack.N32,
	"f32": op.RowsLayout, "f16": op.RowsLayout, "bf16": op.RowsLayout,
}

// capabilities says that every kind and scheme is executed; schemes that round results are
// imitated.
func capabilities(cores []int) *driver.Capabilities {
	caps := &driver.Capabilities{
		Set: capability.Set{
			Tile:    capability.Tile{K: pack.BlockK, N: pack.TileN},
			Kinds:   slices.Clone(op.Kinds),
			Schemes: slices.Clone(op.Schemes),
			Layouts: maps.Clone(layouts),
			KV:      slices.Clone(op.CacheTypes),

			DynamicRows: true, StridedOutput: true, StridedInput: true, WeightRanges: true, FusesGLU: true,
			Memory: memory(),
		},
		Cores: slices.Clone(cores),
	}
	for _, scheme := range op.Schemes {
		if scheme.RoundsResults() {
			caps.Imitates = append(caps.Imitates, scheme)
		}
	}
	return caps
}
