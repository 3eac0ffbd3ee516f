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
	driver := &fake{cost: func(p string, o op.Op, i int) float64 { return 1e6 }}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	var requests []Request
	for m := 1; m <= 40; m++ {
		requests = append(requests, ask("a", matmul(m), m%4))
	}
	options := driver.options()
	options.Budget, options.Rounds = 250*time.Millisecond, Rounds
	skipped := len(requests)
	for run := 0; skipped > 0; run++ {
		if run == 20 {
			t.Fatalf("%d are skipped after %d runs", skipped, run)
		}
		before := writer.Set().Len()
		rep, err := Run(context.Background(), soc, requests, writer, options)
		if err != nil {
			t.Fatal(err)
		}
		if rep.Measured+rep.Present+len(rep.Left) != len(requests) {
			t.Errorf("run %d: %d measured, %d reused, %d skipped of %d", run, rep.Measured, rep.Present, len(rep.Left),
				len(requests))
		}
		if len(rep.Left) >= skipped || before > 0 && rep.Present == 0 && rep.Measured < len(requests) {
			t.Errorf("run %d with %d there: %d measured, %d reused, %d skipped, want fewer than %d", run, before,
				rep.Measured, rep.Present, len(rep.Left), skipped)
		}
		skipped = len(rep.Left)
	}
}

// TestFlaggedAreReplacedByBetter measures on a machine that is busy at first: later measurements take the place of
// those that were flagged.
func TestFlaggedAreReplacedByBetter(t *testing.T) {
	for _, rounds := range []int{1, Rounds} {
		rng := rand.New(rand.NewPCG(1, 1))
		busy := true
		driver := &fake{}
		driver.cost = func(p string, o op.Op, i int) float64 {
			if busy && o.M > 1 && o.Kind == op.MatMul {
				return 300_000 * (1 + 2*rng.Float64())
			}
			return 300_000
		}
		soc := fakeSoC()
		writer, path := newRecord(t, soc)
		requests := []Request{ask("a", matmul(1), 0), ask("a", matmul(2), 0), ask("a", matmul(3), 0)}
		options := driver.options()
		options.Rounds = rounds
		rep, err := Run(context.Background(), soc, requests, writer, options)
		if err != nil || rep.Warnings[record.Noisy] != 2 {
			t.Fatalf("busy: %+v, %v", rep, err)
		}
		options.Flagged = true
		// The machine is still busy: nothing gets worse, all samples stay in the file.
		old := writer.Set().Lookup(requests[1].Key())
		if _, err = Run(context.Background(), soc, requests, writer, options); err != nil {
			t.Fatal(err)
		}
		if m := writer.Set().Lookup(requests[1].Key()); !slices.Contains(m.Warnings, record.Noisy) ||
			m.Round == old.Round {
			t.Errorf("still busy: %+v", m)
		}
		busy = false
		rep, err = Run(context.Background(), soc, requests, writer, options)
		if err != nil || rep.Measured != 2 || rep.Present != 1 || len(rep.Warnings) != 0 {
			t.Fatalf("idle: %+v, %v", rep, err)
		}
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		set, err := record.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, request := range requests {
			if m := set.Lookup(request.Key()); len(m.Warnings) != 0 || slices.Max(m.Samples) != 300_000 {
				t.Errorf("%s: %v, %v", request.Key(), m.Warnings, m.Samples)
			}
		}
	}
}
