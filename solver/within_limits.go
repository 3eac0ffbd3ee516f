package solver

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// A plan under limits is looked for in four steps, each where the one before it found none.
//
//  1. A lower bound of each limited quantity over all schemes, buckets and placements. Where one exceeds its limit, no
//     plan exists. It takes a pass over the candidates, the next steps one solve or many.
//  2. The best schemes without limits, and all buckets: the joint problem of all programs.
//  3. Other schemes and fewer buckets: with a bound of memory all pairs of assignments in the order of their bounds,
//     else the pairs that are best for what is limited.
//  4. The plan that takes least of what is limited, of energy and of memory, and the fastest one where energy is
//     minimised: if even that one is not within its limit the error says what it takes. Else it is where the search for
//     a better plan starts, and what is returned if there is none.
//
// If minimising a quantity reaches a value within its limit, there is always a plan. An error says whether it was
// proved that there is none (step 1, or a joint problem to which nothing was an alternative), or that none was found.

// planWithin returns the best plan found within all limits, bound bytes among them (0: no limit), with the session that
// made it.
func (s *session) planWithin(ctx context.Context, bound int64) (*session, *planir.Plan, error) {
	// Step 1.
	if impossible, failed := s.proveInfeasible(); impossible != nil || failed != nil {
		return nil, nil, cmp.Or(failed, impossible)
	}
	if s.measure() == problem.Memory {
		return s.smallestWithin(ctx, bound)
	}
	if bound > 0 && s.knownObjective == 0 && s.leastMemory() > bound {
		return s.fromLeastMemory(ctx, bound) // which says what the smallest plan holds
	}

	// Step 2.
	by, plan, err := s.planWithOwnSchemes(ctx)
	if err == nil && (bound == 0 || plan.Memory.Total <= bound) {
		return by, plan, nil
	}
	if err != nil && diag.ClassOf(err) != diag.ClassInfeasible {
		return nil, nil, err
	}

	// Step 3.
	if bound > 0 {
		by, plan, err = s.planWithinMemory(ctx, bound, plan)
	} else {
		by, plan, err = s.planWithOtherSchemes(ctx, err)
	}
	if diag.ClassOf(err) != diag.ClassInfeasible {
		return by, plan, err
	}
	switch {
	case s.isLimited(problem.LimitEnergyNJ) && s.measure() != problem.Energy:
		return s.fromLeastEnergy(ctx, bound, err)
	case s.isLimited(problem.LimitPartNS) && s.measure() == problem.Energy:
		return s.fromLeastTime(ctx, bound, err)
	}
	return nil, nil, err
}

// smallestWithin returns the smallest plan with its session; an error says so if it holds more than bound bytes
// (0: no limit).
func (s *session) smallestWithin(ctx context.Context, bound int64) (*session, *planir.Plan, error) {
	by, plan, err := s.smallest(ctx)
	if err == nil && bound > 0 && plan.Memory.Total > bound {
		err = s.tooLarge(bound, plan)
	}
	return by, plan, err
}

// planWithOwnSchemes returns the best plan with the session's schemes, for all buckets or for fewer, and the session
// that made it.
func (s *session) planWithOwnSchemes(ctx context.Context) (*session, *planir.Plan, error) {
	plan, err := s.completePlan(ctx)
	if err != nil {
		return s, plan, err
	}
	return s.tryFewerBuckets(ctx, plan)
}

// isLimited reports whether a quantity of that kind is bounded.
func (s *session) isLimited(kind problem.LimitKind) bool {
	return slices.ContainsFunc(s.bounds, func(b bound) bool { return b.kind == kind })
}

// planWithOtherSchemes returns the best plan found with the schemes that are best for the limited quantities, for all
// buckets or the first of them. why is the error of the session's own schemes; it is returned if none of these schemes
// has a plan.
func (s *session) planWithOtherSchemes(ctx context.Context, why error) (*session, *planir.Plan, error) {
	var by *session
	var best *planir.Plan
	bestNS := math.Inf(1)
	for buckets := len(s.want.Buckets); buckets >= s.fewestBucketsForTime(); buckets-- {
		other, err := s.withBuckets(ctx, buckets)
		if err != nil {
			return nil, nil, err
		}
		if other.lowestObjective() >= bestNS {
			continue
		}
		pairs, err := other.startPairs(ctx)
		if err != nil {
			return nil, nil, err
		}

		used := false
		other.phase = fmt.Sprintf("fit the limits, %d buckets", buckets)

		for _, pair := range pairs {
			if buckets == len(s.want.Buckets) && pair.chosenBy(&s.schemeChoice) {
				continue // it broke a limit
			}
			other.prefill, other.decode, other.chosen, other.nodes = pair.prefill, pair.decode, nil, triedNodes
			plan, err := other.completePlan(ctx)
			if diag.ClassOf(err) == diag.ClassInfeasible {
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			if ns := other.objective(plan); ns < bestNS {
				kept := *other
				by, best, bestNS, used = &kept, plan, ns, true
			}
		}

		if !used {
			other.close()
		}
	}

	if best == nil {
		return nil, nil, why
	}
	by.chosen = by.openSchemes(bestNS, s.lowestObjective())
	best.Solver = append(slices.Clone(best.Solver), *by.chosen)
	return by, best, nil
}

// withBuckets returns the session with the first n buckets, prepared.
func (s *session) withBuckets(ctx context.Context, buckets int) (*session, error) {
	if buckets < len(s.want.Buckets) {
		return s.withFirstBuckets(ctx, buckets)
	}
	other := *s
	other.kept, other.cached = 0, 0 // the session they were counted for releases them
	return &other, nil
}

// lowestObjective returns a lower bound of the objective over all schemes.
func (s *schemeChoice) lowestObjective() float64 {
	total := 0.0
	for _, ph := range s.phases {
		if ph != nil && len(ph.rows) > 0 && len(ph.points) > 0 {
			total += ph.points[0].bound
		}
	}
	return total
}

// openSchemes returns the report of schemes that are not proved to be the best.
func (s *schemeChoice) openSchemes(ns, bound float64) *planir.Solve {
	return &planir.Solve{Problem: "schemes", Status: string(problem.Feasible), ObjectiveNS: price.Whole(ns),
		BoundNS: min(price.Whole(bound), price.Whole(ns)), Choices: s.countOptions()}
}

// countOptions counts the schemes that classes may have, over both phases.
func (s *schemeChoice) countOptions() (count int) {
	for _, ph := range s.phases {
		for _, options := range ph.options {
			count += len(options)
		}
	}
	return count
}

// schemePair is an assignment of each phase.
type schemePair struct{ prefill, decode assignment }

// chosenBy reports whether the pair is what a session has chosen.
func (p schemePair) chosenBy(s *schemeChoice) bool {
	return slices.Equal(p.prefill, s.prefill) && slices.Equal(p.decode, s.decode)
}

// startPairs returns the schemes that are best for the objective, for energy where that is limited, and those with the
// lightest weights.
func (s *session) startPairs(ctx context.Context) ([]schemePair, error) {
	var out []schemePair
	add := func(prefill, decode assignment) {
		isPair := func(known schemePair) bool {
			return slices.Equal(known.prefill, prefill) && slices.Equal(known.decode, decode)
		}
		if decode != nil && !slices.ContainsFunc(out, isPair) {
			out = append(out, schemePair{prefill, decode})
		}
	}

	goals := []problem.Measure{s.measure()}
	if s.isLimited(problem.LimitEnergyNJ) && s.measure() != problem.Energy {
		goals = append(goals, problem.Energy)
	}

	for _, goal := range goals {
		other, err := s.withGoal(goal)
		if err != nil {
			return nil, err
		}
		found, err := other.bestSchemes(ctx)
		if err != nil {
			return nil, err
		}
		add(found.prefill, found.decode)
	}
	add(s.lightest())
	return out, nil
}

// bestSchemes returns the pair with the least objective where no limit binds.
func (s *planner) bestSchemes(ctx context.Context) (searchResult, error) {
	return s.search(ctx, math.Inf(1), nil, func(prefill, decode assignment) (float64, bool, error) {
		ns, err := s.solvedObjective(ctx, prefill, decode)
		return ns, err == nil, err
	})
}

// fromLeastEnergy starts from the plan of least energy and returns the best plan found from there; why is the error
// without it.
func (s *session) fromLeastEnergy(ctx context.Context, bound int64, why error) (*session, *planir.Plan, error) {
	leastEnergy, err := s.withGoal(problem.Energy)
	if err != nil {
		return nil, nil, err
	}
	leastEnergy.waive(problem.LimitEnergyNJ)
	found, err := leastEnergy.bestSchemes(ctx)
	if err != nil || found.decode == nil {
		return nil, nil, cmp.Or(err, why)
	}
	leastEnergy.prefill, leastEnergy.decode, leastEnergy.chosen = found.prefill, found.decode, found.report
	by, plan, err := leastEnergy.planWithin(ctx, bound)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, nil, why
	}
	if err != nil {
		return nil, nil, err
	}
	return s.improveFrom(ctx, by, plan, bound)
}

// fromLeastTime starts from the fastest plan and returns the best plan found from there; why is the error without it.
// The timeline may have found that one faster than the problems say that any is.
func (s *session) fromLeastTime(ctx context.Context, bound int64, why error) (*session, *planir.Plan, error) {
	fastest, err := s.withGoal(problem.Time)
	if err != nil {
		return nil, nil, err
	}
	found, err := fastest.bestSchemes(ctx)
	if err != nil || found.decode == nil {
		return nil, nil, cmp.Or(err, why)
	}
	fastest.prefill, fastest.decode, fastest.chosen = found.prefill, found.decode, found.report
	by, plan, err := fastest.planWithin(ctx, bound)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, nil, why
	}
	if err != nil {
		return nil, nil, err
	}
	return s.improveFrom(ctx, by, plan, bound)
}

// fromLeastMemory starts from the plan that holds least and returns the best plan found from there.
func (s *session) fromLeastMemory(ctx context.Context, bound int64) (*session, *planir.Plan, error) {
	leastMemory, err := s.withGoal(problem.Memory)
	if err != nil {
		return nil, nil, err
	}
	leastMemory.addMemoryBound(0)
	by, plan, err := leastMemory.smallest(ctx)
	if err != nil {
		return nil, nil, err
	}
	if plan.Memory.Total > bound {
		return nil, nil, s.tooLarge(bound, plan)
	}
	return s.improveFrom(ctx, by, plan, bound)
}

// improveFrom starts from a plan that was made for another goal, with its schemes and buckets. It returns the best plan
// found by the session's own measure; if a limit leaves no room, that is the plan itself. most bounds the memory, 0: no
// bound.
func (s *session) improveFrom(ctx context.Context, by *session, plan *planir.Plan,
	most int64) (*session, *planir.Plan, error) {
	other, err := by.withGoal(s.measure())
	if err != nil {
		return nil, nil, err
	}
	// All bounds hold again, those included that the other goal did without.
	other.waived, other.bounds = s.waived, nil
	if err := other.findBounds(); err != nil {
		return nil, nil, err
	}
	other.addMemoryBound(most)
	other.tight = most > 0

	if err := other.checkBounds(plan); err != nil {
		return nil, nil, err
	}
	better, err := other.solveJointlyFrom(ctx, plan, true)
	if err == nil {
		better, err = other.withPredictions(better)
	}
	if err != nil && diag.ClassOf(err) != diag.ClassInfeasible {
		return nil, nil, err
	}

	// Nothing better: the plan itself, with its cost by this measure.
	tooLarge := err == nil && most > 0 && better.Memory.Total > most
	if err != nil || tooLarge {
		other.keepPrograms = true
		if better, err = other.repriced(ctx, plan); err != nil {
			return nil, nil, err
		}
		if better, err = other.withPredictions(better); err != nil {
			return nil, nil, err
		}
	}

	other.chosen = other.openSchemes(other.objective(better), s.lowestObjective())
	better.Solver = append(slices.Clone(better.Solver), *other.chosen)
	return other, better, nil
}

// checkBounds returns an error that names the bounds which a plan exceeds.
func (s *session) checkBounds(plan *planir.Plan) error {
	taken, err := s.amountsTaken(plan)
	if err != nil {
		return err
	}
	var over []bound
	for _, bound := range s.bounds {
		if taken[bound.quantity] > bound.max {
			over = append(over, bound)
		}
	}
	if over != nil {
		return s.exceededError(over, taken)
	}
	return nil
}

// withPredictions adds predictions and memory to a plan.
func (s *session) withPredictions(plan *planir.Plan) (*planir.Plan, error) {
	if err := s.predict(plan); err != nil {
		return nil, err
	}
	memory := planir.MemoryOf(plan)
	plan.Memory = &memory
	return plan, nil
}

// repriced returns a plan whose reports give the costs of its decisions by the planner's measure, with each program's
// own optimum as the bound.
func (s *planner) repriced(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	out := *plan
	out.Solver = nil
	for _, rows := range s.want.Rows() {
		pr, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return nil, err
		}
		report, err := pr.solve(ctx, &s.request)
		if err != nil {
			return nil, err
		}

		var choices [][]int
		for _, in := range pr.instances {
			list := make([]int, len(in.candidates))
			for i := range list {
				decision := DecisionAt(plan, in.section.Nodes[i].Name, rows)
				if list[i] = in.candidateLike(i, decision); list[i] < 0 {
					return nil, diag.New(diag.ClassInternal,
						"BUG: decision on %q at %d rows is none of its candidates", decision.Node, rows)
				}
			}
			choices = append(choices, list)
		}

		report.ObjectiveNS = pr.partition(&s.request, s.measure()).ObjectiveNS(choices)
		if report.ObjectiveNS > report.BoundNS {
			report.Status = string(problem.Feasible)
		}
		out.Solver = append(out.Solver, report)
	}
	return &out, nil
}

// waive drops the bounds of a kind, also of sessions with fewer buckets.
func (s *session) waive(kinds ...problem.LimitKind) {
	s.waived = append(slices.Clone(s.waived), kinds...)
	s.bounds = slices.DeleteFunc(slices.Clone(s.bounds),
		func(b bound) bool { return slices.Contains(s.waived, b.kind) })
}

// proveInfeasible returns the error that a limit is below what every plan takes, whatever its schemes, buckets and
// placement; nil if that is not known. For times it divides the work evenly among all processors. For energy it
// places every operator where it takes least. For memory, tooLarge has a proof of its own beside the parts of the
// smallest plan.
func (s *session) proveInfeasible() (proof, err error) {
	least := map[quantity]int64{}
	for _, bound := range s.bounds {
		switch bound.kind {
		case problem.LimitPartNS:
			for _, rows := range s.want.Rows() {
				// The larger buckets may be left out.
				isNeeded := s.decodes(rows) || slices.Index(s.want.Buckets, rows) < s.fewestBucketsForTime()
				if isNeeded && s.programName(rows) == bound.name {
					least[bound.quantity] = s.leastCallNS(rows)
				}
			}
		case problem.LimitEnergyNJ:
			if least[bound.quantity], err = s.leastEnergy(); err != nil {
				return nil, err
			}
		}
	}

	for i := range s.bounds {
		bound := &s.bounds[i]
		if least[bound.quantity] <= bound.max {
			continue
		}
		what, takes, most := bound.exceeded(least[bound.quantity])
		failure := &LimitError{Names: []string{bound.user}, Proved: true}
		failure.text = fmt.Sprintf("%s %s: %s at least %s, and at most %s are allowed", noPlanKeeps,
			bound.user, what, takes, most)
		return diag.New(diag.ClassInfeasible, "solve: %w", failure).WithHint(limitHint), nil
	}
	return nil, nil
}

// leastCallNS returns a lower bound of the time of a call of the program of that many rows, whatever its schemes and
// placement: all of its work, divided evenly among the processors.
func (s *session) leastCallNS(rows int) int64 {
	return price.Whole(s.leastCallCost(rows, false, s.busyNS) / float64(len(s.Procs)))
}

// busyNS returns a lower bound of how long a candidate keeps processors busy in a lowered plan: the sum over
// processors, in ns. A step that lowering joins to its neighbours saves its launch, and a product that ends with a gated
// linear unit a part of both.
func (s *request) busyNS(node *lower.Node, candidate *price.Candidate) float64 {
	total := 0.0
	for i := range candidate.Times {
		ns, proc := candidate.Times[i].NS, candidate.Shares[i].Proc
		at := slices.IndexFunc(s.Procs, func(p planir.Proc) bool { return p.Name == proc })
		if joins, _ := lower.Joins(node, node.Ops, &s.Procs[at]); joins {
			if launch, err := s.prices.Launch(proc); err == nil {
				ns = max(0, ns-launch.NS)
			}
			if node.Gated {
				ns = int64(float64(ns) * s.prices.LeastGatedShare(proc))
			}
		}
		total += float64(ns)
	}
	return total
}

// leastEnergy returns a lower bound of the expected energy, over all numbers of buckets. Each call counts in whole
// microjoules, as predictions do: rounding may take off what a bound in nanojoules would call needed.
func (s *pricing) leastEnergy() (int64, error) {
	energy := func(_ *lower.Node, candidate *price.Candidate) float64 { return float64(candidate.EnergyNJ) }
	ofCall := func(rows int, noAttention bool) float64 {
		return float64(1000 * microjoules(int64(s.leastCallCost(rows, noAttention, energy))))
	}
	least := math.Inf(1)
	for buckets := len(s.want.Buckets); buckets >= s.fewestBucketsForTime(); buckets-- {
		fewer, err := s.want.Fewer(s.in.Workload, buckets, s.in.Model.MaxContext)
		if err != nil {
			return 0, err
		}
		total := 0.0
		for _, rows := range fewer.DecodeRows() {
			total += float64(fewer.DecodeNS(rows, s.want.Weights.Decode) * ofCall(rows, false))
		}
		for i, rows := range fewer.Buckets {
			shorter := fewer.ContextAt(rows) < s.want.ContextAt(rows)
			total += float64(fewer.Weights.Prefill * fewer.Share[i] * ofCall(rows, shorter))
		}
		least = min(least, total)
	}
	return price.Whole(least), nil
}

// leastMemory returns a lower bound of a process's memory, in bytes: the lightest weights, and what every process
// holds.
func (s *schemeChoice) leastMemory() int64 {
	pairs, _ := s.byWeight()
	if len(pairs) == 0 {
		return 0
	}
	return pairs[0].bytes + planir.FixedBytes
}
