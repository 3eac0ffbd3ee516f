package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/cmd/internal/solving"
)

func newSolve(s *cli.Streams) *cobra.Command {
	var o solving.Options
	c := &cobra.Command{
		Use:   "solve (--soc soc.yaml | --target NAME) (--record rec.jsonl | --costs costs.yaml) --model DIR -o plan.yaml",
		Short: "decide which processor computes which part of every operator",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return solving.Solve(c, s, &o) },
	}
	o.Flags(c)
	measure.AcceptNoisy(c.Flags(), &o.AcceptNoisy)
	o.Engine.Flags(c)
	o.Working.Flags(c)
	c.Flags().StringVarP(&o.Output, "output", "o", "", "plan to write")
	c.Flags().StringVar(&o.Calibration, "calibration", "", "calibration of hetc calibrate: what each scheme costs")
	c.Flags().StringVar(&o.Loads, "loads", "", "loads of experts, of hetc loads: choose capacity tiers from them")
	c.Flags().StringVar(&o.Pareto, "pareto", "", "energy,latency: list the plans that no other one beats in both, and write none")
	c.Flags().StringSliceVar(&o.Only, "only", nil, "let this processor execute what it supports; unsupported operators go to the other processors; may be repeated")
	c.Flags().StringSliceVar(&o.Strategies, "strategies", nil, "to compare with: only these, such as single,padding for whole operators on one processor")
	c.Flags().StringToStringVar(&o.Ratio, "ratio", nil, "to compare with: these parts of the columns of every matrix, such as npu=0.75,gpu=0.25")
	c.Flags().StringVar(&o.MaxMemory, "max-memory", "", "most memory of a process that executes the plan, such as 1.5GiB; default: the workload's bound")
	return c
}
