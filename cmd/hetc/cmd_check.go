package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
)

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
