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

// BucketVars says what the variables of Buckets.MILP mean.
type BucketVars struct {
	Open []int   // by size: the variable that says it is opened, -1 for infeasible ones
	Unit float64 // objective of the program times Unit is that of the instance
}

// MILP poses the instance as a p-median problem: y[j] opens size j, z[g] decides how prompts are cut (not at all; at size g;
// or into single tokens), and x[g,i,j] <= y[j] is the part of the rests between size i-1 and i that goes to size j when
// they are cut so. Rests go to the fastest size that is open, which in an optimum is the smallest. The objective is scaled so
// that it stays near 1e6.
func (b *Buckets) MILP() (*milp.Model, BucketVars, error) {
	m := &milp.Model{Name: "buckets " + b.Name}
	vars := BucketVars{Open: make([]int, len(b.Sizes)), Unit: 1}
	variable := func(v milp.Var) int {
		m.Vars = append(m.Vars, v)
		return len(m.Vars) - 1
	}
	row := func(name string, low, high float64, terms []milp.Term) {
		m.Rows = append(m.Rows, milp.Row{Name: name, Low: low, High: high, Terms: terms})
	}
	binary := func(name string, cost float64) int {
		return variable(milp.Var{Name: name, Cost: cost, High: 1, Integer: true})
	}
	least := math.Inf(1) // objective with the cheapest single bucket, roughly: for the unit
	var feasible []int
	for j, s := range b.Sizes {
		if vars.Open[j] = -1; s.Infeasible {
			continue
		}
		feasible = append(feasible, j)
		vars.Open[j] = binary(fmt.Sprintf("open %d", s.Rows), 0)
		if ns, _ := b.Objective([]int{j}); ns > 0 {
			least = min(least, float64(ns))
		}
	}
	none, alone := b.Objective(nil)
	if alone && none > 0 {
		least = min(least, float64(none))
	}
	if !math.IsInf(least, 1) {
		vars.Unit = max(1, least/1e6)
	}
	m.Note = note(vars.Unit, "ns, of all prompts weighted")
	longest := b.Lengths[len(b.Lengths)-1].Tokens
	var cut []milp.Term     // all z
	var smaller []milp.Term // z of sizes below j at which prompts are cut
	// group adds the ways to execute the prompts when they are cut at size c, the last of `sizes`.
	group := func(name string, sizes []int, chunk int, cost int64) error {
		mass := make([]int64, len(sizes))
		var fixed int64
		for _, l := range b.Lengths {
			full, left := Cut(l.Tokens, chunk)
			fixed += l.Weight * int64(full) * cost
			if left == 1 && b.OneNS > 0 {
				fixed += l.Weight * b.OneNS
				continue
			}
			i, _ := slices.BinarySearchFunc(sizes, left, func(j, rows int) int { return b.Sizes[j].Rows - rows })
			mass[i] += l.Weight
		}
		z := binary("cut "+name, float64(fixed)/vars.Unit)
		cut = append(cut, milp.Term{Var: z, Coef: 1})
		for i := range mass {
			if mass[i] == 0 {
				continue
			}
			all := []milp.Term{{Var: z, Coef: -1}}
			for _, j := range sizes[i:] {
				x := variable(milp.Var{Name: fmt.Sprintf("cut %s, %d to %d", name, b.Sizes[sizes[i]].Rows, b.Sizes[j].Rows), Cost: float64(mass[i]) * float64(b.Sizes[j].CostNS) / vars.Unit, High: 1})
				all = append(all, milp.Term{Var: x, Coef: 1})
				row(fmt.Sprintf("needs %s, %d to %d", name, b.Sizes[sizes[i]].Rows, b.Sizes[j].Rows), math.Inf(-1), 0, []milp.Term{{Var: x, Coef: 1}, {Var: vars.Open[j], Coef: -1}})
			}
			row(fmt.Sprintf("held %s, %d", name, b.Sizes[sizes[i]].Rows), 0, 0, all)
		}
		if len(m.Vars) > maxBucketVars {
			return diag.New(diag.ClassUnavailable, "buckets %q: its linear program has more than %d variables", b.Name, maxBucketVars).WithHint("use the exact engine")
		}
		return nil
	}
	for k, j := range feasible {
		s := &b.Sizes[j]
		if s.Rows >= longest {
			if err := group("nowhere", feasible, longest, 0); err != nil {
				return nil, vars, err
			}
			break
		}
		if len(smaller) > 0 {
			row(fmt.Sprintf("largest below %d", s.Rows), math.Inf(-1), 1, append(slices.Clone(smaller), milp.Term{Var: vars.Open[j], Coef: 1}))
		}
		if err := group(fmt.Sprintf("at %d", s.Rows), feasible[:k+1], s.Rows, s.CostNS); err != nil {
			return nil, vars, err
		}
		z := cut[len(cut)-1]
		smaller = append(smaller, z)
		row(fmt.Sprintf("opens %d", s.Rows), math.Inf(-1), 0, []milp.Term{z, {Var: vars.Open[j], Coef: -1}})
	}
	for _, j := range feasible { // those that hold every prompt exclude the smaller ones as chunks too
		if b.Sizes[j].Rows >= longest && len(smaller) > 0 {
			row(fmt.Sprintf("largest below %d", b.Sizes[j].Rows), math.Inf(-1), 1, append(slices.Clone(smaller), milp.Term{Var: vars.Open[j], Coef: 1}))
		}
	}
	if alone {
		z := binary("cut one by one", float64(none)/vars.Unit)
		cut = append(cut, milp.Term{Var: z, Coef: 1})
	}
	if len(cut) == 0 {
		return nil, vars, b.Infeasible()
	}
	row("cut once", 1, 1, cut)
	var count, bytes, graphs, open []milp.Term
	add := func(list *[]milp.Term, j int, x float64) {
		if x > 0 {
			*list = append(*list, milp.Term{Var: vars.Open[j], Coef: x})
		}
	}
	for _, j := range feasible {
		s := &b.Sizes[j]
		add(&count, j, 1)
		add(&bytes, j, float64(s.Bytes))
		add(&graphs, j, float64(s.Graphs))
		add(&open, j, float64(s.OpenNS))
	}
	row("buckets", math.Inf(-1), float64(b.Max), count)
	for _, x := range []struct {
		name  string
		most  float64
		terms []milp.Term
	}{{"bytes", float64(b.MaxBytes), bytes}, {"graphs", float64(b.MaxGraphs), graphs}, {"opening", float64(b.MaxOpenNS), open}} {
		if x.most > 0 && len(x.terms) > 0 {
			for k := range x.terms { // in thousandths of the limit: tolerances are relative to that
				x.terms[k].Coef *= 1e3 / x.most
			}
			row(x.name, math.Inf(-1), 1e3, x.terms)
		}
	}
	return m, vars, nil
}

// Sizes reads the choice from values of the variables: those opened that some prompt gains from.
func (v *BucketVars) Sizes(b *Buckets, x []float64) []int {
	var out []int
	least := int64(math.MaxInt64)
	for j := len(v.Open) - 1; j >= 0; j-- {
		if v.Open[j] >= 0 && x[v.Open[j]] > 0.5 && b.Sizes[j].CostNS < least {
			out, least = append(out, j), b.Sizes[j].CostNS
		}
	}
	slices.Reverse(out)
	if all, ok := b.Objective(nil); ok {
		if ns, _ := b.Objective(out); len(out) > 0 && all <= ns {
			return nil
		}
	}
	// One whose lengths nobody has is left out too.
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
func (r Relay) Buckets(ctx context.Context, b *Buckets, l Limits) (BucketSolution, error) {
	if err := b.Validate(); err != nil {
		return BucketSolution{}, err
	}
	m, vars, err := b.MILP()
	if err != nil {
		return BucketSolution{}, err
	}
	got, err := r.General.Solve(ctx, m, milp.Options{Nodes: r.limit(l)})
	if err != nil {
		return BucketSolution{}, fmt.Errorf("solve buckets %q: %w", b.Name, err)
	}
	switch got.Status {
	case milp.Infeasible:
		return BucketSolution{}, b.Infeasible()
	case milp.Limit:
		return BucketSolution{Status: LimitReached, Nodes: got.Nodes}, nil
	}
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
	if first, err := r.Exact.Buckets(ctx, b, l); err == nil && first.Status == Optimal && float64(first.Objective) >= float64(out.Objective)*(1-milp.Tolerance) {
		first.Nodes = got.Nodes
		return first, nil
	}
	return out, nil
}
