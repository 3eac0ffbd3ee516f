package problem

import (
	"context"

	"github.com/hetc/hetc/internal/diag"
)

// Auto has Exact solve, and General what Exact leaves open: where it ends with a gap at its node limit, or without a
// solution.
type Auto struct {
	Exact, General Engine
}

// GeneralNodes limits General where the caller does not: a solve then ends, and at the same place each time.
const GeneralNodes = 10000

// Name implements Engine.
func (a Auto) Name() string { return "auto" }

// Partition implements Engine.
func (a Auto) Partition(ctx context.Context, p *Partition) (Solution, error) {
	return closeGap(ctx, Solution.answer, func(Solution) (Solution, error) { return a.Exact.Partition(ctx, p) }, func(Solution) (Solution, error) { return a.General.Partition(ctx, p) },
		func(s *Solution, bound int64, status Status) { s.BoundNS, s.Status = bound, status })
}

// Joint implements Engine. General starts from what Exact found, and looks only among the choices that Exact left open.
func (a Auto) Joint(ctx context.Context, j *Joint, limits Limits) (JointSolution, error) {
	return closeGap(ctx, JointSolution.answer, func(JointSolution) (JointSolution, error) { return a.Exact.Joint(ctx, j, limits) }, func(found JointSolution) (JointSolution, error) {
		l := general(limits)
		l.Start = found.Choices
		if found.Choices == nil || found.Open == nil {
			return a.General.Joint(ctx, j, l)
		}
		rest := j.among(found.Open, found.Choices)
		l.Start = rest.number(found.Choices)
		s, err := a.General.Joint(ctx, rest.Joint, l)
		if err != nil || s.Choices == nil {
			return s, err
		}
		s.Choices = rest.original(s.Choices)
		if s.Objective == found.Objective && s.Status == Optimal {
			s.Status = Feasible // equally good ones were not left open: this need not be the first
		}
		return s, nil
	}, func(s *JointSolution, bound int64, status Status) { s.Bound, s.Status = bound, status })
}

// Buckets implements Engine.
func (a Auto) Buckets(ctx context.Context, b *Buckets, limits Limits) (BucketSolution, error) {
	return closeGap(ctx, BucketSolution.answer, func(BucketSolution) (BucketSolution, error) { return a.Exact.Buckets(ctx, b, limits) }, func(BucketSolution) (BucketSolution, error) {
		return a.General.Buckets(ctx, b, general(limits))
	}, func(s *BucketSolution, bound int64, status Status) { s.Bound, s.Status = bound, status })
}

// Tiers implements Engine.
func (a Auto) Tiers(ctx context.Context, p *Tiers, limits Limits) (TierSolution, error) {
	return closeGap(ctx, TierSolution.answer, func(TierSolution) (TierSolution, error) { return a.Exact.Tiers(ctx, p, limits) }, func(TierSolution) (TierSolution, error) {
		return a.General.Tiers(ctx, p, general(limits))
	}, func(s *TierSolution, bound int64, status Status) { s.Bound, s.Status = bound, status })
}

// general are the limits for General: nodes of one engine are not those of the other.
func general(l Limits) Limits {
	l.Nodes = GeneralNodes
	return l
}

// answer is what every solution says of itself.
type answer struct {
	objective, bound, nodes int64
	status                  Status
}

func (s Solution) answer() answer      { return answer{s.ObjectiveNS, s.BoundNS, 0, s.Status} }
func (s JointSolution) answer() answer { return answer{s.Objective, s.Bound, s.Nodes, s.Status} }
func (s BucketSolution) answer() answer {
	return answer{s.Objective, s.Bound, s.Nodes, s.Status}
}
func (s TierSolution) answer() answer { return answer{s.Objective, s.Bound, s.Nodes, s.Status} }

// has reports whether there is a solution.
func (a answer) has() bool { return a.status == Optimal || a.status == Feasible }

// closeGap asks exact, and general where a gap is left. The better solution is returned, with the better bound. A failure
// of general loses nothing that exact found.
func closeGap[S any](ctx context.Context, of func(S) answer, exact, general func(found S) (S, error), prove func(s *S, bound int64, status Status)) (S, error) {
	var none S
	first, err := exact(none)
	if err != nil || of(first).status == Optimal {
		return first, err
	}
	second, err := general(first)
	a, b := of(first), of(second)
	switch {
	case ctx.Err() != nil:
		return none, diag.New(diag.ClassInterrupted, "solve: interrupted: %w", context.Cause(ctx))
	case err != nil && a.has():
		return first, nil
	case err != nil || b.status == Optimal:
		return second, err
	case !a.has() && !b.has():
		return first, nil
	case !b.has() || a.has() && a.objective <= b.objective:
		// Equally good ones are exact's, whose search has an order.
		prove(&first, min(max(a.bound, b.bound), a.objective), Feasible)
		return first, nil
	}
	prove(&second, min(max(a.bound, b.bound), b.objective), Feasible)
	return second, nil
}
