package solver

import (
	"math"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/price"
)

// A product that ends with a gated linear unit is predicted to take its share of both, less a launch, where their
// processor joins them.
func TestWorkOfGatedProducts(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C), Workload: permit(op.A8TQ8C)}
	in.Costs.Gated = gatedShares(t, soc.Control, model, op.A8TQ8C)
	if len(in.Costs.Gated) == 0 {
		t.Fatal("the model has no gated product")
	}
	known := in.Costs.Gated[0]
	product := op.Op{Kind: op.MatMul, M: 16, K: known.K, N: known.N, Scheme: known.Scheme, Bias: known.Bias}
	unit := op.Op{Kind: op.GLU, M: 16, N: known.N / 2, Interleave: 16, Act: known.Act}
	graph := op.Gated(product, unit, "n32")
	session := prepared(t, in)

	work := func(fuses bool) stepWork {
		proc := planir.Proc{Name: soc.Control}
		proc.FusesGLU = fuses
		of, err := session.graphWork(&proc, &graph, call{rows: 16, context: 16})
		if err != nil {
			t.Fatal(err)
		}
		return of
	}
	apart, joined := work(false), work(true)
	if half := apart.NS / 2; joined.NS < half-2 || joined.NS > half {
		t.Errorf("got %d ns, want half of %d", joined.NS, apart.NS)
	}
	sum := func(of stepWork) (ns float64) {
		for i := range of.phases {
			ns += of.phases[i].NS()
		}
		return ns
	}
	if got, want := sum(joined), sum(apart)/2; math.Abs(got/want-1) > 1e-6 {
		t.Errorf("phases take %v ns, want %v", got, want)
	}
}

// Two lanes, two layers, worked out by hand: a step waits for the hand-over of a flag only if the flag
// was not seen long before, and lanes meet at the end of a section.
func TestTimeline(t *testing.T) {
	flag := func(n int) *int { return &n }
	steps := map[string]int64{"first": 10, "other": 5, "beside": 3, "last": 1, "alone": 4}
	ph := &planir.PhaseProgram{Sections: []planir.Section{
		{Name: "layers", Layers: 2, Flags: 3, Lanes: []planir.Lane{
			{Proc: "a", Steps: []planir.Step{
				{Node: "first", Wait: []planir.Wait{{Flag: 2, Back: true}}, Set: flag(0)},
				{Node: "beside"},
				{Node: "last", Wait: []planir.Wait{{Flag: 1}}, Set: flag(2)},
			}},
			{Proc: "b", Steps: []planir.Step{{Node: "other", Wait: []planir.Wait{{Flag: 0}}, Set: flag(1)}}},
		}},
		{Name: "head", Lanes: []planir.Lane{{Proc: "a", Steps: []planir.Step{{Node: "alone"}}}}},
	}}
	// Layer 0: first 0-10, beside 10-13; other 12-17 (hand-over 2); last 19-20. Layer 1 the same from 20. Flag 2 is
	// waited for by the lane that sets it, without a hand-over. Lane b starts 2 later, which nobody notices, and has
	// ended long before 40.
	of := map[stepKey]stepWork{}
	for _, s := range ph.Sections {
		for _, l := range s.Lanes {
			for _, st := range l.Steps {
				ns := steps[st.Node]
				of[stepKey{l.Proc, st.Node, "", 0}] = stepWork{[]timeline.Phase{{ComputeNS: float64(ns)}},
					price.Estimate{NS: ns, Low: ns, High: 2 * ns}}
			}
		}
	}
	walks := func(thread func(string) string, handover float64, pick func(price.Estimate) int64) (out []int64) {
		m := timeline.Machine{Handover: func(string, string) float64 { return handover }}
		for i, sec := range timelineSections(ph, "a", thread, func(string) float64 { return 0 }) {
			ns, ok := timeline.Walk(&m, &sec, assumeTimes(&ph.Sections[i], of, pick))
			if !ok {
				t.Fatal("a circle")
			}
			out = append(out, ns)
		}
		return out
	}
	own := func(lane string) string { return lane }
	expected := func(e price.Estimate) int64 { return e.NS }
	if got := walks(own, 2, expected); !slices.Equal(got, []int64{40, 4}) {
		t.Errorf("sections %v, want 40 and 4", got)
	}
	if got := walks(own, 2, func(e price.Estimate) int64 { return e.High }); !slices.Equal(got, []int64{2 * 36, 8}) {
		t.Errorf("with twice the times, sections %v, want 72 and 8", got)
	}
	// On one thread everything is done in turn: 10+3+5+1 a layer.
	if got := walks(func(string) string { return "a" }, 0, expected); !slices.Equal(got, []int64{38, 4}) {
		t.Errorf("on one thread: sections %v, want 38 and 4", got)
	}
}
