package exact

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// maxShadowStates bounds the states that are kept for the groups behind one.
const maxShadowStates = 1 << 15

// shadowState is what options of some groups cost and use together.
type shadowState struct{ cost, use int64 }

// Shadows implements problem.Engine: dynamic programming over the groups, from the last to the first, whose states are
// what the groups behind may cost and use together (Nemhauser and Ullmann 1969). A state is dropped if another one
// costs no more and uses no more, or if no options of the groups in front stay within the limit with it. The optimum is
// the cheapest state of all groups. Which options it is made of is found walking forward: each group takes the first
// option that some state behind completes to the optimum, so that of equally good choices the first is returned.
//
// Layers of one class cost alike, so that states are few; where they are more than maxShadowStates they are thinned
// out, evenly, and the answer is Feasible with the sum of the cheapest options as its bound.
func (Engine) Shadows(ctx context.Context, posed *problem.Shadows, _ problem.Limits) (problem.ShadowSolution, error) {
	if err := posed.Validate(); err != nil {
		return problem.ShadowSolution{}, err
	}

	count := len(posed.Groups)
	spare, bound := shadowLimits(posed)
	behind := make([][]shadowState, count+1)
	behind[count] = []shadowState{{}}
	proved := true
	var nodes int64

	for i := count - 1; i >= 0; i-- {
		if ctx.Err() != nil {
			return problem.ShadowSolution{}, diag.New(diag.ClassInterrupted, "solve shadows %q: interrupted: %w",
				posed.Name, context.Cause(ctx))
		}

		all := make([]shadowState, 0, len(behind[i+1])*len(posed.Groups[i].Options))
		for _, option := range posed.Groups[i].Options {
			for _, rest := range behind[i+1] {
				state := shadowState{rest.cost + option.Cost, rest.use + option.Use}
				if state.use <= spare[i] {
					all = append(all, state)
				}
			}
		}

		nodes += int64(len(all))
		behind[i] = undominated(all)
		if len(behind[i]) > maxShadowStates {
			behind[i], proved = thinned(behind[i]), false
		}
	}

	if len(behind[0]) == 0 {
		return problem.ShadowSolution{}, posed.Infeasible()
	}
	target := behind[0][0] // the cheapest
	out := problem.ShadowSolution{Objective: target.cost, Bound: target.cost, Status: problem.Optimal, Nodes: nodes}
	if !proved {
		out.Bound, out.Status = bound, problem.Feasible
	}

	out.Options = walkShadows(posed, behind, target.cost)
	return out, nil
}

// shadowLimits returns what is left of the limit in front of each group, once the groups before it have used least, and
// the sum of the cheapest options.
func shadowLimits(posed *problem.Shadows) (spare []int64, bound int64) {
	spare = append(spare, posed.Max)
	for i := range posed.Groups {
		least, cheapest := int64(math.MaxInt64), int64(math.MaxInt64)
		for _, option := range posed.Groups[i].Options {
			least, cheapest = min(least, option.Use), min(cheapest, option.Cost)
		}
		spare = append(spare, spare[i]-least)
		bound += cheapest
	}
	return spare, bound
}

// walkShadows returns the first options that make up a cost, given the states behind each group.
func walkShadows(posed *problem.Shadows, behind [][]shadowState, cost int64) (options []int) {
	room := shadowState{cost, posed.Max}
	for i := range posed.Groups {
		at := slices.IndexFunc(posed.Groups[i].Options, func(option problem.ShadowOption) bool {
			return completes(behind[i+1], room.cost-option.Cost, room.use-option.Use)
		})
		options = append(options, at)
		room.cost -= posed.Groups[i].Options[at].Cost
		room.use -= posed.Groups[i].Options[at].Use
	}
	return options
}

// undominated sorts states by cost, and keeps those that use less than all cheaper ones.
func undominated(states []shadowState) (out []shadowState) {
	slices.SortFunc(states, func(a, b shadowState) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.use, b.use))
	})
	for _, state := range states {
		if len(out) == 0 || state.use < out[len(out)-1].use {
			out = append(out, state)
		}
	}
	return out
}

// thinned keeps half of maxShadowStates, evenly: among them the one that uses most and the one that costs most.
func thinned(states []shadowState) (out []shadowState) {
	const keep = maxShadowStates / 2
	for i := range keep {
		out = append(out, states[i*(len(states)-1)/(keep-1)])
	}
	return out
}

// completes reports whether a state costs no more than so much, and uses no more.
func completes(states []shadowState, cost, use int64) bool {
	// Of the states that cost no more the dearest uses least.
	after, _ := slices.BinarySearchFunc(states, cost, func(state shadowState, cost int64) int {
		if state.cost <= cost {
			return -1
		}
		return 1
	})
	return after > 0 && states[after-1].use <= use
}
