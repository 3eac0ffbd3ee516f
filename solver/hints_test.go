package solver

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/workload"
)

// TestHintsArePossible looks whether what a hint asks for is something that the model has.
func TestHintsArePossible(t *testing.T) {
	for name, test := range map[string]struct {
		workload     workload.Workload
		want, refuse string
	}{
		"a prompt beyond the model": {workload.Workload{Prompts: workload.Prompts{{Tokens: 1000, Share: 1}}},
			"the model has 512 positions: shorten the prompt to that", "at least 1000"},
		"a prompt beyond the context": {workload.Workload{Context: 100,
			Prompts: workload.Prompts{{Tokens: 400, Share: 1}}},
			"set context to at least 400 (the model has 512 positions)", "shorten"},
		"a bucket beyond the model": {workload.Workload{Buckets: workload.Rows{1024}},
			"the model has 512 positions: shorten the bucket to that", "at least 1024"},
		"a bucket beyond the context": {workload.Workload{Context: 100, Buckets: workload.Rows{256}},
			"set context to at least 256", "shorten"},
		"a context beyond the model": {workload.Workload{Context: 1000}, "at most 512", "at least"},
	} {
		_, err := test.workload.Apply(512)
		hints := strings.Join(diag.HintsOf(err), "; ")
		if err == nil || !strings.Contains(hints, test.want) || strings.Contains(hints, test.refuse) {
			t.Errorf("%s: %v: %q, want %q and not %q", name, err, hints, test.want, test.refuse)
		}
	}
}
