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
		Long: `Checks what hetc needs of this machine: build, CPU and kernels, cores, memory, drivers with their devices,
catalogs, directories and disk space, limits, timer and clock, and whether the machine is idle enough to be
measured. With --model it checks a model instead: whether it is read, which config keys and tensors mean
nothing here, whether every weight is a number, and whether its tokenizer is understood.

Each line is ok, a note (it works, but not as well as it could) or a problem, with the way out. The exit code
is that of the first problem, 0 when there is none.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
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
