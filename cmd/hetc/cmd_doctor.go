package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/doctor"
)

func newDoctor(s *cli.Streams) *cobra.Command {
	var model string
	c := &cobra.Command{
		Use:   "doctor [--model DIR]",
		Short: "check this machine, this build and a model, and say what works",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("model") {
				if err := cli.Required(c, "model"); err != nil {
					return err
				}
			}
			return doctor.Show(c.Context(), s, model)
		},
	}
	c.Flags().StringVar(&model, "model", "", "check this model directory or file instead of the machine")
	return c
}
