package bench

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
)

// A peak that the system did not tell is no divisor, and no zero.
func TestPeakRatio(t *testing.T) {
	for _, c := range []struct {
		peak, other int64
		want        string
	}{{0, 0, "-"}, {33681408, 0, "-"}, {0, 33681408, "-"}, {3 << 20, 2 << 20, "1.50"}} {
		if got := peakRatio(c.peak, c.other); got != c.want {
			t.Errorf("%d and %d: got %s, want %s", c.peak, c.other, got, c.want)
		}
	}
}

// hetc is compared with the engine that is fastest on a task, whichever that is, and shown beside what its form loses.
func TestHardest(t *testing.T) {
	task, other := engines.Task{Prompt: 8, Reps: 1}, engines.Task{Depth: 8, Gen: 2, Reps: 1}
	ratio := func(form, peer string, task engines.Task, median float64) engines.Ratio {
		return engines.Ratio{Form: form, Peer: peer, Task: task, Summary: stat.Summary{Median: median}}
	}
	result := &engines.Result{Ratios: []engines.Ratio{ratio("plan", "a", task, 3), ratio("plan", "b", task, 1.5),
		ratio("plan", "c", task, 2), ratio("bounded", "a", task, 1), ratio("plan", "a", other, 0.5)}}
	if got := hardest(result, "plan", task); got == nil || got.Peer != "b" {
		t.Errorf("got %+v, want the ratio to b", got)
	}
	result.Ratios = append(result.Ratios, engines.Ratio{Form: "plan", Peer: "d", Task: task, Dropped: true,
		Summary: stat.Summary{N: 1, Median: 1.2}})
	if got := hardest(result, "plan", task); got == nil || got.Peer != "b" {
		t.Errorf("got %+v, want the ratio to b: d was slower than another engine and dropped", got)
	}
	if got := hardest(result, "nothing", task); got != nil {
		t.Errorf("got %+v, want none", got)
	}
	quality := []engines.Quality{{Engine: "hetc", Form: "plan", Phase: "prefill", MeanKL: 0.1},
		{Engine: "hetc", Form: "plan", Phase: "decode", MeanKL: 0.2}, {Engine: "a", Form: "w8", MeanKL: 0.3}}
	for _, c := range []struct {
		engine, form string
		task         engines.Task
		want         string
	}{{"hetc", "plan", task, "0.10000"}, {"hetc", "plan", other, "0.20000"}, {"a", "w8", other, "0.30000"},
		{"a", "w4", task, ""}, {"a", "w8", engines.Task{Start: 8, Reps: 1}, ""}} {
		if got := lossOf(quality, &engines.Series{Engine: c.engine, Form: c.form, Task: c.task}); got != c.want {
			t.Errorf("%s %s, %v: got %q, want %q", c.engine, c.form, c.task, got, c.want)
		}
	}
}

// A table says how many processes a figure comes from, why a form was dropped, and no interval of one process.
func TestSpeedsOfFewProcesses(t *testing.T) {
	task, start := engines.Task{Prompt: 8, Reps: 1}, engines.Task{Start: 8, Reps: 1}
	once, twice := stat.Summary{N: 1, Median: 50, Low: 50, High: 50}, stat.Summary{N: 2, Median: 45, Low: 40, High: 50}
	result := &engines.Result{
		Rounds:    2,
		Finalists: 1.5,
		Series: []engines.Series{
			{Engine: "hetc", Form: "plan", Task: task, Summary: twice},
			{Engine: "a", Form: "w8", Task: task, Summary: once, Dropped: "took 1.80 x as long as b w4 in round 1"},
			{Engine: "b", Form: "w4", Task: task, Summary: twice},
			{Engine: "c", Form: "w4", Task: task, Failed: "it crashed"},
			{Engine: "c", Form: "w4", Task: start, Summary: twice},
		},
		Ratios: []engines.Ratio{
			{Form: "plan", Task: task, Peer: "a", Best: "w8", Dropped: true, Summary: stat.Summary{N: 1, Median: 1.5}},
			{Form: "plan", Task: task, Peer: "b", Best: "w4", Summary: stat.Summary{N: 2, Median: 0.9, Low: 0.8, High: 1}},
		},
	}
	var printed bytes.Buffer
	out := &page{s: &cli.Streams{Out: &printed, Err: io.Discard}}
	b := &enginesBench{EnginesOptions: &EnginesOptions{Rounds: 2, Cores: []int{0}}}

	b.show(out, record.Environment{CPU: "some CPU"}, &EnginesModel{Name: "m", Match: result})

	for _, want := range []string{
		"at most 1.5 times as long as the fastest form of any other engine in the task (--finalists)",
		"Intervals of fewer than 6 processes do not reach 95 %, and a single process has none.",
		"| prefill 8 | hetc | plan | 2 | 45.0 | 40.0..50.0 | 0.90 x b w4 | 0.80..1.00 | - |",
		"| prefill 8 | a | w8 | 1 | 50.0 | - | dropped: took 1.80 x as long as b w4 in round 1 |  | - |",
		"| prefill 8 | c | w4 | 0 | - |  | failed |  | - |",
		"| start, first token after 8 | c | w4 | 2 | 22 ms | 20 ms..25 ms |  |  | - |",
		"| prefill 8 | plan | a | w8, dropped | 1 | 1.50 | - |",
		"| prefill 8 | plan | b | w4 | 2 | 0.90 | 0.80..1.00 |",
	} {
		if !strings.Contains(out.md.String(), want) {
			t.Errorf("want %q in\n%s", want, out.md.String())
		}
	}
	if !strings.Contains(printed.String(), "dropped: took 1.80 x as long as b w4 in round 1") {
		t.Errorf("the terminal shows\n%s", printed.String())
	}
}

// A file that cannot be written keeps neither the other one nor the result from being written.
func TestWriteFilesOfAFullDisk(t *testing.T) {
	dir := t.TempDir()
	b := &enginesBench{EnginesOptions: &EnginesOptions{
		Markdown: filepath.Join(dir, "gone", "table.md"), Out: filepath.Join(dir, "bench.json"), Cores: []int{0},
	}}
	var printed bytes.Buffer
	b.s = &cli.Streams{Out: &printed, Err: io.Discard, JSON: true}

	err := b.report(nil)

	if diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), "table.md") {
		t.Errorf("got %v, want an error about the Markdown file", err)
	}
	text, err := os.ReadFile(b.Out)
	if err != nil || !strings.Contains(string(text), `"models"`) {
		t.Errorf("the JSON file has %q, %v", text, err)
	}
	if !strings.Contains(printed.String(), `"models"`) {
		t.Errorf("printed %q", printed.String())
	}
}

// A fastest form that failed after its first process has one round, and the table says so.
func TestStandingOfOneRound(t *testing.T) {
	task := engines.Task{Prompt: 8, Reps: 1}
	own := &engines.Series{Engine: "hetc", Form: "plan", Task: task, Summary: stat.Summary{N: 3}}
	result := &engines.Result{Ratios: []engines.Ratio{
		{Form: "plan", Task: task, Peer: "a", Best: "w8", Summary: stat.Summary{N: 1, Median: 1.5}},
	}}
	cell, bounds := standing(result, own)
	if cell != "1.50 x a w8, 1 round" || bounds != "-" {
		t.Errorf("got %q and %q", cell, bounds)
	}
}

// A form's share of the joint stream is what decoding reads of weights, and other tasks have none.
func TestShareOf(t *testing.T) {
	decode := engines.Task{Depth: 8, Gen: 2, Reps: 1}
	series := &engines.Series{Task: decode, WeightBytes: 500e6, Summary: stat.Summary{N: 1, Median: 80}}
	if got := shareOf(50, series); got != "80 %" {
		t.Errorf("500 MB 80 times a second of 50 GB/s: got %q, want 80 %%", got)
	}
	series.Task = engines.Task{Prompt: 8, Reps: 1}
	if got := shareOf(50, series); got != "" {
		t.Errorf("prefill: got %q, want nothing", got)
	}
	if got := shareOf(50, &engines.Series{Task: decode, Summary: series.Summary}); got != "" {
		t.Errorf("weights that are not known: got %q, want nothing", got)
	}
}

// A folder that another run works in is refused; what a run that was killed has left there is removed.
func TestWorkFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[work") // no pattern
	left := []string{filepath.Join(dir, "model", ".openvino.1"), filepath.Join(dir, ".quality2")}
	for _, path := range left {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	open := func() (func(), error) {
		return (&enginesBench{EnginesOptions: &EnginesOptions{Work: dir}}).openFolder()
	}
	done, err := open()
	if err != nil {
		t.Fatal(err)
	}

	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want it removed", path, err)
		}
	}

	if _, err := open(); diag.ClassOf(err) != diag.ClassUnavailable ||
		!strings.Contains(err.Error(), "another run is using it") {
		t.Errorf("a second run: %v", err)
	}
	done()
	if done, err = open(); err != nil {
		t.Fatal(err)
	}
	done()
}
