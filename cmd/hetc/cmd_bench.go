package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

func newBench(s *cli.Streams) *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "measure plans and kernels against alternatives and bounds in the same run", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(newBenchProcessors(s), newBenchKernels(s), newBenchEngines(s), newBenchPlans(s), newBenchSolver(s))
	return c
}

func newBenchProcessors(s *cli.Streams) *cobra.Command {
	var o bench.Options
	c := &cobra.Command{
		Use:   "processors --model DIR (--plan plan.yaml | --soc soc.yaml --record rec.jsonl)",
		Short: "measure plans against each other: of every processor, of pairs, and the best",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model"); err != nil {
				return err
			}
			if (o.Plan == "") == (o.Record == "") {
				return diag.New(diag.ClassUsage, "hetc bench processors: want one of --plan and --record").
					WithHint("a plan is measured against its processors; from a record plans for all of them are solved and measured")
			}
			if o.PromptLen < 1 || o.Gen < 1 || o.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %d, --gen %d, --rounds %d: want at least 1", o.PromptLen, o.Gen, o.Rounds)
			}
			if o.Record != "" {
				return bench.Sets(c, s, &o)
			}
			return bench.Processors(c.Context(), s, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Plan, "plan", "", "plan to measure")
	f.StringVar(&o.Model, "model", "", "model directory with weights")
	f.StringVar(&o.SoC, "soc", "", "SoC file: for bandwidths, and for plans of simulated SoCs")
	f.StringVar(&o.Record, "record", "", "record of hetc profile: solve for every processor and pair, and measure those plans")
	f.StringVar(&o.Workload, "workload", "", "with --record: workload file")
	f.BoolVar(&o.All, "all", false, "with --record: also processors and pairs that differ only in which core they are")
	f.StringVar(&o.Calibration, "calibration", "", "calibration that the plan was made with")
	f.IntVar(&o.PromptLen, "prompt-len", 256, "tokens of the prompt")
	f.IntVar(&o.Gen, "gen", 32, "tokens to decode")
	f.IntVar(&o.Rounds, "rounds", 7, "measured rounds, after one that is not counted")
	return c
}
