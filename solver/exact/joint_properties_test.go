package exact_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// optimum is the proved optimum, ok = false of an infeasible instance.
func optimum(t interface{ Fatalf(string, ...any) }, j *problem.Joint) (v int64, ok bool) {
	s, infeasible := solveJoint(t, j, 100000)
	if !infeasible && s.Status != problem.Optimal {
		t.Fatalf("status %q", s.Status)
	}
	return s.Objective, !infeasible
}

// limits are the places of all limits of an instance.
func limits(j *problem.Joint) []*int64 {
	out := []*int64{&j.MaxBytes, &j.MaxOpenNS, &j.MaxEnergyNJ, &j.MaxTimeNS}
	for i := range j.Parts {
		out = append(out, &j.Parts[i].MaxNS)
	}
	for r := range j.Regions {
		out = append(out, &j.Regions[r].MaxBytes)
	}
	return out
}

func TestJointLooserLimitsNeverHurt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJoint(t)
		before, ok := optimum(t, j)
		for _, l := range limits(j) {
			if *l > 0 && rapid.Bool().Draw(t, "change") {
				if *l += rapid.Int64Range(0, 30).Draw(t, "more"); rapid.Bool().Draw(t, "remove") {
					*l = 0
				}
			}
		}
		after, okAfter := optimum(t, j)
		if ok && (!okAfter || after > before) {
			t.Fatalf("objective %d became %d (feasible %v)", before, after, okAfter)
		}
	})
}

func TestJointWithoutLimitsIsTheSumOfItsParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJoint(t)
		for _, l := range limits(j) {
			*l = 0
		}
		for r := range j.Regions {
			j.Regions[r].MaxGraphs = 0
		}
		j.Minimise = problem.Time
		got, ok := optimum(t, j)
		var sum int64
		for i := range j.Parts {
			v, okPart := solve(t, j.Parts[i].Partition)
			if !okPart {
				if ok {
					t.Fatalf("part %d is infeasible, and all together are not", i)
				}
				return
			}
			sum += j.Parts[i].Weight * v
		}
		if !ok || got != sum {
			t.Fatalf("objective %d (feasible %v), the parts add up to %d", got, ok, sum)
		}
	})
}

func TestJointAnotherChoiceNeverHurts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJoint(t)
		before, ok := optimum(t, j)
		p := rapid.IntRange(0, len(j.Parts)-1).Draw(t, "part")
		it := rapid.SampledFrom(items(j.Parts[p].Partition)).Draw(t, "item")
		more := it.Choices[0]
		more.Label, more.CostNS, more.EnergyNJ = "another", rapid.Int64Range(0, 20).Draw(t, "cost"), rapid.Int64Range(0, 20).Draw(t, "energy")
		more.After = rapid.IntRange(0, len(it.After)-1).Draw(t, "to")
		it.Choices = append(it.Choices, more)
		after, okAfter := optimum(t, j)
		if ok && (!okAfter || after > before) {
			t.Fatalf("objective %d became %d (feasible %v)", before, after, okAfter)
		}
	})
}

// Scaling everything, or one kind of amount with its limits, scales the objective.
func TestJointScales(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJoint(t)
		before, ok := optimum(t, j)
		factor := rapid.Int64Range(1, 1<<20).Draw(t, "factor")
		for _, l := range limits(j) {
			*l *= factor
		}
		j.Resident *= factor
		for a := range j.Assets {
			j.Assets[a].Bytes *= factor
			j.Assets[a].OpenNS *= factor
		}
		for i := range j.Parts {
			for _, it := range items(j.Parts[i].Partition) {
				for n := range it.Choices {
					it.Choices[n].CostNS *= factor
					it.Choices[n].EnergyNJ *= factor
				}
				for _, row := range it.EdgeNS {
					for b := range row {
						row[b] *= factor
					}
				}
			}
		}
		after, okAfter := optimum(t, j)
		if ok != okAfter || ok && after != factor*before {
			t.Fatalf("objective %d times %d became %d", before, factor, after)
		}
	})
}

// The order of parts, assets, regions and choices does not matter to the objective.
func TestJointPermutations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJoint(t)
		before, ok := optimum(t, j)
		j.Parts = rapid.Permutation(j.Parts).Draw(t, "parts")
		to := rapid.Permutation(indices(len(j.Assets))).Draw(t, "assets")
		assets := make([]problem.Asset, len(j.Assets))
		for a := range j.Assets {
			assets[to[a]] = j.Assets[a]
		}
		j.Assets = assets
		for i := range j.Parts {
			for _, it := range items(j.Parts[i].Partition) {
				it.Choices = rapid.Permutation(it.Choices).Draw(t, "order")
				for n := range it.Choices {
					var list []int
					for _, a := range it.Choices[n].Assets {
						list = append(list, to[a])
					}
					slices.Sort(list)
					it.Choices[n].Assets = list
				}
			}
		}
		after, okAfter := optimum(t, j)
		if ok != okAfter || after != before {
			t.Fatalf("objective %d became %d", before, after)
		}
	})
}

// A fast choice that does not fit and a slow one that is too late: both limits are named, and what each needs alone.
func TestJointConflictOfTwo(t *testing.T) {
	j := &problem.Joint{
		Name: "plan", Assets: []problem.Asset{{Name: "graph", Bytes: 100}}, Regions: []problem.Region{{Name: "npu", MaxBytes: 50}},
		MaxOpenNS: 1000, // does not matter
		Parts: []problem.Part{{MaxNS: 30, Weight: 1, Partition: &problem.Partition{Name: "decode", Procs: []string{"cpu", "npu"}, Chains: []problem.Chain{{Name: "layers", Repeat: 2, Items: []problem.Item{{
			Name: "qkv", Before: []string{"x"}, After: []string{"x"}, EdgeNS: [][]int64{{0}},
			Choices: []problem.Choice{{Label: "cpu", Procs: []int{0}, CostNS: 20}, {Label: "npu", Procs: []int{1}, CostNS: 10, Assets: []int{0}}},
		}}}}}}},
	}
	_, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{})
	var why *problem.InfeasibleError
	want := []problem.Limit{{Kind: problem.LimitPartNS, Name: "decode", Max: 30, Need: 20}, {Kind: problem.LimitRegionBytes, Name: "npu", Max: 50}}
	if !errors.As(err, &why) || !slices.Equal(why.Limits, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
	j.Parts[0].MaxNS = 19
	_, err = exact.Engine{}.Joint(context.Background(), j, problem.Limits{})
	want = []problem.Limit{{Kind: problem.LimitPartNS, Name: "decode", Max: 19, Need: 20}}
	if !errors.As(err, &why) || !slices.Equal(why.Limits, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// Values near the largest that are valid do not overflow, and bounds stay bounds.
func TestJointHugeValues(t *testing.T) {
	j := llama(1, 2, 0.2, true)
	for i := range j.Parts {
		j.Parts[i].Weight = 1 << 24
		for _, it := range items(j.Parts[i].Partition) {
			for n := range it.Choices {
				it.Choices[n].CostNS = min(it.Choices[n].CostNS, 1<<34)
			}
		}
	}
	s, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{Nodes: 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Verify(s); err != nil || s.Bound <= 0 || s.Objective < 1<<50 {
		t.Fatalf("objective %d, bound %d: %v", s.Objective, s.Bound, err)
	}
	free, _ := exact.Engine{}.Joint(context.Background(), func() *problem.Joint {
		k := *j
		k.Regions = slices.Clone(j.Regions)
		k.Regions[2] = problem.Region{Name: "npu"}
		return &k
	}(), problem.Limits{})
	if float64(s.Bound) < float64(free.Objective)*(1-1e-9) {
		t.Fatalf("bound %d is below the optimum without limits, %d", s.Bound, free.Objective)
	}
}

// Repeated runs return the same, at a limit too.
func TestJointDeterministic(t *testing.T) {
	j := llama(3, 3, 0.2, true)
	var first string
	for range 2 {
		s, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{Nodes: 15})
		if err != nil {
			t.Fatal(err)
		}
		if now := fmt.Sprint(s); first == "" {
			first = now
		} else if now != first {
			t.Fatalf("%s, and then %s", first, now)
		}
		if gap := float64(s.Objective-s.Bound) / float64(s.Objective); math.IsNaN(gap) || gap > 0.2 {
			t.Errorf("gap %v", gap)
		}
	}
}

// A limit on a time or on energy is called hopeless where the least that any choices take is above it, and nothing else
// is.
func TestHopeless(t *testing.T) {
	named, none := 0, 0
	many(t, long(2000), func(t *rapid.T) {
		j := drawJoint(t)
		least := map[string]int64{}
		each(j, func(choices [][][]int) {
			for i := range choices {
				if _, _, bad := j.Parts[i].Partition.Conflict(choices[i]); bad {
					return
				}
			}
			u := j.Use(choices)
			for _, l := range j.Limits(&u) {
				key := fmt.Sprint(l.Kind, l.Index)
				if old, ok := least[key]; !ok || l.Need < old {
					least[key] = l.Need
				}
			}
		})
		if len(least) == 0 {
			return // no limits, or no choices without conflicts
		}
		got, err := exact.Hopeless(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		var want []problem.Limit
		u := problem.Use{PartNS: make([]int64, len(j.Parts)), RegionBytes: make([]int64, len(j.Regions)), RegionGraphs: make([]int64, len(j.Regions))}
		for _, l := range j.Limits(&u) {
			switch l.Kind {
			case problem.LimitPartNS, problem.LimitTimeNS, problem.LimitEnergyNJ:
				if l.Need = least[fmt.Sprint(l.Kind, l.Index)]; l.Need > l.Max && want == nil {
					want = []problem.Limit{l}
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("hopeless: %v, want %v", got, want)
		}
		if want != nil {
			named++
		} else {
			none++
		}
	})
	least := 10
	if testing.Short() {
		least = 2 // rapid draws a fifth
	}
	if named < least || none < least {
		t.Fatalf("%d instances had a hopeless limit, %d none", named, none)
	}
}

// Beyond the largest objective of interest nothing is claimed but that solutions cost more; up to it nothing changes.
func TestJointLargestObjectiveOfInterest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJoint(t)
		whole, infeasible := solveJoint(t, j, 100000)
		most := max(1, whole.Objective+rapid.Int64Range(-9, 9).Draw(t, "off"))
		got, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{Nodes: 100000, Most: most})
		switch {
		case infeasible:
			if err == nil && got.Choices != nil {
				t.Fatalf("a solution of an infeasible instance: %+v", got)
			}
		case err != nil:
			t.Fatal(err)
		case whole.Objective > most:
			proved := got.Status == problem.LimitReached && got.Bound > most && got.Bound <= whole.Objective
			if got.Choices != nil || !proved {
				t.Fatalf("at most %d of interest, optimum %d: %+v", most, whole.Objective, got)
			}
		case got.Status != whole.Status || !reflect.DeepEqual(got.Choices, whole.Choices):
			t.Fatalf("at most %d of interest: %+v, without: %+v", most, got, whole)
		}
	})
}
