package catalog

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/socs"
)

// ListModels shows the models of the catalog.
func ListModels(ui *cli.Streams) error {
	var rows [][]string
	var docs []any
	for _, name := range models.CatalogNames() {
		model, err := models.Open(name)
		if err != nil {
			return err
		}
		rows = append(rows, []string{name, model.Architecture, fmt.Sprintf("%.2f", float64(model.Parameters())/1e9),
			model.Source})
		docs = append(docs, map[string]any{
			"name": name, "architecture": model.Architecture, "parameters": model.Parameters(), "source": model.Source,
		})
	}
	ui.Table([]string{"model", "architecture", ">parameters 1e9", "<source"}, rows)
	return ui.Result(docs)
}

// ShowModel shows a model's dimensions and weights, and what in its files means nothing here.
func ShowModel(ui *cli.Streams, path string) error {
	model, err := models.Open(path)
	if err != nil {
		return err
	}
	defer model.Close()
	experts := ""
	if model.Experts > 0 {
		experts = fmt.Sprintf(", %d experts of %d, %d per token", model.Experts, model.ExpertFFN, model.ExpertsPerToken)
	}
	var types []string
	for _, stored := range model.StoredTypes() {
		types = append(types, string(stored))
	}
	ui.Printf("%s: %s, %d layers, hidden %d, heads %d/%d of %d, ffn %d%s, vocabulary %d, context %d, stored %s, "+
		"weights: %v\n",
		model.Name, model.Architecture, model.Layers, model.Hidden, model.Heads, model.KVHeads, model.HeadDim,
		model.FFN, experts, model.Vocab, model.MaxContext,
		strings.Join(types, " "), model.HasWeights())
	for _, key := range model.UnreadKeys() {
		ui.Warnf("config key %q is not used", key)
	}
	for _, tensor := range model.Ignored() {
		ui.Warnf("tensor %q is not used", tensor)
	}
	var rows [][]string
	graph := model.Graph()
	// weights as the graph reads them, which may join several tensors
	for _, weight := range graph.Weights {
		shape := fmt.Sprintf("[%d,%d]", weight.K, weight.N)
		if weight.Experts > 0 {
			shape = fmt.Sprintf("%d x %s", weight.Experts, shape)
		}
		rows = append(rows, []string{weight.Name, shape, strings.Join(weight.From, " ")})
	}
	ui.Table([]string{"weight", "[K,N]", "from"}, rows)
	return ui.Result(map[string]any{
		"name": model.Name, "architecture": model.Architecture, "layers": model.Layers, "hidden": model.Hidden,
		"heads": model.Heads, "kv_heads": model.KVHeads, "head_dim": model.HeadDim, "ffn": model.FFN,
		"vocabulary":  model.Vocab,
		"max_context": model.MaxContext, "experts": model.Experts, "experts_per_token": model.ExpertsPerToken,
		"expert_ffn": model.ExpertFFN, "shared_ffn": model.SharedFFN, "stored": model.StoredTypes(),
		"unread_keys": model.UnreadKeys(), "ignored_tensors": model.Ignored(),
		"weights": model.HasWeights(), "parameters": model.Parameters(),
	})
}

// Synthesise writes a model with the shapes of another one and seeded random weights of an element type.
func Synthesise(ctx context.Context, ui *cli.Streams, shape, out, element string, seed uint64) error {
	if err := writableModel(out); err != nil {
		return err
	}
	if names := models.CatalogNames(); !slices.Contains(names, shape) {
		return diag.New(diag.ClassInput, "synthesise model %q: not a catalog entry", shape).
			WithHint("%s", diag.DidYouMean(shape, names))
	}
	model, err := models.Open(shape)
	if err != nil {
		return err
	}
	defer model.Close()
	stored, err := elementType(element)
	if err != nil {
		return err
	}
	if err := models.Synth(ctx, model, out, seed, stored); err != nil {
		return err
	}
	ui.Printf("%s: random weights of %s, seed %d\n", out, model.Name, seed)
	return ui.Result(map[string]any{"dir": out, "model": model.Name, "seed": seed, "parameters": model.Parameters()})
}

// Export writes a model as a GGUF file with matrices of an element type.
func Export(ctx context.Context, ui *cli.Streams, path, out, element string) error {
	stored, err := elementType(element)
	if err != nil {
		return err
	}
	if err := wholefile.Writable(out); err != nil {
		return err
	}
	if !strings.HasSuffix(out, ".gguf") { // models are opened by their names
		return diag.New(diag.ClassUsage, "export model to %q: want a name that ends in .gguf", out).
			WithHint("-o %s", cli.Quote(out+".gguf"))
	}
	model, err := models.Open(path)
	if err != nil {
		return err
	}
	defer model.Close()
	if err := models.Export(ctx, model, out, stored); err != nil {
		return err
	}
	cli.Wrote(ui, out, "%s as GGUF, matrices of %s", model.Name, element)
	return ui.Result(map[string]any{"file": out, "model": model.Name, "type": element})
}

// ListSoCs shows the simulated SoCs of the catalog.
func ListSoCs(ui *cli.Streams) error {
	var rows [][]string
	var docs []any
	for _, name := range socs.Catalog() {
		soc, err := socs.Open(name)
		if err != nil {
			return err
		}
		var procs []string
		for _, proc := range soc.Processors {
			procs = append(procs, proc.Name)
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
	ui.Table([]string{"soc", "processors", "target", ">assumed", "<what"}, rows)
	return ui.Result(docs)
}

// ShowSoC shows every number of a SoC with its source.
func ShowSoC(ui *cli.Streams, path string) error {
	soc, err := socs.Open(path)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, number := range soc.Numbers() {
		rows = append(rows, []string{number.Path, number.Value, number.Kind, number.Text})
	}
	title := soc.Name
	if soc.Description != "" {
		title += ": " + soc.Description
	}
	ui.Printf("%s\n", title)
	ui.Table([]string{"value", ">number", "source", "<where"}, rows)
	return ui.Result(soc)
}
