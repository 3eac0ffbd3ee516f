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
		Args:  cobra.NoArgs,
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
