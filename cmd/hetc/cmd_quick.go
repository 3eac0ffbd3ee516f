package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/quick"
	"github.com/hetc/hetc/internal/diag"
)

// newQuick goes from a model to a running bundle; quick.Run calls the commands of all steps, for which it gets newRoot.
func newQuick(ui *cli.Streams) *cobra.Command {
	var opts quick.Options
	cmd := &cobra.Command{
		Use:   "quick MODEL [--prompt TEXT [--chat]] [-o DIR]",
		Short: "from a model to a running bundle in one command",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Model = args[0]
			if cmd.Flags().Changed("prompt") && opts.Prompt == "" {
				return diag.New(diag.ClassUsage, "--prompt is empty").WithHint("give a text, or leave it out")
			}
			for _, name := range []string{"max-tokens", "chat"} {
				if cmd.Flags().Changed(name) && opts.Prompt == "" {
					return diag.New(diag.ClassUsage, "--%s needs --prompt", name).
						WithHint("add --prompt TEXT, or leave it out")
				}
			}
			for _, name := range []string{"text", "only"} {
				if cmd.Flags().Changed(name) && opts.Target == "" {
					return diag.New(diag.ClassUsage, "--%s needs --target", name).
						WithHint("add --target NAME, or leave it out")
				}
			}
			if opts.MaxTokens < 0 {
				return diag.New(diag.ClassUsage, "--max-tokens %d: want at least 0", opts.MaxTokens)
			}
			if opts.Text != "" && opts.Calibration != "" {
				return diag.New(diag.ClassUsage, "--text and --calibration exclude each other").
					WithHint("a calibration is made of a text: give one of them")
			}
			if _, err := cli.ParseTime("budget", opts.Budget); err != nil {
				return err
			}
			return quick.Run(cmd.Context(), ui, &opts, newRoot)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.Out, "output", "o", "", "directory for the files of every step (default hetc-MODEL)")
	flags.StringVar(&opts.Prompt, "prompt", "", "text to continue once the bundle is there")
	flags.BoolVar(&opts.Chat, "chat", false,
		"the prompt is a message: write it by the model's chat template, and answer")
	flags.IntVar(&opts.MaxTokens, "max-tokens", 64, "most tokens to generate")
	flags.StringVar(&opts.Budget, "budget", "20s", "time to measure; more makes a better plan")
	flags.StringSliceVar(&opts.Schemes, "schemes", nil, "precisions to permit besides the stored one, such as a8t/q8c")
	flags.StringVar(&opts.Calibration, "calibration", "",
		"calibration of hetc calibrate: what solve knows of losses, and how weights are rounded")
	flags.StringVar(&opts.Target, "target", "", "catalog SoC with target data, whose device the bundle is for")
	flags.StringVar(&opts.Only, "only", "",
		"with --target: processors that execute what they support, such as npu; the rest goes to the others")
	flags.StringVar(&opts.Text, "text", "", "with --target: text to calibrate with, of the kind the model will see")
	flags.BoolVar(&opts.Again, "again", false, "measure further, and make plan and bundle anew")
	return cmd
}
