package solver

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// The plan says what the problem decided: groups, the expert in each slot, shares of rows and times.
func TestTiersInThePlan(t *testing.T) {
	p := problem.GenerateTiers(5, 3, 12, 4)
	p.MaxTiers = 2
	x := &TierInstance{Problem: p, NPU: "npu", CPU: "cpu", Schemes: []op.Scheme{op.A32W32, op.A32W32}, Rows: 1024,
		Loads: &workload.Loads{Source: "synthetic", Generator: "zipf:1", Experts: 12}, Layers: []int{0, 1, 5}}
	solution, err := exact.Engine{}.Tiers(t.Context(), p, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	out := x.Plan(solution)
	slots := 0
	for _, count := range solution.Slots {
		slots += count
	}
	if out == nil || out.Slots() != slots || slots == 0 {
		t.Fatalf("%+v, want %d slots", out, slots)
	}
	for i, layer := range out.Layers {
		at := 0
		for _, group := range out.Groups {
			if group.Slots > 8 {
				t.Errorf("a group of %d experts", group.Slots)
			}
			for _, expert := range layer.Slots[at : at+group.Slots] {
				if choice := solution.Choices[i][expert]; choice == 0 || p.Capacities[choice-1] != group.Rows {
					t.Errorf("layer %d: expert %d has choice %d, and a slot of %d rows", i, expert, choice, group.Rows)
				}
			}
			at += group.Slots
		}
		if !(layer.Moved > 0 && layer.Moved+layer.Overflow <= 1) {
			t.Errorf("layer %d: %v moved, %v beyond", i, layer.Moved, layer.Overflow)
		}
	}
	var sum int64
	for _, layer := range out.Layers {
		sum += layer.ExpectNS
	}
	graphs := int64(len(slices.Compact(slices.Clone(out.Groups)))) * p.ShapeNS
	if off := out.ExpectNS - sum - graphs; off < -2*int64(len(out.Layers)) || off > 2*int64(len(out.Layers))+graphs {
		t.Errorf("%d ns, and the layers take %d with %d for graphs", out.ExpectNS, sum, graphs)
	}
	found := planir.Check(&planir.Plan{Experts: []planir.ExpertTiers{*out}})
	for _, wrong := range found {
		if wrong.Code == "P018" {
			t.Error(wrong)
		}
	}
	none := problem.TierSolution{Slots: make([]int, 4), Choices: p.InOrder(make([]int, 4)), Objective: 1, Bound: 1}
	if x.Plan(none) != nil {
		t.Error("tiers without slots")
	}
}
