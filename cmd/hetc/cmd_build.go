package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/build"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/internal/unit"
)

// newBuild makes plans and bundles of a whole matrix; build.Run reads hetc.yaml and schedules the combinations.
func newBuild(ui *cli.Streams) *cobra.Command {
	var opts build.Options
	cmd := &cobra.Command{
		Use:   "build [-f hetc.yaml]",
		Short: "make the plans and bundles of models x SoCs x workloads, each at most once",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return build.Run(c.Context(), ui, &opts) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.File, "file", "f", build.DefaultFile, "the matrix")
	flags.StringVarP(&opts.Output, "output", "o", "", "directory to write to, instead of the file's")
	flags.StringVar(&opts.Only, "only", "", "build SOC/MODEL/WORKLOAD alone, each with * for anything, or a prefix")
	flags.IntVarP(&opts.Jobs, "jobs", "j", runtime.GOMAXPROCS(0),
		"combinations at the same time, as far as memory allows")
	flags.StringVar(&opts.Memory, "max-memory", "",
		"memory for all jobs together, e.g. 8GiB; default three quarters of what is free")
	flags.StringVar(&opts.Cache, "cache", "", "directory of the cache; default $"+bindings.EnvCache+
		", else the user's cache directory")
	flags.StringVar(&opts.CacheSize, "cache-size", unit.Bytes(build.DefaultCacheBytes).String(),
		"bytes the cache keeps; what was not used for longest goes first")
	flags.BoolVar(&opts.DryRun, "dry-run", false, "tell what would be made, and write nothing")
	measure.AcceptNoisy(flags, &opts.AcceptNoisy)
	return cmd
}
