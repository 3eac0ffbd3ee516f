package bindings

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
)

// A plan for a machine of one's own is found by giving its file, and the first hint says so.
func TestMachineOfPlanOutsideTheCatalog(t *testing.T) {
	p := &planir.Plan{SoC: planir.SoCRef{Name: "my-board", Simulated: true}}
	_, err := SoCOf(p, "")
	if err == nil || !strings.Contains(err.Error(), `"my-board"`) {
		t.Fatalf("got %v, want an error about my-board", err)
	}
	if hints := diag.HintsOf(err); len(hints) == 0 || !strings.Contains(hints[0], "--soc FILE") {
		t.Errorf("hints %q, want --soc FILE first", hints)
	}
	if soc, err := SoCOf(&planir.Plan{}, ""); soc != nil || err != nil {
		t.Errorf("a plan for a real machine: got %v, %v, want nothing to open", soc, err)
	}
}
