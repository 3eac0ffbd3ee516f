package solver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/order"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// orderNodes bounds the search for the order of a layer.
const orderNodes = 20000

// planInFlight decides whether chunks of prompts are processed together, two at a time, where the workload permits it
// (llm.npu sec. 3.4). Only prompts with that many whole chunks of the largest program profit.
//
// A program that divides operators leaves other chunks little to fill. So the largest program is tried both as decided
// and with every operator whole on one processor. For both, the steps of each layer are ordered chunk after chunk, by
// the paper's rule, and by an exact search with the times of the plan. Each order is lowered and predicted like any
// program. The fastest is taken if it beats the decided program, one chunk after the other, by more than the error of
// predictions, and if the plan still keeps its bounds: the rows of a second chunk take memory.
func (s *session) planInFlight(ctx context.Context, plan *planir.Plan) error {
	chunks := s.want.InFlight
	if chunks < 2 {
		return nil
	}
	none := func(format string, args ...any) error {
		s.warn("one chunk of a prompt is processed at a time: "+format, args...)
		return nil
	}
	if why := s.whyNotInFlight(plan, chunks); why != "" {
		return none("%s", why)
	}

	rows := s.want.Buckets[len(s.want.Buckets)-1]
	turns, err := s.oneByOneNS(plan, rows, chunks)
	if err != nil {
		return err
	}

	best, least := plan, s.promptNS(rows, chunks, turns, promptPrediction(plan, rows).PlanNS)*(1-modelError)
	if s.in.ChunkOrder != "" {
		least = math.Inf(1)
	}

	bases := []*planir.Plan{plan}
	whole, err := s.withWholeOperators(ctx, plan, rows)
	if err != nil {
		return err
	}
	if whole != nil {
		bases = append(bases, whole)
	}

	why := ""
	for _, base := range bases {
		one, reason, err := s.orderChunks(ctx, base, rows, chunks)
		if err != nil {
			return err
		}
		if why == "" {
			why = reason
		}
		if one == nil {
			continue
		}
		pair := one.Predictions[len(one.Predictions)-1].PlanNS
		if takes := s.promptNS(rows, chunks, pair, promptPrediction(one, rows).PlanNS); takes < least {
			best, least = one, takes
		}
	}

	if best == plan {
		return none("%s", cmp.Or(why, fmt.Sprintf(
			"no order of the steps of %d chunks of %d tokens is faster than one chunk after the other", chunks, rows)))
	}
	*plan = *best
	return nil
}

// whyNotInFlight returns why chunks of prompts cannot be processed together, "" if they can.
func (s *session) whyNotInFlight(plan *planir.Plan, chunks int) string {
	if len(s.want.Buckets) == 0 {
		return "the plan has no program for prompts"
	}
	if s.measure() == problem.Memory {
		return "a second chunk has buffers of its own, and memory is to be least"
	}
	if rows := s.want.Buckets[len(s.want.Buckets)-1]; chunks*rows > plan.MaxContext {
		return fmt.Sprintf("%d of %d tokens exceed the context of %d", chunks, rows, plan.MaxContext)
	}
	return ""
}

// promptPrediction returns the plan's prediction for its program of so many tokens of a prompt.
func promptPrediction(plan *planir.Plan, rows int) *planir.Prediction {
	name := lower.ProgramName(rows, false)
	isProgram := func(pred planir.Prediction) bool { return pred.Program == name }
	return &plan.Predictions[slices.IndexFunc(plan.Predictions, isProgram)]
}

// promptNS returns the time of the largest program's calls in the mean prompt. together is the time of so many chunks
// in flight, alone that of a chunk by itself, or of the last tokens of a prompt that no smaller program holds. Without
// prompts it returns together.
func (s *session) promptNS(rows, chunks int, together, alone int64) float64 {
	smaller := 1 // the most tokens that go to another program
	if n := len(s.want.Buckets); n > 1 {
		smaller = s.want.Buckets[n-2]
	}
	total, shares := 0.0, 0.0
	for _, prompt := range s.want.Prompts {
		whole, last := prompt.Tokens/rows, prompt.Tokens%rows
		single := whole % chunks
		if last > smaller {
			single++
		}
		inFlight := float64(whole/chunks) * float64(together)
		total += prompt.Share * (inFlight + float64(single)*float64(alone))
		shares += prompt.Share
	}
	if shares == 0 {
		return float64(together)
	}
	return total / shares
}

// inFlightGain returns by how much chunks in flight shorten the expected time, in ns.
func (s *session) inFlightGain(plan *planir.Plan) float64 {
	flight := plan.InFlight
	if flight == nil || len(s.want.Prompts) == 0 {
		return 0
	}
	alone, together := promptPrediction(plan, flight.Rows).PlanNS, plan.Predictions[len(plan.Predictions)-1].PlanNS
	turns := s.promptNS(flight.Rows, flight.Chunks, int64(flight.Chunks)*alone, alone)
	return s.want.Weights.Prefill * (turns - s.promptNS(flight.Rows, flight.Chunks, together, alone))
}

// withWholeOperators returns the plan with every operator of a program whole on one processor. It returns nil if that
// is so already, if programs were decided together, so that none can change by itself, or if nothing says how many
// chunks come alone.
func (s *session) withWholeOperators(ctx context.Context, plan *planir.Plan, rows int) (*planir.Plan, error) {
	decidedTogether := plan.Solver[0].Problem == jointProblem(problem.Time) || len(plan.Shadows) > 0
	if s.measure() != problem.Time || len(s.in.Ratio) > 0 || decidedTogether || len(s.want.Prompts) == 0 {
		return nil, nil
	}

	out := *plan
	out.Solver = slices.Clone(plan.Solver)
	var decisions [][]planir.Decision
	for i, size := range s.want.Rows() {
		pr, err := s.program(size, s.assigned(size))
		if err != nil {
			return nil, err
		}

		list := pr.decisionsIn(plan)
		if size == rows {
			isDivided := func(decision planir.Decision) bool { return len(decision.Shares) > 1 }
			if !slices.ContainsFunc(list, isDivided) {
				return nil, nil
			}
			var objective int64
			if list, objective, err = s.wholeOperators(ctx, pr); err != nil || list == nil {
				return nil, err
			}
			out.Solver[i].ObjectiveNS, out.Solver[i].Status = objective, StatusFaster
		}
		decisions = append(decisions, list)
	}

	if attention := out.Attention; attention != nil { // its orders are of the shares that were decided
		alone := *attention
		alone.Pipelines = slices.DeleteFunc(slices.Clone(alone.Pipelines),
			func(pipeline planir.HeadPipeline) bool { return pipeline.Rows == rows })
		out.Attention = &alone
	}
	if err := s.lowerDecisions(&out, decisions); err != nil {
		return nil, err
	}

	at := slices.IndexFunc(out.Program.Programs, func(program planir.PhaseProgram) bool { return program.Rows == rows })
	predicted, err := s.prediction(&out, &out.Program.Programs[at])
	if err != nil {
		return nil, err
	}
	out.Predictions = slices.Clone(plan.Predictions)
	*promptPrediction(&out, rows) = predicted
	return &out, nil
}

// wholeOperators returns the best decisions of a program that leave every operator whole on one processor, nil where
// there are none.
func (s *session) wholeOperators(ctx context.Context, pr *program) ([]planir.Decision, int64, error) {
	whole := []planir.Strategy{planir.Single, planir.Padding}
	kept := pr.filtered(&s.request, []choiceFilter{{whole, s.processorSets()[0]}})
	if kept == nil {
		return nil, 0, nil
	}
	fewer := pr.restrictedTo(kept)
	found, err := solvePartition(ctx, problem.Direct(s.in.Engine), fewer.partition(&s.request, problem.Time))
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return pr.decisions(toOriginal(fewer.choicesOfNodes(found.Choices), kept)), found.ObjectiveNS, nil
}

// orderChunks returns the plan with the chunks of prompts in flight in the order with the least time; nil with the
// reason where there is none.
func (s *session) orderChunks(
	ctx context.Context, plan *planir.Plan, rows, chunks int,
) (best *planir.Plan, why string, err error) {
	orders, err := s.chunkOrders(ctx, plan, rows, chunks)
	if diag.ClassOf(err) == diag.ClassIllegal {
		return nil, err.Error(), nil
	}
	if err != nil {
		return nil, "", err
	}
	if forced := s.in.ChunkOrder; forced != "" {
		orders = slices.DeleteFunc(orders, func(one chunksOrdered) bool { return one.By != forced })
	}

	least := int64(math.MaxInt64)
	for i := range orders {
		candidate := *plan
		candidate.InFlight = &orders[i].InFlight
		candidate.Predictions = slices.Clone(plan.Predictions)
		candidate.Solver = append(slices.Clone(plan.Solver), orders[i].reports...)

		err := lower.Lower(&candidate, &s.graph)
		if diag.ClassOf(err) == diag.ClassIllegal {
			return nil, err.Error(), nil
		}
		if err != nil {
			return nil, "", err
		}
		predicted, err := s.predictInFlight(&candidate, promptPrediction(plan, rows).EnergyUJ)
		if err != nil {
			return nil, "", err
		}

		if predicted.PlanNS >= least {
			continue
		}
		if broken := s.callLimit(lower.ProgramName(rows, false), predicted.PlanNS); broken != nil {
			why = fmt.Sprintf("%d chunks of %d tokens together take longer than %s permits a call", chunks, rows,
				broken.user)
			continue
		}

		fits, err := s.fits(&candidate)
		if err != nil {
			return nil, "", err
		}
		if !fits {
			return nil, fmt.Sprintf("the buffers of %d chunks of %d tokens break a bound", chunks, rows), nil
		}

		candidate.Predictions = append(candidate.Predictions, predicted)
		best, least, why = &candidate, predicted.PlanNS, ""
	}
	return best, why, nil
}

// chunksOrdered is a way to execute chunks in flight, and whether its order is proved to be optimal.
type chunksOrdered struct {
	planir.InFlight
	reports []planir.Solve
}

// chunkOrders returns the orders that chunks in flight may have: the chunks one after the other without a meeting of
// all lanes in between, the paper's order, and the exact one.
func (s *session) chunkOrders(ctx context.Context, plan *planir.Plan, rows, chunks int) ([]chunksOrdered, error) {
	tasks, err := lower.Tasks(plan, &s.graph, rows)
	if err != nil {
		return nil, err
	}
	inFlight := func(by string) chunksOrdered {
		return chunksOrdered{InFlight: planir.InFlight{Rows: rows, Chunks: chunks, By: by}}
	}
	plain, greedy, exact := inFlight(""), inFlight(planir.ByGreedy), inFlight(planir.ByExact)

	for i := range s.graph.Sections {
		section := &s.graph.Sections[i]
		if greedy.Order(section.Name) != nil || len(tasks[section.Name]) == 0 {
			continue
		}
		posed, err := s.orderProblem(plan, tasks[section.Name], section.Layers, rows, chunks)
		if err != nil {
			return nil, err
		}

		rule := posed.Greedy()
		best, err := posed.Exact(ctx, orderNodes)
		if err != nil {
			return nil, err
		}

		greedy.Orders = append(greedy.Orders,
			planir.ChunkOrder{Section: section.Name, Starts: rule.Starts, Turns: rule.Turns})
		exact.Orders = append(exact.Orders,
			planir.ChunkOrder{Section: section.Name, Starts: best.Starts, Turns: best.Turns})

		report := planir.Solve{Problem: fmt.Sprintf("order %s@%dx%d", section.Name, rows, chunks), ObjectiveNS: best.NS,
			BoundNS: best.BoundNS, Choices: chunks * len(tasks[section.Name]), Status: string(problem.Optimal)}
		if best.BoundNS < best.NS {
			report.Status = string(problem.Feasible)
		}
		exact.reports = append(exact.reports, report)
	}
	return []chunksOrdered{plain, greedy, exact}, nil
}

// orderProblem poses the order of the tasks of a layer. Their times are those with which the plan's programs are
// predicted; which task must follow which depends on the views that they touch.
func (s *session) orderProblem(plan *planir.Plan, tasks []lower.Task,
	layers, rows, chunks int) (*order.Problem, error) {
	posed := &order.Problem{Chunks: chunks, Layers: layers}
	load := map[string]int64{} // ns of each processor
	for i := range tasks {
		task := order.Task{}
		for chunk := range chunks {
			called := call{rows, s.chunkContext(rows, chunks, chunk)}
			if tasks[i].Step.Full {
				called.rows = tasks[i].Graph.Rows()
			}
			work, err := s.graphWork(plan.Proc(tasks[i].Proc), &tasks[i].Graph, called)
			if err != nil {
				return nil, err
			}
			task.NS = append(task.NS, work.NS)
			load[tasks[i].Proc] += work.NS
		}

		addPrecedence(&task, tasks, i)
		posed.Tasks = append(posed.Tasks, task)
	}

	// The processor with the most to do is what the paper calls the NPU.
	procs := slices.SortedFunc(maps.Keys(load), func(a, b string) int {
		return cmp.Or(cmp.Compare(load[b], load[a]), cmp.Compare(a, b))
	})
	if len(procs) > order.MaxLanes {
		return nil, diag.New(diag.ClassIllegal, "%d processors, and at most %d are ordered", len(procs), order.MaxLanes)
	}
	for i := range tasks {
		posed.Tasks[i].Lane = slices.Index(procs, tasks[i].Proc)
	}
	handovers, err := s.laneHandovers(procs)
	posed.Handover = func(from, to int) int64 { return handovers[[2]int{from, to}] }
	return posed, err
}

// addPrecedence notes which tasks of a chunk the i-th one shares views with: it follows those before it, and those
// behind it follow it in the next chunk. Tasks that have heads in common also share the cache.
func addPrecedence(to *order.Task, tasks []lower.Task, i int) {
	step := &tasks[i].Step
	for j := range tasks {
		other := &tasks[j].Step
		sharesCache := false
		if step.Heads != nil && other.Heads != nil {
			sharesCache = step.Heads[0] < other.Heads[1] && other.Heads[0] < step.Heads[1]
		}
		if sharesCache {
			to.Cache = append(to.Cache, j)
		}
		if i == j || !sharesCache && !step.Touch(other) {
			continue
		}
		if j < i {
			to.After = append(to.After, j)
		} else {
			to.Back = append(to.Back, j)
		}
	}
}

// laneHandovers returns the times of hand-overs between the lanes of these processors, in ns; 0 within one thread.
func (s *session) laneHandovers(procs []string) (map[[2]int]int64, error) {
	var failed error
	out := map[[2]int]int64{}
	for from := range procs {
		for to := range procs {
			pair := [2]string{procs[from], procs[to]}
			if from == to || s.Thread(pair[0]) == s.Thread(pair[1]) || s.Apart[pair] {
				continue
			}
			estimate, err := s.prices.Handover(procs[from], procs[to])
			failed = errors.Join(failed, err)
			out[[2]int{from, to}] = estimate.NS
		}
	}
	return out, failed
}

// predictInFlight predicts the program of chunks in flight. energy is a chunk's, in microjoules.
func (s *session) predictInFlight(plan *planir.Plan, energy int64) (planir.Prediction, error) {
	program := &plan.Program.InFlight[0]
	out, err := s.predictTimes(plan, program)
	out.EnergyUJ = energy * int64(plan.InFlight.Chunks)
	return out, err
}

// oneByOneNS returns the time of chunks that the plan's own program processes one after the other, in ns.
func (s *session) oneByOneNS(plan *planir.Plan, rows, chunks int) (total int64, err error) {
	name := lower.ProgramName(rows, false)
	at := slices.IndexFunc(plan.Program.Programs,
		func(program planir.PhaseProgram) bool { return program.Name == name })
	program := &plan.Program.Programs[at]

	for chunk := range chunks {
		of, err := s.workOfCall(plan, program, call{rows, s.chunkContext(rows, chunks, chunk)})
		if err != nil {
			return 0, err
		}

		_, sections, err := s.predictSections(program, of, func(e price.Estimate) int64 { return e.NS })
		if err != nil {
			return 0, err
		}
		for i, ns := range sections {
			if !program.Sections[i].Logits || chunk == chunks-1 { // those of one row are wanted
				total += ns
			}
		}
	}
	return total, nil
}

// chunkContext returns how many cached positions, its own included, attention of one of several chunks in flight is
// priced for: as many as the chunk's own program has on average, and at least the chunks before it.
func (s *request) chunkContext(rows, chunks, chunk int) int {
	mean := s.want.ContextAt(rows) + (2*chunk-(chunks-1))*rows/2
	return min(s.want.Context, max((chunk+1)*rows, mean))
}

// contextOf returns how many cached positions attention of a program's step is priced for, if the step begins at row
// from.
func (s *request) contextOf(plan *planir.Plan, ph *planir.PhaseProgram, from int) int {
	if flight := plan.InFlight; plan.InFlightOf(ph) {
		return s.chunkContext(flight.Rows, flight.Chunks, from/flight.Rows)
	}
	return s.want.ContextAt(ph.Rows)
}
