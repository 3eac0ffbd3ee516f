package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// AttentionDensities are the shares of positions for which losses are measured where nothing else is said.
var AttentionDensities = []float64{0.02, 0.05, 0.1, 0.2, 0.4}

// AttentionOptions say what CalibrateAttention measures.
type AttentionOptions struct {
	Text      *Text
	Densities []float64
	// Journal is a file that keeps what was measured until all is done: another run goes on from there.
	Journal string
	// Progress is called after every window that was executed: done of all, and what the next ones are for.
	Progress func(done, all int, what string)
}

// clamps bound the products of importances (Eq. 3): shadowAttn's, and shares of the largest product. Calibration takes
// the one with which plans lose least.
func clamps(importance []float64) []float64 {
	most := slices.Max(importance)
	out := []float64{1e-3}
	for _, share := range []float64{0.01, 0.1, 1} {
		if most*share > 0 {
			out = append(out, most*share)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// attending is one run of CalibrateAttention, or of CompareRules.
type attending struct {
	*comparison
	text     *Text
	journal  *journal
	observed []quality.Window // they and the compared ones take turns in the text, as in Calibrate

	change quality.Interventions
}

// openAttending opens the float32 machine, whose attention may be changed.
func openAttending(ctx context.Context, model *Model, text *Text, compared []quality.Window) (*attending, error) {
	run := &attending{text: text}
	var err error
	run.comparison, err = openComparison(ctx, model, compared, run.change.Observe)
	return run, err
}

// remembered returns the result of comparing all windows, of the journal if that has it already.
func (a *attending) remembered(what string, compare func(*quality.Tally) error) (*quality.Result, error) {
	tally := a.journal.find(what)
	if tally == nil {
		tally = new(quality.Tally)
		if err := compare(tally); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if err := a.journal.add(what, tally); err != nil {
			return nil, err
		}
	} else {
		a.done += a.ref.Windows()
	}
	result, err := tally.Result()
	return &result, err
}

// measure compares the windows with a change of attention.
func (a *attending) measure(ctx context.Context, what string, change func(*quality.Heads)) (*quality.Result, error) {
	return a.remembered(what, func(tally *quality.Tally) error {
		a.change.Change = change
		defer func() { a.change.Change = nil }()
		return cmp.Or(a.compare(ctx, what, a.machine, tally), a.change.Err())
	})
}

// selection is a rule by which positions are selected, with the mean share of them and the least number that it keeps.
type selection struct {
	rule    string
	density float64
	least   int
}

// String names a selection in journals and messages.
func (s selection) String() string {
	text := fmt.Sprintf("rule %s at %.3g %%", s.rule, 100*s.density)
	if s.least > 0 {
		text += fmt.Sprintf(", at least %d", s.least)
	}
	return text
}

// measureRule compares the windows with attention to selected positions.
func (a *attending) measureRule(ctx context.Context, attention *calibration.Attention, by selection) (*quality.Result,
	error) {
	return a.remembered(by.String(), func(tally *quality.Tally) error {
		return a.withRule(ctx, attention, by, func(machine *Machine) error {
			return a.compare(ctx, by.String(), machine, tally)
		})
	})
}

// withRule opens a machine that attends to selected positions: by the operators of plans where a rule has some, which
// is fast, and else by the definition in package quality.
func (a *attending) withRule(ctx context.Context, attention *calibration.Attention, by selection,
	do func(*Machine) error) error {
	switch by.rule {
	case RuleDense:
		return do(a.machine)
	case calibration.RuleWindow, calibration.RuleBlocks:
		a.change.Change = definition(attention, by).Attend
		defer func() { a.change.Change = nil }()
		return cmp.Or(do(a.machine), a.change.Err())
	}
	shares := *attention
	if by.rule == calibration.RuleUniform {
		shares = even(attention)
	}
	cal := &calibration.Calibration{Schema: calibration.Schema, Text: attention.Text, Attention: &shares,
		Model: calibration.Model{Name: a.Name, Digest: a.Digest}}
	window := len(a.text.Windows[0].Tokens)
	plan, err := a.SparsePlan(window, &planir.Attention{Density: by.density, Least: by.least, Block: attention.Block,
		Rest: by.rule == calibration.RuleRest, Rows: []int{window}}, cal)
	if err != nil {
		return err
	}
	machine, err := a.Open(ctx, plan, cal, nil)
	if err != nil {
		return err
	}
	return errors.Join(do(machine), machine.Close())
}

// even returns a calibration whose heads are all of the same importance.
func even(attention *calibration.Attention) calibration.Attention {
	out := *attention
	out.SharesBy, out.Clamp = calibration.ByImportance, 1
	out.Layers = slices.Clone(attention.Layers)
	for i := range out.Layers {
		out.Layers[i].Importance, out.Layers[i].Heads = 1, slices.Clone(out.Layers[i].Heads)
		for head := range out.Layers[i].Heads {
			out.Layers[i].Heads[head].Importance = 1
		}
	}
	return out
}

// CalibrateAttention measures what plans with sparse attention need to know of a model: how important heads and layers
// are, how large queries and keys, how well 8-bit estimates find the positions that matter, and what is lost when
// queries keep few of them. Scales and recall come from every other window, losses from those between.
//
// Importances are by how much the loss rises when the head's or layer's result is zero (shadowAttn Eq. 1 and 2), so
// every head costs an execution of the compared windows, and so does every rule at every density.
func CalibrateAttention(
	ctx context.Context, model *Model, options AttentionOptions,
) (_ *calibration.Attention, err error) {
	observed, compared, err := options.Text.halves(shorterWindows)
	if err != nil {
		return nil, err
	}
	size := len(options.Text.Windows[0].Tokens)
	run, err := openAttending(ctx, model, options.Text, compared)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.close()) }()
	run.observed, run.progress = observed, options.Progress
	key := fmt.Sprintf("%s %s %d windows of %d", model.Digest, options.Text.SHA256, len(options.Text.Windows), size)
	if run.journal, err = openJournal(options.Journal, key); err != nil {
		return nil, err
	}
	const sharings = 5 // that are tried at most
	run.all = 2*len(observed) + len(compared)*(1+model.Layers*(1+model.Heads)+sharings+
		len(selections(options.Densities, size)))
	if err := run.reference(ctx); err != nil {
		return nil, err
	}
	out := &calibration.Attention{
		Text: calibration.Text{SHA256: options.Text.SHA256, Tokens: len(options.Text.Windows) * size,
			Windows: len(options.Text.Windows), WindowTokens: size},
		Heads: model.Heads, KVHeads: model.KVHeads, Densities: options.Densities, Block: op.SparseBlock,
	}
	for _, part := range []func(context.Context, *calibration.Attention) error{
		run.estimates, run.importances, run.sharing, run.losses,
	} {
		if err := part(ctx, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// estimates executes the observed windows twice: for scales, then for recall.
func (a *attending) estimates(ctx context.Context, out *calibration.Attention) (err error) {
	const rows = 128 // of a window that recall looks at
	estimates := quality.Estimates{Densities: out.Densities, Rows: rows, Block: out.Block}
	for pass := range 2 {
		a.change.Change = estimates.Sizes
		if pass == 1 {
			a.change.Change = estimates.Recall(out)
		}
		if err := cmp.Or(a.observe(ctx, a.observed, "scales and recall"), a.change.Err()); err != nil {
			return err
		}
		if out.Layers, err = estimates.Layers(); err != nil {
			return err
		}
		if len(out.Layers) != a.Layers {
			return diag.New(diag.ClassRun, "attention was observed in %d layers, want %d", len(out.Layers), a.Layers)
		}
		out.Buckets = out.MeanBuckets()
	}
	a.change.Change = nil
	return nil
}

// importances measures the loss without each layer's attention, and without each head.
func (a *attending) importances(ctx context.Context, out *calibration.Attention) error {
	for i := range out.Layers {
		layer := &out.Layers[i]
		for head := -1; head < a.Heads; head++ {
			what := fmt.Sprintf("without layer %d", i)
			if head >= 0 {
				what = fmt.Sprintf("without head %d of layer %d", head, i)
			}
			result, err := a.measure(ctx, what, quality.WithoutHead(i, head))
			if err != nil {
				return err
			}
			rise := math.Log(result.PerplexityRatio.Mean)
			if head < 0 {
				layer.Importance = rise
				out.Loss = math.Log(result.ReferencePerplexity.Mean)
			} else {
				layer.Heads[head].Importance, layer.Heads[head].Divergence = rise, result.KL.Mean
			}
		}
	}
	return nil
}

// definition is attention by a rule as package quality defines it, with the static scales of each head.
func definition(attention *calibration.Attention, by selection) *quality.Sparse {
	out := &quality.Sparse{Rule: by.rule, Block: attention.Block, Scales: attention.Scales, Least: by.least,
		Density: func(int, int) float64 { return by.density }}
	if by.rule == calibration.RuleHeads || by.rule == calibration.RuleRest {
		ratios := attention.Ratios(by.density)
		out.Density = func(layer, head int) float64 { return ratios[layer][head] }
	}
	return out
}

// sharing chooses how positions are divided among heads: by mass, or by importances with one of several bounds,
// whichever loses least at the density that is nearest to shadowAttn's.
func (a *attending) sharing(ctx context.Context, out *calibration.Attention) error {
	const usual = 0.2
	density := slices.MinFunc(out.Densities, func(x, y float64) int {
		return cmp.Compare(math.Abs(x-usual), math.Abs(y-usual))
	})
	bounds := clamps(out.Importances())
	least, best, by := math.Inf(1), bounds[0], calibration.ByMass
	try := func(what string) error {
		heads := selection{rule: calibration.RuleHeads, density: density}
		result, err := a.remembered(what, func(tally *quality.Tally) error {
			return a.withRule(ctx, out, heads, func(machine *Machine) error {
				return a.compare(ctx, what, machine, tally)
			})
		})
		if err != nil {
			return err
		}
		if result.KL.Mean < least {
			least, best, by = result.KL.Mean, out.Clamp, out.SharesBy
		}
		return nil
	}
	out.Clamp, out.SharesBy = bounds[0], calibration.ByMass
	if err := try("shares by mass"); err != nil {
		return err
	}
	out.SharesBy = calibration.ByImportance
	for _, out.Clamp = range bounds {
		if err := try(fmt.Sprintf("importances up to %.3g", out.Clamp)); err != nil {
			return err
		}
	}
	out.Clamp, out.SharesBy = best, by
	return nil
}

// selections returns those whose losses are measured: every rule at every density, and of rules that plans may have
// also with numbers of positions that are kept at least, below those of a window.
func selections(densities []float64, window int) (out []selection) {
	for _, rule := range calibration.Rules {
		for _, density := range densities {
			for _, least := range op.SparseLeasts {
				planned := rule == calibration.RuleHeads || rule == calibration.RuleRest
				if least == 0 || planned && least < window {
					out = append(out, selection{rule, density, least})
				}
			}
		}
	}
	return out
}

// losses measures every selection.
func (a *attending) losses(ctx context.Context, out *calibration.Attention) error {
	var losses []calibration.DensityLoss
	for _, by := range selections(out.Densities, len(a.text.Windows[0].Tokens)) {
		result, err := a.measureRule(ctx, out, by)
		if err != nil {
			return err
		}
		losses = append(losses, calibration.DensityLoss{Rule: by.rule, Density: by.density, Least: by.least,
			KL: result.KL.Mean, Low: result.KL.Low, High: result.KL.High, TopAgreement: result.TopAgreement.Mean,
			PerplexityRatio: result.PerplexityRatio.Mean})
	}
	out.Losses = losses
	return nil
}
