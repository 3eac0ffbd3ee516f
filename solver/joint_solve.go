package solver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// Programs under common limits. Programs that keep them by themselves may break them together. Then one joint problem
// decides all programs at once, with fewer candidates for each node.

// Cuts of an axis that a joint problem chooses among, evenly spread, beside the cheapest of each node and those that
// a program chose on its own. Programs share a processor's region of a matrix only where they divide it alike, and
// the search looks at all of them together: with every cut of a single program it would not end.
const (
	jointCuts     = 8
	jointRowCuts  = 4  // of rows, which nothing is shared for
	fewCandidates = 12 // so many candidates of a node are all kept
)

// reduceCandidates leaves only some of each node's candidates that divide an axis alike between the same processors,
// unless they are few or plan has them. The function that it returns restores all of them, because other schemes and
// buckets are to be tried with all.
func (s *session) reduceCandidates(plan *planir.Plan) (restore func()) {
	all := map[nodeKey][]price.Candidate{}
	planned := map[string]bool{}
	for i := range plan.Decisions {
		planned[plan.Decisions[i].Node+" "+plan.Decisions[i].ShareText()] = true
	}
	for key, set := range s.candidateSets {
		all[key] = set.list
		if len(set.list) > fewCandidates {
			set.list = s.reducedList(set.list, planned)
			s.reduced = s.reduced || len(set.list) < len(all[key])
		}
	}
	whole := s.takePosed()
	return func() {
		for key, list := range all {
			s.candidateSets[key].list = list
		}
		s.putPosed(whole)
	}
}

// reducedList keeps few candidates of each kind: planned and offered ones, those that divide an operator among more or
// fewer than two processors, the cheapest, the one of least energy, and those nearest to evenly spaced cuts.
func (s *session) reducedList(list []price.Candidate, planned map[string]bool) (out []price.Candidate) {
	kinds := map[string][]int{} // candidates of one kind differ only in where they divide
	var order []string
	for i := range list {
		kind := list[i].Kind()
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], i)
	}

	keep := make([]bool, len(list))
	for _, kind := range order {
		same := kinds[kind]
		cheapest, leastEnergy := same[0], same[0]
		for _, i := range same {
			candidate := &list[i]
			if candidate.CostNS < list[cheapest].CostNS {
				cheapest = i
			}
			if candidate.EnergyNJ < list[leastEnergy].EnergyNJ {
				leastEnergy = i
			}
			isPlanned := planned[candidate.Node+" "+candidate.ShareText()]
			keep[i] = isPlanned || len(candidate.Shares) != 2 || s.isOffered(candidate)
		}
		keep[cheapest], keep[leastEnergy] = true, true

		cuts := jointCuts
		if list[cheapest].Axis == planir.AxisRows {
			cuts = jointRowCuts
		}
		// Evenly spaced cuts keep the range of divisions, in case a limit forces one far from the best.
		for part := 1; part < cuts; part++ {
			if nearest := nearestCut(list, same, part, cuts); nearest >= 0 {
				keep[nearest] = true
			}
		}
	}
	for i, candidate := range list {
		if keep[i] {
			out = append(out, candidate)
		}
	}
	return out
}

// isOffered reports whether a candidate divides its node in a way that another program has chosen.
func (s *session) isOffered(candidate *price.Candidate) bool {
	return slices.ContainsFunc(s.divisions, func(d planir.Decision) bool {
		return d.Node == candidate.Node && price.SameShares(&d, candidate.WithoutForms())
	})
}

// nearestCut returns the candidate between two processors whose first share is nearest to part of cuts parts; -1 if
// there is none.
func nearestCut(list []price.Candidate, among []int, part, cuts int) int {
	nearest, least := -1, 0
	for _, i := range among {
		shares := list[i].Shares
		if len(shares) != 2 {
			continue
		}
		off := cuts*shares[0].To - part*shares[1].To
		off = max(off, -off)
		if nearest < 0 || off < least {
			nearest, least = i, off
		}
	}
	return nearest
}

// jointRounds is how often a joint problem is posed again because its lowered plan takes more than the problem said.
const jointRounds = 8

// solveJointly returns the best plan whose programs keep all bounds together. plan is one that does not.
func (s *session) solveJointly(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	return s.solveJointlyFrom(ctx, plan, false)
}

// solveJointlyFrom does the work of solveJointly. If plan keeps all bounds, the search starts from it and returns
// nothing worse.
//
// The joint problem does not model everything that a lowered plan takes: joined graphs, hand-overs between sections,
// padding. What its first answer takes beyond the problem is subtracted from the bounds, and the problem is posed
// again, until a plan keeps them.
func (s *session) solveJointlyFrom(ctx context.Context, plan *planir.Plan, keeps bool) (*planir.Plan, error) {
	s.offerDivisions(plan)
	defer s.reduceCandidates(plan)()
	posed, err := s.poseJoint()
	if err != nil {
		return nil, err
	}
	// What the problem does not see, as far as one plan tells.
	less, err := s.unmodelled(posed, plan, posed.choices(plan), nil)
	if err != nil {
		return nil, err
	}

	var last error
	for round := range jointRounds {
		limited := s.withLimits(posed, less)

		// Solve, lower, and compare what the plan takes with the bounds themselves.
		limits := problem.Limits{Nodes: s.nodes, Bytes: s.budget.remaining(limited.bytes())}
		if keeps && round == 0 {
			limits.Start = limited.choices(plan)
		}
		if s.below > 0 {
			limits.Most = max(1, int64(s.below*limited.unit))
		}

		sol, err := s.solveJoint(ctx, limited, limits, plan)
		if err != nil {
			return nil, err
		}
		// Later problems have lower limits, and cost no less.
		if limits.Most > 0 && sol.Bound > limits.Most {
			return nil, s.undecidedError(plan)
		}

		if plan, err = s.buildJoint(limited, sol); err != nil {
			return nil, err
		}
		taken, err := s.amountsTaken(plan)
		if err != nil {
			return nil, err
		}

		over := s.brokenBounds(plan, taken)
		if len(over) == 0 {
			return plan, nil
		}

		last = s.exceededError(over, taken)
		// Take what the problem did not see off its limits, and pose it again.
		if less, err = s.unmodelled(limited, plan, sol.Choices, less); err != nil {
			return nil, err
		}
	}
	return nil, last
}

// solveJoint has the engine solve a joint problem. When memory is minimised it takes the fastest of the smallest plans
// that it finds. plan is one that breaks a bound; it tells by how much.
func (s *session) solveJoint(ctx context.Context, posed *joint, limits problem.Limits,
	plan *planir.Plan) (problem.JointSolution, error) {
	sol, err := s.in.Engine.Joint(ctx, posed.Joint, limits)
	if err == nil && limits.Most > 0 && sol.Bound > limits.Most {
		return sol, nil
	}

	if err == nil && sol.Choices == nil {
		sol, err = s.feasibleStart(ctx, posed, sol)
	}
	if err != nil {
		return sol, s.infeasibleError(err, plan, posed)
	}
	if err := posed.Verify(sol); err != nil {
		return sol, err
	}
	if sol.Choices == nil {
		return sol, s.undecidedError(plan)
	}
	if posed.Minimise != problem.Memory {
		return sol, nil
	}

	// Plans that hold least may differ in time: solve again, for time, with that memory as the limit.
	least := *posed.Joint
	least.Minimise, least.MaxBytes = problem.Time, max(1, sol.Objective)
	faster, err := s.in.Engine.Joint(ctx, &least, limits)
	if err == nil {
		err = least.Verify(faster)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return sol, err
	case err == nil && faster.Choices != nil:
		sol.Choices = faster.Choices
	}
	return sol, nil
}

// buildJoint makes the plan of a joint problem's solution.
func (s *session) buildJoint(posed *joint, sol problem.JointSolution) (*planir.Plan, error) {
	report := planir.Solve{
		Problem: jointProblem(s.measure()), Choices: posed.Size(),
		Status:      statusOf(sol.Status, sol.Objective, sol.Bound),
		ObjectiveNS: price.Whole(s.inMeasureUnit(posed, sol.Objective)),
		BoundNS:     price.Whole(s.inMeasureUnit(posed, sol.Bound)),
	}
	if sol.Status == problem.Feasible {
		report.BoundNS = min(report.BoundNS, report.ObjectiveNS)
	}
	s.budget.joints[report] = sol.Objective
	made := solved{reports: []planir.Solve{report}}
	for i, program := range posed.programs {
		made.decisions = append(made.decisions, program.decisions(sol.Choices[i]))
	}
	return s.buildPlan(made)
}

// feasibleStart returns the best solution of a problem for which the engine found none. It first solves for what is
// limited (energy, memory or time) without that limit. If the answer keeps all limits, the engine begins again from it.
// Else the result is none, the engine's first answer.
func (s *session) feasibleStart(
	ctx context.Context, posed *joint, none problem.JointSolution,
) (problem.JointSolution, error) {
	for _, goal := range []problem.Measure{problem.Energy, problem.Memory, problem.Time} {
		joint := *posed.Joint
		joint.Minimise = goal
		switch {
		case goal == problem.Energy && joint.MaxEnergyNJ > 0:
			joint.MaxEnergyNJ = 0
		case goal == problem.Memory && (joint.MaxBytes > 0 || len(joint.Regions) > 0):
			joint.MaxBytes = 0
		case goal == problem.Time && s.isLimited(problem.LimitPartNS):
			joint.Parts = slices.Clone(joint.Parts)
			for i := range joint.Parts {
				joint.Parts[i].MaxNS = 0
			}
		default:
			continue
		}

		limits := problem.Limits{Nodes: triedNodes, Bytes: s.budget.remaining(posed.bytes())}
		least, err := s.in.Engine.Joint(ctx, &joint, limits)
		if diag.ClassOf(err) == diag.ClassInfeasible {
			continue
		}
		if err != nil {
			return none, err
		}
		if least.Choices != nil && posed.Keeps(least.Choices) {
			return s.in.Engine.Joint(ctx, posed.Joint,
				problem.Limits{Nodes: s.nodes, Bytes: s.budget.remaining(posed.bytes()), Start: least.Choices})
		}
	}
	return none, nil
}

// inMeasureUnit returns an objective of a joint problem in the unit of its measure.
func (s *request) inMeasureUnit(j *joint, objective int64) float64 {
	if j.Minimise == problem.Memory {
		return float64(objective)
	}
	return float64(objective) / j.unit
}

// unmodelled returns by how much a lowered plan exceeds what the problem says of every bound: the largest excess of
// this plan and of those before.
func (s *session) unmodelled(posed *joint, plan *planir.Plan, choices [][][]int,
	before map[quantity]int64) (map[quantity]int64, error) {
	taken, err := s.amountsTaken(plan)
	if err != nil {
		return nil, err
	}
	out := maps.Clone(before)
	if out == nil {
		out = map[quantity]int64{}
	}
	for quantity, amount := range posed.modelledAmounts(s, choices) {
		more := taken[quantity] - amount
		if old, ok := before[quantity]; ok {
			more = max(more, old)
		}
		out[quantity] = more
	}
	return out, nil
}

// exceededError returns the error that a plan takes more than is allowed.
func (s *request) exceededError(over []bound, taken map[quantity]int64) error {
	failure := &LimitError{}
	var parts []string
	for i := range over {
		bound := &over[i]
		if !slices.Contains(failure.Names, bound.user) {
			failure.Names = append(failure.Names, bound.user)
		}
		what, takes, most := bound.exceeded(taken[bound.quantity])
		parts = append(parts, fmt.Sprintf("%s %s, and at most %s are allowed", what, takes, most))
	}
	failure.text = fmt.Sprintf("%s %s: %s", noPlanFound, strings.Join(failure.Names, " and "),
		strings.Join(parts, "; "))
	return diag.New(diag.ClassInfeasible, "solve: %w", failure).WithHint(limitHint)
}

// limitHint says what helps against limits that cannot be kept.
const limitHint = "raise a limit, or permit a scheme with fewer bits, or fewer buckets, in the workload"

// undecidedError returns the error that no plan is known that takes less of a limit than plan does.
func (s *session) undecidedError(plan *planir.Plan) error {
	taken, err := s.amountsTaken(plan)
	if err != nil {
		return err
	}
	return s.exceededError(s.brokenBounds(plan, taken), taken)
}
