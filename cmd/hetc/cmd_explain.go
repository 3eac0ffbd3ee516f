package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/explain"
)

// newExplain answers why a plan is as it is; explain.Options.Run words what solver/explain computes.
func newExplain(ui *cli.Streams) *cobra.Command {
	var opts explain.Options
	cmd := &cobra.Command{
		Use:   "explain plan.yaml [WHAT]",
		Short: "explain why a plan looks the way it does, and what anything else would have cost",
		Args:  cobra.RangeArgs(1, 2),
		RunE:  func(c *cobra.Command, args []string) error { return opts.Run(c, ui, args) },
	}
	opts.Flags(cmd)
	opts.Working.Flags(cmd)
	cmd.Flags().StringVar(&opts.Calibration, "calibration", "", "calibration that the plan was solved with")
	cmd.Flags().StringVar(&opts.Loads, "loads", "", "loads of experts that the plan's tiers were solved with")
	cmd.Flags().StringVar(&opts.MaxMemory, "max-memory", "",
		"bound that the plan was solved with; default: what the plan says")
	cmd.Flags().StringSliceVar(&opts.Only, "only", nil, "processors that the plan was solved for alone")
	return cmd
}
