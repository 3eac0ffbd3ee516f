package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
)

// newCalibrate answers what each precision loses in each class of weights; precision.CalibrateOptions.Run executes the
// model on a text.
func newCalibrate(ui *cli.Streams) *cobra.Command {
	var opts precision.CalibrateOptions
	cmd := &cobra.Command{
		Use:   "calibrate --model DIR --text FILE -o cal.yaml",
		Short: "measure a model's activations, and what each precision costs in each class of weights",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "text", "output"); err != nil {
				return err
			}
			if cmd.Flags().Changed("windows") && opts.Windows < trial.LeastWindows {
				return diag.New(diag.ClassUsage, "--windows %d: want at least %d", opts.Windows, trial.LeastWindows).
					WithHint("losses are measured on half of them, and an interval needs two")
			}
			if opts.Attention && cmd.Flags().Changed("schemes") {
				return diag.New(diag.ClassUsage, "--schemes and --attention are both given").
					WithHint("measure one, then the other into the same file")
			}
			if opts.Drop && (opts.Attention || cmd.Flags().Changed("schemes")) {
				return diag.New(diag.ClassUsage, "--drop is given with --attention or --schemes").
					WithHint("measure one, then the other into the same file")
			}
			if opts.NoFolds && (opts.Attention || opts.Drop) {
				return diag.New(diag.ClassUsage, "--no-folds cannot be combined with --attention or --drop").
					WithHint("neither looks for folds: leave it out")
			}
			if cmd.Flags().Changed("window-tokens") && !opts.Attention && !opts.Drop {
				return diag.New(diag.ClassUsage, "--window-tokens needs --attention or --drop")
			}
			if opts.WindowTokens < 0 {
				return diag.New(diag.ClassUsage, "--window-tokens %d: want a positive number", opts.WindowTokens)
			}
			return opts.Run(cmd.Context(), ui)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Model, "model", "", "model directory with weights and tokenizer")
	flags.StringVar(&opts.Text, "text", "", "text to read, of the kind the model will see")
	flags.StringVarP(&opts.Out, "output", "o", "", "calibration to write")
	flags.IntVar(&opts.Windows, "windows", 0,
		"windows of 256 tokens to read from the text's beginning (default by the model's size; of attention 8 of 2048, of --drop 60)")
	flags.BoolVar(&opts.Attention, "attention", false,
		"measure what sparse attention needs to know instead, and add it to the file")
	flags.BoolVar(&opts.Drop, "drop", false,
		"measure what dropped rows of experts cost instead, and add it to the file")
	flags.IntVar(&opts.WindowTokens, "window-tokens", 0,
		"tokens of a window of --attention (default 2048, or what the model can take) or --drop (default 256)")
	flags.StringSliceVar(&opts.Schemes, "schemes", nil,
		"precisions to measure, the one that folds are for first (default all)")
	flags.BoolVar(&opts.NoFolds, "no-folds", false, "look for no folds: weights stay as they are")
	return cmd
}
