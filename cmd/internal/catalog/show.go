package catalog

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/socs"
)

// ListModels shows the models of the catalog.
func ListModels(s *cli.Streams) error {
	var rows [][]string
	var docs []any
	for _, name := range models.CatalogNames() {
		m, err := models.Open(name)
		if err != nil {
			return err
		}
		rows = append(rows, []string{name, m.Architecture, fmt.Sprintf("%.2f", float64(m.Parameters())/1e9), m.Source})
		docs = append(docs, map[string]any{
			"name": name, "architecture": m.Architecture, "parameters": m.Parameters(), "source": m.Source,
		})
	}
	s.Table([]string{"model", "architecture", ">parameters 1e9", "<source"}, rows)
	return s.Result(docs)
}

// ShowModel shows a model's dimensions and weights, and what in its files means nothing here.
func ShowModel(s *cli.Streams, path string) error {
	m, err := models.Open(path)
	if err != nil {
		return err
	}
	defer m.Close()
	experts := ""
	if m.Experts > 0 {
		experts = fmt.Sprintf(", %d experts of %d, %d per token", m.Experts, m.ExpertFFN, m.ExpertsPerToken)
	}
	var types []string
	for _, stored := range m.StoredTypes() {
		types = append(types, string(stored))
	}
	s.Printf("%s: %s, %d layers, hidden %d, heads %d/%d of %d, ffn %d%s, vocabulary %d, context %d, stored %s, weights: %v\n",
		m.Name, m.Architecture, m.Layers, m.Hidden, m.Heads, m.KVHeads, m.HeadDim, m.FFN, experts, m.Vocab, m.MaxContext,
		strings.Join(types, " "), m.HasWeights())
	for _, key := range m.UnreadKeys() {
		s.Warnf("config key %q is not used", key)
	}
	for _, tensor := range m.Ignored() {
		s.Warnf("tensor %q is not used", tensor)
	}
	var rows [][]string
	graph := m.Graph()
	for _, w := range graph.Weights {
		shape := fmt.Sprintf("[%d,%d]", w.K, w.N)
		if w.Experts > 0 {
			shape = fmt.Sprintf("%d x %s", w.Experts, shape)
		}
		rows = append(rows, []string{w.Name, shape, strings.Join(w.From, " ")})
	}
	s.Table([]string{"weight", "[K,N]", "from"}, rows)
	return s.Result(map[string]any{
		"name": m.Name, "architecture": m.Architecture, "layers": m.Layers, "hidden": m.Hidden,
		"heads": m.Heads, "kv_heads": m.KVHeads, "head_dim": m.HeadDim, "ffn": m.FFN, "vocabulary": m.Vocab,
		"max_context": m.MaxContext, "experts": m.Experts, "experts_per_token": m.ExpertsPerToken,
		"expert_ffn": m.ExpertFFN, "shared_ffn": m.SharedFFN, "stored": m.StoredTypes(),
		"unread_keys": m.UnreadKeys(), "ignored_tensors": m.Ignored(),
		"weights": m.HasWeights(), "parameters": m.Parameters(),
	})
}

// Synthesise writes a model with the shapes of another one and seeded random weights of an element type.
func Synthesise(ctx context.Context, s *cli.Streams, shape, out, element string, seed uint64) error {
	if err := writableModel(out); err != nil {
		return err
	}
	m, err := models.Open(shape)
	if err != nil {
		return err
	}
	defer m.Close()
	stored, err := elementType(element)
	if err != nil {
		return err
	}
	if err := models.Synth(ctx, m, out, seed, stored); err != nil {
		return err
	}
	s.Printf("%s: random weights of %s, seed %d\n", out, m.Name, seed)
	return s.Result(map[string]any{"dir": out, "model": m.Name, "seed": seed, "parameters": m.Parameters()})
}

// Export writes a model as a GGUF file with matrices of an element type.
func Export(ctx context.Context, s *cli.Streams, path, out, element string) error {
	stored, err := elementType(element)
	if err != nil {
		return err
	}
	if err := wholefile.Writable(out); err != nil {
		return err
	}
	m, err := models.Open(path)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := models.Export(ctx, m, out, stored); err != nil {
		return err
	}
	cli.Wrote(s, out, "%s as GGUF, matrices of %s", m.Name, element)
	return s.Result(map[string]any{"file": out, "model": m.Name, "type": element})
}

// ListSoCs shows the simulated SoCs of the catalog.
func ListSoCs(s *cli.Streams) error {
	var rows [][]string
	var docs []any
	for _, name := range socs.Catalog() {
		soc, err := socs.Open(name)
		if err != nil {
			return err
		}
		var procs []string
		for _, p := range soc.Processors {
			procs = append(procs, p.Name)
		}
		target := ""
		if npu := soc.TargetNPU(); npu != nil {
			target = npu.Target.Driver
		}
		assumed := len(soc.Assumptions())
		rows = append(rows, []string{
			name, strings.Join(procs, " "), cmp.Or(target, "-"), fmt.Sprint(assumed), firstSentence(soc.Description),
		})
		docs = append(docs, map[string]any{
			"name": name, "processors": procs, "target": target, "assumptions": assumed, "description": soc.Description,
		})
	}
	s.Table([]string{"soc", "processors", "target", ">assumed", "<what"}, rows)
	return s.Result(docs)
}

// ShowSoC shows every number of a SoC with its source.
func ShowSoC(s *cli.Streams, path string) error {
	soc, err := socs.Open(path)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, number := range soc.Numbers() {
		rows = append(rows, []string{number.Path, number.Value, number.Kind, number.Text})
	}
	s.Printf("%s: %s\n", soc.Name, soc.Description)
	s.Table([]string{"value", ">number", "source", "<where"}, rows)
	return s.Result(soc)
}
