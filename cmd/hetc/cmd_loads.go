package main

import (
	"github.com/hetc/hetc/solver/workload"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/internal/diag"
)

func newLoads(ui *cli.Streams) *cobra.Command {
	var options precision.LoadsOptions
	cmd := &cobra.Command{
		Use:   "loads --model DIR (--text FILE | --synthetic DISTRIBUTION) -o loads.json",
		Short: "note how many rows a model's router sends to every expert",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "model", "output"); err != nil {
				return err
			}
			if (options.Text == "") == (options.Synthetic == "") {
				return diag.New(diag.ClassUsage, "loads: want one of --text and --synthetic").WithHint("--synthetic zipf:1.2 needs no weights")
			}
			if options.Text == "" && cmd.Flags().Changed("windows") || options.Text != "" && (cmd.Flags().Changed("chunks") || cmd.Flags().Changed("seed")) {
				return diag.New(diag.ClassUsage, "loads: --windows is for --text, --chunks and --seed are for --synthetic")
			}
			if options.Windows < 2 || options.Chunks < 2 {
				return diag.New(diag.ClassUsage, "loads: want at least 2 windows or chunks")
			}
			return options.Run(cmd.Context(), ui)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Model, "model", "", "model directory or catalog name")
	flags.StringVar(&options.Text, "text", "", "text to execute the model on")
	flags.StringVar(&options.Synthetic, "synthetic", "", "distribution instead: "+workload.Generators)
	flags.StringVarP(&options.Out, "output", "o", "", "loads to write")
	flags.IntVar(&options.Windows, "windows", 64, "windows of 256 tokens to read from the text's beginning, at most")
	flags.IntVar(&options.Chunks, "chunks", 256, "chunks to draw")
	flags.Uint64Var(&options.Seed, "seed", 1, "seed of what is drawn")
	return cmd
}
