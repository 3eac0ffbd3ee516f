package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/traffic"
	"github.com/hetc/hetc/internal/diag"
)

// newBenchServing measures what newSimulate predicts; traffic.RunMeasure executes the trace under every policy.
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
