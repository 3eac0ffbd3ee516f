package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// newBenchExperts answers what capacity tiers, groups and residency of experts are worth: NPUMoE's own experiment.
func newBenchExperts(ui *cli.Streams) *cobra.Command {
	var options bench.Options
	var prompts []int
	cmd := &cobra.Command{
		Use:   "experts --model DIR --soc soc.yaml --record rec.jsonl --loads loads.json",
		Short: "measure capacity tiers of experts, of several rules, beside dynamic experts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "soc", "record", "loads"); err != nil {
				return err
			}
			if len(prompts) == 0 || slices.Min(prompts) < 2 || options.Gen < 0 || options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %v, --gen %d, --rounds %d: want at least 2, 0 and 1",
					prompts, options.Gen, options.Rounds)
			}
			return bench.Experts(cmd, ui, &options, prompts)
		},
	}
	flags := cmd.Flags()
	solvedFlags(cmd, &options)
	flags.StringVar(&options.Loads, "loads", "", "loads of experts, of hetc loads")
	flags.StringVar(&options.Calibration, "calibration", "", "calibration that plans are made with")
	flags.IntSliceVar(&prompts, "prompt-len", []int{256}, "tokens of the prompts")
	flags.IntVar(&options.Gen, "gen", 0, "tokens to decode after the shortest prompt; 0: prompts alone")
	flags.IntVar(&options.Rounds, "rounds", 7, "measured rounds, after one that is not counted")
	return cmd
}
