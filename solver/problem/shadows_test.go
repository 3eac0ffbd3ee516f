package problem

import (
	"slices"
	"testing"
)

func TestPaperPrune(t *testing.T) {
	importance := []float64{3, 1, 2, 1, 9, 2.5}
	for share, want := range map[float64][]int{
		0: nil, 0.3: {1, 3}, 0.5: {1, 2, 3}, 0.85: {0, 1, 2, 3, 5}, 1: {0, 1, 2, 3, 4, 5},
	} {
		if got := PaperPrune(importance, share); !slices.Equal(got, want) {
			t.Errorf("share %v: pruned %v, want %v", share, got, want)
		}
	}
}

func TestShadowsRefused(t *testing.T) {
	good := func() *Shadows {
		return &Shadows{Groups: []ShadowGroup{{Options: []ShadowOption{{Cost: 3}, {Use: 2}}}}, Max: 2}
	}
	for name, change := range map[string]func(*Shadows){
		"no groups":  func(s *Shadows) { s.Groups = nil },
		"no options": func(s *Shadows) { s.Groups[0].Options = nil },
		"huge":       func(s *Shadows) { s.Groups[0].Options[0].Use = -1 << 50 },
	} {
		s := good()
		if change(s); s.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, solution := range map[string]ShadowSolution{
		"too few":       {Status: Feasible},
		"beyond":        {Options: []int{2}, Status: Feasible},
		"objective":     {Options: []int{0}, Objective: 2, Bound: 2, Status: Optimal},
		"bound":         {Options: []int{0}, Objective: 3, Bound: 2, Status: Optimal},
		"above the max": {Options: []int{1}, Status: Optimal},
	} {
		shadows := good()
		if name == "above the max" {
			shadows.Max = 1
		}
		if shadows.Verify(solution) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := good().Verify(ShadowSolution{Options: []int{1}, Status: Optimal}); err != nil {
		t.Error(err)
	}
}
