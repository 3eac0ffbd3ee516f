package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/traffic"
	"github.com/hetc/hetc/internal/diag"
)

// newSimulate answers how a plan serves a trace of requests, by its predictions; traffic.RunSimulate plays it.
func newSimulate(ui *cli.Streams) *cobra.Command {
	var options traffic.Options
	cmd := &cobra.Command{
		Use:   "simulate --plan plan.yaml [--trace FILE]",
		Short: "play a trace of requests on a virtual clock, by the plan's predictions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "plan"); err != nil {
				return err
			}
			return traffic.RunSimulate(cmd.Context(), ui, &options)
		},
	}
	options.Register(cmd.Flags())
	cmd.Flags().StringVar(&options.SoC, "soc", "", "SoC file of a plan for a real machine: its power_w give the energy")
	cmd.Flags().StringVar(&options.Served, "served", "",
		"what program calls took in a server: a file with /metrics of hetserve, or one of hetc bench serving --write-served")
	return cmd
}

// newBenchServing answers the same by measuring; traffic.RunMeasure executes the trace under every policy.
func newBenchServing(ui *cli.Streams) *cobra.Command {
	var options traffic.Options
	cmd := &cobra.Command{
		Use:   "serving --plan plan.yaml --model DIR [--trace FILE]",
		Short: "measure a trace of requests under every policy of the scheduler",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "plan", "model"); err != nil {
				return err
			}
			if options.Rounds < 1 {
				return diag.New(diag.ClassUsage, "--rounds %d: want at least 1", options.Rounds)
			}
			return traffic.RunMeasure(cmd.Context(), ui, &options)
		},
	}
	flags := cmd.Flags()
	options.Register(flags)
	flags.StringVar(&options.Model, "model", "", "model directory with weights")
	flags.StringVar(&options.SoC, "soc", "", "SoC file")
	flags.StringVar(&options.Calibration, "calibration", "", "calibration that the plan was made with")
	flags.Float64SliceVar(&options.Loads, "loads", nil,
		"factors of --reactive and --proactive, such as 0.5,1,2: a trace is drawn and measured for each")
	flags.StringVar(&options.LlamaGGUF, "llama-gguf", "",
		"GGUF file of the same model, with a tokenizer: llama.cpp's server plays the traces too")
	flags.StringVar(&options.WriteServed, "write-served", "",
		"write what program calls took with requests of its own to this file: hetc simulate --served reads it")
	flags.IntVar(&options.Rounds, "rounds", 1, "measured rounds; the one with the median rate is shown")
	return cmd
}

// newBenchDrafts answers whether guessing tokens pays; traffic.RunDrafts decodes the same answers with drafts and
// without.
func newBenchDrafts(ui *cli.Streams) *cobra.Command {
	var options traffic.Options
	cmd := &cobra.Command{
		Use:   "drafts --plan plan.yaml --model DIR",
		Short: "measure the drafts of a plan against plain decoding, on copied and on random text",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "plan", "model"); err != nil {
				return err
			}
			return traffic.RunDrafts(cmd.Context(), ui, &options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Plan, "plan", "", "plan")
	flags.StringVar(&options.Model, "model", "", "model directory with weights")
	flags.StringVar(&options.SoC, "soc", "", "SoC file")
	flags.StringVar(&options.Calibration, "calibration", "", "calibration that the plan was made with")
	flags.IntVar(&options.Rounds, "rounds", 7, "measured rounds, of which the median is shown")
	flags.IntVar(&options.Tokens, "tokens", 150, "tokens of an answer")
	flags.StringVar(&options.Text, "text", "", "a text file to decode, too, such as a program")
	return cmd
}
