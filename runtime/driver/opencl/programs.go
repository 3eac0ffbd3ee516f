package opencl

import (
	"context"
	"crypto/sha256"
	"strings"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// built is a program of a device. fromSource says that no binary was at hand.
type built struct {
	*clapi.Program
	fromSource bool
}

// WithPrograms is the driver with a store of binaries.
func (opencl) WithPrograms(programs driver.Programs) driver.Driver { return opencl{programs} }

// Identity names the device by its own name, and the driver by platform, version and the compiler behind it.
func (opencl) Identity(ctx context.Context, config driver.Config) (driver.Identity, error) {
	from, _, err := find(ctx, config)
	if err != nil {
		return driver.Identity{}, err
	}
	return identityOf(from.Device)
}

// identityOf is a device's identity.
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
			made, err := device.prebuild(program.Source)
			if err != nil {
				return nil, diag.New(diag.ClassOr(err, diag.ClassRun), "build kernels %q, variant %q, for device %q: %w",
					use.Family, variant.Name, from.Name, err)
			}
			out = append(out, *made)
		}
	}
	return out, nil
}

// prebuild builds a source and reads the binary. The program is not the one that processors use: what a driver returns
// of a program may depend on what was done with it before.
func (d *device) prebuild(source string) (made *driver.Prebuilt, err error) {
	program, err := d.context.Build(source, buildOptions(source))
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := program.Close(); err == nil {
			err = failed
		}
	}()
	made = &driver.Prebuilt{Key: driver.ProgramKey{Identity: d.identity, Source: sha256.Sum256([]byte(source))}}
	made.Binary, err = program.Binary()
	return made, err
}

// buildOptions are the compiler's options for a source: no warnings, which some write to the standard error output, and
// the version of the language that variants need for what they use.
func buildOptions(source string) string {
	if strings.Contains(source, "#define DOT\n") || strings.Contains(source, "#define SUBGROUPS\n") {
		return "-w -cl-std=CL3.0"
	}
	return "-w"
}

// program returns a program, which is built once: of the binary that the store has, or of the source. A binary that the
// device refuses counts as none.
func (d *device) program(source string, store driver.Programs) (*clapi.Program, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := driver.ProgramKey{Identity: d.identity, Source: sha256.Sum256([]byte(source))}
	strict := store != nil && store.Strict()
	if known, ok := d.programs[key.Source]; ok && !(strict && known.fromSource) {
		return known.Program, nil
	}
	options := buildOptions(source)
	if store != nil {
		if binary := store.Binary(key); binary != nil {
			if made, err := d.context.BuildBinary(binary, options); err == nil {
				d.programs[key.Source] = built{Program: made}
				return made, nil
			}
		}
	}
	if strict {
		return nil, diag.New(diag.ClassUnavailable, "there is no binary for device %q with driver %q, and the source must "+
			"not be built", d.identity.Device, d.identity.Driver).
			WithHint("emit the bundle with --binaries on a machine with this device and driver, or run it without --strict")
	}
	made, err := d.context.Build(source, options)
	if err != nil {
		return nil, err
	}
	if store != nil {
		// A driver that gives no binary builds again the next time.
		if binary, err := made.Binary(); err == nil {
			store.Built(key, binary)
		}
	}
	d.programs[key.Source] = built{made, true}
	return made, nil
}
