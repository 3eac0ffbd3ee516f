package solver

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// Unmeasured returns what to measure because decisions of a plan rest on extrapolation (GroundsOf). These are the
// operators of the chosen way and of the cheapest alternative, in the plan's order and each once, and the sets of more
// than two processors that execute one of them side by side. The workload says for how many positions attention is
// priced.
//
// A plan for another model or SoC is an error of class ClassInput.
func Unmeasured(plan *planir.Plan, model *models.Model, soc *socs.SoC,
	want *workload.Workload) (tasks []price.Task, sets [][]string, err error) {
	digest, err := model.Digest()
	if err != nil {
		return nil, nil, err
	}
	if plan.Model.Digest != digest || plan.SoC.Name != soc.Name {
		return nil, nil, diag.New(diag.ClassInput, "list what plan for %q on %q lacks: got model %q and SoC %q",
			plan.Model.Name, plan.SoC.Name, model.Name, soc.Name).
			WithHint("give the model and the SoC that it was solved for")
	}

	solved := *want
	solved.Buckets, solved.Batches = nil, plan.Batches // those that were taken of a list or a number to choose
	for i := range plan.Program.Programs {
		if program := &plan.Program.Programs[i]; !plan.Decodes(program.Rows) {
			solved.Buckets = append(solved.Buckets, program.Rows)
		}
	}
	demand, err := solved.Apply(model.MaxContext)
	if err != nil {
		return nil, nil, err
	}

	weak := GroundsOf(plan).Extrapolated
	seen := map[string]bool{}
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		if !slices.Contains(weak, decisionName(decision)) {
			continue
		}

		ways, err := bestTwo(decision)
		if err != nil {
			return nil, nil, err
		}
		for j := range ways {
			list, err := tasksOf(plan, &ways[j], model, soc)
			if err != nil {
				return nil, nil, err
			}

			for _, task := range list {
				if task.Op.Kind.Has("context") {
					task.Op.Context = demand.ContextAt(decision.Rows)
				}
				if key := task.Key(); !seen[key] {
					seen[key] = true
					tasks = append(tasks, task)
				}
			}
			sets = withSet(sets, &ways[j])
		}
	}
	return tasks, sets, nil
}

// bestTwo returns a decision and its cheapest alternative, if it has one, as a decision.
func bestTwo(decision *planir.Decision) (ways []planir.Decision, err error) {
	ways = append(ways, *decision)
	if len(decision.Alternatives) > 0 {
		other := *decision
		cheapest := &decision.Alternatives[0]
		other.Strategy = cheapest.Strategy
		other.Axis, other.Shares, err = planir.ParseShares(cheapest.Shares)
		ways = append(ways, other)
	}
	return ways, err
}

// withSet adds the processors of a decision to sets, if they are more than two and not listed yet.
func withSet(sets [][]string, decision *planir.Decision) [][]string {
	var procs []string
	for _, share := range decision.Shares {
		procs = append(procs, share.Proc)
	}
	slices.Sort(procs)
	procs = slices.Compact(procs)
	isKnown := func(set []string) bool { return slices.Equal(set, procs) }
	if len(procs) < 3 || slices.ContainsFunc(sets, isKnown) {
		return sets
	}
	return append(sets, procs)
}

// tasksOf returns the operators of a decision, each on the processor that executes it.
func tasksOf(plan *planir.Plan, decision *planir.Decision, model *models.Model,
	soc *socs.SoC) (out []price.Task, err error) {
	graph := model.Graph()
	schemeOf := func(node string) op.Scheme {
		if other := DecisionAt(plan, node, decision.Rows); other != nil {
			return other.Scheme
		}
		return op.A32W32 // of a node that the plan does not decide: Cut of others does not depend on it
	}
	sections, err := lower.Expand(lower.GraphOf(plan, &graph, decision.Rows), decision.Rows, plan.MaxContext, plan.KV,
		schemeOf, plan.TiersOf(decision.Rows), plan.Channels)
	if err != nil {
		return nil, err
	}

	procOf := func(name string) *planir.Proc {
		described := soc.Processor(name)
		if described == nil {
			return nil
		}
		proc := check.Proc(described)
		return &proc
	}

	for _, share := range decision.Shares {
		if procOf(share.Proc) == nil {
			return nil, diag.New(diag.ClassInput, "list what decision %q lacks: SoC %q has no processor %q",
				decisionName(decision), soc.Name, share.Proc)
		}
	}

	for i := range sections {
		at := slices.IndexFunc(sections[i].Nodes, func(n lower.Node) bool { return n.Name == decision.Node })
		if at < 0 {
			continue
		}
		pieces, err := lower.Cut(&sections[i], &sections[i].Nodes[at], decision, procOf)
		for _, piece := range pieces {
			for _, operator := range piece.Ops {
				out = append(out, price.Task{Proc: piece.Proc, Op: operator})
			}
		}
		return out, err
	}
	return nil, diag.New(diag.ClassInput, "list what decision %q lacks: the model has no such operator",
		decisionName(decision))
}
