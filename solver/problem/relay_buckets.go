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
	m := bucketBuilder{
		builder: builder{&milp.Model{Name: "buckets " + b.Name}}, Buckets: b,
		vars: bucketVars{Open: make([]int, len(b.Sizes)), Unit: 1},
	}
	m.openings()
	m.Note = note(m.vars.Unit, "ns, of all prompts weighted")
	if err := m.cuts(); err != nil {
		return nil, m.vars, err
	}
	if len(m.cut) == 0 {
		return nil, m.vars, b.Infeasible()
	}
	m.row("cut once", 1, 1, m.cut)
	m.limits()
	return m.Model, m.vars, nil
}

// openings adds a variable for every size, and finds the unit: about the objective with the cheapest single bucket.
func (m *bucketBuilder) openings() {
	least := math.Inf(1)
	for j, size := range m.Sizes {
		if m.vars.Open[j] = -1; size.Infeasible {
			continue
		}
		m.feasible = append(m.feasible, j)
		m.vars.Open[j] = m.binary(fmt.Sprintf("open %d", size.Rows), 0)
		if ns, _ := m.Objective([]int{j}); ns > 0 {
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
	for k, j := range m.feasible {
		size := &m.Sizes[j]
		if size.Rows >= longest {
			if err := m.cutAt("nowhere", m.feasible, longest, 0); err != nil {
				return err
			}
			break
		}
		m.largestBelow(j)
		if err := m.cutAt(fmt.Sprintf("at %d", size.Rows), m.feasible[:k+1], size.Rows, size.CostNS); err != nil {
			return err
		}
		last := m.cut[len(m.cut)-1]
		m.smaller = append(m.smaller, last)
		m.implies(fmt.Sprintf("opens %d", size.Rows), []milp.Term{last}, m.vars.Open[j])
	}
	for _, j := range m.feasible { // those that hold every prompt exclude the smaller ones as chunks too
		if m.Sizes[j].Rows >= longest {
			m.largestBelow(j)
		}
	}
	if alone, ok := m.Objective(nil); ok {
		m.cut = append(m.cut, one(m.binary("cut one by one", float64(alone)/m.vars.Unit)))
	}
	return nil
}

// largestBelow has prompts cut at no smaller size where size j is open.
func (m *bucketBuilder) largestBelow(j int) {
	if len(m.smaller) > 0 {
		terms := append(slices.Clone(m.smaller), one(m.vars.Open[j]))
		m.atMost(fmt.Sprintf("largest below %d", m.Sizes[j].Rows), 1, terms)
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
		i, _ := slices.BinarySearchFunc(sizes, left, func(j, rows int) int { return m.Sizes[j].Rows - rows })
		mass[i] += length.Weight
	}
	cut := m.binary("cut "+name, float64(fixed)/m.vars.Unit)
	m.cut = append(m.cut, one(cut))
	for i := range mass {
		if mass[i] == 0 {
			continue
		}
		rows := m.Sizes[sizes[i]].Rows
		all := []milp.Term{{Var: cut, Coef: -1}}
		// Rests may go to any size that holds them and is open.
		for _, j := range sizes[i:] {
			way := fmt.Sprintf("%s, %d to %d", name, rows, m.Sizes[j].Rows)
			part := m.variable("cut "+way, float64(mass[i])*float64(m.Sizes[j].CostNS)/m.vars.Unit, 1, false)
			all = append(all, one(part))
			m.implies("needs "+way, []milp.Term{one(part)}, m.vars.Open[j])
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
		for _, j := range m.feasible {
			if amount := of(&m.Sizes[j]); amount > 0 {
				terms = append(terms, milp.Term{Var: m.vars.Open[j], Coef: float64(amount)})
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
func (v *bucketVars) Sizes(b *Buckets, values []float64) []int {
	var out []int
	least := int64(math.MaxInt64)
	for j, open := range slices.Backward(v.Open) {
		if open >= 0 && values[open] > 0.5 && b.Sizes[j].CostNS < least {
			out, least = append(out, j), b.Sizes[j].CostNS
		}
	}
	slices.Reverse(out)
	if all, ok := b.Objective(nil); ok {
		if ns, _ := b.Objective(out); len(out) > 0 && all <= ns {
			return nil
		}
	}
	// One whose lengths no bucket has is left out too.
	for k := 0; k < len(out) && len(out) > 1; {
		fewer := slices.Delete(slices.Clone(out), k, k+1)
		with, _ := b.Objective(out)
		if without, _ := b.Objective(fewer); without <= with {
			out = fewer
		} else {
			k++
		}
	}
	return out
}

// Buckets implements Engine.
func (r Relay) Buckets(ctx context.Context, b *Buckets, limits Limits) (BucketSolution, error) {
	if err := b.Validate(); err != nil {
		return BucketSolution{}, err
	}
	model, vars, err := b.MILP()
	if err != nil {
		return BucketSolution{}, err
	}
	got, err := r.General.Solve(ctx, model, milp.Options{Nodes: r.limit(limits)})
	if err != nil {
		return BucketSolution{}, fmt.Errorf("solve buckets %q: %w", b.Name, err)
	}
	switch got.Status {
	case milp.Infeasible:
		return BucketSolution{}, b.Infeasible()
	case milp.Limit:
		return BucketSolution{Status: LimitReached, Nodes: got.Nodes}, nil
	}
	// The objective in whole numbers is recomputed; only the bound is the engine's, scaled back.
	out := BucketSolution{Sizes: vars.Sizes(b, got.X), Nodes: got.Nodes, Status: Feasible}
	out.Objective, _ = b.Objective(out.Sizes)
	if out.Bound = out.Objective; got.Status != milp.Optimal {
		out.Bound = min(out.Objective, int64(math.Floor(got.Bound*vars.Unit)))
		return out, nil
	}
	if r.Exact == nil {
		return out, nil // optimal, but perhaps not the first of its kind
	}
	// Of equally good choices the first is named by the engine that orders them.
	first, err := r.Exact.Buckets(ctx, b, limits)
	if err != nil || first.Status != Optimal || float64(first.Objective) < float64(out.Objective)*(1-milp.Tolerance) {
		return out, nil
	}
	first.Nodes = got.Nodes
	return first, nil
}
