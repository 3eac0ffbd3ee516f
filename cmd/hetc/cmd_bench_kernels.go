package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newBenchKernels answers what share of this CPU's peak the host's kernels reach; bench.Kernels measures.
func newBenchKernels(ui *cli.Streams) *cobra.Command {
	var opts bench.KernelsOptions
	cmd := &cobra.Command{
		Use:   "kernels",
		Short: "measure the host's kernels against what this CPU allows",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return bench.Kernels(c.Context(), ui, &opts) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Kernels, "kernels", "", "kernel set, or all; default the best one")
	flags.StringVar(&opts.Cores, "cores", "", "cores to use, such as 0,1; default the first two")
	flags.IntVar(&opts.Rounds, "rounds", 15, "measured rounds, after one that is not counted")
	return cmd
}
