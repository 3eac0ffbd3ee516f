package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
)

func newBenchKernels(s *cli.Streams) *cobra.Command {
	var o bench.KernelsOptions
	c := &cobra.Command{
		Use:   "kernels",
		Short: "measure the host's kernels against what this CPU allows",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return bench.Kernels(c.Context(), s, &o) },
	}
	f := c.Flags()
	f.StringVar(&o.Kernels, "kernels", "", "kernel set, or all; default the best one")
	f.StringVar(&o.Cores, "cores", "", "cores to use, such as 0,1; default the first two")
	f.IntVar(&o.Rounds, "rounds", 15, "measured rounds, after one that is not counted")
	return c
}
