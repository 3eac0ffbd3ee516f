package problem_test

import (
	"math"
	"strings"
	"testing"

	"github.com/hetc/hetc/solver/problem"
)

// valid is a small valid instance: three layers of two operators on two processors.
func valid() *problem.Partition {
	item := func(name string) problem.Item {
		return problem.Item{
			Name: name, Before: []string{"whole a", "whole b"}, After: []string{"whole a", "whole b"},
			Choices: []problem.Choice{
				{Label: "single a", Procs: []int{0}, CostNS: 10},
				{Label: "single b", Procs: []int{1}, CostNS: 7, Before: 1, After: 1},
			},
			EdgeNS: [][]int64{{0, 2}, {3, 0}},
		}
	}
	return &problem.Partition{Name: "decode", Procs: []string{"a", "b"},
		Chains: []problem.Chain{{Name: "layers", Repeat: 3, Items: []problem.Item{item("norm"), item("qkv")}}}}
}

// The objective of choices is what they and their hand-overs cost, by hand.
func TestObjective(t *testing.T) {
	partition := valid()
	if err := partition.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		choices []int
		want    int64
	}{
		{[]int{0, 0}, 3 * 20},
		{[]int{1, 1}, 3 * 14},
		{[]int{0, 1}, 3*(10+2+7) + 2*3}, // b to a between repetitions
		{[]int{1, 0}, 3*(7+3+10) + 2*2},
	} {
		if got := partition.ObjectiveNS([][]int{test.choices}); got != test.want {
			t.Errorf("choices %v cost %d ns, want %d", test.choices, got, test.want)
		}
	}

	partition.Chains[0].Breaks = 1 // of two hand-overs from b to a between repetitions one is left
	if got, want := partition.ObjectiveNS([][]int{{0, 1}}), int64(3*(10+2+7)+3); got != want {
		t.Errorf("with a break: %d ns, want %d", got, want)
	}
}

// Instances that are not valid are refused with what is wrong.
func TestValidateRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*problem.Partition)
		want   string
	}{
		"no chains": {func(p *problem.Partition) { p.Chains = nil }, "0 chains"},
		"chain twice": {func(p *problem.Partition) { p.Chains = append(p.Chains, p.Chains[0]) },
			`"layers" is empty or appears twice`},
		"no repetition":      {func(p *problem.Partition) { p.Chains[0].Repeat = 0 }, "repeat is 0"},
		"no items":           {func(p *problem.Partition) { p.Chains[0].Items = nil }, "0 items"},
		"no processors":      {func(p *problem.Partition) { p.Procs = nil }, "0 processors"},
		"processor twice":    {func(p *problem.Partition) { p.Procs[1] = "a" }, `"a" is empty or appears twice`},
		"conflict with self": {func(p *problem.Partition) { p.Conflicts = [][2]int{{1, 1}} }, "conflict between"},
		"unknown conflict":   {func(p *problem.Partition) { p.Conflicts = [][2]int{{0, 2}} }, "conflict between"},
		"item twice": {func(p *problem.Partition) { p.Chains[0].Items[1].Name = "norm" },
			`"norm" is empty or appears twice`},
		"no choices": {func(p *problem.Partition) { p.Chains[0].Items[1].Choices = nil }, "no choices"},
		"choice twice": {func(p *problem.Partition) { p.Chains[0].Items[1].Choices[1].Label = "single a" },
			"appears twice"},
		"negative cost": {func(p *problem.Partition) { p.Chains[0].Items[0].Choices[0].CostNS = -1 }, "-1 ns"},
		"huge cost": {func(p *problem.Partition) { p.Chains[0].Items[0].Choices[0].CostNS = math.MaxInt64 },
			"want 0.."},
		"class out of range": {func(p *problem.Partition) { p.Chains[0].Items[0].Choices[0].After = 2 },
			"do not exist"},
		"no processor": {func(p *problem.Partition) { p.Chains[0].Items[0].Choices[0].Procs = nil },
			"no processor"},
		"processor order": {func(p *problem.Partition) { p.Chains[0].Items[0].Choices[0].Procs = []int{1, 0} },
			"ascending"},
		"class twice": {func(p *problem.Partition) { p.Chains[0].Items[0].After[1] = "whole a" },
			"appears twice"},
		"missing edges": {
			func(p *problem.Partition) { p.Chains[0].Items[1].EdgeNS = p.Chains[0].Items[1].EdgeNS[:1] },
			"edges from 1 classes"},
		"short edges": {func(p *problem.Partition) { p.Chains[0].Items[1].EdgeNS[0] = []int64{1} },
			"to 1 classes"},
		"negative edge":        {func(p *problem.Partition) { p.Chains[0].Items[1].EdgeNS[0][0] = -5 }, "-5 ns"},
		"edges without wrap":   {func(p *problem.Partition) { p.Chains[0].Repeat = 1 }, "never follows itself"},
		"edges without follow": {func(p *problem.Partition) { p.Chains[0].Breaks = 2 }, "never follows itself"},
		"breaks everywhere":    {func(p *problem.Partition) { p.Chains[0].Breaks = 3 }, "3 breaks between 3"},
		"breaks out of range":  {func(p *problem.Partition) { p.Chains[0].Breaks = -1 }, "-1 breaks"},
		"repeat out of range":  {func(p *problem.Partition) { p.Chains[0].Repeat = 1 << 20 }, "repeat is"},
		"sum out of range": {func(partition *problem.Partition) {
			partition.Chains[0].Repeat = problem.MaxRepeat
			for len(partition.Chains[0].Items) < 100 {
				it := partition.Chains[0].Items[1]
				it.Name = strings.Repeat("x", len(partition.Chains[0].Items))
				it.Choices = []problem.Choice{{Label: "dear", Procs: []int{0}, CostNS: problem.MaxNS}}
				partition.Chains[0].Items = append(partition.Chains[0].Items, it)
			}
		}, "out of range"},
	} {
		partition := valid()
		test.change(partition)
		if err := partition.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// Answers that are not right are refused with what is wrong.
func TestVerifyRefuses(t *testing.T) {
	good := problem.Solution{Choices: [][]int{{1, 1}}, ObjectiveNS: 42, BoundNS: 42, Status: problem.Optimal}
	if err := valid().Verify(good); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*problem.Partition, *problem.Solution)
		want   string
	}{
		"too few choices": {func(_ *problem.Partition, s *problem.Solution) { s.Choices = [][]int{{1}} },
			"1 choices for 2"},
		"too few chains": {func(_ *problem.Partition, s *problem.Solution) { s.Choices = nil },
			"choices for 0 chains"},
		"no such choice": {func(_ *problem.Partition, s *problem.Solution) { s.Choices = [][]int{{1, 2}} },
			"no choice 2"},
		"wrong objective": {func(_ *problem.Partition, s *problem.Solution) { s.ObjectiveNS = 41 }, "choices cost 42"},
		"conflict": {func(p *problem.Partition, s *problem.Solution) {
			p.Conflicts, s.Choices = [][2]int{{0, 1}}, [][]int{{0, 1}}
		}, `uses "a" and "b"`},
		"bound above": {func(_ *problem.Partition,
			s *problem.Solution) {
			s.BoundNS = 43
			s.Status = problem.Feasible
		}, "bound 43"},
		"claimed proof": {func(_ *problem.Partition, s *problem.Solution) { s.BoundNS = 41 }, `status "optimal"`},
	} {
		partition, solution := valid(), good
		test.change(partition, &solution)
		if err := partition.Verify(solution); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
