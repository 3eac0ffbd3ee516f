package bindings

import (
	"context"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// Simulate profiles a simulated SoC.
func Simulate(ctx context.Context, soc *socs.SoC, requests []profiler.Request, path string) error {
	const seed = 1
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, seed)
	if err != nil {
		return err
	}
	rec, err := record.Create(path, header)
	if err != nil {
		return err
	}
	defer rec.Close()
	_, err = profiler.Run(ctx, soc, requests, rec, ProfilerOptions(soc, seed))
	return err
}

// LibraryVersions notes which version of a shared library the drivers of a SoC work with.
func LibraryVersions(ctx context.Context, soc *socs.SoC, header *record.Header) error {
	for _, drv := range all.Drivers() {
		described, ok := drv.(driver.Described)
		if !ok || drv.Name() == host.Name ||
			!slices.ContainsFunc(soc.Processors, func(p socs.Processor) bool { return p.Driver == drv.Name() }) {
			continue
		}
		library, err := described.Library(ctx)
		if err != nil {
			return err
		}
		if header.Environment.Drivers == nil {
			header.Environment.Drivers = map[string]string{}
		}
		header.Environment.Drivers[drv.Name()] = library.Version
	}
	return nil
}

// ProfilerOptions bind what measures on soc.
func ProfilerOptions(soc *socs.SoC, seed uint64) profiler.Options {
	options := profiler.Options{
		Drivers: map[string]driver.Driver{}, Compilers: map[string]driver.Compiler{}, Seed: seed,
		Rounds: profiler.Rounds,
	}
	for _, drv := range Drivers(soc) {
		options.Drivers[drv.Name()] = drv
	}
	for _, compiler := range Compilers(soc) {
		options.Compilers[compiler.Name()] = compiler
	}
	return options
}
