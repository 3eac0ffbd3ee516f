package solving

import (
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
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
