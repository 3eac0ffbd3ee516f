package moves

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
)

// A device works out half of a product whose other half the host computes, layer by layer: it fetches what the host has
// written and hands over what the host reads, once each, and nothing that only it uses.
func TestOf(t *testing.T) {
	view := func(buffer string, c0, c1 int) planir.View {
		return planir.View{Buffer: buffer, R1: 4, C0: c0, C1: c1}
	}
	flag := func(n int) *int { return &n }
	plan := &planir.Plan{Program: planir.Program{Buffers: []planir.Buffer{{Name: planir.Logits, Rows: 1, Cols: 8}}}}
	phase := &planir.PhaseProgram{Rows: 4, Sections: []planir.Section{
		{Name: "embed", Lanes: []planir.Lane{{Proc: "cpu", Steps: []planir.Step{
			{In: []planir.View{view(planir.IDs, 0, 1)}, Out: []planir.View{view("x", 0, 8)}}}}}},
		{Name: "layers", Layers: 2, Flags: 2, Lanes: []planir.Lane{
			{Proc: "cpu", Steps: []planir.Step{{In: []planir.View{view("x", 0, 8)}, Out: []planir.View{view("y", 0, 4)},
				Set: flag(0), Wait: []planir.Wait{{Flag: 1, Back: true}}}}},
			{Proc: "gpu", Steps: []planir.Step{
				{In: []planir.View{view("x", 0, 8)}, Out: []planir.View{view("y", 4, 8)}},
				{In: []planir.View{view("y", 4, 8)}, Out: []planir.View{view("own", 0, 4)}},
				{In: []planir.View{view("y", 0, 8), view("own", 0, 4)}, Out: []planir.View{view("x", 0, 8)},
					Wait: []planir.Wait{{Flag: 0}}, Set: flag(1)},
			}},
		}},
		{Name: "head", Lanes: []planir.Lane{{Proc: "gpu", Steps: []planir.Step{{In: []planir.View{view("x", 0, 8)},
			Out: []planir.View{{Buffer: planir.Logits, R1: 1, C1: 8}}}}}}},
	}}
	got := Of(plan, phase, func(proc string) int {
		if proc == "gpu" {
			return 1
		}
		return 0
	})
	for _, c := range []struct {
		place       Place
		fetch, hand []bool
	}{
		{Place{1, 1, 0, 0}, []bool{true}, []bool{true}}, // what the host has embedded; a view is fetched whole later
		{Place{1, 1, 1, 0}, []bool{false}, []bool{false}},
		{Place{1, 1, 2, 0}, []bool{true, false}, []bool{true}}, // the host's half; what the host reads in layer 1
		{Place{1, 1, 0, 1}, []bool{false}, []bool{true}},       // it has written that itself
		{Place{1, 1, 2, 1}, []bool{true, false}, []bool{false}},
		{Place{2, 0, 0, 0}, []bool{false}, []bool{true}}, // logits
	} {
		call := got[c.place]
		if call == nil || !slices.Equal(call.Fetch, c.fetch) {
			t.Errorf("%+v: %+v, want to fetch %v", c.place, call, c.fetch)
		} else if !slices.Equal(call.Hand, c.hand) {
			t.Errorf("%+v hands over %v, want %v", c.place, call.Hand, c.hand)
		}
	}
	if len(got) != 7 {
		t.Errorf("%d calls of the device, want 7", len(got))
	}
}
