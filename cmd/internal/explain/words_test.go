package explain

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
)

// A rate above what was probed is explained beside it.
func TestRateBesideProbe(t *testing.T) {
	for rate, want := range map[float64]string{
		5: "host:0 can read 6.9", 7: "can read",
		26: "more than the 6.9 that host:0 read from memory when probed: part of the weights stays in caches",
	} {
		if got := besideProbe(rate, 6.9, "host:0"); !strings.Contains(got, want) {
			t.Errorf("%.1f GB/s: %q, want %q", rate, got, want)
		}
	}
}

// The way to wait that a SoC file names is told; the usual one is not.
func TestWaits(t *testing.T) {
	plan := &planir.Plan{Procs: []planir.Proc{{Name: "cpu"}, {Name: "gpu", Wait: capability.WaitEvent},
		{Name: "npu", Wait: capability.WaitPoll}}}
	got := waits(plan)
	if len(got) != 2 || !strings.Contains(got[0], "a call of gpu are woken by its driver (wait: event") ||
		!strings.Contains(got[1], "a call of npu ask again and again") {
		t.Errorf("got %q", got)
	}
}

// A plan that was cut off has no programs, so that no name of one would do.
func TestPlanWithoutPrograms(t *testing.T) {
	for _, what := range []string{"decode", "@16", "prefill@8"} {
		_, err := parse(&planir.Plan{}, what)
		if err == nil || !strings.Contains(err.Error(), "the plan has no programs") || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%s: got %v", what, err)
		}
	}
}
