package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/catalog"
	"github.com/hetc/hetc/cmd/internal/cli"
)

// newModels groups what is done with models alone; package catalog does it.
func newModels(ui *cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "models", Short: "list, show and synthesise models", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	list := &cobra.Command{
		Use: "list", Short: "list the catalog (shapes without weights)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return catalog.ListModels(ui) },
	}
	show := &cobra.Command{
		Use: "show MODEL", Short: "show a model's dimensions and weights", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return catalog.ShowModel(ui, args[0]) },
	}
	cmd.AddCommand(list, show, newSynth(ui), newConstruct(ui), newExport(ui))
	return cmd
}

// newSynth writes a model of a known shape with random weights, for measuring without a download.
func newSynth(ui *cli.Streams) *cobra.Command {
	var out, element string
	var seed uint64
	cmd := &cobra.Command{
		Use: "synth SHAPE -o DIR|FILE.gguf", Short: "write a model with seeded random weights",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Required(cmd, "output"); err != nil {
				return err
			}
			return catalog.Synthesise(cmd.Context(), ui, args[0], out, element, seed)
		},
	}
	types := strings.Join(catalog.ElementTypes, ", ")
	cmd.Flags().StringVarP(&out, "output", "o", "", "directory or .gguf file to write")
	cmd.Flags().StringVar(&element, "type", "bf16", "element type of matrices in a .gguf file: "+types)
	cmd.Flags().Uint64Var(&seed, "seed", 7, "seed of the weights")
	return cmd
}

// newConstruct writes a small model that uses a long context, for measuring what sparse attention loses.
func newConstruct(ui *cli.Streams) *cobra.Command {
	var from, text, out string
	var seed uint64
	cmd := &cobra.Command{
		Use: "construct --tokenizer MODEL --text FILE -o DIR", Short: "write a small model that uses 8192 tokens of context",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "tokenizer", "text", "output"); err != nil {
				return err
			}
			return catalog.Construct(cmd.Context(), ui, from, text, out, seed)
		},
	}
	cmd.Flags().StringVar(&from, "tokenizer", "", "model directory whose tokenizer the model has")
	cmd.Flags().StringVar(&text, "text", "", "text whose first half is counted")
	cmd.Flags().StringVarP(&out, "output", "o", "", "directory to write")
	cmd.Flags().Uint64Var(&seed, "seed", 7, "seed of codes and noise")
	return cmd
}

// newExport writes a model as a GGUF file, for llama.cpp and others.
func newExport(ui *cli.Streams) *cobra.Command {
	var out, element string
	cmd := &cobra.Command{
		Use: "export MODEL -o FILE.gguf", Short: "write a model as a GGUF file", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Required(cmd, "output"); err != nil {
				return err
			}
			return catalog.Export(cmd.Context(), ui, args[0], out, element)
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "GGUF file to write")
	cmd.Flags().StringVar(&element, "type", "f16", "element type of matrices: "+
		strings.Join(catalog.ElementTypes, ", "))
	return cmd
}
