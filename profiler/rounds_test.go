package profiler

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/profiler/record"
)

// TestRounds checks that every operator is visited once before any is visited again, that the visits add
// up to whole measurements, and that an interrupted profile goes on in the round it was in.
func TestRounds(t *testing.T) {
	require.Slow(t)
	soc := fakeSoC()
	w, path := newRecord(t, soc)
	w.Close()
	requests := everyKind()
	const rounds = 4
	stops := 0
	for {
		driver := &fake{cost: work}
		ctx, cancel := context.WithCancel(context.Background())
		options := driver.options()
		options.Rounds = rounds
		ended := 0
		options.Progress = func(p Progress) {
			if p.Ended {
				if ended++; ended == len(requests)+len(requests)/2 {
					cancel()
				}
			}
		}
		writer, err := record.Resume(path, fakeHeader(t, soc))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Run(ctx, soc, requests, writer, options)
		writer.Close()
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if stops++; stops > 10 {
			t.Fatal("no end")
		}
	}
	if stops == 0 {
		t.Error("never interrupted")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")[1:]
	if len(lines) != rounds*len(requests) {
		t.Errorf("%d lines, want %d for %d requests in %d rounds", len(lines), rounds*len(requests), len(requests),
			rounds)
	}
	set, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, measured := range set.All() {
		if measured.Round != rounds-1 || len(measured.Samples) < 10 {
			t.Errorf("%s: %d rounds, %d samples, want %d and at least 10", measured.Key(), measured.Round+1,
				len(measured.Samples), rounds)
		}
		for _, warning := range measured.Warnings {
			if warning == record.FewSamples {
				t.Errorf("measurement %d: %s is flagged %q with %d samples", i, measured.Key(), warning,
					len(measured.Samples))
			}
		}
	}
	for i, line := range lines {
		if later := strings.Contains(line, `"round":`); i < len(requests) && later {
			t.Fatalf("line %d is a second visit, and %d operators have had none", i, len(requests)-i)
		}
	}
}

// TestRoundsUnderBudget checks that what every plan needs is visited once before anything is visited again,
// and that then what matters more has all its visits before the rest has its first.
func TestRoundsUnderBudget(t *testing.T) {
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	requests := everyKind()
	for i := range requests {
		requests[i].Priority = []int{priorityBase, priorityGlue, priorityShards}[i%3]
	}
	f := &fake{cost: work}
	options := f.options()
	options.Rounds, options.Budget = 3, time.Hour
	var order []string
	options.Progress = func(p Progress) {
		if p.Ended {
			order = append(order, p.Key)
		}
	}
	if _, err := Run(context.Background(), soc, requests, writer, options); err != nil {
		t.Fatal(err)
	}
	priority := map[string]int{}
	for i := range requests {
		priority[requests[i].Key()] = requests[i].Priority
	}
	needed := 0
	for _, q := range requests {
		if q.Priority <= priorityGlue {
			needed++
		}
	}
	first := map[string]bool{}
	for i, key := range order[:needed] {
		if first[key] || priority[key] > priorityGlue {
			t.Fatalf("visit %d is of %q (priority %d), and not everything that is needed has had one", i, key,
				priority[key])
		}
		first[key] = true
	}
	for i := needed + 1; i < len(order); i++ {
		if priority[order[i]] < priority[order[i-1]] {
			t.Fatalf("visit %d of %q (priority %d) follows one of priority %d", i, order[i], priority[order[i]],
				priority[order[i-1]])
		}
	}
	if len(order) != 3*len(requests) {
		t.Errorf("%d visits, want %d", len(order), 3*len(requests))
	}
}
