package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir/op"
)

// newBenchAttention answers from which context on selecting positions pays; bench.Attention measures.
func newBenchAttention(ui *cli.Streams) *cobra.Command {
	var options bench.AttentionOptions
	cmd := &cobra.Command{
		Use:   "attention",
		Short: "measure dense and sparse attention of one layer on one core and on two",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return bench.Attention(c.Context(), ui, &options) },
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Cores, "cores", "", "cores to use, such as 0,1; default the first two")
	flags.IntVar(&options.Heads, "heads", 32, "query heads")
	flags.IntVar(&options.KVHeads, "kv-heads", 4, "key heads")
	flags.IntVar(&options.HeadDim, "head-dim", 64, "columns of a head")
	flags.IntVar(&options.Rows, "rows", 512, "rows of a call, the last ones of the context")
	flags.IntSliceVar(&options.Contexts, "contexts", []int{512, 1024, 2048, 4096, 8192}, "positions, rows included")
	flags.StringVar(&options.Cache, "cache", string(op.F16), "type of the cache: f32, f16, bf16 or q8")
	flags.Float64Var(&options.Density, "density", 0.2, "share of the positions that are attended to")
	flags.IntVar(&options.Least, "least", 0, "positions that are attended to at least")
	flags.IntVar(&options.Block, "block", op.SparseBlock, "queries that share a selection")
	flags.StringVar(&options.Calibration, "calibration", "",
		"a calibration whose heads say which share each head keeps, so that their mean is the density; the rest of the "+
			"positions then count by their mean; default all heads keep the density")
	flags.IntVar(&options.Groups, "groups", 4, "groups of heads, the estimate of one beside the rest of another")
	flags.IntVar(&options.Rounds, "rounds", 9, "measured rounds, after one that is not counted")
	return cmd
}
