package solver

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// request is the task of a solve: the input, and what follows from it alone. It contains no decision of a plan.
type request struct {
	in   Input
	want *workload.Demand
	goal problem.Measure // what is minimised

	graph        models.Graph
	batch        models.Graph // for a batch, whose rows belong to a sequence each
	selecting    models.Graph // with sparse attention
	selectingOne models.Graph // the same for the program that decodes one sequence

	*price.Machine
	prices price.Costs
	facts  *price.Facts      // nil: none are known
	memory *timeline.Machine // see sharing
	notes  diag.List         // warnings so far
}

// warn adds a warning to the result.
func (s *request) warn(format string, args ...any) {
	d := diag.New(diag.ClassInput, format, args...)
	d.Severity = diag.Warning
	s.notes = append(s.notes, d)
}

// programName returns the name of the program of that many rows in plans.
func (s *request) programName(rows int) string { return lower.ProgramName(rows, s.decodes(rows)) }

// isHead reports whether a node belongs to a section with one row whatever the bucket is.
func (s *request) isHead(node string) bool {
	name, _, _ := strings.Cut(node, ".")
	sec := s.graph.Section(name)
	return sec != nil && slices.ContainsFunc(sec.Values, func(v models.Value) bool { return v.Rows1 })
}

// sharing returns how much branches that run side by side slow each other, by expected times.
func (s *request) sharing() *timeline.Machine {
	if s.memory == nil {
		s.memory = &timeline.Machine{Memory: *s.prices.Memory(), Handover: s.expectedHandover}
	}
	return s.memory
}

// expectedHandover returns the expected time of a hand-over between processors, in ns. It is 0 where both share a
// thread, and where no price is known: then no candidate that needs the hand-over has a price either.
func (s *request) expectedHandover(from, to string) float64 {
	if s.Thread(from) == s.Thread(to) {
		return 0
	}
	handover, err := s.prices.Handover(from, to)
	if err != nil {
		return 0
	}
	return float64(handover.NS)
}

// section prepares a section for pricing: how often it is executed, and what its calls are like. A section that occurs
// several times in the model is one that repeats, with a break between occurrences.
func (s *request) section(sec *lower.Section, rows int) *price.Section {
	priced := price.NewSection(sec, s.Machine, s.prices)
	priced.Facts, priced.Policy, priced.Memory = s.facts, *s.in.policy(), s.sharing()
	priced.Rows, priced.Context = rows, s.want.ContextAt(rows)
	priced.Buckets, priced.Lengths = s.want.Buckets, s.want.Lengths[rows]

	for i := range s.graph.Sections {
		other := &s.graph.Sections[i]
		if other.Name != sec.Name {
			continue
		}
		if priced.Repeat > 0 {
			priced.Breaks++
		}
		priced.Repeat += max(1, other.Layers)
		for _, node := range other.Nodes {
			if node.Exact {
				priced.Exact[other.Name+"."+node.Name] = true
			}
		}
	}
	return priced
}

// objective returns the value of a plan by the problems that made it, in the unit of the measure: the joint problem's
// value, or the weighted sum of the programs' own.
func (s *request) objective(plan *planir.Plan) float64 {
	if plan.Solver[0].Problem == jointProblem(s.measure()) {
		return float64(plan.Solver[0].ObjectiveNS)
	}
	total := 0.0

	for i := range s.want.Rows() {
		total += float64(s.callWeight(i) * float64(plan.Solver[i].ObjectiveNS))
	}
	return total
}

// packsTwice reports whether some elements of a weight are packed twice in one format: two packs with common rows and
// columns.
func packsTwice(plan *planir.Plan) bool {
	packs := plan.Program.Packs
	for i := range packs {
		for j := range packs[:i] {
			one, other := &packs[i], &packs[j]
			sameFormat := one.Weight == other.Weight && one.Scheme == other.Scheme
			if sameFormat && one.K0 < other.K1 && other.K0 < one.K1 && one.N0 < other.N1 && other.N0 < one.N1 {
				return true
			}
		}
	}
	return false
}

// lowerDecisions gives a plan the decisions of every program, and lowers it.
func (s *request) lowerDecisions(plan *planir.Plan, decisions [][]planir.Decision) error {
	plan.Decisions = s.mergeDecisions(&solved{decisions: decisions})
	return s.lower(plan)
}

// mergeDecisions lists the decisions of all programs. The head is decided at one row, and in a bucket's program again
// only where its shares or its scheme differ.
func (s *request) mergeDecisions(decided *solved) []planir.Decision {
	var out planir.Plan
	for i, rows := range s.want.Rows() {
		for j := range decided.decisions[i] {
			decision := &decided.decisions[i][j]
			if !s.decodes(rows) && s.isHead(decision.Node) && sameHead(&out, decision) {
				continue
			}
			out.Decisions = append(out.Decisions, *decision)
		}
	}
	return out.Decisions
}

// sameHead reports whether a plan decides a node of the head at one row as a decision for a bucket does. Where decode
// has the head in float32, nodes that round its activations are prefill's alone.
func sameHead(plan *planir.Plan, decision *planir.Decision) bool {
	one := plan.DecisionFor(decision.Node, 1)
	return one != nil && one.Scheme == decision.Scheme && price.SameShares(one, decision)
}

// decodes reports whether a program of that many rows decodes.
func (s *request) decodes(rows int) bool { return slices.Contains(s.want.DecodeRows(), rows) }

// graphFor returns the graph of a program of that many rows.
func (s *request) graphFor(rows int) *models.Graph {
	if slices.Contains(s.want.Batches, rows) {
		return &s.batch
	}
	if s.sparse(rows) {
		if rows == 1 {
			return &s.selectingOne
		}
		return &s.selecting
	}
	return &s.graph
}

// lower completes the plan: it adds the processors that its decisions name, and its program.
func (s *request) lower(plan *planir.Plan) error {
	used := map[string]bool{s.in.SoC.Control: true}

	for _, decision := range plan.Decisions {
		for _, sh := range decision.Shares {
			used[sh.Proc] = true
		}
	}
	if beside := plan.Beside; beside != nil {
		used[beside.Prefill], used[beside.Decode] = true, true
	}

	plan.Experts = nil
	for _, tiers := range s.in.tiers {
		if slices.Contains(s.want.Buckets, tiers.Rows) {
			plan.Experts = append(plan.Experts, tiers)
		}
	}

	plan.Outliers, plan.Hot = s.outliersOf(plan), s.hotOf(plan)
	plan.Procs = nil
	for i := range s.Procs {
		if used[s.Procs[i].Name] {
			plan.Procs = append(plan.Procs, s.Procs[i])
		}
	}

	if err := lower.Lower(plan, &s.graph); err != nil {
		return diag.New(diag.ClassInternal, "BUG: the solved decisions do not lower: %w", err)
	}
	s.boundHot(plan)
	return nil
}

// callWeight returns the weight of a call of the i-th program of demand.rows.
func (s *request) callWeight(i int) float64 {
	rows := s.want.Rows()[i]
	if s.decodes(rows) {
		return s.want.DecodeNS(rows, s.want.Weights.Decode)
	}
	return s.want.Weights.Prefill * s.want.Share[slices.Index(s.want.Buckets, rows)]
}

// layersPerWeight returns how many layers have each weight, computed weights included. Constants and weights of
// sections without layers are not in it.
func (s *request) layersPerWeight() map[string]int {
	spans := map[string][][2]int{} // first layer and the one after the last, of each section that has the weight
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		if sec.Layers == 0 {
			continue
		}
		span := [2]int{sec.First, sec.First + sec.Layers}
		for _, node := range sec.Nodes {
			for _, weight := range s.weightsOf(sec.Name+"."+node.Name, &node) {
				if !slices.Contains(spans[weight], span) {
					spans[weight] = append(spans[weight], span)
				}
			}
		}
	}

	layers := map[string]int{}
	for weight, list := range spans {
		for _, span := range list {
			layers[weight] += span[1] - span[0]
		}
	}
	return layers
}

// weightsOf returns the weights of a node, computed ones included, without constants.
func (s *request) weightsOf(class string, node *models.Node) []string {
	names := slices.Concat(node.W, lower.Computed(class), []string{models.HeadsWeight(class)})
	return slices.DeleteFunc(names, func(name string) bool {
		weight := s.graph.Weight(name)
		return weight != nil && len(weight.Const) > 0
	})
}

// measure returns the measure that is minimised.
func (s *request) measure() problem.Measure {
	if s.goal != "" {
		return s.goal
	}
	return problem.Time
}

// reportProgress reports where the session stands.
func (s *request) reportProgress(p Progress) { s.in.Tell(p) }
