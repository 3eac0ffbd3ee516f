package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/explain"
)

func newExplain(s *cli.Streams) *cobra.Command {
	var o explain.Options
	c := &cobra.Command{
		Use:   "explain plan.yaml [WHAT]",
		Short: "explain why a plan looks the way it does, and what anything else would have cost",
		Args:  cobra.RangeArgs(1, 2),
		RunE:  func(c *cobra.Command, args []string) error { return o.Run(c, s, args) },
	}
	o.Flags(c)
	o.Working.Flags(c)
	c.Flags().StringVar(&o.Calibration, "calibration", "", "calibration that the plan was solved with")
	c.Flags().StringVar(&o.Loads, "loads", "", "loads of experts that the plan's tiers were solved with")
	c.Flags().StringVar(&o.MaxMemory, "max-memory", "", "bound that the plan was solved with; default: what the plan says")
	c.Flags().StringSliceVar(&o.Only, "only", nil, "processors that the plan was solved for alone")
	return c
}
