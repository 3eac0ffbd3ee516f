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

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// drawJoint makes a random joint instance small enough to enumerate: one to three parts, assets that items share, and
// any of the limits.
func drawJoint(t *rapid.T) *problem.Joint {
	joint := &problem.Joint{Name: "random",
		Minimise: rapid.SampledFrom([]problem.Measure{"", problem.Time, problem.Time, problem.Energy,
			problem.Memory}).Draw(t, "measure")}
	number := rapid.Int64Range(0, 20)

	for r := range rapid.IntRange(1, 2).Draw(t, "regions") {
		region := problem.Region{Name: fmt.Sprintf("r%d", r)}
		if rapid.Bool().Draw(t, "limited") {
			region.MaxBytes = rapid.Int64Range(1, 40).Draw(t, "bytes")
		}
		if rapid.IntRange(0, 3).Draw(t, "counted") == 0 {
			region.MaxGraphs = rapid.IntRange(1, 3).Draw(t, "graphs")
		}
		joint.Regions = append(joint.Regions, region)
	}

	for a := range rapid.IntRange(0, 5).Draw(t, "assets") {
		joint.Assets = append(joint.Assets, problem.Asset{
			Name: fmt.Sprintf("a%d", a), Region: rapid.IntRange(0, len(joint.Regions)-1).Draw(t, "region"),
			Bytes: number.Draw(t, "bytes"), Graphs: rapid.IntRange(0, 1).Draw(t, "graph"),
			OpenNS: number.Draw(t, "open"),
		})
	}

	size := 1
	for i := range rapid.IntRange(1, 3).Draw(t, "parts") {
		partition := draw(t)
		partition.Name = fmt.Sprintf("part%d", i)
		combinations := 1
		for _, it := range items(partition) {
			combinations *= len(it.Choices)
		}
		if size*combinations > 3000 && i > 0 {
			break
		}
		size *= combinations
		for _, it := range items(partition) {
			for j := range it.Choices {
				choice := &it.Choices[j]
				choice.EnergyNJ = number.Draw(t, "energy")
				for asset := range joint.Assets {
					if rapid.IntRange(0, 3).Draw(t, "needs") == 0 {
						choice.Assets = append(choice.Assets, asset)
					}
				}
			}
		}
		part := problem.Part{Partition: partition, Weight: rapid.SampledFrom([]int64{0, 1, 1, 3}).Draw(t, "weight")}
		if rapid.IntRange(0, 4).Draw(t, "late") == 0 {
			part.MaxNS = rapid.Int64Range(10, 500).Draw(t, "deadline")
		}
		joint.Parts = append(joint.Parts, part)
	}

	if rapid.IntRange(0, 3).Draw(t, "memory") == 0 {
		joint.Resident = number.Draw(t, "resident")
		joint.MaxBytes = rapid.Int64Range(1, 80).Draw(t, "all bytes")
	}
	if rapid.IntRange(0, 3).Draw(t, "opening") == 0 {
		joint.MaxOpenNS = rapid.Int64Range(1, 60).Draw(t, "open time")
	}
	if rapid.IntRange(0, 4).Draw(t, "power") == 0 {
		joint.MaxEnergyNJ = rapid.Int64Range(20, 2000).Draw(t, "energy in all")
	}
	if rapid.IntRange(0, 4).Draw(t, "time") == 0 {
		joint.MaxTimeNS = rapid.Int64Range(20, 2000).Draw(t, "time in all")
	}
	return joint
}

// jointBruteForce enumerates every combination in lexicographic order; the choices are nil when none keeps the limits.
// What a combination takes is added up here, but for the time of a part, which TestBruteForce covers.
func jointBruteForce(joint *problem.Joint) (best int64, first [][][]int) {
	best = math.MaxInt64
	each(joint, func(choices [][][]int) {
		taken := added(joint, choices)
		if !taken.keeps(joint) {
			return
		}
		objective := taken.time
		switch joint.Minimise {
		case problem.Energy:
			objective = taken.energy
		case problem.Memory:
			objective = taken.bytes
		}
		if objective >= best {
			return
		}
		best, first = objective, nil
		for _, part := range choices {
			var chains [][]int
			for _, list := range part {
				chains = append(chains, slices.Clone(list))
			}
			first = append(first, chains)
		}
	})
	return best, first
}

// sums is what choices take.
type sums struct {
	time, energy, bytes, open int64
	parts                     []int64       // time of each
	region                    map[int]int64 // bytes
	graphs                    map[int]int   // of a region
	conflict                  bool
}

// added adds up what choices take. An asset that several of them name opens once.
func added(joint *problem.Joint, choices [][][]int) sums {
	out := sums{region: map[int]int64{}, graphs: map[int]int{}}
	opened := map[int]bool{}
	for i, part := range joint.Parts {
		ns := part.Partition.ObjectiveNS(choices[i])
		out.parts = append(out.parts, ns)
		out.time += part.Weight * ns
		_, _, conflict := part.Partition.Conflict(choices[i])
		out.conflict = out.conflict || conflict
		for j, chain := range part.Partition.Chains {
			for k, item := range chain.Items {
				choice := item.Choices[choices[i][j][k]]
				out.energy += part.Weight * int64(chain.Repeat) * choice.EnergyNJ
				for _, asset := range choice.Assets {
					opened[asset] = true
				}
			}
		}
	}
	for at := range opened {
		asset := joint.Assets[at]
		out.bytes, out.open = out.bytes+asset.Bytes, out.open+asset.OpenNS
		out.region[asset.Region] += asset.Bytes
		out.graphs[asset.Region] += asset.Graphs
	}
	return out
}

// keeps reports whether the sums keep the limits of an instance.
func (s sums) keeps(joint *problem.Joint) bool {
	within := func(amount, limit int64) bool { return limit == 0 || amount <= limit }
	for i, part := range joint.Parts {
		if !within(s.parts[i], part.MaxNS) {
			return false
		}
	}
	for i, region := range joint.Regions {
		if !within(s.region[i], region.MaxBytes) || !within(int64(s.graphs[i]), int64(region.MaxGraphs)) {
			return false
		}
	}
	return !s.conflict && within(s.time, joint.MaxTimeNS) && within(s.energy, joint.MaxEnergyNJ) &&
		within(s.bytes+joint.Resident, joint.MaxBytes) && within(s.open, joint.MaxOpenNS)
}

// solveJoint returns a verified answer; its choices are nil when the instance is infeasible or the limit was reached.
func solveJoint(t interface{ Fatalf(string, ...any) }, joint *problem.Joint,
	nodes int64) (solution problem.JointSolution, infeasible bool) {
	solution, err := exact.Engine{}.Joint(context.Background(), joint, problem.Limits{Nodes: nodes})
	if err != nil {
		if diag.ClassOf(err) != diag.ClassInfeasible {
			t.Fatalf("solve: %v", err)
		}
		return solution, true
	}
	if err := joint.Verify(solution); err != nil {
		t.Fatalf("%v", err)
	}
	return solution, false
}

// Of 10,000 random instances (HETC_LONG=1) each is solved to the optimum of an enumeration and to its first choices.
func TestJointBruteForce(t *testing.T) {
	feasible, searched := 0, 0
	many(t, long(10000), func(t *rapid.T) {
		joint := drawJoint(t)
		want, first := jointBruteForce(joint)
		solution, infeasible := solveJoint(t, joint, 100000)
		if infeasible != (first == nil) {
			t.Fatalf("infeasible %v, enumeration finds %v", infeasible, first)
		}
		if infeasible {
			return
		}
		if solution.Status != problem.Optimal || solution.Objective != want {
			t.Fatalf("%s objective %d, enumeration finds %d", solution.Status, solution.Objective, want)
		}
		if !reflect.DeepEqual(solution.Choices, first) {
			t.Fatalf("choices %v, the first that take %d are %v", solution.Choices, want, first)
		}
		feasible++
		if solution.Nodes > 1 {
			searched++
		}
	})
	least := 100 // of 1,000 draws, some ten of which need a search
	if testing.Short() {
		least = 20 // rapid draws a fifth
	}
	if feasible < least || searched == 0 && !testing.Short() {
		t.Fatalf("%d instances were feasible, %d needed a search", feasible, searched)
	}
}

// Whatever the limit of nodes, the bound is below the optimum, and a proof is right.
func TestJointBoundsAtEveryLimit(t *testing.T) {
	cut := 0
	many(t, long(10000), func(t *rapid.T) {
		joint := drawJoint(t)
		want, first := jointBruteForce(joint)
		solution, infeasible := solveJoint(t, joint, rapid.Int64Range(1, 50).Draw(t, "nodes"))
		isFirst := solution.Objective == want && reflect.DeepEqual(solution.Choices, first)
		switch {
		case infeasible && first != nil:
			t.Fatalf("called infeasible: %v take %d", first, want)
		case infeasible:
		case first == nil && solution.Status != problem.LimitReached:
			t.Fatalf("status %q of an infeasible instance", solution.Status)
		case first == nil:
		case solution.Bound > want:
			t.Fatalf("bound %d is above the optimum %d", solution.Bound, want)
		case solution.Status == problem.Optimal && !isFirst:
			t.Fatalf("called optimal: %v with %d, and %v take %d", solution.Choices, solution.Objective, first, want)
		}
		if solution.Status == problem.Feasible || solution.Status == problem.LimitReached {
			cut++
		}
	})
	t.Logf("%d searches ended at their limit", cut)
}

// What is called infeasible names limits that cannot be kept together: an instance with these alone has no solution
// either, and none that is named alone, or needs more than it may, can be kept.
func TestJointConflict(t *testing.T) {
	single, several := 0, 0
	many(t, long(4000), func(t *rapid.T) {
		joint := drawJoint(t)
		_, err := exact.Engine{}.Joint(context.Background(), joint, problem.Limits{Nodes: 100000})
		if err == nil {
			return
		}
		var why *problem.InfeasibleError
		if !errors.As(err, &why) || len(why.Limits) == 0 {
			t.Fatalf("%v names no limits", err)
		}
		if why.Limits[0].Kind == problem.LimitProcs {
			return
		}
		keeps := func(limits []problem.Limit) bool { return canKeep(t, joint, limits) }
		if keeps(why.Limits) {
			t.Fatalf("%v, and they can be kept", err)
		}
		if len(why.Limits) == 1 {
			single++
			return
		}
		several++
		for i := range why.Limits {
			if !keeps(append(slices.Clone(why.Limits[:i]), why.Limits[i+1:]...)) {
				t.Fatalf("%v, and not without %v either", err, why.Limits[i])
			}
		}
	})
	if single == 0 {
		t.Fatal("no limit alone could not be kept")
	}
	t.Logf("%d limits alone and %d sets of them could not be kept", single, several)
}

// canKeep reports whether some choices keep limits, and no others. It fails if choices take less than is needed at
// least.
func canKeep(t *rapid.T, joint *problem.Joint, limits []problem.Limit) bool {
	found := false
	each(joint, func(choices [][][]int) {
		for i := range choices {
			if _, _, bad := joint.Parts[i].Partition.Conflict(choices[i]); bad {
				return
			}
		}
		use := joint.Use(choices)
		for _, now := range joint.Limits(&use) {
			for _, want := range limits {
				if now.Kind != want.Kind || now.Index != want.Index {
					continue
				}
				if now.Need < want.Need {
					t.Fatalf("choices %v take %d of what needs at least %v", choices, now.Need, want)
				}
				if now.Need > want.Max {
					return
				}
			}
		}
		found = true
	})
	return found
}
