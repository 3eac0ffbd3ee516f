// Package precision knows how quality, calibrate and loads execute a model on a text, and what they tell of
// it.
package precision

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
)

// QualityOptions are the flags of hetc quality.
type QualityOptions struct {
	Bundle, Plan, Model, Text, SoC, Calibration string

	Terms accept.Terms
	// of WindowTokens from the text's beginning; 0 for all
	Windows int
	// of a window; 0: 256
	WindowTokens int
	// also where its precision is that of prefill
	Decode bool
	// greatest mean divergence of a phase that is no error; 0 for any
	MaxKL      float64
	AnyMachine bool
}

// phase is the quality of one phase.
type phase struct {
	Phase string `json:"phase"`
	quality.Result
	// Prefill computes a window in one call, decode token by token.
	step  int // tokens a call
	tally quality.Tally
}

// candidate is the plan that is measured, from a bundle or from a file with weights packed in memory.
type candidate struct {
	name      string // of the file
	plan      *planir.Plan
	source    runcmd.Source // of its blobs; the caller's to close
	allocated int64         // bytes of weights that executing it allocates
}

// Run compares a bundle or plan with the model in float32. limited says that --max-kl was given: a
// larger divergence is then an error of class ClassRun.
func (o *QualityOptions) Run(ctx context.Context, ui *cli.Streams, limited bool) (err error) {
	model, err := models.Open(o.Model)
	if err != nil {
		return err
	}
	defer model.Close()
	inFloat32, err := trial.Open(ctx, model)
	if err != nil {
		return err
	}
	measured, err := o.open(ctx, ui, model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, measured.source.Close()) }()
	plan := measured.plan
	// both must execute the same weights
	if plan.Model.Digest != inFloat32.Digest {
		return diag.New(diag.ClassInput, "%s was made from model %q with digest %.12s, and %q has %.12s", measured.name,
			plan.Model.Name, plan.Model.Digest, o.Model, inFloat32.Digest).
			WithHint("give the directory of the model it was made from")
	}
	size := min(cmp.Or(o.WindowTokens, quality.WindowTokens), plan.MaxContext)
	text, err := inFloat32.ReadText(o.Text, o.Windows, size)
	if err != nil {
		return err
	}

	phases := []*phase{{Phase: "prefill", step: size}}
	if o.Decode || decodesOtherwise(plan) {
		phases = append(phases, &phase{Phase: "decode", step: 1})
	}
	if err := o.compare(ctx, ui, text, inFloat32, measured, phases); err != nil {
		return err
	}

	ui.Printf("%s against float32: %d windows of %d tokens\n", measured.name, len(text.Windows), size)
	planview.ShowStatic(ui, plan)
	if err := showPhases(ui, phases); err != nil {
		return err
	}
	if err := ui.Result(map[string]any{"of": measured.name, "model": inFloat32.Digest, "text_sha256": text.SHA256,
		"window_tokens": size, "phases": phases}); err != nil {
		return err
	}
	if !limited {
		return nil
	}
	return o.judge(measured.name, phases)
}

// showPhases computes and prints the result of each phase.
func showPhases(ui *cli.Streams, phases []*phase) (err error) {
	var rows [][]string
	for _, ph := range phases {
		if ph.Result, err = ph.tally.Result(); err != nil {
			return err
		}
		result := &ph.Result
		rows = append(rows, []string{ph.Phase,
			spread(result.KL, 1, "%.6f"), spread(result.TopAgreement, 100, "%.2f") + " %",
			spread(result.Perplexity, 1, "%.3f"), fmt.Sprintf("%.3f", result.ReferencePerplexity.Mean),
			spread(result.PerplexityRatio, 1, "%.4f")})
	}
	ui.Table([]string{"phase", ">mean KL", ">same top token", ">perplexity", ">of float32", ">ratio"}, rows)
	return nil
}

// judge returns an error for a phase whose mean divergence exceeds --max-kl or is NaN.
func (o *QualityOptions) judge(what string, phases []*phase) error {
	for _, ph := range phases {
		if !(ph.KL.Mean <= o.MaxKL) {
			return diag.New(diag.ClassRun, "%s: mean KL of %s is %.6f, want at most %v", what, ph.Phase, ph.KL.Mean,
				o.MaxKL).
				WithCode("quality.kl").WithHint("permit only more precise schemes in the workload and solve again")
		}
	}
	return nil
}

// spread formats a mean with its interval.
func spread(e quality.Estimate, scale float64, format string) string {
	return fmt.Sprintf(format+" ("+format+".."+format+")", scale*e.Mean, scale*e.Low, scale*e.High)
}

// open opens what is measured.
func (o *QualityOptions) open(ctx context.Context, ui *cli.Streams, model *models.Model) (*candidate, error) {
	if o.Bundle != "" {
		plan, source, err := runcmd.OpenPlan(ui, o.Bundle, o.Terms, o.AnyMachine)
		if err != nil {
			return nil, err
		}
		return &candidate{name: o.Bundle, plan: plan, source: source}, nil
	}
	plan, err := plantext.Read(o.Plan)
	if err != nil {
		return nil, err
	}
	soc, err := bindings.SoCOf(plan, o.SoC)
	if err != nil {
		return nil, err
	}
	if err := check.Plan(plan, model, soc).Err(); err != nil {
		return nil, err
	}
	cal, err := bindings.ReadCalibration(o.Calibration)
	if err != nil {
		return nil, err
	}
	content, err := emit.NewCalibrated(ctx, plan, model, cal, bindings.Compilers(soc))
	if err != nil {
		return nil, err
	}
	return &candidate{name: o.Plan, plan: plan, source: content, allocated: runcmd.WeightBytes(plan)}, nil
}

// decodesOtherwise reports whether a node's scheme depends on the number of rows, so that decoding
// must be measured apart.
func decodesOtherwise(p *planir.Plan) bool {
	for i := range p.Decisions {
		decision := &p.Decisions[i]
		if one := p.DecisionFor(decision.Node, 1); one != nil && one.Scheme != decision.Scheme &&
			!p.Decodes(decision.Rows) {
			return true
		}
	}
	return false
}

// compare executes the model in float32 and what is measured side by side, window by window, so that only one window's
// logits are held at a time.
func (o *QualityOptions) compare(
	ctx context.Context, ui *cli.Streams, text *trial.Text, inFloat32 *trial.Model, measured *candidate,
	phases []*phase,
) (err error) {
	plan, err := inFloat32.Plan(len(text.Windows[0].Tokens), trial.Float32, nil)
	if err != nil {
		return err
	}
	soc, err := bindings.SoCOf(measured.plan, o.SoC)
	if err != nil {
		return err
	}
	exact, err := inFloat32.Open(ctx, plan, nil, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, exact.Close()) }()
	machine, err := runcmd.Execute(ctx, measured.plan, measured.source, measured.allocated,
		executor.Options{Drivers: bindings.Drivers(soc)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()

	reference, err := quality.NewReference()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, reference.Close()) }()
	step := cli.Progress(ui, "quality")
	for i := range text.Windows {
		reference.Clear()
		if err := reference.Add(ctx, exact.Machine, text.Windows[i]); err != nil {
			return fmt.Errorf("window %d: %w", i, err)
		}
		for _, ph := range phases {
			if err := reference.Compare(ctx, machine, 0, ph.step, &ph.tally); err != nil {
				return fmt.Errorf("window %d: %s: %w", i, ph.Phase, err)
			}
		}
		step(i+1, len(text.Windows), "")
	}
	return nil
}
