package runcmd

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
)

// Counts of routed rows are shown by layer, and layers whose routing is not what the plan was made for are named.
func TestStatsOfExperts(t *testing.T) {
	layers := []expertStats{
		{Program: "prefill@64", Layer: 3, Routed: 128, Moved: 96, Dropped: 7, Padded: 32, OverflowRate: 0.0547, ExpectOverflow: 0.01, Drift: 0.2, Stale: true},
		{Program: "prefill@64", Layer: 4, Routed: 128, Moved: 128},
	}
	for stale, want := range map[bool]string{true: "in 1 of 2 layers routing is not what the plan was made for", false: ""} {
		var out bytes.Buffer
		layers[0].Stale = stale
		(&stats{Experts: layers}).printExperts(&cli.Streams{Tool: "hetrun", Out: &out, Err: io.Discard})
		fields := strings.Fields(strings.Split(out.String(), "\n")[2])
		if got := strings.Join(fields, " "); got != "prefill@64 3 128 96 5.5 1.0 7 32 20.0" {
			t.Errorf("the first layer is shown as %q", got)
		}
		if hint := strings.Contains(out.String(), "hetc loads --text"); hint != stale || !strings.Contains(out.String(), want) {
			t.Errorf("stale: %v, and it says %q", stale, out.String())
		}
	}
	var out bytes.Buffer
	if (&stats{}).printExperts(&cli.Streams{Tool: "hetrun", Out: &out, Err: io.Discard}); out.Len() > 0 {
		t.Errorf("without tiers it says %q", out.String())
	}
}
