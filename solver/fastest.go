package solver

import (
	"context"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// The posed problem simplifies: an operator begins when the slowest share of the one before has ended, and meetings of
// lanes between sections cost nothing. The timeline starts some shares earlier and charges for meetings. The optimum is
// therefore compared by the timeline with variants: the optima of problems that have fewer choices, some processors
// only or some strategies only. A user who restricts solve to one of them then never gets a faster plan. In the fastest
// of all, single operators are then moved for as long as the timeline gets shorter (localSearch).

// families are the sets of strategies that variants are made of; nil means all strategies. A node that has no choice in
// a set is executed by one processor, as with Input.Strategies.
var families = [][]planir.Strategy{
	nil,
	{planir.Single, planir.Padding},
	{planir.Single, planir.Padding, planir.Pipe},
	{planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid},
	{planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid, planir.Paired},
	{planir.Single, planir.Padding, planir.ActivationDivide},
	// Whole operators only where a node has no other choice.
	{planir.WeightCentric, planir.Hybrid, planir.Paired},
	{planir.ActivationDivide, planir.Pipe},
}

// maxProcessorSets is how many sets of processors variants are made of.
const maxProcessorSets = 1<<4 - 1

// variantSpread is the largest ratio of a variant's objective to the optimum's at which the timeline is still asked.
// The timeline does not make up for larger differences.
const variantSpread = 1.15

// variant is a solution of a restricted problem.
type variant struct {
	program   *program
	choices   [][]int // of nodes
	objective int64
}

// restrictedOptima returns the optima of a program's problem under restrictions, other than the unrestricted optimum.
func (pr *program) restrictedOptima(ctx context.Context, req *request) (out []variant, err error) {
	engine := problem.Direct(req.in.Engine)
	seen := [][][]int{pr.choicesOfNodes(pr.choices)}
	posed := map[string]bool{}
	for _, filters := range req.choiceFilters() {
		kept := pr.filtered(req, filters)
		key := fmt.Sprint(kept)
		if kept == nil || posed[key] {
			continue
		}
		posed[key] = true

		fewer := pr.restrictedTo(kept)
		sol, err := solvePartition(ctx, engine, fewer.partition(req, problem.Time))
		if diag.ClassOf(err) == diag.ClassInfeasible {
			continue // processors that exclude each other are left
		}
		if err != nil {
			return nil, err
		}
		if float64(sol.ObjectiveNS) > variantSpread*float64(pr.report.ObjectiveNS) {
			continue
		}

		nodes := toOriginal(fewer.choicesOfNodes(sol.Choices), kept)
		isNodes := func(other [][]int) bool { return slices.EqualFunc(other, nodes, slices.Equal) }
		if !slices.ContainsFunc(seen, isNodes) {
			seen = append(seen, nodes)
			out = append(out, variant{pr, nodes, sol.ObjectiveNS})
		}
	}
	return out, nil
}

// shares returns the decisions of a variant as lowering needs them, without prices and alternatives.
func (v *variant) shares() (out []planir.Decision) {
	for i, in := range v.program.instances {
		for node, choice := range v.choices[i] {
			out = append(out, in.candidates[node][choice].Decision)
		}
	}
	return out
}

// decisionsIn returns a program's decisions as a plan has them.
func (pr *program) decisionsIn(plan *planir.Plan) (out []planir.Decision) {
	for _, in := range pr.instances {
		for i := range in.candidates {
			decision := *DecisionAt(plan, in.section.Nodes[i].Name, in.section.Rows)
			decision.Rows = in.section.Rows
			out = append(out, decision)
		}
	}
	return out
}

// timelineNS returns the time of a program by the timeline.
func (s *request) timelineNS(plan *planir.Plan, rows int) (int64, error) {
	at := slices.IndexFunc(plan.Program.Programs, func(ph planir.PhaseProgram) bool { return ph.Rows == rows })
	ph := &plan.Program.Programs[at]
	of, err := s.workOf(plan, ph)
	if err != nil {
		return 0, err
	}
	ns, _, err := s.predictSections(ph, of, func(e price.Estimate) int64 { return e.NS })
	return ns, err
}

// choicesOfNodes returns the choices of nodes that choices of the posed chains stand for.
func (pr *program) choicesOfNodes(posed [][]int) [][]int {
	out := make([][]int, len(posed))
	for i, in := range pr.instances {
		out[i] = in.choicesOfNodes(posed[i])
	}
	return out
}

// processorSets returns the sets of processors that variants may use, those of many processors first.
func (s *request) processorSets() (out []uint64) {
	procs := len(s.Procs)
	for set := uint64(1)<<min(procs, 16) - 1; set > 0 && len(out) < maxProcessorSets; set-- {
		out = append(out, set)
	}
	for proc := range procs { // one alone is always among them
		if !slices.Contains(out, 1<<proc) {
			out = append(out, 1<<proc)
		}
	}
	return out
}

// choiceFilter reduces the choices of a variant to some strategies, then to some processors.
type choiceFilter struct {
	strategies []planir.Strategy
	procs      uint64
}

// choiceFilters returns the restrictions that make variants: a set of strategies on a set of processors. Where
// Input.Only restricts the solve, some variants are restricted twice: first by Input.Only, then by such a set.
func (s *request) choiceFilters() (out [][]choiceFilter) {
	sets := s.processorSets()
	for _, set := range sets {
		for _, family := range families {
			out = append(out, []choiceFilter{{family, set}})
		}
	}

	for _, only := range sets[1:] {
		for _, set := range sets[1:] {
			for _, family := range families {
				out = append(out, []choiceFilter{{nil, only}, {family, set}})
			}
		}
	}
	return out
}

// filtered returns the choices of each node that are left by filters; nil where a node is left without one.
func (pr *program) filtered(req *request, filters []choiceFilter) (kept [][][]int) {
	for _, in := range pr.instances {
		lists := make([][]int, len(in.candidates))
		for node := range in.candidates {
			list := indices(len(in.candidates[node]))
			for _, filter := range filters {
				list = in.withStrategies(node, list, filter.strategies)
				may := req.withHelpers(in, node, list, filter.procs)
				list = slices.DeleteFunc(list, func(choice int) bool { return in.masks[node][choice]&^may != 0 })
			}
			if len(list) == 0 {
				return nil
			}
			lists[node] = list
		}
		kept = append(kept, lists)
	}
	return kept
}

// restrictedTo returns a program reduced to some choices of its nodes.
func (pr *program) restrictedTo(kept [][][]int) *program {
	out := &program{name: pr.name, sections: pr.sections}
	for i, in := range pr.instances {
		out.instances = append(out.instances, in.restrictedTo(kept[i]))
	}
	return out
}

// withStrategies returns the choices of a node that have some strategies. If there are none, it returns those of one
// processor.
func (in *instance) withStrategies(node int, list []int, strategies []planir.Strategy) (kept []int) {
	if strategies == nil {
		return list
	}
	var whole []int
	for _, choice := range list {
		candidate := &in.candidates[node][choice]
		if slices.Contains(strategies, candidate.Strategy) {
			kept = append(kept, choice)
		}
		if candidate.Axis == planir.AxisNone {
			whole = append(whole, choice)
		}
	}

	if kept == nil {
		return whole
	}
	return kept
}

// withHelpers adds helpers to a set of processors (Input.Only): those that execute a node for a processor of the set
// that cannot do so by any of the listed choices.
func (s *request) withHelpers(in *instance, node int, list []int, set uint64) uint64 {
	out := set
	for proc := range s.Procs {
		if set>>proc&1 == 0 {
			continue
		}
		executesAlone := slices.ContainsFunc(list, func(choice int) bool {
			candidate := &in.candidates[node][choice]
			return candidate.Axis == planir.AxisNone && candidate.Shares[0].Proc == s.Procs[proc].Name
		})

		for other := range s.Procs {
			if !executesAlone && price.Assists(s.in.SoC, s.Procs[other].Name, s.Procs[proc].Name) {
				out |= 1 << other
			}
		}
	}
	return out
}

// restrictedTo returns the instance with some of its candidates.
func (in *instance) restrictedTo(kept [][]int) *instance {
	out := &instance{section: in.section, chain: in.chain}
	out.chain.Items = slices.Clone(in.chain.Items)
	for i, list := range kept {
		out.candidates = append(out.candidates, elementsAt(in.candidates[i], list))
		out.masks = append(out.masks, elementsAt(in.masks[i], list))
		out.chain.Items[i].Choices = elementsAt(in.chain.Items[i].Choices, list)
	}
	for _, fork := range in.forks {
		fork.entry.class = elementsAt(fork.entry.class, kept[fork.second])
		fork.exit.class = elementsAt(fork.exit.class, kept[fork.join])
		fork.cache = nil // known for all choices
		out.forks = append(out.forks, fork)
	}
	out.findPaths()
	out.posed = out.withForkChoices()
	return out
}

// elementsAt returns the elements of a list with these numbers, in their order.
func elementsAt[T any](all []T, list []int) []T {
	out := make([]T, len(list))
	for i, number := range list {
		out[i] = all[number]
	}
	return out
}

// toOriginal translates choices of a reduced problem into those of the whole one.
func toOriginal(choices [][]int, kept [][][]int) [][]int {
	out := make([][]int, len(choices))
	for j := range choices {
		for i, choice := range choices[j] {
			out[j] = append(out[j], kept[j][i][choice])
		}
	}
	return out
}

// fasterByTimeline returns the plan in which every program is the fastest of its optimum and its variants by the
// timeline, including what short calls leave idle. A program that is not its problem's optimum then no longer claims to
// be.
//
// The problem of a program adds up times. It does not see where processors meet between sections, nor when each share
// ends. The timeline does, but only for a lowered plan. So solutions of restricted problems are timed beside the
// optimum (tryVariants), and the fastest of them is improved node by node (localSearch).
func (s *planner) fasterByTimeline(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	wantsFastest := s.measure() == problem.Time && len(s.in.Ratio) == 0
	if !wantsFastest || plan.Solver[0].Problem == jointProblem(problem.Time) {
		return plan, nil
	}
	incumbents, err := s.incumbentsOf(ctx, plan)
	if err != nil {
		return nil, err
	}
	if err := s.tryVariants(plan, incumbents); err != nil {
		return nil, err
	}
	// Without localSearch for a restricted plan: moving could take it to a better one than that without the
	// restriction.
	if len(s.in.Only) == 0 && len(s.in.Strategies) == 0 {
		if err := s.localSearch(ctx, plan, incumbents); err != nil {
			return nil, err
		}
	}

	out := *plan
	out.Solver = slices.Clone(plan.Solver)
	decisions := make([][]planir.Decision, len(incumbents))
	changed := false

	for i := range incumbents {
		incumbent := &incumbents[i]
		decisions[i] = incumbent.decisions
		if incumbent.variant != nil {
			changed = true
			decisions[i] = incumbent.variant.program.decisions(incumbent.variant.choices)
			report := &out.Solver[i]
			report.ObjectiveNS, report.Status = incumbent.variant.objective, StatusFaster
		}
	}

	if !changed {
		return plan, nil
	}
	return &out, s.lowerDecisions(&out, decisions)
}

// incumbentsOf returns the programs of a plan as the timeline predicts them, with the variants to try beside each.
func (s *planner) incumbentsOf(ctx context.Context, plan *planir.Plan) ([]incumbent, error) {
	rows := s.want.Rows()
	incumbents := make([]incumbent, len(rows))
	for i, size := range rows {
		pr, err := s.program(size, s.assigned(size))
		if err != nil {
			return nil, err
		}
		incumbent := &incumbents[i]
		incumbent.program, incumbent.choices = pr, pr.choicesOfNodes(pr.choices)
		incumbent.decisions = pr.decisionsIn(plan)
		if incumbent.variants, err = pr.restrictedOptima(ctx, &s.request); err != nil {
			return nil, err
		}
		if incumbent.bestNS, err = s.timelineNS(plan, size); err != nil {
			return nil, err
		}
		incumbent.bestNS += pr.idleNS(plan)
	}
	return incumbents, nil
}

// localSearch improves the fastest known choices of every program. It is a local search with first improvement: it
// moves one node to the cheapest choice of another kind, keeps the move if the timeline gets shorter, and goes on with
// the next node until no move helps. Lowering makes all programs at a time, so each trial plan has one move of every
// program; programs do not change each other's times.
func (s *request) localSearch(ctx context.Context, plan *planir.Plan, incumbents []incumbent) error {
	starts := make([]neighbourhood, len(incumbents))
	most := 0
	for i := range incumbents {
		starts[i] = s.neighbourhoodOf(&incumbents[i])
		most = max(most, len(starts[i].moves))
	}

	for range searchPasses {
		better := false
		for round := range most {
			if err := ctx.Err(); err != nil {
				return diag.New(diag.ClassInterrupted, "solve: %w", err)
			}

			tried := make([]*variant, len(incumbents))
			for i := range incumbents {
				if round < len(starts[i].moves) {
					tried[i] = starts[i].apply(starts[i].moves[round])
				}
			}
			faster, err := s.tryOneEach(plan, incumbents, tried)
			if err != nil {
				return err
			}
			better = better || faster
		}
		if !better {
			break
		}
	}
	return nil
}

// move gives a node another choice.
type move struct{ instance, node, choice int }

// neighbourhood is a program in the local search: the choices from which it starts, and the moves of its nodes.
type neighbourhood struct {
	*incumbent
	moves   []move
	problem *problem.Partition
	start   variant
}

// neighbourhoodOf sets a program up for localSearch, from its best variant so far, with one move for each kind of
// candidate of each node.
func (s *request) neighbourhoodOf(from *incumbent) neighbourhood {
	out := neighbourhood{incumbent: from, problem: from.program.partition(s, problem.Time)}
	out.start = variant{from.program, from.choices, from.program.report.ObjectiveNS}
	if from.variant != nil {
		out.start = *from.variant
	}
	for i, in := range from.program.instances {
		for node := range in.candidates {
			for _, choice := range cheapestOfKinds(in.candidates[node]) {
				out.moves = append(out.moves, move{i, node, choice})
			}
		}
	}
	return out
}

// apply returns the program with one node moved. It returns nil if the move changes nothing, if processors exclude each
// other, or if the program takes far too long by its problem.
func (p *neighbourhood) apply(m move) *variant {
	if p.choices[m.instance][m.node] == m.choice {
		return nil
	}
	tested := &variant{program: p.program, choices: slices.Clone(p.choices)}
	tested.choices[m.instance] = slices.Clone(tested.choices[m.instance])
	tested.choices[m.instance][m.node] = m.choice

	// Nodes are posed one after the other; what branches save side by side counts as it did before.
	moved := p.start.objective + p.problem.ObjectiveNS(tested.choices) - p.problem.ObjectiveNS(p.start.choices)
	tested.objective = max(p.program.report.BoundNS, moved)
	_, _, excluded := p.problem.Conflict(tested.choices)
	if excluded || float64(tested.objective) > moveSpread*float64(p.program.report.ObjectiveNS) {
		return nil
	}
	return tested
}

// tryOneEach times one variant of each program, nil for none, in one lowered plan, and reports whether one is the
// fastest so far.
func (s *request) tryOneEach(plan *planir.Plan, incumbents []incumbent, variants []*variant) (better bool, err error) {
	trial := *plan
	decisions := make([][]planir.Decision, len(incumbents))
	hasVariant := false
	for i := range incumbents {
		decisions[i] = incumbents[i].decisions
		if variants[i] != nil {
			decisions[i], hasVariant = variants[i].shares(), true
		}
	}
	if !hasVariant {
		return false, nil
	}
	if err := s.lowerDecisions(&trial, decisions); err != nil {
		return false, err
	}

	for i, rows := range s.want.Rows() {
		incumbent, tested := &incumbents[i], variants[i]
		if tested == nil {
			continue
		}
		ns, err := s.timelineNS(&trial, rows)
		if err != nil {
			return false, err
		}
		if ns += tested.program.idleNS(&trial); ns < incumbent.bestNS {
			incumbent.bestNS, incumbent.variant, better = ns, tested, true
			incumbent.choices, incumbent.decisions = tested.choices, decisions[i]
		}
	}
	return better, nil
}

// Limits of localSearch.
const (
	searchPasses = 4    // over all nodes
	moveSpread   = 1.05 // as variantSpread: one node moves at a time
)

// incumbent is the best known solution of a program, and the variant that is tried beside it.
type incumbent struct {
	program   *program
	choices   [][]int // of nodes: the best that there is
	decisions []planir.Decision
	variants  []variant
	bestNS    int64    // predicted, and idle
	variant   *variant // nil: the optimum
}

// tryVariants times all variants: the first variant of every program in one lowered plan, then the second of every
// program, and so on.
func (s *request) tryVariants(plan *planir.Plan, incumbents []incumbent) error {
	most := 0
	for i := range incumbents {
		most = max(most, len(incumbents[i].variants))
	}
	for round := range most {
		tried := make([]*variant, len(incumbents))
		for i := range incumbents {
			if round < len(incumbents[i].variants) {
				tried[i] = &incumbents[i].variants[round]
			}
		}
		if _, err := s.tryOneEach(plan, incumbents, tried); err != nil {
			return err
		}
	}
	return nil
}
