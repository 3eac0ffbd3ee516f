package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/traffic"
)

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
