package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/catalog"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
)

func newModels(s *cli.Streams) *cobra.Command {
	c := &cobra.Command{Use: "models", Short: "list, show and synthesise models", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	list := &cobra.Command{Use: "list", Short: "list the catalog (shapes without weights)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var rows [][]string
			var docs []any
			for _, name := range models.CatalogNames() {
				m, err := models.Open(name)
				if err != nil {
					return err
				}
				rows = append(rows, []string{name, m.Architecture, fmt.Sprintf("%.2f", float64(m.Parameters())/1e9), m.Source})
				docs = append(docs, map[string]any{"name": name, "architecture": m.Architecture, "parameters": m.Parameters(), "source": m.Source})
			}
			s.Table([]string{"model", "architecture", ">parameters 1e9", "<source"}, rows)
			return s.Result(docs)
		}}
	show := &cobra.Command{Use: "show MODEL", Short: "show a model's dimensions and weights", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			m, err := models.Open(args[0])
			if err != nil {
				return err
			}
			defer m.Close()
			experts := ""
			if m.Experts > 0 {
				experts = fmt.Sprintf(", %d experts of %d, %d per token", m.Experts, m.ExpertFFN, m.ExpertsPerToken)
			}
			var types []string
			for _, t := range m.StoredTypes() {
				types = append(types, string(t))
			}
			s.Printf("%s: %s, %d layers, hidden %d, heads %d/%d of %d, ffn %d%s, vocabulary %d, context %d, stored %s, weights: %v\n",
				m.Name, m.Architecture, m.Layers, m.Hidden, m.Heads, m.KVHeads, m.HeadDim, m.FFN, experts, m.Vocab, m.MaxContext, strings.Join(types, " "), m.HasWeights())
			for _, k := range m.UnreadKeys() {
				s.Warnf("config key %q is not used", k)
			}
			for _, t := range m.Ignored() {
				s.Warnf("tensor %q is not used", t)
			}
			var rows [][]string
			g := m.Graph()
			for _, w := range g.Weights {
				shape := fmt.Sprintf("[%d,%d]", w.K, w.N)
				if w.Experts > 0 {
					shape = fmt.Sprintf("%d x %s", w.Experts, shape)
				}
				rows = append(rows, []string{w.Name, shape, strings.Join(w.From, " ")})
			}
			s.Table([]string{"weight", "[K,N]", "from"}, rows)
			return s.Result(map[string]any{"name": m.Name, "architecture": m.Architecture, "layers": m.Layers, "hidden": m.Hidden, "heads": m.Heads,
				"kv_heads": m.KVHeads, "head_dim": m.HeadDim, "ffn": m.FFN, "vocabulary": m.Vocab, "max_context": m.MaxContext,
				"experts": m.Experts, "experts_per_token": m.ExpertsPerToken, "expert_ffn": m.ExpertFFN, "shared_ffn": m.SharedFFN, "stored": m.StoredTypes(),
				"unread_keys": m.UnreadKeys(), "ignored_tensors": m.Ignored(),
				"weights": m.HasWeights(), "parameters": m.Parameters()})
		}}
	var out, stored string
	var seed uint64
	synth := &cobra.Command{Use: "synth SHAPE -o DIR|FILE.gguf", Short: "write a model with seeded random weights", Args: cobra.ExactArgs(1),
		Long: `Writes a Hugging Face directory with the shapes of a catalog model and seeded random weights with outlier
channels, for measuring speed and memory; a name that ends in .gguf is written as a GGUF file. The same seed
gives the same bytes.

` + cli.ExitCodes,
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "output"); err != nil {
				return err
			}
			if err := catalog.WritableModel(out); err != nil {
				return err
			}
			m, err := models.Open(args[0])
			if err != nil {
				return err
			}
			defer m.Close()
			element, err := catalog.ElementType(stored)
			if err != nil {
				return err
			}
			if err := models.Synth(c.Context(), m, out, seed, element); err != nil {
				return err
			}
			s.Printf("%s: random weights of %s, seed %d\n", out, m.Name, seed)
			return s.Result(map[string]any{"dir": out, "model": m.Name, "seed": seed, "parameters": m.Parameters()})
		}}
	synth.Flags().StringVarP(&out, "output", "o", "", "directory or .gguf file to write")
	synth.Flags().StringVar(&stored, "type", "bf16", "element type of matrices in a .gguf file: "+strings.Join(catalog.ElementTypes, ", "))
	synth.Flags().Uint64Var(&seed, "seed", 7, "seed of the weights")
	c.AddCommand(list, show, synth, newExport(s))
	return c
}

func newExport(s *cli.Streams) *cobra.Command {
	var out, stored string
	c := &cobra.Command{Use: "export MODEL -o FILE.gguf", Short: "write a model as a GGUF file", Args: cobra.ExactArgs(1),
		Long: `Writes a model with its tokenizer and chat template as one GGUF file, which other programs read too. Vectors and
the matrices that choose experts stay f32. A model with a feature that the format has no form for is refused;
what was written is read back and compared.

` + cli.ExitCodes,
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "output"); err != nil {
				return err
			}
			element, err := catalog.ElementType(stored)
			if err != nil {
				return err
			}
			if err := wholefile.Writable(out); err != nil {
				return err
			}
			m, err := models.Open(args[0])
			if err != nil {
				return err
			}
			defer m.Close()
			if err := models.Export(c.Context(), m, out, element); err != nil {
				return err
			}
			cli.Wrote(s, out, "%s as GGUF, matrices of %s", m.Name, stored)
			return s.Result(map[string]any{"file": out, "model": m.Name, "type": stored})
		}}
	c.Flags().StringVarP(&out, "output", "o", "", "GGUF file to write")
	c.Flags().StringVar(&stored, "type", "f16", "element type of matrices: "+strings.Join(catalog.ElementTypes, ", "))
	return c
}
