package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
)

// newProbe writes the SoC file of this machine; measure.Probe measures peak rates and bandwidths.
func newProbe(ui *cli.Streams) *cobra.Command {
	var opts measure.ProbeOptions
	cmd := &cobra.Command{
		Use:   "probe -o soc.yaml",
		Short: "describe this machine as a SoC file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "output"); err != nil {
				return err
			}
			return measure.Probe(cmd.Context(), ui, &opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.Output, "output", "o", "", "SoC file to write")
	flags.StringVar(&opts.Name, "name", "host", "name of the SoC")
	flags.BoolVar(&opts.Force, "force", false, "replace an existing file")
	flags.StringVar(&opts.Kernels, "kernels", "", "kernel set of the host's processors, such as i8mm; default the best "+
		"one that was timed")
	flags.StringSliceVar(&opts.Drivers, "driver", nil,
		"also describe the processors of this driver, such as ort; may be repeated")
	return cmd
}
