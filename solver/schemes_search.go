package solver

import (
	"cmp"
	"container/heap"
	"context"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// solvedObjective returns the objective of a pair of assignments, solved.
func (s *planner) solvedObjective(ctx context.Context, prefill, decode assignment) (float64, error) {
	total := 0.0
	for i, schemes := range []assignment{prefill, decode} {
		ph := s.phases[i]
		if len(ph.rows) == 0 {
			continue // no prompt has a program: a context of one position
		}
		key := schemes.key()
		if _, ok := ph.objectives[key]; !ok {
			ns, err := s.solvedPhase(ctx, ph, schemes)
			if err != nil {
				return 0, err
			}
			ph.objectives[key] = ns
		}
		total += ph.objectives[key]
	}
	return total, nil
}

// solvedPhase returns what a phase under an assignment adds to the objective, solved. A program that no prompt has
// costs nothing, and is only solved if it is not known to have a plan.
func (s *planner) solvedPhase(ctx context.Context, ph *phase, schemes assignment) (ns float64, err error) {
	for i, rows := range ph.rows {
		if _, hasPlan := s.leastOf(rows, schemes); hasPlan && ph.weights[i] == 0 {
			continue
		}
		pr, err := s.program(rows, schemes)
		if err != nil {
			return 0, err
		}
		report, err := pr.solve(ctx, &s.request)
		if err != nil {
			return 0, err
		}
		ns += float64(ph.weights[i] * float64(report.ObjectiveNS))
	}
	return ns, nil
}

// searchResult is the outcome of a search: no decode when nothing is within the limits.
type searchResult struct {
	prefill, decode assignment
	ns              float64
	report          *planir.Solve // nil when there was nothing to choose
	open            float64       // bound of the pairs that were not looked at, infinite where none is left
}

// pair is a combination of assignments that waits to be looked at.
type pair struct {
	head            int // index of the rankings under one choice for the head
	prefill, decode int // places in the rankings of both phases
	bound           float64
}

// pairs is a heap.Interface, least bound first; ties go by the places in the rankings, so that the order is total.
type pairs []pair

func (h pairs) Len() int { return len(h) }

func (h pairs) Less(i, j int) bool {
	one, other := h[i], h[j]
	if one.bound != other.bound {
		return one.bound < other.bound
	}
	return cmp.Or(cmp.Compare(one.head, other.head), cmp.Compare(one.decode, other.decode),
		cmp.Compare(one.prefill, other.prefill)) < 0
}

func (h pairs) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *pairs) Push(x any) { *h = append(*h, x.(pair)) }

func (h *pairs) Pop() any {
	old := *h
	pair := old[len(old)-1]
	*h = old[:len(old)-1]
	return pair
}

// search finds the pair of assignments with the least objective below `below`, within the limits of quality, that
// admits and try accept; of equally good ones the first. admits (nil: all) says whether a pair is worth trying.
//
// It is best-first branch and bound. Pairs wait in a queue in the order of their bound, what their shortest paths
// take; each is tried in turn, and the search ends where no bound is below the best that was accepted. The bound is
// exact but for what try adds, so that as a rule the first pair accepted is the best. State: the queue, with one pair
// for each choice of the head at first; a pair that is taken out puts in its neighbours in the rankings of both
// phases, which have no lower bound.
func (s *planner) search(ctx context.Context, below float64, admits func(prefill, decode assignment) bool,
	try func(prefill, decode assignment) (ns float64, ok bool, err error)) (searchResult, error) {
	queue := &pairQueue{groups: s.rankings(), below: below, budget: s.budget}
	for group := range queue.groups {
		queue.push(group, 0, 0)
	}
	defer queue.release()

	best := searchResult{ns: below, open: math.Inf(1)}
	status := problem.Optimal
	seen, tried := 0, 0 // pairs that were taken out, and those of them that were admitted
	fruitless := 0      // tried since the best one
	for {
		next, ok := queue.pop()
		if !ok || next.bound >= best.ns {
			break
		}
		seen++
		gaveUp := admits != nil && fruitless > maxFruitless
		if seen > maxPairs || tried > maxTried || gaveUp || s.budget.exceededBy(0) {
			status, best.open = problem.Feasible, next.bound
			break
		}
		s.trimPrograms()
		if err := ctx.Err(); err != nil {
			return searchResult{}, diag.New(diag.ClassInterrupted, "choose schemes: %w", err)
		}

		// The neighbours wait even if this pair is not admitted: they may be.
		queue.pushNeighbours(next)
		prefill, decode := s.assignmentsOf(&queue.groups[next.head], next)
		if admits != nil && !admits(prefill, decode) {
			continue
		}
		tried++
		fruitless++
		s.searching(tried, next.bound, best.ns)
		ns, ok, err := try(prefill, decode)
		if err != nil {
			return searchResult{}, err
		}
		if ok && ns < best.ns {
			best.prefill, best.decode, best.ns = prefill, decode, ns
			fruitless = 0
			queue.below = ns
		}
	}

	oneAssignment := len(s.phases[0].points)*max(1, len(s.phases[1].points)) <= 1
	hadChoice := !oneAssignment || admits != nil
	if best.decode != nil && hadChoice {
		best.report = s.searchReport(best.ns, status, best.open)
	}
	return best, nil
}

// searchReport returns what a plan says of a search: optimal, or, where it was cut off, with the bound of the next
// pair.
func (s *planner) searchReport(ns float64, status problem.Status, bound float64) *planir.Solve {
	report := &planir.Solve{Problem: "schemes", Status: string(status), ObjectiveNS: price.Whole(ns),
		BoundNS: price.Whole(ns), Choices: s.countOptions()}
	if status != problem.Optimal {
		report.BoundNS = min(report.BoundNS, price.Whole(bound))
	}
	return report
}

// assignmentsOf returns those of a pair.
func (s *schemeChoice) assignmentsOf(group *headRankings, x pair) (prefill, decode assignment) {
	var ofPrefill *point
	if len(s.phases[0].rows) > 0 {
		ofPrefill = &s.phases[0].points[group.prefill.order[x.prefill].point]
	}
	return s.assignments(ofPrefill, &s.phases[1].points[group.decode.order[x.decode].point])
}

// pairQueue is the pairs that wait in a search, least bound first.
type pairQueue struct {
	groups []headRankings // rankings of both phases, by choice of the head
	below  float64        // pairs whose bound is no less do not wait
	heap   pairs
	most   int // that waited at a time, which the budget counts
	budget *memoryBudget
}

// push has a pair of assignments wait, given by their places in the rankings of both phases, if there are so many.
func (q *pairQueue) push(group, atPrefill, atDecode int) {
	prefill, hasPrefill := q.groups[group].prefill.nth(atPrefill)
	decode, hasDecode := q.groups[group].decode.nth(atDecode)
	if !hasPrefill || !hasDecode {
		return
	}
	if bound := prefill.least + decode.least; bound < q.below {
		heap.Push(&q.heap, pair{group, atPrefill, atDecode, bound})
	}
}

// pushNeighbours has the pairs behind one wait. Every pair has one way to it: along decode first, then along prefill.
func (q *pairQueue) pushNeighbours(x pair) {
	q.push(x.head, x.prefill+1, x.decode)
	if x.prefill == 0 {
		q.push(x.head, 0, x.decode+1)
	}
}

// pop takes the pair with the least bound; false where none waits.
func (q *pairQueue) pop() (pair, bool) {
	if len(q.heap) == 0 {
		return pair{}, false
	}
	if waiting := len(q.heap); waiting > q.most {
		q.budget.reserve(int64(waiting-q.most) * pairBytes)
		q.most = waiting
	}
	return heap.Pop(&q.heap).(pair), true
}

// release gives the queue's memory back.
func (q *pairQueue) release() { q.budget.release(int64(q.most) * pairBytes) }

// searching reports how far a search for schemes is.
func (s *planner) searching(tried int, bound, best float64) {
	progress := Progress{Phase: cmp.Or(s.phase, "choose schemes"), Done: tried, All: 0}
	if s.measure() != problem.Memory {
		progress.Bound, progress.Unit = bound/1e6, "ms"
		if s.measure() == problem.Energy {
			progress.Unit = "mJ"
		}
		if !math.IsInf(best, 1) {
			progress.Best = best / 1e6
		}
	}
	s.reportProgress(progress)
}

// tooLossy explains that no assignment is within the limits: what the least lossy one costs.
func (s *schemeChoice) tooLossy() error {
	for i, ph := range s.phases {
		if ph.max == 0 || len(ph.rows) == 0 {
			continue
		}
		if least := s.leastLoss(i); least > ph.max {
			return diag.New(diag.ClassInfeasible,
				"solve: %s is to lose at most %s, and the permitted schemes lose at least %.3g by the calibration",
				ph.name, workload.KLText(ph.max), least).
				WithHint("permit a32/w32 or another more exact scheme as well, "+
					"or raise quality.max_kl.%s in the workload", ph.name)
		}
	}
	return diag.New(diag.ClassInfeasible,
		"solve: no combination of the permitted schemes stays within the limits of quality in both phases").
		WithHint("raise quality.max_kl in the workload, or permit more exact schemes")
}

// leastLoss returns what the classes lose at least in a phase, added up. Prefill's programs execute a shared head with
// decode's schemes.
func (s *schemeChoice) leastLoss(phase int) float64 {
	total := 0.0
	for i := range s.classes {
		class := &s.classes[i]
		options := s.phases[phase].options[i]
		if phase == 0 && class.shared {
			options = s.phases[1].options[i]
		}
		if len(options) == 0 {
			continue
		}
		least := math.Inf(1)
		for _, scheme := range options {
			if kl, ok := s.loss(class, scheme); ok {
				least = min(least, kl)
			}
		}
		total += least
	}
	return total
}
