package bench

import (
	"testing"

	"github.com/hetc/hetc/runtime/executor"
)

// Lanes work and wait in the prompts that ran, of which a round of short ones has two, not in the rounds.
func TestIdleLanes(t *testing.T) {
	const ms = 1_000_000
	lanes := idleLanes([]executor.StepStat{
		{Proc: "b", Node: "add", RunNS: 2 * ms, WaitNS: 14 * ms},
		{Proc: "a", Node: "norm", RunNS: 5 * ms, WaitNS: 1 * ms},
		{Proc: "a", Node: "matmul", RunNS: 7 * ms, WaitNS: 3 * ms},
	}, []int64{10 * ms, 6 * ms})
	want := []laneIdle{
		{Proc: "a", BusyMS: 6, IdleMS: 2, Before: "matmul", MostMS: 1.5},
		{Proc: "b", BusyMS: 1, IdleMS: 7, Before: "add", MostMS: 7},
	}
	if len(lanes) != 2 || lanes[0] != want[0] || lanes[1] != want[1] {
		t.Errorf("got %+v, want %+v", lanes, want)
	}
}
