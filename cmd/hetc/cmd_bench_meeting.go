package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newBenchMeeting answers how a lane should wait for a processor that works by itself; bench.Meeting measures.
func newBenchMeeting(ui *cli.Streams) *cobra.Command {
	var options bench.MeetingOptions
	cmd := &cobra.Command{
		Use:   "meeting --driver NAME",
		Short: "measure the ways to wait for a processor that works by itself",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "driver"); err != nil {
				return err
			}
			return bench.Meeting(c.Context(), ui, &options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Driver, "driver", "", "driver of the processor, such as opencl")
	flags.StringVar(&options.Select, "select", "", "which of its processors (default: the driver's first)")
	flags.StringArrayVar(&options.Configs, "options", []string{""},
		"options of the driver, such as completion=flag; several, each with an --options of its own, are measured beside each other")
	flags.IntVar(&options.Rounds, "rounds", 200, "measured rounds, after five that are not counted")
	return cmd
}
