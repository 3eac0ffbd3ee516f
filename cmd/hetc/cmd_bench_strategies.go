package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// newBenchStrategies answers what each way of dividing operators is worth: HeteroInfer's own experiment.
func newBenchStrategies(ui *cli.Streams) *cobra.Command {
	var options bench.Options
	var prompts []int
	cmd := &cobra.Command{
		Use:   "strategies --model DIR --soc soc.yaml --record rec.jsonl",
		Short: "measure what each way of dividing operators is worth, beside each processor alone",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "soc", "record"); err != nil {
				return err
			}
			if len(prompts) == 0 || slices.Min(prompts) < 1 || options.Gen < 1 || options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %v, --gen %d, --rounds %d: want at least 1",
					prompts, options.Gen, options.Rounds)
			}
			return bench.Strategies(cmd, ui, &options, prompts)
		},
	}
	flags := cmd.Flags()
	solvedFlags(cmd, &options)
	flags.StringVar(&options.Calibration, "calibration", "", "calibration that plans are made with")
	flags.IntSliceVar(&prompts, "prompt-len", []int{64, 256, 300, 1024}, "tokens of the prompts")
	flags.IntVar(&options.Gen, "gen", 32, "tokens to decode after the shortest prompt")
	flags.IntVar(&options.Rounds, "rounds", 7, "measured rounds, after one that is not counted")
	return cmd
}
