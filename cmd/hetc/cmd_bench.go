package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

// newBench groups the measurements; each is a command of its own below.
func newBench(ui *cli.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "bench",
		Short: "measure plans and kernels against alternatives and bounds in the same run", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	cmd.AddCommand(newBenchProcessors(ui), newBenchStrategies(ui), newBenchExperts(ui), newBenchChunks(ui),
		newBenchOutliers(ui), newBenchHeads(ui), newBenchKernels(ui),
		newBenchAttention(ui), newBenchEngines(ui), newBenchPlans(ui), newBenchSolver(ui), newBenchServing(ui),
		newBenchDrafts(ui), newBenchMeeting(ui))
	return cmd
}

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
			if options.PromptLen < 1 || options.Gen < 1 || options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %d, --gen %d, --rounds %d: want at least 1",
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

// solvedFlags are those of the benches that solve every plan they measure from one record.
func solvedFlags(cmd *cobra.Command, options *bench.Options) {
	flags := cmd.Flags()
	flags.StringVar(&options.Model, "model", "", "model directory with weights")
	flags.StringVar(&options.SoC, "soc", "", "SoC file")
	flags.StringVar(&options.Record, "record", "", "record of hetc profile, from which every plan is solved")
	flags.StringVar(&options.Workload, "workload", "", "workload file")
}

// newBenchChunks answers what chunks in flight are worth: llm.npu's own experiment.
func newBenchChunks(ui *cli.Streams) *cobra.Command {
	var options bench.Options
	var products string
	cmd := &cobra.Command{
		Use:   "chunks --model DIR --soc soc.yaml --record rec.jsonl",
		Short: "measure two chunks of a prompt in flight, in several orders, beside one after the other",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "soc", "record"); err != nil {
				return err
			}
			if options.PromptLen < 1 || options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--prompt-len %d, --rounds %d: want at least 1", options.PromptLen,
					options.Rounds)
			}
			return bench.Chunks(cmd, ui, &options, products)
		},
	}
	flags := cmd.Flags()
	solvedFlags(cmd, &options)
	flags.StringVar(&options.Calibration, "calibration", "", "calibration that plans are made with")
	flags.StringVar(&products, "products", "", "processor that computes all products, and nothing else")
	flags.IntVar(&options.PromptLen, "prompt-len", 1024, "tokens of the prompt")
	flags.IntVar(&options.Rounds, "rounds", 7, "measured rounds, after one that is not counted")
	return cmd
}

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
