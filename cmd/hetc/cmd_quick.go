package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/quick"
	"github.com/hetc/hetc/internal/diag"
)

func newQuick(s *cli.Streams) *cobra.Command {
	var o quick.Options
	c := &cobra.Command{
		Use:   "quick MODEL [--prompt TEXT [--chat]] [-o DIR]",
		Short: "from a model to a running bundle in one command",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.Model = args[0]
			for _, name := range []string{"prompt", "output"} {
				if c.Flags().Changed(name) {
					if err := cli.Required(c, name); err != nil {
						return err
					}
				}
			}
			for _, name := range []string{"max-tokens", "chat"} {
				if c.Flags().Changed(name) && o.Prompt == "" {
					return diag.New(diag.ClassUsage, "--%s is for --prompt, which is not there", name).WithHint("add --prompt TEXT, or leave it out")
				}
			}
			for _, name := range []string{"text", "only"} {
				if c.Flags().Changed(name) && o.Target == "" {
					return diag.New(diag.ClassUsage, "--%s is for --target, which is not there", name).WithHint("add --target NAME, or leave it out")
				}
			}
			if o.Text != "" && o.Calibration != "" {
				return diag.New(diag.ClassUsage, "--text and --calibration exclude each other").WithHint("a calibration is made of a text: give one of them")
			}
			if _, err := cli.ParseTime("budget", o.Budget); err != nil {
				return err
			}
			return quick.Run(c.Context(), s, &o, newRoot)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.Out, "output", "o", "", "directory for the files of every step (default hetc-MODEL)")
	f.StringVar(&o.Prompt, "prompt", "", "text to continue once the bundle is there")
	f.BoolVar(&o.Chat, "chat", false, "the prompt is a message: write it by the model's chat template, and answer")
	f.IntVar(&o.MaxTokens, "max-tokens", 64, "most tokens to generate")
	f.StringVar(&o.Budget, "budget", "20s", "time to measure; more makes a better plan")
	f.StringSliceVar(&o.Schemes, "schemes", nil, "precisions to permit besides the stored one, such as a8t/q8c")
	f.StringVar(&o.Calibration, "calibration", "", "calibration of hetc calibrate: what solve knows of losses, and how weights are rounded")
	f.StringVar(&o.Target, "target", "", "catalog SoC with target data, whose device the bundle is for")
	f.StringVar(&o.Only, "only", "", "with --target: processors that execute what they support, such as npu; the rest goes to the others")
	f.StringVar(&o.Text, "text", "", "with --target: text to calibrate with, of the kind the model will see")
	f.BoolVar(&o.Again, "again", false, "measure further, and make plan and bundle anew")
	return c
}
