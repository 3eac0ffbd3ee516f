package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

func newBenchSolver(s *cli.Streams) *cobra.Command {
	var o bench.SolverOptions
	c := &cobra.Command{
		Use:   "solver [--soc SOC (--record rec.jsonl | --costs costs.yaml) --model MODEL]",
		Short: "measure the engines of solve on problems of full size",
		Long: `Solves problems of full size on one core: capacity tiers of 48 layers with 512 experts, buckets among 2048 lengths and, with the inputs of
solve, the plan's own problem, all of its programs together. The exact engine solves each; where it leaves a gap, HiGHS closes it. Then
HiGHS as WebAssembly and as a library solve the same smaller models in turns: the ratio is that of medians, with its 95 % interval.

A solve that takes longer than --limit is given up, and its line says so.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Rounds < 1 || o.Limit <= 0 {
				return diag.New(diag.ClassUsage, "--rounds %d, --limit %v: want at least 1, and a time", o.Rounds, o.Limit)
			}
			if o.Markdown != "" {
				if err := wholefile.Writable(o.Markdown); err != nil {
					return err
				}
			}
			return o.Run(c, s)
		},
	}
	o.In.Flags(c)
	c.Flags().IntVar(&o.Rounds, "rounds", 7, "rounds of each model that both builds of HiGHS solve")
	c.Flags().DurationVar(&o.Limit, "limit", 2*time.Minute, "the longest that one solve may take")
	c.Flags().StringVar(&o.Markdown, "markdown", "", "file for the tables as Markdown")
	return c
}
