package profiler

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/profiler/record"
)

// TestRoundsVisitEveryOperatorOnce checks that every operator is visited once before any is visited again, that the
// visits add up to whole measurements, and that an interrupted profile goes on in the round it was in.
func TestRoundsVisitEveryOperatorOnce(t *testing.T) {
	require.Slow(t)
	soc := fakeSoC()
	writer, path := newRecord(t, soc)
	writer.Close()
	requests := everyKind()
	const rounds = 4
	if stops := runInterrupted(t, path, requests, rounds); stops == 0 {
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
	for visit, line := range lines[:min(len(requests), len(lines))] {
		if strings.Contains(line, `"round":`) {
			t.Fatalf("line %d is a second visit, and %d operators have had none", visit, len(requests)-visit)
		}
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
		if slices.Contains(measured.Warnings, record.FewSamples) {
			t.Errorf("measurement %d: %s is flagged %q with %d samples", i, measured.Key(), record.FewSamples,
				len(measured.Samples))
		}
	}
}

// runInterrupted profiles, interrupted after each round and a half, and returns how often it was.
func runInterrupted(t *testing.T, path string, requests []Request, rounds int) (stops int) {
	t.Helper()
	soc := fakeSoC()
	for ; stops <= 10; stops++ {
		driver := &fake{cost: work}
		ctx, cancel := context.WithCancel(context.Background())
		options := driver.options()
		options.Rounds = rounds
		ended := 0
		options.Progress = func(progress Progress) {
			if !progress.Ended {
				return
			}
			if ended++; ended == len(requests)+len(requests)/2 {
				cancel()
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
			return stops
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	t.Fatal("no end")
	return stops
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
