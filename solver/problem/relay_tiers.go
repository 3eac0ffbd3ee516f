package problem

import (
	"context"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// Tiers implements Engine: a model for every chunk length, the best of them.
func (r Relay) Tiers(ctx context.Context, p *Tiers, limits Limits) (TierSolution, error) {
	if err := p.Validate(); err != nil {
		return TierSolution{}, err
	}
	best := TierSolution{Objective: math.MaxInt64, Bound: math.MaxInt64}
	var nodes int64
	stopped := false
	for c := range p.Chunks {
		m, vars := p.MILP(c)
		unit := 1e3
		if k := p.Measure(); k == TierOff || k == TierLaunches {
			unit = 1
		}
		x, err := r.General.Solve(ctx, m, milp.Options{Nodes: r.limit(limits)})
		if err != nil {
			return TierSolution{}, fmt.Errorf("solve tiers %q: %w", p.Name, err)
		}
		nodes += x.Nodes
		switch x.Status {
		case milp.Infeasible:
			continue
		case milp.Limit:
			stopped, best.Bound = true, 0
			continue
		}
		s := TierSolution{Chunk: c, Choices: vars.Choices(x.X)}
		t := p.Table(c)
		s.Objective = t.Of(p.Measure(), t.Total(s.Choices))
		bound := s.Objective
		if x.Status != milp.Optimal {
			bound = min(bound, max(0, int64(math.Floor(x.Bound*unit))))
		}
		bound = min(bound, best.Bound)
		if s.Objective >= best.Objective {
			best.Bound = bound
			continue
		}
		best, best.Bound = s, bound
	}
	if best.Choices == nil {
		if stopped {
			return TierSolution{Status: LimitReached, Nodes: nodes}, nil
		}
		return TierSolution{}, p.Infeasible()
	}
	best.Bound, best.Nodes, best.Status = min(best.Bound, best.Objective), nodes, Feasible
	if best.Bound < best.Objective || r.Exact == nil {
		return best, p.Verify(best)
	}
	// Of equally good choices the first is named by the engine that orders them.
	if first, err := r.Exact.Tiers(ctx, p, limits); err == nil && first.Status == Optimal && agree(first.Objective, best.Objective) {
		first.Nodes = nodes
		return first, p.Verify(first)
	}
	return best, p.Verify(best)
}

// Infeasible is the error where no choice keeps the limits.
func (p *Tiers) Infeasible() error {
	return diag.New(diag.ClassInfeasible, "tiers %q: no choice of tiers keeps the bounds %v", p.Name, p.Bounds).
		WithHint("raise the latency target, or leave it out")
}
