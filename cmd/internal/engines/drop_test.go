//go:build linux

package engines

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// After the first round only forms go on that took at most the factor of the fastest one of all other engines, task by
// task. hetc's forms stay, and an engine without a form that goes on keeps the ratio of the round it took part in.
func TestFinalists(t *testing.T) {
	m := &Match{Rounds: 3, Seed: 2, Finalists: 1.5, Engines: []Engine{
		&scripted{name: "hetc", form: "plan", seconds: fixed("8", "2")},
		&scripted{name: "one", form: "w4", seconds: fixed("1", "8")},
		&scripted{name: "one", form: "w8", seconds: fixed("1.5", "6")},
		&scripted{name: "two", form: "Q4", seconds: fixed("1.6", "2")},
	}}

	result, _ := play(t, m)

	for i, want := range []struct {
		processes int
		dropped   string
	}{
		{processes: 3}, // of prompts
		{processes: 3},
		{processes: 2, dropped: "slower than one w4 in both rounds"},
		{processes: 1, dropped: "took 1.60 x as long as one w4 in round 1"},

		{processes: 3}, // of tokens
		{processes: 1, dropped: "took 4.00 x as long as two Q4 in round 1"},
		{processes: 1, dropped: "took 3.00 x as long as two Q4 in round 1"},
		{processes: 3},
	} {
		s := result.Series[i]
		if len(s.Samples) != want.processes || s.Dropped != want.dropped {
			t.Errorf("%s %s, %v: %d processes, dropped %q; want %+v", s.Engine, s.Form, s.Task, len(s.Samples), s.Dropped,
				want)
		}
	}

	var ratios []string
	for _, ratio := range result.Ratios {
		ratios = append(ratios, fmt.Sprintf("%s %s %v %v %.3g of %d", ratio.Task.Phase(), ratio.Peer, ratio.Best,
			ratio.Dropped, ratio.Summary.Median, ratio.Summary.N))
	}
	want := []string{
		"prefill one w4 false 0.125 of 3",
		"prefill two Q4 true 0.2 of 1",
		"decode one w8 true 3 of 1", // the fastest of those that were dropped
		"decode two Q4 false 1 of 3",
	}
	if !slices.Equal(ratios, want) {
		t.Errorf("got %q, want %q", ratios, want)
	}
	if result.Finalists != 1.5 {
		t.Errorf("the result says %v", result.Finalists)
	}
}

// Without the flag no form is compared with another engine.
func TestNoFinalists(t *testing.T) {
	m := &Match{Rounds: 3, Seed: 2, Engines: []Engine{
		&scripted{name: "hetc", form: "plan", seconds: fixed("1", "1")},
		&scripted{name: "one", form: "w4", seconds: fixed("1", "1")},
		&scripted{name: "two", form: "Q4", seconds: fixed("9", "9")},
	}}
	result, _ := play(t, m)
	for _, s := range result.Series {
		if len(s.Samples) != 3 || s.Dropped != "" {
			t.Errorf("%s %s, %v: %d processes, dropped %q; want 3", s.Engine, s.Form, s.Task, len(s.Samples), s.Dropped)
		}
	}
}

// rounds is what a series measured: tokens/s of each round, negative where others were at work.
func rounds(engine, form string, task Task, speeds ...float64) Series {
	series := Series{Engine: engine, Form: form, Task: task, took: time.Second}
	for round, speed := range speeds {
		sample := Sample{Round: round, Median: max(speed, -speed)}
		if speed < 0 {
			sample.Others = 1
		}
		series.Samples = append(series.Samples, sample)
	}
	return series
}

// One measurement drops a form only where it is sound.
func TestFinalistsNeedSoundMeasurements(t *testing.T) {
	decode, start := Task{Depth: 8, Gen: 2, Reps: 1}, Task{Start: 8, Reps: 1}
	failed := rounds("two", "w2", decode, 1)
	failed.Failed = "it crashed"
	other := rounds("two", "w2", decode)
	other.Failed = "it crashed"
	for _, test := range []struct {
		name   string
		series Series
		want   string // why it was dropped
	}{
		{name: "within the factor", series: rounds("two", "w8", decode, 60)},
		{name: "just within", series: rounds("two", "w8", decode, 50)},
		{name: "slower", series: rounds("two", "w8", decode, 49), want: "took 2.04 x as long as one w4 in round 1"},
		{name: "hetc", series: rounds("hetc", "plan", decode, 1)},
		{name: "slow while others were at work", series: rounds("two", "w8", decode, -10)},
		{name: "fast in the next round", series: rounds("two", "w8", decode, -10, 90)},
		{name: "slow in the next round too", series: rounds("two", "w8", decode, -10, 10),
			want: "took 10.00 x as long as one w4 in round 2"},
		{name: "disturbed again", series: rounds("two", "w8", decode, -10, -10)},
		{name: "slow in a later round", series: rounds("two", "w8", decode, 60, 10)},
		{name: "its first start", series: rounds("two", "w8", start, 10)},
		{name: "its second start", series: rounds("two", "w8", start, 10, 60)},
		{name: "a slow second start", series: rounds("two", "w8", start, 10, 20),
			want: "took 5.00 x as long as one w4 in round 2"},
		{name: "failed after a slow measurement", series: failed},
		{name: "failed", series: other},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := &Match{Finalists: 2, Quiet: 0.5, Note: t.Logf}
			result := &Result{Series: []Series{
				rounds("one", "w4", test.series.Task), rounds("hetc", "plan", test.series.Task), test.series,
			}}
			own := &result.Series[2]
			samples := own.Samples
			for round := range max(1, len(samples)) {
				result.Rounds++
				for i := range 2 {
					result.Series[i].Samples = append(result.Series[i].Samples, Sample{Round: round, Median: 100})
				}
				own.Samples = samples[:min(round+1, len(samples))]
				m.drop(result)
			}
			if own.Dropped != test.want {
				t.Errorf("dropped %q, want %q", own.Dropped, test.want)
			}
			if result.Series[0].Dropped != "" || result.Series[1].Dropped != "" {
				t.Errorf("dropped the fastest, %q, or hetc, %q", result.Series[0].Dropped, result.Series[1].Dropped)
			}
		})
	}
}

// A form of an engine that was disturbed in the first round, or started for the first time, is not dropped then for
// another one of the same engine either.
func TestRivalsNeedSoundMeasurements(t *testing.T) {
	decode, start := Task{Depth: 8, Gen: 2, Reps: 1}, Task{Start: 8, Reps: 1}
	for _, test := range []struct {
		series Series
		want   string
	}{
		{series: rounds("one", "w8", decode, 50), want: "took 2.00 x as long as one w4 in round 1"},
		{series: rounds("one", "w8", decode, -50)},
		{series: rounds("one", "w8", start, 50)},
		{series: rounds("one", "w8", decode, 70)},
	} {
		m := &Match{Quiet: 0.5, Note: t.Logf}
		result := &Result{Rounds: 1, Series: []Series{rounds("one", "w4", test.series.Task, 100), test.series}}
		m.drop(result)
		if got := result.Series[1].Dropped; got != test.want {
			t.Errorf("%+v: dropped %q, want %q", test.series.Samples, got, test.want)
		}
	}
}

// The budget counts on the forms that go on, and the log says how many processes a round has from then on.
func TestFinalistsShortenTheNextRound(t *testing.T) {
	decode := Task{Depth: 8, Gen: 2, Reps: 1}
	var notes []string
	m := &Match{Finalists: 1.5, Note: func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf(format, args...))
	}}
	result := &Result{Rounds: 1, Series: []Series{
		rounds("hetc", "plan", decode, 10), rounds("one", "w4", decode, 100), rounds("two", "Q4", decode, 60),
		rounds("two", "Q8", decode, 59), rounds("three", "int8", decode, 80),
	}}
	if got := result.nextRound(); got != 5*time.Second {
		t.Errorf("the next round takes %v with all forms, want 5s", got)
	}
	m.drop(result)
	if got := result.nextRound(); got != 3*time.Second {
		t.Errorf("the next round takes %v, want 3s", got)
	}
	want := []string{"2 of 5 processes of a round are left out from now on; the others take 3s"}
	if !slices.Equal(notes, want) {
		t.Errorf("said %q, want %q", notes, want)
	}
}
