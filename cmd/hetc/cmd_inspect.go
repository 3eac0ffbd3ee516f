package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newInspect shows a bundle's manifest, of which nothing is verified; bundling.Inspect reads it.
func newInspect(ui *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect app.hetb",
		Short: "show what a bundle says about itself, without a key",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return bundling.Inspect(ui, args[0]) },
	}
}
