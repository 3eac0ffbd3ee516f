package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// loadTokens is the length of the chunks that loads are noted for. Longer ones are put together from them.
const loadTokens = 64

type loadsOptions struct {
	model, text, synthetic, out string
	windows, chunks             int
	seed                        uint64
}

func newLoads(s *cli.Streams) *cobra.Command {
	var o loadsOptions
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

`, loadTokens) + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model", "output"); err != nil {
				return err
			}
			if (o.text == "") == (o.synthetic == "") {
				return diag.New(diag.ClassUsage, "loads: want one of --text and --synthetic").WithHint("--synthetic zipf:1.2 needs no weights")
			}
			if o.text == "" && c.Flags().Changed("windows") || o.text != "" && (c.Flags().Changed("chunks") || c.Flags().Changed("seed")) {
				return diag.New(diag.ClassUsage, "loads: --windows is for --text, --chunks and --seed are for --synthetic")
			}
			if o.windows < 2 || o.chunks < 2 {
				return diag.New(diag.ClassUsage, "loads: want at least 2 windows or chunks")
			}
			return o.run(c.Context(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&o.model, "model", "", "model directory or catalog name")
	f.StringVar(&o.text, "text", "", "text to execute the model on")
	f.StringVar(&o.synthetic, "synthetic", "", "distribution instead: "+workload.Generators)
	f.StringVarP(&o.out, "output", "o", "", "loads to write")
	f.IntVar(&o.windows, "windows", 64, "windows of 256 tokens to read from the text's beginning, at most")
	f.IntVar(&o.chunks, "chunks", 256, "chunks to draw")
	f.Uint64Var(&o.seed, "seed", 1, "seed of what is drawn")
	return c
}

func (o *loadsOptions) run(ctx context.Context, s *cli.Streams) error {
	if err := wholefile.Writable(o.out); err != nil {
		return err
	}
	m, err := models.Open(o.model)
	if err != nil {
		return err
	}
	defer m.Close()
	var l *workload.Loads
	if o.synthetic != "" {
		l, err = workload.Synthetic(m, o.synthetic, loadTokens, o.chunks, o.seed)
	} else {
		l, err = o.trace(ctx, m)
	}
	if err != nil {
		return err
	}
	text, err := l.Encode()
	if err != nil {
		return err
	}
	digest, err := l.Digest()
	if err != nil {
		return err
	}
	if old, err := wholefile.Read(o.out, int64(len(text))); err == nil && bytes.Equal(old, text) {
		return kept(s, o.out, "same inputs")
	}
	if err := wholefile.Write(o.out, text); err != nil {
		return err
	}
	wrote(s, o.out, "%s loads %.12s of %s, %d chunks of %d tokens", l.Source, digest, m.Name, l.Chunks, l.ChunkTokens)
	var rows [][]string
	imbalance := make([]float64, len(l.Layers))
	for i, y := range l.Layers {
		imbalance[i] = l.Imbalance(i)
		idle := 0
		for _, list := range y.Rows {
			if slices.Max(list) == 0 {
				idle++
			}
		}
		rows = append(rows, []string{fmt.Sprint(y.Layer), fmt.Sprintf("%.2f", imbalance[i]), fmt.Sprint(idle)})
	}
	s.Table([]string{"layer", ">busiest / mean", ">never chosen"}, rows)
	return s.Result(map[string]any{"file": o.out, "digest": digest, "source": l.Source, "chunks": l.Chunks, "chunk_tokens": l.ChunkTokens, "imbalance": imbalance})
}

// trace executes the model and observes its router.
func (o *loadsOptions) trace(ctx context.Context, m *models.Model) (_ *workload.Loads, err error) {
	if m.Experts == 0 {
		return nil, diag.New(diag.ClassInput, "model %q has no experts", o.model).WithHint("hetc models list shows which have")
	}
	x, err := trial.Open(ctx, m)
	if err != nil {
		return nil, err
	}
	size := min(quality.WindowTokens, m.MaxContext/loadTokens*loadTokens)
	if size == 0 {
		return nil, diag.New(diag.ClassInput, "model %q has %d positions, and chunks %d tokens", o.model, m.MaxContext, loadTokens)
	}
	text, err := x.ReadText(o.text, o.windows, size)
	if err != nil {
		return nil, err
	}
	p, err := x.Plan(size, trial.Float32, nil)
	if err != nil {
		return nil, err
	}
	routes := quality.Routes{Tokens: loadTokens}
	machine, err := x.Open(ctx, p, nil, routes.Observe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	for i, w := range text.Windows {
		if err := quality.Execute(ctx, machine.Machine, w); err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
	}
	l := &workload.Loads{
		Schema: workload.LoadsSchema, Source: "traced", Model: m.Name, ModelDigest: x.Digest, Text: text.SHA256,
		Experts: m.Experts, ExpertsPerToken: m.ExpertsPerToken, ChunkTokens: loadTokens, Chunks: len(text.Windows) * size / loadTokens,
	}
	for _, layer := range routes.Layers() {
		rows, err := routes.Rows(layer)
		if err != nil {
			return nil, err
		}
		y := workload.LoadLayer{Layer: layer}
		for _, r := range rows {
			y.Rows = append(y.Rows, r)
		}
		norms, err := routes.Norms(layer)
		if err != nil {
			return nil, err
		}
		for _, c := range problem.Curves(norms) {
			y.Saliency = append(y.Saliency, workload.Saliency(c))
		}
		l.Layers = append(l.Layers, y)
	}
	return l, l.Validate()
}

// showTiers tells in a few lines what was decided for experts.
func showTiers(s *cli.Streams, p *planir.Plan) {
	t := p.Tiers
	if t == nil {
		return
	}
	var groups, npu int
	var overflow, padding float64
	for i := range t.Layers {
		y := &t.Layers[i]
		groups += len(y.Groups)
		for _, g := range y.Groups {
			npu += len(g.Experts)
		}
		overflow += y.Overflow / float64(len(t.Layers))
		padding += y.Padding / float64(len(t.Layers))
	}
	how := "predicted"
	if times := p.SoC.Times(); times != "" {
		how = "predicted from " + times
	}
	s.Printf("experts (%s loads): tiers of %v rows, %d of %d experts on %s in %d groups, the others on %s; overflow %.1f %% (%s), padding %.1f %%; %.3f ms for a chunk of %d tokens, %s; %s\n",
		t.Loads, t.Capacities, npu, t.Experts*len(t.Layers), t.NPU, groups, t.CPU, 100*overflow, t.Overflow, 100*padding, float64(t.ExpectNS)/1e6, t.ChunkTokens, how, t.Status)
	if t.Status != "optimal" {
		s.Printf("  %s\n", tierProof(t))
	}
	s.Printf("  for targets whose expert graphs have static shapes: this plan's own program executes experts with the rows they get\n")
}

// tierProof tells whether the tiers are proved to be the best under their costs and, where they are not, what may be done about it.
func tierProof(t *planir.Tiers) string {
	words := map[string]string{"time": "expected time", "off": "rows that are not on " + t.NPU, "energy": "energy, modelled", "launches": "groups", "lost": "squared norm that is lost"}
	stages := t.Stages
	if len(stages) == 0 {
		first := map[string]string{"offload": "off", "saliency": "lost"}[t.Prefer]
		stages = []planir.TierStage{{Measure: cmp.Or(first, "time"), Objective: t.Objective, Bound: t.Bound}}
	}
	var names, open []string
	for _, x := range stages {
		names = append(names, words[x.Measure])
		if gap := x.Objective - x.Bound; gap > 0 {
			text := fmt.Sprintf("up to %.2g %% less %s", 100*float64(gap)/float64(x.Objective), words[x.Measure])
			switch x.Measure {
			case "launches", "off":
				text = fmt.Sprintf("%d %s, and up to %d fewer", x.Objective, words[x.Measure], gap)
			case "lost": // it may be next to nothing, of which any part is much
				norm := 1e9 * float64(len(t.Layers))
				text = fmt.Sprintf("%.2g %% of the squared norm lost, and down to %.2g %%", 100*float64(x.Objective)/norm, 100*float64(x.Bound)/norm)
			}
			open = append(open, text)
		}
	}
	switch {
	case len(open) > 0:
		text := fmt.Sprintf("The search for tiers ended at its limit. Not ruled out: %s.", strings.Join(open, "; "))
		if len(stages) > 1 {
			text += " Each with what comes before it in the order (" + strings.Join(names, ", ") + ") held at what was found."
		}
		return text + " Fewer tiers, capacities or chunk lengths in the workload's section experts make the search smaller."
	case t.Status != "optimal":
		return "The search for tiers ended at its limit: no choice is better, though another one may be as good."
	case len(stages) > 1:
		return "No choice of tiers is better, in the order " + strings.Join(names, ", ") + ": that is proved."
	}
	return "No choice of tiers has less " + names[0] + " under these predictions: that is proved."
}
