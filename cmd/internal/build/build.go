// Package build knows how hetc build makes the cells of a matrix with the engines and compilers of this
// program, and what it tells of them.
package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
)

// DefaultFile is the matrix that is built where --file names no other.
const DefaultFile = "hetc.yaml"

// DefaultCacheBytes bounds the cache where --cache-size does not.
const DefaultCacheBytes = 10 << 30

// Options are the flags of hetc build.
type Options struct {
	File        string // the matrix
	Output      string // folder
	Only        string // pattern SOC/MODEL/WORKLOAD
	Jobs        int    // cells at a time
	Memory      string // size; "": a share of this machine's
	Cache       string // folder
	CacheSize   string
	DryRun      bool
	AcceptNoisy bool
}

// Run builds the cells of a matrix and tells what became of each.
func Run(ctx context.Context, ui *cli.Streams, options *Options) (err error) {
	if options.Jobs < 1 {
		return diag.New(diag.ClassUsage, "--jobs %d: want at least 1", options.Jobs)
	}
	settings := matrix.Options{
		Output: options.Output, Only: options.Only, Jobs: options.Jobs, MaxMemory: matrix.DefaultMemory(),
		DryRun: options.DryRun, AcceptNoisy: options.AcceptNoisy, Now: time.Now,
		Tools: matrix.Tools{
			Engine: bindings.AutoEngine(nil, solver.DefaultWorkingMemory), Simulate: bindings.Simulate, Emit: emitCell,
			Compilers: compilerIdentity, TryTokenizer: bundling.TryTokenizer,
		},
	}
	// flags first, then the files that they name, then the cache
	if options.Memory != "" {
		if settings.MaxMemory, err = cli.ParseSize("max-memory", options.Memory); err != nil {
			return err
		}
	}
	keep, err := cli.ParseSize("cache-size", options.CacheSize)
	if err != nil {
		return err
	}
	if settings.Config, err = readMatrix(options.File); err != nil {
		return err
	}
	if settings.Key, err = settings.Config.SigningKey(); err != nil {
		return err
	}
	if at := settings.Config.Bundle.NotAfter; settings.Key != nil && at != 0 && int64(at) < time.Now().Unix() {
		ui.Warnf("bundle: not_after %s has passed by this machine's clock: hosts with the same time refuse the bundles",
			&at)
	}
	if settings.Program, err = matrix.Program(); err != nil {
		return err
	}
	dir, err := bindings.CacheDir(options.Cache)
	if err != nil {
		return err
	}
	settings.Cache, err = cas.Open(dir, cas.Options{MaxBytes: keep, Now: time.Now, ReadOnly: options.DryRun})
	if err != nil {
		if len(diag.HintsOf(err)) == 0 {
			err = diag.New(diag.ClassOf(err), "%w", err).
				WithHint("name another directory: --cache DIR, or %s", bindings.EnvCache)
		}
		return err
	}
	// That closing failed is told unless something worse is.
	defer func() {
		if cerr := settings.Cache.Close(); err == nil {
			err = cerr
		}
	}()
	settings.Note, settings.Progress = ui.Notef, ui.Terminal()
	report, err := matrix.Run(ctx, settings)
	if err != nil {
		return err
	}
	return showBuild(ui, report)
}

// readMatrix reads the matrix that is to be built, and says what to do where there is none of the usual name.
func readMatrix(file string) (*matrix.Config, error) {
	config, err := matrix.ReadConfig(file)
	if errors.Is(err, fs.ErrNotExist) && file == DefaultFile {
		return nil, diag.New(diag.ClassInput, "hetc build: no %s in this folder", DefaultFile).
			WithHint("write one (docs/build.md), or name another: -f FILE")
	}
	return config, err
}

// emitCell writes a bundle of a cell.
func emitCell(
	ctx context.Context, path string, options emit.Options, soc *socs.SoC, t *matrix.Target, key *bundle.Key,
) (bundle.Digest, error) {
	if t != nil {
		flags := bundling.TargetFlags{Name: soc.Name, Emulator: t.Emulator, Fallback: t.AllowFallback}
		if t.Twin != nil {
			flags.Twin = t.Twin.File
		}
		if err := flags.Apply(ctx, &options, soc, key); err != nil {
			return bundle.Digest{}, err
		}
	}
	return bundling.Emit(ctx, path, options, soc)
}

// compilerIdentity names the libraries that compile for the processors of a target. A missing one is no error yet:
// a plan may give its processor no graph.
func compilerIdentity(ctx context.Context, soc *socs.SoC) (string, error) {
	var parts []string
	for _, compiler := range bindings.Compilers(nil) {
		known, ok := compiler.(interface {
			Identity(context.Context, driver.Target) (string, error)
		})
		if !ok {
			continue
		}
		// only compilers that can say which library they are
		for i := range soc.Processors {
			proc := &soc.Processors[i]
			if proc.Target == nil || proc.Target.Compiler != compiler.Name() {
				continue
			}
			id, err := known.Identity(ctx, driver.Target{Proc: proc.Name, Options: proc.Target.Options()})
			if errors.Is(err, driver.ErrUnavailable) {
				id, err = "missing", nil
			}
			if err != nil {
				return "", fmt.Errorf("compile for processor %q: %w", proc.Name, err)
			}
			parts = append(parts, proc.Name, id)
		}
	}
	return strings.Join(parts, " "), nil
}
