package solver

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// The plan says what the problem decided: choices, groups and times.
func TestTiersInThePlan(t *testing.T) {
	p := problem.GenerateTiers(5, 3, 12, 4)
	p.MaxTiers = 2
	x := &TierInstance{Problem: p, NPU: "npu", CPU: "cpu", Schemes: nil, Loads: &workload.Loads{Source: "synthetic", Generator: "zipf:1", Experts: 12}, Layers: []int{0, 1, 2}}
	var choices [][]int
	for range 3 {
		choices = append(choices, []int{0, 1, 3, 0, 1, 1, 3, 0, 0, 1, 1, 1})
	}
	tab := p.Table(0)
	s := problem.TierSolution{Choices: choices, Objective: tab.Of(problem.TierTime, tab.Total(choices)), Status: problem.Feasible}
	if err := p.Verify(s); err != nil {
		t.Fatal(err)
	}
	out := x.Plan(s)
	if !slices.Equal(out.Capacities, []int{16, 48}) || out.ExpectNS != s.Objective {
		t.Errorf("capacities %v, %d ns, want %d", out.Capacities, out.ExpectNS, s.Objective)
	}
	for i, y := range out.Layers {
		var groups int64
		tier := map[int]int{}
		for _, e := range y.Resident {
			tier[e] = 0
		}
		for _, g := range y.Groups {
			groups += g.ExpectNS
			if len(g.Experts) > 8 {
				t.Errorf("a group of %d experts", len(g.Experts))
			}
			for _, e := range g.Experts {
				tier[e] = slices.Index(p.Capacities, g.Rows) + 1
			}
			if g.NextNS <= 0 {
				t.Errorf("layer %d: the next best choice takes %d ns", i, g.NextNS)
			}
		}
		for e, k := range choices[i] {
			if tier[e] != k {
				t.Errorf("layer %d, expert %d: %d, want %d", i, e, tier[e], k)
			}
		}
		if c := tab.Layer(i, choices[i]); groups != c.NPUNS || y.ExpectNS != c.NS {
			t.Errorf("layer %d: groups take %d ns, layer %d, want %d and %d", i, groups, y.ExpectNS, c.NPUNS, c.NS)
		}
	}
	out.Schemes = append(out.Schemes, "a32/w32")
	if found := planir.Check(&planir.Plan{Tiers: out}); slices.ContainsFunc(found, func(d *diag.Diagnostic) bool { return d.Code == "P015" }) {
		t.Errorf("%v", found)
	}
}
