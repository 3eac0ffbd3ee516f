package precision

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// dropWindows is how many windows are read where nothing else is said.
const dropWindows = 60

// DropOptions are the flags of hetc quality --drop.
type DropOptions struct {
	Model, Text           string
	Windows, WindowTokens int
	Shares                []float64
	Rules                 []string
}

// Run measures what dropping shares of the rows of experts costs by each rule.
func (o *DropOptions) Run(ctx context.Context, ui *cli.Streams) error {
	results, model, text, err := o.measure(ctx, ui)
	if err != nil {
		return err
	}
	return ui.Result(map[string]any{"model": model.Digest, "text_sha256": text.SHA256,
		"window_tokens": text.WindowTokens, "drops": results})
}

// measure executes the model with dropped rows and prints what each rule loses. about describes the text.
func (o *DropOptions) measure(
	ctx context.Context, ui *cli.Streams,
) (results []trial.DropResult, model *trial.Model, about *calibration.Text, err error) {
	for _, share := range o.Shares {
		if !(share >= 0 && share < 1) {
			return nil, nil, nil, diag.New(diag.ClassUsage, "--drop %v: want shares of at least 0, below 1", share)
		}
	}
	for _, rule := range o.Rules {
		if !slices.Contains(op.Saliences, rule) {
			return nil, nil, nil, diag.New(diag.ClassUsage, "--salience %q: no rule by which rows are dropped", rule).
				WithHint("%s", diag.DidYouMean(rule, op.Saliences))
		}
	}
	weights, err := models.Open(o.Model)
	if err != nil {
		return nil, nil, nil, err
	}
	defer weights.Close()
	if model, err = trial.Open(ctx, weights); err != nil {
		return nil, nil, nil, err
	}
	size := min(cmp.Or(o.WindowTokens, quality.WindowTokens), weights.MaxContext)
	text, err := model.ReadText(o.Text, o.Windows, size)
	if err != nil {
		return nil, nil, nil, err
	}
	results, err = trial.MeasureDrops(ctx, model, trial.DropOptions{Text: text, Shares: o.Shares, Rules: o.Rules,
		Progress: cli.Progress(ui, "drop")})
	if err != nil {
		return nil, nil, nil, err
	}
	ui.Printf("dropped rows of the experts of %s: %d windows of %d tokens, of which every second one is compared with "+
		"float32\n", weights.Name, len(text.Windows), size)
	var rows [][]string
	for i := range results {
		result := &results[i]
		rows = append(rows, []string{result.Salience, fmt.Sprintf("%.3g %%", 100*result.Share),
			fmt.Sprintf("%.2f %%", 100*result.Dropped), result.Groups, spread(result.KL, 1, "%.6f"),
			spread(result.TopAgreement, 100, "%.2f") + " %", fmt.Sprintf("%.3f", result.Perplexity.Mean),
			spread(result.PerplexityRatio, 1, "%.4f")})
	}
	ui.Table([]string{"dropped by", ">share", ">dropped", "slots x rows", ">mean KL", ">same top token", ">perplexity",
		">ratio"}, rows)
	about = &calibration.Text{SHA256: text.SHA256, Tokens: len(text.Windows) * size, Windows: len(text.Windows),
		WindowTokens: size}
	return results, model, about, nil
}

// runDrop measures the rules that solve may choose, and adds what they cost to the file.
func (o *CalibrateOptions) runDrop(ctx context.Context, ui *cli.Streams) error {
	if err := wholefile.Writable(o.Out); err != nil {
		return err
	}
	options := DropOptions{Model: o.Model, Text: o.Text, Windows: cmp.Or(o.Windows, dropWindows),
		Shares: trial.DropShares, WindowTokens: o.WindowTokens, Rules: []string{op.SalienceNorm, op.SalienceWeight}}
	results, model, text, err := options.measure(ctx, ui)
	if err != nil {
		return err
	}
	cal, err := o.existing(model)
	if err != nil {
		return err
	}
	if cal == nil {
		cal = empty(model, *text)
	}
	cal.Drops = trial.CalibrateDrops(results)
	if err := calibration.Write(o.Out, cal); err != nil {
		return err
	}
	digest, err := cal.Digest()
	if err != nil {
		return err
	}
	cli.Wrote(ui, o.Out, "calibration %.12s of %s, dropped rows in %d windows of %d tokens", digest, model.Name,
		text.Windows, text.WindowTokens)
	return ui.Result(map[string]any{"file": o.Out, "digest": digest, "drops": results})
}
