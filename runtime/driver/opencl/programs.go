package opencl

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// WithPrograms returns the driver with a store of binaries.
func (opencl) WithPrograms(programs driver.Programs) driver.Driver { return opencl{programs} }

// Identity names the device by its own name, and the driver by platform, version and the compiler behind it.
func (opencl) Identity(ctx context.Context, config driver.Config) (driver.Identity, error) {
	from, _, err := find(ctx, config)
	if err != nil {
		return driver.Identity{}, err
	}
	return identityOf(from.Device)
}

// identityOf returns a device's identity.
func identityOf(from *clapi.Device) (driver.Identity, error) {
	version, err := from.Text(clapi.DeviceDriverVersion)
	if err != nil {
		return driver.Identity{}, err
	}
	return driver.Identity{Device: from.Name,
		Driver: strings.Join([]string{from.Platform.Name, version, from.Platform.Version}, ", ")}, nil
}

// Prebuild builds the programs of an artifact for the variants that forms name or the device would choose.
func (opencl) Prebuild(ctx context.Context, config driver.Config, data []byte) ([]driver.Prebuilt, error) {
	from, settings, err := find(ctx, config)
	if err != nil {
		return nil, err
	}
	device, err := share(from.Device)
	if err != nil {
		return nil, err
	}
	if err := settings.fit(&device.features); err != nil {
		return nil, err
	}
	code, err := kernel.Parse(data)
	if err != nil {
		return nil, err
	}
	var out []driver.Prebuilt
	seen := map[[sha256.Size]byte]bool{} // a variant may be named and taken without a name
	for _, use := range kernel.Uses(&code.Graph) {
		variant, err := choose(code, use, settings, &device.features)
		if err != nil {
			return nil, err
		}
		for _, program := range code.Programs {
			digest := sha256.Sum256([]byte(program.Source))
			if program.Family != use.Family || program.Variant != variant.Name || seen[digest] {
				continue
			}
			seen[digest] = true
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			made, err := device.programs.prebuild(program.Source)
			if err != nil {
				return nil, diag.New(diag.ClassOr(err, diag.ClassRun),
					"build kernels %q, variant %q, for device %q: %w", use.Family, variant.Name, from.Name, err)
			}
			out = append(out, *made)
		}
	}
	return out, nil
}

// prebuild builds a source and reads the binary. Processors do not use this program, because the binary that a driver
// returns may depend on earlier uses of the program.
func (p *programs) prebuild(source string) (made *driver.Prebuilt, err error) {
	program, err := p.context.Build(source, buildOptions(source))
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := program.Close(); err == nil {
			err = failed
		}
	}()
	made = &driver.Prebuilt{Key: driver.ProgramKey{Identity: p.identity, Source: sha256.Sum256([]byte(source))}}
	made.Binary, err = program.Binary()
	return made, err
}

// buildOptions returns the compiler's options for a source: no warnings, which some write to the standard error output,
// and the version of the language that variants need for what they use.
func buildOptions(source string) string {
	if strings.Contains(source, "#define DOT\n") || strings.Contains(source, "#define SUBGROUPS\n") {
		return "-w -cl-std=CL3.0"
	}
	return "-w"
}

// programs are the built programs of a device, which the processors of all bundles in this process share. Those that no
// processor uses are kept for the next one, up to a number.
type programs struct {
	context  *clapi.Context
	identity driver.Identity

	keep int // programs that no processor uses

	mu    sync.Mutex
	built map[programKey]*built
	uses  uint64 // takings so far: a clock
}

// idlePrograms is that number: more than a model needs.
const idlePrograms = 64

// programKey identifies a program of a device by its source, which determines the compiler's options, and its binary.
// Only the bundle that carries a binary vouches for it. So another bundle uses the program only if it carries the same
// binary, and bundles without a binary share the program that was built from the source.
// RATIONALE: What keeps a damaged program from a GPU?
type programKey struct{ source, binary [sha256.Size]byte } // binary is zero where there is none

// built is a program with the number of processors that use it.
type built struct {
	*clapi.Program
	key        programKey
	fromSource bool // there was no binary, or the device refused it
	users      int
	used       uint64 // when it was last taken
}

// take returns the program of a source: made of the binary that the store has, or built. A binary that the device
// refuses counts as none. Whoever takes a program gives it back.
func (p *programs) take(source string, store driver.Programs) (*built, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := driver.ProgramKey{Identity: p.identity, Source: sha256.Sum256([]byte(source))}
	var binary []byte
	if store != nil {
		binary = store.Binary(key)
	}
	made := programKey{source: key.Source}
	if binary != nil {
		made.binary = sha256.Sum256(binary)
	}
	known := p.built[made]
	strict := store != nil && store.Strict()
	if known == nil {
		var err error
		if known, err = p.make(source, binary, key, store); err != nil {
			return nil, err
		}
		known.key = made
		if p.built == nil {
			p.built = map[programKey]*built{}
		}
		p.built[made] = known
	} else if strict && known.fromSource {
		return nil, p.noBinary()
	}
	p.uses++
	known.users, known.used = known.users+1, p.uses
	return known, nil
}

// make makes a program of a binary, nil for none, or of its source.
func (p *programs) make(source string, binary []byte, key driver.ProgramKey, store driver.Programs) (*built, error) {
	options := buildOptions(source)
	if binary != nil {
		if made, err := p.context.BuildBinary(binary, options); err == nil {
			return &built{Program: made}, nil
		}
	}
	if store != nil && store.Strict() {
		return nil, p.noBinary()
	}
	made, err := p.context.Build(source, options)
	if err != nil {
		return nil, err
	}
	if store != nil {
		// A driver that gives no binary builds again the next time.
		if binary, err := made.Binary(); err == nil {
			store.Built(key, binary)
		}
	}
	return &built{Program: made, fromSource: true}, nil
}

// noBinary returns the error where nothing may be built from source.
func (p *programs) noBinary() error {
	return diag.New(diag.ClassUnavailable,
		"there is no binary for device %q with driver %q, and the source must not be built", p.identity.Device,
		p.identity.Driver).
		WithHint("emit the bundle with --binaries on a machine with this device and driver, or run it without --strict")
}

// give gives programs back. The library keeps the parts of a released program that kernels still need.
func (p *programs) give(taken map[string]*built) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, program := range taken {
		program.users--
	}

	for {
		var oldest *built
		idle := 0
		for _, program := range p.built {
			if program.users > 0 {
				continue
			}
			if idle++; oldest == nil || program.used < oldest.used {
				oldest = program
			}
		}
		if idle <= p.keep {
			return err
		}
		delete(p.built, oldest.key)
		err = errors.Join(err, oldest.Close())
	}
}

// program returns the program of a source for the processor, which keeps it until it is closed.
func (p *processor) program(source string) (*clapi.Program, error) {
	if known := p.taken[source]; known != nil {
		return known.Program, nil
	}
	taken, err := p.device.programs.take(source, p.settings.programs)
	if err != nil {
		return nil, err
	}
	p.taken[source] = taken
	return taken.Program, nil
}
