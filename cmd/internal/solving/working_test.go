package solving

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver"
)

// What the process computed before, as hetc quick has profiled, is no time of solving.
func TestTimeBeforeSolving(t *testing.T) {
	const busy = 100 * time.Millisecond
	for before := cli.ProcessorTime(); cli.ProcessorTime()-before < busy; {
		if cli.ProcessorTime() == 0 {
			t.Skip("this system does not tell processor time")
		}
	}
	var working Working
	working.Start()
	if wall, processor := working.took(); processor >= busy || wall >= busy {
		t.Errorf("solving nothing took %v, %v of processor time", wall, processor)
	}
}

// Numbers of a progress line have their units, and a count says of what.
func TestProgressHasUnits(t *testing.T) {
	got := progressText(solver.Progress{Phase: "fit 26 MiB of memory, 1 buckets", Done: 219, Best: 126.7, Bound: 120.7,
		Unit: "mJ"}, 56*time.Second)
	if want := "fit 26 MiB of memory, 1 buckets: 219 tried, 56s, best 126.7 mJ, bound 120.7 mJ"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An interrupted solve says how good the best plan was, and that it is lost.
func TestInterruptedSaysWhatIsLost(t *testing.T) {
	var working Working
	if err := working.interrupted(context.Canceled); err != context.Canceled {
		t.Errorf("before any progress: %v", err)
	}
	working.Start()
	working.last.Store(&solver.Progress{Phase: "choose schemes", Done: 7, Best: 12.5, Bound: 11, Unit: "ms"})
	err := working.interrupted(diag.New(diag.ClassInterrupted, "solve: %w", context.Canceled))
	if diag.ClassOf(err) != diag.ClassInterrupted || !errors.Is(err, context.Canceled) {
		t.Errorf("class %v: %v", diag.ClassOf(err), err)
	}
	for _, want := range []string{"no plan is written", "choose schemes: 7 tried", "best 12.5 ms, bound 11 ms"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
}
