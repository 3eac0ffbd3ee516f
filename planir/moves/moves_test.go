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
	all := func(n, c0, c1 int) []planir.View { // of an operand that travels
		if n == 0 {
			return nil
		}
		return []planir.View{{R1: n, C0: c0, C1: c1}}
	}
	for _, test := range []struct {
		place       Place
		fetch, hand [][]planir.View
	}{
		{Place{1, 1, 0, 0}, [][]planir.View{all(4, 0, 8)}, [][]planir.View{nil}}, // what the host has embedded
		{Place{1, 1, 1, 0}, [][]planir.View{nil}, [][]planir.View{nil}},
		// the host's half, and what the host reads in layer 1
		{Place{1, 1, 2, 0}, [][]planir.View{all(4, 0, 4), nil}, [][]planir.View{all(4, 0, 8)}},
		{Place{1, 1, 0, 1}, [][]planir.View{nil}, [][]planir.View{nil}}, // it has written that itself
		{Place{1, 1, 2, 1}, [][]planir.View{all(4, 0, 4), nil}, [][]planir.View{nil}},
		{Place{2, 0, 0, 0}, [][]planir.View{nil}, [][]planir.View{all(1, 0, 8)}}, // logits
	} {
		call := got[test.place]
		if call == nil || !sameParts(call.Fetch, test.fetch) {
			t.Errorf("%+v: %+v, want to fetch %v", test.place, call, test.fetch)
		} else if !sameParts(call.Hand, test.hand) {
			t.Errorf("%+v hands over %v, want %v", test.place, call.Hand, test.hand)
		}
	}
	if len(got) != 7 {
		t.Errorf("%d calls of the device, want 7", len(got))
	}
}

// sameParts compares what travels, whatever the buffers are called.
func sameParts(got, want [][]planir.View) bool {
	return slices.EqualFunc(got, want, func(a, b []planir.View) bool {
		return slices.EqualFunc(a, b, func(x, y planir.View) bool {
			x.Buffer, y.Buffer = "", ""
			return x == y
		})
	})
}

// What is handed over and fetched are the rows and columns that something else reads, each once, as few rectangles: of
// rows that three readers share, of a rectangle in the middle, and of neighbours that two steps wrote.
func TestParts(t *testing.T) {
	view := func(buffer string, r0, r1, c0, c1 int) planir.View {
		return planir.View{Buffer: buffer, R0: r0, R1: r1, C0: c0, C1: c1}
	}
	step := func(in, out []planir.View) planir.Step { return planir.Step{In: in, Out: out} }
	list := func(views ...planir.View) []planir.View { return views }
	flag := func(n int) *int { return &n }
	gpu := []planir.Step{
		step(list(view(planir.IDs, 0, 8, 0, 1)), list(view("x", 0, 8, 0, 8))),
		step(list(view("y", 0, 8, 0, 8)), list(view("z", 0, 8, 0, 8))),
		step(list(view("y", 2, 6, 2, 6)), list(view("z", 0, 8, 0, 8))),
	}
	gpu[0].Set, gpu[1].Wait = flag(0), []planir.Wait{{Flag: 1}}
	cpu := []planir.Step{
		step(list(view("x", 0, 3, 0, 8)), list(view("y", 0, 8, 0, 4))), // rows of x
		step(list(view("x", 3, 5, 0, 8)), list(view("y", 0, 8, 4, 8))), // their neighbours
		step(list(view("x", 0, 5, 0, 8), view("x", 6, 8, 2, 3)), list(view("w", 0, 8, 0, 8))),
	}
	cpu[0].Wait, cpu[1].Set = []planir.Wait{{Flag: 0}}, flag(1)
	phase := &planir.PhaseProgram{Rows: 8, Sections: []planir.Section{{Name: "all", Flags: 2, Lanes: []planir.Lane{
		{Proc: "gpu", Steps: gpu}, {Proc: "cpu", Steps: cpu}}}}}
	got := Of(&planir.Plan{}, phase, func(proc string) int {
		if proc == "gpu" {
			return 1
		}
		return 0
	})
	want := [][2][]planir.View{ // what each step of the GPU fetches and hands over
		{list(view(planir.IDs, 0, 8, 0, 1)), list(view("x", 0, 5, 0, 8), view("x", 6, 8, 2, 3))},
		{list(view("y", 0, 8, 0, 8)), nil},
		{nil, nil},
	}
	for number, parts := range want {
		call := got[Place{0, 0, number, 0}]
		if call == nil {
			t.Fatalf("step %d is no call of the device", number)
		}
		if !sameParts(call.Fetch, parts[:1]) || !sameParts(call.Hand, parts[1:]) {
			t.Errorf("step %d fetches %v and hands over %v, want %v", number, call.Fetch, call.Hand, parts)
		}
	}
}
