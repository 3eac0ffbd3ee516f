package solver

import (
	"context"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// choosesSizes reports whether the workload leaves buckets or batches to be chosen.
func (s *request) choosesSizes() bool {
	return s.in.Workload.Buckets.Max() > 0 || s.in.Workload.Batches.Max() > 0
}

// denserCandidates returns the candidates up to the ladder's largest that need not have been measured, because their
// costs lie between those of the ladder: multiples of 64 rows up to 512, of 128 up to 1024, of 256 beyond. Processors
// with static shapes add multiples of their tile.
func (s *request) denserCandidates(ladder []int) []int {
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
		for i := 1; i <= tiles && tile > 1; i++ {
			add(tile * i)
		}
	}
	sort.Ints(out)
	return slices.Compact(out)
}

// withSizes returns a session for the same prompts with other buckets and batches.
func (s *session) withSizes(buckets, batches []int) (*session, error) {
	want, err := s.want.WithSizes(s.in.Workload, buckets, batches, s.in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	want.OutputTokens = s.want.OutputTokens
	other, err := sessionFor(s.in, want)
	if err != nil {
		return nil, err
	}
	other.prices = s.prices
	return other, nil
}

// solveWithSizes chooses buckets and batches and makes the plan for them.
//
// A call of a bucket's program costs the same whatever other buckets there are. So every candidate that some
// permitted scheme has prices for is solved by itself once. Choosing among them is a problem of its own
// (problem.Buckets), as cutting prompts into calls adds up their costs.
//
// That problem does not see limits of memory, or of what processors hold, since they couple programs. Where the plan
// for its answer breaks one, the problem is posed again with fewer buckets. Nor does it see limits of time, but for
// what proves that a call breaks one. Where a plan breaks such a limit the largest size is taken out, because calls of
// fewer rows take less time. A search within a bound of memory then leaves out everything that cannot cost less than
// the best plan so far.
func (s *session) solveWithSizes(ctx context.Context) (*Result, error) {
	if err := s.checkCalibration(); err != nil {
		return nil, err
	}

	if s.measure() == problem.Memory {
		return s.fewestSizes(ctx)
	}
	costs, err := s.sizeCandidates(ctx)
	if err != nil {
		return nil, err
	}
	best, why, err := costs.search(ctx, s)
	if best != nil || err != nil {
		return best, err
	}
	return s.sizesWithinLimits(ctx, why)
}

// search returns the best plan of a session for chosen sizes, and if there is none why. The error says why a chosen
// one has no plan, the smallest one if sizes were taken out.
//
// Each round solves the plan for the sizes that problem.Buckets proves best among those left. If solving leaves buckets
// out or fails, the next round has fewer sizes to choose from, or may choose fewer of them. So the rounds end.
func (c *sizeCosts) search(ctx context.Context, ses *session) (best *Result, why, failed error) {
	var bound int64 // of the buckets' objective without limits
	smaller, allProved := false, true
	for most := ses.in.Workload.Buckets.Max(); ; {
		buckets, batches, reports, err := c.choose(ctx, ses, most, &bound)
		if err != nil {
			return nil, nil, err
		}

		other, err := ses.withSizes(buckets, batches)
		if err != nil {
			return nil, nil, err
		}
		if best != nil {
			other.knownObjective = best.session.objective(best.Plan)
		}
		result, err := other.solve(ctx)
		other.close()

		switch {
		case err == nil:
			result.Plan.Solver = append(result.Plan.Solver, reports...)
			if best == nil || result.expected() < best.expected() {
				best = result
			}
			if result.buckets() == len(buckets) { // none had to be left out
				return best, nil, nil
			}
		case diag.ClassOf(err) != diag.ClassInfeasible:
			return nil, nil, err
		default:
			allProved = allProved && Proved(err)
			if why == nil || smaller {
				why = err
			}
		}

		// Solving left buckets out, or failed.
		if c.dropTooSlow(buckets, batches, err) {
			smaller = true
			continue
		}
		if most = min(most, len(buckets)) - 1; most < 1 {
			break
		}
	}
	if !allProved {
		why = unproved(why)
	}
	return best, why, nil
}

// choose chooses at most that many buckets, and chooses batches, where a session's workload leaves them open. The bound
// it reports is that of the first choice of buckets, without a lower maximum: no later plan can beat it.
func (c *sizeCosts) choose(ctx context.Context, ses *session, most int,
	bound *int64) (buckets, batches []int, reports []planir.Solve, err error) {
	buckets, batches = ses.want.Buckets, ses.want.Batches
	if ses.in.Workload.Buckets.Max() > 0 {
		list, report, err := c.buckets(ctx, most)
		if err != nil {
			return nil, nil, nil, err
		}
		if *bound == 0 {
			*bound = report.BoundNS
		}
		report.BoundNS = min(*bound, report.ObjectiveNS)
		if report.BoundNS < report.ObjectiveNS {
			report.Status = string(problem.Feasible)
		}
		buckets, reports = list, append(reports, report)
	}

	if ses.in.Workload.Batches.Max() > 0 {
		list, report, err := c.batches(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		batches, reports = list, append(reports, report)
	}
	return buckets, batches, reports, nil
}

// fewestSizes returns the plan for as few programs as there may be: one bucket, the smallest that has a plan, and no
// batch. Others only add to what a process holds. Under a limit of energy all buckets are tried, and then those that take
// least energy together: prompts take less of it in large pieces.
func (s *session) fewestSizes(ctx context.Context) (*Result, error) {
	buckets, batches := s.want.Buckets, s.want.Batches
	if s.in.Workload.Batches.Max() > 0 {
		batches = nil
	}
	sets := [][]int{buckets}
	limited := s.in.Workload.Limits.EnergyMJ > 0
	if s.in.Workload.Buckets.Max() > 0 {
		sets = nil
		for _, rows := range buckets {
			if len(sets) < fewestTried || limited {
				sets = append(sets, []int{rows})
			}
		}
	}

	var first error
	for _, list := range sets {
		other, err := s.withSizes(list, batches)
		if err != nil {
			return nil, err
		}
		result, err := other.solve(ctx)
		if err == nil || diag.ClassOf(err) == diag.ClassInterrupted {
			return result, err
		}
		if first == nil {
			first = err
		}
	}
	if !limited || s.in.Workload.Buckets.Max() == 0 {
		return nil, first
	}
	result, err := s.sizesOfLeastEnergy(ctx)
	if result == nil && err == nil {
		err = unproved(first)
	}
	return result, err
}

// fewestTried is how many of the smallest candidates are tried alone.
const fewestTried = 3

// sizesWithinLimits returns the plan for the sizes that take least of the limited quantities: first of energy, then of
// memory. why is the error for the fastest sizes, which it returns if no other sizes help.
func (s *session) sizesWithinLimits(ctx context.Context, why error) (*Result, error) {
	if s.in.Workload.Limits.EnergyMJ > 0 && s.measure() != problem.Energy {
		result, err := s.sizesOfLeastEnergy(ctx)
		if result != nil || err != nil {
			return result, err
		}
	}

	if s.in.MaxMemory > 0 || s.in.Workload.Memory > 0 {
		result, err := s.fewestSizes(ctx)
		if err == nil || diag.ClassOf(err) == diag.ClassInterrupted {
			return result, err
		}
		if namesLimit(why, workload.KeyMemory) && namesLimit(err, workload.KeyMemory) {
			why = err // what the smallest sizes hold
		}
	}
	return nil, why
}

// sizesOfLeastEnergy returns the plan for the sizes that take least energy; nil if none of them has a plan.
func (s *session) sizesOfLeastEnergy(ctx context.Context) (*Result, error) {
	in := s.in
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Limits.EnergyMJ = 0 })
	in.Minimise(problem.Energy)
	leastEnergy, err := sessionFor(in, s.want)
	if err != nil {
		return nil, err
	}
	least, err := leastEnergy.solveWithSizes(ctx)
	if err != nil {
		return nil, ifInterrupted(err) // the caller reports why other sizes have no plan
	}

	other, err := s.withSizes(least.session.want.Buckets, least.session.want.Batches)
	if err != nil {
		return nil, err
	}
	result, err := other.solve(ctx)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, nil
	}
	return result, err
}

// ifInterrupted returns an error that says that a solve was interrupted, nil for any other one.
func ifInterrupted(err error) error {
	if diag.ClassOf(err) == diag.ClassInterrupted {
		return err
	}
	return nil
}

// expected returns the result's objective by its own measure, time or energy.
func (r *Result) expected() float64 {
	if r.session.measure() == problem.Energy {
		return r.ExpectedNJ
	}
	return r.ExpectedNS
}

// buckets returns the number of programs that the plan has for prefill.
func (r *Result) buckets() (count int) {
	for i := range r.Plan.Program.Programs {
		if !r.Plan.Decodes(r.Plan.Program.Programs[i].Rows) {
			count++
		}
	}
	return count
}

// sizeCosts are the candidates for buckets and batches with what a call costs by itself.
type sizeCosts struct {
	s     *session // for all candidates
	costs map[int]int64

	leftBuckets, leftBatches []int // candidates that may be chosen
}

// dropTooSlow takes the largest chosen bucket or batch out, and all above it, if a limit of time may be why the chosen
// ones have no plan (err) or why one was left out. It returns false where no limit of time is, or no size is left.
func (c *sizeCosts) dropTooSlow(buckets, batches []int, err error) bool {
	work := c.s.in.Workload
	if work.Batches.Max() > 0 && len(batches) > 0 && namesLimit(err, workload.KeyDecode) {
		return dropFrom(&c.leftBatches, batches[len(batches)-1], 0)
	}
	if work.Buckets.Max() == 0 || len(buckets) == 0 {
		return false
	}

	largest := buckets[len(buckets)-1]
	isSlow := namesLimit(err, workload.KeyPrefill)
	if err == nil && c.s.measure() == problem.Time {
		isSlow = c.s.callLimit(lower.ProgramName(largest, false), c.costs[largest]) != nil
	}
	return isSlow && dropFrom(&c.leftBuckets, largest, 1)
}

// dropFrom removes the sizes of that many rows and more, unless that leaves fewer than asked for.
func dropFrom(left *[]int, rows, fewest int) bool {
	fewer := slices.DeleteFunc(slices.Clone(*left), func(size int) bool { return size >= rows })
	if len(fewer) < fewest {
		return false
	}
	*left = fewer
	return true
}

// sizeCandidates prices every number of rows that may be chosen and that some permitted scheme has prices for, and 1.
func (s *session) sizeCandidates(ctx context.Context) (*sizeCosts, error) {
	buckets := s.want.Buckets
	if s.in.Workload.Buckets.Max() > 0 {
		buckets = s.denserCandidates(buckets)
	}
	all, err := s.withSizesAlone(buckets, s.want.Batches)
	if err != nil {
		return nil, err
	}

	left, why, err := all.priceable(ctx, buckets, s.want.Prefill)
	if err != nil {
		return nil, err
	}
	batches, _, err := all.priceable(ctx, s.want.Batches, s.want.Decode)
	if err != nil {
		return nil, err
	}

	if len(left) == 0 && len(buckets) > 0 {
		return nil, why
	}
	if len(left) < len(buckets) || len(batches) < len(s.want.Batches) {
		if all, err = s.withSizesAlone(left, batches); err != nil {
			return nil, err
		}
	}

	if err := all.chooseSchemes(ctx); err != nil {
		return nil, err
	}
	sizes := &sizeCosts{s: all, costs: map[int]int64{}}
	for _, rows := range all.want.Rows() {
		if sizes.costs[rows], err = all.callNS(ctx, rows, all.assigned(rows)); err != nil {
			return nil, err
		}
	}

	sizes.leftBatches = all.withinCallLimit(all.want.Batches)
	if sizes.leftBuckets = all.withinCallLimit(all.want.Buckets); len(sizes.leftBuckets) == 0 {
		sizes.leftBuckets = all.want.Buckets[:min(1, len(all.want.Buckets))] // solving says why it has no plan
	}
	return sizes, nil
}

// withinCallLimit returns the numbers of rows but those of which every call is proved to break its limit of time.
func (s *session) withinCallLimit(rows []int) []int {
	return slices.DeleteFunc(slices.Clone(rows), func(size int) bool {
		return s.callLimit(s.programName(size), s.leastCallNS(size)) != nil
	})
}

// withSizesAlone returns a session with other buckets and batches, each bucket's attention as if it were the only one.
func (s *session) withSizesAlone(buckets, batches []int) (*session, error) {
	other, err := s.withSizes(buckets, batches)
	if err != nil {
		return nil, err
	}
	return other, other.want.Average(s.in.Workload, s.in.Model.MaxContext)
}

// priceable returns the numbers of rows for which one of the schemes has prices; why is the error for the first one
// without.
func (s *planner) priceable(ctx context.Context, rows []int, schemes []op.Scheme) (out []int, why, err error) {
	for _, size := range rows {
		if err := ctx.Err(); err != nil {
			return nil, nil, diag.New(diag.ClassInterrupted, "choose buckets: %w", err)
		}
		var failed error
		for _, scheme := range schemes {
			if _, failed = s.program(size, s.uniform(scheme)); failed == nil {
				break
			}
		}
		if failed == nil {
			out = append(out, size)
		} else if why == nil {
			why = failed
		}
	}
	return out, why, nil
}

// callNS returns what a call of a program costs, in ns.
func (s *planner) callNS(ctx context.Context, rows int, schemes assignment) (int64, error) {
	pr, err := s.program(rows, schemes)
	if err != nil {
		return 0, err
	}
	report, err := pr.solve(ctx, &s.request)
	return report.ObjectiveNS, err
}

// buckets chooses at most that many buckets among the candidates.
func (c *sizeCosts) buckets(ctx context.Context, most int) ([]int, planir.Solve, error) {
	fresh := c.s
	return solveSizes(ctx, fresh.in.Engine, poseSizes(fresh.want.Prompts, c.leftBuckets, c.costs, most))
}

// batches chooses among the candidates in the same way as buckets: sequences that arrive together are cut into batches
// as prompts are cut into chunks. The shares of the workload are of tokens, and a step of n sequences makes n of them.
func (c *sizeCosts) batches(ctx context.Context) ([]int, planir.Solve, error) {
	work := c.s.in.Workload
	var steps workload.Prompts
	tokenShares, stepShares := 0.0, 0.0
	for _, parallel := range work.Parallel {
		share := parallel.Share / float64(parallel.Sequences)
		steps = append(steps, workload.Prompt{Tokens: parallel.Sequences, Share: share})
		tokenShares, stepShares = tokenShares+parallel.Share, stepShares+share
	}

	posed := poseSizes(steps, c.leftBatches, c.costs, work.Batches.Max())
	posed.Name = "batches"
	rows, report, err := solveSizes(ctx, c.s.in.Engine, posed)
	for _, ns := range []*int64{&report.ObjectiveNS, &report.BoundNS} { // of a token rather than of a step
		*ns = int64(math.Round(float64(*ns) * (stepShares / tokenShares)))
	}
	return rows, report, err
}

// poseSizes poses the choice among rows at these costs of a call. Prompts of one length are one entry, with its share
// as a whole number for a weight.
func poseSizes(prompts workload.Prompts, rows []int, costs map[int]int64, most int) *problem.Buckets {
	posed := &problem.Buckets{Name: "buckets", Max: most, OneNS: max(1, costs[1])}

	total, mean := 0.0, 0.0
	for _, prompt := range prompts {
		total, mean = total+prompt.Share, mean+float64(prompt.Share*float64(prompt.Tokens))
	}
	mean /= total

	// As fine as sums stay in range: the most that one prompt can cost, times all weights.
	worst := float64(float64(posed.OneNS)*mean) + float64(posed.OneNS)
	for _, size := range rows {
		posed.Sizes = append(posed.Sizes, problem.Size{Rows: size, CostNS: costs[size]})
		worst = max(worst, float64(float64(costs[size])*(mean/float64(size)+3)))
	}

	unit := math.Floor(min(1e9, (1<<59)/worst))
	lengths := map[int]int64{}
	for _, prompt := range prompts {
		lengths[prompt.Tokens] += int64(math.Round(prompt.Share / total * unit))
	}
	for tokens, weight := range lengths {
		posed.Lengths = append(posed.Lengths, problem.Length{Tokens: tokens, Weight: weight})
	}
	sort.Slice(posed.Lengths, func(i, j int) bool { return posed.Lengths[i].Tokens < posed.Lengths[j].Tokens })
	return posed
}

// solveSizes solves an instance. It returns the chosen rows, at least one for buckets, and the mean cost of a prompt.
func solveSizes(ctx context.Context, engine problem.Engine, posed *problem.Buckets) ([]int, planir.Solve, error) {
	got, err := engine.Buckets(ctx, posed, problem.Limits{})
	if err != nil {
		return nil, planir.Solve{}, err
	}
	if err := posed.Verify(got); err != nil {
		return nil, planir.Solve{}, err
	}

	// Where single tokens are the fastest there is a program for prompts all the same.
	if len(got.Sizes) == 0 && posed.Name == "buckets" {
		least := int64(math.MaxInt64)
		for i := range posed.Sizes {
			if ns, _ := posed.Objective([]int{i}); ns < least {
				least, got.Sizes = ns, []int{i}
			}
		}
		got.Objective, got.Bound = least, least
	}

	var rows []int
	for _, i := range got.Sizes {
		rows = append(rows, posed.Sizes[i].Rows)
	}

	// The objective counts all weights; reports say the mean of a prompt.
	weight := max(1, posed.Weight())
	return rows, planir.Solve{Problem: posed.Name, Status: statusOf(got.Status, got.Objective, got.Bound),
		ObjectiveNS: got.Objective / weight, BoundNS: got.Bound / weight, Choices: len(posed.Sizes)}, nil
}
