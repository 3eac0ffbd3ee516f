package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// newBenchSolver answers how long each engine of solve takes; bench.SolverOptions.Run measures.
func newBenchSolver(ui *cli.Streams) *cobra.Command {
	var opts bench.SolverOptions
	cmd := &cobra.Command{
		Use:   "solver [--soc SOC (--record rec.jsonl | --costs costs.yaml) --model MODEL]",
		Short: "measure the engines of solve on problems of full size",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--rounds must be at least 1, got %d", opts.Rounds)
			}
			if opts.Limit <= 0 {
				return diag.New(diag.ClassUsage, "--limit must be positive, got %v", opts.Limit)
			}
			if opts.Markdown != "" {
				if err := wholefile.Writable(opts.Markdown); err != nil {
					return err
				}
			}
			return opts.Run(cmd, ui)
		},
	}
	opts.In.Flags(cmd)
	cmd.Flags().IntVar(&opts.Rounds, "rounds", 7, "rounds of each model that both builds of HiGHS solve")
	cmd.Flags().DurationVar(&opts.Limit, "limit", 2*time.Minute, "the longest that one solve may take")
	cmd.Flags().StringVar(&opts.Markdown, "markdown", "", "file for the tables as Markdown")
	return cmd
}
