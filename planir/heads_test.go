package planir_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

// pipelinePlan is a plan with sparse attention at 16 rows: b estimates the scores of the second key head, then of the
// first, while a selects positions and attends.
func pipelinePlan(t testing.TB) *planir.Plan {
	t.Helper()
	plan := build(t, op.A32W32, []int{1, 16}, nil)
	plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: "calibration"}}
	plan.Attention = &planir.Attention{Density: 0.25, Block: 4, Rows: []int{16}, Pipelines: []planir.HeadPipeline{{
		Node: "layers.attention", Rows: 16, By: planir.ByExact, Launches: []int{1, 0}, Turns: []int{1, 0},
		Densities: []float64{0.2, 0.3},
	}}}
	g := graph(t)
	list, err := lower.TrivialOf(plan, g, "a", []int{16}, func(string, int) op.Scheme { return op.A32W32 })
	if err != nil {
		t.Fatal(err)
	}
	plan.Decisions = slices.DeleteFunc(plan.Decisions, func(d planir.Decision) bool { return d.Rows == 16 })
	for _, decision := range list {
		if strings.HasPrefix(decision.Node, "layers.attention") && decision.Node != "layers.attention_append" {
			proc := "a"
			if strings.HasSuffix(decision.Node, "_estimate") {
				proc = "b"
			}
			decision.Strategy, decision.Axis = planir.WeightCentric, planir.AxisHeads
			decision.Shares = []planir.Share{{Proc: proc, To: 1}, {Proc: proc, From: 1, To: 2}}
		}
		if plan.DecisionFor(decision.Node, decision.Rows) == nil {
			plan.Decisions = append(plan.Decisions, decision)
		}
	}
	if err := lower.Lower(plan, g); err != nil {
		t.Fatal(err)
	}
	return plan
}

// pipelineSteps are the steps on a processor that estimate, select or attend.
func pipelineSteps(p *planir.Plan, proc string) (list []*planir.Step) {
	for _, section := range p.Program.Programs[1].Sections {
		for i := range section.Lanes {
			for j := range section.Lanes[i].Steps {
				step := &section.Lanes[i].Steps[j]
				stage := strings.HasPrefix(step.Node, "layers.attention") && step.Node != "layers.attention_append"
				if section.Lanes[i].Proc == proc && stage {
					list = append(list, step)
				}
			}
		}
	}
	return list
}

// pipelineFaults break P032, or the rule named, each by one change of pipelinePlan.
var pipelineFaults = map[string]struct {
	rule   string
	mutate func(p *planir.Plan)
}{
	"a dense program":            {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Rows = 1 }},
	"an unknown rule":            {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].By = "dice" }},
	"no such node":               {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Node = "layers.other" }},
	"a least that no step keeps": {"P030", func(p *planir.Plan) { p.Attention.Least = 256 }},
	"shares of other launches": {"P032",
		func(p *planir.Plan) { p.Attention.Pipelines[0].Estimated = []float64{0.5} }},
	"a share of no heads": {"P032",
		func(p *planir.Plan) { p.Attention.Pipelines[0].Estimated = []float64{0, 0.5} }},
	"a rest that nothing counts": {"P030", func(p *planir.Plan) { p.Attention.Rest = true }},
	"an undivided node":          {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Node = "layers.qkv" }},
	"a launch twice":             {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Launches = []int{0, 0} }},
	"a launch of nobody":         {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Launches = []int{0, 2} }},
	"a launch missing":           {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Launches = []int{0} }},
	"a turn too many":            {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Turns = []int{0, 1, 2} }},
	"launches in another order": {"P032",
		func(p *planir.Plan) { slices.Reverse(p.Attention.Pipelines[0].Launches) }},
	"turns in another order": {"P032", func(p *planir.Plan) { slices.Reverse(p.Attention.Pipelines[0].Turns) }},
	"a density for one turn": {"P032",
		func(p *planir.Plan) { p.Attention.Pipelines[0].Densities = []float64{0.2} }},
	"more than all positions": {"P032", func(p *planir.Plan) { p.Attention.Pipelines[0].Densities[1] = 1.5 }},
	"the same attention twice": {"P032",
		func(p *planir.Plan) { p.Attention.Pipelines = slices.Repeat(p.Attention.Pipelines, 2) }},
	"attention before its scores": {"P009", func(p *planir.Plan) { pipelineSteps(p, "a")[0].Wait = nil }},
	"attention before its cache":  {"P009", func(p *planir.Plan) { pipelineSteps(p, "b")[0].Wait = nil }},
	"heads of another launch":     {"P032", func(p *planir.Plan) { pipelineSteps(p, "b")[0].Heads = &[2]int{0, 1} }},
	"scores of another head": {"P010",
		func(p *planir.Plan) { steps := pipelineSteps(p, "b"); steps[0].Out = steps[1].Out }},
	"keys that another one caches": {"P003", func(p *planir.Plan) { p.Proc("b").OwnMemory = true }},
	"no positions for one of them": {"P010",
		func(p *planir.Plan) { steps := pipelineSteps(p, "a"); steps[0].Out = steps[2].Out }},
}

// A pipeline is a legal plan whose lanes execute the heads in its order, and which is read as it is written.
func TestHeadPipelineIsLegal(t *testing.T) {
	plan := pipelinePlan(t)
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}
	var heads [][2]int
	for _, step := range append(pipelineSteps(plan, "b"), pipelineSteps(plan, "a")...) {
		if step.Heads != nil {
			heads = append(heads, *step.Heads)
		}
	}
	if want := [][2]int{{1, 2}, {0, 1}, {1, 2}, {0, 1}}; !slices.Equal(heads, want) {
		t.Errorf("heads %v, want %v", heads, want)
	}
	data, err := planir.Encode(plan)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := planir.Decode(data); err != nil || planir.Dump(again) != planir.Dump(plan) ||
		len(again.Attention.Pipelines) != 1 {
		t.Errorf("a plan that is read again differs: %v", err)
	}
	golden.Equal(t, "txt", []byte(planir.Dump(plan)))
}

// Orders that do not fit the decisions are refused when they are lowered.
func TestHeadPipelineRefuses(t *testing.T) {
	for name, change := range map[string]func(p *planir.Plan, pipeline *planir.HeadPipeline){
		"a launch twice":   func(_ *planir.Plan, pipeline *planir.HeadPipeline) { pipeline.Launches = []int{1, 1} },
		"a launch missing": func(_ *planir.Plan, pipeline *planir.HeadPipeline) { pipeline.Launches = []int{0} },
		"a turn too many":  func(_ *planir.Plan, pipeline *planir.HeadPipeline) { pipeline.Turns = []int{0, 1, 2} },
		"too many densities": func(_ *planir.Plan, pipeline *planir.HeadPipeline) {
			pipeline.Densities = make([]float64,
				3)
		},
		"an estimate that is not divided": func(p *planir.Plan, _ *planir.HeadPipeline) {
			decision := p.DecisionFor("layers.attention_estimate", 16)
			decision.Axis, decision.Shares = planir.AxisNone, []planir.Share{{Proc: "b"}}
		},
		"a selection of other heads": func(p *planir.Plan, _ *planir.HeadPipeline) {
			decision := p.DecisionFor("layers.attention_select", 16)
			decision.Shares = []planir.Share{{Proc: "a", To: 2}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := pipelinePlan(t)
			change(plan, &plan.Attention.Pipelines[0])
			if err := lower.Lower(plan, graph(t)); err == nil {
				t.Error("it is lowered")
			}
		})
	}
}
