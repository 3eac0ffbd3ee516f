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
		Long: `Measures matrix products and attention of the host driver, as plans run them, each between two readings of
what bounds it: multiply-adds on registers alone in the kernel's own instruction set, or reading memory that
lies in no cache. Everything is visited once a round in random order on one pinned core; the share is the
median of the rounds' shares, with its 95 % interval. With two cores or more the products are also run on all
of them, and what they gain over one core is compared with what the register-only loop gains.

Another hardware thread of the same core, which in a virtual machine may be a stranger's, halves the instructions
that a core begins. That is read beside every visit, and rounds in which it was so do not count, where 9 are left:
the table says how many count, and what the median of all is.

A mark is what the kernels of the best instruction set shall reach; its line says so when they do not. Leave
the machine alone meanwhile.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return bench.Kernels(c.Context(), s, &o) },
	}
	f := c.Flags()
	f.StringVar(&o.Kernels, "kernels", "", "kernel set, or all; default the best one")
	f.StringVar(&o.Cores, "cores", "", "cores to use, such as 0,1; default the first two")
	f.IntVar(&o.Rounds, "rounds", 15, "measured rounds, after one that is not counted")
	return c
}
