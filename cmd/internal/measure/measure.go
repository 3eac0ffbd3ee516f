// Package measure knows how probe, profile, fit and import turn a machine, a model's operators or another
// program's table into files, and what they tell of it.
package measure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// ProfileOptions are the flags of hetc profile.
type ProfileOptions struct {
	SoC, Target, Model, Workload, Out string
	Plan                              string // file: what its decisions lack is measured as well; "" for none
	// a duration; "" for as long as it takes
	Budget string
	// nothing is executed: only what compilers say of graphs is recorded
	CompilerOnly bool
	// go on with a record, measure anew what is flagged in it, or only list what would be measured
	Resume, Flagged, DryRun bool
	// operators that are kept out of the fit, and visits to every operator
	HeldOut, Rounds int
	Seed            uint64
}

// ReadWorkload reads a workload file, or returns the default for "".
func ReadWorkload(path string) (*workload.Workload, error) {
	if path == "" {
		return workload.Default(), nil
	}
	return workload.Read(path)
}

// openPlanned opens a model and computes what a plan for a workload needs. Without a file it is the default workload.
func openPlanned(model, workloadFile string) (*models.Model, workload.Needs, error) {
	opened, err := models.Open(model)
	if err != nil {
		return nil, workload.Needs{}, err
	}
	permits, err := ReadWorkload(workloadFile)
	if err != nil {
		return nil, workload.Needs{}, errors.Join(err, opened.Close())
	}
	needs, err := permits.Needs(opened.MaxContext)
	if err != nil {
		return nil, workload.Needs{}, errors.Join(err, opened.Close())
	}
	return opened, needs, nil
}

// Profile measures the model's operators on the processors of a SoC and records them.
func Profile(ctx context.Context, ui *cli.Streams, options *ProfileOptions) error {
	budget, err := options.check()
	if err != nil {
		return err
	}
	soc, err := socs.Open(options.SoC)
	if err != nil {
		return err
	}
	// What cannot be measured is refused before a model is opened and a record begun.
	if soc.Imported() {
		return diag.New(diag.ClassInput,
			"profile SoC %q: its times were measured elsewhere (imported), and no driver executes on its processors",
			soc.Name).
			WithHint("add rows to the table and import it again")
	}
	requests, err := options.requests(soc)
	if err != nil {
		return err
	}
	if options.DryRun {
		return options.listRequests(ui, requests)
	}
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, options.Seed)
	if err != nil {
		return err
	}
	if err := bindings.LibraryVersions(ctx, soc, &header); err != nil {
		return err
	}
	rec, err := options.openRecord(header)
	if err != nil {
		return err
	}
	defer rec.Close()
	// nothing pending and nothing flagged: keep the record as it is
	nothing := !options.Flagged || len(profiler.Flagged(requests, rec.Set(), options.Seed)) == 0
	if nothing && len(profiler.Pending(requests, rec.Set(), options.Rounds, options.Seed)) == 0 {
		return cli.Kept(ui, options.Out, fmt.Sprintf("all %d measurements are there", len(requests)))
	}
	measuring := bindings.ProfilerOptions(soc, options.Seed)
	measuring.Budget, measuring.Rounds, measuring.Flagged = budget, options.Rounds, options.Flagged
	line := ui.Line(false)
	if line != nil {
		measuring.Progress = func(p profiler.Progress) {
			line.BarLeft("profile", p.Done, p.Total, p.Left, p.Key)
		}
	}
	// What is in the record stays there, whatever breaks the run off.
	report, err := profiler.Run(ctx, soc, requests, rec, measuring)
	line.End()
	if err != nil {
		return options.stopped(ui, rec, report, err)
	}
	return options.tell(ui, soc, report)
}

// check refuses flags that are out of range or contradict each other. It returns the budget, 0 for
// none.
func (o *ProfileOptions) check() (budget time.Duration, err error) {
	if budget, err = cli.ParseTime("budget", o.Budget); err != nil {
		return 0, err
	}
	if o.Flagged && !o.Resume {
		return 0, diag.New(diag.ClassUsage, "--flagged needs --resume").
			WithHint("a new record has nothing that is flagged")
	}
	const mostHeldOut, mostRounds = 1000, 100
	if o.HeldOut < 0 || o.HeldOut > mostHeldOut {
		return 0, diag.New(diag.ClassUsage, "--held-out %d: want 0 to %d", o.HeldOut, mostHeldOut)
	}
	if o.Rounds < 1 || o.Rounds > mostRounds {
		return 0, diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", o.Rounds, mostRounds)
	}
	return budget, nil
}

// requests lists the operators to measure: those that a plan may need, and held-out ones to judge
// predictions by.
func (o *ProfileOptions) requests(soc *socs.SoC) ([]profiler.Request, error) {
	model, needs, err := openPlanned(o.Model, o.Workload)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	// Of a target only what its device executes is measured.
	part := soc
	if o.Target != "" {
		if part, err = soc.Restricted(); err != nil {
			return nil, err
		}
	}
	want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.On(part),
		MaxContext: needs.Context, Caches: needs.Caches, Densities: needs.Densities}
	if o.Plan != "" {
		if want.Besides, want.Together, err = lackedBy(o.Plan, o.Workload, model, part); err != nil {
			return nil, err
		}
	}
	requests, err := profiler.Requests(part, model, want)
	if err != nil || o.HeldOut == 0 {
		return requests, err
	}
	// Held-out operators are never fitted; predictions for them are judged by hetc fit.
	held, err := profiler.HeldOut(part, model, want, requests, o.HeldOut, o.Seed)
	return append(requests, held...), err
}

// lackedBy returns what to measure for the decisions of a plan that rest on extrapolation.
func lackedBy(file, workloadFile string, model *models.Model, soc *socs.SoC) (besides []profiler.Placed,
	together [][]string, err error) {
	plan, err := plantext.Read(file)
	if err != nil {
		return nil, nil, err
	}
	want, err := ReadWorkload(workloadFile)
	if err != nil {
		return nil, nil, err
	}
	tasks, together, err := solver.Unmeasured(plan, model, soc, want)
	for _, task := range tasks {
		besides = append(besides, profiler.Placed{Proc: task.Proc, Op: task.Op})
	}
	return besides, together, err
}

// openRecord creates the record, or resumes it.
func (o *ProfileOptions) openRecord(header record.Header) (*record.Writer, error) {
	if o.Resume {
		return record.Resume(o.Out, header)
	}
	return record.Create(o.Out, header)
}

// removeEmpty removes a record that holds nothing that a run could resume. It reports whether there was nothing.
func (o *ProfileOptions) removeEmpty(rec *record.Writer) (empty bool, err error) {
	if set := rec.Set(); set.Len() > 0 || len(set.Facts()) > 0 {
		return false, nil
	}
	return true, errors.Join(rec.Close(), os.Remove(o.Out))
}

// stopped returns the error of a run that broke off, and says how to go on.
func (o *ProfileOptions) stopped(ui *cli.Streams, rec *record.Writer, report profiler.Report, err error) error {
	if empty, failed := o.removeEmpty(rec); empty {
		return errors.Join(err, failed)
	}
	if errors.Is(err, context.Canceled) {
		return diag.New(diag.ClassInterrupted, "profile: %d measurements of this run are in %q: %w", report.Measured,
			o.Out, err).
			WithHint("the same command with --resume goes on where it stopped")
	}
	ui.Notef("%d measurements are in %q: the same command with --resume goes on", rec.Set().Len(), o.Out)
	return err
}

// tell prints what was measured, left out, and flagged as unreliable.
func (o *ProfileOptions) tell(ui *cli.Streams, soc *socs.SoC, report profiler.Report) error {
	note := ""
	if soc.Simulated() {
		note = ", simulated"
	}
	ui.Printf("%s: %d measured, %d reused, %d unsupported, %d skipped (out of time)%s\n",
		o.Out, report.Measured, report.Present, len(report.Refused), len(report.Left), note)
	for _, warning := range []struct{ flag, one, many string }{
		{record.Noisy, "measurement is noisy", "measurements are noisy"},
		{record.FewSamples, "measurement has few samples", "measurements have few samples"},
		{record.Drifted, "measurement drifted during the run", "measurements drifted during the run"},
	} {
		switch count := report.Warnings[warning.flag]; count {
		case 0:
		case 1:
			ui.Warnf("1 %s (flag: %s)", warning.one, warning.flag)
		default:
			ui.Warnf("%d %s (flag: %s)", count, warning.many, warning.flag)
		}
	}
	if len(report.Left) > 0 {
		ui.Notef("a larger --budget with --resume measures the rest")
	}
	refused := make([]map[string]string, len(report.Refused))
	for i, refusal := range report.Refused {
		refused[i] = map[string]string{"key": refusal.Key, "reason": refusal.Err.Error()}
	}
	return ui.Result(map[string]any{
		"file": o.Out, "measured": report.Measured, "present": report.Present, "refused": refused,
		"left": len(report.Left), "warnings": report.Warnings, "simulated": soc.Simulated(),
	})
}

// listRequests prints what would be measured with its priority, in that order. With Resume that is what the record
// lacks, and with Flagged also what is flagged in it.
func (o *ProfileOptions) listRequests(ui *cli.Streams, requests []profiler.Request) error {
	known := record.NewSet(record.Header{})
	if o.Resume && o.Out != "" {
		set, err := record.Open(o.Out)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil {
			known = set
		}
	}
	pending := profiler.Pending(requests, known, o.Rounds, o.Seed)
	if o.Flagged {
		pending = append(pending, profiler.Flagged(requests, known, o.Seed)...)
		// An operator that lacks rounds may be flagged, too.
		seen := map[string]bool{}
		pending = slices.DeleteFunc(pending, func(request profiler.Request) bool {
			again := seen[request.Key()]
			seen[request.Key()] = true
			return again
		})
		slices.SortStableFunc(pending, func(a, b profiler.Request) int { return a.Priority - b.Priority })
	}
	keys := make([]string, len(pending))
	for i := range pending {
		keys[i] = pending[i].Key()
		ui.Printf("%d %s\n", pending[i].Priority, keys[i])
	}
	return ui.Result(map[string]any{"measurements": keys})
}
