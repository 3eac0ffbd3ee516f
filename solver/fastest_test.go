package solver

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// No single operator, moved to the cheapest choice of another kind, makes the timeline of a program shorter.
func TestNoMoveIsFaster(t *testing.T) {
	require.Slow(t)
	moves := 0
	for _, name := range []string{"../testdata/models/tiny-llama-kjv", "../testdata/arch/phi-partial"} {
		model, soc := open(t, name), coresAndNPU(t)
		w := small(model, op.A8TQ8C)
		ses := prepared(t, Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, w), Workload: w})
		plan, err := ses.completePlan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, rows := range ses.want.Rows() {
			pr, err := ses.program(rows, ses.assigned(rows))
			if err != nil {
				t.Fatal(err)
			}
			best, err := ses.timelineNS(plan, rows)
			if err != nil {
				t.Fatal(err)
			}
			best += pr.idleNS(plan)
			for _, in := range pr.instances {
				for n := range in.candidates {
					node := in.section.Nodes[n].Name
					for _, c := range cheapestOfKinds(in.candidates[n]) {
						other := *plan
						decisions := make([][]planir.Decision, len(ses.want.Rows()))
						for k, r := range ses.want.Rows() {
							x, err := ses.program(r, ses.assigned(r))
							if err != nil {
								t.Fatal(err)
							}
							decisions[k] = x.decisionsIn(plan)
						}
						at := slices.IndexFunc(decisions[i], func(d planir.Decision) bool { return d.Node == node })
						decisions[i][at] = in.candidates[n][c].Decision
						if err := ses.lowerDecisions(&other, decisions); err != nil {
							t.Fatal(err)
						}
						ns, err := ses.timelineNS(&other, rows)
						if err != nil {
							t.Fatal(err)
						}
						moves++
						if ns += pr.idleNS(&other); ns < best {
							t.Errorf("%s, %s: %d ns, and %d with %s@%d as %s", name, pr.name, best, ns, node, rows,
								in.candidates[n][c].ShareText())
						}
					}
				}
			}
		}
	}
	if moves < 100 {
		t.Errorf("%d moves: the cases test little", moves)
	}
}
