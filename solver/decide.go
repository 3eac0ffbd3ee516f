package solver

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// A plan under limits is looked for in four steps, each where the one before it found none.
//
//  1. The best schemes without limits, and all buckets: the joint problem of all programs.
//  2. A lower bound of each limited quantity over all schemes, buckets and placements. Where one exceeds its limit, no plan exists.
//  3. Other schemes and fewer buckets: with a bound of memory all pairs of assignments in the order of their bounds, else the pairs
//     that are best for what is limited.
//  4. The plan that takes least of what is limited, of energy and of memory: if even that one is not within its limit the error says
//     what it takes. Else it is where the search for a faster plan starts, and what is returned if there is none.
//
// So a limit that is not below what "minimise" reaches always has a plan. An error says whether it was proved that there is none
// (step 2, or a joint problem to which nothing was an alternative), or that none was found.

// planWithin is the best plan found within all limits, bound bytes among them (0: no limit), with the session that made it.
func (s *session) planWithin(ctx context.Context, bound int64) (*session, *planir.Plan, error) {
	if s.measure() == problem.Memory {
		by, plan, err := s.smallest(ctx)
		if err == nil && bound > 0 && plan.Memory.Total > bound {
			err = s.tooLarge(bound, plan)
		}
		return by, plan, err
	}

	by := s
	plan, err := s.complete(ctx)
	if err == nil {
		by, plan, err = s.withFewer(ctx, plan)
	}
	if err == nil && (bound == 0 || plan.Memory.Total <= bound) {
		return by, plan, nil
	}
	if err != nil && diag.ClassOf(err) != diag.ClassInfeasible {
		return nil, nil, err
	}
	if impossible, failed := s.disproved(); impossible != nil || failed != nil {
		return nil, nil, firstOf(failed, impossible)
	}

	why := err
	if bound > 0 {
		by, plan, err = s.within(ctx, bound, plan)
	} else {
		by, plan, err = s.limited(ctx, why)
	}
	if diag.ClassOf(err) != diag.ClassInfeasible {
		return by, plan, err
	}
	if s.limits(problem.LimitEnergyNJ) && s.measure() != problem.Energy {
		return s.fromFrugal(ctx, bound, err)
	}
	return nil, nil, err
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// limits reports whether a quantity of that kind is bounded.
func (s *session) limits(kind problem.LimitKind) bool {
	return slices.ContainsFunc(s.bounds, func(b bound) bool { return b.kind == kind })
}

// limited is the best plan found with the schemes that are best for what is limited, for all buckets or the first of them. why is
// the error of the session's own schemes.
func (s *session) limited(ctx context.Context, why error) (*session, *planir.Plan, error) {
	var by *session
	var best *planir.Plan
	bestNS := math.Inf(1)
	for n := len(s.want.Buckets); n >= s.fewestForTime(); n-- {
		t, err := s.withBuckets(ctx, n)
		if err != nil {
			return nil, nil, err
		}
		if t.lowest() >= bestNS {
			continue
		}
		pairs, err := t.seeds(ctx)
		if err != nil {
			return nil, nil, err
		}
		used := false
		t.phase = fmt.Sprintf("fit the limits, %d buckets", n)
		for _, pair := range pairs {
			if n == len(s.want.Buckets) && pair.same(s) {
				continue // it broke a limit
			}
			t.prefill, t.decode, t.chosen, t.nodes = pair.prefill, pair.decode, nil, triedNodes
			plan, err := t.complete(ctx)
			if diag.ClassOf(err) == diag.ClassInfeasible {
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			if ns := t.objective(plan); ns < bestNS {
				kept := *t
				by, best, bestNS, used = &kept, plan, ns, true
			}
		}
		if !used {
			t.close()
		}
	}
	if best == nil {
		return nil, nil, why
	}
	by.chosen = by.openSchemes(bestNS, s.lowest())
	best.Solver = append(slices.Clone(best.Solver), *by.chosen)
	return by, best, nil
}

// withBuckets is the session with the first n buckets, prepared.
func (s *session) withBuckets(ctx context.Context, n int) (*session, error) {
	if n < len(s.want.Buckets) {
		return s.fewer(ctx, n)
	}
	t := *s
	t.kept, t.cached = 0, 0 // the session they were counted for releases them
	return &t, nil
}

// lowest is a lower bound of the objective over all schemes.
func (s *session) lowest() float64 {
	total := 0.0
	for _, ph := range s.phases {
		if ph != nil && len(ph.rows) > 0 && len(ph.points) > 0 {
			total += ph.points[0].bound
		}
	}
	return total
}

// openSchemes is the report of schemes that are not proved to be the best.
func (s *session) openSchemes(ns, bound float64) *planir.Solve {
	r := &planir.Solve{Problem: "schemes", Status: string(problem.Feasible), ObjectiveNS: price.Whole(ns), BoundNS: min(price.Whole(bound), price.Whole(ns))}
	for _, ph := range s.phases {
		for _, list := range ph.options {
			r.Choices += len(list)
		}
	}
	return r
}

// schemePair is an assignment of each phase.
type schemePair struct{ prefill, decode assignment }

func (p schemePair) same(s *session) bool {
	return slices.Equal(p.prefill, s.prefill) && slices.Equal(p.decode, s.decode)
}

// seeds are the schemes that are best for the objective, for energy where that is limited, and those with the lightest weights.
func (s *session) seeds(ctx context.Context) ([]schemePair, error) {
	var out []schemePair
	add := func(prefill, decode assignment) {
		known := slices.ContainsFunc(out, func(p schemePair) bool { return slices.Equal(p.prefill, prefill) && slices.Equal(p.decode, decode) })
		if decode != nil && !known {
			out = append(out, schemePair{prefill, decode})
		}
	}
	goals := []problem.Measure{s.measure()}
	if s.limits(problem.LimitEnergyNJ) && s.measure() != problem.Energy {
		goals = append(goals, problem.Energy)
	}
	for _, goal := range goals {
		t, err := s.minimising(goal)
		if err != nil {
			return nil, err
		}
		found, err := t.bestSchemes(ctx)
		if err != nil {
			return nil, err
		}
		add(found.prefill, found.decode)
	}
	add(s.lightest())
	return out, nil
}

// bestSchemes is the pair with the least objective where no limit binds.
func (s *session) bestSchemes(ctx context.Context) (found, error) {
	return s.search(ctx, math.Inf(1), nil, func(p, d assignment) (float64, bool, error) {
		ns, err := s.value(ctx, p, d)
		return ns, err == nil, err
	})
}

// fromFrugal is the best plan found from the one that takes the least energy; why is the error without it.
func (s *session) fromFrugal(ctx context.Context, bound int64, why error) (*session, *planir.Plan, error) {
	frugal, err := s.minimising(problem.Energy)
	if err != nil {
		return nil, nil, err
	}
	frugal.waive(problem.LimitEnergyNJ)
	found, err := frugal.bestSchemes(ctx)
	if err != nil || found.decode == nil {
		return nil, nil, firstOf(err, why)
	}
	frugal.prefill, frugal.decode, frugal.chosen = found.prefill, found.decode, found.report
	by, plan, err := frugal.planWithin(ctx, bound)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, nil, why
	}
	if err != nil {
		return nil, nil, err
	}
	return s.improved(ctx, by, plan, bound)
}

// fromSmallest is the best plan found from the one that holds least.
func (s *session) fromSmallest(ctx context.Context, bound int64) (*session, *planir.Plan, error) {
	lean, err := s.minimising(problem.Memory)
	if err != nil {
		return nil, nil, err
	}
	lean.bind(0)
	by, plan, err := lean.smallest(ctx)
	if err != nil {
		return nil, nil, err
	}
	if plan.Memory.Total > bound {
		return nil, nil, s.tooLarge(bound, plan)
	}
	return s.improved(ctx, by, plan, bound)
}

// improved is the best plan found from one that another goal led to, with the schemes and buckets that it has: itself, where a limit
// leaves no room.
func (s *session) improved(ctx context.Context, by *session, plan *planir.Plan, most int64) (*session, *planir.Plan, error) {
	t, err := by.minimising(s.measure())
	if err != nil {
		return nil, nil, err
	}
	t.waived, t.bounds = nil, nil
	if err := t.findBounds(); err != nil {
		return nil, nil, err
	}
	t.bind(most)
	t.tight = most > 0
	taken, err := t.taken(plan)
	if err != nil {
		return nil, nil, err
	}
	var over []bound
	for _, b := range t.bounds {
		if taken[b.quantity] > b.max {
			over = append(over, b)
		}
	}
	if over != nil {
		return nil, nil, t.exceeds("no plan was found that keeps", over, taken)
	}

	better, err := t.togetherFrom(ctx, plan, true)
	if err == nil {
		better, err = t.measured(better)
	}
	if err != nil && diag.ClassOf(err) != diag.ClassInfeasible {
		return nil, nil, err
	}
	if err != nil || most > 0 && better.Memory.Total > most {
		t.settled = true
		if better, err = t.restated(ctx, plan); err != nil {
			return nil, nil, err
		}
		if better, err = t.measured(better); err != nil {
			return nil, nil, err
		}
	}
	t.chosen = t.openSchemes(t.objective(better), s.lowest())
	better.Solver = append(slices.Clone(better.Solver), *t.chosen)
	return t, better, nil
}

// measured adds predictions and memory to a plan.
func (s *session) measured(plan *planir.Plan) (*planir.Plan, error) {
	if err := s.predict(plan); err != nil {
		return nil, err
	}
	memory := planir.MemoryOf(plan)
	plan.Memory = &memory
	return plan, nil
}

// restated is a plan with what its decisions take of the session's measure, each program bounded by its own optimum.
func (s *session) restated(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	p := *plan
	p.Solver = nil
	for _, rows := range s.want.Rows() {
		pr, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return nil, err
		}
		report, err := pr.solve(ctx, s)
		if err != nil {
			return nil, err
		}
		var choices [][]int
		for _, in := range pr.instances {
			list := make([]int, len(in.candidates))
			for i := range list {
				d := DecisionAt(plan, in.stage.Nodes[i].Name, rows)
				if list[i] = in.find(i, d); list[i] < 0 {
					return nil, diag.New(diag.ClassInternal, "BUG: decision on %q at %d rows is none of its candidates", d.Node, rows)
				}
			}
			choices = append(choices, list)
		}
		report.ObjectiveNS = pr.partition(s, s.measure()).ObjectiveNS(choices)
		if report.ObjectiveNS > report.BoundNS {
			report.Status = string(problem.Feasible)
		}
		p.Solver = append(p.Solver, report)
	}
	return &p, nil
}

// waive drops the bounds of a kind, also of sessions with fewer buckets.
func (s *session) waive(kinds ...problem.LimitKind) {
	s.waived = append(slices.Clone(s.waived), kinds...)
	s.bounds = slices.DeleteFunc(slices.Clone(s.bounds), func(b bound) bool { return slices.Contains(s.waived, b.kind) })
}

// disproved is the error that a limit is below what every plan takes, whatever its schemes, buckets and placement; nil where that is
// not known. Times count the work of all processors as if it were divided evenly among them, energy every operator where it takes
// least. Memory has a proof of its own (tooLarge), beside what the smallest plan consists of.
func (s *session) disproved() (proof, err error) {
	least := map[quantity]int64{}
	for _, b := range s.bounds {
		switch b.kind {
		case problem.LimitPartNS:
			for i, rows := range s.want.Rows() {
				// The larger buckets may be left out.
				if s.programName(rows) == b.name && (s.decodes(rows) || slices.Index(s.want.Buckets, rows) < s.fewestForTime()) {
					least[b.quantity] = price.Whole(s.leastOver(s.want.Rows()[i], false, s.work) / float64(len(s.Procs)))
				}
			}
		case problem.LimitEnergyNJ:
			if least[b.quantity], err = s.leastEnergy(); err != nil {
				return nil, err
			}
		}
	}
	for i := range s.bounds {
		b := &s.bounds[i]
		if least[b.quantity] <= b.max {
			continue
		}
		what, amount := b.words()
		e := &LimitError{Names: []string{b.user}, Proved: true}
		e.text = fmt.Sprintf("no plan keeps %s: %s at least %s, and at most %s are allowed", b.user, what, amount(least[b.quantity]), amount(b.max))
		return diag.New(diag.ClassInfeasible, "solve: %w", e).WithHint(limitHint), nil
	}
	return nil, nil
}

// work is how long a candidate keeps processors busy, all of them together.
func (s *session) work(c *price.Candidate) float64 {
	total := 0.0
	for _, x := range c.Times {
		total += float64(x.NS)
	}
	return total
}

// leastEnergy is a lower bound of the expected energy, over all numbers of buckets.
func (s *session) leastEnergy() (int64, error) {
	energy := func(c *price.Candidate) float64 { return float64(c.EnergyNJ) }
	least := math.Inf(1)
	for n := len(s.want.Buckets); n >= s.fewestForTime(); n-- {
		fewer, err := s.want.Fewer(s.in.Workload, n, s.in.Model.MaxContext)
		if err != nil {
			return 0, err
		}
		total := 0.0
		for _, rows := range fewer.DecodeRows() {
			total += float64(fewer.DecodeNS(rows, s.want.Weights.Decode) * s.leastOver(rows, false, energy))
		}
		for i, rows := range fewer.Buckets {
			shorter := fewer.ContextAt(rows) < s.want.ContextAt(rows)
			total += float64(fewer.Weights.Prefill * fewer.Share[i] * s.leastOver(rows, shorter, energy))
		}
		least = min(least, total)
	}
	return price.Whole(least), nil
}

// leastMemory is a lower bound of what a process holds.
func (s *session) leastMemory() int64 {
	pairs, _ := s.byWeight()
	if len(pairs) == 0 {
		return 0
	}
	return pairs[0].bytes + planir.FixedBytes
}
