package diff

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
)

func examplePlan() *planir.Plan {
	p := &planir.Plan{MaxContext: 512}
	p.Model.Name, p.SoC.Name = "small", "board"
	p.Procs = []planir.Proc{{Name: "npu", Kind: "npu", Driver: "sim"}}
	p.Decisions = []planir.Decision{{Node: "layers.up", Rows: 64, Scheme: "a8t/q8c"}, {Node: "head", Rows: 1, Scheme: "a32/w32"}}
	p.Predictions = []planir.Prediction{{Program: "decode", PlanNS: 2e6}}
	return p
}

func TestPlans(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*planir.Plan)
		want   []difference
	}{
		{"alike", func(*planir.Plan) {}, nil},
		{"another context", func(p *planir.Plan) { p.MaxContext = 1024 }, []difference{{"plan", "context", "512", "1024"}}},
		{"a slower program", func(p *planir.Plan) { p.Predictions[0].PlanNS = 3e6 },
			[]difference{{"predictions", "decode", "2.000 ms", "3.000 ms (+50.0 %)"}}},
		{"a program less", func(p *planir.Plan) { p.Predictions = nil }, []difference{{"predictions", "decode", "2.000 ms", ""}}},
		{"capabilities that do not show", func(p *planir.Plan) { p.Procs[0].Cores = []int{1} },
			[]difference{{"processors", "npu", "other capabilities", "other capabilities"}}},
		{"decisions in the plan's order", func(p *planir.Plan) { p.Decisions[0].Scheme, p.Decisions[1].Scheme = "a", "b" },
			[]difference{{"decisions", "layers.up@64", "a8t/q8c", "a"}, {"decisions", "head@1", "a32/w32", "b"}}},
		{"memory that is new", func(p *planir.Plan) { p.Memory = &planir.Memory{Total: 1 << 20} },
			[]difference{{"memory", "total", "", "1 MiB"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := examplePlan()
			tt.change(b)
			if got := plans(examplePlan(), b); !slices.Equal(got, tt.want) {
				t.Errorf("got  %v\nwant %v", got, tt.want)
			}
		})
	}
}

func TestCaveats(t *testing.T) {
	a, b := examplePlan(), examplePlan()
	a.Model.Name = "other"
	if got := caveats(a, b); len(got) == 0 || got[0] != "the plans are for different models (other, small): only what has the same name is compared" {
		t.Errorf("got %q", got)
	}
	if got := caveats(a, nil); len(got) != 1 {
		t.Errorf("a plan that cannot be read: got %q, want one note", got)
	}
}
