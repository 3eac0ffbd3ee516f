package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
)

func newCalibrate(s *cli.Streams) *cobra.Command {
	var o precision.CalibrateOptions
	c := &cobra.Command{
		Use:   "calibrate --model DIR --text FILE -o cal.yaml",
		Short: "measure a model's activations, and what each precision costs in each class of weights",
		Long: `Executes the model in float32 on windows of a text and notes what enters every matrix product, and what it computes: the range
and the mean square of every channel, the range of every result, outlier channels and how often they exceed, and which channels move together.
Every other window is observed. On the remaining ones it executes the model with every class of weights in every scheme, everything else in float32, and notes what that costs: the mean
Kullback-Leibler divergence with its 95 % interval. Where channels stick out it tries to fold them: to divide them
in front, in the gain of a norm or in the columns of a weight, and to multiply the rows that read them. Folds are
kept where they save a twentieth of the first scheme's loss at least and make no other lose more, beyond noise:
name the --schemes that plans will use. For static scales (a8s/q8c) it finds for every class what share of the range
to cover: what is beyond it is clipped. For several of them (a8s2/q8c, a8s4/q8c) it observes the rows once more, as they are folded, and chooses
those that rows lose least by; a8s/q8c is measured with them. docs/calibration.md describes the file. The same inputs on the same kind of
machine give the same bytes.

Half of the windows of 256 tokens are executed for each class and scheme. Without --windows there are 32 of them
for models up to 100 million parameters, and fewer for larger ones, 8 at least: a model of 5 million parameters
takes a few minutes, one of a billion an hour; with --schemes less. The time left is shown on a terminal.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model", "text", "output"); err != nil {
				return err
			}
			if c.Flags().Changed("windows") && o.Windows < trial.LeastWindows {
				return diag.New(diag.ClassUsage, "--windows %d: want at least %d", o.Windows, trial.LeastWindows).WithHint("losses are measured on half of them, and an interval needs two")
			}
			if c.Flags().Changed("schemes") && len(o.Schemes) == 0 {
				return diag.New(diag.ClassUsage, "--schemes is empty").WithHint("leave it out to measure all, or name some: --schemes a8t/q8c")
			}
			return o.Run(c.Context(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Model, "model", "", "model directory with weights and tokenizer")
	f.StringVar(&o.Text, "text", "", "text to read, of the kind the model will see")
	f.StringVarP(&o.Out, "output", "o", "", "calibration to write")
	f.IntVar(&o.Windows, "windows", 0, "windows of 256 tokens to read from the text's beginning (default by the model's size)")
	f.StringSliceVar(&o.Schemes, "schemes", nil, "precisions to measure, the one that folds are for first (default all)")
	return c
}
