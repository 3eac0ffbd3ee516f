package main

import (
	"github.com/spf13/cobra"

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
		"file with the system message that conversations begin with: its cache is computed here and comes with the "+
			"bundle")
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
