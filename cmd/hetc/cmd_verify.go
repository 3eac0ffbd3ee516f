package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newVerify answers whether a bundle is whole and signed by a trusted key; bundling.Verify reads every byte.
func newVerify(ui *cli.Streams) *cobra.Command {
	var terms accept.Terms
	cmd := &cobra.Command{
		Use:   "verify app.hetb --trust NAME.pub",
		Short: "verify every byte of a bundle",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Required(cmd, "trust"); err != nil {
				return err
			}
			return bundling.Verify(cmd.Context(), ui, args[0], &terms)
		},
	}
	terms.Register(cmd.Flags())
	return cmd
}
