package solver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
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
	var best, smallest *planir.Plan
	var by *session
	var notes diag.List
	bestNS := math.Inf(1)
	for n := len(s.want.buckets); n >= min(1, len(s.want.buckets)); n-- {
		t := s
		if n < len(s.want.buckets) {
			var err error
			if t, err = s.fewer(ctx, n); err != nil {
				return nil, nil, err
			}
		}
		t.bind(bound)
		t.nodes, t.phase = triedNodes, fmt.Sprintf("fit %v of memory, %d buckets", unit.Bytes(bound), n)
		var last *planir.Plan
		try := func(prefill, decode assignment) (float64, bool, error) {
			t.prefill, t.decode, t.chosen = prefill, decode, nil
			plan, err := t.complete(ctx)
			if err != nil {
				if diag.ClassOf(err) == diag.ClassInfeasible {
					return 0, false, nil // for another reason: an address space
				}
				return 0, false, err
			}
			if smallest == nil || plan.Memory.Total < smallest.Memory.Total {
				smallest = plan
			}
			last = plan
			return t.objective(plan), plan.Memory.Total <= bound, nil
		}
		rest := free.Memory.Cache + t.leastPool() + planir.FixedBytes
		if !t.packed.works() { // else the embedding may be the head's
			rest += free.Memory.Tables
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
			t.prefill, t.decode, t.chosen = found.prefill, found.decode, found.report
			best.Solver = append(slices.Clone(best.Solver), *found.report)
			notes = t.notes
		}
		if best == nil && n == min(1, len(s.want.buckets)) {
			if p, d := t.lightest(); d != nil {
				if _, _, err := try(p, d); err != nil {
					return nil, nil, err
				}
			}
		}
		if t != s && by != t {
			t.close()
		}
	}
	if best == nil {
		return nil, nil, tooLarge(bound, smallest)
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
	t, err := newSession(s.in)
	if err != nil {
		return nil, err
	}
	if t.want, err = s.want.fewer(s.in.Workload, n, s.in.Model.MaxContext); err != nil {
		return nil, err
	}
	t.prices = s.prices
	return t, t.prepare(ctx)
}

// fewer applies the workload again with the first n buckets only, to the same prompts. A call counts as much as its
// bucket has rows, so prompts are taken to fill the buckets they have now: else smaller ones would gain what
// is only padding of the larger.
func (d *demand) fewer(w *Workload, n, maxContext int) (*demand, error) {
	x := *w
	x.Buckets, x.Batches, x.Context, x.Prompts = d.buckets[:n], d.batches, d.context, nil
	if len(w.Prompts) == 0 { // what the buckets stand for
		for i, b := range d.buckets {
			x.Prompts = append(x.Prompts, Prompt{Tokens: b, Share: d.share[i]})
		}
	}
	for _, p := range w.Prompts {
		largest := d.buckets[len(d.buckets)-1]
		full := (p.Tokens - 1) / largest * largest
		if left := p.Tokens - full; left > 1 {
			p.Tokens = min(full+d.buckets[sort.SearchInts(d.buckets, left)], d.context)
		}
		x.Prompts = append(x.Prompts, p)
	}
	out, err := x.apply(maxContext)
	if err != nil {
		return nil, err
	}
	out.decodeAt(d.contexts[1])
	return out, nil
}

// weightBytes is what the classes take at least in a pair of assignments: one packed copy for each format.
func (s *session) weightBytes(prefill, decode assignment) int64 {
	var total int64
	for k := range s.classes {
		c := &s.classes[k]
		p, d := prefill[k].Weight(), decode[k].Weight()
		total += c.bytes(d)
		if p != d && !c.head && len(s.want.buckets) > 0 {
			total += c.bytes(p)
		}
	}
	return total
}

// leastPool is what the values of the largest program take: every plan has a buffer for each.
func (s *session) leastPool() int64 {
	rows := 1
	if n := len(s.want.buckets); n > 0 {
		rows = s.want.buckets[n-1]
	}
	sections, err := s.expand(rows, s.uniform(op.A32W32))
	if err != nil {
		return 0
	}
	seen := map[string]bool{}
	var total int64
	for i := range sections {
		for _, n := range sections[i].Nodes {
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
type smallestError struct {
	total int64
	text  string
}

func (e *smallestError) Error() string { return e.text }

// tooLarge explains that no plan was found within the bound.
func tooLarge(bound int64, smallest *planir.Plan) error {
	b := unit.Bytes(bound)
	if smallest == nil {
		return diag.New(diag.ClassInfeasible, "solve: no plan holds at most %v", b).WithHint("give more memory, or permit schemes with fewer bits in the workload")
	}
	m := smallest.Memory
	return diag.New(diag.ClassInfeasible, "solve: %w", &smallestError{m.Total, fmt.Sprintf("the smallest plan found holds %v, and at most %v are permitted: %s", unit.Bytes(m.Total), b, m)}).
		WithHint("permit at least %d bytes, a smaller context than %d (the cache takes %v), schemes with fewer bits, or smaller buckets and batches", m.Total, smallest.MaxContext, unit.Bytes(m.Cache))
}
