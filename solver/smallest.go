package solver

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// The least memory is looked for in four steps.
//
//  1. Buckets: a plan for fewer of them holds no more than the same plan for all, so the first one alone is tried, and
//     more only where that breaks a limit.
//  2. Schemes: pairs of assignments in the order of what their weights take at least. No pair is tried whose lower
//     bound is not below the best plan.
//  3. Placement: the joint problem minimises the bytes of shared assets, which is nearly what a process holds (lowering
//     decides which steps are joined). Beside its answer every processor is tried for everything it can do. From the
//     smallest of these plans, single operators are moved as long as planir.MemoryOf, the number that the plan prints,
//     falls.
//  4. Of plans that hold as little, the fastest that a joint problem finds.
//
// The bound that goes with the answer is that of leastBytes for the pairs that were tried; for those that were not it
// is what every plan holds: one copy of the weights, the cache, the values of the program and the process itself.

// Limits of the search for the least memory.
const (
	smallestPairs  = 6 // of assignments that are tried
	smallestPasses = 4 // over all operators
)

// smallest returns the plan that holds least within all other bounds, with its session.
func (s *session) smallest(ctx context.Context) (*session, *planir.Plan, error) {
	var first error
	open := false // there may be a plan for fewer buckets that was not found
	for buckets := s.fewestBuckets(); buckets <= len(s.want.Buckets); buckets++ {
		other := s
		if buckets < len(s.want.Buckets) {
			var err error
			if other, err = s.withFirstBuckets(ctx, buckets); err != nil {
				return nil, nil, err
			}
		}

		plan, err := other.lightestPlan(ctx)
		if err == nil {
			if report := &plan.Solver[0]; open {
				report.Status, report.BoundNS = string(problem.Feasible), min(report.BoundNS, s.leastMemory())
			}
			return other, plan, nil
		}
		if other != s {
			other.close()
		}
		if diag.ClassOf(err) != diag.ClassInfeasible {
			return nil, nil, err
		}
		open = open || !Proved(err)
		if first == nil {
			first = err
		}
	}
	return nil, nil, first
}

// sizedPair is a pair of assignments with the bytes that its weights take.
type sizedPair struct {
	prefill, decode assignment
	bytes           int64
}

// byWeight lists the pairs of assignments within the limits of quality, the lightest first. If they are too many, it
// returns only the lightest.
func (s *schemeChoice) byWeight() (out []sizedPair, all bool) {
	prefills, decodes := s.phases[0].points, s.phases[1].points
	limit := s.phases[0].max
	add := func(prefill, decode *point) {
		schemes := sizedPair{}
		schemes.prefill, schemes.decode = s.assignments(prefill, decode)
		if limit > 0 && prefill != nil && prefill.kl+s.headKL(schemes.decode) > limit {
			return
		}
		schemes.bytes = s.weightBytes(schemes.prefill, schemes.decode)
		out = append(out, schemes)
	}

	switch {
	case len(s.phases[0].rows) == 0:
		for i := range decodes {
			add(nil, &decodes[i])
		}
	case len(prefills)*len(decodes) > maxPairs/64:
		if prefill, decode := s.lightest(); decode != nil {
			return []sizedPair{{prefill, decode, s.weightBytes(prefill, decode)}}, false
		}
	default:
		for i := range prefills {
			for j := range decodes {
				add(&prefills[i], &decodes[j])
			}
		}
	}

	slices.SortStableFunc(out, func(a, b sizedPair) int { return cmp.Compare(a.bytes, b.bytes) })
	return out, true
}

// lightestPlan returns the smallest plan found for the buckets of a prepared session. It tries pairs of assignments,
// lightest weights first, and reports as bound the least that any pair could have held.
func (s *session) lightestPlan(ctx context.Context) (*planir.Plan, error) {
	pairs, all := s.byWeight()
	if len(pairs) == 0 {
		return nil, s.tooLossy()
	}

	search := lightestSearch{session: s, bound: math.MaxInt64}
	if !all {
		search.bound = pairs[0].bytes + s.leastPool()
	}
	next := 0
	for ; next < len(pairs) && !search.endsBefore(next, pairs[next]); next++ {
		if err := search.try(ctx, pairs[next]); err != nil {
			return nil, err
		}
	}
	if search.best == nil {
		return nil, search.first
	}

	// Pairs that were not tried are bounded by the lightest of them.
	if next < len(pairs) {
		search.bound = min(search.bound, pairs[next].bytes+s.leastPool())
	}
	s.prefill, s.decode = search.bestPair.prefill, search.bestPair.decode
	s.reportLeastMemory(search.best, search.bound+s.fixedBytes(search.best))
	return search.best, nil
}

// lightestSearch is the state of lightestPlan.
type lightestSearch struct {
	*session
	best     *planir.Plan // nil: none yet
	bestPair sizedPair
	first    error // of the first pair that has no plan
	bound    int64 // of all pairs so far, beside the fixed part
	tried    int   // pairs for which a plan was made, or tried to
}

// endsBefore reports whether neither a pair nor those behind it are worth trying.
func (l *lightestSearch) endsBefore(index int, pair sizedPair) bool {
	if index >= 4*smallestPairs {
		return true
	}
	if l.best == nil {
		return false
	}
	// The pair and those behind it may hold too much by their weights alone.
	return l.tried == smallestPairs || l.exceeds(l.best, pair.bytes+l.leastPool())
}

// try makes the smallest plan of a pair, unless a bound says that it is no smaller than the best one.
func (l *lightestSearch) try(ctx context.Context, pair sizedPair) error {
	l.prefill, l.decode, l.chosen = pair.prefill, pair.decode, nil
	least, err := l.leastBytes(ctx)
	if err == nil {
		l.bound = min(l.bound, least)
		if l.best != nil && l.exceeds(l.best, least) {
			return nil
		}
		l.tried++
		var plan *planir.Plan
		plan, err = l.smallestForSchemes(ctx)
		if err == nil && (l.best == nil || plan.Memory.Total < l.best.Memory.Total) {
			l.best, l.bestPair = plan, pair
		}
	}
	if diag.ClassOf(err) == diag.ClassInfeasible {
		l.first = cmp.Or(l.first, err)
		return nil
	}
	return err
}

// reportLeastMemory gives a plan the report of the search for the least memory: no plan holds less than bound bytes.
func (s *session) reportLeastMemory(plan *planir.Plan, bound int64) {
	report := planir.Solve{
		Problem: jointProblem(problem.Memory), Status: string(problem.Optimal), Choices: plan.Solver[0].Choices,
		ObjectiveNS: plan.Memory.Total, BoundNS: min(plan.Memory.Total, bound),
	}
	if report.BoundNS < report.ObjectiveNS {
		report.Status = string(problem.Feasible)
	}
	s.budget.joints[report] = s.budget.joints[plan.Solver[0]]
	plan.Solver = []planir.Solve{report}
}

// exceeds reports whether a plan that holds at least so many bytes beside the fixed ones holds no less than a known
// plan.
func (s *schemeChoice) exceeds(known *planir.Plan, bytes int64) bool {
	return bytes+s.fixedBytes(known) >= known.Memory.Total
}

// fixedBytes returns what every plan for these programs holds beside its weights, buffers and steps.
func (s *schemeChoice) fixedBytes(plan *planir.Plan) int64 {
	total := plan.Memory.Cache + planir.LeastFixed(plan)
	if !s.tied.exists() { // else the embedding may be the head's
		total += plan.Memory.Tables
	}
	return total
}

// smallestForSchemes returns the smallest plan found with the schemes that are set. It compares the joint problem's,
// each processor's own, and the best of these after moving single operators. Among equally small plans it returns the
// fastest.
func (s *session) smallestForSchemes(ctx context.Context) (*planir.Plan, error) {
	best, err := s.bestWithinBounds(ctx)
	if err != nil && diag.ClassOf(err) != diag.ClassInfeasible {
		return nil, err
	}
	why := err
	anyPlan := best
	if anyPlan == nil {
		if anyPlan, err = s.eachAlone(ctx); err != nil {
			return nil, err
		}
	}
	mover, err := s.mover(anyPlan)
	if err != nil {
		return nil, err
	}
	defer mover.restore()

	for i := range s.Procs {
		plan, err := mover.allOn(s.Procs[i].Name)
		if err != nil {
			return nil, err
		}
		if plan != nil && (best == nil || planir.MemoryOf(plan).Total < planir.MemoryOf(best).Total) {
			best = plan
		}
	}

	if best == nil {
		return nil, why
	}
	if best, err = mover.descend(ctx, best); err != nil {
		return nil, err
	}
	if best, err = mover.withAlternatives(best); err != nil {
		return nil, err
	}
	return s.fastestAsSmall(ctx, best)
}

// fastestAsSmall returns the fastest plan found that holds no more than the given one.
func (s *session) fastestAsSmall(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	memory := planir.MemoryOf(plan)
	plan.Memory = &memory
	other, err := s.withGoal(problem.Time)
	if err != nil {
		return nil, err
	}
	other.addMemoryBound(memory.Total)
	other.tight = true
	other.nodes = triedNodes
	faster, err := other.solveJointly(ctx, plan)
	if err != nil && diag.ClassOf(err) != diag.ClassInfeasible {
		return nil, err
	}
	if err == nil && planir.MemoryOf(faster).Total <= memory.Total {
		held := planir.MemoryOf(faster)
		faster.Memory, plan = &held, faster
	}
	return plan, s.predict(plan)
}

// mover changes plans operator by operator. It lowers every change, since only a lowered plan tells how much it holds.
type mover struct {
	s        *session
	j        *joint
	template *planir.Plan // for everything but decisions
	restore  func()
}

// mover makes a mover for plans with the schemes that are set. Its restore has to be called.
func (s *session) mover(plan *planir.Plan) (*mover, error) {
	m := &mover{s: s, template: plan, restore: s.reduceCandidates(plan)}
	var err error
	if m.j, err = s.poseJoint(); err != nil {
		m.restore()
		return nil, err
	}
	return m, nil
}

// plan lowers choices. It returns nil if they break a bound, or a rule of the processors.
func (m *mover) plan(choices [][][]int) (*planir.Plan, error) {
	if !m.permitted(choices) {
		return nil, nil
	}
	made := solved{reports: m.template.Solver}
	for i, pr := range m.j.programs {
		var list []planir.Decision
		for j, in := range pr.instances {
			for node, pick := range in.choicesOfNodes(choices[i][j]) {
				list = append(list, in.candidates[node][pick].Decision)
			}
		}
		made.decisions = append(made.decisions, list)
	}

	plan := *m.template
	plan.Decisions, plan.Program, plan.Memory = m.s.mergeDecisions(&made), planir.Program{}, nil
	if err := m.s.lower(&plan); err != nil {
		return nil, err
	}
	taken, err := m.s.amountsTaken(&plan)
	if err != nil {
		return nil, err
	}

	for _, bound := range m.s.bounds {
		if taken[bound.quantity] > bound.max {
			return nil, nil
		}
	}
	return &plan, nil
}

// withAlternatives returns a plan whose decisions have their costs and alternatives.
func (m *mover) withAlternatives(plan *planir.Plan) (*planir.Plan, error) {
	made := solved{reports: plan.Solver}
	for i, part := range m.j.choices(plan) {
		made.decisions = append(made.decisions, m.j.programs[i].decisions(part))
	}
	return m.s.buildPlan(made)
}

// permitted reports whether no program has processors that exclude each other.
func (m *mover) permitted(choices [][][]int) bool {
	for i := range m.j.Parts {
		alone := problem.Joint{Parts: []problem.Part{{Partition: m.j.Parts[i].Partition}}, Assets: m.j.Assets}
		alone.Regions = slices.Clone(m.j.Regions)
		for region := range alone.Regions {
			alone.Regions[region].MaxBytes, alone.Regions[region].MaxGraphs = 0, 0
		}
		if !alone.Keeps(choices[i : i+1]) {
			return false
		}
	}
	return true
}

// allOn places everything that a processor executes by itself there, and the rest whole where it is cheapest. It
// returns nil if some operator has no whole candidate, or the plan breaks a bound.
func (m *mover) allOn(proc string) (*planir.Plan, error) {
	var choices [][][]int
	for _, pr := range m.j.programs {
		var part [][]int
		for _, in := range pr.instances {
			list := make([]int, len(in.candidates))
			for node := range list {
				if list[node] = wholeOn(in.candidates[node], proc); list[node] < 0 {
					return nil, nil
				}
			}
			part = append(part, list)
		}
		choices = append(choices, part)
	}
	return m.plan(choices)
}

// wholeOn returns the undivided candidate on a processor; the cheapest other one where that cannot execute it; -1 where
// there is none.
func wholeOn(list []price.Candidate, proc string) int {
	best := -1
	for i := range list {
		candidate := &list[i]
		if candidate.Axis != planir.AxisNone {
			continue
		}
		if candidate.Shares[0].Proc == proc {
			return i
		}
		if best < 0 || candidate.CostNS < list[best].CostNS {
			best = i
		}
	}
	return best
}

// descend moves one operator after the other so that the plan holds less (coordinate descent), until no move helps or
// the passes are used up.
func (m *mover) descend(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	choices := m.j.choices(plan)
	least := planir.MemoryOf(plan).Total
	for range smallestPasses {
		before := least
		for i, pr := range m.j.programs {
			for j, in := range pr.instances {
				for node := range in.candidates {
					if err := ctx.Err(); err != nil {
						return nil, diag.New(diag.ClassInterrupted, "look for the least memory: %w", err)
					}
					smaller, err := m.tryKinds(choices, &choices[i][j][node], in.candidates[node], least)
					if err != nil {
						return nil, err
					}
					if smaller != nil {
						plan, least = smaller, planir.MemoryOf(smaller).Total
					}
				}
			}
		}

		if least == before {
			break
		}
	}
	return plan, nil
}

// tryKinds tries the cheapest candidate of each kind for one operator, whose choice is at choice, and leaves the best
// there. It returns the plan if that holds less than given, else nil.
func (m *mover) tryKinds(choices [][][]int, choice *int, list []price.Candidate, least int64) (*planir.Plan, error) {
	var smaller *planir.Plan
	kept := *choice

	for _, pick := range cheapestOfKinds(list) {
		if pick == kept {
			continue
		}
		*choice = pick
		plan, err := m.plan(choices)
		if err != nil {
			return nil, err
		}
		if plan == nil {
			continue
		}
		if total := planir.MemoryOf(plan).Total; total < least {
			smaller, least, kept = plan, total, pick
		}
	}
	*choice = kept
	return smaller, nil
}

// cheapestOfKinds returns the cheapest candidate of every way to divide an operator between some processors.
func cheapestOfKinds(list []price.Candidate) []int {
	cheapest := map[string]int{}
	var order []string
	for i := range list {
		candidate := &list[i]
		key := candidate.Kind()
		old, ok := cheapest[key]
		if !ok {
			order = append(order, key)
		}
		if !ok || candidate.CostNS < list[old].CostNS {
			cheapest[key] = i
		}
	}
	out := make([]int, len(order))
	for i, key := range order {
		out[i] = cheapest[key]
	}
	return out
}

// withGoal returns the session with another measure, and its schemes as they are.
func (s *session) withGoal(goal problem.Measure) (*session, error) {
	other := *s
	other.goal, other.chosen, other.notes = goal, nil, slices.Clone(s.notes)
	other.kept, other.cached = 0, 0 // the session they were counted for releases them
	other.items = newItemCache()
	other.dropPrograms()

	for i, ph := range s.phases {
		if ph == nil {
			continue
		}
		again := *ph
		again.points, again.objectives = nil, nil
		other.phases[i] = &again
		if len(again.rows) == 0 {
			continue
		}
		if err := other.list(&again); err != nil {
			return nil, err
		}
	}
	return &other, nil
}
