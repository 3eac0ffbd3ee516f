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

// drawJoint makes a random joint instance small enough to enumerate: one to three parts, assets that items
// share, and any of the limits.
func drawJoint(t *rapid.T) *problem.Joint {
	j := &problem.Joint{Name: "random", Minimise: rapid.SampledFrom([]problem.Measure{"", problem.Time, problem.Time, problem.Energy, problem.Memory}).Draw(t, "measure")}
	number := rapid.Int64Range(0, 20)
	for r := range rapid.IntRange(1, 2).Draw(t, "regions") {
		g := problem.Region{Name: fmt.Sprintf("r%d", r)}
		if rapid.Bool().Draw(t, "limited") {
			g.MaxBytes = rapid.Int64Range(1, 40).Draw(t, "bytes")
		}
		if rapid.IntRange(0, 3).Draw(t, "counted") == 0 {
			g.MaxGraphs = rapid.IntRange(1, 3).Draw(t, "graphs")
		}
		j.Regions = append(j.Regions, g)
	}
	for a := range rapid.IntRange(0, 5).Draw(t, "assets") {
		j.Assets = append(j.Assets, problem.Asset{
			Name: fmt.Sprintf("a%d", a), Region: rapid.IntRange(0, len(j.Regions)-1).Draw(t, "region"),
			Bytes: number.Draw(t, "bytes"), Graphs: rapid.IntRange(0, 1).Draw(t, "graph"), OpenNS: number.Draw(t, "open"),
		})
	}
	size := 1
	for i := range rapid.IntRange(1, 3).Draw(t, "parts") {
		p := draw(t)
		p.Name = fmt.Sprintf("part%d", i)
		n := 1
		for _, it := range items(p) {
			n *= len(it.Choices)
		}
		if size*n > 3000 && i > 0 {
			break
		}
		size *= n
		for _, it := range items(p) {
			for k := range it.Choices {
				c := &it.Choices[k]
				c.EnergyNJ = number.Draw(t, "energy")
				for a := range j.Assets {
					if rapid.IntRange(0, 3).Draw(t, "needs") == 0 {
						c.Assets = append(c.Assets, a)
					}
				}
			}
		}
		part := problem.Part{Partition: p, Weight: rapid.SampledFrom([]int64{0, 1, 1, 3}).Draw(t, "weight")}
		if rapid.IntRange(0, 4).Draw(t, "late") == 0 {
			part.MaxNS = rapid.Int64Range(10, 500).Draw(t, "deadline")
		}
		j.Parts = append(j.Parts, part)
	}
	if rapid.IntRange(0, 3).Draw(t, "memory") == 0 {
		j.Resident = number.Draw(t, "resident")
		j.MaxBytes = rapid.Int64Range(1, 80).Draw(t, "all bytes")
	}
	if rapid.IntRange(0, 3).Draw(t, "opening") == 0 {
		j.MaxOpenNS = rapid.Int64Range(1, 60).Draw(t, "open time")
	}
	if rapid.IntRange(0, 4).Draw(t, "power") == 0 {
		j.MaxEnergyNJ = rapid.Int64Range(20, 2000).Draw(t, "energy in all")
	}
	if rapid.IntRange(0, 4).Draw(t, "time") == 0 {
		j.MaxTimeNS = rapid.Int64Range(20, 2000).Draw(t, "time in all")
	}
	return j
}

// jointBruteForce enumerates every combination in lexicographic order; the choices are nil when none keeps the limits.
// What a combination takes is added up here, but for the time of a part, which TestBruteForce covers.
func jointBruteForce(j *problem.Joint) (best int64, first [][][]int) {
	best = math.MaxInt64
	var now [][][]int
	var places []*int
	var sizes []int
	for i := range j.Parts {
		var part [][]int
		for k := range j.Parts[i].Partition.Chains {
			items := j.Parts[i].Partition.Chains[k].Items
			list := make([]int, len(items))
			for n := range items {
				places, sizes = append(places, &list[n]), append(sizes, len(items[n].Choices))
			}
			part = append(part, list)
		}
		now = append(now, part)
	}
	within := func(v, limit int64) bool { return limit == 0 || v <= limit }
	for {
		ok := true
		var time, energy, bytes, open int64
		region, graphs := map[int]int64{}, map[int]int{}
		opened := map[int]bool{}
		for i, p := range j.Parts {
			ns := p.Partition.ObjectiveNS(now[i])
			ok = ok && within(ns, p.MaxNS)
			if _, _, conflict := p.Partition.Conflict(now[i]); conflict {
				ok = false
			}
			time += p.Weight * ns
			for k, c := range p.Partition.Chains {
				for n := range c.Items {
					ch := c.Items[n].Choices[now[i][k][n]]
					energy += p.Weight * int64(c.Repeat) * ch.EnergyNJ
					for _, a := range ch.Assets {
						if !opened[a] {
							opened[a] = true
							as := j.Assets[a]
							bytes, open = bytes+as.Bytes, open+as.OpenNS
							region[as.Region] += as.Bytes
							graphs[as.Region] += as.Graphs
						}
					}
				}
			}
		}
		ok = ok && within(time, j.MaxTimeNS) && within(energy, j.MaxEnergyNJ) && within(bytes+j.Resident, j.MaxBytes) && within(open, j.MaxOpenNS)
		for r, g := range j.Regions {
			ok = ok && within(region[r], g.MaxBytes) && within(int64(graphs[r]), int64(g.MaxGraphs))
		}
		v := time
		switch j.Minimise {
		case problem.Energy:
			v = energy
		case problem.Memory:
			v = bytes
		}
		if ok && v < best {
			best, first = v, nil
			for _, part := range now {
				var chains [][]int
				for _, l := range part {
					chains = append(chains, slices.Clone(l))
				}
				first = append(first, chains)
			}
		}
		n := len(places) - 1
		for ; n >= 0; n-- {
			if *places[n]++; *places[n] < sizes[n] {
				break
			}
			*places[n] = 0
		}
		if n < 0 {
			return best, first
		}
	}
}

// solveJoint returns a verified answer; its choices are nil when the instance is infeasible or the limit was reached.
func solveJoint(t interface{ Fatalf(string, ...any) }, j *problem.Joint, nodes int64) (s problem.JointSolution, infeasible bool) {
	s, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{Nodes: nodes})
	if err != nil {
		if diag.ClassOf(err) != diag.ClassInfeasible {
			t.Fatalf("solve: %v", err)
		}
		return s, true
	}
	if err := j.Verify(s); err != nil {
		t.Fatalf("%v", err)
	}
	return s, false
}

// Of 10,000 random instances (HETC_LONG=1) each is solved to the optimum of an enumeration and to its first choices.
func TestJointBruteForce(t *testing.T) {
	feasible, searched := 0, 0
	many(t, long(10000), func(t *rapid.T) {
		j := drawJoint(t)
		want, first := jointBruteForce(j)
		s, infeasible := solveJoint(t, j, 100000)
		if infeasible != (first == nil) {
			t.Fatalf("infeasible %v, enumeration finds %v", infeasible, first)
		}
		if infeasible {
			return
		}
		if s.Status != problem.Optimal || s.Objective != want {
			t.Fatalf("%s objective %d, enumeration finds %d", s.Status, s.Objective, want)
		}
		if !reflect.DeepEqual(s.Choices, first) {
			t.Fatalf("choices %v, the first that take %d are %v", s.Choices, want, first)
		}
		feasible++
		if s.Nodes > 1 {
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
		j := drawJoint(t)
		want, first := jointBruteForce(j)
		s, infeasible := solveJoint(t, j, rapid.Int64Range(1, 50).Draw(t, "nodes"))
		switch {
		case infeasible:
			if first != nil {
				t.Fatalf("called infeasible: %v take %d", first, want)
			}
		case first == nil:
			if s.Status != problem.LimitReached {
				t.Fatalf("status %q of an infeasible instance", s.Status)
			}
		case s.Bound > want:
			t.Fatalf("bound %d is above the optimum %d", s.Bound, want)
		case s.Status == problem.Optimal && (s.Objective != want || !reflect.DeepEqual(s.Choices, first)):
			t.Fatalf("called optimal: %v with %d, and %v take %d", s.Choices, s.Objective, first, want)
		}
		if s.Status == problem.Feasible || s.Status == problem.LimitReached {
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
		j := drawJoint(t)
		_, err := exact.Engine{}.Joint(context.Background(), j, problem.Limits{Nodes: 100000})
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
		keeps := func(l []problem.Limit) bool {
			found := false
			each(j, func(choices [][][]int) {
				for i := range choices {
					if _, _, bad := j.Parts[i].Partition.Conflict(choices[i]); bad {
						return
					}
				}
				u := j.Use(choices)
				for _, now := range j.Limits(&u) {
					for _, want := range l {
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
