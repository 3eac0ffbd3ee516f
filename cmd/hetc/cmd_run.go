package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
)

// newRun is hetrun with the simulation beside it.
func newRun(s *cli.Streams) *cobra.Command {
	var soc string
	cmd := runcmd.New(s, "run", true, func(p *planir.Plan) ([]driver.Driver, error) {
		machine, err := bindings.SoCOf(p, soc)
		return bindings.Drivers(machine), err
	})
	cmd.Flags().StringVar(&soc, "soc", "", "SoC file of a simulated plan whose SoC is not in the catalog")
	return cmd
}
