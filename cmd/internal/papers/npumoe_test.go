package papers

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// The busiest experts are counted in each half of the chunks alone; the lower number wins a tie.
func TestBusiestExperts(t *testing.T) {
	layer := &workload.LoadLayer{Rows: []workload.Counts{{1, 1, 0, 9}, {5, 0, 0, 0}, {0, 2, 3, 0}, {0, 2, 1, 1}}}
	for half, want := range [][]int{{1, 0}, {0, 2}} {
		if got := busiest(layer, half, 2); !slices.Equal(got, want) {
			t.Errorf("half %d: the busiest are %v, want %v", half, got, want)
		}
	}
}

// Padding is what slots reserve and no row is moved to, overflow a share of all routed rows, both means over layers.
func TestTierShares(t *testing.T) {
	tiers := &planir.ExpertTiers{Rows: 100, Groups: []planir.ExpertGroup{{Slots: 2, Rows: 40}, {Slots: 1, Rows: 20}},
		Layers: []planir.ExpertLayer{{Moved: 0.2, Overflow: 0.1}, {Moved: 0.3, Overflow: 0.3}}}
	slots, padding, overflow := tierShares(tiers, 2) // 200 routed rows, 50 moved to 100
	if slots != 3 || rounded(padding, 6) != 50 || rounded(overflow, 6) != 20 {
		t.Errorf("%d slots, %v %% padding, %v %% overflow, want 3, 50 and 20", slots, padding, overflow)
	}
}

// A row never stands for another rule than its name says: a rule that is none is a defect, not solve's own choice.
func TestTieredByAKnownRule(t *testing.T) {
	for _, test := range []struct {
		rule, model string
		known       bool
	}{{"paper", "phi-3.5-moe", true}, {"papers", "phi-3.5-moe", false}, {"paper", "llama-3.2-1b", false}} {
		model, err := models.Open(test.model)
		if err != nil {
			t.Fatal(err)
		}
		known := func() (known bool) {
			defer func() { known = recover() == nil }()
			in := solver.Input{Model: model}
			tiered(test.rule)(&in)
			return true
		}()
		if known != test.known {
			t.Errorf("rule %q with the routing of %s is taken: %v, want %v", test.rule, test.model, known, test.known)
		}
		model.Close()
	}
}

// Routing of the text that was profiled is what the plan expects; that of a text of another kind is said to be stale.
func TestRoutingOfAnotherText(t *testing.T) {
	require.Slow(t)
	stale := map[string]float64{}
	for _, item := range of("npumoe") {
		if item.Name != "executed" {
			continue
		}
		for _, row := range rowsOf(t, item) {
			if name, ok := strings.CutSuffix(row.ID, "/stale_layers"); ok {
				stale[strings.TrimPrefix(name, "npumoe/executed/")] = row.Ours.(float64)
			}
		}
	}
	for _, soc := range []string{"apple-m2-max", "apple-m2-ultra"} {
		same, other := stale[soc+"/paper/same_text"], stale[soc+"/paper/other_text"]
		if same != 0 || other < 1 {
			t.Errorf("%s: %v layers are stale on the profiled text and %v on another, want none and some", soc, same,
				other)
		}
	}
}
