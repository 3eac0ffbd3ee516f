package precision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// Windows of attention: long ones, since a short context has nothing to leave out.
const (
	attentionTokens  = 2048
	attentionWindows = 8
)

// runAttention measures attention, and writes it into the file beside what is there.
func (o *CalibrateOptions) runAttention(ctx context.Context, ui *cli.Streams) error {
	if err := wholefile.Writable(o.Out); err != nil {
		return err
	}
	model, text, err := attended(ctx, o.Model, o.Text, cmp.Or(o.Windows, attentionWindows), o.WindowTokens)
	if err != nil {
		return err
	}
	defer model.Close()
	cal, err := o.existing(model)
	if err != nil {
		return err
	}
	journal := o.Out + ".part"
	attention, err := trial.CalibrateAttention(ctx, model, trial.AttentionOptions{
		Text: text, Densities: trial.AttentionDensities, Journal: journal, Progress: cli.Progress(ui, "calibrate"),
	})
	if err != nil {
		if _, missing := os.Stat(journal); missing == nil {
			ui.Notef("%s keeps what was measured: the same command goes on from there", journal)
		}
		return fmt.Errorf("calibrate: %w", err)
	}
	if cal == nil {
		cal = empty(model, attention.Text)
	}
	cal.Attention = attention
	if err := calibration.Write(o.Out, cal); err != nil {
		return err
	}
	// Another process that measured the same may have removed it.
	if err := os.Remove(journal); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diag.New(diag.ClassIO, "remove %q: %w", journal, err)
	}
	digest, err := cal.Digest()
	if err != nil {
		return err
	}
	cli.Wrote(ui, o.Out, "calibration %.12s of %s, attention in %d windows of %d tokens", digest, model.Name,
		attention.Text.Windows, attention.Text.WindowTokens)
	showAttention(ui, attention)
	return ui.Result(map[string]any{"file": o.Out, "digest": digest, "attention": attention})
}

// attended returns a model on all cores, and windows of a text as long as asked for or, if that is shorter, as its
// context.
func attended(
	ctx context.Context, dir, path string, windows, tokens int,
) (_ *trial.Model, text *trial.Text, err error) {
	weights, err := models.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	model, err := trial.Open(ctx, weights)
	if err == nil {
		err = model.AllCores(ctx)
	}
	if err == nil {
		text, err = model.ReadText(path, windows, min(cmp.Or(tokens, attentionTokens), weights.MaxContext))
	}
	if err != nil {
		return nil, nil, errors.Join(err, weights.Close())
	}
	return model, text, nil
}

// existing reads the calibration that is there, nil for none. One of another model is refused.
func (o *CalibrateOptions) existing(model *trial.Model) (*calibration.Calibration, error) {
	cal, err := calibration.Read(o.Out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := cal.CheckModel(model.Name, model.Digest); err != nil {
		return nil, diag.New(diag.ClassInput, "add to %q: %w", o.Out, err).WithHint("give another name with -o")
	}
	return cal, nil
}

// empty returns a calibration that says nothing yet of a model, from a text.
func empty(model *trial.Model, text calibration.Text) *calibration.Calibration {
	return &calibration.Calibration{Schema: calibration.Schema,
		Model: calibration.Model{Name: model.Name, Digest: model.Digest}, Text: text}
}

// usualDensity is the share of positions for which the table of heads has columns.
const usualDensity = 0.2

// showAttention prints heads, and what rules lose.
func showAttention(ui *cli.Streams, attention *calibration.Attention) {
	header := []string{">layer", ">head", ">without it", ">without layer", ">its KL"}
	usual := slices.Index(attention.Densities, usualDensity)
	if usual >= 0 {
		// recall has a column for each of calibration.ScaleKinds
		header = append(header, ">mass of 20 %", ">recall: rows", ">head", ">1", ">3", ">9", ">its density")
	}
	ratios := attention.Ratios(usualDensity)
	var rows [][]string
	for i := range attention.Layers {
		layer := &attention.Layers[i]
		for number, head := range layer.Heads {
			row := []string{fmt.Sprint(i), fmt.Sprint(number), fmt.Sprintf("%+.4f", head.Importance),
				fmt.Sprintf("%+.4f", layer.Importance), fmt.Sprintf("%.4f", head.Divergence)}
			if usual >= 0 {
				row = append(row, fmt.Sprintf("%.4f", head.Mass[usual]))
				for _, recall := range head.Recall {
					row = append(row, fmt.Sprintf("%.4f", recall.At[usual]))
				}
				row = append(row, fmt.Sprintf("%.1f %%", 100*ratios[i][number]))
			}
			rows = append(rows, row)
		}
	}
	ui.Table(header, rows)
	ui.Printf("positions are divided among heads by %s, with which plans lost least\n", attention.SharesBy)
	rows = nil
	for _, loss := range attention.Losses {
		rows = append(rows, []string{loss.Rule, fmt.Sprintf("%.3g %%", 100*loss.Density), fmt.Sprint(loss.Least),
			fmt.Sprintf("%.6f", loss.KL),
			fmt.Sprintf("%.2f %%", 100*loss.TopAgreement), fmt.Sprintf("%.4f", loss.PerplexityRatio)})
	}
	ui.Table([]string{"rule", ">density", ">at least", ">mean KL", ">same top token", ">perplexity ratio"}, rows)
}

// RuleOptions are the flags of hetc quality --attention.
type RuleOptions struct {
	Model, Text, Calibration string
	Windows, WindowTokens    int
	Rules                    []string
	Densities                []float64
	Least                    int
	Journal                  string
}

// Run compares rules of selection with dense attention.
func (o *RuleOptions) Run(ctx context.Context, ui *cli.Streams) error {
	for _, rule := range o.Rules {
		if !slices.Contains(calibration.Rules, rule) {
			return diag.New(diag.ClassUsage, "--rules %q: no rule of selection", rule).
				WithHint("%s", diag.DidYouMean(rule, calibration.Rules))
		}
	}
	if !slices.Contains(op.SparseLeasts, o.Least) {
		return diag.New(diag.ClassUsage, "--least %d: want one of %v positions", o.Least, op.SparseLeasts)
	}
	for _, density := range o.Densities {
		if !(density > 0 && density <= 1) {
			return diag.New(diag.ClassUsage, "--densities %v: want shares above 0, up to 1", density)
		}
	}
	cal, err := bindings.ReadCalibration(o.Calibration)
	if err != nil {
		return err
	}
	if cal.Attention == nil {
		return diag.New(diag.ClassInput, "%q says nothing about attention", o.Calibration).
			WithHint("measure it: hetc calibrate --attention --model DIR --text FILE -o %s", o.Calibration)
	}
	model, text, err := attended(ctx, o.Model, o.Text, o.Windows, o.WindowTokens)
	if err != nil {
		return err
	}
	defer model.Close()
	if err := cal.CheckModel(model.Name, model.Digest); err != nil {
		return err
	}
	size := len(text.Windows[0].Tokens)
	results, err := trial.CompareRules(ctx, model, trial.RuleOptions{Text: text, Attention: cal.Attention,
		Rules: o.Rules, Densities: o.Densities, Least: o.Least, Journal: o.Journal,
		Progress: cli.Progress(ui, "quality")})
	if err != nil {
		return err
	}
	ui.Printf("attention of %s: %d windows of %d tokens, selections of %d queries, at least %d positions\n", model.Name,
		len(text.Windows), size, cal.Attention.Block, o.Least)
	var rows [][]string
	for i := range results {
		result := &results[i]
		rows = append(rows, []string{result.Rule, fmt.Sprintf("%.3g %%", 100*result.Density),
			spread(result.KL, 1, "%.6f"), fmt.Sprintf("%.2f %%", 100*result.TopAgreement.Mean),
			fmt.Sprintf("%.3f", result.Perplexity.Mean), spread(result.PerplexityRatio, 1, "%.4f"),
			fmt.Sprintf("%.1f %%", 100*result.Recalled)})
	}
	ui.Table([]string{"rule", ">density", ">mean KL", ">same top token", ">perplexity", ">ratio", ">recalled"}, rows)
	return ui.Result(map[string]any{"model": model.Digest, "text_sha256": text.SHA256, "window_tokens": size,
		"least": o.Least, "rules": results})
}
