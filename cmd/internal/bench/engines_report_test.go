package bench

import (
	"testing"

	"github.com/hetc/hetc/cmd/internal/engines"
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
