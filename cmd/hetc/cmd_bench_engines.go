package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
)

func newBenchEngines(s *cli.Streams) *cobra.Command {
	var o bench.EnginesOptions
	c := &cobra.Command{
		Use:   "engines --model DIR [--workload w.yaml | --plan plan.yaml --soc soc.yaml]",
		Short: "measure hetc against llama.cpp: same weights, same cores, taking turns",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model"); err != nil {
				return err
			}
			return bench.Engines(c.Context(), s, &o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.Models, "model", nil, "model directory with weights; several, each with a --model of its own, are measured one after the other")
	f.IntSliceVar(&o.Prompts, "prompt-len", []int{256, 1024}, "tokens of the prompts")
	f.IntVar(&o.Gen, "gen", 32, "tokens to decode")
	f.IntVar(&o.Depth, "depth", 256, "tokens in the cache before decoding")
	f.IntSliceVar(&o.Cores, "cores", nil, "cores to run on, one thread each (default all this process may use)")
	f.IntVar(&o.Rounds, "rounds", 6, "processes for each engine and task")
	f.IntVar(&o.Reps, "reps", 2, "repetitions in each process, after one that is not counted; prompts above 512 tokens get one")
	f.StringSliceVar(&o.Formats, "formats", []string{"Q4_0", "Q8_0"}, "llama.cpp's formats to measure")
	f.StringVar(&o.Workload, "workload", "", "workload that hetc's plan is made for")
	f.StringVar(&o.Plan, "plan", "", "plan to measure instead of making one")
	f.StringVar(&o.SoC, "soc", "", "SoC of the plan")
	f.StringVar(&o.Memory, "max-memory", "", "also measure a plan within this memory: a size such as 700MiB, or a format: what llama.cpp needs with it")
	f.StringVar(&o.Text, "text", "", "text to measure quality on")
	f.StringVar(&o.QualityModel, "quality-model", "", "model with a tokenizer to measure the schemes' quality with")
	f.StringVar(&o.Work, "work", "", "directory that keeps the files of all steps (default: a temporary one)")
	f.StringVarP(&o.Out, "output", "o", "", "JSON file for everything that was measured")
	f.StringVar(&o.Markdown, "markdown", "", "file for the tables as Markdown")
	f.StringVar(&o.Budget, "budget", "", "time for the rounds of one model; what does not fit is left out, and it says so")
	f.StringVar(&o.ProfileBudget, "profile-budget", "60s", "time to measure operators for a plan")
	f.StringVar(&o.Limit, "timeout", "5m", "time for one process")
	f.Float64Var(&o.MaxOthers, "max-others", 0.15, "cores that other processes may use meanwhile; else a process is repeated, and it says so; 0: do not look")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the order of measurements")
	return c
}
