package exact

import (
	"testing"

	"github.com/hetc/hetc/solver/problem"
)

// A chain that does not follow itself has one start, which whoever goes through the chain later finds too.
func TestRankKeepsItsStarts(t *testing.T) {
	s := newChain(&problem.Chain{Repeat: 1,
		Items: []problem.Item{{Before: []string{"a"}, After: []string{"a"}, Choices: []problem.Choice{{CostNS: 1}}}}})
	if got := s.rank(); len(got) != 1 || len(s.starts) != 1 {
		t.Fatalf("%d starts, and %d kept, want one", len(got), len(s.starts))
	}
}
