package planir_test

import (
	"maps"
	"testing"

	"github.com/hetc/hetc/planir"
)

// Two operators of 10 ns, 4 of them a launch, are joined to a step that expects 20 ns in a section that takes 16.
func TestBusyCountsALaunchOnce(t *testing.T) {
	lane := func(proc string, ns ...int64) planir.Lane {
		out := planir.Lane{Proc: proc}
		for _, ns := range ns {
			out.Steps = append(out.Steps, planir.Step{ExpectNS: ns})
		}
		return out
	}
	program := planir.PhaseProgram{Name: "decode", Sections: []planir.Section{
		{Lanes: []planir.Lane{lane("cpu", 7)}},
		{Layers: 3, Lanes: []planir.Lane{lane("cpu", 20), lane("gpu", 5, 6), lane("npu")}},
	}}
	plan := &planir.Plan{}
	check := func(want map[string]int64) {
		t.Helper()
		if got := plan.BusyNS(&program); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check(map[string]int64{"cpu": 67, "gpu": 33}) // nothing is predicted
	plan.Predictions = []planir.Prediction{{Program: "prefill@64"}, {Program: "decode", PlanNS: 56,
		Sections: []planir.SectionTime{{Section: "embed", NS: 8}, {Section: "layers", NS: 16}}}}
	check(map[string]int64{"cpu": 55, "gpu": 33})
	plan.Predictions[1].PlanNS = 50 // programs whose sections overlap
	check(map[string]int64{"cpu": 50, "gpu": 33})
	plan.Predictions[1].Sections = nil
	check(map[string]int64{"cpu": 50, "gpu": 33})
}
