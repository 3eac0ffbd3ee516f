package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newBenchEngines answers how fast, large and exact hetc is beside other engines on the same weights; bench.Engines
// measures.
func newBenchEngines(ui *cli.Streams) *cobra.Command {
	var opts bench.EnginesOptions
	cmd := &cobra.Command{
		Use:   "engines --model DIR [--workload w.yaml | --plan plan.yaml --soc soc.yaml]",
		Short: "measure hetc against other engines: same weights, same cores, taking turns",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model"); err != nil {
				return err
			}
			opts.Given = cmd.Flags().Changed
			return bench.Engines(cmd.Context(), ui, &opts)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&opts.Models, "model", nil,
		"model directory with weights; several, each with a --model of its own, are measured one after the other")
	flags.IntSliceVar(&opts.Prompts, "prompt-len", []int{256, 1024}, "tokens of the prompts")
	flags.IntVar(&opts.Gen, "gen", 32, "tokens to decode")
	flags.IntSliceVar(&opts.Depths, "depth", []int{256}, "tokens in the cache before decoding; several are measured each")
	flags.IntSliceVar(&opts.Cores, "cores", nil, "cores to run on, one thread each (default all this process may use)")
	flags.IntVar(&opts.Rounds, "rounds", 6, "processes for each engine and task")
	flags.Float64Var(&opts.Finalists, "finalists", 0,
		"after the first round measure only forms of other engines that took at most so many times as long as the "+
			"fastest one in the task, such as 1.5; 0: all forms in all rounds")
	flags.IntVar(&opts.Reps, "reps", 2,
		"repetitions in each process, after one that is not counted; prompts above 512 tokens get one")
	flags.StringSliceVar(&opts.Formats, "formats", []string{"Q4_0", "Q8_0"}, "llama.cpp's formats to measure")
	flags.StringSliceVar(&opts.Peers, "peers", nil,
		"engines to compare with: llama.cpp, openvino, onnxruntime, ctranslate2 (default: those that are installed)")
	flags.StringVar(&opts.Workload, "workload", "", "workload that hetc's plan is made for")
	flags.StringVar(&opts.Plan, "plan", "", "plan to measure instead of making one")
	flags.StringVar(&opts.SoC, "soc", "", "SoC of the plan")
	flags.StringVar(&opts.Memory, "max-memory", "",
		"also measure a plan within this memory: a size such as 700MiB, or a format: what llama.cpp needs with it")
	flags.StringVar(&opts.Text, "text", "", "text to measure quality on")
	flags.StringVar(&opts.QualityModel, "quality-model", "",
		"model with a tokenizer to measure the schemes' quality with")
	flags.StringVar(&opts.Work, "work", "", "directory that keeps the files of all steps (default: a temporary one)")
	flags.StringVarP(&opts.Out, "output", "o", "", "JSON file for everything that was measured")
	flags.StringVar(&opts.Markdown, "markdown", "", "file for the tables as Markdown")
	flags.StringVar(&opts.Budget, "budget", "",
		"time for the rounds of one model; what does not fit is left out, and it says so")
	flags.StringVar(&opts.ProfileBudget, "profile-budget", "5m", "time to measure operators for a plan")
	flags.StringVar(&opts.Limit, "timeout", "5m", "time for one process")
	flags.Float64Var(&opts.MaxOthers, "max-others", 0.15,
		"cores that other processes may use meanwhile; else a process is repeated, and it says so; 0: do not look")
	flags.Uint64Var(&opts.Seed, "seed", 1, "seed of the order of measurements")
	return cmd
}
