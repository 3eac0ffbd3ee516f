package solver

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/solver/order"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// NoPipeline is the value of Input.HeadOrder with which no heads pass through a pipeline.
const NoPipeline = "none"

// triedPipelines is how many pipelines of each rule are lowered and predicted: those that are best by the problem of
// heads alone, which knows neither the rest of the layer nor shared memory.
const triedPipelines = 4

// mostLaunches bounds the launches of an attention with many key heads.
const mostLaunches = 16

// planHeadPipelines decides in which programs the heads of sparse attention pass through a pipeline (shadowAttn sec.
// 3.4): one processor estimates scores while others select positions and attend for other heads.
//
// For every choice of processors it divides the key heads into launches in many ways, and a launch into turns. It
// orders the turns by Algorithm 1 and by an exact search, with the predicted times of launches and turns. The best few
// of these are lowered and predicted like any program. One is taken if it makes the program faster by more than the
// error of predictions, and if the plan still keeps its bounds.
func (s *session) planHeadPipelines(ctx context.Context, plan *planir.Plan) error {
	// Baselines to compare with, and divisions that were asked for, stay as they are.
	dividesHeads := len(s.in.Strategies) == 0 || slices.Contains(s.in.Strategies, planir.WeightCentric)
	isFree := len(s.in.Ratio) == 0 && dividesHeads && s.in.HeadOrder != NoPipeline
	if plan.Attention == nil || s.measure() != problem.Time || !isFree {
		return nil
	}

	for _, rows := range plan.Attention.Rows {
		posed, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return err
		}
		for _, in := range posed.instances {
			for at := range in.section.Nodes {
				if in.section.Nodes[at].Op().Kind != op.SparseAttend || at < 2 {
					continue
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := s.planHeadPipeline(plan, in.section, at); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// headStages is the sparse attention of a section: its three nodes, in the order of the section, and their times.
type headStages struct {
	rows    int
	nodes   [3]*lower.Node
	context int
	heads   []keptHeads // of each key head
	decided [3][]string // who has them without a pipeline
}

// Stages of a head.
const (
	stageEstimate = iota
	stageSelect
	stageAttend
)

// planHeadPipeline decides about the attention at index at of a section, and changes the plan.
func (s *session) planHeadPipeline(plan *planir.Plan, section *price.Section, at int) error {
	stages := &headStages{rows: section.Rows, context: section.Context}
	for i := range stages.nodes {
		stages.nodes[i] = &section.Nodes[at-2+i]
		for _, share := range plan.DecisionFor(stages.nodes[i].Name, stages.rows).Shares {
			stages.decided[i] = append(stages.decided[i], share.Proc)
		}
	}
	if stages.nodes[0].Op().Kind != op.Estimate || stages.nodes[0].Op().KVHeads < 2 {
		return nil
	}
	stages.heads = s.keptHeads(section.Name, stages.nodes[stageAttend].Op().KVHeads)
	tried, err := s.orderHeads(stages)
	if err != nil {
		return err
	}

	name := lower.ProgramName(stages.rows, s.decodes(stages.rows))
	least := float64(s.predictionFor(plan, name).PlanNS) * (1 - modelError)
	if s.in.HeadOrder != "" {
		least = math.Inf(1)
	}
	best := plan
	for i := range tried {
		candidate, err := s.withPipeline(plan, stages, &tried[i])
		if err != nil {
			return err
		}
		if candidate == nil {
			continue
		}
		if ns := float64(s.predictionFor(candidate, name).PlanNS); ns < least {
			best, least = candidate, ns
		}
	}
	*plan = *best
	return nil
}

// predictionFor returns what a plan predicts of a program.
func (s *session) predictionFor(plan *planir.Plan, program string) *planir.Prediction {
	isProgram := func(pred planir.Prediction) bool { return pred.Program == program }
	return &plan.Predictions[slices.IndexFunc(plan.Predictions, isProgram)]
}

// keptHeads says how much the query heads of key heads keep on average: a share of the positions and, for scores that
// are estimated, a share of the heads.
type keptHeads struct{ density, estimated float64 }

// meanOf returns the mean over key heads with equal numbers of query heads.
func meanOf(heads []keptHeads) (mean keptHeads) {
	for _, head := range heads {
		mean.density += head.density / float64(len(heads))
		mean.estimated += head.estimated / float64(len(heads))
	}
	return keptHeads{roundDensity(mean.density), roundDensity(mean.estimated)}
}

// keptHeads returns how much the query heads of each key head keep, over the layers of a section. Without a calibration
// it is the plan's density.
func (s *session) keptHeads(section string, count int) []keptHeads {
	out := slices.Repeat([]keptHeads{{s.in.attention.Density, 1}}, count)
	if s.in.Calibration == nil || s.in.Calibration.Attention == nil {
		return out
	}

	ratios := s.in.Calibration.Attention.Ratios(s.in.attention.Density)
	clear(out)
	layers := 0

	for i := range s.graph.Sections {
		of := &s.graph.Sections[i]
		if of.Name != section {
			continue
		}
		for layer := of.First; layer < of.First+of.Layers && layer < len(ratios); layer++ {
			layers++
			group := len(ratios[layer]) / count
			for head, ratio := range ratios[layer] {
				kept := &out[head/group]
				kept.density += min(1, ratio) / float64(group)
				if ratio > 0 && ratio < 1 {
					kept.estimated += 1 / float64(group)
				}
			}
		}
	}

	for i := range out {
		out[i].density = roundDensity(out[i].density / float64(max(1, layers)))
		out[i].estimated = roundDensity(out[i].estimated / float64(max(1, layers)))
	}
	return out
}

// roundDensity returns a density as plans write it: four decimals, more than 0 and at most 1.
func roundDensity(density float64) float64 {
	const unit = 1e4
	return min(1, max(1, math.Round(density*unit))/unit)
}

// orderedHeads is a pipeline with its decisions, and whether its order is proved to be optimal.
type orderedHeads struct {
	planir.HeadPipeline
	procs     [3]string // of the stages
	shares    [3][]planir.Share
	sources   [3]source.Source
	ns, bound int64
	choices   int
}

// orderHeads returns the pipelines to try: for each rule the best few over all processors and divisions, the exact ones
// first.
func (s *session) orderHeads(stages *headStages) (out []orderedHeads, err error) {
	byRule := map[string][]orderedHeads{}
	for _, procs := range s.pipelineProcs(stages) {
		for _, division := range divisions(stages.nodes[stageAttend].Op().KVHeads) {
			posed, err := s.poseHeads(stages, procs, division)
			if diag.ClassOf(err) == diag.ClassInfeasible || diag.ClassOf(err) == diag.ClassInput {
				continue // a share that was never measured, or that a processor does not execute
			}
			if err != nil {
				return nil, err
			}

			exact, bound := posed.problem.Exact()
			add := func(by string, found order.HeadOrder) {
				pipeline := posed.pipelineOf(by, found)
				pipeline.bound = min(bound, found.NS)
				byRule[by] = append(byRule[by], pipeline)
			}
			add(planir.ByExact, exact)
			add(planir.ByGreedy, posed.problem.Greedy())
		}
	}

	for _, by := range []string{planir.ByExact, planir.ByGreedy} {
		if s.in.HeadOrder != "" && s.in.HeadOrder != by {
			continue
		}
		list := byRule[by]
		slices.SortStableFunc(list, func(a, b orderedHeads) int {
			return cmp.Or(cmp.Compare(a.ns, b.ns),
				cmp.Compare(len(a.Launches)+len(a.Turns), len(b.Launches)+len(b.Turns)))
		})
		for i := range list {
			list[i].choices = len(list)
		}
		out = append(out, list[:min(len(list), triedPipelines)]...)
	}
	return out, nil
}

// pipelineProcs returns triples of processors for the three stages. The one that estimates is on another thread than
// the one that attends. In a plan for some processors only, a stage has another processor only if none of these
// executes it.
func (s *session) pipelineProcs(stages *headStages) (out [][3]string) {
	beside := func(a, b string) bool { return s.Thread(a) != s.Thread(b) && !s.Apart[[2]string{a, b}] }
	for _, estimates := range s.procsOfStage(stages, stageEstimate) {
		for _, attends := range s.procsOfStage(stages, stageAttend) {
			for _, selects := range s.procsOfStage(stages, stageSelect) {
				isApart := beside(estimates, attends) && beside(estimates, selects)
				if isApart && (selects == attends || beside(selects, attends)) {
					out = append(out, [3]string{estimates, selects, attends})
				}
			}
		}
	}
	return out
}

// procsOfStage lists the processors that may execute a stage.
func (s *session) procsOfStage(stages *headStages, stage int) (names []string) {
	operator := stages.nodes[stage].Op()
	for i := range s.Procs {
		proc := &s.Procs[i]
		isAsked := len(s.in.Only) == 0 || slices.Contains(s.in.Only, proc.Name)
		if !isAsked && !slices.Contains(stages.decided[stage], proc.Name) {
			continue
		}
		readsCache := len(proc.KV) == 0 || !operator.Kind.Has("kv") || slices.Contains(proc.KV, operator.KV)
		if readsCache && proc.Executes(operator.Kind) {
			names = append(names, proc.Name)
		}
	}
	return names
}

// divisions returns ways to divide key heads into launches and launches into turns, as the sizes of turns in each
// launch. For few heads it has all divisions into launches, for many those into nearly equal launches. Turns of a
// launch are nearly equal.
func divisions(heads int) (out [][][]int) {
	const few = 6
	var launches [][]int
	if heads <= few {
		launches = compositions(heads)
	} else {
		for count := 1; count <= min(heads, mostLaunches); count++ {
			launches = append(launches, nearlyEqual(heads, count))
		}
	}
	for _, sizes := range launches {
		for turns := 1; turns <= slices.Max(sizes); turns *= 2 {
			var division [][]int
			for _, size := range sizes {
				division = append(division, nearlyEqual(size, min(size, turns)))
			}
			out = append(out, division)
		}
	}
	return out
}

// compositions lists all ways to divide a few heads into consecutive launches, as the sizes of the launches.
func compositions(heads int) (out [][]int) {
	for cuts := range 1 << (heads - 1) { // bit i: a launch ends behind head i
		var sizes []int
		size := 0
		for head := range heads {
			size++
			if head == heads-1 || cuts>>head&1 == 1 {
				sizes, size = append(sizes, size), 0
			}
		}
		out = append(out, sizes)
	}
	return out
}

// nearlyEqual divides a number into nearly equal parts, the larger ones last, because the first part is what others
// wait for.
func nearlyEqual(whole, count int) []int {
	out := slices.Repeat([]int{whole / count}, count)
	for i := range whole % count {
		out[count-1-i]++
	}
	return out
}

// posedHeads is the problem of a division, with the shares that its launches and turns stand for.
type posedHeads struct {
	*headStages
	problem   order.Heads
	procs     [3]string
	shares    [3][]planir.Share
	sources   [3]source.Source
	densities []float64 // of turns
	estimated []float64 // of launches
}

// poseHeads prices the launches and turns of a division.
func (s *session) poseHeads(stages *headStages, procs [3]string, division [][]int) (*posedHeads, error) {
	posed := &posedHeads{headStages: stages, procs: procs}
	posed.problem.OneLane = procs[stageSelect] == procs[stageAttend]
	if err := s.checkRanges(stages, procs, division); err != nil {
		return nil, err
	}

	head := 0
	for _, turns := range division {
		first := head
		var launch order.Launch
		for _, size := range turns {
			launch.Turns = append(launch.Turns, len(posed.problem.Turns))
			if err := s.poseTurn(posed, head, head+size); err != nil {
				return nil, err
			}
			head += size
		}

		var err error
		estimated := meanOf(stages.heads[first:head]).estimated
		if launch.NS, err = s.priceShare(posed, stageEstimate, first, head, estimated); err != nil {
			return nil, err
		}
		posed.estimated = append(posed.estimated, estimated)
		posed.problem.Launches = append(posed.problem.Launches, launch)
	}

	scores, err := s.prices.Handover(procs[stageEstimate], procs[stageSelect])
	if err != nil {
		return nil, err
	}
	posed.problem.ScoresNS = scores.NS
	if !posed.problem.OneLane {
		positions, err := s.prices.Handover(procs[stageSelect], procs[stageAttend])
		if err != nil {
			return nil, err
		}
		posed.problem.PositionsNS = positions.NS
	}
	return posed, nil
}

// checkRanges returns an error of class ClassInfeasible if a processor would get a range of heads, and works on whole
// buffers only.
func (s *session) checkRanges(stages *headStages, procs [3]string, division [][]int) error {
	for stage, name := range procs {
		isDivided := len(division) > 1 || stage != stageEstimate && len(division[0]) > 1
		if !isDivided || stages.rows == 1 || stages.nodes[stage].Op().Kind.AnyStride() {
			continue
		}
		proc := &s.Procs[slices.IndexFunc(s.Procs, func(proc planir.Proc) bool { return proc.Name == name })]
		if !proc.StridedInput || !proc.StridedOutput {
			return diag.New(diag.ClassInfeasible, "processor %q reads and writes whole buffers only", name)
		}
	}
	return nil
}

// poseTurn adds a turn: the key heads for which positions are selected, and then attended to, together.
func (s *session) poseTurn(posed *posedHeads, from, to int) error {
	density := meanOf(posed.heads[from:to]).density
	selectNS, err := s.priceShare(posed, stageSelect, from, to, 0)
	if err != nil {
		return err
	}
	attendNS, err := s.priceShare(posed, stageAttend, from, to, density)
	if err != nil {
		return err
	}
	posed.problem.Turns = append(posed.problem.Turns, order.Turn{SelectNS: selectNS, AttendNS: attendNS})
	posed.densities = append(posed.densities, density)
	return nil
}

// priceShare adds the share of a stage that executes a range of key heads, and returns its time.
func (s *session) priceShare(posed *posedHeads, stage, from, to int, density float64) (int64, error) {
	proc := posed.procs[stage]
	estimate, err := s.headTime(posed.headStages, stage, proc, to-from, density)
	if err != nil {
		return 0, err
	}
	posed.shares[stage] = append(posed.shares[stage],
		planir.Share{Proc: proc, From: from, To: to, PredictNS: estimate.NS})
	posed.sources[stage] = source.Weakest(posed.sources[stage], estimate.Source)
	return estimate.NS, nil
}

// headTime returns the time of a stage for some key heads on a processor.
func (s *session) headTime(stages *headStages, stage int, proc string, heads int,
	density float64) (price.Estimate, error) {
	operator := stages.nodes[stage].Op()
	operator.Heads, operator.KVHeads = operator.Heads/operator.KVHeads*heads, heads
	switch operator.Kind {
	case op.SparseAttend:
		operator.Density = density
	case op.Estimate:
		operator.Density = op.HeadShare(density)
	}
	operator.Context = stages.context
	estimates, err := s.prices.Together([]price.Task{{Proc: proc, Op: operator}})
	if err != nil {
		return price.Estimate{}, err
	}
	return estimates[0], nil
}

// pipelineOf returns the pipeline that an order stands for.
func (p *posedHeads) pipelineOf(by string, found order.HeadOrder) orderedHeads {
	return orderedHeads{
		HeadPipeline: planir.HeadPipeline{Node: p.nodes[stageAttend].Name, Rows: p.rows, By: by,
			Launches: found.Launches, Turns: found.Turns, Densities: p.densities, Estimated: p.estimated},
		procs: p.procs, shares: p.shares, sources: p.sources, ns: found.NS,
	}
}

// withPipeline returns the plan with a pipeline, predicted; nil if that cannot be lowered or breaks a bound.
func (s *session) withPipeline(plan *planir.Plan, stages *headStages, with *orderedHeads) (*planir.Plan, error) {
	out := *plan
	out.Decisions, out.Predictions = slices.Clone(plan.Decisions), slices.Clone(plan.Predictions)
	out.Attention = new(*plan.Attention)
	out.Attention.Pipelines = append(slices.Clone(plan.Attention.Pipelines), with.HeadPipeline)
	slices.SortFunc(out.Attention.Pipelines, func(a, b planir.HeadPipeline) int {
		return cmp.Or(cmp.Compare(a.Rows, b.Rows), cmp.Compare(a.Node, b.Node))
	})

	for stage, node := range stages.nodes {
		decision := out.DecisionFor(node.Name, stages.rows)
		before := planir.Alternative{Strategy: decision.Strategy, Shares: decision.ShareText(),
			PredictNS: decision.PredictNS, Source: decision.Source}
		decision.Strategy, decision.Axis, decision.Shares = planir.WeightCentric, planir.AxisHeads, with.shares[stage]
		decision.Source = with.sources[stage]
		decision.Alternatives = append([]planir.Alternative{before}, decision.Alternatives...)
		decision.PredictNS = 0
		for _, share := range decision.Shares {
			decision.PredictNS += share.PredictNS
		}
	}
	out.Solver = append(slices.Clone(plan.Solver),
		planir.Solve{Problem: fmt.Sprintf("heads %s@%d", with.Node, with.Rows),
			Status: with.status(), ObjectiveNS: with.ns, BoundNS: with.bound, Choices: with.choices})
	if err := s.lower(&out); err != nil {
		return nil, err
	}

	program := &out.Program.Programs[slices.IndexFunc(out.Program.Programs,
		func(ph planir.PhaseProgram) bool { return ph.Rows == stages.rows })]
	predicted, err := s.prediction(&out, program)
	if err != nil {
		return nil, err
	}
	*s.predictionFor(&out, program.Name) = predicted

	fits, err := s.fits(&out)
	if err != nil || !fits {
		return nil, err
	}
	return &out, nil
}

// status says whether an order is proved to be the best of its division.
func (o *orderedHeads) status() string {
	if o.bound < o.ns {
		return string(problem.Feasible)
	}
	return string(problem.Optimal)
}
