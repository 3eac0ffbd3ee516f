package problem

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// maxBucketVars bounds the linear program of a bucket selection: the chunk and the rests' buckets are variables, about
// sizes^3 / 6 of them where prompts are longer than most sizes.
const maxBucketVars = 1 << 18

// bucketVars says what the variables of Buckets.MILP mean.
type bucketVars struct {
	Open []int   // by size: the variable that says it is opened, -1 for infeasible ones
	Unit float64 // objective of the program times Unit is that of the instance
}

// bucketBuilder poses a bucket selection.
type bucketBuilder struct {
	builder
	*Buckets
	vars     bucketVars
	feasible []int       // sizes
	cut      []milp.Term // the ways to cut, of which one is taken
	smaller  []milp.Term // those of cut for sizes below the one that is looked at
}

// MILP poses the instance as a p-median problem: y[j] opens size j, z[g] decides how prompts are cut (not at all; at
// size g; or into single tokens), and x[g,i,j] <= y[j] is the part of the rests between size i-1 and i that goes to
// size j when they are cut so. Rests go to the fastest size that is open, which in an optimum is the smallest. The
// objective is scaled so that it stays near 1e6.
func (b *Buckets) MILP() (*milp.Model, bucketVars, error) {
	posed := bucketBuilder{
		builder: builder{&milp.Model{Name: "buckets " + b.Name}}, Buckets: b,
		vars: bucketVars{Open: make([]int, len(b.Sizes)), Unit: 1},
	}
	posed.openings()
	posed.Note = note(posed.vars.Unit, "ns, of all prompts weighted")

	if err := posed.cuts(); err != nil {
		return nil, posed.vars, err
	}
	if len(posed.cut) == 0 {
		return nil, posed.vars, b.Infeasible()
	}
	posed.row("cut once", 1, 1, posed.cut)
	posed.limits()
	return posed.Model, posed.vars, nil
}

// openings adds a variable for every size, and finds the unit: about the objective with the cheapest single bucket.
func (m *bucketBuilder) openings() {
	least := math.Inf(1)
	for index, size := range m.Sizes {
		if m.vars.Open[index] = -1; size.Infeasible {
			continue
		}
		m.feasible = append(m.feasible, index)
		m.vars.Open[index] = m.binary(fmt.Sprintf("open %d", size.Rows), 0)
		if ns, _ := m.Objective([]int{index}); ns > 0 {
			least = min(least, float64(ns))
		}
	}

	if alone, ok := m.Objective(nil); ok && alone > 0 {
		least = min(least, float64(alone))
	}
	if !math.IsInf(least, 1) {
		m.vars.Unit = max(1, least/1e6)
	}
}

// cuts adds the ways to cut the prompts.
func (m *bucketBuilder) cuts() error {
	// The chunk is the largest size that is open, unless one size holds every prompt: then nothing is cut.
	longest := m.Lengths[len(m.Lengths)-1].Tokens

	// One way to cut for each size that may be the largest open one.
	for before, index := range m.feasible {
		size := &m.Sizes[index]
		if size.Rows >= longest {
			if err := m.cutAt("nowhere", m.feasible, longest, 0); err != nil {
				return err
			}
			break
		}

		m.largestBelow(index)
		if err := m.cutAt(fmt.Sprintf("at %d", size.Rows), m.feasible[:before+1], size.Rows, size.CostNS); err != nil {
			return err
		}

		last := m.cut[len(m.cut)-1]
		m.smaller = append(m.smaller, last)
		m.implies(fmt.Sprintf("opens %d", size.Rows), []milp.Term{last}, m.vars.Open[index])
	}

	for _, index := range m.feasible { // those that hold every prompt exclude the smaller ones as chunks too
		if m.Sizes[index].Rows >= longest {
			m.largestBelow(index)
		}
	}

	if alone, ok := m.Objective(nil); ok {
		m.cut = append(m.cut, one(m.binary("cut one by one", float64(alone)/m.vars.Unit)))
	}
	return nil
}

// largestBelow has prompts cut at no smaller size where the size with that index is open.
func (m *bucketBuilder) largestBelow(index int) {
	if len(m.smaller) > 0 {
		terms := append(slices.Clone(m.smaller), one(m.vars.Open[index]))
		m.atMost(fmt.Sprintf("largest below %d", m.Sizes[index].Rows), 1, terms)
	}
}

// cutAt adds the ways to execute the prompts when they are cut at chunk, the last of sizes.
func (m *bucketBuilder) cutAt(name string, sizes []int, chunk int, cost int64) error {
	// Prompts count by the rest that cutting leaves; full chunks take the same time whatever is open.
	mass := make([]int64, len(sizes)) // of the rests that a size is the smallest for
	var fixed int64                   // ns of full chunks and of rests of one token, whatever else is open

	for _, length := range m.Lengths {
		full, left := Cut(length.Tokens, chunk)
		fixed += length.Weight * int64(full) * cost
		if left == 1 && m.OneNS > 0 {
			fixed += length.Weight * m.OneNS
			continue
		}
		at, _ := slices.BinarySearchFunc(sizes, left, func(index, rows int) int {
			return m.Sizes[index].Rows - rows
		})
		mass[at] += length.Weight
	}

	cut := m.binary("cut "+name, float64(fixed)/m.vars.Unit)
	m.cut = append(m.cut, one(cut))

	for at := range mass {
		if mass[at] == 0 {
			continue
		}
		rows := m.Sizes[sizes[at]].Rows
		all := []milp.Term{{Var: cut, Coef: -1}}

		// Rests may go to any size that holds them and is open.
		for _, index := range sizes[at:] {
			way := fmt.Sprintf("%s, %d to %d", name, rows, m.Sizes[index].Rows)
			part := m.variable("cut "+way, float64(mass[at])*float64(m.Sizes[index].CostNS)/m.vars.Unit, 1, false)
			all = append(all, one(part))
			m.implies("needs "+way, []milp.Term{one(part)}, m.vars.Open[index])
		}
		m.row(fmt.Sprintf("held %s, %d", name, rows), 0, 0, all)
	}

	if len(m.Vars) > maxBucketVars {
		return diag.New(diag.ClassUnavailable, "buckets %q: its linear program has more than %d variables",
			m.Buckets.Name, maxBucketVars).WithHint("use the exact engine")
	}
	return nil
}

// limits adds rows for the number of buckets and what they take.
func (m *bucketBuilder) limits() {
	// Each limit is a sum over the sizes that are open.
	sum := func(of func(size *Size) int64) (terms []milp.Term) {
		for _, index := range m.feasible {
			if amount := of(&m.Sizes[index]); amount > 0 {
				terms = append(terms, milp.Term{Var: m.vars.Open[index], Coef: float64(amount)})
			}
		}
		return terms
	}
	m.atMost("buckets", float64(m.Max), sum(func(*Size) int64 { return 1 }))

	for _, limit := range []struct {
		name  string
		most  float64
		terms []milp.Term
	}{
		{"bytes", float64(m.MaxBytes), sum(func(size *Size) int64 { return size.Bytes })},
		{"graphs", float64(m.MaxGraphs), sum(func(size *Size) int64 { return int64(size.Graphs) })},
		{"opening", float64(m.MaxOpenNS), sum(func(size *Size) int64 { return size.OpenNS })},
	} {
		if limit.most > 0 && len(limit.terms) > 0 {
			for i := range limit.terms { // in thousandths of the limit: tolerances are relative to that
				limit.terms[i].Coef *= 1e3 / limit.most
			}
			m.atMost(limit.name, 1e3, limit.terms)
		}
	}
}

// Sizes reads the choice from values of the variables: those opened that some prompt gains from.
func (v *bucketVars) Sizes(buckets *Buckets, values []float64) []int {
	var out []int
	least := int64(math.MaxInt64)
	for index, open := range slices.Backward(v.Open) {
		if open >= 0 && values[open] > 0.5 && buckets.Sizes[index].CostNS < least {
			out, least = append(out, index), buckets.Sizes[index].CostNS
		}
	}

	slices.Reverse(out)
	if all, ok := buckets.Objective(nil); ok {
		if ns, _ := buckets.Objective(out); len(out) > 0 && all <= ns {
			return nil
		}
	}

	// One whose lengths no bucket has is left out too.
	for at := 0; at < len(out) && len(out) > 1; {
		fewer := slices.Delete(slices.Clone(out), at, at+1)
		with, _ := buckets.Objective(out)
		if without, _ := buckets.Objective(fewer); without <= with {
			out = fewer
		} else {
			at++
		}
	}
	return out
}

// Buckets implements Engine.
func (r Relay) Buckets(ctx context.Context, buckets *Buckets, limits Limits) (BucketSolution, error) {
	if err := buckets.Validate(); err != nil {
		return BucketSolution{}, err
	}
	model, vars, err := buckets.MILP()
	if err != nil {
		return BucketSolution{}, err
	}
	got, err := r.General.Solve(ctx, model, milp.Options{Nodes: r.limit(limits)})
	if err != nil {
		return BucketSolution{}, fmt.Errorf("solve buckets %q: %w", buckets.Name, err)
	}

	switch got.Status {
	case milp.Infeasible:
		return BucketSolution{}, buckets.Infeasible()
	case milp.Limit:
		return BucketSolution{Status: LimitReached, Nodes: got.Nodes}, nil
	}

	// The objective in whole numbers is recomputed; only the bound is the engine's, scaled back.
	out := BucketSolution{Sizes: vars.Sizes(buckets, got.X), Nodes: got.Nodes, Status: Feasible}
	out.Objective, _ = buckets.Objective(out.Sizes)
	if out.Bound = out.Objective; got.Status != milp.Optimal {
		out.Bound = min(out.Objective, int64(math.Floor(got.Bound*vars.Unit)))
		return out, nil
	}
	if r.Exact == nil {
		return out, nil // optimal, but perhaps not the first of its kind
	}

	// Of equally good choices the first is named by the engine that orders them.
	first, err := r.Exact.Buckets(ctx, buckets, limits)
	if err != nil || first.Status != Optimal {
		return out, nil
	}
	if float64(first.Objective) < float64(out.Objective)*(1-milp.Tolerance) {
		return out, nil
	}
	first.Nodes = got.Nodes
	return first, nil
}
