package problem

import (
	"context"

	"github.com/hetc/hetc/internal/diag"
)

// Auto solves with Exact first, and then with General what Exact leaves open: a gap at its node limit, or no solution.
type Auto struct {
	Exact, General Engine
}

// GeneralNodes limits General if the caller sets no limit, so that a solve ends, and at the same place each time.
const GeneralNodes = 10000

// Name implements Engine.
func (a Auto) Name() string { return "auto" }

// Partition implements Engine.
func (a Auto) Partition(ctx context.Context, partition *Partition) (Solution, error) {
	first, err := a.Exact.Partition(ctx, partition)
	return closeGap(ctx, first, err, func() (Solution, error) { return a.General.Partition(ctx, partition) })
}

// Joint implements Engine. General starts from Exact's solution, and searches only among the choices that Exact left
// open.
func (a Auto) Joint(ctx context.Context, joint *Joint, limits Limits) (JointSolution, error) {
	found, err := a.Exact.Joint(ctx, joint, limits)
	return closeGap(ctx, found, err, func() (JointSolution, error) {
		limits := general(limits)
		limits.Start = found.Choices
		if found.Choices == nil || found.Open == nil {
			return a.General.Joint(ctx, joint, limits)
		}
		rest := joint.among(found.Open, found.Choices)
		limits.Start = rest.number(found.Choices)
		solution, err := a.General.Joint(ctx, rest.Joint, limits)
		if err != nil || solution.Choices == nil {
			return solution, err
		}
		solution.Choices = rest.original(solution.Choices)
		if solution.Objective == found.Objective && solution.Status == Optimal {
			solution.Status = Feasible // equally good ones were not left open: this need not be the first
		}
		return solution, nil
	})
}

// Buckets implements Engine.
func (a Auto) Buckets(ctx context.Context, buckets *Buckets, limits Limits) (BucketSolution, error) {
	first, err := a.Exact.Buckets(ctx, buckets, limits)
	return closeGap(ctx, first, err, func() (BucketSolution, error) {
		return a.General.Buckets(ctx, buckets, general(limits))
	})
}

// Tiers implements Engine. If Exact leaves a gap, the linear program is too large for General to close it.
func (a Auto) Tiers(ctx context.Context, p *Tiers, limits Limits) (TierSolution, error) {
	return a.Exact.Tiers(ctx, p, limits)
}

// Shadows implements Engine.
func (a Auto) Shadows(ctx context.Context, shadows *Shadows, limits Limits) (ShadowSolution, error) {
	first, err := a.Exact.Shadows(ctx, shadows, limits)
	return closeGap(ctx, first, err, func() (ShadowSolution, error) {
		return a.General.Shadows(ctx, shadows, general(limits))
	})
}

// general returns the limits for General: nodes of one engine are not those of the other.
func general(limits Limits) Limits {
	limits.Nodes = GeneralNodes
	return limits
}

// answer is the part that all kinds of solutions have in common.
type answer struct {
	objective, bound, nodes int64
	status                  Status
}

// answering is the interface of solutions. within returns the same solution as Feasible, with another bound.
type answering[S any] interface {
	answer() answer
	within(bound int64) S
}

// answer reduces a solution to what Auto compares; a partition's search counts no nodes.
func (s Solution) answer() answer       { return answer{s.ObjectiveNS, s.BoundNS, 0, s.Status} }
func (s JointSolution) answer() answer  { return answer{s.Objective, s.Bound, s.Nodes, s.Status} }
func (s BucketSolution) answer() answer { return answer{s.Objective, s.Bound, s.Nodes, s.Status} }
func (s TierSolution) answer() answer   { return answer{s.Objective, s.Bound, s.Nodes, s.Status} }
func (s ShadowSolution) answer() answer { return answer{s.Objective, s.Bound, s.Nodes, s.Status} }

// within returns the solution as one that is not proved, with another bound; likewise below.
func (s Solution) within(bound int64) Solution {
	s.BoundNS, s.Status = bound, Feasible
	return s
}

// within returns the solution with a bound that another engine has proved.
func (s JointSolution) within(bound int64) JointSolution {
	s.Bound, s.Status = bound, Feasible
	return s
}

func (s BucketSolution) within(bound int64) BucketSolution {
	s.Bound, s.Status = bound, Feasible
	return s
}

func (s TierSolution) within(bound int64) TierSolution {
	s.Bound, s.Status = bound, Feasible
	return s
}

func (s ShadowSolution) within(bound int64) ShadowSolution {
	s.Bound, s.Status = bound, Feasible
	return s
}

// has reports whether there is a solution.
func (a answer) has() bool { return a.status == Optimal || a.status == Feasible }

// closeGap asks general if exact's answer leaves a gap. It returns the better solution with the better bound. A failure
// of general does not lose exact's answer.
func closeGap[S answering[S]](ctx context.Context, exact S, err error, general func() (S, error)) (S, error) {
	one := exact.answer()
	if err != nil || one.status == Optimal {
		return exact, err
	}
	second, err := general()
	other := second.answer()
	bound := max(one.bound, other.bound)
	switch {
	case ctx.Err() != nil:
		var none S
		return none, diag.New(diag.ClassInterrupted, "solve: interrupted: %w", context.Cause(ctx))
	case err != nil && one.has():
		return exact, nil
	case err != nil || other.status == Optimal:
		return second, err
	case !one.has() && !other.has():
		return exact, nil
	case !other.has() || one.has() && one.objective <= other.objective:
		// Equally good ones are exact's, whose search has an order.
		return exact.within(min(bound, one.objective)), nil
	}
	return second.within(min(bound, other.objective)), nil
}
