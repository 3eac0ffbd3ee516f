// Package exact knows how to solve the instances of solver/problem to proved optimality in pure Go.
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

// Partition implements problem.Engine. Processors that share a core exclude each other over all chains, so
// the chains are solved once per largest set of processors without a conflict: every solution uses
// processors of one such set. The answer is always optimal.
func (Engine) Partition(ctx context.Context, p *problem.Partition) (problem.Solution, error) {
	if err := p.Validate(); err != nil {
		return problem.Solution{}, err
	}
	sets, err := processorSets(p)
	if err != nil {
		return problem.Solution{}, err
	}
	sections := make([]*section, len(p.Chains))
	choices := make([][]int, len(p.Chains))
	for k := range p.Chains {
		sections[k] = newSection(&p.Chains[k])
		choices[k] = make([]int, len(p.Chains[k].Items))
	}
	best := problem.Solution{ObjectiveNS: math.MaxInt64}
	blocked := "" // the item that no set so far could execute
	for _, set := range sets {
		if err := ctx.Err(); err != nil {
			return problem.Solution{}, diag.New(diag.ClassInterrupted, "solve partition %q: %w", p.Name, err)
		}
		total := int64(0)
		for k := range p.Chains {
			if stuck := permit(&p.Chains[k], sections[k], set); stuck != "" {
				blocked, total = stuck, -1
				break
			}
		}
		for k := 0; k < len(p.Chains) && total >= 0; k++ {
			total += sections[k].solve(choices[k])
		}
		if total < 0 || total > best.ObjectiveNS {
			continue
		}
		if total < best.ObjectiveNS || before(choices, best.Choices) {
			best.ObjectiveNS, best.Choices = total, nil
			for k := range choices {
				best.Choices = append(best.Choices, slices.Clone(choices[k]))
			}
		}
	}
	if best.Choices == nil {
		return problem.Solution{}, noSet(p, blocked)
	}
	best.BoundNS, best.Status = best.ObjectiveNS, problem.Optimal
	return best, nil
}

// processorSets lists the largest sets of processors without a conflict.
func processorSets(p *problem.Partition) ([]uint64, error) {
	sets, ok := problem.IndependentSets(len(p.Procs), p.Conflicts, maxSets)
	if !ok {
		return nil, diag.New(diag.ClassInfeasible, "partition %q: more than %d sets of processors without shared cores", p.Name, maxSets).
			WithHint("describe fewer processors that share cores in the SoC file")
	}
	return sets, nil
}

func noSet(p *problem.Partition, blocked string) error {
	return diag.New(diag.ClassInfeasible, "partition %q: no set of processors without shared cores executes every operator; %q is left over", p.Name, blocked)
}

// permit allows the section the choices that need processors of set only, and returns the name of the first
// item that has none.
func permit(c *problem.Chain, s *section, set uint64) (stuck string) {
	for i := range s.steps {
		st := &s.steps[i]
		st.allowed = st.allowed[:0]
		for j := range c.Items[i].Choices {
			if mask(c.Items[i].Choices[j].Procs)&^set == 0 {
				st.allowed = append(st.allowed, int32(j))
			}
		}
		if len(st.allowed) == 0 {
			return c.Items[i].Name
		}
	}
	return ""
}

// mask is a set of processors as bits.
func mask(procs []int) (m uint64) {
	for _, q := range procs {
		m |= 1 << q
	}
	return m
}

// before reports whether a is lexicographically smaller than b.
func before(a, b [][]int) bool {
	for k := range a {
		if c := slices.Compare(a[k], b[k]); c != 0 {
			return c < 0
		}
	}
	return false
}
