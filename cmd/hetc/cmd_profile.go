package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/profiler"
)

// newProfile measures a model's operators on the processors; measure.Profile fills a record, and measure.CompilerFacts
// asks only the target's compiler.
func newProfile(ui *cli.Streams) *cobra.Command {
	var options measure.ProfileOptions
	cmd := &cobra.Command{
		Use:   "profile (--soc soc.yaml | --target NAME) --model DIR -o rec.jsonl",
		Short: "measure the model's operator shapes on the real processors",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if options.SoC, err = solving.SoCOrTarget(cmd, options.SoC, options.Target); err != nil {
				return err
			}
			if err := cli.Required(cmd, "model"); err != nil {
				return err
			}
			if !options.DryRun {
				if err := cli.Required(cmd, "output"); err != nil {
					return err
				}
			}
			if options.CompilerOnly {
				return measure.CompilerFacts(cmd, ui, &options)
			}
			return measure.Profile(cmd.Context(), ui, &options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.SoC, "soc", "", "SoC file or catalog name")
	flags.StringVar(&options.Target, "target", "", "instead of --soc: measure what solve --target needs of this SoC")
	flags.StringVar(&options.Model, "model", "", "model directory or catalog name")
	flags.StringVar(&options.Workload, "workload", "", "workload: its buckets and schemes are measured")
	flags.StringVar(&options.Plan, "plan", "",
		"also measure what decisions of this plan need that rest on extrapolation (the last line of solve)")
	flags.StringVarP(&options.Out, "output", "o", "", "record to write")
	flags.StringVar(&options.Budget, "budget", "", "time to spend, e.g. 60s or 10m; default as long as it takes")
	flags.BoolVar(&options.Resume, "resume", false, "go on with an existing record")
	flags.BoolVar(&options.Flagged, "flagged", false,
		"with --resume: also measure anew what is flagged (noisy, drift, few-samples)")
	flags.BoolVar(&options.CompilerOnly, "compiler-only", false,
		"measure nothing: record what the target's compiler says about every graph")
	flags.BoolVar(&options.DryRun, "dry-run", false, "list what would be measured")
	flags.IntVar(&options.Rounds, "rounds", profiler.Rounds,
		"visits to every operator: fewer are faster and less certain")
	flags.IntVar(&options.HeldOut, "held-out", 0, "measure this many operators for judging predictions")
	flags.Uint64Var(&options.Seed, "seed", 1, "seed of the order of measurements and of the held-out operators")
	return cmd
}
