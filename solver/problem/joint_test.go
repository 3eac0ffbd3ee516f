package problem_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/solver/problem"
)

// validJoint is a small valid instance: two programs with shared weights and a graph.
func validJoint() *problem.Joint {
	decode, prefill := valid(), valid()
	prefill.Name = "prefill@64"
	for _, partition := range []*problem.Partition{decode, prefill} {
		for i := range partition.Chains[0].Items {
			choices := partition.Chains[0].Items[i].Choices
			for j := range choices {
				choices[j].EnergyNJ = int64(10 * (j + 1))
			}
		}
		partition.Chains[0].Items[1].Choices[1].Assets = []int{0}
	}
	prefill.Chains[0].Items[0].Choices[1].Assets = []int{0, 1}
	return &problem.Joint{
		Name:  "plan",
		Parts: []problem.Part{{Partition: decode, Weight: 2}, {Partition: prefill, Weight: 5}},
		Assets: []problem.Asset{{Name: "weights", Bytes: 100, OpenNS: 7},
			{Name: "graph", Bytes: 20, Graphs: 1, OpenNS: 1, Region: 1}},
		Regions: []problem.Region{{Name: "a"}, {Name: "b"}},
	}
}

// What choices take is added up by hand: time and energy with weights, what is opened once.
func TestJointUse(t *testing.T) {
	joint := validJoint()
	if err := joint.Validate(); err != nil {
		t.Fatal(err)
	}
	use := joint.Use([][][]int{{{0, 1}}, {{1, 1}}})
	time0, time1 := int64(3*(10+2+7)+2*3), int64(3*14)
	if want := []int64{time0, time1}; !slices.Equal(use.PartNS, want) || use.TimeNS != 2*time0+5*time1 {
		t.Errorf("times %v, sum %d, want %v", use.PartNS, use.TimeNS, want)
	}
	if want := int64(2*3*30 + 5*3*40); use.EnergyNJ != want {
		t.Errorf("energy %d nJ, want %d", use.EnergyNJ, want)
	}
	if !slices.Equal(use.Opened, []int{0, 1}) || use.Bytes != 120 || use.OpenNS != 8 {
		t.Errorf("opened %+v", use)
	}
	if !slices.Equal(use.RegionBytes, []int64{100, 20}) || !slices.Equal(use.RegionGraphs, []int64{0, 1}) {
		t.Errorf("regions %+v", use)
	}

	use = joint.Use([][][]int{{{0, 0}}, {{0, 0}}})
	if use.Opened != nil || use.Bytes != 0 || use.OpenNS != 0 {
		t.Errorf("nothing is needed: %+v", use)
	}
}

// Instances that are not valid are refused with what is wrong.
func TestJointValidateRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*problem.Joint)
		want   string
	}{
		"no parts":        {func(j *problem.Joint) { j.Parts = nil }, "0 parts"},
		"no partition":    {func(j *problem.Joint) { j.Parts[0].Partition = nil }, "no partition"},
		"bad partition":   {func(j *problem.Joint) { j.Parts[0].Partition.Procs = nil }, "0 processors"},
		"part twice":      {func(j *problem.Joint) { j.Parts[1].Partition.Name = "decode" }, `"decode" appears twice`},
		"weight":          {func(j *problem.Joint) { j.Parts[0].Weight = -1 }, "weight -1"},
		"part limit":      {func(j *problem.Joint) { j.Parts[0].MaxNS = -1 }, "at most -1 ns"},
		"measure":         {func(j *problem.Joint) { j.Minimise = "beauty" }, `measure "beauty"`},
		"asset twice":     {func(j *problem.Joint) { j.Assets[1].Name = "weights" }, "appears twice"},
		"region twice":    {func(j *problem.Joint) { j.Regions[1].Name = "a" }, "appears twice"},
		"region of asset": {func(j *problem.Joint) { j.Assets[1].Region = 2 }, "region 2 of 2"},
		"asset size":      {func(j *problem.Joint) { j.Assets[1].Bytes = -4 }, "-4 bytes"},
		"asset of choice": {
			func(j *problem.Joint) { j.Parts[0].Partition.Chains[0].Items[0].Choices[0].Assets = []int{2} },
			"assets [2]"},
		"asset order": {
			func(j *problem.Joint) { j.Parts[0].Partition.Chains[0].Items[0].Choices[0].Assets = []int{1, 0} },
			"assets [1 0]"},
		"energy": {func(j *problem.Joint) { j.Parts[0].Partition.Chains[0].Items[0].Choices[0].EnergyNJ = -1 },
			"-1 nJ"},
		"limit":        {func(j *problem.Joint) { j.MaxOpenNS = -1 }, "limit -1"},
		"region limit": {func(j *problem.Joint) { j.Regions[0].MaxGraphs = -1 }, "-1 graphs"},
		"sum out of range": {func(j *problem.Joint) {
			j.Parts[0].Weight, j.Parts[0].Partition.Chains[0].Items[0].Choices[0].CostNS = 1<<40, 1<<40
		}, "out of range"},
	} {
		joint := validJoint()
		test.change(joint)
		if err := joint.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// Answers that are not right are refused with what is wrong.
func TestJointVerifyRefuses(t *testing.T) {
	objective := int64((2 + 5) * 42)
	good := problem.JointSolution{Choices: [][][]int{{{1, 1}}, {{1, 1}}}, Objective: objective, Bound: objective,
		Status: problem.Optimal}
	if err := validJoint().Verify(good); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*problem.Joint, *problem.JointSolution)
		want   string
	}{
		"too few parts": {func(_ *problem.Joint, s *problem.JointSolution) { s.Choices = s.Choices[:1] },
			"choices for 1 parts"},
		"no such choice": {func(_ *problem.Joint, s *problem.JointSolution) {
			s.Choices = [][][]int{{{1, 2}}, {{1, 1}}}
		}, "no choice 2"},
		"wrong objective": {func(_ *problem.Joint, s *problem.JointSolution) { s.Objective--; s.Bound-- },
			"choices take 294"},
		"bound":         {func(_ *problem.Joint, s *problem.JointSolution) { s.Bound++ }, "bound 295"},
		"claimed proof": {func(_ *problem.Joint, s *problem.JointSolution) { s.Bound-- }, `status "optimal"`},
		"status":        {func(_ *problem.Joint, s *problem.JointSolution) { s.Status = "fine" }, `status "fine"`},
		"limit": {func(_ *problem.Joint, s *problem.JointSolution) { s.Status = problem.LimitReached },
			"with choices"},
		"part time": {func(j *problem.Joint, _ *problem.JointSolution) { j.Parts[1].MaxNS = 41 },
			`part "prefill@64": 42 ns, at most 41`},
		"time": {func(j *problem.Joint, _ *problem.JointSolution) { j.MaxTimeNS = 293 },
			"294 ns weighted, at most 293"},
		"energy": {func(j *problem.Joint, _ *problem.JointSolution) { j.MaxEnergyNJ = 839 }, "840 nJ"},
		"resident bytes": {func(j *problem.Joint, _ *problem.JointSolution) { j.MaxBytes, j.Resident = 120, 1 },
			"121 bytes in all, at most 120"},
		"open time": {func(j *problem.Joint, _ *problem.JointSolution) { j.MaxOpenNS = 7 }, "8 ns to open"},
		"region bytes": {func(j *problem.Joint, _ *problem.JointSolution) { j.Regions[0].MaxBytes = 99 },
			`region "a": 100 bytes`},
		"region graphs": {func(j *problem.Joint, _ *problem.JointSolution) {
			j.Assets[1].Graphs, j.Regions[1].MaxGraphs = 2, 1
		}, `region "b": 2 graphs`},
		"conflict": {func(j *problem.Joint, s *problem.JointSolution) {
			j.Parts[0].Partition.Conflicts, s.Choices = [][2]int{{0, 1}}, [][][]int{{{0, 1}}, {{1, 1}}}
		}, `part "decode": uses "a" and "b"`},
	} {
		joint, solution := validJoint(), good
		test.change(joint, &solution)
		if err := joint.Verify(solution); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
