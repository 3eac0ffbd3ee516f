package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

type calibrateOptions struct {
	model, text, out string
	windows          int
	schemes          []string
}

func newCalibrate(s *cli.Streams) *cobra.Command {
	var o calibrateOptions
	c := &cobra.Command{
		Use:   "calibrate --model DIR --text FILE -o cal.yaml",
		Short: "measure a model's activations, and what each precision costs in each class of weights",
		Long: `Executes the model in float32 on windows of a text and notes what enters every matrix product, and what it computes: the range
and the mean square of every channel, the range of every result, outlier channels and how often they exceed, and which channels move together.
Every other window is observed. On the remaining ones it executes the model with every class of weights in every scheme, everything else in float32, and notes what that costs: the mean
Kullback-Leibler divergence with its 95 % interval. Where channels stick out it tries to fold them: to divide them
in front, in the gain of a norm or in the columns of a weight, and to multiply the rows that read them. Folds are
kept where they save a twentieth of the first scheme's loss at least and make no other lose more, beyond noise:
name the --schemes that plans will use. For static scales (a8s/q8c) it finds for every class what share of the range
to cover: what is beyond it is clipped. For several of them (a8s2/q8c, a8s4/q8c) it observes the rows once more, as they are folded, and chooses
those that rows lose least by; a8s/q8c is measured with them. docs/calibration.md describes the file. The same inputs on the same kind of
machine give the same bytes.

Half of the windows of 256 tokens are executed for each class and scheme. Without --windows there are 32 of them
for models up to 100 million parameters, and fewer for larger ones, 8 at least: a model of 5 million parameters
takes a few minutes, one of a billion an hour; with --schemes less. The time left is shown on a terminal.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "model", "text", "output"); err != nil {
				return err
			}
			if c.Flags().Changed("windows") && o.windows < trial.LeastWindows {
				return diag.New(diag.ClassUsage, "--windows %d: want at least %d", o.windows, trial.LeastWindows).WithHint("losses are measured on half of them, and an interval needs two")
			}
			if c.Flags().Changed("schemes") && len(o.schemes) == 0 {
				return diag.New(diag.ClassUsage, "--schemes is empty").WithHint("leave it out to measure all, or name some: --schemes a8t/q8c")
			}
			return o.run(c.Context(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&o.model, "model", "", "model directory with weights and tokenizer")
	f.StringVar(&o.text, "text", "", "text to read, of the kind the model will see")
	f.StringVarP(&o.out, "output", "o", "", "calibration to write")
	f.IntVar(&o.windows, "windows", 0, "windows of 256 tokens to read from the text's beginning (default by the model's size)")
	f.StringSliceVar(&o.schemes, "schemes", nil, "precisions to measure, the one that folds are for first (default all)")
	return c
}

// defaultWindows is how many windows a model of that many parameters reads: as many as take about as long.
func defaultWindows(parameters int64) int {
	const most, least, usual = 32, 8, 100e6
	return int(min(most, max(least, most*usual/float64(max(1, parameters)))))
}

func (o *calibrateOptions) run(ctx context.Context, s *cli.Streams) error {
	if err := wholefile.Writable(o.out); err != nil {
		return err
	}
	schemes, err := quantised(o.schemes)
	if err != nil {
		return err
	}
	m, err := models.Open(o.model)
	if err != nil {
		return err
	}
	defer m.Close()
	if o.windows == 0 {
		o.windows = defaultWindows(m.Parameters())
	}
	x, err := trial.Open(ctx, m)
	if err != nil {
		return err
	}
	text, err := x.ReadText(o.text, o.windows, min(quality.WindowTokens, m.MaxContext))
	if err != nil {
		return err
	}
	if n := x.CalibrationBytes(); n > calibration.MaxBytes {
		return diag.New(diag.ClassInput, "calibrate model %q: its activations fill a file of about %d bytes, and readers accept %d", o.model, n, calibration.MaxBytes).
			WithHint("models of this size cannot be calibrated yet")
	}
	if len(o.schemes) == 0 {
		s.Notef("every class of weights is executed in %d schemes, on %d windows: --schemes with those that plans will use takes less time", len(schemes), o.windows/2)
	}
	step := progress(s, "calibrate")
	cal, err := trial.Calibrate(ctx, x, trial.CalibrateOptions{Text: text, Schemes: schemes, Progress: step})
	if err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	digest, err := cal.Digest()
	if err != nil {
		return err
	}
	if old, err := calibration.Read(o.out); err == nil {
		if d, err := old.Digest(); err == nil && d == digest {
			return kept(s, o.out, "same model and text")
		}
	}
	if err := calibration.Write(o.out, cal); err != nil {
		return err
	}
	wrote(s, o.out, "calibration %.12s of %s, %d windows of %d tokens", digest, m.Name, cal.Text.Windows, cal.Text.WindowTokens)
	showCalibration(s, cal)
	return s.Result(map[string]any{"file": o.out, "digest": digest, "windows": cal.Text.Windows, "losses": cal.Losses, "folds": len(cal.Folds)})
}

// quantised are the schemes named, or all that lose anything.
func quantised(names []string) ([]op.Scheme, error) {
	all := slices.DeleteFunc(slices.Clone(op.Schemes), func(x op.Scheme) bool { return x == op.A32W32 })
	if len(names) == 0 {
		return all, nil
	}
	var out []op.Scheme
	for _, text := range names {
		if !slices.Contains(all, op.Scheme(text)) {
			var known []string
			for _, x := range all {
				known = append(known, string(x))
			}
			return nil, diag.New(diag.ClassUsage, "--schemes %q: no scheme whose loss can be measured", text).WithHint("%s", diag.DidYouMean(text, known))
		}
		if !slices.Contains(out, op.Scheme(text)) {
			out = append(out, op.Scheme(text))
		}
	}
	return out, nil
}

// showCalibration prints what each class costs, and what is unusual about what enters it.
func showCalibration(s *cli.Streams, c *calibration.Calibration) {
	header := []string{"class", ">largest", ">/ typical", ">outliers"}
	var schemes []op.Scheme
	var classes []string
	for _, l := range c.Losses {
		if !slices.Contains(schemes, l.Scheme) {
			schemes = append(schemes, l.Scheme)
			name := string(l.Scheme)
			if l.Scheme.Static() {
				name += " (static)"
			}
			header = append(header, ">KL of "+name)
			if len(c.Folds) > 0 {
				header = append(header, ">folded")
			}
		}
		if !slices.Contains(classes, l.Class) {
			classes = append(classes, l.Class)
		}
	}
	var rows [][]string
	for _, class := range classes {
		row := []string{class, "", "", ""}
		if class != calibration.All {
			var largest, ratio float32
			outliers := 0
			for _, a := range c.Activations {
				if a.Class != class {
					continue
				}
				outliers += len(a.Outliers)
				largest = max(largest, a.Max)
				if a.Median > 0 {
					ratio = max(ratio, a.Max/a.Median)
				}
			}
			row = []string{class, fmt.Sprintf("%.1f", largest), fmt.Sprintf("%.1f", ratio), fmt.Sprint(outliers)}
		}
		for _, x := range schemes {
			for _, folded := range []bool{false, true} {
				if l := c.Loss(class, x, folded); l != nil {
					row = append(row, fmt.Sprintf("%.6f", l.KL))
				} else if !folded || len(c.Folds) > 0 { // an embedding has a scheme of its own
					row = append(row, "")
				}
			}
		}
		rows = append(rows, row)
	}
	s.Table(header, rows)
	if groups := c.Groups(); len(groups) > 0 {
		s.Printf("folded: %s\n", strings.Join(groups, ", "))
	}
	var clips []string
	for _, x := range c.Clips {
		clips = append(clips, fmt.Sprintf("%s at %.0f %%", x.Class, 100*x.Share))
	}
	if clips != nil {
		s.Printf("static scales clip: %s of the range\n", strings.Join(clips, ", "))
	}
}
