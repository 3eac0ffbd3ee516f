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
		Args:  cobra.NoArgs,
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
