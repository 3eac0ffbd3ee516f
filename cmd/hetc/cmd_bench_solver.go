package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

func newBenchSolver(ui *cli.Streams) *cobra.Command {
	var options bench.SolverOptions
	cmd := &cobra.Command{
		Use:   "solver [--soc SOC (--record rec.jsonl | --costs costs.yaml) --model MODEL]",
		Short: "measure the engines of solve on problems of full size",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.Rounds < 1 || options.Limit <= 0 {
				return diag.New(diag.ClassUsage, "--rounds %d, --limit %v: want at least 1, and a time", options.Rounds, options.Limit)
			}
			if options.Markdown != "" {
				if err := wholefile.Writable(options.Markdown); err != nil {
					return err
				}
			}
			return options.Run(cmd, ui)
		},
	}
	options.In.Flags(cmd)
	cmd.Flags().IntVar(&options.Rounds, "rounds", 7, "rounds of each model that both builds of HiGHS solve")
	cmd.Flags().DurationVar(&options.Limit, "limit", 2*time.Minute, "the longest that one solve may take")
	cmd.Flags().StringVar(&options.Markdown, "markdown", "", "file for the tables as Markdown")
	return cmd
}
