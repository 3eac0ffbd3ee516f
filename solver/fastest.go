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
// lanes between sections cost nothing. The timeline starts some shares earlier and charges for meetings. The optimum is therefore
// compared by the timeline with its rivals: the optima of problems that have fewer choices, some processors only or some
// strategies only. A user who restricts solve to one of them then never gets a faster plan. In the fastest of all, single
// operators are then moved for as long as the timeline gets shorter (polish).

// families are sets of strategies that rivals are made of; nil is all. As for Input.Strategies, nodes that have no
// choice of a family are executed by one processor.
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

// maxRivalSets is how many sets of processors rivals are made of.
const maxRivalSets = 1<<4 - 1

// rivalSpread is how much more a rival's objective may be than the optimum's: more is not made up for by what the
// timeline knows better.
const rivalSpread = 1.15

// rivalPlan is a solution of a restricted problem.
type rivalPlan struct {
	program   *program
	choices   [][]int // of nodes
	objective int64
}

// rivals are the optima of a program's problem under restrictions, without the program's own.
func (pr *program) rivals(ctx context.Context, s *request) (out []rivalPlan, err error) {
	engine := problem.Direct(s.in.Engine)
	seen := [][][]int{pr.nodes(pr.choices)}
	posed := map[string]bool{}
	for _, x := range s.restraints() {
		kept := pr.kept(s, x)
		key := fmt.Sprint(kept)
		if kept == nil || posed[key] {
			continue
		}
		posed[key] = true
		fewer := pr.among(kept)
		sol, err := solvePartition(ctx, engine, fewer.partition(s, problem.Time))
		if diag.ClassOf(err) == diag.ClassInfeasible {
			continue // processors that exclude each other are left
		}
		if err != nil {
			return nil, err
		}
		if float64(sol.ObjectiveNS) > rivalSpread*float64(pr.report.ObjectiveNS) {
			continue
		}
		nodes := original(fewer.nodes(sol.Choices), kept)
		if !slices.ContainsFunc(seen, func(x [][]int) bool { return slices.EqualFunc(x, nodes, slices.Equal) }) {
			seen = append(seen, nodes)
			out = append(out, rivalPlan{pr, nodes, sol.ObjectiveNS})
		}
	}
	return out, nil
}

// shares are the decisions of a rival as lowering needs them, without prices and alternatives.
func (r *rivalPlan) shares() (out []planir.Decision) {
	for j, in := range r.program.instances {
		for i, choice := range r.choices[j] {
			out = append(out, in.candidates[i][choice].Decision)
		}
	}
	return out
}

// decided are a program's decisions as a plan has them.
func (pr *program) decided(plan *planir.Plan) (out []planir.Decision) {
	for _, in := range pr.instances {
		for i := range in.candidates {
			decision := *DecisionAt(plan, in.stage.Nodes[i].Name, in.stage.Rows)
			decision.Rows = in.stage.Rows
			out = append(out, decision)
		}
	}
	return out
}

// timed is what the timeline says a program takes.
func (s *request) timed(plan *planir.Plan, rows int) (int64, error) {
	at := slices.IndexFunc(plan.Program.Programs, func(ph planir.PhaseProgram) bool { return ph.Rows == rows })
	ph := &plan.Program.Programs[at]
	of, err := s.efforts(plan, ph)
	if err != nil {
		return 0, err
	}
	ns, _, err := s.walk(ph, of, func(e price.Estimate) int64 { return e.NS })
	return ns, err
}

// nodes are the choices of nodes that choices of the posed chains stand for.
func (pr *program) nodes(posed [][]int) [][]int {
	out := make([][]int, len(posed))
	for i, in := range pr.instances {
		out[i] = in.nodes(posed[i])
	}
	return out
}

// rivalSets are the sets of processors that rivals may use, those of many processors first.
func (s *request) rivalSets() (out []uint64) {
	procs := len(s.Procs)
	for set := uint64(1)<<min(procs, 16) - 1; set > 0 && len(out) < maxRivalSets; set-- {
		out = append(out, set)
	}
	for proc := range procs { // one alone is always among them
		if !slices.Contains(out, 1<<proc) {
			out = append(out, 1<<proc)
		}
	}
	return out
}

// restraint reduces the choices of a rival to some strategies, then to some processors.
type restraint struct {
	strategies []planir.Strategy
	procs      uint64
}

// restraints are what rivals are made under: a set of strategies on a set of processors. Where Input.Only restricts
// the solve, some rivals are restricted twice: by Input.Only first, then by such a set.
func (s *request) restraints() (out [][]restraint) {
	sets := s.rivalSets()
	for _, set := range sets {
		for _, family := range families {
			out = append(out, []restraint{{family, set}})
		}
	}
	for _, only := range sets[1:] {
		for _, set := range sets[1:] {
			for _, family := range families {
				out = append(out, []restraint{{nil, only}, {family, set}})
			}
		}
	}
	return out
}

// kept are the choices of each node under restraints; nil where a node is left without one.
func (pr *program) kept(s *request, all []restraint) (kept [][][]int) {
	for _, in := range pr.instances {
		lists := make([][]int, len(in.candidates))
		for i := range in.candidates {
			list := numbers(len(in.candidates[i]))
			for _, r := range all {
				list = in.family(i, list, r.strategies)
				may := s.assisted(in, i, list, r.procs)
				list = slices.DeleteFunc(list, func(c int) bool { return in.masks[i][c]&^may != 0 })
			}
			if len(list) == 0 {
				return nil
			}
			lists[i] = list
		}
		kept = append(kept, lists)
	}
	return kept
}

// among is a program reduced to some choices of its nodes.
func (pr *program) among(kept [][][]int) *program {
	out := &program{name: pr.name, sections: pr.sections}
	for i, in := range pr.instances {
		out.instances = append(out.instances, in.among(kept[i]))
	}
	return out
}

// family are those of a node's choices that have some strategies; where there is none, those of one processor.
func (in *instance) family(node int, list []int, strategies []planir.Strategy) (kept []int) {
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

// assisted is a set of processors with those that execute a node for one of them that cannot by any of the listed
// choices (Input.Only).
func (s *request) assisted(in *instance, node int, list []int, set uint64) uint64 {
	out := set
	for proc := range s.Procs {
		alone := slices.ContainsFunc(list, func(choice int) bool {
			candidate := &in.candidates[node][choice]
			return candidate.Axis == planir.AxisNone && candidate.Shares[0].Proc == s.Procs[proc].Name
		})
		for other := range s.Procs {
			if set>>proc&1 == 1 && !alone && price.Assists(s.in.SoC, s.Procs[other].Name, s.Procs[proc].Name) {
				out |= 1 << other
			}
		}
	}
	return out
}

// among is the instance with some of its candidates.
func (in *instance) among(kept [][]int) *instance {
	out := &instance{stage: in.stage, prob: in.prob}
	out.prob.Items = slices.Clone(in.prob.Items)
	for i, list := range kept {
		out.candidates, out.masks = append(out.candidates, pick(in.candidates[i], list)), append(out.masks,
			pick(in.masks[i], list))
		out.prob.Items[i].Choices = pick(in.prob.Items[i].Choices, list)
	}
	for _, fork := range in.forks {
		fork.entry.class, fork.exit.class = pick(fork.entry.class, kept[fork.second]), pick(fork.exit.class,
			kept[fork.join])
		fork.crossing = nil // known for all choices
		out.forks = append(out.forks, fork)
	}
	out.findPaths()
	out.posed = out.widen()
	return out
}

// pick is the elements of a list with these numbers, in their order.
func pick[T any](all []T, list []int) []T {
	out := make([]T, len(list))
	for i, number := range list {
		out[i] = all[number]
	}
	return out
}

// original translates choices of a reduced problem into those of the whole one.
func original(choices [][]int, kept [][][]int) [][]int {
	out := make([][]int, len(choices))
	for j := range choices {
		for i, choice := range choices[j] {
			out[j] = append(out[j], kept[j][i][choice])
		}
	}
	return out
}

// compete returns the plan in which every program is the fastest of its optimum and its rivals by the timeline, with
// what short calls leave idle. A program that is not its problem's optimum is no longer said to be.
//
// The problem of a program adds up times, and does not see where processors meet between sections or when each share
// ends. The timeline does, but only of a lowered plan. So solutions of restricted problems are timed beside the
// optimum (race), and the fastest of them is improved node by node (polish).
func (s *planner) compete(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	if s.measure() != problem.Time || len(s.in.Ratio) > 0 || plan.Solver[0].Problem == jointProblem(problem.Time) {
		return plan, nil // what is asked for is not the least time of every program
	}
	rows := s.want.Rows()
	field := make([]contest, len(rows))
	for i, size := range rows {
		pr, err := s.program(size, s.assigned(size))
		if err != nil {
			return nil, err
		}
		contest := &field[i]
		contest.program, contest.choices = pr, pr.nodes(pr.choices)
		contest.decisions = pr.decided(plan)
		if contest.rivals, err = pr.rivals(ctx, &s.request); err != nil {
			return nil, err
		}
		if contest.best, err = s.timed(plan, size); err != nil {
			return nil, err
		}
		contest.best += pr.idleNS(plan)
	}
	if err := s.race(plan, field); err != nil {
		return nil, err
	}
	// A restricted plan is not polished: moving could take it to a better one than that without the restriction.
	if len(s.in.Only) == 0 && len(s.in.Strategies) == 0 {
		if err := s.polish(ctx, plan, field); err != nil {
			return nil, err
		}
	}
	out := *plan
	out.Solver = slices.Clone(plan.Solver)
	decisions := make([][]planir.Decision, len(field))
	changed := false
	for i := range field {
		contest := &field[i]
		decisions[i] = contest.decisions
		if contest.winner != nil {
			changed = true
			decisions[i] = contest.winner.program.decisions(contest.winner.choices)
			report := &out.Solver[i]
			report.ObjectiveNS, report.Status = contest.winner.objective, StatusFaster
		}
	}
	if !changed {
		return plan, nil
	}
	return &out, s.decide(&out, decisions)
}

// polish starts from the fastest choices known of every program. It moves one node to the cheapest choice of another
// kind, keeps the move if the timeline gets shorter, and goes on with the next node until no move helps: a local
// search with first improvement. As lowering makes all programs at a time, each trial plan has one move of every
// program; programs do not change each other's times.
func (s *request) polish(ctx context.Context, plan *planir.Plan, field []contest) error {
	starts := make([]polished, len(field))
	most := 0
	for i := range field {
		starts[i] = s.polished(&field[i])
		most = max(most, len(starts[i].moves))
	}
	for range polishPasses {
		better := false
		for round := range most {
			if err := ctx.Err(); err != nil {
				return diag.New(diag.ClassInterrupted, "solve: %w", err)
			}
			tried := make([]*rivalPlan, len(field))
			for i := range field {
				if round < len(starts[i].moves) {
					tried[i] = starts[i].after(starts[i].moves[round])
				}
			}
			faster, err := s.try(plan, field, tried)
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

// polished is a program whose nodes are moved, from where that starts.
type polished struct {
	*contest
	moves   []move
	problem *problem.Partition
	start   rivalPlan
}

// polished sets a program up for polish, from its winner so far, with one move for each kind of candidate of each
// node.
func (s *request) polished(c *contest) polished {
	out := polished{contest: c, problem: c.program.partition(s, problem.Time)}
	out.start = rivalPlan{c.program, c.choices, c.program.report.ObjectiveNS}
	if c.winner != nil {
		out.start = *c.winner
	}
	for k, in := range c.program.instances {
		for node := range in.candidates {
			for _, choice := range kinds(in.candidates[node]) {
				out.moves = append(out.moves, move{k, node, choice})
			}
		}
	}
	return out
}

// after is the program with one node moved; nil where the node is there already, processors exclude each other, or
// the problem says that the program takes far too long.
func (p *polished) after(m move) *rivalPlan {
	if p.choices[m.instance][m.node] == m.choice {
		return nil
	}
	rival := &rivalPlan{program: p.program, choices: slices.Clone(p.choices)}
	rival.choices[m.instance] = slices.Clone(rival.choices[m.instance])
	rival.choices[m.instance][m.node] = m.choice
	// Nodes are posed one after the other; what branches save side by side counts as it did before.
	moved := p.start.objective + p.problem.ObjectiveNS(rival.choices) - p.problem.ObjectiveNS(p.start.choices)
	rival.objective = max(p.program.report.BoundNS, moved)
	_, _, excluded := p.problem.Conflict(rival.choices)
	if excluded || float64(rival.objective) > polishSpread*float64(p.program.report.ObjectiveNS) {
		return nil
	}
	return rival
}

// try times one rival of each program, nil for none, in one lowered plan, and reports whether one is the fastest so
// far.
func (s *request) try(plan *planir.Plan, field []contest, rivals []*rivalPlan) (better bool, err error) {
	trial, decisions := *plan, make([][]planir.Decision, len(field))
	some := false
	for i := range field {
		decisions[i] = field[i].decisions
		if rivals[i] != nil {
			decisions[i], some = rivals[i].shares(), true
		}
	}
	if !some {
		return false, nil
	}
	if err := s.decide(&trial, decisions); err != nil {
		return false, err
	}
	for i, rows := range s.want.Rows() {
		contest, rival := &field[i], rivals[i]
		if rival == nil {
			continue
		}
		ns, err := s.timed(&trial, rows)
		if err != nil {
			return false, err
		}
		if ns += rival.program.idleNS(&trial); ns < contest.best {
			contest.best, contest.winner, better = ns, rival, true
			contest.choices, contest.decisions = rival.choices, decisions[i]
		}
	}
	return better, nil
}

// Limits of polish.
const (
	polishPasses = 4    // over all nodes
	polishSpread = 1.05 // as rivalSpread: one node moves at a time
)

// contest is a program's optimum and its rivals.
type contest struct {
	program   *program
	choices   [][]int // of nodes: the best that there is
	decisions []planir.Decision
	rivals    []rivalPlan
	best      int64      // predicted, and idle
	winner    *rivalPlan // nil: the optimum
}

// race times all rivals: the first of every program in one lowered plan, then the second of every one, and so on.
func (s *request) race(plan *planir.Plan, field []contest) error {
	most := 0
	for i := range field {
		most = max(most, len(field[i].rivals))
	}
	for round := range most {
		tried := make([]*rivalPlan, len(field))
		for i := range field {
			if round < len(field[i].rivals) {
				tried[i] = &field[i].rivals[round]
			}
		}
		if _, err := s.try(plan, field, tried); err != nil {
			return err
		}
	}
	return nil
}
