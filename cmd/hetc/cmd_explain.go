package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/explain"
)

func newExplain(s *cli.Streams) *cobra.Command {
	var o explain.Options
	c := &cobra.Command{
		Use:   "explain plan.yaml [WHAT]",
		Short: "explain why a plan looks the way it does, and what anything else would have cost",
		Long: `Without WHAT: what runs where, how much that gains over the best single processor, what bounds it, and the next best
plans; then every decision with its shares. WHAT may be

  limits            which limits bind, and what relaxing each would buy: by 10 % or the next step that changes
                    anything, and without it
  decode            where the time of a token goes
  @256, prefill@256 a bucket: which prompts use it, and what prefill would cost without it and with one more
  tiers             capacity tiers of experts (mixtures of experts); with --loads which of their limits bind, and what
                    relaxing each would buy
  layers.ffn_down@256
                    an operator at a number of rows: every strategy and what it would have cost, cheapest first

With the inputs of solve (--soc, --record or --costs, --model, --workload, --calibration, --loads) questions are answered by solving again, and
processors that cannot execute an operator are listed with the reason; without them only what the plan stores is told, and it
says so.

With --soc of a probed machine predicted times are compared with what its processors allow: of their peak rate or of their
memory bandwidth, whichever bounds the operator. More than 100 % means operands in a cache. Times that the costs hold as
measured are labelled so.

` + cli.ExitCodes,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error { return o.Run(c, s, args) },
	}
	o.Flags(c)
	o.Working.Flags(c)
	c.Flags().StringVar(&o.Calibration, "calibration", "", "calibration that the plan was solved with")
	c.Flags().StringVar(&o.Loads, "loads", "", "loads of experts that the plan's tiers were solved with")
	c.Flags().StringVar(&o.MaxMemory, "max-memory", "", "bound that the plan was solved with; default: what the plan says")
	c.Flags().StringSliceVar(&o.Only, "only", nil, "processors that the plan was solved for alone")
	return c
}
