// Package bindings knows which drivers, compilers and solver engines this program contains, where its cache
// is, and how they become options of the packages that use them.
package bindings

import (
	"path/filepath"
	"time"

	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/emit/compile/opencl"
	"github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// EnvCache names the cache's directory.
const EnvCache = machine.EnvCache

// CacheDir returns where the cache is.
func CacheDir(flag string) (string, error) { return machine.CacheDir(flag) }

// ReadCalibration reads a calibration; without a path there is none.
func ReadCalibration(path string) (*calibration.Calibration, error) {
	if path == "" {
		return nil, nil
	}
	return calibration.Read(path)
}

// Compilers returns the compilers this build has, for a plan's processors on soc.
func Compilers(soc *socs.SoC) []driver.Compiler {
	out := []driver.Compiler{host.New(), ort.New(), opencl.New(), qnn.New(qnn.Options{Cache: CompiledCache(), Now: time.Now})}
	if soc != nil && soc.Simulated() {
		out = append(out, sim.NewCompiler(soc))
	}
	return out
}

// CompiledCache returns the folder of what vendors' compilers made, empty where there is no place for it.
func CompiledCache() string {
	dir, err := CacheDir("")
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "qnn")
}

// Drivers returns those that execute for real, and the simulation of soc if it is simulated.
func Drivers(soc *socs.SoC) []driver.Driver {
	out := all.Drivers()
	if soc != nil && soc.Simulated() {
		out = append(out, sim.New(soc))
	}
	return out
}

// SoCOf returns the SoC a plan is for: the file or name given, or for a simulated plan the catalog's.
// A SoC with another digest than the plan's is refused.
func SoCOf(plan *planir.Plan, given string) (*socs.SoC, error) {
	name := given
	if name == "" {
		// A real machine is the one this runs on, which needs no description.
		if !plan.SoC.Simulated {
			return nil, nil
		}
		name = plan.SoC.Name
	}
	soc, err := socs.Open(name)
	if err != nil && given == "" {
		return nil, diag.New(diag.ClassOf(err), "find the machine the plan was made for: %w", err).
			WithHint("give the SoC file the plan was solved with: --soc FILE")
	}
	if err != nil {
		return nil, err
	}
	digest, err := soc.Digest()
	if err != nil {
		return nil, err
	}
	if digest != plan.SoC.Digest {
		return nil, diag.New(diag.ClassInput, "soc %q has digest %.12s, and the plan was made for %q with %.12s", name,
			digest, plan.SoC.Name, plan.SoC.Digest).
			WithHint("give the SoC file the plan was solved with (--soc), or solve again")
	}
	return soc, nil
}
