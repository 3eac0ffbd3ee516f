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

// complete makes the plan of the chosen schemes: fitted to the processors, with its predictions and memory.
func (s *session) complete(ctx context.Context) (*planir.Plan, error) {
	plan, err := s.fit(ctx)
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

// within is the plan with the least objective that holds at most bound bytes, with the session that made
// it. free is the plan without a bound. Schemes of both phases (one packed copy serves both where they are equal), and leaving
// out the largest buckets, are its choices; a program's divisions follow from them, with equal regions preferred where
// processors own copies.
func (s *session) within(ctx context.Context, bound int64, free *planir.Plan) (*session, *planir.Plan, error) {
	var best *planir.Plan
	var by *session
	var notes diag.List
	bestNS := math.Inf(1)
	for n := len(s.want.Buckets); n >= s.fewest(); n-- {
		t := s
		if n < len(s.want.Buckets) {
			var err error
			if t, err = s.fewer(ctx, n); err != nil {
				return nil, nil, err
			}
		}
		t.bind(bound)
		t.nodes, t.phase = triedNodes, fmt.Sprintf("fit %v of memory, %d buckets", unit.Bytes(bound), n)
		var last *planir.Plan
		unproved := false // some pair may have a plan that was not found
		try := func(prefill, decode assignment) (float64, bool, error) {
			t.prefill, t.decode, t.chosen = prefill, decode, nil
			plan, err := t.complete(ctx)
			if err != nil {
				if diag.ClassOf(err) == diag.ClassInfeasible { // for another reason: an address space
					unproved = unproved || !Proved(err)
					return 0, false, nil
				}
				return 0, false, err
			}
			last = plan
			return t.objective(plan), plan.Memory.Total <= bound, nil
		}
		rest := t.leastPool() + planir.FixedBytes
		if free != nil {
			rest = t.leastPool() + t.fixedPart(free)
		}
		found, err := t.search(ctx, bestNS, func(prefill, decode assignment) bool {
			return t.weightBytes(prefill, decode)+rest <= bound
		}, func(prefill, decode assignment) (float64, bool, error) {
			ns, ok, err := try(prefill, decode)
			if ok && ns < bestNS {
				best, bestNS = last, ns
				if by != nil && by != t && by != s {
					by.close()
				}
				by = t
			}
			return ns, ok, err
		})
		if err != nil {
			return nil, nil, err
		}
		if by == t {
			if unproved && found.report != nil {
				found.report.Status, found.report.BoundNS = string(problem.Feasible), min(price.Whole(t.lowest()), found.report.ObjectiveNS)
			}
			t.prefill, t.decode, t.chosen = found.prefill, found.decode, found.report
			best.Solver = append(slices.Clone(best.Solver), *found.report)
			notes = t.notes
		}
		if t != s && by != t {
			t.close()
		}
	}
	if best == nil {
		return s.fromSmallest(ctx, bound)
	}
	if by != s {
		by.notes = notes
	}
	return by, best, nil
}

// triedNodes bounds the search for one of many combinations of schemes and buckets.
const triedNodes = 24

// fewer is a session for the same prompts with the first n buckets only.
func (s *session) fewer(ctx context.Context, n int) (*session, error) {
	want, err := s.want.Fewer(s.in.Workload, n, s.in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	t, err := sessionFor(s.in, want)
	if err != nil {
		return nil, err
	}
	t.prices, t.goal, t.tight = s.prices, s.goal, s.tight
	t.waive(s.waived...)
	return t, t.prepare(ctx)
}

// weightBytes is what the classes take at least in a pair of assignments: one packed copy for each format.
func (s *session) weightBytes(prefill, decode assignment) int64 {
	var total int64
	for k := range s.classes {
		c := &s.classes[k]
		p, d := prefill[k].Weight(), decode[k].Weight()
		total += c.bytes(d)
		if p != d && !c.head && len(s.want.Buckets) > 0 {
			total += c.bytes(p)
		}
	}
	return total
}

// leastPool is what the values of the largest program take at least: every plan has a buffer for each that no graph of several
// operators can keep inside.
func (s *session) leastPool() int64 {
	rows := 1
	if n := len(s.want.Buckets); n > 0 {
		rows = s.want.Buckets[n-1]
	}
	sections, err := s.expand(rows, s.uniform(op.A32W32))
	if err != nil {
		return 0
	}
	seen := map[string]bool{}
	var total int64
	for i := range sections {
		for _, n := range sections[i].Nodes {
			if slices.ContainsFunc(s.Procs, func(p planir.Proc) bool { _, inside := lower.Joins(n.Ops, &p); return inside }) {
				continue
			}
			for _, name := range slices.Concat(n.In, n.Out) {
				if v := sections[i].Values[name]; !seen[name] {
					seen[name] = true
					total += int64(v.Rows) * int64(v.Cols) * int64(v.Type.Bytes())
				}
			}
		}
	}
	return total
}

// lightest is the pair of assignments with the fewest bytes of weights within the limits of quality.
func (s *session) lightest() (prefill, decode assignment) {
	least := int64(math.MaxInt64)
	consider := func(p, d *point) {
		a, b := s.assignments(p, d)
		if limit := s.phases[0].max; p != nil && limit > 0 && p.kl+s.headKL(b) > limit {
			return
		}
		if n := s.weightBytes(a, b); n < least {
			least, prefill, decode = n, a, b
		}
	}
	prefills, decodes := s.phases[0].points, s.phases[1].points
	for j := range decodes {
		if len(s.phases[0].rows) == 0 {
			consider(nil, &decodes[j])
			continue
		}
		for i := range prefills {
			if len(prefills)*len(decodes) > maxPairs && i > 0 {
				break // too many: beside the fastest
			}
			consider(&prefills[i], &decodes[j])
		}
	}
	return prefill, decode
}

// smallestError is what the smallest plan found holds.
type SmallestError struct {
	Total int64
	text  string
}

func (e *SmallestError) Error() string { return e.text }

// tooLarge is the error that the smallest plan found, for this measure, holds more than is permitted.
func (s *session) tooLarge(bound int64, smallest *planir.Plan) error {
	m := smallest.Memory
	text := fmt.Sprintf("the smallest plan found holds %v, and at most %v are permitted: %s", unit.Bytes(m.Total), unit.Bytes(bound), m)
	e := &LimitError{Names: []string{workload.KeyMemory}, Proved: max(s.leastMemory(), smallest.Solver[0].BoundNS) > bound, text: text, cause: &SmallestError{m.Total, text}}
	return diag.New(diag.ClassInfeasible, "solve: %w", e).
		WithHint("permit at least %d bytes, a smaller context than %d (the cache takes %v), schemes with fewer bits, or smaller buckets and batches", m.Total, smallest.MaxContext, unit.Bytes(m.Cache))
}
