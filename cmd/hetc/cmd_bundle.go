package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
)

func newEmit(s *cli.Streams) *cobra.Command {
	var o bundling.Options
	c := &cobra.Command{
		Use:   "emit --plan plan.yaml --model DIR --key NAME.key -o app.hetb",
		Short: "pack the weights, compile the graphs, and sign a bundle",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return bundling.Write(c, s, &o) },
	}
	f := c.Flags()
	f.StringVar(&o.PlanFile, "plan", "", "plan to emit")
	f.StringVar(&o.ModelDir, "model", "", "model directory with weights")
	f.StringVar(&o.SoC, "soc", "", "check the plan against this SoC again")
	f.StringVar(&o.CalibrationFile, "calibration", "", "calibration that the plan was made with")
	f.StringVar(&o.Target.Name, "target", "", "make a bundle for the device of this SoC, the plan's")
	f.BoolVar(&o.Target.Emulator, "for-emulator", false, "make the twin for the vendor's emulator, on this machine")
	f.BoolVar(&o.Target.Fallback, "allow-fallback", false, "give what cannot be compiled to the control processor, and say so")
	f.StringVar(&o.Target.Twin, "twin", "", "the twin made before, whose digests the report repeats")
	f.StringVar(&o.Key, "key", "", "private key that signs")
	f.StringVarP(&o.Output, "output", "o", "", "bundle to write")
	f.BoolVar(&o.Reference, "with-reference", false, "add a reference program for hetrun --check")
	f.StringVar(&o.Product, "product", "hetc", "domain of trust and rollback")
	f.StringVar(&o.Version, "bundle-version", "0", "version of the bundle, for people")
	f.Int64Var(&o.SecurityVersion, "security-version", 0, "raised when older bundles must be refused")
	f.Int64Var(&o.Generation, "keyring-generation", 1, "generation of the keyring the bundle is signed for")
	f.Int64Var(&o.NotAfter, "not-after", 0, "unix time after which hosts refuse it, by their clock, 0: never")
	return c
}

func newVerify(s *cli.Streams) *cobra.Command {
	var terms accept.Terms
	c := &cobra.Command{
		Use:   "verify app.hetb --trust NAME.pub",
		Short: "verify every byte of a bundle",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "trust"); err != nil {
				return err
			}
			return bundling.Verify(c.Context(), s, args[0], &terms)
		},
	}
	terms.Register(c.Flags())
	return c
}

func newInspect(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect app.hetb",
		Short: "show what a bundle says about itself, without a key",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return bundling.Inspect(s, args[0]) },
	}
}

func newCheck(s *cli.Streams) *cobra.Command {
	var soc, model string
	c := &cobra.Command{
		Use:   "check plan.yaml --soc soc.yaml --model DIR",
		Short: "check that a plan is legal for a model on a machine",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "soc", "model"); err != nil {
				return err
			}
			return bundling.CheckPlan(s, args[0], soc, model)
		},
	}
	c.Flags().StringVar(&soc, "soc", "", "SoC file or catalog name")
	c.Flags().StringVar(&model, "model", "", "model directory or catalog name")
	return c
}
