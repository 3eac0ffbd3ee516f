// Package measure knows how probe, profile, fit and import turn a machine, a model's operators or another
// program's table into files, and what they tell of it.
package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/hetc/hetc/solver/workload"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

type ProfileOptions struct {
	SoC, Target, Model, Workload, Out string
	Budget                            string
	CompilerOnly                      bool
	Resume, Flagged, DryRun           bool
	HeldOut, Rounds                   int
	Seed                              uint64
}

func ReadWorkload(path string) (*workload.Workload, error) {
	if path == "" {
		return workload.Default(), nil
	}
	return workload.Read(path)
}

// openPlanned opens a model, and tells what a plan of it for that workload needs to know; "" is the default workload.
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

func Profile(ctx context.Context, ui *cli.Streams, options *ProfileOptions) error {
	budget, err := cli.ParseTime("budget", options.Budget)
	if err != nil {
		return err
	}
	if options.Flagged && !options.Resume {
		return diag.New(diag.ClassUsage, "--flagged needs --resume").WithHint("a new record has nothing that is flagged")
	}
	const mostHeldOut = 1000
	if options.HeldOut < 0 || options.HeldOut > mostHeldOut {
		return diag.New(diag.ClassUsage, "--held-out %d: want 0 to %d", options.HeldOut, mostHeldOut)
	}
	const mostRounds = 100
	if options.Rounds < 1 || options.Rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", options.Rounds, mostRounds)
	}
	soc, err := socs.Open(options.SoC)
	if err != nil {
		return err
	}
	if soc.Imported() {
		return diag.New(diag.ClassInput, "profile SoC %q: its times were measured elsewhere (imported), and no driver executes on its processors", soc.Name).
			WithHint("add rows to the table and import it again")
	}
	model, needs, err := openPlanned(options.Model, options.Workload)
	if err != nil {
		return err
	}
	defer model.Close()
	part := soc // what is measured of it
	if options.Target != "" {
		if part, err = soc.Restricted(); err != nil {
			return err
		}
	}
	want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.On(part), MaxContext: needs.Context}
	requests, err := profiler.Requests(part, model, want)
	if err != nil {
		return err
	}
	if options.HeldOut > 0 {
		held, err := profiler.HeldOut(part, model, want, requests, options.HeldOut, options.Seed)
		if err != nil {
			return err
		}
		requests = append(requests, held...)
	}
	if options.DryRun {
		return listRequests(ui, requests, options.Seed)
	}
	open := record.Create
	if options.Resume {
		open = record.Resume
	}
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, options.Seed)
	if err != nil {
		return err
	}
	if err := bindings.LibraryVersions(ctx, soc, &header); err != nil {
		return err
	}
	rec, err := open(options.Out, header)
	if err != nil {
		return err
	}
	defer rec.Close()
	nothing := !options.Flagged || len(profiler.Flagged(requests, rec.Set(), options.Seed)) == 0
	if nothing && len(profiler.Pending(requests, rec.Set(), options.Rounds, options.Seed)) == 0 {
		return cli.Kept(ui, options.Out, fmt.Sprintf("all %d measurements are there", len(requests)))
	}
	po := bindings.ProfilerOptions(soc, options.Seed)
	po.Budget, po.Rounds, po.Flagged = budget, options.Rounds, options.Flagged
	line := ui.Line(false)
	if line != nil {
		po.Progress = func(p profiler.Progress) {
			line.BarLeft("profile", p.Done, p.Total, p.Left, p.Key)
		}
	}
	rep, err := profiler.Run(ctx, soc, requests, rec, po)
	line.End()
	if err != nil {
		if rec.Set().Len() == 0 { // there is nothing to resume
			return errors.Join(err, rec.Close(), os.Remove(options.Out))
		}
		if errors.Is(err, context.Canceled) {
			err = diag.New(diag.ClassInterrupted, "profile: %d measurements of this run are in %q: %w", rep.Measured, options.Out, err).
				WithHint("the same command with --resume goes on where it stopped")
		} else {
			ui.Notef("%d measurements are in %q: the same command with --resume goes on", rec.Set().Len(), options.Out)
		}
		return err
	}
	note := ""
	if soc.Simulated() {
		note = ", simulated"
	}
	ui.Printf("%s: %d measured, %d reused, %d unsupported, %d skipped (out of time)%s\n", options.Out, rep.Measured, rep.Present, len(rep.Refused), len(rep.Left), note)
	for _, warning := range []struct{ flag, one, many string }{
		{record.Noisy, "measurement is noisy", "measurements are noisy"},
		{record.FewSamples, "measurement has few samples", "measurements have few samples"},
		{record.Drifted, "measurement drifted during the run", "measurements drifted during the run"},
	} {
		switch count := rep.Warnings[warning.flag]; count {
		case 0:
		case 1:
			ui.Warnf("1 %s (flag: %s)", warning.one, warning.flag)
		default:
			ui.Warnf("%d %s (flag: %s)", count, warning.many, warning.flag)
		}
	}
	if len(rep.Left) > 0 {
		ui.Notef("a larger --budget with --resume measures the rest")
	}
	refused := make([]map[string]string, len(rep.Refused))
	for i, refusal := range rep.Refused {
		refused[i] = map[string]string{"key": refusal.Key, "reason": refusal.Err.Error()}
	}
	return ui.Result(map[string]any{"file": options.Out, "measured": rep.Measured, "present": rep.Present, "refused": refused, "left": len(rep.Left), "warnings": rep.Warnings, "simulated": soc.Simulated()})
}

func listRequests(ui *cli.Streams, requests []profiler.Request, seed uint64) error {
	pending := profiler.Pending(requests, record.NewSet(record.Header{}), 1, seed)
	slices.SortStableFunc(pending, func(a, b profiler.Request) int { return a.Priority - b.Priority })
	keys := make([]string, len(pending))
	for i := range pending {
		keys[i] = pending[i].Key()
		ui.Printf("%d %s\n", pending[i].Priority, keys[i])
	}
	return ui.Result(map[string]any{"measurements": keys})
}
