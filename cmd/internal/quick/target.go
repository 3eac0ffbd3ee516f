package quick

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
)

// schemes returns the schemes that the workload permits; nil for the stored precision alone. For a target it refuses
// schemes without a possible plan.
func (q *quick) schemes(model *models.Model) ([]op.Scheme, error) {
	if q.options.Target == "" {
		return permitted(q.options.Schemes)
	}
	if _, err := socs.OpenTarget(q.options.Target); err != nil {
		return nil, err
	}

	if len(q.options.Schemes) == 0 {
		q.options.Schemes = []string{string(op.A16SQ8C)}
	}
	schemes, err := permitted(q.options.Schemes)
	if err != nil {
		return nil, err
	}
	schemes = schemes[1:] // no NPU computes the stored precision
	return schemes, q.plannable(model, schemes)
}

// plannable refuses schemes with which no plan for the target is possible, before minutes are spent
// on the steps before solving.
func (q *quick) plannable(m *models.Model, schemes []op.Scheme) error {
	soc, err := socs.OpenTarget(q.options.Target)
	if err != nil {
		return err
	}

	workload := quickWorkload(schemes)
	in := solver.Input{Model: m, SoC: soc, Workload: &workload}
	if q.options.Only != "" {
		in.Only = []string{q.options.Only}
	}
	if err := in.ForTarget(); err != nil {
		return err
	}
	err = in.CheckSchemes()
	if err == nil {
		return nil
	}

	var names []string
	for _, scheme := range schemes {
		names = append(names, string(scheme))
	}
	names = append(names, string(missingScheme(soc, schemes)))
	return diag.New(diag.ClassOf(err), "quick: %w", err).
		WithHint("hetc quick permits it besides with --schemes %s", strings.Join(names, ","))
}

// missingScheme returns the scheme to add for a target: one of its NPU if the NPU executes none of the schemes, else
// that of products by experts, which the control processor executes.
func missingScheme(soc *socs.SoC, schemes []op.Scheme) op.Scheme {
	executed := soc.TargetNPU().Target.Schemes
	for _, scheme := range schemes {
		if slices.Contains(executed, scheme) {
			return op.A8TQ8C
		}
	}
	if len(executed) == 0 {
		return op.A8TQ8C
	}
	return executed[0]
}

// forTarget makes the bundle for a device that is not here, and its twin for the emulator. It keeps calibration, record
// and compiled graphs of an earlier run.
func (q *quick) forTarget(ctx context.Context, schemes []op.Scheme, file func(string) string) error {
	key, app, twin := file("local"), file("app.hetb"), file("twin.hetb")
	cal, steps, err := q.targetCalibration(schemes, file)
	if err != nil {
		return err
	}

	with := []string{"--target", q.options.Target, "--model", q.options.Model, "--workload", file("workload.yaml")}
	var ranges []string
	if cal != "" {
		ranges = []string{"--calibration", cal}
	}
	emit := slices.Concat([]string{"emit", "--plan", file("plan.yaml"), "--model", q.options.Model,
		"--key", key + ".key"}, ranges)
	solve := slices.Concat([]string{"solve", "--record", file("rec.jsonl"), "--facts", file("facts.jsonl"), "-o",
		file("plan.yaml")}, with, ranges)
	if q.options.Only != "" {
		solve = append(solve, "--only", q.options.Only)
	}
	steps = append(steps,
		append([]string{"profile", "-o", file("rec.jsonl"), "--resume"}, with...),
		append([]string{"profile", "--compiler-only", "-o", file("facts.jsonl"), "--resume"}, with...),
		solve)
	makeKey, err := keygen(key)
	if err != nil {
		return err
	}

	steps = append(steps, makeKey...)

	// The twin comes first, because the device's bundle repeats its report.
	steps = append(steps,
		slices.Concat(emit, []string{"--for-emulator", "-o", twin}),
		slices.Concat(emit, []string{"--target", q.options.Target, "--twin", twin, "-o", app}))
	if q.options.Prompt != "" {
		steps = append(steps, q.execute(twin, key))
	}
	if err := q.take(ctx, steps); err != nil {
		return err
	}
	q.ui.Printf("\n%s is for %s and was never loaded there; its twin runs here, emulated:\n  %s %s --trust %s %s\n",
		app, q.options.Target, cli.Program("hetrun"), cli.Quote(twin), cli.Quote(key+".pub"), q.input)
	return q.ui.Result(map[string]any{"bundle": app, "twin": twin, "trust": key + ".pub", "steps": q.steps})
}

// targetCalibration returns the calibration file for a target, "" for none, and the step that makes it where there is
// no file yet. Static scales need the ranges of activations.
func (q *quick) targetCalibration(
	schemes []op.Scheme, file func(string) string,
) (cal string, steps [][]string, err error) {
	if q.options.Calibration != "" || !slices.ContainsFunc(schemes, op.Scheme.Static) {
		return q.options.Calibration, nil, nil
	}
	cal = file("calibration.yaml")
	if _, err := os.Stat(cal); err == nil && !q.options.Again {
		return cal, nil, nil
	}
	if q.options.Text == "" {
		return "", nil, diag.New(diag.ClassUsage,
			"quick: schemes with static scales need ranges of activations, and no text is given").
			WithHint("add --text FILE with text of the kind the model will see, or --calibration FILE")
	}

	step := []string{"calibrate", "--model", q.options.Model, "--text", q.options.Text, "-o", cal}
	for _, scheme := range schemes {
		step = append(step, "--schemes", string(scheme))
	}
	return cal, [][]string{step}, nil
}

// permitted returns the stored precision and the offered schemes; nil if none is offered.
func permitted(offered []string) ([]op.Scheme, error) {
	if len(offered) == 0 {
		return nil, nil
	}
	out := []op.Scheme{op.A32W32}
	for _, text := range offered {
		scheme, err := op.ParseScheme(text)
		if err != nil {
			var names []string
			for _, scheme := range op.Schemes {
				names = append(names, string(scheme))
			}
			return nil, diag.New(diag.ClassUsage, "--schemes %q: no such scheme", text).
				WithHint("%s", diag.DidYouMean(text, names))
		}

		if !slices.Contains(out, scheme) {
			out = append(out, scheme)
		}
	}
	return out, nil
}
