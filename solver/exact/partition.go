// Package exact knows how to solve the instances of solver/problem to proved optimality in pure Go.
package exact

import (
	"context"
	"math"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// Engine is dynamic programming over location classes (a shortest path, as Bokhari 1988 uses for
// chains): it visits every combination of neighbouring classes, so what it returns is optimal.
// Among equally cheap solutions it keeps the one with the first choices, from the last item back.
type Engine struct{}

// Name implements problem.Engine.
func (Engine) Name() string { return "exact" }

// maxSets bounds how many sets of processors without conflicts are tried.
const maxSets = 4096

// Partition implements problem.Engine. Processors that share a core exclude each other over all chains, so
// the chains are solved once per largest set of processors without a conflict: every solution uses
// processors of one such set.
func (Engine) Partition(ctx context.Context, p *problem.Partition) (problem.Solution, error) {
	if err := p.Validate(); err != nil {
		return problem.Solution{}, err
	}
	sets, ok := problem.IndependentSets(len(p.Procs), p.Conflicts, maxSets)
	if !ok {
		return problem.Solution{}, diag.New(diag.ClassInfeasible, "partition %q: more than %d sets of processors without shared cores", p.Name, maxSets).
			WithHint("describe fewer processors that share cores in the SoC file")
	}
	best := problem.Solution{ObjectiveNS: math.MaxInt64}
	blocked := "" // the item that no set so far could execute
	for _, set := range sets {
		s := problem.Solution{}
		for k := range p.Chains {
			choices, ns, stuck, err := solveChain(ctx, &p.Chains[k], set)
			if err != nil {
				return problem.Solution{}, diag.New(diag.ClassInterrupted, "solve partition %q: %w", p.Name, err)
			}
			if choices == nil {
				blocked = stuck
				break
			}
			s.Choices, s.ObjectiveNS = append(s.Choices, choices), s.ObjectiveNS+ns
		}
		if len(s.Choices) == len(p.Chains) && s.ObjectiveNS < best.ObjectiveNS {
			best = s
		}
	}
	if best.Choices == nil {
		return problem.Solution{}, diag.New(diag.ClassInfeasible, "partition %q: no set of processors without shared cores executes every operator; %q is left over", p.Name, blocked)
	}
	best.BoundNS, best.Status = best.ObjectiveNS, problem.Optimal
	return best, nil
}

const unreachable = math.MaxInt64

// solveChain solves one chain with the processors of set: its choices and what they cost, or no
// choices and the name of the item that has none among them.
func solveChain(ctx context.Context, p *problem.Chain, set uint64) (choices []int, best int64, stuck string, err error) {
	allowed := make([][]int, len(p.Items))
	for i := range p.Items {
		for j, c := range p.Items[i].Choices {
			ok := true
			for _, q := range c.Procs {
				ok = ok && set&(1<<q) != 0
			}
			if ok {
				allowed[i] = append(allowed[i], j)
			}
		}
		if len(allowed[i]) == 0 {
			return nil, 0, p.Items[i].Name, nil
		}
	}
	// A repeated chain ends where it begins: it is solved once per class its first item may read from, the
	// most promising first, until no other can be better.
	starts := []start{{class: -1}}
	if p.Wraps() > 0 {
		starts = rank(p, allowed)
	}
	best = unreachable
	for _, first := range starts {
		start := first.class
		if first.bound >= best {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, 0, "", err
		}
		// cost[a] is the cheapest way to have executed the items so far and be in class a; from[i][a]
		// is the choice of item i that got there, via[i][b] the class that its input in class b came from.
		var cost []int64
		from, via := make([][]int, len(p.Items)), make([][]int, len(p.Items))
		for i := range p.Items {
			it := &p.Items[i]
			arrive := make([]int64, len(it.Before)) // the cheapest way to have the input in class b
			via[i] = make([]int, len(it.Before))
			if i > 0 {
				for b := range arrive {
					arrive[b] = unreachable
					for a, c := range cost {
						if c != unreachable && c+it.EdgeNS[a][b] < arrive[b] {
							arrive[b], via[i][b] = c+it.EdgeNS[a][b], a
						}
					}
				}
			}
			next := make([]int64, len(it.After))
			from[i] = make([]int, len(it.After))
			for a := range next {
				next[a] = unreachable
			}
			for _, j := range allowed[i] {
				c := it.Choices[j]
				if arrive[c.Before] == unreachable || i == 0 && start >= 0 && c.Before != start {
					continue
				}
				if v := arrive[c.Before] + c.CostNS; v < next[c.After] {
					next[c.After], from[i][c.After] = v, j
				}
			}
			cost = next
		}
		for a, c := range cost {
			if c == unreachable {
				continue
			}
			total := int64(p.Repeat) * c
			if p.Wraps() > 0 {
				total += int64(p.Wraps()) * p.Items[0].EdgeNS[a][start]
			}
			if total < best {
				best, choices = total, trace(p, from, via, a)
			}
		}
	}
	return choices, best, "", nil
}

// start is a class that the first item of a repeated chain may read from, with what the chain costs
// at least when it does.
type start struct {
	class int
	bound int64
}

// rank lists the starts, cheapest bound first. The bound is exact but for the edge from the last item to
// the first, of which it takes the cheapest: one pass from the last item to the first gives all of them.
func rank(p *problem.Chain, allowed [][]int) []start {
	var after []int64 // of each class the item before leaves its result in: the cheapest rest of the chain
	var arrive []int64
	for i := len(p.Items) - 1; i >= 0; i-- {
		it := &p.Items[i]
		arrive = make([]int64, len(it.Before))
		for b := range arrive {
			arrive[b] = unreachable
		}
		for _, j := range allowed[i] {
			c := it.Choices[j]
			rest := int64(0)
			if after != nil {
				rest = after[c.After]
			}
			if rest != unreachable {
				arrive[c.Before] = min(arrive[c.Before], c.CostNS+rest)
			}
		}
		if i == 0 {
			break
		}
		after = make([]int64, len(it.EdgeNS))
		for a, row := range it.EdgeNS {
			after[a] = unreachable
			for b, ns := range row {
				if arrive[b] != unreachable {
					after[a] = min(after[a], ns+arrive[b])
				}
			}
		}
	}
	var out []start
	for b, ns := range arrive {
		if ns == unreachable {
			continue
		}
		wrap := int64(unreachable)
		for _, row := range p.Items[0].EdgeNS {
			wrap = min(wrap, row[b])
		}
		out = append(out, start{b, int64(p.Repeat)*ns + int64(p.Wraps())*wrap})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].bound < out[j].bound })
	return out
}

// trace walks back from class a of the last item.
func trace(p *problem.Chain, from, via [][]int, a int) []int {
	choices := make([]int, len(p.Items))
	for i := len(choices) - 1; i >= 0; i-- {
		choices[i] = from[i][a]
		if i > 0 {
			a = via[i][p.Items[i].Choices[choices[i]].Before]
		}
	}
	return choices
}
