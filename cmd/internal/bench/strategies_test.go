package bench

import (
	"math"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
)

// The program of the solved plan is measured with the other way of waiting, whichever the plan has.
func TestOtherWaits(t *testing.T) {
	plan := &planir.Plan{Procs: []planir.Proc{{Name: "host:0", Driver: "host"}, {Name: "gpu", Driver: "opencl"}}}
	for _, c := range []struct{ have, want capability.Waiting }{
		{capability.WaitSleep, capability.WaitEvent}, {capability.WaitPoll, capability.WaitEvent},
		{capability.WaitEvent, capability.WaitSleep},
	} {
		plan.Procs[1].Wait = c.have
		other, how := otherWaits(plan)
		if other == nil || how == "" || other.Procs[1].Wait != c.want || plan.Procs[1].Wait != c.have {
			t.Errorf("of a plan that waits by %q: %q %+v", c.have, how, other)
		}
	}
	if other, _ := otherWaits(&planir.Plan{Procs: plan.Procs[:1]}); other != nil {
		t.Error("cores of the host have no way of waiting")
	}
}

// Plans of one program are measured once, under the labels of all.
func TestDistinct(t *testing.T) {
	of := func(run string, wait capability.Waiting) *planir.Plan {
		return &planir.Plan{Procs: []planir.Proc{{Name: "gpu", Wait: wait}}, Program: planir.Program{Programs: []planir.PhaseProgram{
			{Name: "decode", Sections: []planir.Section{{Lanes: []planir.Lane{{Steps: []planir.Step{{Run: run}}}}}}}}}}
	}
	a, other, waits := of("x", ""), of("y", ""), of("x", capability.WaitPoll)
	names, plans := distinct([]string{"a", "other", "again", "waits"}, []*planir.Plan{a, other, of("x", ""), waits})
	if !slices.Equal(names, []string{"a = again", "other", "waits"}) || !slices.Equal(plans, []*planir.Plan{a, other, waits}) {
		t.Errorf("got %q", names)
	}
}

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
