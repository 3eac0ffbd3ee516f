// Package exact knows how to solve the instances of solver/problem to proved optimality in pure Go. It is the engine of
// solve unless another one is asked for.
//
// Every problem has a file that begins with its method: chain.go (dynamic programming along a chain), partition.go
// (chains that share sets of processors), joint.go and search.go (best-first branch and bound over relaxed limits,
// relax.go), tiers.go (capacity tiers by Benders decomposition), buckets.go.
package exact

import (
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// Engine solves by dynamic programming where the structure permits it, and by branch and bound around it
// where limits couple what it would solve apart.
type Engine struct{}

// Name implements problem.Engine.
func (Engine) Name() string { return "exact" }

// maxSets bounds how many sets of processors without conflicts are tried.
const maxSets = 4096

// Partition implements problem.Engine. Two processors on one core may not both be used in a program. Every solution
// therefore uses processors of some largest set without such a conflict: the chains are solved once for each of these
// sets, and the best solution is kept. The answer is always optimal.
func (Engine) Partition(ctx context.Context, posed *problem.Partition) (problem.Solution, error) {
	if err := posed.Validate(); err != nil {
		return problem.Solution{}, err
	}
	sets, err := processorSets(posed)
	if err != nil {
		return problem.Solution{}, err
	}

	chains := make([]*chain, len(posed.Chains))
	choices := make([][]int, len(posed.Chains))
	for index := range posed.Chains {
		chains[index] = newChain(&posed.Chains[index])
		choices[index] = make([]int, len(posed.Chains[index].Items))
	}

	best := problem.Solution{ObjectiveNS: math.MaxInt64}
	for _, set := range sets {
		if err := ctx.Err(); err != nil {
			return problem.Solution{}, diag.New(diag.ClassInterrupted, "solve partition %q: %w", posed.Name, err)
		}

		total := int64(0)
		for index := range posed.Chains {
			permit(&posed.Chains[index], chains[index], set)
			total += chains[index].solve(choices[index])
		}
		isFirst := total == best.ObjectiveNS && less(choices, best.Choices)
		if total < best.ObjectiveNS || isFirst {
			best.ObjectiveNS, best.Choices = total, cloneLists(choices)
		}
	}
	best.BoundNS, best.Status = best.ObjectiveNS, problem.Optimal
	return best, nil
}

// processorSets lists the sets of processors that a partition is solved for: the largest ones without a conflict with
// which every item can be executed.
func processorSets(posed *problem.Partition) (sets []uint64, err error) {
	if len(posed.Conflicts) == 0 {
		return []uint64{math.MaxUint64}, nil
	}
	largest, ok := problem.IndependentSets(len(posed.Procs), posed.Conflicts, maxSets)
	if !ok {
		return nil, diag.New(diag.ClassInfeasible,
			"partition %q: more than %d sets of processors without shared cores", posed.Name, maxSets).
			WithHint("describe fewer processors that share cores in the SoC file")
	}

	blocked := "" // an item that the last set tried cannot execute
	for _, set := range largest {
		if name := firstBlocked(posed, set); name != "" {
			blocked = name
			continue
		}
		sets = append(sets, set)
	}
	if sets == nil {
		return nil, diag.New(diag.ClassInfeasible, "partition %q: no set of processors without shared cores "+
			"executes every operator; %q is left over", posed.Name, blocked)
	}
	return sets, nil
}

// firstBlocked returns the name of the first item that no choice executes with processors of set, empty if there is
// none.
func firstBlocked(posed *problem.Partition, set uint64) string {
	for index := range posed.Chains {
		for _, it := range posed.Chains[index].Items {
			fits := func(choice problem.Choice) bool { return mask(choice.Procs)&^set == 0 }
			if !slices.ContainsFunc(it.Choices, fits) {
				return it.Name
			}
		}
	}
	return ""
}

// permit allows the chain the choices that need processors of set only.
func permit(source *problem.Chain, out *chain, set uint64) {
	for i := range out.items {
		it := &out.items[i]
		it.allowed = it.allowed[:0]
		for choice := range source.Items[i].Choices {
			if mask(source.Items[i].Choices[choice].Procs)&^set == 0 {
				it.allowed = append(it.allowed, int32(choice))
			}
		}
	}
}

// mask returns a set of processors as bits.
func mask(procs []int) (set uint64) {
	for _, proc := range procs {
		set |= 1 << proc
	}
	return set
}

// less reports whether x is lexicographically smaller than y.
func less(x, y [][]int) bool {
	for index := range x {
		if order := slices.Compare(x[index], y[index]); order != 0 {
			return order < 0
		}
	}
	return false
}

// cloneLists returns copies of lists.
func cloneLists(lists [][]int) (out [][]int) {
	for _, list := range lists {
		out = append(out, slices.Clone(list))
	}
	return out
}
