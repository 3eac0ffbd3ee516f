package solver

import (
	"cmp"
	"context"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// Shadow outliers are pruned once a plan has schemes and placements. What a plan takes is known after that: pruned
// layers have fewer steps and weights, so a limit may be kept by a pruned plan that no plan with all shadows keeps. And
// where layers of different sets meet, a limit may be broken that was kept before.

// planPrunedWithin returns the best plan found within all limits, most bytes among them (0: no limit), with pruned
// shadow outliers, and the session that made it. If no plan with all shadows keeps the limits, a pruned one may.
func (s *session) planPrunedWithin(ctx context.Context, most int64) (*session, *planir.Plan, error) {
	by, plan, err := s.planWithin(ctx, most)
	if diag.ClassOf(err) == diag.ClassInfeasible && s.mayPrune() {
		return s.pruneToFit(ctx, most, err)
	}
	if err != nil {
		return nil, nil, err
	}

	plan.Memory.Max = most
	if err := by.pruneShadows(ctx, plan); err != nil {
		return nil, nil, err
	}
	if len(plan.Shadows) == 0 {
		return by, plan, nil
	}
	// Which layers are pruned may be the workload's choice.
	if err := by.checkBounds(plan); err != nil {
		return nil, nil, err
	}
	if memory := (quantity{problem.LimitBytes, ""}); most > 0 && plan.Memory.Total > most {
		return nil, nil, by.exceededError([]bound{{memory, most, workload.KeyMemory}},
			map[quantity]int64{memory: plan.Memory.Total})
	}
	return by, plan, nil
}

// pruneToFit prunes the best plan without limits, and returns it if it then keeps those of the input, with the session
// that made it. Else the error is why: what it proves of plans with all shadows is not proved of these, unless a lower
// bound says so, which counts no shadows.
func (s *session) pruneToFit(ctx context.Context, most int64, why error) (*session, *planir.Plan, error) {
	if impossible, failed := s.proveInfeasible(); impossible != nil || failed != nil {
		return nil, nil, why
	}
	why = unproved(why)
	free, err := sessionFor(s.in, s.want)
	if err != nil {
		return nil, nil, err
	}
	free.prices = s.prices
	free.waive(problem.LimitRegionBytes, problem.LimitRegionGraphs, problem.LimitPartNS, problem.LimitEnergyNJ,
		problem.LimitBytes, problem.LimitOpenNS)
	if err := free.chooseSchemes(ctx); err != nil {
		return nil, nil, err
	}

	by, plan, err := free.planWithin(ctx, 0)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, nil, why
	}
	if err != nil {
		return nil, nil, err
	}
	if by != free {
		free.close()
	}
	plan.Memory.Max = most
	if err := by.pruneShadows(ctx, plan); err != nil {
		return nil, nil, err
	}

	by.waived, by.bounds = nil, nil
	if err := by.findBounds(); err != nil {
		return nil, nil, err
	}
	kept, err := by.fits(plan)
	if err == nil && (!kept || len(plan.Shadows) == 0) {
		err = why
	}
	return by, plan, err
}

// mayPrune reports whether the workload permits schemes with shadow outliers to be pruned.
func (s *session) mayPrune() bool {
	if s.in.Calibration == nil {
		return false
	}
	for _, ph := range s.phases {
		if ph == nil {
			continue
		}
		for _, schemes := range ph.options {
			if slices.ContainsFunc(schemes, op.Scheme.Shadow) {
				return true
			}
		}
	}
	return false
}

// pruningPays reports whether a pruned plan takes less than it did before of what is minimised, and whether it keeps
// all bounds. Of least memory a plan that holds as much in less time is better.
func (s *session) pruningPays(pruned, before *planir.Plan) (bool, error) {
	kept, err := s.fits(pruned)
	if err != nil || !kept {
		return false, err
	}

	old, err := s.expectedNS(before)
	if err != nil {
		return false, err
	}
	now, err := s.expectedNS(pruned)
	if err != nil {
		return false, err
	}
	first := 0
	switch s.measure() {
	case problem.Energy:
		first = cmp.Compare(s.expectedNJ(pruned), s.expectedNJ(before))
	case problem.Memory:
		first = cmp.Compare(pruned.Memory.Total, before.Memory.Total)
	}
	return cmp.Or(first, cmp.Compare(now, old)) < 0, nil
}
