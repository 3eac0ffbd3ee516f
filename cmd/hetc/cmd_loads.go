package main

import (
	"github.com/hetc/hetc/solver/workload"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/internal/diag"
)

// newLoads answers how many rows each expert gets, on a text or drawn from a distribution; precision.LoadsOptions.Run
// counts them.
func newLoads(ui *cli.Streams) *cobra.Command {
	var opts precision.LoadsOptions
	cmd := &cobra.Command{
		Use:   "loads --model DIR (--text FILE | --random | --synthetic DISTRIBUTION) -o loads.json",
		Short: "note how many rows a model's router sends to every expert",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "output"); err != nil {
				return err
			}
			ways := 0
			for _, given := range []bool{opts.Text != "", opts.Synthetic != "", opts.Random} {
				if given {
					ways++
				}
			}
			if ways != 1 {
				return diag.New(diag.ClassUsage, "loads: want one of --text, --random and --synthetic").
					WithHint("--synthetic zipf:1.2 needs no weights")
			}
			changed := cmd.Flags().Changed
			if opts.Synthetic != "" && changed("windows") || opts.Text != "" && changed("seed") ||
				opts.Synthetic == "" && changed("chunks") {
				return diag.New(diag.ClassUsage, "loads: --windows is for --text and --random, --chunks for --synthetic, "+
					"--seed for --random and --synthetic")
			}
			if opts.Windows < 2 || opts.Chunks < 2 {
				return diag.New(diag.ClassUsage, "loads: want at least 2 windows or chunks")
			}
			return opts.Run(cmd.Context(), ui)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Model, "model", "", "model directory or catalog name")
	flags.StringVar(&opts.Text, "text", "", "text to execute the model on")
	flags.BoolVar(&opts.Random, "random", false, "random ids instead, for models without a tokenizer")
	flags.StringVar(&opts.Synthetic, "synthetic", "", "distribution instead: "+workload.Generators)
	flags.StringVarP(&opts.Out, "output", "o", "", "loads to write")
	flags.IntVar(&opts.Windows, "windows", 64, "windows of 256 tokens, at most, from the text's beginning")
	flags.IntVar(&opts.Chunks, "chunks", 256, "chunks to draw")
	flags.Uint64Var(&opts.Seed, "seed", 1, "seed of what is drawn")
	return cmd
}
