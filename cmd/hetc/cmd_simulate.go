package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/traffic"
)

// newSimulate answers how a plan serves a trace of requests, by its predictions; traffic.RunSimulate plays it.
func newSimulate(ui *cli.Streams) *cobra.Command {
	var options traffic.Options
	cmd := &cobra.Command{
		Use:   "simulate --plan plan.yaml [--trace FILE]",
		Short: "play a trace of requests on a virtual clock, by the plan's predictions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "plan"); err != nil {
				return err
			}
			return traffic.RunSimulate(cmd.Context(), ui, &options)
		},
	}
	options.Register(cmd.Flags())
	cmd.Flags().StringVar(&options.SoC, "soc", "", "SoC file of a plan for a real machine: its power_w give the energy")
	cmd.Flags().StringVar(&options.Served, "served", "",
		"what program calls took in a server: a file with /metrics of hetserve, or one of hetc bench serving --write-served")
	return cmd
}
