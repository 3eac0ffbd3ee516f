package solver

import (
	"context"
	"slices"
	"sort"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// instance is the problem of one section, with the candidates that its choices stand for.
type instance struct {
	section    *price.Section
	candidates [][]price.Candidate // by node
	chain      problem.Chain       // one item for each node
	posed      problem.Chain       // the same, with the ways through forks as further choices
	items      []*item             // those of chain, where the session keeps them
	forks      []forkJoin
	masks      [][]uint64 // processors, by node and choice
	needs      [][][]need // by node and candidate, once asked for
	counted    bool       // the session counts its bytes
}

// partition returns the program's problem. Minimising energy it has nanojoules where times were, and hand-overs cost
// nothing. Branches side by side take as much energy as one after the other, so ways through forks are left out.
func (pr *program) partition(s *request, measure problem.Measure) *problem.Partition {
	posed := &problem.Partition{Name: pr.name, Conflicts: s.Conflicts}
	for i := range s.Procs {
		posed.Procs = append(posed.Procs, s.Procs[i].Name)
	}
	for _, in := range pr.instances {
		chain := in.posed
		if measure == problem.Energy {
			chain = in.energy()
		}
		posed.Chains = append(posed.Chains, chain)
	}
	return posed
}

// energy returns the chain with nanojoules where times were.
func (in *instance) energy() problem.Chain {
	chain := in.chain
	chain.Items = slices.Clone(chain.Items)
	for i := range chain.Items {
		item := &chain.Items[i]
		item.Choices = slices.Clone(item.Choices)
		for j := range item.Choices {
			item.Choices[j].CostNS = item.Choices[j].EnergyNJ
		}

		item.EdgeNS = slices.Clone(item.EdgeNS)
		for from := range item.EdgeNS {
			item.EdgeNS[from] = make([]int64, len(item.EdgeNS[from]))
		}
	}
	return chain
}

// solve finds the choice for every node, and says how it was found. A single program has no memory of its own to
// minimise, so solves for least memory begin with the fastest choices.
func (pr *program) solve(ctx context.Context, s *request) (planir.Solve, error) {
	if pr.choices != nil {
		return pr.report, nil
	}
	measure := s.measure()
	posed := pr.partition(s, measure)
	sol, err := solvePartition(ctx, s.in.Engine, posed)
	if err != nil {
		return planir.Solve{}, err
	}
	name := "partition " + pr.name
	if measure == problem.Energy {
		name = "energy " + pr.name
	}

	pr.choices = sol.Choices
	pr.report = planir.Solve{
		Problem: name, Status: statusOf(sol.Status, sol.ObjectiveNS, sol.BoundNS),
		ObjectiveNS: sol.ObjectiveNS, BoundNS: sol.BoundNS, Choices: posed.Size(),
	}
	return pr.report, nil
}

// solvePartition has an engine solve a partition problem, and checks its answer.
func solvePartition(ctx context.Context, engine problem.Engine, posed *problem.Partition) (problem.Solution, error) {
	sol, err := engine.Partition(ctx, posed)
	if err == nil {
		err = posed.Verify(sol)
	}
	return sol, err
}

// decisions returns the decisions that a program's choices stand for, with their prices and alternatives.
func (pr *program) decisions(choices [][]int) (out []planir.Decision) {
	for i, in := range pr.instances {
		out = append(out, in.decisions(choices[i])...)
	}
	return out
}

// decisions turns choices into decisions. The time of a decision is its hand-over plus its execution, so that the times
// of a section's decisions add up to the section's. The time of an alternative is the one that the decision would have
// if this node alone changed. Each has the source of its time.
//
// For branches that run side by side each decision has its own time, and the section takes as long as the longer
// branch.
func (in *instance) decisions(choices []int) []planir.Decision {
	choices = in.choicesOfNodes(choices)
	out := make([]planir.Decision, len(choices))
	for i, chosen := range choices {
		decision := in.candidates[i][chosen].Decision
		decision.PredictNS = in.handoverInto(choices, i, chosen) + in.candidates[i][chosen].PredictNS
		decision.Source = in.decisionSource(choices, i)
		decision.Alternatives = in.alternatives(choices, i)
		out[i] = decision
	}
	return out
}

// handoverInto returns the time of the hand-over into node i when it is executed as choice and the others as in
// choices.
func (in *instance) handoverInto(choices []int, i, choice int) int64 {
	if fork := in.forkOf(i); fork != nil && i > fork.split {
		if changed := withChoice(choices, i, choice); in.sideBySide(fork, changed) {
			return in.forkEntry(fork, changed, i, choice)
		}
	}
	return in.neighbourHandover(i, choices[(i+len(choices)-1)%len(choices)], choice)
}

// withChoice returns a copy of choices in which node i has another one.
func withChoice(choices []int, i, choice int) []int {
	out := slices.Clone(choices)
	out[i] = choice
	return out
}

// handoverSource returns the source of the hand-over time into node i, empty if there is no hand-over.
func (in *instance) handoverSource(choices []int, i int) source.Source {
	before := (i + len(choices) - 1) % len(choices)
	fork := in.forkOf(i)
	if fork != nil && i == fork.second && in.sideBySide(fork, choices) {
		before = fork.split
	} else if len(in.chain.Items[i].EdgeNS) == 0 {
		return ""
	}

	values := in.section.Nodes[before].Out
	writes := in.section.Regions(in.candidates[before][choices[before]].Writes, values)
	reads := in.section.Regions(in.candidates[i][choices[i]].Reads, values)
	_, from, err := in.section.Handover(writes, reads)
	if err != nil {
		panic("BUG: a hand-over that was priced has no price: " + err.Error())
	}
	return from
}

// decisionSource returns the source of the time of node i's decision: of its hand-over and its execution.
func (in *instance) decisionSource(choices []int, i int) source.Source {
	return source.Weakest(in.candidates[i][choices[i]].Source, in.handoverSource(choices, i))
}

// alternativeSource returns the source of the time of node i executed as another choice. Unlike decisionSource it
// includes the hand-over into the next node.
func (in *instance) alternativeSource(choices []int, i, choice int) source.Source {
	changed := withChoice(choices, i, choice)
	return source.Weakest(in.decisionSource(changed, i), in.handoverSource(changed, (i+1)%len(choices)))
}

// predictedNS returns the time of a node's choice, in ns, without what short calls leave idle.
func (in *instance) predictedNS(node, choice int) int64 { return in.candidates[node][choice].PredictNS }

// decisionNS returns the time of node i's decision if it were executed as the given choice: the node's present time
// plus the change of the section's time.
func (in *instance) decisionNS(choices []int, i, choice int) int64 {
	own := in.handoverInto(choices, i, choices[i]) + in.predictedNS(i, choices[i])
	if choice == choices[i] {
		return own
	}
	return max(1, own+in.localCost(choices, i, choice)-in.localCost(choices, i, choices[i]))
}

// localCost returns the part of the section's time that depends on node i when it is executed as the given choice: its
// own and the hand-overs to and from its neighbours.
func (in *instance) localCost(choices []int, i, choice int) int64 {
	if in.forkOf(i) != nil {
		return in.sectionNS(withChoice(choices, i, choice), in.predictedNS)
	}
	previous, next := (i+len(choices)-1)%len(choices), (i+1)%len(choices)
	return in.neighbourHandover(i, choices[previous], choice) + in.predictedNS(i, choice) +
		in.neighbourHandover(next, choice, choices[next])
}

// alternatives lists the cheapest choice for every strategy and tuple of processors other than the chosen one, cheapest
// first. If the chosen choice has forms other than the default ones, its own default forms are listed, too.
func (in *instance) alternatives(choices []int, i int) []planir.Alternative {
	kind := func(choice int) string {
		candidate := &in.candidates[i][choice]
		key := string(candidate.Strategy) + "/" + string(candidate.Axis)
		for _, share := range candidate.Shares {
			key += " " + share.Proc
		}
		return key
	}
	// The cheapest choice of each kind, in the order in which kinds first occur.
	best := map[string]int{}
	var order []string
	for choice := range in.candidates[i] {
		key := kind(choice)
		old, ok := best[key]
		if !ok {
			order = append(order, key)
		}
		if !ok || in.decisionNS(choices, i, choice) < in.decisionNS(choices, i, old) {
			best[key] = choice
		}
	}

	var out []planir.Alternative
	for _, key := range order {
		if key == kind(choices[i]) {
			continue
		}
		choice := best[key]
		out = append(out, planir.Alternative{
			Strategy: in.candidates[i][choice].Strategy, Shares: in.candidates[i][choice].ShareText(),
			PredictNS: in.decisionNS(choices, i, choice), Source: in.alternativeSource(choices, i, choice),
		})
	}

	candidate := &in.candidates[i][choices[i]]
	if plain, err := in.section.Plain(i, &candidate.Decision); err == nil && plain != nil {
		out = append(out, planir.Alternative{
			Strategy: plain.Strategy, Shares: plain.ShareText(),
			PredictNS: in.decisionNS(choices, i, choices[i]) + plain.PredictNS - candidate.PredictNS,
			Source:    source.Weakest(plain.Source, in.handoverSource(choices, i)),
		})
	}
	sort.SliceStable(out, func(a, b int) bool { return out[a].PredictNS < out[b].PredictNS })
	return out
}

// candidateLike returns the candidate of node i that divides it as the decision does, -1 when there is none.
func (in *instance) candidateLike(i int, decision *planir.Decision) int {
	return slices.IndexFunc(in.candidates[i],
		func(c price.Candidate) bool { return price.SameShares(&c.Decision, decision) })
}

// onProcessor returns the section executed by one processor alone; false when it cannot.
func (in *instance) onProcessor(proc string) (choices []int, ns int64, ok bool) {
	for i := range in.candidates {
		candidate := slices.IndexFunc(in.candidates[i], func(candidate price.Candidate) bool {
			return candidate.Axis == planir.AxisNone && candidate.Shares[0].Proc == proc
		})
		if candidate < 0 {
			return nil, 0, false
		}
		choices = append(choices, candidate)
	}
	return choices, in.chain.ObjectiveNS(choices), true
}
