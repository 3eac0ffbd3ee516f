package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
)

// newFit makes latency models of a record; measure.Fit writes them as a costs file.
func newFit(ui *cli.Streams) *cobra.Command {
	var options measure.FitOptions
	cmd := &cobra.Command{
		Use:   "fit --soc soc.yaml --record rec.jsonl -o costs.yaml",
		Short: "fit latency models to a record",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "soc", "record", "output"); err != nil {
				return err
			}
			return measure.Fit(cmd.Context(), ui, &options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.SoC, "soc", "", "SoC file or catalog name")
	flags.StringVar(&options.Record, "record", "", "record of hetc profile")
	flags.StringVarP(&options.Output, "output", "o", "", "costs file to write")
	measure.AcceptNoisy(flags, &options.AcceptNoisy)
	return cmd
}
