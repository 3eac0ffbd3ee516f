package main

import (
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
		Args:  cobra.NoArgs,
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
