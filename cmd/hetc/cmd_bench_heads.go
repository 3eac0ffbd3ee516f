package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// newBenchHeads answers what a pipeline of heads is worth: shadowAttn's own experiment.
func newBenchHeads(ui *cli.Streams) *cobra.Command {
	var options bench.Options
	var roles bench.HeadOptions
	var prompts []int
	cmd := &cobra.Command{
		Use:   "heads --model DIR --soc soc.yaml --record rec.jsonl --estimate PROC --beside PROC",
		Short: "measure sparse attention with estimates on another processor, heads in a pipeline and not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "soc", "record", "estimate", "beside"); err != nil {
				return err
			}
			if len(prompts) == 0 || slices.Min(prompts) < 2 || options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %v, --rounds %d: want at least 2 and 1", prompts,
					options.Rounds)
			}
			if !(roles.Density >= 0 && roles.Density <= 1) {
				return diag.New(diag.ClassUsage, "--density %v: want more than 0 and at most 1", roles.Density)
			}
			return bench.Heads(cmd, ui, &options, &roles, prompts)
		},
	}
	flags := cmd.Flags()
	solvedFlags(cmd, &options)
	flags.StringVar(&options.Calibration, "calibration", "", "calibration of attention (default: all heads alike)")
	flags.StringVar(&roles.Estimate, "estimate", "", "processor that estimates scores, and nothing else")
	flags.StringVar(&roles.Beside, "beside", "", "processor that computes the rest")
	flags.Float64Var(&roles.Density, "density", 0, "share of the positions that are attended to (default: the workload's)")
	flags.IntSliceVar(&prompts, "prompt-len", []int{512, 1024, 2048, 4096}, "tokens of the prompts")
	flags.IntVar(&options.Rounds, "rounds", 5, "measured rounds, after one that is not counted")
	return cmd
}
