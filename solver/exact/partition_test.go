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
	p := &problem.Partition{Name: "random"}
	for q := range procs {
		p.Procs = append(p.Procs, fmt.Sprintf("p%d", q))
	}
	if rapid.Bool().Draw(t, "conflicts") {
		for a := range procs {
			for b := a + 1; b < procs; b++ {
				if rapid.Bool().Draw(t, "conflict") {
					p.Conflicts = append(p.Conflicts, [2]int{a, b})
				}
			}
		}
	}
	for k := range rapid.IntRange(1, 2).Draw(t, "chains") {
		p.Chains = append(p.Chains, drawChain(t, k, procs))
	}
	return p
}

func drawChain(t *rapid.T, number, procs int) problem.Chain {
	p := problem.Chain{Name: fmt.Sprintf("chain%d", number), Repeat: rapid.SampledFrom([]int{1, 2, 7}).Draw(t, "repeat")}
	p.Breaks = rapid.IntRange(0, p.Repeat-1).Draw(t, "breaks")
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
			c := problem.Choice{Label: fmt.Sprintf("choice%d", j), CostNS: cost.Draw(t, "cost")}
			c.Before = rapid.IntRange(0, len(it.Before)-1).Draw(t, "from")
			c.After = rapid.IntRange(0, len(it.After)-1).Draw(t, "to")
			for q := range procs {
				if rapid.IntRange(0, 2).Draw(t, "uses") == 0 {
					c.Procs = append(c.Procs, q)
				}
			}
			if c.Procs == nil {
				c.Procs = []int{rapid.IntRange(0, procs-1).Draw(t, "uses")}
			}
			it.Choices = append(it.Choices, c)
		}
		p.Items = append(p.Items, it)
	}
	for i := range p.Items {
		if i == 0 && p.Wraps() == 0 {
			continue
		}
		prev := p.Items[(i+len(p.Items)-1)%len(p.Items)]
		for range prev.After {
			row := make([]int64, len(p.Items[i].Before))
			for b := range row {
				row[b] = cost.Draw(t, "edge")
			}
			p.Items[i].EdgeNS = append(p.Items[i].EdgeNS, row)
		}
	}
	return p
}

// bruteForce enumerates every combination, in lexicographic order; the choices are nil when each has a conflict, else
// the first of the cheapest. It shares no code with the engine or the instance's own objective.
func bruteForce(p *problem.Partition) (best int64, first [][]int) {
	best = math.MaxInt64
	type place struct{ chain, item int }
	var places []place
	for k := range p.Chains {
		for i := range p.Chains[k].Items {
			places = append(places, place{k, i})
		}
	}
	pick := make([]int, len(places))
	choice := func(n int) problem.Choice {
		return p.Chains[places[n].chain].Items[places[n].item].Choices[pick[n]]
	}
	for {
		used := map[int]bool{}
		for n := range pick {
			for _, q := range choice(n).Procs {
				used[q] = true
			}
		}
		legal := true
		for _, c := range p.Conflicts {
			legal = legal && !(used[c[0]] && used[c[1]])
		}
		if legal {
			total := int64(0)
			first1 := 0
			for _, c := range p.Chains {
				before := -1              // class the step before left its result in
				for r := range c.Repeat { // walk the repetitions one by one
					if r <= c.Breaks {
						before = -1
					}
					for i := range c.Items {
						ch := choice(first1 + i)
						total += ch.CostNS
						if before >= 0 {
							total += c.Items[i].EdgeNS[before][ch.Before]
						}
						before = ch.After
					}
				}
				first1 += len(c.Items)
			}
			if total < best {
				best, first = total, make([][]int, len(p.Chains))
				for n, at := range places {
					first[at.chain] = append(first[at.chain], pick[n])
				}
			}
		}
		n := len(pick) - 1
		for ; n >= 0; n-- {
			if pick[n]++; pick[n] < len(p.Chains[places[n].chain].Items[places[n].item].Choices) {
				break
			}
			pick[n] = 0
		}
		if n < 0 {
			return best, first
		}
	}
}

// items lists the items of all chains.
func items(p *problem.Partition) []*problem.Item {
	var out []*problem.Item
	for k := range p.Chains {
		for i := range p.Chains[k].Items {
			out = append(out, &p.Chains[k].Items[i])
		}
	}
	return out
}

// solve returns the proved optimum, ok = false when the instance is infeasible.
func solve(t interface{ Fatalf(string, ...any) }, p *problem.Partition) (int64, bool) {
	v, choices := solveFirst(t, p)
	return v, choices != nil
}

// solveFirst returns the choices too, nil when the instance is infeasible.
func solveFirst(t interface{ Fatalf(string, ...any) }, p *problem.Partition) (int64, [][]int) {
	s, err := exact.Engine{}.Partition(context.Background(), p)
	if err != nil {
		if diag.ClassOf(err) != diag.ClassInfeasible {
			t.Fatalf("solve: %v", err)
		}
		return 0, nil
	}
	if err := p.Verify(s); err != nil {
		t.Fatalf("%v", err)
	}
	if s.Status != problem.Optimal {
		t.Fatalf("status %q, want optimal", s.Status)
	}
	return s.ObjectiveNS, s.Choices
}

// Of 10,000 random instances each is solved to the optimum of an enumeration, and to its first choices: costs are
// small, so that many combinations are equally cheap.
func TestBruteForce(t *testing.T) {
	feasible, several := 0, 0
	many(t, 10000, func(t *rapid.T) {
		p := draw(t)
		want, wantFirst := bruteForce(p)
		got, first := solveFirst(t, p)
		if (first == nil) != (wantFirst == nil) || first != nil && got != want {
			t.Fatalf("objective %d, choices %v: enumeration finds %d with %v", got, first, want, wantFirst)
		}
		if !reflect.DeepEqual(first, wantFirst) {
			t.Fatalf("choices %v cost %d, and the first such are %v", first, got, wantFirst)
		}
		if first != nil {
			feasible++
		}
		if len(p.Conflicts) > 0 && first != nil {
			several++
		}
	})
	if feasible == 0 || several == 0 {
		t.Fatalf("of the instances %d were feasible, %d with conflicts", feasible, several)
	}
}

// many checks n random instances.
func many(t *testing.T, n int, check func(t *rapid.T)) {
	t.Helper()
	old := flag.Lookup("rapid.checks").Value.String()
	flag.Set("rapid.checks", strconv.Itoa(n))
	defer flag.Set("rapid.checks", old)
	rapid.Check(t, check)
}

// long is n where HETC_LONG=1 asks for tests that take long, else a tenth.
func long(n int) int {
	if os.Getenv("HETC_LONG") == "1" {
		return n
	}
	return n / 10
}

func TestAnotherChoiceNeverHurts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := draw(t)
		before, ok := solve(t, p)
		it := rapid.SampledFrom(items(p)).Draw(t, "item")
		more := it.Choices[0]
		more.Label, more.CostNS = "another", rapid.Int64Range(0, 20).Draw(t, "cost")
		more.After = rapid.IntRange(0, len(it.After)-1).Draw(t, "to")
		it.Choices = append(it.Choices, more)
		after, okAfter := solve(t, p)
		if ok && (!okAfter || after > before) {
			t.Fatalf("objective %d became %d (feasible %v)", before, after, okAfter)
		}
	})
}

func TestScaledCostsScaleTheObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := draw(t)
		before, ok := solve(t, p)
		factor := rapid.Int64Range(1, 1000).Draw(t, "factor")
		for _, it := range items(p) {
			for j := range it.Choices {
				it.Choices[j].CostNS *= factor
			}
			for _, row := range it.EdgeNS {
				for b := range row {
					row[b] *= factor
				}
			}
		}
		if after, _ := solve(t, p); ok && after != factor*before {
			t.Fatalf("objective %d times %d became %d", before, factor, after)
		}
	})
}

// Reordering the choices of an item, or exchanging two equal neighbouring items whose hand-over
// costs nothing, changes nothing.
func TestPermutations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := draw(t)
		before, ok := solve(t, p)
		for _, it := range items(p) {
			it.Choices = rapid.Permutation(it.Choices).Draw(t, "order")
		}
		if after, okAfter := solve(t, p); ok != okAfter || after != before {
			t.Fatalf("reordered choices: objective %d became %d", before, after)
		}
		names := make([]string, len(p.Procs))
		back := make([]int, len(p.Procs))
		for to, from := range rapid.Permutation(indices(len(p.Procs))).Draw(t, "processors") {
			names[to], back[from] = p.Procs[from], to
		}
		p.Procs = names
		for i := range p.Conflicts {
			p.Conflicts[i] = [2]int{back[p.Conflicts[i][0]], back[p.Conflicts[i][1]]}
		}
		for _, it := range items(p) {
			for j := range it.Choices {
				c := &it.Choices[j]
				var procs []int
				for _, q := range c.Procs {
					procs = append(procs, back[q])
				}
				slices.Sort(procs)
				c.Procs = procs
			}
		}
		if after, okAfter := solve(t, p); ok != okAfter || after != before {
			t.Fatalf("renumbered processors: objective %d became %d", before, after)
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestEqualOperatorsCommute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := draw(t)
		c := &p.Chains[0]
		p.Chains = p.Chains[:1]
		// Make all items alike, with hand-overs that depend on the classes only.
		shape := c.Items[0]
		shape.Before, shape.After = []string{"a", "b"}, []string{"a", "b"}
		hand := rapid.Int64Range(0, 9).Draw(t, "hand-over")
		for i := range c.Items {
			it := shape
			it.Name = fmt.Sprintf("item%d", i)
			it.Choices = slices.Clone(shape.Choices)
			for j := range it.Choices {
				it.Choices[j].Before, it.Choices[j].After = j%2, j%2
			}
			it.EdgeNS = [][]int64{{0, hand}, {hand, 0}}
			if i == 0 && c.Wraps() == 0 {
				it.EdgeNS = nil
			}
			c.Items[i] = it
		}
		// When one of them gets dearer it does not matter which.
		dear := func(at int) int64 {
			q := *p
			q.Chains = slices.Clone(p.Chains)
			q.Chains[0].Items = slices.Clone(c.Items)
			it := &q.Chains[0].Items[at]
			it.Choices = slices.Clone(it.Choices)
			for j := range it.Choices {
				it.Choices[j].CostNS += 5
			}
			v, _ := solve(t, &q)
			return v
		}
		i := rapid.IntRange(0, len(c.Items)-1).Draw(t, "i")
		k := rapid.IntRange(0, len(c.Items)-1).Draw(t, "k")
		if a, b := dear(i), dear(k); a != b {
			t.Fatalf("item %d dearer by 5: %d, item %d instead: %d", i, a, k, b)
		}
	})
}

func TestDearerChoiceNeverLowersTheObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := draw(t)
		before, ok := solve(t, p)
		it := rapid.SampledFrom(items(p)).Draw(t, "item")
		it.Choices[rapid.IntRange(0, len(it.Choices)-1).Draw(t, "choice")].CostNS += rapid.Int64Range(0, 50).Draw(t, "more")
		if after, _ := solve(t, p); ok && after < before {
			t.Fatalf("objective %d fell to %d", before, after)
		}
	})
}

func TestInfeasibleNamesTheOperator(t *testing.T) {
	p := &problem.Partition{
		Name: "decode", Procs: []string{"a", "b"}, Conflicts: [][2]int{{0, 1}},
		Chains: []problem.Chain{
			{Name: "layers", Repeat: 1, Items: []problem.Item{{Name: "norm", Before: []string{"x"}, After: []string{"y"}, Choices: []problem.Choice{{Label: "single b", Procs: []int{1}}}}}},
			{Name: "head", Repeat: 1, Items: []problem.Item{{Name: "qkv", Before: []string{"x"}, After: []string{"y"}, Choices: []problem.Choice{{Label: "single a", Procs: []int{0}}}}}},
		},
	}
	_, err := exact.Engine{}.Partition(context.Background(), p)
	if diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), `"qkv" is left over`) {
		t.Fatalf("got %v, want an error of class infeasible that names the operator", err)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := &problem.Partition{Name: "x", Procs: []string{"a"}, Chains: []problem.Chain{{Name: "c", Repeat: 1, Items: []problem.Item{
		{Name: "i", Before: []string{"x"}, After: []string{"y"}, Choices: []problem.Choice{{Label: "a", Procs: []int{0}}}}}}}}
	if _, err := (exact.Engine{}).Partition(ctx, p); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the cancellation", err)
	}
}
