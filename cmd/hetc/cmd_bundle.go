package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/unit"
)

// newEmit makes a signed bundle of a plan and its weights; bundling.Write packs, compiles and signs.
func newEmit(ui *cli.Streams) *cobra.Command {
	var opts bundling.Options
	cmd := &cobra.Command{
		Use:   "emit --plan plan.yaml --model DIR --key NAME.key -o app.hetb",
		Short: "pack the weights, compile the graphs, and sign a bundle",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return bundling.Write(c, ui, &opts) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.PlanFile, "plan", "", "plan to emit")
	flags.StringVar(&opts.ModelDir, "model", "", "model directory with weights")
	flags.StringVar(&opts.SoC, "soc", "", "check the plan against this SoC again")
	flags.StringVar(&opts.CalibrationFile, "calibration", "", "calibration that the plan was made with")
	flags.StringVar(&opts.PrefixFile, "prefix", "",
		"text of the system message that conversations begin with: its cache is computed here and comes with the bundle")
	flags.BoolVar(&opts.Binaries, "binaries", false,
		"build the programs of GPUs for the devices that are here: hetrun takes them on exactly such a device and driver")
	flags.StringVar(&opts.Target.Name, "target", "", "make a bundle for the device of this SoC, the plan's")
	flags.BoolVar(&opts.Target.Emulator, "for-emulator", false,
		"make the twin for the vendor's emulator, on this machine")
	flags.BoolVar(&opts.Target.Fallback, "allow-fallback", false,
		"give what cannot be compiled to the control processor, and say so")
	flags.StringVar(&opts.Target.Twin, "twin", "", "the twin made before, whose digests the report repeats")
	flags.StringVar(&opts.Key, "key", "", "private key that signs")
	flags.StringVarP(&opts.Output, "output", "o", "", "bundle to write")
	flags.BoolVar(&opts.Reference, "with-reference", false, "add a reference program for hetrun --check")
	flags.StringVar(&opts.Product, "product", "hetc", "domain of trust and rollback")
	flags.StringVar(&opts.Version, "bundle-version", "0", "version of the bundle, for people")
	flags.Int64Var(&opts.SecurityVersion, "security-version", 0, "raised when older bundles must be refused")
	flags.Int64Var(&opts.Generation, "keyring-generation", 1, "generation of the keyring the bundle is signed for")
	flags.Var((*unit.Moment)(&opts.NotAfter), "not-after",
		"date (2027-01-31), time (2027-01-31T12:00:00Z) or Unix seconds after which hosts refuse it, by their clock, 0: never")
	return cmd
}

// newVerify answers whether a bundle is whole and signed by a trusted key; bundling.Verify reads every byte.
func newVerify(ui *cli.Streams) *cobra.Command {
	var terms accept.Terms
	cmd := &cobra.Command{
		Use:   "verify app.hetb --trust NAME.pub",
		Short: "verify every byte of a bundle",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Required(cmd, "trust"); err != nil {
				return err
			}
			return bundling.Verify(cmd.Context(), ui, args[0], &terms)
		},
	}
	terms.Register(cmd.Flags())
	return cmd
}

// newInspect shows a bundle's manifest, of which nothing is verified; bundling.Inspect reads it.
func newInspect(ui *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect app.hetb",
		Short: "show what a bundle says about itself, without a key",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return bundling.Inspect(ui, args[0]) },
	}
}

// newCheck answers whether a plan is legal for a model on a SoC; bundling.CheckPlan recomputes its program.
func newCheck(ui *cli.Streams) *cobra.Command {
	var soc, model string
	cmd := &cobra.Command{
		Use:   "check plan.yaml --soc soc.yaml --model DIR",
		Short: "check that a plan is legal for a model on a machine",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "soc", "model"); err != nil {
				return err
			}
			return bundling.CheckPlan(ui, args[0], soc, model)
		},
	}
	cmd.Flags().StringVar(&soc, "soc", "", "SoC file or catalog name")
	cmd.Flags().StringVar(&model, "model", "", "model directory or catalog name")
	return cmd
}
