package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// newBenchOutliers answers what shadow outliers cost: llm.npu's own experiment.
func newBenchOutliers(ui *cli.Streams) *cobra.Command {
	var options bench.Options
	var roles bench.OutlierOptions
	cmd := &cobra.Command{
		Use:   "outliers --model DIR --soc soc.yaml --record rec.jsonl --products PROC --beside PROC",
		Short: "measure shadow outliers on another processor beside none, and beside all on one core",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "soc", "record", "products", "beside"); err != nil {
				return err
			}
			if options.PromptLen < 1 || options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %d, --rounds %d: want at least 1", options.PromptLen,
					options.Rounds)
			}
			if !(roles.Share > 0 && roles.Share < 1) {
				return diag.New(diag.ClassUsage, "--share %v: want more than 0 and less than 1", roles.Share)
			}
			if options.Calibration != "" && cmd.Flags().Changed("share") {
				return diag.New(diag.ClassUsage, "--share and --calibration are both given: a calibration has the scales")
			}
			return bench.Outliers(cmd, ui, &options, &roles)
		},
	}
	flags := cmd.Flags()
	solvedFlags(cmd, &options)
	flags.StringVar(&options.Calibration, "calibration", "", "calibration with the static scales (default: of the prompt)")
	flags.StringVar(&roles.Products, "products", "", "processor that computes products with static scales")
	flags.StringVar(&roles.Beside, "beside", "", "processor that computes outliers and the rest")
	flags.StringVar(&roles.Behind, "behind", "",
		"processor that takes turns with --products (default: the one with the same cores)")
	flags.Float64Var(&roles.Share, "share", 0.003, "of the channels exceed their scale, without --calibration")
	flags.IntVar(&options.PromptLen, "prompt-len", 256, "tokens of the prompt")
	flags.IntVar(&options.Rounds, "rounds", 7, "measured rounds, after one that is not counted")
	return cmd
}
