package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/internal/diag"
)

func newQuality(s *cli.Streams) *cobra.Command {
	var o precision.QualityOptions
	c := &cobra.Command{
		Use:   "quality (--bundle app.hetb --trust NAME.pub | --plan plan.yaml) --model DIR --text FILE",
		Short: "measure what a bundle's precision costs, against float32",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model", "text"); err != nil {
				return err
			}
			if (o.Bundle == "") == (o.Plan == "") {
				return diag.New(diag.ClassUsage, "%s: want one of --bundle and --plan", c.CommandPath()).WithHint("usage: %s", c.UseLine())
			}
			if o.Bundle != "" {
				if err := cli.Required(c, "trust"); err != nil {
					return err
				}
			}
			if o.Bundle != "" && o.Calibration != "" {
				return diag.New(diag.ClassUsage, "--calibration is for --plan, which is not there").WithHint("a bundle's weights are packed already: leave it out")
			}
			for _, f := range append([]string{"any-machine"}, accept.Flags...) {
				if o.Plan != "" && c.Flags().Changed(f) {
					return diag.New(diag.ClassUsage, "--%s is for --bundle, which is not there", f).WithHint("leave it out")
				}
			}
			if c.Flags().Changed("max-kl") && !(o.MaxKL >= 0) {
				return diag.New(diag.ClassUsage, "--max-kl %v: want 0 or more", o.MaxKL).WithHint("8 bit per row costs about 0.001, 4 bit about 0.02")
			}
			if o.Windows < 0 || o.Windows == 1 {
				return diag.New(diag.ClassUsage, "--windows %d: want at least 2, or 0 for the whole text", o.Windows).WithHint("an interval needs two windows")
			}
			return o.Run(c.Context(), s, c.Flags().Changed("max-kl"))
		},
	}
	f := c.Flags()
	f.StringVar(&o.Bundle, "bundle", "", "bundle to measure")
	o.Terms.Register(f)
	o.Terms.RegisterCopy(f)
	f.StringVar(&o.Plan, "plan", "", "plan to measure instead, with weights packed in memory")
	f.StringVar(&o.Calibration, "calibration", "", "calibration that the plan was made with")
	f.StringVar(&o.Model, "model", "", "directory of the model it was made from: the reference")
	f.StringVar(&o.Text, "text", "", "text to read, of the kind the model will see")
	f.StringVar(&o.SoC, "soc", "", "SoC file of a simulated plan whose SoC is not in the catalog")
	f.IntVar(&o.Windows, "windows", 60, "windows of 256 tokens to read from the text's beginning, 0: all")
	f.BoolVar(&o.Decode, "decode", false, "measure decode even where its precision is prefill's")
	f.Float64Var(&o.MaxKL, "max-kl", 0, "fail when the mean divergence of a phase is larger")
	f.BoolVar(&o.AnyMachine, "any-machine", false, "do not refuse a bundle that was made for another machine")
	return c
}
