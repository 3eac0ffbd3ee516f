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
	m, err := models.Open(model)
	if err != nil {
		return nil, workload.Needs{}, err
	}
	w, err := ReadWorkload(workloadFile)
	if err != nil {
		return nil, workload.Needs{}, errors.Join(err, m.Close())
	}
	needs, err := w.Needs(m.MaxContext)
	if err != nil {
		return nil, workload.Needs{}, errors.Join(err, m.Close())
	}
	return m, needs, nil
}

func Profile(ctx context.Context, s *cli.Streams, o *ProfileOptions) error {
	budget, err := cli.ParseTime("budget", o.Budget)
	if err != nil {
		return err
	}
	if o.Flagged && !o.Resume {
		return diag.New(diag.ClassUsage, "--flagged needs --resume").WithHint("a new record has nothing that is flagged")
	}
	const mostHeldOut = 1000
	if o.HeldOut < 0 || o.HeldOut > mostHeldOut {
		return diag.New(diag.ClassUsage, "--held-out %d: want 0 to %d", o.HeldOut, mostHeldOut)
	}
	const mostRounds = 100
	if o.Rounds < 1 || o.Rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", o.Rounds, mostRounds)
	}
	soc, err := socs.Open(o.SoC)
	if err != nil {
		return err
	}
	if soc.Imported() {
		return diag.New(diag.ClassInput, "profile SoC %q: its times were measured elsewhere (imported), and no driver executes on its processors", soc.Name).
			WithHint("add rows to the table and import it again")
	}
	m, needs, err := openPlanned(o.Model, o.Workload)
	if err != nil {
		return err
	}
	defer m.Close()
	part := soc // what is measured of it
	if o.Target != "" {
		if part, err = soc.Restricted(); err != nil {
			return err
		}
	}
	want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.On(part), MaxContext: needs.Context}
	requests, err := profiler.Requests(part, m, want)
	if err != nil {
		return err
	}
	if o.HeldOut > 0 {
		held, err := profiler.HeldOut(part, m, want, requests, o.HeldOut, o.Seed)
		if err != nil {
			return err
		}
		requests = append(requests, held...)
	}
	if o.DryRun {
		return listRequests(s, requests, o.Seed)
	}
	open := record.Create
	if o.Resume {
		open = record.Resume
	}
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, o.Seed)
	if err != nil {
		return err
	}
	if err := bindings.LibraryVersions(ctx, soc, &header); err != nil {
		return err
	}
	rec, err := open(o.Out, header)
	if err != nil {
		return err
	}
	defer rec.Close()
	nothing := !o.Flagged || len(profiler.Flagged(requests, rec.Set(), o.Seed)) == 0
	if nothing && len(profiler.Pending(requests, rec.Set(), o.Rounds, o.Seed)) == 0 {
		return cli.Kept(s, o.Out, fmt.Sprintf("all %d measurements are there", len(requests)))
	}
	po := bindings.ProfilerOptions(soc, o.Seed)
	po.Budget, po.Rounds, po.Flagged = budget, o.Rounds, o.Flagged
	line := s.Line(false)
	if line != nil {
		po.Progress = func(p profiler.Progress) {
			line.BarLeft("profile", p.Done, p.Total, p.Left, p.Key)
		}
	}
	rep, err := profiler.Run(ctx, soc, requests, rec, po)
	line.End()
	if err != nil {
		if rec.Set().Len() == 0 { // there is nothing to resume
			return errors.Join(err, rec.Close(), os.Remove(o.Out))
		}
		if errors.Is(err, context.Canceled) {
			err = diag.New(diag.ClassInterrupted, "profile: %d measurements of this run are in %q: %w", rep.Measured, o.Out, err).
				WithHint("the same command with --resume goes on where it stopped")
		} else {
			s.Notef("%d measurements are in %q: the same command with --resume goes on", rec.Set().Len(), o.Out)
		}
		return err
	}
	note := ""
	if soc.Simulated() {
		note = ", simulated"
	}
	s.Printf("%s: %d measured, %d reused, %d unsupported, %d skipped (out of time)%s\n", o.Out, rep.Measured, rep.Present, len(rep.Refused), len(rep.Left), note)
	for _, w := range []struct{ flag, one, many string }{
		{record.Noisy, "measurement is noisy", "measurements are noisy"},
		{record.FewSamples, "measurement has few samples", "measurements have few samples"},
		{record.Drifted, "measurement drifted during the run", "measurements drifted during the run"},
	} {
		switch n := rep.Warnings[w.flag]; n {
		case 0:
		case 1:
			s.Warnf("1 %s (flag: %s)", w.one, w.flag)
		default:
			s.Warnf("%d %s (flag: %s)", n, w.many, w.flag)
		}
	}
	if len(rep.Left) > 0 {
		s.Notef("a larger --budget with --resume measures the rest")
	}
	refused := make([]map[string]string, len(rep.Refused))
	for i, r := range rep.Refused {
		refused[i] = map[string]string{"key": r.Key, "reason": r.Err.Error()}
	}
	return s.Result(map[string]any{"file": o.Out, "measured": rep.Measured, "present": rep.Present, "refused": refused, "left": len(rep.Left), "warnings": rep.Warnings, "simulated": soc.Simulated()})
}

func listRequests(s *cli.Streams, requests []profiler.Request, seed uint64) error {
	pending := profiler.Pending(requests, record.NewSet(record.Header{}), 1, seed)
	slices.SortStableFunc(pending, func(a, b profiler.Request) int { return a.Priority - b.Priority })
	keys := make([]string, len(pending))
	for i := range pending {
		keys[i] = pending[i].Key()
		s.Printf("%d %s\n", pending[i].Priority, keys[i])
	}
	return s.Result(map[string]any{"measurements": keys})
}
