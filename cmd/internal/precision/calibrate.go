package precision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// CalibrateOptions are the flags of hetc calibrate.
type CalibrateOptions struct {
	Model, Text, Out string
	Windows          int
	Schemes          []string
	NoFolds          bool
	// Drop measures what dropped rows of experts cost instead of schemes.
	Drop bool
	// Attention measures attention instead of schemes, in windows of WindowTokens (0: 2048, or what the model can
	// take).
	Attention    bool
	WindowTokens int
}

// defaultWindows returns the number of windows for a model of that many parameters: fewer for larger
// models, so that the time stays about the same.
func defaultWindows(parameters int64) int {
	const most, least, usual = 32, 8, 100e6
	return int(min(most, max(least, most*usual/float64(max(1, parameters)))))
}

// Run measures the loss of each scheme in each class of weights, and writes it unless the file
// holds the same.
func (o *CalibrateOptions) Run(ctx context.Context, ui *cli.Streams) error {
	if o.Attention {
		return o.runAttention(ctx, ui)
	}
	if o.Drop {
		return o.runDrop(ctx, ui)
	}
	if err := wholefile.Writable(o.Out); err != nil {
		return err
	}
	schemes, err := quantised(o.Schemes)
	if err != nil {
		return err
	}
	weights, err := models.Open(o.Model)
	if err != nil {
		return err
	}
	defer weights.Close()
	if o.Windows == 0 {
		o.Windows = defaultWindows(weights.Parameters())
	}
	model, err := trial.Open(ctx, weights)
	if err != nil {
		return err
	}
	text, err := model.ReadText(o.Text, o.Windows, min(quality.WindowTokens, weights.MaxContext))
	if err != nil {
		return err
	}
	// Refused before the model is executed, which takes minutes.
	if n := model.CalibrationBytes(); n > calibration.MaxBytes {
		return diag.New(diag.ClassInput,
			"calibrate model %q: its activations fill a file of about %d bytes, and readers accept %d", o.Model, n,
			calibration.MaxBytes).
			WithHint("models of this size cannot be calibrated yet")
	}
	if len(o.Schemes) == 0 {
		ui.Notef("every class of weights is executed in %d schemes, on %d windows: --schemes with those that plans "+
			"will use takes less time", len(schemes), o.Windows/2)
	}
	cal, err := trial.Calibrate(ctx, model, trial.CalibrateOptions{Text: text, Schemes: schemes,
		NoFolds: o.NoFolds, Progress: cli.Progress(ui, "calibrate")})
	if err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	return o.write(ui, weights.Name, cal)
}

// write writes a calibration, with what runs of their own have added to the file before, unless the file holds the
// same.
func (o *CalibrateOptions) write(ui *cli.Streams, model string, cal *calibration.Calibration) error {
	old, readErr := calibration.Read(o.Out)
	if readErr == nil && old.Model.Digest == cal.Model.Digest {
		cal.Attention, cal.Drops = old.Attention, old.Drops
	}
	digest, err := cal.Digest()
	if err != nil {
		return err
	}
	if readErr == nil {
		if d, err := old.Digest(); err == nil && d == digest {
			return cli.Kept(ui, o.Out, "same model and text")
		}
	}
	if err := calibration.Write(o.Out, cal); err != nil {
		return err
	}
	cli.Wrote(ui, o.Out, "calibration %.12s of %s, %d windows of %d tokens", digest, model, cal.Text.Windows,
		cal.Text.WindowTokens)
	showCalibration(ui, cal)
	return ui.Result(map[string]any{"file": o.Out, "digest": digest, "windows": cal.Text.Windows, "losses": cal.Losses,
		"caches": cal.Caches, "folds": len(cal.Folds), "shadows": cal.Shadows})
}

// quantised parses the named schemes, or returns all that lose precision.
func quantised(names []string) ([]op.Scheme, error) {
	all := slices.DeleteFunc(slices.Clone(op.Schemes), func(x op.Scheme) bool { return x == op.A32W32 })
	if len(names) == 0 {
		return all, nil
	}
	var out []op.Scheme
	for _, text := range names {
		if !slices.Contains(all, op.Scheme(text)) {
			var known []string
			for _, scheme := range all {
				known = append(known, string(scheme))
			}
			return nil, diag.New(diag.ClassUsage, "--schemes %q: no scheme whose loss can be measured", text).
				WithHint("%s", diag.DidYouMean(text, known))
		}
		if !slices.Contains(out, op.Scheme(text)) {
			out = append(out, op.Scheme(text))
		}
	}
	return out, nil
}

// showCalibration prints the loss of each class, and statistics of its activations.
func showCalibration(ui *cli.Streams, cal *calibration.Calibration) {
	ui.Table(lossTable(cal))
	for _, loss := range cal.Caches {
		ui.Printf("cache in %s: KL %.6f\n", loss.Type, loss.KL)
	}
	if groups := cal.Groups(); len(groups) > 0 {
		ui.Printf("folded: %s\n", strings.Join(groups, ", "))
	}
	var clips []string
	for _, clip := range cal.Clips {
		clips = append(clips, fmt.Sprintf("%s at %.0f %%", clip.Class, 100*clip.Share))
	}
	if clips != nil {
		ui.Printf("static scales clip: %s of the range\n", strings.Join(clips, ", "))
	}
	showShadows(ui, cal)
}

// lossTable has a row for each class, and a column for each scheme; with folds a second one for the folded weights.
func lossTable(cal *calibration.Calibration) (header []string, rows [][]string) {
	header = []string{"class", ">largest", ">/ typical", ">outliers"}
	var schemes []op.Scheme
	var classes []string
	for _, loss := range cal.Losses {
		if !slices.Contains(schemes, loss.Scheme) {
			schemes = append(schemes, loss.Scheme)
			name := string(loss.Scheme)
			if loss.Scheme.Static() {
				name += " (static)"
			}
			header = append(header, ">KL of "+name)
			if len(cal.Folds) > 0 {
				header = append(header, ">folded")
			}
		}
		if !slices.Contains(classes, loss.Class) {
			classes = append(classes, loss.Class)
		}
	}
	for _, class := range classes {
		row := activationColumns(cal, class)
		for _, scheme := range schemes {
			for _, folded := range []bool{false, true} {
				if loss := cal.Loss(class, scheme, folded); loss != nil {
					row = append(row, fmt.Sprintf("%.6f", loss.KL))
				} else if !folded || len(cal.Folds) > 0 { // an embedding has a scheme of its own
					row = append(row, "")
				}
			}
		}
		rows = append(rows, row)
	}
	return header, rows
}

// activationColumns returns the name of a class, its largest activation, the ratio of that to a typical one in the
// worst matrix, and the number of outlier channels. All classes together have no activations of their own.
func activationColumns(cal *calibration.Calibration, class string) []string {
	if class == calibration.All {
		return []string{class, "", "", ""}
	}
	var largest, ratio float32
	outliers := 0
	for _, activation := range cal.Activations {
		if activation.Class != class {
			continue
		}
		outliers += len(activation.Outliers)
		largest = max(largest, activation.Max)
		if activation.Median > 0 {
			ratio = max(ratio, activation.Max/activation.Median)
		}
	}
	return []string{class, fmt.Sprintf("%.1f", largest), fmt.Sprintf("%.1f", ratio), fmt.Sprint(outliers)}
}

// showShadows prints what the shadow outliers of each class are worth in each layer.
func showShadows(ui *cli.Streams, cal *calibration.Calibration) {
	if len(cal.Shadows) == 0 {
		return
	}
	var rows [][]string
	for _, shadow := range cal.Shadows {
		rows = append(rows, []string{shadow.Class, fmt.Sprint(shadow.Layer), fmt.Sprintf("%.6f", shadow.KL),
			fmt.Sprintf("%.6f..%.6f", shadow.Low, shadow.High), fmt.Sprintf("%.1f", shadow.Ratio)})
	}
	ui.Printf("shadow outliers (%s): what clipping them in a layer loses\n", op.A8OQ8C)
	ui.Table([]string{"class", ">layer", ">KL", ">interval", ">largest / scale"}, rows)
}
