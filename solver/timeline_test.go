package solver

import (
	"testing"

	"github.com/hetc/hetc/planir"
)

// Two lanes, two layers, worked out by hand: a step waits for the hand-over of a flag only if the flag
// was not seen long before, and lanes meet at the end of a section.
func TestTimeline(t *testing.T) {
	flag := func(n int) *int { return &n }
	steps := map[string]int64{"first": 10, "other": 5, "beside": 3, "last": 1, "alone": 4}
	ph := &planir.Phase{Sections: []planir.Section{
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
	// Layer 0: first 0-10, beside 10-13; other 12-17 (hand-over 2); last 19-20. Layer 1 the same from 20.
	// Flag 2 is waited for by the lane that sets it, without a hand-over.
	own := func(lane string) string { return lane }
	total, sections := timeline(ph, own,
		func(_ string, st *planir.Step) int64 { return steps[st.Node] },
		func(from, to string) int64 {
			if from == to {
				return 0
			}
			return 2
		})
	if len(sections) != 2 || sections[0] != 40+2 || sections[1] != 4+2 || total != 48 {
		t.Errorf("total %d, sections %v, want 48 of 42 and 6", total, sections)
	}
	// On one thread everything is done in turn: 10+3+5+1 a layer.
	total, sections = timeline(ph, func(string) string { return "a" }, func(_ string, st *planir.Step) int64 { return steps[st.Node] }, func(string, string) int64 { return 0 })
	if len(sections) != 2 || sections[0] != 38 || sections[1] != 4 || total != 42 {
		t.Errorf("on one thread: total %d, sections %v, want 42 of 38 and 4", total, sections)
	}
}
