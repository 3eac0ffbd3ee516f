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
func optimum(t interface{ Fatalf(string, ...any) }, joint *problem.Joint) (objective int64, ok bool) {
	solution, infeasible := solveJoint(t, joint, 100000)
	if !infeasible && solution.Status != problem.Optimal {
		t.Fatalf("status %q", solution.Status)
	}
	return solution.Objective, !infeasible
}

// limits are the places of all limits of an instance.
func limits(joint *problem.Joint) []*int64 {
	out := []*int64{&joint.MaxBytes, &joint.MaxOpenNS, &joint.MaxEnergyNJ, &joint.MaxTimeNS}
	for i := range joint.Parts {
		out = append(out, &joint.Parts[i].MaxNS)
	}
	for i := range joint.Regions {
		out = append(out, &joint.Regions[i].MaxBytes)
	}
	return out
}

// Looser limits never make the optimum worse, nor an instance infeasible.
func TestJointLooserLimitsNeverHurt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		joint := drawJoint(t)
		before, ok := optimum(t, joint)
		for _, limit := range limits(joint) {
			if *limit == 0 || !rapid.Bool().Draw(t, "change") {
				continue
			}
			*limit += rapid.Int64Range(0, 30).Draw(t, "more")
			if rapid.Bool().Draw(t, "remove") {
				*limit = 0
			}
		}
		after, okAfter := optimum(t, joint)
		if ok && (!okAfter || after > before) {
			t.Fatalf("objective %d became %d (feasible %v)", before, after, okAfter)
		}
	})
}

// Without limits a joint problem is the sum of its parts, each solved by itself.
func TestJointWithoutLimitsIsTheSumOfItsParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		joint := drawJoint(t)
		for _, limit := range limits(joint) {
			*limit = 0
		}
		for i := range joint.Regions {
			joint.Regions[i].MaxGraphs = 0
		}
		joint.Minimise = problem.Time
		got, ok := optimum(t, joint)

		var sum int64
		for i := range joint.Parts {
			ns, okPart := solve(t, joint.Parts[i].Partition)
			if !okPart {
				if ok {
					t.Fatalf("part %d is infeasible, and all together are not", i)
				}
				return
			}
			sum += joint.Parts[i].Weight * ns
		}
		if !ok || got != sum {
			t.Fatalf("objective %d (feasible %v), the parts add up to %d", got, ok, sum)
		}
	})
}

// Another choice never makes the optimum worse, nor an instance infeasible.
func TestJointAnotherChoiceNeverHurts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		joint := drawJoint(t)
		before, ok := optimum(t, joint)
		part := rapid.IntRange(0, len(joint.Parts)-1).Draw(t, "part")
		it := rapid.SampledFrom(items(joint.Parts[part].Partition)).Draw(t, "item")
		more := it.Choices[0]
		more.Label, more.CostNS = "another", rapid.Int64Range(0, 20).Draw(t, "cost")
		more.EnergyNJ = rapid.Int64Range(0, 20).Draw(t, "energy")
		more.After = rapid.IntRange(0, len(it.After)-1).Draw(t, "to")
		it.Choices = append(it.Choices, more)
		after, okAfter := optimum(t, joint)
		if ok && (!okAfter || after > before) {
			t.Fatalf("objective %d became %d (feasible %v)", before, after, okAfter)
		}
	})
}

// Scaling everything, or one kind of amount with its limits, scales the objective.
func TestJointScales(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		joint := drawJoint(t)
		before, ok := optimum(t, joint)
		factor := rapid.Int64Range(1, 1<<20).Draw(t, "factor")
		for _, limit := range limits(joint) {
			*limit *= factor
		}
		joint.Resident *= factor
		for i := range joint.Assets {
			joint.Assets[i].Bytes *= factor
			joint.Assets[i].OpenNS *= factor
		}
		for i := range joint.Parts {
			for _, it := range items(joint.Parts[i].Partition) {
				for j := range it.Choices {
					it.Choices[j].CostNS *= factor
					it.Choices[j].EnergyNJ *= factor
				}
				for _, row := range it.EdgeNS {
					for class := range row {
						row[class] *= factor
					}
				}
			}
		}

		after, okAfter := optimum(t, joint)
		if ok != okAfter || ok && after != factor*before {
			t.Fatalf("objective %d times %d became %d", before, factor, after)
		}
	})
}

// The order of parts, assets, regions and choices does not matter to the objective.
func TestJointPermutations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		joint := drawJoint(t)
		before, ok := optimum(t, joint)
		joint.Parts = rapid.Permutation(joint.Parts).Draw(t, "parts")
		to := rapid.Permutation(indices(len(joint.Assets))).Draw(t, "assets")
		assets := make([]problem.Asset, len(joint.Assets))
		for asset := range joint.Assets {
			assets[to[asset]] = joint.Assets[asset]
		}
		joint.Assets = assets

		for i := range joint.Parts {
			for _, it := range items(joint.Parts[i].Partition) {
				it.Choices = rapid.Permutation(it.Choices).Draw(t, "order")
				for j := range it.Choices {
					var list []int
					for _, asset := range it.Choices[j].Assets {
						list = append(list, to[asset])
					}
					slices.Sort(list)
					it.Choices[j].Assets = list
				}
			}
		}
		after, okAfter := optimum(t, joint)
		if ok != okAfter || after != before {
			t.Fatalf("objective %d became %d", before, after)
		}
	})
}

// A fast choice that does not fit and a slow one that is too late: both limits are named, and what each needs alone.
func TestJointConflictOfTwo(t *testing.T) {
	joint := &problem.Joint{
		Name: "plan", Assets: []problem.Asset{{Name: "graph", Bytes: 100}},
		Regions:   []problem.Region{{Name: "npu", MaxBytes: 50}},
		MaxOpenNS: 1000, // does not matter
		Parts: []problem.Part{{MaxNS: 30, Weight: 1, Partition: &problem.Partition{Name: "decode",
			Procs: []string{"cpu", "npu"}, Chains: []problem.Chain{{Name: "layers", Repeat: 2, Items: []problem.Item{{
				Name: "qkv", Before: []string{"x"}, After: []string{"x"}, EdgeNS: [][]int64{{0}},
				Choices: []problem.Choice{{Label: "cpu", Procs: []int{0}, CostNS: 20},
					{Label: "npu", Procs: []int{1}, CostNS: 10, Assets: []int{0}}},
			}}}}}}},
	}
	_, err := exact.Engine{}.Joint(context.Background(), joint, problem.Limits{})
	var why *problem.InfeasibleError
	want := []problem.Limit{{Kind: problem.LimitPartNS, Name: "decode", Max: 30, Need: 20},
		{Kind: problem.LimitRegionBytes, Name: "npu", Max: 50}}
	if !errors.As(err, &why) || !slices.Equal(why.Limits, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
	joint.Parts[0].MaxNS = 19
	_, err = exact.Engine{}.Joint(context.Background(), joint, problem.Limits{})
	want = []problem.Limit{{Kind: problem.LimitPartNS, Name: "decode", Max: 19, Need: 20}}
	if !errors.As(err, &why) || !slices.Equal(why.Limits, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// Values near the largest that are valid do not overflow, and bounds stay bounds.
func TestJointHugeValues(t *testing.T) {
	joint := llama(1, 2, 0.2, true)
	for i := range joint.Parts {
		joint.Parts[i].Weight = 1 << 24
		for _, it := range items(joint.Parts[i].Partition) {
			for j := range it.Choices {
				it.Choices[j].CostNS = min(it.Choices[j].CostNS, 1<<34)
			}
		}
	}

	solution, err := exact.Engine{}.Joint(context.Background(), joint, problem.Limits{Nodes: 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := joint.Verify(solution); err != nil || solution.Bound <= 0 || solution.Objective < 1<<50 {
		t.Fatalf("objective %d, bound %d: %v", solution.Objective, solution.Bound, err)
	}
	posed := *joint
	posed.Regions = slices.Clone(joint.Regions)
	posed.Regions[2] = problem.Region{Name: "npu"}
	free, err := exact.Engine{}.Joint(context.Background(), &posed, problem.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if float64(solution.Bound) < float64(free.Objective)*(1-1e-9) {
		t.Fatalf("bound %d is below the optimum without limits, %d", solution.Bound, free.Objective)
	}
}

// Repeated runs return the same, at a limit too.
func TestJointDeterministic(t *testing.T) {
	joint := llama(3, 3, 0.2, true)
	var first string
	for range 2 {
		solution, err := exact.Engine{}.Joint(context.Background(), joint, problem.Limits{Nodes: 15})
		if err != nil {
			t.Fatal(err)
		}
		if now := fmt.Sprint(solution); first == "" {
			first = now
		} else if now != first {
			t.Fatalf("%s, and then %s", first, now)
		}
		gap := float64(solution.Objective-solution.Bound) / float64(solution.Objective)
		if math.IsNaN(gap) || gap > 0.2 {
			t.Errorf("gap %v", gap)
		}
	}
}

// A limit on a time or on energy is called hopeless where the least that any choices take is above it, and nothing else
// is.
func TestHopeless(t *testing.T) {
	named, none := 0, 0
	many(t, long(2000), func(t *rapid.T) {
		joint := drawJoint(t)
		least := map[string]int64{}
		each(joint, func(choices [][][]int) {
			for i := range choices {
				if _, _, bad := joint.Parts[i].Partition.Conflict(choices[i]); bad {
					return
				}
			}
			use := joint.Use(choices)
			for _, limit := range joint.Limits(&use) {
				key := fmt.Sprint(limit.Kind, limit.Index)
				if old, ok := least[key]; !ok || limit.Need < old {
					least[key] = limit.Need
				}
			}
		})
		if len(least) == 0 {
			return // no limits, or no choices without conflicts
		}
		got, err := exact.Hopeless(context.Background(), joint)
		if err != nil {
			t.Fatal(err)
		}
		var want []problem.Limit
		nothing := problem.Use{PartNS: make([]int64, len(joint.Parts)),
			RegionBytes: make([]int64, len(joint.Regions)), RegionGraphs: make([]int64, len(joint.Regions))}
		for _, limit := range joint.Limits(&nothing) {
			switch limit.Kind {
			case problem.LimitPartNS, problem.LimitTimeNS, problem.LimitEnergyNJ:
				limit.Need = least[fmt.Sprint(limit.Kind, limit.Index)]
				if limit.Need > limit.Max && want == nil {
					want = []problem.Limit{limit}
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
		joint := drawJoint(t)
		whole, infeasible := solveJoint(t, joint, 100000)
		most := max(1, whole.Objective+rapid.Int64Range(-9, 9).Draw(t, "off"))
		got, err := exact.Engine{}.Joint(context.Background(), joint, problem.Limits{Nodes: 100000, Most: most})
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
