package solver

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
)

// One function says what is proved of a plan, and an objective that is its bound never looks like a gap.
func TestProofOf(t *testing.T) {
	solve := func(status string, objective, bound int64) planir.Solve {
		return planir.Solve{Problem: "p", Status: status, ObjectiveNS: objective, BoundNS: bound}
	}
	for _, test := range []struct {
		name string
		list []planir.Solve
		want Proof
		says string
		not  string
	}{
		{"nothing", nil, Proof{}, "", "x"},
		{"all", []planir.Solve{solve("optimal", 5, 5), solve("optimal", 7, 7)}, Proof{Problems: 2, Proved: 2},
			"best of the candidates in every program", "as good"},
		{"tied", []planir.Solve{solve("optimal", 5, 5), solve(StatusTied, 7, 7)},
			Proof{Problems: 2, Proved: 2, Tied: 1}, "may be as good", "ruled out"},
		{"an older plan", []planir.Solve{solve("feasible", 7, 7)}, Proof{Problems: 1, Proved: 1, Tied: 1},
			"may be as good", "ended at its limit"},
		{"replaced", []planir.Solve{solve(StatusReplaced, 110, 100), solve("optimal", 7, 7)},
			Proof{Problems: 2, Proved: 2, Replaced: 1}, "1 program is executed by its best single processor",
			"ruled out"},
		{"faster", []planir.Solve{solve(StatusFaster, 110, 100), solve("optimal", 7, 7)}, Proof{Problems: 2, Proved: 2,
			Faster: 1}, "1 program is predicted to be faster with other decisions, and has those", "ruled out"},
		{"memory", []planir.Solve{{Problem: "joint memory", Status: "optimal", ObjectiveNS: 7, BoundNS: 7}},
			Proof{Problems: 1, Proved: 1, holds: true}, "predicted to hold less: that is proved", "in every program"},
		{"open", []planir.Solve{solve("feasible", 1000, 975), solve("optimal", 7, 7)},
			Proof{Problems: 2, Proved: 1, Open: 1, Gap: 0.025}, "up to 2.5 % better", "in every program"},
	} {
		got := ProofOf(test.list)
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
		if text := got.String(); !strings.Contains(text, test.says) || strings.Contains(text, test.not) {
			t.Errorf("%s: got %q, want %q in it, and not %q", test.name, text, test.says, test.not)
		}
	}
}
