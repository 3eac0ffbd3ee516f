package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/doctor"
)

// newDoctor answers what works on this machine, or with a model; doctor.Show tries it.
func newDoctor(ui *cli.Streams) *cobra.Command {
	var model string
	cmd := &cobra.Command{
		Use:   "doctor [--model DIR]",
		Short: "check this machine, this build and a model, and say what works",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor.Show(cmd.Context(), ui, model)
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "check this model directory or file instead of the machine")
	return cmd
}
