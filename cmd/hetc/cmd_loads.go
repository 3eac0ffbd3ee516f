package main

import (
	"fmt"

	"github.com/hetc/hetc/solver/workload"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/internal/diag"
)

func newLoads(s *cli.Streams) *cobra.Command {
	var o precision.LoadsOptions
	c := &cobra.Command{
		Use:   "loads --model DIR (--text FILE | --synthetic DISTRIBUTION) -o loads.json",
		Short: "note how many rows a model's router sends to every expert",
		Long: fmt.Sprintf(`With --text: executes the model in float32 on windows of a text and counts in every layer and chunk of %d tokens
how many of them go to each expert, and what its rows add to the layer's output: the squared L2 norm of the expert's output times the
router's weight, cumulated from the lowest up. hetc solve --loads chooses capacity tiers from it, and knows from the latter what it costs to drop rows.

With --synthetic: draws the same for the shape of a model, which may be one of the catalog. Every token goes to
different experts, drawn by their popularity: uniform; zipf:1.2, in proportion to 1/rank^1.2; hot:4:0.5, 4 experts share
half of it. Every layer has another order of experts. The file says that it is synthetic, and so does every plan made from it.

The same inputs give the same bytes on one kind of CPU.

`, precision.LoadTokens) + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model", "output"); err != nil {
				return err
			}
			if (o.Text == "") == (o.Synthetic == "") {
				return diag.New(diag.ClassUsage, "loads: want one of --text and --synthetic").WithHint("--synthetic zipf:1.2 needs no weights")
			}
			if o.Text == "" && c.Flags().Changed("windows") || o.Text != "" && (c.Flags().Changed("chunks") || c.Flags().Changed("seed")) {
				return diag.New(diag.ClassUsage, "loads: --windows is for --text, --chunks and --seed are for --synthetic")
			}
			if o.Windows < 2 || o.Chunks < 2 {
				return diag.New(diag.ClassUsage, "loads: want at least 2 windows or chunks")
			}
			return o.Run(c.Context(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Model, "model", "", "model directory or catalog name")
	f.StringVar(&o.Text, "text", "", "text to execute the model on")
	f.StringVar(&o.Synthetic, "synthetic", "", "distribution instead: "+workload.Generators)
	f.StringVarP(&o.Out, "output", "o", "", "loads to write")
	f.IntVar(&o.Windows, "windows", 64, "windows of 256 tokens to read from the text's beginning, at most")
	f.IntVar(&o.Chunks, "chunks", 256, "chunks to draw")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of what is drawn")
	return c
}
