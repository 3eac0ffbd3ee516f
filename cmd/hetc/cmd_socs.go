package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/catalog"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newSocs shows the catalog of described SoCs; package catalog words it.
func newSocs(ui *cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "socs", Short: "list and show SoCs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	list := &cobra.Command{
		Use: "list", Short: "list the catalog (simulated SoCs)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return catalog.ListSoCs(ui) },
	}
	list.Long = list.Short + ". Descriptions are cut to a sentence here; hetc socs show has them whole."
	show := &cobra.Command{
		Use: "show SOC", Short: "show every number of a SoC with its source", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return catalog.ShowSoC(ui, args[0]) },
	}
	cmd.AddCommand(list, show)
	return cmd
}
