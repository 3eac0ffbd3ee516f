package solver

import (
	"context"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// open reports whether the workload leaves buckets or batches to be chosen.
func (s *session) open() bool {
	return s.in.Workload.Buckets.Max() > 0 || s.in.Workload.Batches.Max() > 0
}

// more are the candidates that need not have been measured, because their costs lie between those of the ladder: multiples
// of 64 rows up to 512, of 128 up to 1024, of 256 beyond, and, of processors with static shapes, of their tile.
func (s *session) more(ladder []int) []int {
	if len(ladder) == 0 {
		return nil
	}
	top := ladder[len(ladder)-1]
	out := slices.Clone(ladder)
	add := func(rows int) {
		if rows >= 2 && rows <= top && !slices.Contains(s.want.Batches, rows) {
			out = append(out, rows)
		}
	}
	for rows := 64; rows <= top; {
		add(rows)
		switch {
		case rows < 512:
			rows += 64
		case rows < 1024:
			rows += 128
		default:
			rows += 256
		}
	}
	const tiles = 8 // multiples of a processor's tile
	for _, tile := range s.Static {
		for k := 1; k <= tiles && tile > 1; k++ {
			add(tile * k)
		}
	}
	sort.Ints(out)
	return slices.Compact(out)
}

// resized is a session for the same prompts with other buckets and batches.
func (s *session) resized(buckets, batches []int) (*session, error) {
	w := *s.in.Workload
	w.Buckets, w.Batches, w.Prompts, w.Context = buckets, batches, s.want.Prompts, s.want.Context
	want, err := w.Apply(s.in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	want.OutputTokens = s.want.OutputTokens
	t, err := sessionFor(s.in, want)
	if err != nil {
		return nil, err
	}
	t.prices = s.prices
	return t, nil
}

// sized chooses buckets and batches and makes the plan for them. Of the candidates, those that some permitted scheme has prices for
// are solved by themselves; what they cost is the instance of bucket selection. Where the plan for the chosen ones breaks a limit
// (of memory, or of what processors hold), fewer are chosen.
func (s *session) sized(ctx context.Context) (*Result, error) {
	if err := s.calibrated(); err != nil {
		return nil, err
	}
	if s.measure() == problem.Memory {
		return s.fewSizes(ctx)
	}
	c, err := s.candidates(ctx)
	if err != nil {
		return nil, err
	}
	var best *Result
	var first error
	var bound int64 // of the buckets' objective without limits
	for most := s.in.Workload.Buckets.Max(); ; most-- {
		buckets, batches := []int(s.want.Buckets), []int(s.want.Batches)
		var reports []planir.Solve
		if s.in.Workload.Buckets.Max() > 0 {
			list, report, err := c.buckets(ctx, most)
			if err != nil {
				return nil, err
			}
			if bound == 0 {
				bound = report.BoundNS
			}
			if report.BoundNS = min(bound, report.ObjectiveNS); report.BoundNS < report.ObjectiveNS {
				report.Status = string(problem.Feasible)
			}
			buckets, reports = list, append(reports, report)
		}
		if s.in.Workload.Batches.Max() > 0 {
			list, report, err := c.batches(ctx)
			if err != nil {
				return nil, err
			}
			batches, reports = list, append(reports, report)
		}
		t, err := s.resized(buckets, batches)
		if err != nil {
			return nil, err
		}
		r, err := t.solve(ctx)
		t.close()
		switch {
		case err == nil:
			r.Plan.Solver = append(r.Plan.Solver, reports...)
			if best == nil || r.ExpectedNS < best.ExpectedNS {
				best = r
			}
			if r.buckets() == len(buckets) { // none had to be left out
				return best, nil
			}
		case diag.ClassOf(err) != diag.ClassInfeasible:
			return nil, err
		case first == nil:
			first = err
		}
		if most = min(most, len(buckets)); most <= 1 {
			break
		}
	}
	if best == nil {
		return s.otherSizes(ctx, first)
	}
	return best, nil
}

// fewSizes is the plan for as few programs as there may be: one bucket, the smallest that has a plan, and no batch. Others only add to
// what a process holds.
func (s *session) fewSizes(ctx context.Context) (*Result, error) {
	buckets, batches := []int(s.want.Buckets), []int(s.want.Batches)
	if s.in.Workload.Batches.Max() > 0 {
		batches = nil
	}
	sets := [][]int{buckets}
	if s.in.Workload.Buckets.Max() > 0 {
		sets = nil
		for _, rows := range buckets[:min(fewestTried, len(buckets))] {
			sets = append(sets, []int{rows})
		}
	}
	var first error
	for _, list := range sets {
		t, err := s.resized(list, batches)
		if err != nil {
			return nil, err
		}
		r, err := t.solve(ctx)
		if err == nil || diag.ClassOf(err) == diag.ClassInterrupted {
			return r, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// fewestTried is how many of the smallest candidates are tried alone.
const fewestTried = 3

// otherSizes is the plan for the sizes that take least of what is limited; why is the error for those that are fastest.
func (s *session) otherSizes(ctx context.Context, why error) (*Result, error) {
	if s.in.Workload.Limits.EnergyMJ > 0 && s.measure() != problem.Energy {
		in := s.in
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Limits.EnergyMJ = 0 })
		in.Minimise(problem.Energy)
		frugal, err := sessionFor(in, s.want)
		if err != nil {
			return nil, err
		}
		if r, err := frugal.sized(ctx); err == nil {
			t, err := s.resized(r.by.want.Buckets, r.by.want.Batches)
			if err != nil {
				return nil, err
			}
			if r, err = t.solve(ctx); err == nil || diag.ClassOf(err) != diag.ClassInfeasible {
				return r, err
			}
		}
	}
	if s.in.MaxMemory > 0 || s.in.Workload.Memory > 0 {
		if r, err := s.fewSizes(ctx); err == nil || diag.ClassOf(err) == diag.ClassInterrupted {
			return r, err
		}
	}
	return nil, why
}

// buckets is the number of programs that the plan has for prefill.
func (r *Result) buckets() (n int) {
	for i := range r.Plan.Program.Programs {
		if !r.Plan.Decodes(r.Plan.Program.Programs[i].Rows) {
			n++
		}
	}
	return n
}

// sizeCosts are the candidates for buckets and batches with what a call costs by itself.
type sizeCosts struct {
	s     *session // for all candidates
	costs map[int]int64
}

// candidates prices every number of rows that may be chosen, and 1.
func (s *session) candidates(ctx context.Context) (*sizeCosts, error) {
	buckets := []int(s.want.Buckets)
	if s.in.Workload.Buckets.Max() > 0 {
		buckets = s.more(buckets)
	}
	var why error
	usable := func(rows []int, schemes []op.Scheme, program func(rows int, scheme op.Scheme) error) (out []int, err error) {
		for _, r := range rows {
			if err := ctx.Err(); err != nil {
				return nil, diag.New(diag.ClassInterrupted, "choose buckets: %w", err)
			}
			var err error
			for _, x := range schemes {
				if err = program(r, x); err == nil {
					break
				}
			}
			if err == nil {
				out = append(out, r)
			} else if why == nil {
				why = err
			}
		}
		return out, nil
	}
	candidates := func(buckets, batches []int) (*session, error) {
		t, err := s.resized(buckets, batches)
		if err != nil {
			return nil, err
		}
		return t, t.want.Average(s.in.Workload, s.in.Model.MaxContext)
	}
	all, err := candidates(buckets, s.want.Batches)
	if err != nil {
		return nil, err
	}
	price := func(rows int, scheme op.Scheme) error {
		_, err := all.program(rows, all.uniform(scheme))
		return err
	}
	left, err := usable(buckets, s.want.Prefill, price)
	if err != nil {
		return nil, err
	}
	batches, err := usable(s.want.Batches, s.want.Decode, price)
	if err != nil {
		return nil, err
	}
	if len(left) == 0 && len(buckets) > 0 {
		return nil, why
	}
	if len(left) < len(buckets) || len(batches) < len(s.want.Batches) {
		if all, err = candidates(left, batches); err != nil {
			return nil, err
		}
	}
	if err := all.chooseSchemes(ctx); err != nil {
		return nil, err
	}
	c := &sizeCosts{all, map[int]int64{}}
	for _, rows := range all.want.Rows() {
		if c.costs[rows], err = all.call(ctx, rows, all.assigned(rows)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// call is what a call of a program costs, in ns.
func (s *session) call(ctx context.Context, rows int, a assignment) (int64, error) {
	pr, err := s.program(rows, a)
	if err != nil {
		return 0, err
	}
	report, err := pr.solve(ctx, s)
	return report.ObjectiveNS, err
}

// buckets chooses at most that many.
func (c *sizeCosts) buckets(ctx context.Context, most int) ([]int, planir.Solve, error) {
	s := c.s
	return solveSizes(ctx, s.in.Engine, sizesOf(s.want.Prompts, s.want.Buckets, c.costs, most))
}

// batches chooses among the candidates: sequences that come together are cut as prompts are.
func (c *sizeCosts) batches(ctx context.Context) ([]int, planir.Solve, error) {
	w := c.s.in.Workload
	var steps workload.Prompts
	for _, p := range w.Parallel {
		steps = append(steps, workload.Prompt{Tokens: p.Sequences, Share: p.Share / float64(p.Sequences)})
	}
	p := sizesOf(steps, c.s.want.Batches, c.costs, w.Batches.Max())
	p.Name = "batches"
	rows, report, err := solveSizes(ctx, c.s.in.Engine, p)
	all, each := 0.0, 0.0
	for i := range steps {
		all, each = all+w.Parallel[i].Share, each+steps[i].Share
	}
	for _, ns := range []*int64{&report.ObjectiveNS, &report.BoundNS} { // of a token rather than of a step
		*ns = int64(math.Round(float64(*ns) * (each / all)))
	}
	return rows, report, err
}

// sizes is an instance with what turns its objective into mean nanoseconds.
type sizes struct {
	problem.Buckets
}

// sizesOf poses the choice among rows at these costs of a call.
func sizesOf(prompts workload.Prompts, rows []int, costs map[int]int64, most int) *sizes {
	b := &sizes{problem.Buckets{Name: "buckets", Max: most, OneNS: max(1, costs[1])}}
	total, mean := 0.0, 0.0
	for _, x := range prompts {
		total, mean = total+x.Share, mean+float64(x.Share*float64(x.Tokens))
	}
	mean /= total
	// As fine as sums stay in range: the most that one prompt can cost, times all weights.
	worst := float64(float64(b.OneNS)*mean) + float64(b.OneNS)
	for _, r := range rows {
		b.Sizes = append(b.Sizes, problem.Size{Rows: r, CostNS: costs[r]})
		worst = max(worst, float64(float64(costs[r])*(mean/float64(r)+3)))
	}
	unit := math.Floor(min(1e9, (1<<59)/worst))
	lengths := map[int]int64{}
	for _, x := range prompts {
		lengths[x.Tokens] += int64(math.Round(x.Share / total * unit))
	}
	for tokens, weight := range lengths {
		b.Lengths = append(b.Lengths, problem.Length{Tokens: tokens, Weight: weight})
	}
	sort.Slice(b.Lengths, func(i, j int) bool { return b.Lengths[i].Tokens < b.Lengths[j].Tokens })
	return b
}

// solveSizes solves an instance: the rows chosen, at least one of buckets, and what a prompt costs on average.
func solveSizes(ctx context.Context, engine problem.Engine, b *sizes) ([]int, planir.Solve, error) {
	got, err := engine.Buckets(ctx, &b.Buckets, problem.Limits{})
	if err != nil {
		return nil, planir.Solve{}, err
	}
	if err := b.Verify(got); err != nil {
		return nil, planir.Solve{}, err
	}
	if len(got.Sizes) == 0 && b.Name == "buckets" { // single tokens are the fastest: a program for prompts is there all the same
		least := int64(math.MaxInt64)
		for i := range b.Sizes {
			if ns, _ := b.Objective([]int{i}); ns < least {
				least, got.Sizes = ns, []int{i}
			}
		}
		got.Objective, got.Bound = least, least
	}
	var rows []int
	for _, i := range got.Sizes {
		rows = append(rows, b.Sizes[i].Rows)
	}
	weight := max(1, b.Weight())
	return rows, planir.Solve{Problem: b.Name, Status: statusOf(got.Status, got.Objective, got.Bound),
		ObjectiveNS: got.Objective / weight, BoundNS: got.Bound / weight, Choices: len(b.Sizes)}, nil
}
