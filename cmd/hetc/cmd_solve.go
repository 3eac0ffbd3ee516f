package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/cmd/internal/solving"
)

// newSolve decides which processor computes what; solving.Solve reads the inputs, and package solver decides.
func newSolve(ui *cli.Streams) *cobra.Command {
	var opts solving.Options
	cmd := &cobra.Command{
		Use: "solve (--soc soc.yaml | --target NAME) (--record rec.jsonl | --costs costs.yaml) --model DIR -o " +
			"plan.yaml",
		Short: "decide which processor computes which part of every operator",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return solving.Solve(c, ui, &opts) },
	}
	opts.Flags(cmd)
	measure.AcceptNoisy(cmd.Flags(), &opts.AcceptNoisy)
	opts.Engine.Flags(cmd)
	opts.Working.Flags(cmd)
	cmd.Flags().StringVarP(&opts.Output, "output", "o", "", "plan to write")
	cmd.Flags().StringVar(&opts.Calibration, "calibration", "", "calibration of hetc calibrate: what each scheme costs")
	cmd.Flags().StringVar(&opts.Loads, "loads", "", "loads of experts, of hetc loads: choose capacity tiers from them")
	cmd.Flags().StringVar(&opts.Pareto, "pareto", "",
		"energy,latency: list the plans that no other one beats in both, and write none")
	cmd.Flags().StringSliceVar(&opts.Only, "only", nil,
		"let this processor execute what it supports; unsupported operators go to processors on the same cores, or "+
			"else to the control processor; may be repeated")
	cmd.Flags().StringSliceVar(&opts.Strategies, "strategies", nil,
		"to compare with: only these, such as single,padding for whole operators on one processor")
	cmd.Flags().StringToStringVar(&opts.Ratio, "ratio", nil,
		"to compare with: these parts of the columns of every matrix, such as npu=0.75,gpu=0.25")
	cmd.Flags().StringSliceVar(&opts.Tiers, "tiers", nil,
		"to compare with, beside --loads: capacity tiers by a rule, whatever they gain: optimal, one, paper (NPUMoE's ladder), "+
			"all (slots for all experts); and ungrouped for a graph of every slot")
	cmd.Flags().StringVar(&opts.MaxMemory, "max-memory", "",
		"most memory of a process that executes the plan, such as 1.5GiB; default: the workload's bound")
	return cmd
}
