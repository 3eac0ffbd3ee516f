package solving

import (
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
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
