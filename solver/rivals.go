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

// What is posed rounds up: an operator begins when the slowest share of the one before has ended, and where lanes meet
// between sections costs nothing. The timeline knows better. The optimum is therefore compared by the timeline with the
// optima of problems that have fewer choices: some processors only, some strategies only. Whoever restricts solve to one of
// them then cannot be told of a faster plan. In the fastest of all, single operators are then moved for as long as the timeline gets
// shorter (polish).

// families are sets of strategies that rivals are made of; nil is all. As for Input.Strategies, nodes that have no choice of a family are
// executed by one processor.
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

// rivalSpread is how much more a rival's objective may be than the optimum's: more is not made up for by what the timeline knows better.
const rivalSpread = 1.15

// rival is a solution of a restricted problem.
type rival struct {
	program   *program
	choices   [][]int // of nodes
	objective int64
}

// rivals are the optima of a program's problem under restrictions, without the program's own.
func (pr *program) rivals(ctx context.Context, s *session) (out []rival, err error) {
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
			out = append(out, rival{pr, nodes, sol.ObjectiveNS})
		}
	}
	return out, nil
}

// shares are a rival's decisions as the timeline needs them, without prices and alternatives.
func (r *rival) shares() (out []planir.Decision) {
	for k, in := range r.program.instances {
		for i, c := range r.choices[k] {
			out = append(out, in.candidates[i][c].Decision)
		}
	}
	return out
}

// decided are a program's decisions as a plan has them.
func (pr *program) decided(p *planir.Plan) (out []planir.Decision) {
	for _, in := range pr.instances {
		for i := range in.candidates {
			d := *DecisionAt(p, in.stage.Nodes[i].Name, in.stage.Rows)
			d.Rows = in.stage.Rows
			out = append(out, d)
		}
	}
	return out
}

// timed is what the timeline says a program takes.
func (s *session) timed(p *planir.Plan, rows int) (int64, error) {
	at := slices.IndexFunc(p.Program.Programs, func(ph planir.Phase) bool { return ph.Rows == rows })
	ph := &p.Program.Programs[at]
	of, err := s.efforts(p, ph)
	if err != nil {
		return 0, err
	}
	ns, _, err := s.walk(ph, of, func(e price.Estimate) int64 { return e.NS })
	return ns, err
}

// nodes are the choices of nodes that choices of the posed chains stand for.
func (pr *program) nodes(posed [][]int) [][]int {
	out := make([][]int, len(posed))
	for k, in := range pr.instances {
		out[k] = in.nodes(posed[k])
	}
	return out
}

// rivalSets are the sets of processors that rivals may use, those of many processors first.
func (s *session) rivalSets() (out []uint64) {
	n := len(s.Procs)
	for set := uint64(1)<<min(n, 16) - 1; set > 0 && len(out) < maxRivalSets; set-- {
		out = append(out, set)
	}
	for q := range n { // one alone is always among them
		if !slices.Contains(out, 1<<q) {
			out = append(out, 1<<q)
		}
	}
	return out
}

// restraint is what the choices of a rival are: in turn those of strategies and of processors.
type restraint struct {
	strategies []planir.Strategy
	procs      uint64
}

// restraints are what rivals are made under: strategies of some processors. Solve with some processors only (Input.Only) is compared
// with rivals of its own; so these are rivals, too: strategies of some processors among the choices that are left then.
func (s *session) restraints() (out [][]restraint) {
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
func (pr *program) kept(s *session, all []restraint) (kept [][][]int) {
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

// among is a program's problem with some choices only.
func (pr *program) among(kept [][][]int) *program {
	out := &program{name: pr.name, sections: pr.sections}
	for k, in := range pr.instances {
		out.instances = append(out.instances, in.among(kept[k]))
	}
	return out
}

// family are those of a node's choices that have some strategies; where there is none, those of one processor.
func (in *instance) family(node int, list []int, strategies []planir.Strategy) (kept []int) {
	if strategies == nil {
		return list
	}
	var whole []int
	for _, c := range list {
		x := &in.candidates[node][c]
		if slices.Contains(strategies, x.Strategy) {
			kept = append(kept, c)
		}
		if x.Axis == planir.AxisNone {
			whole = append(whole, c)
		}
	}
	if kept == nil {
		return whole
	}
	return kept
}

// assisted is a set of processors with those that execute a node for one of them that cannot by any of the listed choices (Input.Only).
func (s *session) assisted(in *instance, node int, list []int, set uint64) uint64 {
	out := set
	for q := range s.Procs {
		alone := slices.ContainsFunc(list, func(c int) bool {
			x := &in.candidates[node][c]
			return x.Axis == planir.AxisNone && x.Shares[0].Proc == s.Procs[q].Name
		})
		for a := range s.Procs {
			if set>>q&1 == 1 && !alone && price.Assists(s.in.SoC, s.Procs[a].Name, s.Procs[q].Name) {
				out |= 1 << a
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
		out.candidates, out.masks = append(out.candidates, pick(in.candidates[i], list)), append(out.masks, pick(in.masks[i], list))
		out.prob.Items[i].Choices = pick(in.prob.Items[i].Choices, list)
	}
	for _, f := range in.forks {
		f.entry.class, f.exit.class = pick(f.entry.class, kept[f.second]), pick(f.exit.class, kept[f.join])
		f.crossing = nil // known for all choices
		out.forks = append(out.forks, f)
	}
	out.findPaths()
	out.posed = out.widen()
	return out
}

func pick[T any](all []T, list []int) []T {
	out := make([]T, len(list))
	for k, n := range list {
		out[k] = all[n]
	}
	return out
}

// original are choices in the numbers of the whole problem.
func original(choices [][]int, kept [][][]int) [][]int {
	out := make([][]int, len(choices))
	for k := range choices {
		for i, c := range choices[k] {
			out[k] = append(out[k], kept[k][i][c])
		}
	}
	return out
}

// compete returns the plan in which every program is the fastest of its optimum and its rivals by the timeline, with what short calls leave
// idle. A program that is not its problem's optimum is no longer said to be.
func (s *session) compete(ctx context.Context, plan *planir.Plan) (*planir.Plan, error) {
	if s.measure() != problem.Time || len(s.in.Ratio) > 0 || plan.Solver[0].Problem == jointProblem(problem.Time) {
		return plan, nil // what is asked for is not the least time of every program
	}
	rows := s.want.Rows()
	field := make([]contest, len(rows))
	for i, r := range rows {
		pr, err := s.program(r, s.assigned(r))
		if err != nil {
			return nil, err
		}
		x := &field[i]
		x.program, x.choices = pr, pr.nodes(pr.choices)
		x.decisions = pr.decided(plan)
		if x.rivals, err = pr.rivals(ctx, s); err != nil {
			return nil, err
		}
		if x.best, err = s.timed(plan, r); err != nil {
			return nil, err
		}
		x.best += pr.idleNS(plan)
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
		x := &field[i]
		decisions[i] = x.decisions
		if x.winner != nil {
			changed = true
			decisions[i] = x.winner.program.decisions(x.winner.choices)
			report := &out.Solver[i]
			report.ObjectiveNS, report.Status = x.winner.objective, StatusFaster
		}
	}
	if !changed {
		return plan, nil
	}
	return &out, s.decide(&out, decisions)
}

// polish starts from the fastest choices known of every program. It moves one node to the cheapest choice of another kind, keeps the
// move if the timeline gets shorter, and goes on with the next node until no move helps. As lowering makes all programs at a time, each
// trial plan has one move of every program; programs do not change each other's times.
func (s *session) polish(ctx context.Context, plan *planir.Plan, field []contest) error {
	type move struct{ instance, node, choice int }
	moves, problems, starts := make([][]move, len(field)), make([]*problem.Partition, len(field)), make([]rival, len(field))
	most := 0
	for i := range field {
		x := &field[i]
		starts[i] = rival{x.program, x.choices, x.program.report.ObjectiveNS}
		if x.winner != nil {
			starts[i] = *x.winner
			x.choices, x.decisions = x.winner.choices, x.winner.shares()
		}
		problems[i] = x.program.partition(s, problem.Time)
		for k, in := range x.program.instances {
			for n := range in.candidates {
				for _, c := range kinds(in.candidates[n]) {
					moves[i] = append(moves[i], move{k, n, c})
				}
			}
		}
		most = max(most, len(moves[i]))
	}
	// after is a program with one node moved; nil where the node is there already, processors exclude each other, or the problem says
	// that the program takes far too long.
	after := func(i int, m move) *rival {
		x := &field[i]
		if x.choices[m.instance][m.node] == m.choice {
			return nil
		}
		r := &rival{program: x.program, choices: slices.Clone(x.choices)}
		r.choices[m.instance] = slices.Clone(r.choices[m.instance])
		r.choices[m.instance][m.node] = m.choice
		// Nodes are posed one after the other; what branches save side by side counts as it did before.
		r.objective = max(x.program.report.BoundNS, starts[i].objective+problems[i].ObjectiveNS(r.choices)-problems[i].ObjectiveNS(starts[i].choices))
		if _, _, excluded := problems[i].Conflict(r.choices); excluded || float64(r.objective) > polishSpread*float64(x.program.report.ObjectiveNS) {
			return nil
		}
		return r
	}
	for range polishPasses {
		better := false
		for round := range most {
			if err := ctx.Err(); err != nil {
				return diag.New(diag.ClassInterrupted, "solve: %w", err)
			}
			trial, decisions, tried := *plan, make([][]planir.Decision, len(field)), make([]*rival, len(field))
			some := false
			for i := range field {
				decisions[i] = field[i].decisions
				if round < len(moves[i]) {
					if tried[i] = after(i, moves[i][round]); tried[i] != nil {
						decisions[i], some = tried[i].shares(), true
					}
				}
			}
			if !some {
				continue
			}
			if err := s.decide(&trial, decisions); err != nil {
				return err
			}
			for i, rows := range s.want.Rows() {
				x, r := &field[i], tried[i]
				if r == nil {
					continue
				}
				ns, err := s.timed(&trial, rows)
				if err != nil {
					return err
				}
				if ns += r.program.idleNS(&trial); ns < x.best {
					x.best, x.winner, x.choices, x.decisions, better = ns, r, r.choices, decisions[i], true
				}
			}
		}
		if !better {
			break
		}
	}
	return nil
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
	rivals    []rival
	best      int64  // predicted, and idle
	winner    *rival // nil: the optimum
}

// race times all rivals: the first of every program in one lowered plan, then the second of every one, and so on.
func (s *session) race(plan *planir.Plan, field []contest) error {
	for round := 0; ; round++ {
		trial, decisions := *plan, make([][]planir.Decision, len(field))
		running := false
		for i := range field {
			decisions[i] = field[i].decisions
			if round < len(field[i].rivals) {
				decisions[i], running = field[i].rivals[round].shares(), true
			}
		}
		if !running {
			return nil
		}
		if err := s.decide(&trial, decisions); err != nil {
			return err
		}
		for i, rows := range s.want.Rows() {
			x := &field[i]
			if round >= len(x.rivals) {
				continue
			}
			ns, err := s.timed(&trial, rows)
			if err != nil {
				return err
			}
			r := &x.rivals[round]
			if ns += r.program.idleNS(&trial); ns < x.best {
				x.best, x.winner = ns, r
			}
		}
	}
}
