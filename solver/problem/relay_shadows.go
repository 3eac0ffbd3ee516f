package problem

import (
	"context"
	"fmt"
	"math"

	"github.com/hetc/hetc/solver/milp"
)

// MILP poses the instance as a linear program: a binary variable for each option, of which one in each group is taken.
// Objective and limit are scaled to about 1e6, so that tolerances mean the same in all instances. The second result is
// the variable of the first option of each group; the third times the objective is the instance's.
func (s *Shadows) MILP() (*milp.Model, []int, float64) {
	unit, scale := 1.0, 1.0
	for i := range s.Groups {
		cost, use := int64(0), int64(0)
		for _, option := range s.Groups[i].Options {
			cost, use = max(cost, option.Cost, -option.Cost), max(use, option.Use, -option.Use)
		}
		unit, scale = unit+float64(cost)/1e6, scale+float64(use)/1e6
	}
	model := builder{&milp.Model{Name: "shadows " + s.Name, Note: note(unit, "the instance's cost")}}
	var first []int
	var used []milp.Term
	for i := range s.Groups {
		first = append(first, len(model.Vars))
		var taken []milp.Term
		for j, option := range s.Groups[i].Options {
			term := one(model.binary(fmt.Sprintf("group %d option %d", i, j), float64(option.Cost)/unit))
			taken = append(taken, term)
			if option.Use != 0 {
				used = append(used, milp.Term{Var: term.Var, Coef: float64(option.Use) / scale})
			}
		}
		model.row(fmt.Sprintf("one of %d", i), 1, 1, taken)
	}
	if len(used) > 0 {
		model.atMost("limit", float64(s.Max)/scale, used)
	}
	return model.Model, first, unit
}

// Shadows implements Engine.
func (r Relay) Shadows(ctx context.Context, shadows *Shadows, limits Limits) (ShadowSolution, error) {
	if err := shadows.Validate(); err != nil {
		return ShadowSolution{}, err
	}
	model, first, unit := shadows.MILP()
	got, err := r.General.Solve(ctx, model, milp.Options{Nodes: r.limit(limits)})
	if err != nil {
		return ShadowSolution{}, fmt.Errorf("solve shadows %q: %w", shadows.Name, err)
	}
	switch got.Status {
	case milp.Infeasible:
		return ShadowSolution{}, shadows.Infeasible()
	case milp.Limit:
		return ShadowSolution{Status: LimitReached, Nodes: got.Nodes}, nil
	}
	out := ShadowSolution{Options: make([]int, len(shadows.Groups)), Nodes: got.Nodes, Status: Feasible}
	for i := range shadows.Groups {
		for j := range shadows.Groups[i].Options {
			if got.X[first[i]+j] > 0.5 {
				out.Options[i] = j
			}
		}
	}
	var use int64
	out.Objective, use = shadows.Total(out.Options)
	if use > shadows.Max { // by less than the engine's tolerance
		return ShadowSolution{Status: LimitReached, Nodes: got.Nodes}, nil
	}
	if out.Bound = out.Objective; got.Status != milp.Optimal {
		out.Bound = min(out.Objective, int64(math.Floor(got.Bound*unit)))
		return out, nil
	}
	if r.Exact == nil {
		return out, nil // optimal within the tolerance, but perhaps not the first of its kind
	}
	// Of equally good choices the first is named by the engine that orders them.
	named, err := r.Exact.Shadows(ctx, shadows, limits)
	if err != nil || named.Status != Optimal {
		return out, nil
	}
	named.Nodes = got.Nodes
	return named, nil
}
