package bench

import (
	"math"
	"testing"
)

// Ratios are taken round by round against the first plan of the same task.
func TestSummariseStrategies(t *testing.T) {
	results := []*strategyResult{
		{Task: "prefill 8", Plan: "a", tokens: 8, samples: []float64{8e6, 16e6, 8e6}},
		{Task: "prefill 8", Plan: "b", tokens: 8, samples: []float64{16e6, 32e6, 16e6}},
		{Task: "decode", Plan: "a", tokens: 1, samples: []float64{4e6, 4e6, 4e6}},
		{Task: "decode", Plan: "b", tokens: 1, samples: []float64{2e6, 2e6, 1e6}},
	}
	if err := summarise(results); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ rate, solved float64 }{{1000, 1}, {500, 0.5}, {250, 1}, {500, 2}} {
		if got := results[i]; math.Abs(got.TPS-want.rate) > 1e-6 || got.Solved != want.solved {
			t.Errorf("%s %s: %.1f tokens/s, ratio %.2f, want %.1f and %.2f", got.Task, got.Plan, got.TPS, got.Solved,
				want.rate, want.solved)
		}
	}
	if err := summarise([]*strategyResult{{Task: "decode"}}); err == nil {
		t.Error("a task without samples has a result")
	}
}
