package solver

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// completePlan makes the plan of the chosen schemes: fitted to the processors, with its predictions and memory.
func (s *session) completePlan(ctx context.Context) (*planir.Plan, error) {
	plan, err := s.bestWithinBounds(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.predict(plan); err != nil {
		return nil, err
	}
	memory := planir.MemoryOf(plan)
	plan.Memory = &memory
	return plan, nil
}

// planWithinMemory returns the plan with the least objective that holds at most bound bytes, with the session that made
// it. free is the plan without a bound.
//
// Two things save memory: schemes (one packed copy of a weight serves both phases where they are equal), and leaving
// out the largest buckets. So it goes through the numbers of buckets, and for each has a best-first search go through
// pairs of schemes. A pair is tried only if its weights and what every plan holds beside them fit; trying one makes
// the plan, whose divisions follow from the schemes. The best so far bounds all later searches.
//
// Fewest buckets come first. They hold least, so that their search finds a plan at once where there is one, and
// without a plan to compare with no other search excludes a pair by its cost. If even they have none, others are not
// tried: a plan for more buckets, without its largest one, is a plan for fewer. It is none where energy is limited,
// because the prompts that the largest bucket took whole then take several executions of a smaller one.
//
// The best plan's programs are compared with their variants by the timeline.
func (s *session) planWithinMemory(
	ctx context.Context, bound int64, free *planir.Plan,
) (*session, *planir.Plan, error) {
	best, err := s.searchWithinMemory(ctx, bound, free, triedComparisons)
	if err != nil {
		return nil, nil, err
	}
	if best.plan == nil {
		return s.fromLeastMemory(ctx, bound)
	}
	if err := best.compareVariants(ctx); err != nil {
		return nil, nil, err
	}
	best.report()
	return best.by, best.plan, nil
}

// searchWithinMemory is the search of planWithinMemory. It has no plan where the fewest buckets have none. Plans that
// break a limit by little have their variants compared, at most comparisons of them for each number of buckets.
func (s *session) searchWithinMemory(
	ctx context.Context, bound int64, free *planir.Plan, comparisons int,
) (*withinMemory, error) {
	best := &withinMemory{asked: s, comparisons: comparisons, bound: bound, ns: math.Inf(1), open: math.Inf(1)}
	if s.knownObjective > 0 {
		best.ns = s.knownObjective
	}
	fewest := s.fewestBuckets()
	for buckets := fewest; buckets <= len(s.want.Buckets); buckets++ {
		if buckets > fewest && math.IsInf(best.ns, 1) && s.in.Workload.Limits.EnergyMJ == 0 {
			break
		}
		other := s
		if buckets < len(s.want.Buckets) {
			var err error
			if other, err = s.withFirstBuckets(ctx, buckets); err != nil {
				return nil, err
			}
		}
		if err := best.searchSession(ctx, other, free); err != nil {
			return nil, err
		}
		if other != s && best.by != other {
			other.close()
		}
	}
	if best.plan == nil && s.knownObjective > 0 {
		return nil, diag.New(diag.ClassInfeasible, "solve: %w", &LimitError{Names: []string{workload.KeyMemory},
			text: "no plan was found within the memory that costs less than one with other buckets"})
	}
	if best.plan != nil && best.by != s {
		best.by.notes = best.notes
	}
	return best, nil
}

// withinMemory is the state of the search for the best plan within a bound of memory.
type withinMemory struct {
	asked *session // for it
	// how many plans for each number of buckets have their variants compared
	comparisons int
	bound       int64
	plan        *planir.Plan // nil: none so far
	by          *session     // that made it
	ns          float64
	open        float64 // least bound of the pairs that may have a plan which was not found
	// what rows of the embedding take that are read as they are stored; 0: not seen yet, or counted for every pair
	tables int64
	notes  diag.List // of by
}

// searchSession searches the pairs of schemes of a session for a better plan.
func (w *withinMemory) searchSession(ctx context.Context, s *session, free *planir.Plan) error {
	s.addMemoryBound(w.bound)
	s.nodes, s.comparisons = triedNodes, w.comparisons
	s.phase = fmt.Sprintf("fit %v of memory, %d buckets", unit.Bytes(w.bound), len(s.want.Buckets))
	least := 0.0 // of the pair that is tried
	// A lower bound on all bytes but weights; a known plan (free) gives a tighter one.
	rest := s.leastPool() + planir.FixedBytes
	if free != nil {
		rest = s.leastPool() + s.fixedBytes(free)
	}
	relaxed := s.newMemoryRelaxation(w.bound)
	defer func() { s.below = 0 }()
	found, err := s.search(ctx, w.ns, func(prefill, decode assignment) bool {
		rest := rest
		if s.readsStoredTable(prefill, decode) {
			rest += w.tables
		}
		if s.weightBytes(prefill, decode)+rest > w.bound {
			return false
		}
		least = relaxed.bound(prefill, decode, w.bound-rest, w.ns)
		return least < w.ns
	}, func(prefill, decode assignment) (float64, bool, error) {
		s.prefill, s.decode, s.chosen = prefill, decode, nil
		if s.below = w.ns; math.IsInf(w.ns, 1) {
			s.below = 0
		}
		plan, err := s.completePlan(ctx)
		if diag.ClassOf(err) == diag.ClassInfeasible { // for another reason: an address space
			if !Proved(err) {
				w.open = min(w.open, least)
			}
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		if s.readsStoredTable(prefill, decode) {
			w.tables = plan.Memory.Tables
		}
		ns, ok := s.objective(plan), plan.Memory.Total <= w.bound
		if ok && ns < w.ns {
			w.keepBest(s, plan, ns)
		} else if !ok {
			w.open = min(w.open, least) // placed otherwise it may fit
		}
		return ns, ok, nil
	})
	w.open = min(w.open, found.open)
	if err != nil || w.by != s {
		return err
	}
	s.prefill, s.decode, s.chosen = found.prefill, found.decode, found.report
	w.plan.Solver = append(slices.Clone(w.plan.Solver), *found.report)
	w.notes = s.notes
	return nil
}

// compareVariants replaces the best plan by what a solve of its buckets and schemes alone gives, whose programs are
// compared with their variants by the timeline, if that is faster and fits.
func (w *withinMemory) compareVariants(ctx context.Context) error {
	s := w.by
	if s.measure() != problem.Time || w.plan.Solver[0].Problem == jointProblem(problem.Time) {
		return nil
	}
	s.nodes = 0
	plan, err := s.completePlan(ctx)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil
	}
	if err != nil {
		return err
	}
	before, err := s.expectedNS(w.plan)
	if err != nil {
		return err
	}
	after, err := s.expectedNS(plan)
	if err != nil {
		return err
	}
	if plan.Memory.Total <= w.bound && after < before {
		w.plan = plan
	}
	return nil
}

// report says of the search for schemes how good a plan may be that was not found, with any number of buckets.
func (w *withinMemory) report() {
	report := &w.plan.Solver[len(w.plan.Solver)-1]
	report.Status, report.BoundNS = string(problem.Optimal), report.ObjectiveNS
	if w.open < w.ns {
		report.Status = string(problem.Feasible)
		report.BoundNS = min(price.Whole(w.open), report.ObjectiveNS)
	}
}

// readsStoredTable reports whether an embedding that may look rows up in the packed head reads them as they are
// stored in some phase.
func (s *schemeChoice) readsStoredTable(prefill, decode assignment) bool {
	if !s.tied.exists() {
		return false
	}
	stored := s.tied.table(decode[s.tied.head]) == ""
	return stored || len(s.want.Buckets) > 0 && s.tied.table(prefill[s.tied.head]) == ""
}

// keepBest replaces the best plan, and closes the session of the one before.
func (w *withinMemory) keepBest(s *session, plan *planir.Plan, ns float64) {
	if w.by != nil && w.by != s && w.by != w.asked {
		w.by.close()
	}
	w.plan, w.by, w.ns = plan, s, ns
}

// Limits of the work for combinations of schemes and buckets, of which there are many.
const (
	triedNodes       = 24 // of the search for one of them
	triedComparisons = 16 // of numbers of buckets: combinations whose programs are compared with their variants
)

// withFirstBuckets returns a session for the same prompts with the first n buckets only.
func (s *session) withFirstBuckets(ctx context.Context, buckets int) (*session, error) {
	want, err := s.want.Fewer(s.in.Workload, buckets, s.in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	other, err := sessionFor(s.in, want)
	if err != nil {
		return nil, err
	}
	other.prices, other.goal, other.tight = s.prices, s.goal, s.tight
	other.waive(s.waived...)
	return other, other.prepare(ctx)
}

// weightBytes returns a lower bound of the classes' bytes in a pair of assignments: one packed copy for each format.
func (s *schemeChoice) weightBytes(prefill, decode assignment) int64 {
	var total int64
	for i := range s.classes {
		class := &s.classes[i]
		total += class.bytes(decode[i].Weight())
		isOther := prefill[i].Weight() != decode[i].Weight()
		if isOther && !class.shared && len(s.want.Buckets) > 0 {
			total += class.bytes(prefill[i].Weight())
		}
	}
	return total
}

// leastPool returns a lower bound of the buffers for the values of the largest program: every plan has a buffer for
// each value that no graph of several operators can keep inside.
func (s *schemeChoice) leastPool() int64 {
	rows := 1
	if count := len(s.want.Buckets); count > 0 {
		rows = s.want.Buckets[count-1]
	}
	sections, err := s.expand(rows, s.uniform(op.A32W32))
	if err != nil {
		return 0
	}
	seen := map[string]bool{}
	var total int64
	for i := range sections {
		for _, node := range sections[i].Nodes {
			if slices.ContainsFunc(s.Procs, func(p planir.Proc) bool {
				_, inside := lower.Joins(&node, node.Ops, &p)
				return inside
			}) {
				continue
			}
			for _, name := range slices.Concat(node.In, node.Out) {
				if v := sections[i].Values[name]; !seen[name] {
					seen[name] = true
					total += int64(v.Rows) * int64(v.Cols) * int64(v.Type.Bytes())
				}
			}
		}
	}
	return total
}

// lightest returns the pair of assignments with the fewest bytes of weights within the limits of quality.
func (s *schemeChoice) lightest() (prefill, decode assignment) {
	least := int64(math.MaxInt64)
	consider := func(ofPrefill, ofDecode *point) {
		first, second := s.assignments(ofPrefill, ofDecode)
		if limit := s.phases[0].max; ofPrefill != nil && limit > 0 && ofPrefill.kl+s.headKL(second) > limit {
			return
		}
		if bytes := s.weightBytes(first, second); bytes < least {
			least, prefill, decode = bytes, first, second
		}
	}
	prefills, decodes := s.phases[0].points, s.phases[1].points
	if len(prefills)*len(decodes) > maxPairs {
		prefills = prefills[:1] // too many pairs: each of decode beside the fastest of prefill
	}
	for j := range decodes {
		if len(s.phases[0].rows) == 0 {
			consider(nil, &decodes[j])
			continue
		}
		for i := range prefills {
			consider(&prefills[i], &decodes[j])
		}
	}
	return prefill, decode
}

// SmallestError says that even the smallest plan found exceeds the memory; Total is its bytes.
type SmallestError struct {
	Total int64
	text  string
}

// Error lists what that plan holds, and what is permitted.
func (e *SmallestError) Error() string { return e.text }

// tooLarge returns the error that the smallest plan found holds more than is permitted.
func (s *schemeChoice) tooLarge(most int64, smallest *planir.Plan) error {
	m := smallest.Memory
	limit := bound{quantity{problem.LimitBytes, ""}, most, workload.KeyMemory}
	_, takes, allowed := limit.exceeded(m.Total)
	text := fmt.Sprintf("the smallest plan found holds %s, and at most %s are permitted: %s", takes, allowed, m)
	failure := &LimitError{Names: []string{workload.KeyMemory},
		Proved: max(s.leastMemory(), smallest.Solver[0].BoundNS) > most, text: text, cause: &SmallestError{m.Total,
			text}}
	return diag.New(diag.ClassInfeasible, "solve: %w", failure).
		WithHint("permit at least %d bytes, a smaller context than %d (the cache takes %v), schemes with fewer bits, "+
			"or smaller buckets and batches", m.Total, smallest.MaxContext, unit.Bytes(m.Cache))
}
