package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/build"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/unit"
)

func newBuild(s *cli.Streams) *cobra.Command {
	var o build.Options
	c := &cobra.Command{
		Use:   "build [-f hetc.yaml]",
		Short: "make the plans and bundles of models x SoCs x workloads, each at most once",
		Long: `Reads a matrix of models, SoCs and workloads (docs/build.md) and makes a plan of each combination, and a
signed bundle where the model has weights, as OUTPUT/SOC/MODEL/WORKLOAD.plan.yaml and .hetb. The key is the file's or
the environment's (` + emit.EnvSigningKey + `, ` + emit.EnvSigningKeyFile + `); without one a file that wants bundles is refused (sign:).

A soc: of the catalog is simulated, and its bundles run on the simulator alone. A target: is the SoC's device: its bundles
are what hetc emit --target writes.

Results are kept in a cache under everything that influenced them: what nothing changed for is not made
again, and a build that was interrupted or killed goes on where it stopped. The files do not depend on the
number of jobs, on what the cache held, or on interruptions. A combination that fails stops no other; its
reason is in the table, and the exit code is that of the first one that failed.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return build.Run(c.Context(), s, &o) },
	}
	f := c.Flags()
	f.StringVarP(&o.File, "file", "f", "hetc.yaml", "the matrix")
	f.StringVarP(&o.Output, "output", "o", "", "directory to write to, instead of the file's")
	f.StringVar(&o.Only, "only", "", "build SOC/MODEL/WORKLOAD alone, each with * for anything, or a prefix")
	f.IntVarP(&o.Jobs, "jobs", "j", runtime.GOMAXPROCS(0), "combinations at the same time, as far as memory allows")
	f.StringVar(&o.Memory, "max-memory", "", "memory for all jobs together, e.g. 8GiB; default three quarters of what is free")
	f.StringVar(&o.Cache, "cache", "", "directory of the cache; default $"+bindings.EnvCache+", else the user's cache directory")
	f.StringVar(&o.CacheSize, "cache-size", unit.Bytes(build.DefaultCacheBytes).String(), "bytes the cache keeps; what was not used for longest goes first")
	f.BoolVar(&o.DryRun, "dry-run", false, "tell what would be made, and write nothing")
	measure.AcceptNoisy(f, &o.AcceptNoisy)
	return c
}
