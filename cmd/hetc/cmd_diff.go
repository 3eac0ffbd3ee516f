package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/diff"
)

// newDiff answers in what two plans or bundles differ; diff.Compare finds out which of both they are.
func newDiff(ui *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "show in what two plans or two bundles differ",
		Args:  cobra.ExactArgs(2),
		RunE:  func(_ *cobra.Command, args []string) error { return diff.Compare(ui, args[0], args[1]) },
	}
}
