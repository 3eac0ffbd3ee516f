package exact_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// draw makes a random instance small enough to enumerate. One of two instances has conflicts.
func draw(t *rapid.T) *problem.Partition {
	procs := rapid.IntRange(1, 4).Draw(t, "procs")
	partition := &problem.Partition{Name: "random"}
	for proc := range procs {
		partition.Procs = append(partition.Procs, fmt.Sprintf("p%d", proc))
	}
	if rapid.Bool().Draw(t, "conflicts") {
		for first := range procs {
			for second := first + 1; second < procs; second++ {
				if rapid.Bool().Draw(t, "conflict") {
					partition.Conflicts = append(partition.Conflicts, [2]int{first, second})
				}
			}
		}
	}

	for k := range rapid.IntRange(1, 2).Draw(t, "chains") {
		partition.Chains = append(partition.Chains, drawChain(t, k, procs))
	}
	return partition
}

// drawChain makes a random chain of up to four items.
func drawChain(t *rapid.T, number, procs int) problem.Chain {
	chain := problem.Chain{Name: fmt.Sprintf("chain%d", number),
		Repeat: rapid.SampledFrom([]int{1, 2, 7}).Draw(t, "repeat")}
	chain.Breaks = rapid.IntRange(0, chain.Repeat-1).Draw(t, "breaks")

	classes := func(kind string) []string {
		var out []string
		for i := range rapid.IntRange(1, 3).Draw(t, kind) {
			out = append(out, fmt.Sprintf("%s%d", kind, i))
		}
		return out
	}

	cost := rapid.Int64Range(0, 20)
	for i := range rapid.IntRange(1, 4).Draw(t, "items") {
		it := problem.Item{Name: fmt.Sprintf("item%d", i), Before: classes("before"), After: classes("after")}
		for j := range rapid.IntRange(1, 3).Draw(t, "choices") {
			choice := problem.Choice{Label: fmt.Sprintf("choice%d", j), CostNS: cost.Draw(t, "cost")}
			choice.Before = rapid.IntRange(0, len(it.Before)-1).Draw(t, "from")
			choice.After = rapid.IntRange(0, len(it.After)-1).Draw(t, "to")
			for proc := range procs {
				if rapid.IntRange(0, 2).Draw(t, "uses") == 0 {
					choice.Procs = append(choice.Procs, proc)
				}
			}
			if choice.Procs == nil {
				choice.Procs = []int{rapid.IntRange(0, procs-1).Draw(t, "uses")}
			}
			it.Choices = append(it.Choices, choice)
		}
		chain.Items = append(chain.Items, it)
	}

	for i := range chain.Items {
		if i == 0 && chain.Wraps() == 0 {
			continue
		}
		before := chain.Items[(i+len(chain.Items)-1)%len(chain.Items)]
		for range before.After {
			row := make([]int64, len(chain.Items[i].Before))
			for class := range row {
				row[class] = cost.Draw(t, "edge")
			}
			chain.Items[i].EdgeNS = append(chain.Items[i].EdgeNS, row)
		}
	}
	return chain
}

// bruteForce enumerates every combination, in lexicographic order; the choices are nil when each has a conflict, else
// the first of the cheapest. It shares no code with the engine or the instance's own objective.
func bruteForce(partition *problem.Partition) (best int64, first [][]int) {
	best = math.MaxInt64
	all := items(partition)
	sizes := make([]int, len(all))
	for i, item := range all {
		sizes[i] = len(item.Choices)
	}
	eachPick(sizes, func(pick []int) {
		choices := make([]problem.Choice, len(all))
		for i, item := range all {
			choices[i] = item.Choices[pick[i]]
		}
		if hasConflict(partition, choices) {
			return
		}

		total, from := int64(0), 0
		for i := range partition.Chains {
			chain := &partition.Chains[i]
			total += costOf(chain, choices[from:from+len(chain.Items)])
			from += len(chain.Items)
		}
		if total >= best {
			return
		}
		best, first = total, nil
		rest := slices.Clone(pick)
		for i := range partition.Chains {
			count := len(partition.Chains[i].Items)
			first, rest = append(first, rest[:count:count]), rest[count:]
		}
	})
	return best, first
}

// eachPick calls visit with every combination of numbers below sizes, in lexicographic order.
func eachPick(sizes []int, visit func(pick []int)) {
	pick := make([]int, len(sizes))
	for {
		visit(pick)
		at := len(pick) - 1
		for ; at >= 0; at-- {
			if pick[at]++; pick[at] < sizes[at] {
				break
			}
			pick[at] = 0
		}
		if at < 0 {
			return
		}
	}
}

// hasConflict reports whether choices use two processors that exclude each other.
func hasConflict(partition *problem.Partition, choices []problem.Choice) bool {
	used := map[int]bool{}
	for _, choice := range choices {
		for _, proc := range choice.Procs {
			used[proc] = true
		}
	}
	for _, conflict := range partition.Conflicts {
		if used[conflict[0]] && used[conflict[1]] {
			return true
		}
	}
	return false
}

// costOf adds up what choices of a chain cost, walking its repetitions one by one.
func costOf(chain *problem.Chain, choices []problem.Choice) (total int64) {
	before := -1 // class the step before left its result in
	for repetition := range chain.Repeat {
		if repetition <= chain.Breaks {
			before = -1
		}
		for i, choice := range choices {
			total += choice.CostNS
			if before >= 0 {
				total += chain.Items[i].EdgeNS[before][choice.Before]
			}
			before = choice.After
		}
	}
	return total
}

// items lists the items of all chains.
func items(partition *problem.Partition) []*problem.Item {
	var out []*problem.Item
	for i := range partition.Chains {
		for j := range partition.Chains[i].Items {
			out = append(out, &partition.Chains[i].Items[j])
		}
	}
	return out
}

// solve returns the proved optimum, ok = false when the instance is infeasible.
func solve(t interface{ Fatalf(string, ...any) }, partition *problem.Partition) (int64, bool) {
	ns, choices := solveFirst(t, partition)
	return ns, choices != nil
}

// solveFirst returns the choices too, nil when the instance is infeasible.
func solveFirst(t interface{ Fatalf(string, ...any) }, partition *problem.Partition) (int64, [][]int) {
	solution, err := exact.Engine{}.Partition(context.Background(), partition)
	if err != nil {
		if diag.ClassOf(err) != diag.ClassInfeasible {
			t.Fatalf("solve: %v", err)
		}
		return 0, nil
	}
	if err := partition.Verify(solution); err != nil {
		t.Fatalf("%v", err)
	}
	if solution.Status != problem.Optimal {
		t.Fatalf("status %q, want optimal", solution.Status)
	}
	return solution.ObjectiveNS, solution.Choices
}

// Of 10,000 random instances each is solved to the optimum of an enumeration, and to its first choices: costs are
// small, so that many combinations are equally cheap.
func TestBruteForce(t *testing.T) {
	feasible, several := 0, 0
	many(t, 10000, func(t *rapid.T) {
		partition := draw(t)
		want, wantFirst := bruteForce(partition)
		got, first := solveFirst(t, partition)
		if (first == nil) != (wantFirst == nil) || first != nil && got != want {
			t.Fatalf("objective %d, choices %v: enumeration finds %d with %v", got, first, want, wantFirst)
		}
		if !reflect.DeepEqual(first, wantFirst) {
			t.Fatalf("choices %v cost %d, and the first such are %v", first, got, wantFirst)
		}
		if first != nil {
			feasible++
		}
		if len(partition.Conflicts) > 0 && first != nil {
			several++
		}
	})
	if feasible == 0 || several == 0 {
		t.Fatalf("of the instances %d were feasible, %d with conflicts", feasible, several)
	}
}

// many checks so many random instances.
func many(t *testing.T, count int, check func(t *rapid.T)) {
	t.Helper()
	old := flag.Lookup("rapid.checks").Value.String()
	flag.Set("rapid.checks", strconv.Itoa(count))
	defer flag.Set("rapid.checks", old)
	rapid.Check(t, check)
}

// long is the number where HETC_LONG=1 asks for tests that take long, else a tenth of it.
func long(count int) int {
	if os.Getenv("HETC_LONG") == "1" {
		return count
	}
	return count / 10
}

// Another choice never makes the optimum worse, nor an instance infeasible.
func TestAnotherChoiceNeverHurts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partition := draw(t)
		before, ok := solve(t, partition)
		it := rapid.SampledFrom(items(partition)).Draw(t, "item")
		more := it.Choices[0]
		more.Label, more.CostNS = "another", rapid.Int64Range(0, 20).Draw(t, "cost")
		more.After = rapid.IntRange(0, len(it.After)-1).Draw(t, "to")
		it.Choices = append(it.Choices, more)
		after, okAfter := solve(t, partition)
		if ok && (!okAfter || after > before) {
			t.Fatalf("objective %d became %d (feasible %v)", before, after, okAfter)
		}
	})
}

// The optimum of scaled costs is the scaled optimum.
func TestScaledCostsScaleTheObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partition := draw(t)
		before, ok := solve(t, partition)
		factor := rapid.Int64Range(1, 1000).Draw(t, "factor")
		for _, it := range items(partition) {
			for j := range it.Choices {
				it.Choices[j].CostNS *= factor
			}
			for _, row := range it.EdgeNS {
				for class := range row {
					row[class] *= factor
				}
			}
		}
		if after, _ := solve(t, partition); ok && after != factor*before {
			t.Fatalf("objective %d times %d became %d", before, factor, after)
		}
	})
}

// The order of an item's choices, and that of processors, changes nothing.
func TestPermutations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partition := draw(t)
		before, ok := solve(t, partition)
		for _, it := range items(partition) {
			it.Choices = rapid.Permutation(it.Choices).Draw(t, "order")
		}
		if after, okAfter := solve(t, partition); ok != okAfter || after != before {
			t.Fatalf("reordered choices: objective %d became %d", before, after)
		}

		names := make([]string, len(partition.Procs))
		back := make([]int, len(partition.Procs))
		for to, from := range rapid.Permutation(indices(len(partition.Procs))).Draw(t, "processors") {
			names[to], back[from] = partition.Procs[from], to
		}
		partition.Procs = names
		for i := range partition.Conflicts {
			partition.Conflicts[i] = [2]int{back[partition.Conflicts[i][0]], back[partition.Conflicts[i][1]]}
		}

		for _, it := range items(partition) {
			for j := range it.Choices {
				choice := &it.Choices[j]
				var procs []int
				for _, proc := range choice.Procs {
					procs = append(procs, back[proc])
				}
				slices.Sort(procs)
				choice.Procs = procs
			}
		}
		if after, okAfter := solve(t, partition); ok != okAfter || after != before {
			t.Fatalf("renumbered processors: objective %d became %d", before, after)
		}
	})
}

// indices returns the numbers below a count.
func indices(count int) []int {
	out := make([]int, count)
	for i := range out {
		out[i] = i
	}
	return out
}

// Where all items are alike it does not matter which of them gets dearer.

func TestEqualOperatorsCommute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partition := draw(t)
		chain := &partition.Chains[0]
		partition.Chains = partition.Chains[:1]

		// Make all items alike, with hand-overs that depend on the classes only.
		shape := chain.Items[0]
		shape.Before, shape.After = []string{"a", "b"}, []string{"a", "b"}
		hand := rapid.Int64Range(0, 9).Draw(t, "hand-over")
		for i := range chain.Items {
			it := shape
			it.Name = fmt.Sprintf("item%d", i)
			it.Choices = slices.Clone(shape.Choices)
			for j := range it.Choices {
				it.Choices[j].Before, it.Choices[j].After = j%2, j%2
			}
			it.EdgeNS = [][]int64{{0, hand}, {hand, 0}}
			if i == 0 && chain.Wraps() == 0 {
				it.EdgeNS = nil
			}
			chain.Items[i] = it
		}

		dear := func(at int) int64 {
			posed := *partition
			posed.Chains = slices.Clone(partition.Chains)
			posed.Chains[0].Items = slices.Clone(chain.Items)
			it := &posed.Chains[0].Items[at]
			it.Choices = slices.Clone(it.Choices)
			for j := range it.Choices {
				it.Choices[j].CostNS += 5
			}
			ns, _ := solve(t, &posed)
			return ns
		}
		one := rapid.IntRange(0, len(chain.Items)-1).Draw(t, "one")
		other := rapid.IntRange(0, len(chain.Items)-1).Draw(t, "other")
		if ns, otherNS := dear(one), dear(other); ns != otherNS {
			t.Fatalf("item %d dearer by 5: %d, item %d instead: %d", one, ns, other, otherNS)
		}
	})
}

// A choice that gets dearer never lowers the optimum.
func TestDearerChoiceNeverLowersTheObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partition := draw(t)
		before, ok := solve(t, partition)
		it := rapid.SampledFrom(items(partition)).Draw(t, "item")
		choice := &it.Choices[rapid.IntRange(0, len(it.Choices)-1).Draw(t, "choice")]
		choice.CostNS += rapid.Int64Range(0, 50).Draw(t, "more")
		if after, _ := solve(t, partition); ok && after < before {
			t.Fatalf("objective %d fell to %d", before, after)
		}
	})
}

// The error of an instance without a solution names the operator that no processors are left for.
func TestInfeasibleNamesTheOperator(t *testing.T) {
	partition := &problem.Partition{
		Name: "decode", Procs: []string{"a", "b"}, Conflicts: [][2]int{{0, 1}},
		Chains: []problem.Chain{
			{Name: "layers", Repeat: 1, Items: []problem.Item{{Name: "norm", Before: []string{"x"},
				After: []string{"y"}, Choices: []problem.Choice{{Label: "single b", Procs: []int{1}}}}}},
			{Name: "head", Repeat: 1, Items: []problem.Item{{Name: "qkv", Before: []string{"x"}, After: []string{"y"},
				Choices: []problem.Choice{{Label: "single a", Procs: []int{0}}}}}},
		},
	}
	_, err := exact.Engine{}.Partition(context.Background(), partition)
	if diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), `"qkv" is left over`) {
		t.Fatalf("got %v, want an error of class infeasible that names the operator", err)
	}
}

// A solve that is cancelled ends with the context's error.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	partition := &problem.Partition{Name: "x", Procs: []string{"a"},
		Chains: []problem.Chain{{Name: "c", Repeat: 1, Items: []problem.Item{
			{Name: "i", Before: []string{"x"}, After: []string{"y"},
				Choices: []problem.Choice{{Label: "a", Procs: []int{0}}}}}}}}
	if _, err := (exact.Engine{}).Partition(ctx, partition); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the cancellation", err)
	}
}
