package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// newBenchProcessors answers whether a plan beats those of its processors alone; bench.Processors measures a given
// plan, and bench.Sets solves for every processor and pair.
func newBenchProcessors(ui *cli.Streams) *cobra.Command {
	var options bench.Options
	cmd := &cobra.Command{
		Use:   "processors --model DIR (--plan plan.yaml | --soc soc.yaml --record rec.jsonl)",
		Short: "measure plans against each other: of every processor, of pairs, and the best",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model"); err != nil {
				return err
			}
			if (options.Plan == "") == (options.Record == "") {
				return diag.New(diag.ClassUsage, "hetc bench processors: want one of --plan and --record").
					WithHint("a plan is measured against its processors; from a record plans for all of them are " +
						"solved and measured")
			}
			if options.Plan != "" && (options.Workload != "" || options.All) {
				return diag.New(diag.ClassUsage, "hetc bench processors: --workload and --all need --record").
					WithHint("--plan measures one plan against each of its processors, and solves nothing")
			}
			if options.PromptLen < 1 || options.Gen < 1 || options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %d, --gen %d, --rounds %d: want each to be at least 1",
					options.PromptLen, options.Gen, options.Rounds)
			}
			if options.Record != "" {
				return bench.Sets(cmd, ui, &options)
			}
			return bench.Processors(cmd.Context(), ui, &options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Plan, "plan", "", "plan to measure")
	flags.StringVar(&options.Model, "model", "", "model directory with weights")
	flags.StringVar(&options.SoC, "soc", "", "SoC file: for bandwidths, and for plans of simulated SoCs")
	flags.StringVar(&options.Record, "record", "",
		"record of hetc profile: solve for every processor and pair, and measure those plans")
	flags.StringVar(&options.Workload, "workload", "", "with --record: workload file")
	flags.BoolVar(&options.All, "all", false,
		"with --record: also processors and pairs that differ only in which core they are")
	flags.StringVar(&options.Calibration, "calibration", "", "calibration that the plan was made with")
	flags.IntVar(&options.PromptLen, "prompt-len", 256, "tokens of the prompt")
	flags.IntVar(&options.Gen, "gen", 32, "tokens to decode")
	flags.IntVar(&options.Rounds, "rounds", 7, "measured rounds, after one that is not counted")
	return cmd
}
