package profiler

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
)

// TestResumeMeasuresWhatWasSkipped goes on again and again with a short budget: each run takes what was skipped first,
// so that all is measured in the end, and what is there is not called new.
func TestResumeMeasuresWhatWasSkipped(t *testing.T) {
	f := &fake{cost: func(p string, o op.Op, i int) float64 { return 1e6 }}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	var requests []Request
	for m := 1; m <= 40; m++ {
		requests = append(requests, ask("a", matmul(m), m%4))
	}
	o := f.options()
	o.Budget, o.Rounds = 250*time.Millisecond, Rounds
	skipped := len(requests)
	for run := 0; skipped > 0; run++ {
		if run == 20 {
			t.Fatalf("%d are skipped after %d runs", skipped, run)
		}
		before := w.Set().Len()
		rep, err := Run(context.Background(), s, requests, w, o)
		if err != nil {
			t.Fatal(err)
		}
		if rep.Measured+rep.Present+len(rep.Left) != len(requests) {
			t.Errorf("run %d: %d measured, %d reused, %d skipped of %d", run, rep.Measured, rep.Present, len(rep.Left), len(requests))
		}
		if len(rep.Left) >= skipped || before > 0 && rep.Present == 0 && rep.Measured < len(requests) {
			t.Errorf("run %d with %d there: %d measured, %d reused, %d skipped, want fewer than %d", run, before, rep.Measured, rep.Present, len(rep.Left), skipped)
		}
		skipped = len(rep.Left)
	}
}

// TestFlaggedAnew measures on a machine that is busy at first: later measurements take the place of those that were
// flagged.
func TestFlaggedAnew(t *testing.T) {
	for _, rounds := range []int{1, Rounds} {
		rng := rand.New(rand.NewPCG(1, 1))
		busy := true
		f := &fake{}
		f.cost = func(p string, o op.Op, i int) float64 {
			if busy && o.M > 1 && o.Kind == op.MatMul {
				return 300_000 * (1 + 2*rng.Float64())
			}
			return 300_000
		}
		s := fakeSoC()
		w, path := newRecord(t, s)
		requests := []Request{ask("a", matmul(1), 0), ask("a", matmul(2), 0), ask("a", matmul(3), 0)}
		o := f.options()
		o.Rounds = rounds
		rep, err := Run(context.Background(), s, requests, w, o)
		if err != nil || rep.Warnings[record.Noisy] != 2 {
			t.Fatalf("busy: %+v, %v", rep, err)
		}
		o.Flagged = true
		// The machine is still busy: nothing gets worse, all samples stay in the file.
		old := w.Set().Lookup(requests[1].Key())
		if _, err = Run(context.Background(), s, requests, w, o); err != nil {
			t.Fatal(err)
		}
		if m := w.Set().Lookup(requests[1].Key()); !slices.Contains(m.Warnings, record.Noisy) || m.Round == old.Round {
			t.Errorf("still busy: %+v", m)
		}
		busy = false
		rep, err = Run(context.Background(), s, requests, w, o)
		if err != nil || rep.Measured != 2 || rep.Present != 1 || len(rep.Warnings) != 0 {
			t.Fatalf("idle: %+v, %v", rep, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		set, err := record.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range requests {
			if m := set.Lookup(q.Key()); len(m.Warnings) != 0 || slices.Max(m.Samples) != 300_000 {
				t.Errorf("%s: %v, %v", q.Key(), m.Warnings, m.Samples)
			}
		}
	}
}
