package solver

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// Of a processor whose kernels "columns" were measured at half the default's time for single rows, and at twice for
// many, the plan names "columns" in decode and nothing in prefill: in the decisions, and in the graphs of the program.
func TestVariantsFollowTheProfile(t *testing.T) {
	columns := op.KernelForm("columns")
	model := demo(t)
	soc := twoCores(t, 1)
	gpu := soc.Processor("c1")
	gpu.Forms = map[op.Scheme][]op.Form{op.A32W32: {columns}}
	rates := gpu.Sim.Schemes[op.A32W32]
	rates.Forms = map[op.Form]socs.SimForm{columns: {Gain: 2}}
	gpu.Sim.Schemes[op.A32W32] = rates

	costs := costs(t, soc, model, op.A32W32)
	for i := range costs.Families {
		family := &costs.Families[i]
		if family.Form != columns {
			continue
		}
		for j := range family.Curves {
			points := family.Curves[j].Points
			for k := range points {
				for at := 1; at < len(points[k]) && points[k][0] > 1; at++ {
					points[k][at] *= 4
				}
			}
		}
	}
	permitted := permit(op.A32W32)
	permitted.Buckets = []int{256}
	plan := solve(t, Input{Model: model, SoC: soc, Costs: costs, Workload: permitted, Only: []string{"c1"}}).Plan
	if found := check.Plan(plan, model, soc); len(found) > 0 {
		t.Errorf("the plan is not legal: %v", found)
	}

	products := map[bool]int{} // by whether they have one row
	for _, graph := range plan.Program.Graphs {
		for _, node := range graph.Graph.Nodes {
			if !node.Op.HasScheme() {
				continue
			}
			single := node.Op.M == 1
			products[single]++
			if named := node.Op.Form == columns; named != single {
				t.Errorf("%s: form %q, want %q for single rows alone", node.Op.Key(), node.Op.Form, columns)
			}
		}
	}
	if products[true] == 0 || products[false] == 0 {
		t.Fatalf("products of the plan by whether they have one row: %v", products)
	}
	at := slices.IndexFunc(plan.Decisions, func(d planir.Decision) bool {
		return d.Rows == 1 && d.Shares[0].Form == columns
	})
	if at < 0 || plan.Decisions[at].ShareText() != "c1 as kernel columns" {
		t.Fatalf("no decision names the kernels")
	}

	// A SoC that does not list the variant cannot execute the plan.
	gpu.Forms = nil
	text := ""
	for _, finding := range check.Plan(plan, model, soc) {
		text += finding.Error() + "\n"
	}
	if !strings.Contains(text, "forms is kernel columns") {
		t.Errorf("checked against a SoC without the variant: %q", text)
	}
}
