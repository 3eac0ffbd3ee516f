package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

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
