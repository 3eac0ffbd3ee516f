package planir_test

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

// inFlightPlan is a plan with attention on one core and products on another, and two chunks in flight, of which the
// second is a part of a layer behind the first.
func inFlightPlan(t testing.TB) *planir.Plan {
	t.Helper()
	plan := build(t, op.A32W32, []int{1, 16}, func(decision *planir.Decision) {
		if decision.Node != "layers.attention" {
			decision.Shares = []planir.Share{{Proc: "b"}}
		}
	})
	tasks, err := lower.Tasks(plan, graph(t), 16)
	if err != nil {
		t.Fatal(err)
	}
	order := planir.ChunkOrder{Section: "layers", Starts: []int{0, 2}}
	count := len(tasks["layers"])
	order.Turns = slices.Concat(slices.Repeat([]int{1}, count-2), slices.Repeat([]int{0}, count), []int{1, 1})
	plan.InFlight = &planir.InFlight{Rows: 16, Chunks: 2, By: "exact", Orders: []planir.ChunkOrder{order}}
	if err := lower.Lower(plan, graph(t)); err != nil {
		t.Fatal(err)
	}
	return plan
}

// layersOf is the lane of a processor in the section of layers of the program in flight.
func layersOf(plan *planir.Plan, proc string) *planir.Lane {
	for i := range plan.Program.InFlight[0].Sections {
		if section := &plan.Program.InFlight[0].Sections[i]; section.Layers > 0 {
			for j := range section.Lanes {
				if section.Lanes[j].Proc == proc {
					return &section.Lanes[j]
				}
			}
		}
	}
	return nil
}

// inFlightFaults break P031, or the rule named, each by one change of inFlightPlan.
var inFlightFaults = map[string]struct {
	rule   string
	mutate func(p *planir.Plan)
}{
	"attention of the second chunk before the cache of the first": {"P031", func(p *planir.Plan) {
		// Both are on one lane, where no flag is missing: the chunks' rows are exchanged.
		for i := range layersOf(p, "a").Steps {
			step := &layersOf(p, "a").Steps[i]
			step.R0 = 16 - step.R0
		}
	}},
	"the end of a layer behind the start of the next": {"P031", func(p *planir.Plan) {
		lane := layersOf(p, "b")
		for i := len(lane.Steps) - 1; ; i-- {
			if lane.Steps[i].R0 == 0 {
				lane.Steps[i].Behind = 1
				return
			}
		}
	}},
	"a step of another layer": {"P010", func(p *planir.Plan) {
		lane := layersOf(p, "b")
		for i := range lane.Steps {
			if lane.Steps[i].Behind > 0 {
				lane.Steps[i].Behind = 0
				return
			}
		}
	}},
	"chunks of nothing":     {"P031", func(p *planir.Plan) { p.InFlight = nil }},
	"an unknown rule":       {"P031", func(p *planir.Plan) { p.InFlight.By = "dice" }},
	"one chunk":             {"P031", func(p *planir.Plan) { p.InFlight.Chunks = 1 }},
	"more chunks":           {"P031", func(p *planir.Plan) { p.InFlight.Chunks = 3 }},
	"chunks of no program":  {"P031", func(p *planir.Plan) { p.InFlight.Rows = 8 }},
	"no program":            {"P002", func(p *planir.Plan) { p.Program.InFlight = nil }},
	"too few tokens":        {"P031", func(p *planir.Plan) { shiftDecider(p, -1) }},
	"of decode":             {"P014", func(p *planir.Plan) { p.Program.InFlight[0].Phase = "decode" }},
	"a layer before others": {"P001", func(p *planir.Plan) { layersOf(p, "b").Steps[0].Behind = -1 }},
	"two layers behind":     {"P001", func(p *planir.Plan) { layersOf(p, "b").Steps[0].Behind = 2 }},
	"an ordinary program a layer behind": {"P031", func(p *planir.Plan) {
		for i := range p.Program.Programs[1].Sections {
			section := &p.Program.Programs[1].Sections[i]
			for j := range section.Lanes {
				for k := range section.Lanes[j].Steps {
					if section.Layers > 0 {
						section.Lanes[j].Steps[k].Behind = 1
					}
				}
			}
		}
	}},
}

// shiftDecider moves where prompts of several chunks begin.
func shiftDecider(plan *planir.Plan, by int) {
	last := len(plan.Program.Decider) - 1
	plan.Program.Decider[last].Min += by
	plan.Program.Decider[last-1].Max += by
}

// Chunks in flight have rows of their own in the buffers of the plan, which count, and the graphs and weights of one.
func TestInFlightIsLegal(t *testing.T) {
	plan := inFlightPlan(t)
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}
	alone := *plan
	alone.InFlight = nil
	if err := lower.Lower(&alone, graph(t)); err != nil {
		t.Fatal(err)
	}
	two, one := planir.MemoryOf(plan), planir.MemoryOf(&alone)
	if two.Weights != one.Weights || two.Pool <= one.Pool*3/2 || two.Pool > 2*one.Pool {
		t.Errorf("%d bytes of weights and %d of buffers, want %d, and twice %d", two.Weights, two.Pool, one.Weights,
			one.Pool)
	}
	if last := plan.Program.Decider[len(plan.Program.Decider)-1]; last.Min != 32 || last.Max != 64 ||
		last.Program != "prefill@16x2" {
		t.Errorf("decider %+v, want prefill@16x2 from 32 tokens on", plan.Program.Decider)
	}
	data, err := planir.Encode(plan)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := planir.Decode(data); err != nil || planir.Dump(again) != planir.Dump(plan) {
		t.Errorf("a plan that is read again differs: %v", err)
	}
}

// Decisions that no program follows from are refused when they are lowered.
func TestInFlightRefuses(t *testing.T) {
	for name, change := range map[string]func(f *planir.InFlight){
		"one chunk":            func(f *planir.InFlight) { f.Chunks = 1 },
		"beyond the context":   func(f *planir.InFlight) { f.Chunks = 5 },
		"no such program":      func(f *planir.InFlight) { f.Rows = 8 },
		"no such section":      func(f *planir.InFlight) { f.Orders[0].Section = "other" },
		"a section of one":     func(f *planir.InFlight) { f.Orders[0].Section = "head" },
		"too few turns":        func(f *planir.InFlight) { f.Orders[0].Turns = f.Orders[0].Turns[1:] },
		"a turn of nobody":     func(f *planir.InFlight) { f.Orders[0].Turns[0] = 2 },
		"too many of one":      func(f *planir.InFlight) { f.Orders[0].Turns[0] = 1 - f.Orders[0].Turns[0] },
		"starts of one":        func(f *planir.InFlight) { f.Orders[0].Starts = []int{0} },
		"a start with nothing": func(f *planir.InFlight) { f.Orders[0].Starts[1] = 99 },
	} {
		t.Run(name, func(t *testing.T) {
			plan := inFlightPlan(t)
			change(plan.InFlight)
			if err := lower.Lower(plan, graph(t)); err == nil {
				t.Error("it is lowered")
			}
		})
	}
}

// An order in which a chunk attends before the one before it has written the cache is lowered, and is illegal.
func TestInFlightKeepsTheOrderOfTheCache(t *testing.T) {
	plan := inFlightPlan(t)
	order := &plan.InFlight.Orders[0]
	order.Starts[1] = 0
	slices.Sort(order.Turns)
	for _, reversed := range []bool{false, true} {
		if reversed {
			slices.Reverse(order.Turns)
		}
		if err := lower.Lower(plan, graph(t)); err != nil {
			t.Fatal(err)
		}
		found := planir.Check(plan)
		if illegal := len(found) > 0 && found[0].Code == "P031"; illegal != reversed {
			t.Errorf("the second chunk first: %v, found %v", reversed, found)
		}
	}
}
